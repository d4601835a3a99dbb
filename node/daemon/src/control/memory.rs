//! Question about the memory that is in use: cells keep account of it, and are asked before some of
//! it is promised.
//!
//! ```text
//!  Unknown ─ a change promises memory ─▶ Asked(number) ─ told, or overdue ─▶ Known ─ the change ─▶ Unknown
//! ```
//!
//! All changes wait meanwhile, so that no two are decided by one answer.

use ::session::admission::UsedBy;
use ::session::memory::{Account, Use};

/// Session for which a change wants memory promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemoryWanted {
    /// Session that the change creates.
    OfNew,
    /// Session that may exist, by its name.
    Of(String),
}

/// State of the question, for the change that is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    /// Cells have been asked, with this number.
    Asked(u64),
    Known,
}

/// Question about the memory in use.
#[derive(Debug, Default)]
pub(super) struct MemoryQuestion {
    state: State,
    /// Number of the last question.
    number: u64,
}

/// Answer to [`MemoryQuestion::handle_change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The change can be decided.
    Decide,
    /// Cells are to be asked with this number; the change waits.
    Ask(u64),
    /// Cells have been asked already; the change waits.
    Wait,
}

impl MemoryQuestion {
    /// Handles a change that wants memory promised and is next.
    pub(super) fn handle_change(&mut self) -> Next {
        match self.state {
            State::Known => {
                self.state = State::Unknown;
                Next::Decide
            }
            State::Asked(_) => Next::Wait,
            State::Unknown => {
                self.number += 1;
                self.state = State::Asked(self.number);
                Next::Ask(self.number)
            }
        }
    }

    /// Handles an answer, or the end of all cells.
    pub(super) fn handle_told(&mut self) {
        if let State::Asked(_) = self.state {
            self.state = State::Known;
        }
    }

    /// Handles the end of the time for an answer: the change is decided by what is known.
    pub(super) fn handle_overdue(&mut self, number: u64) {
        if self.state == State::Asked(number) {
            self.state = State::Known;
        }
    }
}

/// Returns what a session uses, for admission.
pub(crate) fn used_by(account: &Account) -> UsedBy {
    let queue = account.held.of(Use::Queue);
    let bytes = account.used.saturating_sub(queue);
    UsedBy { bytes, without_promise: account.reserved.is_none() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_memory_change_is_decided_by_its_own_report() {
        let mut question = MemoryQuestion::default();
        assert_eq!(question.handle_change(), Next::Ask(1));
        assert_eq!(question.handle_change(), Next::Wait);
        question.handle_told();
        assert_eq!(question.handle_change(), Next::Decide);
        assert_eq!(question.handle_change(), Next::Ask(2), "the next one asks anew");
        question.handle_overdue(1);
        assert_eq!(question.handle_change(), Next::Wait, "the time of an earlier question");
        question.handle_overdue(2);
        assert_eq!(question.handle_change(), Next::Decide);
        question.handle_told();
        assert_eq!(question.handle_change(), Next::Ask(3), "an answer that nobody waits for");
    }
}
