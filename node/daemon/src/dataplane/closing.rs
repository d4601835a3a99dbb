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

use super::live_port::LivePort;
use super::mode::Mode;
use netlink::{
    KnownDevice, close_ingress, close_names, open_ingress, table_of_ingress, table_of_names,
    tables_of_nodes,
};
use node::desired::DesiredState;
use node::{Node, PortSpec};
use sockets::frame_socket::TAKEN_MARK;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use units::Name;

/// Devices and names that are closed at present.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// False until the tables of a previous daemon have been replaced.
    has_begun: bool,
    /// True after a failure that was logged: it is tried again with each thing that happens.
    has_failed: bool,
    /// True when a service was closed in the desired state below, with the node as it was then.
    is_wanted: bool,
    desired: Option<Arc<DesiredState>>,
    /// Devices by number, with their names.
    devices: BTreeMap<u32, String>,
    /// Devices that may appear under these names.
    names: Vec<KnownDevice>,
}

/// Tables of the kernel's that keep frames from it.
pub(super) trait Tables {
    /// Closes the ingress of a device.
    fn close(&mut self, index: u32, device: &str) -> Result<(), String>;
    /// Opens the ingress of a device, if it was closed.
    fn open(&mut self, index: u32);
    /// Closes names to all devices but those known; opens all when there are none.
    fn close_names(&mut self, devices: &[KnownDevice]) -> Result<(), String>;
    /// Returns which of these devices' tables are there, and whether that of the names is.
    fn there(&self, devices: &BTreeMap<u32, String>) -> Result<(BTreeSet<u32>, bool), String>;
}

/// Tables of nftables.
pub(super) struct Nftables<'a>(pub(super) &'a Name);

impl Tables for Nftables<'_> {
    fn close(&mut self, index: u32, device: &str) -> Result<(), String> {
        close_ingress(device, index, TAKEN_MARK).map_err(|error| error.to_string())
    }

    fn open(&mut self, index: u32) {
        if index != 0
            && let Err(error) = open_ingress(index)
        {
            tracing::debug!(index, %error, "nothing was opened");
        }
    }

    fn close_names(&mut self, devices: &[KnownDevice]) -> Result<(), String> {
        close_names(self.0.as_str(), devices).map_err(|error| error.to_string())
    }

    fn there(&self, devices: &BTreeMap<u32, String>) -> Result<(BTreeSet<u32>, bool), String> {
        let there = tables_of_nodes().map_err(|error| error.to_string())?;
        let is_there = |index: &&u32| there.contains(&table_of_ingress(**index));
        let of_devices = devices.keys().filter(is_there).copied().collect();
        Ok((of_devices, there.contains(&table_of_names(self.0.as_str()))))
    }
}

impl Closing {
    /// Closes ports while a running or desired service is closed, and opens them when none is: the
    /// kernel forwards nothing past a closed service.
    pub(super) fn settle(
        &mut self,
        tables: &mut impl Tables,
        ports: &[LivePort],
        (is_wanted, desired): (bool, &Arc<DesiredState>),
    ) {
        let closed = ports.iter().filter(|_| is_wanted);
        let mut devices: BTreeMap<u32, String> = closed.clone().filter_map(closed_device).collect();
        let mut names: Vec<KnownDevice> = closed.filter_map(known_device).collect();
        let before = std::mem::take(self);
        if !before.has_begun {
            // A daemon before may have left them closed, which are served now.
            for port in ports.iter().filter(|port| closed_device(port).is_none()) {
                tables.open(port.config().ifindex);
            }
        }
        for index in before.devices.keys().filter(|index| !devices.contains_key(index)) {
            tables.open(*index);
        }
        let mut has_failed = false;
        let mut is_done = |closed: Result<(), String>| {
            if let Err(error) = &closed
                && !std::mem::replace(&mut has_failed, true)
                && !before.has_failed
            {
                tracing::error!(
                    error,
                    "a port was not closed: packets may go past closed services"
                );
            }
            closed.is_ok()
        };
        devices.retain(|index, name| {
            before.devices.contains_key(index) || is_done(tables.close(*index, name))
        });
        if names.is_empty() && (!before.has_begun || !before.names.is_empty()) {
            log_unopened(tables.close_names(&[]));
        } else if names != before.names && !is_done(tables.close_names(&names)) {
            names = before.names;
        }
        let desired = Some(Arc::clone(desired));
        *self = Self { has_begun: true, has_failed, is_wanted, desired, devices, names };
    }

    /// Discards the record of tables that another program has removed: `nft flush ruleset`, as in a
    /// firewall's reload, removes every table without an owner process. Returns true if there are
    /// such: [`Closing::settle`] restores them.
    pub(super) fn poll(&mut self, tables: &impl Tables) -> bool {
        if self.devices.is_empty() && self.names.is_empty() {
            return false;
        }
        let (devices, has_names) = match tables.there(&self.devices) {
            Ok(there) => there,
            Err(error) => {
                tracing::warn!(
                    error,
                    "nftables cannot be read: whether closed services' ports are still closed is unknown"
                );
                return false;
            }
        };
        let known = (self.devices.len(), self.names.len());
        self.devices.retain(|index, _| devices.contains(index));
        self.names.retain(|_| has_names);
        let is_lost = (self.devices.len(), self.names.len()) != known;
        if is_lost {
            tracing::warn!(
                "somebody removed nftables tables (tamandua-*) that keep ports closed: they are made again"
            );
        }
        is_lost
    }

    /// Returns true if a running or desired service is closed. Called for each event: thousands of
    /// services are only checked when one of them may have changed.
    pub(super) fn is_wanted(
        &self,
        desired: &Arc<DesiredState>,
        node: &Node,
        node_changed: bool,
    ) -> bool {
        let known = self.desired.as_ref().filter(|_| !node_changed);
        if known.is_some_and(|known| Arc::ptr_eq(known, desired)) {
            return self.is_wanted;
        }
        is_wanted(desired, node)
    }

    /// Opens whatever is closed: the node ends.
    pub(super) fn open(&mut self, tables: &mut impl Tables) {
        let Self { devices, .. } = std::mem::take(self);
        devices.into_keys().for_each(|index| tables.open(index));
        log_unopened(tables.close_names(&[]));
    }
}

/// Returns true when a service that runs or shall run is closed.
pub(crate) fn is_wanted(desired: &DesiredState, node: &Node) -> bool {
    desired.has_closed_service() || node.services().any(|service| service.on_failure.is_closed())
}

/// Closes the names of those of a node's ports that are not served, before what serves them is
/// taken off their devices. [`Closing::settle`] replaces it.
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
    log_unopened(close_names(node.as_str(), &[]));
}

/// Logs that nothing was opened: where there is no nftables nothing was closed.
fn log_unopened(opened: Result<(), impl Display>) {
    if let Err(error) = opened {
        tracing::debug!(%error, "nothing was opened");
    }
}

/// Returns the device at whose ingress frames of a port are closed.
fn closed_device(port: &LivePort) -> Option<(u32, String)> {
    let index = match port.is_away() {
        false => (port.mode() == Mode::Packet).then_some(port.config().ifindex)?,
        true => port.tried()?.0,
    };
    Some((index, port.spec().device.clone()))
}

/// Returns the device that may bring packets by a port's name; of packet ports all are closed anyhow.
fn known_device(port: &LivePort) -> Option<KnownDevice> {
    let name = port.spec().device.clone();
    match port.is_away() {
        false if port.mode() == Mode::Packet => None,
        false => Some(KnownDevice { name, index: Some(port.config().ifindex) }),
        true => Some(KnownDevice { name, index: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::{absent, served};

    /// Mock of tables, of a kernel that refuses on request.
    #[derive(Default)]
    struct Fake {
        devices: BTreeSet<u32>,
        names: Vec<KnownDevice>,
        refuses: bool,
        calls: usize,
    }

    impl Fake {
        fn called(&mut self) -> usize {
            std::mem::take(&mut self.calls)
        }

        fn answer(&mut self) -> Result<(), String> {
            self.calls += 1;
            if self.refuses { Err("no nftables".to_owned()) } else { Ok(()) }
        }
    }

    impl Tables for Fake {
        fn close(&mut self, index: u32, _: &str) -> Result<(), String> {
            self.answer()?;
            self.devices.insert(index);
            Ok(())
        }

        fn open(&mut self, index: u32) {
            self.devices.remove(&index);
        }

        fn close_names(&mut self, devices: &[KnownDevice]) -> Result<(), String> {
            self.answer()?;
            self.names = devices.to_vec();
            Ok(())
        }

        fn there(&self, devices: &BTreeMap<u32, String>) -> Result<(BTreeSet<u32>, bool), String> {
            let there = devices.keys().filter(|index| self.devices.contains(index));
            Ok((there.copied().collect(), !self.names.is_empty()))
        }
    }

    /// Returns four ports: served by XDP, served by packet sockets, with an unfit device, and
    /// without a device.
    fn ports() -> Vec<LivePort> {
        let mut unfit = absent(3);
        unfit.leave("it is too wide".to_owned(), Some((3, 9001)));
        vec![served(1), served(2).in_mode(Mode::Packet), unfit, absent(4)]
    }

    fn known(number: u32, index: Option<u32>) -> KnownDevice {
        KnownDevice { name: format!("device{number}"), index }
    }

    #[test]
    fn ports_are_closed_where_nothing_of_the_node_decides_and_opened_again() {
        let (mut closing, mut tables, desired) = <(Closing, Fake, Arc<DesiredState>)>::default();
        closing.settle(&mut tables, &ports(), (true, &desired));
        assert_eq!(tables.devices, [2, 3].into());
        assert_eq!(tables.names, [known(1, Some(1)), known(3, None), known(4, None)]);
        tables.called();
        closing.settle(&mut tables, &ports(), (true, &desired));
        assert_eq!(tables.called(), 0, "what is closed is not closed anew");
        closing.settle(&mut tables, &ports(), (false, &desired));
        assert!(tables.devices.is_empty() && tables.names.is_empty());
        tables.called();
        closing.settle(&mut tables, &ports(), (false, &desired));
        assert_eq!(tables.called(), 0);
    }

    #[test]
    fn what_a_previous_daemon_left_is_opened_at_first() {
        let (mut closing, desired) = <(Closing, Arc<DesiredState>)>::default();
        let left = vec![known(1, None)];
        let mut tables = Fake { devices: [1, 2].into(), names: left, ..Fake::default() };
        closing.settle(&mut tables, &[served(1), served(2)], (false, &desired));
        assert!(tables.devices.is_empty() && tables.names.is_empty());
    }

    #[test]
    fn a_table_that_was_refused_is_tried_again() {
        let (mut closing, desired) = <(Closing, Arc<DesiredState>)>::default();
        let mut tables = Fake { refuses: true, ..Fake::default() };
        closing.settle(&mut tables, &ports(), (true, &desired));
        assert!(tables.devices.is_empty() && closing.has_failed);
        tables.refuses = false;
        closing.settle(&mut tables, &ports(), (true, &desired));
        assert!(tables.devices.len() == 2 && tables.names.len() == 3 && !closing.has_failed);
    }

    #[test]
    fn tables_that_somebody_flushed_are_made_again() {
        let (mut closing, mut tables, desired) = <(Closing, Fake, Arc<DesiredState>)>::default();
        assert!(!closing.poll(&tables), "nothing is closed");
        closing.settle(&mut tables, &ports(), (true, &desired));
        assert!(!closing.poll(&tables));
        (tables.devices, tables.names) = Default::default();
        assert!(closing.poll(&tables));
        closing.settle(&mut tables, &ports(), (true, &desired));
        assert!(tables.devices.len() == 2 && tables.names.len() == 3);
        closing.open(&mut tables);
        assert!(tables.devices.is_empty() && tables.names.is_empty());
    }

    #[test]
    fn the_last_answer_holds_until_node_or_desired_state_change() {
        let (mut closing, mut tables, desired) = <(Closing, Fake, Arc<DesiredState>)>::default();
        let node = Node::new("edge".parse().unwrap(), Vec::new()).unwrap();
        closing.settle(&mut tables, &[], (true, &desired));
        assert!(closing.is_wanted(&desired, &node, false));
        assert!(!closing.is_wanted(&desired, &node, true));
        assert!(!closing.is_wanted(&Arc::default(), &node, false));
    }
}
