//! Receipts: a principal's own records with the node's signature.
//!
//! The node signs the state of the principal's chain after the receipt's last record; from there
//! each record authenticates the one before it. Nothing about other principals is revealed: own
//! numbers count only the principal's records.
//!
//! ```text
//!  -----BEGIN TAMANDUA LEDGER RECEIPT-----      RFC 7468: base64 of
//!    0  "TAMR"  4   version 2   0  2            numbers are little-endian
//!    8  id of the ledger             16
//!   24  the node's public key        32
//!   56  the principal's public key   32
//!   88  time of its creation          8
//!   96  own number after the last     8   ┐
//!  104  own chain after the last     32   ┘ signed, with everything before
//!  136  records                       8
//!  144  each of them, as in the ledger: 344 bytes (`record`)
//!   …   the node's signature         64
//!  -----END TAMANDUA LEDGER RECEIPT-----
//! ```

use crate::record::{self, Digest, FormError, LedgerId, USAGE_LENGTH, Usage};
use pem_rfc7468::LineEnding;
use trust::{PublicKey, SecretKey, UnixTime};

/// Largest number of records of one receipt: more than a day of one service, and 4 MB of text.
/// Further records are in the next receipt.
pub const RECORDS_MAX: usize = 8192;
/// Label in the first and the last line of the text.
pub const LABEL: &str = "TAMANDUA LEDGER RECEIPT";
/// Longest text of a receipt, in characters.
pub const TEXT_LENGTH_MAX: usize = (FIXED_LENGTH + RECORDS_MAX * USAGE_LENGTH) / 48 * 65 + 256;

const MAGIC: &[u8; 4] = b"TAMR";
const VERSION: u16 = 1;
const SIGNED_LENGTH: usize = 136;
const SIGNATURE_LENGTH: usize = 64;
const FIXED_LENGTH: usize = SIGNED_LENGTH + 8 + SIGNATURE_LENGTH;
const DOMAIN: &[u8] = b"tamandua ledger receipt 1\n";

/// Error of making, parsing or verifying a receipt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// The text is not a receipt.
    #[error("this is no receipt: {0}")]
    NotAReceipt(&'static str),
    /// The text has more than [`TEXT_LENGTH_MAX`] characters.
    #[error("the receipt has {0} characters; one has at most {TEXT_LENGTH_MAX}")]
    TooLong(usize),
    /// The receipt has a later format version.
    #[error("the receipt has version {0}, and this program knows {VERSION}: use a newer one")]
    Version(u16),
    /// A record is malformed.
    #[error("record {own_number} of the receipt is malformed: {form}")]
    Record {
        /// Own number that the record should have.
        own_number: u64,
        /// Error of decoding it.
        form: FormError,
    },
    /// The records are not consecutive in this principal's chain.
    #[error("record {own_number} of the receipt does not follow the one before it")]
    Chain {
        /// Own number that the record should have.
        own_number: u64,
    },
    /// The signed state of the chain does not match the last record.
    #[error("the receipt's last record does not match the state that the node has signed")]
    End,
    /// The receipt is another node's.
    #[error("the receipt is of the node {found}, not of {expected}")]
    OtherNode {
        /// Node that the receipt names.
        found: Box<PublicKey>,
        /// Node whose key was given.
        expected: Box<PublicKey>,
    },
    /// The signature is invalid.
    #[error("the receipt's signature is not the node's")]
    NotSigned,
    /// The number of records exceeds [`RECORDS_MAX`].
    #[error("a receipt has at most {RECORDS_MAX} records, not {0}")]
    TooMany(u64),
    /// The list of records is empty.
    #[error("there are no such records to make a receipt of")]
    Empty,
}

/// Consecutive records of a principal, with the node's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    ledger: LedgerId,
    node: PublicKey,
    principal: PublicKey,
    made: UnixTime,
    records: Vec<Usage>,
    signature: [u8; SIGNATURE_LENGTH],
}

impl Receipt {
    /// Makes a receipt for consecutive records of one principal in this ledger.
    ///
    /// # Errors
    /// The records are none or too many, or not consecutive.
    pub fn make(
        key: &SecretKey,
        ledger: LedgerId,
        made: UnixTime,
        records: Vec<Usage>,
    ) -> Result<Self, ReceiptError> {
        let first = records.first().ok_or(ReceiptError::Empty)?;
        let principal = first.account.principal;
        let (node, signature) = (key.public(), [0; SIGNATURE_LENGTH]);
        let mut receipt = Self { ledger, node, principal, made, records, signature };
        receipt.check_length()?;
        let end = receipt.check_chain()?;
        receipt.signature = key.sign(&receipt.statement(end));
        Ok(receipt)
    }

    /// Parses a receipt without verifying it; see [`Self::verify`].
    ///
    /// # Errors
    /// The text is not a receipt.
    pub fn parse(text: &str) -> Result<Self, ReceiptError> {
        if text.len() > TEXT_LENGTH_MAX {
            return Err(ReceiptError::TooLong(text.len()));
        }
        let decoded = pem_rfc7468::decode_vec(text.as_bytes());
        let (label, bytes) = decoded.map_err(|_| ReceiptError::NotAReceipt("it is no PEM file"))?;
        if label != LABEL {
            return Err(ReceiptError::NotAReceipt("it is a PEM file of something else"));
        }
        Self::from_bytes(&bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, ReceiptError> {
        let cut = ReceiptError::NotAReceipt("its length is wrong");
        let records = bytes.len().checked_sub(FIXED_LENGTH).ok_or(cut.clone())?;
        let (signed, rest) = bytes.split_at(SIGNED_LENGTH);
        let (count, rest) = rest.split_at(8);
        if signed[..4] != *MAGIC {
            return Err(ReceiptError::NotAReceipt("it begins otherwise"));
        }
        let version = u16::from_le_bytes([signed[4], signed[5]]);
        if version != VERSION {
            return Err(ReceiptError::Version(version));
        }
        if signed[6..8] != [0; 2] {
            return Err(ReceiptError::NotAReceipt("a reserved field is not zero"));
        }
        let count = u64::from_le_bytes(field(count));
        if records % USAGE_LENGTH != 0 || count != (records / USAGE_LENGTH) as u64 {
            return Err(cut);
        }
        let key = |at: usize| {
            let key = PublicKey::from_bytes(&field(&signed[at..]));
            key.map_err(|_| ReceiptError::NotAReceipt("its public key is invalid"))
        };
        let own_end = u64::from_le_bytes(field(&signed[96..]));
        let own_first = own_end.checked_sub(count).ok_or(cut)?;
        let (records, signature) = rest.split_at(records);
        let records =
            records.chunks_exact(USAGE_LENGTH).zip(own_first..).map(|(bytes, own_number)| {
                let usage = Usage::from_bytes(&field(bytes));
                usage.map_err(|form| ReceiptError::Record { own_number, form })
            });
        let receipt = Self {
            ledger: LedgerId(field(&signed[8..])),
            node: key(24)?,
            principal: key(56)?,
            made: UnixTime(u64::from_le_bytes(field(&signed[88..]))),
            records: records.collect::<Result<_, _>>()?,
            signature: field(signature),
        };
        receipt.check_length()?;
        // The signed statement repeats fields of the records: both have to agree.
        if receipt.check_chain()? != (own_end, Digest(field(&signed[104..]))) {
            return Err(ReceiptError::End);
        }
        Ok(receipt)
    }

    /// Returns the receipt in text form.
    ///
    /// # Panics
    /// Never: its length is bounded.
    #[must_use]
    pub fn to_text(&self) -> String {
        let end = self.records.last().map_or((0, Digest::default()), end_of);
        let mut bytes = self.head(end);
        bytes.extend((self.records.len() as u64).to_le_bytes());
        self.records.iter().for_each(|usage| bytes.extend(usage.to_bytes()));
        bytes.extend(self.signature);
        pem_rfc7468::encode_string(LABEL, LineEnding::LF, &bytes).expect("its length is bounded")
    }

    /// Verifies the receipt with the node's key and returns its records.
    ///
    /// # Errors
    /// The receipt is another node's, or was changed.
    pub fn verify(&self, node: &PublicKey) -> Result<&[Usage], ReceiptError> {
        if self.node != *node {
            let (found, expected) = (Box::new(self.node), Box::new(*node));
            return Err(ReceiptError::OtherNode { found, expected });
        }
        let end = self.check_chain()?;
        match node.has_signed(&self.statement(end), &self.signature) {
            true => Ok(&self.records),
            false => Err(ReceiptError::NotSigned),
        }
    }

    /// Returns the ledger that the receipt names, unverified.
    #[must_use]
    pub const fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// Returns the principal that the receipt names, unverified.
    #[must_use]
    pub const fn principal(&self) -> PublicKey {
        self.principal
    }

    /// Returns the time of creation that the receipt names, unverified.
    #[must_use]
    pub const fn made(&self) -> UnixTime {
        self.made
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.records.len()
    }

    /// Returns the own number after the last record, at which the next receipt begins.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.records.last().map_or(0, |usage| usage.own_number + 1)
    }

    fn check_length(&self) -> Result<(), ReceiptError> {
        match self.records.len() {
            0 => Err(ReceiptError::Empty),
            count if count > RECORDS_MAX => Err(ReceiptError::TooMany(count as u64)),
            _ => Ok(()),
        }
    }

    /// Returns the state of the chain after the last record; checks that the records are
    /// consecutive.
    fn check_chain(&self) -> Result<(u64, Digest), ReceiptError> {
        let mut expected: Option<(u64, Digest)> = None;
        for usage in &self.records {
            let own_number = expected.map_or(usage.own_number, |(number, _)| number);
            let follows = expected.is_none_or(|end| end == (usage.own_number, usage.previous));
            let begins = usage.own_number != 0 || usage.previous == Digest::default();
            let is_own = usage.account.principal == self.principal;
            // Largest own number: the one after it has to fit, since it is signed.
            let has_next = usage.own_number < u64::MAX;
            if !(follows && begins && is_own && has_next) {
                return Err(ReceiptError::Chain { own_number });
            }
            expected = Some(end_of(usage));
        }
        expected.ok_or(ReceiptError::Empty)
    }

    /// Returns the signed bytes.
    fn statement(&self, end: (u64, Digest)) -> Vec<u8> {
        [DOMAIN, &self.head(end)].concat()
    }

    fn head(&self, (own_end, hash): (u64, Digest)) -> Vec<u8> {
        let mut head = Vec::with_capacity(FIXED_LENGTH + self.records.len() * USAGE_LENGTH);
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend([0; 2]);
        head.extend(self.ledger.0);
        head.extend(self.node.as_bytes());
        head.extend(self.principal.as_bytes());
        head.extend(self.made.0.to_le_bytes());
        head.extend(own_end.to_le_bytes());
        head.extend(hash.0);
        head
    }
}

/// Returns the state of the principal's chain after a record.
fn end_of(usage: &Usage) -> (u64, Digest) {
    (usage.own_number + 1, record::own_hash(&usage.to_bytes()))
}

/// Returns the first `N` bytes of a slice that is at least as long.
fn field<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("its length was looked at")
}
