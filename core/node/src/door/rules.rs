//! A rule set as bytes, for the process that has the door.
//!
//! ```text
//! │ masks, entries, lists: u32 each │ masks │ keys and rules │ each list: its rule's mask, │
//! │                                 │       │                │ template, rule, flows       │
//! ```

use bpf_maps::{FlowKey, Key, Mask, Rule};
use bytemuck::Pod;

use crate::classifier::{ListedFlows, RuleSet};
use crate::flows::FlowList;

/// Bytes are no rule set: the two ends are of different versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no rule set")]
pub struct NoRuleSet;

/// A rule set as bytes; what is shadowed is left out.
#[must_use]
pub fn encode(rules: &RuleSet) -> Vec<u8> {
    let mut bytes = Vec::new();
    for count in [rules.masks.len(), rules.entries.len(), rules.lists.len()] {
        bytes.extend((count as u32).to_le_bytes());
    }
    bytes.extend_from_slice(bytemuck::cast_slice(&rules.masks));
    for (key, rule) in &rules.entries {
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
    bytes
}

/// The rule set that [`encode`] made bytes of.
///
/// # Errors
/// When they are not exactly one.
pub fn decode(bytes: &[u8]) -> Result<RuleSet, NoRuleSet> {
    let mut rest = bytes;
    let [masks, entries, lists] = [(); 3].map(|()| count(&mut rest));
    let (masks, entries, lists) = (masks?, entries?, lists?);
    let mut rules = RuleSet::default();
    for _ in 0..masks {
        rules.masks.push(take::<Mask>(&mut rest)?);
    }
    for _ in 0..entries {
        rules.entries.push((take::<Key>(&mut rest)?, take::<Rule>(&mut rest)?));
    }
    for _ in 0..lists {
        let mask = u16::try_from(count(&mut rest)?).map_err(|_| NoRuleSet)?;
        let (template, rule) = (take(&mut rest)?, take(&mut rest)?);
        let mut flows: Vec<FlowKey> = Vec::new();
        for _ in 0..count(&mut rest)? {
            let (flow, behind) = rest.split_first_chunk().ok_or(NoRuleSet)?;
            rest = behind;
            flows.push(*flow);
        }
        let flows = FlowList::sorted(flows).ok_or(NoRuleSet)?;
        rules.lists.push(ListedFlows { mask, template, flows, rule });
    }
    if rest.is_empty() { Ok(rules) } else { Err(NoRuleSet) }
}

fn count(rest: &mut &[u8]) -> Result<usize, NoRuleSet> {
    Ok(u32::from_le_bytes(take(rest)?) as usize)
}

fn take<T: Pod>(rest: &mut &[u8]) -> Result<T, NoRuleSet> {
    let (value, behind) = rest.split_at_checked(size_of::<T>()).ok_or(NoRuleSet)?;
    *rest = behind;
    Ok(bytemuck::pod_read_unaligned(value))
}
