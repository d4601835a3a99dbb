//! Earliest deadline first, and what is left by weight: what processors and ports have in common.
//!
//! ```text
//!            ┌───────────────────────────────────────┐
//!  first ◀───┤ ready    by the end of the period     │ promises with something left
//!            ├───────────────────────────────────────┤      ▲ period ends     │ used up
//!            │ waiting  by the end of the period     │      └─────────────────▼
//!            ├───────────────────────────────────────┤
//!  else  ◀───┤ rest     by weight                    │ who has no promise, or may have more
//!            └───────────────────────────────────────┘      and nothing of it left
//! ```
//!
//! It knows work and no units of it: a processor's is time, a port's is time on the wire in
//! smaller steps. Once everybody has been added nothing is allocated. Each call costs the
//! logarithm of how many there are; [`Edf::advance`] that for each period that has ended.

mod fair;
mod heap;
mod load;
mod server;

use units::{Nanos, SessionId};

use crate::Ahead;
use crate::kind::Kind;
use crate::period::{NOTIONAL_PERIOD, Period};
use crate::share::Share;
use crate::weight::Weight;

use fair::Fair;
use heap::Heap;
use load::Load;
pub(crate) use server::Rules;
use server::{Server, State};

/// How many of those who wait are looked at to find who will come first before somebody: what is
/// in a few lines of a cache. If more wait, the next one ends what runs, who has nothing lost.
const LOOKS_MAX: usize = 32;

/// What somebody has: a promise, and whether a part of the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// What is promised, if anything is.
    pub(crate) share: Option<Share>,
    /// Whether he has a part of the rest when nothing of that is left. Who has no promise always.
    pub(crate) extra: bool,
}

/// What a turn looks at comes first.
#[derive(Clone, Debug)]
#[repr(C)]
struct Entity {
    session: u16,
    /// Work that it could do.
    is_awake: bool,
    extra: bool,
    running: Period,
    totals: Totals,
    server: Option<Server>,
    last: Period,
    /// What its promise counts for in the load.
    cost: u64,
}

/// Work of one entity since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) guaranteed: u64,
    pub(crate) rest: u64,
    /// What was left of slices in periods that ended while there was work.
    pub(crate) short: u64,
    /// Periods that have begun.
    pub(crate) periods: u64,
}

/// Everybody who shares one processor or port.
#[derive(Clone, Debug)]
pub(crate) struct Edf {
    rules: Rules,
    entities: Vec<Option<Entity>>,
    free: Vec<u32>,
    ready: Heap,
    waiting: Heap,
    rest: Fair,
    load: Load,
}

impl Edf {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            entities: Vec::new(),
            free: Vec::new(),
            ready: Heap::default(),
            waiting: Heap::default(),
            rest: Fair::new(rules.work_per_nano),
            load: Load::new(rules.capacity),
        }
    }

    /// Adds somebody who sleeps.
    pub(crate) fn add(
        &mut self,
        now: Nanos,
        session: SessionId,
        terms: Terms,
        weight: Weight,
    ) -> u32 {
        self.rest.set_weight(session.0, weight);
        let mut entity = Entity {
            session: session.0,
            is_awake: false,
            extra: terms.extra,
            cost: 0,
            server: None,
            running: Period::notional(now),
            last: Period::default(),
            totals: Totals::default(),
        };
        if let Some(share) = terms.share {
            entity.promise(share, now, &self.rules, &mut self.load);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entities.push(None);
            let count = self.entities.len();
            self.free.reserve(count);
            self.ready.reserve(count);
            self.waiting.reserve(count);
            self.rest.reserve_members(count);
            u32::try_from(count - 1).expect("a session has a few entities, and there are 2^16")
        });
        self.entities[index as usize] = Some(entity);
        index
    }

    /// Gives somebody other terms, and his session a weight. A promise that was running goes on
    /// to the end of its period, and a higher one begins when what it takes is free.
    pub(crate) fn change(&mut self, now: Nanos, index: u32, terms: Terms, weight: Weight) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        self.rest.set_weight(entity.session, weight);
        entity.extra = terms.extra;
        match (terms.share, entity.server.is_some()) {
            (Some(share), true) => entity.promise_other(share, now, &self.rules, &mut self.load),
            (Some(share), false) => entity.promise(share, now, &self.rules, &mut self.load),
            (None, _) => entity.promise_nothing(now, &mut self.load),
        }
        if !entity.is_awake {
            return;
        }
        // Nobody falls asleep here: a change costs nobody his running period.
        if let Some(state) = entity.server.as_ref().map(Server::state) {
            self.place(index, state);
        } else {
            self.ready.take(index);
            self.waiting.take(index);
            self.rest.enter(entity.session, index);
        }
    }

    /// Takes somebody out.
    pub(crate) fn remove(&mut self, now: Nanos, index: u32) {
        self.sleep(index);
        if let Some(mut entity) = self.entities[index as usize].take() {
            entity.promise_nothing(now, &mut self.load);
            self.free.push(index);
        }
    }

    /// There is work for him.
    pub(crate) fn wake(&mut self, now: Nanos, index: u32) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        if entity.is_awake {
            return;
        }
        entity.is_awake = true;
        let state = entity.server.as_mut().map(|server| {
            let (state, begins_anew) = server.wake(now, &self.rules);
            (state, begins_anew, server.begin, server.end)
        });
        match state {
            None => self.rest.enter(entity.session, index),
            Some((state, begins_anew, begin, end)) => {
                if begins_anew {
                    entity.begin_period(begin, end);
                }
                self.place(index, state);
            }
        }
    }

    /// There is none any more.
    pub(crate) fn sleep(&mut self, index: u32) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        if entity.is_awake {
            entity.is_awake = false;
            if entity.server.is_some() {
                self.ready.take(index);
                self.waiting.take(index);
            }
            self.rest.leave(entity.session, index);
        }
    }

    /// How late somebody may be given what is left of his slice; zero at first.
    pub(crate) const fn set_late_max(&mut self, late_max: Nanos) {
        self.rules.late_max = late_max;
    }

    /// Ends the periods that are over.
    pub(crate) fn advance(&mut self, now: Nanos) {
        // Who is ready keeps his deadline until he is too late.
        let too_late = now.saturating_sub(self.rules.late_max);
        loop {
            // Nothing comes after the last nanosecond that fits, not even the next period.
            let over = |first: Option<(u64, u32)>, now: Nanos| {
                first.filter(|(end, _)| *end <= now.0 && *end < u64::MAX)
            };
            let waits = over(self.waiting.first(), now);
            let first = waits.or_else(|| over(self.ready.first(), too_late));
            let Some((_, index)) = first else { return };
            let Some(entity) = self.entities[index as usize].as_mut() else { return };
            let Some(server) = entity.server.as_mut() else { return };
            let missed = u64::try_from(server.left).unwrap_or(0);
            entity.totals.short = entity.totals.short.saturating_add(missed);
            let state = server.renew(now, &self.rules);
            let (begin, end) = (server.begin, server.end);
            entity.begin_period(begin, end);
            self.place(index, state);
        }
    }

    /// Who is next, and why. Call [`Edf::advance`] first.
    pub(crate) fn first(&self) -> Option<(u32, Kind)> {
        if let Some((_, index)) = self.ready.first() {
            return Some((index, Kind::Guaranteed));
        }
        let index = self.rest.first()?;
        let server = self.entities[index as usize].as_ref().and_then(|it| it.server.as_ref());
        let has_promise = server.is_some_and(Server::has_begun);
        Some((index, if has_promise { Kind::Extra } else { Kind::BestEffort }))
    }

    /// Who will be next; how many were found.
    pub(crate) fn upcoming(&self, next: &mut [u32]) -> usize {
        let promised = self.ready.first_ones(next, |item| item.index);
        promised + self.rest.upcoming(&mut next[promised..])
    }

    /// Has loaded what a turn of it looks at here. Nothing of it is read for that, so its session
    /// is said.
    pub(crate) fn load_ahead(&self, index: u32, session: SessionId, ahead: &impl Ahead) {
        ahead.load(&self.entities[index as usize]);
        self.rest.load_ahead(session.0, index, ahead);
    }

    /// Whether anything is promised to it.
    pub(crate) fn has_promise(&self, index: u32) -> bool {
        self.entities[index as usize].as_ref().is_some_and(|entity| entity.server.is_some())
    }

    /// Whose it is.
    pub(crate) fn session(&self, index: u32) -> SessionId {
        let entity = self.entities[index as usize].as_ref();
        entity.map_or(SessionId::BEST_EFFORT, |entity| SessionId(entity.session))
    }

    /// What is left of its slice, and when its period ends.
    pub(crate) fn left(&self, index: u32) -> Option<(u64, Nanos)> {
        let server = self.entities[index as usize].as_ref()?.server.as_ref()?;
        Some((u64::try_from(server.left).unwrap_or(0), server.end))
    }

    /// When somebody's period ends who waits for it.
    pub(crate) fn next_release(&self) -> Option<Nanos> {
        self.waiting.first().map(|(end, _)| Nanos(end))
    }

    /// When, before `limit`, somebody's period may begin that ends before `deadline`.
    pub(crate) fn next_before(&self, limit: Nanos, deadline: Nanos) -> Option<Nanos> {
        let ends_before =
            |begin: u64, period: u32| begin.saturating_add(u64::from(period)) < deadline.0;
        self.waiting.first_where(limit.0, LOOKS_MAX, ends_before).map(Nanos)
    }

    /// So much work was done for somebody.
    pub(crate) fn charge(&mut self, now: Nanos, index: u32, work: u64, kind: Kind) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        let time = Nanos(work / self.rules.work_per_nano);
        if entity.server.is_none() && now >= entity.running.end {
            entity.begin_period(now, now + NOTIONAL_PERIOD);
        }
        match (kind, entity.server.as_mut()) {
            (Kind::Guaranteed, Some(server)) => {
                entity.totals.guaranteed = entity.totals.guaranteed.saturating_add(work);
                entity.running.guaranteed += time;
                let state = server.charge(work);
                if state == State::Waiting && self.ready.has(index) {
                    self.place(index, state);
                }
            }
            _ => {
                entity.totals.rest = entity.totals.rest.saturating_add(work);
                entity.running.rest += time;
                self.rest.charge(entity.session, index, work);
            }
        }
    }

    /// Its last and its running period, and its work since it was added.
    pub(crate) fn account(&self, index: u32) -> Option<(Period, Period, Totals)> {
        let entity = self.entities.get(index as usize)?.as_ref()?;
        Some((entity.last, entity.running, entity.totals))
    }

    /// Puts somebody who is awake and has a promise where he belongs.
    fn place(&mut self, index: u32, state: State) {
        let Some(entity) = self.entities[index as usize].as_ref() else { return };
        let Some(server) = entity.server.as_ref() else { return };
        match state {
            State::Ready => {
                self.waiting.take(index);
                self.rest.leave(entity.session, index);
                self.ready.put(index, server.end.0, 0);
            }
            State::Waiting => {
                self.ready.take(index);
                let period = u32::try_from(server.next_period().0).unwrap_or(u32::MAX);
                self.waiting.put(index, server.end.0, period);
                // Who waits for his first period has as much as those without a promise.
                if entity.extra || !server.has_begun() {
                    self.rest.enter(entity.session, index);
                } else {
                    self.rest.leave(entity.session, index);
                }
            }
        }
    }

    /// How much it has room for: numbers that change only when something was allocated.
    #[cfg(test)]
    pub(crate) fn room(&self) -> impl PartialEq + core::fmt::Debug + use<> {
        let lists = (self.entities.capacity(), self.free.capacity());
        (lists, self.ready.room(), self.waiting.room(), self.rest.room())
    }
}

impl Entity {
    fn promise(&mut self, share: Share, now: Nanos, rules: &Rules, load: &mut Load) {
        self.cost = rules.cost(share);
        let from = load.join(now, self.cost);
        self.server = Some(Server::new(share, from));
    }

    fn promise_other(&mut self, share: Share, now: Nanos, rules: &Rules, load: &mut Load) {
        let Some(server) = self.server.as_mut() else { return };
        let cost = rules.cost(share);
        let from = if cost > self.cost {
            load.join(now, cost - self.cost)
        } else {
            load.leave(now, self.cost - cost, server.end);
            now
        };
        self.cost = cost;
        server.change(share, from, rules);
    }

    fn promise_nothing(&mut self, now: Nanos, load: &mut Load) {
        if let Some(server) = self.server.take() {
            load.leave(now, self.cost, server.end);
            self.cost = 0;
            self.last = self.running;
            self.running = Period::notional(now);
        }
    }

    fn begin_period(&mut self, begin: Nanos, end: Nanos) {
        self.last = core::mem::take(&mut self.running);
        let promised = self.server.as_ref().map_or(Nanos::ZERO, |server| server.share.slice());
        self.running = Period { begin, end, promised, ..Period::default() };
        self.totals.periods = self.totals.periods.saturating_add(1);
    }
}
