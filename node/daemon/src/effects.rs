//! Actions of control and effects of `core/node`, done in their order.

use crate::control::action::{Action, DeployedAnswer, Keep};
use crate::daemon::{Daemon, Done};
use crate::observe::documents::services::find_service;
use crate::replace::way_of;
use api::ErrorInfo;
use api::{Deployed, ErrorCode, SCHEMA_VERSION};
use cell::protocol::{SessionFacts, ToCell};
use node::Effect;
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
        self.settle_promises();
        match self.control.take_urgent() {
            true => self.remember(),
            false => self.remember_soon(),
        }
    }

    /// Does everything that is pending.
    pub(crate) fn do_actions(&mut self) {
        self.mark_touched();
        self.with_plane(|plane, around| plane.close_ports(around));
        self.do_placements();
        while let Some(action) = self.control.poll_action() {
            // Before it is done: some write down first what they must not be ahead of.
            self.mark_touched();
            self.do_action(action);
        }
        self.mark_touched();
    }

    /// Marks what depends on `core/node` as out of date, if that was changed.
    fn mark_touched(&mut self) {
        if self.control.take_touched() {
            self.recorder.mark();
            self.node_touched = true;
        }
        if self.billing.take_changed() {
            self.recorder.mark();
        }
    }

    /// Updates the accounts of the front door, if sessions or services changed since that was done.
    pub(crate) fn settle_promises(&mut self) {
        self.with_plane(|plane, around| plane.promises().settle_changed(around.node));
    }

    fn do_action(&mut self, action: Action) {
        match action {
            Action::Effect(effect) => self.do_effect(effect),
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
                self.compilers.compile(self.control.state(), digest, below)
            }
            Action::CloseRules(rules) => self.close(rules),
            Action::SettleAccounts => self.plane.promises().settle_accounts(self.control.node()),
            Action::ExpectService => self.cells.tell_all(&ToCell::Expect, &[]),
            Action::Stay(entry, level) => {
                if self.placement.is_moved(entry) {
                    self.place(|it, around| it.handle_move(around, entry, level));
                }
            }
            Action::Drain(entry) => self.drain(entry),
            Action::CancelDrain(entry) => self.cancel_drain(entry),
            Action::ClearReusable => self.plane.services().clear_spares(),
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
                self.cells.tell_all(&ToCell::Called(question, answer), &[]);
            }
            Action::FetchMissing => {
                self.demand.want_missing(&mut self.control);
                self.release_fetched();
            }
            Action::BillFetched(modules) => {
                let account = self.control.state().account(None, None);
                modules.iter().for_each(|bytes| self.billing.add_fetched(&account, *bytes));
            }
            Action::CheckAssociations => self.check_associations(),
            Action::ForgetSession(session) => {
                // Another one of that name begins from zero; the ledger has what this one used.
                self.closed.remove(&session);
                self.fuel_closed.remove(&session);
                self.sessions.forget_history(&session);
            }
            Action::ClosePorts => self.with_plane(|plane, around| plane.close_ports(around)),
            Action::Bill => self.bill(),
            Action::FetchCalled(wanted) => {
                self.demand.want_for_packets(&mut self.control, *wanted);
                self.release_fetched();
            }
        }
    }

    fn do_effect(&mut self, effect: Effect) {
        match effect {
            Effect::StartCell { restarts } => self.start_cell(restarts),
            Effect::StartService { start, .. } => self.start_service(start, None),
            Effect::ReplaceService { start, way } => {
                // The next daemon must not take the new version for the old one.
                self.remember();
                self.start_service(start, Some(way_of(way)));
            }
            Effect::MoveService { entry, level } => {
                self.place(|it, around| it.handle_move(around, entry, level));
            }
            Effect::SetEdges { entry, edges } => {
                if let Some(lane) = self.plane.front().lane(entry) {
                    lane.set_edges(edges);
                }
                self.cells.tell(entry, &ToCell::Edges(entry, edges));
            }
            Effect::SetClosed { entry, closed } => {
                if let Some(lane) = self.plane.front().lane(entry) {
                    lane.set_closed(closed);
                }
                self.cells.tell(entry, &ToCell::Closed(entry, closed));
            }
            Effect::StopService { entry } => self.stop_service(entry),
            Effect::SetSession { session, reservation } => {
                // The cell keeps nothing that the next daemon would not know of.
                self.remember();
                let facts = SessionFacts { id: session, reservation };
                self.cells.tell_all(&ToCell::Session(Box::new(facts)), &[]);
                self.plane.promises().mark_unsettled();
            }
            Effect::RemoveSession { session } => {
                // Cells may give the number's part to others.
                self.sessions.forget(session);
                if let Ok(front) = self.plane.front_door() {
                    front.accounts().clear_account(session.0);
                }
                self.cells.tell_all(&ToCell::ForgetSession(session), &[]);
                self.plane.promises().mark_unsettled();
            }
            Effect::ClearRuleCounters { rule } => {
                if let Err(error) = self.plane.front().clear_rule_stats(rule) {
                    tracing::error!(%rule, %error, "a rule's counters were not cleared");
                }
            }
            Effect::InstallRules { rules, .. } => {
                self.with_plane(|plane, around| plane.install(&rules, around.has_cell));
            }
            // Control handles them, in their order.
            Effect::Report(_) => {}
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

    /// Adds what rules counted that are gone to what their sessions have used.
    fn close(&mut self, rules: Vec<(units::RuleId, units::Name)>) {
        for (rule, session) in rules {
            if let Ok(stats) = self.plane.front().rule_stats(rule) {
                self.recorder.mark();
                let sum = self.closed.entry(session).or_default();
                sum.0 += stats.packets;
                sum.1 += stats.bytes;
            }
        }
    }

    /// Asks cells for the memory in use.
    fn ask_memory(&mut self, number: u64, session: Option<units::SessionId>) {
        if !self.cells.is_any() {
            return self.control.handle_memory(None);
        }
        self.cells.tell_all(&ToCell::MemoryOf(session), &[]);
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
