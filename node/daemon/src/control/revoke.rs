//! Capabilities that are no longer valid, and the removal of what ran under them.
//!
//! ```text
//! tam token revoke ─▶ refused from now on ─▶ what ran is removed ─▶ state.redb ─▶ answer
//! each second ─ an end has come ────────────▶ the same
//! ```

use super::action::{Action, Keep};
use super::authority::{REVOKED_MAX, Revoked, capabilities_in_use};
use super::deployments::Deployments;
use super::edit::Edit;
use super::recorded::Recorded;
use super::recording::Facts;
use super::removals::Removals;
use super::state::NodeState;
use super::{rules, sessions};
use crate::answer::{Answer, error, usage};
use crate::events::Note;
use crate::reply::Reply;
use api::{ErrorCode, EventKind, RevokeRequest, SCHEMA_VERSION};
use node::{CapabilityId, Command, Owner, ServiceState};
use std::collections::{BTreeMap, BTreeSet};
use units::{Name, RuleId};

/// Period in which the latest time is recorded while capabilities are in use: restarting a node
/// with its clock set back gains no more than this.
const TIME_KEPT_EVERY_SECONDS: u64 = 60;
/// Largest number of revocations in one request.
const REVOKED_AT_ONCE_MAX: usize = 1024;

/// Message where capabilities that ended stay in the journal.
const NOT_FORGOTTEN: &str =
    "what ran under capabilities that ended is stopped, and not forgotten yet: it is tried again";

/// Sessions, services and rules whose capabilities ended, with the reason.
#[derive(Default)]
struct Ended {
    sessions: BTreeMap<Name, &'static str>,
    services: BTreeMap<Name, &'static str>,
    rules: Vec<RuleId>,
}

/// Removes orphaned objects when the node starts: the previous daemon crashed before persisting
/// their owner.
pub(super) fn end_unknown(state: &mut NodeState, deployments: &mut Deployments) {
    let unknown = capabilities_in_use(&state.node, state.desired.state()).into_iter();
    let unknown = unknown.filter(|id| !state.authority.is_known(*id));
    let reasons = unknown.map(|id| (id, "its capability is not known any more")).collect();
    end(state, deployments, reasons);
}

/// Handles a request to revoke; answered when the services that ran under it have stopped.
pub(super) fn handle_request(
    state: &mut NodeState,
    deployments: &mut Deployments,
    removals: &mut Removals,
    request: &RevokeRequest,
    reply: Reply<api::Revoked>,
) {
    let wanted = match revocable(state, request) {
        Ok(wanted) => wanted,
        Err(refusal) => return reply.refuse(refusal),
    };
    let texts = wanted.texts();
    state.authority.revoke(wanted);
    // What runs is ended first, whether or not the disk has space.
    let ended = end_capabilities(state, deployments);
    state.push(Action::CheckAssociations);
    let answer = api::Revoked {
        schema_version: SCHEMA_VERSION,
        revoked: texts.len() as u64,
        services: ended.services.keys().map(Name::to_string).collect(),
        rules: ended.rules.iter().map(|rule| rule.0).collect(),
    };
    let time = state.capability_time().0;
    let stopping = ended.services.into_keys().filter(|it| state.node.service(it).is_some());
    let stopped = removals.wait_for(stopping.collect());
    state.keep(Keep::Revoked { texts, time, stopped, answer, reply });
}

fn revocable(state: &NodeState, request: &RevokeRequest) -> Answer<Revoked> {
    let asked = request.revoke.len();
    if asked == 0 || asked > REVOKED_AT_ONCE_MAX {
        let message = format!("{asked} things to revoke; 1 to {REVOKED_AT_ONCE_MAX} at once");
        return Err(usage(message));
    }
    let mut wanted = Revoked::default();
    for text in &request.revoke {
        wanted.insert(text).map_err(usage)?;
    }
    if state.authority.revoked().len() + wanted.len() > REVOKED_MAX {
        let message = format!("this node remembers at most {REVOKED_MAX} revocations");
        let help = "give its administrators new keys ([trust] administrators), and revoke the old ones: what they signed counts no more";
        return Err(error(ErrorCode::Limit, message, Some(help)));
    }
    Ok(wanted)
}

/// Ends expired capabilities, and records the latest time. Called once a second.
pub(super) fn handle_second(state: &mut NodeState, deployments: &mut Deployments) {
    if state.authority.capabilities().is_empty() {
        return;
    }
    let now = state.now();
    let reading = state.authority.read_clock(now);
    if state.authority.report_clock(reading.wall_ahead_by) && reading.wall_ahead_by != 0 {
        let way = if reading.wall_ahead_by > 0 { "ahead of" } else { "behind" };
        let by = reading.wall_ahead_by.unsigned_abs();
        let text = format!(
            "the machine's clock is {by} s {way} the time by which capabilities end; set it right (docs/guides/trust.md, Time)"
        );
        state.note(Note::new(EventKind::ClockOdd, text));
    }
    end_capabilities(state, deployments);
    if state.authority.is_time_to_keep(reading.time, TIME_KEPT_EVERY_SECONDS) {
        state.keep(Keep::Time(reading.time.0));
    }
}

/// Returns the capabilities that are no longer valid and have not been removed yet.
pub(super) fn ended(state: &mut NodeState) -> BTreeSet<CapabilityId> {
    let now = state.capability_time();
    state.authority.ended(now).into_iter().map(|(id, _)| id).collect()
}

/// Removes what runs under capabilities that are no longer valid.
fn end_capabilities(state: &mut NodeState, deployments: &mut Deployments) -> Ended {
    let now = state.capability_time();
    let reasons = state.authority.ended(now);
    end(state, deployments, reasons.into_iter().collect())
}

/// Removes what runs under these capabilities.
fn end(
    state: &mut NodeState,
    deployments: &mut Deployments,
    reasons: BTreeMap<CapabilityId, &'static str>,
) -> Ended {
    let reason = |owner: Option<Owner>| reasons.get(&owner?.capability).copied();
    let mut ended = Ended::default();
    if reasons.is_empty() {
        return ended;
    }
    for service in state.node.services() {
        // One that stops is gone soon.
        if let Some(why) = reason(service.owner)
            && service.state != ServiceState::Stopping
        {
            ended.services.insert(service.name.clone(), why);
        }
    }
    for view in state.node.rules() {
        if reason(view.owner).is_some() && view.came_with.is_none() {
            ended.rules.push(view.rule.id);
        }
    }
    for session in state.node.sessions().filter(|session| !session.leaving) {
        if let Some(why) = reason(session.owner) {
            ended.sessions.insert(session.name.clone(), why);
        }
    }
    let desired = state.desired.state();
    let is_desired = desired.sessions.values().any(|it| reason(it.owner).is_some())
        || desired.services.values().any(|it| reason(it.owner).is_some())
        || desired.rules.iter().any(|it| reason(it.owner).is_some());
    stop(state, deployments, &ended);
    if is_desired {
        // The next start does not begin them again.
        let capabilities: BTreeSet<CapabilityId> = reasons.into_keys().collect();
        let facts = Facts::of("capabilities that count no more");
        let edit = Edit::end_capabilities(&state.node, capabilities);
        state.record(facts, edit, Recorded::Noted(NOT_FORGOTTEN));
    }
    ended
}

fn stop(state: &mut NodeState, deployments: &mut Deployments, ended: &Ended) {
    let going = state.payers_of(&ended.rules);
    rules::remove_all(state, &ended.rules.iter().copied().collect());
    state.close_rules(going);
    if !ended.rules.is_empty() {
        let rules: Vec<u32> = ended.rules.iter().map(|rule| rule.0).collect();
        state.note_rules(EventKind::RulesRemoved, &rules);
    }
    for (service, why) in &ended.services {
        let owner = state.node.service(service).and_then(|it| it.owner);
        let going = state.payers_of(&state.rules_to(service));
        let removed = state.command(Command::Remove { service: service.clone(), cascade: true });
        if let Err(problem) = removed {
            tracing::error!(%service, problem = problem.message, "{why}, but it could not be removed and goes on");
            continue;
        }
        state.close_rules(going);
        let message = format!("the service '{service}' was stopped: {why}");
        deployments.refuse(service, error(ErrorCode::Refused, message, None));
        let text = format!("the service '{service}' was stopped");
        let note = Note::new(EventKind::CapabilityEnded, text).service(service);
        state.note(note.reason(*why).owner(owner));
    }
    for (session, why) in &ended.sessions {
        sessions::end(state, session, why);
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::{Testbed, deploy, holder, name, token_id};
    use super::*;
    use crate::reply::Awaited;
    use api::{ApplyRequest, Revoked as Answered, SessionRequest};
    use tokio::sync::oneshot;

    fn revoke(bed: &mut Testbed, what: &[&str]) -> Awaited<Answered> {
        let (reply, awaited) = Reply::pair();
        let revoke = what.iter().map(|it| (*it).to_owned()).collect();
        bed.control.handle_revocation(&RevokeRequest { revoke }, reply);
        bed.settle();
        awaited
    }

    /// Removes and returns what a revocation has written down.
    fn kept(bed: &mut Testbed) -> (oneshot::Receiver<()>, Answered) {
        let at = bed.actions.iter().position(|it| matches!(it, Action::Keep(Keep::Revoked { .. })));
        match bed.actions.remove(at.expect("it is written down")) {
            Action::Keep(Keep::Revoked { stopped, answer, reply, .. }) => {
                reply.ok(answer.clone());
                (stopped, answer)
            }
            _ => unreachable!(),
        }
    }

    /// Runs the holder's service, and records it.
    fn run(bed: &mut Testbed, service: &str) {
        let request = Box::new(deploy(service, 4));
        let _answer = bed.ask_as(&holder(), |reply| Change::Deploy(request, reply));
        bed.starts(service);
        bed.write_all();
    }

    #[test]
    fn services_of_a_revoked_token_stop_and_are_forgotten_before_the_answer() {
        let mut bed = Testbed::new();
        bed.run("cache");
        run(&mut bed, "monitor");
        let _awaited = revoke(&mut bed, &[token_id()]);
        let (mut stopped, answer) = kept(&mut bed);
        assert_eq!((answer.revoked, answer.services), (1, vec!["monitor".to_owned()]));
        assert!(stopped.try_recv().is_err(), "it has not stopped");
        bed.stops("monitor");
        assert!(stopped.try_recv().is_ok());
        bed.write_all();
        assert!(bed.is_desired("cache") && !bed.is_desired("monitor"));
        let request = Box::new(deploy("monitor", 4));
        let mut again = bed.ask_as(&holder(), |reply| Change::Deploy(request, reply));
        assert_eq!(again.try_answer().unwrap().unwrap_err().code, ErrorCode::Refused);
    }

    #[test]
    fn forgetting_a_revoked_service_is_retried_each_second_until_it_is_recorded() {
        let mut bed = Testbed::new();
        run(&mut bed, "monitor");
        let _awaited = revoke(&mut bed, &[token_id()]);
        bed.stops("monitor");
        bed.fail_write();
        assert!(bed.is_desired("monitor"), "not forgotten yet");
        // Nor does a start of what is missing bring it back meanwhile.
        bed.control.resume();
        bed.settle();
        assert_eq!(bed.control.node().services().count(), 0);
        bed.control.handle_second();
        bed.settle();
        bed.write_all();
        assert!(!bed.is_desired("monitor"));
    }

    #[test]
    fn a_change_in_progress_neither_relies_on_a_revoked_service_nor_restores_it() {
        let mut bed = Testbed::new();
        run(&mut bed, "monitor");
        let module = super::super::testbed::digest(&super::super::testbed::MODULES[4]);
        let text = format!("[[service]]\nname = \"monitor\"\nmodule = \"{module}\"\n");
        let request = ApplyRequest { file: "state.toml".into(), text, ..Default::default() };
        let mut applied = bed.ask(|reply| Change::Apply(Box::new(request), reply));
        let _awaited = revoke(&mut bed, &[token_id()]);
        bed.write_all();
        bed.stops("monitor");
        for action in std::mem::take(&mut bed.actions) {
            if let Action::Compile(module, _) = action {
                bed.control.handle_compiled(&module, None);
                bed.settle();
            }
        }
        bed.write_all();
        let owned = bed.control.node().services().filter(|service| service.owner.is_some());
        assert_eq!(owned.count(), 0);
        assert!(applied.try_answer().is_some());
    }

    #[test]
    fn a_revoked_owners_session_becomes_the_operators_if_others_use_it() {
        let mut bed = Testbed::new();
        for session in ["gold", "silver"] {
            let request = SessionRequest { name: session.to_owned(), ..Default::default() };
            let request = Box::new(request);
            let _made = bed.ask_as(&holder(), |reply| Change::CreateSession(request, reply));
            bed.write_all();
        }
        let mut request = deploy("monitor", 4);
        request.session = Some("gold".to_owned());
        let _answer = bed.ask(|reply| Change::Deploy(Box::new(request), reply));
        let _awaited = revoke(&mut bed, &[token_id()]);
        bed.write_all();
        let gold = &bed.control.state().desired().state().sessions[&name("gold")];
        assert_eq!(gold.owner, None);
        bed.starts("monitor");
        bed.write_all();
        let there = |session| bed.control.node().session(&name(session)).map(|it| it.owner);
        assert_eq!((there("gold"), there("silver")), (Some(None), None));
        assert!(!bed.control.state().desired().state().sessions.contains_key(&name("silver")));
        assert!(bed.is_desired("monitor"));
    }

    #[test]
    fn what_cannot_be_revoked_is_refused_as_a_whole() {
        let mut bed = Testbed::new();
        run(&mut bed, "monitor");
        for what in [vec![], vec![token_id(), "nonsense"], vec!["x"; REVOKED_AT_ONCE_MAX + 1]] {
            let refusal = revoke(&mut bed, &what).try_answer().unwrap().unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Usage, "{}", refusal.message);
        }
        assert!(bed.control.state().authority().revoked().len() == 0);
        assert_eq!(bed.control.node().services().count(), 1);
    }
}
