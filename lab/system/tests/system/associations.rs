//! Associations with a real node: clients call modules by active packets over a real network.
//! Nobody calls a module without the right to, and no packet is accepted twice.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use association::Protection;
use association_client::{Answer, CallError, Caller, Settings};
use testkit::{Net, NodeUnderTest, root_or_skip, wait_for};
use trust::{Extent, Grant, Kind, ModulePattern, Operation};

use crate::common::{Line, SOON, key, module, narrowed, token};

const ROOT: u8 = 1;
const ALICE: u8 = 10;
const BOB: u8 = 11;
const PORT: u16 = 7443;
/// Time after which a missing answer counts as absent.
pub const SILENCE: Duration = Duration::from_millis(300);

/// Returns a module that adds one to the first byte of an active packet's payload and sends it
/// back; other packets pass.
pub fn mirror(name: &str) -> Vec<u8> {
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32)
            (if (i32.ne (i32.load8_u (i32.const 0x800c)) (i32.const 2))
                (then (return (i32.const 0))))
            (i32.store8 (i32.const 0x8102)
                (i32.add (i32.load8_u (i32.const 0x8102)) (i32.const 1)))
            (i32.const 2))"#;
    module(name, "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]", fields)
}

/// Returns a grant whose packets may call modules with names of this beginning.
fn may_call(begins: &str) -> Grant {
    Grant {
        operations: Extent::only([Operation::Deploy]),
        sessions: Extent::only(["best-effort".to_owned()]),
        modules: Extent::only([ModulePattern::NameBegins(begins.to_owned())]),
        kinds: Extent::only([Kind::Application]),
        levels: Extent::All,
        ..Grant::none()
    }
}

/// Node with associations on the client's side of the router.
struct Node {
    line: Line,
    v4: SocketAddr,
    v6: SocketAddr,
}

impl Node {
    fn up() -> Self {
        let net = Net::line(1500).unwrap();
        let v4 = SocketAddr::from((net.v4("r1", "client").unwrap(), PORT));
        let v6 = SocketAddr::from((net.v6("r1", "client").unwrap(), PORT));
        let more = |text: String| {
            let root = key(ROOT).public();
            format!(
                "{text}administrators = [\"{root}\"]\nanyone = [\"name:free\"]\n\n[associations]\nlisten = [\"{v4}\", \"{v6}\"]\n"
            )
        };
        let node = NodeUnderTest::start_edited(&net, "r1", "", more).unwrap();
        Self { line: Line { node, net }, v4, v6 }
    }

    fn settings(&self, principal: u8, token: &str) -> Settings {
        let shown = self.line.node.client().node().unwrap().node_key;
        Settings {
            key: key(principal),
            token: token.to_owned(),
            node: Some(shown.parse().unwrap()),
            within: SOON,
        }
    }

    fn connect(&self, at: SocketAddr, principal: u8, token: &str) -> Result<Caller, CallError> {
        let settings = self.settings(principal, token);
        self.line.net.within("client", || Caller::connect(at, settings)).unwrap()
    }

    fn anyone(&self) -> Caller {
        self.line.net.within("client", || Caller::anyone(self.v4)).unwrap().unwrap()
    }

    /// Stores a module; returns its digest.
    fn store(&self, wasm: Vec<u8>) -> [u8; 32] {
        let stored = self.line.node.client().store_module(wasm).unwrap();
        *stored.digest.parse::<module_store::Digest>().unwrap().bytes()
    }

    fn stats(&self) -> api::AssociationStats {
        self.line.node.stats().unwrap().associations.unwrap()
    }

    /// Returns the services that run because packets call them.
    fn called(&self) -> Vec<api::ServiceInfo> {
        let services = self.line.node.client().services().unwrap().services;
        services.into_iter().filter(|it| it.name.starts_with("called-")).collect()
    }
}

/// Calls once; returns the answer.
pub fn call(
    caller: &mut Caller,
    digest: &[u8; 32],
    payload: &[u8],
    protection: Protection,
) -> Option<Answer> {
    caller.call(digest, payload, protection).unwrap();
    caller.answer(SOON).unwrap()
}

#[test]
fn packets_of_an_association_call_modules_and_are_answered() {
    if !root_or_skip("associations") {
        return;
    }
    let node = Node::up();
    let digest = node.store(mirror("pass-mirror"));
    let alice = token(ROOT, ALICE, &may_call("pass"));
    for at in [node.v4, node.v6] {
        let mut caller = node.connect(at, ALICE, &alice).unwrap();
        for (length, protection) in [
            (1, Protection::Encrypted),
            (64, Protection::Authenticated),
            (512, Protection::Encrypted),
            (1300, Protection::Authenticated),
        ] {
            let payload = vec![7; length];
            let answer = call(&mut caller, &digest, &payload, protection).unwrap();
            let mut expected = payload;
            expected[0] = 8;
            assert_eq!((answer.digest, &answer.payload), (digest, &expected));
            assert_eq!(answer.protection, Some(protection));
        }
        caller.end();
    }
    // One service for both associations, and it is Alice's.
    let [service] = node.called().try_into().unwrap();
    assert_eq!(service.owner, Some(key(ALICE).public().to_string()));
    assert_eq!((service.level.as_str(), service.session.as_str()), ("user", "best-effort"));
    let counted = node.line.node.service(&service.name).unwrap().stats;
    assert_eq!((counted.packets, counted.bounced), (8, 8));
    let stats = node.stats();
    assert_eq!((stats.calls, stats.established, stats.dropped.len()), (8, 2, 0), "{stats:?}");
    wait_for(SOON, || (node.stats().live == 0).then_some(())).expect("both have ended");
    node.line.books();
    // The service is not part of the desired state: an apply leaves it, and no restart brings it
    // back.
    let text = String::new();
    let applied =
        node.line.node.client().apply(&api::ApplyRequest { text, ..Default::default() }).unwrap();
    assert_eq!((applied.changes.len(), node.called().len()), (0, 1));
    // The rule that brings them is the node's own.
    let rules = node.line.node.client().rules().unwrap().rules;
    let own: Vec<_> = rules.iter().filter(|rule| rule.action == "service associations").collect();
    assert_eq!(own.len(), 2);
    assert!(own.iter().all(|rule| rule.packets > 0), "{own:?}");
    assert!(node.line.node.client().remove_rule(own[0].id).is_err());
}

#[test]
fn modules_cannot_be_called_without_a_token_for_them() {
    if !root_or_skip("associations") {
        return;
    }
    let node = Node::up();
    let [pass, other] = ["pass-mirror", "other"].map(|name| node.store(mirror(name)));
    let [free, absent] = [node.store(mirror("free")), [9; 32]];
    let alice = token(ROOT, ALICE, &may_call("pass"));
    let nothing = Grant { operations: Extent::only([Operation::Read]), ..may_call("pass") };
    // Without a token, with somebody else's, of another administrator, or one that lets read only.
    for (who, shown) in [
        (ALICE, String::new()),
        (BOB, alice.clone()),
        (ALICE, token(77, ALICE, &may_call("pass"))),
        (ALICE, narrowed(&alice, &nothing)),
        (ALICE, format!("{}A", &alice[..alice.len() - 1])),
    ] {
        let refused = node.connect(node.v4, who, &shown).err().unwrap();
        assert!(matches!(refused, CallError::Ended(_)), "{refused}");
    }
    assert_eq!(node.stats().live, 0);
    // A client reveals its identity only to the node that it expects.
    let settings = Settings { node: Some(key(99).public()), ..node.settings(ALICE, &alice) };
    let other_node = node.line.net.within("client", || Caller::connect(node.v4, settings));
    assert!(matches!(other_node.unwrap(), Err(CallError::OtherNode { .. })));

    let mut caller = node.connect(node.v4, ALICE, &alice).unwrap();
    for digest in [other, absent] {
        caller.call(&digest, b"payload", Protection::Encrypted).unwrap();
        assert_eq!(caller.answer(SILENCE).unwrap(), None);
    }
    assert_eq!(node.stats().dropped["active_refused"], 2);
    let events = node.line.node.client().events(0, 0).unwrap().events;
    let told = events.into_iter().find(|it| it.kind == api::EventKind::CallRefused).unwrap().text;
    assert!(told.contains(&key(ALICE).public().to_string()), "{told}");
    assert!(call(&mut caller, &pass, b"payload", Protection::Encrypted).is_some());
    // Without an association: what is for anyone, and nothing else.
    let mut stranger = node.anyone();
    assert!(call(&mut stranger, &free, b"payload", Protection::Encrypted).is_some());
    for digest in [pass, other, absent] {
        stranger.call(&digest, b"payload", Protection::Encrypted).unwrap();
        assert_eq!(stranger.answer(SILENCE).unwrap(), None);
    }
    let owners: Vec<_> = node.called().into_iter().map(|it| it.owner.unwrap()).collect();
    let alices = key(ALICE).public().to_string();
    assert_eq!(owners.iter().filter(|owner| **owner == alices).count(), 1);
    assert_eq!(owners.iter().filter(|owner| *owner == "anyone").count(), 1);
}

#[test]
fn a_revoked_token_calls_nothing_after_a_second() {
    if !root_or_skip("associations") {
        return;
    }
    let node = Node::up();
    let digest = node.store(mirror("pass-mirror"));
    let alice = token(ROOT, ALICE, &may_call("pass"));
    let bob = token(ROOT, BOB, &may_call("pass"));
    let mut hers = node.connect(node.v4, ALICE, &alice).unwrap();
    let mut his = node.connect(node.v4, BOB, &bob).unwrap();
    for caller in [&mut hers, &mut his] {
        assert!(call(caller, &digest, b"payload", Protection::Encrypted).is_some());
    }
    assert_eq!(node.called().len(), 2);
    let recorded = hers.sealed(&digest, b"payload", Protection::Encrypted).unwrap();
    let since = Instant::now();
    let revoke = vec![key(ALICE).public().to_string()];
    let client = node.line.node.client();
    client.revoke(&api::RevokeRequest { revoke }).unwrap();
    assert!(since.elapsed() < Duration::from_secs(1));
    // Packets sealed before are refused, and the client is notified of the end.
    hers.send(&recorded).unwrap();
    assert!(matches!(hers.answer(SOON), Err(CallError::Ended(_))));
    assert!(node.connect(node.v4, ALICE, &alice).is_err());
    let bobs = key(BOB).public().to_string();
    let left: Vec<_> = node.called().into_iter().map(|it| it.owner.unwrap()).collect();
    assert_eq!(left, [bobs]);
    assert!(call(&mut his, &digest, b"payload", Protection::Encrypted).is_some());
    assert_eq!(node.stats().dropped["active_unknown"], 1);
}

#[test]
fn nothing_is_accepted_twice_also_over_restarts() {
    if !root_or_skip("associations") {
        return;
    }
    let mut node = Node::up();
    let digest = node.store(mirror("pass-mirror"));
    let alice = token(ROOT, ALICE, &may_call("pass"));
    let mut recorded = Vec::new();
    let mut connect_and_call = |node: &Node| {
        let mut caller = node.connect(node.v4, ALICE, &alice).unwrap();
        for _ in 0..20 {
            let datagram = caller.sealed(&digest, b"payload", Protection::Encrypted).unwrap();
            caller.send(&datagram).unwrap();
            assert!(caller.answer(SOON).unwrap().is_some());
            recorded.push(datagram);
        }
        recorded.clone()
    };
    let replayed = |node: &Node, recorded: &[Vec<u8>]| {
        let (mut stranger, before) = (node.anyone(), node.stats());
        for datagram in recorded.iter().chain(recorded.iter().rev()) {
            stranger.send(datagram).unwrap();
        }
        assert_eq!(stranger.answer(SILENCE).unwrap(), None);
        let after = node.stats();
        assert_eq!(after.calls, before.calls);
        let dropped: u64 =
            after.dropped.values().sum::<u64>() - before.dropped.values().sum::<u64>();
        assert_eq!(dropped, 2 * recorded.len() as u64, "{after:?}");
    };
    let all = connect_and_call(&node);
    replayed(&node, &all);
    // The cell dies, and the keys with it.
    let cell = node.line.node.cell().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(cell as i32), nix::sys::signal::SIGKILL)
        .unwrap();
    let another = || node.line.node.cell().is_ok_and(|it| it != cell);
    wait_for(SOON, || another().then_some(())).expect("another cell");
    assert_eq!(node.stats().live, 0);
    let all = connect_and_call(&node);
    replayed(&node, &all);
    // The daemon dies, and another one takes the cell over.
    node.line.node.kill().unwrap();
    node.line.node.start_again(&node.line.net, "r1").unwrap();
    assert_eq!(node.stats().live, 0);
    replayed(&node, &all);
    let all = connect_and_call(&node);
    replayed(&node, &all);
    // The node ends and starts anew.
    node.line.node.stop().unwrap();
    node.line.node.start_again(&node.line.net, "r1").unwrap();
    replayed(&node, &all);
    let all = connect_and_call(&node);
    replayed(&node, &all);
}

#[test]
fn a_long_token_comes_in_fragments_and_a_long_packet_does_not() {
    if !root_or_skip("associations") {
        return;
    }
    let node = Node::up();
    let digest = node.store(mirror("pass-mirror"));
    let mut alice = token(ROOT, ALICE, &may_call("pass"));
    while alice.len() < 3000 {
        alice = narrowed(&alice, &may_call("pass"));
    }
    let mut caller = node.connect(node.v4, ALICE, &alice).unwrap();
    assert!(call(&mut caller, &digest, b"payload", Protection::Encrypted).is_some());
    caller.call(&digest, &[0; 2000], Protection::Encrypted).unwrap();
    assert_eq!(caller.answer(SILENCE).unwrap(), None);
    let past_cell = || node.stats().dropped.get("active_past_cell").copied();
    assert_eq!(wait_for(SOON, || past_cell().filter(|count| *count == 1)), Some(1));
}
