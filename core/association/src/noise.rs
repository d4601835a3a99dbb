//! Noise XX (noiseprotocol.org, revision 34) by the library `snow`, with this crate's primitives:
//! X25519 by x25519-dalek, AES-256-GCM and SHA-256 by aws-lc-rs. They differ from snow's in three
//! respects: keys are overwritten, public keys of small order are refused, and random bytes are
//! supplied by the caller.
//!
//! ```text
//!  -> e                      the initiator's ephemeral key
//!  <- e, ee, s, es           the responder's, and its identity
//!  -> s, se                  the initiator's identity
//! ```

use crate::secret::{AeadKey, Secret, TAG_LENGTH, wipe_stack};
use aws_lc_rs::digest;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use std::fmt;
use std::hint::black_box;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Noise cipher suite. With the AES instructions of all router CPUs of the last ten years AES-GCM
/// takes a third of the time of ChaCha20-Poly1305.
pub const SUITE: &str = "Noise_XX_25519_AESGCM_SHA256";
/// Suite of a state without static keys, used as a placeholder on drop.
const BLANK: &str = "Noise_NN_25519_AESGCM_SHA256";
/// Upper estimate of the stack that snow and the curve arithmetic use, in bytes.
const HANDSHAKE_STACK: usize = 32 << 10;
/// Prologue that both sides have to agree on (Noise, section 6).
const PROLOGUE: &[u8] = b"tamandua association 1";

/// Error of reading a handshake message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseError;

/// X25519 static key with the lifetime of the process.
pub struct StaticKey {
    secret: Secret,
    public: [u8; 32],
}

impl StaticKey {
    pub fn new(secret: Secret) -> Self {
        let public = PublicKey::from(&StaticSecret::from(*secret.as_bytes())).to_bytes();
        Self { secret, public }
    }

    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }
}

fn suite(name: &str) -> NoiseParams {
    name.parse().expect("the name of a suite that snow knows")
}

/// Noise state of one side of one handshake.
pub struct Noise {
    state: Box<HandshakeState>,
    own: [u8; 32],
}

impl Noise {
    pub fn initiator(key: &StaticKey, ephemeral: &Secret) -> Self {
        Self::new(key, ephemeral, |builder| builder.build_initiator())
    }

    pub fn responder(key: &StaticKey, ephemeral: &Secret) -> Self {
        Self::new(key, ephemeral, |builder| builder.build_responder())
    }

    fn new(
        key: &StaticKey,
        ephemeral: &Secret,
        build: fn(Builder<'_>) -> Result<HandshakeState, snow::Error>,
    ) -> Self {
        let ephemeral = Secret::new(ephemeral.as_bytes());
        let primitives = Primitives { ephemeral, static_public: key.public };
        let state = Builder::with_resolver(suite(SUITE), Box::new(primitives))
            .local_private_key(key.secret.as_bytes())
            .and_then(|builder| builder.prologue(PROLOGUE))
            .and_then(build);
        let state = Box::new(state.expect("XX needs a static key, and has it"));
        Self { state, own: key.public }
    }

    /// Writes the next message. Fails if the other side's key is of small order.
    pub fn write(&mut self, payload: &[u8]) -> Result<Vec<u8>, NoiseError> {
        // Largest overhead: two keys and two tags.
        let mut message = vec![0; payload.len() + 2 * 32 + 2 * TAG_LENGTH];
        let length = self.state.write_message(payload, &mut message);
        wipe_stack::<HANDSHAKE_STACK>();
        message.truncate(length.map_err(|_| NoiseError)?);
        Ok(message)
    }

    /// Reads the next message and returns its payload. Messages of this process that are reflected
    /// to it are refused, so that a node cannot authenticate to itself.
    pub fn read(&mut self, message: &[u8]) -> Result<Zeroizing<Vec<u8>>, NoiseError> {
        let mut payload = Zeroizing::new(vec![0; message.len()]);
        let length = self.state.read_message(message, &mut payload);
        wipe_stack::<HANDSHAKE_STACK>();
        payload.truncate(length.map_err(|_| NoiseError)?);
        if self.peer() == Some(self.own) {
            return Err(NoiseError);
        }
        Ok(payload)
    }

    /// Returns the handshake hash: the transcript of both sides so far.
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(self.state.get_handshake_hash());
        hash
    }

    /// Returns the other side's static key if it has been received.
    pub fn peer(&self) -> Option<[u8; 32]> {
        self.state.get_remote_static()?.try_into().ok()
    }

    /// Ends the handshake; returns the secrets of the initiator's and of the responder's direction.
    pub fn split(mut self) -> (Secret, Secret) {
        let (initiator, responder) = self.state.dangerously_get_raw_split();
        let (initiator, responder) = (Zeroizing::new(initiator), Zeroizing::new(responder));
        let secrets = (Secret::new(&initiator), Secret::new(&responder));
        wipe_stack::<HANDSHAKE_STACK>();
        secrets
    }
}

impl Drop for Noise {
    /// Overwrites snow's chaining key, from which the traffic keys are derived, with a blank state:
    /// snow itself does not.
    fn drop(&mut self) {
        let nothing = Primitives { ephemeral: Secret::new(&[0; 32]), static_public: [0; 32] };
        let blank = Builder::with_resolver(suite(BLANK), Box::new(nothing)).build_initiator();
        if let Ok(blank) = blank {
            *self.state = blank;
        }
        black_box(&self.state);
    }
}

impl fmt::Debug for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Noise")
    }
}

/// Cryptographic primitives handed to snow.
struct Primitives {
    /// Ephemeral key, the only random bytes of a handshake.
    ephemeral: Secret,
    /// Public static key, cached so that it is not recomputed for each handshake.
    static_public: [u8; 32],
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Drawn(Some(Secret::new(self.ephemeral.as_bytes())))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let dh = X25519 {
            secret: Secret::new(&[0; 32]),
            public: [0; 32],
            static_public: self.static_public,
        };
        (*choice == DHChoice::Curve25519).then(|| Box::new(dh) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        let hash = Sha256(digest::Context::new(&digest::SHA256));
        (*choice == HashChoice::SHA256).then(|| Box::new(hash) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let cipher = AesGcm(AeadKey::new(&[0; 32]));
        (*choice == CipherChoice::AESGCM).then(|| Box::new(cipher) as Box<dyn Cipher>)
    }
}

/// Random source that yields 32 bytes once: a second request would repeat the ephemeral key.
struct Drawn(Option<Secret>);

impl Random for Drawn {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), snow::Error> {
        let drawn = self.0.take().ok_or(snow::Error::Rng)?;
        if into.len() != drawn.as_bytes().len() {
            return Err(snow::Error::Rng);
        }
        into.copy_from_slice(drawn.as_bytes());
        Ok(())
    }
}

struct X25519 {
    secret: Secret,
    public: [u8; 32],
    static_public: [u8; 32],
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    /// Sets a static key; snow uses it for nothing else.
    fn set(&mut self, key: &[u8]) {
        if let Ok(key) = key.try_into() {
            self.secret = Secret::new(key);
            self.public = self.static_public;
        }
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        let mut key = Zeroizing::new([0; 32]);
        random.try_fill_bytes(&mut *key)?;
        self.secret = Secret::new(&key);
        self.public = PublicKey::from(&StaticSecret::from(*key)).to_bytes();
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_bytes()
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        // The slice has the length of snow's longest key; the key is in its first bytes.
        let public: [u8; 32] = *public.first_chunk().ok_or(snow::Error::Dh)?;
        let secret = StaticSecret::from(*self.secret.as_bytes());
        let shared = secret.diffie_hellman(&PublicKey::from(public));
        if !shared.was_contributory() {
            return Err(snow::Error::Dh);
        }
        let out = out.first_chunk_mut().ok_or(snow::Error::Dh)?;
        *out = *shared.as_bytes();
        Ok(())
    }
}

struct AesGcm(AeadKey);

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0 = AeadKey::new(key);
    }

    fn encrypt(&self, nonce: u64, clear: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (sealed, rest) = out.split_at_mut(plain.len());
        sealed.copy_from_slice(plain);
        rest[..TAG_LENGTH].copy_from_slice(&self.0.seal(nonce, clear, sealed));
        plain.len() + TAG_LENGTH
    }

    fn decrypt(
        &self,
        nonce: u64,
        clear: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, snow::Error> {
        let (sealed, tag) = sealed.split_last_chunk().ok_or(snow::Error::Decrypt)?;
        let out = out.get_mut(..sealed.len()).ok_or(snow::Error::Decrypt)?;
        out.copy_from_slice(sealed);
        self.0.open(nonce, clear, out, *tag).map_err(|_| snow::Error::Decrypt)?;
        Ok(sealed.len())
    }
}

struct Sha256(digest::Context);

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = digest::Context::new(&digest::SHA256);
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(self.0.clone().finish().as_ref());
    }
}

#[cfg(test)]
mod tests;
