//! What a table is told, and what it tells.

use super::{ASKING_MAX, ASSOCIATIONS_MAX};
use crate::load::Budget;
use crate::traffic::Traffic;
use crate::wire::AssociationId;
use std::net::SocketAddr;
use trust::{PublicKey, SecretKey, token};

/// What a node says of itself, and what strangers may cost it.
#[derive(Debug)]
pub struct Config {
    /// Who it is.
    pub key: SecretKey,
    /// What it may: a token's text, or nothing.
    pub token: String,
    /// Of Diffie-Hellman computations.
    pub budget: Budget,
}

/// Why there is no association, nor will there be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssociationError {
    /// It does not fit into a message.
    #[error("the token has {0} bytes; at most {max} are sent", max = token::LENGTH_MAX)]
    TokenTooLong(usize),
    /// [`ASKING_MAX`].
    #[error("{ASKING_MAX} handshakes are under way; try again when some have ended")]
    Busy,
    /// [`ASSOCIATIONS_MAX`].
    #[error("there are {ASSOCIATIONS_MAX} associations; end some first")]
    Full,
}

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where.
    pub address: SocketAddr,
    /// Who has to answer; this node says who it is to nobody else. None: whoever answers.
    pub principal: Option<PublicKey>,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Send this datagram.
    Send {
        /// To whom.
        to: SocketAddr,
        /// What.
        datagram: Vec<u8>,
    },
    /// Both sides know each other.
    Established(Box<Established>),
    /// There is no such association any more, or will not be. Whoever has its keys drops them.
    Ended {
        /// Which one.
        id: AssociationId,
        /// Why.
        reason: Reason,
    },
}

/// A new association.
#[derive(Debug)]
pub struct Established {
    /// Its number here.
    pub id: AssociationId,
    /// Where the other side is.
    pub address: SocketAddr,
    /// Who it is.
    pub principal: PublicKey,
    /// What it says it may: a token's text, which nobody has verified yet, or nothing.
    pub token: String,
    /// Whether this side asked for it.
    pub is_ours: bool,
    /// Which one it comes after: that one opens what is still on its way, until it ends; to
    /// seal, this one is to be used.
    pub replaces: Option<AssociationId>,
    /// Its keys: the only ones.
    pub traffic: Traffic,
}

/// Why an association ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// [`LIFETIME_MAX`] has passed.
    Expired,
    /// The other side says so.
    ByPeer,
    /// This side was told so.
    Here,
    /// The principal has [`ASSOCIATIONS_PER_PRINCIPAL_MAX`] newer ones.
    Crowded,
    /// Nobody has answered in [`ASK_TIME_MAX`].
    NoAnswer,
    /// Somebody else than was asked for has answered.
    OtherPrincipal(PublicKey),
}

/// Why a message was not answered. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It is none.
    Malformed,
    /// The same message 1 was answered already.
    Duplicate,
    /// Its sender was sent a cookie instead.
    CookieNeeded,
    /// Too many from one prefix.
    PrefixFull,
    /// Too many.
    Full,
    /// Nothing is left of the budget.
    BudgetSpent,
    /// It is for nobody here, or comes from somewhere else than it has to.
    Unexpected,
    /// Not from whom it says, or changed on its way.
    Forged,
}

/// How many there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handshakes that this side has begun.
    pub asking: usize,
    /// Handshakes that others have begun.
    pub half_open: usize,
    /// Of these, without proof of the address.
    pub unproven: usize,
    /// Associations.
    pub live: usize,
}
