//! Pace of calls: the decision that is requested whenever the epoch was raised.

use std::fmt::Debug;

/// Decision on a running call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceDecision {
    /// Continues the call.
    Continue,
    /// Continues the call and asks again at its next loop or call, so that it ends exactly on time.
    ContinueClosely,
    /// Suspends the call until [`Suspended::resume`](crate::Suspended::resume) or
    /// [`Starting::resume`](crate::Starting::resume).
    Suspend,
    /// Ends the call with [`TrapKind::TimeLimit`](crate::TrapKind::TimeLimit).
    Stop,
}

/// Policy on how long calls run. Consulted each time the epoch is raised while a call runs.
pub trait Pace: Debug {
    /// Decides on the call with this number: call numbers are unique in a process, and those of an
    /// instance increase.
    fn decide(&self, call: u64) -> PaceDecision;

    /// Decides on a call that is about to begin. Consulted once before the sandbox is entered,
    /// since the epoch may have been raised just before, when no code checked it. Nothing begins
    /// unless the answer is to continue.
    fn begins(&self) -> PaceDecision {
        PaceDecision::Continue
    }
}
