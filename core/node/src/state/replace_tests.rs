//! Tests of new versions of running services.

use std::collections::{BTreeMap, BTreeSet};

use abi::Level;
use abi::check::MemoryImage;

use super::tests::{NOW, add, deploy_with, effects, lost, name, refused, running, to_service};
use super::*;
use crate::StatePath;
use crate::command::ServiceStart;
use crate::refusal::RefusalClass;
use crate::rule::{Action, RuleSpec};
use crate::service::{ModuleInfo, ServiceState};
use crate::testing::module;

/// Returns another version of the module that [`running`] runs.
pub(super) fn version(digest: &str) -> ModuleInfo {
    ModuleInfo { digest: digest.to_owned(), ..module("\"user\"") }
}

fn deploy(module: ModuleInfo, rules: &[&str]) -> Command {
    let rules = rules.iter().map(|text| to_service(text, "monitor")).collect();
    deploy_with("monitor", module, rules)
}

fn discarding(mut command: Command) -> Command {
    if let Command::Deploy { discard_state, .. } = &mut command {
        *discard_state = true;
    }
    command
}

pub(super) fn replaced() -> Event {
    Event::ServiceReplaced { entry: EntryId(0) }
}

pub(super) fn put_back() -> Event {
    Event::ServicePutBack { entry: EntryId(0), reason: "unreachable".into() }
}

fn kept() -> Event {
    Event::ServiceKept { entry: EntryId(0) }
}

pub(super) fn digest(node: &Node) -> &str {
    &node.service(&name("monitor")).unwrap().module.digest
}

fn matches(node: &Node) -> Vec<String> {
    node.rules().iter().map(|view| view.rule.spec.r#match.to_string()).collect()
}

#[test]
fn the_old_version_goes_on_until_the_new_one_runs() {
    let mut node = running();
    let outcome = node.handle_command(NOW, deploy(version("new"), &[])).unwrap();
    assert!(
        matches!(outcome, Outcome::Deployed { entry: EntryId(0), replaces: Some(ref old), .. } if old == "sha256:00")
    );
    let asked = effects(&mut node);
    assert!(
        matches!(&asked[..], [Effect::ReplaceService { start: ServiceStart { digest, .. }, path: StatePath::Memory }] if digest == "new"),
        "{asked:?}"
    );
    assert_eq!(digest(&node), "sha256:00");
    assert_eq!(node.digests().collect::<Vec<_>>(), ["sha256:00", "new"]);
    node.handle_event(NOW, replaced());
    assert_eq!(digest(&node), "new");
    // The front door's rules have not changed.
    let emitted = effects(&mut node);
    assert!(
        matches!(&emitted[..], [Effect::Report(Notice::ServiceReplaced { .. })]),
        "{emitted:?}"
    );
    assert_eq!(node.digests().count(), 2, "the old one may be wanted back");
    node.handle_event(NOW, kept());
    assert_eq!(node.digests().collect::<Vec<_>>(), ["new"]);
}

#[test]
fn a_failed_replacement_changes_nothing() {
    let mut node = running();
    let before = (node.rules(), node.service(&name("monitor")).cloned());
    node.handle_command(NOW, deploy(version("new"), &["ip 6"])).unwrap();
    assert_eq!(before, (node.rules(), node.service(&name("monitor")).cloned()));
    effects(&mut node);
    let reason = "on_start returned 1".to_owned();
    node.handle_event(NOW, Event::ReplaceFailed { entry: EntryId(0), reason });
    assert_eq!(before, (node.rules(), node.service(&name("monitor")).cloned()));
    let emitted = effects(&mut node);
    assert!(matches!(&emitted[..], [Effect::Report(Notice::ReplaceFailed { .. })]), "{emitted:?}");
    assert_eq!(node.digests().count(), 1);
}

#[test]
fn rules_change_with_the_version_and_back() {
    let mut node = running();
    let first = node.rules()[0].rule.id;
    node.handle_command(NOW, deploy(version("new"), &["proto tcp", "proto udp"])).unwrap();
    node.handle_event(NOW, replaced());
    assert_eq!(matches(&node), ["proto udp", "proto tcp"]);
    assert_eq!(node.rules()[0].rule.id, first, "one that stays keeps its number and its counters");
    node.handle_event(NOW, kept());

    node.handle_command(NOW, deploy(version("third"), &["ip 6"])).unwrap();
    node.handle_event(NOW, replaced());
    assert_eq!(matches(&node), ["ip 6"]);
    node.handle_event(NOW, put_back());
    assert_eq!(matches(&node), ["proto udp", "proto tcp"]);
    assert_eq!(digest(&node), "new");
    assert_eq!(node.service(&name("monitor")).unwrap().state, ServiceState::Running);
}

#[test]
fn a_node_that_is_adopted_while_a_version_is_tried_starts_the_one_before_anew() {
    for is_watched in [false, true] {
        let mut node = running();
        node.handle_command(NOW, deploy(version("new"), &["proto tcp"])).unwrap();
        if is_watched {
            node.handle_event(NOW, replaced());
        }
        let written = node.with_snapshot(|it| serde_json::to_string(it).unwrap());
        let snapshot: Snapshot = serde_json::from_str(&written).unwrap();
        assert_eq!(snapshot.running().count(), 0, "the cell is to end both");
        let ports = node.ports().iter().map(|port| port.spec.clone()).collect();
        let mut node = Node::restore(node.name().clone(), ports, snapshot).unwrap();
        node.resume(NOW, Ok(&BTreeSet::new()), &DesiredState::default());
        let starts = |effect: &Effect| match effect {
            Effect::StartService { start, .. } => Some(start.digest.clone()),
            _ => None,
        };
        let started: Vec<_> = effects(&mut node).iter().filter_map(starts).collect();
        assert_eq!(
            (started, matches(&node)),
            (vec!["sha256:00".to_owned()], vec!["proto udp".into()])
        );
        assert!(!node.is_replacing(), "nobody is answered");
    }
}

#[test]
fn a_replacement_that_would_lose_state_is_refused_without_discard_state() {
    let mut node = running();
    let other = ModuleInfo { image: MemoryImage(1), ..version("new") };
    let (class, message) = refused(&mut node, deploy(other.clone(), &[]));
    assert_eq!(class, RefusalClass::Loses);
    assert!(message.contains("--discard-state") && message.contains("constants"), "{message}");
    let mut later = version("new");
    later.manifest.state_version = 2;
    let (_, message) = refused(&mut node, deploy(later, &[]));
    assert!(message.contains("state version 1, the new one 2"), "{message}");
    node.handle_command(NOW, discarding(deploy(other, &[]))).unwrap();
    let asked = effects(&mut node);
    assert!(matches!(&asked[..], [Effect::ReplaceService { path: StatePath::Empty, .. }]));
}

#[test]
fn state_hooks_are_preferred_to_the_memory_image() {
    let mut node = running();
    let hands_over = |digest| ModuleInfo { hands_state_over: true, ..version(digest) };
    node.handle_command(NOW, deploy(hands_over("a"), &[])).unwrap();
    node.handle_event(NOW, replaced());
    node.handle_event(NOW, kept());
    effects(&mut node);
    let other = ModuleInfo { image: MemoryImage(7), ..hands_over("b") };
    node.handle_command(NOW, deploy(other, &[])).unwrap();
    let asked = effects(&mut node);
    assert!(matches!(&asked[..], [Effect::ReplaceService { path: StatePath::Hooks, .. }]));
}

#[test]
fn one_replacement_runs_at_a_time_and_a_lost_cell_reverts_it() {
    let mut node = running();
    node.handle_command(NOW, deploy(version("new"), &["ip 6"])).unwrap();
    effects(&mut node);
    let (class, message) = refused(&mut node, deploy(version("third"), &[]));
    assert_eq!(class, RefusalClass::Busy);
    assert!(message.contains("being replaced"), "{message}");
    node.handle_event(NOW, replaced());
    effects(&mut node);
    assert_eq!(refused(&mut node, deploy(version("third"), &[])).0, RefusalClass::Busy);
    node.handle_event(NOW, lost());
    assert_eq!(digest(&node), "sha256:00");
    assert_eq!(matches(&node), ["proto udp"]);
    let emitted = effects(&mut node);
    assert!(
        emitted.iter().any(|e| matches!(e, Effect::Report(Notice::ServicePutBack { .. }))),
        "{emitted:?}"
    );
}

#[test]
fn another_version_of_a_failed_service_starts_anew() {
    let mut node = running();
    node.handle_event(NOW, Event::ServiceFailed { entry: EntryId(0), reason: "trap".into() });
    effects(&mut node);
    node.handle_command(NOW, deploy(version("new"), &["ip 6"])).unwrap();
    assert_eq!((digest(&node), matches(&node)), ("new", vec!["ip 6".to_owned()]));
    let asked = effects(&mut node);
    assert!(
        matches!(&asked[..], [Effect::ClearRuleCounters { .. }, Effect::StartService { start: ServiceStart { digest, .. }, .. }] if digest == "new"),
        "{asked:?}"
    );
}

#[test]
fn a_removal_of_a_watched_version_reports_the_removal_only() {
    let mut node = running();
    node.handle_command(NOW, deploy(version("new"), &[])).unwrap();
    node.handle_event(NOW, replaced());
    effects(&mut node);
    node.handle_command(NOW, Command::Remove { service: name("monitor"), cascade: true }).unwrap();
    node.handle_event(NOW, Event::ServiceStopped { entry: EntryId(0) });
    let emitted = effects(&mut node);
    let notices: Vec<_> = emitted.iter().filter(|it| matches!(it, Effect::Report(_))).collect();
    assert!(matches!(notices[..], [Effect::Report(Notice::ServiceRemoved { .. })]), "{notices:?}");
}

#[test]
fn a_move_of_a_version_that_is_watched_holds_for_the_one_before_too() {
    let mut node = running();
    node.handle_command(NOW, deploy(version("new"), &[])).unwrap();
    node.handle_event(NOW, replaced());
    let service = name("monitor");
    node.handle_command(NOW, Command::Move { service, level: Level::User }).unwrap();
    effects(&mut node);
    node.handle_event(NOW, put_back());
    assert_eq!(node.levels_of(EntryId(0)), [Level::User]);
}

/// Returns a node that was asked for another version while its service waited for a cell, which is
/// ready now.
fn asked_without_cell(rules: &[&str]) -> Node {
    let mut node = running();
    node.handle_event(NOW, lost());
    effects(&mut node);
    node.handle_command(NOW, deploy(version("new"), rules)).unwrap();
    assert_eq!(digest(&node), "new");
    node.handle_timeout(node.poll_timeout().unwrap());
    node.handle_event(NOW, Event::CellReady);
    let started = effects(&mut node);
    let is_new =
        |it: &Effect| matches!(it, Effect::StartService { start, .. } if start.digest == "new");
    assert!(started.iter().any(is_new), "{started:?}");
    node
}

#[test]
fn a_version_that_does_not_start_after_the_cell_was_away_gives_way_to_the_one_before() {
    let mut node = asked_without_cell(&["ip 6"]);
    assert_eq!(matches(&node), ["ip 6"]);
    let reason = "on_start returned 7".to_owned();
    node.handle_event(NOW, Event::ServiceFailed { entry: EntryId(0), reason });
    assert_eq!((digest(&node), matches(&node)), ("sha256:00", vec!["proto udp".to_owned()]));
    let emitted = effects(&mut node);
    let is_old = |it: &Effect| matches!(it, Effect::StartService { start, .. } if start.digest == "sha256:00");
    assert!(emitted.iter().any(is_old), "{emitted:?}");
    let is_refused = |it: &Effect| matches!(it, Effect::Report(Notice::ReplaceFailed { .. }));
    assert_eq!(emitted.iter().filter(|it| is_refused(it)).count(), 1, "{emitted:?}");
    node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(0) });
    assert!(node.is_settled(&name("monitor")));
}

#[test]
fn a_version_that_starts_after_the_cell_was_away_stays_through_another_loss() {
    let mut node = asked_without_cell(&["ip 6"]);
    node.handle_event(NOW, lost());
    effects(&mut node);
    assert_eq!(digest(&node), "new", "it was not what ended the cell, as far as anybody knows");
    node.handle_timeout(node.poll_timeout().unwrap());
    node.handle_event(NOW, Event::CellReady);
    node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(0) });
    effects(&mut node);
    assert!(node.is_settled(&name("monitor")));
    let reason = "trap".to_owned();
    node.handle_event(NOW, Event::ServiceFailed { entry: EntryId(0), reason });
    assert_eq!((digest(&node), matches(&node)), ("new", vec!["ip 6".to_owned()]));
}

#[test]
fn after_several_unstarted_versions_the_one_that_ran_is_restored() {
    let mut node = running();
    node.handle_event(NOW, lost());
    for (digest, rules) in [("second", &["ip 6"][..]), ("third", &["proto tcp"]), ("fourth", &[])] {
        node.handle_command(NOW, deploy(version(digest), rules)).unwrap();
    }
    node.handle_timeout(node.poll_timeout().unwrap());
    node.handle_event(NOW, Event::CellReady);
    effects(&mut node);
    let reason = "on_start returned 7".to_owned();
    node.handle_event(NOW, Event::ServiceFailed { entry: EntryId(0), reason });
    assert_eq!((digest(&node), matches(&node)), ("sha256:00", vec!["proto udp".to_owned()]));
}

#[test]
fn packets_never_cycle() {
    let mut node = running();
    let mut second = deploy_with("second", version("second"), vec![]);
    if let Command::Deploy { then, .. } = &mut second {
        *then = vec![name("monitor")];
    }
    node.handle_command(NOW, second).unwrap();
    node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(1) });
    effects(&mut node);
    for next in ["second", "monitor"] {
        let mut round = deploy(version("new"), &[]);
        if let Command::Deploy { then, .. } = &mut round {
            *then = vec![name(next)];
        }
        let (class, message) = refused(&mut node, round);
        assert_eq!(class, RefusalClass::Invalid);
        assert!(message.contains("again"), "{message}");
    }
}

#[test]
fn rules_of_others_stay() {
    let mut node = running();
    let drop = RuleSpec::new("ip 6".parse().unwrap(), Action::Drop);
    node.handle_command(NOW, add(vec![to_service("in left", "monitor"), drop])).unwrap();
    node.handle_command(NOW, deploy(version("new"), &["proto tcp"])).unwrap();
    node.handle_event(NOW, replaced());
    node.handle_event(NOW, kept());
    let mut found = matches(&node);
    found.sort();
    assert_eq!(found, ["in left", "ip 6", "proto tcp"]);
}

fn another(module: ModuleInfo, memory: Memory) -> Command {
    let (service, parameters) = (name("monitor"), BTreeMap::new());
    Command::Replace { service, module, parameters, level: None, memory }
}

#[test]
fn another_version_keeps_rules_edges_and_budget() {
    let mut node = running();
    let budget = crate::budget::Budget { packets: Some(7), ..Default::default() };
    let on_failure = crate::OnFailure::Closed;
    let arrangement = crate::command::Arrangement {
        then: [].into(),
        level: None,
        budget,
        on_failure,
        owner: None,
    };
    let services = [(name("monitor"), arrangement)].into();
    let arrange = Command::Arrange { remove: vec![], add: vec![], services };
    node.handle_command(NOW, arrange).unwrap();
    effects(&mut node);
    let rules = node.numbered_rules();
    let outcome = node.handle_command(NOW, another(version("new"), Memory::Kept)).unwrap();
    assert_eq!(outcome, Outcome::Replacing { service: name("monitor"), runs: true, lost: None });
    assert!(!node.is_settled(&name("monitor")));
    node.handle_event(NOW, replaced());
    assert!(!node.is_settled(&name("monitor")), "it is watched");
    node.handle_event(NOW, kept());
    assert!(node.is_settled(&name("monitor")));
    assert_eq!((digest(&node), node.numbered_rules()), ("new", rules));
    assert_eq!(node.service(&name("monitor")).unwrap().budget, budget);
}

#[test]
fn another_version_begins_empty_only_where_it_may_and_must() {
    let mut node = running();
    let other = ModuleInfo { image: MemoryImage(1), ..version("other") };
    let (class, _) = refused(&mut node, another(other.clone(), Memory::Kept));
    assert_eq!(class, RefusalClass::Loses);
    let path = |node: &mut Node| match &effects(node)[..] {
        [Effect::ReplaceService { path, .. }] => *path,
        other => panic!("{other:?}"),
    };
    let may = |module| another(module, Memory::KeptIfPossible);
    let outcome = node.handle_command(NOW, may(version("new"))).unwrap();
    assert!(matches!(outcome, Outcome::Replacing { lost: None, .. }), "{outcome:?}");
    assert_eq!(path(&mut node), StatePath::Memory);
    node.handle_event(NOW, Event::ReplaceFailed { entry: EntryId(0), reason: "no".into() });
    effects(&mut node);
    let outcome = node.handle_command(NOW, may(other)).unwrap();
    assert!(
        matches!(&outcome, Outcome::Replacing { lost: Some(why), .. } if why.contains("constants")),
        "{outcome:?}"
    );
    assert_eq!(path(&mut node), StatePath::Empty);
    let mut lanes = version("lanes");
    lanes.manifest.lanes = abi::Lanes::Count(2);
    assert!(node.would_lose(&name("monitor"), &lanes, &name("best-effort")).is_some());
}

#[test]
fn a_service_that_does_not_run_starts_as_another_version() {
    let mut node = running();
    node.handle_event(NOW, Event::ServiceFailed { entry: EntryId(0), reason: "trap".into() });
    effects(&mut node);
    let other = ModuleInfo { image: MemoryImage(1), ..version("other") };
    assert_eq!(node.would_lose(&name("monitor"), &other, &name("best-effort")), None);
    let outcome = node.handle_command(NOW, another(other, Memory::Kept)).unwrap();
    assert!(matches!(outcome, Outcome::Replacing { runs: false, lost: None, .. }), "{outcome:?}");
    effects(&mut node);
    assert!(!node.is_settled(&name("monitor")));
    // The service is starting: another version has to wait.
    let (class, _) = refused(&mut node, another(version("third"), Memory::Kept));
    assert_eq!(class, RefusalClass::Busy);
    node.handle_event(NOW, Event::ServiceStarted { entry: EntryId(0) });
    assert_eq!((digest(&node), node.numbered_rules().len()), ("other", 1));
}
