//! One direction of a request or response: how far it has come, has been shown to the module, and
//! has been sent.
//!
//! ```text
//!  decoder ─▶ head, body, trailers, end ─▶ module ─▶ encoder
//!             came: `head`, `has_fresh`,   shown     sent: `is_over`
//!             `trailers`, `has_ended`
//! ```

use super::heads::Refused;
use crate::module::Parts;
use http1::{Body, EncodeError, Encoder, Framing, Headers};
use proxy_wasm::HeaderMap;

/// A callback to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The context is made: of requests only.
    Create,
    /// A head that has been sent is shown to another VM than the one that let it go on.
    Again,
    Head,
    Body {
        is_last: bool,
    },
    Trailers,
}

/// State of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Head {
    /// It has not come.
    Awaited,
    /// It has not been shown.
    Came,
    /// The module holds it.
    Held,
    /// It may be sent, and waits for what the module says of the first part of the body.
    Ready,
    /// It has been sent.
    Gone,
}

/// State of one direction of a message.
#[derive(Debug)]
pub(super) struct Direction {
    framing: Framing,
    head: Head,
    /// Bytes of the body have come that the module has not been shown.
    has_fresh: bool,
    /// The module holds the body or the trailers that it was shown.
    is_held: bool,
    /// The module has been shown the end of the body.
    is_last_shown: bool,
    trailers: Headers,
    has_trailers: bool,
    are_trailers_shown: bool,
    has_ended: bool,
    is_over: bool,
    /// The rest is dropped: somebody else has answered.
    is_dropped: bool,
    encoder: Option<Encoder>,
    /// Bytes of the body that came.
    bytes: u64,
    /// The head has been sent, and the VM that runs now has not seen it.
    is_again: bool,
}

impl Direction {
    pub(super) const fn new() -> Self {
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
            is_again: false,
        }
    }

    pub(super) const fn head(&self) -> Head {
        self.head
    }

    pub(super) const fn framing(&self) -> Framing {
        self.framing
    }

    pub(super) const fn trailers(&self) -> &Headers {
        &self.trailers
    }

    /// Returns the bytes of the body that have come.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn has_body(&self) -> bool {
        !matches!(self.framing, Framing::None | Framing::Length(0) | Framing::Tunnel)
    }

    /// Returns true when bytes of the body have come that the module has not been shown.
    pub(super) const fn has_fresh(&self) -> bool {
        self.has_fresh
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) const fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Returns true when the module holds the body or the trailers that it was shown.
    pub(super) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns true when the module holds anything of it.
    pub(super) const fn is_paused(&self) -> bool {
        matches!(self.head, Head::Held) || self.is_held
    }

    /// Returns true when the module has been shown the end of the body.
    pub(super) const fn is_last_shown(&self) -> bool {
        self.is_last_shown
    }

    /// Returns true when nothing is left that the module could be shown.
    pub(super) const fn is_end_shown(&self) -> bool {
        self.is_last_shown || self.are_trailers_shown
    }

    /// Returns true when the head is to be shown to another VM than the one that let it go on.
    pub(super) const fn is_again(&self) -> bool {
        self.is_again
    }

    /// Returns true when the module waits with it, so that nothing more of it is to be read.
    pub(super) const fn is_stopped(&self) -> bool {
        !self.is_dropped
            && (matches!(self.head, Head::Held) || (self.is_held && self.are_trailers_shown))
    }

    /// Returns the next callback, of those that the module has.
    pub(super) fn stage(&self, wants: Parts) -> Option<Stage> {
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

    /// Returns the framing of what is sent of it: the length that the module leaves, or chunks.
    pub(super) fn body(&self, headers: &Headers, whole: Option<u64>) -> Body {
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

    /// Handles the arrival of the head.
    pub(super) const fn handle_head(&mut self, framing: Framing) {
        self.framing = framing;
        self.head = Head::Came;
    }

    /// Counts bytes of the body that have come.
    pub(super) const fn handle_body(&mut self, length: usize) {
        self.bytes += length as u64;
    }

    /// Handles bytes that have been put where the module sees them.
    pub(super) const fn handle_fresh(&mut self) {
        self.has_fresh = true;
    }

    pub(super) fn handle_trailers(&mut self, trailers: Headers) {
        self.trailers = trailers;
        self.has_trailers = true;
    }

    /// Handles the end of the body and its trailers.
    pub(super) const fn handle_end(&mut self) {
        self.has_ended = true;
    }

    /// Handles a callback that has been made.
    pub(super) const fn handle_shown(&mut self, stage: Stage) {
        match stage {
            Stage::Body { is_last } => {
                self.has_fresh = false;
                self.is_last_shown |= is_last;
            }
            Stage::Trailers => self.are_trailers_shown = true,
            Stage::Again => self.is_again = false,
            Stage::Create | Stage::Head => {}
        }
    }

    /// Handles the module's pause in a callback.
    pub(super) fn hold(&mut self, stage: Stage) {
        match stage {
            Stage::Head => self.head = Head::Held,
            _ => self.is_held = true,
        }
    }

    /// Ends a pause of body or trailers.
    pub(super) const fn resume(&mut self) {
        self.is_held = false;
    }

    /// Lets the head be sent; returns true when it could not before.
    pub(super) fn resume_head(&mut self) -> bool {
        let is_waiting = matches!(self.head, Head::Came | Head::Held);
        if is_waiting {
            self.head = Head::Ready;
        }
        is_waiting
    }

    /// Lets a head be sent that the module does not want to see.
    pub(super) fn skip_head(&mut self) {
        if self.head == Head::Came {
            self.head = Head::Ready;
        }
    }

    /// Goes on without a module, from where it stands; returns false when there is nothing to do.
    pub(super) fn unfilter(&mut self) -> bool {
        if self.is_over || self.is_dropped || self.head == Head::Awaited {
            return false;
        }
        (self.is_held, self.has_fresh) = (false, false);
        self.resume_head();
        true
    }

    /// Replaces the trailers by those that the module has made.
    pub(super) fn edit_trailers(&mut self, map: &HeaderMap) -> Result<(), Refused> {
        self.trailers = super::heads::trailers(map)?;
        Ok(())
    }

    /// Drops what comes from now on.
    pub(super) const fn drop_rest(&mut self) {
        self.is_dropped = true;
    }

    /// Handles a head that has been written; without an encoder there is no body.
    pub(super) fn handle_sent(&mut self, encoder: Option<Encoder>) {
        self.head = Head::Gone;
        self.encoder = encoder;
    }

    /// Handles a whole message that was sent in its place.
    pub(super) const fn handle_replaced(&mut self) {
        self.head = Head::Gone;
        self.is_over = true;
    }

    /// Ends it with nothing sent.
    pub(super) const fn end_unsent(&mut self) {
        self.is_over = true;
    }

    /// Writes a part of the body behind a head that has been written.
    ///
    /// # Errors
    /// When the body does not fit what the head says of it.
    pub(super) fn write_body(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        self.encoder.as_mut().map_or(Ok(()), |encoder| encoder.write_body(bytes, out))
    }

    /// Writes the end of the body with its trailers.
    ///
    /// # Errors
    /// When the body was shorter than its head says.
    pub(super) fn write_end(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let trailers = std::mem::take(&mut self.trailers);
        self.encoder.as_mut().map_or(Ok(()), |encoder| encoder.end(&trailers, out))?;
        self.is_over = true;
        Ok(())
    }

    /// Restores what has not been sent to as it came; `has_body`: a part of its body is among that.
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

/// Returns the length that a head says, if it says one that can be read.
fn said_length(headers: &Headers) -> Option<u64> {
    let digits = headers.get(b"content-length")?;
    let text = std::str::from_utf8(digits).ok()?;
    if digits.iter().all(u8::is_ascii_digit) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Parts = Parts { headers: true, body: true, trailers: true };

    #[test]
    fn a_direction_is_shown_in_order_and_nothing_while_it_is_held() {
        let mut it = Direction::new();
        assert_eq!(it.stage(ALL), None);
        it.handle_head(Framing::Chunked);
        assert_eq!(it.stage(ALL), Some(Stage::Head));
        it.hold(Stage::Head);
        assert!(it.is_stopped() && it.is_paused());
        assert_eq!(it.stage(ALL), None);
        assert!(it.resume_head(), "the head may be sent now");
        assert!(!it.resume_head(), "once");
        it.handle_fresh();
        assert_eq!(it.stage(ALL), Some(Stage::Body { is_last: false }));
        it.handle_shown(Stage::Body { is_last: false });
        assert_eq!(it.stage(ALL), None);
        it.handle_end();
        assert_eq!(it.stage(ALL), Some(Stage::Body { is_last: true }));
        it.handle_shown(Stage::Body { is_last: true });
        assert_eq!(it.stage(ALL), None);
    }

    #[test]
    fn what_was_not_sent_is_shown_again_to_another_vm() {
        let mut it = Direction::new();
        it.handle_head(Framing::Chunked);
        it.hold(Stage::Head);
        it.rewind(false, ALL);
        assert_eq!((it.stage(ALL), it.is_again()), (Some(Stage::Head), false));
        it.resume_head();
        it.handle_sent(None);
        it.rewind(true, ALL);
        assert!(it.is_again());
        it.handle_shown(Stage::Again);
        assert_eq!((it.stage(ALL), it.is_again()), (Some(Stage::Body { is_last: false }), false));
    }

    #[test]
    fn a_length_is_kept_only_where_the_module_has_left_it() {
        let mut headers = Headers::new();
        let mut it = Direction::new();
        it.handle_head(Framing::Length(5));
        assert_eq!(it.body(&headers, None), Body::Unknown);
        headers.add(b"Content-Length", b"5").unwrap();
        assert_eq!(it.body(&headers, None), Body::Unchanged(Framing::Length(5)));
        assert_eq!(it.body(&headers, Some(7)), Body::Known(7));
        it.handle_head(Framing::Chunked);
        assert_eq!(it.body(&headers, Some(7)), Body::Unchanged(Framing::Chunked));
    }
}
