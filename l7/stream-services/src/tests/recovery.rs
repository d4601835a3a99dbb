//! Tests of modules that trap in one stream, and of the effect on other streams.

use super::lab::{Peer, vm_spec};
use super::{Event, Failure, Kind, Lab, module};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::Duration;

const GOOD: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
/// Request with one field more than the module below tolerates.
const BAD: &str = "GET /a HTTP/1.1\r\nHost: a\r\nX-Name: Andr\u{e9}\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Callback that traps at a head of more than four fields, `:method`, `:path`, `:scheme` and
/// `:authority`.
const TRAPS_AT_BAD: &str = "(if (i32.gt_u (local.get 1) (i32.const 4)) (then (unreachable)))";

fn log(address: u32, length: u32) -> String {
    format!("(drop (call $proxy_log (i32.const 2) (i32.const {address}) (i32.const {length})))")
}

fn answer(lab: &mut Lab, client: &mut Peer, server: &mut Peer) {
    lab.until_received(server, client, 1);
    server.send(OK);
    lab.until_received(client, server, OK.len());
    assert_eq!(client.text(), OK);
}

/// Sends a request at which the module traps, and expects its response.
fn traps(lab: &mut Lab, request: &str) {
    let before = lab.reports.counters().traps;
    let mut client = lab.client();
    client.send(request);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 503 "), "{}", client.text());
    assert_eq!(lab.reports.counters().traps, before + 1);
}

#[test]
fn repeated_traps_of_one_client_do_not_affect_others() {
    let callback = format!("{TRAPS_AT_BAD} (i32.const 0)");
    let wasm = module(&[("proxy_on_request_headers", &callback)], &[]);
    let mut lab = Lab::new(&wasm, Kind::Http, Failure::Closed);
    for _ in 0..20 {
        traps(&mut lab, BAD);
        // The simulated time is constant: no VM waits for it.
        let mut client = lab.client();
        client.send(GOOD);
        let mut server = lab.server();
        answer(&mut lab, &mut client, &mut server);
    }
    let counters = lab.reports.counters();
    assert_eq!((counters.traps, counters.failed_closed, counters.unfiltered), (20, 20, 0));
}

#[test]
fn a_response_continues_through_another_vm_that_has_seen_its_heads() {
    let request = format!("{} {TRAPS_AT_BAD} (i32.const 0)", log(0x100, 7));
    let response = format!("{} (i32.const 0)", log(0x110, 8));
    let body = format!("{} (i32.const 0)", log(0x120, 4));
    let callbacks = [
        ("proxy_on_request_headers", &*request),
        ("proxy_on_response_headers", &*response),
        ("proxy_on_response_body", &*body),
    ];
    let data: &[(u32, &[u8])] = &[(0x100, b"request"), (0x110, b"response"), (0x120, b"body")];
    let mut lab = Lab::new(&module(&callbacks, data), Kind::Http, Failure::Closed);
    let mut client = lab.client();
    client.send(GOOD);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GOOD.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
    lab.until_ends(&mut client, "half");
    traps(&mut lab, BAD);
    lab.rest(&mut [&mut client, &mut server]);
    let silent = lab.log();
    assert_eq!(silent, ["request", "response", "body", "request"], "nothing is shown meanwhile");
    server.send("full");
    lab.until_ends(&mut client, "halffull");
    assert_eq!(lab.log()[silent.len()..], ["request", "response", "body"]);
    // The connection is still usable.
    client.received_bytes.clear();
    server.received_bytes.clear();
    client.send(GOOD);
    answer(&mut lab, &mut client, &mut server);
    assert_eq!(lab.reports.counters().shown_again, 1);
}

#[test]
fn a_held_request_is_passed_again_as_received() {
    // Adds a field, and holds the head: two fields would be one too many.
    let held = format!(
        "{TRAPS_AT_BAD} (drop (call $proxy_add_header_map_value (i32.const 0)
            (i32.const 0x100) (i32.const 3) (i32.const 0x100) (i32.const 3))) {} (i32.const 1)",
        log(0x100, 3)
    );
    let data: &[(u32, &[u8])] = &[(0x100, b"new")];
    let wasm = module(&[("proxy_on_request_headers", &held)], data);
    let mut lab = Lab::new(&wasm, Kind::Http, Failure::Closed);
    let mut client = lab.client();
    client.send(GOOD);
    lab.rest(&mut [&mut client]);
    for shown in 1..4 {
        assert_eq!(lab.log().len(), shown, "{:?}", lab.events);
        traps(&mut lab, BAD);
        lab.rest(&mut [&mut client]);
    }
    assert!(!client.is_over() && client.received_bytes.is_empty() && lab.is_alone());
}

#[test]
fn a_body_edited_by_a_trapped_module_ends_with_it() {
    let request = format!("{TRAPS_AT_BAD} (i32.const 0)");
    let edits = "(drop (call $proxy_set_buffer_bytes (i32.const 1) (i32.const 0) (i32.const 1)
            (i32.const 0x100) (i32.const 1))) (i32.const 0)";
    let callbacks = [("proxy_on_request_headers", &*request), ("proxy_on_response_body", edits)];
    let mut lab = Lab::new(&module(&callbacks, &[(0x100, b"X")]), Kind::Http, Failure::Closed);
    let mut client = lab.client();
    client.send(GOOD);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GOOD.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
    lab.until_ends(&mut client, "Xalf");
    traps(&mut lab, BAD);
    lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|it| it.is_over()));
    assert!(client.was_reset, "nobody knows what the next VM would make of the rest");
}

#[test]
fn a_tcp_connection_continues_through_another_vm_while_the_one_at_fault_is_reset() {
    let trap = "(if (i32.eq (local.get 1) (i32.const 7)) (then (unreachable))) (i32.const 0)";
    let callbacks = [
        ("proxy_on_new_connection", "(i32.const 0)"),
        ("proxy_on_downstream_data", trap),
        ("proxy_on_upstream_data", "(i32.const 0)"),
    ];
    let mut lab = Lab::new(&module(&callbacks, &[]), Kind::Tcp, Failure::Closed);
    let (mut client, mut server) = (lab.client(), lab.server());
    client.send("one");
    lab.until_ends(&mut server, "one");
    for turn in 1..4 {
        let mut bad = lab.client();
        bad.send("bad data".split_at(7).0);
        lab.until(&mut [&mut bad], |peers| peers[0].was_reset);
        assert_eq!(lab.reports.counters().traps, turn);
        client.send("two");
        lab.until_ends(&mut server, "two");
        server.send("back");
        lab.until_ends(&mut client, "back");
        server.received_bytes.clear();
        client.received_bytes.clear();
    }
    client.finish();
    server.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|it| it.has_ended));
    assert!(!client.was_reset && !server.was_reset);
}

/// Serialises a map in the format of modules: count, lengths, then names and values, each with a
/// zero byte.
fn serialised(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = (fields.len() as u32).to_le_bytes().to_vec();
    for (name, value) in fields {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
    }
    for text in fields.iter().flat_map(|(name, value)| [name, value]) {
        bytes.extend(text.as_bytes());
        bytes.push(0);
    }
    bytes
}

#[test]
fn a_trap_at_an_http_call_response_affects_the_calling_stream_only() {
    let head = serialised(&[(":method", "GET"), (":path", "/"), (":authority", "a")]);
    let calls = format!(
        "(if (i32.gt_u (local.get 1) (i32.const 4)) (then
            (drop (call $proxy_http_call (i32.const 0x100) (i32.const 9) (i32.const 0x200)
                (i32.const {}) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 5000) (i32.const 0x300)))
            (return (i32.const 1)))) (i32.const 0)",
        head.len()
    );
    let callbacks =
        [("proxy_on_request_headers", &*calls), ("proxy_on_http_call_response", "(unreachable)")];
    let wasm = module(&callbacks, &[(0x100, b"authority"), (0x200, &head)]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let upstreams = BTreeMap::from([("authority".to_owned(), listener.local_addr().unwrap())]);
    let mut lab = Lab::with(&wasm, vm_spec(), Kind::Http, Failure::Closed, upstreams);
    let mut good = lab.client();
    good.send(GOOD);
    let mut server = lab.server();
    let mut bad = lab.client();
    bad.send(BAD);
    let mut authority = lab.accepted(&listener, &mut [&mut bad]);
    lab.until_ends(&mut authority, "\r\n\r\n");
    authority.send(OK);
    lab.until(&mut [&mut bad, &mut authority], |peers| !peers[0].received_bytes.is_empty());
    assert!(bad.text().starts_with("HTTP/1.1 503 "), "{}", bad.text());
    answer(&mut lab, &mut good, &mut server);
    assert_eq!(lab.reports.counters().traps, 1);
}

#[test]
fn a_module_that_traps_in_its_timer_is_down_for_a_while() {
    let start = "(drop (call $proxy_set_tick_period_milliseconds (i32.const 10))) (i32.const 1)";
    let callbacks = [
        ("proxy_on_vm_start", start),
        ("proxy_on_tick", "(unreachable)"),
        ("proxy_on_request_headers", "(i32.const 0)"),
    ];
    let mut lab = Lab::new(&module(&callbacks, &[]), Kind::Http, Failure::Closed);
    lab.step();
    lab.skip(Duration::from_millis(20));
    let waits: Vec<u64> = lab
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Trapped { again, .. } => Some(again.as_millis()),
            _ => None,
        })
        .collect();
    assert_eq!(waits, [21 + 100]);
    let mut client = lab.client();
    client.send(GOOD);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 503 "), "{}", client.text());
}
