//! Port of a node: its device as a service needs it, how it was before, and what is known of it
//! while it is served or away.
//!
//! ```text
//!  device ─▶ offloads off ─▶ XDP in the driver ─▶ in the stack ─▶ packet sockets: LivePort
//!     ▲                                                                             │
//!     └───────────────────────────── Undo ──────────────────────────────────────────┘
//! ```

use super::door::Door;
use super::mode::{Mode, may_be_packets};
use super::requirements;
use super::undo::{Undo, switch_off};
use super::way_back;
use crate::events::Note;
use anyhow::{Context, Result, bail};
use api::EventKind;
use bpf::{AttachError, FrontDoorError, XdpMode};
use bpf_maps::{
    PORT_ACCEPTS_OWN, PORT_CABLED, PORT_GENERIC, PORT_NO_V6, PORT_PACKET, PORT_RAW, PORT_SHARES,
    PORT_TC, PortConfig, QUEUES_MAX, SLOW_NO_REDIRECT,
};
use cell::protocol::CellPort;
use netlink::offload::{self, Offload, OffloadState};
use netlink::{Link, Netlink};
use node::{Port, PortKind, PortMode, PortSpec};
use units::{BitsPerSecond, Name, PortId};

/// The kernel's usual name of [`Offload::Gro`].
const GRO: &str = "rx-gro";

/// Port of the node, with its device or without.
#[derive(Debug)]
pub(crate) struct LivePort {
    port: Port,
    /// Configuration for the front door; all zero while the port is away.
    config: PortConfig,
    driver: String,
    queues: u32,
    /// Port at the other end of its bridge.
    bridge: Option<PortId>,
    mode: Mode,
    /// Reason for the mode not being the one before it.
    mode_reason: Option<String>,
    offloads_off: Vec<String>,
    away: Option<Away>,
    /// Slow reasons that an event has reported.
    slow_told: u32,
    /// Drops of sockets that are closed: ring full, and the rest.
    socket_drops: (u64, u64),
    /// Changes of its device first, then of those below it.
    restore: Vec<Undo>,
}

/// Device with which a port was tried in vain, by index and MTU.
pub(super) type Tried = Option<(u32, u32)>;

/// Reason for a port not being served at the moment.
#[derive(Clone, Debug)]
struct Away {
    reason: String,
    tried: Tried,
}

/// Findings about the slow reasons of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slowed {
    /// Set if the front door must be updated.
    pub(super) is_changed: bool,
    /// True when an event is to be reported.
    pub(super) is_news: bool,
}

/// Returns true if a device has an XDP program of another owner, who keeps it.
fn is_taken(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<FrontDoorError>();
    matches!(error, Some(FrontDoorError::Attach(AttachError::Busy { .. })))
}

impl LivePort {
    /// Makes a device ready and puts the front door on it; what fails changes nothing.
    pub(super) fn attach(
        netlink: &Netlink,
        door: &mut Door,
        port: Port,
        bridge: Option<PortId>,
    ) -> Result<Self> {
        let mut port = Self::take(netlink, port, bridge, None)?;
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
                    tracing::warn!(%port, mode, reason, cost, "the port runs in a slower mode than native XDP");
                }
                Ok(port)
            }
            Err(error) => {
                port.restore_as(netlink, &spec.device);
                Err(error).with_context(|| format!("port '{}' on {}", spec.name, spec.device))
            }
        }
    }

    /// Serves the port in the best mode that goes: XDP in the driver, XDP in the stack, packet
    /// sockets.
    fn attach_in_some_way(&mut self, netlink: &Netlink, door: &mut Door) -> Result<()> {
        let modes: &[XdpMode] = match self.port.spec.mode {
            PortMode::Auto => &[XdpMode::Native, XdpMode::Generic],
            PortMode::Native => &[XdpMode::Native],
            PortMode::Generic => &[XdpMode::Generic],
            PortMode::Tc => return self.attach_at_tc(door),
            PortMode::Packet => return self.serve_by_packets(netlink, door),
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
            Err(error) if may_be_packets(&self.port.spec) && !is_taken(&error) => {
                let reason = format!("{error:#}");
                self.serve_by_packets(netlink, door)
                    .with_context(|| format!("{reason}; and as a packet port"))?;
                self.mode_reason = Some(reason);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Serves the port behind the kernel's receive path, where packets come as the stack has them.
    fn attach_at_tc(&mut self, door: &mut Door) -> Result<()> {
        self.mode = Mode::Tc;
        self.config.flags |= PORT_TC;
        door.attach_tc(self.port.id, &self.config)
    }

    /// Serves the port by packet sockets.
    fn serve_by_packets(&mut self, netlink: &Netlink, door: &mut Door) -> Result<()> {
        door.use_packets()?;
        let made = way_back::make(netlink, self.config.ifindex, self.config.mac)
            .context("making the path back into the kernel")?;
        self.restore.push(Undo::of_made(&made, self.config.ifindex)?);
        self.queues = 1;
        self.mode = Mode::Packet;
        // XDP in a driver does not send there; what cuts through crosses at tc.
        self.config.flags |= PORT_PACKET;
        self.config.slow = SLOW_NO_REDIRECT;
        Ok(door.know_packet_port(self.port.id, &self.config)?)
    }

    /// Removes what was made for a device that is gone.
    pub(super) fn remove_made(&self, netlink: &Netlink) {
        for undo in self.restore.iter().skip(1).filter(|undo| undo.is_made()) {
            if let Err(error) = undo.undo_as(netlink, undo.device()) {
                tracing::warn!(
                    device = undo.device(),
                    error = format!("{error:#}"),
                    "a device that the node had made was not removed: remove it with `ip link delete`"
                );
            }
        }
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

    /// Makes a device ready, or takes over one that is.
    fn take(
        netlink: &Netlink,
        port: Port,
        bridge: Option<PortId>,
        before: Option<Vec<Undo>>,
    ) -> Result<Self> {
        let device = port.spec.device.clone();
        let wanted = before.is_none() && port.spec.kind == PortKind::Tun;
        let made = wanted && requirements::is_missing(netlink, &device);
        if made {
            sockets::tun::create_lasting(&device, sockets::tun::Kind::Packets).with_context(
                || format!("making the TUN device {device} (is /dev/net/tun there?)"),
            )?;
        }
        let link = netlink.link(&device).with_context(|| format!("port '{}'", port.spec.name))?;
        if let Err(unfit) = requirements::check_fit(&link, port.spec.kind) {
            bail!("port '{}': {unfit}", port.spec.name);
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
            restore.first().map_or_else(Vec::new, |undo| undo.features().to_vec());
        // A daemon before may have had segments joined.
        let now_on = OffloadState::read(&device).map_or_else(|_| Vec::new(), |state| state.active);
        offloads_off.retain(|name| !now_on.contains(name));
        let driver = offload::driver(&device).unwrap_or_else(|_| "unknown".to_owned());
        Ok(Self {
            config: requirements::port_config(&link, bridge, port.spec.kind),
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

    /// Takes over the configuration that the front door has.
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

    /// Sets whether the kernel joins segments of TCP for its stack: where the device did so before
    /// it was a port, and the front door sees each frame before that.
    pub(super) fn set_gro(&mut self, on: bool) {
        let did = self.restore.first().is_some_and(|undo| undo.did(GRO));
        let off = self.offloads_off.iter().position(|name| name == GRO);
        if off.is_some() != on || !did || self.mode != Mode::Native || self.away.is_some() {
            return;
        }
        let device = &self.port.spec.device;
        let set = if on { offload::enable } else { offload::disable };
        // What it did before it was a port is remembered already.
        if let Err(error) = set(device, &[Offload::Gro]).map(drop) {
            return tracing::warn!(%error, on, "the device's receive offload (GRO) could not be switched");
        }
        match off {
            Some(at) => drop(self.offloads_off.remove(at)),
            None => self.offloads_off.push(GRO.to_owned()),
        }
    }

    /// Returns the reason for services not being able to run at kernel level where this port is.
    pub(crate) fn not_at_kernel(&self) -> Option<String> {
        let name = &self.port.spec.name;
        let kind = match self.config.flags {
            flags if flags & PORT_RAW != 0 => "TUN",
            flags if flags & PORT_GENERIC != 0 => "generic",
            _ => return None,
        };
        Some(format!("tc may see packets of the {kind} port '{name}' without an Ethernet header"))
    }

    /// Creates a port without a device.
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

    /// Marks the port as away, with its configuration still there ([`LivePort::leave`]).
    pub(super) fn mark_away(&mut self, reason: String, tried: Tried) {
        self.away = Some(Away { reason, tried });
    }

    /// Forgets the device of a port that is away.
    pub(super) fn leave(&mut self, reason: String, tried: Tried) {
        self.config = PortConfig::default();
        self.offloads_off.clear();
        self.restore.clear();
        self.away = Some(Away { reason, tried });
    }

    /// Replaces a port that was away by one that is served; the drops of closed sockets stay
    /// counted.
    pub(super) fn come_back(&mut self, port: Self) {
        *self = Self { socket_drops: self.socket_drops, ..port };
    }

    /// Schedules another try of the device of a port that is away. Returns true if it had been
    /// tried.
    pub(super) fn try_again(&mut self) -> bool {
        self.away.as_mut().is_some_and(|away| away.tried.take().is_some())
    }

    /// Adds the drops of a socket that is closed: ring full, and the rest.
    pub(super) const fn add_drops(&mut self, drops: (u64, u64)) {
        self.socket_drops.0 += drops.0;
        self.socket_drops.1 += drops.1;
    }

    /// Sets a flag of the configuration. Returns true when that changed it.
    fn set_flag(&mut self, flag: u8, on: bool) -> bool {
        let is_changed = (self.config.flags & flag != 0) != on;
        if is_changed {
            self.config.flags ^= flag;
        }
        is_changed
    }

    /// Sets whether the port's cable leads to the node itself. Returns true when that is new.
    pub(super) fn set_cabled(&mut self, on: bool) -> bool {
        self.set_flag(PORT_CABLED, on)
    }

    /// Sets whether sessions have shares of the port. Returns true when that is new.
    pub(super) fn set_shared(&mut self, on: bool) -> bool {
        self.set_flag(PORT_SHARES, on)
    }

    /// Stores the reasons for plain forwarding of the port to go through the kernel.
    pub(super) fn set_slow(&mut self, found: u32) -> Slowed {
        // Between the two ends of a bridge there is nothing for the kernel to add.
        let found = if self.bridge.is_some() { found & SLOW_NO_REDIRECT } else { found };
        let before = std::mem::replace(&mut self.config.slow, found);
        let reported = std::mem::replace(&mut self.slow_told, found);
        // At tc nothing takes a fast path: what changes is what others may send out there.
        Slowed { is_changed: found != before, is_news: found != reported && self.mode != Mode::Tc }
    }

    /// Gives the device back what it was like, whatever it is called now.
    pub(super) fn restore_as(&self, netlink: &Netlink, device: &str) {
        for (at, undo) in self.restore.iter().enumerate() {
            let device = if at == 0 { device } else { undo.device() };
            if let Err(error) = undo.undo_as(netlink, device) {
                tracing::warn!(
                    device,
                    error = format!("{error:#}"),
                    "the device's former settings were not restored: set them by hand"
                );
            }
        }
    }

    /// Stores what the kernel says of the device now. Returns true when something changed.
    pub(super) fn refresh(&mut self, link: &Link) -> bool {
        let now = requirements::port_config(link, self.bridge, self.port.spec.kind);
        let judged = PORT_NO_V6 | PORT_ACCEPTS_OWN;
        let flags = self.config.flags & !judged | now.flags & judged;
        let config = PortConfig { slow: self.config.slow, flags, ..now };
        let changed = config != self.config;
        self.config = config;
        changed
    }

    /// Returns the port's number.
    pub(crate) const fn id(&self) -> PortId {
        self.port.id
    }

    /// Returns the port's name.
    pub(crate) const fn name(&self) -> &Name {
        &self.port.spec.name
    }

    /// Returns the port as the node file describes it.
    pub(crate) const fn spec(&self) -> &PortSpec {
        &self.port.spec
    }

    /// Returns the configuration of the front door; all zero while the port is away.
    pub(crate) const fn config(&self) -> &PortConfig {
        &self.config
    }

    /// Returns the name of the device's driver.
    pub(crate) fn driver(&self) -> &str {
        &self.driver
    }

    /// Returns the number of receive queues.
    pub(crate) const fn queues(&self) -> u32 {
        self.queues
    }

    /// Returns the port at the other end of its bridge.
    pub(crate) const fn bridge(&self) -> Option<PortId> {
        self.bridge
    }

    /// Returns the way by which its packets come in.
    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the reason for the mode not being a better one.
    pub(crate) fn mode_reason(&self) -> Option<&str> {
        self.mode_reason.as_deref()
    }

    /// Returns the offloads that are off because it is a port, by the kernel's names.
    pub(crate) fn offloads_off(&self) -> &[String] {
        &self.offloads_off
    }

    /// Returns true while the port has no device that can serve.
    pub(crate) const fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Returns the reason for the port being away.
    pub(crate) fn away_reason(&self) -> Option<&str> {
        self.away.as_ref().map(|away| away.reason.as_str())
    }

    /// Returns the device with which a port that is away was tried in vain.
    pub(super) fn tried(&self) -> Tried {
        self.away.as_ref().and_then(|away| away.tried)
    }

    /// Returns the changes of devices that are to be undone.
    pub(super) fn undo(&self) -> &[Undo] {
        &self.restore
    }

    /// Returns the drops of sockets that are closed: ring full, and the rest.
    pub(super) const fn drops_before(&self) -> (u64, u64) {
        self.socket_drops
    }

    /// Returns the rate at which the port sends: the node file's, else the driver's.
    pub(crate) fn rate(&self) -> Option<BitsPerSecond> {
        let spec = &self.port.spec;
        spec.rate.or_else(|| offload::speed(&spec.device).ok().flatten())
    }

    /// Returns the port's numbers as the cell needs them.
    pub(super) fn facts(&self, queue: u32) -> CellPort {
        CellPort {
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

    /// Returns the frames that were lost on a packet port's way back into the kernel.
    pub(crate) fn lost_on_way_back(&self, links: &[Link]) -> u64 {
        match self.mode {
            Mode::Packet => way_back::lost(self.config.ifindex, links),
            Mode::Native | Mode::Generic | Mode::Tc => 0,
        }
    }

    /// Returns the description of the port without its device, to put it into service again.
    pub(super) fn described(&self) -> Port {
        self.port.clone()
    }

    /// Returns the event that reports another address, MTU or setting of its device.
    pub(super) fn changed(&self) -> Note {
        let config = &self.config;
        let mac = config.mac.map(|byte| format!("{byte:02x}")).join(":");
        let text = format!(
            "the port's device or its settings changed: MTU {}, MAC {mac}, rp_filter {}",
            config.mtu, config.rpf
        );
        Note::new(EventKind::PortChanged, text).port(self.name())
    }

    /// Returns the event that reports a mode which is not the best one.
    pub(super) fn fallback(&self) -> Option<Note> {
        let is_packet = self.mode == Mode::Packet && !self.is_away();
        let reason = match &self.mode_reason {
            Some(reason) => reason.clone(),
            None if is_packet => "the node file says so".to_owned(),
            None => return None,
        };
        let (mode, cost) = (self.mode.name(), self.mode.cost());
        let name = &self.port.spec.name;
        let text = format!("the port '{name}' is served as {mode}: {cost}");
        Some(Note::new(EventKind::PortFallback, text).port(name).reason(reason))
    }
}

#[cfg(test)]
mod tests;
