//! Tests of services at `kernel`: real frames whose module runs at tc.

use bpf::VlanDevice;
use bpf_maps::{
    LEVEL_KERNEL, META_EPOCH_SHIFT, META_ROUTED, META_TO_TC, NOT_RUN, PATH_TC, PacketMeta,
    RULE_NONE,
};
use wire::{FrameBuilder, VlanTag, parse_frame, protocol, rewrite};

use crate::harness::{OUT_PORT, PORT, addressed};
use crate::kernel_harness::{Kernel, MARK, ours};
use crate::namespace::{NEXT_HOP, OUT_MAC, OUT_MTU, enter};
use crate::nic_harness::{ENTRY, Script, WINDOW};

const PASS: u32 = 0;
const REROUTE: u32 = 0x100;
const BOUNCE: u32 = 2;
const RAISE: u32 = 4;

fn drop_for(reason: u16) -> u32 {
    1 | u32::from(reason) << 16
}

fn redirect_to(port: u16) -> u32 {
    3 | u32::from(port) << 16
}

fn payload(length: usize) -> Vec<u8> {
    let mut payload = vec![0; length];
    payload[..MARK.len()].copy_from_slice(&MARK);
    payload
}

fn udp4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).payload(&payload(100))
}

fn udp6() -> FrameBuilder {
    let source = [0x2001, 0x0db8, 0, 0, 0, 0, 0, 1];
    let destination = [0x2001, 0x0db8, 1, 0, 0, 0, 0, 2];
    FrameBuilder::new().ipv6(source, destination, 64).udp(1, 2).payload(&payload(100))
}

fn routed(frame: &[u8]) -> Vec<u8> {
    let mut expected = frame.to_vec();
    let parsed = parse_frame(frame).unwrap();
    rewrite::route(&mut expected, parsed.l3_offset, OUT_MAC, NEXT_HOP).unwrap();
    expected
}

#[test]
fn each_verdict_has_its_outcome_at_kernel() {
    if !enter("each_verdict_has_its_outcome_at_kernel") {
        return;
    }
    let kernel = Kernel::load("tt-tcverdict");
    for frame in [addressed(udp4().build()), addressed(udp6().build())] {
        let before = kernel.stats();
        let stats = kernel.verdict(&frame, PASS);
        assert_eq!(
            (stats.forwarded, stats.bytes - before.bytes),
            (before.forwarded + 1, frame.len() as u64)
        );
        assert_eq!(kernel.far.receive(ours), routed(&frame));
        kernel.verdict(&frame, REROUTE);
        assert_eq!(kernel.far.receive(ours), routed(&frame), "by the kernel");
        kernel.verdict(&frame, drop_for(9));
        assert!(kernel.far.is_silent(ours));
        kernel.verdict(&frame, BOUNCE);
        let mut swapped = frame.clone();
        rewrite::swap_macs(&mut swapped).unwrap();
        assert_eq!(kernel.near.receive(ours), swapped);
        kernel.verdict(&frame, redirect_to(OUT_PORT));
        assert_eq!(kernel.far.receive(ours), frame);
        kernel.verdict(&frame, redirect_to(7));
        kernel.verdict(&frame, redirect_to(0xffff));
    }
    let stats = kernel.stats();
    assert_eq!((stats.packets, stats.forwarded, stats.to_kernel), (14, 2, 2));
    assert_eq!((stats.bounced, stats.redirected), (2, 2));
    assert_eq!((stats.drop_no_port, stats.drop_module), (4, 2));
    assert_eq!(kernel.outcome("to_kernel_module"), 14);
    let record = kernel.record();
    assert_eq!((record.sent_tc, record.left_tc, record.path), (14, 14, PATH_TC));
    assert_eq!(kernel.lane().level(), LEVEL_KERNEL);
}

#[test]
fn a_packet_passed_at_kernel_leaves_without_its_trailer() {
    if !enter("a_packet_passed_at_kernel_leaves_without_its_trailer") {
        return;
    }
    let kernel = Kernel::load("tt-tctrail");
    for end in ["near", "in"] {
        crate::namespace::ip(&format!("link set {end} mtu 3000"));
    }
    for (before, length) in (0..).zip([142, 143, 2500]) {
        let mut frame = addressed(udp4().build());
        frame.resize(length, b'T');
        let stats = kernel.verdict(&frame, PASS);
        assert_eq!((stats.forwarded, stats.to_kernel), (before + 1, 0));
        assert_eq!(kernel.far.receive(ours), crate::forward::routed(&frame));
    }
    // The kernel checks the length of a packet that the module makes longer, whatever trailer it
    // had.
    let short = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
    let mut padded = addressed(short.payload(&MARK).build());
    padded.resize(60, 0);
    let stats = kernel.verdict(&padded, PASS);
    assert_eq!((stats.forwarded, stats.to_kernel), (4, 0));
    assert_eq!(kernel.far.receive(ours), crate::forward::routed(&padded));
}

#[test]
fn a_module_at_kernel_finds_the_metadata_of_the_abi() {
    if !enter("a_module_at_kernel_finds_the_metadata_of_the_abi") {
        return;
    }
    let kernel = Kernel::load("tt-tcmeta");
    for frame in [addressed(udp4().build()), addressed(udp6().build())] {
        kernel.verdict(&frame, drop_for(1));
        let (found, parsed) = (kernel.hand_over(), parse_frame(&frame).unwrap());
        assert_eq!(found.packet_length, frame.len() as u32);
        assert_eq!(found.window_length, WINDOW);
        assert_eq!(found.l3_offset, parsed.l3_offset);
        assert_eq!(Some(found.l4_offset), parsed.l4_offset);
        assert_eq!((found.begins_with, found.ip_version), (1, parsed.ip_version));
        assert_eq!((found.protocol, found.flags), (17, 0));
        assert_eq!((found.port, found.session, found.rule), (PORT, 4, 3));
        assert_eq!(found.flow_hash, wire::flow_hash(&parsed));
        assert_eq!((found.lane, found.mark, found.level), (0, [0; 2], 2));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        assert!((now.saturating_sub(1000)..=now).contains(&found.now_ms), "{}", found.now_ms);
    }
}

#[test]
fn the_kernel_answers_after_pass_at_tc() {
    if !enter("the_kernel_answers_after_pass_at_tc") {
        return;
    }
    let kernel = Kernel::load("tt-tckernel");
    let from = |builder: FrameBuilder| addressed(builder.udp(1, 2).payload(&payload(64)).build());
    let expired = from(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 1));
    kernel.verdict(&expired, PASS);
    let answer = kernel.far.receive(ours);
    assert_eq!((answer[23], answer[34]), (1, 11), "ICMP: time exceeded");
    // The module lets the TTL expire, and leaves a checksum that the kernel rejects.
    let frame = from(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64));
    kernel.run(&frame, Script { ttl_and_1: 2, ..Script::default() });
    // Nobody has that address.
    let unrouted = from(FrameBuilder::new().ipv4([10, 0, 0, 1], [198, 51, 100, 77], 9));
    kernel.verdict(&unrouted, PASS);
    assert!(kernel.far.is_silent(ours));
    assert_eq!(kernel.stats().to_kernel, 3);
    let whole = addressed(udp4().payload(&payload(OUT_MTU as usize - 28)).build());
    assert_eq!(kernel.verdict(&whole, PASS).forwarded, 1);
    assert_eq!(kernel.far.receive(ours), routed(&whole));
}

#[test]
fn a_packet_lengthened_at_kernel_leaves_with_its_new_headers() {
    if !enter("a_packet_lengthened_at_kernel_leaves_with_its_new_headers") {
        return;
    }
    const TAG: u32 = 1;
    const TUNNEL: u32 = 2;
    const TAIL: u32 = 3;
    let kernel = Kernel::load("tt-tcgrow");
    let frame = addressed(udp4().build());
    let grown = |growth| Script { growth, ..Script::default() };
    // The route needs no tag: it is removed again.
    assert_eq!(kernel.run(&frame, grown(TAG)).forwarded, 1);
    assert_eq!(kernel.far.receive(ours), routed(&frame));
    // The kernel routes by the outer header, as if the packet had come with it.
    assert_eq!(kernel.run(&frame, grown(TUNNEL)).to_kernel, 1);
    let outer = kernel.far.receive(ours);
    assert_eq!((outer.len(), &outer[..6]), (frame.len() + 20, &NEXT_HOP[..]));
    assert_eq!((outer[22], outer[23], &outer[30..34]), (29, 4, &[203, 0, 113, 77][..]));
    assert_eq!(outer[34..], frame[14..], "the inner packet is untouched");
    // The trailer is not part of the packet: it is cut off.
    assert_eq!(kernel.run(&frame, grown(TAIL)).forwarded, 2);
    assert_eq!(kernel.far.receive(ours), routed(&frame));
    // Out of a named port it goes unchanged.
    let script = Script { verdict: redirect_to(OUT_PORT), growth: TAG, ..Script::default() };
    kernel.run(&frame, script);
    let tagged = kernel.far.receive(ours);
    assert_eq!(tagged[12..16], [0x81, 0, 0, 7]);
    assert_eq!((&tagged[..12], &tagged[16..]), (&frame[..12], &frame[12..]));
}

#[test]
fn a_packet_corrupted_at_kernel_is_dropped_when_it_is_to_be_forwarded() {
    if !enter("a_packet_corrupted_at_kernel_is_dropped_when_it_is_to_be_forwarded") {
        return;
    }
    let kernel = Kernel::load("tt-tcbroken");
    let frame = addressed(udp4().build());
    let mut not_ip = Script { ethertype_be: [0x08, 0x06], ..Script::default() };
    kernel.run(&frame, not_ip);
    not_ip.verdict = REROUTE;
    assert_eq!(kernel.run(&frame, not_ip).drop_malformed, 2);
    not_ip.verdict = redirect_to(OUT_PORT);
    assert_eq!(kernel.run(&frame, not_ip).redirected, 1);
    assert_eq!(kernel.far.receive(ours)[12..14], [0x08, 0x06]);
}

#[test]
fn the_egress_tag_is_put_on_at_kernel() {
    if !enter("the_egress_tag_is_put_on_at_kernel") {
        return;
    }
    const ID: u16 = 0x130;
    let mut kernel = Kernel::load("tt-tcvlan");
    let out = crate::namespace::ifindex("out");
    let vlan = VlanDevice { port: out, vlan: ID, device: out, ..VlanDevice::default() };
    kernel.door.set_vlans(&[vlan]).unwrap();
    for frame in [addressed(udp4().build()), addressed(udp6().build())] {
        kernel.verdict(&frame, PASS);
        let mut expected = routed(&frame);
        drop(expected.splice(12..12, [0x81, 0, 0x01, 0x30]));
        assert_eq!(kernel.far.receive(ours), expected);
        // Instead of one that the module has added.
        kernel.run(&frame, Script { growth: 1, ..Script::default() });
        assert_eq!(kernel.far.receive(ours), expected);
    }
    assert_eq!(kernel.stats().forwarded, 4);
}

#[test]
fn a_packet_raised_at_tc_carries_its_metadata_to_the_tap() {
    if !enter("a_packet_raised_at_tc_carries_its_metadata_to_the_tap") {
        return;
    }
    let kernel = Kernel::load("tt-tcraise");
    kernel.add_tap();
    kernel.change_record(|lane| lane.epoch = 200);
    let frame = addressed(udp4().build());
    let stats = kernel.verdict(&frame, RAISE);
    assert_eq!((stats.raised, stats.raised_bytes), (1, frame.len() as u64));
    let (meta, rest) = raised(&kernel);
    assert_eq!(rest, frame);
    assert_eq!(
        (meta.rule, meta.then, meta.entry, meta.arrival_port),
        (3, [RULE_NONE; 2], ENTRY, PORT)
    );
    assert_eq!((meta.egress_port, meta.next_hop), (OUT_PORT, NEXT_HOP));
    assert_eq!((meta.l3_offset, meta.l4_offset), (14, 34));
    assert_eq!(meta.flags, META_ROUTED | 4 << 8 | 17 << 16 | 200 << META_EPOCH_SHIFT);
    assert_eq!(kernel.lane().sent_up(), 1);
    // The next one follows it, and is not run until the previous one is gone.
    kernel.verdict(&frame, drop_for(1));
    assert_eq!(raised(&kernel), (meta, frame.clone()));
    assert_eq!((kernel.stats().raised, kernel.stats().packets), (2, 2));
    kernel.change_record(|lane| lane.left = lane.sent_up);
    assert_eq!(kernel.verdict(&frame, drop_for(1)).drop_module, 1);
}

/// Reads a frame of the TAP device, split into metadata and frame.
fn raised(kernel: &Kernel) -> (PacketMeta, Vec<u8>) {
    let bytes = kernel.up.receive(ours);
    let (meta, frame) = bytes.split_at(size_of::<PacketMeta>());
    (bytemuck::pod_read_unaligned(meta), frame.to_vec())
}

#[test]
fn a_tagged_frame_is_raised_at_tc_with_its_tags() {
    if !enter("a_tagged_frame_is_raised_at_tc_with_its_tags") {
        return;
    }
    let kernel = Kernel::load("tt-tctags");
    kernel.add_tap();
    let plain = addressed(udp4().build());
    let tag =
        |id| VlanTag { protocol: protocol::ETHERTYPE_VLAN, id, priority: 5, drop_eligible: true };
    let mut once = plain.clone();
    drop(once.splice(12..12, [0x81, 0, 0xb0, 9]));
    let mut twice = once.clone();
    drop(twice.splice(12..12, [0x88, 0xa8, 0x20, 8]));
    assert_eq!(addressed(udp4().vlan_tag(tag(9)).build()), once);
    // The lane is at kernel: later packets take the same path.
    kernel.verdict(&plain, drop_for(1));
    for frame in [once, twice] {
        kernel.verdict(&frame, drop_for(1));
        let (meta, rest) = raised(&kernel);
        assert_eq!(rest, frame);
        assert_eq!(usize::from(meta.l3_offset), frame.len() - plain.len() + 14);
        assert_eq!(meta.epoch(), 0);
        assert_eq!(meta.flags & 0xff & !META_ROUTED, 0, "nothing of the way to tc is left");
        kernel.change_record(|lane| lane.left = lane.sent_up);
    }
    assert_eq!(kernel.outcome("to_kernel_module"), 3);
    assert_eq!((kernel.stats().raised, kernel.stats().drop_module), (2, 1));
}

#[test]
fn without_a_tap_a_raised_packet_is_forwarded_as_without_a_rule() {
    if !enter("without_a_tap_a_raised_packet_is_forwarded_as_without_a_rule") {
        return;
    }
    let kernel = Kernel::load("tt-tcnotap");
    let frame = addressed(udp4().build());
    assert_eq!(kernel.verdict(&frame, RAISE).plain, 1);
    assert_eq!(kernel.far.receive(ours), routed(&frame));
    assert_eq!(kernel.lane().sent_up(), 0);
    assert_eq!(kernel.verdict(&frame, drop_for(1)).drop_module, 1, "nothing is up there");
}

#[test]
fn packets_of_a_module_not_run_at_kernel_are_forwarded_as_without_a_rule() {
    if !enter("packets_of_a_module_not_run_at_kernel_are_forwarded_as_without_a_rule") {
        return;
    }
    let kernel = Kernel::load("tt-tcplain");
    let frame = addressed(udp4().build());
    let arrives = || assert_eq!(kernel.far.receive(ours), routed(&frame));
    let down = Script { trapped: NOT_RUN, verdict: drop_for(1), ..Script::default() };
    assert_eq!(kernel.run(&frame, down).plain, 1);
    arrives();
    // The module trapped: this packet is dropped, and it gets no later ones.
    kernel.run(&frame, Script { trapped: 7, ..Script::default() });
    assert_eq!(kernel.lane().trapped(), Some(7));
    assert_eq!(kernel.verdict(&frame, drop_for(1)).plain, 2);
    arrives();
    kernel.lane().clear_trapped();
    // No program: at an index with a constant jump, and beyond the last.
    kernel.door.services().clear_module(bpf::Below::Kernel, crate::nic_harness::INDEX).unwrap();
    assert_eq!(kernel.verdict(&frame, drop_for(1)).plain, 3);
    arrives();
    kernel.lane().set_program(5000, WINDOW);
    let stats = kernel.verdict(&frame, drop_for(1));
    arrives();
    assert_eq!((stats.plain, stats.drop_trap, stats.packets), (4, 1, 5));
}

#[test]
fn a_packet_that_finds_the_lane_taken_at_tc_is_dropped_and_counted() {
    if !enter("a_packet_that_finds_the_lane_taken_at_tc_is_dropped_and_counted") {
        return;
    }
    let kernel = Kernel::load("tt-tclane");
    let frame = addressed(udp4().build());
    kernel.mark(&marked(0));
    kernel.change_record(|lane| (lane.busy, lane.sent_tc) = (1000, 1));
    kernel.near.send(&frame);
    let dropped = || (kernel.stats().drop_lane == 1).then(|| kernel.stats());
    let stats = testbase::wait_for(std::time::Duration::from_secs(5), dropped).expect("a drop");
    assert_eq!((stats.packets, stats.bytes), (1, frame.len() as u64));
    assert_eq!((kernel.record().busy, kernel.record().left_tc), (1000, 0), "untouched");
    kernel.change_record(|lane| lane.busy = 0);
    assert_eq!(kernel.verdict(&frame, drop_for(1)).drop_module, 1);
    assert_eq!(kernel.record().left_tc, 1);
}

/// Returns the metadata of a packet of the lane on its way to tc, as XDP writes it.
fn marked(epoch: u32) -> PacketMeta {
    let flags = META_TO_TC | 4 << 8 | 17 << 16 | epoch << META_EPOCH_SHIFT;
    PacketMeta {
        entry: ENTRY,
        arrival_port: PORT,
        l3_offset: 14,
        l4_offset: 34,
        flags,
        ..PacketMeta::default()
    }
}

#[test]
fn packets_of_the_epoch_before_are_counted_as_such_at_tc() {
    if !enter("packets_of_the_epoch_before_are_counted_as_such_at_tc") {
        return;
    }
    let kernel = Kernel::load("tt-tcepoch");
    let frame = addressed(udp4().build());
    kernel.change_record(|lane| {
        (lane.sent_tc, lane.left_tc, lane.tc_awaited, lane.tc_epoch) = (9, 8, 1, 5);
    });
    let counts = || (kernel.record().left_tc, kernel.record().tc_awaited);
    for (epoch, expected) in [(4, (8, 0)), (4, (8, 0)), (5, (9, 0)), (5, (9, 0))] {
        kernel.mark(&marked(epoch));
        kernel.verdict(&frame, drop_for(1));
        assert_eq!(counts(), expected, "a packet of epoch {epoch}");
    }
    // A packet of no lane is ignored: the kernel has forwarded those that the module would drop.
    kernel.mark(&PacketMeta { flags: 0, ..marked(5) });
    kernel.near.send(&frame);
    assert_ne!(kernel.far.receive(ours), frame, "the kernel has forwarded it");
}
