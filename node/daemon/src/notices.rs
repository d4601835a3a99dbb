//! What the node decided, told: to whoever waits, and to the journal of events.

use crate::daemon::Daemon;
use crate::events::Note;
use crate::http;
use api::EventKind;
use node::Notice;

impl Daemon {
    pub(crate) fn report(&mut self, notice: Notice) {
        self.work_heard(&notice);
        match notice {
            Notice::ServiceRunning { service, restarts } => {
                let again =
                    if restarts > 0 { format!(", restart {restarts}") } else { String::new() };
                let text = format!("the service '{service}' runs{again}");
                self.note(Note::new(EventKind::ServiceStarted, text).service(&service));
                if let Some(waiting) = self.waiting.remove(&service) {
                    self.deployed(waiting);
                }
                self.called_runs(&service);
            }
            Notice::ServiceReplaced { service } => {
                let text = format!("a new version of '{service}' runs, and is watched");
                self.note(Note::new(EventKind::ServiceReplaced, text).service(&service));
            }
            Notice::ServiceKept { service } => {
                tracing::info!(%service, "the new version of the service stays");
                self.forget_modules();
                if let Some(waiting) = self.waiting.remove(&service) {
                    self.deployed(waiting);
                }
            }
            Notice::ReplaceFailed { service, reason } => {
                let text =
                    format!("a new version of '{service}' does not run, the old one goes on");
                let note = Note::new(EventKind::ServiceNotStarted, text).service(&service);
                self.note(note.reason(&reason));
                self.forget_modules();
                let message = format!("'{service}' goes on as it was: {reason}");
                self.refuse_waiting(&service, message);
            }
            Notice::ServicePutBack { service, reason } => {
                let text =
                    format!("a new version of '{service}' failed at once, the old one is back");
                let note = Note::new(EventKind::ServicePutBack, text).service(&service);
                self.note(note.reason(&reason));
                self.forget_modules();
                let message = format!(
                    "the new version of '{service}' failed at once, and the one before runs again: {reason}"
                );
                self.refuse_waiting(&service, message);
            }
            Notice::ServiceMoved { service, level } => {
                let text = format!("the service '{service}' runs at {level}");
                self.note(Note::new(EventKind::ServiceMoved, text).service(&service));
                self.moved(&service, level);
            }
            Notice::MoveFailed { service, reason } => {
                let text = format!("the service '{service}' did not move");
                let note = Note::new(EventKind::MoveFailed, text).service(&service);
                self.note(note.reason(&reason));
                let message = format!("the service '{service}' stays where it is: {reason}");
                self.refuse_movers(&service, &message);
            }
            Notice::ServiceNotStarted { service, reason } => {
                let text = format!("the service '{service}' did not start");
                let note = Note::new(EventKind::ServiceNotStarted, text).service(&service);
                self.note(note.reason(&reason));
                self.forget_modules();
                let message = format!("the service '{service}' did not start: {reason}");
                self.refuse_waiting(&service, message);
                self.called_ended(&service);
            }
            Notice::ServiceFailed { service, reason, closed, .. } => {
                let what = if closed { "are dropped" } else { "go plainly" };
                let text = format!("the service '{service}' failed, its packets {what}");
                let note = Note::new(EventKind::ServiceFailed, text).service(&service);
                self.note(note.reason(&reason));
                let message = format!("the service '{service}' failed: {reason}");
                self.refuse_movers(&service, &message);
                self.refuse_waiting(&service, message);
            }
            Notice::ServiceBypassed { service, reason } => {
                let text = format!(
                    "the service '{service}' has trapped too often: it is bypassed until it is deployed again"
                );
                let note = Note::new(EventKind::ServicePolicy, text).service(&service);
                self.note(note.reason(&reason));
                let message = format!("the service '{service}' is bypassed: {reason}");
                self.refuse_movers(&service, &message);
                self.refuse_waiting(&service, message);
            }
            Notice::ServiceRemoved { service } => {
                let text = format!("the service '{service}' is gone");
                self.note(Note::new(EventKind::ServiceRemoved, text).service(&service));
                let removed = format!("the service '{service}' was removed");
                self.refuse_movers(&service, &removed);
                self.refuse_waiting(&service, removed);
                self.called_ended(&service);
                // Whoever hears of it may rely on it: behind the last closed service all is open.
                self.close_ports();
                self.removals.handle_stopped(&service);
                self.forget_modules();
            }
            Notice::SessionRemoved { session } => self.session_gone(&session),
            Notice::CellLost { reason, closed, .. } => {
                let text = match closed.is_empty() {
                    true => "the cell is lost: until it is back, packets of services go plainly",
                    false => {
                        "the cell is lost: until it is back, packets of open services go plainly, and those of closed ones are dropped"
                    }
                };
                self.note(Note::new(EventKind::CellLost, text).reason(&reason));
                for service in closed {
                    let text = format!("packets of '{service}' are dropped until it runs again");
                    self.note(Note::new(EventKind::ServicePolicy, text).service(service));
                }
                for mover in self.movers.take_all() {
                    let message = format!("the cell was lost: {reason}");
                    mover.reply.refuse(http::error(api::ErrorCode::Failed, message, None));
                }
            }
        }
    }
}
