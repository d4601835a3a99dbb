//! Data of a stream between calls: received, and not yet gone on.
//!
//! ```text
//!              client                                        server
//!                │  downstream: request head, body ─────────▶  │
//!                │  ◀───────── upstream: response head, body   │
//! ```
//!
//! The caller adds received data, makes the call for it, and after [`Action::Continue`] removes the
//! data that goes on; after [`Action::Pause`] it leaves the data in place. Bodies are passed in
//! parts: only paused parts accumulate.

use crate::abi::{Action, StreamType};
use crate::map::HeaderMap;
use std::collections::BTreeMap;

/// Protocol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP connection of a client with the connection to the server.
    Tcp,
    /// HTTP request and its response.
    Http,
}

/// Data in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// HTTP: head. Pseudo-headers (`:method`, `:path`, `:authority`, `:status`) come first.
    pub headers: HeaderMap,
    /// Part of the body, or of a TCP stream's data.
    pub body: Vec<u8>,
    /// HTTP: trailers.
    pub trailers: HeaderMap,
    /// Parts that a module has paused, so that it may still access them.
    pub(crate) held: Held,
    /// Original head, once a module has changed it.
    pub(crate) before: Option<Box<HeaderMap>>,
    /// True if a module has changed bytes of the body.
    pub(crate) is_body_edited: bool,
}

/// Paused parts of a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// New connection, before any data.
    pub(crate) connection: bool,
    pub(crate) headers: bool,
    pub(crate) body: bool,
    pub(crate) trailers: bool,
}

impl Side {
    /// Returns true if a module has paused this side and not resumed it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.held != Held::default()
    }

    /// Returns true if a module has changed bytes of the body, so that the rest depends on the
    /// module's state.
    #[must_use]
    pub const fn is_body_edited(&self) -> bool {
        self.is_body_edited
    }

    /// Sets the head, which has not been passed to a module yet.
    pub fn set_headers(&mut self, headers: HeaderMap) {
        (self.headers, self.before) = (headers, None);
    }

    /// Saves the original head before a module's first change.
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

/// Stream: the data of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Protocol.
    pub protocol: Protocol,
    /// Data from the client: the request.
    pub downstream: Side,
    /// Data from the server: the response.
    pub upstream: Side,
    /// Properties for the module, by path: parts are joined by a zero byte.
    pub properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Properties that modules have set.
    pub(crate) module_properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes by which the module has lengthened the stream, since it last went on.
    pub(crate) added_bytes: u64,
    /// Bytes of properties that the module has set.
    pub(crate) property_bytes: u64,
    /// True if the module has responded in place of the server.
    pub(crate) has_responded: bool,
    /// True if the module has postponed the end of its context.
    pub(crate) is_pending: bool,
}

impl Stream {
    /// Creates a stream without data.
    #[must_use]
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            downstream: Side::default(),
            upstream: Side::default(),
            properties: BTreeMap::new(),
            module_properties: BTreeMap::new(),
            added_bytes: 0,
            property_bytes: 0,
            has_responded: false,
            is_pending: false,
        }
    }

    /// Sets a property with text or bytes: `&["source", "address"]`.
    pub fn describe(&mut self, path: &[&str], value: impl AsRef<[u8]>) {
        self.properties.insert(path_of(path), value.as_ref().to_vec());
    }

    /// Sets a property with a number: eight bytes, as SDKs read it.
    pub fn describe_number(&mut self, path: &[&str], value: i64) {
        self.describe(path, value.to_le_bytes());
    }

    /// Sets a property with a boolean: one byte.
    pub fn describe_flag(&mut self, path: &[&str], value: bool) {
        self.describe(path, [u8::from(value)]);
    }

    /// Returns the properties that modules have set, by path.
    #[must_use]
    pub const fn module_properties(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.module_properties
    }

    /// Returns true if the module has responded in place of the server.
    #[must_use]
    pub const fn has_responded(&self) -> bool {
        self.has_responded
    }

    /// Restores both original heads, and drops trailers and responses of the module, so that
    /// another VM can process the pending data. Data that has gone on is not here any more.
    pub fn rewind(&mut self) {
        self.downstream.rewind();
        self.upstream.rewind();
        self.has_responded = false;
    }

    /// Drops the state that belongs to the previous VM.
    pub(crate) fn drop_module_state(&mut self) {
        (self.added_bytes, self.property_bytes, self.is_pending) = (0, 0, false);
        self.module_properties.clear();
        self.downstream.held = Held::default();
        self.upstream.held = Held::default();
    }

    /// Returns the side that a stream type names, if this stream has it.
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

    /// Records a callback's decision about the data it was given.
    pub(crate) fn record_decision(&mut self, stage: Stage, action: Action) {
        let Some((stream, part)) = stage.visible() else { return };
        let Some(side) = self.side_mut(stream) else { return };
        match action {
            Action::Continue => side.held = Held::default(),
            Action::Pause => *part(&mut side.held) = true,
        }
    }
}

/// Returns a property's path in the form that modules use.
pub(crate) fn path_of(path: &[&str]) -> Vec<u8> {
    path.join("\0").into_bytes()
}

/// Accessor of one part of the paused data.
type Part = fn(&mut Held) -> &mut bool;

/// Kind of the current callback, as far as it determines access.
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
    /// Any other callback.
    Other,
}

impl Stage {
    /// Returns the part that a callback is given, and so decides about.
    fn visible(self) -> Option<(StreamType, Part)> {
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
