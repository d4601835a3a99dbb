//! What becomes of packets of a service that is down, and of one that traps again and again.

use units::{EntryId, Name, Nanos};

use super::Node;
use crate::command::{Effect, Notice};
use crate::service::{Service, ServiceState};

impl Node {
    /// Whether packets of a service are dropped as long as it does not run: because it is closed,
    /// or one that comes after it in its graph, which they would go past.
    #[must_use]
    pub fn is_closed(&self, service: &Service) -> bool {
        let after = || service.then.values().filter_map(|next| self.service(next));
        service.state != ServiceState::Stopping
            && (service.on_failure.is_closed() || after().any(|next| self.is_closed(next)))
    }

    /// Whether packets of a service go elsewhere than other packets now.
    pub(super) fn takes_packets(&self, service: &Service) -> bool {
        service.state == ServiceState::Running || self.is_closed(service)
    }

    /// Tells front door and cell which services are closed, where that has changed.
    pub(super) fn set_closed(&mut self) {
        let closed: Vec<bool> = self.services().map(|service| self.is_closed(service)).collect();
        for (managed, closed) in self.services.values_mut().zip(closed) {
            if std::mem::replace(&mut managed.told_closed, closed) != closed {
                let entry = managed.service().entry;
                self.effects.push_back(Effect::SetClosed { entry, closed });
            }
        }
    }

    /// Instances of a service have trapped, `traps` of them since it was started.
    pub(super) fn service_trapped(
        &mut self,
        now: Nanos,
        entry: EntryId,
        traps: u64,
        reason: String,
    ) {
        let Some(managed) = self.managed(entry).filter(|managed| managed.held) else { return };
        let before = std::mem::replace(&mut managed.traps_heard, traps);
        let news = traps.saturating_sub(before);
        // A version that is watched is put back at its first trap: the one before gets its turn.
        let watched = managed.before.is_some();
        let policy = managed.service().on_failure;
        if !managed.traps.add(now, news, policy) || watched || !managed.runs() {
            return;
        }
        let name = managed.service().name.clone();
        self.bypass(now, &name, reason);
    }

    /// Its packets are forwarded plainly until somebody deploys it.
    pub(super) fn bypass(&mut self, now: Nanos, name: &Name, reason: String) {
        self.end_replacement(name, "the service is bypassed");
        let Some(managed) = self.services.get_mut(name) else { return };
        managed.retry_at = None;
        managed.enter(now, ServiceState::Bypassed { reason: reason.clone() });
        let (entry, held) = (managed.service().entry, managed.held);
        self.install();
        if held {
            self.effects.push_back(Effect::StopService { entry });
        }
        let notice = Notice::ServiceBypassed { service: name.clone(), reason };
        self.effects.push_back(Effect::Report(notice));
    }
}
