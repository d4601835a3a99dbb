//! Ctrl-C and SIGTERM as a flag, for commands that have to put something right before they end.

use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// Exit status of a command that the second Ctrl-C has ended, as shells have it (128 + SIGINT).
const INTERRUPTED: i32 = 130;

/// Ends the process at once.
#[expect(
    clippy::disallowed_methods,
    reason = "who interrupts twice wants no more waiting; a command has made nothing that stays"
)]
fn end_at_once() -> ! {
    std::process::exit(INTERRUPTED)
}

/// Returns a flag that the first Ctrl-C or SIGTERM sets instead of ending the process; the second
/// ends it, for one that waits for a node that hangs.
pub fn on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let (ready, is_ready) = std::sync::mpsc::channel();
    let raised = Arc::clone(&flag);
    // A thread of its own, since the client has a runtime for each request.
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
                tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
                end_at_once()
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
