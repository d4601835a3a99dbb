//! Signers of modules: Ed25519 keys as `tam key new` makes them, and ECDSA P-256 keys as cosign
//! makes them. The latter can only verify here.
//!
//! ```text
//! ed25519/5f1c…            64 hexadecimal digits (RFC 8032)
//! secp256r1/03a1…          66 of them: the compressed point (SEC 1, section 2.3.3)
//! ```
//!
//! Both text forms are those of Biscuit for such keys.

use crate::key::{FILE_LENGTH_MAX, KeyError, PREFIX, PublicKey, not_a_key};
use p256::ecdsa::signature::Verifier;
use p256::ecdsa::{DerSignature, VerifyingKey};
use p256::elliptic_curve::sec1::ToEncodedPoint;
use pkcs8::der::pem::PemLabel;
use pkcs8::{EncodePublicKey, LineEnding, SubjectPublicKeyInfoRef};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Prefix of a P-256 key in text form.
pub const P256_PREFIX: &str = "secp256r1/";
/// Length of a compressed point of P-256, in bytes.
const P256_LENGTH: usize = 33;
/// id-ecPublicKey (RFC 5480, section 2.1.1).
const EC: &str = "1.2.840.10045.2.1";

/// Public key whose signatures of modules count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// Ed25519 key, made by `tam key new`.
    Ed25519(PublicKey),
    /// ECDSA P-256 key, made by cosign.
    P256(P256Key),
}

/// Public key of ECDSA over P-256 with SHA-256 (FIPS 186-5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct P256Key(VerifyingKey);

impl P256Key {
    fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let key = VerifyingKey::from_sec1_bytes(bytes).map(Self);
        key.map_err(|_| KeyError::NotPublic(format!("{P256_PREFIX}{}", hex::encode(bytes))))
    }

    /// Returns the compressed point.
    fn bytes(&self) -> Vec<u8> {
        self.0.as_affine().to_encoded_point(true).as_bytes().to_vec()
    }
}

impl Signer {
    /// Reads a PEM file (SubjectPublicKeyInfo).
    ///
    /// # Errors
    /// The text contains no public key of either algorithm.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        if text.len() > FILE_LENGTH_MAX {
            return Err(KeyError::TooLong(text.len()));
        }
        let (label, document) = pkcs8::Document::from_pem(text).map_err(not_a_key)?;
        SubjectPublicKeyInfoRef::validate_pem_label(label).map_err(not_a_key)?;
        let info = SubjectPublicKeyInfoRef::try_from(document.as_bytes()).map_err(not_a_key)?;
        if info.algorithm.oid.to_string() != EC {
            return PublicKey::from_pem(text).map(Self::Ed25519);
        }
        let key = VerifyingKey::try_from(info);
        key.map(|key| Self::P256(P256Key(key)))
            .map_err(|_| KeyError::OtherKind("ECDSA, not P-256".into()))
    }

    /// Returns the key as a PEM file that cosign and OpenSSL read.
    ///
    /// # Panics
    /// Never: a public key always has one.
    #[must_use]
    pub fn to_pem(&self) -> String {
        match self {
            Self::Ed25519(key) => key.to_pem(),
            Self::P256(key) => {
                key.0.to_public_key_pem(LineEnding::LF).expect("91 bytes of DER are a PEM file")
            }
        }
    }

    /// Returns true if the signature of these bytes is valid: 64 bytes for Ed25519 (RFC 8032), or
    /// an ECDSA signature in DER (RFC 3279, section 2.2.3).
    #[must_use]
    pub fn has_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => {
                signature.try_into().is_ok_and(|signature| key.has_signed(bytes, signature))
            }
            Self::P256(key) => DerSignature::try_from(signature)
                .is_ok_and(|signature| key.0.verify(bytes, &signature).is_ok()),
        }
    }
}

impl From<PublicKey> for Signer {
    fn from(key: PublicKey) -> Self {
        Self::Ed25519(key)
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ed25519(key) => fmt::Display::fmt(key, f),
            Self::P256(key) => write!(f, "{P256_PREFIX}{}", hex::encode(key.bytes())),
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for P256Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Signer::P256(*self), f)
    }
}

impl PartialOrd for Signer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Signer {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Ed25519(one), Self::Ed25519(other)) => one.cmp(other),
            (Self::P256(one), Self::P256(other)) => one.bytes().cmp(&other.bytes()),
            (Self::Ed25519(_), Self::P256(_)) => Ordering::Less,
            (Self::P256(_), Self::Ed25519(_)) => Ordering::Greater,
        }
    }
}

impl FromStr for Signer {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let wrong = || KeyError::NotPublic(text.chars().take(80).collect());
        if text.starts_with(PREFIX) {
            return text.parse().map(Self::Ed25519);
        }
        let mut bytes = [0; P256_LENGTH];
        let digits = text.strip_prefix(P256_PREFIX).ok_or_else(wrong)?;
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| wrong())?;
        P256Key::from_bytes(&bytes).map(Self::P256)
    }
}

#[cfg(test)]
mod tests;
