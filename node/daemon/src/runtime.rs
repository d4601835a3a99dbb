//! Execution of services: cells, the data plane, placement between them, compilers, and the meters
//! of what they use.
//!
//! ```text
//!  effects of core/node ─▶ ┌─────────┐ ─▶ cells
//!  messages of cells ────▶ │ Runtime │ ─▶ data plane
//!  completions ──────────▶ └─────────┘ ─▶ events for control; poll_action
//! ```
//!
//! The runtime decides nothing about what shall run: that is control's, which comes with each call.

mod effects;
mod messages;
mod placing;
mod plane;
mod start;

use crate::cells::{
    AfterReport, CellLink, CellNumber, Cells, CodecNews, CodecNumber, SILENT_MAX, WatchdogFinding,
};
use crate::clock::Clock;
use crate::compilers::{Compilers, Completed};
use crate::control::Control;
use crate::control::placement::{Around, Placement};
use crate::dataplane::instances::{Loaded, word_of};
use crate::dataplane::{self, DataPlane};
use crate::done::Done;
use crate::events::Note;
use crate::ledger::{Billing, Counters};
use crate::reply::Reply;
use crate::sessions::capacity::capacity_of;
use crate::usage::{self, Usage};
use abi::Level;
use abi::check::Kind;
use anyhow::{Context, Result};
use api::EventKind;
use association::AssociationId;
use cell::CallQuestion;
use cell::protocol::{CapturedFrame, FromCell, ToCell};
use module_store::Digest;
use node::{Effect, Event};
use session::in_kernel::Speed;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Duration;
use units::{Bytes, EntryId, Name, Packets, RuleId};

/// Time within which a cell reports; after that, documents show its last report.
const REPORT_WITHIN: Duration = Duration::from_secs(2);
/// Largest number of messages of a cell that are handled before what follows from them is done.
const MESSAGES_AT_ONCE: usize = 256;

/// Consequence of a message or of a call that another owner is to handle.
pub(crate) enum Action {
    /// A cell has started, and must be sent the captures.
    CellStarted(CellNumber),
    /// A cell has ended, or does not answer, with the reason.
    CellLost(CellNumber, String),
    /// Cells have the keys of an association.
    Associated(AssociationId),
    /// Active packets call a module.
    Calls(CallQuestion),
    /// A cell has seen a packet that a capture wants.
    CapturedFrame(Box<CapturedFrame>),
}

/// Rest of a cell that is lost.
pub(crate) struct Lost {
    /// Reason that it gave for its end.
    pub(crate) reason: String,
    /// Entries of services that could leave user level.
    shared: Vec<EntryId>,
}

/// Execution of the services of a node.
pub(crate) struct Runtime {
    /// Run directory of the node.
    directory: PathBuf,
    /// Core that runs modules.
    guest_core: usize,
    clock: Clock,
    plane: DataPlane,
    cells: Cells,
    placement: Placement,
    compilers: Compilers,
    usage: Usage,
    /// True when `core/node` changed since its effects were done.
    node_changed: bool,
    /// True when something changed that the record of what runs has.
    is_dirty: bool,
    actions: VecDeque<Action>,
    done: UnboundedSender<Done>,
}

impl Runtime {
    /// Creates the execution of services of a node, without a cell. The first argument has its run
    /// directory, the core that runs modules, and its clock.
    pub(crate) fn new(
        (directory, guest_core, clock): (PathBuf, usize, Clock),
        plane: DataPlane,
        cells: Cells,
        compilers: Compilers,
        usage: Usage,
        done: UnboundedSender<Done>,
    ) -> Self {
        Self {
            directory,
            guest_core,
            clock,
            plane,
            cells,
            placement: Placement::default(),
            compilers,
            usage,
            node_changed: true,
            is_dirty: false,
            actions: VecDeque::new(),
            done,
        }
    }

    /// Returns the data plane.
    pub(crate) const fn plane(&self) -> &DataPlane {
        &self.plane
    }

    /// Returns the cells.
    pub(crate) const fn cells(&self) -> &Cells {
        &self.cells
    }

    /// Returns the compilers.
    pub(crate) const fn compilers(&self) -> &Compilers {
        &self.compilers
    }

    /// Returns what is used.
    pub(crate) const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns what is billed, to be changed.
    pub(crate) const fn billing(&mut self) -> &mut Billing {
        self.usage.billing_mut()
    }

    /// Takes over what a previous daemon counted, the packets that were lost with its cells, and
    /// the speed that it measured.
    pub(crate) fn adopt(&mut self, before: usage::Before, lost: u64, speed: Option<Speed>) {
        self.usage.adopt(before);
        self.plane.resume(lost, speed);
    }

    /// Takes over the cell that a previous daemon started.
    pub(crate) fn adopt_cell(&mut self, control: &Control, link: CellLink) {
        self.cells.insert(CellNumber::FIRST, link);
        self.send_memory(control);
    }

    /// Applies an effect of `core/node`.
    pub(crate) fn do_effect(&mut self, control: &mut Control, effect: Effect) {
        effects::do_effect(self, control, effect);
    }

    /// Returns the next consequence that another owner is to handle.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the next action whose reports of cells are complete.
    pub(crate) fn poll_reported(&mut self) -> Option<AfterReport> {
        self.cells.poll_reported()
    }

    /// Returns the next message of any cell; `None` when that cell is gone. Dropping this future
    /// loses nothing.
    pub(crate) async fn receive(&mut self) -> (CellNumber, Result<Option<FromCell>>) {
        self.cells.receive().await
    }

    /// Returns whether something changed, since this was last asked, that the record of what runs
    /// has.
    pub(crate) fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.is_dirty) | self.usage.billing_mut().take_changed()
    }

    /// Notes whether `core/node` changed since its effects were done.
    pub(crate) fn set_node_changed(&mut self, is_changed: bool) {
        self.node_changed = is_changed;
    }

    /// Returns true while a service is on its way to another level.
    pub(crate) fn is_moving(&self) -> bool {
        self.placement.is_moving()
    }

    /// Compiles a module, for the levels below user too if `below`, unless that is under way.
    pub(crate) fn compile(&mut self, control: &Control, digest: Digest, below: bool) {
        self.compilers.compile(control.state(), digest, below);
    }

    /// Compiles the modules of all services that have no code.
    pub(crate) fn compile_running(&mut self, control: &Control) {
        self.compilers.compile_running(control.state());
    }

    /// Handles the completion of a compiler's job.
    pub(crate) fn handle_compiler(&mut self, control: &mut Control, completed: Completed) {
        self.compilers.handle(control.state(), completed);
        start::do_compiled(self, control);
    }

    /// Moves a service that is on its way back to the level that the node says it is at.
    pub(crate) fn stay_at(&mut self, control: &mut Control, entry: EntryId, level: Level) {
        if self.placement.is_moved(entry) {
            self.place(control, |it, around| it.handle_move(around, entry, level));
        }
    }

    /// Handles the loss of a cell: everything that ran there has ended. Returns what the cell said
    /// of its end. [`Runtime::sweep`] is to follow when the front door knows of it.
    pub(crate) fn handle_cell_lost(&mut self, control: &mut Control, cell: CellNumber) -> Lost {
        let reason = self.cells.remove(cell).unwrap_or_default();
        self.plane.handle_cell_lost();
        let shared: Vec<EntryId> = self.plane.instances().entries().collect();
        shared.iter().for_each(|entry| self.end_below(control, *entry));
        self.compilers.forget_all_pending();
        self.cells.end_codecs();
        let (billing, counters) = self.counters(control);
        billing.end_services(&counters);
        self.cells.forget_reports(cell);
        self.usage.sessions_mut().cell_lost();
        self.placement.handle_cells_lost();
        self.plane.services().forget_versions();
        Lost { reason, shared }
    }

    /// Clears what a lost cell has left: counters of what closed services dropped until their rules
    /// said so, and interceptions.
    pub(crate) fn sweep(&mut self, control: &mut Control, lost: Lost) {
        lost.shared.into_iter().for_each(|entry| self.clear_counters(entry));
        self.with_plane(control, |plane, _| plane.sweep_interceptions());
    }

    /// Calls the placement, and handles the actions that follow.
    pub(crate) fn place(
        &mut self,
        control: &mut Control,
        ask: impl FnOnce(&mut Placement, &mut Around<'_>),
    ) {
        placing::placing(self, control, ask);
        self.do_placements(control);
    }

    /// Handles the pending actions of the placement.
    pub(crate) fn do_placements(&mut self, control: &mut Control) {
        while let Some(action) = self.placement.poll_action() {
            placing::do_placement(self, control, action);
        }
    }

    /// Continues with a program that the kernel has accepted or refused.
    pub(crate) fn loaded(&mut self, control: &mut Control, loaded: Loaded) {
        let (entry, level) = (loaded.entry, loaded.level);
        let result = self.plane.services().handle_loaded(loaded);
        if let Some(result) = result {
            self.place(control, |it, around| it.handle_loaded(around, entry, level, result));
        }
    }

    /// Drains a service; one that cannot be drained is removed at once.
    pub(crate) fn drain(&mut self, control: &mut Control, entry: EntryId) {
        let has_cell = self.cells.has_cell_of(entry);
        match has_cell && placing::placing(self, control, |it, around| it.leave(around, entry)) {
            true => self.do_placements(control),
            false => control.handle_drained(entry),
        }
    }

    /// Cancels the draining of a service whose removal was refused.
    pub(crate) fn cancel_drain(&mut self, control: &mut Control, entry: EntryId) {
        let node = control.node();
        let Some(found) = node.service_of(entry) else { return };
        let (level, closed) = (found.level, node.is_closed(found));
        self.place(control, |it, around| it.return_to_user(around, entry, level, closed));
    }

    /// Moves a service of an adopted cell to the level that the node says it is at.
    pub(crate) fn stay(&mut self, control: &mut Control, entry: EntryId, cell_has: u32) {
        let level = control.node().service_of(entry).map(|service| service.level);
        let is_elsewhere = level.is_some_and(|level| word_of(level) != cell_has);
        if is_elsewhere && !self.placement.is_moved(entry) {
            self.place(control, |it, around| it.handle_stray(around, entry));
        }
    }

    /// Releases a service that has ended: meters, placement, instance.
    fn end_below(&mut self, control: &mut Control, entry: EntryId) {
        let (billing, counters) = self.counters(control);
        billing.end_service(&counters, entry);
        self.place(control, |it, around| it.forget(around, entry));
        let Some(ended) = self.plane.services().end(entry) else { return };
        if let Some(session) = ended.session {
            self.usage.add_fuel(session, ended.fuel);
        }
        if ended.was_at_kernel {
            self.settle_gro(control, Some(entry));
        }
        if let Some(number) = ended.spare {
            self.when_packets_have_landed(Done::SpareReady(number));
        }
    }

    /// Sets GRO at the ports. It is on while there are services of streams, for it saves most of
    /// the cost of receiving intercepted connections, and off while a service is at kernel level,
    /// which has to see each frame by itself. `but` is the entry of a service that has ended.
    fn settle_gro(&mut self, control: &mut Control, but: Option<EntryId>) {
        self.plane.settle_gro(control.node(), &self.placement, but);
    }

    /// Marks a reusable instance as ready.
    pub(crate) fn reusable_ready(&mut self, control: &mut Control, number: u32) {
        let entry = self.plane.services().handle_spare_ready(number);
        // Packets counted last by a removed service are not billed.
        if let Some(entry) = entry.filter(|entry| control.node().service_of(*entry).is_none()) {
            self.clear_counters(entry);
        }
    }

    /// Clears the counters of an entry. What was dropped there because its service is closed and
    /// its program gone stays counted.
    fn clear_counters(&mut self, entry: EntryId) {
        self.plane.services().clear_counters(entry);
    }

    /// Sends a completion when no packet is left in the front door and programs of now; nothing if
    /// that cannot be known.
    fn when_packets_have_landed(&self, then: Done) {
        placing::wait_for_packets(self, then, false);
    }

    /// Clears the counters of an unused lane.
    pub(crate) fn lane_unused(&mut self, control: &mut Control, entry: EntryId) {
        if self.plane.instances().is_shared(entry) {
            return;
        }
        let (billing, counters) = self.counters(control);
        billing.begin_below(&counters, entry);
        self.clear_counters(entry);
    }

    /// Starts the cell; one that does not start is lost.
    fn start_cell(&mut self, control: &mut Control, restarts: u32) {
        let number = CellNumber::FIRST;
        if let Err(error) = self.try_start_cell(control, number) {
            tracing::error!(restarts, error = format!("{error:#}"), "the cell did not start");
            self.lose(number, format!("{error:#}"));
        }
    }

    fn try_start_cell(&mut self, control: &mut Control, number: CellNumber) -> Result<()> {
        let queues = self.plane.ports().iter().map(|p| p.queues()).sum();
        let cell = self.cells.spawn(&self.directory, queues)?;
        for (message, fds) in self.plane.device_messages() {
            cell.send(&message, &fds)?;
        }
        if let Some(capacity) = control.node().capacity() {
            cell.send(&ToCell::Memory(capacity.memory), &[])?;
        }
        cell.send(&ToCell::Codecs(self.cells.codec_facts()), &[])?;
        tracing::info!(pid = cell.pid(), core = self.guest_core, "the cell starts");
        self.cells.insert(number, cell);
        self.actions.push_back(Action::CellStarted(number));
        self.try_with_plane(control, |plane, around| plane.handle_cell_started(around))?;
        if self.cells.is_bound(number) {
            messages::cell_ready(self, control, number);
        }
        Ok(())
    }

    /// Ends what a service had of streams, if it had some.
    fn end_streams(&mut self, control: &mut Control, entry: EntryId) {
        let service = control.node().service_of(entry);
        if service.is_some_and(|service| service.module.kind == Kind::Streams) {
            self.with_plane(control, |plane, _| plane.sweep_interceptions());
            self.settle_gro(control, Some(entry));
        }
    }

    /// Checks whether cells still answer. Called once a second.
    pub(crate) fn watch_cells(&mut self, control: &mut Control) {
        for silence in self.cells.handle_second() {
            match silence {
                WatchdogFinding::Silent { pid } => {
                    let text = format!(
                        "the cell, process {pid}, does not answer: packets for its services wait, and so does whatever changes them; it is ended if it is silent for {SILENT_MAX} s"
                    );
                    control.note(Note::new(EventKind::CellSilent, text));
                }
                WatchdogFinding::Over(cell, why) => self.lose(cell, why),
            }
        }
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
    }

    /// Handles the end of the time for a report of cells.
    pub(crate) fn handle_report_overdue(&mut self, number: u64) {
        self.cells.handle_report_overdue(number);
    }

    /// Handles an event of a codec.
    pub(crate) fn handle_codec_news(&mut self, codec: CodecNumber, news: CodecNews) {
        self.cells.handle_codec_news(codec, news);
    }

    /// Sends a control message to a service; `reply` gets the answer.
    pub(crate) fn deliver(
        &mut self,
        entry: EntryId,
        message: Vec<u8>,
        reply: Reply<api::MessageAnswers>,
    ) {
        self.cells.deliver(entry, message, reply);
    }

    /// Calls the data plane, and handles the actions that follow.
    pub(crate) fn with_plane<T>(
        &mut self,
        control: &mut Control,
        ask: impl FnOnce(&mut DataPlane, &dataplane::Around<'_>) -> T,
    ) -> T {
        let answer = plane::ask_plane(self, control, ask);
        // What cells were not given was logged.
        let _ = plane::do_plane_actions(self, control);
        answer
    }

    /// Calls the data plane, and handles the actions that follow.
    ///
    /// # Errors
    /// The call fails, or cells are not given what they need.
    pub(crate) fn try_with_plane(
        &mut self,
        control: &mut Control,
        ask: impl FnOnce(&mut DataPlane, &dataplane::Around<'_>) -> Result<()>,
    ) -> Result<()> {
        let answer = plane::ask_plane(self, control, ask);
        let given = plane::do_plane_actions(self, control);
        answer.and(given)
    }

    /// Handles a message of a cell, and those that are there already: what follows from a thousand
    /// services that have started is computed once.
    pub(crate) fn handle_messages(
        &mut self,
        control: &mut Control,
        cell: CellNumber,
        message: Result<Option<FromCell>>,
    ) {
        let is_open = matches!(message, Ok(Some(_)));
        messages::handle(self, control, cell, message);
        if !is_open {
            return;
        }
        for _ in 1..MESSAGES_AT_ONCE {
            match self.cells.receive_next(cell) {
                Ok(None) => return,
                Ok(Some(message)) => messages::handle(self, control, cell, Ok(Some(message))),
                Err(error) => return messages::handle(self, control, cell, Err(error)),
            }
        }
    }

    /// Gives an event to the node.
    pub(crate) fn event(&mut self, control: &mut Control, event: Event) {
        if let Event::ServicePlaced { entry, .. } = &event {
            let (billing, counters) = self.counters(control);
            billing.read_fuel(&counters, *entry);
        }
        self.refuse(control, event, false);
    }

    /// Passes the node an event that refuses a request, for lack of resources if `is_short`.
    fn refuse(&self, control: &mut Control, event: Event, is_short: bool) {
        control.set_now(self.clock.now());
        control.handle_event(event, is_short);
    }

    /// Recomputes the node's capacity after devices were added or removed. Sessions that no longer
    /// fit lose their reservations, until they are tried again.
    pub(crate) fn renew_capacity(&mut self, control: &mut Control) {
        let has_front_door = self.plane.front_door().is_ok();
        let before = control.node().capacity();
        let capacity = capacity_of(self.plane.ports(), self.guest_core, has_front_door, before);
        if control.node().capacity() == Some(&capacity) {
            return;
        }
        control.set_capacity(capacity);
        self.send_memory(control);
        self.with_plane(control, |plane, around| plane.promises().settle_promises(around.node));
        self.is_dirty = true;
    }

    /// Tells cells how much memory there is for all sessions.
    pub(crate) fn send_memory(&self, control: &Control) {
        if let Some(capacity) = control.node().capacity() {
            self.cells.notify_all(&ToCell::Memory(capacity.memory), &[]);
        }
    }

    /// Asks cells for the usage of sessions, which is sampled when they have answered. A cell that
    /// has not answered for a second is not waited for.
    pub(crate) fn poll_usage(&mut self, control: &Control) {
        let Some(is_overdue) = self.usage.sessions_mut().start_look(self.clock.now()) else {
            return;
        };
        if is_overdue || !self.cells.is_any() {
            self.note_use(control);
        }
        self.cells.notify_all(&ToCell::ReportSessions, &[]);
    }

    /// Returns what is billed, beside the counters that it is read from.
    pub(crate) fn counters<'a>(
        &'a mut self,
        control: &'a Control,
    ) -> (&'a mut Billing, Counters<'a>) {
        let now = self.clock.now();
        let (node, cells, plane) = (control.node(), &self.cells, &self.plane);
        (self.usage.billing_mut(), Counters { now, node, cells, plane })
    }

    /// Adds what rules counted that are gone to what their sessions have used.
    pub(crate) fn close_rules(&mut self, rules: Vec<(RuleId, Name)>) {
        for (rule, session) in rules {
            if let Ok(stats) = self.plane.front().rule_stats(rule) {
                self.is_dirty = true;
                self.usage.add_counted(session, (Packets(stats.packets), Bytes(stats.bytes)));
            }
        }
    }

    /// Updates the accounts of the front door, if sessions or services changed since that was done.
    pub(crate) fn settle_promises(&mut self, control: &mut Control) {
        self.with_plane(control, |plane, around| plane.promises().settle_changed(around.node));
    }

    /// Compares the meters of a previous daemon with the services that run in an adopted cell.
    pub(crate) fn adopt_meters(&mut self, control: &mut Control, runs: &BTreeSet<EntryId>) {
        let now = self.clock.now();
        let state = control.state();
        let (node, cells, plane) = (state.node(), &self.cells, &self.plane);
        self.usage.billing_mut().handle_running(state, &Counters { now, node, cells, plane }, runs);
    }

    /// Lets go of what is kept for services that no longer run.
    pub(crate) fn end_all_below_but(&mut self, control: &mut Control, runs: &BTreeSet<EntryId>) {
        for &entry in self.plane.pinned().difference(runs) {
            if self.plane.instances().is_shared(entry) {
                self.end_below(control, entry);
            } else {
                self.plane.services().clear_entry(entry);
            }
        }
    }

    /// Goes on with what a daemon before made for a service.
    pub(crate) fn adopt_instance(&mut self, control: &mut Control, entry: EntryId) -> Result<()> {
        let service =
            control.node().service_of(entry).context("no service of the node has this entry")?;
        let digest = service.module.digest.parse()?;
        let wasm = control
            .state()
            .modules()
            .get(&digest)
            .map(|module| module.wasm.clone())
            .unwrap_or_default();
        self.plane.services().adopt_instance(service, wasm)
    }

    /// Releases what a session had used that is gone.
    pub(crate) fn forget_session(&mut self, session: &Name) {
        self.usage.forget(session);
    }

    /// Takes everything down: the node ends.
    pub(crate) fn stop(&mut self) {
        self.cells.end_codecs();
        // Before the cell: without it a frame that was taken would be lost.
        self.plane.detach();
        self.cells.remove(CellNumber::FIRST);
        self.plane.restore();
    }

    fn lose(&mut self, cell: CellNumber, why: String) {
        self.actions.push_back(Action::CellLost(cell, why));
    }

    /// Records the usage of sessions that cells have reported.
    fn note_use(&mut self, control: &Control) {
        let now = self.clock.now();
        if let Err(error) = self.usage.note(now, control.node(), &self.plane) {
            tracing::debug!(error = error.message, "sessions cannot be looked at");
        }
        self.usage.sessions_mut().rest(now, self.clock.now().saturating_sub(now));
    }
}
