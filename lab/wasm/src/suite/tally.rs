//! Tally of the suite: right, wrong, refused by reason; and the committed part of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Reasons inherent to eBPF, which the goal leaves out.
const OUTSIDE: [&str; 4] = ["float", "recursion", "simd", "threads"];

/// Results of a run of the suite.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    counts: Counts,
    wrong: Vec<String>,
    refused: BTreeMap<String, Vec<String>>,
}

/// Numbers of assertions; the committed file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Assertions that ran in the kernel with the right outcome.
    pub right: u64,
    /// Refused assertions, by the code of the reason.
    pub refused: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn right(&mut self) {
        self.counts.right += 1;
    }

    pub(super) fn refused(&mut self, reason: &str, place: &str) {
        *self.counts.refused.entry(reason.to_owned()).or_default() += 1;
        self.refused.entry(reason.to_owned()).or_default().push(place.to_owned());
    }

    pub(super) fn wrong(&mut self, message: String) {
        self.wrong.push(message);
    }

    /// Returns the numbers.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns file and line of refused assertions, by the code of the reason.
    #[must_use]
    pub fn refused_ones(&self) -> &BTreeMap<String, Vec<String>> {
        &self.refused
    }

    /// Returns assertions with a wrong outcome, and exports that were compiled and did not load.
    #[must_use]
    pub fn wrong_ones(&self) -> &[String] {
        &self.wrong
    }
}

impl Counts {
    /// Returns the percentage that runs of the assertions that need no floats, SIMD, threads or
    /// recursion.
    #[must_use]
    pub fn share_run(&self) -> f64 {
        let inside = self.refused.iter().filter(|(reason, _)| !OUTSIDE.contains(&reason.as_str()));
        let refused: u64 = inside.map(|(_, count)| count).sum();
        100.0 * self.right as f64 / (self.right + refused).max(1) as f64
    }
}
