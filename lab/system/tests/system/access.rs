//! Who may do what on a node: every role at every endpoint with things of every owner, and
//! capabilities that end.

mod sessions;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::client::ClientError;
use api::{Client, ENDPOINTS, ErrorCode, Operation};
use testkit::{NodeUnderTest, root_or_skip, wait_for};
use trust::{Extent, Grant, HeldToken, Kind, ModulePattern, UnixTime};

use crate::common::{Line, SOON, key, module, narrowed, token};

const ROOT: u8 = 1;
const SECOND_ROOT: u8 = 2;
const ALICE: u8 = 10;
const BOB: u8 = 11;

/// What somebody has who runs modules of his own on traffic of his own.
fn ordinary(traffic: &str) -> Grant {
    use trust::Operation::{Capture, Deploy, Message, Move, Read, Remove, Rule, Session, Store};
    let sessions = ["best-effort"].into_iter().chain(sessions::NAMES);
    Grant {
        operations: Extent::only([
            Read, Store, Deploy, Remove, Move, Message, Rule, Capture, Session,
        ]),
        sessions: Extent::only(sessions.map(str::to_owned)),
        modules: Extent::only([ModulePattern::NameBegins("pass".to_owned())]),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        functions: Extent::none(),
        traffic: Extent::only([traffic.parse().unwrap()]),
        ..Grant::none()
    }
}

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

fn until(seconds: u64) -> Grant {
    Grant { until: Some(UnixTime(now().0 + seconds)), ..Grant::all() }
}

fn pass(name: &str) -> Vec<u8> {
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_message") (param i32) (result i32) (i32.const 7))
        (func (export "on_packet") (result i32) (i32.const 0))"#;
    module(name, "window = 64\nmemory_pages_max = 1\nlevels = [\"user\", \"nic\"]", fields)
}

fn with_trust(line: &str) -> Line {
    let net = testkit::Net::line(1500).unwrap();
    let more = |text: String| {
        let keys = [ROOT, SECOND_ROOT].map(|it| format!("\"{}\"", key(it).public())).join(", ");
        format!("{text}administrators = [{keys}]\n{line}\n")
    };
    let node = NodeUnderTest::start_edited(&net, "r1", "", more).unwrap();
    Line { node, net }
}

fn code<T>(answer: &Result<T, ClientError>) -> Option<ErrorCode> {
    answer.as_ref().err().map(ClientError::code)
}

/// What a role gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// It is done, or fails for another reason than rights.
    Granted,
    /// The thing is not there, as far as the role can know.
    NotThere,
    Refused,
}

fn got<T>(answer: &Result<T, ClientError>) -> Got {
    match code(answer) {
        Some(ErrorCode::NotFound) => Got::NotThere,
        Some(ErrorCode::Refused) => Got::Refused,
        _ => Got::Granted,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// The owner of the socket.
    Operator,
    /// A token that grants everything.
    Administrator,
    /// One that reads everybody's.
    Watcher,
    Alice,
    /// Alice's, narrowed to reading.
    AliceReads,
    Bob,
    /// Alice's of yesterday.
    Ended,
    /// A token of another node's administrator.
    Stranger,
}

const ROLES: [Role; 8] = [
    Role::Operator,
    Role::Administrator,
    Role::Watcher,
    Role::Alice,
    Role::AliceReads,
    Role::Bob,
    Role::Ended,
    Role::Stranger,
];

const OWNERS: [Role; 3] = [Role::Operator, Role::Alice, Role::Bob];

struct World {
    line: Line,
    clients: BTreeMap<Role, Client>,
    digest: String,
}

impl World {
    fn new() -> Self {
        let line = with_trust("");
        let of = |text: String| line.node.client().clone().with_token(text);
        let alice = token(ROOT, ALICE, &ordinary("10.1.0.0/16"));
        let reads = Grant { operations: Extent::only([trust::Operation::Read]), ..Grant::all() };
        let yesterday = UnixTime(now().0 - 86_400);
        let ended = Grant { until: Some(yesterday), ..ordinary("10.1.0.0/16") };
        let clients = BTreeMap::from([
            (Role::Operator, line.node.client().clone()),
            (Role::Administrator, of(token(ROOT, 12, &Grant::all()))),
            (Role::Watcher, of(narrowed(&token(SECOND_ROOT, 13, &Grant::all()), &reads))),
            (Role::AliceReads, of(narrowed(&alice, &reads))),
            (Role::Alice, of(alice)),
            (Role::Bob, of(token(SECOND_ROOT, BOB, &ordinary("10.2.0.0/16")))),
            (Role::Ended, of(token(ROOT, ALICE, &ended))),
            (Role::Stranger, of(token(77, ALICE, &Grant::all()))),
        ]);
        let stored = clients[&Role::Alice].store_module(pass("pass-on")).unwrap();
        Self { line, clients, digest: stored.digest }
    }

    /// The traffic that is an owner's.
    fn traffic(owner: Role) -> &'static str {
        match owner {
            Role::Alice => "dst 10.1.7.0/24",
            Role::Bob => "dst 10.2.7.0/24",
            _ => "dst 10.3.7.0/24",
        }
    }

    /// A service and a rule of an owner's; the rule's number.
    fn furnish(&self, owner: Role) -> u32 {
        let client = &self.clients[&owner];
        let name = Self::service(owner);
        let operator = self.line.node.client();
        let key = match owner {
            Role::Alice => Some(key(ALICE).public().to_string()),
            Role::Bob => Some(key(BOB).public().to_string()),
            _ => None,
        };
        let there = operator.service(&name);
        if there.as_ref().is_ok_and(|there| there.owner != key) {
            // Somebody who may has taken it over.
            operator.remove(&name, true).unwrap();
        }
        if !there.is_ok_and(|there| there.owner == key) {
            let request = api::DeployRequest {
                module: self.digest.clone(),
                name: Some(name.clone()),
                ..api::DeployRequest::default()
            };
            client.deploy(&request).unwrap();
        }
        let rules = operator.rules().unwrap().rules;
        let there = rules.iter().find(|rule| rule.r#match == Self::traffic(owner));
        there.map(|rule| rule.id).unwrap_or_else(|| {
            let rule = api::RuleRequest::new(Self::traffic(owner), format!("service {name}"));
            client.add_rules(&api::RulesRequest { rules: vec![rule] }).unwrap().rules[0]
        })
    }

    fn service(owner: Role) -> String {
        format!("of-{owner:?}").to_lowercase()
    }

    /// One request of a role about something of an owner's.
    fn try_it(&self, role: Role, operation: Operation, owner: Role) -> Got {
        // Other requests are about nothing of anybody's in particular.
        let rule = if is_about_something(operation) { self.furnish(owner) } else { 0 };
        let (client, name) = (&self.clients[&role], Self::service(owner));
        match operation {
            Operation::Node => got(&client.node()),
            Operation::Services => got(&client.services()),
            Operation::Service => got(&client.service(&name)),
            Operation::Deploy => {
                let request = api::DeployRequest {
                    module: self.digest.clone(),
                    name: Some(name),
                    ..api::DeployRequest::default()
                };
                got(&client.deploy(&request))
            }
            Operation::Remove => got(&client.remove(&name, true)),
            Operation::Message => got(&client.message(&name, b"x")),
            Operation::Move => got(&client.move_service(&name, "user")),
            Operation::Bpf => got(&client.set_bpf(true)),
            Operation::Sessions
            | Operation::Session
            | Operation::CreateSession
            | Operation::SetSession
            | Operation::RemoveSession => self.try_session(role, operation, owner),
            Operation::Rules => got(&client.rules()),
            Operation::AddRules => {
                let rule =
                    api::RuleRequest::new(Self::traffic(owner).replace(".7.", ".8."), "drop");
                let added = client.add_rules(&api::RulesRequest { rules: vec![rule] });
                let result = got(&added);
                for rule in added.into_iter().flat_map(|added| added.rules) {
                    self.line.node.client().remove_rule(rule).unwrap();
                }
                result
            }
            Operation::RemoveRule => got(&client.remove_rule(rule)),
            Operation::StoreModule => got(&client.store_module(pass("pass-on"))),
            Operation::AddSignatures => {
                let file = trust::SignatureFile::default().to_string();
                got(&client.add_signatures(&self.digest, &file))
            }
            Operation::Modules => got(&client.modules()),
            Operation::Stats => got(&client.stats()),
            Operation::Events => got(&client.events(0, 0)),
            Operation::Why => got(&client.why()),
            Operation::Explain => {
                let packet = Some("proto udp dst 10.1.7.1 in left".to_owned());
                got(&client.explain(&api::ExplainRequest { packet, ..Default::default() }))
            }
            Operation::Metrics => got(&client.metrics()),
            Operation::Capture | Operation::Captured | Operation::EndCapture => {
                self.try_capture(client, operation, owner, rule)
            }
            Operation::Desired => got(&client.desired()),
            Operation::Apply => {
                got(&client.apply(&api::ApplyRequest { dry_run: true, ..Default::default() }))
            }
            // Nothing waits for one, and whoever may ask is told so.
            Operation::Confirm => match client.confirm() {
                Err(error) if error.to_string().contains("nothing waits") => Got::Granted,
                answer => got(&answer),
            },
            Operation::Rollback => {
                got(&client.rollback(&api::RollbackRequest { dry_run: true, ..Default::default() }))
            }
            // Whoever may would end the daemon.
            Operation::HandOver if matches!(role, Role::Operator | Role::Administrator) => {
                Got::Granted
            }
            Operation::HandOver => got(&client.hand_over()),
            Operation::Revoke => {
                let revoke = vec![key(200).public().to_string()];
                got(&client.revoke(&api::RevokeRequest { revoke }))
            }
            Operation::Revocations => got(&client.revocations()),
            Operation::Backup => got(&client.backup()),
            Operation::Ledger => got(&client.ledger(0)),
            Operation::LedgerTotals => got(&client.ledger_totals(0, u64::MAX)),
            Operation::LedgerReceipt => {
                let principal = match owner {
                    Role::Alice => key(ALICE).public().to_string(),
                    Role::Bob => key(BOB).public().to_string(),
                    _ => self.line.node.client().node().unwrap().node_key,
                };
                // Nothing was billed yet, and whoever may ask is told so.
                match client.ledger_receipt(&principal, 0) {
                    Err(error) if error.code() == ErrorCode::NotFound => Got::Granted,
                    answer => got(&answer),
                }
            }
            Operation::OpenApi => got(&client.openapi()),
        }
    }

    fn try_capture(&self, client: &Client, operation: Operation, owner: Role, rule: u32) -> Got {
        let request = api::CaptureRequest { rule: Some(rule), ..api::CaptureRequest::default() };
        let asks = if operation == Operation::Capture { client } else { &self.clients[&owner] };
        let started = asks.capture(&request);
        let Ok(id) = started.as_ref().map(|started| started.id) else { return got(&started) };
        let result = match operation {
            Operation::Capture => Got::Granted,
            Operation::Captured => got(&client.captured(id, 0)),
            _ => got(&client.end_capture(id)),
        };
        // Gone already where the role could end it.
        let _ = self.line.node.client().end_capture(id);
        result
    }
}

/// Whether a request is about a service, a rule or a session of somebody's.
const fn is_about_something(operation: Operation) -> bool {
    use Operation as O;
    matches!(
        operation,
        O::Service
            | O::Deploy
            | O::Remove
            | O::Message
            | O::Move
            | O::Sessions
            | O::Session
            | O::CreateSession
            | O::SetSession
            | O::RemoveSession
            | O::AddRules
            | O::RemoveRule
            | O::Explain
            | O::Capture
            | O::Captured
            | O::EndCapture
    )
}

/// What the design says (docs/guides/trust.md, "What a request needs").
fn expected(role: Role, operation: Operation, owner: Role) -> Got {
    use Operation as O;
    let everything = matches!(role, Role::Operator | Role::Administrator);
    let own = match role {
        Role::Alice | Role::AliceReads => owner == Role::Alice,
        Role::Bob => owner == Role::Bob,
        _ => false,
    };
    match (role, operation) {
        // A token that nobody here has signed is no token for anything.
        (Role::Stranger, _) => Got::Refused,
        (_, O::OpenApi) => Got::Granted,
        (Role::Ended, _) => Got::Refused,
        _ if everything => Got::Granted,
        (_, O::Sessions | O::Session | O::CreateSession | O::SetSession | O::RemoveSession) => {
            sessions::expected(role, operation, owner, own)
        }
        (_, O::Node | O::Services | O::Rules | O::Modules | O::Stats | O::Events | O::Why) => {
            Got::Granted
        }
        (
            Role::Watcher,
            O::Service
            | O::Metrics
            | O::Explain
            | O::Desired
            | O::Ledger
            | O::LedgerTotals
            | O::LedgerReceipt,
        ) => Got::Granted,
        (Role::Watcher, _) => Got::Refused,
        (_, O::LedgerReceipt) if own => Got::Granted,
        (_, O::Service) => {
            if own {
                Got::Granted
            } else {
                Got::NotThere
            }
        }
        (Role::AliceReads, _) => Got::Refused,
        (_, O::Remove | O::Message | O::Move | O::RemoveRule) if own => Got::Granted,
        (_, O::Remove | O::Message | O::Move | O::RemoveRule) => Got::NotThere,
        (_, O::Capture | O::Captured | O::EndCapture) if own => Got::Granted,
        (_, O::Capture | O::Captured | O::EndCapture) => Got::NotThere,
        // A name that is taken, and traffic that is another's.
        (_, O::Deploy | O::AddRules) => {
            if own {
                Got::Granted
            } else {
                Got::Refused
            }
        }
        (_, O::StoreModule | O::AddSignatures) => Got::Granted,
        _ => Got::Refused,
    }
}

#[test]
fn every_role_at_every_endpoint_with_things_of_every_owner() {
    if !root_or_skip("access") {
        return;
    }
    let world = World::new();
    let mut wrong = Vec::new();
    let mut count = 0;
    for endpoint in ENDPOINTS {
        for role in ROLES {
            for owner in OWNERS {
                let expected = expected(role, endpoint.operation, owner);
                let got = world.try_it(role, endpoint.operation, owner);
                count += 1;
                if got != expected {
                    let operation = endpoint.operation;
                    wrong.push(format!(
                        "{role:?} {operation:?} of {owner:?}: {got:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    assert_eq!(count, ENDPOINTS.len() * ROLES.len() * OWNERS.len());
}

#[test]
fn a_principal_sees_his_own_and_nothing_of_others() {
    if !root_or_skip("access") {
        return;
    }
    let world = World::new();
    for owner in OWNERS {
        world.furnish(owner);
    }
    let alice = &world.clients[&Role::Alice];
    let names: Vec<String> =
        alice.services().unwrap().services.into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["of-alice"]);
    let rules = alice.rules().unwrap().rules;
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].owner.as_deref(), Some(key(ALICE).public().to_string().as_str()));
    let stats = alice.stats().unwrap();
    assert_eq!(stats.services.keys().collect::<Vec<_>>(), ["of-alice"]);
    assert!(stats.ports.is_empty() && stats.sessions.is_empty());
    let events = alice.events(0, 0).unwrap().events;
    assert!(!events.is_empty());
    assert!(events.iter().all(|it| it.service.as_deref().is_none_or(|it| it == "of-alice")));
    let absent = alice.service("of-bob").unwrap_err().to_string();
    let never = alice.service("of-bbb").unwrap_err().to_string();
    assert_eq!(absent.replace("of-bob", "of-bbb"), never, "not yours is not there");
    let watcher = &world.clients[&Role::Watcher];
    assert_eq!(watcher.services().unwrap().services.len(), 3);
    let ports = watcher.stats().unwrap().ports.len();
    assert_eq!(ports, 2);
}

#[test]
fn what_a_capability_lacks_is_named() {
    if !root_or_skip("access") {
        return;
    }
    let world = World::new();
    let alice = &world.clients[&Role::Alice];
    let request = |rules: &[&str], session: Option<&str>| api::DeployRequest {
        module: world.digest.clone(),
        rules: rules.iter().map(|it| (*it).to_owned()).collect(),
        session: session.map(str::to_owned),
        ..api::DeployRequest::default()
    };
    let refused = |client: &Client, request: &api::DeployRequest, says: &str| {
        let error = client.deploy(request).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Refused);
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(alice, &request(&["dst 10.9.0.0/16"], None), "lacks traffic 10.9.0.0/16");
    refused(alice, &request(&["proto udp"], None), "lacks traffic 0.0.0.0/0, traffic ::/0");
    refused(alice, &request(&[], Some("system")), "lacks session system");
    let user_only = Grant { levels: Extent::only([abi::Level::User]), ..Grant::all() };
    let at_user = &world.line.node.client().clone();
    let at_user = at_user
        .clone()
        .with_token(narrowed(&token(ROOT, ALICE, &ordinary("10.1.0.0/16")), &user_only));
    let anywhere = api::DeployRequest { level: Some("nic".into()), ..request(&[], None) };
    refused(&at_user, &anywhere, "lacks level nic");
    let mut few = Grant::all();
    few.ceilings.0[0] = Some(1);
    let few = narrowed(&token(ROOT, ALICE, &ordinary("10.1.0.0/16")), &few);
    let few = world.line.node.client().clone().with_token(few);
    few.deploy(&request(&["src 10.1.1.0/24"], None)).unwrap();
    let second = api::DeployRequest { name: Some("second".into()), ..request(&[], None) };
    refused(&few, &second, "ceiling services: 2 services, 1 at most");
    // Another module: whether it is there or not is the same.
    let other = world.line.node.client().store_module(pass("secret")).unwrap();
    let unknown = format!("sha256:{}", "0".repeat(64));
    let answers: Vec<String> = [&other.digest, &unknown, &"secret".to_owned()]
        .map(|module| {
            let request = api::DeployRequest { module: module.clone(), ..Default::default() };
            let error = alice.deploy(&request).unwrap_err();
            assert_eq!(error.code(), ErrorCode::NotFound);
            error.to_string().replace(module.as_str(), "M")
        })
        .into();
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
}

#[test]
fn revocation_stops_what_ran_within_a_second_and_for_good() {
    if !root_or_skip("access") {
        return;
    }
    let mut world = World::new();
    for owner in OWNERS {
        world.furnish(owner);
    }
    let alice = token(ROOT, ALICE, &ordinary("10.1.0.0/16"));
    let delegated = narrowed(&alice, &until(3600));
    let delegate = world.line.node.client().clone().with_token(delegated.clone());
    let request = api::DeployRequest {
        module: world.digest.clone(),
        name: Some("delegated".into()),
        rules: vec!["dst 10.1.9.0/24".into()],
        ..api::DeployRequest::default()
    };
    delegate.deploy(&request).unwrap();
    let last = |text: &str| HeldToken::parse(text).unwrap().revocation_ids().pop().unwrap();
    let operator = world.line.node.client().clone();
    let revoke = |what: String| {
        let since = Instant::now();
        let revoked = operator.revoke(&api::RevokeRequest { revoke: vec![what] }).unwrap();
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        revoked
    };
    let revoked = revoke(last(&delegated).to_string());
    assert_eq!((revoked.services, revoked.rules), (vec!["delegated".to_owned()], vec![]));
    let gone = wait_for(SOON, || operator.service("delegated").is_err().then_some(()));
    assert!(gone.is_some());
    assert!(delegate.services().unwrap_err().to_string().contains("was revoked"));
    assert!(world.clients[&Role::Alice].services().is_ok(), "what it was made of counts");

    let revoked = revoke(key(ALICE).public().to_string());
    assert_eq!((revoked.services, revoked.rules.len()), (vec!["of-alice".to_owned()], 1));
    wait_for(SOON, || operator.service("of-alice").is_err().then_some(())).unwrap();
    assert_eq!(code(&world.clients[&Role::Alice].services()), Some(ErrorCode::Refused));
    operator.service("of-bob").unwrap();
    // An administrator whose key was lost: the other one's tokens count.
    let revoked = revoke(key(SECOND_ROOT).public().to_string());
    assert_eq!(revoked.services, ["of-bob"]);
    assert_eq!(code(&world.clients[&Role::Watcher].services()), Some(ErrorCode::Refused));
    assert!(world.clients[&Role::Administrator].services().is_ok());

    // After a restart it is so, too.
    world.line.node.stop().unwrap();
    let Line { node, net } = &mut world.line;
    node.start_again(net, "r1").unwrap();
    let names: Vec<String> =
        operator.services().unwrap().services.into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["of-operator"]);
    for role in [Role::Alice, Role::AliceReads, Role::Bob, Role::Watcher] {
        assert_eq!(code(&world.clients[&role].services()), Some(ErrorCode::Refused), "{role:?}");
    }
    assert_eq!(operator.revocations().unwrap().revoked.len(), 3);
}

#[test]
fn what_runs_ends_with_its_capability_and_outlives_daemons_until_then() {
    if !root_or_skip("access") {
        return;
    }
    let mut world = World::new();
    let alice = token(ROOT, ALICE, &ordinary("10.1.0.0/16"));
    let short = narrowed(&alice, &until(4));
    let client = world.line.node.client().clone();
    let request = |name: &str| api::DeployRequest {
        module: world.digest.clone(),
        name: Some(name.to_owned()),
        ..api::DeployRequest::default()
    };
    client.clone().with_token(short).deploy(&request("short")).unwrap();
    client.clone().with_token(alice.clone()).deploy(&request("long")).unwrap();
    // Another daemon knows whose it is.
    world.line.node.kill().unwrap();
    let Line { node, net } = &mut world.line;
    node.start_again(net, "r1").unwrap();
    let owner = key(ALICE).public().to_string();
    assert_eq!(client.service("long").unwrap().owner, Some(owner.clone()));
    let ended =
        wait_for(SOON + Duration::from_secs(5), || client.service("short").is_err().then_some(()));
    assert!(ended.is_some());
    assert_eq!(client.service("long").unwrap().owner, Some(owner));
    let events = client.events(0, 0).unwrap().events;
    let told = events.iter().find(|it| it.kind == api::EventKind::CapabilityEnded).unwrap();
    assert_eq!(
        (told.service.as_deref(), told.reason.as_deref()),
        (Some("short"), Some("its capability has ended"))
    );
    // What principals have is not the operator's to forget by the way.
    let applied = client.apply(&api::ApplyRequest {
        text: String::new(),
        file: "empty.toml".into(),
        ..Default::default()
    });
    assert_eq!(applied.unwrap().changes.len(), 0);
    client.service("long").unwrap();
}

/// A node whose API is on the network, and where.
fn remote(more: &str) -> (Line, String) {
    // In the router's namespace every port is free.
    let line = with_trust(&format!("{more}\n[api]\nlisten = \"127.0.0.1:7443\"\n"));
    (line, "127.0.0.1:7443".to_owned())
}

/// A client in the router's namespace.
fn over_network<T>(
    line: &Line,
    address: &str,
    node_key: trust::PublicKey,
    token: Option<&str>,
    ask: impl FnOnce(&Client) -> T + Send,
) -> T
where
    T: Send,
{
    let node = api::client::RemoteNode { address: address.to_owned(), key: node_key };
    let client = Client::remote(node);
    let client = match token {
        Some(token) => client.with_token(token),
        None => client,
    };
    line.net.within("r1", || ask(&client)).unwrap()
}

#[test]
fn over_the_network_it_takes_the_nodes_key_and_a_token() {
    if !root_or_skip("access") {
        return;
    }
    let (line, address) = remote("");
    let shown = line.node.client().node().unwrap().node_key.parse().unwrap();
    let alice = token(ROOT, ALICE, &ordinary("10.1.0.0/16"));
    let ask = |key, token: Option<&str>| {
        over_network(&line, &address, key, token, |client| {
            let stored = client.store_module(pass("pass-on"));
            let request = api::DeployRequest {
                module: stored.as_ref().map(|it| it.digest.clone()).unwrap_or_default(),
                rules: vec!["dst 10.1.1.0/24".into()],
                ..api::DeployRequest::default()
            };
            (code(&stored), client.deploy(&request), client.services())
        })
    };
    let (stored, deployed, services) = ask(shown, Some(&alice));
    assert_eq!(stored, None);
    assert_eq!(deployed.unwrap().service.name, "pass-on");
    assert_eq!(services.unwrap().services.len(), 1);

    let (stored, deployed, services) = ask(shown, None);
    assert_eq!(stored, Some(ErrorCode::Refused));
    assert_eq!(
        (code(&deployed), code(&services)),
        (Some(ErrorCode::Refused), Some(ErrorCode::Refused))
    );
    assert!(services.unwrap_err().help().unwrap().contains("--token"));

    // Another node in its place gets no token to see.
    let (_, _, services) = ask(key(200).public(), Some(&alice));
    let error = services.unwrap_err();
    assert!(matches!(&error, ClientError::OtherNode { .. }), "{error}");
    assert_eq!(error.code(), ErrorCode::Refused);
    // Curl finds the certificate beside the node's state.
    let certificate = line.node.directory().join("store.state/api.crt.pem");
    let (bearer, resolve) = (format!("Authorization: Bearer {alice}"), "localhost:7443:127.0.0.1");
    let mut curl = vec!["curl", "--silent", "--max-time", "10", "--resolve", resolve, "--cacert"];
    curl.extend([
        certificate.to_str().unwrap(),
        "-H",
        &bearer,
        "https://localhost:7443/v1/services",
    ]);
    let told: serde_json::Value = serde_json::from_str(&line.run("r1", &curl)).unwrap();
    assert_eq!(told["services"][0]["name"], "pass-on", "{told}");

    // The node is a repository, too, to whoever may have the module.
    let ask = |path: &str, more: &[&str]| {
        let url = format!("https://localhost:7443{path}");
        let mut curl = vec!["curl", "--silent", "--max-time", "10", "--resolve", resolve];
        curl.extend(["--cacert", certificate.to_str().unwrap(), "-w", "\n%{http_code}", &url]);
        curl.extend(more);
        let said = line.run("r1", &curl);
        let (body, status) = said.rsplit_once('\n').unwrap();
        (status.to_owned(), body.to_owned())
    };
    let password = format!("anybody:{alice}");
    let secret = line.node.client().store_module(pass("secret")).unwrap().digest;
    let absent = format!("sha256:{}", "0".repeat(64));
    assert_eq!(ask("/v2/", &[]).0, "401");
    assert_eq!(ask("/v2/", &["-u", &password]).0, "200");
    let (status, manifest) = ask("/v2/pass-on/manifests/0.1.0", &["-u", &password]);
    assert_eq!(status, "200", "{manifest}");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let digest = manifest["layers"][0]["digest"].as_str().unwrap();
    assert_eq!(
        ask(&format!("/v2/pass-on/blobs/{digest}"), &["-u", &password, "-o", "/dev/null"]).0,
        "200"
    );
    let [hidden, none] = [&secret, &absent]
        .map(|digest| ask(&format!("/v2/secret/blobs/{digest}"), &["-u", &password]));
    assert_eq!((hidden.0.as_str(), &hidden), ("404", &none), "not yours is not there");
}

#[test]
fn without_a_token_there_is_only_what_the_operator_lets_anyone_run() {
    if !root_or_skip("access") {
        return;
    }
    let (line, address) = remote("anyone = [\"name:pass-on\"]");
    let shown = line.node.client().node().unwrap().node_key.parse().unwrap();
    over_network(&line, &address, shown, None, |client| {
        let stored = client.store_module(pass("pass-on")).unwrap();
        let request = api::DeployRequest { module: stored.digest, ..Default::default() };
        let with_rule = api::DeployRequest { rules: vec!["proto udp".into()], ..request.clone() };
        assert_eq!(
            code(&client.deploy(&with_rule)),
            Some(ErrorCode::Refused),
            "nobody has traffic"
        );
        let in_system = api::DeployRequest { session: Some("system".into()), ..request.clone() };
        assert_eq!(code(&client.deploy(&in_system)), Some(ErrorCode::Refused));
        let service = client.deploy(&request).unwrap().service;
        assert_eq!(
            (service.session.as_str(), service.owner.as_deref()),
            ("best-effort", Some("anyone"))
        );
        assert_eq!(code(&client.store_module(pass("pass-off"))), Some(ErrorCode::Refused));
        assert_eq!(code(&client.services()), Some(ErrorCode::Refused));
        assert_eq!(code(&client.remove("pass-on", true)), Some(ErrorCode::Refused));
    });
}

#[test]
fn who_fills_all_connections_of_the_network_keeps_nobody_from_the_socket() {
    if !root_or_skip("access") {
        return;
    }
    let (line, address) = remote("");
    line.net
        .within("r1", || {
            let mut silent: Vec<_> = Vec::new();
            for _ in 0..200 {
                silent.push(std::net::TcpStream::connect(&address).unwrap());
            }
            for _ in 0..20 {
                line.node.client().node().unwrap();
            }
            drop(silent);
        })
        .unwrap();
    // Their places are free again, the latest when their time for a handshake is over.
    let shown = line.node.client().node().unwrap().node_key.parse().unwrap();
    let alice = token(ROOT, ALICE, &ordinary("10.1.0.0/16"));
    let again = wait_for(SOON + Duration::from_secs(5), || {
        over_network(&line, &address, shown, Some(&alice), |client| client.services().ok())
    });
    assert!(again.is_some());
}

#[test]
fn a_node_made_of_a_backup_is_that_node() {
    if !root_or_skip("backup") {
        return;
    }
    let mut world = World::new();
    for owner in OWNERS {
        world.furnish(owner);
    }
    let operator = world.line.node.client().clone();
    let revoke = vec![key(BOB).public().to_string()];
    operator.revoke(&api::RevokeRequest { revoke }).unwrap();
    let before = operator.node().unwrap().node_key;
    let folder = world.line.node.directory().to_owned();
    let name = world.line.node.name().to_string();
    let (file, passphrase) = (folder.join("r1.backup"), folder.join("passphrase"));
    std::fs::write(&passphrase, "correct horse").unwrap();
    let tam = |arguments: &[&str]| {
        let mut command = std::process::Command::new(testkit::tam());
        let secret = ["--passphrase-file", passphrase.to_str().unwrap()];
        command.args(arguments).arg(&file).args(secret).output().unwrap()
    };
    let written = tam(&["--node", &name, "backup"]);
    assert!(written.status.success(), "{written:?}");
    world.line.node.stop().unwrap();
    let occupied = tam(&["restore"]);
    assert_eq!(occupied.status.code(), Some(2), "{occupied:?}");
    // The disk is lost.
    for lost in ["store", "store.state"] {
        std::fs::remove_dir_all(folder.join(lost)).unwrap();
    }
    let restored = tam(&["restore"]);
    assert!(restored.status.success(), "{restored:?}");
    let Line { node, net } = &mut world.line;
    node.start_again(net, "r1").unwrap();
    let services = operator.services().unwrap().services;
    let names: Vec<&str> = services.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["of-alice", "of-operator"]);
    assert_eq!(services[0].owner, Some(key(ALICE).public().to_string()));
    assert_eq!(operator.node().unwrap().node_key, before);
    assert_eq!(code(&world.clients[&Role::Bob].services()), Some(ErrorCode::Refused));
    assert!(world.clients[&Role::Alice].service("of-alice").is_ok());
}
