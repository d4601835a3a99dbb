//! Inputs and outputs of the association table.

use super::{ASSOCIATIONS_MAX, INITIATED_MAX};
use crate::flood::Budget;
use crate::traffic::Traffic;
use crate::wire::AssociationId;
use std::net::SocketAddr;
use trust::{PublicKey, SecretKey, token};

/// Node's identity, and its budget for unauthenticated senders.
#[derive(Debug)]
pub struct Config {
    /// Identity key of the node.
    pub key: SecretKey,
    /// Capability of the node in text form, or empty.
    pub token: String,
    /// Diffie-Hellman computations per second.
    pub budget: Budget,
}

/// Reason why no association can be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssociationError {
    /// The token does not fit into a message.
    #[error("the token has {0} bytes; at most {max} are sent", max = token::LENGTH_MAX)]
    TokenTooLong(usize),
    /// [`INITIATED_MAX`] handshakes are in progress.
    #[error("{INITIATED_MAX} handshakes are under way; try again when some have ended")]
    Busy,
    /// [`ASSOCIATIONS_MAX`] associations exist.
    #[error("there are {ASSOCIATIONS_MAX} associations; end some first")]
    Full,
}

/// Peer to which an association is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// UDP address of the peer.
    pub address: SocketAddr,
    /// Principal that has to answer; this node reveals its identity to no other. `None` accepts
    /// any.
    pub principal: Option<PublicKey>,
}

/// Action for the caller.
#[derive(Debug)]
pub enum Effect {
    /// Send a datagram.
    Send {
        /// Destination.
        to: SocketAddr,
        /// UDP payload.
        datagram: Vec<u8>,
    },
    /// An association is established: both identities are verified.
    Established(Box<Established>),
    /// The association has ended, or was not established. The holder of its keys deletes them.
    Ended {
        /// Id of the association.
        id: AssociationId,
        /// Reason of the end.
        reason: Reason,
    },
}

/// New association.
#[derive(Debug)]
pub struct Established {
    /// Id on this side.
    pub id: AssociationId,
    /// Address of the other side.
    pub address: SocketAddr,
    /// Principal of the other side.
    pub principal: PublicKey,
    /// Capability of the other side in text form, unverified, or empty.
    pub token: String,
    /// True if this node is the initiator.
    pub is_ours: bool,
    /// Predecessor, if this is a renewal. The predecessor opens packets in flight until it ends;
    /// new packets are sealed with this association.
    pub replaces: Option<AssociationId>,
    /// Keys of the association; the only copy.
    pub traffic: Traffic,
}

/// Reason why an association ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lifetime [`LIFETIME_MAX`] has passed.
    Expired,
    /// The other side has ended it.
    ByPeer,
    /// The association was ended by this node.
    Here,
    /// The principal has [`ASSOCIATIONS_PER_PRINCIPAL_MAX`] newer ones.
    Crowded,
    /// The peer has not answered in [`ATTEMPT_TIME_MAX`].
    NoAnswer,
    /// A principal other than the requested one has answered.
    OtherPrincipal(PublicKey),
}

/// Reason why a message is not answered. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The datagram is not a valid message.
    Malformed,
    /// The same message 1 has been answered already.
    Duplicate,
    /// The sender has to prove its address first, and was sent a cookie.
    CookieNeeded,
    /// The prefix of the sender has too many entries.
    PrefixFull,
    /// The table is full.
    Full,
    /// The budget of computations is exhausted.
    BudgetSpent,
    /// The message belongs to no handshake, or has the wrong source address.
    Unexpected,
    /// The message's authentication is invalid.
    Forged,
}

/// Number of entries by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handshakes begun by this node.
    pub initiated: usize,
    /// Handshakes begun by other nodes.
    pub half_open: usize,
    /// Half-open handshakes without proof of the source address.
    pub unproven: usize,
    /// Established associations.
    pub live: usize,
}
