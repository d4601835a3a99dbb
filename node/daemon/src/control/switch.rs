//! Switch of the levels below user.

use super::action::Action;
use super::edit::Edit;
use super::recorded::Recorded;
use super::recording::Facts;
use super::state::NodeState;
use crate::answer::{Answer, failed};
use crate::events::Note;
use crate::reply::Reply;
use abi::Level;
use api::{BpfSet, EventKind, SCHEMA_VERSION};
use node::{Command, Outcome};
use units::Name;

/// Handles a request to let modules run below user level, or not: it is recorded first.
pub(super) fn handle_request(state: &mut NodeState, enabled: bool, reply: Reply<BpfSet>) {
    if let Err(refusal) = check(state, enabled) {
        return reply.refuse(refusal);
    }
    let facts = Facts::of(if enabled { "node --bpf on" } else { "node --bpf off" });
    state.record(facts, Edit::Bpf(enabled), Recorded::Bpf { enabled, reply });
}

/// Makes and answers a switch that is recorded, or refuses it.
pub(super) fn handle_recorded(
    state: &mut NodeState,
    enabled: bool,
    reply: Reply<BpfSet>,
    written: Answer<()>,
) {
    let moving = written.and_then(|()| set_bpf(state, enabled));
    if enabled && moving.is_ok() {
        state.allow_below(true);
    }
    reply.answer(moving.map(|moving| {
        let moving = moving.iter().map(Name::to_string).collect();
        BpfSet { schema_version: SCHEMA_VERSION, enabled, moving }
    }));
}

/// Lets modules run below user level, or takes all to user level. Returns the services that move.
pub(super) fn set_bpf(state: &mut NodeState, enabled: bool) -> Answer<Vec<Name>> {
    check(state, enabled)?;
    let outcome = state.command(Command::Bpf { enabled });
    let outcome = outcome.map_err(|refusal| failed(refusal.message))?;
    let Outcome::Bpf { moving } = outcome else {
        return Ok(Vec::new());
    };
    let may = if enabled { "may run" } else { "do not run any more" };
    state.push(Action::ClearReusable);
    let text = format!("modules {may} below user level");
    state.note(Note::new(EventKind::BpfSwitched, text));
    Ok(moving)
}

/// Moves all services at kernel level to user level: one of the ports no longer has that level.
pub(super) fn leave_kernel(state: &mut NodeState) {
    let there = state.node.services().filter(|service| service.level == Level::Kernel);
    for service in there.map(|service| service.name.clone()).collect::<Vec<_>>() {
        if let Err(refusal) = state.command(Command::Move { service, level: Level::User }) {
            tracing::error!(
                reason = refusal.message,
                "a service could not be moved and stays at kernel level"
            );
        }
    }
}

fn check(state: &NodeState, enabled: bool) -> Answer<()> {
    match state.below().unsupported.as_ref().filter(|_| enabled) {
        Some(reason) => Err(failed(reason)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::Testbed;
    use super::*;
    use node::{Effect, Event};

    fn set(bed: &mut Testbed, enabled: bool) -> crate::reply::Awaited<BpfSet> {
        bed.ask(|reply| Change::Bpf(api::BpfRequest { enabled }, reply))
    }

    #[test]
    fn the_switch_is_set_when_that_is_recorded() {
        let mut bed = Testbed::new();
        let mut awaited = set(&mut bed, false);
        assert!(bed.control.node().bpf() && awaited.try_answer().is_none());
        bed.fail_write();
        assert!(awaited.try_answer().unwrap().is_err());
        assert!(bed.control.node().bpf() && bed.control.state().desired().state().bpf);
        let mut awaited = set(&mut bed, false);
        bed.write();
        assert!(!awaited.try_answer().unwrap().unwrap().enabled);
        assert!(!bed.control.node().bpf() && !bed.control.state().desired().state().bpf);
        assert!(bed.actions.iter().any(|action| matches!(action, Action::ClearReusable)));
    }

    #[test]
    fn a_port_without_kernel_level_moves_only_services_at_kernel_to_user_level() {
        let mut bed = Testbed::new();
        for (service, level) in [("monitor", Level::Kernel), ("mark", Level::Nic)] {
            bed.run(service);
            let (entry, reason) = (bed.entry(service), String::new());
            bed.event(Event::ServicePlaced { entry, level, reason, movable: true });
        }
        bed.effects.clear();
        bed.control.handle_no_kernel_level();
        bed.settle();
        let entry = bed.entry("monitor");
        let is_move = |it: &&Effect| matches!(it, Effect::MoveService { .. });
        let moves: Vec<_> = bed.effects.iter().filter(is_move).collect();
        assert_eq!(moves, [&Effect::MoveService { entry, level: Level::User }]);
    }

    #[test]
    fn a_daemon_started_without_bpf_is_overruled_only_by_the_switch() {
        let mut bed = Testbed::new();
        bed.control.forbid_below().unwrap();
        bed.settle();
        assert!(!bed.control.node().bpf() && bed.control.state().desired().state().bpf);
        assert!(!bed.control.state().compiles_below(true));
        let mut awaited = set(&mut bed, true);
        bed.write();
        assert!(awaited.try_answer().unwrap().unwrap().enabled);
        assert!(bed.control.node().bpf() && bed.control.state().compiles_below(true));
    }
}
