//! Connections whose bytes somebody wants to see.

use std::net::SocketAddr;

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

    /// The end that it talks to.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Downstream => 0,
            Self::Upstream => 1,
        }
    }
}

/// What makes of the bytes of one connection others.
///
/// It is asked for no more than there is to do: what it does not take is given again when
/// something has happened, and its sender may not send more meanwhile.
pub trait Handler {
    /// Bytes that came from one end, in their order; with the last of them, or with none, that
    /// there will be no more. How many it takes: the others are given again, with what came then.
    fn receive(&mut self, from: Side, bytes: &[u8], has_ended: bool) -> usize;

    /// Bytes for one end that are not sent yet.
    fn waiting(&self, to: Side) -> &[u8];

    /// So many of them are sent.
    fn sent(&mut self, to: Side, count: usize);

    /// Whether one end gets nothing more, but for what waits: it is told.
    fn is_over(&self, to: Side) -> bool;

    /// Whether both ends are to be reset, now.
    fn fails(&self) -> bool {
        false
    }
}

/// Who has a handler for each connection of a service.
pub trait Handlers {
    /// A connection between these two; without a handler nobody wants to see its bytes.
    fn open(&mut self, client: SocketAddr, server: SocketAddr) -> Option<Box<dyn Handler>>;
}
