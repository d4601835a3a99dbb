//! SHA-256 digest, which names a module or any other blob.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Smallest number of hexadecimal digits that is accepted as a reference: 32 bits.
pub const PREFIX_LENGTH_MIN: usize = 8;

/// SHA-256 digest (FIPS 180-4), shown as `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// Parse error of a digest. The fault of its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no digest; write 'sha256:' and 64 lower-case hexadecimal digits")]
pub struct DigestError {
    text: String,
}

/// Prefix of a digest (OCI image spec, "Registered algorithms").
pub(crate) const ALGORITHM: &str = "sha256:";
/// Length of the short form, in hexadecimal digits: enough to distinguish the modules of one store
/// by eye.
const SHORT_LENGTH: usize = 12;

impl Digest {
    /// Hashes bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Makes a digest from its 32 bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the 64 hexadecimal digits, which are a blob's file name.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Returns the first hexadecimal digits, for tables.
    #[must_use]
    pub fn short(&self) -> String {
        let mut hex = self.hex();
        hex.truncate(SHORT_LENGTH);
        hex
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let wrong =
            || DigestError { text: text.chars().take(80).flat_map(char::escape_debug).collect() };
        let digits = text.strip_prefix(ALGORITHM).ok_or_else(wrong)?;
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| wrong())?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;
    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digest of "abc", an example of FIPS 180-4.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_reads_back_as_it_is_shown() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(Digest::of(b"abc")));
        assert_eq!(Digest::of(b"abc").short(), "ba7816bf8f01");
    }

    #[test]
    fn only_one_spelling_is_accepted() {
        for bad in ["", "sha256:", &ABC[7..], &ABC[..70], &ABC.to_uppercase(), "md5:00"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
        let upper = format!("sha256:{}", ABC[7..].to_uppercase());
        assert!(upper.parse::<Digest>().is_err());
    }
}
