//! Secrets that are overwritten in memory, key derivation, and the AEAD.
//!
//! ```text
//!  Noise Split, per direction ─▶ root ─┬─ "confirm" ─▶ answers message 3
//!                                      ├─ "end" ─────▶ ends the association
//!                                      └─ "traffic" ─▶ S₀ ─┬─ "key" ─▶ AES-256-GCM, epoch 0
//!                                                          └─ "next" ─▶ S₁ ─┬─ "key" ─▶ epoch 1
//!                                                                           └─ …
//! ```
//!
//! Each arrow is HKDF-Expand with SHA-256 (RFC 5869), which cannot be inverted. Overwritten are the
//! values of these types, and after each computation the stack below it.

use crate::Random;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hint::black_box;
use zeroize::{Zeroize, Zeroizing};

/// Length of an AES-256-GCM tag in bytes.
pub const TAG_LENGTH: usize = 16;
const NONCE_LENGTH: usize = 12;
/// Length of an HMAC-SHA-256 tag in bytes.
pub const MAC_LENGTH: usize = 32;
/// Prefix of every derivation label: another protocol or version derives other keys from the same
/// secret.
const LABEL: &[u8] = b"tamandua association 1 ";

/// Secret of 32 bytes. Zeroed on drop, and never printed.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(Box<[u8; 32]>);

impl Secret {
    /// Copies the bytes.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self(Box::new(*bytes))
    }

    /// Draws a random secret.
    pub fn draw(random: &mut Random) -> Self {
        let mut drawn = Self(Box::new([0; 32]));
        random(&mut *drawn.0);
        drawn
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives a secret under a label.
    pub fn derive(&self, label: &str) -> Self {
        let mut derived = Self(Box::new([0; 32]));
        expand(&self.0, label, &mut derived.0);
        derived
    }

    /// Returns the HMAC of some bytes.
    pub fn mac(&self, bytes: &[u8]) -> [u8; MAC_LENGTH] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &*self.0), bytes);
        let mut mac = [0; MAC_LENGTH];
        mac.copy_from_slice(tag.as_ref());
        mac
    }

    /// Verifies an HMAC in constant time.
    pub fn verify(&self, mac: &[u8; MAC_LENGTH], bytes: &[u8]) -> bool {
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &*self.0), bytes, mac).is_ok()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn expand(secret: &[u8; 32], label: &str, into: &mut [u8; 32]) {
    expand_below(secret, label, into);
    wipe_stack::<HASH_STACK>();
}

/// Derives out of line, so that the stack frames of AWS-LC are below the caller's, which wipes
/// them.
#[inline(never)]
fn expand_below(secret: &[u8; 32], label: &str, into: &mut [u8; 32]) {
    let prk = Prk::new_less_safe(HKDF_SHA256, secret);
    let info = [LABEL, label.as_bytes()];
    let derived = prk.expand(&info, HKDF_SHA256).and_then(|okm| okm.fill(into));
    derived.expect("32 bytes are one block of HKDF-SHA-256");
}

/// Upper estimate of the stack that AWS-LC uses for hashing, in bytes.
const HASH_STACK: usize = 4096;

/// Overwrites what functions called just before have left on the stack: AWS-LC, snow and the
/// compiler copy secrets there. Best effort; `tests/memory.rs` checks it.
#[inline(never)]
pub fn wipe_stack<const LENGTH: usize>() {
    black_box(&mut [0u8; LENGTH]);
}

/// AES-256-GCM key. Its key schedule is overwritten on drop.
pub struct AeadKey(LessSafeKey);

impl AeadKey {
    pub fn new(key: &[u8; 32]) -> Self {
        Self(schedule(key))
    }

    /// Encrypts in place; returns the tag over `clear` and the ciphertext.
    pub fn seal(&self, counter: u64, clear: &[u8], plain: &mut [u8]) -> [u8; TAG_LENGTH] {
        let nonce = Nonce::assume_unique_for_key(nonce_of(counter));
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(clear), plain);
        let tag = tag.expect("a datagram is shorter than what AES-GCM takes (2^36 - 32 bytes)");
        let mut bytes = [0; TAG_LENGTH];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Decrypts in place. If the tag is invalid, the content of the buffer is undefined.
    pub fn open(
        &self,
        counter: u64,
        clear: &[u8],
        sealed: &mut [u8],
        tag: [u8; TAG_LENGTH],
    ) -> Result<(), Forged> {
        open(&self.0, nonce_of(counter), clear, sealed, tag)
    }
}

fn open(
    key: &LessSafeKey,
    nonce: [u8; NONCE_LENGTH],
    clear: &[u8],
    sealed: &mut [u8],
    tag: [u8; TAG_LENGTH],
) -> Result<(), Forged> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = key.open_in_place_separate_tag(nonce, Aad::from(clear), &tag, sealed);
    opened.map(drop).map_err(|_| Forged)
}

/// Decrypts with any nonce, for external test vectors.
#[cfg(test)]
pub fn open_with(
    key: &[u8; 32],
    nonce: [u8; NONCE_LENGTH],
    clear: &[u8],
    sealed: &mut [u8],
    tag: [u8; TAG_LENGTH],
) -> Result<(), Forged> {
    open(&schedule(key), nonce, clear, sealed, tag)
}

/// The tag is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

impl Drop for AeadKey {
    fn drop(&mut self) {
        self.0 = schedule(&[0; 32]);
        black_box(&self.0);
    }
}

impl fmt::Debug for AeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AeadKey")
    }
}

fn schedule(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes are a key of AES-256"))
}

/// Returns the nonce of a counter as Noise defines it for AESGCM: 32 zero bits and the counter.
pub fn nonce_of(counter: u64) -> [u8; NONCE_LENGTH] {
    let mut nonce = [0; NONCE_LENGTH];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    nonce
}

/// Number of epochs ahead of the first unspent one for which keys can be derived. With epochs of a
/// million packets the other side may lose 66 million in a row, more than a minute at a million a
/// second. A forged counter costs one derivation per epoch, once.
pub const EPOCHS_AHEAD_MAX: u64 = SLOTS as u64 - 1;
const SLOTS: usize = 64;

/// Ratchet of epoch secrets of one direction. Spent secrets are deleted, and later ones do not lead
/// back to them.
pub struct Chain {
    /// Secrets by epoch number modulo [`SLOTS`]; unused slots are zero.
    secrets: Box<Zeroizing<[[u8; 32]; SLOTS]>>,
    /// First unspent epoch.
    first: u64,
    /// Last epoch whose secret has been derived.
    last: u64,
}

impl Chain {
    /// Starts the ratchet at epoch 0.
    pub fn new(secret: &Secret) -> Self {
        let mut secrets = Box::new(Zeroizing::new([[0; 32]; SLOTS]));
        secrets[0] = *secret.0;
        Self { secrets, first: 0, last: 0 }
    }

    /// Returns the key of an epoch; `None` if it is spent or too far ahead.
    pub fn key(&mut self, epoch: u64) -> Option<AeadKey> {
        if epoch < self.first || epoch - self.first > EPOCHS_AHEAD_MAX {
            return None;
        }
        self.reach(epoch);
        let mut key = Zeroizing::new([0; 32]);
        expand(&self.secrets[slot(epoch)], "key", &mut key);
        Some(AeadKey::new(&key))
    }

    /// Deletes the secrets of an epoch and all earlier ones.
    pub fn spend(&mut self, epoch: u64) {
        while self.first <= epoch {
            self.reach(self.first + 1);
            self.secrets[slot(self.first)].zeroize();
            self.first += 1;
        }
    }

    fn reach(&mut self, epoch: u64) {
        while self.last < epoch {
            let mut next = Zeroizing::new([0; 32]);
            expand(&self.secrets[slot(self.last)], "next", &mut next);
            self.last += 1;
            self.secrets[slot(self.last)] = *next;
        }
    }
}

fn slot(epoch: u64) -> usize {
    epoch as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Chain {
        Chain::new(&Secret::new(&[7; 32]))
    }

    fn tag(key: &AeadKey) -> [u8; TAG_LENGTH] {
        key.seal(0, b"clear", &mut [])
    }

    #[test]
    fn an_epochs_key_is_the_same_by_any_path() {
        let (mut steps, mut jump) = (chain(), chain());
        for epoch in 0..EPOCHS_AHEAD_MAX {
            steps.key(epoch).unwrap();
            steps.spend(epoch);
        }
        let far = EPOCHS_AHEAD_MAX;
        assert_eq!(tag(&steps.key(far).unwrap()), tag(&jump.key(far).unwrap()));
        assert_ne!(tag(&jump.key(far).unwrap()), tag(&jump.key(far - 1).unwrap()));
    }

    #[test]
    fn a_spent_epoch_leaves_nothing_behind() {
        let mut chain = chain();
        chain.key(EPOCHS_AHEAD_MAX).unwrap();
        chain.spend(EPOCHS_AHEAD_MAX);
        assert!(chain.key(EPOCHS_AHEAD_MAX).is_none());
        let left = chain.secrets.iter().filter(|secret| **secret != [0; 32]).count();
        assert_eq!(left, 1, "only the next one's");
    }

    #[test]
    fn an_epoch_too_far_ahead_costs_nothing() {
        let mut chain = chain();
        assert!(chain.key(EPOCHS_AHEAD_MAX + 1).is_none());
        assert!(chain.key(u64::MAX).is_none());
        assert_eq!(chain.last, 0);
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", Secret::new(&[0x41; 32])), "Secret");
        assert_eq!(format!("{:?}", AeadKey::new(&[0x41; 32])), "AeadKey");
    }
}
