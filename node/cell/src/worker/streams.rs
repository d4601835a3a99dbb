//! Connections in the cell's loop: what happens to them is looked at each time, what can be done
//! waits for its session's turn.

use super::Cell;
use super::turns::INTERRUPTS_FOR;
use crate::protocol::{FromCell, ServiceReport, StreamFacts};
use crate::sched::pacer;
use crate::sched::sessions::Next;
use crate::streams::codecs::Ask;
use crate::streams::{Module, Told};
use abi::streams::{Protocol, StreamSettings};
use anyhow::{Context, Result, bail};
use engine::Pace;
use executor::{SLICE, TURN_MAX};
use proxy_wasm::abi::LogLevel;
use proxy_wasm::{Random, Shared, VmSpec};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use stream_services::{Capabilities, Failure, Filter, FilterSpec, Kind};
use units::{EntryId, Nanos};

/// Slices that a call may see begin where nobody sets a pace; here somebody does.
const CALL_SLICES: u64 = 2;
/// Bytes of a page of linear memory.
const PAGE_LENGTH: usize = 65_536;

/// So long the daemon and what comes from the kernel are not looked at while there is something to
/// do for connections: two calls of the kernel, which each look at those would make as well.
const BESIDE_INTERVAL: Nanos = Nanos(100_000);

/// So long a service's calls are looked at more often behind one that ran for longer than a turn. Others are
/// short, and to interrupt them takes a twentieth of their time.
const CAREFUL_FOR: Nanos = Nanos::from_millis(1_000);

/// Shared streams as an operator has granted them.
fn shared_streams(no_store: bool) -> fanout::Settings {
    let mut settings = fanout::Settings::default();
    if no_store {
        settings.channel.no_store = fanout::NoStore::Share;
    }
    settings
}

/// Looks at what is beside connections.
#[derive(Default)]
pub(super) struct Beside {
    /// Until then calls may be long.
    careful_until: Nanos,
    /// The last one behind which there were connections to work for.
    looked: Nanos,
    /// When those were worked for, since then.
    worked: Option<Nanos>,
}

/// The kernel's random bytes.
struct Kernel;

impl Random for Kernel {
    fn fill(&self, bytes: &mut [u8]) {
        // A kernel that has none yet has not started this process.
        let _ = getrandom::fill(bytes);
    }
}

impl Cell {
    /// A service of streams begins, with what came with its facts.
    pub(super) fn start_streams(&mut self, facts: StreamFacts, fds: Vec<OwnedFd>) -> Result<()> {
        let entry = facts.entry;
        let mut fds = fds.into_iter();
        let (Some(code), Some(interception)) = (fds.next(), fds.next()) else {
            bail!("StartStreams came without its descriptors");
        };
        let listeners = fds.collect();
        let started = self.module(&facts, &code).and_then(|module| {
            let charge = self.accounts.charge_streams(&facts)?;
            Ok(self.streams.start(facts, interception, listeners, module, charge)?)
        });
        if let Err(error) = started {
            return self.link.send(&FromCell::StartFailed(entry, super::low::failure(&error)));
        }
        self.look_at_streams()
    }

    /// Another version begins in a service's place.
    pub(super) fn replace_streams(&mut self, facts: StreamFacts, fds: Vec<OwnedFd>) -> Result<()> {
        let entry = facts.entry;
        let Some(code) = fds.into_iter().next() else {
            bail!("ReplaceStreams came without its code");
        };
        let replaced = self.module(&facts, &code).and_then(|module| {
            let charge = self.accounts.charge_streams(&facts)?;
            Ok(self.streams.replace(facts, module, charge)?)
        });
        if let Err(error) = replaced {
            return self.link.send(&FromCell::ReplaceFailed(entry, super::low::failure(&error)));
        }
        self.look_at_streams()
    }

    /// What sees a service's connections; none when its module wants to see nothing.
    fn module(&self, facts: &StreamFacts, code: &OwnedFd) -> Result<Option<Module>> {
        let program = self.stream_engine.load_from_parent(code)?;
        let callbacks = program.callbacks();
        if !callbacks.is_tcp() && !callbacks.is_http() {
            return Ok(None);
        }
        let settings = StreamSettings::of(&facts.parameters)
            .context("its parameters are none of a module for streams")?;
        let room: Rc<dyn engine::Room> = self.accounts.room(facts.session);
        let shared = Rc::new(RefCell::new(Shared::new(Some(Rc::clone(&room)))));
        let pace: Rc<dyn Pace> = Rc::clone(&self.pacer) as _;
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
            failure: if facts.closed { Failure::Closed } else { Failure::Open },
            upstreams: settings.upstreams,
            capabilities: Capabilities {
                codes_responses: settings.capabilities.codes_responses,
                reflects: settings
                    .capabilities
                    .reflects
                    .then(|| shared_streams(settings.capabilities.shares_no_store)),
                keeps_servers: settings.capabilities.keeps_servers,
            },
            codecs: settings
                .capabilities
                .transcodes
                .then(|| self.streams.codecs().of(facts.session, facts.entry)),
            busy_permille: self.streams.busy_permille(),
            real_offset_ns: pacer::real_offset().0,
        });
        Ok(Some(Module { filter, shared }))
    }

    /// Hears what has happened to connections: services with something to do wait for their turn.
    pub(super) fn look_at_streams(&mut self) -> Result<()> {
        if !self.streams.are_there() {
            return Ok(());
        }
        let now = pacer::now();
        self.streams.look(now).context("hearing of connections")?;
        for (session, task) in self.streams.ready(now) {
            self.sessions.wake(now, session, task);
        }
        while let Some((entry, told)) = self.streams.poll_told() {
            self.tell_of_streams(entry, told)?;
        }
        if let Some(wants) = self.streams.wants() {
            self.link.send(&FromCell::WantsSockets(wants))?;
        }
        while let Some(ask) = self.streams.codecs().poll_ask() {
            self.link.send(&match ask {
                Ask::Start(number, wish) => FromCell::WantsCodec(number, wish),
                Ask::Stop(number) => FromCell::CodecUnwanted(number),
            })?;
        }
        Ok(())
    }

    fn tell_of_streams(&mut self, entry: EntryId, told: Told) -> Result<()> {
        let failure = |reason: String| super::low::failure(&anyhow::Error::msg(reason));
        match told {
            Told::Started => self.link.send(&FromCell::Started(entry)),
            Told::StartFailed(reason) => {
                self.streams.stop(entry);
                self.link.send(&FromCell::StartFailed(entry, failure(reason)))
            }
            Told::Replaced => {
                self.link.send(&FromCell::Replaced(entry, 0))?;
                self.link.send(&FromCell::Kept(entry))
            }
            Told::ReplaceFailed(reason) => {
                self.link.send(&FromCell::ReplaceFailed(entry, failure(reason)))
            }
            Told::Trapped(trap, traps) => {
                self.link.notice(&FromCell::Trapped(entry, 0, trap, traps));
                Ok(())
            }
            Told::Said(text) => {
                self.link.notice(&FromCell::Said(entry, text));
                Ok(())
            }
        }
    }

    /// Whether it is time to look at the daemon and at what the kernel sends up.
    pub(super) fn looks_beside(&mut self) -> bool {
        let Beside { looked, worked, .. } = &mut self.beside;
        let Some(at) = worked.take() else { return true };
        let is_due = at.saturating_sub(*looked) >= BESIDE_INTERVAL;
        if is_due {
            *looked = at;
        }
        is_due
    }

    /// Lets a service of streams work whose turn it is; until when it did. `None` when there is no
    /// such service.
    pub(super) fn work_streams(&mut self, begin: Nanos, next: &Next) -> Option<Nanos> {
        let entry = next.task.entry;
        let (call, has_module) = self.streams.call(entry)?;
        let until = next.until.min(begin + TURN_MAX);
        if has_module {
            let is_careful = self.sessions.take_turns() || begin < self.beside.careful_until;
            self.slicer.arm(if is_careful { TURN_MAX } else { SLICE });
            self.interrupts_until = begin + INTERRUPTS_FOR;
            self.pacer.begin(until, call);
            self.pacer.look_closely(Nanos(u64::MAX));
        }
        let mut now = begin;
        loop {
            let has_more = self.streams.work(entry, now, until);
            now = pacer::now();
            if !has_more || now >= until {
                if has_more {
                    self.streams.flush(entry, now, until);
                    now = pacer::now();
                }
                let used = now.saturating_sub(begin);
                let call = if has_module { self.pacer.end(true) } else { call };
                if has_module && self.pacer.take_long() {
                    self.beside.careful_until = now + CAREFUL_FOR;
                }
                self.streams.charge(entry, used, call);
                self.beside.worked = Some(now);
                self.sessions.charge_codecs(now, next, self.streams.charge_codecs(entry));
                self.sessions.charge(now, next, used, !has_more);
                return Some(now);
            }
        }
    }

    /// A codec runs that the daemon was asked for.
    pub(super) fn codec_started(&mut self, number: u64, pid: u32, fds: Vec<OwnedFd>) -> Result<()> {
        let Some(socket) = fds.into_iter().next() else {
            bail!("CodecStarted came without its socket");
        };
        self.streams.codecs().started(number, pid, socket);
        Ok(())
    }

    /// Ends a service of streams, if it is one; its last report.
    pub(super) fn stop_streams(&mut self, entry: EntryId) -> Option<ServiceReport> {
        self.streams.stop(entry)
    }
}
