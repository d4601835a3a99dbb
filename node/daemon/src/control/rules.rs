//! Requests to add and remove rules.

use super::deployments::{numbers, pairs};
use super::edit::Edit;
use super::recorded::{Ahead, Prepared, Purpose, Recorded};
use super::recording::Facts;
use super::state::NodeState;
use crate::access::Caller;
use crate::answer::{Answer, failed, refused, session, stage, usage};
use crate::reply::Reply;
use api::{EventKind, RuleRemoved, RulesAdded, RulesRequest, SCHEMA_VERSION};
use node::{Command, Outcome, Owner, Refusal, RuleSpec};
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
        return Err(failed("the node answered new rules with something else"));
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
        for rule in &added.rules {
            // It is gone already if that is refused.
            let _ = state.command(Command::RuleRemove { rule: RuleId(*rule) });
        }
    }
    reply.answer(written.map(|()| added));
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
