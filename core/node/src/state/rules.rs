//! Rules of a node: admission, numbering, and compilation for the front door.
//!
//! ```text
//!  DesiredRule ─ admit ─▶ Admitted ─ insert ─▶ Live ─ install ─▶ front door
//!                                     │         ▲ │ another version without it runs
//!              with a new version     ▼         │ ▼
//!                                  Coming ──────┘ Going ─ kept ─▶ gone
//!                                        it runs    └─ put back ─▶ Live
//! ```
//!
//! Rules of a service are installed only while it runs; rules of a closed service stay installed
//! while it is down, and drop ([`crate::policy`]).

mod associations;
mod awaited;

pub use associations::{ASSOCIATIONS_NAME, ASSOCIATIONS_PRIORITY};

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bpf_maps::RULES_MAX;
use serde::{Deserialize, Serialize};
use units::{Name, RuleId};

use self::associations::OwnRules;
use self::awaited::Awaited;
use super::effects::Effects;
use super::names::Names;
use crate::classifier::{Destination, Lookup, Reach, RuleSet, RuleSetError, compile};
use crate::command::Effect;
use crate::desired::{DesiredRule, DesiredState};
use crate::owner::{Owner, PrincipalId};
use crate::refusal::Refusal;
use crate::rule::{Match, Rule, RuleSpec, Stage};
use crate::session;

/// Rules of a node, and the set that the front door has.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    rules: BTreeMap<RuleId, OwnedRule>,
    own: OwnRules,
    awaited: Awaited,
    /// Start of the search for a free number, so that none is reused at once.
    next: u32,
    installed: RuleSet,
    generation: u64,
}

/// Rule, and the service that it came with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OwnedRule {
    rule: Rule,
    came_with: Option<Name>,
    /// Owner; `None` is the operator.
    #[serde(default)]
    owner: Option<Owner>,
    #[serde(skip)]
    life: Life,
}

/// Condition under which packets may meet a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Life {
    /// The rule's service runs.
    #[default]
    Live,
    /// The version of the service that the rule comes with has to run first.
    Pending,
    /// The rule came with the previous version, and is live again if that is put back.
    Retired,
}

/// Rule as `tam rule list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// Rule with its number.
    #[serde(flatten)]
    pub rule: Rule,
    /// Service that the rule came with, and is removed with.
    pub came_with: Option<Name>,
    /// Owner; `None` is the operator.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Reach of the rule: whether packets can meet it.
    pub reach: Reach,
}

/// Rules that have been checked together with the existing ones.
#[derive(Debug)]
pub(super) struct Admitted {
    rules: Vec<OwnedRule>,
    shadowed: Vec<(RuleId, RuleId)>,
}

impl Admitted {
    /// Returns the rules' numbers.
    pub(super) fn ids(&self) -> Vec<RuleId> {
        self.rules.iter().map(|owned| owned.rule.id).collect()
    }

    /// Returns the rules that no packet could reach if every service ran, each with the better
    /// rule.
    pub(super) fn shadowed(&self) -> &[(RuleId, RuleId)] {
        &self.shadowed
    }
}

impl OwnedRule {
    fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    fn came_with(&self, service: &Name) -> bool {
        self.came_with.as_ref() == Some(service)
    }

    fn leads_to(&self, service: &Name) -> bool {
        self.rule.spec.action.service() == Some(service)
    }

    /// Returns true if the front door should have the rule now.
    fn is_active(&self, names: Names<'_>) -> bool {
        let service = self.rule.spec.action.service();
        self.is_live() && service.is_none_or(|service| names.takes_packets(service))
    }
}

impl Rules {
    /// Restores the rules of a snapshot; `next` is the start of the search for a free number.
    pub(super) fn restore(rules: Vec<OwnedRule>, next: u32, generation: u64) -> Self {
        let rules = rules.into_iter().map(|owned| (owned.rule.id, owned)).collect();
        Self { rules, next, generation, ..Self::default() }
    }

    /// Returns all requested rules, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OwnedRule> {
        self.rules.values()
    }

    /// Returns the start of the search for a free number.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Returns the rule set that the front door was given last, or gets next.
    pub(super) const fn installed(&self) -> &RuleSet {
        &self.installed
    }

    /// Returns the generation: the number of times that the front door's rules were replaced.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the rules, best first: the order in which the front door tries them.
    pub(super) fn views(&self, names: Names<'_>) -> Vec<RuleView> {
        let shadowed: BTreeMap<RuleId, RuleId> = self.installed.shadowed.iter().copied().collect();
        let is_down = |owned: &OwnedRule| {
            owned.rule.spec.action.service().is_some_and(|service| names.is_down(service))
        };
        let view = |owned: &OwnedRule| RuleView {
            rule: owned.rule.clone(),
            came_with: owned.came_with.clone(),
            owner: owned.owner,
            reach: match shadowed.get(&owned.rule.id) {
                _ if !owned.is_active(names) => Reach::Waiting,
                Some(&by) => Reach::Shadowed { by },
                None if is_down(owned) => Reach::Closed,
                None => Reach::Installed,
            },
        };
        let mut views: Vec<RuleView> = self.live().map(view).collect();
        views.sort_by_key(|view| (core::cmp::Reverse(view.rule.spec.priority), view.rule.id));
        views
    }

    /// Returns the node's own rules, as `tam rule list` shows them.
    pub(super) fn own_views(&self) -> impl Iterator<Item = RuleView> {
        self.own.views(&self.installed)
    }

    /// Returns the awaited rules, as `tam rule list` shows them.
    pub(super) fn awaited_views(&self) -> impl Iterator<Item = RuleView> {
        self.awaited.views()
    }

    /// Returns the rules by number, in their desired form.
    pub(super) fn numbered(&self) -> Vec<(RuleId, DesiredRule)> {
        let desired = |owned: &OwnedRule| {
            let OwnedRule { rule, came_with, owner, .. } = owned.clone();
            (rule.id, DesiredRule { spec: rule.spec, came_with, owner })
        };
        self.live().map(desired).collect()
    }

    /// Returns true if a rule has this number, whether or not packets may meet it.
    pub(super) fn has(&self, rule: RuleId) -> bool {
        self.rules.contains_key(&rule)
    }

    /// Returns the session of each rule that packets may meet, the node's own included.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (RuleId, &Name)> {
        let rules = self.live().map(|owned| &owned.rule).chain(self.own.iter());
        rules.map(|rule| (rule.id, &rule.spec.session))
    }

    /// Returns the session and the owner of a rule that packets may meet.
    pub(super) fn payer(&self, rule: RuleId) -> Option<(&Name, Option<Owner>)> {
        let owned = self.rules.get(&rule).filter(|owned| owned.is_live());
        let owned = owned.map(|owned| (&owned.rule.spec.session, owned.owner));
        owned.or_else(|| self.own.get(rule).map(|own| (&own.spec.session, None)))
    }

    /// Returns the rules of a session.
    pub(super) fn in_session(&self, session: &Name) -> Vec<RuleId> {
        self.ids_where(|owned| owned.rule.spec.session == *session)
    }

    /// Returns the rules that came with a service.
    pub(super) fn of_service(&self, service: &Name) -> BTreeSet<RuleId> {
        self.ids_where(|owned| owned.came_with(service)).into_iter().collect()
    }

    /// Returns the rules that lead to a service and did not come with it.
    pub(super) fn of_others(&self, service: &Name) -> Vec<RuleId> {
        self.ids_where(|owned| owned.leads_to(service) && !owned.came_with(service))
    }

    fn ids_where(&self, is_one: impl Fn(&OwnedRule) -> bool) -> Vec<RuleId> {
        let found = self.rules.values().filter(|owned| is_one(owned));
        found.map(|owned| owned.rule.id).collect()
    }

    fn live(&self) -> impl Iterator<Item = &OwnedRule> {
        self.rules.values().filter(|owned| owned.is_live())
    }

    /// Checks rules as if all services ran, so that installing them later cannot fail. `incoming` is
    /// the service that they come with; `leaving` are rules that will be gone by then, and shadow
    /// none of them.
    pub(super) fn admit(
        &self,
        wanted: Vec<DesiredRule>,
        incoming: Option<(&Name, Destination)>,
        leaving: &BTreeSet<RuleId>,
        names: Names<'_>,
    ) -> Result<Admitted, Refusal> {
        // Of too many rules none is looked at: the checks below take long.
        let ids = self.free_ids(wanted.len(), &wanted)?;
        let mut claims = Claims::default();
        let staying = self.rules.values().filter(|owned| !leaving.contains(&owned.rule.id));
        staying.for_each(|owned| claims.insert(&owned.rule.spec, owned.owner));
        for rule in &wanted {
            rule.spec.r#match.check()?;
            names.check(&rule.spec)?;
            check_stage(&rule.spec)?;
            claims.check(&rule.spec, rule.owner)?;
            claims.insert(&rule.spec, rule.owner);
        }
        drop(claims);
        let owned = |(id, rule): (RuleId, DesiredRule)| {
            let DesiredRule { spec, came_with, owner } = rule;
            OwnedRule { rule: Rule { id, spec }, came_with, owner, life: Life::Live }
        };
        let rules: Vec<OwnedRule> = ids.into_iter().zip(wanted).map(owned).collect();
        if rules.is_empty() {
            return Ok(Admitted { rules, shadowed: Vec::new() });
        }
        let mut lookup = self.with_own(names.with_all_services());
        lookup
            .services
            .extend(incoming.map(|(service, destination)| (service.clone(), destination)));
        let all = self.rules.values().chain(&rules).map(|owned| &owned.rule);
        let all = all.chain(self.own.iter());
        let mut shadowed = compile(all.clone(), &lookup)?.shadowed;
        if !leaving.is_empty() {
            let kept_rules = all.filter(|rule| !leaving.contains(&rule.id));
            shadowed = compile(kept_rules, &lookup)?.shadowed;
        }
        // Existing rules count too, if one of the new rules takes their packets.
        let known: BTreeSet<RuleId> =
            self.installed.shadowed.iter().map(|(rule, _)| *rule).collect();
        let added: BTreeSet<RuleId> = rules.iter().map(|owned| owned.rule.id).collect();
        shadowed.retain(|(rule, by)| {
            added.contains(rule) || (added.contains(by) && !known.contains(rule))
        });
        Ok(Admitted { rules, shadowed })
    }

    /// Checks all rules as [`Rules::admit`] checks new ones.
    pub(super) fn check_all(&self, names: Names<'_>) -> Result<(), RuleSetError> {
        let all = self.rules.values().map(|owned| &owned.rule).chain(self.own.iter());
        compile(all, &self.with_own(names.with_all_services())).map(drop)
    }

    /// Inserts rules; [`Rules::install`] sends them to the front door.
    pub(super) fn insert(&mut self, admitted: Admitted, out: &mut Effects) {
        self.insert_as(Life::Live, admitted, out);
    }

    /// Inserts rules that come with a version which does not run yet.
    pub(super) fn insert_pending(&mut self, admitted: Admitted, out: &mut Effects) {
        self.insert_as(Life::Pending, admitted, out);
    }

    fn insert_as(&mut self, life: Life, admitted: Admitted, out: &mut Effects) {
        self.awaited.remove_equal(admitted.rules.iter().map(|owned| &owned.rule.spec));
        for owned in admitted.rules {
            let rule = owned.rule.id;
            self.next = rule.0.wrapping_add(1);
            out.push(Effect::ClearRuleCounters { rule });
            self.rules.insert(rule, OwnedRule { life, ..owned });
        }
    }

    /// Removes rules, and admits others: all or none.
    pub(super) fn admit_in_place_of(
        &mut self,
        remove: &[RuleId],
        add: Vec<DesiredRule>,
        names: Names<'_>,
    ) -> Result<Admitted, Refusal> {
        let mut removed: Vec<(RuleId, OwnedRule)> = Vec::with_capacity(remove.len());
        for rule in remove {
            match self.rules.remove(rule) {
                Some(owned) => removed.push((*rule, owned)),
                None => {
                    self.rules.extend(removed);
                    return Err(Refusal::RuleUnknown { rule: *rule });
                }
            }
        }
        let admitted = self.admit(add, None, &BTreeSet::new(), names);
        if admitted.is_err() {
            self.rules.extend(removed);
        }
        admitted
    }

    /// Removes a rule that is not the node's own.
    pub(super) fn remove(&mut self, rule: RuleId) -> Result<(), Refusal> {
        if self.own.get(rule).is_some() {
            return Err(Refusal::RuleOwn { rule });
        }
        self.rules.remove(&rule).map(drop).ok_or(Refusal::RuleUnknown { rule })
    }

    /// Removes a rule, if it still exists.
    pub(super) fn discard(&mut self, rule: RuleId) {
        self.rules.remove(&rule);
    }

    /// Removes the rules that lead to a service. Returns their numbers.
    pub(super) fn remove_leading_to(&mut self, service: &Name) -> Vec<RuleId> {
        let ids = self.ids_where(|owned| owned.leads_to(service));
        for id in &ids {
            self.rules.remove(id);
        }
        ids
    }

    /// Returns the rules of a service that a new version keeps, and removes them from `specs`, the
    /// rules of that version. A version without rules keeps all.
    pub(super) fn kept_rules(&self, service: &Name, specs: &mut Vec<RuleSpec>) -> BTreeSet<RuleId> {
        let mut stay = self.of_service(service);
        if !specs.is_empty() {
            stay.retain(|id| {
                let spec = self.rules.get(id).map(|owned| &owned.rule.spec);
                let at = specs.iter().position(|wanted| Some(wanted) == spec);
                at.map(|at| specs.remove(at)).is_some()
            });
        }
        stay
    }

    /// Retires rules: they are kept while the previous version may come back, or else removed.
    pub(super) fn retire(&mut self, leaving: &BTreeSet<RuleId>, may_come_back: bool) {
        if !may_come_back {
            self.rules.retain(|id, _| !leaving.contains(id));
            return;
        }
        let going = self.rules.iter_mut().filter(|(id, _)| leaving.contains(id));
        going.for_each(|(_, owned)| owned.life = Life::Retired);
    }

    /// Records that a new version runs: its rules become live, and those that it lacks retire.
    /// Returns the rules that become live.
    pub(super) fn change_version(
        &mut self,
        service: &Name,
        stay: &BTreeSet<RuleId>,
    ) -> Vec<RuleId> {
        let mut added = Vec::new();
        for (id, owned) in self.rules.iter_mut().filter(|(_, owned)| owned.came_with(service)) {
            match owned.life {
                Life::Pending => {
                    owned.life = Life::Live;
                    added.push(*id);
                }
                Life::Live if !stay.contains(id) => owned.life = Life::Retired,
                Life::Live | Life::Retired => {}
            }
        }
        added
    }

    /// Records that the previous version runs again, without the rules added since.
    pub(super) fn put_back(&mut self, service: &Name, added: &[RuleId]) {
        for id in added {
            self.rules.remove(id);
        }
        for owned in self.rules.values_mut() {
            if owned.life == Life::Retired && owned.came_with(service) {
                owned.life = Life::Live;
            }
        }
    }

    /// Removes the rules that wait for the next version of a service.
    pub(super) fn remove_pending(&mut self, service: &Name) {
        self.rules.retain(|_, owned| owned.life != Life::Pending || !owned.came_with(service));
    }

    /// Removes the rules that a service kept for its previous version.
    pub(super) fn remove_retired(&mut self, service: &Name) {
        self.rules.retain(|_, owned| owned.life != Life::Retired || !owned.came_with(service));
    }

    /// Sets the owner of the rules that came with a service.
    pub(super) fn give(&mut self, service: &Name, owner: Option<Owner>) {
        let own = self.rules.values_mut().filter(|owned| owned.came_with(service));
        own.for_each(|owned| owned.owner = owner);
    }

    /// Compiles the active rules, and sends them to the front door if they have changed.
    pub(super) fn install(&mut self, names: Names<'_>, out: &mut Effects) {
        let lookup = self.with_own(names.with_taking_services());
        let active = self.rules.values().filter(|owned| owned.is_active(names));
        let active = active.map(|owned| &owned.rule).chain(self.own.iter());
        let rules = self.awaited.compile(active, lookup);
        let same = (&rules.masks, &rules.entries, &rules.lists)
            == (&self.installed.masks, &self.installed.entries, &self.installed.lists);
        self.installed = rules;
        if !same {
            out.push(self.reinstall());
        }
    }

    /// Returns the effect that sends all rules to the front door again.
    pub(super) fn reinstall(&mut self) -> Effect {
        self.generation += 1;
        let (rules, generation) = (self.installed.clone(), self.generation);
        Effect::InstallRules { rules, generation }
    }

    /// Directs datagrams to these addresses to the associations' entry, in place of the previous
    /// addresses; on an error nothing has changed.
    pub(super) fn serve_associations(
        &mut self,
        at: &[SocketAddr],
        names: Names<'_>,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        let before = std::mem::take(&mut self.own);
        let ids = self.free_ids(at.len(), &[]);
        let checked = ids.and_then(|ids| {
            self.own = OwnRules::to_addresses(ids, at);
            self.check_all(names).map_err(Refusal::from)
        });
        if checked.is_err() {
            self.own = before;
            return checked;
        }
        out.extend(self.own.iter().map(|rule| Effect::ClearRuleCounters { rule: rule.id }));
        self.install(names, out);
        Ok(())
    }

    /// Adds the rules of a desired state that do not exist yet to the awaited ones, without
    /// installing them. Returns false if no number is left for them.
    pub(super) fn add_awaited(
        &mut self,
        desired: &DesiredState,
        names: Names<'_>,
        out: &mut Effects,
    ) -> bool {
        let specs = self.awaited.missing(desired, self.rules.values().map(|owned| &owned.rule));
        let present = self.rules.len() + self.own.count() + self.awaited.count();
        let room = RULES_MAX - present.min(RULES_MAX);
        let Ok(ids) = self.free_ids(specs.len().min(room), &[]) else { return false };
        let rules: Vec<Rule> =
            ids.into_iter().zip(specs).map(|(id, spec)| Rule { id, spec }).collect();
        let lookup = awaited::with_awaited(self.with_own(names.without_services()), &rules);
        for rule in rules {
            // A rule that names something unknown is refused when it is to be added.
            if compile([&rule], &lookup).is_ok() {
                out.push(Effect::ClearRuleCounters { rule: rule.id });
                self.awaited.push(rule);
            }
        }
        true
    }

    /// Drops awaited rules that a desired state does not contain.
    pub(super) fn await_only(
        &mut self,
        desired: &DesiredState,
        names: Names<'_>,
        out: &mut Effects,
    ) {
        if self.awaited.count() > 0 {
            self.awaited.retain_desired(desired);
            self.install(names, out);
        }
    }

    /// Returns free numbers, beginning after the last one used. Those of awaited rules are free for
    /// `incoming`, if these are the same.
    fn free_ids(&self, asked: usize, incoming: &[DesiredRule]) -> Result<Vec<RuleId>, Refusal> {
        let awaited = self.awaited.ids_after(incoming);
        let present = self.rules.len() + self.own.count() + awaited.len();
        if asked > RULES_MAX.saturating_sub(present) {
            return Err(Refusal::TooManyRules { asked, present });
        }
        let count = RULES_MAX as u32;
        let in_turn = (0..count).map(|step| RuleId(self.next.wrapping_add(step) % count));
        let is_free = |id: &RuleId| {
            !self.rules.contains_key(id) && !awaited.contains(id) && self.own.get(*id).is_none()
        };
        Ok(in_turn.filter(is_free).take(asked).collect())
    }

    /// Adds the destination of the node's own rules.
    fn with_own(&self, mut lookup: Lookup) -> Lookup {
        lookup.services.extend(self.own.destination());
        lookup
    }
}

/// Returns the rules that come with a service.
pub(super) fn rules_of(
    service: &Name,
    specs: Vec<RuleSpec>,
    owner: Option<Owner>,
) -> Vec<DesiredRule> {
    let came_with = Some(service.clone());
    let rule = |spec| DesiredRule { spec, came_with: came_with.clone(), owner };
    specs.into_iter().map(rule).collect()
}

/// Traffic of each session and principal: matches of the rules between the operator's stages.
#[derive(Default)]
struct Claims<'a>(BTreeMap<(&'a Name, Option<PrincipalId>), Vec<&'a Match>>);

impl<'a> Claims<'a> {
    fn insert(&mut self, spec: &'a RuleSpec, owner: Option<Owner>) {
        if spec.stage() == Stage::Service {
            let claimant = (&spec.session, owner.map(|owner| owner.principal));
            self.0.entry(claimant).or_default().push(&spec.r#match);
        }
    }

    /// Refuses a rule that overlaps one of another session or principal.
    fn check(&self, spec: &RuleSpec, owner: Option<Owner>) -> Result<(), Refusal> {
        if spec.stage() != Stage::Service {
            return Ok(());
        }
        let claimant = (&spec.session, owner.map(|owner| owner.principal));
        let foreign = self.0.iter().filter(|(other, _)| **other != claimant);
        let mut matches =
            foreign.flat_map(|((session, _), all)| all.iter().map(move |it| (*session, it)));
        match matches.find(|(_, other)| !other.is_apart(&spec.r#match)) {
            None => Ok(()),
            Some((session, other)) => Err(Refusal::OverlapsOther {
                text: spec.r#match.to_string(),
                session: spec.session.clone(),
                other: other.to_string(),
                owner: session.clone(),
            }),
        }
    }
}

/// Refuses a rule whose stage is not one of its session: stages are the operator's or the
/// principals'.
fn check_stage(spec: &RuleSpec) -> Result<(), Refusal> {
    let (stage, session) = (spec.stage(), &spec.session);
    if (*session == session::system()) == (stage == Stage::Service) {
        let (text, session) = (spec.r#match.to_string(), session.clone());
        return Err(Refusal::StageNotOfSession { text, session, stage });
    }
    Ok(())
}

/// Refuses a rule that leads to a service of another session.
pub(super) fn check_session(
    spec: &RuleSpec,
    service: &Name,
    session: &Name,
) -> Result<(), Refusal> {
    if spec.session == *session {
        return Ok(());
    }
    Err(Refusal::SessionDiffers {
        text: spec.r#match.to_string(),
        found: spec.session.clone(),
        service: service.clone(),
        expected: session.clone(),
    })
}

const _: () = assert!(RULES_MAX <= u32::MAX as usize, "a rule's number has 32 bits");

#[cfg(test)]
mod tests {
    use super::super::managed::testing::running;
    use super::super::roster::Roster;
    use super::super::sessions::Sessions;
    use super::*;
    use crate::rule::Action;

    /// Rules of a node with one running service.
    struct Alone {
        rules: Rules,
        sessions: Sessions,
        roster: Roster,
        out: Effects,
    }

    fn name() -> Name {
        "monitor".parse().unwrap()
    }

    fn to_service(text: &str) -> DesiredRule {
        let spec = RuleSpec::new(text.parse().unwrap(), Action::Service(name()));
        DesiredRule { spec, came_with: Some(name()), owner: None }
    }

    impl Alone {
        fn new() -> Self {
            let mut roster = Roster::default();
            roster.insert(running("monitor", 0, &[]));
            let (rules, sessions) = (Rules::default(), Sessions::default());
            Self { rules, sessions, roster, out: Effects::default() }
        }

        fn admit(&self, texts: &[&str]) -> Admitted {
            let wanted = texts.iter().map(|text| to_service(text)).collect();
            let names = Names::of(&[], &self.sessions, &self.roster);
            self.rules.admit(wanted, None, &BTreeSet::new(), names).unwrap()
        }

        fn add(&mut self, texts: &[&str]) -> Vec<u32> {
            let admitted = self.admit(texts);
            let ids = admitted.ids().iter().map(|id| id.0).collect();
            self.rules.insert(admitted, &mut self.out);
            ids
        }

        /// Installs the rules; returns the numbers of those sent to the front door, `None` if
        /// nothing was sent.
        fn install(&mut self) -> Option<BTreeSet<u32>> {
            self.rules.install(Names::of(&[], &self.sessions, &self.roster), &mut self.out);
            let rules = self.out.take_rules().map(|effect| match effect {
                Effect::InstallRules { rules, .. } => rules,
                other => panic!("{other:?}"),
            });
            rules.map(|set| set.entries.iter().map(|(_, rule)| rule.rule).collect())
        }
    }

    #[test]
    fn a_number_is_given_again_only_after_all_others() {
        let mut alone = Alone::new();
        assert_eq!(alone.add(&["proto udp", "proto tcp"]), [0, 1]);
        alone.rules.remove(RuleId(0)).unwrap();
        assert_eq!(alone.add(&["proto udp"]), [2]);
        assert_eq!(alone.rules.remove(RuleId(0)), Err(Refusal::RuleUnknown { rule: RuleId(0) }));
    }

    #[test]
    fn the_front_door_is_updated_once_and_only_for_services_that_run() {
        let mut alone = Alone::new();
        alone.add(&["proto udp"]);
        assert_eq!(alone.install(), Some([0].into()));
        assert_eq!((alone.install(), alone.rules.generation()), (None, 1));
        alone.roster.get_mut(&name()).unwrap().stop(units::Nanos::ZERO);
        assert_eq!(alone.install(), Some([].into()));
    }

    #[test]
    fn rules_of_a_version_come_when_it_runs_and_those_before_can_come_back() {
        let mut alone = Alone::new();
        alone.add(&["proto udp", "proto tcp"]);
        let mut specs = vec![to_service("proto tcp").spec, to_service("proto icmp").spec];
        let stay = alone.rules.kept_rules(&name(), &mut specs);
        assert_eq!((stay.len(), specs.len()), (1, 1));
        let admitted = alone.admit(&["proto icmp"]);
        alone.rules.insert_pending(admitted, &mut alone.out);
        assert_eq!(alone.install(), Some([0, 1].into()), "it does not run yet");
        let added = alone.rules.change_version(&name(), &stay);
        assert_eq!(alone.install(), Some([1, 2].into()));
        let mut kept = alone.rules.clone();
        alone.rules.put_back(&name(), &added);
        assert_eq!(alone.install(), Some([0, 1].into()));
        kept.remove_retired(&name());
        assert_eq!(kept.of_service(&name()), [RuleId(1), RuleId(2)].into());
    }

    #[test]
    fn an_exchange_that_is_refused_changes_nothing() {
        let mut alone = Alone::new();
        alone.add(&["proto udp"]);
        let names = Names::of(&[], &alone.sessions, &alone.roster);
        for (remove, add) in [([0, 9], "proto tcp"), ([0, 0], "proto tcp in left")] {
            let remove: Vec<RuleId> = remove.map(RuleId).into_iter().collect();
            let refused = alone.rules.admit_in_place_of(&remove, vec![to_service(add)], names);
            assert!(refused.is_err());
            assert_eq!(alone.rules.numbered(), [(RuleId(0), to_service("proto udp"))]);
        }
        let unknown_port = vec![to_service("proto tcp in left")];
        let refused = alone.rules.admit_in_place_of(&[RuleId(0)], unknown_port, names);
        assert!(matches!(refused, Err(Refusal::PortUnknown { .. })), "{refused:?}");
        assert_eq!(alone.rules.numbered().len(), 1);
    }
}
