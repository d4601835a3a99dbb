//! Decoders: bytes as they come, in slices that end anywhere, become events.
//!
//! ```text
//!  input ─▶ decode() ─▶ Step { consumed, event }      again with what is left of the input,
//!                        │      │                     until there is no event
//!                        │      └─ Head, Body, Trailers, End, Tunnel; none: more has to come
//!                        └─ what is behind the end of a message is left to the next
//! ```
//!
//! Where slices end changes where body slices end, and nothing else. After an error, every call
//! gives the same one.

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

/// What one call took of its input, and what it found.
#[derive(Debug, PartialEq, Eq)]
pub struct Step<E> {
    /// So many bytes of the input are used up.
    pub consumed: usize,
    /// None: all of the input is used up and more has to come, or the decoder waits to be told
    /// something (`awaits_switch`, `awaits_request`).
    pub event: Option<E>,
}
