//! Rules in the front door's format: two sets, of which one is active.
//!
//! ```text
//! masks ─▶ salt, rest ─▶ tam_masks        entries ─▶ tam_rules_0 or _1
//!   └─ list ─▶ tam_lists (lists.rs)            └───▶ one bit of tam_filter each
//! ```
//!
//! The filter shows for most masks that they have no such key, at a tenth of the cost of
//! a lookup in the hash table; a sender who wants packets to cost more must know
//! the factors of the hash.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bpf_maps::{
    FILTER_BITS, HASH_KEYS, Key, MASKS_ALL, MASKS_MAX, Mask, RULES_MAX, Rule, RuleFact, RuleStats,
    key_hash,
};
use units::RuleId;

use super::lists::{FlowsOfRule, Lists};
use super::maps::{FACTS, FILTER, LISTS, MASKS, Maps, RULE_SETS, RULE_STATS};
use super::{FrontDoorError, RuleTable, wait_for_packets_in_flight};
use crate::map::{MappedArray, Update};

/// Words of one rule set's filter.
const FILTER_WORDS: usize = 1 << (FILTER_BITS - 6);

/// Rule sets of a front door.
#[derive(Debug)]
pub(super) struct RuleSets {
    maps: Arc<Maps>,
    filter: MappedArray<u64>,
    facts: MappedArray<RuleFact>,
    lists: Lists,
    /// Keys in each of the two sets, so that the inactive one can be emptied.
    keys: [Vec<Key>; 2],
    /// Words written beside the keys.
    written: Written,
    inactive: Inactive,
}

impl RuleSets {
    /// Begins with two empty sets.
    pub(super) fn new(maps: Arc<Maps>) -> Result<Self, FrontDoorError> {
        Ok(Self {
            filter: maps.get(FILTER).map_array()?,
            facts: maps.get(FACTS).map_array()?,
            maps,
            lists: Lists::default(),
            keys: [const { Vec::new() }; 2],
            written: Written::default(),
            inactive: Inactive::Free,
        })
    }

    /// Adopts the sets of a previous daemon.
    pub(super) fn adopt(&mut self) -> Result<(), FrontDoorError> {
        self.lists = Lists::adopt(self.maps.get(LISTS))?;
        for (keys, name) in self.keys.iter_mut().zip(RULE_SETS) {
            *keys = self.maps.get(name).keys()?;
        }
        // The previous daemon may have changed the rules just now.
        self.inactive = Inactive::Unknown;
        Ok(())
    }

    /// Replaces all rules, as [`FrontDoor::install_with_hidden`](super::FrontDoor).
    pub(super) fn install(
        &mut self,
        RuleTable { masks, entries }: RuleTable<'_>,
        hidden: RuleTable<'_>,
        lists: &[FlowsOfRule],
    ) -> Result<(), FrontDoorError> {
        let generation = self.maps.config().generation;
        let number = bpf_maps::generation_number(generation);
        let set = ((number + 1) & 1) as usize;
        self.inactive.wait().map_err(FrontDoorError::Barrier)?;
        let hash = self.maps.get(RULE_SETS[set]);
        for key in self.keys[set].drain(..) {
            hash.delete(&key)?;
        }
        let hash_keys = self.maps.config().hash_keys;
        let mut salted = salted(masks, &hash_keys);
        self.lists.begin(self.maps.get(LISTS))?;
        for list in lists {
            let at = self.lists.install(self.maps.get(LISTS), list)?;
            if let Some(mask) = salted.get_mut(usize::from(list.mask)) {
                (mask.list, mask.rule) = (at, list.rule);
            }
        }
        for (key, rule) in entries.iter().chain(hidden.entries) {
            hash.update(key, rule, Update::Any)?;
            self.keys[set].push(*key);
        }
        let salted_hidden = salted_behind(hidden.masks, &hash_keys);
        let shown = entries.iter().map(|(key, _)| place(&salted, key, &hash_keys));
        let behind =
            hidden.entries.iter().map(|(key, _)| place_behind(&salted_hidden, key, &hash_keys));
        self.fill_filter(set, shown.chain(behind));
        let masks_of_both = (0..).zip(&salted).chain((MASKS_MAX..).zip(&salted_hidden));
        for (index, mask) in masks_of_both {
            let at = (set * MASKS_ALL + index) as u32;
            self.maps.get(MASKS).update(&at, mask, Update::Any)?;
        }
        self.set_facts(entries.iter().map(|(_, rule)| rule).chain(lists.iter().map(|l| &l.rule)));
        let mut config = self.maps.config();
        config.mask_count[set] = masks.len() as u32;
        config.hidden_count[set] = hidden.masks.len() as u32;
        self.maps.set_config(&config);
        self.maps.set_generation((number + 1) | bpf_maps::looked_at(masks));
        self.inactive = Inactive::left();
        self.lists.commit();
        Ok(())
    }

    /// Sets the summaries of rules, for packets that come to them from the stage before: only those
    /// of flows that have several rules are read.
    fn set_facts<'a>(&mut self, rules: impl Iterator<Item = &'a Rule>) {
        let fact = |rule: &Rule| {
            let Rule { session, entry, action, .. } = *rule;
            (rule.rule, RuleFact { session, entry, action, zero: [0; 3] })
        };
        let new: BTreeMap<u32, RuleFact> = rules.map(fact).collect();
        let old = self.written.facts.replace(new.keys().copied().collect());
        let gone = old.unwrap_or_else(|| (0..RULES_MAX as u32).collect());
        let gone = gone.into_iter().filter(|number| !new.contains_key(number));
        let gone = gone.map(|number| (number, RuleFact::default()));
        for (number, fact) in gone.collect::<Vec<_>>().into_iter().chain(new) {
            if let Some(word) = self.facts.word(number as usize, 0) {
                word.store(bytemuck::cast(fact), Ordering::Release);
            }
        }
    }

    /// Sets the filter bits of an inactive set's keys, and clears all others.
    fn fill_filter(&mut self, set: usize, places: impl Iterator<Item = (usize, u64)>) {
        let old = self.written.filter[set].take();
        let old = old.unwrap_or_else(|| (0..FILTER_WORDS).collect());
        let word = |at: usize| self.filter.word(set * FILTER_WORDS + at, 0);
        old.into_iter().filter_map(word).for_each(|word| word.store(0, Ordering::Release));
        let mut filled = Vec::new();
        for (at, bit) in places {
            if let Some(word) = word(at) {
                word.fetch_or(bit, Ordering::Release);
                filled.push(at);
            }
        }
        self.written.filter[set] = Some(filled);
    }

    /// Returns a rule's counters, summed over the CPUs.
    pub(super) fn stats(&self, rule: RuleId) -> Result<RuleStats, FrontDoorError> {
        let values: Option<Vec<RuleStats>> = self.maps.get(RULE_STATS).lookup_percpu(&rule.0)?;
        let values = values.unwrap_or_default().into_iter();
        Ok(values.fold(RuleStats::default(), |sum, one| RuleStats {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        }))
    }

    /// Sets a rule's counters to zero.
    pub(super) fn clear_stats(&self, rule: RuleId) -> Result<(), FrontDoorError> {
        let zeroes = vec![RuleStats::default(); crate::possible_cpus()];
        self.maps.get(RULE_STATS).update_percpu(&rule.0, &zeroes)?;
        Ok(())
    }
}

/// Words written for rules, so that only these need be cleared; unknown for an adopted front door.
#[derive(Debug, Default)]
struct Written {
    /// Words of each set's part of the filter.
    filter: [Option<Vec<usize>>; 2],
    /// Numbers of rules with summaries.
    facts: Option<Vec<u32>>,
}

/// Use of the inactive rule set by packets that arrived before the change.
#[derive(Debug)]
enum Inactive {
    /// No packet uses it.
    Free,
    /// Packets may use it; a thread waits until they are gone.
    Left(JoinHandle<io::Result<()>>),
    /// Packets may use it, and no thread waits for them yet.
    Unknown,
}

impl Inactive {
    /// Starts to wait, after the other set has become the active one.
    fn left() -> Self {
        let waiter = std::thread::Builder::new().name("tam-rules".to_owned());
        waiter.spawn(wait_for_packets_in_flight).map_or(Self::Unknown, Self::Left)
    }

    /// Returns when no packet uses it.
    fn wait(&mut self) -> io::Result<()> {
        match std::mem::replace(self, Self::Unknown) {
            Self::Free => {}
            // A thread that panicked has waited for nothing.
            Self::Left(waiter) => waiter.join().unwrap_or_else(|_| wait_for_packets_in_flight())?,
            Self::Unknown => wait_for_packets_in_flight()?,
        }
        *self = Self::Free;
        Ok(())
    }
}

/// Returns the masks with their salts and the other fields that the front door needs.
#[must_use]
pub fn salted(masks: &[Mask], hash_keys: &[u64; HASH_KEYS]) -> Vec<Mask> {
    salted_at(0, masks, hash_keys)
}

/// Returns the masks of packets that hide something, salted for their place behind [`MASKS_MAX`]
/// others.
#[must_use]
pub fn salted_behind(masks: &[Mask], hash_keys: &[u64; HASH_KEYS]) -> Vec<Mask> {
    salted_at(MASKS_MAX, masks, hash_keys)
}

/// Salts masks, the first of which has this index.
fn salted_at(first: usize, masks: &[Mask], hash_keys: &[u64; HASH_KEYS]) -> Vec<Mask> {
    let alone = masks.windows(2).all(|pair| pair[0].stage == pair[1].stage);
    let mask = |(at, mask): (u64, &Mask)| Mask {
        alone: u16::from(alone),
        salt: salt(at, hash_keys),
        rest: Mask::rest_of(&mask.bits),
        ..*mask
    };
    (first as u64..).zip(masks).map(mask).collect()
}

/// Returns a secret number for each mask, derived from the factors (SplitMix64).
fn salt(at: u64, hash_keys: &[u64; HASH_KEYS]) -> u64 {
    let mut mixed = hash_keys[0].wrapping_add((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns the word and the bit of a set's filter for a key.
#[must_use]
pub fn place(masks: &[Mask], key: &Key, hash_keys: &[u64; HASH_KEYS]) -> (usize, u64) {
    let salt = masks.get(usize::from(key.mask)).map_or(0, |mask| mask.salt);
    let hash = key_hash(salt, &Key { mask: 0, ..*key }, hash_keys) >> (64 - FILTER_BITS);
    ((hash >> 6) as usize, 1 << (hash & 63))
}

/// Returns the word and the bit for a key of one of the masks behind [`MASKS_MAX`] others.
#[must_use]
pub fn place_behind(masks: &[Mask], key: &Key, hash_keys: &[u64; HASH_KEYS]) -> (usize, u64) {
    place(masks, &Key { mask: key.mask.wrapping_sub(MASKS_MAX as u16), ..*key }, hash_keys)
}
