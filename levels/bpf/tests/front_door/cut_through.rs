//! Cut-through: rules that send packets straight out by a port.

use bpf::Update;
use bpf_maps::{
    ACTION_OUT, Account, ETHERNET_REST, FUEL_SHIFT, Key, Line, Mask, PORT_SHARES, PORTS_MAX,
    PortConfig, Rule, RuleFact,
};
use wire::{FrameBuilder, parse_frame, rewrite};

use crate::harness::{FrontDoor, OUT_PORT, PORT, XDP_DROP, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{NEXT_HOP, OUT_MAC, add_way_out, enter};

const SESSION: u16 = 4;
const OWN: u32 = PORTS_MAX as u32 + 7;

fn frame(destination: [u8; 4], ttl: u8) -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], destination, ttl).udp(1, 2).build())
}

/// All packets leave by this port, on the session's account.
fn door_with_rule_out(port: u16) -> FrontDoor {
    let mut door = FrontDoor::load(Some(add_way_out()));
    let rule =
        Rule { rule: 3, session: SESSION, entry: port, action: ACTION_OUT, ..Rule::default() };
    door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
    let fact = RuleFact { session: SESSION, entry: port, action: ACTION_OUT, zero: [0; 3] };
    door.map("tam_rule_facts").update(&3u32, &fact, Update::Any).unwrap();
    door.activate(0);
    door.heartbeat();
    door
}

#[test]
fn a_packet_whose_route_leads_there_is_one_hop_further_and_another_leaves_as_it_is() {
    if !enter("a_packet_whose_route_leads_there_is_one_hop_further_and_another_leaves_as_it_is") {
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
    // The kernel answers, as of plain forwarding.
    let done = door.run(&frame([203, 0, 113, 9], 1));
    assert_eq!((done.outcome, done.action), ("kernel_ttl", XDP_PASS));
    // There is no route to it.
    let other = frame([198, 51, 100, 1], 1);
    let done = door.run(&other);
    assert_eq!((done.outcome, done.action), ("cut_through", XDP_REDIRECT), "{done:?}");
    assert_eq!(done.bytes, other);
}

#[test]
fn what_is_beyond_the_sessions_share_is_dropped() {
    if !enter("what_is_beyond_the_sessions_share_is_dropped") {
        return;
    }
    let mut door = door_with_rule_out(OUT_PORT);
    let ports = door.map("tam_ports");
    let mut config: PortConfig = ports.lookup(&u32::from(OUT_PORT)).unwrap().unwrap();
    config.flags |= PORT_SHARES;
    ports.update(&u32::from(OUT_PORT), &config, Update::Any).unwrap();
    let key = u32::from(OUT_PORT) << 16 | u32::from(SESSION);
    door.map("tam_line_of").update(&key, &OWN, Update::Any).unwrap();
    let frame = frame([203, 0, 113, 9], 64);
    let left = (((frame.len() as u64 + ETHERNET_REST) * 5 / 2) << FUEL_SHIFT) as i64;
    let account = Account { left, full: left as u64, ..Account::default() };
    let line = Line { account, ..Line::default() };
    door.map("tam_lines").update(&OWN, &line, Update::Any).unwrap();
    let ends: Vec<(&str, u32)> =
        (0..4).map(|_| door.run(&frame)).map(|done| (done.outcome, done.action)).collect();
    // Packets are not cut: the third owes for the rest.
    let (out, dropped) = (("cut_through", XDP_REDIRECT), ("drop_share", XDP_DROP));
    assert_eq!(ends, [out, out, out, dropped]);
    let line: Line = door.map("tam_lines").lookup(&OWN).unwrap().unwrap();
    assert_eq!((line.account.sent, line.dropped), ([3 * frame.len() as u64, 0], [1, 0]));
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
