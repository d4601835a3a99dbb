//! Responses whose bodies are coded behind the module.
//!
//! ```text
//!  module ─▶ Coder ─▶ Encoder ─▶ client
//!              └ gathers: the head waits for its first bytes, or for all of them
//! ```

use super::Http;
use super::way::Head;
use crate::coder::Coder;
use crate::connection::Fate;
use crate::limits::SEND_LENGTH_MAX;
use crate::module::Module;
use content_coding::Load;
use http1::{Body, Framing};
use units::Nanos;

impl Http {
    /// Whether the body of the first response is coded. It is decided when its head would go.
    pub(super) fn is_coded(&mut self, module: &mut dyn Module) -> bool {
        let Some(message) = self.messages.front_mut() else { return false };
        if message.coder.is_some() {
            return true;
        }
        let Some(order) = message.order.take() else { return false };
        let (Some(head), Some((asked, version))) =
            (message.response_head.as_mut(), self.exchange.client())
        else {
            return false;
        };
        match Framing::for_response(head, asked, version, Body::Unknown) {
            Framing::Tunnel => false,
            Framing::None => {
                // A length would be that of a body which is not coded.
                head.headers.remove(b"content-length");
                false
            }
            Framing::Length(_) | Framing::Chunked | Framing::UntilClose => {
                message.coder = Some(Coder::new(order, module.pool()));
                module.count(|it| it.responses_coded += 1);
                true
            }
        }
    }

    /// What is known of the client's link and of the processor.
    fn load(&self, module: &dyn Module) -> Option<Load> {
        let now = Nanos(module.now().monotonic_ns);
        let drained_bytes_per_second = Some(self.meter.bytes_per_second(now)?);
        Some(Load { drained_bytes_per_second, busy_permille: module.busy_permille()? })
    }

    /// A part of the first response's body goes on, through its encoder.
    pub(super) fn code(&mut self, bytes: &[u8], module: &mut dyn Module) {
        let load = self.load(module);
        let coder = self.messages.front_mut().and_then(|front| front.coder.as_mut());
        match coder.map(|coder| coder.write(bytes, load)) {
            None => {}
            Some(Ok(())) => {
                module.count_coded(bytes.len(), 0);
                self.send_coded(Body::Unknown, module);
            }
            Some(Err(error)) => self.fail_coding(&error, module),
        }
    }

    fn fail_coding(&mut self, error: &content_coding::Failed, module: &mut dyn Module) {
        module.count(|it| it.codings_failed += 1);
        module.warn(&format!("a coded response was broken off: {error}"));
        self.reset(module);
    }

    /// What has been coded goes to the client, behind the head; whether the response goes on.
    fn send_coded(&mut self, body: Body, module: &mut dyn Module) -> bool {
        let Some(front) = self.messages.front_mut() else { return false };
        let Some(coder) = &mut front.coder else { return false };
        if coder.out.is_empty() {
            return true;
        }
        let mut coded = std::mem::take(&mut coder.out);
        module.count_coded(0, coded.len());
        let is_gone = front.response.head == Head::Gone;
        if !is_gone && !self.send_response_head(body, module) {
            return false;
        }
        self.write_plain(0, false, &coded, module);
        coded.clear();
        coded.shrink_to(SEND_LENGTH_MAX);
        let coder = self.messages.front_mut().and_then(|front| front.coder.as_mut());
        coder.map(|coder| coder.out = coded).is_some()
    }

    /// The body has ended: what is left of it goes. A body that was gathered as a whole has its
    /// length. Whether the response goes on.
    pub(super) fn finish_coded(&mut self, module: &mut dyn Module) -> bool {
        let Some(front) = self.messages.front_mut() else { return false };
        let Some(coder) = &mut front.coder else { return true };
        if let Err(error) = coder.finish() {
            self.fail_coding(&error, module);
            return false;
        }
        let body = match front.response.trailers.is_empty() {
            true => Body::Known(coder.out.len() as u64),
            false => Body::Unknown,
        };
        let goes_on = self.send_coded(body, module);
        if let Some(front) = self.messages.front_mut() {
            front.coder = None;
        }
        goes_on
    }

    /// Whether a head or an encoder has something that its client could have had already.
    pub(super) fn has_unflushed(&self) -> bool {
        let front = self.messages.front().filter(|_| self.fate == Fate::Open);
        front.is_some_and(|front| {
            let is_head_here = front.response.head == Head::Ready;
            front.coder.as_ref().is_some_and(|coder| is_head_here || coder.has_unflushed())
        })
    }

    /// The server has paused: what it has sent arrives.
    pub(super) fn flush_coded(&mut self, module: &mut dyn Module) {
        if !self.has_unflushed() {
            return;
        }
        let Some(front) = self.messages.front_mut() else { return };
        let Some(coder) = &mut front.coder else { return };
        if let Err(error) = coder.flush() {
            return self.fail_coding(&error, module);
        }
        if front.response.head == Head::Gone || self.send_response_head(Body::Unknown, module) {
            self.send_coded(Body::Unknown, module);
        }
    }
}
