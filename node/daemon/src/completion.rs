//! Ways back to the daemon's loop from threads that work for it.

use std::sync::Arc;

/// Sender of one kind of result to whoever owns it. Sending to a daemon that has ended does
/// nothing.
pub(crate) struct Completion<T>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> Completion<T> {
    /// Creates one that hands results to `deliver`.
    pub(crate) fn new(deliver: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// Sends a result.
    pub(crate) fn send(&self, result: T) {
        (self.0)(result);
    }
}

impl<T> Clone for Completion<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
