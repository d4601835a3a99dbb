//! Why a command was refused, in words and as a class that becomes an exit status.

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

/// Why a command was refused; nothing has changed. Whose fault: the operator's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The module imports host functions that its principal may not use.
    #[error(transparent)]
    NotGranted(#[from] NotGranted),
    /// It is being replaced already.
    #[error("the service '{service}' is being replaced; try again in a second")]
    ServiceReplacing {
        /// The service.
        service: Name,
    },
    /// What the running version knows would be lost.
    #[error(
        "version {new} of '{service}' cannot take over what version {old} knows: {why}; with --discard-state it begins empty"
    )]
    StateLost {
        /// The service.
        service: Name,
        /// The version that runs.
        old: String,
        /// The new version.
        new: String,
        /// Why.
        why: String,
    },
    /// A new version is charged to who was charged before.
    #[error(
        "the service '{service}' is of the session '{expected}', not '{found}'; remove it first to deploy it for another"
    )]
    SessionChange {
        /// The service.
        service: Name,
        /// As asked for.
        found: Name,
        /// As it is.
        expected: Name,
    },
    /// A new version is whose the one before was.
    #[error(
        "the service '{service}' is another principal's; remove it first, or deploy under another name"
    )]
    OwnerChange {
        /// The service.
        service: Name,
    },
    /// The node itself has it.
    #[error("the name '{service}' is the node's own; give the service another one")]
    NameReserved {
        /// The name.
        service: Name,
    },
    /// It goes with the node file.
    #[error(
        "rule {rule} is the node's own: it goes when the node starts with a node file without [associations]"
    )]
    RuleOwn {
        /// The rule.
        rule: RuleId,
    },
    /// It is on its way out.
    #[error("the service '{service}' is being stopped; try again when 'tam list' no longer has it")]
    ServiceStopping {
        /// The service.
        service: Name,
    },
    /// It has not run yet, and may never.
    #[error(
        "the service '{service}' has not started yet; try again when 'tam list' shows it as running, or give the rule to 'tam deploy'"
    )]
    ServiceStarting {
        /// The service.
        service: Name,
    },
    /// There is no such service.
    #[error("there is no service '{service}' on this node{meant}")]
    ServiceUnknown {
        /// The name as given.
        service: Name,
        /// What there is.
        meant: Meant,
    },
    /// Rules that did not come with it point at it.
    #[error(
        "the service '{service}' is used by rule {}; remove them first, or remove the service with --cascade",
        listed(rules)
    )]
    ServiceInUse {
        /// The service.
        service: Name,
        /// Those rules.
        rules: Vec<RuleId>,
    },
    /// Other services pass packets on to it.
    #[error(
        "the service '{service}' comes after {}; remove that first, or remove '{service}' with --cascade, and what passes there is forwarded",
        listed(before)
    )]
    ServiceFollows {
        /// The service.
        service: Name,
        /// Those that lead to it.
        before: Vec<Name>,
    },
    /// More edges than a verdict can tell apart.
    #[error("{asked} services are to come after '{service}', and at most {EDGES_MAX} may")]
    TooManyEdges {
        /// The service.
        service: Name,
        /// Edges in the command.
        asked: usize,
    },
    /// More services in a row than a packet may meet.
    #[error(
        "with '{service}' {found} services would come one after another, and at most {GRAPH_DEPTH_MAX} may"
    )]
    GraphTooDeep {
        /// The service in front.
        service: Name,
        /// How many there would be.
        found: usize,
    },
    /// A way round: a packet would never come out.
    #[error(
        "what '{service}' passes would come to '{service}' again; leave out one of the edges between"
    )]
    GraphLoops {
        /// A service on the way round.
        service: Name,
    },
    /// A graph has one session.
    #[error(
        "'{next}' is of the session '{found}', and '{service}', which it is to follow, of '{expected}'; deploy both under one session"
    )]
    EdgeToOtherSession {
        /// The service in front.
        service: Name,
        /// Its session.
        expected: Name,
        /// The one after it.
        next: Name,
        /// Its session.
        found: Name,
    },
    /// An edge is for packets.
    #[error(
        "'{next}' cannot follow '{service}': services of streams have connections, and an edge has packets; deploy them one by one"
    )]
    EdgeOfStreams {
        /// The service in front.
        service: Name,
        /// The one after it.
        next: Name,
    },
    /// A service stays one of packets or of streams.
    #[error(
        "'{service}' is a service of packets and the module is one for streams, or the other way round; remove it first, or deploy under another name"
    )]
    KindChange {
        /// The service.
        service: Name,
    },
    /// No entry is left.
    #[error(
        "this node has {SERVICES_MAX} services, which is its limit; remove one before you deploy '{service}'"
    )]
    TooManyServices {
        /// The service that does not fit.
        service: Name,
    },
    /// No entry is left of those that can be below user level.
    #[error(
        "this node has {BELOW_MAX} services that can run below user level, which is its limit; remove one before you deploy '{service}', or have its module name \"user\" only in 'levels'"
    )]
    TooManyBelow {
        /// The service that does not fit.
        service: Name,
    },
    /// The node has no level that the module wants.
    #[error(
        "the module '{module}' wants to run at {}, and this node has no back-ends; add \"nic\", \"kernel\" or \"user\" to 'levels' in its manifest",
        listed(levels)
    )]
    Level {
        /// The module's name.
        module: Name,
        /// What it wants.
        levels: Vec<Level>,
    },
    /// A service is to move where its module does not want to run.
    #[error(
        "the module of the service '{service}' declares {} and not {level}; add it to 'levels' in its manifest",
        listed(levels)
    )]
    LevelNotDeclared {
        /// The service.
        service: Name,
        /// Where it was to move.
        level: Level,
        /// What the module declares.
        levels: Vec<Level>,
    },
    /// A service of streams is to leave user level.
    #[error("'{service}' is a service of streams, which run at user level alone")]
    LevelOfStreams {
        /// The service.
        service: Name,
    },
    /// A service is to run below user level while nothing may.
    #[error("nothing runs at {level} on this node at present; 'tam node --bpf on' allows it")]
    BpfOff {
        /// Where it was to run.
        level: Level,
    },
    /// A service is to move that does not run.
    #[error("the service '{service}' does not run at present; 'tam show {service}' says why")]
    ServiceNotRunning {
        /// The service.
        service: Name,
    },
    /// The module does not take these parameters.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// There is no such session.
    #[error("there is no session '{session}' on this node{meant}")]
    SessionUnknown {
        /// The name as given.
        session: Name,
        /// What there is.
        meant: Meant,
    },
    /// There is one of that name.
    #[error(
        "there is a session '{session}' already; 'tam session set {session}' changes it, or take another name"
    )]
    SessionExists {
        /// The session.
        session: Name,
    },
    /// Every node has it, as it is.
    #[error(
        "the session '{session}' is one that every node has, without a reservation; it can be neither changed nor removed: make another one"
    )]
    SessionBuiltIn {
        /// The session.
        session: Name,
    },
    /// It is on its way out.
    #[error(
        "the session '{session}' is being removed; try again when 'tam session list' no longer has it"
    )]
    SessionLeaving {
        /// The session.
        session: Name,
    },
    /// Something is in it.
    #[error(
        "the session '{session}' has services ({}) and rules ({}); remove them first, or remove the session with --cascade",
        listed(services),
        listed(rules)
    )]
    SessionInUse {
        /// The session.
        session: Name,
        /// The services in it.
        services: Vec<Name>,
        /// The rules in it, those that came with its services among them.
        rules: Vec<RuleId>,
    },
    /// No number is left.
    #[error(
        "this node has {SESSIONS_MAX} sessions, which is its limit; remove one before you make '{session}'"
    )]
    TooManySessions {
        /// The session that does not fit.
        session: Name,
    },
    /// It cannot be promised that, beside what others were promised.
    #[error("the session '{session}' cannot be promised that: {problem}")]
    NotAdmitted {
        /// The session.
        session: Name,
        /// What of it, what is left, and what to change.
        problem: Box<admission::Refusal>,
    },
    /// A share of what nobody knows.
    #[error(
        "the session '{session}' is to send by the port '{port}', and how much that sends in a second its device does not say; see 'ethtool' of the device, or leave the share out"
    )]
    SendRateUnknown {
        /// The session.
        session: Name,
        /// The port.
        port: Name,
    },
    /// A share of a port that is not there.
    #[error(
        "the session '{session}' is to send by the port '{port}', which this node does not have{meant}"
    )]
    SendPortUnknown {
        /// The session.
        session: Name,
        /// The name as given.
        port: Name,
        /// What there is.
        meant: Meant,
    },
    /// A rule of one session leads to a service of another.
    #[error(
        "the rule '{text}' is of session '{found}', and its service '{service}' of '{expected}'; give the rule the session of its service"
    )]
    SessionDiffers {
        /// The rule's match.
        text: String,
        /// The rule's session.
        found: Name,
        /// The service.
        service: Name,
        /// The service's session.
        expected: Name,
    },
    /// A rule of a principal wants to stand in the operator's place, or the reverse.
    #[error(
        "the rule '{text}' is of session '{session}', whose rules are not of the stage '{stage}'; 'in' and 'out' are for the session 'system', 'service' for all others"
    )]
    StageNotOfSession {
        /// The rule's match.
        text: String,
        /// The rule's session.
        session: Name,
        /// The stage that it names.
        stage: Stage,
    },
    /// Two principals would program the same packets.
    #[error(
        "the rule '{text}' of session '{session}' can match packets of the rule '{other}', which is of session '{owner}'; a packet is one principal's: narrow one of them"
    )]
    OverlapsOther {
        /// The rule's match.
        text: String,
        /// Its session.
        session: Name,
        /// What the other rule matches.
        other: String,
        /// The session of that one.
        owner: Name,
    },
    /// A rule that comes with a service leads elsewhere.
    #[error(
        "the rule '{text}' comes with the service '{service}', and its action is '{action}'; leave it out here and add it with 'tam rule add'"
    )]
    ActionElsewhere {
        /// The rule's match.
        text: String,
        /// The service.
        service: Name,
        /// What the rule does.
        action: Action,
    },
    /// There is no such port.
    #[error("the rule '{text}' names the port '{port}', which this node does not have{meant}")]
    PortUnknown {
        /// The rule's match.
        text: String,
        /// The name as given.
        port: Name,
        /// What there is.
        meant: Meant,
    },
    /// There is no such rule.
    #[error("there is no rule {rule} on this node; 'tam rule list' shows those that there are")]
    RuleUnknown {
        /// The number as given.
        rule: RuleId,
    },
    /// More rules than there are counters for.
    #[error(
        "{asked} more rules do not fit: this node has {present} of at most {}; remove some, or match more by prefix",
        bpf_maps::RULES_MAX
    )]
    TooManyRules {
        /// Rules in the command.
        asked: usize,
        /// Rules that there are.
        present: usize,
    },
    /// A match that its own text could not say.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// The front door cannot take the rules.
    #[error(transparent)]
    RuleSet(#[from] RuleSetError),
}

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalClass {
    /// The command itself is wrong.
    Invalid,
    /// What it names is not there.
    NotFound,
    /// It would lose what a service knows, and was not asked to.
    Loses,
    /// What it names is in use or on its way; later it may work.
    Busy,
    /// It would exceed a limit.
    Limit,
    /// Who asks may not have it.
    Forbidden,
}

impl RefusalClass {
    /// The exit status of `tam` (design: 1 failed, 2 usage, 3 not found, 4 refused by
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
    /// Its class.
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

    /// A stable word for `--json`.
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

/// Whether it was asked for wrongly, or there is no more.
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
