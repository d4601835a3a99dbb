//! Sessions on the way from one state to another.

use super::Work;
use crate::answer::Answer;
use crate::control::state::NodeState;
use api::EventKind;
use node::{Command, Outcome};
use units::Name;

/// Sets the sessions of a state; others lose their reservations.
pub(super) fn arrange(work: &mut Work, state: &mut NodeState) -> Answer<()> {
    let sessions = work.goal().sessions.clone();
    let command = Command::SessionsArrange { sessions: sessions.clone() };
    let Outcome::SessionsArranged { created, changed } = state.command(command)? else {
        return Ok(());
    };
    for session in created {
        let text = format!("the session '{session}' was made");
        state.note_session(EventKind::SessionCreated, &session, text);
    }
    for session in changed {
        let text = format!("the session '{session}' has another reservation now");
        state.note_session(EventKind::SessionChanged, &session, text);
    }
    for (name, session) in &mut work.now.sessions {
        if !sessions.contains_key(name) {
            session.reservation = Default::default();
        }
    }
    work.now.sessions.extend(sessions);
    Ok(())
}

/// Removes an empty session.
pub(super) fn remove(work: &mut Work, state: &mut NodeState, session: &Name) -> Answer<()> {
    work.now.sessions.remove(session);
    let command = Command::SessionRemove { session: session.clone(), cascade: false };
    state.command(command).map(drop)
}
