//! Active packets: one datagram that names a module and carries what the module gets.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+-------------+-+-------------------------------+
//! |   1   |   7   |      0      |E|               0               |  E: payload is encrypted
//! +-------+-------+-------------+-+-------------------------------+
//! |       the receiver's association id, 0: from anyone           |
//! +---------------------------------------------------------------+
//! |                           counter,                            |
//! |                       0 when from anyone                      |
//! +---------------------------------------------------------------+
//! |                                                               |
//! /        the module: SHA-256 of its bytes (32 bytes)            /
//! |                                                               |
//! +---------------------------------------------------------------+
//! /                           payload                             /
//! +---------------------------------------------------------------+
//! |                                                               |
//! /        tag (16 bytes), not when from anyone                   /
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! AES-256-GCM with the counter as its nonce. The tag is over everything before it, encrypted
//! or not. A key is for [`EPOCH_PACKETS`] counters; the keys of the epoch before and of those to
//! come are there as well, so that what the network reorders is opened.

use crate::secret::{AeadKey, Chain, TAG_LENGTH};
use crate::window::{Stale, Window};
use crate::wire::{self, AssociationId, HEADER_LENGTH, WireError};

/// Bytes before the payload.
pub const PAYLOAD_AT: usize = DIGEST_AT + DIGEST_LENGTH;
/// Bytes that an active packet has beside its payload.
pub const OVERHEAD: usize = PAYLOAD_AT + TAG_LENGTH;
/// Most bytes of a payload: a UDP datagram over IPv4 has 65,507.
pub const PAYLOAD_LENGTH_MAX: usize = 65_507 - OVERHEAD;

const COUNTER_AT: usize = HEADER_LENGTH;
const DIGEST_AT: usize = COUNTER_AT + 8;
const DIGEST_LENGTH: usize = 32;
/// The payload is encrypted, otherwise it is only authenticated.
const ENCRYPTED: u8 = 1;
/// It answers another packet, and is not run.
const ANSWER: u8 = 2;

/// Packets that one key is for. AES-GCM takes 2^32 and more of them; what is recorded today
/// cannot be read with the keys of the epoch after the next.
pub const EPOCH_PACKETS: u64 = 1 << 20;
/// Most packets of one direction of an association: some 90 minutes at 50 million a second,
/// longer than it lives. What keeps a counter from ever coming back to 0.
pub const COUNTER_MAX: u64 = 1 << 38;

/// What is done to a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Everybody can read it, nobody can change it.
    Authenticated,
    /// Only the receiver can read it.
    Encrypted,
}

/// What becomes of a packet at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its module runs on it.
    Call,
    /// It is what became of a call, for whoever sent that. No module runs on it, so that two
    /// nodes cannot answer each other for ever.
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

/// Why an active packet is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is none.
    #[error("this is no active packet: {0}")]
    Malformed(#[from] WireError),
    /// It is for another association.
    #[error("the packet is for the association {0}, which this is not")]
    Other(AssociationId),
    /// Its counter.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// Its epoch's key is gone, or too far ahead.
    #[error("there is no key for the counter {0}: the association has to be made anew")]
    NoKey(u64),
    /// Its tag.
    #[error("the packet was not sealed with this association's key, or was changed since")]
    Forged,
}

/// The packet cannot be sealed: the association has been used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// [`COUNTER_MAX`] packets were sealed.
    #[error("the association has sealed {COUNTER_MAX} packets; make a new one")]
    UsedUp,
    /// The datagram has no room for what every active packet has.
    #[error("the datagram has {0} bytes; an active packet has {OVERHEAD} beside its payload")]
    NoRoom(usize),
}

/// A packet that was let in.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened<'d> {
    /// The module that it names.
    pub digest: &'d [u8; DIGEST_LENGTH],
    /// What it carries.
    pub payload: &'d mut [u8],
    /// Its place in what the other side has sent.
    pub counter: u64,
    /// How it was protected.
    pub protection: Protection,
    /// What becomes of it.
    pub role: Role,
}

/// A packet that nobody vouches for. Only a module that is marked `anyone` may get it.
#[derive(Debug, PartialEq, Eq)]
pub struct FromAnyone<'d> {
    /// The module that it names.
    pub digest: &'d [u8; DIGEST_LENGTH],
    /// What it carries.
    pub payload: &'d mut [u8],
    /// What becomes of it.
    pub role: Role,
}

impl<'d> FromAnyone<'d> {
    /// Reads it.
    ///
    /// # Errors
    /// When it is something else, a packet of an association too.
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

    /// Writes it: the payload follows at [`PAYLOAD_AT`], and nothing after that.
    #[must_use]
    pub fn head(role: Role, digest: &[u8; DIGEST_LENGTH]) -> [u8; PAYLOAD_AT] {
        head(role.flag(), None, 0, digest)
    }
}

/// Opens what the other side of one association has sealed, each packet once. It allocates
/// nothing, takes no lock and reads no clock.
pub struct Opener {
    id: AssociationId,
    window: Window,
    /// The keys of this epoch and of the one before, by the lowest bit of their number.
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

    /// The number that packets have to bear.
    #[must_use]
    pub const fn id(&self) -> AssociationId {
        self.id
    }

    /// Opens a packet in place.
    ///
    /// # Errors
    /// When it is not to be let in; its payload is then worthless.
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

    /// Verifies the tag with the key of the counter's epoch, decrypts, and goes on to that epoch
    /// if it is a later one: only ever because of a packet whose tag is right.
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
            self.go_to(epoch, key);
            return Ok(());
        }
        let key = match &self.keys[(epoch % 2) as usize] {
            Some(key) if self.epoch - epoch < 2 => key,
            _ => return Err(Refused::NoKey(counter)),
        };
        verify(key, counter, protection, datagram)
    }

    fn go_to(&mut self, epoch: u64, key: AeadKey) {
        if epoch - self.epoch > 1 {
            self.keys[((epoch - 1) % 2) as usize] = self.chain.key(epoch - 1);
        }
        self.keys[(epoch % 2) as usize] = Some(key);
        self.chain.spend(epoch);
        self.epoch = epoch;
    }
}

/// Seals what goes to the other side of one association. No counter is used twice, for it lives
/// here only.
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

    /// Packets that were sealed.
    #[must_use]
    pub const fn sealed(&self) -> u64 {
        self.next
    }

    /// Makes a datagram, whose payload is in its place, an active packet: it has
    /// [`PAYLOAD_AT`] bytes before the payload and 16 after it, which this writes.
    ///
    /// # Errors
    /// When the datagram is too short, or the association used up.
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
        self.turn(counter);
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

    /// Takes the next epoch's key when its first packet comes.
    fn turn(&mut self, counter: u64) {
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

/// How much of a packet without its tag is not encrypted.
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

/// What is before the payload of a datagram that has at least so many bytes, and the rest.
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
