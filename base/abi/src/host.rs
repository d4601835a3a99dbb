//! The host functions and hooks of the packet ABI, version 1, in one table each.
//!
//! [`check`](crate::check) compares a module's imports and exports with these
//! tables, the engine links by them. What each function does is in
//! docs/reference/module-abi.md; nothing here runs one.

use core::fmt;

/// Frames that a module may send for one packet with `packet_send`: a reply, a
/// copy and their fragments, and no amplifier.
pub const SENDS_PER_PACKET_MAX: usize = 4;
/// Shortest frame that `packet_send` takes, in bytes: an Ethernet header.
pub const FRAME_LENGTH_MIN: usize = 14;
/// Longest frame that `packet_send` takes, in bytes: a packet of 9,000 bytes with an Ethernet
/// header and a VLAN tag.
pub const FRAME_LENGTH_MAX: usize = 9_018;
/// Longest data of one event, or message to another module, in bytes: a notice, not a stream.
pub const EVENT_LENGTH_MAX: usize = 256;
/// Events and messages that one call may leave: a notice for each reason.
pub const EVENTS_PER_CALL_MAX: usize = 4;
/// Most state that an instance hands over, in bytes: all of the largest memory.
pub const STATE_LENGTH_MAX: usize = crate::layout::MEMORY_PAGES_MAX as usize * 65_536;
/// Most bytes of one `state_write` or `state_read`: copied within some microseconds, so that a
/// call that takes too long is stopped in between.
pub const STATE_CHUNK_MAX: usize = 65_536;
/// Most that `queue_watch` takes as a part of the queue: a queue is never longer.
pub const QUEUE_PERCENT_MAX: u32 = 100;
/// First argument of `on_queue`: no more waits than the lower threshold.
pub const QUEUE_SHORT: u32 = 0;
/// The same: more waits than the higher threshold.
pub const QUEUE_LONG: u32 = 1;
/// The same: there was no room for a packet, whose head lies where the window lies.
pub const QUEUE_DROPPED: u32 = 2;
/// Longest head of a packet that was dropped, in bytes: Ethernet with a tag, IPv6 and UDP.
pub const QUEUE_HEAD_MAX: usize = 66;
/// Longest control message, in bytes: it lies where the window lies.
pub const MESSAGE_LENGTH_MAX: usize = crate::layout::WINDOW_LENGTH_MAX as usize;
/// An exported global of this prefix is a counter; the rest is its name.
pub const COUNTER_PREFIX: &str = "tam_counter_";

/// A number type that crosses the border between module and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// 32 bits; also addresses and lengths.
    I32,
    /// 64 bits.
    I64,
}

/// A function that a module may import from [`IMPORT_MODULE`](crate::layout::IMPORT_MODULE).
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
    /// Sends a frame out of a port, beside the packet.
    PacketSend,
    /// Tells the node's event stream something.
    Event,
    /// Reads a parameter's value.
    ParamLoad,
    /// Finds a port's number by its name.
    PortFind,
    /// The node's coarse time.
    NowMs,
    /// Sends a control message to the modules before this one in the graph.
    MessageSend,
    /// Hands some of the state over to the instance that comes after this one.
    StateWrite,
    /// Takes some of the state of the instance that was here before.
    StateRead,
    /// Has the module told of its session's queue: when it gets long or short, and what is dropped.
    QueueWatch,
}

impl HostFunction {
    /// What the ABI says about this function.
    #[must_use]
    pub const fn spec(self) -> &'static HostFunctionSpec {
        // The table is in the order of the enum; a test compares the two.
        &HOST_FUNCTIONS[self as usize]
    }
}

/// A function that a node calls in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Once, after the memory is made and before the first packet.
    OnStart,
    /// Once for each packet; the only hook that a module must export.
    OnPacket,
    /// Every `timer_ms`.
    OnTimer,
    /// For each control message.
    OnMessage,
    /// When its session has little memory left: once, until there was enough again.
    OnMemoryLow,
    /// When another instance takes this one's place: hands over what is to be kept.
    StateOut,
    /// In the instance that comes, after `on_start`: takes what was handed over.
    StateIn,
    /// For what happens to a queue that the module watches.
    OnQueue,
}

/// What a module must declare before it may import a function.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Frames of its own making: `packet_send`.
    Send,
    /// The node's event stream: `event`.
    Events,
    /// Control messages to the modules before it in the graph: `message_send`.
    Messages,
    /// What happens to its session's queue, and heads of packets dropped there: `queue_watch`.
    Queues,
}

/// One line of the table of host functions.
#[derive(Debug, PartialEq, Eq)]
pub struct HostFunctionSpec {
    /// Which function.
    pub function: HostFunction,
    /// Its import name.
    pub name: &'static str,
    /// The types of its parameters.
    pub parameters: &'static [ValueType],
    /// The type of its one result.
    pub result: ValueType,
    /// The hooks in which it does its work; elsewhere it returns
    /// [`WRONG_HOOK`](crate::layout::host_error::WRONG_HOOK).
    pub hooks: &'static [Hook],
    /// What the manifest's `needs` must list.
    pub need: Option<Need>,
}

/// One line of the table of hooks.
#[derive(Debug, PartialEq, Eq)]
pub struct HookSpec {
    /// Which hook.
    pub hook: Hook,
    /// Its export name.
    pub name: &'static str,
    /// The types of its parameters and its result.
    pub signature: (&'static [ValueType], Option<ValueType>),
    /// One of another type is no error, and is not called: the name was there before its type.
    pub any_type: bool,
}

use ValueType::{I32, I64};

/// Hooks in which a module may speak.
const CALLED: &[Hook] = &[
    Hook::OnStart,
    Hook::OnPacket,
    Hook::OnTimer,
    Hook::OnMessage,
    Hook::OnMemoryLow,
    Hook::OnQueue,
];
/// Hooks in which there is a packet.
const WITH_PACKET: &[Hook] = &[Hook::OnPacket];
/// Hooks that may take their time: names are looked up once, not per packet.
const PREPARING: &[Hook] = &[Hook::OnStart, Hook::OnMessage];

/// Every host function of version 1, in the order of [`HostFunction`].
pub const HOST_FUNCTIONS: &[HostFunctionSpec] = &[
    HostFunctionSpec {
        function: HostFunction::PacketLoad,
        name: "packet_load",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: WITH_PACKET,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketStore,
        name: "packet_store",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: WITH_PACKET,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketResizeHead,
        name: "packet_resize_head",
        parameters: &[I32],
        result: I32,
        hooks: WITH_PACKET,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketResizeTail,
        name: "packet_resize_tail",
        parameters: &[I32],
        result: I32,
        hooks: WITH_PACKET,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PacketSend,
        name: "packet_send",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: WITH_PACKET,
        need: Some(Need::Send),
    },
    HostFunctionSpec {
        function: HostFunction::Event,
        name: "event",
        parameters: &[I32, I32, I32],
        result: I32,
        hooks: CALLED,
        need: Some(Need::Events),
    },
    HostFunctionSpec {
        function: HostFunction::ParamLoad,
        name: "param_load",
        parameters: &[I32, I32, I32, I32],
        result: I32,
        hooks: PREPARING,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::PortFind,
        name: "port_find",
        parameters: &[I32, I32],
        result: I32,
        hooks: PREPARING,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::NowMs,
        name: "now_ms",
        parameters: &[],
        result: I64,
        hooks: CALLED,
        need: None,
    },
    HostFunctionSpec {
        function: HostFunction::MessageSend,
        name: "message_send",
        parameters: &[I32, I32],
        result: I32,
        hooks: CALLED,
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
        hooks: PREPARING,
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
    /// The name under which a module exports this hook.
    #[must_use]
    pub const fn name(self) -> &'static str {
        // The table is in the order of the enum; a test compares the two.
        HOOKS[self as usize].name
    }
}

impl Need {
    /// Every need, in the order of the enum.
    pub const ALL: &'static [Self] = &[Self::Send, Self::Events, Self::Messages, Self::Queues];

    /// The word in the manifest.
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

/// A signature as people read it: `(i32, i32) -> i32`.
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
