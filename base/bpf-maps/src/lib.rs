//! Keys and values shared with the kernel: the Rust half of `levels/bpf/c/tam_maps.h`.
//!
//! The header explains each field and draws the layouts; this file repeats
//! them for Rust. `levels/bpf` compares every size and offset with what clang
//! makes of the header, so that the two cannot drift apart.

#![forbid(unsafe_code)]

mod ask;
mod capture;
mod hash;
mod service;
mod stack;

use bytemuck::{Pod, Zeroable};

pub use ask::{
    ASK_ARRIVE, ASK_EGRESS, ASK_NOTE, Answer, CHANGED_DESTINATION, CHANGED_SOURCE, ETHERTYPE_ASKED,
    End, Request,
};
pub use capture::{
    CAPTURED_NO_PORT, CAPTURED_NONE, Captured, SNAP_MAX, WAY_ARRIVED, WAY_ENDED, WAY_LEFT,
    WAY_LEFT_KERNEL, WAY_STACK_DROPPED,
};
pub use hash::key_hash;
pub use service::{
    ACCOUNTS_MAX, Account, ETHERNET_REST, FILL_MAX, FRAME_BYTES, FRAME_MEMORY, FUEL_SHIFT,
    HEAD_BYTES, HEAD_NOT, HEAD_THERE, HEAD_WANTED, HandOver, LEVEL_KERNEL, LEVEL_NIC, LEVEL_USER,
    LINES_MAX, Lane, Line, NEXT_DOWN, NOT_A_VERDICT, NOT_RUN, OVER_BUDGET, OVER_DROP, OVER_NOT,
    OVER_RAISE, PATH_DIRECT, PATH_TC, Passage, ROOM_SHARED, ROOMS_MAX, ReasonKey, Room,
    SESSION_SYSTEM, ServiceStats,
};
pub use stack::{
    MARK_ENDED, STACK_ARRIVALS, STACK_OTHER, STACK_OWN, STACK_REASONS_MAX, StackKind, StackStats,
};

/// Ports of one node: their counters and sockets are arrays.
pub const PORTS_MAX: usize = 64;
/// Receive queues of one port.
pub const QUEUES_MAX: usize = 16;
/// Rules of one node; the rule's number indexes its counters.
pub const RULES_MAX: usize = 16_384;
/// Keys of one rule set: a rule with L4 port ranges has several.
pub const RULE_ENTRIES_MAX: usize = 262_144;
/// Bits of each rule set's filter, as a power of two.
pub const FILTER_BITS: u32 = 21;
/// Flows of one set of the large cache.
pub const FLOW_WAYS: usize = 8;
/// Flows of all lists of one node.
pub const FLOWS_LISTED_MAX: usize = 1 << 20;
/// Lists that both rule sets may have: each is a mask. The first is not used.
pub const LISTS_MAX: usize = 2 * MASKS_MAX + 1;
/// Factors of the hash over keys, one for each 4 bytes of a key.
pub const HASH_KEYS: usize = 16;
/// Distinct sets of matched fields: the lookups of a cache miss.
pub const MASKS_MAX: usize = 64;
/// Masks for packets that hide something of L4: each of the others can have three.
pub const HIDDEN_MASKS_MAX: usize = 3 * MASKS_MAX;
/// All masks of one rule set, as they lie behind each other.
pub const MASKS_ALL: usize = MASKS_MAX + HIDDEN_MASKS_MAX;
/// Flow cache entries on each CPU.
pub const FLOWS_MAX: usize = 8192;
/// Prefixes of IPv4 addresses that are the machine's own.
pub const OWN_MAX: usize = 65_536;
/// Entries of one node: each has a lane.
pub const ENTRIES_MAX: usize = 16_384;
/// Entries that can be below user level, the first ones: each has counters there, and a program at
/// each level.
pub const MODULES_MAX: usize = 4096;
/// Edges out of one entry.
pub const EDGES_MAX: usize = 4;
/// Pairs of entry and drop reason that are counted apart.
pub const REASONS_MAX: usize = 4096;
/// Counters of rounds between cabled ports; a power of two.
pub const CYCLES_MAX: usize = 4096;
/// Rounds between cabled ports: for each new frame, and for each heartbeat.
pub const CYCLE_ROUNDS: u32 = 64;
/// Rounds that frames which look alike can have together.
pub const CYCLE_ROUNDS_MAX: u32 = 1 << 16;

/// Set in [`Key::vlan`] when there is a tag.
pub const VLAN_PRESENT: u16 = 0x8000;
/// [`PacketMeta::egress_vlan`] of a frame without a route that is tagged for a VLAN of which its
/// port has no device.
pub const VLAN_UNKNOWN: u16 = 0x0001;
/// [`Key::ethertype_be`] of 802.3 frames with LLC, whose ethertype field is a length.
pub const ETHERTYPE_LENGTH: u16 = 0x0004;
/// [`Key::fragment`]: a whole datagram.
pub const FRAGMENT_NONE: u8 = 0;
/// [`Key::fragment`]: the first fragment, which has the L4 header.
pub const FRAGMENT_FIRST: u8 = 1;
/// [`Key::fragment`]: a later fragment.
pub const FRAGMENT_LATER: u8 = 2;

/// What a packet is matched by (`struct tam_key`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Key {
    /// Source address; IPv4 fills the first four bytes.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Source L4 port, network byte order.
    pub source_port_be: [u8; 2],
    /// Destination L4 port, network byte order.
    pub destination_port_be: [u8; 2],
    /// Protocol after IP and its extension headers.
    pub protocol: u8,
    /// 4 or 6.
    pub ip_version: u8,
    /// [`VLAN_PRESENT`] and the outermost tag's identifier, or 0.
    pub vlan: u16,
    /// Arrival port.
    pub port: u16,
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// [`FRAGMENT_NONE`], [`FRAGMENT_FIRST`] or [`FRAGMENT_LATER`].
    pub fragment: u8,
    /// In a rule's key the index of its mask.
    pub mask: u16,
    /// What of L4 a packet does not show (`enum tam_hidden`): 1 TCP flags, 2 L4 ports and those, 3
    /// the protocol, too.
    pub hidden: u16,
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// Destination MAC address.
    pub destination_mac: [u8; 6],
    /// Ethertype behind the tags, network byte order; [`ETHERTYPE_LENGTH`] of a frame with a length there.
    pub ethertype_be: [u8; 2],
    /// Byte 13 of the TCP header, as far as a rule looks at it.
    pub tcp_flags: u8,
    /// Always 0.
    pub zero_end: u8,
}

/// Bytes of [`Key::flow`].
pub const FLOW_KEY_LENGTH: usize = 38;
/// The beginning of a [`Key`]: addresses, L4 ports, protocol, IP version.
pub type FlowKey = [u8; FLOW_KEY_LENGTH];

impl Key {
    /// What makes a packet one of an exact flow.
    #[must_use]
    pub fn flow(&self) -> FlowKey {
        let mut flow = [0; FLOW_KEY_LENGTH];
        flow.copy_from_slice(&bytemuck::bytes_of(self)[..FLOW_KEY_LENGTH]);
        flow
    }

    /// The key that has only this.
    #[must_use]
    pub fn of_flow(flow: &FlowKey) -> Self {
        let mut key = Self::default();
        bytemuck::bytes_of_mut(&mut key)[..FLOW_KEY_LENGTH].copy_from_slice(flow);
        key
    }
}

/// One set of matched fields (`struct tam_mask`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Mask {
    /// Ones where rules of this mask match.
    pub bits: Key,
    /// What the filter's hash begins with; the loader of the rules draws it.
    pub salt: u64,
    /// The best rank among its rules; 0 is best of all.
    pub rank_best: u32,
    /// `REST_*`: which words of the bits are not all zero; [`Mask::rest_of`].
    pub rest: u32,
    /// Not 0: the keys of this mask are the flows of a list, the one at this index, and all
    /// of them are `rule`'s.
    pub list: u32,
    /// `STAGE_*`.
    pub stage: u16,
    /// 1: all masks of the set are of this stage; the loader of the rules sets it.
    pub alone: u16,
    /// With `list` what its rule says.
    pub rule: Rule,
}

/// [`Mask::rest`]: of the addresses more than the first 4 bytes.
pub const REST_UPPER: u32 = 1 << 0;
/// [`Mask::rest`]: MACs, ethertype or TCP flags.
pub const REST_LINK: u32 = 1 << 1;

impl Mask {
    /// What [`Mask::rest`] is for these bits.
    #[must_use]
    pub fn rest_of(bits: &Key) -> u32 {
        let words: [u64; 8] = bytemuck::cast(*bits);
        let flag = |some: u64, flag| if some == 0 { 0 } else { flag };
        flag(words[1] | words[3], REST_UPPER) | flag(words[6] | words[7], REST_LINK)
    }
}

/// `enum tam_action`: plain forwarding, the rule only counts.
pub const ACTION_FORWARD: u8 = 0;
/// `enum tam_action`: drop.
pub const ACTION_DROP: u8 = 1;
/// `enum tam_action`: to the cell's socket.
pub const ACTION_USER: u8 = 2;
/// `enum tam_action`: to where the lane of the entry is.
pub const ACTION_SERVICE: u8 = 3;
/// `enum tam_action`: drop, since the service is down and its failure policy is closed.
pub const ACTION_DOWN: u8 = 4;
/// [`Rule::action`]: out by the port whose number is in [`Rule::entry`], without a module.
pub const ACTION_OUT: u8 = 5;

/// [`Rule::action`]: from a client, to a listener here whose port is in [`Rule::entry`].
pub const ACTION_INTERCEPT: u8 = 6;
/// [`Rule::action`]: the same back from the server, if such a connection is there.
pub const ACTION_INTERCEPT_BACK: u8 = 7;
/// [`Rule::action`]: as [`ACTION_INTERCEPT`], of a service whose failure policy is closed: what the
/// listener cannot have is dropped.
pub const ACTION_INTERCEPT_CLOSED: u8 = 8;

/// `enum tam_stage`: infrastructure, before the principals.
pub const STAGE_IN: u16 = 0;
/// `enum tam_stage`: one principal's.
pub const STAGE_SERVICE: u16 = 1;
/// `enum tam_stage`: infrastructure, behind them.
pub const STAGE_OUT: u16 = 2;
/// Stages that a packet goes through (`TAM_STAGES`).
pub const STAGES: usize = 3;

/// What a rule says to packets that come to it from the stage before (`struct tam_rule_fact`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct RuleFact {
    /// The session that pays.
    pub session: u16,
    /// The service's number in the cell.
    pub entry: u16,
    /// `ACTION_*`; [`ACTION_FORWARD`] also when there is no such rule.
    pub action: u8,
    /// Always 0.
    pub zero: [u8; 3],
}

/// [`PacketMeta::egress_port`]: the next hop is the IPv4 source, address and port, with which the
/// packet came to a module below user level.
pub const ORIGIN_BELOW: u16 = 0xfffe;
/// [`PacketMeta::rule`], [`PacketMeta::then`]: none.
pub const RULE_NONE: u16 = 0xffff;

/// What a rule says (`struct tam_rule`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Rule {
    /// Position among all rules, best first: unique.
    pub rank: u32,
    /// The rule's number.
    pub rule: u32,
    /// The session that pays.
    pub session: u16,
    /// The service's number in the cell.
    pub entry: u16,
    /// `ACTION_*`.
    pub action: u8,
    /// Always 0.
    pub zero: [u8; 3],
}

/// Packets and bytes of a rule, on one CPU (`struct tam_rule_stats`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RuleStats {
    /// Packets that the rule was the best match of.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Where a packet ended in the front door: name and meaning, in the order of `enum tam_outcome`.
pub const OUTCOMES: [(&str, &str); OUTCOME_COUNT] = [
    ("forwarded", "redirected to an egress port"),
    ("bridged", "sent out by the other end of the port's bridge"),
    ("cut_through", "sent out by the port that its rule names"),
    ("to_user", "redirected to the cell's socket"),
    ("to_nic", "given to a module in the driver: see the service's counters"),
    (
        "to_kernel_module",
        "given to a module in the kernel's stack (tc): see the service's counters",
    ),
    ("intercepted", "to a socket here, of a stream service"),
    ("kernel_not_ip", "to the kernel: not IP (ARP, LLDP, STP)"),
    ("kernel_not_for_us", "to the kernel: the destination MAC is not this port's"),
    ("kernel_link_local", "to the kernel: IPv6 neighbour discovery or link-local addresses"),
    ("kernel_local", "to the kernel: the route ends here, or there is none"),
    ("kernel_neighbour", "to the kernel: the neighbour is not resolved yet"),
    ("kernel_ttl", "to the kernel: TTL or hop limit ran out"),
    ("kernel_too_big", "to the kernel: does not fit the egress MTU"),
    ("kernel_options", "to the kernel: IPv4 options or a hop-by-hop header"),
    ("kernel_egress", "to the kernel: the egress device is no port of this node"),
    ("kernel_slow", "to the kernel: it would add something, see the port's slow reasons"),
    ("kernel_source", "to the kernel: it must judge the source address"),
    ("kernel_vlan_depth", "to the kernel: more VLAN tags than the front door handles"),
    ("kernel_no_socket", "to the kernel: the rule's cell is not there, forwarded plainly"),
    (
        "kernel_partial",
        "to the kernel: the sender left the checksum to its device (switch its TX checksum offload off)",
    ),
    ("kernel_other", "to the kernel: a FIB answer that only the kernel can act on"),
    ("drop_truncated", "dropped: a header is cut off by the end of the frame"),
    ("drop_ip_version", "dropped: the IP version is not the ethertype's"),
    ("drop_header_length", "dropped: IPv4 header length below 20"),
    ("drop_total_length", "dropped: IP length beyond the frame or below its header"),
    ("drop_checksum", "dropped: wrong IPv4 header checksum"),
    (
        "drop_l4_hidden",
        "dropped: a rule that it may belong to looks at L4 fields that it does not show",
    ),
    ("drop_rule", "dropped: a rule says so"),
    ("drop_adjust", "dropped: no room to change the frame's head"),
    ("drop_egress_gone", "dropped: the egress port left while the packet was on its way"),
    (
        "drop_lane",
        "dropped: another CPU did not leave the service's lane in time, or the lane was held for the service to come down under more load than user level carries",
    ),
    ("drop_too_long", "dropped: longer than the port takes by which it was to leave as it was"),
    ("drop_down", "dropped: its service is down, and its failure policy is closed"),
    ("drop_queue", "dropped: its session's queue had no room for it"),
    (
        "drop_share",
        "dropped: nothing was left of its session's share of the port that its rule names",
    ),
    ("drop_cycle", "dropped: it went round and round between cabled ports"),
    ("drop_own_source", "dropped: its source is an IPv4 address of the router itself"),
    (
        "drop_vlan_depth",
        "dropped: rules cannot be asked about what lies behind more than two VLAN tags",
    ),
];

/// Outcomes that the front door counts (`TAM_OUTCOMES`).
pub const OUTCOME_COUNT: usize = 39;

/// Counters of one port, on one CPU (`struct tam_port_stats`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct PortStats {
    /// Packets that came in.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets by outcome, in the order of [`OUTCOMES`]; their sum is `rx_packets`.
    pub outcomes: [u64; OUTCOME_COUNT],
    /// Packets whose rule and route came from the flow cache.
    pub cache_hits: u64,
}

impl Default for PortStats {
    fn default() -> Self {
        Self::zeroed()
    }
}

/// [`PortConfig::slow`]: netfilter hooks are registered.
pub const SLOW_NETFILTER: u32 = 1 << 0;
/// [`PortConfig::slow`]: IPsec policies exist.
pub const SLOW_IPSEC: u32 = 1 << 1;
/// [`PortConfig::slow`]: routing rules beside the standard ones.
pub const SLOW_RULES: u32 = 1 << 2;
/// [`PortConfig::slow`]: a queueing discipline that is not the default.
pub const SLOW_QDISC: u32 = 1 << 3;
/// [`PortConfig::slow`]: `fast_path = "never"`.
pub const SLOW_OPERATOR: u32 = 1 << 4;
/// [`PortConfig::slow`]: the device takes no redirected frames; counts on the way out only.
pub const SLOW_NO_REDIRECT: u32 = 1 << 5;

/// [`PortConfig::flags`]: its packets are IP packets without an Ethernet header.
pub const PORT_RAW: u8 = 1 << 0;
/// [`PortConfig::flags`]: XDP in the stack; tc may see its packets without their Ethernet header.
pub const PORT_GENERIC: u8 = 1 << 1;
/// [`PortConfig::flags`]: what leaves by it can come in by a port of the same node.
pub const PORT_CABLED: u8 = 1 << 2;

/// [`PortConfig::flags`]: its front door is at tc, behind the kernel's receive path.
pub const PORT_TC: u8 = 1 << 4;

/// [`PortConfig::flags`]: sessions have shares of its rate.
pub const PORT_SHARES: u8 = 1 << 3;

/// [`PortConfig::flags`]: frames come in by a packet socket of the cell; the kernel routes to it.
pub const PORT_PACKET: u8 = 1 << 5;
/// [`PortConfig::flags`]: IPv4 packets from this machine's own addresses may come in by it.
pub const PORT_ACCEPTS_OWN: u8 = 1 << 6;
/// [`PortConfig::flags`]: the kernel forwards no IPv6 packets that come in by it.
pub const PORT_NO_V6: u8 = 1 << 7;

/// [`PortConfig::rpf`]: no check of the way back.
pub const RPF_NONE: u8 = 0;
/// [`PortConfig::rpf`]: the way back leads through the arrival port.
pub const RPF_STRICT: u8 = 1;
/// [`PortConfig::rpf`]: there is a way back.
pub const RPF_LOOSE: u8 = 2;

/// One port (`struct tam_port_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PortConfig {
    /// The device, 0 when there is no such port.
    pub ifindex: u32,
    /// `SLOW_*`; 0 lets plain forwarding take the fast path.
    pub slow: u32,
    /// The device's address.
    pub mac: [u8; 6],
    /// `RPF_*`.
    pub rpf: u8,
    /// `PORT_*`.
    pub flags: u8,
    /// L3 MTU of the device, in bytes.
    pub mtu: u32,
    /// 1 + the number of the port at the other end of its bridge, or 0.
    pub bridge: u32,
}

/// What the daemon tells the front door (`struct tam_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Config {
    /// Generation of rules and routes; bit 0 is the index of the active rule set, the upper
    /// bits say what the rules look at ([`GENERATION_FLAGS`], [`GENERATION_ETHERTYPES`]).
    pub generation: u64,
    /// Jiffies of the daemon's last heartbeat.
    pub routes_heard: u64,
    /// Masks of each rule set.
    pub mask_count: [u32; 2],
    /// Masks of each rule set for packets that hide something.
    pub hidden_count: [u32; 2],
    /// Nanoseconds of a jiffy.
    pub tick_ns: u32,
    /// Not 0: sessions have shares of some port's rate.
    pub shares: u32,
    /// The jiffy at which the first heartbeat came.
    pub clock_jiffies: u64,
    /// The coarse clock at that jiffy, in milliseconds.
    pub clock_ms: u64,
    /// The TAP device by which packets go from tc to the cell, 0 when there is none.
    pub up_ifindex: u32,
    /// The device by which the cell gives packets to the kernel, or 0.
    pub kernel_ifindex: u32,
    /// Factors of the hash over keys, drawn when the node starts.
    pub hash_keys: [u64; HASH_KEYS],
}

/// Where in [`Config::generation`] the TCP flags begin that rules look at.
pub const GENERATION_FLAGS: u32 = 56;
/// [`Config::generation`]: a rule names an ethertype.
pub const GENERATION_ETHERTYPES: u64 = 1 << 55;

/// The upper bits of [`Config::generation`] for rules with these masks.
#[must_use]
pub fn looked_at(masks: &[Mask]) -> u64 {
    masks.iter().fold(0, |bits, mask| {
        let ethertypes = if mask.bits.ethertype_be == [0; 2] { 0 } else { GENERATION_ETHERTYPES };
        bits | u64::from(mask.bits.tcp_flags) << GENERATION_FLAGS | ethertypes
    })
}

/// The part of [`Config::generation`] that counts.
#[must_use]
pub const fn generation_number(generation: u64) -> u64 {
    generation & (GENERATION_ETHERTYPES - 1)
}

/// [`VlanKey::vlan`] of the way from an L3 device to its port.
pub const VLAN_UP: u32 = u32::MAX;

/// A VLAN device above a port, keyed both ways (`struct tam_vlan_key`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct VlanKey {
    /// The port's device, or the VLAN device with [`VLAN_UP`].
    pub ifindex: u32,
    /// VLAN identifier, or [`VLAN_UP`].
    pub vlan: u32,
}

/// What [`VlanKey`] leads to (`struct tam_vlan`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Vlan {
    /// The device at the other end.
    pub ifindex: u32,
    /// VLAN identifier.
    pub vlan: u16,
    /// Reverse path filter of what comes in by the VLAN device, one of `RPF_*`.
    pub rpf: u8,
    /// [`PORT_NO_V6`] and [`PORT_ACCEPTS_OWN`].
    pub flags: u8,
}

/// IPv4 addresses that the kernel delivers to this machine (`struct tam_own_prefix`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
pub struct OwnPrefix {
    /// Bits that count.
    pub length: u32,
    /// The address, in network byte order.
    pub address_be: [u8; 4],
}

/// What travels with a packet to the cell (`struct tam_meta`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PacketMeta {
    /// The rule whose service has it, or [`RULE_NONE`].
    pub rule: u16,
    /// The rules of the stages behind that one, or [`RULE_NONE`].
    pub then: [u16; 2],
    /// The service's number in the cell.
    pub entry: u16,
    /// The egress port's number, with [`META_ROUTED`]; or [`ORIGIN_BELOW`].
    pub egress_port: u16,
    /// [`VLAN_PRESENT`] and an identifier, or 0; without a route [`VLAN_UNKNOWN`] or 0.
    pub egress_vlan: u16,
    /// MAC of the next hop.
    pub next_hop: [u8; 6],
    /// The port that it came in by.
    pub arrival_port: u16,
    /// Where the IP header begins.
    pub l3_offset: u16,
    /// Where the L4 header begins, or 0xffff.
    pub l4_offset: u16,
    /// Equal for both directions of a flow.
    pub flow_hash: u32,
    /// `META_*`, IP version in bits 8..15, protocol in bits 16..23, epoch of the lane in 24..31.
    pub flags: u32,
}

/// [`PacketMeta::flags`]: egress and next hop are resolved; else the kernel routes it.
pub const META_ROUTED: u32 = 1 << 0;
/// [`PacketMeta::flags`]: an IP fragment.
pub const META_FRAGMENT: u32 = 1 << 1;
/// [`PacketMeta::flags`]: a fragment that is not the first.
pub const META_LATER_FRAGMENT: u32 = 1 << 2;
/// [`PacketMeta::flags`], from XDP to tc only: the packet is a lane's.
pub const META_TO_TC: u32 = 1 << 3;
/// [`PacketMeta::flags`], from XDP to tc only: it cannot be run there.
pub const META_UP: u32 = 1 << 4;
/// [`PacketMeta::flags`], from XDP to tc only: it is to be marked for the listener whose port
/// [`PacketMeta::entry`] is.
pub const META_INTERCEPT: u32 = META_UP | 1 << 7;
/// Marks of packets for listeners here: this, and the listener's port in the lower half.
pub const MARK_LISTENER: u32 = 0x5441 << 16;
/// [`PacketMeta::flags`]: the mark of the module before lies in front of the metadata.
pub const META_MARK: u32 = 1 << 5;
/// [`PacketMeta::flags`]: `egress_port` is the other end of a bridge; the packet leaves by it as it is.
pub const META_BRIDGED: u32 = 1 << 6;
/// [`PacketMeta::flags`], in the cell only: not a frame, but the payload of an active packet.
pub const META_DATA: u32 = 1 << 7;
/// [`PacketMeta::flags`], on the way to the cell only: it has room in its session's queue.
pub const META_COUNTED: u32 = 1 << 3;
/// Where in [`PacketMeta::flags`] the last bit of the epoch is in which that is counted.
pub const META_COUNTED_SHIFT: u32 = 4;
/// [`PacketMeta::flags`], from tc to the cell only: it only has to leave by `egress_port` when it is
/// its session's turn; `flow_hash` is the number of the [`Line`] that counts it, `then` the verdict,
/// `arrival_port` the session that pays.
pub const META_LEAVES: u32 = 1 << 7;
/// [`PacketMeta::flags`], with [`META_LEAVES`]: the kernel is to route it then.
pub const META_BY_KERNEL: u32 = 1 << 0;
/// Where in [`PacketMeta::flags`] the lane's epoch begins ([`ACTION_SERVICE`] only).
pub const META_EPOCH_SHIFT: u32 = 24;

impl PacketMeta {
    /// The epoch of its lane that the packet carries ([`ACTION_SERVICE`] only).
    #[must_use]
    pub const fn epoch(&self) -> u8 {
        (self.flags >> META_EPOCH_SHIFT) as u8
    }

    /// In which epoch of rooms it was sent up, if it was counted there.
    #[must_use]
    pub const fn room_epoch(&self) -> usize {
        (self.flags >> META_COUNTED_SHIFT & 1) as usize
    }

    /// In which epoch's sum it has room in its session's queue; none when nobody took room for it.
    #[must_use]
    pub const fn counted_in(&self) -> Option<usize> {
        match self.flags & META_COUNTED {
            0 => None,
            _ => Some(self.room_epoch()),
        }
    }
}

const _: () = assert!(size_of::<Key>() == 4 * HASH_KEYS);
const _: () = assert!(size_of::<Mask>() == 104);
const _: () = assert!(size_of::<Rule>() == 16);
const _: () = assert!(size_of::<PacketMeta>() == 32, "older kernels take no more metadata");
const _: () = assert!(FLOWS_MAX.is_power_of_two());
const _: () = assert!(MODULES_MAX.is_power_of_two(), "an entry's hand-over is found by a mask");
const _: () = assert!(MODULES_MAX <= ENTRIES_MAX);
