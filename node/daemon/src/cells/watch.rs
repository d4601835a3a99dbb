//! Watchdog of the cell process: reports one that does not answer, and has it ended.
//!
//! ```text
//! each second: a question ─▶ cell ─▶ anything ─▶ all is well
//!                             │ 5 looks without a word: an event
//!                             ▼ 30: it is ended, and another one starts
//! ```
//!
//! Looks are counted, and time is not: a machine that stood still has asked nobody meanwhile.

/// Looks without a word until operators hear of it.
const TOLD_AFTER: u32 = 5;
/// Looks without a word until the cell is ended. On a busy machine a cell says something within a
/// second; a debugger that holds it has half a minute.
pub(crate) const ENDED_AFTER: u32 = 30;

/// Action that a look at the watchdog asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Send the cell a question.
    Ask,
    /// No action: an answer is pending and not late.
    Wait,
    /// Report that the cell is silent.
    Tell,
    /// End the cell.
    End,
}

/// Counter of looks without an answer.
#[derive(Debug, Default)]
pub(crate) struct CellWatch {
    /// Looks since it said something.
    silent: u32,
}

impl CellWatch {
    /// Looks whether it has answered; called once a second while there is a cell.
    pub(crate) fn look(&mut self) -> Look {
        self.silent += 1;
        match self.silent {
            1 => Look::Ask,
            TOLD_AFTER => Look::Tell,
            ENDED_AFTER.. => Look::End,
            _ => Look::Wait,
        }
    }

    /// Returns true when it has been silent for so long that operators were told.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent >= TOLD_AFTER
    }

    /// Takes note of a message, or of another cell. True when operators were told that there was
    /// none.
    pub(crate) fn handle_word(&mut self) -> bool {
        std::mem::take(&mut self.silent) >= TOLD_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_silent_is_told_of_once_and_ended() {
        let mut watch = CellWatch::default();
        for _ in 0..3 {
            assert_eq!(watch.look(), Look::Ask);
            assert!(!watch.handle_word(), "it answers");
        }
        let looks: Vec<Look> = (0..ENDED_AFTER).map(|_| watch.look()).collect();
        let count = |what| looks.iter().filter(|it| **it == what).count();
        assert_eq!((looks[0], looks[4], looks[29]), (Look::Ask, Look::Tell, Look::End));
        assert_eq!([Look::Ask, Look::Tell, Look::End, Look::Wait].map(count), [1, 1, 1, 27]);
        assert!(watch.handle_word(), "whoever was told hears that it is over");
        assert_eq!(watch.look(), Look::Ask);
    }
}
