//! Connection to the server of an HTTP client: its state, and whether another client may have had
//! it, or may have it next. It knows no message.

/// State of the connection to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    /// There is none.
    #[default]
    None,
    /// It is there or being made, and nothing has come of it.
    Fresh,
    /// A response has come by it.
    Used,
}

/// Answer to the loss of a connection whose response has not begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Another connection is made for what waits to be sent.
    Elsewhere,
    /// Another connection is made, for these bytes in place of what waits to be sent: the whole
    /// request once more.
    Again(Vec<u8>),
    /// The server may have seen the request: nobody knows, and the client is told nothing.
    Unknown,
    /// The server has not answered the first request.
    Unanswered,
}

/// The connection to the server.
#[derive(Debug, Default)]
pub(super) struct Origin {
    link: Link,
    /// Such connections are kept for other clients.
    is_kept: bool,
    /// Requests that the server was sent.
    asked: u64,
    /// Responses that have come whole.
    answered: u64,
    /// Somebody has said by it who he is, or is to.
    is_own: bool,
    /// The first request, which does no harm when it is sent twice: by a connection that is kept,
    /// for nobody knows whether its server ends it just then.
    again: Option<Vec<u8>>,
    /// It is as it was before the first request.
    is_left: bool,
    /// The kernel has taken bytes of a request that has no response yet.
    has_sent: bool,
    /// Offset of the response that is awaited, in bytes that the decoder has taken.
    response_from: u64,
    /// It is of no use, but another one may be.
    is_dropped: bool,
    /// The server has a part of a request, which is not to pass for the whole.
    is_aborted: bool,
}

impl Origin {
    /// Returns true when there is to be a connection.
    pub(super) fn is_wanted(&self) -> bool {
        self.link != Link::None
    }

    /// Returns true when the connection may be one that another client has had.
    pub(super) const fn may_share(&self) -> bool {
        self.again.is_some() && !self.has_sent
    }

    /// Returns true when another client may have the connection, as far as this one has ended.
    pub(super) const fn is_left(&self) -> bool {
        self.is_left && !self.is_aborted
    }

    /// Returns true when the server is to be told that what it has is not the whole.
    pub(super) const fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Returns true when a response that is awaited begins at `offset`: nothing of it has come.
    pub(super) const fn is_response_at(&self, offset: u64) -> bool {
        self.response_from == offset
    }

    /// Shares the connection with clients before and behind this one.
    pub(super) const fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Handles bytes of the server.
    pub(super) fn handle_bytes(&mut self) {
        self.again = None;
    }

    /// Handles a connection that is there or being made.
    pub(super) fn handle_connection(&mut self, is_shared: bool) {
        if !is_shared {
            self.again = None;
        }
    }

    /// Handles bytes of a request that the kernel has taken.
    pub(super) const fn handle_sent(&mut self, count: usize) {
        self.has_sent |= count > 0;
    }

    /// Handles the end of every message whose bytes are sent.
    pub(super) const fn handle_rest(&mut self) {
        self.has_sent = false;
    }

    /// Notes that a client has said who it is by this connection.
    pub(super) const fn handle_authentication(&mut self) {
        self.is_own |= self.is_kept;
    }

    /// Notes that the connection has become its client's own, whether it is kept or not.
    pub(super) const fn claim(&mut self) {
        self.is_own = true;
    }

    /// Handles a request's head that has been written. `first`: it was all that there was to be
    /// sent, is whole, and does no harm when it is sent twice.
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

    /// Handles the beginning of a wait for a response, at an offset of the decoder.
    pub(super) const fn await_response(&mut self, offset: u64) {
        self.response_from = offset;
    }

    /// Handles a response that has come whole.
    pub(super) const fn handle_response(&mut self) {
        self.answered += 1;
    }

    /// Handles a response that has been sent whole.
    pub(super) const fn handle_response_sent(&mut self) {
        self.link = Link::Used;
    }

    /// Handles a server that cannot be reached.
    pub(super) const fn handle_unreachable(&mut self) {
        self.link = Link::None;
    }

    /// Handles the end of the client's connection. `is_clean`: the server could take a request of
    /// another client, and has said nothing that was not asked.
    pub(super) const fn close(&mut self, is_clean: bool) {
        self.is_left = self.asked == self.answered && !self.is_own && is_clean;
    }

    /// Handles bytes that the server was not asked for: it has lost count.
    pub(super) const fn handle_excess(&mut self) {
        self.is_left = false;
    }

    /// Notes that the server has a part of a request only.
    pub(super) const fn abort(&mut self) {
        self.is_aborted = true;
    }

    /// Gives the connection up, while that of the client goes on.
    pub(super) const fn give_up(&mut self) {
        self.is_dropped = true;
    }

    /// Returns true, once, when the connection is to be closed while that of the client goes on.
    pub(super) const fn take_given_up(&mut self) -> bool {
        std::mem::replace(&mut self.is_dropped, false)
    }

    /// Handles the loss of the connection before the response has begun; `is_unsent`: nothing waits
    /// to be sent.
    pub(super) fn handle_lost(&mut self, is_unsent: bool) -> Loss {
        if !self.has_sent && (is_unsent || self.link == Link::Used) {
            // It has not seen a byte of what is to be sent: that goes by another connection.
            self.link = if is_unsent { Link::None } else { Link::Fresh };
            self.is_dropped = true;
            return Loss::Elsewhere;
        }
        if let Some(request) = self.again.take() {
            // Its server has ended what was kept, just when it was used: another one is asked.
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
    fn only_the_first_harmless_request_is_sent_twice_and_by_a_kept_connection_only() {
        let mut origin = Origin::default();
        origin.handle_request(Some(b"GET /"));
        assert!(!origin.may_share());
        let mut origin = kept();
        origin.handle_request(Some(b"GET /"));
        assert!(origin.may_share() && origin.is_wanted());
        origin.handle_sent(5);
        assert!(!origin.may_share());
        assert_eq!(origin.handle_lost(true), Loss::Again(b"GET /".to_vec()));
        assert!(origin.take_given_up() && !origin.take_given_up());
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
    fn a_connection_is_left_to_others_when_each_request_has_its_answer_and_nobody_said_who_he_is() {
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
