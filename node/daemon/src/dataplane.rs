//! Kernel side of a node: ports and their sockets, the front door, and what services run on
//! below user level.
//!
//! ```text
//!  ports ─▶ Door ─▶ XDP, tc ─▶ sockets ─▶ cells
//!             └─ lanes, programs ◀─ Instances
//! ```
//!
//! The data plane does what it is told and reports its state; placement is decided elsewhere.

pub(crate) mod cables;
pub(crate) mod closing;
pub(crate) mod door;
pub(crate) mod instances;
pub(crate) mod kernel_settings;
pub(crate) mod packets;
pub(crate) mod port_life;
pub(crate) mod ports;
mod shared;
mod spares;

use crate::control::placement::{LaneState, Plane};
use abi::Level;
use closing::Closing;
use door::Door;
use instances::{Instances, word_of};
use kernel_settings::KernelSettings;
use netlink::Netlink;
use packets::PacketQueue;
use ports::LivePort;
use sockets::frame_socket::FrameSocket;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use units::{EntryId, PortId, SessionId};

/// Reason for a service with others behind it not running at `nic`.
const NO_MARKS: &str =
    "this kernel has no room for the mark that packets of a graph carry from there: 48 bytes";

/// Kernel objects of a node.
pub(crate) struct DataPlane {
    pub(crate) front: Door,
    pub(crate) netlink: Netlink,
    /// Kernel settings as they were last read.
    pub(crate) settings: KernelSettings,
    pub(crate) ports: Vec<LivePort>,
    pub(crate) sockets: BTreeMap<(PortId, u32), Queue>,
    /// Queues of packet ports.
    pub(crate) packets: BTreeMap<PortId, PacketQueue>,
    pub(crate) kernel: KernelWay,
    /// TAP device by which packets come up from kernel level.
    pub(crate) up: Option<OwnedFd>,
    pub(crate) up_ifindex: u32,
    pub(crate) closing: Closing,
    /// Instances of services that can leave user level.
    pub(crate) instances: Instances,
    /// Reason for nothing being able to run below user level here; the node's own switch apart.
    pub(crate) no_bpf: Option<String>,
    /// Packets that died with cells, in their rings.
    pub(crate) lost_with_cells: u64,
}

/// Receive ring of an AF_XDP socket, in front of the cell.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) socket: OwnedFd,
    /// Session whose packets wait in it.
    pub(crate) session: SessionId,
}

/// Device by which packets reach the kernel that only the kernel can route.
pub(crate) enum KernelWay {
    Tun(OwnedFd),
    /// Packet socket of a node without a front door, where TUN devices may be missing, too.
    Frames(FrameSocket),
}

/// Initial parts of a data plane.
pub(crate) struct Parts {
    pub(crate) front: Door,
    pub(crate) netlink: Netlink,
    pub(crate) ports: Vec<LivePort>,
    pub(crate) kernel: KernelWay,
    pub(crate) up: Option<OwnedFd>,
    pub(crate) up_ifindex: u32,
}

impl DataPlane {
    /// Creates a data plane without sockets, of ports that are there.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { front, netlink, ports, kernel, up, up_ifindex } = parts;
        let no_bpf = front.only_user().or_else(shared::unsupported);
        Self {
            front,
            netlink,
            settings: KernelSettings::default(),
            ports,
            sockets: BTreeMap::new(),
            packets: BTreeMap::new(),
            kernel,
            up,
            up_ifindex,
            closing: Closing::default(),
            instances: Instances::default(),
            no_bpf,
            lost_with_cells: 0,
        }
    }
}

impl Plane for DataPlane {
    fn unsupported(&self) -> Option<&str> {
        self.no_bpf.as_deref()
    }

    fn check_level(&self, level: Level, is_joined: bool) -> Result<(), String> {
        if level == Level::Kernel
            && let Some(reason) = self.ports.iter().find_map(LivePort::not_at_kernel)
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
