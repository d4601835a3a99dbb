//! Bills on their way to the ledger, on a disk that takes them or not.

use super::*;
use crate::reply::Reply;
use crate::request::LedgerQuestion;
use api::{ErrorCode, ErrorInfo, LedgerRecords};
use std::sync::mpsc::{Receiver as Done, channel};
use trust::Seed;
use units::Name;

/// Billing of a node in a folder of its own.
struct Bench {
    billing: Billing,
    done: Done<Result<Billed, String>>,
    key: Arc<SecretKey>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = Arc::new(SecretKey::from_seed(&Seed::new([7; 32])));
        let (sender, done) = channel();
        let completion = Completion::new(move |it| drop(sender.send(it)));
        let billing = Billing::begin(folder.path(), &key, completion).unwrap();
        Self { billing, done, key, folder }
    }

    fn account(&self, session: &str) -> Account {
        Account { principal: self.key.public(), session: Name::new(session).unwrap() }
    }

    fn fetched(&mut self, session: &str, bytes: u64) {
        let account = self.account(session);
        self.billing.add_fetched(&account, Bytes(bytes));
    }

    /// Sends a bill and waits for its end. Returns the event of that.
    fn bill(&mut self) -> Option<(EventKind, Option<String>)> {
        self.billing.write();
        assert!(self.billing.is_writing());
        let billed = self.done.recv().unwrap();
        let note = self.billing.handle_billed(billed);
        assert!(!self.billing.is_writing());
        note.map(|note| note.into_event(0, 0).0).map(|event| (event.kind, event.reason))
    }

    async fn records(&self, since: u64) -> Result<LedgerRecords, ErrorInfo> {
        let (reply, awaited) = Reply::pair();
        answer(&self.billing, &self.key, LedgerQuestion::Records(since, reply));
        awaited.answer().await
    }

    /// Returns the session and the bytes of each record.
    async fn billed(&self, since: u64) -> Vec<(String, u64)> {
        let records = self.records(since).await.unwrap().records.into_iter();
        records.map(|it| (it.session, it.used.fetched_bytes)).collect()
    }
}

fn owned(records: &[(&str, u64)]) -> Vec<(String, u64)> {
    records.iter().map(|(session, bytes)| ((*session).to_owned(), *bytes)).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn each_bill_has_what_was_used_since_the_one_before() {
    let mut bench = Bench::new();
    let early = bench.records(0).await.unwrap_err();
    assert_eq!(early.message, "the ledger is being opened; try again in a moment");
    bench.fetched("gold", 100);
    bench.fetched("gold", 20);
    assert!(bench.billing.take_changed() && !bench.billing.take_changed());
    assert_eq!(bench.bill(), None);
    assert!(bench.billing.take_changed(), "the record of what runs is to have that");
    assert_eq!(bench.billed(0).await, owned(&[("gold", 120)]));
    assert_eq!(bench.bill(), None);
    let next = bench.records(0).await.unwrap().next;
    bench.fetched("silver", 7);
    bench.fetched("gold", 3);
    assert_eq!(bench.bill(), None);
    let mut later = bench.billed(next).await;
    later.sort();
    assert_eq!(later, owned(&[("gold", 3), ("silver", 7)]), "a bill of nothing is no record");
    assert_eq!(bench.records(99).await.unwrap().next, 99, "there is nothing behind the end");

    let (reply, awaited) = Reply::pair();
    answer(&bench.billing, &bench.key, LedgerQuestion::Totals(ledger::Period::EVER, reply));
    let totals = awaited.answer().await.unwrap();
    let sums = totals.accounts.into_iter().map(|it| (it.session, it.used.fetched_bytes));
    assert_eq!(sums.collect::<Vec<_>>(), owned(&[("gold", 123), ("silver", 7)]));
    let stranger = SecretKey::from_seed(&Seed::new([8; 32])).public();
    let (reply, awaited) = Reply::pair();
    answer(&bench.billing, &bench.key, LedgerQuestion::Receipt(Box::new(stranger), 0, reply));
    assert_eq!(awaited.answer().await.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "current_thread")]
async fn what_cannot_be_written_is_kept_and_said_once_until_it_is_in_the_ledger() {
    let mut bench = Bench::new();
    assert_eq!((bench.billing.state().as_str(), bench.billing.problem()), ("on", None));
    let path = bench.folder.path().join("ledger");
    std::fs::write(&path, "in its place").unwrap();
    bench.fetched("gold", 100);
    let (kind, reason) = bench.bill().unwrap();
    let problem = bench.billing.problem().unwrap().to_owned();
    assert_eq!((kind, reason.as_deref()), (EventKind::LedgerFailed, Some(problem.as_str())));
    assert_eq!(bench.billing.state(), format!("cannot be written: {problem}"));
    let said = bench.records(0).await.unwrap_err().message;
    assert_eq!(said, format!("the ledger cannot be read: {problem}"));
    bench.fetched("gold", 20);
    assert_eq!(bench.bill(), None, "it is no news");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(bench.bill(), Some((EventKind::LedgerBack, None)));
    assert_eq!(bench.billing.state(), "on");
    assert_eq!(bench.billed(0).await, owned(&[("gold", 120)]));
    assert_eq!(bench.bill(), None);
}

#[test]
fn a_node_ends_when_its_last_bill_is_written_or_at_a_second_request() {
    let mut bench = Bench::new();
    let now = Nanos::from_millis(5_000);
    assert!(bench.billing.ends_at().is_none() && !bench.billing.has_ended());
    assert!(bench.billing.begin_end(now));
    assert_eq!(bench.billing.ends_at(), Some(now + LAST_BILL_WITHIN));
    bench.fetched("gold", 100);
    assert_eq!(bench.bill(), None);
    assert!(!bench.billing.has_ended(), "that was not the last one");
    bench.billing.end_all();
    bench.billing.write();
    assert!(!bench.billing.has_ended(), "it is on its way");
    let billed = bench.done.recv().unwrap();
    assert!(bench.billing.handle_billed(billed).is_none() && bench.billing.has_ended());
    let later = now + Nanos::from_millis(1_000);
    assert!(!bench.billing.begin_end(later), "no second bill is made");
    assert_eq!(bench.billing.ends_at(), Some(later), "it ends at once");
}
