//! Fetches of modules without a repository: the test says what comes of each.

use super::fetcher::Failure;
use super::*;
use crate::control::testbed::{MODULES, Testbed, client, deploy, digest, holder, key, name};
use crate::reply::Awaited;
use api::{ApplyRequest, DeployRequest, Deployed};
use ledger::Field;
use module_store::Store;
use node::desired::{DesiredService, DesiredState};
use std::sync::{Arc, LazyLock};
use tokio::sync::mpsc::UnboundedReceiver;
use trust::{Extent, Grant, ModulePattern};
use units::Nanos;

/// A module that the node does not hold.
static ABSENT: LazyLock<Module> = LazyLock::new(|| {
    let manifest =
        r#"abi = 1\nname = \"far\"\nversion = \"0.1.0\"\nwindow = 64\nlevels = [\"user\"]\n"#;
    let text = format!(
        r#"(module (@custom "tamandua" "{manifest}") (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 0)))"#
    );
    Module::check(wat::parse_str(text).unwrap()).unwrap()
});

/// A node with repositories that say nothing by themselves.
struct Bench {
    bed: Testbed,
    demand: Demand,
    billing: Billing,
    jobs: UnboundedReceiver<Job>,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bed = Testbed::new();
        let file = NodeFile::parse("name = \"r1\"", "node.toml").unwrap();
        let config = Path::new("/nowhere/node.toml");
        let mut demand =
            Demand::begin(&file, config, Completion::new(drop), Completion::new(drop)).unwrap();
        assert!(demand.fetcher.is_none(), "its file names no repositories");
        let (fetcher, jobs) = Fetcher::pair();
        demand.fetcher = Some(fetcher);
        let key = Arc::new(key(7));
        let billing = Billing::begin(folder.path(), &key, Completion::new(|_| {})).unwrap();
        Self { bed, demand, billing, jobs, folder }
    }

    /// Sends a client's change; returns true if it is given back, as nothing is to be fetched.
    fn send(&mut self, caller: &Caller, change: Change) -> bool {
        let incoming = Incoming { caller: caller.clone(), request: Request::Change(change) };
        self.demand.fetch_first(&mut self.bed.control, incoming, Tried::new()).is_some()
    }

    /// Deploys the module of a digest for a client, which waits for it or is refused at once.
    fn deploy(&mut self, caller: &Caller, digest: &Digest) -> Awaited<Deployed> {
        let (reply, awaited) = Reply::pair();
        let module = digest.to_string();
        let request = DeployRequest { module, ..DeployRequest::default() };
        assert!(!self.send(caller, Change::Deploy(Box::new(request), reply)));
        awaited
    }

    fn deploy_absent(&mut self, caller: &Caller) -> Awaited<Deployed> {
        self.deploy(caller, &digest(&ABSENT))
    }

    /// Has another node ask for the module.
    fn pull(&mut self, caller: &Caller, hops: Hops) -> Awaited<()> {
        let (reply, awaited) = Reply::pair();
        let (control, digest) = (&mut self.bed.control, digest(&ABSENT));
        self.demand.want_for_pull(control, caller.clone(), digest, hops, reply);
        awaited
    }

    fn end(&mut self, job: Job, came: Result<FetchedModule, Failure>) {
        let fetched = Fetched { fetch: job.fetch, came, took: Duration::from_millis(7) };
        self.demand.handle_fetched(&mut self.bed.control, &mut self.billing, fetched);
        self.bed.settle();
    }

    /// Ends the fetch that is under way with the module.
    fn come(&mut self) {
        let elsewhere = Store::open(self.folder.path().join("elsewhere")).unwrap();
        elsewhere.put(&ABSENT.wasm, &ABSENT.checked.manifest).unwrap();
        let wanted = digest(&ABSENT).to_string();
        let pulled = oci_client::directory::read(&elsewhere, &wanted).unwrap();
        let from = "registry.test/modules".to_owned();
        let job = self.jobs.try_recv().expect("it is fetched");
        self.end(job, Ok(FetchedModule { pulled, signers: BTreeSet::new(), from }));
    }

    /// Ends the fetch that is under way without one.
    fn miss(&mut self, miss: Miss) {
        let job = self.jobs.try_recv().expect("it is fetched");
        self.end(job, Err(Failure { miss, text: "registry.test: no".to_owned() }));
    }

    /// Returns the clients whose requests continue.
    fn released(&mut self) -> Vec<&'static str> {
        let released = std::iter::from_fn(|| self.demand.poll_released());
        let of = |(incoming, tried): (Incoming, Tried)| {
            assert!(tried.contains(&digest(&ABSENT)), "it is looked for once");
            match incoming.caller {
                Caller::Operator => "operator",
                Caller::Holder(_) => "holder",
                Caller::Anyone => "anyone",
            }
        };
        released.map(of).collect()
    }

    /// Returns payers, with the number of their fetches and bytes.
    fn bills(&self) -> Vec<(PublicKey, u64, u64)> {
        let (_, readings) = self.billing.meters().readings();
        let of = |it: ledger::Reading| {
            let [fetches, bytes] =
                [Field::Fetches, Field::FetchedBytes].map(|field| it.reading.get(field));
            (it.account.principal, fetches, bytes)
        };
        readings.into_iter().map(of).collect()
    }

    fn is_there(&self) -> bool {
        self.bed.control.state().modules().is_there(&digest(&ABSENT))
    }
}

#[test]
fn a_request_for_which_nothing_can_be_fetched_goes_on_as_it_is() {
    let mut bench = Bench::new();
    let absent = digest(&ABSENT).to_string();
    let deploys = |request: DeployRequest| Change::Deploy(Box::new(request), Reply::pair().0);
    let module = |module: String| DeployRequest { module, ..DeployRequest::default() };
    let applies = |module: &str, dry_run, fetch| {
        let text = format!("[[service]]\nmodule = \"{module}\"\n");
        let request = ApplyRequest { text, dry_run, fetch, ..ApplyRequest::default() };
        Change::Apply(Box::new(request), Reply::pair().0)
    };
    let operator = &Caller::Operator;
    let session = Some("No Name".to_owned());
    for (what, caller, change) in [
        ("held", operator, deploys(deploy("monitor", 4))),
        ("a name", operator, deploys(module("monitor".to_owned()))),
        ("no session", operator, deploys(DeployRequest { session, ..module(absent.clone()) })),
        ("no right", &Caller::Anyone, deploys(module(absent.clone()))),
        ("no right", &Caller::Anyone, applies(&absent, false, false)),
        ("held", operator, applies(&digest(&MODULES[4]).to_string(), false, false)),
        ("shown", operator, applies(&absent, true, false)),
        ("no file", operator, applies("\"", false, false)),
        ("another change", operator, Change::Remove("a".to_owned(), true, Reply::pair().0)),
    ] {
        assert!(bench.send(caller, change), "{what}");
        assert!(bench.jobs.try_recv().is_err(), "{what}");
    }
    assert!(!bench.send(operator, applies(&absent, true, true)), "shown with what it fetches");
    assert!(bench.jobs.try_recv().is_ok());
    assert!(!bench.send(operator, applies(&absent, false, false)));
    bench.demand.fetcher = None;
    assert!(bench.send(operator, applies(&absent, false, false)), "there are no repositories");
    let said = bench.pull(operator, Hops::MAX).try_answer().unwrap().unwrap_err();
    assert!(said.message.ends_with("the node has no repositories: [[repository]]"), "{said:?}");
}

#[test]
fn a_failed_fetch_is_reported_to_each_caller_by_its_rights_and_remembered() {
    let absent = digest(&ABSENT);
    let to_operator = format!("the node does not hold {absent}, and it did not come: ");
    let unknown = format!("the node has no module '{absent}' that the capability lets you run");
    let silent = "the module is not held, and what the node asks for it does not answer";
    for (miss, code, to_holder, for_s) in [
        (Miss::NotThere, ErrorCode::NotFound, unknown.as_str(), 30),
        (Miss::Failed, ErrorCode::Unreachable, silent, 5),
    ] {
        let mut bench = Bench::new();
        let mut operators = bench.deploy_absent(&Caller::Operator);
        let mut holders = bench.deploy_absent(&holder());
        bench.miss(miss);
        let refusal = operators.try_answer().unwrap().unwrap_err();
        assert_eq!(
            (refusal.code, refusal.message),
            (code, format!("{to_operator}registry.test: no"))
        );
        let refusal = holders.try_answer().unwrap().unwrap_err();
        assert_eq!((refusal.code, refusal.message.as_str()), (code, to_holder));
        let event = bench.bed.notes.pop().unwrap().into_event(0, 0).0;
        assert_eq!(event.kind, EventKind::ModuleMissed);
        assert_eq!(bench.bills(), [], "nothing came");

        let asks = |bench: &mut Bench, caller: &Caller| {
            let answer = bench.deploy_absent(caller).try_answer();
            answer.map(|it| it.unwrap_err().message)
        };
        let said = asks(&mut bench, &Caller::Operator).unwrap();
        let later = format!(
            "{to_operator}registry.test: no (as of a moment ago; asked again in {for_s} s)"
        );
        assert_eq!(said, later);
        assert_eq!(asks(&mut bench, &holder()).unwrap(), to_holder, "nothing of repositories");
        bench.bed.wait(for_s * 1000 - 1);
        assert!(asks(&mut bench, &holder()).is_some());
        assert!(bench.jobs.try_recv().is_err());
        let counts = bench.demand.stats();
        assert_eq!((counts.missed, counts.remembered, counts.requests), (1, 3, 5));
        bench.bed.wait(1);
        assert_eq!(asks(&mut bench, &holder()), None, "he waits");
        assert!(bench.jobs.try_recv().is_ok());
    }
}

#[test]
fn nodes_that_ask_for_each_other_ask_one_node_less_each_time() {
    let mut bench = Bench::new();
    let refusal = bench.pull(&holder(), Hops::NONE).try_answer().unwrap().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NotFound);
    assert_eq!(bench.demand.stats().requests, 0);
    let _waits = [1, 4, 1, 200].map(|hops| bench.pull(&holder(), Hops::new(hops)));
    let jobs = std::iter::from_fn(|| bench.jobs.try_recv().ok());
    let hops: Vec<u8> = jobs.map(|job| job.fetch.hops.get()).collect();
    assert_eq!(hops, [1, 4], "who may ask fewer waits for nobody who asks more");
}

#[tokio::test(flavor = "current_thread")]
async fn a_fetched_module_beyond_the_callers_grant_is_answered_like_a_missing_one() {
    let begins = |text: &str| Extent::only([ModulePattern::NameBegins(text.to_owned())]);
    let limited = client(3, &Grant { modules: begins("near"), ..Grant::all() }, &[]);
    let missed = {
        let mut bench = Bench::new();
        let mut awaited = bench.deploy_absent(&limited);
        bench.miss(Miss::NotThere);
        awaited.try_answer().unwrap().unwrap_err()
    };
    for is_alone in [true, false] {
        let mut bench = Bench::new();
        let mut awaited = bench.deploy_absent(&limited);
        let _others = (!is_alone).then(|| bench.deploy_absent(&holder()));
        bench.come();
        assert_eq!(awaited.try_answer().unwrap().unwrap_err(), missed);
        assert_eq!(bench.is_there(), !is_alone);
        assert_eq!(bench.released().len(), usize::from(!is_alone));
        assert_eq!(bench.bills()[0].0, key(3).public(), "its bytes came for whoever asked first");
        if is_alone {
            assert_eq!(bench.deploy_absent(&limited).try_answer().unwrap().unwrap_err(), missed);
            assert!(bench.jobs.try_recv().is_err(), "nobody can have it come again and again");
            let _waits = bench.deploy_absent(&Caller::Operator);
            assert!(bench.jobs.try_recv().is_ok(), "that is remembered of this one alone");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_desired_module_that_is_not_held_is_fetched_and_started() {
    let mut bench = Bench::new();
    let service = DesiredService {
        digest: digest(&ABSENT).to_string(),
        parameters: BTreeMap::new(),
        session: node::session::best_effort(),
        level: None,
        then: BTreeMap::new(),
        budget: Default::default(),
        on_failure: Default::default(),
        owner: None,
        functions: abi::HostFunctions::ALL,
    };
    let mut state = DesiredState::default();
    state.deploy(name("far"), service, Vec::new());
    bench.bed.desire(state);
    bench.demand.want_missing(&mut bench.bed.control);
    bench.demand.want_missing(&mut bench.bed.control);
    assert_eq!(bench.demand.stats().waiting, 1, "it is wanted once");
    bench.bed.wait(10);
    bench.come();
    let now = bench.bed.control.state().now();
    assert_eq!(bench.bed.control.resumes_at(), Some(now));
    assert_eq!((now, bench.released().len()), (Nanos::from_millis(10), 0));
    assert!(bench.bed.control.handle_resumption());
    bench.bed.control.resume();
    bench.bed.settle();
    bench.bed.starts("far");
    assert!(!bench.bed.control.state().desired().shortfall().is_any());
}
