//! Memory on somebody's account.

use crate::Bytes;

/// Keeps account of bytes: of what a session may have, or a part of the node.
pub trait Account {
    /// Whether there may be so many more; if so, they are on the account.
    fn take(&self, bytes: Bytes) -> bool;

    /// There are so many less.
    fn give(&self, bytes: Bytes);
}
