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
use units::{Name, Nanos};

/// Pending request to move a service.
struct Mover {
    reply: Reply<Moved>,
    since: Nanos,
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
        let since = state.now();
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
        let now = state.now();
        let answer = |mover: Mover| {
            let answer = Moved {
                schema_version: SCHEMA_VERSION,
                service: service.to_string(),
                from: mover.from.name().to_owned(),
                level: level.name().to_owned(),
                took_us: now.saturating_sub(mover.since).0 / 1000,
            };
            (mover.reply, answer)
        };
        let answers: Vec<_> = movers.into_iter().map(answer).collect();
        let facts = Facts::of(format!("move {service} to {level}"));
        let edit = Edit::SetLevel(service.clone(), level);
        state.record(facts, edit, Recorded::Moved { service, from, answers });
    }

    /// Answers requests for a move that is recorded. One that could not be recorded is undone, unless
    /// a later request moves the service.
    pub(super) fn handle_recorded(
        &self,
        state: &mut NodeState,
        service: Name,
        from: Level,
        answers: Vec<(Reply<Moved>, Moved)>,
        written: Answer<()>,
    ) {
        if written.is_err() && !self.0.contains_key(&service) {
            // It is gone if that is refused.
            let _ = state.command(Command::Move { service, level: from });
        }
        for (reply, answer) in answers {
            reply.answer(written.clone().map(|()| answer));
        }
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

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::change::Change;
    use super::super::testbed::{Testbed, name};
    use super::*;
    use crate::reply::Awaited;
    use node::{Effect, Event};

    #[test]
    fn nobody_waits_for_moves_that_were_refused_overtaken_or_made() {
        let [a, b] = ["a", "b"].map(|name| Name::new(name).unwrap());
        let mut movers = Movers::default();
        let mover = |to| {
            let (reply, _) = Reply::pair();
            Mover { reply, since: Nanos::ZERO, from: Level::User, to }
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

    fn moved(bed: &mut Testbed, level: &str) -> Awaited<Moved> {
        let request = api::MoveRequest { level: level.to_owned() };
        bed.ask(|reply| Change::Move("monitor".to_owned(), request, reply))
    }

    fn placed(bed: &mut Testbed, level: Level) {
        let (entry, reason) = (bed.entry("monitor"), "it was asked for".to_owned());
        bed.event(Event::ServicePlaced { entry, level, reason, movable: true });
    }

    fn moves(bed: &Testbed) -> Vec<Level> {
        let level = |effect: &Effect| match effect {
            Effect::MoveService { level, .. } => Some(*level),
            _ => None,
        };
        bed.effects.iter().filter_map(level).collect()
    }

    #[test]
    fn a_move_is_answered_when_it_is_made_and_recorded() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut first = moved(&mut bed, "nic");
        let mut second = moved(&mut bed, "nic");
        assert_eq!(moves(&bed).last(), Some(&Level::Nic));
        placed(&mut bed, Level::Nic);
        assert!(first.try_answer().is_none(), "not recorded");
        bed.write();
        for awaited in [&mut first, &mut second] {
            let moved = awaited.try_answer().unwrap().unwrap();
            assert_eq!((&*moved.from, &*moved.level), ("user", "nic"));
        }
        let desired = &bed.control.state().desired().state().services[&name("monitor")];
        assert_eq!(desired.level, Some(Level::Nic));
    }

    #[test]
    fn a_move_that_cannot_be_recorded_is_undone() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut awaited = moved(&mut bed, "nic");
        placed(&mut bed, Level::Nic);
        bed.fail_write();
        assert!(awaited.try_answer().unwrap().is_err());
        assert_eq!(moves(&bed), [Level::Nic, Level::User]);
        placed(&mut bed, Level::User);
        assert!(!bed.is_writing() && bed.level("monitor") == Some(Level::User));
    }

    #[test]
    fn a_later_request_is_not_undone_with_one_that_could_not_be_recorded() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut first = moved(&mut bed, "nic");
        placed(&mut bed, Level::Nic);
        let mut second = moved(&mut bed, "kernel");
        bed.fail_write();
        assert!(first.try_answer().unwrap().is_err());
        assert_eq!(moves(&bed), [Level::Nic, Level::Kernel]);
        placed(&mut bed, Level::Kernel);
        bed.write();
        assert!(second.try_answer().unwrap().is_ok());
    }

    #[test]
    fn a_later_request_a_failure_and_a_lost_cell_refuse_those_that_wait() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut overtaken = moved(&mut bed, "nic");
        let mut failed = moved(&mut bed, "kernel");
        let message = overtaken.try_answer().unwrap().unwrap_err().message;
        assert!(message.contains("a later request moves"), "{message}");
        let entry = bed.entry("monitor");
        bed.event(Event::MoveFailed { entry, reason: "too many states".to_owned() });
        let message = failed.try_answer().unwrap().unwrap_err().message;
        assert!(message.contains("stays where it is: too many states"), "{message}");
        let mut lost = moved(&mut bed, "nic");
        bed.event(Event::CellLost { reason: "killed".to_owned() });
        assert_eq!(lost.try_answer().unwrap().unwrap_err().message, "the cell was lost: killed");
        assert!(bed.control.is_idle());
    }

    #[test]
    fn a_service_that_is_there_already_stays_and_is_recorded() {
        let mut bed = Testbed::new();
        bed.run("monitor");
        let mut awaited = moved(&mut bed, "user");
        assert!(matches!(bed.actions.last(), Some(Action::Stay(_, Level::User))));
        bed.write();
        assert!(awaited.try_answer().unwrap().is_ok());
        for (service, level) in [("monitor", "moon"), ("nobody", "user")] {
            let request = api::MoveRequest { level: level.to_owned() };
            bed.refused(|reply| Change::Move(service.to_owned(), request, reply));
        }
    }
}
