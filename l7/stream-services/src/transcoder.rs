//! Transcoding of a response's body.

use crate::codecs::Share;
use crate::foreign_calls::TranscodingOrder;
use mpeg2::{CodecId, Transcoding};
use std::fmt;
use std::rc::Rc;
use tcp_intercept::End;
use units::{Held, Nanos};

/// Transcoding of a stream with its grants.
pub(crate) struct Transcoder {
    pub(crate) transcoding: Transcoding,
    pub(crate) share: Rc<dyn Share>,
    /// Memory reserved for it, released with it.
    pub(crate) memory: Held,
    /// Bytes of pictures written, and number of pictures.
    written: (u64, u64),
}

impl fmt::Debug for Transcoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transcoder").field(&self.transcoding).finish()
    }
}

impl Transcoder {
    pub(crate) fn new(transcoding_order: TranscodingOrder) -> Self {
        let TranscodingOrder { params, share, memory } = transcoding_order;
        Self { transcoding: Transcoding::new(params), share, memory, written: (0, 0) }
    }

    /// Counts pictures and their bytes for the client.
    pub(crate) const fn count(&mut self, pictures: u64, bytes: usize) {
        self.written.0 += bytes as u64;
        self.written.1 += pictures;
    }

    /// Returns the bytes that the kernel should buffer for the client: some pictures, as buffered
    /// ones are old when they are seen, and enough for the network's delay.
    pub(crate) fn unsent(&self) -> Option<usize> {
        use crate::limits::{UNSENT_LENGTH_MAX, UNSENT_LENGTH_MIN, UNSENT_PICTURES};
        let (bytes, pictures) = self.written;
        let each = bytes.checked_div(pictures)?;
        let some = usize::try_from(each * UNSENT_PICTURES).unwrap_or(UNSENT_LENGTH_MAX);
        Some(some.next_power_of_two().clamp(UNSENT_LENGTH_MIN, UNSENT_LENGTH_MAX))
    }
}

/// Codec of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionCodec {
    pub(crate) id: CodecId,
    pub(crate) codec: u64,
    /// Socket of the codec, `None` until it runs.
    pub(crate) end: Option<End>,
    pub(crate) is_finished: bool,
    /// True if its output has ended.
    pub(crate) is_over: bool,
}

/// Codecs of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCodecs {
    /// Number of the message that they are for.
    pub(crate) message: u64,
    pub(crate) all: Vec<ConnectionCodec>,
    /// Send buffer limit set for the client.
    pub(crate) unsent: Option<usize>,
    /// Registered time at which a waiting picture becomes late.
    pub(crate) overdue: Option<(Nanos, u64)>,
}
