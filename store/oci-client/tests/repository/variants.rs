//! Variants that the specifications permit (OCI distribution specification 1.1, RFC 9110, RFC
//! 6749), and the permitted targets of redirects.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oci_client::http::Reach;
use oci_client::{Client, Peer, Pulled, Reference, RepositoryError, Settings, pull};
use tokio::time::Instant;

use super::world::{Made, Received, Reply, World, made};

async fn ask(world: &Arc<World>) -> Result<Pulled, RepositoryError> {
    let reference: Reference = "one.test/monitor".parse().unwrap();
    let client = Client::new(world.clone(), &reference.registry, Settings::default());
    pull(&client, &reference, None).await
}

/// Pulls from a registry whose every response is changed.
async fn changed(
    made: &Made,
    mut change: impl FnMut(&Received, Reply) -> Reply + Send + 'static,
) -> Result<Pulled, RepositoryError> {
    let world = Arc::new(World::default());
    let answers = made.answers();
    world.host("one.test", move |asked| {
        let reply = answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404));
        change(asked, reply)
    });
    ask(&world).await
}

fn of(headers: &[(&str, &str)]) -> HashMap<String, String> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn optional_features_are_accepted_in_any_form() {
    let made = made("1.0.0");
    let with_type = |reply: Reply, media_type: &str| {
        let headers = reply.headers.into_iter().filter(|(name, _)| name != "Content-Type");
        let reply = Reply { headers: headers.collect(), ..Reply::ok(&reply.body) };
        reply.with("Content-Type", media_type)
    };
    for media_type in [
        "application/vnd.oci.image.manifest.v1+json; charset=utf-8",
        "APPLICATION/OCTET-STREAM",
        "text/plain",
    ] {
        let change = move |_: &Received, reply: Reply| match reply.status {
            200 => with_type(reply, media_type),
            _ => reply,
        };
        assert_eq!(changed(&made, change).await.unwrap().digest, made.digest, "{media_type}");
    }
    // A missing object is stated in plain text only.
    let error = changed(&made, |_, _| Reply { body: b"404 page".to_vec(), ..Reply::status(404) });
    assert!(error.await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn redirects_are_followed_to_where_they_lead_seen_from_the_request() {
    let made = made("1.0.0");
    let blob = format!("blobs/{}", made.digest);
    for (location, path) in [
        ("./other?x=1", "/v2/monitor/blobs/other?x=1"),
        ("other", "/v2/monitor/blobs/other"),
        ("?x", &format!("/v2/monitor/{blob}?x")),
        ("../../elsewhere/./blob", "/v2/elsewhere/blob"),
        ("/there", "/there"),
        ("//one.test/there", "/there"),
        ("https://one.test:443/there", "/there"),
        ("HTTPS://ONE.TEST/there#part", "/there"),
    ] {
        let (bytes, moved) = (made.wasm.clone(), blob.clone());
        let (to, there) = (location.to_owned(), path.to_owned());
        let change = move |asked: &Received, reply: Reply| {
            if asked.path == there {
                Reply::ok(&bytes)
            } else if asked.rest() == moved {
                Reply::status(307).with("Location", &to)
            } else {
                reply
            }
        };
        let pulled = changed(&made, change).await;
        let pulled = pulled.unwrap_or_else(|error| panic!("{location}: {error}"));
        assert_eq!(pulled.digest, made.digest, "{location}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_delay_is_accepted_in_seconds_or_as_a_date() {
    let made = made("1.0.0");
    for (headers, waits) in [
        (of(&[("Retry-After", "3")]), 3),
        (of(&[("Retry-After", " 3 ")]), 3),
        (
            of(&[
                ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("Retry-After", "Sun, 06 Nov 1994 08:49:41 GMT"),
            ]),
            4,
        ),
        // Dates in the past and in the far future, and invalid values.
        (of(&[("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT")]), 0),
        (of(&[("Retry-After", "Tue, 31 Dec 2999 23:59:59 GMT")]), 8),
        (of(&[("Retry-After", "later")]), 0),
    ] {
        let mut is_first = true;
        let answer = headers.clone();
        let change = move |_: &Received, reply: Reply| {
            if std::mem::take(&mut is_first) {
                let slow = Reply::status(429);
                return answer.iter().fold(slow, |slow, (name, value)| slow.with(name, value));
            }
            reply
        };
        let begin = Instant::now();
        assert_eq!(changed(&made, change).await.unwrap().digest, made.digest, "{headers:?}");
        assert_eq!(begin.elapsed().as_secs(), waits, "{headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unrequested_coding_is_named_and_not_reported_as_damage() {
    let made = made("1.0.0");
    let change = |asked: &Received, reply: Reply| {
        assert_eq!(asked.headers["accept-encoding"], "identity");
        reply.with("Content-Encoding", "identity")
    };
    assert_eq!(changed(&made, change).await.unwrap().digest, made.digest);
    for part in ["manifests/", "blobs/"] {
        let change = move |asked: &Received, reply: Reply| match asked.rest().starts_with(part) {
            true => reply.with("Content-Encoding", "gzip"),
            false => reply,
        };
        let error = changed(&made, change).await.unwrap_err();
        assert!(matches!(error, RepositoryError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains("content coding is gzip"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_had_without_a_password_where_a_password_would_do_as_well() {
    let made = made("1.0.0");
    let challenges = [
        r#"bearer scope="repository:monitor:pull",service="reg, istry",realm="/token""#,
        r#"Basic realm="a \"b\"", Bearer realm="https://one.test/token""#,
    ];
    for challenge in challenges {
        let change = move |asked: &Received, reply: Reply| {
            if asked.path.starts_with("/token?") {
                return Reply::ok(br#"{"access_token":"t0k"}"#);
            }
            match asked.headers.get("authorization").map(String::as_str) {
                Some("Bearer t0k") => reply,
                _ => Reply::status(401).with("WWW-Authenticate", challenge),
            }
        };
        assert_eq!(changed(&made, change).await.unwrap().digest, made.digest, "{challenge}");
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_are_not_sent_to_other_hosts() {
    let (world, made) = (Arc::new(World::default()), made("1.0.0"));
    let (answers, moved) = (made.answers(), format!("blobs/{}", made.digest));
    world.host("one.test", move |asked| {
        if asked.rest() == moved {
            return Reply::status(307).with("Location", "https://store.test/blob");
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    world.host("store.test", |_| {
        Reply::status(401).with("WWW-Authenticate", r#"Bearer realm="https://thief.test/t""#)
    });
    world.host("thief.test", |_| Reply::ok(br#"{"token":"x"}"#));
    let error = ask(&world).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Denied { .. }), "{error}");
    assert!(world.asked.lock().unwrap().iter().all(|(host, _)| host != "thief.test"));
}

/// Makes a registry whose blobs are at `location`, with a host at each network distance that has
/// them.
fn sending_to(made: &Made, registry: Peer, location: &str) -> Arc<World> {
    let world = Arc::new(World::default());
    world.move_host("one.test", registry);
    let (answers, location) = (made.answers(), location.to_owned());
    let moved = format!("blobs/{}", made.digest);
    world.host("one.test", move |asked| {
        if asked.rest() == moved {
            return Reply::status(307).with("Location", &location);
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    let blob = made.wasm.clone();
    for (host, peer) in
        [("here.test", Peer::Machine), ("link.test", Peer::Link), ("far.test", Peer::Beyond)]
    {
        world.move_host(host, peer);
        let blob = blob.clone();
        world.host(host, move |asked| match asked.path.as_str() {
            "/on" => Reply::status(302).with("Location", "https://here.test/blob"),
            _ => Reply::ok(&blob),
        });
    }
    world
}

#[tokio::test(start_paused = true)]
async fn only_a_registry_on_this_machine_may_redirect_to_it() {
    let made = made("1.0.0");
    for (registry, location, goes) in [
        (Peer::Beyond, "https://far.test/blob", true),
        (Peer::Beyond, "https://here.test/blob", false),
        (Peer::Beyond, "https://link.test/blob", false),
        // Through a second redirect.
        (Peer::Beyond, "https://far.test/on", false),
        (Peer::Link, "https://here.test/blob", false),
        (Peer::Link, "https://link.test/blob", false),
        (Peer::Link, "https://far.test/blob", true),
        (Peer::Machine, "https://here.test/blob", true),
        (Peer::Machine, "https://link.test/blob", true),
        (Peer::Machine, "https://far.test/on", true),
    ] {
        let world = sending_to(&made, registry, location);
        let begin = Instant::now();
        match ask(&world).await {
            Ok(pulled) => assert!(goes && pulled.digest == made.digest, "{registry:?} {location}"),
            Err(error) => {
                assert!(!goes, "{registry:?} {location}: {error}");
                assert!(matches!(error, RepositoryError::Redirected { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains("redirects to") && text.contains(".test/"), "{text}");
                assert_eq!(begin.elapsed(), Duration::ZERO, "it is not tried again");
                let asked = world.asked.lock().unwrap();
                assert!(asked.iter().all(|(host, _)| host != "here.test" && host != "link.test"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn token_servers_and_upload_locations_cannot_lead_to_this_machine() {
    let made = made("1.0.0");
    let world = sending_to(&made, Peer::Beyond, "https://far.test/blob");
    world.host("one.test", |_| {
        let challenge = r#"Bearer realm="https://here.test/token""#;
        Reply::status(401).with("WWW-Authenticate", challenge)
    });
    let error = ask(&world).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Redirected { .. }), "{error}");
    world.host("one.test", |asked| match asked.method.as_str() {
        "POST" => Reply::status(202).with("Location", "https://here.test/up/1"),
        _ => Reply::status(404),
    });
    let reference: Reference = "one.test/monitor:1.0.0".parse().unwrap();
    let client = Client::new(world.clone(), &reference.registry, Settings::default());
    let documents = &made.documents;
    let pushed = oci_client::push(&client, &reference, &made.wasm, documents, &[], None).await;
    assert!(matches!(pushed, Err(RepositoryError::Redirected { .. })), "{pushed:?}");
    assert!(world.asked.lock().unwrap().iter().all(|(host, _)| host != "here.test"));
}

#[tokio::test]
async fn rebound_names_and_open_connections_cannot_lead_to_this_machine() {
    let made = made("1.0.0");
    // The registry redirects to itself, and its name resolves to this machine from then on.
    let world = Arc::new(World::default());
    let (answers, moved, name) = (made.answers(), format!("blobs/{}", made.digest), world.clone());
    world.host("one.test", move |asked| {
        if asked.rest() == moved {
            name.move_host("one.test", Peer::Machine);
            return Reply::status(307)
                .with("Location", "https://one.test/moved")
                .with("Connection", "close");
        }
        answers.get(asked.rest()).cloned().unwrap_or_else(|| Reply::status(404))
    });
    let error = ask(&world).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Redirected { .. }), "{error}");

    // Idle connection of another pull to a service on this machine, which the operator named.
    let world = sending_to(&made, Peer::Beyond, "https://here.test/v2/monitor/blob");
    world.answers("here.test", made.answers());
    let settings = Settings::default();
    let ours: Reference = "here.test/monitor".parse().unwrap();
    let client = Client::new(world.clone(), &ours.registry, settings.clone());
    pull(&client, &ours, None).await.unwrap();
    let asked = world.count();
    let theirs: Reference = "one.test/monitor".parse().unwrap();
    let client = Client::new(world.clone(), &theirs.registry, settings);
    let error = pull(&client, &theirs, None).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Redirected { .. }), "{error}");
    let here = |(host, _): &&(String, Received)| host == "here.test";
    assert_eq!(world.asked.lock().unwrap().iter().skip(asked).filter(here).count(), 0);
    let reaches = world.reaches.lock().unwrap();
    assert!(reaches.contains(&("here.test".into(), Reach::OtherMachines)));
}
