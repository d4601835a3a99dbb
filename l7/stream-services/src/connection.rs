//! Types and the interface that TCP and HTTP connections share.

use crate::foreign_calls::PictureOrder;
use crate::module::{Fault, Last, Module, Reply};
use crate::outgoing::Outgoing;
use crate::transcoder::Transcoder;
use fanout::Key;
use http1::RequestHead;
use proxy_wasm::{Answer, Effect, Stream};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use units::Nanos;

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// End at the client.
    Downstream,
    /// End at the server.
    Upstream,
}

impl Side {
    /// Both ends.
    pub const BOTH: [Self; 2] = [Self::Downstream, Self::Upstream];

    /// Returns the opposite end.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }
}

/// Policy for streams while their module is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// Fail open: bytes pass unfiltered.
    Open,
    /// Fail closed: TCP connections are reset; requests get 503 if a response is still possible.
    #[default]
    Closed,
}

/// Fate of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The connection continues.
    Open,
    /// The module no longer sees it: both ends are joined as soon as nothing is unsent.
    Joined,
    /// Both ends close, once the client has been sent everything.
    Closing,
    /// The request is handed over to a shared stream, as soon as nothing is unsent to the client.
    Handover,
    /// Both ends are reset, once everything unsent has been sent.
    Reset,
}

/// Request that is handed over to a shared stream, with the bytes received after it.
#[derive(Debug)]
pub(crate) struct Handover {
    pub key: Key,
    pub request: RequestHead,
    pub received: Vec<u8>,
}

/// Addresses of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address of the server to which the client connected.
    pub server: SocketAddr,
}

impl Addresses {
    /// Sets the address properties for the module: Envoy's attributes.
    pub(crate) fn describe(self, connection: u64, stream: &mut Stream) {
        let number = |port: u16| i64::from(port);
        stream.describe(&["source", "address"], self.client.to_string());
        stream.describe_number(&["source", "port"], number(self.client.port()));
        stream.describe(&["destination", "address"], self.server.to_string());
        stream.describe_number(&["destination", "port"], number(self.server.port()));
        stream.describe(&["upstream", "address"], self.server.to_string());
        stream.describe_number(&["upstream", "port"], number(self.server.port()));
        stream.describe_number(&["connection", "id"], connection as i64);
        stream.describe_flag(&["connection", "mtls"], false);
    }
}

/// Protocol state of a connection: takes bytes of both sides, returns bytes for both sides, and
/// calls the module in between.
pub(crate) trait Protocol {
    /// Handles bytes of a side; called only if [`Protocol::wants`] them.
    fn handle_bytes(&mut self, side: Side, bytes: &[u8], module: &mut dyn Module);

    /// Handles the end of a side's bytes.
    fn handle_end(&mut self, side: Side, module: &mut dyn Module);

    /// Handles that the server cannot be reached.
    fn handle_unreachable(&mut self, module: &mut dyn Module);

    /// Handles the loss of the server's end.
    fn handle_server_lost(&mut self, module: &mut dyn Module);

    /// Handles the loss of the client's end, or a shutdown.
    fn handle_lost(&mut self, module: &mut dyn Module);

    /// Continues after a wait: a call may be possible now.
    fn handle_continue(&mut self, module: &mut dyn Module);

    /// Handles the end of a suspended call.
    fn handle_reply(&mut self, reply: Reply, module: &mut dyn Module);

    /// Handles an effect of the module on one of its contexts here, outside a call.
    fn handle_effect(&mut self, effect: Effect, module: &mut dyn Module);

    /// Handles a trap of the module; `streams` are those of its VM.
    fn handle_trap(
        &mut self,
        fault: Fault,
        streams: &mut BTreeMap<u32, Box<Stream>>,
        module: &mut dyn Module,
    );

    /// Returns the time until which the connection may stay idle since `moved`; `None` means for
    /// ever.
    fn idle_until(&self, moved: Nanos) -> Option<Nanos> {
        let _ = moved;
        None
    }

    /// Handles the end of that time.
    fn handle_idle(&mut self, module: &mut dyn Module) {
        let _ = module;
    }

    /// Returns true if a side has begun a message that is incomplete, and is expected to send more
    /// before it gets an answer.
    fn awaits_more(&self, side: Side) -> bool {
        let _ = side;
        false
    }

    /// Returns true if bytes of a side are wanted.
    fn wants(&self, side: Side) -> bool;

    /// Returns the buffer of bytes to send to a side.
    fn out(&mut self, side: Side) -> &mut Outgoing;

    /// Handles that `count` of these bytes were sent.
    fn handle_sent(&mut self, side: Side, count: usize, module: &mut dyn Module);

    /// Handles that the kernel accepts no more bytes for a side at the moment.
    fn handle_full(&mut self, side: Side, module: &mut dyn Module) {
        let _ = (side, module);
    }

    /// Returns true if server data for the client is held back, to be coded together with later
    /// data.
    fn has_unflushed(&self) -> bool {
        false
    }

    /// Sends the data held back, after a pause of the server.
    fn handle_pause(&mut self, module: &mut dyn Module) {
        let _ = module;
    }

    /// Handles a module's order for the pictures of one of its contexts here, outside a call.
    fn handle_pictures(&mut self, context: u32, order: PictureOrder, module: &mut dyn Module) {
        let _ = (context, order, module);
    }

    /// Returns the number and the transcoder of the message whose body is transcoded.
    fn transcoder(&mut self) -> Option<(u64, &mut Transcoder)> {
        None
    }

    /// Takes the request that is to be handed over.
    fn take_handover(&mut self) -> Option<Box<Handover>> {
        None
    }

    /// Returns true if a connection to the server is needed.
    fn wants_server(&self) -> bool;

    /// Returns true if the server connection may be one that another client has used.
    fn may_share_server(&self) -> bool {
        false
    }

    /// Handles the start of a server connection; `is_shared` is true if another client has used it.
    fn handle_server(&mut self, is_shared: bool, module: &mut dyn Module) {
        let _ = (is_shared, module);
    }

    /// Returns true if another client may use the server connection now.
    fn is_server_reusable(&self) -> bool {
        false
    }

    /// Returns true, once, if the server connection must be closed while the client's continues.
    fn drops_server(&mut self) -> bool {
        false
    }

    /// Returns true if the server must learn, by a reset, that its request is incomplete.
    fn aborts_server(&self) -> bool {
        false
    }

    /// Returns true if bytes that a client has sent before its reset are read.
    fn drains_client(&self) -> bool {
        false
    }

    /// Returns true if bytes for the server are sent before the end.
    fn flushes_server(&self) -> bool {
        false
    }

    /// Returns true if a side gets a FIN once everything unsent has been sent.
    fn finishes(&self, side: Side) -> bool;

    /// Returns true if the connection waits for its turn to make a call.
    fn is_waiting(&self) -> bool;

    fn fate(&self) -> Fate;
}

/// Ends a context that was created for a connection that is gone meanwhile.
pub(crate) fn end_orphaned_context(reply: &Reply, module: &mut dyn Module) {
    if let Reply::Answered(Answer::Created(context), _) = reply {
        module.later(Last::End(*context, Vec::new()));
    }
}
