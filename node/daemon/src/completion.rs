//! Channels by which worker threads return results to the daemon's loop.

use std::sync::Arc;

/// Sender of one type of result. Sending to a daemon that has ended does
/// nothing.
pub(crate) struct Completion<T>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> Completion<T> {
    /// Creates a sender that calls `deliver` with each result.
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
