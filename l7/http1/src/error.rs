//! Refusal of a message: its defect, its offset, the sentence of the RFC ([`Source`]) and the
//! status of the response. Always a fault of the sender.

pub use crate::reason::{Reason, Side};
use crate::source::Source;

/// A message is refused. Nothing after it can be read: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {reason} ({})", self.source().section)]
pub struct Error {
    /// Sender of the message.
    pub side: Side,
    /// Offset of the byte, counted from the first that the decoder was given.
    pub offset: u64,
    /// Defect of the message.
    pub reason: Reason,
}

impl Error {
    /// Returns the status for the response to the client, valid as long as no response has begun:
    /// 502 if the server is at fault.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self.side {
            Side::Request => self.reason.status(),
            Side::Response => 502,
        }
    }

    /// Returns the sentence of the RFC by which the message is refused.
    #[must_use]
    pub const fn source(self) -> Source {
        Source::of(self.reason, self.side)
    }
}

/// Error whose side, request or response, is not known yet.
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
