//! What a channel is told and what it answers.

use crate::limits::{RING_AUDIO_LENGTH, RING_VIDEO_LENGTH};
use crate::live::{NoStore, NotLive};
use http1::{Framing, RequestHead, ResponseHead};
use std::sync::Arc;
use units::Bytes;

/// A listener's number; the caller's choice, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// The number of a connection to the origin. Events of one that was closed are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u32);

/// The least that a ring has: two of the longest frames.
const RING_LENGTH_MIN: usize = 16 * 1024;

/// What the operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is done with `Cache-Control: no-store`.
    pub no_store: NoStore,
    /// Payload that is kept of audio: at least 16 KiB.
    pub ring_audio: Bytes,
    /// Payload that is kept of video: at least 16 KiB.
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

/// At most 1 GiB: more is not meant.
fn length(bytes: Bytes) -> usize {
    usize::try_from(bytes.0).unwrap_or(usize::MAX).clamp(RING_LENGTH_MIN, 1 << 30)
}

/// Why nobody can join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The origin has ended, or answers with an error: ask it again, in a channel of its own.
    #[error("the stream is ending; a new channel has to be opened")]
    Ending,
    /// [`LISTENERS_COUNT_MAX`](crate::limits::LISTENERS_COUNT_MAX) are there.
    #[error("the stream has as many listeners as it may")]
    Full,
    /// The number is taken: the caller's fault.
    #[error("there is a listener with this number")]
    Known,
}

/// Why the origin was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection came about.
    Connect,
    /// It was reset, or what came was not HTTP, or a body ended before its end.
    Reset,
}

/// How a listener's response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// As the origin's did.
    Complete,
    /// By reset: the listener has taken nothing for too long.
    Stalled,
    /// By reset: the origin was lost and did not come back.
    OriginLost,
    /// By reset: the origin came back with something else.
    OriginChanged,
}

impl Ending {
    /// Whether the response ends as complete; else its connection is reset, so that the listener
    /// knows that something is missing.
    #[must_use]
    pub fn is_clean(self) -> bool {
        self == Self::Complete
    }
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect to the origin and send this.
    Open {
        /// Its number in events.
        connection: Connection,
        /// What is sent.
        request: Arc<RequestHead>,
    },
    /// Close the connection to the origin.
    Close {
        /// Which one.
        connection: Connection,
    },
    /// Answer a listener with this head.
    Head {
        /// Whom.
        to: ListenerId,
        /// Without the fields that frame a body, if it is a live stream's.
        head: Arc<ResponseHead>,
        /// As the origin frames an answer; `UntilClose` for a live stream, which has chunks for
        /// a client of HTTP/1.1: `http1`'s `Framing::for_response`, of `Body::Unknown`.
        body: Framing,
    },
    /// There are bytes for a listener that had taken all, or had none yet.
    Ready {
        /// Whom.
        to: ListenerId,
    },
    /// End a listener's response. It is forgotten here.
    End {
        /// Whose.
        to: ListenerId,
        /// How.
        ending: Ending,
    },
    /// The origin's answer is not shared: it belongs to this listener, head and body as they
    /// come. It is forgotten here, and so is the connection.
    Pass {
        /// To whom.
        to: ListenerId,
        /// The connection that is its own now.
        connection: Connection,
        /// Why it is not shared.
        why: NotLive,
    },
    /// The same, for the others: each asks the origin with its own request, and is forgotten
    /// here.
    Alone {
        /// Who.
        to: ListenerId,
        /// Why it is not shared.
        why: NotLive,
    },
}

impl Effect {
    /// The listener that it is about.
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

/// What has happened in a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Listeners that are there.
    pub listeners_now: u64,
    /// The most that were there at once.
    pub listeners_peak: u64,
    /// All that ever came.
    pub listeners_total: u64,
    /// Those who began with what the ring had, not with the origin's first byte.
    pub joins_from_ring: u64,
    /// Bytes of the origin's bodies, metadata included.
    pub bytes_in: Bytes,
    /// Bytes that listeners took, metadata included.
    pub bytes_out: Bytes,
    /// Bytes of the origin that were given to nobody: between frames, cut off, tags.
    pub bytes_left_out: Bytes,
    /// How often a listener was behind by more than the ring, and went on near the edge.
    pub skips: u64,
    /// Listeners that took nothing for too long.
    pub dropped: u64,
    /// How often the origin was there again after it was lost.
    pub reconnects: u64,
    /// How often the title changed.
    pub titles: u64,
}

impl Counters {
    pub(super) fn joined(&mut self, listeners: usize) {
        self.listeners_total = self.listeners_total.saturating_add(1);
        self.listeners_peak = self.listeners_peak.max(listeners as u64);
    }
}

/// Memory that a channel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Of payload: the ring, and the rest of a frame or a block that is on its way in. The same
    /// whatever the number of listeners.
    pub payload: Bytes,
    /// Of what is known of the payload: where units begin, titles.
    pub index: Bytes,
    /// Of all listeners: their places, and the rests of frames that slow ones have a part of.
    pub listeners: Bytes,
}
