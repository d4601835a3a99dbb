//! Signatures of modules in cosign's format: a payload of *simple signing* over the digest of the
//! module's image manifest, with the signature's bytes beside it.
//!
//! ```text
//! module ─SHA-256─▶ image manifest ─SHA-256─▶ payload ─key─▶ signature
//!
//! {"critical":{"identity":{"docker-reference":"monitor"},
//!              "image":{"docker-manifest-digest":"sha256:5f…"},
//!              "type":"cosign container image signature"},"optional":null}
//! ```
//!
//! Sources: containers/image, docs/containers-signature.5.md, for the payload; sigstore/cosign,
//! specs/SIGNATURE_SPEC.md, for where it is kept. Ed25519 signs the payload itself (RFC 8032),
//! ECDSA its SHA-256.

use crate::key::SecretKey;
use crate::signer::Signer;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

pub mod file;

pub use file::SignatureFile;

/// Longest payload, in bytes: cosign's has some 250, with its annotations a few kilobytes.
pub const PAYLOAD_LENGTH_MAX: usize = 16 << 10;
/// Longest signature, in bytes: one of Ed25519 has 64, one of P-256 72 at most.
pub const SIGNATURE_LENGTH_MAX: usize = 128;
/// Largest number of signatures of one module that are verified: each costs up to one verification
/// for each known key.
pub const SIGNATURES_MAX: usize = 32;
/// Required value of `critical.type` in a payload.
pub const TYPE: &str = "cosign container image signature";
/// Media type of a payload.
pub const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// Longest excerpt of untrusted text in a message, in characters.
const SHOWN_MAX: usize = 80;

/// SHA-256 of an image manifest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageDigest(pub [u8; 32]);

/// Signature of one image, unverified until [`Signature::signer_among`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Signed bytes, as received.
    pub payload: Vec<u8>,
    /// Signature of `payload`.
    pub bytes: Vec<u8>,
    /// Signer that the source names; `None` for cosign, which names none.
    pub claimed: Option<Signer>,
}

/// Reason why a signature does not count. The fault of whoever wrote or changed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A part of the signature is longer than its limit.
    #[error("{what} of a signature has {length} bytes, at most {limit} are read")]
    TooLong {
        /// Name of the part.
        what: &'static str,
        /// Length of the part in bytes.
        length: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// The number of signatures exceeds [`SIGNATURES_MAX`].
    #[error("there are {0} signatures; at most {SIGNATURES_MAX} are verified")]
    TooMany(usize),
    /// The signed bytes are not a payload of simple signing.
    #[error("the signed bytes are not a payload of simple signing: {0}")]
    NotAPayload(String),
    /// The payload has another `critical.type`.
    #[error("the signed payload has the type '{0}'; a module's has '{TYPE}'")]
    OtherType(String),
    /// The payload is about another image.
    #[error("the signature is about another image, {found}; this module's is {wanted}")]
    OtherImage {
        /// Digest in the payload.
        found: ImageDigest,
        /// Digest of the module's image.
        wanted: ImageDigest,
    },
    /// No known key has made the signature; names the claimed signer if there is one.
    #[error("no signer that is known here has signed the module{}", claim(.0.as_deref()))]
    NotKnown(Option<Box<Signer>>),
    /// The named signer has not made the signature.
    #[error("the signature names {0} as its signer, which has not made it")]
    Forged(Box<Signer>),
    /// The text is not a signature file.
    #[error("this is not a signature file: {0}; `tam sign` writes one")]
    NotAFile(String),
}

fn claim(signer: Option<&Signer>) -> String {
    signer.map(|signer| format!("; the signature names {signer}")).unwrap_or_default()
}

/// Result of verifying all signatures of one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Known keys with a valid signature.
    pub signers: BTreeSet<Signer>,
    /// Unknown keys with a valid signature.
    pub strangers: BTreeSet<Signer>,
    /// Reasons why the other signatures do not count.
    pub refused: Vec<SignatureError>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Payload<'a, Other> {
    #[serde(borrow)]
    critical: Critical<'a>,
    #[serde(default = "none")]
    optional: Option<Other>,
}

fn none<T>() -> Option<T> {
    None
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical<'a> {
    #[serde(borrow)]
    identity: Identity<'a>,
    #[serde(borrow)]
    image: Image<'a>,
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity<'a> {
    #[serde(rename = "docker-reference", borrow)]
    reference: std::borrow::Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image<'a> {
    #[serde(rename = "docker-manifest-digest", borrow)]
    digest: std::borrow::Cow<'a, str>,
}

impl Signature {
    /// Signs an image. `reference` names it for human readers; no decision depends on it.
    ///
    /// # Panics
    /// Never: the payload is text.
    #[must_use]
    pub fn new(key: &SecretKey, image: &ImageDigest, reference: &str) -> Self {
        let payload = Payload::<()> {
            critical: Critical {
                identity: Identity { reference: reference.into() },
                image: Image { digest: image.to_string().into() },
                kind: TYPE.into(),
            },
            optional: None,
        };
        let payload = serde_json::to_vec(&payload).expect("texts become JSON");
        let bytes = key.sign(&payload).to_vec();
        Self { payload, bytes, claimed: Some(key.public().into()) }
    }

    /// Returns which of the known keys has signed this image. The payload is parsed strictly before
    /// any key is tried; if the signature names its signer, that key has to match.
    ///
    /// # Errors
    /// The signature exceeds a limit, is no payload, is about another image, or is by no known key.
    pub fn signer_among<'a>(
        &self,
        image: &ImageDigest,
        known: impl IntoIterator<Item = &'a Signer>,
    ) -> Result<Signer, SignatureError> {
        self.check_image(image)?;
        let has_signed = |key: &Signer| key.has_signed(&self.payload, &self.bytes);
        let mut known = known.into_iter();
        let Some(claimed) = self.claimed else {
            let found = known.find(|key| has_signed(key)).copied();
            return found.ok_or(SignatureError::NotKnown(None));
        };
        if !has_signed(&claimed) {
            Err(SignatureError::Forged(Box::new(claimed)))
        } else if known.any(|key| *key == claimed) {
            Ok(claimed)
        } else {
            Err(SignatureError::NotKnown(Some(Box::new(claimed))))
        }
    }

    fn check_image(&self, image: &ImageDigest) -> Result<(), SignatureError> {
        at_most("the payload", self.payload.len(), PAYLOAD_LENGTH_MAX)?;
        at_most("the bytes", self.bytes.len(), SIGNATURE_LENGTH_MAX)?;
        let found = subject(&self.payload)?;
        if found == *image {
            Ok(())
        } else {
            Err(SignatureError::OtherImage { found, wanted: *image })
        }
    }
}

fn at_most(what: &'static str, length: usize, limit: usize) -> Result<(), SignatureError> {
    if length > limit { Err(SignatureError::TooLong { what, length, limit }) } else { Ok(()) }
}

/// Returns the image that a payload is about.
///
/// # Errors
/// The payload is malformed or of another type. Duplicate and unknown fields and trailing bytes are
/// refused.
pub fn subject(payload: &[u8]) -> Result<ImageDigest, SignatureError> {
    at_most("the payload", payload.len(), PAYLOAD_LENGTH_MAX)?;
    let read: Payload<'_, IgnoredAny> = serde_json::from_slice(payload)
        .map_err(|error| SignatureError::NotAPayload(shown(&error.to_string())))?;
    let critical = read.critical;
    if critical.kind != TYPE {
        return Err(SignatureError::OtherType(shown(&critical.kind)));
    }
    ImageDigest::of_text(&critical.image.digest).ok_or_else(|| {
        SignatureError::NotAPayload(format!("'{}' is no digest", shown(&critical.image.digest)))
    })
}

/// Verifies all signatures of an image. Costs at most [`SIGNATURES_MAX`] verifications for each
/// known key.
#[must_use]
pub fn signers(
    image: &ImageDigest,
    signatures: &[Signature],
    known: &BTreeSet<Signer>,
) -> Verified {
    let mut verified = Verified::default();
    for signature in signatures.iter().take(SIGNATURES_MAX) {
        match signature.signer_among(image, known) {
            Ok(signer) => {
                verified.signers.insert(signer);
            }
            Err(SignatureError::NotKnown(Some(stranger))) => {
                verified.strangers.insert(*stranger);
            }
            Err(error) => verified.refused.push(error),
        }
    }
    if signatures.len() > SIGNATURES_MAX {
        verified.refused.push(SignatureError::TooMany(signatures.len()));
    }
    verified
}

/// Returns untrusted text in a form fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

impl ImageDigest {
    /// Parses `sha256:` and 64 lower-case hexadecimal digits.
    fn of_text(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).ok()?;
        let digest = Self(bytes);
        (digest.to_string() == text).then_some(digest)
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl fmt::Debug for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
