//! Drops by reason: counters are compared with what they were, and what grew is told.
//!
//! ```text
//!  front door, sockets, devices, kernel's stack, services, cell ─▶ readings ─▶ Drops ─▶ events, `tam why`
//!                (nothing per packet: they count anyway)
//! ```

use crate::cells::AfterReport;
use crate::daemon::Daemon;
use crate::events::{Note, wall_clock_ms};
use crate::observe::counters::{
    association_stats, queue_session, service_stats, socket_drops, stack_drops,
};
use crate::observe::reasons;
use api::EventKind;
use bpf::front_door::Arrival;
use node::Action;
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Duration;
use units::{Name, Nanos, RuleId};

/// How often counters are looked at: a drop is told within this.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Devices, whose counters are asked for over netlink, are looked at each so many times.
const DEVICES_EVERY: u32 = 2;
/// What counts as lately.
const LATELY: Nanos = Nanos::from_millis(60_000);
/// Steps in which it is counted.
const STEP: Nanos = Nanos::from_millis(5_000);

/// A counter of packets that ended somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) reason: String,
    pub(crate) port: Option<Name>,
    pub(crate) service: Option<Name>,
    pub(crate) rule: Option<RuleId>,
}

/// What a counter did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// As it was last read.
    read: u64,
    /// Since the node started.
    pub(crate) total: u64,
    /// By steps, the youngest last.
    steps: VecDeque<(Nanos, u64)>,
    /// Milliseconds since 1970 when it last grew.
    pub(crate) last_ms: u64,
}

impl Counted {
    /// In the last minute.
    pub(crate) fn lately(&self, now: Nanos) -> u64 {
        let young = |(since, _): &&(Nanos, u64)| now.saturating_sub(*since) <= LATELY;
        self.steps.iter().filter(young).map(|(_, count)| count).sum()
    }

    /// How much came since the last reading. A counter that is smaller began anew.
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

/// Packets that a device counts on its way in, of which the kernel's stack counts a part.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    counted: u64,
    alone: u64,
}

impl Device {
    /// What it alone counts. The two are not read at one moment, and a part that is read later
    /// may be ahead; what was said stays said, unless the device counts anew.
    fn read(&mut self, counted: u64, by_stack: u64) -> u64 {
        let before = if counted < self.counted { 0 } else { self.alone };
        self.counted = counted;
        self.alone = before.max(counted.saturating_sub(by_stack));
        self.alone
    }
}

/// All counters of packets that did not go the fast way, as last read.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    places: BTreeMap<Place, Counted>,
    devices: BTreeMap<Name, Device>,
    looks: u32,
    waiting: bool,
}

impl Drops {
    /// Takes a whole reading; gives what grew.
    fn take(&mut self, now: Nanos, now_ms: u64, readings: Vec<(Place, u64)>) -> Vec<(Place, u64)> {
        let mut grown = Vec::new();
        for (place, read) in readings {
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

    /// Every counter that ever grew.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Place, &Counted)> {
        self.places.iter().filter(|(_, counted)| counted.total > 0)
    }

    /// A service that comes again counts from nothing.
    fn forget(&mut self, is_gone: impl Fn(&Name) -> bool) {
        for (place, counted) in &mut self.places {
            if place.service.as_ref().is_some_and(&is_gone) {
                counted.read = 0;
            }
        }
    }
}

/// Whether a reason is one for which packets are lost, and not only go another way.
pub(crate) fn is_drop(reason: &str) -> bool {
    !reason.starts_with("kernel_")
}

impl Daemon {
    /// What the front door has counted so far is nothing new.
    pub(crate) fn begin_drops(&mut self) {
        let readings = self.port_readings();
        let _ = self.drops.take(self.now(), 0, readings);
        self.drops.places.values_mut().for_each(|counted| {
            counted.total = 0;
            counted.steps.clear();
        });
    }

    /// Looks at all counters, and tells of those that grew.
    pub(crate) fn look_at_drops(&mut self) {
        if self.drops.waiting {
            return;
        }
        self.drops.waiting = true;
        self.after_report(AfterReport::CountDrops);
    }

    /// Compares all counters with what they were, and tells of those that grew.
    pub(crate) fn count_drops(&mut self) {
        self.drops.waiting = false;
        let mut readings = self.port_readings();
        self.add_devices(&mut readings);
        self.add_services(&mut readings);
        self.add_cell(&mut readings);
        let (now, now_ms) = (self.now(), wall_clock_ms());
        let gone: Vec<Name> = self
            .drops
            .places
            .keys()
            .filter_map(|place| place.service.clone())
            .filter(|name| self.control.node().service(name).is_none())
            .collect();
        self.drops.forget(|name| gone.contains(name));
        let mut grown = self.drops.take(now, now_ms, readings);
        // Which rules they were, is asked only when there was one.
        if grown.iter().any(|(place, _)| place.reason == "drop_rule") {
            let rules = self.rule_readings();
            grown.retain(|(place, _)| place.reason != "drop_rule");
            grown.extend(self.drops.take(now, now_ms, rules));
        }
        let told = |reason: &str| is_drop(reason) && !reasons::is_common(reason);
        for (place, count) in grown.into_iter().filter(|(place, _)| told(&place.reason)) {
            self.note_drops(place, count);
        }
        let dropped = self.cells.report().notices_dropped;
        let more = dropped.saturating_sub(self.notices_lost);
        self.notices_lost = dropped;
        if more > 0 {
            let text = "events of modules and notices of traps were left out of a storm";
            self.note(Note::new(EventKind::NoticesLost, text).count(more));
        }
    }

    fn note_drops(&mut self, place: Place, count: u64) {
        let meaning = reasons::of(&place.reason).0;
        let text = format!("packets were dropped: {meaning}");
        let mut note = Note::new(EventKind::Drops, text).count(count).reason(&place.reason);
        if let Some(port) = place.port {
            let live = self.plane.ports.iter().find(|live| live.port.spec.name == port);
            if let Some(live) = live.filter(|_| place.reason.starts_with("socket_")) {
                note = note.session(queue_session(&self.view(), live));
            }
            note = note.port(port);
        }
        if let Some(service) = place.service {
            let rules = self.control.state().rules_to(&service);
            note = note.service(service);
            // With several it is not known which one a packet came by.
            if let [rule] = rules[..] {
                note = note.rule(rule);
            }
        }
        if let Some(rule) = place.rule {
            note = note.rule(rule);
        }
        self.note(note);
    }

    fn port_readings(&self) -> Vec<(Place, u64)> {
        let mut readings = Vec::new();
        for port in &self.plane.ports {
            let name = &port.port.spec.name;
            let mut add = |reason: &str, count: u64| {
                let port = Some(name.clone());
                let place = Place { reason: reason.to_owned(), port, ..Place::default() };
                readings.push((place, count));
            };
            if let Ok(counted) = self.plane.front.port_stats(port.port.id) {
                let named = bpf_maps::OUTCOMES.iter().zip(counted.outcomes);
                let lost = |name: &str| name.starts_with("drop_") || name.starts_with("kernel_");
                named.filter(|((name, _), _)| lost(name)).for_each(|((name, _), n)| add(name, n));
            }
            let (full, dropped) = socket_drops(&self.view(), port);
            add("socket_ring_full", full);
            add("socket_dropped", dropped);
            let stack = self.plane.front.stack_drops(Arrival::Port(port.port.id));
            stack_drops(stack.reasons).iter().for_each(|(reason, count)| add(reason, *count));
        }
        let own = stack_drops(self.plane.front.stack_drops(Arrival::Own).reasons);
        readings
            .extend(own.into_iter().map(|(reason, n)| (Place { reason, ..Place::default() }, n)));
        readings
    }

    fn rule_readings(&self) -> Vec<(Place, u64)> {
        let views = self.control.node().rules();
        let dropping = views.iter().filter(|view| view.rule.spec.action == Action::Drop);
        dropping
            .filter_map(|view| {
                let counted = self.plane.front.rule_stats(view.rule.id).ok()?;
                let (reason, rule) = ("drop_rule".to_owned(), Some(view.rule.id));
                Some((Place { reason, rule, ..Place::default() }, counted.packets))
            })
            .collect()
    }

    fn add_devices(&mut self, readings: &mut Vec<(Place, u64)>) {
        self.drops.looks = self.drops.looks.wrapping_add(1);
        if !self.drops.looks.is_multiple_of(DEVICES_EVERY) {
            return;
        }
        let Ok(links) = self.plane.netlink.links() else { return };
        for port in &self.plane.ports {
            let Some(link) = links.iter().find(|link| link.index == port.config.ifindex) else {
                continue;
            };
            let by_stack = self.plane.front.stack_drops(Arrival::Port(port.port.id)).device;
            let device = self.drops.devices.entry(port.port.spec.name.clone()).or_default();
            let counted = [
                ("device_tx_dropped", link.stats.tx_packets_dropped.0),
                ("device_rx_dropped", device.read(link.stats.rx_packets_dropped.0, by_stack)),
            ];
            for (reason, count) in counted {
                let (reason, name) = (reason.to_owned(), Some(port.port.spec.name.clone()));
                readings.push((Place { reason, port: name, ..Place::default() }, count));
            }
        }
    }

    fn add_services(&self, readings: &mut Vec<(Place, u64)>) {
        for service in self.control.node().services() {
            for (reason, count) in service_stats(&self.view(), service).dropped {
                let service = Some(service.name.clone());
                readings.push((Place { reason, service, ..Place::default() }, count));
            }
        }
    }

    fn add_cell(&self, readings: &mut Vec<(Place, u64)>) {
        let report = self.cells.report();
        for (reason, count) in [
            ("no_service", report.no_service_dropped),
            ("oversized", report.oversized),
            ("no_metadata", report.no_metadata),
            ("up_dropped", report.up_dropped),
        ] {
            readings.push((Place { reason: reason.to_owned(), ..Place::default() }, count));
        }
        let active = association_stats(&self.view()).map(|it| it.dropped).unwrap_or_default();
        let active = active.into_iter();
        readings.extend(active.map(|(reason, n)| (Place { reason, ..Place::default() }, n)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(reason: &str) -> Place {
        Place { reason: reason.to_owned(), ..Place::default() }
    }

    #[test]
    fn what_grew_is_told_once() {
        let mut drops = Drops::default();
        let mut take = |read| drops.take(Nanos(0), 1, vec![(place("trap"), read)]);
        assert_eq!(take(0), []);
        assert_eq!(take(3), [(place("trap"), 3)]);
        assert_eq!(take(3), []);
        assert_eq!(take(5), [(place("trap"), 2)]);
        assert_eq!(take(1), [(place("trap"), 1)], "it began anew");
        let (_, counted) = drops.iter().next().unwrap();
        assert_eq!((counted.total, counted.last_ms), (6, 1));
    }

    #[test]
    fn what_the_stack_counts_is_no_drop_of_the_devices_and_reading_late_makes_none() {
        let mut device = Device::default();
        assert_eq!(device.read(7, 5), 2);
        assert_eq!(device.read(7, 6), 2, "the sixth was dropped between the two readings");
        assert_eq!(device.read(9, 6), 3);
        assert_eq!(device.read(1, 0), 1, "another device of that name");
    }

    #[test]
    fn lately_is_a_minute() {
        let mut drops = Drops::default();
        for second in 0..120 {
            let now = Nanos::from_millis(second * 1000);
            drops.take(now, 0, vec![(place("trap"), second + 1)]);
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
        drops.take(Nanos(0), 0, vec![(of.clone(), 5)]);
        drops.forget(|gone| *gone == name);
        assert_eq!(drops.take(Nanos(0), 0, vec![(of.clone(), 6)]), [(of, 6)]);
    }
}
