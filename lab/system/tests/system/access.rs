//! Capabilities at a real node: over the socket and the network, revoked and expired, after
//! restarts and from a backup. The rights of each are a table of unit tests (`endpoint_tests` of
//! the daemon's `authorize`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::client::ClientError;
use api::{Client, ErrorCode};
use testkit::{NodeUnderTest, root_or_skip, wait_for};
use trust::{Extent, Grant, HeldToken, Kind, ModulePattern, UnixTime};

use crate::common::{Line, SOON, key, module, narrowed, token};

const ROOT: u8 = 1;
const SECOND_ROOT: u8 = 2;
const ALICE: u8 = 10;
const BOB: u8 = 11;

/// Returns the grant of a principal that runs its own modules on its own traffic.
fn ordinary(traffic: &str) -> Grant {
    use trust::Operation::{Capture, Deploy, Message, Move, Read, Remove, Rule, Session, Store};
    Grant {
        operations: Extent::only([
            Read, Store, Deploy, Remove, Move, Message, Rule, Capture, Session,
        ]),
        sessions: Extent::only(["best-effort".to_owned()]),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// Owner of the socket.
    Operator,
    /// Holder of a token that grants everything.
    Administrator,
    /// Holder of a token that reads everything.
    Watcher,
    Alice,
    /// Holder of Alice's token narrowed to reading.
    AliceReads,
    Bob,
    /// Holder of Alice's token that expired yesterday.
    Ended,
    /// Holder of a token of another node's administrator.
    Stranger,
}

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

    /// Returns the match of an owner's traffic.
    fn traffic(owner: Role) -> &'static str {
        match owner {
            Role::Alice => "dst 10.1.7.0/24",
            Role::Bob => "dst 10.2.7.0/24",
            _ => "dst 10.3.7.0/24",
        }
    }

    /// Deploys a service and adds a rule for each owner.
    fn furnish(&self) {
        for owner in OWNERS {
            let (client, name) = (&self.clients[&owner], format!("of-{owner:?}").to_lowercase());
            let request = api::DeployRequest {
                module: self.digest.clone(),
                name: Some(name.clone()),
                ..api::DeployRequest::default()
            };
            client.deploy(&request).unwrap();
            let rule = api::RuleRequest::new(Self::traffic(owner), format!("service {name}"));
            client.add_rules(&api::RulesRequest { rules: vec![rule] }).unwrap();
        }
    }
}

#[test]
fn a_principal_sees_only_its_own_services_rules_and_events() {
    if !root_or_skip("access") {
        return;
    }
    let world = World::new();
    world.furnish();
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
    let gold = api::SessionRequest { name: "gold".to_owned(), ..api::SessionRequest::default() };
    world.clients[&Role::Operator].create_session(&gold).unwrap();
    let sessions = alice.node().unwrap().sessions;
    assert!(sessions.iter().all(|session| session.name == "best-effort"), "{sessions:?}");
    let absent = alice.service("of-bob").unwrap_err().to_string();
    let never = alice.service("of-bbb").unwrap_err().to_string();
    assert_eq!(absent.replace("of-bob", "of-bbb"), never, "not yours is not there");
    // Each request is checked: changes, too, and by the token that it is sent with.
    for (role, expected) in [
        (Role::Bob, ErrorCode::NotFound),
        (Role::AliceReads, ErrorCode::Refused),
        (Role::Ended, ErrorCode::Refused),
        (Role::Stranger, ErrorCode::Refused),
    ] {
        let removed = world.clients[&role].remove("of-alice", true);
        assert_eq!(code(&removed), Some(expected), "{role:?}");
    }
    let watcher = &world.clients[&Role::Watcher];
    assert_eq!(watcher.services().unwrap().services.len(), 3);
    let ports = watcher.stats().unwrap().ports.len();
    assert_eq!(ports, 2);
}

#[test]
fn revocation_stops_services_within_a_second_and_permanently() {
    if !root_or_skip("access") {
        return;
    }
    let mut world = World::new();
    world.furnish();
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
fn a_service_ends_when_its_capability_expires_also_under_the_next_daemon() {
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
    // An apply by the operator keeps principals' services.
    let applied = client.apply(&api::ApplyRequest {
        text: String::new(),
        file: "empty.toml".into(),
        ..Default::default()
    });
    assert_eq!(applied.unwrap().changes.len(), 0);
    client.service("long").unwrap();
}

/// Returns a node whose API is on the network, and its address.
fn remote(more: &str) -> (Line, String) {
    // In the router's namespace every port is free.
    let line = with_trust(&format!("{more}\n[api]\nlisten = \"127.0.0.1:7443\"\n"));
    (line, "127.0.0.1:7443".to_owned())
}

/// Runs `work` with a client in the router's namespace.
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
fn network_access_needs_the_nodes_key_and_a_token() {
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
fn without_a_token_only_modules_that_the_operator_allows_anyone_run() {
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
fn filling_all_network_connections_does_not_block_the_local_socket() {
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
fn a_node_restored_from_a_backup_has_its_key_state_owners_and_revocations() {
    if !root_or_skip("backup") {
        return;
    }
    let mut world = World::new();
    world.furnish();
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
