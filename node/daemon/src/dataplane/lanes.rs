//! Lanes and programs of services, as placement asks for them.

use super::DataPlane;
use super::instances::word_of;
use crate::control::placement::{LaneState, Plane};
use abi::Level;
use units::EntryId;

/// Reason for a service with others behind it not running at `nic`.
const NO_MARKS: &str =
    "this kernel has no room for the mark that packets of a graph carry from there: 48 bytes";

impl Plane for DataPlane {
    fn unsupported(&self) -> Option<&str> {
        self.no_bpf.as_deref()
    }

    fn check_level(&self, level: Level, is_joined: bool) -> Result<(), String> {
        if level == Level::Kernel
            && let Some(reason) = self.ports.not_at_kernel()
        {
            return Err(reason);
        }
        if level == Level::Nic && is_joined && !self.front.front()?.carries_marks() {
            return Err(NO_MARKS.to_owned());
        }
        Ok(())
    }

    fn is_shared(&self, entry: EntryId) -> bool {
        self.instances.is_shared(entry)
    }

    fn refused(&self, entry: EntryId) -> Vec<(Level, String)> {
        self.instances.refused(entry)
    }

    fn has_program(&self, entry: EntryId, level: Level) -> bool {
        self.instances.has_program(entry, level)
    }

    fn lane(&self, entry: EntryId, level: Level) -> Option<LaneState> {
        let lane = self.front.lane(entry)?;
        Some(LaneState {
            is_settled: lane.settled(word_of(level)),
            waiting: lane.sent_up().wrapping_sub(lane.left()),
            is_kept_up: lane.is_kept_up(),
        })
    }

    fn hold(&mut self, entry: EntryId, held: bool) {
        if let Some(lane) = self.front.lane(entry) {
            lane.set_held(held);
        }
    }

    fn close(&mut self, entry: EntryId, closed: bool) {
        if let Some(lane) = self.front.lane(entry) {
            lane.set_closed(closed);
        }
    }

    fn call_nothing(&mut self, entry: EntryId) -> bool {
        self.instances.call_nothing(&self.front, entry)
    }

    fn call_again(&mut self, entry: EntryId) {
        self.instances.call_again(&self.front, entry);
    }

    fn replaced(&mut self, entry: EntryId) -> Option<(bool, bool)> {
        self.instances.replaced(&self.front, entry)
    }

    fn put_back(&mut self, entry: EntryId) -> Option<(bool, bool)> {
        self.instances.put_back(&self.front, entry)
    }

    fn forget_before(&mut self, entry: EntryId) -> Option<u32> {
        self.instances.forget_before(entry)
    }

    fn forget_next(&mut self, entry: EntryId) {
        self.instances.forget_next(entry);
    }
}
