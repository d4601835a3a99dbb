//! Counters of the classifier for packet ports, in memory shared with the daemon.
//!
//! ```text
//! │ number of the │ each port: packets, bytes,     │ each rule: packets, │
//! │ rules in use  │ and packets by outcome         │ bytes               │
//! ```
//!
//! The daemon creates and keeps the memory, so counters survive the death of a cell.

use bpf_maps::{OUTCOME_COUNT, PORTS_MAX, PortStats, RULES_MAX, RuleStats};
use sandbox::shared_words::SharedWords;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use units::{PortId, RuleId};

const PORTS_AT: usize = 1;
/// Number of words of a port: packets, bytes, and packets by outcome.
const PORT_WORDS: usize = 2 + OUTCOME_COUNT;
const RULES_AT: usize = PORTS_AT + PORTS_MAX * PORT_WORDS;
const RULE_WORDS: usize = 2;
const WORDS: usize = RULES_AT + RULES_MAX * RULE_WORDS;

/// Counters of a cell's classifier.
#[derive(Debug)]
pub struct DoorCounts(SharedWords);

impl DoorCounts {
    /// Creates counters, all zero.
    ///
    /// # Errors
    /// The kernel has no memory or descriptors left.
    pub fn create() -> io::Result<Self> {
        SharedWords::create("tam-counts", WORDS).map(Self)
    }

    /// Opens the daemon's counters.
    pub(crate) fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        SharedWords::from_fd(fd, WORDS).map(Self)
    }

    /// Counts packets of one outcome that arrived by a port.
    pub(crate) fn add(&self, port: PortId, outcome: usize, packets: u64, bytes: u64) {
        let at = port_at(port);
        self.0.add(at, packets);
        self.0.add(at + 1, bytes);
        self.0.add(at + 2 + outcome, packets);
    }

    /// Counts packets of a rule.
    pub(crate) fn add_rule(&self, rule: RuleId, packets: u64, bytes: u64) {
        let Some(at) = rule_at(rule) else { return };
        self.0.add(at, packets);
        self.0.add(at + 1, bytes);
    }

    /// Publishes the number of the rules in use.
    pub(crate) fn set_rules(&self, number: u64) {
        self.0.word(0).store(number, Ordering::Release);
    }

    /// Returns the number of the rules in use.
    #[must_use]
    pub fn rules(&self) -> u64 {
        self.0.word(0).load(Ordering::Acquire)
    }

    /// Returns the packets that arrived by a port.
    #[must_use]
    pub fn port(&self, port: PortId) -> PortStats {
        let [rx_packets, rx_bytes] = self.0.read(port_at(port));
        let outcomes = self.0.read(port_at(port) + 2);
        PortStats { rx_packets, rx_bytes, outcomes, cache_hits: 0 }
    }

    /// Returns the packets for which a rule was the best match.
    #[must_use]
    pub fn rule(&self, rule: RuleId) -> RuleStats {
        let [packets, bytes] = rule_at(rule).map_or([0; 2], |at| self.0.read(at));
        RuleStats { packets, bytes }
    }

    /// Resets a rule's counters.
    pub fn clear_rule(&self, rule: RuleId) {
        let words = rule_at(rule).into_iter().flat_map(|at| at..at + RULE_WORDS);
        words.for_each(|at| self.0.word(at).store(0, Ordering::Relaxed));
    }
}

/// Returns the index of a port's words; a number beyond the last port, which does not occur, counts
/// with it.
fn port_at(port: PortId) -> usize {
    PORTS_AT + usize::from(port.0).min(PORTS_MAX - 1) * PORT_WORDS
}

fn rule_at(rule: RuleId) -> Option<usize> {
    let number = usize::try_from(rule.0).ok().filter(|number| *number < RULES_MAX)?;
    Some(RULES_AT + number * RULE_WORDS)
}

impl AsFd for DoorCounts {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cell_counts_the_daemon_reads() {
        let ours = DoorCounts::create().unwrap();
        let theirs = DoorCounts::from_fd(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let last = PortId(PORTS_MAX as u16 - 1);
        theirs.add(last, OUTCOME_COUNT - 1, 2, 120);
        theirs.add_rule(RuleId(RULES_MAX as u32 - 1), 1, 60);
        theirs.add_rule(RuleId(RULES_MAX as u32), 1, 60);
        theirs.set_rules(9);
        let port = ours.port(last);
        assert_eq!((port.rx_packets, port.rx_bytes), (2, 120));
        assert_eq!(port.outcomes.iter().sum::<u64>(), 2);
        assert_eq!(ours.rule(RuleId(RULES_MAX as u32 - 1)), RuleStats { packets: 1, bytes: 60 });
        assert_eq!(ours.rule(RuleId(0)), RuleStats::default());
        ours.clear_rule(RuleId(RULES_MAX as u32 - 1));
        assert_eq!(ours.rule(RuleId(RULES_MAX as u32 - 1)), RuleStats::default());
        assert_eq!(ours.rules(), 9);
    }
}
