//! Scheduling of a cell's sessions: their virtual processors, their queues, and the time they used.
//!
//! ```text
//!   packet ─▶ credit in the session's queue? ─▶ its service's lane, and the task into `ready`
//!                         │ no: dropped, by the front door or here (queue_credits.rs)
//!   next ─▶ core/session picks the virtual processor and its end ─▶ the first ready task
//!   charge ◀─ time used; a task that still has work goes to the end of `ready`
//! ```
//!
//! While a node has only the two sessions that every node has, no session has a claim against
//! another: packets are handled as they arrive, and this module is not consulted
//! ([`Sessions::has_competition`]).

mod watch;

use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use crate::protocol::{DEVIATION_BOUNDS, SessionReport, SessionSpec};
use crate::sched::fifo::Fifo;
use crate::sched::queue_credits::{Queue, QueueCredits};
use crate::sched::slot_map::SlotMap;
use abi::PacketBytes as _;
use abi::host::QUEUE_HEAD_MAX;
use engine::{QueueEvent, QueueWatch};
use level::prefetch;
use session::Kind;
use session::executor::{Account, Dispatch, ProcessorId, Schedule};
use session::memory::{QUEUE_DEFAULT, queue_default};
use session::{Share, VirtualProcessor, Weight};
use smallvec::SmallVec;
use units::{Bytes, CoarseInstant, EntryId, Nanos, SessionId};
use watch::{Events, Watchers};
use xsk::{FRAME_LENGTH, Packet};

const _: () = assert!(QUEUE_DEFAULT.0 == 256 * FRAME_LENGTH as u64, "a burst of 256 frames");
/// Allowance beyond a session's queue for packets that wait to leave: packets of the running turn
/// are counted twice until it ends, as arrived and as leaving.
const TURN_ALLOWANCE: Bytes = Bytes(64 * FRAME_LENGTH as u64);
/// Share of the node's own services: 5 % of each 4 ms, which admission never gives away, and extra
/// time.
const SYSTEM_SHARE: (Nanos, Nanos) = (Nanos(200_000), Nanos::from_millis(4));

/// Virtual processor of a session, or the single one, without a share, of a session that reserved
/// none.
struct Processor {
    id: ProcessorId,
    /// Tasks with work, in the order in which they run.
    ready: Fifo<Task>,
    /// Ended periods of its account that are in the report already, and the total shortfall at that
    /// time.
    periods: u64,
    short: Nanos,
}

/// State of a session that every packet needs; the rest is boxed, so that this takes few cache
/// lines.
struct Session {
    processors: SmallVec<[Processor; 1]>,
    queue: Queue,
    watchers: Watchers,
    /// Processor time of its modules.
    cpu: Nanos,
    statistics: Box<Statistics>,
}

struct Statistics {
    /// Counters, without the processor time.
    report: SessionReport,
    /// Values of the last report to the daemon; `None` if it has had none.
    reported: Option<Reported>,
}

/// Counters of a report that change when the session does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reported {
    cpu: Nanos,
    dropped: u64,
    sent: Bytes,
    memory: Bytes,
    refused: u64,
}

impl Reported {
    const fn of(report: &SessionReport) -> Self {
        let (memory, refused) = (report.memory.used, report.memory.refused);
        Self { cpu: report.cpu, dropped: report.dropped, sent: report.sent, memory, refused }
    }
}

impl Session {
    fn report(&self, memory: session::memory::Account, sent: Bytes) -> SessionReport {
        let report = &self.statistics.report;
        SessionReport {
            cpu: self.cpu,
            memory,
            queue: self.queue.queued(),
            dropped: report.dropped + self.queue.dropped(),
            sent: report.sent + sent,
            ..*report
        }
    }
}

impl Processor {
    /// Adds the periods that ended since the last call to the histogram of deviations. Several have
    /// ended if nothing was charged meanwhile: the shortfall is divided equally among them.
    fn count_periods(&mut self, account: &Account, report: &mut SessionReport) {
        let ended = account.periods.saturating_sub(1).saturating_sub(self.periods);
        let last = account.last;
        let length = last.end.saturating_sub(last.begin);
        if ended == 0 || last.promised == Nanos::ZERO || length == Nanos::ZERO {
            return;
        }
        let missing = account.short.saturating_sub(self.short);
        let beyond = last.guaranteed.saturating_sub(last.promised);
        (self.periods, self.short) = (account.periods.saturating_sub(1), account.short);
        let points = Nanos(missing.0 / ended).max(beyond).0.saturating_mul(1_000_000) / length.0;
        let bucket = DEVIATION_BOUNDS.partition_point(|&bound| bound < points);
        report.deviations[bucket] += ended;
    }
}

/// Prefetches into the caches of this processor.
struct Caches;

impl session::Prefetch for Caches {
    #[inline]
    fn prefetch<T>(&self, what: &T) {
        prefetch::load(what);
    }
}

const fn slot(id: SessionId) -> usize {
    id.0 as usize
}

/// Sessions of a cell, with their virtual processors, queues and accounts.
pub(crate) struct Sessions {
    schedule: Schedule,
    all: SlotMap<Session>,
    /// Owners of virtual processors by slot in the schedule: id, session, and index within the
    /// session.
    owners: SlotMap<(ProcessorId, SessionId, usize)>,
    credits: QueueCredits,
    memory: PacketMemory,
    /// Memory account of all sessions, of which queues are a part.
    accounts: Memory,
    /// Number of ready tasks.
    ready: usize,
    /// Pending events of queues that services watch.
    events: Events,
    /// Time charged to all sessions, removed ones included.
    charged: Nanos,
    /// Time of the thread outside any session's modules, charged to the session *system*.
    own: Nanos,
}

/// Schedulable unit: a pool of a service's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) entry: EntryId,
    pub(crate) pool: u8,
    /// Index of its session's virtual processor, modulo their number.
    pub(crate) processor: u16,
}

/// Next turn: the task, and when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) task: Task,
    pub(crate) until: Nanos,
    pub(crate) dispatch: Dispatch,
}

impl Sessions {
    /// Creates the two sessions that every node has.
    pub(crate) fn new(now: Nanos, memory: PacketMemory, accounts: Memory) -> Self {
        let mut sessions = Self {
            schedule: Schedule::new(),
            all: SlotMap::default(),
            owners: SlotMap::default(),
            credits: QueueCredits::new(None, memory.unreserved()),
            memory,
            accounts,
            ready: 0,
            events: Events::new(),
            charged: Nanos::ZERO,
            own: Nanos::ZERO,
        };
        sessions.begin(now);
        sessions
    }

    /// Counts what waits in memory shared with the front door from now on. Must be called before
    /// any packet arrives and before any other session is set.
    pub(crate) fn share(&mut self, now: Nanos, table: &'static bpf::CreditTable) {
        let mut shared = Self::new(now, self.memory, self.accounts.clone());
        shared.all.clear();
        shared.credits = QueueCredits::new(Some(table), self.memory.unreserved());
        *self = shared;
        self.begin(now);
    }

    fn begin(&mut self, now: Nanos) {
        let (slice, period) = SYSTEM_SHARE;
        let system =
            Share::new(slice, period).ok().map(|share| VirtualProcessor { share, extra: true });
        let queue = Some(self.memory.system());
        self.put(now, SessionId::SYSTEM, &[system], Weight::default(), (queue, None));
        self.put(now, SessionId::BEST_EFFORT, &[None], Weight::default(), (None, None));
    }

    /// Returns true if sessions have claims against each other: there are others than the node's
    /// own two.
    #[inline]
    pub(crate) fn has_competition(&self) -> bool {
        self.all.len() > 2
    }

    /// Adds a session, or changes its reservation; its queued packets stay queued.
    pub(crate) fn set(&mut self, now: Nanos, facts: &SessionSpec) {
        let reservation = &facts.reservation;
        let mut promises: Vec<_> = reservation.processors.iter().copied().map(Some).collect();
        if promises.is_empty() {
            promises.push(None);
        }
        let sizes = (reservation.queue, reservation.memory);
        self.put(now, facts.id, &promises, reservation.weight, sizes);
    }

    fn put(
        &mut self,
        now: Nanos,
        id: SessionId,
        promises: &[Option<VirtualProcessor>],
        weight: Weight,
        (queue, memory): (Option<Bytes>, Option<Bytes>),
    ) {
        let Self { schedule, all, owners, credits, accounts, .. } = self;
        let session = all.get_or_insert_with(slot(id), || Session {
            processors: SmallVec::new(),
            queue: credits.queue(id),
            watchers: Watchers::default(),
            cpu: Nanos::ZERO,
            statistics: Box::new(Statistics { report: SessionReport::new(id), reported: None }),
        });
        let queue_max = queue.unwrap_or_else(|| queue_default(memory));
        credits.set(&mut session.queue, queue_max, queue.is_none());
        accounts.set(id, memory, queue_max);
        for (index, &promise) in promises.iter().enumerate() {
            if let Some(processor) = session.processors.get(index) {
                schedule.change(now, processor.id, promise, weight);
                continue;
            }
            let processor = schedule.add(now, id, promise, weight);
            owners.insert(processor.slot(), (processor, id, index));
            session.processors.push(Processor {
                id: processor,
                ready: Fifo::default(),
                periods: 0,
                short: Nanos::ZERO,
            });
        }
        let mut left = Vec::new();
        for gone in session.processors.drain(promises.len()..) {
            schedule.remove(now, gone.id);
            owners.remove(gone.id.slot());
            left.extend(gone.ready);
        }
        self.ready -= left.len();
        for task in left {
            self.wake(now, id, task);
        }
        self.limit();
    }

    /// Makes the front door enforce queue limits while sessions have claims against each other.
    fn limit(&mut self) {
        let is_limited = self.has_competition();
        self.credits.limit(is_limited, self.all.values_mut().map(|session| &mut session.queue));
    }

    /// Removes a session, of which nothing runs any more.
    pub(crate) fn forget(&mut self, now: Nanos, id: SessionId) {
        let Some(session) = self.all.remove(slot(id)) else { return };
        for processor in session.processors {
            self.ready -= processor.ready.len();
            self.schedule.remove(now, processor.id);
            self.owners.remove(processor.id.slot());
        }
        self.credits.want_heads(id, false);
        self.credits.close(session.queue);
        self.accounts.forget(id);
        self.limit();
    }

    /// Counts the arrival of a packet for which the front door took this much credit in that epoch.
    #[inline]
    pub(crate) fn on_arrival(&mut self, id: SessionId, memory: Bytes, epoch: usize) {
        if let Some(session) = self.all.get_mut(slot(id)) {
            self.credits.on_arrival(&mut session.queue, memory, epoch);
            session.watchers.check(&session.queue, &self.credits, id, &mut self.events);
        }
    }

    /// Takes credit for an arriving packet that the front door did not count. Returns false, and
    /// counts a drop, if the session's queue is full.
    #[inline]
    pub(crate) fn admit(&mut self, id: SessionId, memory: Bytes) -> bool {
        let is_taken = self.try_take(id, memory, Bytes::ZERO);
        if !is_taken && let Some(session) = self.all.get_mut(slot(id)) {
            session.statistics.report.dropped += 1;
        }
        is_taken
    }

    /// Takes credit in the same queue for a packet that waits to leave. Returns false if the queue
    /// and its allowance are full.
    #[inline]
    pub(crate) fn admit_outgoing(&mut self, id: SessionId, memory: Bytes) -> bool {
        self.try_take(id, memory, TURN_ALLOWANCE)
    }

    #[inline]
    fn try_take(&mut self, id: SessionId, memory: Bytes, beyond: Bytes) -> bool {
        let Some(session) = self.all.get_mut(slot(id)) else { return false };
        let is_taken = self.credits.try_take(&mut session.queue, memory, beyond);
        session.watchers.check(&session.queue, &self.credits, id, &mut self.events);
        is_taken
    }

    /// Notifies watching services of a packet dropped for lack of credit, with its first bytes.
    #[cold]
    pub(crate) fn on_refused(&mut self, id: SessionId, packet: &Packet) {
        let Some(session) = self.all.get(slot(id)).filter(|it| it.watchers.has_watchers()) else {
            return;
        };
        let mut head = [0; QUEUE_HEAD_MAX];
        let length = packet.length().min(QUEUE_HEAD_MAX);
        if packet.load(0, &mut head[..length]).is_ok() {
            session.watchers.on_dropped(&head[..length], &mut self.events);
        }
    }

    /// Subscribes a service to its session's queue (`now`), or ends the subscription; `before` is
    /// the session that it watched until now.
    pub(crate) fn watch(
        &mut self,
        entry: EntryId,
        before: Option<SessionId>,
        now: Option<(SessionId, QueueWatch)>,
    ) {
        if let Some(id) = before
            && let Some(session) = self.all.get_mut(slot(id))
        {
            session.watchers.remove(entry);
            self.credits.want_heads(id, session.watchers.has_watchers());
        }
        let Some((id, watch)) = now else { return };
        let Some(session) = self.all.get_mut(slot(id)) else { return };
        session.watchers.add(entry, watch);
        self.credits.want_heads(id, true);
        session.watchers.check(&session.queue, &self.credits, id, &mut self.events);
    }

    /// Returns the next event of a watched queue, with the service to notify.
    pub(crate) fn poll_event(&mut self) -> Option<(EntryId, QueueEvent)> {
        self.events.pop_front()
    }

    /// Releases the credit of packets that no longer wait.
    #[inline]
    pub(crate) fn release(&mut self, id: SessionId, memory: Bytes) {
        if let Some(session) = self.all.get_mut(slot(id)) {
            self.credits.release(&mut session.queue, memory);
            session.watchers.check(&session.queue, &self.credits, id, &mut self.events);
        }
    }

    /// Publishes all released credit to the front door.
    #[inline]
    pub(crate) fn publish_released(&mut self) {
        self.credits.publish_released();
    }

    /// Returns true if it is time to settle the credit of packets that the front door sent and that
    /// never arrived.
    #[inline]
    pub(crate) fn is_epoch_over(&self, now: CoarseInstant) -> bool {
        self.credits.is_epoch_over(now)
    }

    /// Returns the index of the epoch whose missing packets count as lost at the next settlement.
    pub(crate) const fn closed_epoch(&self) -> usize {
        self.credits.closed_epoch()
    }

    /// Releases the credit of packets that the front door sent and that never arrived. The caller
    /// has taken everything from the rings.
    pub(crate) fn settle_credits(&mut self, now: CoarseInstant) {
        self.credits.settle(now, self.all.values_mut().map(|session| &mut session.queue));
    }

    /// Returns the division of packet memory.
    pub(crate) const fn memory(&self) -> PacketMemory {
        self.memory
    }

    /// Returns the number of frames to keep in each receive queue's fill ring.
    pub(crate) fn ready(&self) -> u32 {
        self.memory.ready(self.has_competition())
    }

    /// Returns the session that has a virtual processor, and its index within the session.
    #[inline]
    fn owner(&self, processor: ProcessorId) -> Option<(SessionId, usize)> {
        let (now, id, index) = *self.owners.get(processor.slot())?;
        (now == processor).then_some((id, index))
    }

    /// Marks a task of a session as ready.
    pub(crate) fn wake(&mut self, now: Nanos, id: SessionId, task: Task) {
        let Some(session) = self.all.get_mut(slot(id)) else { return };
        let index = usize::from(task.processor) % session.processors.len();
        let processor = &mut session.processors[index];
        if processor.ready.iter().any(|ready| *ready == task) {
            return;
        }
        processor.ready.push_back(task);
        self.ready += 1;
        self.schedule.wake(now, processor.id);
    }

    /// Returns the turn to run now.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<Next> {
        loop {
            let dispatch = self.schedule.next(now)?;
            match self.task_of(dispatch.processor) {
                Some(task) => return Some(Next { task, until: dispatch.until, dispatch }),
                // The task's services were removed.
                None => self.schedule.sleep(dispatch.processor),
            }
        }
    }

    /// Returns the number of ready tasks.
    pub(crate) const fn tasks(&self) -> usize {
        self.ready
    }

    /// Writes the virtual processors of the next turns, in order; returns how many it wrote.
    pub(crate) fn upcoming(&self, next: &mut [ProcessorId]) -> usize {
        self.schedule.upcoming(next)
    }

    /// Prefetches the owner of a virtual processor.
    #[inline]
    pub(crate) fn load_owner(&self, processor: ProcessorId) {
        if let Some(owner) = self.owners.slot(processor.slot()) {
            prefetch::load(owner);
        }
    }

    /// Prefetches what a turn of this virtual processor reads here; its owner must have been
    /// prefetched.
    #[inline]
    pub(crate) fn load_turn(&self, processor: ProcessorId) {
        if let Some((id, _)) = self.owner(processor) {
            self.load_queue(id);
            self.schedule.prefetch(processor, id, &Caches);
        }
    }

    /// Returns the first ready task of a virtual processor, which must have been prefetched.
    #[inline]
    pub(crate) fn task_of(&self, processor: ProcessorId) -> Option<Task> {
        let (id, index) = self.owner(processor)?;
        self.all.get(slot(id))?.processors.get(index)?.ready.front().copied()
    }

    /// Prefetches what an arriving packet reads here.
    #[inline]
    pub(crate) fn load_queue(&self, id: SessionId) {
        self.credits.load_ahead(id);
        if let Some(session) = self.all.slot(slot(id)) {
            prefetch::load(session);
        }
    }

    /// Prefetches what a packet reads that wakes the session's first virtual processor; the session
    /// must have been prefetched.
    #[inline]
    pub(crate) fn load_wake(&self, id: SessionId) {
        let first = self.all.get(slot(id)).and_then(|session| session.processors.first());
        if let Some(processor) = first {
            self.schedule.prefetch(processor.id, id, &Caches);
        }
    }

    /// Returns the slice of which this turn is a part; zero for extra time.
    pub(crate) fn promised(&self, turn: &Next) -> Nanos {
        if turn.dispatch.kind != Kind::Guaranteed {
            return Nanos::ZERO;
        }
        let account = self.schedule.promised(turn.dispatch.processor);
        account.map_or(Nanos::ZERO, |account| account.running.promised)
    }

    /// Charges a turn for the time that it ran. `idle` states that its task has no more work.
    pub(crate) fn charge(&mut self, now: Nanos, turn: &Next, used: Nanos, idle: bool) {
        let processor = turn.dispatch.processor;
        let owner = self.owner(processor);
        let session = owner.and_then(|(id, _)| self.all.get_mut(slot(id)));
        let Some((session, (_, index))) = session.zip(owner) else {
            return self.schedule.charge(now, processor, used);
        };
        session.cpu += used;
        self.charged += used;
        let processor_of = &mut session.processors[index];
        let ready = &mut processor_of.ready;
        if ready.front() == Some(&turn.task) {
            ready.pop_front();
            match idle {
                true => self.ready -= 1,
                false => ready.push_back(turn.task),
            }
        }
        // Before the charge, so that the schedule does not queue it only to remove it again.
        if ready.is_empty() {
            self.schedule.sleep(processor);
        }
        self.schedule.charge(now, processor, used);
        if let Some(account) = self.schedule.promised(processor) {
            processor_of.count_periods(&account, &mut session.statistics.report);
        }
    }

    /// Charges the time that codecs used on other cores to the turn that feeds them.
    pub(crate) fn charge_codecs(&mut self, now: Nanos, turn: &Next, used: Nanos) {
        if used == Nanos::ZERO {
            return;
        }
        let processor = turn.dispatch.processor;
        self.schedule.charge(now, processor, used);
        let Some((id, _)) = self.owner(processor) else { return };
        if let Some(session) = self.all.get_mut(slot(id)) {
            session.cpu += used;
        }
    }

    /// Charges the time it took to send what an ended turn had queued to leave.
    pub(crate) fn charge_sending(&mut self, now: Nanos, turn: &Next, used: Nanos) {
        self.schedule.charge_deferred(now, &turn.dispatch, used);
        let Some((id, _)) = self.owner(turn.dispatch.processor) else { return };
        self.charge_outside_turns(id, used);
    }

    /// Charges work outside turns: hooks, starts, and packets while sessions have no claims against
    /// each other.
    pub(crate) fn charge_outside_turns(&mut self, id: SessionId, used: Nanos) {
        if let Some(session) = self.all.get_mut(slot(id)) {
            session.cpu += used;
            self.charged += used;
        }
    }

    /// Charges the session *system* with the thread's time that was charged to no session: polling
    /// rings, finding a packet's session, messages of the daemon. `ran` is the thread's time since
    /// it began.
    pub(crate) fn charge_own(&mut self, ran: Nanos) {
        let own = ran.saturating_sub(self.charged);
        let more = own.saturating_sub(self.own);
        if let Some(system) = self.all.get_mut(slot(SessionId::SYSTEM)) {
            self.own += more;
            system.cpu += more;
        }
    }

    /// Counts bytes that a session sent.
    pub(crate) fn sent(&mut self, id: SessionId, length: Bytes) {
        if let Some(session) = self.all.get_mut(slot(id)) {
            session.statistics.report.sent += length;
        }
    }

    /// Returns the time of the next turn that begins without an arriving packet; `None` if no task
    /// has work.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        (self.ready > 0).then(|| self.schedule.poll_timeout()).flatten()
    }

    /// Returns the number of session slots, used or not.
    pub(crate) const fn slots(&self) -> usize {
        self.all.slots()
    }

    /// Returns the report of the session in a slot: always, or only if the session did something
    /// since its last report. `sent` is what its services sent.
    pub(crate) fn poll_report(
        &mut self,
        at: usize,
        sent: Bytes,
        always: bool,
    ) -> Option<SessionReport> {
        let session = self.all.get_mut(at)?;
        let report = session.report(self.accounts.account(session.statistics.report.session), sent);
        let reported = session.statistics.reported.replace(Reported::of(&report));
        (always || reported != session.statistics.reported).then_some(report)
    }

    /// Discards the record of what was reported: a new daemon has had no reports.
    pub(crate) fn forget_reported(&mut self) {
        self.all.values_mut().for_each(|session| session.statistics.reported = None);
    }
}

#[cfg(test)]
mod tests;
