//! Tests of the service with packets like those of a capture: written by hand, header by header,
//! after those of `ping` on Linux.

use super::{BYTES, ICMP, IPV4, IPV6, MARKED, NOT_IP, OTHER, PACKETS, dscp, on_packet, on_start};
use tam::Verdict;
use tam::testing::Node;

/// ICMP echo request, 10.0.0.1 to 10.0.0.2, DSCP 0; its 56 bytes of data are cut off.
pub const PING: &[u8] = &[
    0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0, // Ethernet
    0x45, 0, 0, 0x54, 0, 0, 0x40, 0, 0x40, 1, 0x26, 0xa7, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
    8, 0, 0xf7, 0xff, 0, 0, 0, 0, // ICMP
];

/// ICMPv6 echo request, 2001:db8::1 to 2001:db8::2, DSCP 46, VLAN 7.
pub const PING6: &[u8] = &[
    0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x81, 0, 0, 7, 0x86, 0xdd, // Ethernet, 802.1Q
    0x6b, 0x80, 0, 0, 0, 8, 58, 64, // IPv6
    0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // source
    0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, // destination
    128, 0, 0x24, 0x3c, 0, 0, 0, 0, // ICMPv6
];

#[test]
fn a_packet_is_marked_and_counted() {
    let mut node = Node::new().with_window(96);
    node.start(on_start).unwrap();
    let before = [&PACKETS, &IPV4, &ICMP, &MARKED, dscp::counter(0)].map(tam::Counter::value);
    let bytes = BYTES.value();
    let outcome = node.packet(on_packet, PING);
    assert_eq!(outcome.verdict, Verdict::PASS);
    let after = [&PACKETS, &IPV4, &ICMP, &MARKED, dscp::counter(0)].map(tam::Counter::value);
    assert_eq!(after, before.map(|count| count + 1));
    assert_eq!(BYTES.value() - bytes, PING.len() as u64);

    // 46 << 2 is 0xb8; RFC 1624 turns the checksum 0x26a7 into 0x25ef.
    let mut expected = PING.to_vec();
    expected[15] = 0xb8;
    expected[24..26].copy_from_slice(&[0x25, 0xef]);
    assert_eq!(outcome.bytes, expected);
}

#[test]
fn a_packet_that_has_its_mark_is_left_as_it_is() {
    let mut node = Node::new().with_window(96);
    node.start(on_start).unwrap();
    let before = [&IPV6, &ICMP, dscp::counter(46)].map(tam::Counter::value);
    let marked = MARKED.value();
    assert_eq!(node.packet(on_packet, PING6).bytes, PING6);
    let after = [&IPV6, &ICMP, dscp::counter(46)].map(tam::Counter::value);
    assert_eq!(after, before.map(|count| count + 1));
    assert_eq!(MARKED.value(), marked);
}

#[test]
fn the_parameters_say_whether_and_how() {
    let mut node = Node::new().with_parameter("dscp", &[8]).with_parameter("mark", &[1]);
    node.start(on_start).unwrap();
    let bytes = node.packet(on_packet, PING6).bytes;
    assert_eq!(bytes[18..20], [0x62, 0x00], "class selector 1");
    drop(node);

    let mut node = Node::new().with_parameter("mark", &[0]);
    node.start(on_start).unwrap();
    assert_eq!(node.packet(on_packet, PING).bytes, PING);
    drop(node);

    assert_eq!(Node::new().with_parameter("dscp", &[64]).start(on_start), Err(1));
}

#[test]
fn what_has_no_ip_header_is_counted_and_forwarded() {
    let mut node = Node::new().with_window(96);
    node.start(on_start).unwrap();
    let mut arp = [0xff; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let before = [NOT_IP.value(), OTHER.value()];
    for frame in [&arp[..], &PING[..20], &[0]] {
        let outcome = node.packet(on_packet, frame);
        assert_eq!((outcome.verdict, &outcome.bytes[..]), (Verdict::PASS, frame));
    }
    assert_eq!([NOT_IP.value(), OTHER.value()], [before[0] + 3, before[1]]);
}
