//! Deployments: services that are added, replaced and removed, with the rules that lead to them.
//!
//! ```text
//!  Node ─ command, event, Context ─▶ Deployments ─┬─▶ Steering      services and rules, sent together
//!                                                 └─▶ Replacements  versions that may come back
//! ```

use std::collections::BTreeSet;

use abi::Level;
use units::{EntryId, Name, RuleId};

use super::change::{Context, ServiceRequest, Version, check_leads_to};
use super::managed::{Definition, Ended, FIRST_STARTS_MAX, Managed};
use super::replace::{self, Handover, Replacements};
use super::rules::{self, ASSOCIATIONS_NAME, rules_of};
use super::steering::Steering;
use crate::classifier::Destination;
use crate::command::{Effect, Memory, Notice, Outcome};
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::{ModuleInfo, ServiceState};

/// Services with their rules, and their replacements.
#[derive(Clone, Debug, Default)]
pub(super) struct Deployments {
    steering: Steering,
    replacements: Replacements,
}

impl Deployments {
    /// Restores the deployments of a snapshot.
    pub(super) fn restore(steering: Steering) -> Self {
        Self { steering, replacements: Replacements::default() }
    }

    /// Returns the services and rules.
    pub(super) const fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Returns the services and rules for changes that concern no replacement.
    pub(super) const fn steering_mut(&mut self) -> &mut Steering {
        &mut self.steering
    }

    /// Returns true while a new version of any service is starting or being watched.
    pub(super) fn is_replacing(&self) -> bool {
        self.replacements.is_any()
    }

    /// Returns true if a service is neither starting nor being replaced.
    pub(super) fn is_first_starting(&self, service: &Name) -> bool {
        let managed = self.steering.roster().get(service);
        managed.is_some_and(|managed| managed.is_starting() && !managed.has_run())
    }

    pub(super) fn is_settled(&self, service: &Name) -> bool {
        let is_starting = self.steering.roster().get(service).is_some_and(Managed::is_starting);
        !is_starting && !self.replacements.has(service)
    }

    /// Returns the reason that the state of a service would be lost if another version replaced it;
    /// `None` if the service does not run or its state is kept.
    pub(super) fn loss(&self, service: &Name, new: &ModuleInfo, session: &Name) -> Option<String> {
        let managed = self.steering.roster().get(service).filter(|managed| managed.runs())?;
        replace::loss(managed.service(), new, session)
    }

    /// Returns the digests of all modules that a service runs, may run soon, or may run again.
    pub(super) fn digests(&self) -> impl Iterator<Item = &str> {
        self.steering.roster().services().flat_map(|service| {
            let other = self.replacements.module(&service.name);
            [Some(&service.module), other].into_iter().flatten().map(|it| it.digest.as_str())
        })
    }

    /// Starts a service, or replaces its version.
    pub(super) fn deploy(
        &mut self,
        wanted: ServiceRequest,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let name = wanted.service.clone();
        if name.as_str() == ASSOCIATIONS_NAME {
            return Err(Refusal::NameReserved { service: name });
        }
        let present = self.steering.roster().service(&name);
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
        wanted: ServiceRequest,
        cx: &Context<'_>,
    ) -> Result<(Definition, Vec<RuleSpec>), Refusal> {
        let ServiceRequest { service: name, module, parameters, session, rules, level, .. } =
            wanted;
        let session_id = cx.sessions.find(&session)?.id;
        self.steering.check_module(&name, &module, level)?;
        let values = module.manifest.values(&parameters)?;
        for spec in &rules {
            check_leads_to(spec, Some(&name))?;
            rules::check_session(spec, &name, &session)?;
        }
        let then =
            self.steering.graph().check_edges(&name, (&session, module.kind), &wanted.then)?;
        let ServiceRequest { budget, on_failure, owner, .. } = wanted;
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
        let entry = self.steering.roster().free_entry(&name, &definition.module)?;
        let rules = rules_of(&name, specs, definition.owner);
        let incoming = Destination::of(entry, &definition.module, None);
        let incoming = Some((&name, incoming));
        let admitted = self.steering.admit(rules, incoming, &BTreeSet::new(), cx)?;
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: admitted.ids(),
            shadowed: admitted.shadowed().to_vec(),
            replaces: None,
        };
        self.steering.roster_mut().take_entry(entry);
        self.steering.rules_mut().insert(admitted, cx.out);
        let changes_paths = definition.on_failure.is_closed() || !definition.then.is_empty();
        self.steering.roster_mut().insert(Managed::new(cx.now, name.clone(), entry, definition));
        // No rule leads to a service that does not run.
        if changes_paths {
            self.steering.install(cx);
        }
        if cx.is_ready {
            self.steering.roster_mut().start(&name, cx.out);
        }
        Ok(outcome)
    }

    /// Replaces the version of a service.
    pub(super) fn replace(
        &mut self,
        name: &Name,
        version: Version,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let Version { module, parameters, level, memory } = version;
        let present = self.steering.roster().find(name)?;
        let (present, runs) = (present.definition(), present.runs());
        self.steering.check_module(name, &module, level)?;
        let values = module.manifest.values(&parameters)?;
        let definition = Definition { module, parameters, values, wanted: level, ..present };
        let (_, lost) = self.become_another(name, definition, Vec::new(), memory, cx)?;
        Ok(Outcome::Replacing { service: name.clone(), runs, lost })
    }

    /// Changes an existing service into another version. Returns the outcome, and the reason that
    /// the new version begins empty if that was not asked for.
    fn become_another(
        &mut self,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        memory: Memory,
        cx: &mut Context<'_>,
    ) -> Result<(Outcome, Option<String>), Refusal> {
        let managed = self.steering.roster().find(name)?;
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

    /// Asks the cell for another version of a running service. Without rules of its own the new
    /// version keeps those of the old one.
    fn ask_for(
        &mut self,
        name: &Name,
        definition: Definition,
        mut specs: Vec<RuleSpec>,
        handover: Handover,
        cx: &mut Context<'_>,
    ) -> Result<(Outcome, Option<String>), Refusal> {
        let managed = self.steering.roster().find(name)?;
        let service = managed.service();
        let (entry, replaces) = (service.entry, service.module.digest.clone());
        let stay = self.steering.rules().kept_rules(name, &mut specs);
        let leaving = self.steering.rules().of_service(name).difference(&stay).copied().collect();
        let incoming = Destination::of(entry, &definition.module, None);
        let new = rules_of(name, specs, definition.owner);
        let admitted = self.steering.admit(new, Some((name, incoming)), &leaving, cx)?;
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: stay.iter().copied().chain(admitted.ids()).collect(),
            shadowed: admitted.shadowed().to_vec(),
            replaces: Some(replaces),
        };
        let start =
            definition.start(service, managed.is_announced_closed(), self.steering.roster().bpf());
        self.steering.rules_mut().insert_pending(admitted, cx.out);
        cx.out.push(Effect::ReplaceService { start, path: handover.path });
        self.replacements.ask(name.clone(), definition, stay);
        Ok((outcome, handover.lost))
    }

    /// Changes a service that neither runs nor is being started into another version.
    fn redefine(
        &mut self,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let service = self.steering.roster().find(name)?.service();
        replace::check_kind(service, &definition.module)?;
        let (entry, replaces) = (service.entry, service.module.digest.clone());
        // A version that failed does not come back.
        let may_come_back = service.state == ServiceState::Starting;
        let own = self.steering.rules().of_service(name);
        let keeps = specs.is_empty();
        let leaving = if keeps { BTreeSet::new() } else { own.clone() };
        let specs = rules_of(name, specs, definition.owner);
        let incoming = Destination::of(entry, &definition.module, None);
        let admitted = self.steering.admit(specs, Some((name, incoming)), &leaving, cx)?;
        let added = admitted.ids();
        let outcome = Outcome::Deployed {
            service: name.clone(),
            entry,
            rules: if keeps { own.into_iter().collect() } else { added.clone() },
            shadowed: admitted.shadowed().to_vec(),
            replaces: Some(replaces),
        };
        self.steering.rules_mut().retire(&leaving, may_come_back);
        self.steering.rules_mut().insert(admitted, cx.out);
        self.steering.rules_mut().give(name, definition.owner);
        if let Some(managed) = self.steering.roster_mut().get_mut(name) {
            if may_come_back {
                self.replacements.try_another(cx.now, managed, definition, added);
            } else {
                managed.define(definition);
                managed.begin_anew(cx.now);
            }
        }
        self.steering.install(cx);
        self.steering.start_waiting(cx);
        Ok(outcome)
    }

    /// Stops a service, and removes the rules that lead to it.
    pub(super) fn remove(
        &mut self,
        name: &Name,
        cascade: bool,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let managed = self.steering.roster().find(name)?;
        let (entry, held) = (managed.service().entry, managed.is_held());
        let others = self.steering.rules().of_others(name);
        if !cascade && !others.is_empty() {
            return Err(Refusal::ServiceInUse { service: name.clone(), rules: others });
        }
        let before = self.steering.graph().before(name);
        if !cascade && !before.is_empty() {
            return Err(Refusal::ServiceFollows { service: name.clone(), before });
        }
        self.steering.roster_mut().values_mut().for_each(|managed| managed.remove_edges_to(name));
        // Whoever waits for another version is notified that the service was removed.
        let _ = self.take_back(name, "the service was removed");
        let rules = self.steering.rules_mut().remove_leading_to(name);
        let mut is_led_to = !rules.is_empty() || !before.is_empty();
        if let Some(managed) = self.steering.roster_mut().get_mut(name) {
            is_led_to |= managed.is_announced_closed() || !managed.service().then.is_empty();
            managed.stop(cx.now);
        }
        if is_led_to {
            self.steering.install(cx);
        }
        if held {
            cx.out.push(Effect::StopService { entry });
        } else {
            self.steering.roster_mut().remove(name);
            cx.out.report(Notice::ServiceRemoved { service: name.clone() });
        }
        Ok(Outcome::Removed { service: name.clone(), rules, stopping: held })
    }

    /// Removes services and rules, all of one session. Returns the removed rules.
    pub(super) fn remove_all(
        &mut self,
        services: &[Name],
        rules: Vec<RuleId>,
        cx: &mut Context<'_>,
    ) -> Result<Vec<RuleId>, Refusal> {
        let mut went = Vec::new();
        for service in services {
            // All rules and edges that lead to it are of the same session.
            if let Outcome::Removed { rules, .. } = self.remove(service, true, cx)? {
                went.extend(rules);
            }
        }
        for rule in rules.into_iter().filter(|rule| !went.contains(rule)).collect::<Vec<_>>() {
            self.steering.rules_mut().discard(rule);
            went.push(rule);
        }
        self.steering.install_rules(cx);
        went.sort_unstable();
        Ok(went)
    }

    /// Moves a service to another level.
    pub(super) fn move_service(
        &mut self,
        name: &Name,
        level: Level,
        cx: &mut Context<'_>,
    ) -> Result<Outcome, Refusal> {
        let service = self.steering.roster().find(name)?.service();
        self.steering.roster().check_level(name, &service.module, level)?;
        if service.state != ServiceState::Running {
            return Err(Refusal::ServiceNotRunning { service: name.clone() });
        }
        if self.replacements.is_asked(name) {
            return Err(Refusal::ServiceReplacing { service: name.clone() });
        }
        let (entry, from) = (service.entry, service.level);
        self.replacements.set_previous_level(name, level);
        if self
            .steering
            .roster_mut()
            .get_mut(name)
            .is_some_and(|managed| managed.request_move(level))
        {
            cx.out.push(Effect::MoveService { entry, level });
        }
        Ok(Outcome::Moving { service: name.clone(), from })
    }

    /// Records that the cell is lost: services that should run start with the next one. Returns the
    /// closed services, and notices on those that end.
    pub(super) fn handle_cell_lost(
        &mut self,
        reason: &str,
        cx: &mut Context<'_>,
    ) -> (Vec<Name>, Vec<Notice>) {
        let notices = self.lose_all(reason, cx);
        self.steering.install(cx);
        let graph = self.steering.graph();
        let closed = self.steering.roster().services().filter(|service| graph.is_closed(service));
        (closed.map(|service| service.name.clone()).collect(), notices)
    }

    fn lose_all(&mut self, reason: &str, cx: &mut Context<'_>) -> Vec<Notice> {
        // Services that have yet to start do so in the next cell.
        let mut half = self.replacements.services();
        half.retain(|name| !self.replacements.is_untried(name));
        for name in half {
            self.end_replacement(&name, &format!("the cell was lost: {reason}"), cx);
        }
        let (mut removed, mut given_up) = (Vec::new(), Vec::new());
        for managed in self.steering.roster_mut().values_mut().filter(|managed| managed.is_held()) {
            match managed.end_with_cell(cx.now) {
                Some(Ended::Stopped) => removed.push(managed.service().name.clone()),
                Some(_) => given_up.push(managed.service().name.clone()),
                None => {}
            }
        }
        let mut notices = Vec::new();
        for service in removed {
            self.steering.roster_mut().remove(&service);
            notices.push(Notice::ServiceRemoved { service });
        }
        for service in given_up {
            let reason =
                format!("the cell was lost {FIRST_STARTS_MAX} times while it started: {reason}");
            notices.push(self.steering.give_up(service, reason, cx));
        }
        notices
    }

    /// Records that a service takes packets.
    pub(super) fn handle_started(&mut self, entry: EntryId, cx: &mut Context<'_>) {
        let (roster, rules) = self.steering.owners_mut();
        let Some(managed) = roster.of_mut(entry) else { return };
        if !managed.handle_started(cx.now) {
            return;
        }
        let (service, restarts) = (managed.service().name.clone(), managed.service().restarts);
        self.replacements.handle_started(&service, rules);
        self.steering.mark_stale();
        cx.out.report(Notice::ServiceRunning { service, restarts });
    }

    /// Records that the new version of a service runs.
    pub(super) fn handle_replaced(&mut self, entry: EntryId, cx: &mut Context<'_>) {
        let (roster, rules) = self.steering.owners_mut();
        let Some(managed) = roster.of_mut(entry) else { return };
        if self.replacements.handle_replaced(managed, rules) {
            let service = managed.service().name.clone();
            self.steering.install(cx);
            cx.out.report(Notice::ServiceReplaced { service });
        }
    }

    /// Records that the new version of a service does not run, and the old one continues.
    pub(super) fn handle_replace_failed(
        &mut self,
        entry: EntryId,
        reason: String,
        cx: &mut Context<'_>,
    ) {
        let (roster, rules) = self.steering.owners_mut();
        let Some(service) = roster.name_of(entry) else { return };
        let notice = self.replacements.handle_failed(service, rules, reason);
        cx.out.extend(notice.map(Effect::Report));
    }

    /// Records that the watch period of a new version is over.
    pub(super) fn handle_kept(&mut self, entry: EntryId, cx: &mut Context<'_>) {
        let (roster, rules) = self.steering.owners_mut();
        let Some(service) = roster.name_of(entry) else { return };
        let notice = self.replacements.handle_kept(service, rules);
        cx.out.extend(notice.map(Effect::Report));
    }

    /// Records that the previous version of a service runs again.
    pub(super) fn handle_put_back(&mut self, entry: EntryId, reason: String, cx: &mut Context<'_>) {
        let (roster, rules) = self.steering.owners_mut();
        let Some(managed) = roster.of_mut(entry) else { return };
        let notice = self.replacements.put_back(managed, rules, reason);
        cx.out.extend(notice.map(Effect::Report));
        self.steering.install(cx);
    }

    /// Records that the cell has nothing of a service any more: it failed or has stopped as
    /// requested.
    pub(super) fn handle_failed(&mut self, entry: EntryId, reason: String, cx: &mut Context<'_>) {
        let held = self.steering.roster_mut().of_mut(entry).filter(|managed| managed.is_held());
        let Some(managed) = held else { return };
        managed.lose();
        let is_starting = managed.service().state == ServiceState::Starting;
        let service = managed.service().name.clone();
        let comes_back = is_starting && self.replacements.is_untried(&service);
        self.end_replacement(&service, &reason, cx);
        if comes_back {
            self.steering.install(cx);
            return self.steering.start_waiting(cx);
        }
        let Some(managed) = self.steering.roster_mut().get_mut(&service) else { return };
        let notice = match managed.end(cx.now, &reason) {
            Ended::Stopped => {
                self.steering.roster_mut().remove(&service);
                Notice::ServiceRemoved { service }
            }
            Ended::NeverRan => self.steering.give_up(service, reason, cx),
            // The service was already bypassed, and the cell was asked to stop it.
            Ended::Bypassed => return,
            Ended::TooOften => return self.bypass(&service, reason, cx),
            Ended::Again { retry_at } => {
                let closed = managed.is_announced_closed();
                Notice::ServiceFailed { service, reason, closed, retry_at }
            }
        };
        self.steering.install(cx);
        cx.out.report(notice);
    }

    /// Records the number of traps of a service's instances since it was started.
    pub(super) fn handle_trapped(
        &mut self,
        entry: EntryId,
        traps: u64,
        reason: String,
        cx: &mut Context<'_>,
    ) {
        let held = self.steering.roster_mut().of_mut(entry).filter(|managed| managed.is_held());
        let Some(managed) = held else { return };
        let too_often = managed.handle_trapped(cx.now, traps);
        let name = managed.service().name.clone();
        // A version that is being watched is put back at its first trap instead.
        if too_often && !self.replacements.may_come_back(&name) {
            self.bypass(&name, reason, cx);
        }
    }

    /// Forwards the packets of a service plainly until it is deployed again.
    fn bypass(&mut self, name: &Name, reason: String, cx: &mut Context<'_>) {
        self.end_replacement(name, "the service is bypassed", cx);
        let Some(managed) = self.steering.roster_mut().get_mut(name) else { return };
        managed.bypass(cx.now, reason.clone());
        let (entry, held) = (managed.service().entry, managed.is_held());
        self.steering.install(cx);
        if held {
            cx.out.push(Effect::StopService { entry });
        }
        cx.out.report(Notice::ServiceBypassed { service: name.clone(), reason });
    }

    /// Returns every service that is being replaced to its previous version, for a snapshot: the
    /// version that a later cell would have is unknown.
    pub(super) fn end_replacements(&mut self, reason: &str) {
        for name in self.replacements.services() {
            let _ = self.take_back(&name, reason);
            if let Some(managed) = self.steering.roster_mut().get_mut(&name) {
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
        let (roster, rules) = self.steering.owners_mut();
        self.replacements.take_back(name, roster, rules, reason)
    }
}
