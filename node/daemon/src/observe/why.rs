//! `GET /v1/why`: why packets are dropped or leave the fast path.

use super::drops::readings::Place;
use super::drops::{Drops, is_drop};
use super::reasons;
use super::view::View;
use crate::control::authority::Visibility;
use api::{SCHEMA_VERSION, WhyList, WhyReason};
use node::state::RuleView;
use std::cmp::Reverse;
use units::Name;

/// Returns every reason that counted and that a client may see, the most recent first.
pub(super) fn why_list(view: &View<'_>, drops: &Drops, sight: &Visibility) -> WhyList {
    let rules = view.node.all_rules();
    let counted = drops.iter();
    // Told by rule.
    let counted = counted.filter(|(it, _)| it.reason != "drop_rule" || it.rule.is_some());
    let counted = counted.filter(|(place, _)| sees(view, sight, place, &rules));
    let mut reasons: Vec<WhyReason> = counted
        .map(|(place, counted)| {
            let service = place.service.as_ref().and_then(|name| view.node.service(name));
            let rule = place.rule.and_then(|id| rules.iter().find(|it| it.rule.id == id));
            let (meaning, advice) = reasons::of(&place.reason);
            let led = place.service.as_ref().map(|name| rules_to(&rules, name));
            let session = service.map(|service| service.session.to_string());
            WhyReason {
                reason: place.reason.clone(),
                dropped: is_drop(&place.reason),
                packets: counted.total(),
                packets_last_minute: counted.lately(view.now),
                last_ms: counted.last_ms(),
                port: place.port.as_ref().map(Name::to_string),
                service: place.service.as_ref().map(Name::to_string),
                rules: led.unwrap_or_else(|| place.rule.iter().map(|id| id.0).collect()),
                module: service.map(|service| service.module.digest.clone()),
                session: session.or(rule.map(|it| it.rule.spec.session.to_string())),
                meaning,
                advice,
            }
        })
        .collect();
    reasons.sort_by_key(|reason| {
        (!reason.dropped, Reverse(reason.packets_last_minute), Reverse(reason.packets))
    });
    let (node, all) = (view.file.name.to_string(), sight.everything);
    WhyList { schema_version: SCHEMA_VERSION, node, all, reasons }
}

/// Returns true when a client may see a counter.
fn sees(view: &View<'_>, sight: &Visibility, place: &Place, rules: &[RuleView]) -> bool {
    let service = place.service.as_ref().and_then(|name| view.node.service(name));
    let rule = place.rule.and_then(|id| rules.iter().find(|it| it.rule.id == id));
    let of = service.map(|service| (&service.session, service.owner));
    let of = of.or(rule.map(|it| (&it.rule.spec.session, it.owner)));
    sight.everything || of.is_some_and(|(session, owner)| sight.has(session.as_str(), owner))
}

fn rules_to(rules: &[RuleView], service: &Name) -> Vec<u32> {
    let to = rules.iter().filter(|it| it.rule.spec.action.service() == Some(service));
    to.map(|it| it.rule.id.0).collect()
}
