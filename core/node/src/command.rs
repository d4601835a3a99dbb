//! Inputs and outputs of a node: commands, events, outcomes and effects.
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
pub enum StatePath {
    /// Memory and globals, taken over as they are.
    Memory,
    /// Hooks: `state_out` of the old one and `state_in` of the new one.
    Hooks,
    /// No state: the new version begins empty.
    Empty,
}

/// Request of an operator, done as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// Externally tagged: an internal tag would lose the numbers that are keys of a manifest.
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Starts a service and, when it runs, sends it packets. A running service of that name is
    /// replaced, with its state; without rules the new version keeps those of the old one.
    Deploy {
        /// Name of the service.
        service: Name,
        /// Module that the service runs.
        module: ModuleInfo,
        /// Parameters set by the operator.
        #[serde(default)]
        parameters: BTreeMap<String, String>,
        /// Session that pays.
        #[serde(default = "session::best_effort")]
        session: Name,
        /// Rules that are added with the service and removed with it.
        #[serde(default)]
        rules: Vec<RuleSpec>,
        /// Level to run at; `None` is the first level that the module names.
        #[serde(default)]
        level: Option<Level>,
        /// Services that follow in the graph: packets that pass by edge n go to the nth.
        #[serde(default)]
        then: Vec<Name>,
        /// Budget below user level.
        #[serde(default)]
        budget: Budget,
        /// Failure policy: the fate of the service's packets while it is down.
        #[serde(default)]
        on_failure: OnFailure,
        /// Discards the state of the running version, if there is one.
        #[serde(default)]
        discard_state: bool,
        /// Owner of the service and of its rules; `None` is the operator.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Replaces the version of a service; its rules, edges and budget stay. A service that does not
    /// run starts as the new version.
    Replace {
        /// Name of the service.
        service: Name,
        /// Module of the new version.
        module: ModuleInfo,
        /// Parameters set by the operator.
        #[serde(default)]
        parameters: BTreeMap<String, String>,
        /// Level to run at; `None` is the first level that the module names.
        #[serde(default)]
        level: Option<Level>,
        /// Treatment of the old version's state.
        #[serde(default)]
        memory: Memory,
    },
    /// Stops a service and removes the rules that came with it.
    Remove {
        /// Name of the service.
        service: Name,
        /// Removes also the other rules, and the edges, that lead to it.
        #[serde(default)]
        cascade: bool,
    },
    /// Moves a service to another level, with its state.
    Move {
        /// Name of the service.
        service: Name,
        /// Level to move to; the module must declare it.
        level: Level,
    },
    /// Allows modules to run as BPF programs, or moves every service to user level and keeps it
    /// there.
    Bpf {
        /// True if BPF programs are allowed.
        enabled: bool,
    },
    /// Adds rules, all or none.
    RuleAdd {
        /// Rules to add.
        specs: Vec<RuleSpec>,
        /// Owner of the rules; `None` is the operator.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Removes a rule.
    RuleRemove {
        /// Number of the rule.
        rule: RuleId,
    },
    /// Creates a session.
    SessionCreate {
        /// Name of the session.
        session: Name,
        /// Reservation of the session.
        #[serde(default)]
        reservation: Reservation,
        /// Owner of the session; `None` is the operator.
        #[serde(default)]
        owner: Option<Owner>,
    },
    /// Changes the reservation of a session; its services run on undisturbed.
    SessionSet {
        /// Name of the session.
        session: Name,
        /// New reservation, which replaces the old one as a whole.
        reservation: Reservation,
    },
    /// Removes a session.
    SessionRemove {
        /// Name of the session.
        session: Name,
        /// Removes also the services and rules that are in it.
        #[serde(default)]
        cascade: bool,
    },
    /// Hands a session to the operator and clears its reservation.
    SessionGiveUp {
        /// Name of the session.
        session: Name,
    },
    /// Sets the sessions of the node and their reservations, all or nothing. A session not listed
    /// loses its reservation, and is removed once it is empty.
    SessionsArrange {
        /// Sessions that shall exist, besides the built-in ones.
        sessions: BTreeMap<Name, DesiredSession>,
    },
    /// Changes rules, and the settings of services that can change while they run, all at once or
    /// not at all.
    Arrange {
        /// Numbers of the rules to remove.
        #[serde(default)]
        remove: Vec<RuleId>,
        /// Rules to add, in this order.
        #[serde(default)]
        add: Vec<DesiredRule>,
        /// New settings of running services.
        #[serde(default)]
        services: BTreeMap<Name, Arrangement>,
    },
}

/// Treatment of a service's state when another version replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// Handed over to the new version; without a way to do so the command is refused.
    #[default]
    Kept,
    /// Handed over to the new version if possible.
    KeptIfPossible,
    /// Discarded: the new version begins empty.
    Discarded,
}

/// Settings of a service that can change while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrangement {
    /// Services that follow in the graph, by the number of the edge that leads there.
    #[serde(default)]
    pub then: BTreeMap<u16, Name>,
    /// Level to run at from its next start on; [`Command::Move`] moves it now.
    #[serde(default)]
    pub level: Option<Level>,
    /// Budget below user level.
    #[serde(default)]
    pub budget: Budget,
    /// Failure policy: the fate of the service's packets while it is down.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Owner of the service; `None` is the operator.
    #[serde(default)]
    pub owner: Option<Owner>,
}

/// Immediate result of a command; effects and notices report the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// The service is starting; a [`Notice`] reports the result.
    Deployed {
        /// Name of the service.
        service: Name,
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Rules that came with the service.
        rules: Vec<RuleId>,
        /// Rules among them that no packet can reach, each with the better rule.
        shadowed: Vec<(RuleId, RuleId)>,
        /// Digest of the module that is being replaced.
        replaces: Option<String>,
    },
    /// The service is being replaced; a [`Notice`] reports the result.
    Replacing {
        /// Name of the service.
        service: Name,
        /// True if the service runs: success is then [`Notice::ServiceKept`], else
        /// [`Notice::ServiceRunning`].
        runs: bool,
        /// Reason that the new version begins empty although that was not asked for.
        lost: Option<String>,
    },
    /// The service receives no packets any more.
    Removed {
        /// Name of the service.
        service: Name,
        /// Rules that were removed with it.
        rules: Vec<RuleId>,
        /// True while the cell still has to stop it; [`Notice::ServiceRemoved`] reports when it
        /// has.
        stopping: bool,
    },
    /// The service is moving; a [`Notice`] reports the result.
    Moving {
        /// Name of the service.
        service: Name,
        /// Level before the move; equal to the requested one when there is nothing to do.
        from: Level,
    },
    /// The switch for BPF is set; a notice reports each service that moves.
    Bpf {
        /// Names of the services that move.
        moving: Vec<Name>,
    },
    /// The rules were added.
    RulesAdded {
        /// Numbers of the rules, in the order of the command.
        rules: Vec<RuleId>,
        /// Rules among them that no packet can reach, each with the better rule.
        shadowed: Vec<(RuleId, RuleId)>,
    },
    /// The rule was removed.
    RuleRemoved {
        /// Number of the rule.
        rule: RuleId,
    },
    /// The session was created.
    SessionCreated {
        /// Name of the session.
        session: Name,
        /// Number of the session.
        id: SessionId,
    },
    /// The session has its new reservation.
    SessionChanged {
        /// Name of the session.
        session: Name,
    },
    /// The session takes no new services or rules.
    SessionRemoved {
        /// Name of the session.
        session: Name,
        /// Services that are removed with it.
        services: Vec<Name>,
        /// Rules that were removed with it.
        rules: Vec<RuleId>,
        /// True while the cell still has to stop its services; [`Notice::SessionRemoved`] reports
        /// when the name is free.
        stopping: bool,
    },
    /// The sessions are as requested.
    SessionsArranged {
        /// Names of the new sessions.
        created: Vec<Name>,
        /// Names of the sessions whose reservation changed.
        changed: Vec<Name>,
    },
    /// Rules and services are as requested.
    Arranged {
        /// Numbers of the new rules, in the order of the command.
        rules: Vec<RuleId>,
        /// Rules among them that no packet can reach, each with the better rule.
        shadowed: Vec<(RuleId, RuleId)>,
    },
}

/// Report from outside the node: of the cell or its services.
///
/// Events of a cell arrive in the order in which it sent them, and none arrives after its
/// [`Event::CellLost`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The cell is ready for work.
    CellReady,
    /// The cell has ended, with all that ran in it, or could not be started.
    CellLost {
        /// Description of how it ended.
        reason: String,
    },
    /// The service takes packets.
    ServiceStarted {
        /// Entry of the service in the cell.
        entry: EntryId,
    },
    /// The stream service listens; precedes [`Event::ServiceStarted`].
    ServiceListens {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// TCP port of the listener.
        port: u16,
    },
    /// The service runs at this level. Sent before [`Event::ServiceStarted`] if that is not simply
    /// user level, and after every move.
    ServicePlaced {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Level at which it runs.
        level: Level,
        /// Reason that it runs there and not at a level that the module prefers.
        reason: String,
        /// True if its packets go through a lane, so that it can move.
        movable: bool,
    },
    /// The move was given up; the service runs where it did.
    MoveFailed {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Reason.
        reason: String,
    },
    /// The new version of a service runs, at user level; the old one is kept for a fallback.
    ServiceReplaced {
        /// Entry of the service in the cell.
        entry: EntryId,
    },
    /// The new version does not run; the old one continues.
    ReplaceFailed {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Reason.
        reason: String,
    },
    /// The watch period of the new version is over, and the old one is gone.
    ServiceKept {
        /// Entry of the service in the cell.
        entry: EntryId,
    },
    /// The new version trapped while it was watched, and the old one runs again, at user level.
    ServicePutBack {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Description of the trap.
        reason: String,
    },
    /// The service could not be started or cannot continue; the cell keeps nothing of it.
    ServiceFailed {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Reason.
        reason: String,
    },
    /// Instances of the service trapped, and others replaced them.
    ServiceTrapped {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Number of traps since the service was started.
        traps: u64,
        /// Description of the last trap.
        reason: String,
    },
    /// The service has stopped as requested; the cell keeps nothing of it.
    ServiceStopped {
        /// Entry of the service in the cell.
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
    /// Levels to run at, best first: the first that the module fits is used. The last is user
    /// level.
    pub levels: Vec<Level>,
    /// Host functions that are linked to it; no others are.
    pub functions: HostFunctions,
    /// True when packets that cannot reach it are dropped.
    pub closed: bool,
}

/// Work to be done outside the node, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Starts the worker process; answered by [`Event::CellReady`] or [`Event::CellLost`].
    StartCell {
        /// Number of earlier starts.
        restarts: u32,
    },
    /// Starts a service in the cell; answered by [`Event::ServiceStarted`] or
    /// [`Event::ServiceFailed`].
    StartService {
        /// Service to start.
        start: ServiceStart,
        /// Number of earlier starts.
        restarts: u32,
    },
    /// Replaces the version of a service; answered by [`Event::ServiceReplaced`] or
    /// [`Event::ReplaceFailed`], and the former later by [`Event::ServiceKept`] or
    /// [`Event::ServicePutBack`].
    ReplaceService {
        /// New version.
        start: ServiceStart,
        /// Path by which it gets the state of the old one.
        path: StatePath,
    },
    /// Moves a service to another level; answered by [`Event::ServicePlaced`] or
    /// [`Event::MoveFailed`].
    MoveService {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Level to move to.
        level: Level,
    },
    /// Sets the services that follow a service in its graph. Sent before its first packet, and
    /// again when one of them appears or disappears.
    SetEdges {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// Destination of each edge.
        edges: Edges,
    },
    /// Sets the treatment of packets that cannot reach a service. Sent before it is started, and on
    /// each change.
    SetClosed {
        /// Entry of the service in the cell.
        entry: EntryId,
        /// True to drop them, false to forward them plainly.
        closed: bool,
    },
    /// Stops a service in the cell; answered by [`Event::ServiceStopped`].
    StopService {
        /// Entry of the service in the cell.
        entry: EntryId,
    },
    /// Sets the reservation of a session in the cell: before any of its services starts, on each
    /// change, and in each new cell.
    SetSession {
        /// Number of the session.
        session: SessionId,
        /// Reservation of the session.
        reservation: Reservation,
    },
    /// Removes a session from the cell.
    RemoveSession {
        /// Number of the session.
        session: SessionId,
    },
    /// Sets the counters of a rule number to zero, since another rule used it before.
    ClearRuleCounters {
        /// Number of the rule.
        rule: RuleId,
    },
    /// Replaces the rules of the front door, as a whole.
    InstallRules {
        /// Compiled rules.
        rules: RuleSet,
        /// Generation, one more than that of the previous set.
        generation: u64,
    },
    /// Reports to the waiting caller, and to the log.
    Report(Notice),
}

/// Message to the operator on a change that was not immediate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "kebab-case")]
pub enum Notice {
    /// The service runs; its rules were installed just before.
    ServiceRunning {
        /// Name of the service.
        service: Name,
        /// Number of earlier starts.
        restarts: u32,
    },
    /// A new version of the service runs, and is watched for traps.
    ServiceReplaced {
        /// Name of the service.
        service: Name,
    },
    /// A new version of the service does not run; the old one continues.
    ReplaceFailed {
        /// Name of the service.
        service: Name,
        /// Reason.
        reason: String,
    },
    /// The watch period of the new version is over.
    ServiceKept {
        /// Name of the service.
        service: Name,
    },
    /// The new version failed while it was watched; the old one is back.
    ServicePutBack {
        /// Name of the service.
        service: Name,
        /// Description of the failure.
        reason: String,
    },
    /// The service runs at another level now.
    ServiceMoved {
        /// Name of the service.
        service: Name,
        /// Level at which it runs.
        level: Level,
    },
    /// The service did not move.
    MoveFailed {
        /// Name of the service.
        service: Name,
        /// Reason.
        reason: String,
    },
    /// The service never ran and was removed, with its rules.
    ServiceNotStarted {
        /// Name of the service.
        service: Name,
        /// Reason.
        reason: String,
    },
    /// A service that ran has failed; its failure policy applies to its packets until it is back.
    ServiceFailed {
        /// Name of the service.
        service: Name,
        /// Reason.
        reason: String,
        /// True if its packets are dropped, false if they are forwarded plainly.
        closed: bool,
        /// Time of the next start, on the node's clock.
        retry_at: Nanos,
    },
    /// A service has trapped too often; its packets are forwarded plainly until it is deployed
    /// again.
    ServiceBypassed {
        /// Name of the service.
        service: Name,
        /// Description of the last trap.
        reason: String,
    },
    /// A removed service has stopped; its name and entry are free.
    ServiceRemoved {
        /// Name of the service.
        service: Name,
    },
    /// A removed session is gone; its name is free.
    SessionRemoved {
        /// Name of the session.
        session: Name,
    },
    /// The cell has ended; until it is back packets are forwarded plainly, or dropped.
    CellLost {
        /// Description of how it ended.
        reason: String,
        /// Names of the services whose packets are dropped.
        closed: Vec<Name>,
        /// Time of the next start, on the node's clock.
        retry_at: Nanos,
    },
}
