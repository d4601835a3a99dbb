//! Body readers, one per framing: yield slices of the input, then the end of the body.

use crate::chunked::{BodyEvent, Chunks};
use crate::error::{Fault, Reason, Side};
use crate::framing::Framing;

/// Position within a body: for a length, the bytes that are still missing.
#[derive(Debug)]
pub(crate) enum BodyReader {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
    Tunnel,
}

impl BodyReader {
    pub(crate) const fn new(framing: Framing, side: Side) -> Self {
        match framing {
            Framing::None => Self::Length(0),
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunks::new(side)),
            Framing::UntilClose => Self::UntilClose,
            Framing::Tunnel => Self::Tunnel,
        }
    }

    /// Returns the next event and the number of input bytes it took; without an event, all were
    /// taken.
    pub(crate) fn next<'i>(
        &mut self,
        offset: u64,
        input: &'i [u8],
    ) -> Result<(usize, Option<BodyEvent<'i>>), Fault> {
        Ok(match self {
            Self::Length(0) => (0, Some(BodyEvent::End)),
            Self::Chunked(chunks) => return chunks.next(offset, input),
            _ if input.is_empty() => (0, None),
            Self::Length(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= length as u64;
                (length, Some(BodyEvent::Bytes(&input[..length])))
            }
            Self::UntilClose => (input.len(), Some(BodyEvent::Bytes(input))),
            Self::Tunnel => (input.len(), Some(BodyEvent::Tunnel(input))),
        })
    }

    /// Returns whether the end of the connection completes the body: `true` for a body that lasts
    /// until then, `false` if that end means nothing here.
    ///
    /// # Errors
    /// The body is incomplete.
    pub(crate) fn eof(&self) -> Result<bool, Reason> {
        match self {
            Self::UntilClose => Ok(true),
            Self::Tunnel => Ok(false),
            Self::Length(0) => Ok(true),
            Self::Chunked(chunks) if chunks.is_over() => Ok(true),
            Self::Length(_) | Self::Chunked(_) => Err(Reason::IncompleteBody),
        }
    }
}
