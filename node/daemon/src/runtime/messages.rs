//! Messages of cells.

use super::{Action, Runtime};
use crate::cells::CellNumber;
use crate::control::Control;
use crate::dataplane::interceptions::make_sockets;
use crate::done::Done;
use crate::events::Note;
use anyhow::Result;
use api::EventKind;
use cell::protocol::{Failure, FromCell};
use node::Event;
use std::os::fd::AsFd;
use units::{EntryId, Nanos, PortId};

/// Handles a message of a cell; `None` when its connection is closed.
pub(super) fn handle(
    runtime: &mut Runtime,
    control: &mut Control,
    cell: CellNumber,
    message: Result<Option<FromCell>>,
) {
    let message = match message {
        Ok(Some(message)) => message,
        Ok(None) => return runtime.lose(cell, String::new()),
        Err(error) => return runtime.lose(cell, format!("{error:#}")),
    };
    if runtime.cells.handle_word(cell) {
        control.note(Note::new(EventKind::CellSilent, "the cell answers again"));
    }
    match message {
        FromCell::PortReady(port, queue) => {
            handle_bound(runtime, control, cell, port, queue, Ok(()))
        }
        FromCell::PortFailed(port, queue, reason) => {
            handle_bound(runtime, control, cell, port, queue, Err(reason))
        }
        FromCell::Started(entry) => {
            runtime.place(control, |it, around| it.handle_begin(around, entry))
        }
        FromCell::StartFailed(entry, failure) => {
            handle_start_failed(runtime, control, entry, failure)
        }
        FromCell::WantsSockets(wants) => {
            for (wanted, v6) in wants.into_iter().zip([false, true]) {
                for (message, fds) in make_sockets(wanted, v6) {
                    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                    runtime.cells.notify_cell(cell, &message, &fds);
                }
            }
        }
        FromCell::WantsCodec(number, wish) => {
            runtime.cells.handle_codec_wish(cell, number, &wish);
        }
        FromCell::CodecUnwanted(number) => runtime.cells.handle_codec_unwanted(cell, number),
        FromCell::Replaced(entry, paused_us) => {
            let paused = Nanos(paused_us.saturating_mul(1000));
            runtime.place(control, |it, around| it.handle_replaced(around, entry, paused));
        }
        FromCell::ReplaceFailed(entry, failure) => {
            let Failure { reason, is_short } = failure;
            runtime.place(control, |it, around| {
                it.handle_replace_failed(around, entry, reason, is_short)
            });
        }
        FromCell::VersionConfirmed(entry) => {
            runtime.place(control, |it, around| it.handle_kept(around, entry))
        }
        FromCell::RolledBack(entry, reason) => {
            runtime.place(control, |it, around| it.handle_put_back(around, entry, reason));
        }
        FromCell::Targeted(entry) => {
            runtime.place(control, |it, around| it.handle_targeted(around, entry, true));
        }
        FromCell::TargetFailed(entry) => {
            runtime.place(control, |it, around| it.handle_targeted(around, entry, false));
        }
        FromCell::Recounting(entry) => {
            // Packets carry the new count: what came before will be in a ring soon, or is lost.
            runtime.when_packets_have_landed(Done::Landed(entry));
        }
        FromCell::Settled(entry) => {
            runtime.place(control, |it, around| it.handle_settled(around, entry))
        }
        FromCell::Stopped(entry, report) => {
            runtime.cells.handle_service_report(cell, entry, *report);
            runtime.end_streams(control, entry);
            runtime.end_below(control, entry);
            runtime.cells.forget_service(entry);
            runtime.event(control, Event::ServiceStopped { entry });
        }
        FromCell::Trapped(entry, lane, trap, traps) => {
            let service = name_of(control, entry);
            let text = format!("the module trapped in lane {lane} and was replaced: {trap}");
            control.note(Note::new(EventKind::ServiceTrapped, text).service(service));
            runtime.event(control, Event::ServiceTrapped { entry, traps, reason: trap });
        }
        FromCell::Event(entry, code, data) => {
            let service = name_of(control, entry);
            let text = format!("the module says: {}", hex(&data));
            let note = Note::new(EventKind::ModuleEvent, text).service(service);
            control.note(note.reason(format!("code {code}")));
        }
        FromCell::Log(entry, text) => {
            let service = name_of(control, entry);
            let note = Note::new(EventKind::ModuleEvent, format!("the module says: {text}"));
            control.note(note.service(service));
        }
        FromCell::Answered(entry, answers) => runtime.cells.handle_answers(entry, answers),
        FromCell::Service(entry, report) => {
            runtime.cells.handle_service_report(cell, entry, *report)
        }
        FromCell::Sessions(reports) => runtime.usage.sessions_mut().handle_reports(reports),
        FromCell::SessionsReported => sessions_reported(runtime, control),
        FromCell::MemoryOf(rest, session) => {
            control.handle_memory(Some(runtime.usage.sessions_mut().handle_memory(rest, session)));
        }
        FromCell::Associated(id) => runtime.actions.push_back(Action::Associated(id)),
        FromCell::Call(question) => runtime.actions.push_back(Action::Calls(question)),
        FromCell::Captured(tapped) => {
            runtime.actions.push_back(Action::CapturedFrame(tapped));
        }
        FromCell::Reported(report) => {
            control
                .set_memory_used(runtime.usage.sessions_mut().handle_reported(report.memory_rest));
            sessions_reported(runtime, control);
            runtime.cells.handle_reported(cell, *report);
        }
        FromCell::Adopted(_) | FromCell::Returned(_) => {
            tracing::warn!("an answer of the cell came too late: the request was given up");
        }
    }
}

fn handle_start_failed(
    runtime: &mut Runtime,
    control: &mut Control,
    entry: EntryId,
    failure: Failure,
) {
    runtime.end_streams(control, entry);
    runtime.end_below(control, entry);
    let Failure { reason, is_short } = failure;
    runtime.refuse(control, Event::ServiceFailed { entry, reason }, is_short);
}

/// Handles the end of a cell's reports on sessions.
fn sessions_reported(runtime: &mut Runtime, control: &Control) {
    if runtime.usage.sessions_mut().handle_told() {
        runtime.note_use(control);
    }
}

fn name_of(control: &Control, entry: EntryId) -> String {
    control.node().service_of(entry).map_or_else(|| entry.to_string(), |s| s.name.to_string())
}

fn handle_bound(
    runtime: &mut Runtime,
    control: &mut Control,
    cell: CellNumber,
    port: PortId,
    queue: u32,
    result: Result<(), String>,
) {
    let result =
        result.and_then(|()| runtime.with_plane(control, |plane, _| plane.bind(port, queue)));
    if let Err(reason) = result {
        tracing::error!(%port, queue, reason, "a receive queue of the port has no socket to the cell: its packets are forwarded without services");
    }
    if runtime.cells.handle_bound(cell) {
        cell_ready(runtime, control, cell);
    }
}

/// Handles a cell that has bound all its queues.
pub(super) fn cell_ready(runtime: &mut Runtime, control: &mut Control, cell: CellNumber) {
    let pid = runtime.cells.pid(cell).unwrap_or(0);
    let text = format!("the cell, process {pid}, takes packets");
    control.note(Note::new(EventKind::CellReady, text));
    runtime.event(control, Event::CellReady);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
