//! The front door of one node: its maps, and a copy of its program on each port.
//!
//! ```text
//!  /sys/fs/bpf/tamandua/NODE/
//!      link_PORT      the program on the port's device: at XDP, or at tcx ingress
//!      tcx_PORT       the program at its tcx ingress, for modules at kernel level
//!      egress_PORT    the program at its tcx egress, for sources that modules have changed
//!      stack_counts   what the kernel drops of what is left to it, and the program that counts: `stack`
//!      tam_shared     and the other maps, shared by all copies
//!      tam_tc         and the other programs that a daemon needs again
//!      arena_ENTRY    and what else a service below user level runs on: `pins`
//! ```
//!
//! Everything is pinned, so that a daemon that dies leaves packets flowing, and the
//! next one goes on with it: [`FrontDoor::adopt`]. [`remove`] takes it down. What the rules are is
//! core/node's decision; here they become visible to packets, as a whole and with one store.

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

/// `XDP_PASS`: the packet carries a mark.
const PASS: u32 = 2;

/// Folder in which nodes pin what they keep in the kernel.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/tamandua";

/// Reason why the front door cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum FrontDoorError {
    /// The compiled object is not what this program expects.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The kernel did not take the program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A map refused.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program cannot be on the device.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A map could not be made.
    #[error(transparent)]
    NewMap(#[from] crate::new_map::NewMapError),
    /// The BPF file system refused.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The lanes cannot be mapped.
    #[error(transparent)]
    Lanes(#[from] LanesError),
    /// What is pinned as a service's memory is none.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// What is pinned as a service's instance block is none.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The heartbeat did not run.
    #[error(transparent)]
    Heartbeat(#[from] TestRunError),
    /// The folder for the pins.
    #[error("cannot use {path}: {source}; 'mount -t bpf bpf /sys/fs/bpf' makes a BPF file system")]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A ring buffer cannot be mapped, or a program not be found again.
    #[error("the front door's programs cannot be tapped: {0}")]
    Ring(io::Error),
    /// The port is not served.
    #[error("port {port} has no program: its device is away")]
    NotAttached {
        /// Its number.
        port: PortId,
    },
    /// Kernel drops cannot be counted.
    #[error("what the kernel's stack drops cannot be counted: {0}")]
    Stack(io::Error),
    /// The kernel cannot wait for packets in flight.
    #[error("membarrier failed: {0}")]
    Barrier(io::Error),
}

/// A VLAN device above a port, and how packets are judged that come in by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanDevice {
    /// The port's device.
    pub port: u32,
    /// VLAN identifier.
    pub vlan: u16,
    /// The VLAN device.
    pub device: u32,
    /// Its reverse path filter, as [`PortConfig::rpf`].
    pub rpf: u8,
    /// `PORT_NO_V6` and `PORT_ACCEPTS_OWN`.
    pub flags: u8,
}

/// Front door of a running node.
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
    /// Kernel drops of what the node leaves to the kernel, where they can be counted.
    stack: Option<Stack>,
}

impl FrontDoor {
    /// Makes the maps of a node without ports. What a dead node of the same
    /// name left is removed first. Who knows `hash_keys`, which are random, can choose
    /// flows that push each other out of the cache. Each CPU's large cache has room for
    /// `flows`, at most [`FLOWS_LARGE_MAX`], in [`FLOW_BYTES`] each; 0 is none.
    ///
    /// # Errors
    /// When the kernel refuses program or maps, or there is no BPF file system.
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
        // Before the first packet: it sets the clock.
        front_door.heartbeat()?;
        Ok(front_door)
    }

    /// Goes on with what a daemon of this node left when it died: nothing is detached, and
    /// packets do not notice. A port of these that was not attached is not.
    ///
    /// # Errors
    /// When something of it is missing.
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
            carries_marks: carries_marks.test_run(&[0; 14], None, 1)?.retval == PASS,
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

    /// Returns what is kept of services for the next daemon.
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

    /// Puts a copy of the program on a port's device, and at its tcx ingress what serves
    /// modules at kernel level, before other programs there.
    ///
    /// # Errors
    /// When another XDP program is there, the driver cannot, or the kernel has no tcx.
    pub fn attach(
        &mut self,
        port: PortId,
        config: &PortConfig,
        mode: XdpMode,
    ) -> Result<(), FrontDoorError> {
        self.attach_as(port, config, &[mode]).map(drop)
    }

    /// Does the same in the first of these modes in which the device can. Returns which one that
    /// was, and why not one before.
    ///
    /// # Errors
    /// As [`FrontDoor::attach`], of the last one.
    ///
    /// # Panics
    /// Without a mode.
    pub fn attach_as(
        &mut self,
        port: PortId,
        config: &PortConfig,
        modes: &[XdpMode],
    ) -> Result<(XdpMode, Option<AttachError>), FrontDoorError> {
        self.ports.attach(port, config, modes)
    }

    /// Puts a copy of the program at the tcx ingress of a port's device, before other programs
    /// there: `config` has [`PORT_TC`](bpf_maps::PORT_TC).
    ///
    /// # Errors
    /// When the kernel has no tcx.
    pub fn attach_tc(&mut self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.ports.attach_tc(port, config)
    }

    /// Makes a port known and loads its copy of the program, which is on no device yet.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load(&self, port: PortId, config: &PortConfig) -> Result<Program, FrontDoorError> {
        self.ports.load(port, config)
    }

    /// Makes a port known that packets leave by, and without a program none comes in by.
    ///
    /// # Errors
    /// When a map cannot be changed.
    pub fn know(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.ports.know(port, config)
    }

    /// Takes the programs off a port.
    ///
    /// # Errors
    /// When a map or pin cannot be changed.
    pub fn detach(&mut self, port: PortId, ifindex: u32) -> Result<(), FrontDoorError> {
        self.ports.detach(port, ifindex)
    }

    /// Takes the programs off a port whose device is gone.
    ///
    /// # Errors
    /// When a map or pin cannot be changed.
    pub fn detach_gone(&mut self, port: PortId) -> Result<(), FrontDoorError> {
        let config = self.ports.config(port)?;
        self.detach(port, config.map_or(0, |config| config.ifindex))
    }

    /// Tells the program about a port; cached routes are forgotten.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn configure(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.ports.configure(port, config)
    }

    /// Returns a port as it was configured last.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn port_config(&self, port: PortId) -> Result<PortConfig, FrontDoorError> {
        Ok(self.ports.config(port)?.unwrap_or_default())
    }

    /// Returns the device that a port's program is on; `None` when it is gone, or the port not
    /// attached.
    #[must_use]
    pub fn device_of(&self, port: PortId) -> Option<u32> {
        self.ports.link(port)?.ifindex().ok().filter(|&ifindex| ifindex != 0)
    }

    /// Returns the kernel's number for the program on a port's device.
    #[must_use]
    pub fn program_on(&self, port: PortId) -> Option<u32> {
        self.ports.link(port)?.program_id().ok()
    }

    /// Replaces the VLAN devices above the ports.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn set_vlans(&mut self, devices: &[VlanDevice]) -> Result<(), FrontDoorError> {
        self.ports.set_vlans(devices)
    }

    /// Replaces the IPv4 addresses that are this machine's own.
    ///
    /// # Errors
    /// When the map cannot be changed; it has room for [`OWN_MAX`](bpf_maps::OWN_MAX).
    pub fn set_own(&self, prefixes: &BTreeSet<OwnPrefix>) -> Result<(), FrontDoorError> {
        self.ports.set_own(prefixes)
    }

    /// Gives packets of a queue to a socket, or with `None` to no one.
    ///
    /// # Errors
    /// When the socket is not set up, or the map cannot be changed.
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
    /// When the map cannot be read.
    pub fn port_stats(&self, port: PortId) -> Result<PortStats, FrontDoorError> {
        self.ports.stats(port)
    }

    /// Forgets cached rules and routes: something changed that they came from.
    pub fn invalidate(&self) {
        self.maps.invalidate();
    }

    /// Returns how often rules or routes changed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        bpf_maps::generation_number(self.maps.config().generation)
    }

    /// Says that the daemon listens for route changes, so that cached routes are good.
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn heartbeat(&self) -> Result<(), FrontDoorError> {
        self.heartbeat.test_run(&[0; 14], None, 1)?;
        Ok(())
    }

    /// Replaces all rules. Every packet meets the old ones or the new ones.
    ///
    /// Packets that still look at the set before last are waited for, 10 to 50 ms after the
    /// replacement before this one: one that comes later need not wait.
    ///
    /// # Errors
    /// When a map cannot be changed; the old rules then stay.
    pub fn install_rules(
        &mut self,
        masks: &[Mask],
        entries: &[(Key, Rule)],
        lists: &[FlowsOfRule],
    ) -> Result<(), FrontDoorError> {
        self.install_with_hidden((masks, entries), (&[], &[]), lists)
    }

    /// Replaces all rules, as [`Self::install_rules`]; `hidden` are masks and keys of packets that do
    /// not show all of L4, whose masks have numbers from [`MASKS_MAX`](bpf_maps::MASKS_MAX) on.
    ///
    /// # Errors
    /// As [`Self::install_rules`].
    pub fn install_with_hidden(
        &mut self,
        shown: (&[Mask], &[(Key, Rule)]),
        hidden: (&[Mask], &[(Key, Rule)]),
        lists: &[FlowsOfRule],
    ) -> Result<(), FrontDoorError> {
        self.rules.install(shown, hidden, lists)
    }

    /// Returns a rule's counters, summed over the CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn rule_stats(&self, rule: RuleId) -> Result<RuleStats, FrontDoorError> {
        self.rules.stats(rule)
    }

    /// Sets a rule's counters to zero: another rule has its number now.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn clear_rule_stats(&self, rule: RuleId) -> Result<(), FrontDoorError> {
        self.rules.clear_stats(rule)
    }

    /// Names the TAP device by which packets go from tc to the cell: modules at kernel level
    /// raise by it. Without one what would go up goes as if there were no rule.
    ///
    /// A frame that is read from it begins with [`bpf_maps::PacketMeta`], the frame as it came
    /// follows, tags in line. The device is up, and takes frames longer by 32 bytes than the
    /// ports do; a queueing discipline would only change their order (`noqueue`).
    pub fn set_up_device(&self, ifindex: Option<u32>) {
        self.devices.set_up(ifindex.unwrap_or(0));
    }

    /// Names the device by which the cell gives packets to the kernel: they come in by it when
    /// the kernel routes them.
    pub fn set_kernel_device(&self, ifindex: u32) {
        self.devices.set_kernel(ifindex);
    }

    /// Says whether sessions have shares of some port's rate: packets that modules leave to the
    /// kernel are looked at only then.
    pub fn set_has_shares(&self, has_shares: bool) {
        self.devices.set_has_shares(has_shares);
    }

    /// Answers, on the TAP device by which packets come up, what the cell asks there
    /// ([`Answers`](crate::Answers)); the program stays when this process ends.
    ///
    /// # Errors
    /// When the kernel has no tcx, or the BPF file system refuses.
    pub fn answer_at(&self, ifindex: u32) -> Result<(), FrontDoorError> {
        self.devices.answer_at(ifindex)
    }

    /// Returns the map of answers, for [`Answers`](crate::Answers) elsewhere.
    #[must_use]
    pub fn answers_map(&self) -> &Map {
        self.maps.get(ANSWERS)
    }

    /// Returns what [`Explainer::explain`] needs, apart from this: another thread may wait for the
    /// kernel, which looks at the copy for a while.
    ///
    /// # Errors
    /// When the process has too many descriptors.
    pub fn explainer(&self) -> Result<Explainer, FrontDoorError> {
        Explainer::of(&self.maps)
    }

    /// Taps a port whose device has this index; what is seen goes to `ring`. There may be one
    /// tap on a port.
    ///
    /// # Errors
    /// When the port is not attached, or the kernel does not take the programs.
    pub fn tap(
        &self,
        port: PortId,
        ifindex: u32,
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<Tap, FrontDoorError> {
        self.taps.tap(&self.ports, port, ifindex, spec, ring)
    }

    /// Taps what modules below user level leave behind, whatever port it came by. There may be
    /// one such tap.
    ///
    /// # Errors
    /// When the kernel does not take the programs.
    pub fn tap_modules(&self, spec: &TapSpec, ring: &TapRing) -> Result<ModuleTap, FrontDoorError> {
        self.taps.tap_modules(spec, ring)
    }

    /// Counts what the kernel drops of the packets that came in by ports, and by the device by
    /// which the cell hands packets to it ([`FrontDoor::set_kernel_device`]), in the calling
    /// thread's network namespace; goes on when this process ends.
    ///
    /// # Errors
    /// [`FrontDoorError::Stack`] when the kernel has no BTF, or does not let us trace.
    pub fn count_stack_drops(&mut self) -> Result<(), FrontDoorError> {
        if self.stack.is_none() {
            self.stack = Some(Stack::start(&self.maps, self.pins.folder())?);
        }
        Ok(())
    }

    /// Reads the kernel's drops of what came in there; nothing where they are not counted.
    ///
    /// # Errors
    /// [`FrontDoorError::Map`] when the kernel refuses to read the map.
    pub fn stack_drops(&self, arrival: Arrival) -> Result<StackDrops, FrontDoorError> {
        self.stack.as_ref().map_or_else(|| Ok(StackDrops::default()), |it| it.drops(arrival))
    }

    /// Has what the kernel drops of these arrivals' packets come to `ring`, too; nothing is where
    /// it is not counted. There may be one such tap.
    ///
    /// # Errors
    /// When the kernel does not take the program.
    pub fn tap_stack(
        &self,
        wanted: &[Arrival],
        spec: &TapSpec,
        ring: &TapRing,
    ) -> Result<Option<StackTap>, FrontDoorError> {
        let stack = self.stack.as_ref();
        stack.map(|stack| stack.tap(&self.maps, wanted, spec, ring)).transpose()
    }

    /// Returns the kernel's name of a reason in [`Tapped`](capture::Tapped).
    #[must_use]
    pub fn stack_reason(&self, reason: u32) -> &str {
        self.stack.as_ref().map_or("", |stack| stack.reason(reason))
    }
}

/// Most flows of a large cache on each CPU: half a gigabyte.
pub const FLOWS_LARGE_MAX: u32 = 1 << 22;
/// Memory of one flow of the large cache, its tag and the free entries beside it included.
pub const FLOW_BYTES: u32 = 146;

/// Returns the sets for so many flows: an eighth more entries, so that hardly a flow finds both its sets full.
fn sets_for(flows: u32) -> u32 {
    let flows = flows.min(FLOWS_LARGE_MAX);
    (flows + flows / 8).div_ceil(FLOW_WAYS as u32)
}

/// Returns the nanoseconds of a jiffy: the coarse clocks move with it (Linux, `TICK_NSEC`).
#[must_use]
pub fn tick_ns() -> u32 {
    rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse).tv_nsec as u32
}

/// Waits until every CPU has left the code that it was in (10 to 50 ms): XDP programs run
/// without being preempted, so none still looks at what was active before, and what they
/// redirected to a socket is in its ring.
///
/// # Errors
/// When the kernel cannot.
pub fn wait_for_packets_in_flight() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes two numbers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes down what the node `node` keeps in the kernel. Returns the names of what was removed.
///
/// # Errors
/// When a pin cannot be removed.
pub fn remove(node: &Name) -> Result<Vec<String>, FrontDoorError> {
    let folder = Path::new(PIN_DIRECTORY).join(node.as_str());
    let failed = |source| FrontDoorError::Folder { path: folder.clone(), source };
    // Who may not look there has put nothing there.
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

/// Returns the nodes that have something pinned.
///
/// # Errors
/// When the folder cannot be read.
pub fn pinned_nodes() -> io::Result<Vec<String>> {
    match std::fs::read_dir(PIN_DIRECTORY) {
        Ok(entries) => entries
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
