//! Modules that packets or clients name by digest and the node does not hold: fetched from a
//! neighbour or from a parent's parent, with registries that are down, slow or lie; who pays, and
//! who may fetch.

mod packets;
mod registry;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ::module_store::Digest;
use abi::Unverified;
use api::client::ClientError;
use api::{ApplyRequest, DeployRequest, ErrorCode, EventKind, LedgerAmounts};
use tempfile::TempDir;
use testkit::{Net, NodeUnderTest, root_or_skip, wait_for};
use trust::{
    Extent, Grant, ImageDigest, Kind, ModulePattern, Operation, PublicKey, SecretKey, Signature,
    SignatureFile,
};

use crate::common::{SOON, key, module_with_manifest, token};
use registry::Registry;

const ROOT: u8 = 1;
const ALICE: u8 = 10;
/// Principal by whose token a node asks another.
const NEIGHBOUR: u8 = 20;
const PORT: u16 = 7443;

fn reads() -> Grant {
    Grant { operations: Extent::only([Operation::Read]), ..Grant::all() }
}

fn deploys(patterns: &[&str]) -> Grant {
    Grant {
        operations: Extent::only([Operation::Read, Operation::Deploy]),
        sessions: Extent::only(["best-effort".to_owned()]),
        modules: Extent::only(patterns.iter().map(|it| it.parse::<ModulePattern>().unwrap())),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        ..Grant::none()
    }
}

fn pass(name: &str) -> Vec<u8> {
    let manifest = format!("abi = 1\nname = \"{name}\"\nversion = \"0.1.0\"\nwindow = 64");
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0))"#;
    module_with_manifest(&manifest, fields)
}

pub fn signed(wasm: &[u8], by: &SecretKey) -> String {
    let checked = Unverified(wasm).check().unwrap();
    let image = ::module_store::layout::documents(wasm, &checked.manifest).unwrap().entry.digest;
    let mut file = SignatureFile::default();
    file.add(Signature::new(by, &ImageDigest(*image.bytes()), "pass")).unwrap();
    file.to_string()
}

fn request(module: impl ToString) -> DeployRequest {
    DeployRequest { module: module.to_string(), ..DeployRequest::default() }
}

/// Three routers in a row between two hosts, and the files that their nodes need.
struct World {
    net: Net,
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let hosts = "[[host]]\nname = \"client\"\n[[host]]\nname = \"server\"\n";
        let routers =
            "[[router]]\nname = \"r1\"\n[[router]]\nname = \"r2\"\n[[router]]\nname = \"r3\"\n";
        let ends = [["client", "r1"], ["r1", "r2"], ["r2", "r3"], ["r3", "server"]];
        let links = ends.map(|ends| format!("[[link]]\nends = {ends:?}\n")).concat();
        let net = Net::up(&format!("{hosts}{routers}{links}")).unwrap();
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("token"), token(ROOT, NEIGHBOUR, &reads())).unwrap();
        Self { net, folder }
    }

    fn address(&self, of: &str, towards: &str) -> Ipv4Addr {
        self.net.v4(of, towards).unwrap()
    }

    /// Starts a node that trusts one administrator, and serves its API to a neighbour.
    fn node(&self, router: &str, neighbour: &str, more: &str) -> NodeUnderTest {
        self.node_edited(router, neighbour, more, |text| text)
    }

    fn node_edited(
        &self,
        router: &str,
        neighbour: &str,
        more: &str,
        edit: impl FnOnce(String) -> String,
    ) -> NodeUnderTest {
        let (root, address) = (key(ROOT).public(), self.address(router, neighbour));
        let with = |text: String| {
            edit(format!(
                "{text}administrators = [\"{root}\"]\n[api]\nlisten = \"{address}:{PORT}\"\n{more}"
            ))
        };
        NodeUnderTest::start_edited(&self.net, router, "ledger_every = 1", with).unwrap()
    }

    /// Returns the section of a node file that names a node as repository.
    fn section(&self, node: &NodeUnderTest, router: &str, neighbour: &str) -> String {
        let address = self.address(router, neighbour);
        section_of(&address, key_of(node), &self.folder.path().join("token"))
    }

    /// Starts a registry in the client's namespace, which the first router reaches.
    fn registry(
        &self,
        delay: Duration,
        answer: impl Fn(&str) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
    ) -> Registry {
        Registry::start(&self.net, "client", self.address("client", "r1"), delay, answer)
    }
}

fn section_of(address: &Ipv4Addr, key: PublicKey, token: &std::path::Path) -> String {
    let token = token.display();
    format!("[[repository]]\nnode = \"{address}:{PORT}\"\nkey = \"{key}\"\ntoken = \"{token}\"\n")
}

fn key_of(node: &NodeUnderTest) -> PublicKey {
    node.client().node().unwrap().node_key.parse().unwrap()
}

fn holds(node: &NodeUnderTest, digest: &str) -> bool {
    node.client().modules().unwrap().modules.iter().any(|module| module.digest == digest)
}

/// Returns the amounts that an account was billed for fetches, once there are any.
fn billed(node: &NodeUnderTest, principal: PublicKey, session: &str) -> Option<LedgerAmounts> {
    let principal = principal.to_string();
    wait_for(SOON, || {
        let totals = node.client().ledger_totals(0, u64::MAX).ok()?;
        let mut mine = totals.accounts.into_iter();
        mine.find(|it| it.principal == principal && it.session == session && it.used.fetches > 0)
            .map(|it| it.used)
    })
}

fn code<T>(answer: Result<T, ClientError>) -> (ErrorCode, String) {
    match answer {
        Ok(_) => panic!("it was done"),
        Err(error) => (error.code(), error.to_string()),
    }
}

fn told(node: &NodeUnderTest, kind: EventKind) -> Vec<String> {
    let events = node.client().events(0, 0).unwrap().events;
    events.into_iter().filter(|it| it.kind == kind).map(|it| it.text).collect()
}

#[test]
fn a_digest_that_a_neighbour_has_is_deployed_and_whoever_deploys_it_pays() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let first = world.node("r1", "r2", "");
    let wasm = pass("pass");
    let bytes = wasm.len() as u64;
    let digest = first.client().store_module(wasm).unwrap().digest;
    let other = first.client().store_module(pass("pass-on")).unwrap().digest;
    let second = world.node("r2", "r1", &world.section(&first, "r1", "r2"));
    let deployed = second.client().deploy(&request(&digest)).unwrap();
    assert_eq!(
        (deployed.service.name.as_str(), deployed.service.state.as_str()),
        ("pass", "running")
    );
    assert!(holds(&second, &digest));
    let fetched = told(&second, EventKind::ModuleFetched);
    assert!(fetched.len() == 1 && fetched[0].contains("'pass' 0.1.0"), "{fetched:?}");
    let stats = second.stats().unwrap().demand;
    assert_eq!((stats.requests, stats.fetched, stats.fetched_bytes), (1, 1, bytes));
    let node = billed(&second, key_of(&second), "best-effort").unwrap();
    assert_eq!((node.fetches, node.fetched_bytes), (1, bytes), "the operator is the node");
    // Once more is from the store.
    second.client().remove("pass", true).unwrap();
    second.client().deploy(&request(&digest)).unwrap();
    assert_eq!(second.stats().unwrap().demand.requests, 1);
    // A principal pays himself.
    let alice = second.client().clone().with_token(token(ROOT, ALICE, &deploys(&["name:pass*"])));
    assert_eq!(alice.deploy(&request(&other)).unwrap().service.name, "pass-on");
    let paid = billed(&second, key(ALICE).public(), "best-effort").unwrap();
    assert_eq!(paid.fetches, 1);
    let page = second.client().metrics().unwrap();
    assert!(page.contains("tamandua_modules_fetched_total{end=\"came\"} 2"), "{page}");
    // A file that is applied names it in the same way; `tam diff` fetches nothing.
    let third = first.client().store_module(pass("pass-three")).unwrap().digest;
    let text = format!("[[service]]\nmodule = \"{third}\"\n");
    let dry = ApplyRequest { text: text.clone(), dry_run: true, ..ApplyRequest::default() };
    code(second.client().apply(&dry));
    assert!(!holds(&second, &third));
    let apply = ApplyRequest { text, discard_state: true, ..ApplyRequest::default() };
    second.client().apply(&apply).unwrap();
    assert_eq!(second.client().service("pass-three").unwrap().state, "running");
}

#[test]
fn parents_of_parents_are_asked_and_nodes_that_ask_each_other_end() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let top = world.node("r1", "r2", "");
    let wasm = pass("pass");
    let digest = top.client().store_module(wasm.clone()).unwrap().digest;
    let middle = world.node("r2", "r3", &world.section(&top, "r1", "r2"));
    let lowest = world.node("r3", "r2", &world.section(&middle, "r2", "r3"));
    assert_eq!(lowest.client().deploy(&request(&digest)).unwrap().service.name, "pass");
    assert!(holds(&middle, &digest), "a parent keeps what it passes on");
    let paid = billed(&middle, key(NEIGHBOUR).public(), "best-effort").unwrap();
    assert_eq!((paid.fetches, paid.fetched_bytes), (1, wasm.len() as u64));
}

#[test]
fn nodes_that_are_each_others_parents_end_soon_and_find_what_one_of_them_has() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let mut first = world.node("r1", "r2", "");
    let second = world.node("r2", "r1", &world.section(&first, "r1", "r2"));
    first.stop().unwrap();
    let file = std::fs::read_to_string(first.node_file()).unwrap();
    let circle = world.section(&second, "r2", "r1");
    std::fs::write(first.node_file(), file + &circle).unwrap();
    first.start_again(&world.net, "r1").unwrap();
    let begun = Instant::now();
    let (code, text) = code(second.client().deploy(&request(Digest::of(b"nobody has it"))));
    assert_eq!(code, ErrorCode::NotFound, "{text}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let digest = first.client().store_module(pass("pass")).unwrap().digest;
    assert_eq!(second.client().deploy(&request(&digest)).unwrap().service.name, "pass");
}

/// Returns the answers of a registry that has a module's bytes, and nothing else.
fn only(wasm: Vec<u8>) -> impl Fn(&str) -> Option<(u16, Vec<u8>)> + Send + Sync {
    let blob = format!("/v2/modules/blobs/{}", Digest::of(&wasm));
    move |path| Some(if path == blob { (200, wasm.clone()) } else { (404, Vec::new()) })
}

#[test]
fn registries_that_lie_are_silent_or_down_cost_time_and_never_bring_a_wrong_module() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let (wasm, wrong) = (pass("pass"), pass("wrong"));
    let digest = Digest::of(&wasm);
    let lies = world.registry(Duration::ZERO, move |path| {
        Some(if path.contains("/blobs/") { (200, wrong.clone()) } else { (404, Vec::new()) })
    });
    let silent = world.registry(Duration::ZERO, |_| None);
    let (next, has) = (pass("next"), [only(wasm), only(pass("next"))]);
    let good = world.registry(Duration::ZERO, move |path| {
        has.iter().filter_map(|has| has(path)).min_by_key(|(status, _)| *status)
    });
    let down = {
        let gone = world.registry(Duration::ZERO, |_| None);
        gone.section().replace(&gone.address.port().to_string(), "9")
    };
    let sections = [&lies, &silent].map(Registry::section).concat();
    let alone = world.node("r2", "r1", &format!("{down}{}", lies.section()));
    let (kind, text) = code(alone.client().deploy(&request(digest)));
    assert_eq!(kind, ErrorCode::Unreachable, "{text}");
    assert!(text.contains("sent other content") && text.contains("cannot be reached"), "{text}");
    assert_eq!(alone.client().modules().unwrap().modules, []);
    assert_eq!(told(&alone, EventKind::ModuleMissed).len(), 1);
    let node = world.node("r1", "r2", &format!("{down}{sections}{}", good.section()));
    let begun = Instant::now();
    let deployed = node.client().deploy(&request(digest)).unwrap();
    assert_eq!(deployed.service.digest, digest.to_string());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!((lies.asked_for("/blobs/"), silent.asked_for("/blobs/")), (2, 1));
    // The silent registry is skipped: the next module does not wait for it.
    let deployed = node.client().deploy(&request(Digest::of(&next))).unwrap();
    assert_eq!(deployed.service.name, "next");
    assert_eq!(silent.asked_for("/blobs/"), 1);
}

#[test]
fn a_registry_sends_a_node_to_other_machines_and_never_to_itself() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let wasm = pass("pass");
    let digest = Digest::of(&wasm);
    let sends_to = |place: String| {
        world.registry(Duration::ZERO, move |path| {
            let moved = (307, format!("http://{place}{path}").into_bytes());
            Some(if path.contains("/blobs/") { moved } else { (404, Vec::new()) })
        })
    };
    // The address of another of the router's own devices, and one in the client's namespace.
    let own = world.address("r1", "r2");
    let here = Registry::start(&world.net, "r1", own, Duration::ZERO, only(wasm.clone()));
    let there = world.registry(Duration::ZERO, only(wasm));
    let port = here.address.port();
    for place in [format!("{own}:{port}"), format!("[::ffff:{own}]:{port}")] {
        let node = world.node("r1", "r2", &sends_to(place).section());
        let (_, text) = code(node.client().deploy(&request(digest)));
        assert!(text.contains("redirects to") && text.contains("of this machine"), "{text}");
        assert_eq!(here.asked_for(""), 0);
    }
    let node = world.node("r1", "r2", &sends_to(there.address.to_string()).section());
    let deployed = node.client().deploy(&request(digest)).unwrap();
    assert_eq!(deployed.service.digest, digest.to_string());
}

#[test]
fn fetched_modules_are_kept_only_with_a_signature_of_a_trusted_signer() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let first = world.node("r1", "r2", "");
    let store = |wasm: Vec<u8>, by: Option<u8>| {
        let digest = first.client().store_module(wasm.clone()).unwrap().digest;
        if let Some(by) = by {
            first.client().add_signatures(&digest, &signed(&wasm, &key(by))).unwrap();
        }
        digest
    };
    let unsigned = store(pass("unsigned"), None);
    let strangers = store(pass("strangers"), Some(6));
    let believed = store(pass("believed"), Some(5));
    let signers = format!("signers = [\"{}\"]", key(5).public());
    let edit = |text: String| text.replace("unsigned = \"accept\"", &signers);
    let section = world.section(&first, "r1", "r2");
    let second = world.node_edited("r2", "r1", &section, edit);
    for digest in [&unsigned, &strangers] {
        for _ in 0..2 {
            let (kind, text) = code(second.client().deploy(&request(digest)));
            assert_eq!(kind, ErrorCode::Refused, "{text}");
            assert!(text.contains("no signer that this node trusts"), "{text}");
        }
        assert!(!holds(&second, digest));
    }
    assert_eq!(second.stats().unwrap().demand.remembered, 2);
    let node = billed(&second, key_of(&second), "best-effort").unwrap();
    assert_eq!((node.fetches, node.compile_ns), (2, 0), "nothing was compiled");
    second.client().deploy(&request(&believed)).unwrap();
    // Its signature came along: the next daemon believes it, too.
    assert_eq!(second.client().service("believed").unwrap().state, "running");
    let mut second = second;
    second.stop().unwrap();
    second.start_again(&world.net, "r2").unwrap();
    let runs = || second.client().service("believed").is_ok_and(|it| it.state == "running");
    assert!(wait_for(SOON, || runs().then_some(())).is_some(), "{}", second.log());
}

#[test]
fn modules_beyond_a_capability_are_not_found_and_not_fetched_where_that_is_certain() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let first = world.node("r1", "r2", "");
    let mine = first.client().store_module(pass("pass-mine")).unwrap().digest;
    let other = first.client().store_module(pass("other")).unwrap().digest;
    let second = world.node("r2", "r1", &world.section(&first, "r1", "r2"));
    let with = |grant: &Grant| second.client().clone().with_token(token(ROOT, ALICE, grant));
    let only_digest = with(&deploys(&[&mine]));
    let without_spelling = |text: String, digest: &str| text.replace(digest, "DIGEST");
    let (kind, plain) = code(only_digest.deploy(&request(&other)));
    assert_eq!((kind, second.stats().unwrap().demand.requests), (ErrorCode::NotFound, 0));
    let may_not = with(&Grant { operations: Extent::only([Operation::Read]), ..Grant::all() });
    assert_eq!(code(may_not.deploy(&request(&other))).0, ErrorCode::Refused);
    assert_eq!(second.stats().unwrap().demand.requests, 0);
    // Its name is known only once it was fetched: the same answer, and nothing is kept.
    let by_name = with(&deploys(&["name:pass*"]));
    let (kind, not_his) = code(by_name.deploy(&request(&other)));
    let absent = Digest::of(b"absent").to_string();
    let (_, not_there) = code(by_name.deploy(&request(&absent)));
    assert_eq!(kind, ErrorCode::NotFound);
    let all = [(plain, &other), (not_his, &other), (not_there, &absent)];
    let [plain, not_his, not_there] = all.map(|(text, digest)| without_spelling(text, digest));
    assert!(plain == not_his && not_his == not_there, "{plain}\n{not_his}\n{not_there}");
    assert!(!holds(&second, &other));
    let paid = billed(&second, key(ALICE).public(), "best-effort").unwrap();
    assert_eq!(paid.fetches, 1, "what came was paid for");
    // The refused fetch affects nobody else, and permitted modules are fetched.
    second.client().deploy(&request(&other)).unwrap();
    assert_eq!(by_name.deploy(&request(&mine)).unwrap().service.name, "pass-mine");
    // The principal has no right to it, held or not.
    let (_, held) = code(by_name.deploy(&request(&other)));
    assert_eq!(without_spelling(held, &other), not_his);
}

#[test]
fn a_node_starts_with_a_digest_that_it_does_not_hold() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let first = world.node("r1", "r2", "");
    let digest = first.client().store_module(pass("pass")).unwrap().digest;
    let service = format!("[[service]]\nmodule = \"{digest}\"\n");
    let section = world.section(&first, "r1", "r2") + &service;
    let mut second = world.node("r2", "r1", &section);
    let runs = |node: &NodeUnderTest| {
        let is_running = || node.client().service("pass").is_ok_and(|it| it.state == "running");
        wait_for(SOON, || is_running().then_some(())).is_some()
    };
    assert!(runs(&second), "{}", second.log());
    assert_eq!(billed(&second, key_of(&second), "system").unwrap().fetches, 1);
    // Also when its store is gone: the desired services' modules are fetched.
    second.stop().unwrap();
    std::fs::remove_dir_all(second.directory().join("store")).unwrap();
    second.start_again(&world.net, "r2").unwrap();
    assert!(runs(&second), "{}", second.log());
    // Another node in the place of the one that is known is asked for nothing.
    let stranger = section_of(
        &world.address("r2", "r1"),
        key(77).public(),
        &world.folder.path().join("token"),
    );
    let third = world.node("r3", "r2", &stranger);
    let (kind, text) = code(third.client().deploy(&request(&digest)));
    assert!(kind == ErrorCode::Unreachable && text.contains("certificate"), "{text}");
}
