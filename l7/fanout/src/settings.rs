//! Settings of an operator, and requests for shared streams.

use crate::limits::{CHANNELS_COUNT_MAX, KEY_LENGTH_MAX, PAYLOAD_MAX};
use http1::RequestHead;
use reflector::Config;
use reflector::limits::LISTENERS_COUNT_MAX;
use std::net::SocketAddr;
use units::Bytes;

/// Source address of connections to origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Address of the node: a channel is bound to none of its listeners.
    #[default]
    Node,
    /// Address of the client for which the connection is opened. After that client has left,
    /// packets for its address still arrive here.
    Client,
}

/// Settings of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of each channel: rings, and treatment of `no-store`.
    pub channel: Config,
    /// Source address of connections to origins.
    pub source: Source,
    /// Limit of simultaneous channels.
    pub channels_max: usize,
    /// Limit of listeners of one channel, at most that of `reflector`.
    pub listeners_max: usize,
    /// Limit of the payload that all channels together may keep.
    pub payload_max: Bytes,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            channel: Config::default(),
            source: Source::default(),
            channels_max: CHANNELS_COUNT_MAX,
            listeners_max: LISTENERS_COUNT_MAX,
            payload_max: PAYLOAD_MAX,
        }
    }
}

/// Key of a channel, by which a module marks requests for the same stream. Requests to different
/// servers never share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(pub(crate) Option<Box<[u8]>>);

/// A key is too long: a fault of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a channel's key has {found} bytes, and may have {KEY_LENGTH_MAX}: shorten it, or hash it")]
pub struct KeyTooLong {
    /// Length of the key in bytes.
    pub found: usize,
}

impl Key {
    /// Creates a key from a module's bytes. An empty one stands for the request's own key:
    /// authority, path, and the fields that responses may depend on (`reflector::Ask`).
    ///
    /// # Errors
    /// The key is longer than [`KEY_LENGTH_MAX`].
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooLong> {
        if bytes.len() > KEY_LENGTH_MAX {
            return Err(KeyTooLong { found: bytes.len() });
        }
        Ok(Self((!bytes.is_empty()).then(|| bytes.into())))
    }
}

/// Request of a client for a stream.
#[derive(Clone, Debug)]
pub struct Join {
    /// Key of the channel.
    pub key: Key,
    /// Address of the client.
    pub client: SocketAddr,
    /// Server address of the client's connection.
    pub server: SocketAddr,
    /// Request as it is to be sent.
    pub request: RequestHead,
    /// Bytes after the request's head that have been read.
    pub received: Vec<u8>,
}
