//! Random histories of the control plane, without a kernel, a process or a socket: clients deploy,
//! replace, move, remove, apply, confirm, roll back and revoke in any order, while a fake cell
//! answers late, refuses and dies, a data plane of tables takes programs or not, and the journal
//! fails.
//!
//! A failure names its seed.

use super::Control;
use super::action::{Action, Keep};
use super::change::Change;
use super::desired::JournalWrite;
use super::placement::fake::{Kernel, Version};
use super::placement::{self, Around, Candidates, Placement, Plane};
use super::testbed::{MODULES, control, digest, holder, token_id};
use crate::access::Caller;
use crate::answer::failed;
use crate::reply::{Awaited, Reply};
use abi::Level;
use api::{
    ApplyRequest, DeployRequest, ErrorCode, MoveRequest, RevokeRequest, RollbackRequest,
    RulesRequest,
};
use module_store::{Digest, Store};
use node::desired::{DesiredRule, DesiredSession, DesiredState};
use node::{Effect, Event, ServiceStart, ServiceState};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, LazyLock};
use testbase::Chance;
use units::{EntryId, Name, Nanos, RuleId};

const SERVICES: [&str; 3] = ["monitor", "mark", "cache"];
const SESSIONS: [&str; 2] = ["gold", "silver"];
const MATCHES: [&str; 3] = ["dst 10.0.0.0/8", "dst 10.1.0.0/16", "proto udp dport 53"];
const LEVELS: [Level; 3] = [Level::Nic, Level::Kernel, Level::User];
/// Number of steps of one history.
const STEPS: usize = 40;
/// Longest time of a step, in nanoseconds.
const STEP_MAX: u64 = 400_000_000;

/// Client with a capability for everything; one for all histories, since it takes long to verify.
static HOLDER: LazyLock<Caller> = LazyLock::new(holder);

/// Message to the fake cell that it has yet to handle.
#[derive(Clone, Debug)]
enum CellMessage {
    Start(EntryId),
    Replace(EntryId),
    Stop(EntryId),
    Target(EntryId, Level),
    Recount(EntryId),
    Settle(EntryId),
    /// No message: the end of watching a version.
    Watched(EntryId),
}

/// Receiver of an answer of any type.
trait Waits {
    /// Returns the answer's code, if it is there; `None` in it for a document.
    fn poll_code(&mut self) -> Option<Option<ErrorCode>>;
}

impl<T: Any> Waits for Awaited<T> {
    fn poll_code(&mut self) -> Option<Option<ErrorCode>> {
        self.try_answer().map(|answer| answer.err().map(|refusal| refusal.code))
    }
}

/// Request that has not been answered.
struct Waiting {
    request: String,
    /// Service that it deploys.
    service: Option<Name>,
    answer: Box<dyn Waits>,
}

struct World {
    seed: u64,
    dice: Chance,
    now: Nanos,
    control: Control,
    placement: Placement,
    kernel: Kernel,
    has_cell: bool,
    cell: VecDeque<CellMessage>,
    /// Services that run in the cell.
    runs: BTreeSet<EntryId>,
    /// Versions that are watched.
    watched: BTreeSet<EntryId>,
    /// Programs that the verifier is checking.
    loading: Vec<(EntryId, Level)>,
    /// Writes of the journal that have not ended.
    writes: VecDeque<JournalWrite>,
    /// Modules that are being compiled.
    compiling: VecDeque<Digest>,
    waiting: Vec<Waiting>,
    /// Revocations that wait for services to stop.
    revocations: Vec<Keep>,
    is_revoked: bool,
    /// Services whose new version runs and could not be recorded, of which its deployer was notified.
    partial: BTreeSet<Name>,
    generation: u64,
    /// True when what happens is printed.
    is_traced: bool,
}

impl World {
    fn new(seed: u64, store: Store) -> Self {
        let mut world = Self {
            seed,
            dice: Chance(seed),
            now: Nanos::ZERO,
            control: control(store),
            placement: Placement::default(),
            kernel: Kernel::default(),
            has_cell: false,
            cell: VecDeque::new(),
            runs: BTreeSet::new(),
            watched: BTreeSet::new(),
            loading: Vec::new(),
            writes: VecDeque::new(),
            compiling: VecDeque::new(),
            waiting: Vec::new(),
            revocations: Vec::new(),
            is_revoked: false,
            partial: BTreeSet::new(),
            generation: 0,
            is_traced: std::env::var("TAM_TRACE").is_ok_and(|it| it == seed.to_string()),
        };
        world.control.resume();
        world.control.handle_timeout();
        world.settle();
        world
    }

    fn place<T>(&mut self, ask: impl FnOnce(&mut Placement, &mut Around<'_>) -> T) -> T {
        let (now, has_cell, node) = (self.now, self.has_cell, self.control.state().node());
        let around = &mut Around { now, node, plane: &mut self.kernel, has_cell };
        ask(&mut self.placement, around)
    }

    fn step(&mut self) {
        self.now += Nanos(self.dice.below(STEP_MAX));
        self.control.set_now(self.now);
        match self.dice.below(16) {
            0..=3 => self.request(),
            4..=8 => self.cell_acts(),
            9 => self.verifier_answers(),
            10 | 11 => self.journal_answers(),
            12 => self.compiler_answers(),
            13 if self.dice.one_in(3) => self.cell_dies(),
            14 => self.time_passes(),
            _ => self.place(|it, around| it.handle_tick(around)),
        }
        self.control.handle_timeout();
        self.settle();
        self.check();
    }

    /// Does what the node's loop does beside requests.
    fn time_passes(&mut self) {
        self.control.handle_second();
        if self.control.resumes_at().is_some_and(|at| at <= self.now)
            && self.control.handle_resumption()
        {
            self.control.resume();
        }
        if self.control.confirmed_until().is_some() && self.dice.one_in(2) {
            self.control.handle_not_confirmed();
        }
    }

    fn awaited<T: Any>(&mut self) -> Reply<T> {
        let (reply, awaited) = Reply::pair();
        let (request, service) = (String::new(), None);
        self.waiting.push(Waiting { request, service, answer: Box::new(awaited) });
        reply
    }

    fn request(&mut self) {
        let caller = match self.dice.one_in(3) {
            true => {
                if let Caller::Holder(holder) = &*HOLDER {
                    holder.take_used();
                }
                HOLDER.clone()
            }
            false => Caller::Operator,
        };
        let service = self.dice.one_of(&SERVICES).to_owned();
        let session = self.dice.one_of(&SESSIONS).to_owned();
        let level = self.dice.one_of(&LEVELS);
        let change = match self.dice.below(15) {
            0..=3 => {
                let module = &MODULES[self.dice.index(MODULES.len())];
                let rules = (0..self.dice.below(2)).map(|_| self.dice.one_of(&MATCHES).to_owned());
                let request = DeployRequest {
                    module: digest(module).to_string(),
                    name: Some(service),
                    rules: rules.collect(),
                    level: self.dice.one_in(2).then(|| level.name().to_owned()),
                    session: self.dice.one_in(4).then_some(session),
                    on_failure: self.dice.one_in(2).then(|| "closed".to_owned()),
                    discard_state: self.dice.one_in(2),
                    ..DeployRequest::default()
                };
                Change::Deploy(Box::new(request), self.awaited())
            }
            4 => Change::Remove(service, self.dice.one_in(2), self.awaited()),
            5 => {
                let request = MoveRequest { level: level.name().to_owned() };
                Change::Move(service, request, self.awaited())
            }
            6 => {
                let enabled = !self.dice.one_in(3);
                Change::Bpf(api::BpfRequest { enabled }, self.awaited())
            }
            7 => {
                let action = match self.dice.one_in(2) {
                    true => "drop".to_owned(),
                    false => format!("service {service}"),
                };
                let rule = api::RuleRequest::new(self.dice.one_of(&MATCHES), action);
                Change::AddRules(RulesRequest { rules: vec![rule] }, self.awaited())
            }
            8 => {
                let rules = self.control.state().node().numbered_rules();
                let rule = match rules.is_empty() {
                    true => RuleId(1),
                    false => rules[self.dice.index(rules.len())].0,
                };
                Change::RemoveRule(rule, self.awaited())
            }
            9 => {
                let request = api::SessionRequest { name: session, ..Default::default() };
                Change::CreateSession(Box::new(request), self.awaited())
            }
            10 => {
                let weight = Some(100 + u16::try_from(self.dice.below(9)).unwrap());
                let change = api::SessionChange { weight, ..Default::default() };
                Change::SetSession(session, Box::new(change), self.awaited())
            }
            11 => Change::RemoveSession(session, self.dice.one_in(2), self.awaited()),
            12 => {
                let text = self.state_text();
                let request = ApplyRequest {
                    file: "state.toml".to_owned(),
                    text,
                    confirm_s: self.dice.one_in(4).then_some(60),
                    discard_state: self.dice.one_in(2),
                    ..ApplyRequest::default()
                };
                Change::Apply(Box::new(request), self.awaited())
            }
            13 => match self.dice.one_in(2) {
                true => Change::Confirm(self.awaited()),
                false => Change::Rollback(RollbackRequest::default(), self.awaited()),
            },
            _ if self.dice.one_in(3) => {
                let request = RevokeRequest { revoke: vec![token_id().to_owned()] };
                let reply = self.awaited();
                self.is_revoked = true;
                self.trace("operator: Revoke");
                return self.control.handle_revocation(&request, reply);
            }
            _ => return,
        };
        let who = if matches!(caller, Caller::Operator) { "operator" } else { "holder" };
        let shown = format!("{who}: {change:?}");
        let shown = shown.split(", Reply(").next().unwrap_or_default().to_owned();
        self.trace(&shown);
        if let Some(last) = self.waiting.last_mut() {
            last.service = match &change {
                Change::Deploy(request, _) => {
                    request.name.as_ref().and_then(|name| Name::new(name).ok())
                }
                _ => None,
            };
            last.request = shown;
        }
        self.control.handle_change(caller, change);
    }

    /// Returns a desired state as its file says it.
    fn state_text(&mut self) -> String {
        let mut text = String::new();
        for session in SESSIONS {
            if self.dice.one_in(3) {
                text.push_str(&format!("[[session]]\nname = \"{session}\"\n"));
            }
        }
        for service in SERVICES {
            if self.dice.one_in(2) {
                let module = digest(&MODULES[self.dice.index(MODULES.len())]);
                text.push_str(&format!(
                    "[[service]]\nname = \"{service}\"\nmodule = \"{module}\"\nrules = [\"{}\"]\n",
                    self.dice.one_of(&MATCHES)
                ));
                if self.dice.one_in(2) {
                    text.push_str("level = \"user\"\n");
                }
            }
        }
        if self.dice.one_in(2) {
            let r#match = self.dice.one_of(&MATCHES);
            text.push_str(&format!("[[rule]]\nmatch = \"{match}\"\naction = \"drop\"\n"));
        }
        text
    }

    fn event(&mut self, event: Event) {
        self.control.handle_event(event, false);
    }

    /// Lets the cell handle its next message, and answer.
    fn cell_acts(&mut self) {
        let Some(reported) = self.cell.pop_front() else { return };
        let fails = self.dice.one_in(6);
        match reported {
            CellMessage::Start(entry) if fails => {
                self.end(entry);
                let event = Event::ServiceFailed { entry, reason: "no room".to_owned() };
                self.control.handle_event(event, true);
            }
            CellMessage::Start(entry) => {
                self.runs.insert(entry);
                self.place(|it, around| it.handle_begin(around, entry));
            }
            CellMessage::Replace(entry) if fails => self.place(|it, around| {
                it.handle_replace_failed(around, entry, "no room".to_owned(), false);
            }),
            CellMessage::Replace(entry) => {
                self.kernel.lanes.entry(entry).or_default().target = Some(Level::User);
                self.place(|it, around| it.handle_replaced(around, entry, Nanos(7_000)));
                self.watched.insert(entry);
                self.cell.push_back(CellMessage::Watched(entry));
            }
            CellMessage::Watched(entry) if self.watched.remove(&entry) => match fails {
                true => {
                    self.kernel.lanes.entry(entry).or_default().target = Some(Level::User);
                    let reason = "unreachable".to_owned();
                    self.place(|it, around| it.handle_put_back(around, entry, reason));
                }
                false => self.place(|it, around| it.handle_kept(around, entry)),
            },
            CellMessage::Watched(_) => {}
            CellMessage::Stop(entry) => {
                self.end(entry);
                self.event(Event::ServiceStopped { entry });
            }
            CellMessage::Target(entry, level) => {
                self.kernel.lanes.entry(entry).or_default().target = Some(level);
                self.place(|it, around| it.handle_targeted(around, entry, true));
            }
            CellMessage::Recount(entry) => self.cell.push_back(CellMessage::Settle(entry)),
            CellMessage::Settle(entry) => {
                self.kernel.lanes.entry(entry).or_default().lost = 0;
                self.place(|it, around| it.handle_settled(around, entry));
            }
        }
    }

    /// Makes the cell forget a service.
    fn end(&mut self, entry: EntryId) {
        self.runs.remove(&entry);
        self.watched.remove(&entry);
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
        let result = match version.refused.contains(&level) {
            false => {
                version.programs.insert(level);
                Ok(())
            }
            true => Err("too many states".to_owned()),
        };
        self.place(|it, around| it.handle_loaded(around, entry, level, result));
    }

    fn journal_answers(&mut self) {
        let Some(write) = self.writes.pop_front() else { return };
        let before = Arc::clone(self.control.state().desired().state());
        if self.dice.one_in(6) {
            self.trace(format_args!("{write:?} fails"));
            self.control.handle_recorded(Err(failed("no space left on device")));
            let seed = self.seed;
            assert_eq!(
                *self.control.state().desired().state(),
                before,
                "seed {seed}: it was not written"
            );
        } else {
            self.trace(format_args!("{write:?} is written"));
            let written = write.run();
            assert!(written.is_ok(), "seed {}: {written:?}", self.seed);
            self.control.handle_recorded(written);
            let control = &self.control;
            self.partial.retain(|service| is_partial(control, service));
        }
    }

    fn compiler_answers(&mut self) {
        let Some(module) = self.compiling.pop_front() else { return };
        let failure = self.dice.one_in(6).then(|| "the compiler was killed".to_owned());
        self.control.handle_compiled(&module, failure.as_ref());
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
        self.control.handle_memory(None);
        self.event(Event::CellLost { reason: "killed".to_owned() });
    }

    /// Does everything that is pending, until nothing is left.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if let Some(action) = self.placement.poll_action() {
                self.do_placement(action);
            } else if let Some(action) = self.control.poll_action() {
                self.act(action);
            } else if !self.control.advance() {
                return;
            }
        }
        panic!("seed {}: there is always something left to do", self.seed);
    }

    fn do_placement(&mut self, action: placement::Action) {
        use placement::Action;
        match action {
            Action::Event(event) => self.control.handle_event(event, false),
            Action::Refuse { event, is_short } => self.control.handle_event(event, is_short),
            Action::Target(entry, level) => self.cell.push_back(CellMessage::Target(entry, level)),
            Action::Recount(entry) => self.cell.push_back(CellMessage::Recount(entry)),
            Action::Load(entry, level) => self.loading.push((entry, level)),
            Action::Begin(entry) => self.place(|it, around| it.handle_begin(around, entry)),
            Action::Resume { entry, had_lane } => {
                self.place(|it, around| it.handle_resume(around, entry, had_lane));
            }
            Action::Left(entry) => self.control.handle_drained(entry),
            Action::RefuseMovers(service, message) => {
                self.control.refuse_movers(&service, &message);
            }
            Action::Paused(service, paused) => self.control.handle_paused(&service, paused),
            Action::VersionKnown(_) | Action::ClearLane(_) | Action::Spare(_) => {}
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Effect(effect) => self.effect(effect),
            Action::Write(write) => {
                self.trace(format_args!("{write:?}"));
                self.writes.push_back(write);
            }
            Action::Keep(keep @ Keep::Revoked { .. }) => self.revocations.push(keep),
            Action::Compile(module, _) => self.compiling.push_back(module),
            Action::Stay(entry, level) => {
                if self.placement.is_moved(entry) {
                    self.place(|it, around| it.handle_move(around, entry, level));
                }
            }
            Action::Drain(entry) => {
                let is_drained = !self.place(|it, around| it.leave(around, entry));
                if is_drained {
                    self.control.handle_drained(entry);
                }
            }
            Action::CancelDrain(entry) => {
                let node = self.control.state().node();
                let found = node.service_of(entry).map(|it| (it.level, node.is_closed(it)));
                if let Some((level, closed)) = found {
                    self.place(|it, around| it.return_to_user(around, entry, level, closed));
                }
            }
            Action::AnswerDeployed(answer) => {
                let service = answer.service.to_string();
                answer.reply.refuse(failed(format!("'{service}' runs; nobody shows it here")));
            }
            Action::AskMemory(number, _) => self.control.handle_memory_overdue(number),
            Action::Note(note) => self.trace(format_args!("{note:?}")),
            Action::Keep(_)
            | Action::CloseRules(_)
            | Action::SettleAccounts
            | Action::ExpectService
            | Action::ClearReusable
            | Action::AnswerCall(..)
            | Action::FetchMissing
            | Action::BillFetched(_)
            | Action::CheckAssociations
            | Action::ForgetSession(_)
            | Action::ClosePorts
            | Action::Bill
            | Action::FetchCalled(_) => {}
        }
    }

    fn effect(&mut self, effect: Effect) {
        if let Effect::StartService { .. }
        | Effect::ReplaceService { .. }
        | Effect::MoveService { .. }
        | Effect::StopService { .. } = &effect
        {
            self.trace(format_args!("{effect:?}"));
        }
        match effect {
            Effect::StartCell { .. } => {
                self.has_cell = true;
                self.event(Event::CellReady);
            }
            Effect::StartService { start: ServiceStart { entry, levels, .. }, .. } => {
                let version = self.version(&levels);
                self.kernel.current.insert(entry, version);
                if self.has_cell {
                    self.cell.push_back(CellMessage::Start(entry));
                }
                let candidates = Candidates { levels, unfit: Vec::new() };
                self.place(|it, around| it.handle_given(around, entry, candidates));
            }
            Effect::ReplaceService { start: ServiceStart { entry, levels, .. }, .. } => {
                let version = self.version(&levels);
                self.kernel.next.insert(entry, version);
                self.cell.push_back(CellMessage::Replace(entry));
                let candidates = Candidates { levels, unfit: Vec::new() };
                self.place(|it, _| it.handle_version_given(entry, candidates));
            }
            Effect::MoveService { entry, level } => {
                self.place(|it, around| it.handle_move(around, entry, level));
            }
            Effect::StopService { entry } => self.cell.push_back(CellMessage::Stop(entry)),
            _ => {}
        }
    }

    fn version(&mut self, levels: &[Level]) -> Version {
        let is_shared = levels.iter().any(|level| *level != Level::User);
        let refused = LEVELS[..2].iter().copied().filter(|_| self.dice.one_in(4)).collect();
        Version { is_shared, programs: BTreeSet::new(), refused }
    }

    /// Prints what happens in one history (`TAM_TRACE`, its seed).
    fn trace(&self, what: impl std::fmt::Display) {
        if self.is_traced {
            eprintln!("{:>6} ms {what}", self.now.as_millis());
        }
    }

    /// Checks the invariants that hold after every step.
    fn check(&mut self) {
        let seed = self.seed;
        let generation = self.control.state().desired().generation();
        assert!(generation >= self.generation, "seed {seed}: a generation is taken back");
        self.generation = generation;
        let node = self.control.state().node();
        for service in node.services() {
            let (entry, is_running) = (service.entry, service.state == ServiceState::Running);
            if is_running {
                assert!(self.runs.contains(&entry), "seed {seed}: {} runs nowhere", service.name);
            }
            if is_running && service.level < Level::User {
                let has = self.kernel.has_program(entry, service.level);
                assert!(has, "seed {seed}: {} is where it has no program", service.name);
            }
        }
        if self.is_revoked {
            let owned = node.services().filter(|it| it.state != ServiceState::Stopping);
            let mut owned = owned.filter(|service| service.owner.is_some());
            let found = owned.next().map(|service| &service.name);
            assert_eq!(found, None, "seed {seed}: it runs under what was revoked");
        }
        self.take_answers();
    }

    fn take_answers(&mut self) {
        let (seed, is_traced, now) = (self.seed, self.is_traced, self.now.as_millis());
        let partial = &mut self.partial;
        self.waiting.retain_mut(|waiting| {
            let Some(code) = waiting.answer.poll_code() else { return true };
            let request = &waiting.request;
            if is_traced {
                eprintln!("{now:>6} ms   {code:?} to {request}");
            }
            assert_ne!(code, Some(ErrorCode::Unreachable), "seed {seed}: dropped: {request}");
            if code == Some(ErrorCode::Partial) {
                partial.extend(waiting.service.take());
            }
            false
        });
    }

    /// Runs everything to its end, and checks the final state.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            self.now += Nanos::from_millis(50);
            self.control.set_now(self.now);
            self.cell_acts();
            self.verifier_answers();
            self.journal_answers();
            self.compiler_answers();
            self.time_passes();
            self.place(|it, around| it.handle_tick(around));
            self.control.handle_timeout();
            self.settle();
            self.check();
            let is_over = self.control.is_settled()
                && self.control.resumes_at().is_none()
                && self.cell.is_empty()
                && self.writes.is_empty()
                && self.control.confirmed_until().is_none();
            if is_over && self.has_cell {
                break;
            }
        }
        let seed = self.seed;
        assert!(self.control.is_settled(), "seed {seed}: a change never ends");
        for keep in std::mem::take(&mut self.revocations) {
            let Keep::Revoked { mut stopped, answer, reply, .. } = keep else { continue };
            assert!(stopped.try_recv().is_ok(), "seed {seed}: a revocation is never answered");
            reply.ok(answer);
        }
        self.take_answers();
        let unanswered = self.waiting.first().map(|waiting| &waiting.request);
        assert_eq!(unanswered, None, "seed {seed}: it is never answered");
        self.compare();
    }

    /// Compares what is desired with what there is.
    fn compare(&self) {
        let seed = self.seed;
        let (node, desired) = (self.control.state().node(), self.control.state().desired());
        let (state, shortfall): (&DesiredState, _) = (desired.state(), desired.shortfall());
        for (name, service) in &state.services {
            let there = node.service(name).filter(|it| it.state != ServiceState::Stopping);
            let is_there =
                there.is_some_and(|it| self.partial.contains(name) || service.is_version(it));
            let is_told = shortfall.services.contains_key(name);
            assert!(
                is_there || is_told,
                "seed {seed}: {name} is desired, and not there: {there:?}, {service:?}"
            );
        }
        for service in node.services().filter(|it| it.state != ServiceState::Stopping) {
            let is_desired = state.services.contains_key(&service.name);
            assert!(is_desired, "seed {seed}: nobody desires {}", service.name);
        }
        let is_partial = |rule: &DesiredRule| {
            rule.came_with.as_ref().is_some_and(|service| self.partial.contains(service))
        };
        let there = node.numbered_rules().into_iter().map(|(_, rule)| rule);
        let there: Vec<_> = there.filter(|rule| !is_partial(rule)).collect();
        let count = |rules: &[_], rule: &_| rules.iter().filter(|other| *other == rule).count();
        for rule in &there {
            let (have, want) = (count(&there, rule), count(&state.rules, rule));
            assert!(have <= want, "seed {seed}: nobody desires the rule {:?}", rule.spec);
        }
        for rule in state.rules.iter().filter(|rule| !is_partial(rule)) {
            let leads_to = [rule.spec.action.service(), rule.came_with.as_ref()];
            let mut leads_to = leads_to.into_iter().flatten();
            let is_told = leads_to.any(|service| shortfall.services.contains_key(service));
            let reported = shortfall.rules.iter().filter(|(other, _)| other == rule).count();
            let (have, want) = (count(&there, rule), count(&state.rules, rule));
            assert!(
                is_told || have + reported >= want,
                "seed {seed}: missing is the rule {rule:?}"
            );
        }
        let sessions: BTreeMap<_, _> = node.sessions().map(|it| (&it.name, it)).collect();
        for session in node.sessions().filter(|it| !it.is_built_in()) {
            let (name, is_leaving) = (&session.name, session.leaving);
            assert!(!is_leaving, "seed {seed}: the session {name} never ends");
            let is_desired = state.sessions.contains_key(name);
            assert!(is_desired, "seed {seed}: nobody desires the session {name}");
        }
        for (name, session) in &state.sessions {
            let there = sessions.get(name);
            let is_kept = there.is_some_and(|it| session == &DesiredSession::from(*it));
            let is_told = shortfall.sessions.contains_key(name);
            assert!(is_kept || is_told, "seed {seed}: the session {name} is not as desired");
        }
    }
}

/// Returns true when what runs of a service is another version than is recorded, or has other
/// rules.
fn is_partial(control: &Control, service: &Name) -> bool {
    let (node, desired) = (control.node(), control.state().desired().state());
    let (Some(there), Some(version)) = (node.service(service), desired.services.get(service))
    else {
        return false;
    };
    let is_its = |rule: &&DesiredRule| rule.came_with.as_ref() == Some(service);
    let rules = node.numbered_rules().into_iter().map(|(_, rule)| rule);
    let rules: Vec<_> = rules.filter(|rule| is_its(&rule)).collect();
    !version.is_version(there) || !desired.rules.iter().filter(is_its).eq(&rules)
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
fn in_any_history_each_desired_object_exists_or_is_reported_missing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    for seed in seeds() {
        let mut world = World::new(seed, store.clone());
        (0..STEPS).for_each(|_| world.step());
        world.finish();
    }
}
