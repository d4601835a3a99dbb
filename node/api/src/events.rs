//! Events of a node, as entries of its journal, and requests for them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Event on a node. Repetitions are combined into one event with a `count`: the first is reported
/// at once, later ones at most once a second for each kind, service, rule, port and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Number of the event, from 1 on and without gaps since the node started.
    pub seq: u64,
    /// Time in milliseconds since 1970, by the machine's clock.
    pub time_ms: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// Number of occurrences since the previous event of the same kind; packets of `drops`, rules
    /// of `rules_added` and `rules_removed`.
    pub count: u64,
    /// Name of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Number of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Digest of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Name of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Reason: the name of a counter, or words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Description in one sentence.
    pub text: String,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The node started.
    NodeStarted,
    /// The switch for BPF was set: modules may or may not run as BPF programs.
    BpfSwitched,
    /// The cell takes packets, for the first time or again.
    CellReady,
    /// The cell has ended.
    CellLost,
    /// The cell does not answer, or answers again.
    CellSilent,
    /// The service takes packets, for the first time or again.
    ServiceStarted,
    /// The service never ran and was removed.
    ServiceNotStarted,
    /// A running service failed.
    ServiceFailed,
    /// A module trapped and was replaced by a fresh instance.
    ServiceTrapped,
    /// The failure policy of a service took effect, or ended.
    ServicePolicy,
    /// The service runs at another level.
    ServiceMoved,
    /// A service did not move as requested.
    MoveFailed,
    /// The service runs another version.
    ServiceReplaced,
    /// The service begins empty: its state could not be handed over.
    StateLost,
    /// The service runs its previous version again.
    ServicePutBack,
    /// The service was removed.
    ServiceRemoved,
    /// The session was created.
    SessionCreated,
    /// The reservation of the session changed.
    SessionChanged,
    /// The session was removed.
    SessionRemoved,
    /// Rules were added.
    RulesAdded,
    /// Rules were removed.
    RulesRemoved,
    /// The reasons that keep plain forwarding off the fast path of a port changed.
    PortSlow,
    /// The device of the port changed: its address, its MTU, up or down.
    PortChanged,
    /// The device of the port is gone.
    PortGone,
    /// The device of the port is back.
    PortBack,
    /// The port is served in another mode than the best one.
    PortFallback,
    /// Packets that the kernel drops after the node has left them to it cannot be counted; the
    /// reason follows.
    DropsUncounted,
    /// Packets were dropped.
    Drops,
    /// A module reported an event with the host function `event`.
    ModuleEvent,
    /// Events of modules and notices of traps were left out of a burst.
    NoticesLost,
    /// A desired state was applied.
    StateApplied,
    /// The node returned to an earlier desired state.
    StateRolledBack,
    /// A service was started because packets call it, or stopped because none do any more.
    ServiceCalled,
    /// Packets call a module that does not run for them; the reason follows. At most one a second.
    CallRefused,
    /// A service was stopped because its capability was revoked or has ended.
    CapabilityEnded,
    /// The machine's clock differs from the time by which capabilities end.
    ClockOdd,
    /// The ledger cannot be written; usage is kept in memory, and no new service is accepted.
    LedgerFailed,
    /// The ledger can be written again.
    LedgerBack,
    /// A module was fetched that was named by its digest and that the node did not hold.
    ModuleFetched,
    /// A module named by its digest could not be fetched, or may not run here.
    ModuleMissed,
    /// A kind that this version of the client does not know.
    #[serde(other)]
    Other,
}

impl EventKind {
    /// Returns the name of the kind in JSON.
    #[must_use]
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => "other".to_owned(),
        }
    }
}

/// Events, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Start of the node, in milliseconds since 1970; numbers of events before it are not valid.
    pub started_ms: u64,
    /// Events.
    pub events: Vec<Event>,
    /// Number of the last event, for the next request.
    pub last: u64,
    /// Number of events between the requested one and the first one here that the journal no longer
    /// has.
    pub lost: u64,
}
