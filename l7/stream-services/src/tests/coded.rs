//! Tests of responses coded after the module: by `services/compress`, and by a module with invalid
//! requests.

use super::lab::{Lab, Peer, compress, module, vm_spec};
use super::{Harness, Side};
use crate::{Capabilities, FLUSH_TIME};
use content_coding::Coding;
use engine::{MemoryAccount, Part};
use http1::{Framing, RequestDecoder, RequestEvent, RequestTraits, ResponseDecoder, ResponseEvent};
use l7_testkit::{decoded, readable};
use proptest::collection::vec;
use proptest::prelude::*;
use proxy_wasm::VmSpec;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const CODES: Capabilities =
    Capabilities { codes_responses: true, reflects: None, keeps_servers: false };

/// Returns deterministic text with the repetitions of web pages.
fn text(length: usize) -> Vec<u8> {
    let line = |at: usize| format!("<li>packet {} of the router</li>\n", at * at % 9_973);
    let mut text: Vec<u8> = (0..length / 20 + 1).flat_map(|at| line(at).into_bytes()).collect();
    text.truncate(length);
    text
}

fn lab(configuration: &str) -> Lab {
    let vm = VmSpec { plugin_configuration: Rc::from(configuration.as_bytes()), ..vm_spec() };
    Lab::granted(compress(), vm, CODES)
}

fn get(coding: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n")
}

fn head(more: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{more}\r\n")
}

/// Response as a client decodes it.
#[derive(Debug, Default)]
struct Response {
    head: String,
    framing: Option<Framing>,
    body: Vec<u8>,
    trailers: usize,
    is_whole: bool,
}

fn asked(request: &str) -> RequestTraits {
    let mut decoder = RequestDecoder::new();
    match decoder.decode(request.as_bytes()).unwrap().event {
        Some(RequestEvent::Head(head, _)) => RequestTraits::by(&head),
        other => panic!("{other:?}"),
    }
}

fn response(peer: &Peer, request: &str) -> Response {
    read(&peer.received_bytes, request, peer.has_ended)
}

fn read(mut bytes: &[u8], request: &str, has_ended: bool) -> Response {
    let mut decoder = ResponseDecoder::new();
    assert!(decoder.expect(asked(request)));
    let mut response = Response::default();
    loop {
        let step = decoder.decode(bytes).unwrap();
        bytes = &bytes[step.consumed..];
        match step.event {
            Some(ResponseEvent::Head(head, framing)) => {
                let mut wire = Vec::new();
                head.headers.serialize(&mut wire);
                response.head = String::from_utf8(wire).unwrap().to_ascii_lowercase();
                response.framing = Some(framing);
            }
            Some(ResponseEvent::Body(part)) => response.body.extend_from_slice(part),
            Some(ResponseEvent::Trailers(trailers)) => response.trailers = trailers.len(),
            Some(ResponseEvent::End) => {
                assert!(bytes.is_empty(), "something is behind the response");
                response.is_whole = true;
                return response;
            }
            None if has_ended => {
                response.is_whole = matches!(decoder.eof(), Ok(Some(ResponseEvent::End)));
                return response;
            }
            None => return response,
            other => panic!("{other:?}"),
        }
    }
}

fn asking(lab: &mut Lab, request: &str) -> (Peer, Peer) {
    let mut client = lab.client();
    client.send(request);
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    (client, server)
}

/// Runs until the client has the complete response.
fn whole(lab: &mut Lab, client: &mut Peer, server: &mut Peer, request: &str) -> Response {
    lab.until(&mut [client, server], |peers| response(peers[0], request).is_whole);
    response(client, request)
}

#[test]
fn every_coding_decodes_to_the_servers_body_small_and_large() {
    let mut lab = lab("minimum 1");
    let mut taken = 0;
    for coding in Coding::ALL {
        for size in [1, 300, 20_000, 70_000, 1_000_000] {
            let body = text(size);
            let request = get(coding.token());
            for framing in ["length", "chunks", "end"] {
                let (mut client, mut server) = asking(&mut lab, &request);
                match framing {
                    "length" => server.send(head(&format!("Content-Length: {size}\r\n"))),
                    "chunks" => {
                        server.send(head("Transfer-Encoding: chunked\r\n"));
                        server.send(format!("{size:x}\r\n"));
                    }
                    _ => server.send(head("")),
                }
                server.send(&body);
                match framing {
                    "length" => {}
                    "chunks" => server.send("\r\n0\r\n\r\n"),
                    _ => server.finish(),
                }
                let response = whole(&mut lab, &mut client, &mut server, &request);
                let what = format!("{coding} {size} {framing}: {response:?}");
                assert!(decoded(coding, &response.body) == body, "{what}");
                assert!(
                    response.head.contains(&format!("content-encoding: {coding}\r\n")),
                    "{what}"
                );
                // A body that is complete in the buffer gets its length; the length of a streamed
                // one is unknown, if a part is sent before its end.
                let length = Framing::Length(response.body.len() as u64);
                let is_whole = response.framing == Some(length);
                assert!(is_whole || response.framing == Some(Framing::Chunked), "{what}");
                assert!(is_whole || size > content_coding::BUFFERED_MAX, "{what}");
                assert!(!is_whole || size < 1_000_000 || coding == Coding::Brotli, "{what}");
                taken += size as u64;
            }
        }
    }
    let counters = lab.reports.counters();
    assert_eq!(counters.responses_coded, 4 * 5 * 3);
    assert_eq!(counters.coded_bytes_in, taken);
    assert!(counters.coded_bytes_out < taken / 3 && counters.coded_bytes_out > 0);
    assert_eq!((counters.codings_refused, counters.codings_failed), (0, 0));
}

#[test]
fn a_connection_persists_after_a_coded_response() {
    let mut lab = lab("");
    let request = get("gzip");
    let (mut client, mut server) = asking(&mut lab, &request);
    for size in [5_000, 200_000, 5_000] {
        client.received_bytes.clear();
        server.received_bytes.clear();
        server.send(head(&format!("Content-Length: {size}\r\n")));
        server.send(text(size));
        let response = whole(&mut lab, &mut client, &mut server, &request);
        assert!(decoded(Coding::Gzip, &response.body) == text(size));
        client.send(&request);
        lab.until_ends(&mut server, "\r\n\r\n");
    }
}

#[test]
fn held_back_data_arrives_when_the_server_pauses() {
    for coding in Coding::ALL {
        let mut lab = lab("");
        let request = get(coding.token());
        let (mut client, mut server) = asking(&mut lab, &request);
        server.send(head("Transfer-Encoding: chunked\r\n"));
        let mut sent = Vec::new();
        for part in [text(1_000), b"later".to_vec(), text(100_000)] {
            let received_bytes = client.received_bytes.len();
            for piece in part.chunks(part.len() / 3 + 1) {
                server.send(format!("{:x}\r\n", piece.len()));
                server.send(piece);
                server.send("\r\n");
                lab.rest(&mut [&mut client, &mut server]);
            }
            if part.len() < 65_536 {
                assert_eq!(
                    client.received_bytes.len(),
                    received_bytes,
                    "{coding}: small parts go together"
                );
            }
            sent.extend_from_slice(&part);
            lab.skip(Duration::from_nanos(FLUSH_TIME.0));
            lab.until(&mut [&mut client, &mut server], |peers| {
                readable(coding, &response(peers[0], &request).body) == sent
            });
        }
        // A pause that lasts produces no more output.
        let received_bytes = client.received_bytes.len();
        lab.skip(Duration::from_secs(1));
        lab.rest(&mut [&mut client, &mut server]);
        assert_eq!(client.received_bytes.len(), received_bytes);
        server.send("0\r\nRepr-Digest: sha-256=:AA==:\r\nX-Sum: 1\r\n\r\n");
        let response = whole(&mut lab, &mut client, &mut server, &request);
        assert!(decoded(coding, &response.body) == sent);
        assert_eq!((response.framing, response.trailers), (Some(Framing::Chunked), 1));
    }
}

#[test]
fn trailers_of_a_small_body_arrive_after_it() {
    let mut lab = lab("minimum 1");
    let request = get("zstd");
    let (mut client, mut server) = asking(&mut lab, &request);
    server.send(head("Transfer-Encoding: chunked\r\n"));
    server.send("4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n");
    let response = whole(&mut lab, &mut client, &mut server, &request);
    assert_eq!(decoded(Coding::Zstd, &response.body), b"body");
    assert_eq!((response.framing, response.trailers), (Some(Framing::Chunked), 1));
}

#[test]
fn responses_without_a_body_are_not_coded() {
    let request = get("gzip").replace("GET", "HEAD");
    let mut lab = lab("");
    let (mut client, mut server) = asking(&mut lab, &request);
    server.send(head("Content-Length: 5000\r\n"));
    let response = whole(&mut lab, &mut client, &mut server, &request);
    assert!(response.head.contains("content-encoding: gzip\r\n"), "{}", response.head);
    assert!(!response.head.contains("content-length"), "{}", response.head);
    for status in ["204 No Content", "304 Not Modified"] {
        let request = get("gzip");
        let (mut client, mut server) = asking(&mut lab, &request);
        server.send(format!("HTTP/1.1 {status}\r\nContent-Type: text/html\r\n\r\n"));
        let response = whole(&mut lab, &mut client, &mut server, &request);
        assert!(!response.head.contains("content-encoding"), "{}", response.head);
    }
    assert_eq!(lab.reports.counters().responses_coded, 0);
}

#[test]
fn a_client_of_http10_gets_a_length_or_the_end() {
    for (size, has_length) in [(5_000, true), (200_000, false)] {
        let mut lab = lab("");
        let request = get("gzip").replace("HTTP/1.1", "HTTP/1.0");
        let (mut client, mut server) = asking(&mut lab, &request);
        server.send(head("Transfer-Encoding: chunked\r\n"));
        server.send(format!("{size:x}\r\n"));
        server.send(text(size));
        server.send("\r\n0\r\n\r\n");
        lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
        let response = response(&client, &request);
        assert!(decoded(Coding::Gzip, &response.body) == text(size));
        let has = matches!(response.framing, Some(Framing::Length(_)));
        assert_eq!(has, has_length, "{response:?}");
    }
}

#[test]
fn a_truncated_body_is_not_taken_for_complete() {
    for (size, has_begun) in [(1_000, false), (200_000, true)] {
        let mut lab = lab("");
        let request = get("gzip");
        let (mut client, mut server) = asking(&mut lab, &request);
        server.send(head("Content-Length: 1000000\r\n"));
        server.send(text(size));
        lab.rest(&mut [&mut client, &mut server]);
        server.finish();
        lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
        if has_begun {
            assert!(client.was_reset && !response(&client, &request).is_whole);
        } else {
            // The client has not seen the head: an error response is still possible.
            assert!(client.text().starts_with("HTTP/1.1 502 "), "{}", client.text());
        }
    }
}

#[test]
fn without_the_grant_bodies_stay_as_they_are() {
    let mut lab = Lab::granted(compress(), vm_spec(), Capabilities::default());
    let request = get("gzip");
    let (mut client, mut server) = asking(&mut lab, &request);
    server.send(head("Content-Length: 5000\r\n"));
    server.send(text(5_000));
    let response = whole(&mut lab, &mut client, &mut server, &request);
    assert!(response.body == text(5_000) && !response.head.contains("content-encoding"));
    assert!(lab.log().iter().any(|line| line.contains("NotFound")), "{:?}", lab.log());
}

/// Account with a limit besides the VM's memory.
#[derive(Debug, Default)]
struct Account {
    /// Bytes of state, which include encoders.
    state: Cell<u64>,
    most: u64,
}

impl MemoryAccount for Account {
    fn take(&self, part: Part, bytes: u64) -> bool {
        let now = self.state.get() + bytes;
        let may = part != Part::State || now <= self.most;
        if may && part == Part::State {
            self.state.set(now);
        }
        may
    }

    fn give(&self, part: Part, bytes: u64) {
        if part == Part::State {
            self.state.set(self.state.get() - bytes);
        }
    }
}

#[test]
fn an_encoder_is_charged_to_the_session_and_released() {
    let account = Rc::new(Account { state: Cell::new(0), most: 1 << 20 });
    let room: Rc<dyn MemoryAccount> = Rc::<Account>::clone(&account);
    let vm = VmSpec { room: Some(room), ..vm_spec() };
    let mut lab = Lab::granted(compress(), vm, CODES);
    let request = get("gzip");
    let (mut client, mut server) = asking(&mut lab, &request);
    server.send(head("Content-Length: 1000000\r\n"));
    server.send(text(500_000));
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].received_bytes.len() > 1_000);
    let needed = content_coding::memory_bytes(Coding::Gzip, content_coding::Level::DEFAULT).0;
    assert!(account.state.get() >= needed, "{account:?}");
    // Another response gets no memory: it is sent uncoded.
    let large = get("br");
    let (mut other, mut its) = asking(&mut lab, &large);
    its.send(head("Content-Length: 5000\r\n"));
    its.send(text(5_000));
    let plain = whole(&mut lab, &mut other, &mut its, &large);
    assert!(plain.body == text(5_000) && !plain.head.contains("content-encoding"));
    assert_eq!(lab.reports.counters().codings_refused, 1);
    server.send(&text(1_000_000)[500_000..]);
    let response = whole(&mut lab, &mut client, &mut server, &request);
    assert!(decoded(Coding::Gzip, &response.body) == text(1_000_000));
    lab.rest(&mut []);
    assert!(account.state.get() < needed, "{account:?}");
}

/// Returns a module that requests gzip in these callbacks and logs the results.
fn asks(callbacks: &[&str], arguments: &[u8]) -> Vec<u8> {
    let log =
        |at: u32| format!("(drop (call $proxy_log (i32.const 2) (i32.const {at}) (i32.const 1)))");
    let body = format!(
        "(i32.store8 (i32.const 0x200) (i32.add (i32.const 48)
            (call $proxy_call_foreign_function (i32.const 0x100) (i32.const {})
                (i32.const 0x180) (i32.const {}) (i32.const 0) (i32.const 0))))
         {} (i32.const 0)",
        content_coding::FUNCTION.len(),
        arguments.len(),
        log(0x200)
    );
    let callbacks: Vec<(&str, &str)> = callbacks.iter().map(|name| (*name, &*body)).collect();
    module(&callbacks, &[(0x100, content_coding::FUNCTION.as_bytes()), (0x180, arguments)])
}

#[test]
fn the_status_says_whether_a_body_is_coded() {
    const OK: &str = "0";
    const BAD_ARGUMENT: &str = "2";
    let all = [
        ("proxy_on_request_headers", OK),
        ("proxy_on_response_headers", OK),
        ("proxy_on_response_body", BAD_ARGUMENT),
        ("proxy_on_log", BAD_ARGUMENT),
    ];
    for (arguments, accepted) in
        [(&[2, 1][..], true), (&[2, 255], true), (&[9, 1], false), (&[2, 0], false), (&[], false)]
    {
        for (callback, answer) in all {
            let mut lab = Lab::granted(&asks(&[callback], arguments), vm_spec(), CODES);
            let (mut client, mut server) = asking(&mut lab, &get("x"));
            server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
            let response = whole(&mut lab, &mut client, &mut server, &get("x"));
            lab.until(&mut [], |_| true);
            lab.rest(&mut []);
            let expected = if accepted { answer } else { BAD_ARGUMENT };
            assert_eq!(lab.log().first().unwrap(), expected, "{callback} {arguments:?}");
            let body = match expected {
                OK => decoded(Coding::Gzip, &response.body),
                _ => response.body,
            };
            assert_eq!(body, b"body");
        }
    }
}

#[test]
fn coding_is_allowed_for_the_callbacks_own_stream_only() {
    for (context, answer) in [(2, "0"), (1, "2")] {
        let body = format!(
            "(drop (call $proxy_set_effective_context (i32.const {context})))
             (i32.store8 (i32.const 0x200) (i32.add (i32.const 48)
                (call $proxy_call_foreign_function (i32.const 0x100) (i32.const {})
                    (i32.const 0x180) (i32.const 2) (i32.const 0) (i32.const 0))))
             (call $proxy_log (i32.const 2) (i32.const 0x200) (i32.const 1))",
            content_coding::FUNCTION.len()
        );
        let wasm = module(
            &[("proxy_on_request_headers", &body)],
            &[(0x100, content_coding::FUNCTION.as_bytes()), (0x180, &[2, 1])],
        );
        let mut lab = Lab::granted(&wasm, vm_spec(), CODES);
        let (_client, _server) = asking(&mut lab, &get("x"));
        assert_eq!(lab.log(), [answer]);
    }
}

#[test]
fn a_later_request_cancels_an_earlier_one() {
    // The first byte of the arguments is 2, gzip, in the request, and 0 in the response.
    let call = format!(
        "(drop (call $proxy_call_foreign_function (i32.const 0x100) (i32.const {})
            (i32.const 0x180) (i32.const 2) (i32.const 0) (i32.const 0)))",
        content_coding::FUNCTION.len()
    );
    let first = format!("{call} (i32.const 0)");
    let second = format!("(i32.store8 (i32.const 0x180) (i32.const 0)) {call} (i32.const 0)");
    let callbacks = [
        ("proxy_on_request_headers", first.as_str()),
        ("proxy_on_response_headers", second.as_str()),
    ];
    let wasm =
        module(&callbacks, &[(0x100, content_coding::FUNCTION.as_bytes()), (0x180, &[2, 1])]);
    let mut lab = Lab::granted(&wasm, vm_spec(), CODES);
    let (mut client, mut server) = asking(&mut lab, &get("x"));
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
    server.send(answer);
    lab.until_received(&mut client, &mut server, answer.len());
    assert_eq!(client.text(), answer);
}

#[test]
fn a_response_whose_module_traps_before_its_head_is_not_coded() {
    let call = format!(
        "(drop (call $proxy_call_foreign_function (i32.const 0x100) (i32.const {})
            (i32.const 0x180) (i32.const 2) (i32.const 0) (i32.const 0))) (i32.const 0)",
        content_coding::FUNCTION.len()
    );
    let callbacks =
        [("proxy_on_request_headers", call.as_str()), ("proxy_on_response_headers", "unreachable")];
    let wasm =
        module(&callbacks, &[(0x100, content_coding::FUNCTION.as_bytes()), (0x180, &[2, 1])]);
    let mut lab = Lab::granted(&wasm, vm_spec(), CODES);
    let (mut client, mut server) = asking(&mut lab, &get("x"));
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
    server.send(answer);
    lab.until_received(&mut client, &mut server, answer.len());
    assert_eq!(client.text(), answer);
}

#[test]
fn a_head_without_a_body_arrives_when_the_server_pauses() {
    let mut lab = lab("");
    let request = get("gzip");
    let (mut client, mut server) = asking(&mut lab, &request);
    server.send(head("Content-Length: 5000\r\n"));
    lab.rest(&mut [&mut client, &mut server]);
    assert_eq!(client.text(), "");
    lab.skip(Duration::from_nanos(FLUSH_TIME.0));
    lab.until_ends(&mut client, "\r\n\r\n");
    server.send(text(5_000));
    let response = whole(&mut lab, &mut client, &mut server, &request);
    assert!(decoded(Coding::Gzip, &response.body) == text(5_000));
    assert_eq!(response.framing, Some(Framing::Chunked));
}

/// Returns lines of numbers, which compress moderately, and better at a higher level.
fn numbers(length: usize) -> Vec<u8> {
    let number = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 34;
    let mut text: Vec<u8> = (0..length as u64 / 12)
        .flat_map(|at| format!("{} {}\n", number(at), number(at / 7)).into_bytes())
        .collect();
    text.truncate(length);
    text
}

#[test]
fn a_slow_client_gets_fewer_bytes() {
    let body = numbers(30_000_000);
    let taken = [Duration::ZERO, Duration::from_secs(3)].map(|pause| {
        let mut lab = lab("codings gzip");
        let request = get("gzip");
        let (mut client, mut server) = asking(&mut lab, &request);
        server.send(head(&format!("Content-Length: {}\r\n", body.len())));
        server.send(&body);
        // With a pause every 3 s the kernel's buffer is emptied, and the link appears as slow as
        // that.
        while lab.counts().down < 10_000 || !response(&client, &request).is_whole {
            for _ in 0..10 {
                lab.skip(Duration::ZERO);
                server.step();
            }
            lab.skip(pause);
            client.step();
        }
        assert!(decoded(Coding::Gzip, &response(&client, &request).body) == body);
        lab.reports.counters().coded_bytes_out
    });
    assert!(taken[1] < taken[0], "{taken:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn coded_bodies_come_back_wherever_they_are_cut(
        coding in prop::sample::select(Coding::ALL.to_vec()),
        size in prop_oneof![0_usize..100, 0_usize..5_000, 60_000_usize..200_000],
        framing in 0..3,
        version in 0..2,
        pieces in vec((1_usize..80_000, any::<bool>()), 1..20),
    ) {
        let body = text(size);
        let request = format!("GET / HTTP/1.{version}\r\nHost: a\r\n\r\n");
        let mut sent = match framing {
            0 => head(&format!("Content-Length: {size}\r\n")),
            1 => head("Transfer-Encoding: chunked\r\n"),
            _ => head(""),
        }.into_bytes();
        match framing {
            1 => {
                for chunk in body.chunks(7_001) {
                    sent.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    sent.extend_from_slice(&[chunk, b"\r\n"].concat());
                }
                sent.extend_from_slice(b"0\r\nX-Sum: 1\r\n\r\n");
            }
            _ => sent.extend_from_slice(&body),
        }
        let mut through = Harness::coding(coding);
        prop_assert!(through.handle_bytes(Side::Downstream, request.as_bytes()));
        let (mut rest, mut pieces) = (&sent[..], pieces.iter().cycle());
        while !rest.is_empty() {
            let (length, pauses) = pieces.next().unwrap();
            let (piece, tail) = rest.split_at((*length).min(rest.len()));
            prop_assert!(through.handle_bytes(Side::Upstream, piece));
            if *pauses {
                through.handle_pause();
            }
            rest = tail;
        }
        through.handle_end(Side::Upstream);
        let response = read(through.sent(Side::Downstream), &request, true);
        prop_assert!(response.is_whole, "{response:?}");
        prop_assert!(decoded(coding, &response.body) == body);
        prop_assert_eq!(response.trailers, usize::from(framing == 1 && version == 1));
    }
}
