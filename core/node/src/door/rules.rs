//! Encoding of a rule set, with the machine's own addresses, for the process that runs the front
//! door in user space.
//!
//! ```text
//! │ counts: u32 each │ masks │ hidden ones │ keys and rules │ hidden ones │ …
//! │ each list: its rule's mask, template, rule, flows │ own addresses │ accepting ports │
//! ```

use bpf_maps::{FlowKey, Key, Mask, OwnPrefix, Rule};
use bytemuck::Pod;
use std::collections::BTreeSet;
use units::PortId;

use super::OwnSources;
use crate::classifier::{ListedFlows, RuleSet};
use crate::flows::FlowList;

/// The bytes are no rule set: the two ends are of different versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no rule set")]
pub struct InvalidRuleSet;

/// Encodes rules and own addresses; shadowed rules are left out.
#[must_use]
pub fn encode(rules: &RuleSet, own: &OwnSources) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (prefixes, accepting) = (own.prefixes(), own.accepting());
    let hidden = &rules.hidden;
    let counts = [rules.masks.len(), rules.entries.len(), rules.lists.len()];
    let more = [hidden.masks.len(), hidden.entries.len(), prefixes.len(), accepting.len()];
    for count in counts.into_iter().chain(more) {
        bytes.extend((count as u32).to_le_bytes());
    }
    bytes.extend_from_slice(bytemuck::cast_slice(&rules.masks));
    bytes.extend_from_slice(bytemuck::cast_slice(&hidden.masks));
    for (key, rule) in rules.entries.iter().chain(&hidden.entries) {
        bytes.extend_from_slice(bytemuck::bytes_of(key));
        bytes.extend_from_slice(bytemuck::bytes_of(rule));
    }
    for list in &rules.lists {
        bytes.extend(u32::from(list.mask).to_le_bytes());
        bytes.extend_from_slice(bytemuck::bytes_of(&list.template));
        bytes.extend_from_slice(bytemuck::bytes_of(&list.rule));
        bytes.extend((list.flows.count() as u32).to_le_bytes());
        bytes.extend_from_slice(list.flows.keys().as_flattened());
    }
    prefixes.iter().for_each(|prefix| bytes.extend_from_slice(bytemuck::bytes_of(prefix)));
    accepting.iter().for_each(|port| bytes.extend(port.0.to_le_bytes()));
    bytes
}

/// Decodes the bytes of [`encode`].
///
/// # Errors
/// The bytes are not exactly one rule set with own addresses.
pub fn decode(bytes: &[u8]) -> Result<(RuleSet, OwnSources), InvalidRuleSet> {
    let mut rest = bytes;
    let counts = [(); 7].map(|()| count(&mut rest));
    let [masks, entries, lists, hidden_masks, hidden_entries, own, accepting] = counts;
    let (masks, entries, lists) = (masks?, entries?, lists?);
    let mut rules = RuleSet::default();
    for _ in 0..masks {
        rules.masks.push(take::<Mask>(&mut rest)?);
    }
    for _ in 0..hidden_masks? {
        rules.hidden.masks.push(take::<Mask>(&mut rest)?);
    }
    for _ in 0..entries {
        rules.entries.push((take::<Key>(&mut rest)?, take::<Rule>(&mut rest)?));
    }
    for _ in 0..hidden_entries? {
        rules.hidden.entries.push((take::<Key>(&mut rest)?, take::<Rule>(&mut rest)?));
    }
    for _ in 0..lists {
        let mask = u16::try_from(count(&mut rest)?).map_err(|_| InvalidRuleSet)?;
        let (template, rule) = (take(&mut rest)?, take(&mut rest)?);
        let mut flows: Vec<FlowKey> = Vec::new();
        for _ in 0..count(&mut rest)? {
            let (flow, behind) = rest.split_first_chunk().ok_or(InvalidRuleSet)?;
            rest = behind;
            flows.push(*flow);
        }
        let flows = FlowList::sorted(flows).ok_or(InvalidRuleSet)?;
        rules.lists.push(ListedFlows { mask, template, flows, rule });
    }
    let prefixes = ascending(own?, || take::<OwnPrefix>(&mut rest))?;
    let accepting = ascending(accepting?, || Ok(PortId(u16::from_le_bytes(take(&mut rest)?))))?;
    let own = OwnSources::new(prefixes, accepting);
    if rest.is_empty() { Ok((rules, own)) } else { Err(InvalidRuleSet) }
}

/// Reads this many values, each greater than the one before.
fn ascending<T: Ord + Copy>(
    count: usize,
    mut take: impl FnMut() -> Result<T, InvalidRuleSet>,
) -> Result<BTreeSet<T>, InvalidRuleSet> {
    let mut values = BTreeSet::new();
    for _ in 0..count {
        let value = take()?;
        if values.last().is_some_and(|last| *last >= value) {
            return Err(InvalidRuleSet);
        }
        values.insert(value);
    }
    Ok(values)
}

fn count(rest: &mut &[u8]) -> Result<usize, InvalidRuleSet> {
    Ok(u32::from_le_bytes(take(rest)?) as usize)
}

fn take<T: Pod>(rest: &mut &[u8]) -> Result<T, InvalidRuleSet> {
    let (value, behind) = rest.split_at_checked(size_of::<T>()).ok_or(InvalidRuleSet)?;
    *rest = behind;
    Ok(bytemuck::pod_read_unaligned(value))
}
