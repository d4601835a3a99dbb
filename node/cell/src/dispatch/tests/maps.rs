//! Unit tests of the front door's maps that the cell reads and writes, with memory of this process
//! in their place.

use super::*;
use crate::dispatch::tests::shared::{memory, read, write};
use bpf::{Answers, CreditTable, RuleFacts};
use bpf_maps::{
    ACTION_DOWN, ACTION_DROP, ACTION_OUT, ACTION_SERVICE, QueueCredits, ROOMS_MAX, RULES_MAX,
    RuleFact,
};
use std::mem::offset_of;
use std::os::unix::net::UnixDatagram;

const RULE: u16 = 7;

/// Creates a rig with two services, the second of which drops; `action` and `entry` belong to the
/// rule of the next stage.
fn staged(action: u8, entry: u16) -> Rig {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    rig.start(facts(NEXT), r#"(func (export "on_packet") (result i32) (i32.const 1))"#);
    let map = memory(RULES_MAX * size_of::<RuleFact>());
    let fact = RuleFact { session: 1, entry, action, zero: [0; 3] };
    write(&map, usize::from(RULE) * size_of::<RuleFact>(), bytemuck::bytes_of(&fact));
    rig.dispatcher.path_mut().set_rules(RuleFacts::from_fd(&map).unwrap());
    rig
}

/// Gives a packet with a rule of the next stage to a service.
fn give_staged(rig: &mut Rig, entry: EntryId) {
    let (packet, mut origin) = rig.packet(entry, Verdict::PASS.to_value());
    origin.meta.then = [RULE, RULE_NONE];
    rig.dispatcher.on_packet(packet, origin, &mut round(&mut rig.link));
}

#[test]
fn what_leaves_its_graph_meets_the_rule_of_the_next_stage() {
    for (action, entry, of) in [
        (ACTION_DROP, 0, |report: &ServiceReport| report.drop_rule),
        (ACTION_DOWN, 0, |report: &ServiceReport| report.drop_down),
        (ACTION_OUT, 9, |report: &ServiceReport| report.drop_no_port),
        (ACTION_SERVICE, NEXT.0, |report: &ServiceReport| report.passed_on),
    ] as [(u8, u16, fn(&ServiceReport) -> u64); 4]
    {
        let mut rig = staged(action, entry);
        give_staged(&mut rig, ENTRY);
        let report = rig.report(ENTRY);
        assert_eq!((of(&report), report.ended()), (1, 1), "{action}");
        let next = u64::from(action == ACTION_SERVICE);
        assert_eq!(rig.report(NEXT).packets, next, "{action}");
    }
}

#[test]
fn a_packet_without_its_service_meets_the_next_stage_too() {
    let mut rig = staged(ACTION_SERVICE, NEXT.0);
    give_staged(&mut rig, EntryId(40));
    assert_eq!((rig.cell().no_service, rig.cell().no_service_dropped), (1, 0));
    assert_eq!(rig.report(NEXT).packets, 1);
    let mut rig = staged(ACTION_DROP, 0);
    give_staged(&mut rig, EntryId(40));
    assert_eq!((rig.cell().no_service, rig.cell().no_service_dropped), (1, 1));
}

/// Reads a word of a session's queue credit.
fn word(map: &OwnedFd, session: usize, field: usize) -> u32 {
    read(map, session * size_of::<QueueCredits>() + field)
}

#[test]
fn queued_packets_are_counted_in_the_credit_table_of_the_front_door() {
    let mut rig = Rig::new();
    let map = memory(ROOMS_MAX * size_of::<QueueCredits>());
    let rooms = Box::leak(Box::new(CreditTable::from_fd(&map).unwrap()));
    rig.dispatcher.scheduler_mut().sessions_mut().share(pacer::now(), rooms);
    rig.add_session(2, r#"{"queue":"16KiB"}"#);
    assert_eq!(word(&map, 2, offset_of!(QueueCredits, most)), 16 << 10);
    rig.start(ServiceSpec { session: SessionId(2), ..facts(ENTRY) }, OBEYS);
    rig.run_turns();
    // The front door has taken credit for a frame of 4 KiB, and sends it up.
    let sent = 2 * size_of::<QueueCredits>() + offset_of!(QueueCredits, sent);
    write(&map, sent, &4096u64.to_le_bytes());
    let (packet, mut origin) = rig.packet(ENTRY, Verdict::Drop { reason: 1 }.to_value());
    origin.meta.flags |= META_COUNTED;
    rig.dispatcher.on_packet(packet, origin, &mut round(&mut rig.link));
    assert_eq!(rig.session(2).queue, Bytes(4096));
    rig.run_turns();
    assert_eq!(rig.session(2).queue, Bytes::ZERO);
    rig.dispatcher.flush();
    assert_eq!(word(&map, 2, offset_of!(QueueCredits, done)), 4096);
    // Packets that never arrive are found when their epoch is closed.
    write(&map, sent, &8192u64.to_le_bytes());
    assert_eq!(rig.session(2).queue, Bytes(4096));
    for second in 1..4 {
        rig.dispatcher.end_epoch(CoarseInstant::from_millis(second * 1_000));
    }
    assert_eq!(rig.session(2).queue, Bytes::ZERO);
}

#[test]
fn a_packet_that_is_routed_anew_is_left_to_the_kernel_with_its_own_source() {
    let mut rig = Rig::new();
    rig.start(facts(ENTRY), OBEYS);
    let (asked, device) = UnixDatagram::pair().unwrap();
    asked.set_nonblocking(true).unwrap();
    let answers = Answers::from_fd(&memory(4096)).unwrap();
    rig.dispatcher.path_mut().set_answers(answers, device.into());
    let (kernel, tun) = UnixDatagram::pair().unwrap();
    kernel.set_nonblocking(true).unwrap();
    rig.dispatcher.path_mut().set_kernel(Some(tun.into()));
    rig.give(ENTRY, Verdict::Pass { edge: 0, reroute: true });
    assert_eq!(rig.report(ENTRY).to_kernel, 1);
    let mut buffer = [0; 200];
    let length = kernel.recv(&mut buffer).unwrap();
    // The IP packet is unchanged: no device of the node receives it by a port.
    assert_eq!((buffer[0], &buffer[12..16], length), (0x45, &[10, 0, 0, 1][..], 20 + 8 + 4));
    assert!(asked.recv(&mut buffer).is_err(), "nothing is to be noted");
}
