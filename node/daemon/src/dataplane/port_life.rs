//! Ports whose devices vanish, come back, or become others.
//!
//! ```text
//!           gone, renamed, unfit (MTU)
//!  served ─────────────────────────────▶ away: nothing of the node is on the device, packets
//!    ▲                                     │   routed to it are the kernel's
//!    └─────────────────────────────────────┘
//!       a device of that name, fit: offloads, programs and sockets as at the start
//! ```
//!
//! A port is the device of its name; its number, rules and counters stay while it is away.

use crate::daemon::Daemon;
use crate::dataplane::packets;
use crate::dataplane::ports::{self, Away, LivePort, Mode};
use crate::events::Note;
use anyhow::Result;
use api::EventKind;
use cell::protocol::ToCell;
use netlink::Link;
use sockets::socket::xdp_drops;
use std::os::fd::AsFd;

impl Daemon {
    /// Looks at the device of a port, as the kernel has just described all.
    pub(crate) fn refresh_port(&mut self, index: usize, links: &[Link]) {
        let port = &mut self.plane.ports[index];
        let device = &port.port.spec.device;
        let link = links.iter().find(|link| link.name == *device);
        let here = (port.away.is_none(), port.config.ifindex);
        match link {
            None if here.0 => {
                let reason = match links.iter().find(|link| link.index == here.1) {
                    Some(link) => format!("the device {device} is called {} now", link.name),
                    None => format!("the device {device} is gone"),
                };
                self.take_away(index, reason, None, links);
            }
            None => {}
            Some(link) if here == (true, link.index) => {
                if let Some(reason) = ports::unfit(link, port.port.spec.kind) {
                    self.take_away(index, reason, Some((link.index, link.mtu)), links);
                } else if port.refresh(link) {
                    self.changed_port(index);
                }
            }
            Some(link) => {
                if here.0 {
                    let reason = format!("the device {device} is another one now");
                    self.take_away(index, reason, None, links);
                }
                let tried = self.plane.ports[index].away.as_ref().and_then(|away| away.tried);
                if tried != Some((link.index, link.mtu)) {
                    self.bring_back(index, link);
                }
            }
        }
    }

    /// Tries ports once more that are away although there is a device: what stood against
    /// it may have gone without an event.
    pub(crate) fn try_again(&mut self) -> Result<()> {
        let mut any = false;
        for port in &mut self.plane.ports {
            if let Some(away) = &mut port.away {
                any |= away.tried.take().is_some();
            }
        }
        if any {
            let links = self.plane.netlink.links()?;
            (0..self.plane.ports.len()).for_each(|index| self.refresh_port(index, &links));
            self.mark_cabled(&links);
        }
        Ok(())
    }

    /// The device has another address or MTU.
    fn changed_port(&mut self, index: usize) {
        let port = &self.plane.ports[index];
        let (id, config) = (port.port.id, port.config);
        let name = port.port.spec.name.clone();
        let mac = config.mac.map(|byte| format!("{byte:02x}")).join(":");
        let text = format!(
            "the port's device or its settings changed: MTU {}, MAC {mac}, rp_filter {}",
            config.mtu, config.rpf
        );
        self.note(Note::new(EventKind::PortChanged, text).port(&name));
        if let Err(error) = self.plane.front.configure(id, &config) {
            tracing::error!(port = %name, %error, "the front door was not told");
        }
        self.cells.tell_all(&ToCell::ChangePort(self.plane.ports[index].facts(0)), &[]);
        if self.plane.ports[index].mode == Mode::Packet
            && let Err(error) = packets::readdress(&self.plane.netlink, config.ifindex, config.mac)
        {
            let error = format!("{error:#}");
            tracing::error!(port = %name, error, "frames do not find back into the kernel");
        }
    }

    /// Nothing of the node is on the port's device any more.
    fn take_away(
        &mut self,
        index: usize,
        reason: String,
        tried: Option<(u32, u32)>,
        links: &[Link],
    ) {
        let (id, ifindex) =
            (self.plane.ports[index].port.id, self.plane.ports[index].config.ifindex);
        self.plane.ports[index].away = Some(Away { reason: reason.clone(), tried });
        // While the front door still decides: behind it the kernel would have each packet.
        self.close_ports();
        if let Err(error) = self.plane.front.detach(id, ifindex) {
            tracing::error!(port = %self.plane.ports[index].port.spec.name, %error, "not detached");
        }
        for queue in 0..self.plane.ports[index].queues {
            let Some(closed) = self.plane.sockets.remove(&(id, queue)) else { continue };
            // One that was not bound yet is not in the map.
            let _ = self.plane.front.set_socket(id, queue, None);
            if let Ok(drops) = xdp_drops(closed.socket.as_fd()) {
                let sum = &mut self.plane.ports[index].socket_drops;
                *sum = (sum.0 + drops.ring_full, sum.1 + drops.other);
            }
        }
        self.close_packets(id);
        self.cells.tell_all(&ToCell::RemovePort(id), &[]);
        let port = &mut self.plane.ports[index];
        if let Some(link) = links.iter().find(|link| link.index == ifindex) {
            port.restore_as(&self.plane.netlink, &link.name);
        } else {
            port.remove_made(&self.plane.netlink);
        }
        let text = "the port is away: packets routed to it are the kernel's";
        let name = port.port.spec.name.clone();
        let note = Note::new(EventKind::PortGone, text).port(name).reason(&reason);
        port.leave(reason, tried);
        self.note(note);
        self.remember_ports();
    }

    /// The port's device is there, perhaps for the first time.
    fn bring_back(&mut self, index: usize, link: &Link) {
        let tried = Some((link.index, link.mtu));
        let port = self.plane.ports[index].port.clone();
        let (name, bridge) = (port.spec.name.clone(), self.plane.ports[index].bridge);
        let attached = LivePort::attach(&self.plane.netlink, &mut self.plane.front, port, bridge);
        let old = &mut self.plane.ports[index];
        match attached {
            Ok(port) => {
                let queues = port.queues;
                let socket_drops = old.socket_drops;
                *old = port;
                old.socket_drops = socket_drops;
                let text = format!("the port is served: device {}, queues {queues}", link.name);
                self.note(Note::new(EventKind::PortBack, text).port(&name));
                self.remember_ports();
                if let Some(note) = packets::fallback(&self.plane.ports[index]) {
                    self.note(note);
                }
                self.leave_kernel(index);
                self.settle_gro(None);
                self.mark_shared();
                if let Err(error) = self.open_queues(index) {
                    let error = format!("{error:#}");
                    tracing::error!(port = %name, error, "its services get no packets");
                }
            }
            Err(error) => {
                let reason = format!("{error:#}");
                let known = old.away.as_ref().is_some_and(|away| away.reason == reason);
                if !known {
                    tracing::warn!(port = %name, reason, "the port stays away");
                }
                old.leave(reason, tried);
            }
        }
    }

    /// Services leave kernel level, if they cannot run there any more.
    fn leave_kernel(&mut self, index: usize) {
        if self.plane.ports[index].not_at_kernel().is_none() {
            return;
        }
        let there =
            self.control.node().services().filter(|service| service.level == abi::Level::Kernel);
        let names: Vec<_> = there.map(|service| service.name.clone()).collect();
        for service in names {
            let level = abi::Level::User;
            if let Err(refusal) = self.control.command(node::Command::Move { service, level }) {
                tracing::error!(reason = refusal.message, "a service stays at kernel level");
            }
        }
    }

    fn remember_ports(&self) {
        if let Err(error) = ports::remember(&self.file.name, &self.plane.ports) {
            tracing::error!(%error, "what is to be restored is not written down");
        }
    }
}
