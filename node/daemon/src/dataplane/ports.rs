//! Ports made real: what a device must be like, and how it was before.

use crate::config::FastPath;
use crate::dataplane::door::Door;
use crate::dataplane::kernel_settings;
use crate::dataplane::packets;
use crate::private;
use anyhow::{Context, Result, bail};
use bpf::{AttachError, FrontDoorError, XdpMode};
use bpf_maps::{
    PORT_ACCEPTS_OWN, PORT_CABLED, PORT_GENERIC, PORT_NO_V6, PORT_RAW, PORT_TC, PortConfig,
    QUEUES_MAX, RPF_LOOSE, RPF_NONE, RPF_STRICT, SLOW_NO_REDIRECT,
};
use namespaces::sysctl;
use netlink::offload::{self, Offload, OffloadState, Restore};
use netlink::{AddressPrefix, DuplicateDetection, Link, Netlink, NetlinkError, open_ingress};
use node::{Node, Port, PortKind, PortMode, PortSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use units::{BitsPerSecond, Name, PortId};

/// What must be off where services run: a packet is one frame as on the wire,
/// tags in line and checksums complete. [`LivePort::set_gro`] is the exception.
const OFF: [Offload; 4] = [Offload::Gro, Offload::GroHw, Offload::Lro, Offload::RxVlan];

/// The kernel's name of what [`Offload::Gro`] is usually.
const GRO: &str = "rx-gro";

/// The largest MTU that all levels serve: five frames of packet memory, and the node's own
/// devices, have room for it.
pub(crate) const MTU_MAX: u32 = 9000;

/// A port of the node, its device there or not.
#[derive(Debug)]
pub(crate) struct LivePort {
    pub(crate) port: Port,
    /// All zero while it is away.
    pub(crate) config: PortConfig,
    pub(crate) driver: String,
    pub(crate) queues: u32,
    /// The port at the other end of its bridge.
    pub(crate) bridge: Option<PortId>,
    pub(crate) mode: Mode,
    /// Why it is not the mode before.
    pub(crate) mode_reason: Option<String>,
    pub(crate) offloads_off: Vec<String>,
    pub(crate) away: Option<Away>,
    /// Slow reasons that an event has told of.
    pub(crate) slow_told: u32,
    /// What sockets that are closed had dropped: ring full, and the rest.
    pub(crate) socket_drops: (u64, u64),
    /// Of its device first, then of those below it.
    restore: Vec<Undo>,
}

/// How packets come in by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Native,
    Generic,
    Tc,
    Packet,
}

impl Mode {
    /// In a word.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
            Self::Packet => "packet",
        }
    }

    /// What it costs.
    pub(crate) const fn cost(self) -> &'static str {
        match self {
            Self::Native => "nothing",
            Self::Generic => "each packet has a socket buffer, and often a copy, before it is seen",
            Self::Tc => "services of streams only, and no fast path",
            Self::Packet => {
                "each packet is copied to the cell, and back into the kernel if no service has it; there is no fast path and no flow cache, and services run at user level only"
            }
        }
    }
}

impl From<XdpMode> for Mode {
    fn from(mode: XdpMode) -> Self {
        match mode {
            XdpMode::Native => Self::Native,
            XdpMode::Generic => Self::Generic,
        }
    }
}

/// What was changed on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Undo {
    #[serde(flatten)]
    offloads: Restore,
    /// It was made to take frames that are addressed to others.
    #[serde(default)]
    promiscuous: bool,
    /// It was made.
    #[serde(default)]
    made: bool,
    /// The number of the packet port's device, whose ingress may be closed.
    #[serde(default)]
    closes: Option<u32>,
}

impl Undo {
    /// The device's name when that was.
    pub(crate) fn device(&self) -> &str {
        self.offloads.device()
    }

    /// Whether it did what the kernel calls so.
    fn did(&self, feature: &str) -> bool {
        self.offloads.features().iter().any(|name| name == feature)
    }

    /// Switches off what must be off on a device.
    fn of(device: &str) -> Result<Self> {
        Self::without(device, &OFF)
    }

    /// Switches these off.
    fn without(device: &str, off: &[Offload]) -> Result<Self> {
        let offloads = offload::disable(device, off)
            .with_context(|| format!("switching offloads of {device} off"))?;
        Ok(Self { offloads, promiscuous: false, made: false, closes: None })
    }

    /// Puts back what was; the device may have another name by now.
    fn undo_as(&self, netlink: &Netlink, device: &str) -> Result<()> {
        if let Some(index) = self.closes {
            open_ingress(index)?;
        }
        if self.made {
            return Ok(netlink.delete_link(netlink.link(device)?.index)?);
        }
        if self.promiscuous {
            netlink.set_promiscuous(netlink.link(device)?.index, false)?;
        }
        Ok(self.offloads.restore_as(device)?)
    }
}

/// Why a port is not served at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    pub(crate) reason: String,
    /// The device, by index and MTU, with which it was tried in vain.
    pub(crate) tried: Option<(u32, u32)>,
}

/// The file that remembers what was changed on devices, for after a crash.
fn restore_file(node: &Name) -> PathBuf {
    crate::run_directory(node).join("restore.json")
}

/// Whether a device has somebody else's XDP program: then it is theirs.
fn is_taken(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<FrontDoorError>();
    matches!(error, Some(FrontDoorError::Attach(AttachError::Busy { .. })))
}

impl LivePort {
    /// Makes a device ready and puts the front door on it; what fails changes nothing.
    pub(crate) fn attach(
        netlink: &Netlink,
        door: &mut Door,
        port: Port,
        bridge: Option<PortId>,
    ) -> Result<Self> {
        let mut port = Self::prepare(netlink, port, bridge)?;
        let spec = port.port.spec.clone();
        match port.attach_in_some_way(netlink, door) {
            Ok(()) => {
                // It may have got another address since: what is for that one would be the
                // kernel's.
                if port.mode != Mode::Packet && port.refresh(&netlink.link(&spec.device)?) {
                    door.configure(port.port.id, &port.config)?;
                }
                if let Some(reason) = &port.mode_reason {
                    let (port, mode, cost) = (&spec.name, port.mode.name(), port.mode.cost());
                    tracing::warn!(%port, mode, reason, cost, "a fallback");
                }
                Ok(port)
            }
            Err(error) => {
                port.restore_as(netlink, &spec.device);
                Err(error).with_context(|| format!("port '{}' on {}", spec.name, spec.device))
            }
        }
    }

    /// The best way first: XDP in the driver, XDP in the stack, packet sockets.
    fn attach_in_some_way(&mut self, netlink: &Netlink, door: &mut Door) -> Result<()> {
        let modes: &[XdpMode] = match self.port.spec.mode {
            PortMode::Auto => &[XdpMode::Native, XdpMode::Generic],
            PortMode::Native => &[XdpMode::Native],
            PortMode::Generic => &[XdpMode::Generic],
            PortMode::Tc => return self.attach_at_tc(door),
            PortMode::Packet => return packets::serve(netlink, door, self),
        };
        let id = self.port.id;
        match door.attach(id, &self.config, modes) {
            Ok((mode, refused)) => {
                self.mode = mode.into();
                self.mode_reason = refused;
                if mode == XdpMode::Generic {
                    self.config.flags |= PORT_GENERIC;
                    door.configure(id, &self.config)?;
                }
                Ok(())
            }
            Err(error) if Self::may_be_packets(&self.port.spec) && !is_taken(&error) => {
                let reason = format!("{error:#}");
                packets::serve(netlink, door, self)
                    .with_context(|| format!("{reason}; and as a packet port"))?;
                self.mode_reason = Some(reason);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Behind the kernel's receive path, where packets come as the stack has them.
    fn attach_at_tc(&mut self, door: &mut Door) -> Result<()> {
        self.mode = Mode::Tc;
        self.config.flags |= PORT_TC;
        door.attach_tc(self.port.id, &self.config)
    }

    /// Whether a port may be one of packet sockets.
    pub(crate) fn may_be_packets(spec: &PortSpec) -> bool {
        let asked = matches!(spec.mode, PortMode::Auto | PortMode::Packet);
        asked && spec.kind == PortKind::Device
    }

    /// Remembers the device by which frames go back to the kernel: it is to be removed, and the
    /// ingress of the port's own device opened.
    pub(crate) fn made_way_back(&mut self, device: &str) -> Result<()> {
        let undo = Undo::of(device)?;
        self.restore.push(Undo { made: true, closes: Some(self.config.ifindex), ..undo });
        Ok(())
    }

    /// Removes what was made for a device that is gone.
    pub(crate) fn remove_made(&self, netlink: &Netlink) {
        for undo in self.restore.iter().skip(1).filter(|undo| undo.made) {
            if let Err(error) = undo.undo_as(netlink, undo.device()) {
                tracing::warn!(device = undo.device(), error = format!("{error:#}"), "not removed");
            }
        }
    }

    /// Makes a device ready.
    fn prepare(netlink: &Netlink, port: Port, bridge: Option<PortId>) -> Result<Self> {
        Self::take(netlink, port, bridge, None)
    }

    /// Takes over a device that a daemon before made ready; `before` is how it was then.
    pub(crate) fn adopt(
        netlink: &Netlink,
        port: Port,
        bridge: Option<PortId>,
        before: Vec<Undo>,
    ) -> Result<Self> {
        Self::take(netlink, port, bridge, Some(before))
    }

    fn take(
        netlink: &Netlink,
        port: Port,
        bridge: Option<PortId>,
        before: Option<Vec<Undo>>,
    ) -> Result<Self> {
        let device = port.spec.device.clone();
        let wanted = before.is_none() && port.spec.kind == PortKind::Tun;
        let made = wanted && is_missing(netlink, &device);
        if made {
            sockets::tun::create_lasting(&device, sockets::tun::Kind::Packets).with_context(
                || format!("making the TUN device {device} (is /dev/net/tun there?)"),
            )?;
        }
        let link = netlink.link(&device).with_context(|| format!("port '{}'", port.spec.name))?;
        if let Some(reason) = unfit(&link, port.spec.kind) {
            bail!("port '{}': {reason}", port.spec.name);
        }
        // Without the driver's word every queue that the device was made with counts.
        let queues = offload::channels(&device).map_or(link.rx_queues, |c| c.rx).max(1);
        if queues as usize > QUEUES_MAX {
            bail!(
                "port '{}': {device} has {queues} receive queues, a port has at most {QUEUES_MAX}; 'ethtool -L {device} combined {QUEUES_MAX}' sets fewer",
                port.spec.name
            );
        }
        if !link.up {
            netlink.set_up(link.index).with_context(|| format!("setting {device} up"))?;
        }
        let restore = match before {
            Some(before) => before,
            // The stack has packets there as it always has.
            None if port.spec.mode == PortMode::Tc => vec![Undo::without(&device, &[])?],
            None => switch_off(netlink, &link, made, bridge.is_some())?,
        };
        let mut offloads_off =
            restore.first().map_or_else(Vec::new, |undo| undo.offloads.features().to_vec());
        // A daemon before may have had segments joined.
        let now_on = OffloadState::read(&device).map_or_else(|_| Vec::new(), |state| state.active);
        offloads_off.retain(|name| !now_on.contains(name));
        let driver = offload::driver(&device).unwrap_or_else(|_| "unknown".to_owned());
        Ok(Self {
            config: describe(&link, bridge, port.spec.kind),
            driver,
            queues,
            bridge,
            mode: Mode::Native,
            mode_reason: None,
            offloads_off,
            away: None,
            slow_told: 0,
            socket_drops: (0, 0),
            restore,
            port,
        })
    }

    /// Goes on as the front door has it.
    pub(crate) fn take_up(&mut self, config: &PortConfig) {
        self.config.flags = config.flags;
        self.config.slow = config.slow;
        self.slow_told = config.slow;
        if config.flags & PORT_TC != 0 {
            self.mode = Mode::Tc;
        }
        if config.flags & PORT_GENERIC != 0 {
            self.mode = Mode::Generic;
            self.mode_reason = Some("as the daemon before found".to_owned());
        }
    }

    /// Has the kernel join segments of TCP for its stack, or not: where the device did so before
    /// it was a port, and the front door sees each frame before that.
    pub(crate) fn set_gro(&mut self, on: bool) {
        let did = self.restore.first().is_some_and(|undo| undo.did(GRO));
        let off = self.offloads_off.iter().position(|name| name == GRO);
        if off.is_some() != on || !did || self.mode != Mode::Native || self.away.is_some() {
            return;
        }
        let device = &self.port.spec.device;
        let set = if on { offload::enable } else { offload::disable };
        // What it did before it was a port is remembered already.
        if let Err(error) = set(device, &[Offload::Gro]).map(drop) {
            return tracing::warn!(%error, on, "segments of TCP are joined as before");
        }
        match off {
            Some(at) => drop(self.offloads_off.remove(at)),
            None => self.offloads_off.push(GRO.to_owned()),
        }
    }

    /// Why services cannot run at kernel level where this port is.
    pub(crate) fn not_at_kernel(&self) -> Option<String> {
        let name = &self.port.spec.name;
        let kind = match self.config.flags {
            flags if flags & PORT_RAW != 0 => "TUN",
            flags if flags & PORT_GENERIC != 0 => "generic",
            _ => return None,
        };
        Some(format!("tc may see packets of the {kind} port '{name}' without an Ethernet header"))
    }

    /// A port without a device from the beginning.
    pub(crate) fn absent(port: Port, bridge: Option<PortId>, reason: String) -> Self {
        let (config, driver) = (PortConfig::default(), "unknown".to_owned());
        let away = Some(Away { reason, tried: None });
        Self {
            port,
            config,
            driver,
            queues: 0,
            bridge,
            mode: Mode::Native,
            mode_reason: None,
            offloads_off: Vec::new(),
            away,
            slow_told: 0,
            socket_drops: (0, 0),
            restore: Vec::new(),
        }
    }

    /// The port without its device.
    pub(crate) fn leave(&mut self, reason: String, tried: Option<(u32, u32)>) {
        self.config = PortConfig::default();
        self.offloads_off.clear();
        self.restore.clear();
        self.away = Some(Away { reason, tried });
    }

    /// Gives the device back what it was like, whatever it is called now.
    pub(crate) fn restore_as(&self, netlink: &Netlink, device: &str) {
        for (at, undo) in self.restore.iter().enumerate() {
            let device = if at == 0 { device } else { undo.offloads.device() };
            if let Err(error) = undo.undo_as(netlink, device) {
                tracing::warn!(device, error = format!("{error:#}"), "the device was not restored");
            }
        }
    }

    /// Looks at the device again: true when something changed.
    pub(crate) fn refresh(&mut self, link: &Link) -> bool {
        let now = describe(link, self.bridge, self.port.spec.kind);
        let judged = PORT_NO_V6 | PORT_ACCEPTS_OWN;
        let flags = self.config.flags & !judged | now.flags & judged;
        let config = PortConfig { slow: self.config.slow, flags, ..now };
        let changed = config != self.config;
        self.config = config;
        changed
    }

    /// What the port sends in a second: as the node file says, else as the driver does.
    pub(crate) fn rate(&self) -> Option<BitsPerSecond> {
        let spec = &self.port.spec;
        spec.rate.or_else(|| offload::speed(&spec.device).ok().flatten())
    }

    /// The port's numbers as the cell needs them.
    pub(crate) fn facts(&self, queue: u32) -> cell::protocol::PortFacts {
        cell::protocol::PortFacts {
            port: self.port.id,
            name: self.port.spec.name.to_string(),
            ifindex: self.config.ifindex,
            queue,
            mac: self.config.mac,
            mtu: self.config.mtu,
            raw: self.config.flags & PORT_RAW != 0,
            cabled: self.config.flags & PORT_CABLED != 0,
            in_driver: self.mode == Mode::Native,
            rate: self.rate(),
        }
    }
}

/// The devices whose packets come to this one: those of a bridge or bond, and the one that a
/// macvlan or VLAN device lies on.
fn below<'a>(link: &Link, links: &'a [Link]) -> Vec<&'a Link> {
    let lies_on = |other: &Link| {
        let beside = link.kind.as_deref() == Some("veth") || link.parent_elsewhere;
        link.parent == Some(other.index) && !beside
    };
    links.iter().filter(|other| other.master == Some(link.index) || lies_on(other)).collect()
}

/// Makes frames of a device, and of those below it, whole; what is to be undone.
fn switch_off(netlink: &Netlink, link: &Link, made: bool, is_bridged: bool) -> Result<Vec<Undo>> {
    let mut first = Undo::of(&link.name)?;
    first.made = made;
    let mut restore = vec![first];
    // What is joined below a device comes to it joined.
    for below in below(link, &netlink.links()?) {
        restore.push(Undo::of(&below.name)?);
    }
    if is_bridged && !link.promiscuous {
        netlink.set_promiscuous(link.index, true)?;
        restore[0].promiscuous = true;
    }
    Ok(restore)
}

/// Why a device cannot be a port as it is now.
pub(crate) fn unfit(link: &Link, kind: PortKind) -> Option<String> {
    let device = &link.name;
    match (kind, link.mac) {
        (PortKind::Device, None) => {
            return Some(format!(
                "the device {device} has no Ethernet address; a TUN device is a port with kind = \"tun\""
            ));
        }
        (PortKind::Tun, Some(_)) => {
            return Some(format!(
                "{device} is there and is no TUN device: it has an Ethernet address"
            ));
        }
        _ => {}
    }
    (link.mtu > MTU_MAX).then(|| {
        format!(
            "{device} has an MTU of {}, a port has at most {MTU_MAX}; 'ip link set dev {device} mtu {MTU_MAX}' sets it",
            link.mtu
        )
    })
}

fn is_missing(netlink: &Netlink, device: &str) -> bool {
    matches!(netlink.link(device), Err(NetlinkError::NoDevice { .. }))
}

fn describe(link: &Link, bridge: Option<PortId>, kind: PortKind) -> PortConfig {
    let (rpf, judged) = judged_there(link);
    PortConfig {
        ifindex: link.index,
        // The rest is found out when everything is looked at next; this would lose packets at once.
        slow: if bpf::takes_redirects(link.index) { 0 } else { SLOW_NO_REDIRECT },
        mac: link.mac.unwrap_or_default(),
        rpf,
        flags: if kind == PortKind::Tun { PORT_RAW | judged } else { judged },
        mtu: link.mtu,
        bridge: bridge.map_or(0, |other| u32::from(other.0) + 1),
    }
}

/// How packets are judged that come in by a device, a port's or a VLAN device above it: the reverse
/// path filter, [`PORT_NO_V6`] where IPv6 is not forwarded, and [`PORT_ACCEPTS_OWN`] where packets
/// from the machine's own IPv4 addresses may come in.
pub(crate) fn judged_there(link: &Link) -> (u8, u8) {
    let rpf = match kernel_settings::reverse_path_filter(&link.settings) {
        0 => RPF_NONE,
        1 => RPF_STRICT,
        _ => RPF_LOOSE,
    };
    let no_v6 = if kernel_settings::forwards_v6(&link.settings) { 0 } else { PORT_NO_V6 };
    let accepts = if kernel_settings::accepts_own(&link.settings) { PORT_ACCEPTS_OWN } else { 0 };
    (rpf, no_v6 | accepts)
}

/// Writes down what [`restore`] must do should this process die.
pub(crate) fn remember(node: &Name, ports: &[LivePort]) -> Result<()> {
    let all: Vec<&Undo> = ports.iter().flat_map(|p| &p.restore).collect();
    let path = restore_file(node);
    let mut file = private::create(&path).with_context(|| format!("making {}", path.display()))?;
    file.write_all(&serde_json::to_vec(&all)?)
        .with_context(|| format!("writing {}", path.display()))
}

/// What a daemon before wrote down.
pub(crate) fn remembered(node: &Name) -> Result<Vec<Undo>> {
    let path = restore_file(node);
    let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("reading {}", path.display()))
}

/// Gives every device back what it was like.
pub(crate) fn restore(netlink: &Netlink, ports: &[LivePort]) {
    ports.iter().for_each(|port| port.restore_as(netlink, &port.port.spec.device));
}

/// Restores what a dead node changed; the devices' names.
pub(crate) fn restore_left_over(node: &Name) -> Result<Vec<String>> {
    let path = restore_file(node);
    let Ok(bytes) = std::fs::read(&path) else { return Ok(Vec::new()) };
    let all: Vec<Undo> = serde_json::from_slice(&bytes)
        .with_context(|| format!("reading what a dead node left in {}", path.display()))?;
    let netlink = Netlink::open().context("opening netlink")?;
    let mut restored = Vec::new();
    for one in all {
        let device = one.offloads.device().to_owned();
        // The device may be gone with its namespace.
        if one.undo_as(&netlink, &device).is_ok() {
            restored.push(device);
        }
    }
    std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    Ok(restored)
}

/// MTU of the node's own devices: above every port's, with metadata in front.
pub(crate) const DEVICE_MTU: u32 = 9216;

/// Letters of a node's name that a device's name has room for, behind a prefix of four.
const NODE_IN_DEVICE: usize = 11;
/// Of those, what tells apart nodes whose longer names begin alike.
const DIGEST_IN_DEVICE: usize = 5;

/// The name of a device of the node's own.
pub(crate) fn device_name(prefix: &str, node: &Name) -> String {
    let node = node.as_str();
    if node.len() <= NODE_IN_DEVICE {
        return format!("{prefix}-{node}");
    }
    let digest = module_store::Digest::of(node.as_bytes()).hex();
    let head = &node[..NODE_IN_DEVICE - DIGEST_IN_DEVICE];
    format!("{prefix}-{head}{}", &digest[..DIGEST_IN_DEVICE])
}

/// Prefix of the device by which packets go from the cell to the kernel.
pub(crate) const KERNEL_DEVICE: &str = "tam";

/// Sets what a kernel need not have.
pub(crate) fn set_if_there(key: &str, value: &str) {
    if let Err(error) = sysctl::write(key, value) {
        tracing::debug!(%error, "no such setting");
    }
}

/// The index of the TAP device that [`up_device`] makes.
pub(crate) fn up_index(netlink: &Netlink, node: &Name) -> Result<u32> {
    Ok(netlink.link(&device_name("tup", node))?.index)
}

/// The index of the TUN device that [`kernel_device`] makes.
pub(crate) fn kernel_index(netlink: &Netlink, node: &Name) -> Result<u32> {
    Ok(netlink.link(&device_name(KERNEL_DEVICE, node))?.index)
}

/// Whoever had a device of the node's before, a daemon that hands over or its cell, has ended
/// within this.
const DEVICE_FREE_WITHIN: Duration = Duration::from_secs(5);

/// Makes a device that the node itself has, when nobody holds one of that name any more.
fn own_device(name: &str, kind: sockets::tun::Kind) -> std::io::Result<std::os::fd::OwnedFd> {
    let begun = Instant::now();
    loop {
        match sockets::tun::create(name, kind) {
            Err(error)
                if error.kind() == std::io::ErrorKind::ResourceBusy
                    && begun.elapsed() < DEVICE_FREE_WITHIN =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            made => return made,
        }
    }
}

/// The device through which the cell hands packets to the kernel.
pub(crate) fn kernel_device(netlink: &Netlink, node: &Name) -> Result<std::os::fd::OwnedFd> {
    let device = device_name(KERNEL_DEVICE, node);
    let fd = own_device(&device, sockets::tun::Kind::Packets)
        .with_context(|| format!("making the TUN device {device}"))?;
    let index = netlink.link(&device)?.index;
    takes_foreign_sources(netlink, &device, index)?;
    netlink.set_mtu(index, DEVICE_MTU)?;
    netlink.set_up(index)?;
    Ok(fd)
}

/// Address of the device by which packets go from the cell to the kernel: of this machine alone,
/// and nobody sends from it. Without one, a loose reverse path filter lets nothing in whose route
/// back is by another device (`__fib_validate_source`, Linux).
const KERNEL_DEVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 84, 65, 77);

/// Prepares a device by which packets come in from foreign sources.
pub(crate) fn takes_foreign_sources(netlink: &Netlink, device: &str, index: u32) -> Result<()> {
    set_if_there(&format!("net/ipv6/conf/{device}/addr_gen_mode"), "1");
    let address = AddressPrefix::new(KERNEL_DEVICE_ADDRESS.into(), 32);
    let address = address.context("an address of the node's device")?;
    if let Err(error) = netlink.add_address(index, address, DuplicateDetection::Skip) {
        tracing::warn!(device, %error, "with a loose rp_filter the kernel drops what it is given there");
    }
    kernel_settings::let_in_sources(device);
    Ok(())
}

/// The device by which packets come up to the cell from modules at kernel level; its index,
/// and the end that the cell reads.
pub(crate) fn up_device(netlink: &Netlink, node: &Name) -> Result<(u32, std::os::fd::OwnedFd)> {
    let device = device_name("tup", node);
    let fd = own_device(&device, sockets::tun::Kind::Frames)
        .with_context(|| format!("making the TAP device {device}"))?;
    // The kernel says nothing of its own there.
    set_if_there(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1");
    let link = netlink.link(&device)?;
    netlink.set_mtu(link.index, DEVICE_MTU)?;
    netlink.set_no_queue(link.index)?;
    // It is one of the rings that hold what waits for sessions.
    netlink.set_queue_length(link.index, cell::PacketMemory::WAITING_MAX)?;
    netlink.set_up(link.index)?;
    Ok((link.index, fd))
}

/// Whether the kernel would add something, for all ports and for each one.
/// Of the latter are queueing disciplines of VLAN devices above the port, which come behind its
/// device.
pub(crate) fn slow_reasons(
    netlink: &Netlink,
    fast_path: FastPath,
) -> impl Fn(u32, &[u32]) -> u32 + use<> {
    use bpf_maps::{
        SLOW_IPSEC, SLOW_NETFILTER, SLOW_NO_REDIRECT, SLOW_OPERATOR, SLOW_QDISC, SLOW_RULES,
    };
    let mut all = 0;
    let mut set = |flag: u32, found: bool| all |= if found { flag } else { 0 };
    let mut qdiscs = Vec::new();
    match fast_path {
        FastPath::Always => {}
        FastPath::Never => set(SLOW_OPERATOR, true),
        FastPath::Auto => {
            // What cannot be found out counts as "it would": correct before fast.
            set(SLOW_NETFILTER, netlink::netfilter_in_use().unwrap_or(true));
            set(SLOW_IPSEC, Netlink::ipsec_in_use().unwrap_or(true));
            set(SLOW_RULES, netlink.extra_rules().map_or(true, |count| count > 0));
            let found = netlink.qdiscs().unwrap_or_default();
            qdiscs = found.into_iter().filter(|q| !q.is_default).map(|q| q.index).collect();
        }
    }
    move |ifindex, above| {
        let has_qdisc = |device: &u32| qdiscs.contains(device);
        let qdisc = if has_qdisc(&ifindex) || above.iter().any(has_qdisc) { SLOW_QDISC } else { 0 };
        let redirect = if bpf::takes_redirects(ifindex) { 0 } else { SLOW_NO_REDIRECT };
        all | qdisc | redirect
    }
}

/// What keeps plain forwarding of a port off the fast path, in words.
pub(crate) fn slow_reasons_of(port: &LivePort) -> Vec<String> {
    match port.mode {
        Mode::Packet => vec!["its packets come by a packet socket".to_owned()],
        Mode::Tc => vec!["its mode is \"tc\": packets are in the stack already".to_owned()],
        Mode::Native | Mode::Generic => slow_words(port.config.slow),
    }
}

/// Slow reasons in words.
pub(crate) fn slow_words(slow: u32) -> Vec<String> {
    use bpf_maps::{
        SLOW_IPSEC, SLOW_NETFILTER, SLOW_NO_REDIRECT, SLOW_OPERATOR, SLOW_QDISC, SLOW_RULES,
    };
    let words = [
        (SLOW_NETFILTER, "netfilter hooks are registered"),
        (SLOW_IPSEC, "IPsec policies exist"),
        (SLOW_RULES, "routing rules beside the standard ones exist"),
        (SLOW_QDISC, "the port has a queueing discipline"),
        (SLOW_OPERATOR, "fast_path = \"never\""),
        (
            SLOW_NO_REDIRECT,
            "the device takes no redirected frames (a veth does when its other end has GRO on, or an XDP program)",
        ),
    ];
    words.iter().filter(|(flag, _)| slow & flag != 0).map(|(_, word)| (*word).to_owned()).collect()
}

/// Checks that the devices of all ports are here, but for those that the node makes itself, and
/// that each can be a port.
///
/// # Errors
/// The first one that is not: the node file is another network namespace's, say.
pub(crate) fn check_there(ports: &[PortSpec]) -> Result<()> {
    let netlink = Netlink::open().context("opening netlink")?;
    for port in ports {
        if port.kind == PortKind::Tun && is_missing(&netlink, &port.device) {
            continue;
        }
        let link = netlink.link(&port.device).with_context(|| format!("port '{}'", port.name))?;
        if let Some(reason) = unfit(&link, port.kind) {
            bail!("port '{}': {reason}", port.name);
        }
    }
    Ok(())
}

/// Attaches the front door to every port; all of them or none.
pub(crate) fn bring_up(
    netlink: &Netlink,
    front: &mut Door,
    node: &Node,
    ends: &BTreeMap<PortId, PortId>,
) -> Result<Vec<LivePort>> {
    let mut live: Vec<LivePort> = Vec::new();
    for port in node.ports() {
        let end = ends.get(&port.id).copied();
        let attached = LivePort::attach(netlink, front, port.clone(), end);
        match attached {
            Ok(port) => live.push(port),
            Err(error) => {
                restore(netlink, &live);
                return Err(error);
            }
        }
    }
    Ok(live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_fit_and_tell_nodes_apart() {
        let name = |text: &str| device_name("tam", &text.parse().unwrap());
        assert_eq!(name("edge"), "tam-edge");
        assert_eq!(name("elevenchars"), "tam-elevenchars");
        let (first, second) = (name("edge-router-1"), name("edge-router-2"));
        assert!(first.starts_with("tam-edge-r") && first != second, "{first} {second}");
        // IFNAMSIZ, with the zero at the end.
        assert_eq!((first.len(), second.len()), (15, 15));
    }
}
