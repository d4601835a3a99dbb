//! Tests of the encoder: framing fields are right whatever the head had, everything else is
//! unchanged.

use http1::limits::{BODY_LENGTH_MAX, TRAILERS_COUNT_MAX};
use http1::{
    Body, EncodeError, Encoder, Error, Framing, Headers, LengthNeeded, MethodClass, Reason,
    RequestHead, RequestTraits, ResponseHead, Side, Version, refusal,
};

const GET: RequestTraits = RequestTraits { method: MethodClass::Other, upgrade: false };
const HEAD: RequestTraits = RequestTraits { method: MethodClass::Head, upgrade: false };
const CONNECT: RequestTraits = RequestTraits { method: MethodClass::Connect, upgrade: false };

fn headers(lines: &str) -> Headers {
    let mut headers = Headers::new();
    for line in lines.lines() {
        let (name, value) = line.split_once(':').unwrap();
        headers.add(name.as_bytes(), value.trim().as_bytes()).unwrap();
    }
    headers
}

fn post(version: Version, lines: &str) -> RequestHead {
    RequestHead::new(b"POST", b"/", version, headers(&format!("host: a\n{lines}"))).unwrap()
}

fn response(version: Version, status: u16, lines: &str) -> ResponseHead {
    ResponseHead::new(version, status, b"R", headers(lines)).unwrap()
}

/// Returns the field lines that were written.
fn written(out: &[u8]) -> String {
    let text = std::str::from_utf8(out).unwrap().replace("\r\n", "\n");
    let text = text.strip_suffix("\n\n").unwrap();
    text.split_once('\n').map_or("", |(_, fields)| fields).to_owned()
}

#[test]
fn requests_are_written_with_their_actual_framing() {
    let rows: [(&str, Framing, &str); 13] = [
        ("A: 1\ncontent-LENGTH: 05\nB: 2", Framing::Length(5), "A: 1\ncontent-LENGTH: 05\nB: 2"),
        ("A: 1\ncontent-LENGTH: 5\nB: 2", Framing::Length(6), "A: 1\ncontent-LENGTH: 6\nB: 2"),
        (
            "A: 1\ncontent-length: 5\nB: 2",
            Framing::Chunked,
            "A: 1\nTransfer-Encoding: chunked\nB: 2",
        ),
        (
            "A: 1\ntransfer-encoding: Chunked\nB: 2",
            Framing::Chunked,
            "A: 1\ntransfer-encoding: Chunked\nB: 2",
        ),
        (
            "A: 1\ntransfer-encoding: chunked\nB: 2",
            Framing::Length(7),
            "A: 1\nContent-Length: 7\nB: 2",
        ),
        ("A: 1\nContent-Length: 5\nB: 2", Framing::None, "A: 1\nB: 2"),
        ("A: 1", Framing::Length(0), "A: 1\nContent-Length: 0"),
        ("A: 1", Framing::None, "A: 1"),
        ("TE: gzip, trailers\nA: 1", Framing::None, "TE: trailers\nA: 1"),
        ("te: Trailers\nA: 1", Framing::None, "te: Trailers\nA: 1"),
        // Invalid fields, as a filter could add them.
        (
            "Content-Length: 5\nTransfer-Encoding: chunked\nContent-Length: 5",
            Framing::Length(5),
            "Content-Length: 5",
        ),
        (
            "Transfer-Encoding: gzip, chunked\nTransfer-Encoding: x",
            Framing::Chunked,
            "Transfer-Encoding: chunked",
        ),
        ("Content-Length: five", Framing::Length(5), "Content-Length: 5"),
    ];
    for (lines, framing, expected) in rows {
        let mut out = Vec::new();
        Encoder::request(&post(Version::Http11, lines), framing, &mut out).unwrap();
        let expected = format!("host: a\n{expected}");
        assert_eq!(written(&out), expected, "{lines:?} as {framing:?}");
        assert!(out.starts_with(b"POST / HTTP/1.1\r\n"));
    }
}

#[test]
fn responses_are_written_with_their_actual_framing() {
    let rows: [(Version, u16, RequestTraits, &str, Framing, &str); 12] = [
        (
            Version::Http11,
            200,
            GET,
            "A: 1\nContent-length: 5",
            Framing::Length(5),
            "A: 1\nContent-length: 5",
        ),
        (Version::Http11, 200, GET, "A: 1", Framing::UntilClose, "A: 1"),
        (
            Version::Http11,
            200,
            GET,
            "Transfer-Encoding: chunked\nA: 1",
            Framing::UntilClose,
            "A: 1\nConnection: close",
        ),
        (
            Version::Http10,
            200,
            GET,
            "connection: keep-alive\nContent-Length: 5",
            Framing::UntilClose,
            "connection: close",
        ),
        // Fields that describe another response stay.
        (Version::Http11, 200, HEAD, "Content-Length: 5", Framing::None, "Content-Length: 5"),
        (
            Version::Http11,
            200,
            HEAD,
            "Transfer-Encoding: chunked",
            Framing::None,
            "Transfer-Encoding: chunked",
        ),
        (Version::Http11, 304, GET, "Content-Length: 5", Framing::None, "Content-Length: 5"),
        (
            Version::Http11,
            304,
            GET,
            "Content-Length: 5\nTransfer-Encoding: chunked",
            Framing::None,
            "",
        ),
        // RFC 9110, section 8.6: neither in 1xx nor 204.
        (Version::Http11, 204, HEAD, "Content-Length: 0", Framing::None, ""),
        (Version::Http11, 103, GET, "Content-Length: 0\nLink: x", Framing::None, "Link: x"),
        (Version::Http11, 200, CONNECT, "Content-Length: 5\nA: 1", Framing::Tunnel, "A: 1"),
        (
            Version::Http11,
            101,
            GET,
            "Upgrade: x\nTransfer-Encoding: chunked",
            Framing::Tunnel,
            "Upgrade: x",
        ),
    ];
    for (version, status, traits, lines, framing, expected) in rows {
        let mut out = Vec::new();
        let head = response(version, status, lines);
        Encoder::response(&head, traits, framing, &mut out).unwrap();
        assert_eq!(written(&out), expected, "{status} {lines:?} as {framing:?}");
        assert!(out.ends_with(b"\r\n\r\n"));
    }
}

#[test]
fn framings_that_a_message_cannot_have_are_refused() {
    let refused = |head: RequestHead, framing| {
        let mut out = Vec::new();
        let error = Encoder::request(&head, framing, &mut out).unwrap_err();
        assert_eq!((error, out), (EncodeError::Framing(framing), vec![]));
    };
    refused(post(Version::Http10, ""), Framing::Chunked);
    refused(post(Version::Http11, ""), Framing::UntilClose);
    refused(post(Version::Http11, ""), Framing::Tunnel);
    refused(post(Version::Http11, ""), Framing::Length(BODY_LENGTH_MAX + 1));
    let mut trace = post(Version::Http11, "");
    trace.set_method(b"TRACE").unwrap();
    refused(trace, Framing::Length(1));

    let refused = |version, status, traits, framing| {
        let mut out = Vec::new();
        let head = response(version, status, "");
        let error = Encoder::response(&head, traits, framing, &mut out).unwrap_err();
        assert_eq!((error, out), (EncodeError::Framing(framing), vec![]));
    };
    refused(Version::Http10, 200, GET, Framing::Chunked);
    refused(Version::Http11, 200, GET, Framing::None);
    refused(Version::Http11, 200, GET, Framing::Tunnel);
    refused(Version::Http11, 200, HEAD, Framing::Length(5));
    refused(Version::Http11, 204, GET, Framing::Chunked);
    refused(Version::Http11, 100, GET, Framing::Length(0));
    refused(Version::Http11, 200, CONNECT, Framing::Length(0));
}

#[test]
fn a_head_that_a_filter_made_ambiguous_is_not_written() {
    let edit = |edit: &dyn Fn(&mut RequestHead)| {
        let mut head = post(Version::Http11, "");
        edit(&mut head);
        let mut out = Vec::new();
        let error = Encoder::request(&head, Framing::None, &mut out).unwrap_err();
        assert!(out.is_empty());
        error
    };
    use Reason::{
        ConnectionOption, HostDisagrees, HostMissing, HostRepeated, TargetAuthority, TargetForm,
    };
    assert_eq!(
        edit(&|head| assert_eq!(head.headers.remove(b"Host"), 1)),
        EncodeError::Head(HostMissing)
    );
    let twice = edit(&|head| head.headers.add(b"HOST", b"b").unwrap());
    assert_eq!(twice, EncodeError::Head(HostRepeated));
    let other = edit(&|head| head.set_target(b"http://b/").unwrap());
    assert_eq!(other, EncodeError::Head(HostDisagrees));
    let form = edit(&|head| head.set_target(b"b").unwrap());
    assert_eq!(form, EncodeError::Head(TargetForm));
    let connect = edit(&|head| head.set_method(b"CONNECT").unwrap());
    assert_eq!(connect, EncodeError::Head(TargetAuthority));
    let named = edit(&|head| head.headers.add(b"Connection", b"Host").unwrap());
    assert_eq!(named, EncodeError::Head(ConnectionOption));
}

#[test]
fn edits_of_first_lines_cannot_write_lines() {
    let mut head = post(Version::Http11, "");
    for target in [&b""[..], b"/ HTTP/1.1\r\nA: b", b"/\n", b"/ b", b"/\0"] {
        assert_eq!(head.set_target(target), Err(Reason::TargetByte));
    }
    for method in [&b""[..], b"G T", b"GET\r\n"] {
        assert_eq!(head.set_method(method), Err(Reason::Method));
    }
    let mut head = response(Version::Http11, 200, "");
    for (status, reason) in [(99, &b""[..]), (1000, b""), (200, b"a\r\nB: c"), (200, b"\0")] {
        assert_eq!(head.set_status(status, reason), Err(Reason::StatusLine));
    }
    assert_eq!((head.status(), head.reason()), (200, &b"R"[..]));
}

#[test]
fn a_body_is_exactly_as_long_as_its_head_says() {
    let mut out = Vec::new();
    let head = post(Version::Http11, "");
    let mut encoder = Encoder::request(&head, Framing::Length(3), &mut out).unwrap();
    let none = Headers::new();
    out.clear();
    encoder.write_body(b"ab", &mut out).unwrap();
    assert_eq!(encoder.end(&none, &mut out), Err(EncodeError::BodyTooShort { missing: 1 }));
    assert_eq!(encoder.write_body(b"cd", &mut out), Err(EncodeError::BodyTooLong));
    encoder.write_body(b"c", &mut out).unwrap();
    encoder.end(&none, &mut out).unwrap();
    assert_eq!(encoder.write_body(b"", &mut out), Err(EncodeError::Over));
    assert_eq!(encoder.end(&none, &mut out), Err(EncodeError::Over));
    assert_eq!(out, b"abc");
    let mut encoder = Encoder::request(&head, Framing::None, &mut out).unwrap();
    assert_eq!(encoder.body(1), Err(EncodeError::BodyTooLong));
}

#[test]
fn chunks_are_written_around_slices_and_an_empty_one_is_none() {
    let mut out = Vec::new();
    let head = post(Version::Http11, "");
    let mut encoder = Encoder::request(&head, Framing::Chunked, &mut out).unwrap();
    out.clear();
    for piece in [&b"a"[..], b"", &[b'b'; 26]] {
        encoder.write_body(piece, &mut out).unwrap();
    }
    let around = encoder.body(0xabc0).unwrap();
    assert_eq!((around.before(), around.after()), (&b"abc0\r\n"[..], &b"\r\n"[..]));
    let around = encoder.body(usize::MAX).unwrap();
    assert_eq!(around.before(), format!("{:x}\r\n", usize::MAX).as_bytes());
    encoder.end(&headers("X-Sum: 1"), &mut out).unwrap();
    let expected = format!("1\r\na\r\n1a\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", "b".repeat(26));
    assert_eq!(out.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
}

#[test]
fn trailers_are_checked_and_dropped_where_there_are_none() {
    let head = post(Version::Http11, "");
    let end = |framing, trailers: &Headers| {
        let mut out = Vec::new();
        let mut encoder = Encoder::request(&head, framing, &mut out).unwrap();
        out.clear();
        encoder.end(trailers, &mut out).map(|()| out)
    };
    assert_eq!(end(Framing::Chunked, &headers("host: b")), Err(EncodeError::TrailerForbidden));
    let many = headers(&"A: b\n".repeat(TRAILERS_COUNT_MAX + 1));
    assert_eq!(end(Framing::Chunked, &many), Err(EncodeError::TrailersTooLong));
    assert_eq!(end(Framing::Length(0), &headers("A: b")), Ok(vec![]));
}

#[test]
fn an_edited_body_is_framed_as_its_peer_can_read_it() {
    use Version::{Http10, Http11};
    let rows = [
        (Http11, Body::Unchanged(Framing::None), Ok(Framing::None)),
        (Http10, Body::Unchanged(Framing::Length(5)), Ok(Framing::Length(5))),
        (Http11, Body::Unchanged(Framing::Chunked), Ok(Framing::Chunked)),
        (Http11, Body::Unknown, Ok(Framing::Chunked)),
        (Http10, Body::Unknown, Err(LengthNeeded)),
        (Http10, Body::Known(5), Ok(Framing::Length(5))),
    ];
    for (version, body, expected) in rows {
        assert_eq!(Framing::for_request(version, body), expected, "{version:?} {body:?}");
    }
    let rows = [
        (Http11, 200, GET, Http11, Body::Unknown, Framing::Chunked),
        (Http11, 200, GET, Http10, Body::Unknown, Framing::UntilClose),
        (Http10, 200, GET, Http11, Body::Unknown, Framing::UntilClose),
        (Http11, 200, GET, Http10, Body::Unchanged(Framing::Chunked), Framing::UntilClose),
        (Http11, 200, GET, Http11, Body::Unchanged(Framing::UntilClose), Framing::UntilClose),
        (Http11, 200, GET, Http10, Body::Known(5), Framing::Length(5)),
        (Http11, 200, HEAD, Http11, Body::Known(5), Framing::None),
        (Http11, 304, GET, Http11, Body::Unknown, Framing::None),
        (Http11, 200, CONNECT, Http11, Body::Unknown, Framing::Tunnel),
        (Http11, 200, GET, Http11, Body::Unchanged(Framing::None), Framing::Length(0)),
    ];
    for (version, status, traits, client, body, expected) in rows {
        let head = response(version, status, "");
        let found = Framing::for_response(&head, traits, client, body);
        assert_eq!(found, expected, "{version:?} {status} {client:?} {body:?}");
    }
}

#[test]
fn a_refusal_is_a_whole_response_that_says_why() {
    let error = Error { side: Side::Request, offset: 7, reason: Reason::TargetTooLong };
    let text = String::from_utf8(refusal(error)).unwrap();
    assert!(text.starts_with("HTTP/1.1 414 URI Too Long\r\n"), "{text}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    assert!(head.ends_with("Connection: close"));
    assert!(body.starts_with("byte 7: ") && body.contains("RFC 9112, section 3"));
    let error = Error { side: Side::Response, ..error };
    assert!(refusal(error).starts_with(b"HTTP/1.1 502 Bad Gateway\r\n"));
}
