//! State shared by a client connection and its server connection: order of requests and responses,
//! whether the next request may follow, `100-continue`, and when both connections end.
//!
//! ```text
//!   requests:   3 (arrives) │ 2 │ 1 ──▶ server
//!   responses:  1 (arrives) ──▶ client            each ends before the next begins
//! ```
//!
//! A node has one connection to the server for each of a client, so that a connection option of one
//! holds for both; unless it keeps server connections for the next client
//! ([`Exchange::keep_server`]).

use crate::decode::Switch;
use crate::framing::{Framing, MethodClass, RequestTraits, announces_body};
use crate::head::{RequestHead, ResponseHead};
use crate::limits::PIPELINED_COUNT_MAX;
use crate::version::Version;
use std::collections::VecDeque;

/// Fate of both connections after the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The connections persist.
    Stay,
    /// Both connections end, once all that is written has been delivered.
    Close,
}

/// The call does not fit the state of the exchange: a fault of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// A request came where none may follow.
    #[error("no request may follow here")]
    RequestOutOfTurn,
    /// A response, or a part of one, has no request.
    #[error("no response is outstanding here")]
    ResponseOutOfTurn,
    /// A filter made a request a CONNECT, or made a CONNECT another request.
    #[error("a filter must not make a request a CONNECT, nor a CONNECT another request")]
    ConnectEdited,
}

/// Progress of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Awaited,
    Begun,
    Over,
}

#[derive(Debug)]
struct Entry {
    /// Traits of the client's request, and of the request that was sent to the server in its place.
    client_traits: RequestTraits,
    server_traits: RequestTraits,
    version: Version,
    may_switch: bool,
    is_persistent: bool,
    awaits_continue: bool,
    must_announce_close: bool,
    /// True if the server's connection persists after this request, as far as the server is
    /// concerned.
    is_server_reusable: bool,
    request: Progress,
    response: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Tunnel,
    Closing,
}

/// State of one client connection with its server connection.
#[derive(Debug)]
pub struct Exchange {
    entries: VecDeque<Entry>,
    state: State,
    keeps_server: bool,
    /// True if the server has announced a body where there is none. It may still send one, which
    /// another client must not read as its response.
    may_send_stray_body: bool,
    /// True if the exchange is closing and the server's connection can be reused.
    is_server_reusable: bool,
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new()
    }
}

impl Exchange {
    /// Creates the state at the beginning of a connection.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            state: State::Open,
            keeps_server: false,
            may_send_stray_body: false,
            is_server_reusable: false,
        }
    }

    /// Keeps the connection to the server for other clients when this one ends, if
    /// [`is_server_reusable`](Self::is_server_reusable) allows it.
    pub const fn keep_server(&mut self) {
        self.keeps_server = true;
    }

    /// Returns true if the connection to the server is in its initial state, and would persist.
    #[must_use]
    pub fn is_server_reusable(&self) -> bool {
        self.keeps_server
            && !self.may_send_stray_body
            && match self.state {
                State::Open => self.entries.is_empty(),
                State::Closing => self.is_server_reusable,
                State::Tunnel => false,
            }
    }

    /// Returns true if the last request has the option `close`, which must be removed
    /// ([`connection::unset_close`](crate::connection::unset_close)) before it goes to the server.
    #[must_use]
    pub fn must_remove_close(&self) -> bool {
        let ends = |last: &Entry| {
            !last.is_persistent
                && last.version == Version::Http11
                && !last.may_switch
                && last.client_traits.method != MethodClass::Connect
        };
        self.keeps_server && self.entries.back().is_some_and(ends)
    }

    /// Returns true if bytes of the client may be read as a request: not while the previous request
    /// is in progress or asks to switch protocols, not after the last request of the connection,
    /// and not while [`PIPELINED_COUNT_MAX`] requests wait for their responses.
    #[must_use]
    pub fn may_begin_request(&self) -> bool {
        let follows = self.entries.back().is_none_or(|last| {
            last.request == Progress::Over && last.is_persistent && !last.may_switch
        });
        self.state == State::Open && follows && self.entries.len() < PIPELINED_COUNT_MAX
    }

    /// Handles the head of a request.
    ///
    /// # Errors
    /// The request may not follow: [`may_begin_request`](Self::may_begin_request).
    pub fn handle_request(
        &mut self,
        head: &RequestHead,
        framing: Framing,
    ) -> Result<(), ExchangeError> {
        if !self.may_begin_request() {
            return Err(ExchangeError::RequestOutOfTurn);
        }
        let has_body = !matches!(framing, Framing::None | Framing::Length(0));
        let client_traits = RequestTraits::by(head);
        self.entries.push_back(Entry {
            client_traits,
            server_traits: client_traits,
            version: head.version(),
            may_switch: client_traits.may_switch(),
            is_persistent: head.is_persistent(),
            awaits_continue: has_body && head.expects_continue(),
            must_announce_close: false,
            is_server_reusable: true,
            request: Progress::Awaited,
            response: Progress::Awaited,
        });
        Ok(())
    }

    /// Handles that the last request goes to the server with this head, edited by filters. Filters
    /// may remove a request to switch protocols, but add none.
    ///
    /// # Errors
    /// No request is open, or a filter changed it to or from CONNECT.
    pub fn handle_request_sent(&mut self, head: &RequestHead) -> Result<(), ExchangeError> {
        let last = self.entries.back_mut().ok_or(ExchangeError::RequestOutOfTurn)?;
        let server_traits = RequestTraits::by(head);
        if (server_traits.method == MethodClass::Connect)
            != (last.client_traits.method == MethodClass::Connect)
        {
            return Err(ExchangeError::ConnectEdited);
        }
        last.server_traits = RequestTraits {
            upgrade: server_traits.upgrade && last.client_traits.upgrade,
            ..server_traits
        };
        last.is_persistent &= head.is_persistent();
        last.is_server_reusable &= head.is_persistent();
        Ok(())
    }

    /// Handles a part of the last request's body: the client no longer waits for 100.
    pub fn handle_request_body(&mut self) {
        if let Some(last) = self.entries.back_mut()
            && last.request == Progress::Awaited
        {
            last.request = Progress::Begun;
            last.awaits_continue = false;
        }
    }

    /// Handles the end of the last request.
    pub fn handle_request_end(&mut self) -> Next {
        if let Some(last) = self.entries.back_mut() {
            last.request = Progress::Over;
            last.awaits_continue = false;
        }
        self.settle()
    }

    /// Returns true if the client waits for 100 before it sends the body of the last request, and
    /// the server has not responded.
    #[must_use]
    pub fn awaits_continue(&self) -> bool {
        self.entries.back().is_some_and(|last| last.awaits_continue)
    }

    /// Returns the traits of the request that the next response answers, for
    /// `ResponseDecoder::expect`; `None` if no response is outstanding, or one is in progress.
    #[must_use]
    pub fn awaited(&self) -> Option<RequestTraits> {
        let first = self.entries.front()?;
        (first.response == Progress::Awaited).then_some(first.server_traits)
    }

    /// Returns the traits and version of the client's request that the current or next response
    /// answers, for `Framing::for_response` and `Encoder::response`.
    #[must_use]
    pub fn client(&self) -> Option<(RequestTraits, Version)> {
        self.entries.front().map(|first| (first.client_traits, first.version))
    }

    /// Handles an interim response. Returns true if it is forwarded to the client; HTTP/1.0 has
    /// none (RFC 9110, section 15.2).
    ///
    /// # Errors
    /// No request is outstanding.
    pub fn handle_interim(&mut self, head: &ResponseHead) -> Result<bool, ExchangeError> {
        let entry = self.entries.front_mut().ok_or(ExchangeError::ResponseOutOfTurn)?;
        if entry.response != Progress::Awaited {
            return Err(ExchangeError::ResponseOutOfTurn);
        }
        if head.status() == 100 {
            entry.awaits_continue = false;
        }
        self.may_send_stray_body |= announces_body(&head.headers);
        Ok(entry.version == Version::Http11)
    }

    /// Handles the head of a final response, or of 101. For a request that asked to switch
    /// protocols, returns the decision for the request decoder.
    ///
    /// # Errors
    /// No request is outstanding.
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
        // The client asked for the end of the connection, and has to see it in the response.
        entry.must_announce_close = self.keeps_server && !entry.is_persistent && stays;
        entry.is_persistent &= stays;
        entry.is_server_reusable &= stays && !entry.awaits_continue;
        self.may_send_stray_body |= head.status() == 204 && announces_body(&head.headers);
        if entry.awaits_continue {
            // RFC 9110, section 10.1.1: the client may now send the body or leave it out. The next
            // bytes could be either, so the connection must end.
            entry.must_announce_close = entry.is_persistent;
            entry.is_persistent = false;
        }
        Ok(std::mem::take(&mut entry.may_switch).then_some(Switch::Refused))
    }

    /// Handles that the current response goes to the client with this head, edited by filters, and
    /// this framing: a body that lasts until the connection ends, ends both connections.
    ///
    /// # Errors
    /// No response is in progress.
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

    /// Returns true if the connections end after the current response and neither side has
    /// announced it: the caller tells the client with `connection::set_close`.
    #[must_use]
    pub fn must_announce_close(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.must_announce_close)
    }

    /// Handles the end of the response.
    ///
    /// # Errors
    /// No response is in progress.
    pub fn handle_response_end(&mut self) -> Result<Next, ExchangeError> {
        let entry = self.entries.front_mut().ok_or(ExchangeError::ResponseOutOfTurn)?;
        if entry.response != Progress::Begun {
            return Err(ExchangeError::ResponseOutOfTurn);
        }
        entry.response = Progress::Over;
        Ok(self.settle())
    }

    /// Returns true if no message is in progress: ending the connections now loses nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.state == State::Open
    }

    /// Returns true if the connections carry another protocol.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        self.state == State::Tunnel
    }

    /// Removes the first request once it and its response are over. If a response ends before its
    /// request and the connection persists, the rest of the request goes on.
    fn settle(&mut self) -> Next {
        if let Some(first) = self.entries.front()
            && first.response == Progress::Over
            && self.state == State::Open
        {
            if !first.is_persistent {
                self.state = State::Closing;
                self.is_server_reusable = first.is_server_reusable
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
