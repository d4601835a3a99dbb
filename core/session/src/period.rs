//! Scheduling periods as they are reported: what was promised and given in one of them.

use serde::{Deserialize, Serialize};
use units::Nanos;

/// Period by which work without a reservation is reported: 100 ms, as in RCANE, section VI.A.
pub const NOTIONAL_PERIOD: Nanos = Nanos::from_millis(100);

/// Period of a reservation, or a notional one where nothing is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Start of the period, by the caller's clock.
    pub begin: Nanos,
    /// End of the period, which is its deadline. A wake-up that starts a new period early ends this
    /// one before it.
    pub end: Nanos,
    /// Reserved slice.
    pub promised: Nanos,
    /// Time used as guaranteed, including what overran the slice.
    pub guaranteed: Nanos,
    /// Time used from the surplus.
    #[serde(rename = "rest")]
    pub surplus: Nanos,
}

impl Period {
    pub(crate) fn notional(begin: Nanos) -> Self {
        Self { begin, end: begin + NOTIONAL_PERIOD, ..Self::default() }
    }
}
