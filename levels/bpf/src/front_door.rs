//! Front door of one node: its maps, and a copy of its program on each port.
//!
//! ```text
//!  /sys/fs/bpf/tamandua/NODE/
//!      link_PORT      link of the program on the port's device: at XDP, or at tcx ingress
//!      tcx_PORT       link of the program at its tcx ingress, for modules at kernel level
//!      egress_PORT    link of the program at its tcx egress, for sources that modules have changed
//!      stack_counts   counters of packets that the kernel's stack drops, and their program: `stack`
//!      tam_shared     and the other maps, shared by all copies
//!      tam_tc         and the other programs that a daemon needs again
//!      arena_ENTRY    and other memory of services below user level: `pins`
//! ```
//!
//! Everything is pinned: when a daemon dies packets continue to flow, and the next one adopts its
//! objects ([`FrontDoor::adopt`]). [`remove`] deletes them. core/node decides the rules; here
//! they become visible to packets, all at once and with one store.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bpf_maps::{
    Config, FLOW_WAYS, HASH_KEYS, Key, Mask, OwnPrefix, PortConfig, PortStats, Rule, RuleStats,
};
use units::{Name, PortId, RuleId};

use crate::arena::ArenaError;
use crate::block::BlockError;
use crate::lanes::{Lanes, LanesError};
use crate::map::{Map, MapError};
use crate::object::{LoadError, Object, ObjectError};
use crate::objects;
use crate::pin::{self, PinError};
use crate::program::{AttachError, Program, XdpMode};
use crate::test_run::TestRunError;

mod accounts;
pub mod capture;
mod devices;
mod explain;
mod lists;
mod maps;
mod pins;
mod ports;
mod programs;
mod rules;
mod services;
mod stack;

pub use accounts::Accounts;
pub use explain::{EXPLAINED_LENGTH_MAX, Explained, Explainer};
pub use lists::FlowsOfRule;
pub use pins::{Pins, ServiceMaps};
pub use programs::DOOR;
pub use rules::{place, place_behind, salted, salted_behind};
pub use services::{Below, Services, hand_over_at};
pub use stack::{Arrival, StackCounter, StackDrops, StackTap};

use capture::{ModuleTap, Tap, TapRing, TapSpec, Taps};
use devices::Devices;
use maps::{ANSWERS, Maps};
use ports::Ports;
use programs::KeptPrograms;
use rules::RuleSets;
use stack::Stack;

/// Directory in which each node has its directory of pins.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/tamandua";
/// Most flows of the large cache of each CPU: 612 MB.
pub const FLOWS_LARGE_MAX: u32 = 1 << 22;
/// Bytes of memory of one flow of the large cache: an entry, and an eighth of one that is free
/// ([`sets_for`]).
pub const FLOW_BYTES: u32 = (ENTRY_BYTES * 9).div_ceil(8);
/// Bytes of one entry of the large cache: two cache lines, and a tag.
const ENTRY_BYTES: u32 = 2 * 64 + 1;

/// Result of `tam_carries_marks` that means yes: `XDP_PASS`.
const PASS: u32 = 2;
/// Input of programs that read no packet: an Ethernet header, the least that a test run takes.
const NO_PACKET: [u8; 14] = [0; 14];

/// Failure of the front door.
#[derive(Debug, thiserror::Error)]
pub enum FrontDoorError {
    /// The compiled object is not what this program expects.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The kernel refused to load the program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel refused an access to a map.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program cannot be attached to the device.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The kernel refused to create a map.
    #[error(transparent)]
    NewMap(#[from] crate::new_map::NewMapError),
    /// The BPF file system refused a pin.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The map of lanes cannot be mapped into memory.
    #[error(transparent)]
    Lanes(#[from] LanesError),
    /// The map pinned as a service's memory is no arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The map pinned as a service's instance block is no block.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The kernel refused to run the heartbeat, or the program that tries marks.
    #[error(transparent)]
    Heartbeat(#[from] TestRunError),
    /// The directory of the pins cannot be read or removed.
    #[error("cannot use {path}: {source}; 'mount -t bpf bpf /sys/fs/bpf' makes a BPF file system")]
    Folder {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A ring buffer cannot be mapped, or an attached program cannot be opened again.
    #[error("the front door's programs cannot be tapped: {0}")]
    Ring(io::Error),
    /// The port has no program.
    #[error("port {port} has no program: its device is gone")]
    NotAttached {
        /// Number of the port.
        port: PortId,
    },
    /// Drops by the kernel's stack cannot be counted.
    #[error("cannot count the drops of the kernel's stack: {0}")]
    Stack(io::Error),
    /// The kernel cannot wait for packets in flight.
    #[error("membarrier failed: {0}")]
    Barrier(io::Error),
}

/// VLAN device on top of a port, and the checks of packets that arrive by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanDevice {
    /// Interface index of the port's device.
    pub port: u32,
    /// VLAN identifier.
    pub vlan: u16,
    /// Interface index of the VLAN device.
    pub device: u32,
    /// Reverse path filter, as [`PortConfig::rpf`].
    pub rpf: u8,
    /// `PORT_NO_V6` and `PORT_ACCEPTS_OWN`.
    pub flags: u8,
}

/// Mode in which a port's program was attached.
#[derive(Debug)]
pub struct Attachment {
    /// First of the modes that the device supports.
    pub mode: XdpMode,
    /// Error in the mode before it, if it was not the first.
    pub refused: Option<AttachError>,
}

/// Rules with their masks: those for packets that show all of L4, or those for the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleTable<'a> {
    /// Sets of matched fields, best rank first.
    pub masks: &'a [Mask],
    /// Rules by key. [`Key::mask`] is an index of `masks`; in the table of hidden packets
    /// [`MASKS_MAX`](bpf_maps::MASKS_MAX) is added to it.
    pub entries: &'a [(Key, Rule)],
}

/// Front door of a running node.
///
/// Dropping it changes nothing in the kernel: programs stay attached and maps pinned, for the next
/// daemon.
#[derive(Debug)]
pub struct FrontDoor {
    maps: Arc<Maps>,
    ports: Ports,
    rules: RuleSets,
    services: Services,
    accounts: Accounts,
    devices: Devices,
    taps: Taps,
    pins: Pins,
    heartbeat: Program,
    carries_marks: bool,
    /// Counters of the kernel's drops of packets that the node leaves to it, where they are
    /// supported.
    stack: Option<Stack>,
}

impl FrontDoor {
    /// Creates the maps of a node without ports, after removing the pins of a dead node of the same
    /// name.
    ///
    /// `hash_keys` are random and secret: a sender who knows them can choose flows that evict each
    /// other from the cache. Each CPU's large cache holds `flows`, at most [`FLOWS_LARGE_MAX`], in
    /// [`FLOW_BYTES`] each; 0 is no such cache.
    ///
    /// # Errors
    /// The kernel refuses program or maps, or there is no BPF file system.
    pub fn create(
        node: &Name,
        hash_keys: [u64; HASH_KEYS],
        flows: u32,
    ) -> Result<Self, FrontDoorError> {
        remove(node)?;
        let pins = Pins::of(node);
        pins.create()?;
        let large_sets = sets_for(flows);
        let mut object = Object::open(objects::FRONT_DOOR, "tam")?;
        Maps::size(&mut object, large_sets)?;
        // Each port loads it with its number.
        object.set_autoload(DOOR, false)?;
        let object = object.load()?;
        let maps = Maps::create(pins.folder(), &object, large_sets)?;
        let programs = KeptPrograms::create(pins.folder(), &object)?;
        let front_door = Self::join(pins, maps, programs)?;
        // Bit 0 of generation 2 says "rule set 0", which is empty; 0 is kept for empty cache entries.
        let config = Config { generation: 2, hash_keys, tick_ns: tick_ns(), ..Config::default() };
        front_door.maps.set_config(&config);
        // Before the first packet: the heartbeat sets the clock.
        front_door.heartbeat()?;
        Ok(front_door)
    }

    /// Adopts the objects of a daemon of this node that died: nothing is detached, and packets are
    /// not affected. Those of `ports` that were attached stay so.
    ///
    /// # Errors
    /// A map or program is missing or of another version.
    pub fn adopt(node: &Name, ports: &[PortId]) -> Result<Self, FrontDoorError> {
        let pins = Pins::of(node);
        let maps = Maps::open(pins.folder())?;
        let programs = KeptPrograms::open(pins.folder())?;
        let mut door = Self::join(pins, maps, programs)?;
        door.rules.adopt()?;
        door.stack = Stack::adopt(door.pins.folder())?;
        door.ports.adopt(ports)?;
        door.heartbeat()?;
        Ok(door)
    }

    /// Assembles a front door from its maps and programs.
    fn join(pins: Pins, maps: Maps, programs: KeptPrograms) -> Result<Self, FrontDoorError> {
        let KeptPrograms { heartbeat, carries_marks, tc, after, ask, translate } = programs;
        let (maps, folder) = (Arc::new(maps), pins.folder());
        Ok(Self {
            taps: Taps::new(maps.clone(), after)?,
            ports: Ports::new(maps.clone(), folder.to_owned(), tc, translate),
            rules: RuleSets::new(maps.clone())?,
            services: Services::new(maps.clone())?,
            accounts: Accounts::new(maps.clone())?,
            devices: Devices::new(maps.clone(), folder.join("asked"), ask),
            carries_marks: carries_marks.test_run(&NO_PACKET, None, 1)?.retval == PASS,
            maps,
            pins,
            heartbeat,
            stack: None,
        })
    }

    /// Returns the services below user level.
    #[must_use]
    pub const fn services(&self) -> &Services {
        &self.services
    }

    /// Returns the accounts by which services and shares of ports pay.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Returns the pins of services' memory, for the next daemon.
    #[must_use]
    pub const fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Returns the lanes of all entries.
    #[must_use]
    pub const fn lanes(&self) -> &Lanes {
        self.services.lanes()
    }

    /// Returns true when the kernel carries a module's mark with a packet from `nic` to another
    /// level.
    #[must_use]
    pub const fn carries_marks(&self) -> bool {
        self.carries_marks
    }

    /// Attaches a copy of the program to a port's device, and at its tcx ingress the one for
    /// modules at kernel level, before other programs there.
    ///
    /// # Errors
    /// The device has another XDP program, its driver lacks the mode, or the kernel has no tcx.
    pub fn attach(
        &mut self,
        port: PortId,
        config: &PortConfig,
        mode: XdpMode,
    ) -> Result<(), FrontDoorError> {
        self.attach_as(port, config, &[mode]).map(drop)
    }

    /// Attaches as [`FrontDoor::attach`], in the first of `modes` that the device supports.
    ///
    /// # Errors
    /// Same as [`FrontDoor::attach`], for the last mode.
    ///
    /// # Panics
    /// `modes` is empty.
    pub fn attach_as(
        &mut self,
        port: PortId,
        config: &PortConfig,
        modes: &[XdpMode],
    ) -> Result<Attachment, FrontDoorError> {
        self.ports.attach(port, config, modes)
    }

    /// Attaches a copy of the program at the tcx ingress of a port's device, before other programs
    /// there. `config` has the flag [`PORT_TC`](bpf_maps::PORT_TC).
    ///
    /// # Errors
    /// The kernel has no tcx.
    pub fn attach_tc(&mut self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        debug_assert!(config.flags & bpf_maps::PORT_TC != 0, "port {port} is one at XDP");
        self.ports.attach_tc(port, config)
    }

    /// Registers a port as [`FrontDoor::register`] and loads its copy of the program, attached to
    /// no device yet.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn load(&self, port: PortId, config: &PortConfig) -> Result<Program, FrontDoorError> {
        self.ports.load(port, config)
    }

    /// Registers a port that packets can leave by. None arrives by it until a program is attached.
    ///
    /// # Errors
    /// A map cannot be changed.
    pub fn register(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.ports.register(port, config)
    }

    /// Detaches the programs of a port from its device, which has this interface index.
    ///
    /// # Errors
    /// A map or pin cannot be changed.
    pub fn detach(&mut self, port: PortId, ifindex: u32) -> Result<(), FrontDoorError> {
        self.ports.detach(port, ifindex)
    }

    /// Detaches the programs of a port whose device is gone.
    ///
    /// # Errors
    /// A map or pin cannot be changed.
    pub fn detach_gone(&mut self, port: PortId) -> Result<(), FrontDoorError> {
        let config = self.ports.config(port)?;
        self.detach(port, config.map_or(0, |config| config.ifindex))
    }

    /// Replaces the configuration of a port, and empties the caches of routes.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn configure(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.ports.configure(port, config)
    }

    /// Returns the configuration of a port; all zeros when there is no such port.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn port_config(&self, port: PortId) -> Result<PortConfig, FrontDoorError> {
        Ok(self.ports.config(port)?.unwrap_or_default())
    }

    /// Returns the interface index of the device that a port's program is attached to; `None` when
    /// the device is gone, or the port not attached.
    #[must_use]
    pub fn device_of(&self, port: PortId) -> Option<u32> {
        self.ports.link(port)?.ifindex().ok().filter(|&ifindex| ifindex != 0)
    }

    /// Returns the kernel's identifier of the program on a port's device; `None` when there is
    /// none.
    #[must_use]
    pub fn program_on(&self, port: PortId) -> Option<u32> {
        self.ports.link(port)?.program_id().ok()
    }

    /// Replaces the VLAN devices on top of the ports.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn set_vlans(&mut self, devices: &[VlanDevice]) -> Result<(), FrontDoorError> {
        self.ports.set_vlans(devices)
    }

    /// Replaces the IPv4 addresses of this machine.
    ///
    /// # Errors
    /// The map cannot be changed, or there are more than
    /// [`OWN_MAX`](bpf_maps::OWN_MAX).
    pub fn set_own(&self, prefixes: &BTreeSet<OwnPrefix>) -> Result<(), FrontDoorError> {
        self.ports.set_own(prefixes)
    }

    /// Redirects packets of a receive queue to an AF_XDP socket, or with `None` to none.
    ///
    /// # Errors
    /// The socket is not set up, or the map cannot be changed.
    pub fn set_socket(
        &self,
        port: PortId,
        queue: u32,
        socket: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontDoorError> {
        self.ports.set_socket(port, queue, socket)
    }

    /// Returns a port's counters, summed over the CPUs.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn port_stats(&self, port: PortId) -> Result<PortStats, FrontDoorError> {
        self.ports.stats(port)
    }

    /// Empties the caches of rules and routes, after a change of something that they derive from.
    pub fn invalidate(&self) {
        self.maps.invalidate();
    }

    /// Returns the number of changes of rules and routes so far.
    #[must_use]
    pub fn generation(&self) -> u64 {
        bpf_maps::generation_number(self.maps.config().generation)
    }

    /// Renews the lease of cached routes: confirms that the daemon is notified of route changes.
    ///
    /// # Errors
    /// The kernel does not run the program.
    pub fn heartbeat(&self) -> Result<(), FrontDoorError> {
        self.heartbeat.test_run(&NO_PACKET, None, 1)?;
        Ok(())
    }

    /// Replaces all rules, when none matches on hidden fields of L4. Each packet meets the old
    /// rules or the new ones, never some of both.
    ///
    /// Blocks until no packet reads the rule set that is overwritten, the one before the current
    /// one: at most 50 ms after the previous replacement, and not at all later.
    ///
    /// # Errors
    /// A map cannot be changed; the old rules then stay.
    pub fn install_rules(
        &mut self,
        masks: &[Mask],
        entries: &[(Key, Rule)],
        lists: &[FlowsOfRule],
    ) -> Result<(), FrontDoorError> {
        self.install_with_hidden(RuleTable { masks, entries }, RuleTable::default(), lists)
    }

    /// Replaces all rules, as [`Self::install_rules`]. `hidden` is for packets that do not show all
    /// of L4, `shown` for the others.
    ///
    /// # Errors
    /// Same as [`Self::install_rules`].
    pub fn install_with_hidden(
        &mut self,
        shown: RuleTable<'_>,
        hidden: RuleTable<'_>,
        lists: &[FlowsOfRule],
    ) -> Result<(), FrontDoorError> {
        self.rules.install(shown, hidden, lists)
    }

    /// Returns a rule's counters, summed over the CPUs.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn rule_stats(&self, rule: RuleId) -> Result<RuleStats, FrontDoorError> {
        self.rules.stats(rule)
    }

    /// Resets the counters of a rule's number, which another rule will get.
    ///
    /// # Errors
    /// The map cannot be changed.
    pub fn clear_rule_stats(&self, rule: RuleId) -> Result<(), FrontDoorError> {
        self.rules.clear_stats(rule)
    }

    /// Sets the TAP device by which packets go from tc to the cell when modules at kernel level
    /// raise them. Without one they are handled as if there were no rule.
    ///
    /// A frame read from it is a [`bpf_maps::PacketMeta`] and then the frame on arrival, with its
    /// tags. The device must be up, with an MTU of 32 bytes more than the ports, and no queueing
    /// discipline that changes the order of frames (`noqueue`).
    pub fn set_raise_device(&self, ifindex: Option<u32>) {
        self.devices.set_raise(ifindex.unwrap_or(0));
    }

    /// Sets the device by which packets enter the kernel that the cell leaves to it.
    pub fn set_kernel_device(&self, ifindex: u32) {
        self.devices.set_kernel(ifindex);
    }

    /// Sets whether sessions have shares of some port's rate: only then are packets inspected that
    /// modules leave to the kernel.
    pub fn set_has_shares(&self, has_shares: bool) {
        self.devices.set_has_shares(has_shares);
    }

    /// Attaches the program that answers the cell's route queries ([`Answers`](crate::Answers)) to
    /// the TAP device of [`FrontDoor::set_raise_device`]; it stays when this process ends.
    ///
    /// # Errors
    /// The kernel has no tcx, or the BPF file system refuses.
    pub fn answer_at(&self, ifindex: u32) -> Result<(), FrontDoorError> {
        self.devices.answer_at(ifindex)
    }

    /// Returns the map of answers to route queries, for [`Answers`](crate::Answers) in the cell.
    #[must_use]
    pub fn answers_map(&self) -> &Map {
        self.maps.get(ANSWERS)
    }

    /// Returns an explainer with descriptors of its own, for another thread: the kernel's verifier
    /// takes a while for its copy of the program.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn explainer(&self) -> Result<Explainer, FrontDoorError> {
        Explainer::of(&self.maps)
    }

    /// Captures packets of a port, whose device has this interface index, to `ring`. A port can
    /// have one tap.
    ///
    /// # Errors
    /// The port is not attached, or the kernel refuses the programs.
    pub fn tap(
        &self,
        port: PortId,
        ifindex: u32,
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<Tap, FrontDoorError> {
        self.taps.tap(&self.ports, port, ifindex, spec, ring)
    }

    /// Captures packets of all ports as modules below user level have left them, at the end of
    /// their path. There can be one such tap.
    ///
    /// # Errors
    /// The kernel refuses the programs.
    pub fn tap_modules(&self, spec: &TapSpec, ring: &TapRing) -> Result<ModuleTap, FrontDoorError> {
        self.taps.tap_modules(spec, ring)
    }

    /// Starts to count packets that the kernel's stack drops, of those that arrived by a port or by
    /// the device of [`FrontDoor::set_kernel_device`], in the calling thread's network namespace.
    /// Counting continues when this process ends.
    ///
    /// # Errors
    /// [`FrontDoorError::Stack`] when the kernel has no BTF, or does not let us trace.
    pub fn count_stack_drops(&mut self) -> Result<(), FrontDoorError> {
        if self.stack.is_none() {
            self.stack = Some(Stack::start(&self.maps, self.pins.folder())?);
        }
        Ok(())
    }

    /// Returns the kernel's drops of packets of an arrival; zeros where they are not counted.
    ///
    /// # Errors
    /// [`FrontDoorError::Map`] when the kernel refuses to read the map.
    pub fn stack_drops(&self, arrival: Arrival) -> Result<StackDrops, FrontDoorError> {
        self.stack.as_ref().map_or_else(|| Ok(StackDrops::default()), |it| it.drops(arrival))
    }

    /// Captures packets of these arrivals that the kernel drops to `ring`; `None` where drops are
    /// not counted. There can be one such tap.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn tap_stack(
        &self,
        wanted: &[Arrival],
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<Option<StackTap>, FrontDoorError> {
        let stack = self.stack.as_ref();
        stack.map(|stack| stack.tap(&self.maps, wanted, spec, ring)).transpose()
    }

    /// Returns the kernel's name of a reason in [`CapturedFrame`](capture::CapturedFrame); "" where drops are not
    /// counted.
    #[must_use]
    pub fn stack_reason(&self, reason: u32) -> &str {
        self.stack.as_ref().map_or("", |stack| stack.reason(reason))
    }
}

/// Returns the length of a jiffy in nanoseconds, the resolution of the kernel's coarse clocks
/// (Linux, `TICK_NSEC`).
#[must_use]
pub fn tick_ns() -> u32 {
    rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse).tv_nsec as u32
}

/// Waits until every CPU has left the kernel code that it was in, 10 to 50 ms. XDP programs are not
/// preempted, so none reads the data that was active before the call any more, and packets that
/// they redirected to a socket are in its ring.
///
/// # Errors
/// The kernel has no `MEMBARRIER_CMD_GLOBAL` (membarrier(2)).
pub fn wait_for_packets_in_flight() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes two numbers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes all objects of a node in the kernel. Returns the names of the pins that were removed;
/// none for a user without access, who has pinned nothing.
///
/// # Errors
/// A pin cannot be removed.
pub fn remove(node: &Name) -> Result<Vec<String>, FrontDoorError> {
    let folder = Path::new(PIN_DIRECTORY).join(node.as_str());
    let failed = |source| FrontDoorError::Folder { path: folder.clone(), source };
    let nothing = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if nothing.contains(&error.kind()) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut removed = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        pin::unpin(&entry.path())?;
        removed.push(entry.file_name().to_string_lossy().into_owned());
    }
    std::fs::remove_dir(&folder).map_err(failed)?;
    Ok(removed)
}

/// Returns the names of the nodes with pins.
///
/// # Errors
/// The directory cannot be read.
pub fn pinned_nodes() -> io::Result<Vec<String>> {
    match std::fs::read_dir(PIN_DIRECTORY) {
        Ok(entries) => entries
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the number of sets of each CPU's large cache for this many flows: an eighth more entries
/// than flows, so that few flows find both their sets full.
fn sets_for(flows: u32) -> u32 {
    let flows = flows.min(FLOWS_LARGE_MAX);
    (flows + flows / 8).div_ceil(FLOW_WAYS as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_cache_has_an_eighth_more_entries_than_flows_up_to_its_limit() {
        assert_eq!(sets_for(0), 0, "none is wanted");
        assert_eq!(sets_for(1), 1);
        assert_eq!(sets_for(64) as usize * FLOW_WAYS, 72);
        assert_eq!(sets_for(65) as usize * FLOW_WAYS, 80, "sets are whole");
        assert_eq!(sets_for(u32::MAX), sets_for(FLOWS_LARGE_MAX));
        let bytes =
            u64::from(sets_for(FLOWS_LARGE_MAX)) * FLOW_WAYS as u64 * u64::from(ENTRY_BYTES);
        assert!(bytes <= u64::from(FLOWS_LARGE_MAX) * u64::from(FLOW_BYTES));
    }
}
