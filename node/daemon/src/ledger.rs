//! The node's ledger: what principals used is read from meters, and written by a thread.
//!
//! ```text
//!  every `ledger_every`, and at the end of a service, a cell or the node
//!  counters ─▶ meters ─▶ running.json ─▶ thread: append, fdatasync ─▶ Done::Billed
//!                 ▲                         │ cannot be written
//!                 └──── kept, and tried ────┘ again; no new service is admitted meanwhile
//! ```
//!
//! The packets' ways know nothing of it: what counts is counted anyway.

pub mod files;
mod meters;
mod questions;

pub(crate) use meters::Meters;
pub(crate) use questions::answer;

use crate::cells::Cells;
use crate::completion::Completion;
use crate::control::state::NodeState;
use crate::dataplane::DataPlane;
use crate::dataplane::instances::BelowReport;
use crate::events::{Note, wall_clock_ms};
use abi::Level;
use anyhow::{Context, Result};
use api::EventKind;
use cell::protocol::ServiceReport;
use files::Files;
use ledger::chain::BATCH_MAX;
use ledger::{Account, Digest as Chain, Field, LedgerId, Reading, ReadingError};
use meters::{Counted, Ids};
use module_store::Digest;
use node::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use trust::{SecretKey, UnixTime};
use units::{Bytes, EntryId, Nanos};

/// Time for which a node that ends waits for the last bill: for the cell's report, and the disk.
const LAST_BILL_WITHIN: Nanos = Nanos::from_millis(5_000);

/// Bill that the ledger has.
pub(crate) struct Billed {
    /// Number of readings of meters that have ended.
    ended: usize,
    /// Readings that it did not take, in words.
    refused: Vec<String>,
    known: Known,
}

/// Extent of the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    id: LedgerId,
    frames: u64,
    chain: Chain,
}

/// Billing: meters, and the thread that writes the ledger.
pub(crate) struct Billing {
    meters: Meters,
    /// True when meters changed since that was last asked.
    is_changed: bool,
    ids: Ids,
    directory: PathBuf,
    /// Sender to the thread; `None` when it is to end.
    bills: Option<Sender<Bill>>,
    thread: Option<JoinHandle<()>>,
    /// Number of bills that the thread has not answered.
    waiting: usize,
    known: Option<Known>,
    /// Reason for its not being written.
    problem: Option<String>,
    /// Accounts that have modules compiled.
    compiled_for: BTreeMap<Digest, Account>,
    /// Time at which the node ends at the latest; `None` unless it is about to.
    ends_at: Option<Nanos>,
    /// True when the last bill is on its way.
    has_last: bool,
}

/// Counters of services at one moment.
pub(crate) struct Counters<'a> {
    pub(crate) now: Nanos,
    pub(crate) node: &'a Node,
    pub(crate) cells: &'a Cells,
    pub(crate) plane: &'a DataPlane,
}

impl Counters<'_> {
    /// Returns what a service counted at user level and below, and whether it runs at `nic`.
    fn of(&self, entry: EntryId) -> (ServiceReport, BelowReport, bool) {
        let user = self.cells.report_of(entry).cloned().unwrap_or_default();
        let below = self.plane.below_report(entry).unwrap_or_default();
        let at_nic = self.node.service_of(entry).is_some_and(|it| it.level == Level::Nic);
        (user, below, at_nic)
    }
}

/// Readings, of which `ended` are last ones.
struct Bill {
    clock: UnixTime,
    ended: usize,
    readings: Vec<Reading>,
}

impl Billing {
    /// Starts the thread that opens the ledger in the state's directory.
    pub(crate) fn begin(
        state: &Path,
        key: &Arc<SecretKey>,
        done: Completion<Result<Billed, String>>,
    ) -> Result<Self> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).context("drawing random bytes for the ledger")?;
        let (mut ids, directory) = (Ids::new(seed), state.join("ledger"));
        let (bills, to_write) = channel();
        let (path, key, id) = (directory.clone(), Arc::clone(key), LedgerId(ids.next()));
        let thread = std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || write_all(&path, &key, id, &to_write, &done))
            .context("starting the ledger's thread")?;
        Ok(Self {
            meters: Meters::default(),
            is_changed: false,
            ids,
            directory,
            bills: Some(bills),
            thread: Some(thread),
            waiting: 0,
            known: None,
            problem: None,
            compiled_for: BTreeMap::new(),
            ends_at: None,
            has_last: false,
        })
    }

    /// Returns the state for people: `on`, or the reason against it.
    pub(crate) fn state(&self) -> String {
        match &self.problem {
            Some(problem) => format!("cannot be written: {problem}"),
            None => "on".to_owned(),
        }
    }

    /// Returns true while a bill is on its way to the ledger.
    pub(crate) const fn is_writing(&self) -> bool {
        self.waiting > 0
    }

    /// Returns whether meters changed since this was last asked: the record of what runs has them.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Returns the meters, for the record of what runs.
    pub(crate) const fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Continues the meters of an earlier daemon: those of running services; others have ended.
    pub(crate) fn adopt(&mut self, meters: Meters) {
        self.meters = meters;
    }

    /// Compares the meters with the services that run: others have ended, and those without one
    /// begin.
    pub(crate) fn handle_running(
        &mut self,
        state: &NodeState,
        counters: &Counters<'_>,
        runs: &BTreeSet<EntryId>,
    ) {
        let known: BTreeSet<EntryId> = self.meters.entries().into_iter().collect();
        known.difference(runs).for_each(|entry| self.end_service(counters, *entry));
        runs.difference(&known).for_each(|entry| self.begin_service(state, counters.now, *entry));
    }

    /// Reads the counters of all services.
    pub(crate) fn read_all(&mut self, counters: &Counters<'_>) {
        for entry in self.meters.entries() {
            self.read(counters, entry);
        }
        self.is_changed = true;
    }

    fn read(&mut self, counters: &Counters<'_>, entry: EntryId) {
        let (user, below, at_nic) = counters.of(entry);
        let counted = Counted { user: &user, below: &below, at_nic };
        self.meters.record(counters.now, entry, &counted);
    }

    /// Reads the fuel of a service before it runs at another level.
    pub(crate) fn read_fuel(&mut self, counters: &Counters<'_>, entry: EntryId) {
        let (user, below, at_nic) = counters.of(entry);
        let counted = Counted { user: &user, below: &below, at_nic };
        self.meters.record_fuel(entry, &counted);
    }

    /// Begins the meters of a service that is about to begin, with all its counters at zero.
    pub(crate) fn begin_service(&mut self, state: &NodeState, now: Nanos, entry: EntryId) {
        let Some(service) = state.node().service_of(entry) else { return };
        let account = state.account_of(service);
        self.meters.begin(&mut self.ids, now, entry, &account, &service.name);
        self.is_changed = true;
    }

    /// Ends the meters of a service whose counters are about to be removed: they are read, and kept
    /// for the ledger.
    pub(crate) fn end_service(&mut self, counters: &Counters<'_>, entry: EntryId) {
        if self.meters.has(entry) {
            self.read(counters, entry);
            self.meters.end(entry);
            self.is_changed = true;
        }
    }

    /// Ends the meters of all services, whose counters are about to be lost with their cell.
    pub(crate) fn end_services(&mut self, counters: &Counters<'_>) {
        for entry in self.meters.entries() {
            self.end_service(counters, entry);
        }
    }

    /// Restarts the meter of a service below user level, whose counters there are about to be
    /// cleared.
    pub(crate) fn begin_below(&mut self, counters: &Counters<'_>, entry: EntryId) {
        self.read(counters, entry);
        self.meters.begin_below(&mut self.ids, entry);
        self.is_changed = true;
    }

    /// Bills an account for a module that came for it, by its size.
    pub(crate) fn add_fetched(&mut self, account: &Account, size: Bytes) {
        let used = [(Field::Fetches, 1), (Field::FetchedBytes, size.0)];
        self.meters.add(&mut self.ids, account, &used);
        self.is_changed = true;
    }

    /// Notes the account of the service for which a module is compiled, if there is one.
    pub(crate) fn note_compiled(&mut self, state: &NodeState, digest: Digest, entry: EntryId) {
        if let Some(service) = state.node().service_of(entry) {
            let account = state.account_of(service);
            self.compiled_for.entry(digest).or_insert(account);
        }
    }

    /// Bills the processor time of a compilation. A compilation in advance is paid by the present
    /// user of the module, or else by the node.
    pub(crate) fn add_compilation(&mut self, state: &NodeState, digest: Digest, took: Duration) {
        let text = digest.to_string();
        let mut run = state.node().services().filter(|service| service.module.digest == text);
        let account = self.compiled_for.remove(&digest);
        let account = account.or_else(|| run.next().map(|service| state.account_of(service)));
        let account = account.unwrap_or_else(|| state.account(None, None));
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.meters.add(&mut self.ids, &account, &[(Field::CompileNs, ns)]);
        self.is_changed = true;
    }

    /// Handles a bill that the ledger has, or could not be written. Returns the event of that, if it
    /// is news.
    pub(crate) fn handle_billed(&mut self, billed: Result<Billed, String>) -> Option<Note> {
        self.waiting = self.waiting.saturating_sub(1);
        match billed {
            Ok(Billed { ended, refused, known }) => {
                self.meters.forget_ended(ended);
                self.known = Some(known);
                self.is_changed = true;
                for reason in refused {
                    tracing::error!(
                        reason,
                        "the ledger does not take the usage of an account: it is not billed"
                    );
                }
                let text = "the ledger is written again, with the usage that was kept in memory";
                self.problem.take().map(|_| Note::new(EventKind::LedgerBack, text))
            }
            Err(problem) => {
                let text = "the ledger cannot be written: usage is kept in memory, and new services are refused";
                let note = Note::new(EventKind::LedgerFailed, text).reason(&problem);
                let is_news = self.problem.as_ref() != Some(&problem);
                self.problem = Some(problem);
                is_news.then_some(note)
            }
        }
    }

    /// Returns the reason for the ledger not being written, if there is one.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Begins the end of the node: there is one more bill, or none if this is the second time.
    /// Returns true when the bill is to be made.
    pub(crate) fn begin_end(&mut self, now: Nanos) -> bool {
        let is_first = self.ends_at.is_none();
        self.ends_at = Some(if is_first { now + LAST_BILL_WITHIN } else { now });
        is_first
    }

    /// Ends all meters: the next bill is the last one.
    pub(crate) fn end_all(&mut self) {
        self.meters.end_all();
        self.has_last = true;
    }

    /// Sends what was used since the last bill to the ledger. The record of what runs is to have it
    /// before.
    pub(crate) fn write(&mut self) {
        let (ended, readings) = self.meters.readings();
        let clock = UnixTime(wall_clock_ms() / 1000);
        let sent = self.bills.as_ref().map(|bills| bills.send(Bill { clock, ended, readings }));
        self.waiting += usize::from(matches!(sent, Some(Ok(()))));
    }

    /// Returns the time at which the node ends without its last bill.
    pub(crate) const fn ends_at(&self) -> Option<Nanos> {
        self.ends_at
    }

    /// Returns true when the node ends, and its last bill is written.
    pub(crate) const fn has_ended(&self) -> bool {
        self.has_last && self.waiting == 0
    }
}

impl Drop for Billing {
    fn drop(&mut self) {
        // Whoever opens the ledger next finds it closed.
        self.bills = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs the thread: opens the ledger, also again after an error, and appends.
fn write_all(
    directory: &Path,
    key: &Arc<SecretKey>,
    id: LedgerId,
    bills: &Receiver<Bill>,
    done: &Completion<Result<Billed, String>>,
) {
    let mut opened: Option<Files> = None;
    while let Ok(bill) = bills.recv() {
        let written = write(&mut opened, || Files::open(directory, Arc::clone(key), id), &bill);
        if written.is_err() {
            // The files are examined before the next append.
            opened = None;
        }
        done.send(written.map_err(|error| error.to_string()));
    }
}

fn write(
    opened: &mut Option<Files>,
    open: impl FnOnce() -> Result<Files, files::FilesError>,
    bill: &Bill,
) -> Result<Billed, files::FilesError> {
    let files = match opened {
        Some(files) => files,
        None => opened.insert(open()?),
    };
    let is_fault = |error: &ReadingError| *error != ReadingError::TooMany;
    let mut faults = Vec::new();
    for some in bill.readings.chunks(BATCH_MAX) {
        let appended = files.append(bill.clock, some)?;
        let refused = appended.refused.iter().filter(|(_, error)| is_fault(error));
        faults.extend(refused.map(|(_, error)| error.to_string()));
    }
    let ledger = files.ledger();
    let (id, frames, chain) = (ledger.id(), ledger.frames(), ledger.chain());
    Ok(Billed { ended: bill.ended, refused: faults, known: Known { id, frames, chain } })
}

#[cfg(test)]
mod tests;
