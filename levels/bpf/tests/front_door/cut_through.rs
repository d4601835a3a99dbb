//! Tests of cut-through: rules that send packets directly out by a port.

use bpf::Update;
use bpf_maps::{
    ACTION_OUT, Account, ETHERNET_REST, FUEL_SHIFT, Key, Mask, PORT_GENERIC, PORT_PACKET, PORT_RAW,
    PORT_SHARES, PORTS_MAX, PacketMeta, PortShare, Rule, RuleFact, SLOW_NETFILTER,
    SLOW_NO_REDIRECT,
};
use wire::{FrameBuilder, parse_frame, rewrite};

use crate::harness::{FrontDoor, OUT_PORT, PORT, XDP_DROP, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{NEXT_HOP, OUT_MAC, add_way_out, enter};

const SESSION: u16 = 4;
const OWN: u32 = PORTS_MAX as u32 + 7;

fn frame(destination: [u8; 4], ttl: u8) -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], destination, ttl).udp(1, 2).build())
}

/// Makes a front door whose rule sends all packets out by this port, charged to the session.
fn door_with_rule_out(port: u16) -> FrontDoor {
    let mut door = FrontDoor::load(Some(add_way_out()));
    let rule =
        Rule { rule: 3, session: SESSION, entry: port, action: ACTION_OUT, ..Rule::default() };
    let arp = Key { ethertype_be: [8, 6], mask: 1, ..Key::default() };
    let bits = Key { ethertype_be: [0xff; 2], ..Key::default() };
    let masks = [Mask::default(), Mask { bits, ..Mask::default() }];
    door.install(0, &masks, &[(Key::default(), rule), (arp, rule)]);
    let fact = RuleFact { session: SESSION, entry: port, action: ACTION_OUT, zero: [0; 3] };
    door.map("tam_rule_facts").update(&3u32, &fact, Update::Any).unwrap();
    door.activate(0);
    door.heartbeat();
    door
}

/// Gives the session a share of the port, with a balance for two and a half of these packets.
fn has_packets(door: &mut FrontDoor, frame: &[u8]) {
    door.change_port(OUT_PORT, |config| config.flags |= PORT_SHARES);
    door.set_has_shares();
    let key = u32::from(OUT_PORT) << 16 | u32::from(SESSION);
    door.map("tam_line_of").update(&key, &OWN, Update::Any).unwrap();
    let left = (((frame.len() as u64 + ETHERNET_REST) * 5 / 2) << FUEL_SHIFT) as i64;
    let account = Account { left, full: left as u64, ..Account::default() };
    let port_share = PortShare { account, ..PortShare::default() };
    door.map("tam_lines").update(&OWN, &port_share, Update::Any).unwrap();
}

fn own_port_share(door: &FrontDoor) -> PortShare {
    door.map("tam_lines").lookup(&OWN).unwrap().unwrap()
}

#[test]
fn cut_through_routes_a_packet_whose_route_uses_that_port_and_sends_others_unchanged() {
    if !enter("cut_through_routes_a_packet_whose_route_uses_that_port_and_sends_others_unchanged") {
        return;
    }
    let mut door = door_with_rule_out(OUT_PORT);
    let routed = frame([203, 0, 113, 9], 64);
    let done = door.run(&routed);
    assert_eq!((done.outcome, done.action), ("cut_through", XDP_REDIRECT));
    let mut expected = routed.clone();
    let l3 = parse_frame(&routed).unwrap().l3_offset;
    rewrite::route(&mut expected, l3, OUT_MAC, NEXT_HOP).unwrap();
    assert_eq!(done.bytes, expected);
    // The kernel answers, as in plain forwarding.
    let done = door.run(&frame([203, 0, 113, 9], 1));
    assert_eq!((done.outcome, done.action), ("kernel_ttl", XDP_PASS));
    // There is no route to it.
    let other = frame([198, 51, 100, 1], 1);
    let done = door.run(&other);
    assert_eq!((done.outcome, done.action), ("cut_through", XDP_REDIRECT), "{done:?}");
    assert_eq!(done.bytes, other);
}

#[test]
fn a_cut_through_packet_with_a_route_leaves_without_its_trailer_and_pays_for_the_rest() {
    if !enter("a_cut_through_packet_with_a_route_leaves_without_its_trailer_and_pays_for_the_rest")
    {
        return;
    }
    let mut door = door_with_rule_out(OUT_PORT);
    let mut long = frame([203, 0, 113, 9], 64);
    has_packets(&mut door, &long);
    long.resize(2000, b'T');
    let done = door.run(&long);
    assert_eq!((done.outcome, done.action), ("cut_through", XDP_REDIRECT));
    assert_eq!(done.bytes, crate::forward::routed(&long));
    assert_eq!(own_port_share(&door).account.sent, [60, 0]);
    // A packet that leaves unchanged must fit unchanged.
    let mut other = frame([198, 51, 100, 1], 64);
    other.resize(2000, b'T');
    assert_eq!(door.run(&other).outcome, "drop_too_long");
}

#[test]
fn what_is_beyond_the_sessions_share_is_dropped() {
    if !enter("what_is_beyond_the_sessions_share_is_dropped") {
        return;
    }
    let mut door = door_with_rule_out(OUT_PORT);
    let frame = frame([203, 0, 113, 9], 64);
    has_packets(&mut door, &frame);
    let ends: Vec<(&str, u32)> =
        (0..4).map(|_| door.run(&frame)).map(|done| (done.outcome, done.action)).collect();
    // Packets are not split: the third makes the balance negative.
    let (out, dropped) = (("cut_through", XDP_REDIRECT), ("drop_share", XDP_DROP));
    assert_eq!(ends, [out, out, out, dropped]);
    let port_share = own_port_share(&door);
    assert_eq!(
        (port_share.account.sent, port_share.dropped),
        ([3 * frame.len() as u64, 0], [1, 0])
    );
}

#[test]
fn cut_through_packets_routed_by_the_kernel_use_the_port_share_and_answered_ones_none() {
    if !enter("cut_through_packets_routed_by_the_kernel_use_the_port_share_and_answered_ones_none")
    {
        return;
    }
    let mut door = door_with_rule_out(OUT_PORT);
    door.change_port(PORT, |config| config.slow = SLOW_NETFILTER);
    door.activate(0);
    let routed = frame([203, 0, 113, 9], 64);
    has_packets(&mut door, &routed);
    let ends: Vec<(&str, u32)> =
        (0..4).map(|_| door.run(&routed)).map(|done| (done.outcome, done.action)).collect();
    let (out, dropped) = (("kernel_slow", XDP_PASS), ("drop_share", XDP_DROP));
    assert_eq!(ends, [out, out, out, dropped]);
    let answered = door.run(&frame([203, 0, 113, 9], 1));
    assert_eq!((answered.outcome, answered.action), ("kernel_slow", XDP_PASS));
}

/// Kinds of egress ports: the flags and slow reasons that the daemon gives them.
pub const LEAVING: [(&str, u8, u32); 5] = [
    ("native", 0, 0),
    ("native without redirects", 0, SLOW_NO_REDIRECT),
    ("generic", PORT_GENERIC, SLOW_NO_REDIRECT),
    ("TUN", PORT_RAW | PORT_GENERIC, SLOW_NO_REDIRECT),
    ("packet", PORT_PACKET, SLOW_NO_REDIRECT),
];

/// Tests every pair of kinds: a packet leaves, by XDP where that can and else at tc, and is
/// charged; or it cannot, and nothing is charged.
#[test]
fn from_each_kind_of_port_to_each_a_packet_leaves_and_is_paid_for_once() {
    if !enter("from_each_kind_of_port_to_each_a_packet_leaves_and_is_paid_for_once") {
        return;
    }
    let mut door = door_with_rule_out(OUT_PORT);
    // The route of this one ends here.
    let ip = frame([198, 51, 100, 1], 1);
    let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 9, 9], &[8, 6], &[0; 46]].concat();
    for (from, flags) in
        [("native", 0), ("generic", PORT_GENERIC), ("TUN", PORT_GENERIC | PORT_RAW)]
    {
        door.change_port(PORT, |config| config.flags = flags);
        for (to, flags, slow) in LEAVING {
            door.change_port(OUT_PORT, |config| (config.flags, config.slow) = (flags, slow));
            has_packets(&mut door, &ip);
            door.activate(0);
            let done = door.run(&ip);
            let crosses = from == "native" && slow & SLOW_NO_REDIRECT != 0;
            let action = if crosses { XDP_PASS } else { XDP_REDIRECT };
            assert_eq!((done.outcome, done.action), ("cut_through", action), "{from} to {to}");
            let skip = if crosses { size_of::<PacketMeta>() } else { 0 };
            let bare = if to == "TUN" && !crosses { 14 } else { 0 };
            assert_eq!(done.bytes[skip..], ip[bare..], "{from} to {to}");
            assert_eq!(own_port_share(&door).account.sent, [ip.len() as u64, 0], "{from} to {to}");
            // A packet that is not IP leaves by no port without Ethernet.
            let done = door.run(&arp);
            let outcome = if to == "TUN" { "drop_adjust" } else { "cut_through" };
            assert_eq!(done.outcome, outcome, "ARP from {from} to {to}");
            let paid = ip.len() as u64 + if to == "TUN" { 0 } else { arp.len() as u64 };
            assert_eq!(own_port_share(&door).account.sent, [paid, 0], "ARP from {from} to {to}");
        }
    }
}

#[test]
fn a_port_that_is_gone_takes_nothing() {
    if !enter("a_port_that_is_gone_takes_nothing") {
        return;
    }
    let mut door = door_with_rule_out(PORT + 40);
    let done = door.run(&frame([203, 0, 113, 9], 64));
    assert_eq!((done.outcome, done.action), ("drop_egress_gone", XDP_DROP));
}
