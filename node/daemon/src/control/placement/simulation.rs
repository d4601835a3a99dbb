//! Random histories of placement, without a kernel: a real `core/node`, a data plane that is a few
//! tables, and a cell that answers late, refuses, loses packets, and dies.
//!
//! A failure names its seed.

use super::fake::{Kernel, Version};
use super::{Action, Around, Candidates, Placement, Plane};
use abi::check::{Kind, MemoryImage};
use abi::{HostFunctions, Level, Manifest};
use node::command::Memory;
use node::policy::OnFailure;
use node::{Command, Effect, Event, ModuleInfo, Node, PortSpec, ServiceStart, ServiceState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use testbase::Chance;
use units::{EntryId, Name, Nanos};

const SERVICES: [&str; 3] = ["monitor", "mark", "cache"];
const LEVELS: [Level; 3] = [Level::Nic, Level::Kernel, Level::User];
/// Steps of one history.
const STEPS: usize = 120;
/// Time of a step at most.
const STEP_MAX: u64 = 40_000_000;

/// Message to the fake cell that it has yet to handle.
#[derive(Clone, Debug)]
enum Told {
    Start(EntryId),
    Replace(EntryId),
    Stop(EntryId),
    Target(EntryId, Level),
    Recount(EntryId),
    Settle(EntryId),
    VersionKnown(EntryId),
    /// No message: the end of watching a version.
    Watched(EntryId),
}

struct World {
    seed: u64,
    dice: Chance,
    now: Nanos,
    node: Node,
    placement: Placement,
    kernel: Kernel,
    has_cell: bool,
    cell: VecDeque<Told>,
    /// Services that run in the cell.
    runs: BTreeSet<EntryId>,
    /// Programs that the verifier is checking.
    loading: Vec<(EntryId, Level)>,
    /// Versions that are watched.
    watched: BTreeSet<EntryId>,
    /// Versions of which the daemon has not said that it knows them: what it says of their
    /// services is meant for the one before.
    unknown: BTreeSet<EntryId>,
    /// Services that leave before they are removed.
    leaving: BTreeMap<EntryId, Name>,
}

fn candidates(levels: Vec<Level>) -> Candidates {
    Candidates { levels, unfit: Vec::new() }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Returns a module of these levels; one that cannot be shared has none but user level.
fn module(levels: &str, version: u64) -> ModuleInfo {
    let text = format!(
        "abi = 1\nname = \"m\"\nversion = \"0.{version}.0\"\nwindow = 64\nlevels = [{levels}]\n"
    );
    ModuleInfo {
        digest: format!("{levels} {version}"),
        kind: Kind::Packets,
        manifest: Manifest::parse(&text).unwrap(),
        hands_state_over: true,
        image: MemoryImage(0),
        imports: HostFunctions::NONE,
        granted: HostFunctions::ALL,
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let ports = ["left", "right"].map(|port| PortSpec::new(name(port), format!("eth-{port}")));
        let mut world = Self {
            seed,
            dice: Chance(seed),
            now: Nanos::ZERO,
            node: Node::new(name("r1"), ports.into()).unwrap(),
            placement: Placement::default(),
            kernel: Kernel::default(),
            has_cell: false,
            cell: VecDeque::new(),
            runs: BTreeSet::new(),
            loading: Vec::new(),
            watched: BTreeSet::new(),
            unknown: BTreeSet::new(),
            leaving: BTreeMap::new(),
        };
        world.node.handle_timeout(Nanos::ZERO);
        world.do_all();
        world
    }

    fn place<T>(&mut self, ask: impl FnOnce(&mut Placement, &mut Around<'_>) -> T) -> T {
        let (now, has_cell) = (self.now, self.has_cell);
        let around = &mut Around { now, node: &self.node, plane: &mut self.kernel, has_cell };
        ask(&mut self.placement, around)
    }

    fn event(&mut self, event: Event) {
        self.node.handle_event(self.now, event);
    }

    fn step(&mut self) {
        self.now += Nanos(self.dice.below(STEP_MAX));
        match self.dice.below(16) {
            0..=2 => self.command(),
            3..=8 => self.cell_acts(),
            9 | 10 => self.verifier_answers(),
            11 if self.dice.one_in(3) => self.cell_dies(),
            12 => self.packets_are_lost(),
            13 => self.place(|it, around| it.handle_second(around)),
            _ => self.place(|it, around| it.handle_tick(around)),
        }
        self.node.handle_timeout(self.now);
        self.do_all();
        self.check();
    }

    fn command(&mut self) {
        let service = name(self.dice.one_of(&SERVICES));
        let levels = ["\"user\"", "\"nic\", \"user\"", "\"kernel\", \"nic\", \"user\""];
        let module = module(self.dice.one_of(&levels), self.dice.below(3));
        let level = self.dice.one_of(&[None, Some(Level::Nic), Some(Level::User)]);
        let command = match self.dice.below(8) {
            0..=2 => Command::Deploy {
                service,
                module,
                parameters: BTreeMap::new(),
                session: name("best-effort"),
                rules: Vec::new(),
                level,
                budget: node::budget::Budget::default(),
                on_failure: self.dice.one_of(&[OnFailure::Open, OnFailure::Closed]),
                discard_state: true,
                owner: None,
                then: Vec::new(),
            },
            3 | 4 => {
                let memory = self.dice.one_of(&[Memory::Kept, Memory::KeptIfPossible]);
                Command::Replace { service, module, parameters: BTreeMap::new(), level, memory }
            }
            5 => Command::Move { service, level: self.dice.one_of(&LEVELS) },
            6 => Command::Bpf { enabled: !self.dice.one_in(3) },
            _ => return self.remove(service),
        };
        // One that is refused changes nothing.
        let _ = self.node.handle_command(self.now, command);
    }

    /// Removes a service: its packets go plainly first, where they can.
    fn remove(&mut self, service: Name) {
        let found = self.node.service(&service);
        let Some(found) = found.filter(|it| it.state == ServiceState::Running) else { return };
        let entry = found.entry;
        let may_leave = self.has_cell && self.node.is_settled(&service);
        if may_leave && self.place(|it, around| it.leave(around, entry)) {
            self.leaving.insert(entry, service);
        } else {
            self.remove_now(service);
        }
    }

    fn remove_now(&mut self, service: Name) {
        let removal = Command::Remove { service: service.clone(), cascade: true };
        if self.node.handle_command(self.now, removal).is_ok() {
            return;
        }
        let found = self.node.service(&service).filter(|it| it.state == ServiceState::Running);
        if let Some(found) = found {
            let (entry, level) = (found.entry, found.level);
            self.place(|it, around| it.return_to_user(around, entry, level, false));
        }
    }

    /// Lets the cell handle its next message, and answer.
    fn cell_acts(&mut self) {
        let Some(reported) = self.cell.pop_front() else { return };
        let fails = self.dice.one_in(5);
        match reported {
            Told::Start(entry) if fails => {
                self.end(entry);
                self.event(Event::ServiceFailed { entry, reason: "no room".to_owned() });
            }
            Told::Start(entry) => {
                self.runs.insert(entry);
                self.place(|it, around| it.handle_begin(around, entry));
            }
            Told::Replace(entry) if fails => self.place(|it, around| {
                it.handle_replace_failed(around, entry, "no room".to_owned(), false);
            }),
            Told::Replace(entry) => {
                self.come_up(entry);
                self.place(|it, around| it.handle_replaced(around, entry, Nanos(7_000)));
                self.watched.insert(entry);
                self.cell.push_back(Told::Watched(entry));
            }
            Told::Watched(entry) if self.watched.remove(&entry) => match fails {
                true => {
                    self.come_up(entry);
                    let reason = "unreachable".to_owned();
                    self.place(|it, around| it.handle_put_back(around, entry, reason));
                }
                false => self.place(|it, around| it.handle_kept(around, entry)),
            },
            Told::Watched(_) => {}
            Told::Stop(entry) => {
                self.end(entry);
                self.event(Event::ServiceStopped { entry });
            }
            Told::VersionKnown(entry) => drop(self.unknown.remove(&entry)),
            Told::Target(entry, _) if self.unknown.contains(&entry) => {}
            Told::Target(entry, level) => {
                // A program cannot be replaced at a level where it runs already.
                let here = self.node.service_of(entry).map(|service| service.level);
                let done = !fails || level == Level::User || here == Some(level);
                if done {
                    self.kernel.lanes.entry(entry).or_default().target = Some(level);
                }
                self.place(|it, around| it.handle_targeted(around, entry, done));
            }
            // The daemon waits until no packet is on its way, and says so.
            Told::Recount(entry) => self.cell.push_back(Told::Settle(entry)),
            Told::Settle(entry) => {
                if !fails {
                    self.kernel.lanes.entry(entry).or_default().lost = 0;
                }
                self.place(|it, around| it.handle_settled(around, entry));
            }
        }
    }

    /// Has another version of a service run, at user level.
    fn come_up(&mut self, entry: EntryId) {
        self.kernel.lanes.entry(entry).or_default().target = Some(Level::User);
        self.unknown.insert(entry);
    }

    /// Makes the cell forget a service.
    fn end(&mut self, entry: EntryId) {
        self.runs.remove(&entry);
        self.watched.remove(&entry);
        self.unknown.remove(&entry);
        self.place(|it, around| it.forget(around, entry));
        self.kernel.current.remove(&entry);
        self.kernel.next.remove(&entry);
        self.kernel.before.remove(&entry);
        self.kernel.lanes.remove(&entry);
        self.loading.retain(|(of, _)| *of != entry);
    }

    fn verifier_answers(&mut self) {
        if self.loading.is_empty() {
            return;
        }
        let at = self.dice.index(self.loading.len());
        let (entry, level) = self.loading.swap_remove(at);
        let Some(version) = self.kernel.current.get_mut(&entry) else { return };
        let is_taken = !version.refused.contains(&level);
        let result = match is_taken {
            true => {
                version.programs.insert(level);
                Ok(())
            }
            false => Err("too many states".to_owned()),
        };
        self.place(|it, around| it.handle_loaded(around, entry, level, result));
    }

    fn cell_dies(&mut self) {
        if !self.has_cell {
            return;
        }
        self.has_cell = false;
        self.cell.clear();
        let entries: Vec<EntryId> = self.kernel.current.keys().copied().collect();
        entries.into_iter().for_each(|entry| self.end(entry));
        self.runs.clear();
        self.placement.handle_cells_lost();
        self.event(Event::CellLost { reason: "killed".to_owned() });
    }

    fn packets_are_lost(&mut self) {
        let entries: Vec<EntryId> = self.kernel.lanes.keys().copied().collect();
        if entries.is_empty() {
            return;
        }
        let entry = self.dice.one_of(&entries);
        if let Some(lane) = self.kernel.lanes.get_mut(&entry) {
            lane.lost += 3;
            lane.is_kept_up = true;
        }
    }

    /// Does everything that the placement and the node want done, until nothing is left.
    fn do_all(&mut self) {
        for _ in 0..10_000 {
            if let Some(action) = self.placement.poll_action() {
                self.act(action);
            } else if let Some(effect) = self.node.poll_effect() {
                self.effect(effect);
            } else {
                return;
            }
        }
        panic!("seed {}: there is always something left to do", self.seed);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Event(event) | Action::Refuse { event, .. } => self.event(event),
            Action::Target(entry, level) => self.cell.push_back(Told::Target(entry, level)),
            Action::Recount(entry) => self.cell.push_back(Told::Recount(entry)),
            Action::Load(entry, level) => self.loading.push((entry, level)),
            Action::Begin(entry) => self.place(|it, around| it.handle_begin(around, entry)),
            Action::Resume { entry, had_lane } => {
                self.place(|it, around| it.handle_resume(around, entry, had_lane));
            }
            Action::Left(entry) => {
                let service = self.leaving.remove(&entry);
                self.remove_now(service.expect("it was told to leave"));
            }
            Action::VersionKnown(entry) => self.cell.push_back(Told::VersionKnown(entry)),
            Action::ClearLane(_)
            | Action::Spare(_)
            | Action::RefuseMovers(..)
            | Action::Paused(..) => {}
        }
    }

    fn version(&mut self, digest: &str) -> Version {
        let is_shared = digest.contains("nic");
        let refused = LEVELS[..2].iter().copied().filter(|_| self.dice.one_in(4)).collect();
        Version { is_shared, programs: BTreeSet::new(), refused }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::StartCell { .. } => {
                self.has_cell = true;
                self.event(Event::CellReady);
            }
            Effect::StartService { start: ServiceStart { entry, digest, levels, .. }, .. } => {
                let version = self.version(&digest);
                self.kernel.current.insert(entry, version);
                if self.has_cell {
                    self.cell.push_back(Told::Start(entry));
                }
                self.place(|it, around| it.handle_given(around, entry, candidates(levels)));
            }
            Effect::ReplaceService {
                start: ServiceStart { entry, digest, levels, .. }, ..
            } => {
                let version = self.version(&digest);
                self.kernel.next.insert(entry, version);
                self.cell.push_back(Told::Replace(entry));
                self.place(|it, _| it.handle_version_given(entry, candidates(levels)));
            }
            Effect::MoveService { entry, level } => {
                self.place(|it, around| it.handle_move(around, entry, level));
            }
            Effect::StopService { entry } => self.cell.push_back(Told::Stop(entry)),
            _ => {}
        }
    }

    /// Checks the invariants that hold after every step.
    fn check(&self) {
        let seed = self.seed;
        for service in self.node.services() {
            let entry = service.entry;
            let is_below = service.level < Level::User;
            if is_below && service.state == ServiceState::Running {
                let has = self.kernel.has_program(entry, service.level);
                assert!(has, "seed {seed}: {} is where it has no program", service.name);
            }
            if service.state == ServiceState::Running {
                assert!(self.runs.contains(&entry), "seed {seed}: {} runs nowhere", service.name);
            }
        }
        for (entry, transit) in &self.placement.entries {
            assert!(!transit.is_over(), "seed {seed}: {entry} is forgotten in the table");
        }
        for (entry, _) in self.kernel.lanes.iter().filter(|(_, lane)| lane.is_held) {
            let is_moved = self.placement.is_moved(*entry);
            assert!(is_moved, "seed {seed}: the lane of {entry} stays held");
        }
    }

    /// Runs everything to its end, and checks the final state.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            self.now += Nanos::from_millis(25);
            self.cell_acts();
            self.verifier_answers();
            self.place(|it, around| it.handle_tick(around));
            self.node.handle_timeout(self.now);
            self.do_all();
            self.check();
            let rests = self.cell.is_empty() && self.loading.is_empty();
            if rests && !self.placement.is_moving() && self.has_cell {
                break;
            }
        }
        let seed = self.seed;
        assert!(self.placement.entries.is_empty(), "seed {seed}: {:?}", self.placement.entries);
        assert!(self.placement.kept.is_empty(), "seed {seed}: nobody was told of a version");
        assert!(self.leaving.is_empty(), "seed {seed}: {:?} never left", self.leaving);
        assert!(self.kernel.next.is_empty(), "seed {seed}: a version waits for ever");
        assert!(self.kernel.before.is_empty(), "seed {seed}: a version before is never let go");
        for service in self.node.services().filter(|it| it.state == ServiceState::Running) {
            let (entry, level) = (service.entry, service.level);
            let lane = self.kernel.lane(entry, level);
            let target = self.kernel.lanes.get(&entry).and_then(|lane| lane.target);
            if lane.is_some() && level != Level::User {
                assert_eq!(target, Some(level), "seed {seed}: {} is elsewhere", service.name);
            }
        }
    }
}

/// Returns the seeds of histories: one that failed (`TAM_SEED`), 100,000 where the large counts run
/// (`TAM_SOAK=1`), else 1,000.
fn seeds() -> std::ops::RangeInclusive<u64> {
    let one = std::env::var("TAM_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let is_soak = std::env::var("TAM_SOAK").is_ok_and(|value| value == "1");
    match one {
        Some(seed) => seed..=seed,
        None if is_soak => 1..=100_000,
        None => 1..=1_000,
    }
}

#[test]
fn in_any_history_services_reach_the_level_that_is_reported() {
    for seed in seeds() {
        let mut world = World::new(seed);
        (0..STEPS).for_each(|_| world.step());
        world.finish();
    }
}
