//! Ends whose responses are over, but for some bytes: they are sent, and closed when the client has
//! seen the end. If bytes came that nobody reads, closing at once would be a reset, and take away
//! what was sent.

use crate::limits::{LEAVING_MAX, SAID_LENGTH_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use tcp_intercept::{Closed, End, Io, Received, State};
use units::Nanos;

/// One end that leaves.
struct Departure {
    /// Bytes that are left to send.
    out: Vec<u8>,
    /// The end of them has been told.
    is_told: bool,
}

/// Ends that leave.
#[derive(Default)]
pub(crate) struct Departures {
    ends: BTreeMap<End, Departure>,
    /// Times until which they may stay, the oldest first.
    due: VecDeque<(Nanos, End)>,
}

impl Departures {
    /// Returns true when an end is one of these.
    pub(crate) fn has(&self, end: End) -> bool {
        self.ends.contains_key(&end)
    }

    /// Returns the time at which the first one has been there for too long.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Returns the bytes of memory that they need.
    pub(crate) fn memory(&self) -> usize {
        self.ends.len() * (size_of::<End>() + size_of::<Departure>())
    }

    /// Takes an end with the last bytes of its response. `buffer` is what is read into.
    pub(crate) fn add(&mut self, io: &mut Io<'_>, end: End, out: Vec<u8>, buffer: &mut [u8]) {
        self.ends.insert(end, Departure { out, is_told: false });
        self.due.push_back((io.now() + LEAVING_MAX, end));
        self.handle_ready(io, end, buffer);
    }

    /// Sends what is left of a response, and waits until its client has seen that it is over.
    pub(crate) fn handle_ready(&mut self, io: &mut Io<'_>, end: End, buffer: &mut [u8]) {
        let Some(Departure { out, is_told }) = self.ends.get_mut(&end) else { return };
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
        if !std::mem::replace(is_told, true) {
            io.finish(end);
        }
        let mut said = 0;
        while said <= SAID_LENGTH_MAX {
            match io.receive(end, buffer) {
                Received::Bytes(count) => said += count,
                Received::Ended => return self.close(io, end, Closed::Ended),
                Received::Nothing => return,
            }
        }
    }

    /// Closes those that have been there for too long.
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
        // Nobody is waited for who has gone.
        while self.due.pop_front_if(|(_, end)| !self.ends.contains_key(end)).is_some() {}
    }
}
