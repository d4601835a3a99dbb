//! Services whose time has come.

use super::Cell;
use crate::sched::pacer;
use units::CoarseInstant;

impl Cell {
    /// Looks at those services whose time has come by the exact clock. Their hooks hear the time
    /// of the loop, `now`, which packets have, too: it never goes back.
    pub(super) fn tick(&mut self, now: CoarseInstant) {
        let exact = CoarseInstant::from_nanos(pacer::now());
        if exact < self.services.poll_timeout() {
            return;
        }
        self.arm();
        let due = self.services.take_due(exact);
        for &entry in &due {
            let service = self.services.get_mut(entry);
            let Some(service) = service else { continue };
            self.meter.run_for(&mut self.sessions, service.facts.session);
            let next = service.tick(exact);
            self.services.look_at(entry, next);
        }
        self.meter.stop(&mut self.sessions);
        for entry in due {
            self.attend(entry, now);
            self.tell_traps(entry);
            self.emit(entry);
        }
    }
}
