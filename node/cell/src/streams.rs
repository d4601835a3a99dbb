//! Services of streams in a cell: their connections, the modules that see them, and the sockets
//! that they connect with.
//!
//! ```text
//!  daemon ── listeners, unconnected sockets ──▶ Streams ── ready ──▶ the session's turn ──▶ work
//!         ── code ──▶ Version: a Filter, or pipes where the module wants to see nothing
//! ```
//!
//! A new version starts beside the one that runs, without connections. When it has started, it gets
//! those that come.
//!
//! A cell opens no socket: each one that connects comes from the daemon, which has some ready here
//! before they are needed.

pub(crate) mod codecs;
#[cfg(test)]
mod tests;
pub(crate) mod turns;

use crate::memory::Charge;
use crate::protocol::{ServiceReport, StreamFacts, StreamReport};
use crate::sched::pacer::{CallState, processor_time};
use crate::sched::sessions::Task;
use crate::streams::codecs::Codecs;
use proxy_wasm::{MetricValue, Shared};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use sandbox::descriptors_of_cell;
use sockets::socket::unacknowledged;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use stream_services::{Event, Failure, Filter, Reports};
use tcp_intercept::{Application, Counts, ServiceNumber, Sockets, Streams};
use units::{EntryId, Nanos, SessionId};

/// Unconnected sockets of each kind that are ready while a service of streams runs: as many as
/// connections begin in the time that a daemon takes to make more, some milliseconds.
const READY_MAX: u16 = 256;
/// The daemon is asked for so many at least.
const ASKED_MIN: u16 = 64;
/// What has not come within this does not: the daemon is another one, or could not make them. It is
/// asked again, not more often than a daemon without descriptors can bear.
const ASKED_FOR: Nanos = Nanos::from_millis(1000);
/// Bytes of metrics that a report has, so that it is one message: of those with short names all.
const METRICS_LENGTH_MAX: usize = 64 << 10;
/// What one takes there beside its name.
const METRIC_LENGTH: usize = 16;
/// How often is measured how busy this thread is: as often as a body's level is chosen anew.
const BUSY_PERIOD: Nanos = Nanos::from_millis(100);
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
    /// When what happened was heard last.
    looked: Nanos,
    busy: Busy,
    codecs: Codecs,
}

/// How much of its time this thread works, of late: encoders try less when there is little left.
#[derive(Default)]
struct Busy {
    /// The time that passes, and what the thread had run.
    since: (Nanos, Nanos),
    permille: Rc<Cell<Option<u16>>>,
}

impl Busy {
    /// Measures, when the last time is long enough ago.
    fn look(&mut self, now: Nanos, ran: impl FnOnce() -> Nanos) {
        let passed = now.saturating_sub(self.since.0);
        if passed < BUSY_PERIOD {
            return;
        }
        let ran = ran();
        let worked = ran.saturating_sub(self.since.1).0.min(passed.0);
        if self.since.0 > Nanos::ZERO {
            self.permille.set(Some((worked * 1000 / passed.0) as u16));
        }
        self.since = (now, ran);
    }
}

/// A module that sees connections.
pub(crate) struct Module {
    pub(crate) filter: Filter,
    /// What it has of data, queues and metrics.
    pub(crate) shared: Rc<RefCell<Shared>>,
}

/// A version of a service.
struct Version {
    facts: StreamFacts,
    number: ServiceNumber,
    /// What its module tells; none of one that wants to see nothing.
    reports: Option<Reports>,
    /// What becomes of its connections while its module is down.
    failure: Option<Rc<Cell<Failure>>>,
    shared: Option<Rc<RefCell<Shared>>>,
    _charge: Charge,
}

impl Version {
    /// Returns how many requests it has had.
    fn requests(&self) -> u64 {
        self.reports.as_ref().map_or(0, |reports| reports.counters().requests)
    }
}

/// One of them.
struct StreamService {
    runs: Version,
    /// It has not started for the first time.
    is_new: bool,
    /// A version that starts.
    next: Option<Version>,
    /// Versions before, the oldest first, as long as connections of theirs are open.
    draining: Vec<Version>,
    cpu: Nanos,
    /// Of the call that stands still.
    call: CallState,
    /// What became of connections of versions that are gone.
    gone: Counts,
    /// Their requests.
    requests_gone: u64,
    last_trap: Option<String>,
    /// As long as it is open, connections come to the listeners.
    _interception: OwnedFd,
}

impl StreamService {
    const fn entry(&self) -> EntryId {
        self.runs.facts.entry
    }

    /// What waits for its session's turn.
    const fn turn(&self) -> (SessionId, Task) {
        (self.runs.facts.session, Task { entry: self.entry(), pool: 0, processor: 0 })
    }

    /// What the modules of all its versions tell.
    fn reports(&self) -> impl Iterator<Item = &Reports> {
        self.versions().filter_map(|version| version.reports.as_ref())
    }

    fn versions(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.runs).chain(&self.next).chain(&self.draining)
    }

    /// All its versions.
    fn numbers(&self) -> impl Iterator<Item = ServiceNumber> {
        let others = self.next.iter().chain(&self.draining).map(|version| version.number);
        std::iter::once(self.runs.number).chain(others)
    }
}

/// What the daemon is to hear of a service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It has started.
    Started,
    /// It has not, and is gone.
    StartFailed(String),
    /// The new version has what comes.
    Replaced,
    /// It does not start, and is gone.
    ReplaceFailed(String),
    /// Its module fell, so many times by now.
    Trapped(String, u64),
    /// Its module says so.
    Said(String),
}

/// Unconnected sockets.
#[derive(Default)]
struct Pool {
    /// For IPv4 and for IPv6.
    ready: [Vec<OwnedFd>; 2],
    /// How many more are on their way, and since when somebody was asked.
    asked: [u16; 2],
    since: Nanos,
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
    fn wants(&mut self, now: Nanos) -> Option<[u16; 2]> {
        if now.saturating_sub(self.since) >= ASKED_FOR {
            self.asked = [0; 2];
        }
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
        self.since = now;
        Some(wants)
    }
}

impl StreamServices {
    /// None yet. Before the process is confined: it makes a descriptor that it could not later.
    pub(crate) fn new() -> io::Result<Self> {
        let descriptors = usize::try_from(descriptors_of_cell()).unwrap_or(usize::MAX);
        let connections_max = descriptors.saturating_sub(OTHERS_MAX) / 2;
        let streams = Streams::new(connections_max, unacknowledged)?;
        let (services, pool) = (Vec::new(), Pool::default());
        let (looked, busy, codecs) = (Nanos::ZERO, Busy::default(), Codecs::default());
        Ok(Self { streams, services, pool, looked, busy, codecs })
    }

    /// The codecs of all services.
    pub(crate) const fn codecs(&self) -> &Codecs {
        &self.codecs
    }

    /// How much of its time the cell works, in thousandths, once that is known.
    pub(crate) fn busy_permille(&self) -> Rc<Cell<Option<u16>>> {
        Rc::clone(&self.busy.permille)
    }

    pub(crate) const fn are_there(&self) -> bool {
        !self.services.is_empty()
    }

    /// A service begins; it takes connections when it has started.
    pub(crate) fn start(
        &mut self,
        facts: StreamFacts,
        interception: OwnedFd,
        listeners: Vec<OwnedFd>,
        module: Option<Module>,
        charge: Charge,
    ) -> io::Result<()> {
        let runs = self.version(facts, listeners, module, charge)?;
        // What another service of that number left is not its.
        self.codecs.take_uncharged(runs.facts.entry);
        self.services.push(StreamService {
            runs,
            is_new: true,
            next: None,
            draining: Vec::new(),
            cpu: Nanos::ZERO,
            call: CallState::default(),
            gone: Counts::default(),
            requests_gone: 0,
            last_trap: None,
            _interception: interception,
        });
        Ok(())
    }

    fn version(
        &mut self,
        facts: StreamFacts,
        listeners: Vec<OwnedFd>,
        module: Option<Module>,
        charge: Charge,
    ) -> io::Result<Version> {
        let (mut reports, mut failure, mut shared) = (None, None, None);
        let application = module.map(|module| {
            reports = Some(module.filter.reports());
            failure = Some(module.filter.failure());
            shared = Some(module.shared);
            Box::new(module.filter) as Box<dyn Application>
        });
        let number = self.streams.add(listeners, application)?;
        Ok(Version { facts, number, reports, failure, shared, _charge: charge })
    }

    /// Another version begins; when it has started, connections that come are its.
    pub(crate) fn replace(
        &mut self,
        facts: StreamFacts,
        module: Option<Module>,
        charge: Charge,
    ) -> io::Result<()> {
        let entry = facts.entry;
        if self.service_mut(entry).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let next = self.version(facts, Vec::new(), module, charge)?;
        let before = self.service_mut(entry).and_then(|service| service.next.replace(next));
        if let Some(before) = before {
            self.streams.remove(before.number);
        }
        Ok(())
    }

    /// A service is no more: its connections are reset. Its last report, if it was there.
    pub(crate) fn stop(&mut self, entry: EntryId) -> Option<ServiceReport> {
        let at = self.services.iter().position(|service| service.entry() == entry)?;
        self.charge_codecs(entry);
        let report = self.report(&self.services[at]);
        let service = self.services.remove(at);
        for number in service.numbers() {
            self.streams.remove(number);
        }
        if self.services.is_empty() {
            // Nobody connects any more.
            self.pool.ready = Default::default();
        }
        Some(report)
    }

    /// What the daemon is to hear, of all services.
    pub(crate) fn poll_told(&mut self) -> Option<(EntryId, Told)> {
        let mut gone = None;
        let told = self.services.iter_mut().find_map(|service| {
            let entry = service.entry();
            if let Some(next) = &service.next {
                match next.reports.as_ref().map(Reports::poll_event) {
                    None | Some(Some(Event::Started)) => {
                        let next = service.next.take()?;
                        return Some((entry, succeed(&mut self.streams, service, next)));
                    }
                    Some(Some(Event::StartFailed { reason, .. })) => {
                        gone = service.next.take().map(|next| next.number);
                        return Some((entry, Told::ReplaceFailed(reason)));
                    }
                    Some(Some(event)) => return Some((entry, said(event)?)),
                    Some(None) => {}
                }
            }
            let Some(reports) = &service.runs.reports else {
                return std::mem::take(&mut service.is_new).then_some((entry, Told::Started));
            };
            let told = match reports.poll_event()? {
                Event::Started if !std::mem::take(&mut service.is_new) => return None,
                Event::Started => Told::Started,
                Event::StartFailed { reason, .. } if service.is_new => Told::StartFailed(reason),
                Event::StartFailed { reason, .. } => {
                    let text = format!("not started again: {reason}");
                    service.last_trap = Some(text.clone());
                    Told::Said(text)
                }
                Event::Trapped { trap, .. } => {
                    service.last_trap = Some(trap.clone());
                    Told::Trapped(trap, reports.counters().traps)
                }
                event => said(event)?,
            };
            Some((entry, told))
        });
        if let Some(number) = gone {
            self.streams.remove(number);
        }
        told
    }

    /// Versions before whose last connection has ended go, and the oldest when there are too many.
    fn forget_drained(&mut self) {
        for service in &mut self.services {
            let too_many = service.draining.len().saturating_sub(DRAINING_MAX);
            let mut at = 0;
            service.draining.retain(|version| {
                at += 1;
                let open = self.streams.counts(version.number).unwrap_or_default().open();
                if open > 0 && at > too_many {
                    return true;
                }
                service.gone += self.streams.remove(version.number).unwrap_or_default();
                service.requests_gone += version.requests();
                false
            });
        }
    }

    /// Those that run.
    pub(crate) fn all(&self) -> impl Iterator<Item = (EntryId, ServiceReport)> {
        self.services.iter().map(|service| (service.entry(), self.report(service)))
    }

    fn report(&self, service: &StreamService) -> ServiceReport {
        let mut counts = service.gone;
        for number in service.numbers() {
            counts += self.streams.counts(number).unwrap_or_default();
        }
        let requests: u64 = service.versions().map(Version::requests).sum();
        let requests = requests + service.requests_gone;
        let traps = service.runs.reports.as_ref().map_or(0, |reports| reports.counters().traps);
        ServiceReport {
            streams: Some(StreamReport { counts, requests, cpu: service.cpu }),
            memory_bytes: service.reports().map(Reports::memory_bytes).sum(),
            lanes_running: 1,
            traps: (traps > 0).then(|| ("module".to_owned(), traps)).into_iter().collect(),
            last_trap: service.last_trap.clone(),
            counters: service.runs.shared.as_ref().map(metrics).unwrap_or_default(),
            ..ServiceReport::default()
        }
    }

    fn service_mut(&mut self, entry: EntryId) -> Option<&mut StreamService> {
        self.services.iter_mut().find(|service| service.entry() == entry)
    }

    /// What becomes of a service's connections while its module is down, from now on.
    pub(crate) fn set_closed(&mut self, entry: EntryId, closed: bool) {
        let Some(service) = self.service_mut(entry) else { return };
        service.runs.facts.closed = closed;
        let others = service.next.iter().chain(&service.draining);
        for failure in
            std::iter::once(&service.runs).chain(others).filter_map(|it| it.failure.as_ref())
        {
            failure.set(if closed { Failure::Closed } else { Failure::Open });
        }
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
            self.streams.retry_waiting();
        }
    }

    /// None of those that were asked for will come: the daemon is another one.
    pub(crate) fn forget_asked(&mut self) {
        self.pool.asked = [0; 2];
        self.codecs.forget_asked();
    }

    /// How many more sockets the daemon should make, for IPv4 and for IPv6.
    pub(crate) fn wants(&mut self) -> Option<[u16; 2]> {
        if self.are_there() { self.pool.wants(self.looked) } else { None }
    }

    /// Hears what has happened.
    pub(crate) fn look(&mut self, now: Nanos) -> io::Result<()> {
        self.forget_drained();
        self.busy.look(now, processor_time);
        self.codecs.look(now, |pid| sandbox::process::cpu_time(pid).ok());
        self.looked = now;
        self.streams.poll(now)
    }

    /// Services for which something can be done, as what waits for a turn of their sessions.
    pub(crate) fn ready(&self, now: Nanos) -> impl Iterator<Item = (SessionId, Task)> {
        let find = |number| self.services.iter().find(|it| it.numbers().any(|own| own == number));
        self.streams.ready(now).filter_map(find).map(StreamService::turn)
    }

    /// The state of a service's call that stands still, and whether a module sees its connections
    /// at all; `None` when the service is not there.
    pub(crate) fn call(&self, entry: EntryId) -> Option<(CallState, bool)> {
        let service = self.services.iter().find(|service| service.entry() == entry)?;
        Some((service.call, service.reports().next().is_some()))
    }

    /// Does something for a service; whether there is more to do.
    pub(crate) fn work(&mut self, entry: EntryId, now: Nanos, until: Nanos) -> bool {
        let Some(service) = self.services.iter().find(|service| service.entry() == entry) else {
            return false;
        };
        let mut has_more = false;
        for number in service.numbers() {
            has_more |= self.streams.work(number, &mut self.pool, now, until);
        }
        has_more
    }

    /// A service's turn ends: what it has gathered to send goes.
    pub(crate) fn flush(&mut self, entry: EntryId, now: Nanos, until: Nanos) {
        let Some(service) = self.services.iter().find(|service| service.entry() == entry) else {
            return;
        };
        for number in service.numbers() {
            self.streams.flush(number, &mut self.pool, now, until);
        }
    }

    /// A service's codecs have taken so much that nobody was charged yet; it is on its account.
    pub(crate) fn charge_codecs(&mut self, entry: EntryId) -> Nanos {
        let used = self.codecs.take_uncharged(entry);
        if let Some(service) = self.service_mut(entry) {
            service.cpu += used;
        }
        used
    }

    /// A service has worked for so long, and left its call so.
    pub(crate) fn charge(&mut self, entry: EntryId, used: Nanos, call: CallState) {
        if let Some(service) = self.service_mut(entry) {
            service.cpu += used;
            service.call = call;
        }
    }

    /// Returns when there is something to do, though nothing happens, beyond what [`Self::ready`] said at
    /// the last look.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.streams.poll_timeout(self.looked)
    }
}

/// A version that has started takes the place of the one that runs.
fn succeed(streams: &mut Streams, service: &mut StreamService, next: Version) -> Told {
    if let Err(error) = streams.hand_over(service.runs.number, next.number) {
        streams.remove(next.number);
        return Told::ReplaceFailed(error.to_string());
    }
    service.draining.push(std::mem::replace(&mut service.runs, next));
    service.last_trap = None;
    Told::Replaced
}

/// What a module says, as people may read it.
fn said(event: Event) -> Option<Told> {
    match event {
        Event::Log { text, .. } | Event::Warning(text) => {
            Some(Told::Said(text.escape_debug().collect()))
        }
        Event::Started | Event::StartFailed { .. } | Event::Trapped { .. } => None,
    }
}

/// What a module counts.
fn metrics(shared: &Rc<RefCell<Shared>>) -> BTreeMap<String, u64> {
    let (shared, mut bytes) = (shared.borrow(), 0);
    let fits = |metric: &&proxy_wasm::Metric| {
        bytes += metric.name.len() + METRIC_LENGTH;
        bytes <= METRICS_LENGTH_MAX
    };
    let metric = |metric: &proxy_wasm::Metric| match &metric.value {
        MetricValue::Counter(value) | MetricValue::Gauge(value) => (metric.name.clone(), *value),
        MetricValue::Histogram { count, .. } => (metric.name.clone(), *count),
    };
    shared.metrics().iter().take_while(fits).map(metric).collect()
}

impl AsFd for StreamServices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.streams.as_fd()
    }
}
