//! Tests of the node: the effects of commands and events.

use abi::{HostFunction, HostFunctions, NotGranted};
use bpf_maps::RULES_MAX;
use units::{Edge, SessionId};

use super::*;
use crate::budget::Budget;
use crate::classifier::Reach;
use crate::command::{Command, Event, Notice, Outcome, ServiceStart};
use crate::policy::OnFailure;
use crate::refusal::RefusalClass;
use crate::rule::{Action, Match, RuleSpec};
use crate::service::{ModuleInfo, ServiceState};
use crate::testing::module;

pub(super) const NOW: Nanos = Nanos::from_millis(1000);

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn port(name: &str, device: &str) -> PortSpec {
    PortSpec::new(Name::new(name).unwrap(), device.into())
}

/// Returns a node whose cell is ready, with all effects polled.
pub(super) fn node() -> Node {
    let mut node =
        Node::new(name("r1"), vec![port("left", "eth1"), port("right", "eth2")]).unwrap();
    assert_eq!(node.poll_effect(), Some(Effect::StartCell { restarts: 0 }));
    node.handle_event(NOW, Event::CellReady);
    assert_eq!(node.poll_effect(), None);
    node
}

pub(super) fn effects(node: &mut Node) -> Vec<Effect> {
    core::iter::from_fn(|| node.poll_effect()).collect()
}

pub(super) fn to_service(text: &str, service: &str) -> RuleSpec {
    RuleSpec::new(text.parse().unwrap(), Action::Service(name(service)))
}

pub(super) fn deploy_with(service: &str, module: ModuleInfo, rules: Vec<RuleSpec>) -> Command {
    let parameters = [("dscp".to_owned(), "10".to_owned())].into();
    let session = name("best-effort");
    Command::Deploy {
        service: name(service),
        module,
        parameters,
        session,
        rules,
        level: None,
        then: Vec::new(),
        budget: Budget::default(),
        on_failure: OnFailure::default(),
        discard_state: false,
        owner: None,
    }
}

fn deploy(service: &str, text: &str) -> Command {
    deploy_with(service, module("\"user\""), vec![to_service(text, service)])
}

fn remove(service: &str, cascade: bool) -> Command {
    Command::Remove { service: name(service), cascade }
}

pub(super) fn add(specs: Vec<RuleSpec>) -> Command {
    Command::RuleAdd { specs, owner: None }
}

fn started(entry: u16) -> Event {
    Event::ServiceStarted { entry: EntryId(entry) }
}

fn failed(entry: u16) -> Event {
    Event::ServiceFailed { entry: EntryId(entry), reason: "trap".into() }
}

fn stopped(entry: u16) -> Event {
    Event::ServiceStopped { entry: EntryId(entry) }
}

pub(super) fn lost() -> Event {
    Event::CellLost { reason: "killed by signal 9".into() }
}

/// Returns a node on which `monitor` runs as entry 0 with rule 0.
pub(super) fn running() -> Node {
    let mut node = node();
    node.handle_command(NOW, deploy("monitor", "proto udp")).unwrap();
    node.handle_event(NOW, started(0));
    effects(&mut node);
    node
}

pub(super) fn refused(node: &mut Node, command: Command) -> (RefusalClass, String) {
    let refusal = node.handle_command(NOW, command).unwrap_err();
    assert_eq!(node.poll_effect(), None, "a refused command does nothing");
    (refusal.class(), refusal.to_string())
}

#[test]
fn rules_of_a_service_are_installed_after_it_started() {
    let mut node = node();
    let outcome = node.handle_command(NOW, deploy("monitor", "proto udp")).unwrap();
    assert!(
        matches!(outcome, Outcome::Deployed { entry: EntryId(0), ref rules, .. } if rules.len() == 1)
    );
    let asked = effects(&mut node);
    let [
        Effect::ClearRuleCounters { .. },
        Effect::StartService { start: ServiceStart { parameters, session, .. }, .. },
    ] = &asked[..]
    else {
        panic!("{asked:?}")
    };
    assert_eq!(parameters[&name("dscp")], abi::manifest::ParameterValue::U8(10));
    assert_eq!(*session, SessionId::BEST_EFFORT);
    assert_eq!(node.rules()[0].reach, Reach::Waiting);

    node.handle_event(NOW, started(0));
    let done = effects(&mut node);
    let [Effect::InstallRules { rules, generation: 1 }, Effect::Report(notice)] = &done[..] else {
        panic!("{done:?}")
    };
    assert_eq!(rules.entries.len(), 1);
    assert_eq!(*notice, Notice::ServiceRunning { service: name("monitor"), restarts: 0 });
    assert_eq!(node.rules()[0].reach, Reach::Installed);
    assert_eq!(node.service(&name("monitor")).unwrap().state, ServiceState::Running);
}

#[test]
fn a_service_that_never_ran_is_gone_after_a_failed_start_and_says_why() {
    let mut node = node();
    node.handle_command(NOW, deploy("monitor", "proto udp")).unwrap();
    effects(&mut node);
    node.handle_event(NOW, failed(0));
    let reason = "trap".to_owned();
    let notice = Notice::ServiceNotStarted { service: name("monitor"), reason };
    assert_eq!(effects(&mut node), [Effect::Report(notice)]);
    assert_eq!((node.services().count(), node.rules().len()), (0, 0));
}

#[test]
fn a_service_is_stopped_after_its_rules_are_gone() {
    let mut node = running();
    let outcome = node.handle_command(NOW, remove("monitor", false)).unwrap();
    assert!(
        matches!(outcome, Outcome::Removed { stopping: true, ref rules, .. } if rules.len() == 1)
    );
    let done = effects(&mut node);
    let [Effect::InstallRules { rules, .. }, Effect::StopService { entry: EntryId(0) }] = &done[..]
    else {
        panic!("{done:?}")
    };
    assert!(rules.entries.is_empty());

    assert_eq!(refused(&mut node, deploy("monitor", "any")).0, RefusalClass::Busy);
    assert_eq!(refused(&mut node, remove("monitor", true)).0, RefusalClass::Busy);
    node.handle_event(NOW, stopped(0));
    let notice = Notice::ServiceRemoved { service: name("monitor") };
    assert_eq!(effects(&mut node), [Effect::Report(notice)]);
    assert!(node.handle_command(NOW, deploy("monitor", "any")).is_ok());
}

#[test]
fn an_entry_is_not_given_away_before_its_service_stopped() {
    let mut node = running();
    node.handle_command(NOW, remove("monitor", false)).unwrap();
    let entry_of = |node: &mut Node, name: &str| {
        // The entry would be next.
        node.prefer_entry(Some(EntryId(0)));
        match node.handle_command(NOW, deploy(name, "any")).unwrap() {
            Outcome::Deployed { entry, .. } => entry.0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(entry_of(&mut node, "another"), 1);
    node.handle_event(NOW, stopped(0));
    assert_eq!(entry_of(&mut node, "one-more"), 0);
}

#[test]
fn services_that_start_together_cause_one_update_of_the_front_door() {
    let mut node = running();
    let many = 1..21;
    for at in many.clone() {
        node.handle_command(NOW, deploy(&format!("s{at}"), &format!("proto tcp dport {at}")))
            .unwrap();
    }
    effects(&mut node);
    many.clone().for_each(|at| node.handle_event(NOW, started(at)));
    let emitted = effects(&mut node);
    let Effect::InstallRules { rules, .. } = &emitted[0] else { panic!("{:?}", emitted[0]) };
    assert_eq!(rules.entries.len(), 21, "packets come before anybody hears that a service runs");
    let reports = emitted[1..].iter().filter(|effect| matches!(effect, Effect::Report(_))).count();
    assert_eq!((reports, emitted.len()), (20, 21));
}

#[test]
fn a_service_that_ran_comes_back_after_a_pause_that_doubles() {
    let mut node = running();
    let mut now = NOW;
    for (restart, pause) in [(1, 100), (2, 200), (3, 400)] {
        node.handle_event(now, failed(0));
        let done = effects(&mut node);
        assert!(matches!(&done[0], Effect::InstallRules { rules, .. } if rules.entries.is_empty()));
        let retry_at = now + Nanos::from_millis(pause);
        assert_eq!(node.poll_timeout(), Some(retry_at));
        node.handle_timeout(Nanos(retry_at.0 - 1));
        assert_eq!(node.poll_effect(), None, "not before its time");
        node.handle_timeout(retry_at);
        let done = effects(&mut node);
        assert!(matches!(done[..], [Effect::StartService { restarts, .. }] if restarts == restart));
        assert_eq!(node.poll_timeout(), None);
        node.handle_event(retry_at, started(0));
        effects(&mut node);
        now = retry_at;
    }
    let service = node.service(&name("monitor")).unwrap();
    assert_eq!((service.restarts, node.rules()[0].reach), (3, Reach::Installed));
}

#[test]
fn a_lost_cell_is_started_again_with_its_services() {
    let mut node = running();
    node.handle_event(NOW, lost());
    let retry_at = NOW + Nanos::from_millis(100);
    let done = effects(&mut node);
    assert!(matches!(&done[0], Effect::InstallRules { rules, .. } if rules.entries.is_empty()));
    assert!(
        matches!(&done[1..], [Effect::Report(Notice::CellLost { retry_at: at, .. })] if *at == retry_at)
    );
    assert_eq!(node.poll_timeout(), Some(retry_at));
    node.handle_timeout(retry_at);
    assert_eq!(effects(&mut node), [Effect::StartCell { restarts: 1 }]);
    node.handle_event(retry_at, Event::CellReady);
    let done = effects(&mut node);
    assert!(matches!(
        done[..],
        [Effect::StartService { start: ServiceStart { entry: EntryId(0), .. }, restarts: 1 }]
    ));
    node.handle_event(retry_at, started(0));
    assert!(matches!(effects(&mut node)[0], Effect::InstallRules { .. }));
}

#[test]
fn a_new_service_that_ends_every_cell_is_given_up() {
    let mut node = running();
    node.handle_command(NOW, deploy("killer", "proto tcp")).unwrap();
    let mut now = NOW;
    for _ in 0..FIRST_STARTS_MAX {
        assert!(node.service(&name("killer")).is_some());
        node.handle_event(now, lost());
        now = node.poll_timeout().unwrap();
        node.handle_timeout(now);
        node.handle_event(now, Event::CellReady);
    }
    assert!(node.service(&name("killer")).is_none());
    assert!(node.service(&name("monitor")).is_some(), "one that ran stays");
    assert!(effects(&mut node).iter().any(|effect| matches!(
        effect,
        Effect::Report(Notice::ServiceNotStarted { reason, .. }) if reason.contains("signal 9")
    )));
}

#[test]
fn a_service_that_other_rules_lead_to_stays_unless_cascade() {
    let mut node = running();
    let outcome = node.handle_command(NOW, add(vec![to_service("proto tcp", "monitor")])).unwrap();
    let Outcome::RulesAdded { rules, .. } = outcome else { panic!("{outcome:?}") };
    effects(&mut node);
    let (class, message) = refused(&mut node, remove("monitor", false));
    assert_eq!(class, RefusalClass::Busy);
    assert!(message.contains(&format!("(#{})", rules[0])), "{message}");
    let outcome = node.handle_command(NOW, remove("monitor", true)).unwrap();
    assert!(matches!(outcome, Outcome::Removed { ref rules, .. } if rules.len() == 2));
}

#[test]
fn rules_are_added_all_or_none() {
    let mut node = running();
    let good = to_service("proto tcp", "monitor");
    let bad = RuleSpec::new("in lft".parse().unwrap(), Action::Drop);
    let (class, message) = refused(&mut node, add(vec![good, bad]));
    assert_eq!(class, RefusalClass::NotFound);
    assert!(message.contains("did you mean 'left'?"), "{message}");
    assert_eq!(node.rules().len(), 1);
}

#[test]
fn a_rule_that_no_packet_reaches_is_reported_at_once() {
    let mut node = running();
    let outcome = node.handle_command(NOW, add(vec![to_service("proto udp", "monitor")])).unwrap();
    let shadowed = vec![(RuleId(1), RuleId(0))];
    assert_eq!(outcome, Outcome::RulesAdded { rules: vec![RuleId(1)], shadowed });
    assert_eq!(node.rules()[1].reach, Reach::Shadowed { by: RuleId(0) });
}

#[test]
fn a_rule_that_takes_all_packets_of_another_is_reported() {
    let mut node = running();
    node.handle_command(NOW, add(vec![to_service("proto tcp dport 80", "monitor")])).unwrap();
    let narrow = node.rules().last().unwrap().rule.id;
    let all = RuleSpec { priority: 900, ..to_service("any", "monitor") };
    let Outcome::RulesAdded { rules, shadowed } = node.handle_command(NOW, add(vec![all])).unwrap()
    else {
        panic!("rules were added")
    };
    assert!(shadowed.contains(&(narrow, rules[0])), "{shadowed:?}");
}

#[test]
fn a_wrong_name_is_refused_with_the_nearest() {
    let mut node = running();
    for (command, expected) in [
        (remove("monitr", false), "did you mean 'monitor'?"),
        (add(vec![to_service("any", "monitro")]), "did you mean 'monitor'?"),
        (
            add(vec![RuleSpec { session: name("best-efort"), ..to_service("any", "monitor") }]),
            "session",
        ),
        (Command::RuleRemove { rule: RuleId(9) }, "no rule #9"),
    ] {
        let (class, message) = refused(&mut node, command);
        assert!(message.contains(expected), "{message}");
        assert!(matches!(class, RefusalClass::NotFound | RefusalClass::Invalid));
    }
}

#[test]
fn an_impossible_module_is_refused() {
    let mut node = running();
    let (class, message) = refused(&mut node, deploy_with("a", module("\"cluster\""), vec![]));
    assert_eq!(class, RefusalClass::Invalid);
    assert!(message.contains("cluster"), "{message}");
    let mut command = deploy_with("a", module("\"user\", \"cluster\""), vec![]);
    if let Command::Deploy { level, .. } = &mut command {
        *level = Some(Level::Cluster);
    }
    let (_, message) = refused(&mut node, command);
    assert!(message.contains("nothing runs at cluster yet"), "{message}");
    let elsewhere = vec![to_service("any", "monitor")];
    let (_, message) = refused(&mut node, deploy_with("a", module("\"user\""), elsewhere));
    assert!(message.contains("service monitor"), "{message}");
    let mut command = deploy_with("a", module("\"user\""), vec![]);
    if let Command::Deploy { parameters, .. } = &mut command {
        *parameters = [("dcsp".to_owned(), "1".to_owned())].into();
    }
    let (_, message) = refused(&mut node, command);
    assert!(message.contains("did you mean 'dscp'?"), "{message}");
}

#[test]
fn a_rule_has_the_session_of_its_service() {
    let mut node = running();
    let spec = RuleSpec { session: name("system"), ..to_service("any", "monitor") };
    let (class, message) = refused(&mut node, add(vec![spec]));
    assert_eq!(class, RefusalClass::Invalid);
    assert!(message.contains("'system'") && message.contains("'best-effort'"), "{message}");
}

#[test]
fn the_level_and_its_reason_are_reported() {
    let mut node = node();
    let command = deploy_with("a", module("\"nic\", \"user\""), vec![]);
    node.handle_command(NOW, command).unwrap();
    let service = node.service(&name("a")).unwrap();
    assert_eq!(service.level, abi::Level::User);
    assert!(service.level_reason.contains("does not run at nic yet"), "{}", service.level_reason);
    let json = serde_json::to_value(service).unwrap();
    assert_eq!((&json["state"], &json["level"]), (&"starting".into(), &"user".into()));

    let place = |level, reason: &str| {
        let (entry, reason) = (EntryId(0), reason.to_owned());
        Event::ServicePlaced { entry, level, reason, movable: true }
    };
    node.handle_event(NOW, place(abi::Level::Nic, "the module asks for it first"));
    node.handle_event(NOW, started(0));
    let service = node.service(&name("a")).unwrap();
    assert_eq!((service.level, &service.state), (abi::Level::Nic, &ServiceState::Running));
}

#[test]
fn a_service_moves_where_its_module_wants_to_run() {
    let mut node = node();
    let module = module("\"nic\", \"user\"");
    node.handle_command(NOW, deploy_with("a", module, vec![to_service("any", "a")])).unwrap();
    effects(&mut node);
    let to = |level| Command::Move { service: name("a"), level };
    let (class, message) = refused(&mut node, to(abi::Level::Nic));
    assert_eq!(class, RefusalClass::Busy, "{message}");
    let place = |level, movable| {
        let (entry, reason) = (EntryId(0), "asked".to_owned());
        Event::ServicePlaced { entry, level, reason, movable }
    };
    node.handle_event(NOW, place(abi::Level::User, true));
    node.handle_event(NOW, started(0));
    effects(&mut node);
    let (class, message) = refused(&mut node, to(abi::Level::Kernel));
    assert_eq!(class, RefusalClass::Invalid);
    assert!(message.contains("declares nic, user and not kernel"), "{message}");

    effects(&mut node);
    let outcome = node.handle_command(NOW, to(abi::Level::User)).unwrap();
    assert_eq!(outcome, Outcome::Moving { service: name("a"), from: abi::Level::User });
    assert_eq!(effects(&mut node), [], "it is there already");
    node.handle_command(NOW, to(abi::Level::Nic)).unwrap();
    let (entry, level) = (EntryId(0), abi::Level::Nic);
    assert_eq!(effects(&mut node), [Effect::MoveService { entry, level }]);
    node.handle_event(NOW, place(level, true));
    let notice = Notice::ServiceMoved { service: name("a"), level };
    assert_eq!(effects(&mut node), [Effect::Report(notice)], "its rules lead to its lane already");
    let reason = "the lane was never idle".to_owned();
    node.handle_event(NOW, Event::MoveFailed { entry, reason: reason.clone() });
    let notice = Notice::MoveFailed { service: name("a"), reason };
    assert_eq!(effects(&mut node), [Effect::Report(notice)]);
}

#[test]
fn a_service_starts_where_it_is_wanted_or_above() {
    use abi::Level::{Kernel, Nic, User};
    let levels_of = |declared: &str, wanted| {
        let mut node = node();
        let mut command = deploy_with("a", module(declared), vec![]);
        if let Command::Deploy { level, .. } = &mut command {
            *level = wanted;
        }
        node.handle_command(NOW, command).map(|_| match &effects(&mut node)[..] {
            [Effect::StartService { start: ServiceStart { levels, .. }, .. }] => levels.clone(),
            other => panic!("{other:?}"),
        })
    };
    let of = |declared, wanted| levels_of(declared, wanted).unwrap();
    assert_eq!(of("\"nic\", \"kernel\", \"user\"", None), [Nic, Kernel, User]);
    assert_eq!(of("\"kernel\", \"nic\"", None), [Kernel, User]);
    assert_eq!(of("\"user\", \"nic\"", None), [User]);
    assert_eq!(of("\"user\", \"nic\"", Some(Nic)), [Nic, User]);
    assert_eq!(of("\"cluster\", \"nic\"", None), [Nic, User]);
    assert_eq!(of("\"nic\"", Some(User)), [User]);
    let refusal = levels_of("\"user\"", Some(Nic)).unwrap_err();
    assert!(refusal.to_string().contains("declares user and not nic"), "{refusal}");
}

#[test]
fn switching_bpf_off_moves_all_services_to_user_level_and_keeps_them_there() {
    let mut node = node();
    let (entry, nic, user) = (EntryId(0), abi::Level::Nic, abi::Level::User);
    node.handle_command(NOW, deploy_with("a", module("\"nic\", \"user\""), vec![])).unwrap();
    let place = |level| {
        let reason = "it fits".to_owned();
        Event::ServicePlaced { entry, level, reason, movable: true }
    };
    node.handle_event(NOW, place(nic));
    node.handle_event(NOW, started(0));
    effects(&mut node);
    let off = node.handle_command(NOW, Command::Bpf { enabled: false }).unwrap();
    assert_eq!(off, Outcome::Bpf { moving: vec![name("a")] });
    assert_eq!(effects(&mut node), [Effect::MoveService { entry, level: user }]);
    node.handle_event(NOW, place(user));
    effects(&mut node);
    let (class, message) = refused(&mut node, Command::Move { service: name("a"), level: nic });
    assert_eq!(class, RefusalClass::Busy);
    assert!(message.contains("--bpf on"), "{message}");
    node.handle_event(NOW, place(nic));
    let back = Effect::MoveService { entry, level: user };
    assert!(effects(&mut node).contains(&back), "what was on its way down comes up again");
    node.handle_event(NOW, place(user));
    effects(&mut node);

    node.handle_event(NOW, failed(0));
    node.handle_timeout(NOW + crate::service::BACKOFF_MAX);
    let started_at = effects(&mut node).into_iter().find_map(|effect| match effect {
        Effect::StartService { start: ServiceStart { levels, .. }, .. } => Some(levels),
        _ => None,
    });
    assert_eq!(started_at, Some(vec![user]));
    node.handle_event(NOW, place(user));
    node.handle_event(NOW, started(0));
    effects(&mut node);
    node.handle_command(NOW, Command::Bpf { enabled: true }).unwrap();
    assert_eq!(effects(&mut node), [Effect::MoveService { entry, level: nic }]);
}

#[test]
fn a_rule_number_is_not_reused_at_once() {
    let mut node = node();
    let drop_all = || add(vec![RuleSpec::new(Match::default(), Action::Drop)]);
    node.handle_command(NOW, drop_all()).unwrap();
    node.handle_command(NOW, Command::RuleRemove { rule: RuleId(0) }).unwrap();
    let outcome = node.handle_command(NOW, drop_all()).unwrap();
    assert!(matches!(outcome, Outcome::RulesAdded { ref rules, .. } if rules[0] == RuleId(1)));
}

#[test]
fn as_many_rules_as_counters_and_no_more() {
    let mut node = node();
    let spec = |i: usize| {
        let text = format!("dst 10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255);
        RuleSpec::new(text.parse().unwrap(), Action::Forward)
    };
    node.handle_command(NOW, add((0..RULES_MAX).map(spec).collect())).unwrap();
    effects(&mut node);
    let (class, message) = refused(&mut node, add(vec![spec(RULES_MAX)]));
    assert_eq!(class, RefusalClass::Limit, "{message}");
    node.handle_command(NOW, Command::RuleRemove { rule: RuleId(77) }).unwrap();
    assert!(node.handle_command(NOW, add(vec![spec(RULES_MAX)])).is_ok());
}

#[test]
fn too_many_rules_are_refused_before_any_is_checked() {
    let mut node = node();
    // A principal's rule in a stage of the operator's.
    let mut wrong = RuleSpec::new("any".parse().unwrap(), Action::Forward);
    wrong.stage = Some(crate::rule::Stage::In);
    let (class, message) = refused(&mut node, add(vec![wrong; RULES_MAX + 1]));
    assert_eq!(class, RefusalClass::Limit);
    assert!(message.contains("16385 more rules do not fit"), "{message}");
}

#[test]
fn events_about_nothing_change_nothing() {
    let mut node = running();
    for event in [started(0), started(9), failed(9), stopped(200), Event::CellReady] {
        node.handle_event(NOW, event);
        assert_eq!(node.poll_effect(), None);
    }
}

#[test]
fn documents_of_the_api_are_read_back() {
    fn back<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
    }
    let mut node = running();
    node.handle_event(NOW, failed(0));
    assert_eq!(back(&node.rules()), node.rules());
    assert_eq!(back(&node.ports().to_vec()), node.ports());
    let service = node.service(&name("monitor")).unwrap();
    assert_eq!(back(service), *service);
    for command in [deploy("a", "ip 4"), add(vec![to_service("any", "a")]), remove("a", true)] {
        assert_eq!(back(&command), command);
    }
}

fn then(service: &str, next: &[&str]) -> Command {
    let mut command = deploy_with(service, module("\"user\""), Vec::new());
    let Command::Deploy { then, .. } = &mut command else { unreachable!() };
    *then = next.iter().map(|next| name(next)).collect();
    command
}

fn edges(node: &mut Node) -> Vec<(u16, Vec<Option<u16>>)> {
    let open = |edge| match edge {
        Edge::To(entry) => Some(entry.0),
        Edge::Out => None,
        Edge::Down => panic!("no service is closed"),
    };
    let emitted = effects(node).into_iter().filter_map(|effect| match effect {
        Effect::SetEdges { entry, edges } => Some((entry.0, edges.map(open).to_vec())),
        _ => None,
    });
    emitted.collect()
}

/// Returns a node on which `classify` (1) leads to `monitor` (0); both run.
fn graph() -> Node {
    let mut node = running();
    node.handle_command(NOW, then("classify", &["monitor"])).unwrap();
    node.handle_event(NOW, started(1));
    assert_eq!(edges(&mut node), [(1, vec![Some(0), None, None, None])]);
    node
}

#[test]
fn an_edge_leads_where_a_service_runs_and_nowhere_when_it_does_not() {
    let mut node = graph();
    node.handle_event(NOW, failed(0));
    assert_eq!(edges(&mut node), [(1, vec![None; 4])], "what passes is forwarded");
    node.handle_timeout(NOW + Nanos::from_millis(10_000));
    node.handle_event(NOW, started(0));
    assert_eq!(edges(&mut node), [(1, vec![Some(0), None, None, None])]);
}

#[test]
fn a_service_learns_its_edges_anew_with_each_start() {
    let mut node = graph();
    node.handle_event(NOW, lost());
    node.handle_timeout(NOW + Nanos::from_millis(10_000));
    node.handle_event(NOW, Event::CellReady);
    effects(&mut node);
    node.handle_event(NOW, started(1));
    assert_eq!(edges(&mut node), [], "monitor does not run yet");
    node.handle_event(NOW, started(0));
    assert_eq!(edges(&mut node), [(1, vec![Some(0), None, None, None])]);
}

#[test]
fn a_service_stays_while_another_leads_to_it() {
    let mut node = graph();
    let (class, text) = refused(&mut node, remove("monitor", false));
    assert_eq!(class, RefusalClass::Busy);
    assert!(text.contains("comes after classify"), "{text}");
    node.handle_command(NOW, remove("monitor", true)).unwrap();
    assert!(node.service(&name("classify")).unwrap().then.is_empty());
    let emitted = effects(&mut node);
    let at = |found: fn(&Effect) -> bool| emitted.iter().position(found).unwrap();
    let edge = at(|effect| matches!(effect, Effect::SetEdges { .. }));
    let stop = at(|effect| matches!(effect, Effect::StopService { .. }));
    assert!(edge < stop, "{emitted:?}");
}

#[test]
fn a_graph_has_no_cycle_one_session_and_few_edges() {
    let mut node = running();
    let (class, _) = refused(&mut node, then("round", &["round"]));
    assert_eq!(class, RefusalClass::NotFound);
    let (class, text) = refused(&mut node, then("many", &["monitor"; 5]));
    assert_eq!((class, text.contains("at most 4")), (RefusalClass::Limit, true), "{text}");
    let mut other = then("other", &["monitor"]);
    let Command::Deploy { session, .. } = &mut other else { unreachable!() };
    *session = name("system");
    let (class, text) = refused(&mut node, other);
    assert_eq!((class, text.contains("under one session")), (RefusalClass::Invalid, true));
    let mut last = "monitor".to_owned();
    for number in 1..8 {
        let service = format!("s{number}");
        node.handle_command(NOW, then(&service, &[&last])).unwrap();
        node.handle_event(NOW, started(number));
        last = service;
    }
    effects(&mut node);
    let (class, text) = refused(&mut node, then("s8", &[&last]));
    assert_eq!((class, text.contains("9 services")), (RefusalClass::Limit, true), "{text}");
}

#[test]
fn an_edge_to_a_service_that_has_not_run_is_refused() {
    let mut node = node();
    node.handle_command(NOW, deploy("monitor", "proto udp")).unwrap();
    effects(&mut node);
    let (class, _) = refused(&mut node, then("classify", &["monitor"]));
    assert_eq!(class, RefusalClass::Busy);
}

#[test]
fn only_the_operator_chooses_stages_and_a_packet_belongs_to_one_principal() {
    use crate::rule::Stage;
    let mut node = running();
    let of = |session: &str, stage: Option<Stage>, text: &str| {
        let spec = RuleSpec::new(text.parse().unwrap(), Action::Drop);
        RuleSpec { session: name(session), stage, ..spec }
    };
    for (session, stage) in
        [("best-effort", Stage::In), ("best-effort", Stage::Out), ("system", Stage::Service)]
    {
        let (class, text) = refused(&mut node, add(vec![of(session, Some(stage), "any")]));
        assert_eq!(class, RefusalClass::Invalid);
        assert!(text.contains("are not of the stage"), "{text}");
    }
    node.handle_command(NOW, add(vec![of("system", Some(Stage::Out), "any")])).unwrap();
    node.handle_command(NOW, add(vec![of("system", None, "proto udp dport 53")])).unwrap();

    let (session, reservation) = (name("other"), Default::default());
    node.handle_command(NOW, Command::SessionCreate { session, reservation, owner: None }).unwrap();
    effects(&mut node);
    // `monitor` takes all of UDP, for best-effort.
    let (_, text) = refused(&mut node, add(vec![of("other", None, "dport 53 proto udp")]));
    assert!(text.contains("'proto udp', which is of session 'best-effort'"), "{text}");
    node.handle_command(NOW, add(vec![of("other", None, "proto tcp")])).unwrap();
    effects(&mut node);
    let both = vec![of("best-effort", None, "proto icmp"), of("other", None, "any")];
    let (_, text) = refused(&mut node, add(both));
    assert!(text.contains("narrow one of them"), "{text}");
}

#[test]
fn a_module_that_imports_ungranted_functions_is_refused_and_grants_reach_the_cell() {
    let functions = HostFunctions::from_iter([HostFunction::PacketSend, HostFunction::NowMs]);
    let sends = ModuleInfo { imports: functions, ..module("\"user\"") };
    let mut node = node();
    let less = HostFunctions::ALL.without(HostFunction::PacketSend);
    let wanted = deploy_with("sends", sends.clone().with_functions(less), Vec::new());
    let refused = node.handle_command(NOW, wanted).unwrap_err();
    let missing = HostFunctions::NONE.with(HostFunction::PacketSend);
    assert_eq!(refused, Refusal::NotGranted(NotGranted { missing }));
    assert_eq!((refused.class(), refused.class().exit_status()), (RefusalClass::Forbidden, 4));
    assert_eq!(effects(&mut node), []);

    let wanted = deploy_with("sends", sends.clone().with_functions(functions), Vec::new());
    node.handle_command(NOW, wanted).unwrap();
    let effects = effects(&mut node);
    let [Effect::StartService { start: ServiceStart { entry, functions: emitted, .. }, .. }] =
        effects[..]
    else {
        panic!("{effects:?}");
    };
    assert_eq!(emitted, functions);
    node.handle_event(NOW, Event::ServiceStarted { entry });
    // The restriction survives in the recorded state, and a new version is checked again.
    let service = node.service(&name("sends")).unwrap();
    let desired = crate::desired::DesiredService::of(service, None);
    assert!(desired.functions == functions && desired.is_version(service));
    let text = serde_json::to_string(&desired).unwrap();
    assert!(text.contains(r#"["packet_send","now_ms"]"#), "{text}");
    let read: crate::desired::DesiredService = serde_json::from_str(&text).unwrap();
    assert_eq!(read, desired);
    let before = text.replace(r#","functions":["packet_send","now_ms"]"#, "");
    let before: crate::desired::DesiredService = serde_json::from_str(&before).unwrap();
    assert_eq!(before.functions, HostFunctions::ALL, "a record of before limits nothing");
    assert!(!before.is_version(service));
    let version = Command::Replace {
        service: name("sends"),
        module: sends.with_functions(less),
        parameters: [("dscp".to_owned(), "10".to_owned())].into(),
        level: None,
        memory: crate::command::Memory::Kept,
    };
    assert_eq!(node.handle_command(NOW, version), Err(refused));
}
