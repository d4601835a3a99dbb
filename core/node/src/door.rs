//! The front door in user space: what becomes of a frame where no XDP program is to be had.
//!
//! ```text
//!  frame ─▶ base/wire ─▶ rules ─▶ kernel, as it came      no rule, or `forward`
//!                          │  ├─▶ a port, as it came      `out`
//!                          │  ├─▶ the port's other end    the same, of a bridge
//!                          │  ├─▶ a service               with metadata, never with a route
//!                          │  └─▶ nowhere                 `drop`, or headers that lie
//! ```
//!
//! It decides like `levels/bpf/c/front_door.bpf.c`, in the same order and with the same names
//! of outcomes, but for routes: it asks for none, so what is forwarded plainly is the kernel's
//! (`kernel_slow`). There is no flow cache: each frame is searched for.

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

/// Datagrams whose later fragments are awaited; the oldest make room.
pub const FRAGMENTED_MAX: usize = 4096;
/// `PacketMeta::l4_offset` without an L4 header.
const OFFSET_NONE: u16 = 0xffff;

/// A port as the door needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorPort {
    /// Its number.
    pub id: PortId,
    /// Its device's address.
    pub mac: [u8; 6],
    /// The port at the other end of its bridge.
    pub bridge: Option<PortId>,
}

/// What is done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The kernel has it as it came.
    Kernel,
    /// It leaves by this port as it came.
    Cross(PortId),
    /// It ends here.
    Drop,
    /// It leaves by this port as it came, on this session's account.
    Out(PortId, SessionId),
    /// The service of the metadata's entry has it.
    Service,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub act: Act,
    matched: [Option<RuleId>; STAGES],
    /// Its outcome, by its place in [`OUTCOMES`].
    pub outcome: usize,
    /// What goes with the frame.
    pub meta: PacketMeta,
}

impl Decision {
    /// The rules that matched, one of each stage at most.
    pub fn rules(&self) -> impl Iterator<Item = RuleId> {
        self.matched.into_iter().flatten()
    }

    /// The outcome's name.
    #[must_use]
    pub const fn outcome_name(&self) -> &'static str {
        OUTCOMES[self.outcome].0
    }
}

/// The place of an outcome; a name that is none does not compile.
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
/// What a bridge's end does not take.
pub const DROP_TOO_LONG: usize = outcome("drop_too_long");
/// Nothing is left of a share.
pub const DROP_SHARE: usize = outcome("drop_share");
/// It goes round and round.
pub const DROP_CYCLE: usize = outcome("drop_cycle");
const DROP_OWN_SOURCE: usize = outcome("drop_own_source");
/// The other end of a bridge is away.
pub const DROP_EGRESS_GONE: usize = outcome("drop_egress_gone");

/// The rules, and what is remembered between frames.
#[derive(Debug, Default)]
pub struct Door {
    rules: RuleSet,
    /// A rule names an ethertype that is not IP.
    has_ethertypes: bool,
    own: OwnSources,
    fragments: Fragments,
}

impl Door {
    /// Has these rules from the next frame on.
    pub fn install(&mut self, rules: RuleSet) {
        self.has_ethertypes = rules.masks.iter().any(|mask| mask.bits.ethertype_be != [0; 2]);
        self.rules = rules;
    }

    /// Has these addresses of the machine itself from the next frame on.
    pub fn set_own(&mut self, own: OwnSources) {
        self.own = own;
    }

    /// What becomes of a frame.
    pub fn decide(&mut self, port: &DoorPort, frame: &[u8]) -> Decision {
        let mut fragments = std::mem::take(&mut self.fragments);
        let decision = self.judge(&mut fragments, port, frame);
        self.fragments = fragments;
        decision
    }

    /// What would become of a frame, were it the first of its datagram that comes.
    #[must_use]
    pub fn explain(&self, port: &DoorPort, frame: &[u8]) -> Decision {
        self.judge(&mut Fragments::default(), port, frame)
    }

    fn judge(&self, fragments: &mut Fragments, port: &DoorPort, frame: &[u8]) -> Decision {
        let (mut parsed, unmatched) = match see(port, frame) {
            Ok(parsed) => (parsed, None),
            // Linux may take off as many tags as there are, and have what no rule was asked about.
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
            // Behind the fragment header there may be others, which only the first shows.
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
            // Packet ports have no tc in front of the kernel that could mark a packet.
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

/// What no service has: the kernel's, or the other end's of a bridge.
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

/// The headers; or the outcome of a frame that no rule is asked for, with its Ethernet header
/// if one that names its ethertype is.
fn see(port: &DoorPort, frame: &[u8]) -> Result<Parsed, (Option<Parsed>, usize)> {
    use wire::protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
    let is_others = port.bridge.is_none()
        && frame.first_chunk::<6>().is_some_and(|destination| *destination != port.mac);
    let link = match wire::parse::parse_link(frame) {
        Ok(link) => link,
        Err(_) if is_others && frame.len() >= wire::protocol::ETHERNET_LENGTH => {
            return Err((None, KERNEL_NOT_FOR_US));
        }
        Err(problem) => return Err((None, place_of(problem))),
    };
    let is_ip = matches!(link.ethernet.ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
    match (is_ip, is_others) {
        (true, true) => return Err((None, KERNEL_NOT_FOR_US)),
        (false, true) => return Err((Some(link), KERNEL_NOT_FOR_US)),
        (false, false) => return Err((Some(link), KERNEL_NOT_IP)),
        (true, false) => {}
    }
    let parsed = wire::parse_frame(frame).map_err(|problem| (None, place_of(problem)))?;
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

/// The place of what the parser says.
const fn place_of(problem: wire::Outcome) -> usize {
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

/// The L4 ports of datagrams whose first fragment has come.
#[derive(Debug, Default)]
struct Fragments {
    seen: BTreeMap<Datagram, First>,
    /// In the order in which they came.
    order: VecDeque<Datagram>,
}

/// Key fields that a first fragment gives those behind it.
#[derive(Clone, Copy, Debug)]
struct First {
    ports_be: [[u8; 2]; 2],
    protocol: u8,
    hidden: u16,
}

/// What the fragments of one datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Datagram {
    source: [u8; 16],
    destination: [u8; 16],
    id: u16,
    /// Of IPv4.
    protocol: u8,
    ip_version: u8,
}

impl Fragments {
    /// The first fragment leaves protocol and L4 ports for the later ones, or that they are hidden. One that comes before its
    /// first is matched without them.
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
