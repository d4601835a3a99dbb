//! Requests that may share a stream, and the key by which streams are distinguished.

use crate::cursor::Wants;
use http1::{Authority, Headers, RequestHead, Target, Version};

/// The request is forwarded to the origin on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotShared {
    /// The method is not GET.
    #[error("the method is not GET")]
    Method,
    /// The request has a body.
    #[error("the request has a body")]
    Body,
    /// The request has Authorization, Proxy-Authorization or Cookie: the response is for one
    /// client.
    #[error("the request has credentials")]
    Credentials,
    /// The request has Range: a part of a file.
    #[error("the request asks for a range")]
    Range,
    /// The request has conditions (If-Match and others): the response depends on the client's
    /// cache.
    #[error("the request has conditions")]
    Conditional,
    /// The request asks to switch protocols.
    #[error("the request asks for another protocol")]
    Upgrade,
    /// The request has no host, a target that is no path, or a scheme other than http.
    #[error("the request does not name an HTTP server and a path")]
    Target,
}

/// Fields by which the origin may choose its response: they are part of the key, and are forwarded.
/// No other field of a browser or player is, except `User-Agent`.
pub(crate) const KEYED: [&[u8]; 3] = [b"Accept", b"Accept-Language", b"Origin"];

const CREDENTIALS: [&[u8]; 3] = [b"Authorization", b"Proxy-Authorization", b"Cookie"];
const CONDITIONS: [&[u8]; 5] =
    [b"If-Match", b"If-None-Match", b"If-Modified-Since", b"If-Unmodified-Since", b"If-Range"];

/// Key of a channel: requests with equal keys get the same stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    authority: Vec<u8>,
    path: Vec<u8>,
    /// Values of the [`KEYED`] fields.
    variant: [Option<Vec<u8>>; KEYED.len()],
}

impl Key {
    /// Returns the host in lower case, and the port.
    #[must_use]
    pub fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// Returns path and query as received.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }
}

/// Request for a stream that may be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    key: Key,
    wants: Wants,
    request: RequestHead,
}

impl Ask {
    /// Parses a request.
    ///
    /// # Errors
    /// The request must not share a stream, for this reason.
    pub fn new(request: &RequestHead) -> Result<Self, NotShared> {
        let headers = &request.headers;
        let has_any = |names: &[&[u8]]| names.iter().any(|name| headers.contains(name));
        if request.method() != b"GET" {
            return Err(NotShared::Method);
        }
        let length = headers.get(b"Content-Length");
        if headers.contains(b"Transfer-Encoding") || length.is_some_and(|length| length != b"0") {
            return Err(NotShared::Body);
        }
        if has_any(&CREDENTIALS) {
            return Err(NotShared::Credentials);
        }
        if has_any(&[b"Range"]) {
            return Err(NotShared::Range);
        }
        if has_any(&CONDITIONS) {
            return Err(NotShared::Conditional);
        }
        if request.asks_to_switch() {
            return Err(NotShared::Upgrade);
        }
        let (authority, path) = authority_and_path(request).ok_or(NotShared::Target)?;
        let variant = KEYED.map(|name| {
            let values: Vec<&[u8]> = headers.get_all(name).collect();
            let joined = values.join(&b", "[..]);
            // RFC 9110, section 12.5.1: no Accept means any type.
            let says_nothing = values.is_empty() || (name == b"Accept" && joined == b"*/*");
            (!says_nothing).then_some(joined)
        });
        let key = Key { authority, path, variant };
        let titles = headers.get(b"Icy-MetaData") == Some(b"1");
        let wants = if titles { Wants::Titles } else { Wants::Media };
        let request = upstream(&key, headers.get(b"User-Agent")).ok_or(NotShared::Target)?;
        Ok(Self { key, wants, request })
    }

    /// Returns the key of the channel.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the kind of stream that the listener has asked for.
    #[must_use]
    pub const fn wants(&self) -> Wants {
        self.wants
    }

    /// Returns the request for the origin: always with `Icy-MetaData: 1`, so that one connection
    /// serves listeners with and without titles.
    #[must_use]
    pub const fn request(&self) -> &RequestHead {
        &self.request
    }
}

/// Returns the authority with its port, and the path with its query.
fn authority_and_path(request: &RequestHead) -> Option<(Vec<u8>, Vec<u8>)> {
    let target = request.target();
    let (authority, path) = match Target::parse(request.method(), target).ok()? {
        Target::Origin => (request.headers.get(b"Host")?, target),
        Target::Absolute { scheme, authority } if scheme.eq_ignore_ascii_case(b"http") => {
            (authority, target.get(scheme.len() + 3 + authority.len()..)?)
        }
        Target::Absolute { .. } | Target::Authority(_) | Target::Asterisk => return None,
    };
    let Authority { host, port } = Authority::parse(authority)?;
    if host.is_empty() {
        return None;
    }
    let port = port.filter(|port| !port.is_empty()).unwrap_or(b"80");
    let path = if path.starts_with(b"/") { path.to_vec() } else { [b"/", path].concat() };
    Some(([&host.to_ascii_lowercase()[..], b":", port].concat(), path))
}

fn upstream(key: &Key, agent: Option<&[u8]>) -> Option<RequestHead> {
    let mut headers = Headers::default();
    let authority = key.authority.strip_suffix(b":80").unwrap_or(&key.authority);
    headers.add(b"Host", authority).ok()?;
    if let Some(agent) = agent {
        headers.add(b"User-Agent", agent).ok()?;
    }
    for (name, value) in KEYED.iter().zip(&key.variant) {
        if let Some(value) = value {
            headers.add(name, value).ok()?;
        }
    }
    headers.add(b"Accept-Encoding", b"identity").ok()?;
    headers.add(b"Icy-MetaData", b"1").ok()?;
    headers.add(b"Connection", b"close").ok()?;
    RequestHead::new(b"GET", &key.path, Version::Http11, headers).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(target: &str, fields: &[(&str, &str)]) -> Result<Ask, NotShared> {
        let mut headers = Headers::default();
        for (name, value) in fields {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let head = RequestHead::new(b"GET", target.as_bytes(), Version::Http11, headers);
        Ask::new(&head.unwrap())
    }

    #[test]
    fn equivalent_urls_have_one_stream_key() {
        let one = ask("/live?a=B", &[("Host", "Radio.Example"), ("Accept", "*/*")]).unwrap();
        let other = ask("http://radio.example:80/live?a=B", &[("Host", "radio.example")]).unwrap();
        assert_eq!(one.key(), other.key());
        assert_eq!(
            (one.key().authority(), one.key().path()),
            (&b"radio.example:80"[..], &b"/live?a=B"[..])
        );
        assert_ne!(one.key(), ask("/live?a=b", &[("Host", "radio.example")]).unwrap().key());
        assert_ne!(one.key(), ask("/live?a=B", &[("Host", "radio.example:8000")]).unwrap().key());
        let root = ask("http://a?x", &[("Host", "a")]).unwrap();
        assert_eq!(root.key().path(), b"/?x");
    }

    #[test]
    fn fields_that_the_response_may_depend_on_are_in_the_key() {
        let plain = ask("/", &[("Host", "a")]).unwrap();
        for (name, value) in
            [("Accept", "audio/aac"), ("Accept-Language", "de"), ("Origin", "http://b")]
        {
            assert_ne!(plain.key(), ask("/", &[("Host", "a"), (name, value)]).unwrap().key());
        }
        let titles =
            ask("/", &[("Host", "a"), ("Icy-MetaData", "1"), ("User-Agent", "p")]).unwrap();
        assert_eq!((plain.key(), titles.wants()), (titles.key(), Wants::Titles));
    }

    #[test]
    fn the_origin_is_always_asked_for_titles() {
        let ask = ask(
            "/a",
            &[("Host", "b:80"), ("User-Agent", "p"), ("X", "y"), ("Accept", "audio/aac")],
        );
        let request = ask.unwrap().request;
        let fields: Vec<_> = request.headers.iter().collect();
        let expected: [(&[u8], &[u8]); 6] = [
            (b"Host", b"b"),
            (b"User-Agent", b"p"),
            (b"Accept", b"audio/aac"),
            (b"Accept-Encoding", b"identity"),
            (b"Icy-MetaData", b"1"),
            (b"Connection", b"close"),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn personal_requests_are_never_shared() {
        let with = |name, value| ask("/", &[("Host", "a"), (name, value)]).unwrap_err();
        assert_eq!(with("Authorization", "Basic x"), NotShared::Credentials);
        assert_eq!(with("Proxy-Authorization", "Basic x"), NotShared::Credentials);
        assert_eq!(with("Cookie", "a=b"), NotShared::Credentials);
        assert_eq!(with("Range", "bytes=0-"), NotShared::Range);
        assert_eq!(with("If-None-Match", "*"), NotShared::Conditional);
        assert_eq!(with("Content-Length", "3"), NotShared::Body);
        let upgrade = [("Host", "a"), ("Upgrade", "websocket"), ("Connection", "upgrade")];
        assert_eq!(ask("/", &upgrade).unwrap_err(), NotShared::Upgrade);
        assert_eq!(ask("https://a/", &[("Host", "a")]).unwrap_err(), NotShared::Target);
        assert_eq!(ask("/", &[("Host", "")]).unwrap_err(), NotShared::Target);
    }
}
