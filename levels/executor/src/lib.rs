//! Preemption timer: interrupts a module that runs too long.
//!
//! The thread that runs modules owns a POSIX timer. While modules run, the timer's signal fires
//! repeatedly and raises the engine's epoch; code whose deadline has passed calls back at its
//! next loop or call, where the scheduler decides whether it continues. While the thread waits for
//! packets the timer is off and causes no wake-ups.
//!
//! ```text
//!                     arm(SLICE)                 arm(TURN_MAX)         arm_once(rest of a slice)
//!  nobody waits ──▶ ┬────2 ms────┬────2 ms────┬  others wait ──▶ ┬100 µs┬100 µs┬40┬100 µs┬
//!                   └ only to end endless calls                  └ who runs next?
//! ```
//!
//! The timer repeats: a signal that arrives between two calls raises an epoch that nobody checks,
//! so the expiry of a one-shot timer could be lost.
//!
//! Not here: the epoch and the time limit of a call (the engine and its caller), and the choice of
//! who runs next (`core/session`).

use rustix::thread::gettid;
use std::io;
use std::sync::OnceLock;
use units::Nanos;

/// Interval between interrupts of running code while nobody else has a claim to the core.
pub const SLICE: Nanos = Nanos::from_millis(2);
/// Interval between interrupts while somebody else has a claim to the core: the latest that a
/// packet of another session is noticed and that a slice ends. A signal costs 1 to 2 µs, so a
/// shorter interval would cost more than 2 %.
pub const TURN_MAX: Nanos = Nanos(100_000);

/// Shortest first interval: less counts as expired, because setting the timer takes as long. Zero
/// would switch the timer off.
const FIRST_MIN: Nanos = Nanos(1_000);

/// Action of the signal; must be async-signal-safe: an atomic addition.
type Raise = Box<dyn Fn() + Send + Sync>;
static RAISE: OnceLock<Raise> = OnceLock::new();

/// Failure to set up the preemption timer: a fault of this program or of the host.
#[derive(Debug, thiserror::Error)]
pub enum PreemptionTimerError {
    /// The process has a timer already; it has one epoch and one signal handler.
    #[error("this process already has a preemption timer")]
    Second,
    /// The kernel refused a system call.
    #[error("{step} failed: {source}")]
    System {
        /// Name of the system call.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Preemption timer of the calling thread.
#[derive(Debug)]
pub struct PreemptionTimer {
    timer: libc::timer_t,
    /// Current interval, zero while the timer is off.
    interval: Nanos,
}

impl PreemptionTimer {
    /// Makes the timer for the calling thread, switched off.
    ///
    /// `raise` runs in a signal handler: it may only do what is async-signal-safe, such as an
    /// atomic addition.
    ///
    /// # Errors
    /// The process has a timer already or the kernel refuses.
    pub fn new(raise: impl Fn() + Send + Sync + 'static) -> Result<Self, PreemptionTimerError> {
        RAISE.set(Box::new(raise)).map_err(|_| PreemptionTimerError::Second)?;
        install_handler()?;
        Ok(Self { timer: create_timer()?, interval: Nanos::ZERO })
    }

    /// Interrupts code every `interval` from now on; costs nothing when that interval is set
    /// already.
    pub fn arm(&mut self, interval: Nanos) {
        if self.interval != interval {
            self.set(interval, interval);
        }
    }

    /// Interrupts code once after `first` and every `interval` from then on, for the end of a
    /// slice: one system call.
    pub fn arm_once(&mut self, first: Nanos, interval: Nanos) {
        self.set(Nanos(first.0.max(FIRST_MIN.0)), interval);
    }

    /// Switches the timer off; costs nothing when it is off.
    pub fn disarm(&mut self) {
        self.arm(Nanos::ZERO);
    }

    fn set(&mut self, first: Nanos, interval: Nanos) {
        let time = |time: Nanos| libc::timespec { tv_sec: 0, tv_nsec: time.0 as libc::c_long };
        let value = libc::itimerspec { it_interval: time(interval), it_value: time(first) };
        // SAFETY: `timer` was made by timer_create and `value` outlives the call.
        let set = unsafe { libc::timer_settime(self.timer, 0, &value, std::ptr::null_mut()) };
        assert_eq!(set, 0, "the timer is ours and the interval is below a second");
        self.interval = interval;
    }
}

impl Drop for PreemptionTimer {
    fn drop(&mut self) {
        // SAFETY: `timer` was made by timer_create and is not used again.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// Returns the first real-time signal that the C library leaves to programs.
fn signal() -> libc::c_int {
    libc::SIGRTMIN()
}

/// Signal handler: runs on the timer's thread, touches an atomic and no lock.
extern "C" fn on_signal(_: libc::c_int) {
    if let Some(raise) = RAISE.get() {
        raise();
    }
}

fn install_handler() -> Result<(), PreemptionTimerError> {
    // SAFETY: sigaction is a plain struct of integers, for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: `action` is initialised and the handler only adds to an atomic.
    let done = unsafe { libc::sigaction(signal(), &action, std::ptr::null_mut()) };
    checked(done, "sigaction")
}

fn create_timer() -> Result<libc::timer_t, PreemptionTimerError> {
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

fn checked(done: libc::c_int, step: &'static str) -> Result<(), PreemptionTimerError> {
    if done == 0 {
        return Ok(());
    }
    Err(PreemptionTimerError::System { step, source: io::Error::last_os_error() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    // One test, because a process has one preemption timer.
    #[test]
    fn code_is_interrupted_while_the_timer_is_armed_and_as_often_as_was_said() {
        let epoch = Arc::new(AtomicU64::new(0));
        let raised = Arc::clone(&epoch);
        let mut preemption_timer = PreemptionTimer::new(move || {
            raised.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert!(matches!(PreemptionTimer::new(|| ()), Err(PreemptionTimerError::Second)));

        for interval in [SLICE, TURN_MAX] {
            let before = epoch.load(Ordering::Relaxed);
            preemption_timer.arm(interval);
            let begin = Instant::now();
            while epoch.load(Ordering::Relaxed) < before + 5 {
                assert!(begin.elapsed() < Duration::from_secs(5), "nothing was interrupted");
            }
            let least = Duration::from_nanos(interval.0) * 4;
            assert!(begin.elapsed() >= least, "5 interruptions in {:?}", begin.elapsed());
        }
        let before = epoch.load(Ordering::Relaxed);
        let begin = Instant::now();
        preemption_timer.arm_once(Nanos::from_millis(5), TURN_MAX);
        while epoch.load(Ordering::Relaxed) == before {
            assert!(begin.elapsed() < Duration::from_secs(5), "nothing was interrupted");
        }
        assert!(begin.elapsed() >= Duration::from_millis(5), "{:?}", begin.elapsed());
        preemption_timer.disarm();
        let after = epoch.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(epoch.load(Ordering::Relaxed), after);
    }
}
