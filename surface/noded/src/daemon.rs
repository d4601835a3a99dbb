//! The daemon's one task: what comes in, what is decided, what is done.

use crate::cell_link::CellLink;
use crate::config::NodeFile;
use crate::deploy::{self, Module};
use crate::http::{Answer, Reply};
use crate::ports::{self, LivePort};
use crate::{http, run_directory};
use anyhow::{Context, Result};
use api::{Deployed, ErrorInfo};
use bpf::{FrontDoor, XdpMode};
use cell::protocol::{CellReport, FromCell, ServiceFacts, ServiceReport, ToCell};
use node::{Command, Effect, Event, Node, Notice};
use os::netlink::{Change, Monitor, Netlink};
use registry::{Digest, Store};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Duration, MissedTickBehavior, interval};
use units::{EntryId, Name, Nanos, PortId, RuleId};

/// How often the front door is told that this daemon listens; the lease is ten
/// times as long on the fastest clock.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// How often the kernel is asked whether it would add something to packets.
const LOOK: Duration = Duration::from_secs(1);
/// Requests that wait for the daemon's attention.
const REQUESTS_MAX: usize = 64;
/// A cell that does not report within this time is shown as it was.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// What the API asks for.
pub(crate) enum Request {
    Node(Reply<api::NodeInfo>),
    Services(Reply<api::ServiceList>),
    Service(String, Reply<api::ServiceInfo>),
    Deploy(Box<api::DeployRequest>, Reply<Deployed>),
    Remove(String, bool, Reply<api::Removed>),
    Rules(Reply<api::RuleList>),
    AddRules(api::RulesRequest, Reply<api::RulesAdded>),
    RemoveRule(RuleId, Reply<api::RuleRemoved>),
    Modules(Reply<api::ModuleList>),
    PutModule(Vec<u8>, Reply<api::ModuleStored>),
    Stats(Reply<api::Stats>),
}

/// What comes back from work that was given away.
pub(crate) enum Done {
    Compiled(Digest, Result<Vec<u8>, String>),
    ReportOverdue(u64),
}

/// A deployment whose service has not started yet.
pub(crate) struct Waiting {
    pub(crate) reply: Reply<Deployed>,
    pub(crate) since: Instant,
    pub(crate) shadowed: Vec<(u32, u32)>,
}

/// Everything that the node is, beside what core/node decides.
pub(crate) struct Daemon {
    pub(crate) file: NodeFile,
    pub(crate) started: Instant,
    pub(crate) node: Node,
    pub(crate) front: FrontDoor,
    pub(crate) store: Store,
    pub(crate) netlink: Netlink,
    pub(crate) ports: Vec<LivePort>,
    pub(crate) sockets: BTreeMap<(PortId, u32), OwnedFd>,
    kernel: OwnedFd,
    cell: Option<CellLink>,
    /// Queues of the cell whose sockets are not bound yet.
    binding: usize,
    pub(crate) modules: BTreeMap<Digest, Module>,
    /// Services that start when their module is compiled.
    compiling: BTreeMap<Digest, Vec<ServiceFacts>>,
    pub(crate) waiting: BTreeMap<Name, Waiting>,
    pub(crate) reports: BTreeMap<EntryId, ServiceReport>,
    pub(crate) cell_report: CellReport,
    pub(crate) wanting_report: Vec<Box<dyn FnOnce(&mut Daemon)>>,
    report_number: u64,
    pub(crate) closed: BTreeMap<Name, (u64, u64)>,
    done: mpsc::UnboundedSender<Done>,
}

/// Takes the node's name for this process.
pub(crate) fn lock(name: &Name) -> Result<File> {
    let directory = run_directory(name);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    file.try_lock().with_context(|| {
        format!("a node named '{name}' runs already; 'tam show --node {name}' shows it")
    })?;
    Ok(file)
}

/// Runs the node to its end.
pub(crate) async fn run(file: NodeFile) -> Result<()> {
    let lock = lock(&file.name)?;
    let (done, done_rx) = mpsc::unbounded_channel();
    let monitor = Monitor::open().context("listening for changes of routes and devices")?;
    let mut daemon = Daemon::start(file, done)?;
    let (requests, request_rx) = mpsc::channel(REQUESTS_MAX);
    let socket = api::socket_of(&daemon.file.name);
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)
        .with_context(|| format!("listening on {}", socket.display()))?;
    let server = tokio::spawn(axum::serve(listener, http::router(requests)).into_future());
    tracing::info!(node = %daemon.file.name, ports = daemon.ports.len(), "the node runs");
    let ended = daemon.serve(monitor, request_rx, done_rx).await;
    server.abort();
    daemon.stop();
    drop(lock);
    let directory = run_directory(&daemon.file.name);
    std::fs::remove_dir_all(&directory)
        .with_context(|| format!("removing {}", directory.display()))?;
    ended
}

impl Daemon {
    fn start(file: NodeFile, done: mpsc::UnboundedSender<Done>) -> Result<Self> {
        let mut node = Node::new(file.name.clone(), file.ports.clone())?;
        for device in ports::restore_left_over(&file.name)? {
            tracing::info!(device, "restored what a dead node of this name had changed");
        }
        let netlink = Netlink::open().context("opening netlink")?;
        let store = Store::open(&file.store)
            .with_context(|| format!("opening the module store {}", file.store.display()))?;
        let mut front = FrontDoor::create(&file.name, seed()?).context("making the front door")?;
        let ports = match bring_up(&netlink, &mut front, &node) {
            Ok(ports) => ports,
            Err(error) => {
                let _ = bpf::front_door::remove(&file.name);
                return Err(error);
            }
        };
        ports::remember(&file.name, &ports)?;
        let kernel = ports::kernel_device(&netlink, &file.name)?;
        front.heartbeat()?;
        node.handle_timeout(Nanos::ZERO);
        let mut daemon = Self {
            file,
            started: Instant::now(),
            node,
            front,
            store,
            netlink,
            ports,
            sockets: BTreeMap::new(),
            kernel,
            cell: None,
            binding: 0,
            modules: BTreeMap::new(),
            compiling: BTreeMap::new(),
            waiting: BTreeMap::new(),
            reports: BTreeMap::new(),
            cell_report: CellReport::default(),
            wanting_report: Vec::new(),
            report_number: 0,
            closed: BTreeMap::new(),
            done,
        };
        daemon.changed(Change::Lost)?;
        Ok(daemon)
    }

    /// The node's clock.
    pub(crate) fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    async fn serve(
        &mut self,
        mut monitor: Monitor,
        mut requests: mpsc::Receiver<Request>,
        mut done: mpsc::UnboundedReceiver<Done>,
    ) -> Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut heartbeat = interval(HEARTBEAT);
        let mut look = interval(LOOK);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        look.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            self.do_effects();
            let timeout = self.node.poll_timeout().map(|at| at.saturating_sub(self.now()));
            let alarm = async {
                match timeout {
                    Some(wait) => tokio::time::sleep(Duration::from_nanos(wait.0)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                change = monitor.next() => {
                    self.changed(change.context("listening for changes")?)?;
                }
                message = hear(&mut self.cell) => self.heard(message),
                Some(request) = requests.recv() => self.handle(request),
                Some(done) = done.recv() => self.finish(done),
                _ = heartbeat.tick() => self.front.heartbeat()?,
                _ = look.tick() => self.look()?,
                () = alarm => {
                    let now = self.now();
                    self.node.handle_timeout(now);
                }
            }
        }
    }

    /// Gives a command to the node and does what follows from it.
    pub(crate) fn command(&mut self, command: Command) -> Answer<node::Outcome> {
        let now = self.now();
        let outcome = self.node.handle_command(now, command).map_err(|refusal| ErrorInfo {
            code: api::code_of(refusal.class()),
            message: refusal.to_string(),
            help: None,
        })?;
        self.do_effects();
        Ok(outcome)
    }

    fn event(&mut self, event: Event) {
        let now = self.now();
        self.node.handle_event(now, event);
    }

    fn do_effects(&mut self) {
        while let Some(effect) = self.node.poll_effect() {
            match effect {
                Effect::StartCell { restarts } => self.start_cell(restarts),
                Effect::StartService { entry, service, digest, lanes, parameters, session, .. } => {
                    let values =
                        parameters.iter().map(|(k, v)| (k.to_string(), v.to_bytes())).collect();
                    self.start_service(entry, &service, &digest, lanes, values, session);
                }
                Effect::StopService { entry } => self.tell(&ToCell::Stop(entry), &[]),
                Effect::ClearRuleCounters { rule } => {
                    if let Err(error) = self.front.clear_rule_stats(rule) {
                        tracing::error!(%rule, %error, "a rule's counters were not cleared");
                    }
                }
                Effect::InstallRules { rules, .. } => {
                    if let Err(error) = self.front.install_rules(&rules.masks, &rules.entries) {
                        tracing::error!(%error, "the rules were not installed");
                    }
                }
                Effect::Report(notice) => self.report(notice),
            }
        }
    }

    fn start_cell(&mut self, restarts: u32) {
        if let Err(error) = self.try_start_cell() {
            tracing::error!(restarts, error = format!("{error:#}"), "the cell did not start");
            self.cell_lost(format!("{error:#}"));
        }
    }

    fn try_start_cell(&mut self) -> Result<()> {
        let queues = self.ports.iter().map(|p| p.queues).sum();
        let core = self.file.guest_core.unwrap_or_else(last_core);
        let cell = CellLink::spawn(queues, core)?;
        cell.send(&ToCell::Kernel, &[self.kernel.as_fd()])?;
        self.binding = 0;
        for port in &self.ports {
            for queue in 0..port.queues {
                use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
                let flags = SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
                    .context("opening an AF_XDP socket")?;
                let facts = port.facts(queue);
                cell.send(&ToCell::AddPort(facts), &[socket.as_fd()])?;
                self.sockets.insert((port.port.id, queue), socket);
                self.binding += 1;
            }
        }
        tracing::info!(pid = cell.pid(), core, "the cell starts");
        self.cell = Some(cell);
        if self.binding == 0 {
            self.event(Event::CellReady);
        }
        Ok(())
    }

    fn start_service(
        &mut self,
        entry: EntryId,
        service: &Name,
        digest: &str,
        lanes: abi::Lanes,
        parameters: BTreeMap<String, Vec<u8>>,
        session: units::SessionId,
    ) {
        let module = digest.parse().ok().and_then(|d: Digest| Some((d, self.modules.get(&d)?)));
        let Some((digest, module)) = module else {
            let reason = format!("the module {digest} is no longer held");
            return self.event(Event::ServiceFailed { entry, reason });
        };
        let manifest = &module.checked.manifest;
        let facts = ServiceFacts {
            entry,
            name: service.to_string(),
            session,
            window: manifest.window,
            memory_pages_max: module.checked.memory.pages_max,
            // A node has one guest core so far: one instance is one for each core.
            lanes: match lanes {
                abi::Lanes::Count(count) => count,
                abi::Lanes::PerCore => 1,
            },
            timer_ms: manifest.timer_ms,
            parameters,
        };
        if let Some(code) = &module.code {
            let code = code.clone();
            return self.start_in_cell(facts, &code);
        }
        let waiting = self.compiling.entry(digest).or_default();
        waiting.push(facts);
        if waiting.len() == 1 {
            let (wasm, done) = (module.wasm.clone(), self.done.clone());
            tokio::task::spawn_blocking(move || {
                // The daemon is gone when nobody receives: nothing is left to do.
                let _ = done.send(Done::Compiled(digest, deploy::compile(&wasm)));
            });
        }
    }

    fn start_in_cell(&mut self, facts: ServiceFacts, code: &[u8]) {
        let entry = facts.entry;
        let sent = os::fd_passing::sealed_memory("tam-code", code)
            .context("putting the code into memory")
            .and_then(|memory| match &self.cell {
                Some(cell) => cell.send(&ToCell::Start(Box::new(facts)), &[memory.as_fd()]),
                // Its loss has been told; it starts the service anew when it is back.
                None => Ok(()),
            });
        if let Err(error) = sent {
            self.event(Event::ServiceFailed { entry, reason: format!("{error:#}") });
        }
    }

    fn finish(&mut self, done: Done) {
        match done {
            Done::Compiled(digest, result) => {
                let waiting = self.compiling.remove(&digest).unwrap_or_default();
                if let (Ok(code), Some(module)) = (&result, self.modules.get_mut(&digest)) {
                    module.code = Some(code.clone());
                }
                for facts in waiting {
                    match &result {
                        Ok(code) => self.start_in_cell(facts, code),
                        Err(reason) => {
                            let (entry, reason) = (facts.entry, reason.clone());
                            self.event(Event::ServiceFailed { entry, reason });
                        }
                    }
                }
            }
            Done::ReportOverdue(number) if number == self.report_number => self.reported(),
            Done::ReportOverdue(_) => {}
        }
    }

    pub(crate) fn tell(&self, message: &ToCell, fds: &[std::os::fd::BorrowedFd<'_>]) {
        if let Some(cell) = &self.cell
            && let Err(error) = cell.send(message, fds)
        {
            tracing::error!(error = format!("{error:#}"), "the cell was not told");
        }
    }

    fn heard(&mut self, message: Result<Option<FromCell>>) {
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return self.cell_lost(String::new()),
            Err(error) => return self.cell_lost(format!("{error:#}")),
        };
        match message {
            FromCell::PortReady(port, queue) => self.bound(port, queue, Ok(())),
            FromCell::PortFailed(port, queue, reason) => self.bound(port, queue, Err(reason)),
            FromCell::Started(entry) => self.event(Event::ServiceStarted { entry }),
            FromCell::StartFailed(entry, reason) => {
                self.event(Event::ServiceFailed { entry, reason });
            }
            FromCell::Stopped(entry, _) => {
                self.reports.remove(&entry);
                self.event(Event::ServiceStopped { entry });
            }
            FromCell::Trapped(entry, lane, trap) => {
                let service = self.name_of(entry);
                tracing::warn!(service, lane, trap, "a module trapped and was replaced");
            }
            FromCell::Event(entry, code, data) => {
                let service = self.name_of(entry);
                tracing::info!(service, code, data = hex(&data), "a module's event");
            }
            FromCell::Answered(entry, answers) => {
                tracing::debug!(%entry, ?answers, "a control message was answered");
            }
            FromCell::Service(entry, report) => {
                self.reports.insert(entry, *report);
            }
            FromCell::Reported(report) => {
                self.cell_report = report;
                self.reported();
            }
        }
    }

    fn name_of(&self, entry: EntryId) -> String {
        self.node.service_of(entry).map_or_else(|| entry.to_string(), |s| s.name.to_string())
    }

    fn bound(&mut self, port: PortId, queue: u32, result: Result<(), String>) {
        let result = result.and_then(|()| {
            let socket = self.sockets.get(&(port, queue)).map(AsFd::as_fd);
            self.front.set_socket(port, queue, socket).map_err(|error| error.to_string())
        });
        if let Err(reason) = result {
            tracing::error!(%port, queue, reason, "a queue has no socket: its packets go plainly");
        }
        self.binding = self.binding.saturating_sub(1);
        if self.binding == 0 {
            self.event(Event::CellReady);
        }
    }

    fn cell_lost(&mut self, why: String) {
        let ended = self.cell.take().map_or_else(String::new, CellLink::end);
        for (port, queue) in std::mem::take(&mut self.sockets).into_keys() {
            // A socket that was not bound yet is not in the map.
            let _ = self.front.set_socket(port, queue, None);
        }
        self.reports.clear();
        self.reported();
        let reason = [why, ended].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>();
        self.event(Event::CellLost { reason: reason.join("; ") });
    }

    fn report(&mut self, notice: Notice) {
        match notice {
            Notice::ServiceRunning { service, restarts } => {
                tracing::info!(%service, restarts, "the service runs");
                if let Some(waiting) = self.waiting.remove(&service) {
                    self.deployed(&service, waiting);
                }
            }
            Notice::ServiceNotStarted { service, reason } => {
                tracing::warn!(%service, reason, "the service did not start");
                if let Some(waiting) = self.waiting.remove(&service) {
                    let message = format!("the service '{service}' did not start: {reason}");
                    let refusal = http::error(api::ErrorCode::Failed, message, None);
                    let _ = waiting.reply.send(Err(refusal));
                }
            }
            Notice::ServiceFailed { service, reason, .. } => {
                tracing::error!(%service, reason, "the service failed, its packets go plainly");
            }
            Notice::ServiceRemoved { service } => tracing::info!(%service, "the service is gone"),
            Notice::CellLost { reason, .. } => {
                tracing::error!(reason, "the cell is lost, packets go plainly");
            }
        }
    }

    /// Runs `then` when the cell has told how its services are.
    pub(crate) fn after_report(&mut self, then: impl FnOnce(&mut Self) + 'static) {
        self.wanting_report.push(Box::new(then));
        if self.cell.is_none() {
            return self.reported();
        }
        if self.wanting_report.len() == 1 {
            self.report_number += 1;
            self.tell(&ToCell::Report, &[]);
            let (done, number) = (self.done.clone(), self.report_number);
            tokio::spawn(async move {
                tokio::time::sleep(REPORT_WITHIN).await;
                let _ = done.send(Done::ReportOverdue(number));
            });
        }
    }

    fn reported(&mut self) {
        self.report_number += 1;
        for then in std::mem::take(&mut self.wanting_report) {
            then(self);
        }
    }

    fn stop(&mut self) {
        tracing::info!(node = %self.file.name, "the node stops");
        if let Err(error) = bpf::front_door::remove(&self.file.name) {
            tracing::error!(%error, "the pins were not removed");
        }
        for port in &self.ports {
            if let Err(error) = self.front.detach(port.port.id, port.config.ifindex) {
                tracing::debug!(%error, "the port was not detached");
            }
        }
        if let Some(cell) = self.cell.take() {
            cell.end();
        }
        ports::restore(&self.ports);
    }
}

/// The next message of the cell; pending while there is none.
async fn hear(cell: &mut Option<CellLink>) -> Result<Option<FromCell>> {
    match cell {
        Some(cell) => cell.receive().await,
        None => std::future::pending().await,
    }
}

fn bring_up(netlink: &Netlink, front: &mut FrontDoor, node: &Node) -> Result<Vec<LivePort>> {
    let mut live: Vec<LivePort> = Vec::new();
    for port in node.ports() {
        let (name, id) = (port.spec.name.clone(), port.id);
        let attached = LivePort::prepare(netlink, port.clone()).and_then(|port| {
            front
                .attach(id, &port.config, XdpMode::Native)
                .with_context(|| format!("port '{name}' on device {}", port.port.spec.device))?;
            Ok(port)
        });
        match attached {
            Ok(port) => live.push(port),
            Err(error) => {
                ports::restore(&live);
                return Err(error);
            }
        }
    }
    Ok(live)
}

/// What keeps outsiders from choosing flows that share a cache slot.
fn seed() -> Result<u32> {
    let mut bytes = [0; 4];
    let mut random = File::open("/dev/urandom").context("opening /dev/urandom")?;
    random.read_exact(&mut bytes).context("reading /dev/urandom")?;
    Ok(u32::from_ne_bytes(bytes))
}

fn last_core() -> usize {
    std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
