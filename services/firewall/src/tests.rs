//! Tests of the firewall with frames written header by header. Checksums are not filled in: the
//! firewall reads none.

use super::{ALLOWED, EVICTED, FLOWS, PICKED_UP, RELATED, Reason, on_message, on_packet, on_start};
use tam::Verdict;
use tam::testing::Node;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const HERE: [u8; 4] = [10, 0, 0, 5];
const THERE: [u8; 4] = [192, 0, 2, 7];

fn firewall(allow: &str) -> Node {
    let node = Node::new()
        .with_window(0)
        .with_parameter("inside", b"10.0.0.0/8, 2001:db8:1::/48")
        .with_parameter("allow", allow.as_bytes())
        .with_parameter("seed", &7_u64.to_le_bytes());
    started(node)
}

fn started(mut node: Node) -> Node {
    node.start(on_start).unwrap();
    node.set_now_ms(1_000);
    node
}

fn v4_with(from: [u8; 4], to: [u8; 4], protocol: u8, id: u16, field: u16, l4: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0, 0x45, 0]);
    frame.extend((20 + l4.len() as u16).to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend(field.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(from);
    frame.extend(to);
    frame.extend(l4);
    frame
}

fn v4(from: [u8; 4], to: [u8; 4], protocol: u8, l4: &[u8]) -> Vec<u8> {
    v4_with(from, to, protocol, 1, 0x4000, l4)
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

fn tcp(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut l4 = ports(source, destination);
    l4.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    l4
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    let mut l4 = ports(source, destination);
    l4.extend([0, 8, 0, 0]);
    l4
}

/// Frame from here to there, and back.
fn out(flags: u8) -> Vec<u8> {
    v4(HERE, THERE, 6, &tcp(4000, 80, flags))
}

fn back(flags: u8) -> Vec<u8> {
    v4(THERE, HERE, 6, &tcp(80, 4000, flags))
}

#[track_caller]
fn passes(node: &mut Node, frame: &[u8]) {
    let outcome = node.packet(on_packet, frame);
    assert_eq!((outcome.verdict, &outcome.bytes[..]), (Verdict::PASS, frame));
}

#[track_caller]
fn is_dropped(node: &mut Node, frame: &[u8], reason: Reason) {
    let outcome = node.packet(on_packet, frame);
    assert_eq!(outcome.verdict, Verdict::Drop { reason: reason as u16 });
}

#[test]
fn a_connection_from_inside_is_followed_to_its_end() {
    let mut node = firewall("");
    is_dropped(&mut node, &back(SYN), Reason::NotAskedFor);
    is_dropped(&mut node, &back(SYN | ACK), Reason::NoConnection);
    passes(&mut node, &out(SYN));
    passes(&mut node, &back(SYN | ACK));
    passes(&mut node, &out(ACK));
    // Idle for two hours.
    node.set_now_ms(2 * 3600 * 1000);
    passes(&mut node, &back(ACK));
    for frame in [out(FIN | ACK), back(ACK), back(FIN | ACK), out(ACK)] {
        passes(&mut node, &frame);
    }
    node.set_now_ms(2 * 3600 * 1000 + 9_000);
    passes(&mut node, &back(ACK));
    node.set_now_ms(2 * 3600 * 1000 + 20_000);
    is_dropped(&mut node, &back(ACK), Reason::NoConnection);
}

#[test]
fn other_ends_are_other_flows() {
    let mut node = firewall("");
    passes(&mut node, &out(SYN));
    for other in [
        v4(THERE, HERE, 6, &tcp(81, 4000, SYN | ACK)),
        v4(THERE, HERE, 6, &tcp(80, 4001, SYN | ACK)),
        v4([192, 0, 2, 8], HERE, 6, &tcp(80, 4000, SYN | ACK)),
        v4(THERE, [10, 0, 0, 6], 6, &tcp(80, 4000, SYN | ACK)),
    ] {
        is_dropped(&mut node, &other, Reason::NoConnection);
    }
    is_dropped(&mut node, &v4(THERE, HERE, 17, &udp(80, 4000)), Reason::NotAskedFor);
    passes(&mut node, &back(SYN | ACK));
}

#[test]
fn an_unanswered_flow_is_forgotten_soon_and_an_answered_one_is_not() {
    let mut node = firewall("");
    let (ask, answer) = (v4(HERE, THERE, 17, &udp(4000, 53)), v4(THERE, HERE, 17, &udp(53, 4000)));
    passes(&mut node, &ask);
    node.set_now_ms(1_000 + 30_000);
    is_dropped(&mut node, &answer, Reason::NotAskedFor);
    passes(&mut node, &ask);
    passes(&mut node, &answer);
    node.set_now_ms(1_000 + 30_000 + 299_999);
    passes(&mut node, &answer);
    node.set_now_ms(1_000 + 30_000 + 299_999 + 300_000);
    is_dropped(&mut node, &answer, Reason::NotAskedFor);
}

#[test]
fn a_reset_ends_a_connection_unless_its_sender_goes_on() {
    let mut node = firewall("");
    for frame in [out(SYN), back(SYN | ACK), out(ACK), back(RST)] {
        passes(&mut node, &frame);
    }
    // The reset was forged: the server continues, and the connection is as before.
    passes(&mut node, &back(ACK));
    node.set_now_ms(1_000 + 7_000_000);
    passes(&mut node, &out(ACK));
    // A real reset: a new connection with the same ports may follow.
    passes(&mut node, &back(RST | ACK));
    passes(&mut node, &out(SYN));
    node.set_now_ms(1_000 + 7_000_000 + 30_000);
    is_dropped(&mut node, &back(SYN | ACK), Reason::NoConnection);
}

#[test]
fn flags_that_nobody_sends_are_dropped() {
    let mut node = firewall("");
    for flags in [0, FIN, SYN | FIN, SYN | RST, RST | FIN, 0x3f] {
        is_dropped(&mut node, &out(flags), Reason::TcpFlags);
    }
}

#[test]
fn a_connection_from_before_the_firewall_is_picked_up_by_a_packet_from_inside() {
    let mut node = firewall("");
    let before = PICKED_UP.value();
    is_dropped(&mut node, &back(ACK), Reason::NoConnection);
    passes(&mut node, &out(ACK));
    passes(&mut node, &back(ACK));
    assert_eq!(PICKED_UP.value() - before, 1);
    node.set_now_ms(1_000_000);
    passes(&mut node, &back(ACK));
    drop(node);

    let strict = Node::new().with_parameter("inside", b"10.0.0.0/8");
    let mut node = started(strict.with_parameter("pick_up", &[0]));
    is_dropped(&mut node, &out(ACK), Reason::NoConnection);
}

#[test]
fn only_what_is_allowed_may_be_asked_for() {
    let mut node = firewall("tcp/443@10.0.0.5 udp/5000-5010,icmp");
    let before = ALLOWED.value();
    let ask = |to, l4: &[u8], protocol| v4(THERE, to, protocol, l4);
    passes(&mut node, &ask(HERE, &tcp(9, 443, SYN), 6));
    passes(&mut node, &v4(HERE, THERE, 6, &tcp(443, 9, SYN | ACK)));
    is_dropped(&mut node, &ask([10, 0, 0, 6], &tcp(9, 443, SYN), 6), Reason::NotAskedFor);
    is_dropped(&mut node, &ask(HERE, &tcp(9, 444, SYN), 6), Reason::NotAskedFor);
    passes(&mut node, &ask(HERE, &udp(9, 5010), 17));
    is_dropped(&mut node, &ask(HERE, &udp(9, 5011), 17), Reason::NotAskedFor);
    passes(&mut node, &ask(HERE, &[8, 0, 0, 0, 0, 1, 0, 1], 1));
    is_dropped(&mut node, &ask(HERE, &[13, 0, 0, 0, 0, 1, 0, 1], 1), Reason::IcmpType);
    assert_eq!(ALLOWED.value() - before, 3);
}

#[test]
fn pings_are_answered_and_errors_come_back() {
    let mut node = firewall("");
    let (ask, answer) = ([8, 0, 0, 0, 0, 9, 0, 1], [0, 0, 0, 0, 0, 9, 0, 1]);
    is_dropped(&mut node, &v4(THERE, HERE, 1, &answer), Reason::NotAskedFor);
    is_dropped(&mut node, &v4(THERE, HERE, 1, &ask), Reason::NotAskedFor);
    passes(&mut node, &v4(HERE, THERE, 1, &ask));
    passes(&mut node, &v4(THERE, HERE, 1, &answer));

    let asked = v4(HERE, THERE, 17, &udp(4000, 33434));
    // Time exceeded from a router on the path, with the quoted packet.
    let exceeded = |about: &[u8]| {
        let mut l4 = vec![11, 0, 0, 0, 0, 0, 0, 0];
        l4.extend(&about[14..]);
        v4([198, 51, 100, 1], HERE, 1, &l4)
    };
    is_dropped(&mut node, &exceeded(&asked), Reason::IcmpUnrelated);
    passes(&mut node, &asked);
    let before = RELATED.value();
    passes(&mut node, &exceeded(&asked));
    passes(&mut node, &exceeded(&v4(HERE, THERE, 1, &ask)));
    assert_eq!(RELATED.value() - before, 2);
    is_dropped(
        &mut node,
        &exceeded(&v4(THERE, HERE, 17, &udp(33434, 4000))),
        Reason::IcmpUnrelated,
    );
    is_dropped(&mut node, &exceeded(&asked)[..50], Reason::IcmpUnrelated);
}

/// Returns an IPv6 frame from 2001:db8:1::5 to 2001:db8:2::7, or back.
fn v6(answer: bool, next: u8, rest: &[u8]) -> Vec<u8> {
    let end =
        |network: u8, host: u8| [0x20, 1, 0xd, 0xb8, 0, network, 0, 0, 0, 0, 0, 0, 0, 0, 0, host];
    let (from, to) = if answer { (end(2, 7), end(1, 5)) } else { (end(1, 5), end(2, 7)) };
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((rest.len() as u16).to_be_bytes());
    frame.extend([next, 64]);
    frame.extend(from);
    frame.extend(to);
    frame.extend(rest);
    frame
}

#[test]
fn ipv6_is_guarded_the_same() {
    let mut node = firewall("");
    is_dropped(&mut node, &v6(true, 6, &tcp(80, 4000, SYN)), Reason::NotAskedFor);
    is_dropped(&mut node, &v6(true, 58, &[128, 0, 0, 0, 0, 9, 0, 1]), Reason::NotAskedFor);
    passes(&mut node, &v6(false, 6, &tcp(4000, 80, SYN)));
    passes(&mut node, &v6(true, 6, &tcp(80, 4000, SYN | ACK)));
    passes(&mut node, &v6(false, 58, &[128, 0, 0, 0, 0, 9, 0, 1]));
    passes(&mut node, &v6(true, 58, &[129, 0, 0, 0, 0, 9, 0, 1]));
    is_dropped(&mut node, &v6(true, 58, &[129, 0, 0, 0, 0, 8, 0, 1]), Reason::NotAskedFor);
    // Packet too big, about the connection: needed for path MTU discovery.
    let mut too_big = vec![2, 0, 0, 0, 0, 0, 5, 0];
    too_big.extend(&v6(false, 6, &tcp(4000, 80, ACK))[14..]);
    passes(&mut node, &v6(true, 58, &too_big));
    // Echo of the other version's ICMP is invalid.
    is_dropped(&mut node, &v6(false, 1, &[8, 0, 0, 0, 0, 9, 0, 1]), Reason::IcmpType);
}

#[test]
fn fragments_get_the_verdict_of_their_first_one() {
    let first = v4_with(HERE, THERE, 17, 77, 0x2000, &udp(4000, 53));
    let later = v4_with(HERE, THERE, 17, 77, 0x0001, &[0; 8]);
    let mut node = firewall("");
    is_dropped(&mut node, &later, Reason::FragmentOfNothing);
    passes(&mut node, &first);
    passes(&mut node, &later);
    let other = v4_with(HERE, THERE, 17, 78, 0x0001, &[0; 8]);
    is_dropped(&mut node, &other, Reason::FragmentOfNothing);
    // A second fragment that would overwrite TCP's flags; a first one without them.
    passes(&mut node, &v4_with(HERE, THERE, 6, 79, 0x2000, &tcp(4000, 80, SYN)));
    is_dropped(&mut node, &v4_with(HERE, THERE, 6, 79, 0x0001, &[0; 8]), Reason::Fragment);
    let short = v4_with(HERE, THERE, 6, 80, 0x2000, &ports(4000, 80));
    is_dropped(&mut node, &short, Reason::CutShort);
    node.set_now_ms(62_000);
    is_dropped(&mut node, &later, Reason::FragmentOfNothing);

    let six = |more: u8, l4: &[u8]| v6(false, 44, &[&[17, 0, 0, more, 0, 0, 1, 1], l4].concat());
    is_dropped(&mut node, &six(0x10, &[0; 8]), Reason::FragmentOfNothing);
    passes(&mut node, &six(1, &udp(4000, 53)));
    passes(&mut node, &six(0x10, &[0; 8]));
    drop(node);

    let parameters = Node::new().with_parameter("inside", b"10.0.0.0/8");
    let mut node = started(parameters.with_parameter("fragments", b"drop"));
    is_dropped(&mut node, &first, Reason::Fragment);
}

/// Returns the frame with another total length, so that the rest is Ethernet padding.
fn ending_at(mut frame: Vec<u8>, total: u16) -> Vec<u8> {
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame
}

/// Returns a TCP header with another data offset, or a UDP header with another length.
fn offset_of(mut l4: Vec<u8>, words: u8) -> Vec<u8> {
    l4[12] = words << 4;
    l4
}

fn length_of(mut l4: Vec<u8>, length: u16) -> Vec<u8> {
    l4[4..6].copy_from_slice(&length.to_be_bytes());
    l4
}

#[test]
fn a_header_ends_where_its_packet_ends_and_padding_is_no_part_of_it() {
    let mut node = firewall("tcp/80 udp/53");
    let syn = || v4(THERE, HERE, 6, &tcp(9, 80, SYN));
    for total in [20, 28, 39] {
        is_dropped(&mut node, &ending_at(syn(), total), Reason::CutShort);
    }
    let ask = v4(THERE, HERE, 17, &udp(9, 53));
    is_dropped(&mut node, &ending_at(ask.clone(), 24), Reason::CutShort);
    is_dropped(&mut node, &ending_at(v4(HERE, THERE, 1, &[8, 0, 0, 0, 0, 1, 0, 1]), 24), {
        Reason::CutShort
    });
    let trailer = |frame: Vec<u8>| [frame, vec![0xee; 32]].concat();
    passes(&mut node, &trailer(syn()));
    passes(&mut node, &trailer(ask));
    // The payload length of IPv6 has the same effect.
    let mut six = v6(false, 17, &udp(9, 53));
    six[18..20].copy_from_slice(&4_u16.to_be_bytes());
    is_dropped(&mut node, &six, Reason::CutShort);
}

#[test]
fn lengths_that_cannot_be_are_dropped() {
    let mut node = firewall("");
    let tcp_out = |words, more: usize| {
        v4(HERE, THERE, 6, &[offset_of(tcp(4000, 80, SYN), words), vec![1; more]].concat())
    };
    for words in 0..5 {
        is_dropped(&mut node, &tcp_out(words, 0), Reason::TcpFlags);
    }
    is_dropped(&mut node, &tcp_out(6, 0), Reason::CutShort);
    is_dropped(&mut node, &tcp_out(15, 39), Reason::CutShort);
    // The trailer of the frame does not count.
    is_dropped(&mut node, &ending_at(tcp_out(15, 40), 79), Reason::CutShort);
    passes(&mut node, &tcp_out(15, 40));

    let udp_out =
        |length| v4(HERE, THERE, 17, &[length_of(udp(1, 53), length), vec![1; 8]].concat());
    for length in [0, 7, 17, 100, u16::MAX] {
        is_dropped(&mut node, &udp_out(length), Reason::CutShort);
    }
    // UDP options follow the datagram (RFC 9868).
    for length in [8, 12, 16] {
        passes(&mut node, &udp_out(length));
    }
    is_dropped(&mut node, &v6(false, 17, &length_of(udp(1, 53), 9)), Reason::CutShort);
    passes(&mut node, &v6(false, 17, &udp(1, 53)));
}

#[test]
fn a_first_fragment_has_its_l4_header_and_not_the_whole_datagram() {
    let mut node = firewall("");
    let first = |protocol, l4: &[u8]| v4_with(HERE, THERE, protocol, 9, 0x2000, l4);
    passes(&mut node, &first(17, &length_of(udp(1, 53), 3000)));
    is_dropped(&mut node, &first(17, &length_of(udp(1, 53), 7)), Reason::CutShort);
    is_dropped(&mut node, &first(6, &offset_of(tcp(1, 80, SYN), 6)), Reason::CutShort);
    // IPv6: an atomic fragment (RFC 6946) is a complete datagram.
    let six = |more: u8, length| {
        let l4 = length_of(udp(1, 53), length);
        v6(false, 44, &[&[17, 0, 0, more, 0, 0, 1, 1], &l4[..]].concat())
    };
    passes(&mut node, &six(1, 3000));
    passes(&mut node, &six(0, 8));
    is_dropped(&mut node, &six(0, 3000), Reason::CutShort);
}

#[test]
fn later_fragments_of_ipv6_need_not_name_the_protocol() {
    // Destination options after the fragment header: only the first fragment has UDP's number.
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let first = [&[60, 0, 0, 1, 0, 0, 1, 1], &options[..], &length_of(udp(1, 53), 3000)].concat();
    let mut node = firewall("");
    passes(&mut node, &v6(false, 44, &first));
    passes(&mut node, &v6(false, 44, &[60, 0, 0, 16, 0, 0, 1, 1, 7, 7, 7, 7, 7, 7, 7, 7]));
    let other = [60, 0, 0, 16, 0, 0, 1, 2, 7, 7, 7, 7, 7, 7, 7, 7];
    is_dropped(&mut node, &v6(false, 44, &other), Reason::FragmentOfNothing);
}

#[test]
fn ports_used_again_after_one_fin_make_a_connection_like_any_other() {
    let mut node = firewall("");
    for frame in [out(SYN), back(SYN | ACK), out(ACK), out(FIN | ACK)] {
        passes(&mut node, &frame);
    }
    // The server has vanished; the client reuses its port a minute later.
    node.set_now_ms(62_000);
    for frame in [out(SYN), back(SYN | ACK), out(ACK)] {
        passes(&mut node, &frame);
    }
    node.set_now_ms(62_000 + 7_439_999);
    passes(&mut node, &back(ACK));
    drop(node);

    // A single SYN, which may be forged, neither shortens nor extends the time of a half-closed
    // connection.
    let mut node = firewall("");
    for frame in [out(SYN), back(SYN | ACK), out(ACK), out(FIN | ACK), out(SYN)] {
        passes(&mut node, &frame);
    }
    is_dropped(&mut node, &back(SYN), Reason::NotAskedFor);
    node.set_now_ms(1_000 + 239_999);
    passes(&mut node, &back(ACK));
    node.set_now_ms(1_000 + 239_999 + 240_000);
    is_dropped(&mut node, &back(ACK), Reason::NoConnection);
}

#[test]
fn an_error_quotes_no_more_than_its_lengths_say() {
    let mut node = firewall("");
    let asked = v4(HERE, THERE, 17, &udp(4000, 33434));
    passes(&mut node, &asked);
    let router = [198, 51, 100, 1];
    let error = |words, about: &[u8]| {
        v4(router, HERE, 1, &[&[11, 0, 0, 0, 0, words, 0, 0], about].concat())
    };
    let about = &asked[14..];
    passes(&mut node, &error(0, about));
    passes(&mut node, &error(7, about));
    passes(&mut node, &error(32, about));
    // The quoted ports would be in Ethernet padding, in an extension (RFC 4884), or after the
    // quoted datagram's end.
    is_dropped(&mut node, &ending_at(error(0, about), 20 + 8 + 24), Reason::IcmpUnrelated);
    is_dropped(&mut node, &error(6, about), Reason::IcmpUnrelated);
    let short = ending_at(asked.clone(), 24);
    is_dropped(&mut node, &error(0, &short[14..]), Reason::IcmpUnrelated);
}

#[test]
fn an_ipv6_fragment_that_is_too_big_is_found_through_its_headers() {
    let mut node = firewall("");
    let whole = length_of(udp(4000, 53), 3000);
    let fragment = |offset: u8| {
        let headers = [60, 0, 0, offset, 0, 0, 1, 1, 17, 0, 1, 4, 0, 0, 0, 0];
        v6(false, 44, &[&headers[..], &whole].concat())
    };
    passes(&mut node, &fragment(1));
    let too_big = |about: &[u8]| v6(true, 58, &[&[2, 0, 0, 0, 0, 0, 5, 0], &about[14..]].concat());
    passes(&mut node, &too_big(&fragment(1)));
    is_dropped(&mut node, &too_big(&fragment(9)), Reason::IcmpUnrelated);
    is_dropped(&mut node, &too_big(&fragment(1)[..74]), Reason::IcmpUnrelated);
}

#[test]
fn a_flood_of_first_segments_throws_out_no_connection() {
    let mut node = firewall("tcp/80");
    for frame in [out(SYN), back(SYN | ACK), out(ACK)] {
        passes(&mut node, &frame);
    }
    let before = EVICTED.value();
    // More flows than entries, from addresses that nobody has.
    for number in 0..60_000_u32 {
        let [_, b, c, d] = number.to_be_bytes();
        passes(&mut node, &v4([198, b, c, d], HERE, 6, &tcp(4000, 80, SYN)));
    }
    assert!(EVICTED.value() - before >= 60_000 - 32_768);
    passes(&mut node, &back(ACK));
    // A host inside still gets through.
    passes(&mut node, &v4(HERE, THERE, 6, &tcp(4001, 80, SYN)));
    passes(&mut node, &v4(THERE, HERE, 6, &tcp(80, 4001, SYN | ACK)));
}

#[test]
fn a_million_flows_throw_out_no_connection() {
    let mut node = firewall("tcp/80");
    let victims = 5000..5100_u16;
    for port in victims.clone() {
        passes(&mut node, &v4(HERE, THERE, 6, &tcp(port, 80, SYN)));
        passes(&mut node, &v4(THERE, HERE, 6, &tcp(80, port, SYN | ACK)));
        passes(&mut node, &v4(HERE, THERE, 6, &tcp(port, 80, ACK)));
    }
    // Thirty per entry, and as many in each of the victims' buckets.
    for number in 0..1_000_000_u32 {
        let [_, b, c, d] = number.to_be_bytes();
        passes(&mut node, &v4([198, b, c, d], HERE, 6, &tcp(4000, 80, SYN)));
    }
    let [_, established, _] = FLOWS.with(|flows| flows.count(1_000));
    assert_eq!(established, 100);
    for port in victims {
        passes(&mut node, &v4(THERE, HERE, 6, &tcp(80, port, ACK)));
    }
}

#[test]
fn a_table_full_of_connections_refuses_new_ones_and_keeps_these() {
    let mut node = firewall("");
    let mut refused = 0;
    for number in 0..40_000_u32 {
        let [_, b, c, d] = number.to_be_bytes();
        let (far, l4) = ([198, b, c, d], udp(4000, 53));
        match node.packet(on_packet, &v4(HERE, far, 17, &l4)).verdict {
            Verdict::PASS => passes(&mut node, &v4(far, HERE, 17, &udp(53, 4000))),
            verdict => {
                assert_eq!(verdict, Verdict::Drop { reason: Reason::TableFull as u16 });
                refused += 1;
            }
        }
    }
    let [_, established, _] = FLOWS.with(|flows| flows.count(1_000));
    assert_eq!(established + refused, 40_000);
    assert!((30_000..=32_768).contains(&established), "{established}: the hash spreads them");
    // A packet without a connection gets that reason, full or not.
    is_dropped(&mut node, &back(ACK), Reason::NoConnection);
}

#[test]
fn sides_are_known_by_port_and_false_sources_by_prefix() {
    let node = Node::new().with_port("in", 4).with_parameter("inside_port", b"in");
    let mut node = started(node.with_parameter("inside", b"10.0.0.0/8").arriving_at(4));
    passes(&mut node, &out(SYN));
    is_dropped(&mut node, &back(SYN | ACK), Reason::FalseSource);
    drop(node);
    let node = Node::new().with_port("in", 4).with_parameter("inside_port", b"in");
    let mut node = started(node.with_parameter("inside", b"10.0.0.0/8").arriving_at(0));
    is_dropped(&mut node, &out(SYN), Reason::FalseSource);
    is_dropped(&mut node, &back(SYN), Reason::NotAskedFor);
    drop(node);

    let mut node = firewall("");
    passes(&mut node, &v4(HERE, [10, 9, 9, 9], 6, &tcp(1, 2, SYN)));
    is_dropped(&mut node, &v4(THERE, [8, 8, 8, 8], 6, &tcp(1, 2, SYN)), Reason::NeitherSide);
    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    is_dropped(&mut node, &arp, Reason::NotIp);
}

#[test]
fn parameters_that_say_nothing_are_refused() {
    use super::policy::refuse;
    for (name, value, code) in [
        ("inside", &b""[..], refuse::NOBODY_INSIDE),
        ("inside", b"10.0.0.0/33", refuse::INSIDE),
        ("inside", b"10.0.0.1/8", refuse::INSIDE),
        (
            "inside",
            b"1.0.0.0 2.0.0.0 3.0.0.0 4.0.0.0 5.0.0.0 6.0.0.0 7.0.0.0 8.0.0.0 9.0.0.0",
            refuse::INSIDE,
        ),
        ("inside_port", b"nowhere", refuse::INSIDE_PORT),
        ("allow", b"tcp/9-8", refuse::ALLOW),
        ("allow", b"sctp/9", refuse::ALLOW),
        ("fragments", b"maybe", refuse::FRAGMENTS),
        ("udp_timeout", &[0, 0], refuse::TIMEOUT),
    ] {
        let node = Node::new().with_parameter("inside", b"10.0.0.0/8");
        assert_eq!(node.with_parameter(name, value).start(on_start), Err(code), "{name}");
    }
}

#[test]
fn messages_report_and_forget() {
    let mut node = firewall("");
    for frame in [out(SYN), back(SYN | ACK), out(ACK), v4(HERE, THERE, 17, &udp(1, 2))] {
        passes(&mut node, &frame);
    }
    assert_eq!(FLOWS.with(|flows| flows.count(1_000)), [1, 1, 0]);
    assert_eq!(node.message(on_message, b"report"), Ok(()));
    assert_eq!(node.message(on_message, b"nonsense"), Err(1));
    assert_eq!(node.message(on_message, b"flush"), Ok(()));
    is_dropped(&mut node, &back(ACK), Reason::NoConnection);
}
