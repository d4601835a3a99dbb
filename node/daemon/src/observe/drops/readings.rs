//! Readings of all counters of packets that did not go the fast way.

use crate::observe::counters::{association_stats, service_stats, stack_drops};
use crate::observe::view::View;
use bpf::front_door::Arrival;
use node::Action;
use units::{Name, RuleId};

/// Identity of a counter of packets that ended somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::observe) struct Place {
    pub(in crate::observe) reason: String,
    pub(in crate::observe) port: Option<Name>,
    pub(in crate::observe) service: Option<Name>,
    pub(in crate::observe) rule: Option<RuleId>,
}

impl Place {
    /// Creates the counter of a reason at a port.
    pub(super) fn at_port(reason: &str, port: Name) -> Self {
        Self { reason: reason.to_owned(), port: Some(port), ..Self::default() }
    }

    /// Creates the counter of a reason that is of no port, service or rule.
    fn of_node(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }
}

/// Counters of a port's device.
#[derive(Debug)]
pub(super) struct DeviceReading {
    pub(super) port: Name,
    pub(super) sent_dropped: u64,
    pub(super) received_dropped: u64,
    /// Drops of frames received that the kernel's stack counts by reason.
    pub(super) by_stack: u64,
}

/// Values of counters at one moment.
#[derive(Debug, Default)]
pub(in crate::observe) struct Readings {
    pub(super) ports: Vec<(Place, u64)>,
    pub(super) devices: Vec<DeviceReading>,
    pub(super) others: Vec<(Place, u64)>,
}

/// Reads the counters of ports and of the kernel's stack.
pub(in crate::observe) fn of_ports(view: &View<'_>) -> Readings {
    let mut readings = Readings::default();
    for port in view.plane.ports() {
        let name = port.name();
        let mut add = |reason: &str, count: u64| {
            readings.ports.push((Place::at_port(reason, name.clone()), count));
        };
        if let Ok(counted) = view.plane.front().port_stats(port.id()) {
            let named = bpf_maps::OUTCOMES.iter().zip(counted.outcomes);
            let lost = |name: &str| name.starts_with("drop_") || name.starts_with("kernel_");
            named.filter(|((name, _), _)| lost(name)).for_each(|((name, _), n)| add(name, n));
        }
        let (full, dropped) = view.plane.socket_drops(port);
        add("socket_ring_full", full);
        add("socket_dropped", dropped);
        let stack = view.plane.front().stack_drops(Arrival::Port(port.id()));
        stack_drops(stack.reasons).iter().for_each(|(reason, count)| add(reason, *count));
    }
    let own = stack_drops(view.plane.front().stack_drops(Arrival::Own).reasons);
    readings.ports.extend(own.into_iter().map(|(reason, n)| (Place::of_node(reason), n)));
    readings
}

/// Reads all counters but those of rules; those of devices only if `with_devices`.
pub(in crate::observe) fn of_all(view: &View<'_>, with_devices: bool) -> Readings {
    let mut readings = of_ports(view);
    if with_devices {
        add_devices(view, &mut readings);
    }
    add_services(view, &mut readings);
    add_cell(view, &mut readings);
    readings
}

/// Reads the counters of rules that drop packets.
pub(in crate::observe) fn of_rules(view: &View<'_>) -> Readings {
    let rules = view.node.rules();
    let dropping = rules.iter().filter(|it| it.rule.spec.action == Action::Drop);
    let readings = dropping.filter_map(|it| {
        let counted = view.plane.front().rule_stats(it.rule.id).ok()?;
        let place = Place { rule: Some(it.rule.id), ..Place::of_node("drop_rule".to_owned()) };
        Some((place, counted.packets))
    });
    Readings { others: readings.collect(), ..Readings::default() }
}

fn add_devices(view: &View<'_>, readings: &mut Readings) {
    let Ok(links) = view.plane.netlink().links() else { return };
    for port in view.plane.ports() {
        let link = links.iter().find(|link| link.index == port.config().ifindex);
        readings.devices.extend(link.map(|link| DeviceReading {
            port: port.name().clone(),
            sent_dropped: link.stats.tx_packets_dropped.0,
            received_dropped: link.stats.rx_packets_dropped.0,
            by_stack: view.plane.front().stack_drops(Arrival::Port(port.id())).device,
        }));
    }
}

fn add_services(view: &View<'_>, readings: &mut Readings) {
    for service in view.node.services() {
        for (reason, count) in service_stats(view, service).dropped {
            let service = Some(service.name.clone());
            readings.others.push((Place { service, ..Place::of_node(reason) }, count));
        }
    }
}

fn add_cell(view: &View<'_>, readings: &mut Readings) {
    let report = view.cells.report();
    let cell = [
        ("no_service", report.no_service_dropped),
        ("oversized", report.oversized),
        ("no_metadata", report.no_metadata),
        ("up_dropped", report.up_dropped),
    ];
    let cell = cell.into_iter().map(|(reason, count)| (reason.to_owned(), count));
    let active = association_stats(view).map(|it| it.dropped).unwrap_or_default();
    let all = cell.chain(active);
    readings.others.extend(all.map(|(reason, n)| (Place::of_node(reason), n)));
}
