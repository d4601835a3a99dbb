//! What strangers may cost: computations per second, and places per address prefix.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::BTreeMap;
use std::net::IpAddr;
use units::Nanos;

/// Diffie-Hellman computations per second, for all handshakes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub u32);

const SECOND: u64 = 1_000_000_000;

/// How a handshake's messages count, in computations of X25519 or what takes as long: an
/// ephemeral key, two shared secrets, and a signature for message 1; two secrets and a signature
/// to verify for message 2, then one secret and a signature to make; one secret and a signature
/// to verify for message 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Work {
    /// Message 1 was received.
    Initiation = 4,
    /// Message 2 was.
    Answer = 5,
    /// Message 3 was.
    Finish = 2,
}

/// A bucket of computations that fills by time and holds one second's.
#[derive(Debug)]
pub struct Bucket {
    budget: u64,
    /// In billionths of a computation.
    level: u64,
    filled: Nanos,
}

impl Bucket {
    pub fn new(now: Nanos, budget: Budget) -> Self {
        // One handshake must fit, whatever somebody says.
        let budget = u64::from(budget.0.max(4 * Work::Answer as u32));
        Self { budget, level: budget * SECOND, filled: now }
    }

    /// Takes what this work takes, if it is there. A quarter of the bucket is kept for
    /// handshakes that have begun, so that new ones never keep those from their end.
    pub fn take(&mut self, now: Nanos, work: Work) -> bool {
        self.fill(now);
        let cost = u64::from(work as u32) * SECOND;
        let kept = if work == Work::Initiation { self.full() / 4 } else { 0 };
        let is_there = self.level >= cost + kept;
        if is_there {
            self.level -= cost;
        }
        is_there
    }

    /// Whether more than half of it was taken.
    pub fn is_low(&mut self, now: Nanos) -> bool {
        self.fill(now);
        self.level < self.full() / 2
    }

    fn full(&self) -> u64 {
        self.budget * SECOND
    }

    fn fill(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.filled).0.min(SECOND);
        self.level = (self.level + passed * self.budget).min(self.full());
        self.filled = self.filled.max(now);
    }
}

/// Half-open handshakes of one prefix whose sender has not shown that he receives there: a
/// second of a small office's. Beyond, a cookie is asked for.
pub const UNPROVEN_PER_PREFIX_MAX: usize = 8;
/// Half-open handshakes of one prefix in all. Those who can be asked for cookies have a share
/// that those who forge addresses cannot take.
pub const HALF_OPEN_PER_PREFIX_MAX: usize = 32;
/// Associations that one prefix asked for: clients behind one address, or one customer's site.
pub const ASSOCIATIONS_PER_PREFIX_MAX: usize = 256;

/// What the senders of one prefix have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub unproven: usize,
    pub half_open: usize,
    pub associations: usize,
}

/// Of each prefix that has something.
#[derive(Debug, Default)]
pub struct Prefixes(BTreeMap<IpNet, Places>);

impl Prefixes {
    pub fn of(&self, address: IpAddr) -> Places {
        self.0.get(&prefix(address)).copied().unwrap_or_default()
    }

    pub fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut Places)) {
        let prefix = prefix(address);
        let places = self.0.entry(prefix).or_default();
        change(places);
        if *places == Places::default() {
            self.0.remove(&prefix);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Whom an address counts for: an IPv4 /24, the smallest that is routed in the Internet, an
/// IPv6 /56, what a customer is usually given (RFC 6177): one customer's addresses count once.
fn prefix(address: IpAddr) -> IpNet {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Net::new_assert(address, 24).trunc().into(),
        IpAddr::V6(address) => Ipv6Net::new_assert(address, 56).trunc().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_handshakes_leave_a_quarter_for_those_that_have_begun() {
        let mut bucket = Bucket::new(Nanos(0), Budget(100));
        let mut initiations = 0;
        while bucket.take(Nanos(0), Work::Initiation) {
            initiations += 1;
        }
        assert_eq!(initiations, 18, "four each, 75 of 100");
        assert!(bucket.take(Nanos(0), Work::Answer) && bucket.take(Nanos(0), Work::Finish));
        assert!(bucket.is_low(Nanos(0)));
    }

    #[test]
    fn in_any_second_no_more_is_taken_than_was_allowed_and_a_burst_of_one_second() {
        let mut bucket = Bucket::new(Nanos(0), Budget(1000));
        let taken = (0..10_000u64)
            .filter(|step| bucket.take(Nanos(step * 1_000_000), Work::Finish))
            .count();
        assert!((5_400..=5_500).contains(&taken), "{taken} in ten seconds, two each");
    }

    #[test]
    fn a_clock_that_goes_back_fills_nothing() {
        let mut bucket = Bucket::new(Nanos(SECOND), Budget(20));
        while bucket.take(Nanos(SECOND), Work::Finish) {}
        assert!(!bucket.take(Nanos(0), Work::Finish));
        assert!(!bucket.take(Nanos(SECOND), Work::Finish));
        assert!(bucket.take(Nanos(2 * SECOND), Work::Finish));
    }

    #[test]
    fn addresses_of_one_customer_count_together_and_leave_nothing() {
        let mut prefixes = Prefixes::default();
        for address in ["10.0.0.1", "10.0.0.255", "::ffff:10.0.0.9"] {
            prefixes.change(address.parse().unwrap(), |places| places.half_open += 1);
        }
        assert_eq!(prefixes.of("10.0.0.7".parse().unwrap()).half_open, 3);
        assert_eq!(prefixes.of("10.0.1.7".parse().unwrap()), Places::default());
        prefixes.change("2001:db8:0:ff::1".parse().unwrap(), |places| places.unproven += 1);
        assert_eq!(prefixes.of("2001:db8:0:1::2".parse().unwrap()).unproven, 1);
        prefixes.change("2001:db8:0:2::".parse().unwrap(), |places| places.unproven -= 1);
        prefixes.change("10.0.0.3".parse().unwrap(), |places| places.half_open = 0);
        assert_eq!(prefixes.len(), 0);
    }
}
