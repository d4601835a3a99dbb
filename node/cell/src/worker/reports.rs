//! What the cell tells its daemon when it asks: a few services in each round, so that packets do not
//! wait until thousands have been told.
//!
//! ```text
//!   Report ─▶ Service, Service, … │ …, Service │ Sessions │ … │ Sessions, Reported
//!             └── one round ──────┘
//!   ReportSessions ─▶ what services sent │ … │ Sessions: those that did something │ …, SessionsReported
//! ```

use super::Cell;
use crate::protocol::{FromCell, SESSION_REPORTS_MAX};
use crate::sched::pacer;
use anyhow::Result;
use units::Bytes;

/// Services that are told in one round: some 10 µs each.
const SERVICES_PER_ROUND: usize = 8;
/// Services that are only asked what they sent, in one round, and sessions: some 0.1 µs each, two
/// misses of the caches.
const LOOKS_PER_ROUND: usize = 250;

const _: () = assert!(LOOKS_PER_ROUND <= SESSION_REPORTS_MAX, "those of a round are one message");

/// What the daemon has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Every service, every session and the cell.
    All,
    /// Sessions that did something since they were told last.
    Sessions,
}

/// How far the report is that the daemon has asked for.
#[derive(Debug, Default)]
pub(super) enum Reporting {
    /// It has none to get.
    #[default]
    Not,
    /// Of services, the next place; what those before it sent, by session.
    Services(Of, usize, Vec<Bytes>),
    /// Of sessions, the next place.
    Sessions(Of, usize, Vec<Bytes>),
}

impl Reporting {
    pub(super) const fn is_going_on(&self) -> bool {
        !matches!(self, Self::Not)
    }
}

impl Cell {
    /// Begins to report.
    pub(super) fn report(&mut self) {
        self.reporting = Reporting::Services(Of::All, 0, Vec::new());
    }

    /// Begins to report on sessions only; a report that goes on has them, too.
    pub(super) fn report_sessions_only(&mut self) {
        if !self.reporting.is_going_on() {
            self.reporting = Reporting::Services(Of::Sessions, 0, Vec::new());
        }
    }

    /// Tells the daemon more of what it asked for.
    pub(super) fn report_on(&mut self) -> Result<()> {
        self.reporting = match std::mem::take(&mut self.reporting) {
            Reporting::Not => return Ok(()),
            Reporting::Services(of, from, sent) => self.report_services(of, from, sent)?,
            Reporting::Sessions(of, from, sent) => self.report_sessions(of, from, sent)?,
        };
        Ok(())
    }

    fn report_services(&mut self, of: Of, from: usize, mut sent: Vec<Bytes>) -> Result<Reporting> {
        let most = if of == Of::All { SERVICES_PER_ROUND } else { LOOKS_PER_ROUND };
        let (mut told, mut looks, mut next) = (Vec::new(), 0, from);
        while next < self.services.places() && looks < most {
            next += 1;
            let Some(service) = self.services.at_mut(next - 1) else { continue };
            looks += 1;
            let session = usize::from(service.facts.session.0);
            if sent.len() <= session {
                sent.resize(session + 1, Bytes::ZERO);
            }
            sent[session] += Bytes(service.bytes_out);
            if of == Of::All {
                told.push(service.told());
            }
        }
        for (entry, report) in told {
            self.link.send(&FromCell::Service(entry, Box::new(report)))?;
        }
        if of == Of::All && next >= self.services.places() {
            let streams: Vec<_> = self.streams.all().collect();
            for (entry, report) in streams {
                self.link.send(&FromCell::Service(entry, Box::new(report)))?;
            }
        }
        Ok(match next < self.services.places() {
            true => Reporting::Services(of, next, sent),
            false => Reporting::Sessions(of, 0, sent),
        })
    }

    fn report_sessions(&mut self, of: Of, from: usize, sent: Vec<Bytes>) -> Result<Reporting> {
        if from == 0 {
            self.sessions.charge_own(pacer::processor_time());
        }
        let next = self.sessions.places().min(from + LOOKS_PER_ROUND);
        let sessions = &mut self.sessions;
        let some: Vec<_> = (from..next)
            .filter_map(|place| {
                let sent = sent.get(place).copied().unwrap_or_default();
                sessions.tell(place, sent, of == Of::All)
            })
            .collect();
        if !some.is_empty() {
            self.link.send(&FromCell::Sessions(some))?;
        }
        if next < self.sessions.places() {
            return Ok(Reporting::Sessions(of, next, sent));
        }
        if of == Of::Sessions {
            self.link.send(&FromCell::SessionsReported)?;
        } else {
            self.report.notices_dropped = self.link.dropped();
            self.report.associations = self.path.associations.report;
            self.report.messages_delivered = self.letters.delivered.get();
            self.report.messages_dropped = self.letters.dropped.get();
            self.report.memory_rest = self.accounts.rest();
            self.report.frames_free = self.path.pool.free() as u64;
            self.report.frames_total = self.path.pool.total() as u64;
            self.link.send(&FromCell::Reported(Box::new(self.report)))?;
        }
        Ok(Reporting::Not)
    }
}
