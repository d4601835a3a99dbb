//! Services of streams in a cell: their connections, and the sockets that they connect with.
//!
//! ```text
//!  daemon ── listeners, unconnected sockets ──▶ Streams ── ready ──▶ the session's turn ──▶ work
//! ```
//!
//! A cell opens no socket: each one that connects comes from the daemon, which has some ready here
//! before they are needed.

use crate::memory::Charge;
use crate::protocol::{StreamFacts, StreamReport};
use crate::sessions::Task;
use os::sandbox::descriptors_of_cell;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use stream::{Application, Counts, ServiceNumber, Sockets, Streams};
use units::{EntryId, Nanos, SessionId};

/// Unconnected sockets of each kind that are ready while a service of streams runs: as many as
/// connections begin in the time that a daemon takes to make more, some milliseconds.
const READY_MAX: u16 = 256;
/// The daemon is asked for so many at least.
const ASKED_MIN: u16 = 64;
/// Versions before the one that runs which still have connections: when there are more, connections
/// of the oldest are reset. Each has a memory of its own.
const DRAINING_MAX: usize = 4;
/// Descriptors that are not for connections: sockets of ports, code, memory, the sockets above, and
/// what is being taken away.
const OTHERS_MAX: usize = 2_048;

/// See above.
pub(crate) struct StreamServices {
    streams: Streams,
    services: Vec<StreamService>,
    pool: Pool,
}

/// One of them.
struct StreamService {
    facts: StreamFacts,
    cpu: Nanos,
    number: ServiceNumber,
    /// Versions before, the oldest first, as long as connections of theirs are open.
    draining: Vec<ServiceNumber>,
    /// What became of connections of those that are gone.
    gone: Counts,
    /// As long as it is open, connections come to the listeners.
    _interception: OwnedFd,
    _charge: Charge,
}

impl StreamService {
    /// All its versions.
    fn numbers(&self) -> impl Iterator<Item = ServiceNumber> {
        std::iter::once(self.number).chain(self.draining.iter().copied())
    }

    /// What waits for its session's turn.
    const fn turn(&self) -> (SessionId, Task) {
        (self.facts.session, Task { entry: self.facts.entry, pool: 0, processor: 0 })
    }
}

/// Unconnected sockets.
#[derive(Default)]
struct Pool {
    /// For IPv4 and for IPv6.
    ready: [Vec<OwnedFd>; 2],
    /// How many more are on their way.
    asked: [u16; 2],
    /// A connection waits for one.
    is_short: bool,
}

impl Sockets for Pool {
    fn take(&mut self, v6: bool) -> Option<OwnedFd> {
        let socket = self.ready[usize::from(v6)].pop();
        self.is_short |= socket.is_none();
        socket
    }
}

impl Pool {
    /// How many more there should be of each kind, once that is worth a message.
    fn wants(&mut self) -> Option<[u16; 2]> {
        let missing = |kind: usize| {
            let there = self.ready[kind].len() as u16 + self.asked[kind];
            Some(READY_MAX.saturating_sub(there)).filter(|&missing| missing >= ASKED_MIN)
        };
        let wants = [missing(0), missing(1)];
        if wants == [None, None] {
            return None;
        }
        let wants = wants.map(Option::unwrap_or_default);
        for (asked, wanted) in self.asked.iter_mut().zip(wants) {
            *asked += wanted;
        }
        Some(wants)
    }
}

impl StreamServices {
    /// None yet. Before the process is confined: it makes a descriptor that it could not later.
    pub(crate) fn new() -> io::Result<Self> {
        let descriptors = usize::try_from(descriptors_of_cell()).unwrap_or(usize::MAX);
        let connections_max = descriptors.saturating_sub(OTHERS_MAX) / 2;
        let streams = Streams::new(connections_max)?;
        Ok(Self { streams, services: Vec::new(), pool: Pool::default() })
    }

    pub(crate) const fn are_there(&self) -> bool {
        !self.services.is_empty()
    }

    /// A service begins to take connections.
    pub(crate) fn start(
        &mut self,
        facts: StreamFacts,
        interception: OwnedFd,
        listeners: Vec<OwnedFd>,
        application: Option<Box<dyn Application>>,
        charge: Charge,
    ) -> io::Result<()> {
        let number = self.streams.add(listeners, application)?;
        self.services.push(StreamService {
            facts,
            cpu: Nanos::ZERO,
            number,
            draining: Vec::new(),
            gone: Counts::default(),
            _interception: interception,
            _charge: charge,
        });
        Ok(())
    }

    /// A service is no more: its connections are reset. What became of them, if it was there.
    pub(crate) fn stop(&mut self, entry: EntryId) -> Option<StreamReport> {
        let at = self.services.iter().position(|service| service.facts.entry == entry)?;
        let service = self.services.remove(at);
        if self.services.is_empty() {
            // Nobody connects any more.
            self.pool.ready = Default::default();
        }
        let mut counts = service.gone;
        for number in service.numbers() {
            join(&mut counts, self.streams.remove(number).unwrap_or_default());
        }
        Some(report(counts, service.cpu))
    }

    /// Connections that come from now on are another version's; those that are open stay with theirs.
    pub(crate) fn succeed(
        &mut self,
        facts: StreamFacts,
        application: Option<Box<dyn Application>>,
        charge: Charge,
    ) -> io::Result<()> {
        let found = self.services.iter_mut().find(|it| it.facts.entry == facts.entry);
        let service = found.ok_or(io::ErrorKind::NotFound)?;
        let next = self.streams.succeed(service.number, application)?;
        service.draining.push(std::mem::replace(&mut service.number, next));
        (service.facts, service._charge) = (facts, charge);
        self.forget_drained();
        Ok(())
    }

    /// Versions before whose last connection has ended go, and the oldest when there are too many.
    fn forget_drained(&mut self) {
        for service in &mut self.services {
            let too_many = service.draining.len().saturating_sub(DRAINING_MAX);
            let mut at = 0;
            service.draining.retain(|&number| {
                at += 1;
                let open = self.streams.counts(number).unwrap_or_default().open();
                if open > 0 && at > too_many {
                    return true;
                }
                join(&mut service.gone, self.streams.remove(number).unwrap_or_default());
                false
            });
        }
    }

    /// Those that run.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&StreamFacts, StreamReport)> {
        self.services.iter().map(|service| {
            let mut counts = service.gone;
            for number in service.numbers() {
                join(&mut counts, self.streams.counts(number).unwrap_or_default());
            }
            (&service.facts, report(counts, service.cpu))
        })
    }

    pub(crate) fn facts_mut(&mut self, entry: EntryId) -> Option<&mut StreamFacts> {
        let service = self.services.iter_mut().find(|service| service.facts.entry == entry)?;
        Some(&mut service.facts)
    }

    /// Sockets that were asked for have come.
    pub(crate) fn provide(&mut self, v6: bool, sockets: Vec<OwnedFd>) {
        let kind = usize::from(v6);
        self.pool.asked[kind] = self.pool.asked[kind].saturating_sub(sockets.len() as u16);
        if !self.are_there() {
            return;
        }
        self.pool.ready[kind].extend(sockets);
        if std::mem::take(&mut self.pool.is_short) {
            self.streams.go_on();
        }
    }

    /// None of those that were asked for will come: the daemon is another one.
    pub(crate) const fn forget_asked(&mut self) {
        self.pool.asked = [0; 2];
    }

    /// How many more sockets the daemon should make, for IPv4 and for IPv6.
    pub(crate) fn wants(&mut self) -> Option<[u16; 2]> {
        if self.are_there() { self.pool.wants() } else { None }
    }

    /// Hears what has happened.
    pub(crate) fn look(&mut self, now: Nanos) -> io::Result<()> {
        self.forget_drained();
        self.streams.look(now)
    }

    /// Services for which something can be done, as what waits for a turn of their sessions.
    pub(crate) fn ready(&self, now: Nanos) -> impl Iterator<Item = (SessionId, Task)> {
        let find = |number| self.services.iter().find(|it| it.numbers().any(|own| own == number));
        self.streams.ready(now).filter_map(find).map(StreamService::turn)
    }

    /// Does something for a service; whether there is more to do. `None` when it is not there.
    pub(crate) fn work(&mut self, entry: EntryId, now: Nanos, until: Nanos) -> Option<bool> {
        let service = self.services.iter().find(|service| service.facts.entry == entry)?;
        let mut has_more = false;
        for number in service.numbers() {
            has_more |= self.streams.work(number, &mut self.pool, now, until);
        }
        Some(has_more)
    }

    /// A service has worked for so long.
    pub(crate) fn charge(&mut self, entry: EntryId, used: Nanos) {
        if let Some(service) = self.services.iter_mut().find(|it| it.facts.entry == entry) {
            service.cpu += used;
        }
    }

    /// When there is something to do, though nothing happens.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.streams.poll_timeout()
    }
}

impl AsFd for StreamServices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.streams.as_fd()
    }
}

const fn join(counts: &mut Counts, others: Counts) {
    let Counts { accepted, unreachable, reset, ended, other_port, up, down } = others;
    counts.accepted += accepted;
    counts.unreachable += unreachable;
    counts.reset += reset;
    counts.ended += ended;
    counts.other_port += other_port;
    counts.up += up;
    counts.down += down;
}

const fn report(counts: Counts, cpu: Nanos) -> StreamReport {
    let Counts { accepted, unreachable, reset, ended, other_port, up, down } = counts;
    StreamReport { accepted, unreachable, reset, ended, other_port, up, down, cpu }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()
    }

    #[test]
    fn sockets_are_asked_for_before_they_are_needed_and_once() {
        let mut pool = Pool::default();
        assert_eq!(pool.wants(), Some([READY_MAX; 2]));
        assert_eq!(pool.wants(), None, "they are on their way");
        pool.asked = [0; 2];
        pool.ready = [(0..READY_MAX).map(|_| socket()).collect(), Vec::new()];
        pool.asked[1] = READY_MAX;
        for _ in 1..ASKED_MIN {
            assert!(pool.take(false).is_some());
        }
        assert_eq!(pool.wants(), None);
        assert!(pool.take(false).is_some() && !pool.is_short);
        assert_eq!(pool.wants(), Some([ASKED_MIN, 0]));
        assert!(pool.take(true).is_none() && pool.is_short);
    }
}
