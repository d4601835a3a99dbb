//! Host functions and hooks of the packet ABI, version 1, in one table each.
//!
//! [`check`](crate::check) compares a module's imports and exports with these tables, the engine
//! links by them. docs/reference/module-abi.md describes each function; nothing here runs one.

use core::fmt;

/// Most frames that a module may send for one packet with `packet_send`: a reply, a copy and their
/// fragments, and no amplifier.
pub const SENDS_PER_PACKET_MAX: usize = 4;
/// Shortest frame that `packet_send` takes, in bytes: an Ethernet header.
pub const FRAME_LENGTH_MIN: usize = 14;
/// Longest frame that `packet_send` takes, in bytes: a packet of 9,000 bytes with an Ethernet
/// header and a VLAN tag.
pub const FRAME_LENGTH_MAX: usize = 9_018;
/// Longest data of one event, or message to another module, in bytes: a notice, not a stream.
pub const EVENT_LENGTH_MAX: usize = 256;
/// Most events and messages of one call: a notice for each reason.
pub const EVENTS_PER_CALL_MAX: usize = 4;
/// Most state that an instance hands over, in bytes: all of the largest memory.
pub const STATE_LENGTH_MAX: usize = crate::layout::MEMORY_PAGES_MAX as usize * 65_536;
/// Most bytes of one `state_write` or `state_read`: copied within some microseconds, so that a
/// call that takes too long is stopped in between.
pub const STATE_CHUNK_MAX: usize = 65_536;
/// Largest argument of `queue_watch`, percent of the queue.
pub const QUEUE_PERCENT_MAX: u32 = 100;
/// First argument of `on_queue`: the queue is at or below the lower threshold.
pub const QUEUE_SHORT: u32 = 0;
/// First argument of `on_queue`: the queue is above the higher threshold.
pub const QUEUE_LONG: u32 = 1;
/// First argument of `on_queue`: a packet was dropped because the queue was full; its head lies at
/// the window's address.
pub const QUEUE_DROPPED: u32 = 2;
/// Longest head of a packet that was dropped, in bytes: Ethernet with a tag, IPv6 and UDP.
pub const QUEUE_HEAD_MAX: usize = 66;
/// Longest control message, in bytes: it lies at the window's address.
pub const MESSAGE_LENGTH_MAX: usize = crate::layout::WINDOW_LENGTH_MAX as usize;
/// Prefix of the exported globals that are counters; the rest is the counter's name.
pub const COUNTER_PREFIX: &str = "tam_counter_";

/// Number type of arguments and results between module and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// 32-bit integer; also addresses and lengths.
    I32,
    /// 64-bit integer.
    I64,
}

/// Function that a module may import from [`IMPORT_MODULE`](crate::layout::IMPORT_MODULE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostFunction {
    /// Copies bytes of the packet into memory.
    PacketLoad,
    /// Copies bytes of memory into the packet.
    PacketStore,
    /// Moves the packet's first byte.
    PacketResizeHead,
    /// Moves the packet's last byte.
    PacketResizeTail,
    /// Sends a frame out of a port, in addition to the packet.
    PacketSend,
    /// Adds an event to the node's event stream.
    Event,
    /// Reads a parameter's value.
    ParamLoad,
    /// Finds a port's number by its name.
    PortFind,
    /// Returns the node's coarse time in milliseconds.
    NowMs,
    /// Sends a control message to the modules before this one in the graph.
    MessageSend,
    /// Hands part of the state over to the instance that replaces this one.
    StateWrite,
    /// Reads part of the state of the instance that this one replaces.
    StateRead,
    /// Subscribes to the session's queue: when it gets long or short, and which packets are
    /// dropped.
    QueueWatch,
}

impl HostFunction {
    /// Returns the ABI's specification of the function.
    #[must_use]
    pub const fn spec(self) -> &'static HostFunctionSpec {
        // The table is in the order of the enum; a test compares the two.
        &HOST_FUNCTIONS[self as usize]
    }
}

/// Function that a node calls in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Called once, after the memory is made and before the first packet.
    OnStart,
    /// Called once for each packet; the only hook that a module must export.
    OnPacket,
    /// Called every `timer_ms`.
    OnTimer,
    /// Called for each control message.
    OnMessage,
    /// Called when its session has little memory left: once, until there was enough again.
    OnMemoryLow,
    /// Called when another instance replaces this one: hands over the state to keep.
    StateOut,
    /// Called in the replacing instance, after `on_start`: takes the state over.
    StateIn,
    /// Called for events of a queue that the module watches.
    OnQueue,
}

/// Permission that a module must declare before it may import a function.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Sending frames of its own: `packet_send`.
    Send,
    /// Events in the node's event stream: `event`.
    Events,
    /// Control messages to the modules before it in the graph: `message_send`.
    Messages,
    /// Events of its session's queue, and heads of packets dropped there: `queue_watch`.
    Queues,
}

/// Row of the table of host functions.
#[derive(Debug, PartialEq, Eq)]
pub struct HostFunctionSpec {
    /// Function of the row.
    pub function: HostFunction,
    /// Import name.
    pub name: &'static str,
    /// Types of the parameters.
    pub parameters: &'static [ValueType],
    /// Type of the result.
    pub result: ValueType,
    /// Hooks in which the function works; elsewhere it returns
    /// [`WRONG_HOOK`](crate::layout::host_error::WRONG_HOOK).
    pub hooks: &'static [Hook],
    /// Entry that the manifest's `needs` must list.
    pub need: Option<Need>,
}

/// Row of the table of hooks.
#[derive(Debug, PartialEq, Eq)]
pub struct HookSpec {
    /// Hook of the row.
    pub hook: Hook,
    /// Export name.
    pub name: &'static str,
    /// Types of the parameters and of the result.
    pub signature: (&'static [ValueType], Option<ValueType>),
    /// An export of another type is ignored instead of refused: modules used the name before the
    /// hook existed.
    pub any_type: bool,
}

use ValueType::{I32, I64};

/// Hooks in which a module may send messages and events.
const SENDING_HOOKS: &[Hook] = &[
    Hook::OnStart,
    Hook::OnPacket,
    Hook::OnTimer,
    Hook::OnMessage,
    Hook::OnMemoryLow,
    Hook::OnQueue,
];
/// Hooks that handle a packet.
const PACKET_HOOKS: &[Hook] = &[Hook::OnPacket];
/// Hooks outside the packet path: names are looked up once, not per packet.
const SETUP_HOOKS: &[Hook] = &[Hook::OnStart, Hook::OnMessage];

/// Every host function of version 1, in the order of [`HostFunction`].
pub const HOST_FUNCTIONS: &[HostFunctionSpec] = &[
    HostFunctionSpec {
        function: HostFunction::PacketLoad,
        name: "packet_load",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: PACKET_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketStore,
        name: "packet_store",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: PACKET_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketResizeHead,
        name: "packet_resize_head",
        parameters: &[I32],
        result: I32,
        hooks: PACKET_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketResizeTail,
        name: "packet_resize_tail",
        parameters: &[I32],
        result: I32,
        hooks: PACKET_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketSend,
        name: "packet_send",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: PACKET_HOOKS,
        need: Some(Need::Send),
    },
    HostFunctionSpec {
        function: HostFunction::Event,
        name: "event",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: SENDING_HOOKS,
        need: Some(Need::Events),
    },
    HostFunctionSpec {
        function: HostFunction::ParamLoad,
        name: "param_load",
        parameters: &[I32, I32, I32, I32],
        result: I32,
        hooks: SETUP_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PortFind,
        name: "port_find",
        parameters: &[I32, I32],
        result: I32,
        hooks: SETUP_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::NowMs,
        name: "now_ms",
        parameters: &[],
        result: I64,
        hooks: SENDING_HOOKS,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::MessageSend,
        name: "message_send",
        parameters: &[I32, I32],
        result: I32,
        hooks: SENDING_HOOKS,
        need: Some(Need::Messages),
    },
    HostFunctionSpec {
        function: HostFunction::StateWrite,
        name: "state_write",
        parameters: &[I32, I32],
        result: I32,
        hooks: &[Hook::StateOut],
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::StateRead,
        name: "state_read",
        parameters: &[I32, I32],
        result: I32,
        hooks: &[Hook::StateIn],
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::QueueWatch,
        name: "queue_watch",
        parameters: &[I32, I32],
        result: I32,
        hooks: SETUP_HOOKS,
        need: Some(Need::Queues),
    },
];

/// Every hook of version 1, in the order of [`Hook`].
pub const HOOKS: &[HookSpec] = &[
    hook(Hook::OnStart, "on_start", &[], Some(I32)),
    hook(Hook::OnPacket, "on_packet", &[], Some(I32)),
    hook(Hook::OnTimer, "on_timer", &[], None),
    hook(Hook::OnMessage, "on_message", &[I32], Some(I32)),
    HookSpec { any_type: true, ..hook(Hook::OnMemoryLow, "on_memory_low", &[I32, I32], None) },
    hook(Hook::StateOut, "state_out", &[], Some(I32)),
    hook(Hook::StateIn, "state_in", &[I32], Some(I32)),
    HookSpec { any_type: true, ..hook(Hook::OnQueue, "on_queue", &[I32, I32], None) },
];

const fn hook(
    hook: Hook,
    name: &'static str,
    parameters: &'static [ValueType],
    result: Option<ValueType>,
) -> HookSpec {
    HookSpec { hook, name, signature: (parameters, result), any_type: false }
}

impl Hook {
    /// Returns the export name of this hook.
    #[must_use]
    pub const fn name(self) -> &'static str {
        // The table is in the order of the enum; a test compares the two.
        HOOKS[self as usize].name
    }
}

impl Need {
    /// Every need, in the order of the enum.
    pub const ALL: &'static [Self] = &[Self::Send, Self::Events, Self::Messages, Self::Queues];

    /// Returns the word in the manifest.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Events => "events",
            Self::Messages => "messages",
            Self::Queues => "queues",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}

/// Formats a signature: `(i32, i32) -> i32`.
pub(crate) fn signature_text(parameters: &[ValueType], result: Option<ValueType>) -> String {
    let list: Vec<_> = parameters.iter().map(ToString::to_string).collect();
    match result {
        Some(result) => format!("({}) -> {result}", list.join(", ")),
        None => format!("({})", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_in_the_order_of_their_enums() {
        for (index, spec) in HOST_FUNCTIONS.iter().enumerate() {
            assert_eq!(spec.function as usize, index, "{}", spec.name);
            assert_eq!(spec.function.spec(), spec);
        }
        for (index, spec) in HOOKS.iter().enumerate() {
            assert_eq!(spec.hook as usize, index, "{}", spec.name);
            assert_eq!(spec.hook.name(), spec.name);
        }
    }
}
