//! Table of a cell's services by entry, with the index of the next checks and departures.
//!
//! ```text
//!  packet, turn ─▶ get_mut(entry) ─▶ Service
//!  timer, restart, probation ─▶ watch ─▶ take_due
//!  lane counted a packet, and it left ─▶ set_leaving ─ rings empty ─▶ handle_sent ─▶ may go down
//! ```

use crate::service::watch::Watch;
use crate::service::{Origin, Service};
use bpf::{Lane, Lanes};
use units::{CoarseInstant, EntryId, SessionId};

/// Table of services that run in the cell.
#[derive(Default)]
pub(crate) struct Services {
    all: Vec<Option<Service>>,
    /// Lanes of the front door; `None` until the daemon has passed them.
    lanes: Option<&'static Lanes>,
    watch: Watch,
    /// Set while packets that lanes have sent up may still be in transmit rings.
    is_leaving: bool,
}

impl Services {
    /// Returns the service of an entry.
    #[inline]
    pub(crate) fn get(&self, entry: EntryId) -> Option<&Service> {
        self.all.get(usize::from(entry.0)).and_then(Option::as_ref)
    }

    /// Returns the service of an entry.
    #[inline]
    pub(crate) fn get_mut(&mut self, entry: EntryId) -> Option<&mut Service> {
        self.all.get_mut(usize::from(entry.0)).and_then(Option::as_mut)
    }

    /// Returns the slot of an entry, with a service or without: prefetching does not read it.
    #[inline]
    pub(crate) fn slot(&self, entry: EntryId) -> Option<&Option<Service>> {
        self.all.get(usize::from(entry.0))
    }

    /// Returns the number of slots, with a service or without.
    pub(crate) const fn slots(&self) -> usize {
        self.all.len()
    }

    /// Returns the service in a slot.
    pub(crate) fn at_mut(&mut self, slot: usize) -> Option<&mut Service> {
        self.all.get_mut(slot).and_then(Option::as_mut)
    }

    /// Returns every service.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Service> {
        self.all.iter().flatten()
    }

    /// Returns true when there is no service.
    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns true if packets for a service have to wait behind others.
    #[inline]
    pub(crate) fn is_busy(&self, entry: EntryId) -> bool {
        self.get(entry).is_some_and(|service| !service.is_idle())
    }

    /// Returns the session whose queue credit the front door took for a packet.
    pub(crate) fn payer(&self, origin: &Origin) -> SessionId {
        let entry = EntryId(origin.meta.entry);
        let service = self.get(entry).map(|service| service.session());
        let of_lane = || self.lane(entry).map(|lane| lane.session());
        service.or_else(of_lane).unwrap_or(SessionId::SYSTEM)
    }

    /// Returns the front door's lane of an entry.
    pub(crate) fn lane(&self, entry: EntryId) -> Option<Lane<'static>> {
        self.lanes?.lane(entry)
    }

    /// Returns the services with an edge to this one.
    pub(crate) fn before(&self, entry: EntryId) -> Vec<EntryId> {
        let before = self.iter().filter(|service| service.leads_to(entry));
        before.map(|service| service.entry()).collect()
    }

    /// Returns the services of a session.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<EntryId> {
        let of_it = self.iter().filter(|service| service.session() == session);
        of_it.map(|service| service.entry()).collect()
    }

    /// Returns true while packets that the service's lane counted before its last recount are in
    /// the cell.
    pub(crate) fn has_of_before(&self, entry: EntryId) -> bool {
        let Some(service) = self.get(entry) else { return false };
        let mut epochs = self.iter().flat_map(|other| other.epochs_counted_by(entry));
        epochs.any(|epoch| service.shared().is_some_and(|shared| shared.is_of_before(epoch)))
    }

    /// Returns the services of which a version can leave user level.
    pub(crate) fn with_lanes(&self) -> &[EntryId] {
        self.watch.lanes()
    }

    /// Returns true while packets that lanes have sent up may still be in transmit rings.
    #[inline]
    pub(crate) const fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Sets the lanes of the front door, which stay mapped as long as the process lasts.
    pub(crate) fn set_lanes(&mut self, lanes: &'static Lanes) {
        self.lanes = Some(lanes);
    }

    /// Inserts a service.
    pub(crate) fn insert(&mut self, service: Service) {
        let entry = service.entry();
        let index = usize::from(entry.0);
        if self.all.len() <= index {
            self.all.resize_with(index + 1, || None);
        }
        if service.home().is_some() {
            self.watch.has_lane(entry);
        }
        self.all[index] = Some(service);
    }

    /// Removes a service, and its scheduled checks.
    pub(crate) fn take(&mut self, entry: EntryId) -> Option<Service> {
        let service = self.all.get_mut(usize::from(entry.0)).and_then(Option::take)?;
        self.watch.forget(entry);
        Some(service)
    }

    /// Schedules a check of a service in the next round, and of its lane, if it has one, in all
    /// rounds.
    pub(crate) fn poll_soon(&mut self, entry: EntryId) {
        self.watch.set(entry, CoarseInstant::ZERO);
        if self.get(entry).is_some_and(|service| service.home().is_some()) {
            self.watch.has_lane(entry);
        }
    }

    /// Schedules the next check of a service.
    pub(crate) fn poll_at(&mut self, entry: EntryId, at: CoarseInstant) {
        self.watch.set(entry, at);
    }

    /// Returns the services that are due, each once.
    pub(crate) fn take_due(&mut self, now: CoarseInstant) -> Vec<EntryId> {
        self.watch.take_due(now)
    }

    /// Records that packets counted by a lane may be in transmit rings.
    #[inline]
    pub(crate) const fn set_leaving(&mut self, is_leaving: bool) {
        self.is_leaving |= is_leaving;
    }

    /// Counts packets that have left their graphs as gone from the lanes of these services.
    pub(crate) fn release_epochs(&mut self, through: impl IntoIterator<Item = (EntryId, u8)>) {
        for (entry, epoch) in through {
            let is_counted = self.get_mut(entry).is_some_and(|it| it.release(epoch));
            self.set_leaving(is_counted);
        }
    }

    /// Lets lanes go down whose packets have all left, since nothing sent there overtakes them. The
    /// transmit rings are empty; `waits` returns true for sessions with packets waiting to be sent.
    pub(crate) fn handle_sent(&mut self, waits: impl Fn(SessionId) -> bool) {
        self.is_leaving = false;
        for entry in self.watch.lanes() {
            let service = self.all.get_mut(usize::from(entry.0)).and_then(Option::as_mut);
            let Some(service) = service else { continue };
            if waits(service.session()) {
                self.is_leaving = true;
            } else {
                service.publish_departures();
            }
        }
    }

    /// Returns the earliest time at which a service may be due; it may be too early, if that
    /// service was deferred.
    pub(crate) fn poll_timeout(&self) -> CoarseInstant {
        self.watch.next_at()
    }
}
