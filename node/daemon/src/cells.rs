//! The node's cells: their processes, what they are told, and what they last said of themselves.
//!
//! ```text
//!  owners ─ tell, tell_all, send ─▶ ┌───────┐ ─▶ CellLink ─▶ cell process
//!  AfterReport ──────────────────▶ │ Cells │
//!  poll_reported ◀──────────────── └───────┘ ◀─ CellLink ◀─ reports, answers, silence
//! ```
//!
//! It decides nothing about services. A node runs one cell so far; every function names the cell
//! or the service that it is about.

mod codecs;
mod link;
mod number;
mod reports;
mod watch;

pub(crate) use codecs::{CodecNews, CodecNumber};
pub(crate) use link::{CellLink, end, find};
pub(crate) use number::CellNumber;
pub(crate) use reports::AfterReport;

use crate::completion::Completion;
use crate::reply::Reply;
use anyhow::{Context as _, Result};
use cell::protocol::{CellReport, CodecFacts, FromCell, ServiceReport, ToCell};
use codecs::{CodecWord, Codecs};
use reports::Reports;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};
use units::EntryId;
pub(crate) use watch::ENDED_AFTER as SILENT_MAX;
use watch::Look;

/// Cells that run, and what is known of them.
pub(crate) struct Cells {
    running: BTreeMap<CellNumber, Cell>,
    reports: Reports,
    /// Senders of control messages that wait for what a service answers, oldest first.
    messages: VecDeque<(EntryId, Reply<api::MessageAnswers>)>,
    codecs: Codecs,
}

/// A cell that runs.
struct Cell {
    link: CellLink,
    /// Queues of ports that it was given and has not bound yet.
    binding: usize,
}

/// What a look at a cell's silence asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It is told of: the process of this number has been silent for some seconds.
    Told { pid: u32 },
    /// The cell is given up, for this reason.
    Over(CellNumber, String),
}

impl Cells {
    /// Creates the owner of a node's cells, of which none runs yet. `news` receives what becomes
    /// of codecs.
    pub(crate) fn new(guest_core: usize, news: Completion<(CodecNumber, CodecNews)>) -> Self {
        Self {
            running: BTreeMap::new(),
            reports: Reports::default(),
            messages: VecDeque::new(),
            codecs: Codecs::find(guest_core, news),
        }
    }

    /// Returns what there is of codecs, for a cell that starts.
    pub(crate) fn codec_facts(&self) -> CodecFacts {
        self.codecs.facts()
    }

    /// Returns true when a cell runs.
    pub(crate) fn is_any(&self) -> bool {
        !self.running.is_empty()
    }

    /// Returns true when the cell runs that has a service, or would have it.
    pub(crate) fn has_cell_of(&self, entry: EntryId) -> bool {
        self.running.contains_key(&Self::cell_of(entry))
    }

    /// Returns the process number of a cell that runs.
    pub(crate) fn pid(&self, cell: CellNumber) -> Option<u32> {
        Some(self.running.get(&cell)?.link.pid())
    }

    /// Returns true when a cell has been silent for so long that operators were told.
    pub(crate) fn is_silent(&self) -> bool {
        self.running.values().any(|cell| cell.link.watch.is_silent())
    }

    /// Returns the last report on a service that runs.
    pub(crate) fn report_of(&self, entry: EntryId) -> Option<&ServiceReport> {
        self.reports.service(entry)
    }

    /// Returns the sums of what the cells last said of themselves.
    pub(crate) fn report(&self) -> &CellReport {
        self.reports.sum()
    }

    /// Returns the cell that a service runs in: all have the one that there is.
    const fn cell_of(_: EntryId) -> CellNumber {
        CellNumber::FIRST
    }

    /// Takes a word of a cell. True when operators had been told that it is silent.
    pub(crate) fn handle_word(&mut self, cell: CellNumber) -> bool {
        self.running.get_mut(&cell).is_some_and(|cell| cell.link.watch.handle_word())
    }

    /// Takes the report on a service.
    pub(crate) fn handle_service_report(&mut self, entry: EntryId, report: ServiceReport) {
        self.reports.handle_service(entry, report);
    }

    /// Takes the last words of a report.
    pub(crate) fn handle_reported(&mut self, cell: CellNumber, report: CellReport) {
        self.reports.handle_cell(cell, report);
    }

    /// Takes note that the report of this number should have come by now: what waits for it goes
    /// on with what is known.
    pub(crate) fn handle_report_overdue(&mut self, number: u64) {
        self.reports.handle_overdue(number);
    }

    /// Takes what a service answers to a control message.
    pub(crate) fn handle_answers(&mut self, entry: EntryId, answers: Vec<Option<i32>>) {
        let place = self.messages.iter().position(|(waits, _)| *waits == entry);
        if let Some((_, reply)) = place.and_then(|at| self.messages.remove(at)) {
            reply.ok(api::MessageAnswers { schema_version: api::SCHEMA_VERSION, answers });
        }
    }

    /// Starts a codec that a cell asks for, or tells the cell why there is none.
    pub(crate) fn handle_codec_wish(&mut self, cell: CellNumber, number: u64, wish: &str) {
        if let Err(refusal) = self.codecs.handle_wish(cell, number, wish) {
            self.say(&refusal);
        }
    }

    /// Ends a codec that its cell does not want any more.
    pub(crate) fn handle_codec_unwanted(&mut self, cell: CellNumber, number: u64) {
        self.codecs.handle_unwanted(cell, number);
    }

    /// Tells a cell what became of its codec.
    pub(crate) fn handle_codec_news(&mut self, which: CodecNumber, news: CodecNews) {
        if let Some(word) = self.codecs.handle_news(which, news) {
            self.say(&word);
        }
    }

    fn say(&self, CodecWord { cell, message, socket }: &CodecWord) {
        let socket: Vec<BorrowedFd<'_>> = socket.iter().map(AsFd::as_fd).collect();
        self.tell_cell(*cell, message, &socket);
    }

    /// Ends all codecs: nobody wants what they make.
    pub(crate) fn end_codecs(&mut self) {
        self.codecs.end();
    }

    /// Looks whether cells still answer: asks those that have said something since the last look.
    /// Called once a second.
    pub(crate) fn handle_second(&mut self) -> Vec<Silence> {
        let mut found = Vec::new();
        for (number, cell) in &mut self.running {
            match cell.link.watch.look() {
                Look::Ask => cell.tell(&ToCell::MemoryOf(None), &[]),
                Look::Wait => {}
                Look::Tell => found.push(Silence::Told { pid: cell.link.pid() }),
                Look::End => {
                    let why = format!("it has not answered for {SILENT_MAX} s");
                    found.push(Silence::Over(*number, why));
                }
            }
        }
        found
    }

    /// Adds a cell that was started, or that a daemon before left.
    pub(crate) fn insert(&mut self, number: CellNumber, link: CellLink) {
        self.running.insert(number, Cell { link, binding: 0 });
    }

    /// Ends a cell: returns how its process ended, in words. Nobody answers what it was asked.
    pub(crate) fn remove(&mut self, number: CellNumber) -> Option<String> {
        let cell = self.running.remove(&number)?;
        // Their senders hear that nobody answers any more.
        self.messages.clear();
        Some(cell.link.end())
    }

    /// Forgets what a cell that is lost has reported; what waits for its report goes on.
    pub(crate) fn forget_reports(&mut self, cell: CellNumber) {
        self.reports.handle_lost(cell);
    }

    /// Forgets the report on a service that has ended.
    pub(crate) fn forget_service(&mut self, entry: EntryId) {
        self.reports.forget_service(entry);
    }

    /// Takes note that a cell was given one more queue of a port, and has yet to bind it.
    pub(crate) fn begin_binding(&mut self, number: CellNumber) {
        if let Some(cell) = self.running.get_mut(&number) {
            cell.binding += 1;
        }
    }

    /// Takes note that a cell has bound a queue, or cannot; true when no other one is left.
    pub(crate) fn handle_bound(&mut self, number: CellNumber) -> bool {
        let Some(cell) = self.running.get_mut(&number) else { return false };
        cell.binding = cell.binding.saturating_sub(1);
        cell.binding == 0
    }

    /// Returns true when a cell has bound all queues that it was given.
    pub(crate) fn is_bound(&self, number: CellNumber) -> bool {
        self.running.get(&number).is_some_and(|cell| cell.binding == 0)
    }

    /// Tells the cell of a service something about it.
    pub(crate) fn tell(&self, entry: EntryId, message: &ToCell) {
        if let Some(cell) = self.running.get(&Self::cell_of(entry)) {
            cell.tell(message, &[]);
        }
    }

    /// Tells all cells.
    pub(crate) fn tell_all(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) {
        self.running.values().for_each(|cell| cell.tell(message, fds));
    }

    /// Tells one cell.
    pub(crate) fn tell_cell(&self, number: CellNumber, message: &ToCell, fds: &[BorrowedFd<'_>]) {
        if let Some(cell) = self.running.get(&number) {
            cell.tell(message, fds);
        }
    }

    /// Gives all cells something that they cannot do without.
    ///
    /// # Errors
    /// When one of them cannot be told.
    pub(crate) fn send_all(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.running.values().try_for_each(|cell| cell.link.send(message, fds))
    }

    /// Gives the cell of a service what it is to run.
    ///
    /// # Errors
    /// When there is no such cell, or it cannot be told.
    pub(crate) fn send(
        &self,
        entry: EntryId,
        message: &ToCell,
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let cell = self.running.get(&Self::cell_of(entry)).context("the cell is not there")?;
        cell.link.send(message, fds)
    }

    /// Gives a control message to a service; `reply` has what it answers.
    pub(crate) fn deliver(
        &mut self,
        entry: EntryId,
        message: Vec<u8>,
        reply: Reply<api::MessageAnswers>,
    ) {
        self.tell(entry, &ToCell::Message(entry, message));
        self.messages.push_back((entry, reply));
    }

    /// Has `then` done when all cells have reported ([`Cells::poll_reported`]). Returns the number
    /// of the question, where one was asked: it is overdue some time later.
    pub(crate) fn ask_report(&mut self, then: AfterReport) -> Option<u64> {
        let number = self.reports.ask(then, self.running.keys().copied())?;
        self.tell_all(&ToCell::Report, &[]);
        Some(number)
    }

    /// Returns what waited for reports that are there.
    pub(crate) fn poll_reported(&mut self) -> Option<AfterReport> {
        self.reports.poll()
    }

    /// Returns the next message of any cell; `None` when that cell is gone. Whoever drops this
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

    /// Returns another message of a cell if it is there already.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(crate) fn receive_next(&mut self, number: CellNumber) -> Result<Option<FromCell>> {
        self.running.get_mut(&number).map_or(Ok(None), |cell| cell.link.hear_next())
    }
}

impl Cell {
    /// Tells it something; where that fails it is about to be lost, which is told elsewhere.
    fn tell(&self, message: &ToCell, fds: &[BorrowedFd<'_>]) {
        if let Err(error) = self.link.send(message, fds) {
            tracing::error!(error = format!("{error:#}"), "the cell was not told");
        }
    }
}
