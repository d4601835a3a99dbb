//! Actions of control and effects of `core/node`, done in their order.

use super::remember;
use crate::cells::{AfterReport, CellNumber};
use crate::control::action::{Action, DeployedAnswer, Keep};
use crate::control::calls::Wanted;
use crate::daemon::{Daemon, Done};
use crate::observe::counters::seen_stats;
use crate::observe::documents::services::{find_service, seen_services};
use crate::observe::documents::sessions::{session_details, session_list};
use crate::observe::metrics::metrics_page;
use crate::runtime;
use api::{Deployed, ErrorCode, ErrorInfo, SCHEMA_VERSION};
use cell::protocol::ToCell;
use node::{Effect, Event};
use std::sync::PoisonError;
use std::time::Duration;
use units::SessionId;

/// Time within which a cell says what memory is in use; later the change is decided by what is known.
const SAID_WITHIN: Duration = Duration::from_secs(2);

/// Handles all pending actions, begins the changes that wait for them, and handles the requests
/// whose modules have been fetched, until nothing is left; then writes the record of what runs, or
/// schedules that.
///
/// Replies given here are read by tasks of this thread, and so not before this returns: no client
/// learns of a change that the next daemon would not know.
pub(super) fn settle(daemon: &mut Daemon) {
    daemon.control.set_now(daemon.now());
    loop {
        do_actions(daemon);
        daemon.control.set_reusable(daemon.runtime.plane().instances().reusable());
        if !daemon.control.advance() && !super::requests::handle_released(daemon) {
            break;
        }
    }
    end_actions(daemon);
}

/// Updates what depends on everything that was done, and writes down what runs, or has that done
/// soon.
fn end_actions(daemon: &mut Daemon) {
    daemon.runtime.settle_promises(&mut daemon.control);
    daemon.runtime.set_node_changed(false);
    match daemon.control.take_urgent() {
        true => remember::at_once(daemon),
        false => remember::soon(daemon),
    }
}

/// Handles all pending actions.
fn do_actions(daemon: &mut Daemon) {
    mark_touched(daemon);
    daemon.runtime.with_plane(&mut daemon.control, |plane, around| plane.close_ports(around));
    daemon.runtime.do_placements(&mut daemon.control);
    loop {
        // Before an action is done: some write down first what they must not be ahead of.
        mark_touched(daemon);
        if let Some(action) = daemon.runtime.poll_action() {
            do_runtime_action(daemon, action);
        } else if let Some(then) = daemon.runtime.poll_reported() {
            do_reported(daemon, then);
        } else if let Some(action) = daemon.control.poll_action() {
            do_action(daemon, action);
        } else {
            return;
        }
    }
}

/// Marks what depends on `core/node` as out of date, if that was changed.
fn mark_touched(daemon: &mut Daemon) {
    if daemon.control.take_touched() {
        daemon.recorder.mark();
        daemon.runtime.set_node_changed(true);
    }
    if daemon.runtime.take_dirty() {
        daemon.recorder.mark();
    }
}

/// Handles a consequence of the runtime.
fn do_runtime_action(daemon: &mut Daemon, action: runtime::Action) {
    use runtime::Action;
    match action {
        Action::CellStarted(number) => {
            if let Some(tap) = daemon.observe.first_tap() {
                daemon.runtime.cells().notify_cell(number, &tap, &[]);
            }
        }
        Action::CellLost(cell, why) => cell_lost(daemon, cell, why),
        Action::Associated(id) => {
            if let Some(neighbours) = &mut daemon.neighbours {
                neighbours.handle_associated(id);
            }
        }
        Action::Calls(question) => {
            let sender = daemon.neighbours.as_ref().and_then(|it| it.sender_of(question));
            if let Some(sender) = sender {
                daemon.control.calls().handle_call(Wanted { question, sender });
            }
        }
        Action::CapturedFrame(tapped) => {
            let (observe, view) = daemon.observe();
            observe.handle_tapped(&view, &tapped);
        }
    }
}

/// Handles an action of control.
fn do_action(daemon: &mut Daemon, action: Action) {
    match action {
        Action::Effect(effect) => {
            if matches!(effect, Effect::ReplaceService { .. } | Effect::SetSession { .. }) {
                // The next daemon must not take a new version for the old one, and cells keep
                // nothing that it would not know of.
                remember::at_once(daemon);
            }
            daemon.runtime.do_effect(&mut daemon.control, effect);
        }
        Action::Note(note) => daemon.note(note),
        Action::Write(write) => {
            let done = daemon.done.clone();
            tokio::task::spawn_blocking(move || {
                // A send fails only if the daemon has ended.
                let _ = done.send(Done::Recorded(write.run()));
            });
        }
        Action::Keep(keep) => keep_in_journal(daemon, keep),
        Action::Compile(digest, below) => {
            daemon.runtime.compile(&daemon.control, digest, below);
        }
        Action::CloseRules(rules) => daemon.runtime.close_rules(rules),
        Action::SettleAccounts => {
            daemon.runtime.with_plane(&mut daemon.control, |plane, around| {
                plane.promises().settle_accounts(around.node);
            });
        }
        Action::ExpectService => daemon.runtime.cells().notify_all(&ToCell::Expect, &[]),
        Action::Stay(entry, level) => {
            daemon.runtime.stay_at(&mut daemon.control, entry, level);
        }
        Action::Drain(entry) => daemon.runtime.drain(&mut daemon.control, entry),
        Action::CancelDrain(entry) => {
            daemon.runtime.cancel_drain(&mut daemon.control, entry);
        }
        Action::ClearReusable => daemon
            .runtime
            .with_plane(&mut daemon.control, |plane, _| plane.services().clear_spares()),
        Action::AskMemory(number, session) => ask_memory(daemon, number, session),
        Action::AnswerDeployed(answer) => {
            let DeployedAnswer { service, took, shadowed, lacks, rules, replaced, reply } = *answer;
            let schema_version = SCHEMA_VERSION;
            let service = find_service(&daemon.view(), service.as_str());
            reply.answer(service.map(|service| Deployed {
                schema_version,
                service,
                took_ms: took.as_millis(),
                shadowed,
                lacks,
                rules_added: rules.added,
                rules_removed: rules.removed,
                replaced,
            }));
        }
        Action::AnswerCall(question, answer) => {
            daemon.runtime.cells().notify_all(&ToCell::CallAnswer(question, answer), &[]);
        }
        Action::FetchMissing => daemon.demand.want_missing(&mut daemon.control),
        Action::BillFetched(modules) => {
            let account = daemon.control.state().account(None, None);
            modules.iter().for_each(|bytes| daemon.runtime.billing().add_fetched(&account, *bytes));
        }
        Action::CheckAssociations => daemon.check_associations(),
        Action::ForgetSession(session) => daemon.runtime.forget_session(&session),
        Action::ClosePorts => daemon
            .runtime
            .with_plane(&mut daemon.control, |plane, around| plane.close_ports(around)),
        Action::Bill => daemon.bill(),
        Action::FetchCalled(wanted) => {
            daemon.demand.want_for_packets(&mut daemon.control, *wanted);
        }
    }
}

/// Handles the loss of a cell.
fn cell_lost(daemon: &mut Daemon, cell: CellNumber, why: String) {
    let lost = daemon.runtime.handle_cell_lost(&mut daemon.control, cell);
    // Once, however many services there were: the next daemon needs all of them or none.
    remember::at_once(daemon);
    daemon.end_associations();
    daemon.control.handle_memory(None);
    let reasons = [why.as_str(), &lost.reason].into_iter().filter(|it| !it.is_empty());
    let reason = reasons.collect::<Vec<_>>().join("; ");
    daemon.runtime.event(&mut daemon.control, Event::CellLost { reason });
    // First the front door: what it still marks would be routed to the server. No change begins
    // meanwhile: what the cell has left may be in the place of its services.
    do_actions(daemon);
    end_actions(daemon);
    daemon.runtime.sweep(&mut daemon.control, lost);
}

/// Continues what waited for the reports of cells.
fn do_reported(daemon: &mut Daemon, then: AfterReport) {
    match then {
        AfterReport::Services(sight, reply) => reply.ok(seen_services(&daemon.view(), &sight)),
        AfterReport::Service(wanted, reply) => reply.answer(find_service(&daemon.view(), &wanted)),
        AfterReport::Stats(sight, reply) => reply.answer(seen_stats(&daemon.view(), &sight)),
        AfterReport::Metrics(reply) => {
            reply.answer(metrics_page(&daemon.view(), daemon.observe.events_told()))
        }
        AfterReport::Sessions(sight, reply) => reply.answer(session_list(&daemon.view(), &sight)),
        AfterReport::Session(sight, wanted, reply) => {
            reply.answer(session_details(&daemon.view(), &sight, &wanted));
        }
        AfterReport::CaptureEnds(id, reply) => {
            let (observe, view) = daemon.observe();
            let ended = observe.end_capture(&view, id);
            daemon.send_captures();
            reply.answer(ended);
        }
        AfterReport::CountDrops => {
            let (observe, view) = daemon.observe();
            observe.count_drops(&view);
        }
        AfterReport::EndIdleCalls => {
            let packets_of =
                |entry| daemon.runtime.cells().report_of(entry).map_or(0, |report| report.packets);
            daemon.control.calls().end_idle(&packets_of);
        }
        AfterReport::Bill => {
            let (billing, counters) = daemon.runtime.counters(&daemon.control);
            billing.read_all(&counters);
            daemon.write_bill();
        }
        AfterReport::LastBill => {
            let (billing, counters) = daemon.runtime.counters(&daemon.control);
            billing.read_all(&counters);
            billing.end_all();
            daemon.write_bill();
        }
    }
}

/// Writes a record to the journal beside the loop.
fn keep_in_journal(daemon: &Daemon, keep: Keep) {
    let journal = daemon.control.state().desired().journal();
    tokio::task::spawn_blocking(move || {
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        match keep {
            Keep::Time(time) => {
                if let Err(problem) = journal.keep_time(time) {
                    tracing::warn!(%problem, "the latest time is not on the disk: after a restart a clock that was set back could make expired capabilities valid");
                }
            }
            Keep::Versions(marks) => {
                if let Err(problem) = journal.keep_versions(&marks) {
                    tracing::warn!(
                        %problem,
                        "the highest versions of signed modules are not on the disk: after a restart older ones may run"
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
fn ask_memory(daemon: &mut Daemon, number: u64, session: Option<SessionId>) {
    if !daemon.runtime.cells().is_any() {
        return daemon.control.handle_memory(None);
    }
    daemon.runtime.cells().notify_all(&ToCell::MemoryOf(session), &[]);
    let done = daemon.done.clone();
    tokio::spawn(async move {
        tokio::time::sleep(SAID_WITHIN).await;
        // A send fails only if the daemon has ended.
        let _ = done.send(Done::MemoryOverdue(number));
    });
}
