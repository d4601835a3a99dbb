//! Unit tests of packets in graphs of services: a service that traps, hangs or is removed loses
//! only the packets that it has in hand.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

const LAST: EntryId = EntryId(7);
/// Module that passes everything on.
pub(super) const PASSES: &str = r#"(func (export "on_packet") (result i32) (i32.const 0))"#;
/// Module that drops everything, with reason 0.
const DROPS: &str = r#"(func (export "on_packet") (result i32) (i32.const 1))"#;
/// Module that hangs on [`HANG`], traps on [`FALL`], and passes everything else on.
pub(super) const FRAIL: &str = r#"(func (export "on_packet") (result i32)
    (if (i32.eq (i32.load (i32.const 0x812c)) (i32.const 1)) (then (loop (br 0))))
    (if (i32.eq (i32.load (i32.const 0x812c)) (i32.const 2)) (then unreachable))
    (i32.const 0))"#;
pub(super) const HANG: u32 = 1;
const FALL: u32 = 2;

/// Interrupts running code repeatedly, as the timer of a process does, until it is dropped.
pub(super) struct Interrupts {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Interrupts {
    pub(super) fn of(engine: &Engine) -> Self {
        let (engine, is_over) = (engine.clone(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&is_over);
        let interrupt = move || {
            while !seen.load(Ordering::Acquire) {
                engine.raise_epoch();
                thread::yield_now();
            }
        };
        Self { is_over, thread: Some(thread::spawn(interrupt)) }
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Creates a graph of three services: the first passes on, the second is frail, the last drops.
fn chain(turns: bool) -> Rig {
    let mut rig = Rig::new();
    if turns {
        rig.add_session(2, "{}");
    }
    for (entry, body) in [(ENTRY, PASSES), (NEXT, FRAIL), (LAST, DROPS)] {
        rig.start(facts(entry), body);
    }
    rig.connect(ENTRY, &[Edge::To(NEXT)]);
    rig.connect(NEXT, &[Edge::To(LAST)]);
    rig.run_turns();
    rig.reported();
    rig
}

/// Returns true if a call of a service is suspended.
pub(super) fn is_blocked(rig: &Rig, entry: EntryId) -> bool {
    rig.dispatcher.services().get(entry).unwrap().is_blocked()
}

#[test]
fn a_call_that_never_ends_or_falls_costs_its_own_packet_and_no_other() {
    for turns in [false, true] {
        let mut rig = chain(turns);
        let _interrupts = Interrupts::of(&rig.engine);
        for word in [0, HANG, 0, FALL, 0] {
            rig.give_word(ENTRY, word);
        }
        rig.run_turns();
        let [first, frail, last] = [ENTRY, NEXT, LAST].map(|entry| rig.report(entry));
        assert_eq!((first.passed_on, first.ended()), (5, 5), "{turns}");
        assert_eq!((frail.packets, frail.passed_on, frail.drop_trap), (5, 3, 2), "{turns}");
        let traps = [("time_limit".to_owned(), 1), ("unreachable".to_owned(), 1)];
        assert_eq!((frail.traps, frail.lanes_running), (traps.into(), 1), "{turns}");
        assert_eq!((last.packets, last.drop_module[&0]), (3, 3), "{turns}");
        let reported = rig.reported();
        assert!(
            matches!(
                reported[..],
                [FromCell::Trapped(NEXT, 0, _, 1), FromCell::Trapped(NEXT, 0, _, 2)]
            ),
            "{reported:?}"
        );
        assert_eq!(rig.session(1).queue, Bytes::ZERO);
        assert_eq!(rig.cell().frames_free, rig.cell().frames_total, "{turns}");
    }
}

#[test]
fn another_sessions_packets_have_their_turn_while_a_call_stands_still() {
    let mut rig = chain(true);
    rig.start(ServiceSpec { session: SessionId(2), ..facts(EntryId(9)) }, OBEYS);
    rig.run_turns();
    let _interrupts = Interrupts::of(&rig.engine);
    rig.give_word(NEXT, HANG);
    while !is_blocked(&rig, NEXT) {
        assert!(rig.run_short_turn());
    }
    rig.give(EntryId(9), Verdict::Drop { reason: 4 });
    // The call may be suspended for as many turns as make up 5 ms of processor time.
    while rig.report(EntryId(9)).ended() == 0 {
        assert_eq!(rig.report(NEXT).drop_trap, 0, "the other one waited for its end");
        assert!(rig.run_short_turn());
    }
    rig.run_turns();
    assert_eq!((rig.report(NEXT).drop_trap, rig.report(NEXT).ended()), (1, 1));
}

#[test]
fn a_service_that_stops_in_the_middle_of_a_call_leaves_nothing_of_it_in_its_sessions_queue() {
    let mut rig = chain(true);
    let _interrupts = Interrupts::of(&rig.engine);
    for word in [0, HANG, 0, 0] {
        rig.give_word(NEXT, word);
    }
    while rig.report(NEXT).passed_on == 0 || !is_blocked(&rig, NEXT) {
        assert!(rig.run_short_turn());
    }
    assert!(rig.session(1).queue > Bytes::ZERO);
    let report = rig.stop(NEXT);
    assert_eq!((report.packets, report.passed_on), (1, 1), "the others never came out of it");
    rig.run_turns();
    assert_eq!(rig.report(LAST).packets, 1);
    assert_eq!(rig.cell().no_service, 2, "what waited goes where it was going");
    assert_eq!(rig.session(1).queue, Bytes::ZERO);
    assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
}

#[test]
fn packets_queued_for_the_next_service_of_a_graph_bypass_it_when_it_stops() {
    let mut rig = chain(true);
    for _ in 0..3 {
        rig.give_word(ENTRY, 0);
    }
    while rig.report(ENTRY).passed_on < 3 {
        assert!(rig.run_short_turn());
    }
    let waiting = 3 - rig.report(NEXT).packets;
    let before = rig.stop(NEXT);
    assert_eq!((before.packets, rig.cell().no_service), (3 - waiting, waiting));
    // The first service still has an edge to the removed one.
    rig.give_word(ENTRY, 0);
    rig.run_turns();
    assert_eq!((rig.report(ENTRY).passed_on, rig.cell().no_service), (4, waiting + 1));
    assert_eq!(rig.session(1).queue, Bytes::ZERO);
    assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
}

#[test]
fn a_graph_without_turns_handles_behind_a_service_that_is_busy_in_order() {
    let mut rig = chain(false);
    rig.add_session(2, "{}");
    for _ in 0..2 {
        rig.give_word(NEXT, 0);
    }
    // The other session is removed: packets are handled as they arrive again, but behind those that
    // wait.
    rig.dispatcher.forget_session(pacer::now(), SessionId(2));
    rig.give_word(ENTRY, 0);
    assert_eq!((rig.report(ENTRY).passed_on, rig.report(NEXT).packets), (1, 0));
    rig.run_turns();
    assert_eq!((rig.report(NEXT).packets, rig.report(LAST).packets), (3, 3));
    rig.give_word(ENTRY, 0);
    assert_eq!(rig.report(LAST).packets, 4, "nobody waits any more");
}

#[test]
fn the_mark_that_a_module_leaves_comes_to_the_next_one_and_no_further() {
    // The first byte of the mark is the reason.
    const MARKS: &str = r#"(func (export "on_packet") (result i32)
        (i32.store8 (i32.const 0x8028) (i32.add (i32.load8_u (i32.const 0x8028)) (i32.const 3)))
        (i32.const 0))"#;
    const TELLS: &str = r#"(func (export "on_packet") (result i32)
        (i32.or (i32.const 1) (i32.shl (i32.load8_u (i32.const 0x8028)) (i32.const 16))))"#;
    let mut rig = Rig::new();
    for (entry, body) in [(ENTRY, MARKS), (NEXT, MARKS), (LAST, TELLS)] {
        rig.start(facts(entry), body);
    }
    rig.connect(ENTRY, &[Edge::To(NEXT)]);
    rig.connect(NEXT, &[Edge::To(LAST)]);
    for entry in [ENTRY, NEXT, LAST, ENTRY] {
        rig.give(entry, Verdict::PASS);
    }
    assert_eq!(rig.report(LAST).drop_module, BTreeMap::from([(6, 2), (3, 1), (0, 1)]));
}

#[test]
fn packets_bypass_a_service_that_cannot_restart_or_are_dropped_if_it_is_closed() {
    for (closed, turns) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut rig = chain(turns);
        let frail = EntryId(9);
        rig.start(ServiceSpec { closed, ..facts(frail) }, FRAIL);
        rig.run_turns();
        assert_eq!(rig.report(frail).lanes_running, 1);
        // The session has no memory left for another instance.
        rig.loader.accounts().set(SessionId::BEST_EFFORT, Some(Bytes(1)), Bytes::ZERO);
        for word in [FALL, 0, 0] {
            rig.give_word(frail, word);
        }
        rig.run_turns();
        let report = rig.report(frail);
        assert_eq!((report.packets, report.drop_trap, report.lanes_running), (3, 1, 0));
        let why = report.last_trap.unwrap();
        assert!(why.starts_with("not started again: "), "{why}");
        // There is no port: packets forwarded plainly go to the kernel, which is missing here.
        let past = if closed { report.drop_down } else { report.drop_kernel };
        assert_eq!(past, 2, "closed: {closed}, turns: {turns}");
        assert_eq!(rig.cell().frames_free, rig.cell().frames_total);
    }
}
