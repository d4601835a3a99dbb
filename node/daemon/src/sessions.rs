//! Sessions at a node's API: what there is and what it uses.
//!
//! What sessions use is in `usage`.

mod capacity;
mod history;
mod usage;

pub(crate) use history::LOOK_EVERY;
pub(crate) use usage::Sessions;

use crate::answer::Answer;
use crate::control::authority::Sight;
use crate::control::sessions::{no_session, shown};
use crate::daemon::Daemon;
use ::session::admission::Left;
use api::{LeftInfo, SCHEMA_VERSION, SessionDetails, SessionList};
use cell::protocol::ToCell;
use node::Session;
use std::collections::BTreeMap;
use units::{Name, SessionId};

/// What is in a session.
#[derive(Default)]
struct Things {
    services: Vec<String>,
    rules: Vec<u32>,
    /// Linear memories of its services.
    memory_bytes: u64,
}

impl Daemon {
    /// The cell may give the number's part to others.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.sessions.forget(session);
        if let Ok(front) = self.plane.front.front() {
            front.clear_account(session.0);
        }
        self.cells.tell_all(&ToCell::ForgetSession(session), &[]);
    }

    pub(crate) fn session_list(&self, sight: &Sight) -> Answer<SessionList> {
        let counts = self.session_counts()?;
        let seen = self.control.node().sessions().filter(|session| sight.has_session(session));
        let mut things = self.things_by_session(sight);
        let details = seen.map(|it| self.shown_session(it, &counts, &mut things));
        let sessions = details.collect();
        let left = self.control.node().left().filter(|_| sight.everything).map(shown_left);
        Ok(SessionList { schema_version: SCHEMA_VERSION, sessions, left })
    }

    pub(crate) fn session_details(&self, sight: &Sight, wanted: &str) -> Answer<SessionDetails> {
        let counts = self.session_counts()?;
        let named = Name::new(wanted).ok();
        let found = named.and_then(|name| self.control.node().session(&name));
        let found = found.filter(|session| sight.has_session(session));
        let found = found.ok_or_else(|| no_session(self.control.node(), sight, wanted))?;
        let mut things = self.things_by_session(sight);
        let mut details = self.shown_session(found, &counts, &mut things);
        details.used.history = self.history_of(&found.name);
        Ok(details)
    }

    /// The services and rules of each session that somebody sees, and its memory.
    fn things_by_session(&self, sight: &Sight) -> BTreeMap<Name, Things> {
        let mut things: BTreeMap<Name, Things> = BTreeMap::new();
        for service in self.control.node().services() {
            let of = things.entry(service.session.clone()).or_default();
            if sight.has(service.session.as_str(), service.owner) {
                of.services.push(service.name.to_string());
            }
            of.memory_bytes += self.cells.report_of(service.entry).map_or(0, |it| it.memory_bytes);
        }
        let rules = self.control.node().all_rules().into_iter();
        for view in rules.filter(|it| sight.has(it.rule.spec.session.as_str(), it.owner)) {
            things.entry(view.rule.spec.session).or_default().rules.push(view.rule.id.0);
        }
        things
    }

    fn shown_session(
        &self,
        session: &Session,
        counts: &BTreeMap<Name, api::SessionCounts>,
        things: &mut BTreeMap<Name, Things>,
    ) -> SessionDetails {
        let things = things.remove(&session.name).unwrap_or_default();
        let Things { services, mut rules, memory_bytes } = things;
        rules.sort_unstable();
        SessionDetails {
            schema_version: SCHEMA_VERSION,
            id: session.id.0,
            name: session.name.to_string(),
            owner: self.control.state().authority().shown(session.owner),
            built_in: session.is_built_in(),
            state: if session.leaving { "leaving" } else { "there" }.to_owned(),
            promised: shown(&session.reservation),
            short: self.control.desired().shortfall().sessions.get(&session.name).cloned(),
            used: self.session_use(session, memory_bytes, counts),
            services,
            rules,
        }
    }
}

/// What can still be promised, in the API's words.
fn shown_left(left: Left) -> LeftInfo {
    let Left { guest, below, memory, packet_memory, ports } = left;
    LeftInfo {
        cpu_parts: guest.into_iter().map(|parts| parts.0).collect(),
        below_parts: below.0,
        memory_bytes: memory.0,
        queue_bytes: packet_memory.0,
        port_parts: ports.into_iter().map(|(port, parts)| (port.to_string(), parts.0)).collect(),
    }
}
