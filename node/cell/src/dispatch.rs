//! Dispatch of packets, turns and hooks to the services of a cell.
//!
//! ```text
//!  on_packet ─ sessions take no turns ─▶ visit ─▶ the next service of its graph, or out
//!      └ else: queued in its lane ─ run_turns ─▶ work ─▶ the same
//!  request, tick, messages ─▶ run_requests: at once, or in the session's turns
//! ```
//!
//! A pass of the loop runs turns for at most `TURN_MAX`, so that arriving packets are noticed,
//! and a session with an earlier deadline waits no longer than that. Short turns follow each other
//! for that time: with a thousand sessions each has a packet or two, and polling costs as much as
//! they do.

mod prefetch;
#[cfg(test)]
pub(crate) mod tests;

use crate::control::link::Link;
use crate::control::round::Round;
use crate::datapath::associations::ActiveDecision;
use crate::datapath::{Datapath, Next, checksum, source};
use crate::memory::Memory;
use crate::protocol::{
    Answer, CellPort, CellReport, Failure, FromCell, Question, ServiceReport, SessionSpec,
};
use crate::sched::pacer;
use crate::sched::sessions::Sessions;
use crate::sched::{Scheduler, Timer};
use crate::service::mailbox::{self, Mailbox};
use crate::service::shared::Shared;
use crate::service::table::Services;
use crate::service::{
    Aftermath, Control, Notices, Origin, Outbox, Ready, ReplaceOutcome, Reply, Service, TurnResult,
};
use crate::streams::turns::StreamTurns;
use abi::layout::MARK_LENGTH;
use anyhow::Result;
use bpf_maps::{META_COUNTED, META_DATA, PacketMeta, RULE_NONE};
use engine::Engine;
use executor::{PreemptionTimer, TURN_MAX};
use node::door::Decision;
use prefetch::Prefetch;
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use units::{Bytes, CoarseInstant, EntryId, Nanos, PortId, SessionId};
use xsk::Packet;

/// Packets taken from one socket before the next one is served.
pub(crate) const BATCH: usize = 64;
const _: () = assert!(mailbox::WAITING_MAX == 4 * BATCH, "each call of a batch may send four");
/// Least time left of a round for another turn to begin.
const TURN_MIN: Nanos = Nanos(TURN_MAX.0 / 4);

/// Owner of services, of the thread's time, and of the data path.
pub(crate) struct Dispatcher<T = PreemptionTimer> {
    engine: Engine,
    services: Services,
    path: Datapath,
    scheduler: Scheduler<T>,
    prefetch: Prefetch,
    mailbox: Mailbox,
    /// Number of packets for services that do not exist, and of those that were dropped.
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

    /// Lends the data path together with the sessions.
    pub(crate) const fn path_and_sessions(&mut self) -> (&mut Datapath, &mut Sessions) {
        (&mut self.path, self.scheduler.sessions_mut())
    }

    /// Returns true while messages between modules wait.
    pub(crate) fn has_messages(&self) -> bool {
        self.mailbox.waiting() > 0
    }

    /// Adds its counters to a report.
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

    /// Ends a batch, and charges the time it took.
    pub(crate) fn end_batch(&mut self) {
        self.scheduler.stop();
    }

    /// Arms the timer that interrupts long calls.
    pub(crate) fn arm(&mut self) {
        self.scheduler.arm();
    }

    /// Fills the sockets with frames to receive into. Returns true if one still transmits.
    pub(crate) fn refill(&mut self) -> bool {
        self.path.refill(self.scheduler.sessions().ready())
    }

    /// Flushes the transmit rings to the devices. When they have sent all, lanes may go
    /// down: nothing sent there overtakes it.
    pub(crate) fn flush(&mut self) {
        self.scheduler.sessions_mut().publish_released();
        if self.path.flush() && self.services.is_leaving() {
            self.services.handle_sent(|session| self.path.waits(session));
        }
    }

    /// Sends packets of shared ports that may leave by now. Returns true if it sent any.
    pub(crate) fn send_waiting(&mut self) -> bool {
        let has_sent = self.path.poll_waiting(self.scheduler.sessions_mut());
        if has_sent {
            self.flush();
        }
        has_sent
    }

    /// Sends a packet by the port that a rule names; returns the outcome.
    pub(crate) fn send_by(
        &mut self,
        bytes: &[u8],
        decision: &Decision,
        ports: (u16, PortId),
        session: SessionId,
    ) -> usize {
        self.path.send_by(bytes, decision, ports, (session, self.scheduler.sessions_mut()))
    }

    /// Queues a packet to be sent that its module has handled at kernel level.
    #[cold]
    pub(crate) fn on_packet_from_below(&mut self, packet: Packet, meta: PacketMeta) {
        self.path.handle_from_below(packet, meta, self.scheduler.sessions_mut());
        let service = self.services.get_mut(EntryId(meta.entry));
        if let Some(shared) = service.and_then(Service::shared_mut) {
            shared.release_bypassed(meta.epoch());
            self.services.set_leaving(true);
        }
    }

    /// Takes a packet through the services of its graph, or queues it for its session's turn.
    #[inline]
    pub(crate) fn on_packet(
        &mut self,
        mut packet: Packet,
        mut origin: Origin,
        round: &mut Round<'_>,
    ) {
        self.count_arrival(&packet, &mut origin);
        checksum::complete(&mut packet, &origin.meta);
        source::keep(&mut packet, &mut origin.meta);
        let meta = origin.meta;
        if meta.entry == node::ASSOCIATIONS.0 {
            self.release_credit(&origin);
            return self.on_active_packet(packet, meta, round);
        }
        if self.must_wait(EntryId(meta.entry)) {
            return self.enqueue(packet, origin, round);
        }
        self.release_credit(&origin);
        if self.visit(packet, &origin, round) && self.continue_graph(EntryId(meta.entry), round) {
            let first = self.services.get_mut(EntryId(meta.entry));
            let leaves = first.is_some_and(|service| service.release(meta.epoch()));
            self.services.set_leaving(leaves);
        }
    }

    /// Handles a frame for the node's associations.
    #[inline(never)]
    fn on_active_packet(&mut self, mut packet: Packet, meta: PacketMeta, round: &mut Round<'_>) {
        match self.path.open(&mut packet, &meta, round.now) {
            ActiveDecision::Call(entry) => self.call(packet, meta, entry, round),
            ActiveDecision::End => packet.recycle(self.path.pool()),
            ActiveDecision::Kernel => {
                self.path.hand_back(packet, &meta, self.scheduler.sessions_mut())
            }
            ActiveDecision::Wait(question) => {
                self.path.keep(packet, meta, round.now);
                // A daemon that is busy, or absent, is asked again by a later packet.
                if let Some(question) = question
                    && !round.link.try_send(&FromCell::Call(question)).unwrap_or(false)
                {
                    self.path.handle_answer(question, Answer::Refused { for_ms: 0 }, round.now);
                }
            }
        }
    }

    /// Applies the daemon's answer about a digest; packets that waited for it are handled.
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

    /// Gives a service a packet that no lane has counted: at once, or in its session's turn.
    fn hand_on(&mut self, packet: Packet, meta: PacketMeta, entry: EntryId, round: &mut Round<'_>) {
        let mark = [0; MARK_LENGTH];
        let origin = Origin { meta, mark, batch: None, counted_by: None, credit: Bytes::ZERO };
        if self.must_wait(entry) {
            self.enqueue(packet, origin, round);
        } else if self.visit(packet, &origin, round) {
            self.continue_graph(entry, round);
        }
    }

    /// Returns true if packets for a service must wait for its session's turn, or behind others.
    #[inline]
    fn must_wait(&self, entry: EntryId) -> bool {
        self.scheduler.takes_turns() || self.services.is_busy(entry)
    }

    /// Takes a packet that a service passed on through the rest of its graph. Returns false if it
    /// is queued in one of the services, which then counts it as gone.
    #[cold]
    fn continue_graph(&mut self, mut entry: EntryId, round: &mut Round<'_>) -> bool {
        while let Some((packet, origin)) =
            self.services.get_mut(entry).and_then(Service::take_onward)
        {
            entry = EntryId(origin.meta.entry);
            if self.must_wait(entry) {
                self.enqueue(packet, origin, round);
                return false;
            }
            if !self.visit(packet, &origin, round) {
                return true;
            }
        }
        true
    }

    /// Runs a packet's service on it. Returns true if the packet goes on to another.
    #[inline]
    fn visit(&mut self, packet: Packet, origin: &Origin, round: &mut Round<'_>) -> bool {
        let entry = EntryId(origin.meta.entry);
        let Some(service) = self.services.get_mut(entry) else {
            self.bypass(packet, origin.meta, round);
            return false;
        };
        let session = service.session();
        self.scheduler.run_for(session);
        let mut egress_path = self.path.egress_path(self.scheduler.sessions_mut(), session);
        let after = service.handle(&self.engine, packet, origin, round.now, &mut egress_path);
        service.count_sent(egress_path.sent());
        self.on_aftermath(entry, &after, round.link);
        after.passed_on
    }

    /// Forwards a packet whose service does not exist, as if without its rule, which is being
    /// removed.
    #[cold]
    fn bypass(&mut self, packet: Packet, mut meta: PacketMeta, round: &mut Round<'_>) {
        let [no_service, dropped] = &mut self.unserved;
        *no_service += 1;
        if meta.flags & META_DATA != 0 {
            *dropped += 1;
            return packet.recycle(self.path.pool());
        }
        let mut egress_path =
            self.path.egress_path(self.scheduler.sessions_mut(), SessionId::BEST_EFFORT);
        let is_lost = match egress_path.next_stage(&mut meta) {
            Next::Service(entry) => return self.hand_on(packet, meta, entry, round),
            Next::Out => egress_path.forward(packet, &meta).is_lost(),
            Next::By(port, session) => {
                egress_path.send_by(packet, &meta, (port, session)).is_lost()
            }
            Next::Down | Next::Drop => {
                egress_path.recycle(packet);
                true
            }
        };
        *dropped += u64::from(is_lost);
    }

    /// Queues a packet for its session's turn, or drops it for lack of credit.
    fn enqueue(&mut self, packet: Packet, mut origin: Origin, round: &mut Round<'_>) {
        let entry = EntryId(origin.meta.entry);
        let sessions = self.scheduler.sessions_mut();
        let Some(service) = self.services.get_mut(entry) else {
            self.release_credit(&origin);
            self.bypass(packet, origin.meta, round);
            return self.release_from_lane(&origin);
        };
        let session = service.session();
        let memory = Bytes(packet.memory_length() as u64);
        if origin.credit > Bytes::ZERO || sessions.admit(session, memory) {
            origin.credit = memory;
            // If the session has work already, the clock is not read for the packet.
            if let Some(task) = service.enqueue(packet, origin) {
                sessions.wake(pacer::now(), session, task);
            }
        } else {
            sessions.on_refused(session, &packet);
            let turn = service.refuse(packet, &origin, self.path.pool());
            self.services.set_leaving(turn.after.is_leaving);
            self.services.release_epochs(turn.departed);
        }
    }

    /// Counts the arrival of a packet for which the front door took queue credit.
    #[inline]
    fn count_arrival(&mut self, packet: &Packet, origin: &mut Origin) {
        let Some(epoch) = origin.meta.counted_in() else { return };
        origin.meta.flags &= !META_COUNTED;
        origin.credit = Bytes(packet.memory_length() as u64);
        self.scheduler.sessions_mut().on_arrival(self.services.payer(origin), origin.credit, epoch);
    }

    /// Releases a packet's queue credit.
    #[inline]
    fn release_credit(&mut self, origin: &Origin) {
        if origin.credit > Bytes::ZERO {
            self.scheduler.sessions_mut().release(self.services.payer(origin), origin.credit);
        }
    }

    /// Releases the credit of packets of the closed epoch that never arrived. The caller has taken
    /// everything from the rings.
    pub(crate) fn end_epoch(&mut self, now: CoarseInstant) {
        let sessions = self.scheduler.sessions_mut();
        self.path.settle(sessions.closed_epoch());
        sessions.settle_credits(now);
    }

    /// Applies a session's reservation.
    pub(crate) fn set_session(&mut self, now: Nanos, facts: &SessionSpec) {
        let sessions = self.scheduler.sessions_mut();
        sessions.set(now, facts);
        self.path.set_session(now, facts, sessions);
    }

    /// Removes a session.
    pub(crate) fn forget_session(&mut self, now: Nanos, id: SessionId) {
        let sessions = self.scheduler.sessions_mut();
        self.path.forget_session(now, id, sessions);
        sessions.forget(now, id);
    }

    /// Binds a queue of a port; returns the message to the daemon.
    pub(crate) fn add_port(&mut self, facts: &CellPort, fd: OwnedFd) -> FromCell {
        let sessions = self.scheduler.sessions_mut();
        let frames = (sessions.ready(), sessions.memory().leaving());
        match self.path.add_port(facts, fd, frames, sessions) {
            Ok(()) => FromCell::PortReady(facts.port, facts.queue),
            Err(error) => FromCell::PortFailed(facts.port, facts.queue, error.to_string()),
        }
    }

    /// Starts a service that has been prepared.
    pub(crate) fn start(&mut self, ready: Ready, round: &mut Round<'_>) {
        let service = Service::begin(ready, self.scheduler.pacer(), Vec::new(), round.now);
        let entry = service.entry();
        self.services.insert(service);
        self.run_requests(entry, round);
    }

    /// Removes a service; its queued packets are forwarded without it.
    pub(crate) fn stop(&mut self, entry: EntryId, round: &mut Round<'_>) -> ServiceReport {
        let Some(mut service) = self.services.take(entry) else { return ServiceReport::default() };
        self.scheduler.sessions_mut().watch(entry, service.watches_in(), None);
        let session = service.session();
        let (waiting, given_up) = service.dissolve(self.path.pool());
        for origin in given_up {
            self.scheduler.sessions_mut().release(session, origin.credit);
            self.release_from_lane(&origin);
        }
        for (packet, origin) in waiting {
            self.scheduler.sessions_mut().release(session, origin.credit);
            self.bypass(packet, origin.meta, round);
            self.release_from_lane(&origin);
        }
        self.scheduler.sessions_mut().sent(session, service.bytes_out());
        service.report()
    }

    /// Removes all services but those of `keep`, as [`Self::stop`] does.
    pub(crate) fn retain(&mut self, keep: impl Fn(EntryId) -> bool, round: &mut Round<'_>) {
        let all = self.services.iter().map(Service::entry);
        let gone: Vec<EntryId> = all.filter(|&entry| !keep(entry)).collect();
        for entry in gone {
            self.stop(entry, round);
        }
    }

    /// Counts a packet that has left its graph as gone from the lane that counted it.
    fn release_from_lane(&mut self, origin: &Origin) {
        self.services.release_epochs(origin.counted_by.map(|entry| (entry, origin.meta.epoch())));
    }

    /// Applies a step of a recount to a service's lane.
    pub(crate) fn recount(&mut self, entry: EntryId, act: impl FnOnce(&mut Shared)) {
        if let Some(shared) = self.services.get_mut(entry).and_then(Service::shared_mut) {
            act(shared);
        }
    }

    /// Sets the level of a service's packets, and tells the daemon. Returns true if they may leave
    /// user level from now on.
    ///
    /// # Errors
    /// The daemon cannot be notified.
    pub(crate) fn set_level(
        &mut self,
        entry: EntryId,
        level: u32,
        round: &mut Round<'_>,
    ) -> Result<bool> {
        let service = self.services.get_mut(entry);
        if service.as_ref().is_some_and(|service| service.is_unknown()) {
            // The message was meant for the old version; the daemon discards it when it learns of
            // the new one.
            return Ok(false);
        }
        let is_set = service.is_some_and(|service| service.set_level(level, round.now));
        // The lane is polled from now on.
        self.services.poll_at(entry, CoarseInstant::ZERO);
        self.report_traps(entry, round.link);
        let answer = if is_set { FromCell::Targeted } else { FromCell::TargetFailed };
        round.link.send(&answer(entry))?;
        Ok(is_set)
    }

    /// Runs services' turns and sends what they queued to leave. Returns false if no session has
    /// work.
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

    /// Sends what turns queued to leave, and charges them; returns the time when it was done.
    fn send_for_turns(&mut self, begin: Nanos) -> Nanos {
        self.flush();
        let end = pacer::now();
        self.scheduler.settle_sent(begin, end);
        end
    }

    /// Runs one turn, until the end of the round unless the session was promised more; returns the
    /// time when it ended. `None` if no session has work.
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
        let mut egress_path = self.path.egress_path(self.scheduler.sessions_mut(), session);
        let turn = service.work(&self.engine, pool, portion, round.now, &mut egress_path);
        let bytes = egress_path.sent();
        service.count_sent(bytes);
        self.scheduler.handle_ran(begin);
        let sent = if bytes > 0 { turn.handled } else { 0 };
        let TurnResult { after, handled_credit, departed, reply, through_at, .. } = turn;
        // The clock is not read for work that takes a moment.
        let is_through = !(after.trapped || after.emitted || after.passed_on) && reply.is_none();
        let through_at = through_at.filter(|_| is_through);
        self.scheduler.sessions_mut().release(session, handled_credit);
        self.on_aftermath(entry, &after, round.link);
        self.services.release_epochs(departed);
        if let Some(reply) = reply {
            self.send_reply(entry, reply, round);
        }
        while let Some((packet, origin)) =
            self.services.get_mut(entry).and_then(Service::take_onward)
        {
            self.enqueue(packet, origin, round);
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

    /// Queues a request to a service. Returns false if its queue is full.
    pub(crate) fn request(
        &mut self,
        entry: EntryId,
        control: Control,
        round: &mut Round<'_>,
    ) -> bool {
        let is_taken = self.services.get_mut(entry).is_some_and(|service| service.request(control));
        self.run_requests(entry, round);
        is_taken
    }

    /// Runs a service's requests: in its session's turns, or at once if sessions take no turns.
    fn run_requests(&mut self, entry: EntryId, round: &mut Round<'_>) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let Some(task) = service.request_task() else { return };
        let session = service.session();
        if self.scheduler.takes_turns() || !service.may_run_step() {
            return self.scheduler.sessions_mut().wake(pacer::now(), session, task);
        }
        self.scheduler.begin_hook(session);
        while let Some(service) =
            self.services.get_mut(entry).filter(|service| service.may_run_step())
        {
            let turn = service.run_step(&self.engine, Nanos(u64::MAX), round.now);
            let TurnResult { after, reply, .. } = turn;
            self.on_aftermath(entry, &after, round.link);
            if let Some(reply) = reply {
                self.send_reply(entry, reply, round);
            }
        }
        self.scheduler.stop();
    }

    /// Runs what is due by the exact clock. Hooks get the time of the loop, `round.now`, as packets
    /// do: it never goes back.
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
            self.services.poll_at(entry, next);
        }
        self.scheduler.stop();
        for entry in due {
            self.run_requests(entry, round);
            self.report_traps(entry, round.link);
            self.emit(entry, round.link);
        }
    }

    /// Queues `on_memory_low` for services whose sessions are low on memory.
    pub(crate) fn report_low_memory(&mut self, accounts: &Memory, round: &mut Round<'_>) {
        while let Some(low) = accounts.poll_low() {
            for entry in self.services.of_session(low.session) {
                self.request(entry, Control::MemoryLow(low), round);
            }
        }
    }

    /// Sends captured packets to the daemon; counts those that could not be sent.
    pub(crate) fn send_captures(&mut self, link: &mut Link) {
        let Some(capture) = self.path.capture() else { return };
        let (tapped, mut lost) = capture.take();
        for one in tapped {
            let is_sent = link.try_send(&FromCell::Captured(Box::new(one)));
            lost += u64::from(!is_sent.unwrap_or_default());
        }
        self.path.count_lost_captures(lost);
    }

    /// Queues `on_queue` for services whose sessions' queues had events.
    pub(crate) fn report_queues(&mut self, round: &mut Round<'_>) {
        while let Some((entry, event)) = self.scheduler.sessions_mut().poll_event() {
            self.request(entry, Control::Queue(event), round);
        }
    }

    /// Delivers messages between modules: at most as many as wait now, since their receivers may
    /// send others.
    pub(crate) fn deliver_messages(&mut self, round: &mut Round<'_>) {
        for _ in 0..self.mailbox.waiting() {
            let services = &self.services;
            let Some(letters) = self.mailbox.poll_letter(|from| services.before(from)) else {
                return;
            };
            for (entry, message) in letters {
                self.request(entry, Control::Message(message), round);
            }
        }
    }

    /// Handles what calls of a service left to do.
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
        self.services.set_leaving(after.is_leaving);
    }

    /// Sends the frames that the service's lanes emitted, and passes their events and messages on.
    fn emit(&mut self, entry: EntryId, link: &mut Link) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let mut outbox = Outbox::default();
        if let Some(capture) = self.path.capture() {
            capture.clear_context();
        }
        let mut egress_path =
            self.path.egress_path(self.scheduler.sessions_mut(), service.session());
        service.take_emitted(&mut egress_path, &mut outbox);
        self.post(outbox, link);
    }

    /// Sends the frames that in-kernel programs emitted, and passes their events and messages on.
    pub(crate) fn take_records(&mut self, link: &mut Link) {
        let mut outbox = Outbox::default();
        if let Some(capture) = self.path.capture() {
            capture.clear_context();
        }
        for at in 0..self.services.with_lanes().len() {
            let entry = self.services.with_lanes()[at];
            let Some(service) = self.services.get_mut(entry) else { continue };
            let mut egress_path =
                self.path.egress_path(self.scheduler.sessions_mut(), service.session());
            service.take_records(&mut egress_path, &mut outbox);
        }
        self.post(outbox, link);
    }

    fn post(&mut self, outbox: Outbox, link: &mut Link) {
        for (entry, event) in outbox.events {
            link.notice(&FromCell::Event(entry, event.code, event.data));
        }
        self.mailbox.handle_sent(outbox.messages);
    }

    /// Applies a change of a service's queue subscription.
    fn settle_watch(&mut self, entry: EntryId) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let session = service.session();
        if let Some((before, watch)) = service.take_watch() {
            let watch = watch.map(|watch| (session, watch));
            self.scheduler.sessions_mut().watch(entry, before, watch);
        }
    }

    /// Reports the service's traps and the outcome of its replacement to the daemon, and has lanes
    /// that could not be started again tried in [`Self::tick`].
    fn report_traps(&mut self, entry: EntryId, link: &mut Link) {
        let Some(service) = self.services.get_mut(entry) else { return };
        let Notices { trapped, traps, sequel } = service.take_notices();
        for trapped in trapped {
            link.notice(&FromCell::Trapped(entry, trapped.lane, trapped.trap.to_string(), traps));
            self.services.poll_at(entry, CoarseInstant::ZERO);
        }
        let message = match sequel {
            Some(ReplaceOutcome::Kept) => FromCell::VersionConfirmed(entry),
            Some(ReplaceOutcome::PutBack(reason)) => FromCell::RolledBack(entry, reason),
            None => return,
        };
        // A send fails only if the daemon is gone, which is noticed elsewhere.
        let _ = link.send(&message);
    }

    /// Sends the daemon the reply that it waits for. That fails only if it is gone, which is
    /// noticed elsewhere.
    fn send_reply(&mut self, entry: EntryId, reply: Reply, round: &mut Round<'_>) {
        self.services.poll_soon(entry);
        let message = match reply {
            Reply::Started(Ok(())) => FromCell::Started(entry),
            Reply::Started(Err(error)) => {
                self.stop(entry, round);
                FromCell::StartFailed(entry, Failure::of(&error.into()))
            }
            Reply::Answered(answers) => FromCell::Answered(entry, answers),
            Reply::Replaced(Ok(took)) => FromCell::Replaced(entry, took.0 / 1000),
            Reply::Replaced(Err(error)) => {
                FromCell::ReplaceFailed(entry, Failure::of(&error.into()))
            }
        };
        let _ = round.link.send(&message);
    }
}
