//! Unit tests with one or two virtual processors, step by step. Random sets are in tests/session/executor.rs.

use super::*;

const AT: fn(u64) -> Nanos = Nanos::from_millis;
const GOLD: SessionId = SessionId(2);
const TIN: SessionId = SessionId(3);

fn processor(text: &str) -> Option<VirtualProcessor> {
    Some(text.parse().unwrap())
}

fn weight(weight: u16) -> Weight {
    Weight::new(weight).unwrap()
}

/// Runs the next virtual processor until the end of its dispatch.
fn run(schedule: &mut Schedule, now: &mut Nanos) -> Option<(Dispatch, Nanos)> {
    let dispatch = schedule.next(*now)?;
    let used = dispatch.until.saturating_sub(*now);
    *now = dispatch.until;
    schedule.charge(*now, dispatch.processor, used);
    Some((dispatch, used))
}

#[test]
fn a_slice_comes_once_in_each_period_and_the_rest_is_idle() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("1ms/4ms"), Weight::default());
    let mut now = AT(10);
    schedule.wake(now, gold);
    for period in 0..3 {
        assert_eq!(now, AT(10 + 4 * period));
        let (dispatch, used) = run(&mut schedule, &mut now).unwrap();
        assert_eq!((dispatch.kind, used), (Kind::Guaranteed, AT(1)));
        assert_eq!(schedule.next(now), None);
        now = schedule.poll_timeout().unwrap();
    }
}

#[test]
fn an_earlier_deadline_comes_first_and_stops_a_later_one() {
    let mut schedule = Schedule::new();
    let long = schedule.add(AT(0), GOLD, processor("10ms/20ms"), Weight::default());
    let short = schedule.add(AT(0), TIN, processor("1ms/4ms"), Weight::default());
    schedule.wake(AT(0), long);
    schedule.wake(AT(0), short);
    let mut now = AT(0);
    let mut order = Vec::new();
    while now < AT(14) {
        let (dispatch, used) = run(&mut schedule, &mut now).unwrap();
        order.push((dispatch.processor == short, used.as_millis()));
    }
    let expected = [(true, 1), (false, 3), (true, 1), (false, 3), (true, 1), (false, 3), (true, 1)];
    assert_eq!(order[..7], expected);
}

#[test]
fn extra_time_is_divided_among_processors_that_take_part_by_session_weight() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("1ms/10ms+extra"), weight(300));
    let strict = schedule.add(AT(0), GOLD, processor("1ms/10ms"), weight(300));
    let tin = schedule.add(AT(0), TIN, None, weight(100));
    for who in [gold, strict, tin] {
        schedule.wake(AT(0), who);
    }
    let mut now = AT(0);
    while now < AT(1_000) {
        run(&mut schedule, &mut now);
    }
    let account = |who| schedule.account(who).unwrap();
    assert_eq!(account(gold).guaranteed, AT(100));
    assert_eq!(account(strict).guaranteed, AT(100));
    assert_eq!(account(strict).surplus, Nanos::ZERO);
    assert!(account(gold).surplus.0.abs_diff(AT(600).0) <= 4 * EXTRA_MAX.0);
    assert!(account(tin).surplus.0.abs_diff(AT(200).0) <= 4 * EXTRA_MAX.0);
}

#[test]
fn an_overrun_is_subtracted_from_the_next_period() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("1ms/4ms"), Weight::default());
    schedule.wake(AT(0), gold);
    let dispatch = schedule.next(AT(0)).unwrap();
    schedule.charge(Nanos(1_010_000), dispatch.processor, Nanos(1_010_000));
    assert_eq!(schedule.next(Nanos(1_010_000)), None);
    let dispatch = schedule.next(AT(4)).unwrap();
    assert_eq!(dispatch.until, Nanos(4_990_000));
    let account = schedule.account(gold).unwrap();
    assert_eq!(account.last.guaranteed, Nanos(1_010_000));
    assert_eq!(account.running.promised, AT(1));
}

#[test]
fn deferred_work_is_charged_to_its_dispatch_also_asleep_and_after_others_ran() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("1ms/4ms"), Weight::default());
    let tin = schedule.add(AT(0), TIN, None, Weight::default());
    schedule.wake(AT(0), gold);
    schedule.wake(AT(0), tin);
    let mut now = AT(0);
    let (dispatch, _) = run(&mut schedule, &mut now).unwrap();
    schedule.sleep(gold);
    let (other, _) = run(&mut schedule, &mut now).unwrap();
    schedule.charge_deferred(now, &dispatch, Nanos(300_000));
    schedule.charge_deferred(now, &other, Nanos(200_000));
    let account = |who| schedule.account(who).unwrap();
    assert_eq!(account(gold).guaranteed, Nanos(1_300_000));
    assert_eq!(account(tin).surplus, EXTRA_MAX + Nanos(200_000));
    schedule.wake(now, gold);
    let next = schedule.next(AT(4)).unwrap();
    assert_eq!((next.processor, next.until), (gold, Nanos(4_700_000)), "it owes 0.3 ms");
}

#[test]
fn a_promise_that_is_given_up_is_free_when_its_period_ends() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("9ms/10ms"), Weight::default());
    schedule.wake(AT(0), gold);
    let mut now = AT(0);
    run(&mut schedule, &mut now);
    schedule.remove(now, gold);
    assert_eq!(schedule.account(gold), None);
    let tin = schedule.add(now, TIN, processor("2ms/4ms"), Weight::default());
    schedule.wake(now, tin);
    let dispatch = schedule.next(now).unwrap();
    assert_eq!((dispatch.kind, dispatch.until), (Kind::BestEffort, AT(10)));
    schedule.charge(AT(10), tin, AT(1));
    let dispatch = schedule.next(AT(10)).unwrap();
    assert_eq!((dispatch.kind, dispatch.until), (Kind::Guaranteed, AT(12)));
}

#[test]
fn a_change_begins_with_the_next_period_and_a_removed_handle_has_no_effect() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("1ms/4ms"), Weight::default());
    schedule.wake(AT(0), gold);
    schedule.change(AT(0), gold, processor("2ms/4ms"), Weight::default());
    assert_eq!(schedule.next(AT(0)).unwrap().until, AT(1));
    schedule.charge(AT(1), gold, AT(1));
    assert_eq!(schedule.next(AT(4)).unwrap().until, AT(6));
    schedule.change(AT(4), gold, None, Weight::default());
    assert_eq!(schedule.next(AT(5)).unwrap().kind, Kind::BestEffort);
    schedule.remove(AT(5), gold);
    let other = schedule.add(AT(5), TIN, None, Weight::default());
    schedule.wake(AT(5), gold);
    assert_eq!(schedule.next(AT(5)), None);
    assert_ne!(gold, other);
}

#[test]
fn scheduling_allocates_nothing_once_all_processors_are_added() {
    let mut schedule = Schedule::new();
    let all: Vec<ProcessorId> = (0u16..200)
        .map(|n| {
            let promise = (n % 2 == 0).then(|| "50us/20ms+extra".parse().unwrap());
            schedule.add(AT(0), SessionId(n), promise, Weight::default())
        })
        .collect();
    let capacities = format!("{:?}", schedule.edf.capacities());
    let mut now = AT(0);
    for step in 0..20_000usize {
        let who = all[step * 7919 % all.len()];
        if step % 3 == 0 {
            schedule.sleep(who)
        } else {
            schedule.wake(now, who)
        }
        if run(&mut schedule, &mut now).is_none() {
            now += AT(1);
        }
    }
    assert_eq!(format!("{:?}", schedule.edf.capacities()), capacities);
}

/// Prefetcher that only counts its calls.
#[derive(Default)]
struct Asked(core::cell::Cell<usize>);

impl Prefetch for Asked {
    fn prefetch<T>(&self, _: &T) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn upcoming_processors_are_in_the_order_of_dispatch() {
    let mut schedule = Schedule::new();
    let gold = schedule.add(AT(0), GOLD, processor("1ms/4ms"), Weight::default());
    let others: Vec<_> = (10..60)
        .map(|session| schedule.add(AT(0), SessionId(session), None, Weight::default()))
        .collect();
    assert_eq!(schedule.upcoming(&mut [gold; UPCOMING_MAX]), 0);
    // Different amounts of work before give each its own start tag.
    let mut now = AT(0);
    others.iter().for_each(|&other| schedule.wake(now, other));
    for step in 0..50 {
        let next = schedule.next(now).unwrap();
        let used = Nanos(1_000 + step * 37 % 500);
        now += used;
        schedule.charge(now, next.processor, used);
    }
    schedule.wake(now, gold);
    let mut next = [gold; 7];
    assert_eq!(schedule.upcoming(&mut next), 7);
    for expected in next {
        let dispatch = schedule.next(now).unwrap();
        assert_eq!(dispatch.processor, expected);
        schedule.charge(now, expected, Nanos(1_000));
        schedule.sleep(expected);
    }
    assert_eq!(schedule.upcoming(&mut [gold; 100]), UPCOMING_MAX, "of 44");

    let asked = Asked::default();
    schedule.prefetch(others[0], SessionId(10), &asked);
    assert_eq!(asked.0.get(), 4, "itself, its ring link, the session, its heap position");
    schedule.remove(now, others[0]);
    schedule.prefetch(others[0], SessionId(10), &asked);
    assert_eq!(asked.0.get(), 4, "it is not there any more");
}
