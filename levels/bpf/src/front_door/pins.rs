//! Pins of services below user level: their memory and programs outlive a daemon, and the next one
//! adopts them.
//!
//! ```text
//!  /sys/fs/bpf/tamandua/NODE/
//!      arena_ENTRY    a service's memory
//!      block_ENTRY    its instance block
//!      events_ENTRY   the ring of its programs' output
//!      nic_ENTRY      its module's program at nic, when it was loaded
//!      kernel_ENTRY   the same at kernel
//! ```
//!
//! Programs would run on without these pins, for the front door's maps hold them; but they could
//! not be opened any more. Whether a pinned object is of this version is not checked here:
//! the caller compares fingerprints first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use units::{EntryId, Name};

use super::services::Below;
use super::{FrontDoorError, PIN_DIRECTORY};
use crate::arena::Arena;
use crate::block::Block;
use crate::map::Map;
use crate::pin::{self, PinError};
use crate::program::Program;

/// Memory that the programs of a service below user level run on.
#[derive(Debug)]
pub struct ServiceMaps {
    /// Linear memory.
    pub arena: Arena,
    /// Instance block.
    pub block: Block,
    /// Ring buffer of its programs' output.
    pub events: Map,
}

/// Pinned parts of a service.
#[derive(Clone, Copy)]
enum Kept {
    Arena,
    Block,
    Events,
    Module(Below),
}

impl Kept {
    /// All parts in the order of their removal: the arena is the last, so it exists while any part
    /// does.
    const ALL: [Self; 5] = [
        Self::Module(Below::Kernel),
        Self::Module(Below::Nic),
        Self::Events,
        Self::Block,
        Self::Arena,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Arena => "arena",
            Self::Block => "block",
            Self::Events => "events",
            Self::Module(Below::Nic) => "nic",
            Self::Module(Below::Kernel) => "kernel",
        }
    }
}

/// Pins of a node in the BPF file system.
#[derive(Debug)]
pub struct Pins {
    folder: PathBuf,
}

impl Pins {
    /// Names the pins of a node.
    pub(super) fn of(node: &Name) -> Self {
        Self { folder: Path::new(PIN_DIRECTORY).join(node.as_str()) }
    }

    /// Returns their directory.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the directory, and mounts the BPF file system where there is none.
    pub(super) fn create(&self) -> Result<(), FrontDoorError> {
        pin::mount_bpffs()
            .and_then(|()| std::fs::create_dir_all(&self.folder))
            .map_err(|source| FrontDoorError::Folder { path: self.folder.clone(), source })
    }

    /// Pins the memory of a service below user level for the next daemon.
    ///
    /// # Errors
    /// The BPF file system refuses.
    pub fn keep_service(
        &self,
        entry: EntryId,
        arena: &Arena,
        block: &Block,
        events: &Map,
    ) -> Result<(), FrontDoorError> {
        self.forget_service(entry)?;
        arena.map().pin(&self.kept(Kept::Arena, entry))?;
        block.map().pin(&self.kept(Kept::Block, entry))?;
        events.pin(&self.kept(Kept::Events, entry))?;
        Ok(())
    }

    /// Pins a service's program of a level, replacing the previous one.
    ///
    /// # Errors
    /// The BPF file system refuses.
    pub fn keep_module(
        &self,
        level: Below,
        entry: EntryId,
        program: &Program,
    ) -> Result<(), FrontDoorError> {
        let path = self.kept(Kept::Module(level), entry);
        unpin_if_there(&path)?;
        program.pin(&path)?;
        Ok(())
    }

    /// Opens the memory of a service that a previous daemon pinned; `None` when there is none.
    ///
    /// # Errors
    /// A part of it is missing, or something else is pinned in its place.
    pub fn kept_service(&self, entry: EntryId) -> Result<Option<ServiceMaps>, FrontDoorError> {
        let open = |kept| Map::open_pinned(&self.kept(kept, entry));
        let arena = match open(Kept::Arena) {
            Ok(arena) => Arena::new(arena)?,
            Err(PinError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let block = Block::new(open(Kept::Block)?)?;
        Ok(Some(ServiceMaps { arena, block, events: open(Kept::Events)? }))
    }

    /// Opens a service's program of a level; `None` when it has not been loaded.
    ///
    /// # Errors
    /// Something else is pinned in its place.
    pub fn kept_module(
        &self,
        level: Below,
        entry: EntryId,
    ) -> Result<Option<Program>, FrontDoorError> {
        match Program::open_pinned(&self.kept(Kept::Module(level), entry)) {
            Ok(program) => Ok(Some(program)),
            Err(PinError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes all pins of a service.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn forget_service(&self, entry: EntryId) -> Result<(), FrontDoorError> {
        if !self.kept(Kept::Arena, entry).exists() {
            return Ok(());
        }
        for kept in Kept::ALL {
            unpin_if_there(&self.kept(kept, entry))?;
        }
        Ok(())
    }

    /// Returns the services with pins.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn kept_entries(&self) -> Result<BTreeSet<EntryId>, FrontDoorError> {
        let failed = |source| FrontDoorError::Folder { path: self.folder.clone(), source };
        let mut entries = BTreeSet::new();
        for file in std::fs::read_dir(&self.folder).map_err(failed)? {
            let file = file.map_err(failed)?.file_name();
            let found = file.to_str().and_then(|name| name.split_once('_'));
            let Some((kind, number)) = found else { continue };
            if Kept::ALL.iter().any(|kept| kept.name() == kind)
                && let Ok(number) = number.parse()
            {
                entries.insert(EntryId(number));
            }
        }
        Ok(entries)
    }

    fn kept(&self, kept: Kept, entry: EntryId) -> PathBuf {
        self.folder.join(format!("{}_{}", kept.name(), entry.0))
    }
}

fn unpin_if_there(path: &Path) -> Result<(), PinError> {
    match pin::unpin(path) {
        Err(PinError::Missing { .. }) => Ok(()),
        other => other,
    }
}
