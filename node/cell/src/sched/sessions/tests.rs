//! Unit tests of turns, queues and accounts of sessions, by a manual clock.

use super::watch::{EVENTS_MAX, WATCHERS_MAX};
use super::*;
use session::Reservation;

const MS: fn(u64) -> Nanos = Nanos::from_millis;
const FRAME: Bytes = Bytes(4096);

fn task(entry: u16) -> Task {
    Task { entry: EntryId(entry), pool: 0, processor: entry }
}

fn facts(id: u16, json: &str) -> SessionSpec {
    let reservation: Reservation = serde_json::from_str(json).unwrap();
    SessionSpec { id: SessionId(id), reservation }
}

fn sessions() -> Sessions {
    let mut sessions = Sessions::new(Nanos::ZERO, PacketMemory::of(2), Memory::new());
    sessions.set(Nanos::ZERO, &facts(2, r#"{"cpu":["1ms/4ms"],"queue":"16KiB"}"#));
    sessions
}

#[test]
fn the_two_default_sessions_alone_do_not_compete_for_turns() {
    let mut sessions = Sessions::new(Nanos::ZERO, PacketMemory::of(2), Memory::new());
    assert!(!sessions.has_competition());
    sessions.set(Nanos::ZERO, &facts(2, "{}"));
    assert!(sessions.has_competition());
    sessions.forget(Nanos::ZERO, SessionId(2));
    assert!(!sessions.has_competition());
}

#[test]
fn reserved_time_is_dispatched_before_best_effort_until_it_is_used() {
    let mut sessions = sessions();
    sessions.wake(Nanos::ZERO, SessionId::BEST_EFFORT, task(1));
    sessions.wake(Nanos::ZERO, SessionId(2), task(2));
    let turn = sessions.next(Nanos::ZERO).unwrap();
    assert_eq!((turn.task.entry, turn.until), (EntryId(2), MS(1)));
    sessions.charge(MS(1), &turn, MS(1), false);
    let turn = sessions.next(MS(1)).unwrap();
    assert_eq!(turn.task.entry, EntryId(1));
    sessions.charge(MS(2), &turn, MS(1), true);
    assert!(sessions.next(MS(2)).is_none(), "without extra time it waits for its next period");
    assert_eq!(sessions.next(MS(4)).unwrap().task.entry, EntryId(2));
}

#[test]
fn services_of_a_session_take_turns_and_one_without_work_has_none() {
    let mut sessions = sessions();
    for entry in [3, 5, 3] {
        sessions.wake(Nanos::ZERO, SessionId(2), task(entry));
    }
    let mut now = Nanos::ZERO;
    let order: Vec<u16> = [false, false, true, false]
        .into_iter()
        .map(|idle| {
            let turn = sessions.next(now).unwrap();
            now += Nanos(100_000);
            sessions.charge(now, &turn, Nanos(100_000), idle);
            turn.task.entry.0
        })
        .collect();
    assert_eq!(order, [3, 5, 3, 5]);
}

#[test]
fn a_queue_takes_its_reserved_bytes_and_counts_the_excess_as_dropped() {
    let mut sessions = sessions();
    let taken = (0..6).filter(|_| sessions.admit(SessionId(2), FRAME)).count();
    assert_eq!(taken, 4);
    sessions.release(SessionId(2), FRAME);
    assert!(sessions.admit(SessionId(2), FRAME));
    let report = sessions.poll_report(2, Bytes::ZERO, true).unwrap();
    assert_eq!((report.queue, report.dropped), (Bytes(16384), 2));
}

#[test]
fn uncharged_thread_time_is_charged_to_the_system_session() {
    let mut sessions = sessions();
    let cpu = |sessions: &mut Sessions, id: usize| {
        sessions.poll_report(id, Bytes::ZERO, true).unwrap().cpu
    };
    sessions.charge_outside_turns(SessionId(2), MS(3));
    sessions.charge_own(MS(4));
    assert_eq!((cpu(&mut sessions, 0), cpu(&mut sessions, 2)), (MS(1), MS(3)));
    // Turns end by elapsed time, which can be more than the thread's processor time.
    sessions.charge_outside_turns(SessionId(2), MS(5));
    sessions.charge_own(MS(5));
    assert_eq!(cpu(&mut sessions, 0), MS(1), "it never takes anything back");
    sessions.forget(Nanos::ZERO, SessionId(2));
    sessions.charge_own(MS(11));
    assert_eq!(cpu(&mut sessions, 0), MS(3), "of 11 ms 8 were a session's that is gone");
}

#[test]
fn only_sessions_active_since_their_last_report_are_reported_again() {
    let mut sessions = sessions();
    let reported = |sessions: &mut Sessions, sent: u64| {
        let places = 0..sessions.slots();
        let reported = places.filter_map(|place| sessions.poll_report(place, Bytes(sent), false));
        reported.map(|report| report.session.0).collect::<Vec<u16>>()
    };
    assert_eq!(reported(&mut sessions, 0), [0, 1, 2]);
    assert_eq!(reported(&mut sessions, 0), [0; 0]);
    sessions.charge_outside_turns(SessionId(2), MS(1));
    sessions.sent(SessionId::BEST_EFFORT, Bytes(64));
    assert_eq!(reported(&mut sessions, 0), [1, 2]);
    assert_eq!(reported(&mut sessions, 9), [0, 1, 2], "what services sent counts, too");
    let taken = (0..5).filter(|_| sessions.admit(SessionId(2), FRAME)).count();
    assert_eq!(taken, 4);
    assert_eq!(reported(&mut sessions, 9), [2], "it was refused a packet");
    assert!(sessions.poll_report(2, Bytes(9), true).is_some(), "also if it did nothing");
    sessions.forget_reported();
    assert_eq!(reported(&mut sessions, 9), [0, 1, 2]);
}

#[test]
fn a_queue_watcher_is_notified_once_of_each_threshold_crossing() {
    let mut sessions = sessions();
    let watch = QueueWatch { above: 50, below: 25 };
    sessions.watch(EntryId(7), None, Some((SessionId(2), watch)));
    let received = |sessions: &mut Sessions, takes: usize, gives: u64| {
        for _ in 0..takes {
            sessions.admit(SessionId(2), FRAME);
        }
        sessions.release(SessionId(2), Bytes(gives * FRAME.0));
        std::iter::from_fn(|| sessions.poll_event()).collect::<Vec<_>>()
    };
    let (long, short) =
        (|k| (EntryId(7), QueueEvent::Long(k)), |k| (EntryId(7), QueueEvent::Short(k)));
    assert_eq!(received(&mut sessions, 2, 0), [], "two of four are no more than a half");
    assert_eq!(received(&mut sessions, 1, 0), [long(12)]);
    assert_eq!(received(&mut sessions, 1, 1), [], "it is long already");
    assert_eq!(received(&mut sessions, 0, 1), [], "and not short yet");
    assert_eq!(received(&mut sessions, 0, 1), [short(4)]);
    sessions.watch(EntryId(7), Some(SessionId(2)), None);
    assert_eq!(received(&mut sessions, 3, 4), [], "nobody watches");
}

#[test]
fn queue_notifications_and_watchers_are_limited() {
    let mut sessions = sessions();
    let watch = QueueWatch { above: 0, below: 0 };
    for entry in 0..20 {
        sessions.watch(EntryId(entry), None, Some((SessionId(2), watch)));
    }
    for _ in 0..EVENTS_MAX {
        sessions.admit(SessionId(2), FRAME);
        sessions.release(SessionId(2), FRAME);
    }
    let reported: Vec<_> = std::iter::from_fn(|| sessions.poll_event()).collect();
    assert_eq!(reported.len(), EVENTS_MAX);
    assert!(reported.iter().all(|(entry, _)| usize::from(entry.0) < WATCHERS_MAX));
}

#[test]
fn outgoing_packets_may_exceed_their_queue_and_the_unreserved_memory_by_one_turn() {
    let mut sessions = sessions();
    let of_turn = (TURN_ALLOWANCE.0 / 4096) as usize;
    assert_eq!((0..4).filter(|_| sessions.admit(SessionId(2), FRAME)).count(), 4);
    assert_eq!((0..100).filter(|_| sessions.admit_outgoing(SessionId(2), FRAME)).count(), of_turn);
    for id in 3..103 {
        sessions.set(Nanos::ZERO, &facts(id, "{}"));
    }
    let held = (3..103).map(|id| {
        (0..512).filter(|_| sessions.admit_outgoing(SessionId(id), FRAME)).count() as u64
    });
    let most = PacketMemory::of(2).unreserved().0 + TURN_ALLOWANCE.0;
    assert_eq!(held.sum::<u64>() * 4096, most, "however many sessions there are");
}

#[test]
fn sessions_without_a_queue_take_no_memory_reserved_for_queues() {
    let mut sessions = sessions();
    for id in 3..103 {
        sessions.set(Nanos::ZERO, &facts(id, "{}"));
    }
    let full =
        (3..103).map(|id| (0..256).filter(|_| sessions.admit(SessionId(id), FRAME)).count() as u64);
    assert_eq!(full.sum::<u64>() * 4096, PacketMemory::of(2).unreserved().0);
    assert!(sessions.admit(SessionId(2), FRAME));
    sessions.set(Nanos::ZERO, &facts(3, r#"{"queue":"2MiB"}"#));
    assert!(sessions.admit(SessionId(102), FRAME), "the third has a queue of its own now");
}

#[test]
fn fewer_virtual_processors_lose_no_ready_task() {
    let mut sessions = sessions();
    sessions.set(Nanos::ZERO, &facts(2, r#"{"cpu":["1ms/4ms","1ms/4ms"]}"#));
    sessions.wake(Nanos::ZERO, SessionId(2), task(3));
    sessions.set(Nanos::ZERO, &facts(2, r#"{"cpu":["1ms/4ms"]}"#));
    assert_eq!(sessions.next(Nanos::ZERO).unwrap().task.entry, EntryId(3));
}

/// Duration of one call, in which packets of its session are handled.
const CALL: Nanos = Nanos(20_000);

/// Runs the turns of a time span; services of `busy` always have more to do. Returns the time that
/// each session used.
fn run(
    sessions: &mut Sessions,
    (mut now, until): (Nanos, Nanos),
    busy: &[u16],
) -> std::collections::BTreeMap<u16, Nanos> {
    let mut used = std::collections::BTreeMap::new();
    while now < until {
        let Some(turn) = sessions.next(now) else {
            now = sessions.poll_timeout().map_or(until, |at| at.max(now + Nanos(1))).min(until);
            continue;
        };
        // No turn exceeds its slice: a timer ends it.
        let ran = CALL.min(turn.until.saturating_sub(now)).max(Nanos(1));
        now += ran;
        let session = turn.task.entry.0 / 10;
        *used.entry(session).or_insert(Nanos::ZERO) += ran;
        sessions.charge(now, &turn, ran, !busy.contains(&session));
    }
    used
}

/// Wakes two services of a session, whose numbers are ten times the session's and the next.
fn wake(sessions: &mut Sessions, now: Nanos, session: u16) {
    for entry in [10 * session, 10 * session + 1] {
        sessions.wake(now, SessionId(session), task(entry));
    }
}

#[test]
fn promised_time_is_kept_to_the_nanosecond_over_many_periods() {
    let mut sessions = Sessions::new(Nanos::ZERO, PacketMemory::of(2), Memory::new());
    for (id, cpu) in [(2, "1ms/4ms"), (3, "2500us/10ms"), (4, "300us/4ms")] {
        sessions.set(Nanos::ZERO, &facts(id, &format!(r#"{{"cpu":["{cpu}"]}}"#)));
        wake(&mut sessions, Nanos::ZERO, id);
    }
    wake(&mut sessions, Nanos::ZERO, 1);
    // 50 periods of 20 ms, a common multiple of all periods.
    let mut now = Nanos::ZERO;
    for _ in 0..50 {
        let used = run(&mut sessions, (now, now + MS(20)), &[1, 2, 3, 4]);
        now += MS(20);
        let of = |id: u16| used.get(&id).copied().unwrap_or_default();
        assert_eq!([2, 3, 4].map(of), [MS(5), MS(5), Nanos(1_500_000)], "until {now:?}");
        assert_eq!(of(1), MS(20).saturating_sub(Nanos(11_500_000)), "what is left is others'");
    }
    for place in 2..5 {
        let report = sessions.poll_report(place, Bytes::ZERO, true).unwrap();
        let [kept, missed @ ..] = report.deviations;
        assert!(kept > 95 && missed == [0; 9], "{report:?}");
    }
}

#[test]
fn an_idle_session_has_its_next_slice_and_no_more() {
    let mut sessions = sessions();
    sessions.wake(Nanos::ZERO, SessionId::BEST_EFFORT, task(10));
    let used = run(&mut sessions, (Nanos::ZERO, MS(40)), &[1]);
    assert_eq!(used.get(&1), Some(&MS(40)), "all of it, while nobody else wants any");
    wake(&mut sessions, MS(40), 2);
    let used = run(&mut sessions, (MS(40), MS(80)), &[1, 2]);
    assert_eq!(used[&2], MS(10), "nothing is saved");
}

#[test]
fn unreserved_time_is_shared_by_weight() {
    let mut sessions = Sessions::new(Nanos::ZERO, PacketMemory::of(2), Memory::new());
    for (id, json) in [
        (2, r#"{"weight":100}"#),
        (3, r#"{"weight":300}"#),
        (4, r#"{"cpu":["1ms/4ms+extra"],"weight":100}"#),
        (5, r#"{"cpu":["1ms/4ms"],"weight":900}"#),
    ] {
        sessions.set(Nanos::ZERO, &facts(id, json));
        wake(&mut sessions, Nanos::ZERO, id);
    }
    let used = run(&mut sessions, (Nanos::ZERO, MS(4_000)), &[2, 3, 4, 5]);
    // Half of the time is reserved; the other half is divided one, three and one fifths.
    for (id, expected) in [(2, 400), (3, 1_200), (4, 1_000 + 400), (5, 1_000)] {
        let difference = used[&id].0.abs_diff(MS(expected).0);
        assert!(difference <= MS(8).0, "{id}: {:?}", used[&id]);
    }
}

#[test]
fn time_for_sending_and_for_codecs_is_taken_from_the_same_slice() {
    let mut sessions = sessions();
    wake(&mut sessions, Nanos::ZERO, 2);
    let turn = sessions.next(Nanos::ZERO).unwrap();
    sessions.charge(Nanos(200_000), &turn, Nanos(200_000), false);
    sessions.charge_codecs(Nanos(200_000), &turn, Nanos(300_000));
    sessions.charge_codecs(Nanos(200_000), &turn, Nanos::ZERO);
    let turn = sessions.next(Nanos(200_000)).unwrap();
    assert_eq!(turn.until, Nanos(700_000), "half a millisecond is left");
    sessions.charge(Nanos(600_000), &turn, Nanos(400_000), false);
    sessions.charge_sending(Nanos(700_000), &turn, Nanos(100_000));
    assert!(sessions.next(Nanos(700_000)).is_none(), "it is used up");
    assert_eq!(sessions.poll_timeout(), Some(MS(4)), "until its next period");
    assert_eq!(sessions.next(MS(4)).unwrap().until, MS(5));
    assert_eq!(sessions.poll_report(2, Bytes::ZERO, true).unwrap().cpu, MS(1));
}

#[test]
fn services_of_a_session_share_its_slice_evenly() {
    let mut sessions = sessions();
    for entry in [20, 21, 22] {
        sessions.wake(Nanos::ZERO, SessionId(2), task(entry));
    }
    let (mut now, mut used) = (Nanos::ZERO, [Nanos::ZERO; 3]);
    while now < MS(120) {
        let Some(turn) = sessions.next(now) else {
            now = sessions.poll_timeout().unwrap();
            continue;
        };
        now += CALL;
        used[usize::from(turn.task.entry.0) - 20] += CALL;
        sessions.charge(now, &turn, CALL, false);
    }
    let sum: u64 = used.iter().map(|it| it.0).sum();
    assert_eq!(sum, MS(30).0);
    assert!(used.iter().all(|it| it.0.abs_diff(sum / 3) <= CALL.0), "{used:?}");
}

#[test]
fn each_virtual_processor_has_its_own_slice_and_its_own_services() {
    let mut sessions = sessions();
    sessions.set(Nanos::ZERO, &facts(2, r#"{"cpu":["1ms/4ms","500us/4ms"]}"#));
    // A service's number selects the one or the other virtual processor.
    sessions.wake(Nanos::ZERO, SessionId(2), task(20));
    sessions.wake(Nanos::ZERO, SessionId(2), task(21));
    let (mut now, mut used) = (Nanos::ZERO, [Nanos::ZERO; 2]);
    while let Some(turn) = sessions.next(now) {
        let ran = CALL.min(turn.until.saturating_sub(now));
        now += ran;
        used[usize::from(turn.task.entry.0) - 20] += ran;
        sessions.charge(now, &turn, ran, false);
    }
    assert_eq!(used, [MS(1), Nanos(500_000)]);
    assert_eq!(sessions.tasks(), 2, "both wait for their next period");
    sessions.forget(now, SessionId(2));
    assert_eq!((sessions.tasks(), sessions.poll_timeout()), (0, None));
}

#[test]
fn a_timer_late_by_a_part_of_a_slice_counts_in_the_bucket_of_its_deviation() {
    let mut sessions = sessions();
    sessions.wake(Nanos::ZERO, SessionId(2), task(20));
    // The slice is exceeded by 60 µs in a period of 4 ms: 1.5 %.
    for period in 0..10 {
        let begin = MS(4 * period);
        let turn = sessions.next(begin).unwrap();
        sessions.charge(turn.until + Nanos(60_000), &turn, Nanos(1_060_000), false);
    }
    let deviations = sessions.poll_report(2, Bytes::ZERO, true).unwrap().deviations;
    let bucket = DEVIATION_BOUNDS.iter().position(|&bound| bound >= 15_000).unwrap();
    assert!(deviations.iter().sum::<u64>() >= 8, "{deviations:?}");
    assert!(deviations[bucket] >= 1, "{deviations:?}");
}
