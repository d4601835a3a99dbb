//! Tests of services at `nic`: the front door's action for each verdict of a module.

use bpf_maps::{META_EPOCH_SHIFT, META_ROUTED, NOT_A_VERDICT, NOT_RUN, PacketMeta, RULE_NONE};
use wire::{FrameBuilder, VlanTag, parse_frame, protocol, rewrite};

use crate::harness::{OUT_PORT, PORT, XDP_DROP, XDP_PASS, XDP_REDIRECT, XDP_TX, addressed};
use crate::namespace::{LOOPBACK, NEXT_HOP, OUT_MAC, OUT_MTU, add_way_out, enter, ifindex};
use crate::nic_harness::{ENTRY, INDEX, Nic, Script, WINDOW};

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

fn udp4() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2)
}

fn udp6() -> FrameBuilder {
    let source = [0x2001, 0x0db8, 0, 0, 0, 0, 0, 1];
    FrameBuilder::new().ipv6(source, [0x2001, 0x0db8, 1, 0, 0, 0, 0, 2], 64).udp(1, 2)
}

fn routed(frame: &[u8]) -> Vec<u8> {
    let mut expected = frame.to_vec();
    let parsed = parse_frame(frame).unwrap();
    rewrite::route(&mut expected, parsed.l3_offset, OUT_MAC, NEXT_HOP).unwrap();
    expected
}

#[test]
fn each_verdict_has_its_outcome_at_nic() {
    if !enter("each_verdict_has_its_outcome_at_nic") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let frame = addressed(udp4().payload(&[1; 100]).build());
    let mut swapped = frame.clone();
    rewrite::swap_macs(&mut swapped).unwrap();
    for (verdict, action, bytes) in [
        (PASS, XDP_REDIRECT, routed(&frame)),
        (REROUTE, XDP_PASS, frame.clone()),
        (drop_for(9), XDP_DROP, frame.clone()),
        (drop_for(9), XDP_DROP, frame.clone()),
        // The test's arrival port has no device to redirect to.
        (BOUNCE, XDP_TX, swapped),
        (redirect_to(OUT_PORT), XDP_REDIRECT, frame.clone()),
        (redirect_to(7), XDP_DROP, frame.clone()),
        (redirect_to(0xffff), XDP_DROP, frame.clone()),
    ] {
        let done = nic.verdict(&frame, verdict);
        assert_eq!((done.outcome, done.action, done.bytes), ("to_nic", action, bytes), "{verdict}");
    }
    let stats = nic.stats();
    assert_eq!((stats.packets, stats.bytes), (8, 8 * frame.len() as u64));
    assert_eq!((stats.forwarded, stats.to_kernel, stats.bounced), (1, 1, 1));
    assert_eq!((stats.redirected, stats.drop_no_port, stats.drop_module), (1, 2, 2));
    assert_eq!(nic.ended(), 8);
    let reasons = nic.door.map("tam_reasons");
    let key = bpf_maps::ReasonKey { entry: ENTRY, reason: 9 };
    let counts: Vec<u64> = reasons.lookup_percpu(&key).unwrap().unwrap();
    assert_eq!(counts.iter().sum::<u64>(), 2);
}

#[test]
fn a_module_finds_the_metadata_of_the_abi() {
    if !enter("a_module_finds_the_metadata_of_the_abi") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let long = addressed(udp4().payload(&[1; 100]).build());
    let short = addressed(udp6().payload(&[1]).build());
    let fragment = addressed(udp4().payload(&[1; 3000]).build_fragments(1400)[1].clone());
    for frame in [&long, &short, &fragment] {
        nic.verdict(frame, PASS);
        let (found, parsed) = (nic.hand_over(), parse_frame(frame).unwrap());
        let length = frame.len() as u32;
        assert_eq!((found.packet_length, nic.passage().length), (length, length));
        assert_eq!(found.window_length, length.min(WINDOW));
        assert_eq!(found.l3_offset, parsed.l3_offset);
        assert_eq!(found.l4_offset, parsed.l4_offset.unwrap_or(0xffff));
        assert_eq!((found.begins_with, found.ip_version), (1, parsed.ip_version));
        assert_eq!(found.protocol, parsed.protocol);
        assert_eq!(found.flags, if std::ptr::eq(frame, &raw const fragment) { 3 } else { 0 });
        assert_eq!((found.port, found.session, found.rule), (PORT, 4, 3));
        assert_eq!(found.flow_hash, wire::flow_hash(&parsed));
        assert_eq!((found.lane, found.mark, found.level), (0, [0; 2], 1));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        assert!((now.saturating_sub(1000)..=now).contains(&found.now_ms), "{}", found.now_ms);
    }
}

#[test]
fn what_only_the_kernel_can_answer_goes_to_it_after_pass() {
    if !enter("what_only_the_kernel_can_answer_goes_to_it_after_pass") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let expired =
        addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 1).udp(1, 2).build());
    let big = addressed(udp4().payload(&[0; 1600]).build());
    let unrouted =
        addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [198, 51, 100, 77], 9).udp(1, 2).build());
    for frame in [expired, big, unrouted] {
        let done = nic.verdict(&frame, PASS);
        assert_eq!((done.outcome, done.action, done.bytes), ("to_nic", XDP_PASS, frame));
    }
    // The module let the TTL expire, or made the packet longer than the egress device takes.
    let frame = addressed(udp4().payload(&[1; 100]).build());
    let done = nic.run(&frame, Script { ttl_and_1: 2, ..Script::default() });
    assert_eq!(done.action, XDP_PASS);
    let whole = addressed(udp4().payload(&vec![1; OUT_MTU as usize - 28]).build());
    assert_eq!(nic.verdict(&whole, PASS).action, XDP_REDIRECT);
    assert_eq!(nic.stats().to_kernel, 4);
    assert_eq!(nic.ended(), 5);
}

#[test]
fn a_packet_passed_at_nic_leaves_without_its_trailer() {
    if !enter("a_packet_passed_at_nic_leaves_without_its_trailer") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    for length in [42, 60, 61, 2500] {
        let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
        let mut frame = addressed(frame.build());
        frame.resize(length, b'T');
        let done = nic.verdict(&frame, PASS);
        assert_eq!((done.action, done.bytes), (XDP_REDIRECT, crate::forward::routed(&frame)));
    }
    assert_eq!((nic.stats().forwarded, nic.stats().to_kernel), (4, 0));
}

#[test]
fn a_packet_that_its_module_corrupted_is_dropped_when_it_is_to_be_forwarded() {
    if !enter("a_packet_that_its_module_corrupted_is_dropped_when_it_is_to_be_forwarded") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let frame = addressed(udp4().payload(&[1; 100]).build());
    let mut not_ip = Script { ethertype_be: [0x08, 0x06], ..Script::default() };
    assert_eq!(nic.run(&frame, not_ip).action, XDP_DROP);
    not_ip.verdict = REROUTE;
    assert_eq!(nic.run(&frame, not_ip).action, XDP_DROP);
    // An IP header that begins with a byte of the payload: no version.
    let shifted = Script { head: 28, ethertype_be: [0x08, 0x00], ..Script::default() };
    assert_eq!(nic.run(&frame, shifted).action, XDP_DROP);
    assert_eq!((nic.stats().drop_malformed, nic.ended()), (3, 3));
    // Out of a named port it goes unchanged.
    not_ip.verdict = redirect_to(OUT_PORT);
    assert_eq!(nic.run(&frame, not_ip).action, XDP_REDIRECT);
}

#[test]
fn a_packet_too_long_for_the_named_port_is_dropped_and_counted() {
    if !enter("a_packet_too_long_for_the_named_port_is_dropped_and_counted") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let longest = addressed(udp4().payload(&vec![0; OUT_MTU as usize - 28 + 4]).build());
    assert_eq!(nic.verdict(&longest, redirect_to(OUT_PORT)).action, XDP_REDIRECT);
    let longer = addressed(udp4().payload(&vec![0; OUT_MTU as usize - 28 + 5]).build());
    assert_eq!(nic.verdict(&longer, redirect_to(OUT_PORT)).action, XDP_DROP);
    assert_eq!((nic.stats().redirected, nic.stats().drop_too_long), (1, 1));
}

#[test]
fn tags_are_taken_off_and_put_on_after_a_module() {
    if !enter("tags_are_taken_off_and_put_on_after_a_module") {
        return;
    }
    let out = add_way_out();
    let far = ifindex("far");
    const IN: u16 = 9;
    const OUT: u16 = 0x130;
    let tag =
        VlanTag { protocol: protocol::ETHERTYPE_VLAN, id: IN, priority: 5, drop_eligible: true };
    for egress in [None, Some(OUT)] {
        let mut nic = Nic::load(Some(out));
        nic.door.add_vlan(LOOPBACK, u32::from(IN), far, IN);
        if let Some(id) = egress {
            nic.door.add_vlan(out, bpf_maps::VLAN_UP, out, id);
        }
        for builder in [udp4(), udp6(), udp4().vlan_tag(tag), udp6().vlan_tag(tag)] {
            let frame = addressed(builder.build());
            let mut expected = routed(&frame);
            let vlan = parse_frame(&frame).unwrap().vlan;
            let control = vlan.map_or(0, |_| 0xb000) | egress.unwrap_or(0);
            let [high, low] = control.to_be_bytes();
            let tagged = [0x81, 0, high, low];
            match (vlan, egress) {
                (Some(_), Some(_)) => expected[12..16].copy_from_slice(&tagged),
                (Some(_), None) => drop(expected.drain(12..16)),
                (None, Some(_)) => drop(expected.splice(12..12, tagged)),
                (None, None) => {}
            }
            let done = nic.verdict(&frame, PASS);
            assert_eq!((done.outcome, done.action), ("to_nic", XDP_REDIRECT));
            assert_eq!(done.bytes, expected, "{egress:?} {builder:?}");
        }
    }
}

#[test]
fn a_trapped_module_is_not_run_until_its_instance_is_replaced() {
    if !enter("a_trapped_module_is_not_run_until_its_instance_is_replaced") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let frame = addressed(udp4().build());
    let trap = Script { trapped: 7, ..Script::default() };
    let not_verdicts = [5, 0x0200, 0x4_0000, 0x1_0002, 0x1_0004, 0x4_0100, 0x101, u32::MAX];
    let not_verdicts = not_verdicts.map(|verdict| Script { verdict, ..Script::default() });
    let mut ran = 0;
    for script in std::iter::once(trap).chain(not_verdicts) {
        let cause = if script.trapped == 0 { NOT_A_VERDICT } else { 7 };
        assert_eq!(nic.run(&frame, script).action, XDP_DROP, "{script:?}");
        assert_eq!(nic.lane().trapped(), Some(cause));
        let plain = nic.verdict(&frame, drop_for(1));
        assert_eq!((plain.outcome, plain.bytes), ("to_nic", routed(&frame)));
        nic.lane().clear_trapped();
        assert_eq!(nic.verdict(&frame, drop_for(1)).action, XDP_DROP);
        ran += 1;
    }
    let stats = nic.stats();
    assert_eq!((stats.drop_trap, stats.plain, stats.drop_module), (ran, ran, ran));
    assert_eq!((stats.packets, nic.ended()), (3 * ran, 3 * ran));
}

#[test]
fn packets_of_a_module_not_run_at_nic_are_forwarded_as_without_a_rule() {
    if !enter("packets_of_a_module_not_run_at_nic_are_forwarded_as_without_a_rule") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let frame = addressed(udp4().build());
    let expired =
        addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 1).udp(1, 2).build());
    // An instance that is down reports that.
    let down = Script { trapped: NOT_RUN, verdict: drop_for(1), ..Script::default() };
    assert_eq!(nic.run(&frame, down).bytes, routed(&frame));
    assert_eq!(nic.run(&expired, down).action, XDP_PASS);
    assert_eq!(nic.lane().trapped(), None);
    // No program, at an index with a constant jump, at one without, and beyond the last.
    nic.set_module(INDEX, None);
    for index in [INDEX, 900, 5000] {
        nic.lane().set_program(index, WINDOW);
        let done = nic.verdict(&frame, drop_for(1));
        assert_eq!((done.action, done.bytes), (XDP_REDIRECT, routed(&frame)), "{index}");
    }
    assert_eq!((nic.stats().plain, nic.ended()), (5, 5));
}

#[test]
fn every_index_has_its_program() {
    if !enter("every_index_has_its_program") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let frame = addressed(udp4().build());
    nic.set_module(INDEX, None);
    for index in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1023] {
        nic.set_module(index, Some("scripted"));
        nic.lane().set_program(index, WINDOW);
        assert_eq!(nic.verdict(&frame, drop_for(1)).action, XDP_DROP, "{index}");
        nic.set_module(index, None);
        assert_eq!(nic.verdict(&frame, drop_for(1)).action, XDP_REDIRECT, "{index}");
    }
}

#[test]
fn a_packet_raised_at_nic_carries_its_metadata_to_the_socket() {
    if !enter("a_packet_raised_at_nic_carries_its_metadata_to_the_socket") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.add_socket();
    nic.change_record(|lane| lane.epoch = 200);
    let frame = addressed(udp4().build());
    let done = nic.verdict(&frame, RAISE);
    assert_eq!((done.outcome, done.action), ("to_nic", XDP_REDIRECT));
    let (meta, rest) = done.bytes.split_at(size_of::<PacketMeta>());
    let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
    assert_eq!(rest, frame);
    assert_eq!(
        (meta.rule, meta.then, meta.entry, meta.arrival_port),
        (3, [RULE_NONE; 2], ENTRY, PORT)
    );
    assert_eq!((meta.egress_port, meta.next_hop), (OUT_PORT, NEXT_HOP));
    assert_eq!((meta.l3_offset, meta.l4_offset), (14, 34));
    assert_eq!(meta.flags, META_ROUTED | 4 << 8 | 17 << 16 | 200 << META_EPOCH_SHIFT);
    assert_eq!(meta.epoch(), 200);
    assert_eq!((nic.stats().raised, nic.lane().sent_up()), (1, 1));
    // The next ones are sent up with the same epoch.
    let next = nic.verdict(&frame, PASS);
    assert_eq!((next.outcome, next.bytes), ("to_user", done.bytes));
}

#[test]
fn without_a_cell_a_raised_packet_is_forwarded_as_without_a_rule() {
    if !enter("without_a_cell_a_raised_packet_is_forwarded_as_without_a_rule") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let frame = addressed(udp4().build());
    let done = nic.verdict(&frame, RAISE);
    assert_eq!((done.outcome, done.action), ("to_nic", XDP_PASS));
    assert_eq!((nic.stats().plain, nic.lane().sent_up()), (1, 0));
    assert_eq!(nic.verdict(&frame, drop_for(1)).outcome, "to_nic", "nothing is up there");
}
