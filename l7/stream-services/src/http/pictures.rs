//! Responses whose bodies are video, which comes to the module as pictures.
//!
//! ```text
//!  server ─▶ Transcoder ─▶ whole pictures ─▶ module ─▶ client
//!             └ codecs, whose ends the filter has
//! ```
//!
//! A picture is taken when all that was written before has gone to the kernel, so that none waits
//! here and grows old.

use super::Http;
use super::message::{Context, Own};
use super::way::Head;
use crate::connection::Fate;
use crate::desk::{Commission, PictureOrder};
use crate::limits::READ_LENGTH;
use crate::module::Module;
use crate::transcoder::Transcoder;
use http1::{Body, ResponseHead};
use mpeg2::Ended;
use units::Nanos;

/// What a head says of the body that came, and does not hold of pictures.
const OF_THE_BODY: [&[u8]; 10] = [
    b"content-length",
    b"content-range",
    b"accept-ranges",
    b"etag",
    b"last-modified",
    b"content-md5",
    b"digest",
    b"content-digest",
    b"repr-digest",
    b"content-encoding",
];

/// Takes out of a head what does not hold of pictures, and says how their body is framed.
pub(super) fn describe(head: &mut ResponseHead) -> Body {
    for name in OF_THE_BODY {
        head.headers.remove(name);
    }
    Body::Unknown
}

impl Http {
    /// The body of a response is to come as pictures.
    pub(super) fn begin_pictures(
        &mut self,
        index: usize,
        commission: Commission,
        module: &mut dyn Module,
    ) {
        let message = &mut self.messages[index];
        let Context::Made(context) = message.context else { return };
        message.response.is_pictures = true;
        message.transcoder = Some(Box::new(Transcoder::new(commission)));
        module.desk().begin_pictures(context);
        module.count(|it| it.transcoded += 1);
    }

    /// A response that its module holds can still become pictures, as long as nothing was shown.
    pub(super) fn hold_pictures(&self, index: usize, is_request: bool, module: &dyn Module) {
        let message = &self.messages[index];
        let response = &message.response;
        if let Context::Made(context) = message.context
            && !is_request
            && response.head == Head::Held
            && response.has_body()
            && !response.is_pictures
        {
            module.desk().hold(context);
        }
    }

    /// What a call of another context wants of a stream's pictures.
    pub(super) fn order_pictures(
        &mut self,
        context: u32,
        order: PictureOrder,
        module: &mut dyn Module,
    ) {
        let Some(index) = self.index_of(context) else { return };
        match order {
            PictureOrder::Begin(commission) => {
                if self.messages[index].response.head == Head::Held {
                    self.begin_pictures(index, commission, module);
                }
            }
            PictureOrder::Change(wish) => {
                if let Some(transcoder) = &mut self.messages[index].transcoder {
                    transcoder.transcoding.change(wish);
                }
            }
        }
    }

    /// Whether the next picture waits for the client to take what was written, and it has.
    pub(super) fn awaits_client(&self) -> bool {
        let front = self.messages.front();
        front.is_some_and(|front| front.transcoder.is_some()) && self.to_client.is_empty()
    }

    /// The server has sent the whole body.
    pub(super) fn end_body(&mut self) {
        let Some(front) = self.messages.front_mut() else { return };
        match &mut front.transcoder {
            Some(transcoder) => transcoder.transcoding.handle_server_end(),
            None => front.response.has_ended = true,
        }
    }

    /// Gives the module, or the client where that wants to see none, the pictures that are there;
    /// whether something has changed.
    pub(super) fn take_pictures(&mut self, module: &mut dyn Module) -> bool {
        let Some(front) = self.messages.front() else { return false };
        let (context, way) = (front.context, &front.response);
        let is_stopped = way.head < Head::Ready || way.has_fresh || way.is_held || way.has_ended;
        if front.transcoder.is_none() || is_stopped || !self.to_client.is_empty() {
            return false;
        }
        if self.fate != Fate::Open || !self.may_go_on(context, module) {
            return false;
        }
        let now = Nanos(module.now().monotonic_ns);
        let mut pictures = Vec::new();
        let Some(front) = self.messages.front_mut() else { return false };
        let Some(transcoder) = &mut front.transcoder else { return false };
        let mut count = 0;
        while pictures.len() < READ_LENGTH && transcoder.transcoding.take(now, &mut pictures) {
            count += 1;
        }
        if count == 0 {
            return match transcoder.transcoding.ended() {
                Some(ended) => {
                    self.end_pictures(ended, module);
                    true
                }
                None => false,
            };
        }
        module.count_pictures(count);
        transcoder.count(count, 0);
        transcoder.share.show(transcoder.transcoding.shown());
        if let Context::Made(context) = context
            && Self::parts(false, module).body
            && let Some(stream) = module.stream(context)
        {
            match stream.upstream.body.is_empty() {
                true => std::mem::swap(&mut stream.upstream.body, &mut pictures),
                false => stream.upstream.body.append(&mut pictures),
            }
            front.response.has_fresh = true;
        } else if self.write_head(0, false, None, module) {
            self.write_body(0, false, &pictures, module);
        }
        true
    }

    /// Bytes for the client were written of pictures.
    pub(super) fn count_written(&mut self, bytes: usize) {
        let transcoder = self.messages.front_mut().and_then(|front| front.transcoder.as_mut());
        if let Some(transcoder) = transcoder {
            transcoder.count(0, bytes);
        }
    }

    /// There are no more pictures.
    fn end_pictures(&mut self, ended: Ended, module: &mut dyn Module) {
        let Some(front) = self.messages.front_mut() else { return };
        let has_begun = front.transcoder.take().is_some_and(|it| it.transcoding.has_begun());
        if let Context::Made(context) = front.context {
            module.desk().end_pictures(context);
        }
        let why = match ended {
            Ended::Whole if has_begun => {
                front.response.has_ended = true;
                return;
            }
            Ended::Whole => "the codec has found no picture".to_owned(),
            ended => ended.to_string(),
        };
        module.count(|it| it.transcodings_failed += 1);
        module.warn(&format!("a response could not be made into pictures: {why}"));
        if front.response.head == Head::Gone {
            // Nobody shall take it for whole.
            return self.reset(module);
        }
        self.answer(0, Own::text(502, &format!("no pictures can be made of it: {why}")), module);
    }
}
