//! What belongs together on a connection: requests and their responses in order, whether the
//! next may follow, who waits for 100, and when both connections end.
//!
//! ```text
//!  requests:   3 (arrives) │ 2 │ 1 ──▶ server
//!  responses:  1 (arrives) ──▶ client            each ends before the next begins
//! ```
//!
//! A node has one connection to the server for each of a client, so that what one of them says
//! of its connection holds for both; unless it keeps those to servers for the next client
//! ([`Exchange::keep_server`]).

use crate::decode::Switch;
use crate::framing::{Asked, AskedBy, Framing, announces_body};
use crate::head::{RequestHead, ResponseHead};
use crate::limits::PIPELINED_COUNT_MAX;
use crate::version::Version;
use std::collections::VecDeque;

/// What happens behind the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The connections stay.
    Stay,
    /// Both connections end, once what is written has arrived.
    Close,
}

/// What was handed in does not follow from what came before. Our own fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// A request where none may follow.
    #[error("no request may follow here")]
    RequestOutOfTurn,
    /// A response, or a part of one, without its request.
    #[error("no response is outstanding here")]
    ResponseOutOfTurn,
    /// A filter made a request a CONNECT, or made a CONNECT another request.
    #[error("a filter must not make a request a CONNECT, nor a CONNECT another request")]
    ConnectEdited,
}

/// How far a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Awaited,
    Begun,
    Over,
}

#[derive(Debug)]
struct Entry {
    /// By the client, and by what was sent to the server in its place.
    asked: Asked,
    sent: Asked,
    version: Version,
    may_switch: bool,
    is_persistent: bool,
    awaits_continue: bool,
    ends_unsaid: bool,
    /// The server's connection stays behind it, as far as the server is concerned.
    leaves_server: bool,
    request: Progress,
    response: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Tunnel,
    Closing,
}

/// One client connection with its server connection.
#[derive(Debug)]
pub struct Exchange {
    entries: VecDeque<Entry>,
    state: State,
    keeps_server: bool,
    /// The server has announced a body where there is none, and may send it: another client must not
    /// read it as its response.
    is_doubtful: bool,
    /// The connections end, and the server's does not have to.
    leaves_server: bool,
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new()
    }
}

impl Exchange {
    /// At the beginning of a connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            state: State::Open,
            keeps_server: false,
            is_doubtful: false,
            leaves_server: false,
        }
    }

    /// From now on the connection to the server is for other clients when this one ends, as far as
    /// it can be: [`leaves_server`](Self::leaves_server).
    pub const fn keep_server(&mut self) {
        self.keeps_server = true;
    }

    /// Whether the connection to the server is as it was before the first request, and would stay.
    #[must_use]
    pub fn leaves_server(&self) -> bool {
        self.keeps_server
            && !self.is_doubtful
            && match self.state {
                State::Open => self.entries.is_empty(),
                State::Closing => self.leaves_server,
                State::Tunnel => false,
            }
    }

    /// Whether the last request, which says that its connection ends, goes to the server without
    /// that ([`connection::unset_close`](crate::connection::unset_close)).
    #[must_use]
    pub fn must_unsay_close(&self) -> bool {
        let ends = |last: &Entry| {
            !last.is_persistent
                && last.version == Version::Http11
                && !last.may_switch
                && last.asked.method != AskedBy::Connect
        };
        self.keeps_server && self.entries.back().is_some_and(ends)
    }

    /// Whether bytes of a client may be read as a request: not while the one before is under
    /// way or asks to switch protocols, not behind the last of a connection, and not while too
    /// many wait for their responses.
    #[must_use]
    pub fn may_begin_request(&self) -> bool {
        let follows = self.entries.back().is_none_or(|last| {
            last.request == Progress::Over && last.is_persistent && !last.may_switch
        });
        self.state == State::Open && follows && self.entries.len() < PIPELINED_COUNT_MAX
    }

    /// A request's head came.
    ///
    /// # Errors
    /// When it may not follow: [`may_begin_request`](Self::may_begin_request).
    pub fn handle_request(
        &mut self,
        head: &RequestHead,
        framing: Framing,
    ) -> Result<(), ExchangeError> {
        if !self.may_begin_request() {
            return Err(ExchangeError::RequestOutOfTurn);
        }
        let has_body = !matches!(framing, Framing::None | Framing::Length(0));
        let asked = Asked::by(head);
        self.entries.push_back(Entry {
            asked,
            sent: asked,
            version: head.version(),
            may_switch: asked.may_switch(),
            is_persistent: head.is_persistent(),
            awaits_continue: has_body && head.expects_continue(),
            ends_unsaid: false,
            leaves_server: true,
            request: Progress::Awaited,
            response: Progress::Awaited,
        });
        Ok(())
    }

    /// The last request goes to the server with this head, which filters have edited. They may
    /// take out a request to switch protocols, but add none.
    ///
    /// # Errors
    /// When there is none, or it was made a CONNECT, or is one no more.
    pub fn handle_request_sent(&mut self, head: &RequestHead) -> Result<(), ExchangeError> {
        let last = self.entries.back_mut().ok_or(ExchangeError::RequestOutOfTurn)?;
        let sent = Asked::by(head);
        if (sent.method == AskedBy::Connect) != (last.asked.method == AskedBy::Connect) {
            return Err(ExchangeError::ConnectEdited);
        }
        last.sent = Asked { upgrade: sent.upgrade && last.asked.upgrade, ..sent };
        last.is_persistent &= head.is_persistent();
        last.leaves_server &= head.is_persistent();
        Ok(())
    }

    /// A part of the last request's body came: whoever waited for 100 does no more.
    pub fn handle_request_body(&mut self) {
        if let Some(last) = self.entries.back_mut()
            && last.request == Progress::Awaited
        {
            last.request = Progress::Begun;
            last.awaits_continue = false;
        }
    }

    /// The last request ended.
    pub fn handle_request_end(&mut self) -> Next {
        if let Some(last) = self.entries.back_mut() {
            last.request = Progress::Over;
            last.awaits_continue = false;
        }
        self.settle()
    }

    /// Whether a client waits for 100 before it sends the body of the last request, and the
    /// server has not answered.
    #[must_use]
    pub fn awaits_continue(&self) -> bool {
        self.entries.back().is_some_and(|last| last.awaits_continue)
    }

    /// What the next response is an answer to, for `ResponseDecoder::expect`; none if no
    /// response is outstanding, or one is under way.
    #[must_use]
    pub fn awaited(&self) -> Option<Asked> {
        let first = self.entries.front()?;
        (first.response == Progress::Awaited).then_some(first.sent)
    }

    /// What the client asked that the next response answers, or the one that is under way, and
    /// its version: for `Framing::for_response` and `Encoder::response`.
    #[must_use]
    pub fn client(&self) -> Option<(Asked, Version)> {
        self.entries.front().map(|first| (first.asked, first.version))
    }

    /// An interim response came: whether it goes on to the client. Those of HTTP/1.0 know none
    /// (RFC 9110, section 15.2).
    ///
    /// # Errors
    /// Without a request that it could belong to.
    pub fn handle_interim(&mut self, head: &ResponseHead) -> Result<bool, ExchangeError> {
        let entry = self.entries.front_mut().ok_or(ExchangeError::ResponseOutOfTurn)?;
        if entry.response != Progress::Awaited {
            return Err(ExchangeError::ResponseOutOfTurn);
        }
        if head.status() == 100 {
            entry.awaits_continue = false;
        }
        self.is_doubtful |= announces_body(&head.headers);
        Ok(entry.version == Version::Http11)
    }

    /// The head of a final response came, or 101. For a request that asked to switch protocols
    /// it says what the request decoder is told.
    ///
    /// # Errors
    /// Without a request that it could belong to.
    pub fn handle_response(
        &mut self,
        head: &ResponseHead,
        framing: Framing,
    ) -> Result<Option<Switch>, ExchangeError> {
        let entry = self.entries.front_mut().ok_or(ExchangeError::ResponseOutOfTurn)?;
        if entry.response != Progress::Awaited {
            return Err(ExchangeError::ResponseOutOfTurn);
        }
        entry.response = Progress::Begun;
        if framing == Framing::Tunnel {
            entry.may_switch = false;
            self.state = State::Tunnel;
            return Ok(Some(Switch::Tunnel));
        }
        let stays = head.is_persistent() && framing != Framing::UntilClose;
        // The client knows that it wanted the end, and is told that it has it.
        entry.ends_unsaid = self.keeps_server && !entry.is_persistent && stays;
        entry.is_persistent &= stays;
        entry.leaves_server &= stays && !entry.awaits_continue;
        self.is_doubtful |= head.status() == 204 && announces_body(&head.headers);
        if entry.awaits_continue {
            // RFC 9110, section 10.1.1: the client may send the body now or leave it out. What
            // comes next could be either, so nothing may come.
            entry.ends_unsaid = entry.is_persistent;
            entry.is_persistent = false;
        }
        Ok(std::mem::take(&mut entry.may_switch).then_some(Switch::Refused))
    }

    /// The response that is under way goes to the client with this head, which filters have
    /// edited, and framing: a body whose end is the connection's ends both.
    ///
    /// # Errors
    /// When none is under way.
    pub fn handle_response_sent(
        &mut self,
        head: &ResponseHead,
        framing: Framing,
    ) -> Result<(), ExchangeError> {
        let entry = self.entries.front_mut().ok_or(ExchangeError::ResponseOutOfTurn)?;
        if entry.response != Progress::Begun {
            return Err(ExchangeError::ResponseOutOfTurn);
        }
        entry.is_persistent &= head.is_persistent() && framing != Framing::UntilClose;
        Ok(())
    }

    /// Whether the connections end behind the response that is under way, and neither side knows:
    /// `connection::set_close` tells the client.
    #[must_use]
    pub fn must_say_close(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.ends_unsaid)
    }

    /// The response ended.
    ///
    /// # Errors
    /// Without a response that had begun.
    pub fn handle_response_end(&mut self) -> Result<Next, ExchangeError> {
        let entry = self.entries.front_mut().ok_or(ExchangeError::ResponseOutOfTurn)?;
        if entry.response != Progress::Begun {
            return Err(ExchangeError::ResponseOutOfTurn);
        }
        entry.response = Progress::Over;
        Ok(self.settle())
    }

    /// Whether nothing is under way: ending the connections now loses nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.state == State::Open
    }

    /// Whether the connections are another protocol's.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        self.state == State::Tunnel
    }

    /// Forgets the first request once it and its response are over. A response that ends before
    /// its request does so by keeping the connection or by ending it; while it is kept, the
    /// rest of the request goes on.
    fn settle(&mut self) -> Next {
        if let Some(first) = self.entries.front()
            && first.response == Progress::Over
            && self.state == State::Open
        {
            if !first.is_persistent {
                self.state = State::Closing;
                self.leaves_server = first.leaves_server
                    && first.request == Progress::Over
                    && self.entries.len() == 1;
                self.entries.clear();
            } else if first.request == Progress::Over {
                self.entries.pop_front();
            }
        }
        if self.state == State::Closing { Next::Close } else { Next::Stay }
    }
}
