//! Tests of listeners that share one connection to the origin.

use crate::media::{frames, in_a_row, numbers};
use crate::world::{LIVE, Served, Server, World};
use fanout::{Key, KeyTooLong, Settings, Source};
use http1::{Framing, Version};
use sha2::{Digest, Sha256};

/// Frames that are held back: a frame is emitted when the next header follows it.
const HELD: u64 = 1;

#[test]
fn the_second_listener_begins_with_a_burst_and_gets_the_same() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut first = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    assert!(served.request().unwrap().contains("\r\nIcy-MetaData: 1\r\n"));
    served.send(&mut world, LIVE.as_bytes());
    served.send(&mut world, &frames(0..200));
    let all = frames(0..200 - HELD);
    let body = world.until("the first frames", |_| first.body(all.len()));
    assert_eq!(Sha256::digest(&body), Sha256::digest(&all));

    // 4 s are 153 frames and a part of one.
    let mut second = world.listen(&origin, "/live", "");
    let response = second.response().unwrap();
    assert_eq!((response.head.status(), response.field("icy-name")), (200, Some("Radio")));
    let burst = world.until("a burst", |_| second.body(150 * 417));
    assert_eq!(in_a_row(&burst), 45..200 - HELD);
    served.send(&mut world, &frames(200..300));
    let length = frames(0..300 - HELD).len();
    let one = world.until("what is live", |_| first.body(length));
    let other = world.until("what is live", |_| second.body(length - frames(0..45).len()));
    assert_eq!(Sha256::digest(&one[frames(0..45).len()..]), Sha256::digest(&other));
    let stats = world.stats();
    assert_eq!((stats.channels, stats.listeners, stats.origins_opened), (1, 2, 1));
    assert_eq!((stats.joined, stats.joined_from_ring), (2, 1));
    assert!(origin.accept_now().is_none(), "one connection is enough");
}

#[test]
fn the_origin_stays_for_the_remaining_listeners_and_closes_with_the_last() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let first = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, LIVE.as_bytes());
    let mut second = world.listen(&origin, "/live", "");
    drop(first);
    let mut all = (0..).step_by(4);
    let mut send_until = |world: &mut World, served: &mut Served, listeners: u64| {
        // A client that has left is noticed when bytes are sent to it.
        while world.stats().listeners > listeners {
            let number = all.next().unwrap();
            served.send(world, &frames(number..number + 4));
            world.pass(400);
        }
    };
    send_until(&mut world, &mut served, 1);
    let body = world.until("more", |_| second.body(417));
    assert_eq!(numbers(&body).0[0], 0);
    assert!(!served.is_closed());
    drop(second);
    send_until(&mut world, &mut served, 0);
    world.until("the end of the origin's connection", |_| served.is_closed().then_some(()));
    let stats = world.stats();
    assert_eq!((stats.channels, stats.listeners, stats.left, world.open()), (0, 0, 2, 0));
    assert_eq!(stats.memory.payload.0 + stats.memory.index.0 + stats.memory.listeners.0, 0);
    assert_eq!(world.poll_timeout(), None);
}

#[test]
fn each_version_gets_its_framing() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut new = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, LIVE.as_bytes());
    let mut old = world.ask(&origin.get("/live", "HTTP/1.0", ""));
    served.send(&mut world, &frames(0..100));
    drop(served);
    for (client, version, framing) in [
        (&mut new, Version::Http11, Framing::Chunked),
        (&mut old, Version::Http10, Framing::UntilClose),
    ] {
        let response = world.until("all of it", |_| client.whole());
        assert_eq!((response.head.version(), response.framing), (version, framing));
        assert_eq!(response.field("Connection"), Some("close"));
        assert_eq!(in_a_row(&response.body), 0..100);
    }
}

#[test]
fn different_requests_do_not_share() {
    let mut world = World::new(Settings::default());
    let (one, other) = (Server::new(), Server::new());
    let ask = |host: &Server, target: &str| host.get(target, "HTTP/1.1", "");
    let _clients: Vec<_> = [(&one, "/a"), (&one, "/b"), (&one, "/a"), (&other, "/a")]
        .map(|(host, target)| world.ask(&ask(host, target)))
        .into();
    world.until("all of them", |world| (world.stats().listeners == 4).then_some(()));
    assert_eq!((world.stats().channels, world.stats().origins_opened), (3, 3));
    let mut asked: Vec<_> = (0..2).map(|_| one.accept(&mut world).asked()).collect();
    asked.sort();
    assert!(asked[0].starts_with("GET /a HTTP/1.1\r\n") && asked[1].starts_with("GET /b "));
    assert!(other.accept(&mut world).asked().starts_with("GET /a "));
}

#[test]
fn a_modules_key_shares_only_within_one_server() {
    let mut world = World::new(Settings::default());
    let (one, other) = (Server::new(), Server::new());
    *world.key.borrow_mut() = b"news".to_vec();
    let _clients: Vec<_> = [(&one, "/a"), (&one, "/b"), (&other, "/a")]
        .map(|(host, target)| world.ask(&host.get(target, "HTTP/1.1", "")))
        .into();
    world.until("all of them", |world| (world.stats().listeners == 3).then_some(()));
    // A client that names a server of its own does not affect the other one's listeners.
    assert_eq!((world.stats().channels, world.stats().origins_opened), (2, 2));
    assert!(Key::new(&[b'a'; 1024]).is_ok());
    assert_eq!(Key::new(&[b'a'; 1025]), Err(KeyTooLong { found: 1025 }));
}

/// Returns payload with titles at this interval, as the simplest server would send it.
fn with_titles(payload: &[u8], interval: usize, titles: &[(usize, &str)]) -> Vec<u8> {
    let (mut wire, mut last) = (Vec::new(), "");
    for (at, part) in payload.chunks(interval).enumerate() {
        wire.extend_from_slice(part);
        if part.len() < interval {
            break;
        }
        let position = (at + 1) * interval;
        let title = titles.iter().rev().find(|(from, _)| *from <= position).map_or("", |it| it.1);
        let text = if title == last { "" } else { title };
        last = title;
        let units = text.len().div_ceil(16);
        wire.push(units as u8);
        wire.extend_from_slice(text.as_bytes());
        wire.resize(wire.len() + units * 16 - text.len(), 0);
    }
    wire
}

#[test]
fn titles_go_to_the_listeners_that_asked_at_their_own_intervals() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut plain = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut titled = world.ask(&origin.get("/live", "HTTP/1.0", "Icy-MetaData: 1\r\n"));
    let mut served = origin.accept(&mut world);
    world.until("both", |world| (world.stats().listeners == 2).then_some(()));
    let head = LIVE.replace("icy-name", "icy-metaint: 1000\r\nicy-name");
    let media = frames(0..300);
    let titles = [(1_000, "StreamTitle='one';"), (64_000, "StreamTitle='two';")];
    served.send(&mut world, head.as_bytes());
    served.send(&mut world, &with_titles(&media, 1_000, &titles));
    drop(served);
    let response = world.until("all of it", |_| plain.whole());
    assert_eq!(response.field("icy-metaint"), None);
    assert_eq!(Sha256::digest(&response.body), Sha256::digest(&media));
    let response = world.until("all of it", |_| titled.whole());
    assert_eq!(response.field("icy-metaint"), Some("16000"));
    let expected = with_titles(&media, 16_000, &titles);
    assert_eq!(Sha256::digest(&response.body), Sha256::digest(&expected));
}

#[test]
fn an_origin_sees_the_node_or_its_first_client() {
    for (source, seen) in [(Source::Node, "127.0.0.1"), (Source::Client, "127.0.0.7")] {
        let mut world = World::new(Settings { source, ..Settings::default() });
        let origin = Server::new();
        let request = origin.get("/live", "HTTP/1.1", "");
        let _client = world.ask_from(&request, "127.0.0.7");
        let served = origin.accept(&mut world);
        assert_eq!(served.peer().ip().to_string(), seen);
    }
}
