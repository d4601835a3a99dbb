//! Active packets in the cell: opened, given to the service that they call, answered.
//!
//! ```text
//! frame ─ UDP? ─▶ handshake, fragment ─▶ the kernel's stack, to the daemon
//!           │
//!           └─▶ association's opener, or anyone ─▶ calls: digest ─▶ service ─▶ its payload runs
//!                     └ refused: counted            │ unknown: ask the daemon, wait
//!                                                   ▼
//!                        bounce: sealed, addresses swapped, out by the port that it came in by
//! ```
//!
//! Keys come from the daemon once and are here only; they go with the association, and with this
//! process. Which service a packet calls, the daemon says: here is only what it said.

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
use carrier::{Carrier, Datagram, Place};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use units::{CoarseInstant, EntryId, Millis};
use xsk::{FramePool, Packet};

/// Bytes of an active packet's tag.
const TAG_LENGTH: usize = OVERHEAD - PAYLOAD_AT;
/// Packets that wait for their service, of one association or of those from anyone: a burst of
/// two batches.
const WAITING_EACH_MAX: usize = 128;
/// The same of all together: a sixth of the packet memory of a small cell.
const WAITING_MAX: usize = 2048;
/// How long a packet waits: a module is fetched and compiled within that, or not at all.
const WAIT_MAX: Millis = Millis(10_000);
/// Period over which questions to the daemon are counted.
const ASKED_PERIOD: Millis = Millis(1_000);
/// Questions to the daemon in a second, of all associations; and of packets that nobody vouches
/// for, whose digests cost nothing to make up.
const ASKED_MAX: u32 = 512;
const ASKED_BY_ANYONE_MAX: u32 = 64;

/// One association.
struct Held {
    opener: Opener,
    sealer: Sealer,
    until: CoarseInstant,
    calls: Calls,
    waiting: usize,
}

/// Ids are drawn at random by this node: they are their own hash.
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
        // The table takes its two halves from both ends.
        self.0 = u64::from(id) << 32 | u64::from(id);
    }
}

/// A packet that waits for its service.
struct Waiting {
    packet: Packet,
    meta: PacketMeta,
    carrier: Carrier,
    since: CoarseInstant,
}

/// What becomes of a frame that came for the node's associations.
pub(crate) enum Taken {
    /// Its payload is left of it: this service runs on it.
    Call(EntryId),
    /// It is the daemon's, or no whole packet: the kernel's stack has it.
    Kernel,
    /// It ends here, and is counted.
    End,
    /// Its payload is left of it, and nobody knows yet who runs. The daemon is asked, if this is
    /// the first.
    Wait(Option<Question>),
}

/// All associations that this cell has the keys of.
#[derive(Default)]
pub(crate) struct Associations {
    held: HashMap<AssociationId, Box<Held>, BuildHasherDefault<IdHash>>,
    anyone: Calls,
    anyone_waiting: usize,
    /// Of the packet that is handled now.
    current: Carrier,
    waiting: VecDeque<Waiting>,
    /// Those whose service is known now.
    ready: VecDeque<(Waiting, EntryId)>,
    /// Where packets of several frames of memory are put together.
    scratch: Vec<u8>,
    /// Since when questions are counted, and how many were asked: by associations, by anyone.
    asked_since: CoarseInstant,
    asked: [u32; 2],
    report: AssociationReport,
}

impl Associations {
    /// Returns what was counted.
    pub(crate) const fn report(&self) -> AssociationReport {
        self.report
    }

    /// Counts a frame that the kernel's stack was to have and did not take.
    pub(crate) const fn refused_by_kernel(&mut self) {
        self.report.to_kernel -= 1;
        self.report.kernel_refused += 1;
    }

    /// Takes the keys of an association; `until` is on the cell's clock.
    pub(crate) fn begin(&mut self, traffic: Traffic) {
        let (id, until) = (traffic.id, CoarseInstant::from_nanos(traffic.until));
        let (opener, sealer) = traffic.split();
        let (calls, waiting) = (Calls::default(), 0);
        self.held.insert(id, Box::new(Held { opener, sealer, until, calls, waiting }));
        self.report.live = self.held.len() as u64;
    }

    /// Forgets the keys of an association, and drops what waited for it.
    pub(crate) fn end(&mut self, id: AssociationId, pool: &mut FramePool) {
        self.held.remove(&id);
        self.report.live = self.held.len() as u64;
        let dropped = self.drop_waiting(pool, |waiting| waiting.carrier.association == Some(id));
        self.report.gone += dropped;
    }

    /// Forgets all, and what anyone may call: another daemon knows nothing of them.
    pub(crate) fn end_all(&mut self, pool: &mut FramePool) {
        self.held.clear();
        self.anyone = Calls::default();
        self.report.live = 0;
        let dropped = self.drop_waiting(pool, |_| true);
        self.report.gone += dropped;
    }

    /// No digest means this service any more.
    pub(crate) fn forget_service(&mut self, entry: EntryId) {
        self.anyone.forget(entry);
        self.held.values_mut().for_each(|held| held.calls.forget(entry));
    }

    /// Looks at a frame, and opens it.
    pub(crate) fn take(
        &mut self,
        packet: &mut Packet,
        meta: &PacketMeta,
        now: CoarseInstant,
    ) -> Taken {
        self.report.received += 1;
        let place = match Place::of(packet, meta) {
            Datagram::Whole(place) => place,
            Datagram::Other => {
                self.report.to_kernel += 1;
                return Taken::Kernel;
            }
            Datagram::Malformed => {
                self.report.malformed += 1;
                return Taken::End;
            }
        };
        match wire::kind(&packet.head()[place.payload_at..]) {
            Ok(Kind::Handshake) => {
                self.report.to_kernel += 1;
                Taken::Kernel
            }
            Ok(Kind::Active(id)) => self.open(packet, &place, id, now),
            Ok(Kind::Anyone) => self.read(packet, &place, now),
            Err(_) => {
                self.report.malformed += 1;
                Taken::End
            }
        }
    }

    fn open(
        &mut self,
        packet: &mut Packet,
        place: &Place,
        id: AssociationId,
        now: CoarseInstant,
    ) -> Taken {
        let report = &mut self.report;
        let Some(held) = self.held.get_mut(&id).filter(|held| now < held.until) else {
            report.unknown += 1;
            return Taken::End;
        };
        let whole = packet.is_whole();
        if !whole {
            gather(packet, place.payload_at, &mut self.scratch);
        }
        let datagram =
            if whole { &mut packet.head_mut()[place.payload_at..] } else { &mut self.scratch[..] };
        let opened = match held.opener.open(datagram) {
            Ok(opened) => opened,
            Err(refused) => {
                *match refused {
                    Refused::Malformed(_) | Refused::Other(_) => &mut report.malformed,
                    Refused::Stale(_) => &mut report.stale,
                    Refused::NoKey(_) => &mut report.no_key,
                    Refused::Forged => &mut report.forged,
                } += 1;
                return Taken::End;
            }
        };
        let (digest, role) = (*opened.digest, opened.role);
        self.current.association = Some(id);
        self.current.protection = opened.protection;
        if !whole {
            // It is as long as it was: the store fits.
            let _ = packet.store(place.payload_at, &self.scratch);
        }
        let callee = held.calls.find(&digest, now);
        self.call(packet, place, (digest, role), TAG_LENGTH, callee, now)
    }

    /// A packet that nobody vouches for: at least its checksum has to be right.
    fn read(&mut self, packet: &mut Packet, place: &Place, now: CoarseInstant) -> Taken {
        let whole = packet.is_whole();
        if !whole {
            gather(packet, place.payload_at, &mut self.scratch);
        }
        let head = packet.head();
        let datagram = if whole { &head[place.payload_at..] } else { &self.scratch[..] };
        if !place.has_right_checksum(head, datagram) {
            self.report.checksum += 1;
            return Taken::End;
        }
        let datagram =
            if whole { &mut packet.head_mut()[place.payload_at..] } else { &mut self.scratch[..] };
        let Ok(read) = FromAnyone::read(datagram) else {
            self.report.malformed += 1;
            return Taken::End;
        };
        let (digest, role) = (*read.digest, read.role);
        self.current.association = None;
        let callee = self.anyone.find(&digest, now);
        self.call(packet, place, (digest, role), 0, callee, now)
    }

    /// What has been opened goes to whom it calls.
    fn call(
        &mut self,
        packet: &mut Packet,
        place: &Place,
        (digest, role): ([u8; 32], Role),
        tag: usize,
        callee: Callee,
        now: CoarseInstant,
    ) -> Taken {
        if role == Role::Answer {
            // Nothing here has called.
            self.report.answers += 1;
            return Taken::End;
        }
        self.current.digest = digest;
        self.current.keep(packet, place);
        if !packet.trim(place.payload_at + PAYLOAD_AT, tag) {
            self.report.malformed += 1;
            return Taken::End;
        }
        match callee {
            Callee::Service(entry) => {
                self.report.calls += 1;
                Taken::Call(entry)
            }
            Callee::Refused => {
                self.report.refused += 1;
                Taken::End
            }
            Callee::Asked => Taken::Wait(None),
            Callee::Unknown if self.may_ask(now) => {
                let association = self.current.association;
                if let Some(calls) = self.calls_of(association) {
                    calls.asked(digest, now);
                }
                Taken::Wait(Some(Question { association, digest }))
            }
            Callee::Unknown => {
                self.report.not_asked += 1;
                Taken::End
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
        if now.saturating_since(self.asked_since) >= ASKED_PERIOD {
            (self.asked_since, self.asked) = (now, [0; 2]);
        }
        let (kind, most) = match self.current.association {
            Some(_) => (0, ASKED_MAX),
            None => (1, ASKED_BY_ANYONE_MAX),
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

    /// Keeps the packet that [`Taken::Wait`] was said of, if there is room.
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

    /// The daemon has said which service a digest means, or that there is none for so long.
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

    /// A packet that has waited for its service.
    pub(crate) fn next_ready(&mut self) -> Option<(Packet, PacketMeta, EntryId)> {
        let (waiting, entry) = self.ready.pop_front()?;
        self.current = waiting.carrier;
        self.report.calls += 1;
        Some((waiting.packet, waiting.meta, entry))
    }

    /// Drops what has waited for too long; when to look again, if something waits.
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

    /// Makes what a service left of the payload the answer to whoever called it: a frame for the
    /// port that it came in by, whose MTU is `mtu`.
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
        packet.resize_tail(tag as i32).map_err(|_| Unanswered::NoRoom)?;
        packet.resize_head((payload_at + PAYLOAD_AT) as i32).map_err(|_| Unanswered::NoRoom)?;
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
            // Grown to hold it.
            let _ = packet.store(payload_at, &self.scratch);
        }
        packet.store(0, &headers[..payload_at]).map_err(|_| Unanswered::NoRoom)
    }
}

/// Why nobody is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The association has ended, or sealed all that it can.
    Gone,
    /// The answer does not fit the port that it is to leave by.
    TooLong,
    /// There is no packet memory for it.
    NoRoom,
}

/// Puts a packet of several frames of memory together, from `at` on.
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
