//! Table of requests, responses, and decisions, with the section of the RFC.

use super::*;

/// Parses fields, one per line.
fn fields(text: &str) -> Vec<(String, Vec<u8>)> {
    let field = |line: &str| {
        let at = line[1..].find(':').unwrap() + 1;
        (line[..at].to_owned(), line[at + 1..].trim().as_bytes().to_vec())
    };
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(field).collect()
}

fn decision(request: &str, response: &str, is_last: bool) -> Decision {
    let request = Request::read(&fields(&format!(":method: GET\n{request}")));
    decide(&Config::default(), &request, &Response::read(&fields(response)), is_last)
}

const GZIP: &str = "accept-encoding: gzip";
const PAGE: &str = ":status: 200\ncontent-type: text/html\ncontent-length: 5000\netag: \"a\"";

/// Expected decision: coding, body, Vary, tag.
type Row<'a> = (Option<Coding>, bool, bool, Option<&'a str>);

const CODED: Row<'_> = (Some(Coding::Gzip), true, true, Some("W/\"a\""));
/// Not coded for this client.
const VARIES: Row<'_> = (None, false, true, None);
/// Not coded for any client.
const LEFT: Row<'_> = (None, false, false, None);

fn assert_row(request: &str, response: &str, is_last: bool, row: Row<'_>, source: &str) {
    let found = decision(request, response, is_last);
    let tag = found.tag.as_deref().map(|tag| std::str::from_utf8(tag).unwrap());
    let found = (found.coding, found.has_body, found.adds_vary, tag);
    assert_eq!(found, row, "{source}\n{request}\n{response}");
}

#[test]
fn responses_are_coded_as_their_heads_allow() {
    // Each line is added to PAGE; a repeated field replaces the one in PAGE.
    let page = |line: &str| {
        let name = &line[..line[1..].find(':').unwrap() + 1];
        let kept: Vec<_> =
            PAGE.lines().filter(|old| !old.starts_with(&format!("{name}:"))).collect();
        format!("{}\n{line}", kept.join("\n"))
    };
    for (line, row, source) in [
        ("x: y", CODED, "a plain page"),
        (":status: 404", CODED, "an error's page is one, too"),
        (":status: 500", CODED, "15.6.1"),
        (":status: 203", CODED, "15.3.4"),
        (":status: 100", LEFT, "15.2: no response yet"),
        (":status: 101", LEFT, "15.2.2: no HTTP any more"),
        (":status: 204", LEFT, "15.3.5: no body"),
        (":status: 205", LEFT, "15.3.6: no body"),
        (":status: 206", LEFT, "15.3.7: part of a body"),
        (":status: 301", LEFT, "15.4.2: nobody reads it"),
        (":status: 9999999", LEFT, "no status"),
        ("content-range: bytes 0-9/10", LEFT, "14.4: a part"),
        ("content-encoding: gzip", LEFT, "8.4: coded already"),
        (
            "content-encoding: identity",
            LEFT,
            "8.4: no coding of that name; whoever says so is left",
        ),
        ("cache-control: no-transform", LEFT, "RFC 9111, 5.2.2.6"),
        ("cache-control: max-age=1, No-Transform", LEFT, "RFC 9111, 5.2: directives have no case"),
        ("cache-control: private=\"no-transform\"", CODED, "RFC 9111, 5.2: an argument is none"),
        ("content-length: 255", LEFT, "below the minimum"),
        ("content-length: 256", CODED, "the minimum"),
        ("content-length: 0", LEFT, "nothing to code"),
        ("content-length: many", CODED, "no length: as if it were not known"),
        ("content-type: text/event-stream", LEFT, "events wait for nothing"),
        ("content-type: image/png", LEFT, "coded within"),
        ("content-type: APPLICATION/JSON; charset=utf-8", CODED, "8.3.1: types have no case"),
        ("etag: W/\"a\"", (Some(Coding::Gzip), true, true, None), "8.8.1: weak already"),
        ("etag: a", (Some(Coding::Gzip), true, true, None), "8.8.3: no tag; it stays"),
        ("vary: Accept-Encoding", (Some(Coding::Gzip), true, false, Some("W/\"a\"")), "12.5.5"),
        (
            "vary: cookie, ACCEPT-encoding",
            (Some(Coding::Gzip), true, false, Some("W/\"a\"")),
            "12.5.5",
        ),
        ("vary: *", (Some(Coding::Gzip), true, false, Some("W/\"a\"")), "12.5.5: on everything"),
        ("vary: cookie", CODED, "12.5.5: another one is added"),
    ] {
        assert_row(GZIP, &page(line), false, row, source);
    }
    assert_row(GZIP, ":status: 200\ncontent-length: 5000", false, LEFT, "8.3: no type");
    let chunked = ":status: 200\ncontent-type: text/css\ntransfer-encoding: chunked";
    assert_row(GZIP, chunked, false, (Some(Coding::Gzip), true, true, None), "no length");
    assert_row(GZIP, chunked, true, LEFT, "it has ended: no body");
}

#[test]
fn the_fields_of_a_request_decide_whether_its_response_is_coded() {
    for (request, row, source) in [
        ("", VARIES, "12.5.3: nobody asked; another client's would be coded"),
        ("accept-encoding:", VARIES, "12.5.3"),
        ("accept-encoding: gzip;q=0", VARIES, "12.5.3"),
        (
            "accept-encoding: br;q=0, x\naccept-encoding: gzip",
            CODED,
            "5.3: two fields are one list",
        ),
        (
            "accept-encoding: gzip\nrange: bytes=0-",
            VARIES,
            "14.2: ranges are of what the server has",
        ),
        ("accept-encoding: gzip\ncache-control: no-transform", VARIES, "RFC 9111, 5.2.1.6"),
        (":method: CONNECT\naccept-encoding: gzip", LEFT, "9.3.6: a tunnel"),
        (":method: POST\naccept-encoding: gzip", CODED, "9.3.3: a response like others"),
    ] {
        assert_row(request, PAGE, false, row, source);
    }
}

#[test]
fn a_response_to_head_has_the_fields_of_the_response_to_get() {
    let request = ":method: HEAD\naccept-encoding: gzip";
    let coded = (Some(Coding::Gzip), false, true, Some("W/\"a\""));
    assert_row(request, PAGE, true, coded, "9.3.2: the same fields, no body");
    assert_row(":method: HEAD", PAGE, true, VARIES, "9.3.2");
    assert_row(request, ":status: 204", true, LEFT, "15.3.5");
}

#[test]
fn a_304_response_has_the_fields_of_the_coded_200_response() {
    let strong = ":status: 304\netag: \"a\"";
    for (request, response, row, source) in [
        ("if-none-match: W/\"a\"", strong, (None, false, true, Some("W/\"a\"")), "15.4.5: its tag"),
        ("if-none-match: \"b\", W/\"a\"", strong, (None, false, true, Some("W/\"a\"")), "13.1.2"),
        ("if-none-match: \"a\"", strong, VARIES, "15.4.5: that of the response as it is"),
        ("if-none-match: *", strong, VARIES, "13.1.2: which one, nobody said"),
        ("if-none-match: W/\"a\"", ":status: 304\netag: W/\"a\"", VARIES, "8.8.1: weak already"),
        ("", ":status: 304\nvary: accept-encoding", LEFT, "12.5.5: it says so"),
        ("", ":status: 304\ncontent-type: text/css", VARIES, "15.4.5"),
        ("", ":status: 304\ncontent-type: image/png", LEFT, "coded for nobody"),
        ("", ":status: 304\ncontent-encoding: br", LEFT, "8.4: the server's own coding"),
        (
            "if-none-match: W/\"a\"",
            "cache-control: no-transform\n:status: 304\netag: \"a\"",
            LEFT,
            "RFC 9111, 5.2.2.6",
        ),
    ] {
        assert_row(&format!("{GZIP}\n{request}"), response, true, row, source);
    }
}

#[test]
fn the_operator_decides_what_is_coded_and_how() {
    let config = Config::parse(b"minimum 0\ntypes image/*\ncodings deflate gzip").unwrap();
    let request = Request::read(&fields("accept-encoding: gzip, deflate, br"));
    let of = |response: &str| {
        decide(&config, &request, &Response::read(&fields(response)), false).coding
    };
    let small = ":status: 200\ncontent-type: image/bmp\ncontent-length: 1";
    assert_eq!(of(small), Some(Coding::Deflate));
    assert_eq!(of(PAGE), None);
    assert_eq!(of(":status: 200\ncontent-type: image/bmp\ncontent-length: 0"), None);
}
