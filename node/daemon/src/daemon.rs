//! The daemon's one task: what comes in, what is decided, what is done.

use crate::adopt;
use crate::associations::Neighbours;
use crate::barrier::Barrier;
use crate::cells::{AfterReport, CellNumber, Cells};
use crate::compilers::Compilers;
use crate::completion::Completion;
use crate::config::NodeFile;
use crate::control::Control;
use crate::control::desired::Desired;
use crate::control::modules::Modules;
use crate::control::placement::Placement;
use crate::control::state::{self, Below, NodeState};
use crate::dataplane::budgets;
use crate::dataplane::kernel_settings;
use crate::dataplane::{self, DataPlane};
use crate::demand::Demand;
use crate::deploy;
pub(crate) use crate::done::Done;
use crate::events::Note;
use crate::ledger::{Billing, Counters};
use crate::life::Found;
use crate::observe::documents::sessions::usage;
use crate::observe::explain::Explaining;
use crate::observe::question::Asked;
use crate::observe::view::View;
use crate::observe::{Observe, capture, drops};
use crate::record::{self, Record, RecordView, Recorder};
use crate::reply::Reply;
use crate::request::Incoming;
use crate::sessions::{self, Sessions, capacity_of};
use anyhow::{Context, Result};
use api::{EventKind, ExplainRequest, Explanation};
use cell::protocol::{FromCell, ToCell};
use module_store::Store;
use netlink::{Change, Monitor};
use node::{Command, Event, Node};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Duration, MissedTickBehavior, interval};
use trust::SecretKey;
use units::{Name, Nanos};

/// How often the front door is told that this daemon listens; the lease is ten
/// times as long on the fastest clock.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Period of polling lanes that move.
const LANES_EVERY: Duration = Duration::from_millis(1);
/// How often is looked at what nothing depends on at once: ports that are away, rights, demand.
const TIDY: Duration = Duration::from_secs(1);

/// Messages of the cell that are heard before what follows from them is done.
const HEARD_AT_ONCE: usize = 256;

/// Everything that the node is, beside what core/node decides.
pub(crate) struct Daemon {
    pub(crate) file: Arc<NodeFile>,
    /// Key of the node.
    pub(crate) node_key: Arc<SecretKey>,
    /// Core that runs modules.
    pub(crate) guest_core: usize,
    pub(crate) started: Instant,
    /// Everything that decides what runs.
    pub(crate) control: Control,
    /// Placement of services on levels.
    pub(crate) placement: Placement,
    pub(crate) plane: DataPlane,
    pub(crate) cells: Cells,
    pub(crate) compilers: Compilers,
    /// Modules that are wanted and not there.
    pub(crate) demand: Demand,
    /// Associations, where the node has any.
    pub(crate) neighbours: Option<Neighbours>,
    /// Fuel that services of each session used which are no longer there.
    pub(crate) fuel_closed: BTreeMap<Name, u64>,
    /// What sessions use.
    pub(crate) sessions: Sessions,
    pub(crate) closed: BTreeMap<Name, (u64, u64)>,
    /// Events, drops and captures.
    pub(crate) observe: Observe,
    /// What is billed, and the ledger that it goes to.
    pub(crate) billing: Billing,
    /// Schedule of the record of what runs.
    pub(crate) recorder: Recorder,
    /// When something in the node is due, as far as it is known.
    node_due: Option<Nanos>,
    /// Something happened in the node after which that may be another time.
    pub(crate) node_touched: bool,
    /// It ends without taking anything down.
    pub(crate) hands_over: bool,
    /// Request to hand over that waits for new versions to settle, and its deadline.
    pub(crate) handing_over: Option<(Instant, Reply<api::HandedOver>)>,
    pub(crate) done: mpsc::UnboundedSender<Done>,
}

/// Which node a daemon is to be.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) file: Arc<NodeFile>,
    /// The node file's path.
    pub(crate) config: PathBuf,
    /// Who the node is.
    pub(crate) key: Arc<SecretKey>,
    /// The core that runs modules.
    pub(crate) guest_core: usize,
}

/// What a daemon begins with.
pub(crate) struct Parts {
    /// When the node's clock was zero.
    pub(crate) started: Instant,
    pub(crate) desired: Desired,
    pub(crate) node: Node,
    pub(crate) store: Store,
    pub(crate) plane: DataPlane,
}

impl Daemon {
    pub(crate) fn adopt_or_start(
        start: Start,
        found: Found,
        done: mpsc::UnboundedSender<Done>,
    ) -> Result<Self> {
        let Found { store, desired, barrier, stays_closed } = found;
        let mut desired = Some(desired);
        match Self::adopt(&start, &store, &mut desired, &done) {
            Ok(Some(mut daemon)) => {
                let (observe, view) = daemon.observe();
                observe.begin_drops(&view);
                let (name, ports) = (&daemon.file.name, daemon.plane.ports().len());
                let text = format!("the node '{name}' goes on with {ports} ports: adopted");
                daemon.note(Note::new(EventKind::NodeStarted, text));
                daemon.with_plane(|plane, _| plane.note_uncounted());
                return Ok(daemon);
            }
            Ok(None) => {}
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(
                    error,
                    "what a daemon before left cannot be adopted, it is taken down"
                );
            }
        }
        let barrier = barrier.unwrap_or_else(|| {
            let state = desired.as_ref().map(|desired| &**desired.state());
            Barrier::raise(&start.file, state)
        });
        if stays_closed {
            crate::dataplane::closing::close_all(&start.file.name, &start.file.ports);
        }
        for what in adopt::take_down(&start.file.name)? {
            tracing::info!(what, "took down what a dead node of this name had left");
        }
        let mut daemon = Self::start(start, store, desired, done)?;
        daemon.with_plane(|plane, around| plane.close_ports(around));
        barrier.lower();
        Ok(daemon)
    }

    fn start(
        start: Start,
        store: Store,
        desired: Option<Desired>,
        done: mpsc::UnboundedSender<Done>,
    ) -> Result<Self> {
        let Start { file, config, .. } = &start;
        let mut node = Node::new(file.name.clone(), file.ports.clone())?;
        // An adoption that has failed late had it.
        let desired =
            desired.map_or_else(|| crate::control::apply::open(file, config, &store), Ok)?;
        let plane = DataPlane::start(file, &node, desired.state())?;
        node.handle_timeout(Nanos::ZERO);
        let started = Instant::now();
        let parts = Parts { started, desired, node, store, plane };
        let mut daemon = Self::join(start, parts, done)?;
        daemon.renew_capacity();
        daemon.with_plane(|plane, around| plane.handle_change(around, Change::Lost))?;
        let (observe, view) = daemon.observe();
        observe.begin_drops(&view);
        let text = format!(
            "the node '{}' runs with {} ports",
            daemon.file.name,
            daemon.plane.ports().len()
        );
        daemon.note(Note::new(EventKind::NodeStarted, text));
        daemon.with_plane(|plane, _| plane.note_modes());
        Ok(daemon)
    }

    /// A daemon without a cell.
    pub(crate) fn join(
        start: Start,
        parts: Parts,
        done: mpsc::UnboundedSender<Done>,
    ) -> Result<Self> {
        let clock = Nanos(u64::try_from(parts.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let authority = parts.desired.authority(clock, start.file.trust.anyone.clone())?;
        let billing = Billing::begin(&start.file.state, &start.key, done.clone())?;
        let codec_done = done.clone();
        let codec_news = Completion::new(move |(number, news)| {
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = codec_done.send(Done::Codec(number, news));
        });
        let compiled_done = done.clone();
        let compiled = Completion::new(move |completed| {
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = compiled_done.send(Done::Compiled(completed));
        });
        let (fetched_done, stored_done) = (done.clone(), done.clone());
        let fetched = Completion::new(move |fetched| {
            let _ = fetched_done.send(Done::Fetched(Box::new(fetched)));
        });
        let stored = Completion::new(move |(digest, stored)| {
            let _ = stored_done.send(Done::Stored(digest, stored, None));
        });
        let plane = parts.plane;
        let unsupported = plane.unsupported().map(str::to_owned);
        let below = Below { unsupported, is_allowed: true };
        let state = NodeState::new(state::Parts {
            file: Arc::clone(&start.file),
            config: start.config.clone(),
            key: start.key.public(),
            node: parts.node,
            desired: parts.desired,
            authority,
            modules: Modules::new(parts.store, &start.file.trust),
            below,
        });
        Ok(Self {
            compilers: Compilers::open(&start.file.state, &start.key, compiled),
            demand: Demand::begin(&start.file, &start.config, fetched, stored)?,
            file: start.file,
            node_key: start.key,
            guest_core: start.guest_core,
            started: parts.started,
            control: Control::new(state),
            placement: Placement::default(),
            plane,
            cells: Cells::new(start.guest_core, codec_news),
            neighbours: None,
            fuel_closed: BTreeMap::new(),
            sessions: Sessions::default(),
            closed: BTreeMap::new(),
            observe: Observe::new(),
            billing,
            node_due: None,
            node_touched: true,
            hands_over: false,
            handing_over: None,
            recorder: Recorder::new(record::fingerprint()?, Instant::now()),
            done,
        })
    }

    /// Writes down what runs, or does so later with what else happens until then: of thousands of
    /// services it takes a tenth of a second. Nobody has been told, and the daemon after this one
    /// stops what it does not know.
    pub(crate) fn remember_soon(&mut self) {
        if self.recorder.due(self.control.is_changing()).is_some_and(|due| due <= Instant::now()) {
            self.remember();
        }
    }

    /// Writes down what runs, if that has changed.
    pub(crate) fn remember(&mut self) {
        if self.billing.take_changed() {
            self.recorder.mark();
        }
        if !self.recorder.take_dirty() {
            return;
        }
        let begin = Instant::now();
        let written = self.control.node().with_snapshot(|node| {
            let record = RecordView {
                fingerprint: self.recorder.fingerprint(),
                namespace: record::namespace(),
                followed: self.control.desired().followed(),
                clock_zero_ns: record::on_machine_clock(self.started),
                ports: &self.file.ports,
                cell: self.cells.pid(CellNumber::FIRST),
                node,
                closed: &self.closed,
                fuel_closed: &self.fuel_closed,
                lost_with_cells: self.plane.lost_with_cells(),
                sessions_before: &self.sessions.before,
                speed: self.plane.measured_speed(),
                meters: self.billing.meters(),
                has_packet_ports: self.plane.front().packets().is_some(),
            };
            record.write(&self.file.name)
        });
        if let Err(error) = written {
            let error = format!("{error:#}");
            tracing::error!(error, "should this daemon die, the next one begins with older news");
        }
        self.recorder.handle_written(begin, Instant::now());
    }

    /// Bills what was used since the last time, once cells have told what they did.
    pub(crate) fn bill(&mut self) {
        if !self.billing.is_writing() {
            self.after_report(AfterReport::Bill);
        }
    }

    /// Has the last bill made: the node is about to end.
    fn end_billing(&mut self) {
        if self.billing.begin_end(tokio::time::Instant::now()) {
            self.after_report(AfterReport::LastBill);
        }
    }

    /// Sends the ledger what meters show, once that is in the record of what runs.
    pub(crate) fn write_bill(&mut self) {
        self.remember();
        self.billing.write();
    }

    /// Returns what is billed, beside the counters that it is read from.
    pub(crate) fn counters(&mut self) -> (&mut Billing, Counters<'_>) {
        let now = self.now();
        let (node, cells, plane) = (self.control.node(), &self.cells, &self.plane);
        (&mut self.billing, Counters { now, node, cells, plane })
    }

    /// The node's clock.
    pub(crate) fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns what there is, for reading.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            now: self.now(),
            file: &self.file,
            node_key: &self.node_key,
            node: self.control.node(),
            state: self.control.state(),
            plane: &self.plane,
            cells: &self.cells,
            neighbours: self.neighbours.as_ref(),
            billing: &self.billing,
            demand: &self.demand,
            compilers: &self.compilers,
            sessions: &self.sessions,
            closed: &self.closed,
            fuel_closed: &self.fuel_closed,
        }
    }

    /// Returns the observations to be changed, beside what there is, for reading.
    pub(crate) fn observe(&mut self) -> (&mut Observe, View<'_>) {
        let now = self.now();
        let view = View {
            now,
            file: &self.file,
            node_key: &self.node_key,
            node: self.control.node(),
            state: self.control.state(),
            plane: &self.plane,
            cells: &self.cells,
            neighbours: self.neighbours.as_ref(),
            billing: &self.billing,
            demand: &self.demand,
            compilers: &self.compilers,
            sessions: &self.sessions,
            closed: &self.closed,
            fuel_closed: &self.fuel_closed,
        };
        (&mut self.observe, view)
    }

    pub(crate) async fn serve(
        &mut self,
        mut monitor: Monitor,
        mut requests: mpsc::Receiver<Incoming>,
        mut done: mpsc::UnboundedReceiver<Done>,
    ) -> Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let measured = self.done.clone();
        self.plane.measure_speed(Completion::new(move |speed| {
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = measured.send(Done::SpeedMeasured(speed));
        }));
        // No other event restarts them; ticks that were missed come as one.
        let every = |period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            ticks
        };
        let (mut heartbeat, mut look) = (every(HEARTBEAT), every(kernel_settings::LOOK));
        let (mut tidy, mut drops) = (every(TIDY), every(drops::LOOK_EVERY));
        let (mut budgets, mut uses) = (every(budgets::LOOK_EVERY), every(sessions::LOOK_EVERY));
        let mut bills = every(Duration::from_secs(self.file.ledger_every.0));
        let (mut moves, mut captures) = (every(LANES_EVERY), every(capture::LOOK_EVERY));
        loop {
            self.settle();
            self.hand_over_settled();
            if self.billing.has_ended() || self.hands_over {
                return Ok(());
            }
            if std::mem::take(&mut self.node_touched) {
                self.node_due = self.control.node().poll_timeout();
            }
            let now = self.now();
            let resumes_in = self.control.resumes_at().map(|at| at.saturating_sub(now));
            let confirmed_until = self.control.confirmed_until().map(Into::into);
            let record_due = self.recorder.due(self.control.is_changing()).map(Into::into);
            let timeout = self.node_due.map(|at| at.saturating_sub(now));
            tokio::select! {
                _ = interrupt.recv() => self.end_billing(),
                _ = terminate.recv() => self.end_billing(),
                () = until(self.billing.ends_at()) => return Ok(()),
                change = monitor.next() => {
                    let change = change.context("listening for changes")?;
                    self.with_plane(|plane, around| plane.handle_change(around, change))?;
                }
                (cell, message) = self.cells.receive() => self.hear_all(cell, message),
                news = Neighbours::news(&mut self.neighbours) => {
                    self.control.set_now(self.now());
                    if let Some(neighbours) = &mut self.neighbours {
                        neighbours.handle_news(&mut self.control, &self.cells, news);
                    }
                }
                Some(incoming) = requests.recv() => self.handle(incoming, BTreeSet::new()),
                Some(done) = done.recv() => self.finish(done),
                _ = heartbeat.tick() => {
                    self.plane.heartbeat()?;
                    let now = self.now();
                    self.observe.handle_heartbeat(now);
                }
                _ = drops.tick() => {
                    if self.observe.start_drops() {
                        self.after_report(AfterReport::CountDrops);
                    }
                }
                _ = look.tick() => self.with_plane(|plane, around| plane.handle_look(around))?,
                _ = tidy.tick() => self.tidy()?,
                _ = uses.tick() => self.look_at_use(),
                _ = bills.tick() => {
                    self.bill();
                    self.after_report(AfterReport::EndIdleCalls);
                }
                _ = budgets.tick(), if self.plane.has_budgets(self.control.node()) => {
                    let now = self.now();
                    self.plane.services().look_at_budgets(self.control.node(), now);
                }
                _ = moves.tick(), if self.placement.is_moving() => {
                    self.place(|it, around| it.handle_tick(around));
                }
                _ = captures.tick(), if self.observe.is_capturing() => {
                    let (observe, view) = self.observe();
                    observe.handle_capture_tick(&view);
                    self.tell_taps();
                }
                () = after(resumes_in) => {
                    self.control.set_now(self.now());
                    if self.control.handle_resumption() {
                        self.resume();
                    }
                }
                () = until(confirmed_until) => self.control.handle_not_confirmed(),
                () = after(timeout) => {
                    self.control.set_now(self.now());
                    self.control.handle_timeout();
                }
                () = until(record_due) => {}
            }
        }
    }

    /// Looks at what nothing depends on at once. Called once a second.
    fn tidy(&mut self) -> Result<()> {
        self.with_plane(|plane, around| plane.handle_second(around))?;
        self.watch_cells();
        self.place(|it, around| it.handle_second(around));
        self.control.set_now(self.now());
        self.control.handle_second();
        self.check_associations();
        self.demand.handle_second();
        Ok(())
    }

    /// Ends associations whose capability counts no more.
    pub(crate) fn check_associations(&mut self) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_without_right(&mut self.control, &self.cells);
        }
    }

    /// Calls the data plane, and does the actions that follow.
    pub(crate) fn with_plane<T>(
        &mut self,
        ask: impl FnOnce(&mut DataPlane, &dataplane::Around<'_>) -> T,
    ) -> T {
        let answer = self.ask_plane(ask);
        // What cells were not given was logged.
        let _ = self.do_plane_actions();
        answer
    }

    /// Calls the data plane, and does the actions that follow.
    ///
    /// # Errors
    /// When the call fails, or cells are not given what they need.
    pub(crate) fn try_with_plane(
        &mut self,
        ask: impl FnOnce(&mut DataPlane, &dataplane::Around<'_>) -> Result<()>,
    ) -> Result<()> {
        let answer = self.ask_plane(ask);
        let given = self.do_plane_actions();
        answer.and(given)
    }

    fn ask_plane<T>(&mut self, ask: impl FnOnce(&mut DataPlane, &dataplane::Around<'_>) -> T) -> T {
        let around = dataplane::Around {
            node: self.control.node(),
            desired: self.control.desired().state(),
            node_changed: self.node_touched,
            has_cell: self.cells.is_any(),
            placement: &self.placement,
        };
        ask(&mut self.plane, &around)
    }

    /// Does all pending actions of the data plane. Returns the first failure to give cells what they
    /// need.
    fn do_plane_actions(&mut self) -> Result<()> {
        let mut failed = Ok(());
        while let Some(action) = self.plane.poll_action() {
            let done = self.do_plane_action(action);
            failed = failed.and(done);
        }
        failed
    }

    fn do_plane_action(&mut self, action: dataplane::Action) -> Result<()> {
        use dataplane::Action;
        match action {
            Action::Note(note) => self.note(note),
            Action::Tell(message) => self.cells.tell_all(&message, &[]),
            Action::Give(message, fds) => {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                self.cells.send_all(&message, &fds).inspect_err(|error| {
                    tracing::error!(error = format!("{error:#}"), "the cell was not told");
                })?;
            }
            Action::GiveQueue { port, message, fds } => {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let given = self.cells.send_queue(CellNumber::FIRST, &message, &fds);
                given.inspect_err(|error| {
                    let error = format!("{error:#}");
                    tracing::error!(%port, error, "its services get no packets");
                })?;
            }
            Action::UseRules(number, memory) => {
                match self.cells.send_all(&ToCell::Rules(number), &[memory.as_fd()]) {
                    Ok(()) => self.plane.await_rules(),
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::error!(error, "the cell does not know the rules");
                    }
                }
            }
            Action::LeaveKernel(service) => {
                let level = abi::Level::User;
                if let Err(refusal) = self.control.command(Command::Move { service, level }) {
                    tracing::error!(reason = refusal.message, "a service stays at kernel level");
                }
            }
            Action::SweepAfter(after) => {
                let done = self.done.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    let _ = done.send(Done::InterceptionsLeft);
                });
            }
        }
        Ok(())
    }

    /// Hears a message of the cell, and those that are there, too: what follows from a thousand
    /// services that have started is worked out once.
    fn hear_all(&mut self, cell: CellNumber, message: Result<Option<FromCell>>) {
        self.heard(cell, message);
        for _ in 1..HEARD_AT_ONCE {
            match self.cells.receive_next(cell) {
                Ok(None) => return,
                Ok(Some(message)) => self.heard(cell, Ok(Some(message))),
                Err(error) => return self.heard(cell, Err(error)),
            }
        }
    }

    /// Starts what shall run and does not.
    pub(crate) fn resume(&mut self) {
        self.renew_capacity();
        self.control.resume();
    }

    /// Gives an event to the node.
    pub(crate) fn event(&mut self, event: Event) {
        self.control.set_now(self.now());
        if let Event::ServicePlaced { entry, .. } = &event {
            let (billing, counters) = self.counters();
            billing.read_fuel(&counters, *entry);
        }
        self.control.handle_event(event, false);
    }

    fn finish(&mut self, done: Done) {
        match done {
            Done::Compiled(completed) => {
                self.compilers.handle(&mut self.control, &mut self.billing, completed);
                self.do_compiled();
            }
            Done::Stored(digest, stored, reply) => self.stored(digest, stored, reply),
            Done::Loaded(loaded) => self.loaded(*loaded),
            Done::Landed(entry) => self.cells.tell(entry, &ToCell::Settle(entry)),
            Done::SpeedMeasured(speed) => {
                let is_known = self.plane.promises().handle_speed(self.control.node(), speed);
                if is_known {
                    self.recorder.mark();
                }
            }
            Done::LaneUnused(entry) => self.lane_unused(entry),
            Done::InterceptionsLeft => self.plane.end_interceptions(),
            Done::Happened(event) => self.control.handle_late_event(event),
            Done::SpareReady(number) => self.spare_ready(number),
            Done::ReportOverdue(number) => {
                self.cells.handle_report_overdue(number);
                self.go_on_reported();
            }
            Done::MemoryOverdue(number) => self.control.handle_memory_overdue(number),
            Done::Explained(asked, explained) => {
                let Asked { question, reply } = *asked;
                reply.answer(self.observe.explained(&self.view(), &question, explained));
            }
            Done::Recorded(written) => self.control.handle_recorded(written),
            Done::Billed(billed) => {
                let note = self.billing.handle_billed(billed);
                let problem = self.billing.problem().map(str::to_owned);
                self.control.set_ledger_problem(problem);
                note.into_iter().for_each(|note| self.note(note));
            }
            Done::Fetched(fetched) => {
                self.control.set_now(self.now());
                let Self { demand, control, billing, .. } = self;
                demand.handle_fetched(control, billing, *fetched);
                self.release_fetched();
            }
            Done::Codec(number, news) => self.cells.handle_codec_news(number, news),
        }
    }

    /// Writes down an event.
    pub(crate) fn note(&mut self, note: Note) {
        let note = note.completed(self.control.node());
        self.observe.note(self.now(), note);
    }

    /// Computes the node's capacity anew: devices came or went. Sessions for which it is too little
    /// are promised nothing, until they are tried again.
    pub(crate) fn renew_capacity(&mut self) {
        let has_front_door = self.plane.front_door().is_ok();
        let before = self.control.node().capacity();
        let capacity = capacity_of(self.plane.ports(), self.guest_core, has_front_door, before);
        if self.control.node().capacity() == Some(&capacity) {
            return;
        }
        self.control.set_capacity(capacity);
        self.tell_memory();
        self.with_plane(|plane, around| plane.promises().settle_promises(around.node));
        self.recorder.mark();
    }

    /// Tells cells how much memory there is for all sessions.
    pub(crate) fn tell_memory(&self) {
        if let Some(capacity) = self.control.node().capacity() {
            self.cells.tell_all(&ToCell::Memory(capacity.memory), &[]);
        }
    }

    /// Asks cells what sessions have used; the look follows when they have told. One that has not
    /// answered for a second is not waited for.
    fn look_at_use(&mut self) {
        let Some(is_overdue) = self.sessions.start_look(self.now()) else { return };
        if is_overdue || !self.cells.is_any() {
            self.note_use();
        }
        self.cells.tell_all(&ToCell::ReportSessions, &[]);
    }

    /// Takes note of what sessions have used, if cells were asked for it, which have told now.
    pub(crate) fn sessions_reported(&mut self) {
        if self.sessions.handle_told() {
            self.note_use();
        }
    }

    fn note_use(&mut self) {
        let (now, begin) = (self.now(), Instant::now());
        let usage = usage(&self.view());
        match usage {
            Ok(usage) => self.sessions.handle_usage(now, usage),
            Err(error) => tracing::debug!(error = error.message, "sessions cannot be looked at"),
        }
        self.sessions.rest(now, begin.elapsed());
    }

    /// Tells cells what captures want of them, if that has changed.
    pub(crate) fn tell_taps(&mut self) {
        if let Some(tap) = self.observe.poll_tap() {
            self.cells.tell_all(&tap, &[]);
        }
    }

    /// Answers `POST /v1/why`, now or when the kernel has run a copy of the front door.
    pub(crate) fn explain(&self, request: &ExplainRequest, reply: Reply<Explanation>) {
        match self.observe.explain(&self.view(), request) {
            Ok(Explaining::Done(explanation)) => reply.ok(*explanation),
            Ok(Explaining::Run(run)) => {
                let done = self.done.clone();
                tokio::task::spawn_blocking(move || {
                    let (question, explained) = run.run();
                    let asked = Box::new(Asked { question, reply });
                    // The daemon is gone when nobody receives: nothing is left to do.
                    let _ = done.send(Done::Explained(asked, explained));
                });
            }
            Err(refusal) => reply.refuse(refusal),
        }
    }

    pub(crate) fn stop(&mut self) {
        deploy::end_spare();
        self.cells.end_codecs();
        tracing::info!(node = %self.file.name, "the node stops");
        Record::remove(&self.file.name);
        if let Err(error) = bpf::front_door::remove(&self.file.name) {
            tracing::error!(%error, "the pins were not removed");
        }
        // Before the cell: without it a frame that was taken would be lost.
        self.plane.detach();
        self.cells.remove(CellNumber::FIRST);
        self.plane.restore();
    }
}

/// Sleeps for a time; for ever when there is none.
async fn after(wait: Option<Nanos>) {
    match wait {
        Some(wait) => tokio::time::sleep(Duration::from_nanos(wait.0)).await,
        None => std::future::pending().await,
    }
}

/// Sleeps until then; for ever when there is no such time.
async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
