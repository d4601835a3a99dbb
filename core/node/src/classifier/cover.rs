//! Rules that no packet reaches, since better ones have all of theirs.
//!
//! The packets of a key are those that agree with it in the bits of its mask. Whether better keys
//! have them all is asked of one packet at a time:
//!
//! ```text
//! one packet of the key ─ does a better key have it? ─ no ─▶ the rule is reached
//!                                   │ yes
//!                                   ▼
//! for each bit that only the better key looks at: the packets that differ in it, in the same way
//! ```
//!
//! The answer is exact as long as it takes no more than [`PACKETS_OF_RULE_MAX`] packets; else the
//! rule counts as reached, and is installed. Packets of a list of flows are not taken for those of
//! better keys.

use bpf_maps::{Key, Mask};
use units::RuleId;
use wire::Hidden;

use super::{Keys, RuleSet, bytes_of, hidden, masked, with_ports};
use crate::l4::PortPrefix;
use crate::rule::Stage;

/// Packets that are looked up for one rule.
const PACKETS_OF_RULE_MAX: u32 = 256;
/// Packets that are looked up for all rules of a set: one for each, and for some of them more.
const PACKETS_MAX: u32 = 65_536;
/// Values of the field "DSCP", which has six bits.
const DSCP_VALUES: u8 = 64;

/// The packets that there can be, and how many may be looked up yet.
#[derive(Default)]
pub(super) struct Packets {
    /// Numbers of the ports by which they come in.
    ports: Vec<u16>,
    left: u32,
}

impl Packets {
    /// Returns those of a node with these ports.
    pub(super) fn new(ports: impl Iterator<Item = u16>) -> Self {
        Self { ports: ports.collect(), left: PACKETS_MAX }
    }

    /// Returns a packet of a key; `None` where there is none.
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

/// Returns a rule that has a packet of the match, if better ones in the set have each of them.
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

/// Returns how much of L4 a packet of a key can hide: a rule that looks at what it hides does not
/// have it.
fn most_hidden(bits: &Key) -> u16 {
    let all = [Hidden::Protocol, Hidden::Ports, Hidden::Flags].map(|it| it as u16);
    all.into_iter().find(|it| !hidden::looks_at(bits, *it)).unwrap_or(0)
}

/// The search for the better keys of a key's packets.
struct Search<'a> {
    set: &'a RuleSet,
    keys: &'a Keys,
    stage: Stage,
    /// Most that its packets hide of L4 ([`Hidden`]).
    hidden: u16,
    /// Packets that may be looked up yet.
    left: u32,
}

impl Search<'_> {
    /// Returns a better rule that has a key's packets alone: by the same bits, or fewer.
    fn wider(&self, bits: &Key, key: &Key) -> Option<RuleId> {
        self.better(key, |mask| is_wider(&mask.bits, bits)).map(|(_, rule)| rule)
    }

    /// Returns a rule that has a packet of the key, if better ones have each of them together.
    fn together(&mut self, bits: Key, key: Key) -> Option<RuleId> {
        let hidden = self.hidden;
        let is_asked = |mask: &Mask| {
            mask.bits.ethertype_be == bits.ethertype_be && !hidden::looks_at(&mask.bits, hidden)
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

    /// Returns the mask and the rule of a better key that a packet has, of the masks that are
    /// asked.
    fn better(&self, packet: &Key, is_asked: impl Fn(&Mask) -> bool) -> Option<(Key, RuleId)> {
        let stage = self.stage.number();
        let masks = (0u16..).zip(&self.set.masks);
        let mut asked = masks.filter(|(_, mask)| mask.stage == stage && is_asked(mask));
        asked.find_map(|(index, mask)| {
            let key = Key { mask: index, ..masked(packet, &mask.bits) };
            let rule = self.keys.entries.get(&bytes_of(&key))?;
            // It leaves to the kernel what is no connection of its service.
            let is_rules = rule.action != bpf_maps::ACTION_INTERCEPT_BACK;
            is_rules.then_some((mask.bits, RuleId(rule.rule)))
        })
    }
}

/// Returns the packets with the bits of one that do not have a key that it has: for each bit of
/// the key's mask which `bits` lacks those that differ in it, and not in the ones before it.
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

/// Returns true when a mask looks at nothing that the other one does not look at. One without
/// an ethertype is for IP, and so not wider than one for something else.
fn is_wider(one: &Key, other: &Key) -> bool {
    let bytes = |key: &Key| bytes_of(&Key { mask: 0, ..*key });
    let is_within = bytes(one).iter().zip(bytes(other)).all(|(one, other)| one & !other == 0);
    is_within && (one.ethertype_be == other.ethertype_be)
}
