//! The cell's process: one thread that serves its sockets and its daemon in turn.
//!
//! ```text
//!   sockets ─▶ Intake ─▶ Dispatcher ─▶ out
//!   daemon ─▶ Link ─▶ Deferred ─▶ the owner of what a message is about
//! ```

mod setup;
#[cfg(test)]
mod tests;

use crate::PROTOCOL_VERSION;
use crate::control::deferred::{Deferred, Until};
use crate::control::link::Link;
use crate::control::reports::{Reports, Sources};
use crate::dispatch::{BATCH, Dispatcher};
use crate::intake::Intake;
use crate::protocol::{Adopted, FromCell, Given, ToCell, decode};
use crate::sched::{Timer, pacer};
use crate::service::letter::Letter;
use crate::service::loader::Loader;
use crate::service::shared::Shared;
use crate::service::table::Services;
use crate::service::{Control, Service};
use crate::streams::turns::StreamTurns;
use anyhow::{Context, Result, anyhow, bail};
use bpf::{Answers, Lanes, Lines, Rooms, RuleFacts};
use bpf_maps::LEVEL_USER;
use executor::Slicer;
use rustix::fd::{AsFd, OwnedFd};
use sandbox::fd_passing::{self, Received};
use std::collections::BTreeSet;
use std::path::Path;
use units::{CoarseInstant, EntryId, Millis};
use zeroize::Zeroize;

/// Rounds without a look at the clock and the daemon: a round of slow modules
/// takes a few milliseconds, one of quick ones some microseconds. An empty round
/// ends them, and the thread waits in the kernel: looking again and again takes
/// the rings' cache lines from the CPU that fills them.
const BUSY_ROUNDS_MAX: u32 = 8;
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

/// Root of the process: it routes what comes to the owner that handles it.
struct Cell<T = Slicer> {
    link: Link,
    deferred: Deferred,
    reports: Reports,
    loader: Loader,
    intake: Intake,
    dispatcher: Dispatcher<T>,
    streams: StreamTurns,
    /// This thread does not wait in the kernel while a service moves down (the lane goes below
    /// in a gap between packets that is shorter than waking up takes) and while one starts.
    awake_until: CoarseInstant,
}

/// Runs until its daemon is gone, and longer if it has services: then the next daemon finds it
/// in `directory`. `daemon` is a socket of [`fd_passing::pair`]; packet memory is for so many
/// receive `queues`.
///
/// # Errors
/// When the engine, the packet memory or the connection fails.
pub fn run(daemon: OwnedFd, directory: &Path, queues: u32, core: Option<usize>) -> Result<()> {
    setup::confined(daemon, directory, queues, core)?.serve()
}

/// Returns the time of the coarse monotonic clock, read once a round.
fn coarse_now() -> CoarseInstant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    CoarseInstant::from_millis(now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000)
}

/// Takes a message's last descriptor.
fn descriptor(fds: &mut Vec<OwnedFd>, missing: &'static str) -> Result<OwnedFd> {
    fds.pop().context(missing)
}

/// Takes the map that a message brought.
fn map_of(message: &ToCell, fds: &mut Vec<OwnedFd>) -> Result<OwnedFd> {
    fds.pop().with_context(|| format!("{message:?} came without its map"))
}

/// Returns whether a command for a service has to wait.
fn must_wait(services: &Services) -> impl Fn(EntryId, Until) -> bool {
    |entry, until| match until {
        Until::Rest => services.get(entry).is_some_and(Service::stands),
        Until::Recounted => services.has_of_before(entry),
    }
}

impl<T: Timer> Cell<T> {
    fn serve(&mut self) -> Result<()> {
        let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
        loop {
            self.link.handle_round();
            let now = coarse_now();
            let Self { intake, dispatcher, streams, link, .. } = self;
            dispatcher.path_mut().set_time(now);
            let mut busy_rounds = 0;
            while intake.receive(dispatcher, now, link) && busy_rounds < BUSY_ROUNDS_MAX {
                busy_rounds += 1;
            }
            let leaves = dispatcher.send_waiting();
            let looks = streams.poll_beside();
            let came_up = looks && intake.receive_beside(BATCH, dispatcher, now, link);
            // Before the packets that made a queue long.
            dispatcher.report_queues(now, link);
            streams.look(dispatcher.scheduler_mut(), link)?;
            let worked = dispatcher.run_turns(streams, now, link);
            dispatcher.take_records(link);
            dispatcher.deliver_messages(now, link);
            dispatcher.path_mut().handle_timeout(now);
            if dispatcher.scheduler().sessions().is_epoch_over(now) {
                // A cell that stood still may find in the rings what seems lost.
                if dispatcher.scheduler().takes_turns() {
                    intake.drain(dispatcher, now, link);
                }
                dispatcher.end_epoch(now);
            }
            self.run_deferred(now)?;
            self.dispatcher.send_tapped(&mut self.link);
            if now + CLOCK_STEP >= self.dispatcher.services().poll_timeout() {
                self.dispatcher.tick(now, &mut self.link);
            }
            let accounts = self.loader.accounts();
            self.dispatcher.report_low_memory(accounts, now, &mut self.link);
            self.send_reports()?;
            let may_wait = now >= self.awake_until
                && !self.dispatcher.has_messages()
                && !self.reports.are_due();
            let is_idle =
                busy_rounds < BUSY_ROUNDS_MAX && !came_up && !worked && !leaves && may_wait;
            if is_idle && !self.intake.linger(&mut self.dispatcher) {
                self.dispatcher.scheduler_mut().disarm();
                // What timers and programs below left to send.
                self.dispatcher.flush();
                self.loader.handle_idle();
                self.wait()?;
            }
            if looks && !self.drain_messages(&mut buffer, now)? {
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Result<()> {
        let dispatcher = &self.dispatcher;
        let now = pacer::now();
        let timers = [
            Some(dispatcher.services().poll_timeout().as_nanos()),
            dispatcher.scheduler().sessions().poll_timeout(),
            dispatcher.path().poll_timeout(),
            self.streams.poll_timeout(),
        ];
        let until = timers.into_iter().flatten().map(|at| at.saturating_sub(now)).min();
        let time = until.map_or(WAIT_MAX.as_nanos(), |until| until.min(WAIT_MAX.as_nanos()));
        let mut fds: Vec<_> = self.link.waited_for().collect();
        fds.extend(self.streams.waited_for());
        fds.extend(dispatcher.path().waited_for());
        fds.extend(self.intake.tap());
        let with_lanes = dispatcher.services().with_lanes().iter();
        fds.extend(
            with_lanes
                .filter_map(|&entry| Some(dispatcher.services().get(entry)?.shared()?.ring_fd())),
        );
        fd_passing::wait_readable(&fds, Some(time)).context("waiting for packets")
    }

    /// Handles what the daemon says; false when nobody needs this cell any more.
    fn drain_messages(&mut self, buffer: &mut [u8], now: CoarseInstant) -> Result<bool> {
        loop {
            let (length, fds) = match self.link.receive(buffer, now)? {
                Some(Received::Message(length, fds)) => (length, fds),
                Some(_) => return Ok(true),
                None => {
                    let serves = !self.dispatcher.services().is_empty() || self.streams.are_there();
                    return Ok(serves && !self.link.is_given_up(now));
                }
            };
            let message = decode(&buffer[..length])?;
            if let ToCell::Associate(_) = message {
                buffer[..length].zeroize();
            }
            self.on_message(message, fds, now)?;
        }
    }

    /// Handles a message, now or when it can be.
    fn on_message(&mut self, message: ToCell, fds: Vec<OwnedFd>, now: CoarseInstant) -> Result<()> {
        if let ToCell::Settle(_) = message {
            // What is in rings is in queues then, or handled.
            self.intake.drain(&mut self.dispatcher, now, &mut self.link);
        }
        let must_wait = must_wait(self.dispatcher.services());
        match self.deferred.handle((message, fds), must_wait) {
            Some((message, fds)) => self.command(message, fds, now),
            None => Ok(()),
        }
    }

    /// Runs what can be done of commands that wait.
    fn run_deferred(&mut self, now: CoarseInstant) -> Result<()> {
        for command in self.deferred.take() {
            let must_wait = must_wait(self.dispatcher.services());
            if let Some((message, fds)) = self.deferred.handle(command, must_wait) {
                self.command(message, fds, now)?;
            }
        }
        Ok(())
    }

    /// Routes a command to the owner of what it is about.
    fn command(
        &mut self,
        message: ToCell,
        mut fds: Vec<OwnedFd>,
        now: CoarseInstant,
    ) -> Result<()> {
        let Self { link, loader, intake, dispatcher, streams, .. } = self;
        match message {
            ToCell::Kernel => dispatcher.path_mut().set_kernel(fds.pop()),
            ToCell::KernelFrames => dispatcher.path_mut().set_kernel_frames(fds.pop()),
            ToCell::AddPort(facts) => {
                let fd = descriptor(&mut fds, "AddPort came without its socket")?;
                link.send(&dispatcher.add_port(&facts, fd))?;
            }
            ToCell::AddFrames(facts, bridge) => {
                let sockets = fds.try_into();
                let sockets = sockets.map_err(|_| anyhow!("AddFrames came without its sockets"))?;
                let (path, sessions) = dispatcher.path_and_sessions();
                path.add_frames(&facts, bridge, sockets, sessions);
                link.send(&FromCell::PortReady(facts.port, facts.queue))?;
            }
            ToCell::Taken(port) => {
                let fd = descriptor(&mut fds, "Taken came without its descriptor")?;
                dispatcher.path_mut().hold_taken(port, fd);
            }
            ToCell::Rules(number) => {
                let fd = descriptor(&mut fds, "Rules came without their memory")?;
                dispatcher.path_mut().set_own_rules(intake.install(number, &fd)?);
            }
            ToCell::Counts => {
                intake.count_in(descriptor(&mut fds, "Counts came without their memory")?)?;
            }
            ToCell::ChangePort(facts) => {
                let (path, sessions) = dispatcher.path_and_sessions();
                path.change_port(&facts, sessions);
            }
            ToCell::RemovePort(port) => {
                intake.drain_ports(dispatcher, now, link);
                let (path, sessions) = dispatcher.path_and_sessions();
                path.remove_port(port, sessions);
            }
            ToCell::Tap(facts) => dispatcher.path_mut().set_tap(facts),
            ToCell::Up => intake.set_tap(fds.pop()),
            // Maps stay for as long as the process: each service has its own in hand, and each
            // session.
            ToCell::Lanes => {
                let lanes = Lanes::given(&map_of(&message, &mut fds)?);
                let lanes = lanes.context("mapping the lanes")?;
                dispatcher.services_mut().set_lanes(Box::leak(Box::new(lanes)));
            }
            ToCell::Rooms => {
                let rooms = Rooms::given(&map_of(&message, &mut fds)?);
                let rooms = rooms.context("mapping what may wait for sessions")?;
                let sessions = dispatcher.scheduler_mut().sessions_mut();
                sessions.share(pacer::now(), Box::leak(Box::new(rooms)));
            }
            ToCell::Lines => {
                let accounts = Lines::given(&map_of(&message, &mut fds)?);
                let accounts = accounts.context("mapping the accounts of ports' shares")?;
                dispatcher.path_mut().set_port_shares(accounts);
            }
            ToCell::Answers => {
                let map = map_of(&message, &mut fds)?;
                let device = descriptor(&mut fds, "Answers came without its device")?;
                let answers = Answers::given(&map).context("mapping the answers")?;
                dispatcher.path_mut().set_answers(answers, device);
            }
            ToCell::RuleFacts => {
                let facts = RuleFacts::given(&map_of(&message, &mut fds)?);
                dispatcher.path_mut().set_rules(facts.context("mapping what rules say")?);
            }
            ToCell::Memory(total) => loader.accounts().set_total(total),
            ToCell::Line(port, session, account) => {
                dispatcher.path_mut().set_payer(port, session, account);
            }
            ToCell::Session(facts) => {
                streams.set_session(&facts);
                dispatcher.set_session(pacer::now(), &facts);
            }
            ToCell::MemoryOf(session) => {
                let account = |id| (id, Box::new(loader.accounts().account(id)));
                link.send(&FromCell::MemoryOf(loader.accounts().rest(), session.map(account)))?;
            }
            ToCell::ForgetSession(id) => {
                dispatcher.forget_session(pacer::now(), id);
                streams.forget_session(id);
            }
            ToCell::Expect => self.stay_awake(now + EXPECT),
            ToCell::Start(facts) => {
                if fds.is_empty() {
                    bail!("Start came without its code");
                }
                loader.start(*facts, &fds, dispatcher, now, link)?;
                self.stay_awake(now + EXPECT);
            }
            ToCell::StartStreams(facts) => {
                streams.start(*facts, fds, dispatcher.scheduler_mut(), link)?;
            }
            ToCell::ReplaceStreams(facts) => {
                streams.replace(*facts, fds, dispatcher.scheduler_mut(), link)?;
            }
            ToCell::Codecs(facts) => streams.codecs().set_facts(facts),
            ToCell::CodecStarted(number, pid) => {
                // The first: it has one.
                let socket = fds.into_iter().next();
                let socket = socket.context("CodecStarted came without its socket")?;
                streams.codecs().started(number, pid, socket);
            }
            ToCell::CodecEnded(number, why, cpu) => streams.codecs().ended(number, why, cpu),
            ToCell::Sockets { v6 } => streams.provide(v6, fds),
            ToCell::Replace(facts, way) => {
                if fds.is_empty() {
                    bail!("Replace came without its code");
                }
                loader.replace((*facts, way), &fds, dispatcher, now, link)?;
                self.stay_awake(now + EXPECT);
            }
            ToCell::Edges(entry, edges) => {
                if let Some(service) = dispatcher.services_mut().get_mut(entry) {
                    service.set_edges(edges);
                }
            }
            ToCell::Closed(entry, closed) => match dispatcher.services_mut().get_mut(entry) {
                Some(service) => service.set_closed(closed),
                None => streams.set_closed(entry, closed),
            },
            ToCell::VersionKnown(entry) => {
                if let Some(service) = dispatcher.services_mut().get_mut(entry) {
                    service.become_known();
                }
            }
            ToCell::Target(entry, level) => {
                if dispatcher.set_level(entry, level, now, link)? && level != LEVEL_USER {
                    self.stay_awake(now + AWAKE);
                }
            }
            ToCell::Recount(entry) => {
                dispatcher.recount(entry, Shared::begin_recount);
                link.send(&FromCell::Recounting(entry))?;
            }
            ToCell::Settle(entry) => {
                // Nothing of before the recount is anywhere.
                dispatcher.flush();
                dispatcher.recount(entry, Shared::settle);
                link.send(&FromCell::Settled(entry))?;
            }
            ToCell::Adopt(keep) => self.adopted(&keep)?,
            ToCell::Associate(keys) => {
                let id = dispatcher.path_mut().associate(&keys)?;
                link.send(&FromCell::Associated(id))?;
            }
            ToCell::Disassociate(id) => dispatcher.path_mut().disassociate(id),
            ToCell::Called(question, answer) => dispatcher.on_answer(question, answer, now, link),
            ToCell::Stop(entry) => {
                dispatcher.path_mut().forget_service(entry);
                let of_streams = streams.stop(entry);
                let report = of_streams.unwrap_or_else(|| dispatcher.stop(entry, now, link));
                link.send(&FromCell::Stopped(entry, Box::new(report)))?;
            }
            ToCell::Message(entry, message) => {
                let service = dispatcher.services().get(entry);
                let lanes = service.map_or(0, Service::lane_count);
                let control = Control::Message(Letter::of_daemon(message.into()));
                if !dispatcher.ask(entry, control, now, link) {
                    let _ = link.send(&FromCell::Answered(entry, vec![None; lanes]));
                }
            }
            ToCell::Report => self.reports.handle_request(),
            ToCell::ReportSessions => self.reports.handle_request_for_sessions(),
        }
        Ok(())
    }

    /// Begins to serve another daemon: all services but those that it knows go, and it gets what it
    /// cannot have otherwise.
    fn adopted(&mut self, keep: &[EntryId]) -> Result<()> {
        let keep: BTreeSet<EntryId> = keep.iter().copied().collect();
        let Self { link, reports, intake, dispatcher, streams, .. } = self;
        // Captures end with the daemon that was asked for them, and so do reports.
        dispatcher.path_mut().set_tap(None);
        reports.forget();
        dispatcher.scheduler_mut().sessions_mut().forget_told();
        // The next daemon does not know whose they are.
        dispatcher.path_mut().end_associations();
        dispatcher.services_mut().retain(|entry| keep.contains(&entry));
        streams.retain(|entry| keep.contains(&entry));
        let mut given = dispatcher.path().given()?;
        if let Some(tap) = intake.tap() {
            given.push((Given::Up, tap.try_clone_to_owned()?));
        }
        let services = dispatcher.services().iter();
        link.send(&FromCell::Adopted(Adopted {
            protocol: PROTOCOL_VERSION,
            services: services
                .map(|service| (service.entry(), service.home()))
                .chain(streams.all().map(|(entry, _)| (entry, None)))
                .collect(),
            given: given.len() as u32,
        }))?;
        for (what, fd) in given {
            link.send_with(&FromCell::Given(what), &[fd.as_fd()])?;
        }
        Ok(())
    }

    /// Tells the daemon more of what it asked for.
    fn send_reports(&mut self) -> Result<()> {
        let Self { link, loader, intake, dispatcher, streams, .. } = self;
        let accounts = loader.accounts();
        self.reports.poll(Sources { dispatcher, streams, intake, accounts }, link)
    }

    fn stay_awake(&mut self, until: CoarseInstant) {
        self.awake_until = self.awake_until.max(until);
    }
}
