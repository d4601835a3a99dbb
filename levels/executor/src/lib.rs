//! Slices: what stops a module that runs too long.
//!
//! The thread that runs modules owns a POSIX timer. While it works, the
//! timer's signal interrupts it every [`SLICE`] and raises the engine's epoch;
//! code whose deadline has passed traps at its next loop or call. While the
//! thread waits for packets the timer is off and nothing wakes up.
//!
//! The timer runs by the wall's clock, which is exact where the kernel's timers of processor
//! time are as coarse as its tick. So the handler looks how long the thread has really run: a
//! call does not pay for the time in which the kernel gave its core to somebody else.
//!
//! Not here: what the epoch is (the engine) and who is charged (the session).

use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use units::Nanos;

/// How often the epoch is raised while modules run.
///
/// A call may take [`CALL_SLICES`] of them: with one more for the phase a call
/// ends within 8 ms of processor time, and 10 ms are promised.
pub const SLICE: Nanos = Nanos::from_millis(2);
/// Slices that one call of a module may see begin. A short call can meet two without fault:
/// one by its phase, and one because the kernel counts the interrupts that it served
/// meanwhile (up to 2 ticks of softirq) as the thread's time.
pub const CALL_SLICES: u64 = 3;
/// What of a slice the thread must have run for the next one to begin: less than all, since
/// two signals are never a whole slice of processor time apart.
const RUN_MIN: Nanos = Nanos(SLICE.0 / 2);

const _: () = assert!(SLICE.as_millis() * (CALL_SLICES + 1) < 10, "a call ends within 10 ms");

/// What the signal does; it must be safe in a signal handler: an atomic addition.
type Raise = Box<dyn Fn() + Send + Sync>;
static RAISE: OnceLock<Raise> = OnceLock::new();
/// The thread's processor time at which the current slice began, in nanoseconds.
static SLICE_BEGAN: AtomicU64 = AtomicU64::new(0);

/// Why there is no slicer. Our own fault or the host's.
#[derive(Debug, thiserror::Error)]
pub enum SlicerError {
    /// The process has one epoch and one handler.
    #[error("this process already has a slicer")]
    Second,
    /// The kernel refused a step.
    #[error("{step} failed: {source}")]
    System {
        /// Which system call.
        step: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// The timer of the calling thread.
#[derive(Debug)]
pub struct Slicer {
    timer: libc::timer_t,
    armed: bool,
}

impl Slicer {
    /// Makes the timer for the calling thread, switched off.
    ///
    /// `raise` runs in a signal handler: it may only do what is
    /// async-signal-safe, such as an atomic addition.
    ///
    /// # Errors
    /// When the process has one already or the kernel refuses.
    pub fn new(raise: impl Fn() + Send + Sync + 'static) -> Result<Self, SlicerError> {
        RAISE.set(Box::new(raise)).map_err(|_| SlicerError::Second)?;
        install_handler()?;
        Ok(Self { timer: create_timer()?, armed: false })
    }

    /// Switches the slices on; costs nothing when they are.
    pub fn arm(&mut self) {
        if !self.armed {
            self.set(SLICE);
        }
    }

    /// Switches the slices off; costs nothing when they are.
    pub fn disarm(&mut self) {
        if self.armed {
            self.set(Nanos::ZERO);
        }
    }

    fn set(&mut self, interval: Nanos) {
        let each = libc::timespec { tv_sec: 0, tv_nsec: interval.0 as libc::c_long };
        let value = libc::itimerspec { it_interval: each, it_value: each };
        // SAFETY: `timer` was made by timer_create and `value` outlives the call.
        let set = unsafe { libc::timer_settime(self.timer, 0, &value, std::ptr::null_mut()) };
        assert_eq!(set, 0, "the timer is ours and the interval is below a second");
        self.armed = interval != Nanos::ZERO;
    }
}

impl Drop for Slicer {
    fn drop(&mut self) {
        // SAFETY: `timer` was made by timer_create and is not used again.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// The first real-time signal that the C library leaves to programs.
fn signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Runs on the slicer's thread. It makes one system call, touches atomics and no lock.
extern "C" fn on_signal(_: libc::c_int) {
    let ran = processor_time();
    if ran.wrapping_sub(SLICE_BEGAN.load(Ordering::Relaxed)) < RUN_MIN.0 {
        return;
    }
    SLICE_BEGAN.store(ran, Ordering::Relaxed);
    if let Some(raise) = RAISE.get() {
        raise();
    }
}

/// How long the calling thread has run, in nanoseconds.
fn processor_time() -> u64 {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    (ran.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ran.tv_nsec as u64)
}

fn install_handler() -> Result<(), SlicerError> {
    // SAFETY: sigaction is a plain struct of integers, for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: `action` is initialised and the handler only adds to an atomic.
    let done = unsafe { libc::sigaction(signal(), &action, std::ptr::null_mut()) };
    checked(done, "sigaction")
}

fn create_timer() -> Result<libc::timer_t, SlicerError> {
    // SAFETY: sigevent is a plain struct of integers, for which zeroes are valid.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = signal();
    event.sigev_notify_thread_id = gettid().as_raw_nonzero().get();
    let mut timer = std::ptr::null_mut();
    // SAFETY: `event` and `timer` outlive the call.
    let done = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
    checked(done, "timer_create")?;
    Ok(timer)
}

fn checked(done: libc::c_int, step: &'static str) -> Result<(), SlicerError> {
    if done == 0 {
        return Ok(());
    }
    Err(SlicerError::System { step, source: io::Error::last_os_error() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    // One test, because a process has one slicer.
    #[test]
    fn slices_begin_while_armed_and_running_and_only_then() {
        let epoch = Arc::new(AtomicU64::new(0));
        let raised = Arc::clone(&epoch);
        let mut slicer = Slicer::new(move || {
            raised.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert!(matches!(Slicer::new(|| ()), Err(SlicerError::Second)));

        slicer.arm();
        let begin = Instant::now();
        while epoch.load(Ordering::Relaxed) < 5 {
            assert!(begin.elapsed() < Duration::from_secs(5), "no slice began");
        }
        // The signal wakes the thread each time, and each time it has hardly run.
        let before = epoch.load(Ordering::Relaxed);
        let begin = Instant::now();
        while let Some(left) = Duration::from_millis(50).checked_sub(begin.elapsed()) {
            std::thread::sleep(left);
        }
        assert!(epoch.load(Ordering::Relaxed) <= before + 1, "a slice began without running");
        slicer.disarm();
        let after = epoch.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(epoch.load(Ordering::Relaxed), after);
    }
}
