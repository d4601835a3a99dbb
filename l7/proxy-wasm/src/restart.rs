//! Restart policy of a crashed VM: exponential back-off.
//!
//! Only crashes outside streams count. Otherwise a client that makes a module trap could keep it
//! away from all other clients.

/// First wait, long enough that a module which crashes at once costs little.
const WAIT_MS_FIRST: u64 = 100;
/// Longest wait: a module that has been fixed is back within a minute.
const WAIT_MS_MAX: u64 = 60_000;
/// Time without a crash after which a service has recovered: its next crash counts as the first
/// one.
const RECOVERED_MS: u64 = 60_000;

/// Restart state of one service's VM. The time is an argument of each call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restart {
    started_ms: u64,
    wait_ms: u64,
    crashes: u64,
}

impl Restart {
    /// Records a start after a crash and its wait.
    pub const fn started(&mut self, now_ms: u64) {
        self.started_ms = now_ms;
    }

    /// Records a crash or a failed start; returns the earliest time of the next start.
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

    /// Returns the number of crashes.
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
