//! Any bytes of clients and servers: read alike wherever they are cut, and the encoded output is
//! read as the input was.

use ::http1::{
    Encoder, Error, Framing, Headers, MethodClass, RequestDecoder, RequestEvent, RequestTraits,
    ResponseDecoder, ResponseEvent, Switch, limits, refusal,
};

const ASKED: [RequestTraits; 4] = [
    RequestTraits { method: MethodClass::Other, upgrade: false },
    RequestTraits { method: MethodClass::Head, upgrade: false },
    RequestTraits { method: MethodClass::Connect, upgrade: false },
    RequestTraits { method: MethodClass::Other, upgrade: true },
];

/// Results of a decoder, and the encoder's output for them.
#[derive(Debug, Default, PartialEq)]
struct Passed {
    heads: Vec<Framing>,
    bodies: Vec<u8>,
    ends: usize,
    out: Vec<u8>,
    error: Option<Error>,
}

pub fn read(bytes: &[u8]) {
    // The first byte says where the others are cut and what was asked.
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let cut = usize::from(first).min(rest.len());
    let whole = requests(&[rest]);
    said(&whole, rest);
    let parts = requests(&[&rest[..cut], &rest[cut..]]);
    same(&whole, &parts);
    if whole.error.is_none() {
        let again = requests(&[&whole.out]);
        assert_eq!((&again.heads, &again.bodies), (&whole.heads, &whole.bodies));
        assert_eq!(again.out, whole.out);
    }
    let asked = ASKED[usize::from(first) % ASKED.len()];
    let whole = response(&[rest], asked);
    said(&whole, rest);
    same(&whole, &response(&[&rest[..cut], &rest[cut..]], asked));
    if whole.error.is_none() && !whole.out.is_empty() {
        let again = response(&[&whole.out], asked);
        assert_eq!((&again.heads, &again.bodies), (&whole.heads, &whole.bodies));
        assert_eq!(again.out, whole.out);
    }
}

/// Checks that an error has a position within the input, and a response.
fn said(passed: &Passed, bytes: &[u8]) {
    if let Some(error) = passed.error {
        assert!(error.offset <= bytes.len() as u64);
        assert!([400, 414, 431, 501, 502, 505].contains(&error.status()));
        assert!(refusal(error).starts_with(b"HTTP/1.1 "));
    }
}

/// Compares two results, without the boundaries of chunks.
fn same(one: &Passed, other: &Passed) {
    assert_eq!(
        (&one.heads, &one.bodies, one.ends, one.error),
        (&other.heads, &other.bodies, other.ends, other.error)
    );
}

fn requests(pieces: &[&[u8]]) -> Passed {
    let (mut decoder, mut passed) = (RequestDecoder::new(), Passed::default());
    let (mut encoder, mut trailers) = (None::<Encoder>, Headers::new());
    for mut piece in pieces.iter().copied() {
        loop {
            let step = match decoder.decode(piece) {
                Ok(step) => step,
                Err(error) => return Passed { error: Some(error), ..passed },
            };
            piece = &piece[step.consumed..];
            let Some(event) = step.event else {
                if !decoder.awaits_switch() {
                    break;
                }
                decoder.switch(Switch::Refused);
                continue;
            };
            let out = &mut passed.out;
            match event {
                RequestEvent::Head(head, framing) => {
                    assert!(head.headers.len() <= limits::HEADERS_COUNT_MAX);
                    passed.heads.push(framing);
                    let written = Encoder::request(&head, framing, out);
                    encoder = Some(written.expect("what was read can be written"));
                }
                RequestEvent::Body(bytes) => {
                    passed.bodies.extend_from_slice(bytes);
                    let writer = encoder.as_mut().expect("a head is first");
                    writer.write_body(bytes, out).expect("a body as its head says");
                }
                RequestEvent::Trailers(fields) => trailers = fields,
                RequestEvent::End => {
                    passed.ends += 1;
                    let writer = encoder.as_mut().expect("a head is first");
                    let fields = std::mem::take(&mut trailers);
                    writer.end(&fields, out).expect("a body as its head says");
                }
                RequestEvent::Tunnel(_) => panic!("nobody has switched"),
            }
        }
        assert!(piece.is_empty(), "everything is consumed");
    }
    Passed { error: decoder.eof().err(), ..passed }
}

fn response(pieces: &[&[u8]], asked: RequestTraits) -> Passed {
    let (mut decoder, mut passed) = (ResponseDecoder::new(), Passed::default());
    let (mut encoder, mut trailers) = (None::<Encoder>, Headers::new());
    decoder.expect(asked);
    for mut piece in pieces.iter().copied() {
        loop {
            let step = match decoder.decode(piece) {
                Ok(step) => step,
                Err(error) => return Passed { error: Some(error), ..passed },
            };
            piece = &piece[step.consumed..];
            let Some(event) = step.event else { break };
            answer(event, asked, &mut passed, &mut encoder, &mut trailers);
        }
        assert!(piece.is_empty(), "everything is consumed");
    }
    match decoder.eof() {
        Ok(None) => {}
        Ok(Some(event)) => answer(event, asked, &mut passed, &mut encoder, &mut trailers),
        Err(error) => passed.error = Some(error),
    }
    passed
}

fn answer(
    event: ResponseEvent<'_>,
    asked: RequestTraits,
    passed: &mut Passed,
    encoder: &mut Option<Encoder>,
    trailers: &mut Headers,
) {
    let out = &mut passed.out;
    match event {
        ResponseEvent::Interim(head) => {
            let written = Encoder::response(&head, asked, Framing::None, out);
            written.expect("what was read can be written");
        }
        ResponseEvent::Head(head, framing) => {
            passed.heads.push(framing);
            let written = Encoder::response(&head, asked, framing, out);
            *encoder = Some(written.expect("what was read can be written"));
        }
        ResponseEvent::Body(bytes) | ResponseEvent::Tunnel(bytes) => {
            passed.bodies.extend_from_slice(bytes);
            let writer = encoder.as_mut().expect("a head is first");
            writer.write_body(bytes, out).expect("a body as its head says");
        }
        ResponseEvent::Trailers(fields) => *trailers = fields,
        ResponseEvent::End => {
            passed.ends += 1;
            let writer = encoder.as_mut().expect("a head is first");
            let fields = std::mem::take(trailers);
            writer.end(&fields, out).expect("a body as its head says");
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 16] = [
        b"\x05GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x20POST /b?c HTTP/1.1\r\nhost: a\r\nContent-Length: 4\r\n\r\nbodyGET / HTTP/1.0\r\n\r\n",
        b"\x50POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\nbody\r\n0\r\nX: y\r\n\r\n",
        b"\x30POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nb",
        b"\x09CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n\x16\x03\x01",
        b"\x40GET /c HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n",
        b"\x02GET http://a:80/ HTTP/1.1\r\nHost: A\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n",
        b"\x04OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nTE: trailers\r\nConnection: TE\r\n\r\n",
        b"\x04HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"\x40HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\nX-Sum: 1\r\n\r\n",
        b"\x10HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it",
        b"\x04HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"\x05HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\nETag: \"a\"\r\n\r\n",
        b"\x02HTTP/1.1 200 Connected\r\n\r\n\x16\x03\x01",
        b"\x07HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x01a",
        b"\x08HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
    ];
    seeds.map(<[u8]>::to_vec).to_vec()
}
