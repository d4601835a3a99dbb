//! Registries that follow the specification: results, requests, resumption.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use module_store::{Digest, Store};
use oci_client::http::{Reach, Transport};
use oci_client::{
    Client, Connections, Credentials, Mirrors, Pulled, Reference, RepositoryError, Settings,
    Source, Wanted, pull, pull_by_digest, pull_from, pull_one,
};
use tempfile::TempDir;
use tokio::time::Instant;

use super::world::{Delivery, Made, Received, Reply, World, made, signer};

fn client(world: &Arc<World>, reference: &Reference) -> Client {
    let transport: Arc<dyn Transport> = world.clone();
    Client::new(transport, &reference.registry, Settings::default())
}

async fn pulled(world: &Arc<World>, reference: &str) -> Result<Pulled, RepositoryError> {
    let reference = reference.parse().unwrap();
    pull(&client(world, &reference), &reference, None).await
}

fn known() -> BTreeSet<trust::Signer> {
    [signer(1)].into()
}

#[tokio::test(start_paused = true)]
async fn a_module_comes_with_its_signers_and_goes_into_the_store() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    world.answers("one.test", made.answers());
    let pulled = pulled(&world, "one.test/monitor").await.unwrap();
    assert_eq!(
        (pulled.digest, pulled.image, pulled.resolved),
        (made.digest, made.image(), made.image())
    );
    assert_eq!(pulled.verified(&known()).signers, known());

    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    pulled.store(&store).unwrap();
    let read = store.verified(&made.digest, &known()).unwrap();
    assert_eq!((read.wasm, read.verified.signers), (made.wasm, known()));
}

#[tokio::test(start_paused = true)]
async fn a_tag_is_resolved_once() {
    let (world, old, new) = (Arc::new(World::default()), made("1.0.0"), made("2.0.0"));
    let mut answers = old.answers();
    for (path, reply) in new.answers() {
        answers.entry(path).or_insert(reply);
    }
    let moved = new.answers()["manifests/latest"].clone();
    let mut times = 0;
    world.host("one.test", move |asked| {
        times += usize::from(asked.rest() == "manifests/latest");
        // The tag points at another image as soon as it was requested.
        if times > 1 && asked.rest() == "manifests/latest" {
            return moved.clone();
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    let pulled = pulled(&world, "one.test/monitor:latest").await.unwrap();
    assert_eq!(pulled.digest, old.digest);
    let asked = world.asked.lock().unwrap();
    assert_eq!(asked.iter().filter(|(_, asked)| asked.rest() == "manifests/latest").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_blob_is_resumed() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let (answers, blob, wasm) =
        (made.answers(), format!("blobs/{}", made.digest), made.wasm.clone());
    world.host("one.test", move |asked: &Received| {
        if asked.rest() != blob {
            return answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404));
        }
        let from = asked.from();
        let reply = Reply::ok(&wasm[from..]);
        let range = format!("bytes {from}-{}/{}", wasm.len() - 1, wasm.len());
        // Three quarters arrive in two halves, the rest at once.
        let delivery =
            if from < wasm.len() / 2 + wasm.len() / 4 { Delivery::Half } else { Delivery::Whole };
        if from == 0 {
            return reply.by(delivery);
        }
        Reply { status: 206, ..reply }.with("Content-Range", &range).by(delivery)
    });
    let pulled = pulled(&world, "one.test/monitor").await.unwrap();
    assert_eq!(pulled.digest, made.digest);
    let asked = world.asked.lock().unwrap();
    let from: Vec<usize> = asked
        .iter()
        .filter(|(_, asked)| asked.path.ends_with(&made.digest.to_string()))
        .map(|(_, asked)| asked.from())
        .collect();
    let half = made.wasm.len() / 2;
    assert_eq!(from, [0, half, half + (made.wasm.len() - half) / 2]);
}

#[tokio::test(start_paused = true)]
async fn without_ranges_a_blob_is_requested_again_as_a_whole() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let (answers, blob) = (made.answers(), format!("blobs/{}", made.digest));
    let mut has_broken = false;
    world.host("one.test", move |asked| {
        let reply = answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404));
        if asked.rest() == blob && !std::mem::replace(&mut has_broken, true) {
            return reply.by(Delivery::Half);
        }
        reply
    });
    assert_eq!(pulled(&world, "one.test/monitor").await.unwrap().digest, made.digest);
}

#[tokio::test(start_paused = true)]
async fn a_busy_registry_is_retried_a_bounded_number_of_times() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let answers = made.answers();
    let mut busy = 3;
    world.host("one.test", move |asked| {
        if busy > 0 {
            busy -= 1;
            return Reply::status(503).with("Retry-After", "2");
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    let begin = Instant::now();
    assert!(pulled(&world, "one.test/monitor").await.is_ok());
    assert!(begin.elapsed() >= Duration::from_secs(6) && begin.elapsed() < Duration::from_secs(20));

    world.host("two.test", |_| Reply::status(503));
    let before = world.count();
    let error = pulled(&world, "two.test/monitor").await.unwrap_err();
    assert!(matches!(error, RepositoryError::Status { status: 503, .. }), "{error}");
    assert_eq!(world.count() - before, oci_client::limits::ATTEMPTS_MAX as usize);
}

/// Registry with a token server on another host that requires a password.
fn with_tokens(world: &World, made: &Made) {
    let answers = made.answers();
    world.host("one.test", move |asked| {
        if asked.headers.get("authorization").is_none_or(|found| found != "Bearer good") {
            let challenge = "Bearer realm=\"https://auth.test/token\",service=\"one\"";
            return Reply::status(401).with("WWW-Authenticate", challenge);
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    world.host("auth.test", |asked| {
        let is_right = asked.path == "/token?service=one&scope=repository%3Amonitor%3Apull"
            && asked
                .headers
                .get("authorization")
                .is_some_and(|found| found == "Basic YWxpY2U6c2VjcmV0");
        if is_right { Reply::ok(br#"{"token":"good"}"#) } else { Reply::status(401) }
    });
}

#[tokio::test(start_paused = true)]
async fn a_token_is_bought_once_and_shown_to_the_registry_only() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    with_tokens(&world, &made);
    let reference: Reference = "one.test/monitor".parse().unwrap();
    let credentials = Some(Credentials::new("alice", "secret"));
    let settings = Settings { credentials, ..Settings::default() };
    let client = Client::new(world.clone(), &reference.registry, settings);
    assert_eq!(pull(&client, &reference, None).await.unwrap().digest, made.digest);
    let bought = |(host, _): &&(String, Received)| host == "auth.test";
    assert_eq!(world.asked.lock().unwrap().iter().filter(bought).count(), 1);
    let error = pulled(&world, "one.test/monitor").await.unwrap_err();
    assert!(error.to_string().contains("there is no password for it"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_followed_without_the_token_and_not_to_this_machine() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let (answers, blob) = (made.answers(), made.wasm.clone());
    let moved = format!("blobs/{}", made.digest);
    world.host("one.test", move |asked| {
        if !asked.headers.contains_key("authorization") {
            return Reply::status(401).with("WWW-Authenticate", "Basic realm=\"x\"");
        }
        if asked.rest() == moved {
            return Reply::status(307).with("Location", "https://store.test/some?signed=1");
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    world.host("store.test", move |_| Reply::ok(&blob));
    let reference: Reference = "one.test/monitor".parse().unwrap();
    let credentials = Some(Credentials::new("alice", "secret"));
    let settings = Settings { credentials, ..Settings::default() };
    let client = Client::new(world.clone(), &reference.registry, settings);
    assert_eq!(pull(&client, &reference, None).await.unwrap().digest, made.digest);
    let asked = world.asked.lock().unwrap();
    let stored: Vec<_> = asked.iter().filter(|(host, _)| host == "store.test").collect();
    assert!(
        !stored.is_empty()
            && stored.iter().all(|(_, asked)| !asked.headers.contains_key("authorization"))
    );
    let reaches = world.reaches.lock().unwrap();
    assert!(reaches.contains(&("store.test".into(), Reach::OtherMachines)));
    assert!(reaches.contains(&("one.test".into(), Reach::Anywhere)));
}

#[tokio::test(start_paused = true)]
async fn a_node_is_asked_by_the_digest_of_the_module() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    world.answers("node.test", made.answers());
    let reference: Reference = "node.test/monitor".parse().unwrap();
    let client = client(&world, &reference);
    let pulled = pull_by_digest(&client, "monitor", &made.digest, None).await.unwrap();
    assert_eq!((pulled.digest, pulled.verified(&known()).signers), (made.digest, known()));
    let absent =
        pull_by_digest(&client, "monitor", &Digest::of(b"absent"), None).await.unwrap_err();
    assert!(absent.is_not_found());
}

#[tokio::test]
async fn a_second_pull_needs_no_connection_and_the_token_goes_to_the_registry_alone() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    world.answers("node.test", made.answers());
    let transport: Arc<dyn Transport> = world.clone();
    let headers = [(oci_client::HOPS, "3".parse().unwrap())].into_iter().collect();
    let token = oci_client::Token::new("of-the-node");
    let settings = Settings { token, headers, ..Settings::default() };
    let source = Source { registry: "node.test".parse().unwrap(), prefix: String::new(), settings };
    for _ in 0..3 {
        let wanted = Wanted::Module { name: "monitor".into(), digest: made.digest };
        pull_one(&transport, &source, &wanted, None).await.unwrap();
        let absent = Wanted::Module { name: "monitor".into(), digest: Digest::of(b"absent") };
        pull_one(&transport, &source, &absent, None).await.unwrap_err();
    }
    assert_eq!(world.reaches.lock().unwrap().len(), 1, "one connection");
    for (_, asked) in world.asked.lock().unwrap().iter() {
        assert_eq!(asked.headers["authorization"], "Bearer of-the-node");
        assert_eq!(asked.headers["tamandua-hops"], "3");
    }
    // Neither token nor password is sent to the target of a redirect.
    world.host("node.test", |asked| {
        Reply::status(307).with("Location", &format!("https://other.test{}", asked.path))
    });
    world.answers("other.test", made.answers());
    let wanted = Wanted::Module { name: "monitor".into(), digest: made.digest };
    let settings = Settings { connections: Connections::default(), ..source.settings.clone() };
    pull_one(&transport, &Source { settings, ..source }, &wanted, None).await.unwrap();
    let asked = world.asked.lock().unwrap();
    let elsewhere: Vec<_> = asked.iter().filter(|(host, _)| host == "other.test").collect();
    assert!(!elsewhere.is_empty());
    for (_, asked) in elsewhere {
        assert!(!asked.headers.contains_key("authorization"), "{asked:?}");
        assert!(!asked.headers.contains_key("tamandua-hops"), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn mirrors_are_asked_in_turn_and_a_failed_one_is_suspended() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    world.answers("good.test", made.answers());
    world.host("empty.test", |_| Reply::status(404));
    let transport: Arc<dyn Transport> = world.clone();
    let source = |host: &str| Source {
        registry: host.parse().unwrap(),
        prefix: String::new(),
        settings: Settings::default(),
    };
    let mut sources =
        Mirrors::new([source("down.test"), source("empty.test"), source("good.test")]);
    let wanted = Wanted::Module { name: "monitor".into(), digest: made.digest };
    let begin = Instant::now();
    let (from, pulled) = pull_from(&transport, &mut sources, &wanted, begin, None).await.unwrap();
    assert_eq!((from.registry.host.as_str(), pulled.digest), ("good.test", made.digest));
    assert_eq!(sources.order(begin.elapsed()), [1, 2]);
    let wanted = Wanted::Module { name: "monitor".into(), digest: Digest::of(b"absent") };
    let errors = pull_from(&transport, &mut sources, &wanted, begin, None).await.unwrap_err();
    assert!(errors.len() == 2 && errors.iter().all(RepositoryError::is_not_found));
}

#[tokio::test(start_paused = true)]
async fn a_push_sends_missing_blobs_and_the_name_last() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let has = Arc::new(Mutex::new(BTreeSet::new()));
    let there = Arc::clone(&has);
    world.host("one.test", move |asked| {
        let mut there = there.lock().unwrap();
        match (asked.method.as_str(), asked.path.split('?').next().unwrap()) {
            ("HEAD", path) if there.contains(path) => Reply::status(200),
            ("POST", _) => Reply::status(202).with("Location", "/up/1?state=x"),
            ("PUT", "/up/1") => {
                let digest = asked.path.split("digest=").nth(1).unwrap().replace("%3A", ":");
                there.insert(format!("/v2/monitor/blobs/{digest}"));
                Reply::status(201)
            }
            ("PUT", _) => Reply::status(201),
            _ => Reply::status(404),
        }
    });
    let reference: Reference = "one.test/monitor:1.0.0".parse().unwrap();
    let image = trust::ImageDigest(*made.image().bytes());
    let signature = trust::Signature::new(&super::world::key(1), &image, "monitor");
    let push = async || {
        let client = client(&world, &reference);
        oci_client::push(
            &client,
            &reference,
            &made.wasm,
            &made.documents,
            std::slice::from_ref(&signature),
            None,
        )
        .await
    };
    assert_eq!(push().await.unwrap(), made.image());
    let puts = |from: usize| -> Vec<String> {
        let asked = world.asked.lock().unwrap();
        asked[from..]
            .iter()
            .filter(|(_, asked)| asked.method == "PUT")
            .map(|(_, asked)| asked.path.clone())
            .collect()
    };
    let first = puts(0);
    assert_eq!(first.len(), 6, "{first:?}");
    assert_eq!(first[5], "/v2/monitor/manifests/1.0.0");
    assert_eq!(
        first[4],
        format!("/v2/monitor/manifests/{}", module_store::signatures::name(&made.image()))
    );
    let before = world.count();
    push().await.unwrap();
    assert_eq!(puts(before).len(), 2, "only the manifests");
}
