//! Why bytes are no message that is passed on: what, where, by which sentence ([`Source`]), and
//! what to answer. The sender's fault, always.

pub use crate::reason::{Reason, Side};
use crate::source::Source;

/// A message is refused. Nothing behind it can be read: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {reason} ({})", self.source().section)]
pub struct Error {
    /// Sender of the message.
    pub side: Side,
    /// The byte, counted from the first that the decoder was given.
    pub offset: u64,
    /// Defect of the message.
    pub reason: Reason,
}

impl Error {
    /// The status to answer the client with, as long as no response has begun: 502 when the
    /// server is at fault.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self.side {
            Side::Request => self.reason.status(),
            Side::Response => 502,
        }
    }

    /// The sentence by which it is refused.
    #[must_use]
    pub const fn source(self) -> Source {
        Source::of(self.reason, self.side)
    }
}

/// An error before it is known whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) offset: u64,
    pub(crate) reason: Reason,
}

impl Fault {
    pub(crate) const fn on(self, side: Side) -> Error {
        Error { side, offset: self.offset, reason: self.reason }
    }
}
