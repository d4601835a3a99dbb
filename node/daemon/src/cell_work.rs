//! The daemon and its cell: what one tells the other, and what follows.

use crate::cells::{AfterReport, CellLink, CellNumber, SILENT_MAX, Silence};
use crate::compilers;
use crate::control::called::Wanted;
use crate::control::memory::used_by;
use crate::control::placement::Candidates;
use crate::daemon::{Daemon, Done};
use crate::dataplane::instances::Make;
use crate::dataplane::interceptions::make_sockets;
use crate::events::Note;
use crate::observe::counters::seen_stats;
use crate::observe::documents::services::{find_service, seen_services};
use crate::observe::documents::sessions::{session_details, session_list};
use crate::observe::metrics::metrics_page;
use crate::pending::{Facts, Pending, packet_facts, stream_facts};
use abi::check::Kind;
use anyhow::{Context, Result};
use api::EventKind;
use cell::Compiled;
use cell::protocol::{Failure, FromCell, ServiceFacts, StateWay, StreamFacts, ToCell};
use module_store::Digest;
use node::{Event, ServiceStart};
use session::admission::MemoryUsed;
use std::os::fd::AsFd;
use std::sync::Arc;
use tokio::time::Duration;
use units::{EntryId, PortId};

/// A cell that does not report within this time is shown as it was.
const REPORT_WITHIN: Duration = Duration::from_secs(2);

impl Daemon {
    pub(crate) fn start_cell(&mut self, restarts: u32) {
        let number = CellNumber::FIRST;
        if let Err(error) = self.try_start_cell(number) {
            tracing::error!(restarts, error = format!("{error:#}"), "the cell did not start");
            self.cell_lost(number, format!("{error:#}"));
        }
    }

    fn try_start_cell(&mut self, number: CellNumber) -> Result<()> {
        let queues = self.plane.ports().iter().map(|p| p.queues()).sum();
        let directory = crate::run_directory(&self.file.name);
        let cell = CellLink::spawn(&directory, queues, self.guest_core)?;
        for (message, fds) in self.plane.device_messages() {
            cell.send(&message, &fds)?;
        }
        if let Some(capacity) = self.control.node().capacity() {
            cell.send(&ToCell::Memory(capacity.memory), &[])?;
        }
        cell.send(&ToCell::Codecs(self.cells.codec_facts()), &[])?;
        tracing::info!(pid = cell.pid(), core = self.guest_core, "the cell starts");
        self.cells.insert(number, cell);
        if let Some(tap) = self.observe.first_tap() {
            self.cells.tell_cell(number, &tap, &[]);
        }
        self.try_with_plane(|plane, around| plane.handle_cell_started(around))?;
        if self.cells.is_bound(number) {
            self.cell_ready(number);
        }
        Ok(())
    }

    /// Starts a service, or another version of one, once its module is compiled.
    pub(crate) fn start_service(&mut self, start: ServiceStart, replaces: Option<StateWay>) {
        let ServiceStart { entry, digest, .. } = &start;
        let module =
            digest.parse().ok().and_then(|d: Digest| Some((d, self.control.modules().get(&d)?)));
        let Some((digest, module)) = module else {
            let reason = format!("the module {digest} is no longer held");
            return self.not_begun(*entry, replaces, reason);
        };
        // Whoever compiled it, and for whom: each who is to run it is asked.
        let imports = module.checked.imports.iter().copied().collect();
        if let Err(refused) = start.functions.permit(imports) {
            return self.not_begun(*entry, replaces, refused.to_string());
        }
        let pending = match module.checked.kind {
            Kind::Streams => Pending {
                facts: Facts::Streams(stream_facts(start, module)),
                levels: vec![abi::Level::User],
                replaces,
            },
            Kind::Packets => {
                let levels = start.levels.clone();
                Pending { facts: Facts::Packets(packet_facts(start, module)), levels, replaces }
            }
        };
        self.compilers.begin(self.control.state(), digest, pending);
        self.do_compiled();
    }

    /// Has the cell stop a service; one that waits for its compiler never begins there.
    pub(crate) fn stop_service(&mut self, entry: EntryId) {
        let was_to_start = self.compilers.forget(self.control.state(), &mut self.billing, entry);
        match was_to_start {
            true => self.event_later(Event::ServiceStopped { entry }),
            false => self.cells.tell(entry, &ToCell::Stop(entry)),
        }
    }

    /// Does what follows from compilations.
    pub(crate) fn do_compiled(&mut self) {
        while let Some(action) = self.compilers.poll_action() {
            match action {
                compilers::Action::Begin(pending, compiled) => {
                    self.begin_in_cell(*pending, &compiled);
                }
                compilers::Action::Fail { entry, replaces, reason } => {
                    self.not_begun(entry, replaces, reason);
                }
            }
        }
    }

    /// What the cell has no part in is told when whoever gave the command waits for an answer.
    pub(crate) fn event_later(&self, event: Event) {
        let _ = self.done.send(Done::Happened(event));
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
        let candidates = Candidates { levels, unfit: compiled.refused() };
        self.place(|it, around| it.handle_given(around, entry, candidates));
        // While the cell works.
        self.plane.keep_instance(entry);
    }

    /// Starts a service of streams, now that its module is compiled.
    fn begin_streams(&mut self, facts: StreamFacts, compiled: &Arc<Compiled>) {
        let entry = facts.entry;
        self.billing.begin_service(self.control.state(), self.now(), entry);
        match self.try_start_streams(facts, compiled) {
            Ok(Some(port)) => {
                self.event(Event::ServiceListens { entry, port });
                self.settle_gro(None);
            }
            // Its loss has been told; another one starts the service anew.
            Ok(None) => {}
            Err(error) => self.not_begun(entry, None, format!("{error:#}")),
        }
    }

    /// Gives the cell a new version of a service of streams, now that its module is compiled.
    fn replace_streams(&mut self, mut facts: StreamFacts, compiled: &Arc<Compiled>) {
        let entry = facts.entry;
        facts.kept.code = compiled.code_length();
        self.plane.services().begin_next(entry);
        let message = ToCell::ReplaceStreams(Box::new(facts));
        match self.cells.send(entry, &message, &[compiled.code.as_fd()]) {
            Ok(()) => self.place(|it, _| {
                let levels = vec![abi::Level::User];
                let candidates = Candidates { levels, unfit: Vec::new() };
                it.handle_version_given(entry, candidates);
            }),
            Err(error) => {
                self.plane.services().forget_next(entry);
                self.event_later(Event::ReplaceFailed { entry, reason: format!("{error:#}") })
            }
        }
    }

    fn try_start_streams(
        &mut self,
        mut facts: StreamFacts,
        compiled: &Arc<Compiled>,
    ) -> Result<Option<u16>> {
        let entry = facts.entry;
        if !self.cells.has_cell_of(entry) {
            return Ok(None);
        }
        facts.kept.code = compiled.code_length();
        let intercepted = self.plane.intercept()?;
        let fds: Vec<_> = [compiled.code.as_fd()].into_iter().chain(intercepted.fds()).collect();
        if let Err(error) = self.cells.send(entry, &ToCell::StartStreams(Box::new(facts)), &fds) {
            drop(intercepted);
            self.with_plane(|plane, _| plane.sweep_interceptions());
            return Err(error);
        }
        Ok(Some(intercepted.port()))
    }

    /// Ends what a service had of streams, if it had some.
    fn end_streams(&mut self, entry: EntryId) {
        let service = self.control.node().service_of(entry);
        if service.is_some_and(|service| service.module.kind == Kind::Streams) {
            self.with_plane(|plane, _| plane.sweep_interceptions());
            self.settle_gro(Some(entry));
        }
    }

    /// Returns the parameters of the instance that a service or a version runs on.
    pub(crate) fn make_for<'a>(&self, facts: &ServiceFacts, code: &'a Arc<Compiled>) -> Make<'a> {
        let entry = facts.entry;
        let session = self.control.node().service_of(entry).map(|service| service.session.clone());
        let ports = self.plane.ports().iter().map(|port| port.id()).collect();
        Make { entry, window: facts.window, code, session, ports }
    }

    fn try_start_in_cell(
        &mut self,
        mut facts: ServiceFacts,
        compiled: &Arc<Compiled>,
    ) -> Result<()> {
        let entry = facts.entry;
        if let Some(lane) = self.plane.front().lane(entry) {
            lane.set_session(facts.session);
        }
        // Before the cell has answered, and packets come below.
        self.plane.promises().mark_unsettled();
        self.billing.begin_service(self.control.state(), self.now(), entry);
        facts.kept.code = compiled.code_length();
        let make = self.make_for(&facts, compiled);
        facts.shared = self
            .plane
            .services()
            .share(make)
            .map_err(anyhow::Error::msg)
            .context("making the memory that it shares with the kernel")?;
        let mut fds = vec![compiled.code.as_fd()];
        fds.extend(self.plane.instances().fds(entry));
        // Without one its loss has been told; it starts the service anew when it is back.
        if self.cells.has_cell_of(entry) {
            self.cells.send(entry, &ToCell::Start(Box::new(facts)), &fds)?;
        }
        Ok(())
    }

    /// Handles a message of a cell; `None` when its connection is closed.
    pub(crate) fn heard(&mut self, cell: CellNumber, message: Result<Option<FromCell>>) {
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return self.cell_lost(cell, String::new()),
            Err(error) => return self.cell_lost(cell, format!("{error:#}")),
        };
        if self.cells.handle_word(cell) {
            self.note(Note::new(EventKind::CellSilent, "the cell answers again"));
        }
        match message {
            FromCell::PortReady(port, queue) => self.bound(cell, port, queue, Ok(())),
            FromCell::PortFailed(port, queue, reason) => self.bound(cell, port, queue, Err(reason)),
            FromCell::Started(entry) => self.place(|it, around| it.handle_begin(around, entry)),
            FromCell::StartFailed(entry, failure) => self.start_failed(entry, failure),
            FromCell::WantsSockets(wants) => {
                for (wanted, v6) in wants.into_iter().zip([false, true]) {
                    for (message, fds) in make_sockets(wanted, v6) {
                        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                        self.cells.tell_cell(cell, &message, &fds);
                    }
                }
            }
            FromCell::WantsCodec(number, wish) => {
                self.cells.handle_codec_wish(cell, number, &wish);
            }
            FromCell::CodecUnwanted(number) => self.cells.handle_codec_unwanted(cell, number),
            FromCell::Replaced(entry, paused_us) => {
                self.place(|it, around| it.handle_replaced(around, entry, paused_us));
            }
            FromCell::ReplaceFailed(entry, failure) => {
                let Failure { reason, is_short } = failure;
                self.place(|it, around| it.handle_replace_failed(around, entry, reason, is_short));
            }
            FromCell::Kept(entry) => self.place(|it, around| it.handle_kept(around, entry)),
            FromCell::PutBack(entry, reason) => {
                self.place(|it, around| it.handle_put_back(around, entry, reason));
            }
            FromCell::Targeted(entry) => {
                self.place(|it, around| it.handle_targeted(around, entry, true));
            }
            FromCell::TargetFailed(entry) => {
                self.place(|it, around| it.handle_targeted(around, entry, false));
            }
            FromCell::Recounting(entry) => {
                // Packets carry the new count: what came before will be in a ring soon, or is lost.
                self.when_packets_have_landed(Done::Landed(entry));
            }
            FromCell::Settled(entry) => self.place(|it, around| it.handle_settled(around, entry)),
            FromCell::Stopped(entry, report) => {
                self.cells.handle_service_report(cell, entry, *report);
                self.end_streams(entry);
                self.end_below(entry);
                self.cells.forget_service(entry);
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
            FromCell::Answered(entry, answers) => self.cells.handle_answers(entry, answers),
            FromCell::Service(entry, report) => {
                self.cells.handle_service_report(cell, entry, *report)
            }
            FromCell::Sessions(reports) => self.sessions.heard(reports),
            FromCell::SessionsReported => self.sessions_reported(),
            FromCell::MemoryOf(rest, session) => {
                let mut used = self.control.node().memory_used();
                used.rest = rest;
                used.by.extend(session.map(|(id, account)| (id, used_by(&account))));
                self.control.handle_memory(Some(used));
            }
            FromCell::Associated(id) => {
                if let Some(neighbours) = &mut self.neighbours {
                    neighbours.handle_associated(id);
                }
            }
            FromCell::Calls(question) => {
                let sender = self.neighbours.as_ref().and_then(|it| it.sender_of(question));
                if let Some(sender) = sender {
                    self.control.set_now(self.now());
                    self.control.handle_call(Wanted { question, sender });
                }
            }
            FromCell::Tapped(tapped) => {
                let (observe, view) = self.observe();
                observe.handle_tapped(&view, &tapped);
            }
            FromCell::Reported(report) => {
                let (rest, by) = (report.memory_rest, self.sessions.memory_used());
                self.control.set_memory_used(MemoryUsed { rest, by });
                self.sessions_reported();
                self.cells.handle_reported(cell, *report);
                self.go_on_reported();
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
        self.control.handle_event(Event::ServiceFailed { entry, reason }, is_short);
    }

    fn name_of(&self, entry: EntryId) -> String {
        self.control
            .node()
            .service_of(entry)
            .map_or_else(|| entry.to_string(), |s| s.name.to_string())
    }

    fn bound(&mut self, cell: CellNumber, port: PortId, queue: u32, result: Result<(), String>) {
        let result = result.and_then(|()| self.with_plane(|plane, _| plane.bind(port, queue)));
        if let Err(reason) = result {
            tracing::error!(%port, queue, reason, "a queue has no socket: its packets go plainly");
        }
        if self.cells.handle_bound(cell) {
            self.cell_ready(cell);
        }
    }

    fn cell_ready(&mut self, cell: CellNumber) {
        let pid = self.cells.pid(cell).unwrap_or(0);
        let text = format!("the cell, process {pid}, takes packets");
        self.note(Note::new(EventKind::CellReady, text));
        self.event(Event::CellReady);
    }

    /// Checks whether cells still answer. Called once a second.
    pub(crate) fn watch_cells(&mut self) {
        for silence in self.cells.handle_second() {
            match silence {
                Silence::Told { pid } => {
                    let text = format!(
                        "the cell, process {pid}, does not answer: packets for its services wait, and so does whatever changes them; it is ended if it is silent for {SILENT_MAX} s"
                    );
                    self.note(Note::new(EventKind::CellSilent, text));
                }
                Silence::Over(cell, why) => self.cell_lost(cell, why),
            }
        }
    }

    fn cell_lost(&mut self, cell: CellNumber, why: String) {
        let ended = self.cells.remove(cell).unwrap_or_default();
        self.plane.handle_cell_lost();
        let shared: Vec<EntryId> = self.plane.instances().entries().collect();
        shared.iter().for_each(|entry| self.end_below(*entry));
        self.compilers.forget_all_pending();
        self.cells.end_codecs();
        let (billing, counters) = self.counters();
        billing.end_services(&counters);
        // Once, however many there were: the next daemon needs all of them or none.
        self.remember();
        self.cells.forget_reports(cell);
        self.sessions.cell_lost();
        self.placement.handle_cells_lost();
        self.plane.services().forget_versions();
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_all(&mut self.control, &self.cells);
        }
        self.control.handle_memory(None);
        self.go_on_reported();
        let reason = [why, ended].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>();
        self.event(Event::CellLost { reason: reason.join("; ") });
        // First the front door: what it still marks would be routed to the server.
        self.settle();
        // What closed services dropped until their rules said so.
        shared.into_iter().for_each(|entry| self.clear_counters(entry));
        self.with_plane(|plane, _| plane.sweep_interceptions());
    }

    /// Runs an action after the next report of all cells.
    pub(crate) fn after_report(&mut self, then: AfterReport) {
        if let Some(number) = self.cells.ask_report(then) {
            let done = self.done.clone();
            tokio::spawn(async move {
                tokio::time::sleep(REPORT_WITHIN).await;
                let _ = done.send(Done::ReportOverdue(number));
            });
        }
        self.go_on_reported();
    }

    /// Runs the actions whose reports are complete.
    pub(crate) fn go_on_reported(&mut self) {
        while let Some(then) = self.cells.poll_reported() {
            self.do_reported(then);
        }
    }

    fn do_reported(&mut self, then: AfterReport) {
        match then {
            AfterReport::Services(sight, reply) => reply.ok(seen_services(&self.view(), &sight)),
            AfterReport::Service(wanted, reply) => {
                reply.answer(find_service(&self.view(), &wanted))
            }
            AfterReport::Stats(sight, reply) => reply.answer(seen_stats(&self.view(), &sight)),
            AfterReport::Metrics(reply) => {
                reply.answer(metrics_page(&self.view(), self.observe.events_told()))
            }
            AfterReport::Sessions(sight, reply) => reply.answer(session_list(&self.view(), &sight)),
            AfterReport::Session(sight, wanted, reply) => {
                reply.answer(session_details(&self.view(), &sight, &wanted));
            }
            AfterReport::CaptureEnds(id, reply) => {
                let (observe, view) = self.observe();
                let ended = observe.end_capture(&view, id);
                self.tell_taps();
                reply.answer(ended);
            }
            AfterReport::CountDrops => {
                let (observe, view) = self.observe();
                observe.count_drops(&view);
            }
            AfterReport::EndIdleCalls => {
                let packets_of =
                    |entry| self.cells.report_of(entry).map_or(0, |report| report.packets);
                self.control.end_idle_calls(&packets_of);
            }
            AfterReport::Bill => {
                let (billing, counters) = self.counters();
                billing.read_all(&counters);
                self.write_bill();
            }
            AfterReport::LastBill => {
                let (billing, counters) = self.counters();
                billing.read_all(&counters);
                billing.end_all();
                self.write_bill();
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
