//! Watchdog of the cell process: reports one that does not answer, and has it ended.
//!
//! ```text
//! each second: a question ─▶ cell ─▶ anything ─▶ all is well
//!                             │ 5 looks without a word: an event
//!                             ▼ 30: it is ended, and another one starts
//! ```
//!
//! Polls are counted instead of time: a machine that was suspended has sent no questions meanwhile.

/// Polls without an answer after which operators are notified.
const TOLD_AFTER: u32 = 5;
/// Looks without a word until the cell is ended. On a busy machine a cell says something within a
/// second; a debugger that holds it has half a minute.
pub(crate) const ENDED_AFTER: u32 = 30;

/// Result of a poll of the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchdogPoll {
    /// Send the cell a question.
    Ask,
    /// No action: an answer is pending and not late.
    Wait,
    /// Report that the cell is silent.
    Report,
    /// End the cell.
    End,
}

/// Counter of polls without an answer.
#[derive(Debug, Default)]
pub(crate) struct CellWatch {
    /// Looks since it said something.
    silent: u32,
}

impl CellWatch {
    /// Looks whether it has answered; called once a second while there is a cell.
    pub(crate) fn poll(&mut self) -> WatchdogPoll {
        self.silent += 1;
        match self.silent {
            1 => WatchdogPoll::Ask,
            TOLD_AFTER => WatchdogPoll::Report,
            ENDED_AFTER.. => WatchdogPoll::End,
            _ => WatchdogPoll::Wait,
        }
    }

    /// Returns true if the cell has been silent for so long that operators were notified.
    pub(crate) const fn is_silent(&self) -> bool {
        self.silent >= TOLD_AFTER
    }

    /// Records a message, or another cell. Returns true if operators had been notified of its
    /// silence.
    pub(crate) fn handle_word(&mut self) -> bool {
        std::mem::take(&mut self.silent) >= TOLD_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_cell_is_reported_once_and_then_ended() {
        let mut watch = CellWatch::default();
        for _ in 0..3 {
            assert_eq!(watch.poll(), WatchdogPoll::Ask);
            assert!(!watch.handle_word(), "it answers");
        }
        let looks: Vec<WatchdogPoll> = (0..ENDED_AFTER).map(|_| watch.poll()).collect();
        let count = |what| looks.iter().filter(|it| **it == what).count();
        assert_eq!(
            (looks[0], looks[4], looks[29]),
            (WatchdogPoll::Ask, WatchdogPoll::Report, WatchdogPoll::End)
        );
        assert_eq!(
            [WatchdogPoll::Ask, WatchdogPoll::Report, WatchdogPoll::End, WatchdogPoll::Wait]
                .map(count),
            [1, 1, 1, 27]
        );
        assert!(watch.handle_word(), "whoever was told hears that it is over");
        assert_eq!(watch.poll(), WatchdogPoll::Ask);
    }
}
