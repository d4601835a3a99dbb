//! Ctrl-C and SIGTERM as a flag, for commands that have to put something right before they end.

use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Returns a flag that Ctrl-C and SIGTERM set instead of ending the process.
pub fn on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let raised = Arc::clone(&flag);
    // A thread of its own: the client has a runtime for each question.
    std::thread::spawn(move || {
        let waits = || -> std::io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut interrupt = signal(SignalKind::interrupt())?;
                let mut terminate = signal(SignalKind::terminate())?;
                // The other end waits for it.
                let _ = ready.send(Ok(()));
                tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                raised.store(true, Ordering::Relaxed);
                Ok(())
            })
        };
        if let Err(error) = waits() {
            let _ = ready.send(Err(error));
        }
    });
    let heard = is_ready.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()));
    heard.map_err(|error| Failure::io("waiting for Ctrl-C", &error))?;
    Ok(flag)
}
