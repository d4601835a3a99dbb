//! Start of a node: it follows its journal, or, at the first start and after a change of the file,
//! its node file.
//!
//! | journal | node file | then |
//! |---|---|---|
//! | new | | the file's state is recorded |
//! | has a state | wants what it wanted when it was last followed | the journal's |
//! | has a state | wants something else | the file's, recorded |
//! | waits for a confirmation | | the state before it, recorded |
//!
//! A part that does not start is reported and tried again; it stays desired.

use super::text::Found;
use super::{Goal, Named, Purpose, fingerprint, resolve};
use crate::config::NodeFile;
use crate::control::action::Action;
use crate::control::desired::Desired;
use crate::control::recording::Facts;
use crate::control::state::NodeState;
use crate::demand::fetch_for_start;
use crate::deploy::Module;
use crate::journal::{Journal, Record};
use crate::life::open_store;
use abi::Level;
use anyhow::{Context, Result};
use module_store::Store;
use node::command::Memory;
use node::desired::{DesiredState, Location, check};
use node::{Command, ModuleInfo};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use units::{Name, Nanos};

/// Pause before what did not start is tried again; it doubles up to the longest.
const RETRY_PAUSE_MIN: Nanos = Nanos::from_millis(1_000);
const RETRY_PAUSE_MAX: Nanos = Nanos::from_millis(60_000);
/// Items that a resume leaves out one by one when the node cannot have its state as it is. With
/// more of them missing the operator has to decide.
const UNFIT_MAX: usize = 64;

/// Opens a node's journal and decides what shall run. `config` is the node file's path.
pub(crate) fn open(file: &NodeFile, config: &Path, store: &Store) -> Result<Desired> {
    let journal = Journal::open(&file.state, &file.name)?;
    let newest = journal.newest()?;
    let followed = journal.node_file()?;
    let fingerprint = fingerprint(&file.wanted);
    let back = match &newest {
        Some(Record { head, .. }) => head.unconfirmed_over.map(|to| (to, journal.read(to))),
        None => None,
    };
    let mut desired = Desired::new(journal, newest);
    desired.follow(fingerprint.clone());
    if followed.as_ref() != Some(&fingerprint) {
        desired.set_fetched(fetch_for_start(file, config, store)?);
        let wanted = wanted_by_file(file, config, store, Keep::InStore)?;
        let cause = format!("node file {}", config.display());
        if followed.is_some() {
            tracing::info!(file = %config.display(), "the node file wants something new: it is followed");
        }
        let facts = Facts { node_file: Some(fingerprint), ..Facts::of(cause) };
        let wanted = wanted.with_owned_of(desired.state());
        desired.write_now(wanted, &facts)?;
    } else if let Some((to, record)) = back {
        let state =
            record.context("going back to the state before the one that nobody confirmed")?.state;
        let state = state.with_owned_of(desired.state());
        tracing::warn!(
            generation = to,
            "the node ended before its state was confirmed (`tam confirm`): it goes back to the state before"
        );
        desired.write_now(
            state,
            &Facts::of(format!("not confirmed before a restart: back to generation {to}")),
        )?;
    }
    Ok(desired)
}

/// Checks what a node file wants, if it is not what was `followed` last: before a daemon that runs
/// is asked to leave its place. A file is not checked that names modules which have yet to come.
///
/// # Errors
/// The first mistake, with its place.
pub(crate) fn check_wanted(file: &NodeFile, config: &Path, followed: &str) -> Result<()> {
    if fingerprint(&file.wanted) == followed {
        return Ok(());
    }
    let store = open_store(file)?;
    let modules = file.wanted.services.iter().map(|service| &service.get_ref().module);
    let mut digests = modules.filter_map(|module| module.get_ref().parse().ok());
    if digests.any(|digest| !store.has(&digest)) {
        return Ok(());
    }
    wanted_by_file(file, config, &store, Keep::Nowhere).map(drop)
}

/// Destination of the modules that a node file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    InStore,
    Nowhere,
}

/// The state that a node file asks for.
fn wanted_by_file(
    file: &NodeFile,
    config: &Path,
    store: &Store,
    keep: Keep,
) -> Result<DesiredState> {
    let beside = config.parent().unwrap_or_else(|| Path::new("."));
    let held = RefCell::new(BTreeMap::new());
    let put = |module: &str| {
        let path = beside.join(module);
        let wasm = std::fs::read(&path)
            .map_err(|error| format!("reading the module {}: {error}", path.display()))?;
        let checked = Module::check(wasm).map_err(|problem| problem.to_string())?;
        let digest = module_store::Digest::of(&checked.wasm);
        let unstored = Some(ModuleInfo::of(digest.to_string(), &checked.checked));
        held.borrow_mut().insert(digest, checked);
        Ok(Found { digest: digest.to_string(), unstored })
    };
    let modules = Named { store, held: &BTreeMap::new(), find: &put };
    let resolved = resolve(&file.wanted, &modules)?;
    // What the node has to give is known when its ports are there; a session for which it is too
    // little comes without a promise then.
    resolved.check(&file.ports, None, &file.wanted)?;
    let modules = held.take().into_values().filter(|_| keep == Keep::InStore);
    for module in modules {
        store
            .put(&module.wasm, &module.checked.manifest)
            .context("storing a module of the node file")?;
    }
    Ok(resolved.state)
}

/// Schedule of the tries to start what is desired and not there.
#[derive(Debug)]
pub(crate) struct Resumption {
    /// Time of the next try.
    at: Option<Nanos>,
    /// Pause before the try after that.
    pause: Nanos,
    /// True until the daemon's first try, which meets what a daemon before left.
    is_first: bool,
}

impl Default for Resumption {
    fn default() -> Self {
        Self { at: None, pause: RETRY_PAUSE_MIN, is_first: true }
    }
}

impl Resumption {
    /// Returns the time of the next try.
    pub(crate) const fn poll_timeout(&self) -> Option<Nanos> {
        self.at
    }

    /// Schedules the next try for now.
    pub(crate) fn hasten(&mut self, now: Nanos) {
        self.at = Some(now);
    }

    /// Handles the time of a try. Returns true when it is to be made: the node is idle, and
    /// something is missing.
    pub(crate) fn handle_timeout(&mut self, now: Nanos, is_idle: bool, is_short: bool) -> bool {
        self.at = (!is_idle).then(|| now + RETRY_PAUSE_MIN);
        is_idle && is_short
    }

    /// Handles the end of a try, or of another change that left something missing if `is_short`.
    pub(crate) fn handle_ended(&mut self, now: Nanos, is_short: bool) {
        if !is_short {
            return;
        }
        self.at = Some(now + self.pause);
        self.pause = Nanos(self.pause.0.saturating_mul(2)).min(RETRY_PAUSE_MAX);
    }

    /// Returns the goal of the work that starts what shall run and does not. What cannot start is
    /// left out, with the reason.
    pub(crate) fn goal(&mut self, state: &mut NodeState) -> Goal {
        let fetched = state.desired.take_fetched();
        if !fetched.is_empty() {
            state.push(Action::BillFetched(fetched));
        }
        // Also of what cannot start, and of a daemon before, which did not write that down.
        let desired = DesiredState::clone(state.desired.state());
        state.node.await_rules(&desired);
        let mut target = desired.clone();
        target.bpf &= state.below().is_allowed;
        *state.desired.shortfall_mut() = Default::default();
        let mut modules = BTreeMap::new();
        for (name, service) in &desired.services {
            match state.hold(&service.digest) {
                Ok(module) => drop(modules.insert(service.digest.clone(), module)),
                Err(problem) => leave_out(state, &mut target, name, problem.message),
            }
        }
        if !state.desired.shortfall().services.is_empty() {
            state.push(Action::FetchMissing);
        }
        for _ in 0..UNFIT_MAX {
            let checked = check(&state.file.ports, state.node.capacity(), &target, &modules);
            let Err(fault) = checked else { break };
            let reason = fault.refusal.to_string();
            match fault.location {
                Location::Session(name) => leave_short(state, &mut target, name, reason),
                Location::Service(name) | Location::Edges(name) => {
                    leave_out(state, &mut target, &name, reason);
                }
                Location::Rule(at) => {
                    let rule = target.rules.remove(at);
                    tracing::error!(rule = %rule.spec.r#match, reason, "a rule of the desired state cannot be installed and is left out");
                    state.desired.shortfall_mut().rules.push((rule, reason));
                }
                Location::Whole => break,
            }
        }
        if !state.desired.shortfall().is_any() {
            self.pause = RETRY_PAUSE_MIN;
        }
        if std::mem::take(&mut self.is_first) {
            take_moves_back(state, &target);
        }
        let (services, rules) = (target.services.len(), target.rules.len());
        if services + rules > 0 {
            let generation = state.desired.generation();
            tracing::info!(services, rules, generation, "the node resumes");
        }
        let (facts, memory) = (Facts::default(), Memory::KeptIfPossible);
        Goal { target, facts, purpose: Purpose::Resume, memory }
    }
}

/// Moves services back that a daemon before had moved when it ended, without a record of that:
/// no client was notified that they had moved.
fn take_moves_back(state: &mut NodeState, target: &DesiredState) {
    for (name, desired) in &target.services {
        let requested = state.node.requested_level(name);
        let Some(present) = state.node.service(name).filter(|_| requested.is_some()) else {
            continue;
        };
        let mut declared = present.module.manifest.levels.iter().copied();
        let first = || declared.find(|level| *level != Level::Cluster).unwrap_or(Level::User);
        let level = desired.level.unwrap_or_else(first);
        if requested == desired.level || !target.bpf {
            continue;
        }
        tracing::warn!(service = %name, from = %present.level, to = %level, "a move was not recorded before the daemon ended: it is taken back");
        if let Err(problem) = state.command(Command::Move { service: name.clone(), level }) {
            tracing::error!(service = %name, problem = problem.message, "a service could not be moved back and stays where it is");
        }
    }
}

fn leave_out(state: &mut NodeState, target: &mut DesiredState, name: &Name, reason: String) {
    tracing::error!(service = %name, reason, "a service of the desired state cannot start");
    *target = target.restricted_to(|other| other != name);
    state.desired.shortfall_mut().services.insert(name.clone(), reason);
}

/// Leaves out the promise of a session that cannot be promised what it shall be, or else all of it.
fn leave_short(state: &mut NodeState, target: &mut DesiredState, name: Name, reason: String) {
    tracing::error!(session = %name, reason, "a session of the desired state gets no reservation");
    match target.sessions.get_mut(&name) {
        Some(session) if session.reservation != Default::default() => {
            session.reservation = Default::default();
        }
        _ => target.remove_session(&name),
    }
    state.desired.shortfall_mut().sessions.insert(name, reason);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::change::Change;
    use crate::control::testbed::{MODULES, Testbed, digest, name};
    use api::DeployRequest;
    use node::{Effect, Event};
    use std::path::PathBuf;

    #[test]
    fn tries_come_at_growing_pauses_and_none_in_the_middle_of_a_change() {
        let mut tries = Resumption::default();
        let mut now = Nanos::ZERO;
        tries.handle_ended(now, false);
        assert_eq!(tries.poll_timeout(), None, "nothing is missing");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            tries.handle_ended(now, true);
            let at = tries.poll_timeout().unwrap();
            pauses.push(at.saturating_sub(now).as_millis() / 1000);
            now = at;
            assert!(tries.handle_timeout(now, true, true));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(tries.poll_timeout(), None, "the try sets the next one");
        assert!(!tries.handle_timeout(now, false, true), "a change is under way");
        assert_eq!(tries.poll_timeout(), Some(now + RETRY_PAUSE_MIN));
        tries.hasten(now);
        assert!(!tries.handle_timeout(now, true, false), "it came meanwhile");
        assert_eq!(tries.poll_timeout(), None);
    }

    #[test]
    fn a_move_that_a_daemon_before_did_not_record_is_taken_back_whether_it_was_done_or_not() {
        for is_done in [true, false] {
            let mut bed = Testbed::new();
            bed.run("monitor");
            let (service, entry) = (name("monitor"), bed.entry("monitor"));
            let first = bed.control.node().service(&service).unwrap().module.manifest.levels[0];
            // Of a daemon that is killed before the move is recorded.
            let there = if first == Level::Kernel { Level::Nic } else { Level::Kernel };
            let moves = Command::Move { service: service.clone(), level: there };
            bed.control.state_mut().command(moves).unwrap();
            if is_done {
                let reason = String::new();
                bed.event(Event::ServicePlaced { entry, level: there, reason, movable: true });
            }
            bed.effects.clear();
            let _goal = Resumption::default().goal(bed.control.state_mut());
            assert_eq!(bed.control.node().requested_level(&service), Some(first));
            bed.settle();
            let back = Effect::MoveService { entry, level: first };
            assert!(bed.effects.contains(&back), "{is_done}: {:?}", bed.effects);
            assert!(!bed.is_writing(), "the state said so all the time");
        }
    }

    #[test]
    fn a_service_that_a_killed_daemon_left_starting_gets_its_rules_once_it_runs() {
        let mut recorded = Testbed::new();
        let rules = vec!["proto udp dport 7".to_owned()];
        let request = crate::control::testbed::deploy("monitor", 4);
        let request = DeployRequest { rules, ..request };
        let _answer = recorded.ask(|reply| Change::Deploy(Box::new(request), reply));
        recorded.starts("monitor");
        recorded.write_all();
        let state = DesiredState::clone(recorded.control.state().desired().state());
        assert_eq!(state.rules.len(), 1);
        for starts in [true, false] {
            // The journal has the state, and the record of what runs is of before the start.
            let mut bed = Testbed::new();
            let desired = state.services[&name("monitor")].clone();
            let module = bed.control.state_mut().hold(&desired.digest).unwrap();
            let deploy = Command::Deploy {
                service: name("monitor"),
                module,
                parameters: desired.parameters,
                session: desired.session,
                rules: Vec::new(),
                level: None,
                then: Vec::new(),
                budget: desired.budget,
                on_failure: desired.on_failure,
                discard_state: false,
                owner: desired.owner,
            };
            bed.control.state_mut().command(deploy).unwrap();
            bed.desire(state.clone());
            let missing = |bed: &Testbed| bed.control.state().desired().shortfall().is_any();
            assert!(bed.control.is_busy() && !missing(&bed), "its start is waited for");
            if starts {
                bed.starts("monitor");
                assert_eq!(bed.control.node().numbered_rules().len(), 1);
                assert!(!bed.control.is_busy() && !missing(&bed));
            } else {
                let (entry, reason) = (bed.entry("monitor"), "it traps".to_owned());
                bed.event(Event::ServiceFailed { entry, reason });
                assert!(!bed.control.is_busy() && missing(&bed), "it is reported and tried again");
            }
        }
    }

    #[test]
    fn resumed_services_at_their_wanted_or_best_possible_level_are_not_moved() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        bed.effects.clear();
        let _goal = Resumption::default().goal(bed.control.state_mut());
        bed.settle();
        let moves = bed.effects.iter().filter(|it| matches!(it, Effect::MoveService { .. }));
        assert_eq!(moves.count(), 0, "user level was all that it got");
    }

    /// Directory of a node, and its journal opened as at a start.
    struct Place {
        folder: tempfile::TempDir,
        store: Store,
    }

    const DROP: &str = "[[rule]]\nmatch = \"proto udp\"\naction = \"drop\"\n";

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path().join("store")).unwrap();
            Self { folder, store }
        }

        /// Returns the path of its node file.
        fn config(&self) -> PathBuf {
            self.folder.path().join("node.toml")
        }

        /// Returns a node file of these lines.
        fn file(&self, lines: &str) -> NodeFile {
            let at = self.folder.path().display();
            let text = format!(
                "name = \"r1\"\nstore = \"{at}/store\"\nstate = \"{at}/r1\"\n{lines}\n\
                 [[port]]\nname = \"left\"\ndevice = \"eth1\"\n"
            );
            NodeFile::parse(&text, "node.toml").unwrap()
        }

        /// Starts a node with a file of these lines. Returns what its journal has then.
        fn start(&self, lines: &str) -> Result<Desired, String> {
            let opened = open(&self.file(lines), &self.config(), &self.store);
            opened.map_err(|error| format!("{error:#}"))
        }

        /// Starts a node; returns generation, number of rules, and cause of the newest generation.
        fn started(&self, lines: &str) -> (u64, usize, String) {
            let desired = self.start(lines).unwrap();
            let journal = desired.journal();
            let head = journal.lock().unwrap().list().unwrap().remove(0).1;
            (desired.generation(), desired.state().rules.len(), head.cause)
        }
    }

    fn caused(place: &Place) -> String {
        format!("node file {}", place.config().display())
    }

    /// Writes what a command has changed, or an apply that waits for its confirmation.
    fn write(place: &Place, rules: usize, over: Option<u64>) {
        let mut journal =
            Journal::open(&place.folder.path().join("r1"), &Name::new("r1").unwrap()).unwrap();
        let newest = journal.newest().unwrap().unwrap();
        let mut state = DesiredState::default();
        let rule = node::RuleSpec::new("proto tcp".parse().unwrap(), node::Action::Drop);
        state.add_rules(vec![rule; rules], None);
        let mut record = Record::new(newest.generation + 1, "rule add", state);
        record.head.unconfirmed_over = over;
        journal.write(&record, None, None).unwrap();
    }

    #[test]
    fn a_node_file_is_applied_at_start_only_when_it_has_changed() {
        let place = Place::new();
        assert_eq!(place.started(DROP), (1, 1, caused(&place)));
        write(&place, 3, None);
        assert_eq!(place.started(DROP), (2, 3, "rule add".to_owned()), "what commands changed");
        let commented = format!("# the same\n{DROP}");
        assert_eq!(place.started(&commented), (2, 3, "rule add".to_owned()));
        assert_eq!(place.started(&format!("{DROP}{DROP}")), (3, 2, caused(&place)));
        assert_eq!(place.started(DROP), (4, 1, caused(&place)), "as it was at first is new, too");
        assert_eq!(place.started(DROP), (4, 1, caused(&place)));
    }

    #[test]
    fn what_was_not_confirmed_before_the_end_is_taken_back_unless_the_file_is_followed() {
        let place = Place::new();
        place.started(DROP);
        write(&place, 3, Some(1));
        let cause = "not confirmed before a restart: back to generation 1".to_owned();
        assert_eq!(place.started(DROP), (3, 1, cause.clone()));
        assert_eq!(place.started(DROP), (3, 1, cause), "once");
        write(&place, 5, Some(3));
        assert_eq!(place.started(&format!("{DROP}{DROP}")), (5, 2, caused(&place)));
        write(&place, 5, Some(77));
        let said = place.start(&format!("{DROP}{DROP}")).err().unwrap();
        let says = "going back to the state before the one that nobody confirmed: there is no generation 77";
        assert!(said.starts_with(says), "{said}");
    }

    #[test]
    fn a_file_with_a_mistake_stops_the_start_and_nothing_is_recorded() {
        let place = Place::new();
        place.started(DROP);
        std::fs::write(place.folder.path().join("broken.wasm"), b"\x7fELF").unwrap();
        let rule = DROP.replace("proto udp", "in middle");
        for (lines, place_of, says) in [
            ("[[service]]\nmodule = \"nosuch\"", "line 5, column 10", "nosuch"),
            ("[[service]]\nmodule = \"./nosuch.wasm\"", "line 5, column 10", "reading the module"),
            ("[[service]]\nmodule = \"./broken.wasm\"", "line 5, column 10", "ELF"),
            (rule.as_str(), "line 4, column 1", "middle"),
        ] {
            let said = place.start(lines).err().unwrap();
            assert!(
                said.contains(&format!("node.toml, {place_of}")) && said.contains(says),
                "{said}"
            );
        }
        assert_eq!(place.started(DROP), (1, 1, caused(&place)));
    }

    #[test]
    fn a_changed_node_file_is_checked_before_the_running_daemon_hands_over() {
        let place = Place::new();
        let check = |lines: &str, followed: &str| {
            let checked = check_wanted(&place.file(lines), &place.config(), followed);
            checked.map_err(|error| format!("{error:#}"))
        };
        let wrong = DROP.replace("proto udp", "in middle");
        let said = check(&wrong, "").unwrap_err();
        assert!(said.starts_with("node.toml, line 4, column 1: ") && said.contains("middle"));
        let followed = fingerprint(&place.file(&wrong).wanted);
        assert_eq!(check(&wrong, &followed), Ok(()), "it runs already, or is left out");
        let absent = module_store::Digest::of(b"nothing");
        let fetched = format!("{wrong}[[service]]\nmodule = \"{absent}\"\n");
        assert_eq!(check(&fetched, ""), Ok(()), "known when its module has come");
        std::fs::write(place.folder.path().join("new.wasm"), &MODULES[0].wasm).unwrap();
        let beside = "[[service]]\nmodule = \"./new.wasm\"\n";
        assert_eq!(check(beside, ""), Ok(()));
        let said = check(&format!("{beside}parameters = {{ a = 1 }}"), "").unwrap_err();
        assert!(said.contains("line 6, column 14: ") && said.contains("no parameter"), "{said}");
        assert!(!place.store.has(&digest(&MODULES[0])));
        place.start(beside).unwrap();
        assert!(place.store.has(&digest(&MODULES[0])), "one that starts keeps it");
    }

    #[test]
    fn what_a_node_cannot_have_when_it_starts_is_left_out_with_the_reason_and_stays_desired() {
        use node::desired::{DesiredRule, DesiredService, DesiredSession};
        let mut bed = Testbed::new();
        let mut state = DesiredState::default();
        let gold = session::Reservation {
            processors: vec!["1ms/4ms".parse().unwrap()],
            ..session::Reservation::default()
        };
        state.set_session(name("gold"), DesiredSession { reservation: gold, owner: None });
        let service = |digest: String| DesiredService {
            digest,
            parameters: BTreeMap::new(),
            session: name("gold"),
            level: None,
            then: BTreeMap::new(),
            budget: Default::default(),
            on_failure: Default::default(),
            owner: None,
            functions: abi::HostFunctions::ALL,
        };
        let absent = module_store::Digest::of(b"nothing");
        let rules = |text: &str, to: &str| {
            let to = node::Action::Service(name(to));
            let mut rule = node::RuleSpec::new(text.parse().unwrap(), to);
            rule.session = name("gold");
            vec![rule]
        };
        state.deploy(
            name("good"),
            service(digest(&MODULES[0]).to_string()),
            rules("proto udp", "good"),
        );
        state.deploy(name("lost"), service(absent.to_string()), rules("proto tcp", "lost"));
        let nowhere = node::RuleSpec::new("in middle".parse().unwrap(), node::Action::Drop);
        state.rules.push(DesiredRule { spec: nowhere, came_with: None, owner: None });
        bed.control.set_capacity(session::admission::Capacity::default());
        bed.desire(state.clone());
        bed.starts("good");
        let desired = bed.control.state().desired();
        let missing = desired.shortfall();
        assert_eq!(missing.services.keys().collect::<Vec<_>>(), [&name("lost")]);
        assert!(missing.services[&name("lost")].contains(&absent.to_string()));
        assert_eq!(missing.sessions.keys().collect::<Vec<_>>(), [&name("gold")]);
        assert_eq!(missing.rules.len(), 1, "{:?}", missing.rules);
        assert!(missing.rules[0].1.contains("'middle'"), "{}", missing.rules[0].1);
        assert_eq!(**desired.state(), state, "all of it stays desired");
        let node = bed.control.node();
        assert!(node.service(&name("good")).is_some() && node.service(&name("lost")).is_none());
        let gold = node.session(&name("gold")).unwrap();
        assert_eq!(gold.reservation, session::Reservation::default(), "it is promised nothing");
        let rules = node.numbered_rules();
        let [(_, rule)] = rules.as_slice() else { panic!("{rules:?}") };
        assert_eq!(rule.spec.r#match.to_string(), "proto udp");
        let waiting =
            super::super::shown_desired(&bed.control.state().file, desired, Nanos::ZERO).waiting;
        let what: Vec<&str> = waiting.iter().map(|it| it.what.as_str()).collect();
        let says = [
            "what session gold shall be promised",
            "service lost",
            "rule in middle -> drop, priority 100, session best-effort, stage service",
        ];
        assert_eq!(what, says);
        assert!(bed.actions.iter().any(|it| matches!(it, Action::FetchMissing)));
        assert!(bed.control.resumes_at().is_some(), "it is tried again");
    }
}
