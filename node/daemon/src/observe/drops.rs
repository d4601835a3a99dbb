//! Drops by reason: counters are compared with their previous values, and growth is reported.
//!
//! ```text
//!  front door, sockets, devices, kernel's stack, services, cell ─▶ Readings ─▶ Drops ─▶ events, `tam why`
//!                (nothing per packet: they count anyway)
//! ```

pub(super) mod readings;

use super::reasons;
use readings::{DeviceReading, Place, Readings};
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Duration;
use units::{Name, Nanos};

/// Period at which counters are compared, and drops reported.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of comparisons for each reading of the devices' counters, which come by netlink.
const DEVICES_EVERY: u32 = 2;
/// Window of recent drops.
const LATELY: Nanos = Nanos::from_millis(60_000);
/// Steps of that window.
const STEP: Nanos = Nanos::from_millis(5_000);

/// History of a counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    /// Value of the last reading.
    read: u64,
    /// Growth since the node started.
    total: u64,
    /// Growth by steps, the youngest last.
    steps: VecDeque<(Nanos, u64)>,
    /// Milliseconds since 1970 when it last grew.
    last_ms: u64,
}

impl Counted {
    /// Returns the growth since the node started.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns the time of the last growth, in milliseconds since 1970.
    pub(super) const fn last_ms(&self) -> u64 {
        self.last_ms
    }

    /// Returns the growth of the last minute.
    pub(super) fn lately(&self, now: Nanos) -> u64 {
        let young = |(since, _): &&(Nanos, u64)| now.saturating_sub(*since) <= LATELY;
        self.steps.iter().filter(young).map(|(_, count)| count).sum()
    }

    /// Takes a reading; returns the growth since the last one. A counter that is smaller has
    /// restarted.
    fn grow(&mut self, now: Nanos, now_ms: u64, read: u64) -> u64 {
        let more = if read < self.read { read } else { read - self.read };
        self.read = read;
        if more > 0 {
            self.total += more;
            self.last_ms = now_ms;
            match self.steps.back_mut() {
                Some((since, count)) if now.saturating_sub(*since) < STEP => *count += more,
                _ => self.steps.push_back((now, more)),
            }
            while self.steps.front().is_some_and(|(t, _)| now.saturating_sub(*t) > LATELY) {
                self.steps.pop_front();
            }
        }
        more
    }
}

/// Packets that a device drops on reception, of which the kernel's stack counts a part.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    counted: u64,
    alone: u64,
}

impl Device {
    /// Takes a reading; returns the drops that only the device counts. The two counters are not
    /// read at the same moment, and the one read later may be ahead; the result never decreases,
    /// unless the device's counter restarts.
    fn read(&mut self, counted: u64, by_stack: u64) -> u64 {
        let before = if counted < self.counted { 0 } else { self.alone };
        self.counted = counted;
        self.alone = before.max(counted.saturating_sub(by_stack));
        self.alone
    }
}

/// Counters of packets that did not go the fast way, as they were last read.
#[derive(Debug, Default)]
pub(super) struct Drops {
    places: BTreeMap<Place, Counted>,
    devices: BTreeMap<Name, Device>,
    /// Notices that the cell had left out at the last reading.
    notices_lost: u64,
    /// Comparisons so far.
    looks: u32,
    /// True while a comparison waits for the report of the cells.
    is_asked: bool,
}

impl Drops {
    /// Takes everything that is counted so far as nothing new.
    pub(super) fn begin(&mut self, now: Nanos, readings: Readings) {
        let _ = self.take(now, 0, readings);
        self.places.values_mut().for_each(|counted| {
            counted.total = 0;
            counted.steps.clear();
        });
    }

    /// Begins a comparison; returns false when one waits for the report of the cells already.
    pub(super) fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked, true)
    }

    /// Ends the wait for the report of the cells. Returns true when devices are read, too, in the
    /// comparison that follows.
    pub(super) fn handle_report(&mut self) -> bool {
        self.is_asked = false;
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(DEVICES_EVERY)
    }

    /// Compares counters with their previous values; returns those that grew, with their growth.
    /// `rules` reads those of rules, which is done only when a rule dropped something; services for
    /// which `is_gone` begin from zero.
    pub(super) fn compare(
        &mut self,
        (now, now_ms): (Nanos, u64),
        readings: Readings,
        rules: impl FnOnce() -> Readings,
        is_gone: impl Fn(&Name) -> bool,
    ) -> Vec<(Place, u64)> {
        self.forget(is_gone);
        let mut grown = self.take(now, now_ms, readings);
        if grown.iter().any(|(place, _)| place.reason == "drop_rule") {
            grown.retain(|(place, _)| place.reason != "drop_rule");
            grown.extend(self.take(now, now_ms, rules()));
        }
        grown.retain(|(place, _)| is_drop(&place.reason) && !reasons::is_common(&place.reason));
        grown
    }

    /// Takes the number of notices that the cell has left out; returns its growth.
    pub(super) fn handle_notices_lost(&mut self, lost: u64) -> u64 {
        lost.saturating_sub(std::mem::replace(&mut self.notices_lost, lost))
    }

    /// Returns every counter that ever grew.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Place, &Counted)> {
        self.places.iter().filter(|(_, counted)| counted.total > 0)
    }

    /// Takes readings; returns what grew.
    fn take(&mut self, now: Nanos, now_ms: u64, readings: Readings) -> Vec<(Place, u64)> {
        let mut grown = Vec::new();
        let Readings { ports, devices, others } = readings;
        let devices: Vec<_> = devices.into_iter().flat_map(|it| self.of_device(it)).collect();
        for (place, read) in ports.into_iter().chain(devices).chain(others) {
            if read == 0 && !self.places.contains_key(&place) {
                continue;
            }
            let more = self.places.entry(place.clone()).or_default().grow(now, now_ms, read);
            if more > 0 {
                grown.push((place, more));
            }
        }
        grown
    }

    fn of_device(&mut self, reading: DeviceReading) -> [(Place, u64); 2] {
        let DeviceReading { port, sent_dropped, received_dropped, by_stack } = reading;
        let device = self.devices.entry(port.clone()).or_default();
        let received = device.read(received_dropped, by_stack);
        let place = |reason: &str| Place::at_port(reason, port.clone());
        [(place("device_tx_dropped"), sent_dropped), (place("device_rx_dropped"), received)]
    }

    /// Makes services that are gone count from zero when they come again.
    fn forget(&mut self, is_gone: impl Fn(&Name) -> bool) {
        for (place, counted) in &mut self.places {
            if place.service.as_ref().is_some_and(&is_gone) {
                counted.read = 0;
            }
        }
    }
}

/// Returns true for a reason for which packets are lost, and do not only go another way.
pub(super) fn is_drop(reason: &str) -> bool {
    !reason.starts_with("kernel_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(reason: &str) -> Place {
        Place { reason: reason.to_owned(), ..Place::default() }
    }

    fn readings(others: Vec<(Place, u64)>) -> Readings {
        Readings { others, ..Readings::default() }
    }

    #[test]
    fn each_increase_of_a_drop_counter_is_reported_once() {
        let mut drops = Drops::default();
        let mut take = |read| drops.take(Nanos(0), 1, readings(vec![(place("trap"), read)]));
        assert_eq!(take(0), []);
        assert_eq!(take(3), [(place("trap"), 3)]);
        assert_eq!(take(3), []);
        assert_eq!(take(5), [(place("trap"), 2)]);
        assert_eq!(take(1), [(place("trap"), 1)], "it began anew");
        let (_, counted) = drops.iter().next().unwrap();
        assert_eq!((counted.total, counted.last_ms), (6, 1));
    }

    #[test]
    fn drops_counted_by_the_stack_are_not_counted_for_devices_even_if_read_late() {
        let mut device = Device::default();
        assert_eq!(device.read(7, 5), 2);
        assert_eq!(device.read(7, 6), 2, "the sixth was dropped between the two readings");
        assert_eq!(device.read(9, 6), 3);
        assert_eq!(device.read(1, 0), 1, "another device of that name");
    }

    #[test]
    fn recent_drops_are_those_of_the_last_minute() {
        let mut drops = Drops::default();
        for second in 0..120 {
            let now = Nanos::from_millis(second * 1000);
            drops.take(now, 0, readings(vec![(place("trap"), second + 1)]));
        }
        let now = Nanos::from_millis(119_000);
        let (_, counted) = drops.iter().next().unwrap();
        assert_eq!(counted.total, 120);
        let lately = counted.lately(now);
        assert!((60..=65).contains(&lately), "{lately}");
        assert!(counted.steps.len() <= 13, "{}", counted.steps.len());
        assert_eq!(counted.lately(Nanos::from_millis(300_000)), 0);
    }

    #[test]
    fn a_service_that_comes_again_counts_from_nothing() {
        let mut drops = Drops::default();
        let name = Name::new("monitor").unwrap();
        let of = Place { service: Some(name.clone()), ..place("trap") };
        drops.take(Nanos(0), 0, readings(vec![(of.clone(), 5)]));
        drops.forget(|gone| *gone == name);
        assert_eq!(drops.take(Nanos(0), 0, readings(vec![(of.clone(), 6)])), [(of, 6)]);
    }

    #[test]
    fn drops_of_rules_are_reported_by_rule_and_common_reasons_are_not_reported() {
        let mut drops = Drops::default();
        let of_rule = Place { rule: Some(units::RuleId(4)), ..place("drop_rule") };
        let port = readings(vec![(place("drop_rule"), 3), (place("stack.otherhost"), 5)]);
        let rules = || readings(vec![(of_rule.clone(), 3)]);
        let grown = drops.compare((Nanos(0), 1), port, rules, |_| false);
        assert_eq!(grown, [(of_rule.clone(), 3)]);
        let unread = || -> Readings { panic!("no rule has dropped anything since") };
        let port = readings(vec![(place("drop_rule"), 3), (place("kernel_ttl"), 2)]);
        assert_eq!(drops.compare((Nanos(1), 2), port, unread, |_| false), []);
        let reported: Vec<&str> = drops.iter().map(|(place, _)| place.reason.as_str()).collect();
        assert_eq!(reported, ["drop_rule", "drop_rule", "kernel_ttl", "stack.otherhost"]);
    }

    #[test]
    fn counts_from_before_the_daemon_started_are_no_drops() {
        let mut drops = Drops::default();
        drops.begin(Nanos(0), readings(vec![(place("trap"), 9)]));
        assert_eq!(drops.iter().count(), 0);
        let grown = drops.compare(
            (Nanos(1), 1),
            readings(vec![(place("trap"), 11)]),
            Readings::default,
            |_| false,
        );
        assert_eq!(grown, [(place("trap"), 2)]);
    }

    #[test]
    fn one_comparison_of_drops_runs_at_a_time_and_each_second_one_reads_devices() {
        let mut drops = Drops::default();
        assert!(drops.start() && !drops.start());
        assert!(!drops.handle_report());
        assert!(drops.start());
        assert!(drops.handle_report());
        assert_eq!([3, 3, 7].map(|lost| drops.handle_notices_lost(lost)), [3, 0, 4]);
    }
}
