//! Bare loop on the cell's core: the share of a slice that the machine itself leaves.
//!
//! ```text
//!   ├── slice: spins ──┤ the timer ends it ├────── spins ──────┤ the next period
//! ```
//!
//! No packets, no modules, no sessions: a timer of the same kind as the cell's ends each slice. Its
//! error from one slice to the next is the timer's noise, and the time that the host took.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use executor::{PreemptionTimer, TURN_MAX};
use units::Nanos;

use crate::rounds::percentile;

/// Thread that owns the timer; a process has only one.
pub(crate) struct Bare {
    windows: Sender<Duration>,
    points: Receiver<f64>,
}

impl Bare {
    /// Starts on the last core, where cells run, with the slice and period of a virtual processor.
    pub(crate) fn new(slice: Nanos, period: Nanos) -> Result<Self> {
        let (windows, asked) = channel::<Duration>();
        let (answer, points) = channel();
        let (ready, is_ready) = channel();
        std::thread::spawn(move || {
            let (mut preemption_timer, epoch) = match timer() {
                Ok(timer) => timer,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            for window in asked {
                let _ =
                    answer.send(points_of(&mut preemption_timer, &epoch, (slice, period), window));
            }
        });
        is_ready.recv().context("the bare loop's thread ended")?.context("starting a bare loop")?;
        Ok(Self { windows, points })
    }

    /// Measures the error that 99 of a hundred slices stay within, in percentage points of a
    /// period, accounted as for a session: the length of a slice beyond what the one before left of
    /// it.
    pub(crate) fn points(&self, window: Duration) -> Result<f64> {
        self.windows.send(window).context("the bare loop's thread ended")?;
        self.points.recv().context("the bare loop's thread ended")
    }
}

/// Returns a timer like a cell's, for this thread.
fn timer() -> Result<(PreemptionTimer, Arc<AtomicU64>)> {
    sandbox::cores::pin_to(sandbox::cores::last())?;
    // Without the right to it, it is measured as it is.
    let _ = rustix::process::setpriority_process(None, NICE);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let epoch = Arc::new(AtomicU64::new(0));
    let raised = Arc::clone(&epoch);
    let preemption_timer = PreemptionTimer::new(move || {
        raised.fetch_add(1, Ordering::Relaxed);
    })?;
    Ok((preemption_timer, epoch))
}

/// Load that keeps the cell's core busy until it is dropped, as modules that never end do, without
/// a node.
pub(crate) struct BusyCore(Arc<AtomicBool>);

impl BusyCore {
    pub(crate) fn new() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        std::thread::spawn(move || {
            if sandbox::cores::pin_to(sandbox::cores::last()).is_ok() {
                while !is_over.load(Ordering::Relaxed) {}
            }
        });
        Self(ended)
    }
}

impl Drop for BusyCore {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nice value of the cell.
const NICE: i32 = -10;

fn points_of(
    preemption_timer: &mut PreemptionTimer,
    epoch: &AtomicU64,
    (slice, period): (Nanos, Nanos),
    window: Duration,
) -> f64 {
    let first = Instant::now();
    let since = |begin: Instant| Nanos(begin.elapsed().as_nanos() as u64);
    let mut points = Vec::new();
    let mut owed = Nanos::ZERO;
    for number in 0.. {
        let begin = Nanos(number * period.0);
        if begin.0 >= window.as_nanos() as u64 {
            break;
        }
        while since(first) < begin {}
        let (begun, before) = (Instant::now(), epoch.load(Ordering::Relaxed));
        preemption_timer.arm_once(slice.saturating_sub(owed), TURN_MAX);
        while epoch.load(Ordering::Relaxed) == before {}
        let had = since(begun);
        preemption_timer.disarm();
        points.push(had.saturating_sub(slice).0 as f64 / period.0 as f64 * 100.0);
        owed = (had + owed).saturating_sub(slice);
    }
    percentile(&points, 99)
}
