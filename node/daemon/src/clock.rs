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
        let passed = Nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX));
        #[cfg(test)]
        let passed = passed + skipped::time();
        passed
    }
}

/// Time that tests let pass without waiting for it.
#[cfg(test)]
pub(crate) mod skipped {
    use std::cell::Cell;
    use units::Nanos;

    thread_local! {
        static SKIPPED: Cell<Nanos> = const { Cell::new(Nanos::ZERO) };
    }

    /// Returns the time that the test of this thread has skipped.
    pub(super) fn time() -> Nanos {
        SKIPPED.get()
    }

    /// Sets all clocks of this thread's test forward.
    pub(crate) fn skip(time: Nanos) {
        SKIPPED.set(SKIPPED.get() + time);
    }
}
