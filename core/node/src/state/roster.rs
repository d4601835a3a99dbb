//! Services of a node by name and by entry, the allocation of entries, and the switch for levels
//! below user level.

use std::collections::btree_map::{Keys, Values, ValuesMut};
use std::collections::{BTreeMap, BTreeSet};

use abi::Level;
use abi::check::Kind;
use abi::manifest::Meant;
use units::{EntryId, Name, Nanos, SessionId};

use super::effects::Effects;
use super::managed::Managed;
use crate::command::Effect;
use crate::refusal::Refusal;
use crate::service::{BELOW_MAX, Edges, ModuleInfo, SERVICES_MAX, Service, ServiceState};

/// Number of entries below [`BELOW_MAX`] that services without levels below user level use first;
/// the rest they leave to others as long as higher entries are free.
const USER_FIRST: u16 = BELOW_MAX as u16 / 4;

/// Services by name and by entry.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    by_name: BTreeMap<Name, Managed>,
    by_entry: Vec<Option<Name>>,
    numbering: Numbering,
    /// Entry for the next service, if it is free.
    preferred: Option<EntryId>,
    /// True if services may run below user level.
    bpf: bool,
}

/// Start of each search for a free entry, so that no entry is reused at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbering {
    /// Start among the entries that can be below user level.
    pub(super) below: u16,
    /// Start among the other entries.
    pub(super) user: u16,
}

impl Default for Roster {
    fn default() -> Self {
        Self::restore(Numbering::default(), true)
    }
}

impl Roster {
    /// Restores the roster of a snapshot, without its services.
    pub(super) const fn restore(numbering: Numbering, bpf: bool) -> Self {
        Self { by_name: BTreeMap::new(), by_entry: Vec::new(), numbering, preferred: None, bpf }
    }

    /// Inserts a service. Returns the previous one of its name.
    pub(super) fn insert(&mut self, managed: Managed) -> Option<Managed> {
        let (name, entry) = (managed.service().name.clone(), managed.service().entry);
        let place = usize::from(entry.0);
        if self.by_entry.len() <= place {
            self.by_entry.resize(place + 1, None);
        }
        self.by_entry[place] = Some(name.clone());
        self.by_name.insert(name, managed)
    }

    /// Removes a service, and frees its name and entry.
    pub(super) fn remove(&mut self, name: &Name) -> Option<Managed> {
        let gone = self.by_name.remove(name)?;
        self.by_entry[usize::from(gone.service().entry.0)] = None;
        Some(gone)
    }

    /// Returns the service of this name.
    pub(super) fn get(&self, name: &Name) -> Option<&Managed> {
        self.by_name.get(name)
    }

    /// Returns the service of this name, mutably.
    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut Managed> {
        self.by_name.get_mut(name)
    }

    /// Returns the service of this name, as it is shown.
    pub(super) fn service(&self, name: &Name) -> Option<&Service> {
        self.get(name).map(Managed::service)
    }

    /// Returns all services by name, as they are shown.
    pub(super) fn services(&self) -> impl Iterator<Item = &Service> {
        self.values().map(Managed::service)
    }

    /// Returns all names, in order.
    pub(super) fn names(&self) -> Keys<'_, Name, Managed> {
        self.by_name.keys()
    }

    /// Returns all services, by name.
    pub(super) fn values(&self) -> Values<'_, Name, Managed> {
        self.by_name.values()
    }

    /// Returns all services by name, mutably.
    pub(super) fn values_mut(&mut self) -> ValuesMut<'_, Name, Managed> {
        self.by_name.values_mut()
    }

    /// Returns the service of this entry.
    pub(super) fn of(&self, entry: EntryId) -> Option<&Managed> {
        self.get(self.name_of(entry)?)
    }

    /// Returns the service of this entry, mutably.
    pub(super) fn of_mut(&mut self, entry: EntryId) -> Option<&mut Managed> {
        let name = self.by_entry.get(usize::from(entry.0))?.as_ref()?;
        self.by_name.get_mut(name)
    }

    /// Returns the name of the service of this entry.
    pub(super) fn name_of(&self, entry: EntryId) -> Option<&Name> {
        self.by_entry.get(usize::from(entry.0))?.as_ref()
    }

    /// Returns a service that is not being removed.
    pub(super) fn find(&self, name: &Name) -> Result<&Managed, Refusal> {
        match self.get(name) {
            Some(managed) if managed.service().state == ServiceState::Stopping => {
                Err(Refusal::ServiceStopping { service: name.clone() })
            }
            Some(managed) => Ok(managed),
            None => {
                let meant = Meant::new(name.as_str(), self.names().map(Name::as_str));
                Err(Refusal::ServiceUnknown { service: name.clone(), meant })
            }
        }
    }

    /// Returns a service that rules and edges can lead to: it has run.
    pub(super) fn find_target(&self, name: &Name) -> Result<&Managed, Refusal> {
        let managed = self.find(name)?;
        if !managed.has_run() {
            return Err(Refusal::ServiceStarting { service: name.clone() });
        }
        Ok(managed)
    }

    /// Returns the services of a session that are not being removed.
    pub(super) fn remaining_in(&self, session: &Name) -> Vec<Name> {
        let services = self.services().filter(|service| service.session == *session);
        let stay = services.filter(|service| service.state != ServiceState::Stopping);
        stay.map(|service| service.name.clone()).collect()
    }

    /// Returns the sessions that have services.
    pub(super) fn sessions(&self) -> BTreeSet<SessionId> {
        self.values().map(Managed::session).collect()
    }

    /// Returns the time at which [`Roster::handle_timeout`] is to be called.
    pub(super) fn poll_timeout(&self) -> Option<Nanos> {
        self.values().filter_map(Managed::retry_at).min()
    }

    /// Marks services whose pause is over as starting.
    pub(super) fn handle_timeout(&mut self, now: Nanos) {
        self.values_mut().for_each(|managed| managed.handle_timeout(now));
    }

    /// Asks the cell to start a service, if it should run.
    pub(super) fn start(&mut self, name: &Name, out: &mut Effects) {
        let bpf = self.bpf;
        out.extend(self.get_mut(name).and_then(|managed| managed.start(bpf)));
    }

    /// Asks the cell to start every service that should run.
    pub(super) fn start_all(&mut self, out: &mut Effects) {
        let bpf = self.bpf;
        out.extend(self.values_mut().filter_map(|managed| managed.start(bpf)));
    }

    /// Asks the cell for every move that has not been made.
    pub(super) fn resume_moves(&self, out: &mut Effects) {
        out.extend(self.values().filter_map(|managed| managed.pending_move(self.bpf)));
    }

    /// Returns true if services may run below user level.
    pub(super) const fn bpf(&self) -> bool {
        self.bpf
    }

    /// Sets the switch: services move to user level, or back to their desired level. Returns those
    /// that move.
    pub(super) fn set_bpf(&mut self, enabled: bool, out: &mut Effects) -> Vec<Name> {
        self.bpf = enabled;
        let mut moving = Vec::new();
        for managed in self.values() {
            if let Some(level) = managed.level_after_switch(enabled) {
                let service = managed.service();
                moving.push(service.name.clone());
                out.push(Effect::MoveService { entry: service.entry, level });
            }
        }
        moving
    }

    /// Refuses a level that is not possible for a service of this module.
    pub(super) fn check_level(
        &self,
        service: &Name,
        module: &ModuleInfo,
        level: Level,
    ) -> Result<(), Refusal> {
        let declared = &module.manifest.levels;
        if level == Level::Cluster {
            return Err(Refusal::LevelAbsent { level });
        }
        if level != Level::User && module.kind == Kind::Streams {
            return Err(Refusal::LevelOfStreams { service: service.clone() });
        }
        if level != Level::User && !declared.contains(&level) {
            let (service, levels) = (service.clone(), declared.clone());
            return Err(Refusal::LevelNotDeclared { service, level, levels });
        }
        if level != Level::User && !self.bpf {
            return Err(Refusal::BpfOff { level });
        }
        Ok(())
    }

    /// Records for each service, in the order of [`Roster::values`], whether it is closed, and
    /// sends the changes.
    pub(super) fn set_closed(&mut self, closed: Vec<bool>, out: &mut Effects) {
        for (managed, closed) in self.values_mut().zip(closed) {
            if managed.update_closed(closed) {
                out.push(Effect::SetClosed { entry: managed.service().entry, closed });
            }
        }
    }

    /// Records the destinations of edges, and sends the changes.
    pub(super) fn set_edges(&mut self, edges: Vec<(Name, Edges)>, out: &mut Effects) {
        for (name, edges) in edges {
            let Some(managed) = self.get_mut(&name) else { continue };
            if managed.update_edges(edges) {
                out.push(Effect::SetEdges { entry: managed.service().entry, edges });
            }
        }
    }

    /// Returns effects that send the edges of all running services again.
    pub(super) fn announced_edges(&self) -> Vec<Effect> {
        let running = self.values().filter(|managed| managed.runs());
        let edges = running.map(|managed| Effect::SetEdges {
            entry: managed.service().entry,
            edges: managed.edges(),
        });
        edges.collect()
    }

    /// Sets the entry that the next new service gets, if it is free then.
    pub(super) fn prefer(&mut self, entry: Option<EntryId>) {
        self.preferred = entry.filter(|entry| usize::from(entry.0) < SERVICES_MAX);
    }

    /// Returns a free entry: the preferred one, or the next after the last one used.
    pub(super) fn free_entry(
        &self,
        service: &Name,
        module: &ModuleInfo,
    ) -> Result<EntryId, Refusal> {
        let is_free = |entry: &EntryId| self.name_of(*entry).is_none();
        if let Some(entry) = self.preferred.filter(is_free) {
            return Ok(entry);
        }
        let can_leave = module.can_leave_user();
        next_free_entry(can_leave, self.numbering, is_free).ok_or_else(|| match can_leave {
            true => Refusal::TooManyBelow { service: service.clone() },
            false => Refusal::TooManyServices { service: service.clone() },
        })
    }

    /// Marks an entry as used.
    pub(super) fn take_entry(&mut self, entry: EntryId) {
        if self.preferred.take() == Some(entry) {
            return;
        }
        let is_below = usize::from(entry.0) < BELOW_MAX;
        let Numbering { below, user } = &mut self.numbering;
        *(if is_below { below } else { user }) = entry.0 + 1;
    }

    /// Returns the start of each search for a free entry.
    pub(super) const fn numbering(&self) -> Numbering {
        self.numbering
    }
}

/// Returns a free entry for a service that can leave user level, or never does.
fn next_free_entry(
    can_leave: bool,
    next: Numbering,
    is_free: impl Fn(&EntryId) -> bool,
) -> Option<EntryId> {
    let (below, all) = (BELOW_MAX as u16, SERVICES_MAX as u16);
    let in_turn = |from: u16, until: u16, next: u16| {
        let begin = if (from..until).contains(&next) { next } else { from };
        (begin..until).chain(from..begin).map(EntryId)
    };
    if can_leave {
        return in_turn(0, below, next.below).find(is_free);
    }
    in_turn(0, USER_FIRST, next.below)
        .chain(in_turn(below, all, next.user))
        .chain(in_turn(USER_FIRST, below, next.below))
        .find(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::module;

    const fn next(below: u16, user: u16) -> Numbering {
        Numbering { below, user }
    }

    #[test]
    fn services_for_user_level_only_take_entries_for_lower_levels_last() {
        let (below, all) = (BELOW_MAX as u16, SERVICES_MAX as u16);
        let taken_until = |last: u16| move |entry: &EntryId| entry.0 >= last;
        let user = |last| next_free_entry(false, next(0, 0), taken_until(last));
        assert_eq!((user(0), user(USER_FIRST - 1)), (Some(EntryId(0)), Some(EntryId(1023))));
        assert_eq!((user(USER_FIRST), user(below)), (Some(EntryId(below)), Some(EntryId(below))));
        assert_eq!(user(all), None);
        // All others are taken.
        let last = next_free_entry(false, next(0, 0), |entry| entry.0 == USER_FIRST);
        assert_eq!(last, Some(EntryId(USER_FIRST)));
        let lower = |last| next_free_entry(true, next(0, 0), taken_until(last));
        assert_eq!((lower(USER_FIRST), lower(below)), (Some(EntryId(USER_FIRST)), None));
    }

    #[test]
    fn an_entry_is_not_given_again_at_once() {
        let free = |_: &EntryId| true;
        assert_eq!(next_free_entry(true, next(7, 0), free), Some(EntryId(7)));
        assert_eq!(next_free_entry(false, next(7, 0), free), Some(EntryId(7)));
        // The last entry of its part.
        assert_eq!(next_free_entry(true, next(BELOW_MAX as u16, 0), free), Some(EntryId(0)));
        let high = |entry: &EntryId| usize::from(entry.0) >= BELOW_MAX;
        let user = BELOW_MAX as u16 + 3;
        assert_eq!(next_free_entry(false, next(7, user), high), Some(EntryId(user)));
    }

    #[test]
    fn a_preferred_entry_is_used_once_and_the_search_continues_where_it_was() {
        let mut roster = Roster::default();
        let (name, module) = (Name::new("monitor").unwrap(), module("\"nic\", \"user\""));
        let give = |roster: &mut Roster| {
            let entry = roster.free_entry(&name, &module).unwrap();
            roster.take_entry(entry);
            entry.0
        };
        assert_eq!(give(&mut roster), 0);
        roster.prefer(Some(EntryId(9)));
        assert_eq!([give(&mut roster), give(&mut roster)], [9, 1]);
        roster.prefer(Some(EntryId(SERVICES_MAX as u16)));
        assert_eq!(give(&mut roster), 2, "there is no such entry");
        assert_eq!(roster.numbering(), next(3, 0));
    }
}
