//! Document of `GET /v1/rules`.

use crate::answer::{Answer, failed};
use crate::control::authority::Visibility;
use crate::observe::view::View;
use ::node::{Action, Node};
use api::{RuleInfo, RuleList, SCHEMA_VERSION};
use std::collections::BTreeMap;
use units::Name;

/// Returns the rules that a client may see, with their counters.
///
/// # Errors
/// A counter cannot be read.
pub(crate) fn rule_list(view: &View<'_>, sight: &Visibility) -> Answer<RuleList> {
    let rules = view.node.all_rules().into_iter();
    let seen = rules.filter(|it| sight.has(it.rule.spec.session.as_str(), it.owner));
    let rules = seen.map(|it| {
        let stats = view.plane.front().rule_stats(it.rule.id).map_err(failed)?;
        let spec = &it.rule.spec;
        Ok(RuleInfo {
            id: it.rule.id.0,
            r#match: spec.r#match.to_string(),
            flows: spec.flows.as_ref().map(|flows| flows.count() as u64),
            action: spec.action.to_string(),
            priority: spec.priority,
            session: spec.session.to_string(),
            stage: spec.stage().to_string(),
            came_with: it.came_with.map(|name| name.to_string()),
            owner: view.state.authority().shown(it.owner),
            reach: api::reach_text(&it.reach),
            packets: stats.packets,
            bytes: stats.bytes,
        })
    });
    Ok(RuleList { schema_version: SCHEMA_VERSION, rules: rules.collect::<Answer<_>>()? })
}

/// Returns the numbers of the rules that lead to each service, best first.
pub(super) fn rules_by_service(node: &Node) -> BTreeMap<Name, Vec<u32>> {
    let mut all: BTreeMap<Name, Vec<u32>> = BTreeMap::new();
    for view in node.rules() {
        if let Action::Service(service) = view.rule.spec.action {
            all.entry(service).or_default().push(view.rule.id.0);
        }
    }
    all
}
