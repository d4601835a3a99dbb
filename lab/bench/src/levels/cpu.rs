//! CPU affinity and processor time of the measuring thread.

use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Affinity of this thread to one CPU, until dropped.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the thread to the last CPU that it may use: the first one handles the interrupts.
    pub(crate) fn new() -> Result<Self> {
        let before = sched_getaffinity(None).context("asking which CPUs there are")?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| before.is_set(cpu));
        let mut one = CpuSet::new();
        one.set(last.unwrap_or_default());
        sched_setaffinity(None, &one).context("staying on one CPU")?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The affinity was allowed before; otherwise the thread stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Returns the thread's processor time, without what others take of the CPU.
pub(crate) fn time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
