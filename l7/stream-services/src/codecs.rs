//! Interface to the owner that starts codecs: processes outside this one, each connected by a
//! socket.
//!
//! ```text
//!   admit ─▶ Share ─ start, stop ─▶ owner ─▶ process
//!                     poll ◀─ Started: a socket; Ended: the reason
//! ```

use mpeg2::TranscodeParams;
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use units::Nanos;

/// A stream gets no codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The processor's capacity for codecs is used up.
    Busy(String),
    /// Codecs are not available on this node.
    Unavailable(String),
    /// The session's limits do not allow it.
    Limit(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(why) => write!(f, "busy {why}"),
            Self::Unavailable(why) => write!(f, "unavailable {why}"),
            Self::Limit(why) => write!(f, "limit {why}"),
        }
    }
}

/// Event of a codec.
#[derive(Debug)]
pub enum CodecEvent {
    /// The codec runs: it reads from this socket, and writes its output to it.
    Started(u64, OwnedFd),
    /// The codec has ended or could not be started, for this reason; empty for a regular end.
    Ended(u64, String),
}

/// Starter of codecs for one filter.
pub trait Codecs {
    /// Reserves the share of another stream.
    ///
    /// # Errors
    /// The stream gets no codec.
    fn admit(&self) -> Result<Rc<dyn Share>, Refusal>;

    /// Returns the next event of the codecs started.
    fn poll(&self) -> Option<CodecEvent>;

    /// Returns true if [`Codecs::poll`] has an event.
    fn has_events(&self) -> bool;
}

/// Share of the processor for one stream's codecs; dropping it ends them.
pub trait Share {
    /// Starts a codec; returns its number, which is unique within the filter.
    fn start(&self, params: &TranscodeParams) -> u64;

    /// Stops a codec.
    fn stop(&self, codec: u64);

    /// Reports the playing time of the stream so far, to be compared with the processor time used.
    fn show(&self, time: Nanos) {
        let _ = time;
    }
}
