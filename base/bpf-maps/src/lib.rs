//! Keys and values shared with the kernel: the Rust half of `levels/bpf/c/tam_maps.h`.
//!
//! The header explains each field and draws the layouts; this file repeats them for Rust.
//! `levels/bpf` compares every size and offset with those that clang computes from the header, so
//! that the two cannot drift apart.

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
    LINES_MAX, Lane, NEXT_DOWN, NOT_A_VERDICT, NOT_RUN, OVER_BUDGET, OVER_DROP, OVER_NOT,
    OVER_RAISE, PATH_DIRECT, PATH_TC, Passage, PortShare, QueueCredits, ROOM_SHARED, ROOMS_MAX,
    ReasonKey, SESSION_SYSTEM, ServiceStats,
};
pub use stack::{
    MARK_ENDED, STACK_ARRIVALS, STACK_OTHER, STACK_OWN, STACK_REASONS_MAX, StackKind, StackStats,
};

/// Most ports of one node: their counters and sockets are arrays.
pub const PORTS_MAX: usize = 64;
/// Most receive queues of one port.
pub const QUEUES_MAX: usize = 16;
/// Most rules of one node; the rule's number indexes its counters.
pub const RULES_MAX: usize = 16_384;
/// Most keys of one rule set: a rule with L4 port ranges has several.
pub const RULE_ENTRIES_MAX: usize = 262_144;
/// Bits of each rule set's filter, as a power of two.
pub const FILTER_BITS: u32 = 21;
/// Ways of one set of the large flow cache.
pub const FLOW_WAYS: usize = 8;
/// Most flows of all flow lists of one node.
pub const FLOWS_LISTED_MAX: usize = 1 << 20;
/// Most flow lists of both rule sets: each is a mask. Index 0 is not used.
pub const LISTS_MAX: usize = 2 * MASKS_MAX + 1;
/// Factors of the hash over keys, one for each 4 bytes of a key.
pub const HASH_KEYS: usize = 16;
/// Most distinct sets of matched fields: the lookups of a cache miss.
pub const MASKS_MAX: usize = 64;
/// Most masks for packets that hide something of L4: each of the others can have three.
pub const HIDDEN_MASKS_MAX: usize = 3 * MASKS_MAX;
/// Most masks of one rule set, as they lie behind each other.
pub const MASKS_ALL: usize = MASKS_MAX + HIDDEN_MASKS_MAX;
/// Flow cache entries on each CPU.
pub const FLOWS_MAX: usize = 8192;
/// Most prefixes of IPv4 addresses that are the machine's own.
pub const OWN_MAX: usize = 65_536;
/// Most entries of one node: each has a lane.
pub const ENTRIES_MAX: usize = 16_384;
/// Number of entries that can be below user level, the first ones: each has counters there, and a
/// program at each level.
pub const MODULES_MAX: usize = 4096;
/// Most edges out of one entry.
pub const EDGES_MAX: usize = 4;
/// Most pairs of entry and drop reason with a counter of their own.
pub const REASONS_MAX: usize = 4096;
/// Counters of the hop budget between cabled ports (redirect cycles); a power of two.
pub const CYCLES_MAX: usize = 4096;
/// Hop budget between cabled ports: added for each new frame, and restored with each heartbeat.
pub const CYCLE_ROUNDS: u32 = 64;
/// Largest hop budget of frames with the same hash.
pub const CYCLE_ROUNDS_MAX: u32 = 1 << 16;

/// Set in [`Key::vlan`] when there is a tag.
pub const VLAN_PRESENT: u16 = 0x8000;
/// [`PacketMeta::egress_vlan`] of a frame without a route whose VLAN tag has no VLAN device on its
/// port.
pub const VLAN_UNKNOWN: u16 = 0x0001;
/// [`Key::ethertype_be`] of 802.3 frames with LLC, whose ethertype field is a length.
pub const ETHERTYPE_LENGTH: u16 = 0x0004;
/// [`Key::fragment`]: a whole datagram.
pub const FRAGMENT_NONE: u8 = 0;
/// [`Key::fragment`]: the first fragment, which has the L4 header.
pub const FRAGMENT_FIRST: u8 = 1;
/// [`Key::fragment`]: a later fragment.
pub const FRAGMENT_LATER: u8 = 2;

/// Fields that a packet is matched by (`struct tam_key`).
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
    /// Index of the mask, in a rule's key.
    pub mask: u16,
    /// L4 fields that a packet does not show (`enum tam_hidden`): 1 TCP flags, 2 also L4 ports, 3
    /// also the protocol.
    pub hidden: u16,
    /// Source MAC address.
    pub source_mac: [u8; 6],
    /// Destination MAC address.
    pub destination_mac: [u8; 6],
    /// Ethertype behind the tags, network byte order; [`ETHERTYPE_LENGTH`] of a frame with a length
    /// there.
    pub ethertype_be: [u8; 2],
    /// Byte 13 of the TCP header, masked to the flags that rules match on.
    pub tcp_flags: u8,
    /// Always 0.
    pub zero_end: u8,
}

/// Bytes of [`Key::flow`].
pub const FLOW_KEY_LENGTH: usize = 38;
/// The beginning of a [`Key`]: addresses, L4 ports, protocol, IP version.
pub type FlowKey = [u8; FLOW_KEY_LENGTH];

impl Key {
    /// Returns the fields that identify an exact flow.
    #[must_use]
    pub fn flow(&self) -> FlowKey {
        let mut flow = [0; FLOW_KEY_LENGTH];
        flow.copy_from_slice(&bytemuck::bytes_of(self)[..FLOW_KEY_LENGTH]);
        flow
    }

    /// Returns the key with only the fields of a flow.
    #[must_use]
    pub fn of_flow(flow: &FlowKey) -> Self {
        let mut key = Self::default();
        bytemuck::bytes_of_mut(&mut key)[..FLOW_KEY_LENGTH].copy_from_slice(flow);
        key
    }
}

/// Set of matched fields (`struct tam_mask`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Mask {
    /// Bits that rules of this mask match on.
    pub bits: Key,
    /// Start value of the filter's hash; the loader of the rules draws it at random.
    pub salt: u64,
    /// Best rank among its rules; 0 is the best of all.
    pub rank_best: u32,
    /// `REST_*`: groups of words of the bits that are not all zero; see [`Mask::rest_of`].
    pub rest: u32,
    /// Index of a flow list, whose flows are the keys of this mask and belong to `rule`; 0 for
    /// none.
    pub list: u32,
    /// `STAGE_*`.
    pub stage: u16,
    /// 1 when all masks of the set are of this stage; the loader of the rules sets it.
    pub alone: u16,
    /// Rule of the flow list, with `list`.
    pub rule: Rule,
}

/// [`Mask::rest`]: matches more than the first 4 bytes of an address.
pub const REST_UPPER: u32 = 1 << 0;
/// [`Mask::rest`]: matches MACs, ethertype or TCP flags.
pub const REST_LINK: u32 = 1 << 1;

impl Mask {
    /// Returns [`Mask::rest`] for these bits.
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
/// `enum tam_action`: to the level at which the lane of the entry is.
pub const ACTION_SERVICE: u8 = 3;
/// `enum tam_action`: drop, since the service is down and its failure policy is closed.
pub const ACTION_DOWN: u8 = 4;
/// [`Rule::action`]: out by the port whose number is in [`Rule::entry`], without a module.
pub const ACTION_OUT: u8 = 5;

/// [`Rule::action`]: from a client, to a local listener whose port is in [`Rule::entry`].
pub const ACTION_INTERCEPT: u8 = 6;
/// [`Rule::action`]: the opposite direction, from the server, if such a connection exists.
pub const ACTION_INTERCEPT_BACK: u8 = 7;
/// [`Rule::action`]: as [`ACTION_INTERCEPT`], of a service whose failure policy is closed: packets
/// that the listener cannot have are dropped.
pub const ACTION_INTERCEPT_CLOSED: u8 = 8;

/// `enum tam_stage`: infrastructure, before the principals.
pub const STAGE_IN: u16 = 0;
/// `enum tam_stage`: one principal's.
pub const STAGE_SERVICE: u16 = 1;
/// `enum tam_stage`: infrastructure, after the principals.
pub const STAGE_OUT: u16 = 2;
/// Stages that a packet passes (`TAM_STAGES`).
pub const STAGES: usize = 3;

/// Summary of a rule for packets that come from the stage before (`struct tam_rule_fact`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct RuleFact {
    /// Session that pays.
    pub session: u16,
    /// Number of the service's entry in the cell.
    pub entry: u16,
    /// `ACTION_*`; [`ACTION_FORWARD`] also when there is no such rule.
    pub action: u8,
    /// Always 0.
    pub zero: [u8; 3],
}

/// [`PacketMeta::egress_port`]: the next-hop field holds the IPv4 source, address and port, with
/// which the packet came to a module below user level.
pub const ORIGIN_BELOW: u16 = 0xfffe;
/// [`PacketMeta::rule`], [`PacketMeta::then`]: no rule.
pub const RULE_NONE: u16 = 0xffff;

/// Value of a rule (`struct tam_rule`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct Rule {
    /// Position among all rules, best first: unique.
    pub rank: u32,
    /// Number of the rule.
    pub rule: u32,
    /// Session that pays.
    pub session: u16,
    /// Number of the service's entry in the cell.
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
    /// Packets for which the rule was the best match.
    pub packets: u64,
    /// Bytes of `packets`.
    pub bytes: u64,
}

/// Outcomes of packets in the front door: name and meaning, in the order of `enum tam_outcome`.
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
    /// Bytes of `rx_packets`.
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
/// [`PortConfig::slow`]: the device takes no redirected frames; counts for egress only.
pub const SLOW_NO_REDIRECT: u32 = 1 << 5;

/// [`PortConfig::flags`]: its packets are IP packets without an Ethernet header.
pub const PORT_RAW: u8 = 1 << 0;
/// [`PortConfig::flags`]: XDP in the stack; tc may see its packets without their Ethernet header.
pub const PORT_GENERIC: u8 = 1 << 1;
/// [`PortConfig::flags`]: frames that leave by it can arrive at a port of the same node.
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

/// [`PortConfig::rpf`]: no reverse path check.
pub const RPF_NONE: u8 = 0;
/// [`PortConfig::rpf`]: the route to the source must lead through the arrival port.
pub const RPF_STRICT: u8 = 1;
/// [`PortConfig::rpf`]: a route to the source must exist.
pub const RPF_LOOSE: u8 = 2;

/// Configuration of a port (`struct tam_port_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PortConfig {
    /// Interface index of the device, 0 when there is no such port.
    pub ifindex: u32,
    /// `SLOW_*`; 0 lets plain forwarding take the fast path.
    pub slow: u32,
    /// MAC address of the device.
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

/// State that the daemon gives the front door (`struct tam_config`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Config {
    /// Generation of rules and routes; bit 0 is the index of the active rule set, the upper bits
    /// name the fields that rules match on ([`GENERATION_FLAGS`], [`GENERATION_ETHERTYPES`]).
    pub generation: u64,
    /// Jiffies of the daemon's last heartbeat.
    pub routes_heard: u64,
    /// Number of masks of each rule set.
    pub mask_count: [u32; 2],
    /// Number of masks of each rule set for packets that hide something.
    pub hidden_count: [u32; 2],
    /// Length of a jiffy in nanoseconds.
    pub tick_ns: u32,
    /// Not 0: sessions have shares of some port's rate.
    pub shares: u32,
    /// Jiffy of the first heartbeat.
    pub clock_jiffies: u64,
    /// Coarse clock at that jiffy, in milliseconds.
    pub clock_ms: u64,
    /// Interface index of the TAP device by which packets go from tc to the cell, 0 when there is
    /// none.
    pub up_ifindex: u32,
    /// Interface index of the device by which the cell gives packets to the kernel, or 0.
    pub kernel_ifindex: u32,
    /// Factors of the hash over keys, drawn when the node starts.
    pub hash_keys: [u64; HASH_KEYS],
}

/// Position in [`Config::generation`] of the TCP flags that rules match on.
pub const GENERATION_FLAGS: u32 = 56;
/// [`Config::generation`]: a rule names an ethertype.
pub const GENERATION_ETHERTYPES: u64 = 1 << 55;

/// Returns the upper bits of [`Config::generation`] for rules with these masks.
#[must_use]
pub fn looked_at(masks: &[Mask]) -> u64 {
    masks.iter().fold(0, |bits, mask| {
        let ethertypes = if mask.bits.ethertype_be == [0; 2] { 0 } else { GENERATION_ETHERTYPES };
        bits | u64::from(mask.bits.tcp_flags) << GENERATION_FLAGS | ethertypes
    })
}

/// Returns the counting part of [`Config::generation`].
#[must_use]
pub const fn generation_number(generation: u64) -> u64 {
    generation & (GENERATION_ETHERTYPES - 1)
}

/// [`VlanKey::vlan`] of the direction from an L3 device to its port.
pub const VLAN_UP: u32 = u32::MAX;

/// VLAN device on top of a port, keyed in both directions (`struct tam_vlan_key`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct VlanKey {
    /// Interface index of the port's device, or of the VLAN device with [`VLAN_UP`].
    pub ifindex: u32,
    /// VLAN identifier, or [`VLAN_UP`].
    pub vlan: u32,
}

/// Value of a [`VlanKey`] (`struct tam_vlan`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Vlan {
    /// Interface index of the device at the other end.
    pub ifindex: u32,
    /// VLAN identifier.
    pub vlan: u16,
    /// Reverse path filter of packets that arrive by the VLAN device, one of `RPF_*`.
    pub rpf: u8,
    /// [`PORT_NO_V6`] and [`PORT_ACCEPTS_OWN`].
    pub flags: u8,
}

/// IPv4 addresses that the kernel delivers to this machine (`struct tam_own_prefix`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
pub struct OwnPrefix {
    /// Prefix length in bits.
    pub length: u32,
    /// Address, in network byte order.
    pub address_be: [u8; 4],
}

/// Metadata that travels with a packet to the cell (`struct tam_meta`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PacketMeta {
    /// Rule whose service gets the packet, or [`RULE_NONE`].
    pub rule: u16,
    /// Rules of the later stages, or [`RULE_NONE`].
    pub then: [u16; 2],
    /// Number of the service's entry in the cell.
    pub entry: u16,
    /// Number of the egress port, with [`META_ROUTED`]; or [`ORIGIN_BELOW`].
    pub egress_port: u16,
    /// [`VLAN_PRESENT`] and an identifier, or 0; without a route [`VLAN_UNKNOWN`] or 0.
    pub egress_vlan: u16,
    /// MAC of the next hop.
    pub next_hop: [u8; 6],
    /// Number of the arrival port.
    pub arrival_port: u16,
    /// Offset of the IP header in bytes.
    pub l3_offset: u16,
    /// Offset of the L4 header in bytes, or 0xffff.
    pub l4_offset: u16,
    /// Hash of the flow, equal for both directions.
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
/// [`PacketMeta::flags`], from XDP to tc only: the packet belongs to a lane.
pub const META_TO_TC: u32 = 1 << 3;
/// [`PacketMeta::flags`], from XDP to tc only: the module cannot run on it there.
pub const META_UP: u32 = 1 << 4;
/// [`PacketMeta::flags`], from XDP to tc only: to be marked for the listener whose port is
/// [`PacketMeta::entry`].
pub const META_INTERCEPT: u32 = META_UP | 1 << 7;
/// Marks of packets for local listeners: this value, with the listener's port in the lower half.
pub const MARK_LISTENER: u32 = 0x5441 << 16;
/// [`PacketMeta::flags`]: the mark of the module before lies in front of the metadata.
pub const META_MARK: u32 = 1 << 5;
/// [`PacketMeta::flags`]: `egress_port` is the other end of a bridge; the packet leaves by it as it
/// is.
pub const META_BRIDGED: u32 = 1 << 6;
/// [`PacketMeta::flags`], in the cell only: the payload of an active packet, not a frame.
pub const META_DATA: u32 = 1 << 7;
/// [`PacketMeta::flags`], on the way to the cell only: holds credit of its session's queue.
pub const META_COUNTED: u32 = 1 << 3;
/// Position in [`PacketMeta::flags`] of the last bit of the epoch in which the credit was taken.
pub const META_COUNTED_SHIFT: u32 = 4;
/// [`PacketMeta::flags`], from tc to the cell only: the packet only waits for its session's share
/// of `egress_port`; `flow_hash` is the number of the [`PortShare`] that counts it, `then` the
/// verdict, `arrival_port` the session that pays.
pub const META_LEAVES: u32 = 1 << 7;
/// [`PacketMeta::flags`], with [`META_LEAVES`]: the kernel routes the packet then.
pub const META_BY_KERNEL: u32 = 1 << 0;
/// Position in [`PacketMeta::flags`] of the lane's epoch ([`ACTION_SERVICE`] only).
pub const META_EPOCH_SHIFT: u32 = 24;

impl PacketMeta {
    /// Returns the epoch of its lane that the packet carries ([`ACTION_SERVICE`] only).
    #[must_use]
    pub const fn epoch(&self) -> u8 {
        (self.flags >> META_EPOCH_SHIFT) as u8
    }

    /// Returns the epoch of the queue credit in which the packet was sent up, if it was counted
    /// there.
    #[must_use]
    pub const fn room_epoch(&self) -> usize {
        (self.flags >> META_COUNTED_SHIFT & 1) as usize
    }

    /// Returns the index of the epoch's sum that holds the packet's queue credit, `None` when no
    /// credit was taken.
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
