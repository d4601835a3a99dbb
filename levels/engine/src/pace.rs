//! How long calls go on: what is asked whenever the epoch has been raised.

use std::fmt::Debug;

/// What is to become of a call that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It goes on.
    GoOn,
    /// It goes on, and is asked again at its next loop or call: it is to end at its time exactly.
    Closely,
    /// It stands still, until [`Suspended::resume`] or [`Starting::resume`](crate::Starting::resume).
    Suspend,
    /// It ends, with [`TrapKind::TimeLimit`].
    Stop,
}

/// Who says how long calls run. Asked each time the epoch is raised while one runs.
pub trait Pace: Debug {
    /// What becomes of the call with this number: no two calls of a process have the same, and
    /// those of an instance rise.
    fn over(&self, call: u64) -> Over;

    /// What becomes of a call that is to begin: asked once before the sandbox is entered, since the
    /// epoch may have been raised for that just before, when nobody looked at it. Nothing begins
    /// unless it is to go on.
    fn begins(&self) -> Over {
        Over::GoOn
    }
}
