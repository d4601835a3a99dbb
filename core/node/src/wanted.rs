//! Modules that are wanted and not there: who waits for which, what is fetched, who pays.
//!
//! ```text
//!  ask ─▶ missed lately? ─ yes ─▶ Missed, at once
//!           │ no
//!           ▼
//!         wanted already? ─ yes ─▶ one more waits ──────────────┐
//!           │ no                                               │
//!           ▼                                                  ▼
//!         queue ─ poll_fetch: whose payer has least under way ─▶ fetched ─▶ who waited, who pays
//!                                                                  └ missed ─▶ remembered
//! ```
//!
//! Of all that want one module one payer pays: who asked first, and if he goes the next one.
//! Nobody can fill it alone: a payer has at most as many places as are left for others.
//!
//! **Nodes that ask each other** end: a request says how many more nodes may be asked for it
//! ([`Hops`]), each node on its way sends one less, and a request waits only for a fetch that was
//! begun with as many as it has. So what waits for a fetch has more than what that fetch waits
//! for, and no circle of nodes waits for itself.
//!
//! It reads no clock and fetches nothing: times come in, [`Fetch`] goes out.

use std::collections::{BTreeMap, VecDeque};
use units::Nanos;

/// Modules that are wanted at a time, over all payers: far more than a node starts at once, in
/// some kilobytes.
pub const WANTED_MAX: usize = 256;
/// Fetches under way at a time, of each number of hops apart: those of requests that may ask
/// fewer nodes are what others wait for. All together hold some modules of megabytes, and as many
/// connections.
pub const FETCHES_MAX: usize = 6;
/// Who waits, over all modules and payers: ten thousand of one payer fit, and the same of
/// another.
pub const WAITING_MAX: usize = 32_768;
/// Misses that are remembered.
pub const MISSES_MAX: usize = 4_096;
/// So long a module is not looked for again that every repository says it does not have, or that
/// may not run here: who pushes or signs it waits so long at most.
pub const NOT_THERE_FOR: Nanos = Nanos::from_millis(30_000);
/// The same for one that some repository could not be asked for: it may be back in a moment.
pub const FAILED_FOR: Nanos = Nanos::from_millis(5_000);

const _: () = assert!(NOT_THERE_FOR.0 > FAILED_FOR.0, "what is known is known for longer");
const _: () = assert!(WAITING_MAX / 2 > 10_000, "of one payer");
const _: () = assert!(MISSES_MAX > WANTED_MAX, "what was wanted just now is remembered");

/// How many more nodes may be asked for something, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hops(u8);

impl Hops {
    /// Of a request that no node has sent on: a site's node, a region's, a core's, and the
    /// registry behind it.
    pub const MAX: Self = Self(4);
    /// Nobody else is asked.
    pub const NONE: Self = Self(0);

    /// So many, as far as they are allowed.
    #[must_use]
    pub const fn new(hops: u8) -> Self {
        if hops < Self::MAX.0 { Self(hops) } else { Self::MAX }
    }

    /// What a request has that is sent for this one; none when nobody may be asked.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(hops) => Some(Self(hops)),
            None => None,
        }
    }

    /// As a number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Who waits, by a number that is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter(u64);

/// What becomes of who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked<R> {
    /// He waits for a fetch.
    Waits(Waiter),
    /// It was looked for a moment ago.
    Missed {
        /// What came of it.
        reason: R,
        /// It is looked for again from then on.
        until: Nanos,
    },
    /// So much is wanted already, of his or of all.
    Full,
}

/// Why something did not come, as far as it matters for how long that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Every repository says that it does not have it, or it may not be had.
    NotThere,
    /// Some repository could not be asked, was too slow, or lied.
    Failed,
}

/// Something to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch<D> {
    /// What.
    pub digest: D,
    /// With how many more nodes.
    pub hops: Hops,
}

/// A fetch that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended<P> {
    /// Who pays for what came.
    pub payer: P,
    /// Who waited, first come first.
    pub waited: Vec<(Waiter, P)>,
}

/// All that is wanted. `D` is what names a module, `P` a payer, `R` the reason of a miss.
#[derive(Clone, Debug)]
pub struct Wanted<D, P, R> {
    wanted: BTreeMap<(D, Hops), Want<P>>,
    /// Those that nobody fetches yet, in the order in which they were asked for.
    queue: VecDeque<(D, Hops)>,
    /// Of those with a payer only that payer has missed it.
    misses: BTreeMap<(D, Option<P>), Vec<Missed<R>>>,
    missed: usize,
    /// How many wait, of each payer.
    waiting: BTreeMap<P, usize>,
    last: u64,
}

#[derive(Clone, Debug)]
struct Want<P> {
    waiting: VecDeque<(Waiter, P)>,
    /// Who pays when nobody waits any more: who went last.
    payer: P,
    is_begun: bool,
}

#[derive(Clone, Debug)]
struct Missed<R> {
    hops: Hops,
    reason: R,
    until: Nanos,
}

impl<D, P, R> Default for Wanted<D, P, R> {
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

impl<D: Copy + Ord, P: Clone + Ord, R: Clone> Wanted<D, P, R> {
    /// Somebody wants a module that is not there.
    pub fn ask(&mut self, now: Nanos, digest: D, hops: Hops, payer: P) -> Asked<R> {
        if let Some((reason, until)) = self.missed(now, digest, hops, &payer) {
            return Asked::Missed { reason, until };
        }
        let waiting: usize = self.waiting.values().sum();
        let own = self.waiting.get(&payer).copied().unwrap_or(0);
        if !has_place(own, waiting, WAITING_MAX) {
            return Asked::Full;
        }
        let key = (digest, hops);
        if !self.wanted.contains_key(&key) {
            let own = self.wanted.values().filter(|want| *want.payer() == payer).count();
            if !has_place(own, self.wanted.len(), WANTED_MAX) {
                return Asked::Full;
            }
            self.queue.push_back(key);
        }
        self.last += 1;
        let waiter = Waiter(self.last);
        *self.waiting.entry(payer.clone()).or_default() += 1;
        let new = || Want { waiting: VecDeque::new(), payer: payer.clone(), is_begun: false };
        let want = self.wanted.entry(key).or_insert_with(new);
        want.waiting.push_back((waiter, payer));
        Asked::Waits(waiter)
    }

    /// What to fetch next: of those that wait for it the one whose payer has least under way,
    /// and the first of these. None while enough is under way.
    pub fn poll_fetch(&mut self) -> Option<Fetch<D>> {
        let under_way = |hops: Hops| {
            let begun = self.wanted.iter().filter(|(_, want)| want.is_begun);
            begun.filter(move |(key, _)| key.1 == hops).map(|(_, want)| want.payer())
        };
        let may = |(at, key): (usize, &(D, Hops))| {
            let payer = self.wanted.get(key)?.payer();
            let own = under_way(key.1).filter(|other| *other == payer).count();
            has_place(own, under_way(key.1).count(), FETCHES_MAX).then_some((own, at))
        };
        let (_, at) = self.queue.iter().enumerate().filter_map(may).min()?;
        let key = self.queue.remove(at)?;
        self.wanted.get_mut(&key)?.is_begun = true;
        Some(Fetch { digest: key.0, hops: key.1 })
    }

    /// A fetch has ended: nobody waits for it any more. None when it was not under way.
    pub fn ended(&mut self, fetch: Fetch<D>) -> Option<Ended<P>> {
        let key = (fetch.digest, fetch.hops);
        if !self.wanted.get(&key)?.is_begun {
            return None;
        }
        let want = self.wanted.remove(&key)?;
        for (_, payer) in &want.waiting {
            self.one_less(payer);
        }
        Some(Ended { payer: want.payer().clone(), waited: want.waiting.into() })
    }

    /// Has a miss remembered: for everybody, or for one payer alone.
    pub fn remember(&mut self, now: Nanos, fetch: Fetch<D>, of: Option<P>, miss: Miss, reason: R) {
        self.forget_old(now);
        let until = now
            + match miss {
                Miss::NotThere => NOT_THERE_FOR,
                Miss::Failed => FAILED_FOR,
            };
        let missed = self.misses.entry((fetch.digest, of)).or_default();
        // One that was made with fewer nodes says nothing that this one does not.
        let before = missed.len();
        missed.retain(|old| old.hops > fetch.hops);
        missed.push(Missed { hops: fetch.hops, reason, until });
        self.missed = self.missed + missed.len() - before;
    }

    /// It is there now.
    pub fn came(&mut self, digest: D) {
        let of_it = |(key, _): &(&(D, Option<P>), &Vec<Missed<R>>)| key.0 == digest;
        let keys = self.misses.iter().filter(of_it).map(|(key, _)| key.clone());
        for key in keys.collect::<Vec<_>>() {
            self.missed -= self.misses.remove(&key).map_or(0, |missed| missed.len());
        }
    }

    /// Who waited does so no more. What nobody waits for is not fetched, unless that has begun.
    pub fn leave(&mut self, waiter: Waiter) {
        let found = self.wanted.iter_mut().find_map(|(key, want)| {
            let at = want.waiting.iter().position(|(it, _)| *it == waiter)?;
            let (_, payer) = want.waiting.remove(at)?;
            want.payer = payer.clone();
            Some((*key, payer, want.waiting.is_empty() && !want.is_begun))
        });
        let Some((key, payer, is_idle)) = found else { return };
        self.one_less(&payer);
        if is_idle {
            self.wanted.remove(&key);
            self.queue.retain(|other| *other != key);
        }
    }

    /// Whether somebody waits for it.
    #[must_use]
    pub fn is_wanted(&self, digest: D) -> bool {
        let of_it = (digest, Hops::NONE)..=(digest, Hops::MAX);
        self.wanted.range(of_it).any(|(_, want)| !want.waiting.is_empty())
    }

    /// Modules that are wanted, and who waits for them.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        (self.wanted.len(), self.waiting.values().sum())
    }

    fn one_less(&mut self, payer: &P) {
        if let Some(count) = self.waiting.get_mut(payer) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(payer);
            }
        }
    }

    /// What was missed with at least as many nodes.
    fn missed(&self, now: Nanos, digest: D, hops: Hops, payer: &P) -> Option<(R, Nanos)> {
        let of = |of: Option<P>| self.misses.get(&(digest, of)).into_iter().flatten();
        let all = of(None).chain(of(Some(payer.clone())));
        let counts = all.filter(|missed| missed.hops >= hops && missed.until > now);
        let last = counts.max_by_key(|missed| missed.until)?;
        Some((last.reason.clone(), last.until))
    }

    /// Makes room for one more.
    fn forget_old(&mut self, now: Nanos) {
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

/// Whether somebody may have one more place: he has at most as many as are left.
const fn has_place(own: usize, all: usize, max: usize) -> bool {
    all < max && own < max - all
}

#[cfg(test)]
mod tests;
