//! Sockets that are to be reset, kept until what was sent on them has arrived.
//!
//! A reset that leaves at once discards what the kernel has not sent yet, and overtakes what is lost
//! on the way: the receiver would lose bytes that the sender of the other side had sent before its
//! own reset. No event tells that everything is acknowledged, so the sockets are looked at, more and
//! more seldom.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use units::Nanos;

/// Bytes of a socket that its other side has not acknowledged (`SIOCOUTQ`), which safe code cannot
/// ask for here.
pub type Unacknowledged = fn(BorrowedFd<'_>) -> usize;

/// How long bytes in front of a reset may take: as long as a client may take none at all elsewhere.
pub(crate) const RESET_TIME_MAX: Nanos = Nanos(60_000_000_000);
/// Sockets that are kept: each is a descriptor; further ones are reset at once.
const KEPT_MAX: usize = 256;
/// The first look at a socket: a round trip of a local network.
const LOOK_TIME_MIN: Nanos = Nanos(1_000_000);
/// Looks are twice as far apart each time, up to this: some of them within a round trip of 200 ms.
const LOOK_TIME_MAX: Nanos = Nanos(64_000_000);

/// A socket that is to be reset.
struct Leaving {
    socket: OwnedFd,
    /// The time between the last look and the next.
    wait: Nanos,
    /// When it is reset, whatever has arrived.
    until: Nanos,
}

/// Sockets that are to be reset, by their next look.
pub(crate) struct Closing {
    by_look: BTreeMap<(Nanos, u64), Leaving>,
    /// Tells those apart that are due at one time.
    number: u64,
    unacknowledged: Unacknowledged,
}

impl Closing {
    pub(crate) const fn new(unacknowledged: Unacknowledged) -> Self {
        Self { by_look: BTreeMap::new(), number: 0, unacknowledged }
    }

    /// Resets a connection whose other side is there: once it has acknowledged what was sent.
    pub(crate) fn reset(&mut self, socket: OwnedFd, now: Nanos) {
        if (self.unacknowledged)(socket.as_fd()) == 0 || self.by_look.len() >= KEPT_MAX {
            return reset(socket);
        }
        let until = now + RESET_TIME_MAX;
        self.keep(Leaving { socket, wait: LOOK_TIME_MIN, until }, now);
    }

    fn keep(&mut self, leaving: Leaving, now: Nanos) {
        self.number += 1;
        let next = (now + leaving.wait).min(leaving.until);
        self.by_look.insert((next, self.number), leaving);
    }

    /// The next look.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.by_look.first_key_value().map(|((at, _), _)| *at)
    }

    /// Looks at those that are due.
    pub(crate) fn handle_timeout(&mut self, now: Nanos) {
        while let Some(first) = self.by_look.first_entry().filter(|first| first.key().0 <= now) {
            let mut leaving = first.remove();
            let is_acknowledged = (self.unacknowledged)(leaving.socket.as_fd()) == 0;
            if is_acknowledged || now >= leaving.until || is_gone(&leaving.socket) {
                reset(leaving.socket);
            } else {
                leaving.wait = Nanos(2 * leaving.wait.0).min(LOOK_TIME_MAX);
                self.keep(leaving, now);
            }
        }
    }
}

/// Whether the other side has reset it meanwhile, or is lost.
fn is_gone(socket: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let looked = poll(&mut polled, Some(&at_once));
    looked.is_err() || polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Closes a socket so that its other side is told of a reset. One that is closed already does not
/// mind.
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
        /// What the kernel is taken to say.
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
        let came = client.read(&mut [0]).map_err(|error| error.kind());
        came == Err(std::io::ErrorKind::ConnectionReset)
    }

    #[test]
    fn a_socket_on_which_all_has_arrived_is_reset_at_once() {
        let (socket, mut client) = pair();
        let mut closing = closing();
        closing.reset(socket, Nanos(0));
        assert!(is_reset(&mut client) && closing.poll_timeout().is_none());
    }

    #[test]
    fn a_reset_waits_until_all_has_arrived() {
        let (socket, mut client) = pair();
        let mut closing = closing();
        UNACKNOWLEDGED.set(5);
        closing.reset(socket, Nanos(0));
        let mut looks = Vec::new();
        for _ in 0..9 {
            let at = closing.poll_timeout().unwrap();
            closing.handle_timeout(at);
            looks.push(at.0 / LOOK_TIME_MIN.0);
        }
        assert_eq!(looks, [1, 3, 7, 15, 31, 63, 127, 191, 255]);
        assert!(!is_reset(&mut client));
        UNACKNOWLEDGED.set(0);
        closing.handle_timeout(closing.poll_timeout().unwrap());
        assert!(is_reset(&mut client) && closing.poll_timeout().is_none());
    }

    #[test]
    fn a_reset_does_not_wait_for_ever_nor_for_nobody() {
        let ((socket, mut client), (other, gone)) = (pair(), pair());
        let mut closing = closing();
        UNACKNOWLEDGED.set(5);
        closing.reset(socket, Nanos(0));
        closing.reset(other, Nanos(0));
        sockopt::set_socket_linger(&gone, Some(std::time::Duration::ZERO)).unwrap();
        drop(gone);
        closing.handle_timeout(closing.poll_timeout().unwrap());
        assert_eq!(closing.by_look.len(), 1, "one is gone");
        closing.handle_timeout(RESET_TIME_MAX);
        assert!(is_reset(&mut client) && closing.poll_timeout().is_none());
    }

    #[test]
    fn those_beyond_a_limit_are_reset_at_once() {
        let mut closing = closing();
        UNACKNOWLEDGED.set(5);
        let mut last = None;
        for _ in 0..=KEPT_MAX {
            let (socket, client) = pair();
            closing.reset(socket, Nanos(0));
            assert!(last.replace(client).is_none_or(|mut client| !is_reset(&mut client)));
        }
        assert!(is_reset(&mut last.unwrap()) && closing.by_look.len() == KEPT_MAX);
    }
}
