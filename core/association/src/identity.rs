//! Who somebody is: what messages 2 and 3 carry, encrypted.
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
//! The signature is over a label, the hash of the handshake up to this message, and the
//! sender's X25519 key: whoever holds that key in this handshake acts for the principal. It
//! is worth nothing in another handshake, nor in the other direction.

use crate::AssociationId;
use crate::noise::Noise;
use std::fmt;
use trust::{PublicKey, SecretKey, token};

/// What a signature of message 2, and of message 3, begins with.
const LABELS: [&[u8]; 2] = [b"tamandua association 1 answer\0", b"tamandua association 1 finish\0"];

/// Which message an identity is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Message 2.
    Answer,
    /// Message 3.
    Finish,
}

/// Why nobody is believed to be who he says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityError {
    /// The bytes are no identity.
    NotOne,
    /// The principal has not signed this.
    NotSigned,
}

/// Who somebody is, as shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub principal: PublicKey,
    /// A token's text; what it is worth, its reader asks `trust`.
    pub token: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with a token of {} bytes", self.principal, self.token.len())
    }
}

/// What somebody says of himself; `noise` is before the message that says it.
pub fn write(place: Place, noise: &Noise, me: &[u8; 32], key: &SecretKey, token: &str) -> Vec<u8> {
    let mut bytes = key.public().as_bytes().to_vec();
    bytes.extend_from_slice(&key.sign(&signed(place, &noise.hash(), me)));
    bytes.extend_from_slice(token.as_bytes());
    bytes
}

/// What somebody has shown; `hash` is the handshake's before the message that shows it.
pub fn read(
    place: Place,
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
    if !principal.has_signed(&signed(place, hash, peer), signature) {
        return Err(IdentityError::NotSigned);
    }
    Ok(Identity { principal, token })
}

/// The sender's id, and the rest.
pub fn split_id(bytes: &[u8]) -> Result<(AssociationId, &[u8]), IdentityError> {
    let (id, rest) = bytes.split_first_chunk().ok_or(IdentityError::NotOne)?;
    let id = AssociationId::new(u32::from_be_bytes(*id)).ok_or(IdentityError::NotOne)?;
    Ok((id, rest))
}

fn signed(place: Place, hash: &[u8; 32], key: &[u8; 32]) -> Vec<u8> {
    [LABELS[place as usize], hash, key].concat()
}
