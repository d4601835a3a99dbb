//! Services that go: first their packets go plainly, one after another.
//!
//! ```text
//!  remove ─▶ leave: a move to nic, where no program is ─▶ all that was sent up has left ─▶ rules
//!              │                                            (the next packet goes plainly)   go
//!              └─ not within LEAVE_WITHIN, the cell is gone, it cannot move ────────────────▶
//! ```
//!
//! If rules went at once, packets that come behind them would overtake those that still lie in
//! the cell's rings. The front door decides for each packet, as when a lane moves: up, where the
//! service still runs, until nothing is there any more; from then on as if there were no rule.

use crate::daemon::Daemon;
use crate::recorded::Ahead;
use bpf::front_door::Below;
use cell::protocol::ToCell;
use node::{Command, ServiceState};
use std::time::Instant;
use tokio::time::Duration;
use units::{EntryId, Name};

/// Longest wait; in half of it the count is made anew, as packets may have been lost on their
/// way up. Longer than a move has: the service goes on meanwhile, and a cell that shares its
/// core with a busy machine does not come sooner.
const LEAVE_WITHIN: Duration = Duration::from_millis(200);

/// A service on its way out.
pub(crate) struct Leaving {
    since: Instant,
    /// The cell has set its part.
    targeted: bool,
    recounts: bool,
    /// Its removal.
    then: Box<Ahead>,
}

impl Daemon {
    /// Removes a service when its packets go plainly, or cannot be had to in time.
    pub(crate) fn leave_first(&mut self, removal: Ahead) {
        let entry = match &removal.command {
            Command::Remove { service, .. } => self.can_leave(service),
            _ => None,
        };
        match entry {
            Some(entry) if self.call_nothing(entry) => {
                self.cells.tell(entry, &ToCell::Target(entry, Below::Nic.word()));
                let (since, then) = (Instant::now(), Box::new(removal));
                let leaving = Leaving { since, targeted: false, recounts: false, then };
                self.leaving.insert(entry, leaving);
            }
            _ => self.do_ahead(removal),
        }
    }

    /// The entry of a service that runs, in a lane, and is not on its way elsewhere.
    fn can_leave(&self, service: &Name) -> Option<EntryId> {
        let found = self.node.service(service)?;
        let entry = found.entry;
        let rests = found.state == ServiceState::Running
            && self.node.is_settled(service)
            && self.shared.contains_key(&entry)
            && !self.is_on_its_way(entry);
        (rests && self.cells.is_any()).then_some(entry)
    }

    /// Whether there is no program at nic for this entry from now on.
    fn call_nothing(&self, entry: EntryId) -> bool {
        let index = u32::from(entry.0);
        if let Err(error) = self.front.with_front(|front| front.clear_module(Below::Nic, index)) {
            tracing::warn!(%entry, %error, "packets of a service that goes may be overtaken");
            return false;
        }
        if let (Some(lane), Some(shared)) = (self.front.lane(entry), self.shared.get(&entry)) {
            lane.set_program(index, shared.window());
            // What goes by it now, does so as it was asked for.
            lane.set_closed(false);
        }
        true
    }

    /// The cell has set its part, or could not.
    pub(crate) fn leaving_targeted(&mut self, entry: EntryId, done: bool) {
        match self.leaving.get_mut(&entry) {
            Some(leaving) if done => leaving.targeted = true,
            Some(_) => self.left(entry),
            None => {}
        }
    }

    /// Looks at every service that goes.
    pub(crate) fn look_at_leaving(&mut self) {
        let entries: Vec<EntryId> = self.leaving.keys().copied().collect();
        for entry in entries {
            let Some(leaving) = self.leaving.get_mut(&entry) else { continue };
            let waited = leaving.since.elapsed();
            let is_there = self.cells.is_any() && self.shared.contains_key(&entry);
            let lane = self.front.lane(entry);
            let goes_plainly =
                leaving.targeted && lane.is_none_or(|lane| lane.settled(Below::Nic.word()));
            if goes_plainly || !is_there || waited >= LEAVE_WITHIN {
                self.left(entry);
            } else if waited >= LEAVE_WITHIN / 2 && !std::mem::replace(&mut leaving.recounts, true)
            {
                self.cells.tell(entry, &ToCell::Recount(entry));
            }
        }
    }

    fn left(&mut self, entry: EntryId) {
        let Some(leaving) = self.leaving.remove(&entry) else { return };
        self.do_ahead(*leaving.then);
    }

    /// Has a service that stays nevertheless go on where it was.
    pub(crate) fn come_back(&mut self, service: &Name) {
        let found = self.node.service(service).filter(|it| it.state == ServiceState::Running);
        let Some(found) = found else { return };
        let (entry, level) = (found.entry, found.level);
        if let Some(lane) = self.front.lane(entry) {
            lane.set_closed(self.node.is_closed(found));
        }
        self.call_again(entry);
        self.move_service(entry, level);
    }
}
