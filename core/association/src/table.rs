//! Table of a node's associations and handshakes, each from its first message to its end.
//!
//! ```text
//!  connect ─▶ Initiated ── answer ─▶ Initiated, agreement ── confirm ─▶ Live ─┬─ renewed: a new one in parallel
//!              │ └─ cookie: again     │ └─ again              ▲   ├─ end, of either side
//!              └─ no answer ──────────┴─────▶ Ended           │   └─ 180 s ─▶ Ended
//!  initiation ─▶ HalfOpen ── finish ──────────────────────────┘
//!                  └─ 10 s: forgotten
//! ```
//!
//! Time, datagrams and random bytes are arguments; datagrams to send and events are returned as
//! [`Effect`]s. The keys of an association are returned once, in [`Established`], and not kept
//! here.

use crate::Random;
use crate::cookie::Cookies;
use crate::flood::Bucket;
use crate::handshake::{Failure, LocalIdentity};
use crate::noise::StaticKey;
use crate::secret::{MAC_LENGTH, Secret};
use crate::wire::{AssociationId, Message};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use trust::token;
use units::Nanos;

mod initiator;
mod limits;
mod responder;
mod slots;
mod types;

use initiator::InitiatorSide;
use responder::ResponderSide;
use slots::{Entry, Live, Slots, Stage};

pub use limits::*;
pub use types::*;

/// Associations and handshakes of a node.
pub struct Associations {
    local: LocalIdentity,
    bucket: Bucket,
    cookies: Cookies,
    slots: Slots,
    refused: BTreeMap<Refusal, u64>,
}

impl Associations {
    /// Makes an empty table. Draws the X25519 key of this process, which a restarted process does
    /// not keep.
    ///
    /// # Errors
    /// The token is too long.
    pub fn new(now: Nanos, config: Config, random: &mut Random) -> Result<Self, AssociationError> {
        let Config { key, token, budget } = config;
        let static_key = StaticKey::new(Secret::draw(random));
        let local = LocalIdentity { key, token: bounded(token)?, static_key };
        Ok(Self {
            local,
            bucket: Bucket::new(now, budget),
            cookies: Cookies::new(now, random),
            slots: Slots::default(),
            refused: BTreeMap::new(),
        })
    }

    /// Replaces the node's own capability, from the next handshake on.
    ///
    /// # Errors
    /// The token is too long.
    pub fn set_token(&mut self, token: String) -> Result<(), AssociationError> {
        self.local.token = bounded(token)?;
        Ok(())
    }

    /// Starts a handshake with a peer. Returns the association's id; [`Effect::Established`] or
    /// [`Effect::Ended`] follows.
    ///
    /// # Errors
    /// Too many handshakes are in progress.
    pub fn connect(
        &mut self,
        now: Nanos,
        peer: Peer,
        random: &mut Random,
    ) -> Result<(AssociationId, Vec<Effect>), AssociationError> {
        self.initiator_side().start(now, peer, None, random)
    }

    /// Starts the handshake for an association's successor now. Called when the other side does not
    /// respond: it may have restarted. Returns `None` if there is no such association, or its
    /// renewal is in progress.
    ///
    /// # Errors
    /// Too many handshakes are in progress.
    pub fn renew(
        &mut self,
        now: Nanos,
        id: AssociationId,
        random: &mut Random,
    ) -> Result<Vec<Effect>, AssociationError> {
        self.initiator_side().renew(now, id, random)
    }

    /// Handles a datagram of a handshake.
    pub fn handle(
        &mut self,
        now: Nanos,
        from: SocketAddr,
        datagram: &[u8],
        random: &mut Random,
    ) -> Vec<Effect> {
        self.cookies.rotate(now, random);
        let from = canonical(from);
        let taken = match Message::read(datagram) {
            Err(_) => refuse(Refusal::Malformed),
            Ok(Message::Initiation { cookie, ephemeral, noise }) => {
                let initiation = responder::Initiation { from, cookie, ephemeral, noise };
                self.responder_side().initiation(now, &initiation, random)
            }
            Ok(Message::Answer { to, noise }) => self.initiator_side().answer(now, from, to, noise),
            Ok(Message::Finish { to, noise }) => self.responder_side().finish(now, from, to, noise),
            Ok(Message::Cookie { to, cookie, ephemeral }) => {
                self.initiator_side().cookie(from, to, cookie, ephemeral)
            }
            Ok(Message::Confirm { to, mac }) => {
                self.initiator_side().confirm(now, from, to, mac, random)
            }
            Ok(Message::End { to, mac }) => self.ended_by_peer(to, mac),
        };
        taken.unwrap_or_else(|(refusal, effects)| {
            *self.refused.entry(refusal).or_default() += 1;
            effects
        })
    }

    /// Returns the time at which [`Associations::handle_timeout`] has to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.slots.poll_timeout()
    }

    /// Handles expired deadlines: retries, renewals and ends.
    pub fn handle_timeout(&mut self, now: Nanos, random: &mut Random) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some((id, entry)) = self.slots.pop_due(now) {
            match entry {
                Entry::HalfOpen(_) => {}
                Entry::Initiated(initiated) => {
                    self.initiator_side().retry(now, id, *initiated, random, &mut effects);
                }
                Entry::Live(live) => self.expire_or_renew(now, id, *live, random, &mut effects),
            }
        }
        effects
    }

    /// Ends an association, or an attempt to get one, and notifies the other side.
    pub fn end(&mut self, id: AssociationId) -> Vec<Effect> {
        self.slots.end(id)
    }

    /// Returns the ids of all associations.
    pub fn ids(&self) -> impl Iterator<Item = AssociationId> {
        let live = self.slots.entries().filter(|(_, entry)| matches!(entry, Entry::Live(_)));
        live.map(|(id, _)| id)
    }

    /// Returns the number of entries by kind.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.slots.counts()
    }

    /// Returns the number of unanswered messages by reason.
    #[must_use]
    pub const fn refused(&self) -> &BTreeMap<Refusal, u64> {
        &self.refused
    }

    /// Returns the initiator's view of the table: this side asks.
    const fn initiator_side(&mut self) -> InitiatorSide<'_> {
        InitiatorSide { local: &self.local, slots: &mut self.slots, bucket: &mut self.bucket }
    }

    /// Returns the responder's view of the table: this side answers.
    const fn responder_side(&mut self) -> ResponderSide<'_> {
        let Self { local, slots, bucket, cookies, .. } = self;
        ResponderSide { local, slots, bucket, cookies }
    }

    fn ended_by_peer(&mut self, id: AssociationId, mac: &[u8; MAC_LENGTH]) -> Handled {
        match self.slots.get(id) {
            Some(Entry::Live(live)) if live.end_theirs.verify(mac, &id.to_bytes()) => {}
            Some(Entry::Live(_)) => return refuse(Refusal::Forged),
            // An end in place of the confirmation: the responder rejects the association.
            Some(Entry::Initiated(initiated)) => match &initiated.stage {
                Stage::AwaitConfirm { agreement, .. }
                    if agreement.roots.theirs.derive("end").verify(mac, &id.to_bytes()) => {}
                Stage::AwaitConfirm { .. } => return refuse(Refusal::Forged),
                Stage::AwaitAnswer { .. } => return refuse(Refusal::Unexpected),
            },
            _ => return refuse(Refusal::Unexpected),
        }
        let replaced = match self.slots.remove(id) {
            Some(Entry::Initiated(initiated)) => initiated.replaces.is_some(),
            _ => false,
        };
        if replaced {
            // The association that was to be replaced lives on until its own end.
            return Ok(Vec::new());
        }
        Ok(vec![Effect::Ended { id, reason: Reason::ByPeer }])
    }

    /// Ends an association that has expired, or starts the handshake for its successor.
    fn expire_or_renew(
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
        live.renew = Some(now + ATTEMPT_TIME_MAX + RENEW_AGAIN);
        let peer = Peer { address: live.address, principal: Some(live.principal) };
        self.slots.insert(id, live.deadline(), Entry::Live(Box::new(live)));
        // Too many handshakes in progress: retried later.
        if let Ok((_, asked)) = self.initiator_side().start(now, peer, Some(id), random) {
            effects.extend(asked);
        }
    }
}

/// Result of a message: effects, or the reason for a refusal with the datagrams to send.
type Handled = Result<Vec<Effect>, (Refusal, Vec<Effect>)>;

fn refuse(refusal: Refusal) -> Handled {
    Err((refusal, Vec::new()))
}

fn bounded(token: String) -> Result<String, AssociationError> {
    match token.len() {
        length if length > token::LENGTH_MAX => Err(AssociationError::TokenTooLong(length)),
        _ => Ok(token),
    }
}

/// Normalizes IPv4-mapped addresses, so that an IPv4 address is the same whichever socket saw it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl From<Failure> for Refusal {
    fn from(_: Failure) -> Self {
        Self::Forged
    }
}
