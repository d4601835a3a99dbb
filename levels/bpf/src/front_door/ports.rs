//! Ports of a front door: their configuration, the programs on their devices, their counters.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use bpf_maps::{
    OUTCOME_COUNT, OwnPrefix, PORT_TC, PortConfig, PortStats, QUEUES_MAX, VLAN_UP, Vlan, VlanKey,
};
use units::PortId;

use super::maps::{DEVICES, EGRESS, Maps, OWN, PORT_STATS, PORTS, SOCKETS, VLANS};
use super::programs::serve_port;
use super::{Attachment, FrontDoorError, VlanDevice};
use crate::map::Update;
use crate::object::Object;
use crate::pin::{self, PinError};
use crate::program::{Link, Order, Program, XdpMode};
use crate::{DevmapValue, objects};

/// Ports, with the programs on their devices.
#[derive(Debug)]
pub(super) struct Ports {
    maps: Arc<Maps>,
    /// Directory of the pins.
    folder: PathBuf,
    /// Program at tcx ingress of each port.
    tc: Program,
    /// Program at tcx egress of each port.
    translate: Program,
    /// Links at egress, at tcx ingress, and of the front door.
    links: BTreeMap<PortId, [Link; 3]>,
    /// VLAN devices that are in the map.
    vlans: Vec<VlanKey>,
}

impl Ports {
    /// Begins without ports.
    pub(super) const fn new(
        maps: Arc<Maps>,
        folder: PathBuf,
        tc: Program,
        translate: Program,
    ) -> Self {
        Self { maps, folder, tc, translate, links: BTreeMap::new(), vlans: Vec::new() }
    }

    /// Adopts those of these ports that a previous daemon has attached.
    pub(super) fn adopt(&mut self, ports: &[PortId]) -> Result<(), FrontDoorError> {
        for port in ports {
            match self.link_pins(*port).map(|path| Link::open_pinned(&path)) {
                [.., Err(PinError::Missing { .. })] => {}
                [egress, tcx, xdp] => {
                    let (xdp, plain) = (xdp?, Program::open_pinned(&self.door_pin(*port))?);
                    // A capture was running when the daemon died. The device may be gone, which is
                    // noticed later.
                    if xdp.program_id().is_ok_and(|id| id != plain.id()) {
                        let _ = xdp.update(&plain);
                    }
                    self.links.insert(*port, [egress?, tcx?, xdp]);
                }
            }
        }
        self.vlans = self.maps.get(VLANS).keys()?;
        Ok(())
    }

    /// Attaches a copy of the program to a port's device, in the first of these modes that works,
    /// with the programs beside it.
    pub(super) fn attach(
        &mut self,
        port: PortId,
        config: &PortConfig,
        modes: &[XdpMode],
    ) -> Result<Attachment, FrontDoorError> {
        let program = self.load(port, config)?;
        // First tc: XDP may send packets there at once.
        let [egress, tcx] = self.attach_beside(config)?;
        let (xdp, mode, refused) = program.attach_xdp_as(config.ifindex, modes)?;
        self.keep(port, [egress, tcx, xdp], &program)?;
        Ok(Attachment { mode, refused })
    }

    /// Attaches a copy of the program at the tcx ingress of a port's device.
    pub(super) fn attach_tc(
        &mut self,
        port: PortId,
        config: &PortConfig,
    ) -> Result<(), FrontDoorError> {
        let program = self.load(port, config)?;
        let [egress, tcx] = self.attach_beside(config)?;
        let door = program.attach_tcx(config.ifindex)?;
        self.keep(port, [egress, tcx, door], &program)
    }

    /// Attaches the programs beside the front door to a port's device: at tcx egress and at
    /// ingress.
    fn attach_beside(&self, config: &PortConfig) -> Result<[Link; 2], FrontDoorError> {
        let egress = self.translate.attach_tcx_egress(config.ifindex, Order::First)?;
        Ok([egress, self.tc.attach_tcx(config.ifindex)?])
    }

    /// Pins a port's links, so that its programs stay when this process ends.
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
        self.maps.invalidate();
        Ok(())
    }

    /// Registers a port and loads its copy of the program, attached to no device yet.
    pub(super) fn load(
        &self,
        port: PortId,
        config: &PortConfig,
    ) -> Result<Program, FrontDoorError> {
        let at_tc = config.flags & PORT_TC != 0;
        let bytes = if at_tc { objects::TC_DOOR } else { objects::FRONT_DOOR };
        let mut object = Object::open(bytes, "tam")?;
        self.maps.share_with_door(&mut object)?;
        let program = serve_port(&mut object, port, config.flags)?;
        let object = object.load()?;
        self.register(port, config)?;
        Ok(object.program(program)?)
    }

    /// Registers a port that packets can leave by.
    pub(super) fn register(&self, port: PortId, config: &PortConfig) -> Result<(), FrontDoorError> {
        self.configure(port, config)?;
        let number = u32::from(port.0);
        let device = DevmapValue { ifindex: config.ifindex, program: 0 };
        self.maps.get(DEVICES).update(&number, &device, Update::Any)?;
        Ok(self.maps.get(EGRESS).update(&config.ifindex, &number, Update::Any)?)
    }

    /// Replaces the program's configuration of a port, and invalidates cached routes.
    pub(super) fn configure(
        &self,
        port: PortId,
        config: &PortConfig,
    ) -> Result<(), FrontDoorError> {
        self.maps.get(PORTS).update(&u32::from(port.0), config, Update::Any)?;
        self.maps.invalidate();
        Ok(())
    }

    /// Returns a port's configuration; `None` when there is no such port.
    pub(super) fn config(&self, port: PortId) -> Result<Option<PortConfig>, FrontDoorError> {
        Ok(self.maps.get(PORTS).lookup(&u32::from(port.0))?)
    }

    /// Returns the link of the program on a port's device.
    pub(super) fn link(&self, port: PortId) -> Option<&Link> {
        self.links.get(&port).map(|[.., xdp]| xdp)
    }

    /// Detaches the programs of a port.
    pub(super) fn detach(&mut self, port: PortId, ifindex: u32) -> Result<(), FrontDoorError> {
        let number = u32::from(port.0);
        self.maps.get(EGRESS).delete(&ifindex)?;
        self.maps.get(DEVICES).delete(&number)?;
        self.maps.get(PORTS).update(&number, &PortConfig::default(), Update::Any)?;
        if let Some(links) = self.links.remove(&port) {
            for (link, pin) in links.into_iter().zip(self.link_pins(port)).rev() {
                drop(link);
                pin::unpin(&pin)?;
            }
            pin::unpin(&self.door_pin(port))?;
        }
        self.maps.invalidate();
        Ok(())
    }

    /// Replaces the VLAN devices on top of the ports.
    pub(super) fn set_vlans(&mut self, devices: &[VlanDevice]) -> Result<(), FrontDoorError> {
        let map = self.maps.get(VLANS);
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
        self.maps.invalidate();
        Ok(())
    }

    /// Replaces the IPv4 addresses of this machine.
    pub(super) fn set_own(&self, prefixes: &BTreeSet<OwnPrefix>) -> Result<(), FrontDoorError> {
        let map = self.maps.get(OWN);
        let known: BTreeSet<OwnPrefix> = map.keys()?.into_iter().collect();
        // An address that stays is present all the time.
        for gone in known.difference(prefixes) {
            map.delete(gone)?;
        }
        for new in prefixes.difference(&known) {
            map.update(new, &0u32, Update::Any)?;
        }
        self.maps.invalidate();
        Ok(())
    }

    /// Redirects packets of a queue to a socket, or with `None` to none.
    pub(super) fn set_socket(
        &self,
        port: PortId,
        queue: u32,
        socket: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontDoorError> {
        let index = u32::from(port.0) * QUEUES_MAX as u32 + queue;
        let sockets = self.maps.get(SOCKETS);
        match socket {
            Some(fd) => sockets.update(&index, &(fd.as_raw_fd() as u32), Update::Any)?,
            None => drop(sockets.delete(&index)?),
        }
        Ok(())
    }

    /// Returns a port's counters, summed over the CPUs.
    pub(super) fn stats(&self, port: PortId) -> Result<PortStats, FrontDoorError> {
        let values = self.maps.get(PORT_STATS).lookup_percpu(&u32::from(port.0))?;
        Ok(values.unwrap_or_default().into_iter().fold(PortStats::default(), sum_stats))
    }

    /// Returns the pins of a port's links, in the order in which they are attached.
    fn link_pins(&self, port: PortId) -> [PathBuf; 3] {
        ["egress", "tcx", "link"].map(|kind| self.folder.join(format!("{kind}_{port}")))
    }

    /// Returns the pin of a port's copy of the program: the device may have the one with taps.
    fn door_pin(&self, port: PortId) -> PathBuf {
        self.folder.join(format!("door_{port}"))
    }
}

fn sum_stats(mut sum: PortStats, one: PortStats) -> PortStats {
    sum.rx_packets += one.rx_packets;
    sum.rx_bytes += one.rx_bytes;
    sum.cache_hits += one.cache_hits;
    for outcome in 0..OUTCOME_COUNT {
        sum.outcomes[outcome] += one.outcomes[outcome];
    }
    sum
}
