//! One direction of a request or response: what of it has come, what the module has been shown,
//! what has gone on.
//!
//! ```text
//!  decoder ─▶ head, body, trailers, end ─▶ module ─▶ encoder
//!             came: `head`, `has_fresh`,   shown     gone: `is_over`
//!             `has_trailers`, `has_ended`
//! ```

use crate::module::Parts;
use http1::{Encoder, Framing, Headers};

/// A callback to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The context is made: of requests only.
    Create,
    /// A head that has gone on is shown to another VM than the one that let it go on.
    Again,
    Head,
    Body {
        is_last: bool,
    },
    Trailers,
}

/// How far a head is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Head {
    /// It has not come.
    Awaited,
    /// It has not been shown.
    Came,
    /// The module holds it.
    Held,
    /// It may go, and waits for what the module says of the first part of the body.
    Ready,
    /// It has gone.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) framing: Framing,
    pub(crate) head: Head,
    /// Bytes of the body that the module has not been shown.
    pub(crate) has_fresh: bool,
    /// The module holds what it was shown of body or trailers.
    pub(crate) is_held: bool,
    /// The module has been shown the end of the body.
    pub(crate) is_last_shown: bool,
    pub(crate) trailers: Headers,
    pub(crate) has_trailers: bool,
    pub(crate) are_trailers_shown: bool,
    pub(crate) has_ended: bool,
    pub(crate) is_over: bool,
    /// What comes is dropped: somebody else has answered.
    pub(crate) is_dropped: bool,
    pub(crate) encoder: Option<Encoder>,
    /// Bytes of the body that came.
    pub(crate) bytes: u64,
    /// Its body is, or was, pictures in place of what the server sent.
    pub(crate) is_pictures: bool,
    /// Its head has gone on, and the VM that runs now has not seen it.
    pub(crate) is_again: bool,
}

impl Way {
    pub(crate) const fn new() -> Self {
        Self {
            framing: Framing::None,
            head: Head::Awaited,
            has_fresh: false,
            is_held: false,
            is_last_shown: false,
            trailers: Headers::new(),
            has_trailers: false,
            are_trailers_shown: false,
            has_ended: false,
            is_over: false,
            is_dropped: false,
            encoder: None,
            bytes: 0,
            is_pictures: false,
            is_again: false,
        }
    }

    pub(crate) const fn has_body(&self) -> bool {
        !matches!(self.framing, Framing::None | Framing::Length(0) | Framing::Tunnel)
    }

    /// Whether the module waits with it, so that nothing more of it is to be read.
    pub(crate) const fn is_stopped(&self) -> bool {
        !self.is_dropped
            && (matches!(self.head, Head::Held) || (self.is_held && self.are_trailers_shown))
    }

    /// The next callback, of those that there are.
    pub(crate) fn stage(&self, wants: Parts) -> Option<Stage> {
        if self.is_over || self.is_dropped || self.is_stopped() {
            return None;
        }
        if self.head == Head::Came {
            return wants.headers.then_some(Stage::Head);
        }
        let is_last = self.has_ended && !self.has_trailers && self.has_body();
        if wants.body && (self.has_fresh || (is_last && !self.is_last_shown)) {
            return Some(Stage::Body { is_last });
        }
        let shows_trailers = wants.trailers && self.has_trailers && !self.are_trailers_shown;
        shows_trailers.then_some(Stage::Trailers)
    }

    /// The framing of what goes on of it: the length that the module leaves, or chunks.
    pub(super) fn body(&self, headers: &http1::Headers, whole: Option<u64>) -> http1::Body {
        use http1::{Body, Framing};
        match (self.framing, whole) {
            (Framing::Length(0), _) => Body::Unchanged(self.framing),
            (Framing::Length(_), Some(length)) if self.trailers.is_empty() => Body::Known(length),
            (Framing::Length(length), None) => match said_length(headers) {
                Some(said) if said == length => Body::Unchanged(self.framing),
                Some(said) => Body::Known(said),
                None => Body::Unknown,
            },
            (Framing::Length(_), Some(_)) => Body::Unknown,
            _ => Body::Unchanged(self.framing),
        }
    }

    /// Restores what has not gone on to as it came; `has_body`: a part of its body is among that.
    pub(super) fn rewind(&mut self, has_body: bool, wants: Parts) {
        if self.is_over || self.is_dropped {
            self.is_again = wants.headers && self.head > Head::Held;
            return;
        }
        self.is_held = false;
        self.has_fresh = has_body;
        self.is_last_shown = false;
        self.are_trailers_shown = false;
        match self.head {
            Head::Awaited => {}
            Head::Came | Head::Held => self.head = Head::Came,
            Head::Ready | Head::Gone => self.is_again = wants.headers,
        }
    }
}

/// The length that a head says, if it says one that can be read.
fn said_length(headers: &http1::Headers) -> Option<u64> {
    let digits = headers.get(b"content-length")?;
    let text = std::str::from_utf8(digits).ok()?;
    if digits.iter().all(u8::is_ascii_digit) { text.parse().ok() } else { None }
}
