//! Raised epochs: whether a call goes on, stands still, or ends.

use crate::host::Host;
use engine::Over;
use wasmtime::{Store, UpdateDeadline};

/// Asks a store's pace what to do whenever the epoch has been raised.
pub(crate) fn watch(store: &mut Store<Host>) {
    store.epoch_deadline_callback(|context| {
        let host = context.data();
        let Some(pace) = host.spec.pace.as_ref() else { return Ok(UpdateDeadline::Interrupt) };
        if host.stop.get() {
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(match pace.over(host.calls) {
            Over::GoOn => UpdateDeadline::Continue(1),
            Over::Closely => UpdateDeadline::Continue(0),
            // Asked once more as soon as it goes on: it may have been told to stop, or its turn
            // be over, when nobody looked.
            Over::Suspend => UpdateDeadline::Yield(0),
            Over::Stop => UpdateDeadline::Interrupt,
        })
    });
}
