//! Edge cases of HTTP/1.1 and known smuggling shapes, from `vectors/http1/edge-cases.txt`: each row
//! with its source and the expected result.

mod common;

use common::table::{Expected, Row, Sender, rows};
use common::{CONNECT, GET, Recorded, UPGRADE, bodies, relay, requests, responses};
use http1::{Error, Framing, RequestDecoder, RequestEvent, Step, Switch, Version};

const GET_LINE: &str = "GET / HTTP/1.1\r\nHost: a\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";

fn read(row: &Row, pieces: &[&[u8]]) -> (Vec<Recorded>, Result<(), Error>) {
    match row.sender {
        Sender::Client => requests(pieces, Switch::Refused),
        Sender::Server(traits) => responses(pieces, &[traits]),
    }
}

fn check(row: &Row) {
    let (all, end) = read(row, &[&row.bytes]);
    let found = match end {
        Err(error) => {
            assert!(error.to_string().contains(error.source().section), "{error}");
            assert!(
                !all.contains(&Recorded::End) || row.may_follow(),
                "{row}: nothing passes before"
            );
            let (status, reason) = (error.status(), format!("{:?}", error.reason));
            Expected::Refused { status, reason, offset: error.offset }
        }
        Ok(()) => {
            let framing = all.iter().find_map(|recorded| match recorded {
                Recorded::Head(_, framing) => Some(format!("{framing:?}")),
                _ => None,
            });
            Expected::Taken {
                messages: all.iter().filter(|recorded| **recorded == Recorded::End).count(),
                framing: framing.unwrap_or_default(),
                body: bodies(&all).concat(),
            }
        }
    };
    assert_eq!(found, row.expected, "{row}");
    let mut single: Vec<&[u8]> = row.bytes.chunks(1).collect();
    single.push(b"");
    assert_eq!(read(row, &single), (all, end), "{row}: by single bytes");
}

#[test]
fn the_table_of_edge_cases_holds() {
    let rows = rows();
    assert!(rows.len() > 200, "{} rows", rows.len());
    rows.iter().for_each(check);
}

#[test]
fn tolerated_input_is_forwarded_in_an_unambiguous_form() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\n";
    let rows = [
        ("Content-Length: 1\r\nA: b\r\nContent-Length: 1\r\n", "Content-Length: 1\r\nA: b\r\n"),
        ("Content-Length: 1, 1\r\n", "Content-Length: 1\r\n"),
        ("Content-Length : 1\r\n", "Content-Length: 1\r\n"),
        (
            "A: b \r\n \t c\r\n\t\r\n d \r\nB:\r\n e\r\nContent-Length: 1\r\n",
            "A: b      c      d\r\nB: e\r\nContent-Length: 1\r\n",
        ),
    ];
    for (received, forwarded) in rows {
        let received = format!("{HEAD}{received}\r\nx");
        let passed = relay::response(&[received.as_bytes()], GET, Version::Http11);
        assert_eq!(
            passed.escape_ascii().to_string(),
            format!("{HEAD}{forwarded}\r\nx").escape_default().to_string()
        );
    }
    let passed = relay::requests(&[b"GET /\xe9 HTTP/1.7\nHost:a\n\n"]);
    assert_eq!(passed, b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n");
    let no_content = b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\nA: b\r\n\r\n";
    let passed = relay::response(&[no_content], GET, Version::Http11);
    assert_eq!(passed, b"HTTP/1.1 204 No Content\r\nA: b\r\n\r\n");
}

#[test]
fn trailers_come_behind_the_body() {
    let bytes =
        format!("{POST}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Sum:  1 \r\nA:\r\n\r\n");
    let (all, end) = requests(&[bytes.as_bytes()], Switch::Refused);
    assert_eq!(end, Ok(()));
    let trailers = Recorded::Trailers("\nX-Sum=1\nA=\n".into());
    assert_eq!(all[1..], [Recorded::Body(b"x".to_vec()), trailers, Recorded::End]);
}

#[test]
fn after_a_switch_bytes_are_no_request() {
    // RFC 9110, 7.8 and 9.3.6: bytes after CONNECT that look like a request may belong to a tunnel.
    for head in [
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ] {
        let bytes = [head, GET_LINE, "\r\n"].concat();
        let (all, end) = requests(&[bytes.as_bytes()], Switch::Tunnel);
        assert_eq!(end, Ok(()));
        let rest = [GET_LINE, "\r\n"].concat().into_bytes();
        assert_eq!(all[1..], [Recorded::End, Recorded::Tunnel(rest)]);
        let (all, _) = requests(&[bytes.as_bytes()], Switch::Refused);
        assert_eq!(all.iter().filter(|recorded| **recorded == Recorded::End).count(), 2);
    }
}

#[test]
fn tunnels_begin_behind_101_and_connect() {
    let upgrade = "HTTP/1.1 101 S\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\nHTTP/1.1 \0raw";
    let connect = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 \0raw";
    for (bytes, traits) in [(upgrade, UPGRADE), (connect, CONNECT)] {
        let (all, end) = responses(&[bytes.as_bytes()], &[traits]);
        assert_eq!(end, Ok(()));
        assert!(matches!(all[0], Recorded::Head(_, Framing::Tunnel)));
        assert_eq!(all[1..], [Recorded::Tunnel(b"HTTP/1.1 \0raw".to_vec())]);
    }
}

#[test]
fn a_switch_that_is_known_before_the_body_has_ended_counts_behind_it() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\n";
    for (switch, is_tunnel) in [(Switch::Tunnel, true), (Switch::Refused, false)] {
        let mut decoder = RequestDecoder::new();
        decoder.switch(Switch::Tunnel);
        let step = decoder.decode(head.as_bytes()).unwrap();
        assert_eq!(step.consumed, head.len());
        decoder.switch(switch);
        assert_eq!(decoder.decode(b"b").unwrap().event, Some(RequestEvent::Body(b"b")));
        assert_eq!(decoder.decode(b"").unwrap().event, Some(RequestEvent::End));
        assert!(!decoder.awaits_switch());
        let step = decoder.decode(b"raw").unwrap();
        assert_eq!(step.event, is_tunnel.then_some(RequestEvent::Tunnel(b"raw")));
    }
}

#[test]
fn slices_of_a_body_are_those_of_the_input() {
    let bytes = format!("{POST}Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
    let mut decoder = RequestDecoder::new();
    let (mut rest, mut found) = (bytes.as_bytes(), 0);
    while let Step { consumed, event: Some(event) } = decoder.decode(rest).unwrap() {
        if let RequestEvent::Body(slice) = event {
            assert!(bytes.as_bytes().as_ptr_range().contains(&slice.as_ptr()));
            found += slice.len();
        }
        rest = &rest[consumed..];
        if decoder.is_between_requests() && rest.is_empty() {
            break;
        }
    }
    assert_eq!(found, 4);
}
