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
//! there are different sets, not rules. [`RuleSet::lookup`] is precisely the
//! algorithm of `levels/bpf/c/front_door.bpf.c`.

use std::collections::BTreeMap;

use bpf_maps::{Key, MASKS_MAX, Mask, RULES_MAX};
use serde::{Deserialize, Serialize};
use units::{EntryId, Name, PortId, RuleId, SessionId};

use crate::rule::{Action, FragmentMatch, Match, Rule, VlanMatch};

/// What the names in rules stand for.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Ports of the node.
    pub ports: BTreeMap<Name, PortId>,
    /// Services that run.
    pub services: BTreeMap<Name, Destination>,
    /// Sessions of the node.
    pub sessions: BTreeMap<Name, SessionId>,
}

/// Where a rule's service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its entry in the cell.
    pub entry: EntryId,
    /// Whether its packets go by a lane, which says the level.
    pub movable: bool,
}

/// What the front door is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Sets of matched fields, sorted by their best rank.
    pub masks: Vec<Mask>,
    /// Masked keys and what their rule says, sorted by the bytes of the key.
    pub entries: Vec<(Key, bpf_maps::Rule)>,
    /// Rules that no packet can reach, each with a better one of the same match.
    pub shadowed: Vec<(RuleId, RuleId)>,
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
        "rule {rule} ('{text}') needs another set of matched fields, and the front door tries at most {MASKS_MAX}; use the same fields and prefix lengths as other rules"
    )]
    TooManyMasks {
        /// The rule that does not fit.
        rule: RuleId,
        /// Its match.
        text: String,
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
/// Of rules with equal matches only the best stays; the others are in
/// [`RuleSet::shadowed`].
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
    let mut mask_index = BTreeMap::<[u8; KEY_LENGTH], u16>::new();
    let mut entries = BTreeMap::<[u8; KEY_LENGTH], bpf_maps::Rule>::new();
    for (rank, rule) in (0u32..).zip(ranked) {
        if rank as usize >= RULES_MAX || rule.id.0 as usize >= RULES_MAX {
            return Err(RuleSetError::TooManyRules { rule: rule.id });
        }
        let (bits, mut key) = compile_match(rule, lookup)?;
        key.mask = match mask_index.get(&bytes_of(&bits)) {
            Some(&index) => index,
            None => {
                // Ranks only grow, so the masks are sorted as they are found.
                let index = add_mask(&mut set.masks, rule, bits, rank)?;
                mask_index.insert(bytes_of(&bits), index);
                index
            }
        };
        if let Some(better) = entries.get(&bytes_of(&key)) {
            set.shadowed.push((rule.id, RuleId(better.rule)));
            continue;
        }
        entries.insert(bytes_of(&key), compile_action(rule, rank, lookup)?);
    }
    set.entries = entries.into_iter().map(|(key, rule)| (bytemuck::cast(key), rule)).collect();
    Ok(set)
}

const KEY_LENGTH: usize = size_of::<Key>();

fn bytes_of(key: &Key) -> [u8; KEY_LENGTH] {
    bytemuck::cast(*key)
}

fn add_mask(masks: &mut Vec<Mask>, rule: &Rule, bits: Key, rank: u32) -> Result<u16, RuleSetError> {
    match u16::try_from(masks.len()) {
        Ok(index) if masks.len() < MASKS_MAX => {
            masks.push(Mask { bits, rank_best: rank, zero: 0 });
            Ok(index)
        }
        _ => Err(RuleSetError::TooManyMasks { rule: rule.id, text: rule.spec.r#match.to_string() }),
    }
}

/// The mask of a rule's match and its key, which is zero where the mask is.
fn compile_match(rule: &Rule, lookup: &Lookup) -> Result<(Key, Key), RuleSetError> {
    let matched = &rule.spec.r#match;
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
    if let Some(port) = matched.source_port {
        (key.source_port_be, bits.source_port_be) = (port.to_be_bytes(), [u8::MAX; 2]);
    }
    if let Some(port) = matched.destination_port {
        (key.destination_port_be, bits.destination_port_be) = (port.to_be_bytes(), [u8::MAX; 2]);
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
    matched.ip_version.or(of_prefix).map(|version| version.number())
}

fn compile_action(rule: &Rule, rank: u32, lookup: &Lookup) -> Result<bpf_maps::Rule, RuleSetError> {
    let (action, entry) = match &rule.spec.action {
        Action::Forward => (bpf_maps::ACTION_FORWARD, 0),
        Action::Drop => (bpf_maps::ACTION_DROP, 0),
        Action::Service(name) => {
            let Destination { entry, movable } = find(&lookup.services, name, rule, "service")?;
            let action = if movable { bpf_maps::ACTION_SERVICE } else { bpf_maps::ACTION_USER };
            (action, entry.0)
        }
    };
    let session = find(&lookup.sessions, &rule.spec.session, rule, "session")?.0;
    Ok(bpf_maps::Rule { rank, rule: rule.id.0, session, entry, action, zero: [0; 3] })
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
    /// The rule of a packet with this key, found as the front door finds it.
    #[must_use]
    pub fn lookup(&self, packet: &Key) -> Option<&bpf_maps::Rule> {
        let mut best: Option<&bpf_maps::Rule> = None;
        for (index, mask) in (0u16..).zip(&self.masks) {
            if best.is_some_and(|rule| rule.rank < mask.rank_best) {
                break;
            }
            let mut key = masked(packet, &mask.bits);
            key.mask = index;
            if let Some(rule) = self.probe(&key)
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
        mask: 0,
        zero: 0,
    }
}

/// A rule's reach as `tam rule list` shows it: none, when a better rule has the same match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The front door has it.
    Installed,
    /// Its service does not run: its packets are forwarded plainly or meet the next rule.
    Waiting,
    /// A better rule has the same match.
    Shadowed {
        /// That rule.
        by: RuleId,
    },
}

#[cfg(test)]
mod tests;
