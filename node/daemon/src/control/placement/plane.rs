//! Operations on the data plane that placing services needs: of the kernel, or of a fake in tests.

use abi::Level;
use units::EntryId;

/// Operations on the data plane that placement needs.
pub(crate) trait Plane {
    /// Returns the reason for no service being able to run below user level here.
    fn unsupported(&self) -> Option<&str>;
    /// Checks whether this node lets a service run at a level, else gives the reason; `is_joined`
    /// says that others are behind it.
    fn check_level(&self, level: Level, is_joined: bool) -> Result<(), String>;
    /// Returns true when a service can leave user level.
    fn is_shared(&self, entry: EntryId) -> bool;
    /// Returns the levels at which a service that can leave user level does not run, as far as is
    /// known, with the reasons.
    fn refused(&self, entry: EntryId) -> Vec<(Level, String)>;
    /// Returns true when the kernel has taken a service's program for a level.
    fn has_program(&self, entry: EntryId, level: Level) -> bool;
    /// Returns the state of a service's lane; `None` of a service without one.
    fn lane(&self, entry: EntryId, level: Level) -> Option<LaneState>;
    /// Drops the packets that a lane would send up, or stops dropping them.
    fn hold(&mut self, entry: EntryId, held: bool);
    /// Sets whether packets are dropped while their service is unavailable.
    fn close(&mut self, entry: EntryId, closed: bool);
    /// Removes a service's program from the nic level; false where that fails.
    fn call_nothing(&mut self, entry: EntryId) -> bool;
    /// Puts a service's program back at the nic level.
    fn call_again(&mut self, entry: EntryId);
    /// Activates the next version of a service. Returns whether the previous version and the new
    /// one can leave user level; `None` when there is no next one.
    fn replaced(&mut self, entry: EntryId) -> Option<(bool, bool)>;
    /// Activates the previous version of a service again. Returns whether the version that failed
    /// and the one before can leave user level; `None` when there is none.
    fn put_back(&mut self, entry: EntryId) -> Option<(bool, bool)>;
    /// Releases the previous version; returns the number of the reusable instance that it becomes.
    fn forget_before(&mut self, entry: EntryId) -> Option<u32>;
    /// Releases the next version.
    fn forget_next(&mut self, entry: EntryId);
}

/// State of a service's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneState {
    /// True when the next packet meets the module at the level in question.
    pub(crate) is_settled: bool,
    /// Packets that are at user level.
    pub(crate) waiting: u64,
    /// True when packets go by user level and cannot come down by themselves.
    pub(crate) is_kept_up: bool,
}
