//! Ed25519 keys (RFC 8032) and the files that hold them.
//!
//! ```text
//! public   ed25519/5f1c…                      one word, in tokens, configurations, answers
//!          -----BEGIN PUBLIC KEY-----         SubjectPublicKeyInfo (RFC 8410)
//! secret   -----BEGIN PRIVATE KEY-----        PKCS#8 (RFC 5958, RFC 8410)
//!          -----BEGIN ENCRYPTED PRIVATE KEY-- PKCS#8 by PBES2 (RFC 8018): scrypt, AES-256-CBC
//! ```
//!
//! OpenSSL, cosign and other PKCS#8 implementations read the same files.

use aws_lc_rs::hmac;
use ed25519_dalek::pkcs8::KeypairBytes;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use pkcs8::der::pem::PemLabel;
use pkcs8::pkcs5::pbes2::{self, Kdf};
use pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, EncryptedPrivateKeyInfo,
    LineEnding, ObjectIdentifier, PrivateKeyInfo, SecretDocument, SubjectPublicKeyInfoRef,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Random bytes for a key, drawn by the caller.
pub type Seed = Zeroizing<[u8; 32]>;

/// Longest key file that is read, in bytes: a PKCS#8 file has 119, an encrypted one some 320.
pub const FILE_LENGTH_MAX: usize = 8192;
/// Prefix of a public key in text form.
pub const PREFIX: &str = "ed25519/";
/// Parameters of scrypt: N = 2^14, r = 8, p = 5, one of the sets that OWASP recommends, with the
/// largest memory (16 MiB) that OpenSSL accepts by default.
const SCRYPT: (u8, u32, u32) = (14, 8, 5);
/// Largest cost of scrypt that a file may demand: bytes of memory times parallel runs.
const SCRYPT_BYTES_MAX: u64 = 256 << 20;
/// Largest cost of PBKDF2 that a file may demand: iterations, some seconds.
const PBKDF2_ITERATIONS_MAX: u32 = 10_000_000;

/// Error of reading a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is not a public key.
    #[error(
        "'{0}' is no public key; it is {PREFIX} and 64 hexadecimal digits, as `tam key show` prints it, or a PEM file"
    )]
    NotPublic(String),
    /// The file does not contain a key.
    #[error("the file does not contain a key: {0}; `tam key new` makes one")]
    NotAKey(String),
    /// The key is of another algorithm.
    #[error("the key is of another kind ({0}); Ed25519 is needed, as `tam key new` makes it")]
    OtherKind(String),
    /// The file has more than [`FILE_LENGTH_MAX`] bytes.
    #[error("the file has {0} bytes; a key's has at most {FILE_LENGTH_MAX}")]
    TooLong(usize),
    /// The public key is a point of small order, under which signatures prove nothing.
    #[error(
        "the public key is one of those whose signatures prove nothing (a point of small order)"
    )]
    Weak,
    /// The file is encrypted, and no passphrase was given.
    #[error("the key is encrypted, and needs its passphrase")]
    NeedsPassphrase,
    /// The passphrase does not decrypt the file.
    #[error("the passphrase does not decrypt the key")]
    WrongPassphrase,
    /// Decrypting the file would cost too much memory or time.
    #[error("decrypting the key would take too much memory or time ({0})")]
    Expensive(String),
}

/// Ed25519 public key; identifies a principal, an administrator or a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(VerifyingKey);

impl TryFrom<String> for PublicKey {
    type Error = KeyError;
    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

impl PublicKey {
    /// Makes a key from its 32 bytes (RFC 8032).
    ///
    /// # Errors
    /// The bytes are not a point of the curve, or a point of small order.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        let key = VerifyingKey::from_bytes(bytes);
        let key = key.map_err(|_| KeyError::NotPublic(text_of(bytes)))?;
        if key.is_weak() { Err(KeyError::Weak) } else { Ok(Self(key)) }
    }

    /// Reads a PEM file (SubjectPublicKeyInfo).
    ///
    /// # Errors
    /// The text does not contain an Ed25519 public key.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let length = text.len();
        if length > FILE_LENGTH_MAX {
            return Err(KeyError::TooLong(length));
        }
        let (label, document) = pkcs8::Document::from_pem(text).map_err(not_a_key)?;
        SubjectPublicKeyInfoRef::validate_pem_label(label).map_err(not_a_key)?;
        let info = SubjectPublicKeyInfoRef::try_from(document.as_bytes()).map_err(not_a_key)?;
        let_ed25519(info.algorithm.oid)?;
        let key = VerifyingKey::from_public_key_der(document.as_bytes()).map_err(not_a_key)?;
        Self::from_bytes(key.as_bytes())
    }

    /// Returns the key as a PEM file.
    ///
    /// # Panics
    /// Never: a public key always has one.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.0.to_public_key_pem(LineEnding::LF).expect("44 bytes of DER are a PEM file")
    }

    /// Returns the 32 bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// Returns true if the signature of these bytes is valid. Strict: signatures that another
    /// implementation might refuse are refused (RFC 8032, section 5.1.7).
    #[must_use]
    pub fn has_signed(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        self.0.verify_strict(bytes, &Signature::from_bytes(signature)).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text_of(self.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialOrd for PublicKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PublicKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let digits = text.strip_prefix(PREFIX);
        let mut bytes = [0; 32];
        match digits.map(|digits| hex::decode_to_slice(digits, &mut bytes)) {
            Some(Ok(())) => Self::from_bytes(&bytes),
            // Excerpt that suffices to find the text again.
            _ => Err(KeyError::NotPublic(text.chars().take(80).collect())),
        }
    }
}

fn text_of(bytes: &[u8; 32]) -> String {
    format!("{PREFIX}{}", hex::encode(bytes))
}

/// Ed25519 secret key. Its bytes are zeroed on drop, and never printed.
#[derive(Clone)]
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Makes a key from 32 random bytes.
    #[must_use]
    pub fn from_seed(seed: &Seed) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// Reads a key file (PKCS#8), which may be encrypted.
    ///
    /// # Errors
    /// The text does not contain an Ed25519 secret key, or cannot be decrypted.
    pub fn from_pem(text: &str, passphrase: Option<&str>) -> Result<Self, KeyError> {
        let length = text.len();
        if length > FILE_LENGTH_MAX {
            return Err(KeyError::TooLong(length));
        }
        let (label, document) = SecretDocument::from_pem(text).map_err(not_a_key)?;
        if label == PrivateKeyInfo::PEM_LABEL {
            return Self::from_der(document.as_bytes());
        }
        EncryptedPrivateKeyInfo::validate_pem_label(label).map_err(not_a_key)?;
        let sealed = EncryptedPrivateKeyInfo::try_from(document.as_bytes()).map_err(not_a_key)?;
        let passphrase = passphrase.ok_or(KeyError::NeedsPassphrase)?;
        let scheme = sealed.encryption_algorithm.pbes2();
        affordable(&scheme.ok_or_else(|| KeyError::Expensive("PBES1".into()))?.kdf)?;
        let opened = sealed.decrypt(passphrase).map_err(|_| KeyError::WrongPassphrase)?;
        Self::from_der(opened.as_bytes())
    }

    fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let info = PrivateKeyInfo::try_from(der).map_err(not_a_key)?;
        let_ed25519(info.algorithm.oid)?;
        SigningKey::from_pkcs8_der(der).map(Self).map_err(not_a_key)
    }

    /// Returns the key as a file; encrypted if a passphrase is given, with 32 random bytes of salt.
    ///
    /// # Panics
    /// Never: the parameters are constants that fit.
    #[must_use]
    pub fn to_pem(&self, encrypted: Option<(&str, &[u8; 32])>) -> Zeroizing<String> {
        let document = document(&self.0);
        let Some((passphrase, random)) = encrypted else {
            let pem = document.to_pem(PrivateKeyInfo::PEM_LABEL, LineEnding::LF);
            return pem.expect("a hundred bytes of DER are a PEM file");
        };
        let (salt, vector) = random.split_at(16);
        let vector = vector.try_into().expect("two halves of 32 bytes");
        let (log_n, r, p) = SCRYPT;
        let cost = pkcs8::pkcs5::scrypt::Params::new(log_n, r, p, 32).expect("they fit");
        let scheme = pbes2::Parameters::scrypt_aes256cbc(cost, salt, vector).expect("they fit");
        let info = PrivateKeyInfo::try_from(document.as_bytes()).expect("made above");
        let sealed = info.encrypt_with_params(scheme, passphrase).expect("they fit");
        let pem = sealed.to_pem(EncryptedPrivateKeyInfo::PEM_LABEL, LineEnding::LF);
        pem.expect("some hundred bytes of DER are a PEM file")
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.0.sign(bytes).to_bytes()
    }

    /// Derives a key for the purpose named by `context`: HMAC-SHA-256 with this key over the
    /// context. It reveals nothing about this key or about keys for other purposes.
    #[must_use]
    pub fn derive(&self, context: &str) -> Zeroizing<[u8; 32]> {
        let seed = self.seed();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*seed);
        let tag = hmac::sign(&key, context.as_bytes());
        let mut derived = Zeroizing::new([0; 32]);
        derived.copy_from_slice(tag.as_ref());
        derived
    }

    /// Returns the 32 secret bytes, for a library that signs with them.
    pub(crate) fn seed(&self) -> Seed {
        Zeroizing::new(self.0.to_bytes())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the secret key of {}", self.public())
    }
}

/// Encodes PKCS#8 version 1, without the public key: OpenSSL 3.0 does not read version 2.
fn document(key: &SigningKey) -> SecretDocument {
    let bytes = KeypairBytes { secret_key: key.to_bytes(), public_key: None };
    bytes.to_pkcs8_der().expect("a key of 32 bytes has its form")
}

pub(crate) fn not_a_key(error: impl fmt::Display) -> KeyError {
    KeyError::NotAKey(error.to_string())
}

fn let_ed25519(kind: ObjectIdentifier) -> Result<(), KeyError> {
    let name = match kind.to_string().as_str() {
        // id-Ed25519 (RFC 8410, section 3).
        "1.3.101.112" => return Ok(()),
        "1.2.840.10045.2.1" => "ECDSA".to_owned(),
        "1.2.840.113549.1.1.1" => "RSA".to_owned(),
        "1.3.101.110" => "X25519".to_owned(),
        other => other.to_owned(),
    };
    Err(KeyError::OtherKind(name))
}

/// Checks the cost of decrypting a file. Files are untrusted and must not exhaust memory or time.
fn affordable(kdf: &Kdf<'_>) -> Result<(), KeyError> {
    let is_cheap = match kdf {
        Kdf::Scrypt(scrypt) => {
            let memory = u64::from(scrypt.block_size).saturating_mul(128);
            let memory = memory.saturating_mul(scrypt.cost_parameter);
            memory.saturating_mul(u64::from(scrypt.parallelization)) <= SCRYPT_BYTES_MAX
        }
        Kdf::Pbkdf2(pbkdf2) => pbkdf2.iteration_count <= PBKDF2_ITERATIONS_MAX,
        _ => false,
    };
    if is_cheap { Ok(()) } else { Err(KeyError::Expensive(kdf.oid().to_string())) }
}

#[cfg(test)]
mod tests;
