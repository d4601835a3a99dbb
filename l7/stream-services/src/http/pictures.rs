//! Responses whose video body is transcoded into pictures for the module.
//!
//! ```text
//!   server ─▶ Transcoder ─▶ whole pictures ─▶ module ─▶ client
//!              └ codecs, whose ends belong to the filter
//! ```
//!
//! A picture is taken only after everything written before was accepted by the kernel, so that none
//! grows old in a buffer here.

use super::direction::Head;
use super::forward;
use super::message::{Context, LocalAnswer};
use super::relay::Relay;
use crate::connection::Side;
use crate::foreign_calls::{PictureOrder, TranscodingOrder};
use crate::limits::READ_LENGTH;
use crate::module::Module;
use mpeg2::End as VideoEnd;
use units::Nanos;

/// Begins to transcode the body of a response into pictures.
pub(super) fn begin(
    relay: &mut Relay,
    index: usize,
    transcoding_order: TranscodingOrder,
    module: &mut dyn Module,
) {
    let Some(message) = relay.message_mut(index) else { return };
    let Context::Made(context) = message.context() else { return };
    message.begin_pictures(transcoding_order);
    module.foreign_calls().begin_pictures(context);
    module.count(|it| it.transcoded += 1);
}

/// Records that a held response can still be transcoded: the module has seen nothing of its body.
pub(super) fn hold(relay: &Relay, index: usize, is_request: bool, module: &dyn Module) {
    let Some(message) = relay.message(index) else { return };
    let response = message.response();
    if let Context::Made(context) = message.context()
        && !is_request
        && response.head() == Head::Held
        && response.has_body()
        && !message.is_pictures()
    {
        module.foreign_calls().hold(context);
    }
}

/// Executes an order of another context's call for a stream's pictures.
pub(super) fn order(relay: &mut Relay, context: u32, order: PictureOrder, module: &mut dyn Module) {
    let Some(index) = relay.index_of(context) else { return };
    let Some(message) = relay.message_mut(index) else { return };
    match order {
        PictureOrder::Begin(transcoding_order) => {
            if message.response().head() == Head::Held {
                begin(relay, index, transcoding_order, module);
            }
        }
        PictureOrder::Change(params) => {
            if let Some(transcoder) = message.transcoder_mut() {
                transcoder.transcoding.change(params);
            }
        }
    }
}

/// Returns true if the next picture waited for the client to take earlier bytes, and it has.
pub(super) fn are_awaited(relay: &Relay) -> bool {
    let front = relay.message(0);
    front.is_some_and(|front| front.transcoder().is_some())
        && relay.wire().is_empty(Side::Downstream)
}

/// Returns the context of the message whose next picture can be taken.
pub(super) fn context_due(relay: &Relay) -> Option<Context> {
    let front = relay.message(0)?;
    let response = front.response();
    let is_stopped = response.head() < Head::Ready
        || response.has_fresh()
        || response.is_held()
        || response.has_ended();
    (are_awaited(relay) && !is_stopped && relay.is_open()).then(|| front.context())
}

/// Passes the available pictures to the module, or to the client if the module does not want to see
/// bodies; only when they are due. Returns true on progress.
pub(super) fn take(relay: &mut Relay, module: &mut dyn Module) -> bool {
    let now = Nanos(module.now().monotonic_ns);
    let mut pictures = Vec::new();
    let Some(front) = relay.front_mut() else { return false };
    let context = front.context();
    let Some(transcoder) = front.transcoder_mut() else { return false };
    let mut count = 0;
    while pictures.len() < READ_LENGTH && transcoder.transcoding.take(now, &mut pictures) {
        count += 1;
    }
    if count == 0 {
        return match transcoder.transcoding.ended() {
            Some(ended) => {
                end(relay, ended, module);
                true
            }
            None => false,
        };
    }
    module.count_pictures(count);
    transcoder.count(count, 0);
    transcoder.share.show(transcoder.transcoding.shown());
    if let Context::Made(context) = context
        && forward::parts(false, module).body
        && let Some(stream) = module.stream(context)
    {
        match stream.upstream.body.is_empty() {
            true => std::mem::swap(&mut stream.upstream.body, &mut pictures),
            false => stream.upstream.body.append(&mut pictures),
        }
        front.direction_mut(false).handle_fresh();
    } else if forward::write_head(relay, 0, false, None, module) {
        forward::write_body(relay, 0, false, &pictures, module);
    }
    true
}

/// Ends a response that has no more pictures.
fn end(relay: &mut Relay, ended: VideoEnd, module: &mut dyn Module) {
    let Some(front) = relay.front_mut() else { return };
    let has_begun = front.end_pictures().is_some_and(|it| it.transcoding.has_begun());
    if let Context::Made(context) = front.context() {
        module.foreign_calls().end_pictures(context);
    }
    let why = match ended {
        VideoEnd::Whole if has_begun => return front.direction_mut(false).handle_end(),
        VideoEnd::Whole => "the codec has found no picture".to_owned(),
        ended => ended.to_string(),
    };
    let is_sent = front.response().head() == Head::Sent;
    module.count(|it| it.transcodings_failed += 1);
    module.warn(&format!("a response could not be transcoded into pictures: {why}"));
    if is_sent {
        // The client must not take the response for complete.
        return relay.reset(module);
    }
    relay.answer(
        0,
        LocalAnswer::text(502, &format!("no pictures can be made of it: {why}")),
        module,
    );
}
