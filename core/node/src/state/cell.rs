//! Worker process of a node: started, lost, started again after a pause.
//!
//! ```text
//!  Starting ─ ready ─▶ Ready ─ lost ─▶ Lost ─ pause over ─▶ Starting
//!     └────────────────── lost ─────────▲
//! ```

use serde::{Deserialize, Serialize};
use units::Nanos;

use crate::command::Effect;
use crate::service::Backoff;

/// State of the worker process, and the pauses before it is started again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    state: CellState,
    /// Time at which it became ready.
    since: Nanos,
    restarts: u32,
    backoff: Backoff,
}

/// State of the worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CellState {
    /// The cell has been asked to start.
    Starting,
    /// The cell is ready for work.
    Ready,
    /// The cell has ended.
    Lost {
        /// Time of the next start.
        retry_at: Nanos,
    },
}

impl Cell {
    /// Creates the cell of a new node, which has been asked to start.
    pub(super) fn starting() -> Self {
        let state = CellState::Starting;
        Self { state, since: Nanos::ZERO, restarts: 0, backoff: Backoff::default() }
    }

    /// Returns its state.
    pub(super) const fn state(&self) -> CellState {
        self.state
    }

    /// Returns the number of restarts.
    pub(super) const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns true if the cell is ready for work.
    pub(super) fn is_ready(&self) -> bool {
        self.state == CellState::Ready
    }

    /// Records that the cell is ready. Returns true if it was not before.
    pub(super) fn handle_ready(&mut self, now: Nanos) -> bool {
        if self.is_ready() {
            return false;
        }
        self.state = CellState::Ready;
        self.since = now;
        true
    }

    /// Records that the cell has ended. Returns the time of its next start, unless it was lost
    /// already.
    pub(super) fn handle_lost(&mut self, now: Nanos) -> Option<Nanos> {
        let ran_for = match self.state {
            CellState::Lost { .. } => return None,
            CellState::Starting => Nanos::ZERO,
            CellState::Ready => now.saturating_sub(self.since),
        };
        let retry_at = now + self.backoff.pause(ran_for);
        self.state = CellState::Lost { retry_at };
        Some(retry_at)
    }

    /// Starts the cell again when its pause is over.
    pub(super) fn handle_timeout(&mut self, now: Nanos) -> Option<Effect> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.state = CellState::Starting;
        self.restarts = self.restarts.saturating_add(1);
        Some(Effect::StartCell { restarts: self.restarts })
    }

    /// Returns the time at which [`Cell::handle_timeout`] is to be called.
    pub(super) const fn poll_timeout(&self) -> Option<Nanos> {
        match self.state {
            CellState::Lost { retry_at } => Some(retry_at),
            CellState::Starting | CellState::Ready => None,
        }
    }

    /// Adopts a cell that outlived its daemon; it counts as ready since its start.
    pub(super) fn resume(&mut self) {
        self.state = CellState::Ready;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_followed_by_a_longer_pause_and_one_start() {
        let mut cell = Cell::starting();
        let at = Nanos::from_millis;
        assert_eq!(cell.handle_timeout(at(9)), None, "nothing to wait for");
        assert_eq!(cell.handle_lost(at(10)), Some(at(110)));
        assert_eq!(cell.handle_lost(at(20)), None, "it is gone already");
        assert_eq!((cell.poll_timeout(), cell.handle_timeout(at(109))), (Some(at(110)), None));
        assert_eq!(cell.handle_timeout(at(110)), Some(Effect::StartCell { restarts: 1 }));
        assert_eq!((cell.state(), cell.poll_timeout()), (CellState::Starting, None));
        assert!(cell.handle_ready(at(200)) && !cell.handle_ready(at(201)));
        assert_eq!(cell.handle_lost(at(300)), Some(at(500)), "the pause has doubled");
        assert_eq!(cell.handle_timeout(at(500)), Some(Effect::StartCell { restarts: 2 }));
        assert!(cell.handle_ready(at(600)));
        assert_eq!(cell.handle_lost(at(20_000)), Some(at(20_100)), "a long run forgives");
    }
}
