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
pub(crate) use questions::LedgerQuestion;

use crate::cells::AfterReport;
use crate::daemon::{Daemon, Done};
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
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use trust::{SecretKey, UnixTime};
use units::EntryId;

/// A node that ends waits so long for the last bill: for the cell's report, and the disk.
const LAST_BILL_WITHIN: Duration = Duration::from_secs(5);

/// What the ledger was given and has.
pub(crate) struct Billed {
    /// Readings of meters that have ended.
    ended: usize,
    /// Those that it did not take, in words.
    refused: Vec<String>,
    known: Known,
}

/// What there is of the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    id: LedgerId,
    frames: u64,
    chain: Chain,
}

/// What is billed, and by which thread.
pub(crate) struct Billing {
    pub(crate) meters: Meters,
    ids: Ids,
    directory: PathBuf,
    /// To the thread; none when it is to end.
    bills: Option<Sender<Bill>>,
    thread: Option<JoinHandle<()>>,
    /// Bills that the thread has not answered.
    waiting: usize,
    known: Option<Known>,
    /// Why it cannot be written.
    problem: Option<String>,
    /// Who has modules compiled.
    compiled_for: BTreeMap<Digest, Account>,
    /// When the node ends at the latest; it is about to.
    ends_at: Option<tokio::time::Instant>,
    /// The last bill is on its way.
    has_last: bool,
}

/// Readings, of which so many are last ones.
struct Bill {
    clock: UnixTime,
    ended: usize,
    readings: Vec<Reading>,
}

impl Billing {
    /// Has a thread open the ledger in the state's directory.
    pub(crate) fn begin(
        state: &Path,
        key: &Arc<SecretKey>,
        done: UnboundedSender<Done>,
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

    /// For people: `on`, or why not.
    pub(crate) fn state(&self) -> String {
        match &self.problem {
            Some(problem) => format!("cannot be written: {problem}"),
            None => "on".to_owned(),
        }
    }

    fn write(&mut self) {
        let (ended, readings) = self.meters.readings();
        let clock = UnixTime(wall_clock_ms() / 1000);
        let sent = self.bills.as_ref().map(|bills| bills.send(Bill { clock, ended, readings }));
        self.waiting += usize::from(matches!(sent, Some(Ok(()))));
    }

    /// When the node ends without its last bill.
    pub(crate) const fn ends_at(&self) -> Option<tokio::time::Instant> {
        self.ends_at
    }

    /// Whether the node ends, and its last bill is written.
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

/// The thread: opens the ledger, also again after an error, and appends.
fn write_all(
    directory: &Path,
    key: &Arc<SecretKey>,
    id: LedgerId,
    bills: &Receiver<Bill>,
    done: &UnboundedSender<Done>,
) {
    let mut opened: Option<Files> = None;
    while let Ok(bill) = bills.recv() {
        let written = write(&mut opened, || Files::open(directory, Arc::clone(key), id), &bill);
        if written.is_err() {
            // What is on the disk is looked at before anything is appended again.
            opened = None;
        }
        // The daemon is gone when nobody receives: nothing is left to do.
        let _ = done.send(Done::Billed(written.map_err(|error| error.to_string())));
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

impl Daemon {
    /// Bills what was used since the last time, once the cell has told what it did.
    pub(crate) fn bill(&mut self) {
        if self.billing.waiting == 0 {
            self.after_report(AfterReport::Bill);
        }
    }

    /// Bills the usage that the cell has just reported.
    pub(crate) fn bill_now(&mut self) {
        self.look_at_meters();
        self.write_bill();
    }

    /// What meters show is in the record before the ledger has it.
    fn write_bill(&mut self) {
        self.recorder.mark();
        self.remember();
        self.billing.write();
    }

    fn look_at_meters(&mut self) {
        for entry in self.billing.meters.entries() {
            self.look_at_meter(entry);
        }
    }

    fn look_at_meter(&mut self, entry: EntryId) {
        let now = self.now();
        let (user, below, at_nic) = self.counted(entry);
        let counted = Counted { user: &user, below: &below, at_nic };
        self.billing.meters.look(now, entry, &counted);
    }

    /// Before a service runs at another level.
    pub(crate) fn look_at_fuel(&mut self, entry: EntryId) {
        let (user, below, at_nic) = self.counted(entry);
        let counted = Counted { user: &user, below: &below, at_nic };
        self.billing.meters.look_at_fuel(entry, &counted);
    }

    fn counted(&self, entry: EntryId) -> (ServiceReport, BelowReport, bool) {
        let user = self.cells.report_of(entry).cloned().unwrap_or_default();
        let below = self.below_report(entry).unwrap_or_default();
        let at_nic = self.control.node().service_of(entry).is_some_and(|it| it.level == Level::Nic);
        (user, below, at_nic)
    }

    /// A service is about to begin, with all its counters at zero.
    pub(crate) fn begin_meters(&mut self, entry: EntryId) {
        let Some(service) = self.control.node().service_of(entry) else { return };
        let (account, name, now) =
            (self.control.state().account_of(service), service.name.clone(), self.now());
        let billing = &mut self.billing;
        billing.meters.begin(&mut billing.ids, now, entry, &account, &name);
        self.recorder.mark();
    }

    /// A service's counters are about to go: they are read, and kept for the ledger.
    pub(crate) fn end_meters(&mut self, entry: EntryId) {
        if self.end_meter(entry) {
            self.remember_soon();
        }
    }

    fn end_meter(&mut self, entry: EntryId) -> bool {
        let is_there = self.billing.meters.has(entry);
        if is_there {
            self.look_at_meter(entry);
            self.billing.meters.end(entry);
            self.recorder.mark();
        }
        is_there
    }

    /// The counters of all services are about to go, with their cell.
    pub(crate) fn end_all_meters(&mut self) {
        for entry in self.billing.meters.entries() {
            self.end_meter(entry);
        }
        // Once, however many there were: the next daemon needs all of them or none.
        self.remember();
    }

    /// The meters of services that run go on; of others they have ended.
    pub(crate) fn adopt_meters(&mut self, runs: &BTreeSet<EntryId>) {
        let known: BTreeSet<EntryId> = self.billing.meters.entries().into_iter().collect();
        known.difference(runs).for_each(|entry| self.end_meters(*entry));
        runs.difference(&known).for_each(|entry| self.begin_meters(*entry));
    }

    /// What counts below user level is about to begin anew.
    pub(crate) fn begin_meter_below(&mut self, entry: EntryId) {
        self.look_at_meter(entry);
        let billing = &mut self.billing;
        billing.meters.begin_below(&mut billing.ids, entry);
        self.recorder.mark();
        self.remember_soon();
    }

    /// A module came into the store.
    pub(crate) fn stored_for_node(&mut self, bytes: u64) {
        self.fetched_for(&self.control.state().account(None, None), bytes);
    }

    /// A module came that an account asked for.
    pub(crate) fn fetched_for(&mut self, account: &Account, bytes: u64) {
        let used = [(Field::Fetches, 1), (Field::FetchedBytes, bytes)];
        let billing = &mut self.billing;
        billing.meters.add(&mut billing.ids, account, &used);
        self.recorder.mark();
    }

    /// A module is compiled, for the service that waits for it, if one does.
    pub(crate) fn compiled_for(&mut self, digest: Digest, entry: Option<EntryId>) {
        let service = entry.and_then(|entry| self.control.node().service_of(entry));
        if let Some(account) = service.map(|service| self.control.state().account_of(service)) {
            self.billing.compiled_for.entry(digest).or_insert(account);
        }
    }

    /// Its compiler has ended. What was compiled before anybody wanted it is paid by whoever runs
    /// it by now, or else by the node.
    pub(crate) fn compile_took(&mut self, digest: Digest, took: Duration) {
        let text = digest.to_string();
        let mut run =
            self.control.node().services().filter(|service| service.module.digest == text);
        let account = self.billing.compiled_for.remove(&digest);
        let account =
            account.or_else(|| run.next().map(|service| self.control.state().account_of(service)));
        let account = account.unwrap_or_else(|| self.control.state().account(None, None));
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let billing = &mut self.billing;
        billing.meters.add(&mut billing.ids, &account, &[(Field::CompileNs, ns)]);
        self.recorder.mark();
    }

    /// The ledger has a bill, or could not be written.
    pub(crate) fn billed(&mut self, billed: Result<Billed, String>) {
        self.billing.waiting = self.billing.waiting.saturating_sub(1);
        match billed {
            Ok(Billed { ended, refused, known }) => {
                self.billing.meters.forget_ended(ended);
                self.billing.known = Some(known);
                self.recorder.mark();
                for reason in refused {
                    tracing::error!(reason, "a meter's reading is not in the ledger");
                }
                self.control.set_ledger_problem(None);
                if self.billing.problem.take().is_some() {
                    let text = "what principals use is written down again, with what was kept";
                    self.note(Note::new(EventKind::LedgerBack, text.to_owned()));
                }
            }
            Err(problem) => {
                if self.billing.problem.as_ref() != Some(&problem) {
                    let text = "what principals use cannot be written down: it is kept, and no new service is taken";
                    let note = Note::new(EventKind::LedgerFailed, text.to_owned());
                    self.note(note.reason(problem.clone()));
                }
                self.control.set_ledger_problem(Some(problem.clone()));
                self.billing.problem = Some(problem);
            }
        }
    }

    /// The node is about to end: the last bill, and then no further.
    pub(crate) fn end_billing(&mut self) {
        if self.billing.ends_at.is_some() {
            // Told so twice: at once.
            self.billing.ends_at = Some(tokio::time::Instant::now());
            return;
        }
        self.billing.ends_at = Some(tokio::time::Instant::now() + LAST_BILL_WITHIN);
        self.after_report(AfterReport::LastBill);
    }

    /// Bills the usage that the cell has just reported, for the last time.
    pub(crate) fn bill_last(&mut self) {
        self.look_at_meters();
        self.billing.meters.end_all();
        self.write_bill();
        self.billing.has_last = true;
    }
}
