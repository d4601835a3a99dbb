//! Types of a channel's interface: events, effects, errors, counters.

use crate::limits::{RING_AUDIO_LENGTH, RING_VIDEO_LENGTH};
use crate::live::{NoStore, NotLive};
use http1::{Framing, RequestHead, ResponseHead};
use std::sync::Arc;
use units::Bytes;

/// Number of a listener, chosen by the caller and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// Number of a connection to the origin. Events of a closed one are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u32);

/// Smallest size of a ring, in bytes: two of the longest frames.
const RING_LENGTH_MIN: usize = 16 * 1024;

/// Settings of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Treatment of `Cache-Control: no-store`.
    pub no_store: NoStore,
    /// Payload kept of an audio stream: at least 16 KiB.
    pub ring_audio: Bytes,
    /// Payload kept of a video stream: at least 16 KiB.
    pub ring_video: Bytes,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            no_store: NoStore::default(),
            ring_audio: Bytes(RING_AUDIO_LENGTH as u64),
            ring_video: Bytes(RING_VIDEO_LENGTH as u64),
        }
    }
}

impl Config {
    pub(super) fn ring_audio(self) -> usize {
        length(self.ring_audio)
    }

    pub(super) fn ring_video(self) -> usize {
        length(self.ring_video)
    }
}

/// Limits a size to 1 GiB, a guard against misconfiguration.
fn length(bytes: Bytes) -> usize {
    usize::try_from(bytes.0).unwrap_or(usize::MAX).clamp(RING_LENGTH_MIN, 1 << 30)
}

/// A listener cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The origin has ended, or responded with an error: a new channel has to ask it again.
    #[error("the stream is ending; a new channel has to be opened")]
    Ending,
    /// The channel has [`LISTENERS_COUNT_MAX`](crate::limits::LISTENERS_COUNT_MAX) listeners.
    #[error("the stream has reached its limit of listeners")]
    Full,
    /// The number is in use: a fault of the caller.
    #[error("there is a listener with this number")]
    Known,
}

/// Kind of loss of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection attempt failed.
    Connect,
    /// The connection was reset, its bytes were not HTTP, or the body was incomplete.
    Reset,
}

/// End of a listener's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Regular end, as the origin's.
    Complete,
    /// Reset: the listener has taken nothing for too long.
    Stalled,
    /// Reset: the origin was lost and did not come back.
    OriginLost,
    /// Reset: the origin came back with another stream.
    OriginChanged,
}

impl Ending {
    /// Returns true if the response ends as complete; otherwise its connection is reset, so that
    /// the listener can tell that bytes are missing.
    #[must_use]
    pub fn is_clean(self) -> bool {
        self == Self::Complete
    }
}

/// Action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect to the origin and send a request.
    Open {
        /// Number of the connection in later events.
        connection: Connection,
        /// Request to send.
        request: Arc<RequestHead>,
    },
    /// Close the connection to the origin.
    Close {
        /// Number of the connection.
        connection: Connection,
    },
    /// Send a listener this head.
    Head {
        /// Recipient.
        to: ListenerId,
        /// Head, without body framing fields for a live stream.
        head: Arc<ResponseHead>,
        /// Framing of the body: the origin's for a complete response; `UntilClose` for a live
        /// stream, which is sent in chunks to a client of HTTP/1.1 (`http1`'s
        /// `Framing::for_response`, with `Body::Unknown`).
        body: Framing,
    },
    /// Bytes are available for a listener that had taken all, or had none yet.
    Ready {
        /// Recipient.
        to: ListenerId,
    },
    /// End a listener's response. It is forgotten here.
    End {
        /// Recipient.
        to: ListenerId,
        /// Kind of the end.
        ending: Ending,
    },
    /// Hand the origin's response to this listener alone, head and body unchanged. The channel has
    /// dropped the listener and the connection.
    Pass {
        /// Recipient.
        to: ListenerId,
        /// Connection that now belongs to the listener.
        connection: Connection,
        /// Reason for not sharing.
        why: NotLive,
    },
    /// Let this listener ask the origin with its own request, as the response is not shared. The
    /// channel has dropped the listener.
    Alone {
        /// Recipient.
        to: ListenerId,
        /// Reason for not sharing.
        why: NotLive,
    },
}

impl Effect {
    /// Returns the listener that the effect concerns.
    pub(super) const fn to(&self) -> Option<ListenerId> {
        match self {
            Self::Open { .. } | Self::Close { .. } => None,
            Self::Head { to, .. }
            | Self::Ready { to }
            | Self::End { to, .. }
            | Self::Pass { to, .. }
            | Self::Alone { to, .. } => Some(*to),
        }
    }
}

/// Counters of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Current listeners.
    pub listeners_now: u64,
    /// Largest number of simultaneous listeners.
    pub listeners_peak: u64,
    /// Listeners since the beginning.
    pub listeners_total: u64,
    /// Listeners that began with the content of the ring, not with the origin's first byte.
    pub joins_from_ring: u64,
    /// Bytes of the origin's bodies, metadata included.
    pub bytes_in: Bytes,
    /// Bytes that listeners have taken, metadata included.
    pub bytes_out: Bytes,
    /// Bytes of the origin that no listener gets: between frames, of truncated frames, and tags.
    pub bytes_left_out: Bytes,
    /// Skips of a listener that was behind by more than the ring to a position near the edge.
    pub skips: u64,
    /// Listeners that were dropped because they took nothing for too long.
    pub dropped: u64,
    /// Reconnections to the origin after a loss.
    pub reconnects: u64,
    /// Changes of the title.
    pub titles: u64,
}

impl Counters {
    pub(super) fn joined(&mut self, listeners: usize) {
        self.listeners_total = self.listeners_total.saturating_add(1);
        self.listeners_peak = self.listeners_peak.max(listeners as u64);
    }
}

/// Memory that a channel holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Payload: the ring, and the incomplete frame or metadata block. Independent of the number of
    /// listeners.
    pub payload: Bytes,
    /// Index of the payload: positions of units, titles.
    pub index: Bytes,
    /// Listeners: their positions, and the rests of frames of which slow ones have a part.
    pub listeners: Bytes,
}
