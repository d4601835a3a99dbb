//! Limits of the load that unauthenticated senders can cause: computations per second, and entries
//! per address prefix.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::collections::BTreeMap;
use std::net::IpAddr;
use units::Nanos;

/// Budget of Diffie-Hellman computations per second for all handshakes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub u32);

const SECOND: u64 = 1_000_000_000;

/// Cost of handling a handshake message, in computations of X25519 or of equal time: for message 1
/// an ephemeral key, two shared secrets and a signature; for message 2 two shared secrets and a
/// signature to verify, then one secret and a signature to make; for message 3 one secret and a
/// signature to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Work {
    /// Message 1, handled by the responder.
    Initiation = 4,
    /// Message 2, handled by the initiator.
    Answer = 5,
    /// Message 3, handled by the responder.
    Finish = 2,
}

/// Token bucket of computations that holds one second's budget.
#[derive(Debug)]
pub struct Bucket {
    budget: u64,
    /// Tokens, in billionths of a computation.
    level: u64,
    filled: Nanos,
}

impl Bucket {
    pub fn new(now: Nanos, budget: Budget) -> Self {
        // One whole handshake has to fit, whatever the configuration says.
        let budget = u64::from(budget.0.max(4 * Work::Answer as u32));
        Self { budget, level: budget * SECOND, filled: now }
    }

    /// Takes the tokens for this work if they are there. A quarter of the bucket is reserved for
    /// handshakes in progress, so that new ones cannot prevent their completion.
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

    /// Returns true if less than half of the tokens are left.
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

/// Largest number of half-open handshakes per prefix without proof of the source address: one
/// second's load of a small office. Beyond it cookies are required.
pub const UNPROVEN_PER_PREFIX_MAX: usize = 8;
/// Largest number of half-open handshakes per prefix in all. Initiators with cookies have a part of
/// it that forged addresses cannot take.
pub const HALF_OPEN_PER_PREFIX_MAX: usize = 32;
/// Largest number of associations initiated from one prefix: clients behind one address, or one
/// customer's site.
pub const ASSOCIATIONS_PER_PREFIX_MAX: usize = 256;

/// Number of entries of one prefix, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    pub unproven: usize,
    pub half_open: usize,
    pub associations: usize,
}

/// Entry counts of each prefix with at least one entry.
#[derive(Debug, Default)]
pub struct Prefixes(BTreeMap<IpNet, PrefixCounts>);

impl Prefixes {
    pub fn of(&self, address: IpAddr) -> PrefixCounts {
        self.0.get(&prefix(address)).copied().unwrap_or_default()
    }

    pub fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut PrefixCounts)) {
        let prefix = prefix(address);
        let counts = self.0.entry(prefix).or_default();
        change(counts);
        if *counts == PrefixCounts::default() {
            self.0.remove(&prefix);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the prefix that an address counts for: an IPv4 /24, the longest prefix routed in the
/// Internet, or an IPv6 /56, a customer's usual assignment (RFC 6177), so that all addresses of a
/// customer count together.
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
    fn new_handshakes_leave_a_quarter_for_those_in_progress() {
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
    fn the_budget_is_kept_with_a_burst_of_one_second() {
        let mut bucket = Bucket::new(Nanos(0), Budget(1000));
        let taken = (0..10_000u64)
            .filter(|step| bucket.take(Nanos(step * 1_000_000), Work::Finish))
            .count();
        assert!((5_400..=5_500).contains(&taken), "{taken} in ten seconds, two each");
    }

    #[test]
    fn a_clock_that_goes_back_adds_no_tokens() {
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
            prefixes.change(address.parse().unwrap(), |counts| counts.half_open += 1);
        }
        assert_eq!(prefixes.of("10.0.0.7".parse().unwrap()).half_open, 3);
        assert_eq!(prefixes.of("10.0.1.7".parse().unwrap()), PrefixCounts::default());
        prefixes.change("2001:db8:0:ff::1".parse().unwrap(), |counts| counts.unproven += 1);
        assert_eq!(prefixes.of("2001:db8:0:1::2".parse().unwrap()).unproven, 1);
        prefixes.change("2001:db8:0:2::".parse().unwrap(), |counts| counts.unproven -= 1);
        prefixes.change("10.0.0.3".parse().unwrap(), |counts| counts.half_open = 0);
        assert_eq!(prefixes.len(), 0);
    }
}
