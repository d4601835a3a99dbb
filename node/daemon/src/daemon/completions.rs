//! Completions of work that was done beside the loop, each given to its owner.

use super::{Daemon, Done};
use crate::observe::question::Asked;
use cell::protocol::ToCell;

/// Handles the completion of work that was done beside the loop.
pub(super) fn handle(daemon: &mut Daemon, done: Done) {
    daemon.control.set_now(daemon.now());
    match done {
        Done::Compiled(completed) => {
            daemon.runtime.handle_compiler(&mut daemon.control, completed);
        }
        Done::Stored(digest, stored, reply) => {
            super::requests::stored(daemon, digest, stored, reply)
        }
        Done::Loaded(loaded) => daemon.runtime.loaded(&mut daemon.control, *loaded),
        Done::Landed(entry) => daemon.runtime.cells().notify(entry, &ToCell::Settle(entry)),
        Done::SpeedMeasured(speed) => {
            let is_known = daemon.runtime.with_plane(&mut daemon.control, |plane, around| {
                plane.promises().handle_speed(around.node, speed)
            });
            if is_known {
                daemon.recorder.mark();
            }
        }
        Done::LaneUnused(entry) => daemon.runtime.lane_unused(&mut daemon.control, entry),
        Done::InterceptionsLeft => daemon.runtime.plane().end_interceptions(),
        Done::SpareReady(number) => daemon.runtime.reusable_ready(&mut daemon.control, number),
        Done::ReportOverdue(number) => {
            daemon.runtime.handle_report_overdue(number);
        }
        Done::MemoryOverdue(number) => daemon.control.handle_memory_overdue(number),
        Done::Explained(asked, explained) => {
            let Asked { question, reply } = *asked;
            reply.answer(daemon.observe.explained(&daemon.view(), &question, explained));
        }
        Done::Recorded(written) => daemon.control.handle_recorded(written),
        Done::Billed(billed) => {
            let billing = daemon.runtime.billing();
            let note = billing.handle_billed(billed);
            let problem = billing.problem().map(str::to_owned);
            daemon.control.set_ledger_problem(problem);
            note.into_iter().for_each(|note| daemon.control.note(note));
        }
        Done::Fetched(fetched) => {
            let Daemon { demand, control, runtime, .. } = daemon;
            demand.handle_fetched(control, runtime.billing(), *fetched);
        }
        Done::Codec(number, news) => daemon.runtime.handle_codec_news(number, news),
    }
}
