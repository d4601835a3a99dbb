//! Requests that are answered when the cell has stopped services: their names are free then.

use crate::reply::Reply;
use api::Removed;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;
use units::Name;

/// Services, and who is told when the last of them has stopped.
type Awaited = (BTreeSet<Name>, oneshot::Sender<()>);

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Removals {
    services: BTreeMap<Name, (Reply<Removed>, Removed)>,
    revocations: Vec<Awaited>,
}

impl Removals {
    /// Returns true when no request waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.services.is_empty() && self.revocations.is_empty()
    }

    /// Answers the removal of a service once it has stopped.
    pub(crate) fn remove_service(&mut self, service: Name, reply: Reply<Removed>, answer: Removed) {
        self.services.insert(service, (reply, answer));
    }

    /// Returns what receives a word once these services have stopped: at once when there are none.
    pub(crate) fn wait_for(&mut self, services: BTreeSet<Name>) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.revocations.push((services, sender));
        self.tell_revocations();
        receiver
    }

    /// Answers whoever waited for this service alone: it has stopped.
    pub(crate) fn handle_stopped(&mut self, service: &Name) {
        if let Some((reply, removed)) = self.services.remove(service) {
            reply.ok(removed);
        }
        for (services, _) in &mut self.revocations {
            services.remove(service);
        }
        self.tell_revocations();
    }

    fn tell_revocations(&mut self) {
        for (_, told) in self.revocations.extract_if(.., |(services, _)| services.is_empty()) {
            // Who asked may be gone.
            let _ = told.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> BTreeSet<Name> {
        of.iter().map(|it| Name::new(*it).unwrap()).collect()
    }

    #[test]
    fn a_revocation_waits_for_the_last_of_its_services() {
        let mut removals = Removals::default();
        assert!(removals.wait_for(BTreeSet::new()).try_recv().is_ok());
        let mut both = removals.wait_for(names(&["a", "b"]));
        let mut one = removals.wait_for(names(&["b"]));
        for (stopped, told) in [("c", [false, false]), ("b", [false, true]), ("a", [true, false])] {
            assert!(!removals.is_empty());
            removals.handle_stopped(&Name::new(stopped).unwrap());
            // Each is told once.
            assert_eq!([&mut both, &mut one].map(|it| it.try_recv().is_ok()), told, "{stopped}");
        }
        assert!(removals.is_empty());
    }
}
