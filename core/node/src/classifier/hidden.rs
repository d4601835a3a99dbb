//! Keys for packets that do not show all L4 fields, by the rules that may apply to them.
//!
//! A router forwards a packet whose L4 header is cut off, or comes after more extension headers
//! than it parses. A rule that compares a field which such a packet hides may or may not apply to
//! it. So each rule that does more than count has further keys, without the hidden fields:
//!
//! ```text
//! udp dst 10.0.0.0/8 dport 53 ─▶ ports hidden:    udp dst 10.0.0.0/8
//!                             └▶ protocol hidden:     dst 10.0.0.0/8
//! ```
//!
//! The packet is dropped if the best of these keys is better than the best rule that needs no
//! hidden field. [`bpf_maps::HIDDEN_MASKS_MAX`] is enough for all masks.
//!
//! A list of flows has such keys for each flow, too, up to [`FLOWS_HIDDEN_MAX`] flows in all lists;
//! beyond that a list has the keys of the other fields of its match only.

use std::collections::BTreeMap;

use bpf_maps::{FLOW_KEY_LENGTH, Key, MASKS_MAX, Mask};
use wire::Hidden;

use super::{KEY_LENGTH, bytes_of, masked, with_ports};
use crate::flows::FlowList;
use crate::l4::PortPrefix;
use crate::rule::Stage;

/// Limit of listed flows, from the best rule on, that get keys of their own for hidden fields: each
/// has two keys, which every change of rules writes again.
pub const FLOWS_HIDDEN_MAX: usize = 4096;

/// L4 fields that packets may hide.
const ALL: [Hidden; 3] = [Hidden::Flags, Hidden::Ports, Hidden::Protocol];

/// Masks and keys for packets with hidden fields; the index of such a mask comes after
/// [`MASKS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HiddenRules {
    /// Masks without the hidden fields.
    pub masks: Vec<Mask>,
    /// Keys, each with the best of its rules, sorted by their bytes.
    pub entries: Vec<(Key, bpf_maps::Rule)>,
}

impl HiddenRules {
    /// Returns the best rank of the rules of a stage that may apply to a packet.
    pub(super) fn lookup(&self, stage: Stage, packet: &Key) -> Option<u32> {
        if packet.hidden == 0 {
            return None;
        }
        let masks = (MASKS_MAX as u16..).zip(&self.masks);
        let of_stage = masks.filter(|(_, mask)| mask.stage == stage.number());
        let found = of_stage.filter_map(|(index, mask)| {
            let wanted = bytes_of(&Key { mask: index, ..masked(packet, &mask.bits) });
            let at = self.entries.binary_search_by(|(key, _)| bytes_of(key).cmp(&wanted)).ok()?;
            self.entries.get(at).map(|(_, rule)| rule.rank)
        });
        found.min()
    }
}

/// Returns true if a mask compares a field that a packet hides.
pub(super) fn compares(bits: &Key, hidden: u16) -> bool {
    let ports = [bits.source_port_be, bits.destination_port_be] != [[0; 2]; 2];
    (hidden >= Hidden::Flags as u16 && bits.tcp_flags != 0)
        || (hidden >= Hidden::Ports as u16 && ports)
        || (hidden >= Hidden::Protocol as u16 && bits.protocol != 0)
}

/// Keys for hidden fields while they are collected, from the best rule to the worst.
#[derive(Default)]
pub(super) struct HiddenKeys {
    masks: BTreeMap<(Stage, [u8; KEY_LENGTH]), u16>,
    found: HiddenRules,
    entries: BTreeMap<[u8; KEY_LENGTH], bpf_maps::Rule>,
    /// Number of listed flows that have keys of their own.
    flows: usize,
}

impl HiddenKeys {
    /// Adds the keys of a rule; `bits` and `key` are without the L4 ports, which are in `ports`.
    pub(super) fn add(
        &mut self,
        stage: Stage,
        (bits, key): (Key, Key),
        ports: &[(PortPrefix, PortPrefix)],
        rule: bpf_maps::Rule,
    ) {
        if rule.action == bpf_maps::ACTION_FORWARD {
            return;
        }
        let compares_ports = ports.iter().any(|(source, to)| source.mask | to.mask != 0);
        let all = if compares_ports { [u8::MAX; 2] } else { [0; 2] };
        let port_bits = Key { source_port_be: all, ..bits };
        for hidden in ALL.into_iter().filter(|hidden| compares(&port_bits, *hidden as u16)) {
            let bits = without(bits, hidden);
            let key = masked(&key, &bits);
            if hidden > Hidden::Flags {
                self.insert(stage, bits, key, hidden, rule);
                continue;
            }
            for (source, destination) in ports {
                let (bits, key) = with_ports(bits, key, *source, *destination);
                self.insert(stage, bits, key, hidden, rule);
            }
        }
    }

    /// Adds the keys of a list of flows; `bits` and `template` are the other fields of its match.
    pub(super) fn add_list(
        &mut self,
        stage: Stage,
        (mut bits, template): (Key, Key),
        flows: &FlowList,
        rule: bpf_maps::Rule,
    ) {
        if rule.action == bpf_maps::ACTION_FORWARD {
            return;
        }
        let is_each = self.flows + flows.count() <= FLOWS_HIDDEN_MAX;
        self.flows += if is_each { flows.count() } else { 0 };
        let of_flow = if is_each { u8::MAX } else { 0 };
        bytemuck::bytes_of_mut(&mut bits)[..FLOW_KEY_LENGTH].fill(of_flow);
        for hidden in [Hidden::Ports, Hidden::Protocol] {
            let bits = without(bits, hidden);
            if !is_each {
                self.insert(stage, bits, masked(&template, &bits), hidden, rule);
                continue;
            }
            for flow in flows.keys().iter() {
                let mut key = template;
                bytemuck::bytes_of_mut(&mut key)[..FLOW_KEY_LENGTH].copy_from_slice(flow);
                self.insert(stage, bits, masked(&key, &bits), hidden, rule);
            }
        }
    }

    fn insert(&mut self, stage: Stage, bits: Key, key: Key, hidden: Hidden, rule: bpf_maps::Rule) {
        let bits = Key { hidden: u16::MAX, ..bits };
        let next = self.found.masks.len();
        let index = *self.masks.entry((stage, bytes_of(&bits))).or_insert_with(|| {
            let (stage, rank_best) = (stage.number(), rule.rank);
            self.found.masks.push(Mask { bits, rank_best, stage, ..Mask::default() });
            (MASKS_MAX + next) as u16
        });
        let key = Key { hidden: hidden as u16, mask: index, ..key };
        // The better rule was inserted first.
        self.entries.entry(bytes_of(&key)).or_insert(rule);
    }

    /// Returns the collected masks and keys.
    pub(super) fn finish(self) -> HiddenRules {
        let entries = self.entries.into_iter().map(|(key, rule)| (bytemuck::cast(key), rule));
        HiddenRules { entries: entries.collect(), ..self.found }
    }
}

/// Returns the bits of a mask that a packet with these hidden fields shows.
fn without(mut bits: Key, hidden: Hidden) -> Key {
    bits.tcp_flags = 0;
    if hidden >= Hidden::Ports {
        (bits.source_port_be, bits.destination_port_be) = ([0; 2], [0; 2]);
    }
    if hidden >= Hidden::Protocol {
        bits.protocol = 0;
    }
    bits
}
