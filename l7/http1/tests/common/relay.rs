//! Relay without filters: encodes again each message that it decodes.

use http1::{
    Body, Encoder, Framing, Headers, RequestDecoder, RequestEvent, RequestTraits, ResponseDecoder,
    ResponseEvent, Switch, Version,
};

/// Returns the bytes for the server, up to where the client's bytes are refused.
pub fn requests(pieces: &[&[u8]]) -> Vec<u8> {
    let (mut decoder, mut out) = (RequestDecoder::new(), Vec::new());
    let (mut encoder, mut trailers) = (None::<Encoder>, Headers::new());
    for mut piece in pieces.iter().copied() {
        loop {
            let Ok(step) = decoder.decode(piece) else { return out };
            piece = &piece[step.consumed..];
            let writer = encoder.as_mut();
            match step.event {
                Some(RequestEvent::Head(head, framing)) => {
                    let body = Body::Unchanged(framing);
                    let framing = Framing::for_request(head.version(), body).unwrap();
                    encoder = Some(Encoder::request(&head, framing, &mut out).unwrap());
                }
                Some(RequestEvent::Body(bytes)) => {
                    writer.unwrap().write_body(bytes, &mut out).unwrap();
                }
                Some(RequestEvent::Trailers(fields)) => trailers = fields,
                Some(RequestEvent::End) => {
                    writer.unwrap().end(&std::mem::take(&mut trailers), &mut out).unwrap();
                }
                Some(RequestEvent::Tunnel(bytes)) => out.extend_from_slice(bytes),
                None if decoder.awaits_switch() => decoder.switch(Switch::Refused),
                None => break,
            }
        }
    }
    out
}

/// Returns the bytes for a client of this version, up to where the response is refused.
pub fn response(pieces: &[&[u8]], traits: RequestTraits, client: Version) -> Vec<u8> {
    let (mut decoder, mut out) = (ResponseDecoder::new(), Vec::new());
    let (mut encoder, mut trailers) = (None::<Encoder>, Headers::new());
    decoder.expect(traits);
    let mut handle = |event: ResponseEvent<'_>| match event {
        ResponseEvent::Interim(head) => {
            Encoder::response(&head, traits, Framing::None, &mut out).unwrap();
        }
        ResponseEvent::Head(head, framing) => {
            let body = Body::Unchanged(framing);
            let framing = Framing::for_response(&head, traits, client, body);
            encoder = Some(Encoder::response(&head, traits, framing, &mut out).unwrap());
        }
        ResponseEvent::Body(bytes) => {
            encoder.as_mut().unwrap().write_body(bytes, &mut out).unwrap();
        }
        ResponseEvent::Trailers(fields) => trailers = fields,
        ResponseEvent::End => {
            encoder.as_mut().unwrap().end(&std::mem::take(&mut trailers), &mut out).unwrap();
        }
        ResponseEvent::Tunnel(bytes) => {
            encoder.as_mut().unwrap().write_body(bytes, &mut out).unwrap();
        }
    };
    for mut piece in pieces.iter().copied() {
        loop {
            let Ok(step) = decoder.decode(piece) else { return out };
            piece = &piece[step.consumed..];
            let Some(event) = step.event else { break };
            handle(event);
        }
    }
    if let Ok(Some(event)) = decoder.eof() {
        handle(event);
    }
    out
}
