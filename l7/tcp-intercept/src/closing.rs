//! Delayed resets: sockets that are kept until the bytes sent on them are acknowledged, and then
//! reset.
//!
//! An immediate reset discards bytes that the kernel has not sent yet, and overtakes
//! retransmissions: the receiver would lose bytes that the original sender had sent before its own
//! reset. No event reports that everything is acknowledged, so the sockets are polled, at growing
//! intervals.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use units::Nanos;

/// Function that returns the bytes of a socket that the peer has not acknowledged (`SIOCOUTQ`); the
/// caller supplies it, as the ioctl needs unsafe code.
pub type Unacknowledged = fn(BorrowedFd<'_>) -> usize;

/// Longest delay of a reset: as long as a client may accept nothing in other places.
pub(crate) const RESET_TIME_MAX: Nanos = Nanos(60_000_000_000);
/// Sockets that are kept: each is a file descriptor; further ones are reset at once.
const KEPT_MAX: usize = 256;
/// First check of a socket: a round trip of a local network.
const CHECK_INTERVAL_MIN: Nanos = Nanos(1_000_000);
/// Longest interval between checks, which doubles each time: several checks fall within a round
/// trip of 200 ms.
const CHECK_INTERVAL_MAX: Nanos = Nanos(64_000_000);

/// Socket with a delayed reset.
struct DelayedReset {
    socket: OwnedFd,
    /// Interval between the last check and the next.
    wait: Nanos,
    /// Deadline, at which the socket is reset in any case.
    until: Nanos,
}

/// Sockets with a delayed reset, by the time of their next check.
pub(crate) struct Closing {
    by_check: BTreeMap<(Nanos, u64), DelayedReset>,
    /// Sequence number that distinguishes entries with the same time.
    number: u64,
    unacknowledged: Unacknowledged,
}

impl Closing {
    pub(crate) const fn new(unacknowledged: Unacknowledged) -> Self {
        Self { by_check: BTreeMap::new(), number: 0, unacknowledged }
    }

    /// Resets a connection, once its peer has acknowledged the bytes sent.
    pub(crate) fn reset(&mut self, socket: OwnedFd, now: Nanos) {
        if (self.unacknowledged)(socket.as_fd()) == 0 || self.by_check.len() >= KEPT_MAX {
            return reset(socket);
        }
        let until = now + RESET_TIME_MAX;
        self.keep(DelayedReset { socket, wait: CHECK_INTERVAL_MIN, until }, now);
    }

    fn keep(&mut self, delayed: DelayedReset, now: Nanos) {
        self.number += 1;
        let next = (now + delayed.wait).min(delayed.until);
        self.by_check.insert((next, self.number), delayed);
    }

    /// Returns the time of the next check.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.by_check.first_key_value().map(|((at, _), _)| *at)
    }

    /// Checks the sockets that are due.
    pub(crate) fn handle_timeout(&mut self, now: Nanos) {
        while let Some(first) = self.by_check.first_entry().filter(|first| first.key().0 <= now) {
            let mut delayed = first.remove();
            let is_acknowledged = (self.unacknowledged)(delayed.socket.as_fd()) == 0;
            if is_acknowledged || now >= delayed.until || is_gone(&delayed.socket) {
                reset(delayed.socket);
            } else {
                delayed.wait = Nanos(2 * delayed.wait.0).min(CHECK_INTERVAL_MAX);
                self.keep(delayed, now);
            }
        }
    }
}

/// Returns true if the peer has reset the connection meanwhile, or is lost.
fn is_gone(socket: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let result = poll(&mut polled, Some(&at_once));
    result.is_err() || polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Closes a socket with a reset (`SO_LINGER` 0). Does no harm to a connection that is closed
/// already.
fn reset(socket: OwnedFd) {
    let _ = sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO));
    drop(socket);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    thread_local! {
        /// Value that the fake kernel returns.
        static UNACKNOWLEDGED: Cell<usize> = const { Cell::new(0) };
    }

    fn pair() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0.into(), client)
    }

    fn closing() -> Closing {
        Closing::new(|_| UNACKNOWLEDGED.get())
    }

    fn is_reset(client: &mut TcpStream) -> bool {
        client.set_nonblocking(true).unwrap();
        let received = client.read(&mut [0]).map_err(|error| error.kind());
        received == Err(std::io::ErrorKind::ConnectionReset)
    }

    #[test]
    fn a_socket_with_all_acknowledged_is_reset_at_once() {
        let (socket, mut client) = pair();
        let mut closing = closing();
        closing.reset(socket, Nanos(0));
        assert!(is_reset(&mut client) && closing.poll_timeout().is_none());
    }

    #[test]
    fn a_reset_waits_until_all_is_acknowledged() {
        let (socket, mut client) = pair();
        let mut closing = closing();
        UNACKNOWLEDGED.set(5);
        closing.reset(socket, Nanos(0));
        let mut checks = Vec::new();
        for _ in 0..9 {
            let at = closing.poll_timeout().unwrap();
            closing.handle_timeout(at);
            checks.push(at.0 / CHECK_INTERVAL_MIN.0);
        }
        assert_eq!(checks, [1, 3, 7, 15, 31, 63, 127, 191, 255]);
        assert!(!is_reset(&mut client));
        UNACKNOWLEDGED.set(0);
        closing.handle_timeout(closing.poll_timeout().unwrap());
        assert!(is_reset(&mut client) && closing.poll_timeout().is_none());
    }

    #[test]
    fn a_reset_waits_neither_for_ever_nor_for_a_peer_that_is_gone() {
        let ((socket, mut client), (other, gone)) = (pair(), pair());
        let mut closing = closing();
        UNACKNOWLEDGED.set(5);
        closing.reset(socket, Nanos(0));
        closing.reset(other, Nanos(0));
        sockopt::set_socket_linger(&gone, Some(std::time::Duration::ZERO)).unwrap();
        drop(gone);
        closing.handle_timeout(closing.poll_timeout().unwrap());
        assert_eq!(closing.by_check.len(), 1, "one is gone");
        closing.handle_timeout(RESET_TIME_MAX);
        assert!(is_reset(&mut client) && closing.poll_timeout().is_none());
    }

    #[test]
    fn sockets_beyond_the_limit_are_reset_at_once() {
        let mut closing = closing();
        UNACKNOWLEDGED.set(5);
        let mut last = None;
        for _ in 0..=KEPT_MAX {
            let (socket, client) = pair();
            closing.reset(socket, Nanos(0));
            assert!(last.replace(client).is_none_or(|mut client| !is_reset(&mut client)));
        }
        assert!(is_reset(&mut last.unwrap()) && closing.by_check.len() == KEPT_MAX);
    }
}
