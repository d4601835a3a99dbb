//! Epoch interruption: a raised epoch suspends or ends a call, or lets it continue.

use crate::host::Host;
use engine::PaceDecision;
use wasmtime::{Store, UpdateDeadline};

/// Makes a store consult its pace whenever the epoch has been raised.
pub(crate) fn watch(store: &mut Store<Host>) {
    store.epoch_deadline_callback(|context| {
        let host = context.data();
        let Some(pace) = host.spec.pace.as_ref() else { return Ok(UpdateDeadline::Interrupt) };
        if host.stop.get() {
            return Ok(UpdateDeadline::Interrupt);
        }
        Ok(match pace.decide(host.calls) {
            PaceDecision::Continue => UpdateDeadline::Continue(1),
            PaceDecision::ContinueClosely => UpdateDeadline::Continue(0),
            // Consult the pace again right after the resumption: the call may have been stopped, or
            // its turn be over, in the meantime.
            PaceDecision::Suspend => UpdateDeadline::Yield(0),
            PaceDecision::Stop => UpdateDeadline::Interrupt,
        })
    });
}
