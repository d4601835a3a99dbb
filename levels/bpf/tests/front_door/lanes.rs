//! Tests of lanes: when a service goes below and up, and that one CPU at a time is in it.

use bpf::{Departures, XdpContext};
use bpf_maps::{
    LEVEL_KERNEL, LEVEL_NIC, LEVEL_USER, META_EPOCH_SHIFT, META_TO_TC, META_UP, PATH_DIRECT,
    PATH_TC, PacketMeta, ReasonKey,
};
use wire::FrameBuilder;

use crate::harness::{XDP_DROP, XDP_PASS, XDP_REDIRECT, addressed};
use crate::namespace::{LOOPBACK, add_way_out, enter};
use crate::nic_harness::{ENTRY, INDEX, Nic, WINDOW};

const DROP: u32 = 1;
const RAISE: u32 = 4;

fn frame() -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).build())
}

/// Makes a service at user level with a socket.
fn at_user() -> Nic {
    let mut nic = Nic::load(Some(add_way_out()));
    nic.add_socket();
    nic.lane().set_target(LEVEL_USER);
    nic
}

#[test]
fn a_lane_moves_to_nic_at_the_first_packet_after_all_earlier_ones_left_the_cell() {
    if !enter("a_lane_moves_to_nic_at_the_first_packet_after_all_earlier_ones_left_the_cell") {
        return;
    }
    let mut nic = at_user();
    let mut departures = Departures::new(&nic.lane());
    departures.settle(&nic.lane());
    let epoch = nic.record().epoch as u8;
    for sent in 1..=3 {
        assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
        assert_eq!(nic.lane().sent_up(), sent);
    }
    nic.lane().set_target(LEVEL_NIC);
    for (left, outcome) in [(0, "to_user"), (3, "to_user"), (4, "to_user"), (6, "to_nic")] {
        while nic.lane().left() < left {
            departures.leave(epoch);
            departures.depart(&nic.lane());
        }
        assert_eq!(nic.verdict(&frame(), DROP).outcome, outcome, "{left} are gone");
    }
    assert_eq!((nic.lane().level(), nic.lane().sent_up()), (LEVEL_NIC, 6));
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic");
}

#[test]
fn a_lane_moves_to_user_level_with_the_next_packet() {
    if !enter("a_lane_moves_to_user_level_with_the_next_packet") {
        return;
    }
    let mut nic = at_user();
    nic.lane().set_target(LEVEL_NIC);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic");
    nic.lane().set_target(LEVEL_USER);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
    assert_eq!((nic.lane().level(), nic.lane().sent_up()), (LEVEL_USER, 1));
}

#[test]
fn packets_follow_a_raised_one_until_it_is_gone() {
    if !enter("packets_follow_a_raised_one_until_it_is_gone") {
        return;
    }
    let mut nic = at_user();
    let mut departures = Departures::new(&nic.lane());
    departures.settle(&nic.lane());
    let epoch = nic.record().epoch as u8;
    nic.lane().set_target(LEVEL_NIC);
    for round in 0..5 {
        assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic", "round {round}");
        assert_eq!(nic.verdict(&frame(), RAISE).action, XDP_REDIRECT);
        departures.leave(epoch);
        departures.depart(&nic.lane());
        assert_eq!(nic.verdict(&frame(), RAISE).outcome, "to_nic", "the one before is gone");
        assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
        departures.leave(epoch);
        departures.depart(&nic.lane());
        assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
        departures.leave(epoch);
        departures.depart(&nic.lane());
        departures.leave(epoch);
        departures.depart(&nic.lane());
    }
    assert_eq!((nic.stats().raised, nic.stats().drop_module), (10, 5));
}

#[test]
fn lost_packets_hold_a_lane_up_until_their_epoch_is_settled() {
    if !enter("lost_packets_hold_a_lane_up_until_their_epoch_is_settled") {
        return;
    }
    let mut nic = at_user();
    let mut departures = Departures::new(&nic.lane());
    departures.settle(&nic.lane());
    for _ in 0..4 {
        nic.verdict(&frame(), DROP);
    }
    nic.lane().set_target(LEVEL_NIC);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
    departures.begin(&nic.lane());
    let epoch = nic.record().epoch as u8;
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
    bpf::front_door::wait_for_packets_in_flight().unwrap();
    departures.settle(&nic.lane());
    assert_eq!((nic.lane().left(), nic.lane().sent_up()), (5, 6));
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user", "two are on their way");
    departures.leave(epoch);
    departures.depart(&nic.lane());
    departures.leave(epoch);
    departures.depart(&nic.lane());
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic");
}

#[test]
fn without_a_socket_nothing_is_counted_as_sent() {
    if !enter("without_a_socket_nothing_is_counted_as_sent") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.lane().set_target(LEVEL_USER);
    let done = nic.verdict(&frame(), DROP);
    assert_eq!((done.outcome, done.action), ("kernel_no_socket", XDP_PASS));
    assert_eq!(nic.lane().sent_up(), 0);
}

#[test]
fn an_unfinished_checksum_is_for_the_cell() {
    if !enter("an_unfinished_checksum_is_for_the_cell") {
        return;
    }
    let mut nic = at_user();
    nic.lane().set_target(LEVEL_NIC);
    let mut partial = frame();
    let words = [10 << 8, 1, 203 << 8, 113 << 8 | 9, 17, partial.len() as u32 - 34];
    let sum: u32 = words.iter().sum();
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    partial[40..42].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(nic.verdict(&partial, DROP).outcome, "to_user");
    assert_eq!((nic.lane().level(), nic.lane().sent_up()), (LEVEL_USER, 1));
}

#[test]
fn a_packet_that_finds_the_lane_taken_for_long_is_dropped_and_counted() {
    if !enter("a_packet_that_finds_the_lane_taken_for_long_is_dropped_and_counted") {
        return;
    }
    let mut nic = at_user();
    let another = 1000;
    nic.change_record(|lane| lane.busy = another);
    for target in [LEVEL_NIC, LEVEL_KERNEL] {
        nic.lane().set_target(target);
        let done = nic.door.run(&frame());
        assert_eq!((done.outcome, done.action), ("drop_lane", XDP_DROP));
    }
    let untouched = (nic.record().busy, nic.lane().sent_up(), nic.stats().packets);
    assert_eq!(untouched, (another, 0, 0));
}

#[test]
fn a_packet_of_a_lane_settled_at_user_level_does_not_wait_for_another_cpu() {
    if !enter("a_packet_of_a_lane_settled_at_user_level_does_not_wait_for_another_cpu") {
        return;
    }
    let mut nic = at_user();
    let another = 1000;
    nic.change_record(|lane| lane.busy = another);
    nic.lane().set_target(LEVEL_USER);
    for sent in 1..=3 {
        let done = nic.door.run(&frame());
        assert_eq!((done.outcome, done.action), ("to_user", XDP_REDIRECT));
        assert_eq!((nic.record().busy, nic.lane().sent_up()), (another, sent));
    }
    // It does not rest while an epoch begins, and while it moves.
    nic.change_record(|lane| lane.epoch = lane.epoch_seen + 1);
    assert_eq!(nic.door.run(&frame()).outcome, "drop_lane");
    nic.change_record(|lane| (lane.epoch, lane.path) = (lane.epoch_seen, PATH_TC));
    assert_eq!(nic.door.run(&frame()).outcome, "drop_lane");
}

#[test]
fn a_cpu_that_did_not_leave_the_lane_enters_it_again() {
    if !enter("a_cpu_that_did_not_leave_the_lane_enters_it_again") {
        return;
    }
    let mut nic = at_user();
    nic.lane().set_target(LEVEL_NIC);
    let here = rustix::thread::sched_getcpu() as u32;
    nic.change_record(|lane| lane.busy = here + 1);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic");
    assert!(nic.lane().is_free());
}

/// Number of frames that each CPU sends.
const RUNS: u32 = 100_000;

/// Sends frames on all CPUs at once.
fn on_every_cpu(nic: &Nic, frame_of: impl Fn(usize) -> Vec<u8>) {
    let program = nic.program();
    std::thread::scope(|scope| {
        for cpu in 0..bpf::possible_cpus() {
            let frame = frame_of(cpu);
            scope.spawn(move || {
                let mut here = rustix::thread::CpuSet::new();
                here.set(cpu);
                rustix::thread::sched_setaffinity(None, &here).unwrap();
                let context = XdpContext {
                    data_end: frame.len() as u32,
                    ingress_ifindex: LOOPBACK,
                    ..Default::default()
                };
                let context = bytemuck::bytes_of(&context);
                program.test_run(&frame, Some(context), RUNS).unwrap();
            });
        }
    });
}

#[test]
fn a_packet_gets_its_own_verdict_when_cpus_meet_in_a_lane() {
    if !enter("a_packet_gets_its_own_verdict_when_cpus_meet_in_a_lane") {
        return;
    }
    const TTL: u8 = 10;
    let nic = Nic::load(Some(add_way_out()));
    nic.set_module(INDEX, Some("telling"));
    nic.lane().set_program(INDEX, WINDOW);
    on_every_cpu(&nic, |cpu| {
        let ip = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], TTL + cpu as u8);
        addressed(ip.udp(1, 2).build())
    });
    let cpus = bpf::possible_cpus();
    let (stats, lost) = (nic.stats(), nic.door.outcome_everywhere("drop_lane"));
    assert_eq!(stats.packets + lost, u64::from(RUNS) * cpus as u64);
    assert_eq!((stats.drop_module, stats.drop_trap), (stats.packets, 0));
    let reasons = nic.door.map("tam_reasons");
    for cpu in 0..cpus {
        let key = ReasonKey { entry: ENTRY, reason: u16::from(TTL) + cpu as u16 };
        let counts: Vec<u64> = reasons.lookup_percpu(&key).unwrap().unwrap();
        let elsewhere = counts.iter().enumerate().filter(|&(at, _)| at != cpu);
        assert_eq!(elsewhere.map(|(_, count)| count).sum::<u64>(), 0, "of CPU {cpu}: {counts:?}");
        assert!(counts[cpu] <= RUNS.into());
    }
}

#[test]
fn one_cpu_at_a_time_is_in_the_memory() {
    if !enter("one_cpu_at_a_time_is_in_the_memory") {
        return;
    }
    let nic = Nic::load(Some(add_way_out()));
    nic.set_module(INDEX, Some("counting"));
    nic.lane().set_program(INDEX, WINDOW);
    on_every_cpu(&nic, |_| frame());
    let cpus = bpf::possible_cpus();
    let (stats, lost) = (nic.stats(), nic.door.outcome_everywhere("drop_lane"));
    assert_eq!(stats.packets + lost, u64::from(RUNS) * cpus as u64);
    assert_eq!(nic.counted(), stats.packets, "no count was overwritten");
    assert_eq!(nic.ended(), stats.packets);
    if cpus > 1 {
        assert!(stats.handed_over > 0, "the CPUs met in the lane");
    }
}

/// Returns the metadata in front of a frame on its way to tc.
fn to_tc(nic: &mut Nic, frame: &[u8]) -> PacketMeta {
    let done = nic.verdict(frame, DROP);
    assert_eq!((done.outcome, done.action), ("to_kernel_module", XDP_PASS));
    let (meta, rest) = done.bytes.split_at(size_of::<PacketMeta>());
    assert_eq!(rest, frame);
    let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
    assert_eq!(meta.flags & META_TO_TC, META_TO_TC);
    meta
}

/// Lets all packets under way to tc arrive there, and run.
fn all_arrive(nic: &Nic) {
    nic.change_record(|lane| {
        (lane.left_tc, lane.tc_awaited, lane.level) = (lane.sent_tc, 0, LEVEL_KERNEL);
    });
}

#[test]
fn a_lane_leaves_the_path_to_tc_when_no_packet_is_under_way_there() {
    for (target, outcome) in [(LEVEL_NIC, "to_nic"), (LEVEL_USER, "to_user")] {
        if !enter("a_lane_leaves_the_path_to_tc_when_no_packet_is_under_way_there") {
            return;
        }
        let mut nic = at_user();
        nic.lane().set_target(LEVEL_KERNEL);
        to_tc(&mut nic, &frame());
        to_tc(&mut nic, &frame());
        assert_eq!((nic.record().sent_tc, nic.record().path), (2, PATH_TC));
        all_arrive(&nic);
        to_tc(&mut nic, &frame());
        nic.lane().set_target(target);
        assert!(!nic.lane().settled(LEVEL_NIC));
        for _ in 0..3 {
            to_tc(&mut nic, &frame());
        }
        all_arrive(&nic);
        // One of them went up.
        nic.change_record(|lane| lane.sent_up = 1);
        to_tc(&mut nic, &frame());
        nic.change_record(|lane| lane.left = 1);
        to_tc(&mut nic, &frame());
        all_arrive(&nic);
        assert!(nic.lane().settled(target));
        assert_eq!(nic.verdict(&frame(), DROP).outcome, outcome);
        assert_eq!((nic.record().path, nic.lane().level()), (PATH_DIRECT, target));
    }
}

#[test]
fn a_lane_at_user_goes_to_tc_when_all_that_was_sent_up_is_gone() {
    if !enter("a_lane_at_user_goes_to_tc_when_all_that_was_sent_up_is_gone") {
        return;
    }
    let mut nic = at_user();
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
    nic.lane().set_target(LEVEL_KERNEL);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
    assert!(!nic.lane().settled(LEVEL_KERNEL));
    nic.change_record(|lane| lane.left = 2);
    assert!(nic.lane().settled(LEVEL_KERNEL));
    to_tc(&mut nic, &frame());
}

#[test]
fn a_lane_moves_from_nic_to_kernel_through_the_cell() {
    if !enter("a_lane_moves_from_nic_to_kernel_through_the_cell") {
        return;
    }
    let mut nic = at_user();
    nic.lane().set_target(LEVEL_NIC);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic");
    nic.lane().set_target(LEVEL_KERNEL);
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user");
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_user", "it is still there");
    nic.change_record(|lane| lane.left = 2);
    to_tc(&mut nic, &frame());
}

#[test]
fn frames_whose_vlan_tag_the_stack_removes_go_to_the_cell() {
    if !enter("frames_whose_vlan_tag_the_stack_removes_go_to_the_cell") {
        return;
    }
    let mut nic = at_user();
    let mut tagged = frame();
    drop(tagged.splice(12..12, [0x81, 0, 0, 9]));
    nic.lane().set_target(LEVEL_KERNEL);
    assert_eq!(nic.verdict(&tagged, DROP).outcome, "to_user");
    nic.change_record(|lane| lane.left = 1);
    assert_eq!(to_tc(&mut nic, &frame()).flags & META_UP, 0);
    // Now it may not overtake: it goes up from tc.
    assert_eq!(to_tc(&mut nic, &tagged).flags & META_UP, META_UP);
}

#[test]
fn packets_lost_before_tc_do_not_hold_the_lane_for_ever() {
    if !enter("packets_lost_before_tc_do_not_hold_the_lane_for_ever") {
        return;
    }
    let mut nic = at_user();
    nic.lane().set_target(LEVEL_KERNEL);
    for _ in 0..3 {
        assert_eq!(to_tc(&mut nic, &frame()).flags >> META_EPOCH_SHIFT, 0);
    }
    // One of them has arrived when the lane is to leave.
    nic.change_record(|lane| lane.left_tc = 1);
    nic.lane().set_target(LEVEL_NIC);
    assert_eq!(to_tc(&mut nic, &frame()).flags >> META_EPOCH_SHIFT, 1, "another epoch begins");
    let record = nic.record();
    assert_eq!((record.sent_tc, record.left_tc, record.tc_awaited), (4, 3, 2));
    // All of this epoch have arrived, but two of the one before have not.
    nic.change_record(|lane| lane.left_tc = 4);
    assert!(!nic.lane().settled(LEVEL_NIC));
    assert_eq!(to_tc(&mut nic, &frame()).flags >> META_EPOCH_SHIFT, 1, "not yet");
    nic.change_record(|lane| (lane.left_tc, lane.tc_began) = (5, lane.tc_began - 1001));
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic", "they are lost");
    assert!(nic.lane().settled(LEVEL_NIC));
}

#[test]
fn a_packet_lost_before_tc_is_given_up_while_the_lane_stays_at_kernel() {
    if !enter("a_packet_lost_before_tc_is_given_up_while_the_lane_stays_at_kernel") {
        return;
    }
    let mut nic = at_user();
    nic.lane().set_target(LEVEL_KERNEL);
    to_tc(&mut nic, &frame());
    assert_eq!((nic.record().sent_tc, nic.record().left_tc), (1, 0), "it never comes");
    // Each time as if the wait had exceeded its limit.
    let later = |nic: &Nic| {
        nic.change_record(|lane| {
            // The packet before this one has arrived.
            lane.left_tc += u64::from(lane.sent_tc > 1);
            lane.tc_drained -= 1001;
            lane.tc_began = lane.tc_began.saturating_sub(1001);
        });
    };
    for awaited in [1, 0] {
        later(&nic);
        to_tc(&mut nic, &frame());
        assert_eq!(nic.record().tc_awaited, awaited);
    }
    later(&nic);
    nic.lane().set_target(LEVEL_NIC);
    assert!(nic.lane().settled(LEVEL_NIC), "{:?}", nic.record());
    assert_eq!(nic.verdict(&frame(), DROP).outcome, "to_nic");
}
