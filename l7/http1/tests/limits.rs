//! Tests of each limit: a value at the limit passes, one more is refused, wherever the bytes are
//! cut.

mod common;

use common::{GET, Recorded, pieces, requests, responses};
use http1::limits::*;
use http1::{Error, Reason, Switch};

const GET_LINE: &str = "GET / HTTP/1.1\r\nHost: a\r\n";
const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

fn request(bytes: &str) -> Result<(), Error> {
    let (all, end) = requests(&[bytes.as_bytes()], Switch::Refused);
    for cut in [1, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let cut = pieces(bytes.as_bytes(), &[cut]);
        assert_eq!(requests(&cut, Switch::Refused), (all.clone(), end));
    }
    let single: Vec<&[u8]> = bytes.as_bytes().chunks(1).collect();
    assert_eq!(requests(&single, Switch::Refused), (all, end));
    end
}

/// Asserts that `of(limit)` passes and `of(limit + 1)` is refused.
fn holds(limit: usize, of: impl Fn(usize) -> String, reason: Reason, status: u16) {
    assert_eq!(request(&of(limit)), Ok(()), "{reason:?}: at the limit");
    let error = request(&of(limit + 1)).expect_err("one beyond it");
    assert_eq!((error.reason, error.status()), (reason, status));
}

#[test]
fn a_method() {
    let of = |length| format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(length));
    holds(METHOD_LENGTH_MAX, of, Reason::MethodTooLong, 501);
}

#[test]
fn a_request_line() {
    let of = |length| {
        let rest = "GET / HTTP/1.1".len();
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "t".repeat(length - rest))
    };
    holds(START_LINE_LENGTH_MAX, of, Reason::TargetTooLong, 414);
}

#[test]
fn lines_that_end_with_lf_have_the_same_limits() {
    let of = |length| {
        let target = "t".repeat(length - "GET / HTTP/1.1".len());
        format!("GET /{target} HTTP/1.1\nHost: a\nA: {}\n\n", "v".repeat(length - "A: ".len()))
    };
    holds(START_LINE_LENGTH_MAX, of, Reason::TargetTooLong, 414);
    let of = |length| format!("GET / HTTP/1.1\nHost: a\nA: {}\n\n", "v".repeat(length - 3));
    holds(FIELD_LINE_LENGTH_MAX, of, Reason::FieldTooLong, 431);
}

#[test]
fn empty_lines_in_front() {
    let of = |count: usize| format!("{}{GET_LINE}\r\n", "\r\n".repeat(count));
    holds(usize::from(EMPTY_LINES_MAX), of, Reason::EmptyLine, 400);
}

#[test]
fn a_folded_field() {
    let of = |length: usize| {
        let half = length / 2;
        let rest = "v".repeat(length - half - "A: \r\n ".len());
        format!("HTTP/1.1 204 N\r\nA: {}\r\n {rest}\r\n\r\n", "v".repeat(half))
    };
    let read = |length| responses(&[of(length).as_bytes()], &[GET]).1;
    assert_eq!(read(FIELD_LINE_LENGTH_MAX), Ok(()));
    let error = read(FIELD_LINE_LENGTH_MAX + 1).unwrap_err();
    assert_eq!((error.reason, error.status()), (Reason::FieldTooLong, 502));
}

#[test]
fn a_request_line_without_end_is_refused_before_it_ends() {
    let bytes = format!("GET /{}", "t".repeat(START_LINE_LENGTH_MAX));
    assert_eq!(request(&bytes).unwrap_err().reason, Reason::TargetTooLong);
}

#[test]
fn a_status_line() {
    let of = |length| {
        let rest = "HTTP/1.1 200 ".len();
        format!("HTTP/1.1 200 {}\r\nContent-Length: 0\r\n\r\n", "r".repeat(length - rest))
    };
    let read = |length| responses(&[of(length).as_bytes()], &[GET]).1;
    assert_eq!(read(START_LINE_LENGTH_MAX), Ok(()));
    let error = read(START_LINE_LENGTH_MAX + 1).unwrap_err();
    assert_eq!((error.reason, error.status()), (Reason::StatusLineTooLong, 502));
}

#[test]
fn a_field() {
    let of = |length| format!("{GET_LINE}A: {}\r\n\r\n", "v".repeat(length - "A: ".len()));
    holds(FIELD_LINE_LENGTH_MAX, of, Reason::FieldTooLong, 431);
}

/// Returns field lines of `length` bytes together, with their CRLF.
fn lines(mut length: usize) -> String {
    let mut lines = String::new();
    while length > 0 {
        let line = length.min(FIELD_LINE_LENGTH_MAX / 2);
        // The rest must be long enough for another line.
        let line = if length - line < 8 && length != line { line - 8 } else { line };
        lines += &format!("A: {}\r\n", "v".repeat(line - "A: \r\n".len()));
        length -= line;
    }
    lines
}

#[test]
fn all_fields_together() {
    let of = |length| {
        let host = "Host: a\r\n".len();
        format!("{GET_LINE}{}\r\n", lines(length - host))
    };
    let limit = HEADERS_LENGTH_MAX;
    holds(limit, of, Reason::FieldsTooLong { limit }, 431);
}

#[test]
fn the_number_of_fields() {
    let of = |count| format!("{GET_LINE}{}\r\n", "A: b\r\n".repeat(count - 1));
    let limit = HEADERS_COUNT_MAX;
    holds(limit, of, Reason::FieldsTooMany { limit }, 431);
}

#[test]
fn all_trailers_together() {
    let of = |length| format!("{CHUNKED}0\r\n{}\r\n", lines(length));
    let limit = TRAILERS_LENGTH_MAX;
    holds(limit, of, Reason::FieldsTooLong { limit }, 431);
}

#[test]
fn the_number_of_trailers() {
    let of = |count| format!("{CHUNKED}0\r\n{}\r\n", "A: b\r\n".repeat(count));
    let limit = TRAILERS_COUNT_MAX;
    holds(limit, of, Reason::FieldsTooMany { limit }, 431);
}

#[test]
fn digits_of_a_chunk_size() {
    let of = |digits| format!("{CHUNKED}{:0>digits$}\r\na\r\n0\r\n\r\n", 1);
    holds(CHUNK_SIZE_DIGITS_MAX, of, Reason::ChunkSizeTooLarge, 400);
}

#[test]
fn a_chunk_size() {
    let of = |size: u64| request(&format!("{CHUNKED}{size:x}\r\n")).unwrap_err().reason;
    assert_eq!(of(BODY_LENGTH_MAX), Reason::IncompleteBody);
    assert_eq!(of(BODY_LENGTH_MAX + 1), Reason::ChunkSizeTooLarge);
}

#[test]
fn a_length() {
    let of = |length: u64| {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        request(&bytes).unwrap_err().reason
    };
    assert_eq!(of(BODY_LENGTH_MAX), Reason::IncompleteBody);
    assert_eq!(of(BODY_LENGTH_MAX + 1), Reason::Length);
}

#[test]
fn a_chunk_line() {
    let of = |length| format!("{CHUNKED}1;{}\r\na\r\n0\r\n\r\n", "x".repeat(length - 2));
    holds(CHUNK_LINE_LENGTH_MAX, of, Reason::ChunkLineTooLong, 400);
}

#[test]
fn all_chunk_extensions() {
    let of = |mut length: usize| {
        let mut chunks = String::new();
        while length > 0 {
            let extension = length.min(CHUNK_LINE_LENGTH_MAX - 1);
            chunks += &format!("1;{}\r\na\r\n", "x".repeat(extension - 1));
            length -= extension;
        }
        format!("{CHUNKED}{chunks}0\r\n\r\n")
    };
    holds(CHUNK_EXTENSIONS_LENGTH_MAX, of, Reason::ChunkExtensionsTooLong, 400);
}

#[test]
fn extensions_are_counted_for_each_message_anew() {
    let extension = "x".repeat(CHUNK_LINE_LENGTH_MAX - 2);
    let one = format!("{CHUNKED}{}0\r\n\r\n", format!("1;{extension}\r\na\r\n").repeat(30));
    assert_eq!(request(&one.repeat(3)), Ok(()));
}

#[test]
fn interim_responses() {
    let of = |count: u32| {
        let interim = "HTTP/1.1 102 P\r\n\r\n".repeat(count as usize);
        format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    };
    let (all, end) = responses(&[of(INTERIM_COUNT_MAX).as_bytes()], &[GET]);
    assert_eq!((all.last(), end), (Some(&Recorded::End), Ok(())));
    let error = responses(&[of(INTERIM_COUNT_MAX + 1).as_bytes()], &[GET]).1.unwrap_err();
    assert_eq!(error.reason, Reason::InterimTooMany);
}

#[test]
fn interim_responses_are_counted_for_each_request_anew() {
    let interim = "HTTP/1.1 102 P\r\n\r\n".repeat(INTERIM_COUNT_MAX as usize);
    let one = format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(responses(&[one.repeat(2).as_bytes()], &[GET, GET]).1, Ok(()));
}
