//! Document of `GET /v1/backup`.

use crate::answer::Answer;
use crate::control::desired::refusal;
use crate::journal::{Journal, JournalError};
use crate::observe::view::View;
use api::{NodeBackup, SCHEMA_VERSION};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Backup whose journal has yet to be read.
pub(crate) struct BackupRead {
    journal: Arc<Mutex<Journal>>,
    /// Everything that is not in the journal.
    rest: NodeBackup,
}

impl BackupRead {
    /// Prepares a backup; `latest` is the time by which capabilities end.
    pub(crate) fn new(view: &View<'_>, latest: u64) -> Self {
        let rest = NodeBackup {
            schema_version: SCHEMA_VERSION,
            node: view.file.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            latest_time: latest,
            state_directory: view.file.state.display().to_string(),
            store_directory: view.state.modules().store().directory().display().to_string(),
            generation: 0,
            state: serde_json::Value::Null,
            node_file: None,
            capabilities: BTreeMap::new(),
            revoked: Vec::new(),
        };
        Self { journal: view.state.desired().journal(), rest }
    }

    /// Reads the journal, which may be waiting for the disk.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) fn run(self) -> Answer<NodeBackup> {
        let Self { journal, rest } = self;
        let journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        let read = || -> Result<NodeBackup, JournalError> {
            let newest = journal.newest()?;
            let (generation, desired) =
                newest.map_or_else(Default::default, |it| (it.generation, it.state));
            Ok(NodeBackup {
                generation,
                state: serde_json::to_value(desired).unwrap_or_default(),
                node_file: journal.node_file()?,
                capabilities: journal.capabilities()?,
                revoked: journal.revoked()?.into_iter().collect(),
                ..rest
            })
        };
        read().map_err(|problem| refusal(&problem))
    }
}
