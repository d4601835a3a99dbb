//! Idle server connections whose client is gone, for the next client with the same address that
//! connects to the same server.

use crate::connection::Addresses;
use crate::limits::{IDLE_SERVER_TIME, IDLE_SERVERS_MAX};
use foldhash::HashMap;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use tcp_intercept::{Closed, End, Io, Received, State};
use units::Nanos;

/// Client address, as the server sees it, and server address.
type AddressPair = (IpAddr, SocketAddr);

const fn address_pair(addresses: Addresses) -> AddressPair {
    (addresses.client.ip(), addresses.server)
}

#[derive(Default)]
pub(crate) struct IdleServers {
    by: HashMap<AddressPair, Vec<End>>,
    /// Time until which each is kept.
    ends: HashMap<End, (AddressPair, Nanos)>,
    /// Ends in the order of these times.
    due: BTreeSet<(Nanos, End)>,
}

impl IdleServers {
    /// Keeps a connection without outstanding requests.
    pub(crate) fn give(&mut self, io: &mut Io<'_>, addresses: Addresses, end: End) {
        if self.ends.len() >= IDLE_SERVERS_MAX || !is_silent(io, end) {
            return io.close(end, Closed::Ended);
        }
        let (address_pair, until) = (address_pair(addresses), io.now() + IDLE_SERVER_TIME);
        self.by.entry(address_pair).or_default().push(end);
        self.ends.insert(end, (address_pair, until));
        self.due.insert((until, end));
    }

    /// Takes the connection that was used last.
    pub(crate) fn take(&mut self, io: &mut Io<'_>, addresses: Addresses) -> Option<End> {
        loop {
            let end = *self.by.get(&address_pair(addresses))?.last()?;
            self.remove(end);
            if is_silent(io, end) {
                return Some(end);
            }
            io.close(end, Closed::Ended);
        }
    }

    fn remove(&mut self, end: End) {
        let Some((address_pair, until)) = self.ends.remove(&end) else { return };
        self.due.remove(&(until, end));
        if let Some(ends) = self.by.get_mut(&address_pair) {
            ends.retain(|other| *other != end);
            if ends.is_empty() {
                self.by.remove(&address_pair);
            }
        }
    }

    /// Handles events of an end; returns true if it is one of these. The only valid event is that
    /// the server closes it.
    pub(crate) fn ready(&mut self, io: &mut Io<'_>, end: End) -> bool {
        if !self.ends.contains_key(&end) {
            return false;
        }
        if !is_silent(io, end) {
            self.remove(end);
            io.close(end, Closed::Ended);
        }
        true
    }

    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Closes the connections that were not reused in time.
    pub(crate) fn handle_timeout(&mut self, io: &mut Io<'_>) {
        while let Some(&(until, end)) = self.due.first() {
            if until > io.now() {
                return;
            }
            self.remove(end);
            io.close(end, Closed::Ended);
        }
    }
}

fn is_silent(io: &mut Io<'_>, end: End) -> bool {
    io.state(end) == State::Open && io.receive(end, &mut [0]) == Received::Nothing
}
