//! Handling of `core/node`'s reports: events for the operator, and answers to pending requests.

use super::Control;
use super::action::Action;
use crate::answer::error;
use crate::events::Note;
use api::{ErrorCode, EventKind};
use node::Notice;

/// Handles a report. Whoever is refused something by it is, if `is_short`, because there is not
/// enough of it.
pub(super) fn handle(control: &mut Control, notice: Notice, is_short: bool) {
    let refusal = |message: String| {
        let code = if is_short { ErrorCode::Limit } else { ErrorCode::Failed };
        error(code, message, None)
    };
    let Control { state, work, deployments, movers, removals, called, .. } = control;
    if let Some(work) = work {
        work.handle_notice(state, &notice);
    }
    match notice {
        Notice::ServiceRunning { service, restarts } => {
            let again = if restarts > 0 { format!(", restart {restarts}") } else { String::new() };
            let text = format!("the service '{service}' runs{again}");
            state.note(Note::new(EventKind::ServiceStarted, text).service(&service));
            deployments.handle_running(state, &service);
            called.handle_running(state, &service);
        }
        Notice::ServiceReplaced { service } => {
            let text =
                format!("a new version of '{service}' runs, on probation for its first 500 ms");
            state.note(Note::new(EventKind::ServiceReplaced, text).service(&service));
        }
        Notice::ServiceKept { service } => {
            tracing::info!(%service, "the new version of the service stays");
            state.forget_modules();
            deployments.handle_running(state, &service);
        }
        Notice::ReplaceFailed { service, reason } => {
            let text = format!("a new version of '{service}' does not run, the old one goes on");
            let note = Note::new(EventKind::ServiceNotStarted, text).service(&service);
            state.note(note.reason(&reason));
            state.forget_modules();
            let message = format!("'{service}' goes on as it was: {reason}");
            deployments.refuse(&service, refusal(message));
        }
        Notice::ServicePutBack { service, reason } => {
            let text = format!("a new version of '{service}' failed at once, the old one is back");
            let note = Note::new(EventKind::ServicePutBack, text).service(&service);
            state.note(note.reason(&reason));
            state.forget_modules();
            let message = format!(
                "the new version of '{service}' failed at once, and the one before runs again: {reason}"
            );
            deployments.refuse(&service, refusal(message));
        }
        Notice::ServiceMoved { service, level } => {
            let text = format!("the service '{service}' runs at {level}");
            state.note(Note::new(EventKind::ServiceMoved, text).service(&service));
            movers.handle_moved(state, &service, level);
        }
        Notice::MoveFailed { service, reason } => {
            let text = format!("the service '{service}' did not move");
            let note = Note::new(EventKind::MoveFailed, text).service(&service);
            state.note(note.reason(&reason));
            let message = format!("the service '{service}' stays where it is: {reason}");
            movers.refuse(&service, &message);
        }
        Notice::ServiceNotStarted { service, reason } => {
            let text = format!("the service '{service}' did not start");
            let note = Note::new(EventKind::ServiceNotStarted, text).service(&service);
            state.note(note.reason(&reason));
            state.forget_modules();
            let message = format!("the service '{service}' did not start: {reason}");
            deployments.refuse(&service, refusal(message));
            called.handle_ended(state, &service);
        }
        Notice::ServiceFailed { service, reason, closed, .. } => {
            let what = if closed { "are dropped" } else { "go plainly" };
            let text = format!("the service '{service}' failed, its packets {what}");
            let note = Note::new(EventKind::ServiceFailed, text).service(&service);
            state.note(note.reason(&reason));
            let message = format!("the service '{service}' failed: {reason}");
            movers.refuse(&service, &message);
            deployments.handle_failed(state, &service, refusal(message));
        }
        Notice::ServiceBypassed { service, reason } => {
            let text = format!(
                "the service '{service}' has trapped too often: it is bypassed until it is deployed again"
            );
            let note = Note::new(EventKind::ServicePolicy, text).service(&service);
            state.note(note.reason(&reason));
            let message = format!("the service '{service}' is bypassed: {reason}");
            movers.refuse(&service, &message);
            deployments.refuse(&service, refusal(message));
        }
        Notice::ServiceRemoved { service } => {
            let text = format!("the service '{service}' is gone");
            state.note(Note::new(EventKind::ServiceRemoved, text).service(&service));
            // The answer promises that: with the last closed service gone, all ports are open.
            state.push(Action::ClosePorts);
            let removed = format!("the service '{service}' was removed");
            movers.refuse(&service, &removed);
            deployments.refuse(&service, refusal(removed));
            called.handle_ended(state, &service);
            removals.handle_stopped(&service);
            state.forget_modules();
        }
        Notice::SessionRemoved { session } => {
            let text = format!("the session '{session}' is gone");
            state.note_session(EventKind::SessionRemoved, &session, text);
            removals.handle_session_gone(&session);
            state.push(Action::ForgetSession(session));
        }
        Notice::CellLost { reason, closed, .. } => {
            let text = match closed.is_empty() {
                true => "the cell is lost: until it is back, packets of services go plainly",
                false => {
                    "the cell is lost: until it is back, packets of open services go plainly, and those of closed ones are dropped"
                }
            };
            state.note(Note::new(EventKind::CellLost, text).reason(&reason));
            for service in closed {
                let text = format!("packets of '{service}' are dropped until it runs again");
                state.note(Note::new(EventKind::ServicePolicy, text).service(service));
            }
            movers.refuse_all(&format!("the cell was lost: {reason}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::{Testbed, deploy};
    use super::*;
    use node::Event;

    /// Removes and returns the kinds of the events that there were.
    fn kinds(bed: &mut Testbed) -> Vec<EventKind> {
        let notes = std::mem::take(&mut bed.notes).into_iter();
        notes.map(|note| note.into_event(0, 0).0.kind).collect()
    }

    #[test]
    fn the_life_of_a_service_is_told_in_events() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        assert_eq!(kinds(&mut bed), [EventKind::ServiceStarted]);
        let (entry, reason) = (bed.entry("monitor"), || "unreachable".to_owned());
        bed.event(Event::ServiceFailed { entry, reason: reason() });
        assert_eq!(kinds(&mut bed), [EventKind::ServiceFailed]);
        bed.wait(10_000);
        bed.starts("monitor");
        assert_eq!(kinds(&mut bed), [EventKind::ServiceStarted]);
        let _asked = bed.ask(|reply| Change::Deploy(Box::new(deploy("monitor", 5)), reply));
        bed.event(Event::ServiceReplaced { entry });
        bed.event(Event::ServicePutBack { entry, reason: reason() });
        assert_eq!(kinds(&mut bed), [EventKind::ServiceReplaced, EventKind::ServicePutBack]);
        let mut removed = bed.ask(|reply| Change::Remove("monitor".to_owned(), true, reply));
        bed.write_all();
        bed.control.handle_drained(entry);
        bed.settle();
        bed.stops("monitor");
        assert_eq!(kinds(&mut bed), [EventKind::ServiceRemoved]);
        assert!(removed.try_answer().unwrap().is_ok());
        assert!(bed.actions.iter().any(|action| matches!(action, Action::ClosePorts)));
    }

    #[test]
    fn a_lost_cell_is_told_with_every_closed_service() {
        let mut bed = Testbed::new();
        bed.run("open");
        let on_failure = Some("closed".to_owned());
        let request = api::DeployRequest { on_failure, ..deploy("closed", 4) };
        let _asked = bed.ask(|reply| Change::Deploy(Box::new(request), reply));
        bed.starts("closed");
        bed.write_all();
        kinds(&mut bed);
        bed.event(Event::CellLost { reason: "killed".to_owned() });
        assert_eq!(kinds(&mut bed), [EventKind::CellLost, EventKind::ServicePolicy]);
    }

    #[test]
    fn a_start_refused_for_lack_of_a_resource_has_the_limit_error_code() {
        for (is_short, code) in [(true, ErrorCode::Limit), (false, ErrorCode::Failed)] {
            let mut bed = Testbed::new();
            let mut asked = bed.ask(|reply| Change::Deploy(Box::new(deploy("monitor", 4)), reply));
            let (entry, reason) = (bed.entry("monitor"), "no room".to_owned());
            bed.control.handle_event(Event::ServiceFailed { entry, reason }, is_short);
            bed.settle();
            let refusal = asked.try_answer().unwrap().unwrap_err();
            assert_eq!(refusal.code, code);
            assert_eq!(refusal.message, "the service 'monitor' did not start: no room");
        }
    }
}
