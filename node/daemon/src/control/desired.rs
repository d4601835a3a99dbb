//! Desired state as the daemon keeps it: in memory, and in step with the journal.
//!
//! ```text
//! command ─▶ done by the node ─▶ record ─▶ JournalWrite ─▶ journal (a thread) ─▶ handle_written
//!    └─ what cannot be undone: recorded first
//! ```
//!
//! The module writes only at the start of a node. A change that cannot be recorded is undone by
//! the code that made it.

use super::authority::{Authority, Capabilities, Capability, Revoked};
use super::edit::Edit;
use super::modules::Stored;
use super::recorded::{Recorded, Unconfirmed};
use super::recording::{Facts, Recording, Write};
use crate::answer::Answer;
use crate::answer::failed;
use crate::journal::{CapabilityTexts, Journal, JournalError, Record};
use api::ErrorInfo;
use node::CapabilityId;
use node::desired::{DesiredRule, DesiredState};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use trust::{ModulePattern, UnixTime, Versions};
use units::{Bytes, Name, Nanos};

/// Desired state, its journal, and what of it is not there at present.
pub(crate) struct Desired {
    recording: Recording<Recorded>,
    /// Digest of what the node file wanted when it was last followed.
    followed: Option<String>,
    journal: Arc<Mutex<Journal>>,
    ahead: Ahead,
    /// State that waits for a confirmation.
    unconfirmed: Option<Unconfirmed>,
    shortfall: Shortfall,
    /// Sizes of modules that were fetched before there was a daemon.
    fetched: Vec<Bytes>,
    /// Capabilities as the journal has them, once some were written.
    capabilities: Option<Arc<Capabilities>>,
}

/// Message where a change that was refused after it was recorded stays in the journal.
const NOT_UNDONE: &str = "a change was refused after it was recorded, and stays so: see `tam diff`";

/// State of a change that is recorded before anything else may change.
enum Ahead {
    /// No change.
    None,
    /// A change that is queued to be written, or is being written.
    Queued,
    /// A change that is in the journal, which had this state before, and whose command has yet to
    /// run. No other change is written meanwhile, since it would be based on the old state.
    Recorded(Arc<DesiredState>),
}

/// Parts of the desired state that are not there, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct Shortfall {
    /// Sessions that are promised less than they shall be.
    pub(crate) sessions: BTreeMap<Name, String>,
    /// Services that do not run.
    pub(crate) services: BTreeMap<Name, String>,
    /// Rules that the node cannot have.
    pub(crate) rules: Vec<(DesiredRule, String)>,
}

impl Shortfall {
    /// Returns true when a service or a session's reservation is missing.
    pub(crate) fn is_any(&self) -> bool {
        !self.services.is_empty() || !self.sessions.is_empty()
    }
}

/// Write of a state to the journal, to be made beside the loop, with everything it needs.
pub(crate) struct JournalWrite {
    journal: Arc<Mutex<Journal>>,
    write: Write,
    capabilities: Option<CapabilityTexts>,
    /// Writes of modules that must have ended before.
    stores: Vec<Stored>,
}

impl JournalWrite {
    /// Waits for the modules that the state may name, and writes. Blocks.
    ///
    /// # Errors
    /// A module or the state could not be written.
    pub(crate) fn run(self) -> Answer<()> {
        let Self { journal, write: Write { state, generation, facts }, capabilities, stores } =
            self;
        // One that ended without a word has no module to wait for.
        stores.into_iter().try_for_each(|store| store.recv().unwrap_or(Ok(())))?;
        let record = record(generation, &state, &facts);
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        let written = journal.write(&record, facts.node_file.as_deref(), capabilities.as_ref());
        written.map_err(|error| refusal(&error))
    }
}

impl Desired {
    /// Creates the desired state of a journal.
    pub(crate) fn new(journal: Journal, newest: Option<Record>) -> Self {
        let (generation, state) =
            newest.map_or_else(Default::default, |record| (record.generation, record.state));
        Self {
            recording: Recording::new(state, generation),
            followed: None,
            journal: Arc::new(Mutex::new(journal)),
            ahead: Ahead::None,
            unconfirmed: None,
            shortfall: Shortfall::default(),
            fetched: Vec::new(),
            capabilities: None,
        }
    }

    /// Returns the state that was recorded last.
    pub(crate) const fn state(&self) -> &Arc<DesiredState> {
        self.recording.state()
    }

    /// Returns the generation of the state that was recorded last.
    pub(crate) const fn generation(&self) -> u64 {
        self.recording.generation()
    }

    /// Returns the digest of what the node file wanted when it was last followed.
    pub(crate) fn followed(&self) -> Option<&str> {
        self.followed.as_deref()
    }

    /// Notes that a node file is followed.
    pub(crate) fn follow(&mut self, fingerprint: String) {
        self.followed = Some(fingerprint);
    }

    /// Returns the state that waits for a confirmation.
    pub(crate) const fn unconfirmed(&self) -> Option<&Unconfirmed> {
        self.unconfirmed.as_ref()
    }

    /// Sets the state that waits for its confirmation, or none.
    pub(crate) fn set_unconfirmed(&mut self, unconfirmed: Option<Unconfirmed>) {
        self.unconfirmed = unconfirmed;
    }

    /// Ends the wait for a confirmation.
    pub(crate) fn take_unconfirmed(&mut self) -> Option<Unconfirmed> {
        self.unconfirmed.take()
    }

    /// Returns what of the state is not there.
    pub(crate) const fn shortfall(&self) -> &Shortfall {
        &self.shortfall
    }

    /// Returns what of the state is not there, to be changed.
    pub(crate) fn shortfall_mut(&mut self) -> &mut Shortfall {
        &mut self.shortfall
    }

    /// Notes the sizes of modules that were fetched before there was a daemon.
    pub(crate) fn set_fetched(&mut self, sizes: Vec<Bytes>) {
        self.fetched = sizes;
    }

    /// Removes and returns the sizes of modules that were fetched before there was a daemon.
    pub(crate) fn take_fetched(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.fetched)
    }

    /// Returns true while a change is recorded before anything else may change.
    pub(crate) const fn is_ahead(&self) -> bool {
        !matches!(self.ahead, Ahead::None)
    }

    /// Handles the end of a command that was recorded before it was done. One that the node refused
    /// is taken out of the journal again, in front of what was queued meanwhile.
    pub(crate) fn end_ahead(&mut self, is_done: bool) {
        let Ahead::Recorded(before) = std::mem::replace(&mut self.ahead, Ahead::None) else {
            return;
        };
        if !is_done && before != *self.recording.state() {
            let facts = Facts::of("a change that was recorded, and refused then");
            let undo = Edit::Become(Box::new(Arc::unwrap_or_clone(before)));
            self.recording.push_first(undo, facts, Recorded::Noted(NOT_UNDONE));
        }
    }

    /// Returns the change that is next, to be brought up to date; `None` while one is being
    /// written, or a recorded command has yet to be done.
    pub(crate) fn next_mut(&mut self) -> Option<&mut Edit> {
        match self.ahead {
            Ahead::Recorded(_) => None,
            Ahead::None | Ahead::Queued => self.recording.next_mut(),
        }
    }

    /// Returns true while a change waits to be written, or is.
    pub(crate) fn is_recording(&self) -> bool {
        !self.recording.is_idle()
    }

    /// Queues a change for the journal, with its continuation.
    pub(crate) fn push(&mut self, edit: Edit, facts: Facts, then: Recorded) {
        if matches!(then, Recorded::Then(_) | Recorded::Confirmed { .. }) {
            self.ahead = Ahead::Queued;
        }
        self.recording.push(edit, facts, then);
    }

    /// Returns the next write of the journal, unless one is under way. `stores` gives the writes of
    /// modules that have to end before it.
    pub(crate) fn poll_write(
        &mut self,
        capabilities: &Arc<Capabilities>,
        stores: impl FnOnce() -> Vec<Stored>,
    ) -> Option<JournalWrite> {
        let write = self.recording.poll_write()?;
        if write.facts.node_file.is_some() {
            self.followed.clone_from(&write.facts.node_file);
        }
        let capabilities = self.new_capabilities(capabilities);
        Some(JournalWrite { journal: self.journal(), write, capabilities, stores: stores() })
    }

    /// Handles the end of a write. Returns the continuation of its change.
    pub(crate) fn handle_written(&mut self, is_written: bool) -> Option<Recorded> {
        let before = Arc::clone(self.recording.state());
        let then = self.recording.handle_written(is_written)?;
        match &then {
            Recorded::Then(_) if is_written => self.ahead = Ahead::Recorded(before),
            Recorded::Then(_) | Recorded::Confirmed { .. } => self.ahead = Ahead::None,
            _ => {}
        }
        Some(then)
    }

    /// Writes at once, at the start of a node, when there is no other writer.
    pub(crate) fn write_now(
        &mut self,
        state: DesiredState,
        facts: &Facts,
    ) -> Result<(), JournalError> {
        let record = record(self.generation() + 1, &state, facts);
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write(&record, facts.node_file.as_deref(), None)?;
        drop(journal);
        self.recording.set(state, record.generation);
        Ok(())
    }

    /// Returns the journal, for threads that may block on it.
    pub(crate) fn journal(&self) -> Arc<Mutex<Journal>> {
        Arc::clone(&self.journal)
    }

    /// Reads the state of a generation, with the things of owners as they are now.
    ///
    /// # Errors
    /// The journal has no such generation, or cannot be read.
    pub(crate) fn read(&self, generation: u64) -> Answer<DesiredState> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let state = journal.read(generation).map(|record| record.state.with_owned_of(self.state()));
        state.map_err(|problem| match problem {
            JournalError::NoGeneration { .. } => {
                crate::answer::error(api::ErrorCode::NotFound, problem.to_string(), None)
            }
            problem => failed(problem),
        })
    }

    /// Reads what the journal has of capabilities. `now` is the node's clock.
    pub(crate) fn authority(
        &self,
        now: Nanos,
        anyone: BTreeSet<ModulePattern>,
    ) -> Result<Authority, JournalError> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let mut capabilities = Capabilities::new();
        for (number, text) in journal.capabilities()? {
            let read: Result<Capability, _> = serde_json::from_str(&text);
            let capability = read.map_err(|error| {
                journal.damaged(format!("capability {number} is not understood: {error}"))
            })?;
            capabilities.insert(CapabilityId(number), capability);
        }
        let mut revoked = Revoked::default();
        for text in journal.revoked()? {
            let read = revoked.insert(&text);
            read.map_err(|error| journal.damaged(format!("something revoked: {error}")))?;
        }
        let latest = UnixTime(journal.latest_time()?);
        let versions = match journal.versions()? {
            Some(text) => text
                .parse()
                .map_err(|error| journal.damaged(format!("the versions that ran: {error}")))?,
            None => Versions::default(),
        };
        Ok(Authority::new(now, latest, anyone, capabilities, revoked, versions))
    }

    /// Returns capabilities as they are to be written, if the journal has others.
    fn new_capabilities(&mut self, now: &Arc<Capabilities>) -> Option<CapabilityTexts> {
        if self.capabilities.as_ref().is_some_and(|written| Arc::ptr_eq(written, now)) {
            return None;
        }
        self.capabilities = Some(Arc::clone(now));
        let text =
            |(id, it): (&CapabilityId, &Capability)| Some((id.0, serde_json::to_string(it).ok()?));
        Some(now.iter().filter_map(text).collect())
    }
}

fn record(generation: u64, state: &DesiredState, facts: &Facts) -> Record {
    let mut record = Record::new(generation, &facts.cause, state.clone());
    record.head.unconfirmed_over = facts.unconfirmed_over;
    record
}

/// End of the message of a change that could not be recorded.
pub(crate) const NOTHING_CHANGED: &str = "; nothing has changed";

/// Returns the refusal of a change because the journal failed, with what to do about it.
pub(crate) fn refusal(problem: &JournalError) -> ErrorInfo {
    let refused = failed(format!("{problem}{NOTHING_CHANGED}"));
    let JournalError::Io { source, .. } = problem else { return refused };
    let help = match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on the file system of the node's state, and try again; what runs goes on"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount the file system of the node's state writable, and try again; what runs goes on"
        }
        io::ErrorKind::PermissionDenied => "the node must be allowed to write its state",
        _ => {
            "look at the disk (dmesg); what runs goes on, and no change is taken until the state can be written"
        }
    };
    ErrorInfo { help: Some(help.to_owned()), ..refused }
}

impl std::fmt::Debug for JournalWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "generation {} ({})", self.write.generation, self.write.facts.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testbed::name;
    use super::*;
    use std::sync::mpsc::channel;

    fn desired() -> Desired {
        Desired::new(Journal::in_memory(&name("r1")), None)
    }

    fn push(desired: &mut Desired, cause: &str) {
        desired.push(Edit::Bpf(false), Facts::of(cause), Recorded::Noted("it was not recorded"));
    }

    fn poll(desired: &mut Desired, capabilities: &Arc<Capabilities>) -> Option<JournalWrite> {
        desired.poll_write(capabilities, Vec::new)
    }

    #[test]
    fn a_state_is_written_behind_the_modules_that_it_may_name_or_not_at_all() {
        let mut desired = desired();
        let capabilities = Arc::new(Capabilities::new());
        let full = failed("no space left on device");
        // A write that ended without a word has no module to wait for.
        for (ends, is_written) in
            [(Some(Ok(())), true), (Some(Err(full.clone())), false), (None, true)]
        {
            push(&mut desired, "a test");
            let (sender, store) = channel();
            let write = desired.poll_write(&capabilities, || vec![store]).unwrap();
            if let Some(end) = ends {
                sender.send(end).unwrap();
            }
            drop(sender);
            let before = desired.generation();
            let written = write.run();
            assert_eq!(written.is_ok(), is_written, "{written:?}");
            desired.handle_written(written.is_ok()).unwrap();
            assert_eq!(desired.generation(), before + u64::from(is_written));
            let newest = desired.journal().lock().unwrap().newest().unwrap().unwrap();
            assert_eq!(newest.generation, desired.generation());
            assert!(!desired.is_recording());
        }
    }

    #[test]
    fn capabilities_are_written_when_they_are_others_than_before() {
        let mut desired = desired();
        let one = Arc::new(Capabilities::new());
        let mut texts = |capabilities: &Arc<Capabilities>| {
            push(&mut desired, "a test");
            let write = poll(&mut desired, capabilities).unwrap();
            let _then = desired.handle_written(true);
            write.capabilities.is_some()
        };
        assert_eq!([texts(&one), texts(&one)], [true, false]);
        let other = Arc::new(Capabilities::new());
        assert_eq!([texts(&other), texts(&other), texts(&one)], [true, false, true]);
    }

    #[test]
    fn nothing_is_written_between_a_recorded_command_and_its_being_done() {
        let mut desired = desired();
        push(&mut desired, "a test");
        let before = Arc::clone(desired.recording.state());
        for (ahead, is_ahead, is_next) in [
            (Ahead::Queued, true, true),
            (Ahead::Recorded(before), true, false),
            (Ahead::None, false, true),
        ] {
            desired.ahead = ahead;
            assert_eq!((desired.is_ahead(), desired.next_mut().is_some()), (is_ahead, is_next));
        }
        let write = poll(&mut desired, &Arc::default()).unwrap();
        assert_eq!(format!("{write:?}"), "generation 1 (a test)");
        assert!(desired.next_mut().is_none() && poll(&mut desired, &Arc::default()).is_none());
    }

    #[test]
    fn a_journal_with_capabilities_or_revocations_that_nobody_wrote_is_damaged() {
        let written = |texts: &[(u32, &str)], revoked: &str, versions: &str| {
            let mut journal = Journal::in_memory(&name("r1"));
            let texts = texts.iter().map(|(number, text)| (*number, (*text).to_owned())).collect();
            let record = Record::new(1, "a test", DesiredState::default());
            journal.write(&record, None, Some(&texts)).unwrap();
            if !revoked.is_empty() {
                journal.revoke(&[revoked.to_owned()].into(), 7).unwrap();
            }
            if !versions.is_empty() {
                journal.keep_versions(versions).unwrap();
            }
            let authority = Desired::new(journal, None).authority(Nanos::ZERO, BTreeSet::new());
            authority.map(|it| it.revoked().len()).map_err(|problem| problem.to_string())
        };
        let key = super::super::testbed::key(1).public().to_string();
        assert_eq!(written(&[], "", ""), Ok(0));
        assert_eq!(written(&[], &key, ""), Ok(1));
        for (texts, revoked, versions, says) in [
            (&[(7, "{}")][..], "", "", "capability 7 is not understood: missing field `principal`"),
            (&[(7, "")], "", "", "capability 7 is not understood: EOF"),
            (&[], "nonsense", "", "something revoked: 'nonsense' can not be revoked"),
            (&[], "", "nonsense", "the versions that ran: "),
        ] {
            let said = written(texts, revoked, versions).unwrap_err();
            assert!(said.contains("is damaged: ") && said.contains(says), "{said}");
        }
    }

    #[test]
    fn each_disk_error_has_its_advice() {
        for (kind, says) in [
            (io::ErrorKind::StorageFull, "make room on the file system"),
            (io::ErrorKind::QuotaExceeded, "make room on the file system"),
            (
                io::ErrorKind::ReadOnlyFilesystem,
                "mount the file system of the node's state writable",
            ),
            (io::ErrorKind::PermissionDenied, "the node must be allowed to write its state"),
            (io::ErrorKind::Other, "look at the disk (dmesg)"),
        ] {
            let path = "/nowhere/state.redb".into();
            let problem = JournalError::Io { action: "write", path, source: kind.into() };
            let refused = refusal(&problem);
            let says_what =
                format!("cannot write /nowhere/state.redb: {kind}; nothing has changed");
            assert_eq!(refused.message, says_what);
            assert!(refused.help.unwrap().starts_with(says), "{kind:?}");
        }
        let damaged = refusal(&Journal::in_memory(&name("r1")).damaged("its end".to_owned()));
        assert!(damaged.message.ends_with(NOTHING_CHANGED) && damaged.help.is_none());
        assert_eq!(desired().read(7).unwrap_err().code, api::ErrorCode::NotFound);
    }
}
