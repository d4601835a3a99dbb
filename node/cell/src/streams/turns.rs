//! Services of streams in the cell's loop: connections are polled in each round, and work on them
//! waits for its session's turn.

use super::codecs::CodecRequest;
use super::{Module, StreamNotice, StreamServices};
use crate::control::link::Link;
use crate::memory::{Charge, Memory};
use crate::protocol::{Failure, FromCell, ServiceReport, SessionSpec, StreamSpec};
use crate::sched::pacer::{self, Pacer};
use crate::sched::sessions::Next;
use crate::sched::{Scheduler, Timer};
use abi::streams::{Protocol, Reflection, StreamSettings};
use anyhow::{Context, Result, bail};
use engine::Pace;
use executor::TURN_MAX;
use proxy_wasm::abi::LogLevel;
use proxy_wasm::{Random, Shared, VmSpec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use stream_services::{Capabilities, Filter, FilterSpec, Kind};
use units::{EntryId, Nanos, SessionId};

/// Slices that a call may see begin without a pacer; not used here, where there is one.
const CALL_SLICES: u64 = 2;
/// Bytes of a page of linear memory.
const PAGE_LENGTH: usize = 65_536;

/// Interval at which the daemon and the kernel's packets are polled while connections have work:
/// polling them takes two system calls, which would double those of a round.
const POLL_INTERVAL: Nanos = Nanos(100_000);

/// Time for which a service's calls are interrupted more often after one that ran for longer than a
/// turn. Other calls are short, and interrupting them takes a twentieth of their time.
const CAREFUL_FOR: Nanos = Nanos::from_millis(1_000);

/// Returns the settings of shared streams that the operator allows; `None` if it allows none.
fn shared_streams(allowed: Reflection) -> Option<fanout::Settings> {
    let mut settings = fanout::Settings::default();
    match allowed {
        Reflection::Refused => return None,
        Reflection::Storable => {}
        Reflection::Any => settings.channel.no_store = fanout::NoStore::Share,
    }
    Some(settings)
}

/// Source of random bytes: the kernel.
struct Kernel;

impl Random for Kernel {
    fn fill(&self, bytes: &mut [u8]) {
        // The kernel's generator was ready before this process started.
        let _ = getrandom::fill(bytes);
    }
}

/// Schedule for polling what is not a connection: the daemon, and packets from the kernel.
#[derive(Debug, Default)]
struct PollSchedule {
    /// Time of the last poll that followed work on connections.
    polled_at: Nanos,
    /// Time of work on connections since the last poll, if any.
    worked_at: Option<Nanos>,
}

impl PollSchedule {
    /// Records that connections were worked_at on until `now`.
    const fn handle_work(&mut self, now: Nanos) {
        self.worked_at = Some(now);
    }

    /// Returns true if it is time to poll.
    fn poll(&mut self) -> bool {
        let Some(at) = self.worked_at.take() else { return true };
        let is_due = at.saturating_sub(self.polled_at) >= POLL_INTERVAL;
        if is_due {
            self.polled_at = at;
        }
        is_due
    }
}

/// Owner of services of streams, and of the schedule for polling the daemon.
pub(crate) struct StreamTurns {
    services: StreamServices,
    engine: proxy_wasm::Engine,
    accounts: Memory,
    /// Time until which calls are expected to be long.
    careful_until: Nanos,
    schedule: PollSchedule,
}

impl StreamTurns {
    /// Creates an owner without services. Must be called before the process is confined, since it
    /// creates a descriptor.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub(crate) fn new(engine: proxy_wasm::Engine, accounts: Memory) -> std::io::Result<Self> {
        Ok(Self {
            services: StreamServices::new()?,
            engine,
            accounts,
            careful_until: Nanos::ZERO,
            schedule: PollSchedule::default(),
        })
    }

    /// Returns true if there is a service.
    pub(crate) const fn has_services(&self) -> bool {
        self.services.has_services()
    }

    /// Returns the services and their reports.
    pub(crate) fn all(&self) -> impl Iterator<Item = (EntryId, ServiceReport)> {
        self.services.all()
    }

    /// Returns the codecs of all services.
    pub(crate) const fn codecs(&self) -> &super::codecs::Codecs {
        self.services.codecs()
    }

    /// Returns the descriptor that is readable when connections have events, while there are
    /// services.
    pub(crate) fn readable_fds(&self) -> Option<BorrowedFd<'_>> {
        self.services.has_services().then_some(self.services.as_fd())
    }

    /// Starts a service with the descriptors of its message; tells the daemon if that fails.
    ///
    /// # Errors
    /// Descriptors are missing, or the daemon cannot be notified.
    pub(crate) fn start(
        &mut self,
        facts: StreamSpec,
        fds: Vec<OwnedFd>,
        scheduler: &mut Scheduler<impl Timer>,
        link: &mut Link,
    ) -> Result<()> {
        let entry = facts.entry;
        let mut fds = fds.into_iter();
        let (Some(code), Some(interception)) = (fds.next(), fds.next()) else {
            bail!("StartStreams came without its descriptors");
        };
        let listeners = fds.collect();
        let started =
            self.prepare(&facts, &code, scheduler.pacer()).and_then(|(module, charge)| {
                Ok(self.services.start(facts, interception, listeners, module, charge)?)
            });
        match started {
            Ok(()) => self.poll(scheduler, link),
            Err(error) => link.send(&FromCell::StartFailed(entry, Failure::of(&error))),
        }
    }

    /// Starts another version of a service; tells the daemon if that fails.
    ///
    /// # Errors
    /// The code is missing, or the daemon cannot be notified.
    pub(crate) fn replace(
        &mut self,
        facts: StreamSpec,
        fds: Vec<OwnedFd>,
        scheduler: &mut Scheduler<impl Timer>,
        link: &mut Link,
    ) -> Result<()> {
        let entry = facts.entry;
        let Some(code) = fds.into_iter().next() else {
            bail!("ReplaceStreams came without its code");
        };
        let replaced = self
            .prepare(&facts, &code, scheduler.pacer())
            .and_then(|(module, charge)| Ok(self.services.replace(facts, module, charge)?));
        match replaced {
            Ok(()) => self.poll(scheduler, link),
            Err(error) => link.send(&FromCell::ReplaceFailed(entry, Failure::of(&error))),
        }
    }

    /// Stops a service, and returns its last report; `None` if it is no service of streams.
    pub(crate) fn stop(&mut self, entry: EntryId) -> Option<ServiceReport> {
        self.services.stop(entry)
    }

    /// Sets the failure policy of a service: its connections are reset, or relayed unchanged.
    pub(crate) fn set_closed(&mut self, entry: EntryId, closed: bool) {
        self.services.set_closed(entry, closed);
    }

    /// Adds unconnected sockets to the pool.
    pub(crate) fn provide(&mut self, v6: bool, sockets: Vec<OwnedFd>) {
        self.services.provide(v6, sockets);
    }

    /// Applies a session's reservation: its codecs are limited to the sum of its virtual processors
    /// if none of them has extra time.
    pub(crate) fn set_session(&self, facts: &SessionSpec) {
        let processors = &facts.reservation.processors;
        let is_bounded = !processors.is_empty() && processors.iter().all(|it| !it.extra);
        let sum = processors.iter().map(|it| it.share.parts_per_million() / 1000).sum();
        self.services.codecs().set_ceiling(facts.id, is_bounded.then_some(sum));
    }

    /// Removes a session.
    pub(crate) fn forget_session(&self, id: SessionId) {
        self.services.codecs().set_ceiling(id, None);
    }

    /// Stops all services but those of `keep`, since a new daemon knows no others; requests to the
    /// old daemon are discarded.
    pub(crate) fn retain(&mut self, keep: impl Fn(EntryId) -> bool) {
        let gone: Vec<EntryId> =
            self.all().map(|(entry, _)| entry).filter(|&entry| !keep(entry)).collect();
        for entry in gone {
            self.services.stop(entry);
        }
        self.services.discard_requests();
    }

    /// Polls connections, reports events to the daemon, and marks services with work as ready.
    ///
    /// # Errors
    /// Connections cannot be polled, or the daemon cannot be notified.
    pub(crate) fn poll(
        &mut self,
        scheduler: &mut Scheduler<impl Timer>,
        link: &mut Link,
    ) -> Result<()> {
        if !self.services.has_services() {
            return Ok(());
        }
        let now = pacer::now();
        self.services.poll(now).context("polling connections")?;
        for (session, task) in self.services.ready(now) {
            scheduler.sessions_mut().wake(now, session, task);
        }
        while let Some((entry, notice)) = self.services.poll_notice() {
            self.report(entry, notice, link)?;
        }
        if let Some(wants) = self.services.wants() {
            link.send(&FromCell::WantsSockets(wants))?;
        }
        while let Some(request) = self.services.codecs().poll_request() {
            link.send(&match request {
                CodecRequest::Start(number, parameters) => FromCell::WantsCodec(number, parameters),
                CodecRequest::Stop(number) => FromCell::CodecUnwanted(number),
            })?;
        }
        Ok(())
    }

    /// Runs a turn of a service; returns the time when it ended. `None` if there is no such
    /// service.
    pub(crate) fn work(
        &mut self,
        begin: Nanos,
        next: &Next,
        scheduler: &mut Scheduler<impl Timer>,
    ) -> Option<Nanos> {
        let entry = next.task.entry;
        let (call, has_module) = self.services.call(entry)?;
        let until = next.until.min(begin + TURN_MAX);
        if has_module {
            scheduler.begin_calls((begin, until), call, begin < self.careful_until);
        }
        let mut now = begin;
        loop {
            let has_more = self.services.work(entry, now, until);
            now = pacer::now();
            if !has_more || now >= until {
                if has_more {
                    self.services.flush(entry, now, until);
                    now = pacer::now();
                }
                let used = now.saturating_sub(begin);
                let pacer = scheduler.pacer();
                let call = if has_module { pacer.end(true) } else { call };
                if has_module && pacer.take_long() {
                    self.careful_until = now + CAREFUL_FOR;
                }
                self.services.charge(entry, used, call);
                self.schedule.handle_work(now);
                let sessions = scheduler.sessions_mut();
                sessions.charge_codecs(now, next, self.services.charge_codecs(entry));
                sessions.charge(now, next, used, !has_more);
                return Some(now);
            }
        }
    }

    /// Returns true if it is time to poll the daemon and packets from the kernel.
    pub(crate) fn is_poll_due(&mut self) -> bool {
        self.schedule.poll()
    }

    /// Returns the time of the next timeout of a connection.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.services.poll_timeout()
    }

    /// Loads the module of a service or a version, and charges its memory.
    fn prepare(
        &self,
        facts: &StreamSpec,
        code: &OwnedFd,
        pacer: &Rc<Pacer>,
    ) -> Result<(Option<Module>, Charge)> {
        let module = self.module(facts, code, pacer)?;
        Ok((module, self.accounts.charge_streams(facts)?))
    }

    /// Loads the module that filters a service's connections; `None` if it inspects nothing.
    fn module(
        &self,
        facts: &StreamSpec,
        code: &OwnedFd,
        pacer: &Rc<Pacer>,
    ) -> Result<Option<Module>> {
        let program = self.engine.load_from_parent(code)?;
        let callbacks = program.callbacks();
        if !callbacks.is_tcp() && !callbacks.is_http() {
            return Ok(None);
        }
        let settings = StreamSettings::from_parameters(&facts.parameters)
            .context("the service's parameters are not those of a stream module")?;
        let room: Rc<dyn engine::MemoryAccount> = self.accounts.room(facts.session);
        let shared = Rc::new(RefCell::new(Shared::new(Some(Rc::clone(&room)))));
        let pace: Rc<dyn Pace> = Rc::clone(pacer) as _;
        let vm = VmSpec {
            number: 0,
            plugin_name: facts.name.clone(),
            root_id: String::new(),
            vm_id: facts.name.clone(),
            vm_configuration: Rc::from([]),
            plugin_configuration: settings.configuration.into_bytes().into(),
            environment: BTreeMap::new(),
            upstreams: BTreeSet::new(),
            log_level: LogLevel::Info,
            memory_bytes_max: facts.memory_pages_max as usize * PAGE_LENGTH,
            call_slices: CALL_SLICES,
            pace: Some(pace),
            room: Some(room),
            random: Rc::new(Kernel),
            foreign: Rc::default(),
            shared: Rc::clone(&shared),
        };
        let filter = Filter::new(FilterSpec {
            program,
            vm,
            kind: match settings.protocol {
                Protocol::Tcp => Kind::Tcp,
                Protocol::Http => Kind::Http,
            },
            failure: if facts.closed {
                stream_services::Failure::Closed
            } else {
                stream_services::Failure::Open
            },
            upstreams: settings.upstreams,
            capabilities: Capabilities {
                codes_responses: settings.capabilities.codes_responses,
                reflects: shared_streams(settings.capabilities.reflection),
                keeps_servers: settings.capabilities.keeps_servers,
            },
            codecs: settings
                .capabilities
                .transcodes
                .then(|| self.services.codecs().of(facts.session, facts.entry)),
            busy_permille: self.services.busy_permille(),
            real_offset_ns: pacer::real_offset().0,
        });
        Ok(Some(Module { filter, shared }))
    }

    fn report(&mut self, entry: EntryId, notice: StreamNotice, link: &mut Link) -> Result<()> {
        let failure = |reason: String| Failure::of(&anyhow::Error::msg(reason));
        match notice {
            StreamNotice::Started => link.send(&FromCell::Started(entry)),
            StreamNotice::StartFailed(reason) => {
                self.services.stop(entry);
                link.send(&FromCell::StartFailed(entry, failure(reason)))
            }
            StreamNotice::Replaced => {
                link.send(&FromCell::Replaced(entry, 0))?;
                link.send(&FromCell::VersionConfirmed(entry))
            }
            StreamNotice::ReplaceFailed(reason) => {
                link.send(&FromCell::ReplaceFailed(entry, failure(reason)))
            }
            StreamNotice::Trapped(trap, traps) => {
                link.notice(&FromCell::Trapped(entry, 0, trap, traps));
                Ok(())
            }
            StreamNotice::Logged(text) => {
                link.notice(&FromCell::Log(entry, text));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests::Rig;
    use crate::protocol::RetainedSizes;
    use sandbox::fd_passing::sealed_memory;
    use std::net::TcpListener;

    const ENTRY: EntryId = EntryId(6);
    /// Module that inspects nothing of connections.
    const BLIND: &str = r#"(module (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "malloc") (param i32) (result i32) (i32.const 0)))"#;

    fn facts() -> StreamSpec {
        StreamSpec {
            entry: ENTRY,
            name: "blind".into(),
            session: SessionId::BEST_EFFORT,
            memory_pages_max: 1,
            parameters: BTreeMap::new(),
            closed: false,
            kept: RetainedSizes::default(),
        }
    }

    fn code(text: &str) -> OwnedFd {
        let wasm = wat::parse_str(text).unwrap();
        let code = proxy_wasm::Engine::new().unwrap().compile(&wasm).unwrap();
        sealed_memory("code", &code).unwrap()
    }

    /// Returns the descriptors of a service: its code, its interception, a listener.
    fn descriptors(code: OwnedFd) -> Vec<OwnedFd> {
        let interception = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        vec![code, interception.into(), listener.into()]
    }

    fn start(rig: &mut Rig, fds: Vec<OwnedFd>) -> Result<()> {
        let Rig { streams, dispatcher, link, .. } = rig;
        streams.start(facts(), fds, dispatcher.scheduler_mut(), link)
    }

    fn replace(rig: &mut Rig) {
        let Rig { streams, dispatcher, link, .. } = rig;
        let fds = vec![code(BLIND)];
        streams.replace(facts(), fds, dispatcher.scheduler_mut(), link).unwrap();
    }

    fn poll(rig: &mut Rig) -> Vec<String> {
        let Rig { streams, dispatcher, link, .. } = rig;
        streams.poll(dispatcher.scheduler_mut(), link).unwrap();
        rig.reported().iter().map(|message| format!("{message:?}")).collect()
    }

    #[test]
    fn a_service_of_streams_starts_asks_for_sockets_is_replaced_and_stops() {
        let mut rig = Rig::new();
        assert!(rig.streams.readable_fds().is_none() && poll(&mut rig).is_empty());
        start(&mut rig, descriptors(code(BLIND))).unwrap();
        assert_eq!(poll(&mut rig), ["Started(EntryId(6))", "WantsSockets([256, 256])"]);
        assert!(rig.streams.has_services() && rig.streams.readable_fds().is_some());
        replace(&mut rig);
        assert_eq!(poll(&mut rig), ["Replaced(EntryId(6), 0)", "VersionConfirmed(EntryId(6))"]);
        rig.streams.set_closed(ENTRY, true);
        let report = rig.streams.stop(ENTRY).unwrap();
        assert_eq!(report.streams.unwrap().requests, 0);
        assert!(rig.streams.stop(ENTRY).is_none() && !rig.streams.has_services());
    }

    #[test]
    fn invalid_code_and_an_unknown_service_are_reported() {
        let mut rig = Rig::new();
        let none = sealed_memory("code", b"none").unwrap();
        start(&mut rig, descriptors(none)).unwrap();
        replace(&mut rig);
        let reported = rig.reported();
        let [FromCell::StartFailed(ENTRY, _), FromCell::ReplaceFailed(ENTRY, _)] = &reported[..]
        else {
            panic!("{reported:?}");
        };
        assert!(start(&mut rig, vec![code(BLIND)]).is_err(), "descriptors are missing");
    }

    #[test]
    fn a_turn_of_a_service_without_connections_is_over_at_once() {
        let mut rig = Rig::new();
        start(&mut rig, descriptors(code(BLIND))).unwrap();
        poll(&mut rig);
        let Rig { streams, dispatcher, .. } = &mut rig;
        let scheduler = dispatcher.scheduler_mut();
        let task = crate::sched::sessions::Task { entry: ENTRY, pool: 0, processor: 0 };
        scheduler.sessions_mut().wake(Nanos(1), SessionId::BEST_EFFORT, task);
        let begin = pacer::now();
        let next = scheduler.next(begin).unwrap();
        assert!(streams.work(begin, &next, scheduler).unwrap() >= begin);
        assert!(scheduler.next(pacer::now()).is_none(), "it has no work any more");
        let other =
            Next { task: crate::sched::sessions::Task { entry: EntryId(9), ..task }, ..next };
        assert!(streams.work(begin, &other, scheduler).is_none());
    }

    #[test]
    fn stream_services_unknown_to_the_next_daemon_are_removed() {
        let mut rig = Rig::new();
        start(&mut rig, descriptors(code(BLIND))).unwrap();
        rig.streams.retain(|entry| entry == ENTRY);
        assert_eq!(rig.streams.all().count(), 1);
        rig.streams.retain(|_| false);
        assert_eq!(rig.streams.all().count(), 0);
    }

    #[test]
    fn other_work_is_polled_always_or_at_an_interval_while_connections_work() {
        let mut beside = PollSchedule::default();
        assert!(beside.poll() && beside.poll(), "nothing is worked for");
        let mut at = |now: u64| {
            beside.handle_work(Nanos(now));
            beside.poll()
        };
        assert!(at(1_000_000));
        assert!(!at(1_050_000) && !at(1_099_999));
        assert!(at(1_100_000) && !at(1_150_000));
        assert!(beside.poll(), "nothing was since the last look");
    }
}
