//! Meters: counters of what is billed, by account.
//!
//! | meter | counts | begins with | survives |
//! |---|---|---|---|
//! | user | packets, bytes, time of calls, memory | a service's start in a cell | the daemon |
//! | below | packets, bytes, fuel | the same, or a lane that begins anew | the daemon |
//! | account | modules fetched and compiled | the node's start | the daemon |
//!
//! Readings are stored in the record of what runs (`record`) before they are billed: so the next
//! daemon continues with the same meters, and no reading is below one that was billed. Counters can
//! show a packet too many for an instant, between two related updates: a meter then keeps its
//! value, until they have passed it.

use crate::dataplane::instances::BelowReport;
use cell::protocol::ServiceReport;
use ledger::{Account, Amounts, Field, MeterId, Reading, amounts};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use trust::PublicKey;
use units::{EntryId, Name, Nanos};

const SECOND: u128 = 1_000_000_000;

/// Meters of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Meters {
    services: BTreeMap<EntryId, Metered>,
    accounts: Vec<Meter>,
    /// Last readings of meters that have ended and that no ledger has yet.
    ended: Vec<Meter>,
}

/// Meter of an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Meter {
    id: [u8; 16],
    principal: PublicKey,
    session: Name,
    service: Option<Name>,
    shows: [u64; amounts::FIELDS],
}

/// Meters of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Metered {
    user: Meter,
    below: Meter,
    /// Fuel of both levels below, as it was last read.
    fuel: u64,
    /// Time at which memory was last read, and the rest that is less than a second of a byte.
    looked: Nanos,
    rest: u64,
}

/// Source of the IDs of meters: no two are alike, on any node.
#[derive(Debug)]
pub(crate) struct Ids {
    seed: [u8; 32],
    given: u64,
}

impl Ids {
    /// Creates the source from 32 random bytes.
    pub(crate) const fn new(seed: [u8; 32]) -> Self {
        Self { seed, given: 0 }
    }

    /// Returns another ID.
    pub(crate) fn next(&mut self) -> [u8; 16] {
        self.given += 1;
        let hash = Sha256::new().chain_update(self.seed).chain_update(self.given.to_le_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&hash.finalize()[..16]);
        id
    }
}

impl Meter {
    fn new(id: [u8; 16], account: &Account, service: Option<&Name>) -> Self {
        let (session, service) = (account.session.clone(), service.cloned());
        Self { id, principal: account.principal, session, service, shows: [0; amounts::FIELDS] }
    }

    /// Sets what it shows: in no field less than before.
    fn show(&mut self, amounts: &Amounts) {
        for (shown, now) in self.shows.iter_mut().zip(amounts.as_array()) {
            *shown = (*shown).max(*now);
        }
    }

    fn add(&mut self, field: Field, amount: u64) {
        let shown = &mut self.shows[field as usize];
        // 64 bits of nanoseconds are 500 years; a meter that stayed there would bill nothing more.
        *shown = shown.checked_add(amount).unwrap_or(*shown);
    }

    fn is_for(&self, account: &Account) -> bool {
        self.session == account.session && self.principal == account.principal
    }

    fn reading(&self, is_last: bool) -> Reading {
        let account = Account { principal: self.principal, session: self.session.clone() };
        let (service, meter) = (self.service.clone(), MeterId(self.id));
        Reading { account, service, meter, reading: Amounts::new(self.shows), is_last }
    }
}

/// Counters of a service so far.
pub(crate) struct Counted<'a> {
    pub(crate) user: &'a ServiceReport,
    pub(crate) below: &'a BelowReport,
    /// True when it runs at `nic` now; else at `kernel`, if below at all.
    pub(crate) at_nic: bool,
}

impl Meters {
    /// Begins the meters of a service, which counts from zero.
    pub(crate) fn begin(
        &mut self,
        ids: &mut Ids,
        now: Nanos,
        entry: EntryId,
        account: &Account,
        service: &Name,
    ) {
        let user = Meter::new(ids.next(), account, Some(service));
        let below = Meter::new(ids.next(), account, Some(service));
        let metered = Metered { user, below, fuel: 0, looked: now, rest: 0 };
        if let Some(before) = self.services.insert(entry, metered) {
            self.keep_last(before);
        }
    }

    /// Returns the services that have meters.
    pub(crate) fn entries(&self) -> Vec<EntryId> {
        self.services.keys().copied().collect()
    }

    /// Returns true when a service has meters.
    pub(crate) fn has(&self, entry: EntryId) -> bool {
        self.services.contains_key(&entry)
    }

    /// Reads a service's counters.
    pub(crate) fn record(&mut self, now: Nanos, entry: EntryId, counted: &Counted<'_>) {
        let Some(metered) = self.services.get_mut(&entry) else { return };
        let (user, below) = (counted.user, &counted.below.stats);
        metered.record_memory(now, user.memory_bytes);
        metered.record_fuel(counted);
        let out = user.forwarded + user.to_kernel + user.bounced + user.redirected;
        // Of streams the kernel has the packets, and the service the bytes, both ways.
        let of_streams = user.streams.unwrap_or_default();
        metered.user.show(
            &Amounts::NONE
                .with(Field::PacketsIn, user.packets)
                .with(Field::BytesIn, user.bytes + of_streams.counts.up + of_streams.counts.down)
                .with(Field::PacketsOut, out + user.passed_on + user.sent)
                .with(Field::CpuUserNs, cpu_ns(user) + of_streams.cpu.0),
        );
        let out = below.forwarded + below.to_kernel + below.bounced + below.redirected;
        metered.below.show(
            &Amounts::NONE
                // What was raised is counted at user level.
                .with(Field::PacketsIn, below.packets.saturating_sub(below.raised))
                .with(Field::BytesIn, below.bytes.saturating_sub(below.raised_bytes))
                .with(Field::PacketsOut, out + below.passed_on),
        );
    }

    /// Reads a service's fuel: it is about to run at another level.
    pub(crate) fn record_fuel(&mut self, entry: EntryId, counted: &Counted<'_>) {
        if let Some(metered) = self.services.get_mut(&entry) {
            metered.record_fuel(counted);
        }
    }

    /// Ends the meters of a service, whose counters end or restart, after they were read.
    pub(crate) fn end(&mut self, entry: EntryId) {
        if let Some(metered) = self.services.remove(&entry) {
            self.keep_last(metered);
        }
    }

    /// Restarts the meter below user level, after it was read.
    pub(crate) fn begin_below(&mut self, ids: &mut Ids, entry: EntryId) {
        let Some(metered) = self.services.get_mut(&entry) else { return };
        let new = Meter { id: ids.next(), shows: [0; amounts::FIELDS], ..metered.below.clone() };
        metered.fuel = 0;
        self.ended.push(std::mem::replace(&mut metered.below, new));
    }

    fn keep_last(&mut self, metered: Metered) {
        let shows_something = |meter: &Meter| meter.shows.iter().any(|shown| *shown > 0);
        self.ended.extend([metered.user, metered.below].into_iter().filter(shows_something));
    }

    /// Adds what an account has used that belongs to no service.
    pub(crate) fn add(&mut self, ids: &mut Ids, account: &Account, used: &[(Field, u64)]) {
        let at = self.accounts.iter().position(|meter| meter.is_for(account));
        let at = at.unwrap_or_else(|| {
            self.accounts.push(Meter::new(ids.next(), account, None));
            self.accounts.len() - 1
        });
        used.iter().for_each(|(field, amount)| self.accounts[at].add(*field, *amount));
    }

    /// Returns what all of them show, those that have ended first: their number, and the readings.
    pub(crate) fn readings(&self) -> (usize, Vec<Reading>) {
        let ended = self.ended.iter().map(|meter| meter.reading(true));
        let services = self.services.values().flat_map(|it| [&it.user, &it.below]);
        let counting = services.chain(&self.accounts).map(|meter| meter.reading(false));
        (self.ended.len(), ended.chain(counting).collect())
    }

    /// Forgets the first of those that have ended: the ledger has them.
    pub(crate) fn forget_ended(&mut self, count: usize) {
        self.ended.drain(..count.min(self.ended.len()));
    }

    /// Ends all of them.
    pub(crate) fn end_all(&mut self) {
        self.entries().into_iter().for_each(|entry| self.end(entry));
        self.ended.append(&mut self.accounts);
    }
}

impl Metered {
    /// Adds the memory that it has now, for the time since the last reading.
    fn record_memory(&mut self, now: Nanos, bytes: u64) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        let used = u128::from(bytes) * u128::from(passed.0) + u128::from(self.rest);
        self.rest = (used % SECOND) as u64;
        let seconds = u64::try_from(used / SECOND).unwrap_or(u64::MAX);
        self.user.add(Field::MemoryByteSeconds, seconds);
    }

    /// Adds the fuel since the last reading to the level at which the service is.
    fn record_fuel(&mut self, counted: &Counted<'_>) {
        let used = counted.below.fuel.saturating_sub(self.fuel);
        self.fuel = self.fuel.max(counted.below.fuel);
        let field = if counted.at_nic { Field::FuelNic } else { Field::FuelKernel };
        self.below.add(field, used);
    }
}

/// Returns the nanoseconds of all calls at user level, as those that were timed let expect.
fn cpu_ns(report: &ServiceReport) -> u64 {
    let timed: u64 = report.call_times.buckets.iter().sum();
    let sum = u128::from(report.call_times.sum_ns) * u128::from(report.packets);
    let all = sum.checked_div(u128::from(timed)).unwrap_or(0);
    u64::try_from(all).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::{SecretKey, Seed};

    fn account() -> Account {
        let principal = SecretKey::from_seed(&Seed::new([1; 32])).public();
        Account { principal, session: "best-effort".parse().unwrap() }
    }

    fn metered() -> (Meters, Ids) {
        let (mut meters, mut ids) = (Meters::default(), Ids::new([7; 32]));
        meters.begin(&mut ids, Nanos(0), EntryId(3), &account(), &"monitor".parse().unwrap());
        (meters, ids)
    }

    fn sum(readings: &[Reading], field: Field) -> u64 {
        readings.iter().map(|reading| reading.reading.get(field)).sum()
    }

    fn record(
        meters: &mut Meters,
        seconds: u64,
        user: &ServiceReport,
        below: &BelowReport,
        at_nic: bool,
    ) {
        let counted = Counted { user, below, at_nic };
        meters.record(Nanos::from_millis(seconds * 1000), EntryId(3), &counted);
    }

    #[test]
    fn fuel_is_split_by_the_level_at_which_it_was_used() {
        let (mut meters, _) = metered();
        let (user, mut below) = (ServiceReport::default(), BelowReport::default());
        for (fuel, at_nic) in [(10, true), (10, false), (35, false), (40, true)] {
            below.fuel = fuel;
            record(&mut meters, 0, &user, &below, at_nic);
        }
        let (_, readings) = meters.readings();
        assert_eq!((sum(&readings, Field::FuelNic), sum(&readings, Field::FuelKernel)), (15, 25));
    }

    #[test]
    fn memory_counts_for_the_time_that_it_was_there() {
        let (mut meters, _) = metered();
        let mut user = ServiceReport { memory_bytes: 65_536, ..ServiceReport::default() };
        record(&mut meters, 10, &user, &BelowReport::default(), false);
        user.memory_bytes = 131_072;
        record(&mut meters, 15, &user, &BelowReport::default(), false);
        // A clock of the node that stops, or that a machine's restart set back.
        record(&mut meters, 15, &user, &BelowReport::default(), false);
        record(&mut meters, 1, &user, &BelowReport::default(), false);
        let (_, readings) = meters.readings();
        assert_eq!(sum(&readings, Field::MemoryByteSeconds), 10 * 65_536 + 5 * 131_072);
    }

    #[test]
    fn a_meter_never_decreases_and_raised_packets_count_once() {
        let (mut meters, _) = metered();
        let mut user = ServiceReport { packets: 2, bytes: 200, ..ServiceReport::default() };
        let mut below = BelowReport::default();
        (below.stats.packets, below.stats.bytes) = (10, 1000);
        record(&mut meters, 0, &user, &below, true);
        // The tenth is on its way up, and then handled there.
        (below.stats.raised, below.stats.raised_bytes) = (1, 100);
        record(&mut meters, 0, &user, &below, true);
        (user.packets, user.bytes) = (3, 300);
        (below.stats.packets, below.stats.bytes) = (12, 1200);
        record(&mut meters, 0, &user, &below, true);
        let (_, readings) = meters.readings();
        assert_eq!((sum(&readings, Field::PacketsIn), sum(&readings, Field::BytesIn)), (14, 1400));
    }

    #[test]
    fn an_ended_meter_is_kept_until_it_is_billed_and_a_new_run_gets_another_one() {
        let (mut meters, mut ids) = metered();
        let user = ServiceReport { packets: 5, ..ServiceReport::default() };
        record(&mut meters, 0, &user, &BelowReport::default(), false);
        meters.add(&mut ids, &account(), &[(Field::CompileNs, 9), (Field::Fetches, 1)]);
        meters.add(&mut ids, &account(), &[(Field::CompileNs, 1)]);
        let before = meters.readings().1;
        meters.end(EntryId(3));
        meters.begin(&mut ids, Nanos(0), EntryId(3), &account(), &"monitor".parse().unwrap());
        // The next daemon has them from the record.
        let json = serde_json::to_vec(&meters).unwrap();
        let mut meters: Meters = serde_json::from_slice(&json).unwrap();
        let (ended, readings) = meters.readings();
        assert_eq!((ended, readings[0].is_last), (1, true));
        assert_eq!(sum(&readings, Field::PacketsIn), 5);
        assert_eq!(sum(&readings, Field::CompileNs), 10);
        let ids_of = |readings: &[Reading]| -> Vec<MeterId> {
            readings.iter().map(|reading| reading.meter).collect()
        };
        assert!(ids_of(&before).contains(&readings[0].meter));
        assert!(!ids_of(&before).contains(&readings[1].meter));
        meters.forget_ended(ended);
        assert_eq!(meters.readings().0, 0);
        meters.end_all();
        assert!(meters.readings().1.iter().all(|reading| reading.is_last));
    }

    #[test]
    fn the_time_of_all_calls_is_extrapolated_from_the_timed_ones() {
        let mut user = ServiceReport { packets: 128, ..ServiceReport::default() };
        (user.call_times.buckets[3], user.call_times.sum_ns) = (2, 3000);
        assert_eq!(cpu_ns(&user), 128 * 1500);
        assert_eq!(cpu_ns(&ServiceReport::default()), 0);
    }
}
