//! Queue of modules to fetch: waiting requests, running fetches, and the payer of each.
//!
//! ```text
//!  ask ─▶ missed recently? ─ yes ─▶ Missed, at once
//!           │ no
//!           ▼
//!         wanted already? ─ yes ─▶ waits too ───────────────────────┐
//!           │ no                                                    │
//!           ▼                                                       ▼
//!         queue ─ poll_fetch: payer with the fewest running ─▶ fetched ─▶ waiters, payer
//!                                                                   └ missed ─▶ remembered
//! ```
//!
//! Only one payer pays for a module that several want: the one that asked first, or the next one if
//! it leaves. No payer can fill a limit alone: it has at most as many places as are left for
//! others.
//!
//! **No deadlock between nodes** that fetch from each other: a request carries the number of
//! further nodes that may be asked for it ([`Hops`]), each node passes it on with one less, and a
//! request waits only for a fetch that was begun with the same number. A request therefore has
//! more hops than the one that its fetch waits for, and no cycle of nodes waits for itself.
//!
//! The queue reads no clock and fetches nothing: times come in, [`Fetch`] goes out.

use std::collections::{BTreeMap, VecDeque};
use units::Nanos;

/// Limit of modules that are wanted at a time, over all payers: far more than a node starts at
/// once, in some kilobytes.
pub const WANTED_MAX: usize = 256;
/// Limit of running fetches, for each number of hops separately, since requests with more hops wait
/// for those with fewer. All together hold some modules of megabytes, and as many connections.
pub const FETCHES_MAX: usize = 6;
/// Limit of waiting requests, over all modules and payers: ten thousand of one payer fit, and as
/// many of another.
pub const WAITING_MAX: usize = 32_768;
/// Limit of remembered misses.
pub const MISSES_MAX: usize = 4_096;
/// Time that a miss is remembered if every repository lacks the module, or if it may not run here:
/// the longest wait after somebody pushes or signs it.
pub const NOT_THERE_FOR: Nanos = Nanos::from_millis(30_000);
/// Time that a miss is remembered if some repository could not be asked: it may be back in a
/// moment.
pub const FAILED_FOR: Nanos = Nanos::from_millis(5_000);

const _: () = assert!(NOT_THERE_FOR.0 > FAILED_FOR.0, "what is known is known for longer");
const _: () = assert!(WAITING_MAX / 2 > 10_000, "of one payer");
const _: () = assert!(MISSES_MAX > WANTED_MAX, "what was wanted just now is remembered");

/// Number of further nodes that a request may be passed to, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hops(u8);

impl Hops {
    /// Hops of a request that no node has passed on: a site's node, a region's, a core's, and the
    /// registry.
    pub const MAX: Self = Self(4);
    /// No other node may be asked.
    pub const NONE: Self = Self(0);

    /// Returns this number of hops, at most [`Self::MAX`].
    #[must_use]
    pub const fn new(hops: u8) -> Self {
        if hops < Self::MAX.0 { Self(hops) } else { Self::MAX }
    }

    /// Returns the hops of a request passed on for this one; `None` if it may not be passed on.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(hops) => Some(Self(hops)),
            None => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Number of a waiting request, used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter(u64);

/// Answer to a request for a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome<R> {
    /// The request waits for a fetch.
    Waits(Waiter),
    /// The module was missed a moment ago.
    Missed {
        /// Reason of the miss.
        reason: R,
        /// Time from which the module is looked for again.
        until: Nanos,
    },
    /// The limit of wanted modules or waiting requests is reached, for this payer or for all.
    Full,
}

/// Kind of a miss, which decides how long it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Every repository lacks the module, or it may not be used.
    NotThere,
    /// Some repository could not be asked, was too slow, or lied.
    Failed,
}

/// Fetch to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch<D> {
    /// Module to fetch.
    pub digest: D,
    /// Number of further nodes that may be asked.
    pub hops: Hops,
}

/// Fetch that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended<P> {
    /// Payer of the fetch.
    pub payer: P,
    /// Waiting requests with their payers, first come first.
    pub waited: Vec<(Waiter, P)>,
}

/// Wanted modules of a node. `D` names a module, `P` a payer, `R` the reason of a miss.
#[derive(Clone, Debug)]
pub struct FetchQueue<D, P, R> {
    wanted: BTreeMap<(D, Hops), Want<P>>,
    /// Modules whose fetch has not begun, in the order of the requests.
    queue: VecDeque<(D, Hops)>,
    /// Remembered misses; one with a payer counts for that payer only.
    misses: BTreeMap<(D, Option<P>), Vec<Missed<R>>>,
    missed: usize,
    /// Number of waiting requests of each payer.
    waiting: BTreeMap<P, usize>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Want<P> {
    waiting: VecDeque<(Waiter, P)>,
    /// Payer when nobody waits any more: the last one that left.
    payer: P,
    is_begun: bool,
}

#[derive(Clone, Debug)]
struct Missed<R> {
    hops: Hops,
    reason: R,
    until: Nanos,
}

impl<D, P, R> Default for FetchQueue<D, P, R> {
    fn default() -> Self {
        Self {
            wanted: BTreeMap::new(),
            queue: VecDeque::new(),
            misses: BTreeMap::new(),
            missed: 0,
            waiting: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<D: Copy + Ord, P: Clone + Ord, R: Clone> FetchQueue<D, P, R> {
    /// Requests a module that is not in the store.
    pub fn ask(&mut self, now: Nanos, digest: D, hops: Hops, payer: P) -> RequestOutcome<R> {
        if let Some((reason, until)) = self.missed(now, digest, hops, &payer) {
            return RequestOutcome::Missed { reason, until };
        }
        let waiting: usize = self.waiting.values().sum();
        let own = self.waiting.get(&payer).copied().unwrap_or(0);
        if !has_free_slot(own, waiting, WAITING_MAX) {
            return RequestOutcome::Full;
        }
        let key = (digest, hops);
        if !self.wanted.contains_key(&key) {
            let own = self.wanted.values().filter(|want| *want.payer() == payer).count();
            if !has_free_slot(own, self.wanted.len(), WANTED_MAX) {
                return RequestOutcome::Full;
            }
            self.queue.push_back(key);
        }
        self.last += 1;
        let waiter = Waiter(self.last);
        *self.waiting.entry(payer.clone()).or_default() += 1;
        let new = || Want { waiting: VecDeque::new(), payer: payer.clone(), is_begun: false };
        let want = self.wanted.entry(key).or_insert_with(new);
        want.waiting.push_back((waiter, payer));
        RequestOutcome::Waits(waiter)
    }

    /// Returns the next fetch: the first module of the payer with the fewest running fetches.
    /// `None` while enough are running.
    pub fn poll_fetch(&mut self) -> Option<Fetch<D>> {
        let under_way = |hops: Hops| {
            let begun = self.wanted.iter().filter(|(_, want)| want.is_begun);
            begun.filter(move |(key, _)| key.1 == hops).map(|(_, want)| want.payer())
        };
        let may = |(at, key): (usize, &(D, Hops))| {
            let payer = self.wanted.get(key)?.payer();
            let own = under_way(key.1).filter(|other| *other == payer).count();
            has_free_slot(own, under_way(key.1).count(), FETCHES_MAX).then_some((own, at))
        };
        let (_, at) = self.queue.iter().enumerate().filter_map(may).min()?;
        let key = self.queue.remove(at)?;
        self.wanted.get_mut(&key)?.is_begun = true;
        Some(Fetch { digest: key.0, hops: key.1 })
    }

    /// Ends a fetch and releases its waiting requests; `None` if it was not running.
    pub fn ended(&mut self, fetch: Fetch<D>) -> Option<Ended<P>> {
        let key = (fetch.digest, fetch.hops);
        if !self.wanted.get(&key)?.is_begun {
            return None;
        }
        let want = self.wanted.remove(&key)?;
        for (_, payer) in &want.waiting {
            self.decrement_waiting(payer);
        }
        Some(Ended { payer: want.payer().clone(), waited: want.waiting.into() })
    }

    /// Remembers a miss: for everybody, or for one payer alone.
    pub fn remember(&mut self, now: Nanos, fetch: Fetch<D>, of: Option<P>, miss: Miss, reason: R) {
        self.evict_misses(now);
        let until = now
            + match miss {
                Miss::NotThere => NOT_THERE_FOR,
                Miss::Failed => FAILED_FOR,
            };
        let missed = self.misses.entry((fetch.digest, of)).or_default();
        // A miss after asking fewer nodes adds nothing to this one.
        let before = missed.len();
        missed.retain(|old| old.hops > fetch.hops);
        missed.push(Missed { hops: fetch.hops, reason, until });
        self.missed = self.missed + missed.len() - before;
    }

    /// Forgets the misses of a module that has arrived.
    pub fn arrived(&mut self, digest: D) {
        let same_module = |(key, _): &(&(D, Option<P>), &Vec<Missed<R>>)| key.0 == digest;
        let keys = self.misses.iter().filter(same_module).map(|(key, _)| key.clone());
        for key in keys.collect::<Vec<_>>() {
            self.missed -= self.misses.remove(&key).map_or(0, |missed| missed.len());
        }
    }

    /// Cancels a waiting request. A module that nobody waits for is not fetched, unless that has
    /// begun.
    pub fn cancel(&mut self, waiter: Waiter) {
        let found = self.wanted.iter_mut().find_map(|(key, want)| {
            let at = want.waiting.iter().position(|(it, _)| *it == waiter)?;
            let (_, payer) = want.waiting.remove(at)?;
            want.payer = payer.clone();
            Some((*key, payer, want.waiting.is_empty() && !want.is_begun))
        });
        let Some((key, payer, is_idle)) = found else { return };
        self.decrement_waiting(&payer);
        if is_idle {
            self.wanted.remove(&key);
            self.queue.retain(|other| *other != key);
        }
    }

    /// Returns true if a request waits for the module.
    #[must_use]
    pub fn is_wanted(&self, digest: D) -> bool {
        let same_module = (digest, Hops::NONE)..=(digest, Hops::MAX);
        self.wanted.range(same_module).any(|(_, want)| !want.waiting.is_empty())
    }

    /// Returns the number of wanted modules, and of waiting requests.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        (self.wanted.len(), self.waiting.values().sum())
    }

    fn decrement_waiting(&mut self, payer: &P) {
        if let Some(count) = self.waiting.get_mut(payer) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(payer);
            }
        }
    }

    /// Returns the remembered miss of a request with at least this many hops, and its expiry.
    fn missed(&self, now: Nanos, digest: D, hops: Hops, payer: &P) -> Option<(R, Nanos)> {
        let of = |of: Option<P>| self.misses.get(&(digest, of)).into_iter().flatten();
        let all = of(None).chain(of(Some(payer.clone())));
        let counts = all.filter(|missed| missed.hops >= hops && missed.until > now);
        let last = counts.max_by_key(|missed| missed.until)?;
        Some((last.reason.clone(), last.until))
    }

    /// Removes expired misses, and the oldest if there is no room for another.
    fn evict_misses(&mut self, now: Nanos) {
        if self.missed < MISSES_MAX {
            return;
        }
        let ends = self.misses.values().flatten().map(|missed| missed.until);
        let first = ends.min().unwrap_or(now).max(now);
        for missed in self.misses.values_mut() {
            missed.retain(|missed| missed.until > first);
        }
        self.misses.retain(|_, missed| !missed.is_empty());
        self.missed = self.misses.values().map(Vec::len).sum();
    }
}

impl<P> Want<P> {
    fn payer(&self) -> &P {
        self.waiting.front().map_or(&self.payer, |(_, payer)| payer)
    }
}

/// Returns true if a payer may have one more place: it has at most as many as are left for others.
const fn has_free_slot(own: usize, all: usize, max: usize) -> bool {
    all < max && own < max - all
}

#[cfg(test)]
mod tests;
