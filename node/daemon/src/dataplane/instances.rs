//! Instances of services below user level: memory that the cell and the kernel share, programs, and
//! the ring of their records.
//!
//! ```text
//!  share ─▶ current ◀─ replaced ── next ◀─ share_next
//!             │  ▲                     (the cell was given it and has yet to start it)
//!             ▼  └── put_back ── before
//!          reusable ◀── kept ──────┘   (a new version runs, and is watched)
//! ```
//!
//! Each service has its number's place in the front door; a program is called there once it is
//! loaded.

use super::door::Door;
use super::reusable::ReusableInstances;
use super::shared::{EVENTS_LENGTH, Programs, Shared, address_of, is_second};
use abi::Level;
use bpf::front_door::ServiceMaps;
use bpf::{Map, MapSpec};
use bpf_maps::{LEVEL_USER, ServiceStats};
use cell::Compiled;
use cell::below::{Around, Instance};
use cell::protocol::ArenaSpec;
use node::Service;
use node::service::BELOW_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use units::{EntryId, Name, PortId};
use wasm_to_bpf::layout;

/// Result of loading a program into the kernel.
pub(crate) struct Loaded {
    pub(crate) entry: EntryId,
    pub(crate) level: Level,
    /// Instance that the program belongs to.
    instance: Arc<Instance>,
    result: Result<bpf::Program, String>,
}

/// Counters of a service below user level.
#[derive(Default)]
pub(crate) struct BelowReport {
    pub(crate) stats: ServiceStats,
    /// Drop verdicts of the module there, by reason.
    pub(crate) reasons: BTreeMap<u16, u64>,
    pub(crate) fuel: u64,
    /// Events and frames that were lost because the ring was full.
    pub(crate) records_lost: u64,
}

/// Parameters of a new instance.
pub(crate) struct Make<'a> {
    pub(crate) entry: EntryId,
    /// Bytes of a packet's head that the module sees.
    pub(crate) window: u32,
    pub(crate) code: &'a Arc<Compiled>,
    /// Session that pays.
    pub(crate) session: Option<Name>,
    /// Ports that the module may send by.
    pub(crate) ports: Vec<PortId>,
}

/// Remains of a service that has ended.
pub(crate) struct Ended {
    /// Session that pays.
    pub(crate) session: Option<Name>,
    /// Fuel that it used below user level.
    pub(crate) fuel: u64,
    pub(crate) was_at_kernel: bool,
    /// Map ID of the arena that may be reused for the same module, when no packet is in its
    /// programs.
    pub(crate) spare: Option<u32>,
    /// Packets that were dropped because the service is closed and its program gone.
    pub(crate) dropped: u64,
}

/// Versions of services by entry.
#[derive(Default)]
pub(crate) struct Instances {
    /// Services that run and can leave user level.
    current: BTreeMap<EntryId, Shared>,
    /// Next versions, which the cell has been given and that do not run yet; `None` of one that
    /// cannot leave user level.
    next: BTreeMap<EntryId, Option<Shared>>,
    /// Previous versions, as long as they can be activated again; `None` as above.
    before: BTreeMap<EntryId, Option<Shared>>,
    reusable: ReusableInstances,
}

impl Instances {
    /// Returns true when a service can leave user level.
    pub(crate) fn is_shared(&self, entry: EntryId) -> bool {
        self.current.contains_key(&entry)
    }

    /// Returns the services that can leave user level.
    pub(crate) fn entries(&self) -> impl Iterator<Item = EntryId> {
        self.current.keys().copied()
    }

    /// Returns the levels that a service does not run at, as far as that is known, with the
    /// reasons.
    pub(crate) fn refused(&self, entry: EntryId) -> Vec<(Level, String)> {
        self.current.get(&entry).map_or_else(Vec::new, |shared| shared.programs.refused())
    }

    /// Returns true when the kernel has taken a service's program for a level.
    pub(crate) fn has_program(&self, entry: EntryId, level: Level) -> bool {
        self.current.get(&entry).is_some_and(|shared| shared.loaded.contains_key(&level))
    }

    /// Returns true when a service other than `but` has a program at the kernel level.
    pub(crate) fn is_any_at_kernel(&self, but: Option<EntryId>) -> bool {
        let mut others = self.current.iter().filter(|(entry, _)| Some(**entry) != but);
        others.any(|(_, shared)| shared.loaded.contains_key(&Level::Kernel))
    }

    /// Returns the descriptors that the cell needs of a service that can leave user level.
    pub(crate) fn fds(&self, entry: EntryId) -> Vec<BorrowedFd<'_>> {
        self.current.get(&entry).map_or_else(Vec::new, |shared| shared.fds().into())
    }

    /// Returns the descriptors that the cell needs of a service's next version.
    pub(crate) fn next_fds(&self, entry: EntryId) -> Vec<BorrowedFd<'_>> {
        let shared = self.next.get(&entry).and_then(Option::as_ref);
        shared.map_or_else(Vec::new, |shared| shared.fds().into())
    }

    /// Returns the counters of a service below user level; `None` of one that cannot leave user
    /// level.
    pub(crate) fn report(&self, front: &Door, entry: EntryId) -> Option<BelowReport> {
        let (shared, front) = (self.current.get(&entry)?, front.front().ok()?);
        Some(BelowReport {
            stats: front.services().service_stats(entry).ok()?,
            reasons: front.services().drop_reasons(entry).ok()?,
            fuel: front.services().fuel_used(entry)?,
            records_lost: shared.instance.get(layout::LOST).ok()?,
        })
    }

    /// Returns the modules of ready reusable instances with their entries, the newest first.
    pub(crate) fn reusable(&self) -> Vec<(Arc<Compiled>, EntryId)> {
        self.reusable.ready()
    }

    /// Makes the instance of a service that starts, and has the front door call what is loaded of
    /// it. It is to be kept ([`Instances::keep`]). Returns `None` of one that cannot leave user
    /// level.
    ///
    /// # Errors
    /// The kernel does not make it.
    pub(crate) fn share(
        &mut self,
        front: &Door,
        make: Make<'_>,
    ) -> Result<Option<ArenaSpec>, String> {
        let entry = make.entry;
        let Some((shared, facts)) = self.make(make, false)? else { return Ok(None) };
        self.current.insert(entry, shared);
        self.call_loaded(front, entry);
        Ok(Some(facts))
    }

    /// Makes the instance of a service's next version.
    ///
    /// # Errors
    /// The kernel does not make it.
    pub(crate) fn share_next(&mut self, make: Make<'_>) -> Result<Option<ArenaSpec>, String> {
        let entry = make.entry;
        let second = self.current.get(&entry).is_some_and(|shared| !shared.is_second());
        let (shared, facts) = self.make(make, second)?.unzip();
        self.next.insert(entry, shared);
        Ok(facts)
    }

    /// Adds the next version of a service of streams, which has no memory to share.
    pub(crate) fn begin_next(&mut self, entry: EntryId) {
        self.next.insert(entry, None);
    }

    /// Makes shared memory, or takes a reusable one; `second` selects one of the entry's two
    /// addresses.
    fn make(
        &mut self,
        make: Make<'_>,
        second: bool,
    ) -> Result<Option<(Shared, ArenaSpec)>, String> {
        let Make { entry, window, code, session, ports } = make;
        let Some(image) = &code.image else { return Ok(None) };
        if usize::from(entry.0) >= BELOW_MAX {
            return Err(format!(
                "it has begun with a module that never leaves user level, and its number {entry} is not one of the first {BELOW_MAX}, which can; remove it and deploy it anew"
            ));
        }
        let address = address_of(entry, second);
        let spare = self.reusable.take(entry, second, code);
        let used = spare.is_some();
        let fuel = wasm_to_bpf::FUEL_BUDGET_MIN;
        let made = || -> anyhow::Result<Shared> {
            let shared = match spare {
                Some(spare) => {
                    spare.instance.begin_anew(image, fuel)?;
                    Shared { window, session, ..spare }
                }
                None => {
                    let instance = Arc::new(Instance::new(image, fuel, address)?);
                    let events = Map::create("tam_events", &MapSpec::ring_buffer(EVENTS_LENGTH))?;
                    let programs = Programs::Compiled(Arc::clone(code));
                    let loaded = BTreeMap::new();
                    Shared { instance, events, programs, window, session, loaded, second }
                }
            };
            shared.instance.set(layout::INSTANCE, u64::from(entry.0))?;
            shared.instance.let_send(ports.into_iter().map(|port| port.0))?;
            Ok(shared)
        };
        let shared = made().map_err(|error| format!("{error:#}"))?;
        let facts = ArenaSpec {
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

    /// Adopts the instance that a previous daemon made for a service; returns whether there is one.
    /// `wasm` is its module.
    ///
    /// # Errors
    /// The instance cannot be opened.
    pub(crate) fn adopt(
        &mut self,
        front: &Door,
        service: &Service,
        wasm: Vec<u8>,
    ) -> anyhow::Result<bool> {
        let entry = service.entry;
        let Some(maps) = front.with_front(|front| front.pins().kept_service(entry))? else {
            return Ok(false);
        };
        let (window, session) = (service.module.manifest.window, Some(service.session.clone()));
        let mut loaded = BTreeMap::new();
        for level in [Level::Nic, Level::Kernel] {
            let Some(at) = below_of(level) else { continue };
            if let Some(program) = front.with_front(|front| front.pins().kept_module(at, entry))? {
                loaded.insert(level, program);
            }
        }
        let ServiceMaps { arena, block, events } = maps;
        let instance = Arc::new(Instance { arena, block });
        let programs = Programs::Module(Arc::new(wasm));
        let second = is_second(instance.arena.address());
        let shared = Shared { instance, events, programs, window, session, loaded, second };
        self.current.insert(entry, shared);
        Ok(true)
    }

    /// Pins the instance of a service, and nothing else, for the daemon that comes
    /// after this one.
    pub(crate) fn keep(&self, front: &Door, entry: EntryId) {
        let kept = match self.current.get(&entry) {
            None => front.with_front(|front| front.pins().forget_service(entry)),
            Some(Shared { instance, events, loaded, .. }) => {
                let modules = |()| {
                    loaded.iter().try_for_each(|(level, program)| match below_of(*level) {
                        Some(at) => {
                            front.with_front(|front| front.pins().keep_module(at, entry, program))
                        }
                        None => Ok(()),
                    })
                };
                let Instance { arena, block } = &**instance;
                front
                    .with_front(|front| front.pins().keep_service(entry, arena, block, events))
                    .and_then(modules)
            }
        };
        if let Err(error) = kept {
            tracing::warn!(%entry, %error, "a service's programs are not pinned: the next daemon has to start it anew");
        }
    }

    /// Returns a function that loads a program, for another thread: the verifier may take seconds.
    /// `code` is the module's, where it is compiled by now.
    ///
    /// # Errors
    /// The service has no program to load.
    pub(crate) fn loader(
        &self,
        front: &Door,
        entry: EntryId,
        level: Level,
        code: Option<Arc<Compiled>>,
    ) -> Result<impl FnOnce() -> Loaded + Send + 'static, String> {
        let missing = || "its memory is not shared with the kernel".to_owned();
        let shared = self.current.get(&entry).ok_or_else(missing)?;
        let programs = match (&shared.programs, code) {
            (Programs::Module(_), Some(code)) => Programs::Compiled(code),
            (own, _) => own.clone(),
        };
        let at = below_of(level).ok_or_else(|| format!("nothing is compiled for {level}"))?;
        let front = front.front()?;
        let copy = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|error| format!("copying a descriptor: {error}"))
        };
        let hand_over = copy(front.services().hand_overs_map().as_fd())?;
        let afterwards = copy(front.services().after_map(at).as_fd())?;
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

    /// Makes the front door call a program that the kernel has accepted. Returns `None` if it is no
    /// longer this service's, else the reason for which it is not called.
    pub(crate) fn handle_loaded(
        &mut self,
        front: &Door,
        loaded: Loaded,
    ) -> Option<Result<(), String>> {
        let Loaded { entry, level, instance, result } = loaded;
        // Another service may have the number by now.
        let shared = self.current.get_mut(&entry)?;
        if !Arc::ptr_eq(&shared.instance, &instance) {
            return None;
        }
        let program = match result {
            Ok(program) => program,
            Err(reason) => return Some(Err(reason)),
        };
        shared.loaded.insert(level, program);
        let placed = set_program(front, entry, level, shared);
        if placed.is_err() {
            shared.loaded.remove(&level);
        }
        self.keep(front, entry);
        Some(placed)
    }

    /// Makes the front door call the loaded programs of a service.
    fn call_loaded(&self, front: &Door, entry: EntryId) {
        let Some(shared) = self.current.get(&entry) else { return };
        for level in shared.loaded.keys() {
            if let Err(error) = set_program(front, entry, *level, shared) {
                tracing::error!(%entry, %level, error, "the front door does not call a service's program: its packets are forwarded without it");
            }
        }
    }

    /// Makes the front door call a service's program at nic again, if it has one.
    pub(crate) fn call_again(&self, front: &Door, entry: EntryId) {
        let Some(shared) = self.current.get(&entry) else { return };
        if shared.loaded.contains_key(&Level::Nic)
            && let Err(error) = set_program(front, entry, Level::Nic, shared)
        {
            tracing::error!(%entry, error, "the front door does not call a service's program at nic again: its packets are forwarded without it there");
        }
    }

    /// Makes the front door call nothing at nic for a service: its packets go plainly from there.
    /// Returns false when that cannot be.
    pub(crate) fn call_nothing(&self, front: &Door, entry: EntryId) -> bool {
        let index = u32::from(entry.0);
        let nic = bpf::front_door::Below::Nic;
        if let Err(error) = front.with_front(|front| front.services().clear_module(nic, index)) {
            tracing::warn!(%entry, %error, "the front door still calls a service's program at nic: its packets may be reordered");
            return false;
        }
        if let (Some(lane), Some(shared)) = (front.lane(entry), self.current.get(&entry)) {
            lane.set_program(index, shared.window);
            // What goes by it now, does so as it was asked for.
            lane.set_closed(false);
        }
        true
    }

    /// Activates the next version of a service, at user level. Returns `None` when there
    /// is no next one, else whether the version before and the new one can leave user level.
    pub(crate) fn replaced(&mut self, front: &Door, entry: EntryId) -> Option<(bool, bool)> {
        let next = self.next.remove(&entry)?;
        let old = self.activate(front, entry, next);
        let changed = (old.is_some(), self.is_shared(entry));
        self.before.insert(entry, old);
        Some(changed)
    }

    /// Activates the previous version again, at user level. Returns `None` when there is none, else
    /// whether the version that failed and the one before can leave user level.
    pub(crate) fn put_back(&mut self, front: &Door, entry: EntryId) -> Option<(bool, bool)> {
        let old = self.before.remove(&entry)?;
        let new = self.activate(front, entry, old);
        Some((new.is_some(), self.is_shared(entry)))
    }

    /// Puts a version in a service's place, and returns the one that was there.
    fn activate(&mut self, front: &Door, entry: EntryId, shared: Option<Shared>) -> Option<Shared> {
        let replaced = self.current.remove(&entry);
        clear_programs(front, entry, replaced.as_ref());
        if let Some(shared) = shared {
            self.current.insert(entry, shared);
        }
        self.call_loaded(front, entry);
        self.keep(front, entry);
        replaced
    }

    /// Releases the previous version. Returns the number of the reusable instance that it
    /// becomes, if it does.
    pub(crate) fn forget_before(&mut self, entry: EntryId) -> Option<u32> {
        let shared = self.before.remove(&entry)??;
        self.reusable.keep(entry, shared)
    }

    /// Releases the next version of a service.
    pub(crate) fn forget_next(&mut self, entry: EntryId) {
        self.next.remove(&entry);
    }

    /// Releases all versions but those that run: their cell is lost.
    pub(crate) fn forget_versions(&mut self) {
        self.next.clear();
        self.before.clear();
    }

    /// Releases a service that has ended, with all its versions. Returns `None` of one that
    /// could not leave user level.
    pub(crate) fn end(&mut self, front: &Door, entry: EntryId) -> Option<Ended> {
        let fuel = self.report(front, entry).map_or(0, |report| report.fuel);
        self.next.remove(&entry);
        self.before.remove(&entry);
        let shared = self.current.remove(&entry)?;
        clear_entry(front, entry);
        let dropped = take_counters(front, entry);
        let was_at_kernel = shared.loaded.contains_key(&Level::Kernel);
        let session = shared.session.clone();
        let spare = self.reusable.keep(entry, shared);
        Some(Ended { session, fuel, was_at_kernel, spare, dropped })
    }

    /// Marks a reusable instance as ready: no packet is in its programs. Returns the entry whose
    /// counters it still has.
    pub(crate) fn handle_spare_ready(&mut self, number: u32) -> Option<EntryId> {
        self.reusable.handle_ready(number)
    }

    /// Releases all reusable instances.
    pub(crate) fn clear_spares(&mut self) {
        self.reusable.clear();
    }
}

/// Clears the counters of an entry. Returns how many packets were dropped there because the
/// service is closed and its program gone.
pub(crate) fn take_counters(front: &Door, entry: EntryId) -> u64 {
    let stats = front.with_front(|front| front.services().service_stats(entry));
    if let Err(error) = front.with_front(|front| front.services().clear_entry(entry)) {
        tracing::error!(%entry, %error, "the counters of a former service were not cleared: a new service at its entry begins with them");
    }
    stats.map_or(0, |stats| stats.drop_down)
}

/// Returns the entries of which a previous daemon has pinned something.
pub(crate) fn kept(front: &Door) -> BTreeSet<EntryId> {
    front.with_front(|front| front.pins().kept_entries()).unwrap_or_else(|error| {
        tracing::error!(%error, "the pinned programs of services cannot be listed: some may be left in the BPF file system");
        BTreeSet::new()
    })
}

/// Makes the front door call a program that is loaded.
fn set_program(front: &Door, entry: EntryId, level: Level, shared: &Shared) -> Result<(), String> {
    let gone = || format!("it has no program for {level}");
    let program = shared.loaded.get(&level).ok_or_else(gone)?;
    let at = below_of(level).ok_or_else(gone)?;
    let index = u32::from(entry.0);
    let placed = front.front()?.services().set_module(at, index, program.as_fd());
    placed.map_err(|error| error.to_string())?;
    if let Some(lane) = front.lane(entry) {
        lane.set_program(index, shared.window);
    }
    Ok(())
}

/// Makes the front door stop calling a version's programs.
fn clear_programs(front: &Door, entry: EntryId, shared: Option<&Shared>) {
    let loaded = shared.into_iter().flat_map(|shared| shared.loaded.keys());
    for at in loaded.filter_map(|level| below_of(*level)) {
        if let Err(error) =
            front.with_front(|front| front.services().clear_module(at, u32::from(entry.0)))
        {
            tracing::error!(%entry, %error, "a program of a removed service was not removed from the front door");
        }
    }
}

/// Makes the front door stop calling the programs of an entry, and removes them.
pub(crate) fn clear_entry(front: &Door, entry: EntryId) {
    for at in bpf::front_door::Below::ALL {
        if let Err(error) =
            front.with_front(|front| front.services().clear_module(at, u32::from(entry.0)))
        {
            tracing::error!(%entry, %error, "a program of a removed service was not removed from the front door");
        }
    }
    if let Err(error) = front.with_front(|front| front.pins().forget_service(entry)) {
        tracing::error!(%entry, %error, "the pinned programs of a removed service were not removed from the BPF file system");
    }
}

/// Returns the word of a lane for a level.
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
