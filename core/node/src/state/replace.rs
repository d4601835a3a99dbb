//! One version of a service in the place of another.
//!
//! ```text
//!  deploy of a name that runs ─▶ asked ─ ServiceReplaced ─▶ watched ─ ServiceKept ─▶ done
//!                                  │ ReplaceFailed             │ ServicePutBack, cell lost
//!                                  ▼                           ▼
//!                          the old one goes on        the old one goes on again
//! ```
//!
//! Rules that come with the new version wait (`Coming`) until it runs; those that the old one
//! has and the new one has not are kept (`Going`) until nobody can want it back. A service that
//! waits for a cell becomes another version at once, and the one before again if that does not start.

use std::collections::{BTreeMap, BTreeSet};

use abi::check::Kind;
use abi::manifest::ParameterValue;
use abi::{Lanes, Level};
use units::{EntryId, Name, Nanos, RuleId, SessionId};

use super::rules::rules_of;
use super::services::{Managed, check_levels};
use super::{Life, Node};
use crate::budget::Budget;
use crate::classifier::Destination;
use crate::command::{Effect, Memory, Notice, Outcome, ServiceStart, StateWay};
use crate::owner::{Owner, same_principal};
use crate::policy::OnFailure;
use crate::refusal::Refusal;
use crate::rule::RuleSpec;
use crate::service::{ModuleInfo, ServiceState};

/// What a deploy says of a service, beside its name and its rules.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) module: ModuleInfo,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) values: BTreeMap<Name, ParameterValue>,
    pub(super) session: Name,
    pub(super) session_id: SessionId,
    pub(super) wanted: Option<Level>,
    pub(super) then: BTreeMap<u16, Name>,
    pub(super) budget: Budget,
    pub(super) on_failure: OnFailure,
    pub(super) owner: Option<Owner>,
}

/// What of a service differs from one version to the next.
pub(super) struct Version {
    pub(super) module: ModuleInfo,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) level: Option<Level>,
}

/// A version that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    definition: Definition,
    /// Rules of the old version that the new one has, too.
    stay: BTreeSet<RuleId>,
}

/// Previous version, until the new one has started and been watched.
#[derive(Clone, Debug)]
pub(super) struct Before {
    definition: Definition,
    /// Rules that came with the new one.
    added: Vec<RuleId>,
    /// True when the new one has yet to start: it was asked for while the service waited for a
    /// cell.
    has_to_start: bool,
}

/// How state passes from one version to the next, or why it cannot.
fn state_way(old: &ModuleInfo, new: &ModuleInfo) -> Result<StateWay, String> {
    let (before, after) = (old.manifest.state_version, new.manifest.state_version);
    let lanes = |module: &ModuleInfo| match module.manifest.lanes {
        Lanes::Count(count) => count,
        // A node has one guest core so far: one instance is one for each core.
        Lanes::PerCore => 1,
    };
    match () {
        () if before != after => {
            Err(format!("the running one has state version {before}, the new one {after}"))
        }
        () if lanes(old) != lanes(new) => Err(format!(
            "the running one has {} lanes, the new one {}: which of them is to know what cannot be said",
            lanes(old),
            lanes(new)
        )),
        // Connections that are open stay with the version that they came to.
        () if new.kind == Kind::Streams => Ok(StateWay::Empty),
        () if old.hands_state_over && new.hands_state_over => Ok(StateWay::Hooks),
        () if old.image == new.image => Ok(StateWay::Memory),
        () => Err(
            "its constants lie elsewhere in memory, and not both versions export state_out and state_in"
                .to_owned(),
        ),
    }
}

impl Node {
    /// Whether a service is neither being started nor being replaced: then another version can
    /// take its place.
    #[must_use]
    pub fn is_settled(&self, service: &Name) -> bool {
        self.services.get(service).is_none_or(|managed| {
            !managed.is_starting() && managed.asked.is_none() && managed.before.is_none()
        })
    }

    /// Returns true while a new version of a service is being started or watched: a snapshot has the
    /// one before.
    #[must_use]
    pub fn is_replacing(&self) -> bool {
        self.services.values().any(|managed| managed.asked.is_some() || managed.before.is_some())
    }

    /// Why what a service knows would be lost, if another one took its place; nothing where it
    /// does not run, or is not lost.
    #[must_use]
    pub fn would_lose(&self, service: &Name, new: &ModuleInfo, session: &Name) -> Option<String> {
        let managed = self.services.get(service).filter(|managed| managed.runs())?;
        let old = managed.service();
        if old.session != *session {
            let from = &old.session;
            return Some(format!("it changes its session from '{from}' to '{session}'"));
        }
        state_way(&old.module, new).err()
    }

    /// A service becomes another version, in its place.
    pub(super) fn another_version(
        &mut self,
        now: Nanos,
        name: &Name,
        version: Version,
        memory: Memory,
    ) -> Result<Outcome, Refusal> {
        let Version { module, parameters, level } = version;
        let present = self.find_service(name)?.definition();
        check_levels(&module)?;
        module.granted.permit(module.imports)?;
        if let Some(level) = level {
            self.check_level(name, &module, level)?;
        }
        let values = module.manifest.values(&parameters)?;
        let definition = Definition { module, parameters, values, wanted: level, ..present };
        let runs = self.services.get(name).is_some_and(Managed::runs);
        let (_, lost) = self.become_another(now, name, definition, Vec::new(), memory)?;
        Ok(Outcome::Replacing { service: name.clone(), runs, lost })
    }

    /// A service that is there becomes another one of its name; beside it, why it begins empty
    /// if nobody asked for that.
    pub(super) fn become_another(
        &mut self,
        now: Nanos,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        memory: Memory,
    ) -> Result<(Outcome, Option<String>), Refusal> {
        let managed = self.find_service(name)?;
        if managed.runs() {
            self.replace(name, definition, specs, memory)
        } else if managed.has_run() && !managed.is_starting() {
            Ok((self.redefine(now, name, definition, specs)?, None))
        } else {
            Err(Refusal::ServiceStarting { service: name.clone() })
        }
    }

    /// A service that runs gets another version.
    fn replace(
        &mut self,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
        memory: Memory,
    ) -> Result<(Outcome, Option<String>), Refusal> {
        let managed = self.find_service(name)?;
        if managed.asked.is_some() || managed.before.is_some() {
            return Err(Refusal::ServiceReplacing { service: name.clone() });
        }
        let service = managed.service();
        if service.session != definition.session {
            let (found, expected) = (definition.session, service.session.clone());
            return Err(Refusal::SessionChange { service: name.clone(), found, expected });
        }
        if !same_principal(service.owner, definition.owner) {
            return Err(Refusal::OwnerChange { service: name.clone() });
        }
        if managed.service().module.kind != definition.module.kind {
            return Err(Refusal::KindChange { service: name.clone() });
        }
        let (old, new) = (&service.module, &definition.module);
        let (way, lost) = match (memory, state_way(old, new)) {
            (Memory::Discarded, _) => (StateWay::Empty, None),
            (_, Ok(way)) => (way, None),
            (Memory::KeptIfPossible, Err(why)) => (StateWay::Empty, Some(why)),
            (Memory::Kept, Err(why)) => {
                let (old, new) = (old.manifest.version.clone(), new.manifest.version.clone());
                return Err(Refusal::StateLost { service: name.clone(), old, new, why });
            }
        };
        let (entry, replaces) = (service.entry, service.module.digest.clone());

        // Without rules of its own the new version has those of the old one.
        let own = self.rules.iter().filter(|(_, owned)| owned.came_with.as_ref() == Some(name));
        let own: Vec<(RuleId, RuleSpec)> =
            own.map(|(id, owned)| (*id, owned.rule.spec.clone())).collect();
        let mut stay: BTreeSet<RuleId> = own.iter().map(|(id, _)| *id).collect();
        let mut new = specs;
        if !new.is_empty() {
            stay.retain(|id| {
                let spec = own.iter().find(|(known, _)| known == id).map(|(_, spec)| spec);
                let at = new.iter().position(|wanted| Some(wanted) == spec);
                at.map(|at| new.remove(at)).is_some()
            });
        }
        let leaving = own.iter().map(|(id, _)| *id).filter(|id| !stay.contains(id)).collect();
        let new = rules_of(name, new, definition.owner);
        let coming = Destination::of(entry, &definition.module, None);
        let admitted = self.admit_rules(new, Some((name, coming)), &leaving)?;
        let mut rules: Vec<RuleId> = stay.iter().copied().collect();
        rules.extend(admitted.ids());
        let shadowed = admitted.shadowed.clone();
        self.insert_rules(admitted, Life::Coming);

        let bpf = self.bpf;
        let Some(managed) = self.services.get_mut(name) else {
            return Err(Refusal::ServiceStopping { service: name.clone() });
        };
        let start = ServiceStart {
            entry,
            service: name.clone(),
            digest: definition.module.digest.clone(),
            lanes: definition.module.manifest.lanes,
            parameters: definition.values.clone(),
            session: definition.session_id,
            levels: definition.levels(bpf),
            functions: definition.module.granted,
            closed: managed.told_closed,
        };
        self.effects.push_back(Effect::ReplaceService { start, way });
        managed.asked = Some(Asked { definition, stay });
        let (service, replaces) = (name.clone(), Some(replaces));
        Ok((Outcome::Deployed { service, entry, rules, shadowed, replaces }, lost))
    }

    /// The new version runs, at user level for now.
    pub(super) fn service_replaced(&mut self, entry: EntryId) {
        let Some((name, asked)) = self.take_asked(entry) else { return };
        let mut added = Vec::new();
        for (id, owned) in &mut self.rules {
            if owned.came_with.as_ref() != Some(&name) {
                continue;
            }
            match owned.life {
                Life::Coming => {
                    owned.life = Life::Live;
                    added.push(*id);
                }
                Life::Live if !asked.stay.contains(id) => owned.life = Life::Going,
                Life::Live | Life::Going => {}
            }
        }
        self.give_rules(&name, asked.definition.owner);
        if let Some(managed) = self.services.get_mut(&name) {
            let definition = managed.define(asked.definition);
            managed.before = Some(Before { definition, added, has_to_start: false });
        }
        self.install();
        self.effects.push_back(Effect::Report(Notice::ServiceReplaced { service: name }));
    }

    /// The new version does not run, and the old one goes on.
    pub(super) fn replace_failed(&mut self, entry: EntryId, reason: String) {
        let Some((name, _)) = self.take_asked(entry) else { return };
        let notice = self.end_asked(name, reason);
        self.effects.push_back(Effect::Report(notice));
    }

    /// The new version has been watched for long enough.
    pub(super) fn service_kept(&mut self, entry: EntryId) {
        let Some(managed) = self.managed(entry) else { return };
        if managed.before.take().is_none() {
            return;
        }
        let service = managed.service().name.clone();
        self.remove_going(&service);
        self.effects.push_back(Effect::Report(Notice::ServiceKept { service }));
    }

    /// The version before runs again.
    pub(super) fn service_put_back(&mut self, entry: EntryId, reason: String) {
        let Some(managed) = self.managed(entry) else { return };
        let name = managed.service().name.clone();
        let notice = self.put_back(&name, reason);
        self.effects.extend(notice.map(Effect::Report));
        self.install();
    }

    /// Ends a replacement of a service that was lost, and reports it.
    pub(super) fn end_replacement(&mut self, name: &Name, reason: &str) {
        if let Some(notice) = self.take_back(name, reason) {
            self.effects.push_back(Effect::Report(notice));
        }
    }

    /// Ends a replacement: the service is the version before again. Returns what is to be
    /// reported of it, unless it ends for another reason.
    pub(super) fn take_back(&mut self, name: &Name, reason: &str) -> Option<Notice> {
        if self.services.get_mut(name)?.asked.take().is_some() {
            return Some(self.end_asked(name.clone(), reason.to_owned()));
        }
        self.put_back(name, reason.to_owned())
    }

    /// Ends a replacement that began while the service waited for a cell: its version has started.
    pub(super) fn end_start(&mut self, name: &Name) {
        let Some(managed) = self.services.get_mut(name) else { return };
        if managed.before.take_if(|before| before.has_to_start).is_some() {
            self.remove_going(name);
        }
    }

    fn remove_going(&mut self, name: &Name) {
        let is_gone =
            |it: &super::OwnedRule| it.life == Life::Going && it.came_with.as_ref() == Some(name);
        self.rules.retain(|_, owned| !is_gone(owned));
    }

    fn put_back(&mut self, name: &Name, reason: String) -> Option<Notice> {
        let managed = self.services.get_mut(name)?;
        let before = managed.before.take()?;
        let owner = before.definition.owner;
        managed.define(before.definition);
        self.give_rules(name, owner);
        for id in before.added {
            self.rules.remove(&id);
        }
        for owned in self.rules.values_mut() {
            if owned.life == Life::Going && owned.came_with.as_ref() == Some(name) {
                owned.life = Life::Live;
            }
        }
        let service = name.clone();
        Some(match before.has_to_start {
            true => Notice::ReplaceFailed { service, reason },
            false => Notice::ServicePutBack { service, reason },
        })
    }

    /// The rules that came with a service are whose it is.
    fn give_rules(&mut self, service: &Name, owner: Option<Owner>) {
        let own = self.rules.values_mut().filter(|it| it.came_with.as_ref() == Some(service));
        own.for_each(|owned| owned.owner = owner);
    }

    fn end_asked(&mut self, service: Name, reason: String) -> Notice {
        self.rules.retain(|_, owned| {
            owned.life != Life::Coming || owned.came_with.as_ref() != Some(&service)
        });
        Notice::ReplaceFailed { service, reason }
    }

    fn take_asked(&mut self, entry: EntryId) -> Option<(Name, Asked)> {
        let managed = self.managed(entry)?;
        let asked = managed.asked.take()?;
        Some((managed.service().name.clone(), asked))
    }

    /// Every module that a service runs, may run soon, or may run again.
    pub fn digests(&self) -> impl Iterator<Item = &str> {
        self.services.values().flat_map(|managed| {
            let asked = managed.asked.as_ref().map(|asked| &asked.definition.module);
            let before = managed.before.as_ref().map(|before| &before.definition.module);
            let all = [Some(&managed.service().module), asked, before];
            all.into_iter().flatten().map(|module| module.digest.as_str())
        })
    }

    /// A service that neither runs nor is being started becomes another one of its name.
    fn redefine(
        &mut self,
        now: Nanos,
        name: &Name,
        definition: Definition,
        specs: Vec<RuleSpec>,
    ) -> Result<Outcome, Refusal> {
        let managed = self.find_service(name)?;
        let (entry, replaces) = (managed.service().entry, managed.service().module.digest.clone());
        // One that failed is not wanted back.
        let may_come_back = managed.service().state == ServiceState::Starting;
        let own = self.rules.iter().filter(|(_, owned)| owned.came_with.as_ref() == Some(name));
        let own: BTreeSet<RuleId> = own.map(|(id, _)| *id).collect();
        let keeps = specs.is_empty();
        let leaving = if keeps { BTreeSet::new() } else { own.clone() };
        let specs = rules_of(name, specs, definition.owner);
        let coming = Destination::of(entry, &definition.module, None);
        let admitted = self.admit_rules(specs, Some((name, coming)), &leaving)?;
        let rules = if keeps { own.iter().copied().collect() } else { admitted.ids() };
        let shadowed = admitted.shadowed.clone();
        let mut added = if keeps { Vec::new() } else { rules.clone() };
        if may_come_back {
            let going = self.rules.iter_mut().filter(|(id, _)| leaving.contains(id));
            going.for_each(|(_, owned)| owned.life = Life::Going);
        } else {
            self.rules.retain(|id, _| !leaving.contains(id));
        }
        self.insert_rules(admitted, Life::Live);
        self.give_rules(name, definition.owner);
        if let Some(managed) = self.services.get_mut(name) {
            let old = managed.define(definition);
            managed.before = may_come_back.then(|| {
                // Of several that have not started the one that ran comes back.
                let before = managed.before.take();
                let (definition, before) =
                    before.map_or((old, Vec::new()), |it| (it.definition, it.added));
                added.extend(before);
                Before { definition, added, has_to_start: true }
            });
            managed.begin_anew(now);
        }
        self.install();
        self.start_waiting();
        Ok(Outcome::Deployed {
            service: name.clone(),
            entry,
            rules,
            shadowed,
            replaces: Some(replaces),
        })
    }
}

impl Definition {
    /// Where to run it, best first: where it is wanted, and the levels above that it may
    /// run at. The last is user level, where every module runs.
    pub(super) fn levels(&self, bpf: bool) -> Vec<Level> {
        let declared = &self.module.manifest.levels;
        let first =
            self.wanted.or_else(|| declared.iter().copied().find(|&level| level != Level::Cluster));
        let first = first.unwrap_or(Level::User);
        let fits = |&level: &Level| match level {
            Level::User => true,
            Level::Nic | Level::Kernel => bpf && level >= first && declared.contains(&level),
            Level::Cluster => false,
        };
        Level::ALL.iter().copied().filter(fits).collect()
    }
}

impl Managed {
    /// Has the version before, too, run at a level, should it come back.
    pub(super) fn want_before_at(&mut self, level: Level) {
        if let Some(before) = &mut self.before {
            let declared = &before.definition.module.manifest.levels;
            if level == Level::User || declared.contains(&level) {
                before.definition.wanted = Some(level);
            }
        }
    }

    /// Returns true when it became another version while it waited for a cell, and that has yet to
    /// start.
    pub(super) fn has_to_start(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.has_to_start)
    }

    /// Becomes another version, at user level; what it was.
    fn define(&mut self, definition: Definition) -> Definition {
        let old = self.definition();
        self.service.module = definition.module;
        self.service.parameters = definition.parameters;
        self.service.session = definition.session;
        self.service.then = definition.then;
        self.service.budget = definition.budget;
        self.service.on_failure = definition.on_failure;
        self.service.owner = definition.owner;
        self.session = definition.session_id;
        self.values = definition.values;
        self.wanted = definition.wanted;
        self.moving = false;
        self.traps.forget();
        self.come_up();
        old
    }

    /// What the last deploy and the moves since said of it.
    pub(super) fn definition(&self) -> Definition {
        Definition {
            module: self.service.module.clone(),
            parameters: self.service.parameters.clone(),
            values: self.values.clone(),
            session: self.service.session.clone(),
            session_id: self.session,
            wanted: self.wanted,
            then: self.service.then.clone(),
            budget: self.service.budget,
            on_failure: self.service.on_failure,
            owner: self.service.owner,
        }
    }

    fn begin_anew(&mut self, now: Nanos) {
        self.retry_at = None;
        self.backoff = crate::service::Backoff::default();
        self.traps.forget();
        self.enter(now, ServiceState::Starting);
    }
}
