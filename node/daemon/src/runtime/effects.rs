//! Effects of `core/node` that cells and the data plane do.

use super::Runtime;
use crate::control::Control;
use cell::protocol::{SessionSpec, StateTransfer, ToCell};
use node::{Effect, Event};
use units::EntryId;

/// Tells the cell to stop a service; one that waits for its compiler never begins there.
pub(super) fn stop_service(runtime: &mut Runtime, control: &mut Control, entry: EntryId) {
    let was_to_start = runtime.compilers.forget(entry);
    super::start::do_compiled(runtime, control);
    match was_to_start {
        true => runtime.event(control, Event::ServiceStopped { entry }),
        false => runtime.cells.notify(entry, &ToCell::Stop(entry)),
    }
}

/// Applies an effect.
pub(super) fn do_effect(runtime: &mut Runtime, control: &mut Control, effect: Effect) {
    match effect {
        Effect::StartCell { restarts } => runtime.start_cell(control, restarts),
        Effect::StartService { start, .. } => {
            super::start::start_service(runtime, control, start, None)
        }
        Effect::ReplaceService { start, path } => {
            super::start::start_service(runtime, control, start, Some(cell_path(path)));
        }
        Effect::MoveService { entry, level } => {
            runtime.place(control, |it, around| it.handle_move(around, entry, level));
        }
        Effect::SetEdges { entry, edges } => {
            if let Some(lane) = runtime.plane.front().lane(entry) {
                lane.set_edges(edges);
            }
            runtime.cells.notify(entry, &ToCell::Edges(entry, edges));
        }
        Effect::SetClosed { entry, closed } => {
            if let Some(lane) = runtime.plane.front().lane(entry) {
                lane.set_closed(closed);
            }
            runtime.cells.notify(entry, &ToCell::Closed(entry, closed));
        }
        Effect::StopService { entry } => stop_service(runtime, control, entry),
        Effect::SetSession { session, reservation } => {
            let facts = SessionSpec { id: session, reservation };
            runtime.cells.notify_all(&ToCell::Session(Box::new(facts)), &[]);
            runtime.plane.promises().mark_unsettled();
        }
        Effect::RemoveSession { session } => {
            // Cells may give the number's part to others.
            runtime.usage.sessions_mut().forget(session);
            if let Ok(front) = runtime.plane.front_door() {
                front.accounts().clear_account(session.0);
            }
            runtime.cells.notify_all(&ToCell::ForgetSession(session), &[]);
            runtime.plane.promises().mark_unsettled();
        }
        Effect::ClearRuleCounters { rule } => {
            if let Err(error) = runtime.plane.front().clear_rule_stats(rule) {
                tracing::error!(%rule, %error, "the counters of a removed rule were not cleared: a new rule with its number begins with them");
            }
        }
        Effect::InstallRules { rules, .. } => {
            runtime.with_plane(control, |plane, around| plane.install(&rules, around.has_cell));
        }
        // Control handles them, in their order.
        Effect::Report(_) => {}
    }
}

/// Converts a path of state to the cell's type.
const fn cell_path(path: node::StatePath) -> StateTransfer {
    match path {
        node::StatePath::Memory => StateTransfer::Memory,
        node::StatePath::Hooks => StateTransfer::Hooks,
        node::StatePath::Empty => StateTransfer::Empty,
    }
}
