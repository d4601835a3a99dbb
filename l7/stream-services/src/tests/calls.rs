//! Tests of modules' HTTP calls, timers, and queues, and of filters of the public SDK.

use super::lab::{Peer, built, vm_spec};
use super::{Failure, Kind, Lab, module};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Creates an upstream, and a lab whose module may call it.
fn lab(wasm: &[u8]) -> (Lab, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at: SocketAddr = listener.local_addr().unwrap();
    let upstreams = BTreeMap::from([("authority".to_owned(), at)]);
    (Lab::with(wasm, vm_spec(), Kind::Http, Failure::Closed, upstreams), listener)
}

fn authorize() -> (Lab, TcpListener) {
    lab(&std::fs::read(built().join("authorize.wasm")).unwrap())
}

fn called(lab: &mut Lab, listener: &TcpListener, client: &mut Peer) -> Peer {
    lab.accepted(listener, &mut [client])
}

#[test]
fn a_request_waits_for_the_response_to_an_http_call() {
    let (mut lab, listener) = authorize();
    let mut client = lab.client();
    client.send(GET);
    let mut authority = called(&mut lab, &listener, &mut client);
    lab.until(&mut [&mut authority, &mut client], |peers| peers[0].received_bytes.ends_with(b"?"));
    let request = authority.text();
    assert_eq!(
        request,
        "GET /bytes/1 HTTP/1.1\r\nHost: authority.example\r\nContent-Length: 1\r\n\r\n?"
    );
    authority.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\x02");
    lab.until(&mut [&mut authority, &mut client], |_| true);
    let mut server = lab.server();
    lab.until(&mut [&mut server, &mut client], |peers| peers[0].text().ends_with("\r\n\r\n"));
    assert!(server.text().contains("x-authorized: yes\r\n"), "{}", server.text());
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());

    // The same connection is reused; this time the answer is negative.
    client.send(GET);
    lab.until(&mut [&mut authority, &mut client], |peers| {
        peers[0].text().matches("GET").count() == 2
    });
    authority.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\x01\r\n0\r\n\r\n");
    lab.until(&mut [&mut client, &mut authority], |peers| peers[0].text().contains("forbidden"));
    assert!(client.text().contains("HTTP/1.1 403 Forbidden\r\nx-from: filter\r\n"));
    assert!(listener.accept().is_err(), "one connection was enough");
    assert_eq!(lab.reports.counters().calls, 2);
}

#[test]
fn a_call_without_a_response_fails() {
    // Cases: too late, invalid, closed, too long.
    for answer in
        [None, Some("nonsense"), Some(""), Some("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")]
    {
        let (mut lab, listener) = authorize();
        let mut client = lab.client();
        client.send(GET);
        let mut authority = called(&mut lab, &listener, &mut client);
        lab.until(&mut [&mut authority, &mut client], |peers| {
            peers[0].received_bytes.ends_with(b"?")
        });
        match answer {
            None => lab.skip(Duration::from_millis(1_500)),
            Some(bytes) => {
                authority.send(bytes);
                authority.finish();
            }
        }
        lab.until(&mut [&mut client, &mut authority], |peers| !peers[0].received_bytes.is_empty());
        assert!(client.text().starts_with("HTTP/1.1 403 "), "{}", client.text());
        assert_eq!(lab.reports.counters().calls_failed, 1);
    }
    let (mut lab, listener) = authorize();
    drop(listener);
    let mut client = lab.client();
    client.send(GET);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 403 "), "nobody is there");
}

#[test]
fn a_response_that_is_too_long_fails_the_call() {
    let (mut lab, listener) = authorize();
    let mut client = lab.client();
    client.send(GET);
    let mut authority = called(&mut lab, &listener, &mut client);
    authority.send("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n");
    authority.send(vec![2; 2_000_000]);
    lab.until(&mut [&mut client, &mut authority], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 403 "));
}

#[test]
fn timers_run_and_queues_notify_their_vm() {
    let start = "(drop (call $proxy_register_shared_queue (i32.const 0x100) (i32.const 1) \
                 (i32.const 0x200))) \
                 (drop (call $proxy_set_tick_period_milliseconds (i32.const 50))) (i32.const 1)";
    let tick = "(call $proxy_enqueue_shared_queue (i32.load (i32.const 0x200)) (i32.const 0x100) \
                (i32.const 1))";
    let ready = "(drop (call $proxy_dequeue_shared_queue (local.get 1) (i32.const 0x300) \
                 (i32.const 0x304))) (call $proxy_log (i32.const 2) (i32.load (i32.const 0x300)) \
                 (i32.load (i32.const 0x304)))";
    let wasm = module(
        &[("proxy_on_vm_start", start), ("proxy_on_tick", tick), ("proxy_on_queue_ready", ready)],
        &[(0x100, b"q")],
    );
    let (mut lab, _) = lab(&wasm);
    for _ in 0..10 {
        lab.skip(Duration::from_millis(60));
        lab.rest(&mut []);
    }
    assert!(lab.log().len() >= 3 && lab.log().iter().all(|line| line == "q"), "{:?}", lab.log());
}

#[test]
fn a_postponed_end_of_a_context_is_awaited() {
    let log = "(call $proxy_log (i32.const 2) (i32.const 0x100) (i32.const 3))";
    let wasm = module(
        &[
            ("proxy_on_request_headers", "(i32.const 0)"),
            ("proxy_on_done", "(i32.const 0)"),
            ("proxy_on_log", log),
        ],
        &[(0x100, b"end")],
    );
    let (mut lab, _) = lab(&wasm);
    let mut client = lab.client();
    client.send(GET);
    let mut server = lab.server();
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    lab.rest(&mut []);
    assert!(lab.log().is_empty());
    lab.skip(Duration::from_secs(11));
    lab.rest(&mut []);
    assert_eq!(lab.log(), ["end"]);
}

#[test]
fn properties_have_the_addresses() {
    let path = b"source\0address";
    let log = "(drop (call $proxy_get_property (i32.const 0x100) (i32.const 14) (i32.const 0x200) \
               (i32.const 0x204))) (drop (call $proxy_log (i32.const 2) \
               (i32.load (i32.const 0x200)) (i32.load (i32.const 0x204)))) (i32.const 0)";
    let wasm = module(&[("proxy_on_request_headers", log)], &[(0x100, path)]);
    let (mut lab, _) = lab(&wasm);
    let mut client = lab.client();
    client.send(GET);
    let _server = lab.server();
    assert_eq!(lab.log(), [client.address().to_string()]);
}

#[test]
fn filters_of_the_public_sdk_run_unchanged() {
    let (mut lab, _) = lab(&std::fs::read(built().join("headers.wasm")).unwrap());
    let mut client = lab.client();
    client.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    lab.until(&mut [&mut client], |peers| peers[0].text().ends_with("Hello, World!\r\n"));
    let (mut lab, _) = crate::tests::calls::lab(&std::fs::read(built().join("body.wasm")).unwrap());
    let mut client = lab.client();
    client.send(GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\na secret i");
    server.send("s\r\n");
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].text().contains("redacted"));
    assert!(client.text().contains("Original message body (10 bytes) redacted.\n"));
}
