//! Listeners and sockets of services of streams, which only the daemon may open, and the kernel's
//! rules by which connections come to them.
//!
//! ```text
//!  start ─▶ compile ─▶ listeners, nftables table, rules, routes ─▶ cell ─▶ started
//!  cell: WantsSockets ─▶ Sockets, some dozens a message
//!  stop, or the cell is lost ─▶ the table goes with the cell's descriptors, rules and routes behind it
//! ```

use anyhow::{Context, Result};
use cell::protocol::ToCell;
use netlink::{Interception, Netlink};
use sandbox::fd_passing::DESCRIPTORS_MAX;
use sockets::transparent::{Listeners, unconnected};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Largest number of sockets that a cell may ask for at once: some hundreds are enough for the
/// connections that begin until there are more.
const SOCKETS_MAX: u16 = 1_024;

/// Delays of the searches for remains of interceptions, after the end of a service: a child of the
/// daemon that has not yet become another program holds copies of descriptors, and a table goes
/// with the last of them.
pub(super) const SWEEPS: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(10)];

/// Interception of connections for a service: it ends when its descriptors are closed.
pub(crate) struct Intercepted {
    interception: Interception,
    listeners: Listeners,
}

impl Intercepted {
    /// Listens, and has the kernel take marked connections there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn begin(netlink: &Netlink) -> Result<Self> {
        let listeners = Listeners::open().context("listening for intercepted connections")?;
        let interception = Interception::begin(netlink, listeners.port)
            .context("routing marked connections to this machine (ip rule)")?;
        Ok(Self { interception, listeners })
    }

    /// Returns the port that is listened at.
    pub(crate) const fn port(&self) -> u16 {
        self.listeners.port
    }

    /// Returns the descriptors for the cell: the interception, and its listeners.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Listeners { v4, v6, .. } = &self.listeners;
        [self.interception.as_fd(), v4.as_fd()].into_iter().chain(v6.as_ref().map(AsFd::as_fd))
    }
}

/// Creates sockets for a cell to connect with, for IPv4 or IPv6. Returns the messages by which the
/// cell gets them.
pub(crate) fn make_sockets(wanted: u16, v6: bool) -> Vec<(ToCell, Vec<OwnedFd>)> {
    let made = (0..wanted.min(SOCKETS_MAX)).map(|_| unconnected(v6));
    let mut made: Vec<OwnedFd> = made.map_while(Result::ok).collect();
    if made.len() < usize::from(wanted) {
        tracing::warn!(
            wanted,
            made = made.len(),
            v6,
            "too few sockets for connections of stream services: they wait"
        );
    }
    let mut messages = Vec::new();
    while !made.is_empty() {
        let some = made.drain(..made.len().min(DESCRIPTORS_MAX)).collect();
        messages.push((ToCell::Sockets { v6 }, some));
    }
    messages
}

/// Removes rules and routes of interceptions whose table was lost with a cell: they would only take
/// packets that nothing marks.
pub(super) fn end_left(netlink: &Netlink) {
    if let Err(error) = netlink.remove_orphaned_interceptions() {
        tracing::warn!(%error, "routing rules for connections of stream services may be left: see `ip rule`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_wants_no_sockets_gets_no_message() {
        assert!(make_sockets(0, false).is_empty() && make_sockets(0, true).is_empty());
    }

    #[test]
    fn searches_for_remains_are_ever_later() {
        assert!(SWEEPS.is_sorted() && SWEEPS[0] > Duration::ZERO);
    }
}
