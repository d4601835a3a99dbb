//! Pace of calls: the decision that is asked for whenever the epoch has been raised.

use std::fmt::Debug;

/// Decision on a call that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Continues the call.
    GoOn,
    /// Continues the call, which asks again at its next loop or call: it is to end at its time
    /// exactly.
    Closely,
    /// Suspends the call until [`Suspended::resume`](crate::Suspended::resume) or
    /// [`Starting::resume`](crate::Starting::resume).
    Suspend,
    /// Ends the call with [`TrapKind::TimeLimit`](crate::TrapKind::TimeLimit).
    Stop,
}

/// Policy on how long calls run. Asked each time the epoch is raised while one runs.
pub trait Pace: Debug {
    /// Decides on the call with this number: no two calls of a process have the same, and those of
    /// an instance rise.
    fn over(&self, call: u64) -> Over;

    /// Decides on a call that is to begin: asked once before the sandbox is entered, since the
    /// epoch may have been raised for that just before, when nobody looked at it. Nothing begins
    /// unless the answer is to go on.
    fn begins(&self) -> Over {
        Over::GoOn
    }
}
