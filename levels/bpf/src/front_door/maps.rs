//! Maps of a front door, which every copy of its program shares, and its configuration: the one
//! record that each packet reads first.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use bpf_maps::{Config, FLOW_WAYS};

use super::FrontDoorError;
use crate::map::{Map, MappedArray};
use crate::object::{Object, OpenObject};

/// Names of the maps that every copy of the program shares.
const SHARED: [&str; 39] = [
    CONFIG,
    PORTS,
    PORT_STATS,
    "tam_flows",
    LARGE,
    TAGS,
    MASKS,
    "tam_scratch",
    FILTER,
    LISTS,
    RULE_SETS[0],
    RULE_SETS[1],
    FACTS,
    RULE_STATS,
    "tam_fragments",
    VLANS,
    OWN,
    EGRESS,
    DEVICES,
    LANES,
    HAND_OVERS,
    "tam_passages",
    MODULES,
    MODULES_TC,
    AFTER,
    AFTER_TC,
    SERVICES,
    REASONS,
    ACCOUNTS,
    ROOMS,
    LINES,
    LINE_OF,
    ANSWERS,
    "tam_cycles",
    ORIGINS,
    "tam_translations",
    "tam_quoted",
    "tam_translated",
    SOCKETS,
];
const CONFIG: &str = "tam_shared";
/// Configurations of ports, by number.
pub(super) const PORTS: &str = "tam_ports";
/// Counters of ports.
pub(super) const PORT_STATS: &str = "tam_stats";
/// The large flow cache, and the tags of its entries.
pub(super) const LARGE: &str = "tam_large";
pub(super) const TAGS: &str = "tam_tags";
pub(super) const MASKS: &str = "tam_masks";
pub(super) const FILTER: &str = "tam_filter";
/// Tables of flows, by number.
pub(super) const LISTS: &str = "tam_lists";
pub(super) const RULE_SETS: [&str; 2] = ["tam_rules_0", "tam_rules_1"];
/// Summaries of rules, by number.
pub(super) const FACTS: &str = "tam_rule_facts";
/// Counters of rules.
pub(super) const RULE_STATS: &str = "tam_rule_counts";
pub(super) const VLANS: &str = "tam_vlans";
/// IPv4 addresses of the machine itself.
pub(super) const OWN: &str = "tam_own";
/// Numbers of ports, by their devices.
pub(super) const EGRESS: &str = "tam_egress";
/// Devices to which packets are redirected, by the numbers of their ports.
pub(super) const DEVICES: &str = "tam_devices";
pub(super) const LANES: &str = "tam_lanes";
/// A data section.
pub(super) const HAND_OVERS: &str = ".data.hand_overs";
pub(super) const MODULES: &str = "tam_modules";
pub(super) const MODULES_TC: &str = "tam_modules_tc";
pub(super) const AFTER: &str = "tam_after";
pub(super) const AFTER_TC: &str = "tam_after_tc";
pub(super) const SERVICES: &str = "tam_services";
pub(super) const REASONS: &str = "tam_reasons";
pub(super) const ACCOUNTS: &str = "tam_accounts";
pub(super) const ROOMS: &str = "tam_rooms";
/// Accounts of shares of ports, and the session that each belongs to.
pub(super) const LINES: &str = "tam_lines";
pub(super) const LINE_OF: &str = "tam_line_of";
/// Answers to the cell's queries for the kernel's egress.
pub(super) const ANSWERS: &str = "tam_answers";
/// Original sources of packets that modules gave another one, on each CPU.
pub(super) const ORIGINS: &str = "tam_origins";
/// Sockets of the ports' queues; its values are descriptors.
pub(super) const SOCKETS: &str = "tam_sockets";

/// Index of the word of [`Config`] that holds the generation.
const GENERATION_WORD: usize = 0;
const _: () = assert!(std::mem::offset_of!(Config, generation) == GENERATION_WORD * 8);

/// Maps by name, and the mapped configuration.
#[derive(Debug)]
pub(super) struct Maps {
    by_name: BTreeMap<&'static str, Map>,
    config: MappedArray<Config>,
    /// Sets of the large flow cache on each CPU.
    large_sets: u32,
}

impl Maps {
    /// Sets the number of sets of the large cache on each CPU, in an object that is not loaded yet.
    pub(super) fn size(object: &mut OpenObject, large_sets: u32) -> Result<(), FrontDoorError> {
        let sets = (large_sets * crate::possible_cpus() as u32).max(1);
        object.set_max_entries(LARGE, sets * FLOW_WAYS as u32)?;
        Ok(object.set_max_entries(TAGS, sets)?)
    }

    /// Takes the maps of a loaded object, and pins them.
    pub(super) fn create(
        folder: &Path,
        object: &Object,
        large_sets: u32,
    ) -> Result<Self, FrontDoorError> {
        let mut by_name = BTreeMap::new();
        for name in SHARED {
            let map = object.map(name)?;
            map.pin(&folder.join(pin_name(name)))?;
            by_name.insert(name, map);
        }
        Self::of(by_name, large_sets)
    }

    /// Opens the maps that another process has pinned.
    pub(super) fn open(folder: &Path) -> Result<Self, FrontDoorError> {
        let mut by_name = BTreeMap::new();
        for name in SHARED {
            by_name.insert(name, Map::open_pinned(&folder.join(pin_name(name)))?);
        }
        // A front door without a large cache has one set in all; so has one with the least on the
        // only CPU, and then its number of sets is the same.
        let sets = by_name[TAGS].info().max_entries / crate::possible_cpus() as u32;
        Self::of(by_name, sets)
    }

    fn of(by_name: BTreeMap<&'static str, Map>, large_sets: u32) -> Result<Self, FrontDoorError> {
        let config = by_name[CONFIG].map_array()?;
        Ok(Self { by_name, config, large_sets })
    }

    /// Returns a map; `name` is one of the constants of this module.
    pub(super) fn get(&self, name: &'static str) -> &Map {
        &self.by_name[name]
    }

    /// Returns all maps with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Map)> {
        self.by_name.iter().map(|(name, map)| (*name, map))
    }

    /// Makes an object use those of these maps that it declares.
    pub(super) fn share_with(&self, object: &mut OpenObject) -> Result<(), FrontDoorError> {
        for (name, map) in &self.by_name {
            if object.has_map(name) {
                object.reuse_map(name, map)?;
            }
        }
        Ok(())
    }

    /// Makes a copy of the front door's program use these maps.
    pub(super) fn share_with_door(&self, object: &mut OpenObject) -> Result<(), FrontDoorError> {
        object.set_global("large_sets", &self.large_sets)?;
        self.share_with(object)
    }

    /// Returns the configuration.
    pub(super) fn config(&self) -> Config {
        self.config.load(0).unwrap_or_default()
    }

    /// Replaces the configuration.
    pub(super) fn set_config(&self, config: &Config) {
        self.config.store(0, config);
    }

    /// Stores two fields of the configuration that lie in one word, so that no packet sees half of
    /// it.
    pub(super) fn set_word(&self, at: usize, fields: [u32; 2]) {
        if let Some(word) = self.config.word(0, at) {
            word.store(bytemuck::cast(fields), Ordering::Release);
        }
    }

    /// Stores the generation, by which every cache is emptied and a rule set chosen.
    pub(super) fn set_generation(&self, generation: u64) {
        if let Some(word) = self.config.word(0, GENERATION_WORD) {
            word.store(generation, Ordering::Release);
        }
    }

    /// Invalidates cached rules and routes, after a change of something that they derive from.
    pub(super) fn invalidate(&self) {
        self.set_generation(self.config().generation + 2);
    }
}

/// Returns the pin of a map: data sections begin with a dot, which the BPF file system does not
/// accept.
fn pin_name(map: &str) -> String {
    map.trim_start_matches('.').replace('.', "_")
}
