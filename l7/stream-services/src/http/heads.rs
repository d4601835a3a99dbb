//! Conversion of heads to header maps for modules, and back after edits.
//!
//! A head that a module has not changed is sent as received.

use http1::{Body, EditError, Headers, Reason, RequestHead, ResponseHead, Target};
use proxy_wasm::{HeaderMap, MapError};

/// An edited head is not valid: a fault of the module's author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Field(EditError),
    Head(Reason),
    /// A pseudo-header is missing or invalid.
    Pseudo,
}

impl From<EditError> for Refused {
    fn from(error: EditError) -> Self {
        Self::Field(error)
    }
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Self::Head(reason)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Field(error) => error.fmt(f),
            Self::Head(reason) => reason.fmt(f),
            Self::Pseudo => f.write_str("a pseudo-header is missing or cannot be read"),
        }
    }
}

const HOST: &[u8] = b"host";

/// Usual number of fields of browsers' and servers' heads, and their bytes.
const FIELDS_USUAL: usize = 24;
const FIELD_BYTES_USUAL: usize = 1_024;

/// Splits an absolute target into the part before its path, and the path.
fn split(target: &[u8]) -> (&[u8], &[u8]) {
    let scheme = target.windows(3).position(|three| three == b"://").map_or(0, |at| at + 3);
    let is_end = |byte: &u8| matches!(byte, b'/' | b'?');
    let end = target[scheme..].iter().position(is_end).map_or(target.len(), |at| scheme + at);
    target.split_at(end)
}

fn path(head: &RequestHead) -> Option<&[u8]> {
    match Target::parse(head.method(), head.target()) {
        Ok(Target::Authority(_)) => None,
        Ok(Target::Absolute { .. }) => Some(match split(head.target()).1 {
            b"" => b"/",
            path => path,
        }),
        _ => Some(head.target()),
    }
}

/// Returns Host, or the target's authority if there is none: HTTP/1.0 has absolute targets without
/// Host.
fn authority(head: &RequestHead) -> Option<&[u8]> {
    head.headers.get(HOST).or_else(|| match Target::parse(head.method(), head.target()) {
        Ok(Target::Absolute { authority, .. } | Target::Authority(authority)) => Some(authority),
        _ => None,
    })
}

/// Returns the pseudo-headers first, then all fields except Host.
fn request_fields(head: &RequestHead) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pseudo: [(&[u8], Option<&[u8]>); 4] = [
        (b":authority", authority(head)),
        (b":path", path(head)),
        (b":method", Some(head.method())),
        (b":scheme", Some(b"http")),
    ];
    let pseudo = pseudo.into_iter().filter_map(|(name, value)| Some((name, value?)));
    pseudo.chain(head.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(HOST)))
}

pub(crate) fn request_map(head: &RequestHead) -> Result<HeaderMap, MapError> {
    map(request_fields(head))
}

/// Returns the head of a request as edited by a module, or `None` if it is unchanged.
pub(crate) fn edited_request(
    map: &HeaderMap,
    head: &RequestHead,
) -> Result<Option<RequestHead>, Refused> {
    if map.iter().eq(request_fields(head)) {
        return Ok(None);
    }
    let method = map.get(b":method").ok_or(Refused::Pseudo)?;
    // A field named Host overrides `:authority`.
    let authority = map.get(HOST).or_else(|| map.get(b":authority"));
    let path = map.get(b":path");
    let (target, has_authority) = match Target::parse(head.method(), head.target()) {
        Ok(Target::Authority(_)) => (authority.ok_or(Refused::Pseudo)?.to_vec(), true),
        Ok(Target::Absolute { scheme, .. }) => {
            let authority = authority.ok_or(Refused::Pseudo)?;
            ([scheme, b"://", authority, path.ok_or(Refused::Pseudo)?].concat(), true)
        }
        _ => (path.ok_or(Refused::Pseudo)?.to_vec(), false),
    };
    // HTTP/1.0 with an absolute target needs no Host, if there was none.
    let needs_host = head.headers.contains(HOST) || map.get(HOST).is_some() || !has_authority;
    let mut headers = Headers::new();
    if let Some(authority) = authority.filter(|_| needs_host) {
        headers.add(b"Host", authority)?;
    }
    add_fields(map, &mut headers)?;
    Ok(Some(RequestHead::new(method, &target, head.version(), headers)?))
}

fn response_fields<'h>(
    status: &'h [u8],
    head: &'h ResponseHead,
) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    std::iter::once((&b":status"[..], status)).chain(head.headers.iter())
}

pub(crate) fn response_map(head: &ResponseHead) -> Result<HeaderMap, MapError> {
    map(response_fields(&digits(head.status()), head))
}

/// Returns the three digits of a status.
fn digits(status: u16) -> [u8; 3] {
    [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + (digit % 10) as u8)
}

/// Returns the head of a response as edited by a module, or `None` if it is unchanged.
pub(crate) fn edited_response(
    map: &HeaderMap,
    head: &ResponseHead,
) -> Result<Option<ResponseHead>, Refused> {
    if map.iter().eq(response_fields(&digits(head.status()), head)) {
        return Ok(None);
    }
    let status = map.get(b":status").and_then(|text| std::str::from_utf8(text).ok());
    let status: u16 = status.and_then(|text| text.parse().ok()).ok_or(Refused::Pseudo)?;
    // A final response must remain final, and an edit must not switch protocols.
    if status != head.status() && (status < 200 || head.status() < 200) {
        return Err(Refused::Pseudo);
    }
    let reason = if status == head.status() { head.reason() } else { reason(status) };
    let mut headers = Headers::new();
    add_fields(map, &mut headers)?;
    Ok(Some(ResponseHead::new(head.version(), status, reason, headers)?))
}

fn map<'h>(fields: impl Iterator<Item = (&'h [u8], &'h [u8])>) -> Result<HeaderMap, MapError> {
    let mut map = HeaderMap::with_capacity(FIELDS_USUAL, FIELD_BYTES_USUAL);
    for (name, value) in fields {
        map.add(name, value)?;
    }
    Ok(map)
}

/// Adds all fields of a map that are no pseudo-headers.
pub(crate) fn add_fields(map: &HeaderMap, headers: &mut Headers) -> Result<(), EditError> {
    let fields = map.iter().filter(|(name, _)| !name.starts_with(b":"));
    for (name, value) in fields.filter(|(name, _)| !name.eq_ignore_ascii_case(HOST)) {
        headers.add(name, value.trim_ascii())?;
    }
    Ok(())
}

/// Converts trailers from a module's map.
pub(crate) fn trailers(map: &HeaderMap) -> Result<Headers, EditError> {
    let mut headers = Headers::new();
    add_fields(map, &mut headers)?;
    Ok(headers)
}

/// Converts trailers to a map for a module.
pub(crate) fn trailers_map(trailers: &Headers) -> HeaderMap {
    // Fewer than the limit of a map, by `http1::limits`.
    trailers.iter().collect()
}

/// Fields of a head that describe the original body, and are not valid for pictures.
const BODY_FIELDS: [&[u8]; 10] = [
    b"content-length",
    b"content-range",
    b"accept-ranges",
    b"etag",
    b"last-modified",
    b"content-md5",
    b"digest",
    b"content-digest",
    b"repr-digest",
    b"content-encoding",
];

/// Removes the fields that are not valid for pictures; returns the body to send.
pub(super) fn describe_pictures(head: &mut ResponseHead) -> Body {
    for name in BODY_FIELDS {
        head.headers.remove(name);
    }
    Body::Unknown
}

const _: () = assert!(http1::limits::TRAILERS_COUNT_MAX <= proxy_wasm::HEADERS_MAX);
const _: () = assert!(http1::limits::TRAILERS_LENGTH_MAX <= proxy_wasm::HEADER_BYTES_MAX);
/// Names of the pseudo-headers of a request, and `http`.
const PSEUDO_LENGTH: usize = ":authority:path:method:schemehttp".len();
/// Every valid head, received or edited, fits a map.
const _: () = {
    use http1::limits::{EDITED_COUNT_MAX, EDITED_LENGTH_MAX, START_LINE_LENGTH_MAX};
    let bytes = EDITED_LENGTH_MAX + START_LINE_LENGTH_MAX + PSEUDO_LENGTH;
    assert!(EDITED_COUNT_MAX + 4 <= proxy_wasm::HEADERS_MAX);
    assert!(bytes <= proxy_wasm::HEADER_BYTES_MAX);
};

/// Returns the standard reason phrase of a status: RFC 9110, section 15. Programs ignore it.
pub(crate) const fn reason(status: u16) -> &'static [u8] {
    match status {
        200 => b"OK",
        201 => b"Created",
        202 => b"Accepted",
        204 => b"No Content",
        206 => b"Partial Content",
        301 => b"Moved Permanently",
        302 => b"Found",
        303 => b"See Other",
        304 => b"Not Modified",
        307 => b"Temporary Redirect",
        308 => b"Permanent Redirect",
        400 => b"Bad Request",
        401 => b"Unauthorized",
        403 => b"Forbidden",
        404 => b"Not Found",
        405 => b"Method Not Allowed",
        409 => b"Conflict",
        413 => b"Content Too Large",
        429 => b"Too Many Requests",
        431 => b"Request Header Fields Too Large",
        500 => b"Internal Server Error",
        502 => b"Bad Gateway",
        503 => b"Service Unavailable",
        504 => b"Gateway Timeout",
        _ => b"",
    }
}
