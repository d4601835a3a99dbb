//! Calls of the placement, and the actions that follow from them.

use super::Runtime;
use crate::control::Control;
use crate::control::placement::{Action as PlacementAction, Around, Placement};
use crate::dataplane::instances::word_of;
use crate::done::Done;
use abi::Level;
use cell::Compiled;
use cell::protocol::ToCell;
use module_store::Digest;
use std::sync::Arc;
use units::EntryId;

/// Calls the placement, and leaves the actions that follow.
pub(super) fn placing<T>(
    runtime: &mut Runtime,
    control: &mut Control,
    ask: impl FnOnce(&mut Placement, &mut Around<'_>) -> T,
) -> T {
    let (now, has_cell) = (runtime.clock.now(), runtime.cells.is_any());
    let around = &mut Around { now, node: control.node(), plane: &mut runtime.plane, has_cell };
    ask(&mut runtime.placement, around)
}

/// Handles an action of the placement.
pub(super) fn do_placement(runtime: &mut Runtime, control: &mut Control, action: PlacementAction) {
    use PlacementAction as Action;
    match action {
        Action::Event(event) => runtime.event(control, event),
        Action::Refuse { is_short, event } => runtime.refuse(control, event, is_short),
        Action::Target(entry, level) => {
            runtime.cells.notify(entry, &ToCell::Target(entry, word_of(level)));
        }
        Action::Recount(entry) => runtime.cells.notify(entry, &ToCell::Recount(entry)),
        Action::VersionKnown(entry) => runtime.cells.notify(entry, &ToCell::VersionKnown(entry)),
        Action::Load(entry, level) => load(runtime, control, entry, level),
        Action::ClearLane(entry) => wait_for_packets(runtime, Done::LaneUnused(entry), true),
        Action::Spare(number) => runtime.when_packets_have_landed(Done::SpareReady(number)),
        Action::RefuseMovers(service, message) => {
            control.refuse_movers(&service, &message);
        }
        Action::Paused(service, paused) => {
            control.handle_paused(&service, paused);
        }
        Action::Begin(entry) => runtime.place(control, |it, around| it.handle_begin(around, entry)),
        Action::Resume { entry, had_lane } => {
            runtime.place(control, |it, around| it.handle_resume(around, entry, had_lane));
        }
        Action::Left(entry) => control.handle_drained(entry),
    }
}

/// Loads a service's program for a level on another thread, as the verifier may take seconds.
fn load(runtime: &mut Runtime, control: &mut Control, entry: EntryId, level: Level) {
    if level == Level::Kernel {
        // Before the first packet comes there.
        runtime.settle_gro(control, None);
    }
    let code = code_of(control, entry);
    match runtime.plane.loader(entry, level, code) {
        Ok(load) => {
            let done = runtime.done.clone();
            tokio::task::spawn_blocking(move || {
                // A send fails only if the daemon has ended.
                let _ = done.send(Done::Loaded(Box::new(load())));
            });
        }
        Err(reason) => {
            runtime
                .place(control, |it, around| it.handle_loaded(around, entry, level, Err(reason)));
        }
    }
}

/// Returns the code of a service's module, if it is compiled for the present settings.
fn code_of(control: &Control, entry: EntryId) -> Option<Arc<Compiled>> {
    let digest: Digest = control.node().service_of(entry)?.module.digest.parse().ok()?;
    let bpf = control.state().bpf_now();
    control.state().modules().code(&digest, bpf).cloned()
}

/// Sends a completion when no packet is left in the front door and programs of now, and, if it
/// `must` come, also when that cannot be known.
pub(super) fn wait_for_packets(runtime: &Runtime, then: Done, must: bool) {
    let done = runtime.done.clone();
    tokio::task::spawn_blocking(move || {
        let waited = bpf::front_door::wait_for_packets_in_flight();
        if let Err(error) = &waited {
            tracing::error!(%error, "waiting for packets in flight failed: some may be reordered or counted twice");
        }
        if waited.is_ok() || must {
            // A send fails only if the daemon has ended.
            let _ = done.send(then);
        }
    });
}
