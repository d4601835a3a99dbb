//! Tests of bridged ports: packets leave by the other end unchanged, unless a rule takes them.

use bpf::Update;
use bpf_maps::{
    ACTION_DROP, Key, META_BRIDGED, META_ROUTED, Mask, PacketMeta, PortConfig, Rule,
    SLOW_NO_REDIRECT,
};
use wire::FrameBuilder;

use crate::harness::{FrontDoor, MAC, OUT_PORT, PORT, XDP_DROP, XDP_PASS, XDP_REDIRECT};
use crate::namespace::{LOOPBACK, OUT_MAC, OUT_MTU, add_way_out, enter};
use crate::nic_harness::Nic;

const PASS: u32 = 0;
const REROUTE: u32 = 0x100;
const RAISE: u32 = 4;
/// `TAM_META_CROSS`.
const CROSS: u32 = 1 << 7;
const METADATA: usize = size_of::<PacketMeta>();

/// Makes a bridge of the arrival port and the egress port, which is slow for these reasons.
fn bridge(door: &FrontDoor, out: u32, slow: u32) {
    let other = u32::from(OUT_PORT);
    let port = PortConfig { ifindex: LOOPBACK, mac: MAC, mtu: 9000, ..Default::default() };
    let port = PortConfig { bridge: other + 1, ..port };
    door.map("tam_ports").update(&u32::from(PORT), &port, Update::Any).unwrap();
    let port = PortConfig { ifindex: out, slow, mac: OUT_MAC, mtu: OUT_MTU, ..Default::default() };
    door.map("tam_ports").update(&other, &port, Update::Any).unwrap();
}

fn to_foreign_macs() -> FrameBuilder {
    let macs = ([2, 9, 9, 9, 9, 1], [2, 9, 9, 9, 9, 2]);
    FrameBuilder::new().ethernet(macs.0, macs.1).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 1)
}

fn udp() -> Vec<u8> {
    to_foreign_macs().udp(1, 2).payload(&[7; 100]).build()
}

/// Makes a frame of this ethertype or length to this address.
fn raw(destination: [u8; 6], ethertype: u16) -> Vec<u8> {
    let mut frame = [&destination[..], &[2, 9, 9, 9, 9, 1], &ethertype.to_be_bytes()].concat();
    frame.extend([0x42; 46]);
    frame
}

/// Starts a packet with more VLAN tags than the front door parses.
fn tagged() -> FrameBuilder {
    (1..=5).fold(to_foreign_macs(), |frame, id| frame.vlan(id))
}

/// Returns frames of all kinds: some that a rule can match, some that none can.
fn frames() -> Vec<Vec<u8>> {
    let mut lying = udp();
    lying[16..18].copy_from_slice(&9999u16.to_be_bytes());
    let mut cut = udp();
    cut.truncate(20);
    vec![
        udp(),
        to_foreign_macs().tcp(1, 2, 2).build(),
        // ARP, LLDP, STP, and an unassigned type.
        raw([0xff; 6], 0x0806),
        raw([1, 0x80, 0xc2, 0, 0, 0x0e], 0x88cc),
        raw([1, 0x80, 0xc2, 0, 0, 0], 38),
        raw([2, 9, 9, 9, 9, 3], 0x1234),
        tagged().udp(1, 2).build(),
        lying,
        cut,
    ]
}

#[test]
fn every_frame_crosses_a_bridge_unchanged() {
    if !enter("every_frame_crosses_a_bridge_unchanged") {
        return;
    }
    let out = add_way_out();
    let mut door = FrontDoor::load(Some(out));
    for (slow, action, meta) in [(0, XDP_REDIRECT, 0), (SLOW_NO_REDIRECT, XDP_PASS, METADATA)] {
        bridge(&door, out, slow);
        door.activate(0);
        door.heartbeat();
        for frame in frames() {
            // The second time from the cache, if it was a flow.
            for _ in 0..2 {
                let done = door.run(&frame);
                assert_eq!((done.outcome, done.action), ("bridged", action), "{frame:x?}");
                assert_eq!(done.bytes[meta..], frame);
                if meta > 0 {
                    let meta: PacketMeta = bytemuck::pod_read_unaligned(&done.bytes[..METADATA]);
                    assert_eq!((meta.egress_port, meta.flags), (OUT_PORT, CROSS));
                }
            }
        }
    }
    bridge(&door, 0, 0);
    door.activate(0);
    for frame in frames() {
        let done = door.run(&frame);
        assert_eq!((done.outcome, done.action), ("drop_egress_gone", XDP_DROP));
    }
}

#[test]
fn a_frame_that_the_other_end_does_not_take_is_counted() {
    if !enter("a_frame_that_the_other_end_does_not_take_is_counted") {
        return;
    }
    let out = add_way_out();
    let mut door = FrontDoor::load(Some(out));
    bridge(&door, out, 0);
    let longest = OUT_MTU as usize + 14 + 4;
    for (length, outcome) in [(longest, "bridged"), (longest + 1, "drop_too_long")] {
        let mut frame = raw([0xff; 6], 0x88b5);
        frame.resize(length, 1);
        assert_eq!(door.run(&frame).outcome, outcome);
    }
}

#[test]
fn an_unfinished_checksum_crosses_where_the_kernel_knows_of_it() {
    if !enter("an_unfinished_checksum_crosses_where_the_kernel_knows_of_it") {
        return;
    }
    let out = add_way_out();
    let mut door = FrontDoor::load(Some(out));
    bridge(&door, out, 0);
    let mut frame = udp();
    let length = (frame.len() - 34) as u16;
    let sum =
        wire::checksum::Sum::pseudo_header_v4([10, 0, 0, 1], [10, 0, 0, 2], 17, length).checksum();
    frame[40..42].copy_from_slice(&(!sum).to_be_bytes());
    for _ in 0..2 {
        let done = door.run(&frame);
        assert_eq!((done.outcome, done.action), ("bridged", XDP_PASS));
        assert_eq!(done.bytes[METADATA..], frame);
    }
}

#[test]
fn a_rule_takes_what_it_matches_and_nothing_else() {
    if !enter("a_rule_takes_what_it_matches_and_nothing_else") {
        return;
    }
    let out = add_way_out();
    let mut door = FrontDoor::load(Some(out));
    bridge(&door, out, 0);
    let rule = Rule { rule: 3, action: ACTION_DROP, ..Rule::default() };
    door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
    door.activate(0);
    door.heartbeat();
    let (is_flow, other): (Vec<_>, Vec<_>) =
        frames().into_iter().partition(|frame| wire::parse_frame(frame).is_ok());
    assert_eq!((is_flow.len(), other.len()), (2, 7));
    is_flow.iter().for_each(|frame| assert_eq!(door.run(frame).outcome, "drop_rule"));
    let deep = tagged().udp(1, 2).build();
    for frame in &other {
        let outcome = if *frame == deep { "drop_vlan_depth" } else { "bridged" };
        assert_eq!(door.run(frame).outcome, outcome);
    }
    // From host to host, whatever a router does with such addresses.
    let host = |last| std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last);
    let link_local = FrameBuilder::new().ipv6(host(1), host(2), 64).udp(1, 53).build();
    assert_eq!(door.run(&link_local).outcome, "drop_rule");
    let mut advertisement = FrameBuilder::new().ipv6(host(1), host(2), 255).icmp_echo(1, 2).build();
    advertisement[14 + 40] = 136;
    assert_eq!(door.run(&advertisement).outcome, "bridged");
}

#[test]
fn a_module_passes_a_bridged_packet_on_as_it_left_it() {
    if !enter("a_module_passes_a_bridged_packet_on_as_it_left_it") {
        return;
    }
    let out = add_way_out();
    let mut nic = Nic::load(Some(out));
    for (slow, action, skip) in [(0, XDP_REDIRECT, 0), (SLOW_NO_REDIRECT, XDP_PASS, METADATA)] {
        bridge(&nic.door, out, slow);
        nic.door.activate(0);
        for verdict in [PASS, REROUTE] {
            let done = nic.verdict(&udp(), verdict);
            assert_eq!((done.outcome, done.action), ("to_nic", action), "{verdict}");
            assert_eq!(done.bytes[skip..], udp());
        }
        // Without a cell a raised packet goes as if there were no rule.
        let done = nic.verdict(&udp(), RAISE);
        assert_eq!((done.outcome, done.action), ("to_nic", action));
    }
    let stats = nic.stats();
    assert_eq!((stats.forwarded, stats.plain, stats.to_kernel), (4, 2, 0));
    assert_eq!(nic.ended(), 6);
    // The metadata that travels with it names the egress.
    let way = nic.passage().meta;
    assert_eq!(way.flags & (META_BRIDGED | META_ROUTED), META_BRIDGED);
    assert_eq!(way.egress_port, OUT_PORT);
}
