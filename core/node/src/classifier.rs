//! Rules as the front door finds them: tuple-space search.
//!
//! ```text
//! rules ─ sort by (priority desc, number asc) ─▶ rank 0, 1, 2, …
//!
//! masks    [bits, rank_best] sorted by rank_best     entries  (key & bits, index of the mask) → rule
//! lookup   for each mask: found a better rank than rank_best? stop : probe key & bits
//! ```
//!
//! A set of matched fields is one mask, so a lookup costs as many probes as
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

/// What the names in rules stand for.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Ports of the node.
    pub ports: BTreeMap<Name, PortId>,
    /// Services whose packets go elsewhere than other packets.
    pub services: BTreeMap<Name, Destination>,
    /// Sessions of the node.
    pub sessions: Arc<BTreeMap<Name, SessionId>>,
    /// Ports whose front door is at tc: what comes in there is for services of streams only.
    pub at_tc: BTreeSet<Name>,
    /// Rules whose packets are dropped as those of a closed service that is down, wherever they
    /// lead.
    pub down: BTreeSet<RuleId>,
}

/// Where the packets of a service go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its entry in the cell.
    pub entry: EntryId,
    /// By which way.
    pub way: Way,
    /// What it has.
    pub kind: Kind,
}

impl Destination {
    /// Of a service that runs at user level; one of streams that does not listen yet has port 0.
    #[must_use]
    pub fn of(entry: EntryId, module: &ModuleInfo, listener: Option<u16>) -> Self {
        let way = match module.kind {
            Kind::Packets => Way::Cell,
            Kind::Streams => Way::Listener { port: listener.unwrap_or(0), closed: false },
        };
        Self { entry, way, kind: module.kind }
    }
}

/// The way to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the cell.
    Cell,
    /// By a lane, which says the level.
    Lane,
    /// Its TCP connections, as they begin, come to a listener here.
    Listener {
        /// The listener's port.
        port: u16,
        /// While nobody listens they are dropped; else they go past the service.
        closed: bool,
    },
    /// It is down, and they are dropped.
    Down,
}

/// What the front door is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Sets of matched fields, sorted by their best rank.
    pub masks: Vec<Mask>,
    /// Masked keys and what their rule says, sorted by the bytes of the key.
    pub entries: Vec<(Key, bpf_maps::Rule)>,
    /// Masks whose keys are the flows of a list, in the order of their masks.
    pub lists: Vec<ListedFlows>,
    /// Masks for packets that hide something of L4.
    pub hidden: HiddenRules,
    /// Rules that no packet can reach, each with a better one that has its packets, or some of
    /// them where several have them all.
    pub shadowed: Vec<(RuleId, RuleId)>,
}

/// A mask whose keys are the flows of a list, all of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFlows {
    /// The index of the mask.
    pub mask: u16,
    /// What the rule's match asks for beside the flow.
    pub template: Key,
    /// The flows.
    pub flows: FlowList,
    /// What the rule says.
    pub rule: bpf_maps::Rule,
}

/// Why rules cannot be told to the front door. Whose fault: the operator's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// More than [`RULES_MAX`] rules, or a number beyond its counters.
    #[error(
        "rule {rule} is one too many: a node has counters for {RULES_MAX} rules; remove some, or match more by prefix"
    )]
    TooManyRules {
        /// The first rule that does not fit.
        rule: RuleId,
    },
    /// More than [`MASKS_MAX`] sets of matched fields.
    #[error(
        "rule {rule} ('{text}') needs another set of matched fields, and the front door tries at most {MASKS_MAX}; use the same fields, prefix lengths and TCP flags as other rules, and L4 port ranges that begin and end at multiples of 16, 256 or 4096"
    )]
    TooManyMasks {
        /// The rule that does not fit.
        rule: RuleId,
        /// Its match.
        text: String,
    },
    /// More than [`RULE_ENTRIES_MAX`] keys.
    #[error(
        "rule {rule} ('{text}') needs {needed} keys for its L4 port ranges, and of {RULE_ENTRIES_MAX} there are {left} left; let ranges begin and end at multiples of 16, 256 or 4096, or match only one of 'sport' and 'dport' by a range"
    )]
    TooManyEntries {
        /// The rule that does not fit.
        rule: RuleId,
        /// Its match.
        text: String,
        /// Keys that it would take.
        needed: usize,
        /// Keys that there is room for.
        left: usize,
    },
    /// More than [`FLOWS_LISTED_MAX`] flows in lists.
    #[error(
        "rule {rule} ('{text}') has a list of {needed} flows, and of {FLOWS_LISTED_MAX} there are {left} left; match more by prefix"
    )]
    TooManyFlows {
        /// The rule that does not fit.
        rule: RuleId,
        /// Its match.
        text: String,
        /// Flows of its list.
        needed: usize,
        /// Flows that there is room for.
        left: usize,
    },
    /// A match that says what the list says.
    #[error(
        "rule {rule} ('{text}') has a list of flows, which say IP version, addresses, protocol and L4 ports; beside a list a match may have in, vlan, smac, dmac, dscp and fragment"
    )]
    FlowsTwice {
        /// The rule.
        rule: RuleId,
        /// Its match.
        text: String,
    },
    /// A match for a service of streams that has more than TCP.
    #[error(
        "rule {rule} ('{text}') leads to a service of streams, which has TCP connections only; add 'proto tcp'"
    )]
    NotTcp {
        /// The rule.
        rule: RuleId,
        /// Its match.
        text: String,
    },
    /// A match for a service of streams that some packets of a connection have and others not.
    #[error(
        "rule {rule} ('{text}') leads to a service of streams, which has whole connections; leave out 'flags', 'dscp' and 'fragment'"
    )]
    PartOfConnections {
        /// The rule.
        rule: RuleId,
        /// Its match.
        text: String,
    },
    /// A list of flows for a service of streams.
    #[error(
        "rule {rule} ('{text}') leads to a service of streams by a list of flows; match them by addresses, L4 ports and 'proto tcp'"
    )]
    FlowsOfStreams {
        /// The rule.
        rule: RuleId,
        /// Its match.
        text: String,
    },
    /// A match for a service of packets, or 'out', where the front door is at tc.
    #[error(
        "rule {rule} ('{text}') may have packets that come in by '{port}', whose mode is \"tc\": that is for services of streams, and for dropping; let the rule say 'in' with another port, or leave the mode of '{port}' out of the node file"
    )]
    AtTc {
        /// The rule.
        rule: RuleId,
        /// Its match.
        text: String,
        /// The port.
        port: Name,
    },
    /// A name that stands for nothing.
    #[error("rule {rule} names the {kind} '{name}', which this node does not have")]
    Unknown {
        /// The rule.
        rule: RuleId,
        /// `port`, `service` or `session`.
        kind: &'static str,
        /// The name.
        name: Name,
    },
}

/// Compiles rules, in any order, for the front door.
///
/// A rule whose packets better rules have, alone or together, is in [`RuleSet::shadowed`] and nowhere
/// else, as far as that is found ([`cover`]).
///
/// # Errors
/// When a name is unknown or a limit of the front door's maps is exceeded.
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
            // A better rule for what comes back leaves it to go past the service.
            set.add_keys(&mut keys, rule, &way_back(matched), back, lookup)?;
        }
    }
    set.hidden = keys.hidden.finish();
    set.entries = keys.entries.into_iter().map(|(key, rule)| (bytemuck::cast(key), rule)).collect();
    Ok(set)
}

/// Keys as they are collected, and which masks there are for them.
#[derive(Default)]
struct Keys {
    masks: BTreeMap<(Stage, [u8; KEY_LENGTH]), u16>,
    entries: BTreeMap<[u8; KEY_LENGTH], bpf_maps::Rule>,
    hidden: HiddenKeys,
    packets: Packets,
}

impl RuleSet {
    /// Adds the keys of a match. The better rule that has one of them, if none is left for this.
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
                    // Ranks only grow, so the masks are sorted as they are found.
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

/// What comes back to who sent what is matched: wherever it comes in, and however it is marked.
fn way_back(matched: &Match) -> Match {
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

/// The L4 ports of a match as prefixes: each pair is a key.
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

/// Mask and key with these L4 ports.
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

/// A mask of its own for the flows of a list.
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

/// The mask of a rule's match and its key, which is zero where the mask is; without L4 ports.
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
    // Of IP the version says it, and no frame of another kind has to be looked at.
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
        (key.tcp_flags, bits.tcp_flags) = (flags.set(), flags.looked_at());
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

/// The IP version that a match asks for, by itself or by its addresses.
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
            let Destination { entry, way, .. } = find(&lookup.services, name, rule, "service")?;
            let action = match way {
                Way::Cell => bpf_maps::ACTION_USER,
                Way::Lane => bpf_maps::ACTION_SERVICE,
                Way::Down => bpf_maps::ACTION_DOWN,
                Way::Listener { port, closed } => {
                    return intercept(rule, rank, (port, closed), lookup);
                }
            };
            (action, entry.0)
        }
    };
    let session = find(&lookup.sessions, &rule.spec.session, rule, "session")?.0;
    Ok(bpf_maps::Rule { rank, rule: rule.id.0, session, entry, action, zero: [0; 3] })
}

/// What comes in by a port at tc cannot be given to a module or sent on from there.
fn needs_no_xdp_at_tc(rule: &Rule, lookup: &Lookup) -> Result<(), RuleSetError> {
    let of_packets = match &rule.spec.action {
        Action::Forward | Action::Drop => false,
        Action::Out(_) => true,
        Action::Service(name) => {
            lookup.services.get(name).is_some_and(|there| there.kind == Kind::Packets)
        }
    };
    let matched = &rule.spec.r#match;
    let may_come_by = |port: &&Name| matched.port.as_ref().is_none_or(|asked| asked == *port);
    match lookup.at_tc.iter().find(may_come_by) {
        Some(port) if of_packets => {
            let (text, port) = (matched.to_string(), port.clone());
            Err(RuleSetError::AtTc { rule: rule.id, text, port })
        }
        _ => Ok(()),
    }
}

/// What is said of a rule that leads to a listener.
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
    /// What becomes of a packet with this key, as the front door decides it.
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

    /// The best rule of a stage for a packet with this key, found as the front door finds it.
    #[must_use]
    pub fn lookup(&self, stage: Stage, packet: &Key) -> Option<&bpf_maps::Rule> {
        let mut best: Option<&bpf_maps::Rule> = None;
        let masks = (0u16..).zip(&self.masks).filter(|(_, mask)| mask.stage == stage.number());
        for (index, mask) in masks {
            if best.is_some_and(|rule| rule.rank < mask.rank_best) {
                break;
            }
            if hidden::looks_at(&mask.bits, packet.hidden) {
                continue;
            }
            // A frame that is not IP belongs to the rules that name its ethertype.
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

/// The rules of a packet: one of each stage at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The first that decides something, else the first that counts.
    pub first: Option<bpf_maps::Rule>,
    /// Those of the stages behind that decide something, too.
    pub then: Vec<bpf_maps::Rule>,
    /// Others, which only count.
    pub counted: Vec<bpf_maps::Rule>,
    /// A rule that may be better looks at what the packet hides: it is dropped.
    pub hidden: bool,
}

impl Decision {
    /// What becomes of the packet at first: `ACTION_*`.
    #[must_use]
    pub fn action(&self) -> u8 {
        self.first.map_or(bpf_maps::ACTION_FORWARD, |rule| rule.action)
    }

    /// Drops the packet, if it comes that far.
    fn hide(&mut self) {
        self.hidden = !matches!(self.action(), bpf_maps::ACTION_DROP | bpf_maps::ACTION_OUT);
    }

    /// Takes the best rule of the next stage, as `add_rule` in `levels/bpf/c/search.h`.
    fn add(&mut self, rule: &bpf_maps::Rule) {
        let decides = rule.action != bpf_maps::ACTION_FORWARD;
        match self.action() {
            // It does not come that far.
            bpf_maps::ACTION_DROP | bpf_maps::ACTION_OUT => {}
            bpf_maps::ACTION_FORWARD if decides => self.counted.extend(self.first.replace(*rule)),
            _ if self.first.is_none() => self.first = Some(*rule),
            _ if decides => self.then.push(*rule),
            _ => self.counted.push(*rule),
        }
    }
}

impl ListedFlows {
    /// Whether a masked key is one of them.
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

/// The key of a parsed packet that came in by `port`.
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

/// All lengths are one ethertype to rules.
const fn ethertype_of(parsed: &wire::Parsed) -> u16 {
    if parsed.ethernet.ethertype < crate::ethernet::ETHERTYPE_MIN {
        bpf_maps::ETHERTYPE_LENGTH
    } else {
        parsed.ethernet.ethertype
    }
}

/// A rule's reach as `tam rule list` shows it: none, when better rules have all of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The front door has it.
    Installed,
    /// Its service does not run: its packets are forwarded plainly or meet the next rule.
    Waiting,
    /// Its service does not run: its packets are dropped.
    Closed,
    /// Better rules have all of its packets.
    Shadowed {
        /// One of them.
        by: RuleId,
    },
}

#[cfg(test)]
mod tests;
