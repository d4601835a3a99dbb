//! Whose turn it is in a cell: its sessions, what waits for them, and what they used.
//!
//! ```text
//!   packet ─▶ room in the session's queue? ─▶ its service's lane, and the entry into `ready`
//!                        │ no: dropped, by the front door or here (rooms.rs)
//!   next ─▶ core/session says which virtual processor, until when ─▶ the first ready service
//!   charge ◀─ what it used; a service that still has work goes to the end of `ready`
//! ```
//!
//! While a node has only the two sessions that every node has, nobody has a claim against
//! anybody: packets are handled as they come, and nothing here is asked
//! ([`Sessions::take_turns`]).

mod watch;

use crate::memory::Memory;
use crate::packet_memory::PacketMemory;
use crate::protocol::{DEVIATION_BOUNDS, SessionFacts, SessionReport};
use crate::sched::fifo::Fifo;
use crate::sched::numbered::Numbered;
use crate::sched::rooms::{Queue, Rooms};
use abi::PacketBytes as _;
use abi::host::QUEUE_HEAD_MAX;
use engine::{QueueEvent, QueueWatch};
use level::ahead;
use session::Kind;
use session::executor::{Account, Dispatch, ProcessorId, Schedule};
use session::memory::{QUEUE_DEFAULT, queue_default};
use session::{Share, VirtualProcessor, Weight};
use smallvec::SmallVec;
use units::{Bytes, CoarseInstant, EntryId, Nanos, SessionId};
use watch::{Events, Watchers};
use xsk::{FRAME_LENGTH, Packet};

const _: () = assert!(QUEUE_DEFAULT.0 == 256 * FRAME_LENGTH as u64, "a burst of 256 frames");
/// What may wait to leave beyond a session's queue: packets of the turn that runs are counted
/// twice until it ends, as those that came and as those that leave.
const TURN_ROOM: Bytes = Bytes(64 * FRAME_LENGTH as u64);
/// The node's own services run before anybody's, and behind: they have what admission never gives
/// away, 5 % of each 4 ms, and more where it is left.
const SYSTEM_SHARE: (Nanos, Nanos) = (Nanos(200_000), Nanos::from_millis(4));

/// One virtual processor, or a session's place without one.
struct Processor {
    id: ProcessorId,
    /// What has work, in its order.
    ready: Fifo<Task>,
    /// Of its account: periods that were looked at, and what was missing in them.
    periods: u64,
    short: Nanos,
}

/// What each packet asks for; the rest is elsewhere, so that it is in few lines.
struct Session {
    processors: SmallVec<[Processor; 1]>,
    queue: Queue,
    watchers: Watchers,
    /// Processor time of its modules.
    cpu: Nanos,
    rest: Box<Rest>,
}

struct Rest {
    /// But for the processor time.
    report: SessionReport,
    /// What the daemon was told last; none: it was not told of this one.
    told: Option<Told>,
}

/// Of a report, what shows that a session did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    cpu: Nanos,
    dropped: u64,
    sent: Bytes,
    memory: Bytes,
    refused: u64,
}

impl Told {
    const fn of(report: &SessionReport) -> Self {
        let (memory, refused) = (report.memory.used, report.memory.refused);
        Self { cpu: report.cpu, dropped: report.dropped, sent: report.sent, memory, refused }
    }
}

impl Session {
    fn report(&self, memory: session::memory::Account, sent: Bytes) -> SessionReport {
        let report = &self.rest.report;
        SessionReport {
            cpu: self.cpu,
            memory,
            queue: self.queue.waits(),
            dropped: report.dropped + self.queue.dropped(),
            sent: report.sent + sent,
            ..*report
        }
    }
}

impl Processor {
    /// Counts the periods that have ended since the last look by how far they were from what was
    /// promised. There are several when nothing was charged meanwhile: each is as short as the
    /// others.
    fn look(&mut self, account: &Account, report: &mut SessionReport) {
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

/// Into this processor's caches.
struct Lines;

impl session::Prefetch for Lines {
    #[inline]
    fn prefetch<T>(&self, what: &T) {
        ahead::load(what);
    }
}

const fn place(id: SessionId) -> usize {
    id.0 as usize
}

/// See above.
pub(crate) struct Sessions {
    schedule: Schedule,
    all: Numbered<Session>,
    /// Whose virtual processors are, by their places in the schedule.
    owners: Numbered<(ProcessorId, SessionId, usize)>,
    rooms: Rooms,
    memory: PacketMemory,
    /// The account of all other memory, of which queues are a part.
    accounts: Memory,
    /// How much has something to do.
    ready: usize,
    /// What happened to queues that are watched.
    events: Events,
    /// What all sessions were charged, those that are gone included.
    charged: Nanos,
    /// Of the thread's time, what was for nobody's modules; it is on the account of *system*.
    own: Nanos,
}

/// What waits for a turn: a pool of a service's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) entry: EntryId,
    pub(crate) pool: u8,
    /// Which of its session's virtual processors; one with fewer begins with the first again.
    pub(crate) processor: u16,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) task: Task,
    pub(crate) until: Nanos,
    pub(crate) dispatch: Dispatch,
}

impl Sessions {
    /// Those that every node has.
    pub(crate) fn new(now: Nanos, memory: PacketMemory, accounts: Memory) -> Self {
        let mut sessions = Self {
            schedule: Schedule::new(),
            all: Numbered::default(),
            owners: Numbered::default(),
            rooms: Rooms::new(None, memory.unreserved()),
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

    /// What waits is counted where the front door counts it, too. Before anything comes, and
    /// before there is any other session.
    pub(crate) fn share(&mut self, now: Nanos, rooms: &'static bpf::Rooms) {
        let mut shared = Self::new(now, self.memory, self.accounts.clone());
        shared.all.clear();
        shared.rooms = Rooms::new(Some(rooms), self.memory.unreserved());
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

    /// Whether sessions have claims against each other.
    #[inline]
    pub(crate) fn take_turns(&self) -> bool {
        self.all.len() > 2
    }

    /// A session is there, or has another reservation. What waits for it still waits.
    pub(crate) fn set(&mut self, now: Nanos, facts: &SessionFacts) {
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
        let Self { schedule, all, owners, rooms, accounts, .. } = self;
        let session = all.get_or_insert_with(place(id), || Session {
            processors: SmallVec::new(),
            queue: rooms.queue(id),
            watchers: Watchers::default(),
            cpu: Nanos::ZERO,
            rest: Box::new(Rest { report: SessionReport::new(id), told: None }),
        });
        let queue_max = queue.unwrap_or_else(|| queue_default(memory));
        rooms.set(&mut session.queue, queue_max, queue.is_none());
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

    /// The front door looks at what waits while sessions have claims against each other.
    fn limit(&mut self) {
        let is_limited = self.take_turns();
        self.rooms.limit(is_limited, self.all.values_mut().map(|session| &mut session.queue));
    }

    /// A session is no more; nothing of it runs.
    pub(crate) fn forget(&mut self, now: Nanos, id: SessionId) {
        let Some(session) = self.all.remove(place(id)) else { return };
        for processor in session.processors {
            self.ready -= processor.ready.len();
            self.schedule.remove(now, processor.id);
            self.owners.remove(processor.id.slot());
        }
        self.rooms.want_heads(id, false);
        self.rooms.close(session.queue);
        self.accounts.forget(id);
        self.limit();
    }

    /// A packet came for which the front door has taken so much room, in that epoch.
    #[inline]
    pub(crate) fn come(&mut self, id: SessionId, memory: Bytes, epoch: usize) {
        if let Some(session) = self.all.get_mut(place(id)) {
            self.rooms.come(&mut session.queue, memory, epoch);
            session.watchers.look(&session.queue, &self.rooms, id, &mut self.events);
        }
    }

    /// Whether a packet that takes so much memory, and for which the front door has taken no
    /// room, may wait for the session; if so, it does.
    #[inline]
    pub(crate) fn admit(&mut self, id: SessionId, memory: Bytes) -> bool {
        let is_taken = self.take(id, memory, Bytes::ZERO);
        if !is_taken && let Some(session) = self.all.get_mut(place(id)) {
            session.rest.report.dropped += 1;
        }
        is_taken
    }

    /// Whether a packet that takes so much memory may wait to leave; if so, it does, in the same
    /// queue.
    #[inline]
    pub(crate) fn hold(&mut self, id: SessionId, memory: Bytes) -> bool {
        self.take(id, memory, TURN_ROOM)
    }

    #[inline]
    fn take(&mut self, id: SessionId, memory: Bytes, beyond: Bytes) -> bool {
        let Some(session) = self.all.get_mut(place(id)) else { return false };
        let is_taken = self.rooms.take(&mut session.queue, memory, beyond);
        session.watchers.look(&session.queue, &self.rooms, id, &mut self.events);
        is_taken
    }

    /// There was no room for a packet that begins so.
    #[cold]
    pub(crate) fn refused(&mut self, id: SessionId, packet: &Packet) {
        let Some(session) = self.all.get(place(id)).filter(|it| it.watchers.are_there()) else {
            return;
        };
        let mut head = [0; QUEUE_HEAD_MAX];
        let length = packet.length().min(QUEUE_HEAD_MAX);
        if packet.load(0, &mut head[..length]).is_ok() {
            session.watchers.tell_dropped(&head[..length], &mut self.events);
        }
    }

    /// A service is told of its session's queue from now on, or not any more; `before`: in which
    /// session it was.
    pub(crate) fn watch(
        &mut self,
        entry: EntryId,
        before: Option<SessionId>,
        now: Option<(SessionId, QueueWatch)>,
    ) {
        if let Some(id) = before
            && let Some(session) = self.all.get_mut(place(id))
        {
            session.watchers.remove(entry);
            self.rooms.want_heads(id, session.watchers.are_there());
        }
        let Some((id, watch)) = now else { return };
        let Some(session) = self.all.get_mut(place(id)) else { return };
        session.watchers.add(entry, watch);
        self.rooms.want_heads(id, true);
        session.watchers.look(&session.queue, &self.rooms, id, &mut self.events);
    }

    /// What happened to a queue, and who is to be told.
    pub(crate) fn poll_event(&mut self) -> Option<(EntryId, QueueEvent)> {
        self.events.pop_front()
    }

    /// So much does not wait any more.
    #[inline]
    pub(crate) fn release(&mut self, id: SessionId, memory: Bytes) {
        if let Some(session) = self.all.get_mut(place(id)) {
            self.rooms.leave(&mut session.queue, memory);
            session.watchers.look(&session.queue, &self.rooms, id, &mut self.events);
        }
    }

    /// The front door is to know of all that was released.
    #[inline]
    pub(crate) fn say_released(&mut self) {
        self.rooms.say_left();
    }

    /// Whether it is time to look for what the front door sent up and never came.
    #[inline]
    pub(crate) fn is_epoch_over(&self, now: CoarseInstant) -> bool {
        self.rooms.is_epoch_over(now)
    }

    /// Which epoch is closed for so long, when one is over, that what has not come of it is lost.
    pub(crate) const fn closed_epoch(&self) -> usize {
        self.rooms.closed_epoch()
    }

    /// Finds what the front door sent up and never came; all that is in the rings has been taken.
    pub(crate) fn settle_rooms(&mut self, now: CoarseInstant) {
        self.rooms.settle(now, self.all.values_mut().map(|session| &mut session.queue));
    }

    /// How packet memory is divided.
    pub(crate) const fn memory(&self) -> PacketMemory {
        self.memory
    }

    /// Frames that lie ready for each receive queue.
    pub(crate) fn ready(&self) -> u32 {
        self.memory.ready(self.take_turns())
    }

    /// Whose virtual processor it is, and which of his.
    #[inline]
    fn owner(&self, processor: ProcessorId) -> Option<(SessionId, usize)> {
        let (now, id, index) = *self.owners.get(processor.slot())?;
        (now == processor).then_some((id, index))
    }

    /// Something of the session has work.
    pub(crate) fn wake(&mut self, now: Nanos, id: SessionId, task: Task) {
        let Some(session) = self.all.get_mut(place(id)) else { return };
        let index = usize::from(task.processor) % session.processors.len();
        let processor = &mut session.processors[index];
        if processor.ready.iter().any(|ready| *ready == task) {
            return;
        }
        processor.ready.push_back(task);
        self.ready += 1;
        self.schedule.wake(now, processor.id);
    }

    /// Whose turn it is now.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<Next> {
        loop {
            let dispatch = self.schedule.next(now)?;
            match self.task_of(dispatch.processor) {
                Some(task) => return Some(Next { task, until: dispatch.until, dispatch }),
                // Its services were removed.
                None => self.schedule.sleep(dispatch.processor),
            }
        }
    }

    /// How many tasks have something to do.
    pub(crate) const fn tasks(&self) -> usize {
        self.ready
    }

    /// Who will be next, in this order; how many were found.
    pub(crate) fn upcoming(&self, next: &mut [ProcessorId]) -> usize {
        self.schedule.upcoming(next)
    }

    /// Starts loading who has this virtual processor.
    #[inline]
    pub(crate) fn load_owner(&self, processor: ProcessorId) {
        if let Some(owner) = self.owners.place(processor.slot()) {
            ahead::load(owner);
        }
    }

    /// Starts loading what a turn of it looks at here; whose it is has been loaded.
    #[inline]
    pub(crate) fn load_turn(&self, processor: ProcessorId) {
        if let Some((id, _)) = self.owner(processor) {
            self.load_queue(id);
            self.schedule.prefetch(processor, id, &Lines);
        }
    }

    /// What has the first turn of it; that has been loaded.
    #[inline]
    pub(crate) fn task_of(&self, processor: ProcessorId) -> Option<Task> {
        let (id, index) = self.owner(processor)?;
        self.all.get(place(id))?.processors.get(index)?.ready.front().copied()
    }

    /// Starts loading what a packet looks at here that comes for a session.
    #[inline]
    pub(crate) fn load_queue(&self, id: SessionId) {
        self.rooms.load_ahead(id);
        if let Some(session) = self.all.place(place(id)) {
            ahead::load(session);
        }
    }

    /// The same when it wakes a virtual processor; the session has been loaded.
    #[inline]
    pub(crate) fn load_wake(&self, id: SessionId) {
        let first = self.all.get(place(id)).and_then(|session| session.processors.first());
        if let Some(processor) = first {
            self.schedule.prefetch(processor.id, id, &Lines);
        }
    }

    /// The slice that this turn is a part of; zero when nobody was promised it.
    pub(crate) fn promised(&self, turn: &Next) -> Nanos {
        if turn.dispatch.kind != Kind::Guaranteed {
            return Nanos::ZERO;
        }
        let account = self.schedule.promised(turn.dispatch.processor);
        account.map_or(Nanos::ZERO, |account| account.running.promised)
    }

    /// It has run for so long; `idle`: it has no work any more.
    pub(crate) fn charge(&mut self, now: Nanos, turn: &Next, used: Nanos, idle: bool) {
        let processor = turn.dispatch.processor;
        let owner = self.owner(processor);
        let session = owner.and_then(|(id, _)| self.all.get_mut(place(id)));
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
        // First, so that it is not given a place that it leaves at once.
        if ready.is_empty() {
            self.schedule.sleep(processor);
        }
        self.schedule.charge(now, processor, used);
        if let Some(account) = self.schedule.promised(processor) {
            processor_of.look(&account, &mut session.rest.report);
        }
    }

    /// What codecs took on other cores is on the account of the turn in which they are fed.
    pub(crate) fn charge_codecs(&mut self, now: Nanos, turn: &Next, used: Nanos) {
        if used == Nanos::ZERO {
            return;
        }
        let processor = turn.dispatch.processor;
        self.schedule.charge(now, processor, used);
        let Some((id, _)) = self.owner(processor) else { return };
        if let Some(session) = self.all.get_mut(place(id)) {
            session.cpu += used;
        }
    }

    /// What a turn that is over left to send took so long.
    pub(crate) fn charge_sending(&mut self, now: Nanos, turn: &Next, used: Nanos) {
        self.schedule.charge_deferred(now, &turn.dispatch, used);
        let Some((id, _)) = self.owner(turn.dispatch.processor) else { return };
        self.charge_beside(id, used);
    }

    /// What ran beside the turns: hooks, starts, packets of a cell whose sessions take none.
    pub(crate) fn charge_beside(&mut self, id: SessionId, used: Nanos) {
        if let Some(session) = self.all.get_mut(place(id)) {
            session.cpu += used;
            self.charged += used;
        }
    }

    /// The thread has run for so long since it began. What of it nobody was charged is the cell's
    /// own: to look at its rings, to find the session of a packet, to hear the daemon.
    pub(crate) fn charge_own(&mut self, ran: Nanos) {
        let own = ran.saturating_sub(self.charged);
        let more = own.saturating_sub(self.own);
        if let Some(system) = self.all.get_mut(place(SessionId::SYSTEM)) {
            self.own += more;
            system.cpu += more;
        }
    }

    /// It sent so much.
    pub(crate) fn sent(&mut self, id: SessionId, length: Bytes) {
        if let Some(session) = self.all.get_mut(place(id)) {
            session.rest.report.sent += length;
        }
    }

    /// When it is somebody's turn although nothing comes; `None`: nobody has anything to do.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        (self.ready > 0).then(|| self.schedule.poll_timeout()).flatten()
    }

    /// How many places there are for sessions, used or not.
    pub(crate) const fn places(&self) -> usize {
        self.all.places()
    }

    /// What the one in that place used, to be told to the daemon: always, or only if it did
    /// something since that happened last. Its services sent so much.
    pub(crate) fn tell(&mut self, at: usize, sent: Bytes, always: bool) -> Option<SessionReport> {
        let session = self.all.get_mut(at)?;
        let report = session.report(self.accounts.account(session.rest.report.session), sent);
        let told = session.rest.told.replace(Told::of(&report));
        (always || told != session.rest.told).then_some(report)
    }

    /// Another daemon has been told nothing.
    pub(crate) fn forget_told(&mut self) {
        self.all.values_mut().for_each(|session| session.rest.told = None);
    }
}

#[cfg(test)]
mod tests;
