//! Simulated guest core: runs a schedule and keeps independent accounts.

use proptest::prop_assert;
use proptest::test_runner::TestCaseResult;
use session::executor::{Dispatch, EXTRA_MAX, OVERRUN_MAX, ProcessorId, Schedule};
use session::{Kind, Period, VirtualProcessor, Weight};
use units::{Nanos, SessionId};

use crate::set::{self, Behaviour, Set, processors_of};
use testbase::Chance;

/// Time stolen by the host: duration, and shortest interval.
const STOLEN_MAX: u64 = 100_000;
const STOLEN_EVERY: u64 = 10_000_000;

/// Simulated entity with what it was observed to get.
struct Seen {
    id: ProcessorId,
    session: SessionId,
    weight: u64,
    promise: Option<VirtualProcessor>,
    behaviour: Behaviour,
    is_awake: bool,
    /// Time of its next work.
    wakes: Option<Nanos>,
    /// Work left until it sleeps.
    work: u64,
    /// Time since when it has had work without a break.
    awake_since: Nanos,
    guaranteed: u64,
    surplus: u64,
    /// Busy entities only: periods that ended.
    ended: u64,
    /// Use in the period that the schedule reports as current.
    period: Period,
    got: u64,
    /// Overrun of earlier periods, lower and upper bound.
    owes: (u64, u64),
}

/// Step of the simulation: index of the entity that ran, its dispatch, and the time used.
pub type Step = Option<(usize, Dispatch, Nanos)>;

/// Simulated guest core.
pub struct Machine {
    schedule: Schedule,
    chance: Chance,
    now: Nanos,
    horizon: Nanos,
    stop_max: u64,
    all: Vec<Seen>,
    /// Time at which the host steals next; `None` for never.
    steals: Option<Nanos>,
    stolen_times: u64,
    changes: bool,
    has_slack_for_thieves: bool,
}

impl Machine {
    pub fn new(set: &Set) -> Self {
        let mut machine = Self {
            schedule: Schedule::new(),
            chance: Chance(set.seed),
            now: Nanos(set.seed % 1_000_000_000),
            horizon: Nanos::ZERO,
            stop_max: set.stop_max,
            all: Vec::new(),
            steals: None,
            stolen_times: 0,
            changes: set.changes,
            has_slack_for_thieves: set.has_slack_for(STOLEN_MAX, STOLEN_EVERY),
        };
        machine.steals = set.steals.then_some(machine.now);
        machine.horizon = machine.now + set.length();
        let promised = processors_of(&set.members);
        let promised = promised
            .iter()
            .zip(&set.members)
            .map(|(processor, member)| (Some(*processor), member.weight, member.behaviour));
        let best_effort = set.best_effort.iter().map(|&(weight, what)| (None, weight, what));
        for (promise, weight, behaviour) in promised.chain(best_effort).collect::<Vec<_>>() {
            machine.add(promise, weight, behaviour);
        }
        machine
    }

    fn add(&mut self, promise: Option<VirtualProcessor>, weight: u16, behaviour: Behaviour) {
        let session = SessionId(u16::try_from(self.all.len()).unwrap());
        let id = self.schedule.add(self.now, session, promise, Weight::new(weight).unwrap());
        let wakes = self.now + Nanos(self.chance.between(0, 5_000_000));
        self.all.push(Seen {
            id,
            session,
            weight: u64::from(weight),
            promise,
            behaviour,
            is_awake: false,
            wakes: Some(wakes),
            work: 0,
            awake_since: Nanos::ZERO,
            guaranteed: 0,
            surplus: 0,
            ended: 0,
            period: Period::default(),
            got: 0,
            owes: (0, 0),
        });
    }

    /// Runs to the end and passes each step, with the time before it, to `check`.
    pub fn run(
        &mut self,
        mut look: impl FnMut(&mut Self, Nanos, &Step) -> TestCaseResult,
    ) -> TestCaseResult {
        while self.now < self.horizon {
            let before = self.now;
            self.wake_up();
            if self.changes && self.chance.one_in(200) {
                self.change();
            }
            let step = match self.schedule.next(self.now) {
                None => {
                    self.check_idle()?;
                    let wakes = self.all.iter().filter_map(|seen| seen.wakes);
                    let event = wakes.chain(self.schedule.poll_timeout()).min();
                    let event = event.unwrap_or(self.horizon).min(self.horizon);
                    prop_assert!(event > self.now, "nothing would ever happen");
                    self.now = event;
                    None
                }
                Some(dispatch) => Some(self.dispatch(dispatch)?),
            };
            look(self, before, &step)?;
            if let Some((who, ..)) = step {
                self.go_to_sleep(who);
            }
        }
        Ok(())
    }

    fn wake_up(&mut self) {
        for seen in &mut self.all {
            if seen.wakes.is_some_and(|at| at <= self.now) {
                seen.wakes = None;
                seen.is_awake = true;
                seen.awake_since = self.now;
                seen.work = seen.behaviour.work(&mut self.chance, seen.promise);
                self.schedule.wake(self.now, seen.id);
            }
        }
    }

    /// Runs an entity until its work is done or it is preempted, late.
    fn dispatch(
        &mut self,
        dispatch: Dispatch,
    ) -> Result<(usize, Dispatch, Nanos), proptest::test_runner::TestCaseError> {
        let who = self.all.iter().position(|seen| seen.id == dispatch.processor).unwrap();
        prop_assert!(self.all[who].is_awake, "somebody runs who sleeps");
        prop_assert!(dispatch.until > self.now, "somebody runs for no time");
        let from = self.now;
        let late = if self.chance.one_in(2) { self.chance.between(0, self.stop_max) } else { 0 };
        // Another entity wakes up meanwhile: the running one is preempted, or the new one waits.
        let wakes = self.all.iter().filter_map(|seen| seen.wakes).min();
        let wakes = wakes.filter(|_| self.chance.one_in(2)).unwrap_or(dispatch.until);
        let mut until = dispatch.until.min(wakes.max(from + Nanos(1)));
        until += Nanos(late);
        let mut used = until.saturating_sub(from);
        if self.steals.is_some_and(|at| at < until) {
            // The theft happens in the middle; the entity is preempted at the planned time.
            let stolen = self.chance.between(1, STOLEN_MAX).min(used.0 - 1);
            used = Nanos(used.0 - stolen);
            self.stolen_times += 1;
            let next = until + Nanos(self.chance.between(STOLEN_EVERY, 3 * STOLEN_EVERY));
            self.steals = Some(next);
        } else if self.all[who].work < used.0 {
            used = Nanos(self.all[who].work.max(1));
            until = from + used;
        }
        self.now = until;
        self.schedule.charge(until, dispatch.processor, used);
        let seen = &mut self.all[who];
        seen.work = seen.work.saturating_sub(used.0);
        match dispatch.kind {
            Kind::Guaranteed => seen.guaranteed += used.0,
            Kind::Extra | Kind::BestEffort => seen.surplus += used.0,
        }
        let may_have_it = seen.promise.is_none_or(|promise| promise.extra);
        prop_assert!(dispatch.kind == Kind::Guaranteed || may_have_it || self.changes);
        Ok((who, dispatch, used))
    }

    fn go_to_sleep(&mut self, who: usize) {
        let seen = &mut self.all[who];
        if seen.work == 0 && seen.behaviour != Behaviour::Busy {
            let account = self.schedule.account(seen.id).unwrap();
            self.schedule.sleep(seen.id);
            seen.is_awake = false;
            seen.wakes = Some(seen.behaviour.wakes(&mut self.chance, self.now, &account.running));
        }
    }

    /// Takes a reservation from one entity and gives as much to another, or replaces an entity.
    fn change(&mut self) {
        let with: Vec<usize> =
            (0..self.all.len()).filter(|&at| self.all[at].promise.is_some()).collect();
        let Some(&one) = with.get(self.chance.between(0, 999) as usize % with.len().max(1)) else {
            return;
        };
        let mut promise = self.all[one].promise.unwrap();
        promise.share = set::smaller(promise.share, &mut self.chance);
        let weight = Weight::new(u16::try_from(self.all[one].weight).unwrap()).unwrap();
        if self.chance.one_in(3) {
            // Removed, and added again at once with a new handle.
            self.schedule.remove(self.now, self.all[one].id);
            let (session, was) = (self.all[one].session, self.all[one].promise);
            self.all[one].id = self.schedule.add(self.now, session, was, weight);
            self.all[one].period = Period::default();
            (self.all[one].got, self.all[one].owes) = (0, (0, 0));
            if self.all[one].is_awake {
                self.schedule.wake(self.now, self.all[one].id);
                self.all[one].awake_since = self.now;
            }
            return;
        }
        let other = with[self.chance.between(0, 999) as usize % with.len()];
        if other == one {
            return;
        }
        // One decrease and one increase by what it frees, in this order.
        let (mine, his) = (self.all[one].promise, self.all[other].promise);
        let Some((mine, his)) = set::exchanged(mine.unwrap(), his.unwrap(), promise.share) else {
            return;
        };
        let his_weight = Weight::new(u16::try_from(self.all[other].weight).unwrap()).unwrap();
        self.schedule.change(self.now, self.all[one].id, Some(mine), weight);
        self.schedule.change(self.now, self.all[other].id, Some(his), his_weight);
        (self.all[one].promise, self.all[other].promise) = (Some(mine), Some(his));
    }

    /// Checks entities that are always awake: after n periods they have had n slices, and at most
    /// one overrun more.
    pub fn check_slices(&mut self, before: Nanos, step: &Step) -> TestCaseResult {
        for at in 0..self.all.len() {
            let seen = &self.all[at];
            let Some(promise) = seen.promise.filter(|_| seen.behaviour == Behaviour::Busy) else {
                continue;
            };
            if !seen.is_awake {
                continue;
            }
            let period = promise.share.period().0;
            let end = seen.awake_since.0 + (seen.ended + 1) * period;
            if self.now.0 < end {
                continue;
            }
            // Use in this step after the end belongs to the next period.
            let ran = step
                .as_ref()
                .filter(|(who, dispatch, _)| *who == at && dispatch.kind == Kind::Guaranteed);
            let late = ran.map_or(0, |(.., used)| used.0.min(self.now.0 - end));
            let got = seen.guaranteed - late;
            let promised = (seen.ended + 1) * promise.share.slice().0;
            let lost = if self.has_slack_for_thieves { 0 } else { self.stolen_times * STOLEN_MAX };
            prop_assert!(got + lost >= promised, "{promise}: {got} of {promised} ns, {:?}", before);
            prop_assert!(got <= promised + OVERRUN_MAX.0, "{promise}: {got} of {promised} ns");
            self.all[at].ended += 1;
        }
        Ok(())
    }

    /// Checks all entities: a period with work from begin to end has a full slice less the overrun
    /// of earlier periods, and no period has more than a slice and an overrun.
    pub fn check_periods(&mut self, step: &Step) -> TestCaseResult {
        let ran = step.as_ref().map(|(who, dispatch, used)| (*who, dispatch.kind, used.0));
        for (at, seen) in self.all.iter_mut().enumerate() {
            if seen.promise.is_none() {
                continue;
            }
            // Periods end in `next`; use in this step belongs to the current one.
            let account = self.schedule.account(seen.id).unwrap();
            if account.running.begin != seen.period.begin {
                let Period { begin, end, promised, .. } = seen.period;
                let had_work = promised > Nanos::ZERO
                    && seen.awake_since <= begin
                    && seen.is_awake
                    && account.running.begin >= end;
                let (least, most) = (seen.got + seen.owes.0, seen.got + seen.owes.1);
                prop_assert!(!had_work || most >= promised.0, "{most} of {promised} in a period");
                prop_assert!(
                    least <= promised.0 + OVERRUN_MAX.0,
                    "{least} of {promised} in a period"
                );
                // A period that began late has less by what exceeded its bandwidth before.
                let goes_on = account.running.begin == end;
                let over = |got: u64| got.saturating_sub(promised.0).min(OVERRUN_MAX.0);
                seen.owes = if goes_on { (over(least), over(most)) } else { (0, OVERRUN_MAX.0) };
                seen.got = 0;
            }
            seen.period = account.running;
            if let Some((who, Kind::Guaranteed, used)) = ran
                && who == at
            {
                seen.got += used;
            }
        }
        Ok(())
    }

    /// Checks that of two backlogged entities neither is ahead by more than one dispatch of each,
    /// by weight.
    pub fn check_rest(&mut self) -> TestCaseResult {
        let wants = |seen: &&Seen| {
            seen.promise.is_none() && seen.behaviour == Behaviour::Busy && seen.is_awake
        };
        let turn = EXTRA_MAX.0 + OVERRUN_MAX.0;
        for one in self.all.iter().filter(wants) {
            for other in self.all.iter().filter(wants) {
                // Both count from the arrival of the later one.
                if one.awake_since > other.awake_since || one.session >= other.session {
                    continue;
                }
                let (a, b) = (one.surplus / one.weight, other.surplus / other.weight);
                let bound = turn / one.weight + turn / other.weight + 3;
                let early = other.awake_since.saturating_sub(one.awake_since).0 / one.weight;
                prop_assert!(a.saturating_sub(b) <= bound + early, "{a} and {b} ns by weight");
                prop_assert!(b.saturating_sub(a) <= bound, "{a} and {b} ns by weight");
            }
        }
        Ok(())
    }

    /// Checks that the core is idle only if nothing may run.
    fn check_idle(&self) -> TestCaseResult {
        for seen in self.all.iter().filter(|seen| seen.is_awake) {
            let rests = seen.promise.is_some_and(|promise| !promise.extra);
            prop_assert!(rests, "somebody could run, and the core is idle");
            let running = self.schedule.account(seen.id).unwrap().running;
            let is_used_up = running.guaranteed + Nanos(OVERRUN_MAX.0) >= running.promised;
            prop_assert!(is_used_up || self.changes, "a slice is left, and the core is idle");
        }
        Ok(())
    }

    /// Compares the schedule's accounts with the machine's. Over the whole run no entity has more
    /// than its share, and nothing reserved is missing.
    pub fn check_totals(&self) -> TestCaseResult {
        let start =
            Nanos(self.horizon.0 - set::length_of(self.all.iter().filter_map(|s| s.promise)).0);
        for seen in &self.all {
            let account = self.schedule.account(seen.id).unwrap();
            prop_assert!(
                account.guaranteed.0 == seen.guaranteed && account.surplus.0 == seen.surplus
            );
            let Some(share) = seen.promise.map(|promise| promise.share) else { continue };
            let passed = u128::from(self.now.saturating_sub(start).0);
            let period = u128::from(share.period().0);
            let most = u128::from(share.slice().0) * (passed + period) / period;
            let most = most + u128::from(OVERRUN_MAX.0);
            prop_assert!(u128::from(seen.guaranteed) <= most, "{} of {most} ns", seen.guaranteed);
        }
        let lost = if self.has_slack_for_thieves { 0 } else { self.stolen_times * STOLEN_MAX };
        let missed = self.missed();
        prop_assert!(missed.0 <= lost * self.all.len() as u64, "{missed} are missing");
        Ok(())
    }

    /// Returns the budget lost, by the schedule's own account.
    pub fn missed(&self) -> Nanos {
        self.all.iter().map(|seen| self.schedule.account(seen.id).unwrap().short).sum()
    }
}
