//! Drops by the kernel's stack of packets that the node has left to it: counters, names, and a tap.
//!
//! ```text
//!  kernel's BTF ─▶ enum skb_drop_reason ─▶ names, and the kind of each (StackKind)
//!                                            │ before loading
//!  tracepoint kfree_skb ─▶ c/stack.bpf.c ────┴──▶ tam_stack: arrival, reason ─▶ StackDrops
//!             │
//!             └─▶ c/tapped_stack.bpf.c, while a StackTap lives ─▶ ring
//!
//!  /sys/fs/bpf/tamandua/NODE/
//!      stack_counts   the counters
//!      stack_link     the program at the tracepoint
//! ```
//!
//! A node of packet ports alone, which has no front door, has the same in a [`StackCounter`].
//!
//! Optional for a node: a kernel that has no BTF, or does not let the daemon trace,
//! runs the front door all the same.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bpf_maps::{
    Config, PortConfig, STACK_ARRIVALS, STACK_OTHER, STACK_OWN, STACK_REASONS_MAX, StackKind,
    StackStats, VLAN_UP, Vlan, VlanKey,
};
use units::PortId;

use super::capture::{TapRing, TapSpec};
use super::maps::Maps;
use super::{FrontDoorError, VlanDevice};
use crate::btf::KernelBtf;
use crate::map::{Map, Update};
use crate::mapped::MappedArray;
use crate::object::{Object, OpenObject};
use crate::objects;
use crate::pin::{self, PinError};
use crate::program::Link;

/// Pins of the counters and of the program's link.
const COUNTS_PIN: &str = "stack_counts";
const LINK_PIN: &str = "stack_link";
const COUNTS: &str = "tam_stack";
/// Programs that count and that tap; the second of each is for a tracepoint that provides the
/// receiving socket, since Linux 6.11.
const COUNTING: [&str; 2] = ["tam_stack_drops_old", "tam_stack_drops"];
const TAPPING: [&str; 2] = ["tam_tap_stack_old", "tam_tap_stack"];
/// Number of arguments of the tracepoint with that socket.
const ARGUMENTS_WITH_SOCKET: usize = 4;
/// Prefix of the kernel's names of reasons.
const PREFIX: &str = "SKB_DROP_REASON_";

/// Kernel's drops of packets that arrived by one port, or by the node's own device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackDrops {
    /// Buffers that the port's device counts as dropped on arrival, too.
    pub device: u64,
    /// Frames by the kernel's reason, in lower case; without zeros.
    pub reasons: BTreeMap<String, u64>,
}

/// Origin of packets that the kernel dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Port of arrival.
    Port(PortId),
    /// Device through which the cell hands packets to the kernel.
    Own,
}

impl Arrival {
    const fn index(self) -> u32 {
        match self {
            Self::Port(port) => port.0 as u32,
            Self::Own => STACK_OWN as u32,
        }
    }
}

/// Drop reasons of the running kernel, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reasons {
    /// Names in lower case, without the prefix; empty where the kernel has none.
    names: Vec<String>,
    has_socket: bool,
}

/// Counters of the kernel's drops of packets that a node leaves to it.
#[derive(Debug)]
pub(super) struct Stack {
    counts: Map,
    reasons: Reasons,
    _link: Link,
}

impl Reasons {
    /// Reads the reasons of the running kernel.
    fn of_kernel() -> io::Result<Self> {
        let missing = |what| io::Error::new(io::ErrorKind::NotFound, what);
        let kernel = KernelBtf::load()?;
        let btf = kernel.btf();
        let values = btf.values("skb_drop_reason");
        let values = values.ok_or_else(|| missing("the kernel has no reasons for its drops"))?;
        let arguments = btf.arguments_of_tracepoint("kfree_skb");
        let arguments = arguments.ok_or_else(|| missing("there is no tracepoint kfree_skb"))?;
        Ok(Self::of(&values, arguments >= ARGUMENTS_WITH_SOCKET))
    }

    fn of(values: &[(String, i64)], has_socket: bool) -> Self {
        let mut names = vec![String::new(); STACK_REASONS_MAX];
        for (name, value) in values {
            let at = usize::try_from(*value).ok().filter(|at| *at < STACK_OTHER);
            if let (Some(at), Some(name)) = (at, name.strip_prefix(PREFIX)) {
                names[at] = name.to_ascii_lowercase();
            }
        }
        names[STACK_OTHER] = "other".to_owned();
        Self { names, has_socket }
    }

    /// Returns the kind of each reason; one without a name does not exist.
    fn kinds(&self) -> [u8; STACK_REASONS_MAX] {
        std::array::from_fn(|at| kind_of(&self.names[at]) as u8)
    }

    /// Returns the name of a reason.
    fn name(&self, reason: u32) -> &str {
        let at = usize::try_from(reason).unwrap_or(STACK_OTHER).min(STACK_OTHER);
        &self.names[at]
    }
}

/// Returns a reason's kind (net/core/dev.c, include/net/dropreason-core.h, Linux 6.18).
fn kind_of(name: &str) -> StackKind {
    match name {
        // The last value, a copy for a packet socket, and drops by the front door where XDP runs
        // behind the socket buffer.
        "" | "max" | "packet_sock_error" | "xdp" => StackKind::Not,
        // For these `__netif_receive_skb_core` and `enqueue_to_backlog` count at the device.
        "unhandled_proto" | "cpu_backlog" | "pfmemalloc" => StackKind::AtDevice,
        "tc_ingress" | "tc_egress" => StackKind::AtTc,
        // Used by drivers, and by `validate_xmit_skb` and its callers.
        "not_specified" => StackKind::Unspecified,
        "full_ring" | "skb_csum" | "skb_gso_seg" | "skb_ucopy_fault" | "dev_hdr" | "dev_ready"
        | "nomem" | "recursion_limit" | "tap_filter" | "tap_txfilter" => StackKind::ByDevice,
        "netfilter_drop" => StackKind::Netfilter,
        "no_socket" => StackKind::NoSocket,
        _ => StackKind::Drop,
    }
}

/// Returns the inode of this thread's network namespace.
fn namespace() -> io::Result<u32> {
    let inode = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    u32::try_from(inode).map_err(io::Error::other)
}

/// Sets the globals of both programs, and selects the one to load.
fn prepare(
    object: &mut OpenObject,
    reasons: &Reasons,
    programs: [&'static str; 2],
) -> Result<&'static str, FrontDoorError> {
    object.set_global("stack_namespace", &namespace().map_err(FrontDoorError::Stack)?)?;
    object.set_global("stack_kinds", &reasons.kinds())?;
    let [chosen, other] = match reasons.has_socket {
        true => [programs[1], programs[0]],
        false => programs,
    };
    object.set_autoload(other, false)?;
    Ok(chosen)
}

impl Stack {
    /// Adopts the pins of a previous daemon; `None` when there are none.
    pub(super) fn adopt(folder: &Path) -> Result<Option<Self>, FrontDoorError> {
        let _link = match Link::open_pinned(&folder.join(LINK_PIN)) {
            Err(PinError::Missing { .. }) => return Ok(None),
            link => link?,
        };
        let counts = Map::open_pinned(&folder.join(COUNTS_PIN))?;
        let reasons = Reasons::of_kernel().map_err(FrontDoorError::Stack)?;
        Ok(Some(Self { counts, reasons, _link }))
    }

    /// Starts to count, in the calling thread's network namespace; continues when this process
    /// ends.
    pub(super) fn start(maps: &Maps, folder: &Path) -> Result<Self, FrontDoorError> {
        let reasons = Reasons::of_kernel().map_err(FrontDoorError::Stack)?;
        let mut object = Object::open(objects::STACK, "tam")?;
        maps.share_with(&mut object)?;
        let program = prepare(&mut object, &reasons, COUNTING)?;
        let object = object.load()?;
        let (counts, link) = (object.map(COUNTS)?, object.program(program)?.attach_tracing()?);
        for name in [COUNTS_PIN, LINK_PIN] {
            // Left by a daemon that died between the two.
            match pin::unpin(&folder.join(name)) {
                Err(PinError::Missing { .. }) => {}
                unpinned => unpinned?,
            }
        }
        counts.pin(&folder.join(COUNTS_PIN))?;
        link.pin(&folder.join(LINK_PIN))?;
        Ok(Self { counts, reasons, _link: link })
    }

    /// Captures the kernel's drops of these arrivals' packets to `ring`, too.
    pub(super) fn tap(
        &self,
        maps: &Maps,
        wanted: &[Arrival],
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<StackTap, FrontDoorError> {
        let mut object = Object::open(objects::TAPPED_STACK, "tam")?;
        maps.share_with(&mut object)?;
        ring.share(&mut object, spec)?;
        let mut bits = [0u64; STACK_ARRIVALS.div_ceil(64)];
        for index in wanted.iter().map(|arrival| arrival.index()) {
            bits[index as usize / 64] |= 1 << (index % 64);
        }
        object.set_global("stack_wanted", &bits)?;
        let program = prepare(&mut object, &self.reasons, TAPPING)?;
        let object = object.load()?;
        let lost = object.map(".data.tap_lost")?.map_array::<u64>()?;
        let _link = object.program(program)?.attach_tracing()?;
        Ok(StackTap { lost, _link })
    }

    /// Returns the kernel's name of a reason.
    pub(super) fn reason(&self, reason: u32) -> &str {
        self.reasons.name(reason)
    }

    /// Reads the drops of an arrival.
    pub(super) fn drops(&self, arrival: Arrival) -> Result<StackDrops, FrontDoorError> {
        let values: Option<Vec<StackStats>> = self.counts.lookup_percpu(&arrival.index())?;
        let mut drops = StackDrops::default();
        for one in values.unwrap_or_default() {
            drops.device += one.device;
            let counted = one.reasons.iter().enumerate().filter(|(_, count)| **count > 0);
            for (reason, count) in counted {
                let name = self.reasons.names[reason].clone();
                *drops.reasons.entry(name).or_default() += count;
            }
        }
        Ok(drops)
    }
}

/// Counters of the kernel's drops of packets that a node without a front door leaves to it, in the
/// calling thread's network namespace, except those without a reason; stop when dropped.
#[derive(Debug)]
pub struct StackCounter {
    stack: Stack,
    ports: Map,
    /// Numbers of the ports, by their devices.
    numbers: Map,
    vlans: Map,
    above: Vec<VlanKey>,
}

impl StackCounter {
    /// Starts without ports; `device` is the one by which the cell hands packets to the kernel.
    ///
    /// # Errors
    /// [`FrontDoorError::Stack`] when the kernel has no BTF, or does not let us trace.
    pub fn start(device: u32) -> Result<Self, FrontDoorError> {
        let reasons = Reasons::of_kernel().map_err(FrontDoorError::Stack)?;
        let mut object = Object::open(objects::STACK, "tam")?;
        let program = prepare(&mut object, &reasons, COUNTING)?;
        let object = object.load()?;
        let shared = object.map("tam_shared")?.map_array::<Config>()?;
        shared.store(0, &Config { kernel_ifindex: device, ..Config::default() });
        let (ports, numbers, vlans) =
            (object.map("tam_ports")?, object.map("tam_egress")?, object.map("tam_vlans")?);
        let (counts, link) = (object.map(COUNTS)?, object.program(program)?.attach_tracing()?);
        let stack = Stack { counts, reasons, _link: link };
        Ok(Self { stack, ports, numbers, vlans, above: Vec::new() })
    }

    /// Counts packets that arrive by a port, too.
    ///
    /// # Errors
    /// [`FrontDoorError::Map`] when the kernel refuses to change a map.
    pub fn know(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        let number = u32::from(port.0);
        self.ports.update(&number, config, Update::Any)?;
        Ok(self.numbers.update(&config.ifindex, &number, Update::Any)?)
    }

    /// Removes the device of a port.
    ///
    /// # Errors
    /// [`FrontDoorError::Map`] when the kernel refuses to change the map.
    pub fn forget(&self, ifindex: u32) -> Result<(), FrontDoorError> {
        self.numbers.delete(&ifindex)?;
        Ok(())
    }

    /// Replaces the VLAN devices on top of ports, whose packets count for the ports.
    ///
    /// # Errors
    /// [`FrontDoorError::Map`] when the kernel refuses to change the map.
    pub fn set_vlans(&mut self, devices: &[VlanDevice]) -> Result<(), FrontDoorError> {
        for key in self.above.drain(..) {
            self.vlans.delete(&key)?;
        }
        for device in devices {
            let key = VlanKey { ifindex: device.device, vlan: VLAN_UP };
            let below = Vlan { ifindex: device.port, vlan: device.vlan, rpf: 0, flags: 0 };
            self.vlans.update(&key, &below, Update::Any)?;
            self.above.push(key);
        }
        Ok(())
    }

    /// Reads the kernel's drops of an arrival.
    ///
    /// # Errors
    /// [`FrontDoorError::Map`] when the kernel refuses to read the map.
    pub fn drops(&self, arrival: Arrival) -> Result<StackDrops, FrontDoorError> {
        self.stack.drops(arrival)
    }
}

/// Tap on the kernel's drops; off when dropped.
#[derive(Debug)]
pub struct StackTap {
    lost: MappedArray<u64>,
    _link: Link,
}

impl StackTap {
    /// Returns the number of packets for which the ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_the_kernels_own_names_and_unknown_ones_count_together() {
        let values = [
            ("SKB_NOT_DROPPED_YET", 0),
            ("SKB_CONSUMED", 1),
            ("SKB_DROP_REASON_NOT_SPECIFIED", 2),
            ("SKB_DROP_REASON_XDP", 5),
            ("SKB_DROP_REASON_OF_TOMORROW", 200),
            ("SKB_DROP_REASON_SUBSYS_MASK", 0xffff_0000),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        let reasons = Reasons::of(&values, true);
        let kinds = reasons.kinds();
        let kind = |at: usize| kinds[at];
        assert_eq!((reasons.name(200), kind(200)), ("of_tomorrow", StackKind::Drop as u8));
        assert_eq!((reasons.name(2), kind(2)), ("not_specified", StackKind::Unspecified as u8));
        assert_eq!((reasons.name(0x1_0003), kind(STACK_OTHER)), ("other", StackKind::Drop as u8));
        for ignored in [0, 1, 5, 77] {
            assert_eq!(kind(ignored), StackKind::Not as u8, "{ignored}");
        }
    }
}
