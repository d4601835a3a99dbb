//! Unit tests of ports, and ports for those of others.

use super::*;
use crate::dataplane::fake::{MAC, absent, link, served};
use bpf_maps::SLOW_QDISC;

impl LivePort {
    /// Returns the port as it is while it is served.
    pub(in crate::dataplane) fn served(self, config: PortConfig) -> Self {
        Self { config, queues: 1, away: None, ..self }
    }

    /// Returns the port as one end of a bridge.
    pub(in crate::dataplane) fn bridged(self, other: PortId) -> Self {
        Self { bridge: Some(other), ..self }
    }

    /// Returns the port in another mode.
    pub(in crate::dataplane) fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }
}

fn text(note: &Note) -> String {
    format!("{note:?}")
}

#[test]
fn a_port_without_a_device_says_why_and_has_no_configuration() {
    let mut port = absent(3);
    assert!(port.is_away() && port.queues() == 0);
    assert_eq!(port.away_reason(), Some("it was never there"));
    assert_eq!((port.config(), port.tried()), (&PortConfig::default(), None));
    assert!(!port.try_again(), "no device was tried");
    port.leave("it is busy".to_owned(), Some((7, 1500)));
    assert_eq!((port.away_reason(), port.tried()), (Some("it is busy"), Some((7, 1500))));
    assert!(port.try_again() && port.tried().is_none());
}

#[test]
fn a_port_that_goes_keeps_its_configuration_until_it_has_left() {
    let mut port = served(3);
    port.mark_away("the device device3 is gone".to_owned(), None);
    assert!(port.is_away());
    assert_eq!(port.config().ifindex, 3, "its programs are still to be taken off");
    port.leave("the device device3 is gone".to_owned(), None);
    assert_eq!(port.config().ifindex, 0);
}

#[test]
fn drops_of_closed_sockets_stay_counted_when_the_port_comes_back() {
    let mut port = served(3);
    port.add_drops((2, 1));
    port.add_drops((3, 0));
    assert_eq!(port.drops_before(), (5, 1));
    port.come_back(served(3).in_mode(Mode::Packet));
    assert_eq!((port.drops_before(), port.mode()), ((5, 1), Mode::Packet));
}

#[test]
fn another_address_or_mtu_is_a_change_and_what_was_found_out_stays() {
    let mut port = served(3);
    port.refresh(&link(3, "", 0, 0));
    port.set_cabled(true);
    port.set_slow(SLOW_QDISC);
    assert!(!port.refresh(&link(3, "", 0, 0)));
    let smaller = Link { mtu: 1400, ..link(3, "", 0, 0) };
    assert!(port.refresh(&smaller) && !port.refresh(&smaller));
    assert_eq!((port.config().mtu, port.config().slow), (1400, SLOW_QDISC));
    assert_ne!(port.config().flags & PORT_CABLED, 0);
    let note = text(&port.changed());
    assert!(note.contains("MTU 1400, MAC 02:00:00:00:00:01, rp_filter "), "{note}");
}

#[test]
fn setting_a_port_flag_reports_only_changes() {
    let mut port = served(3);
    assert!(port.set_cabled(true) && !port.set_cabled(true));
    assert!(port.set_shared(true) && !port.set_shared(true));
    assert_eq!(port.config().flags, PORT_CABLED | PORT_SHARES);
    assert!(port.set_cabled(false) && !port.set_cabled(false));
    assert_eq!(port.config().flags, PORT_SHARES);
}

#[test]
fn at_tc_a_slow_reason_changes_the_front_door_and_makes_no_event() {
    let mut port = served(3).in_mode(Mode::Tc);
    let slowed = port.set_slow(SLOW_QDISC);
    assert_eq!(slowed, Slowed { is_changed: true, is_news: false });
    let mut port = served(3);
    let slowed = port.set_slow(SLOW_QDISC);
    assert_eq!(slowed, Slowed { is_changed: true, is_news: true });
    assert_eq!(port.set_slow(SLOW_QDISC), Slowed { is_changed: false, is_news: false });
}

#[test]
fn the_mode_that_a_previous_daemon_found_is_adopted_without_an_event() {
    let mut port = served(3);
    let flags = PORT_GENERIC | PORT_CABLED;
    port.take_up(&PortConfig { flags, slow: SLOW_QDISC, ..PortConfig::default() });
    assert_eq!((port.mode(), port.config().flags), (Mode::Generic, flags));
    assert_eq!(port.mode_reason(), Some("as the daemon before found"));
    assert_eq!(port.set_slow(SLOW_QDISC), Slowed { is_changed: false, is_news: false });
    let mut port = served(3);
    port.take_up(&PortConfig { flags: PORT_TC, ..PortConfig::default() });
    assert_eq!((port.mode(), port.mode_reason()), (Mode::Tc, None));
}

#[test]
fn services_are_kept_from_kernel_level_where_packets_have_no_ethernet_header() {
    assert_eq!(served(3).not_at_kernel(), None);
    for (flag, kind) in [(PORT_RAW, "TUN"), (PORT_GENERIC, "generic")] {
        let mut port = served(3);
        port.config.flags |= flag;
        let reason = port.not_at_kernel().unwrap();
        assert!(reason.contains(kind) && reason.contains("'p3'"), "{reason}");
    }
}

#[test]
fn a_mode_that_is_not_the_best_one_is_reported_with_its_price() {
    assert_eq!(served(3).fallback().map(|note| text(&note)), None);
    let note = text(&served(3).in_mode(Mode::Packet).fallback().unwrap());
    assert!(note.contains("served as packet") && note.contains("node file says so"), "{note}");
    let mut port = served(3).in_mode(Mode::Generic);
    port.mode_reason = Some("the driver has no XDP".to_owned());
    let note = text(&port.fallback().unwrap());
    assert!(note.contains("socket buffer") && note.contains("driver has no XDP"), "{note}");
    let away = absent(3).in_mode(Mode::Packet);
    assert!(away.fallback().is_none(), "a port that is away is not served at all");
}

#[test]
fn a_cells_message_about_a_queue_has_the_ports_current_settings() {
    let mut port = served(3);
    port.set_cabled(true);
    let facts = port.facts(2);
    assert_eq!((facts.port, facts.queue, facts.ifindex), (PortId(3), 2, 3));
    assert_eq!((facts.mac, facts.mtu, facts.name.as_str()), (MAC, 1500, "p3"));
    assert!(facts.cabled && facts.in_driver && !facts.raw);
    assert!(!served(3).in_mode(Mode::Generic).facts(0).in_driver);
}

#[test]
fn losses_on_the_return_path_are_counted_for_packet_ports_only() {
    let mut pair = link(9, "veth", 0, 0);
    pair.name = "tpa-3".to_owned();
    pair.stats.tx_packets_dropped.0 = 5;
    let links = [pair];
    assert_eq!(served(3).lost_on_way_back(&links), 0);
    assert_eq!(served(3).in_mode(Mode::Packet).lost_on_way_back(&links), 5);
    assert_eq!(served(4).in_mode(Mode::Packet).lost_on_way_back(&links), 0);
}
