//! Search for rules that no packet reaches because better rules take all of their packets.
//!
//! A key's packets are those that agree with it in the bits of its mask. The search tests one
//! packet at a time for a better key:
//!
//! ```text
//! one packet of the key ─ does a better key match it? ─ no ─▶ the rule is reachable
//!                                   │ yes
//!                                   ▼
//! for each bit that only the better key compares: the same for the packets that differ in it
//! ```
//!
//! The answer is exact as long as it takes no more than [`PACKETS_OF_RULE_MAX`] packets; else the
//! rule counts as reachable, and is installed. Lists of flows do not count as better keys.

use bpf_maps::{Key, Mask};
use units::RuleId;
use wire::Hidden;

use super::{Keys, RuleSet, bytes_of, hidden, masked, with_ports};
use crate::l4::PortPrefix;
use crate::rule::Stage;

/// Limit of packets that are looked up for one rule.
const PACKETS_OF_RULE_MAX: u32 = 256;
/// Limit of packets that are looked up for all rules of a set: one for each, and more for some.
const PACKETS_MAX: u32 = 65_536;
/// Number of values of the DSCP field, which has six bits.
const DSCP_VALUES: u8 = 64;

/// Possible packets of a node, and the lookups that are left.
#[derive(Default)]
pub(super) struct Packets {
    /// Numbers of the ports by which packets come in.
    ports: Vec<u16>,
    left: u32,
}

impl Packets {
    /// Returns the packets of a node with these ports.
    pub(super) fn new(ports: impl Iterator<Item = u16>) -> Self {
        Self { ports: ports.collect(), left: PACKETS_MAX }
    }

    /// Returns a packet that matches a key; `None` if none can.
    fn find(&self, bits: &Key, key: &Key) -> Option<Key> {
        let is_ip = bits.ethertype_be == [0; 2];
        let versions: &[u8] = if is_ip { &[4, 6] } else { &[0] };
        let ip_version = *versions.iter().find(|it| **it & bits.ip_version == key.ip_version)?;
        let port = match self.ports.as_slice() {
            [] => key.port,
            ports => *ports.iter().find(|it| **it & bits.port == key.port)?,
        };
        let mut fragments = bpf_maps::FRAGMENT_NONE..=bpf_maps::FRAGMENT_LATER;
        let fragment = fragments.find(|it| it & bits.fragment == key.fragment)?;
        let dscp = (0..DSCP_VALUES).find(|it| it & bits.dscp == key.dscp)?;
        Some(Key { ip_version, port, fragment, dscp, ..*key })
    }
}

/// Returns a rule that takes a packet of the match, if better rules in the set take all of them.
pub(super) fn cover(
    set: &RuleSet,
    keys: &mut Keys,
    stage: Stage,
    (bits, key): (Key, Key),
    ports: &[(PortPrefix, PortPrefix)],
) -> Option<RuleId> {
    let may_ask = PACKETS_OF_RULE_MAX.min(keys.packets.left);
    let mut search = Search { set, keys, stage, hidden: 0, left: may_ask };
    let mut better = None;
    for &(source, destination) in ports {
        let (bits, key) = with_ports(bits, key, source, destination);
        search.hidden = most_hidden(&bits);
        let found = search.wider(&bits, &key).or_else(|| search.together(bits, key));
        if found.is_none() {
            better = None;
            break;
        }
        better = better.or(found);
    }
    keys.packets.left -= may_ask - search.left;
    better
}

/// Returns the most L4 fields that a packet of a key can hide: a rule that needs a hidden field
/// does not match it.
fn most_hidden(bits: &Key) -> u16 {
    let all = [Hidden::Protocol, Hidden::Ports, Hidden::Flags].map(|it| it as u16);
    all.into_iter().find(|it| !hidden::compares(bits, *it)).unwrap_or(0)
}

/// Search for better keys that take a key's packets.
struct Search<'a> {
    set: &'a RuleSet,
    keys: &'a Keys,
    stage: Stage,
    /// Most L4 fields that the key's packets can hide ([`Hidden`]).
    hidden: u16,
    /// Number of lookups that are left.
    left: u32,
}

impl Search<'_> {
    /// Returns a better rule that takes all packets of a key by itself: its mask has the same bits
    /// or fewer.
    fn wider(&self, bits: &Key, key: &Key) -> Option<RuleId> {
        self.better(key, |mask| is_wider(&mask.bits, bits)).map(|(_, rule)| rule)
    }

    /// Returns a better rule that takes a packet of the key, if better rules together take all of
    /// them.
    fn together(&mut self, bits: Key, key: Key) -> Option<RuleId> {
        let hidden = self.hidden;
        let is_asked = |mask: &Mask| {
            mask.bits.ethertype_be == bits.ethertype_be && !hidden::compares(&mask.bits, hidden)
        };
        let mut waiting = vec![(bits, self.keys.packets.find(&bits, &key)?)];
        let mut first = None;
        while let Some((bits, packet)) = waiting.pop() {
            self.left = self.left.checked_sub(1)?;
            let (mask, rule) = self.better(&packet, is_asked)?;
            first = first.or(Some(rule));
            let others = differing(&bits, &packet, &mask);
            waiting.extend(others.filter_map(|(bits, key)| {
                self.keys.packets.find(&bits, &key).map(|packet| (bits, packet))
            }));
            if waiting.len() > self.left as usize {
                return None;
            }
        }
        first
    }

    /// Returns mask and rule of a better key that matches a packet, among the masks that `is_asked`
    /// accepts.
    fn better(&self, packet: &Key, is_asked: impl Fn(&Mask) -> bool) -> Option<(Key, RuleId)> {
        let stage = self.stage.number();
        let masks = (0u16..).zip(&self.set.masks);
        let mut asked = masks.filter(|(_, mask)| mask.stage == stage && is_asked(mask));
        asked.find_map(|(index, mask)| {
            let key = Key { mask: index, ..masked(packet, &mask.bits) };
            let rule = self.keys.entries.get(&bytes_of(&key))?;
            // An intercept rule leaves packets that belong to no connection of its service to the
            // kernel.
            let is_rules = rule.action != bpf_maps::ACTION_INTERCEPT_BACK;
            is_rules.then_some((mask.bits, RuleId(rule.rule)))
        })
    }
}

/// Returns the packets of a key, given by `bits` and one `packet` of it, that a better key with
/// that packet and `mask` does not take. There is one part for each bit of `mask` that `bits`
/// lacks: the packets that differ in that bit, and agree in those before it.
fn differing(bits: &Key, packet: &Key, mask: &Key) -> impl Iterator<Item = (Key, Key)> {
    let (mut known, packet, mask) = (bytes_of(bits), bytes_of(packet), bytes_of(mask));
    let bits_of = |at: usize| (0..8).rev().map(move |bit| (at, 1u8 << bit));
    (0..packet.len()).flat_map(bits_of).filter_map(move |(at, bit)| {
        if mask[at] & !known[at] & bit == 0 {
            return None;
        }
        known[at] |= bit;
        let mut other = packet;
        other[at] ^= bit;
        let bits: Key = bytemuck::cast(known);
        Some((bits, masked(&bytemuck::cast(other), &bits)))
    })
}

/// Returns true if a mask compares nothing that the other does not. A mask without an ethertype is
/// for IP only, and so is not wider than one of another type.
fn is_wider(one: &Key, other: &Key) -> bool {
    let bytes = |key: &Key| bytes_of(&Key { mask: 0, ..*key });
    let is_within = bytes(one).iter().zip(bytes(other)).all(|(one, other)| one & !other == 0);
    is_within && (one.ethertype_be == other.ethertype_be)
}
