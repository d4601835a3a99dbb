//! Direction of a connection: its sender, buffers and receiver.
//!
//! ```text
//!            ┌─ buffer: small amounts, or many small segments ──┐
//!   sender ──┤       ▼ full buffers    ▲ a pipe full of segments ├─▶ receiver
//!            └─ pipe: large amounts, in pages ──────────────────┘
//! ```
//!
//! A pipe copies nothing, but has slots for 16 pieces, be they pages or segments of 1,448 bytes: it
//! pays for senders whose bytes arrive in pages. Whether they do is probed, with growing backoff.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

use crate::pipes::{Pipe, Pipes};

/// Bytes that one direction buffers at most: the capacity of a pipe.
const BUFFERED_MAX: usize = 64 * 1024;
/// Amount below which bytes are batched; more is sent at once.
const SMALL_MAX: usize = 16 * 1024;
/// Bytes in one splice from which a pipe is worth its system calls.
const SPLICED_MIN: usize = 32 * 1024;
/// Longest backoff before a pipe is probed again, in full buffers: 16 MiB.
const BACKOFF_MAX: u32 = 256;

/// Borrowed socket with its readiness.
pub(crate) struct End<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) may_read: &'a mut bool,
    pub(crate) may_write: &'a mut bool,
    /// True if only a read can tell that the bytes received so far are the last ones.
    pub(crate) may_end: bool,
    /// True if the peer has sent a FIN: all that it ever sent can be read.
    pub(crate) has_fin: bool,
    /// True if the connection was reset and the kernel has reported it already: the end of the
    /// stream is then no regular one.
    pub(crate) is_aborted: bool,
}

/// Progress of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// Nothing can be done until an event comes.
    Blocked,
    /// More can be done, after other connections.
    Yielded,
    /// The sender's FIN has been passed on to the receiver.
    Ended,
    /// The sender was reset, and all bytes received before have gone to the receiver.
    Aborted,
}

/// Choice between pipe and buffer for the next bytes.
#[derive(Default)]
struct Medium {
    /// True if a pipe is to be probed, or was worth its system calls last time.
    is_pipe: bool,
    /// Full buffers in a row since the last probe.
    filled: u32,
    /// Full buffers in a row before the next probe, minus one.
    backoff: u32,
}

impl Medium {
    /// Records a read into a buffer.
    const fn copied(&mut self, is_full: bool) {
        self.filled = if is_full { self.filled + 1 } else { 0 };
        if self.filled > self.backoff {
            (self.filled, self.is_pipe) = (0, true);
        }
    }

    /// Records a splice of this many bytes into an empty pipe.
    fn spliced(&mut self, bytes: usize) {
        self.is_pipe = bytes >= SPLICED_MIN;
        self.backoff = match self.is_pipe {
            true => 0,
            false => (2 * self.backoff + 1).min(BACKOFF_MAX),
        };
    }
}

/// Bytes in transit from one socket to the other.
#[derive(Default)]
pub(crate) struct Direction {
    /// Pipe, while it holds bytes.
    pipe: Option<Pipe>,
    /// Buffer, while it has memory: the bytes in transit are its last `buffered` ones.
    copied: Vec<u8>,
    buffered: usize,
    medium: Medium,
    /// True if the sender has ended the stream.
    has_ended: bool,
    /// True if the sender was reset: no more bytes will come than those in transit.
    is_aborted: bool,
    /// True if the receiver has been sent the FIN.
    is_over: bool,
    /// Bytes delivered to the receiver's socket.
    pub(crate) delivered: u64,
}

impl Direction {
    /// Moves bytes, about `burst` at most. `is_last`: the other direction is over, so that the
    /// caller closes the receiver's socket after this one, which sends the FIN.
    ///
    /// # Errors
    /// The receiver's socket has failed, or no pipe can be made.
    pub(crate) fn advance(
        &mut self,
        pipes: &mut Pipes,
        from: &mut End<'_>,
        to: &mut End<'_>,
        burst: usize,
        is_last: bool,
    ) -> Result<Transfer, Errno> {
        let begin = self.delivered;
        while !self.is_over {
            let took = self.take(pipes, from)?;
            // With the sender's FIN known, the last bytes are sent together with it.
            let gave = self.give(pipes, to, from.has_fin)?;
            if self.has_ended && self.buffered == 0 {
                if is_last {
                    self.is_over = true;
                    break;
                }
                // The receiver may be gone already.
                match shutdown(to.socket, Shutdown::Write) {
                    Ok(()) | Err(Errno::NOTCONN) => self.is_over = true,
                    Err(error) => return Err(error),
                }
                break;
            }
            if self.is_aborted && self.buffered == 0 {
                return Ok(Transfer::Aborted);
            }
            if !took && !gave {
                return Ok(Transfer::Blocked);
            }
            if self.delivered - begin >= burst as u64 {
                return Ok(Transfer::Yielded);
            }
        }
        Ok(Transfer::Ended)
    }

    /// Reads a small amount without sending it; returns false if nothing was received, or more than
    /// a small amount.
    pub(crate) fn read_small(&mut self, pipes: &mut Pipes, from: &mut End<'_>) -> bool {
        let is_free =
            self.buffered == 0 && !self.medium.is_pipe && !self.has_ended && !self.is_aborted;
        if is_free && *from.may_read {
            self.copy(pipes, from);
        }
        let is_small = !self.copied.is_empty() && self.copied.len() < SMALL_MAX;
        is_small || self.is_aborted || (self.has_ended && !self.is_over)
    }

    /// Returns true if bytes are in transit.
    pub(crate) const fn has_bytes(&self) -> bool {
        self.buffered > 0
    }

    /// Returns true if the receiver has been sent the FIN.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reads from the sender into the pipe; returns true on progress.
    fn take(&mut self, pipes: &mut Pipes, from: &mut End<'_>) -> Result<bool, Errno> {
        let is_over = self.has_ended || self.is_aborted;
        if is_over || !*from.may_read || self.buffered >= BUFFERED_MAX {
            return Ok(false);
        }
        if !self.copied.is_empty() {
            return Ok(false);
        }
        if self.buffered == 0 && !self.medium.is_pipe {
            return Ok(self.copy(pipes, from));
        }
        let pipe = match self.pipe.take().map_or_else(|| pipes.take(), Ok) {
            Ok(pipe) => pipe,
            Err(Errno::MFILE | Errno::NFILE) => return Ok(self.copy(pipes, from)),
            Err(error) => return Err(error),
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let taken = splice(
            from.socket,
            None,
            pipe.write.as_fd(),
            None,
            BUFFERED_MAX - self.buffered,
            flags,
        );
        self.pipe = Some(pipe);
        match taken {
            // End of stream, or an urgent byte, before which a splice stops for good: a read
            // tells which, once the pipe is empty.
            Ok(0) => {
                self.medium.is_pipe = false;
                if self.buffered > 0 {
                    return Ok(false);
                }
                self.release(pipes);
                return Ok(self.copy(pipes, from));
            }
            Ok(bytes) => {
                if self.buffered == 0 {
                    self.medium.spliced(bytes);
                }
                self.buffered += bytes;
            }
            // The socket is empty, or the pipe has no free slot: with bytes in the pipe, retry when
            // they are sent.
            Err(Errno::AGAIN) if self.buffered == 0 => {
                *from.may_read = false;
                self.release(pipes);
                return Ok(false);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(_) => self.is_aborted = true,
        }
        if self.buffered == 0 {
            self.release(pipes);
        }
        Ok(true)
    }

    /// Reads from the sender into a buffer; returns true on progress.
    fn copy(&mut self, pipes: &mut Pipes, from: &mut End<'_>) -> bool {
        let mut buffer = pipes.buffer();
        let capacity = buffer.capacity();
        let taken = recv(from.socket, spare_capacity(&mut buffer), RecvFlags::DONTWAIT);
        match taken {
            Ok((0, _)) if from.is_aborted => self.is_aborted = true,
            Ok((0, _)) => self.has_ended = true,
            Ok((bytes, _)) => {
                self.buffered = bytes;
                let is_full = bytes == capacity;
                self.medium.copied(is_full);
                self.copied = buffer;
                // A short read empties the socket: an event announces later bytes.
                *from.may_read &= is_full || from.may_end;
                return true;
            }
            Err(Errno::AGAIN) => *from.may_read = false,
            Err(Errno::INTR) => {}
            Err(_) => self.is_aborted = true,
        }
        pipes.give_buffer(buffer);
        self.has_ended || self.is_aborted
    }

    /// Sends from pipe or buffer to the receiver, with `MSG_MORE` if more follows; returns true on
    /// progress.
    fn give(&mut self, pipes: &mut Pipes, to: &mut End<'_>, has_more: bool) -> Result<bool, Errno> {
        if !*to.may_write || self.buffered == 0 {
            return Ok(false);
        }
        let mut spliced = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let mut copied = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        spliced.set(SpliceFlags::MORE, has_more);
        copied.set(SendFlags::MORE, has_more);
        let given = match &self.pipe {
            Some(pipe) => splice(pipe.read.as_fd(), None, to.socket, None, self.buffered, spliced),
            None => send(to.socket, &self.copied[self.copied.len() - self.buffered..], copied),
        };
        match given {
            Ok(bytes) => {
                self.buffered -= bytes.min(self.buffered);
                self.delivered += bytes as u64;
                if self.buffered == 0 {
                    self.release(pipes);
                }
                Ok(bytes > 0)
            }
            Err(Errno::AGAIN) => {
                *to.may_write = false;
                Ok(false)
            }
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns an empty pipe and an empty buffer to the pool.
    fn release(&mut self, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give(pipe);
        }
        pipes.give_buffer(std::mem::take(&mut self.copied));
    }

    /// Drops the bytes in transit.
    pub(crate) fn close(self, pipes: &mut Pipes) {
        match self.pipe {
            Some(pipe) if self.buffered > 0 => pipes.close(pipe),
            Some(pipe) => pipes.give(pipe),
            None => {}
        }
        pipes.give_buffer(self.copied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Returns sender, socket to read from, socket to write to, and receiver.
    fn sockets() -> [UnixStream; 4] {
        let (sender, from) = UnixStream::pair().unwrap();
        let (to, receiver) = UnixStream::pair().unwrap();
        let all = [sender, from, to, receiver];
        all.iter().for_each(|end| end.set_nonblocking(true).unwrap());
        all
    }

    /// Returns both ends with the given readiness.
    fn ends<'a>(
        from: &'a UnixStream,
        to: &'a UnixStream,
        may: &'a mut [bool; 4],
    ) -> (End<'a>, End<'a>) {
        let [a, b, c, d] = may;
        let end = |socket: &'a UnixStream, may_read, may_write| End {
            socket: socket.as_fd(),
            may_read,
            may_write,
            may_end: true,
            has_fin: false,
            is_aborted: false,
        };
        (end(from, a, b), end(to, c, d))
    }

    /// Asserts that all bytes arrive at a receiver that reads a little now and then.
    fn passes(mut pipes: Pipes) {
        let [mut sender, from, to, mut receiver] = sockets();
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
        let (mut direction, mut at, mut received) = (Direction::default(), 0, Vec::<u8>::new());
        let mut buffer = [0; 10_000];
        for round in 0..100_000 {
            at += sender.write(&sent[at..]).unwrap_or(0);
            if at == sent.len() {
                sender.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let may = &mut [true; 4];
            let mut ends = ends(&from, &to, may);
            let delivered =
                direction.advance(&mut pipes, &mut ends.0, &mut ends.1, 30_000, false).unwrap();
            assert!(direction.buffered <= BUFFERED_MAX);
            if round % 3 == 0 || delivered == Transfer::Ended {
                while let Ok(count @ 1..) = receiver.read(&mut buffer) {
                    received.extend(&buffer[..count]);
                    if delivered != Transfer::Ended {
                        break;
                    }
                }
            }
            if delivered == Transfer::Ended {
                break;
            }
        }
        assert!(received == sent, "{} of {} bytes came", received.len(), sent.len());
        assert_eq!((direction.buffered, direction.delivered), (0, sent.len() as u64));
    }

    #[test]
    fn small_amounts_are_read_and_batched() {
        let [mut sender, from, to, mut receiver] = sockets();
        let (mut direction, mut pipes) = (Direction::default(), Pipes::default());
        let may = &mut [true; 4];
        let mut ends = ends(&from, &to, may);
        let mut buffer = [0; 1 << 16];
        sender.write_all(b"little").unwrap();
        assert!(direction.read_small(&mut pipes, &mut ends.0));
        assert!(receiver.read(&mut buffer).is_err(), "nothing is sent yet");
        sender.write_all(b" more").unwrap();
        assert!(direction.read_small(&mut pipes, &mut ends.0), "it still waits");
        assert_eq!(
            direction.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Transfer::Blocked)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), b"little more".len());
        assert!(!direction.read_small(&mut pipes, &mut ends.0), "there is nothing");
        *ends.0.may_read = true;
        sender.write_all(&vec![1; SMALL_MAX]).unwrap();
        assert!(!direction.read_small(&mut pipes, &mut ends.0), "much is sent at once");
        assert_eq!(
            direction.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Transfer::Blocked)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), SMALL_MAX);
        *ends.0.may_read = true;
        sender.write_all(b"x").unwrap();
        assert_eq!(
            direction.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Transfer::Blocked)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), 1);
        drop(sender);
        *ends.0.may_read = true;
        assert!(direction.read_small(&mut pipes, &mut ends.0), "that it ends waits, too");
        assert_eq!(
            direction.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Transfer::Ended)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn the_last_direction_is_ended_by_the_close() {
        let [mut sender, from, to, mut receiver] = sockets();
        let (mut direction, mut pipes) = (Direction::default(), Pipes::default());
        sender.write_all(b"the rest").unwrap();
        drop(sender);
        let may = &mut [true; 4];
        let mut ends = ends(&from, &to, may);
        let delivered = direction.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, true);
        assert_eq!((delivered, direction.is_over()), (Ok(Transfer::Ended), true));
        let mut buffer = [0; 100];
        assert_eq!(receiver.read(&mut buffer).unwrap(), b"the rest".len());
        assert!(receiver.read(&mut buffer).is_err(), "it has not heard that this is all");
        drop(to);
        assert_eq!(receiver.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn pipes_are_probed_with_growing_backoff() {
        let mut medium = Medium::default();
        medium.copied(false);
        assert!(!medium.is_pipe, "little goes by a buffer");
        let filled_until_tried =
            |medium: &mut Medium| (1..).find(|_| (medium.copied(true), medium.is_pipe).1);
        let pieces = 16 * 1448;
        for buffers in [1, 2, 4, 8, 16, 32, 64, 128, 256, 257, 257] {
            assert_eq!(filled_until_tried(&mut medium), Some(buffers));
            medium.spliced(pieces);
            assert!(!medium.is_pipe);
        }
        filled_until_tried(&mut medium);
        medium.spliced(BUFFERED_MAX);
        assert!(medium.is_pipe, "much goes by a pipe as long as it takes much");
        medium.spliced(100);
        assert!(!medium.is_pipe);
        medium.copied(true);
        medium.copied(false);
        medium.copied(true);
        assert!(!medium.is_pipe, "buffers in a row count");
        medium.copied(true);
        assert!(medium.is_pipe);
    }

    #[test]
    fn bytes_pass_through_a_pipe() {
        passes(Pipes::default());
    }

    #[test]
    fn bytes_pass_without_a_pipe() {
        passes(Pipes::none());
    }

    /// Asserts that urgent bytes keep their position in the stream.
    fn passes_urgent(is_pipe: bool) {
        use rustix::net::sockopt;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_oobinline(&listener, true).unwrap();
        let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let from = listener.accept().unwrap().0;
        from.set_nonblocking(true).unwrap();
        let [_, _, to, mut receiver] = sockets();
        let (mut direction, mut pipes) = (Direction::default(), Pipes::default());
        let (mut may, mut received) = ([true; 4], Vec::new());
        for (bytes, flags) in
            [("ab", SendFlags::empty()), ("!", SendFlags::OOB), ("cd", SendFlags::empty())]
        {
            send(&sender, bytes.as_bytes(), flags).unwrap();
        }
        sender.shutdown(std::net::Shutdown::Write).unwrap();
        let [a, b, c, d] = &mut may;
        let (may_end, has_fin, is_aborted) = (true, false, false);
        let mut from =
            End { socket: from.as_fd(), may_read: a, may_write: b, may_end, has_fin, is_aborted };
        let mut to =
            End { socket: to.as_fd(), may_read: c, may_write: d, may_end, has_fin, is_aborted };
        let mut delivered = Transfer::Blocked;
        while delivered != Transfer::Ended {
            direction.medium.is_pipe = is_pipe;
            *from.may_read = true;
            delivered = direction.advance(&mut pipes, &mut from, &mut to, 1, false).unwrap();
        }
        receiver.set_nonblocking(false).unwrap();
        let mut buffer = [0; 10];
        while received.len() < 5 {
            let count = receiver.read(&mut buffer).unwrap();
            assert!(count > 0, "{received:?}");
            received.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(received, b"ab!cd");
    }

    #[test]
    fn an_urgent_byte_keeps_its_position_in_a_buffer() {
        passes_urgent(false);
    }

    #[test]
    fn an_urgent_byte_keeps_its_position_and_ends_no_pipe() {
        passes_urgent(true);
    }
}
