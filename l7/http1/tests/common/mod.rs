//! Test helpers: run decoders over bytes cut anywhere, and record their events.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod node;
pub mod relay;
pub mod table;

use http1::{
    Error, Framing, Headers, MethodClass, RequestDecoder, RequestEvent, RequestTraits,
    ResponseDecoder, ResponseEvent, Switch,
};

pub const GET: RequestTraits = RequestTraits { method: MethodClass::Other, upgrade: false };
pub const HEAD: RequestTraits = RequestTraits { method: MethodClass::Head, upgrade: false };
pub const CONNECT: RequestTraits = RequestTraits { method: MethodClass::Connect, upgrade: false };
pub const UPGRADE: RequestTraits = RequestTraits { method: MethodClass::Other, upgrade: true };

/// Event of a decoder, independent of where bodies were cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    Head(String, Framing),
    Interim(String),
    Body(Vec<u8>),
    Trailers(String),
    Tunnel(Vec<u8>),
    End,
}

fn escaped(parts: &[&[u8]], headers: &Headers) -> String {
    let mut bytes = parts.join(&b' ');
    bytes.extend_from_slice(b"\n");
    for (name, value) in headers.iter() {
        bytes.extend_from_slice(&[name, b"=", value, b"\n"].concat());
    }
    bytes.escape_ascii().to_string().replace("\\n", "\n")
}

fn push(all: &mut Vec<Recorded>, recorded: Recorded) {
    match (all.last_mut(), recorded) {
        (Some(Recorded::Body(before)), Recorded::Body(more)) => before.extend(more),
        (Some(Recorded::Tunnel(before)), Recorded::Tunnel(more)) => before.extend(more),
        (_, recorded) => all.push(recorded),
    }
}

fn of_request(event: RequestEvent<'_>) -> Recorded {
    match event {
        RequestEvent::Head(head, framing) => {
            let parts = [head.method(), head.target(), head.version().as_bytes()];
            Recorded::Head(escaped(&parts, &head.headers), framing)
        }
        RequestEvent::Body(bytes) => Recorded::Body(bytes.to_vec()),
        RequestEvent::Trailers(trailers) => Recorded::Trailers(escaped(&[], &trailers)),
        RequestEvent::Tunnel(bytes) => Recorded::Tunnel(bytes.to_vec()),
        RequestEvent::End => Recorded::End,
    }
}

fn of_response(event: ResponseEvent<'_>) -> Recorded {
    let text = |head: &http1::ResponseHead| {
        let status = head.status().to_string();
        escaped(&[head.version().as_bytes(), status.as_bytes(), head.reason()], &head.headers)
    };
    match event {
        ResponseEvent::Head(head, framing) => Recorded::Head(text(&head), framing),
        ResponseEvent::Interim(head) => Recorded::Interim(text(&head)),
        ResponseEvent::Body(bytes) => Recorded::Body(bytes.to_vec()),
        ResponseEvent::Trailers(trailers) => Recorded::Trailers(escaped(&[], &trailers)),
        ResponseEvent::Tunnel(bytes) => Recorded::Tunnel(bytes.to_vec()),
        ResponseEvent::End => Recorded::End,
    }
}

/// Returns the pieces of `bytes` between the cuts, which need not be sorted.
pub fn pieces<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    cuts.push(bytes.len());
    let mut from = 0;
    cuts.iter().map(|&to| &bytes[std::mem::replace(&mut from, to)..to]).collect()
}

/// Decodes all bytes of a client, then the end. Requests to switch protocols get the decision
/// `switch`.
pub fn requests(pieces: &[&[u8]], switch: Switch) -> (Vec<Recorded>, Result<(), Error>) {
    let (mut decoder, mut all) = (RequestDecoder::new(), Vec::new());
    for mut piece in pieces.iter().copied() {
        loop {
            let offset = decoder.offset();
            let step = match decoder.decode(piece) {
                Ok(step) => step,
                Err(error) => {
                    assert_eq!(decoder.decode(b"GET"), Err(error), "it stays refused");
                    return (all, Err(error));
                }
            };
            assert_eq!(decoder.offset(), offset + step.consumed as u64);
            piece = &piece[step.consumed..];
            match step.event {
                Some(event) => push(&mut all, of_request(event)),
                None if decoder.awaits_switch() => decoder.switch(switch),
                None => break,
            }
        }
        assert!(piece.is_empty(), "everything is consumed");
    }
    let end = decoder.eof();
    (all, end)
}

/// Decodes all bytes of a server in response to these requests, then the end.
pub fn responses(pieces: &[&[u8]], traits: &[RequestTraits]) -> (Vec<Recorded>, Result<(), Error>) {
    let (mut decoder, mut all) = (ResponseDecoder::new(), Vec::new());
    let mut traits = traits.iter();
    for mut piece in pieces.iter().copied() {
        loop {
            if decoder.awaits_request()
                && let Some(traits) = traits.next()
            {
                assert!(decoder.expect(*traits));
            }
            let step = match decoder.decode(piece) {
                Ok(step) => step,
                Err(error) => {
                    assert_eq!(decoder.decode(b"HTTP"), Err(error), "it stays refused");
                    return (all, Err(error));
                }
            };
            piece = &piece[step.consumed..];
            match step.event {
                Some(event) => push(&mut all, of_response(event)),
                None => break,
            }
        }
        assert!(piece.is_empty(), "everything is consumed");
    }
    let end = decoder.eof();
    all.extend(end.as_ref().ok().and_then(|event| event.as_ref()).map(|_| Recorded::End));
    (all, end.map(|_| ()))
}

/// Returns the body slices, in order.
pub fn bodies(all: &[Recorded]) -> Vec<&[u8]> {
    all.iter()
        .filter_map(|recorded| match recorded {
            Recorded::Body(bytes) => Some(&bytes[..]),
            _ => None,
        })
        .collect()
}
