//! What memory is in use: the cell keeps account of it, and is asked before some of it is
//! promised.

use crate::daemon::{Daemon, Request};
use crate::done::Done;
use crate::sessions::SessionQuestion;
use ::session::admission::{MemoryUsed, UsedBy};
use ::session::memory::{Account, Use};
use api::MemoryUse;
use cell::protocol::ToCell;
use std::collections::BTreeMap;
use std::time::Duration;
use units::{Bytes, Name, SessionId};

/// A cell that does not say within this time what is in use is asked again with the next change.
const SAID_WITHIN: Duration = Duration::from_secs(2);

/// Whether it is known what is in use, for the change that is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Known {
    #[default]
    No,
    /// The cell has been asked, with this number.
    Asked(u64),
    Yes,
}

/// A change wants memory promised: to this session, if it is there already.
pub(crate) struct MemoryWanted(Option<Name>);

impl MemoryWanted {
    /// What a request wants; nothing of those that promise no memory.
    pub(crate) fn of(request: &Request) -> Option<Self> {
        let Request::Session(question) = request else { return None };
        match question {
            SessionQuestion::Create(request, _) => request.memory.is_some().then_some(Self(None)),
            SessionQuestion::Set(session, change, _) => {
                let is_wanted = change.memory.is_some() || change.queue.is_some();
                is_wanted.then(|| Self(Name::new(session).ok()))
            }
            _ => None,
        }
    }
}

/// For admission.
fn used_by(account: &Account) -> UsedBy {
    let queue = account.held.of(Use::Queue);
    let bytes = account.used.saturating_sub(queue);
    UsedBy { bytes, without_promise: account.reserved.is_none() }
}

/// In the API's words.
pub(super) fn shown(account: &Account) -> MemoryUse {
    let held = Use::ALL.into_iter().map(|what| (what, account.held.of(what)));
    let by_use = held.filter(|(_, bytes)| *bytes > Bytes::ZERO);
    MemoryUse {
        used_bytes: account.used.0,
        peak_bytes: account.peak.0,
        refused: account.refused,
        lows: account.lows,
        by_use: by_use.map(|(what, bytes)| (what.name().to_owned(), bytes.0)).collect(),
    }
}

impl Daemon {
    /// Whether a change can be decided: one that promises memory only when the cell has said what
    /// is in use. It is asked then, and all changes wait, so that no two are decided by one answer.
    pub(crate) fn knows_memory_for(&mut self, request: Option<MemoryWanted>) -> bool {
        match (request, self.sessions.known) {
            (None, _) => true,
            (Some(_), Known::Yes) => {
                self.sessions.known = Known::No;
                true
            }
            (Some(_), Known::Asked(_)) => false,
            (Some(MemoryWanted(session)), Known::No) => {
                if !self.cells.is_any() {
                    return true;
                }
                let session = session.and_then(|name| Some(self.node.session(&name)?.id));
                self.sessions.asked += 1;
                let number = self.sessions.asked;
                self.sessions.known = Known::Asked(number);
                self.cells.tell_all(&ToCell::MemoryOf(session), &[]);
                let done = self.done.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(SAID_WITHIN).await;
                    let _ = done.send(Done::MemoryOverdue(number));
                });
                false
            }
        }
    }

    /// The cell has said it.
    pub(crate) fn memory_told(&mut self, rest: Bytes, session: Option<(SessionId, Box<Account>)>) {
        let mut used = self.node.memory_used();
        used.rest = rest;
        used.by.extend(session.map(|(id, account)| (id, used_by(&account))));
        self.node.set_memory_used(used);
        self.memory_settled();
    }

    /// It has not, in time.
    pub(crate) fn memory_overdue(&mut self, number: u64) {
        if self.sessions.known == Known::Asked(number) {
            self.memory_settled();
        }
    }

    /// There is no cell that could say it: what ran in it is gone, too.
    pub(crate) fn memory_unknown(&mut self) {
        self.node.set_memory_used(MemoryUsed::default());
        self.memory_settled();
    }

    /// What waits for the answer is decided, by what is known.
    fn memory_settled(&mut self) {
        if let Known::Asked(_) = self.sessions.known {
            self.sessions.known = Known::Yes;
            self.release_held();
        }
    }

    /// The cell has told of all sessions.
    pub(crate) fn memory_reported(&mut self, rest: Bytes) {
        let by = self.sessions.reports.iter();
        let by: BTreeMap<_, _> = by.map(|(id, report)| (*id, used_by(&report.memory))).collect();
        self.node.set_memory_used(MemoryUsed { rest, by });
    }

    /// Tells the cell how much there is for all sessions.
    pub(crate) fn tell_memory(&self) {
        if let Some(capacity) = self.node.capacity() {
            self.cells.tell_all(&ToCell::Memory(capacity.memory), &[]);
        }
    }
}
