//! Malicious, slow and unavailable registries: wrong content is never accepted, and the time they
//! cost is bounded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use module_store::Digest;
use module_store::layout::{INDEX_TYPE, MANIFEST_TYPE};
use oci_client::limits::{ATTEMPTS_MAX, INDEX_DEPTH_MAX, REDIRECTS_MAX, TIME_MAX};
use oci_client::{Client, Pulled, Reference, RepositoryError, Settings, pull};
use testbase::Chance;
use tokio::time::Instant;

use super::world::{Delivery, Made, Reply, World, made, signer};

/// Pulls `one.test/monitor` at the given tag or digest from a registry with these responses.
async fn ask(answers: HashMap<String, Reply>, suffix: &str) -> Result<Pulled, RepositoryError> {
    let world = Arc::new(World::default());
    world.answers("one.test", answers);
    ask_world(&world, suffix).await
}

async fn ask_world(world: &Arc<World>, suffix: &str) -> Result<Pulled, RepositoryError> {
    let reference: Reference = format!("one.test/monitor{suffix}").parse().unwrap();
    let client = Client::new(world.clone(), &reference.registry, Settings::default());
    let begin = Instant::now();
    let result = pull(&client, &reference, None).await;
    assert!(begin.elapsed() <= TIME_MAX, "{:?}", begin.elapsed());
    result
}

/// Pulls once for each response, which is changed; returns the errors, of which none may be
/// missing.
async fn each(
    made: &Made,
    is_changed: impl Fn(&str) -> bool,
    change: impl Fn(&Reply) -> Reply,
) -> Vec<(String, RepositoryError)> {
    let mut errors = Vec::new();
    for (path, reply) in made.answers() {
        if !is_changed(&path) {
            continue;
        }
        let mut answers = made.answers();
        answers.insert(path.clone(), change(&reply));
        match ask(answers, "").await {
            Ok(pulled) => panic!("{path} gave {}", pulled.digest),
            Err(error) => errors.push((path, error)),
        }
    }
    assert!(!errors.is_empty());
    errors
}

/// Returns a filter of the paths that a pull by tag requests: all except the configs and the image
/// by its digest.
fn is_requested(made: &Made) -> impl Fn(&str) -> bool {
    let config = Digest::of(&made.documents.config).to_string();
    let other = Digest::of(&made.signature.config).to_string();
    let image = format!("manifests/{}", made.image());
    move |path| !path.ends_with(&config) && !path.ends_with(&other) && path != image
}

#[tokio::test(start_paused = true)]
async fn one_byte_a_second_is_too_slow() {
    let made = made("1.0.0");
    let begin = Instant::now();
    for (path, error) in
        each(&made, is_requested(&made), |reply| reply.clone().by(Delivery::Drip)).await
    {
        assert!(matches!(error, RepositoryError::TooSlow { .. }), "{path}: {error}");
    }
    assert!(begin.elapsed() < TIME_MAX * 4, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn nothing_after_the_head_is_too_slow() {
    let made = made("1.0.0");
    for (path, error) in
        each(&made, is_requested(&made), |reply| reply.clone().by(Delivery::Never)).await
    {
        assert!(matches!(error, RepositoryError::TooSlow { .. }), "{path}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_blob_cut_off_at_half_each_time_is_an_error() {
    let made = made("1.0.0");
    for (path, error) in
        each(&made, is_requested(&made), |reply| reply.clone().by(Delivery::Half)).await
    {
        assert!(matches!(error, RepositoryError::Broken { .. }), "{path}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_blob_that_is_declared_complete_is_an_error() {
    let made = made("1.0.0");
    let half = |reply: &Reply| Reply {
        body: reply.body[..reply.body.len() / 2].to_vec(),
        ..reply.clone()
    };
    let is_blob = |path: &str| is_requested(&made)(path) && path.starts_with("blobs/");
    for (path, error) in each(&made, is_blob, half).await {
        assert!(matches!(error, RepositoryError::Broken { .. }), "{path}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_answer_ends_at_the_limit() {
    let made = made("1.0.0");
    for (path, error) in
        each(&made, is_requested(&made), |reply| reply.clone().by(Delivery::Endless)).await
    {
        let is_limit =
            matches!(error, RepositoryError::TooLarge { .. } | RepositoryError::Longer { .. });
        assert!(is_limit, "{path}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_end_and_one_that_never_comes_are_given_up() {
    let made = made("1.0.0");
    let long = "x".repeat(1 << 20);
    let huge = |reply: &Reply| reply.clone().with("X-Long", &long);
    for (path, error) in each(&made, is_requested(&made), huge).await {
        assert!(matches!(error, RepositoryError::Broken { .. }), "{path}: {error}");
    }
    let many = |reply: &Reply| (0..1000).fold(reply.clone(), |reply, _| reply.with("X-Many", "1"));
    each(&made, is_requested(&made), many).await;

    let world = Arc::new(World::default());
    let error = ask_world(&world, "").await.unwrap_err();
    assert!(matches!(error, RepositoryError::Unreachable { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn redirects_in_a_loop_end() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    world.host("one.test", |asked| Reply::status(302).with("Location", &asked.path));
    let error = ask_world(&world, "").await.unwrap_err();
    assert!(matches!(error, RepositoryError::Redirected { .. }), "{error}");
    assert_eq!(world.count(), REDIRECTS_MAX as usize + 1);
    for bad in [
        "http://store.test/x",
        "file:///etc/passwd",
        "gopher://x/",
        "https://a@store.test/",
        "https:",
        "//",
        "",
    ] {
        let world = Arc::new(World::default());
        let answers = made.answers();
        world.host("one.test", move |asked| {
            if asked.rest().starts_with("blobs/") {
                return Reply::status(307).with("Location", bad);
            }
            answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
        });
        let error = ask_world(&world, "").await.unwrap_err();
        assert!(matches!(error, RepositoryError::Redirected { .. }), "{bad}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_bytes_under_a_digest_are_refused_despite_any_header() {
    let (made, other) = (made("1.0.0"), made_other());
    let image = made.image().to_string();
    for suffix in [format!("@{image}"), String::new()] {
        // Image of the other version, stated to be this one.
        let mut answers = made.answers();
        for path in [format!("manifests/{image}"), "manifests/latest".into()] {
            let lie = Reply::ok(&other.documents.image).with("Docker-Content-Digest", &image);
            answers.insert(path, lie.with("Content-Type", MANIFEST_TYPE));
        }
        answers.insert(format!("blobs/{}", other.digest), Reply::ok(&other.wasm));
        let error = ask(answers, &suffix).await.unwrap_err();
        assert!(matches!(error, RepositoryError::OtherBytes { .. }), "{error}");
    }
    // Layer with the right digest in the manifest, and other bytes of the same length.
    let mut answers = made.answers();
    answers.insert(format!("blobs/{}", made.digest), Reply::ok(&other.wasm));
    assert_eq!(made.wasm.len(), other.wasm.len());
    let error = ask(answers, "").await.unwrap_err();
    assert!(matches!(error, RepositoryError::OtherBytes { .. }), "{error}");
}

fn made_other() -> Made {
    made("0.9.0")
}

#[tokio::test(start_paused = true)]
async fn signatures_of_another_module_do_not_count() {
    let (made, other) = (made("1.0.0"), made_other());
    // The tag points at the other module, with the signatures of this one.
    let mut answers = other.answers();
    for (path, reply) in made.answers() {
        answers.entry(path).or_insert(reply);
    }
    let name = module_store::signatures::name(&other.image());
    let of_made = made.answers()
        [&format!("manifests/{}", module_store::signatures::name(&made.image()))]
        .clone();
    answers.insert(format!("manifests/{name}"), of_made);
    let pulled = ask(answers, "").await.unwrap();
    let verified = pulled.verified(&[signer(1)].into());
    assert_eq!(pulled.digest, other.digest);
    assert!(verified.signers.is_empty() && verified.refused.len() == 1, "{verified:?}");
}

#[tokio::test(start_paused = true)]
async fn manifests_that_lead_nowhere_or_round_and_round_are_refused() {
    let made = made("1.0.0");
    let index = |digest: &Digest, size: usize| {
        let kind = if *digest == made.image() { MANIFEST_TYPE } else { INDEX_TYPE };
        format!(
            r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{kind}","digest":"{digest}","size":{size}}}]}}"#
        )
    };
    // Indexes nested one level deeper than is followed.
    let mut nested = vec![index(&made.image(), made.documents.image.len())];
    for _ in 0..INDEX_DEPTH_MAX {
        let last = nested.last().unwrap();
        nested.push(index(&Digest::of(last.as_bytes()), last.len()));
    }
    let deepest = nested.last().unwrap().clone();
    let lying = index(&made.image(), made.documents.image.len() + 1);
    let deep = "[".repeat(100_000);
    let huge = format!(r#"{{"schemaVersion":2,"x":"{}"}}"#, "x".repeat(5 << 20));
    let big = r#"{"schemaVersion":2,"config":{"mediaType":"x","digest":"D","size":1},"layers":[{"mediaType":"application/wasm","digest":"D","size":18446744073709551615}]}"#;
    let big = big.replace('D', &made.digest.to_string());
    for (manifest, says) in [
        (deepest.as_str(), "leads to too many manifests"),
        (&lying, "but its descriptor says"),
        (&deep, "cannot be read"),
        (&huge, "longer than"),
        (&big, "longer than"),
        ("<html>", "cannot be read"),
        ("", "cannot be read"),
    ] {
        let mut answers = made.answers();
        answers.insert("manifests/latest".into(), Reply::ok(manifest.as_bytes()));
        for document in &nested {
            let path = format!("manifests/{}", Digest::of(document.as_bytes()));
            answers.insert(path, Reply::ok(document.as_bytes()));
        }
        let error = ask(answers, "").await.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_server_that_lies_gives_no_token() {
    let challenge = |realm: &str| {
        Reply::status(401).with("WWW-Authenticate", &format!("Bearer realm=\"{realm}\""))
    };
    for (answer, says) in [
        (Reply::ok(b"{}"), "no token"),
        (Reply::ok(b"{}").by(Delivery::Never), "too slow"),
        (Reply::ok(b"").by(Delivery::Endless), "longer than"),
        (Reply::status(500), "answered 500"),
        (Reply::status(302).with("Location", "https://auth.test/token"), "answered 302"),
    ] {
        let world = Arc::new(World::default());
        world.host("one.test", move |_| challenge("https://auth.test/token"));
        world.host("auth.test", move |_| answer.clone());
        let error = ask_world(&world, "").await.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert!(world.count() <= 2 * ATTEMPTS_MAX as usize);
    }
    let world = Arc::new(World::default());
    world.host("one.test", move |_| challenge("http://auth.test/token"));
    let error = ask_world(&world, "").await.unwrap_err();
    assert!(error.to_string().contains("not encrypted"), "{error}");
}

/// Applies a random lie: bytes changed, truncated or doubled, another response, status or header.
fn lie(chance: &mut Chance, reply: &mut Reply, others: &[Reply]) {
    let length = reply.body.len();
    match chance.index(9) {
        0..=2 if length > 0 => reply.body[chance.index(length)] ^= 1 << chance.index(8),
        3 if length > 0 => reply.body.truncate(chance.index(length)),
        4 => {
            let from = chance.index(length);
            let again = reply.body[from..].to_vec();
            reply.body.extend(again);
        }
        5 => *reply = others[chance.index(others.len())].clone(),
        6 => reply.status = [200, 206, 301, 401, 403, 404, 416, 429, 500][chance.index(9)],
        7 => {
            let headers = ["Content-Type", "Docker-Content-Digest", "Content-Range", "Location"];
            let values = [MANIFEST_TYPE, "bytes 0-1/2", "sha256:00", "/v2/", "text/html"];
            *reply = reply.clone().with(headers[chance.index(4)], values[chance.index(5)]);
        }
        _ => reply.delivery = [Delivery::Half, Delivery::Drip, Delivery::Never][chance.index(3)],
    }
}

/// Tests 10,000 registries that lie in one to three responses; 1,000,000 under `TAM_SOAK`. A tag
/// may point at another module, as its definition allows; a digest or a signature may not.
#[tokio::test(start_paused = true)]
async fn no_lie_of_ten_thousand_registries_is_accepted() {
    let count = if std::env::var_os("TAM_SOAK").is_some() { 1_000_000 } else { 10_000 };
    let (good, other) = (made("1.0.0"), made_other());
    let mut chance = Chance(1);
    let others: Vec<Reply> =
        good.answers().into_values().chain(other.answers().into_values()).collect();
    let known = [signer(1)].into();
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..count {
        let mut answers = other.answers();
        answers.extend(good.answers());
        let mut paths: Vec<String> = good.answers().into_keys().collect();
        paths.sort();
        for _ in 0..=chance.index(3) {
            let path = &paths[chance.index(paths.len())];
            lie(&mut chance, answers.get_mut(path).unwrap(), &others);
        }
        let suffix = if number % 2 == 0 { format!("@{}", good.image()) } else { String::new() };
        match ask(answers, &suffix).await {
            Err(_) => refused += 1,
            Ok(pulled) => {
                let is_known = [&good, &other].iter().any(|made| made.digest == pulled.digest);
                assert!(is_known && Digest::of(&pulled.wasm) == pulled.digest, "lie {number}");
                assert!(suffix.is_empty() || pulled.digest == good.digest, "lie {number}");
                let signers = pulled.verified(&known).signers;
                let image = if pulled.digest == good.digest { good.image() } else { other.image() };
                assert!(signers.is_empty() || pulled.image == image, "lie {number}");
                accepted += 1;
            }
        }
    }
    println!("{refused} refused, {accepted} came whole all the same");
    assert!(refused > count / 4 && accepted > 0, "{refused} of {count}");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_slow_everywhere_costs_no_more_than_the_time_there_is() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let answers = made.answers();
    // Each response arrives at the last permitted moment, and is too short.
    world.host("one.test", move |asked| {
        let reply = answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404));
        reply.by(Delivery::Drip)
    });
    let reference: Reference = "one.test/monitor".parse().unwrap();
    let settings = Settings { time_max: Duration::from_secs(15), ..Settings::default() };
    let client = Client::new(world.clone(), &reference.registry, settings);
    let begin = Instant::now();
    let error = pull(&client, &reference, None).await.unwrap_err();
    assert!(matches!(error, RepositoryError::TookTooLong(_)), "{error}");
    assert!(begin.elapsed() <= Duration::from_secs(16), "{:?}", begin.elapsed());
}
