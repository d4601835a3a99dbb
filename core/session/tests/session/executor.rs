//! Random sets of virtual processors on a simulated guest core: reservations are kept.
//!
//! The simulated machine follows the schedule, preempts late, wakes and stops virtual processors at
//! random or adverse moments, loses time to its host, and keeps independent accounts, which are
//! compared with the reservations. 1,000 sets in `make test`, 100,000 with `TAM_SOAK=1`.

use proptest::prop_assert;
use session::executor::{OVERRUN_MAX, ProcessorId, Schedule};
use session::{Kind, Share, VirtualProcessor, Weight};
use units::{Nanos, SessionId};

use crate::machine::Machine;
use crate::seeds::for_many_sets;
use crate::set::{Behaviour, Member, Set, processors_of, sets};

#[test]
fn no_virtual_processor_misses_its_slice_and_none_has_more() {
    for_many_sets(&sets(), |set| {
        let mut machine = Machine::new(&set);
        machine.run(|machine, before, step| {
            machine.check_slices(before, step)?;
            machine.check_periods(step)
        })?;
        machine.check_totals()
    });
}

#[test]
fn stolen_time_is_missing_only_where_there_is_no_slack() {
    for_many_sets(&sets(), |mut set| {
        set.steals = true;
        let mut machine = Machine::new(&set);
        machine.run(|machine, before, step| machine.check_slices(before, step))?;
        machine.check_totals()
    });
}

#[test]
fn the_surplus_of_a_core_is_shared_by_weight_and_none_is_lost() {
    for_many_sets(&sets(), |mut set| {
        // Two entities at least that use all the time that they get.
        set.best_effort.extend([(100, Behaviour::Busy), (250, Behaviour::Busy)]);
        let mut machine = Machine::new(&set);
        machine.run(|machine, _, _| machine.check_rest())?;
        machine.check_totals()
    });
}

#[test]
fn reservations_that_change_in_use_are_kept_before_and_after() {
    for_many_sets(&sets(), |mut set| {
        set.changes = true;
        let mut machine = Machine::new(&set);
        machine.run(|machine, _, step| machine.check_periods(step))?;
        let missed = machine.missed();
        prop_assert!(missed == Nanos::ZERO, "{missed} were promised and not given");
        Ok(())
    });
}

/// RCANE, Figure 11: A has no reservation; B, C and D arrive every 3 s with 10, 20 and 30 % of 4 ms
/// and no extra time. All of them are busy.
#[test]
fn three_reservations_of_4_ms_beside_best_effort_are_kept_in_each_period() {
    let promised = ["400us/4ms", "800us/4ms", "1200us/4ms"];
    let members = promised.map(|share| Member::busy(share.parse().unwrap()));
    let set = Set { members: members.to_vec(), stop_max: 22_000, ..Set::beside_best_effort() };
    let mut machine = Machine::new(&set);
    let mut kinds = [Nanos::ZERO; 2];
    machine
        .run(|machine, before, step| {
            if let Some((_, dispatch, used)) = step {
                kinds[usize::from(dispatch.kind == Kind::BestEffort)] += *used;
            }
            machine.check_slices(before, step)
        })
        .unwrap();
    let (guaranteed, best_effort) = (kinds[0].0, kinds[1].0);
    let parts = guaranteed * 1_000 / (guaranteed + best_effort);
    assert!((595..=605).contains(&parts), "60 % were promised: {parts} of 1,000");
}

#[test]
fn the_smallest_reservations_are_kept_when_as_many_as_fit_are_admitted() {
    let share: Share = "50us/1ms".parse().unwrap();
    let members = vec![Member::busy(share); 13];
    assert_eq!(processors_of(&members).len(), 13, "each with a stop of 22 us: 94 %");
    let set = Set { members, stop_max: 22_000, ..Set::beside_best_effort() };
    let mut machine = Machine::new(&set);
    machine.run(|machine, before, step| machine.check_slices(before, step)).unwrap();
    machine.check_totals().unwrap();
}

/// Remaining budgets of many slices may each be shorter than an overrun. An entity that wakes up
/// with such a remainder shortly before its deadline gets a new deadline, or all of them would be
/// late.
#[test]
fn remaining_slices_that_wake_together_miss_no_deadline() {
    let mut schedule = Schedule::new();
    let processor = VirtualProcessor { share: "50us/1ms".parse().unwrap(), extra: false };
    let all: Vec<ProcessorId> = (2..15)
        .map(|session| {
            schedule.add(Nanos::ZERO, SessionId(session), Some(processor), Weight::default())
        })
        .collect();
    let mut now = Nanos::ZERO;
    all.iter().for_each(|&id| schedule.wake(Nanos::ZERO, id));
    for _ in &all {
        let dispatch = schedule.next(now).unwrap();
        now += Nanos(49_000);
        schedule.charge(now, dispatch.processor, Nanos(49_000));
        schedule.sleep(dispatch.processor);
    }
    now = Nanos(980_000);
    all.iter().for_each(|&id| schedule.wake(Nanos(980_000), id));
    while now < Nanos::from_millis(3) {
        let from = now;
        now = match schedule.next(now) {
            Some(dispatch) => dispatch.until + OVERRUN_MAX,
            None => schedule.poll_timeout().unwrap(),
        };
        if let Some(dispatch) = schedule.next(from) {
            schedule.charge(now, dispatch.processor, now.saturating_sub(from));
        }
    }
    let short: Nanos = all.iter().map(|&id| schedule.account(id).unwrap().short).sum();
    assert_eq!(short, Nanos::ZERO);
}
