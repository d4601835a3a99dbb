//! The daemon and its cell: what one tells the other, and what follows.

use crate::authority::Sight;
use crate::below::Begin;
use crate::cell_link::CellLink;
use crate::cell_watch::{ENDED_AFTER, Look};
use crate::daemon::{Daemon, Done, KernelWay, Queue};
use crate::events::Note;
use crate::ports::Mode;
use crate::reply::Reply;
use crate::streams::Start;
use abi::check::Kind;
use anyhow::{Context, Result};
use api::EventKind;
use cell::Compiled;
use cell::protocol::{Failure, FromCell, KeptFacts, ServiceFacts, StateWay, StreamFacts, ToCell};
use module_store::Digest;
use node::{Event, ServiceState};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use tokio::time::Duration;
use units::{EntryId, Name, PortId, SessionId};

/// A cell that does not report within this time is shown as it was.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

/// A service or a version of one that begins when its module is compiled.
pub(crate) struct Pending {
    pub(crate) facts: Facts,
    /// Where to run it, best first.
    pub(crate) levels: Vec<abi::Level>,
    /// Of a version that takes another one's place: how it comes by its state.
    pub(crate) replaces: Option<StateWay>,
}

/// What waits until the cell has told how its services are.
pub(crate) enum AfterReport {
    /// A list of the services that the sender may see.
    Services(Sight, Reply<api::ServiceList>),
    Service(String, Reply<api::ServiceInfo>),
    Stats(Sight, Reply<api::Stats>),
    Metrics(Reply<String>),
    Sessions(Sight, Reply<api::SessionList>),
    Session(Sight, String, Reply<api::SessionDetails>),
    /// The end of a capture: the cell has handed over what it had of it.
    CaptureEnds(u32, Reply<api::CaptureEnded>),
    /// A comparison of all counters of drops.
    CountDrops,
    /// A look for services that packets no longer call.
    EndIdleCalls,
    /// A bill of what was used.
    Bill,
    /// The bill of a node that ends.
    LastBill,
}

/// What a cell is told of a service.
pub(crate) enum Facts {
    /// It has packets.
    Packets(ServiceFacts),
    /// It has connections.
    Streams(StreamFacts),
}

impl Facts {
    pub(crate) const fn entry(&self) -> EntryId {
        match self {
            Self::Packets(facts) => facts.entry,
            Self::Streams(facts) => facts.entry,
        }
    }
}

impl Daemon {
    pub(crate) fn start_cell(&mut self, restarts: u32) {
        if let Err(error) = self.try_start_cell() {
            tracing::error!(restarts, error = format!("{error:#}"), "the cell did not start");
            self.cell_lost(format!("{error:#}"));
        }
    }

    fn try_start_cell(&mut self) -> Result<()> {
        let queues = self.ports.iter().map(|p| p.queues).sum();
        let directory = crate::run_directory(&self.file.name);
        let cell = CellLink::spawn(&directory, queues, self.guest_core)?;
        match &self.kernel {
            KernelWay::Tun(device) => cell.send(&ToCell::Kernel, &[device.as_fd()])?,
            KernelWay::Frames(socket) => cell.send(&ToCell::KernelFrames, &[socket.as_fd()])?,
        }
        if let Some(up) = &self.up {
            cell.send(&ToCell::Up, &[up.as_fd()])?;
        }
        if let Ok(front) = self.front.front() {
            cell.send(&ToCell::Lanes, &[front.lanes_map().as_fd()])?;
            cell.send(&ToCell::Rooms, &[front.rooms_map().as_fd()])?;
            cell.send(&ToCell::Lines, &[front.lines_map().as_fd()])?;
            cell.send(&ToCell::RuleFacts, &[front.facts_map().as_fd()])?;
            if let Some(up) = &self.up {
                cell.send(&ToCell::Answers, &[up.as_fd(), front.answers_map().as_fd()])?;
            }
        }
        self.binding = 0;
        if let Some(capacity) = self.node.capacity() {
            cell.send(&ToCell::Memory(capacity.memory), &[])?;
        }
        cell.send(&ToCell::Codecs(self.codec_facts()), &[])?;
        tracing::info!(pid = cell.pid(), core = self.guest_core, "the cell starts");
        self.cell = Some(cell);
        self.tell_lines();
        if !self.captures.is_empty() {
            self.tap_cell();
        }
        self.begin_packets()?;
        (0..self.ports.len()).try_for_each(|index| self.open_queues(index))?;
        if self.binding == 0 {
            self.cell_ready();
        }
        Ok(())
    }

    /// Gives the cell a socket for each queue of a port that is there.
    pub(crate) fn open_queues(&mut self, index: usize) -> Result<()> {
        let port = &self.ports[index];
        let Some(cell) = self.cell.as_ref().filter(|_| port.away.is_none()) else {
            return Ok(());
        };
        if port.mode == Mode::Packet {
            return self.open_packets(index);
        }
        for queue in 0..port.queues {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
                .context("opening an AF_XDP socket")?;
            cell.send(&ToCell::AddPort(port.facts(queue)), &[socket.as_fd()])?;
            // Nobody has a reservation yet, and so a queue of its own.
            let session = SessionId::BEST_EFFORT;
            self.sockets.insert((port.port.id, queue), Queue { socket, session });
            self.binding += 1;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one effect")]
    pub(crate) fn start_service(
        &mut self,
        entry: EntryId,
        service: &Name,
        digest: &str,
        lanes: abi::Lanes,
        parameters: BTreeMap<String, Vec<u8>>,
        session: units::SessionId,
        levels: Vec<abi::Level>,
        functions: abi::HostFunctions,
        closed: bool,
        replaces: Option<StateWay>,
    ) {
        let module = digest.parse().ok().and_then(|d: Digest| Some((d, self.modules.get(&d)?)));
        let Some((digest, module)) = module else {
            let reason = format!("the module {digest} is no longer held");
            return self.not_begun(entry, replaces, reason);
        };
        // Whoever compiled it, and for whom: each who is to run it is asked.
        let imports = module.checked.imports.iter().copied().collect();
        if let Err(refused) = functions.permit(imports) {
            return self.not_begun(entry, replaces, refused.to_string());
        }
        if module.checked.kind == Kind::Streams {
            let start = Start { entry, service, session, parameters, closed, replaces };
            return self.start_streams(digest, start);
        }
        let manifest = &module.checked.manifest;
        let facts = Facts::Packets(ServiceFacts {
            entry,
            name: service.to_string(),
            session,
            window: manifest.window,
            memory_pages_min: module.checked.memory.pages_min,
            memory_pages_max: module.checked.memory.pages_max,
            // A node has one guest core so far: one instance is one for each core.
            lanes: match lanes {
                abi::Lanes::Count(count) => count,
                abi::Lanes::PerCore => 1,
            },
            pools: manifest.pools.clone(),
            flows_by: manifest.flows_by.clone(),
            timer_ms: manifest.timer_ms,
            brief: module.checked.brief.is_some(),
            parameters,
            refusals: manifest.refusals.clone(),
            functions,
            closed,
            shared: None,
            kept: KeptFacts { module: module.wasm.len() as u32, code: 0 },
        });
        self.begin_when_compiled(digest, Pending { facts, levels, replaces });
    }

    /// Has the cell stop a service; one that waits for its compiler never begins there.
    pub(crate) fn stop_service(&mut self, entry: EntryId) {
        match self.forget_pending(entry) {
            true => self.event_later(Event::ServiceStopped { entry }),
            false => self.tell(&ToCell::Stop(entry), &[]),
        }
    }

    /// What the cell has no part in is told when whoever gave the command waits for an answer.
    pub(crate) fn event_later(&self, event: Event) {
        let _ = self.done.send(Done::Happened(event));
    }

    pub(crate) fn happened(&mut self, event: Event) {
        if let Event::ServiceStopped { entry } = event {
            let state = self.node.service_of(entry).map(|service| &service.state);
            // The cell may have been lost meanwhile, and its entry be another one's.
            if !matches!(state, Some(ServiceState::Stopping | ServiceState::Bypassed { .. })) {
                return;
            }
        }
        self.event(event);
    }

    /// A service, or a version of one, does not begin.
    pub(crate) fn not_begun(&self, entry: EntryId, replaces: Option<StateWay>, reason: String) {
        self.event_later(match replaces {
            Some(_) => Event::ReplaceFailed { entry, reason },
            None => Event::ServiceFailed { entry, reason },
        });
    }

    pub(crate) fn begin_in_cell(&mut self, pending: Pending, compiled: &Arc<Compiled>) {
        let Pending { facts, levels, replaces } = pending;
        let facts = match facts {
            Facts::Packets(facts) => facts,
            Facts::Streams(facts) if replaces.is_some() => {
                return self.replace_streams(facts, compiled);
            }
            Facts::Streams(facts) => return self.begin_streams(facts, compiled),
        };
        if let Some(way) = replaces {
            return self.replace_in_cell(facts, levels, way, compiled);
        }
        let entry = facts.entry;
        if let Err(error) = self.try_start_in_cell(facts, compiled) {
            self.end_below(entry);
            return self.not_begun(entry, None, format!("{error:#}"));
        }
        let programs = Arc::clone(compiled);
        self.beginning.insert(entry, Begin { levels, programs, refused: Vec::new() });
        self.begin_early(entry);
        // While the cell works.
        self.keep_below(entry);
    }

    fn try_start_in_cell(
        &mut self,
        mut facts: ServiceFacts,
        compiled: &Arc<Compiled>,
    ) -> Result<()> {
        let entry = facts.entry;
        if let Some(lane) = self.front.lane(entry) {
            lane.set_session(facts.session);
        }
        // Before the cell has answered, and packets come below.
        self.accounts_unsettled = true;
        self.begin_meters(entry);
        facts.kept.code = compiled.code_length();
        facts.shared = self
            .share(entry, facts.window, compiled)
            .map_err(anyhow::Error::msg)
            .context("making the memory that it shares with the kernel")?;
        let mut fds = vec![compiled.code.as_fd()];
        fds.extend(self.shared_fds(entry));
        // Without one its loss has been told; it starts the service anew when it is back.
        if let Some(cell) = &self.cell {
            cell.send(&ToCell::Start(Box::new(facts)), &fds)?;
        }
        Ok(())
    }

    pub(crate) fn tell(&self, message: &ToCell, fds: &[std::os::fd::BorrowedFd<'_>]) {
        if let Some(cell) = &self.cell
            && let Err(error) = cell.send(message, fds)
        {
            tracing::error!(error = format!("{error:#}"), "the cell was not told");
        }
    }

    pub(crate) fn heard(&mut self, message: Result<Option<FromCell>>) {
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return self.cell_lost(String::new()),
            Err(error) => return self.cell_lost(format!("{error:#}")),
        };
        if self.cell.as_mut().is_some_and(|cell| cell.watch.handle_word()) {
            self.note(Note::new(EventKind::CellSilent, "the cell answers again"));
        }
        match message {
            FromCell::PortReady(port, queue) => self.bound(port, queue, Ok(())),
            FromCell::PortFailed(port, queue, reason) => self.bound(port, queue, Err(reason)),
            FromCell::Started(entry) => self.begin(entry),
            FromCell::StartFailed(entry, failure) => self.start_failed(entry, failure),
            FromCell::WantsSockets(wants) => self.make_sockets(wants),
            FromCell::WantsCodec(number, wish) => self.start_codec(number, &wish),
            FromCell::CodecUnwanted(number) => self.stop_codec(number),
            FromCell::Replaced(entry, paused_us) => self.replaced(entry, paused_us),
            FromCell::ReplaceFailed(entry, failure) => self.replace_failed(entry, failure),
            FromCell::Kept(entry) => self.version_kept(entry),
            FromCell::PutBack(entry, reason) => self.put_back(entry, reason),
            FromCell::Targeted(entry) => self.targeted(entry, true),
            FromCell::TargetFailed(entry) => self.targeted(entry, false),
            FromCell::Recounting(entry) => self.recounting(entry),
            FromCell::Settled(entry) => self.settled(entry),
            FromCell::Stopped(entry, report) => {
                self.reports.insert(entry, *report);
                self.end_streams(entry);
                self.end_below(entry);
                self.reports.remove(&entry);
                self.event(Event::ServiceStopped { entry });
            }
            FromCell::Trapped(entry, lane, trap, traps) => {
                let service = self.name_of(entry);
                let text = format!("the module trapped in lane {lane} and was replaced: {trap}");
                self.note(Note::new(EventKind::ServiceTrapped, text).service(service));
                self.event(Event::ServiceTrapped { entry, traps, reason: trap });
            }
            FromCell::Event(entry, code, data) => {
                let service = self.name_of(entry);
                let text = format!("the module says: {}", hex(&data));
                let note = Note::new(EventKind::ModuleEvent, text).service(service);
                self.note(note.reason(format!("code {code}")));
            }
            FromCell::Said(entry, text) => {
                let service = self.name_of(entry);
                let note = Note::new(EventKind::ModuleEvent, format!("the module says: {text}"));
                self.note(note.service(service));
            }
            FromCell::Answered(entry, answers) => {
                let place = self.messages.iter().position(|(waits, _)| *waits == entry);
                if let Some((_, reply)) = place.and_then(|at| self.messages.remove(at)) {
                    let schema_version = api::SCHEMA_VERSION;
                    reply.ok(api::MessageAnswers { schema_version, answers });
                }
            }
            FromCell::Service(entry, report) => {
                self.reports.insert(entry, *report);
            }
            FromCell::Sessions(reports) => self.sessions.heard(reports),
            FromCell::SessionsReported => self.sessions_reported(),
            FromCell::MemoryOf(rest, session) => self.memory_told(rest, session),
            FromCell::Associated(id) => self.associated(id),
            FromCell::Calls(question) => self.packets_call(question),
            FromCell::Tapped(tapped) => self.tapped(&tapped),
            FromCell::Reported(report) => {
                self.cell_report = *report;
                self.memory_reported(report.memory_rest);
                self.sessions_reported();
                self.reported();
            }
            FromCell::Adopted(_) | FromCell::Given(_) => {
                tracing::warn!("the cell answers what nobody asked any more");
            }
        }
    }

    fn start_failed(&mut self, entry: EntryId, failure: Failure) {
        self.end_streams(entry);
        self.end_below(entry);
        let Failure { reason, is_short } = failure;
        self.refused_as(is_short, Event::ServiceFailed { entry, reason });
    }

    /// An event by which somebody is refused something, because there is not enough of it or for
    /// another reason.
    pub(crate) fn refused_as(&mut self, is_short: bool, event: Event) {
        self.event(event);
        self.is_short = is_short;
        // Whoever waits for it hears now.
        self.do_effects();
        self.is_short = false;
    }

    fn name_of(&self, entry: EntryId) -> String {
        self.node.service_of(entry).map_or_else(|| entry.to_string(), |s| s.name.to_string())
    }

    fn bound(&mut self, port: PortId, queue: u32, result: Result<(), String>) {
        let result = result.and_then(|()| {
            if self.packets.contains_key(&port) {
                return self.take_frames(port).map_err(|error| format!("{error:#}"));
            }
            let socket = self.sockets.get(&(port, queue)).map(|queue| queue.socket.as_fd());
            self.front.set_socket(port, queue, socket).map_err(|error| error.to_string())
        });
        if let Err(reason) = result {
            tracing::error!(%port, queue, reason, "a queue has no socket: its packets go plainly");
        }
        self.binding = self.binding.saturating_sub(1);
        if self.binding == 0 {
            self.cell_ready();
        }
    }

    fn cell_ready(&mut self) {
        let pid = self.cell.as_ref().map_or(0, CellLink::pid);
        let text = format!("the cell, process {pid}, takes packets");
        self.note(Note::new(EventKind::CellReady, text));
        self.event(Event::CellReady);
    }

    /// Looks whether the cell still answers. Called once a second.
    pub(crate) fn watch_cell(&mut self) {
        let Some(cell) = &mut self.cell else { return };
        let pid = cell.pid();
        match cell.watch.look() {
            Look::Ask => self.tell(&ToCell::MemoryOf(None), &[]),
            Look::Wait => {}
            Look::Tell => {
                let text = format!(
                    "the cell, process {pid}, does not answer: packets for its services wait, and so does whatever changes them; it is ended if it is silent for {ENDED_AFTER} s"
                );
                self.note(Note::new(EventKind::CellSilent, text));
            }
            Look::End => self.cell_lost(format!("it has not answered for {ENDED_AFTER} s")),
        }
    }

    fn cell_lost(&mut self, why: String) {
        let ended = self.cell.take().map_or_else(String::new, CellLink::end);
        let sockets = std::mem::take(&mut self.sockets);
        for (port, queue) in sockets.keys() {
            // A socket that was not bound yet is not in the map.
            let _ = self.front.set_socket(*port, *queue, None);
        }
        let packets: Vec<PortId> = self.packets.keys().copied().collect();
        self.lost_with_cells +=
            packets.into_iter().map(|port| self.close_packets(port)).sum::<u64>();
        // One that was not bound yet has nothing, either.
        let left = sockets.values().filter_map(|q| cell::left_behind(q.socket.as_fd()).ok());
        self.lost_with_cells += left.sum::<u64>();
        let shared: Vec<EntryId> = self.shared.keys().copied().collect();
        shared.iter().for_each(|entry| self.end_below(*entry));
        self.compilers.forget_all_pending();
        self.codecs.end();
        self.end_all_meters();
        self.reports.clear();
        self.sessions.cell_lost();
        self.beginning.clear();
        self.replacing.clear();
        self.retired.clear();
        self.kept.clear();
        self.settling.clear();
        // Their senders hear that nobody answers any more.
        self.messages.clear();
        self.end_associations();
        self.memory_unknown();
        self.reported();
        let reason = [why, ended].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>();
        self.event(Event::CellLost { reason: reason.join("; ") });
        // First the front door: what it still marks would be routed to the server.
        self.do_effects();
        // What closed services dropped until their rules said so.
        shared.into_iter().for_each(|entry| self.clear_counters(entry));
        self.sweep_interceptions();
    }

    /// Does something when the cell has told how its services are.
    pub(crate) fn after_report(&mut self, then: AfterReport) {
        self.wanting_report.push(then);
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

    pub(crate) fn reported(&mut self) {
        self.report_number += 1;
        for then in std::mem::take(&mut self.wanting_report) {
            self.go_on_reported(then);
        }
    }

    fn go_on_reported(&mut self, then: AfterReport) {
        match then {
            AfterReport::Services(sight, reply) => reply.ok(self.seen_services(&sight)),
            AfterReport::Service(wanted, reply) => reply.answer(self.find_service(&wanted)),
            AfterReport::Stats(sight, reply) => reply.answer(self.seen_stats(&sight)),
            AfterReport::Metrics(reply) => reply.answer(self.metrics_page()),
            AfterReport::Sessions(sight, reply) => reply.answer(self.session_list(&sight)),
            AfterReport::Session(sight, wanted, reply) => {
                reply.answer(self.session_details(&sight, &wanted));
            }
            AfterReport::CaptureEnds(id, reply) => reply.answer(self.capture_ended(id)),
            AfterReport::CountDrops => self.count_drops(),
            AfterReport::EndIdleCalls => self.look_at_called(),
            AfterReport::Bill => self.bill_now(),
            AfterReport::LastBill => self.bill_last(),
        }
    }
}

/// The next message of the cell; pending while there is none.
pub(crate) async fn hear(cell: &mut Option<CellLink>) -> Result<Option<FromCell>> {
    match cell {
        Some(cell) => cell.receive().await,
        None => std::future::pending().await,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
