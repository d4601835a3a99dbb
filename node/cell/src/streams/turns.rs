//! Services of streams in the cell's loop: what happens to connections is looked at each time, what
//! can be done waits for its session's turn.

use super::codecs::Ask;
use super::{Module, StreamServices, Told};
use crate::control::link::Link;
use crate::memory::{Charge, Memory};
use crate::protocol::{Failure, FromCell, ServiceReport, SessionFacts, StreamFacts};
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

/// Slices that a call may see begin where nobody sets a pace; here somebody does.
const CALL_SLICES: u64 = 2;
/// Bytes of a page of linear memory.
const PAGE_LENGTH: usize = 65_536;

/// Interval at which the daemon and what comes from the kernel are looked at while there is
/// something to do for connections: two calls of the kernel, which each look at those would make as
/// well.
const BESIDE_INTERVAL: Nanos = Nanos(100_000);

/// Time for which a service's calls are looked at more often behind one that ran for longer than a
/// turn. Others are short, and to interrupt them takes a twentieth of their time.
const CAREFUL_FOR: Nanos = Nanos::from_millis(1_000);

/// Returns the settings of shared streams that an operator allows; `None` when he allows none.
fn shared_streams(allowed: Reflection) -> Option<fanout::Settings> {
    let mut settings = fanout::Settings::default();
    match allowed {
        Reflection::Refused => return None,
        Reflection::Storable => {}
        Reflection::Any => settings.channel.no_store = fanout::NoStore::Share,
    }
    Some(settings)
}

/// The kernel's random bytes.
struct Kernel;

impl Random for Kernel {
    fn fill(&self, bytes: &mut [u8]) {
        // A kernel that has none yet has not started this process.
        let _ = getrandom::fill(bytes);
    }
}

/// Schedule of looks at what is beside connections: the daemon, and the kernel's packets.
#[derive(Debug, Default)]
struct Beside {
    /// Instant of the last look behind which there were connections to work for.
    looked: Nanos,
    /// Instant at which connections were worked for, since the last look.
    worked: Option<Nanos>,
}

impl Beside {
    /// Notes that connections were worked for, until then.
    const fn handle_work(&mut self, now: Nanos) {
        self.worked = Some(now);
    }

    /// Returns whether it is time to look.
    fn poll(&mut self) -> bool {
        let Some(at) = self.worked.take() else { return true };
        let is_due = at.saturating_sub(self.looked) >= BESIDE_INTERVAL;
        if is_due {
            self.looked = at;
        }
        is_due
    }
}

/// Owner of services of streams, and of when they and what is beside them are looked at.
pub(crate) struct StreamTurns {
    services: StreamServices,
    engine: proxy_wasm::Engine,
    accounts: Memory,
    /// Instant until which calls may be long.
    careful_until: Nanos,
    beside: Beside,
}

impl StreamTurns {
    /// Creates an owner without services; before the process is confined, since it makes a
    /// descriptor.
    ///
    /// # Errors
    /// When the kernel has none left.
    pub(crate) fn new(engine: proxy_wasm::Engine, accounts: Memory) -> std::io::Result<Self> {
        Ok(Self {
            services: StreamServices::new()?,
            engine,
            accounts,
            careful_until: Nanos::ZERO,
            beside: Beside::default(),
        })
    }

    /// Returns true when there is a service.
    pub(crate) const fn are_there(&self) -> bool {
        self.services.are_there()
    }

    /// Returns the services and their reports.
    pub(crate) fn all(&self) -> impl Iterator<Item = (EntryId, ServiceReport)> {
        self.services.all()
    }

    /// Returns the codecs of all services.
    pub(crate) const fn codecs(&self) -> &super::codecs::Codecs {
        self.services.codecs()
    }

    /// Returns the descriptor that becomes readable when something happens to connections, while
    /// there are services.
    pub(crate) fn waited_for(&self) -> Option<BorrowedFd<'_>> {
        self.services.are_there().then_some(self.services.as_fd())
    }

    /// Begins a service, with what came with its facts; tells the daemon when that fails.
    ///
    /// # Errors
    /// When descriptors are missing, or the daemon cannot be told.
    pub(crate) fn start(
        &mut self,
        facts: StreamFacts,
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
            Ok(()) => self.look(scheduler, link),
            Err(error) => link.send(&FromCell::StartFailed(entry, Failure::of(&error))),
        }
    }

    /// Begins another version in a service's place; tells the daemon when that fails.
    ///
    /// # Errors
    /// When its code is missing, or the daemon cannot be told.
    pub(crate) fn replace(
        &mut self,
        facts: StreamFacts,
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
            Ok(()) => self.look(scheduler, link),
            Err(error) => link.send(&FromCell::ReplaceFailed(entry, Failure::of(&error))),
        }
    }

    /// Ends a service, and returns its last report; `None` when it is no service of streams.
    pub(crate) fn stop(&mut self, entry: EntryId) -> Option<ServiceReport> {
        self.services.stop(entry)
    }

    /// Has packets that a service cannot have dropped, or forwarded plainly.
    pub(crate) fn set_closed(&mut self, entry: EntryId, closed: bool) {
        self.services.set_closed(entry, closed);
    }

    /// Takes unconnected sockets.
    pub(crate) fn provide(&mut self, v6: bool, sockets: Vec<OwnedFd>) {
        self.services.provide(v6, sockets);
    }

    /// Takes what a session was promised: of a core its codecs have that at most when none of its
    /// virtual processors has more.
    pub(crate) fn set_session(&self, facts: &SessionFacts) {
        let processors = &facts.reservation.processors;
        let is_bounded = !processors.is_empty() && processors.iter().all(|it| !it.extra);
        let sum = processors.iter().map(|it| it.share.parts_per_million() / 1000).sum();
        self.services.codecs().set_ceiling(facts.id, is_bounded.then_some(sum));
    }

    /// Forgets a session that is gone.
    pub(crate) fn forget_session(&self, id: SessionId) {
        self.services.codecs().set_ceiling(id, None);
    }

    /// Ends all services but those of `keep`: another daemon knows no others, and nothing that the
    /// one before was asked for will come.
    pub(crate) fn retain(&mut self, keep: impl Fn(EntryId) -> bool) {
        let gone: Vec<EntryId> =
            self.all().map(|(entry, _)| entry).filter(|&entry| !keep(entry)).collect();
        for entry in gone {
            self.services.stop(entry);
        }
        self.services.forget_asked();
    }

    /// Looks at what has happened to connections, and tells the daemon: services with something to
    /// do wait for their turn.
    ///
    /// # Errors
    /// When connections cannot be looked at, or the daemon cannot be told.
    pub(crate) fn look(
        &mut self,
        scheduler: &mut Scheduler<impl Timer>,
        link: &mut Link,
    ) -> Result<()> {
        if !self.services.are_there() {
            return Ok(());
        }
        let now = pacer::now();
        self.services.look(now).context("hearing of connections")?;
        for (session, task) in self.services.ready(now) {
            scheduler.sessions_mut().wake(now, session, task);
        }
        while let Some((entry, told)) = self.services.poll_told() {
            self.report(entry, told, link)?;
        }
        if let Some(wants) = self.services.wants() {
            link.send(&FromCell::WantsSockets(wants))?;
        }
        while let Some(ask) = self.services.codecs().poll_ask() {
            link.send(&match ask {
                Ask::Start(number, parameters) => FromCell::WantsCodec(number, parameters),
                Ask::Stop(number) => FromCell::CodecUnwanted(number),
            })?;
        }
        Ok(())
    }

    /// Lets a service work whose turn it is; returns until when it did. `None` when there is no
    /// such service.
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
                self.beside.handle_work(now);
                let sessions = scheduler.sessions_mut();
                sessions.charge_codecs(now, next, self.services.charge_codecs(entry));
                sessions.charge(now, next, used, !has_more);
                return Some(now);
            }
        }
    }

    /// Returns whether it is time to look at the daemon and at what the kernel sends up.
    pub(crate) fn poll_beside(&mut self) -> bool {
        self.beside.poll()
    }

    /// Returns when there is something to do although nothing happens.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.services.poll_timeout()
    }

    /// Makes what a service, or another version of it, is begun with: its module, and the charge of
    /// its memory.
    fn prepare(
        &self,
        facts: &StreamFacts,
        code: &OwnedFd,
        pacer: &Rc<Pacer>,
    ) -> Result<(Option<Module>, Charge)> {
        let module = self.module(facts, code, pacer)?;
        Ok((module, self.accounts.charge_streams(facts)?))
    }

    /// Makes what sees a service's connections; `None` when its module wants to see nothing.
    fn module(
        &self,
        facts: &StreamFacts,
        code: &OwnedFd,
        pacer: &Rc<Pacer>,
    ) -> Result<Option<Module>> {
        let program = self.engine.load_from_parent(code)?;
        let callbacks = program.callbacks();
        if !callbacks.is_tcp() && !callbacks.is_http() {
            return Ok(None);
        }
        let settings = StreamSettings::from_parameters(&facts.parameters)
            .context("its parameters are none of a module for streams")?;
        let room: Rc<dyn engine::Room> = self.accounts.room(facts.session);
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

    fn report(&mut self, entry: EntryId, told: Told, link: &mut Link) -> Result<()> {
        let failure = |reason: String| Failure::of(&anyhow::Error::msg(reason));
        match told {
            Told::Started => link.send(&FromCell::Started(entry)),
            Told::StartFailed(reason) => {
                self.services.stop(entry);
                link.send(&FromCell::StartFailed(entry, failure(reason)))
            }
            Told::Replaced => {
                link.send(&FromCell::Replaced(entry, 0))?;
                link.send(&FromCell::Kept(entry))
            }
            Told::ReplaceFailed(reason) => {
                link.send(&FromCell::ReplaceFailed(entry, failure(reason)))
            }
            Told::Trapped(trap, traps) => {
                link.notice(&FromCell::Trapped(entry, 0, trap, traps));
                Ok(())
            }
            Told::Said(text) => {
                link.notice(&FromCell::Said(entry, text));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::tests::Rig;
    use crate::protocol::KeptFacts;
    use sandbox::fd_passing::sealed_memory;
    use std::net::TcpListener;

    const ENTRY: EntryId = EntryId(6);
    /// A module that wants to see nothing of connections.
    const BLIND: &str = r#"(module (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "malloc") (param i32) (result i32) (i32.const 0)))"#;

    fn facts() -> StreamFacts {
        StreamFacts {
            entry: ENTRY,
            name: "blind".into(),
            session: SessionId::BEST_EFFORT,
            memory_pages_max: 1,
            parameters: BTreeMap::new(),
            closed: false,
            kept: KeptFacts::default(),
        }
    }

    fn code(text: &str) -> OwnedFd {
        let wasm = wat::parse_str(text).unwrap();
        let code = proxy_wasm::Engine::new().unwrap().compile(&wasm).unwrap();
        sealed_memory("code", &code).unwrap()
    }

    /// Descriptors that come with a service: its code, what has connections come, a listener.
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

    fn look(rig: &mut Rig) -> Vec<String> {
        let Rig { streams, dispatcher, link, .. } = rig;
        streams.look(dispatcher.scheduler_mut(), link).unwrap();
        rig.told().iter().map(|message| format!("{message:?}")).collect()
    }

    #[test]
    fn a_service_of_streams_starts_asks_for_sockets_is_replaced_and_stops() {
        let mut rig = Rig::new();
        assert!(rig.streams.waited_for().is_none() && look(&mut rig).is_empty());
        start(&mut rig, descriptors(code(BLIND))).unwrap();
        assert_eq!(look(&mut rig), ["Started(EntryId(6))", "WantsSockets([256, 256])"]);
        assert!(rig.streams.are_there() && rig.streams.waited_for().is_some());
        replace(&mut rig);
        assert_eq!(look(&mut rig), ["Replaced(EntryId(6), 0)", "Kept(EntryId(6))"]);
        rig.streams.set_closed(ENTRY, true);
        let report = rig.streams.stop(ENTRY).unwrap();
        assert_eq!(report.streams.unwrap().requests, 0);
        assert!(rig.streams.stop(ENTRY).is_none() && !rig.streams.are_there());
    }

    #[test]
    fn code_that_is_none_and_a_service_that_is_not_there_are_told() {
        let mut rig = Rig::new();
        let none = sealed_memory("code", b"none").unwrap();
        start(&mut rig, descriptors(none)).unwrap();
        replace(&mut rig);
        let told = rig.told();
        let [FromCell::StartFailed(ENTRY, _), FromCell::ReplaceFailed(ENTRY, _)] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(start(&mut rig, vec![code(BLIND)]).is_err(), "descriptors are missing");
    }

    #[test]
    fn a_turn_of_a_service_without_connections_is_over_at_once() {
        let mut rig = Rig::new();
        start(&mut rig, descriptors(code(BLIND))).unwrap();
        look(&mut rig);
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
    fn another_daemon_keeps_those_that_it_knows() {
        let mut rig = Rig::new();
        start(&mut rig, descriptors(code(BLIND))).unwrap();
        rig.streams.retain(|entry| entry == ENTRY);
        assert_eq!(rig.streams.all().count(), 1);
        rig.streams.retain(|_| false);
        assert_eq!(rig.streams.all().count(), 0);
    }

    #[test]
    fn what_is_beside_connections_is_looked_at_each_time_or_now_and_then_while_they_work() {
        let mut beside = Beside::default();
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
