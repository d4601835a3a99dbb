//! What connections of both protocols have in common.

use crate::desk::PictureOrder;
use crate::module::{Fault, Last, Module, Reply};
use crate::outgoing::Outgoing;
use crate::transcoder::Transcoder;
use fanout::Key;
use http1::RequestHead;
use proxy_wasm::{Answer, Effect, Stream};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use units::Nanos;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Downstream,
    /// The server's.
    Upstream,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Downstream, Self::Upstream];

    /// Returns the other one.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }
}

/// What becomes of streams while their module is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// Their bytes pass unfiltered.
    Open,
    /// TCP connections are reset; requests get 503, where a response can still be given.
    #[default]
    Closed,
}

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on.
    Open,
    /// It goes on without anybody who looks at it: as soon as nothing waits to be sent.
    Joined,
    /// Both ends end, once what waits for the client has been sent.
    Closing,
    /// Somebody else answers it, as soon as nothing waits for the client.
    Given,
    /// It is reset at both ends, once what waits for them has been sent.
    Reset,
}

/// A request for somebody else, with all that came behind it.
#[derive(Debug)]
pub(crate) struct Given {
    pub key: Key,
    pub request: RequestHead,
    pub received: Vec<u8>,
}

/// Who is at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    /// The client.
    pub client: SocketAddr,
    /// The server that it is on its way to.
    pub server: SocketAddr,
}

impl Addresses {
    /// What a module may ask about them: Envoy's attributes.
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

/// Bytes of both sides in, bytes to both sides out, calls to the module in between.
pub(crate) trait Protocol {
    /// Bytes have come; only when they are wanted.
    fn handle_bytes(&mut self, side: Side, bytes: &[u8], module: &mut dyn Module);

    /// No more will come of a side.
    fn handle_end(&mut self, side: Side, module: &mut dyn Module);

    /// The server is not to be reached.
    fn handle_unreachable(&mut self, module: &mut dyn Module);

    /// The server's end has failed.
    fn handle_server_lost(&mut self, module: &mut dyn Module);

    /// The connection is gone at the client's end, or is to be.
    fn handle_lost(&mut self, module: &mut dyn Module);

    /// Something may be done that could not be done before.
    fn handle_go(&mut self, module: &mut dyn Module);

    /// A call that stood still has ended.
    fn handle_reply(&mut self, reply: Reply, module: &mut dyn Module);

    /// The module wants something of one of its contexts here, while no call runs.
    fn handle_effect(&mut self, effect: Effect, module: &mut dyn Module);

    /// The module has fallen; these are the streams that it had.
    fn handle_fall(
        &mut self,
        fault: Fault,
        streams: &mut BTreeMap<u32, Box<Stream>>,
        module: &mut dyn Module,
    );

    /// Until when the connection may stay as it is, on which something moved last at `moved`; for
    /// ever without.
    fn idle_until(&self, moved: Nanos) -> Option<Nanos> {
        let _ = moved;
        None
    }

    /// That time is over.
    fn handle_idle(&mut self, module: &mut dyn Module) {
        let _ = module;
    }

    /// Whether a side has more to say before anything is said to it: what it has begun is not
    /// whole.
    fn awaits_more(&self, side: Side) -> bool {
        let _ = side;
        false
    }

    /// Whether bytes of a side are wanted.
    fn wants(&self, side: Side) -> bool;

    /// What waits to be sent to a side.
    fn out(&mut self, side: Side) -> &mut Outgoing;

    /// So many bytes of that have been sent.
    fn handle_sent(&mut self, side: Side, count: usize, module: &mut dyn Module);

    /// The kernel takes nothing more for a side at the moment.
    fn handle_full(&mut self, side: Side, module: &mut dyn Module) {
        let _ = (side, module);
    }

    /// Whether something has come of the server that the client could have, and is kept back to
    /// go together with what follows.
    fn has_unflushed(&self) -> bool {
        false
    }

    /// That has been kept back long enough.
    fn handle_pause(&mut self, module: &mut dyn Module) {
        let _ = module;
    }

    /// The module wants something of the pictures of one of its contexts here, while no call runs.
    fn handle_pictures(&mut self, context: u32, order: PictureOrder, module: &mut dyn Module) {
        let _ = (context, order, module);
    }

    /// What of it goes through a codec, and which message that is.
    fn transcoder(&mut self) -> Option<(u64, &mut Transcoder)> {
        None
    }

    /// The request that is given away; asked once.
    fn take_given(&mut self) -> Option<Box<Given>> {
        None
    }

    /// Whether it has to have a connection to the server.
    fn wants_server(&self) -> bool;

    /// Whether the connection to the server may be one that another client has had.
    fn may_share_server(&self) -> bool {
        false
    }

    /// There is a connection to the server, or one is made: whether another client has had it.
    fn handle_server(&mut self, is_shared: bool, module: &mut dyn Module) {
        let _ = (is_shared, module);
    }

    /// Whether another client may have the connection to the server now.
    fn leaves_server(&self) -> bool {
        false
    }

    /// Whether the connection to the server is to be closed though this one goes on; asked once.
    fn drops_server(&mut self) -> bool {
        false
    }

    /// Whether the server is to be told that what it has is not the whole.
    fn aborts_server(&self) -> bool {
        false
    }

    /// Whether what a client has sent before its reset is read.
    fn drains_client(&self) -> bool {
        false
    }

    /// Whether what waits for the server is sent before the end.
    fn flushes_server(&self) -> bool {
        false
    }

    /// Whether a side gets nothing more, once what waits has been sent.
    fn finishes(&self, side: Side) -> bool;

    /// Whether it waits until it may make a call; then it is told.
    fn is_waiting(&self) -> bool;

    fn fate(&self) -> Fate;
}

/// A context that was made for somebody who is gone meanwhile ends.
pub(crate) fn end_unwanted(reply: &Reply, module: &mut dyn Module) {
    if let Reply::Answered(Answer::Created(context), _) = reply {
        module.later(Last::End(*context, Vec::new()));
    }
}
