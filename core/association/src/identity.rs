//! Identity of a handshake's sender: the encrypted payload of messages 2 and 3.
//!
//! ```text
//! +---------------------------------------------------------------+
//! |        the sender's association id (message 2 only)           |
//! +---------------------------------------------------------------+
//! |               principal: Ed25519 key (32 bytes)               |
//! +---------------------------------------------------------------+
//! |                      signature (64 bytes)                     |
//! +---------------------------------------------------------------+
//! |        capability: a token's text (0 to 16,384 bytes)         |
//! +---------------------------------------------------------------+
//! ```
//!
//! The signature covers a label, the handshake hash up to this message, and the sender's X25519
//! key: the holder of that key acts for the principal in this handshake. It is invalid in any other
//! handshake and in the other direction.

use crate::AssociationId;
use crate::noise::Noise;
use std::fmt;
use trust::{PublicKey, SecretKey, token};

/// Labels of the signatures in message 2 and in message 3.
const LABELS: [&[u8]; 2] = [b"tamandua association 1 answer\0", b"tamandua association 1 finish\0"];

/// Message that carries an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Message 2.
    Answer,
    /// Message 3.
    Finish,
}

/// Reason why an identity is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityError {
    /// The bytes are not an identity payload.
    NotOne,
    /// The principal's signature is invalid.
    NotSigned,
}

/// Identity that a peer has proved.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub principal: PublicKey,
    /// Capability in text form, not verified here; crate `trust` verifies it.
    pub token: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with a token of {} bytes", self.principal, self.token.len())
    }
}

/// Writes the identity payload; `noise` is the state before the message that carries it.
pub fn write(
    carrier: Carrier,
    noise: &Noise,
    local: &[u8; 32],
    key: &SecretKey,
    token: &str,
) -> Vec<u8> {
    let mut bytes = key.public().as_bytes().to_vec();
    bytes.extend_from_slice(&key.sign(&signed(carrier, &noise.hash(), local)));
    bytes.extend_from_slice(token.as_bytes());
    bytes
}

/// Reads and verifies an identity payload; `hash` is the handshake hash before the message that
/// carried it.
pub fn read(
    carrier: Carrier,
    hash: &[u8; 32],
    peer: &[u8; 32],
    bytes: &[u8],
) -> Result<Identity, IdentityError> {
    let (principal, rest) = bytes.split_first_chunk().ok_or(IdentityError::NotOne)?;
    let (signature, text) = rest.split_first_chunk().ok_or(IdentityError::NotOne)?;
    if text.len() > token::LENGTH_MAX {
        return Err(IdentityError::NotOne);
    }
    let principal = PublicKey::from_bytes(principal).map_err(|_| IdentityError::NotOne)?;
    let token = str::from_utf8(text).map_err(|_| IdentityError::NotOne)?.to_owned();
    if !principal.has_signed(&signed(carrier, hash, peer), signature) {
        return Err(IdentityError::NotSigned);
    }
    Ok(Identity { principal, token })
}

/// Splits the sender's id from the rest of the payload.
pub fn split_id(bytes: &[u8]) -> Result<(AssociationId, &[u8]), IdentityError> {
    let (id, rest) = bytes.split_first_chunk().ok_or(IdentityError::NotOne)?;
    let id = AssociationId::new(u32::from_be_bytes(*id)).ok_or(IdentityError::NotOne)?;
    Ok((id, rest))
}

fn signed(carrier: Carrier, hash: &[u8; 32], key: &[u8; 32]) -> Vec<u8> {
    [LABELS[carrier as usize], hash, key].concat()
}
