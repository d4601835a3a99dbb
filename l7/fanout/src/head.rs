//! Heads that this crate writes.

use crate::limits::RETRY_AFTER_SECONDS;
use http1::{
    Body, EncodeError, Encoder, Framing, Headers, MethodClass, RequestHead, RequestTraits,
};
use http1::{ResponseHead, Version};

/// Traits of every request handled here: GET, without an upgrade.
pub(crate) const GET_TRAITS: RequestTraits =
    RequestTraits { method: MethodClass::Other, upgrade: false };

/// Encodes a request to an origin, with its framing fields unchanged.
pub(crate) fn request(head: &RequestHead) -> Vec<u8> {
    let mut out = Vec::new();
    for part in [head.method(), b" ", head.target(), b" ", head.version().as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
    }
    head.headers.serialize(&mut out);
    out.extend_from_slice(b"\r\n");
    out
}

/// Encodes a request as the last of its connection, so that no other one can follow unseen. A
/// request to switch protocols is unchanged: the connection is not reused after it.
pub(crate) fn last_request(head: &RequestHead) -> Vec<u8> {
    let mut head = head.clone();
    if !head.asks_to_switch() && head.headers.replace(b"Connection", b"close").is_err() {
        // The limits of the head are exceeded: both fields are removed, as the framing fields
        // matter more.
        head.headers.remove(b"Keep-Alive");
        head.headers.remove(b"Connection");
    }
    request(&head)
}

/// Returns true if the bytes after a request belong to it: a body, or another protocol.
pub(crate) fn has_more(head: &RequestHead) -> bool {
    let fields: [&[u8]; 2] = [b"Content-Length", b"Transfer-Encoding"];
    head.asks_to_switch() || fields.iter().any(|name| head.headers.contains(name))
}

/// Encodes the head of a listener's response; returns true with it if the body is chunked. The
/// connection ends after the response; a client of HTTP/1.0 is answered in its own version.
pub(crate) fn response(
    head: &ResponseHead,
    body: Framing,
    client: Version,
) -> Result<(Vec<u8>, bool), EncodeError> {
    let version = client.min(head.version());
    let mut head = ResponseHead::new(version, head.status(), head.reason(), head.headers.clone())
        .map_err(EncodeError::Head)?;
    head.headers.replace(b"Connection", b"close")?;
    let body = match body {
        // Body of a live stream, or of a response that lasts until the origin's connection ends:
        // chunks let the listener detect a truncated body.
        Framing::UntilClose => Body::Unknown,
        framing => Body::Unchanged(framing),
    };
    let framing = Framing::for_response(&head, GET_TRAITS, client, body);
    let mut out = Vec::new();
    Encoder::response(&head, GET_TRAITS, framing, &mut out)?;
    Ok((out, framing == Framing::Chunked))
}

/// Reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A limit is reached.
    Busy,
    /// The server was not reached.
    Unreachable,
}

/// Returns a complete response with the refusal: RFC 9110, sections 15.6.3 and 15.6.4.
pub(crate) fn refusal(why: Refused, client: Version) -> Vec<u8> {
    let (status, reason): (_, &[u8]) = match why {
        Refused::Busy => (503, b"Service Unavailable"),
        Refused::Unreachable => (502, b"Bad Gateway"),
    };
    let mut headers = Headers::new();
    let retry_after = RETRY_AFTER_SECONDS.to_string();
    let added = match why {
        Refused::Busy => headers.add(b"Retry-After", retry_after.as_bytes()),
        Refused::Unreachable => Ok(()),
    };
    let head = ResponseHead::new(client, status, reason, headers).map_err(EncodeError::Head);
    let written = added
        .map_err(EncodeError::Edit)
        .and(head)
        .and_then(|head| response(&head, Framing::Length(0), client));
    // Without a head the connection ends, which has the same meaning.
    written.map(|(out, _)| out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in fields {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        headers
    }

    #[test]
    fn each_version_has_its_framing() {
        let head =
            ResponseHead::new(Version::Http11, 200, b"OK", headers(&[("icy-name", "a")])).unwrap();
        let of = |body, client| {
            let (out, is_chunked) = response(&head, body, client).unwrap();
            (String::from_utf8(out).unwrap(), is_chunked)
        };
        let (out, is_chunked) = of(Framing::UntilClose, Version::Http11);
        let expected = "HTTP/1.1 200 OK\r\nicy-name: a\r\nConnection: close\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
        assert_eq!((out.as_str(), is_chunked), (expected, true));
        let (out, is_chunked) = of(Framing::UntilClose, Version::Http10);
        let expected = "HTTP/1.0 200 OK\r\nicy-name: a\r\nConnection: close\r\n\r\n";
        assert_eq!((out.as_str(), is_chunked), (expected, false));
        let (out, is_chunked) = of(Framing::Length(5), Version::Http11);
        assert!(out.contains("\r\nContent-Length: 5\r\n") && !is_chunked);
    }

    #[test]
    fn a_refusal_says_when_to_retry() {
        let out = String::from_utf8(refusal(Refused::Busy, Version::Http11)).unwrap();
        let expected = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\n\
                        Connection: close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(out, expected);
        let out = String::from_utf8(refusal(Refused::Unreachable, Version::Http10)).unwrap();
        assert_eq!(
            out,
            "HTTP/1.0 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
    }

    #[test]
    fn a_relayed_request_is_the_last_of_its_connection() {
        let fields = [("Host", "a"), ("Connection", "keep-alive"), ("Range", "bytes=0-")];
        let head = RequestHead::new(b"GET", b"/x", Version::Http11, headers(&fields)).unwrap();
        let expected =
            b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: bytes=0-\r\n\r\n";
        assert_eq!(last_request(&head), expected);
        let fields = [("Host", "a"), ("Connection", "upgrade"), ("Upgrade", "websocket")];
        let head = RequestHead::new(b"GET", b"/x", Version::Http11, headers(&fields)).unwrap();
        assert_eq!(last_request(&head), request(&head));
    }
}
