//! Clock that ends calls in the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::Engine;

/// Interval of the engine's clock.
const SLICE: Duration = Duration::from_millis(1);
/// Ticks that a call may take. A node allows 10 ms of processor time; this clock is wall time, and
/// other tests may hold the processor for long.
pub(crate) const CALL_SLICES: u64 = 300;

/// Thread that raises the engine's epoch until it is dropped.
pub(crate) struct Clock {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Clock {
    pub(crate) fn start(engine: Engine) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = stopped.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                std::thread::sleep(SLICE);
                engine.raise_epoch();
            }
        });
        Self { stopped, thread: Some(thread) }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends after its next sleep; it cannot panic.
            let _ = thread.join();
        }
    }
}
