//! What outlives a daemon: a front door that the next one goes on with, and what
//! its services below user level run on.
//!
//! ```text
//!  /sys/fs/bpf/tamandua/NODE/
//!      arena_ENTRY    a service's memory
//!      block_ENTRY    its instance block
//!      events_ENTRY   the ring of what its programs leave
//!      nic_ENTRY      its module's program at nic, when it was loaded
//!      kernel_ENTRY   the same at kernel
//! ```
//!
//! Programs run on without these pins, for the front door's maps hold them; but nobody
//! could name them any more. Whether what is found is of this version is not asked here:
//! whoever adopts compares fingerprints first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bpf_maps::{Key, PortConfig, VlanKey};
use units::{EntryId, Name, PortId};

use super::{
    Below, FrontDoor, FrontDoorError, KEPT_PROGRAMS, LISTS, PIN_DIRECTORY, RULE_SETS, SHARED_MAPS,
    SOCKETS, TAGS, lists::Lists, pin_name, rules::Inactive, stack::Stack,
};
use crate::arena::Arena;
use crate::block::Block;
use crate::map::Map;
use crate::pin::{self, PinError};
use crate::program::{Link, Program};

/// What the programs of a service below user level run on.
#[derive(Debug)]
pub struct ServiceMaps {
    /// Its linear memory.
    pub arena: Arena,
    /// Its instance block.
    pub block: Block,
    /// The ring of what its programs leave.
    pub events: Map,
}

/// What of a service is pinned.
#[derive(Clone, Copy)]
enum Kept {
    Arena,
    Block,
    Events,
    Module(Below),
}

impl Kept {
    /// In the order in which they are forgotten: while anything is kept, the arena is.
    const ALL: [Self; 5] = [
        Self::Module(Below::Kernel),
        Self::Module(Below::Nic),
        Self::Events,
        Self::Block,
        Self::Arena,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Arena => "arena",
            Self::Block => "block",
            Self::Events => "events",
            Self::Module(Below::Nic) => "nic",
            Self::Module(Below::Kernel) => "kernel",
        }
    }
}

impl FrontDoor {
    /// Goes on with what a daemon of this node left when it died: nothing is detached, and
    /// packets do not notice. A port of these that was not attached is not.
    ///
    /// # Errors
    /// When something of it is missing.
    pub fn adopt(node: &Name, ports: &[PortId]) -> Result<Self, FrontDoorError> {
        let folder = Path::new(PIN_DIRECTORY).join(node.as_str());
        let mut maps = BTreeMap::new();
        for name in SHARED_MAPS.into_iter().chain([SOCKETS]) {
            maps.insert(name, Map::open_pinned(&folder.join(pin_name(name)))?);
        }
        let [heartbeat, marks, tc, nic, kernel, ask, translate] =
            KEPT_PROGRAMS.map(|name| Program::open_pinned(&folder.join(name)));
        // A front door without a large cache has one set in all; so has one with the least on
        // the only CPU, and then its number of sets is the same.
        let sets = maps[TAGS].info().max_entries / crate::possible_cpus() as u32;
        let kept = [heartbeat?, marks?, tc?, nic?, kernel?, ask?, translate?];
        let mut door = Self::join(folder, maps, kept, sets)?;
        door.lists = Lists::adopt(door.map(LISTS))?;
        door.stack = Stack::adopt(&door.folder)?;
        for port in ports {
            match door.link_pins(*port).map(|path| Link::open_pinned(&path)) {
                [.., Err(PinError::Missing { .. })] => {}
                [egress, tcx, xdp] => {
                    let (xdp, plain) = (xdp?, Program::open_pinned(&door.door_pin(*port))?);
                    // Somebody captured when the daemon died. The device may be gone, which is
                    // seen later.
                    if xdp.program_id().is_ok_and(|id| id != plain.id()) {
                        let _ = xdp.update(&plain);
                    }
                    door.links.insert(*port, [egress?, tcx?, xdp]);
                }
            }
        }
        for (set, name) in RULE_SETS.into_iter().enumerate() {
            door.keys[set] = door.map(name).keys::<Key>()?;
        }
        // The daemon before may have changed the rules just now.
        door.inactive = Inactive::Unknown;
        door.vlans = door.map("tam_vlans").keys::<VlanKey>()?;
        door.heartbeat()?;
        Ok(door)
    }

    /// A port as it was configured last.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn port_config(&self, port: PortId) -> Result<PortConfig, FrontDoorError> {
        let found = self.map("tam_ports").lookup(&u32::from(port.0))?;
        Ok(found.unwrap_or_default())
    }

    /// The device that a port's program is on; `None` when it is gone, or the port not attached.
    #[must_use]
    pub fn device_of(&self, port: PortId) -> Option<u32> {
        let [.., xdp] = self.links.get(&port)?;
        xdp.ifindex().ok().filter(|&ifindex| ifindex != 0)
    }

    /// The kernel's number for the program on a port's device.
    #[must_use]
    pub fn program_on(&self, port: PortId) -> Option<u32> {
        let [.., xdp] = self.links.get(&port)?;
        xdp.program_id().ok()
    }

    /// Takes the programs off a port whose device is gone.
    ///
    /// # Errors
    /// When a map or pin cannot be changed.
    pub fn detach_gone(&mut self, port: PortId) -> Result<(), FrontDoorError> {
        let config: Option<PortConfig> = self.map("tam_ports").lookup(&u32::from(port.0))?;
        self.detach(port, config.map_or(0, |config| config.ifindex))
    }

    /// Keeps what a service below user level runs on for the daemon that comes after this one.
    ///
    /// # Errors
    /// When the BPF file system refuses.
    pub fn keep_service(
        &self,
        entry: EntryId,
        arena: &Arena,
        block: &Block,
        events: &Map,
    ) -> Result<(), FrontDoorError> {
        self.forget_service(entry)?;
        arena.map().pin(&self.kept(Kept::Arena, entry))?;
        block.map().pin(&self.kept(Kept::Block, entry))?;
        events.pin(&self.kept(Kept::Events, entry))?;
        Ok(())
    }

    /// The same with its module's program of a level, in the place of one before.
    ///
    /// # Errors
    /// When the BPF file system refuses.
    pub fn keep_module(
        &self,
        level: Below,
        entry: EntryId,
        program: &Program,
    ) -> Result<(), FrontDoorError> {
        let path = self.kept(Kept::Module(level), entry);
        unpin_if_there(&path)?;
        program.pin(&path)?;
        Ok(())
    }

    /// What a daemon before kept of a service; `None` when it kept nothing.
    ///
    /// # Errors
    /// When a part of it is missing, or something else is pinned in its place.
    pub fn kept_service(&self, entry: EntryId) -> Result<Option<ServiceMaps>, FrontDoorError> {
        let open = |kept| Map::open_pinned(&self.kept(kept, entry));
        let arena = match open(Kept::Arena) {
            Ok(arena) => Arena::new(arena)?,
            Err(PinError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let block = Block::new(open(Kept::Block)?)?;
        Ok(Some(ServiceMaps { arena, block, events: open(Kept::Events)? }))
    }

    /// Its module's program of a level; `None` when it has not been loaded.
    ///
    /// # Errors
    /// When something else is pinned in its place.
    pub fn kept_module(
        &self,
        level: Below,
        entry: EntryId,
    ) -> Result<Option<Program>, FrontDoorError> {
        match Program::open_pinned(&self.kept(Kept::Module(level), entry)) {
            Ok(program) => Ok(Some(program)),
            Err(PinError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps nothing of a service any more.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn forget_service(&self, entry: EntryId) -> Result<(), FrontDoorError> {
        if !self.kept(Kept::Arena, entry).exists() {
            return Ok(());
        }
        for kept in Kept::ALL {
            unpin_if_there(&self.kept(kept, entry))?;
        }
        Ok(())
    }

    /// The services of which something is kept.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn kept_entries(&self) -> Result<BTreeSet<EntryId>, FrontDoorError> {
        let failed = |source| FrontDoorError::Folder { path: self.folder.clone(), source };
        let mut entries = BTreeSet::new();
        for file in std::fs::read_dir(&self.folder).map_err(failed)? {
            let file = file.map_err(failed)?.file_name();
            let found = file.to_str().and_then(|name| name.split_once('_'));
            let Some((kind, number)) = found else { continue };
            if Kept::ALL.iter().any(|kept| kept.name() == kind)
                && let Ok(number) = number.parse()
            {
                entries.insert(EntryId(number));
            }
        }
        Ok(entries)
    }

    fn kept(&self, kept: Kept, entry: EntryId) -> PathBuf {
        self.folder.join(format!("{}_{}", kept.name(), entry.0))
    }
}

fn unpin_if_there(path: &Path) -> Result<(), PinError> {
    match pin::unpin(path) {
        Err(PinError::Missing { .. }) => Ok(()),
        other => other,
    }
}
