//! Tests of sources changed by modules, in packets that the kernel finishes: it sees the sender's,
//! and the wire has the module's.

use bpf::{Answers, Below, QUESTION_HEAD, QUESTION_PACKET};
use bpf_maps::{
    End, LEVEL_KERNEL, LEVEL_NIC, META_TO_TC, ORIGIN_BELOW, PacketMeta, SLOW_NETFILTER,
};
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use units::PortId;
use wire::{FrameBuilder, parse_frame, protocol, rewrite};

use crate::harness::{PORT, addressed};
use crate::kernel_harness::{Kernel, MARK, ours};
use crate::namespace::{NEXT_HOP, OUT_MAC, enter, ifindex, ip};
use crate::nic_harness::Script;
use crate::wire_end::WireEnd;

/// Host inside, and the router's own address with a port that no host inside has.
const INSIDE: ([u8; 4], u16) = ([10, 0, 0, 1], 1);
const OUTSIDE: ([u8; 4], u16) = ([198, 51, 100, 1], 40_000);
const SERVER: [u8; 4] = [203, 0, 113, 9];
const ICMP_UNREACHABLE: u8 = 3;
const ICMP_TIME_EXCEEDED: u8 = 11;

fn from(source: ([u8; 4], u16), ttl: u8, length: usize) -> FrameBuilder {
    let payload = MARK.repeat(length / MARK.len());
    let builder = FrameBuilder::new().ipv4(source.0, SERVER, ttl).identification(77);
    builder.udp(source.1, 2).payload(&payload)
}

fn from_v6(source: ([u8; 4], u16)) -> FrameBuilder {
    let mut address = Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0).octets();
    address[12..].copy_from_slice(&source.0);
    let server = [0x2001, 0x0db8, 1, 0, 0, 0, 0, 2];
    FrameBuilder::new().ipv6(address, server, 64).udp(source.1, 2).payload(&MARK)
}

fn routed(frame: &[u8]) -> Vec<u8> {
    let mut expected = frame.to_vec();
    let parsed = parse_frame(frame).unwrap();
    rewrite::route(&mut expected, parsed.l3_offset, OUT_MAC, NEXT_HOP).unwrap();
    expected
}

/// Makes a slow port whose module, at a level, gives packets the router's own address.
fn translating(node: &str, level: u32) -> Kernel {
    let kernel = Kernel::load(node);
    kernel.set_module(Below::Nic, "scripted");
    kernel.lane().set_target(level);
    let mut config = kernel.door.port_config(PortId(PORT)).unwrap();
    config.slow = SLOW_NETFILTER;
    kernel.door.configure(PortId(PORT), &config).unwrap();
    ip("address add 10.0.0.254/24 dev in");
    ip("neigh add 10.0.0.1 lladdr 02:00:00:00:bb:02 dev in nud permanent");
    kernel
}

fn to_outside() -> Script {
    let (source, port) = OUTSIDE;
    Script { source, source_port_be: port.to_be_bytes(), ..Script::default() }
}

#[test]
fn what_the_kernel_sends_for_a_module_has_the_modules_source() {
    if !enter("what_the_kernel_sends_for_a_module_has_the_modules_source") {
        return;
    }
    for (node, level) in [("tt-trnic", LEVEL_NIC), ("tt-trtc", LEVEL_KERNEL)] {
        let kernel = translating(node, level);
        for (came, leaves) in
            [(from(INSIDE, 64, 64), from(OUTSIDE, 64, 64)), (from_v6(INSIDE), from_v6(OUTSIDE))]
        {
            let stats = kernel.run(&addressed(came.build()), to_outside());
            assert_eq!(stats.to_kernel, stats.packets, "{node}: {stats:?}");
            assert_eq!(kernel.far.receive(ours), routed(&addressed(leaves.build())), "{node}");
        }
        clean_up();
    }
}

#[test]
fn a_packet_that_waits_for_its_next_hop_leaves_with_the_modules_source() {
    if !enter("a_packet_that_waits_for_its_next_hop_leaves_with_the_modules_source") {
        return;
    }
    let kernel = translating("tt-trcold", LEVEL_NIC);
    ip("neigh del 198.51.100.2 dev out");
    kernel.run(&addressed(from(INSIDE, 64, 64).build()), to_outside());
    kernel.far.receive(|frame| frame[12..14] == protocol::ETHERTYPE_ARP.to_be_bytes());
    let mac = NEXT_HOP.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("neigh replace 198.51.100.2 lladdr {mac} dev out nud permanent"));
    let leaves = routed(&addressed(from(OUTSIDE, 64, 64).build()));
    assert_eq!(kernel.far.receive(ours), leaves);
}

#[test]
fn a_flow_that_leaves_by_no_port_any_more_keeps_the_modules_source() {
    if !enter("a_flow_that_leaves_by_no_port_any_more_keeps_the_modules_source") {
        return;
    }
    // No address of the router's own, which the kernel would not forward.
    let given = ([198, 51, 100, 77], OUTSIDE.1);
    let script = || Script { source: given.0, ..to_outside() };
    for (node, level) in [("tt-trgonenic", LEVEL_NIC), ("tt-trgonetc", LEVEL_KERNEL)] {
        let kernel = translating(node, level);
        let came = addressed(from(INSIDE, 64, 64).build());
        for _ in 0..2 {
            kernel.run(&came, script());
            let leaves = routed(&addressed(from(given, 64, 64).build()));
            assert_eq!(kernel.far.receive(ours), leaves, "{node}");
        }
        ip("link add aside type veth peer name beyond");
        ip("link set aside up");
        ip("link set beyond up");
        let beyond = WireEnd::of_device("beyond");
        ip("route replace 203.0.113.9/32 dev aside");
        ip("neigh replace 203.0.113.9 lladdr 02:00:00:00:cc:01 dev aside nud permanent");
        // As the daemon does when it is notified of a route.
        kernel.door.invalidate();
        kernel.run(&came, script());
        let left = beyond.receive(ours);
        assert_eq!((&left[26..30], &left[34..36]), (&given.0[..], &given.1.to_be_bytes()[..]));
        ip("link del aside");
        clean_up();
    }
}

#[test]
fn a_note_is_for_what_comes_in_by_the_same_port() {
    if !enter("a_note_is_for_what_comes_in_by_the_same_port") {
        return;
    }
    for (node, level) in [("tt-trspoofnic", LEVEL_NIC), ("tt-trspooftc", LEVEL_KERNEL)] {
        let kernel = translating(node, level);
        let came = addressed(from(INSIDE, 64, 64).build());
        kernel.run(&came, to_outside());
        kernel.far.receive(ours);
        // The same packet arrives by another device, unknown to the node.
        ip("link add beside type veth peer name victim");
        ip("link set beside up address 02:00:00:00:dd:01");
        ip("link set victim up");
        let victim = WireEnd::of_device("victim");
        let mut frame = came.clone();
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0xdd, 1]);
        victim.send(&frame);
        assert_eq!(kernel.far.receive(ours), routed(&came), "{node}: its own source");
        ip("link del beside");
        clean_up();
    }
}

#[test]
fn the_kernels_errors_go_to_the_sender_and_quote_what_it_sent() {
    if !enter("the_kernels_errors_go_to_the_sender_and_quote_what_it_sent") {
        return;
    }
    for (node, level) in [("tt-trernic", LEVEL_NIC), ("tt-trertc", LEVEL_KERNEL)] {
        let kernel = translating(node, level);
        ip("link set out mtu 1300");
        let whole = from(INSIDE, 64, 1400).patch(20, &[0x40]);
        for (builder, kind) in
            [(from(INSIDE, 1, 64), ICMP_TIME_EXCEEDED), (whole, ICMP_UNREACHABLE)]
        {
            let mut frame = addressed(builder.build());
            if kind == ICMP_UNREACHABLE {
                // Not to be fragmented; its checksum follows.
                frame[24..26].copy_from_slice(&[0, 0]);
                let sum = wire::checksum::checksum(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            kernel.run(&frame, to_outside());
            let error = kernel.near.receive(ours);
            assert_eq!((&error[30..34], error[34]), (&INSIDE.0[..], kind), "{node}");
            assert_eq!(error[42..70], frame[14..42], "{node}: addresses and ports");
        }
        clean_up();
    }
}

#[test]
fn a_source_changed_at_nic_is_put_back_by_the_level_that_hands_the_packet_over() {
    if !enter("a_source_changed_at_nic_is_put_back_by_the_level_that_hands_the_packet_over") {
        return;
    }
    let (came, changed) = (from(INSIDE, 64, 64), from(OUTSIDE, 64, 64));
    let [high, low] = INSIDE.1.to_be_bytes();
    let [a, b, c, d] = INSIDE.0;
    let kernel = translating("tt-trlevels", LEVEL_KERNEL);
    // A module at `kernel` changes the source, and has the packet go up.
    kernel.add_tap();
    let raise = Script { verdict: 4, ..to_outside() };
    kernel.run(&addressed(came.build()), raise);
    let up = kernel.up.receive(ours);
    let (meta, frame) = up.split_at(size_of::<PacketMeta>());
    let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
    assert_eq!(meta.egress_port, ORIGIN_BELOW);
    assert_eq!((meta.next_hop, frame), ([a, b, c, d, high, low], &addressed(changed.build())[..]));
    drop(kernel);
    clean_up();
    // One at `nic` has changed it, and the one at `kernel` passes the packet.
    let kernel = translating("tt-trlevels", LEVEL_KERNEL);
    kernel.mark(&PacketMeta {
        entry: crate::nic_harness::ENTRY,
        arrival_port: PORT,
        l3_offset: 14,
        l4_offset: 34,
        egress_port: ORIGIN_BELOW,
        next_hop: [a, b, c, d, high, low],
        flags: META_TO_TC | 4 << 8 | 17 << 16,
        ..PacketMeta::default()
    });
    let changed = from(OUTSIDE, 64, 64);
    kernel.run(&addressed(changed.build()), Script::default());
    assert_eq!(kernel.far.receive(ours), routed(&addressed(from(OUTSIDE, 64, 64).build())));
}

/// Router's own address, and the replacement that a module chooses.
const OWN: ([u8; 4], u16) = ([10, 0, 0, 254], 40_000);
const CHOSEN: ([u8; 4], u16) = ([203, 0, 113, 9], 80);

/// Returns an IPv6 address of the tests with this ending.
fn v6(last: [u8; 4]) -> [u8; 16] {
    let mut address = Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0).octets();
    address[12..].copy_from_slice(&last);
    address
}

fn between(to: ([u8; 4], u16), is_v6: bool, hops: u8, length: usize) -> Vec<u8> {
    let builder = FrameBuilder::new().identification(77);
    let builder = match is_v6 {
        true => builder.ipv6(v6(INSIDE.0), v6(to.0), hops),
        false => builder.ipv4(INSIDE.0, to.0, hops),
    };
    let mut frame =
        addressed(builder.udp(INSIDE.1, to.1).payload(&MARK.repeat(length / 8)).build());
    if !is_v6 {
        // Not to be fragmented; its checksum follows.
        frame[20] = 0x40;
        frame[24..26].copy_from_slice(&[0, 0]);
        let sum = wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn the_kernels_errors_quote_the_destination_with_which_a_packet_came() {
    if !enter("the_kernels_errors_quote_the_destination_with_which_a_packet_came") {
        return;
    }
    let (destination, port) = CHOSEN;
    let script =
        Script { destination, destination_port_be: port.to_be_bytes(), ..Script::default() };
    for (node, level) in [("tt-trqnic", LEVEL_NIC), ("tt-trqtc", LEVEL_KERNEL)] {
        let kernel = translating(node, level);
        ip("address add 2001:db8::a00:fe/128 dev in nodad");
        ip("-6 route add 2001:db8::a00:1/128 dev in");
        ip("neigh add 2001:db8::a00:1 lladdr 02:00:00:00:bb:02 dev in nud permanent");
        ip("link set out mtu 1300");
        for (is_v6, hops, length) in
            [(false, 1, 64), (false, 64, 1400), (true, 1, 64), (true, 64, 1400)]
        {
            let frame = between(OWN, is_v6, hops, length);
            kernel.run(&frame, script);
            let error = kernel.near.receive(ours);
            let (header, quoted) = if is_v6 { (40, 14 + 40 + 8) } else { (20, 14 + 20 + 8) };
            // All that it quotes: addresses, ports and checksums.
            let quote = &error[quoted..];
            assert!(
                quote.len() > header + 8 && frame[14..].starts_with(quote),
                "{node} {error:x?}"
            );
            let whole = parse_frame(&error).unwrap();
            assert!(wire::checksum::verify_l4(&error, &whole), "{node}: of the message");
        }
        clean_up();
    }
}

#[test]
fn fragments_that_the_kernel_makes_all_have_the_modules_source() {
    if !enter("fragments_that_the_kernel_makes_all_have_the_modules_source") {
        return;
    }
    let kernel = translating("tt-trfrag", LEVEL_NIC);
    ip("link set out mtu 700");
    kernel.run(&addressed(from(INSIDE, 64, 1400).build()), to_outside());
    let expected = addressed(from(OUTSIDE, 64, 1400).build());
    let mut payload = Vec::new();
    for _ in 0..3 {
        let fragment = kernel.far.receive(ours);
        assert_eq!(fragment[26..30], OUTSIDE.0);
        assert_eq!(wire::checksum::checksum(&fragment[14..34]), 0);
        payload.extend_from_slice(&fragment[34..]);
    }
    assert_eq!(payload, expected[34..], "with the L4 checksum of the whole");
}

#[test]
fn a_cell_announces_the_source_with_which_a_packet_leaves() {
    if !enter("a_cell_announces_the_source_with_which_a_packet_leaves") {
        return;
    }
    let kernel = translating("tt-trcell", LEVEL_NIC);
    kernel.door.answer_at(ifindex("above")).unwrap();
    kernel.door.set_kernel_device(ifindex("in"));
    let map = kernel.door.answers_map().as_fd().try_clone_to_owned().unwrap();
    let mut answers = Answers::from_fd(&map).unwrap();
    let mut noted = |frame: &[u8]| {
        let mut source = End { port_be: OUTSIDE.1.to_be_bytes(), ..End::default() };
        match frame[14] >> 4 {
            6 => source.address = v6(OUTSIDE.0),
            _ => source.address[..4].copy_from_slice(&OUTSIDE.0),
        }
        let request = answers.note(None, Some(source), None);
        let packet = &frame[14..frame.len().min(14 + QUESTION_PACKET)];
        kernel.up.send(&[&QUESTION_HEAD, packet, bytemuck::bytes_of(&request)].concat());
        answers.answer().is_some()
    };
    for (came, leaves) in
        [(from(INSIDE, 64, 64), from(OUTSIDE, 64, 64)), (from_v6(INSIDE), from_v6(OUTSIDE))]
    {
        let (frame, leaves) = (addressed(came.build()), addressed(leaves.build()));
        kernel.run(&frame, Script::default());
        assert_eq!(kernel.far.receive(ours), routed(&frame), "nothing is noted");
        assert!(noted(&frame));
        kernel.run(&frame, Script::default());
        assert_eq!(kernel.far.receive(ours), routed(&leaves));
    }
    // It is answered, and must have its original source.
    assert!(noted(&addressed(from(INSIDE, 1, 64).build())));
    // By no port: to the router itself.
    let own = FrameBuilder::new().ipv4(INSIDE.0, [10, 0, 0, 254], 64).udp(1, 2);
    assert!(!noted(&addressed(own.build())));
}

/// Removes the devices of a test's kernel.
fn clean_up() {
    ip("link del in");
    ip("link del out");
}
