//! What changes around the node: devices, routes, and what the kernel would add.

use crate::daemon::Daemon;
use crate::ports;
use anyhow::Result;
use os::netlink::Change;

impl Daemon {
    /// Something changed that cached routes came from, or a port itself.
    pub(crate) fn changed(&mut self, change: Change) -> Result<()> {
        self.front.invalidate();
        if matches!(change, Change::Link | Change::Address | Change::Lost) {
            self.refresh_ports()?;
        }
        if matches!(change, Change::Rule | Change::Lost) {
            self.look()?;
        }
        Ok(())
    }

    fn refresh_ports(&mut self) -> Result<()> {
        let links = self.netlink.links()?;
        (0..self.ports.len()).for_each(|index| self.refresh_port(index, &links));
        let above = |device: u32| links.iter().filter(move |l| l.parent == Some(device));
        let vlans: Vec<_> = self
            .ports
            .iter()
            .filter(|port| port.away.is_none())
            .flat_map(|port| {
                let device = port.config.ifindex;
                above(device).filter_map(move |l| Some((device, l.vlan?, l.index)))
            })
            .collect();
        self.front.set_vlans(&vlans)?;
        Ok(())
    }

    /// Looks whether the kernel would add something to packets.
    pub(crate) fn look(&mut self) -> Result<()> {
        self.try_again()?;
        let slow = ports::slow_reasons(&self.netlink, self.file.fast_path);
        for port in self.ports.iter_mut().filter(|port| port.away.is_none()) {
            let found = slow(port.config.ifindex);
            if found != port.config.slow {
                port.config.slow = found;
                self.front.configure(port.port.id, &port.config)?;
                let (port, reasons) = (&port.port.spec.name, ports::slow_words(found));
                tracing::info!(%port, ?reasons, "what keeps plain forwarding off the fast path");
            }
        }
        Ok(())
    }
}
