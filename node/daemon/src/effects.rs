//! Actions of control and effects of `core/node`, done in their order.

use crate::cells::{AfterReport, CellNumber};
use crate::control::action::{Action, DeployedAnswer, Keep};
use crate::control::called::Wanted;
use crate::daemon::{Daemon, Done};
use crate::observe::counters::seen_stats;
use crate::observe::documents::services::find_service;
use crate::observe::documents::services::seen_services;
use crate::observe::documents::sessions::{session_details, session_list};
use crate::observe::metrics::metrics_page;
use crate::runtime;
use api::ErrorInfo;
use api::{Deployed, ErrorCode, SCHEMA_VERSION};
use cell::protocol::ToCell;
use node::{Effect, Event};
use std::sync::PoisonError;

impl Daemon {
    /// Does everything that is pending, and begins what waits for that, until nothing is left; then
    /// writes down what runs, or has that done soon.
    ///
    /// Replies that are given here are read by tasks of this thread, and so not before this returns:
    /// nobody hears of a change that the next daemon would not know.
    pub(crate) fn settle(&mut self) {
        self.control.set_now(self.now());
        loop {
            self.do_actions();
            if !self.control.advance() {
                break;
            }
        }
        self.runtime.settle_promises(&mut self.control);
        self.runtime.set_node_changed(false);
        match self.control.take_urgent() {
            true => self.remember(),
            false => self.remember_soon(),
        }
    }

    /// Does everything that is pending.
    pub(crate) fn do_actions(&mut self) {
        self.mark_touched();
        self.runtime.with_plane(&mut self.control, |plane, around| plane.close_ports(around));
        self.runtime.do_placements(&mut self.control);
        loop {
            // Before an action is done: some write down first what they must not be ahead of.
            self.mark_touched();
            if let Some(action) = self.runtime.poll_action() {
                self.do_runtime_action(action);
            } else if let Some(then) = self.runtime.cells.poll_reported() {
                self.do_reported(then);
            } else if let Some(action) = self.control.poll_action() {
                self.do_action(action);
            } else {
                return;
            }
        }
    }

    /// Marks what depends on `core/node` as out of date, if that was changed.
    fn mark_touched(&mut self) {
        if self.control.take_touched() {
            self.recorder.mark();
            self.runtime.set_node_changed(true);
        }
        if self.runtime.take_dirty() {
            self.recorder.mark();
        }
    }

    fn do_runtime_action(&mut self, action: runtime::Action) {
        use runtime::Action;
        match action {
            Action::CellStarted(number) => {
                if let Some(tap) = self.observe.first_tap() {
                    self.runtime.cells.tell_cell(number, &tap, &[]);
                }
            }
            Action::CellLost(cell, why) => self.cell_lost(cell, why),
            Action::Associated(id) => {
                if let Some(neighbours) = &mut self.neighbours {
                    neighbours.handle_associated(id);
                }
            }
            Action::Calls(question) => {
                let sender = self.neighbours.as_ref().and_then(|it| it.sender_of(question));
                if let Some(sender) = sender {
                    self.control.handle_call(Wanted { question, sender });
                }
            }
            Action::Tapped(tapped) => {
                let (observe, view) = self.observe();
                observe.handle_tapped(&view, &tapped);
            }
            Action::SessionsReported => self.note_use(),
        }
    }

    fn do_action(&mut self, action: Action) {
        match action {
            Action::Effect(effect) => {
                if matches!(effect, Effect::ReplaceService { .. } | Effect::SetSession { .. }) {
                    // The next daemon must not take a new version for the old one, and cells keep
                    // nothing that it would not know of.
                    self.remember();
                }
                self.runtime.do_effect(&mut self.control, effect);
            }
            Action::Note(note) => self.note(note),
            Action::Write(write) => {
                let done = self.done.clone();
                tokio::task::spawn_blocking(move || {
                    // The daemon is gone when nobody receives: nothing is left to do.
                    let _ = done.send(Done::Recorded(write.run()));
                });
            }
            Action::Keep(keep) => self.keep_in_journal(keep),
            Action::Compile(digest, below) => {
                self.runtime.compilers.compile(self.control.state(), digest, below);
            }
            Action::CloseRules(rules) => self.runtime.close_rules(rules),
            Action::SettleAccounts => {
                self.runtime.plane.promises().settle_accounts(self.control.node());
            }
            Action::ExpectService => self.runtime.cells.tell_all(&ToCell::Expect, &[]),
            Action::Stay(entry, level) => {
                self.runtime.stay_at(&mut self.control, entry, level);
            }
            Action::Drain(entry) => self.runtime.drain(&mut self.control, entry),
            Action::CancelDrain(entry) => {
                self.runtime.cancel_drain(&mut self.control, entry);
            }
            Action::ClearReusable => self.runtime.plane.services().clear_spares(),
            Action::AskMemory(number, session) => self.ask_memory(number, session),
            Action::AnswerDeployed(answer) => {
                let DeployedAnswer { service, took_ms, shadowed, lacks, replaced, reply } = *answer;
                let schema_version = SCHEMA_VERSION;
                let service = find_service(&self.view(), service.as_str());
                reply.answer(service.map(|service| Deployed {
                    schema_version,
                    service,
                    took_ms,
                    shadowed,
                    lacks,
                    replaced,
                }));
            }
            Action::AnswerCall(question, answer) => {
                self.runtime.cells.tell_all(&ToCell::Called(question, answer), &[]);
            }
            Action::FetchMissing => {
                self.demand.want_missing(&mut self.control);
                self.release_fetched();
            }
            Action::BillFetched(modules) => {
                let account = self.control.state().account(None, None);
                modules
                    .iter()
                    .for_each(|bytes| self.runtime.usage.billing.add_fetched(&account, *bytes));
            }
            Action::CheckAssociations => self.check_associations(),
            Action::ForgetSession(session) => self.runtime.usage.forget(&session),
            Action::ClosePorts => self
                .runtime
                .with_plane(&mut self.control, |plane, around| plane.close_ports(around)),
            Action::Bill => self.bill(),
            Action::FetchCalled(wanted) => {
                self.demand.want_for_packets(&mut self.control, *wanted);
                self.release_fetched();
            }
        }
    }

    fn cell_lost(&mut self, cell: CellNumber, why: String) {
        let lost = self.runtime.handle_cell_lost(&mut self.control, cell);
        // Once, however many services there were: the next daemon needs all of them or none.
        self.remember();
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_all(&mut self.control, &self.runtime.cells);
        }
        self.control.handle_memory(None);
        let reasons = [why.as_str(), &lost.reason].into_iter().filter(|it| !it.is_empty());
        let reason = reasons.collect::<Vec<_>>().join("; ");
        self.runtime.event(&mut self.control, Event::CellLost { reason });
        // First the front door: what it still marks would be routed to the server.
        self.settle();
        self.runtime.sweep(&mut self.control, lost);
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
                    |entry| self.runtime.cells.report_of(entry).map_or(0, |report| report.packets);
                self.control.end_idle_calls(&packets_of);
            }
            AfterReport::Bill => {
                let (billing, counters) = self.runtime.counters(&self.control);
                billing.read_all(&counters);
                self.write_bill();
            }
            AfterReport::LastBill => {
                let (billing, counters) = self.runtime.counters(&self.control);
                billing.read_all(&counters);
                billing.end_all();
                self.write_bill();
            }
        }
    }

    /// Writes a record to the journal beside the loop.
    fn keep_in_journal(&self, keep: Keep) {
        let journal = self.control.desired().journal();
        tokio::task::spawn_blocking(move || {
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            match keep {
                Keep::Time(time) => {
                    if let Err(problem) = journal.keep_time(time) {
                        tracing::warn!(%problem, "the time was not written down");
                    }
                }
                Keep::Versions(marks) => {
                    if let Err(problem) = journal.keep_versions(&marks) {
                        tracing::warn!(
                            %problem,
                            "versions were not written down: a restart forgets them"
                        );
                    }
                }
                Keep::Revoked { texts, time, stopped, answer, reply } => {
                    let written = journal.revoke(&texts, time);
                    drop(journal);
                    // Without a daemon nothing is left to wait for.
                    let _ = stopped.blocking_recv();
                    reply.answer(match written {
                        Ok(()) => Ok(answer),
                        Err(problem) => {
                            let problem = crate::control::desired::refusal(&problem);
                            Err(ErrorInfo {
                                code: ErrorCode::Partial,
                                message: format!(
                                    "it is revoked until the node's next start, and could not be written down: {}",
                                    problem.message
                                ),
                                help: problem.help,
                            })
                        }
                    });
                }
            }
        });
    }

    /// Asks cells for the memory in use.
    fn ask_memory(&mut self, number: u64, session: Option<units::SessionId>) {
        if !self.runtime.cells.is_any() {
            return self.control.handle_memory(None);
        }
        self.runtime.cells.tell_all(&ToCell::MemoryOf(session), &[]);
        let done = self.done.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SAID_WITHIN).await;
            let _ = done.send(Done::MemoryOverdue(number));
        });
    }
}

/// Time within which a cell says what memory is in use; later the change is decided by what is
/// known.
const SAID_WITHIN: std::time::Duration = std::time::Duration::from_secs(2);
