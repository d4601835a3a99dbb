//! Cells for unit tests: the other ends of sockets, and no process.

use super::link::Process;
use super::{CellLink, Spawn};
use anyhow::bail;
use cell::protocol::{
    CellReport, Failure, FromCell, ServiceReport, ServiceSpec, SessionReport, ToCell, decode,
    encode,
};
use sandbox::fd_passing::{self, Received};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use units::{Bytes, EntryId};

/// Process that is none.
#[derive(Debug)]
struct Nobody(u32);

impl Process for Nobody {
    fn pid(&self) -> u32 {
        self.0
    }

    fn end(self: Box<Self>) -> io::Result<String> {
        Ok("killed".to_owned())
    }
}

/// Mock of a cell: it answers as a cell does, unless it is set to be quiet.
#[derive(Clone, Default)]
pub(crate) struct FakeCell(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Other end of the cell that was started last.
    socket: Option<OwnedFd>,
    starts: u32,
    refuses: bool,
    is_quiet: bool,
    received: Vec<ToCell>,
    services: BTreeMap<EntryId, ServiceReport>,
    sessions: Vec<SessionReport>,
    report: CellReport,
    failure: Option<Failure>,
}

impl FakeCell {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Returns the function that starts cells.
    pub(crate) fn spawn(&self) -> Spawn {
        let cell = self.clone();
        Box::new(move |directory, _queues| {
            let mut state = cell.state();
            state.starts += 1;
            if state.refuses {
                bail!("no such program");
            }
            let (ours, theirs) = fd_passing::pair()?;
            state.socket = Some(theirs);
            state.services.clear();
            state.received.clear();
            let process = Nobody(1000 + state.starts);
            CellLink::join(Box::new(process), directory.join("cell.sock"), ours)
        })
    }

    /// Sets whether the next cells do not start.
    pub(crate) fn refuse_starts(&self, refuses: bool) {
        self.state().refuses = refuses;
    }

    /// Sets whether it receives without answering.
    pub(crate) fn be_quiet(&self, is_quiet: bool) {
        self.state().is_quiet = is_quiet;
    }

    /// Makes services that are started from now on fail.
    pub(crate) fn fail_starts(&self, failure: Option<Failure>) {
        self.state().failure = failure;
    }

    /// Returns the number of cells that were to be started.
    pub(crate) fn starts(&self) -> u32 {
        self.state().starts
    }

    /// Returns the number of messages received since its start for which `is_it` is true.
    pub(crate) fn count(&self, is_it: impl Fn(&ToCell) -> bool) -> usize {
        self.state().received.iter().filter(|it| is_it(it)).count()
    }

    /// Returns the text of the messages received since its start, or since the last call.
    pub(crate) fn take_words(&self) -> Vec<String> {
        let words = |message: ToCell| {
            let text = format!("{message:?}");
            let end = text.find([' ', '(']).unwrap_or(text.len());
            text[..end].to_owned()
        };
        self.state().received.drain(..).map(words).collect()
    }

    /// Returns the description of a service that it was asked to start.
    pub(crate) fn started(&self, service: &str) -> Option<ServiceSpec> {
        let facts = |message: &ToCell| match message {
            ToCell::Start(facts) if facts.name == service => Some((**facts).clone()),
            _ => None,
        };
        self.state().received.iter().rev().find_map(facts)
    }

    /// Sets what it reports on a service.
    pub(crate) fn set_report(&self, entry: EntryId, report: ServiceReport) {
        self.state().services.insert(entry, report);
    }

    /// Sets what it reports on sessions.
    pub(crate) fn set_sessions(&self, reports: Vec<SessionReport>) {
        self.state().sessions = reports;
    }

    /// Sets what it reports on itself.
    pub(crate) fn set_own_report(&self, report: CellReport) {
        self.state().report = report;
    }

    /// Says something.
    pub(crate) fn say(&self, message: &FromCell) {
        self.state().say(message);
    }

    /// Says bytes that are no message.
    pub(crate) fn say_bytes(&self, bytes: &[u8]) {
        let state = self.state();
        let socket = state.socket.as_ref().expect("it runs");
        fd_passing::send(socket.as_fd(), bytes, &[]).unwrap();
    }

    /// Dies.
    pub(crate) fn die(&self) {
        self.state().socket = None;
    }

    /// Receives all pending messages, and answers them.
    pub(crate) fn turn(&self) {
        let mut state = self.state();
        let mut buffer = vec![0; fd_passing::MESSAGE_LENGTH_MAX];
        while let Some(socket) = &state.socket {
            let Ok(Received::Message(length, _)) = fd_passing::receive(socket.as_fd(), &mut buffer)
            else {
                return;
            };
            let message: ToCell = decode(&buffer[..length]).unwrap();
            if !state.is_quiet {
                state.answer(&message);
            }
            state.received.push(message);
        }
    }
}

impl State {
    fn say(&self, message: &FromCell) {
        let socket = self.socket.as_ref().expect("it runs");
        let bytes = encode(message).unwrap();
        assert!(fd_passing::try_send(socket.as_fd(), &bytes, &[]).unwrap(), "it is heard");
    }

    fn answer(&mut self, message: &ToCell) {
        match message {
            ToCell::Start(facts) => {
                let entry = facts.entry;
                if let Some(failure) = self.failure.clone() {
                    return self.say(&FromCell::StartFailed(entry, failure));
                }
                self.services
                    .insert(entry, ServiceReport { lanes_running: 1, ..Default::default() });
                self.say(&FromCell::Started(entry));
            }
            ToCell::Replace(facts, _) => self.say(&FromCell::Replaced(facts.entry, 7)),
            ToCell::Stop(entry) => {
                let report = self.services.remove(entry).unwrap_or_default();
                self.say(&FromCell::Stopped(*entry, Box::new(report)));
            }
            ToCell::Report => {
                for (entry, report) in &self.services {
                    self.say(&FromCell::Service(*entry, Box::new(report.clone())));
                }
                self.say(&FromCell::Sessions(self.sessions.clone()));
                self.say(&FromCell::Reported(Box::new(self.report)));
            }
            ToCell::ReportSessions => {
                self.say(&FromCell::Sessions(self.sessions.clone()));
                self.say(&FromCell::SessionsReported);
            }
            ToCell::MemoryOf(_) => self.say(&FromCell::MemoryOf(Bytes::ZERO, None)),
            ToCell::Message(entry, bytes) => {
                let answers = bytes.iter().map(|byte| Some(i32::from(*byte))).collect();
                self.say(&FromCell::Answered(*entry, answers));
            }
            _ => {}
        }
    }
}
