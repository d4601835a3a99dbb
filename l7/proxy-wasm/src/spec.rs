//! Specification of a VM: everything that it is started with.

use crate::abi::{LogLevel, Status};
use crate::shared::Shared;
use engine::{MemoryAccount, Pace};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// Time of a call, constant while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since 1970, in any resolution.
    pub real_ns: u64,
    /// Nanoseconds of a monotonic clock.
    pub monotonic_ns: u64,
}

/// Source of random bytes.
pub trait Random {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// Function beyond the ABI: takes bytes, returns bytes or an error. The number is that of the
/// effective context, 1 for the root context.
pub type ForeignFunction = Rc<dyn Fn(u32, &[u8]) -> Result<Vec<u8>, Status>>;

/// Specification of a VM.
#[derive(Clone)]
pub struct VmSpec {
    /// Number of the VM within its service: used to notify it of queue items.
    pub number: u64,
    /// The property `plugin_name`.
    pub plugin_name: String,
    /// Property `plugin_root_id`: identifies a root context among those of a module.
    pub root_id: String,
    /// Property `plugin_vm_id`: VMs with the same id share data and queues.
    pub vm_id: String,
    /// Configuration for `proxy_on_vm_start`.
    pub vm_configuration: Rc<[u8]>,
    /// Configuration for `proxy_on_configure`.
    pub plugin_configuration: Rc<[u8]>,
    /// Environment variables for this module, never those of the process.
    pub environment: BTreeMap<String, String>,
    /// Names of the upstreams that it may call.
    pub upstreams: BTreeSet<String>,
    /// Log level; lines below it are dropped.
    pub log_level: LogLevel,
    /// Limit of its memory in bytes.
    pub memory_bytes_max: usize,
    /// Slices that one call may start before it traps, if there is no pace.
    pub call_slices: u64,
    /// Pace, which determines how long calls run.
    pub pace: Option<Rc<dyn Pace>>,
    /// Account for its memory.
    pub room: Option<Rc<dyn MemoryAccount>>,
    /// Source of random bytes.
    pub random: Rc<dyn Random>,
    /// Foreign functions that are granted to it, by name.
    pub foreign: Rc<BTreeMap<String, ForeignFunction>>,
    /// Shared state of the service's VMs.
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
