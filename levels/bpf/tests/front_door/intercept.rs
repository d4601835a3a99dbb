//! Tests of connections that a stream service intercepts: which of their packets are given to the
//! kernel's TCP, and what happens to the others.

use std::net::{SocketAddr, TcpListener, TcpStream};

use bpf_maps::{
    ACTION_INTERCEPT, ACTION_INTERCEPT_BACK, ACTION_INTERCEPT_CLOSED, Key, META_INTERCEPT, Mask,
    PacketMeta, Rule,
};
use wire::{FrameBuilder, parse_frame, rewrite};

use crate::harness::{FrontDoor, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{NEXT_HOP, OUT_MAC, add_way_out, enter};

pub const SYN: u8 = 0x02;
pub const ACK: u8 = 0x10;
pub const LISTENER: u16 = 4711;

/// Makes a front door whose rule gives all packets to a stream service, in one direction or the
/// other.
fn door(action: u8) -> FrontDoor {
    let mut door = FrontDoor::load(Some(add_way_out()));
    let rule = Rule { rule: 3, session: 4, entry: LISTENER, action, ..Rule::default() };
    door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
    door.activate(0);
    door.heartbeat();
    door
}

pub fn segment(from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    let builder = FrameBuilder::new();
    let builder = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            builder.ipv4(from.ip().octets(), to.ip().octets(), 64)
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            builder.ipv6(from.ip().octets(), to.ip().octets(), 64)
        }
        _ => unreachable!("both are of one version"),
    };
    addressed(builder.tcp(from.port(), to.port(), flags).build())
}

/// Checks that a frame without a local socket is forwarded plainly.
fn is_forwarded_plainly(door: &mut FrontDoor, frame: &[u8]) {
    for turn in 0..2 {
        let done = door.run(frame);
        assert_eq!((done.outcome, done.action), ("forwarded", XDP_REDIRECT), "turn {turn}");
        let mut expected = frame.to_vec();
        let l3 = parse_frame(frame).unwrap().l3_offset;
        rewrite::route(&mut expected, l3, OUT_MAC, NEXT_HOP).unwrap();
        assert_eq!(done.bytes, expected);
    }
}

/// Opens the service's listeners, for both versions of IP.
pub fn listeners() -> [TcpListener; 2] {
    ["127.0.0.1", "[::1]"].map(|here| TcpListener::bind(format!("{here}:{LISTENER}")).unwrap())
}

pub fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn new_tcp_connections_are_intercepted_and_existing_ones_forwarded() {
    if !enter("new_tcp_connections_are_intercepted_and_existing_ones_forwarded") {
        return;
    }
    let mut door = door(ACTION_INTERCEPT);
    let _here = listeners();
    for (client, server) in
        [("192.0.2.7:40000", "203.0.113.9:80"), ("[2001:db8:1::7]:40000", "[2001:db8:2::9]:80")]
    {
        let (client, server) = (address(client), address(server));
        let begins = segment(client, server, SYN);
        for turn in 0..2 {
            let done = door.run(&begins);
            assert_eq!((done.outcome, done.action), ("intercepted", XDP_PASS), "turn {turn}");
            let (meta, frame) = done.bytes.split_at(size_of::<PacketMeta>());
            let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
            assert_eq!((meta.entry, meta.flags), (LISTENER, META_INTERCEPT));
            assert_eq!(frame, begins, "as it came");
        }
        is_forwarded_plainly(&mut door, &segment(client, server, ACK));
        is_forwarded_plainly(&mut door, &segment(client, server, SYN | ACK));
    }
    assert_eq!(door.rule_stats(3).packets, 12, "each counts for its rule");
}

#[test]
fn replies_are_intercepted_only_with_a_local_connection() {
    if !enter("replies_are_intercepted_only_with_a_local_connection") {
        return;
    }
    let mut door = door(ACTION_INTERCEPT_BACK);
    let (server, client) = (address("203.0.113.9:80"), address("192.0.2.7:40000"));
    for flags in [SYN, ACK, SYN | ACK] {
        is_forwarded_plainly(&mut door, &segment(server, client, flags));
    }
}

#[test]
fn packets_of_a_connection_with_a_local_socket_are_intercepted_both_ways() {
    if !enter("packets_of_a_connection_with_a_local_socket_are_intercepted_both_ways") {
        return;
    }
    for (action, here) in
        [(ACTION_INTERCEPT, "198.51.100.1:0"), (ACTION_INTERCEPT_BACK, "[2001:db8:ff::1]:0")]
    {
        let mut door = match action {
            ACTION_INTERCEPT => door(action),
            _ => {
                crate::namespace::ip("link del out");
                door(action)
            }
        };
        let listener = TcpListener::bind(address(here)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        for frame in [segment(own, other, ACK), segment(other, own, ACK)] {
            let done = door.run(&frame);
            assert_eq!((done.outcome, done.action), ("intercepted", XDP_PASS), "{own} {other}");
        }
        // A listener is bound to one address: packets for another are not taken for its connection.
        let mut stranger = own;
        stranger.set_port(own.port() ^ 1);
        let done = door.run(&segment(stranger, other, ACK));
        assert_eq!(done.action, XDP_PASS);
        assert!(done.outcome.starts_with("kernel_"), "{}", done.outcome);
    }
}

#[test]
fn without_a_listener_new_connections_bypass_an_open_service_and_are_dropped_at_a_closed_one() {
    if !enter(
        "without_a_listener_new_connections_bypass_an_open_service_and_are_dropped_at_a_closed_one",
    ) {
        return;
    }
    let mut open = door(ACTION_INTERCEPT);
    for (client, server) in
        [("192.0.2.7:40000", "203.0.113.9:80"), ("[2001:db8:1::7]:40000", "[2001:db8:2::9]:80")]
    {
        is_forwarded_plainly(&mut open, &segment(address(client), address(server), SYN));
    }
    drop(open);
    crate::namespace::ip("link del out");
    let mut closed = door(ACTION_INTERCEPT_CLOSED);
    let end = |door: &mut FrontDoor, client: &str, server: &str, flags| {
        door.run(&segment(address(client), address(server), flags)).outcome
    };
    for (client, server) in
        [("192.0.2.7:40000", "203.0.113.9:80"), ("[2001:db8:1::7]:40000", "[2001:db8:2::9]:80")]
    {
        assert_eq!(end(&mut closed, client, server, SYN), "drop_down");
        // A listener of another program is not the service's.
        let other = TcpListener::bind(format!("[::]:{LISTENER}")).unwrap();
        assert_eq!(end(&mut closed, client, server, SYN), "drop_down");
        drop(other);
        // The kernel knows: the front door is not told.
        let here = listeners();
        assert_eq!(end(&mut closed, client, server, SYN), "intercepted");
        drop(here);
        assert_eq!(end(&mut closed, client, server, SYN), "drop_down");
        // A connection from before the rule continues.
        assert_eq!(end(&mut closed, client, server, ACK), "forwarded");
    }
}

#[test]
fn fragments_of_a_segment_are_dropped_at_a_closed_stream_service() {
    if !enter("fragments_of_a_segment_are_dropped_at_a_closed_stream_service") {
        return;
    }
    let _here = listeners();
    let piece = |offset, more| {
        let builder = FrameBuilder::new().ipv4([192, 0, 2, 7], [203, 0, 113, 9], 64);
        addressed(builder.tcp(40_000, 80, SYN).fragment(offset, more).build())
    };
    let (first, later) = (piece(0, true), piece(24, false));
    for (action, outcomes) in [
        (ACTION_INTERCEPT, ["intercepted", "forwarded"]),
        (ACTION_INTERCEPT_CLOSED, ["drop_down", "drop_down"]),
    ] {
        let mut door = match action {
            ACTION_INTERCEPT => door(action),
            _ => {
                crate::namespace::ip("link del out");
                door(action)
            }
        };
        assert_eq!([&first, &later].map(|frame| door.run(frame).outcome), outcomes, "{action}");
    }
}
