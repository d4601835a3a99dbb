//! Reports of the cells, and the actions that wait for the next ones.
//!
//! ```text
//!  AfterReport ─ ask ─▶ waits ─ every cell has reported, is lost, or is late ─▶ poll
//! ```
//!
//! A request made while a question is under way is answered by it: a report is one snapshot for all
//! requests made before its first part arrived.

use super::number::CellNumber;
use crate::control::authority::Visibility;
use crate::reply::Reply;
use cell::protocol::{CellReport, ServiceReport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::EntryId;

/// Action that waits for the next report of all cells.
pub(crate) enum AfterReport {
    /// List of the services that the sender may see.
    Services(Visibility, Reply<api::ServiceList>),
    Service(String, Reply<api::ServiceInfo>),
    Stats(Visibility, Reply<api::Stats>),
    Metrics(Reply<String>),
    Sessions(Visibility, Reply<api::SessionList>),
    Session(Visibility, String, Reply<api::SessionDetails>),
    /// End of a capture: the cells have handed over the packets that they had.
    CaptureEnds(u32, Reply<api::CaptureEnded>),
    /// Comparison of all drop counters with their previous values.
    CountDrops,
    /// Removal of services that active packets no longer call.
    EndIdleCalls,
    /// Billing of the usage so far.
    Bill,
    /// Last billing of a node that ends.
    LastBill,
}

/// Last reports, and the pending question for the next ones.
#[derive(Default)]
pub(super) struct Reports {
    services: BTreeMap<EntryId, (CellNumber, ServiceReport)>,
    cells: BTreeMap<CellNumber, CellReport>,
    sum: CellReport,
    waiting: Vec<AfterReport>,
    /// Cells whose report is pending.
    asked: BTreeSet<CellNumber>,
    /// Sequence number of the last question.
    number: u64,
    due: VecDeque<AfterReport>,
}

impl Reports {
    pub(super) fn service(&self, entry: EntryId) -> Option<&ServiceReport> {
        self.services.get(&entry).map(|(_, report)| report)
    }

    /// Returns the sums over all cells.
    pub(super) const fn sum(&self) -> &CellReport {
        &self.sum
    }

    pub(super) fn handle_service(
        &mut self,
        cell: CellNumber,
        entry: EntryId,
        report: ServiceReport,
    ) {
        self.services.insert(entry, (cell, report));
    }

    pub(super) fn handle_cell(&mut self, cell: CellNumber, report: CellReport) {
        self.cells.insert(cell, report);
        self.sum = self.cells.values().fold(CellReport::default(), |sum, one| sum.plus(one));
        self.answered(cell);
    }

    /// Forgets the reports on services of a lost cell. Its own counters stay until
    /// another cell of its number reports.
    pub(super) fn handle_lost(&mut self, cell: CellNumber) {
        self.services.retain(|_, (of, _)| *of != cell);
        self.answered(cell);
    }

    /// Ends the wait for the cells that have not answered the question of this number.
    pub(super) fn handle_overdue(&mut self, number: u64) {
        if number == self.number {
            self.asked.clear();
            self.settle();
        }
    }

    pub(super) fn forget_service(&mut self, entry: EntryId) {
        self.services.remove(&entry);
    }

    /// Queues an action for the next reports of these cells. Returns the number of the question to
    /// send now; `None` if one is under way, or there is no cell.
    pub(super) fn ask(
        &mut self,
        then: AfterReport,
        cells: impl Iterator<Item = CellNumber>,
    ) -> Option<u64> {
        self.waiting.push(then);
        if self.waiting.len() > 1 {
            return None;
        }
        self.asked = cells.collect();
        self.number += 1;
        if self.asked.is_empty() {
            self.settle();
            return None;
        }
        Some(self.number)
    }

    /// Returns the next action whose reports are complete, in the order of asking.
    pub(super) fn poll(&mut self) -> Option<AfterReport> {
        self.due.pop_front()
    }

    fn answered(&mut self, cell: CellNumber) {
        self.asked.remove(&cell);
        if self.asked.is_empty() {
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.due.extend(self.waiting.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: [CellNumber; 2] = [CellNumber(0), CellNumber(1)];

    fn polled(reports: &mut Reports) -> usize {
        std::iter::from_fn(|| reports.poll()).count()
    }

    #[test]
    fn one_report_request_serves_all_that_ask_before_the_last_cell_has_reported() {
        let mut reports = Reports::default();
        let first = reports.ask(AfterReport::Bill, CELLS.into_iter());
        assert!(first.is_some(), "it is to be asked");
        assert_eq!(reports.ask(AfterReport::CountDrops, CELLS.into_iter()), None);
        reports.handle_cell(CELLS[0], CellReport { oversized: 3, ..CellReport::default() });
        assert_eq!(polled(&mut reports), 0, "another one has yet to report");
        reports.handle_cell(CELLS[1], CellReport { oversized: 4, ..CellReport::default() });
        assert_eq!(reports.sum().oversized, 7);
        assert_eq!(polled(&mut reports), 2);
        let second = reports.ask(AfterReport::Bill, CELLS.into_iter());
        assert!(second.is_some() && second != first, "the next question is another one");
    }

    #[test]
    fn nobody_waits_for_a_cell_that_is_lost_late_or_was_never_there() {
        let mut reports = Reports::default();
        assert_eq!(reports.ask(AfterReport::Bill, std::iter::empty()), None);
        assert_eq!(polled(&mut reports), 1, "there is none");

        let number = reports.ask(AfterReport::Bill, CELLS.into_iter()).unwrap();
        reports.handle_lost(CELLS[0]);
        assert_eq!(polled(&mut reports), 0);
        reports.handle_overdue(number - 1);
        assert_eq!(polled(&mut reports), 0, "the time of an earlier question is over");
        reports.handle_overdue(number);
        assert_eq!(polled(&mut reports), 1);

        reports.ask(AfterReport::Bill, CELLS.into_iter());
        reports.handle_lost(CELLS[1]);
        reports.handle_lost(CELLS[0]);
        assert_eq!(polled(&mut reports), 1);
        assert_eq!(polled(&mut reports), 0, "each is done once");
    }

    #[test]
    fn reports_on_services_go_with_them_and_with_their_cell() {
        let mut reports = Reports::default();
        let entries = [EntryId(1), EntryId(2)];
        for entry in entries {
            reports.handle_service(CELLS[0], entry, ServiceReport::default());
        }
        reports.handle_service(CELLS[1], EntryId(3), ServiceReport::default());
        reports.forget_service(entries[0]);
        assert!(reports.service(entries[0]).is_none() && reports.service(entries[1]).is_some());
        reports.handle_lost(CELLS[0]);
        assert!(reports.service(entries[1]).is_none());
        assert!(reports.service(EntryId(3)).is_some(), "another cell has it");
    }
}
