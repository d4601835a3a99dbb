//! One direction of a connection.
//!
//! ```text
//!           ┌─ buffer: little, or many small pieces ──────────┐
//!  sender ──┤       ▼ full buffers    ▲ a pipe full of pieces ├─▶ receiver
//!           └─ pipe: much, in pages ──────────────────────────┘
//! ```
//!
//! A pipe copies nothing, but has places for 16 pieces, be they pages or segments of 1,448 bytes:
//! it is for those whose bytes come in pages. Who they are is tried, more and more seldom.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

use crate::pipes::{Pipe, Pipes};

/// Bytes that one direction holds at most: what a pipe has room for.
const HELD_MAX: usize = 64 * 1024;
/// What goes when the connection's turn comes, however little others have.
const LITTLE_MAX: usize = 16 * 1024;
/// A pipe that takes so much at once is worth its calls.
const SPLICED_MIN: usize = 32 * 1024;
/// Full buffers in a row before a pipe is tried again, at most: 16 MiB.
const PATIENCE_MAX: u32 = 256;

/// A socket, and what is known of it.
pub(crate) struct End<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) may_read: &'a mut bool,
    pub(crate) may_write: &'a mut bool,
    /// Something may be behind the last bytes that no event tells of: that they are the last.
    pub(crate) is_ending: bool,
    /// Its other side has ended it: all that it ever sent can be read.
    pub(crate) is_whole: bool,
    /// It was reset, and the kernel has said so already: the end behind its bytes is no orderly one.
    pub(crate) is_cut: bool,
}

/// What a direction can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// Nothing, until something happens.
    Waits,
    /// More, when others have had their turn.
    GoesOn,
    /// Its sender has ended it, and its receiver knows.
    Ended,
    /// Its sender was reset, and all that came before has gone to its receiver.
    Cut,
}

/// What the next bytes go by.
#[derive(Default)]
struct By {
    /// A pipe is to be tried, or was worth its calls last time.
    is_pipe: bool,
    /// Buffers that were filled in a row since one was tried.
    filled: u32,
    /// How many of them it takes until one is tried again, less one.
    patience: u32,
}

impl By {
    /// A buffer took what there was.
    const fn copied(&mut self, is_full: bool) {
        self.filled = if is_full { self.filled + 1 } else { 0 };
        if self.filled > self.patience {
            (self.filled, self.is_pipe) = (0, true);
        }
    }

    /// An empty pipe took so many bytes.
    fn spliced(&mut self, bytes: usize) {
        self.is_pipe = bytes >= SPLICED_MIN;
        self.patience = match self.is_pipe {
            true => 0,
            false => (2 * self.patience + 1).min(PATIENCE_MAX),
        };
    }
}

/// Bytes on their way from one socket to the other.
#[derive(Default)]
pub(crate) struct Way {
    /// While there are any in one.
    pipe: Option<Pipe>,
    /// Otherwise, where it has memory, they are the last ones here.
    copied: Vec<u8>,
    held: usize,
    by: By,
    /// The sender has ended it.
    has_ended: bool,
    /// The sender was reset: what is held is all that there will be.
    is_cut: bool,
    /// The receiver has been told.
    is_over: bool,
    /// Bytes that have arrived.
    pub(crate) moved: u64,
}

impl Way {
    /// Moves what can be moved, about so much at most. `is_last`: the other direction is over, so
    /// that the receiver's socket is closed when this one is, and that tells it.
    ///
    /// # Errors
    /// When the receiver's socket has failed, or there is no pipe.
    pub(crate) fn advance(
        &mut self,
        pipes: &mut Pipes,
        from: &mut End<'_>,
        to: &mut End<'_>,
        portion: usize,
        is_last: bool,
    ) -> Result<Moved, Errno> {
        let begin = self.moved;
        while !self.is_over {
            let took = self.take(pipes, from)?;
            // What the end follows at once goes with it.
            let gave = self.give(pipes, to, from.is_whole)?;
            if self.has_ended && self.held == 0 {
                if is_last {
                    self.is_over = true;
                    break;
                }
                // A receiver that is gone already does not mind.
                match shutdown(to.socket, Shutdown::Write) {
                    Ok(()) | Err(Errno::NOTCONN) => self.is_over = true,
                    Err(error) => return Err(error),
                }
                break;
            }
            if self.is_cut && self.held == 0 {
                return Ok(Moved::Cut);
            }
            if !took && !gave {
                return Ok(Moved::Waits);
            }
            if self.moved - begin >= portion as u64 {
                return Ok(Moved::GoesOn);
            }
        }
        Ok(Moved::Ended)
    }

    /// Reads the little that has come, or that it has ended, and does not tell the receiver; false
    /// when there is nothing, or more.
    pub(crate) fn gather(&mut self, pipes: &mut Pipes, from: &mut End<'_>) -> bool {
        let is_free = self.held == 0 && !self.by.is_pipe && !self.has_ended && !self.is_cut;
        if is_free && *from.may_read {
            self.copy(pipes, from);
        }
        let is_little = !self.copied.is_empty() && self.copied.len() < LITTLE_MAX;
        is_little || self.is_cut || (self.has_ended && !self.is_over)
    }

    /// Whether bytes are on their way.
    pub(crate) const fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Whether its receiver knows that it has ended.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// From the sender into the pipe; whether anything came of it.
    fn take(&mut self, pipes: &mut Pipes, from: &mut End<'_>) -> Result<bool, Errno> {
        let is_over = self.has_ended || self.is_cut;
        if is_over || !*from.may_read || self.held >= HELD_MAX {
            return Ok(false);
        }
        if !self.copied.is_empty() {
            return Ok(false);
        }
        if self.held == 0 && !self.by.is_pipe {
            return Ok(self.copy(pipes, from));
        }
        let pipe = match self.pipe.take().map_or_else(|| pipes.take(), Ok) {
            Ok(pipe) => pipe,
            Err(Errno::MFILE | Errno::NFILE) => return Ok(self.copy(pipes, from)),
            Err(error) => return Err(error),
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let taken =
            splice(from.socket, None, pipe.write.as_fd(), None, HELD_MAX - self.held, flags);
        self.pipe = Some(pipe);
        match taken {
            // The end, or an urgent byte, in front of which a splice stops for good: reading tells,
            // once the pipe is empty.
            Ok(0) => {
                self.by.is_pipe = false;
                if self.held > 0 {
                    return Ok(false);
                }
                self.let_go(pipes);
                return Ok(self.copy(pipes, from));
            }
            Ok(bytes) => {
                if self.held == 0 {
                    self.by.spliced(bytes);
                }
                self.held += bytes;
            }
            // The socket is empty, or the pipe has no place for another segment: with bytes in
            // the pipe it is asked again when they are out.
            Err(Errno::AGAIN) if self.held == 0 => {
                *from.may_read = false;
                self.let_go(pipes);
                return Ok(false);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(_) => self.is_cut = true,
        }
        if self.held == 0 {
            self.let_go(pipes);
        }
        Ok(true)
    }

    /// The same by a buffer.
    fn copy(&mut self, pipes: &mut Pipes, from: &mut End<'_>) -> bool {
        let mut buffer = pipes.buffer();
        let room = buffer.capacity();
        let taken = recv(from.socket, spare_capacity(&mut buffer), RecvFlags::DONTWAIT);
        match taken {
            Ok((0, _)) if from.is_cut => self.is_cut = true,
            Ok((0, _)) => self.has_ended = true,
            Ok((bytes, _)) => {
                self.held = bytes;
                let is_full = bytes == room;
                self.by.copied(is_full);
                self.copied = buffer;
                // Less than there was room for: an event tells of what comes from now on.
                *from.may_read &= is_full || from.is_ending;
                return true;
            }
            Err(Errno::AGAIN) => *from.may_read = false,
            Err(Errno::INTR) => {}
            Err(_) => self.is_cut = true,
        }
        pipes.give_buffer(buffer);
        self.has_ended || self.is_cut
    }

    /// From pipe or buffer to the receiver, which waits for what follows if more does; whether
    /// anything came of it.
    fn give(&mut self, pipes: &mut Pipes, to: &mut End<'_>, has_more: bool) -> Result<bool, Errno> {
        if !*to.may_write || self.held == 0 {
            return Ok(false);
        }
        let mut spliced = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let mut copied = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        spliced.set(SpliceFlags::MORE, has_more);
        copied.set(SendFlags::MORE, has_more);
        let given = match &self.pipe {
            Some(pipe) => splice(pipe.read.as_fd(), None, to.socket, None, self.held, spliced),
            None => send(to.socket, &self.copied[self.copied.len() - self.held..], copied),
        };
        match given {
            Ok(bytes) => {
                self.held -= bytes.min(self.held);
                self.moved += bytes as u64;
                if self.held == 0 {
                    self.let_go(pipes);
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

    /// An empty pipe is for others, and so is an empty buffer.
    fn let_go(&mut self, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give(pipe);
        }
        pipes.give_buffer(std::mem::take(&mut self.copied));
    }

    /// What is on its way is given up.
    pub(crate) fn close(self, pipes: &mut Pipes) {
        match self.pipe {
            Some(pipe) if self.held > 0 => pipes.close(pipe),
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

    /// Who sends, what he sends comes from, what it goes to, and who receives it.
    fn sockets() -> [UnixStream; 4] {
        let (sender, from) = UnixStream::pair().unwrap();
        let (to, receiver) = UnixStream::pair().unwrap();
        let all = [sender, from, to, receiver];
        all.iter().for_each(|end| end.set_nonblocking(true).unwrap());
        all
    }

    /// Both ends, which may be read and written as far as `may` says.
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
            is_ending: true,
            is_whole: false,
            is_cut: false,
        };
        (end(from, a, b), end(to, c, d))
    }

    /// Everything that was sent, by a receiver that reads a little now and then.
    fn passes(mut pipes: Pipes) {
        let [mut sender, from, to, mut receiver] = sockets();
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
        let (mut way, mut at, mut came) = (Way::default(), 0, Vec::<u8>::new());
        let mut buffer = [0; 10_000];
        for round in 0..100_000 {
            at += sender.write(&sent[at..]).unwrap_or(0);
            if at == sent.len() {
                sender.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let may = &mut [true; 4];
            let mut ends = ends(&from, &to, may);
            let moved = way.advance(&mut pipes, &mut ends.0, &mut ends.1, 30_000, false).unwrap();
            assert!(way.held <= HELD_MAX);
            if round % 3 == 0 || moved == Moved::Ended {
                while let Ok(count @ 1..) = receiver.read(&mut buffer) {
                    came.extend(&buffer[..count]);
                    if moved != Moved::Ended {
                        break;
                    }
                }
            }
            if moved == Moved::Ended {
                break;
            }
        }
        assert!(came == sent, "{} of {} bytes came", came.len(), sent.len());
        assert_eq!((way.held, way.moved), (0, sent.len() as u64));
    }

    #[test]
    fn the_little_that_comes_is_read_and_waits_until_it_is_sent() {
        let [mut sender, from, to, mut receiver] = sockets();
        let (mut way, mut pipes) = (Way::default(), Pipes::default());
        let may = &mut [true; 4];
        let mut ends = ends(&from, &to, may);
        let mut buffer = [0; 1 << 16];
        sender.write_all(b"little").unwrap();
        assert!(way.gather(&mut pipes, &mut ends.0));
        assert!(receiver.read(&mut buffer).is_err(), "nothing is sent yet");
        sender.write_all(b" more").unwrap();
        assert!(way.gather(&mut pipes, &mut ends.0), "it still waits");
        assert_eq!(
            way.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Moved::Waits)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), b"little more".len());
        assert!(!way.gather(&mut pipes, &mut ends.0), "there is nothing");
        *ends.0.may_read = true;
        sender.write_all(&vec![1; LITTLE_MAX]).unwrap();
        assert!(!way.gather(&mut pipes, &mut ends.0), "much is sent at once");
        assert_eq!(
            way.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Moved::Waits)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), LITTLE_MAX);
        *ends.0.may_read = true;
        sender.write_all(b"x").unwrap();
        assert_eq!(
            way.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Moved::Waits)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), 1);
        drop(sender);
        *ends.0.may_read = true;
        assert!(way.gather(&mut pipes, &mut ends.0), "that it ends waits, too");
        assert_eq!(
            way.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, false),
            Ok(Moved::Ended)
        );
        assert_eq!(receiver.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn the_last_way_is_ended_by_the_close_behind_it() {
        let [mut sender, from, to, mut receiver] = sockets();
        let (mut way, mut pipes) = (Way::default(), Pipes::default());
        sender.write_all(b"the rest").unwrap();
        drop(sender);
        let may = &mut [true; 4];
        let mut ends = ends(&from, &to, may);
        let moved = way.advance(&mut pipes, &mut ends.0, &mut ends.1, 100_000, true);
        assert_eq!((moved, way.is_over()), (Ok(Moved::Ended), true));
        let mut buffer = [0; 100];
        assert_eq!(receiver.read(&mut buffer).unwrap(), b"the rest".len());
        assert!(receiver.read(&mut buffer).is_err(), "it has not heard that this is all");
        drop(to);
        assert_eq!(receiver.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_pipe_is_tried_more_and_more_seldom_unless_it_takes_much() {
        let mut by = By::default();
        by.copied(false);
        assert!(!by.is_pipe, "little goes by a buffer");
        let filled_until_tried = |by: &mut By| (1..).find(|_| (by.copied(true), by.is_pipe).1);
        let pieces = 16 * 1448;
        for buffers in [1, 2, 4, 8, 16, 32, 64, 128, 256, 257, 257] {
            assert_eq!(filled_until_tried(&mut by), Some(buffers));
            by.spliced(pieces);
            assert!(!by.is_pipe);
        }
        filled_until_tried(&mut by);
        by.spliced(HELD_MAX);
        assert!(by.is_pipe, "much goes by a pipe as long as it takes much");
        by.spliced(100);
        assert!(!by.is_pipe);
        by.copied(true);
        by.copied(false);
        by.copied(true);
        assert!(!by.is_pipe, "buffers in a row count");
        by.copied(true);
        assert!(by.is_pipe);
    }

    #[test]
    fn bytes_pass_by_a_pipe() {
        passes(Pipes::default());
    }

    #[test]
    fn bytes_pass_without_a_pipe() {
        passes(Pipes::none());
    }

    /// Bytes of whom sends urgently go on in their places.
    fn passes_urgent(is_pipe: bool) {
        use rustix::net::sockopt;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_oobinline(&listener, true).unwrap();
        let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let from = listener.accept().unwrap().0;
        from.set_nonblocking(true).unwrap();
        let [_, _, to, mut receiver] = sockets();
        let (mut way, mut pipes) = (Way::default(), Pipes::default());
        let (mut may, mut came) = ([true; 4], Vec::new());
        for (bytes, flags) in
            [("ab", SendFlags::empty()), ("!", SendFlags::OOB), ("cd", SendFlags::empty())]
        {
            send(&sender, bytes.as_bytes(), flags).unwrap();
        }
        sender.shutdown(std::net::Shutdown::Write).unwrap();
        let [a, b, c, d] = &mut may;
        let (is_ending, is_whole, is_cut) = (true, false, false);
        let mut from =
            End { socket: from.as_fd(), may_read: a, may_write: b, is_ending, is_whole, is_cut };
        let mut to =
            End { socket: to.as_fd(), may_read: c, may_write: d, is_ending, is_whole, is_cut };
        let mut moved = Moved::Waits;
        while moved != Moved::Ended {
            way.by.is_pipe = is_pipe;
            *from.may_read = true;
            moved = way.advance(&mut pipes, &mut from, &mut to, 1, false).unwrap();
        }
        receiver.set_nonblocking(false).unwrap();
        let mut buffer = [0; 10];
        while came.len() < 5 {
            let count = receiver.read(&mut buffer).unwrap();
            assert!(count > 0, "{came:?}");
            came.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(came, b"ab!cd");
    }

    #[test]
    fn an_urgent_byte_keeps_its_place_in_a_buffer() {
        passes_urgent(false);
    }

    #[test]
    fn an_urgent_byte_keeps_its_place_and_ends_no_pipe() {
        passes_urgent(true);
    }
}
