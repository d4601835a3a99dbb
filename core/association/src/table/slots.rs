//! Entries of the table by association id: handshakes and associations, their deadlines, and
//! counts.

use super::{
    ASSOCIATIONS_PER_PRINCIPAL_MAX, Counts, Effect, Established, LIFETIME_MAX, Peer, Reason,
};
use crate::Random;
use crate::flood::{PrefixCounts, Prefixes};
use crate::handshake::{Initiator, Responder};
use crate::identity::Identity;
use crate::secret::{MAC_LENGTH, Secret, TAG_LENGTH};
use crate::traffic::{Roots, Traffic};
use crate::wire::{self, AssociationId, EPHEMERAL_LENGTH};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use trust::PublicKey;
use units::Nanos;

/// Handshake that this node has begun.
pub(super) struct Initiated {
    pub(super) peer: Peer,
    pub(super) replaces: Option<AssociationId>,
    pub(super) give_up: Nanos,
    pub(super) tries: u32,
    pub(super) forged: u32,
    pub(super) stage: Stage,
}

pub(super) enum Stage {
    /// Message 1 has been sent.
    AwaitAnswer { initiator: Initiator, cookies: u32 },
    /// Message 2 has been received, message 3 has been sent.
    AwaitConfirm { finish: Vec<u8>, sent: u32, agreement: Box<Agreement> },
}

/// Result of a handshake: what both sides have agreed on.
pub(super) struct Agreement {
    pub(super) peer_id: AssociationId,
    pub(super) identity: Identity,
    pub(super) roots: Roots,
}

/// Handshake that another node has begun.
pub(super) struct HalfOpen {
    pub(super) from: SocketAddr,
    pub(super) ephemeral: [u8; EPHEMERAL_LENGTH],
    pub(super) is_proven: bool,
    pub(super) forged: u32,
    pub(super) responder: Responder,
}

/// New association, before its keys are handed out.
pub(super) struct New {
    pub(super) address: SocketAddr,
    pub(super) agreement: Agreement,
    pub(super) replaces: Option<AssociationId>,
    pub(super) renew: Option<Nanos>,
    pub(super) confirm: Option<([u8; TAG_LENGTH], [u8; MAC_LENGTH])>,
}

/// Established association.
pub(super) struct Live {
    pub(super) address: SocketAddr,
    pub(super) principal: PublicKey,
    pub(super) peer_id: AssociationId,
    pub(super) since: Nanos,
    pub(super) until: Nanos,
    /// Time at which the handshake for the successor starts; `None` on the responder's side.
    pub(super) renew: Option<Nanos>,
    /// Tag and answer of message 3, in case that it is repeated.
    pub(super) confirm: Option<([u8; TAG_LENGTH], [u8; MAC_LENGTH])>,
    pub(super) end_ours: Secret,
    pub(super) end_theirs: Secret,
}

pub(super) enum Entry {
    Initiated(Box<Initiated>),
    HalfOpen(Box<HalfOpen>),
    Live(Box<Live>),
}

struct Slot {
    deadline: Nanos,
    entry: Entry,
}

/// Entries of a node by association id.
#[derive(Default)]
pub(super) struct Slots {
    slots: BTreeMap<AssociationId, Slot>,
    deadlines: BTreeSet<(Nanos, AssociationId)>,
    /// Ephemeral keys of half-open handshakes, to detect duplicated messages 1.
    ephemerals: BTreeSet<(SocketAddr, [u8; EPHEMERAL_LENGTH])>,
    prefixes: Prefixes,
    counts: Counts,
}

impl Slots {
    /// Returns the number of entries of each kind.
    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of entries of an address's prefix.
    pub(super) fn prefix_counts(&self, address: IpAddr) -> PrefixCounts {
        self.prefixes.of(address)
    }

    /// Returns true if a half-open handshake has this ephemeral key.
    pub(super) fn has_ephemeral(
        &self,
        from: SocketAddr,
        ephemeral: &[u8; EPHEMERAL_LENGTH],
    ) -> bool {
        self.ephemerals.contains(&(from, *ephemeral))
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

    /// Returns the earliest deadline.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Removes an entry whose deadline has passed.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(AssociationId, Entry)> {
        let id = self.deadlines.first().filter(|(at, _)| *at <= now)?.1;
        self.remove(id).map(|entry| (id, entry))
    }

    /// Returns the handshake with this id, if it is with this address.
    pub(super) fn initiated(
        &mut self,
        id: AssociationId,
        from: SocketAddr,
    ) -> Option<&mut Initiated> {
        match &mut self.slots.get_mut(&id)?.entry {
            Entry::Initiated(initiated) if initiated.peer.address == from => Some(initiated),
            _ => None,
        }
    }

    /// Draws an unused, unpredictable association id.
    pub(super) fn free_id(&self, random: &mut Random) -> AssociationId {
        loop {
            let mut number = [0; 4];
            random(&mut number);
            match AssociationId::new(u32::from_be_bytes(number)) {
                Some(id) if !self.slots.contains_key(&id) => return id,
                // Collision: one in 700,000 with a full table.
                _ => {}
            }
        }
    }

    /// Inserts an entry with its deadline.
    pub(super) fn insert(&mut self, id: AssociationId, deadline: Nanos, entry: Entry) {
        self.count(&entry, |count| *count += 1);
        if let Entry::HalfOpen(half) = &entry {
            self.ephemerals.insert((half.from, half.ephemeral));
        }
        self.deadlines.insert((deadline, id));
        let before = self.slots.insert(id, Slot { deadline, entry });
        debug_assert!(before.is_none(), "{id} is used twice");
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, id: AssociationId) -> Option<Entry> {
        self.take(id).map(|slot| slot.entry)
    }

    fn take(&mut self, id: AssociationId) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        self.deadlines.remove(&(slot.deadline, id));
        if let Entry::HalfOpen(half) = &slot.entry {
            self.ephemerals.remove(&(half.from, half.ephemeral));
        }
        self.count(&slot.entry, |count| *count -= 1);
        Some(slot)
    }

    /// Ends an association, or an attempt to get one, and notifies the other side.
    pub(super) fn end(&mut self, id: AssociationId) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self.remove(id) {
            Some(Entry::Live(live)) => {
                effects.push(live.end());
                effects.push(Effect::Ended { id, reason: Reason::Here });
            }
            Some(Entry::Initiated(_)) => effects.push(Effect::Ended { id, reason: Reason::Here }),
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

    /// Inserts an association and hands out its keys.
    pub(super) fn establish(&mut self, now: Nanos, id: AssociationId, new: New) -> Vec<Effect> {
        let New { address, agreement, replaces, renew, confirm } = new;
        let Agreement { peer_id, identity, roots } = agreement;
        let Identity { principal, token } = identity;
        let until = now + LIFETIME_MAX;
        let is_ours = renew.is_some();
        let mut effects = self.evict_oldest(principal);
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

    /// Ends the oldest association of a principal that has [`ASSOCIATIONS_PER_PRINCIPAL_MAX`].
    fn evict_oldest(&mut self, principal: PublicKey) -> Vec<Effect> {
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
            Entry::Initiated(_) => change(&mut counts.initiated),
            Entry::HalfOpen(half) => {
                change(&mut counts.half_open);
                let of_prefix = |counts: &mut PrefixCounts| change(&mut counts.half_open);
                self.prefixes.change(half.from.ip(), of_prefix);
                if !half.is_proven {
                    change(&mut counts.unproven);
                    let of_prefix = |counts: &mut PrefixCounts| change(&mut counts.unproven);
                    self.prefixes.change(half.from.ip(), of_prefix);
                }
            }
            Entry::Live(live) => {
                change(&mut counts.live);
                if live.renew.is_none() {
                    let of_prefix = |counts: &mut PrefixCounts| change(&mut counts.associations);
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

    /// Returns the message that tells the other side of the end.
    fn end(&self) -> Effect {
        let mac = self.end_ours.mac(&self.peer_id.to_bytes());
        Effect::Send { to: self.address, datagram: wire::write_end(self.peer_id, &mac) }
    }
}
