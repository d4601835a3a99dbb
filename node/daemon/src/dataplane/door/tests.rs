//! Unit tests of a door without XDP: nothing of it is in the kernel.

use super::*;
use crate::dataplane::fake::{door, served};
use bpf_maps::{OwnPrefix, PORT_PACKET};
use std::os::fd::AsFd;

fn refused() -> Result<FrontDoor> {
    bail!("no BPF here")
}

fn specs(modes: &[PortMode]) -> Vec<PortSpec> {
    modes.iter().map(|mode| PortSpec { mode: *mode, ..served(1).spec().clone() }).collect()
}

#[test]
fn a_node_of_packet_ports_asks_for_no_front_door() {
    let asked = || -> Result<FrontDoor> { panic!("it was asked for") };
    let door = Door::open(&specs(&[PortMode::Packet]), asked).unwrap();
    assert_eq!(door.front().err(), Some("no port asks for XDP".to_owned()));
    let reason = door.only_user().unwrap();
    assert!(reason.starts_with(ONLY_USER) && reason.contains("no port asks"), "{reason}");
}

#[test]
fn without_bpf_only_ports_that_may_be_packet_ports_are_served() {
    let door = Door::open(&specs(&[PortMode::Auto]), refused).unwrap();
    assert_eq!(door.front().err(), Some("no BPF here".to_owned()));
    assert_eq!(door.only_user(), None, "no port is one of packet sockets yet");
    for mode in [PortMode::Native, PortMode::Generic, PortMode::Tc] {
        let error = Door::open(&specs(&[PortMode::Auto, mode]), refused).err().unwrap();
        assert_eq!(format!("{error:#}"), "no BPF here");
    }
}

#[test]
fn a_port_becomes_a_packet_port_only_while_the_node_starts() {
    let mut starts = Door::open(&specs(&[PortMode::Auto]), refused).unwrap();
    starts.use_packets().unwrap();
    starts.settle();
    starts.use_packets().unwrap();
    let mut runs = Door::open(&specs(&[PortMode::Auto]), refused).unwrap();
    runs.settle();
    let error = runs.use_packets().unwrap_err().to_string();
    assert!(error.contains("start it anew"), "{error}");
}

#[test]
fn rules_have_a_new_number_when_they_or_own_addresses_change() {
    let mut door = door();
    let first = door.generation();
    door.install(&RuleSet::default()).unwrap();
    assert_eq!(door.generation(), first + 1);
    let address = OwnPrefix { length: 32, address_be: [192, 0, 2, 1] };
    let own = OwnSources::new([address].into(), [PortId(1)].into());
    assert!(door.set_own(own.clone()).unwrap(), "the cell is to be told");
    assert_eq!(door.generation(), first + 2);
    assert!(!door.set_own(own).unwrap());
    assert_eq!(door.generation(), first + 2);
}

#[test]
fn a_cell_gets_rules_that_nobody_can_change() {
    let door = door();
    let packets = door.packets().unwrap();
    let memory = packets.sealed_rules().unwrap();
    let length = rustix::fs::fstat(memory.as_fd()).unwrap().st_size;
    assert_eq!(usize::try_from(length).unwrap(), packets.rules.len());
    assert!(rustix::io::write(memory.as_fd(), b"x").is_err());
}

#[test]
fn without_a_front_door_unneeded_operations_succeed_and_attaching_fails() {
    let mut door = door();
    let config = PortConfig { flags: PORT_PACKET, ..PortConfig::default() };
    door.configure(PortId(1), &config).unwrap();
    door.know_packet_port(PortId(1), &config).unwrap();
    door.set_vlans(&[]).unwrap();
    door.set_devices(1, 2).unwrap();
    door.set_socket(PortId(1), 0, None).unwrap();
    door.heartbeat().unwrap();
    door.detach(PortId(1), 1).unwrap();
    assert!(door.lane(EntryId(1)).is_none() && door.payers_of_port_shares().is_empty());
    assert!(door.attach(PortId(1), &config, &[XdpMode::Native]).is_err());
    assert!(door.attach_tc(PortId(1), &config).is_err() && door.explainer().is_err());
}

#[test]
fn counters_of_packet_ports_are_those_that_the_cell_counts() {
    let door = door();
    assert_eq!(door.port_stats(PortId(1)).unwrap().rx_packets, 0);
    assert_eq!(door.rule_stats(RuleId(1)).unwrap().packets, 0);
    door.clear_rule_stats(RuleId(1)).unwrap();
    assert_eq!(door.uncounted(), None, "nobody has tried to count");
    assert!(door.stack_drops(Arrival::Port(PortId(1))).reasons.is_empty());
}
