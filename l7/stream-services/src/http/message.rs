//! Message: a request and its response on a connection.

use super::direction::{Direction, Stage};
use super::heads::{self, Refused};
use crate::coder::Coder;
use crate::foreign_calls::{CodingOrder, TranscodingOrder};
use crate::limits::DROPPED_LENGTH_MAX;
use crate::module::{Parts, Wants};
use crate::transcoder::Transcoder;
use content_coding::Pool;
use http1::{Framing, Headers, RequestHead, ResponseHead, Version};
use proxy_wasm::{HeaderMap, Now, Side, Stream};

/// The VM's context of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    /// Not created yet.
    Unmade,
    /// Created with this number.
    Made(u32),
    /// Gone with its VM; another is created when there is data for it.
    Lost,
    /// None: the module has no callback for it, or is down.
    Unfiltered,
}

/// Response in place of the server's.
#[derive(Debug)]
pub(super) enum LocalAnswer {
    /// Response of the module, or of the node on its behalf.
    Response { status: u16, headers: Headers, body: Vec<u8> },
    /// Complete response after which the connection ends.
    Refusal(Vec<u8>),
}

impl LocalAnswer {
    /// Returns a response with one line of text.
    pub(super) fn text(status: u16, why: &str) -> Self {
        let mut headers = Headers::new();
        // One short field is within the limits.
        let _ = headers.add(b"Content-Type", b"text/plain");
        Self::Response { status, headers, body: format!("{why}\n").into_bytes() }
    }
}

/// Request with its response.
#[derive(Debug)]
pub(super) struct Message {
    /// Number among the requests of the connection, from 1.
    number: u64,
    context: Context,
    version: Version,
    is_persistent: bool,
    /// Head as received or as edited by the module, until it is sent.
    request_head: Option<RequestHead>,
    response_head: Option<ResponseHead>,
    request: Direction,
    response: Direction,
    /// True if the request's head has been written.
    is_sent: bool,
    /// Order to code the response, until its head is sent.
    order: Option<CodingOrder>,
    /// Encoder of the response.
    coder: Option<Coder>,
    /// Transcoder of the response's body, before the module.
    transcoder: Option<Box<Transcoder>>,
    /// True if the response's body is, or was, transcoded into pictures.
    is_pictures: bool,
    /// Response in place of the server's, until it is its turn.
    answer: Option<LocalAnswer>,
    began: Now,
    /// Stream of a context that is lost.
    lost: Option<Box<Stream>>,
    /// True if data has been received for a context that was lost.
    is_context_needed: bool,
}

impl Message {
    /// Creates the message of a request whose head was received.
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

    /// Creates the message of an invalid request.
    pub(super) fn refused(number: u64, refusal: Vec<u8>, began: Now) -> Self {
        Self { answer: Some(LocalAnswer::Refusal(refusal)), ..Self::empty(number, began) }
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

    /// Returns the response's head until it is sent, with the state of the response.
    pub(super) const fn response_parts(&mut self) -> Option<(&mut ResponseHead, &Direction)> {
        match &mut self.response_head {
            Some(head) => Some((head, &self.response)),
            None => None,
        }
    }

    /// Returns true if the request's head has been written.
    pub(super) const fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Returns true if the server has a part of the request, but not all.
    pub(super) const fn is_partly_sent(&self) -> bool {
        self.is_sent && !self.request.is_over()
    }

    /// Returns true if both directions are over.
    pub(super) const fn is_over(&self) -> bool {
        self.request.is_over() && self.response.is_over()
    }

    /// Returns true if the response's body is, or was, transcoded into pictures.
    pub(super) const fn is_pictures(&self) -> bool {
        self.is_pictures
    }

    /// Returns true if a response in place of the server's is waiting for its turn.
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

    /// Returns true if the head of the response waits for an encoder.
    pub(super) const fn is_recoded(&self) -> bool {
        self.coder.is_some() || self.transcoder.is_some()
    }

    /// Returns true if no more of its response comes from the server.
    pub(super) fn is_response_whole(&self) -> bool {
        let video = self.transcoder.as_ref();
        self.response.has_ended() || video.is_some_and(|it| it.transcoding.has_server_ended())
    }

    /// Returns true if more of its response's body is wanted.
    pub(super) fn wants_body(&self) -> bool {
        self.transcoder.as_ref().is_none_or(|it| it.transcoding.wants_bytes())
    }

    /// Returns true if the connections can persist after a response in place of the server's: the
    /// server has nothing of the request, and the rest of the request can be dropped.
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

    /// Takes the request's head for sending.
    pub(super) const fn take_request_head(&mut self) -> Option<RequestHead> {
        self.request_head.take()
    }

    /// Takes the response's head for sending.
    pub(super) const fn take_response_head(&mut self) -> Option<ResponseHead> {
        self.response_head.take()
    }

    /// Handles that the request's head has been written.
    pub(super) fn handle_request_sent(&mut self, encoder: http1::Encoder) {
        self.request.handle_sent(Some(encoder));
        self.is_sent = true;
    }

    /// Replaces the request's head with the module's.
    pub(super) fn edit_request(&mut self, map: &HeaderMap) -> Result<(), Refused> {
        if let Some(head) = &self.request_head
            && let Some(edited) = heads::edited_request(map, head)?
        {
            self.request_head = Some(edited);
        }
        Ok(())
    }

    /// Replaces the response's head with the module's.
    pub(super) fn edit_response(&mut self, map: &HeaderMap) -> Result<(), Refused> {
        if let Some(head) = &self.response_head
            && let Some(edited) = heads::edited_response(map, head)?
        {
            self.response_head = Some(edited);
        }
        Ok(())
    }

    /// Sets the order to code the response, or not, when its head is sent.
    pub(super) fn set_order(&mut self, order: Option<CodingOrder>) {
        self.order = order;
    }

    /// Takes the order to code.
    pub(super) const fn take_order(&mut self) -> Option<CodingOrder> {
        self.order.take()
    }

    /// Begins to code the response.
    pub(super) fn begin_coding(&mut self, order: CodingOrder, pool: &Pool) {
        self.coder = Some(Coder::new(order, pool));
    }

    /// Ends the coding of the response.
    pub(super) fn end_coding(&mut self) {
        self.coder = None;
    }

    /// Begins to transcode the response's body into pictures.
    pub(super) fn begin_pictures(&mut self, transcoding_order: TranscodingOrder) {
        self.is_pictures = true;
        self.transcoder = Some(Box::new(Transcoder::new(transcoding_order)));
    }

    /// Ends the transcoding; returns it.
    pub(super) const fn end_pictures(&mut self) -> Option<Box<Transcoder>> {
        self.transcoder.take()
    }

    /// Handles the end of the body from the server.
    pub(super) fn handle_body_end(&mut self) {
        match &mut self.transcoder {
            Some(transcoder) => transcoder.transcoding.handle_server_end(),
            None => self.response.handle_end(),
        }
    }

    /// Sets a response in place of the server's, and drops what the server sends.
    pub(super) fn set_answer(&mut self, own: LocalAnswer) {
        self.answer = Some(own);
        (self.order, self.coder, self.transcoder) = (None, None, None);
        self.request.drop_rest();
        self.response.drop_rest();
    }

    pub(super) const fn take_answer(&mut self) -> Option<LocalAnswer> {
        self.answer.take()
    }

    /// Continues without the module.
    pub(super) fn unfilter(&mut self) {
        self.context = Context::Unfiltered;
        if self.response.head() < super::direction::Head::Ready {
            // The head does not declare the coding, or its content is unknown.
            self.order = None;
        }
    }

    /// Records that data was received for a lost context.
    pub(super) const fn need_context(&mut self) {
        self.is_context_needed = true;
    }

    /// Takes the stream of a lost context.
    pub(super) const fn take_lost(&mut self) -> Option<Box<Stream>> {
        self.lost.take()
    }

    /// Marks the context as lost with its VM, and keeps its stream for another. Returns the stream
    /// if another VM cannot continue it.
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

    /// Returns the callback by which the next VM learns of this message before its next data, and
    /// true if it is for the request.
    pub(super) fn reshow_stage(&self, is_request: bool, wants: Parts) -> Option<(bool, Stage)> {
        match self.context {
            Context::Lost => {
                let direction = self.direction(is_request);
                let is_needed = self.is_context_needed || direction.stage(wants).is_some();
                is_needed.then_some((true, Stage::Create))
            }
            Context::Made(_) if self.request.is_reshown() => Some((true, Stage::Again)),
            Context::Made(_) if self.response.is_reshown() => Some((false, Stage::Again)),
            _ => None,
        }
    }
}
