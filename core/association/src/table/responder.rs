//! Responder's side: answers message 1 with a cookie or message 2; message 3 makes an association.

use super::slots::{Agreement, Entry, HalfOpen, New, Slots};
use super::{
    ASSOCIATIONS_MAX, Effect, FORGED_MAX, HALF_OPEN_MAX, HALF_OPEN_TIME, Handled, Refusal,
    UNPROVEN_MAX, refuse,
};
use crate::Random;
use crate::cookie::Cookies;
use crate::flood::{
    ASSOCIATIONS_PER_PREFIX_MAX, Bucket, HALF_OPEN_PER_PREFIX_MAX, PrefixCounts,
    UNPROVEN_PER_PREFIX_MAX, Work,
};
use crate::handshake::{LocalIdentity, Responder};
use crate::secret::TAG_LENGTH;
use crate::wire::{self, AssociationId, COOKIE_LENGTH, EPHEMERAL_LENGTH, INITIATION_LENGTH};
use std::net::SocketAddr;
use units::Nanos;

/// Message 1 with its source address.
pub(super) struct Initiation<'d> {
    pub from: SocketAddr,
    pub cookie: &'d [u8; COOKIE_LENGTH],
    pub ephemeral: &'d [u8; EPHEMERAL_LENGTH],
    pub noise: &'d [u8],
}

/// Decision about an initiator before any computation.
enum Screening {
    /// The handshake proceeds; `is_proven` if the source address is proven.
    Accepted { is_proven: bool },
    /// The source address has to be proven by a cookie.
    Unproven,
    /// The handshake is refused.
    Refused(Refusal),
}

/// View of the table for the responder's side.
pub(super) struct ResponderSide<'t> {
    pub(super) local: &'t LocalIdentity,
    pub(super) slots: &'t mut Slots,
    pub(super) bucket: &'t mut Bucket,
    pub(super) cookies: &'t Cookies,
}

impl ResponderSide<'_> {
    pub(super) fn initiation(
        &mut self,
        now: Nanos,
        initiation: &Initiation<'_>,
        random: &mut Random,
    ) -> Handled {
        let is_proven = match self.screen(now, initiation) {
            Screening::Accepted { is_proven } => is_proven,
            Screening::Unproven => return self.require_cookie(initiation),
            Screening::Refused(refusal) => return refuse(refusal),
        };
        if !self.bucket.take(now, Work::Initiation) {
            return refuse(Refusal::BudgetSpent);
        }
        let id = self.slots.free_id(random);
        let Ok((responder, answer)) = Responder::new(self.local, id, initiation.noise, random)
        else {
            return refuse(Refusal::Forged);
        };
        let Initiation { from, ephemeral, .. } = *initiation;
        let datagram = wire::write_answer(responder.peer(), &answer);
        let half = HalfOpen { from, ephemeral: *ephemeral, is_proven, forged: 0, responder };
        self.slots.insert(id, now + HALF_OPEN_TIME, Entry::HalfOpen(Box::new(half)));
        Ok(vec![Effect::Send { to: from, datagram }])
    }

    /// Decides whether to compute anything for this initiator. Costs two keyed hashes at most.
    fn screen(&mut self, now: Nanos, initiation: &Initiation<'_>) -> Screening {
        let &Initiation { from, cookie, ephemeral, .. } = initiation;
        if self.slots.has_ephemeral(from, ephemeral) {
            return Screening::Refused(Refusal::Duplicate);
        }
        let has_cookie = *cookie != [0; COOKIE_LENGTH];
        let is_proven = has_cookie && self.cookies.verify(cookie, from, ephemeral);
        let counts = self.slots.prefix_counts(from.ip());
        if !is_proven && (has_cookie || self.needs_proof(now, counts)) {
            return Screening::Unproven;
        }
        if counts.half_open >= HALF_OPEN_PER_PREFIX_MAX
            || counts.associations >= ASSOCIATIONS_PER_PREFIX_MAX
        {
            return Screening::Refused(Refusal::PrefixFull);
        }
        if self.slots.counts().half_open >= HALF_OPEN_MAX
            || self.slots.counts().live >= ASSOCIATIONS_MAX
        {
            return Screening::Refused(Refusal::Full);
        }
        Screening::Accepted { is_proven }
    }

    /// Returns true if the source address has to be proven: when many handshakes are unproven, when
    /// little of the budget is left, or when message 2 would be longer than message 1.
    fn needs_proof(&mut self, now: Nanos, counts: PrefixCounts) -> bool {
        self.slots.counts().unproven >= UNPROVEN_MAX
            || counts.unproven >= UNPROVEN_PER_PREFIX_MAX
            || self.local.answer_length() > INITIATION_LENGTH
            || self.bucket.is_low(now)
    }

    fn require_cookie(&self, initiation: &Initiation<'_>) -> Handled {
        let &Initiation { from, ephemeral, noise, .. } = initiation;
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
    ) -> Handled {
        let tag = *noise.last_chunk::<TAG_LENGTH>().unwrap_or(&[0; TAG_LENGTH]);
        let half = match self.slots.get_mut(id) {
            Some(Entry::HalfOpen(half)) if half.from == from => half,
            Some(Entry::Live(live)) if live.address == from => {
                // The confirmation of message 3 was lost.
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
        let agreement = Agreement { peer_id, identity, roots };
        let confirm = Some((tag, mac));
        let new = New { address: from, agreement, replaces: None, renew: None, confirm };
        effects.extend(self.slots.establish(now, id, new));
        Ok(effects)
    }
}
