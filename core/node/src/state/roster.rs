//! The services of a node, by name and by entry.

use std::collections::BTreeMap;
use std::collections::btree_map::{Iter, ValuesMut};
use std::ops::Deref;

use units::{EntryId, Name};

use super::services::Managed;
use crate::service::{BELOW_MAX, SERVICES_MAX};

/// Of the entries that can be below user level, what services have that never are; beyond it they
/// leave them to others as long as there are more.
const USER_FIRST: u16 = BELOW_MAX as u16 / 4;

/// See above. Read as a map by name; an entry is that of the service which was put in.
#[derive(Clone, Debug, Default)]
pub(super) struct Roster {
    by_name: BTreeMap<Name, Managed>,
    by_entry: Vec<Option<Name>>,
}

impl Deref for Roster {
    type Target = BTreeMap<Name, Managed>;

    fn deref(&self) -> &Self::Target {
        &self.by_name
    }
}

impl<'a> IntoIterator for &'a Roster {
    type Item = (&'a Name, &'a Managed);
    type IntoIter = Iter<'a, Name, Managed>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_name.iter()
    }
}

impl Roster {
    /// Puts a service in; gives the one that had its name.
    pub(super) fn insert(&mut self, name: Name, managed: Managed) -> Option<Managed> {
        let place = usize::from(managed.service().entry.0);
        if self.by_entry.len() <= place {
            self.by_entry.resize(place + 1, None);
        }
        self.by_entry[place] = Some(name.clone());
        self.by_name.insert(name, managed)
    }

    pub(super) fn remove(&mut self, name: &Name) -> Option<Managed> {
        let gone = self.by_name.remove(name)?;
        self.by_entry[usize::from(gone.service().entry.0)] = None;
        Some(gone)
    }

    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut Managed> {
        self.by_name.get_mut(name)
    }

    pub(super) fn values_mut(&mut self) -> ValuesMut<'_, Name, Managed> {
        self.by_name.values_mut()
    }

    /// The service with this entry.
    pub(super) fn of(&self, entry: EntryId) -> Option<&Managed> {
        self.by_name.get(self.name_of(entry)?)
    }

    pub(super) fn of_mut(&mut self, entry: EntryId) -> Option<&mut Managed> {
        let name = self.by_entry.get(usize::from(entry.0))?.as_ref()?;
        self.by_name.get_mut(name)
    }

    /// The name of the service with this entry.
    pub(super) fn name_of(&self, entry: EntryId) -> Option<&Name> {
        self.by_entry.get(usize::from(entry.0))?.as_ref()
    }
}

/// A free entry for a service that can leave user level, or never does. `next` says where the
/// search begins among those that can be below, and among the others, so that one is not given
/// again at once.
pub(super) fn entry_in_turn(
    can_leave: bool,
    next: [u16; 2],
    is_free: impl Fn(&EntryId) -> bool,
) -> Option<EntryId> {
    let (below, all) = (BELOW_MAX as u16, SERVICES_MAX as u16);
    let in_turn = |from: u16, until: u16, next: u16| {
        let begin = if (from..until).contains(&next) { next } else { from };
        (begin..until).chain(from..begin).map(EntryId)
    };
    if can_leave {
        return in_turn(0, below, next[0]).find(is_free);
    }
    in_turn(0, USER_FIRST, next[0])
        .chain(in_turn(below, all, next[1]))
        .chain(in_turn(USER_FIRST, below, next[0]))
        .find(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_never_leave_user_level_leave_entries_to_those_that_can() {
        let (below, all) = (BELOW_MAX as u16, SERVICES_MAX as u16);
        let taken_until = |last: u16| move |entry: &EntryId| entry.0 >= last;
        let user = |last| entry_in_turn(false, [0, 0], taken_until(last));
        assert_eq!((user(0), user(USER_FIRST - 1)), (Some(EntryId(0)), Some(EntryId(1023))));
        assert_eq!((user(USER_FIRST), user(below)), (Some(EntryId(below)), Some(EntryId(below))));
        assert_eq!(user(all), None);
        // Where all others are taken.
        let last = entry_in_turn(false, [0, 0], |entry| entry.0 == USER_FIRST);
        assert_eq!(last, Some(EntryId(USER_FIRST)));
        let lower = |last| entry_in_turn(true, [0, 0], taken_until(last));
        assert_eq!((lower(USER_FIRST), lower(below)), (Some(EntryId(USER_FIRST)), None));
    }

    #[test]
    fn an_entry_is_not_given_again_at_once() {
        let free = |_: &EntryId| true;
        assert_eq!(entry_in_turn(true, [7, 0], free), Some(EntryId(7)));
        assert_eq!(entry_in_turn(false, [7, 0], free), Some(EntryId(7)));
        // The last one of its part.
        assert_eq!(entry_in_turn(true, [BELOW_MAX as u16, 0], free), Some(EntryId(0)));
        let high = |entry: &EntryId| usize::from(entry.0) >= BELOW_MAX;
        let next = BELOW_MAX as u16 + 3;
        assert_eq!(entry_in_turn(false, [7, next], high), Some(EntryId(next)));
    }
}
