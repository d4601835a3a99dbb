//! Server connection of an HTTP client: its state, and its reuse across clients. Knows no messages.

/// State of the server connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    /// No connection.
    #[default]
    None,
    /// Connected or connecting; no response has been received.
    Fresh,
    /// A response has been received.
    Used,
}

/// Reaction to the loss of a connection before the response has begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Send the unsent bytes on another connection.
    Elsewhere,
    /// Send the complete request again on another connection: these bytes replace the unsent ones.
    Again(Vec<u8>),
    /// The server may have seen the request: the client's connection ends without a response.
    Unknown,
    /// The server did not answer the first request.
    Unanswered,
}

/// State of the server connection and its requests.
#[derive(Debug, Default)]
pub(super) struct Origin {
    link: Link,
    /// True if such connections are kept for other clients.
    is_kept: bool,
    /// Number of requests sent to the server.
    asked: u64,
    /// Number of complete responses.
    answered: u64,
    /// True if an authentication binds the connection to its client.
    is_own: bool,
    /// First request, if it may be repeated: sent on a reused connection, which its server may
    /// close at that very moment.
    again: Option<Vec<u8>>,
    /// True if the connection is in its initial state after the client's end.
    is_left: bool,
    /// True if the kernel has accepted bytes of a request without a response.
    has_sent: bool,
    /// Offset of the awaited response, in bytes decoded.
    response_from: u64,
    /// True if the connection has to be closed, and another one may be made.
    is_dropped: bool,
    /// True if the server has an incomplete request, and must not take it for complete.
    is_aborted: bool,
}

impl Origin {
    /// Returns true if a connection is needed.
    pub(super) fn is_wanted(&self) -> bool {
        self.link != Link::None
    }

    /// Returns true if the connection may be one that another client has used.
    pub(super) const fn may_share(&self) -> bool {
        self.again.is_some() && !self.has_sent
    }

    /// Returns true if another client may use the connection after this one's end.
    pub(super) const fn is_left(&self) -> bool {
        self.is_left && !self.is_aborted
    }

    /// Returns true if the server must learn, by a reset, that its request is incomplete.
    pub(super) const fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Returns true if the awaited response begins at `offset`: nothing of it was received.
    pub(super) const fn is_response_at(&self, offset: u64) -> bool {
        self.response_from == offset
    }

    /// Shares the connection with earlier and later clients.
    pub(super) const fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Handles bytes of the server.
    pub(super) fn handle_bytes(&mut self) {
        self.again = None;
    }

    /// Handles the start of a connection.
    pub(super) fn handle_connection(&mut self, is_shared: bool) {
        if !is_shared {
            self.again = None;
        }
    }

    /// Handles bytes of a request that the kernel has accepted.
    pub(super) const fn handle_sent(&mut self, count: usize) {
        self.has_sent |= count > 0;
    }

    /// Handles the end of all messages whose bytes are sent.
    pub(super) const fn handle_rest(&mut self) {
        self.has_sent = false;
    }

    /// Records that an authentication binds the connection to its client.
    pub(super) const fn handle_authentication(&mut self) {
        self.is_own |= self.is_kept;
    }

    /// Records that the connection belongs to its client alone, even if connections are kept.
    pub(super) const fn claim(&mut self) {
        self.is_own = true;
    }

    /// Handles that a request's head has been written. `first`: the bytes, if they are a complete
    /// request, the only unsent ones, and may be repeated.
    pub(super) fn handle_request(&mut self, first: Option<&[u8]>) {
        self.asked += 1;
        let is_first = self.is_kept && self.link == Link::None && !self.is_own;
        if let Some(request) = first.filter(|_| is_first) {
            self.again = Some(request.to_vec());
        }
        if self.link == Link::None {
            self.link = Link::Fresh;
        }
    }

    /// Handles the start of a wait for a response, at an offset of the decoder.
    pub(super) const fn await_response(&mut self, offset: u64) {
        self.response_from = offset;
    }

    /// Handles the receipt of a complete response.
    pub(super) const fn handle_response(&mut self) {
        self.answered += 1;
    }

    /// Handles that a complete response has been sent.
    pub(super) const fn handle_response_sent(&mut self) {
        self.link = Link::Used;
    }

    /// Handles that the server cannot be reached.
    pub(super) const fn handle_unreachable(&mut self) {
        self.link = Link::None;
    }

    /// Handles the end of the client's connection. `is_clean`: the server is ready for another
    /// client's request, and has sent nothing unsolicited.
    pub(super) const fn close(&mut self, is_clean: bool) {
        self.is_left = self.asked == self.answered && !self.is_own && is_clean;
    }

    /// Handles unsolicited bytes: the server is out of sync.
    pub(super) const fn handle_excess(&mut self) {
        self.is_left = false;
    }

    /// Records that the server has an incomplete request.
    pub(super) const fn abort(&mut self) {
        self.is_aborted = true;
    }

    /// Drops the connection, while the client's continues.
    pub(super) const fn abandon(&mut self) {
        self.is_dropped = true;
    }

    /// Returns true, once, if the connection has to be closed while the client's continues.
    pub(super) const fn take_abandoned(&mut self) -> bool {
        std::mem::replace(&mut self.is_dropped, false)
    }

    /// Handles the loss of the connection before the response has begun; `is_unsent` is true if
    /// nothing is unsent.
    pub(super) fn handle_lost(&mut self, is_unsent: bool) -> Loss {
        if !self.has_sent && (is_unsent || self.link == Link::Used) {
            // The server has not seen any of the unsent bytes: they are sent on another connection.
            self.link = if is_unsent { Link::None } else { Link::Fresh };
            self.is_dropped = true;
            return Loss::Elsewhere;
        }
        if let Some(request) = self.again.take() {
            // The server closed a kept connection just when it was reused: repeat on another one.
            (self.link, self.has_sent, self.is_dropped) = (Link::Fresh, false, true);
            return Loss::Again(request);
        }
        if self.link == Link::Used { Loss::Unknown } else { Loss::Unanswered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Origin {
        let mut origin = Origin::default();
        origin.keep();
        origin
    }

    #[test]
    fn only_the_first_safe_request_is_repeated_and_on_a_kept_connection_only() {
        let mut origin = Origin::default();
        origin.handle_request(Some(b"GET /"));
        assert!(!origin.may_share());
        let mut origin = kept();
        origin.handle_request(Some(b"GET /"));
        assert!(origin.may_share() && origin.is_wanted());
        origin.handle_sent(5);
        assert!(!origin.may_share());
        assert_eq!(origin.handle_lost(true), Loss::Again(b"GET /".to_vec()));
        assert!(origin.take_abandoned() && !origin.take_abandoned());
        origin.handle_sent(5);
        assert_eq!(origin.handle_lost(true), Loss::Unanswered, "once");
    }

    #[test]
    fn an_answered_connection_that_is_lost_before_anything_was_sent_is_replaced() {
        let mut origin = kept();
        origin.handle_request(None);
        origin.handle_sent(5);
        origin.handle_response();
        origin.handle_response_sent();
        origin.handle_rest();
        assert_eq!(origin.handle_lost(true), Loss::Elsewhere);
        assert!(!origin.is_wanted());
        let mut origin = kept();
        origin.handle_response_sent();
        origin.handle_sent(1);
        assert_eq!(origin.handle_lost(false), Loss::Unknown);
    }

    #[test]
    fn a_connection_is_reusable_without_outstanding_requests_and_authentication() {
        let ended = |act: fn(&mut Origin)| {
            let mut origin = kept();
            origin.handle_request(None);
            origin.handle_response();
            act(&mut origin);
            origin.close(true);
            origin.is_left()
        };
        assert!(ended(|_| {}));
        assert!(!ended(|it| it.handle_request(None)));
        assert!(!ended(Origin::handle_authentication));
        assert!(!ended(Origin::abort));
        let mut origin = kept();
        origin.close(false);
        assert!(!origin.is_left());
    }
}
