//! Unit tests of a data plane without XDP: nothing of it is in the kernel.

use super::*;
use fake::{absent, link, served};
use units::Nanos;

fn node() -> Node {
    Node::new("edge".parse().unwrap(), Vec::new()).unwrap()
}

fn plane(ports: Vec<LivePort>) -> DataPlane {
    let file = NodeFile::parse("name = \"edge\"\n", "node.toml").unwrap();
    fake::plane_of(&file, ports)
}

/// Calls the data plane of a node without services.
fn ask<T>(
    plane: &mut DataPlane,
    has_cell: bool,
    ask: impl FnOnce(&mut DataPlane, &Around<'_>) -> T,
) -> T {
    let (node, desired) = (node(), Arc::default());
    let placement = &Placement::default();
    let node_changed = false;
    let around = Around { node: &node, desired: &desired, node_changed, has_cell, placement };
    ask(plane, &around)
}

#[test]
fn nothing_runs_below_user_level_where_ports_are_packet_ports() {
    let plane = plane(Vec::new());
    assert!(plane.unsupported().unwrap().contains("runs services at user level"));
    assert_eq!(plane.speed(), None);
    assert!(plane.front_door().is_err() && plane.below_report(EntryId(1)).is_none());
    assert!(!plane.has_budgets(&node()));
}

#[test]
fn what_a_previous_daemon_measured_and_counted_goes_on() {
    let mut plane = plane(Vec::new());
    plane.resume(5, Some(Speed::UNMEASURED));
    assert_eq!((plane.lost_with_cells(), plane.measured_speed()), (5, Some(Speed::UNMEASURED)));
}

#[test]
fn a_cell_that_has_started_gets_counters_and_rules_of_packet_ports() {
    let mut plane = plane(vec![absent(1)]);
    ask(&mut plane, true, |plane, around| plane.handle_cell_started(around)).unwrap();
    let given = plane.actions.words();
    assert_eq!(given.len(), 2, "a port that is away has no queue: {given:?}");
    assert!(given[0].contains("Counts") && given[1].contains("Rules"), "{given:?}");
    assert_eq!(plane.device_messages().len(), 2);
}

#[test]
fn rules_are_told_to_a_cell_that_is_there() {
    let mut plane = plane(Vec::new());
    let before = plane.front().generation();
    plane.install(&RuleSet::default(), false);
    assert!(plane.poll_action().is_none());
    plane.install(&RuleSet::default(), true);
    let Some(Action::UseRules(number, _)) = plane.poll_action() else {
        panic!("nobody is told of the rules")
    };
    assert_eq!((number, plane.front().generation()), (before + 2, before + 2));
    assert!(plane.poll_action().is_none());
}

#[test]
fn a_port_whose_device_cannot_be_served_stays_away_and_is_tried_once() {
    let mut missing = link(1, "", 0, 0);
    // No device here has that name, so it cannot be taken.
    missing.name = "device1".to_owned();
    let links = [missing];
    let mut plane = plane(vec![absent(1)]);
    ask(&mut plane, true, |plane, around| plane.refresh_each_port(around, &links));
    let port = plane.port(PortId(1)).unwrap();
    assert_eq!(port.tried(), Some((1, 1500)));
    let reason = port.away_reason().unwrap().to_owned();
    assert!(reason.contains("port 'p1'"), "{reason}");
    ask(&mut plane, true, |plane, around| plane.refresh_each_port(around, &links));
    assert_eq!(plane.port(PortId(1)).unwrap().away_reason(), Some(&*reason));
    assert_eq!(plane.actions.words(), [""; 0], "nothing is told of a port that stays away");
}

#[test]
fn another_mtu_is_told_to_cells_and_as_an_event() {
    let mut plane = plane(vec![served(1), served(2)]);
    let mut links = [link(1, "", 0, 0), link(2, "", 0, 0)];
    ask(&mut plane, true, |plane, around| plane.refresh_each_port(around, &links));
    plane.actions.words();
    links[1].mtu = 1400;
    ask(&mut plane, true, |plane, around| plane.refresh_each_port(around, &links));
    let reported = plane.actions.words();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert!(
        reported[0].contains("PortChanged") && reported[0].contains("MTU 1400"),
        "{reported:?}"
    );
    assert!(
        reported[1].contains("ChangePort") && reported[1].contains("mtu: 1400"),
        "{reported:?}"
    );
}

#[test]
fn modes_that_are_not_the_best_are_reported() {
    let packet = served(1).in_mode(Mode::Packet);
    let mut plane = plane(vec![packet, served(2)]);
    plane.note_modes();
    let reported = plane.actions.words();
    assert!(reported.len() == 1 && reported[0].contains("PortFallback"), "{reported:?}");
}

#[test]
fn an_adopted_cell_hears_of_ports_that_went_meanwhile() {
    let mut plane = plane(vec![absent(1), absent(2)]);
    let sockets = vec![((PortId(1), 0), std::fs::File::open("/dev/null").unwrap().into())];
    ask(&mut plane, true, |plane, around| plane.adopt_queues(around, sockets)).unwrap();
    assert_eq!(plane.queue_session(PortId(1)), None, "its socket went with its device");
    let reported = plane.actions.words();
    assert!(
        reported.len() == 2 && reported.iter().all(|it| it.contains("RemovePort")),
        "{reported:?}"
    );
}

#[test]
fn a_queue_of_a_port_that_nobody_knows_is_not_bound() {
    let mut plane = plane(vec![served(1)]);
    assert_eq!(plane.bind(PortId(9), 0), Err("no such port".to_owned()));
    assert_eq!(plane.bind(PortId(1), 0), Ok(()));
    plane.handle_cell_lost();
    assert_eq!(plane.lost_with_cells(), 0);
}

#[test]
fn promises_are_settled_once_and_where_there_is_a_front_door() {
    let mut plane = plane(vec![served(1)]);
    plane.promises().mark_unsettled();
    plane.promises().settle_changed(&node());
    assert!(!plane.accounts.take_dirty(), "it is settled");
    assert!(!plane.promises().handle_speed(&node(), Err("no thread".to_owned())));
    assert!(plane.promises().handle_speed(&node(), Ok(Speed::UNMEASURED)));
    assert!(plane.poll_action().is_none());
}

#[test]
fn a_service_that_never_left_user_level_leaves_nothing() {
    let mut plane = plane(Vec::new());
    let entry = EntryId(1);
    plane.services().begin_next(entry);
    plane.services().forget_next(entry);
    plane.services().forget_versions();
    assert!(plane.services().end(entry).is_none());
    assert_eq!(plane.services().handle_spare_ready(1), None);
    plane.services().clear_spares();
    plane.services().clear_entry(entry);
    plane.services().poll_budgets(&node(), Nanos(1));
    assert!(!plane.instances().is_shared(entry) && plane.lost_with_cells() == 0);
    assert!(plane.loader(entry, abi::Level::Nic, None).is_err());
}
