//! Active packets: a datagram that names a module and carries the module's input.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+-------------+-+-------------------------------+
//! |   1   |   7   |      0      |E|               0               |  E: payload is encrypted
//! +-------+-------+-------------+-+-------------------------------+
//! |       receiver's association id, 0: unauthenticated           |
//! +---------------------------------------------------------------+
//! |                           counter,                            |
//! |                  0 when unauthenticated                       |
//! +---------------------------------------------------------------+
//! |                                                               |
//! /        the module: SHA-256 of its bytes (32 bytes)            /
//! |                                                               |
//! +---------------------------------------------------------------+
//! /                           payload                             /
//! +---------------------------------------------------------------+
//! |                                                               |
//! /        tag (16 bytes), unless unauthenticated                 /
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! AES-256-GCM with the counter as its nonce. The tag covers everything before it, encrypted or
//! not. A key is used for [`EPOCH_PACKETS`] counters. The keys of the previous epoch and of
//! following ones are available as well, so that reordered packets are opened.

use crate::secret::{AeadKey, Chain, TAG_LENGTH};
use crate::window::{Stale, Window};
use crate::wire::{self, AssociationId, HEADER_LENGTH, WireError};

/// Offset of the payload in bytes.
pub const PAYLOAD_AT: usize = DIGEST_AT + DIGEST_LENGTH;
/// Length of an active packet beside its payload, in bytes.
pub const OVERHEAD: usize = PAYLOAD_AT + TAG_LENGTH;
/// Longest payload in bytes: a UDP datagram over IPv4 has 65,507.
pub const PAYLOAD_LENGTH_MAX: usize = 65_507 - OVERHEAD;

const COUNTER_AT: usize = HEADER_LENGTH;
const DIGEST_AT: usize = COUNTER_AT + 8;
const DIGEST_LENGTH: usize = 32;
/// Flag: the payload is encrypted, not only authenticated.
const ENCRYPTED: u8 = 1;
/// Flag: the packet answers another one, and no module runs on it.
const ANSWER: u8 = 2;

/// Number of packets per key. AES-GCM allows 2^32 and more. Traffic recorded now cannot be
/// decrypted with the keys of the epoch after the next.
pub const EPOCH_PACKETS: u64 = 1 << 20;
/// Largest number of packets of one direction of an association: some 90 minutes at 50 million a
/// second, longer than its lifetime. Keeps counters from wrapping.
pub const COUNTER_MAX: u64 = 1 << 38;

/// Protection of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Authenticated in clear text.
    Authenticated,
    /// Encrypted and authenticated.
    Encrypted,
}

/// Treatment of a packet at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Call: the named module runs on it.
    Call,
    /// Answer to a call, for the caller. No module runs on it, so that two nodes cannot answer each
    /// other endlessly.
    Answer,
}

impl Role {
    const fn flag(self) -> u8 {
        match self {
            Self::Call => 0,
            Self::Answer => ANSWER,
        }
    }

    const fn of(flags: u8) -> Self {
        if flags & ANSWER == 0 { Self::Call } else { Self::Answer }
    }
}

/// Reason why an active packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The datagram is not an active packet.
    #[error("this is no active packet: {0}")]
    Malformed(#[from] WireError),
    /// The packet is for another association.
    #[error("the packet is for another association, {0}")]
    Other(AssociationId),
    /// The counter was accepted before, or is too old.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The key of the counter's epoch has been deleted, or is too far ahead.
    #[error("there is no key for the counter {0}; make a new association")]
    NoKey(u64),
    /// The tag is invalid.
    #[error("the packet was not sealed with this association's key, or was changed since")]
    Forged,
}

/// Reason why a packet cannot be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The association has sealed [`COUNTER_MAX`] packets.
    #[error("the association has sealed {COUNTER_MAX} packets; make a new one")]
    UsedUp,
    /// The datagram is shorter than the overhead of an active packet.
    #[error("the datagram has {0} bytes; an active packet has {OVERHEAD} beside its payload")]
    NoRoom(usize),
}

/// Active packet that was opened.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'d> {
    /// Digest of the module that it names.
    pub digest: &'d [u8; DIGEST_LENGTH],
    /// Input of the module.
    pub payload: &'d mut [u8],
    /// Sequence number among the packets that the other side has sealed.
    pub counter: u64,
    /// Protection of the payload.
    pub protection: Protection,
    /// Role of the packet.
    pub role: Role,
}

/// Unauthenticated active packet. Only a module marked `anyone` may get it.
#[derive(Debug, PartialEq, Eq)]
pub struct FromAnyone<'d> {
    /// Digest of the module that it names.
    pub digest: &'d [u8; DIGEST_LENGTH],
    /// Input of the module.
    pub payload: &'d mut [u8],
    /// Role of the packet.
    pub role: Role,
}

impl<'d> FromAnyone<'d> {
    /// Parses an unauthenticated active packet.
    ///
    /// # Errors
    /// The datagram is something else, or belongs to an association.
    #[inline]
    pub fn read(datagram: &'d mut [u8]) -> Result<Self, WireError> {
        let (flags, to) = wire::active_header(datagram)?;
        let (head, payload) = head_of(datagram, PAYLOAD_AT)?;
        if to.is_some() {
            return Err(WireError::Association);
        }
        if flags & !ANSWER != 0 {
            return Err(WireError::Flags(flags));
        }
        if counter_of(head) != 0 {
            return Err(WireError::NotZero);
        }
        Ok(Self { digest: digest_of(head), payload, role: Role::of(flags) })
    }

    /// Returns the header of an unauthenticated packet: the payload follows at [`PAYLOAD_AT`],
    /// without a tag.
    #[must_use]
    pub fn head(role: Role, digest: &[u8; DIGEST_LENGTH]) -> [u8; PAYLOAD_AT] {
        head(role.flag(), None, 0, digest)
    }
}

/// Opens the packets that the other side of one association has sealed, each once. Allocates
/// nothing, takes no lock and reads no clock.
pub struct Opener {
    id: AssociationId,
    window: Window,
    /// Keys of the current and the previous epoch, indexed by the lowest bit of their number.
    keys: Box<[Option<AeadKey>; 2]>,
    epoch: u64,
    chain: Chain,
}

impl Opener {
    pub(crate) fn new(id: AssociationId, mut chain: Chain) -> Self {
        let keys = Box::new([chain.key(0), None]);
        chain.spend(0);
        Self { id, window: Window::default(), keys, epoch: 0, chain }
    }

    /// Returns the association id that packets have to carry.
    #[must_use]
    pub const fn id(&self) -> AssociationId {
        self.id
    }

    /// Opens a packet in place.
    ///
    /// # Errors
    /// The packet is refused; the content of its payload is then undefined.
    pub fn open<'d>(&mut self, datagram: &'d mut [u8]) -> Result<Opened<'d>, Refused> {
        let (flags, to) = wire::active_header(datagram)?;
        let to = to.ok_or(WireError::Association)?;
        if to != self.id {
            return Err(Refused::Other(to));
        }
        let protection = match flags & !ANSWER {
            0 => Protection::Authenticated,
            ENCRYPTED => Protection::Encrypted,
            _ => return Err(WireError::Flags(flags).into()),
        };
        let counter = counter_of(head_of(datagram, OVERHEAD)?.0);
        if counter >= COUNTER_MAX {
            return Err(Refused::NoKey(counter));
        }
        self.window.check(counter)?;
        self.verify(counter, protection, datagram)?;
        self.window.accept(counter)?;
        let (head, rest) = head_of(datagram, OVERHEAD)?;
        let payload = rest.split_last_chunk_mut::<TAG_LENGTH>().map(|(payload, _)| payload);
        let payload = payload.unwrap_or_default();
        let role = Role::of(flags);
        Ok(Opened { digest: digest_of(head), payload, counter, protection, role })
    }

    /// Verifies the tag with the key of the counter's epoch and decrypts. Advances to a later epoch
    /// only for a packet with a valid tag.
    fn verify(
        &mut self,
        counter: u64,
        protection: Protection,
        datagram: &mut [u8],
    ) -> Result<(), Refused> {
        let epoch = counter / EPOCH_PACKETS;
        if epoch > self.epoch {
            let key = self.chain.key(epoch).ok_or(Refused::NoKey(counter))?;
            verify(&key, counter, protection, datagram)?;
            self.advance_to(epoch, key);
            return Ok(());
        }
        let key = match &self.keys[(epoch % 2) as usize] {
            Some(key) if self.epoch - epoch < 2 => key,
            _ => return Err(Refused::NoKey(counter)),
        };
        verify(key, counter, protection, datagram)
    }

    fn advance_to(&mut self, epoch: u64, key: AeadKey) {
        if epoch - self.epoch > 1 {
            self.keys[((epoch - 1) % 2) as usize] = self.chain.key(epoch - 1);
        }
        self.keys[(epoch % 2) as usize] = Some(key);
        self.chain.spend(epoch);
        self.epoch = epoch;
    }
}

/// Seals packets to the other side of one association. Owns the counter, so that none is used
/// twice.
pub struct Sealer {
    peer: AssociationId,
    next: u64,
    key: Option<AeadKey>,
    epoch: u64,
    chain: Chain,
}

impl Sealer {
    pub(crate) fn new(peer: AssociationId, mut chain: Chain) -> Self {
        let key = chain.key(0);
        chain.spend(0);
        Self { peer, next: 0, key, epoch: 0, chain }
    }

    /// Returns the number of packets sealed.
    #[must_use]
    pub const fn sealed(&self) -> u64 {
        self.next
    }

    /// Seals a datagram in place. It has [`PAYLOAD_AT`] bytes before the payload and 16 after it,
    /// which are written here.
    ///
    /// # Errors
    /// The datagram is shorter than the overhead, or the association has sealed [`COUNTER_MAX`]
    /// packets.
    pub fn seal(
        &mut self,
        protection: Protection,
        role: Role,
        digest: &[u8; DIGEST_LENGTH],
        datagram: &mut [u8],
    ) -> Result<u64, SealError> {
        let length = datagram.len();
        if length < OVERHEAD {
            return Err(SealError::NoRoom(length));
        }
        let counter = self.next;
        self.advance_epoch(counter);
        let key = match &self.key {
            Some(key) if counter < COUNTER_MAX => key,
            _ => return Err(SealError::UsedUp),
        };
        self.next += 1;
        let protected = if protection == Protection::Encrypted { ENCRYPTED } else { 0 };
        let flags = protected | role.flag();
        datagram[..PAYLOAD_AT].copy_from_slice(&head(flags, Some(self.peer), counter, digest));
        let (sealed, tag) = datagram.split_at_mut(length - TAG_LENGTH);
        let (clear, plain) = sealed.split_at_mut(clear_length(protection, sealed.len()));
        tag.copy_from_slice(&key.seal(counter, clear, plain));
        Ok(counter)
    }

    /// Switches to the next epoch's key at its first packet.
    fn advance_epoch(&mut self, counter: u64) {
        let epoch = counter / EPOCH_PACKETS;
        if epoch != self.epoch {
            self.key = self.chain.key(epoch);
            self.chain.spend(epoch);
            self.epoch = epoch;
        }
    }
}

fn verify(
    key: &AeadKey,
    counter: u64,
    protection: Protection,
    datagram: &mut [u8],
) -> Result<(), Refused> {
    let (sealed, tag) = datagram.split_last_chunk_mut::<TAG_LENGTH>().ok_or(Refused::Forged)?;
    let (clear, sealed) = sealed.split_at_mut(clear_length(protection, sealed.len()));
    key.open(counter, clear, sealed, *tag).map_err(|_| Refused::Forged)
}

/// Returns the length of the unencrypted part of a packet without its tag.
fn clear_length(protection: Protection, length: usize) -> usize {
    match protection {
        Protection::Authenticated => length,
        Protection::Encrypted => PAYLOAD_AT.min(length),
    }
}

type Head = [u8; PAYLOAD_AT];

fn head(flags: u8, to: Option<AssociationId>, counter: u64, digest: &[u8; DIGEST_LENGTH]) -> Head {
    let mut head = [0; PAYLOAD_AT];
    head[..COUNTER_AT].copy_from_slice(&wire::write_active_header(flags, to));
    head[COUNTER_AT..DIGEST_AT].copy_from_slice(&counter.to_be_bytes());
    head[DIGEST_AT..].copy_from_slice(digest);
    head
}

/// Splits a datagram of at least `at_least` bytes into the header and the rest.
#[inline]
fn head_of(datagram: &mut [u8], at_least: usize) -> Result<(&Head, &mut [u8]), WireError> {
    let length = datagram.len();
    if length > PAYLOAD_LENGTH_MAX + OVERHEAD {
        return Err(WireError::TooLong { length, at_most: PAYLOAD_LENGTH_MAX + OVERHEAD });
    }
    let parts = if length < at_least { None } else { datagram.split_first_chunk_mut() };
    let (head, rest) = parts.ok_or(WireError::TooShort { length, at_least })?;
    Ok((head, rest))
}

#[inline]
fn counter_of(head: &Head) -> u64 {
    let mut counter = [0; 8];
    counter.copy_from_slice(&head[COUNTER_AT..DIGEST_AT]);
    u64::from_be_bytes(counter)
}

#[inline]
fn digest_of(head: &Head) -> &[u8; DIGEST_LENGTH] {
    head.last_chunk().expect("the digest is the end of the head")
}

#[cfg(test)]
mod tests;
