//! Connections to servers whose client is gone: the next client of the same address that goes to
//! the same server has one of them.

use crate::connection::Addresses;
use crate::limits::{SPARE_MAX, SPARE_TIME};
use foldhash::HashMap;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use tcp_intercept::{Closed, End, Io, Received, State};
use units::Nanos;

/// Whom the server sees, and who it is.
type Between = (IpAddr, SocketAddr);

const fn between(addresses: Addresses) -> Between {
    (addresses.client.ip(), addresses.server)
}

#[derive(Default)]
pub(crate) struct Spares {
    by: HashMap<Between, Vec<End>>,
    /// Until when each is kept.
    ends: HashMap<End, (Between, Nanos)>,
    /// The same in order.
    due: BTreeSet<(Nanos, End)>,
}

impl Spares {
    /// Keeps a connection on which nothing is under way.
    pub(crate) fn give(&mut self, io: &mut Io<'_>, addresses: Addresses, end: End) {
        if self.ends.len() >= SPARE_MAX || !is_silent(io, end) {
            return io.close(end, Closed::Ended);
        }
        let (between, until) = (between(addresses), io.now() + SPARE_TIME);
        self.by.entry(between).or_default().push(end);
        self.ends.insert(end, (between, until));
        self.due.insert((until, end));
    }

    /// The one that was used last.
    pub(crate) fn take(&mut self, io: &mut Io<'_>, addresses: Addresses) -> Option<End> {
        loop {
            let end = *self.by.get(&between(addresses))?.last()?;
            self.forget(end);
            if is_silent(io, end) {
                return Some(end);
            }
            io.close(end, Closed::Ended);
        }
    }

    fn forget(&mut self, end: End) {
        let Some((between, until)) = self.ends.remove(&end) else { return };
        self.due.remove(&(until, end));
        if let Some(ends) = self.by.get_mut(&between) {
            ends.retain(|other| *other != end);
            if ends.is_empty() {
                self.by.remove(&between);
            }
        }
    }

    /// Something has happened to an end: whether it is one of these. A server says nothing on
    /// them but that it ends them.
    pub(crate) fn ready(&mut self, io: &mut Io<'_>, end: End) -> bool {
        if !self.ends.contains_key(&end) {
            return false;
        }
        if !is_silent(io, end) {
            self.forget(end);
            io.close(end, Closed::Ended);
        }
        true
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Closes those that nobody has come for.
    pub(crate) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        while let Some(&(until, end)) = self.due.first() {
            if until > io.now() {
                return;
            }
            self.forget(end);
            io.close(end, Closed::Ended);
        }
    }
}

fn is_silent(io: &mut Io<'_>, end: End) -> bool {
    io.state(end) == State::Open && io.receive(end, &mut [0]) == Received::Nothing
}
