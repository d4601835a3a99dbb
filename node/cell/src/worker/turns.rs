//! Sessions take turns: packets wait for their session, and one service works at a time.
//!
//! One turn of the loop is one [`Cell::work`] of at most `TURN_MAX`, so that what has come meanwhile
//! is seen, and somebody with an earlier deadline does not wait for longer. Short ones follow each
//! other for as long: with a thousand sessions each has a packet or two, and looking costs as much
//! as they do.

use super::Cell;
use super::low::failure;
use crate::protocol::{FromCell, ServiceReport};
use crate::sched::pacer::{self, Pacer};
use crate::sched::sessions::{self, Sessions};
use crate::service::{Control, FILL, Portion, Service, Told, Turn, Way};
use bpf_maps::META_COUNTED;
use executor::{SLICE, TURN_MAX};
use units::{Bytes, CoarseInstant, EntryId, Nanos, SessionId};
use xsk::Packet;

/// No other turn begins when there would be less time for it.
const TURN_MIN: Nanos = Nanos(TURN_MAX.0 / 4);
/// How long the timer runs on behind a turn that it could have had to interrupt: to set it takes
/// as long as a signal, and while there are only brief ones none has to come.
pub(super) const INTERRUPTS_FOR: Nanos = SLICE;
/// What turns have left to send goes when it is so much: entering the kernel costs as much as some
/// packets, and more would leave late. So many turns have left something at most.
const SEND_AT: u64 = 16;
/// How late the timer is at most: what is later is not its doing.
const LATE_MAX: Nanos = Nanos(50_000);
/// The part of a slice whose end is looked at closely, at most: a sixteenth.
const CLOSE_OF: u64 = 16;
/// How much later than of late it comes, but for one time of a hundred.
const LATER: Nanos = Nanos(10_000);

impl Cell {
    /// Gives a packet to a service that nobody counts for: at once, or when its turn has come.
    pub(super) fn hand_on(&mut self, packet: Packet, way: Way, entry: EntryId, now: CoarseInstant) {
        if self.sessions.take_turns() || self.services.is_busy(entry) {
            self.enqueue(packet, way, now);
        } else if self.visit(packet, &way, now) {
            self.go_on(entry, now);
        }
    }

    /// Has a packet wait for its session's turn, if there is room.
    pub(super) fn enqueue(&mut self, packet: Packet, mut way: Way, now: CoarseInstant) {
        let entry = EntryId(way.meta.entry);
        let service = self.services.get_mut(entry);
        let Some(service) = service else {
            let counted_by = way.counted_by;
            self.give_room_back(&way);
            self.go_past(packet, way.meta, now);
            return self.services.leave_epochs(counted_by.map(|entry| (entry, way.meta.epoch())));
        };
        let session = service.facts.session;
        let memory = Bytes(packet.memory_length() as u64);
        if way.room > Bytes::ZERO || self.sessions.admit(session, memory) {
            way.room = memory;
            // Its session knows of it already otherwise: the clock is not read for each packet.
            if let Some(pool) = service.enqueue(packet, way) {
                self.sessions.wake(pacer::now(), session, service.task(pool));
            }
        } else {
            self.sessions.refused(session, &packet);
            let turn = service.refuse(packet, &way, &mut self.path.pool);
            self.services.leaves(turn.after.leaves);
            self.services.leave_epochs(turn.departed);
        }
    }

    /// The front door has taken room for a packet in its session's queue: it has come.
    #[inline]
    pub(super) fn come(&mut self, packet: &Packet, way: &mut Way) {
        let Some(epoch) = way.meta.counted_in() else { return };
        way.meta.flags &= !META_COUNTED;
        way.room = Bytes(packet.memory_length() as u64);
        self.sessions.come(self.services.payer(way), way.room, epoch);
    }

    /// What was sent up in the epoch that is closed, and is not in a ring either, is lost. A cell
    /// that stood still may find all of it in the rings.
    #[cold]
    pub(super) fn end_epoch(&mut self, now: CoarseInstant) {
        if self.sessions.take_turns() {
            self.receive_all(now);
        }
        self.path.egress.settle(self.sessions.closed_epoch());
        self.sessions.settle_rooms(now);
    }

    /// It does not wait any more.
    #[inline]
    pub(super) fn give_room_back(&mut self, way: &Way) {
        if way.room > Bytes::ZERO {
            self.sessions.release(self.services.payer(way), way.room);
        }
    }

    /// Lets services work whose turn it is, and sends what they left. False when it is nobody's.
    pub(super) fn take_turns(&mut self, now: CoarseInstant) -> bool {
        let begin = pacer::now();
        let until = begin + TURN_MAX;
        if begin >= self.interrupts_until && self.sessions.take_turns() {
            self.slicer.disarm();
        }
        let mut end = begin;
        loop {
            if self.loaded == 0 && self.loads_ahead() {
                self.loaded = self.load_for_turns();
            }
            let Some(now) = self.work(end, until, now) else { break };
            self.loaded = self.loaded.saturating_sub(1);
            end = now;
            if self.meter.unsent() >= SEND_AT {
                end = self.send_for_turns(end);
            }
            if end + TURN_MIN > until {
                break;
            }
        }
        if self.meter.unsent() > 0 {
            end = self.send_for_turns(end);
        }
        end > begin
    }

    /// Sends what turns have left, on their accounts; until when that took.
    fn send_for_turns(&mut self, begin: Nanos) -> Nanos {
        self.flush();
        let end = pacer::now();
        self.meter.settle_sent(&mut self.sessions, end, end.saturating_sub(begin));
        end
    }

    /// Lets the service work whose turn it is, at most until then if nobody was promised more;
    /// until when it did. `None` when it is nobody's.
    fn work(&mut self, begin: Nanos, until: Nanos, now: CoarseInstant) -> Option<Nanos> {
        let Some(next) = self.sessions.next(begin) else {
            if !self.sessions.take_turns() {
                self.pacer.begin_alone();
            }
            return None;
        };
        let (entry, pool) = (next.task.entry, usize::from(next.task.pool));
        let service = self.services.get_mut(entry);
        let Some(service) = service else {
            if let Some(end) = self.work_streams(begin, &next) {
                return Some(end);
            }
            self.sessions.charge(begin, &next, Nanos::ZERO, true);
            return Some(begin);
        };
        let session = service.facts.session;
        let is_timed = !service.is_brief();
        if is_timed {
            self.interrupts_until = begin + INTERRUPTS_FOR;
        }
        let slice = next.until.saturating_sub(begin);
        let portion = if slice < TURN_MAX + TURN_MAX {
            // What it leaves to send belongs to its slice, too.
            let slice = slice.saturating_sub(self.meter.owed(&next).min(Nanos(slice.0 / 4)));
            let (packets, sending) = service.fit(slice, self.meter.sending());
            // Most of it is for the module, whatever sending once took.
            let until = begin + slice.saturating_sub(sending.min(Nanos(slice.0 / 4)));
            let ahead = self.meter.ahead(self.sessions.promised(&next));
            let closely_from = until.saturating_sub(ahead);
            if is_timed && closely_from > begin {
                self.slicer.arm_once(closely_from.saturating_sub(begin), TURN_MAX);
            } else if is_timed {
                // It is looked at closely from its beginning: a timer would only take time.
                self.slicer.arm(TURN_MAX);
            }
            self.pacer.look_closely(closely_from);
            Portion { begin, until, packets }
        } else {
            if is_timed {
                self.slicer.arm(TURN_MAX);
            }
            self.pacer.look_closely(Nanos(u64::MAX));
            Portion { begin, until, packets: FILL }
        };
        let mut exits = self.path.exits(&mut self.sessions, session);
        let turn = service.work(&self.engine, pool, portion, now, &mut exits);
        self.meter.saw(begin, &self.pacer);
        service.bytes_out += exits.sent;
        let sent = if exits.sent > 0 { turn.handled } else { 0 };
        let Turn { after, handled_room, departed, told, through_at, .. } = turn;
        // The clock is not read for what is done in a moment.
        let is_through = !(after.trapped || after.emitted || after.passed_on) && told.is_none();
        let through_at = through_at.filter(|_| is_through);
        self.sessions.release(session, handled_room);
        self.follow(entry, &after);
        self.services.leave_epochs(departed);
        if let Some(told) = told {
            self.pass_told(entry, told, now);
        }
        while let Some((packet, way)) = self.services.get_mut(entry).and_then(Service::take_onward)
        {
            self.enqueue(packet, way, now);
        }
        let end = through_at.unwrap_or_else(pacer::now);
        let service = self.services.get(entry);
        let idle = service.is_none_or(|service| !service.wants(pool));
        for other in service.into_iter().flat_map(|service| service.others_that_want(pool)) {
            self.sessions.wake(end, session, other);
        }
        self.sessions.charge(end, &next, end.saturating_sub(begin), idle);
        self.meter.sent(next, sent);
        Some(end)
    }

    /// Asks a service for something; false when too much waits for it already.
    pub(super) fn ask(&mut self, entry: EntryId, control: Control, now: CoarseInstant) -> bool {
        let is_taken = self.services.get_mut(entry).is_some_and(|service| service.ask(control));
        self.attend(entry, now);
        is_taken
    }

    /// Has a service do what it is asked for: in its session's turns, or at once where nobody
    /// takes turns.
    pub(super) fn attend(&mut self, entry: EntryId, now: CoarseInstant) {
        let service = self.services.get_mut(entry);
        let Some(service) = service else { return };
        let Some(task) = service.asked_task() else { return };
        let session = service.facts.session;
        if self.sessions.take_turns() || !service.may_answer() {
            return self.sessions.wake(pacer::now(), session, task);
        }
        self.slicer.arm(SLICE);
        self.meter.run_for(&mut self.sessions, session);
        loop {
            let service = self.services.get_mut(entry);
            let Some(service) = service.filter(|service| service.may_answer()) else { break };
            let turn = service.answer(&self.engine, Nanos(u64::MAX), now);
            let Turn { after, told, .. } = turn;
            self.follow(entry, &after);
            if let Some(told) = told {
                self.pass_told(entry, told, now);
            }
        }
        self.meter.stop(&mut self.sessions);
    }

    /// Tells the daemon what it waits for. One that does not hear it is gone, which is noticed
    /// elsewhere.
    fn pass_told(&mut self, entry: EntryId, told: Told, now: CoarseInstant) {
        self.services.look_soon(entry);
        let message = match told {
            Told::Started(Ok(())) => FromCell::Started(entry),
            Told::Started(Err(error)) => {
                self.stop(entry, now);
                FromCell::StartFailed(entry, failure(&error.into()))
            }
            Told::Answered(answers) => FromCell::Answered(entry, answers),
            Told::Replaced(Ok(took)) => FromCell::Replaced(entry, took.0 / 1000),
            Told::Replaced(Err(error)) => FromCell::ReplaceFailed(entry, failure(&error.into())),
        };
        let _ = self.link.send(&message);
    }

    /// Takes a service away; what waited for it goes where it was going.
    pub(super) fn stop(&mut self, entry: EntryId, now: CoarseInstant) -> ServiceReport {
        let Some(mut service) = self.services.take(entry) else { return ServiceReport::default() };
        self.sessions.watch(entry, service.watches_in(), None);
        let session = service.facts.session;
        for (packet, way) in service.dissolve(&mut self.path.pool) {
            self.sessions.release(session, way.room);
            self.go_past(packet, way.meta, now);
            self.services.leave_epochs(way.counted_by.map(|entry| (entry, way.meta.epoch())));
        }
        self.sessions.sent(session, Bytes(service.bytes_out));
        service.report()
    }
}

/// For whom the thread runs: beside the turns, which are hooks and packets that are handled as
/// they come, the clock is read when that changes, not for each packet; and behind them, when
/// what they left is sent.
#[derive(Debug)]
pub(super) struct Meter {
    running: Option<(SessionId, Nanos)>,
    /// Turns that have left packets to send, and how many each; and all of them.
    unsent: Vec<(sessions::Next, u64)>,
    unsent_packets: u64,
    /// How long it takes to send a packet that a turn leaves, of late.
    sending: Nanos,
    /// How late the timer is, of late.
    late: Nanos,
}

impl Meter {
    pub(super) fn new() -> Self {
        let unsent = Vec::with_capacity(SEND_AT as usize);
        Self { running: None, unsent, unsent_packets: 0, sending: Nanos::ZERO, late: Nanos::ZERO }
    }

    /// From now on for this one.
    #[inline]
    pub(super) fn run_for(&mut self, sessions: &mut Sessions, session: SessionId) {
        if self.running.is_none_or(|(running, _)| running != session) {
            let now = pacer::now();
            self.settle(sessions, now);
            self.running = Some((session, now));
        }
    }

    /// A turn has left so many packets to send.
    fn sent(&mut self, turn: sessions::Next, packets: u64) {
        if packets > 0 {
            self.unsent.push((turn, packets));
            self.unsent_packets += packets;
        }
    }

    /// Packets that turns have left to send.
    const fn unsent(&self) -> u64 {
        self.unsent_packets
    }

    /// They were sent together, which took so long: each turn's session is charged for its part.
    fn settle_sent(&mut self, sessions: &mut Sessions, now: Nanos, took: Nanos) {
        let all = std::mem::take(&mut self.unsent_packets).max(1);
        self.sending = Nanos((7 * self.sending.0 + took.0 / all) / 8);
        for (turn, packets) in self.unsent.drain(..) {
            sessions.charge_sending(now, &turn, Nanos(took.0 * packets / all));
        }
    }

    /// How long it will take to send a packet that a turn leaves.
    const fn sending(&self) -> Nanos {
        self.sending
    }

    /// How long it will take to send what earlier turns of this one have left.
    fn owed(&self, turn: &sessions::Next) -> Nanos {
        let processor = turn.dispatch.processor;
        let own = self.unsent.iter().filter(|(it, _)| it.dispatch.processor == processor);
        Nanos(own.map(|(_, packets)| packets * self.sending.0).sum())
    }

    /// So long before the end of such a slice the timer has to come, or it may come too late. What
    /// is looked at closely makes little progress: a short slice is not spent on that.
    fn ahead(&self, slice: Nanos) -> Nanos {
        Nanos((self.late.0 + LATER.0).min(slice.0 / CLOSE_OF))
    }

    /// A turn that began then is over: when the timer came, if it did.
    fn saw(&mut self, begin: Nanos, pacer: &Pacer) {
        let Some((asked, came)) = pacer.seen() else { return };
        // It was asked before the sandbox was entered.
        if asked > begin {
            let late = came.saturating_sub(asked).0.min(LATE_MAX.0);
            self.late = Nanos((7 * self.late.0 + late) / 8);
        }
    }

    /// For nobody any more.
    pub(super) fn stop(&mut self, sessions: &mut Sessions) {
        if self.running.is_some() {
            self.settle(sessions, pacer::now());
        }
    }

    fn settle(&mut self, sessions: &mut Sessions, now: Nanos) {
        if let Some((session, since)) = self.running.take() {
            sessions.charge_beside(session, now.saturating_sub(since));
        }
    }
}
