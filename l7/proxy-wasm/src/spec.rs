//! What a VM is started with.

use crate::abi::{LogLevel, Status};
use crate::shared::Shared;
use engine::{Pace, Room};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// The time of a call: it stands still while the call runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since 1970, as coarse as the caller likes.
    pub real_ns: u64,
    /// Nanoseconds of a clock that is never set.
    pub monotonic_ns: u64,
}

/// Who gives random bytes.
pub trait Random {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// A function beyond the ABI: bytes in, bytes out, or why not. The number is that of the context
/// that host functions work on, 1 for the root's.
pub type ForeignFunction = Rc<dyn Fn(u32, &[u8]) -> Result<Vec<u8>, Status>>;

/// What a VM is started with.
#[derive(Clone)]
pub struct VmSpec {
    /// The VM's number among those of its service: queues tell it of new items by this.
    pub number: u64,
    /// The property `plugin_name`.
    pub plugin_name: String,
    /// The property `plugin_root_id`: which of a module's plugins this is.
    pub root_id: String,
    /// The property `plugin_vm_id`: VMs of the same id share data and queues.
    pub vm_id: String,
    /// The configuration for `proxy_on_vm_start`.
    pub vm_configuration: Rc<[u8]>,
    /// The configuration for `proxy_on_configure`.
    pub plugin_configuration: Rc<[u8]>,
    /// Environment variables, for this module: never those of the process.
    pub environment: BTreeMap<String, String>,
    /// The upstreams that it may call, by name.
    pub upstreams: BTreeSet<String>,
    /// Lines below this level are not kept.
    pub log_level: LogLevel,
    /// Bytes that its memory may have.
    pub memory_bytes_max: usize,
    /// Slices that one call may see begin before it traps, where nobody sets a pace.
    pub call_slices: u64,
    /// Who says how long calls run.
    pub pace: Option<Rc<dyn Pace>>,
    /// Who keeps account of what it has.
    pub room: Option<Rc<dyn Room>>,
    /// Where random bytes come from.
    pub random: Rc<dyn Random>,
    /// Functions beyond the ABI that are granted to it, by name.
    pub foreign: Rc<BTreeMap<String, ForeignFunction>>,
    /// What it shares with other VMs of its service.
    pub shared: Rc<RefCell<Shared>>,
}

impl fmt::Debug for VmSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmSpec")
            .field("number", &self.number)
            .field("plugin_name", &self.plugin_name)
            .field("root_id", &self.root_id)
            .field("vm_id", &self.vm_id)
            .field("memory_bytes_max", &self.memory_bytes_max)
            .finish_non_exhaustive()
    }
}
