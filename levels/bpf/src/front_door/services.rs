//! Services below user level: their lanes, their modules' programs, their counters.
//!
//! core/node decides which module runs where.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_maps::{HandOver, LEVEL_KERNEL, LEVEL_NIC, Lane, MODULES_MAX, ReasonKey, ServiceStats};
use units::EntryId;

use super::FrontDoorError;
use super::maps::{
    AFTER, AFTER_TC, FACTS, HAND_OVERS, LANES, MODULES, MODULES_TC, Maps, REASONS, ROOMS, SERVICES,
};
use crate::lanes::Lanes;
use crate::map::{Map, MappedArray, Update};

/// Level below user level, at which a module is an eBPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Below {
    /// XDP, in the driver.
    Nic,
    /// tcx ingress, in the kernel's stack.
    Kernel,
}

impl Below {
    /// Both levels.
    pub const ALL: [Self; 2] = [Self::Nic, Self::Kernel];

    /// Returns the value of `LEVEL_*` in lanes.
    #[must_use]
    pub const fn word(self) -> u32 {
        match self {
            Self::Nic => LEVEL_NIC,
            Self::Kernel => LEVEL_KERNEL,
        }
    }

    const fn modules(self) -> &'static str {
        match self {
            Self::Nic => MODULES,
            Self::Kernel => MODULES_TC,
        }
    }

    const fn after(self) -> &'static str {
        match self {
            Self::Nic => AFTER,
            Self::Kernel => AFTER_TC,
        }
    }
}

/// Services below user level, by their entries.
#[derive(Debug)]
pub struct Services {
    maps: Arc<Maps>,
    lanes: Lanes,
    hand_overs: MappedArray<[HandOver; MODULES_MAX]>,
}

impl Services {
    /// Maps lanes and hand-overs.
    pub(super) fn new(maps: Arc<Maps>) -> Result<Self, FrontDoorError> {
        let (lanes, hand_overs) = (Lanes::new(maps.get(LANES))?, maps.get(HAND_OVERS).map_array()?);
        Ok(Self { maps, lanes, hand_overs })
    }

    /// Returns the lanes of all entries.
    #[must_use]
    pub const fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// Returns the map behind [`Services::lanes`], for the cell.
    #[must_use]
    pub fn lanes_map(&self) -> &Map {
        self.maps.get(LANES)
    }

    /// Returns the map of the queue credits of each session, for
    /// [`CreditTable`](crate::CreditTable) elsewhere.
    #[must_use]
    pub fn credits_map(&self) -> &Map {
        self.maps.get(ROOMS)
    }

    /// Returns the map of the summaries of rules, for [`RuleFacts`](crate::RuleFacts) elsewhere.
    #[must_use]
    pub fn facts_map(&self) -> &Map {
        self.maps.get(FACTS)
    }

    /// Returns the map in whose one value modules' programs find their packet's metadata and write
    /// the verdict, at the offset of [`hand_over_at`].
    #[must_use]
    pub fn hand_overs_map(&self) -> &Map {
        self.maps.get(HAND_OVERS)
    }

    /// Returns the fuel that an entry's modules have used below user level, over all packets;
    /// `None` above the last entry.
    #[must_use]
    pub fn fuel_used(&self, entry: EntryId) -> Option<u64> {
        let word = self.hand_over_word(entry, offset_of!(HandOver, fuel_used));
        word.map(|word| word.load(Ordering::Acquire))
    }

    fn hand_over_word(&self, entry: EntryId, field: usize) -> Option<&AtomicU64> {
        let at = hand_over_at(entry) as usize + field;
        self.hand_overs.word(0, at / 8)
    }

    /// Charges the fuel that an entry's packets use from now on to an account; `beyond` is the
    /// treatment of packets while it is empty: `OVER_*`, with `OVER_NOT` for an entry that is not
    /// charged.
    pub fn pay_from(&self, entry: EntryId, account: u16, beyond: u8) {
        let Some(lane) = self.lanes.lane(entry) else { return };
        let used = self.hand_over_word(entry, offset_of!(HandOver, fuel_used));
        let charged = self.hand_over_word(entry, offset_of!(HandOver, fuel_charged));
        // Fuel used before is not charged.
        if let (Some(used), Some(charged), false) = (used, charged, lane.pays()) {
            charged.store(used.load(Ordering::Acquire), Ordering::Release);
        }
        lane.set_account(account, beyond);
    }

    /// Returns the program array with the end of modules' programs of a level, at index 0.
    #[must_use]
    pub fn after_map(&self, level: Below) -> &Map {
        self.maps.get(level.after())
    }

    /// Installs a module's program of a level under the `index` of its lanes, which is the same at
    /// both levels. At nic it accepts packets of several fragments (`xdp.frags`). CPUs that run the
    /// previous program are not waited for.
    ///
    /// # Errors
    /// The kernel refuses: another type of program, or an index above the last.
    pub fn set_module(
        &self,
        level: Below,
        index: u32,
        program: BorrowedFd<'_>,
    ) -> Result<(), FrontDoorError> {
        self.maps.get(level.modules()).update(
            &index,
            &(program.as_raw_fd() as u32),
            Update::Any,
        )?;
        Ok(())
    }

    /// Removes a module's program of a level: packets of its lanes go as if there were no rule.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn clear_module(&self, level: Below, index: u32) -> Result<(), FrontDoorError> {
        self.maps.get(level.modules()).delete(&index)?;
        Ok(())
    }

    /// Returns the counters of an entry below user level, at nic and kernel together, summed over
    /// the CPUs.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn service_stats(&self, entry: EntryId) -> Result<ServiceStats, FrontDoorError> {
        let values: Vec<ServiceStats> =
            self.maps.get(SERVICES).lookup_percpu(&u32::from(entry.0))?.unwrap_or_default();
        Ok(values.into_iter().fold(ServiceStats::default(), sum_service_stats))
    }

    /// Returns the packets that an entry's module dropped below user level, by its reasons.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn drop_reasons(&self, entry: EntryId) -> Result<BTreeMap<u16, u64>, FrontDoorError> {
        let mut reasons = BTreeMap::new();
        for key in self.reasons_of(entry)? {
            let counts: Vec<u64> = self.maps.get(REASONS).lookup_percpu(&key)?.unwrap_or_default();
            reasons.insert(key.reason, counts.into_iter().sum());
        }
        Ok(reasons)
    }

    /// Resets an entry's counters and its lane to the state before the first packet, except for the
    /// failure policy: another instance gets its number.
    ///
    /// # Errors
    /// A map cannot be changed.
    pub fn clear_entry(&self, entry: EntryId) -> Result<(), FrontDoorError> {
        let zeroes = vec![ServiceStats::default(); crate::possible_cpus()];
        if usize::from(entry.0) < MODULES_MAX {
            self.maps.get(SERVICES).update_percpu(&u32::from(entry.0), &zeroes)?;
        }
        for key in self.reasons_of(entry)? {
            self.maps.get(REASONS).delete(&key)?;
        }
        let old: Option<Lane> = self.maps.get(LANES).lookup(&u32::from(entry.0))?;
        let Lane { closed, session, .. } = old.unwrap_or_default();
        let lane = Lane { closed, session, ..Lane::default() };
        self.maps.get(LANES).update(&u32::from(entry.0), &lane, Update::Any)?;
        for field in [offset_of!(HandOver, fuel_used), offset_of!(HandOver, fuel_charged)] {
            if let Some(fuel) = self.hand_over_word(entry, field) {
                fuel.store(0, Ordering::Release);
            }
        }
        Ok(())
    }

    fn reasons_of(&self, entry: EntryId) -> Result<Vec<ReasonKey>, FrontDoorError> {
        let mut keys: Vec<ReasonKey> = self.maps.get(REASONS).keys()?;
        keys.retain(|key| key.entry == entry.0);
        Ok(keys)
    }
}

/// Returns the offset of the entry's part in [`Services::hand_overs_map`], in bytes.
#[must_use]
pub const fn hand_over_at(entry: EntryId) -> u32 {
    entry.0 as u32 * size_of::<HandOver>() as u32
}

fn sum_service_stats(sum: ServiceStats, one: ServiceStats) -> ServiceStats {
    // A struct of 64-bit counters and nothing else.
    let mut words: [u64; SERVICE_COUNTERS] = bytemuck::cast(sum);
    let added: [u64; SERVICE_COUNTERS] = bytemuck::cast(one);
    words.iter_mut().zip(added).for_each(|(word, more)| *word += more);
    bytemuck::cast(words)
}

const SERVICE_COUNTERS: usize = size_of::<ServiceStats>() / 8;
