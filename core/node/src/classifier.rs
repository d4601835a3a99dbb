//! Rules as the front door finds them: tuple-space search.
//!
//! ```text
//! rules ─ sort by (priority desc, number asc) ─▶ rank 0, 1, 2, …
//!
//! masks    [bits, rank_best] sorted by rank_best     entries  (key & bits, index of the mask) → rule
//! lookup   for each mask: found a better rank than rank_best? stop : probe key & bits
//! ```
//!
//! Each set of matched fields is one mask, so a lookup costs as many probes as
//! there are different sets, not rules. A range of L4 ports is several prefixes
//! ([`crate::l4`]), each a key of its own, and each length of prefix a mask. A mask is of one
//! stage ([`Stage`]); the best rule of each stage counts. [`RuleSet::decide`] is precisely the
//! algorithm of `levels/bpf/c/search.h`.

mod cover;
mod hidden;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abi::check::Kind;
use bpf_maps::{
    FLOW_KEY_LENGTH, FLOWS_LISTED_MAX, Key, MASKS_MAX, Mask, RULE_ENTRIES_MAX, RULES_MAX,
};
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, PortId, RuleId, SessionId};

use cover::Packets;
use hidden::HiddenKeys;
pub use hidden::{FLOWS_HIDDEN_MAX, HiddenRules};

use crate::ethernet::Ethertype;
use crate::flows::FlowList;
use crate::l4::{PortPrefix, PortRange};
use crate::protocol::Protocol;
use crate::rule::{Action, FragmentMatch, Match, Rule, Stage, VlanMatch};
use crate::service::ModuleInfo;

/// Node state that the names in rules resolve to.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Ports of the node.
    pub ports: BTreeMap<Name, PortId>,
    /// Destinations of services, by name; a rule can lead only to these.
    pub services: BTreeMap<Name, Destination>,
    /// Sessions of the node.
    pub sessions: Arc<BTreeMap<Name, SessionId>>,
    /// Ports whose front door is at tc: packets that enter there can go to stream services only.
    pub at_tc: BTreeSet<Name>,
    /// Rules of closed services that are down: their packets are dropped, whatever the action says.
    pub down: BTreeSet<RuleId>,
}

/// Destination of a service's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Entry of the service in the cell.
    pub entry: EntryId,
    /// Path of the packets to the service.
    pub path: Path,
    /// Kind of the service: packets or streams.
    pub kind: Kind,
}

impl Destination {
    /// Returns the destination of a service at user level; a stream service that does not listen
    /// yet has port 0.
    #[must_use]
    pub fn of(entry: EntryId, module: &ModuleInfo, listener: Option<u16>) -> Self {
        let path = match module.kind {
            Kind::Packets => Path::Cell,
            Kind::Streams => Path::Listener { port: listener.unwrap_or(0), closed: false },
        };
        Self { entry, path, kind: module.kind }
    }
}

/// Path of packets to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Socket of the cell, without a lane.
    Cell,
    /// Lane of the service, which says at which level it runs.
    Lane,
    /// TCP listener on this machine, from the start of each connection.
    Listener {
        /// The listener's port.
        port: u16,
        /// Drops connections while nobody listens; otherwise they go past the service.
        closed: bool,
    },
    /// Dropped: the service is down.
    Down,
}

/// Compiled rules as the front door's maps hold them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Masks, one per set of matched fields, sorted by their best rank.
    pub masks: Vec<Mask>,
    /// Masked keys with the action of their rule, sorted by the bytes of the key.
    pub entries: Vec<(Key, bpf_maps::Rule)>,
    /// Masks whose keys are the flows of a list, in the order of their masks.
    pub lists: Vec<ListedFlows>,
    /// Masks for packets whose L4 fields cannot be read.
    pub hidden: HiddenRules,
    /// Rules that no packet can reach, each with a better rule that takes its packets, or with one
    /// of several that take them together.
    pub shadowed: Vec<(RuleId, RuleId)>,
}

/// Mask whose keys are the flows of a list, all of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFlows {
    /// Index of the mask.
    pub mask: u16,
    /// Key fields that the rule's match asks for besides the flow.
    pub template: Key,
    /// Flows of the list.
    pub flows: FlowList,
    /// Action of the rule.
    pub rule: bpf_maps::Rule,
}

/// Error of [`compile`]: the rules do not fit the front door. Fault of the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// The node has [`RULES_MAX`] rules already, or the rule's number is beyond its counters.
    #[error(
        "rule #{rule} is one too many: a node has counters for {RULES_MAX} rules; remove some, or match more by prefix"
    )]
    TooManyRules {
        /// Number of the first rule that does not fit.
        rule: RuleId,
    },
    /// The rules match more than [`MASKS_MAX`] sets of fields.
    #[error(
        "rule #{rule} ('{text}') needs another set of matched fields, and the front door tries at most {MASKS_MAX}; use the same fields, prefix lengths and TCP flags as other rules, and L4 port ranges that begin and end at multiples of 16, 256 or 4096"
    )]
    TooManyMasks {
        /// Number of the rule that does not fit.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
    },
    /// The rules need more than [`RULE_ENTRIES_MAX`] keys.
    #[error(
        "rule #{rule} ('{text}') needs {needed} keys for its L4 port ranges, and of {RULE_ENTRIES_MAX} there are {left} left; let ranges begin and end at multiples of 16, 256 or 4096, or match only one of 'sport' and 'dport' by a range"
    )]
    TooManyEntries {
        /// Number of the rule that does not fit.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
        /// Number of keys that the rule needs.
        needed: usize,
        /// Number of keys that are free.
        left: usize,
    },
    /// The lists have more than [`FLOWS_LISTED_MAX`] flows together.
    #[error(
        "rule #{rule} ('{text}') has a list of {needed} flows, and of {FLOWS_LISTED_MAX} there are {left} left; match more by prefix"
    )]
    TooManyFlows {
        /// Number of the rule that does not fit.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
        /// Number of flows in the rule's list.
        needed: usize,
        /// Number of flows that still fit.
        left: usize,
    },
    /// The match repeats fields that its list of flows already gives.
    #[error(
        "rule #{rule} ('{text}') has a list of flows, which say IP version, addresses, protocol and L4 ports; beside a list a match may have in, vlan, smac, dmac, dscp and fragment"
    )]
    FlowsTwice {
        /// Number of the rule.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
    },
    /// The match leads to a stream service and includes packets other than TCP.
    #[error(
        "rule #{rule} ('{text}') leads to a service of streams, which has TCP connections only; add 'proto tcp'"
    )]
    NotTcp {
        /// Number of the rule.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
    },
    /// The match leads to a stream service and takes only some packets of a connection.
    #[error(
        "rule #{rule} ('{text}') leads to a service of streams, which has whole connections; leave out 'flags', 'dscp' and 'fragment'"
    )]
    PartOfConnections {
        /// Number of the rule.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
    },
    /// The rule leads to a stream service by a list of flows.
    #[error(
        "rule #{rule} ('{text}') leads to a service of streams by a list of flows; match them by addresses, L4 ports and 'proto tcp'"
    )]
    FlowsOfStreams {
        /// Number of the rule.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
    },
    /// The rule leads to a packet service or has the action `out`, and can match packets of a port
    /// in mode `tc`.
    #[error(
        "rule #{rule} ('{text}') may have packets that come in by '{port}', whose mode is \"tc\": that is for services of streams, and for dropping; let the rule say 'in' with another port, or leave the mode of '{port}' out of the node file"
    )]
    AtTc {
        /// Number of the rule.
        rule: RuleId,
        /// Match of the rule, as text.
        text: String,
        /// Name of the port.
        port: Name,
    },
    /// The rule names a port, service or session that does not exist.
    #[error("rule #{rule} names the {kind} '{name}', which this node does not have")]
    Unknown {
        /// Number of the rule.
        rule: RuleId,
        /// Kind of the name: `port`, `service` or `session`.
        kind: &'static str,
        /// Name as given.
        name: Name,
    },
}

/// Compiles rules, in any order, for the front door.
///
/// A rule whose packets are all taken by better rules, alone or together, is listed in
/// [`RuleSet::shadowed`] and gets no keys, as far as [`cover`] finds it.
///
/// # Errors
/// A name is unknown or a limit of the front door's maps is exceeded.
pub fn compile<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    lookup: &Lookup,
) -> Result<RuleSet, RuleSetError> {
    let mut ranked: Vec<&Rule> = rules.into_iter().collect();
    ranked.sort_by_key(|rule| (core::cmp::Reverse(rule.spec.priority), rule.id));

    let mut set = RuleSet::default();
    let packets = Packets::new(lookup.ports.values().map(|port| port.0));
    let mut keys = Keys { packets, ..Keys::default() };
    for (rank, rule) in (0u32..).zip(ranked) {
        if rank as usize >= RULES_MAX || rule.id.0 as usize >= RULES_MAX {
            return Err(RuleSetError::TooManyRules { rule: rule.id });
        }
        let matched = &rule.spec.r#match;
        let compiled = compile_action(rule, rank, lookup)?;
        needs_no_xdp_at_tc(rule, lookup)?;
        if let Some(flows) = &rule.spec.flows {
            let template = compile_match(rule, matched, lookup)?;
            let nothing = PortPrefix { value: 0, mask: 0 };
            let stage = rule.spec.stage();
            let found = cover::cover(&set, &mut keys, stage, template, &[(nothing, nothing)]);
            if let Some(better) = found {
                set.shadowed.push((rule.id, better));
                continue;
            }
            keys.hidden.add_list(rule.spec.stage(), template, flows, compiled);
            add_list(&mut set, rule, template, flows, compiled)?;
            continue;
        }
        let better = set.add_keys(&mut keys, rule, matched, compiled, lookup)?;
        set.shadowed.extend(better.map(|better| (rule.id, better)));
        if matches!(compiled.action, bpf_maps::ACTION_INTERCEPT | bpf_maps::ACTION_INTERCEPT_CLOSED)
        {
            let back = bpf_maps::Rule { action: bpf_maps::ACTION_INTERCEPT_BACK, ..compiled };
            // If a better rule takes the reverse packets, they go past the service.
            set.add_keys(&mut keys, rule, &reply_match(matched), back, lookup)?;
        }
    }
    set.hidden = keys.hidden.finish();
    set.entries = keys.entries.into_iter().map(|(key, rule)| (bytemuck::cast(key), rule)).collect();
    Ok(set)
}

/// Keys collected so far, and the masks that exist for them.
#[derive(Default)]
struct Keys {
    masks: BTreeMap<(Stage, [u8; KEY_LENGTH]), u16>,
    entries: BTreeMap<[u8; KEY_LENGTH], bpf_maps::Rule>,
    hidden: HiddenKeys,
    packets: Packets,
}

impl RuleSet {
    /// Adds the keys of a match. Returns the better rule that has one of them if no key is left for
    /// this rule.
    fn add_keys(
        &mut self,
        keys: &mut Keys,
        rule: &Rule,
        matched: &Match,
        compiled: bpf_maps::Rule,
        lookup: &Lookup,
    ) -> Result<Option<RuleId>, RuleSetError> {
        let (bits, key) = compile_match(rule, matched, lookup)?;
        let ports = port_prefixes(matched);
        let left = RULE_ENTRIES_MAX - keys.entries.len();
        if ports.len() > left {
            let text = rule.spec.r#match.to_string();
            let needed = ports.len();
            return Err(RuleSetError::TooManyEntries { rule: rule.id, text, needed, left });
        }
        let stage = rule.spec.stage();
        if let Some(better) = cover::cover(self, keys, stage, (bits, key), &ports) {
            return Ok(Some(better));
        }
        let (mut installed, mut better) = (false, None);
        let whole = (bits, key);
        for &(source, destination) in &ports {
            let (bits, mut key) = with_ports(bits, key, source, destination);
            key.mask = match keys.masks.get(&(stage, bytes_of(&bits))) {
                Some(&index) => index,
                None => {
                    // Ranks only grow, so the masks come out sorted.
                    let index = add_mask(&mut self.masks, rule, bits, compiled.rank)?;
                    keys.masks.insert((stage, bytes_of(&bits)), index);
                    index
                }
            };
            match keys.entries.entry(bytes_of(&key)) {
                Entry::Occupied(taken) => better = Some(RuleId(taken.get().rule)),
                Entry::Vacant(free) => {
                    free.insert(compiled);
                    installed = true;
                }
            }
        }
        if installed {
            keys.hidden.add(stage, whole, &ports, compiled);
        }
        Ok(better.filter(|_| !installed))
    }
}

/// Returns the match of reply packets: addresses and L4 ports swapped, from any port and with any
/// marking.
fn reply_match(matched: &Match) -> Match {
    Match {
        source: matched.destination,
        destination: matched.source,
        source_port: matched.destination_port,
        destination_port: matched.source_port,
        protocol: matched.protocol,
        ip_version: matched.ip_version,
        ..Match::default()
    }
}

const KEY_LENGTH: usize = size_of::<Key>();

fn bytes_of(key: &Key) -> [u8; KEY_LENGTH] {
    bytemuck::cast(*key)
}

fn add_mask(masks: &mut Vec<Mask>, rule: &Rule, bits: Key, rank: u32) -> Result<u16, RuleSetError> {
    match u16::try_from(masks.len()) {
        Ok(index) if masks.len() < MASKS_MAX => {
            let stage = rule.spec.stage().number();
            masks.push(Mask { bits, rank_best: rank, stage, ..Mask::default() });
            Ok(index)
        }
        _ => Err(RuleSetError::TooManyMasks { rule: rule.id, text: rule.spec.r#match.to_string() }),
    }
}

/// Returns the L4 ports of a match as pairs of prefixes (source, destination); each pair becomes a
/// key.
fn port_prefixes(matched: &Match) -> Vec<(PortPrefix, PortPrefix)> {
    let prefixes = |range: Option<PortRange>| match range {
        Some(range) => range.prefixes(),
        None => vec![PortPrefix { value: 0, mask: 0 }],
    };
    let destinations = prefixes(matched.destination_port);
    prefixes(matched.source_port)
        .into_iter()
        .flat_map(|source| destinations.iter().map(move |&destination| (source, destination)))
        .collect()
}

/// Returns mask and key with these L4 ports filled in.
fn with_ports(
    mut bits: Key,
    mut key: Key,
    source: PortPrefix,
    destination: PortPrefix,
) -> (Key, Key) {
    bits.source_port_be = source.mask.to_be_bytes();
    key.source_port_be = source.value.to_be_bytes();
    bits.destination_port_be = destination.mask.to_be_bytes();
    key.destination_port_be = destination.value.to_be_bytes();
    (bits, key)
}

/// Adds a mask of its own for the flows of a list.
fn add_list(
    set: &mut RuleSet,
    rule: &Rule,
    (mut bits, template): (Key, Key),
    flows: &FlowList,
    compiled: bpf_maps::Rule,
) -> Result<(), RuleSetError> {
    let text = || rule.spec.r#match.to_string();
    let asked = &rule.spec.r#match;
    let ports = asked.source_port.or(asked.destination_port);
    if bits.flow() != Key::default().flow() || asked.ethertype.is_some() || ports.is_some() {
        return Err(RuleSetError::FlowsTwice { rule: rule.id, text: text() });
    }
    let taken: usize = set.lists.iter().map(|list| list.flows.count()).sum();
    let (needed, left) = (flows.count(), FLOWS_LISTED_MAX - taken);
    if needed > left {
        return Err(RuleSetError::TooManyFlows { rule: rule.id, text: text(), needed, left });
    }
    bytemuck::bytes_of_mut(&mut bits)[..FLOW_KEY_LENGTH].fill(u8::MAX);
    let mask = add_mask(&mut set.masks, rule, bits, compiled.rank)?;
    set.lists.push(ListedFlows { mask, template, flows: flows.clone(), rule: compiled });
    Ok(())
}

/// Returns the mask of a rule's match and its key without L4 ports; the key is zero where the mask
/// is.
fn compile_match(
    rule: &Rule,
    matched: &Match,
    lookup: &Lookup,
) -> Result<(Key, Key), RuleSetError> {
    let (mut bits, mut key) = (Key::default(), Key::default());
    if let Some(name) = &matched.port {
        key.port = find(&lookup.ports, name, rule, "port")?.0;
        bits.port = u16::MAX;
    }
    if let Some(vlan) = matched.vlan {
        key.vlan = match vlan {
            VlanMatch::Untagged => 0,
            VlanMatch::Id(id) => bpf_maps::VLAN_PRESENT | id,
        };
        bits.vlan = u16::MAX;
    }
    if let Some(mac) = matched.source_mac {
        (key.source_mac, bits.source_mac) = (mac.0, [u8::MAX; 6]);
    }
    if let Some(mac) = matched.destination_mac {
        (key.destination_mac, bits.destination_mac) = (mac.0, [u8::MAX; 6]);
    }
    // For IP the version says it already, and frames of other ethertypes need no lookup.
    if let Some(ethertype) = matched.ethertype.filter(|given| given.ip_version().is_none()) {
        (key.ethertype_be, bits.ethertype_be) = (ethertype.number().to_be_bytes(), [u8::MAX; 2]);
    }
    // IPv4 shares its bytes with IPv6: a prefix means nothing without the version.
    if let Some(version) = family(matched) {
        key.ip_version = version;
        bits.ip_version = u8::MAX;
    }
    if let Some(prefix) = &matched.source {
        (key.source, bits.source) = (prefix.key_bytes(), prefix.mask_bytes());
    }
    if let Some(prefix) = &matched.destination {
        (key.destination, bits.destination) = (prefix.key_bytes(), prefix.mask_bytes());
    }
    if let Some(protocol) = matched.protocol {
        (key.protocol, bits.protocol) = (protocol.0, u8::MAX);
    }
    if let Some(flags) = matched.tcp_flags {
        (key.tcp_flags, bits.tcp_flags) = (flags.set(), flags.compared());
    }
    if let Some(dscp) = matched.dscp {
        (key.dscp, bits.dscp) = (dscp, u8::MAX);
    }
    if let Some(fragment) = matched.fragment {
        key.fragment = match fragment {
            FragmentMatch::None => bpf_maps::FRAGMENT_NONE,
            FragmentMatch::First => bpf_maps::FRAGMENT_FIRST,
            FragmentMatch::Later => bpf_maps::FRAGMENT_LATER,
        };
        bits.fragment = u8::MAX;
    }
    Ok((bits, key))
}

/// Returns the IP version that a match asks for, by itself or by its addresses.
fn family(matched: &Match) -> Option<u8> {
    let of_prefix = matched.source.or(matched.destination).map(|prefix| prefix.ip_version());
    let of_type = matched.ethertype.and_then(Ethertype::ip_version);
    matched.ip_version.or(of_prefix).or(of_type).map(|version| version.number())
}

fn compile_action(rule: &Rule, rank: u32, lookup: &Lookup) -> Result<bpf_maps::Rule, RuleSetError> {
    let (action, entry) = match &rule.spec.action {
        _ if lookup.down.contains(&rule.id) => (bpf_maps::ACTION_DOWN, 0),
        Action::Forward => (bpf_maps::ACTION_FORWARD, 0),
        Action::Drop => (bpf_maps::ACTION_DROP, 0),
        Action::Out(port) => (bpf_maps::ACTION_OUT, find(&lookup.ports, port, rule, "port")?.0),
        Action::Service(name) => {
            let Destination { entry, path, .. } = find(&lookup.services, name, rule, "service")?;
            let action = match path {
                Path::Cell => bpf_maps::ACTION_USER,
                Path::Lane => bpf_maps::ACTION_SERVICE,
                Path::Down => bpf_maps::ACTION_DOWN,
                Path::Listener { port, closed } => {
                    return intercept(rule, rank, (port, closed), lookup);
                }
            };
            (action, entry.0)
        }
    };
    let session = find(&lookup.sessions, &rule.spec.session, rule, "session")?.0;
    Ok(bpf_maps::Rule { rank, rule: rule.id.0, session, entry, action, zero: [0; 3] })
}

/// Checks that no rule leads packets of a port at tc to a packet service or out of another port,
/// which needs XDP.
fn needs_no_xdp_at_tc(rule: &Rule, lookup: &Lookup) -> Result<(), RuleSetError> {
    let of_packets = match &rule.spec.action {
        Action::Forward | Action::Drop => false,
        Action::Out(_) => true,
        Action::Service(name) => {
            lookup.services.get(name).is_some_and(|destination| destination.kind == Kind::Packets)
        }
    };
    let matched = &rule.spec.r#match;
    let may_enter_by = |port: &&Name| matched.port.as_ref().is_none_or(|asked| asked == *port);
    match lookup.at_tc.iter().find(may_enter_by) {
        Some(port) if of_packets => {
            let (text, port) = (matched.to_string(), port.clone());
            Err(RuleSetError::AtTc { rule: rule.id, text, port })
        }
        _ => Ok(()),
    }
}

/// Returns the entry of a rule that leads to a listener.
fn intercept(
    rule: &Rule,
    rank: u32,
    (port, closed): (u16, bool),
    lookup: &Lookup,
) -> Result<bpf_maps::Rule, RuleSetError> {
    let text = || rule.spec.r#match.to_string();
    if rule.spec.r#match.protocol != Some(Protocol::TCP) {
        return Err(RuleSetError::NotTcp { rule: rule.id, text: text() });
    }
    let matched = &rule.spec.r#match;
    if matched.tcp_flags.is_some() || matched.dscp.is_some() || matched.fragment.is_some() {
        return Err(RuleSetError::PartOfConnections { rule: rule.id, text: text() });
    }
    if rule.spec.flows.is_some() {
        return Err(RuleSetError::FlowsOfStreams { rule: rule.id, text: text() });
    }
    let session = find(&lookup.sessions, &rule.spec.session, rule, "session")?.0;
    let action = match closed {
        true => bpf_maps::ACTION_INTERCEPT_CLOSED,
        false => bpf_maps::ACTION_INTERCEPT,
    };
    let rule = rule.id.0;
    Ok(bpf_maps::Rule { rank, rule, session, entry: port, action, zero: [0; 3] })
}

fn find<T: Copy>(
    names: &BTreeMap<Name, T>,
    name: &Name,
    rule: &Rule,
    kind: &'static str,
) -> Result<T, RuleSetError> {
    let unknown = || RuleSetError::Unknown { rule: rule.id, kind, name: name.clone() };
    names.get(name).copied().ok_or_else(unknown)
}

impl RuleSet {
    /// Returns the front door's decision for a packet with this key.
    #[must_use]
    pub fn decide(&self, packet: &Key) -> Decision {
        let mut decision = Decision::default();
        for stage in [Stage::In, Stage::Service, Stage::Out] {
            let best = self.lookup(stage, packet);
            let hidden = self.hidden.lookup(stage, packet);
            if hidden.is_some_and(|hidden| best.is_none_or(|best| hidden < best.rank)) {
                decision.hide();
            }
            if decision.hidden {
                break;
            }
            if let Some(rule) = best {
                decision.add(rule);
            }
        }
        decision
    }

    /// Returns the best rule of a stage for a packet with this key, by the front door's own search.
    #[must_use]
    pub fn lookup(&self, stage: Stage, packet: &Key) -> Option<&bpf_maps::Rule> {
        let mut best: Option<&bpf_maps::Rule> = None;
        let masks = (0u16..).zip(&self.masks).filter(|(_, mask)| mask.stage == stage.number());
        for (index, mask) in masks {
            if best.is_some_and(|rule| rule.rank < mask.rank_best) {
                break;
            }
            if hidden::compares(&mask.bits, packet.hidden) {
                continue;
            }
            // Frames that are not IP match only rules that name their ethertype.
            if packet.ip_version == 0 && mask.bits.ethertype_be == [0; 2] {
                continue;
            }
            let mut key = masked(packet, &mask.bits);
            key.mask = index;
            let found = match self.lists.iter().find(|list| list.mask == index) {
                Some(list) => list.has(&key).then_some(&list.rule),
                None => self.probe(&key),
            };
            if let Some(rule) = found
                && best.is_none_or(|found| rule.rank < found.rank)
            {
                best = Some(rule);
            }
        }
        best
    }

    fn probe(&self, key: &Key) -> Option<&bpf_maps::Rule> {
        let wanted = bytes_of(key);
        let at = self.entries.binary_search_by(|(key, _)| bytes_of(key).cmp(&wanted)).ok()?;
        self.entries.get(at).map(|(_, rule)| rule)
    }
}

/// Rules of one packet: at most one of each stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// First rule that decides something, or else the first that only counts.
    pub first: Option<bpf_maps::Rule>,
    /// Rules of later stages that decide something too.
    pub then: Vec<bpf_maps::Rule>,
    /// Rules that only count.
    pub counted: Vec<bpf_maps::Rule>,
    /// True when a possibly better rule needs a field that the packet hides: the packet is dropped.
    pub hidden: bool,
}

impl Decision {
    /// Returns the first action applied to the packet, one of `ACTION_*`.
    #[must_use]
    pub fn action(&self) -> u8 {
        self.first.map_or(bpf_maps::ACTION_FORWARD, |rule| rule.action)
    }

    /// Marks the packet as dropped for hidden fields, unless an earlier rule ends it.
    fn hide(&mut self) {
        self.hidden = !matches!(self.action(), bpf_maps::ACTION_DROP | bpf_maps::ACTION_OUT);
    }

    /// Adds the best rule of the next stage, as `add_rule` in `levels/bpf/c/search.h` does.
    fn add(&mut self, rule: &bpf_maps::Rule) {
        let decides = rule.action != bpf_maps::ACTION_FORWARD;
        match self.action() {
            // An earlier rule ends the packet's journey.
            bpf_maps::ACTION_DROP | bpf_maps::ACTION_OUT => {}
            bpf_maps::ACTION_FORWARD if decides => self.counted.extend(self.first.replace(*rule)),
            _ if self.first.is_none() => self.first = Some(*rule),
            _ if decides => self.then.push(*rule),
            _ => self.counted.push(*rule),
        }
    }
}

impl ListedFlows {
    /// Returns true if the masked key is one of the listed flows.
    fn has(&self, key: &Key) -> bool {
        let beside = |key: &Key| bytemuck::cast::<Key, [u8; KEY_LENGTH]>(Key { mask: 0, ..*key });
        self.flows.has(key)
            && beside(key)[FLOW_KEY_LENGTH..] == beside(&self.template)[FLOW_KEY_LENGTH..]
    }
}

fn masked(key: &Key, bits: &Key) -> Key {
    let mut bytes = bytes_of(key);
    for (byte, bit) in bytes.iter_mut().zip(bytes_of(bits)) {
        *byte &= bit;
    }
    bytemuck::cast(bytes)
}

/// Returns the key of a parsed packet that came in by `port`.
///
/// The front door gives later fragments the L4 ports of their first one; here they are 0.
#[must_use]
pub fn key_of(parsed: &wire::Parsed, port: PortId) -> Key {
    Key {
        source: parsed.source,
        destination: parsed.destination,
        source_port_be: parsed.source_port.to_be_bytes(),
        destination_port_be: parsed.destination_port.to_be_bytes(),
        protocol: parsed.protocol,
        ip_version: parsed.ip_version,
        vlan: parsed.vlan.map_or(0, |tag| bpf_maps::VLAN_PRESENT | tag.id),
        port: port.0,
        dscp: parsed.dscp,
        fragment: match parsed.fragment {
            wire::Fragment::None => bpf_maps::FRAGMENT_NONE,
            wire::Fragment::First => bpf_maps::FRAGMENT_FIRST,
            wire::Fragment::Later => bpf_maps::FRAGMENT_LATER,
        },
        source_mac: parsed.ethernet.source,
        destination_mac: parsed.ethernet.destination,
        ethertype_be: ethertype_of(parsed).to_be_bytes(),
        tcp_flags: parsed.tcp_flags,
        hidden: parsed.hidden as u16,
        ..Key::default()
    }
}

/// Returns the ethertype as rules see it: every 802.3 length counts as `llc`.
const fn ethertype_of(parsed: &wire::Parsed) -> u16 {
    if parsed.ethernet.ethertype < crate::ethernet::ETHERTYPE_MIN {
        bpf_maps::ETHERTYPE_LENGTH
    } else {
        parsed.ethernet.ethertype
    }
}

/// Reach of a rule, as `tam rule list` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// Installed in the front door.
    Installed,
    /// Not installed because its service does not run: its packets are forwarded plainly or meet
    /// the next rule.
    Waiting,
    /// Installed to drop: its closed service does not run.
    Closed,
    /// Unreachable: better rules take all of its packets.
    Shadowed {
        /// Number of one of these better rules.
        by: RuleId,
    },
}

#[cfg(test)]
mod tests;
