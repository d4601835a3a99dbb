//! Cells of a node: their processes, messages to them, their reports and their codecs.
//!
//! ```text
//!  owners ─ notify, send ────────▶ ┌───────┐ ─▶ CellLink ─▶ cell process
//!  AfterReport ──────────────────▶ │ Cells │
//!  poll_reported ◀──────────────── └───────┘ ◀─ CellLink ◀─ reports, answers, silence
//! ```
//!
//! Decisions about services are not made here. A node runs one cell so far; every function names
//! the cell or the service that it is about.

mod codecs;
#[cfg(test)]
pub(crate) mod fake;
mod link;
mod number;
mod reports;
mod watch;

pub(crate) use codecs::{CodecNews, CodecNumber};
pub(crate) use link::{CellLink, end, find};
pub(crate) use number::CellNumber;
pub(crate) use reports::AfterReport;

use crate::LogFormat;
use crate::answer::failed;
use crate::completion::Completion;
use crate::reply::Reply;
use anyhow::{Context as _, Result};
use cell::protocol::{CellReport, CodecSpec, FromCell, ServiceReport, ToCell};
use codecs::{CodecWord, Codecs};
use reports::Reports;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::task::{Context, Poll};
use units::EntryId;
pub(crate) use watch::ENDED_AFTER as SILENT_MAX;
use watch::WatchdogPoll;

/// Function that starts the process of a cell with this number of port queues; the next daemon
/// finds it in this directory.
pub(crate) type Spawn = Box<dyn Fn(&Path, u32) -> Result<CellLink> + Send>;

/// Returns the function that starts cells as processes that run modules on this core and log in this
/// format.
pub(crate) fn spawn_on(guest_core: usize, log_format: LogFormat) -> Spawn {
    Box::new(move |directory, queues| CellLink::spawn(directory, queues, guest_core, log_format))
}

/// Running cells and their last reports.
pub(crate) struct Cells {
    spawn: Spawn,
    running: BTreeMap<CellNumber, Cell>,
    reports: Reports,
    /// Control messages whose answers are pending, oldest first.
    messages: VecDeque<(EntryId, Reply<api::MessageAnswers>)>,
    codecs: Codecs,
}

/// Running cell.
struct Cell {
    link: CellLink,
    /// Port queues that it has been given and has not bound yet.
    binding: usize,
}

/// Finding of the watchdog of cells.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchdogFinding {
    /// Silence of some seconds, to be reported as an event.
    Silent { pid: u32 },
    /// End of a cell that is given up, with the reason.
    Over(CellNumber, String),
}

impl Cells {
    /// Creates the owner of a node's cells, with none running. `news` receives what becomes
    /// of codecs.
    pub(crate) fn new(
        guest_core: usize,
        spawn: Spawn,
        news: Completion<(CodecNumber, CodecNews)>,
    ) -> Self {
        Self {
            spawn,
            running: BTreeMap::new(),
            reports: Reports::default(),
            messages: VecDeque::new(),
            codecs: Codecs::find(guest_core, news),
        }
    }

    /// Starts the process of a cell; it is to be added ([`Cells::insert`]) when it has what it
    /// needs.
    ///
    /// # Errors
    /// The process does not start.
    pub(crate) fn spawn(&self, directory: &Path, queues: u32) -> Result<CellLink> {
        (self.spawn)(directory, queues)
    }

    /// Returns the available codecs, for a cell that starts.
    pub(crate) fn codec_facts(&self) -> CodecSpec {
        self.codecs.facts()
    }

    /// Returns true when a cell runs.
    pub(crate) fn is_any(&self) -> bool {
        !self.running.is_empty()
    }

    /// Returns true when the cell that a service belongs to is running.
    pub(crate) fn has_cell_of(&self, entry: EntryId) -> bool {
        self.running.contains_key(&Self::cell_of(entry))
    }

    /// Returns the process ID of a running cell.
    pub(crate) fn pid(&self, cell: CellNumber) -> Option<u32> {
        Some(self.running.get(&cell)?.link.pid())
    }

    /// Returns true when the watchdog has reported a cell as silent.
    pub(crate) fn is_silent(&self) -> bool {
        self.running.values().any(|cell| cell.link.watch.is_silent())
    }

    /// Returns the last report on a running service.
    pub(crate) fn report_of(&self, entry: EntryId) -> Option<&ServiceReport> {
        self.reports.service(entry)
    }

    /// Returns the sums of the last reports of all cells.
    pub(crate) fn report(&self) -> &CellReport {
        self.reports.sum()
    }

    /// Returns the cell of a service: the only one, as long as a node has one guest core.
    const fn cell_of(_: EntryId) -> CellNumber {
        CellNumber::FIRST
    }

    /// Resets the watchdog of a cell that has sent something. Returns true when it had been
    /// reported as silent.
    pub(crate) fn handle_word(&mut self, cell: CellNumber) -> bool {
        self.running.get_mut(&cell).is_some_and(|cell| cell.link.watch.handle_word())
    }

    /// Stores the report on a service.
    pub(crate) fn handle_service_report(
        &mut self,
        cell: CellNumber,
        entry: EntryId,
        report: ServiceReport,
    ) {
        self.reports.handle_service(cell, entry, report);
    }

    /// Stores a cell's own counters, which end its report.
    pub(crate) fn handle_reported(&mut self, cell: CellNumber, report: CellReport) {
        self.reports.handle_cell(cell, report);
    }

    /// Ends the wait for the report of this number: whatever waits for it goes
    /// on with what is known.
    pub(crate) fn handle_report_overdue(&mut self, number: u64) {
        self.reports.handle_overdue(number);
    }

    /// Answers the oldest pending control message of a service.
    pub(crate) fn handle_answers(&mut self, entry: EntryId, answers: Vec<Option<i32>>) {
        let place = self.messages.iter().position(|(waits, _)| *waits == entry);
        if let Some((_, reply)) = place.and_then(|at| self.messages.remove(at)) {
            reply.ok(api::MessageAnswers { schema_version: api::SCHEMA_VERSION, answers });
        }
    }

    /// Starts a codec that a cell asks for, or sends it the reason for there being none.
    pub(crate) fn handle_codec_wish(&mut self, cell: CellNumber, number: u64, wish: &str) {
        if let Err(refusal) = self.codecs.handle_wish(cell, number, wish) {
            self.say(&refusal);
        }
    }

    /// Ends a codec that its cell no longer needs.
    pub(crate) fn handle_codec_unwanted(&mut self, cell: CellNumber, number: u64) {
        self.codecs.handle_unwanted(cell, number);
    }

    /// Forwards the start or end of a codec to its cell.
    pub(crate) fn handle_codec_news(&mut self, which: CodecNumber, news: CodecNews) {
        if let Some(word) = self.codecs.handle_news(which, news) {
            self.say(&word);
        }
    }

    fn say(&self, CodecWord { cell, message, socket }: &CodecWord) {
        let socket: Vec<BorrowedFd<'_>> = socket.iter().map(AsFd::as_fd).collect();
        self.notify_cell(*cell, message, &socket);
    }

    /// Ends all codecs.
    pub(crate) fn end_codecs(&mut self) {
        self.codecs.end();
    }

    /// Checks whether cells still answer: asks those that have sent something since the last check.
    /// Called once a second.
    pub(crate) fn handle_second(&mut self) -> Vec<WatchdogFinding> {
        let mut found = Vec::new();
        for (number, cell) in &mut self.running {
            match cell.link.watch.poll() {
                WatchdogPoll::Ask => cell.notify(&ToCell::MemoryOf(None), &[]),
                WatchdogPoll::Wait => {}
                WatchdogPoll::Report => {
                    found.push(WatchdogFinding::Silent { pid: cell.link.pid() })
                }
                WatchdogPoll::End => {
                    let why = format!("it has not answered for {SILENT_MAX} s");
                    found.push(WatchdogFinding::Over(*number, why));
                }
            }
        }
        found
    }

    /// Adds a cell that was started, or taken over from a previous daemon.
    pub(crate) fn insert(&mut self, number: CellNumber, link: CellLink) {
        self.running.insert(number, Cell { link, binding: 0 });
    }

    /// Ends a cell and refuses the control messages that it has not answered. Returns how its
    /// process ended, in words.
    pub(crate) fn remove(&mut self, number: CellNumber) -> Option<String> {
        let cell = self.running.remove(&number)?;
        self.refuse_messages(|entry| Self::cell_of(entry) == number, "the cell ended");
        Some(cell.link.end())
    }

    /// Refuses the pending control messages of services, because of something that happened.
    fn refuse_messages(&mut self, is_of: impl Fn(EntryId) -> bool, why: &str) {
        let pending = std::mem::take(&mut self.messages);
        let (refused, kept) = pending.into_iter().partition(|(entry, _)| is_of(*entry));
        self.messages = kept;
        let refused: VecDeque<(EntryId, Reply<api::MessageAnswers>)> = refused;
        for (_, reply) in refused {
            reply.refuse(failed(format!("{why} before the message was answered")));
        }
    }

    /// Discards the pending reports of a lost cell; actions that wait for the next one continue.
    pub(crate) fn forget_reports(&mut self, cell: CellNumber) {
        self.reports.handle_lost(cell);
    }

    /// Removes the report on a service that has ended, and refuses the control messages that it has
    /// not answered: another service may have its entry next.
    pub(crate) fn forget_service(&mut self, entry: EntryId) {
        self.reports.forget_service(entry);
        self.refuse_messages(|of| of == entry, "the service ended");
    }

    /// Sends a cell a port queue, which it has yet to bind.
    ///
    /// # Errors
    /// The cell does not exist, or the message cannot be sent.
    pub(crate) fn send_queue(
        &mut self,
        number: CellNumber,
        message: &ToCell,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let cell = self.running.get_mut(&number).context("the cell is not there")?;
        cell.link.send(message, fds)?;
        cell.binding += 1;
        Ok(())
    }

    /// Counts a port queue that a cell has bound, or cannot bind. Returns true when none is left.
    pub(crate) fn handle_bound(&mut self, number: CellNumber) -> bool {
        let Some(cell) = self.running.get_mut(&number) else { return false };
        cell.binding = cell.binding.saturating_sub(1);
        cell.binding == 0
    }

    /// Returns true when a cell has bound all its port queues.
    pub(crate) fn is_bound(&self, number: CellNumber) -> bool {
        self.running.get(&number).is_some_and(|cell| cell.binding == 0)
    }

    /// Sends a message about a service to its cell.
    pub(crate) fn notify(&self, entry: EntryId, message: &ToCell) {
        if let Some(cell) = self.running.get(&Self::cell_of(entry)) {
            cell.notify(message, &[]);
        }
    }

    /// Sends a message to all cells.
    pub(crate) fn notify_all(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) {
        self.running.values().for_each(|cell| cell.notify(message, fds));
    }

    /// Sends a message to one cell.
    pub(crate) fn notify_cell(&self, number: CellNumber, message: &ToCell, fds: &[BorrowedFd<'_>]) {
        if let Some(cell) = self.running.get(&number) {
            cell.notify(message, fds);
        }
    }

    /// Sends all cells a message that they cannot do without.
    ///
    /// # Errors
    /// A cell cannot be sent to.
    pub(crate) fn send_all(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.running.values().try_for_each(|cell| cell.link.send(message, fds))
    }

    /// Sends the cell of a service what it is to run.
    ///
    /// # Errors
    /// The cell does not exist, or cannot be sent to.
    pub(crate) fn send(
        &self,
        entry: EntryId,
        message: &ToCell,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let cell = self.running.get(&Self::cell_of(entry)).context("the cell is not there")?;
        cell.link.send(message, fds)
    }

    /// Sends a control message to a service; `reply` gets the answer.
    pub(crate) fn deliver(
        &mut self,
        entry: EntryId,
        message: Vec<u8>,
        reply: Reply<api::MessageAnswers>,
    ) {
        self.notify(entry, &ToCell::Message(entry, message));
        self.messages.push_back((entry, reply));
    }

    /// Queues an action for the next report of all cells ([`Cells::poll_reported`]). Returns the
    /// number of the question, where one was asked: it is overdue some time later.
    pub(crate) fn ask_report(&mut self, then: AfterReport) -> Option<u64> {
        let number = self.reports.ask(then, self.running.keys().copied())?;
        self.notify_all(&ToCell::Report, &[]);
        Some(number)
    }

    /// Returns the next action whose reports are complete.
    pub(crate) fn poll_reported(&mut self) -> Option<AfterReport> {
        self.reports.poll()
    }

    /// Returns the next message of any cell; `None` when that cell is gone. Dropping this
    /// future loses nothing.
    pub(crate) async fn receive(&mut self) -> (CellNumber, Result<Option<FromCell>>) {
        std::future::poll_fn(|context| self.poll_receive(context)).await
    }

    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<(CellNumber, Result<Option<FromCell>>)> {
        for (number, cell) in &mut self.running {
            if let Poll::Ready(message) = cell.link.poll_receive(context) {
                return Poll::Ready((*number, message));
            }
        }
        Poll::Pending
    }

    /// Returns another message of a cell if one has arrived already.
    ///
    /// # Errors
    /// The connection is broken.
    pub(crate) fn receive_next(&mut self, number: CellNumber) -> Result<Option<FromCell>> {
        self.running.get_mut(&number).map_or(Ok(None), |cell| cell.link.receive_next())
    }
}

impl Cell {
    /// Sends a message; a failure is logged, and the loss of the cell is noticed by its reader.
    fn notify(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) {
        if let Err(error) = self.link.send(message, fds) {
            tracing::error!(error = format!("{error:#}"), "a message to the cell was not sent");
        }
    }
}
