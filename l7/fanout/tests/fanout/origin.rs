//! Tests of an origin's behaviour, and its effect on listeners.

use crate::media::{frames, in_a_row, numbers};
use crate::world::{CHUNKED, Ended, LIVE, Server, World, chunk};
use fanout::Settings;

#[test]
fn redirects_and_errors_go_to_all_waiting_listeners() {
    for answer in [
        "HTTP/1.1 302 Found\r\nLocation: http://b/\r\nContent-Length: 4\r\n\r\naway",
        "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone",
        "HTTP/1.0 503 Wait\r\n\r\nbusy",
    ] {
        let mut world = World::new(Settings::default());
        let origin = Server::new();
        let mut clients: Vec<_> = ["HTTP/1.1", "HTTP/1.0", "HTTP/1.1"]
            .map(|version| world.ask(&origin.get("/live", version, "")))
            .into();
        let mut served = origin.accept(&mut world);
        world.until("all of them", |world| (world.stats().listeners == 3).then_some(()));
        served.send(&mut world, answer.as_bytes());
        drop(served);
        let status = answer[9..12].parse().unwrap();
        for client in &mut clients {
            let response = world.until("an answer", |_| client.whole());
            assert_eq!(response.head.status(), status);
            assert_eq!(response.body, &answer.as_bytes()[answer.len() - 4..]);
            let location = response.field("Location");
            assert_eq!(location, (status == 302).then_some("http://b/"));
        }
        drop(clients);
        world.until("nobody", |world| (world.open() == 0).then_some(()));
        assert_eq!((world.stats().channels, world.stats().origins_opened), (0, 1));
    }
}

#[test]
fn an_unreachable_origin_is_a_bad_gateway() {
    let mut world = World::new(Settings::default());
    let mut origin = Server::new();
    origin.stop();
    let mut client = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let response = world.until("an answer", |_| client.whole());
    assert_eq!(response.head.status(), 502);
    assert_eq!(world.stats().origin_failures, 1);
}

#[test]
fn old_servers_are_understood() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut client = world.ask(&origin.get("/", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, b"ICY 200 OK\r\nicy-name:Old\r\ncontent-type:audio/mpeg\r\n\r\n");
    served.send(&mut world, &frames(0..10));
    drop(served);
    let response = world.until("all of it", |_| client.whole());
    assert_eq!((response.head.status(), response.field("icy-name")), (200, Some("Old")));
    assert_eq!(in_a_row(&response.body), 0..10);
}

#[test]
fn an_origin_that_is_killed_is_tried_again_and_frames_stay_whole() {
    let mut world = World::new(Settings::default());
    let mut origin = Server::new();
    let mut clients = [
        world.ask(&origin.get("/live", "HTTP/1.1", "")),
        world.ask(&origin.get("/live", "HTTP/1.0", "")),
    ];
    let mut served = origin.accept(&mut world);
    world.until("both", |world| (world.stats().listeners == 2).then_some(()));
    served.send(&mut world, LIVE.as_bytes());
    // Killed in the middle of a frame.
    served.send(&mut world, &frames(0..50)[..50 * 417]);
    for client in &mut clients {
        world.until("what was sent", |_| client.body(frames(0..49).len()));
    }
    origin.stop();
    served.kill();
    world.until("a pause", |world| (world.stats().origin_failures > 1).then_some(()));
    assert_eq!(world.stats().listeners, 2);
    origin.start();
    let mut served = origin.accept(&mut world);
    served.send(&mut world, LIVE.as_bytes());
    served.send(&mut world, &frames(70..100)[100..]);
    drop(served);
    for client in &mut clients {
        let response = world.until("the rest", |_| client.whole());
        let (numbers, rest) = numbers(&response.body);
        let expected: Vec<u64> = (0..49).chain(71..100).collect();
        assert_eq!((numbers, rest), (expected, 0));
    }
    assert_eq!(world.stats().reconnects, 1);
}

#[test]
fn an_origin_that_does_not_come_back_ends_its_listeners_by_reset() {
    let mut world = World::new(Settings::default());
    let mut origin = Server::new();
    let mut client = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, CHUNKED.as_bytes());
    served.send(&mut world, &chunk(&frames(0..20)));
    world.until("a part", |_| client.body(frames(0..19).len()));
    origin.stop();
    served.kill();
    world.pass(31_000);
    let body = world.until("a reset", |_| {
        client.read();
        (client.end == Some(Ended::Reset)).then(|| client.response().unwrap())
    });
    assert!(!body.is_whole);
    assert_eq!(in_a_row(&body.body), 0..20);
    assert_eq!((world.stats().channels, world.open()), (0, 0));
    assert!(world.stats().origin_failures > 5);
}

#[test]
fn a_silent_origin_is_given_up() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut client = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    world.pass(10_100);
    let response = world.until("an answer", |_| client.whole());
    assert_eq!(response.head.status(), 504);
    world.until("the end", |_| served.is_closed().then_some(()));

    // An origin that falls silent is asked again.
    let mut client = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, LIVE.as_bytes());
    served.send(&mut world, &frames(0..10));
    world.until("a part", |_| client.body(frames(0..9).len()));
    world.pass(15_500);
    world.until("the end", |_| served.is_closed().then_some(()));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, LIVE.as_bytes());
    served.send(&mut world, &frames(30..40));
    drop(served);
    let response = world.until("the rest", |_| client.whole());
    let expected: Vec<u64> = (0..10).chain(30..40).collect();
    assert_eq!(numbers(&response.body), (expected, 0));
}

#[test]
fn invalid_http_is_a_bad_gateway() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut client = world.ask(&origin.get("/live", "HTTP/1.1", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, b"SSH-2.0-x\r\n");
    let response = world.until("an answer", |_| client.whole());
    assert_eq!(response.head.status(), 502);
    world.until("the end", |_| served.is_closed().then_some(()));
}

#[test]
fn a_file_is_passed_to_the_first_and_others_ask_for_it_themselves() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let range = "Icy-MetaData: 1\r\nX-Own: 7\r\n";
    let mut first = world.ask(&origin.get("/file", "HTTP/1.1", ""));
    let mut second = world.ask(&origin.get("/file", "HTTP/1.1", range));
    let mut served = origin.accept(&mut world);
    world.until("both", |world| (world.stats().listeners == 2).then_some(()));
    let file = frames(0..400);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: {}\r\n\r\n",
        file.len()
    );
    served.send(&mut world, &[head.as_bytes(), &file[..1_000]].concat());
    let mut alone = origin.accept(&mut world);
    assert!(alone.asked().contains("\r\nX-Own: 7\r\n"), "with its own request");
    assert!(alone.asked().contains("\r\nConnection: close\r\n"));
    served.send(&mut world, &file[1_000..]);
    alone.send(&mut world, &[head.as_bytes(), &file].concat());
    for client in [&mut first, &mut second] {
        let response = world.until("all of it", |_| client.whole());
        assert!(response.body == file, "all of it");
    }
    assert_eq!((world.stats().alone, world.stats().channels), (2, 0));
    drop((served, alone, first, second));
    world.until("nobody", |world| (world.open() == 0).then_some(()));
    assert_eq!(world.stats().memory.listeners.0, 0);
}

#[test]
fn an_old_client_asks_again_for_what_came_in_chunks() {
    let mut world = World::new(Settings::default());
    let origin = Server::new();
    let mut client = world.ask(&origin.get("/page", "HTTP/1.0", ""));
    let mut served = origin.accept(&mut world);
    served.send(&mut world, CHUNKED.replace("audio/mpeg", "text/html").as_bytes());
    let mut alone = origin.accept(&mut world);
    assert!(alone.asked().starts_with("GET /page HTTP/1.0\r\n"));
    alone.send(&mut world, b"HTTP/1.0 200 OK\r\n\r\npage");
    drop(alone);
    assert_eq!(world.until("all of it", |_| client.whole()).body, b"page");
    assert!(served.is_closed());
}

#[test]
fn a_request_that_is_not_shared_goes_to_its_server_with_all_bytes() {
    let mut world = World::new(Settings::default());
    let mut origin = Server::new();
    let request = format!(
        "POST /live HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
        origin.address
    );
    let mut client = world.ask(&request);
    let mut served = origin.accept(&mut world);
    assert!(served.asked().ends_with("\r\nConnection: close\r\n\r\n\r\n\r\n"));
    served.send(&mut world, b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(world.until("an answer", |_| client.whole()).head.status(), 204);
    assert_eq!((world.stats().alone, world.stats().joined), (1, 0));

    origin.stop();
    let mut client = world.ask(&request);
    assert_eq!(world.until("an answer", |_| client.whole()).head.status(), 502);
}
