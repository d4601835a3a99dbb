//! Clock of a node: the time since it started, over all daemons that it had.

use std::time::Instant;
use units::Nanos;

/// Clock of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Creates the clock of a node that started at a moment.
    pub(crate) const fn since(started: Instant) -> Self {
        Self(started)
    }

    /// Returns the moment at which the node started.
    pub(crate) const fn started(self) -> Instant {
        self.0
    }

    /// Returns the time since the node started.
    pub(crate) fn now(self) -> Nanos {
        Nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
