//! Services below user level: what the daemon makes for them, and how they move.
//!
//! ```text
//!  Started ─▶ begin: the first level whose program the kernel takes
//!                │ load (a thread of its own), then set_module, lane.set_program
//!  MoveService ──┤
//!                ▼
//!             Target ─▶ cell ─▶ Targeted ─▶ look (each ms): may the next packet go there?
//!                                             │ yes: ServicePlaced
//!                                             │ not within 20 ms: Recount ─▶ … ─▶ Settle
//!                                             │ nor after that: hold, Recount ─▶ … ─▶ Settle
//!                                             │ nor then: back, MoveFailed
//! ```
//!
//! When a lane changes hands is decided by the front door and the cell alone; here
//! it is asked for, and looked at.

use crate::daemon::{Daemon, Done};
use crate::moves::{MOVED, Move, MoveKind};
use abi::Level;
use anyhow::Context;
use bpf::{Map, MapSpec};
use bpf_maps::{LEVEL_USER, ServiceStats};
use cell::Compiled;
use cell::below::{Around, Instance};
use cell::protocol::SharedFacts;
use module_store::Digest;
use node::Event;
use node::service::BELOW_MAX;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use units::{EntryId, Name};
use wasm_to_bpf::layout;

/// Where the arenas of all entries lie, in the cell as in the kernel: far from where
/// Linux puts anything by itself, and a multiple of 4 GiB.
const ARENAS_AT: u64 = 0x1000_0000_0000;
/// From one arena to the next: what 32-bit addresses reach, and as much again as a guard.
const ARENA_STRIDE: u64 = 8 << 30;
/// Where the second of an entry's two arenas lies: of a new version, beside the one before.
const SECOND_ARENAS_AT: u64 = ARENAS_AT + BELOW_MAX as u64 * ARENA_STRIDE;
/// Where a process's addresses end.
const ADDRESSES_END: u64 = 1 << 47;
/// Room behind the arenas for memories that are not shared, of 4 GiB each, and all else.
const OTHERS_LENGTH: u64 = 48 << 40;

const _: () =
    assert!(SECOND_ARENAS_AT + BELOW_MAX as u64 * ARENA_STRIDE <= ADDRESSES_END - OTHERS_LENGTH);
/// Bytes for events and frames of one service that the cell has not picked up yet.
const EVENTS_LENGTH: u32 = 256 << 10;
/// Why a service with others behind it does not run at `nic`.
const NO_MARKS: &str =
    "this kernel has no room for the mark that packets of a graph carry from there: 48 bytes";

/// A service that can leave user level.
pub(crate) struct Shared {
    instance: Arc<Instance>,
    events: Map,
    programs: Programs,
    window: u32,
    /// Who pays.
    session: Option<Name>,
    /// Those of its programs that the kernel has taken.
    loaded: BTreeMap<Level, bpf::Program>,
    /// It lies at the second of the entry's two addresses.
    second: bool,
}

impl Shared {
    /// What the cell needs of it: the arena, the instance block, the ring of records.
    pub(crate) fn fds(&self) -> [std::os::fd::BorrowedFd<'_>; 3] {
        let Instance { arena, block } = &*self.instance;
        [arena.as_fd(), block.as_fd(), self.events.as_fd()]
    }

    /// Whether it lies at the second of the entry's two addresses.
    pub(crate) const fn is_second(&self) -> bool {
        self.second
    }

    /// Bytes of a packet's head that its module sees.
    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    /// What its programs are made of.
    pub(crate) const fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Pages of its memory.
    pub(crate) fn arena_pages(&self) -> u64 {
        self.instance.arena.pages()
    }

    /// Whether the kernel looks at one of its programs.
    pub(crate) fn is_being_loaded(&self) -> bool {
        Arc::strong_count(&self.instance) > 1
    }

    /// The kernel's number of its memory.
    pub(crate) fn number(&self) -> u32 {
        self.instance.arena.map().info().id
    }

    /// Where it has a program.
    pub(crate) fn levels(&self) -> Vec<Level> {
        self.loaded.keys().copied().collect()
    }
}

/// What a service's programs are loaded from.
#[derive(Clone)]
pub(crate) enum Programs {
    Compiled(Arc<Compiled>),
    /// Of a service that a daemon before has started: compiled when a program is wanted that
    /// is not loaded yet.
    Module(Arc<Vec<u8>>),
}

impl Programs {
    /// May take as long as the compiler.
    fn get(&self) -> Result<Arc<Compiled>, String> {
        match self {
            Self::Compiled(compiled) => Ok(Arc::clone(compiled)),
            Self::Module(wasm) => {
                let mut compiled = Err("the compiler did not answer".to_owned());
                // What another program of a service that runs takes is not billed.
                let _ = crate::deploy::compile(wasm, true, |result| compiled = result);
                compiled
            }
        }
    }
}

/// A program that was given to the kernel.
pub(crate) struct Loaded {
    entry: EntryId,
    level: Level,
    /// Whose it is.
    instance: Arc<Instance>,
    result: Result<bpf::Program, String>,
}

/// What a service did below user level.
#[derive(Default)]
pub(crate) struct BelowReport {
    pub(crate) stats: ServiceStats,
    /// Its drop verdicts there, by reason.
    pub(crate) reasons: BTreeMap<u16, u64>,
    pub(crate) fuel: u64,
    /// Events and frames for which its ring had no room.
    pub(crate) records_lost: u64,
}

/// What follows from a compiled module, beside what the cell is told.
pub(crate) struct Begin {
    /// Where to run it, best first.
    pub(crate) levels: Vec<Level>,
    pub(crate) programs: Arc<Compiled>,
    /// What stands against some of them, as far as it was tried.
    pub(crate) refused: Vec<(Level, String)>,
}

impl Daemon {
    /// Makes memory and instance block of a service that can leave user level; they are to be
    /// kept ([`Daemon::keep_below`]).
    pub(crate) fn share(
        &mut self,
        entry: EntryId,
        window: u32,
        programs: &Arc<Compiled>,
    ) -> Result<Option<SharedFacts>, String> {
        let Some((shared, facts)) = self.make_shared(entry, window, programs, false)? else {
            return Ok(None);
        };
        self.shared.insert(entry, shared);
        self.call_loaded(entry);
        Ok(Some(facts))
    }

    /// Keeps what a service runs on below user level, and nothing else, for the daemon that
    /// comes after this one.
    pub(crate) fn keep_below(&self, entry: EntryId) {
        let kept = match self.shared.get(&entry) {
            None => self.front.with_front(|front| front.forget_service(entry)),
            Some(Shared { instance, events, loaded, .. }) => {
                let modules = |()| {
                    loaded.iter().try_for_each(|(level, program)| match below_of(*level) {
                        Some(at) => {
                            self.front.with_front(|front| front.keep_module(at, entry, program))
                        }
                        None => Ok(()),
                    })
                };
                let Instance { arena, block } = &**instance;
                self.front
                    .with_front(|front| front.keep_service(entry, arena, block, events))
                    .and_then(modules)
            }
        };
        if let Err(error) = kept {
            tracing::warn!(%entry, %error, "a daemon after this one has to start a service anew");
        }
    }

    /// The same, for a version that does not run yet; `second` says at which of the entry's two
    /// addresses.
    pub(crate) fn make_shared(
        &mut self,
        entry: EntryId,
        window: u32,
        programs: &Arc<Compiled>,
        second: bool,
    ) -> Result<Option<(Shared, SharedFacts)>, String> {
        let Some(image) = &programs.image else { return Ok(None) };
        if usize::from(entry.0) >= BELOW_MAX {
            return Err(format!(
                "it has begun with a module that never leaves user level, and its number {entry} is not one of the first {BELOW_MAX}, which can; remove it and deploy it anew"
            ));
        }
        let first = if second { SECOND_ARENAS_AT } else { ARENAS_AT };
        let address = first + u64::from(entry.0) * ARENA_STRIDE;
        let spare = self.spares.take(entry, second, programs);
        let used = spare.is_some();
        let session = self.node.service_of(entry).map(|service| service.session.clone());
        let fuel = wasm_to_bpf::FUEL_BUDGET_MIN;
        let make = || -> anyhow::Result<Shared> {
            let shared = match spare {
                Some(spare) => {
                    spare.instance.begin_anew(image, fuel)?;
                    Shared { window, session, ..spare }
                }
                None => {
                    let instance = Arc::new(Instance::new(image, fuel, address)?);
                    let events = Map::create("tam_events", &MapSpec::ring_buffer(EVENTS_LENGTH))?;
                    let programs = Programs::Compiled(Arc::clone(programs));
                    let loaded = BTreeMap::new();
                    Shared { instance, events, programs, window, session, loaded, second }
                }
            };
            shared.instance.set(layout::INSTANCE, u64::from(entry.0))?;
            shared.instance.let_send(self.ports.iter().map(|port| port.port.id.0))?;
            Ok(shared)
        };
        let shared = make().map_err(|error| format!("{error:#}"))?;
        let facts = SharedFacts {
            address,
            number: shared.number(),
            used,
            arena_pages: shared.arena_pages(),
            grows: image.pages_min != image.pages_max,
            globals: image.globals.len() as u32,
            ring_length: EVENTS_LENGTH,
        };
        Ok(Some((shared, facts)))
    }

    /// What the cell needs of a service that can leave user level.
    pub(crate) fn shared_fds(&self, entry: EntryId) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.shared.get(&entry).map_or_else(Vec::new, |shared| shared.fds().into())
    }

    /// The service runs in the cell: to its level, then it takes packets.
    pub(crate) fn begin(&mut self, entry: EntryId) {
        if self.moves.get(&entry).is_some_and(Move::starts) {
            // It is on its way already.
            return;
        }
        if !self.beginning.contains_key(&entry) {
            return self.event(Event::ServiceStarted { entry });
        }
        self.look_at_levels(entry);
        self.try_next_level(entry);
    }

    /// Has the cell take a service that it has just been told to start to its level at once, if
    /// the program is there already.
    pub(crate) fn begin_early(&mut self, entry: EntryId) {
        let has_programs = self.shared.get(&entry).is_some_and(|it| !it.loaded.is_empty());
        if !self.cells.is_any() || !has_programs {
            return;
        }
        self.look_at_levels(entry);
        let level = self.next_level(entry);
        let is_loaded = self.shared.get(&entry).is_some_and(|it| it.loaded.contains_key(&level));
        if is_loaded && self.may_run(entry, level).is_ok() {
            self.go_on(entry, level, Ok(()));
        }
    }

    /// What stands against levels of a service that begins, before anything is tried.
    fn look_at_levels(&mut self, entry: EntryId) {
        let Some(begin) = self.beginning.get_mut(&entry) else { return };
        begin.refused = begin.programs.refused();
        if let Some(reason) = &self.no_bpf {
            let below = begin.levels.iter().filter(|level| **level < Level::User);
            begin.refused.extend(below.map(|level| (*level, reason.clone())));
        }
    }

    /// The first that nothing stands against.
    fn next_level(&self, entry: EntryId) -> Level {
        let Some(begin) = self.beginning.get(&entry) else { return Level::User };
        let open = |level: &&Level| !begin.refused.iter().any(|(no, _)| no == *level);
        begin.levels.iter().find(open).copied().unwrap_or(Level::User)
    }

    /// Loads the program of the next level that nothing stands against; takes packets at user
    /// level when there is none.
    fn try_next_level(&mut self, entry: EntryId) {
        let level = self.next_level(entry);
        if level != Level::User {
            return self.load(entry, level);
        }
        let reason = self.why(entry, level);
        self.beginning.remove(&entry);
        let movable = self.shared.contains_key(&entry);
        self.event(Event::ServicePlaced { entry, level, reason, movable });
        self.event(Event::ServiceStarted { entry });
    }

    /// The kernel has taken a program, or not.
    pub(crate) fn loaded(&mut self, loaded: Loaded) {
        let Loaded { entry, level, instance, result } = loaded;
        // Another service may have the number by now.
        let shared = self.shared.get(&entry);
        if !shared.is_some_and(|shared| Arc::ptr_eq(&shared.instance, &instance)) {
            return;
        }
        let result = result.and_then(|program| self.put(entry, level, program));
        // Asked to be elsewhere meanwhile.
        if self.loading.get(&entry) == Some(&level) {
            self.loading.remove(&entry);
            self.go_on(entry, level, result);
        }
    }

    /// A service begins or moves, now that its program is loaded or refused.
    fn go_on(&mut self, entry: EntryId, level: Level, result: Result<(), String>) {
        let starts = self.beginning.contains_key(&entry);
        match result {
            Ok(()) if starts => {
                let why = self.why(entry, level);
                self.beginning.remove(&entry);
                self.set_out(entry, level, why, MoveKind::Starts);
            }
            Ok(()) => self.set_out(entry, level, MOVED.to_owned(), MoveKind::Moves),
            Err(reason) if starts => {
                if let Some(begin) = self.beginning.get_mut(&entry) {
                    begin.refused.push((level, reason));
                }
                self.try_next_level(entry);
            }
            Err(reason) => self.event(Event::MoveFailed { entry, reason }),
        }
    }

    /// Why it is at this level and not at one before.
    fn why(&self, entry: EntryId, level: Level) -> String {
        let begin = self.beginning.get(&entry);
        let refused = begin.map_or(&[][..], |begin| &begin.refused);
        let is_asked = |no: &Level| begin.is_some_and(|begin| begin.levels.contains(no));
        let reasons: Vec<String> = refused
            .iter()
            .filter(|(no, _)| is_asked(no) && *no < level)
            .map(|(no, why)| format!("not at {no}: {why}"))
            .collect();
        if !reasons.is_empty() {
            return reasons.join("; ");
        }
        let first = self.node.service_of(entry).and_then(|s| s.module.manifest.levels.first());
        match first {
            Some(first) if *first == level => "the module asks for it first".to_owned(),
            _ => "it was asked for".to_owned(),
        }
    }

    pub(crate) fn move_service(&mut self, entry: EntryId, level: Level) {
        if !self.shared.contains_key(&entry) {
            let reason = self.unmovable(entry);
            return self.event(Event::MoveFailed { entry, reason });
        }
        self.loading.remove(&entry);
        match level {
            Level::User => self.set_out(entry, level, MOVED.to_owned(), MoveKind::Moves),
            Level::Nic | Level::Kernel | Level::Cluster => self.load(entry, level),
        }
    }

    fn unmovable(&self, entry: EntryId) -> String {
        let service = self.node.service_of(entry);
        let own = service.map_or("", |service| service.level_reason.as_str());
        let reason = self.no_bpf.as_deref().unwrap_or(own);
        format!("its memory is not shared with the kernel ({reason})")
    }

    /// Has the kernel take the service's program for a level, if it has not yet; goes on in
    /// [`Daemon::loaded`]. The verifier may take seconds over a program, and the daemon goes on
    /// meanwhile.
    fn load(&mut self, entry: EntryId, level: Level) {
        if let Err(reason) = self.may_run(entry, level) {
            return self.go_on(entry, level, Err(reason));
        }
        if self.shared.get(&entry).is_some_and(|shared| shared.loaded.contains_key(&level)) {
            return self.go_on(entry, level, Ok(()));
        }
        let done = self.done.clone();
        match self.loader(entry, level) {
            Ok(load) => {
                self.loading.insert(entry, level);
                if level == Level::Kernel {
                    // Before the first packet comes there.
                    self.settle_gro(None);
                }
                tokio::task::spawn_blocking(move || {
                    // The daemon is gone when nobody receives: nothing is left to do.
                    let _ = done.send(Done::Loaded(Box::new(load())));
                });
            }
            Err(reason) => self.go_on(entry, level, Err(reason)),
        }
    }

    /// Whether this node lets a service run at a level; else why not.
    fn may_run(&self, entry: EntryId, level: Level) -> Result<(), String> {
        if level == Level::Kernel
            && let Some(reason) = self.ports.iter().find_map(crate::ports::LivePort::not_at_kernel)
        {
            return Err(reason);
        }
        let joined = self.node.service_of(entry).is_some_and(|service| !service.then.is_empty());
        if level == Level::Nic && joined && !self.front.front()?.carries_marks() {
            return Err(NO_MARKS.to_owned());
        }
        Ok(())
    }

    /// Returns the compiled module of a service that a daemon before has started, if it is there.
    fn programs_of(&self, entry: EntryId) -> Option<Programs> {
        let digest: Digest = self.node.service_of(entry)?.module.digest.parse().ok()?;
        let shared = self.shared.get(&entry)?;
        let compiled = self.modules.get(&digest)?.code(self.bpf_now())?;
        matches!(shared.programs, Programs::Module(_))
            .then(|| Programs::Compiled(Arc::clone(compiled)))
    }

    /// What loads a program, on whatever thread.
    fn loader(
        &self,
        entry: EntryId,
        level: Level,
    ) -> Result<impl FnOnce() -> Loaded + Send + 'static, String> {
        let missing = || "its memory is not shared with the kernel".to_owned();
        let shared = self.shared.get(&entry).ok_or_else(missing)?;
        let programs = self.programs_of(entry).unwrap_or_else(|| shared.programs.clone());
        let at = below_of(level).ok_or_else(|| format!("nothing is compiled for {level}"))?;
        let front = self.front.front()?;
        let copy = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|error| format!("copying a descriptor: {error}"))
        };
        let hand_over = copy(front.hand_overs_map().as_fd())?;
        let afterwards = copy(front.after_map(at).as_fd())?;
        let events = copy(shared.events.as_fd())?;
        let instance = Arc::clone(&shared.instance);
        Ok(move || {
            let around = Around {
                hand_over: hand_over.as_fd(),
                hand_over_at: bpf::front_door::hand_over_at(entry),
                afterwards: afterwards.as_fd(),
                events: events.as_fd(),
            };
            let result = programs.get().and_then(|compiled| {
                let program = compiled.program(level)?;
                instance.load("tam_module", &program, around).map_err(|error| error.to_string())
            });
            Loaded { entry, level, instance, result }
        })
    }

    /// Puts a program where the front door calls it.
    fn put(&mut self, entry: EntryId, level: Level, program: bpf::Program) -> Result<(), String> {
        let gone = || "the service is gone".to_owned();
        let mut shared = self.shared.remove(&entry).ok_or_else(gone)?;
        shared.loaded.insert(level, program);
        let placed = self.set_program(entry, level, &shared);
        if placed.is_err() {
            shared.loaded.remove(&level);
        }
        self.shared.insert(entry, shared);
        self.keep_below(entry);
        placed
    }

    /// Has the front door call a program that is loaded.
    pub(crate) fn set_program(
        &mut self,
        entry: EntryId,
        level: Level,
        shared: &Shared,
    ) -> Result<(), String> {
        let gone = || format!("it has no program for {level}");
        let program = shared.loaded.get(&level).ok_or_else(gone)?;
        let at = below_of(level).ok_or_else(gone)?;
        let index = u32::from(entry.0);
        let placed = self.front.front()?.set_module(at, index, program.as_fd());
        placed.map_err(|error| error.to_string())?;
        if let Some(lane) = self.front.lane(entry) {
            lane.set_program(index, shared.window);
        }
        Ok(())
    }

    /// Has the front door call what is loaded of a service.
    pub(crate) fn call_loaded(&mut self, entry: EntryId) {
        let Some(shared) = self.shared.remove(&entry) else { return };
        for level in shared.levels() {
            if let Err(error) = self.set_program(entry, level, &shared) {
                tracing::error!(%entry, %level, error, "a program that is loaded is not called");
            }
        }
        self.shared.insert(entry, shared);
    }

    /// Has the front door call a service's program at nic again, if it has one.
    pub(crate) fn call_again(&mut self, entry: EntryId) {
        let Some(shared) = self.shared.remove(&entry) else { return };
        if shared.loaded.contains_key(&Level::Nic)
            && let Err(error) = self.set_program(entry, Level::Nic, &shared)
        {
            tracing::error!(%entry, error, "a program was not put back");
        }
        self.shared.insert(entry, shared);
    }

    /// Whether a service begins, moves or waits for a count.
    pub(crate) fn is_on_its_way(&self, entry: EntryId) -> bool {
        self.beginning.contains_key(&entry)
            || self.moves.contains_key(&entry)
            || self.loading.contains_key(&entry)
            || self.settling.contains(&entry)
    }

    /// Has the front door call none of a version's programs any more.
    pub(crate) fn clear_programs(&mut self, entry: EntryId, shared: &Shared) {
        for at in shared.loaded.keys().filter_map(|level| below_of(*level)) {
            if let Err(error) =
                self.front.with_front(|front| front.clear_module(at, u32::from(entry.0)))
            {
                tracing::error!(%entry, %error, "a module's program was not taken away");
            }
        }
    }

    /// Goes on with what a daemon before made for a service; whether there is anything.
    pub(crate) fn adopt_below(&mut self, entry: EntryId) -> anyhow::Result<bool> {
        let Some(maps) = self.front.with_front(|front| front.kept_service(entry))? else {
            return Ok(false);
        };
        let service = self.node.service_of(entry).context("it is nobody's")?;
        let digest: Digest = service.module.digest.parse()?;
        let (window, session) = (service.module.manifest.window, service.session.clone());
        let wasm = self.modules.get(&digest).map(|module| module.wasm.clone()).unwrap_or_default();
        let mut loaded = BTreeMap::new();
        for level in [Level::Nic, Level::Kernel] {
            let Some(at) = below_of(level) else { continue };
            if let Some(program) = self.front.with_front(|front| front.kept_module(at, entry))? {
                loaded.insert(level, program);
            }
        }
        let bpf::front_door::ServiceMaps { arena, block, events } = maps;
        let instance = Arc::new(Instance { arena, block });
        let (programs, session) = (Programs::Module(Arc::new(wasm)), Some(session));
        let second = instance.arena.address() >= SECOND_ARENAS_AT;
        let shared = Shared { instance, events, programs, window, session, loaded, second };
        self.shared.insert(entry, shared);
        // The daemon before may have died while it held the lane.
        self.hold_lane(entry, false);
        Ok(true)
    }

    /// Has the cell take a service to where it is said to be, if it was on its way elsewhere.
    pub(crate) fn stay(&mut self, entry: EntryId, cell_has: u32) {
        let Some(service) = self.node.service_of(entry) else { return };
        let (level, reason) = (service.level, service.level_reason.clone());
        let is_moving = self.moves.contains_key(&entry) || self.loading.contains_key(&entry);
        if !is_moving && word_of(level) != cell_has {
            self.set_out(entry, level, reason, MoveKind::Moves);
        }
    }

    /// The cell has nothing of the service any more, and no rule leads to it.
    pub(crate) fn end_below(&mut self, entry: EntryId) {
        self.end_meters(entry);
        self.end_budget(entry);
        self.beginning.remove(&entry);
        self.moves.remove(&entry);
        self.hold_lane(entry, false);
        self.loading.remove(&entry);
        self.forget_replacement(entry);
        let fuel = self.below_report(entry).map_or(0, |below| below.fuel);
        let Some(shared) = self.shared.remove(&entry) else { return };
        if let Some(session) = &shared.session {
            *self.fuel_closed.entry(session.clone()).or_default() += fuel;
        }
        self.clear_below(entry);
        if shared.loaded.contains_key(&Level::Kernel) {
            self.settle_gro(Some(entry));
        }
        self.keep_spare(entry, shared);
    }

    /// The kernel joins segments of intercepted connections, which is most of what receiving them
    /// costs, while there are services of streams; and not while there is one at kernel level, which
    /// is shown each frame by itself, behind that. `but` is a service that is gone.
    pub(crate) fn settle_gro(&mut self, but: Option<EntryId>) {
        let mut loads = self.loading.values().copied();
        let mut loaded = self.shared.iter().filter(|(entry, _)| Some(**entry) != but);
        let mut is_alone = !loads.any(|level| level == Level::Kernel)
            && !loaded.any(|(_, shared)| shared.loaded.contains_key(&Level::Kernel));
        let mut has_streams = false;
        for service in self.node.services().filter(|service| Some(service.entry) != but) {
            has_streams |= service.module.kind == abi::check::Kind::Streams;
            is_alone &= service.level != Level::Kernel;
        }
        for port in &mut self.ports {
            port.set_gro(has_streams && is_alone);
        }
    }

    /// Nothing of an entry is left below user level.
    pub(crate) fn clear_below(&mut self, entry: EntryId) {
        for at in bpf::front_door::Below::ALL {
            if let Err(error) =
                self.front.with_front(|front| front.clear_module(at, u32::from(entry.0)))
            {
                tracing::error!(%entry, %error, "a module's program was not taken away");
            }
        }
        self.clear_counters(entry);
        if let Err(error) = self.front.with_front(|front| front.forget_service(entry)) {
            tracing::error!(%entry, %error, "what a service ran on is still pinned");
        }
    }

    /// Clears the counters of an entry. What was dropped there because its service is closed and
    /// its program gone stays counted.
    pub(crate) fn clear_counters(&mut self, entry: EntryId) {
        let stats = self.front.with_front(|front| front.service_stats(entry));
        self.lost_with_cells += stats.map_or(0, |stats| stats.drop_down);
        if let Err(error) = self.front.with_front(|front| front.clear_entry(entry)) {
            tracing::error!(%entry, %error, "the counters of an entry were not cleared");
        }
    }

    /// What a service did below user level.
    pub(crate) fn below_report(&self, entry: EntryId) -> Option<BelowReport> {
        let (shared, front) = (self.shared.get(&entry)?, self.front.front().ok()?);
        Some(BelowReport {
            stats: front.service_stats(entry).ok()?,
            reasons: front.drop_reasons(entry).ok()?,
            fuel: front.fuel_used(entry)?,
            records_lost: shared.instance.get(layout::LOST).ok()?,
        })
    }
}

pub(crate) fn word_of(level: Level) -> u32 {
    below_of(level).map_or(LEVEL_USER, bpf::front_door::Below::word)
}

const fn below_of(level: Level) -> Option<bpf::front_door::Below> {
    use bpf::front_door::Below;
    match level {
        Level::Nic => Some(Below::Nic),
        Level::Kernel => Some(Below::Kernel),
        Level::User | Level::Cluster => None,
    }
}

/// Why this machine runs no programs of modules; `None` when it does.
pub(crate) fn unsupported() -> Option<String> {
    let made = bpf::Arena::create("tam_trial", 1, ARENAS_AT);
    made.err().map(|error| error.to_string())
}
