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
use crate::handshake::{Failure, Me};
use crate::load::Bucket;
use crate::noise::StaticKey;
use crate::secret::{MAC_LENGTH, Secret};
use crate::wire::{AssociationId, Message};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use trust::token;
use units::Nanos;

mod answer;
mod ask;
mod limits;
mod slots;
mod terms;

use answer::Answering;
use ask::Asker;
use slots::{Entry, Live, Slots, Stage};

pub use limits::*;
pub use terms::*;

/// All associations of a node, and all that may become some.
pub struct Associations {
    me: Me,
    bucket: Bucket,
    cookies: Cookies,
    slots: Slots,
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
            slots: Slots::default(),
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

    /// Asks a peer for an association. Its number is known at once; [`Effect::Established`]
    /// or [`Effect::Ended`] follows.
    ///
    /// # Errors
    /// When too many are under way.
    pub fn connect(
        &mut self,
        now: Nanos,
        peer: Peer,
        random: &mut Random,
    ) -> Result<(AssociationId, Vec<Effect>), AssociationError> {
        self.asker().ask(now, peer, None, random)
    }

    /// Asks for the successor of an association now, because whoever uses it has heard nothing
    /// from the other side: it may have restarted. None, if there is no such association or it
    /// is renewed already.
    ///
    /// # Errors
    /// When too many are under way.
    pub fn renew(
        &mut self,
        now: Nanos,
        id: AssociationId,
        random: &mut Random,
    ) -> Result<Vec<Effect>, AssociationError> {
        self.asker().renew(now, id, random)
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
                self.answering().initiation(now, &question, random)
            }
            Ok(Message::Answer { to, noise }) => self.asker().answer(now, from, to, noise),
            Ok(Message::Finish { to, noise }) => self.answering().finish(now, from, to, noise),
            Ok(Message::Cookie { to, cookie, ephemeral }) => {
                self.asker().cookie(from, to, cookie, ephemeral)
            }
            Ok(Message::Confirm { to, mac }) => self.asker().confirm(now, from, to, mac, random),
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
        self.slots.poll_timeout()
    }

    /// Does what time brings.
    pub fn handle_timeout(&mut self, now: Nanos, random: &mut Random) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some((id, entry)) = self.slots.pop_due(now) {
            match entry {
                Entry::HalfOpen(_) => {}
                Entry::Asking(asking) => {
                    self.asker().ask_again(now, id, *asking, random, &mut effects);
                }
                Entry::Live(live) => self.age(now, id, *live, random, &mut effects),
            }
        }
        effects
    }

    /// Ends an association, or an attempt to get one, and tells the other side.
    pub fn end(&mut self, id: AssociationId) -> Vec<Effect> {
        self.slots.end(id)
    }

    /// The associations that there are.
    pub fn ids(&self) -> impl Iterator<Item = AssociationId> {
        let live = self.slots.entries().filter(|(_, entry)| matches!(entry, Entry::Live(_)));
        live.map(|(id, _)| id)
    }

    /// How many there are of each kind.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.slots.counts()
    }

    /// How many messages were not answered, and why.
    #[must_use]
    pub const fn refused(&self) -> &BTreeMap<Refusal, u64> {
        &self.refused
    }

    /// Returns the initiator's view of the table: this side asks.
    const fn asker(&mut self) -> Asker<'_> {
        Asker { me: &self.me, slots: &mut self.slots, bucket: &mut self.bucket }
    }

    /// Returns the responder's view of the table: this side answers.
    const fn answering(&mut self) -> Answering<'_> {
        let Self { me, slots, bucket, cookies, .. } = self;
        Answering { me, slots, bucket, cookies }
    }

    fn ended_by_peer(&mut self, id: AssociationId, mac: &[u8; MAC_LENGTH]) -> Taken {
        match self.slots.get(id) {
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
        let replaced = match self.slots.remove(id) {
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
        self.slots.insert(id, live.deadline(), Entry::Live(Box::new(live)));
        // With too many handshakes under way it is tried again later.
        if let Ok((_, asked)) = self.asker().ask(now, peer, Some(id), random) {
            effects.extend(asked);
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

impl From<Failure> for Refusal {
    fn from(_: Failure) -> Self {
        Self::Forged
    }
}
