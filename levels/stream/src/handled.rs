//! A connection whose bytes go through a handler: read, handed over, written.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::handler::{Handler, Side};
use crate::way::{End, Moved};

/// Bytes that are read at once, and what is kept of one end at most while its handler does not
/// take them: as much as a pipe holds of a connection without a handler.
pub(crate) const READ_MAX: usize = 64 * 1024;

/// See above.
pub(crate) struct Handled {
    handler: Box<dyn Handler>,
    ends: [Inbound; 2],
    /// Ends that have been told that nothing more comes.
    is_over: [bool; 2],
    /// Bytes that have arrived at each end.
    pub(crate) moved: [u64; 2],
}

/// What came from one end.
#[derive(Default)]
struct Inbound {
    /// What the handler has not taken.
    left: Vec<u8>,
    has_ended: bool,
    /// The handler knows that it has, and has taken everything.
    is_told: bool,
}

impl Handled {
    pub(crate) fn new(handler: Box<dyn Handler>) -> Self {
        Self { handler, ends: Default::default(), is_over: [false; 2], moved: [0; 2] }
    }

    /// Does what can be done, about so many bytes each way at most; `buffer` is for what is read
    /// meanwhile, and has [`READ_MAX`] bytes.
    ///
    /// # Errors
    /// When one of the two sockets, or the handler, has failed.
    pub(crate) fn advance(
        &mut self,
        buffer: &mut [u8],
        mut sockets: [End<'_>; 2],
        portion: usize,
    ) -> Result<Moved, Errno> {
        let begin: u64 = self.moved.iter().sum();
        loop {
            let mut has_moved = false;
            for side in Side::BOTH {
                has_moved |= self.receive(side, buffer, &mut sockets[side.index()])?;
                has_moved |= self.send(side, &mut sockets[side.index()])?;
            }
            if self.handler.fails() {
                return Err(Errno::CONNRESET);
            }
            if self.is_over == [true; 2] {
                return Ok(Moved::Ended);
            }
            if !has_moved {
                return Ok(Moved::Waits);
            }
            if self.moved.iter().sum::<u64>() - begin >= portion as u64 {
                return Ok(Moved::GoesOn);
            }
        }
    }

    /// From one end to the handler; whether anything came of it.
    fn receive(
        &mut self,
        side: Side,
        buffer: &mut [u8],
        socket: &mut End<'_>,
    ) -> Result<bool, Errno> {
        let end = &mut self.ends[side.index()];
        if end.is_told {
            return Ok(false);
        }
        // What was left is offered again: the handler may have room by now.
        let mut has_moved = end.offer(&mut *self.handler, side);
        if !end.left.is_empty() || end.has_ended || !*socket.may_read {
            return Ok(has_moved);
        }
        match recv(socket.socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => end.has_ended = true,
            Ok((count, _)) => {
                let taken = self.handler.receive(side, &buffer[..count], false).min(count);
                end.left.extend_from_slice(&buffer[taken..count]);
                return Ok(true);
            }
            Err(Errno::AGAIN) => {
                *socket.may_read = false;
                return Ok(has_moved);
            }
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(error),
        }
        has_moved |= end.offer(&mut *self.handler, side);
        Ok(has_moved)
    }

    /// From the handler to one end; whether anything came of it.
    fn send(&mut self, side: Side, socket: &mut End<'_>) -> Result<bool, Errno> {
        let mut has_moved = false;
        while *socket.may_write && !self.handler.waiting(side).is_empty() {
            match send(
                socket.socket,
                self.handler.waiting(side),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => {
                    self.handler.sent(side, count);
                    self.moved[side.index()] += count as u64;
                    has_moved |= count > 0;
                }
                Err(Errno::AGAIN) => *socket.may_write = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let is_over = &mut self.is_over[side.index()];
        if !*is_over && self.handler.is_over(side) && self.handler.waiting(side).is_empty() {
            *is_over = true;
            has_moved = true;
            match shutdown(socket.socket, Shutdown::Write) {
                // One that is gone already does not mind.
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(has_moved)
    }
}

impl Inbound {
    /// Offers what is left, and that nothing more comes; whether the handler took any of it.
    fn offer(&mut self, handler: &mut dyn Handler, side: Side) -> bool {
        if self.left.is_empty() && !self.has_ended {
            return false;
        }
        let taken = handler.receive(side, &self.left, self.has_ended).min(self.left.len());
        self.left.drain(..taken);
        self.is_told = self.has_ended && self.left.is_empty();
        if self.left.is_empty() {
            // What is kept while nothing is left is of no use to anybody.
            self.left = Vec::new();
        }
        taken > 0 || self.is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// Passes bytes on as upper case, and holds no more than so many for each end.
    struct Upper {
        waiting: [Vec<u8>; 2],
        is_over: [bool; 2],
        most: usize,
        fails: bool,
    }

    impl Handler for Upper {
        fn receive(&mut self, from: Side, bytes: &[u8], has_ended: bool) -> usize {
            let to = from.other().index();
            let count = bytes.len().min(self.most.saturating_sub(self.waiting[to].len()));
            self.waiting[to].extend(bytes[..count].iter().map(u8::to_ascii_uppercase));
            self.is_over[to] = has_ended && count == bytes.len();
            self.fails |= bytes.contains(&b'!');
            count
        }

        fn waiting(&self, to: Side) -> &[u8] {
            &self.waiting[to.index()]
        }

        fn sent(&mut self, to: Side, count: usize) {
            self.waiting[to.index()].drain(..count);
        }

        fn is_over(&self, to: Side) -> bool {
            self.is_over[to.index()]
        }

        fn fails(&self) -> bool {
            self.fails
        }
    }

    struct Ends {
        handled: Handled,
        /// What the node has of both, and what the kernel said of them.
        own: [UnixStream; 2],
        may: [[bool; 2]; 2],
        buffer: Vec<u8>,
    }

    impl Ends {
        fn new(most: usize) -> (Self, UnixStream, UnixStream) {
            let (client, downstream) = UnixStream::pair().unwrap();
            let (server, upstream) = UnixStream::pair().unwrap();
            for end in [&client, &server, &downstream, &upstream] {
                end.set_nonblocking(true).unwrap();
            }
            let upper =
                Upper { waiting: Default::default(), is_over: [false; 2], most, fails: false };
            let handled = Handled::new(Box::new(upper));
            let (own, may) = ([downstream, upstream], [[true; 2]; 2]);
            (Self { handled, own, may, buffer: vec![0; READ_MAX] }, client, server)
        }

        fn advance(&mut self, portion: usize) -> Result<Moved, Errno> {
            self.may = [[true; 2]; 2];
            let Self { handled, own, may, buffer } = self;
            let [first, second] = may;
            let [reads, writes] = first;
            let downstream = End { socket: own[0].as_fd(), may_read: reads, may_write: writes };
            let [reads, writes] = second;
            let upstream = End { socket: own[1].as_fd(), may_read: reads, may_write: writes };
            let ends = [downstream, upstream];
            handled.advance(buffer, ends, portion)
        }
    }

    fn all(stream: &mut UnixStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            bytes.extend(&buffer[..count]);
        }
        bytes
    }

    #[test]
    fn bytes_go_through_the_handler_both_ways_and_each_way_ends_by_itself() {
        let (mut ends, mut client, mut server) = Ends::new(1 << 20);
        client.write_all(b"question").unwrap();
        assert_eq!(ends.advance(1 << 20), Ok(Moved::Waits));
        assert_eq!(all(&mut server), b"QUESTION");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(ends.advance(1 << 20), Ok(Moved::Waits));
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "it is over");
        server.write_all(b"answer").unwrap();
        drop(server);
        assert_eq!(ends.advance(1 << 20), Ok(Moved::Ended));
        assert_eq!(all(&mut client), b"ANSWER");
        assert_eq!(ends.handled.moved, [6, 8]);
    }

    #[test]
    fn what_a_handler_does_not_take_waits_and_nothing_is_read_behind_it() {
        let (mut ends, mut client, mut server) = Ends::new(10);
        let sent: Vec<u8> = (0..100_000u32).map(|at| b'a' + (at % 26) as u8).collect();
        let (mut at, mut came) = (0, Vec::new());
        for _ in 0..100_000 {
            at += client.write(&sent[at..]).unwrap_or(0);
            if at == sent.len() {
                client.shutdown(std::net::Shutdown::Write).unwrap();
            }
            // The server reads nothing at first.
            let moved = ends.advance(64).unwrap();
            assert!(ends.handled.ends[0].left.len() <= READ_MAX);
            came.extend(all(&mut server));
            if moved == Moved::Waits && at == sent.len() && came.len() == sent.len() {
                break;
            }
        }
        assert_eq!(came, sent.to_ascii_uppercase());
    }

    #[test]
    fn a_handler_that_fails_ends_the_connection() {
        let (mut ends, mut client, _server) = Ends::new(100);
        client.write_all(b"no!").unwrap();
        assert_eq!(ends.advance(1 << 20), Err(Errno::CONNRESET));
    }
}
