//! Unit tests of a service without its dispatcher, at chosen times: timers, restarts, versions,
//! lanes.

use super::*;
use crate::dispatch::tests::{ENTRY, Rig, TICKS, facts};
use crate::protocol::StateTransfer;

const START: CoarseInstant = CoarseInstant::from_millis(1_000);
/// Module that counts its packets in its memory, and drops each with its number as the reason. It
/// traps on a packet with the word 1.
const COUNTS: &str = r#"(func (export "on_packet") (result i32)
    (if (i32.eq (i32.load (i32.const 0x812c)) (i32.const 1)) (then unreachable))
    (i32.store (i32.const 0x9000) (i32.add (i32.load (i32.const 0x9000)) (i32.const 1)))
    (i32.or (i32.const 1) (i32.shl (i32.load (i32.const 0x9000)) (i32.const 16))))"#;
const FALL: u32 = 1;

/// Started service, with everything it needs.
struct Bench {
    rig: Rig,
    service: Service,
}

impl Bench {
    fn start(facts: ServiceSpec, body: &str) -> Self {
        let mut rig = Rig::new();
        let ready = rig.ready(facts, body);
        let pacer = Rc::clone(rig.dispatcher.scheduler().pacer());
        let service = Service::begin(ready, &pacer, Vec::new(), START);
        let mut bench = Self { rig, service };
        assert!(matches!(bench.run_steps(START)[..], [Reply::Started(Ok(()))]));
        bench
    }

    /// Runs all requests; returns the replies to the daemon.
    fn run_steps(&mut self, now: CoarseInstant) -> Vec<Reply> {
        let mut replies = Vec::new();
        while self.service.may_run_step() {
            replies.extend(self.service.run_step(&self.rig.engine, Nanos(u64::MAX), now).reply);
        }
        replies
    }

    /// Gives the service a packet of a flow, whose payload is this word.
    fn handle(&mut self, word: u32, flow: u32, now: CoarseInstant) {
        let (packet, mut origin) = self.rig.packet(ENTRY, word);
        origin.meta.flow_hash = flow;
        let Self { rig, service } = self;
        let (path, sessions) = rig.dispatcher.path_and_sessions();
        let mut egress_path = path.egress_path(sessions, SessionId::BEST_EFFORT);
        service.handle(&rig.engine, packet, &origin, now, &mut egress_path);
    }

    /// Returns the reasons for which packets were dropped since the last call, in ascending order.
    fn reasons(&mut self, before: &ServiceReport) -> Vec<u16> {
        let now = self.service.report().drop_module;
        let new = |(reason, count): (&u16, &u64)| {
            let times = count - before.drop_module.get(reason).unwrap_or(&0);
            std::iter::repeat_n(*reason, times as usize)
        };
        now.iter().flat_map(new).collect()
    }

    /// Returns the number of events that it has sent since the last call.
    fn events(&mut self) -> usize {
        let mut outbox = Outbox::default();
        let (path, sessions) = self.rig.dispatcher.path_and_sessions();
        self.service.take_emitted(&mut path.egress_path(sessions, SessionId::SYSTEM), &mut outbox);
        outbox.events.len()
    }

    /// Replaces the service by another version.
    fn replace(
        &mut self,
        facts: ServiceSpec,
        body: &str,
        transfer: StateTransfer,
        now: CoarseInstant,
    ) {
        let ready = self.rig.ready(facts, body);
        assert!(self.service.request(Control::Replace(Box::new(ready), transfer)));
        assert!(matches!(self.run_steps(now)[..], [Reply::Replaced(Ok(_))]));
    }

    fn is_running(&mut self) -> bool {
        self.service.report().lanes_running == 1
    }
}

fn after(millis: u64) -> CoarseInstant {
    START + Millis(millis)
}

#[test]
fn timers_come_as_often_as_their_period_says_and_those_that_were_missed_come_as_one() {
    let mut bench = Bench::start(ServiceSpec { timer_ms: Some(7), ..facts(ENTRY) }, TICKS);
    let mut at = bench.service.tick(START);
    for number in 1..=100 {
        assert_eq!(at, after(7 * number));
        assert!(bench.service.tick(at.max(START)) > at && bench.run_steps(at).is_empty());
        assert_eq!(bench.events(), 1);
        at = after(7 * (number + 1));
    }
    // The loop is late by several periods.
    let late = after(7 * 105 + 3);
    assert_eq!(bench.service.tick(late), after(7 * 106));
    bench.run_steps(late);
    assert_eq!(bench.events(), 1);
    // A waiting timer covers later ticks.
    bench.service.tick(after(7 * 106));
    bench.service.tick(after(7 * 107));
    bench.run_steps(after(7 * 107));
    assert_eq!(bench.events(), 1);
}

#[test]
fn an_instance_that_cannot_start_again_is_tried_every_tenth_of_a_second() {
    let mut bench = Bench::start(facts(ENTRY), COUNTS);
    let accounts = bench.rig.loader.accounts().clone();
    accounts.set(SessionId::BEST_EFFORT, Some(Bytes(1)), Bytes::ZERO);
    bench.handle(FALL, 0, START);
    assert!(!bench.is_running());
    assert_eq!(bench.service.tick(after(99)), after(100), "not yet");
    assert!(bench.run_steps(after(99)).is_empty() && !bench.is_running());
    bench.service.tick(after(100));
    bench.run_steps(after(100));
    assert!(!bench.is_running(), "there is no more memory than before");
    assert_eq!(bench.service.tick(after(101)), after(200));
    accounts.set(SessionId::BEST_EFFORT, Some(Bytes(1 << 30)), Bytes::ZERO);
    bench.service.tick(after(199));
    assert!(bench.run_steps(after(199)).is_empty() && !bench.is_running());
    bench.service.tick(after(200));
    bench.run_steps(after(200));
    assert!(bench.is_running());
    assert_eq!(bench.service.tick(after(201)), CoarseInstant::NEVER);
    bench.handle(0, 0, after(201));
    let reasons = bench.reasons(&ServiceReport::default());
    assert_eq!(reasons, [1], "it begins anew");
}

#[test]
fn a_flow_meets_the_same_lane_every_time_and_all_lanes_have_flows() {
    let lane = r#"(func (export "on_packet") (result i32)
        (i32.or (i32.const 1) (i32.shl (i32.load (i32.const 0x801c)) (i32.const 16))))"#;
    let mut bench = Bench::start(ServiceSpec { lanes: 3, ..facts(ENTRY) }, lane);
    let mut lanes = BTreeMap::new();
    for round in 0..3 {
        for flow in 0..40u32 {
            let before = bench.service.report();
            bench.handle(0, flow.wrapping_mul(0x9e37_79b9), START);
            let [lane] = bench.reasons(&before)[..] else { panic!("one packet has one end") };
            let first = *lanes.entry(flow).or_insert(lane);
            assert_eq!(lane, first, "flow {flow} in round {round}");
        }
    }
    let used: std::collections::BTreeSet<u16> = lanes.into_values().collect();
    assert_eq!(used.into_iter().collect::<Vec<u16>>(), [0, 1, 2]);
    assert_eq!(bench.service.lane_count(), 3);
}

#[test]
fn another_version_goes_on_with_the_memory_of_the_one_before_or_begins_empty() {
    for (transfer, expected) in
        [(StateTransfer::Memory, [1, 2, 3, 4]), (StateTransfer::Empty, [1, 1, 2, 2])]
    {
        let mut bench = Bench::start(facts(ENTRY), COUNTS);
        (0..2).for_each(|_| bench.handle(0, 0, START));
        bench.replace(facts(ENTRY), COUNTS, transfer, START);
        (0..2).for_each(|_| bench.handle(0, 0, START));
        assert_eq!(bench.reasons(&ServiceReport::default()), expected, "{transfer:?}");
    }
}

#[test]
fn packets_that_waited_for_the_version_before_are_the_next_ones_in_their_order() {
    let mut bench = Bench::start(facts(ENTRY), COUNTS);
    for number in 0..3 {
        let (packet, origin) = bench.rig.packet(ENTRY, 0);
        assert_eq!(
            bench.service.enqueue(packet, origin).is_some(),
            number == 0,
            "it has work once"
        );
    }
    bench.replace(ServiceSpec { lanes: 2, ..facts(ENTRY) }, COUNTS, StateTransfer::Empty, START);
    assert!(!bench.service.is_idle());
    let Bench { rig, service } = &mut bench;
    let (path, sessions) = rig.dispatcher.path_and_sessions();
    let mut egress_path = path.egress_path(sessions, SessionId::BEST_EFFORT);
    let portion = Portion { begin: Nanos::ZERO, until: Nanos(u64::MAX), packets: 2 };
    let handled =
        [(); 2].map(|()| service.work(&rig.engine, 0, portion, START, &mut egress_path).handled);
    assert_eq!(handled, [2, 1], "as many as the portion has");
    assert!(service.is_idle());
    assert_eq!(bench.reasons(&ServiceReport::default()), [1, 2, 3]);
}

#[test]
fn a_version_that_falls_within_half_a_second_is_put_back_and_not_later() {
    for (falls_at, is_put_back) in [(499, true), (500, false)] {
        let mut bench = Bench::start(facts(ENTRY), COUNTS);
        bench.handle(0, 0, START);
        bench.replace(facts(ENTRY), COUNTS, StateTransfer::Empty, START);
        assert!(bench.service.is_unknown());
        assert_eq!(bench.service.tick(after(1)), after(500), "it is watched until then");
        bench.service.tick(after(falls_at));
        bench.handle(FALL, 0, after(falls_at));
        let Notices { trapped, traps, sequel } = bench.service.take_notices();
        assert_eq!((trapped.len(), traps), (1, 1));
        match sequel {
            Some(ReplaceOutcome::PutBack(why)) => {
                assert!(is_put_back && why.contains("unreachable"))
            }
            Some(ReplaceOutcome::Kept) => assert!(!is_put_back),
            None => panic!("the daemon waits for one of them"),
        }
        assert_eq!(bench.service.take_notices().sequel, None, "it was told");
        bench.handle(0, 0, after(falls_at));
        // The old version has its former state; a new instance has none.
        let expected = if is_put_back { [1, 2] } else { [1, 1] };
        assert_eq!(bench.reasons(&ServiceReport::default()), expected);
        let changes = if is_put_back { 2 } else { 1 };
        for _ in 0..changes {
            assert!(bench.service.is_unknown());
            bench.service.become_known();
        }
        assert!(!bench.service.is_unknown());
    }
}

#[test]
fn no_more_packets_begin_than_there_is_time_to_handle_and_to_send() {
    let mut bench = Bench::start(facts(ENTRY), COUNTS);
    let fit = |bench: &Bench, time, sending| bench.service.fit(Nanos(time), Nanos(sending));
    assert_eq!(fit(&bench, 100_000, 10_000), (10, Nanos(100_000)));
    assert_eq!(
        fit(&bench, u64::MAX, 10),
        (FILL, Nanos(10 * FILL)),
        "never more than go in at once"
    );
    assert_eq!(fit(&bench, 0, 10_000), (1, Nanos(10_000)), "never none");
    bench.service.packet = Nanos(5_000);
    assert_eq!(fit(&bench, 30_000, 10_000), (2, Nanos(20_000)));
}

#[test]
fn a_service_with_too_much_to_answer_takes_no_more_and_leaves_a_tick_out() {
    let mut bench = Bench::start(ServiceSpec { timer_ms: Some(5), ..facts(ENTRY) }, TICKS);
    let message = || Control::Message(message::PendingMessage::of_daemon([1].into()));
    let taken = (0..1_000).take_while(|_| bench.service.request(message())).count();
    assert!(taken > 8 && taken < 1_000, "{taken}");
    bench.service.tick(after(5));
    let reported = bench.run_steps(after(5));
    assert_eq!(
        (reported.len(), bench.events()),
        (taken, 0),
        "each is answered, the timer is not asked"
    );
    bench.service.tick(after(10));
    bench.run_steps(after(10));
    assert_eq!(bench.events(), 1, "with the next tick it is");
}
