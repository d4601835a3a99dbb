//! Unit tests of fetches: a channel replaces the fetching thread, and the test does its jobs.

use super::fetcher::Failure;
use super::*;
use crate::control::modules::Modules;
use crate::control::testbed;
use cell::CallQuestion;
use ledger::Field;
use module_store::Store;
use node::wanted::{FETCHES_MAX, WANTED_MAX};
use oci_client::Pulled;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use trust::{SecretKey, Seed};
use units::Nanos;

/// Node that holds none of the modules here.
struct World {
    control: Control,
    demand: Demand,
    billing: Billing,
    jobs: UnboundedReceiver<Job>,
    stored: UnboundedReceiver<Stored>,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut control = testbed::control(Store::open(folder.path().join("store")).unwrap());
        control.set_now(Nanos::ZERO);
        let (fetcher, jobs) = Fetcher::pair();
        let (done, stored) = unbounded_channel();
        let done = Completion::new(move |it| drop(done.send(it)));
        let file = NodeFile::parse("name = \"r1\"\n", "node.toml").unwrap();
        let config = Path::new("node.toml");
        let mut demand = Demand::begin(&file, config, Completion::new(drop), done).unwrap();
        demand.fetcher = Some(fetcher);
        let key = Arc::new(key(7));
        let billing = Billing::begin(folder.path(), &key, Completion::new(drop)).unwrap();
        Self { control, demand, billing, jobs, stored, folder }
    }

    /// Returns a module of a number as a repository gives it.
    fn pulled(&self, number: u8) -> Pulled {
        let wasm = wasm(number);
        let manifest = Module::check(wasm.clone()).unwrap().checked.manifest;
        let source = Store::open(self.folder.path().join("repository")).unwrap();
        let digest = source.put(&wasm, &manifest).unwrap();
        oci_client::directory::read(&source, &digest.to_string()).unwrap()
    }

    /// Deploys a module for a client; returns the request where nothing is to be fetched for it.
    fn deploy(
        &mut self,
        caller: Caller,
        number: u8,
    ) -> (crate::reply::Awaited<api::Deployed>, bool) {
        let (reply, awaited) = Reply::pair();
        let module = digest(number).to_string();
        let request = Box::new(api::DeployRequest { module, ..Default::default() });
        let request = Request::Change(Change::Deploy(request, reply));
        let back =
            self.demand.fetch_first(&mut self.control, Incoming { caller, request }, Tried::new());
        (awaited, back.is_some())
    }

    /// Pulls a module for the operator.
    fn pull(&mut self, number: u8, hops: Hops) -> crate::reply::Awaited<()> {
        let (reply, awaited) = Reply::pair();
        let (control, digest) = (&mut self.control, digest(number));
        self.demand.want_for_pull(control, Caller::Operator, digest, hops, reply);
        awaited
    }

    fn job(&mut self) -> Option<Job> {
        self.jobs.try_recv().ok()
    }

    /// Ends a fetch.
    fn end(&mut self, job: Job, came: Result<FetchedModule, Failure>) {
        let fetched = Fetched { fetch: job.fetch, came, took: Duration::from_millis(3) };
        self.demand.handle_fetched(&mut self.control, &mut self.billing, fetched);
    }

    fn come(&mut self, number: u8) {
        let job = self.job().expect("it is fetched");
        assert_eq!(job.fetch.digest, digest(number));
        let pulled = self.pulled(number);
        self.end(
            job,
            Ok(FetchedModule { pulled, signers: BTreeSet::new(), from: "hub".to_owned() }),
        );
    }

    fn miss(&mut self, miss: Miss) {
        let job = self.job().expect("it is fetched");
        self.end(job, Err(Failure { miss, text: "hub: it is not there".to_owned() }));
    }

    /// Returns the events of a kind since this was last called.
    fn events(&mut self, kind: EventKind) -> usize {
        let notes = std::iter::from_fn(|| self.control.poll_action());
        let is_it = |action: crate::control::action::Action| match action {
            crate::control::action::Action::Note(note) => note.into_event(1, 1).0.kind == kind,
            _ => false,
        };
        notes.map(is_it).filter(|it| *it).count()
    }
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&Seed::new([number; 32]))
}

fn wasm(number: u8) -> Vec<u8> {
    let manifest = format!(r#"abi = 1\nname = \"f{number}\"\nversion = \"0.1.0\"\nwindow = 64\n"#);
    let text = format!(
        r#"(module (@custom "tamandua" "{manifest}") (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0)))"#
    );
    wat::parse_str(text).unwrap()
}

fn digest(number: u8) -> Digest {
    Digest::of(&wasm(number))
}

#[tokio::test(flavor = "current_thread")]
async fn one_fetch_serves_all_requests_for_a_module_and_the_first_pays() {
    let mut world = World::new();
    let (mut first, _) = world.deploy(testbed::holder(), 1);
    let (mut second, is_back) = world.deploy(Caller::Operator, 1);
    let payer = world.control.state().account_of_caller(&testbed::holder(), None);
    assert!(!is_back && first.try_answer().is_none() && second.try_answer().is_none());
    assert_eq!((world.demand.stats().modules, world.demand.stats().waiting), (1, 2));
    world.come(1);
    assert!(world.job().is_none(), "it is fetched once");
    for _ in 0..2 {
        let (incoming, tried) = world.demand.poll_released().expect("both go on");
        assert_eq!(tried, Tried::from([digest(1)]));
        let again = world.demand.fetch_first(&mut world.control, incoming, tried);
        assert!(again.is_some(), "nothing is to be fetched any more");
    }
    assert!(world.demand.poll_released().is_none());
    let stats = world.demand.stats();
    assert_eq!((stats.requests, stats.fetched, stats.waiting), (2, 1, 0));
    assert_eq!(stats.fetched_bytes, wasm(1).len() as u64);
    let (_, readings) = world.billing.meters().readings();
    assert_eq!(readings.len(), 1, "one account pays");
    assert_eq!(readings[0].account.principal, payer.principal);
    assert_eq!(readings[0].reading.get(Field::Fetches), 1);
    assert_eq!(readings[0].reading.get(Field::FetchedBytes), wasm(1).len() as u64);
    assert_eq!(world.events(EventKind::ModuleFetched), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_failed_fetch_is_not_repeated_for_a_while() {
    for (miss, code, seconds) in
        [(Miss::NotThere, ErrorCode::NotFound, 30), (Miss::Failed, ErrorCode::Unreachable, 5)]
    {
        let mut world = World::new();
        let (mut first, _) = world.deploy(Caller::Operator, 1);
        let (mut holders, _) = world.deploy(testbed::holder(), 1);
        world.miss(miss);
        let refusal = first.try_answer().unwrap().unwrap_err();
        assert_eq!(refusal.code, code);
        assert!(refusal.message.contains("hub: it is not there"), "{}", refusal.message);
        let refusal = holders.try_answer().unwrap().unwrap_err();
        assert!(!refusal.message.contains("hub"), "repositories are the operator's business");
        let (mut again, _) = world.deploy(Caller::Operator, 1);
        let refusal = again.try_answer().unwrap().unwrap_err();
        let until = format!("asked again in {seconds} s");
        assert!(refusal.message.contains(&until), "{}", refusal.message);
        assert!(world.job().is_none());
        assert_eq!((world.demand.stats().remembered, world.demand.stats().missed), (1, 1));
        assert_eq!(world.events(EventKind::ModuleMissed), 1);
        world.control.set_now(Nanos::from_millis(seconds * 1000));
        let (mut later, _) = world.deploy(Caller::Operator, 1);
        assert!(later.try_answer().is_none());
        world.come(1);
        assert!(world.demand.poll_released().is_some(), "it has come meanwhile");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn one_payer_has_half_of_all_places_and_some_fetches_at_a_time() {
    let mut world = World::new();
    let count = u8::try_from(WANTED_MAX - 1).unwrap();
    let mut awaited: Vec<_> = (0..count).map(|number| world.pull(number, Hops::MAX)).collect();
    let refused = awaited.iter_mut().filter_map(|it| it.try_answer());
    let codes: Vec<ErrorCode> = refused.map(|answer| answer.unwrap_err().code).collect();
    assert_eq!(codes.len(), usize::from(count) - WANTED_MAX / 2);
    assert!(codes.iter().all(|code| *code == ErrorCode::Limit));
    let begun: Vec<Job> = std::iter::from_fn(|| world.job()).collect();
    assert_eq!(begun.len(), FETCHES_MAX / 2);
    // The limit is per payer: another one's fetch begins at once.
    let (mut other, _) = world.deploy(testbed::holder(), 255);
    assert!(other.try_answer().is_none());
    assert_eq!(world.job().expect("it begins").fetch.digest, digest(255));
    for job in begun {
        world.end(job, Err(Failure { miss: Miss::Failed, text: String::new() }));
        assert!(world.job().is_some(), "the next one begins");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_cancelled_request_is_not_fetched_and_the_next_requester_pays() {
    let mut world = World::new();
    let begun: Vec<_> = (1..4).map(|number| world.pull(number, Hops::MAX)).collect();
    let queued = world.pull(4, Hops::MAX);
    let jobs: Vec<Job> = std::iter::from_fn(|| world.job()).collect();
    assert_eq!(jobs.len(), 3, "the fourth has to wait");
    drop(queued);
    world.demand.handle_second();
    assert_eq!(world.demand.stats().modules, 3);
    // The client of the first one goes, and another one has come.
    let (_second, _) = world.deploy(testbed::holder(), 1);
    drop(begun);
    world.demand.handle_second();
    assert_eq!(world.demand.stats().waiting, 1);
    for (number, job) in (1..4).zip(jobs) {
        let pulled = world.pulled(number);
        world.end(
            job,
            Ok(FetchedModule { pulled, signers: BTreeSet::new(), from: "hub".to_owned() }),
        );
    }
    assert!(world.job().is_none());
    let (_, readings) = world.billing.meters().readings();
    let holder = world.control.state().account_of_caller(&testbed::holder(), None);
    let of_holder = readings.iter().find(|it| it.account.principal == holder.principal).unwrap();
    assert_eq!(of_holder.reading.get(Field::Fetches), 1, "the only payer that is left");
    assert!(world.control.state().modules().is_there(&digest(1)));
    assert!(!world.control.state().modules().is_there(&digest(2)), "nobody wants it");
}

#[tokio::test(flavor = "current_thread")]
async fn nothing_is_fetched_without_repositories_or_with_no_hops_left() {
    let mut world = World::new();
    let refusal = world.pull(1, Hops::NONE).try_answer().unwrap().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NotFound);
    assert!(world.job().is_none());
    world.demand.fetcher = None;
    let refusal = world.pull(1, Hops::MAX).try_answer().unwrap().unwrap_err();
    assert!(refusal.message.contains("no repositories"), "{}", refusal.message);
    let (_, is_back) = world.deploy(Caller::Operator, 1);
    assert!(is_back, "it is refused the usual way");
    let (_, is_back) = world.deploy(Caller::Anyone, 1);
    assert!(is_back);
    assert_eq!(world.demand.stats().requests, 0);
}

#[tokio::test(flavor = "current_thread")]
async fn nothing_is_fetched_for_a_caller_who_may_not_deploy() {
    let mut world = World::new();
    let (_awaited, is_back) = world.deploy(Caller::Anyone, 1);
    assert!(is_back && world.job().is_none());
}

#[tokio::test(flavor = "current_thread")]
async fn a_module_that_nobody_has_signed_is_refused_and_not_kept() {
    let mut world = World::new();
    let store = world.control.state().modules().store().clone();
    let strict = NodeFile::parse("name = \"r1\"\n", "node.toml").unwrap().trust;
    *world.control.state_mut().modules_mut() = Modules::new(store, &strict);
    let (mut awaited, _) = world.deploy(Caller::Operator, 1);
    world.come(1);
    let refusal = awaited.try_answer().unwrap().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Refused);
    assert!(refusal.message.contains("signed"), "{}", refusal.message);
    assert!(!world.control.state().modules().is_there(&digest(1)));
    assert_eq!((world.demand.stats().fetched, world.demand.stats().missed), (0, 1));
    let (mut again, _) = world.deploy(Caller::Operator, 1);
    assert_eq!(again.try_answer().unwrap().unwrap_err().code, ErrorCode::Refused);
    assert!(world.job().is_none(), "who has just had it refused asks nobody");
}

#[tokio::test(flavor = "current_thread")]
async fn another_node_hears_of_a_module_when_it_is_on_the_disk() {
    let mut world = World::new();
    let mut awaited = world.pull(1, Hops::new(2));
    let mut again = world.pull(1, Hops::new(2));
    world.come(1);
    assert!(awaited.try_answer().is_none(), "it is being written");
    let (stored, answer) = world.stored.recv().await.unwrap();
    assert_eq!((stored, answer.unwrap().name.as_str()), (digest(1), "f1"));
    world.demand.handle_stored(&stored);
    assert_eq!((awaited.try_answer(), again.try_answer()), (Some(Ok(())), Some(Ok(()))));
    assert!(world.control.state().modules().store().has(&digest(1)));
    let mut held = world.pull(1, Hops::NONE);
    assert_eq!(held.try_answer(), Some(Ok(())), "it is held: nobody is asked");
}

#[tokio::test(flavor = "current_thread")]
async fn the_node_that_sent_packets_here_is_asked_first_and_once() {
    let mut world = World::new();
    let question = CallQuestion { association: None, digest: *digest(1).bytes() };
    let principal = key(3).public();
    for from in [Some(principal), Some(key(4).public())] {
        let sender = Sender { caller: testbed::holder(), principal: from };
        world.demand.want_for_packets(&mut world.control, CallWanted { question, sender });
    }
    let job = world.job().unwrap();
    assert_eq!(job.previous, Some(principal), "who asked first");
    assert!(world.job().is_none());
    assert_eq!(world.demand.stats().waiting, 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_file_has_its_modules_fetched_one_after_the_other_and_a_dry_run_none() {
    let mut world = World::new();
    let services = [1, 2].map(|number| format!("[[service]]\nmodule = \"{}\"\n", digest(number)));
    let apply = |world: &mut World, dry_run: bool, tried: Tried| {
        let (reply, awaited) = Reply::pair();
        let (text, file) = (services.concat(), "node.toml".to_owned());
        let request = api::ApplyRequest { text, file, dry_run, ..Default::default() };
        let request = Request::Change(Change::Apply(Box::new(request), reply));
        let incoming = Incoming { caller: Caller::Operator, request };
        let back = world.demand.fetch_first(&mut world.control, incoming, tried);
        (awaited, back.is_some())
    };
    assert!(apply(&mut world, true, Tried::new()).1);
    let (_awaited, is_back) = apply(&mut world, false, Tried::new());
    assert!(!is_back);
    world.come(1);
    let (incoming, tried) = world.demand.poll_released().unwrap();
    assert!(world.demand.fetch_first(&mut world.control, incoming, tried).is_none());
    world.come(2);
    let (incoming, tried) = world.demand.poll_released().unwrap();
    assert_eq!(tried.len(), 2);
    assert!(world.demand.fetch_first(&mut world.control, incoming, tried).is_some());
}
