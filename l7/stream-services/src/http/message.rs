//! A request and its response on a connection.

use super::direction::{Direction, Stage};
use super::heads::{self, Refused};
use crate::coder::Coder;
use crate::desk::{Commission, Order};
use crate::limits::DROPPED_LENGTH_MAX;
use crate::module::{Parts, Wants};
use crate::transcoder::Transcoder;
use content_coding::Pool;
use http1::{Framing, Headers, RequestHead, ResponseHead, Version};
use proxy_wasm::{HeaderMap, Now, Side, Stream};

/// The VM's context of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// It is to be made.
    Unmade,
    /// It has this number.
    Made(u32),
    /// It is gone with its VM, and another one is made when there is something to show.
    Lost,
    /// There is none: the module has no callback for it, or is down.
    Unfiltered,
}

/// Answer in the server's place.
#[derive(Debug)]
pub(super) enum Own {
    /// By the module, or for it.
    Response { status: u16, headers: Headers, body: Vec<u8> },
    /// A whole response, behind which the connection ends.
    Refusal(Vec<u8>),
}

impl Own {
    /// Returns one that says why in a line.
    pub(super) fn text(status: u16, why: &str) -> Self {
        let mut headers = Headers::new();
        // One short field has room.
        let _ = headers.add(b"Content-Type", b"text/plain");
        Self::Response { status, headers, body: format!("{why}\n").into_bytes() }
    }
}

/// A request and its response.
#[derive(Debug)]
pub(super) struct Message {
    /// Number among the requests of the connection, from 1.
    number: u64,
    context: Context,
    version: Version,
    is_persistent: bool,
    /// The head as it came, then as the module has made it, until it is sent.
    request_head: Option<RequestHead>,
    response_head: Option<ResponseHead>,
    request: Direction,
    response: Direction,
    /// The request's head has been written.
    is_sent: bool,
    /// Coding of the response, which begins with its head.
    order: Option<Order>,
    /// Encoder of the response.
    coder: Option<Coder>,
    /// Codecs of the response's body on its way to the module.
    transcoder: Option<Box<Transcoder>>,
    /// The body of the response is, or was, pictures in place of what the server sent.
    is_pictures: bool,
    /// Answer in the server's place, until its turn has come.
    answer: Option<Own>,
    began: Now,
    /// The stream of a context that is lost.
    lost: Option<Box<Stream>>,
    /// Something has come of it, and waits for the context that was lost.
    is_context_needed: bool,
}

impl Message {
    /// Returns the message of a request whose head has come.
    pub(super) fn new(number: u64, head: RequestHead, framing: Framing, began: Now) -> Self {
        let mut message = Self {
            version: head.version(),
            is_persistent: head.is_persistent(),
            request_head: Some(head),
            ..Self::empty(number, began)
        };
        message.request.handle_head(framing);
        message
    }

    /// Returns the message of a request that could not be read.
    pub(super) fn refused(number: u64, refusal: Vec<u8>, began: Now) -> Self {
        Self { answer: Some(Own::Refusal(refusal)), ..Self::empty(number, began) }
    }

    const fn empty(number: u64, began: Now) -> Self {
        Self {
            number,
            context: Context::Unfiltered,
            version: Version::Http11,
            is_persistent: false,
            request_head: None,
            response_head: None,
            request: Direction::new(),
            response: Direction::new(),
            is_sent: false,
            order: None,
            coder: None,
            transcoder: None,
            is_pictures: false,
            answer: None,
            began,
            lost: None,
            is_context_needed: false,
        }
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    pub(super) const fn context(&self) -> Context {
        self.context
    }

    pub(super) const fn began(&self) -> Now {
        self.began
    }

    pub(super) const fn request(&self) -> &Direction {
        &self.request
    }

    pub(super) const fn response(&self) -> &Direction {
        &self.response
    }

    pub(super) const fn direction(&self, is_request: bool) -> &Direction {
        if is_request { &self.request } else { &self.response }
    }

    pub(super) const fn direction_mut(&mut self, is_request: bool) -> &mut Direction {
        if is_request { &mut self.request } else { &mut self.response }
    }

    /// Returns the request's head until it is sent.
    pub(super) const fn request_head(&self) -> Option<&RequestHead> {
        self.request_head.as_ref()
    }

    /// Returns the response's head until it is sent, and the state of the response.
    pub(super) const fn response_parts(&mut self) -> Option<(&mut ResponseHead, &Direction)> {
        match &mut self.response_head {
            Some(head) => Some((head, &self.response)),
            None => None,
        }
    }

    /// Returns true when the request's head has been written.
    pub(super) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Returns true when the server has a part of the request.
    pub(super) const fn is_partly_sent(&self) -> bool {
        self.is_sent && !self.request.is_over()
    }

    /// Returns true when nothing more is to be done with it.
    pub(super) const fn is_over(&self) -> bool {
        self.request.is_over() && self.response.is_over()
    }

    /// Returns true when the body of the response is, or was, pictures.
    pub(super) const fn is_pictures(&self) -> bool {
        self.is_pictures
    }

    /// Returns true when it is answered in the server's place, as soon as its turn has come.
    pub(super) const fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) const fn coder(&self) -> Option<&Coder> {
        self.coder.as_ref()
    }

    pub(super) const fn coder_mut(&mut self) -> Option<&mut Coder> {
        self.coder.as_mut()
    }

    pub(super) fn transcoder(&self) -> Option<&Transcoder> {
        self.transcoder.as_deref()
    }

    pub(super) fn transcoder_mut(&mut self) -> Option<&mut Transcoder> {
        self.transcoder.as_deref_mut()
    }

    /// Returns true when the head of the response waits for an encoder.
    pub(super) const fn is_recoded(&self) -> bool {
        self.coder.is_some() || self.transcoder.is_some()
    }

    /// Returns true when nothing more of its response comes from the server.
    pub(super) fn is_response_whole(&self) -> bool {
        let video = self.transcoder.as_ref();
        self.response.has_ended() || video.is_some_and(|it| it.transcoding.has_server_ended())
    }

    /// Returns true when more of its response's body can be taken.
    pub(super) fn wants_body(&self) -> bool {
        self.transcoder.as_ref().is_none_or(|it| it.transcoding.wants_bytes())
    }

    /// Returns true when the connections can be used behind an answer in the server's place: the
    /// server knows nothing of the request, and what comes of it can be dropped.
    pub(super) const fn may_stay(&self) -> bool {
        let is_short = match self.request.framing() {
            Framing::None => true,
            Framing::Length(length) => length <= DROPPED_LENGTH_MAX,
            _ => self.request.has_ended(),
        };
        let is_http11 = matches!(self.version, Version::Http11);
        !self.is_sent && is_http11 && self.is_persistent && (self.request.has_ended() || is_short)
    }

    pub(super) const fn set_context(&mut self, context: Context) {
        self.context = context;
    }

    /// Handles the head of the response.
    pub(super) fn handle_response_head(&mut self, head: ResponseHead, framing: Framing) {
        self.response.handle_head(framing);
        self.response_head = Some(head);
    }

    /// Takes the request's head to be sent.
    pub(super) const fn take_request_head(&mut self) -> Option<RequestHead> {
        self.request_head.take()
    }

    /// Takes the response's head to be sent.
    pub(super) const fn take_response_head(&mut self) -> Option<ResponseHead> {
        self.response_head.take()
    }

    /// Handles a request's head that has been written.
    pub(super) fn handle_request_sent(&mut self, encoder: http1::Encoder) {
        self.request.handle_sent(Some(encoder));
        self.is_sent = true;
    }

    /// Replaces the request's head by the one that the module has made.
    pub(super) fn edit_request(&mut self, map: &HeaderMap) -> Result<(), Refused> {
        if let Some(head) = &self.request_head
            && let Some(edited) = heads::edited_request(map, head)?
        {
            self.request_head = Some(edited);
        }
        Ok(())
    }

    /// Replaces the response's head by the one that the module has made.
    pub(super) fn edit_response(&mut self, map: &HeaderMap) -> Result<(), Refused> {
        if let Some(head) = &self.response_head
            && let Some(edited) = heads::edited_response(map, head)?
        {
            self.response_head = Some(edited);
        }
        Ok(())
    }

    /// Has the response coded, or not, once its head is sent.
    pub(super) fn set_order(&mut self, order: Option<Order>) {
        self.order = order;
    }

    /// Takes the order of a coding.
    pub(super) const fn take_order(&mut self) -> Option<Order> {
        self.order.take()
    }

    /// Begins to code the response.
    pub(super) fn begin_coding(&mut self, order: Order, pool: &Pool) {
        self.coder = Some(Coder::new(order, pool));
    }

    /// Ends the coding of the response.
    pub(super) fn end_coding(&mut self) {
        self.coder = None;
    }

    /// Begins to turn the body of the response into pictures.
    pub(super) fn begin_pictures(&mut self, commission: Commission) {
        self.is_pictures = true;
        self.transcoder = Some(Box::new(Transcoder::new(commission)));
    }

    /// Ends the transcoding; returns it.
    pub(super) const fn end_pictures(&mut self) -> Option<Box<Transcoder>> {
        self.transcoder.take()
    }

    /// Handles the end of the body that the server has sent.
    pub(super) fn handle_body_end(&mut self) {
        match &mut self.transcoder {
            Some(transcoder) => transcoder.transcoding.handle_server_end(),
            None => self.response.handle_end(),
        }
    }

    /// Has it answered in the server's place, which ends what comes of it.
    pub(super) fn set_answer(&mut self, own: Own) {
        self.answer = Some(own);
        (self.order, self.coder, self.transcoder) = (None, None, None);
        self.request.drop_rest();
        self.response.drop_rest();
    }

    pub(super) const fn take_answer(&mut self) -> Option<Own> {
        self.answer.take()
    }

    /// Goes on without the module.
    pub(super) fn unfilter(&mut self) {
        self.context = Context::Unfiltered;
        if self.response.head() < super::direction::Head::Ready {
            // Its head does not say that it is coded, or nobody knows.
            self.order = None;
        }
    }

    /// Notes that something has come for a context that is lost.
    pub(super) const fn need_context(&mut self) {
        self.is_context_needed = true;
    }

    /// Takes the stream of a context that is lost.
    pub(super) const fn take_lost(&mut self) -> Option<Box<Stream>> {
        self.lost.take()
    }

    /// Notes that the message's context is gone with its VM, and keeps its stream to show to
    /// another. Gives the stream back if no other VM can go on with it.
    pub(super) fn lose(
        &mut self,
        mut stream: Box<Stream>,
        wants: Wants,
    ) -> Result<(), Box<Stream>> {
        let is_half_edited =
            |direction: &Direction, side: &Side| side.is_body_edited() && !direction.is_over();
        if self.is_pictures
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

    /// Returns the callback by which the next VM comes to know of this message, in front of what it
    /// is to be shown of one direction, and whether it is one for its request.
    pub(super) fn stage_again(&self, is_request: bool, wants: Parts) -> Option<(bool, Stage)> {
        match self.context {
            Context::Lost => {
                let direction = self.direction(is_request);
                let is_needed = self.is_context_needed || direction.stage(wants).is_some();
                is_needed.then_some((true, Stage::Create))
            }
            Context::Made(_) if self.request.is_again() => Some((true, Stage::Again)),
            Context::Made(_) if self.response.is_again() => Some((false, Stage::Again)),
            _ => None,
        }
    }
}
