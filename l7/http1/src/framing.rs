//! Where a body ends: what a head says of it (RFC 9112, section 6.3), and how a body that may
//! have been edited is sent.

use crate::connection::{upgrades, upgrades_otherwise};
use crate::error::Reason;
use crate::grammar::{elements, length};
use crate::head::{RequestHead, ResponseHead};
use crate::headers::Headers;
use crate::version::Version;

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none: the message is its head.
    None,
    /// So many bytes.
    Length(u64),
    /// Chunks, and maybe trailers.
    Chunked,
    /// All that comes until the connection ends: responses only.
    UntilClose,
    /// The connection is another protocol's from here on: 101, or 2xx to CONNECT.
    Tunnel,
}

/// What a response's framing needs to know of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What the method says of the response's body.
    pub method: AskedBy,
    /// Whether Upgrade was asked for.
    pub upgrade: bool,
}

/// What a method says of the response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// The response has no body, whatever its head says.
    Head,
    /// With 2xx the connection is a tunnel.
    Connect,
    /// Any other: nothing.
    Other,
}

impl Asked {
    /// By this request.
    #[must_use]
    pub fn by(head: &RequestHead) -> Self {
        let method = match head.method() {
            b"HEAD" => AskedBy::Head,
            b"CONNECT" => AskedBy::Connect,
            _ => AskedBy::Other,
        };
        Self { method, upgrade: upgrades(head.version(), &head.headers).next().is_some() }
    }

    /// Whether the connection may become another protocol's.
    #[must_use]
    pub fn may_switch(self) -> bool {
        self.upgrade || self.method == AskedBy::Connect
    }

    /// Whether a response of this status has no body, whatever its head says. Not for what
    /// makes a tunnel.
    #[must_use]
    pub fn has_no_body(self, status: u16) -> bool {
        self.method == AskedBy::Head || status < 200 || matches!(status, 204 | 304)
    }

    /// Whether a response of this status makes the connection a tunnel.
    #[must_use]
    pub fn is_tunnel(self, status: u16) -> bool {
        status == 101 || (self.method == AskedBy::Connect && (200..300).contains(&status))
    }
}

/// What framing fields say, one beside the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Nothing,
    Length(u64),
    Chunked,
}

/// What is wrong, and at which field; none is the first line.
type At = (Option<usize>, Reason);

/// The framing of a request.
pub(crate) fn of_request(head: &RequestHead) -> Result<Framing, At> {
    let framing = match said(head.version(), &head.headers)? {
        Said::Nothing => Framing::None,
        Said::Length(length) => Framing::Length(length),
        Said::Chunked => Framing::Chunked,
    };
    let has_body = !matches!(framing, Framing::None | Framing::Length(0));
    if has_body && matches!(head.method(), b"CONNECT" | b"TRACE") {
        return Err((framing_field(&head.headers), Reason::BodyForbidden));
    }
    Ok(framing)
}

/// The framing of a response.
pub(crate) fn of_response(head: &ResponseHead, asked: Asked) -> Result<Framing, At> {
    let (status, headers) = (head.status(), &head.headers);
    let switches = || upgrades(head.version(), headers).next().is_some();
    if status == 101 && !(asked.upgrade && switches() && !upgrades_otherwise(headers)) {
        return Err((None, Reason::SwitchUnasked));
    }
    if asked.is_tunnel(status) {
        // RFC 9110, section 9.3.6: a client ignores what they say, so they are not looked at.
        return Ok(Framing::Tunnel);
    }
    // RFC 9112, section 6.3: these have no body, regardless of the fields. A length or chunks in
    // 1xx and 204, which must have neither, do not go on.
    if status < 200 || status == 204 {
        return Ok(Framing::None);
    }
    let said = said(head.version(), headers)?;
    if asked.has_no_body(status) {
        return Ok(Framing::None);
    }
    Ok(match said {
        Said::Nothing => Framing::UntilClose,
        Said::Length(length) => Framing::Length(length),
        Said::Chunked => Framing::Chunked,
    })
}

/// Whether fields speak of a body, which a response without one must not have.
pub(crate) fn announces_body(headers: &Headers) -> bool {
    headers.contains(b"Transfer-Encoding")
        || headers.get_all(b"Content-Length").any(|value| length(value) != Some(0))
}

fn framing_field(headers: &Headers) -> Option<usize> {
    headers.index(b"Transfer-Encoding").or_else(|| headers.index(b"Content-Length"))
}

/// Reads Content-Length and Transfer-Encoding.
pub(crate) fn said(version: Version, headers: &Headers) -> Result<Said, At> {
    let coding = headers.index(b"Transfer-Encoding");
    let number = headers.index(b"Content-Length");
    let at = coding.max(number);
    let read = match (coding, number) {
        (None, None) => Ok(Said::Nothing),
        (Some(_), Some(_)) => Err(Reason::LengthAndCoding),
        (None, Some(_)) => content_length(headers).map(Said::Length),
        (Some(_), None) if version == Version::Http10 => Err(Reason::CodingInHttp10),
        (Some(_), None) => check_codings(headers).map(|()| Said::Chunked),
    };
    read.map_err(|reason| (at, reason))
}

/// Makes one Content-Length of several that say the same, in fields or as a list: RFC 9112,
/// section 6.3, and RFC 9110, section 8.6. What goes on has one, so that nobody behind this node
/// can read it in another way. Others are left as they are, to be refused.
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
    // It is shorter than what stood there.
    let _ = headers.replace(NAME, &first);
}

/// The one length of a message.
fn content_length(headers: &Headers) -> Result<u64, Reason> {
    let mut all = headers.get_all(b"Content-Length");
    let value = all.next().unwrap_or_default();
    if all.next().is_some() || value.contains(&b',') {
        return Err(Reason::LengthRepeated);
    }
    length(value).ok_or(Reason::Length)
}

/// Whether all Transfer-Encoding fields together are `chunked`.
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

/// What is known of a body before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// It goes on as it came, in the framing that the decoder found.
    Unchanged(Framing),
    /// So many bytes: it was replaced, or gathered as a whole.
    Known(u64),
    /// Nobody knows yet how long it is.
    Unknown,
}

/// A request of HTTP/1.0 cannot have a body of unknown length: gather it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of HTTP/1.0 needs the length of its body")]
pub struct LengthNeeded;

impl Framing {
    /// How the body of a request is sent.
    ///
    /// # Errors
    /// When the version cannot say so: the length has to be known.
    pub fn for_request(version: Version, body: Body) -> Result<Self, LengthNeeded> {
        match (body, version) {
            (Body::Unchanged(framing @ (Self::None | Self::Length(_))), _) => Ok(framing),
            (Body::Known(length), _) => Ok(Self::Length(length)),
            (Body::Unchanged(Self::Tunnel), _) => Ok(Self::None),
            (_, Version::Http11) => Ok(Self::Chunked),
            (_, Version::Http10) => Err(LengthNeeded),
        }
    }

    /// How the body of a response is sent to a client of this version; the head's own version
    /// counts too, as HTTP/1.0 has no chunks. What has no body gets none, whatever `body` is.
    #[must_use]
    pub fn for_response(head: &ResponseHead, asked: Asked, client: Version, body: Body) -> Self {
        if asked.is_tunnel(head.status()) {
            return Self::Tunnel;
        }
        if asked.has_no_body(head.status()) {
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
