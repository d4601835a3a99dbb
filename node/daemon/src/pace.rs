//! Processor time that verifying and evaluating tokens may take, by source of the requests.
//!
//! A token is cheap to make and may be expensive to evaluate, and the daemon evaluates it in the
//! thread that serves all clients. So each source (the network of a peer, or the UNIX socket's
//! clients) has an account: the time of its tokens is charged, and its next request waits until the
//! account is even again. The operator, who sends no token, has none. Sans-IO: the caller passes
//! the time and waits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use units::Nanos;

/// Share of one processor that the tokens of one source may take in the long run: one part of ten.
const PARTS_OF_ONE: u64 = 10;
/// The same of all sources together: one part of four.
const PARTS_OF_ALL: u64 = 4;
/// Processor time that may be used at once, after a pause: some hundred ordinary requests.
const BURST: Nanos = Nanos::from_millis(50);
/// The same of all sources together: those of five.
const BURST_OF_ALL: Nanos = Nanos::from_millis(250);
/// Longest wait; a request that would wait longer is refused, and costs nothing.
const DELAY_MAX: Nanos = Nanos::from_millis(10_000);
/// Sources that are kept apart; more share one account.
const SOURCES_MAX: usize = 4096;

/// Sender of requests, as far as senders can be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Clients of the node's own UNIX socket.
    Local,
    /// A peer's address, or its /64 for IPv6.
    Network(IpAddr),
}

/// Account of one source: the time at which what it used would have been earned.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    even_at: Nanos,
}

impl Account {
    /// Returns the wait after `cost` more, at one part of `parts` of a processor, where `burst` may
    /// be used at once.
    fn after(self, now: Nanos, cost: Nanos, parts: u64, burst: Nanos) -> (Self, Nanos) {
        let even_at = Nanos(self.even_at.0.max(now.0).saturating_add(cost.0.saturating_mul(parts)));
        let earned = now.0.saturating_add(burst.0.saturating_mul(parts));
        (Self { even_at }, Nanos(even_at.0.saturating_sub(earned)))
    }
}

/// Accounts of all sources.
#[derive(Debug)]
pub(crate) struct Pace {
    sources: BTreeMap<Source, Account>,
    /// Account of the sources beyond [`SOURCES_MAX`].
    others: Account,
    all: Account,
}

impl Pace {
    /// Returns accounts of which each is even.
    pub(crate) const fn new() -> Self {
        let even = Account { even_at: Nanos(0) };
        Self { sources: BTreeMap::new(), others: even, all: even }
    }

    /// Charges `cost` to a source and returns how long its request is to wait; the error is how
    /// long it would have to, and then nothing is charged.
    pub(crate) fn reserve(
        &mut self,
        now: Nanos,
        source: Source,
        cost: Nanos,
    ) -> Result<Nanos, Nanos> {
        let (one, of_one) = self.account(now, source).after(now, cost, PARTS_OF_ONE, BURST);
        // The common account is charged for all when time is used: a delayed sender takes nothing
        // from others.
        let (_, of_all) = self.all.after(now, cost, PARTS_OF_ALL, BURST_OF_ALL);
        let delay = Nanos(of_one.0.max(of_all.0));
        if delay > DELAY_MAX {
            return Err(delay);
        }
        *self.account(now, source) = one;
        Ok(delay)
    }

    /// Corrects a reservation by what was used.
    pub(crate) fn settle(&mut self, now: Nanos, source: Source, reserved: Nanos, used: Nanos) {
        let account = self.account(now, source);
        let back = account.even_at.0.saturating_sub(reserved.0.saturating_mul(PARTS_OF_ONE));
        account.even_at = Nanos(back.saturating_add(used.0.saturating_mul(PARTS_OF_ONE)));
        self.all = self.all.after(now, used, PARTS_OF_ALL, BURST_OF_ALL).0;
    }

    fn account(&mut self, now: Nanos, source: Source) -> &mut Account {
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&source) {
            self.sources.retain(|_, account| account.even_at > now);
            if self.sources.len() >= SOURCES_MAX {
                return &mut self.others;
            }
        }
        self.sources.entry(source).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn peer(number: u32) -> Source {
        Source::Network(IpAddr::from(number.to_be_bytes()))
    }

    /// Sends requests of `cost` one behind the other for ten seconds; returns the time they took.
    fn used(pace: &mut Pace, source: Source, cost: Nanos) -> Nanos {
        let (mut now, mut used) = (Nanos(0), Nanos(0));
        while now < Nanos::from_millis(10_000) {
            let delay = pace.reserve(now, source, cost).unwrap();
            now = Nanos(now.0 + delay.0 + cost.0);
            used = Nanos(used.0 + cost.0);
        }
        used
    }

    #[test]
    fn a_source_has_its_share_and_a_burst() {
        let used = used(&mut Pace::new(), Source::Local, Nanos(10 * MS));
        assert!((1000 * MS..1100 * MS).contains(&used.0), "{used:?}");
    }

    #[test]
    fn cheap_requests_do_not_wait() {
        let mut pace = Pace::new();
        for at in 0..1000 {
            let now = Nanos(at * 10 * MS);
            assert_eq!(pace.reserve(now, peer(1), Nanos(MS / 2)), Ok(Nanos(0)));
        }
    }

    #[test]
    fn a_source_does_not_wait_for_another_and_all_have_a_limit() {
        let mut pace = Pace::new();
        let (now, cost) = (Nanos(0), Nanos(10 * MS));
        while pace.reserve(now, peer(1), cost).is_ok() {}
        assert_eq!(pace.reserve(now, peer(2), Nanos(MS)), Ok(Nanos(0)));
        let mut goes_at_once = |it: &u32| {
            let goes = pace.reserve(now, peer(*it), cost) == Ok(Nanos(0));
            pace.settle(now, peer(*it), cost, if goes { cost } else { Nanos(0) });
            goes
        };
        let free = (3..1000).filter(|it| goes_at_once(it)).count();
        assert!((20..30).contains(&free), "{free} sources had 10 ms each of what all may have");
    }

    #[test]
    fn a_request_that_would_wait_too_long_is_refused_and_not_charged() {
        let mut pace = Pace::new();
        let mut taken = 0;
        let refused = loop {
            match pace.reserve(Nanos(0), peer(1), Nanos(10 * MS)) {
                Ok(delay) => assert!(delay <= DELAY_MAX),
                Err(delay) => break delay,
            }
            taken += 1;
        };
        assert!(refused > DELAY_MAX);
        assert_eq!(taken, 105, "a burst of 5, and 100 that wait at 10 ms in 100");
        assert_eq!(pace.reserve(Nanos(0), peer(1), Nanos(10 * MS)), Err(refused));
        let later = Nanos::from_millis(60_000);
        assert_eq!(pace.reserve(later, peer(1), Nanos(10 * MS)), Ok(Nanos(0)));
    }

    #[test]
    fn unused_reserved_time_is_returned() {
        let mut pace = Pace::new();
        for _ in 0..1000 {
            assert_eq!(pace.reserve(Nanos(0), peer(1), Nanos(10 * MS)), Ok(Nanos(0)));
            pace.settle(Nanos(0), peer(1), Nanos(10 * MS), Nanos(10_000));
        }
    }

    #[test]
    fn accounts_have_a_limit() {
        let mut pace = Pace::new();
        for it in 0..2 * u32::try_from(SOURCES_MAX).unwrap() {
            let _ = pace.reserve(Nanos(0), peer(it), Nanos(1));
        }
        assert!(pace.sources.len() <= SOURCES_MAX);
    }
}
