//! Who asks an origin alone: what its answer begins with, and its request, then bytes of both
//! sides pass by pipes, unseen.

use std::io::IoSlice;
use tcp_intercept::{Closed, End, Io, State};

use http1::Version;

/// One client and its server.
pub(crate) struct Relay {
    pub(crate) downstream: End,
    pub(crate) upstream: End,
    pub(crate) version: Version,
    /// What the server has to be sent first.
    pub(crate) up: Vec<u8>,
    /// What the client has to be sent first.
    pub(crate) down: Vec<u8>,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing, until something happens.
    Waits,
    /// Neither end is anybody's any more.
    Over,
    /// The server was not reached, and the client has been told nothing.
    Unreachable,
}

impl Relay {
    /// Does what can be done.
    pub(crate) fn advance(&mut self, io: &mut Io<'_>) -> After {
        let states = (io.state(self.downstream), io.state(self.upstream));
        match states {
            (State::Open, State::Unreachable) => {
                io.close(self.upstream, Closed::Ended);
                return After::Unreachable;
            }
            (State::Open, State::Connecting | State::Open | State::Broken) => {}
            _ => {
                io.close(self.downstream, Closed::Reset);
                io.close(self.upstream, Closed::Reset);
                return After::Over;
            }
        }
        for (end, out) in [(self.upstream, &mut self.up), (self.downstream, &mut self.down)] {
            if !out.is_empty() {
                let taken = io.send(end, &[IoSlice::new(out)]);
                out.drain(..taken);
            }
        }
        let may_join = match states.1 {
            State::Open => self.up.is_empty(),
            // What its server has sent before it was reset.
            State::Broken => true,
            _ => false,
        };
        if may_join && self.down.is_empty() {
            io.join(self.downstream, self.upstream);
            return After::Over;
        }
        After::Waits
    }

    /// Bytes of memory that it is.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.up.capacity() + self.down.capacity()
    }
}
