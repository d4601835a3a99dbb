//! Thread that repeats a function until its owner is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

/// Running thread; it ends on drop.
#[derive(Debug)]
pub(crate) struct Worker {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Worker {
    /// Starts the thread on a CPU, or on any if that cannot be; each call is to be short.
    pub(crate) fn start(cpu: usize, mut turn: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let _ = sandbox::cores::pin_to(cpu);
            while !is_over.load(Ordering::Relaxed) {
                turn()?;
            }
            Ok(())
        });
        Self { over, thread: Some(thread) }
    }

    /// Ends the thread; returns the error that ended it earlier, if any.
    pub(crate) fn end(mut self) -> Result<()> {
        self.halt().unwrap_or(Ok(()))
    }

    fn halt(&mut self) -> Option<Result<()>> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of the benchmark ended"))))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Only after an error of the measurement, which is reported instead.
        let _ = self.halt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_works_until_it_is_ended_and_says_what_went_wrong() {
        let (sender, turns) = std::sync::mpsc::channel();
        let works = Worker::start(0, move || Ok(sender.send(())?));
        turns.recv().unwrap();
        turns.recv().unwrap();
        works.end().unwrap();
        // Runs until the sender is gone.
        while turns.recv().is_ok() {}
        let (sender, turns) = std::sync::mpsc::channel();
        let fails = Worker::start(0, move || {
            sender.send(())?;
            Err(anyhow!("no more"))
        });
        turns.recv().unwrap();
        assert_eq!(fails.end().unwrap_err().to_string(), "no more");
    }
}
