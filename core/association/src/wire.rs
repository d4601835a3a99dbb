//! Wire format of messages between nodes: one datagram each, all with the same eight-byte header.
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
//! Any deviation from the description is refused: each message has exactly one encoding.

use crate::secret::MAC_LENGTH;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;
use trust::token;

/// Protocol version of this implementation.
pub const VERSION: u8 = 1;
/// Length of the header in bytes.
pub const HEADER_LENGTH: usize = 8;
/// Length to which message 1 is padded, in bytes. No answer to an unproven address is longer, so
/// that nothing is amplified. QUIC uses the same (RFC 9000, section 14.1), and it passes every IPv6
/// path (1,280 bytes, less 48 of headers).
pub const INITIATION_LENGTH: usize = 1200;
/// Longest handshake message in bytes: a token and its overhead.
pub const MESSAGE_LENGTH_MAX: usize = token::LENGTH_MAX + 512;
/// Length of an X25519 public key in bytes.
pub const EPHEMERAL_LENGTH: usize = 32;
/// Length of a cookie, which proves that the sender receives at its address, in bytes.
pub const COOKIE_LENGTH: usize = MAC_LENGTH;
/// Length of the Noise part of message 1: an ephemeral key, the initiator's association id,
/// padding.
const INITIATION_NOISE: usize = INITIATION_LENGTH - HEADER_LENGTH - COOKIE_LENGTH;
const COOKIE_MESSAGE_LENGTH: usize = HEADER_LENGTH + COOKIE_LENGTH + EPHEMERAL_LENGTH;
const MAC_MESSAGE_LENGTH: usize = HEADER_LENGTH + MAC_LENGTH;

const _: () = assert!(COOKIE_MESSAGE_LENGTH < INITIATION_LENGTH, "no amplification");
const _: () = assert!(MESSAGE_LENGTH_MAX < 65_507, "one datagram");

/// Association id: the number by which the receiver of a packet finds the association. Random,
/// chosen by the receiver, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AssociationId(NonZeroU32);

impl AssociationId {
    /// Makes an id from a number; `None` for 0, which is reserved.
    #[must_use]
    pub const fn new(id: u32) -> Option<Self> {
        match NonZeroU32::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// Returns the id as on the wire.
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

/// Reason why a datagram is not a valid message. The fault of its sender, or of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The datagram is shorter than the message requires.
    #[error("{length} bytes are too few: this message has at least {at_least}")]
    TooShort {
        /// Length of the datagram in bytes.
        length: usize,
        /// Least length in bytes.
        at_least: usize,
    },
    /// The datagram is longer than the message allows.
    #[error("{length} bytes are too many: this message has at most {at_most}")]
    TooLong {
        /// Length of the datagram in bytes.
        length: usize,
        /// Largest length in bytes.
        at_most: usize,
    },
    /// The version is a newer one, or the datagram belongs to another protocol.
    #[error("protocol version {0} is not supported; {VERSION} is")]
    Version(u8),
    /// The type does not exist in this version.
    #[error("there is no message of type {0}")]
    Type(u8),
    /// The message has flags that its type does not define.
    #[error("this message type does not have the flags {0:#04x}")]
    Flags(u8),
    /// Bytes reserved as zero are not zero.
    #[error("reserved bytes are not zero")]
    NotZero,
    /// The association id is 0 where the message requires one, or is not 0 where it must be.
    #[error("the message has an association id where none is allowed, or lacks a required one")]
    Association,
}

/// Message types.
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

/// Class of a datagram, by which it is dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Handshake message, for the association table.
    Handshake,
    /// Active packet, for the holder of this association's keys.
    Active(AssociationId),
    /// Unauthenticated active packet, which may name a module marked `anyone`.
    Anyone,
}

/// Returns the class of a datagram from its first eight bytes.
///
/// # Errors
/// The datagram has no valid header.
#[inline]
pub fn kind(datagram: &[u8]) -> Result<Kind, WireError> {
    let header = Header::read(datagram)?;
    match header.kind {
        Type::Active => Ok(header.to.map_or(Kind::Anyone, Kind::Active)),
        _ => Ok(Kind::Handshake),
    }
}

/// Header of eight bytes.
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

/// Returns the flags and the association id of an active packet.
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

/// Handshake message whose lengths and fixed bytes have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'d> {
    /// Message 1: requests an association.
    Initiation {
        /// Proof of the source address; zeros if none was required.
        cookie: &'d [u8; COOKIE_LENGTH],
        /// Ephemeral key of the initiator, which begins `noise`.
        ephemeral: &'d [u8; EPHEMERAL_LENGTH],
        /// Message 1 of Noise.
        noise: &'d [u8],
    },
    /// Message 2: carries the responder's identity.
    Answer {
        /// Id of the initiator.
        to: AssociationId,
        /// Message 2 of Noise.
        noise: &'d [u8],
    },
    /// Message 3: carries the initiator's identity.
    Finish {
        /// Id of the responder.
        to: AssociationId,
        /// Message 3 of Noise.
        noise: &'d [u8],
    },
    /// Request to repeat message 1 with this cookie.
    Cookie {
        /// Id of the initiator.
        to: AssociationId,
        /// Cookie for the repeated message 1.
        cookie: &'d [u8; COOKIE_LENGTH],
        /// Ephemeral key of message 1, which proves that the sender has seen it.
        ephemeral: &'d [u8; EPHEMERAL_LENGTH],
    },
    /// Confirmation of message 3.
    Confirm {
        /// Id of the initiator.
        to: AssociationId,
        /// Proof that the responder has the keys.
        mac: &'d [u8; MAC_LENGTH],
    },
    /// End of an association.
    End {
        /// Id on the receiver's side.
        to: AssociationId,
        /// Proof that the sender has the keys.
        mac: &'d [u8; MAC_LENGTH],
    },
}

impl<'d> Message<'d> {
    /// Parses a handshake message.
    ///
    /// # Errors
    /// The datagram is not a valid handshake message.
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

/// Splits a body of exactly the expected length after its first field.
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

/// Checks the length of a Noise message against its upper bound; Noise itself checks the lower one.
fn noise(body: &[u8]) -> Result<&[u8], WireError> {
    let length = body.len() + HEADER_LENGTH;
    if length > MESSAGE_LENGTH_MAX {
        return Err(WireError::TooLong { length, at_most: MESSAGE_LENGTH_MAX });
    }
    Ok(body)
}

/// Returns the payload of message 1: the initiator's id, and padding.
pub(crate) fn initiation_payload(id: AssociationId) -> Vec<u8> {
    let mut payload = id.to_bytes().to_vec();
    payload.resize(INITIATION_NOISE - EPHEMERAL_LENGTH, 0);
    payload
}

/// Returns the initiator's id in the payload of message 1.
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
