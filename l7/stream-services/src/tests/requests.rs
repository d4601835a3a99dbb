//! Tests of HTTP through filters that change nothing: features of RFC 9112 beyond plain requests.

use super::lab::{Peer, passing};
use super::{Failure, Kind, Lab, module};
use crate::Event;
use std::time::Duration;

const GET: &str = "GET /a?b HTTP/1.1\r\nHost: example\r\nX-One: 1\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: s\r\n\r\nok";

fn lab() -> Lab {
    Lab::new(&passing(Kind::Http), Kind::Http, Failure::Closed)
}

/// Returns a lab with a request that has reached the server.
fn asked(request: &str) -> (Lab, Peer, Peer) {
    let mut lab = lab();
    let mut client = lab.client();
    client.send(request);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, request.len());
    assert_eq!(server.text(), request);
    (lab, client, server)
}

/// Expects these bytes at the client, and then the end.
fn answered(lab: &mut Lab, client: &mut Peer, answer: &str) {
    lab.until(&mut [client], |peers| peers[0].is_over());
    assert_eq!(client.text(), answer);
}

#[test]
fn requests_and_responses_pass_unchanged() {
    for wasm in [passing(Kind::Http), module(&[], &[])] {
        let mut lab = Lab::new(&wasm, Kind::Http, Failure::Closed);
        let mut client = lab.client();
        client.send(GET);
        let mut server = lab.server();
        for round in 1..4 {
            lab.until_received(&mut server, &mut client, GET.len() * round);
            assert_eq!(server.text(), GET.repeat(round));
            server.send(OK);
            lab.until_received(&mut client, &mut server, OK.len() * round);
            assert_eq!(client.text(), OK.repeat(round));
            client.send(GET);
        }
        lab.until_received(&mut server, &mut client, GET.len() * 4);
        server.send(OK);
        lab.until_received(&mut client, &mut server, OK.len() * 4);
        client.finish();
        lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|it| it.has_ended));
        assert_eq!(lab.counts().ended, 1);
        assert!(lab.is_alone(), "one connection for all of them");
    }
}

#[test]
fn a_response_before_a_reset_is_complete() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n";
    let (mut lab, mut client, server) = asked(post);
    client.send(vec![b'x'; 1_000]);
    lab.rest(&mut [&mut client]);
    let answer =
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbye";
    server.leave_with_unread(answer);
    answered(&mut lab, &mut client, answer);
}

#[test]
fn a_response_truncated_by_a_reset_is_forwarded_as_incomplete() {
    for (head, part) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n", "part"),
        ("HTTP/1.1 200 OK\r\n\r\n", "until the end"),
    ] {
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n";
        let (mut lab, mut client, server) = asked(post);
        client.send("unread");
        lab.rest(&mut [&mut client]);
        let begun = format!("{head}{part}");
        server.leave_with_unread(&begun);
        lab.until(&mut [&mut client], |peers| peers[0].is_over());
        assert_eq!((client.text(), client.was_reset), (begun, true));
    }
}

#[test]
fn a_refused_response_is_logged() {
    let (mut lab, mut client, mut server) = asked(GET);
    let lines = "Set-Cookie: a=b\r\n".repeat(129);
    server.send(format!("HTTP/1.1 200 OK\r\n{lines}\r\n"));
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    let text = client.text();
    assert!(text.starts_with("HTTP/1.1 502 ") && text.contains("more than 128 fields"), "{text}");
    let is_warning =
        |event: &Event| matches!(event, Event::Warning(text) if text.contains("more than 128"));
    assert!(lab.events.iter().any(is_warning), "{:?}", lab.events);
    assert_eq!(lab.reports.counters().refused, 1);
}

#[test]
fn sends_of_connections_are_batched_until_the_turn_ends() {
    let mut lab = lab();
    let mut pairs = [(); 3].map(|()| {
        let mut client = lab.client();
        client.send(GET);
        let mut server = lab.server();
        lab.until_received(&mut server, &mut client, GET.len());
        (client, server)
    });
    let mut seen = [false; 2];
    for round in 1..200 {
        for (_, server) in &mut pairs {
            server.send(OK);
        }
        lab.poll();
        // Responses that the kernel did not report together prove nothing.
        let ends_turn = round % 2 == 0;
        let has_more = lab.work() && lab.work();
        if has_more {
            for (client, _) in &mut pairs {
                client.step();
                assert_eq!(
                    client.received_bytes.len(),
                    OK.len() * (round - 1),
                    "somebody else is ready"
                );
            }
            if ends_turn {
                lab.flush();
                let received_bytes = |(client, _): &mut (Peer, Peer)| {
                    client.step();
                    client.received_bytes.len() == OK.len() * round
                };
                let received_bytes =
                    pairs.iter_mut().filter_map(|pair| received_bytes(pair).then_some(())).count();
                assert!((1..3).contains(&received_bytes), "the last one has not been looked at");
            }
            seen[usize::from(ends_turn)] = true;
        }
        for (client, server) in &mut pairs {
            lab.until_received(client, server, OK.len() * round);
            client.send(GET);
            lab.until_received(server, client, GET.len() * (round + 1));
        }
        if seen == [true; 2] {
            return;
        }
    }
    panic!("never three answers at once: {seen:?}");
}

/// Advances the time in steps of the idle check.
fn pass_time(lab: &mut Lab, seconds: u64, peer: &mut Peer) {
    for _ in 0..seconds / 15 {
        lab.skip(Duration::from_secs(15));
        lab.until(&mut [&mut *peer], |_| true);
    }
}

#[test]
fn a_connection_that_is_idle_for_too_long_ends() {
    // Between two requests.
    let (mut lab, mut client, mut server) = asked(GET);
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    pass_time(&mut lab, 60, &mut client);
    assert!(!client.is_over());
    pass_time(&mut lab, 30, &mut client);
    answered(&mut lab, &mut client, OK);
    assert_eq!(lab.reports.counters().idle, 1);
    // Without a response or any other progress.
    let (mut lab, mut client, _server) = asked(GET);
    pass_time(&mut lab, 570, &mut client);
    assert!(!client.is_over());
    pass_time(&mut lab, 60, &mut client);
    lab.until(&mut [&mut client], |peers| peers[0].is_over());
    assert_eq!((client.text().as_str(), lab.counts().reset), ("", 1));
}

#[test]
fn a_head_that_comes_too_slowly_is_refused() {
    let mut lab = lab();
    let mut client = lab.client();
    for byte in GET.as_bytes().iter().take(5) {
        client.send([*byte]);
        pass_time(&mut lab, 15, &mut client);
    }
    lab.until(&mut [&mut client], |peers| peers[0].is_over());
    let text = client.text();
    assert!(text.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\na request's head takes at most 60 s\n"), "{text}");
    assert_eq!(lab.reports.counters().idle, 1);
}

#[test]
fn large_bodies_pass_both_ways_at_once() {
    let (mut lab, mut client, mut server) = {
        let mut lab = lab();
        let mut client = lab.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
        let server = lab.server();
        (lab, client, server)
    };
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 7 + at / 1000) as u8).collect();
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n");
    server.send(&body);
    client.send(&body);
    lab.until(&mut [&mut client, &mut server], |peers| {
        peers.iter().all(|it| it.received_bytes.len() > 3_000_000)
    });
    assert!(client.received_bytes.ends_with(&body) && server.received_bytes.ends_with(&body));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let pair = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    let (mut lab, mut client, mut server) = asked(pair);
    let answers = format!("{OK}HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
    server.send(&answers);
    lab.until_received(&mut client, &mut server, answers.len());
    assert_eq!(client.text(), answers);
}

#[test]
fn a_client_that_waits_for_100_gets_it() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let (mut lab, mut client, mut server) = asked(head);
    server.send("HTTP/1.1 100 Continue\r\n\r\n");
    lab.until_received(&mut client, &mut server, 25);
    client.send("body");
    lab.until_received(&mut server, &mut client, head.len() + 4);
    server.send(OK);
    lab.until_received(&mut client, &mut server, 25 + OK.len());
    assert_eq!(client.text(), format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"));
    assert!(!client.is_over());
}

#[test]
fn responses_without_a_body_pass() {
    for (request, answer) in [
        ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"),
        (GET, "HTTP/1.1 304 N\r\nContent-Length: 7\r\n\r\n"),
        (GET, "HTTP/1.1 204 N\r\n\r\n"),
        (GET, "HTTP/1.1 102 P\r\n\r\nHTTP/1.1 204 N\r\n\r\n"),
    ] {
        let (mut lab, mut client, mut server) = asked(request);
        server.send(answer);
        lab.until_received(&mut client, &mut server, answer.len());
        assert_eq!(client.text(), answer);
        client.send(GET);
        lab.until_received(&mut server, &mut client, request.len() + GET.len());
    }
}

#[test]
fn an_upgraded_connection_is_passed_on() {
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";
    let (mut lab, mut client, mut server) = asked(ask);
    client.send("early");
    let answer = "HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello";
    server.send(answer);
    lab.until_received(&mut client, &mut server, answer.len());
    assert_eq!(client.text(), answer);
    lab.until_received(&mut server, &mut client, ask.len() + 5);
    let more = vec![7; 1 << 20];
    client.send(&more);
    client.finish();
    lab.until(&mut [&mut server, &mut client], |peers| peers[0].has_ended);
    assert!(server.received_bytes.ends_with(&more) && server.text().contains("\r\n\r\nearly"));
    server.send("bye");
    server.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].has_ended);
    assert!(client.text().ends_with("hellobye"));
    lab.until(&mut [], |_| true);
    assert_eq!(lab.counts().ended, 1);
}

#[test]
fn the_next_request_follows_a_refused_upgrade() {
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";
    let (mut lab, mut client, mut server) = asked(ask);
    client.send(GET);
    server.send(OK);
    lab.until_received(&mut server, &mut client, ask.len() + GET.len());
    assert!(server.text().ends_with(GET));
}

#[test]
fn a_truncated_upload_is_not_taken_for_complete() {
    let part = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf";
    let (mut lab, mut client, mut server) = asked(part);
    client.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|it| it.is_over()));
    assert!(client.text().starts_with("HTTP/1.1 400 Bad Request\r\n"), "{}", client.text());
    assert!(server.was_reset, "it does not end as if it were whole");
}

#[test]
fn a_response_that_breaks_off_is_no_whole_one() {
    let (mut lab, mut client, mut server) = asked(GET);
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    lab.until_ends(&mut client, "half");
    server.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    assert!(client.was_reset);
}

#[test]
fn a_body_until_the_end_ends_both() {
    let (mut lab, mut client, mut server) = asked(GET);
    server.send("HTTP/1.1 200 OK\r\n\r\nall of it");
    server.finish();
    // The body lasts until the connection ends, which the client learns from a field.
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    assert!(client.text().ends_with("\r\n\r\nall of it") && !client.was_reset, "{}", client.text());
}

#[test]
fn ambiguous_requests_are_refused_and_not_forwarded() {
    for head in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length : 4\r\n",
        " X: 1\r\n",
        "Host: b\r\n",
    ] {
        let mut lab = lab();
        let mut client = lab.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\nGET /smuggled HTTP/1.1\r\n"));
        client.finish();
        lab.until(&mut [&mut client], |peers| peers[0].is_over());
        assert!(client.text().starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
        assert!(!client.was_reset, "the answer is not lost");
        assert!(lab.is_alone(), "{head}");
        assert_eq!(lab.reports.counters().refused, 1);
    }
}

#[test]
fn a_refusal_waits_for_earlier_answers() {
    let mut lab = lab();
    let mut client = lab.client();
    client.send(format!("{GET}nonsense\0"));
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send(OK);
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    let text = client.text();
    assert!(text.starts_with(OK) && text[OK.len()..].starts_with("HTTP/1.1 400 "), "{text}");
}

#[test]
fn an_answer_is_not_lost_while_the_client_still_sends() {
    let mut lab = lab();
    let mut client = lab.client();
    client.send("NO\0");
    client.send(vec![b'x'; 100_000]);
    lab.until(&mut [&mut client], |peers| peers[0].has_ended);
    assert!(client.text().starts_with("HTTP/1.1 400 "));
    client.finish();
    lab.rest(&mut [&mut client]);
    assert_eq!((lab.counts().open(), lab.counts().ended), (0, 1));

    // A client that never closes is not awaited.
    let mut client = lab.client();
    client.send("NO\0");
    lab.until(&mut [&mut client], |peers| peers[0].has_ended);
    assert_eq!(lab.counts().open(), 1);
    lab.skip(std::time::Duration::from_secs(3));
    lab.rest(&mut []);
    assert_eq!(lab.counts().open(), 0);
}

#[test]
fn a_response_during_an_upload_passes_and_the_upload_goes_on() {
    let part = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo";
    let (mut lab, mut client, mut server) = asked(part);
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    client.send(format!("dy{GET}"));
    lab.until_received(&mut server, &mut client, part.len() + 2 + GET.len());
    assert_eq!(server.text(), format!("{part}dy{GET}"));
}

#[test]
fn a_server_that_ends_an_unused_connection_is_connected_to_again_or_the_client_ends_too() {
    let (mut lab, mut client, mut server) = asked(GET);
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    server.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].has_ended);
    assert_eq!(client.text(), OK);
}

#[test]
fn a_server_that_cannot_be_reached_is_a_bad_gateway() {
    let mut lab = lab().without_server();
    let mut client = lab.client();
    client.send(GET);
    lab.until(&mut [&mut client], |peers| peers[0].is_over());
    assert!(client.text().starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{}", client.text());
    assert_eq!(lab.reports.counters().unreachable, 1);
}

#[test]
fn a_server_that_answers_nonsense_is_a_bad_gateway() {
    for nonsense in ["SSH-2.0-x\r\n", "HTTP/1.1 101 S\r\n\r\n", "HTTP/1.1 200 OK\r\na b: c\r\n\r\n"]
    {
        let (mut lab, mut client, mut server) = asked(GET);
        server.send(nonsense);
        lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
        assert!(client.text().starts_with("HTTP/1.1 502 "), "{}", client.text());
    }
    // A server that closes without a response.
    let (mut lab, mut client, mut server) = asked(GET);
    server.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    assert!(client.text().starts_with("HTTP/1.1 502 "), "{}", client.text());
}

#[test]
fn a_client_of_http10_gets_what_it_can_read() {
    let (mut lab, mut client, mut server) = asked("GET / HTTP/1.0\r\n\r\n");
    server.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    answered(&mut lab, &mut client, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc");
}

#[test]
fn a_client_that_does_not_read_stops_its_server() {
    let (mut lab, mut client, mut server) = asked(GET);
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
    server.send(vec![1; 100_000_000]);
    for _ in 0..200 {
        lab.step();
        server.step();
    }
    assert!(!server.has_sent(), "the kernel's buffers are not so large");
    let _ = &mut client;
}

/// Returns a lab with a module that holds requests with a body, those of context 3 until a timer.
fn holding() -> Lab {
    let tick = "(if (i32.eqz (call $proxy_set_effective_context (i32.const 3)))
        (then (drop (call $proxy_continue_stream (i32.const 0))))) (i32.const 0)";
    let start = "(drop (call $proxy_set_tick_period_milliseconds (i32.const 50))) (i32.const 1)";
    let callbacks = [
        ("proxy_on_request_headers", "(i32.eqz (local.get 2))"),
        ("proxy_on_tick", tick),
        ("proxy_on_vm_start", start),
    ];
    Lab::new(&module(&callbacks, &[]), Kind::Http, Failure::Closed)
}

#[test]
fn an_unsent_request_uses_another_connection() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    let mut lab = holding();
    let mut client = lab.client();
    client.send(GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    client.send(post);
    // The server closes its connection while the module holds the request.
    server.finish();
    lab.rest(&mut [&mut client, &mut server]);
    lab.skip(std::time::Duration::from_millis(60));
    let mut other = lab.server();
    lab.until_received(&mut other, &mut client, post.len());
    assert_eq!(other.text(), post);
    other.send(OK);
    lab.until_received(&mut client, &mut other, 2 * OK.len());
    assert_eq!(client.text(), OK.repeat(2));
}

#[test]
fn no_request_is_sent_twice() {
    let (mut lab, mut client, mut server) = asked(GET);
    server.send(OK);
    lab.until_received(&mut client, &mut server, OK.len());
    client.send(GET);
    lab.until_received(&mut server, &mut client, 2 * GET.len());
    // The server has seen the request, and sends nothing.
    server.finish();
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    assert_eq!(client.text(), OK, "as if the client were connected to the server");
    assert!(lab.is_alone());
}
