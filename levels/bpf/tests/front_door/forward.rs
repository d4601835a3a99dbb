//! Tests of plain forwarding: a packet leaves as `wire::rewrite` makes it of the frame, and packets
//! that only the kernel can answer go to the kernel unchanged.

use bpf::Update;
use bpf_maps::{
    ACTION_FORWARD, ACTION_OUT, ACTION_SERVICE, ACTION_USER, Key, META_ROUTED, Mask, OwnPrefix,
    PORT_ACCEPTS_OWN, PORT_NO_V6, PacketMeta, PortConfig, RPF_NONE, RPF_STRICT, Rule, VLAN_UNKNOWN,
    Vlan, VlanKey,
};
use wire::samples::{Mutations, samples};
use wire::{FrameBuilder, Parsed, VlanTag, parse_frame, protocol, rewrite};

use crate::harness::{
    Done, FrontDoor, MAC, OUT_PORT, PORT, XDP_DROP, XDP_PASS, XDP_REDIRECT, addressed,
};
use crate::namespace::{LOOPBACK, NEXT_HOP, OUT_MAC, OUT_MTU, add_way_out, enter, ifindex};

/// Number of mutated frames.
const MUTATIONS: usize = 20_000;

fn udp4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2)
}

fn udp6() -> FrameBuilder {
    let source = [0x2001, 0x0db8, 0, 0, 0, 0, 0, 1];
    FrameBuilder::new().ipv6(source, [0x2001, 0x0db8, 1, 0, 0, 0, 0, 2], 64).udp(1, 2)
}

#[test]
fn a_forwarded_frame_is_one_hop_further() {
    if !enter("a_forwarded_frame_is_one_hop_further") {
        return;
    }
    let mut front_door = FrontDoor::load(Some(add_way_out()));
    let mut forwarded = 0;
    let frames =
        samples().into_iter().map(|sample| sample.frame).chain(Mutations::new(3).take(MUTATIONS));
    for frame in frames.map(addressed).filter(|frame| frame.len() >= 14) {
        let done = front_door.run(&frame);
        let Ok(parsed) = parse_frame(&frame) else { continue };
        if let Some(difference) = differs(&parsed, &done, &frame) {
            panic!("{difference}: {done:?} of {frame:02x?}");
        }
        forwarded += usize::from(done.outcome == "forwarded");
    }
    assert!(forwarded > MUTATIONS / 5, "only {forwarded} frames were forwarded");
}

#[test]
fn what_the_kernel_must_answer_goes_to_it() {
    if !enter("what_the_kernel_must_answer_goes_to_it") {
        return;
    }
    let mut front_door = FrontDoor::load(Some(add_way_out()));
    let long = OUT_MTU as usize - 28;
    let v4 =
        |source, destination, ttl| FrameBuilder::new().ipv4(source, destination, ttl).udp(1, 2);
    let there = [203, 0, 113, 9];
    let ten = [10, 0, 0, 1];
    for (builder, outcome) in [
        (udp4(), "forwarded"),
        (udp6(), "forwarded"),
        (udp4().payload(&vec![0; long]), "forwarded"),
        (udp4().payload(&vec![0; long + 1]), "kernel_too_big"),
        (udp6().payload(&vec![0; long]), "kernel_too_big"),
        (v4(ten, there, 2), "forwarded"),
        (v4(ten, there, 1), "kernel_ttl"),
        (v4(ten, there, 0), "kernel_ttl"),
        (udp4().options(&[1; 4]), "kernel_options"),
        (udp6().extension(wire::protocol::HOP_BY_HOP, &[]), "kernel_options"),
        (v4(ten, [198, 51, 100, 1], 64), "kernel_local"),
        (v4(ten, [224, 0, 0, 1], 64), "kernel_local"),
        (v4(ten, [255, 255, 255, 255], 64), "kernel_local"),
        (v4(ten, [127, 0, 0, 1], 64), "kernel_local"),
        (v4(ten, [0, 0, 0, 9], 64), "kernel_local"),
        (v4(ten, [198, 51, 100, 77], 64), "kernel_neighbour"),
        (v4([0, 0, 0, 0], there, 64), "kernel_source"),
        (v4([127, 0, 0, 1], there, 64), "kernel_source"),
        (v4([224, 0, 0, 1], there, 64), "kernel_source"),
        (v4([255, 255, 255, 255], there, 64), "kernel_source"),
        (udp4().vlan(1).vlan(2), "kernel_vlan_depth"),
        (udp4().vlan(9), "kernel_other"),
        (udp4().ethernet([2; 6], [4; 6]), "kernel_not_for_us"),
    ] {
        let frame = builder.build();
        let frame = if outcome == "kernel_not_for_us" { frame } else { addressed(frame) };
        let done = front_door.run(&frame);
        assert_eq!(done.outcome, outcome, "{builder:?}");
        if outcome != "forwarded" {
            assert_eq!((done.action, done.bytes), (XDP_PASS, frame), "{outcome}");
        }
    }
}

#[test]
fn tags_are_taken_off_and_put_on() {
    if !enter("tags_are_taken_off_and_put_on") {
        return;
    }
    let out = add_way_out();
    let far = ifindex("far");
    // VLAN 9 of the arrival port is a device of its own; any that forwards will do.
    const IN: u16 = 9;
    const OUT: u16 = 0x130;
    // DEI and priority 5 of the arrival tag stay.
    let tag =
        VlanTag { protocol: protocol::ETHERTYPE_VLAN, id: IN, priority: 5, drop_eligible: true };
    for egress in [None, Some(OUT)] {
        let mut front_door = FrontDoor::load(Some(out));
        front_door.add_vlan(LOOPBACK, u32::from(IN), far, IN);
        if let Some(id) = egress {
            front_door.add_vlan(out, bpf_maps::VLAN_UP, out, id);
        }
        for builder in [udp4(), udp6(), udp4().vlan_tag(tag), udp6().vlan_tag(tag)] {
            let frame = addressed(builder.build());
            let parsed = parse_frame(&frame).unwrap();
            let mut expected = frame.clone();
            rewrite::route(&mut expected, parsed.l3_offset, OUT_MAC, NEXT_HOP).unwrap();
            let control = parsed.vlan.map_or(0, |_| 0xb000) | egress.unwrap_or(0);
            let [high, low] = control.to_be_bytes();
            let tagged = [0x81, 0, high, low];
            match (parsed.vlan, egress) {
                (Some(_), Some(_)) => expected[12..16].copy_from_slice(&tagged),
                (Some(_), None) => drop(expected.drain(12..16)),
                (None, Some(_)) => drop(expected.splice(12..12, tagged)),
                (None, None) => {}
            }
            let done = front_door.run(&frame);
            assert_eq!((done.outcome, done.action), ("forwarded", XDP_REDIRECT));
            assert_eq!(done.bytes, expected, "{egress:?} {builder:?}");
        }
    }
}

#[test]
fn ipv6_is_left_to_a_kernel_that_does_not_forward_it() {
    if !enter("ipv6_is_left_to_a_kernel_that_does_not_forward_it") {
        return;
    }
    let mut front_door = FrontDoor::load(Some(add_way_out()));
    let port = |flags| PortConfig {
        ifindex: LOOPBACK,
        mac: MAC,
        mtu: 9000,
        flags,
        ..PortConfig::default()
    };
    let (v4, v6) = (addressed(udp4().build()), addressed(udp6().build()));
    for (flags, outcome) in [(PORT_NO_V6, "kernel_other"), (0, "forwarded")] {
        let config = port(flags);
        front_door.map("tam_ports").update(&u32::from(PORT), &config, Update::Any).unwrap();
        assert_eq!(front_door.run(&v4).outcome, "forwarded", "flags {flags}");
        assert_eq!(front_door.run(&v6).outcome, outcome, "flags {flags}");
    }
}

#[test]
fn a_forwarded_packet_leaves_without_its_trailer() {
    if !enter("a_forwarded_packet_leaves_without_its_trailer") {
        return;
    }
    let mut front_door = FrontDoor::load(Some(add_way_out()));
    for builder in [udp4().payload(&[7; 100]), udp6().payload(&[7; 100])] {
        for trailer in [1, 40, 1500, 3000] {
            let whole = addressed(builder.build());
            let mut frame = whole.clone();
            frame.resize(frame.len() + trailer, b'T');
            let done = front_door.run(&frame);
            assert_eq!((done.outcome, done.action), ("forwarded", XDP_REDIRECT), "{trailer}");
            assert_eq!(done.bytes, routed(&whole), "{trailer}");
            assert_eq!(done.counted, frame.len() as u64, "as it came");
        }
    }
    // An Ethernet frame has 60 bytes at least.
    let short = addressed(udp4().build());
    for length in [short.len(), 59, 60, 61, 100] {
        let mut frame = short.clone();
        frame.resize(length, 0);
        let done = front_door.run(&frame);
        assert_eq!((done.outcome, done.bytes.len()), ("forwarded", length.min(60)));
    }
}

#[test]
fn packets_from_the_routers_own_addresses_end_as_in_linux() {
    if !enter("packets_from_the_routers_own_addresses_end_as_in_linux") {
        return;
    }
    const ID: u16 = 9;
    let out = add_way_out();
    let mut front_door = FrontDoor::load(Some(out));
    let own = |length, address_be| OwnPrefix { length, address_be };
    let prefixes = [own(32, [10, 0, 0, 1]), own(24, [198, 51, 100, 0])];
    for prefix in prefixes {
        front_door.map("tam_own").update(&prefix, &0u32, Update::Any).unwrap();
    }
    let from = |source| FrameBuilder::new().ipv4(source, [203, 0, 113, 9], 64).udp(1, 2);
    let of = |builder: FrameBuilder| addressed(builder.build());
    let rule = |action| Rule { rule: 3, action, ..Rule::default() };
    for action in
        [None, Some(ACTION_FORWARD), Some(ACTION_USER), Some(ACTION_SERVICE), Some(ACTION_OUT)]
    {
        let rules: Vec<_> =
            action.map(|action| (Key::default(), rule(action))).into_iter().collect();
        front_door.install(0, &[Mask::default()], &rules);
        front_door.activate(0);
        front_door.heartbeat();
        for source in [[10, 0, 0, 1], [198, 51, 100, 200]] {
            for cached in [false, true] {
                let done = front_door.run(&of(from(source)));
                let expected = ("drop_own_source", XDP_DROP, cached);
                assert_eq!((done.outcome, done.action, done.cached), expected, "{action:?}");
            }
        }
        assert_ne!(front_door.run(&of(from([10, 0, 0, 2]))).outcome, "drop_own_source");
    }
    front_door.install(0, &[], &[]);
    let vlan = |flags| Vlan { ifindex: ifindex("far"), vlan: ID, rpf: RPF_NONE, flags };
    let key = VlanKey { ifindex: LOOPBACK, vlan: u32::from(ID) };
    for (port, device) in [(0, PORT_ACCEPTS_OWN), (PORT_ACCEPTS_OWN, 0)] {
        front_door.change_port(PORT, |config| config.flags = port);
        front_door.map("tam_vlans").update(&key, &vlan(device), Update::Any).unwrap();
        front_door.activate(0);
        let judged = |flags| if flags == 0 { "drop_own_source" } else { "forwarded" };
        assert_eq!(front_door.run(&of(from([10, 0, 0, 1]))).outcome, judged(port));
        assert_eq!(front_door.run(&of(from([10, 0, 0, 1]).vlan(ID))).outcome, judged(device));
    }
    // Linux checks no such thing for IPv6, and between two ends of a bridge nothing is checked.
    front_door.change_port(PORT, |config| config.flags = 0);
    let six = FrameBuilder::new().ipv6(
        [0x0a00, 1, 0, 0, 0, 0, 0, 1],
        [0x2001, 0x0db8, 1, 0, 0, 0, 0, 2],
        64,
    );
    assert_eq!(front_door.run(&of(six.udp(1, 2))).outcome, "forwarded");
    front_door.change_port(PORT, |config| config.bridge = u32::from(OUT_PORT) + 1);
    front_door.activate(0);
    assert_eq!(front_door.run(&of(from([10, 0, 0, 1]))).outcome, "bridged");
}

#[test]
fn a_tagged_packet_is_judged_by_its_vlan_device() {
    if !enter("a_tagged_packet_is_judged_by_its_vlan_device") {
        return;
    }
    const ID: u16 = 9;
    let out = add_way_out();
    let far = ifindex("far");
    let mut front_door = FrontDoor::load(Some(out));
    let key = VlanKey { ifindex: LOOPBACK, vlan: u32::from(ID) };
    // No route leads back to these sources by the device that they arrive by.
    let (plain, tagged) = (addressed(udp4().build()), addressed(udp4().vlan(ID).build()));
    let tagged_v6 = addressed(udp6().vlan(ID).build());
    for (rpf, flags) in [(RPF_NONE, 0), (RPF_STRICT, PORT_NO_V6)] {
        let vlan = Vlan { ifindex: far, vlan: ID, rpf, flags };
        front_door.map("tam_vlans").update(&key, &vlan, Update::Any).unwrap();
        let judged = |kernel| if rpf == RPF_NONE { "forwarded" } else { kernel };
        assert_eq!(front_door.run(&plain).outcome, "forwarded", "the port's own are not judged");
        assert_eq!(front_door.run(&tagged).outcome, judged("kernel_source"));
        assert_eq!(front_door.run(&tagged_v6).outcome, judged("kernel_other"));
    }
}

#[test]
fn the_route_travels_with_a_packet_to_its_cell() {
    if !enter("the_route_travels_with_a_packet_to_its_cell") {
        return;
    }
    let mut front_door = FrontDoor::load(Some(add_way_out()));
    let rule = Rule { rule: 3, action: ACTION_USER, ..Rule::default() };
    front_door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
    front_door.activate(0);
    let expired = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 1).udp(1, 2);
    let big = udp4().payload(&[0; 1600]);
    for (builder, routed) in [(udp4(), true), (udp6(), true), (expired, false), (big, false)] {
        let frame = addressed(builder.build());
        let done = front_door.run(&frame);
        assert_eq!((done.outcome, done.action), ("kernel_no_socket", XDP_PASS));
        let (meta, rest) = done.bytes.split_at(size_of::<PacketMeta>());
        let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
        assert_eq!(meta.flags & META_ROUTED != 0, routed, "{builder:?}");
        if routed {
            assert_eq!((meta.egress_port, meta.egress_vlan), (OUT_PORT, 0));
            assert_eq!(meta.next_hop, NEXT_HOP);
        }
        assert_eq!(rest, frame, "a cell gets the frame as it came");
    }
}

#[test]
fn a_cell_learns_that_a_port_lacks_the_vlan_of_a_tag() {
    if !enter("a_cell_learns_that_a_port_lacks_the_vlan_of_a_tag") {
        return;
    }
    const KNOWN: u16 = 9;
    let out = add_way_out();
    let rule = Rule { rule: 3, action: ACTION_USER, ..Rule::default() };
    // Also where the route is not looked up: a slow port.
    for slow in [0, bpf_maps::SLOW_NETFILTER] {
        let mut front_door = FrontDoor::load(Some(out));
        front_door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
        front_door.activate(0);
        front_door.add_vlan(LOOPBACK, u32::from(KNOWN), ifindex("far"), KNOWN);
        front_door.change_port(PORT, |port| port.slow = slow);
        for (builder, expected) in [
            (udp4(), 0),
            (udp4().vlan(KNOWN), 0),
            (udp4().vlan(0), 0),
            (udp4().vlan(5), VLAN_UNKNOWN),
            (udp6().vlan(5), VLAN_UNKNOWN),
        ] {
            let done = front_door.run(&addressed(builder.build()));
            let (meta, _) = done.bytes.split_at(size_of::<PacketMeta>());
            let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
            assert_eq!(meta.egress_vlan, expected, "slow {slow}: {builder:?}");
        }
    }
}

/// Returns a frame as it leaves by the egress port.
pub fn routed(frame: &[u8]) -> Vec<u8> {
    let mut expected = frame.to_vec();
    let l3 = parse_frame(frame).unwrap().l3_offset;
    expected.truncate(rewrite::length_without_trailer(frame, l3).unwrap());
    rewrite::route(&mut expected, l3, OUT_MAC, NEXT_HOP).unwrap();
    expected
}

/// Returns the difference from the expected result for a frame that parses, if there is one.
fn differs(parsed: &Parsed, done: &Done, frame: &[u8]) -> Option<String> {
    let must_not = [
        (parsed.ttl <= 1, "the TTL has run out"),
        (parsed.has_options, "it has options"),
        (parsed.vlan_tags > 0, "no VLAN device is known"),
        (parsed.ip_length > OUT_MTU, "it is too big"),
        (!is_unicast(parsed.source_address()), "the source is no unicast address"),
    ];
    if done.outcome != "forwarded" {
        let kernel = done.outcome.starts_with("kernel_") && done.action == XDP_PASS;
        return (!kernel || done.bytes != frame)
            .then(|| "the kernel gets something else".to_owned());
    }
    if let Some((_, why)) = must_not.iter().find(|(fault, _)| *fault) {
        return Some((*why).to_owned());
    }
    let expected = routed(frame);
    (done.action != XDP_REDIRECT || done.bytes != expected)
        .then(|| format!("expected {expected:02x?}"))
}

fn is_unicast(address: std::net::IpAddr) -> bool {
    !(address.is_multicast() || address.is_unspecified() || address.is_loopback())
}
