//! Plain forwarding: what leaves is what `wire::rewrite` makes of the frame,
//! and what only the kernel can answer goes to the kernel unchanged.

use bpf_maps::{META_ROUTED, PacketMeta};
use wire::samples::{Mutations, samples};
use wire::{FrameBuilder, Parsed, parse_frame, rewrite};

use crate::harness::{Done, FrontDoor, OUT_PORT, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{NEXT_HOP, OUT_MAC, OUT_MTU, add_way_out, enter};

/// Mutated frames that are forwarded or not.
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

/// What is wrong with what was done with a frame that parses, if something is.
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
    if let Some((_, why)) = must_not.iter().find(|(true_, _)| *true_) {
        return Some((*why).to_owned());
    }
    let mut expected = frame.to_vec();
    rewrite::route(&mut expected, parsed.l3_offset, OUT_MAC, NEXT_HOP).unwrap();
    (done.action != XDP_REDIRECT || done.bytes != expected)
        .then(|| format!("expected {expected:02x?}"))
}

fn is_unicast(address: std::net::IpAddr) -> bool {
    !(address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

#[test]
fn probe() {
    if !enter("probe") { return; }
    let mut front_door = FrontDoor::load(Some(add_way_out()));
    for d in ["224.0.0.1","239.1.1.1","255.255.255.255","0.0.0.1","0.0.0.0","127.0.0.1","198.51.100.255","198.51.100.0","240.0.0.1","169.254.1.1"] {
        let d: std::net::Ipv4Addr = d.parse().unwrap();
        let f = addressed(FrameBuilder::new().ipv4([10,0,0,1], d, 64).udp(1,2).build());
        eprintln!("{d} {}", front_door.run(&f).outcome);
    }
    for d in ["ff02::1","ff0e::1","fe80::1","fe80::2","::1","::","::ffff:1.2.3.4","fec0::1","fc00::1"] {
        let d: std::net::Ipv6Addr = d.parse().unwrap();
        let f = addressed(FrameBuilder::new().ipv6([0x2001,0xdb8,0,0,0,0,0,1], d, 64).udp(1,2).build());
        eprintln!("{d} {}", front_door.run(&f).outcome);
    }
    eprintln!("{}", crate::namespace::ip("-6 route show table all"));
}
