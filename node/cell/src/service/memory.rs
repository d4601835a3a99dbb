//! A service and its session's memory: what it is charged for, and what its module is told.

use super::Service;
use engine::{Call, StartError};
use session::memory::{Low, Short};
use units::CoarseInstant;

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartFailure {
    /// Its session has not that much memory.
    #[error("{0}")]
    Memory(#[source] Short),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<Short> for StartFailure {
    fn from(short: Short) -> Self {
        Self::Memory(short)
    }
}

impl Service {
    /// Why an instance did not start: what it was refused of memory comes before what it says.
    pub(super) fn why(&self, error: StartError) -> StartFailure {
        self.room.take_short().map_or(error.into(), StartFailure::Memory)
    }
}

/// The hook that tells a module.
pub(super) fn call(low: &Low, now: CoarseInstant) -> Call {
    let kibibytes = |bytes: u64| u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
    Call::MemoryLow {
        used: kibibytes(low.used.0),
        most: kibibytes(low.most.0),
        now_ms: now.as_millis(),
    }
}
