//! What goes into a node and what comes out: commands, events, outcomes, effects.
//!
//! ```text
//! operator ─ Command ─▶ ┌──────┐ ─ Outcome or Refusal ─▶ operator
//! cell ───── Event ───▶ │ Node │ ─ Effect ─▶ front door, cell, log
//! clock ──── now ─────▶ └──────┘ ─ poll_timeout ─▶ clock
//! ```

use std::collections::BTreeMap;

use ::session::Reservation;
use abi::manifest::ParameterValue;
use abi::{HostFunctions, Lanes, Level};
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, Nanos, RuleId, SessionId};

use crate::budget::Budget;
use crate::classifier::RuleSet;
use crate::desired::{DesiredRule, DesiredSession};
use crate::owner::Owner;
use crate::policy::OnFailure;
use crate::rule::RuleSpec;
use crate::service::{Edges, ModuleInfo};
use crate::session;

/// Path by which a new version gets the state of the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateWay {
    /// Memory and globals, taken over as they are.
    Memory,
    /// Hooks: `state_out` of the old one and `state_in` of the new one.
    Hooks,
    /// No state: the new version begins empty.
    Empty,
}

/// What an operator asks for; all of it happens or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// Tagged from outside: an inner tag would lose the numbers that are keys of a manifest.
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Start a service and, when it runs, send it packets. A service of that name that runs is
    /// replaced, with its state; without rules the new version has those of the old one.
    Deploy {
        /// The service's name.
        service: Name,
        /// What it runs.
        module: ModuleInfo,
        /// What the operator sets.
        #[serde(default)]
        parameters: BTreeMap<String, String>,
        /// Who pays.
        #[serde(default = "session::best_effort")]
        session: Name,
        /// Rules that come and go with it.
        #[serde(default)]
        rules: Vec<RuleSpec>,
        /// Where to run it; the level that its module names first when there is none.
        #[serde(default)]
        level: Option<Level>,
        /// The services that come after it: what passes it by edge n goes to the nth.
        #[serde(default)]
        then: Vec<Name>,
        /// What it may use below user level.
        #[serde(default)]
        budget: Budget,
        /// What becomes of its packets while it is down.
        #[serde(default)]
        on_failure: OnFailure,
        /// When the name runs already: the new version begins without what the old one knows.
        #[serde(default)]
        discard_state: bool,
        /// Whose it is, with its rules.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Put another version in the place of a service; its rules, edges and budget stay. One that
    /// does not run starts as that version.
    Replace {
        /// The service's name.
        service: Name,
        /// What it shall run.
        module: ModuleInfo,
        /// What the operator sets.
        #[serde(default)]
        parameters: BTreeMap<String, String>,
        /// Where to run it; the level that its module names first when there is none.
        #[serde(default)]
        level: Option<Level>,
        /// What becomes of what the old version knows.
        #[serde(default)]
        memory: Memory,
    },
    /// Stop a service and remove the rules that came with it.
    Remove {
        /// The service's name.
        service: Name,
        /// Remove also the other rules, and the edges, that lead to it.
        #[serde(default)]
        cascade: bool,
    },
    /// Let a service run at another level, with its state.
    Move {
        /// The service's name.
        service: Name,
        /// Where to; one that its module declares.
        level: Level,
    },
    /// Let modules run as BPF programs, or take every service to user level and keep it there.
    Bpf {
        /// Whether they may.
        enabled: bool,
    },
    /// Add rules, all or none.
    RuleAdd {
        /// The rules.
        specs: Vec<RuleSpec>,
        /// Whose they are.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Remove a rule.
    RuleRemove {
        /// Its number.
        rule: RuleId,
    },
    /// Make a session.
    SessionCreate {
        /// Its name.
        session: Name,
        /// What it shall be promised.
        #[serde(default)]
        reservation: Reservation,
        /// Whose it is.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Promise a session something else; nothing of what runs in it notices.
    SessionSet {
        /// Its name.
        session: Name,
        /// What it shall be promised from now on, as a whole.
        reservation: Reservation,
    },
    /// Remove a session.
    SessionRemove {
        /// Its name.
        session: Name,
        /// Remove also the services and rules that are in it.
        #[serde(default)]
        cascade: bool,
    },
    /// A session becomes the operator's, and is promised nothing any more.
    SessionGiveUp {
        /// Its name.
        session: Name,
    },
    /// Have these sessions, with these reservations: all or nothing. Others stay as long as
    /// something is in them, and are promised nothing any more.
    SessionsArrange {
        /// All that shall be there, but for those that every node has.
        sessions: BTreeMap<Name, DesiredSession>,
    },
    /// Change rules, and what of services can change while they run: all at once or nothing.
    Arrange {
        /// Rules that go.
        #[serde(default)]
        remove: Vec<RuleId>,
        /// Rules that come, in this order.
        #[serde(default)]
        add: Vec<DesiredRule>,
        /// Services that run, and what they shall be from now on.
        #[serde(default)]
        services: BTreeMap<Name, Arrangement>,
    },
}

/// What becomes of what a service knows when another version takes its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// The new version takes it over, or is refused.
    #[default]
    Kept,
    /// The new version takes it over if it can.
    KeptIfPossible,
    /// The new version begins empty.
    Discarded,
}

/// What of a service can change while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrangement {
    /// The services after it, by the number of the edge that leads there.
    #[serde(default)]
    pub then: BTreeMap<u16, Name>,
    /// Where to run it from its next start on; [`Command::Move`] moves it now.
    #[serde(default)]
    pub level: Option<Level>,
    /// What it may use below user level.
    #[serde(default)]
    pub budget: Budget,
    /// What becomes of its packets while it is down.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whose it is.
    #[serde(default)]
    pub owner: Option<Owner>,
}

/// What a command did at once; effects and notices tell the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The service is starting; a [`Notice`] says how that went.
    Deployed {
        /// The service's name.
        service: Name,
        /// Its number in the cell.
        entry: EntryId,
        /// The rules that came with it.
        rules: Vec<RuleId>,
        /// Those of them that no packet can reach, each with the better rule.
        shadowed: Vec<(RuleId, RuleId)>,
        /// The module whose place it takes.
        replaces: Option<String>,
    },
    /// Another version takes the service's place; a [`Notice`] says how that went.
    Replacing {
        /// The service's name.
        service: Name,
        /// Whether it runs: then [`Notice::ServiceKept`] is the good end, else
        /// [`Notice::ServiceRunning`].
        runs: bool,
        /// Why the new version begins empty, if it does and was not asked to.
        lost: Option<String>,
    },
    /// No packet reaches the service any more.
    Removed {
        /// The service's name.
        service: Name,
        /// The rules that went with it.
        rules: Vec<RuleId>,
        /// The cell still has to stop it; [`Notice::ServiceRemoved`] says when it has.
        stopping: bool,
    },
    /// The service is moving; a [`Notice`] says how that went.
    Moving {
        /// The service's name.
        service: Name,
        /// Where from; the same as asked for when there is nothing to do.
        from: Level,
    },
    /// The switch is set; notices tell of each service that moves.
    Bpf {
        /// The services that move.
        moving: Vec<Name>,
    },
    /// The rules are there.
    RulesAdded {
        /// Their numbers, in the order of the command.
        rules: Vec<RuleId>,
        /// Those of them that no packet can reach, each with the better rule.
        shadowed: Vec<(RuleId, RuleId)>,
    },
    /// The rule is gone.
    RuleRemoved {
        /// Its number.
        rule: RuleId,
    },
    /// The session is there.
    SessionCreated {
        /// Its name.
        session: Name,
        /// Its number.
        id: SessionId,
    },
    /// The session is promised what was asked for.
    SessionChanged {
        /// Its name.
        session: Name,
    },
    /// Nothing begins in the session any more.
    SessionRemoved {
        /// Its name.
        session: Name,
        /// The services that go with it.
        services: Vec<Name>,
        /// The rules that went with it.
        rules: Vec<RuleId>,
        /// The cell still has to stop services of it; [`Notice::SessionRemoved`] says when its
        /// name is free.
        stopping: bool,
    },
    /// Sessions are as they should be.
    SessionsArranged {
        /// Those that are new.
        created: Vec<Name>,
        /// Those that are promised something else than before.
        changed: Vec<Name>,
    },
    /// All is as it should be.
    Arranged {
        /// Numbers of the new rules, in the order of the command.
        rules: Vec<RuleId>,
        /// Those of them that no packet can reach, each with the better rule.
        shadowed: Vec<(RuleId, RuleId)>,
    },
}

/// What happened outside.
///
/// Events of one cell come in the order in which it sent them, and none of a
/// cell comes after its [`Event::CellLost`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The cell takes work.
    CellReady,
    /// The cell is gone, with all that ran in it, or could not be started.
    CellLost {
        /// How it ended.
        reason: String,
    },
    /// The service takes packets.
    ServiceStarted {
        /// Its number in the cell.
        entry: EntryId,
    },
    /// A service of streams listens: told before [`Event::ServiceStarted`].
    ServiceListens {
        /// Its number in the cell.
        entry: EntryId,
        /// The listener's port.
        port: u16,
    },
    /// A service has its place: told before [`Event::ServiceStarted`] if it is not just user
    /// level, and after every move.
    ServicePlaced {
        /// Its number in the cell.
        entry: EntryId,
        /// Where it runs.
        level: Level,
        /// Why there, and not at a level that the module would rather have.
        reason: String,
        /// Whether its packets go by a lane, so that it can move.
        movable: bool,
    },
    /// A move was given up; the service is where it was.
    MoveFailed {
        /// Its number in the cell.
        entry: EntryId,
        /// Why.
        reason: String,
    },
    /// The new version of a service runs, at user level; the old one is still there.
    ServiceReplaced {
        /// Its number in the cell.
        entry: EntryId,
    },
    /// The new version does not run, and the old one goes on.
    ReplaceFailed {
        /// Its number in the cell.
        entry: EntryId,
        /// Why.
        reason: String,
    },
    /// The new version has been watched, and the old one is gone.
    ServiceKept {
        /// Its number in the cell.
        entry: EntryId,
    },
    /// The new version trapped while it was watched, and the old one runs again, at user level.
    ServicePutBack {
        /// Its number in the cell.
        entry: EntryId,
        /// How it trapped.
        reason: String,
    },
    /// The service could not be started or can go on no longer; the cell keeps nothing of it.
    ServiceFailed {
        /// Its number in the cell.
        entry: EntryId,
        /// Why.
        reason: String,
    },
    /// Instances of the service trapped, and others took their places.
    ServiceTrapped {
        /// Its number in the cell.
        entry: EntryId,
        /// How often that has happened since it was started.
        traps: u64,
        /// How the last one trapped.
        reason: String,
    },
    /// The service is stopped as asked; the cell keeps nothing of it.
    ServiceStopped {
        /// Its number in the cell.
        entry: EntryId,
    },
}

/// Service, or version of one, that a cell is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStart {
    /// Number of the service in the cell.
    pub entry: EntryId,
    /// Name, for messages.
    pub service: Name,
    /// Digest of the module.
    pub digest: String,
    /// Number of instances.
    pub lanes: Lanes,
    /// Value of each parameter, defaults included.
    pub parameters: BTreeMap<Name, ParameterValue>,
    /// Session that pays.
    pub session: SessionId,
    /// Levels to run at: the first of these that it fits. The last is user level.
    pub levels: Vec<Level>,
    /// Host functions that are linked to it, and no other.
    pub functions: HostFunctions,
    /// True when packets that it cannot have are dropped.
    pub closed: bool,
}

/// What is to be done outside, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start the worker process; answered by [`Event::CellReady`] or [`Event::CellLost`].
    StartCell {
        /// How often it was started before.
        restarts: u32,
    },
    /// Start a service in the cell; answered by [`Event::ServiceStarted`] or [`Event::ServiceFailed`].
    StartService {
        /// The service.
        start: ServiceStart,
        /// How often it was started before.
        restarts: u32,
    },
    /// Put another version in a service's place; answered by [`Event::ServiceReplaced`] or
    /// [`Event::ReplaceFailed`], and the first later by [`Event::ServiceKept`] or
    /// [`Event::ServicePutBack`].
    ReplaceService {
        /// The new version.
        start: ServiceStart,
        /// How it comes by the state of the old one.
        way: StateWay,
    },
    /// Let a service run elsewhere; answered by [`Event::ServicePlaced`] or [`Event::MoveFailed`].
    MoveService {
        /// Its number in the cell.
        entry: EntryId,
        /// Where to.
        level: Level,
    },
    /// Let what passes a service go on to others. Told before its first packet, and again when
    /// one of the others comes or goes.
    SetEdges {
        /// Its number in the cell.
        entry: EntryId,
        /// Where each edge leads.
        edges: Edges,
    },
    /// Say what becomes of packets that a service cannot have. Told before it is started, and
    /// when it changes.
    SetClosed {
        /// Its number in the cell.
        entry: EntryId,
        /// They are dropped; else forwarded plainly.
        closed: bool,
    },
    /// Stop a service in the cell; answered by [`Event::ServiceStopped`].
    StopService {
        /// Its number in the cell.
        entry: EntryId,
    },
    /// Tell the cell what a session was promised: before anything of it starts, when it changes,
    /// and when the cell is another one.
    SetSession {
        /// Its number.
        session: SessionId,
        /// What it was promised.
        reservation: Reservation,
    },
    /// Tell the cell that there is no session of this number any more.
    RemoveSession {
        /// The number.
        session: SessionId,
    },
    /// Set the counters of a number to zero: another rule had it before.
    ClearRuleCounters {
        /// The number.
        rule: RuleId,
    },
    /// Replace what the front door knows, as a whole.
    InstallRules {
        /// The rules.
        rules: RuleSet,
        /// Grows by one with each.
        generation: u64,
    },
    /// Tell whoever waits, and the log.
    Report(Notice),
}

/// What an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "kebab-case")]
pub enum Notice {
    /// The service runs; its rules were installed just before.
    ServiceRunning {
        /// Its name.
        service: Name,
        /// How often it was started before.
        restarts: u32,
    },
    /// A new version of the service runs, and is watched.
    ServiceReplaced {
        /// Its name.
        service: Name,
    },
    /// A new version of the service does not run; the old one goes on.
    ReplaceFailed {
        /// Its name.
        service: Name,
        /// Why.
        reason: String,
    },
    /// The new version has been watched for long enough.
    ServiceKept {
        /// Its name.
        service: Name,
    },
    /// The new version failed at once; the old one is back.
    ServicePutBack {
        /// Its name.
        service: Name,
        /// How it failed.
        reason: String,
    },
    /// The service runs at another level now.
    ServiceMoved {
        /// Its name.
        service: Name,
        /// Where.
        level: Level,
    },
    /// The service did not move.
    MoveFailed {
        /// Its name.
        service: Name,
        /// Why.
        reason: String,
    },
    /// The service never ran and is gone, with its rules.
    ServiceNotStarted {
        /// Its name.
        service: Name,
        /// Why.
        reason: String,
    },
    /// A service that ran failed; its policy says what becomes of its packets until it is back.
    ServiceFailed {
        /// Its name.
        service: Name,
        /// Why.
        reason: String,
        /// Whether its packets are dropped; else they are forwarded plainly.
        closed: bool,
        /// When it is started again, on the node's clock.
        retry_at: Nanos,
    },
    /// A service has trapped too often; its packets are forwarded plainly until it is deployed
    /// again.
    ServiceBypassed {
        /// Its name.
        service: Name,
        /// How it trapped the last time.
        reason: String,
    },
    /// A service that was removed is stopped; its name and entry are free.
    ServiceRemoved {
        /// Its name.
        service: Name,
    },
    /// A session that was removed is gone; its name is free.
    SessionRemoved {
        /// Its name.
        session: Name,
    },
    /// The cell is gone; until it is back packets are forwarded plainly, or dropped.
    CellLost {
        /// How it ended.
        reason: String,
        /// The services whose packets are dropped.
        closed: Vec<Name>,
        /// When it is started again, on the node's clock.
        retry_at: Nanos,
    },
}
