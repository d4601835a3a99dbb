//! Reports to the daemon, on request: a few services in each round, so that packets do not wait
//! until thousands have been reported.
//!
//! ```text
//!   Report ─▶ Service, Service, … │ …, Service │ Sessions │ … │ Sessions, Reported
//!             └── one round ──────┘
//!   ReportSessions ─▶ bytes sent by services │ … │ Sessions: changed ones │ …, SessionsReported
//! ```

use crate::control::link::Link;
use crate::dispatch::Dispatcher;
use crate::intake::Intake;
use crate::memory::Memory;
use crate::protocol::{CellReport, FromCell, SESSION_REPORTS_MAX};
use crate::sched::{Timer, pacer};
use crate::streams::turns::StreamTurns;
use anyhow::Result;
use units::Bytes;

/// Services reported in one round: some 10 µs each.
const SERVICES_PER_ROUND: usize = 8;
/// Services of which only the bytes sent are read in one round, and sessions: some 0.1 µs each, two
/// cache misses.
const LOOKS_PER_ROUND: usize = 250;

const _: () = assert!(LOOKS_PER_ROUND <= SESSION_REPORTS_MAX, "those of a round are one message");

/// Scope of a report, as the daemon has requested it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Services, sessions and the cell: all of them.
    All,
    /// Sessions that did something since their last report.
    Sessions,
}

/// Progress of a report.
#[derive(Debug, Default)]
enum Step {
    /// Idle: no report is requested.
    #[default]
    Rest,
    /// Services: the next slot, and bytes sent by those before it, by session.
    Services(Of, usize, Vec<Bytes>),
    /// Sessions: the next slot, and bytes sent by services, by session.
    Sessions(Of, usize, Vec<Bytes>),
}

/// Owners that are reported on.
pub(crate) struct Sources<'a, T> {
    pub(crate) dispatcher: &'a mut Dispatcher<T>,
    pub(crate) streams: &'a StreamTurns,
    pub(crate) intake: &'a Intake,
    pub(crate) accounts: &'a Memory,
}

/// Requested report, sent round by round.
#[derive(Debug, Default)]
pub(crate) struct Reports(Step);

impl Reports {
    /// Returns true while a report is unfinished.
    pub(crate) const fn are_due(&self) -> bool {
        !matches!(self.0, Step::Rest)
    }

    /// Begins a full report.
    pub(crate) fn handle_request(&mut self) {
        self.0 = Step::Services(Of::All, 0, Vec::new());
    }

    /// Begins a report on sessions only; a full report under way has them, too.
    pub(crate) fn handle_request_for_sessions(&mut self) {
        if !self.are_due() {
            self.0 = Step::Services(Of::Sessions, 0, Vec::new());
        }
    }

    /// Abandons the report: the daemon that requested it is gone.
    pub(crate) fn forget(&mut self) {
        self.0 = Step::Rest;
    }

    /// Sends the next part of the report.
    ///
    /// # Errors
    /// The daemon cannot be notified.
    pub(crate) fn poll(&mut self, sources: Sources<'_, impl Timer>, link: &mut Link) -> Result<()> {
        self.0 = match std::mem::take(&mut self.0) {
            Step::Rest => return Ok(()),
            Step::Services(of, from, sent) => report_services(of, from, sent, sources, link)?,
            Step::Sessions(of, from, sent) => report_sessions(of, from, &sent, sources, link)?
                .map_or(Step::Rest, |next| Step::Sessions(of, next, sent)),
        };
        Ok(())
    }
}

fn report_services(
    of: Of,
    from: usize,
    mut sent: Vec<Bytes>,
    sources: Sources<'_, impl Timer>,
    link: &mut Link,
) -> Result<Step> {
    let services = sources.dispatcher.services_mut();
    let most = if of == Of::All { SERVICES_PER_ROUND } else { LOOKS_PER_ROUND };
    let (mut looks, mut next) = (0, from);
    while next < services.slots() && looks < most {
        next += 1;
        let Some(service) = services.at_mut(next - 1) else { continue };
        looks += 1;
        let session = usize::from(service.session().0);
        if sent.len() <= session {
            sent.resize(session + 1, Bytes::ZERO);
        }
        sent[session] += service.bytes_out();
        if of == Of::All {
            link.send(&FromCell::Service(service.entry(), Box::new(service.report())))?;
        }
    }
    let is_last = next >= services.slots();
    if of == Of::All && is_last {
        for (entry, report) in sources.streams.all() {
            link.send(&FromCell::Service(entry, Box::new(report)))?;
        }
    }
    Ok(if is_last { Step::Sessions(of, 0, sent) } else { Step::Services(of, next, sent) })
}

/// Reports on some sessions; returns the next slot, if there is one.
fn report_sessions(
    of: Of,
    from: usize,
    sent: &[Bytes],
    sources: Sources<'_, impl Timer>,
    link: &mut Link,
) -> Result<Option<usize>> {
    let sessions = sources.dispatcher.scheduler_mut().sessions_mut();
    if from == 0 {
        sessions.charge_own(pacer::processor_time());
    }
    let slots = sessions.slots();
    let next = slots.min(from + LOOKS_PER_ROUND);
    let some: Vec<_> = (from..next)
        .filter_map(|slot| {
            let sent = sent.get(slot).copied().unwrap_or_default();
            sessions.poll_report(slot, sent, of == Of::All)
        })
        .collect();
    if !some.is_empty() {
        link.send(&FromCell::Sessions(some))?;
    }
    if next < slots {
        return Ok(Some(next));
    }
    if of == Of::Sessions {
        link.send(&FromCell::SessionsReported)?;
        return Ok(None);
    }
    let mut report = CellReport {
        notices_dropped: link.dropped(),
        memory_rest: sources.accounts.rest(),
        ..CellReport::default()
    };
    sources.dispatcher.report(&mut report);
    sources.intake.report(&mut report);
    link.send(&FromCell::Reported(Box::new(report)))?;
    Ok(None)
}
