//! Properties for arbitrary bytes: no panic, the same events wherever they are cut, and forwarded
//! messages are read as the received ones.

mod common;

use common::table::{Sender, rows};
use common::{CONNECT, GET, HEAD, Recorded, UPGRADE, bodies, pieces, relay, requests, responses};
use http1::{Encoder, Framing, Headers, RequestHead, RequestTraits, ResponseHead, Switch, Version};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Generates concatenated messages of the table, with some bytes changed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<Vec<u8>> = rows().into_iter().map(|row| row.bytes).collect();
    let edge = prop_oneof![select(b"\r\n\0 \t:;,0aFx\x7f\xff".to_vec()), any::<u8>()];
    let change = (any::<Index>(), edge, 0_u8..3);
    (vec(select(all), 1..4), vec(change, 0..4)).prop_map(|(messages, changes)| {
        let mut bytes = messages.concat();
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len() + 1);
            match kind {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

/// Generates bytes that resemble HTTP in places.
fn tokens() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&'static [u8]> = vec![
        b"GET ",
        b"POST ",
        b"/",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b"\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 ",
        b"200 OK",
        b"101 S",
        b"Host: a\r\n",
        b"Content-Length: ",
        b"Transfer-Encoding: chunked",
        b"0",
        b"5",
        b"\n",
        b"\r",
        b" ",
        b"Connection: close",
        b"Upgrade: x\r\n",
        b";",
        b"ff",
        b",",
    ];
    vec(
        prop_oneof![9 => select(words).prop_map(<[u8]>::to_vec), 1 => vec(any::<u8>(), 0..4)],
        0..24,
    )
    .prop_map(|words| words.concat())
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..200), tokens(), mutated()]
}

fn traits() -> impl Strategy<Value = Vec<RequestTraits>> {
    vec(select(vec![GET, HEAD, CONNECT, UPGRADE]), 0..4)
}

fn name() -> impl Strategy<Value = String> {
    "[A-Za-z][A-Za-z0-9!#$%&'*+.^_`|~-]{0,12}".prop_filter("no field of its own meaning", |name| {
        !["host", "te", "connection", "upgrade"].contains(&name.to_ascii_lowercase().as_str())
    })
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    vec((name(), "([!-~\u{e9}]([ \t!-~]{0,20}[!-~])?)?"), 0..8)
}

fn headers(fields: &[(String, String)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in fields {
        headers.add(name.as_bytes(), value.as_bytes()).unwrap();
    }
    headers
}

fn body() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 0..50), 0..6)
}

/// Writes a message with a body in pieces.
fn write(mut encoder: Encoder, out: &mut Vec<u8>, body: &[Vec<u8>], trailers: &Headers) {
    for piece in body {
        encoder.write_body(piece, out).unwrap();
    }
    encoder.end(trailers, out).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_alike_wherever_they_are_cut(
        bytes in any_bytes(),
        cuts in vec(any::<usize>(), 0..8),
        traits in traits(),
    ) {
        for switch in [Switch::Refused, Switch::Tunnel] {
            let whole = requests(&[&bytes], switch);
            prop_assert_eq!(&requests(&pieces(&bytes, &cuts), switch), &whole);
        }
        let whole = responses(&[&bytes], &traits);
        prop_assert_eq!(responses(&pieces(&bytes, &cuts), &traits), whole);
    }

    /// Forwarded bytes decode to the same messages, and are forwarded again unchanged.
    #[test]
    fn forwarded_bytes_decode_to_the_same_messages(bytes in any_bytes()) {
        let passed = relay::requests(&[&bytes]);
        let (received, _) = requests(&[&bytes], Switch::Refused);
        let (forwarded, _) = requests(&[&passed], Switch::Refused);
        prop_assert_eq!(whole(&received), whole(&forwarded));
        let again = relay::requests(&[&passed]);
        prop_assert!(again == passed, "{} then {}", passed.escape_ascii(), again.escape_ascii());
    }
}

/// Returns the events up to the last end of a message.
fn whole(all: &[Recorded]) -> &[Recorded] {
    &all[..all.iter().rposition(|recorded| *recorded == Recorded::End).map_or(0, |end| end + 1)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_request_that_is_written_is_read(
        method in "[A-Z]{1,8}".prop_filter("no body", |m| m != "TRACE" && m != "CONNECT"),
        path in "/[!\"$-~]{0,30}",
        fields in fields(),
        body in body(),
        trailers in fields(),
        framing in 0_u8..2,
        cuts in vec(any::<usize>(), 0..8),
    ) {
        let mut all = headers(&fields);
        all.add(b"Host", b"a.example:80").unwrap();
        let head = RequestHead::new(method.as_bytes(), path.as_bytes(), Version::Http11, all);
        let head = head.unwrap();
        let content = body.concat();
        let trailers: Vec<_> = trailers
            .into_iter()
            .filter(|(name, _)| !http1::chunked::is_forbidden_trailer(name.as_bytes()))
            .collect();
        let length = Framing::Length(content.len() as u64);
        let framing = [length, Framing::Chunked][usize::from(framing)];
        let mut out = Vec::new();
        let encoder = Encoder::request(&head, framing, &mut out).unwrap();
        write(encoder, &mut out, &body, &headers(&trailers));

        let (events, end) = requests(&pieces(&out, &cuts), Switch::Refused);
        prop_assert_eq!(end, Ok(()));
        prop_assert!(matches!(&events[0], Recorded::Head(_, found) if *found == framing));
        prop_assert_eq!(bodies(&events).concat(), content);
        let has_trailers = events.iter().any(|recorded| matches!(recorded, Recorded::Trailers(_)));
        prop_assert_eq!(has_trailers, framing == Framing::Chunked && !trailers.is_empty());
        prop_assert_eq!(events.last(), Some(&Recorded::End));
        // Forwarded piece by piece: the head is the same to the byte.
        let passed = relay::requests(&pieces(&out, &cuts));
        let head_end = out.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        prop_assert_eq!(&passed[..head_end], &out[..head_end]);
        if framing == length {
            prop_assert_eq!(passed, out);
        }
    }

    #[test]
    fn a_response_that_is_written_is_read(
        status in 200_u16..=999,
        reason in "[ -~]{0,12}",
        fields in fields(),
        body in body(),
        framing in 0_u8..3,
        client in select(vec![Version::Http10, Version::Http11]),
        cuts in vec(any::<usize>(), 0..8),
    ) {
        prop_assume!(!GET.has_no_body(status));
        let head = ResponseHead::new(Version::Http11, status, reason.as_bytes(), headers(&fields));
        let head = head.unwrap();
        let content = body.concat();
        let length = Framing::Length(content.len() as u64);
        let framing = [length, Framing::Chunked, Framing::UntilClose][usize::from(framing)];
        let mut out = Vec::new();
        let encoder = Encoder::response(&head, GET, framing, &mut out).unwrap();
        write(encoder, &mut out, &body, &Headers::new());

        let (events, end) = responses(&pieces(&out, &cuts), &[GET]);
        prop_assert_eq!(end, Ok(()));
        prop_assert!(matches!(&events[0], Recorded::Head(_, found) if *found == framing));
        prop_assert_eq!(bodies(&events).concat(), content.clone());

        // A client of HTTP/1.0 gets no chunks, and the same body.
        let passed = relay::response(&pieces(&out, &cuts), GET, client);
        let (events, end) = responses(&[&passed], &[GET]);
        prop_assert_eq!(end, Ok(()));
        let chunks_again = framing == Framing::Chunked && client == Version::Http11;
        prop_assert_eq!(matches!(&events[0], Recorded::Head(_, Framing::Chunked)), chunks_again);
        prop_assert_eq!(bodies(&events).concat(), content);
        if framing != Framing::Chunked {
            prop_assert_eq!(passed, out);
        }
    }
}

#[test]
fn every_response_of_the_table_is_passed_on_as_the_same_response() {
    for row in rows() {
        let Sender::Server(traits) = row.sender else { continue };
        let (received, end) = responses(&[&row.bytes], &[traits]);
        if end.is_err() {
            continue;
        }
        let passed = relay::response(&[&row.bytes], traits, Version::Http11);
        let (forwarded, end) = responses(&[&passed], &[traits]);
        assert_eq!(end, Ok(()), "{row}");
        assert_eq!(bodies(&forwarded), bodies(&received), "{row}");
        assert_eq!(forwarded.len(), received.len(), "{row}");
    }
}
