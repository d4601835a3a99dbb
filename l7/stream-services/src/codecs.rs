//! Who starts codecs: processes beside this one, each behind a socket.
//!
//! ```text
//!  admit ─▶ Share ─ start, stop ─▶ owner ─▶ process
//!                    poll ◀─ News::Started: a socket; News::Ended: why
//! ```

use mpeg2::TranscodeParams;
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use units::Nanos;

/// Why there is no codec for a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are as many as the processor carries.
    Busy(String),
    /// This node has none.
    Unavailable(String),
    /// Its session has not what it takes.
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

/// What became of a codec.
#[derive(Debug)]
pub enum News {
    /// It runs: what is written into this socket it reads, what is read from it, it has written.
    Started(u64, OwnedFd),
    /// It has ended, or could not be started, and why; nothing when it ended as it should.
    Ended(u64, String),
}

/// Who starts codecs for one filter.
pub trait Codecs {
    /// Whether there can be one for another stream.
    ///
    /// # Errors
    /// Why not.
    fn admit(&self) -> Result<Rc<dyn Share>, Refusal>;

    /// What became of those that were started.
    fn poll(&self) -> Option<News>;

    /// Whether [`Codecs::poll`] has something to tell.
    fn has_news(&self) -> bool;
}

/// What one stream has of the processor: dropped, it is another's, and its codecs end.
pub trait Share {
    /// Starts a codec, whose number is given to no other one of this filter.
    fn start(&self, wish: &TranscodeParams) -> u64;

    /// It is of no use any more.
    fn stop(&self, codec: u64);

    /// So much of the stream has been shown: what it takes can be compared with that.
    fn show(&self, time: Nanos) {
        let _ = time;
    }
}
