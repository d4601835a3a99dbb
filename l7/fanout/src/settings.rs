//! Choices of an operator, and requests for shared streams.

use crate::limits::{CHANNELS_COUNT_MAX, KEY_LENGTH_MAX, PAYLOAD_MAX};
use http1::RequestHead;
use reflector::Config;
use reflector::limits::LISTENERS_COUNT_MAX;
use std::net::SocketAddr;
use units::Bytes;

/// Address with which an origin is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The node's: a channel belongs to nobody among its listeners.
    #[default]
    Node,
    /// The address of the client that the connection is opened for. When that one has gone, bytes
    /// for it still come here.
    Client,
}

/// Choices of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings of each channel: rings, and what `no-store` means.
    pub channel: Config,
    /// Address with which origins are asked.
    pub source: Source,
    /// Channels at once.
    pub channels_max: usize,
    /// Listeners of one channel, no more than `reflector` allows.
    pub listeners_max: usize,
    /// Payload that all channels together may come to keep.
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

/// Key of a channel, as a module says which requests ask for the same. Those that go to different
/// servers never do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key(pub(crate) Option<Box<[u8]>>);

/// A key that is too long. The module's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a channel's key has {found} bytes, and may have {KEY_LENGTH_MAX}: shorten it, or hash it")]
pub struct KeyTooLong {
    /// Length that it has, bytes.
    pub found: usize,
}

impl Key {
    /// Reads a module's key. An empty one is what the request says itself: authority, path, and
    /// what answers may depend on (`reflector::Ask`).
    ///
    /// # Errors
    /// When it is too long.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyTooLong> {
        if bytes.len() > KEY_LENGTH_MAX {
            return Err(KeyTooLong { found: bytes.len() });
        }
        Ok(Self((!bytes.is_empty()).then(|| bytes.into())))
    }
}

/// Request for a stream.
#[derive(Clone, Debug)]
pub struct Join {
    /// The stream.
    pub key: Key,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server that the connection was going to.
    pub server: SocketAddr,
    /// The request as it is to be sent.
    pub request: RequestHead,
    /// Bytes behind its head that have been read.
    pub received: Vec<u8>,
}
