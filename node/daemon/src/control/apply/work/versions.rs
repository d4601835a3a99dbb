//! Replacement of services by other versions, with what they know, on the way to a state.
//!
//! ```text
//!  Replace ─▶ ServiceKept ────────────▶ the next step, when all are kept
//!     │ ReplaceFailed, ServicePutBack ─▶ where memory may be lost: once more, empty
//!     │                                  else: the work fails, and goes back
//!     └─ the service does not run ─────▶ it starts as that version
//! ```

use super::{Awaited, Purpose, Work};
use crate::answer::{Answer, failed};
use crate::control::state::NodeState;
use crate::events::Note;
use api::EventKind;
use node::command::Memory;
use node::{Command, Outcome, ServiceState};
use units::Name;

/// Replaces a service by the version of the goal; starts it where it is not there.
pub(super) fn replace(
    work: &mut Work,
    state: &mut NodeState,
    service: &Name,
    memory: Memory,
) -> Answer<()> {
    let Some(desired) = work.goal().services.get(service).cloned() else { return Ok(()) };
    let Some(present) = state.node.service(service) else {
        return work.step_deploy(state, service);
    };
    if desired.is_version(present) {
        // On the way back: it never became another one, or was put back.
        return Ok(());
    }
    let runs = present.state == ServiceState::Running;
    let module = state.hold(&desired.digest)?;
    let replacing = state.command(Command::Replace {
        service: service.clone(),
        module: module.with_functions(desired.functions),
        parameters: desired.parameters.clone(),
        // While nothing may run below, the wish is only noted, by the arrangement.
        level: desired.level.filter(|_| state.node.bpf()),
        memory,
    });
    let outcome = match replacing {
        Ok(outcome) => outcome,
        Err(problem) => {
            not_replaced(work, service);
            return Err(problem);
        }
    };
    if let Some(now) = work.now.services.get_mut(service) {
        now.digest = desired.digest;
        now.parameters = desired.parameters;
        now.functions = desired.functions;
        now.level = desired.level;
    }
    let lost = match outcome {
        Outcome::Replacing { lost, .. } => lost,
        _ => None,
    };
    let empty = memory == Memory::Discarded || lost.is_some();
    let awaited = if runs { Awaited::Version { empty } } else { Awaited::Start };
    work.pending.insert(service.clone(), awaited);
    if let Some(why) = lost {
        note_empty(work, state, service, why);
    }
    Ok(())
}

/// Notes that a service is not the version that it was to be.
pub(super) fn not_replaced(work: &mut Work, service: &Name) {
    let (now, before) = (work.now.services.get_mut(service), work.before.services.get(service));
    if let (Some(now), Some(before)) = (now, before) {
        now.digest = before.digest.clone();
        now.parameters = before.parameters.clone();
        now.level = before.level;
    }
}

/// Queues the event of a service that restarts in another session.
pub(super) fn note_renewal(work: &mut Work, state: &mut NodeState, service: &Name) {
    let wanted = work.goal().services.get(service);
    let present = state.node.service(service).filter(|it| it.state == ServiceState::Running);
    if let (Some(present), Some(wanted)) = (present, wanted) {
        let (from, to) = (&present.session, &wanted.session);
        let why = format!("it changes its session from '{from}' to '{to}'");
        note_empty(work, state, service, why);
    }
}

/// Queues the event of a service that loses its state.
fn note_empty(work: &mut Work, state: &mut NodeState, service: &Name, why: String) {
    let text = format!("another version of '{service}' begins empty");
    state.note(Note::new(EventKind::StateLost, text).service(service).reason(&why));
    if work.failure.is_some() {
        work.lost.insert(service.clone(), why);
    }
}

/// Handles a version that does not start. If a handover of its state was attempted, it begins
/// empty, where that is allowed.
pub(super) fn handle_failed(
    work: &mut Work,
    state: &mut NodeState,
    service: &Name,
    message: String,
    may_try_again: bool,
) {
    let empty = match work.pending.remove(service) {
        Some(Awaited::Version { empty }) => empty,
        // It waited for a cell: what it knew is gone.
        Some(Awaited::Start) => true,
        Some(Awaited::Move) | None => return,
    };
    let runs = state.node.service(service).is_some_and(|it| it.state == ServiceState::Running);
    if may_try_again && !empty && runs && replace(work, state, service, Memory::Discarded).is_ok() {
        return note_empty(work, state, service, message);
    }
    not_replaced(work, service);
    if matches!(work.purpose, Purpose::Resume) {
        let missing = &mut state.desired.shortfall_mut().services;
        missing.insert(service.clone(), message.clone());
    }
    work.step_failed(failed(message));
}
