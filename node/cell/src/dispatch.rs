//! Packets, turns and hooks through the services of a cell.
//!
//! ```text
//!  on_packet ─ nobody takes turns ─▶ visit ─▶ the next service of its graph, or out
//!      └ else: waits in its lane ─ run_turns ─▶ work ─▶ the same
//!  ask, tick, messages ─▶ attend: at once, or in the session's turns
//! ```
//!
//! One turn of the loop is one round of turns of at most `TURN_MAX`, so that what has come
//! meanwhile is seen, and somebody with an earlier deadline does not wait for longer. Short ones
//! follow each other for as long: with a thousand sessions each has a packet or two, and looking
//! costs as much as they do.

mod prefetch;
#[cfg(test)]
pub(crate) mod tests;

use crate::control::link::Link;
use crate::control::round::Round;
use crate::datapath::associations::Taken;
use crate::datapath::{Datapath, Next, checksum, source};
use crate::memory::Memory;
use crate::protocol::{
    Answer, CellReport, Failure, FromCell, PortFacts, Question, ServiceReport, SessionFacts,
};
use crate::sched::pacer;
use crate::sched::sessions::Sessions;
use crate::sched::{Scheduler, Timer};
use crate::service::mailbox::{self, Mailbox};
use crate::service::shared::Shared;
use crate::service::table::Services;
use crate::service::{
    Aftermath, Control, Notices, Outbox, Ready, Sequel, Service, Told, Turn, Way,
};
use crate::streams::turns::StreamTurns;
use abi::layout::MARK_LENGTH;
use anyhow::Result;
use bpf_maps::{META_COUNTED, META_DATA, PacketMeta, RULE_NONE};
use engine::Engine;
use executor::{Slicer, TURN_MAX};
use node::door::Decision;
use prefetch::Prefetch;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use units::{Bytes, CoarseInstant, EntryId, Nanos, PortId, SessionId};
use xsk::Packet;

/// Packets taken from one socket before the next one has its turn.
pub(crate) const BATCH: usize = 64;
const _: () = assert!(mailbox::WAITING_MAX == 4 * BATCH, "each call of a batch may send four");
/// Shortest time that has to be left of a round for another turn to begin.
const TURN_MIN: Nanos = Nanos(TURN_MAX.0 / 4);

/// Owner of services, of the thread's time, and of the data path.
pub(crate) struct Dispatcher<T = Slicer> {
    engine: Engine,
    services: Services,
    path: Datapath,
    scheduler: Scheduler<T>,
    prefetch: Prefetch,
    mailbox: Mailbox,
    /// Packets for a service that is not there; and of them, dropped.
    unserved: [u64; 2],
}

impl<T: Timer> Dispatcher<T> {
    /// Creates a dispatcher without services.
    pub(crate) fn new(engine: Engine, path: Datapath, scheduler: Scheduler<T>) -> Self {
        Self {
            engine,
            services: Services::default(),
            path,
            scheduler,
            prefetch: Prefetch::default(),
            mailbox: Mailbox::default(),
            unserved: [0; 2],
        }
    }

    /// Returns the services.
    pub(crate) const fn services(&self) -> &Services {
        &self.services
    }

    /// Returns the services.
    pub(crate) const fn services_mut(&mut self) -> &mut Services {
        &mut self.services
    }

    /// Returns the data path.
    pub(crate) const fn path(&self) -> &Datapath {
        &self.path
    }

    /// Returns the data path.
    #[inline]
    pub(crate) const fn path_mut(&mut self) -> &mut Datapath {
        &mut self.path
    }

    /// Returns the scheduler of the thread's time.
    pub(crate) const fn scheduler(&self) -> &Scheduler<T> {
        &self.scheduler
    }

    /// Returns the scheduler of the thread's time.
    pub(crate) const fn scheduler_mut(&mut self) -> &mut Scheduler<T> {
        &mut self.scheduler
    }

    /// Lends the data path with the sessions that its packets are of.
    pub(crate) const fn path_and_sessions(&mut self) -> (&mut Datapath, &mut Sessions) {
        (&mut self.path, self.scheduler.sessions_mut())
    }

    /// Returns true while messages between modules wait.
    pub(crate) fn has_messages(&self) -> bool {
        self.mailbox.waiting() > 0
    }

    /// Adds what was counted to a report.
    pub(crate) fn report(&self, report: &mut CellReport) {
        [report.no_service, report.no_service_dropped] = self.unserved;
        self.path.report(report);
        self.mailbox.report(report);
    }

    /// Begins a batch of packets from a socket.
    #[inline]
    pub(crate) fn begin_batch(&mut self, batch: &VecDeque<Packet>) {
        self.scheduler.arm();
        self.prefetch.handle_batch(batch, &self.services, self.scheduler.sessions());
    }

    /// Ends a batch: what was done for it is accounted.
    pub(crate) fn end_batch(&mut self) {
        self.scheduler.stop();
    }

    /// Has code interrupted that runs too long.
    pub(crate) fn arm(&mut self) {
        self.scheduler.arm();
    }

    /// Gives sockets frames to receive into; returns whether one still transmits.
    pub(crate) fn refill(&mut self) -> bool {
        self.path.refill(self.scheduler.sessions().ready())
    }

    /// Has the devices take what was sent. When they have all, lanes may go below: nothing
    /// from there overtakes it.
    pub(crate) fn flush(&mut self) {
        self.scheduler.sessions_mut().say_released();
        if self.path.flush() && self.services.is_leaving() {
            self.services.handle_sent(|session| self.path.waits(session));
        }
    }

    /// Sends what may leave of shared ports by now; returns true when something did.
    pub(crate) fn send_waiting(&mut self) -> bool {
        let has_sent = self.path.poll_waiting(self.scheduler.sessions_mut());
        if has_sent {
            self.flush();
        }
        has_sent
    }

    /// Sends a packet out by the port that a rule names; returns the outcome.
    pub(crate) fn leave_by(
        &mut self,
        bytes: &[u8],
        decision: &Decision,
        ports: (u16, PortId),
        session: SessionId,
    ) -> usize {
        self.path.leave_by(bytes, decision, ports, (session, self.scheduler.sessions_mut()))
    }

    /// Sends a packet on that a module at kernel level is through with.
    #[cold]
    pub(crate) fn on_packet_from_below(&mut self, packet: Packet, meta: PacketMeta) {
        self.path.handle_from_below(packet, meta, self.scheduler.sessions_mut());
        let service = self.services.get_mut(EntryId(meta.entry));
        if let Some(shared) = service.and_then(Service::shared_mut) {
            shared.leave_past(meta.epoch());
            self.services.leaves(true);
        }
    }

    /// Takes a packet through the services of its graph, or has it wait for its turn.
    #[inline]
    pub(crate) fn on_packet(&mut self, mut packet: Packet, mut way: Way, round: &mut Round<'_>) {
        self.count_arrival(&packet, &mut way);
        checksum::complete(&mut packet, &way.meta);
        source::keep(&mut packet, &mut way.meta);
        let meta = way.meta;
        if meta.entry == node::ASSOCIATIONS.0 {
            self.release_credit(&way);
            return self.on_active_packet(packet, meta, round);
        }
        if self.must_wait(EntryId(meta.entry)) {
            return self.enqueue(packet, way, round);
        }
        self.release_credit(&way);
        if self.visit(packet, &way, round) && self.continue_graph(EntryId(meta.entry), round) {
            let first = self.services.get_mut(EntryId(meta.entry));
            let leaves = first.is_some_and(|service| service.leave(meta.epoch()));
            self.services.leaves(leaves);
        }
    }

    /// Handles a frame for the node's associations.
    #[inline(never)]
    fn on_active_packet(&mut self, mut packet: Packet, meta: PacketMeta, round: &mut Round<'_>) {
        match self.path.open(&mut packet, &meta, round.now) {
            Taken::Call(entry) => self.call(packet, meta, entry, round),
            Taken::End => packet.recycle(self.path.pool()),
            Taken::Kernel => self.path.hand_back(packet, &meta, self.scheduler.sessions_mut()),
            Taken::Wait(question) => {
                self.path.keep(packet, meta, round.now);
                // A daemon that is busy, or not there, is asked again by a later packet.
                if let Some(question) = question
                    && !round.link.try_send(&FromCell::Calls(question)).unwrap_or(false)
                {
                    self.path.handle_answer(question, Answer::Refused { for_ms: 0 }, round.now);
                }
            }
        }
    }

    /// Takes the daemon's word whom packets call; those that waited for it go on.
    pub(crate) fn on_answer(&mut self, question: Question, answer: Answer, round: &mut Round<'_>) {
        self.path.handle_answer(question, answer, round.now);
        self.scheduler.arm();
        while let Some((packet, meta, entry)) = self.path.poll_call() {
            self.call(packet, meta, entry, round);
        }
    }

    /// Gives the payload of an active packet to the service that it calls.
    fn call(
        &mut self,
        packet: Packet,
        mut meta: PacketMeta,
        entry: EntryId,
        round: &mut Round<'_>,
    ) {
        meta.entry = entry.0;
        meta.flags |= META_DATA;
        meta.then = [RULE_NONE; 2];
        self.hand_on(packet, meta, entry, round);
    }

    /// Gives a packet to a service that nobody counts for: at once, or when its turn has come.
    fn hand_on(&mut self, packet: Packet, meta: PacketMeta, entry: EntryId, round: &mut Round<'_>) {
        let mark = [0; MARK_LENGTH];
        let way = Way { meta, mark, batch: None, counted_by: None, room: Bytes::ZERO };
        if self.must_wait(entry) {
            self.enqueue(packet, way, round);
        } else if self.visit(packet, &way, round) {
            self.continue_graph(entry, round);
        }
    }

    /// Returns whether packets for a service wait for its session's turn, or behind others.
    #[inline]
    fn must_wait(&self, entry: EntryId) -> bool {
        self.scheduler.takes_turns() || self.services.is_busy(entry)
    }

    /// Takes what a service passed on through the others of its graph. Returns false when it waits
    /// in one of them, which then says when it is through.
    #[cold]
    fn continue_graph(&mut self, mut entry: EntryId, round: &mut Round<'_>) -> bool {
        while let Some((packet, way)) = self.services.get_mut(entry).and_then(Service::take_onward)
        {
            entry = EntryId(way.meta.entry);
            if self.must_wait(entry) {
                self.enqueue(packet, way, round);
                return false;
            }
            if !self.visit(packet, &way, round) {
                return true;
            }
        }
        true
    }

    /// Gives a packet to its service; returns true when it goes on to another.
    #[inline]
    fn visit(&mut self, packet: Packet, way: &Way, round: &mut Round<'_>) -> bool {
        let entry = EntryId(way.meta.entry);
        let Some(service) = self.services.get_mut(entry) else {
            self.bypass(packet, way.meta, round);
            return false;
        };
        let session = service.session();
        self.scheduler.run_for(session);
        let mut exits = self.path.exits(self.scheduler.sessions_mut(), session);
        let after = service.handle(&self.engine, packet, way, round.now, &mut exits);
        service.count_sent(exits.sent());
        self.on_aftermath(entry, &after, round.link);
        after.passed_on
    }

    /// Sends a packet on whose service is not there, since its rule is on its way out: it goes
    /// where it was going.
    #[cold]
    fn bypass(&mut self, packet: Packet, mut meta: PacketMeta, round: &mut Round<'_>) {
        let [no_service, dropped] = &mut self.unserved;
        *no_service += 1;
        if meta.flags & META_DATA != 0 {
            *dropped += 1;
            return packet.recycle(self.path.pool());
        }
        let mut exits = self.path.exits(self.scheduler.sessions_mut(), SessionId::BEST_EFFORT);
        let is_lost = match exits.next_stage(&mut meta) {
            Next::Service(entry) => return self.hand_on(packet, meta, entry, round),
            Next::Out => exits.forward(packet, &meta).is_lost(),
            Next::By(port, session) => exits.leave_by(packet, &meta, (port, session)).is_lost(),
            Next::Down | Next::Drop => {
                exits.recycle(packet);
                true
            }
        };
        *dropped += u64::from(is_lost);
    }

    /// Has a packet wait for its session's turn, if there is room.
    fn enqueue(&mut self, packet: Packet, mut way: Way, round: &mut Round<'_>) {
        let entry = EntryId(way.meta.entry);
        let sessions = self.scheduler.sessions_mut();
        let Some(service) = self.services.get_mut(entry) else {
            self.release_credit(&way);
            self.bypass(packet, way.meta, round);
            return self.leave_lane(&way);
        };
        let session = service.session();
        let memory = Bytes(packet.memory_length() as u64);
        if way.room > Bytes::ZERO || sessions.admit(session, memory) {
            way.room = memory;
            // Its session knows of it already otherwise: the clock is not read for each packet.
            if let Some(task) = service.enqueue(packet, way) {
                sessions.wake(pacer::now(), session, task);
            }
        } else {
            sessions.refused(session, &packet);
            let turn = service.refuse(packet, &way, self.path.pool());
            self.services.leaves(turn.after.leaves);
            self.services.leave_epochs(turn.departed);
        }
    }

    /// Notes that a packet has come for which the front door has taken room in a session's queue.
    #[inline]
    fn count_arrival(&mut self, packet: &Packet, way: &mut Way) {
        let Some(epoch) = way.meta.counted_in() else { return };
        way.meta.flags &= !META_COUNTED;
        way.room = Bytes(packet.memory_length() as u64);
        self.scheduler.sessions_mut().come(self.services.payer(way), way.room, epoch);
    }

    /// Releases a packet's queue credit.
    #[inline]
    fn release_credit(&mut self, way: &Way) {
        if way.room > Bytes::ZERO {
            self.scheduler.sessions_mut().release(self.services.payer(way), way.room);
        }
    }

    /// Finds what was sent up in the epoch that is closed, and is lost: all that is in the rings
    /// has been taken.
    pub(crate) fn end_epoch(&mut self, now: CoarseInstant) {
        let sessions = self.scheduler.sessions_mut();
        self.path.settle(sessions.closed_epoch());
        sessions.settle_rooms(now);
    }

    /// Takes what a session was promised.
    pub(crate) fn set_session(&mut self, now: Nanos, facts: &SessionFacts) {
        let sessions = self.scheduler.sessions_mut();
        sessions.set(now, facts);
        self.path.set_session(now, facts, sessions);
    }

    /// Forgets a session that is gone.
    pub(crate) fn forget_session(&mut self, now: Nanos, id: SessionId) {
        let sessions = self.scheduler.sessions_mut();
        self.path.forget_session(now, id, sessions);
        sessions.forget(now, id);
    }

    /// Binds a queue of a port; returns what the daemon is told of that.
    pub(crate) fn add_port(&mut self, facts: &PortFacts, fd: OwnedFd) -> FromCell {
        let sessions = self.scheduler.sessions_mut();
        let frames = (sessions.ready(), sessions.memory().leaving());
        match self.path.add_port(facts, fd, frames, sessions) {
            Ok(()) => FromCell::PortReady(facts.port, facts.queue),
            Err(error) => FromCell::PortFailed(facts.port, facts.queue, error.to_string()),
        }
    }

    /// Begins a service that has been prepared.
    pub(crate) fn start(&mut self, ready: Ready, round: &mut Round<'_>) {
        let service = Service::begin(ready, self.scheduler.pacer(), Vec::new(), round.now);
        let entry = service.entry();
        self.services.insert(service);
        self.attend(entry, round);
    }

    /// Takes a service away; what waited for it goes where it was going.
    pub(crate) fn stop(&mut self, entry: EntryId, round: &mut Round<'_>) -> ServiceReport {
        let Some(mut service) = self.services.take(entry) else { return ServiceReport::default() };
        self.scheduler.sessions_mut().watch(entry, service.watches_in(), None);
        let session = service.session();
        let (waiting, given_up) = service.dissolve(self.path.pool());
        for way in given_up {
            self.scheduler.sessions_mut().release(session, way.room);
            self.leave_lane(&way);
        }
        for (packet, way) in waiting {
            self.scheduler.sessions_mut().release(session, way.room);
            self.bypass(packet, way.meta, round);
            self.leave_lane(&way);
        }
        self.scheduler.sessions_mut().sent(session, service.bytes_out());
        service.report()
    }

    /// Takes every service away but these, as [`Self::stop`] does.
    pub(crate) fn retain(&mut self, keep: impl Fn(EntryId) -> bool, round: &mut Round<'_>) {
        let all = self.services.iter().map(Service::entry);
        let gone: Vec<EntryId> = all.filter(|&entry| !keep(entry)).collect();
        for entry in gone {
            self.stop(entry, round);
        }
    }

    /// Notes that a packet is through with its graph, for the lane that has counted it.
    fn leave_lane(&mut self, way: &Way) {
        self.services.leave_epochs(way.counted_by.map(|entry| (entry, way.meta.epoch())));
    }

    /// Counts anew, or settles, what a service's lane has sent up.
    pub(crate) fn recount(&mut self, entry: EntryId, act: impl FnOnce(&mut Shared)) {
        if let Some(shared) = self.services.get_mut(entry).and_then(Service::shared_mut) {
            act(shared);
        }
    }

    /// Has a service's packets handled at another level, and tells the daemon; returns whether
    /// they may leave user level from now on.
    ///
    /// # Errors
    /// When the daemon cannot be told.
    pub(crate) fn set_level(
        &mut self,
        entry: EntryId,
        level: u32,
        round: &mut Round<'_>,
    ) -> Result<bool> {
        let service = self.services.get_mut(entry);
        if service.as_ref().is_some_and(|service| service.is_unknown()) {
            // It was meant for the version before; the daemon has forgotten it when it hears.
            return Ok(false);
        }
        let is_set = service.is_some_and(|service| service.set_level(level, round.now));
        // The lane is looked at from now on.
        self.services.look_at(entry, CoarseInstant::ZERO);
        self.report_traps(entry, round.link);
        let answer = if is_set { FromCell::Targeted } else { FromCell::TargetFailed };
        round.link.send(&answer(entry))?;
        Ok(is_set)
    }

    /// Lets services work whose turn it is, and sends what they left. Returns false when it is
    /// nobody's.
    pub(crate) fn run_turns(&mut self, streams: &mut StreamTurns, round: &mut Round<'_>) -> bool {
        let begin = pacer::now();
        let until = begin + TURN_MAX;
        self.scheduler.handle_turns(begin);
        let mut end = begin;
        loop {
            self.prefetch.handle_turn(&self.services, self.scheduler.sessions());
            let Some(ended) = self.work((end, until), streams, round) else { break };
            self.prefetch.turn_taken();
            end = ended;
            if self.scheduler.must_send() {
                end = self.send_for_turns(end);
            }
            if end + TURN_MIN > until {
                break;
            }
        }
        if self.scheduler.has_unsent() {
            end = self.send_for_turns(end);
        }
        end > begin
    }

    /// Sends what turns have left, on their accounts; returns until when that took.
    fn send_for_turns(&mut self, begin: Nanos) -> Nanos {
        self.flush();
        let end = pacer::now();
        self.scheduler.settle_sent(begin, end);
        end
    }

    /// Lets the service work whose turn it is, until the end of the round if nobody was promised
    /// more; returns until when it did. `None` when it is nobody's.
    fn work(
        &mut self,
        (begin, until): (Nanos, Nanos),
        streams: &mut StreamTurns,
        round: &mut Round<'_>,
    ) -> Option<Nanos> {
        let next = self.scheduler.next(begin)?;
        let (entry, pool) = (next.task.entry, usize::from(next.task.pool));
        let Some(service) = self.services.get_mut(entry) else {
            let worked = streams.work(begin, &next, &mut self.scheduler);
            if worked.is_none() {
                self.scheduler.skip_turn(begin, &next);
            }
            return worked.or(Some(begin));
        };
        let session = service.session();
        let is_timed = !service.is_brief();
        let portion =
            self.scheduler.begin_turn((begin, until), &next, is_timed, |slice, sending| {
                service.fit(slice, sending)
            });
        let mut exits = self.path.exits(self.scheduler.sessions_mut(), session);
        let turn = service.work(&self.engine, pool, portion, round.now, &mut exits);
        let bytes = exits.sent();
        service.count_sent(bytes);
        self.scheduler.handle_ran(begin);
        let sent = if bytes > 0 { turn.handled } else { 0 };
        let Turn { after, handled_room, departed, told, through_at, .. } = turn;
        // The clock is not read for what is done in a moment.
        let is_through = !(after.trapped || after.emitted || after.passed_on) && told.is_none();
        let through_at = through_at.filter(|_| is_through);
        self.scheduler.sessions_mut().release(session, handled_room);
        self.on_aftermath(entry, &after, round.link);
        self.services.leave_epochs(departed);
        if let Some(told) = told {
            self.report_told(entry, told, round);
        }
        while let Some((packet, way)) = self.services.get_mut(entry).and_then(Service::take_onward)
        {
            self.enqueue(packet, way, round);
        }
        let end = through_at.unwrap_or_else(pacer::now);
        let service = self.services.get(entry);
        let is_idle = service.is_none_or(|service| !service.wants(pool));
        for other in service.into_iter().flat_map(|service| service.others_that_want(pool)) {
            self.scheduler.sessions_mut().wake(end, session, other);
        }
        self.scheduler.end_turn((begin, end), next, is_idle, sent);
        Some(end)
    }

    /// Asks a service for something; returns false when too much waits for it already.
    pub(crate) fn ask(&mut self, entry: EntryId, control: Control, round: &mut Round<'_>) -> bool {
        let is_taken = self.services.get_mut(entry).is_some_and(|service| service.ask(control));
        self.attend(entry, round);
        is_taken
    }

    /// Has a service do what it is asked for: in its session's turns, or at once where nobody
    /// takes turns.
    fn attend(&mut self, entry: EntryId, round: &mut Round<'_>) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let Some(task) = service.asked_task() else { return };
        let session = service.session();
        if self.scheduler.takes_turns() || !service.may_answer() {
            return self.scheduler.sessions_mut().wake(pacer::now(), session, task);
        }
        self.scheduler.begin_hook(session);
        while let Some(service) =
            self.services.get_mut(entry).filter(|service| service.may_answer())
        {
            let turn = service.answer(&self.engine, Nanos(u64::MAX), round.now);
            let Turn { after, told, .. } = turn;
            self.on_aftermath(entry, &after, round.link);
            if let Some(told) = told {
                self.report_told(entry, told, round);
            }
        }
        self.scheduler.stop();
    }

    /// Looks at those services whose time has come by the exact clock. Their hooks are told the
    /// time of the loop, `round.now`, which packets have, too: it never goes back.
    pub(crate) fn tick(&mut self, round: &mut Round<'_>) {
        let exact = CoarseInstant::from_nanos(pacer::now());
        if exact < self.services.poll_timeout() {
            return;
        }
        self.scheduler.arm();
        let due = self.services.take_due(exact);
        for &entry in &due {
            let Some(service) = self.services.get_mut(entry) else { continue };
            self.scheduler.run_for(service.session());
            let next = service.tick(exact);
            self.services.look_at(entry, next);
        }
        self.scheduler.stop();
        for entry in due {
            self.attend(entry, round);
            self.report_traps(entry, round.link);
            self.emit(entry, round.link);
        }
    }

    /// Tells services whose sessions have little memory left.
    pub(crate) fn report_low_memory(&mut self, accounts: &Memory, round: &mut Round<'_>) {
        while let Some(low) = accounts.poll_low() {
            for entry in self.services.of_session(low.session) {
                self.ask(entry, Control::MemoryLow(low), round);
            }
        }
    }

    /// Gives the daemon what a capture asked for; what does not get through is counted.
    pub(crate) fn send_tapped(&mut self, link: &mut Link) {
        let Some(tap) = self.path.tap() else { return };
        let (tapped, mut lost) = tap.take();
        for one in tapped {
            let is_sent = link.try_send(&FromCell::Tapped(Box::new(one)));
            lost += u64::from(!is_sent.unwrap_or_default());
        }
        self.path.lose_tapped(lost);
    }

    /// Tells services that watch their sessions' queues what happened there.
    pub(crate) fn report_queues(&mut self, round: &mut Round<'_>) {
        while let Some((entry, event)) = self.scheduler.sessions_mut().poll_event() {
            self.ask(entry, Control::Queue(event), round);
        }
    }

    /// Gives modules what those after them sent; at most as many as there are now, for who
    /// gets one may send another.
    pub(crate) fn deliver_messages(&mut self, round: &mut Round<'_>) {
        for _ in 0..self.mailbox.waiting() {
            let services = &self.services;
            let Some(letters) = self.mailbox.poll_letter(|from| services.before(from)) else {
                return;
            };
            for (entry, letter) in letters {
                self.ask(entry, Control::Message(letter), round);
            }
        }
    }

    /// Does what is left to do behind calls of a service.
    #[inline]
    fn on_aftermath(&mut self, entry: EntryId, after: &Aftermath, link: &mut Link) {
        if after.trapped {
            self.report_traps(entry, link);
        }
        if after.emitted {
            self.emit(entry, link);
        }
        if after.trapped || after.emitted {
            self.settle_watch(entry);
        }
        self.services.leaves(after.leaves);
    }

    /// Sends what the service's lanes emitted, and passes on what they tell others.
    fn emit(&mut self, entry: EntryId, link: &mut Link) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let mut outbox = Outbox::default();
        if let Some(tap) = self.path.tap() {
            tap.forget();
        }
        let mut exits = self.path.exits(self.scheduler.sessions_mut(), service.session());
        service.take_emitted(&mut exits, &mut outbox);
        self.post(outbox, link);
    }

    /// Sends frames that in-kernel programs left, and passes on what they tell others.
    pub(crate) fn take_records(&mut self, link: &mut Link) {
        let mut outbox = Outbox::default();
        if let Some(tap) = self.path.tap() {
            tap.forget();
        }
        for at in 0..self.services.with_lanes().len() {
            let entry = self.services.with_lanes()[at];
            let Some(service) = self.services.get_mut(entry) else { continue };
            let mut exits = self.path.exits(self.scheduler.sessions_mut(), service.session());
            service.take_records(&mut exits, &mut outbox);
        }
        self.post(outbox, link);
    }

    fn post(&mut self, outbox: Outbox, link: &mut Link) {
        for (entry, event) in outbox.events {
            link.notice(&FromCell::Event(entry, event.code, event.data));
        }
        self.mailbox.handle_sent(outbox.messages);
    }

    /// Takes what a service wants to be told of a queue from now on.
    fn settle_watch(&mut self, entry: EntryId) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let session = service.session();
        if let Some((before, watch)) = service.take_watch() {
            let watch = watch.map(|watch| (session, watch));
            self.scheduler.sessions_mut().watch(entry, before, watch);
        }
    }

    /// Tells the daemon of the service's traps and of what became of its replacement, and has lanes
    /// that could not be started again wait for their turn in [`Self::tick`].
    fn report_traps(&mut self, entry: EntryId, link: &mut Link) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let Notices { trapped, traps, sequel } = service.take_notices();
        for trapped in trapped {
            link.notice(&FromCell::Trapped(entry, trapped.lane, trapped.trap.to_string(), traps));
            self.services.look_at(entry, CoarseInstant::ZERO);
        }
        let message = match sequel {
            Some(Sequel::Kept) => FromCell::Kept(entry),
            Some(Sequel::PutBack(reason)) => FromCell::PutBack(entry, reason),
            None => return,
        };
        // A daemon that does not hear it is gone, which is noticed elsewhere.
        let _ = link.send(&message);
    }

    /// Tells the daemon what it waits for. One that does not hear it is gone, which is noticed
    /// elsewhere.
    fn report_told(&mut self, entry: EntryId, told: Told, round: &mut Round<'_>) {
        self.services.look_soon(entry);
        let message = match told {
            Told::Started(Ok(())) => FromCell::Started(entry),
            Told::Started(Err(error)) => {
                self.stop(entry, round);
                FromCell::StartFailed(entry, Failure::of(&error.into()))
            }
            Told::Answered(answers) => FromCell::Answered(entry, answers),
            Told::Replaced(Ok(took)) => FromCell::Replaced(entry, took.0 / 1000),
            Told::Replaced(Err(error)) => {
                FromCell::ReplaceFailed(entry, Failure::of(&error.into()))
            }
        };
        let _ = round.link.send(&message);
    }
}
