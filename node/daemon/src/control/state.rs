//! State that all changes read and modify: `core/node`, the desired state, capabilities and
//! modules. Effects are queued as actions, in order.

use super::action::{Action, Keep};
use super::authority::{Authority, capabilities_in_use};
use super::desired::Desired;
use super::edit::Edit;
use super::modules::Modules;
use super::recorded::Recorded;
use super::recording::Facts;
use crate::access::Caller;
use crate::answer::{Answer, error, failed, no_service, refused};
use crate::config::NodeFile;
use crate::events::Note;
use abi::Level;
use api::{ErrorCode, EventKind};
use cell::Compiled;
use ledger::Account;
use module_store::Digest;
use node::{Command, Effect, Event, ModuleInfo, Node, Notice, Outcome, Owner, Refusal, Service};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trust::{Operation, PublicKey, UnixTime};
use units::{EntryId, Name, Nanos, RuleId};

/// Limits of the levels below user, beside the node's own switch.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    /// Reason for nothing being able to run there on this machine.
    pub(crate) unsupported: Option<String>,
    /// Set if the option of the daemon's start allows the levels below user.
    pub(crate) is_allowed: bool,
}

/// Parts that the state is made of.
pub(crate) struct Parts {
    pub(crate) file: Arc<NodeFile>,
    /// The node file's path.
    pub(crate) config: PathBuf,
    /// Public key of the node.
    pub(crate) key: PublicKey,
    pub(crate) node: Node,
    pub(crate) desired: Desired,
    pub(crate) authority: Authority,
    pub(crate) modules: Modules,
    pub(crate) below: Below,
}

/// Queued consequence of a change.
pub(super) enum Queued {
    Action(Action),
    /// Report of `core/node`. `is_short` states that a refusal in it is due to a lack of resources.
    Notice {
        notice: Notice,
        is_short: bool,
    },
}

/// State of the node, and the actions that follow from its changes.
pub(crate) struct NodeState {
    pub(super) file: Arc<NodeFile>,
    config: PathBuf,
    key: PublicKey,
    now: Nanos,
    pub(super) node: Node,
    pub(super) desired: Desired,
    pub(super) authority: Authority,
    pub(super) modules: Modules,
    below: Below,
    /// Digests that the change under way needs.
    needed: BTreeSet<String>,
    /// Entries at which reusable instances of compiled modules are ready, the newest first.
    reusable: Vec<(Arc<Compiled>, EntryId)>,
    /// Reason for the ledger not being written.
    ledger_problem: Option<String>,
    queue: VecDeque<Queued>,
    /// True when `core/node` was changed since that was last asked.
    is_touched: bool,
    /// Set if a client may have learned of a change since [`NodeState::take_urgent`].
    is_urgent: bool,
}

impl NodeState {
    /// Creates the state of a node; its clock is at zero.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { file, config, key, node, desired, authority, modules, below } = parts;
        Self {
            file,
            config,
            key,
            now: Nanos::ZERO,
            node,
            desired,
            authority,
            modules,
            below,
            needed: BTreeSet::new(),
            reusable: Vec::new(),
            ledger_problem: None,
            queue: VecDeque::new(),
            is_touched: true,
            is_urgent: false,
        }
    }

    /// Returns the node's time, as of this turn.
    pub(crate) const fn now(&self) -> Nanos {
        self.now
    }

    /// Sets the node's time.
    pub(super) fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Returns true when a path is that of the file that the node was started with.
    pub(super) fn is_own_file(&self, path: &str) -> bool {
        let given = Path::new(path).canonicalize();
        given.is_ok_and(|given| self.config.canonicalize().is_ok_and(|own| own == given))
    }

    /// Returns what limits the levels below user.
    pub(super) const fn below(&self) -> &Below {
        &self.below
    }

    /// Allows or forbids the levels below user, as an option of the daemon's start.
    pub(super) fn allow_below(&mut self, is_allowed: bool) {
        self.below.is_allowed = is_allowed;
    }

    /// Returns true when code is made for the levels below user, too, where that is `wanted`.
    pub(crate) fn compiles_below(&self, wanted: bool) -> bool {
        self.below.unsupported.is_none() && self.below.is_allowed && wanted
    }

    /// Returns true when a service that begins now may run below user level.
    pub(crate) fn bpf_now(&self) -> bool {
        self.compiles_below(self.node.bpf())
    }

    /// Sets the entries of ready reusable instances, the newest first.
    pub(super) fn set_reusable(&mut self, reusable: Vec<(Arc<Compiled>, EntryId)>) {
        self.reusable = reusable;
    }

    /// Starts the next service at the entry of a reusable instance of its module.
    pub(super) fn prefer_reusable(&mut self, digest: &Digest) {
        let compiled = self.modules.code(digest, self.bpf_now());
        let is_its = |(code, entry): &&(Arc<Compiled>, EntryId)| {
            compiled.is_some_and(|compiled| Arc::ptr_eq(code, compiled))
                && self.node.service_of(*entry).is_none()
        };
        let entry = self.reusable.iter().find(is_its).map(|(_, entry)| *entry);
        self.node.prefer_entry(entry);
    }

    /// Sets the reason for the ledger not being written, if there is one.
    pub(super) fn set_ledger_problem(&mut self, problem: Option<String>) {
        self.ledger_problem = problem;
    }

    /// Refuses further usage while the ledger cannot bill it.
    pub(super) fn check_billing(&mut self) -> Answer<()> {
        let Some(problem) = self.ledger_problem.clone() else { return Ok(()) };
        // It may be mended by now.
        self.push(Action::Bill);
        let message =
            format!("no new service is taken while the ledger cannot be written: {problem}");
        let help = "what runs goes on and is billed later; make room, or mend what the message says, and try again";
        Err(error(ErrorCode::Failed, message, Some(help)))
    }

    /// Queues an action.
    pub(super) fn push(&mut self, action: Action) {
        self.queue.push_back(Queued::Action(action));
    }

    /// Removes and returns the next consequence. Effects of events are asked of `core/node` when
    /// nothing else is queued: where packets go is computed once for many events.
    pub(super) fn pop(&mut self) -> Option<Queued> {
        if self.queue.is_empty()
            && let Some(effect) = self.node.poll_effect()
        {
            self.queue_effect(effect, false);
        }
        self.queue.pop_front()
    }

    /// Returns whether `core/node` was changed since this was last asked.
    pub(super) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.is_touched)
    }

    /// Returns true, once, if a client may have learned of a change since the last call.
    pub(super) fn take_urgent(&mut self) -> bool {
        std::mem::take(&mut self.is_urgent)
    }

    /// Gives a command to the node.
    ///
    /// # Errors
    /// The node's refusal, for the API.
    pub(super) fn command(&mut self, command: Command) -> Answer<Outcome> {
        self.try_command(command).map_err(|refusal| refused(&refusal))
    }

    fn try_command(&mut self, command: Command) -> Result<Outcome, Refusal> {
        let outcome = self.node.handle_command(self.now, command)?;
        (self.is_touched, self.is_urgent) = (true, true);
        self.queue_effects(false);
        Ok(outcome)
    }

    /// Gives a client's command to the node. What a refusal says of others is left out.
    pub(super) fn command_of(&mut self, caller: &Caller, command: Command) -> Answer<Outcome> {
        let time = self.capability_time();
        self.try_command(command).map_err(|refusal| match &refusal {
            Refusal::OverlapsOther { text, .. }
                if !self.authority.rights(caller, time).reach_everybody(Operation::Read) =>
            {
                let message = format!(
                    "the rule '{text}' can match packets of another principal's rule; a packet is one principal's"
                );
                error(ErrorCode::Refused, message, Some("match fewer packets"))
            }
            _ => refused(&refusal),
        })
    }

    /// Gives an event to the node. Whoever is refused something by it is, if `is_short`, because
    /// there is not enough of it.
    pub(super) fn event(&mut self, event: Event, is_short: bool) {
        if is_short {
            // Reports of before are no refusals of this kind.
            self.queue_effects(false);
        }
        self.node.handle_event(self.now, event);
        self.is_touched = true;
        if is_short {
            self.queue_effects(true);
        }
    }

    /// Lets the node do what is due.
    pub(super) fn timeout(&mut self) {
        self.node.handle_timeout(self.now);
        self.is_touched = true;
    }

    /// Queues all effects of the node.
    fn queue_effects(&mut self, is_short: bool) {
        while let Some(effect) = self.node.poll_effect() {
            self.queue_effect(effect, is_short);
        }
    }

    fn queue_effect(&mut self, effect: Effect, is_short: bool) {
        self.is_urgent |= matches!(effect, Effect::Report(_));
        self.queue.push_back(match effect {
            Effect::Report(notice) => Queued::Notice { notice, is_short },
            effect => Queued::Action(Action::Effect(effect)),
        });
    }

    /// Queues a change for the journal, with its continuation.
    pub(super) fn record(&mut self, facts: Facts, edit: Edit, then: Recorded) {
        self.desired.push(edit, facts, then);
        self.write_next();
    }

    /// Queues the next write of the desired state, unless one is under way.
    pub(super) fn write_next(&mut self) {
        let Some(edit) = self.desired.next_mut() else { return };
        edit.refresh(&self.node);
        let modules = &mut self.modules;
        let write =
            self.desired.poll_write(self.authority.capabilities(), || modules.take_stores());
        if let Some(write) = write {
            self.push(Action::Write(write));
        }
    }

    /// Queues an event; module and session of its service are added when the node knows it.
    pub(super) fn note(&mut self, note: Note) {
        let note = note.completed(&self.node);
        self.push(Action::Note(note));
    }

    /// Queues the event of rules that came or went.
    pub(super) fn note_rules(&mut self, kind: EventKind, rules: &[u32]) {
        let did = if kind == EventKind::RulesAdded { "added" } else { "removed" };
        let (first, last) = match rules {
            [] => return,
            [rule] => {
                let text = format!("rule #{rule} was {did}");
                return self.note(Note::new(kind, text).rule(RuleId(*rule)));
            }
            [first, .., last] => (first, last),
        };
        let text = format!("{} rules were {did}, #{first} to #{last}", rules.len());
        self.note(Note::new(kind, text));
    }

    /// Queues an event of a session.
    pub(super) fn note_session(&mut self, kind: EventKind, session: &Name, text: String) {
        let owner = self.node.session(session).and_then(|it| it.owner);
        self.note(Note::new(kind, text).session(session).owner(owner));
    }

    /// Queues the event of the state that the node runs now.
    pub(super) fn note_state(&mut self, kind: EventKind, cause: &str) {
        let generation = self.desired.generation();
        let text = format!("the node runs generation {generation} of its state: {cause}");
        self.note(Note::new(kind, text));
    }

    /// Returns a service by a client's word for it.
    pub(crate) fn find(&self, wanted: &str) -> Answer<&Service> {
        let found = Name::new(wanted).ok().and_then(|name| self.node.service(&name));
        found.ok_or_else(|| no_service(wanted, self.node.services().map(|s| s.name.as_str())))
    }

    /// Returns the rules that lead to a service.
    pub(crate) fn rules_to(&self, service: &Name) -> Vec<RuleId> {
        rules_to(&self.node, service)
    }

    /// Returns rules that are going, with the sessions for which they counted.
    pub(super) fn payers_of(&self, rules: &[RuleId]) -> Vec<(RuleId, Name)> {
        let payer = |rule: &RuleId| Some((*rule, self.node.rule_payer(*rule)?.0.clone()));
        rules.iter().filter_map(payer).collect()
    }

    /// Queues the addition of what rules counted that are gone.
    pub(super) fn close_rules(&mut self, rules: Vec<(RuleId, Name)>) {
        if !rules.is_empty() {
            self.push(Action::CloseRules(rules));
        }
    }

    /// Loads a module that may run into memory, and returns its description.
    pub(super) fn hold(&mut self, digest: &str) -> Answer<ModuleInfo> {
        self.modules.hold(&digest.parse().map_err(failed)?)
    }

    /// Sets the modules that the change under way needs; those of an earlier change are no longer
    /// needed.
    pub(super) fn set_needed(&mut self, digests: BTreeSet<String>) {
        self.needed = digests;
    }

    /// Returns true when a service runs a module, or the change under way needs it.
    pub(super) fn is_used(&self, digest: &Digest) -> bool {
        let digest = digest.to_string();
        self.node.digests().any(|used| used == digest) || self.needed.contains(&digest)
    }

    /// Releases modules that no service has run for long.
    pub(super) fn forget_modules(&mut self) {
        let used: BTreeSet<Digest> =
            self.modules.held().keys().copied().filter(|digest| self.is_used(digest)).collect();
        self.modules.forget(|digest| used.contains(digest));
    }

    /// Returns the time by which capabilities end.
    pub(crate) fn capability_time(&mut self) -> UnixTime {
        self.authority.read_clock(self.now).time
    }

    /// Returns the owner of what a client starts.
    pub(super) fn owner_of(&mut self, caller: &Caller) -> Option<Owner> {
        if matches!(caller, Caller::Operator) {
            return None;
        }
        let in_use = capabilities_in_use(&self.node, self.desired.state());
        self.authority.owner_of(caller, &in_use)
    }

    /// Returns the account that pays for a service: its owner's, or else the node's own, in the
    /// service's session.
    pub(crate) fn account_of(&self, service: &Service) -> Account {
        let owner = service.owner.and_then(|owner| self.authority.key_of(owner));
        Account { principal: owner.unwrap_or(self.key), session: service.session.clone() }
    }

    /// Returns the account of a principal, or else of the node, in a session; the usual one if none
    /// is given.
    pub(crate) fn account(&self, key: Option<PublicKey>, session: Option<Name>) -> Account {
        let usual = || match key {
            Some(_) => node::session::best_effort(),
            None => node::session::system(),
        };
        let session = session.unwrap_or_else(usual);
        Account { principal: key.unwrap_or(self.key), session }
    }

    /// Returns the account of a client.
    pub(crate) fn account_of_caller(&self, caller: &Caller, session: Option<Name>) -> Account {
        let key = match caller {
            Caller::Holder(holder) => Some(holder.token.principal()),
            Caller::Operator | Caller::Anyone => None,
        };
        self.account(key, session)
    }

    /// Returns the account of an owner.
    pub(crate) fn account_of_owner(&self, owner: Option<Owner>, session: Option<Name>) -> Account {
        self.account(owner.and_then(|owner| self.authority.key_of(owner)), session)
    }

    /// Queues a return to the level that the node says a service is at: a version that was put back
    /// may be on its way to another one.
    pub(super) fn stay_at(&mut self, service: &Name, level: Level) {
        if let Some(entry) = self.node.service(service).map(|service| service.entry) {
            self.push(Action::Stay(entry, level));
        }
    }

    /// Queues a record of the journal beside the desired state.
    pub(super) fn keep(&mut self, keep: Keep) {
        self.push(Action::Keep(keep));
    }

    /// Returns the node.
    pub(crate) const fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the desired state.
    pub(crate) const fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Returns the capabilities that count.
    pub(crate) const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the modules.
    pub(crate) const fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Returns the modules, to be changed.
    pub(crate) fn modules_mut(&mut self) -> &mut Modules {
        &mut self.modules
    }
}

/// Returns the rules that lead to a service.
pub(crate) fn rules_to(node: &Node, service: &Name) -> Vec<RuleId> {
    let views = node.rules().into_iter();
    let to = views.filter(|view| view.rule.spec.action.service() == Some(service));
    to.map(|view| view.rule.id).collect()
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::{MODULES, Testbed, deploy, digest, holder, name};
    use super::*;

    fn texts(bed: &mut Testbed) -> Vec<String> {
        bed.settle();
        let notes = std::mem::take(&mut bed.notes).into_iter();
        notes.map(|note| note.into_event(0, 0).0.text).collect()
    }

    #[test]
    fn rules_that_come_or_go_together_are_one_event() {
        let mut bed = Testbed::new();
        let state = bed.control.state_mut();
        state.note_rules(EventKind::RulesAdded, &[]);
        state.note_rules(EventKind::RulesAdded, &[7]);
        state.note_rules(EventKind::RulesRemoved, &[7, 8, 11]);
        let expected = ["rule #7 was added", "3 rules were removed, #7 to #11"];
        assert_eq!(texts(&mut bed), expected);
    }

    #[test]
    fn nothing_is_started_that_nobody_can_be_billed_for() {
        let mut bed = Testbed::new();
        bed.control.set_ledger_problem(Some("the disk is full".to_owned()));
        let request = || Box::new(deploy("monitor", 4));
        let refusal = bed.refused(|reply| Change::Deploy(request(), reply));
        assert!(refusal.message.ends_with("the disk is full"), "{}", refusal.message);
        assert!(matches!(bed.actions.pop(), Some(Action::Bill)), "it may be mended by now");
        bed.control.set_ledger_problem(None);
        bed.run("monitor");
        assert!(bed.is_desired("monitor"));
    }

    #[test]
    fn what_a_principal_runs_is_on_its_account_and_all_else_on_the_nodes() {
        let mut bed = Testbed::new();
        bed.run("cache");
        let request = Box::new(deploy("monitor", 4));
        let _deployed = bed.ask_as(&holder(), |reply| Change::Deploy(request, reply));
        let Caller::Holder(client) = holder() else { panic!("a holder") };
        let (key, state) = (client.token.principal(), bed.control.state());
        let of = |service: &str| {
            let service = state.node().service(&name(service)).unwrap();
            (state.account_of(service), state.account_of_owner(service.owner, None))
        };
        let (own, by_owner) = of("monitor");
        assert_eq!((own.principal, own.session.as_str()), (key, "best-effort"));
        assert_eq!(by_owner, own);
        let (own, by_owner) = of("cache");
        assert_eq!((own.principal, own.session.as_str()), (state.key, "best-effort"));
        assert_eq!((by_owner.principal, by_owner.session.as_str()), (state.key, "system"));
        assert_eq!(state.account_of_caller(&Caller::Operator, None), by_owner);
        assert_eq!(state.account_of_caller(&holder(), None), of("monitor").0);
    }

    #[test]
    fn a_module_is_used_while_a_service_runs_it_or_a_change_needs_it() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let state = bed.control.state_mut();
        let [runs, needed, other] = [4, 2, 0].map(|module| digest(&MODULES[module]));
        state.set_needed([needed.to_string()].into());
        assert!(state.is_used(&runs) && state.is_used(&needed) && !state.is_used(&other));
        state.set_needed(BTreeSet::new());
        assert!(!state.is_used(&needed));
        state.forget_modules();
        assert!(state.modules().get(&runs).is_some());
    }

    #[test]
    fn a_service_is_found_by_its_name_or_the_nearest_one_is_suggested() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let state = bed.control.state();
        assert_eq!(state.find("monitor").unwrap().name, name("monitor"));
        for wanted in ["monitr", "no name"] {
            assert_eq!(state.find(wanted).unwrap_err().code, ErrorCode::NotFound);
        }
        assert!(state.find("monitr").unwrap_err().message.contains("'monitor'"));
    }
}

#[cfg(test)]
pub(super) mod unit {
    use super::*;
    use crate::control::Control;
    use crate::deploy::Module;
    use crate::journal::Journal;
    use module_store::Store;
    use node::Action as RuleAction;
    use node::RuleSpec;
    use session::admission::MemoryUsed;
    use std::collections::BTreeMap;
    use trust::{SecretKey, Seed};

    const FILE: &str = r#"
    name = "r1"
    store = "/nowhere/store"
    state = "/nowhere/r1"
    [[port]]
    name = "left"
    device = "eth1"
    [trust]
    unsigned = "accept"
    "#;

    const MODULE: &str = r#"(module
        (@custom "tamandua" "abi = 1\nname = \"m\"\nversion = \"0.1.0\"\nwindow = 0\n")
        (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0)))"#;

    /// Creates the state of a node whose cell is ready, with nothing pending.
    pub(in crate::control) fn state(folder: &Path) -> NodeState {
        let file = Arc::new(NodeFile::parse(FILE, "node.toml").unwrap());
        let mut node = Node::new(file.name.clone(), file.ports.clone()).unwrap();
        node.handle_timeout(Nanos::ZERO);
        let desired = Desired::new(Journal::in_memory(&file.name), None);
        let authority = desired.authority(Nanos::ZERO, BTreeSet::new()).unwrap();
        let mut state = NodeState::new(Parts {
            config: "/nowhere/node.toml".into(),
            key: SecretKey::from_seed(&Seed::new([7; 32])).public(),
            node,
            desired,
            authority,
            modules: Modules::new(Store::open(folder).unwrap(), &file.trust),
            below: Below { unsupported: None, is_allowed: true },
            file,
        });
        state.event(Event::CellReady, false);
        all(&mut state);
        state.take_touched();
        state
    }

    /// Deploys a service with a rule of its own.
    fn deploy(state: &mut NodeState, service: &str, port: u16) -> EntryId {
        let module = Module::check(wat::parse_str(MODULE).unwrap()).unwrap();
        let (service, digest) = (Name::new(service).unwrap(), Digest::of(&module.wasm));
        state.modules.insert(digest, module);
        let action = RuleAction::Service(service.clone());
        let rule = RuleSpec::new(format!("proto udp dport {port}").parse().unwrap(), action);
        let command = Command::Deploy {
            service: service.clone(),
            module: state.hold(&digest.to_string()).unwrap(),
            parameters: BTreeMap::new(),
            session: node::session::best_effort(),
            rules: vec![rule],
            level: None,
            budget: Default::default(),
            then: Vec::new(),
            on_failure: Default::default(),
            discard_state: false,
            owner: None,
        };
        state.command(command).unwrap();
        state.node.service(&service).unwrap().entry
    }

    fn all(state: &mut NodeState) -> Vec<Queued> {
        std::iter::from_fn(|| state.pop()).collect()
    }

    #[test]
    fn rules_are_computed_once_for_many_events_and_before_these_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = state(folder.path());
        let entries = [("a", 1), ("b", 2), ("c", 3)].map(|(it, port)| deploy(&mut state, it, port));
        all(&mut state);
        for entry in entries {
            state.event(Event::ServiceStarted { entry }, false);
        }
        let kinds = all(&mut state).into_iter().map(|queued| match queued {
            Queued::Action(Action::Effect(Effect::InstallRules { .. })) => "rules",
            Queued::Action(_) => "other",
            Queued::Notice { notice: Notice::ServiceRunning { .. }, .. } => "runs",
            Queued::Notice { .. } => "notice",
        });
        assert_eq!(kinds.collect::<Vec<_>>(), ["rules", "runs", "runs", "runs"]);
    }

    #[test]
    fn only_the_failed_service_itself_is_marked_as_refused_for_lack_of_a_resource() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = state(folder.path());
        let entries = [("a", 1), ("b", 2)].map(|(it, port)| deploy(&mut state, it, port));
        all(&mut state);
        for (entry, is_short) in entries.into_iter().zip([false, true]) {
            let reason = "no memory".to_owned();
            state.event(Event::ServiceFailed { entry, reason }, is_short);
        }
        let shorts = all(&mut state).into_iter().filter_map(|queued| match queued {
            Queued::Notice { notice: Notice::ServiceNotStarted { .. }, is_short } => Some(is_short),
            _ => None,
        });
        assert_eq!(shorts.collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn neither_a_refused_command_nor_a_report_of_memory_makes_the_record_out_of_date() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = state(folder.path());
        let unknown = Command::RuleRemove { rule: RuleId(9) };
        assert!(state.command(unknown).is_err());
        assert!(!state.take_touched() && !state.take_urgent());
        let mut control = Control::new(state);
        control.set_memory_used(MemoryUsed::default());
        assert!(!control.take_touched());
        control.handle_event(Event::CellReady, false);
        assert!(control.take_touched());
    }
}
