//! Deployments: services, the rules that lead to them, and versions that are replaced, changed
//! together.
//!
//! ```text
//!  Node ─ command, event, Context ─▶ Deployments ─┬─▶ Roster        lives of services, entries
//!                                                 ├─▶ Rules         numbers, compiled set
//!                                                 └─▶ Replacements  versions that may come back
//! ```
//!
//! Rules of a service are installed only while it runs, and uninstalled before it is stopped, so
//! that no packet is sent to a service that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use abi::Level;
use units::{EntryId, Name, RuleId};

use super::change::{Context, Version, Wanted, check_leads_to, check_levels};
use super::graph::Graph;
use super::managed::{Definition, Ended, FIRST_STARTS_MAX, Managed, Place};
use super::names::Names;
use super::replace::{self, Handover, Replacements};
use super::roster::Roster;
use super::rules::{self, ASSOCIATIONS_NAME, Rules, rules_of};
use crate::classifier::Destination;
use crate::command::{Arrangement, Effect, Memory, Notice, Outcome};
use crate::desired::{DesiredRule, DesiredState};
use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::{ModuleInfo, Service, ServiceState};

/// Services, their rules and their replacements.
#[derive(Clone, Debug, Default)]
pub(super) struct Deployments {
    roster: Roster,
    rules: Rules,
    replacements: Replacements,
    /// True when services have come to where packets can go, and the front door has not been told.
    /// Many start at the same time; what all of them want of it is worked out once.
    stale: bool,
}

impl Deployments {
    /// Makes the deployments of a snapshot.
    pub(super) fn restore(roster: Roster, rules: Rules) -> Self {
        Self { roster, rules, ..Self::default() }
    }

    /// Returns the services.
    pub(super) const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the rules.
    pub(super) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns true while a version of any service is being started or watched.
    pub(super) fn is_replacing(&self) -> bool {
        self.replacements.is_any()
    }

    /// Returns true when a service is neither being started nor being replaced.
    pub(super) fn is_settled(&self, service: &Name) -> bool {
        let is_starting = self.roster.get(service).is_some_and(Managed::is_starting);
        !is_starting && !self.replacements.has(service)
    }

    /// Returns why the state of a service would be lost, if another version took its place; nothing
    /// where it does not run, or is not lost.
    pub(super) fn loss(&self, service: &Name, new: &ModuleInfo, session: &Name) -> Option<String> {
        let managed = self.roster.get(service).filter(|managed| managed.runs())?;
        replace::loss(managed.service(), new, session)
    }

    /// Returns every module that a service runs, may run soon, or may run again.
    pub(super) fn digests(&self) -> impl Iterator<Item = &str> {
        self.roster.services().flat_map(|service| {
            let other = self.replacements.module(&service.name);
            [Some(&service.module), other].into_iter().flatten().map(|it| it.digest.as_str())
        })
    }

    /// Has the next service that starts get an entry, if it is free then.
    pub(super) fn prefer_entry(&mut self, entry: Option<EntryId>) {
        self.roster.prefer(entry);
    }

    /// Starts a service, or puts another version in its place.
    pub(super) fn deploy(
        &mut self,
        wanted: Wanted,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let name = wanted.service.clone();
        if name.as_str() == ASSOCIATIONS_NAME {
            return Err(Refusal::NameReserved { service: name });
        }
        let present = self.roster.service(&name);
        if present.is_some_and(|service| service.state == ServiceState::Stopping) {
            return Err(Refusal::ServiceStopping { service: name });
        }
        let (is_new, memory) = (present.is_none(), wanted.memory);
        let (definition, specs) = self.define(wanted, cx)?;
        if is_new {
            return self.add(name, definition, specs, cx);
        }
        self.become_another(&name, definition, specs, memory, cx).map(|(outcome, _)| outcome)
    }

    fn define(
        &self,
        wanted: Wanted,
        cx: &Context<'_>,
    ) -> Result<(Definition, Vec<RuleSpec>), Refusal> {
        let Wanted { service: name, module, parameters, session, rules, level, .. } = wanted;
        let session_id = cx.sessions.find(&session)?.id;
        self.check_module(&name, &module, level)?;
        let values = module.manifest.values(&parameters)?;
        for spec in &rules {
            check_leads_to(spec, Some(&name))?;
            rules::check_session(spec, &name, &session)?;
        }
        let then = self.graph().check_edges(&name, (&session, module.kind), &wanted.then)?;
        let Wanted { budget, on_failure, owner, .. } = wanted;
        let definition = Definition {
            module,
            parameters,
            values,
            session,
            session_id,
            wanted: level,
            then,
            budget,
            on_failure,
            owner,
        };
        Ok((definition, rules))
    }

    fn add(
        &mut self,
        name: Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let entry = self.roster.free_entry(&name, &definition.module)?;
        let rules = rules_of(&name, specs, definition.owner);
        let coming = Destination::of(entry, &definition.module, None);
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        let admitted = self.rules.admit(rules, Some((&name, coming)), &BTreeSet::new(), names)?;
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: admitted.ids(),
            shadowed: admitted.shadowed().to_vec(),
            replaces: None,
        };
        self.roster.take_entry(entry);
        self.rules.insert(admitted, cx.out);
        let changes_paths = definition.on_failure.is_closed() || !definition.then.is_empty();
        self.roster.insert(Managed::new(cx.now, name.clone(), entry, definition));
        // Nothing leads to one that does not run.
        if changes_paths {
            self.install(cx);
        }
        if cx.is_ready {
            self.roster.start(&name, cx.out);
        }
        Ok(outcome)
    }

    /// Puts another version in the place of a service.
    pub(super) fn replace(
        &mut self,
        name: &Name,
        version: Version,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let Version { module, parameters, level, memory } = version;
        let present = self.roster.find(name)?;
        let (present, runs) = (present.definition(), present.runs());
        self.check_module(name, &module, level)?;
        let values = module.manifest.values(&parameters)?;
        let definition = Definition { module, parameters, values, wanted: level, ..present };
        let (_, lost) = self.become_another(name, definition, Vec::new(), memory, cx)?;
        Ok(Outcome::Replacing { service: name.clone(), runs, lost })
    }

    /// Has a service that is there become another one of its name. Returns beside the outcome why
    /// it begins empty, if nobody asked for that.
    fn become_another(
        &mut self,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        memory: Memory,
        cx: &mut Context<'_>,
    ) -> Result<(Outcome, Option<String>), Refusal> {
        let managed = self.roster.find(name)?;
        if managed.runs() {
            if self.replacements.has(name) {
                return Err(Refusal::ServiceReplacing { service: name.clone() });
            }
            let handover = replace::handover(managed.service(), &definition, memory)?;
            self.ask_for(name, definition, specs, handover, cx)
        } else if managed.has_run() && !managed.is_starting() {
            Ok((self.redefine(name, definition, specs, cx)?, None))
        } else {
            Err(Refusal::ServiceStarting { service: name.clone() })
        }
    }

    /// Asks the cell for another version of a service that runs. Without rules of its own the new
    /// version has those of the old one.
    fn ask_for(
        &mut self,
        name: &Name,
        definition: Definition,
        mut specs: Vec<RuleSpec>,
        handover: Handover,
        cx: &mut Context<'_>,
    ) -> Result<(Outcome, Option<String>), Refusal> {
        let managed = self.roster.find(name)?;
        let service = managed.service();
        let (entry, replaces) = (service.entry, service.module.digest.clone());
        let stay = self.rules.staying(name, &mut specs);
        let leaving = self.rules.of_service(name).difference(&stay).copied().collect();
        let coming = Destination::of(entry, &definition.module, None);
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        let new = rules_of(name, specs, definition.owner);
        let admitted = self.rules.admit(new, Some((name, coming)), &leaving, names)?;
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: stay.iter().copied().chain(admitted.ids()).collect(),
            shadowed: admitted.shadowed().to_vec(),
            replaces: Some(replaces),
        };
        let start = definition.start(service, managed.is_told_closed(), self.roster.bpf());
        self.rules.insert_coming(admitted, cx.out);
        cx.out.push(Effect::ReplaceService { start, way: handover.way });
        self.replacements.ask(name.clone(), definition, stay);
        Ok((outcome, handover.lost))
    }

    /// Has a service that neither runs nor is being started become another one of its name.
    fn redefine(
        &mut self,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let service = self.roster.find(name)?.service();
        let (entry, replaces) = (service.entry, service.module.digest.clone());
        // One that failed is not wanted back.
        let may_come_back = service.state == ServiceState::Starting;
        let own = self.rules.of_service(name);
        let keeps = specs.is_empty();
        let leaving = if keeps { BTreeSet::new() } else { own.clone() };
        let specs = rules_of(name, specs, definition.owner);
        let coming = Destination::of(entry, &definition.module, None);
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        let admitted = self.rules.admit(specs, Some((name, coming)), &leaving, names)?;
        let added = admitted.ids();
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: if keeps { own.into_iter().collect() } else { added.clone() },
            shadowed: admitted.shadowed().to_vec(),
            replaces: Some(replaces),
        };
        self.rules.retire(&leaving, may_come_back);
        self.rules.insert(admitted, cx.out);
        self.rules.give(name, definition.owner);
        if let Some(managed) = self.roster.get_mut(name) {
            if may_come_back {
                self.replacements.try_another(cx.now, managed, definition, added);
            } else {
                managed.define(definition);
                managed.begin_anew(cx.now);
            }
        }
        self.install(cx);
        self.start_waiting(cx);
        Ok(outcome)
    }

    /// Stops a service, and removes the rules that lead to it.
    pub(super) fn remove(
        &mut self,
        name: &Name,
        cascade: bool,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let managed = self.roster.find(name)?;
        let (entry, held) = (managed.service().entry, managed.is_held());
        let others = self.rules.of_others(name);
        if !cascade && !others.is_empty() {
            return Err(Refusal::ServiceInUse { service: name.clone(), rules: others });
        }
        let before = self.graph().before(name);
        if !cascade && !before.is_empty() {
            return Err(Refusal::ServiceFollows { service: name.clone(), before });
        }
        self.roster.values_mut().for_each(|managed| managed.remove_edges_to(name));
        // Whoever waits for another version hears that the service is removed.
        let _ = self.take_back(name, "the service was removed");
        let rules = self.rules.remove_leading_to(name);
        let mut is_led_to = !rules.is_empty() || !before.is_empty();
        if let Some(managed) = self.roster.get_mut(name) {
            is_led_to |= managed.is_told_closed() || !managed.service().then.is_empty();
            managed.stop(cx.now);
        }
        if is_led_to {
            self.install(cx);
        }
        if held {
            cx.out.push(Effect::StopService { entry });
        } else {
            self.roster.remove(name);
            cx.out.report(Notice::ServiceRemoved { service: name.clone() });
        }
        Ok(Outcome::Removed { service: name.clone(), rules, stopping: held })
    }

    /// Returns the services and rules of a session that are not on their way out.
    pub(super) fn in_session(&self, session: &Name) -> (Vec<Name>, Vec<RuleId>) {
        (self.roster.staying_in(session), self.rules.in_session(session))
    }

    /// Removes services and rules, all of one session. Returns the rules that went.
    pub(super) fn remove_all(
        &mut self,
        services: &[Name],
        rules: Vec<RuleId>,
        cx: &mut Context<'_>,
    ) -> Result<Vec<RuleId>, Refusal> {
        let mut went = Vec::new();
        for service in services {
            // Every rule and every edge that leads there is of the same session.
            if let Outcome::Removed { rules, .. } = self.remove(service, true, cx)? {
                went.extend(rules);
            }
        }
        for rule in rules.into_iter().filter(|rule| !went.contains(rule)).collect::<Vec<_>>() {
            self.rules.remove(rule)?;
            went.push(rule);
        }
        self.install_rules(cx);
        went.sort_unstable();
        Ok(went)
    }

    /// Adds rules.
    pub(super) fn add_rules(
        &mut self,
        specs: Vec<RuleSpec>,
        owner: Option<Owner>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        for service in specs.iter().filter_map(|spec| spec.action.service()) {
            self.roster.find_target(service)?;
        }
        for spec in &specs {
            let service = spec.action.service().and_then(|service| self.roster.service(service));
            if let Some(service) = service {
                rules::check_session(spec, &service.name, &service.session)?;
            }
        }
        let rules = specs.into_iter().map(|spec| DesiredRule { spec, came_with: None, owner });
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        let admitted = self.rules.admit(rules.collect(), None, &BTreeSet::new(), names)?;
        let (rules, shadowed) = (admitted.ids(), admitted.shadowed().to_vec());
        self.rules.insert(admitted, cx.out);
        self.install_rules(cx);
        Ok(Outcome::RulesAdded { rules, shadowed })
    }

    /// Removes a rule.
    pub(super) fn remove_rule(
        &mut self,
        rule: RuleId,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        self.rules.remove(rule)?;
        self.install_rules(cx);
        Ok(Outcome::RuleRemoved { rule })
    }

    /// Changes rules, edges, budgets and wanted levels together: a packet meets all of the old ones
    /// or all of the new ones.
    pub(super) fn arrange(
        &mut self,
        remove: &[RuleId],
        add: Vec<DesiredRule>,
        services: BTreeMap<Name, Arrangement>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        for rule in &add {
            let leads_to = rule.spec.action.service();
            for service in leads_to.into_iter().chain(&rule.came_with) {
                let found = self.roster.find_target(service)?.service();
                rules::check_session(&rule.spec, &found.name, &found.session)?;
            }
            check_leads_to(&rule.spec, rule.came_with.as_ref())?;
        }
        self.graph().check_arrangement(&services)?;
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        let admitted = self.rules.admit_in_place_of(remove, add, names)?;
        let (rules, shadowed) = (admitted.ids(), admitted.shadowed().to_vec());
        self.rules.insert(admitted, cx.out);
        for (name, arrangement) in services {
            if let Some(managed) = self.roster.get_mut(&name) {
                managed.arrange(arrangement);
            }
        }
        self.install(cx);
        Ok(Outcome::Arranged { rules, shadowed })
    }

    /// Has a service run at another level.
    pub(super) fn move_service(
        &mut self,
        name: &Name,
        level: Level,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let service = self.roster.find(name)?.service();
        self.roster.check_level(name, &service.module, level)?;
        if service.state != ServiceState::Running {
            return Err(Refusal::ServiceNotRunning { service: name.clone() });
        }
        if self.replacements.is_asked(name) {
            return Err(Refusal::ServiceReplacing { service: name.clone() });
        }
        let (entry, from) = (service.entry, service.level);
        self.replacements.want_before_at(name, level);
        if self.roster.get_mut(name).is_some_and(|managed| managed.ask_move(level)) {
            cx.out.push(Effect::MoveService { entry, level });
        }
        Ok(Outcome::Moving { service: name.clone(), from })
    }

    /// Sets the switch for levels below user level.
    pub(super) fn set_bpf(&mut self, enabled: bool, cx: &mut Context<'_>) -> Outcome {
        Outcome::Bpf { moving: self.roster.set_bpf(enabled, cx.out) }
    }

    /// Has datagrams to these addresses brought to the associations' entry.
    pub(super) fn serve_associations(
        &mut self,
        at: &[SocketAddr],
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.serve_associations(at, names, cx.out)
    }

    /// Awaits the rules of a state that are not there yet, and no others.
    pub(super) fn await_rules(&mut self, desired: &DesiredState, cx: &mut Context<'_>) {
        self.await_only(desired, cx);
        if self.add_awaited(desired, cx) {
            self.install_rules(cx);
        }
    }

    /// Awaits only rules that a state asks for.
    pub(super) fn await_only(&mut self, desired: &DesiredState, cx: &mut Context<'_>) {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.await_only(desired, names, cx.out);
    }

    /// Takes note that the cell takes work, or time has passed: services that should start do.
    pub(super) fn start_waiting(&mut self, cx: &mut Context<'_>) {
        if cx.is_ready {
            self.roster.start_all(cx.out);
        }
    }

    /// Has services whose pause is over start again.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.roster.handle_timeout(cx.now);
        self.start_waiting(cx);
    }

    /// Takes note that the cell is lost: services that should run start with the next one. Returns
    /// the services that are closed, and what is to be reported of those that end.
    pub(super) fn handle_cell_lost(
        &mut self,
        reason: &str,
        cx: &mut Context<'_>,
    ) -> (Vec<Name>, Vec<Notice>) {
        let notices = self.lose_all(reason, cx);
        self.install(cx);
        let graph = self.graph();
        let closed = self.roster.services().filter(|service| graph.is_closed(service));
        (closed.map(|service| service.name.clone()).collect(), notices)
    }

    fn lose_all(&mut self, reason: &str, cx: &mut Context<'_>) -> Vec<Notice> {
        // One that has yet to start does so in the next cell.
        let mut half = self.replacements.services();
        half.retain(|name| !self.replacements.is_untried(name));
        for name in half {
            self.end_replacement(&name, &format!("the cell was lost: {reason}"), cx);
        }
        let (mut removed, mut given_up) = (Vec::new(), Vec::new());
        for managed in self.roster.values_mut().filter(|managed| managed.is_held()) {
            match managed.end_with_cell(cx.now) {
                Some(Ended::Stopped) => removed.push(managed.service().name.clone()),
                Some(_) => given_up.push(managed.service().name.clone()),
                None => {}
            }
        }
        let mut notices = Vec::new();
        for service in removed {
            self.roster.remove(&service);
            notices.push(Notice::ServiceRemoved { service });
        }
        for service in given_up {
            let reason =
                format!("the cell was lost {FIRST_STARTS_MAX} times while it started: {reason}");
            notices.push(self.give_up(service, reason, cx));
        }
        notices
    }

    /// Takes note that a service takes packets.
    pub(super) fn handle_started(&mut self, entry: EntryId, cx: &mut Context<'_>) {
        let Some(managed) = self.roster.of_mut(entry) else { return };
        if !managed.handle_started(cx.now) {
            return;
        }
        let (service, restarts) = (managed.service().name.clone(), managed.service().restarts);
        self.replacements.handle_started(&service, &mut self.rules);
        self.stale = true;
        cx.out.report(Notice::ServiceRunning { service, restarts });
    }

    /// Takes note of where a service of streams listens.
    pub(super) fn handle_listens(&mut self, entry: EntryId, port: u16) {
        let managed = self.roster.of_mut(entry);
        self.stale |= managed.is_some_and(|managed| managed.handle_listens(port));
    }

    /// Takes note of where a service runs.
    pub(super) fn handle_placed(&mut self, entry: EntryId, place: Place, cx: &mut Context<'_>) {
        let bpf = self.roster.bpf();
        let held = self.roster.of_mut(entry).filter(|managed| managed.is_held());
        let Some(managed) = held else { return };
        let level = place.level;
        if managed.handle_placed(place) && managed.runs() {
            let service = managed.service().name.clone();
            cx.out.report(Notice::ServiceMoved { service, level });
        }
        if level != Level::User && !bpf {
            // The switch was set while it started or moved.
            cx.out.push(Effect::MoveService { entry, level: Level::User });
        }
        self.stale = true;
    }

    /// Takes note that a service stays where it is.
    pub(super) fn handle_move_failed(
        &mut self,
        entry: EntryId,
        reason: String,
        cx: &mut Context<'_>,
    ) {
        if let Some(managed) = self.roster.of_mut(entry) {
            managed.handle_move_failed();
            let service = managed.service().name.clone();
            cx.out.report(Notice::MoveFailed { service, reason });
        }
    }

    /// Takes note that the new version of a service runs.
    pub(super) fn handle_replaced(&mut self, entry: EntryId, cx: &mut Context<'_>) {
        let Some(managed) = self.roster.of_mut(entry) else { return };
        if self.replacements.handle_replaced(managed, &mut self.rules) {
            let service = managed.service().name.clone();
            self.install(cx);
            cx.out.report(Notice::ServiceReplaced { service });
        }
    }

    /// Takes note that the new version of a service does not run, and the old one goes on.
    pub(super) fn handle_replace_failed(
        &mut self,
        entry: EntryId,
        reason: String,
        cx: &mut Context<'_>,
    ) {
        let Some(service) = self.roster.name_of(entry) else { return };
        let notice = self.replacements.handle_failed(service, &mut self.rules, reason);
        cx.out.extend(notice.map(Effect::Report));
    }

    /// Takes note that the new version of a service has been watched for long enough.
    pub(super) fn handle_kept(&mut self, entry: EntryId, cx: &mut Context<'_>) {
        let Some(service) = self.roster.name_of(entry) else { return };
        let notice = self.replacements.handle_kept(service, &mut self.rules);
        cx.out.extend(notice.map(Effect::Report));
    }

    /// Takes note that the version before of a service runs again.
    pub(super) fn handle_put_back(&mut self, entry: EntryId, reason: String, cx: &mut Context<'_>) {
        let Some(managed) = self.roster.of_mut(entry) else { return };
        let notice = self.replacements.put_back(managed, &mut self.rules, reason);
        cx.out.extend(notice.map(Effect::Report));
        self.install(cx);
    }

    /// Takes note that the cell has nothing of a service any more: because it failed or, when it
    /// was asked to, stopped.
    pub(super) fn handle_failed(&mut self, entry: EntryId, reason: String, cx: &mut Context<'_>) {
        let held = self.roster.of_mut(entry).filter(|managed| managed.is_held());
        let Some(managed) = held else { return };
        managed.lose();
        let is_starting = managed.service().state == ServiceState::Starting;
        let service = managed.service().name.clone();
        let comes_back = is_starting && self.replacements.is_untried(&service);
        self.end_replacement(&service, &reason, cx);
        if comes_back {
            self.install(cx);
            return self.start_waiting(cx);
        }
        let Some(managed) = self.roster.get_mut(&service) else { return };
        let notice = match managed.end(cx.now, &reason) {
            Ended::Stopped => {
                self.roster.remove(&service);
                Notice::ServiceRemoved { service }
            }
            Ended::NeverRan => self.give_up(service, reason, cx),
            // It was asked to stop.
            Ended::Bypassed => return,
            Ended::TooOften => return self.bypass(&service, reason, cx),
            Ended::Again { retry_at } => {
                let closed = managed.is_told_closed();
                Notice::ServiceFailed { service, reason, closed, retry_at }
            }
        };
        self.install(cx);
        cx.out.report(notice);
    }

    /// Takes note that instances of a service have trapped, `traps` of them since it was started.
    pub(super) fn handle_trapped(
        &mut self,
        entry: EntryId,
        traps: u64,
        reason: String,
        cx: &mut Context<'_>,
    ) {
        let held = self.roster.of_mut(entry).filter(|managed| managed.is_held());
        let Some(managed) = held else { return };
        let too_often = managed.handle_trapped(cx.now, traps);
        let name = managed.service().name.clone();
        // A version that is watched is put back at its first trap: the one before gets its turn.
        if too_often && !self.replacements.may_come_back(&name) {
            self.bypass(&name, reason, cx);
        }
    }

    /// Has packets of a service forwarded plainly until somebody deploys it.
    fn bypass(&mut self, name: &Name, reason: String, cx: &mut Context<'_>) {
        self.end_replacement(name, "the service is bypassed", cx);
        let Some(managed) = self.roster.get_mut(name) else { return };
        managed.bypass(cx.now, reason.clone());
        let (entry, held) = (managed.service().entry, managed.is_held());
        self.install(cx);
        if held {
            cx.out.push(Effect::StopService { entry });
        }
        cx.out.report(Notice::ServiceBypassed { service: name.clone(), reason });
    }

    /// Removes a service that never ran, with its rules; no other rule can lead to it.
    fn give_up(&mut self, service: Name, reason: String, cx: &mut Context<'_>) -> Notice {
        let gone = self.roster.remove(&service).filter(Managed::is_told_closed);
        let opened = gone.map(|managed| managed.service().entry);
        cx.out.extend(opened.map(|entry| Effect::SetClosed { entry, closed: false }));
        self.rules.remove_leading_to(&service);
        Notice::ServiceNotStarted { service, reason }
    }

    /// Brings everything that is being replaced back to the version before, for a snapshot: which
    /// of the two versions the cell has by then, nobody could say.
    pub(super) fn end_replacements(&mut self, reason: &str) {
        for name in self.replacements.services() {
            let _ = self.take_back(&name, reason);
            if let Some(managed) = self.roster.get_mut(&name) {
                managed.fall_back(managed.service().since);
            }
        }
    }

    /// Ends a replacement, and reports it.
    fn end_replacement(&mut self, name: &Name, reason: &str, cx: &mut Context<'_>) {
        let notice = self.take_back(name, reason);
        cx.out.extend(notice.map(Effect::Report));
    }

    fn take_back(&mut self, name: &Name, reason: &str) -> Option<Notice> {
        self.replacements.take_back(name, &mut self.roster, &mut self.rules, reason)
    }

    /// Goes on after a snapshot with a cell that has exactly these services of those that ran.
    pub(super) fn resume_with(&mut self, running: &BTreeSet<EntryId>, cx: &mut Context<'_>) {
        let mut removed = Vec::new();
        for managed in self.roster.values_mut() {
            let has = running.contains(&managed.service().entry);
            if !(managed.runs() && has) && managed.fall_back(cx.now) {
                removed.push(managed.service().name.clone());
            }
        }
        for service in removed {
            self.roster.remove(&service);
            cx.out.report(Notice::ServiceRemoved { service });
        }
        self.start_waiting(cx);
        self.roster.move_on(cx.out);
    }

    /// Adds the rules of a state to those that are awaited, and installs nothing. Returns false
    /// when there is no number left for them.
    pub(super) fn add_awaited(&mut self, desired: &DesiredState, cx: &mut Context<'_>) -> bool {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.add_awaited(desired, names, cx.out)
    }

    /// Returns true when the front door has yet to be told of what has changed.
    pub(super) const fn is_stale(&self) -> bool {
        self.stale
    }

    /// Tells the front door and the cell where packets go, if that has changed.
    pub(super) fn install(&mut self, cx: &mut Context<'_>) {
        self.stale = false;
        let closed = self.graph().closed();
        self.roster.set_closed(closed, cx.out);
        let edges = self.graph().edges();
        self.roster.set_edges(edges, cx.out);
        self.install_rules(cx);
    }

    /// Returns what tells the front door all rules once more.
    pub(super) fn reinstall_rules(&mut self) -> Effect {
        self.rules.reinstall()
    }

    fn install_rules(&mut self, cx: &mut Context<'_>) {
        let names = Names::of(cx.ports, cx.sessions, &self.roster);
        self.rules.install(names, cx.out);
    }

    /// Returns true when packets of a service are dropped as long as it does not run.
    pub(super) fn is_closed(&self, service: &Service) -> bool {
        self.graph().is_closed(service)
    }

    const fn graph(&self) -> Graph<'_> {
        Graph::of(&self.roster)
    }

    fn check_module(
        &self,
        service: &Name,
        module: &ModuleInfo,
        level: Option<Level>,
    ) -> Result<(), Refusal> {
        check_levels(module)?;
        module.granted.permit(module.imports)?;
        level.map_or(Ok(()), |level| self.roster.check_level(service, module, level))
    }
}
