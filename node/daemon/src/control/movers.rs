//! Pending requests to move services to another level.

use crate::reply::Reply;
use abi::Level;
use std::collections::BTreeMap;
use std::time::Instant;
use units::Name;

/// Pending request to move a service.
pub(crate) struct Mover {
    pub(crate) reply: Reply<api::Moved>,
    pub(crate) since: Instant,
    pub(crate) from: Level,
    pub(crate) to: Level,
}

/// Pending requests by service; a service without one has no entry.
#[derive(Default)]
pub(crate) struct Movers(BTreeMap<Name, Vec<Mover>>);

impl Movers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, service: Name, mover: Mover) {
        self.0.entry(service).or_default().push(mover);
    }

    /// Removes and returns the requests of a service that match, oldest first.
    pub(crate) fn take(&mut self, service: &Name, are: impl Fn(&Mover) -> bool) -> Vec<Mover> {
        let Some(waiting) = self.0.get_mut(service) else { return Vec::new() };
        let taken = waiting.extract_if(.., |mover| are(mover)).collect();
        if waiting.is_empty() {
            self.0.remove(service);
        }
        taken
    }

    /// Removes and returns the newest request of a service.
    pub(crate) fn pop(&mut self, service: &Name) -> Option<Mover> {
        let newest = self.0.get_mut(service)?.pop();
        if self.0.get(service).is_some_and(Vec::is_empty) {
            self.0.remove(service);
        }
        newest
    }

    /// Removes and returns all requests.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Mover> + use<> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_moves_that_were_refused_overtaken_or_made() {
        let [a, b] = ["a", "b"].map(|name| Name::new(name).unwrap());
        let mut movers = Movers::default();
        let mover = |to| {
            let (reply, _) = Reply::pair();
            Mover { reply, since: Instant::now(), from: Level::User, to }
        };
        movers.push(a.clone(), mover(Level::Nic));
        assert!(movers.pop(&b).is_none() && movers.pop(&a).is_some());
        assert!(movers.is_empty(), "refused");
        movers.push(a.clone(), mover(Level::Nic));
        movers.push(a.clone(), mover(Level::Kernel));
        assert_eq!(movers.take(&a, |mover| mover.to != Level::Kernel).len(), 1);
        assert!(!movers.is_empty(), "one is on its way");
        assert_eq!(movers.take(&a, |_| true).len(), 1);
        assert!(movers.is_empty(), "made");
        movers.push(b, mover(Level::Nic));
        assert_eq!(movers.take_all().count(), 1);
        assert!(movers.is_empty(), "the cell is lost");
    }
}
