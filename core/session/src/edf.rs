//! Earliest-deadline-first scheduling of reservations, with weighted fair queueing of the surplus;
//! shared by processors and ports.
//!
//! ```text
//!            ┌───────────────────────────────────────┐
//!  first ◀───┤ ready    by the end of the period     │ reservations with budget left
//!            ├───────────────────────────────────────┤      ▲ period ends     │ used up
//!            │ waiting  by the end of the period     │      └─────────────────▼
//!            ├───────────────────────────────────────┤
//!  else  ◀───┤ surplus  by weight                    │ entities without a reservation, or
//!            └───────────────────────────────────────┘      with extra time and no budget left
//! ```
//!
//! Work is counted in abstract units: time for a processor, picoseconds on the wire for a port.
//! After the last [`Edf::add`] nothing is allocated. A call costs O(log n) of the number of
//! entities; [`Edf::advance`] that for each period that has ended.

mod fair;
mod heap;
mod load;
mod server;

use units::{Nanos, SessionId};

use crate::Prefetch;
use crate::kind::Kind;
use crate::period::{NOTIONAL_PERIOD, Period};
use crate::share::Share;
use crate::weight::Weight;

use fair::Fair;
use heap::Heap;
use load::Load;
pub(crate) use server::Params;
use server::{Server, State};

/// Bound of waiting entities examined for the next preemption: what fits into a few cache lines. If
/// it is exceeded, the running entity is dispatched for a shorter time than necessary, which loses
/// nothing.
const VISITS_MAX: usize = 32;

/// Entitlement of an entity: an optional reservation, and whether it takes part in the surplus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entitlement {
    /// Reserved share, if any.
    pub(crate) share: Option<Share>,
    /// True if it takes part in the surplus when its budget is used up. Entities without a
    /// reservation always do.
    pub(crate) extra: bool,
}

/// Schedulable entity: a virtual processor, or a session at a port. Fields that a dispatch reads
/// come first.
#[derive(Clone, Debug)]
#[repr(C)]
struct Entity {
    session: u16,
    /// True while it has work.
    is_awake: bool,
    extra: bool,
    running: Period,
    totals: Totals,
    server: Option<Server>,
    last: Period,
    /// Share of its reservation in the load, in parts per million.
    cost: u64,
}

/// Work done by one entity since it was added, in units of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) guaranteed: u64,
    pub(crate) surplus: u64,
    /// Budget left at the end of periods in which there was work.
    pub(crate) short: u64,
    /// Number of periods that have begun.
    pub(crate) periods: u64,
}

/// Schedule of one processor or port.
#[derive(Clone, Debug)]
pub(crate) struct Edf {
    params: Params,
    entities: Vec<Option<Entity>>,
    free: Vec<u32>,
    ready: Heap,
    waiting: Heap,
    surplus: Fair,
    load: Load,
}

impl Edf {
    pub(crate) fn new(params: Params) -> Self {
        Self {
            params,
            entities: Vec::new(),
            free: Vec::new(),
            ready: Heap::default(),
            waiting: Heap::default(),
            surplus: Fair::new(params.work_per_nano),
            load: Load::new(params.capacity),
        }
    }

    /// Adds an entity, which sleeps, and returns its index.
    pub(crate) fn add(
        &mut self,
        now: Nanos,
        session: SessionId,
        entitlement: Entitlement,
        weight: Weight,
    ) -> u32 {
        self.surplus.set_weight(session.0, weight);
        let mut entity = Entity {
            session: session.0,
            is_awake: false,
            extra: entitlement.extra,
            cost: 0,
            server: None,
            running: Period::notional(now),
            last: Period::default(),
            totals: Totals::default(),
        };
        if let Some(share) = entitlement.share {
            entity.reserve(share, now, &self.params, &mut self.load);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.entities.push(None);
            let count = self.entities.len();
            self.free.reserve(count);
            self.ready.reserve(count);
            self.waiting.reserve(count);
            self.surplus.reserve_members(count);
            u32::try_from(count - 1).expect("a session has a few entities, and there are 2^16")
        });
        self.entities[index as usize] = Some(entity);
        index
    }

    /// Changes an entity's entitlement and its session's weight. A decrease takes effect at the end
    /// of the current period, an increase when the load that it needs is free.
    pub(crate) fn change(
        &mut self,
        now: Nanos,
        index: u32,
        entitlement: Entitlement,
        weight: Weight,
    ) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        self.surplus.set_weight(entity.session, weight);
        entity.extra = entitlement.extra;
        match (entitlement.share, entity.server.is_some()) {
            (Some(share), true) => {
                entity.change_reservation(share, now, &self.params, &mut self.load)
            }
            (Some(share), false) => entity.reserve(share, now, &self.params, &mut self.load),
            (None, _) => entity.unreserve(now, &mut self.load),
        }
        if !entity.is_awake {
            return;
        }
        // Entities stay awake here, so that a change does not cost an entity its current period.
        if let Some(state) = entity.server.as_ref().map(Server::state) {
            self.enqueue(index, state);
        } else {
            self.ready.remove(index);
            self.waiting.remove(index);
            self.surplus.enter(entity.session, index);
        }
    }

    /// Removes an entity.
    pub(crate) fn remove(&mut self, now: Nanos, index: u32) {
        self.sleep(index);
        if let Some(mut entity) = self.entities[index as usize].take() {
            entity.unreserve(now, &mut self.load);
            self.free.push(index);
        }
    }

    /// Marks an entity as having work. No effect if it is awake.
    pub(crate) fn wake(&mut self, now: Nanos, index: u32) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        if entity.is_awake {
            return;
        }
        entity.is_awake = true;
        let state = entity.server.as_mut().map(|server| {
            let (state, is_new_period) = server.wake(now, &self.params);
            (state, is_new_period, server.begin, server.end)
        });
        match state {
            None => self.surplus.enter(entity.session, index),
            Some((state, is_new_period, begin, end)) => {
                if is_new_period {
                    entity.begin_period(begin, end);
                }
                self.enqueue(index, state);
            }
        }
    }

    /// Marks an entity as having no work.
    pub(crate) fn sleep(&mut self, index: u32) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        if entity.is_awake {
            entity.is_awake = false;
            if entity.server.is_some() {
                self.ready.remove(index);
                self.waiting.remove(index);
            }
            self.surplus.leave(entity.session, index);
        }
    }

    /// Sets how long after its deadline an entity keeps its remaining budget; initially zero.
    pub(crate) const fn set_lateness_max(&mut self, lateness_max: Nanos) {
        self.params.lateness_max = lateness_max;
    }

    /// Ends the periods that are over and begins the next ones.
    pub(crate) fn advance(&mut self, now: Nanos) {
        // Ready entities keep their deadline and budget for `lateness_max` beyond it.
        let too_late = now.saturating_sub(self.params.lateness_max);
        loop {
            // Deadlines at `u64::MAX` never end: no later period can be represented.
            let over = |first: Option<(u64, u32)>, now: Nanos| {
                first.filter(|(end, _)| *end <= now.0 && *end < u64::MAX)
            };
            let waiting = over(self.waiting.first(), now);
            let first = waiting.or_else(|| over(self.ready.first(), too_late));
            let Some((_, index)) = first else { return };
            let Some(entity) = self.entities[index as usize].as_mut() else { return };
            let Some(server) = entity.server.as_mut() else { return };
            let missed = u64::try_from(server.budget).unwrap_or(0);
            entity.totals.short = entity.totals.short.saturating_add(missed);
            let state = server.renew(now, &self.params);
            let (begin, end) = (server.begin, server.end);
            entity.begin_period(begin, end);
            self.enqueue(index, state);
        }
    }

    /// Returns the entity to dispatch and the class of its time. Call [`Edf::advance`] first.
    pub(crate) fn first(&self) -> Option<(u32, Kind)> {
        if let Some((_, index)) = self.ready.first() {
            return Some((index, Kind::Guaranteed));
        }
        let index = self.surplus.first()?;
        let server = self.entities[index as usize].as_ref().and_then(|it| it.server.as_ref());
        let has_reservation = server.is_some_and(Server::has_begun);
        Some((index, if has_reservation { Kind::Extra } else { Kind::BestEffort }))
    }

    /// Fills `next` with the entities to be dispatched next, in order; returns their number.
    pub(crate) fn upcoming(&self, next: &mut [u32]) -> usize {
        let reserved = self.ready.first_ones(next, |item| item.index);
        reserved + self.surplus.upcoming(&mut next[reserved..])
    }

    /// Prefetches what a dispatch of the entity reads here. Takes the session as an argument, since
    /// reading the entity would be the cache miss to avoid.
    pub(crate) fn prefetch(&self, index: u32, session: SessionId, cache: &impl Prefetch) {
        cache.prefetch(&self.entities[index as usize]);
        self.surplus.prefetch(session.0, index, cache);
    }

    /// Returns true if the entity has a reservation.
    pub(crate) fn has_reservation(&self, index: u32) -> bool {
        self.entities[index as usize].as_ref().is_some_and(|entity| entity.server.is_some())
    }

    /// Returns the session of the entity.
    pub(crate) fn session(&self, index: u32) -> SessionId {
        let entity = self.entities[index as usize].as_ref();
        entity.map_or(SessionId::BEST_EFFORT, |entity| SessionId(entity.session))
    }

    /// Returns the remaining budget of the entity, and the end of its period.
    pub(crate) fn budget(&self, index: u32) -> Option<(u64, Nanos)> {
        let server = self.entities[index as usize].as_ref()?.server.as_ref()?;
        Some((u64::try_from(server.budget).unwrap_or(0), server.end))
    }

    /// Returns the earliest end of a period that an entity with work waits for.
    pub(crate) fn next_release(&self) -> Option<Nanos> {
        self.waiting.first().map(|(end, _)| Nanos(end))
    }

    /// Returns the earliest time before `limit` at which a waiting entity's new period may begin
    /// that ends before `deadline`.
    pub(crate) fn next_before(&self, limit: Nanos, deadline: Nanos) -> Option<Nanos> {
        let ends_before =
            |begin: u64, period: u32| begin.saturating_add(u64::from(period)) < deadline.0;
        self.waiting.first_where(limit.0, VISITS_MAX, ends_before).map(Nanos)
    }

    /// Charges an entity with work done in time of class `kind`.
    pub(crate) fn charge(&mut self, now: Nanos, index: u32, work: u64, kind: Kind) {
        let Some(entity) = self.entities[index as usize].as_mut() else { return };
        let time = Nanos(work / self.params.work_per_nano);
        if entity.server.is_none() && now >= entity.running.end {
            entity.begin_period(now, now + NOTIONAL_PERIOD);
        }
        match (kind, entity.server.as_mut()) {
            (Kind::Guaranteed, Some(server)) => {
                entity.totals.guaranteed = entity.totals.guaranteed.saturating_add(work);
                entity.running.guaranteed += time;
                let state = server.charge(work);
                if state == State::Waiting && self.ready.contains(index) {
                    self.enqueue(index, state);
                }
            }
            _ => {
                entity.totals.surplus = entity.totals.surplus.saturating_add(work);
                entity.running.surplus += time;
                self.surplus.charge(entity.session, index, work);
            }
        }
    }

    /// Returns the previous and the current period, and the totals since the entity was added.
    pub(crate) fn account(&self, index: u32) -> Option<(Period, Period, Totals)> {
        let entity = self.entities.get(index as usize)?.as_ref()?;
        Some((entity.last, entity.running, entity.totals))
    }

    /// Puts an entity that is awake and has a reservation into the queues that match its state.
    fn enqueue(&mut self, index: u32, state: State) {
        let Some(entity) = self.entities[index as usize].as_ref() else { return };
        let Some(server) = entity.server.as_ref() else { return };
        match state {
            State::Ready => {
                self.waiting.remove(index);
                self.surplus.leave(entity.session, index);
                self.ready.insert(index, server.end.0, 0);
            }
            State::Waiting => {
                self.ready.remove(index);
                let period = u32::try_from(server.next_period().0).unwrap_or(u32::MAX);
                self.waiting.insert(index, server.end.0, period);
                // Until its first period begins, an entity competes for the surplus like one
                // without a reservation.
                if entity.extra || !server.has_begun() {
                    self.surplus.enter(entity.session, index);
                } else {
                    self.surplus.leave(entity.session, index);
                }
            }
        }
    }

    /// Returns the capacities of all lists, which change only if something was allocated.
    #[cfg(test)]
    pub(crate) fn capacities(&self) -> impl PartialEq + core::fmt::Debug + use<> {
        let lists = (self.entities.capacity(), self.free.capacity());
        (lists, self.ready.capacities(), self.waiting.capacities(), self.surplus.capacities())
    }
}

impl Entity {
    fn reserve(&mut self, share: Share, now: Nanos, params: &Params, load: &mut Load) {
        self.cost = params.cost(share);
        let from = load.reserve(now, self.cost);
        self.server = Some(Server::new(share, from));
    }

    fn change_reservation(&mut self, share: Share, now: Nanos, params: &Params, load: &mut Load) {
        let Some(server) = self.server.as_mut() else { return };
        let cost = params.cost(share);
        let from = if cost > self.cost {
            load.reserve(now, cost - self.cost)
        } else {
            load.release(now, self.cost - cost, server.end);
            now
        };
        self.cost = cost;
        server.change(share, from, params);
    }

    fn unreserve(&mut self, now: Nanos, load: &mut Load) {
        if let Some(server) = self.server.take() {
            load.release(now, self.cost, server.end);
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
