//! Any bytes of a client and of a server in turns, through a filter that changes nothing, or has
//! responses encoded: the output is read without a fault, and as the messages that were sent.

use ::content_coding::Coding;
use ::http1::{MethodClass, RequestDecoder, RequestEvent, RequestTraits, ResponseDecoder, Switch};
use stream_services::{Harness, Side};

/// Mask of a turn's first byte for its length; the highest bit selects the sender.
const TURN_LENGTH_MASK: u8 = 0x7f;

/// Feeds each turn's bytes to its side.
pub fn pass(bytes: &[u8]) {
    let whole = run(bytes, usize::MAX, Harness::new(has_callbacks(bytes)));
    let parts = run(bytes, 3, Harness::new(has_callbacks(bytes)));
    let coded = run(bytes, 100, Harness::coding(Coding::Gzip));
    let kept = run(bytes, usize::MAX, Harness::keeping(has_callbacks(bytes)));
    if kept.is_server_reusable() {
        let mut decoder = RequestDecoder::new();
        requests_by(&mut decoder, kept.sent(Side::Upstream));
        assert!(decoder.eof().is_ok(), "the next client begins where a request may");
    }
    for harness in [&whole, &parts, &coded, &kept] {
        assert!(harness.contexts() == 0 || !harness.is_over(), "all contexts have ended");
        let asked = requests(harness.sent(Side::Upstream));
        responses(harness.sent(Side::Downstream), asked, harness.is_over());
    }
}

/// Returns true if the module of this run has callbacks, which the first byte selects.
fn has_callbacks(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|first| first % 2 == 0)
}

fn run(mut bytes: &[u8], size: usize, mut harness: Harness) -> Harness {
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    bytes = rest;
    while let Some((turn, rest)) = bytes.split_first() {
        let length = usize::from(turn & TURN_LENGTH_MASK).min(rest.len());
        let side = if *turn > TURN_LENGTH_MASK { Side::Upstream } else { Side::Downstream };
        let (now, rest) = rest.split_at(length);
        for piece in now.chunks(size.min(now.len().max(1))) {
            harness.handle_bytes(side, piece);
        }
        // A filter that does not encode has nothing to do then.
        harness.handle_pause();
        bytes = rest;
    }
    if first & 2 == 0 {
        harness.handle_end(Side::Downstream);
        harness.handle_end(Side::Upstream);
    }
    harness
}

/// Returns the traits of each request; none of them is refused by the reader.
fn requests(bytes: &[u8]) -> Vec<RequestTraits> {
    requests_by(&mut RequestDecoder::new(), bytes)
}

fn requests_by(decoder: &mut RequestDecoder, mut bytes: &[u8]) -> Vec<RequestTraits> {
    let mut asked = Vec::new();
    loop {
        let step = decoder.decode(bytes).expect("what goes to a server is valid");
        bytes = &bytes[step.consumed..];
        match step.event {
            Some(RequestEvent::Head(head, _)) => asked.push(RequestTraits::by(&head)),
            Some(_) => {}
            // After a switch to a tunnel come bytes of another protocol.
            None if decoder.awaits_switch() => decoder.switch(Switch::Tunnel),
            None => return asked,
        }
    }
}

/// Checks that the client can read all responses, to the last one, after which the connection ends.
fn responses(mut bytes: &[u8], asked: Vec<RequestTraits>, is_over: bool) {
    let mut decoder = ResponseDecoder::new();
    let other = RequestTraits { method: MethodClass::Other, upgrade: false };
    let mut asked = asked.into_iter();
    while !bytes.is_empty() {
        if decoder.awaits_request() {
            // The filter's own responses may be to requests that were not forwarded.
            decoder.expect(asked.next().unwrap_or(other));
        }
        match decoder.decode(bytes) {
            Ok(step) if step.event.is_none() => return,
            Ok(step) => bytes = &bytes[step.consumed..],
            Err(error) => {
                // A refusal to HEAD has a body, since the connection ends after it.
                assert!(is_over, "what goes to a client is valid: {error}");
                return;
            }
        }
    }
}

/// Returns a turn for each side.
pub fn seeds() -> Vec<Vec<u8>> {
    let turns = |turns: &[(bool, &str)]| {
        let mut bytes = vec![0];
        for (is_server, text) in turns {
            for piece in text.as_bytes().chunks(usize::from(TURN_LENGTH_MASK)) {
                bytes.push(piece.len() as u8 | if *is_server { 0x80 } else { 0 });
                bytes.extend_from_slice(piece);
            }
        }
        bytes
    };
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n";
    vec![
        turns(&[
            (false, get),
            (true, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
            (false, get),
            (true, "HTTP/1.1 204 N\r\n\r\n"),
        ]),
        turns(&[
            (false, &format!("POST / HTTP/1.1\r\nHost: a\r\n{chunked}{get}")),
            (true, &format!("HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\n{chunked}")),
            (true, "HTTP/1.1 200 OK\r\n\r\nall"),
        ]),
        turns(&[
            (false, "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nearly"),
            (true, "HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello"),
            (false, "more"),
        ]),
        turns(&[
            (false, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            (true, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ]),
        turns(&[
            (false, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"),
            (false, "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"),
            (true, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
        ]),
    ]
}
