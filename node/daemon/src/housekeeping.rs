//! What changes around the node: devices, routes, and what the kernel would add.

use crate::daemon::Daemon;
use crate::dataplane::kernel_settings;
use crate::dataplane::ports::{self, LivePort, Mode};
use crate::events::Note;
use anyhow::Result;
use api::EventKind;
use bpf::VlanDevice;
use bpf_maps::{OWN_MAX, OwnPrefix, PORT_ACCEPTS_OWN, SLOW_NO_REDIRECT};
use netlink::Change;
use node::door::OwnSources;
use units::Name;

impl Daemon {
    /// Looks at what nothing depends on at once. Called once a second.
    pub(crate) fn tidy(&mut self) -> Result<()> {
        self.try_again()?;
        self.watch_cells();
        self.place(|it, around| it.handle_second(around));
        self.control.set_now(self.now());
        self.control.handle_second();
        self.end_associations_without_right();
        self.look_at_demand();
        Ok(())
    }

    /// Something changed that cached routes came from, or a port itself.
    pub(crate) fn changed(&mut self, change: Change) -> Result<()> {
        self.plane.front.invalidate();
        if matches!(change, Change::Link | Change::Address | Change::Setting | Change::Lost) {
            self.refresh_ports()?;
        }
        if matches!(change, Change::Rule | Change::Lost) {
            self.look()?;
        }
        Ok(())
    }

    fn refresh_ports(&mut self) -> Result<()> {
        kernel_settings::let_in_sources(&ports::device_name(ports::KERNEL_DEVICE, &self.file.name));
        let links = self.plane.netlink.links()?;
        (0..self.plane.ports.len()).for_each(|index| self.refresh_port(index, &links));
        self.mark_cabled(&links);
        let above = |device: u32| links.iter().filter(move |l| l.parent == Some(device));
        let served = self.plane.ports.iter().filter(|port| port.away.is_none());
        let devices: Vec<u32> = served.map(|port| port.config.ifindex).collect();
        let vlans: Vec<VlanDevice> = devices
            .iter()
            .flat_map(|&port| {
                above(port).filter_map(move |link| {
                    let (rpf, flags) = ports::judged_there(link);
                    Some(VlanDevice { port, vlan: link.vlan?, device: link.index, rpf, flags })
                })
            })
            .collect();
        self.plane.front.set_vlans(&vlans)?;
        let vlans = vlans.iter().map(|it| (it.port, it.vlan, it.device)).collect();
        self.plane.settings.watch(&links, vlans, &devices);
        self.refresh_own()
    }

    /// Reads which IPv4 addresses are this machine's own: what comes from them is dropped.
    fn refresh_own(&mut self) -> Result<()> {
        let mut own = self.plane.netlink.own_v4()?;
        if own.len() > OWN_MAX {
            let (own, most) = (own.len(), OWN_MAX);
            tracing::warn!(
                own,
                most,
                "packets from some of the node's own addresses are forwarded"
            );
        }
        own.truncate(OWN_MAX);
        let prefix = |(address, length): (std::net::Ipv4Addr, u8)| OwnPrefix {
            length: length.into(),
            address_be: address.octets(),
        };
        let accepts = |port: &&LivePort| port.config.flags & PORT_ACCEPTS_OWN != 0;
        let accepting = self.plane.ports.iter().filter(accepts).map(|port| port.port.id).collect();
        let own = OwnSources::new(own.into_iter().map(prefix).collect(), accepting);
        if self.plane.front.set_own(own)? {
            self.tell_rules();
        }
        Ok(())
    }

    /// Looks at what the kernel does not tell of: settings that cached routes come from, and
    /// whether it would add something to packets.
    pub(crate) fn look_at_kernel(&mut self) -> Result<()> {
        if self.plane.settings.look(&self.plane.netlink) {
            self.changed(Change::Setting)?;
        }
        self.look_at_closing();
        self.look()
    }

    /// Looks whether the kernel would add something to packets.
    fn look(&mut self) -> Result<()> {
        let slow = ports::slow_reasons(&self.plane.netlink, self.file.fast_path);
        let mut notes = Vec::new();
        let has_fast_path = |port: &&mut LivePort| port.away.is_none() && port.mode != Mode::Packet;
        for port in self.plane.ports.iter_mut().filter(has_fast_path) {
            // Between the two ends of a bridge there is nothing for the kernel to add.
            let all = if port.bridge.is_some() { SLOW_NO_REDIRECT } else { u32::MAX };
            let above: Vec<u32> = self.plane.settings.above(port.config.ifindex).collect();
            let found = slow(port.config.ifindex, &above) & all;
            if found != port.config.slow {
                port.config.slow = found;
                self.plane.front.configure(port.port.id, &port.config)?;
            }
            // At tc nothing takes a fast path: what changes is what others may send out there.
            if found != std::mem::replace(&mut port.slow_told, found) && port.mode != Mode::Tc {
                notes.push(slow_note(&port.port.spec.name, found));
            }
        }
        notes.into_iter().for_each(|note| self.note(note));
        Ok(())
    }
}

fn slow_note(port: &Name, slow: u32) -> Note {
    let note = |text: &str| {
        Note::new(EventKind::PortSlow, format!("plain forwarding of port '{port}' {text}"))
    };
    match ports::slow_words(slow) {
        reasons if reasons.is_empty() => note("takes the fast path").port(port),
        reasons => note("goes through the kernel").port(port).reason(reasons.join("; ")),
    }
}
