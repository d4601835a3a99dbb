//! The side that answers: message 1 in, a cookie or message 2 out; message 3 in, an association.

use super::slots::{Entry, HalfOpen, Met, New, Slots};
use super::{
    ASSOCIATIONS_MAX, Effect, FORGED_MAX, HALF_OPEN_MAX, HALF_OPEN_TIME, Refusal, Taken,
    UNPROVEN_MAX, refuse,
};
use crate::Random;
use crate::cookie::Cookies;
use crate::handshake::{Me, Responder};
use crate::load::{
    ASSOCIATIONS_PER_PREFIX_MAX, Bucket, HALF_OPEN_PER_PREFIX_MAX, Places, UNPROVEN_PER_PREFIX_MAX,
    Work,
};
use crate::secret::TAG_LENGTH;
use crate::wire::{self, AssociationId, COOKIE_LENGTH, EPHEMERAL_LENGTH, INITIATION_LENGTH};
use std::net::SocketAddr;
use units::Nanos;

/// Message 1.
pub(super) struct Question<'d> {
    pub from: SocketAddr,
    pub cookie: &'d [u8; COOKIE_LENGTH],
    pub ephemeral: &'d [u8; EPHEMERAL_LENGTH],
    pub noise: &'d [u8],
}

/// How an asker stands.
enum Standing {
    /// He receives where he sends from, or nothing depends on it now.
    Welcome { is_proven: bool },
    /// He has to show it.
    Unproven,
    /// No.
    Refused(Refusal),
}

/// The side that answers.
pub(super) struct Answering<'t> {
    pub(super) me: &'t Me,
    pub(super) slots: &'t mut Slots,
    pub(super) bucket: &'t mut Bucket,
    pub(super) cookies: &'t Cookies,
}

impl Answering<'_> {
    pub(super) fn initiation(
        &mut self,
        now: Nanos,
        question: &Question<'_>,
        random: &mut Random,
    ) -> Taken {
        let is_proven = match self.standing(now, question) {
            Standing::Welcome { is_proven } => is_proven,
            Standing::Unproven => return self.ask_for_cookie(question),
            Standing::Refused(refusal) => return refuse(refusal),
        };
        if !self.bucket.take(now, Work::Initiation) {
            return refuse(Refusal::BudgetSpent);
        }
        let id = self.slots.free_id(random);
        let Ok((responder, answer)) = Responder::new(self.me, id, question.noise, random) else {
            return refuse(Refusal::Forged);
        };
        let Question { from, ephemeral, .. } = *question;
        let datagram = wire::write_answer(responder.peer(), &answer);
        let half = HalfOpen { from, question: *ephemeral, is_proven, forged: 0, responder };
        self.slots.insert(id, now + HALF_OPEN_TIME, Entry::HalfOpen(Box::new(half)));
        Ok(vec![Effect::Send { to: from, datagram }])
    }

    /// Whether to compute anything for him. All of this costs two keyed hashes at most.
    fn standing(&mut self, now: Nanos, question: &Question<'_>) -> Standing {
        let &Question { from, cookie, ephemeral, .. } = question;
        if self.slots.has_question(from, ephemeral) {
            return Standing::Refused(Refusal::Duplicate);
        }
        let has_cookie = *cookie != [0; COOKIE_LENGTH];
        let is_proven = has_cookie && self.cookies.has_made(cookie, from, ephemeral);
        let places = self.slots.places_of(from.ip());
        if !is_proven && (has_cookie || self.needs_proof(now, places)) {
            return Standing::Unproven;
        }
        if places.half_open >= HALF_OPEN_PER_PREFIX_MAX
            || places.associations >= ASSOCIATIONS_PER_PREFIX_MAX
        {
            return Standing::Refused(Refusal::PrefixFull);
        }
        if self.slots.counts().half_open >= HALF_OPEN_MAX
            || self.slots.counts().live >= ASSOCIATIONS_MAX
        {
            return Standing::Refused(Refusal::Full);
        }
        Standing::Welcome { is_proven }
    }

    /// Whether whoever asks has to show that he receives where he sends from: when there are
    /// many who have not, when little of the budget is left, or when the answer is longer than
    /// the question.
    fn needs_proof(&mut self, now: Nanos, places: Places) -> bool {
        self.slots.counts().unproven >= UNPROVEN_MAX
            || places.unproven >= UNPROVEN_PER_PREFIX_MAX
            || self.me.answer_length() > INITIATION_LENGTH
            || self.bucket.is_low(now)
    }

    fn ask_for_cookie(&self, question: &Question<'_>) -> Taken {
        let &Question { from, ephemeral, noise, .. } = question;
        let Some(to) = wire::initiator_of(&noise[EPHEMERAL_LENGTH..]) else {
            return refuse(Refusal::Malformed);
        };
        let cookie = self.cookies.make(from, ephemeral);
        let datagram = wire::write_cookie(to, &cookie, ephemeral);
        Err((Refusal::CookieNeeded, vec![Effect::Send { to: from, datagram }]))
    }

    pub(super) fn finish(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        id: AssociationId,
        noise: &[u8],
    ) -> Taken {
        let tag = *noise.last_chunk::<TAG_LENGTH>().unwrap_or(&[0; TAG_LENGTH]);
        let half = match self.slots.get_mut(id) {
            Some(Entry::HalfOpen(half)) if half.from == from => half,
            Some(Entry::Live(live)) if live.address == from => {
                // The answer to message 3 was lost.
                let Some((of, mac)) = &live.confirm else { return refuse(Refusal::Unexpected) };
                if *of != tag {
                    return refuse(Refusal::Forged);
                }
                let datagram = wire::write_confirm(live.peer_id, mac);
                return Ok(vec![Effect::Send { to: from, datagram }]);
            }
            _ => return refuse(Refusal::Unexpected),
        };
        if !self.bucket.take(now, Work::Finish) {
            return refuse(Refusal::BudgetSpent);
        }
        let Ok(identity) = half.responder.read_finish(noise) else {
            half.forged += 1;
            if half.forged >= FORGED_MAX {
                self.slots.remove(id);
            }
            return refuse(Refusal::Forged);
        };
        if self.slots.counts().live >= ASSOCIATIONS_MAX {
            self.slots.remove(id);
            return refuse(Refusal::Full);
        }
        let Some(Entry::HalfOpen(half)) = self.slots.remove(id) else {
            return refuse(Refusal::Unexpected);
        };
        let peer_id = half.responder.peer();
        let roots = half.responder.split();
        let mac = roots.ours.derive("confirm").mac(&peer_id.to_bytes());
        let datagram = wire::write_confirm(peer_id, &mac);
        let mut effects = vec![Effect::Send { to: from, datagram }];
        let met = Met { peer_id, identity, roots };
        let confirm = Some((tag, mac));
        let new = New { address: from, met, replaces: None, renew: None, confirm };
        effects.extend(self.slots.establish(now, id, new));
        Ok(effects)
    }
}
