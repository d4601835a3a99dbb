//! Flow lists in the kernel: a hash table for each, filled once.
//!
//! ```text
//! tam_masks[set, i].list = n ─▶ tam_lists[n] ─▶ hash table: one key for each flow
//! ```
//!
//! A list keeps its table from one rule set to the next. There is space for those of
//! both sets; one that neither has any more is removed with the next change, when no packet
//! can read it.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use bpf_maps::{FlowKey, Key, LISTS_MAX, Rule};
use libbpf_sys as sys;

use super::FrontDoorError;
use crate::map::{Map, Update};
use crate::new_map::MapSpec;

/// Flows of one rule.
#[derive(Clone, Debug)]
pub struct FlowsOfRule {
    /// Index of the mask whose keys they are.
    pub mask: u16,
    /// Key fields other than the flow.
    pub template: Key,
    /// Flows; an unchanged list is the same `Arc` each time.
    pub flows: Arc<[FlowKey]>,
    /// Rule of the flows.
    pub rule: Rule,
}

/// Most flows that one system call adds: a few megabytes.
const BATCH: usize = 1 << 15;

/// Existing tables, by their index in `tam_lists`.
#[derive(Debug, Default)]
pub(super) struct Lists {
    tables: Vec<Option<Table>>,
    /// Number of the active rule set.
    active: u64,
}

#[derive(Debug)]
struct Table {
    flows: Arc<[FlowKey]>,
    template: Key,
    /// Last rule set that used the table.
    set: u64,
}

impl Lists {
    /// Adopts the tables of a front door that another process made: their contents are not read,
    /// and they are removed when neither of its rule sets can be active any more.
    pub(super) fn adopt(lists: &Map) -> Result<Self, FrontDoorError> {
        let table = |at: u32| -> Result<Option<Table>, FrontDoorError> {
            let found: Option<u32> = lists.lookup(&at)?;
            let flows = || Arc::from(Vec::new());
            Ok(found.map(|_| Table { flows: flows(), template: Key::default(), set: 0 }))
        };
        let tables = (0..LISTS_MAX as u32).map(table).collect::<Result<_, _>>()?;
        Ok(Self { tables, active: 0 })
    }

    /// Prepares for the lists of a new rule set, when no packet reads the one before the active
    /// one: tables that the active one does not use are freed.
    pub(super) fn begin(&mut self, lists: &Map) -> Result<(), FrontDoorError> {
        for (at, table) in (0u32..).zip(&mut self.tables) {
            if table.as_ref().is_some_and(|table| table.set < self.active) {
                lists.delete(&at)?;
                *table = None;
            }
        }
        Ok(())
    }

    /// Makes the new rule set the active one.
    pub(super) fn commit(&mut self) {
        self.active += 1;
    }

    /// Returns the index of a list, which is filled when it is new.
    pub(super) fn install(
        &mut self,
        lists: &Map,
        list: &FlowsOfRule,
    ) -> Result<u32, FrontDoorError> {
        self.tables.resize_with(LISTS_MAX, || None);
        let set = self.active + 1;
        for (at, table) in (0..).zip(&mut self.tables) {
            let same = |table: &&mut Table| {
                Arc::ptr_eq(&table.flows, &list.flows) && table.template == list.template
            };
            if let Some(table) = table.as_mut().filter(same) {
                table.set = set;
                return Ok(at);
            }
        }
        // Both sets together have fewer than there is space for; 0 is none.
        let free = self.tables.iter().skip(1).position(Option::is_none).map_or(1, |at| at + 1);
        let map = fill(list)?;
        lists.update(&(free as u32), &(map.as_fd().as_raw_fd() as u32), Update::Any)?;
        let table = Table { flows: list.flows.clone(), template: list.template, set };
        self.tables[free] = Some(table);
        Ok(free as u32)
    }
}

/// Makes a hash table with the flows of a list.
fn fill(list: &FlowsOfRule) -> Result<Map, FrontDoorError> {
    let spec = MapSpec {
        kind: sys::BPF_MAP_TYPE_HASH,
        key_size: size_of::<Key>() as u32,
        value_size: 4,
        max_entries: list.flows.len() as u32,
        flags: sys::BPF_F_NO_PREALLOC,
        extra: 0,
    };
    let map = Map::create("tam_flow_list", &spec)?;
    for flows in list.flows.chunks(BATCH) {
        let keys: Vec<Key> = flows.iter().map(|flow| keyed(flow, &list.template)).collect();
        map.update_batch(&keys, &vec![1u32; keys.len()])?;
    }
    Ok(map)
}

/// Returns the template with the flow in it, whose bytes there are zero.
fn keyed(flow: &FlowKey, template: &Key) -> Key {
    let mut key = *template;
    bytemuck::bytes_of_mut(&mut key)[..flow.len()].copy_from_slice(flow);
    key
}
