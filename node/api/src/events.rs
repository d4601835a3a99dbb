//! What happened on a node: the entries of its journal, and how they are asked for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing that happened. What comes again and again is one event with a `count`: the first
/// at once, then at most one a second for each kind, service, rule, port and reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Its number, from 1 on and without gaps since the node started.
    pub seq: u64,
    /// When: milliseconds since 1970 by the machine's clock.
    pub time_ms: u64,
    /// What.
    pub kind: EventKind,
    /// How often since the event of the same kind before; packets of `drops`, rules of
    /// `rules_added` and `rules_removed`.
    pub count: u64,
    /// Which service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Which rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Which module, by its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Which port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Why: the name of a counter, or words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence for people.
    pub text: String,
}

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The node started.
    NodeStarted,
    /// Modules may run as BPF programs, or not any more.
    BpfSwitched,
    /// The cell takes packets, for the first time or again.
    CellReady,
    /// The cell is lost.
    CellLost,
    /// The cell does not answer, or does again.
    CellSilent,
    /// A service takes packets, for the first time or again.
    ServiceStarted,
    /// A service never ran, and is gone.
    ServiceNotStarted,
    /// A service that ran failed.
    ServiceFailed,
    /// A module trapped and was replaced by a fresh instance.
    ServiceTrapped,
    /// What becomes of a service's packets while it cannot run them: its policy acts, or ends.
    ServicePolicy,
    /// A service runs at another level.
    ServiceMoved,
    /// A service was to move and has not.
    MoveFailed,
    /// A service runs another module.
    ServiceReplaced,
    /// A service begins empty: what it knew could not be handed over.
    StateLost,
    /// A service runs the module before again.
    ServicePutBack,
    /// A service was removed.
    ServiceRemoved,
    /// A session was made.
    SessionCreated,
    /// A session is promised something else.
    SessionChanged,
    /// A session is gone.
    SessionRemoved,
    /// Rules were added.
    RulesAdded,
    /// Rules were removed.
    RulesRemoved,
    /// What keeps plain forwarding off the fast path of a port changed.
    PortSlow,
    /// A port's device changed: its address, its MTU, up or down.
    PortChanged,
    /// A port's device is gone.
    PortGone,
    /// A port's device is there again.
    PortBack,
    /// A port is served in another way than the best one.
    PortFallback,
    /// What the kernel drops of what the node leaves to it cannot be counted; why.
    DropsUncounted,
    /// Packets were dropped.
    Drops,
    /// A module told something by `event`.
    ModuleEvent,
    /// Events of modules and notices of traps were left out of a storm.
    NoticesLost,
    /// A desired state was applied.
    StateApplied,
    /// The node went back to a desired state before.
    StateRolledBack,
    /// A service starts because packets call it, or stops because none do any more.
    ServiceCalled,
    /// Packets call a module that does not run for them; why. At most one a second.
    CallRefused,
    /// A service was stopped because its capability was revoked or has ended.
    CapabilityEnded,
    /// The machine's clock is not the time by which capabilities end.
    ClockOdd,
    /// What principals use cannot be written down; it is kept, and no new service is taken.
    LedgerFailed,
    /// What principals use is written down again.
    LedgerBack,
    /// A module came that somebody named by its digest and the node did not hold.
    ModuleFetched,
    /// Such a module did not come, or may not run here.
    ModuleMissed,
    /// What this version of the client does not know.
    #[serde(other)]
    Other,
}

impl EventKind {
    /// As it stands in JSON.
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
    /// When the node started, in milliseconds since 1970: numbers of before mean nothing.
    pub started_ms: u64,
    /// The events.
    pub events: Vec<Event>,
    /// The number of the last one, to ask for those behind it.
    pub last: u64,
    /// Events between what was asked for and the first one here that the journal no longer has.
    pub lost: u64,
}
