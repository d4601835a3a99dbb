//! Frames that the kernel may not have while a service is closed, wherever nothing of the node
//! decides about them.
//!
//! | port | kept from the kernel | by |
//! |---|---|---|
//! | served by XDP or at tc | what comes by another device of its name, made in its place | prerouting |
//! | away, its device there | everything | ingress of the device |
//! | away, its device gone | what comes by a device of its name | prerouting |
//! | served by packet sockets | what no cell has taken | ingress of the device |
//!
//! The tables have no owner: they hold when daemon and cell are gone, too. Whoever removes them
//! does so for less than a second, as long as the daemon runs.

use crate::daemon::Daemon;
use crate::dataplane::ports::{LivePort, Mode};
use netlink::{
    KnownDevice, NetlinkError, close_ingress, close_names, open_ingress, table_of_ingress,
    table_of_names, tables_of_nodes,
};
use node::desired::DesiredState;
use node::{Node, PortSpec};
use sockets::frame_socket::TAKEN_MARK;
use std::collections::BTreeMap;
use std::sync::Arc;
use units::Name;

/// Devices and names that are closed at present.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    /// False until the tables of a previous daemon have been replaced.
    has_begun: bool,
    /// True after a failure that was logged: it is tried again with each thing that happens.
    has_failed: bool,
    /// True when a service was closed in the desired state below, with the node as it was then.
    is_wanted: bool,
    desired: Option<Arc<DesiredState>>,
    /// Devices by number, with their names.
    devices: BTreeMap<u32, String>,
    /// Devices that may come by these names.
    names: Vec<KnownDevice>,
}

impl Daemon {
    /// Closes ports while a service that runs or shall run is closed, and opens them when none is
    /// any more: the kernel forwards nothing past it.
    pub(crate) fn close_ports(&mut self) {
        let is_wanted = self.is_closing_wanted();
        let ports = self.plane.ports.iter().filter(|_| is_wanted);
        let mut devices: BTreeMap<u32, String> = ports.clone().filter_map(closed_device).collect();
        let mut names: Vec<KnownDevice> = ports.filter_map(known_device).collect();
        let before = std::mem::take(&mut self.plane.closing);
        if !before.has_begun {
            // A daemon before may have left them closed, which are served now.
            for port in self.plane.ports.iter().filter(|port| closed_device(port).is_none()) {
                open(port.config.ifindex);
            }
        }
        for index in before.devices.keys().filter(|index| !devices.contains_key(index)) {
            open(*index);
        }
        let mut has_failed = false;
        let mut is_done = |closed: Result<(), NetlinkError>| {
            if let Err(error) = &closed
                && !std::mem::replace(&mut has_failed, true)
                && !before.has_failed
            {
                tracing::error!(%error, "a port was not closed: packets may go past closed services");
            }
            closed.is_ok()
        };
        devices.retain(|index, name| {
            before.devices.contains_key(index) || is_done(close_ingress(name, *index, TAKEN_MARK))
        });
        if names.is_empty() && (!before.has_begun || !before.names.is_empty()) {
            open_names(&self.file.name);
        } else if names != before.names && !is_done(close_names(self.file.name.as_str(), &names)) {
            names = before.names;
        }
        let desired = Some(Arc::clone(self.control.desired().state()));
        let has_begun = true;
        self.plane.closing = Closing { has_begun, has_failed, is_wanted, desired, devices, names };
    }

    /// Restores tables that somebody else has removed: `nft flush ruleset`, as a firewall's reload does
    /// it, takes every table that no process owns.
    pub(crate) fn look_at_closing(&mut self) {
        if self.plane.closing.devices.is_empty() && self.plane.closing.names.is_empty() {
            return;
        }
        let there = match tables_of_nodes() {
            Ok(there) => there,
            Err(error) => return tracing::warn!(%error, "whether ports are closed is not known"),
        };
        let Closing { devices, names, .. } = &mut self.plane.closing;
        let known = (devices.len(), names.len());
        devices.retain(|index, _| there.contains(&table_of_ingress(*index)));
        names.retain(|_| there.contains(&table_of_names(self.file.name.as_str())));
        if (devices.len(), names.len()) != known {
            tracing::warn!(
                "somebody removed nftables tables (tamandua-*) that keep ports closed: they are made again"
            );
            self.close_ports();
        }
    }

    /// Returns true when a service that runs or shall run is closed. Called with each thing that
    /// happens: thousands of services are looked at only when one of them may have changed.
    fn is_closing_wanted(&self) -> bool {
        let known = self.plane.closing.desired.as_ref().filter(|_| !self.node_touched);
        if known.is_some_and(|desired| Arc::ptr_eq(desired, self.control.desired().state())) {
            return self.plane.closing.is_wanted;
        }
        is_wanted(self.control.desired().state(), self.control.node())
    }

    /// Opens whatever is closed: the node ends.
    pub(crate) fn open_ports(&mut self) {
        let Closing { devices, .. } = std::mem::take(&mut self.plane.closing);
        devices.into_keys().for_each(open);
        open_names(&self.file.name);
    }
}

/// Returns true when a service that runs or shall run is closed.
pub(crate) fn is_wanted(desired: &DesiredState, node: &Node) -> bool {
    desired.has_closed_service() || node.services().any(|service| service.on_failure.is_closed())
}

/// Closes the names of those of a node's ports that are not served, before what serves them is
/// taken off their devices. [`Daemon::close_ports`] replaces it.
pub(crate) fn close_unserved(node: &Name, ports: &[LivePort]) {
    close(node, &ports.iter().filter_map(known_device).collect::<Vec<_>>());
}

/// Closes all ports of a node by their names, until it is served again, or cleaned up.
pub(crate) fn close_all(node: &Name, ports: &[PortSpec]) {
    let device = |port: &PortSpec| KnownDevice { name: port.device.clone(), index: None };
    close(node, &ports.iter().map(device).collect::<Vec<_>>());
}

fn close(node: &Name, devices: &[KnownDevice]) {
    if let Err(error) = close_names(node.as_str(), devices) {
        tracing::error!(%error, "ports were not closed: packets may go past closed services");
    }
}

/// Opens what is closed by the names of a node's ports.
pub(crate) fn open_names(node: &Name) {
    // Where there is no nftables nothing was closed.
    if let Err(error) = close_names(node.as_str(), &[]) {
        tracing::debug!(%error, "nothing was opened");
    }
}

fn open(index: u32) {
    if index != 0
        && let Err(error) = open_ingress(index)
    {
        tracing::debug!(index, %error, "nothing was opened");
    }
}

/// The device at whose ingress frames of a port are closed.
fn closed_device(port: &LivePort) -> Option<(u32, String)> {
    let index = match &port.away {
        None => (port.mode == Mode::Packet).then_some(port.config.ifindex)?,
        Some(away) => away.tried?.0,
    };
    Some((index, port.port.spec.device.clone()))
}

/// The device that may bring packets by a port's name; of packet ports all are closed anyhow.
fn known_device(port: &LivePort) -> Option<KnownDevice> {
    let name = port.port.spec.device.clone();
    match &port.away {
        None if port.mode == Mode::Packet => None,
        None => Some(KnownDevice { name, index: Some(port.config.ifindex) }),
        Some(_) => Some(KnownDevice { name, index: None }),
    }
}
