//! Tests of requests that a module hands over to shared streams.

use super::lab::{Lab, Peer, module, vm_spec};
use crate::{Capabilities, REFLECT};
use fanout::{FanoutStats, Settings};
use std::time::Duration;

const OK: &str = "0";
const NOT_FOUND: &str = "1";
const BAD_ARGUMENT: &str = "2";

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: audio/x-none\r\n\r\n";

fn reflects() -> Capabilities {
    Capabilities { reflects: Some(Settings::default()), ..Capabilities::default() }
}

/// Returns a module that hands over every request, with a key of this length, logs the results, and
/// returns `action`; `more` runs before.
fn giving(callback: &str, key_length: usize, action: u32, more: &str) -> Vec<u8> {
    let body = format!(
        "{more} (i32.store8 (i32.const 0x200) (i32.add (i32.const 48)
            (call $proxy_call_foreign_function (i32.const 0x100) (i32.const {})
                (i32.const 0x1000) (i32.const {key_length}) (i32.const 0) (i32.const 0))))
         (drop (call $proxy_log (i32.const 2) (i32.const 0x200) (i32.const 1)))
         (i32.const {action})",
        REFLECT.len()
    );
    let log = "(call $proxy_log (i32.const 2) (i32.const 0x120) (i32.const 1))";
    let mut callbacks = vec![(callback, body.as_str())];
    if callback != "proxy_on_log" {
        callbacks.push(("proxy_on_log", log));
    }
    let data: &[(u32, &[u8])] = &[
        (0x100, REFLECT.as_bytes()),
        (0x120, b"e"),
        (0x130, b"X-Added"),
        (0x140, b"1"),
        (0x150, b":path"),
        (0x160, b"/live"),
    ];
    module(&callbacks, data)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn listening(lab: &mut Lab, path: &str) -> Peer {
    let mut client = lab.client();
    client.send(get(path));
    lab.rest(&mut [&mut client]);
    client
}

fn stats(lab: &Lab) -> FanoutStats {
    lab.reports.fanout().unwrap()
}

/// Returns bytes that are enough to be passed raw, without known frames.
fn media(mark: u8) -> Vec<u8> {
    vec![mark; 100_000]
}

#[test]
fn two_listeners_share_one_connection_to_the_origin() {
    for action in [0, 1] {
        let wasm = giving("proxy_on_request_headers", 0, action, "");
        let mut lab = Lab::granted(&wasm, vm_spec(), reflects());
        let mut first = listening(&mut lab, "/live");
        let mut origin = lab.server();
        origin.send(STREAM);
        let mut second = listening(&mut lab, "/live");
        assert!(lab.is_alone(), "the second one asks nobody");
        for _ in 0..3 {
            origin.send(media(b'x'));
            lab.skip(Duration::from_secs(1));
        }
        for peer in [&mut first, &mut second] {
            lab.until(&mut [peer, &mut origin], |peers| {
                peers[0].received_bytes.iter().filter(|byte| **byte == b'x').count() > 100_000
            });
            assert!(peer.text().starts_with("HTTP/1.1 200 OK\r\n"), "{}", &peer.text()[..200]);
        }
        let now = stats(&lab);
        assert_eq!((now.channels, now.listeners, now.origins_opened, now.alone), (1, 2, 1, 0));
        // Contexts end when the request has been handed over.
        assert_eq!(lab.log(), [OK, "e", OK, "e"]);
        assert_eq!(lab.reports.counters().reflected, 2);
        // The end of the origin ends all listeners.
        origin.finish();
        for peer in [&mut first, &mut second] {
            let ended = |peers: &[&mut Peer]| peers[0].has_ended;
            lab.until_passing(Duration::from_millis(1), &mut [peer, &mut origin], ended);
            peer.finish();
        }
        lab.skip(Duration::from_secs(11));
        lab.rest(&mut [&mut first, &mut second]);
        assert_eq!((stats(&lab).channels, lab.counts().open()), (0, 0));
    }
}

#[test]
fn keys_and_edited_heads_select_the_stream() {
    // Different paths, one key of the module.
    let wasm = giving("proxy_on_request_headers", 4, 0, "");
    let mut lab = Lab::granted(&wasm, vm_spec(), reflects());
    let _first = listening(&mut lab, "/live?user=1");
    let _second = listening(&mut lab, "/live?user=2");
    assert_eq!((stats(&lab).channels, stats(&lab).listeners), (1, 2));
    // Different paths, which the module edits into one.
    let edit = "(drop (call $proxy_replace_header_map_value (i32.const 0) (i32.const 0x150)
        (i32.const 5) (i32.const 0x160) (i32.const 5)))";
    let wasm = giving("proxy_on_request_headers", 0, 0, edit);
    let mut lab = Lab::granted(&wasm, vm_spec(), reflects());
    let mut first = listening(&mut lab, "/live?user=1");
    let _second = listening(&mut lab, "/live?user=2");
    assert_eq!((stats(&lab).channels, stats(&lab).listeners), (1, 2));
    let mut origin = lab.server();
    lab.until(&mut [&mut origin, &mut first], |peers| !peers[0].received_bytes.is_empty());
    assert!(origin.text().starts_with("GET /live HTTP/1.1\r\n"), "{}", origin.text());
    // Different paths, different streams.
    let wasm = giving("proxy_on_request_headers", 0, 0, "");
    let mut lab = Lab::granted(&wasm, vm_spec(), reflects());
    let _first = listening(&mut lab, "/one");
    let _second = listening(&mut lab, "/two");
    assert_eq!(stats(&lab).channels, 2);
}

#[test]
fn a_request_that_is_not_shared_is_relayed_as_edited() {
    let edit = "(drop (call $proxy_add_header_map_value (i32.const 0) (i32.const 0x130)
        (i32.const 7) (i32.const 0x140) (i32.const 1)))";
    let wasm = giving("proxy_on_request_headers", 0, 0, edit);
    let mut lab = Lab::granted(&wasm, vm_spec(), reflects());
    let mut client = lab.client();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nCookie: c\r\n\r\n");
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    assert!(server.text().contains("X-Added: 1\r\n"), "{}", server.text());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
    lab.until_ends(&mut client, "body");
    assert_eq!(stats(&lab).alone, 1);
}

#[test]
fn a_later_request_is_handed_over_when_the_earlier_is_over() {
    // Only paths of five bytes are streams.
    let more = "(if (i32.eqz (call $proxy_get_header_map_value (i32.const 0) (i32.const 0x150)
            (i32.const 5) (i32.const 0x300) (i32.const 0x304)))
        (then (if (i32.ne (i32.load (i32.const 0x304)) (i32.const 5))
            (then (return (i32.const 0))))))";
    let wasm = giving("proxy_on_request_headers", 0, 0, more);
    let mut lab = Lab::granted(&wasm, vm_spec(), reflects());
    let mut client = lab.client();
    client.send(get("/"));
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    // Until that is answered, nothing after it is handed over.
    client.send(get("/live"));
    lab.rest(&mut [&mut client, &mut server]);
    assert_eq!(lab.log(), [BAD_ARGUMENT]);
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
    server.send(answer);
    server.send(answer);
    lab.until_received(&mut client, &mut server, 2 * answer.len());
    assert!(server.text().ends_with(&get("/live")), "it went on plainly");
    // Answered: the server connection is not needed any more.
    client.send(get("/live"));
    let mut origin = lab.server();
    lab.until(&mut [&mut origin, &mut server, &mut client], |peers| {
        !peers[0].received_bytes.is_empty() && peers[1].has_ended
    });
    origin.send(STREAM);
    origin.send(media(b'x'));
    lab.skip(Duration::from_secs(2));
    lab.until(&mut [&mut client, &mut origin], |peers| peers[0].received_bytes.ends_with(b"x\r\n"));
    assert_eq!(stats(&lab).listeners, 1);
}

#[test]
fn the_status_says_whether_a_request_is_handed_over() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    let with_body = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    let head = get("/").replace("GET", "HEAD");
    let get = get("/");
    let at_head = "proxy_on_request_headers";
    let cases: [(&str, usize, &str, &str); 8] = [
        (at_head, 0, &get, OK),
        (at_head, 1_024, &get, OK),
        (at_head, 1_025, &get, BAD_ARGUMENT),
        (at_head, 0, &head, OK),
        (at_head, 0, post, BAD_ARGUMENT),
        (at_head, 0, with_body, BAD_ARGUMENT),
        ("proxy_on_response_headers", 0, &get, BAD_ARGUMENT),
        ("proxy_on_log", 0, &get, BAD_ARGUMENT),
    ];
    for (callback, key_length, request, status) in cases {
        let mut lab = Lab::granted(&giving(callback, key_length, 0, ""), vm_spec(), reflects());
        let mut client = lab.client();
        client.send(request);
        let mut server = lab.server();
        lab.until(&mut [&mut server, &mut client], |peers| !peers[0].received_bytes.is_empty());
        server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
        server.finish();
        lab.until(&mut [&mut client, &mut server], |peers| !peers[0].received_bytes.is_empty());
        lab.rest(&mut [&mut client, &mut server]);
        assert_eq!(lab.log().first().unwrap(), status, "{callback} {key_length} {request}");
        let counters = lab.reports.counters();
        let is_given = status == OK;
        assert_eq!(
            (counters.reflected, counters.reflections_refused),
            (u64::from(is_given), u64::from(!is_given))
        );
    }
}

#[test]
fn without_the_grant_the_function_is_not_there() {
    let codes = Capabilities { codes_responses: true, ..Capabilities::default() };
    let wasm = giving("proxy_on_request_headers", 0, 0, "");
    for capabilities in [Capabilities::default(), codes] {
        let mut lab = Lab::granted(&wasm, vm_spec(), capabilities);
        let mut client = lab.client();
        client.send(get("/"));
        let mut server = lab.server();
        lab.until_received(&mut server, &mut client, get("/").len());
        assert_eq!(server.text(), get("/"));
        assert_eq!(lab.log(), [NOT_FOUND]);
        assert!(lab.reports.fanout().is_none());
    }
}
