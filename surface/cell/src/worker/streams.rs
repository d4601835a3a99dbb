//! Connections in the cell's loop: what happens to them is looked at each time, what can be done
//! waits for its session's turn.

use super::Cell;
use crate::pacer;
use crate::protocol::{FromCell, ServiceReport, StreamFacts, StreamReport};
use crate::sessions::Next;
use anyhow::{Context, Result, bail};
use executor::TURN_MAX;
use rustix::fd::OwnedFd;
use units::{EntryId, Nanos};

impl Cell {
    /// A service of streams begins, with what came with its facts.
    pub(super) fn start_streams(&mut self, facts: StreamFacts, fds: Vec<OwnedFd>) -> Result<()> {
        let entry = facts.entry;
        let mut fds = fds.into_iter();
        let (Some(_code), Some(interception)) = (fds.next(), fds.next()) else {
            bail!("StartStreams came without its descriptors");
        };
        let listeners = fds.collect();
        let started =
            self.accounts.charge_streams(&facts).map_err(anyhow::Error::from).and_then(|charge| {
                Ok(self.streams.start(facts, interception, listeners, None, charge)?)
            });
        if let Err(error) = started {
            return self.tell(&FromCell::StartFailed(entry, super::low::failure(&error)));
        }
        self.want_sockets()?;
        self.look_at_streams()?;
        self.tell(&FromCell::Started(entry))
    }

    /// Another version begins in a service's place.
    pub(super) fn replace_streams(&mut self, facts: StreamFacts) -> Result<()> {
        let entry = facts.entry;
        let replaced = self
            .accounts
            .charge_streams(&facts)
            .map_err(anyhow::Error::from)
            .and_then(|charge| Ok(self.streams.succeed(facts, None, charge)?));
        if let Err(error) = replaced {
            return self.tell(&FromCell::ReplaceFailed(entry, super::low::failure(&error)));
        }
        self.tell(&FromCell::Replaced(entry, 0))?;
        self.tell(&FromCell::Kept(entry))
    }

    fn want_sockets(&mut self) -> Result<()> {
        match self.streams.wants() {
            Some(wants) => self.tell(&FromCell::WantsSockets(wants)),
            None => Ok(()),
        }
    }

    /// Hears what has happened to connections: services with something to do wait for their turn.
    pub(super) fn look_at_streams(&mut self) -> Result<()> {
        if !self.streams.are_there() {
            return Ok(());
        }
        let now = pacer::now();
        self.streams.look(now).context("hearing of connections")?;
        for (session, task) in self.streams.ready(now) {
            self.sessions.wake(now, session, task);
        }
        self.want_sockets()
    }

    /// Lets a service of streams work whose turn it is; until when it did. `None` when there is no
    /// such service.
    pub(super) fn work_streams(&mut self, begin: Nanos, next: &Next) -> Option<Nanos> {
        let until = next.until.min(begin + TURN_MAX);
        let mut now = begin;
        loop {
            let has_more = self.streams.work(next.task.entry, now, until)?;
            now = pacer::now();
            if !has_more || now >= until {
                let used = now.saturating_sub(begin);
                self.streams.charge(next.task.entry, used);
                self.sessions.charge(now, next, used, !has_more);
                return Some(now);
            }
        }
    }

    /// Ends a service of streams, if it is one; its last report.
    pub(super) fn stop_streams(&mut self, entry: EntryId) -> Option<ServiceReport> {
        self.streams.stop(entry).map(report)
    }

    /// What services of streams did since they started.
    pub(super) fn told_of_streams(&self) -> Vec<(EntryId, ServiceReport)> {
        self.streams.all().map(|(facts, streams)| (facts.entry, report(streams))).collect()
    }
}

fn report(streams: StreamReport) -> ServiceReport {
    ServiceReport { streams: Some(streams), lanes_running: 1, ..ServiceReport::default() }
}
