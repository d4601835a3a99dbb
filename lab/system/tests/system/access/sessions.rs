//! Sessions in the table: one of each owner, whose names every token grants.

use super::{Got, Role, World, got};
use api::{Operation, SessionChange, SessionRequest};

/// The names of the owners' sessions.
pub(super) const NAMES: [&str; 3] = ["s-operator", "s-alice", "s-bob"];

fn session(owner: Role) -> String {
    format!("s-{owner:?}").to_lowercase()
}

impl World {
    /// One request of a role about an owner's session.
    pub(super) fn try_session(&self, role: Role, operation: Operation, owner: Role) -> Got {
        let (client, name) = (&self.clients[&role], session(owner));
        let request = SessionRequest { name: name.clone(), ..SessionRequest::default() };
        if self.line.node.client().session(&name).is_err() {
            self.clients[&owner].create_session(&request).unwrap();
        }
        match operation {
            Operation::Sessions => got(&client.sessions()),
            Operation::Session => got(&client.session(&name)),
            Operation::CreateSession => got(&client.create_session(&request)),
            Operation::SetSession => {
                let change = SessionChange { weight: Some(7), ..SessionChange::default() };
                got(&client.set_session(&name, &change))
            }
            _ => got(&client.remove_session(&name, true)),
        }
    }
}

/// What the design says (docs/guides/trust.md, "Sessions").
pub(super) fn expected(role: Role, operation: Operation, owner: Role, own: bool) -> Got {
    use Operation as O;
    let reads = matches!(operation, O::Sessions | O::Session);
    match (role, operation) {
        (_, O::Sessions) | (Role::Watcher, O::Session) => Got::Granted,
        (Role::Watcher | Role::AliceReads, _) if !reads => Got::Refused,
        _ if own => Got::Granted,
        // Everybody whose token names it may look at it, and have things in it.
        (_, O::Session) if owner == Role::Operator => Got::Granted,
        // A name that is taken, which its owner is told of.
        (_, O::CreateSession) if owner == Role::Operator => Got::Granted,
        (_, O::CreateSession) => Got::Refused,
        _ if owner == Role::Operator => Got::Refused,
        _ => Got::NotThere,
    }
}
