//! Unit tests of turns, their timer, and their accounts, by a manual clock.

use super::*;
use crate::protocol::SessionSpec;
use sessions::Task;
use units::EntryId;

/// Mock of the timer that records its last setting: first interruption, and interval.
#[derive(Debug, Default)]
pub(crate) struct Noted(Option<(Nanos, Nanos)>);

impl Timer for Noted {
    fn arm(&mut self, interval: Nanos) {
        self.0 = Some((interval, interval));
    }

    fn arm_once(&mut self, first: Nanos, interval: Nanos) {
        self.0 = Some((first, interval));
    }

    fn disarm(&mut self) {
        self.0 = None;
    }
}

const TASK: Task = Task { entry: EntryId(4), pool: 0, processor: 0 };

fn scheduler(reservation: &str) -> Scheduler<Noted> {
    let timer = Noted::default();
    let mut scheduler = Scheduler::new(timer, PacketMemory::of(1), Memory::new());
    let reservation = serde_json::from_str(reservation).unwrap();
    let facts = SessionSpec { id: SessionId(2), reservation };
    scheduler.sessions_mut().set(Nanos::ZERO, &facts);
    scheduler.sessions_mut().wake(Nanos::ZERO, SessionId(2), TASK);
    scheduler
}

#[test]
fn a_long_slice_has_a_full_portion_until_the_round_is_over() {
    let mut scheduler = scheduler(r#"{"cpu":["1ms/4ms"]}"#);
    let next = scheduler.next(Nanos::ZERO).unwrap();
    let round = (Nanos(10), Nanos(100_000));
    let portion = scheduler.begin_turn(round, &next, true, |_, _| unreachable!());
    let until = Nanos(100_000);
    assert_eq!(portion, Portion { begin: Nanos(10), until, packets: FILL });
    assert_eq!(scheduler.timer.0, Some((TURN_MAX, TURN_MAX)));
}

#[test]
fn a_short_slice_leaves_time_to_send_what_fits_and_no_more_than_a_quarter() {
    let mut scheduler = scheduler(r#"{"cpu":["100us/4ms"]}"#);
    let next = scheduler.next(Nanos::ZERO).unwrap();
    let round = (Nanos::ZERO, TURN_MAX);
    let begun = |scheduler: &mut Scheduler<Noted>, sending: Nanos| {
        let fit = |slice: Nanos, _| {
            assert_eq!(slice, Nanos(100_000));
            (7, sending)
        };
        scheduler.begin_turn(round, &next, true, fit)
    };
    let portion = begun(&mut scheduler, Nanos(10_000));
    assert_eq!((portion.packets, portion.until), (7, Nanos(90_000)));
    // A sixteenth of the slice is polled closely.
    assert_eq!(scheduler.timer.0, Some((Nanos(90_000 - 6_250), TURN_MAX)));
    assert_eq!(begun(&mut scheduler, Nanos(60_000)).until, Nanos(75_000));
}

#[test]
fn sending_after_a_turn_is_charged_to_it_and_deducted_from_its_next_turn() {
    let mut scheduler = scheduler(r#"{"cpu":["150us/4ms"]}"#);
    let next = scheduler.next(Nanos::ZERO).unwrap();
    scheduler.end_turn((Nanos::ZERO, Nanos(20_000)), next, false, 2);
    assert!(scheduler.has_unsent() && !scheduler.must_send());
    // The measured 8 µs a packet enter the average with an eighth.
    scheduler.settle_sent(Nanos(20_000), Nanos(36_000));
    assert!(!scheduler.has_unsent());
    let report = scheduler.sessions_mut().poll_report(2, units::Bytes::ZERO, true).unwrap();
    assert_eq!(report.cpu, Nanos(36_000));
    let next = scheduler.next(Nanos(36_000)).unwrap();
    scheduler.end_turn((Nanos(36_000), Nanos(37_000)), next, false, 3);
    let next = scheduler.next(Nanos(37_000)).unwrap();
    let slice = next.until.saturating_sub(Nanos(37_000));
    let fit = |left: Nanos, sending: Nanos| {
        assert_eq!((left, sending), (slice.saturating_sub(Nanos(3_000)), Nanos(1_000)));
        (1, sending)
    };
    scheduler.begin_turn((Nanos(37_000), Nanos(100_000)), &next, false, fit);
}

#[test]
fn the_turn_of_a_removed_service_is_skipped() {
    let mut scheduler = scheduler(r#"{"cpu":["1ms/4ms"]}"#);
    let next = scheduler.next(Nanos::ZERO).unwrap();
    scheduler.skip_turn(Nanos::ZERO, &next);
    assert!(scheduler.next(Nanos::ZERO).is_none());
    let report = scheduler.sessions_mut().poll_report(2, units::Bytes::ZERO, true).unwrap();
    assert_eq!(report.cpu, Nanos::ZERO);
}

#[test]
fn the_timer_runs_on_behind_a_turn_that_it_may_have_to_interrupt_and_rests_behind_brief_ones() {
    let mut scheduler = scheduler(r#"{"cpu":["1ms/4ms"]}"#);
    let next = scheduler.next(Nanos::ZERO).unwrap();
    let round = (Nanos::ZERO, TURN_MAX);
    scheduler.begin_turn(round, &next, false, |_, _| unreachable!());
    assert_eq!(scheduler.timer.0, None, "nobody has to interrupt it");
    scheduler.begin_turn(round, &next, true, |_, _| unreachable!());
    scheduler.handle_turns(Nanos(INTERRUPTS_FOR.0 - 1));
    assert!(scheduler.timer.0.is_some());
    scheduler.handle_turns(INTERRUPTS_FOR);
    assert_eq!(scheduler.timer.0, None);
    scheduler.arm();
    assert_eq!(scheduler.timer.0, None, "turns see to that themselves");
    scheduler.sessions_mut().forget(Nanos::ZERO, SessionId(2));
    scheduler.arm();
    assert_eq!(scheduler.timer.0, Some((SLICE, SLICE)));
}

#[test]
fn stream_calls_are_polled_more_often_while_others_wait() {
    let mut scheduler = scheduler("{}");
    let turn = (Nanos::ZERO, TURN_MAX);
    scheduler.begin_calls(turn, CallState::default(), false);
    assert_eq!(scheduler.timer.0, Some((TURN_MAX, TURN_MAX)), "sessions have claims");
    scheduler.sessions_mut().forget(Nanos::ZERO, SessionId(2));
    scheduler.begin_calls(turn, CallState::default(), false);
    assert_eq!(scheduler.timer.0, Some((SLICE, SLICE)));
    scheduler.begin_calls(turn, CallState::default(), true);
    assert_eq!(scheduler.timer.0, Some((TURN_MAX, TURN_MAX)), "calls were long");
}

#[test]
fn hooks_outside_turns_are_charged_to_their_session() {
    let mut scheduler = scheduler("{}");
    scheduler.begin_hook(SessionId(2));
    scheduler.run_for(SessionId::BEST_EFFORT);
    scheduler.stop();
    let cpu = |scheduler: &mut Scheduler<Noted>, place: usize| {
        scheduler.sessions_mut().poll_report(place, units::Bytes::ZERO, true).unwrap().cpu
    };
    assert!(cpu(&mut scheduler, 2) > Nanos::ZERO);
    let (one, other) = (cpu(&mut scheduler, 1), cpu(&mut scheduler, 2));
    scheduler.stop();
    assert_eq!((cpu(&mut scheduler, 1), cpu(&mut scheduler, 2)), (one, other), "nobody runs");
}
