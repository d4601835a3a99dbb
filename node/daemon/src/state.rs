//! What shall run, as the daemon keeps it: in memory, in the journal, and in step with commands.
//!
//! ```text
//! command ─▶ held ─ its turn ─▶ done by the node ─▶ record ─▶ journal (a thread) ─▶ answer
//!                        └─ what cannot be undone: recorded first
//! ```
//!
//! One change after another: whoever asks while another change is not finished waits for his
//! turn. A command that cannot be recorded is undone, and refused.

use crate::authority::{Authority, Capabilities, Capability, Revoked};
use crate::control::recording::{Facts, Recording, Write};
use crate::daemon::{Daemon, Done, Request};
use crate::edit::Edit;
use crate::http::{Answer, Incoming, error};
use crate::journal::{CapabilityTexts, Journal, JournalError, Record};
use crate::recorded::{Ahead, Purpose, Recorded};
use crate::sessions::{MemoryWanted, SessionQuestion};
use crate::views::failed;
use api::{ErrorCode, ErrorInfo};
use module_store::Digest;
use node::desired::{DesiredRule, DesiredService, DesiredState};
use node::{CapabilityId, Command};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use trust::{ModulePattern, UnixTime, Versions};
use units::{Name, Nanos, RuleId};

/// The desired state and what is done with it at present.
pub(crate) struct Desired {
    recording: Recording<Recorded>,
    /// Digest of what the node file wanted when it was last followed.
    pub(crate) followed: Option<String>,
    journal: Arc<Mutex<Journal>>,
    /// Modules on their way to the disk: nothing that may name them is recorded before they are
    /// there.
    pub(crate) stores: Vec<Receiver<Answer<()>>>,
    /// Modules that could not be written, for who was told early that they will be.
    unstored: BTreeMap<Digest, ErrorInfo>,
    /// Requests whose turn has not come.
    pub(crate) held: VecDeque<Incoming>,
    /// A command that is recorded before it is done.
    ahead: bool,
    /// The state that waits for a confirmation.
    pub(crate) unconfirmed: Option<Unconfirmed>,
    /// Sessions that are promised less than they shall be, with the reason.
    pub(crate) short: BTreeMap<Name, String>,
    /// Services and rules that are desired and not there, with the reason.
    pub(crate) missing: BTreeMap<Name, String>,
    pub(crate) unfit: Vec<(DesiredRule, String)>,
    /// Bytes of each module that was fetched before there was a daemon.
    pub(crate) fetched: Vec<u64>,
    /// Those that the journal has, once some were written.
    capabilities: Option<Arc<Capabilities>>,
}

/// A state that is taken back unless somebody confirms it.
#[derive(Clone, Debug)]
pub(crate) struct Unconfirmed {
    pub(crate) until: Instant,
    /// The generation to go back to.
    pub(crate) back_to: u64,
    /// What made it.
    pub(crate) cause: String,
}

/// Modules that could not be written and are remembered: their deployments are on their way.
const UNSTORED_MAX: usize = 64;

impl Desired {
    /// A module is on its way to the disk.
    pub(crate) fn begin_store(&mut self, digest: &Digest, written: Receiver<Answer<()>>) {
        self.unstored.remove(digest);
        // Those that have ended are done with: what became of them was told.
        self.stores.retain(|store| store.try_recv() == Err(TryRecvError::Empty));
        self.stores.push(written);
    }

    /// A module could not be written, and nobody has begun to deploy it.
    pub(crate) fn not_stored(&mut self, digest: Digest, problem: ErrorInfo) {
        if self.unstored.len() >= UNSTORED_MAX {
            self.unstored.pop_first();
        }
        self.unstored.insert(digest, problem);
    }

    /// Why a module that somebody wants to deploy is not in the store, if it was to be.
    pub(crate) fn why_not_stored(&self, digest: &Digest) -> Option<&ErrorInfo> {
        self.unstored.get(digest)
    }

    /// With what the journal has.
    pub(crate) fn new(journal: Journal, newest: Option<Record>) -> Self {
        let (generation, state) =
            newest.map_or_else(Default::default, |record| (record.generation, record.state));
        Self {
            recording: Recording::new(state, generation),
            followed: None,
            journal: Arc::new(Mutex::new(journal)),
            stores: Vec::new(),
            unstored: BTreeMap::new(),
            held: VecDeque::new(),
            ahead: false,
            unconfirmed: None,
            short: BTreeMap::new(),
            missing: BTreeMap::new(),
            unfit: Vec::new(),
            fetched: Vec::new(),
            capabilities: None,
        }
    }

    /// Writes at once, while nobody else does: when the node starts.
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

    /// The journal, for whoever may wait for it.
    pub(crate) fn journal(&self) -> Arc<Mutex<Journal>> {
        Arc::clone(&self.journal)
    }

    /// What the journal knows of capabilities. `now` is the node's clock.
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

    /// Capabilities as they are to be written, if the journal has others.
    fn new_capabilities(&mut self, now: &Arc<Capabilities>) -> Option<CapabilityTexts> {
        if self.capabilities.as_ref().is_some_and(|written| Arc::ptr_eq(written, now)) {
            return None;
        }
        self.capabilities = Some(Arc::clone(now));
        let text =
            |(id, it): (&CapabilityId, &Capability)| Some((id.0, serde_json::to_string(it).ok()?));
        Some(now.iter().filter_map(text).collect())
    }

    /// Whether a command is recorded before it is done.
    pub(crate) const fn is_busy(&self) -> bool {
        self.ahead
    }

    /// Whether something of it is not there.
    pub(crate) fn is_short(&self) -> bool {
        !self.missing.is_empty() || !self.short.is_empty()
    }

    fn is_recording(&self) -> bool {
        !self.recording.is_idle()
    }

    /// Returns the state that was recorded last.
    pub(crate) const fn state(&self) -> &Arc<DesiredState> {
        self.recording.state()
    }

    /// Returns the generation of the state that was recorded last.
    pub(crate) const fn generation(&self) -> u64 {
        self.recording.generation()
    }
}

fn record(generation: u64, state: &DesiredState, facts: &Facts) -> Record {
    let mut record = Record::new(generation, &facts.cause, state.clone());
    record.head.unconfirmed_over = facts.unconfirmed_over;
    record
}

impl Request {
    /// Whether it changes what shall run.
    fn changes(&self) -> bool {
        match self {
            Self::Deploy(..)
            | Self::Remove(..)
            | Self::Move(..)
            | Self::Bpf(..)
            | Self::AddRules(..)
            | Self::RemoveRule(..)
            | Self::Session(
                SessionQuestion::Create(..)
                | SessionQuestion::Set(..)
                | SessionQuestion::Remove(..),
            )
            | Self::Apply(..)
            | Self::Confirm(..)
            | Self::Rollback(..) => true,
            Self::Node(..)
            | Self::Services(..)
            | Self::Service(..)
            | Self::Message(..)
            | Self::Rules(..)
            | Self::Modules(..)
            | Self::PutModule(..)
            | Self::AddSignatures(..)
            | Self::MayPull(..)
            | Self::WantPull(..)
            | Self::Stats(..)
            | Self::Events(..)
            | Self::Why(..)
            | Self::Metrics(..)
            | Self::Explain(..)
            | Self::BeginCapture(..)
            | Self::Captured(..)
            | Self::EndCapture(..)
            | Self::HandOver(..)
            | Self::Revoke(..)
            | Self::Revocations(..)
            | Self::Backup(..)
            | Self::Ledger(..)
            | Self::Session(SessionQuestion::List(_) | SessionQuestion::Show(..))
            | Self::Desired(..) => false,
        }
    }

    /// Answers it with a refusal.
    pub(crate) fn refuse(self, refusal: ErrorInfo) {
        match self {
            Self::Deploy(_, reply) => reply.refuse(refusal),
            Self::Remove(_, _, reply) => reply.refuse(refusal),
            Self::Move(_, _, reply) => reply.refuse(refusal),
            Self::Bpf(_, reply) => reply.refuse(refusal),
            Self::AddRules(_, reply) => reply.refuse(refusal),
            Self::RemoveRule(_, reply) => reply.refuse(refusal),
            Self::Apply(_, reply) | Self::Rollback(_, reply) => reply.refuse(refusal),
            Self::Confirm(reply) => reply.refuse(refusal),
            Self::Node(reply) => reply.refuse(refusal),
            Self::Services(reply) => reply.refuse(refusal),
            Self::Service(_, reply) => reply.refuse(refusal),
            Self::Message(_, _, reply) => reply.refuse(refusal),
            Self::Rules(reply) => reply.refuse(refusal),
            Self::Modules(reply) => reply.refuse(refusal),
            Self::PutModule(_, _, reply) => reply.refuse(refusal),
            Self::AddSignatures(_, _, reply) => reply.refuse(refusal),
            Self::MayPull(_, reply) | Self::WantPull(_, _, reply) => {
                reply.refuse(refusal);
            }
            Self::Stats(reply) => reply.refuse(refusal),
            Self::Events(_, _, reply) => reply.refuse(refusal),
            Self::Why(reply) => reply.refuse(refusal),
            Self::Metrics(reply) => reply.refuse(refusal),
            Self::BeginCapture(_, reply) => reply.refuse(refusal),
            Self::Captured(_, _, reply) => reply.refuse(refusal),
            Self::EndCapture(_, reply) => reply.refuse(refusal),
            Self::Explain(_, reply) => reply.refuse(refusal),
            Self::Desired(reply) => reply.refuse(refusal),
            Self::HandOver(reply) => reply.refuse(refusal),
            Self::Revoke(_, reply) => reply.refuse(refusal),
            Self::Revocations(reply) => reply.refuse(refusal),
            Self::Backup(reply) => reply.refuse(refusal),
            Self::Ledger(question) => question.refuse(refusal),
            Self::Session(question) => question.refuse(refusal),
        }
    }

    /// Whether it may come while a state waits for its confirmation.
    fn may_come_unconfirmed(&self) -> bool {
        match self {
            Self::Apply(request, _) => request.dry_run,
            Self::Confirm(..) | Self::Rollback(..) => true,
            _ => false,
        }
    }

    /// Whether it needs a node in which no other change is going on.
    const fn is_exclusive(&self) -> bool {
        matches!(self, Self::Apply(..) | Self::Confirm(..) | Self::Rollback(..))
    }
}

impl Daemon {
    /// Takes a request; one that changes something waits for its turn.
    pub(crate) fn handle(&mut self, incoming: Incoming) {
        self.handle_fetched(incoming, BTreeSet::new());
    }

    /// The same for one for which these modules have been fetched, or were not to be had.
    pub(crate) fn handle_fetched(&mut self, incoming: Incoming, tried: BTreeSet<Digest>) {
        let Some(incoming) = self.fetch_first(incoming, tried) else { return };
        if incoming.request.changes() {
            self.desired.held.push_back(incoming);
            self.release_held();
        } else {
            self.answer_if_allowed(incoming);
        }
    }

    /// Asked when its turn has come: what is whose may have changed while it waited.
    fn answer_if_allowed(&mut self, Incoming { caller, request }: Incoming) {
        match self.authorize(&caller, &request) {
            Ok(()) => self.answer(caller, request),
            Err(refusal) => request.refuse(refusal),
        }
    }

    /// Whether no change is going on.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_none()
            && !self.desired.is_recording()
            && self.waiting.is_empty()
            && self.removals.is_empty()
            && self.sessions.removing.is_empty()
            && self.movers.is_empty()
    }

    /// Begins what has waited and need not wait longer.
    pub(crate) fn release_held(&mut self) {
        while let Some(next) = self.desired.held.front() {
            let busy = self.work.is_some() || self.desired.ahead;
            if busy || (next.request.is_exclusive() && !self.is_idle()) {
                return;
            }
            let wants = MemoryWanted::of(&next.request);
            if !self.knows_memory_for(wants) {
                return;
            }
            let Some(next) = self.desired.held.pop_front() else { return };
            match self.check_confirmed() {
                Err(refusal) if !next.request.may_come_unconfirmed() => {
                    next.request.refuse(refusal);
                }
                _ => self.answer_if_allowed(next),
            }
        }
    }

    /// Refuses a change while a state waits for its confirmation.
    fn check_confirmed(&self) -> Answer<()> {
        let Some(unconfirmed) = &self.desired.unconfirmed else { return Ok(()) };
        let left = unconfirmed.until.saturating_duration_since(Instant::now()).as_secs();
        let message = format!(
            "what was applied last waits for its confirmation, {left} s more; it would take this change back with it"
        );
        let help = "`tam confirm` keeps it, `tam rollback` takes it back now";
        Err(error(ErrorCode::Failed, message, Some(help)))
    }

    /// Queues a change for the journal, with its continuation.
    pub(crate) fn record(&mut self, facts: Facts, edit: Edit, then: Recorded) {
        self.desired.recording.push(edit, facts, then);
        self.write_next();
    }

    fn write_next(&mut self) {
        let desired = &mut self.desired;
        let Some(Write { state, generation, facts }) = desired.recording.poll_write() else {
            return;
        };
        if facts.node_file.is_some() {
            desired.followed.clone_from(&facts.node_file);
        }
        let (journal, done) = (desired.journal(), self.done.clone());
        let capabilities = desired.new_capabilities(&self.authority.capabilities);
        let stores = std::mem::take(&mut desired.stores);
        tokio::task::spawn_blocking(move || {
            // One that ended without a word has no module to wait for.
            let stored = stores.into_iter().try_for_each(|store| store.recv().unwrap_or(Ok(())));
            let written = stored.and_then(|()| {
                let record = record(generation, &state, &facts);
                let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
                let facts = facts.node_file.as_deref();
                let written = journal.write(&record, facts, capabilities.as_ref());
                written.map_err(|error| refusal(&error))
            });
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = done.send(Done::Recorded(written));
        });
    }

    /// Continues with a change that is in the journal, or could not be written.
    pub(crate) fn recorded(&mut self, written: Answer<()>) {
        let Some(then) = self.desired.recording.handle_written(written.is_ok()) else { return };
        if written.is_ok() {
            self.node.await_only(self.desired.state());
        }
        self.go_on_recorded(then, written);
        self.write_next();
    }

    fn go_on_recorded(&mut self, then: Recorded, written: Answer<()>) {
        match then {
            Recorded::Noted => {
                if let Err(problem) = written {
                    tracing::error!(
                        problem = problem.message,
                        "what ran under capabilities that ended is stopped, and not forgotten yet: it is tried again"
                    );
                }
            }
            Recorded::Moved { service, from, answers } => {
                self.move_recorded(service, from, answers, written);
            }
            Recorded::Bpf { enabled, reply } => self.bpf_recorded(enabled, reply, written),
            Recorded::Deployed(waiting) => self.deployment_recorded(*waiting, written),
            Recorded::MissingRemoved { service, reply } => {
                self.desired.missing.remove(&service);
                reply.answer(written.map(|()| crate::views::removed(&service, &[])));
            }
            Recorded::RulesAdded { added, reply } => self.rules_recorded(added, reply, written),
            Recorded::Followed { answer, reply } => reply.answer(written.map(|()| answer)),
            Recorded::Confirmed { unconfirmed, reply } => {
                self.confirmation_recorded(unconfirmed, reply, written);
            }
            Recorded::Work => self.work_recorded(written),
            Recorded::Then(ahead) => self.go_ahead(*ahead, written),
        }
    }

    /// Does a command that could not be undone: checked on a copy of the node, then recorded,
    /// then done.
    pub(crate) fn record_ahead(&mut self, ahead: Ahead, cause: String, edit: Edit) {
        let mut trial = self.node.clone();
        if let Err(refusal) = trial.handle_command(self.now(), ahead.command.clone()) {
            return self.ahead_done(ahead.purpose, Err(crate::daemon::refused(&refusal)));
        }
        self.desired.ahead = true;
        self.record(Facts::of(cause), edit, Recorded::Then(Box::new(ahead)));
    }

    fn go_ahead(&mut self, ahead: Ahead, written: Answer<()>) {
        match written {
            Err(refusal) => {
                self.desired.ahead = false;
                self.ahead_done(ahead.purpose, Err(refusal));
            }
            Ok(()) if matches!(ahead.command, Command::Remove { .. }) => self.leave_first(ahead),
            Ok(()) => self.do_ahead(ahead),
        }
    }

    /// Gives the node a command that has been recorded.
    pub(crate) fn do_ahead(&mut self, Ahead { command, purpose }: Ahead) {
        let leaves = match &command {
            Command::Remove { service, .. } => Some(service.clone()),
            _ => None,
        };
        self.desired.ahead = false;
        let outcome = self.command(command);
        self.ahead_done(purpose, outcome);
        if let Some(service) = leaves {
            self.come_back(&service);
        }
    }

    fn ahead_done(&mut self, purpose: Purpose, outcome: Answer<node::Outcome>) {
        match purpose {
            Purpose::SessionCreated { session, reservation, reply } => {
                reply.answer(self.session_created(&session, &reservation, outcome));
            }
            Purpose::SessionSet { session, reservation, reply } => {
                reply.answer(outcome.map(|_| self.session_set(&session, &reservation)));
            }
            Purpose::SessionRemoved { session, reply } => {
                self.session_removed(session, reply, outcome);
            }
            Purpose::ServiceRemoved { service, counted, reply } => {
                self.service_removed(service, counted, reply, outcome);
            }
            Purpose::RuleRemoved { rule, counted, reply } => {
                reply.answer(outcome.map(|_| self.rule_removed(rule, counted)));
            }
        }
    }

    /// The rule of this number, and how many that say the same come before it.
    pub(crate) fn desired_rule(&self, rule: RuleId) -> Option<(DesiredRule, usize)> {
        let rules = self.node.numbered_rules();
        let (_, found) = rules.iter().find(|(id, _)| *id == rule)?.clone();
        let before = rules.iter().filter(|(id, other)| *id < rule && *other == found).count();
        Some((found, before))
    }

    /// What was asked for a service that runs now.
    pub(crate) fn as_desired(&self, request: &crate::daemon::Waiting) -> Option<DesiredService> {
        let service = self.node.service(&request.service)?;
        Some(DesiredService::of(service, request.level))
    }
}

/// End of the message of a change that could not be recorded.
pub(crate) const NOTHING_CHANGED: &str = "; nothing has changed";

/// What an operator is told when the journal fails.
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
