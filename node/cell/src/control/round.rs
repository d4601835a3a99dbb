//! Time of the loop and link to the daemon, borrowed together for one call.

use crate::control::link::Link;
use units::CoarseInstant;

/// Time of the loop and the link to the daemon, borrowed for one call.
pub(crate) struct Round<'a> {
    /// Coarse time, read once a round: packets and hooks of a round have the same.
    pub(crate) now: CoarseInstant,
    /// Connection by which the daemon is notified.
    pub(crate) link: &'a mut Link,
}
