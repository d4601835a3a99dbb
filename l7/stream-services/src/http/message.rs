//! A request and its response on a connection.

use crate::coder::Coder;
use crate::desk::Order;
use crate::http::heads;
use crate::http::way::{Stage, Way};
use crate::limits::DROPPED_LENGTH_MAX;
use crate::module::{Parts, Wants};
use crate::transcoder::Transcoder;
use http1::{Framing, Headers, RequestHead, ResponseHead, Version};
use proxy_wasm::{Now, Side, Stream};

/// What of the VM belongs to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// It is to be made.
    Unmade,
    /// It has this number.
    Made(u32),
    /// It is gone with its VM, and another one is made when there is something to show.
    Lost,
    /// There is none: the module has no callback for it, or is down.
    Unfiltered,
}

/// What is answered in the server's place.
#[derive(Debug)]
pub(crate) enum Own {
    /// By the module, or for it.
    Response { status: u16, headers: Headers, body: Vec<u8> },
    /// A whole response, behind which the connection ends.
    Refusal(Vec<u8>),
}

impl Own {
    /// One that says why in a line.
    pub(crate) fn text(status: u16, why: &str) -> Self {
        let mut headers = Headers::new();
        // One short field has room.
        let _ = headers.add(b"Content-Type", b"text/plain");
        Self::Response { status, headers, body: format!("{why}\n").into_bytes() }
    }
}

#[derive(Debug)]
pub(crate) struct Message {
    /// Counts the requests of the connection.
    pub(crate) number: u64,
    pub(crate) context: Context,
    pub(crate) version: Version,
    pub(crate) is_persistent: bool,
    /// As it came, then as the module has made it, until it goes.
    pub(crate) request_head: Option<RequestHead>,
    pub(crate) response_head: Option<ResponseHead>,
    pub(crate) request: Way,
    pub(crate) response: Way,
    /// Its head is on its way to the server.
    pub(crate) is_sent: bool,
    /// Its response is to be coded, once its head goes.
    pub(crate) order: Option<Order>,
    /// What codes its response.
    pub(crate) coder: Option<Coder>,
    /// What its response's body goes through on its way to the module.
    pub(crate) transcoder: Option<Box<Transcoder>>,
    /// It is answered here, when its turn has come.
    pub(crate) answer: Option<Own>,
    pub(crate) began: Now,
    /// The stream of a context that is lost.
    pub(crate) lost: Option<Box<Stream>>,
    /// Something has come of it, and waits for the context that was lost.
    pub(crate) is_context_needed: bool,
}

impl Message {
    pub(crate) fn new(number: u64, head: RequestHead, began: Now) -> Self {
        Self {
            number,
            context: Context::Unfiltered,
            version: head.version(),
            is_persistent: head.is_persistent(),
            request_head: Some(head),
            response_head: None,
            request: Way::new(),
            response: Way::new(),
            is_sent: false,
            order: None,
            coder: None,
            transcoder: None,
            answer: None,
            began,
            lost: None,
            is_context_needed: false,
        }
    }

    /// Of a request that could not be read.
    pub(crate) const fn refused(number: u64, refusal: Vec<u8>, began: Now) -> Self {
        Self {
            number,
            context: Context::Unfiltered,
            version: Version::Http11,
            is_persistent: false,
            request_head: None,
            response_head: None,
            request: Way::new(),
            response: Way::new(),
            is_sent: false,
            order: None,
            coder: None,
            transcoder: None,
            answer: Some(Own::Refusal(refusal)),
            began,
            lost: None,
            is_context_needed: false,
        }
    }

    /// Whether nothing more of its response comes from the server.
    pub(crate) fn is_response_whole(&self) -> bool {
        let video = self.transcoder.as_ref();
        self.response.has_ended || video.is_some_and(|it| it.transcoding.has_server_ended())
    }

    /// Whether more of its response's body can be taken.
    pub(crate) fn wants_body(&self) -> bool {
        self.transcoder.as_ref().is_none_or(|it| it.transcoding.wants_bytes())
    }

    pub(crate) const fn way(&self, is_request: bool) -> &Way {
        if is_request { &self.request } else { &self.response }
    }

    pub(crate) const fn way_mut(&mut self, is_request: bool) -> &mut Way {
        if is_request { &mut self.request } else { &mut self.response }
    }

    pub(super) fn edit_request(
        &mut self,
        map: &proxy_wasm::HeaderMap,
    ) -> Result<(), heads::Refused> {
        if let Some(head) = &self.request_head
            && let Some(edited) = heads::edited_request(map, head)?
        {
            self.request_head = Some(edited);
        }
        Ok(())
    }

    pub(super) fn edit_response(
        &mut self,
        map: &proxy_wasm::HeaderMap,
    ) -> Result<(), heads::Refused> {
        if let Some(head) = &self.response_head
            && let Some(edited) = heads::edited_response(map, head)?
        {
            self.response_head = Some(edited);
        }
        Ok(())
    }

    /// Notes that the message's context is gone with its VM, and keeps its stream to show to
    /// another. Gives the stream back if no other VM can go on with it.
    pub(super) fn lose(
        &mut self,
        mut stream: Box<Stream>,
        wants: Wants,
    ) -> Result<(), Box<Stream>> {
        let is_half_edited = |way: &Way, side: &Side| side.is_body_edited() && !way.is_over;
        if self.response.is_pictures
            || is_half_edited(&self.request, &stream.downstream)
            || is_half_edited(&self.response, &stream.upstream)
        {
            return Err(stream);
        }
        stream.rewind();
        self.request.rewind(!stream.downstream.body.is_empty(), wants.request);
        self.response.rewind(!stream.upstream.body.is_empty(), wants.response);
        self.context = Context::Lost;
        self.is_context_needed = false;
        self.lost = Some(stream);
        Ok(())
    }

    /// The callback by which the next VM comes to know of this message, in front of what it is to be
    /// shown of one direction, and whether it is one for its request.
    pub(super) fn stage_again(&self, is_request: bool, wants: Parts) -> Option<(bool, Stage)> {
        match self.context {
            Context::Lost => {
                let way = self.way(is_request);
                let is_needed = self.is_context_needed || way.stage(wants).is_some();
                is_needed.then_some((true, Stage::Create))
            }
            Context::Made(_) if self.request.is_again => Some((true, Stage::Again)),
            Context::Made(_) if self.response.is_again => Some((false, Stage::Again)),
            _ => None,
        }
    }

    /// Returns true when the connections can be used behind an answer in the server's place: the
    /// server knows nothing of the request, and what comes of it can be dropped.
    pub(super) const fn may_stay(&self) -> bool {
        let is_short = match self.request.framing {
            Framing::None => true,
            Framing::Length(length) => length <= DROPPED_LENGTH_MAX,
            _ => self.request.has_ended,
        };
        let is_http11 = matches!(self.version, Version::Http11);
        !self.is_sent && is_http11 && self.is_persistent && (self.request.has_ended || is_short)
    }
}
