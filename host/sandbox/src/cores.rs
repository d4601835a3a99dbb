//! CPU affinity and scheduling of threads. Threads and processes that a thread starts later inherit
//! them.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the last core that this thread may run on; 0 where the kernel does not say.
#[must_use]
pub fn last() -> usize {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).rev().find(|&core| set.is_set(core)).unwrap_or(0)
}

/// Returns the first core that this thread may run on; 0 where the kernel does not say.
#[must_use]
pub fn first() -> usize {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).find(|&core| set.is_set(core)).unwrap_or(0)
}

/// Returns the number of cores that this thread may run on; 1 where the kernel does not say.
#[must_use]
pub fn count() -> u16 {
    let count = sched_getaffinity(None).map_or(1, |set| set.count());
    u16::try_from(count).unwrap_or(u16::MAX).max(1)
}

/// Returns true if this thread may run on the core.
#[must_use]
pub fn may_use(core: usize) -> bool {
    core < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|set| set.is_set(core))
}

/// Restricts this thread to one core.
///
/// # Errors
/// The core does not exist.
pub fn pin_to(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    // A set has no bit for such a core, and the kernel refuses an empty one.
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Removes a core from those of this thread, unless it is the only one.
///
/// # Errors
/// The kernel refuses.
pub fn exclude(core: usize) -> io::Result<()> {
    let mut set = sched_getaffinity(None)?;
    if core < CpuSet::MAX_CPU {
        set.unset(core);
    }
    if set.count() == 0 {
        return Ok(());
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Adds a core to those of this thread, which then runs only when a core is idle.
///
/// # Errors
/// The core does not exist, or the kernel refuses.
pub fn add_when_idle(core: usize) -> io::Result<()> {
    let mut set = sched_getaffinity(None)?;
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    set.set(core);
    schedule(libc::SCHED_IDLE, 0)?;
    Ok(sched_setaffinity(None, &set)?)
}

/// Gives the calling thread precedence over all ordinary ones, like an interrupt.
///
/// # Errors
/// The caller lacks `CAP_SYS_NICE`.
pub fn set_realtime() -> io::Result<()> {
    schedule(libc::SCHED_FIFO, 1)
}

fn schedule(policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters live across the call; 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test in a thread of its own, whose affinity affects no other.
    fn alone(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(test).join().unwrap());
    }

    #[test]
    fn a_thread_leaves_a_core_to_others_unless_it_has_no_other() {
        alone(|| {
            let core = last();
            assert!(first() <= core && may_use(first()));
            let before = sched_getaffinity(None).unwrap().count();
            exclude(core).unwrap();
            let after = sched_getaffinity(None).unwrap();
            assert_eq!(after.count(), if before > 1 { before - 1 } else { 1 });
            assert_eq!(after.is_set(core), before == 1);
            pin_to(last()).unwrap();
            exclude(last()).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        });
    }

    #[test]
    fn a_thread_may_run_on_another_core_when_that_is_idle() {
        alone(|| {
            let core = last();
            exclude(core).unwrap();
            add_when_idle(core).unwrap();
            assert!(sched_getaffinity(None).unwrap().is_set(core));
            // SAFETY: 0 is the calling thread.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_IDLE);
        });
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        alone(|| {
            assert!(add_when_idle(usize::MAX).is_err());
            pin_to(CpuSet::MAX_CPU).unwrap_err();
            pin_to(CpuSet::MAX_CPU - 1).unwrap_err();
            exclude(CpuSet::MAX_CPU).unwrap();
        });
    }
}
