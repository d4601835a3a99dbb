//! Counters: numbers that `tam stats` shows.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counter in the module's memory that operators can read. Defined by
/// [`counters!`](crate::counters), which also gives it its name.
///
/// Atomic so that native tests may run on several threads. For `wasm32-unknown-unknown` the
/// compiler makes plain loads and stores of it.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter with value 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `count`; wraps around at 2^64.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the value.
    #[inline]
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
