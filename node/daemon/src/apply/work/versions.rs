//! Work puts another version in the place of a service, with what that knows.
//!
//! ```text
//!  Replace ─▶ ServiceKept ────────────▶ the next step, when all are kept
//!     │ ReplaceFailed, ServicePutBack ─▶ where memory may be lost: once more, empty
//!     │                                  else: the work fails, and goes back
//!     └─ the service does not run ─────▶ it starts as that version
//! ```

use super::{Awaited, Purpose, Work};
use crate::daemon::Daemon;
use crate::events::Note;
use crate::http::Answer;
use crate::views::failed;
use api::EventKind;
use module_store::Digest;
use node::command::Memory;
use node::{Command, Outcome, ServiceState};
use units::Name;

impl Work {
    /// A service is not the version that it was to be.
    pub(super) fn not_replaced(&mut self, service: &Name) {
        let (now, before) = (self.now.services.get_mut(service), self.before.services.get(service));
        if let (Some(now), Some(before)) = (now, before) {
            now.digest = before.digest.clone();
            now.parameters = before.parameters.clone();
            now.level = before.level;
        }
    }
}

impl Daemon {
    pub(super) fn step_replace(&mut self, service: &Name, memory: Memory) -> Answer<()> {
        let desired = self.work_state().and_then(|state| state.services.get(service)).cloned();
        let Some(desired) = desired else { return Ok(()) };
        let Some(present) = self.node.service(service) else { return self.step_deploy(service) };
        if desired.is_version(present) {
            // On the way back: it never became another one, or was put back.
            return Ok(());
        }
        let runs = present.state == ServiceState::Running;
        let digest: Digest = desired.digest.parse().map_err(failed)?;
        let module = self.hold(&digest)?;
        if let Some(work) = self.work.as_mut() {
            if let Some(now) = work.now.services.get_mut(service) {
                now.digest = desired.digest;
                now.parameters = desired.parameters.clone();
                now.functions = desired.functions;
                now.level = desired.level;
            }
            let empty = memory == Memory::Discarded;
            let awaited = if runs { Awaited::Version { empty } } else { Awaited::Start };
            work.pending.insert(service.clone(), awaited);
        }
        let replacing = self.command(Command::Replace {
            service: service.clone(),
            module: module.with_functions(desired.functions),
            parameters: desired.parameters,
            // While nothing may run below, the wish is only noted, by the arrangement.
            level: desired.level.filter(|_| self.node.bpf()),
            memory,
        });
        let Some(work) = self.work.as_mut() else { return replacing.map(drop) };
        match replacing {
            Ok(Outcome::Replacing { lost: Some(why), .. }) => {
                if let Some(Awaited::Version { empty }) = work.pending.get_mut(service) {
                    *empty = true;
                }
                self.begins_empty(service, why);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(problem) => {
                work.pending.remove(service);
                work.not_replaced(service);
                Err(problem)
            }
        }
    }

    pub(super) fn tell_of_renewal(&mut self, service: &Name) {
        let wanted = self.work_state().and_then(|state| state.services.get(service));
        let present = self.node.service(service).filter(|it| it.state == ServiceState::Running);
        if let (Some(present), Some(wanted)) = (present, wanted) {
            let (from, to) = (&present.session, &wanted.session);
            let why = format!("it changes its session from '{from}' to '{to}'");
            self.begins_empty(service, why);
        }
    }

    /// Tells that a service forgets what it knew.
    fn begins_empty(&mut self, service: &Name, why: String) {
        let text = format!("another version of '{service}' begins empty");
        self.note(Note::new(EventKind::StateLost, text).service(service).reason(&why));
        if let Some(work) = self.work.as_mut().filter(|work| work.failure.is_some()) {
            work.lost.insert(service.clone(), why);
        }
    }

    /// A version of a service does not run. One whose state could be handed over, it was
    /// thought, begins empty if that is allowed.
    pub(super) fn version_failed(&mut self, service: &Name, message: String, may_try_again: bool) {
        let Some(work) = self.work.as_mut() else { return };
        let empty = match work.pending.remove(service) {
            Some(Awaited::Version { empty }) => empty,
            // It waited for a cell: what it knew is gone.
            Some(Awaited::Start) => true,
            Some(Awaited::Move) | None => return,
        };
        let runs = self.node.service(service).is_some_and(|it| it.state == ServiceState::Running);
        if may_try_again && !empty && runs && self.step_replace(service, Memory::Discarded).is_ok()
        {
            return self.begins_empty(service, message);
        }
        let Some(work) = self.work.as_mut() else { return };
        work.not_replaced(service);
        if matches!(work.purpose, Purpose::Resume) {
            self.desired.missing.insert(service.clone(), message.clone());
        }
        self.step_failed(failed(message));
    }
}
