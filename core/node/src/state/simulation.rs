//! Random life of a node, with its invariants checked after every step.
//!
//! The simulated cell comes and goes, answers late, fails starts, and sometimes sends events that
//! nothing waits for. A failure names its seed.

use std::collections::{BTreeMap, BTreeSet};

use ::session::Reservation;
use abi::Level;
use units::{Edge, EntryId, Name, Nanos, RuleId, SessionId};

use super::{Node, Snapshot};
use crate::budget::Budget;
use crate::classifier::{Reach, RuleSet};
use crate::command::{Arrangement, Command, Effect, Event, Memory, ServiceStart};
use crate::desired::{DesiredRule, DesiredSession, DesiredState};
use crate::policy::OnFailure;
use crate::port::PortSpec;
use crate::rule::{Action, RuleSpec};
use crate::service::{Edges, ServiceState};
use crate::testing::{PORTS, capacity, module};

const POLICIES: [OnFailure; 4] =
    [OnFailure::Open, OnFailure::Closed, OnFailure::Closed, OnFailure::Bypass { after: 2 }];
const SERVICES: [&str; 5] = ["monitor", "touch", "mark", "cache", "shape"];
/// Names of sessions, mostly the first, so that services and rules often meet.
const SESSIONS: [&str; 9] = [BEST, BEST, BEST, BEST, BEST, BEST, BEST, "gold", "silver"];
const BEST: &str = "best-effort";
/// Reservations, some of which exceed the node's capacity.
const RESERVED: [&str; 4] = [
    "{}",
    r#"{"weight":5}"#,
    r#"{"cpu":["300ms/500ms"]}"#,
    r#"{"cpu":["20ms/100ms+extra"],"memory":"1MiB","send":{"left":"50%/200ms"}}"#,
];
const MATCHES: [&str; 6] =
    ["any", "proto udp", "proto tcp dport 80", "ip 6", "in left", "src 10.0.0.0/8"];

/// Random generator xorshift64 (Marsaglia 2003), sufficient to choose the next step.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// State of an entry in the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Starting,
    Running,
    Stopping,
}

/// State of a new version in the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Asked,
    Watched,
}

struct World {
    seed: u64,
    dice: Dice,
    now: Nanos,
    node: Node,
    cell_asked: bool,
    cell_up: bool,
    held: BTreeMap<EntryId, Held>,
    /// Last reported level of each entry, and whether it can move.
    placed: BTreeMap<EntryId, (Level, bool)>,
    /// Moves that were requested and not answered.
    moving: Vec<(EntryId, Level)>,
    /// Versions that were requested, and those being watched.
    replacing: BTreeMap<EntryId, Version>,
    installed: RuleSet,
    /// Entries whose packets are dropped while they are down.
    closed: BTreeSet<EntryId>,
    /// Number of traps of each entry since it was started.
    traps: BTreeMap<EntryId, u64>,
    /// Last edges sent for each entry.
    edges: BTreeMap<EntryId, Edges>,
    /// Last reservation sent for each session.
    promised: BTreeMap<SessionId, Reservation>,
    generation: u64,
    starts: u64,
    ends: u64,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn ports() -> Vec<PortSpec> {
    PORTS.map(|port| PortSpec::new(name(port), format!("eth-{port}"))).into()
}

fn new_node() -> Node {
    let mut node = Node::new(name("r1"), ports()).unwrap();
    assert_eq!(node.set_capacity(capacity()), []);
    node
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: Nanos::ZERO,
            node: new_node(),
            cell_asked: false,
            cell_up: false,
            held: BTreeMap::new(),
            placed: BTreeMap::new(),
            moving: Vec::new(),
            replacing: BTreeMap::new(),
            installed: RuleSet::default(),
            closed: BTreeSet::new(),
            traps: BTreeMap::new(),
            edges: BTreeMap::new(),
            promised: BTreeMap::new(),
            generation: 0,
            starts: 0,
            ends: 0,
        }
    }

    fn step(&mut self) {
        self.now += Nanos(self.dice.below(300_000_000) as u64);
        match self.dice.below(14) {
            0..=2 => self.command(),
            3..=6 => self.answer(),
            7 => self.cell_changes(),
            8 => self.nonsense(),
            9 => self.daemon_dies(),
            10 => self.trap(),
            _ => {
                self.node.handle_timeout(self.now);
                let next = self.node.poll_timeout();
                assert!(next.is_none_or(|at| at > self.now), "seed {}: busy loop", self.seed);
            }
        }
        self.take_effects();
        self.check();
    }

    fn spec(&mut self, action: Action) -> RuleSpec {
        let priority = self.dice.one_of(&[50, 100, 200]);
        let text = self.dice.one_of(&MATCHES);
        RuleSpec {
            priority,
            session: name(self.dice.one_of(&SESSIONS)),
            ..RuleSpec::new(text.parse().unwrap(), action)
        }
    }

    /// Changes rules, and one service, at once.
    fn arrange(&mut self, service: Name, to_service: Action) -> Command {
        let rules: Vec<RuleId> = self.node.rules().iter().map(|view| view.rule.id).collect();
        let remove = if rules.is_empty() { Vec::new() } else { vec![self.dice.one_of(&rules)] };
        let came_with = (self.dice.below(2) == 0).then(|| service.clone());
        let add = (0..self.dice.below(3)).map(|_| DesiredRule {
            spec: self.spec(to_service.clone()),
            came_with: came_with.clone(),
            owner: None,
        });
        let add = add.collect();
        let arrangement = Arrangement {
            then: (0..self.dice.below(3) as u16)
                .map(|edge| (edge, name(self.dice.one_of(&SERVICES))))
                .collect(),
            level: self.dice.one_of(&[None, Some(Level::User)]),
            budget: Budget::default(),
            on_failure: self.dice.one_of(&POLICIES),
            owner: None,
        };
        Command::Arrange { remove, add, services: [(service, arrangement)].into() }
    }

    fn command(&mut self) {
        let service = name(self.dice.one_of(&SERVICES));
        let to_service = Action::Service(service.clone());
        let (session, reserved) = (self.dice.one_of(&SESSIONS), self.dice.one_of(&RESERVED));
        let made = self.dice.one_of(&["gold", "silver"]);
        let reservation: Reservation = serde_json::from_str(reserved).unwrap();
        let command = match self.dice.below(14) {
            12 => self.arrange(service, to_service),
            13 => {
                let wanted = self.dice.below(3);
                let reservation = DesiredSession { reservation, owner: None };
                let sessions = ["gold", "silver"].iter().take(wanted);
                let sessions = sessions.map(|it| (name(it), reservation.clone())).collect();
                Command::SessionsArrange { sessions }
            }
            9 => Command::SessionCreate { session: name(made), reservation, owner: None },
            10 => Command::SessionSet { session: name(made), reservation },
            11 => {
                let cascade = self.dice.below(2) == 0;
                Command::SessionRemove { session: name(made), cascade }
            }
            8 => Command::Replace {
                service,
                module: module(self.dice.one_of(&["\"user\"", "\"nic\", \"user\""])),
                parameters: BTreeMap::new(),
                level: self.dice.one_of(&[None, Some(Level::Nic), Some(Level::User)]),
                memory: self.dice.one_of(&[Memory::Kept, Memory::KeptIfPossible]),
            },
            6 => {
                let level = self.dice.one_of(&[Level::Nic, Level::Kernel, Level::User]);
                Command::Move { service, level }
            }
            7 => Command::Bpf { enabled: self.dice.below(2) == 0 },
            0 | 1 => Command::Deploy {
                service,
                module: module(self.dice.one_of(&[
                    "\"user\"",
                    "\"nic\", \"user\"",
                    "\"user\", \"kernel\", \"nic\"",
                    "\"cluster\"",
                ])),
                parameters: BTreeMap::new(),
                session: name(session),
                rules: (0..self.dice.below(3))
                    .map(|_| RuleSpec { session: name(session), ..self.spec(to_service.clone()) })
                    .collect(),
                level: self.dice.one_of(&[None, None, Some(Level::Nic), Some(Level::User)]),
                budget: Budget::default(),
                on_failure: self.dice.one_of(&POLICIES),
                discard_state: self.dice.below(2) == 0,
                owner: None,
                then: (0..self.dice.below(3)).map(|_| name(self.dice.one_of(&SERVICES))).collect(),
            },
            2 => Command::Remove { service, cascade: self.dice.below(2) == 0 },
            3 => Command::RuleAdd { specs: vec![self.spec(to_service)], owner: None },
            4 => {
                let action = self.dice.one_of(&[0, 1]);
                let action = if action == 0 { Action::Drop } else { Action::Forward };
                Command::RuleAdd { specs: vec![self.spec(action)], owner: None }
            }
            _ => Command::RuleRemove { rule: RuleId(self.dice.below(40) as u32) },
        };
        let all = |node: &Node| {
            let services: Vec<crate::Service> = node.services().cloned().collect();
            let sessions: Vec<crate::Session> = node.sessions().cloned().collect();
            (node.rules(), services, sessions)
        };
        let before = all(&self.node);
        if self.node.handle_command(self.now, command).is_err() {
            let after = all(&self.node);
            assert_eq!(before, after, "seed {}: a refused command changed something", self.seed);
            assert_eq!(self.node.poll_effect(), None, "seed {}", self.seed);
        }
    }

    /// Reports the level of an entry; the node accepts it only if the entry runs.
    fn place(&mut self, entry: EntryId, level: Level) {
        let movable = level != Level::User || self.dice.below(2) == 0;
        if self.held.contains_key(&entry) {
            self.placed.insert(entry, (level, movable));
        }
        let reason = "it fits".to_owned();
        self.node.handle_event(self.now, Event::ServicePlaced { entry, level, reason, movable });
    }

    /// Lets the cell answer one request, or a service in it fail.
    fn answer(&mut self) {
        if let Some((entry, level)) = self.moving.pop() {
            if self.dice.below(3) > 0 {
                return self.place(entry, level);
            }
            let reason = "the lane was never idle".to_owned();
            return self.node.handle_event(self.now, Event::MoveFailed { entry, reason });
        }
        if self.cell_asked {
            self.cell_asked = false;
            self.cell_up = self.dice.below(4) > 0;
            let lost = Event::CellLost { reason: "no such file".into() };
            let event = if self.cell_up { Event::CellReady } else { lost };
            return self.node.handle_event(self.now, event);
        }
        let replacing = self.replacing.pop_first();
        if let Some((entry, version)) = replacing
            && self.held.get(&entry) == Some(&Held::Running)
        {
            return self.answer_replacement(entry, version);
        }
        let held: Vec<(EntryId, Held)> = self.held.iter().map(|(&e, &h)| (e, h)).collect();
        if held.is_empty() {
            return;
        }
        let (entry, state) = self.dice.one_of(&held);
        let fails = self.dice.below(4) == 0;
        let event = match state {
            Held::Starting if !fails => {
                if self.dice.below(2) == 0 {
                    self.place(entry, Level::Nic);
                }
                self.held.insert(entry, Held::Running);
                return self.node.handle_event(self.now, Event::ServiceStarted { entry });
            }
            Held::Running if !fails => return,
            Held::Stopping if !fails => Event::ServiceStopped { entry },
            _ => Event::ServiceFailed { entry, reason: "trap".into() },
        };
        self.held.remove(&entry);
        self.replacing.remove(&entry);
        self.placed.remove(&entry);
        self.ends += 1;
        self.node.handle_event(self.now, event);
    }

    fn answer_replacement(&mut self, entry: EntryId, version: Version) {
        let fails = self.dice.below(3) == 0;
        let reason = "unreachable".to_owned();
        let event = match version {
            Version::Asked if fails => Event::ReplaceFailed { entry, reason },
            Version::Asked => {
                self.replacing.insert(entry, Version::Watched);
                Event::ServiceReplaced { entry }
            }
            Version::Watched if fails => Event::ServicePutBack { entry, reason },
            Version::Watched => Event::ServiceKept { entry },
        };
        if matches!(event, Event::ServiceReplaced { .. } | Event::ServicePutBack { .. }) {
            self.moving.retain(|(moving, _)| *moving != entry);
            if let Some((level, _)) = self.placed.get_mut(&entry) {
                *level = Level::User;
            }
        }
        self.node.handle_event(self.now, event);
    }

    /// Lets instances of a running service trap; sometimes the report comes late.
    fn trap(&mut self) {
        let running: Vec<EntryId> =
            self.held.iter().filter(|(_, held)| **held == Held::Running).map(|(e, _)| *e).collect();
        if running.is_empty() {
            return;
        }
        let entry = self.dice.one_of(&running);
        let traps = self.traps.entry(entry).or_default();
        *traps += 1 + self.dice.below(2) as u64;
        let (traps, reason) = (*traps, "unreachable".to_owned());
        if self.dice.below(3) > 0 {
            self.node.handle_event(self.now, Event::ServiceTrapped { entry, traps, reason });
        }
    }

    fn cell_changes(&mut self) {
        if self.cell_up {
            self.cell_up = false;
            self.promised.clear();
            self.ends += self.held.len() as u64;
            self.held.clear();
            self.replacing.clear();
            self.placed.clear();
            self.node.handle_event(self.now, Event::CellLost { reason: "killed".into() });
        }
    }

    /// Ends the daemon, perhaps with its cell; another one reads its snapshot.
    fn daemon_dies(&mut self) {
        let text = self.node.with_snapshot(|it| serde_json::to_string(it).unwrap());
        let snapshot: Snapshot = serde_json::from_str(&text).unwrap();
        let ran: BTreeSet<EntryId> = snapshot.running().collect();
        self.node = Node::restore(name("r1"), ports(), snapshot).unwrap();
        assert_eq!(self.node.set_capacity(capacity()), [], "seed {}", self.seed);
        self.cell_up &= self.dice.below(2) == 0;
        self.cell_asked = false;
        if !self.cell_up {
            self.promised.clear();
        }
        self.moving.clear();
        self.replacing.clear();
        let before = self.held.len();
        // A cell ends everything but the running services.
        let up = self.cell_up;
        self.held.retain(|entry, held| up && *held == Held::Running && ran.contains(entry));
        self.ends += (before - self.held.len()) as u64;
        self.placed.retain(|entry, _| self.held.contains_key(entry));
        let has: BTreeSet<EntryId> = self.held.keys().copied().collect();
        let has = if up { Ok(&has) } else { Err("it died, too".to_owned()) };
        self.node.resume(self.now, has, &DesiredState::default());
    }

    /// Sends an event about an entry that the cell does not have.
    fn nonsense(&mut self) {
        let entry = EntryId(200 + self.dice.below(50) as u16);
        let reason = "nobody asked".to_owned();
        let events = [Event::ServiceFailed { entry, reason }, Event::ServiceStarted { entry }];
        for event in events {
            self.node.handle_event(self.now, event);
        }
        self.place(entry, Level::Nic);
    }

    fn take_effects(&mut self) {
        while let Some(effect) = self.node.poll_effect() {
            let seed = self.seed;
            match effect {
                Effect::StartCell { .. } => {
                    assert!(!self.cell_up && !self.cell_asked, "seed {seed}: a second cell");
                    self.cell_asked = true;
                }
                Effect::SetSession { session, reservation } => {
                    self.promised.insert(session, reservation);
                }
                Effect::RemoveSession { session } => {
                    let before = self.promised.remove(&session);
                    assert!(before.is_some() || !self.cell_up, "seed {seed}: {session} is gone");
                }
                Effect::StartService { start: ServiceStart { entry, session, .. }, .. } => {
                    assert!(self.cell_up, "seed {seed}: a start without a cell");
                    let known =
                        session == SessionId::BEST_EFFORT || self.promised.contains_key(&session);
                    assert!(known, "seed {seed}: a start in a session of which nobody told");
                    self.edges.remove(&entry);
                    self.traps.remove(&entry);
                    let before = self.held.insert(entry, Held::Starting);
                    assert_eq!(before, None, "seed {seed}: entry {entry} started twice");
                    self.starts += 1;
                }
                Effect::StopService { entry } => {
                    let before = self.held.insert(entry, Held::Stopping);
                    let stoppable = [Some(Held::Starting), Some(Held::Running)];
                    assert!(stoppable.contains(&before), "seed {seed}: stop of {before:?}");
                    self.rules_lead_to_what_runs();
                }
                Effect::InstallRules { rules, generation } => {
                    self.generation += 1;
                    assert_eq!(generation, self.generation, "seed {seed}");
                    self.installed = rules;
                    self.rules_lead_to_what_runs();
                }
                Effect::ReplaceService { start: ServiceStart { entry, .. }, .. } => {
                    let running = self.held.get(&entry) == Some(&Held::Running);
                    assert!(running, "seed {seed}: {entry} is replaced and does not run");
                    let before = self.replacing.insert(entry, Version::Asked);
                    assert_eq!(before, None, "seed {seed}: {entry} is replaced twice at a time");
                }
                Effect::MoveService { entry, level } => {
                    let running = self.held.get(&entry) == Some(&Held::Running);
                    assert!(running, "seed {seed}: {entry} moves and does not run");
                    self.moving.push((entry, level));
                }
                Effect::SetEdges { entry, edges } => {
                    let running = self.held.get(&entry) == Some(&Held::Running);
                    assert!(running, "seed {seed}: edges of {entry}, which does not run");
                    self.edges.insert(entry, edges);
                }
                Effect::SetClosed { entry, closed: true } => {
                    assert!(self.closed.insert(entry), "seed {seed}: {entry} was closed");
                }
                Effect::SetClosed { entry, closed: false } => {
                    assert!(self.closed.remove(&entry), "seed {seed}: {entry} was open");
                }
                Effect::ClearRuleCounters { .. } | Effect::Report(_) => {}
            }
        }
    }

    fn rules_lead_to_what_runs(&self) {
        for (_, rule) in &self.installed.entries {
            let entry = EntryId(rule.entry);
            let by_lane = match rule.action {
                bpf_maps::ACTION_USER => false,
                bpf_maps::ACTION_SERVICE => true,
                bpf_maps::ACTION_DOWN => {
                    assert!(self.closed.contains(&entry), "seed {}: {entry} is open", self.seed);
                    continue;
                }
                _ => continue,
            };
            assert!(
                self.held.get(&entry) == Some(&Held::Running),
                "seed {}: rule {} leads to entry {entry}, which does not run",
                self.seed,
                rule.rule
            );
            let movable = self.placed.get(&entry).is_some_and(|(_, movable)| *movable);
            assert_eq!(by_lane, movable, "seed {}: rule {} of {entry}", self.seed, rule.rule);
        }
    }

    /// Checks after all effects that an edge leads to the service that it names while that runs,
    /// and nowhere else.
    fn edges_lead_to_what_runs(&self) {
        for service in self.node.services() {
            if self.held.get(&service.entry) != Some(&Held::Running) {
                continue;
            }
            let emitted = self.edges.get(&service.entry).copied().unwrap_or_default();
            for (edge, to) in emitted.iter().enumerate() {
                let next = service.then.get(&(edge as u16));
                let next = next.map(|next| self.node.service(next).expect("an edge to nothing"));
                let expected = match next {
                    Some(next) if self.held.get(&next.entry) == Some(&Held::Running) => {
                        Edge::To(next.entry)
                    }
                    Some(next) if self.closed.contains(&next.entry) => Edge::Down,
                    _ => Edge::Out,
                };
                assert_eq!(*to, expected, "seed {}: edge {edge} of {}", self.seed, service.name);
            }
        }
    }

    /// Returns true if a service is closed by its own policy, or by one that follows it.
    fn is_closed(&self, service: &crate::Service) -> bool {
        let mut after = service.then.values().filter_map(|next| self.node.service(next));
        service.on_failure.is_closed() || after.any(|next| self.is_closed(next))
    }

    /// Checks that no packet of a closed service goes elsewhere, in any state.
    fn closed_services_are_closed(&self) {
        let seed = self.seed;
        for service in self.node.services() {
            let stays = service.state != ServiceState::Stopping;
            let closed = stays && self.is_closed(service);
            assert_eq!(
                self.closed.contains(&service.entry),
                closed,
                "seed {seed}: {}",
                service.name
            );
        }
        for view in self.node.rules() {
            let service = view.rule.spec.action.service();
            let service = service.map(|name| self.node.service(name).expect("a rule to nothing"));
            let closed = service.is_some_and(|service| self.closed.contains(&service.entry));
            assert!(!closed || view.reach != Reach::Waiting, "seed {seed}: a hole in {service:?}");
        }
        for (_, rule) in &self.installed.entries {
            let runs = self.held.get(&EntryId(rule.entry)) == Some(&Held::Running);
            let down = rule.action == bpf_maps::ACTION_DOWN;
            assert!(!(runs && down), "seed {seed}: {} runs and gets nothing", rule.entry);
        }
        let entries: BTreeSet<EntryId> = self.node.services().map(|s| s.entry).collect();
        assert!(self.closed.is_subset(&entries), "seed {seed}: an entry is free and closed");
    }

    /// Checks that the reservations of all sessions together do not exceed the capacity.
    fn promises_can_be_kept(&self) {
        let (seed, capacity) = (self.seed, capacity());
        let all = || self.node.sessions().map(|session| &session.reservation);
        let shares = all().flat_map(|it| &it.processors).map(|it| it.share.parts_per_million());
        assert!(shares.sum::<u64>() <= 900_000, "seed {seed}: a guest core is promised twice");
        let memory = all().filter_map(|it| it.memory).map(|bytes| bytes.0);
        assert!(memory.sum::<u64>() <= capacity.memory.0, "seed {seed}");
        let left = all().filter_map(|it| it.send.values().next());
        let left = left.map(|share| share.parts_per_million());
        assert!(left.sum::<u64>() <= 990_000, "seed {seed}: a port is promised twice");
    }

    /// Checks that the cell has exactly the node's sessions, and that all services and rules are in
    /// one of them.
    fn sessions_are_what_was_told(&self) {
        let seed = self.seed;
        let created = self.node.sessions().filter(|session| !session.is_built_in());
        let created: BTreeMap<SessionId, Reservation> =
            created.map(|session| (session.id, session.reservation.clone())).collect();
        if self.cell_up {
            assert_eq!(self.promised, created, "seed {seed}");
        }
        self.promises_can_be_kept();
        for service in self.node.services() {
            let session = self.node.session(&service.session);
            let stays = service.state != ServiceState::Stopping;
            let open = session.is_some_and(|session| !session.leaving || !stays);
            assert!(open, "seed {seed}: {} is in {session:?}", service.name);
        }
        for view in self.node.rules() {
            let session = self.node.session(&view.rule.spec.session);
            assert!(session.is_some_and(|it| !it.leaving), "seed {seed}: {:?}", view.rule);
        }
    }

    fn check(&self) {
        let seed = self.seed;
        self.sessions_are_what_was_told();
        self.closed_services_are_closed();
        self.rules_lead_to_what_runs();
        self.edges_lead_to_what_runs();
        assert_eq!(
            self.starts,
            self.ends + self.held.len() as u64,
            "seed {seed}: a start without end"
        );
        let entries: BTreeSet<EntryId> = self.node.services().map(|s| s.entry).collect();
        assert_eq!(entries.len(), self.node.services().count(), "seed {seed}: an entry twice");
        assert!(self.held.keys().all(|e| entries.contains(e)), "seed {seed}: an entry forgotten");
        for service in self.node.services() {
            let level = self.placed.get(&service.entry).map_or(Level::User, |(level, _)| *level);
            assert_eq!(service.level, level, "seed {seed}: {}", service.name);
        }
        for view in self.node.rules() {
            if let Some(service) = view.rule.spec.action.service() {
                assert!(self.node.service(service).is_some(), "seed {seed}: a rule to nothing");
            }
        }
    }

    /// Lets nothing fail from now on: everything that should run must come to run.
    fn calm_down(&mut self) {
        for _ in 0..200 {
            if self.cell_asked {
                self.cell_asked = false;
                self.cell_up = true;
                self.node.handle_event(self.now, Event::CellReady);
            }
            for (entry, state) in self.held.clone() {
                match state {
                    Held::Starting => {
                        self.held.insert(entry, Held::Running);
                        self.node.handle_event(self.now, Event::ServiceStarted { entry });
                    }
                    Held::Stopping => {
                        self.held.remove(&entry);
                        self.replacing.remove(&entry);
                        self.placed.remove(&entry);
                        self.ends += 1;
                        self.node.handle_event(self.now, Event::ServiceStopped { entry });
                    }
                    Held::Running => {}
                }
            }
            while let Some((entry, version)) = self.replacing.pop_first() {
                self.answer_replacement(entry, version);
            }
            self.take_effects();
            self.check();
            if let Some(at) = self.node.poll_timeout() {
                self.now = self.now.max(at);
                self.node.handle_timeout(self.now);
                self.take_effects();
            }
        }
        let bypassed =
            |service: &crate::Service| matches!(service.state, ServiceState::Bypassed { .. });
        for service in self.node.services().filter(|service| !bypassed(service)) {
            assert_eq!(service.state, ServiceState::Running, "seed {}", self.seed);
        }
        let reaches: Vec<Reach> = self.node.rules().iter().map(|view| view.reach).collect();
        let waits = |view: &&super::RuleView| {
            let service = view.rule.spec.action.service().and_then(|name| self.node.service(name));
            service.is_some_and(|service| bypassed(service) && !self.is_closed(service))
        };
        let waiting = reaches.iter().filter(|&&reach| reach == Reach::Waiting).count();
        let rules = self.node.rules();
        assert_eq!(waiting, rules.iter().filter(waits).count(), "seed {}", self.seed);
        let is_told = |reach: &&Reach| [Reach::Installed, Reach::Closed].contains(*reach);
        let emitted = reaches.iter().filter(is_told).count();
        assert_eq!(emitted, self.installed.entries.len(), "seed {}: a rule is missing", self.seed);
    }
}

#[test]
fn in_any_history_no_rule_leads_to_a_service_that_does_not_run() {
    let mut started = 0;
    for seed in 1..=250 {
        let mut world = World::new(seed);
        world.take_effects();
        for _ in 0..600 {
            world.step();
        }
        world.calm_down();
        started += world.starts;
    }
    assert!(started > 1500, "the dice are loaded: only {started} starts");
}
