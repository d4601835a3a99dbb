//! State of one direction of a request or response: received, passed to the module, sent.
//!
//! ```text
//!   decoder ─▶ head, body, trailers, end ─▶ module ─▶ encoder
//!        received: `head`, `has_fresh`,    passed    sent: `is_over`
//!              `trailers`, `has_ended`
//! ```

use super::heads::Refused;
use crate::module::Parts;
use http1::{Body, EncodeError, Encoder, Framing, Headers};
use proxy_wasm::HeaderMap;

/// Callback to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Creation of the context: for requests only.
    Create,
    /// Head that has been sent, for another VM than the one that let it go on.
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
    /// Not received.
    Awaited,
    /// Received, not passed to the module.
    Received,
    /// Held by the module.
    Held,
    /// Released, but waiting for the module's decision about the first part of the body.
    Ready,
    /// Sent.
    Sent,
}

/// State of one direction of a message.
#[derive(Debug)]
pub(super) struct Direction {
    framing: Framing,
    head: Head,
    /// True if body bytes were received that the module has not seen.
    has_fresh: bool,
    /// True if the module holds the body or the trailers.
    is_held: bool,
    /// True if the module has seen the end of the body.
    is_last_shown: bool,
    trailers: Headers,
    has_trailers: bool,
    are_trailers_shown: bool,
    has_ended: bool,
    is_over: bool,
    /// True if the rest is dropped, because of a response from elsewhere.
    is_dropped: bool,
    encoder: Option<Encoder>,
    /// Number of body bytes received.
    bytes: u64,
    /// True if the head has been sent, and the current VM has not seen it.
    is_reshown: bool,
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
            is_reshown: false,
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

    /// Returns the number of body bytes received.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn has_body(&self) -> bool {
        !matches!(self.framing, Framing::None | Framing::Length(0) | Framing::Tunnel)
    }

    /// Returns true if body bytes were received that the module has not seen.
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

    /// Returns true if the module holds the body or the trailers.
    pub(super) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Returns true if the module holds any part.
    pub(super) const fn is_paused(&self) -> bool {
        matches!(self.head, Head::Held) || self.is_held
    }

    /// Returns true if the module has seen the end of the body.
    pub(super) const fn is_last_shown(&self) -> bool {
        self.is_last_shown
    }

    /// Returns true if the module has seen everything.
    pub(super) const fn is_end_shown(&self) -> bool {
        self.is_last_shown || self.are_trailers_shown
    }

    /// Returns true if the head must be passed to another VM than the one that let it go on.
    pub(super) const fn is_reshown(&self) -> bool {
        self.is_reshown
    }

    /// Returns true if reading must stop, because the module holds a part.
    pub(super) const fn is_stopped(&self) -> bool {
        !self.is_dropped
            && (matches!(self.head, Head::Held) || (self.is_held && self.are_trailers_shown))
    }

    /// Returns the next callback, of those that the module exports.
    pub(super) fn stage(&self, wants: Parts) -> Option<Stage> {
        if self.is_over || self.is_dropped || self.is_stopped() {
            return None;
        }
        if self.head == Head::Received {
            return wants.headers.then_some(Stage::Head);
        }
        let is_last = self.has_ended && !self.has_trailers && self.has_body();
        if wants.body && (self.has_fresh || (is_last && !self.is_last_shown)) {
            return Some(Stage::Body { is_last });
        }
        let shows_trailers = wants.trailers && self.has_trailers && !self.are_trailers_shown;
        shows_trailers.then_some(Stage::Trailers)
    }

    /// Returns the body to send: with the length in the module's head, or unknown.
    pub(super) fn body(&self, headers: &Headers, whole: Option<u64>) -> Body {
        match (self.framing, whole) {
            (Framing::Length(0), _) => Body::Unchanged(self.framing),
            (Framing::Length(_), Some(length)) if self.trailers.is_empty() => Body::Known(length),
            (Framing::Length(length), None) => match declared_length(headers) {
                Some(declared) if declared == length => Body::Unchanged(self.framing),
                Some(declared) => Body::Known(declared),
                None => Body::Unknown,
            },
            (Framing::Length(_), Some(_)) => Body::Unknown,
            _ => Body::Unchanged(self.framing),
        }
    }

    /// Handles the receipt of the head.
    pub(super) const fn handle_head(&mut self, framing: Framing) {
        self.framing = framing;
        self.head = Head::Received;
    }

    /// Counts received bytes of the body.
    pub(super) const fn handle_body(&mut self, length: usize) {
        self.bytes += length as u64;
    }

    /// Handles bytes that were added to the module's buffer.
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

    /// Handles that a callback has been made.
    pub(super) const fn handle_shown(&mut self, stage: Stage) {
        match stage {
            Stage::Body { is_last } => {
                self.has_fresh = false;
                self.is_last_shown |= is_last;
            }
            Stage::Trailers => self.are_trailers_shown = true,
            Stage::Again => self.is_reshown = false,
            Stage::Create | Stage::Head => {}
        }
    }

    /// Handles a pause by the module in a callback.
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

    /// Releases the head; returns false if it was released before.
    pub(super) fn resume_head(&mut self) -> bool {
        let is_waiting = matches!(self.head, Head::Received | Head::Held);
        if is_waiting {
            self.head = Head::Ready;
        }
        is_waiting
    }

    /// Releases a head that the module does not want to see.
    pub(super) fn skip_head(&mut self) {
        if self.head == Head::Received {
            self.head = Head::Ready;
        }
    }

    /// Continues without a module; returns false if there is nothing to do.
    pub(super) fn unfilter(&mut self) -> bool {
        if self.is_over || self.is_dropped || self.head == Head::Awaited {
            return false;
        }
        (self.is_held, self.has_fresh) = (false, false);
        self.resume_head();
        true
    }

    /// Replaces the trailers with the module's.
    pub(super) fn edit_trailers(&mut self, map: &HeaderMap) -> Result<(), Refused> {
        self.trailers = super::heads::trailers(map)?;
        Ok(())
    }

    /// Drops everything received from now on.
    pub(super) const fn drop_rest(&mut self) {
        self.is_dropped = true;
    }

    /// Handles that the head has been written; without an encoder there is no body.
    pub(super) fn handle_sent(&mut self, encoder: Option<Encoder>) {
        self.head = Head::Sent;
        self.encoder = encoder;
    }

    /// Handles that another complete message was sent instead.
    pub(super) const fn handle_replaced(&mut self) {
        self.head = Head::Sent;
        self.is_over = true;
    }

    /// Ends the direction with nothing sent.
    pub(super) const fn end_unsent(&mut self) {
        self.is_over = true;
    }

    /// Writes a part of the body, after the head.
    ///
    /// # Errors
    /// The body does not match the head.
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
    /// The body was shorter than the head says.
    pub(super) fn write_end(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let trailers = std::mem::take(&mut self.trailers);
        self.encoder.as_mut().map_or(Ok(()), |encoder| encoder.end(&trailers, out))?;
        self.is_over = true;
        Ok(())
    }

    /// Restores the unsent parts for another VM; `has_body` is true if a part of the body is among
    /// them.
    pub(super) fn rewind(&mut self, has_body: bool, wants: Parts) {
        if self.is_over || self.is_dropped {
            self.is_reshown = wants.headers && self.head > Head::Held;
            return;
        }
        self.is_held = false;
        self.has_fresh = has_body;
        self.is_last_shown = false;
        self.are_trailers_shown = false;
        match self.head {
            Head::Awaited => {}
            Head::Received | Head::Held => self.head = Head::Received,
            Head::Ready | Head::Sent => self.is_reshown = wants.headers,
        }
    }
}

/// Returns the length in a head, if it is valid.
fn declared_length(headers: &Headers) -> Option<u64> {
    let digits = headers.get(b"content-length")?;
    let text = std::str::from_utf8(digits).ok()?;
    if digits.iter().all(u8::is_ascii_digit) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Parts = Parts { headers: true, body: true, trailers: true };

    #[test]
    fn a_direction_is_passed_in_order_and_nothing_while_it_is_held() {
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
    fn unsent_parts_are_passed_again_to_another_vm() {
        let mut it = Direction::new();
        it.handle_head(Framing::Chunked);
        it.hold(Stage::Head);
        it.rewind(false, ALL);
        assert_eq!((it.stage(ALL), it.is_reshown()), (Some(Stage::Head), false));
        it.resume_head();
        it.handle_sent(None);
        it.rewind(true, ALL);
        assert!(it.is_reshown());
        it.handle_shown(Stage::Again);
        assert_eq!((it.stage(ALL), it.is_reshown()), (Some(Stage::Body { is_last: false }), false));
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
