//! The side that asks: message 1 out, again with a cookie; message 2 in, message 3 out, again
//! until it is confirmed; an association.

use super::slots::{Asking, Entry, Met, New, Slots, Stage};
use super::{
    ASK_TIME_MAX, ASKING_MAX, ASSOCIATIONS_MAX, AssociationError, COOKIES_MAX, Effect,
    FINISHES_MAX, FORGED_MAX, Peer, RENEW_AFTER, RENEW_SPREAD, RETRY_FIRST, RETRY_MAX, Reason,
    Refusal, Taken, canonical, refuse,
};
use crate::Random;
use crate::handshake::{Initiator, Me};
use crate::identity::Identity;
use crate::load::{Bucket, Work};
use crate::secret::MAC_LENGTH;
use crate::wire::{self, AssociationId, COOKIE_LENGTH, EPHEMERAL_LENGTH};
use std::net::SocketAddr;
use units::Nanos;

/// The side that asks.
pub(super) struct Asker<'t> {
    pub(super) me: &'t Me,
    pub(super) slots: &'t mut Slots,
    pub(super) bucket: &'t mut Bucket,
}

impl Asker<'_> {
    /// Renews an association, as [`Associations::renew`](super::Associations::renew) says.
    pub(super) fn renew(
        &mut self,
        now: Nanos,
        id: AssociationId,
        random: &mut Random,
    ) -> Result<Vec<Effect>, AssociationError> {
        let is_asked = |entry: &Entry| match entry {
            Entry::Asking(asking) => asking.replaces == Some(id),
            _ => false,
        };
        if self.slots.entries().any(|(_, entry)| is_asked(entry)) {
            return Ok(Vec::new());
        }
        let Some(Entry::Live(live)) = self.slots.get(id) else {
            return Ok(Vec::new());
        };
        let peer = Peer { address: live.address, principal: Some(live.principal) };
        self.ask(now, peer, Some(id), random).map(|(_, effects)| effects)
    }

    pub(super) fn ask(
        &mut self,
        now: Nanos,
        peer: Peer,
        replaces: Option<AssociationId>,
        random: &mut Random,
    ) -> Result<(AssociationId, Vec<Effect>), AssociationError> {
        if self.slots.counts().asking >= ASKING_MAX {
            return Err(AssociationError::Busy);
        }
        if replaces.is_none() && self.slots.counts().live >= ASSOCIATIONS_MAX {
            return Err(AssociationError::Full);
        }
        let id = self.slots.free_id(random);
        let peer = Peer { address: canonical(peer.address), ..peer };
        let (stage, question) = self.question(peer, id, random);
        let give_up = now + ASK_TIME_MAX;
        let asking = Asking { peer, replaces, give_up, tries: 0, forged: 0, stage };
        self.slots.insert(id, now + RETRY_FIRST, Entry::Asking(Box::new(asking)));
        Ok((id, vec![question]))
    }

    /// A new message 1: no key of an earlier one is used again.
    fn question(&self, peer: Peer, id: AssociationId, random: &mut Random) -> (Stage, Effect) {
        let initiator = Initiator::new(self.me, id, random);
        let datagram = wire::write_initiation(&[0; COOKIE_LENGTH], initiator.question());
        let stage = Stage::Asked { initiator, cookies: 0 };
        (stage, Effect::Send { to: peer.address, datagram })
    }

    /// Nobody has answered in time.
    pub(super) fn ask_again(
        &mut self,
        now: Nanos,
        id: AssociationId,
        mut asking: Asking,
        random: &mut Random,
        effects: &mut Vec<Effect>,
    ) {
        if now >= asking.give_up {
            if asking.replaces.is_none() {
                effects.push(Effect::Ended { id, reason: Reason::NoAnswer });
            }
            return;
        }
        asking.tries += 1;
        asking.forged = 0;
        match &mut asking.stage {
            Stage::Met { finish, sent, .. } if *sent < FINISHES_MAX => {
                *sent += 1;
                let (to, datagram) = (asking.peer.address, finish.clone());
                effects.push(Effect::Send { to, datagram });
            }
            Stage::Met { .. } | Stage::Asked { .. } => {
                let (stage, question) = self.question(asking.peer, id, random);
                asking.stage = stage;
                effects.push(question);
            }
        }
        let wait = Nanos(RETRY_FIRST.0 << asking.tries.min(8)).min(RETRY_MAX);
        let next = (now + wait).min(asking.give_up);
        self.slots.insert(id, next, Entry::Asking(Box::new(asking)));
    }

    /// Whoever was asked wants to know that this side receives what it sends here.
    pub(super) fn cookie(
        &mut self,
        from: SocketAddr,
        id: AssociationId,
        cookie: &[u8; COOKIE_LENGTH],
        ephemeral: &[u8; EPHEMERAL_LENGTH],
    ) -> Taken {
        let Some(asking) = self.slots.asking(id, from) else { return refuse(Refusal::Unexpected) };
        let Stage::Asked { initiator, cookies } = &mut asking.stage else {
            return refuse(Refusal::Unexpected);
        };
        if !initiator.has_asked(ephemeral) || *cookies >= COOKIES_MAX {
            return refuse(Refusal::Unexpected);
        }
        *cookies += 1;
        let datagram = wire::write_initiation(cookie, initiator.question());
        Ok(vec![Effect::Send { to: from, datagram }])
    }

    pub(super) fn answer(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        id: AssociationId,
        noise: &[u8],
    ) -> Taken {
        let may_compute = match self.slots.asking(id, from) {
            Some(Asking { forged, stage: Stage::Asked { .. }, .. }) => *forged < FORGED_MAX,
            _ => return refuse(Refusal::Unexpected),
        };
        if !may_compute || !self.bucket.take(now, Work::Answer) {
            return refuse(Refusal::BudgetSpent);
        }
        let Some(Asking { peer, forged, stage: Stage::Asked { initiator, .. }, .. }) =
            self.slots.asking(id, from)
        else {
            return refuse(Refusal::Unexpected);
        };
        let Ok((peer_id, identity)) = initiator.read_answer(noise) else {
            *forged += 1;
            return refuse(Refusal::Forged);
        };
        let is_other = peer.principal.is_some_and(|principal| principal != identity.principal);
        self.met(now, id, peer_id, identity, is_other)
    }

    /// Message 3, unless somebody else has answered than was asked for.
    fn met(
        &mut self,
        now: Nanos,
        id: AssociationId,
        peer_id: AssociationId,
        identity: Identity,
        is_other: bool,
    ) -> Taken {
        let Some(Entry::Asking(asking)) = self.slots.remove(id) else {
            return refuse(Refusal::Unexpected);
        };
        let Asking { peer, replaces, give_up, stage, .. } = *asking;
        if is_other {
            let reason = Reason::OtherPrincipal(identity.principal);
            let ended = replaces.is_none().then_some(Effect::Ended { id, reason });
            return Ok(ended.into_iter().collect());
        }
        let Stage::Asked { initiator, .. } = stage else { return refuse(Refusal::Unexpected) };
        // It fails if the other side's ephemeral key is of small order: that side is broken.
        let Ok((noise, roots)) = initiator.finish(self.me) else {
            let ended = Effect::Ended { id, reason: Reason::NoAnswer };
            return Err((
                Refusal::Forged,
                replaces.is_none().then_some(ended).into_iter().collect(),
            ));
        };
        let finish = wire::write_finish(peer_id, &noise);
        let send = Effect::Send { to: peer.address, datagram: finish.clone() };
        let met = Box::new(Met { peer_id, identity, roots });
        let stage = Stage::Met { finish, sent: 1, met };
        let asking = Asking { peer, replaces, give_up, tries: 0, forged: 0, stage };
        self.slots.insert(id, (now + RETRY_FIRST).min(give_up), Entry::Asking(Box::new(asking)));
        Ok(vec![send])
    }

    /// Message 3 has arrived: the association is one.
    pub(super) fn confirm(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        id: AssociationId,
        mac: &[u8; MAC_LENGTH],
        random: &mut Random,
    ) -> Taken {
        let Some(Asking { stage: Stage::Met { met, .. }, .. }) = self.slots.asking(id, from) else {
            return refuse(Refusal::Unexpected);
        };
        if !met.roots.theirs.derive("confirm").has_made(mac, &id.to_bytes()) {
            return refuse(Refusal::Forged);
        }
        let Some(Entry::Asking(asking)) = self.slots.remove(id) else {
            return refuse(Refusal::Unexpected);
        };
        let Asking { peer, replaces, stage: Stage::Met { met, .. }, .. } = *asking else {
            return refuse(Refusal::Unexpected);
        };
        let mut spread = [0; 8];
        random(&mut spread);
        let spread = Nanos(u64::from_le_bytes(spread) % RENEW_SPREAD.0);
        let renew = Some((now + RENEW_AFTER).saturating_sub(spread));
        let new = New { address: peer.address, met: *met, replaces, renew, confirm: None };
        if let Some(old) = replaces {
            self.slots.retire(old);
        }
        Ok(self.slots.establish(now, id, new))
    }
}
