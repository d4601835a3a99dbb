//! Ends whose responses are over except for some bytes: these are sent, and the end is closed when
//! the client has read the response. With unread input of the client, an immediate close would be a
//! reset, and discard bytes already sent.

use crate::limits::{DEPARTURE_MAX, INPUT_LENGTH_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use tcp_intercept::{Closed, End, Io, Received, State};
use units::Nanos;

/// End with the rest of its response.
struct Departure {
    /// Bytes still to send.
    out: Vec<u8>,
    /// True if the sending direction was closed.
    is_finished: bool,
}

/// Ends with the rest of their responses.
#[derive(Default)]
pub(crate) struct Departures {
    ends: BTreeMap<End, Departure>,
    /// Deadlines of the ends, the oldest first.
    due: VecDeque<(Nanos, End)>,
}

impl Departures {
    /// Returns true if the end is one of these.
    pub(crate) fn has(&self, end: End) -> bool {
        self.ends.contains_key(&end)
    }

    /// Returns the first deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Returns the bytes of memory that they need.
    pub(crate) fn memory(&self) -> usize {
        self.ends.len() * (size_of::<End>() + size_of::<Departure>())
    }

    /// Adds an end with the last bytes of its response. `buffer` is scratch space for input, which
    /// is discarded.
    pub(crate) fn add(&mut self, io: &mut Io<'_>, end: End, out: Vec<u8>, buffer: &mut [u8]) {
        self.ends.insert(end, Departure { out, is_finished: false });
        self.due.push_back((io.now() + DEPARTURE_MAX, end));
        self.handle_ready(io, end, buffer);
    }

    /// Sends the rest of a response, then waits for the client to close.
    pub(crate) fn handle_ready(&mut self, io: &mut Io<'_>, end: End, buffer: &mut [u8]) {
        let Some(Departure { out, is_finished }) = self.ends.get_mut(&end) else { return };
        if io.state(end) != State::Open {
            return self.close(io, end, Closed::Reset);
        }
        if !out.is_empty() {
            let taken = io.send(end, &[IoSlice::new(out)]);
            out.drain(..taken);
            if !out.is_empty() {
                return;
            }
        }
        if !std::mem::replace(is_finished, true) {
            io.finish(end);
        }
        let mut input_length = 0;
        while input_length <= INPUT_LENGTH_MAX {
            match io.receive(end, buffer) {
                Received::Bytes(count) => input_length += count,
                Received::Ended => return self.close(io, end, Closed::Ended),
                Received::Nothing => return,
            }
        }
    }

    /// Closes the ends whose deadline has passed.
    pub(crate) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        while let Some((_, end)) = self.due.pop_front_if(|(at, _)| *at <= now) {
            if let Some(departure) = self.ends.get(&end) {
                let why = if departure.out.is_empty() { Closed::Ended } else { Closed::Reset };
                self.close(io, end, why);
            }
        }
    }

    fn close(&mut self, io: &mut Io<'_>, end: End, why: Closed) {
        self.ends.remove(&end);
        io.close(end, why);
        // Deadlines of ends that are gone are dropped.
        while self.due.pop_front_if(|(_, end)| !self.ends.contains_key(end)).is_some() {}
    }
}
