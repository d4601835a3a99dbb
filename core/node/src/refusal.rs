//! Refusals of commands, as text and as a class that becomes an exit status.

use ::session::admission;
use abi::manifest::Meant;
use abi::manifest::ParameterError;
use abi::{Level, NotGranted};
use serde::{Deserialize, Serialize};
use units::{Name, RuleId};

use crate::classifier::RuleSetError;
use crate::message::listed;
use crate::rule::{Action, MatchError, Stage};
use crate::service::{BELOW_MAX, EDGES_MAX, GRAPH_DEPTH_MAX, SERVICES_MAX};
use crate::session::SESSIONS_MAX;

/// Refusal of a command, which then has changed nothing. Fault of the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The module imports host functions that its principal may not use.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// The service is being replaced already.
    #[error("the service '{service}' is being replaced; try again in a second")]
    ServiceReplacing {
        /// Name of the service.
        service: Name,
    },
    /// The state of the running version would be lost.
    #[error(
        "version {new} of '{service}' cannot take over what version {old} knows: {why}; with --discard-state it begins empty"
    )]
    StateLost {
        /// Name of the service.
        service: Name,
        /// Running version.
        old: String,
        /// New version.
        new: String,
        /// Reason.
        why: String,
    },
    /// The new version is of another session than the running one.
    #[error(
        "the service '{service}' is of the session '{expected}', not '{found}'; remove it first to deploy it for another"
    )]
    SessionChange {
        /// Name of the service.
        service: Name,
        /// Session of the command.
        found: Name,
        /// Session of the service.
        expected: Name,
    },
    /// The new version has another owner than the running one.
    #[error(
        "the service '{service}' is another principal's; remove it first, or deploy under another name"
    )]
    OwnerChange {
        /// Name of the service.
        service: Name,
    },
    /// The name is reserved for the node itself.
    #[error("the name '{service}' is the node's own; give the service another one")]
    NameReserved {
        /// Reserved name.
        service: Name,
    },
    /// The rule is the node's own, and changes with the node file only.
    #[error(
        "rule #{rule} is the node's own: it goes when the node starts with a node file without [associations]"
    )]
    RuleOwn {
        /// Number of the rule.
        rule: RuleId,
    },
    /// The service is being removed.
    #[error("the service '{service}' is being stopped; try again when 'tam list' no longer has it")]
    ServiceStopping {
        /// Name of the service.
        service: Name,
    },
    /// The service has not run yet, and may never.
    #[error(
        "the service '{service}' has not started yet; try again when 'tam list' shows it as running, or give the rule to 'tam deploy'"
    )]
    ServiceStarting {
        /// Name of the service.
        service: Name,
    },
    /// The service does not exist.
    #[error("there is no service '{service}' on this node{meant}")]
    ServiceUnknown {
        /// Name as given.
        service: Name,
        /// Nearest name, or the choices.
        meant: Meant,
    },
    /// Rules that did not come with the service lead to it.
    #[error(
        "the service '{service}' is used by rules that did not come with it ({}); remove them first, or remove the service with --cascade",
        listed(rules.iter().map(|rule| format!("#{rule}")))
    )]
    ServiceInUse {
        /// Name of the service.
        service: Name,
        /// Numbers of these rules.
        rules: Vec<RuleId>,
    },
    /// Edges of other services lead to the service.
    #[error(
        "the service '{service}' comes after {}; remove that first, or remove '{service}' with --cascade, and what passes there is forwarded",
        listed(before)
    )]
    ServiceFollows {
        /// Name of the service.
        service: Name,
        /// Names of these services.
        before: Vec<Name>,
    },
    /// The command has more edges than a verdict can tell apart.
    #[error("{asked} services are to come after '{service}', and at most {EDGES_MAX} may")]
    TooManyEdges {
        /// Name of the service.
        service: Name,
        /// Number of edges in the command.
        asked: usize,
    },
    /// The graph has more services in a row than a packet may pass.
    #[error(
        "with '{service}' {found} services would come one after another, and at most {GRAPH_DEPTH_MAX} may"
    )]
    GraphTooDeep {
        /// Name of the service in front.
        service: Name,
        /// Number of services in a row.
        found: usize,
    },
    /// The graph would have a cycle, which a packet would never leave.
    #[error(
        "what '{service}' passes would come to '{service}' again; leave out one of the edges between"
    )]
    GraphLoops {
        /// Name of a service of the cycle.
        service: Name,
    },
    /// The services of one graph are of two sessions.
    #[error(
        "'{next}' is of the session '{found}', and '{service}', which it is to follow, of '{expected}'; deploy both under one session"
    )]
    EdgeToOtherSession {
        /// Name of the service in front.
        service: Name,
        /// Session of the service in front.
        expected: Name,
        /// Name of the service after it.
        next: Name,
        /// Session of the service after it.
        found: Name,
    },
    /// An edge leads to or from a stream service, and edges carry packets.
    #[error(
        "'{next}' cannot follow '{service}': services of streams have connections, and an edge has packets; deploy them one by one"
    )]
    EdgeOfStreams {
        /// Name of the service in front.
        service: Name,
        /// Name of the service after it.
        next: Name,
    },
    /// The new version is for streams and the running one for packets, or the reverse.
    #[error(
        "'{service}' is a service of packets and the module is one for streams, or the other way round; remove it first, or deploy under another name"
    )]
    KindChange {
        /// Name of the service.
        service: Name,
    },
    /// The node has no free entry.
    #[error(
        "this node has {SERVICES_MAX} services, which is its limit; remove one before you deploy '{service}'"
    )]
    TooManyServices {
        /// Name of the service that does not fit.
        service: Name,
    },
    /// The node has no free entry among those that can be below user level.
    #[error(
        "this node has {BELOW_MAX} services that can run below user level, which is its limit; remove one before you deploy '{service}', or have its module name \"user\" only in 'levels'"
    )]
    TooManyBelow {
        /// Name of the service that does not fit.
        service: Name,
    },
    /// The node offers none of the levels that the module declares.
    #[error(
        "the module '{module}' wants to run at {}, and this node has no back-ends; add \"nic\", \"kernel\" or \"user\" to 'levels' in its manifest",
        listed(levels)
    )]
    Level {
        /// Name of the module.
        module: Name,
        /// Levels that the module declares.
        levels: Vec<Level>,
    },
    /// The service is to move to a level that its module does not declare.
    #[error(
        "the module of the service '{service}' declares {} and not {level}; add it to 'levels' in its manifest",
        listed(levels)
    )]
    LevelNotDeclared {
        /// Name of the service.
        service: Name,
        /// Level of the command.
        level: Level,
        /// Levels that the module declares.
        levels: Vec<Level>,
    },
    /// The service is to run at a level that no node has yet.
    #[error("nothing runs at {level} yet: a node has no back-ends; write nic, kernel or user")]
    LevelAbsent {
        /// Level of the command.
        level: Level,
    },
    /// The stream service is to leave user level.
    #[error(
        "'{service}' is a service of streams, which run at user level only: leave the level out"
    )]
    LevelOfStreams {
        /// Name of the service.
        service: Name,
    },
    /// The service is to run below user level while BPF is off.
    #[error("nothing runs at {level} on this node at present; 'tam node --bpf on' allows it")]
    BpfOff {
        /// Level of the command.
        level: Level,
    },
    /// The service is to move and does not run.
    #[error("the service '{service}' does not run at present; 'tam show {service}' says why")]
    ServiceNotRunning {
        /// Name of the service.
        service: Name,
    },
    /// The module does not accept these parameters.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The session does not exist.
    #[error("there is no session '{session}' on this node{meant}")]
    SessionUnknown {
        /// Name as given.
        session: Name,
        /// Nearest name, or the choices.
        meant: Meant,
    },
    /// The session exists already.
    #[error(
        "there is a session '{session}' already; 'tam session set {session}' changes it, or take another name"
    )]
    SessionExists {
        /// Name of the session.
        session: Name,
    },
    /// The session is built in, and cannot change.
    #[error(
        "the session '{session}' is one that every node has, without a reservation; it can be neither changed nor removed: make another one"
    )]
    SessionBuiltIn {
        /// Name of the session.
        session: Name,
    },
    /// The session is being removed.
    #[error(
        "the session '{session}' is being removed; try again when 'tam session list' no longer has it"
    )]
    SessionLeaving {
        /// Name of the session.
        session: Name,
    },
    /// The session still has services or rules.
    #[error(
        "the session '{session}' has services ({}) and rules ({}); remove them first, or remove the session with --cascade",
        listed(services),
        listed(rules.iter().map(|rule| format!("#{rule}")))
    )]
    SessionInUse {
        /// Name of the session.
        session: Name,
        /// Services in the session.
        services: Vec<Name>,
        /// Rules in the session, with those that came with its services.
        rules: Vec<RuleId>,
    },
    /// The node has no free session number.
    #[error(
        "this node has {SESSIONS_MAX} sessions, which is its limit; remove one before you make '{session}'"
    )]
    TooManySessions {
        /// Name of the session that does not fit.
        session: Name,
    },
    /// Admission control refuses the reservation beside those of other sessions.
    #[error("the session '{session}' cannot be promised that: {problem}")]
    NotAdmitted {
        /// Name of the session.
        session: Name,
        /// Refused part of the reservation, with what is left and what to change.
        problem: Box<admission::Refusal>,
    },
    /// The reservation has a share of a port whose send rate is unknown.
    #[error(
        "the session '{session}' is to send by the port '{port}', and how much that sends in a second its device does not say; see 'ethtool' of the device, or leave the share out"
    )]
    SendRateUnknown {
        /// Name of the session.
        session: Name,
        /// Name of the port.
        port: Name,
    },
    /// The reservation has a share of a port that does not exist.
    #[error(
        "the session '{session}' is to send by the port '{port}', which this node does not have{meant}"
    )]
    SendPortUnknown {
        /// Name of the session.
        session: Name,
        /// Name as given.
        port: Name,
        /// Nearest name, or the choices.
        meant: Meant,
    },
    /// The rule is of another session than the service that it leads to.
    #[error(
        "the rule '{text}' is of session '{found}', and its service '{service}' of '{expected}'; give the rule the session of its service"
    )]
    SessionDiffers {
        /// Match of the rule, as text.
        text: String,
        /// Session of the rule.
        found: Name,
        /// Name of the service.
        service: Name,
        /// Session of the service.
        expected: Name,
    },
    /// The rule of a principal names one of the operator's stages, or the reverse.
    #[error(
        "the rule '{text}' is of session '{session}', whose rules are not of the stage '{stage}'; 'in' and 'out' are for the session 'system', 'service' for all others"
    )]
    StageNotOfSession {
        /// Match of the rule, as text.
        text: String,
        /// Session of the rule.
        session: Name,
        /// Stage that the rule names.
        stage: Stage,
    },
    /// The rule matches packets that another principal's rule matches.
    #[error(
        "the rule '{text}' of session '{session}' can match packets of the rule '{other}', which is of session '{owner}'; a packet is one principal's: narrow one of them"
    )]
    OverlapsOther {
        /// Match of the rule, as text.
        text: String,
        /// Session of the rule.
        session: Name,
        /// Match of the other rule, as text.
        other: String,
        /// Session of the other rule.
        owner: Name,
    },
    /// The rule comes with a service and leads elsewhere.
    #[error(
        "the rule '{text}' comes with the service '{service}', and its action is '{action}'; leave it out here and add it with 'tam rule add'"
    )]
    ActionElsewhere {
        /// Match of the rule, as text.
        text: String,
        /// Name of the service.
        service: Name,
        /// Action of the rule.
        action: Action,
    },
    /// The port does not exist.
    #[error("the rule '{text}' names the port '{port}', which this node does not have{meant}")]
    PortUnknown {
        /// Match of the rule, as text.
        text: String,
        /// Name as given.
        port: Name,
        /// Nearest name, or the choices.
        meant: Meant,
    },
    /// The rule does not exist.
    #[error("there is no rule #{rule} on this node; 'tam rule list' shows those that there are")]
    RuleUnknown {
        /// Number as given.
        rule: RuleId,
    },
    /// The node has no counters left for so many rules.
    #[error(
        "{asked} more rules do not fit: this node has {present} of at most {}; remove some, or match more by prefix",
        bpf_maps::RULES_MAX
    )]
    TooManyRules {
        /// Number of rules in the command.
        asked: usize,
        /// Number of rules on the node.
        present: usize,
    },
    /// The match has no valid text form.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// The front door cannot hold the rules.
    #[error(transparent)]
    RuleSet(#[from] RuleSetError),
}

/// Class of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalClass {
    /// The command itself is wrong.
    Invalid,
    /// An object that the command names does not exist.
    NotFound,
    /// The command would lose a service's state without being asked to.
    Loses,
    /// An object that the command names is in use or changing; a later try may succeed.
    Busy,
    /// The command would exceed a limit.
    Limit,
    /// The caller is not allowed to do it.
    Forbidden,
}

impl RefusalClass {
    /// Returns the exit status of `tam` (design: 1 failed, 2 usage, 3 not found, 4 refused by
    /// policy, 5 over a resource limit).
    #[must_use]
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Loses | Self::Busy => 1,
            Self::Invalid => 2,
            Self::NotFound => 3,
            Self::Limit => 5,
            Self::Forbidden => 4,
        }
    }
}

impl Refusal {
    /// Returns the class.
    #[must_use]
    pub const fn class(&self) -> RefusalClass {
        match self {
            Self::NotGranted(_)
            | Self::NameReserved { .. }
            | Self::SessionBuiltIn { .. }
            | Self::RuleOwn { .. } => RefusalClass::Forbidden,
            Self::StateLost { .. } => RefusalClass::Loses,
            Self::ServiceReplacing { .. }
            | Self::ServiceStopping { .. }
            | Self::ServiceStarting { .. }
            | Self::ServiceNotRunning { .. }
            | Self::BpfOff { .. }
            | Self::ServiceInUse { .. }
            | Self::SessionExists { .. }
            | Self::SessionLeaving { .. }
            | Self::SessionInUse { .. }
            | Self::ServiceFollows { .. } => RefusalClass::Busy,
            Self::ServiceUnknown { .. }
            | Self::SessionUnknown { .. }
            | Self::PortUnknown { .. }
            | Self::SendPortUnknown { .. }
            | Self::RuleUnknown { .. }
            | Self::RuleSet(RuleSetError::Unknown { .. }) => RefusalClass::NotFound,
            Self::NotAdmitted { problem, .. } => class_of(problem),
            Self::TooManyServices { .. }
            | Self::TooManyBelow { .. }
            | Self::SendRateUnknown { .. }
            | Self::TooManySessions { .. }
            | Self::TooManyRules { .. }
            | Self::TooManyEdges { .. }
            | Self::GraphTooDeep { .. }
            | Self::RuleSet(
                RuleSetError::TooManyRules { .. }
                | RuleSetError::TooManyMasks { .. }
                | RuleSetError::TooManyEntries { .. }
                | RuleSetError::TooManyFlows { .. },
            ) => RefusalClass::Limit,
            Self::Level { .. }
            | Self::LevelAbsent { .. }
            | Self::LevelNotDeclared { .. }
            | Self::LevelOfStreams { .. }
            | Self::Parameter(_)
            | Self::SessionDiffers { .. }
            | Self::StageNotOfSession { .. }
            | Self::OverlapsOther { .. }
            | Self::EdgeToOtherSession { .. }
            | Self::EdgeOfStreams { .. }
            | Self::KindChange { .. }
            | Self::GraphLoops { .. }
            | Self::SessionChange { .. }
            | Self::OwnerChange { .. }
            | Self::ActionElsewhere { .. }
            | Self::RuleSet(
                RuleSetError::FlowsTwice { .. }
                | RuleSetError::NotTcp { .. }
                | RuleSetError::AtTc { .. }
                | RuleSetError::PartOfConnections { .. }
                | RuleSetError::FlowsOfStreams { .. },
            )
            | Self::Match(_) => RefusalClass::Invalid,
        }
    }

    /// Returns a stable identifier for `--json`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::ServiceReplacing { .. } => "service_replacing",
            Self::NotGranted(_) => "not_granted",
            Self::StateLost { .. } => "state_lost",
            Self::SessionChange { .. } => "session_change",
            Self::OwnerChange { .. } => "owner_change",
            Self::NameReserved { .. } => "name_reserved",
            Self::RuleOwn { .. } => "rule_own",
            Self::ServiceStopping { .. } => "service_stopping",
            Self::ServiceStarting { .. } => "service_starting",
            Self::ServiceUnknown { .. } => "service_unknown",
            Self::ServiceInUse { .. } => "service_in_use",
            Self::ServiceFollows { .. } => "service_follows",
            Self::TooManyEdges { .. } => "too_many_edges",
            Self::GraphTooDeep { .. } => "graph_too_deep",
            Self::GraphLoops { .. } => "graph_loops",
            Self::EdgeToOtherSession { .. } => "edge_to_other_session",
            Self::EdgeOfStreams { .. } => "edge_of_streams",
            Self::KindChange { .. } => "kind_change",
            Self::TooManyServices { .. } => "too_many_services",
            Self::TooManyBelow { .. } => "too_many_below",
            Self::Level { .. } => "level",
            Self::LevelAbsent { .. } => "level_absent",
            Self::LevelNotDeclared { .. } => "level_not_declared",
            Self::LevelOfStreams { .. } => "level_of_streams",
            Self::BpfOff { .. } => "bpf_off",
            Self::ServiceNotRunning { .. } => "service_not_running",
            Self::Parameter(_) => "parameter",
            Self::SessionUnknown { .. } => "session_unknown",
            Self::SessionExists { .. } => "session_exists",
            Self::SessionBuiltIn { .. } => "session_built_in",
            Self::SessionLeaving { .. } => "session_leaving",
            Self::SessionInUse { .. } => "session_in_use",
            Self::TooManySessions { .. } => "too_many_sessions",
            Self::NotAdmitted { .. } => "not_admitted",
            Self::SendRateUnknown { .. } => "send_rate_unknown",
            Self::SendPortUnknown { .. } => "send_port_unknown",
            Self::SessionDiffers { .. } => "session_differs",
            Self::StageNotOfSession { .. } => "stage_not_of_session",
            Self::OverlapsOther { .. } => "overlaps_other",
            Self::ActionElsewhere { .. } => "action_elsewhere",
            Self::PortUnknown { .. } => "port_unknown",
            Self::RuleUnknown { .. } => "rule_unknown",
            Self::TooManyRules { .. } => "too_many_rules",
            Self::Match(_) => "match",
            Self::RuleSet(_) => "rule_set",
        }
    }
}

/// Returns whether a reservation is invalid or exceeds a limit.
const fn class_of(problem: &admission::Refusal) -> RefusalClass {
    match problem {
        admission::Refusal::Reservation(_)
        | admission::Refusal::PortSlice { .. }
        | admission::Refusal::PortUnheld { .. }
        | admission::Refusal::PortUnknown { .. } => RefusalClass::Invalid,
        admission::Refusal::Held { .. }
        | admission::Refusal::Unknown { .. }
        | admission::Refusal::OneCore { .. }
        | admission::Refusal::Processor { .. }
        | admission::Refusal::Below { .. }
        | admission::Refusal::Memory { .. }
        | admission::Refusal::Queue { .. }
        | admission::Refusal::MemoryUsed { .. }
        | admission::Refusal::Port { .. } => RefusalClass::Limit,
    }
}
