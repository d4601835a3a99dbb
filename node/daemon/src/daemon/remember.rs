//! Writing down what runs, for the daemon that comes after this one.

use super::Daemon;
use crate::cells::CellNumber;
use crate::record::{self, RecordView};

/// Writes the record of what runs, or schedules that together with later changes: for thousands of
/// services it takes a tenth of a second. No client has learned of the change, and the next daemon
/// stops what it does not know.
pub(super) fn soon(daemon: &mut Daemon) {
    if daemon.recorder.due(daemon.control.is_changing()).is_some_and(|due| due <= daemon.now()) {
        at_once(daemon);
    }
}

/// Writes down what runs, if that has changed.
pub(super) fn at_once(daemon: &mut Daemon) {
    if daemon.runtime.take_dirty() {
        daemon.recorder.mark();
    }
    if !daemon.recorder.take_dirty() {
        return;
    }
    let begin = daemon.now();
    let written = daemon.control.node().with_snapshot(|node| {
        let record = RecordView {
            fingerprint: daemon.recorder.fingerprint(),
            namespace: record::namespace(),
            followed: daemon.control.state().desired().followed(),
            clock_zero_ns: record::on_machine_clock(daemon.identity.clock.started()),
            ports: &daemon.identity.file.ports,
            cell: daemon.runtime.cells().pid(CellNumber::FIRST),
            node,
            closed: daemon.runtime.usage().counted(),
            fuel_closed: daemon.runtime.usage().fuel(),
            lost_with_cells: daemon.runtime.plane().lost_with_cells(),
            sessions_before: daemon.runtime.usage().sessions().before(),
            speed: daemon.runtime.plane().measured_speed(),
            meters: daemon.runtime.usage().billing().meters(),
            has_packet_ports: daemon.runtime.plane().front().packets().is_some(),
        };
        record.write(daemon.recorder.path())
    });
    if let Err(error) = written {
        let error = format!("{error:#}");
        tracing::error!(
            error,
            "the node's running state was not written: should the daemon die now, the next one begins with an older state"
        );
    }
    daemon.recorder.handle_written(begin, daemon.now());
}
