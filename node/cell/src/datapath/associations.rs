//! Active packets in the cell: opened, given to the service that they call, and answered.
//!
//! ```text
//! frame ─ UDP? ─▶ handshake, fragment ─▶ the kernel's stack, to the daemon
//!           │
//!           └─▶ association's opener, or anyone ─▶ calls: digest ─▶ service ─▶ its payload runs
//!                     └ refused: counted            │ unknown: ask the daemon, wait
//!                                                   ▼
//!                        bounce: sealed, addresses swapped, out by the arrival port
//! ```
//!
//! Keys come from the daemon once and exist only here; they are zeroed with the association, and
//! with this process. The daemon decides which service a packet calls; this module caches its
//! answers.

mod any;
mod calls;
mod carrier;

pub use any::bounced;

use crate::protocol::{Answer, AssociationReport, Question};
use ::association::packet::{FromAnyone, OVERHEAD, PAYLOAD_AT};
use ::association::wire::{self, Kind};
use ::association::{AssociationId, Opener, Refused, Role, Sealer, Traffic};
use abi::PacketBytes;
use bpf_maps::PacketMeta;
use calls::{Callee, Calls};
use carrier::{Carrier, Datagram, Position};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use units::{CoarseInstant, EntryId, Millis};
use xsk::{FramePool, Packet};

/// Length of an active packet's tag in bytes.
const TAG_LENGTH: usize = OVERHEAD - PAYLOAD_AT;
/// Packets waiting for their service, of one association or of all without one: a burst of two
/// batches.
const WAITING_EACH_MAX: usize = 128;
/// Packets waiting for their service, of all associations together: a sixth of the packet memory of
/// a small cell.
const WAITING_MAX: usize = 2048;
/// Time that a packet waits at most: a module is fetched and compiled within it, or not at all.
const WAIT_MAX: Millis = Millis(10_000);
/// Period of the limit on questions to the daemon.
const QUESTIONS_PERIOD: Millis = Millis(1_000);
/// Questions to the daemon in a second: of all associations together, and of unauthenticated
/// packets, whose digests cost nothing to forge.
const QUESTIONS_MAX: u32 = 512;
const QUESTIONS_UNAUTHENTICATED_MAX: u32 = 64;

/// Association whose keys are in this cell.
struct LiveAssociation {
    opener: Opener,
    sealer: Sealer,
    until: CoarseInstant,
    calls: Calls,
    waiting: usize,
}

/// Hasher of association ids, which this node draws at random: they are their own hash.
#[derive(Default)]
struct IdHash(u64);

impl Hasher for IdHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, id: u32) {
        // The hash table uses bits of both ends.
        self.0 = u64::from(id) << 32 | u64::from(id);
    }
}

/// Packet that waits for its service.
struct Waiting {
    packet: Packet,
    meta: PacketMeta,
    carrier: Carrier,
    since: CoarseInstant,
}

/// Decision on a frame that arrived for the node's associations.
pub(crate) enum ActiveDecision {
    /// Call: this service runs on the payload, to which the frame was reduced.
    Call(EntryId),
    /// Frame for the daemon, or part of a packet: the kernel's stack gets it.
    Kernel,
    /// Drop, which has been counted.
    End,
    /// Wait for the service, which is unknown: the frame was reduced to its payload. With a
    /// question for the daemon, if this is the first such packet.
    Wait(Option<Question>),
}

/// Associations whose keys this cell has.
#[derive(Default)]
pub(crate) struct Associations {
    held: HashMap<AssociationId, Box<LiveAssociation>, BuildHasherDefault<IdHash>>,
    anyone: Calls,
    anyone_waiting: usize,
    /// Carrier of the packet being handled.
    current: Carrier,
    waiting: VecDeque<Waiting>,
    /// Packets whose service is known now.
    ready: VecDeque<(Waiting, EntryId)>,
    /// Buffer to linearise packets of several frames.
    scratch: Vec<u8>,
    /// Start of the period in which questions are counted, and their number: of associations, and
    /// of unauthenticated packets.
    asked_since: CoarseInstant,
    asked: [u32; 2],
    report: AssociationReport,
}

impl Associations {
    /// Returns the counters.
    pub(crate) const fn report(&self) -> AssociationReport {
        self.report
    }

    /// Counts a frame for the kernel's stack that the kernel refused.
    pub(crate) const fn refused_by_kernel(&mut self) {
        self.report.to_kernel -= 1;
        self.report.kernel_refused += 1;
    }

    /// Installs the keys of an association; `until` is on the cell's clock.
    pub(crate) fn begin(&mut self, traffic: Traffic) {
        let (id, until) = (traffic.id, CoarseInstant::from_nanos(traffic.until));
        let (opener, sealer) = traffic.split();
        let (calls, waiting) = (Calls::default(), 0);
        self.held.insert(id, Box::new(LiveAssociation { opener, sealer, until, calls, waiting }));
        self.report.live = self.held.len() as u64;
    }

    /// Removes the keys of an association, and drops its waiting packets.
    pub(crate) fn end(&mut self, id: AssociationId, pool: &mut FramePool) {
        self.held.remove(&id);
        self.report.live = self.held.len() as u64;
        let dropped = self.drop_waiting(pool, |waiting| waiting.carrier.association == Some(id));
        self.report.gone += dropped;
    }

    /// Removes all associations, and what unauthenticated packets may call: a new daemon knows
    /// nothing of them.
    pub(crate) fn end_all(&mut self, pool: &mut FramePool) {
        self.held.clear();
        self.anyone = Calls::default();
        self.report.live = 0;
        let dropped = self.drop_waiting(pool, |_| true);
        self.report.gone += dropped;
    }

    /// Removes a service from the cached answers.
    pub(crate) fn forget_service(&mut self, entry: EntryId) {
        self.anyone.forget(entry);
        self.held.values_mut().for_each(|held| held.calls.forget(entry));
    }

    /// Classifies a frame, and opens an active packet.
    pub(crate) fn take(
        &mut self,
        packet: &mut Packet,
        meta: &PacketMeta,
        now: CoarseInstant,
    ) -> ActiveDecision {
        self.report.received += 1;
        let position = match Position::of(packet, meta) {
            Datagram::Whole(position) => position,
            Datagram::Other => {
                self.report.to_kernel += 1;
                return ActiveDecision::Kernel;
            }
            Datagram::Malformed => {
                self.report.malformed += 1;
                return ActiveDecision::End;
            }
        };
        match wire::kind(&packet.head()[position.payload_at..]) {
            Ok(Kind::Handshake) => {
                self.report.to_kernel += 1;
                ActiveDecision::Kernel
            }
            Ok(Kind::Active(id)) => self.open(packet, &position, id, now),
            Ok(Kind::Anyone) => self.read(packet, &position, now),
            Err(_) => {
                self.report.malformed += 1;
                ActiveDecision::End
            }
        }
    }

    fn open(
        &mut self,
        packet: &mut Packet,
        position: &Position,
        id: AssociationId,
        now: CoarseInstant,
    ) -> ActiveDecision {
        let report = &mut self.report;
        let Some(held) = self.held.get_mut(&id).filter(|held| now < held.until) else {
            report.unknown += 1;
            return ActiveDecision::End;
        };
        let whole = packet.is_whole();
        if !whole {
            gather(packet, position.payload_at, &mut self.scratch);
        }
        let datagram = if whole {
            &mut packet.head_mut()[position.payload_at..]
        } else {
            &mut self.scratch[..]
        };
        let opened = match held.opener.open(datagram) {
            Ok(opened) => opened,
            Err(refused) => {
                *match refused {
                    Refused::Malformed(_) | Refused::Other(_) => &mut report.malformed,
                    Refused::Stale(_) => &mut report.stale,
                    Refused::NoKey(_) => &mut report.no_key,
                    Refused::Forged => &mut report.forged,
                } += 1;
                return ActiveDecision::End;
            }
        };
        let (digest, role) = (*opened.digest, opened.role);
        self.current.association = Some(id);
        self.current.protection = opened.protection;
        if !whole {
            // The length has not changed, so the store fits.
            let _ = packet.store(position.payload_at, &self.scratch);
        }
        let callee = held.calls.find(&digest, now);
        self.call(packet, position, (digest, role), TAG_LENGTH, callee, now)
    }

    /// Reads an unauthenticated packet: its checksum must be right at least.
    fn read(
        &mut self,
        packet: &mut Packet,
        position: &Position,
        now: CoarseInstant,
    ) -> ActiveDecision {
        let whole = packet.is_whole();
        if !whole {
            gather(packet, position.payload_at, &mut self.scratch);
        }
        let head = packet.head();
        let datagram = if whole { &head[position.payload_at..] } else { &self.scratch[..] };
        if !position.has_right_checksum(head, datagram) {
            self.report.checksum += 1;
            return ActiveDecision::End;
        }
        let datagram = if whole {
            &mut packet.head_mut()[position.payload_at..]
        } else {
            &mut self.scratch[..]
        };
        let Ok(read) = FromAnyone::read(datagram) else {
            self.report.malformed += 1;
            return ActiveDecision::End;
        };
        let (digest, role) = (*read.digest, read.role);
        self.current.association = None;
        let callee = self.anyone.find(&digest, now);
        self.call(packet, position, (digest, role), 0, callee, now)
    }

    /// Directs an opened packet to the service that it calls.
    fn call(
        &mut self,
        packet: &mut Packet,
        position: &Position,
        (digest, role): ([u8; 32], Role),
        tag: usize,
        callee: Callee,
        now: CoarseInstant,
    ) -> ActiveDecision {
        if role == Role::Answer {
            // This node has sent no call.
            self.report.answers += 1;
            return ActiveDecision::End;
        }
        self.current.digest = digest;
        self.current.keep(packet, position);
        if !packet.trim(position.payload_at + PAYLOAD_AT, tag) {
            self.report.malformed += 1;
            return ActiveDecision::End;
        }
        match callee {
            Callee::Service(entry) => {
                self.report.calls += 1;
                ActiveDecision::Call(entry)
            }
            Callee::Refused => {
                self.report.refused += 1;
                ActiveDecision::End
            }
            Callee::Asked => ActiveDecision::Wait(None),
            Callee::Unknown if self.may_ask(now) => {
                let association = self.current.association;
                if let Some(calls) = self.calls_of(association) {
                    calls.asked(digest, now);
                }
                ActiveDecision::Wait(Some(Question { association, digest }))
            }
            Callee::Unknown => {
                self.report.not_asked += 1;
                ActiveDecision::End
            }
        }
    }

    fn calls_of(&mut self, association: Option<AssociationId>) -> Option<&mut Calls> {
        match association {
            Some(id) => self.held.get_mut(&id).map(|held| &mut held.calls),
            None => Some(&mut self.anyone),
        }
    }

    fn may_ask(&mut self, now: CoarseInstant) -> bool {
        if now.saturating_since(self.asked_since) >= QUESTIONS_PERIOD {
            (self.asked_since, self.asked) = (now, [0; 2]);
        }
        let (kind, most) = match self.current.association {
            Some(_) => (0, QUESTIONS_MAX),
            None => (1, QUESTIONS_UNAUTHENTICATED_MAX),
        };
        let may = self.asked[kind] < most;
        self.asked[kind] += u32::from(may);
        may
    }

    fn waiting_of(&mut self, association: Option<AssociationId>) -> Option<&mut usize> {
        match association {
            Some(id) => self.held.get_mut(&id).map(|held| &mut held.waiting),
            None => Some(&mut self.anyone_waiting),
        }
    }

    /// Queues the packet for which [`ActiveDecision::Wait`] was returned, if the limits allow it.
    pub(crate) fn keep(
        &mut self,
        packet: Packet,
        meta: PacketMeta,
        now: CoarseInstant,
        pool: &mut FramePool,
    ) {
        let (all, carrier) = (self.waiting.len(), self.current);
        let room = self.waiting_of(carrier.association).filter(|each| **each < WAITING_EACH_MAX);
        match room.filter(|_| all < WAITING_MAX) {
            Some(each) => {
                *each += 1;
                self.report.waiting += 1;
                self.waiting.push_back(Waiting { packet, meta, carrier, since: now });
            }
            None => {
                self.report.waiting_full += 1;
                packet.recycle(pool);
            }
        }
    }

    /// Applies the daemon's answer: the service of a digest, or a refusal for a time.
    pub(crate) fn answered(
        &mut self,
        question: Question,
        answer: Answer,
        now: CoarseInstant,
        pool: &mut FramePool,
    ) {
        let Some(calls) = self.calls_of(question.association) else { return };
        calls.answered(question.digest, answer, now);
        let is_meant = |waiting: &Waiting| {
            let carrier = &waiting.carrier;
            (carrier.association, carrier.digest) == (question.association, question.digest)
        };
        match answer {
            Answer::Service(entry) => {
                for waiting in self.take_waiting(is_meant) {
                    self.ready.push_back((waiting, entry));
                }
            }
            Answer::Refused { .. } => {
                let dropped = self.drop_waiting(pool, is_meant);
                self.report.refused += dropped;
            }
        }
    }

    /// Returns a packet that has waited for its service, which is known now.
    pub(crate) fn next_ready(&mut self) -> Option<(Packet, PacketMeta, EntryId)> {
        let (waiting, entry) = self.ready.pop_front()?;
        self.current = waiting.carrier;
        self.report.calls += 1;
        Some((waiting.packet, waiting.meta, entry))
    }

    /// Drops packets that have waited for too long.
    pub(crate) fn expire(&mut self, now: CoarseInstant, pool: &mut FramePool) {
        let Some(oldest) = self.waiting.front() else { return };
        if now.saturating_since(oldest.since) >= WAIT_MAX {
            let is_old = |waiting: &Waiting| now.saturating_since(waiting.since) >= WAIT_MAX;
            let dropped = self.drop_waiting(pool, is_old);
            self.report.waited_too_long += dropped;
        }
    }

    fn drop_waiting(&mut self, pool: &mut FramePool, gone: impl Fn(&Waiting) -> bool) -> u64 {
        let dropped = self.take_waiting(gone);
        let count = dropped.len() as u64;
        dropped.into_iter().for_each(|waiting| waiting.packet.recycle(pool));
        count
    }

    fn take_waiting(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (taken, left): (Vec<_>, VecDeque<_>) = {
            let mut taken = Vec::new();
            let mut left = VecDeque::with_capacity(all.len());
            for waiting in all {
                if wanted(&waiting) { taken.push(waiting) } else { left.push_back(waiting) }
            }
            (taken, left)
        };
        self.waiting = left;
        self.report.waiting = self.waiting.len() as u64;
        for waiting in &taken {
            if let Some(each) = self.waiting_of(waiting.carrier.association) {
                *each = each.saturating_sub(1);
            }
        }
        taken
    }

    /// Turns the payload that a service left into the answer to its caller: a frame for the arrival
    /// port, whose L3 MTU is `mtu`.
    pub(crate) fn answer(&mut self, packet: &mut Packet, mtu: usize) -> Result<(), Unanswered> {
        let carrier = &self.current;
        let sealer = match carrier.association {
            Some(id) => Some(&mut self.held.get_mut(&id).ok_or(Unanswered::Gone)?.sealer),
            None => None,
        };
        let tag = if sealer.is_some() { TAG_LENGTH } else { 0 };
        if packet.length() + carrier.overhead() + tag > mtu {
            return Err(Unanswered::TooLong);
        }
        let payload_at = carrier.payload_at();
        packet.resize_tail(tag as i32).map_err(|_| Unanswered::NoMemory)?;
        packet.resize_head((payload_at + PAYLOAD_AT) as i32).map_err(|_| Unanswered::NoMemory)?;
        let whole = packet.is_whole();
        if !whole {
            gather(packet, payload_at, &mut self.scratch);
        }
        let datagram =
            if whole { &mut packet.head_mut()[payload_at..] } else { &mut self.scratch[..] };
        match sealer {
            Some(sealer) => {
                let sealed =
                    sealer.seal(carrier.protection, Role::Answer, &carrier.digest, datagram);
                sealed.map_err(|_| Unanswered::Gone)?;
            }
            None => datagram[..PAYLOAD_AT]
                .copy_from_slice(&FromAnyone::head(Role::Answer, &carrier.digest)),
        }
        let headers = carrier.swapped(datagram);
        if !whole {
            // The packet was grown to hold it.
            let _ = packet.store(payload_at, &self.scratch);
        }
        packet.store(0, &headers[..payload_at]).map_err(|_| Unanswered::NoMemory)
    }
}

/// Cause for which a call gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The association has ended, or its keys have sealed all that they may.
    Gone,
    /// The answer exceeds the MTU of its port.
    TooLong,
    /// No packet memory is free for the datagram.
    NoMemory,
}

/// Copies a packet of several frames, from `at` on, into `scratch`.
#[cold]
fn gather(packet: &Packet, at: usize, scratch: &mut Vec<u8>) {
    scratch.clear();
    let mut before = at;
    for chunk in packet.chunks() {
        let skipped = before.min(chunk.len());
        scratch.extend_from_slice(&chunk[skipped..]);
        before -= skipped;
    }
}

#[cfg(test)]
mod tests;
