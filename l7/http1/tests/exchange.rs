//! Tests of the exchange: order of requests and responses on one connection, and when it ends.

mod common;

use common::GET;
use http1::limits::PIPELINED_COUNT_MAX;
use http1::{
    Exchange, ExchangeError, Framing, Headers, MethodClass, Next, RequestHead, RequestTraits,
    ResponseHead, Switch, Version,
};

fn request(text: &str) -> RequestHead {
    let (line, lines) = text.split_once('\n').unwrap_or((text, ""));
    let mut parts = line.split(' ');
    let (method, target) = (parts.next().unwrap(), parts.next().unwrap());
    let version = if parts.next() == Some("1.0") { Version::Http10 } else { Version::Http11 };
    let mut headers = headers(lines);
    headers.add(b"Host", b"a").unwrap();
    RequestHead::new(method.as_bytes(), target.as_bytes(), version, headers).unwrap()
}

fn response(status: u16, lines: &str) -> ResponseHead {
    ResponseHead::new(Version::Http11, status, b"", headers(lines)).unwrap()
}

fn headers(lines: &str) -> Headers {
    let mut headers = Headers::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        headers.add(name.as_bytes(), value.as_bytes()).unwrap();
    }
    headers
}

/// Handles a complete request without a body.
fn ask(exchange: &mut Exchange, text: &str) -> Next {
    exchange.handle_request(&request(text), Framing::None).unwrap();
    exchange.handle_request_end()
}

/// Handles a complete response.
fn answer(exchange: &mut Exchange, lines: &str, framing: Framing) -> Next {
    exchange.handle_response(&response(200, lines), framing).unwrap();
    exchange.handle_response_end().unwrap()
}

#[test]
fn pipelined_responses_belong_to_requests_in_order() {
    let mut exchange = Exchange::new();
    assert!(exchange.is_idle() && exchange.awaited().is_none());
    for text in ["GET /", "HEAD /", "GET /b"] {
        assert_eq!(ask(&mut exchange, text), Next::Stay);
    }
    for method in [MethodClass::Other, MethodClass::Head, MethodClass::Other] {
        assert_eq!(exchange.awaited().map(|traits| traits.method), Some(method));
        assert_eq!(answer(&mut exchange, "", Framing::Length(0)), Next::Stay);
    }
    assert!(exchange.is_idle());
    let orphan = exchange.handle_response(&response(200, ""), Framing::Length(0));
    assert_eq!(orphan, Err(ExchangeError::ResponseOutOfTurn));
    assert_eq!(exchange.handle_response_end(), Err(ExchangeError::ResponseOutOfTurn));
}

#[test]
fn pipelined_requests_are_limited() {
    let mut exchange = Exchange::new();
    for _ in 0..PIPELINED_COUNT_MAX {
        assert!(exchange.may_begin_request());
        ask(&mut exchange, "GET /");
    }
    assert!(!exchange.may_begin_request());
    let one_more = exchange.handle_request(&request("GET /"), Framing::None);
    assert_eq!(one_more, Err(ExchangeError::RequestOutOfTurn));
    answer(&mut exchange, "", Framing::Length(0));
    assert!(exchange.may_begin_request());
}

#[test]
fn a_connection_ends_when_either_side_says_so_or_the_body_needs_it() {
    let rows = [
        ("GET /", "", Framing::Length(0), Next::Stay),
        ("GET /\nConnection: close", "", Framing::Length(0), Next::Close),
        ("GET /", "Connection: close", Framing::Length(0), Next::Close),
        ("GET /", "", Framing::UntilClose, Next::Close),
        ("GET / 1.0", "", Framing::Length(0), Next::Close),
        ("GET / 1.0\nConnection: keep-alive", "", Framing::Length(0), Next::Stay),
    ];
    for (asks, answers, framing, next) in rows {
        let mut exchange = Exchange::new();
        ask(&mut exchange, asks);
        exchange.handle_response(&response(200, answers), framing).unwrap();
        assert!(!exchange.must_announce_close(), "who ends it says so");
        assert_eq!(exchange.handle_response_end(), Ok(next), "{asks:?} {answers:?}");
        assert_eq!(exchange.may_begin_request(), next == Next::Stay);
        assert_eq!(exchange.is_idle(), next == Next::Stay);
    }
}

#[test]
fn an_edited_response_can_end_the_connection() {
    let rows = [
        ("", Framing::Length(5), Next::Stay),
        ("", Framing::UntilClose, Next::Close),
        ("Connection: close", Framing::Length(5), Next::Close),
    ];
    for (lines, framing, next) in rows {
        let mut exchange = Exchange::new();
        let early = exchange.handle_response_sent(&response(200, lines), framing);
        assert_eq!(early, Err(ExchangeError::ResponseOutOfTurn));
        ask(&mut exchange, "GET / 1.0\nConnection: keep-alive");
        exchange.handle_response(&response(200, ""), Framing::Length(4)).unwrap();
        exchange.handle_response_sent(&response(200, lines), framing).unwrap();
        assert_eq!(exchange.handle_response_end(), Ok(next), "{lines:?} {framing:?}");
    }
}

#[test]
fn nothing_follows_the_last_request() {
    let mut exchange = Exchange::new();
    ask(&mut exchange, "GET /");
    ask(&mut exchange, "GET /\nConnection: close");
    assert!(!exchange.may_begin_request());
    assert_eq!(answer(&mut exchange, "", Framing::Length(0)), Next::Stay);
    assert_eq!(answer(&mut exchange, "", Framing::Length(0)), Next::Close);
}

#[test]
fn pipelined_requests_behind_a_close_get_no_response() {
    let mut exchange = Exchange::new();
    ask(&mut exchange, "GET /");
    ask(&mut exchange, "GET /b");
    assert_eq!(answer(&mut exchange, "Connection: close", Framing::Length(0)), Next::Close);
    assert_eq!(exchange.awaited(), None);
}

#[test]
fn a_client_waits_for_100_until_it_or_the_body_comes() {
    let text = "POST /\nExpect: 100-continue";
    let begin = || {
        let mut exchange = Exchange::new();
        exchange.handle_request(&request(text), Framing::Length(1)).unwrap();
        assert!(exchange.awaits_continue());
        exchange
    };
    let mut exchange = begin();
    assert_eq!(exchange.handle_interim(&response(103, "")), Ok(true));
    assert!(exchange.awaits_continue(), "103 is no 100");
    assert_eq!(exchange.handle_interim(&response(100, "")), Ok(true));
    assert!(!exchange.awaits_continue());
    exchange.handle_request_end();
    assert_eq!(answer(&mut exchange, "", Framing::Length(0)), Next::Stay);

    let mut exchange = begin();
    exchange.handle_request_body();
    assert!(!exchange.awaits_continue());
    exchange.handle_request_end();
    assert_eq!(answer(&mut exchange, "", Framing::Length(0)), Next::Stay);

    let mut none = Exchange::new();
    none.handle_request(&request(text), Framing::None).unwrap();
    assert!(!none.awaits_continue(), "without a body there is nothing to wait for");
}

#[test]
fn a_final_response_in_place_of_100_ends_the_connection() {
    // RFC 9110, section 10.1.1; "HTTP/1.1 must die", Expect-based desync.
    let mut exchange = Exchange::new();
    let head = request("POST /\nExpect: 100-continue");
    exchange.handle_request(&head, Framing::Length(1)).unwrap();
    exchange.handle_response(&response(417, ""), Framing::Length(0)).unwrap();
    assert!(exchange.must_announce_close());
    assert_eq!(exchange.handle_response_end(), Ok(Next::Close));
}

#[test]
fn a_response_may_end_before_its_request() {
    let begin = |lines| {
        let mut exchange = Exchange::new();
        exchange.handle_request(&request("POST /"), Framing::Length(9)).unwrap();
        exchange.handle_request_body();
        let next = answer(&mut exchange, lines, Framing::Length(0));
        (exchange, next)
    };
    let (mut exchange, next) = begin("");
    assert_eq!(next, Next::Stay);
    assert!(!exchange.is_idle() && !exchange.may_begin_request());
    assert_eq!(exchange.awaited(), None);
    assert_eq!(exchange.handle_request_end(), Next::Stay);
    assert!(exchange.is_idle());
    let (_, next) = begin("Connection: close");
    assert_eq!(next, Next::Close, "nobody reads the rest");
}

#[test]
fn clients_of_http10_get_no_interim_responses() {
    let mut exchange = Exchange::new();
    assert_eq!(exchange.handle_interim(&response(100, "")), Err(ExchangeError::ResponseOutOfTurn));
    ask(&mut exchange, "GET / 1.0");
    assert_eq!(exchange.handle_interim(&response(100, "")), Ok(false));
    assert_eq!(exchange.client(), Some((GET, Version::Http10)));
}

#[test]
fn a_request_to_switch_holds_the_next_one_until_it_is_answered() {
    let upgrade = "GET /\nConnection: upgrade\nUpgrade: websocket";
    let mut exchange = Exchange::new();
    ask(&mut exchange, upgrade);
    assert!(!exchange.may_begin_request());
    let refused = exchange.handle_response(&response(200, ""), Framing::Length(0));
    assert_eq!(refused, Ok(Some(Switch::Refused)));
    assert!(exchange.may_begin_request());
    assert_eq!(exchange.handle_response_end(), Ok(Next::Stay));

    let mut exchange = Exchange::new();
    ask(&mut exchange, upgrade);
    let switched = exchange.handle_response(&response(101, ""), Framing::Tunnel);
    assert_eq!(switched, Ok(Some(Switch::Tunnel)));
    assert!(exchange.is_tunnel() && !exchange.may_begin_request() && !exchange.is_idle());

    let mut exchange = Exchange::new();
    ask(&mut exchange, "GET /");
    let plain = exchange.handle_response(&response(200, ""), Framing::Length(0));
    assert_eq!(plain, Ok(None));
}

#[test]
fn filters_may_take_a_switch_out_and_add_none() {
    let upgrade = request("GET /\nConnection: upgrade\nUpgrade: websocket");
    let mut exchange = Exchange::new();
    exchange.handle_request(&upgrade, Framing::None).unwrap();
    exchange.handle_request_sent(&request("HEAD /")).unwrap();
    exchange.handle_request_end();
    let sent = RequestTraits { method: MethodClass::Head, upgrade: false };
    assert_eq!(exchange.awaited(), Some(sent));
    let client = RequestTraits { method: MethodClass::Other, upgrade: true };
    assert_eq!(exchange.client(), Some((client, Version::Http11)));
    // The client still waits for the decision about its request to switch.
    let refused = exchange.handle_response(&response(200, ""), Framing::None);
    assert_eq!(refused, Ok(Some(Switch::Refused)));

    let mut exchange = Exchange::new();
    exchange.handle_request(&request("GET /"), Framing::None).unwrap();
    exchange.handle_request_sent(&upgrade).unwrap();
    assert_eq!(exchange.awaited(), Some(GET));
    let connect = request("CONNECT a:1");
    assert_eq!(exchange.handle_request_sent(&connect), Err(ExchangeError::ConnectEdited));
}

#[test]
fn a_server_connection_is_reused_only_in_its_initial_state() {
    // Columns: the client's request; whether its `close` is removed; the server's response and its
    // framing; whether the client is told that the connection ends; whether the server connection
    // can be reused.
    let rows = [
        ("GET /\nConnection: close", true, "", Framing::Length(3), true, true),
        ("GET /\nConnection: close", true, "", Framing::Chunked, true, true),
        ("GET /\nConnection: close", true, "Connection: close", Framing::Length(3), false, false),
        ("GET /\nConnection: close", true, "", Framing::UntilClose, false, false),
        ("GET / 1.0", false, "", Framing::Length(3), true, false),
        ("GET /\nConnection: upgrade, close\nUpgrade: x", false, "", Framing::None, true, false),
        ("GET /", false, "", Framing::Length(3), false, true),
        ("GET /", false, "Connection: close", Framing::Length(3), false, false),
    ];
    for (text, removes_close, lines, framing, announces_close, is_reusable) in rows {
        let mut exchange = Exchange::new();
        exchange.keep_server();
        assert!(exchange.is_server_reusable(), "nothing was sent");
        let mut head = request(text);
        exchange.handle_request(&head, Framing::None).unwrap();
        assert_eq!(exchange.must_remove_close(), removes_close, "{text}");
        if removes_close {
            http1::connection::unset_close(&mut head.headers).unwrap();
        }
        exchange.handle_request_sent(&head).unwrap();
        assert!(!exchange.is_server_reusable(), "{text}: it is asked");
        exchange.handle_request_end();
        exchange.handle_response(&response(200, lines), framing).unwrap();
        assert_eq!(exchange.must_announce_close(), announces_close, "{text}, {lines}");
        exchange.handle_response_end().unwrap();
        assert_eq!(exchange.is_server_reusable(), is_reusable, "{text}, {lines}, {framing:?}");
    }
}

#[test]
fn a_server_that_announces_a_forbidden_body_is_not_reused() {
    let announced = "Content-Length: 5";
    for (interim, status, lines, is_reusable) in [
        (None, 204, "", true),
        (None, 204, "Content-Length: 0", true),
        (None, 204, announced, false),
        (None, 204, "Transfer-Encoding: chunked", false),
        (Some(announced), 204, "", false),
        (Some(""), 200, announced, true),
    ] {
        let mut exchange = Exchange::new();
        exchange.keep_server();
        exchange.handle_request(&request("GET /"), Framing::None).unwrap();
        exchange.handle_request_end();
        if let Some(lines) = interim {
            exchange.handle_interim(&response(103, lines)).unwrap();
        }
        exchange.handle_response(&response(status, lines), Framing::Length(0)).unwrap();
        exchange.handle_response_end().unwrap();
        assert_eq!(exchange.is_server_reusable(), is_reusable, "{interim:?}, {status}, {lines}");
    }
}

#[test]
fn no_server_connection_is_reused_by_default() {
    let mut exchange = Exchange::new();
    assert!(!exchange.is_server_reusable());
    exchange.handle_request(&request("GET /\nConnection: close"), Framing::None).unwrap();
    assert!(!exchange.must_remove_close());
    exchange.handle_request_end();
    exchange.handle_response(&response(200, ""), Framing::Length(0)).unwrap();
    assert!(!exchange.must_announce_close());
    assert_eq!(exchange.handle_response_end(), Ok(Next::Close));
    assert!(!exchange.is_server_reusable());
}

#[test]
fn no_server_connection_is_reused_during_a_request() {
    let mut exchange = Exchange::new();
    exchange.keep_server();
    exchange.handle_request(&request("POST /\nConnection: close"), Framing::Length(9)).unwrap();
    exchange.handle_response(&response(200, ""), Framing::Length(0)).unwrap();
    assert_eq!(exchange.handle_response_end(), Ok(Next::Close));
    assert!(!exchange.is_server_reusable(), "the rest of the body is never sent");
}
