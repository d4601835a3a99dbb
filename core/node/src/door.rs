//! Front door in user space: decides on frames where no XDP program is available.
//!
//! ```text
//!  frame ─▶ base/wire ─▶ rules ─▶ kernel, unchanged       no rule, or `forward`
//!                          │  ├─▶ a port, unchanged       `out`
//!                          │  ├─▶ other end, unchanged    no rule, on a bridged port
//!                          │  ├─▶ a service               with metadata, never with a route
//!                          │  └─▶ dropped                 `drop`, or invalid headers
//! ```
//!
//! The decisions are those of `levels/bpf/c/front_door.bpf.c`, in the same order and with the same
//! names of outcomes, except for routes: none is looked up here, so all plain forwarding is left to
//! the kernel (`kernel_slow`). There is no flow cache: rules are searched for each frame.

mod own;
pub mod rules;

pub use own::OwnSources;

use bpf_maps::{
    ACTION_DOWN, ACTION_DROP, ACTION_FORWARD, ACTION_INTERCEPT, ACTION_INTERCEPT_BACK,
    ACTION_INTERCEPT_CLOSED, ACTION_OUT, FRAGMENT_FIRST, FRAGMENT_NONE, Key, META_BRIDGED,
    META_FRAGMENT, META_LATER_FRAGMENT, OUTCOMES, PacketMeta, RULE_NONE, STAGES,
};
use std::collections::{BTreeMap, VecDeque};
use units::{PortId, RuleId, SessionId};
use wire::Parsed;

use crate::classifier::{self, RuleSet, key_of};

/// Limit of datagrams whose later fragments are awaited; the oldest are evicted.
pub const FRAGMENTED_MAX: usize = 4096;
/// Value of `PacketMeta::l4_offset` without an L4 header.
const OFFSET_NONE: u16 = 0xffff;

/// Port, as far as the front door needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorPort {
    /// Number of the port.
    pub id: PortId,
    /// MAC address of its device.
    pub mac: [u8; 6],
    /// Port at the other end of its bridge.
    pub bridge: Option<PortId>,
}

/// Action on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Pass to the kernel, unchanged.
    Kernel,
    /// Send out by this port, unchanged.
    Cross(PortId),
    /// Drop.
    Drop,
    /// Send out by this port, unchanged, on this session's account.
    Out(PortId, SessionId),
    /// Deliver to the service of the metadata's entry.
    Service,
}

/// Decision on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Action to take.
    pub act: Act,
    matched: [Option<RuleId>; STAGES],
    /// Outcome, as an index into [`OUTCOMES`].
    pub outcome: usize,
    /// Metadata that goes with the frame.
    pub meta: PacketMeta,
}

impl Decision {
    /// Returns the rules that matched, at most one of each stage.
    pub fn rules(&self) -> impl Iterator<Item = RuleId> {
        self.matched.into_iter().flatten()
    }

    /// Returns the name of the outcome.
    #[must_use]
    pub const fn outcome_name(&self) -> &'static str {
        OUTCOMES[self.outcome].0
    }
}

/// Returns the index of an outcome by its name; an unknown name does not compile.
const fn outcome(name: &str) -> usize {
    let mut at = 0;
    while !is_same(OUTCOMES[at].0.as_bytes(), name.as_bytes()) {
        at += 1;
    }
    at
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

const BRIDGED: usize = outcome("bridged");
const CUT_THROUGH: usize = outcome("cut_through");
const TO_USER: usize = outcome("to_user");
const KERNEL_NOT_IP: usize = outcome("kernel_not_ip");
const KERNEL_NOT_FOR_US: usize = outcome("kernel_not_for_us");
const KERNEL_LINK_LOCAL: usize = outcome("kernel_link_local");
const KERNEL_SLOW: usize = outcome("kernel_slow");
const KERNEL_VLAN_DEPTH: usize = outcome("kernel_vlan_depth");
const DROP_TRUNCATED: usize = outcome("drop_truncated");
const DROP_IP_VERSION: usize = outcome("drop_ip_version");
const DROP_HEADER_LENGTH: usize = outcome("drop_header_length");
const DROP_TOTAL_LENGTH: usize = outcome("drop_total_length");
const DROP_CHECKSUM: usize = outcome("drop_checksum");
const DROP_L4_HIDDEN: usize = outcome("drop_l4_hidden");
const DROP_RULE: usize = outcome("drop_rule");
const DROP_DOWN: usize = outcome("drop_down");
const DROP_VLAN_DEPTH: usize = outcome("drop_vlan_depth");
/// Outcome of a frame longer than the other end of the bridge takes.
pub const DROP_TOO_LONG: usize = outcome("drop_too_long");
/// Outcome of a frame for which the session's share of the port is used up.
pub const DROP_SHARE: usize = outcome("drop_share");
/// Outcome of a frame that loops between ports cabled to each other.
pub const DROP_CYCLE: usize = outcome("drop_cycle");
const DROP_OWN_SOURCE: usize = outcome("drop_own_source");
/// Outcome of a frame whose bridge has lost the other end.
pub const DROP_EGRESS_GONE: usize = outcome("drop_egress_gone");

/// Front door in user space: the rules, and state kept between frames.
#[derive(Debug, Default)]
pub struct Door {
    rules: RuleSet,
    /// True if a rule names an ethertype that is not IP.
    has_ethertypes: bool,
    own: OwnSources,
    fragments: Fragments,
}

impl Door {
    /// Replaces the rules, from the next frame on.
    pub fn install(&mut self, rules: RuleSet) {
        self.has_ethertypes = rules.masks.iter().any(|mask| mask.bits.ethertype_be != [0; 2]);
        self.rules = rules;
    }

    /// Replaces the machine's own addresses, from the next frame on.
    pub fn set_own(&mut self, own: OwnSources) {
        self.own = own;
    }

    /// Decides on a frame.
    pub fn decide(&mut self, port: &DoorPort, frame: &[u8]) -> Decision {
        let mut fragments = std::mem::take(&mut self.fragments);
        let decision = self.judge(&mut fragments, port, frame);
        self.fragments = fragments;
        decision
    }

    /// Returns the decision for a frame as if no fragment of its datagram had come before.
    #[must_use]
    pub fn explain(&self, port: &DoorPort, frame: &[u8]) -> Decision {
        self.judge(&mut Fragments::default(), port, frame)
    }

    fn judge(&self, fragments: &mut Fragments, port: &DoorPort, frame: &[u8]) -> Decision {
        let (mut parsed, unmatched) = match parse_headers(port, frame) {
            Ok(parsed) => (parsed, None),
            // Linux may strip any number of tags and take a frame that no rule was asked about.
            Err((_, KERNEL_VLAN_DEPTH)) if !self.rules.masks.is_empty() => {
                let (matched, meta) = ([None; STAGES], PacketMeta::default());
                return Decision { act: Act::Drop, matched, outcome: DROP_VLAN_DEPTH, meta };
            }
            Err((parsed, outcome)) => match parsed.filter(|_| self.has_ethertypes) {
                Some(parsed) => (parsed, Some(outcome)),
                None => return plain(port, outcome, [None; STAGES], PacketMeta::default()),
            },
        };
        let mut key = key_of(&parsed, port.id);
        if key.fragment != FRAGMENT_NONE && !self.rules.masks.is_empty() {
            fragments.track(&mut key, parsed.fragment_id as u16);
            // Further extension headers may follow the fragment header; only the first fragment
            // shows them.
            parsed.protocol = key.protocol;
        }
        let decided = self.rules.decide(&key);
        let meta = meta_of(port, &parsed, &key, &decided);
        let mut matched = [None; STAGES];
        let all = decided.first.iter().chain(&decided.then).chain(&decided.counted);
        matched.iter_mut().zip(all).for_each(|(to, rule)| *to = Some(RuleId(rule.rule)));
        let is_martian = port.bridge.is_none() && self.own.refuse(port.id, &parsed);
        let (act, outcome) = match decided.action() {
            _ if decided.hidden => (Act::Drop, DROP_L4_HIDDEN),
            action if is_martian && action != ACTION_DROP => (Act::Drop, DROP_OWN_SOURCE),
            // Packet sockets have no tc hook before the kernel that could mark a packet.
            ACTION_FORWARD | ACTION_INTERCEPT | ACTION_INTERCEPT_BACK => {
                return plain(port, unmatched.unwrap_or(KERNEL_SLOW), matched, meta);
            }
            ACTION_DROP => (Act::Drop, DROP_RULE),
            ACTION_DOWN | ACTION_INTERCEPT_CLOSED => (Act::Drop, DROP_DOWN),
            ACTION_OUT => {
                let session = decided.first.map_or(0, |rule| rule.session);
                (Act::Out(PortId(meta.entry), SessionId(session)), CUT_THROUGH)
            }
            _ => (Act::Service, TO_USER),
        };
        Decision { act, matched, outcome, meta }
    }
}

/// Returns the decision for frames that no service takes: to the kernel, or to the other end of the
/// bridge.
fn plain(
    port: &DoorPort,
    outcome: usize,
    matched: [Option<RuleId>; STAGES],
    meta: PacketMeta,
) -> Decision {
    let (act, outcome) = match port.bridge {
        Some(end) => (Act::Cross(end), BRIDGED),
        None if OUTCOMES[outcome].0.starts_with("drop_") => (Act::Drop, outcome),
        None => (Act::Kernel, outcome),
    };
    Decision { act, matched, outcome, meta }
}

/// Parses the headers. The error is the outcome of a frame to which no IP rule applies, with its
/// Ethernet header if a rule could name its ethertype.
fn parse_headers(port: &DoorPort, frame: &[u8]) -> Result<Parsed, (Option<Parsed>, usize)> {
    use wire::protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
    let is_others = port.bridge.is_none()
        && frame.first_chunk::<6>().is_some_and(|destination| *destination != port.mac);
    let link = match wire::parse::parse_link(frame) {
        Ok(link) => link,
        Err(_) if is_others && frame.len() >= wire::protocol::ETHERNET_LENGTH => {
            return Err((None, KERNEL_NOT_FOR_US));
        }
        Err(problem) => return Err((None, outcome_index(problem))),
    };
    let is_ip = matches!(link.ethernet.ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
    match (is_ip, is_others) {
        (true, true) => return Err((None, KERNEL_NOT_FOR_US)),
        (false, true) => return Err((Some(link), KERNEL_NOT_FOR_US)),
        (false, false) => return Err((Some(link), KERNEL_NOT_IP)),
        (true, false) => {}
    }
    let parsed = wire::parse_frame(frame).map_err(|problem| (None, outcome_index(problem)))?;
    // A bridge carries link-local packets from host to host.
    let is_kernels = match port.bridge {
        Some(_) => parsed.is_neighbour_discovery(frame),
        None => parsed.is_link_local(frame),
    };
    if is_kernels {
        return Err((None, KERNEL_LINK_LOCAL));
    }
    Ok(parsed)
}

/// Returns the index of the parser's outcome.
const fn outcome_index(problem: wire::Outcome) -> usize {
    match problem {
        wire::Outcome::NotIp => KERNEL_NOT_IP,
        wire::Outcome::VlanDepth => KERNEL_VLAN_DEPTH,
        wire::Outcome::Truncated => DROP_TRUNCATED,
        wire::Outcome::IpVersion => DROP_IP_VERSION,
        wire::Outcome::HeaderLength => DROP_HEADER_LENGTH,
        wire::Outcome::TotalLength => DROP_TOTAL_LENGTH,
        wire::Outcome::Checksum => DROP_CHECKSUM,
    }
}

fn meta_of(
    port: &DoorPort,
    parsed: &Parsed,
    key: &Key,
    decided: &classifier::Decision,
) -> PacketMeta {
    let number = |rule: Option<&bpf_maps::Rule>| {
        rule.and_then(|rule| u16::try_from(rule.rule).ok()).unwrap_or(RULE_NONE)
    };
    let first = decided.first.as_ref();
    let is_ip = parsed.ip_version != 0;
    let set = |flag: u32, on: bool| if on { flag } else { 0 };
    let is_fragment = key.fragment != FRAGMENT_NONE;
    PacketMeta {
        rule: number(first),
        then: [0, 1].map(|at| number(decided.then.get(at))),
        entry: first.map_or(0, |rule| rule.entry),
        egress_port: port.bridge.map_or(0, |end| end.0),
        arrival_port: port.id.0,
        l3_offset: parsed.l3_offset,
        l4_offset: parsed.l4_offset.unwrap_or(OFFSET_NONE),
        flow_hash: if is_ip { wire::flow_hash(parsed) } else { 0 },
        flags: set(META_FRAGMENT, is_fragment)
            | set(META_LATER_FRAGMENT, is_fragment && key.fragment != FRAGMENT_FIRST)
            | set(META_BRIDGED, port.bridge.is_some())
            | u32::from(parsed.ip_version) << 8
            | u32::from(parsed.protocol) << 16,
        ..PacketMeta::default()
    }
}

/// L4 ports of datagrams whose first fragment has been seen.
#[derive(Debug, Default)]
struct Fragments {
    seen: BTreeMap<Datagram, First>,
    /// Datagrams in order of arrival.
    order: VecDeque<Datagram>,
}

/// Key fields that the first fragment gives to the later ones.
#[derive(Clone, Copy, Debug)]
struct First {
    ports_be: [[u8; 2]; 2],
    protocol: u8,
    hidden: u16,
}

/// Fields that all fragments of one datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Datagram {
    source: [u8; 16],
    destination: [u8; 16],
    id: u16,
    /// Protocol of IPv4; 0 for IPv6.
    protocol: u8,
    ip_version: u8,
}

impl Fragments {
    /// Stores protocol and L4 ports of a first fragment, or that they are hidden, and fills them
    /// into later ones. A fragment that arrives before its first is matched without them.
    fn track(&mut self, key: &mut Key, id: u16) {
        let datagram = Datagram {
            source: key.source,
            destination: key.destination,
            id,
            protocol: if key.ip_version == 4 { key.protocol } else { 0 },
            ip_version: key.ip_version,
        };
        if key.fragment != FRAGMENT_FIRST {
            if let Some(first) = self.seen.get(&datagram) {
                [key.source_port_be, key.destination_port_be] = first.ports_be;
                (key.protocol, key.hidden) = (first.protocol, first.hidden);
            }
            return;
        }
        let ports_be = [key.source_port_be, key.destination_port_be];
        let first = First { ports_be, protocol: key.protocol, hidden: key.hidden };
        if self.seen.insert(datagram, first).is_none() {
            self.order.push_back(datagram);
        }
        while self.order.len() > FRAGMENTED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.seen.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
