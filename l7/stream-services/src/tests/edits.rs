//! Tests of modules that edit, hold, and answer messages.

use super::lab::Peer;
use super::{Failure, Kind, Lab, module};

const GET: &str = "GET /a HTTP/1.1\r\nHost: example\r\nX-One: 1\r\n\r\n";
const POST: &str = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
const CHUNKED: &str = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                       4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Addresses of texts in a module's memory.
const DATA: &[(u32, &[u8])] = &[
    (0x100, b"x-two"),
    (0x110, b"2"),
    (0x120, b":path"),
    (0x130, b"/new"),
    (0x140, b"content-length"),
    (0x150, b":status"),
    (0x160, b"404"),
    (0x170, b"<edited>"),
    (0x180, b"bad\r\nvalue"),
    (0x190, b":authority"),
    (0x1a0, b"other:81"),
    (0x1b0, b"x-one"),
    (0x1c0, b"204"),
];

fn lab(callbacks: &[(&str, &str)]) -> Lab {
    Lab::new(&module(callbacks, DATA), Kind::Http, Failure::Closed)
}

/// Returns the bytes for the server after a request, and for the client after its response.
fn passed(callbacks: &[(&str, &str)], request: &str, response: &str) -> (String, String) {
    let mut lab = lab(callbacks);
    let mut client = lab.client();
    client.send(request);
    let mut server = lab.server();
    lab.until(&mut [&mut server], |peers| !peers[0].received_bytes.is_empty());
    lab.rest(&mut [&mut server, &mut client]);
    server.send(response);
    lab.until(&mut [&mut client], |peers| {
        !peers[0].received_bytes.is_empty() || peers[0].is_over()
    });
    lab.rest(&mut [&mut server, &mut client]);
    (server.text(), client.text())
}

/// Returns the client's connection after a response without the server.
fn answered(callbacks: &[(&str, &str)], request: &str) -> (Lab, Peer) {
    let mut lab = lab(callbacks);
    let mut client = lab.client();
    client.send(request);
    lab.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    lab.rest(&mut [&mut client]);
    assert!(lab.is_alone());
    (lab, client)
}

const ADD: &str = "(drop (call $proxy_add_header_map_value (i32.const 0) (i32.const 0x100) \
                   (i32.const 5) (i32.const 0x110) (i32.const 1)))";
const ADD_TO_RESPONSE: &str = "(drop (call $proxy_add_header_map_value (i32.const 2) \
                   (i32.const 0x100) (i32.const 5) (i32.const 0x110) (i32.const 1)))";

fn set(map: u32, name: (u32, u32), value: (u32, u32)) -> String {
    format!(
        "(drop (call $proxy_replace_header_map_value (i32.const {map}) (i32.const {}) \
         (i32.const {}) (i32.const {}) (i32.const {})))",
        name.0, name.1, value.0, value.1
    )
}

fn remove(map: u32, name: (u32, u32)) -> String {
    format!(
        "(drop (call $proxy_remove_header_map_value (i32.const {map}) (i32.const {}) \
         (i32.const {})))",
        name.0, name.1
    )
}

/// Returns code that replaces a whole buffer by `<edited>`.
fn edit(buffer: u32) -> String {
    format!(
        "(drop (call $proxy_set_buffer_bytes (i32.const {buffer}) (i32.const 0) \
         (i32.const 0x7fffffff) (i32.const 0x170) (i32.const 8)))"
    )
}

const GO: &str = "(i32.const 0)";
const HOLD: &str = "(i32.const 1)";
/// Code that holds a body until its last part.
const HOLD_TO_END: &str = "(i32.eqz (local.get 2))";

fn then(edits: &[&str], answer: &str) -> String {
    edits.concat() + answer
}

#[test]
fn heads_are_edited_both_ways() {
    let request = then(
        &[
            ADD,
            &set(0, (0x120, 5), (0x130, 4)),
            &set(0, (0x190, 10), (0x1a0, 8)),
            &remove(0, (0x1b0, 5)),
        ],
        GO,
    );
    let response = then(&[ADD_TO_RESPONSE, &set(2, (0x150, 7), (0x160, 3))], GO);
    let callbacks =
        [("proxy_on_request_headers", &*request), ("proxy_on_response_headers", &*response)];
    let (to_server, to_client) = passed(&callbacks, GET, OK);
    assert_eq!(to_server, "GET /new HTTP/1.1\r\nHost: other:81\r\nx-two: 2\r\n\r\n");
    assert_eq!(to_client, "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nx-two: 2\r\n\r\nok");
}

#[test]
fn absolute_targets_need_no_host_in_http10() {
    let request = then(&[ADD], GO);
    let callbacks = [("proxy_on_request_headers", &*request)];
    for (received_bytes, goes) in [
        ("GET http://h:8/a HTTP/1.0\r\n\r\n", "GET http://h:8/a HTTP/1.0\r\nx-two: 2\r\n\r\n"),
        (
            "GET http://h HTTP/1.0\r\nA: b\r\n\r\n",
            "GET http://h/ HTTP/1.0\r\nA: b\r\nx-two: 2\r\n\r\n",
        ),
        ("GET /\u{e9} HTTP/1.0\r\n\r\n", "GET /\u{e9} HTTP/1.0\r\nx-two: 2\r\n\r\n"),
        (
            "GET http://h:80/ HTTP/1.1\r\nHost: H\r\n\r\n",
            "GET http://H/ HTTP/1.1\r\nHost: H\r\nx-two: 2\r\n\r\n",
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\nx-two: 2\r\n\r\n",
        ),
        ("CONNECT a:1 HTTP/1.0\r\n\r\n", "CONNECT a:1 HTTP/1.0\r\nx-two: 2\r\n\r\n"),
    ] {
        let (to_server, _) =
            passed(&callbacks, received_bytes, "HTTP/1.0 404 No\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(to_server, goes);
    }
    // Another authority replaces the first one in its place.
    let request = then(&[&set(0, (0x190, 10), (0x1a0, 8))], GO);
    let callbacks = [("proxy_on_request_headers", &*request)];
    let (to_server, _) = passed(&callbacks, "GET http://h/a HTTP/1.0\r\n\r\n", OK);
    assert_eq!(to_server, "GET http://other:81/a HTTP/1.0\r\n\r\n");
}

#[test]
fn heads_at_every_limit_are_passed_and_edited() {
    use http1::limits::{HEADERS_COUNT_MAX, HEADERS_LENGTH_MAX, START_LINE_LENGTH_MAX};
    let (ask, answer) = (then(&[ADD], GO), then(&[ADD_TO_RESPONSE], GO));
    let callbacks = [("proxy_on_request_headers", &*ask), ("proxy_on_response_headers", &*answer)];
    // First line and all fields at their maximum length.
    let target = "p".repeat(START_LINE_LENGTH_MAX - "GET / HTTP/1.1".len());
    let line = |length: usize| format!("Cookie: {}\r\n", "c".repeat(length - "Cookie: \r\n".len()));
    let host = "Host: a\r\n";
    let quarter = (HEADERS_LENGTH_MAX - host.len()) / 5;
    let rest = HEADERS_LENGTH_MAX - host.len() - 4 * quarter;
    let lines = [line(quarter).repeat(4), line(rest)].concat();
    let long = format!("GET /{target} HTTP/1.1\r\n{host}{lines}");
    // Maximum number of fields.
    let many = format!("GET / HTTP/1.1\r\n{host}{}", "A: b\r\n".repeat(HEADERS_COUNT_MAX - 1));
    let cookies = "Set-Cookie: a=b\r\n".repeat(HEADERS_COUNT_MAX - 1);
    let response = format!("HTTP/1.1 200 OK\r\n{cookies}Content-Length: 2\r\n");
    for request in [long, many] {
        let (to_server, to_client) =
            passed(&callbacks, &format!("{request}\r\n"), &format!("{response}\r\nok"));
        assert!(to_server == format!("{request}x-two: 2\r\n\r\n"), "{} bytes", to_server.len());
        assert_eq!(to_client, format!("{response}x-two: 2\r\n\r\nok"));
    }
}

#[test]
fn a_body_whose_length_the_module_removes_is_chunked() {
    let request = then(&[&remove(0, (0x140, 14))], GO);
    let body = then(&[&edit(0)], GO);
    let response = then(&[&remove(2, (0x140, 14))], GO);
    let answer = then(&[&edit(1)], GO);
    let callbacks = [
        ("proxy_on_request_headers", &*request),
        ("proxy_on_request_body", &*body),
        ("proxy_on_response_headers", &*response),
        ("proxy_on_response_body", &*answer),
    ];
    // The head is sent first: the length of the body is unknown.
    let mut lab = lab(&callbacks);
    let mut client = lab.client();
    let (head, rest) = POST.split_at(POST.len() - 4);
    client.send(head);
    let mut server = lab.server();
    lab.until_ends(&mut server, "\r\n\r\n");
    assert!(server.text().contains("Transfer-Encoding: chunked"), "{}", server.text());
    client.send(rest);
    lab.until(&mut [&mut server, &mut client], |peers| peers[0].text().ends_with("0\r\n\r\n"));
    assert!(server.text().ends_with("\r\n\r\n8\r\n<edited>\r\n0\r\n\r\n"), "{}", server.text());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
    lab.until_ends(&mut client, "\r\n\r\n");
    server.send("ok");
    lab.until(&mut [&mut server, &mut client], |peers| peers[1].text().ends_with("0\r\n\r\n"));
    assert!(client.text().ends_with("\r\n\r\n8\r\n<edited>\r\n0\r\n\r\n"), "{}", client.text());
}

#[test]
fn a_body_held_until_complete_has_its_length() {
    let body = then(&[&edit(0)], HOLD_TO_END);
    let answer = then(&[&edit(1)], HOLD_TO_END);
    let callbacks = [("proxy_on_request_body", &*body), ("proxy_on_response_body", &*answer)];
    let (to_server, to_client) = passed(&callbacks, POST, OK);
    let expected = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n<edited>";
    assert_eq!(to_server, expected);
    assert_eq!(to_client, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n<edited>");
}

#[test]
fn trailers_are_edited_and_added() {
    let add = |map: u32| {
        format!(
            "(drop (call $proxy_add_header_map_value (i32.const {map}) (i32.const 0x100) \
             (i32.const 5) (i32.const 0x110) (i32.const 1)))"
        )
    };
    let trailers = then(&[&add(1)], GO);
    let callbacks = [("proxy_on_request_trailers", &*trailers)];
    let (to_server, _) = passed(&callbacks, CHUNKED, OK);
    assert!(to_server.ends_with("4\r\nbody\r\n0\r\nX-Sum: 1\r\nx-two: 2\r\n\r\n"), "{to_server}");
    let body = then(&[&add(3)], GO);
    let callbacks = [("proxy_on_response_body", &*body)];
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
    let (_, to_client) = passed(&callbacks, GET, answer);
    assert!(to_client.ends_with("1\r\na\r\n0\r\nx-two: 2\r\n\r\n"), "{to_client}");
}

#[test]
fn an_invalid_edited_message_is_an_error_and_not_sent() {
    for edit in [
        set(0, (0x1b0, 5), (0x180, 10)),
        set(0, (0x120, 5), (0x180, 10)),
        remove(0, (0x120, 5)),
        remove(0, (0x190, 10)),
    ] {
        let request = then(&[&edit], GO);
        let (lab, client) = answered(&[("proxy_on_request_headers", &*request)], GET);
        assert!(client.text().starts_with("HTTP/1.1 500 "), "{}", client.text());
        assert_eq!(lab.reports.counters().edits_refused, 1);
    }
    let response = then(&[&set(2, (0x100, 5), (0x180, 10))], GO);
    let (_, to_client) = passed(&[("proxy_on_response_headers", &*response)], GET, OK);
    assert!(to_client.starts_with("HTTP/1.1 500 "), "{to_client}");
}

#[test]
fn a_status_without_a_body_has_none() {
    let response = then(&[&set(2, (0x150, 7), (0x1c0, 3))], GO);
    let (_, to_client) = passed(&[("proxy_on_response_headers", &*response)], GET, OK);
    assert_eq!(to_client, "HTTP/1.1 204 No Content\r\n\r\n");
}

#[test]
fn a_wrong_length_truncates_the_message() {
    // The length is wrong after the module has changed the body.
    let body = then(&[&edit(1)], GO);
    let mut lab = lab(&[("proxy_on_response_body", &*body)]);
    let mut client = lab.client();
    client.send(GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    lab.until_ends(&mut client, "\r\n\r\n");
    server.send("ok");
    lab.until(&mut [&mut client, &mut server], |peers| peers.iter().all(|it| it.is_over()));
    assert!(client.was_reset && lab.reports.counters().edits_refused == 1);
}

/// Callback that resumes the request of context 2 at each tick.
fn ticking(stream: u32) -> [(&'static str, String); 2] {
    let tick = format!(
        "(drop (call $proxy_set_effective_context (i32.const 2))) \
         (call $proxy_continue_stream (i32.const {stream}))"
    );
    let start = "(drop (call $proxy_set_tick_period_milliseconds (i32.const 50))) (i32.const 1)";
    [("proxy_on_tick", tick), ("proxy_on_vm_start", start.to_owned())]
}

#[test]
fn a_held_head_holds_its_body_until_resumed() {
    let [tick, start] = ticking(0);
    let callbacks = [
        ("proxy_on_request_headers", HOLD),
        // Resuming the body does not release the head.
        ("proxy_on_request_body", GO),
        (tick.0, &*tick.1),
        (start.0, &*start.1),
    ];
    let mut lab = lab(&callbacks);
    let mut client = lab.client();
    client.send(POST);
    lab.rest(&mut [&mut client]);
    assert!(lab.is_alone(), "it is held");
    lab.skip(std::time::Duration::from_millis(60));
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, POST.len());
    assert_eq!(server.text(), POST);
}

#[test]
fn a_held_body_continues_when_resumed() {
    let [tick, start] = ticking(1);
    let callbacks = [("proxy_on_response_body", HOLD), (tick.0, &*tick.1), (start.0, &*start.1)];
    let mut lab = lab(&callbacks);
    let mut client = lab.client();
    client.send(GET);
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, GET.len());
    server.send(OK);
    lab.rest(&mut [&mut client, &mut server]);
    assert!(!client.text().contains("ok"), "it is held");
    lab.skip(std::time::Duration::from_millis(60));
    lab.until_received(&mut client, &mut server, OK.len());
    assert_eq!(client.text(), OK);
}

#[test]
fn data_held_by_a_module_is_limited() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n";
    let mut tried = lab(&[("proxy_on_request_body", HOLD)]);
    let mut client = tried.client();
    client.send(head);
    client.send(vec![b'x'; 3_000_000]);
    tried.until(&mut [&mut client], |peers| !peers[0].received_bytes.is_empty());
    assert!(client.text().starts_with("HTTP/1.1 413 "), "{}", client.text());

    let mut tried = lab(&[("proxy_on_response_body", HOLD)]);
    let mut client = tried.client();
    client.send(GET);
    let mut server = tried.server();
    tried.until_received(&mut server, &mut client, GET.len());
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n");
    server.send(vec![b'x'; 3_000_000]);
    tried.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
    let text = client.text();
    assert!(client.was_reset || text.starts_with("HTTP/1.1 500 "), "{text}");
    assert_eq!(tried.reports.counters().held_too_long, 1);
}

/// Code by which the module answers 418 with `<edited>`.
const ANSWER: &str = "(drop (call $proxy_send_local_response (i32.const 418) (i32.const 0) \
    (i32.const 0) (i32.const 0x170) (i32.const 8) (i32.const 0) (i32.const 0) \
    (i32.const -1))) (i32.const 1)";

#[test]
fn the_module_answers_a_request_at_each_stage() {
    for callback in
        ["proxy_on_request_headers", "proxy_on_request_body", "proxy_on_request_trailers"]
    {
        let mut lab = lab(&[(callback, ANSWER)]);
        let mut client = lab.client();
        client.send(CHUNKED);
        lab.until_ends(&mut client, "<edited>");
        let text = client.text();
        assert!(text.starts_with("HTTP/1.1 418 \r\n"), "{callback}: {text}");
        assert!(text.contains("Content-Length: 8\r\n"), "{text}");
        assert_eq!(lab.reports.counters().local_responses, 1);
    }
}

#[test]
fn a_connection_persists_after_an_answer_without_the_server() {
    let (mut lab, mut client) = answered(&[("proxy_on_request_headers", ANSWER)], POST);
    assert!(!client.is_over());
    client.send(GET);
    lab.until(&mut [&mut client], |peers| peers[0].text().matches("<edited>").count() == 2);
    // No body in the response to HEAD.
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    lab.until(&mut [&mut client], |peers| peers[0].text().matches("418").count() == 3);
    assert!(client.text().ends_with("\r\n\r\n") && !client.is_over());
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.finish();
    lab.until(&mut [&mut client], |peers| peers[0].is_over());
    let text = client.text();
    assert!(text.contains("Connection: close\r\n") && text.ends_with("<edited>"), "{text}");
}

#[test]
fn the_module_answers_in_place_of_the_servers_response_at_each_stage() {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n";
    for callback in
        ["proxy_on_response_headers", "proxy_on_response_body", "proxy_on_response_trailers"]
    {
        let mut lab = lab(&[(callback, ANSWER)]);
        let mut client = lab.client();
        client.send(GET);
        let mut server = lab.server();
        lab.until_received(&mut server, &mut client, GET.len());
        server.send(chunked);
        lab.until(&mut [&mut client, &mut server], |peers| peers[0].is_over());
        let text = client.text();
        // A module that sees the body only after the head is sent cannot answer.
        let is_late = client.was_reset && callback == "proxy_on_response_trailers";
        assert!(is_late || text.starts_with("HTTP/1.1 418 "), "{callback}: {text}");
    }
}

#[test]
fn answers_wait_for_earlier_responses() {
    // Only requests with a body are answered.
    let answer =
        format!("(if (result i32) (i32.eqz (local.get 2)) (then {ANSWER}) (else (i32.const 0)))");
    let mut lab = lab(&[("proxy_on_request_headers", &answer)]);
    let mut client = lab.client();
    client.send(format!("{GET}{POST}{GET}"));
    let mut server = lab.server();
    lab.until_received(&mut server, &mut client, 2 * GET.len());
    lab.rest(&mut [&mut client]);
    assert_eq!(client.text(), "");
    server.send(OK);
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].text().contains("418"));
    server.send(OK);
    lab.until(&mut [&mut client, &mut server], |peers| peers[0].text().matches("ok").count() == 2);
    let text = client.text();
    assert!(text.starts_with(OK) && text.ends_with(OK), "{text}");
    assert_eq!(server.text(), GET.repeat(2));
}
