//! What the cell tells its daemon when it asks: a few services in each round, so that packets do not
//! wait until thousands have been told.
//!
//! ```text
//!   Report ─▶ Service, Service, … │ …, Service │ Sessions │ … │ Sessions, Reported
//!             └── one round ──────┘
//! ```

use super::Cell;
use crate::protocol::{FromCell, SESSION_REPORTS_MAX, SessionReport};
use crate::service::Service;
use anyhow::Result;
use std::collections::VecDeque;
use units::{Bytes, SessionId};

/// Services that are told in one round: some 10 µs each.
const SERVICES_PER_ROUND: usize = 8;

/// How far the report is that the daemon has asked for.
#[derive(Debug, Default)]
pub(super) enum Reporting {
    /// It has none to get.
    #[default]
    Not,
    /// Of services, the next place.
    Services(usize),
    /// Of sessions, those that it has not been told.
    Sessions(VecDeque<SessionReport>),
}

impl Reporting {
    pub(super) const fn is_going_on(&self) -> bool {
        !matches!(self, Self::Not)
    }
}

impl Cell {
    /// Begins to report.
    pub(super) fn report(&mut self) {
        self.reporting = Reporting::Services(0);
    }

    /// Tells the daemon more of what it asked for.
    pub(super) fn report_on(&mut self) -> Result<()> {
        self.reporting = match std::mem::take(&mut self.reporting) {
            Reporting::Not => return Ok(()),
            Reporting::Services(from) => self.report_services(from)?,
            Reporting::Sessions(left) => self.report_sessions(left)?,
        };
        Ok(())
    }

    fn report_services(&mut self, from: usize) -> Result<Reporting> {
        let mut told = Vec::with_capacity(SERVICES_PER_ROUND);
        let mut next = from;
        while let Some(slot) = self.services.get_mut(next)
            && told.len() < SERVICES_PER_ROUND
        {
            next += 1;
            told.extend(slot.as_mut().map(Service::told));
        }
        for (entry, report) in told {
            self.tell(&FromCell::Service(entry, Box::new(report)))?;
        }
        Ok(match next < self.services.len() {
            true => Reporting::Services(next),
            false => Reporting::Sessions(self.session_reports()),
        })
    }

    fn report_sessions(&mut self, mut left: VecDeque<SessionReport>) -> Result<Reporting> {
        let some: Vec<_> = left.drain(..left.len().min(SESSION_REPORTS_MAX)).collect();
        self.tell(&FromCell::Sessions(some))?;
        if !left.is_empty() {
            return Ok(Reporting::Sessions(left));
        }
        self.report.associations = self.associations.report;
        self.report.memory_rest = self.accounts.rest();
        self.report.frames_free = self.pool.free() as u64;
        self.report.frames_total = self.pool.total() as u64;
        self.tell(&FromCell::Reported(Box::new(self.report)))?;
        Ok(Reporting::Not)
    }

    /// What each session used, with what its services sent.
    fn session_reports(&self) -> VecDeque<SessionReport> {
        let place = |id: SessionId| usize::from(id.0);
        let mut sent: Vec<Bytes> = Vec::new();
        for service in self.services.iter().flatten() {
            let at = place(service.facts.session);
            if sent.len() <= at {
                sent.resize(at + 1, Bytes::ZERO);
            }
            sent[at] += Bytes(service.bytes_out);
        }
        let whole = |mut report: SessionReport| {
            report.sent += sent.get(place(report.session)).copied().unwrap_or_default();
            report
        };
        self.sessions.reports().map(whole).collect()
    }
}
