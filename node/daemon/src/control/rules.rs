//! Requests to add and remove rules.

use super::deployments::{numbers, pairs};
use super::edit::Edit;
use super::recorded::{Ahead, Prepared, Purpose, Recorded};
use super::recording::Facts;
use super::state::NodeState;
use crate::access::Caller;
use crate::answer::{Answer, refused, session, stage, unexpected, usage};
use crate::reply::Reply;
use api::{EventKind, RuleRemoved, RulesAdded, RulesRequest, SCHEMA_VERSION};
use node::{Command, Outcome, Owner, Refusal, RuleSpec};
use std::collections::{BTreeMap, BTreeSet};
use units::{Name, RuleId};

/// Handles a request for new rules: they are added, then recorded.
pub(super) fn handle_add(
    state: &mut NodeState,
    caller: &Caller,
    request: &RulesRequest,
    reply: Reply<RulesAdded>,
) {
    let owner = state.owner_of(caller);
    match add(state, caller, owner, request) {
        Ok((added, specs)) => {
            let facts = Facts::of(match specs.as_slice() {
                [spec] => format!("rule add {} -> {}", spec.r#match, spec.action),
                specs => format!("rule add, {} rules", specs.len()),
            });
            let ids = added.rules.iter().copied().map(RuleId);
            let edit = Edit::AddRules(ids.zip(specs).collect(), owner);
            state.record(facts, edit, Recorded::RulesAdded { added, reply });
        }
        Err(refusal) => reply.refuse(refusal),
    }
}

fn add(
    state: &mut NodeState,
    caller: &Caller,
    owner: Option<Owner>,
    request: &RulesRequest,
) -> Answer<(RulesAdded, Vec<RuleSpec>)> {
    let specs = request.rules.iter().map(|rule| {
        let mut spec = RuleSpec::new(
            rule.r#match.parse().map_err(usage)?,
            rule.action.parse().map_err(usage)?,
        );
        spec.session = session(rule.session.as_deref())?;
        spec.priority = rule.priority.unwrap_or(spec.priority);
        spec.stage = stage(rule.stage.as_deref())?;
        spec.flows = rule.flows.as_deref().map(str::parse).transpose().map_err(usage)?;
        Ok(spec)
    });
    let specs: Vec<RuleSpec> = specs.collect::<Answer<_>>()?;
    let command = Command::RuleAdd { specs: specs.clone(), owner };
    let Outcome::RulesAdded { rules, shadowed } = state.command_of(caller, command)? else {
        return Err(unexpected("new rules"));
    };
    let (rules, shadowed) = (numbers(&rules), pairs(&shadowed));
    state.note_rules(EventKind::RulesAdded, &rules);
    Ok((RulesAdded { schema_version: SCHEMA_VERSION, rules, shadowed }, specs))
}

/// Answers with new rules; those that could not be recorded are removed again.
pub(super) fn handle_recorded(
    state: &mut NodeState,
    added: RulesAdded,
    reply: Reply<RulesAdded>,
    written: Answer<()>,
) {
    if written.is_err() {
        remove_all(state, &added.rules.iter().copied().map(RuleId).collect());
    }
    reply.answer(written.map(|()| added));
}

/// Removes rules by one change, as each change is compiled as a whole. Some may be gone already.
pub(super) fn remove_all(state: &mut NodeState, rules: &BTreeSet<RuleId>) {
    let there = state.node.numbered_rules().into_iter().map(|(id, _)| id);
    let remove: Vec<RuleId> = there.filter(|id| rules.contains(id)).collect();
    if remove.is_empty() {
        return;
    }
    let command = Command::Arrange { remove, add: Vec::new(), services: BTreeMap::new() };
    if let Err(problem) = state.command(command) {
        tracing::error!(
            problem = problem.message,
            "rules that were to be removed are still in force"
        );
    }
}

/// Prepares the removal of a rule; `None` when it is refused.
pub(super) fn removal(
    state: &NodeState,
    rule: RuleId,
    reply: Reply<RuleRemoved>,
) -> Option<Prepared> {
    let edit = Edit::remove_rule(&state.node, rule);
    if matches!(edit, Edit::RemoveRule(_, None)) && state.node.has_rule(rule) {
        // It came with another version of its service than runs, and is not shown.
        reply.refuse(refused(&Refusal::RuleUnknown { rule }));
        return None;
    }
    let command = Command::RuleRemove { rule };
    let counted = state.payers_of(&[rule]);
    let purpose = Purpose::RuleRemoved { rule, counted, reply };
    Some((Ahead { command, purpose }, format!("rule remove {rule}"), edit))
}

/// Returns the answer to the removal of a rule that is done.
pub(super) fn removed(
    state: &mut NodeState,
    rule: RuleId,
    counted: Vec<(RuleId, Name)>,
) -> RuleRemoved {
    state.close_rules(counted);
    state.note_rules(EventKind::RulesRemoved, &[rule.0]);
    RuleRemoved { schema_version: SCHEMA_VERSION, rule: rule.0 }
}

#[cfg(test)]
mod tests {
    use super::super::change::Change;
    use super::super::testbed::{Testbed, deploy, holder, name};
    use super::*;
    use crate::reply::Awaited;
    use api::{DeployRequest, ErrorCode, RuleRequest};
    use node::Effect;
    use node::Event;

    fn request(rules: &[(&str, &str)]) -> RulesRequest {
        let rules = rules.iter().map(|(r#match, action)| RuleRequest::new(*r#match, *action));
        RulesRequest { rules: rules.collect() }
    }

    fn add(bed: &mut Testbed, rules: &[(&str, &str)]) -> Awaited<RulesAdded> {
        bed.ask(|reply| Change::AddRules(request(rules), reply))
    }

    fn present(bed: &Testbed) -> Vec<RuleId> {
        bed.control.node().numbered_rules().into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn rules_are_added_together_or_not_at_all_and_recorded() {
        let mut bed = Testbed::new();
        let mut awaited = add(&mut bed, &[("dst 10.0.0.0/8", "drop"), ("proto udp", "drop")]);
        assert_eq!(present(&bed).len(), 2);
        bed.write();
        assert_eq!(awaited.try_answer().unwrap().unwrap().rules, [0, 1]);
        assert_eq!(bed.desired_rules(), 2);
        let wrong = [("dst 11.0.0.0/8", "drop"), ("dst 12.0.0.0/8", "service nobody")];
        assert!(add(&mut bed, &wrong).try_answer().unwrap().is_err());
        assert_eq!((present(&bed).len(), bed.is_writing()), (2, false));
    }

    #[test]
    fn rules_that_cannot_be_recorded_are_removed_again() {
        let mut bed = Testbed::new();
        bed.made(|reply| Change::AddRules(request(&[("dst 10.0.0.0/8", "drop")]), reply));
        let before = present(&bed);
        // One that says the same is another rule.
        let mut awaited = add(&mut bed, &[("dst 10.0.0.0/8", "drop")]);
        bed.fail_write();
        assert!(awaited.try_answer().unwrap().is_err());
        assert_eq!((present(&bed), bed.desired_rules()), (before, 1));
    }

    #[test]
    fn rules_that_cannot_be_recorded_are_removed_by_one_change() {
        let mut bed = Testbed::new();
        let texts: Vec<String> =
            (0..300).map(|at| format!("dst 10.0.{}.{}", at / 256, at % 256)).collect();
        let rules: Vec<(&str, &str)> = texts.iter().map(|text| (text.as_str(), "drop")).collect();
        let mut awaited = add(&mut bed, &rules);
        bed.effects.clear();
        bed.fail_write();
        assert!(awaited.try_answer().unwrap().is_err());
        let is_install = |it: &&Effect| matches!(it, Effect::InstallRules { .. });
        assert_eq!((present(&bed).len(), bed.effects.iter().filter(is_install).count()), (0, 1));
    }

    #[test]
    fn a_rule_is_removed_when_that_is_recorded() {
        let mut bed = Testbed::new();
        bed.made(|reply| Change::AddRules(request(&[("dst 10.0.0.0/8", "drop")]), reply));
        let rule = present(&bed)[0];
        let mut awaited = bed.ask(|reply| Change::RemoveRule(rule, reply));
        bed.fail_write();
        assert!(awaited.try_answer().unwrap().is_err());
        assert_eq!(present(&bed), [rule], "it could not be put back where it was");
        bed.made(|reply| Change::RemoveRule(rule, reply));
        assert_eq!((present(&bed).len(), bed.desired_rules()), (0, 0));
        assert_eq!(bed.refused(|reply| Change::RemoveRule(rule, reply)).code, ErrorCode::NotFound);
    }

    #[test]
    fn the_removal_of_a_rule_that_could_not_be_recorded_meanwhile_takes_no_other_along() {
        let mut bed = Testbed::new();
        bed.made(|reply| Change::AddRules(request(&[("dst 10.0.0.0/8", "drop")]), reply));
        let _same = add(&mut bed, &[("dst 10.0.0.0/8", "drop")]);
        let second = present(&bed)[1];
        let mut removed = bed.ask(|reply| Change::RemoveRule(second, reply));
        bed.fail_write();
        bed.write();
        assert_eq!(removed.try_answer().unwrap().unwrap_err().code, ErrorCode::NotFound);
        assert_eq!((present(&bed).len(), bed.desired_rules()), (1, 1));
    }

    #[test]
    fn a_rule_of_the_version_before_cannot_be_removed_while_that_may_come_back() {
        let mut bed = Testbed::new();
        let with = |module, rule: &str| DeployRequest {
            rules: vec![rule.to_owned()],
            ..deploy("monitor", module)
        };
        let _first = bed.ask(|reply| Change::Deploy(Box::new(with(4, "dst 10.0.0.0/8")), reply));
        bed.starts("monitor");
        bed.write();
        let (entry, rule) = (bed.entry("monitor"), present(&bed)[0]);
        let _second = bed.ask(|reply| Change::Deploy(Box::new(with(5, "dst 11.0.0.0/8")), reply));
        bed.event(Event::ServiceReplaced { entry });
        assert_ne!(present(&bed), [rule]);
        assert_eq!(bed.refused(|reply| Change::RemoveRule(rule, reply)).code, ErrorCode::NotFound);
        bed.event(Event::ServicePutBack { entry, reason: "unreachable".to_owned() });
        assert_eq!((present(&bed), bed.desired_rules()), (vec![rule], 1));
        bed.made(|reply| Change::RemoveRule(rule, reply));
        assert_eq!((present(&bed).len(), bed.desired_rules()), (0, 0));
    }

    #[test]
    fn a_removal_that_is_refused_after_it_was_recorded_is_taken_back_before_what_came_meanwhile() {
        for (is_recorded, rule_left) in [(true, "dst 11.0.0.0/8"), (false, "dst 10.0.0.0/8")] {
            let mut bed = Testbed::new();
            let with = |module, rule: &str| DeployRequest {
                rules: vec![rule.to_owned()],
                ..deploy("monitor", module)
            };
            let first = with(4, "dst 10.0.0.0/8");
            let _first = bed.ask(|reply| Change::Deploy(Box::new(first), reply));
            bed.starts("monitor");
            bed.write();
            let (entry, rule) = (bed.entry("monitor"), present(&bed)[0]);
            let second = with(5, "dst 11.0.0.0/8");
            let _second = bed.ask(|reply| Change::Deploy(Box::new(second), reply));
            let mut removed = bed.ask(|reply| Change::RemoveRule(rule, reply));
            bed.event(Event::ServiceReplaced { entry });
            bed.event(Event::ServiceKept { entry });
            bed.write();
            let refusal = removed.try_answer().unwrap().unwrap_err();
            assert_eq!((refusal.code, bed.desired_rules()), (ErrorCode::NotFound, 0));
            bed.write();
            assert_eq!(bed.desired_rules(), 1, "as it was refused");
            if is_recorded {
                bed.write()
            } else {
                bed.fail_write()
            }
            let rules = &bed.control.state().desired().state().rules;
            let matches: Vec<_> = rules.iter().map(|it| it.spec.r#match.to_string()).collect();
            assert_eq!(matches, [rule_left]);
            assert!(bed.control.is_idle());
        }
    }

    #[test]
    fn rules_belong_to_whoever_adds_them() {
        let mut bed = Testbed::new();
        let rules = request(&[("dst 10.0.0.0/8", "drop")]);
        let mut awaited = bed.ask_as(&holder(), |reply| Change::AddRules(rules, reply));
        bed.write();
        assert!(awaited.try_answer().unwrap().is_ok());
        let desired = &bed.control.state().desired().state().rules[0];
        assert!(desired.owner.is_some() && desired.spec.session == name("best-effort"));
    }
}
