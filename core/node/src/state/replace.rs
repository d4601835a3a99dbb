//! Replacement of a service's version by another.
//!
//! ```text
//!  deploy of a name that runs ─▶ Asked ─ ServiceReplaced ─▶ Watched ─ ServiceKept ─▶ done
//!                                  │ ReplaceFailed             │ ServicePutBack, cell lost
//!                                  ▼                           ▼
//!                          the old one goes on        the old one goes on again
//! ```
//!
//! Rules of the new version wait until it runs; rules that only the old version has are kept as
//! long as it can come back. A service that waits for a cell changes its version at once
//! (`Untried`), and returns to the previous one if the new one does not start.

use std::collections::{BTreeMap, BTreeSet};

use abi::check::Kind;
use abi::{Lanes, Level};
use units::{Name, Nanos, RuleId};

use super::managed::{Definition, Managed};
use super::roster::Roster;
use super::rules::Rules;
use crate::command::{Memory, Notice, StatePath};
use crate::owner::same_principal;
use crate::refusal::Refusal;
use crate::service::{ModuleInfo, Service};

/// Replacements in progress, by service.
#[derive(Clone, Debug, Default)]
pub(super) struct Replacements {
    by_service: BTreeMap<Name, Replacement>,
}

/// Replacement in progress.
#[derive(Clone, Debug)]
enum Replacement {
    /// The cell was asked for a new version; the service is still the old one.
    Asked {
        /// New version.
        definition: Definition,
        /// Rules of the old version that the new one keeps.
        stay: BTreeSet<RuleId>,
    },
    /// The new version runs, and is watched for traps.
    Watched(Previous),
    /// The service changed its version while it waited for a cell, and has yet to start.
    Untried(Previous),
}

/// Previous version, which comes back if the new one fails.
#[derive(Clone, Debug)]
struct Previous {
    definition: Definition,
    /// Rules that came with the new version.
    added: Vec<RuleId>,
}

/// Handover of state from one version to the next.
#[derive(Debug)]
pub(super) struct Handover {
    /// Path of the state.
    pub(super) path: StatePath,
    /// Reason that the new version begins empty although that was not asked for.
    pub(super) lost: Option<String>,
}

impl Replacements {
    /// Returns true if any replacement is in progress.
    pub(super) fn is_any(&self) -> bool {
        !self.by_service.is_empty()
    }

    /// Returns true while a new version of a service is starting or being watched.
    pub(super) fn has(&self, service: &Name) -> bool {
        self.by_service.contains_key(service)
    }

    /// Returns true if the cell was asked for another version of a service.
    pub(super) fn is_asked(&self, service: &Name) -> bool {
        matches!(self.by_service.get(service), Some(Replacement::Asked { .. }))
    }

    /// Returns true if a service is the new version already and the previous one may come back.
    pub(super) fn may_come_back(&self, service: &Name) -> bool {
        self.has(service) && !self.is_asked(service)
    }

    /// Returns true if a service changed its version while it waited for a cell, and has yet to
    /// start.
    pub(super) fn is_untried(&self, service: &Name) -> bool {
        matches!(self.by_service.get(service), Some(Replacement::Untried(_)))
    }

    /// Returns the services that are being replaced.
    pub(super) fn services(&self) -> Vec<Name> {
        self.by_service.keys().cloned().collect()
    }

    /// Returns the module that a service may run soon, or again.
    pub(super) fn module(&self, service: &Name) -> Option<&ModuleInfo> {
        Some(match self.by_service.get(service)? {
            Replacement::Asked { definition, .. } => &definition.module,
            Replacement::Watched(before) | Replacement::Untried(before) => {
                &before.definition.module
            }
        })
    }

    /// Sets the level of the previous version too, should it come back.
    pub(super) fn set_previous_level(&mut self, service: &Name, level: Level) {
        if let Some(Replacement::Watched(before) | Replacement::Untried(before)) =
            self.by_service.get_mut(service)
        {
            let declared = &before.definition.module.manifest.levels;
            if level == Level::User || declared.contains(&level) {
                before.definition.wanted = Some(level);
            }
        }
    }

    /// Records the request for a new version; `stay` are the rules of the old one that it keeps.
    pub(super) fn ask(&mut self, service: Name, definition: Definition, stay: BTreeSet<RuleId>) {
        self.by_service.insert(service, Replacement::Asked { definition, stay });
    }

    /// Changes the version of a service that waits for a cell; `added` are rules that came with the
    /// new one. Of several versions that have not started, the one that ran comes back.
    pub(super) fn try_another(
        &mut self,
        now: Nanos,
        managed: &mut Managed,
        definition: Definition,
        mut added: Vec<RuleId>,
    ) {
        let old = managed.define(definition);
        managed.begin_anew(now);
        let service = managed.service().name.clone();
        let definition = match self.take_previous(&service) {
            Some((before, _)) => {
                added.extend(before.added);
                before.definition
            }
            None => old,
        };
        self.by_service.insert(service, Replacement::Untried(Previous { definition, added }));
    }

    /// Records that the new version of a service runs, at user level for now. Returns false if none
    /// was requested.
    pub(super) fn handle_replaced(&mut self, managed: &mut Managed, rules: &mut Rules) -> bool {
        let service = managed.service().name.clone();
        let Some((definition, stay)) = self.take_asked(&service) else { return false };
        let added = rules.change_version(&service, &stay);
        rules.give(&service, definition.owner);
        let definition = managed.define(definition);
        self.by_service.insert(service, Replacement::Watched(Previous { definition, added }));
        true
    }

    /// Records that the new version of a service does not run. Returns the notice, if one was
    /// requested.
    pub(super) fn handle_failed(
        &mut self,
        service: &Name,
        rules: &mut Rules,
        reason: String,
    ) -> Option<Notice> {
        self.take_asked(service)?;
        rules.remove_pending(service);
        Some(Notice::ReplaceFailed { service: service.clone(), reason })
    }

    /// Records that the watch period of a new version is over. Returns the notice.
    pub(super) fn handle_kept(&mut self, service: &Name, rules: &mut Rules) -> Option<Notice> {
        self.take_previous(service)?;
        rules.remove_retired(service);
        Some(Notice::ServiceKept { service: service.clone() })
    }

    /// Records that a service has started: this ends a replacement that began while it waited for a
    /// cell.
    pub(super) fn handle_started(&mut self, service: &Name, rules: &mut Rules) {
        if self.is_untried(service) {
            self.by_service.remove(service);
            rules.remove_retired(service);
        }
    }

    /// Returns a service to its previous version. Returns the notice, if there is a previous
    /// version.
    pub(super) fn put_back(
        &mut self,
        managed: &mut Managed,
        rules: &mut Rules,
        reason: String,
    ) -> Option<Notice> {
        let service = managed.service().name.clone();
        let (Previous { definition, added }, has_run) = self.take_previous(&service)?;
        let owner = definition.owner;
        managed.define(definition);
        rules.give(&service, owner);
        rules.put_back(&service, &added);
        Some(match has_run {
            false => Notice::ReplaceFailed { service, reason },
            true => Notice::ServicePutBack { service, reason },
        })
    }

    /// Ends a replacement by returning the service to its previous version. Returns the notice, if
    /// there was a replacement.
    pub(super) fn take_back(
        &mut self,
        service: &Name,
        roster: &mut Roster,
        rules: &mut Rules,
        reason: &str,
    ) -> Option<Notice> {
        if self.is_asked(service) {
            return self.handle_failed(service, rules, reason.to_owned());
        }
        self.put_back(roster.get_mut(service)?, rules, reason.to_owned())
    }

    fn take_asked(&mut self, service: &Name) -> Option<(Definition, BTreeSet<RuleId>)> {
        if !self.is_asked(service) {
            return None;
        }
        match self.by_service.remove(service)? {
            Replacement::Asked { definition, stay } => Some((definition, stay)),
            Replacement::Watched(_) | Replacement::Untried(_) => None,
        }
    }

    /// Removes and returns the previous version, with true if the new one has run.
    fn take_previous(&mut self, service: &Name) -> Option<(Previous, bool)> {
        if !self.may_come_back(service) {
            return None;
        }
        match self.by_service.remove(service)? {
            Replacement::Watched(before) => Some((before, true)),
            Replacement::Untried(before) => Some((before, false)),
            Replacement::Asked { .. } => None,
        }
    }
}

/// Decides how the state of a running service passes to a new version.
///
/// # Errors
/// The new one cannot replace it, or state that was to be kept would be lost.
pub(super) fn handover(
    service: &Service,
    new: &Definition,
    memory: Memory,
) -> Result<Handover, Refusal> {
    let name = || service.name.clone();
    if service.session != new.session {
        let (found, expected) = (new.session.clone(), service.session.clone());
        return Err(Refusal::SessionChange { service: name(), found, expected });
    }
    if !same_principal(service.owner, new.owner) {
        return Err(Refusal::OwnerChange { service: name() });
    }
    check_kind(service, &new.module)?;
    match (memory, state_path(&service.module, &new.module)) {
        (Memory::Discarded, _) => Ok(Handover { path: StatePath::Empty, lost: None }),
        (_, Ok(path)) => Ok(Handover { path, lost: None }),
        (Memory::KeptIfPossible, Err(why)) => {
            Ok(Handover { path: StatePath::Empty, lost: Some(why) })
        }
        (Memory::Kept, Err(why)) => {
            let version = |module: &ModuleInfo| module.manifest.version.clone();
            let (old, new) = (version(&service.module), version(&new.module));
            Err(Refusal::StateLost { service: name(), old, new, why })
        }
    }
}

/// Refuses a stream module as new version of a packet service, and the reverse: rules that lead to
/// the service were admitted for its kind.
pub(super) fn check_kind(service: &Service, new: &ModuleInfo) -> Result<(), Refusal> {
    match service.module.kind == new.kind {
        true => Ok(()),
        false => Err(Refusal::KindChange { service: service.name.clone() }),
    }
}

/// Returns the reason that the state of a running service would be lost if a version of this module
/// and session replaced it.
pub(super) fn loss(service: &Service, new: &ModuleInfo, session: &Name) -> Option<String> {
    if service.session != *session {
        let from = &service.session;
        return Some(format!("it changes its session from '{from}' to '{session}'"));
    }
    state_path(&service.module, new).err()
}

/// Returns the path of state from one version to the next, or the reason that there is none.
fn state_path(old: &ModuleInfo, new: &ModuleInfo) -> Result<StatePath, String> {
    let (before, after) = (old.manifest.state_version, new.manifest.state_version);
    let lanes = |module: &ModuleInfo| match module.manifest.lanes {
        Lanes::Count(count) => count,
        // A node has one guest core so far, so one lane per core is one lane.
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
        // Open connections stay with the version that accepted them.
        () if new.kind == Kind::Streams => Ok(StatePath::Empty),
        () if old.hands_state_over && new.hands_state_over => Ok(StatePath::Hooks),
        () if old.image == new.image => Ok(StatePath::Memory),
        () => Err(
            "its constants lie elsewhere in memory, and not both versions export state_out and state_in"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::managed::testing::{definition, running};
    use super::*;

    const NOW: Nanos = Nanos::from_millis(5);

    fn another(digest: &str) -> Definition {
        let mut definition = definition("\"user\"");
        digest.clone_into(&mut definition.module.digest);
        definition
    }

    fn digest(managed: &Managed) -> &str {
        &managed.service().module.digest
    }

    #[test]
    fn an_answer_that_nobody_waits_for_changes_nothing() {
        let (mut replacements, mut rules) = (Replacements::default(), Rules::default());
        let mut managed = running("monitor", 0, &[]);
        let service = managed.service().name.clone();
        let before = managed.service().clone();
        assert!(!replacements.handle_replaced(&mut managed, &mut rules));
        assert_eq!(replacements.handle_kept(&service, &mut rules), None);
        assert_eq!(replacements.put_back(&mut managed, &mut rules, String::new()), None);
        replacements.ask(service.clone(), another("new"), BTreeSet::new());
        assert_eq!(replacements.handle_kept(&service, &mut rules), None, "it was not watched");
        assert_eq!(replacements.put_back(&mut managed, &mut rules, String::new()), None);
        assert_eq!((managed.service(), replacements.is_asked(&service)), (&before, true));
    }

    #[test]
    fn a_version_is_asked_for_then_watched_and_put_back_or_kept() {
        let (mut replacements, mut rules) = (Replacements::default(), Rules::default());
        let mut managed = running("monitor", 0, &[]);
        let (service, reason) = (managed.service().name.clone(), "trap".to_owned());
        replacements.ask(service.clone(), another("new"), BTreeSet::new());
        assert_eq!(digest(&managed), "sha256:00");
        assert!(replacements.handle_replaced(&mut managed, &mut rules));
        assert_eq!(digest(&managed), "new");
        let known = replacements.module(&service).map(|module| module.digest.as_str());
        assert_eq!(known, Some("sha256:00"), "it may run again");
        let (mut kept, mut same) = (replacements.clone(), managed.clone());
        let notice = Notice::ServicePutBack { service: service.clone(), reason: reason.clone() };
        assert_eq!(replacements.put_back(&mut managed, &mut rules, reason), Some(notice));
        assert_eq!((digest(&managed), replacements.is_any()), ("sha256:00", false));
        let notice = Notice::ServiceKept { service: service.clone() };
        assert_eq!(kept.handle_kept(&service, &mut rules), Some(notice));
        assert_eq!(kept.put_back(&mut same, &mut rules, String::new()), None);
        assert_eq!(digest(&same), "new");
    }

    #[test]
    fn after_several_versions_that_did_not_start_the_one_that_ran_is_restored() {
        let (mut replacements, mut rules) = (Replacements::default(), Rules::default());
        let mut managed = running("monitor", 0, &[]);
        managed.lose();
        for digest in ["one", "two"] {
            replacements.try_another(NOW, &mut managed, another(digest), Vec::new());
        }
        assert_eq!(digest(&managed), "two");
        let service = managed.service().name.clone();
        let mut started = replacements.clone();
        started.handle_started(&service, &mut rules);
        assert!(!started.has(&service));
        let reason = "limits".to_owned();
        let notice = Notice::ReplaceFailed { service, reason: reason.clone() };
        assert_eq!(replacements.put_back(&mut managed, &mut rules, reason), Some(notice));
        assert_eq!(digest(&managed), "sha256:00");
    }
}
