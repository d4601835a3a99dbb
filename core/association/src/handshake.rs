//! Both sides of one handshake: the Noise state and the order of messages.
//!
//! ```text
//!  Initiator::new ── message 1 ──▶ Responder::new
//!  read_answer ◀─── message 2 ────┘
//!  finish ───────── message 3 ──▶ read_finish
//!  Roots                          Roots
//! ```

use crate::Random;
use crate::identity::{self, Carrier, Identity};
use crate::noise::{Noise, StaticKey};
use crate::secret::{Secret, TAG_LENGTH};
use crate::traffic::Roots;
use crate::wire::{self, AssociationId, EPHEMERAL_LENGTH, HEADER_LENGTH};
use trust::SecretKey;

/// Identity that this node shows in every handshake.
pub struct LocalIdentity {
    /// Identity key, which signs the handshake.
    pub key: SecretKey,
    /// Capability in text form, or empty.
    pub token: String,
    /// X25519 key of this process, made at its start.
    pub static_key: StaticKey,
}

impl LocalIdentity {
    /// Returns the length of message 2, which carries the token.
    pub fn answer_length(&self) -> usize {
        let keys = EPHEMERAL_LENGTH + 32 + TAG_LENGTH;
        HEADER_LENGTH + keys + 4 + 32 + 64 + self.token.len() + TAG_LENGTH
    }
}

/// Reason why a message is not accepted. The fault of its sender or of a party on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The message does not belong to this handshake, or was changed.
    Forged,
    /// The message belongs to this handshake, but its sender is not the principal that it claims to
    /// be.
    Identity,
}

/// Initiator's side of a handshake.
pub struct Initiator {
    noise: Noise,
    message: Vec<u8>,
}

impl Initiator {
    pub fn new(local: &LocalIdentity, id: AssociationId, random: &mut Random) -> Self {
        let mut noise = Noise::initiator(&local.static_key, &Secret::draw(random));
        let message = noise.write(&wire::initiation_payload(id));
        let message = message.expect("message 1 computes nothing with a key of the other side");
        Self { noise, message }
    }

    /// Returns message 1 of Noise.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Returns true if message 1 has this ephemeral key.
    pub fn has_ephemeral(&self, ephemeral: &[u8; EPHEMERAL_LENGTH]) -> bool {
        self.message.starts_with(ephemeral)
    }

    /// Reads message 2 and returns the responder's id and identity. After a failure the genuine
    /// message can still be read.
    pub fn read_answer(&mut self, noise: &[u8]) -> Result<(AssociationId, Identity), Failure> {
        let before = self.noise.hash();
        let payload = self.noise.read(noise).map_err(|_| Failure::Forged)?;
        // The responder signs the transcript before its own message.
        let peer = self.noise.peer().ok_or(Failure::Forged)?;
        let (id, rest) = identity::split_id(&payload).map_err(|_| Failure::Identity)?;
        let identity = identity::read(Carrier::Answer, &before, &peer, rest);
        Ok((id, identity.map_err(|_| Failure::Identity)?))
    }

    /// Returns message 3 of Noise and the root secrets.
    pub fn finish(mut self, local: &LocalIdentity) -> Result<(Vec<u8>, Roots), Failure> {
        let payload = local.identity(Carrier::Finish, &self.noise);
        let finish = self.noise.write(&payload).map_err(|_| Failure::Forged)?;
        let (ours, theirs) = self.noise.split();
        Ok((finish, Roots { ours, theirs }))
    }
}

impl LocalIdentity {
    fn identity(&self, carrier: Carrier, noise: &Noise) -> Vec<u8> {
        identity::write(carrier, noise, self.static_key.public(), &self.key, &self.token)
    }
}

/// Responder's side of a handshake.
pub struct Responder {
    noise: Noise,
    peer: AssociationId,
}

impl Responder {
    /// Reads message 1 of Noise and writes message 2.
    pub fn new(
        local: &LocalIdentity,
        id: AssociationId,
        message: &[u8],
        random: &mut Random,
    ) -> Result<(Self, Vec<u8>), Failure> {
        let mut noise = Noise::responder(&local.static_key, &Secret::draw(random));
        let payload = noise.read(message).map_err(|_| Failure::Forged)?;
        let peer = wire::initiator_of(&payload).ok_or(Failure::Forged)?;
        let mut payload = id.to_bytes().to_vec();
        payload.extend_from_slice(&local.identity(Carrier::Answer, &noise));
        let answer = noise.write(&payload).map_err(|_| Failure::Forged)?;
        Ok((Self { noise, peer }, answer))
    }

    /// Returns the initiator's association id, for the headers of messages to it.
    pub fn peer(&self) -> AssociationId {
        self.peer
    }

    /// Reads message 3 and returns the initiator's identity. After a failure the genuine message
    /// can still be read, unless the failed one was that message with its end changed.
    pub fn read_finish(&mut self, noise: &[u8]) -> Result<Identity, Failure> {
        let before = self.noise.hash();
        let payload = self.noise.read(noise).map_err(|_| Failure::Forged)?;
        let peer = self.noise.peer().ok_or(Failure::Forged)?;
        let identity = identity::read(Carrier::Finish, &before, &peer, &payload);
        identity.map_err(|_| Failure::Identity)
    }

    /// Returns the root secrets.
    pub fn split(self) -> Roots {
        let (theirs, ours) = self.noise.split();
        Roots { ours, theirs }
    }
}
