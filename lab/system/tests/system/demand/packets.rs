//! Packets that call modules which the node does not hold.

use super::registry::Registry;
use super::{World, billed, deploys, holds, key_of, only, signed, told};
use crate::associations::{SILENCE, call, mirror};
use crate::common::{SOON, key, token};
use crate::demand::{ALICE, PORT, ROOT};

use std::net::SocketAddr;
use std::time::Duration;

use ::module_store::Digest;
use api::EventKind;
use association::Protection::Encrypted;
use association_client::{Caller, Settings};
use testkit::{NodeUnderTest, root_or_skip, wait_for};
use trust::{SecretKey, Seed, Token};

/// Number of packets: more than may wait for one association.
const MANY: u16 = 10_000;
const WAIT: u64 = 128;

/// Node of the first router, and a client of it on the host `client`.
struct Called {
    node: NodeUnderTest,
    at: SocketAddr,
}

impl World {
    /// Returns a node that is called by the client, with these repositories.
    fn called(&self, repositories: &str) -> Called {
        let at = SocketAddr::from((self.address("r1", "client"), PORT));
        let more = format!("[associations]\nlisten = [\"{at}\"]\n{repositories}");
        Called { node: self.node("r1", "r2", &more), at }
    }

    fn caller(&self, called: &Called, from: &str, who: SecretKey, token: &str) -> Caller {
        let settings = Settings {
            key: who,
            token: token.to_owned(),
            node: Some(key_of(&called.node)),
            within: SOON,
        };
        self.net.within(from, || Caller::connect(called.at, settings)).unwrap().unwrap()
    }
}

impl Called {
    fn dropped(&self, reason: &str) -> u64 {
        let associations = self.node.stats().unwrap().associations.unwrap();
        associations.dropped.get(reason).copied().unwrap_or_default()
    }
}

/// Returns a registry with the module of these bytes, and nothing else.
fn registry_of(world: &World, wasm: Vec<u8>, delay: Duration) -> Registry {
    world.registry(delay, only(wasm))
}

#[test]
fn packets_wait_for_a_module_that_only_a_neighbour_has_and_their_principal_pays() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let above = world.node("r2", "r1", "");
    let wasm = mirror("pass-mirror");
    let digest = above.client().store_module(wasm.clone()).unwrap().digest;
    let named = *digest.parse::<Digest>().unwrap().bytes();
    let called = world.called(&world.section(&above, "r2", "r1"));
    let hers = token(ROOT, ALICE, &deploys(&["name:pass*"]));
    let mut caller = world.caller(&called, "client", key(ALICE), &hers);
    for number in 0..20 {
        caller.call(&named, &[number], Encrypted).unwrap();
    }
    for number in 0..20 {
        let answer = caller.answer(SOON).unwrap().expect("all of them are answered, in order");
        assert_eq!(answer.payload, [number + 1]);
    }
    // The module ran before it was on the disk.
    assert!(wait_for(SOON, || holds(&called.node, &digest).then_some(())).is_some());
    assert_eq!(told(&called.node, EventKind::ModuleFetched).len(), 1);
    let paid = billed(&called.node, key(ALICE).public(), "best-effort").unwrap();
    assert_eq!((paid.fetches, paid.fetched_bytes), (1, wasm.len() as u64));
    // A fetched module that the principal has no right to is not kept.
    let other = above.client().store_module(mirror("other")).unwrap().digest;
    caller.call(other.parse::<Digest>().unwrap().bytes(), b"x", Encrypted).unwrap();
    assert_eq!(caller.answer(SILENCE).unwrap(), None);
    assert!(wait_for(SOON, || (called.dropped("active_refused") == 1).then_some(())).is_some());
    assert!(!holds(&called.node, &other));
}

#[test]
fn thousands_of_packets_for_a_missing_module_cause_one_fetch_and_few_wait() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let registry = registry_of(&world, mirror("pass-mirror"), Duration::from_millis(700));
    let called = world.called(&registry.section());
    let hers = token(ROOT, ALICE, &deploys(&["name:pass*"]));
    let mut caller = world.caller(&called, "client", key(ALICE), &hers);
    let absent = [7; 32];
    for number in 0..MANY {
        caller.call(&absent, &number.to_be_bytes(), Encrypted).unwrap();
    }
    assert_eq!(caller.answer(SILENCE).unwrap(), None);
    let refused = || called.dropped("active_refused") >= WAIT;
    assert!(wait_for(SOON, || refused().then_some(())).is_some());
    let stats = called.node.stats().unwrap();
    let dropped = stats.associations.unwrap().dropped;
    // The first packets arrive in a burst, for which the ring may be full.
    let ring: u64 = stats.ports.iter().map(|it| it.socket_ring_full + it.socket_dropped).sum();
    let all = dropped.values().sum::<u64>() + ring;
    assert_eq!(all, u64::from(MANY), "{dropped:?}, {ring} at the ring");
    assert!(dropped["active_waiting_full"] > u64::from(MANY) / 2, "{dropped:?}");
    assert_eq!((stats.demand.requests, stats.demand.missed), (1, 1));
    assert_eq!(registry.asked_for("/blobs/"), 1);
    // Nothing reveals that the module exists, and nothing runs.
    assert_eq!(called.node.client().services().unwrap().services, []);
}

#[test]
fn the_node_that_packets_come_from_is_asked_for_their_code_before_the_registries() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let previous = world.node("r2", "r1", "");
    let pem =
        std::fs::read_to_string(previous.directory().join("store.state/node.key.pem")).unwrap();
    let wasm = mirror("pass-mirror");
    let registry = registry_of(&world, wasm.clone(), Duration::ZERO);
    previous.client().store_module(wasm).unwrap();
    let other = mirror("pass-other");
    let [first, second] = [mirror("pass-mirror"), other.clone()].map(|it| Digest::of(&it));
    previous.client().store_module(other).unwrap();
    let sections = registry.section() + &world.section(&previous, "r2", "r1");
    let called = world.called(&sections);
    let key_there = SecretKey::from_pem(&pem, None).unwrap();
    let grant = deploys(&["name:pass*"]);
    let minted = Token::mint(&key(ROOT), key_there.public(), &grant, &Seed::new([9; 32]));
    let shown = minted.unwrap().held().unwrap().to_string();
    let mut from_previous = world.caller(&called, "r2", key_there, &shown);
    assert!(call(&mut from_previous, first.bytes(), b"payload", Encrypted).is_some());
    assert_eq!(registry.asked_for("/"), 0);
    // Somebody else's go to the registry first, which does not have it.
    let hers = token(ROOT, ALICE, &grant);
    let mut caller = world.caller(&called, "client", key(ALICE), &hers);
    assert!(call(&mut caller, second.bytes(), b"payload", Encrypted).is_some());
    assert!(registry.asked_for("/blobs/") > 0);
}

#[test]
fn unauthenticated_packets_fetch_only_signed_modules_that_are_listed_by_digest() {
    if !root_or_skip("demand loading") {
        return;
    }
    let world = World::new();
    let above = world.node("r2", "r1", "");
    let store = |name: &str, by: u8| {
        let wasm = mirror(name);
        let digest = above.client().store_module(wasm.clone()).unwrap().digest;
        above.client().add_signatures(&digest, &signed(&wasm, &key(by))).unwrap();
        digest.parse::<Digest>().unwrap()
    };
    let (free, strangers, named) =
        (store("free", 5), store("free-of-others", 6), store("by-name", 5));
    let at = SocketAddr::from((world.address("r1", "client"), PORT));
    let signers = format!(
        "signers = [\"{}\"]\nanyone = [\"{free}\", \"{strangers}\", \"name:by-name\"]",
        key(5).public()
    );
    let edit = |text: String| text.replace("unsigned = \"accept\"", &signers);
    let more =
        format!("[associations]\nlisten = [\"{at}\"]\n{}", world.section(&above, "r2", "r1"));
    let node = world.node_edited("r1", "r2", &more, edit);
    let mut stranger = world.net.within("client", || Caller::anyone(at)).unwrap().unwrap();
    assert!(call(&mut stranger, free.bytes(), b"payload", Encrypted).is_some());
    assert_eq!(node.stats().unwrap().demand.requests, 1);
    // Nobody whom the node believes has signed it: fetched once, not kept, remembered.
    stranger.call(strangers.bytes(), b"payload", Encrypted).unwrap();
    assert_eq!(stranger.answer(SILENCE).unwrap(), None);
    assert_eq!(node.stats().unwrap().demand.requests, 2);
    // A module that only its name would permit for anyone is not fetched for strangers.
    stranger.call(named.bytes(), b"payload", Encrypted).unwrap();
    assert_eq!(stranger.answer(SILENCE).unwrap(), None);
    assert_eq!(node.stats().unwrap().demand.requests, 2);
    for digest in [strangers, named] {
        assert!(!holds(&node, &digest.to_string()));
    }
    assert_eq!(billed(&node, key_of(&node), "best-effort").unwrap().fetches, 2);
}
