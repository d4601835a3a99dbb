//! A request that somebody else answers on the client's connection: one for a shared stream.

use super::Http;
use super::message::Message;
use crate::connection::{Fate, Given};
use crate::desk::Allowed;
use crate::module::Module;
use fanout::Key;

use super::way::{Head, Stage};

impl Http {
    /// What the module may ask the node for in a call for a message.
    pub(super) fn allowed(&self, index: usize, is_request: bool, stage: Stage) -> Allowed {
        let Some(message) = self.messages.get(index) else { return Allowed::default() };
        let is_early = match stage {
            Stage::Create => false,
            Stage::Head | Stage::Again => true,
            Stage::Body { .. } | Stage::Trailers => is_request,
        };
        let reflects = is_request && stage == Stage::Head && self.can_be_given(message);
        let is_response = !is_request && stage == Stage::Head;
        Allowed {
            codes: is_early && message.response.head < Head::Ready,
            reflects,
            transcodes: is_response && message.response.has_body(),
            is_bodiless: is_response && !message.response.has_body(),
        }
    }

    /// Nothing is in front of it, nothing is unsaid behind it, and it has no body.
    fn can_be_given(&self, message: &Message) -> bool {
        let method = message.request_head.as_ref().map(http1::RequestHead::method);
        let is_read = matches!(method, Some(b"GET" | b"HEAD"));
        is_read && !message.request.has_body() && self.messages.len() == 1
    }

    /// The request leaves this connection's hands, as the module has made it.
    pub(super) fn give(&mut self, index: usize, key: Key, module: &mut dyn Module) {
        let Some(message) = self.messages.get_mut(index) else { return };
        if let super::Context::Made(context) = message.context
            && let Some(stream) = module.stream(context)
            && let Err(error) = message.edit_request(&stream.downstream.headers)
        {
            return self.refuse_edit(index, &error.to_string(), module);
        }
        let Some(request) = message.request_head.take() else { return };
        let received = std::mem::take(&mut self.from_client);
        self.given = Some(Box::new(Given { key, request, received }));
        self.fate = Fate::Given;
        self.drops_server = true;
        module.count(|it| it.reflected += 1);
        self.forget(module);
    }
}
