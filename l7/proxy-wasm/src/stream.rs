//! A stream's data between calls: what has come of it and not gone on yet.
//!
//! ```text
//!             client                                        server
//!               │  downstream: request head, body ─────────▶  │
//!               │  ◀───────── upstream: response head, body   │
//! ```
//!
//! The caller puts in what arrives, makes the call for it, and after [`Action::Continue`] takes
//! out what goes on; after [`Action::Pause`] it leaves it there. Bodies are parts: only what a
//! module pauses gathers here.

use crate::abi::{Action, StreamType};
use crate::map::HeaderMap;
use std::collections::BTreeMap;

/// What a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A TCP connection, and its other half to the server.
    Tcp,
    /// A request and its response.
    Http,
}

/// What goes in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// HTTP: the head. Pseudo-headers (`:method`, `:path`, `:authority`, `:status`) come first.
    pub headers: HeaderMap,
    /// A part of the body, or of a TCP stream's data.
    pub body: Vec<u8>,
    /// HTTP: the trailers.
    pub trailers: HeaderMap,
    /// What of it a module has paused, so that it may still look at it.
    pub(crate) held: Held,
    /// The head as it came, once a module has changed it.
    pub(crate) before: Option<Box<HeaderMap>>,
    /// A module has changed bytes of the body.
    pub(crate) is_body_edited: bool,
}

/// What of a side is paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// A new connection, of which nothing has come yet.
    pub(crate) connection: bool,
    pub(crate) headers: bool,
    pub(crate) body: bool,
    pub(crate) trailers: bool,
}

impl Side {
    /// Whether a module has paused it and has not let it go on since.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.held != Held::default()
    }

    /// Whether a module has changed bytes of the body, so that what comes of it depends on what that
    /// module knew.
    #[must_use]
    pub const fn is_body_edited(&self) -> bool {
        self.is_body_edited
    }

    /// Sets the head: nothing of it has been shown.
    pub fn set_headers(&mut self, headers: HeaderMap) {
        (self.headers, self.before) = (headers, None);
    }

    /// Keeps the head as it came, in front of a module's first change.
    pub(crate) fn keep_headers(&mut self) {
        if self.before.is_none() {
            self.before = Some(Box::new(self.headers.clone()));
        }
    }

    fn rewind(&mut self) {
        if let Some(before) = self.before.take() {
            self.headers = *before;
        }
        self.trailers = HeaderMap::default();
    }
}

/// A stream: a context's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// What it is.
    pub protocol: Protocol,
    /// From the client: the request.
    pub downstream: Side,
    /// From the server: the response.
    pub upstream: Side,
    /// What the module may ask about it, by path: parts are joined by a zero byte.
    pub properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What modules have set.
    pub(crate) own_properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes by which its module has lengthened it, since it last went on.
    pub(crate) added: u64,
    /// Bytes of properties that its module has set.
    pub(crate) kept: u64,
    /// The module has answered in the server's place.
    pub(crate) has_responded: bool,
    /// It was asked whether it is done, and is not.
    pub(crate) is_pending: bool,
}

impl Stream {
    /// A stream of which nothing has come yet.
    #[must_use]
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            downstream: Side::default(),
            upstream: Side::default(),
            properties: BTreeMap::new(),
            own_properties: BTreeMap::new(),
            added: 0,
            kept: 0,
            has_responded: false,
            is_pending: false,
        }
    }

    /// Sets a property that is text or bytes: `&["source", "address"]`.
    pub fn describe(&mut self, path: &[&str], value: impl AsRef<[u8]>) {
        self.properties.insert(joined(path), value.as_ref().to_vec());
    }

    /// Sets a property that is a number: eight bytes, as SDKs read it.
    pub fn describe_number(&mut self, path: &[&str], value: i64) {
        self.describe(path, value.to_le_bytes());
    }

    /// Sets a property that is true or false: one byte.
    pub fn describe_flag(&mut self, path: &[&str], value: bool) {
        self.describe(path, [u8::from(value)]);
    }

    /// What modules have set, by path.
    #[must_use]
    pub const fn own_properties(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.own_properties
    }

    /// Whether the module has answered in the server's place.
    #[must_use]
    pub const fn has_responded(&self) -> bool {
        self.has_responded
    }

    /// Puts both heads back as they came, and forgets trailers and answers of the module, so that
    /// another VM can be shown what is under way. What was let go on is not here any more.
    pub fn rewind(&mut self) {
        self.downstream.rewind();
        self.upstream.rewind();
        self.has_responded = false;
    }

    /// What another VM knew of it is gone with that.
    pub(crate) fn forget_module(&mut self) {
        (self.added, self.kept, self.is_pending) = (0, 0, false);
        self.own_properties.clear();
        self.downstream.held = Held::default();
        self.upstream.held = Held::default();
    }

    /// The side that a stream type names, if this stream has it.
    pub(crate) const fn side_mut(&mut self, stream: StreamType) -> Option<&mut Side> {
        match (self.protocol, stream) {
            (Protocol::Http, StreamType::HttpRequest) | (Protocol::Tcp, StreamType::Downstream) => {
                Some(&mut self.downstream)
            }
            (Protocol::Http, StreamType::HttpResponse) | (Protocol::Tcp, StreamType::Upstream) => {
                Some(&mut self.upstream)
            }
            _ => None,
        }
    }

    /// Notes what a callback said about what it was shown.
    pub(crate) fn settle(&mut self, stage: Stage, action: Action) {
        let Some((stream, part)) = stage.shown() else { return };
        let Some(side) = self.side_mut(stream) else { return };
        match action {
            Action::Continue => side.held = Held::default(),
            Action::Pause => *part(&mut side.held) = true,
        }
    }
}

/// A property's path as modules write it.
pub(crate) fn joined(path: &[&str]) -> Vec<u8> {
    path.join("\0").into_bytes()
}

/// One part of what is held.
type Part = fn(&mut Held) -> &mut bool;

/// Which callback runs, as far as that decides what it may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    VmStart,
    Configure,
    NewConnection,
    DownstreamData,
    UpstreamData,
    RequestHeaders,
    RequestBody {
        is_last: bool,
    },
    RequestTrailers,
    ResponseHeaders,
    ResponseBody {
        is_last: bool,
    },
    ResponseTrailers,
    HttpCallResponse,
    ForeignFunction,
    Log,
    /// Any other.
    Other,
}

impl Stage {
    /// What a callback is shown, and so decides about.
    fn shown(self) -> Option<(StreamType, Part)> {
        let connection: Part = |held| &mut held.connection;
        let headers: Part = |held| &mut held.headers;
        let body: Part = |held| &mut held.body;
        let trailers: Part = |held| &mut held.trailers;
        Some(match self {
            Self::NewConnection => (StreamType::Downstream, connection),
            Self::DownstreamData => (StreamType::Downstream, body),
            Self::UpstreamData => (StreamType::Upstream, body),
            Self::RequestHeaders => (StreamType::HttpRequest, headers),
            Self::RequestBody { .. } => (StreamType::HttpRequest, body),
            Self::RequestTrailers => (StreamType::HttpRequest, trailers),
            Self::ResponseHeaders => (StreamType::HttpResponse, headers),
            Self::ResponseBody { .. } => (StreamType::HttpResponse, body),
            Self::ResponseTrailers => (StreamType::HttpResponse, trailers),
            _ => return None,
        })
    }
}
