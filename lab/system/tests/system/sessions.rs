//! Sessions at a real node: created, used, shown, changed and removed while packets flow.

use std::process::{Command, Output};

use api::client::ClientError;
use api::{ErrorCode, EventKind, SessionChange, SessionDetails, SessionRequest};
use testkit::{NodeUnderTest, Service, root_or_skip, tam};
use trust::{Extent, Grant, Kind, ModulePattern};

use crate::common::{Line, key, narrowed, passing, token};

const ROOT: u8 = 1;
const ALICE: u8 = 10;

fn request(name: &str, cpu: &[&str]) -> SessionRequest {
    let cpu = cpu.iter().map(|share| (*share).to_owned()).collect();
    SessionRequest { name: name.to_owned(), cpu, ..SessionRequest::default() }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (ErrorCode, String) {
    let error = answer.unwrap_err();
    (error.code(), error.to_string())
}

impl Line {
    fn tam(&self, arguments: &[&str]) -> Output {
        let node = self.node.name().to_string();
        Command::new(tam()).args(["--node", &node]).args(arguments).output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.tam(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn session(&self, name: &str) -> SessionDetails {
        self.node.client().session(name).unwrap()
    }

    fn sessions(&self) -> Vec<String> {
        let sessions = self.node.client().sessions().unwrap().sessions;
        sessions.into_iter().map(|session| session.name).collect()
    }

    /// Returns a line with `monitor` in the session `gold`, for ICMP packets.
    fn with_gold(cpu: &[&str]) -> Self {
        let line = Self::up();
        line.node.client().create_session(&request("gold", cpu)).unwrap();
        let service = Service { session: "gold", rules: &["proto icmp"], ..Service::default() };
        line.node.deploy(&passing("monitor"), &service).unwrap();
        line
    }
}

#[test]
fn a_session_is_made_used_shown_and_changed_while_its_service_runs() {
    if !root_or_skip("sessions") {
        return;
    }
    let line = Line::up();
    let made =
        line.said(&["session", "create", "gold", "--cpu", "25%/100ms+extra", "--memory", "64MiB"]);
    assert!(made.contains("gold (made)") && made.contains("25ms/100ms+extra"), "{made}");
    let service = Service { session: "gold", rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&passing("monitor"), &service).unwrap();
    line.said(&["rule", "add", "proto tcp dport 23", "--drop", "--session", "gold"]);
    line.resolve_neighbours();
    let gold = line.session("gold");
    assert_eq!(
        (gold.services.as_slice(), gold.rules.len()),
        (["monitor".to_owned()].as_slice(), 2)
    );
    let counted = line.node.service("monitor").unwrap().stats;
    assert!(counted.packets > 0);
    assert_eq!(gold.used.total.packets, counted.packets);
    assert_eq!(gold.used.memory_bytes, counted.memory_bytes);
    assert_eq!(gold.promised.memory_bytes, Some(64 << 20));
    assert_eq!(line.node.stats().unwrap().sessions["gold"].packets, counted.packets);

    let changed = line.said(&["session", "set", "gold", "--cpu", "10ms/100ms", "--no-memory"]);
    assert!(changed.contains("10ms/100ms") && !changed.contains("memory"), "{changed}");
    let gold = line.session("gold");
    assert_eq!(
        (gold.promised.cpu, gold.promised.memory_bytes),
        (vec!["10ms/100ms".to_owned()], None)
    );
    // The service did not notice.
    let after = line.node.service("monitor").unwrap();
    assert_eq!((after.restarts, after.stats.packets), (0, counted.packets));
    let shown = line.said(&["session", "show", "gold"]);
    assert!(shown.contains("services  monitor") && shown.contains("10ms/100ms"), "{shown}");
    let listed = line.said(&["session", "list"]);
    assert!(listed.contains("best-effort") && listed.contains("gold"), "{listed}");

    // What is in it keeps it there; with --cascade everything goes, and packets go plainly.
    let output = line.tam(&["session", "remove", "gold"]);
    let says = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("monitor") && says.contains("--cascade"), "{says}");
    let removed = line.said(&["session", "remove", "gold", "--cascade"]);
    assert!(removed.contains("monitor"), "{removed}");
    assert_eq!(line.sessions(), ["system", "best-effort"]);
    assert!(line.node.service("monitor").is_err());
    assert_eq!(line.node.client().rules().unwrap().rules, []);
    line.resolve_neighbours();
    // Another one of that name begins from zero.
    line.node.client().create_session(&request("gold", &[])).unwrap();
    assert_eq!(line.session("gold").used.total.packets, 0);
    let events = line.node.client().events(0, 0).unwrap().events;
    let told = events.iter().filter(|event| event.session.as_deref() == Some("gold"));
    let told: Vec<EventKind> = told.map(|event| event.kind).collect();
    for kind in [EventKind::SessionCreated, EventKind::SessionChanged, EventKind::SessionRemoved] {
        assert!(told.contains(&kind), "{kind:?} is not in {told:?}");
    }
}

#[test]
fn reservations_beyond_capacity_are_refused_with_the_remainder() {
    if !root_or_skip("sessions") {
        return;
    }
    let line = Line::up();
    let client = line.node.client();
    let left = client.sessions().unwrap().left.unwrap();
    assert_eq!(
        (left.cpu_parts.as_slice(), left.port_parts["right"]),
        ([900_000].as_slice(), 990_000)
    );
    line.said(&["session", "create", "gold", "--cpu", "60%/100ms", "--send", "right=50%/10ms"]);
    for (asked, says) in [
        (["--cpu", "40%/100ms"], "request at most 30ms/100ms"),
        (["--send", "right=60%/10ms"], "49 % can still be reserved, of 99 %"),
        (["--queue", "1GiB"], "of packet memory are left"),
        (["--memory", "1024GiB"], " are left"),
        (["--below", "60%/100ms"], "request at most 50ms/100ms"),
    ] {
        let output = line.tam(&["session", "create", "silver", asked[0], asked[1]]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(5) && said.contains(says), "{asked:?}: {said}");
    }
    assert_eq!(line.sessions(), ["system", "best-effort", "gold"]);
    let file = FILE.replace("20ms/100ms", "95ms/100ms");
    line.store(&passing("monitor"));
    let said = line.try_apply(&file, |_| {}).unwrap_err().to_string();
    assert!(said.contains("line 2") && said.contains("can still be reserved"), "{said}");
    // What is given up somebody else can have.
    line.said(&["session", "set", "gold", "--cpu", "10%/100ms"]);
    line.said(&["session", "create", "silver", "--cpu", "75%/100ms"]);
    let listed = line.said(&["session", "list"]);
    assert!(listed.contains("left to promise: cpu 5 %"), "{listed}");
}

#[test]
fn concurrent_reservations_are_not_granted_the_same_capacity_twice() {
    if !root_or_skip("sessions") {
        return;
    }
    let line = Line::up();
    let client = line.node.client();
    let ask = |number: usize| {
        let client = client.clone();
        move || client.create_session(&request(&format!("s{number}"), &["20%/100ms"]))
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..16).map(|number| scope.spawn(ask(number))).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    for answer in answers.into_iter().filter(Result::is_err) {
        assert_eq!(refused(answer).0, ErrorCode::Limit);
    }
    // Four that have a fifth each and all want more: there is room for two of them.
    let mut names = line.sessions();
    names.drain(..2);
    let more = SessionChange { cpu: Some(vec!["25%/100ms".into()]), ..SessionChange::default() };
    let grown = std::thread::scope(|scope| {
        let ask = |name: &String| {
            let (client, name, more) = (client.clone(), name.clone(), more.clone());
            move || client.set_session(&name, &more).is_ok()
        };
        let asked: Vec<_> = names.iter().map(|name| scope.spawn(ask(name))).collect();
        asked.into_iter().map(|one| one.join().unwrap()).filter(|ok| *ok).count()
    });
    assert_eq!(grown, 2);
    assert_eq!(client.sessions().unwrap().left.unwrap().cpu_parts, [0]);
}

#[test]
fn sessions_outlive_daemons_and_the_node() {
    if !root_or_skip("sessions") {
        return;
    }
    let mut line = Line::with_gold(&["20ms/100ms"]);
    line.resolve_neighbours();
    let before = line.session("gold");
    assert!(before.used.total.packets > 0);
    let as_before = |line: &Line| {
        let now = line.session("gold");
        assert_eq!(
            (now.id, &now.promised, &now.services),
            (before.id, &before.promised, &before.services)
        );
        assert!(now.used.total.packets >= before.used.total.packets, "{now:#?}");
    };
    // Killed, and adopted by the next one.
    line.node.kill().unwrap();
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    as_before(&line);
    assert_eq!(line.node.service("monitor").unwrap().restarts, 0);
    // Handed over.
    let Line { node, net } = &mut line;
    assert!(node.take_over(net, "r1").unwrap().success());
    as_before(&line);
    line.node.client().create_session(&request("silver", &[])).unwrap();
    line.said(&["session", "set", "gold", "--weight", "300"]);
    // Ended, and started from what its state says.
    line.node.stop().unwrap();
    let Line { node, net } = &mut line;
    node.start_again(net, "r1").unwrap();
    assert_eq!(line.sessions().len(), 4);
    let gold = line.session("gold");
    assert_eq!((gold.promised.weight, gold.promised.cpu), (300, before.promised.cpu.clone()));
    line.resolve_neighbours();
    assert_eq!(line.session("gold").services, ["monitor"]);
}

const FILE: &str = "[[session]]\nname = \"gold\"\ncpu = [\"20ms/100ms\"]\n\
                    [[session]]\nname = \"silver\"\nweight = 5\n\
                    [[service]]\nmodule = \"monitor\"\nsession = \"gold\"\nrules = [\"proto icmp\"]\n\
                    [[rule]]\nmatch = \"proto tcp dport 23\"\naction = \"drop\"\nsession = \"silver\"\n";

#[test]
fn a_file_has_its_sessions_applied_with_everything_else_and_taken_back() {
    if !root_or_skip("sessions") {
        return;
    }
    let line = Line::up();
    line.store(&passing("monitor"));
    let would = line.try_apply(FILE, |request| request.dry_run = true).unwrap();
    assert_eq!(line.sessions(), ["system", "best-effort"], "a dry run changes nothing");
    let applied = line.apply(FILE);
    assert_eq!(would.changes, applied.changes);
    let kinds: Vec<&str> = applied.changes.iter().map(|change| change.kind.as_str()).collect();
    let added = ["session-added", "session-added", "service-added", "rule-added", "rule-added"];
    assert_eq!(kinds, added);
    assert_eq!(line.sessions(), ["system", "best-effort", "gold", "silver"]);
    line.resolve_neighbours();
    let counted = line.node.service("monitor").unwrap().stats.packets;
    assert!(counted > 0);

    // A reservation changes, and nothing else: the service runs on with its counters.
    let more = FILE.replace("20ms/100ms", "30ms/100ms+extra");
    let changes = line.apply(&more).changes;
    assert_eq!((changes.len(), changes[0].kind.as_str()), (1, "session-changed"));
    assert_eq!(changes[0].fields[0].after.as_deref(), Some("30ms/100ms+extra"));
    let service = line.node.service("monitor").unwrap();
    assert_eq!((service.restarts, service.stats.packets), (0, counted));

    // Without it, its service has to go elsewhere; the mistake has its place.
    let without = more.replace("[[session]]\nname = \"gold\"\ncpu = [\"30ms/100ms+extra\"]\n", "");
    let said = line.try_apply(&without, |_| {}).unwrap_err().to_string();
    assert!(said.contains("line 6") && said.contains("no session 'gold'"), "{said}");
    let moved = without.replace("session = \"gold\"", "session = \"silver\"");
    line.try_apply(&moved, |request| request.discard_state = true).unwrap();
    assert_eq!(line.sessions(), ["system", "best-effort", "silver"]);
    assert_eq!(line.node.service("monitor").unwrap().session, "silver");

    // And back, twice.
    for sessions in [4, 3] {
        let back = api::RollbackRequest::default();
        line.node.client().rollback(&back).unwrap();
        assert_eq!(line.sessions().len(), sessions);
    }
    let generations = line.node.client().desired().unwrap().generations;
    let causes: Vec<&str> = generations.iter().map(|it| it.cause.as_str()).collect();
    assert!(causes[0].starts_with("rollback to"), "{causes:?}");
    assert!(causes.contains(&"apply edge.toml"), "{causes:?}");
    line.apply("");
    assert_eq!(line.sessions(), ["system", "best-effort"]);
}

/// Returns the grant of a principal that may create sessions of these names.
fn grant(sessions: &[&str]) -> Grant {
    use trust::Operation::{Deploy, Read, Remove, Rule, Session, Store};
    Grant {
        operations: Extent::only([Read, Store, Deploy, Remove, Rule, Session]),
        sessions: Extent::only(sessions.iter().map(|it| (*it).to_owned())),
        modules: Extent::only([ModulePattern::NameBegins("monitor".to_owned())]),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        functions: Extent::none(),
        traffic: Extent::All,
        ..Grant::none()
    }
}

fn trusting() -> Line {
    let net = testkit::Net::line(1500).unwrap();
    let more = |text: String| format!("{text}administrators = [\"{}\"]\n", key(ROOT).public());
    let node = NodeUnderTest::start_edited(&net, "r1", "", more).unwrap();
    Line { node, net }
}

#[test]
fn ceilings_of_a_token_bind_what_all_sessions_of_its_grant_have_together() {
    if !root_or_skip("sessions") {
        return;
    }
    let line = trusting();
    let mut granted = grant(&["one", "two", "three"]);
    // Half a core, and a mebibyte.
    (granted.ceilings.0[1], granted.ceilings.0[2]) = (Some(500_000), Some(1 << 20));
    let alice = token(ROOT, ALICE, &granted);
    let of = |text: &str| line.node.client().clone().with_token(text);
    let client = of(&alice);
    client.create_session(&request("one", &["30ms/100ms"])).unwrap();
    let (code, says) = refused(client.create_session(&request("two", &["30ms/100ms"])));
    assert_eq!(code, ErrorCode::Refused);
    assert!(says.contains("ceiling cpu: 600000"), "{says}");
    // What is left of the token has no more, either.
    let narrower = of(&narrowed(&alice, &Grant::all()));
    narrower.create_session(&request("two", &["20ms/100ms"])).unwrap();
    let (_, says) = refused(narrower.create_session(&request("three", &["1ms/100ms"])));
    assert!(says.contains("ceiling cpu: 510000"), "{says}");
    let more = SessionChange { cpu: Some(vec!["31ms/100ms".into()]), ..SessionChange::default() };
    assert!(refused(client.set_session("one", &more)).1.contains("ceiling cpu: 510000"));
    let memory = SessionChange { memory: Some("2MiB".into()), ..SessionChange::default() };
    assert!(refused(client.set_session("one", &memory)).1.contains("ceiling memory: 2097152"));
    // A name that the token does not grant, and one that is not there.
    let (code, says) = refused(client.create_session(&request("four", &[])));
    assert!(code == ErrorCode::Refused && says.contains("lacks session four"), "{says}");
    // Whoever may everything is bound by nothing.
    line.node.client().set_session("one", &more).unwrap();
}
