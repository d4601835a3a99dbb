//! Daemon without a kernel, a cell's process or a socket to the outside, for tests: its data plane
//! has tables only, its cell is the other end of a socket ([`FakeCell`]), and time passes when the
//! test says so.

use super::join::{Parts, Start, join};
use super::{Daemon, Done, actions, completions, requests, timers};
use crate::access::Caller;
use crate::answer::Answer;
use crate::cells::AfterReport;
use crate::cells::fake::FakeCell;
use crate::clock::skipped;
use crate::config::NodeFile;
use crate::control::change::Change;
use crate::control::desired::Desired;
use crate::control::testbed::{MODULES, deploy, digest, name};
use crate::dataplane::fake;
use crate::journal::Journal;
use crate::record::Record;
use crate::reply::{Awaited, Reply};
use crate::request::{Incoming, Request};
use abi::Level;
use api::{ErrorInfo, Event, EventKind};
use cell::Compiled;
use cell::protocol::{FromCell, ToCell};
use module_store::Store;
use node::{Node, ServiceState};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use trust::{SecretKey, Seed};
use units::{EntryId, Nanos, PortId};

/// Time after which a test has failed that waits for something.
const PATIENCE: Duration = Duration::from_secs(20);
/// Polling interval for answers of other threads.
const ANSWERS_EVERY: Duration = Duration::from_millis(5);

/// Daemon with a cell that runs and two ports, `left` and `right`, which are away.
pub(crate) struct Testbed {
    pub(crate) daemon: Daemon,
    pub(crate) cell: FakeCell,
    done: UnboundedReceiver<Done>,
    folder: tempfile::TempDir,
}

impl Testbed {
    /// Creates a node that has started, with a cell, and nothing on it.
    pub(crate) async fn new() -> Self {
        let mut bed = Self::begin();
        bed.until(|bed| bed.cell.count(|it| matches!(it, ToCell::Rules(_))) > 0).await;
        bed
    }

    /// Makes both ports packet ports that are served. The next cell would want their sockets, which
    /// a test has not.
    pub(crate) fn serve(&mut self) {
        let Daemon { control, runtime, .. } = &mut self.daemon;
        runtime.with_plane(control, |plane, _| fake::serve_packets(plane));
    }

    /// Bills the counters, and waits until the ledger was written or not.
    pub(crate) async fn bill(&mut self) {
        self.daemon.bill();
        self.until(|bed| bed.daemon.runtime.usage().billing().is_writing()).await;
        self.until(|bed| !bed.daemon.runtime.usage().billing().is_writing()).await;
    }

    /// Compares all drop counters.
    pub(crate) async fn count_drops(&mut self) {
        assert!(self.daemon.observe.start_drops(), "none is under way");
        self.daemon.runtime.after_report(AfterReport::CountDrops);
        // Answered behind it.
        self.get(Request::Stats).await;
    }

    /// Does the checks of each second.
    pub(crate) fn check(&mut self) {
        timers::handle(&mut self.daemon, timers::Tick::Checks).unwrap();
    }

    /// Samples the usage of sessions.
    pub(crate) async fn poll_usage(&mut self) {
        let Daemon { control, runtime, .. } = &mut self.daemon;
        runtime.poll_usage(control);
        self.get(Request::Stats).await;
    }

    /// Returns the part of the record that is of the node.
    pub(crate) fn recorded_node(&self) -> serde_json::Value {
        let bytes = std::fs::read(self.path("run/running.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        record["node"].clone()
    }

    /// Returns what the next daemon would find.
    pub(crate) fn record(&self) -> Record {
        serde_json::from_slice(&std::fs::read(self.path("run/running.json")).unwrap()).unwrap()
    }

    /// Creates a node that starts: nothing of it has been done.
    pub(crate) fn begin() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for directory in ["state", "run"] {
            std::fs::create_dir(path(directory)).unwrap();
        }
        let text = format!(
            "name = \"bed\"\nstore = {:?}\nstate = {:?}\n[[port]]\nname = \"left\"\ndevice = \"eth1\"\nmode = \"packet\"\n[[port]]\nname = \"right\"\ndevice = \"eth2\"\nmode = \"packet\"\n[trust]\nunsigned = \"accept\"\n",
            path("store"),
            path("state")
        );
        let file = Arc::new(NodeFile::parse(&text, "node.toml").unwrap());
        let mut node = Node::new(file.name.clone(), file.ports.clone()).unwrap();
        node.handle_timeout(Nanos::ZERO);
        let cell = FakeCell::default();
        let parts = Parts {
            started: Instant::now(),
            desired: Desired::new(Journal::in_memory(&file.name), None),
            plane: fake::plane(&file, &node),
            node,
            store: Store::open(&file.store).unwrap(),
            directory: path("run"),
            spawn: cell.spawn(),
        };
        let (sender, done) = unbounded_channel();
        let key = Arc::new(SecretKey::from_seed(&Seed::new([7; 32])));
        let start = Start {
            file,
            config: path("node.toml"),
            key,
            guest_core: 0,
            log_format: crate::LogFormat::Text,
        };
        let mut daemon = join(start, parts, sender).unwrap();
        // No image, no programs.
        let compiled = Arc::new(Compiled::from_bytes(&[2, 0, 0, 0, 0, 0, 1]).unwrap());
        let modules = daemon.control.state_mut().modules_mut();
        for module in &*MODULES {
            modules.insert(digest(module), module.clone());
            modules.set_code(&digest(module), false, &compiled);
        }
        daemon.resume();
        Self { daemon, cell, done, folder }
    }

    /// Returns the path of a file of the node.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Does everything that is pending, in the daemon and in the cell.
    pub(crate) fn settle(&mut self) {
        actions::settle(&mut self.daemon);
        requests::hand_over_settled(&mut self.daemon);
        self.cell.turn();
    }

    /// Goes on until something is true.
    pub(crate) async fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut answers = tokio::time::interval(ANSWERS_EVERY);
        loop {
            self.settle();
            if is_so(self) {
                return;
            }
            assert!(Instant::now() < deadline, "it did not happen");
            let Self { daemon, done, .. } = self;
            tokio::select! {
                biased;
                (cell, message) = daemon.runtime.receive() => {
                    daemon.runtime.handle_messages(&mut daemon.control, cell, message);
                }
                Some(done) = done.recv() => completions::handle(daemon, done),
                // Answers of other threads, such as the ledger's, wake nobody here.
                _ = answers.tick() => {}
            }
        }
    }

    /// Goes on until a request is answered.
    pub(crate) async fn answer<T>(&mut self, mut awaited: Awaited<T>) -> Answer<T> {
        let mut answer = None;
        self.until(|_| {
            answer = answer.take().or_else(|| awaited.try_answer());
            answer.is_some()
        })
        .await;
        answer.expect("it is there")
    }

    /// Lets time pass, in milliseconds, and does what is due.
    pub(crate) fn wait(&mut self, ms: u64) {
        skipped::skip(Nanos::from_millis(ms));
        self.daemon.control.set_now(self.daemon.now());
        self.daemon.control.handle_timeout();
        self.settle();
    }

    /// Sends a client's request to the daemon.
    pub(crate) fn ask_as<T>(
        &mut self,
        caller: Caller,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Awaited<T> {
        let (reply, awaited) = Reply::pair();
        let incoming = Incoming { caller, request: request(reply) };
        requests::handle(&mut self.daemon, incoming, BTreeSet::new());
        self.settle();
        awaited
    }

    /// Sends an operator's request to the daemon.
    pub(crate) fn ask<T>(&mut self, request: impl FnOnce(Reply<T>) -> Request) -> Awaited<T> {
        self.ask_as(Caller::Operator, request)
    }

    /// Returns what the operator gets for a request.
    pub(crate) async fn get<T>(&mut self, request: impl FnOnce(Reply<T>) -> Request) -> T {
        let awaited = self.ask(request);
        self.answer(awaited).await.map_err(|refusal| refusal.message).unwrap()
    }

    /// Returns the refusal that the operator gets for a request.
    pub(crate) async fn refused<T>(
        &mut self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> ErrorInfo {
        let awaited = self.ask(request);
        self.answer(awaited).await.err().expect("it is refused")
    }

    /// Makes a change for the operator, and returns its answer.
    pub(crate) async fn change<T>(&mut self, change: impl FnOnce(Reply<T>) -> Change) -> T {
        self.get(|reply| Request::Change(change(reply))).await
    }

    /// Runs a service that has rules of its own.
    pub(crate) async fn run(&mut self, service: &str, rules: &[&str]) -> EntryId {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let request = Box::new(api::DeployRequest { rules, ..deploy(service, 0) });
        let deployed = self.change(|reply| Change::Deploy(request, reply)).await;
        assert_eq!(deployed.service.name, service);
        self.entry(service)
    }

    /// Returns the numbers of the ports, in the order of the node file.
    pub(crate) fn port_ids(&self) -> Vec<PortId> {
        self.daemon.runtime.plane().ports().iter().map(|port| port.id()).collect()
    }

    /// Returns true while a cell runs.
    pub(crate) fn has_cell(&self) -> bool {
        self.daemon.runtime.cells().is_any()
    }

    /// Returns a service's entry.
    pub(crate) fn entry(&self, service: &str) -> EntryId {
        self.daemon.control.node().service(&name(service)).expect("it is there").entry
    }

    /// Returns true when a service runs.
    pub(crate) fn runs(&self, service: &str) -> bool {
        let found = self.daemon.control.node().service(&name(service));
        found.is_some_and(|it| it.state == ServiceState::Running && it.level == Level::User)
    }

    /// Returns the events of a kind so far.
    pub(crate) async fn events(&mut self, kind: EventKind) -> Vec<Event> {
        let list = self.get(|reply| Request::Events(0, 0, reply)).await;
        list.events.into_iter().filter(|event| event.kind == kind).collect()
    }

    /// Sends a message from the cell, and waits until the daemon has handled it.
    pub(crate) async fn handle_cell(&mut self, message: FromCell) {
        self.cell.say(&message);
        // This request is answered after all pending messages have been handled.
        let stats = self.get(Request::Stats).await;
        assert_eq!(stats.node, "bed");
    }
}
