//! Format of the ledger: frames of one fixed size, each linked to the one before by its hash.
//!
//! A segment file is a sequence of such frames, without anything in between. Numbers are
//! little-endian, times are Unix seconds, names are padded with zeros, reserved bytes are zero.
//!
//! ```text
//!       0      4      6      8              16                              360           392
//!       +------+------+------+--------------+-------------------------------+-------------+
//! all   | tag  | ver. | 0    | number       | content, by tag               | chain       |
//!       +------+------+------+--------------+-------------------------------+-------------+
//!
//! "TAMS", begins a segment              "TAMH", ends a batch
//!  16  index of the segment        8     16  time                       8
//!  24  time                        8     24  by the clock               8
//!  32  id of the ledger           16     32  usage frames in the batch  8
//!  48  the node's public key      32     40  the node's signature      64
//!  80  chain before it            32    104  0                        256
//! 112  0                         248
//!
//! "TAMU", usage; these 344 bytes are the principal's, and are copied into receipts verbatim
//!  16  own number, from 0          8    144  meter                     16
//!  24  since (the meter's last)    8    160  flags: 1, the last one     4
//!  32  time                        8    164  0                          4
//!  40  by the clock                8    168  used: 10 amounts          80
//!  48  the principal's key        32    248  the meter's reading       80
//!  80  session                    32    328  own chain before it       32
//! 112  service, or 0              32
//! ```
//!
//! `chain` is SHA-256 over the chain before and the frame up to that field. `own chain` is SHA-256
//! over the principal's 344 bytes, which contain the one before. A principal's records are
//! therefore a chain of their own, which reveals nothing about others, not even their number.
//!
//! Fixed fields rather than a serializer's: a bill can be verified from this description alone,
//! each value has one encoding, and a frame's offset follows from its number.

use crate::amounts::{Amounts, FIELDS};
use sha2::{Digest as _, Sha256};
use std::fmt;
use trust::{PublicKey, UnixTime};
use units::{NAME_LENGTH_MAX, Name};

/// Length of a frame in bytes. Less than a disk sector (512), so that every sector contains part of
/// a frame's hash: a sector of zeros was never written.
pub const FRAME_LENGTH: usize = 392;
/// Length of the principal's part of a usage frame, in bytes.
pub const USAGE_LENGTH: usize = 344;
/// Format version. Incremented when a field changes its meaning.
pub const VERSION: u16 = 1;

const HEADER_LENGTH: usize = 16;
const HASHED_LENGTH: usize = HEADER_LENGTH + USAGE_LENGTH;
const _: () = assert!(FRAME_LENGTH == HASHED_LENGTH + 32 && FRAME_LENGTH < 512);
const _: () =
    assert!(USAGE_LENGTH == 4 * 8 + 32 + 2 * NAME_LENGTH_MAX + 16 + 8 + 2 * 8 * FIELDS + 32);

const CHAIN_DOMAIN: &[u8] = b"tamandua ledger chain 1\n";
const OWN_DOMAIN: &[u8] = b"tamandua ledger own 1\n";
const HEAD_DOMAIN: &[u8] = b"tamandua ledger head 1\n";
const FLAG_LAST: u32 = 1;

/// SHA-256 digest.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

random_id!(
    /// Id of a ledger: 16 random bytes, which distinguish a node's second ledger from its first.
    LedgerId
);
random_id!(
    /// Id of one run of one counter from zero: 16 bytes, unique to that run.
    MeterId
);

/// Principal and session that pay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Public key of the principal.
    pub principal: PublicKey,
    /// Session of the principal.
    pub session: Name,
}

/// Usage that a meter has counted since its last record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Number among the principal's records, from 0.
    pub own_number: u64,
    /// Time of the meter's last record, by the ledger's time; equal to `time` in its first.
    pub since: UnixTime,
    /// Time of the reading, never before that of the record in front.
    pub time: UnixTime,
    /// Time by the node's clock, which may have been set back.
    pub clock: UnixTime,
    /// Account that pays.
    pub account: Account,
    /// Service that was metered; `None` if the usage belongs to no single service.
    pub service: Option<Name>,
    /// Meter that was read.
    pub meter: MeterId,
    /// True if the meter has ended.
    pub is_last: bool,
    /// Billed amounts.
    pub used: Amounts,
    /// Absolute reading of the meter.
    pub reading: Amounts,
    /// Hash of the principal's chain before this record.
    pub previous: Digest,
}

/// First frame of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) index: u64,
    pub(crate) time: UnixTime,
    pub(crate) ledger: LedgerId,
    pub(crate) node: PublicKey,
    pub(crate) chain: Digest,
}

impl Segment {
    /// Returns true if `bytes` encode this frame, after the chain that it names.
    pub(crate) fn matches(&self, bytes: &[u8; FRAME_LENGTH]) -> bool {
        chain_hash(self.chain, bytes) == stated_chain(bytes)
    }
}

/// Last frame of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) time: UnixTime,
    pub(crate) clock: UnixTime,
    pub(crate) batch: u64,
    pub(crate) signature: [u8; 64],
}

/// Decoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Segment(Segment),
    Usage(Box<Usage>),
    Head(Head),
}

/// Error of decoding a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The tag is unknown.
    #[error("the frame's tag is unknown")]
    Tag,
    /// The frame has a later format version.
    #[error(
        "the frame has the format version {0}, and this program supports {VERSION}: use a newer one"
    )]
    Version(u16),
    /// A reserved field is not zero.
    #[error("a reserved field is not zero")]
    Reserved,
    /// The key of a principal or node is invalid.
    #[error("the frame's public key is invalid")]
    Key,
    /// The name of a session or service is invalid.
    #[error("a name in the frame is invalid")]
    Name,
}

impl Usage {
    /// Returns the principal's part of the frame.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; USAGE_LENGTH] {
        let mut bytes = Writer::<USAGE_LENGTH>::new();
        bytes.u64(self.own_number).u64(self.since.0).u64(self.time.0).u64(self.clock.0);
        bytes.put(self.account.principal.as_bytes());
        bytes.name(Some(&self.account.session)).name(self.service.as_ref());
        bytes.put(&self.meter.0);
        bytes.put(&(if self.is_last { FLAG_LAST } else { 0 }).to_le_bytes()).put(&[0; 4]);
        self.used.as_array().iter().chain(self.reading.as_array()).for_each(|amount| {
            bytes.u64(*amount);
        });
        bytes.put(&self.previous.0);
        bytes.done()
    }

    /// Decodes the principal's part of a frame.
    ///
    /// # Errors
    /// The bytes are not a valid record.
    pub fn from_bytes(bytes: &[u8; USAGE_LENGTH]) -> Result<Self, FormError> {
        let mut reader = Reader(bytes);
        let [own_number, since, time, clock] = [(); 4].map(|()| reader.u64());
        let principal = reader.key()?;
        let session = reader.name()?.ok_or(FormError::Name)?;
        let service = reader.name()?;
        let meter = MeterId(reader.take());
        let (flags, reserved) = (u32::from_le_bytes(reader.take()), reader.take::<4>());
        if flags & !FLAG_LAST != 0 || reserved != [0; 4] {
            return Err(FormError::Reserved);
        }
        let [used, reading] = [(); 2].map(|()| Amounts::new([(); FIELDS].map(|()| reader.u64())));
        Ok(Self {
            own_number,
            since: UnixTime(since),
            time: UnixTime(time),
            clock: UnixTime(clock),
            account: Account { principal, session },
            service,
            meter,
            is_last: flags == FLAG_LAST,
            used,
            reading,
            previous: Digest(reader.take()),
        })
    }

    /// Returns the hash of the principal's chain after this record.
    #[must_use]
    pub fn own_hash(&self) -> Digest {
        own_hash(&self.to_bytes())
    }
}

pub(crate) fn own_hash(bytes: &[u8; USAGE_LENGTH]) -> Digest {
    Digest(Sha256::new().chain_update(OWN_DOMAIN).chain_update(bytes).finalize().into())
}

impl Frame {
    /// Returns the encoded frame, and the hash of the chain after it.
    pub(crate) fn to_bytes(&self, number: u64, before: Digest) -> ([u8; FRAME_LENGTH], Digest) {
        let mut bytes = Writer::<FRAME_LENGTH>::new();
        let tag = match self {
            Self::Segment(_) => b"TAMS",
            Self::Usage(_) => b"TAMU",
            Self::Head(_) => b"TAMH",
        };
        bytes.put(tag).put(&VERSION.to_le_bytes()).put(&[0; 2]).u64(number);
        match self {
            Self::Segment(segment) => {
                bytes.u64(segment.index).u64(segment.time.0).put(&segment.ledger.0);
                bytes.put(segment.node.as_bytes()).put(&segment.chain.0);
            }
            Self::Usage(usage) => drop(bytes.put(&usage.to_bytes())),
            Self::Head(head) => {
                bytes.u64(head.time.0).u64(head.clock.0).u64(head.batch).put(&head.signature);
            }
        }
        let mut frame = bytes.done();
        let chain = chain_hash(before, &frame);
        frame[HASHED_LENGTH..].copy_from_slice(&chain.0);
        (frame, chain)
    }

    /// Decodes a frame; returns its number and content. The chain's hash is verified elsewhere.
    pub(crate) fn from_bytes(bytes: &[u8; FRAME_LENGTH]) -> Result<(u64, Self), FormError> {
        let mut reader = Reader(bytes);
        let tag: [u8; 4] = reader.take();
        let version = u16::from_le_bytes(reader.take());
        let reserved: [u8; 2] = reader.take();
        let number = reader.u64();
        if !matches!(&tag, b"TAMS" | b"TAMU" | b"TAMH") {
            return Err(FormError::Tag);
        }
        if version != VERSION {
            return Err(FormError::Version(version));
        }
        if reserved != [0; 2] {
            return Err(FormError::Reserved);
        }
        let frame = match &tag {
            b"TAMS" => Self::Segment(Segment {
                index: reader.u64(),
                time: UnixTime(reader.u64()),
                ledger: LedgerId(reader.take()),
                node: reader.key()?,
                chain: Digest(reader.take()),
            }),
            b"TAMU" => Self::Usage(Box::new(Usage::from_bytes(&reader.take())?)),
            _ => Self::Head(Head {
                time: UnixTime(reader.u64()),
                clock: UnixTime(reader.u64()),
                batch: reader.u64(),
                signature: reader.take(),
            }),
        };
        let rest = reader.0.len() - size_of::<Digest>();
        if reader.0[..rest].iter().any(|byte| *byte != 0) {
            return Err(FormError::Reserved);
        }
        Ok((number, frame))
    }
}

/// Decodes the number of a frame, and its record if it is a usage frame. Verifies nothing.
///
/// # Errors
/// The bytes are not a valid frame.
pub fn usage_in(bytes: &[u8; FRAME_LENGTH]) -> Result<(u64, Option<Usage>), FormError> {
    let (number, frame) = Frame::from_bytes(bytes)?;
    let usage = match frame {
        Frame::Usage(usage) => Some(*usage),
        Frame::Segment(_) | Frame::Head(_) => None,
    };
    Ok((number, usage))
}

/// Returns the hash of the chain after a frame.
pub(crate) fn chain_hash(before: Digest, frame: &[u8; FRAME_LENGTH]) -> Digest {
    let hash = Sha256::new().chain_update(CHAIN_DOMAIN).chain_update(before.0);
    Digest(hash.chain_update(&frame[..HASHED_LENGTH]).finalize().into())
}

/// Returns the hash of the chain as the frame states it.
pub(crate) fn stated_chain(frame: &[u8; FRAME_LENGTH]) -> Digest {
    let mut stated = Digest::default();
    stated.0.copy_from_slice(&frame[HASHED_LENGTH..]);
    stated
}

/// Returns the bytes that the node signs at the end of a batch.
pub(crate) fn head_statement(
    ledger: LedgerId,
    number: u64,
    head: &Head,
    before: Digest,
) -> Vec<u8> {
    let numbers = [number, head.time.0, head.clock.0, head.batch].map(u64::to_le_bytes);
    [HEAD_DOMAIN, &ledger.0, numbers.as_flattened(), &before.0].concat()
}

/// Writer into a zeroed array, from its beginning.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_le_bytes())
    }

    fn name(&mut self, name: Option<&Name>) -> &mut Self {
        let text = name.map_or("", Name::as_str).as_bytes();
        self.put(text);
        self.at += NAME_LENGTH_MAX - text.len();
        self
    }

    const fn done(self) -> [u8; N] {
        self.bytes
    }
}

/// Reader of consecutive fields of a frame; the frame is long enough for all of them.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the fields fit their frame");
        self.0 = rest;
        *field
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn key(&mut self) -> Result<PublicKey, FormError> {
        PublicKey::from_bytes(&self.take()).map_err(|_| FormError::Key)
    }

    fn name(&mut self) -> Result<Option<Name>, FormError> {
        let field: [u8; NAME_LENGTH_MAX] = self.take();
        let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        let (text, padding) = field.split_at(length);
        if padding.iter().any(|byte| *byte != 0) {
            return Err(FormError::Name);
        }
        if text.is_empty() {
            return Ok(None);
        }
        let text = str::from_utf8(text).map_err(|_| FormError::Name)?;
        Name::new(text).map(Some).map_err(|_| FormError::Name)
    }
}
