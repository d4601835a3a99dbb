//! Sessions on the way from one state to another.

use super::Daemon;
use crate::http::Answer;
use api::EventKind;
use node::{Command, Outcome};
use units::Name;

impl Daemon {
    /// Has the sessions of the state; those that it has not are promised nothing any more.
    pub(super) fn step_sessions(&mut self) -> Answer<()> {
        let Some(sessions) = self.work_state().map(|state| state.sessions.clone()) else {
            return Ok(());
        };
        let command = Command::SessionsArrange { sessions: sessions.clone() };
        let Outcome::SessionsArranged { created, changed } = self.command(command)? else {
            return Ok(());
        };
        for session in created {
            let text = format!("the session '{session}' was made");
            self.note_session(EventKind::SessionCreated, &session, text);
        }
        for session in changed {
            let text = format!("the session '{session}' is promised something else");
            self.note_session(EventKind::SessionChanged, &session, text);
        }
        if let Some(work) = self.work.as_mut() {
            for (name, session) in &mut work.now.sessions {
                if !sessions.contains_key(name) {
                    session.reservation = Default::default();
                }
            }
            work.now.sessions.extend(sessions);
        }
        Ok(())
    }

    /// Nothing is in it any more.
    pub(super) fn step_remove_session(&mut self, session: &Name) -> Answer<()> {
        if let Some(work) = self.work.as_mut() {
            work.now.sessions.remove(session);
        }
        let command = Command::SessionRemove { session: session.clone(), cascade: false };
        self.command(command).map(drop)
    }
}
