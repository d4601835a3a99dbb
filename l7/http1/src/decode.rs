//! Decoders: turn slices of bytes, cut anywhere, into events.
//!
//! ```text
//!   input ─▶ decode() ─▶ Step { consumed, event }      repeat with the rest of the input,
//!                         │      │                     until there is no event
//!                         │      └─ Head, Body, Trailers, End, Tunnel; none: more input is needed
//!                         └─ bytes after the end of a message are left for the next
//! ```
//!
//! Slice boundaries affect only where body slices are cut. After an error, every call returns the
//! same error.

mod request;
mod response;

pub use request::{RequestDecoder, RequestEvent, Switch};
pub use response::{ResponseDecoder, ResponseEvent};

use crate::limits::{HEADERS_COUNT_MAX, HEADERS_LENGTH_MAX, START_LINE_LENGTH_MAX};
use crate::line::Limits;

const HEAD_LIMITS: Limits = Limits {
    start_line: START_LINE_LENGTH_MAX,
    length: HEADERS_LENGTH_MAX,
    count: HEADERS_COUNT_MAX,
};

/// Result of one call to a decoder.
#[derive(Debug, PartialEq, Eq)]
pub struct Step<E> {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Decoded event. `None`: all of the input is consumed and more is needed, or the decoder waits
    /// for a call of its owner (`awaits_switch`, `awaits_request`).
    pub event: Option<E>,
}
