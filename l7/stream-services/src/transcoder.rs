//! A response's body on its way through a codec.

use crate::codecs::Share;
use crate::desk::Commission;
use mpeg2::{CodecId, Transcoding};
use std::fmt;
use std::rc::Rc;
use tcp_intercept::End;
use units::{Held, Nanos};

/// A stream's transcoding with what was granted for it.
pub(crate) struct Transcoder {
    pub(crate) transcoding: Transcoding,
    pub(crate) share: Rc<dyn Share>,
    /// Given back with it.
    pub(crate) memory: Held,
    /// Bytes that pictures became, and how many pictures that were.
    written: (u64, u64),
}

impl fmt::Debug for Transcoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transcoder").field(&self.transcoding).finish()
    }
}

impl Transcoder {
    pub(crate) fn new(commission: Commission) -> Self {
        let Commission { wish, share, memory } = commission;
        Self { transcoding: Transcoding::new(wish), share, memory, written: (0, 0) }
    }

    /// So many pictures became so many bytes for the client.
    pub(crate) const fn count(&mut self, pictures: u64, bytes: usize) {
        self.written.0 += bytes as u64;
        self.written.1 += pictures;
    }

    /// Bytes that the kernel is to keep for the client: some pictures, since what waits there is
    /// old when it is seen, and enough for a network's delay.
    pub(crate) fn unsent(&self) -> Option<usize> {
        use crate::limits::{UNSENT_LENGTH_MAX, UNSENT_LENGTH_MIN, UNSENT_PICTURES};
        let (bytes, pictures) = self.written;
        let each = bytes.checked_div(pictures)?;
        let some = usize::try_from(each * UNSENT_PICTURES).unwrap_or(UNSENT_LENGTH_MAX);
        Some(some.next_power_of_two().clamp(UNSENT_LENGTH_MIN, UNSENT_LENGTH_MAX))
    }
}

/// A codec of a connection, as its owner knows it.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) id: CodecId,
    pub(crate) codec: u64,
    /// None until it runs.
    pub(crate) end: Option<End>,
    pub(crate) is_finished: bool,
    /// It writes nothing more.
    pub(crate) is_over: bool,
}

/// The codecs of a connection.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The message that they are for.
    pub(crate) message: u64,
    pub(crate) all: Vec<Line>,
    /// What the kernel was told to keep for the client.
    pub(crate) unsent: Option<usize>,
    /// When a picture that waits will be late, as far as that is noted.
    pub(crate) overdue: Option<(Nanos, u64)>,
}
