//! Unit tests of verdicts on packets that cannot be sent everywhere: payloads of active packets,
//! and frames with tags.

use super::graph::PASSES;
use super::*;
use crate::datapath::tests::{Wire, facts as port_facts};
use bpf_maps::{META_ROUTED, VLAN_PRESENT, VLAN_UNKNOWN};

const LEFT: PortId = PortId(0);
const RIGHT: PortId = PortId(1);
/// Word that is no verdict, so that the module traps.
const FALL: u32 = 0xffff;

/// Creates a rig with two ports, and their other ends; with `turns` sessions take turns.
fn wired(turns: bool) -> (Rig, [Wire; 2]) {
    let mut rig = Rig::new();
    let (path, sessions) = rig.dispatcher.path_and_sessions();
    let wires = [LEFT, RIGHT].map(|port| Wire::add(path, sessions, (port, None)));
    if turns {
        rig.add_session(2, "{}");
    }
    (rig, wires)
}

/// Gives the payload of an active packet to a service.
fn give_payload(rig: &mut Rig, entry: EntryId, word: u32) {
    let (packet, mut origin) = rig.packet(entry, word);
    origin.meta.flags |= META_DATA;
    rig.dispatcher.on_packet(packet, origin, &mut round(&mut rig.link));
    rig.run_turns();
}

#[test]
fn a_payload_goes_along_the_edges_of_its_graph_and_never_out_as_a_frame() {
    for (verdict, of) in [
        (Verdict::PASS, |report: &ServiceReport| report.consumed),
        (Verdict::Pass { edge: 0, reroute: true }, |report: &ServiceReport| report.consumed),
        (Verdict::Pass { edge: 1, reroute: false }, |report: &ServiceReport| report.drop_down),
        (Verdict::Pass { edge: 2, reroute: false }, |report: &ServiceReport| report.passed_on),
        (Verdict::Redirect { port: RIGHT.0 }, |report: &ServiceReport| report.drop_malformed),
        (Verdict::Raise, |report: &ServiceReport| report.drop_raise),
        (Verdict::Drop { reason: 2 }, |report: &ServiceReport| report.drop_module[&2]),
    ] as [(Verdict, fn(&ServiceReport) -> u64); 7]
    {
        for turns in [false, true] {
            let (mut rig, wires) = wired(turns);
            rig.start(facts(ENTRY), OBEYS);
            rig.start(facts(NEXT), PASSES);
            rig.connect(ENTRY, &[Edge::Out, Edge::Down, Edge::To(NEXT)]);
            rig.run_turns();
            give_payload(&mut rig, ENTRY, verdict.to_value());
            let report = rig.report(ENTRY);
            assert_eq!((of(&report), report.ended()), (1, 1), "{verdict:?} {turns}");
            // The next service passes the payload, which ends there.
            let next = rig.report(NEXT);
            assert_eq!((next.consumed, next.ended()), (report.passed_on, report.passed_on));
            let sent = wires.each_ref().map(|wire| wire.sent().len() + wire.back().len());
            assert_eq!(sent, [0, 0], "{verdict:?} {turns}");
            assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
        }
    }
}

#[test]
fn a_payload_whose_service_has_no_instance_ends_there_also_when_the_service_is_open() {
    for turns in [false, true] {
        let (mut rig, wires) = wired(turns);
        rig.start(facts(ENTRY), OBEYS);
        rig.run_turns();
        rig.loader.accounts().set(SessionId::BEST_EFFORT, Some(Bytes(1)), Bytes::ZERO);
        for word in [FALL, 0] {
            give_payload(&mut rig, ENTRY, word);
        }
        let report = rig.report(ENTRY);
        assert_eq!((report.drop_trap, report.drop_down, report.ended()), (1, 1, 2), "{turns}");
        let sent = wires.each_ref().map(|wire| wire.sent().len() + wire.back().len());
        assert_eq!(sent, [0, 0], "{turns}");
    }
}

/// Creates a frame with these VLAN tags.
fn tagged(tags: &[u16]) -> Vec<u8> {
    let frame = FrameBuilder::new().ethernet(port_facts(LEFT).mac, [2; 6]);
    let frame = tags.iter().fold(frame, |frame, &tag| frame.vlan(tag));
    frame.ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(1, 2).payload(&[7; 60]).build()
}

/// Gives a frame to the service, with these metadata beside its offsets.
fn give_frame(rig: &mut Rig, frame: &[u8], change: impl Fn(&mut PacketMeta)) {
    let (unused, mut origin) = rig.packet(ENTRY, 0);
    unused.recycle(rig.dispatcher.path_mut().pool());
    let behind = frame.len() - tagged(&[]).len();
    (origin.meta.l3_offset, origin.meta.l4_offset) = (14 + behind as u16, 34 + behind as u16);
    change(&mut origin.meta);
    let packet = rig.dispatcher.path_mut().packet_of(frame).unwrap();
    rig.dispatcher.on_packet(packet, origin, &mut round(&mut rig.link));
}

#[test]
fn a_frame_leaves_with_the_tag_of_its_route_and_no_other() {
    for (tags, vlan) in [
        (&[][..], None),
        (&[], Some(20)),
        (&[5], None),
        (&[5], Some(5)),
        (&[5], Some(4094)),
        (&[5, 6], None),
    ] {
        let (mut rig, [_left, right]) = wired(false);
        rig.start(facts(ENTRY), PASSES);
        let next_hop = [4; 6];
        give_frame(&mut rig, &tagged(tags), |meta| {
            meta.flags |= META_ROUTED;
            (meta.egress_port, meta.next_hop) = (RIGHT.0, next_hop);
            meta.egress_vlan = vlan.map_or(0, |vlan| VLAN_PRESENT | vlan);
        });
        let [frame] = &right.sent()[..] else { panic!("{tags:?} {vlan:?}") };
        assert_eq!((&frame[..6], &frame[6..12]), (&next_hop[..], &port_facts(RIGHT).mac[..]));
        let tag = vlan.map_or_else(Vec::new, |vlan| [[0x81, 0], vlan.to_be_bytes()].concat());
        let (found, packet) = frame[12..].split_at(tag.len());
        assert_eq!((found, &packet[..3]), (&tag[..], &[8, 0, 0x45][..]), "{tags:?} {vlan:?}");
        assert_eq!(packet[22..], tagged(&[])[34..], "what is in the packet stays");
    }
}

#[test]
fn a_frame_of_a_vlan_that_its_port_does_not_have_is_not_left_to_the_kernel_without_its_tag() {
    for (tags, vlan, dropped_for_vlan) in [
        (&[][..], VLAN_UNKNOWN, false),
        (&[5], VLAN_UNKNOWN, true),
        (&[5], 0, false),
        (&[5, 6], 0, true),
    ] {
        let (mut rig, wires) = wired(false);
        rig.start(facts(ENTRY), PASSES);
        // The arrival port does not exist: only the node's own device is left.
        give_frame(&mut rig, &tagged(tags), |meta| {
            (meta.arrival_port, meta.egress_vlan) = (9, vlan);
        });
        let report = rig.report(ENTRY);
        let ends = (report.drop_vlan, report.drop_kernel, report.ended());
        let expected = if dropped_for_vlan { (1, 0, 1) } else { (0, 1, 1) };
        assert_eq!(ends, expected, "{tags:?} {vlan}");
        assert!(wires.iter().all(|wire| wire.sent().is_empty() && wire.back().is_empty()));
        assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
    }
}
