//! The two sides of one handshake: Noise, and who says what in it.
//!
//! ```text
//!  Initiator::new ── message 1 ──▶ Responder::new
//!  read_answer ◀─── message 2 ────┘
//!  finish ───────── message 3 ──▶ read_finish
//!  Roots                          Roots
//! ```

use crate::Random;
use crate::identity::{self, Identity, Place};
use crate::noise::{Noise, StaticKey};
use crate::secret::{Secret, TAG_LENGTH};
use crate::traffic::Roots;
use crate::wire::{self, AssociationId, EPHEMERAL_LENGTH, HEADER_LENGTH};
use trust::SecretKey;

/// What this side says of itself in every handshake.
pub struct Me {
    /// Signs.
    pub key: SecretKey,
    /// What it may, as a token's text.
    pub token: String,
    /// Made when the process starts.
    pub static_key: StaticKey,
}

impl Me {
    /// Bytes of message 2, which carries the token.
    pub fn answer_length(&self) -> usize {
        let keys = EPHEMERAL_LENGTH + 32 + TAG_LENGTH;
        HEADER_LENGTH + keys + 4 + 32 + 64 + self.token.len() + TAG_LENGTH
    }
}

/// Why a message was not believed. Its sender's fault, or that of somebody on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not of this handshake, or changed.
    Forged,
    /// Of this handshake, but its sender is not who he says.
    Identity,
}

/// Who asks.
pub struct Initiator {
    noise: Noise,
    question: Vec<u8>,
}

impl Initiator {
    pub fn new(me: &Me, id: AssociationId, random: &mut Random) -> Self {
        let mut noise = Noise::initiator(&me.static_key, &Secret::draw(random));
        let question = noise.write(&wire::initiation_payload(id));
        let question = question.expect("message 1 computes nothing with a key of the other side");
        Self { noise, question }
    }

    /// Message 1 of Noise.
    pub fn question(&self) -> &[u8] {
        &self.question
    }

    /// Whether this is the key that it asked with.
    pub fn has_asked(&self, ephemeral: &[u8; EPHEMERAL_LENGTH]) -> bool {
        self.question.starts_with(ephemeral)
    }

    /// Who answers. After a failure the right answer can still come.
    pub fn read_answer(&mut self, noise: &[u8]) -> Result<(AssociationId, Identity), Failure> {
        let before = self.noise.hash();
        let payload = self.noise.read(noise).map_err(|_| Failure::Forged)?;
        // The responder signs what was said before its own message.
        let peer = self.noise.peer().ok_or(Failure::Forged)?;
        let (id, rest) = identity::split_id(&payload).map_err(|_| Failure::Identity)?;
        let identity = identity::read(Place::Answer, &before, &peer, rest);
        Ok((id, identity.map_err(|_| Failure::Identity)?))
    }

    /// Message 3 of Noise, and what is left.
    pub fn finish(mut self, me: &Me) -> Result<(Vec<u8>, Roots), Failure> {
        let payload = me.identity(Place::Finish, &self.noise);
        let finish = self.noise.write(&payload).map_err(|_| Failure::Forged)?;
        let (ours, theirs) = self.noise.split();
        Ok((finish, Roots { ours, theirs }))
    }
}

impl Me {
    fn identity(&self, place: Place, noise: &Noise) -> Vec<u8> {
        identity::write(place, noise, self.static_key.public(), &self.key, &self.token)
    }
}

/// Who answers.
pub struct Responder {
    noise: Noise,
    peer: AssociationId,
}

impl Responder {
    /// Reads message 1 of Noise and writes message 2.
    pub fn new(
        me: &Me,
        id: AssociationId,
        question: &[u8],
        random: &mut Random,
    ) -> Result<(Self, Vec<u8>), Failure> {
        let mut noise = Noise::responder(&me.static_key, &Secret::draw(random));
        let payload = noise.read(question).map_err(|_| Failure::Forged)?;
        let peer = wire::initiator_of(&payload).ok_or(Failure::Forged)?;
        let mut payload = id.to_bytes().to_vec();
        payload.extend_from_slice(&me.identity(Place::Answer, &noise));
        let answer = noise.write(&payload).map_err(|_| Failure::Forged)?;
        Ok((Self { noise, peer }, answer))
    }

    /// How the initiator is called in what goes to it.
    pub fn peer(&self) -> AssociationId {
        self.peer
    }

    /// Who asked. After a failure the right message can still come, unless what failed was that
    /// one with its end changed.
    pub fn read_finish(&mut self, noise: &[u8]) -> Result<Identity, Failure> {
        let before = self.noise.hash();
        let payload = self.noise.read(noise).map_err(|_| Failure::Forged)?;
        let peer = self.noise.peer().ok_or(Failure::Forged)?;
        let identity = identity::read(Place::Finish, &before, &peer, &payload);
        identity.map_err(|_| Failure::Identity)
    }

    /// What is left.
    pub fn split(self) -> Roots {
        let (theirs, ours) = self.noise.split();
        Roots { ours, theirs }
    }
}
