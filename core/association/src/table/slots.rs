//! Entries by their numbers: handshakes and associations, when each is looked at, and their counts.

use super::{
    ASSOCIATIONS_PER_PRINCIPAL_MAX, Counts, Effect, Established, LIFETIME_MAX, Peer, Reason,
};
use crate::Random;
use crate::handshake::{Initiator, Responder};
use crate::identity::Identity;
use crate::load::{Places, Prefixes};
use crate::secret::{MAC_LENGTH, Secret, TAG_LENGTH};
use crate::traffic::{Roots, Traffic};
use crate::wire::{self, AssociationId, EPHEMERAL_LENGTH};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use trust::PublicKey;
use units::Nanos;

/// A handshake that this side has begun.
pub(super) struct Asking {
    pub(super) peer: Peer,
    pub(super) replaces: Option<AssociationId>,
    pub(super) give_up: Nanos,
    pub(super) tries: u32,
    pub(super) forged: u32,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    /// Message 1 is on its way.
    Asked { initiator: Initiator, cookies: u32 },
    /// Message 2 has come, message 3 is on its way.
    Met { finish: Vec<u8>, sent: u32, met: Box<Met> },
}

/// Result of a handshake: what both sides have agreed on.
pub(super) struct Met {
    pub(super) peer_id: AssociationId,
    pub(super) identity: Identity,
    pub(super) roots: Roots,
}

/// A handshake that somebody else has begun.
pub(super) struct HalfOpen {
    pub(super) from: SocketAddr,
    pub(super) question: [u8; EPHEMERAL_LENGTH],
    pub(super) is_proven: bool,
    pub(super) forged: u32,
    pub(super) responder: Responder,
}

/// A new association, before its keys are given away.
pub(super) struct New {
    pub(super) address: SocketAddr,
    pub(super) met: Met,
    pub(super) replaces: Option<AssociationId>,
    pub(super) renew: Option<Nanos>,
    pub(super) confirm: Option<([u8; TAG_LENGTH], [u8; MAC_LENGTH])>,
}

/// An association.
pub(super) struct Live {
    pub(super) address: SocketAddr,
    pub(super) principal: PublicKey,
    pub(super) peer_id: AssociationId,
    pub(super) since: Nanos,
    pub(super) until: Nanos,
    /// Time at which the successor is asked for, if this side asked for this association.
    pub(super) renew: Option<Nanos>,
    /// Tag and answer of message 3, in case that it comes again.
    pub(super) confirm: Option<([u8; TAG_LENGTH], [u8; MAC_LENGTH])>,
    pub(super) end_ours: Secret,
    pub(super) end_theirs: Secret,
}

pub(super) enum Entry {
    Asking(Box<Asking>),
    HalfOpen(Box<HalfOpen>),
    Live(Box<Live>),
}

struct Slot {
    deadline: Nanos,
    entry: Entry,
}

/// Entries of a node, by their numbers.
#[derive(Default)]
pub(super) struct Slots {
    slots: BTreeMap<AssociationId, Slot>,
    deadlines: BTreeSet<(Nanos, AssociationId)>,
    /// The questions of half-open handshakes: the network may bring each twice.
    questions: BTreeSet<(SocketAddr, [u8; EPHEMERAL_LENGTH])>,
    prefixes: Prefixes,
    counts: Counts,
}

impl Slots {
    /// Returns the number of entries of each kind.
    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of entries of an address's prefix.
    pub(super) fn places_of(&self, address: IpAddr) -> Places {
        self.prefixes.of(address)
    }

    /// Returns true when a half-open handshake has this question.
    pub(super) fn has_question(
        &self,
        from: SocketAddr,
        ephemeral: &[u8; EPHEMERAL_LENGTH],
    ) -> bool {
        self.questions.contains(&(from, *ephemeral))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (AssociationId, &Entry)> {
        self.slots.iter().map(|(id, slot)| (*id, &slot.entry))
    }

    pub(super) fn get(&self, id: AssociationId) -> Option<&Entry> {
        self.slots.get(&id).map(|slot| &slot.entry)
    }

    pub(super) fn get_mut(&mut self, id: AssociationId) -> Option<&mut Entry> {
        self.slots.get_mut(&id).map(|slot| &mut slot.entry)
    }

    /// Returns when the next entry is to be looked at.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Takes out an entry that is to be looked at now.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(AssociationId, Entry)> {
        let id = self.deadlines.first().filter(|(at, _)| *at <= now)?.1;
        self.remove(id).map(|entry| (id, entry))
    }

    /// The handshake of this number, if it is with whoever sends from there.
    pub(super) fn asking(&mut self, id: AssociationId, from: SocketAddr) -> Option<&mut Asking> {
        match &mut self.slots.get_mut(&id)?.entry {
            Entry::Asking(asking) if asking.peer.address == from => Some(asking),
            _ => None,
        }
    }

    /// A number that nobody has and nobody can guess.
    pub(super) fn free_id(&self, random: &mut Random) -> AssociationId {
        loop {
            let mut number = [0; 4];
            random(&mut number);
            match AssociationId::new(u32::from_be_bytes(number)) {
                Some(id) if !self.slots.contains_key(&id) => return id,
                // One in 700,000, with all places taken.
                _ => {}
            }
        }
    }

    /// Puts an entry in, to be looked at by then.
    pub(super) fn insert(&mut self, id: AssociationId, deadline: Nanos, entry: Entry) {
        self.count(&entry, |count| *count += 1);
        if let Entry::HalfOpen(half) = &entry {
            self.questions.insert((half.from, half.question));
        }
        self.deadlines.insert((deadline, id));
        let before = self.slots.insert(id, Slot { deadline, entry });
        debug_assert!(before.is_none(), "{id} is used twice");
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, id: AssociationId) -> Option<Entry> {
        self.take(id).map(|slot| slot.entry)
    }

    fn take(&mut self, id: AssociationId) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        self.deadlines.remove(&(slot.deadline, id));
        if let Entry::HalfOpen(half) = &slot.entry {
            self.questions.remove(&(half.from, half.question));
        }
        self.count(&slot.entry, |count| *count -= 1);
        Some(slot)
    }

    /// Ends an association, or an attempt to get one, and tells the other side.
    pub(super) fn end(&mut self, id: AssociationId) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self.remove(id) {
            Some(Entry::Live(live)) => {
                effects.push(live.end());
                effects.push(Effect::Ended { id, reason: Reason::Here });
            }
            Some(Entry::Asking(_)) => effects.push(Effect::Ended { id, reason: Reason::Here }),
            Some(Entry::HalfOpen(_)) | None => {}
        }
        effects
    }

    /// Retires an association that has a successor: it is not renewed again.
    pub(super) fn retire(&mut self, old: AssociationId) {
        if !matches!(self.slots.get(&old).map(|slot| &slot.entry), Some(Entry::Live(_))) {
            return;
        }
        if let Some(mut slot) = self.take(old) {
            if let Entry::Live(live) = &mut slot.entry {
                live.renew = live.renew.map(|_| live.until);
                slot.deadline = live.deadline();
            }
            self.insert(old, slot.deadline, slot.entry);
        }
    }

    /// Notes an association, and gives its keys away.
    pub(super) fn establish(&mut self, now: Nanos, id: AssociationId, new: New) -> Vec<Effect> {
        let New { address, met, replaces, renew, confirm } = new;
        let Met { peer_id, identity, roots } = met;
        let Identity { principal, token } = identity;
        let until = now + LIFETIME_MAX;
        let is_ours = renew.is_some();
        let mut effects = self.make_room(principal);
        let live = Live {
            address,
            principal,
            peer_id,
            since: now,
            until,
            renew,
            confirm,
            end_ours: roots.ours.derive("end"),
            end_theirs: roots.theirs.derive("end"),
        };
        self.insert(id, live.deadline(), Entry::Live(Box::new(live)));
        let traffic = Traffic::new((id, peer_id), principal, until, &roots);
        let established = Established { id, address, principal, token, is_ours, replaces, traffic };
        effects.push(Effect::Established(Box::new(established)));
        effects
    }

    /// Ends the oldest association of a principal that has many.
    fn make_room(&mut self, principal: PublicKey) -> Vec<Effect> {
        let theirs = self.slots.iter().filter_map(|(id, slot)| match &slot.entry {
            Entry::Live(live) if live.principal == principal => Some((live.since, *id)),
            _ => None,
        });
        let theirs: BTreeSet<(Nanos, AssociationId)> = theirs.collect();
        if theirs.len() < ASSOCIATIONS_PER_PRINCIPAL_MAX {
            return Vec::new();
        }
        let Some((_, oldest)) = theirs.first() else { return Vec::new() };
        let mut effects = self.end(*oldest);
        for effect in &mut effects {
            if let Effect::Ended { reason, .. } = effect {
                *reason = Reason::Crowded;
            }
        }
        effects
    }

    /// Counts an entry in the totals and in those of its prefix.
    fn count(&mut self, entry: &Entry, change: fn(&mut usize)) {
        let counts = &mut self.counts;
        match entry {
            Entry::Asking(_) => change(&mut counts.asking),
            Entry::HalfOpen(half) => {
                change(&mut counts.half_open);
                let of_prefix = |places: &mut Places| change(&mut places.half_open);
                self.prefixes.change(half.from.ip(), of_prefix);
                if !half.is_proven {
                    change(&mut counts.unproven);
                    let of_prefix = |places: &mut Places| change(&mut places.unproven);
                    self.prefixes.change(half.from.ip(), of_prefix);
                }
            }
            Entry::Live(live) => {
                change(&mut counts.live);
                if live.renew.is_none() {
                    let of_prefix = |places: &mut Places| change(&mut places.associations);
                    self.prefixes.change(live.address.ip(), of_prefix);
                }
            }
        }
    }
}

impl Live {
    pub(super) fn deadline(&self) -> Nanos {
        self.renew.map_or(self.until, |renew| renew.min(self.until))
    }

    /// Tells the other side that the association ends.
    fn end(&self) -> Effect {
        let mac = self.end_ours.mac(&self.peer_id.to_bytes());
        Effect::Send { to: self.address, datagram: wire::write_end(self.peer_id, &mac) }
    }
}
