//! When a VM may be started again that has crashed by itself: later each time.
//!
//! Only what no stream has caused counts. A client that makes a module trap would else have it
//! kept away from everybody.

/// The first wait: long enough that a module which crashes at once costs little.
const WAIT_MS_FIRST: u64 = 100;
/// The longest wait: an operator sees a module that has been mended within a minute.
const WAIT_MS_MAX: u64 = 60_000;
/// A service that has gone without such a crash for so long has recovered: its next one is a first one.
const RECOVERED_MS: u64 = 60_000;

/// Crashes of one service's VM that no stream has caused. The time comes in with each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restart {
    started_ms: u64,
    wait_ms: u64,
    crashes: u64,
}

impl Restart {
    /// A VM was started behind a crash and its wait.
    pub const fn started(&mut self, now_ms: u64) {
        self.started_ms = now_ms;
    }

    /// It crashed, or did not start; says when it may be started again.
    #[must_use]
    pub fn crashed(&mut self, now_ms: u64) -> u64 {
        self.crashes += 1;
        let ran_ms = now_ms.saturating_sub(self.started_ms);
        self.wait_ms = match self.wait_ms {
            0 => WAIT_MS_FIRST,
            _ if ran_ms >= RECOVERED_MS => WAIT_MS_FIRST,
            wait_ms => (2 * wait_ms).min(WAIT_MS_MAX),
        };
        now_ms.saturating_add(self.wait_ms)
    }

    /// How often it has crashed.
    #[must_use]
    pub const fn crashes(&self) -> u64 {
        self.crashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_until_it_has_recovered() {
        let mut restart = Restart::default();
        let mut now_ms = 1_000;
        let mut waits = Vec::new();
        for _ in 0..12 {
            restart.started(now_ms);
            let again_ms = restart.crashed(now_ms);
            waits.push(again_ms - now_ms);
            now_ms = again_ms;
        }
        assert_eq!(waits[..4], [100, 200, 400, 800]);
        assert_eq!(waits[10..], [60_000, 60_000]);
        restart.started(now_ms);
        assert_eq!(restart.crashed(now_ms + RECOVERED_MS), now_ms + RECOVERED_MS + 100);
        assert_eq!(restart.crashes(), 13);
    }
}
