//! Pending requests to move services to another level.

use super::edit::Edit;
use super::recorded::Recorded;
use super::recording::Facts;
use super::state::NodeState;
use crate::answer::{Answer, error, failed, level, name};
use crate::reply::Reply;
use abi::Level;
use api::{ErrorCode, Moved, SCHEMA_VERSION};
use node::Command;
use std::collections::BTreeMap;
use std::time::Instant;
use units::Name;

/// Pending request to move a service.
struct Mover {
    reply: Reply<Moved>,
    since: Instant,
    from: Level,
    to: Level,
}

/// Pending requests by service; a service without one has no entry.
#[derive(Default)]
pub(crate) struct Movers(BTreeMap<Name, Vec<Mover>>);

impl Movers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, service: Name, mover: Mover) {
        self.0.entry(service).or_default().push(mover);
    }

    /// Handles a request to move a service; answered when the move has ended and is recorded.
    pub(super) fn handle_request(
        &mut self,
        state: &mut NodeState,
        wanted: &str,
        request: &api::MoveRequest,
        reply: Reply<Moved>,
    ) {
        let since = Instant::now();
        let asked = name(wanted).and_then(|service| {
            let to = level(&request.level)?;
            let from = state.find(wanted)?.level;
            Ok((service, to, from))
        });
        let (service, to, from) = match asked {
            Ok(asked) => asked,
            Err(refusal) => return reply.refuse(refusal),
        };
        let command = Command::Move { service: service.clone(), level: to };
        if let Err(refusal) = state.command(command) {
            return reply.refuse(refusal);
        }
        for mover in self.take(&service, |mover| mover.to != to) {
            let message = format!("a later request moves the service '{service}' to {to}");
            mover.reply.refuse(failed(message));
        }
        self.push(service.clone(), Mover { reply, since, from, to });
        if from == to {
            state.stay_at(&service, to);
            self.handle_moved(state, &service, to);
        }
    }

    /// Handles a service that has reached a level: that is recorded, and then answered.
    pub(super) fn handle_moved(&mut self, state: &mut NodeState, service: &Name, level: Level) {
        let movers = self.take(service, |_| true);
        let Some(from) = movers.first().map(|mover| mover.from) else { return };
        let service = service.clone();
        let answer = |mover: Mover| {
            let answer = Moved {
                schema_version: SCHEMA_VERSION,
                service: service.to_string(),
                from: mover.from.name().to_owned(),
                level: level.name().to_owned(),
                took_us: u64::try_from(mover.since.elapsed().as_micros()).unwrap_or(u64::MAX),
            };
            (mover.reply, answer)
        };
        let answers: Vec<_> = movers.into_iter().map(answer).collect();
        let facts = Facts::of(format!("move {service} to {level}"));
        let edit = Edit::SetLevel(service.clone(), level);
        state.record(facts, edit, Recorded::Moved { service, from, answers });
    }

    /// Refuses all requests to move a service.
    pub(super) fn refuse(&mut self, service: &Name, message: &str) {
        for mover in self.take(service, |_| true) {
            mover.reply.refuse(failed(message));
        }
    }

    /// Refuses all requests.
    pub(super) fn refuse_all(&mut self, message: &str) {
        for mover in std::mem::take(&mut self.0).into_values().flatten() {
            mover.reply.refuse(error(ErrorCode::Failed, message, None));
        }
    }

    /// Removes and returns the requests of a service that match, oldest first.
    fn take(&mut self, service: &Name, are: impl Fn(&Mover) -> bool) -> Vec<Mover> {
        let Some(waiting) = self.0.get_mut(service) else { return Vec::new() };
        let taken = waiting.extract_if(.., |mover| are(mover)).collect();
        if waiting.is_empty() {
            self.0.remove(service);
        }
        taken
    }
}

/// Answers requests for a move that is recorded; one that could not be recorded is undone.
pub(super) fn handle_recorded(
    state: &mut NodeState,
    service: Name,
    from: Level,
    answers: Vec<(Reply<Moved>, Moved)>,
    written: Answer<()>,
) {
    if written.is_err() {
        // It is gone if that is refused.
        let _ = state.command(Command::Move { service, level: from });
    }
    for (reply, answer) in answers {
        reply.answer(written.clone().map(|()| answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_moves_that_were_refused_overtaken_or_made() {
        let [a, b] = ["a", "b"].map(|name| Name::new(name).unwrap());
        let mut movers = Movers::default();
        let mover = |to| {
            let (reply, _) = Reply::pair();
            Mover { reply, since: Instant::now(), from: Level::User, to }
        };
        movers.push(a.clone(), mover(Level::Nic));
        movers.push(a.clone(), mover(Level::Kernel));
        assert_eq!(movers.take(&a, |mover| mover.to != Level::Kernel).len(), 1);
        assert!(!movers.is_empty(), "one is on its way");
        assert_eq!(movers.take(&a, |_| true).len(), 1);
        assert!(movers.is_empty(), "made");
        movers.push(b, mover(Level::Nic));
        movers.refuse_all("the cell is lost");
        assert!(movers.is_empty());
    }
}
