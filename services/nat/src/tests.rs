//! Tests of the service with frames written header by header. Every case checks that each checksum
//! is right after translation, computed anew and not incrementally.

use super::{
    EVICTED, HELD, MAPPED, MAPPINGS, PRESERVED, RELEASED, Reason, on_message, on_packet, on_start,
};
use tam::Verdict;
use tam::testing::Node;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const HERE: [u8; 4] = [10, 0, 0, 5];
const OTHER: [u8; 4] = [10, 0, 0, 6];
const THERE: [u8; 4] = [192, 0, 2, 7];
const ADDRESS: [u8; 4] = [198, 51, 100, 1];
const FORWARD: Verdict = Verdict::PASS;
const REROUTE: Verdict = Verdict::Pass { edge: 0, reroute: true };

fn nat() -> Node {
    nat_with(&[])
}

fn nat_with(parameters: &[(&str, &[u8])]) -> Node {
    let node = Node::new()
        .with_window(0)
        .with_parameter("inside", b"10.0.0.0/8")
        .with_parameter("address", &ADDRESS)
        .with_parameter("seed", &7_u64.to_le_bytes());
    let with = |node: Node, (name, value): &(&str, &[u8])| node.with_parameter(name, value);
    let mut node = parameters.iter().fold(node, with);
    node.start(on_start).unwrap();
    node.set_now_ms(1_000);
    node
}

/// Returns the sum of RFC 1071 over some bytes; 0 if the checksum within them is right.
fn sum(bytes: &[u8], begin: u32) -> u16 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum = begin + words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// Returns the pseudo-header's sum (RFC 768).
fn pseudo(ip: &[u8], l4_length: usize) -> u32 {
    let words = ip[12..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    words.sum::<u32>() + u32::from(ip[9]) + l4_length as u32
}

/// Returns an IPv4 packet with right checksums around an L4 header whose checksum, if it has one,
/// is 0.
fn ip_with(from: [u8; 4], to: [u8; 4], protocol: u8, id: u16, field: u16, l4: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((20 + l4.len() as u16).to_be_bytes());
    ip.extend(id.to_be_bytes());
    ip.extend(field.to_be_bytes());
    ip.extend([64, protocol, 0, 0]);
    ip.extend(from);
    ip.extend(to);
    let checksum = sum(&ip, 0);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    ip.extend(l4);
    ip
}

fn ip(from: [u8; 4], to: [u8; 4], protocol: u8, l4: &[u8]) -> Vec<u8> {
    let mut ip = ip_with(from, to, protocol, 1, 0x4000, l4);
    let at = match protocol {
        6 => 16,
        17 => 6,
        _ => 2,
    };
    let begin = if protocol == 1 { 0 } else { pseudo(&ip, l4.len()) };
    let checksum = sum(&ip[20..], begin);
    ip[20 + at..22 + at].copy_from_slice(&checksum.to_be_bytes());
    ip
}

fn frame(ip: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0], ip].concat()
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    let [length, payload] = [13_u16.to_be_bytes().to_vec(), b"hello".to_vec()];
    let ports = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    [ports, length, vec![0, 0], payload].concat()
}

fn tcp(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut l4 = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    l4.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0, 7]);
    l4
}

fn echo(kind: u8, id: u16) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1, 9]].concat()
}

/// Returns an ICMP error that quotes the first bytes of a packet.
fn error(from: [u8; 4], to: [u8; 4], about: &[u8], length: usize) -> Vec<u8> {
    ip(from, to, 1, &[&[3, 3, 0, 0, 0, 0, 0, 0], &about[..length]].concat())
}

/// Runs a packet; asserts that a forwarded one has right checksums.
#[track_caller]
fn run(node: &mut Node, ip: &[u8]) -> (Verdict, Vec<u8>) {
    let outcome = node.packet(on_packet, &frame(ip));
    let ip = outcome.bytes[14..].to_vec();
    assert_eq!(sum(&ip[..20], 0), 0, "IP's checksum");
    let is_whole = ip[6] & 0x3f == 0 && ip[7] == 0;
    let begin = match ip[9] {
        1 => Some(0),
        6 => Some(pseudo(&ip, ip.len() - 20)),
        17 if is_whole && ip[26..28] != [0, 0] => Some(pseudo(&ip, ip.len() - 20)),
        _ => None,
    };
    if let Some(begin) = begin.filter(|_| is_whole) {
        assert_eq!(sum(&ip[20..], begin), 0, "the checksum of what IP carries");
    }
    (outcome.verdict, ip)
}

fn word(ip: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([ip[at], ip[at + 1]])
}

/// Returns source address and port.
fn source(ip: &[u8]) -> ([u8; 4], u16) {
    (ip[12..16].try_into().unwrap(), word(ip, 20))
}

fn destination(ip: &[u8]) -> ([u8; 4], u16) {
    (ip[16..20].try_into().unwrap(), word(ip, 22))
}

#[track_caller]
fn is_dropped(node: &mut Node, ip: &[u8], reason: Reason) {
    assert_eq!(run(node, ip).0, Verdict::Drop { reason: reason as u16 });
}

#[test]
fn a_request_and_its_answer_are_translated_with_the_port_kept() {
    for (protocol, ask, answer) in [
        (17, udp(40_000, 53), udp(53, 40_000)),
        (6, tcp(40_000, 53, SYN), tcp(53, 40_000, SYN | ACK)),
    ] {
        let mut node = nat();
        let preserved = PRESERVED.value();
        let (verdict, out) = run(&mut node, &ip(HERE, THERE, protocol, &ask));
        assert_eq!((verdict, source(&out)), (FORWARD, (ADDRESS, 40_000)));
        assert_eq!(destination(&out), (THERE, 53));
        assert_eq!(PRESERVED.value() - preserved, 1);
        let (verdict, back) = run(&mut node, &ip(THERE, ADDRESS, protocol, &answer));
        assert_eq!((verdict, destination(&back)), (REROUTE, (HERE, 40_000)));
        assert_eq!(source(&back), (THERE, 53));
    }
}

#[test]
fn a_port_that_is_taken_becomes_another_of_its_parity() {
    for port in [40_000, 40_001, 80, 81] {
        let mut node = nat();
        run(&mut node, &ip(HERE, THERE, 17, &udp(port, 53)));
        let (_, out) = run(&mut node, &ip(OTHER, THERE, 17, &udp(port, 53)));
        let (address, mapped) = source(&out);
        assert_eq!((address, mapped % 2), (ADDRESS, port % 2));
        assert!(mapped != port && mapped >= 32_768, "{mapped}");
        let (_, back) = run(&mut node, &ip(THERE, ADDRESS, 17, &udp(53, mapped)));
        assert_eq!(destination(&back), (OTHER, port));
    }
}

#[test]
fn a_mapping_is_the_same_for_everyone_outside() {
    let mut node = nat();
    let before = MAPPED.value();
    let (_, one) = run(&mut node, &ip(HERE, THERE, 17, &udp(80, 53)));
    let (_, two) = run(&mut node, &ip(HERE, [203, 0, 113, 9], 17, &udp(80, 99)));
    assert_eq!(source(&one), source(&two));
    assert_eq!(MAPPED.value() - before, 1);
    let (_, back) = run(&mut node, &ip([8, 8, 8, 8], ADDRESS, 17, &udp(1, source(&one).1)));
    assert_eq!(destination(&back), (HERE, 80));
}

#[test]
fn pings_keep_their_identifier_and_are_told_apart() {
    let mut node = nat();
    let (verdict, out) = run(&mut node, &ip(HERE, THERE, 1, &echo(8, 40_000)));
    assert_eq!((verdict, source(&out).0, word(&out, 24)), (FORWARD, ADDRESS, 40_000));
    let (_, out) = run(&mut node, &ip(OTHER, THERE, 1, &echo(8, 40_000)));
    let id = word(&out, 24);
    assert_ne!(id, 40_000);
    let (verdict, back) = run(&mut node, &ip(THERE, ADDRESS, 1, &echo(0, id)));
    assert_eq!((verdict, destination(&back).0, word(&back, 24)), (REROUTE, OTHER, 40_000));
    // A ping from outside is for the router.
    let ping = ip(THERE, ADDRESS, 1, &echo(8, id));
    assert_eq!(run(&mut node, &ping), (FORWARD, ping));
}

#[test]
fn an_error_comes_back_with_what_it_quotes_translated() {
    for (protocol, l4) in [(17, udp(80, 53)), (6, tcp(80, 53, SYN)), (1, echo(8, 80))] {
        let mut node = nat();
        let asked = ip(HERE, THERE, protocol, &l4);
        let (_, out) = run(&mut node, &asked);
        // Complete, and as short as RFC 792 allows.
        for length in [out.len(), 28] {
            let router = [203, 0, 113, 1];
            let (verdict, back) = run(&mut node, &error(router, ADDRESS, &out, length));
            assert_eq!((verdict, source(&back).0, destination(&back).0), (REROUTE, router, HERE));
            assert_eq!(back[28..], asked[..length], "as it was sent, checksums too");
        }
        let unknown = error(THERE, ADDRESS, &ip(ADDRESS, THERE, 17, &udp(9, 53)), 28);
        assert_eq!(run(&mut node, &unknown), (FORWARD, unknown));
    }
}

#[test]
fn an_error_from_inside_quotes_what_was_sent_outside() {
    let mut node = nat();
    let (_, out) = run(&mut node, &ip(HERE, THERE, 17, &udp(80, 53)));
    let answer = ip(THERE, ADDRESS, 17, &udp(53, source(&out).1));
    let (_, inside) = run(&mut node, &answer);
    let (verdict, refused) = run(&mut node, &error(HERE, THERE, &inside, 28));
    assert_eq!((verdict, source(&refused).0), (FORWARD, ADDRESS));
    assert_eq!(refused[28..], answer[..28]);
    let unknown = error(HERE, THERE, &ip(THERE, HERE, 17, &udp(53, 9)), 28);
    is_dropped(&mut node, &unknown, Reason::ErrorOfNothing);
}

#[test]
fn two_inside_hosts_reach_each_other_by_the_external_address() {
    let mut node = nat();
    let (_, out) = run(&mut node, &ip(OTHER, THERE, 17, &udp(80, 53)));
    let port = source(&out).1;
    let (verdict, turned) = run(&mut node, &ip(HERE, ADDRESS, 17, &udp(81, port)));
    assert_eq!((verdict, destination(&turned)), (REROUTE, (OTHER, 80)));
    let (address, seen) = source(&turned);
    assert_eq!(address, ADDRESS, "RFC 4787, REQ-9: the external address and port");
    let (_, answer) = run(&mut node, &ip(OTHER, ADDRESS, 17, &udp(80, seen)));
    assert_eq!((source(&answer), destination(&answer)), ((ADDRESS, port), (HERE, 81)));
}

#[test]
fn only_packets_from_inside_keep_a_udp_mapping() {
    let mut node = nat();
    let (ask, answer) =
        (ip(HERE, THERE, 17, &udp(40_000, 53)), ip(THERE, ADDRESS, 17, &udp(53, 40_000)));
    run(&mut node, &ask);
    node.set_now_ms(1_000 + 299_999);
    assert_eq!(run(&mut node, &answer).0, REROUTE);
    node.set_now_ms(1_000 + 300_000);
    assert_eq!(run(&mut node, &answer), (FORWARD, answer.clone()), "it is the router's");
    drop(node);
    let mut node = nat_with(&[("local", &[0])]);
    is_dropped(&mut node, &answer, Reason::NoMapping);
    is_dropped(&mut node, &ip(THERE, ADDRESS, 47, &[0; 8]), Reason::Protocol);
}

#[test]
fn a_connection_is_kept_for_two_hours_and_what_ends_or_begins_for_minutes() {
    let mut node = nat();
    let out = |flags| ip(HERE, THERE, 6, &tcp(40_000, 80, flags));
    let back = |flags| ip(THERE, ADDRESS, 6, &tcp(80, 40_000, flags));
    let alive = |node: &mut Node, now| {
        node.set_now_ms(now);
        run(node, &back(ACK)).0 == REROUTE
    };
    run(&mut node, &out(SYN));
    assert!(alive(&mut node, 240_999) && !alive(&mut node, 241_000));
    for packet in [out(SYN), back(SYN | ACK), out(ACK)] {
        run(&mut node, &packet);
    }
    assert!(alive(&mut node, 241_000 + 7_439_999));
    run(&mut node, &back(FIN | ACK));
    let closed = 241_000 + 7_439_999;
    assert!(alive(&mut node, closed + 239_999) && !alive(&mut node, closed + 240_000));
    is_dropped(&mut node, &out(RST), Reason::NoMapping);
}

/// Returns an error with RFC 4884's length, and bytes after the quotation.
fn error_of(words: u8, about: &[u8], trailer: &[u8]) -> Vec<u8> {
    let l4 = [&[11, 0, 0, 0, 0, words, 0, 0], about].concat();
    [ip([203, 0, 113, 1], ADDRESS, 1, &l4), trailer.to_vec()].concat()
}

#[test]
fn what_an_error_does_not_quote_is_not_touched() {
    // MPLS label stack (RFC 4950) as an extension (RFC 4884).
    const EXTENSION: [u8; 12] = [0x20, 0, 0x98, 0xb5, 0, 8, 1, 1, 0, 6, 0x41, 0xff];
    let mut node = nat();
    let asked = ip(HERE, THERE, 6, &[&tcp(80, 443, SYN)[..], &[7; 100]].concat());
    let (_, out) = run(&mut node, &asked);
    let padded = |length: usize, to: usize| [&out[..length], &vec![0; to - length]].concat();
    for (name, words, about, trailer) in [
        ("8 bytes of TCP, then Ethernet's trailer", 0, padded(28, 28), &[0xa5; 16][..]),
        ("8 bytes of TCP and an extension at once", 7, padded(28, 28), &EXTENSION),
        ("the same, and its length is not said", 0, padded(28, 28), &EXTENSION),
        ("16 bytes, zeros to 128, and an extension", 32, padded(36, 128), &EXTENSION),
        ("the same, and its length is not said", 0, padded(36, 128), &EXTENSION),
        ("17 bytes: half of the checksum", 0, padded(37, 37), &[]),
    ] {
        let is_icmp = trailer == EXTENSION;
        let (about, trailer) = match is_icmp {
            true => ([&about[..], trailer].concat(), &[][..]),
            false => (about, trailer),
        };
        let frame = error_of(words, &about, trailer);
        let outcome = node.packet(on_packet, &super::tests::frame(&frame));
        assert_eq!(outcome.verdict, REROUTE, "{name}");
        let back = &outcome.bytes[14..];
        let length = frame.len() - trailer.len();
        assert_eq!(sum(&back[20..length], 0), 0, "{name}: ICMP's checksum");
        assert_eq!(back[28..28 + 28], asked[..28], "{name}: what is quoted");
        assert_eq!(back[56..], frame[56..], "{name}: what is not");
    }
    // The whole header is quoted, in 40 bytes and padded to 128.
    for (words, about) in [(0, padded(40, 40)), (10, padded(40, 40)), (32, padded(128, 128))] {
        let (verdict, back) = run(&mut node, &error_of(words, &about, &[]));
        assert_eq!((verdict, &back[28..68]), (REROUTE, &asked[..40]));
    }
    // The quoted datagram ends before its ports do: no ports.
    for (words, length) in [(0, 24), (6, 28)] {
        let nothing = error_of(words, &out[..length], &[]);
        assert_eq!(run(&mut node, &nothing), (FORWARD, nothing.clone()));
    }
}

#[test]
fn a_header_in_padding_is_none() {
    let mut node = nat();
    let mut cut = ip(HERE, THERE, 6, &tcp(80, 443, SYN));
    cut[2..4].copy_from_slice(&28_u16.to_be_bytes());
    let checksum = sum(&[&cut[..10], &[0, 0], &cut[12..20]].concat(), 0);
    cut[10..12].copy_from_slice(&checksum.to_be_bytes());
    is_dropped(&mut node, &cut, Reason::CutShort);
}

#[test]
fn an_error_about_a_hairpin_packet_goes_back_to_the_inside_host() {
    for (protocol, there, l4) in [
        (17, udp(80, 53), udp as fn(u16, u16) -> Vec<u8>),
        (6, tcp(80, 53, SYN), |from, to| tcp(from, to, SYN)),
    ] {
        let mut node = nat();
        let (_, out) = run(&mut node, &ip(OTHER, THERE, protocol, &there));
        let asked = ip(HERE, ADDRESS, protocol, &l4(81, source(&out).1));
        let (_, turned) = run(&mut node, &asked);
        assert_eq!(destination(&turned), (OTHER, 80));
        for length in [turned.len(), 28] {
            let (verdict, back) = run(&mut node, &error(OTHER, ADDRESS, &turned, length));
            let ends = (source(&back).0, destination(&back).0);
            assert_eq!((verdict, ends), (REROUTE, (ADDRESS, HERE)), "RFC 5508, REQ-7");
            assert_eq!(back[28..], asked[..length]);
        }
        // About a packet of the router's own, or to a host that has not sent it.
        let own = error(HERE, ADDRESS, &ip(ADDRESS, HERE, 17, &udp(9, 9)), 28);
        assert_eq!(run(&mut node, &own), (FORWARD, own));
        let (_, out) = run(&mut node, &ip(HERE, THERE, 17, &udp(40_000, 53)));
        let (_, answer) = run(&mut node, &ip(THERE, ADDRESS, 17, &udp(53, source(&out).1)));
        let astray = error(HERE, [8, 8, 8, 8], &answer, 28);
        is_dropped(&mut node, &astray, Reason::ErrorOfNothing);
    }
    // Errors from hosts inside to the router are not translated.
    let mut node = nat();
    for packet in [ip(HERE, ADDRESS, 1, &echo(0, 9)), ip(HERE, ADDRESS, 47, &[0; 8])] {
        assert_eq!(run(&mut node, &packet), (FORWARD, packet.clone()));
    }
}

/// Returns a segment between port 40,000 of the host inside and port 443 of a host outside.
fn out_to(remote: [u8; 4], flags: u8) -> Vec<u8> {
    ip(HERE, remote, 6, &tcp(40_000, 443, flags))
}

fn back_from(remote: [u8; 4], flags: u8) -> Vec<u8> {
    ip(remote, ADDRESS, 6, &tcp(443, 40_000, flags))
}

fn open(node: &mut Node, remote: [u8; 4]) {
    for packet in [out_to(remote, SYN), back_from(remote, SYN | ACK), out_to(remote, ACK)] {
        run(node, &packet);
    }
}

/// Hosts outside, besides `THERE`.
const SECOND: [u8; 4] = [192, 0, 2, 8];
const STRANGER: [u8; 4] = [203, 0, 113, 66];

#[test]
fn the_end_of_one_connection_or_a_strangers_reset_ends_no_other_of_its_mapping() {
    let ends: [&[Vec<u8>]; 6] = [
        &[back_from(STRANGER, RST)],
        &[back_from(STRANGER, FIN | ACK), out_to(STRANGER, RST | ACK)],
        // Refused by the remote end.
        &[out_to(SECOND, SYN), back_from(SECOND, RST | ACK)],
        &[out_to(SECOND, SYN), back_from(SECOND, SYN | ACK), out_to(SECOND, RST)],
        &[
            out_to(SECOND, SYN),
            back_from(SECOND, SYN | ACK),
            out_to(SECOND, ACK),
            out_to(SECOND, FIN | ACK),
            back_from(SECOND, FIN | ACK),
            out_to(SECOND, ACK),
        ],
        // Begun from outside, and ended.
        &[
            back_from(SECOND, SYN),
            out_to(SECOND, SYN | ACK),
            back_from(SECOND, ACK),
            back_from(SECOND, RST),
        ],
    ];
    for (number, segments) in ends.into_iter().enumerate() {
        let mut node = nat();
        open(&mut node, THERE);
        for segment in segments {
            run(&mut node, segment);
        }
        node.set_now_ms(1_000 + 7_439_999);
        assert_eq!(run(&mut node, &back_from(THERE, ACK)).0, REROUTE, "{number}");
    }
    // The end of the first one does not end the others either.
    let mut node = nat();
    open(&mut node, THERE);
    open(&mut node, SECOND);
    for segment in [out_to(THERE, FIN | ACK), back_from(THERE, FIN | ACK), back_from(THERE, RST)] {
        run(&mut node, &segment);
    }
    node.set_now_ms(1_000 + 7_439_999);
    assert_eq!(run(&mut node, &back_from(SECOND, ACK)).0, REROUTE);
}

#[test]
fn a_mapping_ends_soon_after_the_last_of_its_connections() {
    let mut node = nat();
    open(&mut node, THERE);
    open(&mut node, SECOND);
    open(&mut node, STRANGER);
    for remote in [SECOND, THERE, STRANGER] {
        run(&mut node, &out_to(remote, FIN | ACK));
        // A repeated FIN counts once.
        run(&mut node, &back_from(remote, FIN | ACK));
        run(&mut node, &back_from(remote, FIN | ACK));
    }
    let alive = |node: &mut Node, now| {
        node.set_now_ms(now);
        MAPPINGS.with(|mappings| mappings.count(now))[1] == 1
    };
    assert!(alive(&mut node, 1_000 + 239_999) && !alive(&mut node, 1_000 + 240_000));

    // Successive connections: the port is free soon after each.
    let mut now = 8_000_000;
    node.set_now_ms(now);
    for remote in [THERE, SECOND, THERE] {
        open(&mut node, remote);
        run(&mut node, &out_to(remote, FIN | ACK));
        run(&mut node, &back_from(remote, FIN | ACK));
        assert!(alive(&mut node, now + 239_999) && !alive(&mut node, now + 240_000), "{remote:?}");
        now += 300_000;
        node.set_now_ms(now);
    }
}

#[test]
fn a_forged_reset_costs_an_active_connection_nothing() {
    let mut node = nat();
    open(&mut node, THERE);
    for segment in [back_from(THERE, RST), out_to(THERE, ACK), back_from(THERE, ACK)] {
        run(&mut node, &segment);
    }
    node.set_now_ms(1_000 + 7_439_999);
    assert_eq!(run(&mut node, &back_from(THERE, ACK)).0, REROUTE);
}

#[test]
fn unfinished_handshakes_do_not_exhaust_the_ports() {
    let mut node = nat();
    open(&mut node, THERE);
    // More than there are ports, each answered by a cooperating server.
    for number in 0..50_000_u32 {
        let [_, b, c, d] = number.to_be_bytes();
        let (verdict, out) =
            run(&mut node, &ip([10, 100 + b, c, d], THERE, 6, &tcp(4000, 80, SYN)));
        assert_eq!(verdict, FORWARD);
        run(&mut node, &ip(THERE, ADDRESS, 6, &tcp(80, source(&out).1, SYN | ACK)));
    }
    let (verdict, out) = run(&mut node, &ip(OTHER, THERE, 6, &tcp(4000, 443, SYN)));
    assert_eq!(verdict, FORWARD);
    let answer = ip(THERE, ADDRESS, 6, &tcp(443, source(&out).1, SYN | ACK));
    assert_eq!(destination(&run(&mut node, &answer).1), (OTHER, 4000));
    assert_eq!(run(&mut node, &back_from(THERE, ACK)).0, REROUTE, "what was there stays");
}

#[test]
fn more_connections_of_one_port_than_can_be_counted_keep_it() {
    let mut node = nat();
    open(&mut node, THERE);
    let remotes = (0..6_000_u32).map(|number| {
        let [_, b, c, d] = number.to_be_bytes();
        [198, b, c, d]
    });
    for remote in remotes.clone() {
        open(&mut node, remote);
    }
    for remote in remotes {
        run(&mut node, &back_from(remote, RST));
    }
    run(&mut node, &back_from(THERE, RST));
    node.set_now_ms(1_000 + 7_439_999);
    assert_eq!(run(&mut node, &back_from(THERE, ACK)).0, REROUTE);
}

#[test]
fn fragments_follow_their_first_one() {
    let first = ip_with(THERE, ADDRESS, 17, 77, 0x2000, &udp(53, 40_000));
    let later = ip_with(THERE, ADDRESS, 17, 77, 0x0002, &[7; 16]);
    let mut node = nat();
    run(&mut node, &ip(HERE, THERE, 17, &udp(40_000, 53)));
    assert_eq!(run(&mut node, &later), (FORWARD, later.clone()));
    assert_eq!(destination(&run(&mut node, &first).1), (HERE, 40_000));
    let (verdict, on) = run(&mut node, &later);
    assert_eq!((verdict, destination(&on).0, &on[20..]), (REROUTE, HERE, &[7; 16][..]));
    let other = ip_with(THERE, ADDRESS, 17, 78, 0x0002, &[7; 16]);
    assert_eq!(run(&mut node, &other).0, FORWARD);

    let out = ip_with(HERE, THERE, 17, 9, 0x0002, &[7; 16]);
    let (verdict, out) = run(&mut node, &out);
    assert_eq!((verdict, source(&out).0, &out[20..]), (FORWARD, ADDRESS, &[7; 16][..]));
}

/// Returns the IP packets that the service sent for this one, after the same checks as for
/// forwarded ones.
fn sent(node: &mut Node, ip: &[u8]) -> Vec<Vec<u8>> {
    let outcome = node.packet(on_packet, &frame(ip));
    let taken = outcome.sent.into_iter().map(|(port, frame)| {
        assert_eq!((port, &frame[12..14]), (tam::BY_ROUTE, &[8, 0][..]));
        assert_eq!(sum(&frame[14..34], 0), 0, "IP's checksum");
        frame[14..].to_vec()
    });
    taken.collect()
}

/// Returns the fragment at this offset in 8-byte units, of UDP from port 53.
fn fragment(from: [u8; 4], id: u16, at: u16) -> Vec<u8> {
    match at {
        0 => ip_with(from, ADDRESS, 17, id, 0x2000, &udp(53, 40_000)),
        at => ip_with(from, ADDRESS, 17, id, 0x2000 | at, &[at as u8; 16]),
    }
}

#[test]
fn a_fragment_that_comes_before_its_first_one_is_sent_behind_it() {
    let mut node = nat();
    let (held, released) = (HELD.value(), RELEASED.value());
    run(&mut node, &ip(HERE, THERE, 17, &udp(40_000, 53)));
    // The router may have asked: until the first fragment comes it gets them too.
    for at in [6, 4, 2] {
        let early = fragment(THERE, 77, at);
        assert_eq!(run(&mut node, &early), (FORWARD, early));
    }
    // Fragments of another datagram, and of another server's with the same identification.
    run(&mut node, &fragment(THERE, 78, 2));
    run(&mut node, &fragment(SECOND, 77, 2));
    let behind = sent(&mut node, &fragment(THERE, 77, 0));
    let mut places: Vec<_> = behind.iter().map(|ip| word(ip, 6) & 0x1fff).collect();
    places.sort_unstable();
    assert_eq!(places, [2, 4, 6]);
    for ip in &behind {
        let at = (word(ip, 6) & 0x1fff) as u8;
        assert_eq!((source(ip).0, destination(ip).0, &ip[20..]), (THERE, HERE, &[at; 16][..]));
    }
    assert_eq!((HELD.value() - held, RELEASED.value() - released), (5, 3));
    // Sent once; later fragments are forwarded directly.
    assert_eq!(sent(&mut node, &fragment(THERE, 77, 0)), Vec::<Vec<u8>>::new());
    assert_eq!(run(&mut node, &fragment(THERE, 77, 8)).0, REROUTE);
}

#[test]
fn held_fragments_are_limited() {
    let mut node = nat();
    run(&mut node, &ip(HERE, THERE, 17, &udp(40_000, 53)));
    let early = |node: &mut Node, id, count| {
        for at in 0..count {
            run(node, &fragment(THERE, id, 2 + 2 * at));
        }
    };
    let count = |node: &mut Node, id| sent(node, &fragment(THERE, id, 0)).len();
    // As many as can be sent per packet; older datagrams are replaced.
    early(&mut node, 1, 6);
    assert_eq!(count(&mut node, 1), 4);
    early(&mut node, 2, 3);
    early(&mut node, 2 + 16, 3);
    assert_eq!((count(&mut node, 2 + 16), count(&mut node, 2)), (3, 1));
    // Held for half a minute.
    early(&mut node, 3, 1);
    node.set_now_ms(1_000 + 30_000);
    assert_eq!(count(&mut node, 3), 0);
    // Ethernet padding is removed; a fragment longer than Ethernet's MTU is not held.
    let padded = [fragment(THERE, 4, 2), vec![0xee; 10]].concat();
    node.packet(on_packet, &frame(&padded));
    assert_eq!(sent(&mut node, &fragment(THERE, 4, 0))[0].len(), 20 + 16);
    for (id, length, kept) in [(5, 1480, 1), (6, 1481, 0)] {
        run(&mut node, &ip_with(THERE, ADDRESS, 17, id, 2, &vec![1; length]));
        assert_eq!(count(&mut node, id), kept);
    }
}

#[test]
fn fragments_of_nobody_inside_are_the_routers_in_any_order() {
    for local in [1, 0] {
        let mut node = nat_with(&[("local", &[local])]);
        let passes = |node: &mut Node, ip: Vec<u8>, reason: Reason| match local {
            1 => assert_eq!(run(node, &ip), (FORWARD, ip)),
            _ => is_dropped(node, &ip, reason),
        };
        passes(&mut node, fragment(THERE, 7, 2), Reason::Held);
        passes(&mut node, fragment(THERE, 7, 0), Reason::NoMapping);
        passes(&mut node, fragment(THERE, 7, 2), Reason::FragmentOfNothing);
        assert_eq!(sent(&mut node, &fragment(THERE, 7, 0)), Vec::<Vec<u8>>::new());
        let gre = ip_with(THERE, ADDRESS, 47, 8, 2, &[7; 16]);
        passes(&mut node, gre, Reason::Protocol);
    }
}

#[test]
fn hairpin_fragments_reach_another_inside_host_in_any_order() {
    let mut node = nat();
    let (_, out) = run(&mut node, &ip(OTHER, THERE, 17, &udp(80, 53)));
    let port = source(&out).1;
    let first = ip_with(HERE, ADDRESS, 17, 9, 0x2000, &udp(81, port));
    let later = |at| ip_with(HERE, ADDRESS, 17, 9, at, &[at as u8; 16]);
    assert_eq!(run(&mut node, &later(4)).0, FORWARD);
    let behind = sent(&mut node, &first);
    assert_eq!(behind.len(), 1);
    let (verdict, then) = run(&mut node, &later(2));
    assert_eq!(verdict, REROUTE);
    for (ip, at) in [(&behind[0], 4), (&then, 2)] {
        assert_eq!((source(ip).0, destination(ip).0, &ip[20..]), (ADDRESS, OTHER, &[at; 16][..]));
    }
}

#[test]
fn fragments_of_an_error_follow_it() {
    let mut node = nat();
    let (_, out) = run(&mut node, &ip(HERE, THERE, 17, &udp(40_000, 53)));
    let mut first = error([203, 0, 113, 1], ADDRESS, &out, out.len());
    (first[4], first[5], first[6]) = (0, 9, 0x20);
    let checksum = sum(&[&first[..10], &[0, 0], &first[12..20]].concat(), 0);
    first[10..12].copy_from_slice(&checksum.to_be_bytes());
    let later = ip_with([203, 0, 113, 1], ADDRESS, 1, 9, 8, &[7; 16]);
    run(&mut node, &later);
    assert_eq!(destination(&sent(&mut node, &first)[0]).0, HERE);
    assert_eq!(destination(&run(&mut node, &later).1).0, HERE);
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let mut node = nat();
    let bare = ip_with(HERE, THERE, 17, 1, 0x4000, &udp(80, 53));
    let (_, out) = run(&mut node, &bare);
    assert_eq!((source(&out).0, word(&out, 26)), (ADDRESS, 0));
}

#[test]
fn when_ports_run_out_only_unanswered_mappings_are_evicted() {
    let ports = [
        ("first_port", &40_000_u16.to_le_bytes()[..]),
        ("last_port", &40_063_u16.to_le_bytes()[..]),
    ];
    let mut node = nat_with(&ports);
    let before = EVICTED.value();
    let mut answered = Vec::new();
    for port in 1..=200_u16 {
        let (verdict, out) = run(&mut node, &ip(HERE, THERE, 17, &udp(port, 53)));
        if verdict == FORWARD {
            run(&mut node, &ip(THERE, ADDRESS, 17, &udp(53, source(&out).1)));
            answered.push((port, source(&out).1));
        } else {
            assert_eq!(verdict, Verdict::Drop { reason: Reason::NoPort as u16 });
        }
    }
    // Both parities of a bucket, in both buckets.
    assert_eq!((answered.len(), EVICTED.value() - before), (64, 0));
    for (port, mapped) in &answered {
        let (_, back) = run(&mut node, &ip(THERE, ADDRESS, 17, &udp(53, *mapped)));
        assert_eq!(destination(&back), (HERE, *port));
    }
    drop(node);
    let mut node = nat_with(&ports);
    for port in 1..=200_u16 {
        let syn = ip(HERE, THERE, 6, &tcp(port, 80, SYN));
        assert_eq!(run(&mut node, &syn).0, FORWARD, "a flood throws out itself");
    }
    assert_eq!(EVICTED.value() - before, 200 - 64);
}

#[test]
fn a_million_flows_from_inside_take_no_mapping_that_was_answered() {
    let mut node = nat();
    let mut victims = Vec::new();
    for port in 5000..5100_u16 {
        let (verdict, out) = run(&mut node, &ip(HERE, THERE, 17, &udp(port, 53)));
        assert_eq!(verdict, FORWARD);
        let mapped = source(&out).1;
        run(&mut node, &ip(THERE, ADDRESS, 17, &udp(53, mapped)));
        victims.push((port, mapped));
    }
    // Thirty per port.
    for number in 0..1_000_000_u32 {
        let [_, b, c, d] = number.to_be_bytes();
        let (verdict, _) = run(&mut node, &ip([10, 100 + b, c, d], THERE, 17, &udp(4000, 53)));
        assert_eq!(verdict, FORWARD, "a flood throws out itself");
    }
    for (port, mapped) in victims {
        let (_, back) = run(&mut node, &ip(THERE, ADDRESS, 17, &udp(53, mapped)));
        assert_eq!(destination(&back), (HERE, port));
    }
}

#[test]
fn packets_that_need_no_translation_are_forwarded_unchanged() {
    let mut node = nat();
    let mut ipv6 = vec![0; 54];
    ipv6[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    let outcome = node.packet(on_packet, &ipv6);
    assert_eq!((outcome.verdict, outcome.bytes), (FORWARD, ipv6));
    for packet in [
        ip(HERE, OTHER, 17, &udp(1, 2)),
        ip(THERE, [8, 8, 8, 8], 17, &udp(1, 2)),
        ip(THERE, HERE, 17, &udp(1, 2)),
        // From inside to the router.
        ip(HERE, ADDRESS, 6, &tcp(1, 22, SYN)),
    ] {
        assert_eq!(run(&mut node, &packet), (FORWARD, packet.clone()));
    }
    is_dropped(&mut node, &ip(HERE, THERE, 47, &[0; 8]), Reason::Protocol);
    is_dropped(&mut node, &ip(HERE, THERE, 1, &echo(13, 1)), Reason::IcmpType);
    is_dropped(&mut node, &ip_with(HERE, THERE, 17, 1, 0x2000, &[1, 1, 1, 1]), Reason::CutShort);
}

#[test]
fn parameters_that_cannot_be_are_refused() {
    use super::settings::refuse;
    for (name, value, code) in [
        ("inside", &b""[..], refuse::INSIDE),
        ("inside", b"10.0.0.1/8", refuse::INSIDE),
        ("address", &HERE, refuse::ADDRESS),
        ("first_port", &[0, 1], refuse::PORTS),
        ("first_port", &[0xf0, 0xff], refuse::PORTS),
        ("first_port", &[0, 0x20], refuse::PORTS),
        ("udp_timeout", &[119, 0], refuse::TIMEOUT),
    ] {
        let node = Node::new()
            .with_parameter("inside", b"10.0.0.0/8")
            .with_parameter("address", &ADDRESS)
            .with_parameter(name, value);
        let mut node = node;
        assert_eq!(node.start(on_start), Err(code), "{name} {value:?}");
    }
}

#[test]
fn messages_report_and_forget() {
    let mut node = nat();
    run(&mut node, &ip(HERE, THERE, 17, &udp(1, 53)));
    run(&mut node, &ip(HERE, THERE, 6, &tcp(1, 53, SYN)));
    run(&mut node, &ip(OTHER, THERE, 6, &tcp(1, 53, SYN)));
    assert_eq!(MAPPINGS.with(|mappings| mappings.count(1_000)), [1, 2, 0]);
    assert_eq!(node.message(on_message, b"report"), Ok(()));
    assert_eq!(node.message(on_message, b"?"), Err(1));
    assert_eq!(node.message(on_message, b"flush"), Ok(()));
    assert_eq!(MAPPINGS.with(|mappings| mappings.count(1_000)), [0, 0, 0]);
}
