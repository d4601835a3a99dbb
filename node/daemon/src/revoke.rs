//! Capabilities that count no more, and what ran under them.
//!
//! ```text
//! tam token revoke ─▶ refused from now on ─▶ what ran is removed ─▶ state.redb ─▶ answer
//! a look each second ─ an end has come ─────▶ the same
//! ```

use crate::access::Caller;
use crate::authority::{REVOKED_MAX, Revoked};
use crate::control::recording::Facts;
use crate::daemon::{Daemon, refused};
use crate::edit::Edit;
use crate::events::Note;
use crate::http::{Answer, error};
use crate::journal::{Journal, JournalError};
use crate::recorded::Recorded;
use crate::reply::Reply;
use crate::state::refusal;
use crate::views::usage;
use api::{ErrorCode, ErrorInfo, EventKind, RevocationList, RevokeRequest, SCHEMA_VERSION};
use node::{CapabilityId, Command, Outcome, Owner, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use trust::{Operation, UnixTime};
use units::{Name, RuleId};

/// How often the latest time is written down while capabilities are in use: who restarts a node
/// and sets its clock back gains no more than this.
const TIME_KEPT_EVERY_SECONDS: u64 = 60;
/// Revocations of one request.
const REVOKED_AT_ONCE_MAX: usize = 1024;

/// What ran under capabilities that ended.
#[derive(Default)]
struct Ended {
    sessions: BTreeMap<Name, &'static str>,
    services: BTreeMap<Name, &'static str>,
    rules: Vec<RuleId>,
}

impl Daemon {
    /// The time by which capabilities end.
    pub(crate) fn capability_time(&mut self) -> UnixTime {
        let now = self.now();
        self.authority.read_clock(now).time
    }

    /// For whom something is that a caller starts.
    pub(crate) fn owner_of(&mut self, caller: &Caller) -> Option<Owner> {
        if matches!(caller, Caller::Operator) {
            return None;
        }
        let in_use = self.capabilities_in_use();
        self.authority.owner_of(caller, &in_use)
    }

    /// Capabilities of which something runs, or shall run.
    fn capabilities_in_use(&self) -> BTreeSet<CapabilityId> {
        let services = self.node.services().filter_map(|service| service.owner);
        let rules = self.node.numbered_rules();
        let rules = rules.iter().filter_map(|(_, rule)| rule.owner);
        let sessions = self.node.sessions().filter_map(|session| session.owner);
        let desired = self.desired.state();
        let desired_sessions = desired.sessions.values().filter_map(|session| session.owner);
        let desired_services = desired.services.values().filter_map(|service| service.owner);
        let desired_rules = desired.rules.iter().filter_map(|rule| rule.owner);
        let owners = services.chain(rules).chain(desired_services).chain(desired_rules);
        let owners = owners.chain(sessions).chain(desired_sessions);
        owners.map(|owner| owner.capability).collect()
    }

    /// Removes what nobody can say whose it is: a daemon that died had not written it down.
    /// Called once, when the node starts.
    pub(crate) fn end_unknown_capabilities(&mut self) {
        let unknown = self.capabilities_in_use().into_iter();
        let unknown = unknown.filter(|id| !self.authority.is_known(*id));
        self.end(unknown.map(|id| (id, "its capability is not known any more")).collect());
    }

    /// An owner as documents have it.
    pub(crate) fn owner_shown(&self, owner: Option<Owner>) -> Option<String> {
        let owner = owner?;
        Some(
            self.authority.key_of(owner).map_or_else(|| "anyone".to_owned(), |key| key.to_string()),
        )
    }

    /// Gives a caller's command to the node. What a refusal says of others is left out.
    pub(crate) fn command_of(&mut self, caller: &Caller, command: Command) -> Answer<Outcome> {
        let now = self.capability_time();
        self.try_command(command).map_err(|refusal| match &refusal {
            Refusal::OverlapsOther { text, .. }
                if !self.authority.rights(caller, now).reach_everybody(Operation::Read) =>
            {
                let message = format!(
                    "the rule '{text}' can match packets of another principal's rule; a packet is one principal's"
                );
                error(ErrorCode::Refused, message, Some("match fewer packets"))
            }
            _ => refused(&refusal),
        })
    }

    /// Answers `POST /v1/revocations` when the services that ran under them have stopped.
    pub(crate) fn revoke(&mut self, request: &RevokeRequest, reply: Reply<api::Revoked>) {
        let wanted = match self.revocable(request) {
            Ok(wanted) => wanted,
            Err(refusal) => return reply.refuse(refusal),
        };
        let new = wanted.texts();
        self.authority.revoked.blocks.extend(wanted.blocks);
        self.authority.revoked.keys.extend(wanted.keys);
        // First what runs: it ends whether or not the disk has room.
        let ended = self.end_capabilities();
        self.end_associations_without_right();
        let answer = api::Revoked {
            schema_version: SCHEMA_VERSION,
            revoked: new.len() as u64,
            services: ended.services.keys().map(Name::to_string).collect(),
            rules: ended.rules.iter().map(|rule| rule.0).collect(),
        };
        let time = self.capability_time().0;
        let stopping = ended.services.into_keys().filter(|it| self.node.service(it).is_some());
        let stopped = self.removals.wait_for(stopping.collect());
        self.in_journal(
            move |journal| journal.revoke(&new, time),
            move |written| {
                // Without a daemon nothing is left to wait for.
                let _ = stopped.blocking_recv();
                let written = written.map_err(|problem| ErrorInfo {
                    code: ErrorCode::Partial,
                    message: format!(
                        "it is revoked until the node's next start, and could not be written down: {}",
                        problem.message
                    ),
                    help: problem.help,
                });
                reply.answer(written.map(|()| answer));
            },
        );
    }

    fn revocable(&self, request: &RevokeRequest) -> Answer<Revoked> {
        let asked = request.revoke.len();
        if asked == 0 || asked > REVOKED_AT_ONCE_MAX {
            let message = format!("{asked} things to revoke; 1 to {REVOKED_AT_ONCE_MAX} at once");
            return Err(usage(message));
        }
        let mut wanted = Revoked::default();
        for text in &request.revoke {
            wanted.insert(text).map_err(usage)?;
        }
        if self.authority.revoked.len() + wanted.len() > REVOKED_MAX {
            let message = format!("this node remembers at most {REVOKED_MAX} revocations");
            let help = "give its administrators new keys ([trust] administrators), and revoke the old ones: what they signed counts no more";
            return Err(error(ErrorCode::Limit, message, Some(help)));
        }
        Ok(wanted)
    }

    /// Answers `GET /v1/revocations`.
    pub(crate) fn revocations(&self) -> RevocationList {
        let revoked = self.authority.revoked.texts().into_iter().collect();
        RevocationList { schema_version: SCHEMA_VERSION, revoked }
    }

    /// Called once a second.
    pub(crate) fn look_at_capabilities(&mut self) {
        if self.authority.capabilities.is_empty() {
            return;
        }
        let now = self.now();
        let reading = self.authority.read_clock(now);
        if self.authority.tell_of_clock(reading.wall_ahead_by) && reading.wall_ahead_by != 0 {
            let way = if reading.wall_ahead_by > 0 { "ahead of" } else { "behind" };
            let by = reading.wall_ahead_by.unsigned_abs();
            let text = format!(
                "the machine's clock is {by} s {way} the time by which capabilities end; set it right (docs/trust.md, Time)"
            );
            self.note(Note::new(EventKind::ClockOdd, text));
        }
        self.end_capabilities();
        if self.authority.is_time_to_keep(reading.time, TIME_KEPT_EVERY_SECONDS) {
            let time = reading.time.0;
            self.in_journal(
                move |journal| journal.keep_time(time),
                |kept| {
                    if let Err(problem) = kept {
                        tracing::warn!(problem = problem.message, "the time was not written down");
                    }
                },
            );
        }
    }

    /// Removes what runs under capabilities that count no more.
    fn end_capabilities(&mut self) -> Ended {
        let now = self.capability_time();
        let reasons = self.authority.ended(now);
        self.end(reasons.into_iter().collect())
    }

    /// Removes what runs under these capabilities.
    fn end(&mut self, reasons: BTreeMap<CapabilityId, &'static str>) -> Ended {
        let reason = |owner: Option<Owner>| reasons.get(&owner?.capability).copied();
        let mut ended = Ended::default();
        if reasons.is_empty() {
            return ended;
        }
        for service in self.node.services() {
            // One that stops is gone soon.
            if let Some(why) = reason(service.owner)
                && service.state != node::ServiceState::Stopping
            {
                ended.services.insert(service.name.clone(), why);
            }
        }
        for view in self.node.rules() {
            if reason(view.owner).is_some() && view.came_with.is_none() {
                ended.rules.push(view.rule.id);
            }
        }
        for session in self.node.sessions().filter(|session| !session.leaving) {
            if let Some(why) = reason(session.owner) {
                ended.sessions.insert(session.name.clone(), why);
            }
        }
        let desired = self.desired.state();
        let is_desired = desired.sessions.values().any(|it| reason(it.owner).is_some())
            || desired.services.values().any(|it| reason(it.owner).is_some())
            || desired.rules.iter().any(|it| reason(it.owner).is_some());
        self.stop_ended(&ended);
        if is_desired {
            let capabilities: BTreeSet<CapabilityId> = reasons.into_keys().collect();
            self.forget_ended(capabilities);
        }
        ended
    }

    fn stop_ended(&mut self, ended: &Ended) {
        let going = self.sessions_of(&ended.rules);
        self.close(going);
        for rule in &ended.rules {
            // One that a service took along is gone already.
            let _ = self.command(Command::RuleRemove { rule: *rule });
        }
        if !ended.rules.is_empty() {
            let rules: Vec<u32> = ended.rules.iter().map(|rule| rule.0).collect();
            self.note_rules(EventKind::RulesRemoved, &rules);
        }
        for (service, why) in &ended.services {
            let owner = self.node.service(service).and_then(|it| it.owner);
            let going = self.sessions_of(&self.rules_to(service));
            self.close(going);
            let removed = self.command(Command::Remove { service: service.clone(), cascade: true });
            if let Err(problem) = removed {
                tracing::error!(%service, problem = problem.message, "{why}, and it goes on");
                continue;
            }
            if let Some(waiting) = self.waiting.remove(service) {
                let message = format!("the service '{service}' was stopped: {why}");
                waiting.reply.refuse(error(ErrorCode::Refused, message, None));
            }
            let text = format!("the service '{service}' was stopped");
            let note = Note::new(EventKind::CapabilityEnded, text).service(service);
            self.note(note.reason(*why).owner(owner));
        }
        for (session, why) in &ended.sessions {
            self.end_session(session, why);
        }
    }

    /// The next start does not begin them again.
    fn forget_ended(&mut self, capabilities: BTreeSet<CapabilityId>) {
        let facts = Facts::of("capabilities that count no more");
        self.record(facts, Edit::EndCapabilities(capabilities), Recorded::Noted);
    }

    /// Writes to the journal beside the loop.
    pub(crate) fn in_journal(
        &self,
        write: impl FnOnce(&mut Journal) -> Result<(), JournalError> + Send + 'static,
        then: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let journal = self.desired.journal();
        tokio::task::spawn_blocking(move || {
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            let written = write(&mut journal).map_err(|problem| refusal(&problem));
            drop(journal);
            then(written);
        });
    }
}
