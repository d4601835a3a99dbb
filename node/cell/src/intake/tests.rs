//! Unit tests of packets that arrive by the TAP device of kernel level and by packet ports, and of
//! their outcomes.

use super::*;
use crate::datapath::tests::{Wire, facts as port_facts};
use crate::dispatch::tests::{ENTRY, NEXT, Rig, facts, round};
use crate::intake::counts::DoorCounts;
use abi::Verdict;
use node::door::rules;
use rustix::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use units::{EntryId, PortId};

/// Creates an intake; returns it with the kernel's end of its TAP device.
fn intake() -> (Intake, UnixDatagram) {
    let (kernel, device) = UnixDatagram::pair().unwrap();
    device.set_nonblocking(true).unwrap();
    let mut intake = Intake::new();
    intake.set_tap(Some(device.into()));
    assert!(intake.tap().is_some());
    (intake, kernel)
}

/// Creates a frame as it comes up, behind its metadata, and a mark, if there is one.
fn frame(rig: &mut Rig, entry: EntryId, flags: u32, verdict: Verdict) -> Vec<u8> {
    let (packet, way) = rig.packet(entry, verdict.to_value());
    let meta = PacketMeta { flags: way.meta.flags | flags, ..way.meta };
    let mark: &[u8] = if flags & META_MARK != 0 { &[6; MARK_LENGTH] } else { &[] };
    let bytes: Vec<u8> = packet.chunks().flatten().copied().collect();
    packet.recycle(rig.dispatcher.path_mut().pool());
    [bytemuck::bytes_of(&meta), mark, &bytes].concat()
}

fn report(intake: &Intake, rig: &Rig) -> CellReport {
    let mut report = CellReport::default();
    rig.dispatcher.report(&mut report);
    intake.report(&mut report);
    report
}

/// Creates a rig with a service whose verdict is the packet's payload.
fn serving() -> Rig {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), crate::dispatch::tests::OBEYS);
    rig
}

fn receive(intake: &mut Intake, rig: &mut Rig, most: usize) -> bool {
    intake.receive_others(most, &mut rig.dispatcher, &mut round(&mut rig.link))
}

#[test]
fn raised_packets_reach_their_service_with_and_without_a_mark() {
    let (mut rig, (mut intake, kernel)) = (serving(), intake());
    for flags in [0, META_MARK] {
        kernel.send(&frame(&mut rig, ENTRY, flags, Verdict::Drop { reason: 5 })).unwrap();
    }
    assert!(receive(&mut intake, &mut rig, BATCH));
    assert!(!receive(&mut intake, &mut rig, BATCH), "there was no more");
    assert_eq!(rig.report(ENTRY).drop_module[&5], 2);
}

#[test]
fn at_most_a_batch_of_raised_packets_is_received_at_a_time() {
    let (mut rig, (mut intake, kernel)) = (serving(), intake());
    for _ in 0..3 {
        kernel.send(&frame(&mut rig, ENTRY, 0, Verdict::Raise)).unwrap();
    }
    receive(&mut intake, &mut rig, 2);
    assert_eq!(rig.report(ENTRY).packets, 2);
    intake.drain(&mut rig.dispatcher, &mut round(&mut rig.link));
    assert_eq!(rig.report(ENTRY).packets, 3);
}

#[test]
fn what_is_too_short_for_metadata_is_counted_also_behind_another_device() {
    let (mut rig, (mut intake, kernel)) = (serving(), intake());
    for length in [1, 31, 32] {
        kernel.send(&vec![0; length]).unwrap();
    }
    assert!(!receive(&mut intake, &mut rig, BATCH));
    assert_eq!(report(&intake, &rig).no_metadata, 3);
    intake.set_tap(None);
    assert!(!receive(&mut intake, &mut rig, BATCH) && intake.tap().is_none());
    assert_eq!(report(&intake, &rig).no_metadata, 3);
}

#[test]
fn a_raised_packet_that_only_has_to_leave_is_dropped_without_its_port() {
    let (mut rig, (mut intake, kernel)) = (serving(), intake());
    kernel.send(&frame(&mut rig, ENTRY, META_LEAVES, Verdict::PASS)).unwrap();
    assert!(receive(&mut intake, &mut rig, BATCH));
    let counted = report(&intake, &rig);
    assert_eq!((rig.report(ENTRY).packets, counted.egress_gone), (0, 1));
    assert_eq!(counted.frames_free, counted.frames_total);
}

#[test]
fn without_memory_for_it_a_packet_is_dropped_and_counted_by_where_it_was_going() {
    let (mut rig, (mut intake, kernel)) = (serving(), intake());
    let frames = [0, META_LEAVES].map(|flags| frame(&mut rig, ENTRY, flags, Verdict::PASS));
    let held: Vec<Packet> =
        std::iter::from_fn(|| rig.dispatcher.path_mut().packet_of(&[0; 60])).collect();
    frames.iter().for_each(|frame| assert!(kernel.send(frame).is_ok()));
    assert!(receive(&mut intake, &mut rig, BATCH));
    let counted = report(&intake, &rig);
    assert_eq!((counted.up_dropped, counted.egress_gone), (1, 1));
    held.into_iter().for_each(|packet| packet.recycle(rig.dispatcher.path_mut().pool()));
}

#[test]
fn raised_packets_without_a_service_are_counted_and_bypass_it() {
    let (mut rig, (mut intake, kernel)) = (serving(), intake());
    kernel.send(&frame(&mut rig, NEXT, 0, Verdict::PASS)).unwrap();
    receive(&mut intake, &mut rig, BATCH);
    assert_eq!(report(&intake, &rig).no_service, 1);
    assert!(!intake.receive(&mut rig.dispatcher, &mut round(&mut rig.link)));
    assert!(!intake.linger(&mut rig.dispatcher), "there was no burst");
}

const PORT: PortId = PortId(0);

/// Adds a packet port; returns its other end.
fn add_port(rig: &mut Rig, bridge: Option<PortId>) -> Wire {
    let (path, sessions) = rig.dispatcher.path_and_sessions();
    Wire::add(path, sessions, (PORT, bridge))
}

/// Returns packets and bytes that arrived by the port, and packets of an outcome.
fn counted(counts: &DoorCounts, outcome: &str) -> (u64, u64, u64) {
    let stats = counts.port(PORT);
    let place = bpf_maps::OUTCOMES.iter().position(|(name, _)| *name == outcome).unwrap();
    (stats.rx_packets, stats.rx_bytes, stats.outcomes[place])
}

#[test]
fn what_no_rule_matches_goes_back_into_the_kernel_and_is_counted() {
    let (mut rig, mut intake) = (Rig::new(), Intake::new());
    let wire = add_port(&mut rig, None);
    let counts = DoorCounts::create().unwrap();
    intake.count_in(counts.as_fd().try_clone_to_owned().unwrap()).unwrap();
    // ARP, which the node leaves to the kernel.
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&port_facts(PORT).mac);
    frame[12..14].copy_from_slice(&[8, 6]);
    wire.come(&frame);
    assert!(receive(&mut intake, &mut rig, BATCH));
    assert_eq!(wire.back(), [frame]);
    assert_eq!(counted(&counts, "kernel_not_ip"), (1, 60, 1));
    assert!(!receive(&mut intake, &mut rig, BATCH));
}

#[test]
fn what_leaves_by_a_bridge_whose_other_end_is_away_is_lost_and_counted() {
    let (mut rig, mut intake) = (Rig::new(), Intake::new());
    let wire = add_port(&mut rig, Some(PortId(5)));
    let counts = DoorCounts::create().unwrap();
    intake.count_in(counts.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let frame = wire::FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(1, 2).build();
    wire.come(&frame);
    intake.drain_ports(&mut rig.dispatcher, &mut round(&mut rig.link));
    assert_eq!(counted(&counts, "drop_egress_gone"), (1, frame.len() as u64, 1));
}

#[test]
fn rules_are_read_from_sealed_memory_and_their_number_is_published() {
    let mut intake = Intake::new();
    let counts = DoorCounts::create().unwrap();
    intake.count_in(counts.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let none = sandbox::fd_passing::sealed_memory("rules", b"no rules").unwrap();
    assert!(intake.install(7, &none).is_err());
    let bytes = rules::encode(&Default::default(), &Default::default());
    let rules = sandbox::fd_passing::sealed_memory("rules", &bytes).unwrap();
    let facts = intake.install(8, &rules).unwrap();
    assert_eq!((facts.of(1), counts.rules()), (None, 8));
}
