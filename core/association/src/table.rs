//! Who this node knows, and who is asking: every association from its first message to its end.
//!
//! ```text
//!  connect ─▶ Asking ── answer ─▶ Asking, met ── confirm ─▶ Live ─┬─ renewed: a new one beside it
//!              │ └─ cookie: again     │ └─ again              ▲   ├─ end, of either side
//!              └─ no answer ──────────┴─────▶ Ended           │   └─ 180 s ─▶ Ended
//!  initiation ─▶ HalfOpen ── finish ──────────────────────────┘
//!                  └─ 10 s: forgotten
//! ```
//!
//! Time, datagrams and random bytes come in; datagrams to send and news go out as [`Effect`]s.
//! The keys of an association go out once, in [`Established`], and nothing here keeps them.

use crate::Random;
use crate::cookie::Cookies;
use crate::handshake::{Failure, Initiator, Me, Responder};
use crate::identity::Identity;
use crate::load::{Bucket, Places, Prefixes};
use crate::noise::StaticKey;
use crate::secret::{MAC_LENGTH, Secret, TAG_LENGTH};
use crate::traffic::{Roots, Traffic};
use crate::wire::{self, AssociationId, EPHEMERAL_LENGTH, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use trust::{PublicKey, token};
use units::Nanos;

mod answer;
mod ask;
mod limits;
mod terms;

pub use limits::*;
pub use terms::*;

/// A handshake that this side has begun.
struct Asking {
    peer: Peer,
    replaces: Option<AssociationId>,
    give_up: Nanos,
    tries: u32,
    forged: u32,
    stage: Stage,
}

enum Stage {
    /// Message 1 is on its way.
    Asked { initiator: Initiator, cookies: u32 },
    /// Message 2 has come, message 3 is on its way.
    Met { finish: Vec<u8>, sent: u32, met: Box<Met> },
}

/// What both sides have agreed on.
struct Met {
    peer_id: AssociationId,
    identity: Identity,
    roots: Roots,
}

/// A handshake that somebody else has begun.
struct HalfOpen {
    from: SocketAddr,
    question: [u8; EPHEMERAL_LENGTH],
    is_proven: bool,
    forged: u32,
    responder: Responder,
}

/// An association.
struct Live {
    address: SocketAddr,
    principal: PublicKey,
    peer_id: AssociationId,
    since: Nanos,
    until: Nanos,
    /// When the next one is asked for, if this side asked for this one.
    renew: Option<Nanos>,
    /// For a message 3 that comes again: its tag, and the answer.
    confirm: Option<([u8; TAG_LENGTH], [u8; MAC_LENGTH])>,
    end_ours: Secret,
    end_theirs: Secret,
}

enum Entry {
    Asking(Box<Asking>),
    HalfOpen(Box<HalfOpen>),
    Live(Box<Live>),
}

struct Slot {
    deadline: Nanos,
    entry: Entry,
}

/// All associations of a node, and all that may become some.
pub struct Associations {
    me: Me,
    bucket: Bucket,
    cookies: Cookies,
    prefixes: Prefixes,
    slots: BTreeMap<AssociationId, Slot>,
    deadlines: BTreeSet<(Nanos, AssociationId)>,
    /// The questions of half-open handshakes: the network may bring each twice.
    questions: BTreeSet<(SocketAddr, [u8; EPHEMERAL_LENGTH])>,
    counts: Counts,
    refused: BTreeMap<Refusal, u64>,
}

impl Associations {
    /// None yet. The X25519 key of this process is made here: a restarted one has another.
    ///
    /// # Errors
    /// When the token is too long.
    pub fn new(now: Nanos, config: Config, random: &mut Random) -> Result<Self, AssociationError> {
        let Config { key, token, budget } = config;
        let static_key = StaticKey::new(Secret::draw(random));
        let me = Me { key, token: bounded(token)?, static_key };
        Ok(Self {
            me,
            bucket: Bucket::new(now, budget),
            cookies: Cookies::new(now, random),
            prefixes: Prefixes::default(),
            slots: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            questions: BTreeSet::new(),
            counts: Counts::default(),
            refused: BTreeMap::new(),
        })
    }

    /// Says something else of what this node may, from the next handshake on.
    ///
    /// # Errors
    /// When the token is too long.
    pub fn set_token(&mut self, token: String) -> Result<(), AssociationError> {
        self.me.token = bounded(token)?;
        Ok(())
    }

    /// Takes a datagram of the handshake.
    pub fn handle(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        datagram: &[u8],
        random: &mut Random,
    ) -> Vec<Effect> {
        self.cookies.turn(now, random);
        let from = canonical(from);
        let taken = match Message::read(datagram) {
            Err(_) => refuse(Refusal::Malformed),
            Ok(Message::Initiation { cookie, ephemeral, noise }) => {
                let question = answer::Question { from, cookie, ephemeral, noise };
                self.initiation(now, &question, random)
            }
            Ok(Message::Answer { to, noise }) => self.answer(now, from, to, noise),
            Ok(Message::Finish { to, noise }) => self.finish(now, from, to, noise),
            Ok(Message::Cookie { to, cookie, ephemeral }) => {
                self.cookie(from, to, cookie, ephemeral)
            }
            Ok(Message::Confirm { to, mac }) => self.confirm(now, from, to, mac, random),
            Ok(Message::End { to, mac }) => self.ended_by_peer(to, mac),
        };
        taken.unwrap_or_else(|(refusal, effects)| {
            *self.refused.entry(refusal).or_default() += 1;
            effects
        })
    }

    /// When [`Associations::handle_timeout`] has to be called, if nothing else happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Does what time brings.
    pub fn handle_timeout(&mut self, now: Nanos, random: &mut Random) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            let Some(slot) = self.remove(id) else { break };
            match slot.entry {
                Entry::HalfOpen(_) => {}
                Entry::Asking(asking) => self.ask_again(now, id, *asking, random, &mut effects),
                Entry::Live(live) => self.age(now, id, *live, random, &mut effects),
            }
        }
        effects
    }

    /// Ends an association, or an attempt to get one, and tells the other side.
    pub fn end(&mut self, id: AssociationId) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self.remove(id).map(|slot| slot.entry) {
            Some(Entry::Live(live)) => {
                effects.push(live.end());
                effects.push(Effect::Ended { id, reason: Reason::Here });
            }
            Some(Entry::Asking(_)) => effects.push(Effect::Ended { id, reason: Reason::Here }),
            Some(Entry::HalfOpen(_)) | None => {}
        }
        effects
    }

    /// The associations that there are.
    pub fn ids(&self) -> impl Iterator<Item = AssociationId> {
        let live = self.slots.iter().filter(|(_, slot)| matches!(slot.entry, Entry::Live(_)));
        live.map(|(id, _)| *id)
    }

    /// How many there are of each kind.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How many messages were not answered, and why.
    #[must_use]
    pub const fn refused(&self) -> &BTreeMap<Refusal, u64> {
        &self.refused
    }

    fn ended_by_peer(&mut self, id: AssociationId, mac: &[u8; MAC_LENGTH]) -> Taken {
        match self.slots.get(&id).map(|slot| &slot.entry) {
            Some(Entry::Live(live)) if live.end_theirs.has_made(mac, &id.to_bytes()) => {}
            Some(Entry::Live(_)) => return refuse(Refusal::Forged),
            // In place of the confirmation: who was asked wants nothing of it.
            Some(Entry::Asking(asking)) => match &asking.stage {
                Stage::Met { met, .. }
                    if met.roots.theirs.derive("end").has_made(mac, &id.to_bytes()) => {}
                Stage::Met { .. } => return refuse(Refusal::Forged),
                Stage::Asked { .. } => return refuse(Refusal::Unexpected),
            },
            _ => return refuse(Refusal::Unexpected),
        }
        let replaced = match self.remove(id).map(|slot| slot.entry) {
            Some(Entry::Asking(asking)) => asking.replaces.is_some(),
            _ => false,
        };
        if replaced {
            // The one that it was to come after goes on, until its own end.
            return Ok(Vec::new());
        }
        Ok(vec![Effect::Ended { id, reason: Reason::ByPeer }])
    }

    /// An association's end has come, or the time to ask for its successor.
    fn age(
        &mut self,
        now: Nanos,
        id: AssociationId,
        mut live: Live,
        random: &mut Random,
        effects: &mut Vec<Effect>,
    ) {
        if now >= live.until {
            effects.push(Effect::Ended { id, reason: Reason::Expired });
            return;
        }
        live.renew = Some(now + ASK_TIME_MAX + RENEW_AGAIN);
        let peer = Peer { address: live.address, principal: Some(live.principal) };
        self.insert(id, live.deadline(), Entry::Live(Box::new(live)));
        // With too many handshakes under way it is tried again later.
        if let Ok((_, asked)) = self.ask(now, peer, Some(id), random) {
            effects.extend(asked);
        }
    }

    /// Notes an association, and gives its keys away.
    fn establish(&mut self, now: Nanos, id: AssociationId, new: New) -> Vec<Effect> {
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

    fn insert(&mut self, id: AssociationId, deadline: Nanos, entry: Entry) {
        self.count(&entry, |count| *count += 1);
        if let Entry::HalfOpen(half) = &entry {
            self.questions.insert((half.from, half.question));
        }
        self.deadlines.insert((deadline, id));
        let before = self.slots.insert(id, Slot { deadline, entry });
        debug_assert!(before.is_none(), "{id} is used twice");
    }

    fn remove(&mut self, id: AssociationId) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        self.deadlines.remove(&(slot.deadline, id));
        if let Entry::HalfOpen(half) = &slot.entry {
            self.questions.remove(&(half.from, half.question));
        }
        self.count(&slot.entry, |count| *count -= 1);
        Some(slot)
    }

    /// Counts an entry in all that it is counted in.
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

    /// A number that nobody has and nobody can guess.
    fn free_id(&self, random: &mut Random) -> AssociationId {
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
}

/// What becomes of a message: effects, or why none, and what its sender is told.
type Taken = Result<Vec<Effect>, (Refusal, Vec<Effect>)>;

fn refuse(refusal: Refusal) -> Taken {
    Err((refusal, Vec::new()))
}

fn bounded(token: String) -> Result<String, AssociationError> {
    match token.len() {
        length if length > token::LENGTH_MAX => Err(AssociationError::TokenTooLong(length)),
        _ => Ok(token),
    }
}

/// An IPv4 address is the same whichever kind of socket saw it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A new association, before its keys are given away.
struct New {
    address: SocketAddr,
    met: Met,
    replaces: Option<AssociationId>,
    renew: Option<Nanos>,
    confirm: Option<([u8; TAG_LENGTH], [u8; MAC_LENGTH])>,
}

impl Live {
    fn deadline(&self) -> Nanos {
        self.renew.map_or(self.until, |renew| renew.min(self.until))
    }

    /// Tells the other side that it ends.
    fn end(&self) -> Effect {
        let mac = self.end_ours.mac(&self.peer_id.to_bytes());
        Effect::Send { to: self.address, datagram: wire::write_end(self.peer_id, &mac) }
    }
}

impl From<Failure> for Refusal {
    fn from(_: Failure) -> Self {
        Self::Forged
    }
}
