//! Calls of the data plane, and the actions that follow from them.

use super::Runtime;
use crate::cells::CellNumber;
use crate::control::Control;
use crate::dataplane::{self, DataPlane};
use crate::done::Done;
use anyhow::Result;
use cell::protocol::ToCell;
use std::os::fd::AsFd;

/// Calls the data plane, and leaves the actions that follow.
pub(super) fn ask_plane<T>(
    runtime: &mut Runtime,
    control: &mut Control,
    ask: impl FnOnce(&mut DataPlane, &dataplane::Around<'_>) -> T,
) -> T {
    let around = dataplane::Around {
        node: control.node(),
        desired: control.state().desired().state(),
        node_changed: runtime.node_changed,
        has_cell: runtime.cells.is_any(),
        placement: &runtime.placement,
    };
    ask(&mut runtime.plane, &around)
}

/// Handles all pending actions of the data plane.
///
/// # Errors
/// The first failure to give cells what they need.
pub(super) fn do_plane_actions(runtime: &mut Runtime, control: &mut Control) -> Result<()> {
    let mut failed = Ok(());
    while let Some(action) = runtime.plane.poll_action() {
        let done = do_plane_action(runtime, control, action);
        failed = failed.and(done);
    }
    failed
}

fn do_plane_action(
    runtime: &mut Runtime,
    control: &mut Control,
    action: dataplane::Action,
) -> Result<()> {
    use dataplane::Action;
    match action {
        Action::Note(note) => control.note(note),
        Action::Tell(message) => runtime.cells.notify_all(&message, &[]),
        Action::Give(message, fds) => {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            runtime.cells.send_all(&message, &fds).inspect_err(|error| {
                tracing::error!(error = format!("{error:#}"), "a message to the cell was not sent");
            })?;
        }
        Action::GiveQueue { port, message, fds } => {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            let given = runtime.cells.send_queue(CellNumber::FIRST, &message, &fds);
            given.inspect_err(|error| {
                let error = format!("{error:#}");
                tracing::error!(%port, error, "the port's queue was not given to the cell: services get no packets of this port");
            })?;
        }
        Action::UseRules(number, memory) => {
            match runtime.cells.send_all(&ToCell::Rules(number), &[memory.as_fd()]) {
                Ok(()) => runtime.plane.await_rules(runtime.clock),
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "the rules were not given to the cell: packet ports go on with the ones before"
                    );
                }
            }
        }
        Action::NoKernelLevel => control.handle_no_kernel_level(),
        Action::SweepAfter(after) => {
            let done = runtime.done.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let _ = done.send(Done::InterceptionsLeft);
            });
        }
    }
    Ok(())
}
