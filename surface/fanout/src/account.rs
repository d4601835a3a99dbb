//! Who pays for what channels keep.

use std::rc::Rc;
use units::{Account, Bytes};

/// What one channel may come to keep, on its service's account. Dropped, it is given back.
pub(crate) struct Share {
    account: Option<Rc<dyn Account>>,
    bytes: Bytes,
}

impl Share {
    /// So much; none when the account has not that much.
    pub(crate) fn take(account: Option<&Rc<dyn Account>>, bytes: Bytes) -> Option<Self> {
        let may = account.is_none_or(|account| account.take(bytes));
        may.then(|| Self { account: account.cloned(), bytes })
    }

    pub(crate) const fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// It is no more than that from now on: what is kept turned out to be shorter.
    pub(crate) fn shrink(&mut self, bytes: Bytes) {
        let less = self.bytes.saturating_sub(bytes);
        if let Some(account) = self.account.as_ref().filter(|_| less > Bytes::ZERO) {
            account.give(less);
        }
        self.bytes = self.bytes.saturating_sub(less);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(Bytes::ZERO);
    }
}
