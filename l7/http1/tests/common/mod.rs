//! Runs decoders over bytes that are cut anywhere, and writes down what they say.

#![allow(dead_code, reason = "each test file uses some of it")]

pub mod node;
pub mod relay;
pub mod table;

use http1::{
    Asked, AskedBy, Error, Framing, Headers, RequestDecoder, RequestEvent, ResponseDecoder,
    ResponseEvent, Switch,
};

pub const GET: Asked = Asked { method: AskedBy::Other, upgrade: false };
pub const HEAD: Asked = Asked { method: AskedBy::Head, upgrade: false };
pub const CONNECT: Asked = Asked { method: AskedBy::Connect, upgrade: false };
pub const UPGRADE: Asked = Asked { method: AskedBy::Other, upgrade: true };

/// What decoders say, without where bodies were cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
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

fn push(all: &mut Vec<Said>, said: Said) {
    match (all.last_mut(), said) {
        (Some(Said::Body(before)), Said::Body(more)) => before.extend(more),
        (Some(Said::Tunnel(before)), Said::Tunnel(more)) => before.extend(more),
        (_, said) => all.push(said),
    }
}

fn of_request(event: RequestEvent<'_>) -> Said {
    match event {
        RequestEvent::Head(head, framing) => {
            let parts = [head.method(), head.target(), head.version().as_bytes()];
            Said::Head(escaped(&parts, &head.headers), framing)
        }
        RequestEvent::Body(bytes) => Said::Body(bytes.to_vec()),
        RequestEvent::Trailers(trailers) => Said::Trailers(escaped(&[], &trailers)),
        RequestEvent::Tunnel(bytes) => Said::Tunnel(bytes.to_vec()),
        RequestEvent::End => Said::End,
    }
}

fn of_response(event: ResponseEvent<'_>) -> Said {
    let text = |head: &http1::ResponseHead| {
        let status = head.status().to_string();
        escaped(&[head.version().as_bytes(), status.as_bytes(), head.reason()], &head.headers)
    };
    match event {
        ResponseEvent::Head(head, framing) => Said::Head(text(&head), framing),
        ResponseEvent::Interim(head) => Said::Interim(text(&head)),
        ResponseEvent::Body(bytes) => Said::Body(bytes.to_vec()),
        ResponseEvent::Trailers(trailers) => Said::Trailers(escaped(&[], &trailers)),
        ResponseEvent::Tunnel(bytes) => Said::Tunnel(bytes.to_vec()),
        ResponseEvent::End => Said::End,
    }
}

/// The pieces between the cuts, which need not be in order.
pub fn pieces<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.sort_unstable();
    cuts.push(bytes.len());
    let mut from = 0;
    cuts.iter().map(|&to| &bytes[std::mem::replace(&mut from, to)..to]).collect()
}

/// All that a client sends, then the end. Requests to switch are answered so.
pub fn requests(pieces: &[&[u8]], switch: Switch) -> (Vec<Said>, Result<(), Error>) {
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

/// All that a server sends in answer to these, then the end.
pub fn responses(pieces: &[&[u8]], asked: &[Asked]) -> (Vec<Said>, Result<(), Error>) {
    let (mut decoder, mut all) = (ResponseDecoder::new(), Vec::new());
    let mut asked = asked.iter();
    for mut piece in pieces.iter().copied() {
        loop {
            if decoder.awaits_request()
                && let Some(asked) = asked.next()
            {
                assert!(decoder.expect(*asked));
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
    all.extend(end.as_ref().ok().and_then(|event| event.as_ref()).map(|_| Said::End));
    (all, end.map(|_| ()))
}

/// The bodies, one after the other.
pub fn bodies(all: &[Said]) -> Vec<&[u8]> {
    all.iter()
        .filter_map(|said| match said {
            Said::Body(bytes) => Some(&bytes[..]),
            _ => None,
        })
        .collect()
}
