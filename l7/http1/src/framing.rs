//! Message body framing: how a head delimits the body (RFC 9112, section 6.3), and the framing in
//! which a body, perhaps edited, is sent.

use crate::connection::{upgrades, upgrades_otherwise};
use crate::error::Reason;
use crate::grammar::{elements, length};
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Headers;
use crate::version::Version;

/// Delimitation of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body: the message is its head.
    None,
    /// Body of this many bytes.
    Length(u64),
    /// Chunks, optionally with trailers.
    Chunked,
    /// Body that lasts until the connection ends: responses only.
    UntilClose,
    /// Another protocol from here on: after 101, or 2xx to CONNECT.
    Tunnel,
}

/// Traits of a request that determine the framing of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTraits {
    /// Effect of the method on the response's body.
    pub method: MethodClass,
    /// True if the request asked for an upgrade.
    pub upgrade: bool,
}

/// Class of a method by its effect on the response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodClass {
    /// HEAD: the response has no body, whatever its head says.
    Head,
    /// CONNECT: a response with 2xx turns the connection into a tunnel.
    Connect,
    /// Any other method: no effect.
    Other,
}

impl RequestTraits {
    /// Returns the traits of a request.
    #[must_use]
    pub fn by(head: &RequestHead) -> Self {
        let method = match head.method() {
            b"HEAD" => MethodClass::Head,
            b"CONNECT" => MethodClass::Connect,
            _ => MethodClass::Other,
        };
        Self { method, upgrade: upgrades(head.version(), &head.headers).next().is_some() }
    }

    /// Returns true if the connection may switch to another protocol.
    #[must_use]
    pub fn may_switch(self) -> bool {
        self.upgrade || self.method == MethodClass::Connect
    }

    /// Returns true if a response with this status has no body, whatever its head says. Not
    /// meaningful for statuses that make a tunnel.
    #[must_use]
    pub fn has_no_body(self, status: u16) -> bool {
        self.method == MethodClass::Head || status < 200 || matches!(status, 204 | 304)
    }

    /// Returns true if a response with this status makes the connection a tunnel.
    #[must_use]
    pub fn is_tunnel(self, status: u16) -> bool {
        status == 101 || (self.method == MethodClass::Connect && (200..300).contains(&status))
    }
}

/// Body delimitation as Content-Length and Transfer-Encoding give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramingFields {
    Nothing,
    Length(u64),
    Chunked,
}

/// Defect and index of the field that has it; no index for the first line.
type At = (Option<usize>, Reason);

/// Returns the framing of a request.
pub(crate) fn of_request(head: &RequestHead) -> Result<Framing, At> {
    let framing = match framing_fields(head.version(), &head.headers)? {
        FramingFields::Nothing => Framing::None,
        FramingFields::Length(length) => Framing::Length(length),
        FramingFields::Chunked => Framing::Chunked,
    };
    let has_body = !matches!(framing, Framing::None | Framing::Length(0));
    if has_body && matches!(head.method(), b"CONNECT" | b"TRACE") {
        return Err((framing_field(&head.headers), Reason::BodyForbidden));
    }
    Ok(framing)
}

/// Returns the framing of a response.
pub(crate) fn of_response(head: &ResponseHead, traits: RequestTraits) -> Result<Framing, At> {
    let (status, headers) = (head.status(), &head.headers);
    let switches = || upgrades(head.version(), headers).next().is_some();
    if status == 101 && !(traits.upgrade && switches() && !upgrades_otherwise(headers)) {
        return Err((None, Reason::SwitchUnasked));
    }
    if traits.is_tunnel(status) {
        // RFC 9110, section 9.3.6: a client ignores the framing fields here, so they are not
        // checked.
        return Ok(Framing::Tunnel);
    }
    // RFC 9112, section 6.3: these have no body, regardless of the fields. 1xx and 204 must have
    // neither a length nor chunks; such fields are not forwarded.
    if status < 200 || status == 204 {
        return Ok(Framing::None);
    }
    let framing_fields = framing_fields(head.version(), headers)?;
    if traits.has_no_body(status) {
        return Ok(Framing::None);
    }
    Ok(match framing_fields {
        FramingFields::Nothing => Framing::UntilClose,
        FramingFields::Length(length) => Framing::Length(length),
        FramingFields::Chunked => Framing::Chunked,
    })
}

/// Returns true if framing fields announce a body, which a response without one must not have.
pub(crate) fn announces_body(headers: &Headers) -> bool {
    headers.contains(b"Transfer-Encoding")
        || headers.get_all(b"Content-Length").any(|value| length(value) != Some(0))
}

fn framing_field(headers: &Headers) -> Option<usize> {
    headers.index(b"Transfer-Encoding").or_else(|| headers.index(b"Content-Length"))
}

/// Reads Content-Length and Transfer-Encoding.
pub(crate) fn framing_fields(version: Version, headers: &Headers) -> Result<FramingFields, At> {
    let coding = headers.index(b"Transfer-Encoding");
    let number = headers.index(b"Content-Length");
    let at = coding.max(number);
    let read = match (coding, number) {
        (None, None) => Ok(FramingFields::Nothing),
        (Some(_), Some(_)) => Err(Reason::LengthAndCoding),
        (None, Some(_)) => content_length(headers).map(FramingFields::Length),
        (Some(_), None) if version == Version::Http10 => Err(Reason::CodingInHttp10),
        (Some(_), None) => check_codings(headers).map(|()| FramingFields::Chunked),
    };
    read.map_err(|reason| (at, reason))
}

/// Merges several equal Content-Length values, in fields or as a list, into one: RFC 9112, section
/// 6.3, and RFC 9110, section 8.6. The forwarded message then has one value, which every recipient
/// reads alike. Values that differ are left unchanged, to be refused.
pub(crate) fn merge_lengths(headers: &mut Headers) {
    const NAME: &[u8] = b"Content-Length";
    if !headers.contains(NAME) {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(NAME).flat_map(elements).collect();
    let [first, others @ ..] = &all[..] else { return };
    if others.is_empty() || length(first).is_none() || others.iter().any(|value| value != first) {
        return;
    }
    let first = first.to_vec();
    // The value is shorter than the one it replaces.
    let _ = headers.replace(NAME, &first);
}

/// Returns the single length of a message.
fn content_length(headers: &Headers) -> Result<u64, Reason> {
    let mut all = headers.get_all(b"Content-Length");
    let value = all.next().unwrap_or_default();
    if all.next().is_some() || value.contains(&b',') {
        return Err(Reason::LengthRepeated);
    }
    length(value).ok_or(Reason::Length)
}

/// Checks that all Transfer-Encoding fields together are `chunked`.
fn check_codings(headers: &Headers) -> Result<(), Reason> {
    let codings = || headers.get_all(b"Transfer-Encoding").flat_map(elements);
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    if codings().any(|coding| coding.is_empty()) {
        return Err(Reason::Coding);
    }
    if !codings().last().is_some_and(is_chunked) {
        return Err(Reason::CodingNotChunked);
    }
    if codings().filter(|coding| is_chunked(coding)).count() > 1 {
        return Err(Reason::CodingRepeated);
    }
    if codings().count() > 1 {
        return Err(Reason::CodingUnknown);
    }
    Ok(())
}

/// Knowledge about a body's length before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The body is forwarded as received, in the framing that the decoder found.
    Unchanged(Framing),
    /// The body has this many bytes: it was replaced, or buffered as a whole.
    Known(u64),
    /// The length is not known yet.
    Unknown,
}

/// A request of HTTP/1.0 cannot have a body of unknown length: buffer the body first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of HTTP/1.0 needs the length of its body")]
pub struct LengthNeeded;

impl Framing {
    /// Returns the framing for the body of a request.
    ///
    /// # Errors
    /// The version has no framing for an unknown length.
    pub fn for_request(version: Version, body: Body) -> Result<Self, LengthNeeded> {
        match (body, version) {
            (Body::Unchanged(framing @ (Self::None | Self::Length(_))), _) => Ok(framing),
            (Body::Known(length), _) => Ok(Self::Length(length)),
            (Body::Unchanged(Self::Tunnel), _) => Ok(Self::None),
            (_, Version::Http11) => Ok(Self::Chunked),
            (_, Version::Http10) => Err(LengthNeeded),
        }
    }

    /// Returns the framing for the body of a response to a client of this version. The head's own
    /// version counts too, as HTTP/1.0 has no chunks. A response without a body gets none, whatever
    /// `body` is.
    #[must_use]
    pub fn for_response(
        head: &ResponseHead,
        traits: RequestTraits,
        client: Version,
        body: Body,
    ) -> Self {
        if traits.is_tunnel(head.status()) {
            return Self::Tunnel;
        }
        if traits.has_no_body(head.status()) {
            return Self::None;
        }
        match (body, client.min(head.version())) {
            (Body::Unchanged(framing @ (Self::Length(_) | Self::UntilClose)), _) => framing,
            (Body::Known(length), _) => Self::Length(length),
            (Body::Unchanged(Self::None), _) => Self::Length(0),
            (_, Version::Http11) => Self::Chunked,
            (_, Version::Http10) => Self::UntilClose,
        }
    }
}
