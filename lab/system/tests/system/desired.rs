//! Desired state: applied as a whole or not at all, undone, and restored after every end.

use std::path::Path;
use std::time::Duration;

use api::{Applied, ApplyRequest, ErrorCode, RuleRequest, RulesRequest};
use testkit::{Service, root_or_skip, service_module, wait_for};

use crate::common::{Line, SOON, module};

/// Returns a module that counts and passes.
fn passing(name: &str) -> Vec<u8> {
    module(name, MANIFEST, PASS)
}

const MANIFEST: &str = "window = 64\nlevels = [\"user\"]";
const PASS: &str =
    r#"(memory (export "memory") 1) (func (export "on_packet") (result i32) (i32.const 0))"#;

impl Line {
    pub(crate) fn try_apply(
        &self,
        text: &str,
        more: impl FnOnce(&mut ApplyRequest),
    ) -> Result<Applied, api::ClientError> {
        let mut request = ApplyRequest {
            text: text.to_owned(),
            file: "edge.toml".to_owned(),
            ..ApplyRequest::default()
        };
        more(&mut request);
        self.node.client().apply(&request)
    }

    pub(crate) fn apply(&self, text: &str) -> Applied {
        self.try_apply(text, |_| {}).unwrap()
    }

    pub(crate) fn store(&self, wasm: &[u8]) -> String {
        self.node.client().store_module(wasm.to_vec()).unwrap().digest
    }

    pub(crate) fn services(&self) -> Vec<String> {
        let services = self.node.client().services().unwrap().services;
        services.into_iter().map(|service| service.name).collect()
    }

    pub(crate) fn rules(&self) -> Vec<String> {
        let rules = self.node.client().rules().unwrap().rules;
        rules.into_iter().map(|rule| format!("{} {}", rule.r#match, rule.action)).collect()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.node.client().desired().unwrap().generation
    }
}

const BOTH: &str = "[[service]]\nmodule = \"first\"\nrules = [\"proto icmp\"]\nthen = [\"second\"]\n\
                    [[service]]\nmodule = \"second\"\n\
                    [[rule]]\nmatch = \"proto tcp dport 23\"\naction = \"drop\"\n";

#[test]
fn a_file_is_applied_as_a_whole_and_what_stays_is_not_touched() {
    if !root_or_skip("apply") {
        return;
    }
    let line = Line::up();
    for name in ["first", "second", "third"] {
        line.store(&passing(name));
    }
    let applied = line.apply(BOTH);
    let kinds: Vec<&str> = applied.changes.iter().map(|change| change.kind.as_str()).collect();
    assert_eq!(kinds, ["service-added", "service-added", "rule-added", "rule-added"]);
    assert_eq!(line.services(), ["first", "second"]);
    line.resolve_neighbours();
    let counted = line.node.service("first").unwrap();
    assert!(counted.stats.packets > 0 && counted.stats.passed_on > 0, "{counted:#?}");
    // The same again changes nothing, not even the generation.
    let again = line.apply(BOTH);
    assert_eq!((again.changes, again.generation), (Vec::new(), applied.generation));

    // A third in the place of the second: the first runs on, with its memory and its counters.
    let other = BOTH.replace("second", "third");
    let would = line.try_apply(&other, |request| request.dry_run = true).unwrap();
    assert_eq!(line.services(), ["first", "second"], "a dry run changes nothing");
    let changes = line.apply(&other).changes;
    assert_eq!(would.changes, changes);
    assert!(changes.iter().all(|change| !change.replaced), "{changes:#?}");
    assert_eq!(line.services(), ["first", "third"]);
    let first = line.node.service("first").unwrap();
    assert_eq!((first.entry, first.restarts), (counted.entry, 0));
    assert_eq!(first.stats.packets, counted.stats.packets);
    assert_eq!(first.then.values().collect::<Vec<_>>(), ["third"]);
    line.resolve_neighbours();
    assert!(line.node.service("third").unwrap().stats.packets > 0);
    // Nothing at all.
    line.apply("");
    assert_eq!((line.services(), line.rules()), (Vec::new(), Vec::new()));
}

#[test]
fn missing_parts_of_an_applied_service_are_reported() {
    if !root_or_skip("apply") {
        return;
    }
    let line = Line::up();
    line.store(&testkit::service_module("compress").unwrap());
    let without = "[[service]]\nmodule = \"compress\"\nrules = [\"proto tcp dport 80\"]\n";
    let would = line.try_apply(without, |request| request.dry_run = true).unwrap();
    let applied = line.apply(without);
    assert_eq!(applied.lacks.len(), 1, "{:?}", applied.lacks);
    for words in ["service 'compress'", "tamandua_code_response", "code-responses"] {
        assert!(applied.lacks[0].contains(words), "{:?}", applied.lacks);
    }
    let again = line.apply(without);
    assert_eq!((would.lacks, again.lacks), (applied.lacks.clone(), applied.lacks));
    let with = format!("{without}parameters = {{ capabilities = \"code-responses\" }}\n");
    assert_eq!(line.apply(&with).lacks, [""; 0]);
}

#[test]
fn no_packet_is_lost_while_states_are_applied() {
    if !root_or_skip("apply under traffic") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    for name in ["first", "second", "third"] {
        line.store(&passing(name));
    }
    let (receiver, sender) = (line.udp("server", 7100), line.udp("client", 0));
    sender.connect(line.server(7100)).unwrap();
    let one = BOTH.replace("proto icmp", "proto udp dport 7100");
    let other = one.replace("second", "third");
    line.apply(&one);
    const PACKETS: u32 = 4000;
    let numbers = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                sender.send(&number.to_be_bytes()).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let received = scope.spawn(|| {
            let (mut numbers, mut payload) = (Vec::new(), [0; 4]);
            while numbers.len() < PACKETS as usize && receiver.recv(&mut payload).is_ok() {
                numbers.push(u32::from_be_bytes(payload));
            }
            numbers
        });
        for round in 0..6 {
            line.apply(if round % 2 == 0 { &other } else { &one });
        }
        received.join().unwrap()
    });
    assert_eq!(numbers, (0..PACKETS).collect::<Vec<_>>());
    let first = line.node.service("first").unwrap();
    assert_eq!(first.stats.packets, u64::from(PACKETS), "each packet met the service that stayed");
}

#[test]
fn an_unconfirmed_change_is_reverted_after_its_time_and_at_a_restart() {
    if !root_or_skip("confirmations") {
        return;
    }
    let mut line = Line::up();
    line.store(&passing("first"));
    let first = "[[service]]\nmodule = \"first\"\n";
    let within = |line: &Line, seconds| {
        line.try_apply(first, |request| request.confirm_s = Some(seconds)).unwrap()
    };
    assert_eq!(within(&line, 1).confirm_within_s, Some(1));
    let rules = RuleRequest::new("any", "drop").into();
    let said = line.node.client().add_rules(&rules).unwrap_err().to_string();
    assert!(said.contains("confirm"), "{said}");
    assert!(wait_for(SOON, || line.services().is_empty().then_some(())).is_some());
    assert_eq!(line.node.client().confirm().unwrap_err().code(), ErrorCode::NotFound);

    within(&line, 600);
    line.node.kill().unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    assert_eq!(line.services(), [""; 0], "it was not confirmed before the end");
    let cause = line.node.client().desired().unwrap().generations[0].cause.clone();
    assert!(cause.contains("not confirmed before a restart"), "{cause}");
}

/// Changes the state by every kind of command.
fn change_everything(line: &Line) {
    let monitor =
        Service { rules: &["proto icmp"], parameters: &[("dscp", "12")], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &monitor).unwrap();
    let before = Service { rules: &["proto udp"], then: &["monitor"], ..Service::default() };
    line.node.deploy(&passing("before"), &before).unwrap();
    line.node
        .deploy(&passing("gone"), &Service { rules: &["ip 6"], ..Service::default() })
        .unwrap();
    line.node.remove("gone").unwrap();
    let rule = |text: &str, action: &str| RuleRequest {
        priority: Some(50),
        ..RuleRequest::new(text, action)
    };
    let rules = vec![
        rule("proto tcp dport 1", "drop"),
        rule("proto tcp dport 2", "drop"),
        rule("any", "service monitor"),
    ];
    let added = line.node.client().add_rules(&RulesRequest { rules }).unwrap();
    line.node.client().remove_rule(added.rules[0]).unwrap();
}

fn assert_everything(line: &Line) {
    let all = || (line.services().len() == 2).then_some(());
    assert!(wait_for(SOON, all).is_some(), "{:?}\n{}", line.services(), line.node.log());
    let resumed = || (line.rules().len() == 4).then_some(());
    assert!(wait_for(SOON, resumed).is_some(), "{:?}", line.rules());
    let monitor = line.node.service("monitor").unwrap();
    assert_eq!((monitor.state.as_str(), monitor.parameters["dscp"].as_str()), ("running", "12"));
    let before = line.node.service("before").unwrap();
    assert_eq!(before.then.values().collect::<Vec<_>>(), ["monitor"]);
    let mut rules = line.rules();
    rules.sort();
    let expected = [
        "any service monitor",
        "proto icmp service monitor",
        "proto tcp dport 2 drop",
        "proto udp service before",
    ];
    assert_eq!(rules, expected);
    let counted = monitor.stats.packets;
    line.resolve_neighbours();
    assert!(line.node.service("monitor").unwrap().stats.packets > counted);
}

#[test]
fn a_restarted_node_runs_everything_that_it_ran_before() {
    if !root_or_skip("a restart") {
        return;
    }
    let mut line = Line::up();
    change_everything(&line);
    let generation = line.generation();
    assert!(line.node.stop().unwrap().success());
    line.node.start_again(&line.net, "r1").unwrap();
    assert_everything(&line);
    line.node.kill().unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    assert_everything(&line);
    assert_eq!(line.generation(), generation, "a start changes nothing");
}

#[test]
fn a_node_killed_at_any_moment_keeps_every_acknowledged_change() {
    if !root_or_skip("kills at random") {
        return;
    }
    let mut line = Line::up();
    // A cell with a service goes on for the next daemon.
    let service = Service { rules: &["proto tcp dport 65000"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let mut dice = 88_172_645_463_325_252_u64;
    let mut done: Vec<u16> = Vec::new();
    let mut next = 1;
    for round in 0..12 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let patience = Duration::from_micros(dice % 250_000);
        let client = line.node.client().clone();
        let (acknowledged, asked) = std::thread::scope(|scope| {
            let adding = scope.spawn(move || {
                let mut added = Vec::new();
                for port in next.. {
                    let rule = RuleRequest::new(format!("proto udp dport {port}"), "drop");
                    if client.add_rules(&rule.into()).is_err() {
                        return (added, port);
                    }
                    added.push(port);
                }
                (added, u16::MAX)
            });
            std::thread::sleep(patience);
            line.node.kill().unwrap();
            adding.join().unwrap()
        });
        done.extend(acknowledged);
        line.node.start_again(&line.net, "r1").unwrap();
        // The service has a rule of its own.
        let mut found: Vec<u16> = ports_of(&line, done.len() + 1);
        found.retain(|port| *port != 65_000);
        // The one that was being added when the kill came may be there.
        if found.last() == Some(&asked) {
            done.push(asked);
        }
        assert_eq!(found, done, "round {round}");
        next = asked + 1;
    }
    assert!(done.len() > 4, "too few rules were added: {}", done.len());
    line.resolve_neighbours();
}

/// Returns the L4 ports of the rules, once there are as many as expected.
fn ports_of(line: &Line, expected: usize) -> Vec<u16> {
    let resumed = || {
        let rules = line.rules();
        (rules.len() >= expected).then_some(rules)
    };
    let rules = wait_for(SOON, resumed).unwrap_or_else(|| line.rules());
    let port = |rule: &String| rule.split(' ').nth(3).and_then(|port| port.parse().ok());
    let mut ports: Vec<u16> = rules.iter().filter_map(port).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn a_service_whose_module_is_gone_stays_desired_and_the_rest_runs() {
    if !root_or_skip("a lost module") {
        return;
    }
    let mut line = Line::up();
    line.node
        .deploy(&passing("first"), &Service { rules: &["proto icmp"], ..Service::default() })
        .unwrap();
    line.node
        .deploy(&passing("second"), &Service { rules: &["ip 6"], ..Service::default() })
        .unwrap();
    let digest = line.node.service("second").unwrap().digest;
    assert!(line.node.stop().unwrap().success());
    let blob = digest.strip_prefix("sha256:").unwrap();
    let blob = line.node.directory().join("store/blobs/sha256").join(blob);
    let kept = std::fs::read(&blob).unwrap();
    std::fs::remove_file(&blob).unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    let there = || (line.services() == ["first"]).then_some(());
    assert!(wait_for(SOON, there).is_some());
    let waiting = line.node.client().desired().unwrap().waiting;
    assert_eq!(waiting.len(), 1);
    assert!(
        waiting[0].what.contains("second") && waiting[0].reason.contains(&digest),
        "{waiting:?}"
    );
    // It comes when its module does.
    std::fs::write(&blob, kept).unwrap();
    let back = || (line.services() == ["first", "second"] && line.rules().len() == 2).then_some(());
    assert!(wait_for(SOON, back).is_some(), "{}", line.node.log());
    let waiting = line.node.client().desired().unwrap().waiting;
    assert_eq!(waiting, []);
}

#[test]
fn a_state_that_cannot_be_read_stops_the_start_with_what_to_do() {
    if !root_or_skip("a damaged state") {
        return;
    }
    let mut line = Line::up();
    line.node.deploy(&passing("first"), &Service::default()).unwrap();
    assert!(line.node.stop().unwrap().success());
    let path = line.node.directory().join("store.state/state.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    let kept = bytes.clone();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&path, bytes).unwrap();
    let said = line.node.start_again(&line.net, "r1").unwrap_err().to_string();
    assert!(said.contains("damaged") && said.contains("move it away"), "{said}");
    assert!(said.contains(path.to_str().unwrap()), "{said}");
    assert!(!Path::new("/sys/fs/bpf/tamandua").join(line.node.name().as_str()).exists());
    std::fs::write(&path, kept).unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    assert!(wait_for(SOON, || (line.services() == ["first"]).then_some(())).is_some());
}
