//! Initiator's side: sends message 1, again with a cookie if required; answers message 2 with
//! message 3, which is repeated until it is confirmed.

use super::slots::{Agreement, Entry, Initiated, New, Slots, Stage};
use super::{
    ASSOCIATIONS_MAX, ATTEMPT_TIME_MAX, AssociationError, COOKIES_MAX, Effect, FINISHES_MAX,
    FORGED_MAX, Handled, INITIATED_MAX, Peer, RENEW_AFTER, RENEW_SPREAD, RETRY_FIRST, RETRY_MAX,
    Reason, Refusal, canonical, refuse,
};
use crate::Random;
use crate::flood::{Bucket, Work};
use crate::handshake::{Initiator, LocalIdentity};
use crate::identity::Identity;
use crate::secret::MAC_LENGTH;
use crate::wire::{self, AssociationId, COOKIE_LENGTH, EPHEMERAL_LENGTH};
use std::net::SocketAddr;
use units::Nanos;

/// View of the table for the initiator's side.
pub(super) struct InitiatorSide<'t> {
    pub(super) local: &'t LocalIdentity,
    pub(super) slots: &'t mut Slots,
    pub(super) bucket: &'t mut Bucket,
}

impl InitiatorSide<'_> {
    /// Renews an association; see [`Associations::renew`](super::Associations::renew).
    pub(super) fn renew(
        &mut self,
        now: Nanos,
        id: AssociationId,
        random: &mut Random,
    ) -> Result<Vec<Effect>, AssociationError> {
        let is_renewal = |entry: &Entry| match entry {
            Entry::Initiated(initiated) => initiated.replaces == Some(id),
            _ => false,
        };
        if self.slots.entries().any(|(_, entry)| is_renewal(entry)) {
            return Ok(Vec::new());
        }
        let Some(Entry::Live(live)) = self.slots.get(id) else {
            return Ok(Vec::new());
        };
        let peer = Peer { address: live.address, principal: Some(live.principal) };
        self.start(now, peer, Some(id), random).map(|(_, effects)| effects)
    }

    pub(super) fn start(
        &mut self,
        now: Nanos,
        peer: Peer,
        replaces: Option<AssociationId>,
        random: &mut Random,
    ) -> Result<(AssociationId, Vec<Effect>), AssociationError> {
        if self.slots.counts().initiated >= INITIATED_MAX {
            return Err(AssociationError::Busy);
        }
        if replaces.is_none() && self.slots.counts().live >= ASSOCIATIONS_MAX {
            return Err(AssociationError::Full);
        }
        let id = self.slots.free_id(random);
        let peer = Peer { address: canonical(peer.address), ..peer };
        let (stage, message) = self.first_message(peer, id, random);
        let give_up = now + ATTEMPT_TIME_MAX;
        let initiated = Initiated { peer, replaces, give_up, tries: 0, forged: 0, stage };
        self.slots.insert(id, now + RETRY_FIRST, Entry::Initiated(Box::new(initiated)));
        Ok((id, vec![message]))
    }

    /// Makes a new message 1. Ephemeral keys are never reused.
    fn first_message(&self, peer: Peer, id: AssociationId, random: &mut Random) -> (Stage, Effect) {
        let initiator = Initiator::new(self.local, id, random);
        let datagram = wire::write_initiation(&[0; COOKIE_LENGTH], initiator.message());
        let stage = Stage::AwaitAnswer { initiator, cookies: 0 };
        (stage, Effect::Send { to: peer.address, datagram })
    }

    /// Handles a handshake that was not answered in time: retries or gives up.
    pub(super) fn retry(
        &mut self,
        now: Nanos,
        id: AssociationId,
        mut initiated: Initiated,
        random: &mut Random,
        effects: &mut Vec<Effect>,
    ) {
        if now >= initiated.give_up {
            if initiated.replaces.is_none() {
                effects.push(Effect::Ended { id, reason: Reason::NoAnswer });
            }
            return;
        }
        initiated.tries += 1;
        initiated.forged = 0;
        match &mut initiated.stage {
            Stage::AwaitConfirm { finish, sent, .. } if *sent < FINISHES_MAX => {
                *sent += 1;
                let (to, datagram) = (initiated.peer.address, finish.clone());
                effects.push(Effect::Send { to, datagram });
            }
            Stage::AwaitConfirm { .. } | Stage::AwaitAnswer { .. } => {
                let (stage, message) = self.first_message(initiated.peer, id, random);
                initiated.stage = stage;
                effects.push(message);
            }
        }
        let wait = Nanos(RETRY_FIRST.0 << initiated.tries.min(8)).min(RETRY_MAX);
        let next = (now + wait).min(initiated.give_up);
        self.slots.insert(id, next, Entry::Initiated(Box::new(initiated)));
    }

    /// Handles the responder's request to prove the source address by a cookie.
    pub(super) fn cookie(
        &mut self,
        from: SocketAddr,
        id: AssociationId,
        cookie: &[u8; COOKIE_LENGTH],
        ephemeral: &[u8; EPHEMERAL_LENGTH],
    ) -> Handled {
        let Some(initiated) = self.slots.initiated(id, from) else {
            return refuse(Refusal::Unexpected);
        };
        let Stage::AwaitAnswer { initiator, cookies } = &mut initiated.stage else {
            return refuse(Refusal::Unexpected);
        };
        if !initiator.has_ephemeral(ephemeral) || *cookies >= COOKIES_MAX {
            return refuse(Refusal::Unexpected);
        }
        *cookies += 1;
        let datagram = wire::write_initiation(cookie, initiator.message());
        Ok(vec![Effect::Send { to: from, datagram }])
    }

    pub(super) fn answer(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        id: AssociationId,
        noise: &[u8],
    ) -> Handled {
        let may_compute = match self.slots.initiated(id, from) {
            Some(Initiated { forged, stage: Stage::AwaitAnswer { .. }, .. }) => {
                *forged < FORGED_MAX
            }
            _ => return refuse(Refusal::Unexpected),
        };
        if !may_compute || !self.bucket.take(now, Work::Answer) {
            return refuse(Refusal::BudgetSpent);
        }
        let Some(Initiated { peer, forged, stage: Stage::AwaitAnswer { initiator, .. }, .. }) =
            self.slots.initiated(id, from)
        else {
            return refuse(Refusal::Unexpected);
        };
        let Ok((peer_id, identity)) = initiator.read_answer(noise) else {
            *forged += 1;
            return refuse(Refusal::Forged);
        };
        let is_other = peer.principal.is_some_and(|principal| principal != identity.principal);
        self.on_identity(now, id, peer_id, identity, is_other)
    }

    /// Sends message 3, unless a principal other than the requested one has answered.
    fn on_identity(
        &mut self,
        now: Nanos,
        id: AssociationId,
        peer_id: AssociationId,
        identity: Identity,
        is_other: bool,
    ) -> Handled {
        let Some(Entry::Initiated(initiated)) = self.slots.remove(id) else {
            return refuse(Refusal::Unexpected);
        };
        let Initiated { peer, replaces, give_up, stage, .. } = *initiated;
        if is_other {
            let reason = Reason::OtherPrincipal(identity.principal);
            let ended = replaces.is_none().then_some(Effect::Ended { id, reason });
            return Ok(ended.into_iter().collect());
        }
        let Stage::AwaitAnswer { initiator, .. } = stage else {
            return refuse(Refusal::Unexpected);
        };
        // Fails if the other side's ephemeral key is of small order: that side is broken.
        let Ok((noise, roots)) = initiator.finish(self.local) else {
            let ended = Effect::Ended { id, reason: Reason::NoAnswer };
            return Err((
                Refusal::Forged,
                replaces.is_none().then_some(ended).into_iter().collect(),
            ));
        };
        let finish = wire::write_finish(peer_id, &noise);
        let send = Effect::Send { to: peer.address, datagram: finish.clone() };
        let agreement = Box::new(Agreement { peer_id, identity, roots });
        let stage = Stage::AwaitConfirm { finish, sent: 1, agreement };
        let initiated = Initiated { peer, replaces, give_up, tries: 0, forged: 0, stage };
        self.slots.insert(
            id,
            (now + RETRY_FIRST).min(give_up),
            Entry::Initiated(Box::new(initiated)),
        );
        Ok(vec![send])
    }

    /// Handles the confirmation of message 3: the association is established.
    pub(super) fn confirm(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        id: AssociationId,
        mac: &[u8; MAC_LENGTH],
        random: &mut Random,
    ) -> Handled {
        let Some(Initiated { stage: Stage::AwaitConfirm { agreement, .. }, .. }) =
            self.slots.initiated(id, from)
        else {
            return refuse(Refusal::Unexpected);
        };
        if !agreement.roots.theirs.derive("confirm").verify(mac, &id.to_bytes()) {
            return refuse(Refusal::Forged);
        }
        let Some(Entry::Initiated(initiated)) = self.slots.remove(id) else {
            return refuse(Refusal::Unexpected);
        };
        let Initiated { peer, replaces, stage: Stage::AwaitConfirm { agreement, .. }, .. } =
            *initiated
        else {
            return refuse(Refusal::Unexpected);
        };
        let mut spread = [0; 8];
        random(&mut spread);
        let spread = Nanos(u64::from_le_bytes(spread) % RENEW_SPREAD.0);
        let renew = Some((now + RENEW_AFTER).saturating_sub(spread));
        let new =
            New { address: peer.address, agreement: *agreement, replaces, renew, confirm: None };
        if let Some(old) = replaces {
            self.slots.retire(old);
        }
        Ok(self.slots.establish(now, id, new))
    }
}
