//! What somebody was promised and given in one period.

use serde::{Deserialize, Serialize};
use units::Nanos;

/// The period in which the work of those who reserved nothing is shown: RCANE's, section VI.A.
pub const NOTIONAL_PERIOD: Nanos = Nanos::from_millis(100);

/// One period of a promise, or a notional one of somebody who reserved nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// When it began, by the clock that was given.
    pub begin: Nanos,
    /// When it ends, its deadline. One that was cut short by a later wake-up ended before.
    pub end: Nanos,
    /// The slice.
    pub promised: Nanos,
    /// What was given of it, with what was used beyond it.
    pub guaranteed: Nanos,
    /// What was given of what nobody reserved or uses.
    pub rest: Nanos,
}

impl Period {
    pub(crate) fn notional(begin: Nanos) -> Self {
        Self { begin, end: begin + NOTIONAL_PERIOD, ..Self::default() }
    }
}
