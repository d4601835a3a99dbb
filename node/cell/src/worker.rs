//! The cell's process: one thread that serves its sockets and its daemon in turn.
//!
//! ```text
//!   sockets ─▶ Intake ─▶ Dispatcher ─▶ out
//!   daemon ─▶ Link ─▶ Deferred ─▶ the owner of what a message is about
//! ```

mod adoption;
mod commands;
mod setup;
#[cfg(test)]
mod tests;

use crate::control::deferred::{Deferred, WaitCondition};
use crate::control::link::Link;
use crate::control::reports::{Reports, Sources};
use crate::control::round::Round;
use crate::dispatch::{BATCH, Dispatcher};
use crate::intake::Intake;
use crate::protocol::{ToCell, decode};
use crate::sched::{Timer, pacer};
use crate::service::Service;
use crate::service::loader::Loader;
use crate::service::table::Services;
use crate::streams::turns::StreamTurns;
use anyhow::{Context, Result};
use executor::PreemptionTimer;
use rustix::fd::OwnedFd;
use sandbox::fd_passing::{self, Received};
use std::path::Path;
use units::{CoarseInstant, EntryId, Millis};
use zeroize::Zeroize;

/// Rounds in a row without polling the clock and the daemon: a round of slow modules takes a few
/// milliseconds, one of quick ones some microseconds. An empty round ends them, and the thread
/// waits in the kernel: polling again and again takes the rings' cache lines from the CPU that
/// fills them.
const BUSY_ROUNDS_MAX: u32 = 8;
/// Longest wait in the kernel when no timer is due earlier.
const WAIT_MAX: Millis = Millis(1000);
/// Longest step of the loop's coarse clock: a kernel of 100 ticks a second. What is due within it
/// is judged by the exact clock.
const CLOCK_STEP: Millis = Millis(10);
/// Time that a lane may take to go down: the daemon gives up two attempts within it.
const AWAKE: Millis = Millis(50);
/// Time to poll for an announced service, and then for its first packet: waking up takes a tenth of
/// a millisecond each time.
const EXPECT: Millis = Millis(2);

/// Root of the process, which routes each message and packet to the owner that handles it.
struct Cell<T = PreemptionTimer> {
    link: Link,
    deferred: Deferred,
    reports: Reports,
    loader: Loader,
    intake: Intake,
    dispatcher: Dispatcher<T>,
    streams: StreamTurns,
    /// End of polling without waiting in the kernel, while a service moves down (in a gap between
    /// packets that is shorter than waking up takes) or starts.
    awake_until: CoarseInstant,
}

/// Runs a cell until its daemon is gone, and longer if it has services: then the next daemon finds
/// it in `directory`. `daemon` is a socket of [`fd_passing::pair`]; packet memory is sized for this
/// number of receive `queues`.
///
/// # Errors
/// The engine, the packet memory or the connection fails.
pub fn run(daemon: OwnedFd, directory: &Path, queues: u32, core: Option<usize>) -> Result<()> {
    setup::confined(daemon, directory, queues, core)?.serve()
}

/// Returns the time of the coarse monotonic clock, read once a round.
fn coarse_now() -> CoarseInstant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    CoarseInstant::from_millis(now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000)
}

/// Receives until a round brings nothing, at most [`BUSY_ROUNDS_MAX`] times; returns the number of
/// rounds that brought something.
fn busy_rounds(mut receive: impl FnMut() -> bool) -> u32 {
    let mut rounds = 0;
    while rounds < BUSY_ROUNDS_MAX && receive() {
        rounds += 1;
    }
    rounds
}

/// Returns whether a command for a service has to wait.
fn must_wait(services: &Services) -> impl Fn(EntryId, WaitCondition) -> bool {
    |entry, until| match until {
        WaitCondition::Unblocked => services.get(entry).is_some_and(Service::is_blocked),
        WaitCondition::Recounted => services.has_of_before(entry),
    }
}

impl<T: Timer> Cell<T> {
    fn serve(&mut self) -> Result<()> {
        let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
        loop {
            self.link.handle_round();
            let now = coarse_now();
            let Self { intake, dispatcher, streams, link, .. } = self;
            let round = &mut Round { now, link };
            dispatcher.path_mut().set_time(now);
            let busy_rounds = busy_rounds(|| intake.receive(dispatcher, round));
            let leaves = dispatcher.send_waiting();
            let polls_others = streams.is_poll_due();
            let came_up = polls_others && intake.receive_others(BATCH, dispatcher, round);
            // Events come before the packets that made a queue long.
            dispatcher.report_queues(round);
            streams.poll(dispatcher.scheduler_mut(), round.link)?;
            let worked = dispatcher.run_turns(streams, round);
            dispatcher.take_records(round.link);
            dispatcher.deliver_messages(round);
            dispatcher.path_mut().handle_timeout(now);
            if dispatcher.scheduler().sessions().is_epoch_over(now) {
                // After an interruption of the cell, packets that seem lost may be in the rings.
                if dispatcher.scheduler().takes_turns() {
                    intake.drain(dispatcher, round);
                }
                dispatcher.end_epoch(now);
            }
            self.run_deferred(now)?;
            self.dispatcher.send_captures(&mut self.link);
            if now + CLOCK_STEP >= self.dispatcher.services().poll_timeout() {
                self.dispatcher.tick(&mut Round { now, link: &mut self.link });
            }
            let accounts = self.loader.accounts();
            let round = &mut Round { now, link: &mut self.link };
            self.dispatcher.report_low_memory(accounts, round);
            self.send_reports()?;
            let may_wait = now >= self.awake_until
                && !self.dispatcher.has_messages()
                && !self.reports.are_due();
            let is_idle =
                busy_rounds < BUSY_ROUNDS_MAX && !came_up && !worked && !leaves && may_wait;
            if is_idle && !self.intake.linger(&mut self.dispatcher) {
                self.dispatcher.scheduler_mut().disarm();
                // Packets that timers and in-kernel programs queued to leave.
                self.dispatcher.flush();
                self.loader.handle_idle();
                self.wait()?;
            }
            if polls_others && !self.drain_messages(&mut buffer, now)? {
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
        let mut fds: Vec<_> = self.link.readable_fds().collect();
        fds.extend(self.streams.readable_fds());
        fds.extend(dispatcher.path().readable_fds());
        fds.extend(self.intake.tap());
        let with_lanes = dispatcher.services().with_lanes().iter();
        fds.extend(
            with_lanes
                .filter_map(|&entry| Some(dispatcher.services().get(entry)?.shared()?.ring_fd())),
        );
        fd_passing::wait_readable(&fds, Some(time)).context("waiting for packets")
    }

    /// Handles the daemon's messages. Returns false if this cell is no longer needed.
    fn drain_messages(&mut self, buffer: &mut [u8], now: CoarseInstant) -> Result<bool> {
        loop {
            let (length, fds) = match self.link.receive(buffer, now)? {
                Some(Received::Message(length, fds)) => (length, fds),
                Some(_) => return Ok(true),
                None => {
                    let serves =
                        !self.dispatcher.services().is_empty() || self.streams.has_services();
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

    /// Handles a message, now or when it becomes possible.
    fn on_message(&mut self, message: ToCell, fds: Vec<OwnedFd>, now: CoarseInstant) -> Result<()> {
        if let ToCell::Settle(_) = message {
            // Then packets in rings are in queues, or handled.
            let round = &mut Round { now, link: &mut self.link };
            self.intake.drain(&mut self.dispatcher, round);
        }
        let must_wait = must_wait(self.dispatcher.services());
        match self.deferred.handle((message, fds), must_wait) {
            Some((message, fds)) => commands::run(self, message, fds, now),
            None => Ok(()),
        }
    }

    /// Runs the deferred commands that have become possible.
    fn run_deferred(&mut self, now: CoarseInstant) -> Result<()> {
        for command in self.deferred.take() {
            let must_wait = must_wait(self.dispatcher.services());
            if let Some((message, fds)) = self.deferred.handle(command, must_wait) {
                commands::run(self, message, fds, now)?;
            }
        }
        Ok(())
    }

    /// Sends the daemon more of the report that it asked for.
    fn send_reports(&mut self) -> Result<()> {
        let Self { link, loader, intake, dispatcher, streams, .. } = self;
        let accounts = loader.accounts();
        self.reports.poll(Sources { dispatcher, streams, intake, accounts }, link)
    }

    fn stay_awake(&mut self, until: CoarseInstant) {
        self.awake_until = self.awake_until.max(until);
    }
}
