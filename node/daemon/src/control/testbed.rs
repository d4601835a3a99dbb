//! Control plane without a kernel, a process or a socket, for tests: what it asks for is kept until
//! the test says how it ends.

use super::Control;
use super::action::{Action, DeployedAnswer};
use super::change::Change;
use super::desired::{Desired, JournalWrite};
use super::modules::Modules;
use super::recording::Facts;
use super::state::{self, Below, NodeState};
use crate::access::{Caller, Gate};
use crate::answer::failed;
use crate::config::NodeFile;
use crate::deploy::Module;
use crate::events::Note;
use crate::journal::Journal;
use crate::reply::{Awaited, Reply};
use abi::Level;
use api::{DeployRequest, ErrorInfo};
use module_store::{Digest, Store};
use node::desired::DesiredState;
use node::{Effect, Event, Node};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, LazyLock};
use trust::{Extent, Grant, SecretKey, Seed, Token};
use units::{EntryId, Name, Nanos};

const FILE: &str = r#"
name = "r1"
store = "/nowhere/store"
state = "/nowhere/r1"
[[port]]
name = "left"
device = "eth1"
[[port]]
name = "right"
device = "eth2"
[trust]
unsigned = "accept"
"#;

/// Modules of all tests: two versions for each set of levels.
pub(crate) static MODULES: LazyLock<Vec<Module>> = LazyLock::new(|| {
    let levels = [r#"\"user\""#, r#"\"nic\", \"user\""#, r#"\"kernel\", \"nic\", \"user\""#];
    let of = |(number, levels): (usize, &str)| {
        [1, 2].map(|version| {
            let manifest = format!(
                r#"abi = 1\nname = \"m{number}\"\nversion = \"0.{version}.0\"\nwindow = 64\nlevels = [{levels}]\n"#
            );
            let text = format!(
                r#"(module (@custom "tamandua" "{manifest}") (memory (export "memory") 1)
                (func (export "on_packet") (result i32) (i32.const 0)))"#
            );
            Module::check(wat::parse_str(text).unwrap()).unwrap()
        })
    };
    levels.into_iter().enumerate().flat_map(of).collect()
});

/// Token with a capability for everything, and its ID.
static TOKEN: LazyLock<(String, String)> = LazyLock::new(|| {
    let token = Token::mint(&key(1), key(2).public(), &Grant::all(), &Seed::new([9; 32]));
    let held = token.unwrap().held().unwrap().to_string();
    let holder = Gate::new(vec![key(1).public()], false).holder(&held).unwrap();
    (held, holder.ids[0].to_string())
});

/// Returns the key of a number: 1 is the administrator's.
pub(crate) fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::new([number; 32]))
}

/// Returns a client whose token the administrator has signed for this principal, and each holder
/// has narrowed to one of these grants in turn.
pub(crate) fn client(principal: u8, grant: &Grant, narrowed: &[Grant]) -> Caller {
    let token = Token::mint(&key(1), key(principal).public(), grant, &Seed::new([9; 32]));
    let mut held = token.unwrap().held().unwrap();
    for to in narrowed {
        held = held.narrow(to, &Seed::new([8; 32])).unwrap();
    }
    held_by(&held.to_string())
}

/// Returns the client that shows a token. Its evaluation has a limit of time, which a machine that
/// is busy with other tests may exceed once.
fn held_by(token: &str) -> Caller {
    let gate = Gate::new(vec![key(1).public()], false);
    let tries = std::iter::repeat_with(|| gate.holder(token)).take(10);
    Caller::Holder(tries.reduce(|before, next| before.or(next)).unwrap().unwrap())
}

/// Returns a client with a capability for everything, of which no time has been used.
pub(crate) fn holder() -> Caller {
    held_by(&TOKEN.0)
}

/// Returns another client, with a capability for things of one session.
pub(crate) fn holder_in(session: &str) -> Caller {
    let sessions = Extent::Only(BTreeSet::from([session.to_owned()]));
    let grant = Grant { sessions, ..Grant::all() };
    let owner = SecretKey::from_seed(&Seed::new([session.as_bytes()[0]; 32])).public();
    let token = Token::mint(&key(1), owner, &grant, &Seed::new([8; 32])).unwrap();
    let held = token.held().unwrap().to_string();
    held_by(&held)
}

/// Returns the token of [`holder`] as it is shown, the key that it is for, and the administrator's.
pub(crate) fn token() -> (&'static str, SecretKey, SecretKey) {
    (&TOKEN.0, key(2), key(1))
}

/// Returns the ID of the token of [`holder`], by which it is revoked.
pub(crate) fn token_id() -> &'static str {
    &TOKEN.1
}

/// Returns a module's digest.
pub(crate) fn digest(module: &Module) -> Digest {
    Digest::of(&module.wasm)
}

/// Returns a name.
pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Creates the control plane of a node with nothing on it; all of [`MODULES`] are in memory.
pub(crate) fn control(store: Store) -> Control {
    let file = Arc::new(NodeFile::parse(FILE, "node.toml").unwrap());
    let mut node = Node::new(file.name.clone(), file.ports.clone()).unwrap();
    node.handle_timeout(Nanos::ZERO);
    let desired = Desired::new(Journal::in_memory(&file.name), None);
    let authority = desired.authority(Nanos::ZERO, BTreeSet::new()).unwrap();
    let mut modules = Modules::new(store, &file.trust);
    MODULES.iter().for_each(|module| modules.insert(digest(module), module.clone()));
    Control::new(NodeState::new(state::Parts {
        file,
        config: "/nowhere/node.toml".into(),
        key: key(7).public(),
        node,
        desired,
        authority,
        modules,
        below: Below { unsupported: None, is_allowed: true },
    }))
}

/// Control plane with a cell, and everything that it has asked for.
pub(crate) struct Testbed {
    pub(crate) control: Control,
    pub(crate) effects: Vec<Effect>,
    pub(crate) notes: Vec<Note>,
    /// Other actions that no test has taken.
    pub(crate) actions: Vec<Action>,
    pub(crate) deployed: Vec<DeployedAnswer>,
    writes: VecDeque<JournalWrite>,
    now: Nanos,
    _folder: tempfile::TempDir,
}

impl Testbed {
    /// Creates a node that has started, with a cell, and nothing on it.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut bed = Self {
            control: control(Store::open(folder.path()).unwrap()),
            effects: Vec::new(),
            notes: Vec::new(),
            actions: Vec::new(),
            deployed: Vec::new(),
            writes: VecDeque::new(),
            now: Nanos::ZERO,
            _folder: folder,
        };
        bed.control.resume();
        bed.control.handle_timeout();
        bed.settle();
        bed
    }

    /// Desires a state as a node that starts does, as far as the node has its modules.
    pub(crate) fn desire(&mut self, state: DesiredState) {
        let desired = &mut self.control.state_mut().desired;
        desired.write_now(state, &Facts::of("a test")).unwrap();
        self.control.resume();
        self.settle();
    }

    /// Lets time pass, in milliseconds.
    pub(crate) fn wait(&mut self, ms: u64) {
        self.now += Nanos::from_millis(ms);
        self.control.set_now(self.now);
        self.control.handle_timeout();
        self.settle();
    }

    /// Does everything that is pending, until nothing is left but what the test says.
    pub(crate) fn settle(&mut self) {
        loop {
            match self.control.poll_action() {
                Some(Action::Effect(Effect::StartCell { .. })) => {
                    self.control.handle_event(Event::CellReady, false);
                }
                Some(Action::Effect(effect)) => self.effects.push(effect),
                Some(Action::Write(write)) => self.writes.push_back(write),
                Some(Action::Note(note)) => self.notes.push(note),
                Some(Action::AnswerDeployed(answer)) => self.deployed.push(*answer),
                Some(action) => self.actions.push(action),
                None if self.control.advance() => {}
                None => return,
            }
        }
    }

    /// Makes a change for a client, and does what follows.
    pub(crate) fn ask_as<T>(
        &mut self,
        caller: &Caller,
        change: impl FnOnce(Reply<T>) -> Change,
    ) -> Awaited<T> {
        let (reply, awaited) = Reply::pair();
        self.control.handle_change(caller.clone(), change(reply));
        self.settle();
        awaited
    }

    /// Makes a change for the operator, and does what follows.
    pub(crate) fn ask<T>(&mut self, change: impl FnOnce(Reply<T>) -> Change) -> Awaited<T> {
        self.ask_as(&Caller::Operator, change)
    }

    /// Makes and records a change for the operator, and returns its answer.
    pub(crate) fn made<T>(&mut self, change: impl FnOnce(Reply<T>) -> Change) -> T {
        let mut awaited = self.ask(change);
        self.write_all();
        awaited.try_answer().expect("it is answered").map_err(|it| it.message).unwrap()
    }

    /// Makes a change for the operator, and returns its refusal.
    pub(crate) fn refused<T>(&mut self, change: impl FnOnce(Reply<T>) -> Change) -> ErrorInfo {
        let mut awaited = self.ask(change);
        awaited.try_answer().expect("it is answered").err().expect("it is refused")
    }

    /// Completes the next write of the desired state.
    pub(crate) fn write(&mut self) {
        let written = self.writes.pop_front().expect("something is to be recorded").run();
        self.control.handle_recorded(written);
        self.settle();
    }

    /// Writes everything that is to be recorded.
    pub(crate) fn write_all(&mut self) {
        while !self.writes.is_empty() {
            self.write();
        }
    }

    /// Makes the next write of the desired state fail.
    pub(crate) fn fail_write(&mut self) {
        assert!(self.writes.pop_front().is_some(), "something is to be recorded");
        self.control.handle_recorded(Err(failed("no space left on device; nothing has changed")));
        self.settle();
    }

    /// Returns true while something is being recorded.
    pub(crate) fn is_writing(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Has cells or the data plane report an event.
    pub(crate) fn event(&mut self, event: Event) {
        self.control.handle_event(event, false);
        self.settle();
    }

    /// Returns a service's entry.
    pub(crate) fn entry(&self, service: &str) -> EntryId {
        self.control.node().service(&name(service)).expect("it is there").entry
    }

    /// Returns a service's level, if the node has it.
    pub(crate) fn level(&self, service: &str) -> Option<Level> {
        self.control.node().service(&name(service)).map(|it| it.level)
    }

    /// Starts a service in the cell.
    pub(crate) fn starts(&mut self, service: &str) {
        let entry = self.entry(service);
        self.event(Event::ServicePlaced {
            entry,
            level: Level::User,
            reason: String::new(),
            movable: true,
        });
        self.event(Event::ServiceStarted { entry });
    }

    /// Stops a service in the cell.
    pub(crate) fn stops(&mut self, service: &str) {
        let entry = self.entry(service);
        self.event(Event::ServiceStopped { entry });
    }

    /// Runs and records the operator's service: the third module, which may run everywhere.
    pub(crate) fn run(&mut self, service: &str) {
        let _answer = self.ask(|reply| Change::Deploy(Box::new(deploy(service, 4)), reply));
        self.starts(service);
        self.write_all();
    }

    /// Returns true when a service shall run.
    pub(crate) fn is_desired(&self, service: &str) -> bool {
        self.control.state().desired().state().services.contains_key(&name(service))
    }

    /// Returns the number of desired rules.
    pub(crate) fn desired_rules(&self) -> usize {
        self.control.state().desired().state().rules.len()
    }
}

/// Returns the request for a service of the module of a number.
pub(crate) fn deploy(service: &str, module: usize) -> DeployRequest {
    DeployRequest {
        module: digest(&MODULES[module]).to_string(),
        name: Some(service.to_owned()),
        discard_state: true,
        ..DeployRequest::default()
    }
}
