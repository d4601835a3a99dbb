//! Services of streams in a cell: their connections, the modules that filter them, and the sockets
//! for outgoing connections.
//!
//! ```text
//!  daemon ── listeners, unconnected sockets ──▶ Streams ── ready ──▶ the session's turn ──▶ work
//!         ── code ──▶ Version: a Filter, or plain relays for a module that inspects nothing
//! ```
//!
//! A new version starts beside the one that runs, without connections. Once it has started, it gets
//! all new connections.
//!
//! A cell may not open sockets: each outgoing connection uses one that the daemon made, and some
//! are kept ready here.

pub(crate) mod codecs;
#[cfg(test)]
mod tests;
pub(crate) mod turns;

use crate::memory::Charge;
use crate::protocol::{ServiceReport, StreamReport, StreamSpec};
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

/// Unconnected sockets of each kind kept ready while a service of streams runs: as many as
/// connections begin in the few milliseconds that the daemon takes to make more.
const READY_MAX: u16 = 256;
/// Least number of sockets that a request to the daemon asks for.
const REQUEST_MIN: u16 = 64;
/// Time after which requested sockets count as lost: the daemon was replaced, or could not make
/// them. Requests are repeated at this rate at most, which a daemon short of descriptors can bear.
const REQUEST_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// Bytes of metrics in a report, so that it fits one message; enough for all metrics with short
/// names.
const METRICS_LENGTH_MAX: usize = 64 << 10;
/// Size of a metric in a report without its name, in bytes.
const METRIC_LENGTH: usize = 16;
/// Period of the measurement of this thread's load: as often as the coding level of a body is
/// chosen.
const BUSY_PERIOD: Nanos = Nanos::from_millis(100);
/// Replaced versions that may still have connections, each with a memory of its own. Beyond this
/// number, the connections of the oldest are reset.
const DRAINING_MAX: usize = 4;
/// Descriptors not available to connections: sockets of ports, code, memory, the unconnected
/// sockets above, and those being closed.
const OTHER_DESCRIPTORS_MAX: usize = 2_048;

/// Services of streams of a cell, with the pool of unconnected sockets and the codecs.
pub(crate) struct StreamServices {
    streams: Streams,
    services: Vec<StreamService>,
    pool: Pool,
    /// Time of the last poll.
    polled_at: Nanos,
    busy: Busy,
    codecs: Codecs,
}

/// Load of this thread in the last period: encoders spend less effort under high load.
#[derive(Default)]
struct Busy {
    /// Time, and processor time of the thread, at the last measurement.
    since: (Nanos, Nanos),
    permille: Rc<Cell<Option<u16>>>,
}

impl Busy {
    /// Measures the load if a period has passed.
    fn poll(&mut self, now: Nanos, ran: impl FnOnce() -> Nanos) {
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

/// Loaded stream module, which filters connections.
pub(crate) struct Module {
    pub(crate) filter: Filter,
    /// Shared data, queues and metrics of the module.
    pub(crate) shared: Rc<RefCell<Shared>>,
}

/// Version of a service.
struct Version {
    facts: StreamSpec,
    number: ServiceNumber,
    /// Events and counters of its module; `None` for a module that inspects nothing.
    reports: Option<Reports>,
    /// Failure policy for its connections while the module is down.
    failure: Option<Rc<Cell<Failure>>>,
    shared: Option<Rc<RefCell<Shared>>>,
    _charge: Charge,
}

impl Version {
    /// Returns the number of requests that it has had.
    fn requests(&self) -> u64 {
        self.reports.as_ref().map_or(0, |reports| reports.counters().requests)
    }
}

/// Service of streams, with its running version and others that start or drain.
struct StreamService {
    runs: Version,
    /// Set until it has started for the first time.
    is_new: bool,
    /// Version that is starting.
    next: Option<Version>,
    /// Replaced versions with open connections, the oldest first.
    draining: Vec<Version>,
    cpu: Nanos,
    /// State of the suspended call.
    call: CallState,
    /// Outcomes of connections of removed versions.
    gone: Counts,
    /// Requests of removed versions.
    requests_gone: u64,
    last_trap: Option<String>,
    /// Steers connections to the listeners as long as it is open.
    _interception: OwnedFd,
}

impl StreamService {
    const fn entry(&self) -> EntryId {
        self.runs.facts.entry
    }

    /// Returns the task that the schedule runs for this service, with its session.
    const fn turn(&self) -> (SessionId, Task) {
        (self.runs.facts.session, Task { entry: self.entry(), pool: 0, processor: 0 })
    }

    /// Returns the events and counters of the modules of all versions.
    fn reports(&self) -> impl Iterator<Item = &Reports> {
        self.versions().filter_map(|version| version.reports.as_ref())
    }

    fn versions(&self) -> impl Iterator<Item = &Version> {
        std::iter::once(&self.runs).chain(&self.next).chain(&self.draining)
    }

    /// Returns the numbers of all versions.
    fn numbers(&self) -> impl Iterator<Item = ServiceNumber> {
        let others = self.next.iter().chain(&self.draining).map(|version| version.number);
        std::iter::once(self.runs.number).chain(others)
    }
}

/// Event of a service that the daemon must be notice of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamNotice {
    /// The service has started.
    Started,
    /// The service has not started, and is removed.
    StartFailed(String),
    /// The new version takes the connections from now on.
    Replaced,
    /// The new version does not start, and is removed.
    ReplaceFailed(String),
    /// The module trapped: the trap, and the number of traps so far.
    Trapped(String, u64),
    /// The module wrote this line to its log.
    Logged(String),
}

/// Pool of unconnected sockets.
#[derive(Default)]
struct Pool {
    /// Ready sockets, for IPv4 and for IPv6.
    ready: [Vec<OwnedFd>; 2],
    /// Number of sockets requested from the daemon and not yet received, and the time of the
    /// request.
    requested: [u16; 2],
    since: Nanos,
    /// Set when a connection waits for a socket.
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
    /// Returns the number of sockets of each kind to request, once there are enough for a message.
    fn wants(&mut self, now: Nanos) -> Option<[u16; 2]> {
        if now.saturating_sub(self.since) >= REQUEST_TIMEOUT {
            self.requested = [0; 2];
        }
        let missing = |kind: usize| {
            let there = self.ready[kind].len() as u16 + self.requested[kind];
            Some(READY_MAX.saturating_sub(there)).filter(|&missing| missing >= REQUEST_MIN)
        };
        let wants = [missing(0), missing(1)];
        if wants == [None, None] {
            return None;
        }
        let wants = wants.map(Option::unwrap_or_default);
        for (requested, wanted) in self.requested.iter_mut().zip(wants) {
            *requested += wanted;
        }
        self.since = now;
        Some(wants)
    }
}

impl StreamServices {
    /// Creates the set of services, empty. Must be called before the process is confined: it
    /// creates a descriptor, which is refused later.
    pub(crate) fn new() -> io::Result<Self> {
        let descriptors = usize::try_from(descriptors_of_cell()).unwrap_or(usize::MAX);
        let connections_max = descriptors.saturating_sub(OTHER_DESCRIPTORS_MAX) / 2;
        let streams = Streams::new(connections_max, unacknowledged)?;
        let (services, pool) = (Vec::new(), Pool::default());
        let (polled_at, busy, codecs) = (Nanos::ZERO, Busy::default(), Codecs::default());
        Ok(Self { streams, services, pool, polled_at, busy, codecs })
    }

    /// Returns the codecs of all services.
    pub(crate) const fn codecs(&self) -> &Codecs {
        &self.codecs
    }

    /// Returns the load of the cell in thousandths, `None` until it is known.
    pub(crate) fn busy_permille(&self) -> Rc<Cell<Option<u16>>> {
        Rc::clone(&self.busy.permille)
    }

    pub(crate) const fn has_services(&self) -> bool {
        !self.services.is_empty()
    }

    /// Starts a service, which takes connections once it has started.
    pub(crate) fn start(
        &mut self,
        facts: StreamSpec,
        interception: OwnedFd,
        listeners: Vec<OwnedFd>,
        module: Option<Module>,
        charge: Charge,
    ) -> io::Result<()> {
        let runs = self.version(facts, listeners, module, charge)?;
        // Time of codecs of an earlier service with this number is not charged to this one.
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
        facts: StreamSpec,
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

    /// Starts another version, which takes new connections once it has started.
    pub(crate) fn replace(
        &mut self,
        facts: StreamSpec,
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

    /// Stops a service and resets its connections. Returns its last report, or `None` if there is
    /// no such service.
    pub(crate) fn stop(&mut self, entry: EntryId) -> Option<ServiceReport> {
        let at = self.services.iter().position(|service| service.entry() == entry)?;
        self.charge_codecs(entry);
        let report = self.report(&self.services[at]);
        let service = self.services.remove(at);
        for number in service.numbers() {
            self.streams.remove(number);
        }
        if self.services.is_empty() {
            // No service is left to connect.
            self.pool.ready = Default::default();
        }
        Some(report)
    }

    /// Returns the next event, of any service, that the daemon must be notice of.
    pub(crate) fn poll_notice(&mut self) -> Option<(EntryId, StreamNotice)> {
        let mut gone = None;
        let notice = self.services.iter_mut().find_map(|service| {
            let entry = service.entry();
            if let Some(next) = &service.next {
                match next.reports.as_ref().map(Reports::poll_event) {
                    None | Some(Some(Event::Started)) => {
                        let next = service.next.take()?;
                        return Some((entry, promote(&mut self.streams, service, next)));
                    }
                    Some(Some(Event::StartFailed { reason, .. })) => {
                        gone = service.next.take().map(|next| next.number);
                        return Some((entry, StreamNotice::ReplaceFailed(reason)));
                    }
                    Some(Some(event)) => return Some((entry, log_notice(event)?)),
                    Some(None) => {}
                }
            }
            let Some(reports) = &service.runs.reports else {
                return std::mem::take(&mut service.is_new)
                    .then_some((entry, StreamNotice::Started));
            };
            let notice = match reports.poll_event()? {
                Event::Started if !std::mem::take(&mut service.is_new) => return None,
                Event::Started => StreamNotice::Started,
                Event::StartFailed { reason, .. } if service.is_new => {
                    StreamNotice::StartFailed(reason)
                }
                Event::StartFailed { reason, .. } => {
                    let text = format!("not started again: {reason}");
                    service.last_trap = Some(text.clone());
                    StreamNotice::Logged(text)
                }
                Event::Trapped { trap, .. } => {
                    service.last_trap = Some(trap.clone());
                    StreamNotice::Trapped(trap, reports.counters().traps)
                }
                event => log_notice(event)?,
            };
            Some((entry, notice))
        });
        if let Some(number) = gone {
            self.streams.remove(number);
        }
        notice
    }

    /// Removes replaced versions whose last connection has ended, and the oldest when there are too
    /// many.
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

    /// Returns all services with their reports.
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

    /// Sets the failure policy of a service's connections while its module is down.
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

    /// Takes sockets that the daemon made on request.
    pub(crate) fn provide(&mut self, v6: bool, sockets: Vec<OwnedFd>) {
        let kind = usize::from(v6);
        self.pool.requested[kind] = self.pool.requested[kind].saturating_sub(sockets.len() as u16);
        if !self.has_services() {
            return;
        }
        self.pool.ready[kind].extend(sockets);
        if std::mem::take(&mut self.pool.is_short) {
            self.streams.retry_waiting();
        }
    }

    /// Discards outstanding requests: a new daemon does not know of them.
    pub(crate) fn discard_requests(&mut self) {
        self.pool.requested = [0; 2];
        self.codecs.discard_requests();
    }

    /// Returns the number of sockets to request, for IPv4 and for IPv6.
    pub(crate) fn wants(&mut self) -> Option<[u16; 2]> {
        if self.has_services() { self.pool.wants(self.polled_at) } else { None }
    }

    /// Polls connections and codecs for events.
    pub(crate) fn poll(&mut self, now: Nanos) -> io::Result<()> {
        self.forget_drained();
        self.busy.poll(now, processor_time);
        self.codecs.poll(now, |pid| sandbox::process::cpu_time(pid).ok());
        self.polled_at = now;
        self.streams.poll(now)
    }

    /// Returns the services with work, as tasks for the schedule.
    pub(crate) fn ready(&self, now: Nanos) -> impl Iterator<Item = (SessionId, Task)> {
        let find = |number| self.services.iter().find(|it| it.numbers().any(|own| own == number));
        self.streams.ready(now).filter_map(find).map(StreamService::turn)
    }

    /// Returns the state of a service's suspended call, and whether a module inspects its
    /// connections at all; `None` if there is no such service.
    pub(crate) fn call(&self, entry: EntryId) -> Option<(CallState, bool)> {
        let service = self.services.iter().find(|service| service.entry() == entry)?;
        Some((service.call, service.reports().next().is_some()))
    }

    /// Works for a service until `until`. Returns true if there is more to do.
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

    /// Sends what a service has gathered, at the end of its turn.
    pub(crate) fn flush(&mut self, entry: EntryId, now: Nanos, until: Nanos) {
        let Some(service) = self.services.iter().find(|service| service.entry() == entry) else {
            return;
        };
        for number in service.numbers() {
            self.streams.flush(number, &mut self.pool, now, until);
        }
    }

    /// Charges a service with the time of its codecs that has not been charged yet, and returns
    /// that time.
    pub(crate) fn charge_codecs(&mut self, entry: EntryId) -> Nanos {
        let used = self.codecs.take_uncharged(entry);
        if let Some(service) = self.service_mut(entry) {
            service.cpu += used;
        }
        used
    }

    /// Charges a service for the time it worked, and stores the state of its call.
    pub(crate) fn charge(&mut self, entry: EntryId, used: Nanos, call: CallState) {
        if let Some(service) = self.service_mut(entry) {
            service.cpu += used;
            service.call = call;
        }
    }

    /// Returns the time of the next timeout of a connection, beyond the work that [`Self::ready`]
    /// reported at the last poll.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.streams.poll_timeout(self.polled_at)
    }
}

/// Puts a version that has started in the place of the running one.
fn promote(streams: &mut Streams, service: &mut StreamService, next: Version) -> StreamNotice {
    if let Err(error) = streams.hand_over(service.runs.number, next.number) {
        streams.remove(next.number);
        return StreamNotice::ReplaceFailed(error.to_string());
    }
    service.draining.push(std::mem::replace(&mut service.runs, next));
    service.last_trap = None;
    StreamNotice::Replaced
}

/// Converts a log event of a module into printable text.
fn log_notice(event: Event) -> Option<StreamNotice> {
    match event {
        Event::Log { text, .. } | Event::Warning(text) => {
            Some(StreamNotice::Logged(text.escape_debug().collect()))
        }
        Event::Started | Event::StartFailed { .. } | Event::Trapped { .. } => None,
    }
}

/// Returns the metrics of a module that fit a report.
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
