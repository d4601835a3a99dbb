//! Account with a limit.

use std::cell::Cell;

use units::{Account, Bytes};

/// Account with this many bytes left.
#[derive(Debug)]
pub struct Left(pub Cell<u64>);

impl Left {
    /// Creates an account with this many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(Cell::new(bytes))
    }
}

impl Account for Left {
    fn take(&self, bytes: Bytes) -> bool {
        let left = self.0.get().checked_sub(bytes.0);
        self.0.set(left.unwrap_or(self.0.get()));
        left.is_some()
    }

    fn give(&self, bytes: Bytes) {
        self.0.set(self.0.get() + bytes.0);
    }
}
