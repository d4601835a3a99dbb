//! Signature file beside a module's file, `MODULE.wasm.sig`: one JSON document in one line, with
//! exactly one valid spelling.
//!
//! ```text
//! {"signatures":[{"payload":"BASE64","signature":"BASE64","key":"ed25519/…"}, …]}
//! ```
//!
//! `payload` has the signed bytes verbatim, so that nothing depends on how a document is
//! serialized. `key` may be missing, as cosign does not name the signer.

use super::{
    PAYLOAD_LENGTH_MAX, SIGNATURE_LENGTH_MAX, SIGNATURES_MAX, Signature, SignatureError, at_most,
    shown,
};
use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest file in bytes: [`SIGNATURES_MAX`] signatures of cosign's size.
pub const FILE_LENGTH_MAX: usize = 64 << 10;

/// All signatures of one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureFile {
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    signatures: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    payload: String,
    signature: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl SignatureFile {
    /// Returns the signatures.
    #[must_use]
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// Adds a signature unless it is present. Replaces a signature by the same key about another
    /// image: the module has been built again.
    ///
    /// # Errors
    /// More than [`SIGNATURES_MAX`] signatures or [`FILE_LENGTH_MAX`] bytes would result.
    pub fn add(&mut self, signature: Signature) -> Result<(), SignatureError> {
        let is_same = |other: &Signature| {
            *other == signature || (other.claimed.is_some() && other.claimed == signature.claimed)
        };
        self.signatures.retain(|other| !is_same(other));
        if self.signatures.len() >= SIGNATURES_MAX {
            return Err(SignatureError::TooMany(self.signatures.len() + 1));
        }
        self.signatures.push(signature);
        at_most("the file", self.to_string().len(), FILE_LENGTH_MAX)
    }
}

impl fmt::Display for SignatureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = |signature: &Signature| Entry {
            payload: Base64::encode_string(&signature.payload),
            signature: Base64::encode_string(&signature.bytes),
            key: signature.claimed.map(|key| key.to_string()),
        };
        let document = Document { signatures: self.signatures.iter().map(entry).collect() };
        let text = serde_json::to_string(&document).map_err(|_| fmt::Error)?;
        writeln!(f, "{text}")
    }
}

impl FromStr for SignatureFile {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<Self, SignatureError> {
        at_most("the file", text.len(), FILE_LENGTH_MAX)?;
        let wrong = |why: &str| SignatureError::NotAFile(shown(why));
        let document: Document =
            serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        if document.signatures.len() > SIGNATURES_MAX {
            return Err(SignatureError::TooMany(document.signatures.len()));
        }
        let signatures = document.signatures.into_iter().map(Entry::read);
        let file = Self { signatures: signatures.collect::<Result<_, _>>()? };
        // Only the canonical spelling is accepted: any change of a byte is refused, even if it
        // would be harmless.
        if file.to_string() == text {
            Ok(file)
        } else {
            Err(wrong("it has been written otherwise"))
        }
    }
}

impl Entry {
    fn read(self) -> Result<Signature, SignatureError> {
        let decode = |text: &str| {
            let wrong = |_| SignatureError::NotAFile("a part is no base64".into());
            Base64::decode_vec(text).map_err(wrong)
        };
        let (payload, bytes) = (decode(&self.payload)?, decode(&self.signature)?);
        at_most("the payload", payload.len(), PAYLOAD_LENGTH_MAX)?;
        at_most("the bytes", bytes.len(), SIGNATURE_LENGTH_MAX)?;
        let key = self.key.map(|key| key.parse());
        let claimed = key.transpose();
        let claimed = claimed.map_err(|error: crate::KeyError| {
            SignatureError::NotAFile(shown(&error.to_string()))
        })?;
        Ok(Signature { payload, bytes, claimed })
    }
}
