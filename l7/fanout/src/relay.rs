//! Relay of a client whose response is not shared: sends the bytes read so far in both directions,
//! then lets the rest pass through pipes unseen.

use std::io::IoSlice;
use tcp_intercept::{Closed, End, Io, State};

use http1::Version;

/// Client with its own connection to the server.
pub(crate) struct Relay {
    pub(crate) downstream: End,
    pub(crate) upstream: End,
    pub(crate) version: Version,
    /// Bytes to send to the server first.
    pub(crate) up: Vec<u8>,
    /// Bytes to send to the client first.
    pub(crate) down: Vec<u8>,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing can be done until an event comes.
    Blocked,
    /// Both ends are closed or joined.
    Over,
    /// The server was not reached, and the client got no response.
    Unreachable,
}

impl Relay {
    /// Does as much as possible.
    pub(crate) fn advance(&mut self, io: &mut Io<'_>) -> Outcome {
        let states = (io.state(self.downstream), io.state(self.upstream));
        match states {
            (State::Open, State::Unreachable) => {
                io.close(self.upstream, Closed::Ended);
                return Outcome::Unreachable;
            }
            (State::Open, State::Connecting | State::Open | State::Broken) => {}
            _ => {
                io.close(self.downstream, Closed::Reset);
                io.close(self.upstream, Closed::Reset);
                return Outcome::Over;
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
            // Bytes that the server sent before it was reset still pass.
            State::Broken => true,
            _ => false,
        };
        if may_join && self.down.is_empty() {
            io.join(self.downstream, self.upstream);
            return Outcome::Over;
        }
        Outcome::Blocked
    }

    /// Returns the bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>() + self.up.capacity() + self.down.capacity()
    }
}
