//! The messages between nodes, as bytes: one datagram each, all with the same first eight bytes.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+-------------------------------+
//! |version| type  |     flags     |               0               |
//! +-------+-------+---------------+-------------------------------+
//! |               the receiver's association id                   |
//! +---------------------------------------------------------------+
//! ```
//!
//! What is not exactly as described is refused: there is one way to write each message.

use crate::secret::MAC_LENGTH;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use trust::token;

/// The version that is spoken here.
pub const VERSION: u8 = 1;
/// Bytes that every message begins with.
pub const HEADER_LENGTH: usize = 8;
/// The first message is padded to this: no answer to somebody who has not shown that the
/// address is his is longer. It is what QUIC takes (RFC 9000, section 14.1) and passes every
/// path that IPv6 passes (1,280 bytes, less 48 of headers).
pub const INITIATION_LENGTH: usize = 1200;
/// Most bytes of a message of the handshake: a token, and what is around it.
pub const MESSAGE_LENGTH_MAX: usize = token::LENGTH_MAX + 512;
/// A public key of X25519.
pub const EPHEMERAL_LENGTH: usize = 32;
/// What shows that somebody receives at an address.
pub const COOKIE_LENGTH: usize = MAC_LENGTH;
/// Noise of the first message: an ephemeral key, the initiator's association id, padding.
const INITIATION_NOISE: usize = INITIATION_LENGTH - HEADER_LENGTH - COOKIE_LENGTH;
const COOKIE_MESSAGE_LENGTH: usize = HEADER_LENGTH + COOKIE_LENGTH + EPHEMERAL_LENGTH;
const MAC_MESSAGE_LENGTH: usize = HEADER_LENGTH + MAC_LENGTH;

const _: () = assert!(COOKIE_MESSAGE_LENGTH < INITIATION_LENGTH, "no amplification");
const _: () = assert!(MESSAGE_LENGTH_MAX < 65_507, "one datagram");

/// The number by which the receiver of a packet finds its association: random, chosen by the
/// receiver, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AssociationId(NonZeroU32);

impl AssociationId {
    /// By its number; 0 is nobody's.
    #[must_use]
    pub const fn new(id: u32) -> Option<Self> {
        match NonZeroU32::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// As on the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for AssociationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Why a datagram is none of ours. Its sender's fault, or the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Cut off.
    #[error("{length} bytes are too few: this message has at least {at_least}")]
    TooShort {
        /// What there is.
        length: usize,
        /// What there has to be.
        at_least: usize,
    },
    /// More than it can have.
    #[error("{length} bytes are too many: this message has at most {at_most}")]
    TooLong {
        /// What there is.
        length: usize,
        /// What there may be.
        at_most: usize,
    },
    /// Spoken by somebody newer, or no message at all.
    #[error("version {0} is not spoken here, {VERSION} is")]
    Version(u8),
    /// No such message in this version.
    #[error("there is no message of type {0}")]
    Type(u8),
    /// Flags that this message does not have.
    #[error("this message has no flags {0:#04x}")]
    Flags(u8),
    /// Bytes that are zero in this version are not.
    #[error("bytes that have to be zero are not")]
    NotZero,
    /// An association id is 0 where there has to be one, or the other way round.
    #[error("this message has an association id where it must not, or none where it has to")]
    Association,
}

/// The types of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Type {
    Initiation = 1,
    Answer = 2,
    Finish = 3,
    Cookie = 4,
    Confirm = 5,
    End = 6,
    Active = 7,
}

impl Type {
    fn of(byte: u8) -> Result<Self, WireError> {
        let types = [
            Self::Initiation,
            Self::Answer,
            Self::Finish,
            Self::Cookie,
            Self::Confirm,
            Self::End,
            Self::Active,
        ];
        let number = byte & 0x0f;
        let found = types.into_iter().find(|kind| *kind as u8 == number);
        found.ok_or(WireError::Type(number))
    }
}

/// Who has to look at a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whoever does handshakes.
    Handshake,
    /// Whoever has the keys of this association.
    Active(AssociationId),
    /// Nobody vouches for it: it may name a module that is for anyone.
    Anyone,
}

/// Tells who has to look at a datagram, by its first eight bytes.
///
/// # Errors
/// When nobody has to.
#[inline]
pub fn kind(datagram: &[u8]) -> Result<Kind, WireError> {
    let header = Header::read(datagram)?;
    match header.kind {
        Type::Active => Ok(header.to.map_or(Kind::Anyone, Kind::Active)),
        _ => Ok(Kind::Handshake),
    }
}

/// The first eight bytes.
#[derive(Clone, Copy, Debug)]
struct Header {
    kind: Type,
    flags: u8,
    to: Option<AssociationId>,
}

impl Header {
    fn read(datagram: &[u8]) -> Result<Self, WireError> {
        let length = datagram.len();
        let Some((header, _)) = datagram.split_first_chunk::<HEADER_LENGTH>() else {
            return Err(WireError::TooShort { length, at_least: HEADER_LENGTH });
        };
        let &[first, flags, zero, zeros, id @ ..] = header;
        if first >> 4 != VERSION {
            return Err(WireError::Version(first >> 4));
        }
        let kind = Type::of(first)?;
        if zero != 0 || zeros != 0 {
            return Err(WireError::NotZero);
        }
        Ok(Self { kind, flags, to: AssociationId::new(u32::from_be_bytes(id)) })
    }

    fn to_bytes(self) -> [u8; HEADER_LENGTH] {
        let id = self.to.map_or([0; 4], AssociationId::to_bytes);
        [VERSION << 4 | self.kind as u8, self.flags, 0, 0, id[0], id[1], id[2], id[3]]
    }
}

/// The header of an active packet: its flags, and whose it is.
#[inline]
pub(crate) fn active_header(datagram: &[u8]) -> Result<(u8, Option<AssociationId>), WireError> {
    let header = Header::read(datagram)?;
    match header.kind {
        Type::Active => Ok((header.flags, header.to)),
        other => Err(WireError::Type(other as u8)),
    }
}

pub(crate) fn write_active_header(flags: u8, to: Option<AssociationId>) -> [u8; HEADER_LENGTH] {
    Header { kind: Type::Active, flags, to }.to_bytes()
}

/// A message of the handshake, whose length fits and whose fixed bytes are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'d> {
    /// The first: somebody wants an association.
    Initiation {
        /// What shows that he receives at his address; zeros if he was not asked.
        cookie: &'d [u8; COOKIE_LENGTH],
        /// His ephemeral key, the beginning of what follows.
        ephemeral: &'d [u8; EPHEMERAL_LENGTH],
        /// Noise, message 1.
        noise: &'d [u8],
    },
    /// The second: who answers.
    Answer {
        /// The initiator.
        to: AssociationId,
        /// Noise, message 2.
        noise: &'d [u8],
    },
    /// The third: who asked.
    Finish {
        /// The responder.
        to: AssociationId,
        /// Noise, message 3.
        noise: &'d [u8],
    },
    /// Ask again, with this.
    Cookie {
        /// The initiator.
        to: AssociationId,
        /// What to ask with.
        cookie: &'d [u8; COOKIE_LENGTH],
        /// What was asked: only who saw the question knows it.
        ephemeral: &'d [u8; EPHEMERAL_LENGTH],
    },
    /// The third message has arrived.
    Confirm {
        /// The initiator.
        to: AssociationId,
        /// Shows that the responder has the keys.
        mac: &'d [u8; MAC_LENGTH],
    },
    /// The other side's association ends.
    End {
        /// This side's.
        to: AssociationId,
        /// Shows who says so.
        mac: &'d [u8; MAC_LENGTH],
    },
}

impl<'d> Message<'d> {
    /// Reads a message of the handshake.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(datagram: &'d [u8]) -> Result<Self, WireError> {
        let header = Header::read(datagram)?;
        let body = &datagram[HEADER_LENGTH..];
        if header.flags != 0 {
            return Err(WireError::Flags(header.flags));
        }
        if header.kind == Type::Initiation {
            return Self::initiation(header, body);
        }
        let to = header.to.ok_or(WireError::Association)?;
        match header.kind {
            Type::Answer => Ok(Self::Answer { to, noise: noise(body)? }),
            Type::Finish => Ok(Self::Finish { to, noise: noise(body)? }),
            Type::Cookie => {
                let (cookie, ephemeral) = exactly(body, COOKIE_MESSAGE_LENGTH)?;
                Ok(Self::Cookie { to, cookie, ephemeral: fixed(ephemeral)? })
            }
            Type::Confirm => Ok(Self::Confirm { to, mac: exactly(body, MAC_MESSAGE_LENGTH)?.0 }),
            Type::End => Ok(Self::End { to, mac: exactly(body, MAC_MESSAGE_LENGTH)?.0 }),
            Type::Active | Type::Initiation => Err(WireError::Type(header.kind as u8)),
        }
    }

    fn initiation(header: Header, body: &'d [u8]) -> Result<Self, WireError> {
        let (cookie, noise) = exactly::<COOKIE_LENGTH>(body, INITIATION_LENGTH)?;
        let (ephemeral, payload) = exactly::<EPHEMERAL_LENGTH>(noise, noise.len() + HEADER_LENGTH)?;
        if header.to.is_some() || payload[..4] == [0; 4] {
            return Err(WireError::Association);
        }
        if payload[4..].iter().any(|byte| *byte != 0) {
            return Err(WireError::NotZero);
        }
        Ok(Self::Initiation { cookie, ephemeral, noise })
    }
}

/// A body of a message of exactly this length, and what comes first in it.
fn exactly<const FIRST: usize>(
    body: &[u8],
    message: usize,
) -> Result<(&[u8; FIRST], &[u8]), WireError> {
    let length = body.len() + HEADER_LENGTH;
    if length > message {
        return Err(WireError::TooLong { length, at_most: message });
    }
    let parts = if length < message { None } else { body.split_first_chunk() };
    parts.ok_or(WireError::TooShort { length, at_least: message })
}

fn fixed(bytes: &[u8]) -> Result<&[u8; EPHEMERAL_LENGTH], WireError> {
    let length = bytes.len();
    bytes.try_into().map_err(|_| WireError::TooShort { length, at_least: EPHEMERAL_LENGTH })
}

/// What Noise reads, within bounds: it knows itself what is too short.
fn noise(body: &[u8]) -> Result<&[u8], WireError> {
    let length = body.len() + HEADER_LENGTH;
    if length > MESSAGE_LENGTH_MAX {
        return Err(WireError::TooLong { length, at_most: MESSAGE_LENGTH_MAX });
    }
    Ok(body)
}

/// What the first message says beside its key: whose it is, and padding.
pub(crate) fn initiation_payload(id: AssociationId) -> Vec<u8> {
    let mut payload = id.to_bytes().to_vec();
    payload.resize(INITIATION_NOISE - EPHEMERAL_LENGTH, 0);
    payload
}

/// Whose it is.
pub(crate) fn initiator_of(payload: &[u8]) -> Option<AssociationId> {
    AssociationId::new(u32::from_be_bytes(*payload.first_chunk()?))
}

pub(crate) fn write_initiation(cookie: &[u8; COOKIE_LENGTH], noise: &[u8]) -> Vec<u8> {
    write(Type::Initiation, None, &[cookie, noise])
}

pub(crate) fn write_answer(to: AssociationId, noise: &[u8]) -> Vec<u8> {
    write(Type::Answer, Some(to), &[noise])
}

pub(crate) fn write_finish(to: AssociationId, noise: &[u8]) -> Vec<u8> {
    write(Type::Finish, Some(to), &[noise])
}

pub(crate) fn write_cookie(
    to: AssociationId,
    cookie: &[u8; COOKIE_LENGTH],
    ephemeral: &[u8; EPHEMERAL_LENGTH],
) -> Vec<u8> {
    write(Type::Cookie, Some(to), &[cookie, ephemeral])
}

pub(crate) fn write_confirm(to: AssociationId, mac: &[u8; MAC_LENGTH]) -> Vec<u8> {
    write(Type::Confirm, Some(to), &[mac])
}

pub(crate) fn write_end(to: AssociationId, mac: &[u8; MAC_LENGTH]) -> Vec<u8> {
    write(Type::End, Some(to), &[mac])
}

fn write(kind: Type, to: Option<AssociationId>, parts: &[&[u8]]) -> Vec<u8> {
    let mut datagram = Header { kind, flags: 0, to }.to_bytes().to_vec();
    parts.iter().for_each(|part| datagram.extend_from_slice(part));
    datagram
}

#[cfg(test)]
mod tests;
