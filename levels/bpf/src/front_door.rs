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
//!      arena_ENTRY    and what else a service below user level runs on: `adopt`
//! ```
//!
//! Everything is pinned, so that a daemon that dies leaves packets flowing, and the
//! next one goes on with it: [`FrontDoor::adopt`]. [`remove`] takes it down. What the rules are is core/node's decision; here
//! they become visible to packets, as a whole and with one store.

use crate::arena::ArenaError;
use crate::block::BlockError;
use crate::lanes::{Lanes, LanesError};
use crate::map::{Map, MapError, MappedArray, Update};
use crate::object::{LoadError, Object, ObjectError, OpenObject};
use crate::pin::{self, PinError};
use crate::program::{AttachError, Link, Order, Program, XdpMode};
use crate::test_run::TestRunError;
use crate::{DevmapValue, objects};
use bpf_maps::{
    Config, FLOW_WAYS, HASH_KEYS, HandOver, Key, MODULES_MAX, OUTCOME_COUNT, OwnPrefix, PORT_RAW,
    PORT_TC, PortConfig, PortStats, QUEUES_MAX, RuleStats, VLAN_UP, Vlan, VlanKey,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use units::{Name, PortId, RuleId};

mod adopt;
pub mod capture;
mod egress;
mod explain;
mod lines;
mod lists;
mod rules;
mod services;
mod stack;

pub use adopt::ServiceMaps;
pub use explain::{EXPLAINED_LENGTH_MAX, Explained, Explainer};
pub use lists::FlowsOfRule;
pub use rules::{place, place_behind, salted, salted_behind};
pub use services::{Below, hand_over_at};
pub use stack::{Arrival, StackCounter, StackDrops, StackTap};

/// Where nodes pin what they keep in the kernel.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/tamandua";

/// The word of [`Config`] that holds the generation.
const GENERATION_WORD: usize = 0;
const _: () = assert!(std::mem::offset_of!(Config, generation) == GENERATION_WORD * 8);

/// Why the front door cannot do what was asked.
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

/// The front door of a running node.
#[derive(Debug)]
pub struct FrontDoor {
    folder: PathBuf,
    maps: BTreeMap<&'static str, Map>,
    shared: MappedArray<Config>,
    lanes: Lanes,
    hand_overs: MappedArray<[HandOver; MODULES_MAX]>,
    accounts: MappedArray<bpf_maps::Account>,
    lines: MappedArray<bpf_maps::Line>,
    filter: MappedArray<u64>,
    facts: MappedArray<bpf_maps::RuleFact>,
    lists: lists::Lists,
    /// Sets of the large flow cache on each CPU.
    large_sets: u32,
    heartbeat: Program,
    carries_marks: bool,
    tc: Program,
    ask: Program,
    translate: Program,
    /// What modules' programs end with when nobody captures.
    after: [Program; AFTERS.len()],
    links: BTreeMap<PortId, [Link; 3]>,
    /// Keys in each of the two rule sets, so that the inactive one can be emptied.
    keys: [Vec<Key>; 2],
    /// What else was written for them.
    written: rules::Written,
    /// Whether packets may still look at that one.
    inactive: rules::Inactive,
    vlans: Vec<VlanKey>,
    /// Kernel drops of what the node leaves to the kernel, where they can be counted.
    stack: Option<stack::Stack>,
}

/// Maps that every copy of the program shares.
const SHARED_MAPS: [&str; 38] = [
    "tam_shared",
    "tam_ports",
    "tam_stats",
    "tam_flows",
    LARGE,
    TAGS,
    "tam_masks",
    "tam_scratch",
    FILTER,
    LISTS,
    "tam_rules_0",
    "tam_rules_1",
    FACTS,
    "tam_rule_counts",
    "tam_fragments",
    "tam_vlans",
    OWN,
    "tam_egress",
    "tam_devices",
    LANES,
    HAND_OVERS,
    "tam_passages",
    MODULES,
    MODULES_TC,
    AFTER,
    AFTER_TC,
    SERVICES,
    REASONS,
    ACCOUNTS,
    ROOMS,
    LINES,
    LINE_OF,
    ANSWERS,
    "tam_cycles",
    ORIGINS,
    "tam_translations",
    "tam_quoted",
    "tam_translated",
];
/// The large flow cache, and the tags of its entries.
const LARGE: &str = "tam_large";
const TAGS: &str = "tam_tags";
const FILTER: &str = "tam_filter";
/// Tables of flows, by number.
const LISTS: &str = "tam_lists";
/// What rules say, by number.
const FACTS: &str = "tam_rule_facts";
/// The machine's own IPv4 addresses.
const OWN: &str = "tam_own";
const LANES: &str = "tam_lanes";
/// A data section.
const HAND_OVERS: &str = ".data.hand_overs";
const MODULES: &str = "tam_modules";
const MODULES_TC: &str = "tam_modules_tc";
const AFTER: &str = "tam_after";
const AFTER_TC: &str = "tam_after_tc";
const SERVICES: &str = "tam_services";
const REASONS: &str = "tam_reasons";
const ACCOUNTS: &str = "tam_accounts";
const ROOMS: &str = "tam_rooms";
/// Accounts of shares of ports, and whose they are.
const LINES: &str = "tam_lines";
const LINE_OF: &str = "tam_line_of";
/// What the cell is answered when it asks where the kernel would send a packet.
const ANSWERS: &str = "tam_answers";
/// Sources with which packets came that modules have now, on each CPU.
const ORIGINS: &str = "tam_origins";
/// The front door's second half: what modules' programs end with.
const AFTERWARDS: &str = "tam_afterwards";
/// The same at kernel level.
const AFTERWARDS_TC: &str = "tam_afterwards_tc";
/// The program at tcx ingress: one for all ports.
const TC: &str = "tam_tc";
/// The program that answers the cell, at tcx ingress of the device by which packets come up.
const ASK: &str = "tam_ask";
/// The program at tcx egress of each port: what the kernel sends for a module gets the module's
/// source there.
const TRANSLATE: &str = "tam_translate";
/// Says that the daemon listens for changes of routes.
const HEARTBEAT: &str = "tam_heartbeat";
/// Programs that a daemon uses all the time, and so the next one, too.
const KEPT_PROGRAMS: [&str; 7] =
    [HEARTBEAT, CARRIES_MARKS, TC, AFTERWARDS, AFTERWARDS_TC, ASK, TRANSLATE];
/// Where the second half is called.
const AFTERS: [(&str, &str); 2] = [(AFTER, AFTERWARDS), (AFTER_TC, AFTERWARDS_TC)];
/// Name of a port's program in the driver.
pub const DOOR: &str = "tam_front_door";
/// Name of a port's program behind the kernel's receive path.
const TC_DOOR: &str = "tam_tc_door";
/// What [`FrontDoor::create`] loads, and no port loads again.
const ONCE: [&str; 7] = KEPT_PROGRAMS;
/// `XDP_PASS`: the packet carries a mark.
const PASS: u32 = 2;
/// Says whether a packet can carry a mark.
const CARRIES_MARKS: &str = "tam_carries_marks";
/// The map of sockets, shared like the others; apart because its values are descriptors.
const SOCKETS: &str = "tam_sockets";
const RULE_SETS: [&str; 2] = ["tam_rules_0", "tam_rules_1"];

/// Has a front door, tapped or not, serve a port with these flags; the name of its program.
fn serve_port(
    object: &mut OpenObject,
    port: PortId,
    flags: u8,
) -> Result<&'static str, FrontDoorError> {
    object.set_global("port_number", &u32::from(port.0))?;
    if flags & PORT_TC != 0 {
        return Ok(TC_DOOR);
    }
    object.set_global("begins_with_ip", &u32::from(flags & PORT_RAW))?;
    for once in ONCE {
        object.set_autoload(once, false)?;
    }
    Ok(DOOR)
}

/// Has an array of programs call this one at index 0.
fn call_at_0(programs: &Map, program: &Program) -> Result<(), MapError> {
    programs.update(&0u32, &(program.as_fd().as_raw_fd() as u32), Update::Any)
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
        let folder = Path::new(PIN_DIRECTORY).join(node.as_str());
        pin::mount_bpffs()
            .and_then(|()| std::fs::create_dir_all(&folder))
            .map_err(|source| FrontDoorError::Folder { path: folder.clone(), source })?;
        let large_sets = sets_for(flows);
        let mut object = Object::open(objects::FRONT_DOOR, "tam")?;
        let sets = (large_sets * crate::possible_cpus() as u32).max(1);
        object.set_max_entries(LARGE, sets * FLOW_WAYS as u32)?;
        object.set_max_entries(TAGS, sets)?;
        // Each port loads it with its number.
        object.set_autoload(DOOR, false)?;
        let object = object.load()?;
        let mut maps = BTreeMap::new();
        for name in SHARED_MAPS.into_iter().chain([SOCKETS]) {
            let map = object.map(name)?;
            map.pin(&folder.join(pin_name(name)))?;
            maps.insert(name, map);
        }
        let kept = KEPT_PROGRAMS.map(|name| object.program(name));
        let [heartbeat, marks, tc, nic, kernel, ask, translate] = kept;
        let kept = [heartbeat?, marks?, tc?, nic?, kernel?, ask?, translate?];
        for (name, program) in KEPT_PROGRAMS.iter().zip(&kept) {
            program.pin(&folder.join(name))?;
        }
        let front_door = Self::join(folder, maps, kept, large_sets)?;
        // Bit 0 of generation 2 says "rule set 0", which is empty; 0 is kept for empty cache entries.
        let config = Config { generation: 2, hash_keys, tick_ns: tick_ns(), ..Config::default() };
        front_door.shared.store(0, &config);
        // Before the first packet: it sets the clock.
        front_door.heartbeat()?;
        Ok(front_door)
    }

    /// Of its maps and the programs of [`KEPT_PROGRAMS`].
    fn join(
        folder: PathBuf,
        maps: BTreeMap<&'static str, Map>,
        [heartbeat, marks, tc, nic, kernel, ask, translate]: [Program; KEPT_PROGRAMS.len()],
        large_sets: u32,
    ) -> Result<Self, FrontDoorError> {
        let after = [nic, kernel];
        // Somebody may have captured when the daemon before died.
        for ((map, _), program) in AFTERS.iter().zip(&after) {
            call_at_0(&maps[map], program)?;
        }
        Ok(Self {
            after,
            folder,
            shared: maps["tam_shared"].map_array::<Config>()?,
            lanes: Lanes::new(&maps[LANES])?,
            hand_overs: maps[HAND_OVERS].map_array::<[HandOver; MODULES_MAX]>()?,
            accounts: maps[ACCOUNTS].map_array()?,
            lines: maps[LINES].map_array()?,
            filter: maps[FILTER].map_array()?,
            facts: maps[FACTS].map_array()?,
            lists: lists::Lists::default(),
            large_sets,
            carries_marks: marks.test_run(&[0; 14], None, 1)?.retval == PASS,
            maps,
            heartbeat,
            tc,
            ask,
            translate,
            links: BTreeMap::new(),
            keys: [const { Vec::new() }; 2],
            written: rules::Written::default(),
            inactive: rules::Inactive::Free,
            vlans: Vec::new(),
            stack: None,
        })
    }

    /// Whether the kernel carries a module's mark with a packet from `nic` to another level.
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

    /// The same in the first of these ways in which the device can; which one that was, and
    /// why not in one before.
    ///
    /// # Errors
    /// As [`FrontDoor::attach`], of the last one.
    ///
    /// # Panics
    /// Without a way.
    pub fn attach_as(
        &mut self,
        port: PortId,
        config: &PortConfig,
        modes: &[XdpMode],
    ) -> Result<(XdpMode, Option<AttachError>), FrontDoorError> {
        let program = self.load(port, config)?;
        // First tc: XDP may send packets there at once.
        let [egress, tcx] = self.attach_beside(config)?;
        let (xdp, mode, refused) = program.attach_xdp_as(config.ifindex, modes)?;
        self.keep(port, [egress, tcx, xdp], &program)?;
        Ok((mode, refused))
    }

    /// Puts a copy of the program at the tcx ingress of a port's device, before other programs
    /// there: `config` has [`PORT_TC`].
    ///
    /// # Errors
    /// When the kernel has no tcx.
    pub fn attach_tc(&mut self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        let program = self.load(port, config)?;
        let [egress, tcx] = self.attach_beside(config)?;
        let door = program.attach_tcx(config.ifindex)?;
        self.keep(port, [egress, tcx, door], &program)
    }

    /// Puts on a port's device what serves it beside the front door: at tcx egress and at ingress.
    fn attach_beside(&self, config: &PortConfig) -> Result<[Link; 2], FrontDoorError> {
        let egress = self.translate.attach_tcx_egress(config.ifindex, Order::First)?;
        Ok([egress, self.tc.attach_tcx(config.ifindex)?])
    }

    /// A port's programs stay when this process ends.
    fn keep(
        &mut self,
        port: PortId,
        links: [Link; 3],
        program: &Program,
    ) -> Result<(), FrontDoorError> {
        for (link, pin) in links.iter().zip(self.link_pins(port)) {
            link.pin(&pin)?;
        }
        program.pin(&self.door_pin(port))?;
        self.links.insert(port, links);
        self.invalidate();
        Ok(())
    }

    /// Makes a port known and loads its copy of the program, which is on no device yet.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load(&self, port: PortId, config: &PortConfig) -> Result<Program, FrontDoorError> {
        let at_tc = config.flags & PORT_TC != 0;
        let bytes = if at_tc { objects::TC_DOOR } else { objects::FRONT_DOOR };
        let mut object = Object::open(bytes, "tam")?;
        object.set_global("large_sets", &self.large_sets)?;
        self.share_maps(&mut object)?;
        let program = serve_port(&mut object, port, config.flags)?;
        let object = object.load()?;
        self.know(port, config)?;
        Ok(object.program(program)?)
    }

    /// Makes a port known that packets leave by, and without a program none comes in by.
    ///
    /// # Errors
    /// When a map cannot be changed.
    pub fn know(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.configure(port, config)?;
        let number = u32::from(port.0);
        let device = DevmapValue { ifindex: config.ifindex, program: 0 };
        self.map("tam_devices").update(&number, &device, Update::Any)?;
        Ok(self.map("tam_egress").update(&config.ifindex, &number, Update::Any)?)
    }

    /// Has an object use the node's maps, those of them that it declares.
    fn share_maps(&self, object: &mut OpenObject) -> Result<(), FrontDoorError> {
        for (name, map) in &self.maps {
            if object.has_map(name) {
                object.reuse_map(name, map)?;
            }
        }
        Ok(())
    }

    /// Where the links of a port are pinned, in the order in which they are attached.
    fn link_pins(&self, port: PortId) -> [PathBuf; 3] {
        ["egress", "tcx", "link"].map(|kind| self.folder.join(format!("{kind}_{port}")))
    }

    /// Where a port's copy of the program is pinned: on the device may be one with taps.
    fn door_pin(&self, port: PortId) -> PathBuf {
        self.folder.join(format!("door_{port}"))
    }

    /// Takes the programs off a port.
    ///
    /// # Errors
    /// When a map or pin cannot be changed.
    pub fn detach(&mut self, port: PortId, ifindex: u32) -> Result<(), FrontDoorError> {
        let number = u32::from(port.0);
        self.map("tam_egress").delete(&ifindex)?;
        self.map("tam_devices").delete(&number)?;
        self.map("tam_ports").update(&number, &PortConfig::default(), Update::Any)?;
        if let Some(links) = self.links.remove(&port) {
            for (link, pin) in links.into_iter().zip(self.link_pins(port)).rev() {
                drop(link);
                pin::unpin(&pin)?;
            }
            pin::unpin(&self.door_pin(port))?;
        }
        self.invalidate();
        Ok(())
    }

    /// Tells the program about a port; cached routes are forgotten.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn configure(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.map("tam_ports").update(&u32::from(port.0), config, Update::Any)?;
        self.invalidate();
        Ok(())
    }

    /// Replaces the VLAN devices above the ports.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn set_vlans(&mut self, devices: &[VlanDevice]) -> Result<(), FrontDoorError> {
        let map = &self.maps["tam_vlans"];
        for key in self.vlans.drain(..) {
            map.delete(&key)?;
        }
        for &VlanDevice { port, vlan, device, rpf, flags } in devices {
            let down = VlanKey { ifindex: port, vlan: u32::from(vlan) };
            let up = VlanKey { ifindex: device, vlan: VLAN_UP };
            map.update(&down, &Vlan { ifindex: device, vlan, rpf, flags }, Update::Any)?;
            map.update(&up, &Vlan { ifindex: port, vlan, rpf: 0, flags: 0 }, Update::Any)?;
            self.vlans.extend([down, up]);
        }
        self.invalidate();
        Ok(())
    }

    /// Replaces the IPv4 addresses that are this machine's own.
    ///
    /// # Errors
    /// When the map cannot be changed; it has room for [`OWN_MAX`](bpf_maps::OWN_MAX).
    pub fn set_own(&self, prefixes: &BTreeSet<OwnPrefix>) -> Result<(), FrontDoorError> {
        let map = &self.maps[OWN];
        let known: BTreeSet<OwnPrefix> = map.keys()?.into_iter().collect();
        // One that stays is there all the time.
        for gone in known.difference(prefixes) {
            map.delete(gone)?;
        }
        for new in prefixes.difference(&known) {
            map.update(new, &0u32, Update::Any)?;
        }
        self.invalidate();
        Ok(())
    }

    /// Forgets cached rules and routes: something changed that they came from.
    pub fn invalidate(&self) {
        self.set_generation(self.config().generation + 2);
    }

    /// How often rules or routes changed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        bpf_maps::generation_number(self.config().generation)
    }

    fn config(&self) -> Config {
        self.shared.load(0).unwrap_or_default()
    }

    fn set_generation(&self, generation: u64) {
        if let Some(word) = self.shared.word(0, GENERATION_WORD) {
            word.store(generation, Ordering::Release);
        }
    }

    /// Says that the daemon listens for route changes, so that cached routes are good.
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn heartbeat(&self) -> Result<(), FrontDoorError> {
        self.heartbeat.test_run(&[0; 14], None, 1)?;
        Ok(())
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
        let index = u32::from(port.0) * QUEUES_MAX as u32 + queue;
        match socket {
            Some(fd) => {
                let value = fd.as_raw_fd() as u32;
                self.map(SOCKETS).update(&index, &value, Update::Any)?;
            }
            None => {
                self.map(SOCKETS).delete(&index)?;
            }
        }
        Ok(())
    }

    /// A port's counters, summed over the CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn port_stats(&self, port: PortId) -> Result<PortStats, FrontDoorError> {
        let values = self.map("tam_stats").lookup_percpu(&u32::from(port.0))?.unwrap_or_default();
        Ok(values.into_iter().fold(PortStats::default(), sum_port_stats))
    }

    /// A rule's counters, summed over the CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn rule_stats(&self, rule: RuleId) -> Result<RuleStats, FrontDoorError> {
        let values: Vec<RuleStats> =
            self.map("tam_rule_counts").lookup_percpu(&rule.0)?.unwrap_or_default();
        Ok(values.into_iter().fold(RuleStats::default(), |sum, one| RuleStats {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
        }))
    }

    /// Sets a rule's counters to zero: another rule has its number now.
    ///
    /// # Errors
    /// When the map cannot be changed.
    pub fn clear_rule_stats(&self, rule: RuleId) -> Result<(), FrontDoorError> {
        let zeroes = vec![RuleStats::default(); crate::possible_cpus()];
        self.map("tam_rule_counts").update_percpu(&rule.0, &zeroes)?;
        Ok(())
    }

    fn map(&self, name: &'static str) -> &Map {
        // Made for every name in SHARED_MAPS and SOCKETS by `create`.
        &self.maps[name]
    }
}

/// Most flows of a large cache on each CPU: half a gigabyte.
pub const FLOWS_LARGE_MAX: u32 = 1 << 22;
/// Memory of one flow of the large cache, its tag and the free entries beside it included.
pub const FLOW_BYTES: u32 = 146;

/// Sets for so many flows: an eighth more entries, so that hardly a flow finds both its sets full.
fn sets_for(flows: u32) -> u32 {
    let flows = flows.min(FLOWS_LARGE_MAX);
    (flows + flows / 8).div_ceil(FLOW_WAYS as u32)
}

/// The file of a map: data sections begin with a dot, which the BPF file system does not take.
fn pin_name(map: &str) -> String {
    map.trim_start_matches('.').replace('.', "_")
}

fn sum_port_stats(mut sum: PortStats, one: PortStats) -> PortStats {
    sum.rx_packets += one.rx_packets;
    sum.rx_bytes += one.rx_bytes;
    sum.cache_hits += one.cache_hits;
    for outcome in 0..OUTCOME_COUNT {
        sum.outcomes[outcome] += one.outcomes[outcome];
    }
    sum
}

/// Nanoseconds of a jiffy: the coarse clocks move with it (Linux, `TICK_NSEC`).
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

/// Takes down what the node `node` keeps in the kernel; the names of what was removed.
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

/// Nodes that have something pinned.
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
