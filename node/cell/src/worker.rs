//! The cell's process: one thread that serves its sockets and its daemon in turn.

mod active;
mod adoption;
mod ahead;
mod frames;
mod leaving;
mod low;
mod maps;
mod parked;
mod post;
mod reports;
mod streams;
mod turns;
mod watch;

use crate::control::link::Link;
use crate::datapath::Datapath;
use crate::datapath::checksum;
use crate::datapath::deliver::Next;
use crate::datapath::facts::Facts;
use crate::datapath::kernel::KernelWay;
use crate::datapath::source;
use crate::datapath::tap::Tap;
use crate::datapath::tap_reader::{MARKED_LENGTH, Up, mark_of};
use crate::memory::Memory;
use crate::packet_memory::{PacketMemory, WAITING_MAX};
use crate::protocol::{CellReport, FromCell, PortFacts, ServiceFacts, StateWay, ToCell, decode};
use crate::sched::pacer::{self, Pacer};
use crate::sched::sessions::Sessions;
use crate::service::mappings::Mappings;
use crate::service::programs::Programs;
use crate::service::shared::Shared;
use crate::service::table::Services;
use crate::service::{Aftermath, Control, Ready, Service, Way};
use crate::streams::StreamServices;
use abi::PacketBytes;
use abi::layout::MARK_LENGTH;
use anyhow::{Context, Result, anyhow, bail};
use bpf_maps::{META_DATA, META_LEAVES, META_MARK, PacketMeta};
use engine::Engine;
use executor::{SLICE, Slicer};
use reports::Reporting;
use rustix::fd::{AsFd, OwnedFd};
use sandbox::Role;
use sandbox::fd_passing::{self, Received};
use sockets::frame_socket::FrameSocket;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::path::Path;
use std::rc::Rc;
use streams::Beside;
use units::{Bytes, CoarseInstant, EntryId, Millis, Nanos, PortId, SessionId};
use xsk::{Packet, Umem};
use zeroize::Zeroize;

/// Nine times the weight of an ordinary process: a guest core is the cell's, and what shares it
/// on a small machine still goes on.
const NICE: i32 = -10;
/// Packets taken from one socket before the next one has its turn.
const BATCH: usize = 64;
/// Packets whose headers are on their way to this CPU while one is handled: as
/// many as it takes to hide the way, and no more than a core has loads in flight.
const AHEAD: usize = 4;
/// Rounds without a look at the clock and the daemon: a round of slow modules
/// takes a few milliseconds, one of quick ones some microseconds. An empty round
/// ends them, and the thread waits in the kernel: looking again and again takes
/// the rings' cache lines from the CPU that fills them.
const BUSY_ROUNDS_MAX: u32 = 8;
/// Packets of one turn of the loop from which on more are expected at once. Then the thread
/// looks a little longer before it waits in the kernel: to wake it up takes the CPU that brings
/// the packets as long as to bring a dozen.
const BURST: usize = BATCH / 2;
/// Looks at the receive rings until then, and pauses of the processor between two: 10 to 30 µs,
/// three bursts of a fast driver.
const LOOKS: u32 = 64;
const PAUSES: u32 = 8;
/// Longest wait in the kernel when no timer is due earlier.
const WAIT_MAX: Millis = Millis(1000);
/// Longest step of the loop's coarse clock: a kernel of 100 ticks a second. What is due within it
/// is judged by the exact clock.
const CLOCK_STEP: Millis = Millis(10);
/// How long a lane may take to go below: the daemon gives it up twice in so long.
const AWAKE: Millis = Millis(50);
/// How long a service is expected, and then its first packet: waking up takes a tenth of a
/// millisecond each time.
const EXPECT: Millis = Millis(2);
struct Cell {
    link: Link,
    engine: Engine,
    programs: Programs,
    mappings: Mappings,
    slicer: Slicer,
    umem: Rc<Umem>,
    path: Datapath,
    /// Of packet ports; away while they are looked at.
    frames: Option<Box<frames::Frames>>,
    up: Option<Up>,
    services: Services,
    streams: StreamServices,
    beside: Beside,
    stream_engine: proxy_wasm::Engine,
    sessions: Sessions,
    accounts: Memory,
    pacer: Rc<Pacer>,
    meter: turns::Meter,
    /// What the daemon wants of services whose call stands still.
    parked: VecDeque<parked::Parked>,
    /// From modules to those before them, oldest first, with their senders.
    messages: VecDeque<(EntryId, Vec<u8>)>,
    letters: Rc<crate::service::letter::LetterCounts>,
    /// Packets from sockets since the thread last thought of waiting.
    came: usize,
    /// Until when what takes turns is interrupted.
    interrupts_until: Nanos,
    /// Turns that come for which everything has been loaded ahead.
    loaded: usize,
    /// Batches that were taken from sockets so far.
    batches: u64,
    /// This thread does not wait in the kernel while a service moves down (the lane goes below
    /// in a gap between packets that is shorter than waking up takes) and while one starts.
    awake_until: CoarseInstant,
    report: CellReport,
    reporting: Reporting,
}

/// Runs until its daemon is gone, and longer if it has services: then the next daemon finds it
/// in `directory`. `daemon` is a socket of [`fd_passing::pair`]; packet memory is for so many
/// receive `queues`.
///
/// # Errors
/// When the engine, the packet memory or the connection fails.
pub fn run(daemon: OwnedFd, directory: &Path, queues: u32, core: Option<usize>) -> Result<()> {
    // Started through /proc/self/exe, it would be called "exe".
    rustix::thread::set_name(c"tam").context("naming the process")?;
    // A socket cannot be read by others either.
    let _ = sandbox::child::only_write_to_standard_error();
    // On its core it comes before whatever else may run there. Without the right it does not.
    let _ = rustix::process::setpriority_process(None, NICE);
    // What is to leave at a time would come 50 µs later; the kernel allows it to be exact.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if let Some(core) = core {
        sandbox::cores::only(core).with_context(|| format!("pinning the cell to core {core}"))?;
    }
    let engine = Engine::new().context("making the engine")?;
    // Nothing is compiled once it is confined.
    engine.prepare().context("making the engine")?;
    let stream_engine = proxy_wasm::Engine::new().context("making the engine of streams")?;
    let (raised, of_streams) = (engine.clone(), stream_engine.clone());
    let raise = move || {
        raised.raise_epoch();
        of_streams.raise_epoch();
    };
    let slicer = Slicer::new(raise).context("making the slice timer")?;
    let memory = PacketMemory::of(queues);
    let (umem, pool) = Umem::new(memory.frames()).context("mapping the packet memory")?;
    let link = Link::new(daemon, directory).context("listening for daemons")?;
    let streams = StreamServices::new().context("making room for connections")?;
    // Asked for once, in a way that a confined process cannot.
    let _ = rustix::param::page_size();
    let role = Role::Cell { locked_bytes: umem.length() as u64 };
    let confined = sandbox::confine(role).context("confining the cell")?;
    tracing::debug!(?confined, "the cell is confined");
    let accounts = Memory::new();
    let mut cell = Cell {
        link,
        engine,
        programs: Programs::default(),
        mappings: Mappings::default(),
        slicer,
        umem: Rc::new(umem),
        path: Datapath::new(pool),
        frames: Some(Box::default()),
        up: None,
        services: Services::default(),
        streams,
        stream_engine,
        sessions: Sessions::new(pacer::now(), memory, accounts.clone()),
        accounts,
        pacer: Rc::new(Pacer::default()),
        meter: turns::Meter::new(),
        beside: Beside::default(),
        parked: VecDeque::new(),
        messages: VecDeque::new(),
        letters: Rc::default(),
        came: 0,
        interrupts_until: Nanos::ZERO,
        loaded: 0,
        batches: 0,
        awake_until: CoarseInstant::ZERO,
        report: CellReport::default(),
        reporting: Reporting::default(),
    };
    cell.serve()
}

/// Returns the time of the coarse monotonic clock, read once a round.
fn coarse_now() -> CoarseInstant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    CoarseInstant::from_millis(now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000)
}

impl Cell {
    fn serve(&mut self) -> Result<()> {
        let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
        let mut batch = VecDeque::with_capacity(BATCH);
        let mut busy_rounds = 0;
        loop {
            self.link.handle_round();
            let now = coarse_now();
            self.path.ports.set_time(now);
            while self.round(&mut batch, now) && busy_rounds < BUSY_ROUNDS_MAX {
                busy_rounds += 1;
            }
            let leaves = self.send_waiting();
            let looks = self.looks_beside();
            let came_up = looks && self.receive_up(BATCH, now) | self.receive_frames(BATCH, now);
            // Before the packets that made a queue long.
            self.tell_queues(now);
            self.look_at_streams()?;
            let worked = self.take_turns(now);
            self.take_records();
            self.deliver_messages(now);
            self.path.associations.expire(now, &mut self.path.pool);
            if self.sessions.is_epoch_over(now) {
                self.end_epoch(now);
            }
            self.unpark(now)?;
            self.tell_tapped();
            if now + CLOCK_STEP >= self.services.poll_timeout() {
                self.tick(now);
            }
            self.tell_low(now);
            self.report_on()?;
            let may_wait = now >= self.awake_until
                && self.messages.is_empty()
                && !self.reporting.is_going_on();
            let is_idle =
                busy_rounds < BUSY_ROUNDS_MAX && !came_up && !worked && !leaves && may_wait;
            if is_idle && !self.linger() {
                self.slicer.disarm();
                // What timers and programs below left to send.
                self.flush();
                self.mappings.forget();
                self.wait()?;
            }
            busy_rounds = 0;
            if looks && !self.obey(&mut buffer, now)? {
                return Ok(());
            }
        }
    }

    /// One batch of each socket, then what it left to send. True when there was any.
    fn round(&mut self, batch: &mut VecDeque<Packet>, now: CoarseInstant) -> bool {
        let mut busy = false;
        let mut transmitting = false;
        let sockets: usize = self.path.ports.sockets().count();
        for index in 0..sockets {
            let Some((_, socket)) = self.path.ports.sockets().nth(index) else { continue };
            let oversized = socket.receive(batch, BATCH, &mut self.path.pool);
            self.report.oversized += u64::from(oversized);
            if !batch.is_empty() {
                busy = true;
                self.came += batch.len();
                self.batches += 1;
                self.arm();
                if self.loads_ahead() {
                    self.load_for_packets(batch);
                }
                batch.iter().take(AHEAD).for_each(Packet::load_ahead);
                while let Some(packet) = batch.pop_front() {
                    if let Some(later) = batch.get(AHEAD - 1) {
                        later.load_ahead();
                    }
                    self.handle(packet, now);
                }
                self.meter.stop(&mut self.sessions);
            }
        }
        self.flush();
        let ready = self.sessions.ready();
        for (_, socket) in self.path.ports.sockets() {
            socket.refill(&mut self.path.pool, ready);
            transmitting |= socket.transmitting();
        }
        busy || transmitting
    }

    /// After a burst, looks whether more comes. True when it did.
    fn linger(&mut self) -> bool {
        if std::mem::take(&mut self.came) < BURST {
            return false;
        }
        self.flush();
        (0..LOOKS).any(|_| {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            self.path.ports.sockets().any(|(_, socket)| socket.has_received())
        })
    }

    /// Has the devices take what was sent. When they have all, lanes may go below: nothing
    /// from there overtakes it.
    fn flush(&mut self) {
        self.sessions.say_released();
        let mut is_sent = true;
        for (_, socket) in self.path.ports.sockets() {
            socket.flush(&mut self.path.pool);
            is_sent &= socket.is_sent();
        }
        if is_sent {
            self.path.egress.have_left();
        }
        if is_sent && self.services.is_leaving() {
            self.services.handle_sent(|session| self.path.egress.waits(session));
        }
    }

    /// At most so many packets that came up from kernel level. True when there were any.
    fn receive_up(&mut self, most: usize, now: CoarseInstant) -> bool {
        let Some(mut up) = self.up.take() else { return false };
        let mut count = 0;
        while count < most
            && let Some((meta, mark, frame)) = up.next()
        {
            count += 1;
            self.arm();
            match Packet::allocate(&self.umem, &mut self.path.pool, frame.len()) {
                Some(mut packet) => {
                    // Allocated with the frame's length: the store fits.
                    let _ = packet.store(0, frame);
                    if meta.flags & META_LEAVES != 0 {
                        self.let_leave(packet, meta);
                        continue;
                    }
                    // Each is a batch of its own: it is read when it is handled.
                    self.batches += 1;
                    let batch = Some(self.batches);
                    let way = Way { meta, mark, batch, counted_by: None, room: Bytes::ZERO };
                    self.handle_with(packet, way, now);
                }
                // Its service has counted that one already.
                None if meta.flags & META_LEAVES != 0 => self.report.egress_gone += 1,
                None => self.report.up_dropped += 1,
            }
        }
        self.report.no_metadata += up.take_bare();
        self.up = Some(up);
        count > 0
    }

    #[inline]
    fn handle(&mut self, packet: Packet, now: CoarseInstant) {
        let Some(meta) = packet.metadata::<{ size_of::<PacketMeta>() }>() else {
            packet.recycle(&mut self.path.pool);
            self.report.no_metadata += 1;
            return;
        };
        let meta: PacketMeta = bytemuck::cast(meta);
        let mark = match meta.flags & META_MARK {
            0 => [0; MARK_LENGTH],
            // The front door wrote both, the mark in front.
            _ => packet.metadata::<MARKED_LENGTH>().map_or([0; MARK_LENGTH], mark_of),
        };
        let batch = Some(self.batches);
        let way = Way { meta, mark, batch, counted_by: None, room: Bytes::ZERO };
        self.handle_with(packet, way, now);
    }

    /// Takes a packet through the services of its graph.
    #[inline]
    fn handle_with(&mut self, mut packet: Packet, mut way: Way, now: CoarseInstant) {
        self.come(&packet, &mut way);
        checksum::complete(&mut packet, &way.meta);
        source::keep(&mut packet, &mut way.meta);
        let meta = way.meta;
        if meta.entry == node::ASSOCIATIONS.0 {
            self.give_room_back(&way);
            return self.receive_active(packet, meta, now);
        }
        if self.sessions.take_turns() || self.services.is_busy(EntryId(meta.entry)) {
            return self.enqueue(packet, way, now);
        }
        self.give_room_back(&way);
        if self.visit(packet, &way, now) && self.go_on(EntryId(meta.entry), now) {
            let first = self.services.get_mut(EntryId(meta.entry));
            let leaves = first.is_some_and(|service| service.leave(&meta));
            self.services.leaves(leaves);
        }
    }

    /// Takes what a service passed on through the others of its graph. False when it waits in
    /// one of them, which then says when it is through.
    #[cold]
    fn go_on(&mut self, mut entry: EntryId, now: CoarseInstant) -> bool {
        while let Some((packet, way)) = self.services.get_mut(entry).and_then(Service::take_onward)
        {
            entry = EntryId(way.meta.entry);
            if self.sessions.take_turns() || self.services.is_busy(entry) {
                self.enqueue(packet, way, now);
                return false;
            }
            if !self.visit(packet, &way, now) {
                return true;
            }
        }
        true
    }

    /// Gives a packet to its service; true when it goes on to another.
    #[inline]
    fn visit(&mut self, packet: Packet, way: &Way, now: CoarseInstant) -> bool {
        let entry = EntryId(way.meta.entry);
        let service = self.services.get_mut(entry);
        let Some(service) = service else {
            self.go_past(packet, way.meta, now);
            return false;
        };
        let session = service.facts.session;
        self.meter.run_for(&mut self.sessions, session);
        let mut exits = self.path.exits(&mut self.sessions, session);
        let after = service.handle(&self.engine, packet, way, now, &mut exits);
        service.bytes_out += exits.sent;
        self.follow(entry, &after);
        after.passed_on
    }

    /// Does what is left to do behind calls of a service.
    #[inline]
    fn follow(&mut self, entry: EntryId, after: &Aftermath) {
        if after.trapped {
            self.tell_traps(entry);
        }
        if after.emitted {
            self.emit(entry);
        }
        if after.trapped || after.emitted {
            self.settle_watch(entry);
        }
        self.services.leaves(after.leaves);
    }

    /// A packet whose service is not there, since its rule is on its way out: it goes where it
    /// was going.
    #[cold]
    fn go_past(&mut self, packet: Packet, mut meta: PacketMeta, now: CoarseInstant) {
        self.report.no_service += 1;
        if meta.flags & META_DATA != 0 {
            self.report.no_service_dropped += 1;
            return packet.recycle(&mut self.path.pool);
        }
        let mut exits = self.path.exits(&mut self.sessions, SessionId::BEST_EFFORT);
        let lost = match exits.next_stage(&mut meta) {
            Next::Service(entry) => {
                let (mark, room) = ([0; MARK_LENGTH], Bytes::ZERO);
                let way = Way { meta, mark, batch: None, counted_by: None, room };
                return self.hand_on(packet, way, entry, now);
            }
            Next::Out => exits.forward(packet, &meta).is_lost(),
            Next::By(port, session) => exits.leave_by(packet, &meta, (port, session)).is_lost(),
            Next::Down | Next::Drop => {
                packet.recycle(exits.pool);
                true
            }
        };
        self.report.no_service_dropped += u64::from(lost);
    }

    fn wait(&mut self) -> Result<()> {
        let next = self.services.poll_timeout().as_nanos().saturating_sub(pacer::now());
        let mut time = next.min(WAIT_MAX.as_nanos());
        let (sessions, egress) = (self.sessions.poll_timeout(), self.path.egress.poll_timeout());
        for turn in [sessions, egress, self.streams.poll_timeout()].into_iter().flatten() {
            time = time.min(turn.saturating_sub(pacer::now()));
        }
        let mut fds: Vec<_> = self.link.waited_for().collect();
        fds.extend(self.streams.are_there().then_some(self.streams.as_fd()));
        fds.extend(self.path.ports.queues().map(|(_, _, socket)| socket));
        fds.extend(
            self.path
                .ports
                .iter()
                .filter_map(|(_, port)| Some(port.frames.as_ref()?.socket.as_fd())),
        );
        fds.extend(self.up.as_ref().map(Up::as_fd));
        let with_lanes = self.services.with_lanes().iter();
        fds.extend(with_lanes.filter_map(|&entry| self.services.get(entry)?.ring_fd()));
        fd_passing::wait_readable(&fds, Some(time)).context("waiting for packets")
    }

    /// Handles what the daemon says; false when nobody needs this cell any more.
    fn obey(&mut self, buffer: &mut [u8], now: CoarseInstant) -> Result<bool> {
        loop {
            let (length, fds) = match self.link.receive(buffer, now)? {
                Some(Received::Message(length, fds)) => (length, fds),
                Some(_) => return Ok(true),
                None => {
                    let serves = !self.services.is_empty() || self.streams.are_there();
                    return Ok(serves && !self.link.is_given_up(now));
                }
            };
            let message = decode(&buffer[..length])?;
            if let ToCell::Associate(_) = message {
                buffer[..length].zeroize();
            }
            self.hear(message, fds, now)?;
        }
    }

    fn command(
        &mut self,
        message: ToCell,
        mut fds: Vec<OwnedFd>,
        now: CoarseInstant,
    ) -> Result<()> {
        match message {
            ToCell::Kernel => self.path.kernel = fds.pop().map(KernelWay::Tun),
            ToCell::KernelFrames => {
                self.path.kernel = fds.pop().map(|fd| KernelWay::Frames(FrameSocket::from(fd)));
            }
            ToCell::AddPort(facts) => {
                let Some(fd) = fds.pop() else { bail!("AddPort came without its socket") };
                self.add_port(&facts, fd)?;
            }
            ToCell::AddFrames(facts, bridge) => {
                let sockets = fds.try_into();
                let sockets = sockets.map_err(|_| anyhow!("AddFrames came without its sockets"))?;
                self.add_frames(&facts, bridge, sockets)?;
            }
            ToCell::Taken(port) => {
                let Some(fd) = fds.pop() else { bail!("Taken came without its descriptor") };
                self.path.ports.hold_taken(port, fd);
            }
            ToCell::Rules(number) => {
                let Some(fd) = fds.pop() else { bail!("Rules came without their memory") };
                if let Some(frames) = &mut self.frames {
                    let facts = frames.install(number, &fd)?;
                    // The front door's are of all rules, too.
                    if !matches!(self.path.rules, Some(Facts::Map(_))) {
                        self.path.rules = Some(facts);
                    }
                }
            }
            ToCell::Counts => {
                let Some(fd) = fds.pop() else { bail!("Counts came without their memory") };
                if let Some(frames) = &mut self.frames {
                    frames.count_in(fd)?;
                }
            }
            ToCell::ChangePort(facts) => {
                self.path.ports.change(&facts);
                self.set_rate(&facts);
            }
            ToCell::RemovePort(port) => self.remove_port(port, now),
            ToCell::Tap(facts) => self.path.tap = facts.map(Tap::new),
            ToCell::Up => self.up = fds.pop().map(Up::new),
            ToCell::Lanes | ToCell::RuleFacts | ToCell::Rooms | ToCell::Lines | ToCell::Answers => {
                self.take_map(&message, fds)?
            }
            ToCell::Memory(total) => self.accounts.set_total(total),
            ToCell::Line(port, session, account) => {
                self.path.egress.set_payer(port, session, account)
            }
            ToCell::Session(facts) => self.set_session(&facts),
            ToCell::MemoryOf(session) => self.tell_memory(session)?,
            ToCell::ForgetSession(id) => self.forget_session(id),
            ToCell::Expect => self.stay_awake(now + EXPECT),
            ToCell::Start(facts) => {
                if fds.is_empty() {
                    bail!("Start came without its code");
                }
                let code = fds.remove(0);
                self.start(*facts, &code, &fds, now)?;
                self.stay_awake(now + EXPECT);
            }
            ToCell::StartStreams(facts) => self.start_streams(*facts, fds)?,
            ToCell::ReplaceStreams(facts) => self.replace_streams(*facts, fds)?,
            ToCell::Codecs(facts) => self.streams.codecs().set_facts(facts),
            ToCell::CodecStarted(number, pid) => self.codec_started(number, pid, fds)?,
            ToCell::CodecEnded(number, why, cpu) => self.streams.codecs().ended(number, why, cpu),
            ToCell::Sockets { v6 } => self.streams.provide(v6, fds),
            ToCell::Replace(facts, way) => {
                if fds.is_empty() {
                    bail!("Replace came without its code");
                }
                let code = fds.remove(0);
                self.replace(*facts, way, &code, &fds, now)?;
                self.stay_awake(now + EXPECT);
            }
            ToCell::Edges(entry, edges) => {
                if let Some(service) = self.services.get_mut(entry) {
                    service.set_edges(edges);
                }
            }
            ToCell::Closed(entry, closed) => {
                if let Some(service) = self.services.get_mut(entry) {
                    service.facts.closed = closed;
                } else {
                    self.streams.set_closed(entry, closed);
                }
            }
            ToCell::VersionKnown(entry) => {
                if let Some(service) = self.services.get_mut(entry) {
                    service.become_known();
                }
            }
            ToCell::Target(entry, level) => self.set_level(entry, level, now)?,
            ToCell::Recount(entry) => {
                self.recount(entry, Shared::begin_recount);
                self.link.send(&FromCell::Recounting(entry))?;
            }
            ToCell::Settle(entry) => self.settle(entry)?,
            ToCell::Adopt(keep) => self.adopted(&keep)?,
            ToCell::Associate(keys) => self.associate(&keys)?,
            ToCell::Disassociate(id) => self.path.associations.end(id, &mut self.path.pool),
            ToCell::Called(question, answer) => self.called(question, answer, now),
            ToCell::Stop(entry) => {
                self.path.associations.forget_service(entry);
                let of_streams = self.stop_streams(entry);
                let report = of_streams.unwrap_or_else(|| self.stop(entry, now));
                self.link.send(&FromCell::Stopped(entry, Box::new(report)))?;
            }
            ToCell::Message(entry, message) => {
                self.give_message(entry, message, now);
            }
            ToCell::Report => self.report(),
            ToCell::ReportSessions => self.report_sessions_only(),
        }
        Ok(())
    }

    fn add_port(&mut self, facts: &PortFacts, fd: OwnedFd) -> Result<()> {
        let (ready, leaving) = (self.sessions.ready(), self.sessions.memory().leaving());
        let (umem, pool) = (&self.umem, &mut self.path.pool);
        let added = self.path.ports.add(facts, fd, umem, pool, ready, leaving);
        self.set_rate(facts);
        self.link.send(&match added {
            Ok(()) => FromCell::PortReady(facts.port, facts.queue),
            Err(error) => FromCell::PortFailed(facts.port, facts.queue, error.to_string()),
        })
    }

    fn remove_port(&mut self, port: PortId, now: CoarseInstant) {
        self.handle_received(now);
        let waited = self.path.egress.remove_port(port);
        self.lose(waited);
        self.report.egress_gone += self.path.ports.remove(port, &mut self.path.pool);
    }

    /// Handles what is in the receive rings at this moment.
    fn handle_received(&mut self, now: CoarseInstant) {
        let mut batch = VecDeque::with_capacity(BATCH);
        let rounds = WAITING_MAX as usize / BATCH;
        let _ = (0..rounds).all(|_| self.round(&mut batch, now));
        self.receive_frames(WAITING_MAX as usize, now);
    }

    /// The same with what came up from kernel level.
    fn receive_all(&mut self, now: CoarseInstant) {
        self.handle_received(now);
        self.receive_up(WAITING_MAX as usize, now);
    }

    fn start(
        &mut self,
        facts: ServiceFacts,
        code: &OwnedFd,
        memory: &[OwnedFd],
        now: CoarseInstant,
    ) -> Result<()> {
        let entry = facts.entry;
        match self.prepare(facts, code, memory, true) {
            Ok(ready) => {
                let service = Service::begin(ready, &self.pacer, Vec::new(), now);
                self.services.insert(service);
                self.attend(entry, now);
                Ok(())
            }
            Err(error) => self.link.send(&FromCell::StartFailed(entry, low::failure(&error))),
        }
    }

    /// Puts another version in a service's place. What can be made before packets wait for it is.
    fn replace(
        &mut self,
        facts: ServiceFacts,
        way: StateWay,
        code: &OwnedFd,
        memory: &[OwnedFd],
        now: CoarseInstant,
    ) -> Result<()> {
        let entry = facts.entry;
        let is_new = self.services.get_mut(entry).is_none_or(|service| service.shared().is_none());
        let ready = self.prepare(facts, code, memory, is_new);
        let refused = match ready {
            Ok(ready) => {
                let control = Control::Replace(Box::new(ready), way);
                let is_taken = self.ask(entry, control, now);
                (!is_taken).then(|| anyhow!("the service is not there, or has too much to do"))
            }
            Err(error) => Some(error),
        };
        let failed = |error| FromCell::ReplaceFailed(entry, low::failure(&error));
        refused.map_or(Ok(()), |error| self.link.send(&failed(error)))
    }

    /// All that a service needs to start.
    fn prepare(
        &mut self,
        facts: ServiceFacts,
        code: &OwnedFd,
        memory: &[OwnedFd],
        is_new: bool,
    ) -> Result<Ready> {
        let charge = self.accounts.charge_service(&facts)?;
        let ports =
            self.path.ports.iter().map(|(number, port)| (port.name.clone(), number)).collect();
        let lane = self.services.lane(facts.entry);
        let mappings = &mut self.mappings;
        let map = |shared| Shared::map(mappings, shared, memory, lane, is_new);
        let shared = facts.shared.as_ref().map(map);
        let shared = shared.transpose()?;
        let kind = facts.kind();
        let program = self.programs.load(&self.engine, code, kind, facts.functions)?;
        Ok(Ready { program, facts, ports, shared, memory: self.accounts.clone(), charge })
    }

    /// Has code interrupted that runs too long. Turns see to that themselves, and sooner.
    #[inline]
    fn arm(&mut self) {
        if !self.sessions.take_turns() {
            self.slicer.arm(SLICE);
        }
    }

    fn stay_awake(&mut self, until: CoarseInstant) {
        self.awake_until = self.awake_until.max(until);
    }
}
