//! Memory accounting.

use crate::Bytes;
use std::fmt;
use std::rc::Rc;

/// Memory account of a session or of a part of the node.
pub trait Account {
    /// Charges `bytes` to the account; returns false, charging nothing, when its limit does not
    /// allow it.
    fn take(&self, bytes: Bytes) -> bool;

    /// Credits `bytes` to the account.
    fn give(&self, bytes: Bytes);
}

/// Bytes charged to an account, if there is one; credited when dropped.
#[derive(Default)]
pub struct Held {
    account: Option<Rc<dyn Account>>,
    bytes: Bytes,
}

impl Held {
    /// Makes a charge of zero bytes.
    #[must_use]
    pub fn new(account: Option<Rc<dyn Account>>) -> Self {
        Self { account, bytes: Bytes::ZERO }
    }

    /// Charges `bytes`; returns `None` when the account's limit does not allow it.
    #[must_use]
    pub fn take(account: Option<Rc<dyn Account>>, bytes: Bytes) -> Option<Self> {
        let mut held = Self::new(account);
        held.grow(bytes).then_some(held)
    }

    /// Returns the bytes charged.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Raises the charge to `bytes`; returns false when the account's limit does not allow it. A
    /// larger charge stays.
    pub fn grow(&mut self, bytes: Bytes) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let account = self.account.as_ref().filter(|_| more > Bytes::ZERO);
        let may = account.is_none_or(|account| account.take(more));
        if may {
            self.bytes += more;
        }
        may
    }

    /// Lowers the charge to at most `bytes`.
    pub fn shrink(&mut self, bytes: Bytes) {
        let less = self.bytes.saturating_sub(bytes);
        if let Some(account) = self.account.as_ref().filter(|_| less > Bytes::ZERO) {
            account.give(less);
        }
        self.bytes = self.bytes.saturating_sub(less);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(Bytes::ZERO);
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Left(Cell<u64>);

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

    #[test]
    fn held_memory_is_charged_to_its_account_until_it_is_dropped() {
        let left = Rc::new(Left(Cell::new(100)));
        let account = || Some(Rc::clone(&left) as Rc<dyn Account>);
        let mut held = Held::take(account(), Bytes(40)).unwrap();
        assert!(Held::take(account(), Bytes(61)).is_none());
        assert!(held.grow(Bytes(30)) && !held.grow(Bytes(101)) && held.grow(Bytes(90)));
        assert_eq!((held.bytes(), left.0.get()), (Bytes(90), 10));
        held.shrink(Bytes(95));
        held.shrink(Bytes(20));
        assert_eq!((held.bytes(), left.0.get()), (Bytes(20), 80));
        drop(held);
        assert_eq!(left.0.get(), 100);
        let mut free = Held::new(None);
        assert!(free.grow(Bytes(u64::MAX)));
    }
}
