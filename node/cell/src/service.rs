//! One service in a cell: its lanes, what happened to its packets, its traps.

mod controls;
mod ends;
mod lane;
pub(crate) mod letter;
pub(crate) mod loader;
pub(crate) mod mailbox;
mod mappings;
mod memory;
mod pools;
mod programs;
mod replace;
pub(crate) mod shared;
pub(crate) mod table;
mod turns;
mod watch;

use crate::below::Record;
use crate::datapath::{End, Exits, Next};
use crate::memory::{Allowance, Charge, Memory};
use crate::protocol::{ServiceFacts, ServiceReport};
use crate::sched::pacer::Pacer;
use crate::service::shared::Shared;
use crate::timing::CallTimes;
use abi::layout::{
    BEGINS_WITH_DATA, BEGINS_WITH_ETHERNET, EDGES_MAX, MARK_LENGTH, META_FRAGMENT,
    META_LATER_FRAGMENT, OFFSET_NONE,
};
use abi::{Meta, Verdict};
use bpf_maps::{self as maps, PacketMeta};
use controls::Current;
pub(crate) use controls::{Control, Told};
use ends::{count_end, count_reason, send};
use engine::{Emitted, Engine, Handled, InstanceSpec, Kept, Pace, Program, QueueWatch, Trap};
use lane::Lane;
use level::ahead;
pub(crate) use memory::StartFailure;
use pools::Pools;
use replace::Before;
pub(crate) use replace::Sequel;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
pub(crate) use turns::Turn;
use units::{Bytes, CoarseInstant, Edge, EntryId, Millis, Nanos, SessionId, Ticks};
use xsk::Packet;

/// A lane whose instance could not be started again is tried after so long.
const RESTART_AFTER: Millis = Millis(100);

/// Records of one service that are handled before others have their turn.
const RECORDS_PER_TURN: usize = 64;
/// How often a lane below is looked at for a trap.
const LOOK_BELOW: Millis = Millis(10);

/// A service that runs. What each turn looks at comes first, and is what is loaded ahead of it; of
/// that first what a packet looks at that comes to wait.
#[repr(C)]
pub(crate) struct Service {
    facts: Essentials,
    /// It has not started yet: the daemon waits to hear whether it does.
    is_new: bool,
    /// Nobody below may be in its memory: for a hook, an instance that starts, or a packet that
    /// the front door has not counted.
    held: bool,
    has_new_watch: bool,
    /// What is to be done beside packets, and what is being done of it.
    controls: VecDeque<Control>,
    current: Option<Box<Current>>,
    pools: Pools,
    lanes: SmallVec<[Lane; 1]>,
    /// Of a service that can leave user level; it has one lane.
    shared: Option<Box<Shared>>,
    pacer: Rc<Pacer>,
    /// How long a packet takes in its turns, of late.
    packet: Nanos,
    counts: Counts,
    /// Bytes that its packets had when they were sent.
    bytes_out: u64,
    report: Box<ServiceReport>,
    /// Where what passes it goes.
    edges: [Edge; EDGES_MAX],
    /// What it has just passed on. Here, since a packet is large and few are passed on.
    onward: VecDeque<(Packet, Way)>,
    /// Traps that the daemon has not heard of.
    untold: Vec<Trapped>,
    /// What calls that are over left beside their verdicts.
    left: Vec<Emitted>,
    program: Program<Packet>,
    spec: Box<InstanceSpec>,
    memory: Memory,
    /// Its instances' way to the account.
    room: Rc<Allowance>,
    /// What is kept for it, and its stacks.
    _charge: Charge,
    /// Timer of the module, on the exact clock.
    timer: Option<Ticks>,
    /// The batch before whose first packet was looked for what the module did below.
    looked_in: Option<u64>,
    /// When it is to be told of its session's queue, and in which session it is; whether that is
    /// news is `has_new_watch`.
    watch: Option<QueueWatch>,
    watches_in: Option<SessionId>,
    /// The version whose place this one took, while this one is watched.
    before: Option<Before>,
    /// What became of that.
    sequel: Option<Sequel>,
    /// Changes of its version that the daemon has not heard of yet: the levels that it names are
    /// meant for one before, whose programs are still in place.
    unknown: u32,
}

const _: () = assert!(size_of::<Option<Service>>() == size_of::<Service>(), "nothing is in front");

/// Bytes of it that a packet looks at that comes to wait.
const WAITING_LENGTH: usize =
    std::mem::offset_of!(Service, lanes) + size_of::<usize>() + Lane::WAITING_LENGTH;

/// What of a service's facts is asked for while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Essentials {
    pub(crate) entry: EntryId,
    /// The session that pays.
    pub(crate) session: SessionId,
    /// Whether a call on a packet is over before anybody could want to interrupt it.
    pub(crate) brief: bool,
    /// Packets that it cannot have are dropped; else they are forwarded plainly.
    pub(crate) closed: bool,
}

/// What is counted of each packet.
#[derive(Default)]
struct Counts {
    packets: u64,
    bytes: u64,
    /// Sent on by their route after `pass`.
    forwarded: u64,
}

/// How a packet comes to a service.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) meta: PacketMeta,
    /// What the module before left.
    pub(crate) mark: [u8; MARK_LENGTH],
    /// It came straight from the front door, which has counted it, with so many batches before
    /// its own; or, without a number, from another service.
    pub(crate) batch: Option<u64>,
    /// The service whose lane has counted it, while it is with another.
    pub(crate) counted_by: Option<EntryId>,
    /// What it takes of its session's queue.
    pub(crate) room: Bytes,
}

/// What a packet left to be done.
#[derive(Default)]
pub(crate) struct Aftermath {
    /// An instance trapped and was replaced.
    pub(crate) trapped: bool,
    /// The instance has frames, events or messages to pick up.
    pub(crate) emitted: bool,
    /// The packet goes on to another service: [`Service::take_onward`].
    pub(crate) passed_on: bool,
    /// A packet of a shared lane is through: it is to [`Service::depart`].
    pub(crate) leaves: bool,
}

/// What modules tell others.
#[derive(Default)]
pub(crate) struct Outbox {
    /// For the daemon's event stream.
    pub(crate) events: Vec<(EntryId, engine::Event)>,
    /// For the modules before the one that sent them.
    pub(crate) messages: Vec<(EntryId, Vec<u8>)>,
}

/// A trap to tell the daemon of.
pub(crate) struct Trapped {
    pub(crate) lane: u32,
    pub(crate) trap: Trap,
}

/// A service that only has to start.
pub(crate) struct Ready {
    pub(crate) program: Program<Packet>,
    pub(crate) facts: ServiceFacts,
    /// Ports by name.
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) shared: Option<Shared>,
    /// The account of memory, and what it is charged already.
    pub(crate) memory: Memory,
    pub(crate) charge: Charge,
}

impl Service {
    /// A service whose lanes are to start, with what an instance before has left for each, if
    /// any: [`Service::answer`].
    pub(crate) fn begin(
        ready: Ready,
        pacer: &Rc<Pacer>,
        kept: Vec<Option<Kept>>,
        now: CoarseInstant,
    ) -> Self {
        let Ready { program, facts, ports, shared, memory, charge } = ready;
        let room = memory.room(facts.session);
        let pace: Rc<dyn Pace> = Rc::clone(pacer) as _;
        let spec = InstanceSpec {
            window: facts.window,
            memory_pages_max: facts.memory_pages_max,
            parameters: facts.parameters.clone(),
            refusals: facts.refusals.clone(),
            ports,
            lane: 0,
            call_slices: 1,
            pace: Some(pace),
            memory: shared.as_ref().map(Shared::memory),
            room: Some(Rc::clone(&room) as _),
        };
        let kept = kept.into_iter().chain(std::iter::repeat_with(|| None));
        let lanes: SmallVec<[Lane; 1]> =
            (0..facts.lanes.max(1)).zip(kept).map(|(_, kept)| Lane::new(kept)).collect();
        let pools = Pools::new(facts.entry, lanes.len(), &facts.pools, &facts.flows_by);
        let period = facts.timer_ms.map(|period| Nanos::from_millis(u64::from(period)));
        let timer = period.map(|period| Ticks::start(now.as_nanos(), period));
        let ServiceFacts { entry, session, brief, closed, .. } = facts;
        Self {
            facts: Essentials { entry, session, brief, closed },
            is_new: true,
            held: false,
            has_new_watch: false,
            controls: VecDeque::new(),
            current: None,
            pools,
            lanes,
            shared: shared.map(Box::new),
            pacer: Rc::clone(pacer),
            packet: Nanos::ZERO,
            counts: Counts::default(),
            bytes_out: 0,
            report: Box::default(),
            edges: [Edge::Out; EDGES_MAX],
            onward: VecDeque::new(),
            untold: Vec::new(),
            left: Vec::new(),
            program,
            spec: Box::new(spec),
            memory,
            room,
            _charge: charge,
            timer,
            looked_in: None,
            watch: None,
            watches_in: None,
            before: None,
            sequel: None,
            unknown: 0,
        }
    }

    /// Starts loading what a packet looks at that comes to wait. Nothing of it is read for that.
    #[inline]
    pub(crate) fn load_for_packet(place: &Option<Self>) {
        ahead::load_first(place, WAITING_LENGTH);
    }

    /// The same of what a turn looks at here.
    #[inline]
    pub(crate) fn load_for_turn(place: &Option<Self>) {
        ahead::load_first(place, std::mem::offset_of!(Self, program));
    }

    /// Returns its entry.
    #[inline]
    pub(crate) const fn entry(&self) -> EntryId {
        self.facts.entry
    }

    /// Returns the session that pays for it.
    #[inline]
    pub(crate) const fn session(&self) -> SessionId {
        self.facts.session
    }

    /// Returns how many bytes its packets had when they were sent.
    pub(crate) const fn bytes_out(&self) -> Bytes {
        Bytes(self.bytes_out)
    }

    /// Counts bytes that its packets had when they were sent.
    #[inline]
    pub(crate) const fn count_sent(&mut self, bytes: u64) {
        self.bytes_out += bytes;
    }

    /// Has packets that it cannot have dropped from now on, or forwarded plainly.
    pub(crate) const fn set_closed(&mut self, closed: bool) {
        self.facts.closed = closed;
    }

    /// What passes it goes there from now on.
    pub(crate) fn set_edges(&mut self, edges: [Edge; EDGES_MAX]) {
        self.edges = edges;
    }

    /// Whether it leads straight to that one.
    pub(crate) fn leads_to(&self, entry: EntryId) -> bool {
        self.edges.contains(&Edge::To(entry))
    }

    /// Runs the service on one packet and does what it says. What the front door has counted
    /// leaves here, or, when it is passed on, by [`Service::leave`] behind the last service.
    #[inline]
    pub(crate) fn handle(
        &mut self,
        engine: &Engine,
        packet: Packet,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Aftermath {
        self.count_in(&packet);
        if way.batch.is_some() || self.shared.is_none() {
            self.look_below(way.batch, now);
            let mut after = self.run(engine, packet, way, now, exits);
            after.leaves = way.batch.is_some() && !after.passed_on && self.leave(&way.meta);
            return after;
        }
        // Its lane may be below, and has not heard of this packet: it never goes down.
        let mut packet = Some(packet);
        let after =
            self.alone(now, |service| Some(service.run(engine, packet.take()?, way, now, exits)));
        if let Some(packet) = packet {
            exits.recycle(packet);
            self.report.drop_down += 1;
        }
        after.flatten().unwrap_or_default()
    }

    /// Goes on from what the module did below, before the first packet of a batch: it cannot
    /// have run again between two of them, since the lane goes below only when all are gone.
    /// To look for each would take the lane's cache line from the front door each time.
    #[inline]
    fn look_below(&mut self, batch: Option<u64>, now: CoarseInstant) {
        if self.looked_in == batch {
            return;
        }
        self.looked_in = batch;
        if self.shared.as_deref().is_some_and(Shared::has_run) {
            self.take_over(now);
        }
    }

    /// The packet that was passed on, and how it comes to the next service.
    pub(crate) fn take_onward(&mut self) -> Option<(Packet, Way)> {
        self.onward.pop_front()
    }

    #[inline]
    fn run(
        &mut self,
        engine: &Engine,
        packet: Packet,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Aftermath {
        let index = self.lane_of(&packet, &way.meta);
        if self.lanes[index].is_starting() {
            self.start_all(engine, now);
        }
        let Some(instance) = self.lanes[index].instance() else {
            let passed_on = self.go_without(packet, way, exits);
            let trapped = !self.untold.is_empty();
            return Aftermath { trapped, passed_on, ..Aftermath::default() };
        };
        let begun = CallTimes::begin(self.counts.packets);
        let meta = module_meta(&way.meta, self.facts.session, way.mark, now);
        let handled = instance.handle(packet, &meta);
        self.report.call_times.end(begun);
        let after = self.finish(index, handled, way, now, exits);
        if after.trapped {
            self.start_all(engine, now);
            self.settle_hold();
        }
        after
    }

    /// Does what a module says of a packet.
    #[inline]
    fn finish(
        &mut self,
        index: usize,
        handled: Handled<Packet>,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Aftermath {
        let meta = way.meta;
        let Handled { packet, verdict, mark, emitted } = handled;
        let is_data = meta.flags & maps::META_DATA != 0;
        if let Some(tap) = exits.tap().filter(|_| !is_data) {
            tap.decided((self.facts.entry, self.facts.session), &meta, &packet, &verdict);
        }
        let has_emitted = emitted.is_some();
        if let Some(emitted) = emitted {
            self.left.push(*emitted);
        }
        let mut passed_on = false;
        match verdict {
            Ok(Verdict::Pass { edge, reroute }) => match self.edges.get(usize::from(edge)) {
                Some(Edge::To(to)) => {
                    let mut meta = meta;
                    meta.entry = to.0;
                    if reroute {
                        meta.flags &= !maps::META_ROUTED;
                    }
                    passed_on = self.pass_on(packet, meta, mark, way);
                }
                Some(Edge::Down) => {
                    exits.recycle(packet);
                    self.report.drop_down += 1;
                }
                Some(Edge::Out) | None if is_data => {
                    exits.recycle(packet);
                    self.report.consumed += 1;
                }
                Some(Edge::Out) | None => passed_on = self.pass_out(packet, reroute, way, exits),
            },
            Ok(verdict) if is_data => self.deliver_data(packet, verdict, &meta, exits),
            Ok(verdict) => self.deliver(packet, verdict, &meta, exits),
            Err(trap) => {
                exits.recycle(packet);
                self.report.drop_trap += 1;
                self.replace(index, trap, now);
            }
        }
        let trapped = !self.untold.is_empty();
        Aftermath { trapped, emitted: has_emitted, passed_on, leaves: false }
    }

    /// A packet whose lane has no instance.
    #[cold]
    fn go_without(&mut self, packet: Packet, way: &Way, exits: &mut Exits<'_>) -> bool {
        let (mut meta, report) = (way.meta, &mut self.report);
        if meta.flags & maps::META_DATA != 0 {
            // There is no plain way for what is no frame.
            report.drop_down += 1;
            exits.recycle(packet);
            return false;
        }
        let next = if self.facts.closed { Next::Down } else { exits.next_stage(&mut meta) };
        let drop = match next {
            Next::Service(_) => return self.pass_on(packet, meta, [0; MARK_LENGTH], way),
            Next::By(port, session) => {
                match exits.leave_by(packet, &meta, (port, session)) {
                    End::Sent | End::ToKernel => report.plain += 1,
                    end => count_end(report, end),
                }
                return false;
            }
            Next::Out => match exits.forward(packet, &meta) {
                End::Sent | End::ToKernel => {
                    report.plain += 1;
                    return false;
                }
                end => {
                    count_end(report, end);
                    return false;
                }
            },
            Next::Down => &mut report.drop_down,
            Next::Drop => &mut report.drop_rule,
        };
        *drop += 1;
        exits.recycle(packet);
        false
    }

    /// To another service; always true.
    fn pass_on(
        &mut self,
        packet: Packet,
        meta: PacketMeta,
        mark: [u8; MARK_LENGTH],
        came: &Way,
    ) -> bool {
        self.report.passed_on += 1;
        let counted_by = came.batch.map(|_| self.facts.entry).or(came.counted_by);
        self.onward
            .push_back((packet, Way { meta, mark, batch: None, counted_by, room: Bytes::ZERO }));
        true
    }

    /// Out of the graph: to the next stage, if there is one, or on its way. Whether it goes on to
    /// another service.
    #[inline]
    fn pass_out(
        &mut self,
        packet: Packet,
        reroute: bool,
        way: &Way,
        exits: &mut Exits<'_>,
    ) -> bool {
        let mut meta = way.meta;
        if meta.then[0] == maps::RULE_NONE {
            self.pass(packet, reroute, &meta, exits);
            return false;
        }
        if reroute {
            meta.flags &= !maps::META_ROUTED;
        }
        let drop = match exits.next_stage(&mut meta) {
            Next::Service(_) => return self.pass_on(packet, meta, [0; MARK_LENGTH], way),
            Next::Out => {
                self.pass(packet, reroute, &meta, exits);
                return false;
            }
            Next::By(port, session) => {
                match exits.leave_by(packet, &meta, (port, session)) {
                    End::Sent => self.report.redirected += 1,
                    end => count_end(&mut self.report, end),
                }
                return false;
            }
            Next::Down => &mut self.report.drop_down,
            Next::Drop => &mut self.report.drop_rule,
        };
        *drop += 1;
        exits.recycle(packet);
        false
    }

    /// A packet of a shared lane has left the last service of its graph; true when it is to
    /// [`Service::depart`].
    #[inline]
    pub(crate) fn leave(&mut self, meta: &PacketMeta) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.leave(meta.epoch());
        true
    }

    /// A packet is through that its module had below, and that only waits to leave. Whether the lane
    /// has counted it.
    pub(crate) fn leave_past(&mut self, epoch: u8) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.leave_past(epoch);
        true
    }

    /// The devices have all packets that left.
    pub(crate) fn depart(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.depart(self.lanes[0].instance());
        }
    }

    /// Out of all graphs.
    #[inline]
    fn pass(&mut self, packet: Packet, reroute: bool, meta: &PacketMeta, exits: &mut Exits<'_>) {
        let end = match reroute {
            // Between the two ends of a bridge nothing is routed.
            true if meta.flags & maps::META_BRIDGED == 0 => exits.reroute(packet, meta),
            _ => exits.forward(packet, meta),
        };
        match end {
            End::Sent => self.counts.forwarded += 1,
            end => count_end(&mut self.report, end),
        }
    }

    fn deliver(
        &mut self,
        packet: Packet,
        verdict: Verdict,
        meta: &PacketMeta,
        exits: &mut Exits<'_>,
    ) {
        let report = &mut self.report;
        match verdict {
            Verdict::Pass { reroute, .. } => self.pass(packet, reroute, meta, exits),
            Verdict::Drop { reason } => {
                exits.recycle(packet);
                count_reason(&mut report.drop_module, reason);
            }
            Verdict::Bounce => match exits.bounce(packet, meta.arrival_port) {
                End::Sent => report.bounced += 1,
                end => count_end(report, end),
            },
            Verdict::Redirect { port } => match exits.redirect(packet, meta.arrival_port, port) {
                End::Sent => report.redirected += 1,
                end => count_end(report, end),
            },
            Verdict::Raise => {
                exits.recycle(packet);
                report.drop_raise += 1;
            }
        }
    }

    /// The payload of an active packet: it has no headers to go anywhere by, but those that it
    /// came with.
    fn deliver_data(
        &mut self,
        packet: Packet,
        verdict: Verdict,
        meta: &PacketMeta,
        exits: &mut Exits<'_>,
    ) {
        let report = &mut self.report;
        match verdict {
            Verdict::Bounce => match exits.answer(packet, meta.arrival_port) {
                End::Sent => report.bounced += 1,
                end => count_end(report, end),
            },
            Verdict::Redirect { .. } => {
                exits.recycle(packet);
                report.drop_malformed += 1;
            }
            Verdict::Pass { .. } | Verdict::Drop { .. } | Verdict::Raise => {
                self.deliver(packet, verdict, meta, exits);
            }
        }
    }

    /// What the lanes left since the last call: frames go out, the rest into `outbox`.
    pub(crate) fn take_emitted(&mut self, exits: &mut Exits<'_>, outbox: &mut Outbox) {
        let (entry, report) = (self.facts.entry, &mut self.report);
        for lane in &mut self.lanes {
            let hooks = lane.instance().filter(|instance| instance.has_emitted());
            self.left.extend(hooks.map(|instance| instance.take_emitted()));
        }
        for emitted in self.left.drain(..) {
            if emitted.watch.is_some() {
                (self.watch, self.has_new_watch) = (emitted.watch, true);
            }
            outbox.events.extend(emitted.events.into_iter().map(|event| (entry, event)));
            outbox.messages.extend(emitted.messages.into_iter().map(|message| (entry, message)));
            for sent in emitted.sent {
                send(report, exits, sent.port, &sent.frame);
            }
        }
    }

    /// What is to be said of its session's queue from now on, if that is news: in which session no
    /// more, and in which.
    pub(crate) fn take_watch(&mut self) -> Option<(Option<SessionId>, Option<QueueWatch>)> {
        if !std::mem::take(&mut self.has_new_watch) {
            return None;
        }
        let before = self.watches_in.take();
        self.watches_in = self.watch.map(|_| self.facts.session);
        Some((before, self.watch))
    }

    /// In which session's queue it watches.
    pub(crate) const fn watches_in(&self) -> Option<SessionId> {
        self.watches_in
    }

    /// The same of what programs below left; at most so much that others have their turn.
    pub(crate) fn take_records(&mut self, exits: &mut Exits<'_>, outbox: &mut Outbox) {
        let (entry, report) = (self.facts.entry, &mut self.report);
        let mut before = Self::shared_before(&mut self.before);
        let mut now = self.shared.as_deref_mut();
        for _ in 0..RECORDS_PER_TURN {
            let Some(shared) = before.as_mut().or(now.as_mut()) else { return };
            let taken = shared.next_record(|bytes| match Record::parse(bytes) {
                Ok(Record::Event { code, data, .. }) => {
                    let data = data.to_vec();
                    outbox.events.push((entry, engine::Event { code, data }));
                }
                Ok(Record::Message { message, .. }) => {
                    outbox.messages.push((entry, message.to_vec()));
                }
                Ok(Record::Send { port, frame, .. }) => send(report, exits, port, frame),
                Err(error) => report.last_trap = Some(error.to_string()),
            });
            match taken {
                Ok(Some(())) => {}
                // The version before is asked first, and not again.
                Ok(None) if before.take().is_none() => now = None,
                Ok(None) => {}
                Err(error) => {
                    report.last_trap = Some(error.to_string());
                    return;
                }
            }
        }
    }

    /// What becomes readable when a program below leaves something.
    pub(crate) fn ring_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_deref().map(Shared::ring_fd)
    }

    /// Does something with the instances while nobody below can be in their memory. Not at
    /// all when a program stays there: `None`.
    fn alone<R>(&mut self, now: CoarseInstant, act: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.stands() || !self.hold(now) {
            return None;
        }
        let result = act(self);
        self.settle_hold();
        Some(result)
    }

    /// Lets packets be handled at this level; false when a program stays in the lane.
    pub(crate) fn set_level(&mut self, level: u32, now: CoarseInstant) -> bool {
        let set =
            self.alone(now, |service| service.shared.as_mut().map(|shared| shared.set_home(level)));
        set.flatten().is_some()
    }

    /// `LEVEL_*`: where the daemon wants its packets; `None` when it cannot leave user level.
    pub(crate) fn home(&self) -> Option<u32> {
        self.shared.as_deref().map(Shared::home)
    }

    /// Whether a packet that its lane has counted is of before the last recount.
    pub(crate) fn is_of_before(&self, epoch: u8) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_of_before(epoch))
    }

    /// What a service that can leave user level shares.
    pub(crate) fn shared(&mut self) -> Option<&mut Shared> {
        self.shared.as_deref_mut()
    }

    /// How often an instance has trapped since the start.
    pub(crate) fn traps(&self) -> u64 {
        self.report.traps.values().sum()
    }

    /// Traps since the last call.
    pub(crate) fn take_untold(&mut self) -> Vec<Trapped> {
        std::mem::take(&mut self.untold)
    }

    /// What happened so far.
    pub(crate) fn report(&mut self) -> ServiceReport {
        let Counts { packets, bytes, forwarded } = self.counts;
        let mut report = ServiceReport { packets, bytes, forwarded, ..(*self.report).clone() };
        for lane in self.lanes.iter_mut().filter(|lane| !lane.is_empty()) {
            report.lanes_running += 1;
            report.memory_bytes += lane.memory_bytes();
            for (name, value) in lane.counters() {
                let sum = report.counters.entry(name.clone()).or_default();
                *sum = sum.wrapping_add(*value);
            }
        }
        report
    }
}

/// The front door's metadata in the words of the ABI.
#[inline]
fn module_meta(
    meta: &PacketMeta,
    session: SessionId,
    mark: [u8; MARK_LENGTH],
    now: CoarseInstant,
) -> Meta {
    let fragment = if meta.flags & maps::META_FRAGMENT != 0 { META_FRAGMENT } else { 0 };
    let later = if meta.flags & maps::META_LATER_FRAGMENT != 0 { META_LATER_FRAGMENT } else { 0 };
    let (begins_with, l3_offset, l4_offset) = match meta.flags & maps::META_DATA {
        0 => (BEGINS_WITH_ETHERNET, meta.l3_offset, meta.l4_offset),
        _ => (BEGINS_WITH_DATA, OFFSET_NONE, OFFSET_NONE),
    };
    Meta {
        packet_length: 0,
        window_length: 0,
        l3_offset,
        l4_offset,
        begins_with,
        ip_version: (meta.flags >> 8) as u8,
        protocol: (meta.flags >> 16) as u8,
        flags: fragment | later,
        port: meta.arrival_port,
        session: session.0,
        rule: u32::from(meta.rule),
        flow_hash: meta.flow_hash,
        lane: 0,
        now_ms: now.as_millis(),
        mark,
    }
}
