//! Changes between random states, there and back, on a node whose cell does everything at once.

use std::collections::BTreeMap;

use abi::{HostFunction, HostFunctions, Level};
use proptest::prelude::*;
use units::{EntryId, Name, Nanos, RuleId};

use super::order::overlap;
use super::*;
use crate::budget::Budget;
use crate::command::{Arrangement, Command, Effect, Event, Memory, ServiceStart};
use crate::owner::{CapabilityId, Owner, PrincipalId};
use crate::port::PortSpec;
use crate::rule::{Action, RuleSpec};
use crate::service::{ModuleInfo, ServiceState};
use crate::state::Node;
use crate::testing::{PORTS, capacity, module};

const SERVICES: [&str; 4] = ["cache", "mark", "monitor", "touch"];
const MATCHES: [&str; 5] = ["any", "proto udp", "proto udp dport 53", "ip 6", "in left"];
const NOW: Nanos = Nanos::from_millis(1000);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn ports() -> Vec<PortSpec> {
    PORTS.map(|port| PortSpec::new(name(port), format!("eth-{port}"))).into()
}

fn service() -> DesiredService {
    DesiredService {
        digest: "sha256:00".to_owned(),
        parameters: BTreeMap::new(),
        session: name("best-effort"),
        level: None,
        then: BTreeMap::new(),
        budget: Budget::default(),
        on_failure: Default::default(),
        owner: None,
        functions: HostFunctions::ALL,
    }
}

fn rule(text: &str, action: Action, priority: u16) -> DesiredRule {
    let spec = RuleSpec { priority, ..RuleSpec::new(text.parse().unwrap(), action) };
    DesiredRule { spec, came_with: None, owner: None }
}

fn any_service(after: &'static [&'static str]) -> impl Strategy<Value = DesiredService> {
    let level = prop_oneof![Just(None), Just(Some(Level::Nic)), Just(Some(Level::User))];
    let then = prop::collection::btree_map(0u16..4, prop::sample::select(after), 0..3);
    let functions = prop::sample::select(vec![
        HostFunctions::ALL,
        HostFunctions::ALL.without(HostFunction::Event),
    ]);
    let packets = prop::option::weighted(0.3, 1u64..3);
    (0..2u8, 0..2u8, level, then, packets, functions).prop_map(
        |(digest, dscp, level, then, packets, functions)| DesiredService {
            digest: format!("sha256:{digest:02}"),
            parameters: [("dscp".to_owned(), dscp.to_string())].into(),
            level,
            then: then.into_iter().map(|(edge, next)| (edge, name(next))).collect(),
            budget: Budget { packets, ..Budget::default() },
            functions,
            ..service()
        },
    )
}

/// Reservations of which two sessions can have any at the same time.
const RESERVED: [&str; 4] = [
    "{}",
    r#"{"weight":7}"#,
    r#"{"cpu":["100ms/500ms"],"memory":"1MiB"}"#,
    r#"{"cpu":["20%/100ms+extra"],"send":{"left":"25%/100ms"}}"#,
];

fn any_sessions() -> impl Strategy<Value = BTreeMap<Name, DesiredSession>> {
    let names = prop::sample::select(&["gold", "silver"][..]);
    let session = prop::sample::select(&RESERVED[..]).prop_map(|reserved| {
        let reservation = serde_json::from_str(reserved).unwrap();
        DesiredSession { reservation, owner: None }
    });
    prop::collection::btree_map(names.prop_map(name), session, 0..3)
}

/// Returns a state that a node can have: edges lead to services further on in the alphabet, and
/// rules to services of the state.
fn any_state() -> impl Strategy<Value = DesiredState> {
    let services = (
        prop::option::of(any_service(&SERVICES[1..])),
        prop::option::of(any_service(&SERVICES[2..])),
        prop::option::of(any_service(&SERVICES[3..])),
        prop::option::of(any_service(&["touch"])),
    );
    let rule = (prop::sample::select(&MATCHES[..]), 0..6usize, 0..2u16, any::<bool>());
    let rules = prop::collection::vec(rule, 0..8);
    // Edges and rules join services of one session, so a state has one session for all.
    let session = prop::sample::select(&["best-effort", "best-effort", "system", "gold"][..]);
    let all = (services, rules, any::<bool>(), session, any_sessions());
    all.prop_map(|((a, b, c, d), rules, bpf, session, sessions)| {
        let mut state = DesiredState { bpf, sessions, ..DesiredState::default() };
        if session == "gold" {
            state.sessions.entry(name(session)).or_default();
        }
        let all = SERVICES.iter().zip([a, b, c, d]);
        for (service, desired) in all {
            if let Some(mut desired) = desired {
                desired.then.retain(|_, next| next.as_str() != *service);
                desired.session = name(session);
                // No level below user level is asked for while these are forbidden.
                desired.level = desired.level.filter(|level| bpf || *level == Level::User);
                state.services.insert(name(service), desired);
            }
        }
        let present = state.clone();
        for service in state.services.values_mut() {
            service.then.retain(|_, next| present.services.contains_key(next));
        }
        for (text, end, priority, with) in rules {
            let action = match (end, SERVICES.get(end)) {
                (_, Some(service)) if present.services.contains_key(&name(service)) => {
                    Action::Service(name(service))
                }
                (4, _) => Action::Drop,
                _ => Action::Forward,
            };
            let came_with = action.service().filter(|_| with).cloned();
            let mut rule = super::tests::rule(text, action, 100 + priority);
            // A packet is one session's: rules of two sessions must not overlap.
            if rule.spec.action.service().is_some() || session == "gold" {
                rule.spec.session = name(session);
            }
            state.rules.push(DesiredRule { came_with, ..rule });
        }
        state
    })
}

/// Node, with a record of its effects.
struct World {
    node: Node,
    entries: BTreeMap<EntryId, Name>,
    /// Services that were started, stopped or moved, or whose edges were sent again.
    touched: Vec<Name>,
    removed_after_record: Option<bool>,
}

impl World {
    fn new() -> Self {
        let mut node = Node::new(name("r1"), ports()).unwrap();
        while node.poll_effect().is_some() {}
        node.handle_event(NOW, Event::CellReady);
        node.set_capacity(capacity());
        Self { node, entries: BTreeMap::new(), touched: Vec::new(), removed_after_record: None }
    }

    fn command(&mut self, command: Command) {
        self.node
            .handle_command(NOW, command.clone())
            .unwrap_or_else(|r| panic!("{r}: {command:?}"));
        while let Some(effect) = self.node.poll_effect() {
            let (entry, event) = match effect {
                Effect::StartService { start: ServiceStart { entry, service, .. }, .. } => {
                    self.entries.insert(entry, service);
                    (entry, Some(Event::ServiceStarted { entry }))
                }
                Effect::ReplaceService { start: ServiceStart { entry, .. }, .. } => {
                    self.node.handle_event(NOW, Event::ServiceReplaced { entry });
                    (entry, Some(Event::ServiceKept { entry }))
                }
                Effect::StopService { entry } => (entry, Some(Event::ServiceStopped { entry })),
                Effect::MoveService { entry, level } => {
                    let reason = String::new();
                    let event = Event::ServicePlaced { entry, level, reason, movable: true };
                    (entry, Some(event))
                }
                Effect::SetEdges { entry, .. } => (entry, None),
                _ => continue,
            };
            self.touched.extend(self.entries.get(&entry).cloned());
            if let Some(event) = event {
                self.node.handle_event(NOW, event);
            }
        }
    }

    /// Makes a change as the daemon does, without delays and failures.
    fn apply(&mut self, from: &DesiredState, to: &DesiredState) {
        self.touched.clear();
        let mut recorded = false;
        for step in steps(from, to) {
            match step {
                Step::Bpf { enabled } => self.command(Command::Bpf { enabled }),
                Step::Sessions => {
                    let sessions = to.sessions.clone();
                    self.command(Command::SessionsArrange { sessions });
                }
                Step::RemoveSession { session } => {
                    self.removed_after_record = Some(recorded);
                    self.command(Command::SessionRemove { session, cascade: false });
                }
                Step::Deploy { service } => self.deploy(to, service),
                Step::Replace { service } => {
                    let entry = self.node.service(&service).unwrap().entry;
                    let rules = self.node.numbered_rules();
                    self.replace(to, service.clone());
                    assert_eq!(self.node.service(&service).unwrap().entry, entry);
                    assert_eq!(self.node.numbered_rules(), rules, "rules change all at once");
                }
                Step::Renew { service } => {
                    self.command(Command::Remove { service: service.clone(), cascade: true });
                    self.deploy(to, service);
                }
                Step::Arrange => self.arrange(to),
                Step::Move { service } => {
                    let level = to.services[&service].level.unwrap_or(Level::User);
                    self.command(Command::Move { service, level });
                }
                Step::Record => recorded = true,
                Step::Remove { service } => {
                    self.removed_after_record = Some(recorded);
                    // Nothing leads to the service any more, so no cascade is needed.
                    self.command(Command::Remove { service, cascade: false });
                }
            }
        }
        assert_eq!(recorded, from != to);
    }

    fn deploy(&mut self, to: &DesiredState, service: Name) {
        let desired = &to.services[&service];
        let module = modules()[&desired.digest].clone();
        self.command(Command::Deploy {
            service,
            module,
            parameters: desired.parameters.clone(),
            session: desired.session.clone(),
            rules: Vec::new(),
            level: desired.level.filter(|_| self.node.bpf()),
            then: Vec::new(),
            budget: desired.budget,
            on_failure: desired.on_failure,
            discard_state: false,
            owner: desired.owner,
        });
    }

    fn replace(&mut self, to: &DesiredState, service: Name) {
        let desired = &to.services[&service];
        self.command(Command::Replace {
            service,
            module: modules()[&desired.digest].clone(),
            parameters: desired.parameters.clone(),
            level: desired.level.filter(|_| self.node.bpf()),
            memory: Memory::Kept,
        });
    }

    fn arrange(&mut self, to: &DesiredState) {
        let RuleChanges { remove, add } = rule_changes(&self.node.numbered_rules(), &to.rules);
        let arrangement = |service: &DesiredService| Arrangement {
            then: service.then.clone(),
            level: service.level,
            budget: service.budget,
            on_failure: service.on_failure,
            owner: service.owner,
        };
        let services = to.services.iter().map(|(n, s)| (n.clone(), arrangement(s))).collect();
        self.command(Command::Arrange { remove, add, services });
    }

    /// Checks that the node is in this state.
    fn is(&self, state: &DesiredState) {
        assert_eq!(self.node.bpf(), state.bpf);
        let sessions = self.node.sessions().filter(|session| !session.is_built_in());
        let sessions: BTreeMap<Name, DesiredSession> =
            sessions.map(|session| (session.name.clone(), session.into())).collect();
        assert_eq!(sessions, state.sessions);
        assert_eq!(self.node.services().count(), state.services.len());
        for service in self.node.services() {
            let desired = &state.services[&service.name];
            assert_eq!(service.state, ServiceState::Running);
            assert_eq!(service.session, desired.session);
            assert_eq!(service.module.digest, desired.digest);
            assert_eq!(service.parameters, desired.parameters);
            assert_eq!(service.then, desired.then);
            assert_eq!(service.budget, desired.budget);
        }
        let rules: Vec<DesiredRule> =
            self.node.numbered_rules().into_iter().map(|(_, rule)| rule).collect();
        assert_eq!(order::unmatched(&rules, &state.rules), (Vec::new(), Vec::new()));
        assert!(order_agrees(&rules, &state.rules), "{rules:#?}\nwanted {:#?}", state.rules);
        assert!(order::same_order(&rules, &state.rules));
    }
}

/// Returns true if of every two overlapping rules of one priority the same one precedes in both
/// lists.
fn order_agrees(found: &[DesiredRule], wanted: &[DesiredRule]) -> bool {
    let location = |rules: &[DesiredRule], rule: &DesiredRule| rules.iter().position(|r| r == rule);
    wanted.iter().all(|one| {
        wanted.iter().all(|other| {
            one.spec.priority != other.spec.priority
                || !overlap(one, other)
                || (location(found, one) < location(found, other))
                    == (location(wanted, one) < location(wanted, other))
        })
    })
}

fn unchanged(from: &DesiredState, to: &DesiredState) -> Vec<Name> {
    let same = |name: &&Name| from.services.get(*name) == to.services.get(*name);
    let ends_stay = |name: &&Name| {
        // The service before one that is renewed gets its edges again.
        let renewed = |next| match (from.services.get(next), to.services.get(next)) {
            (Some(one), Some(other)) => one.session != other.session,
            _ => false,
        };
        !to.services[*name].then.values().any(renewed)
    };
    to.services.keys().filter(same).filter(ends_stay).cloned().collect()
}

proptest! {
    #[test]
    fn a_node_comes_from_any_state_to_any_other_and_back(one in any_state(), other in any_state()) {
        let mut world = World::new();
        let nothing = DesiredState::default();
        for (from, to) in [(&nothing, &one), (&one, &other), (&other, &one), (&one, &nothing)] {
            prop_assert_eq!(check(&ports(), Some(&capacity()), to, &modules()).map(drop), Ok(()));
            world.apply(from, to);
            world.is(to);
            if from.bpf == to.bpf {
                for service in unchanged(from, to) {
                    prop_assert!(!world.touched.contains(&service), "{} was touched", service);
                }
            }
            prop_assert_ne!(world.removed_after_record, Some(false), "stopped before it was recorded");
        }
    }

    #[test]
    fn differences_are_empty_exactly_if_no_step_is_needed(one in any_state(), other in any_state()) {
        prop_assert_eq!(differences(&one, &one), []);
        prop_assert_eq!(steps(&one, &one), []);
        let nothing_to_see = differences(&one, &other).is_empty();
        let does = steps(&one, &other).into_iter().any(|step| step != Step::Record);
        prop_assert_eq!(nothing_to_see, !does);
    }

    #[test]
    fn a_state_is_the_same_after_it_was_written_down(state in any_state()) {
        let text = serde_json::to_string(&state).unwrap();
        prop_assert_eq!(serde_json::from_str::<DesiredState>(&text).unwrap(), state);
    }

    #[test]
    fn rules_end_in_the_wanted_order_and_the_fewest_change(one in any_state(), other in any_state()) {
        let present: Vec<_> = (0..).map(|n| RuleId(7 + n)).zip(one.rules.iter().cloned()).collect();
        let RuleChanges { remove, add } = rule_changes(&present, &other.rules);
        let stay = present.iter().filter(|(id, _)| !remove.contains(id)).map(|(_, rule)| rule.clone());
        let after: Vec<DesiredRule> = stay.chain(add.clone()).collect();
        prop_assert_eq!(order::unmatched(&after, &other.rules), (Vec::new(), Vec::new()));
        prop_assert!(order_agrees(&after, &other.rules));
        let same = rule_changes(&present, &one.rules);
        prop_assert_eq!(same, RuleChanges::default());
    }
}

fn modules() -> BTreeMap<String, ModuleInfo> {
    let of = |digest: &str| ModuleInfo { digest: digest.to_owned(), ..module("\"user\", \"nic\"") };
    ["sha256:00", "sha256:01"].map(|digest| (digest.to_owned(), of(digest))).into()
}

#[test]
fn a_rule_behind_others_leaves_them_their_numbers_and_one_before_them_does_not() {
    let (web, dns) = (
        rule("proto tcp dport 80", Action::Drop, 100),
        rule("proto udp dport 53", Action::Drop, 100),
    );
    let all = rule("any", Action::Forward, 100);
    let present = [(RuleId(3), web.clone()), (RuleId(4), all.clone())];
    let behind = rule_changes(&present, &[web.clone(), all.clone(), dns.clone()]);
    assert_eq!(behind, RuleChanges { remove: vec![], add: vec![dns.clone()] });
    let before = rule_changes(&present, &[dns.clone(), web.clone(), all.clone()]);
    assert_eq!(
        before,
        RuleChanges { remove: vec![RuleId(4)], add: vec![dns.clone(), all.clone()] }
    );
    // Rules that match no common packet need no order.
    let apart = rule_changes(&present[..1], &[dns.clone(), web]);
    assert_eq!(apart, RuleChanges { remove: vec![], add: vec![dns] });
}

#[test]
fn a_refusal_of_a_desired_state_names_the_part_at_fault() {
    let with = |change: &dyn Fn(&mut DesiredState)| {
        let mut state = DesiredState::default();
        state.services.insert(name("monitor"), service());
        state.services.insert(name("mark"), service());
        state.rules.push(rule("proto udp", Action::Drop, 100));
        change(&mut state);
        check(&ports(), Some(&capacity()), &state, &modules())
            .map_err(|fault| (fault.location, fault.refusal.to_string()))
    };
    let monitor = || name("monitor");
    assert_eq!(with(&|_| {}), Ok(Vec::new()));
    let (location, message) = with(&|state| {
        state.services.get_mut(&monitor()).unwrap().parameters.insert("dcsp".into(), "1".into());
    })
    .unwrap_err();
    assert_eq!(location, Location::Service(monitor()));
    assert!(message.contains("did you mean 'dscp'"), "{message}");
    let (location, message) = with(&|state| {
        state.rules.push(rule("in lft", Action::Drop, 100));
    })
    .unwrap_err();
    assert_eq!(location, Location::Rule(1));
    assert!(message.contains("did you mean 'left'"), "{message}");
    let (location, message) = with(&|state| {
        // Each would be accepted alone: a packet that both match would have two principals.
        for (r#match, session) in [("dport 5", "gold"), ("dport 6", "gold"), ("sport 5", "silver")]
        {
            let reservation = serde_json::from_str("{}").unwrap();
            state.set_session(name(session), DesiredSession { reservation, owner: None });
            let mut rule = rule(&format!("proto tcp {match}"), Action::Drop, 100);
            rule.spec.session = name(session);
            state.rules.push(rule);
        }
    })
    .unwrap_err();
    assert!(message.contains("a packet is one principal's"), "{message}");
    assert_eq!(location, Location::Rule(3));
    let (location, message) = with(&|state| {
        state.rules.insert(0, rule("any", Action::Service(name("monitr")), 100));
    })
    .unwrap_err();
    assert_eq!(location, Location::Rule(0));
    assert!(message.contains("did you mean 'monitor'"), "{message}");
    let (location, message) = with(&|state| {
        for (from, to) in [("monitor", "mark"), ("mark", "monitor")] {
            state.services.get_mut(&name(from)).unwrap().then.insert(0, name(to));
        }
    })
    .unwrap_err();
    assert!(
        matches!(location, Location::Edges(_)) && message.contains("come to"),
        "{location:?} {message}"
    );
    let (location, message) = with(&|state| {
        let reservation = serde_json::from_str(r#"{"send":{"rigt":"1ms/4ms"}}"#).unwrap();
        state.set_session(name("gold"), DesiredSession { reservation, owner: None });
    })
    .unwrap_err();
    assert_eq!(location, Location::Session(name("gold")));
    assert!(message.contains("did you mean 'right'"), "{message}");
    let shadowed = with(&|state| state.rules.push(rule("proto udp", Action::Forward, 50)));
    assert_eq!(shadowed, Ok(vec![(1, 0)]));
    let many = with(&|state| {
        // The better rules are the narrower: none takes another's packets.
        for length in (0..=32u8).rev() {
            for ip in [" proto tcp", ""] {
                let prefix = crate::prefix::Prefix::containing([10, 0, 0, 1].into(), length);
                state.rules.push(rule(&format!("src {prefix}{ip}"), Action::Drop, 100));
            }
        }
    });
    let (location, message) = many.unwrap_err();
    assert_eq!(location, Location::Rule(bpf_maps::MASKS_MAX), "{message}");
}

#[test]
fn a_service_without_its_module_is_left_out_with_what_leads_to_it() {
    let mut state = DesiredState::default();
    state.deploy(name("mark"), service(), Vec::new());
    let lost = DesiredService { digest: "sha256:ff".into(), ..service() };
    let to_lost = RuleSpec::new("any".parse().unwrap(), Action::Service(name("touch")));
    state.deploy(name("touch"), lost, vec![to_lost]);
    assert_eq!(check(&ports(), Some(&capacity()), &state, &modules()), Ok(Vec::new()));
    state.services.get_mut(&name("mark")).unwrap().then.insert(0, name("touch"));
    let rest = state.restricted_to(|name| name.as_str() != "touch");
    assert_eq!((rest.services.len(), rest.rules.len()), (1, 0));
    assert!(rest.services[&name("mark")].then.is_empty());
}

#[test]
fn commands_change_the_desired_state() {
    let mut state = DesiredState::default();
    let leads =
        |text: &str, to: &str| RuleSpec::new(text.parse().unwrap(), Action::Service(name(to)));
    state.deploy(name("touch"), service(), vec![leads("ip 6", "touch")]);
    let first = DesiredService { then: [(1, name("touch"))].into(), ..service() };
    state.deploy(name("mark"), first, Vec::new());
    let drop_udp = RuleSpec::new("proto udp".parse().unwrap(), Action::Drop);
    state.add_rules(vec![drop_udp.clone(), leads("any", "touch"), drop_udp.clone()], None);
    state.set_level(&name("mark"), Level::Nic);
    assert_eq!((state.services[&name("mark")].level, state.rules.len()), (Some(Level::Nic), 4));
    let twice = DesiredRule { spec: drop_udp, came_with: None, owner: None };
    state.remove_rule(&twice, 1);
    assert_eq!(state.rules.iter().position(|rule| *rule == twice), Some(1));
    assert_eq!(state.rules.len(), 3);
    state.remove(&name("touch"));
    assert_eq!(state.rules, [twice]);
    assert!(state.services[&name("mark")].then.is_empty());
    // Another service of the name replaces the first, with other rules.
    state.deploy(name("mark"), service(), vec![leads("ip 4", "mark")]);
    state.deploy(name("mark"), service(), vec![leads("ip 6", "mark")]);
    assert_eq!(state.rules.len(), 2);
}

/// Returns a node that runs the services and rules of a state.
fn running(state: &DesiredState) -> World {
    let mut world = World::new();
    world.apply(&DesiredState::default(), state);
    world
}

#[test]
fn a_plan_predicts_exactly_which_services_lose_their_state() {
    let mut state = DesiredState::default();
    for service in SERVICES {
        state.deploy(name(service), self::service(), Vec::new());
    }
    let world = running(&state);
    let mut to = state.clone();
    to.services.get_mut(&name("cache")).unwrap().digest = "sha256:01".into();
    to.services.get_mut(&name("mark")).unwrap().digest = "sha256:02".into();
    to.services.get_mut(&name("monitor")).unwrap().session = name("system");
    to.services.get_mut(&name("touch")).unwrap().digest = "sha256:03".into();
    let other = ModuleInfo { image: abi::check::MemoryImage(9), ..modules()["sha256:00"].clone() };
    let mut modules = modules();
    modules.insert("sha256:02".into(), ModuleInfo { digest: "sha256:02".into(), ..other });
    // 'cache' keeps its memory; the module of 'touch' is unknown.
    let lost = losses(&world.node, &to, |digest| modules.get(digest));
    let reasons: Vec<String> = lost.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    assert_eq!(reasons.len(), 2, "{reasons:#?}");
    assert!(reasons[0].starts_with("mark: ") && reasons[0].contains("constants"), "{reasons:#?}");
    assert!(reasons[1].contains("from 'best-effort' to 'system'"), "{reasons:#?}");
    assert!(losses(&world.node, &state, |digest| modules.get(digest)).is_empty());
}

#[test]
fn a_service_that_changes_is_replaced_and_one_for_another_session_starts_anew() {
    let mut state = DesiredState::default();
    for service in ["mark", "monitor", "touch"] {
        state.deploy(name(service), self::service(), Vec::new());
    }
    let mut to = state.clone();
    to.services.get_mut(&name("mark")).unwrap().session = name("system");
    to.services.get_mut(&name("monitor")).unwrap().digest = "sha256:01".into();
    let replaced = to.services.get_mut(&name("touch")).unwrap();
    replaced.parameters.insert("dscp".into(), "7".into());
    replaced.level = Some(Level::Nic);
    let of = |service: &str| name(service);
    assert_eq!(
        steps(&state, &to),
        [
            Step::Replace { service: of("monitor") },
            Step::Replace { service: of("touch") },
            Step::Renew { service: of("mark") },
            Step::Arrange,
            Step::Record,
        ]
    );
}

#[test]
fn principals_services_survive_node_files_and_rollbacks() {
    let owner = Owner { principal: PrincipalId(1), capability: CapabilityId(1) };
    let owned = |mut service: DesiredService| {
        service.owner = Some(owner);
        service
    };
    let mut present = DesiredState::default();
    let rule = |text: &str, service: &str| rule(text, Action::Service(name(service)), 100).spec;
    present.deploy(name("monitor"), owned(service()), vec![rule("proto udp", "monitor")]);
    present.deploy(name("mark"), owned(service()), vec![rule("proto tcp", "mark")]);
    present
        .add_rules(vec![RuleSpec::new("proto icmp".parse().unwrap(), Action::Drop)], Some(owner));
    let mut file = DesiredState::default();
    file.deploy(name("mark"), service(), Vec::new());
    let mut earlier = file.clone();
    earlier.deploy(name("touch"), owned(service()), vec![rule("any", "touch")]);
    for wanted in [file, earlier] {
        let state = wanted.with_owned_of(&present);
        let names: Vec<&str> = state.services.keys().map(Name::as_str).collect();
        assert_eq!(names, ["mark", "monitor"]);
        assert_eq!(state.services[&name("mark")].owner, None, "the operator has given it away");
        let matches = state.rules.iter().map(|it| it.spec.r#match.to_string());
        assert_eq!(matches.collect::<Vec<_>>(), ["proto udp", "proto icmp"]);
    }
}

#[test]
fn sessions_of_principals_and_those_that_they_use_stay_whatever_the_operator_applies() {
    let owner = Some(Owner { principal: PrincipalId(1), capability: CapabilityId(1) });
    let of = |owner| DesiredSession { owner, ..DesiredSession::default() };
    let mut present = DesiredState::default();
    for (session, owner) in [("his", owner), ("used", None), ("idle", None), ("taken", owner)] {
        present.set_session(name(session), of(owner));
    }
    let in_used = DesiredService { session: name("used"), owner, ..service() };
    present.deploy(name("monitor"), in_used, Vec::new());
    let mut file = DesiredState::default();
    file.set_session(name("taken"), of(None));
    let state = file.with_owned_of(&present);
    let names: Vec<&str> = state.sessions.keys().map(Name::as_str).collect();
    assert_eq!(names, ["his", "taken", "used"]);
    assert_eq!(state.sessions[&name("taken")].owner, None);
}

#[test]
fn a_removed_session_releases_its_reservation_first_and_its_name_last() {
    let mut from = DesiredState::default();
    from.set_session(name("gold"), DesiredSession::default());
    from.deploy(name("mark"), DesiredService { session: name("gold"), ..service() }, Vec::new());
    let mut to = from.clone();
    to.remove_session(&name("gold"));
    to.set_session(name("silver"), DesiredSession::default());
    assert!(to.services.is_empty());
    let (service, session) = (name("mark"), name("gold"));
    assert_eq!(
        steps(&from, &to),
        [
            Step::Sessions,
            Step::Arrange,
            Step::Record,
            Step::Remove { service },
            Step::RemoveSession { session }
        ]
    );
}
