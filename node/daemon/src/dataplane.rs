//! Kernel side of a node: ports and their sockets, the front door, and what services run on
//! below user level.
//!
//! ```text
//!  ports ─▶ Door ─▶ XDP, tc ─▶ sockets ─▶ cells
//!             └─ lanes, programs ◀─ Instances
//! ```
//!
//! The data plane carries out requests and reports its state; placement is decided elsewhere. State
//! of other owners is passed to each call ([`Around`]); work for others is left as actions
//! ([`DataPlane::poll_action`]).

mod accounts;
pub(crate) mod action;
pub(crate) mod budgets;
mod cables;
pub(crate) mod cell_devices;
pub(crate) mod closing;
pub(crate) mod devices;
pub(crate) mod door;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod instances;
pub(crate) mod interceptions;
pub(crate) mod kernel_settings;
mod lanes;
pub(crate) mod live_port;
pub(crate) mod mode;
mod packets;
mod port_life;
mod port_shares;
mod ports;
pub(crate) mod promises;
mod queues;
pub(crate) mod requirements;
mod reusable;
pub(crate) mod services;
mod shared;
pub(crate) mod slow;
pub(crate) mod undo;
pub(crate) mod way_back;

pub(crate) use action::Action;

use crate::clock::Clock;
use crate::completion::Completion;
use crate::config::{FastPath, NodeFile};
use crate::control::placement::Placement;
use crate::events::Note;
use accounts::Accounts;
use action::Actions;
use anyhow::{Context, Result};
use api::EventKind;
use bpf::FrontDoor;
use bpf_maps::{OWN_MAX, OwnPrefix, PortShare};
use budgets::Budgets;
use cell::Compiled;
use cell::protocol::ToCell;
use cell_devices::CellDevices;
use closing::{Closing, Nftables};
use door::Door;
use instances::{BelowReport, Instances, Loaded};
use interceptions::Intercepted;
use kernel_settings::KernelSettings;
use live_port::LivePort;
use mode::Mode;
use netlink::{Change, Link, Netlink};
use node::classifier::RuleSet;
use node::desired::DesiredState;
use node::door::OwnSources;
use node::{Node, Session};
use port_life::Step;
use port_shares::PortShares;
use ports::Ports;
use promises::Promises;
use queues::Queues;
use services::Services;
use session::in_kernel::Speed;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use units::{EntryId, Name, Nanos, PortId, SessionId};

/// Time within which the cell has read rules, or it is busy with something else.
const RULES_READ_WITHIN: Nanos = Nanos::from_millis(100);

/// Kernel objects of a node.
pub(crate) struct DataPlane {
    name: Name,
    fast_path: FastPath,
    front: Door,
    netlink: Netlink,
    /// Kernel settings as they were last read.
    settings: KernelSettings,
    ports: Ports,
    queues: Queues,
    /// Devices by which packets leave the cell for the kernel, and come up to it.
    devices: CellDevices,
    closing: Closing,
    /// Instances of services that can leave user level.
    instances: Instances,
    accounts: Accounts,
    budgets: Budgets,
    shares: PortShares,
    /// Reason for nothing being able to run below user level here; the node's own switch apart.
    no_bpf: Option<String>,
    /// Packets that died with cells, in their rings.
    lost_with_cells: u64,
    actions: Actions,
}

/// Other owners' state that the data plane reads during a call.
pub(crate) struct Around<'a> {
    pub(crate) node: &'a Node,
    pub(crate) desired: &'a Arc<DesiredState>,
    /// True when the node may have changed since its effects were done.
    pub(crate) node_changed: bool,
    /// True when a cell is running.
    pub(crate) has_cell: bool,
    pub(crate) placement: &'a Placement,
}

/// Initial parts of a data plane.
pub(crate) struct Parts {
    pub(crate) front: Door,
    pub(crate) netlink: Netlink,
    pub(crate) ports: Vec<LivePort>,
    pub(crate) devices: CellDevices,
}

impl DataPlane {
    /// Makes the kernel side of a node that starts: front door, ports, devices.
    ///
    /// # Errors
    /// The kernel refuses one of them.
    pub(crate) fn start(file: &NodeFile, node: &Node, desired: &DesiredState) -> Result<Self> {
        let netlink = Netlink::open().context("opening netlink")?;
        let mut front = Door::open(&file.ports, || {
            FrontDoor::create(&file.name, door::hash_keys()?, file.flow_cache.0)
                .context("making the front door")
        })?;
        let ends = node::other_ends(node.ports(), &file.bridge.0)?;
        front.close(file, desired)?;
        let ports = Ports::bring_up(&netlink, &mut front, node, &ends)?;
        front.settle();
        ports.remember(&file.name)?;
        let devices = CellDevices::make(&netlink, &file.name, front.front().is_ok())?;
        let kernel_ifindex = devices::kernel_index(&netlink, &file.name)?;
        front.set_devices(devices.up_index(), kernel_ifindex)?;
        front.count_stack_drops(ports.served(), kernel_ifindex);
        front.heartbeat()?;
        Ok(Self::of(file, front, netlink, ports, devices))
    }

    /// Creates the data plane of ports that a previous daemon served.
    ///
    /// # Errors
    /// The front door does not take the devices.
    pub(crate) fn adopt(file: &NodeFile, parts: Parts) -> Result<Self> {
        let Parts { mut front, netlink, ports, devices } = parts;
        let ports = Ports::new(ports);
        let kernel_ifindex = devices::kernel_index(&netlink, &file.name)?;
        front.set_devices(devices.up_index(), kernel_ifindex)?;
        front.count_stack_drops(ports.served(), kernel_ifindex);
        Ok(Self::of(file, front, netlink, ports, devices))
    }

    fn of(
        file: &NodeFile,
        front: Door,
        netlink: Netlink,
        ports: Ports,
        devices: CellDevices,
    ) -> Self {
        let no_bpf = front.only_user().or_else(shared::unsupported);
        Self {
            name: file.name.clone(),
            fast_path: file.fast_path,
            front,
            netlink,
            settings: KernelSettings::default(),
            ports,
            queues: Queues::default(),
            devices,
            closing: Closing::default(),
            instances: Instances::default(),
            accounts: Accounts::default(),
            budgets: Budgets::default(),
            shares: PortShares::default(),
            no_bpf,
            lost_with_cells: 0,
            actions: Actions::default(),
        }
    }

    /// Takes over counters and measurements of a previous daemon, and the assignment of port share
    /// accounts.
    pub(crate) fn resume(&mut self, lost_with_cells: u64, measured: Option<Speed>) {
        self.lost_with_cells = lost_with_cells;
        self.accounts.adopt(measured);
        self.shares.adopt(self.front.payers_of_port_shares());
    }

    /// Returns the ports in the order of the node file.
    pub(crate) fn ports(&self) -> &[LivePort] {
        self.ports.all()
    }

    /// Returns the port of this number.
    pub(crate) fn port(&self, id: PortId) -> Option<&LivePort> {
        self.ports.get(id)
    }

    /// Returns what decides about the node's frames.
    pub(crate) const fn front(&self) -> &Door {
        &self.front
    }

    /// Returns the front door, or the reason for there being none.
    ///
    /// # Errors
    /// The node has no front door, for this reason.
    pub(crate) fn front_door(&self) -> Result<&FrontDoor, String> {
        self.front.front()
    }

    /// Returns the socket of routing netlink.
    pub(crate) const fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Returns the reason for nothing being able to run below user level; the node's own switch
    /// apart.
    pub(crate) fn unsupported(&self) -> Option<&str> {
        self.no_bpf.as_deref()
    }

    /// Returns the number of packets that died with cells, in their rings.
    pub(crate) const fn lost_with_cells(&self) -> u64 {
        self.lost_with_cells
    }

    /// Returns the index of the device by which packets come up from kernel level.
    pub(crate) const fn up_index(&self) -> u32 {
        self.devices.up_index()
    }

    /// Returns the drops in front of a port's sockets: ring full, and the rest.
    pub(crate) fn socket_drops(&self, port: &LivePort) -> (u64, u64) {
        self.queues.drops(port)
    }

    /// Returns the session whose packets wait in a port's queues; `None` while there are none.
    pub(crate) fn queue_session(&self, port: PortId) -> Option<SessionId> {
        self.queues.session(port)
    }

    /// Returns what services run on below user level, to change it.
    pub(crate) const fn services(&mut self) -> Services<'_> {
        let Self { instances, budgets, front, lost_with_cells, .. } = self;
        Services { instances, budgets, front, lost_with_cells }
    }

    /// Returns what sessions were promised below user level, to settle it.
    pub(crate) const fn promises(&mut self) -> Promises<'_> {
        let Self { accounts, shares, ports, front, no_bpf, actions, .. } = self;
        Promises { accounts, shares, ports, front, is_supported: no_bpf.is_none(), actions }
    }

    /// Returns the instances of services that can leave user level.
    pub(crate) const fn instances(&self) -> &Instances {
        &self.instances
    }

    /// Returns the counters of a service below user level; `None` of one that cannot leave user
    /// level.
    pub(crate) fn below_report(&self, entry: EntryId) -> Option<BelowReport> {
        self.instances.report(&self.front, entry)
    }

    /// Returns the next action that others are to do.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop()
    }

    /// Handles a change of devices, routes or settings.
    ///
    /// # Errors
    /// The kernel does not describe its devices, or the front door cannot be written to.
    pub(crate) fn handle_change(&mut self, around: &Around<'_>, change: Change) -> Result<()> {
        self.front.invalidate();
        if matches!(change, Change::Link | Change::Address | Change::Setting | Change::Lost) {
            self.refresh_ports(around)?;
        }
        if matches!(change, Change::Rule | Change::Lost) {
            self.poll_slow_reasons()?;
        }
        Ok(())
    }

    /// Polls what the kernel sends no notifications of: settings that cached routes depend on,
    /// tables that keep ports closed, and whether the kernel would add something to packets.
    ///
    /// # Errors
    /// Same as [`DataPlane::handle_change`].
    pub(crate) fn handle_usage(&mut self, around: &Around<'_>) -> Result<()> {
        if self.settings.poll(&self.netlink) {
            self.handle_change(around, Change::Setting)?;
        }
        if self.closing.poll(&Nftables(&self.name)) {
            self.close_ports(around);
        }
        self.poll_slow_reasons()
    }

    /// Tries ports once more that are away although there is a device: what stood against it may
    /// have gone without an event. Called once a second.
    ///
    /// # Errors
    /// The kernel does not describe its devices.
    pub(crate) fn handle_second(&mut self, around: &Around<'_>) -> Result<()> {
        if self.ports.try_again() {
            let links = self.netlink.links()?;
            self.refresh_each_port(around, &links);
        }
        Ok(())
    }

    fn refresh_ports(&mut self, around: &Around<'_>) -> Result<()> {
        let device = devices::device_name(devices::KERNEL_DEVICE, &self.name);
        kernel_settings::let_in_sources(&device);
        let links = self.netlink.links()?;
        self.refresh_each_port(around, &links);
        let vlans = self.ports.vlans(&links);
        self.front.set_vlans(&vlans)?;
        let vlans = vlans.iter().map(|it| (it.port, it.vlan, it.device)).collect();
        self.settings.watch(&links, vlans, &self.ports.devices());
        self.refresh_own(around)
    }

    fn refresh_each_port(&mut self, around: &Around<'_>, links: &[Link]) {
        (0..self.ports.all().len()).for_each(|index| self.refresh_port(around, index, links));
        self.ports.mark_cabled(&self.front, links, &mut self.actions);
    }

    fn refresh_port(&mut self, around: &Around<'_>, index: usize, links: &[Link]) {
        let (step, link) = port_life::step(&self.ports.all()[index], links);
        match (step, link) {
            (Step::Leave { reason, tried }, _) => {
                self.detach_port(around, index, (reason, tried), links);
            }
            (Step::Refresh, Some(link)) if self.ports.all_mut()[index].refresh(link) => {
                self.change_port(index);
            }
            (Step::Replace { reason }, Some(link)) => {
                self.detach_port(around, index, (reason, None), links);
                self.reattach(around, index, link);
            }
            (Step::Return, Some(link)) => self.reattach(around, index, link),
            _ => {}
        }
    }

    /// Tells the cell of a port whose device has another address or MTU.
    fn change_port(&mut self, index: usize) {
        let port = &self.ports.all()[index];
        let (name, config) = (port.name(), port.config());
        self.actions.note(port.changed());
        if let Err(error) = self.front.configure(port.id(), config) {
            tracing::error!(port = %name, %error, "the front door was not updated: it goes on with the port's former settings");
        }
        self.actions.notify(ToCell::ChangePort(port.facts(0)));
        if port.mode() == Mode::Packet
            && let Err(error) = way_back::readdress(&self.netlink, config.ifindex, config.mac)
        {
            let error = format!("{error:#}");
            tracing::error!(port = %name, error, "packets that the cell leaves to the kernel are lost: the port's new address was not set there");
        }
    }

    /// Detaches a port from its device, from which everything of the node is removed.
    fn detach_port(
        &mut self,
        around: &Around<'_>,
        index: usize,
        (reason, tried): (String, live_port::Tried),
        links: &[Link],
    ) {
        self.ports.all_mut()[index].mark_away(reason.clone(), tried);
        // While the front door still decides: behind it the kernel would have each packet.
        self.close_ports(around);
        let port = &mut self.ports.all_mut()[index];
        let (id, name, ifindex) = (port.id(), port.name().clone(), port.config().ifindex);
        if let Err(error) = self.front.detach(id, ifindex) {
            tracing::error!(port = %name, %error, "not detached");
        }
        let drops = self.queues.close(&self.front, port);
        port.add_drops(drops);
        self.actions.notify(ToCell::RemovePort(id));
        match links.iter().find(|link| link.index == ifindex) {
            Some(link) => port.restore_as(&self.netlink, &link.name),
            None => port.remove_made(&self.netlink),
        }
        let text = "the port is away: packets routed to it are the kernel's";
        self.actions.note(Note::new(EventKind::PortGone, text).port(name).reason(&reason));
        port.leave(reason, tried);
        self.remember_ports();
    }

    /// Puts a port into service whose device is there, perhaps for the first time.
    fn reattach(&mut self, around: &Around<'_>, index: usize, link: &Link) {
        let old = &self.ports.all()[index];
        let (port, name) = (old.described(), old.name().clone());
        let attached = LivePort::attach(&self.netlink, &mut self.front, port, old.bridge());
        let old = &mut self.ports.all_mut()[index];
        let port = match attached {
            Ok(port) => port,
            Err(error) => {
                let reason = format!("{error:#}");
                if old.away_reason() != Some(&reason) {
                    tracing::warn!(port = %name, reason, "the port's device cannot be served yet: the port stays away, and its device is tried again when it changes");
                }
                return old.leave(reason, Some((link.index, link.mtu)));
            }
        };
        old.come_back(port);
        let text = format!("the port is served: device {}, queues {}", link.name, old.queues());
        self.actions.note(Note::new(EventKind::PortBack, text).port(&name));
        self.remember_ports();
        let port = &self.ports.all()[index];
        port.fallback().into_iter().for_each(|note| self.actions.note(note));
        if port.not_at_kernel().is_some() {
            self.actions.push(Action::NoKernelLevel);
        }
        self.settle_gro(around.node, around.placement, None);
        self.promises().mark_shared();
        if let Err(error) = self.open_queue(around, index) {
            let error = format!("{error:#}");
            tracing::error!(port = %name, error, "the port's queue was not given to the cell: services get no packets of this port");
        }
    }

    fn remember_ports(&self) {
        if let Err(error) = self.ports.remember(&self.name) {
            tracing::error!(%error, "the former settings of devices are not on the disk: should the daemon die, `tam node --cleanup` cannot restore them");
        }
    }

    /// Reads which IPv4 addresses are this machine's own: what comes from them is dropped.
    fn refresh_own(&mut self, around: &Around<'_>) -> Result<()> {
        let mut own = self.netlink.own_v4()?;
        if own.len() > OWN_MAX {
            let (own, most) = (own.len(), OWN_MAX);
            tracing::warn!(
                own,
                most,
                "there are more own IPv4 addresses than can be watched: packets from the others are forwarded"
            );
        }
        own.truncate(OWN_MAX);
        let prefix = |(address, length): (std::net::Ipv4Addr, u8)| OwnPrefix {
            length: length.into(),
            address_be: address.octets(),
        };
        let own = own.into_iter().map(prefix).collect();
        if self.front.set_own(OwnSources::new(own, self.ports.accepting_own()))? {
            self.send_rules(around.has_cell);
        }
        Ok(())
    }

    /// Looks whether the kernel would add something to packets.
    fn poll_slow_reasons(&mut self) -> Result<()> {
        let reasons = slow::reasons(&self.netlink, self.fast_path);
        let settings = &self.settings;
        let find = |device| reasons(device, &settings.above(device).collect::<Vec<u32>>());
        Ok(self.ports.set_slow(&self.front, find, &mut self.actions)?)
    }

    /// Closes ports while a running or desired service is closed, and opens them when none is.
    pub(crate) fn close_ports(&mut self, around: &Around<'_>) {
        let Around { node, desired, node_changed, .. } = around;
        let is_wanted = self.closing.is_wanted(desired, node, *node_changed);
        let mut tables = Nftables(&self.name);
        self.closing.settle(&mut tables, self.ports.all(), (is_wanted, desired));
    }

    /// Reports ports that are served in another mode than the best one, and what is not counted.
    pub(crate) fn note_modes(&mut self) {
        self.ports.fallbacks().for_each(|note| self.actions.note(note));
        self.note_uncounted();
    }

    /// Reports that what the kernel drops is not counted, if it is not.
    pub(crate) fn note_uncounted(&mut self) {
        if let Some(reason) = self.front.uncounted() {
            let text = "what the kernel drops of what is left to it is not counted here";
            self.actions.note(Note::new(EventKind::DropsUncounted, text).reason(reason));
        }
    }

    /// Tells the front door that the daemon is there.
    ///
    /// # Errors
    /// The front door cannot be written to.
    pub(crate) fn heartbeat(&self) -> Result<()> {
        Ok(self.front.heartbeat()?)
    }

    /// Returns the messages by which a cell gets the devices and maps that all its services share,
    /// with their descriptors.
    pub(crate) fn device_messages(&self) -> Vec<(ToCell, Vec<BorrowedFd<'_>>)> {
        self.devices.messages(self.front.front().ok())
    }

    /// Sends a started cell what it needs for packets: accounts of port shares, rules, counters,
    /// and the queues of all ports.
    ///
    /// # Errors
    /// The kernel does not open a queue.
    pub(crate) fn handle_cell_started(&mut self, around: &Around<'_>) -> Result<()> {
        self.shares.messages().for_each(|message| self.actions.notify(message));
        if let Some(packets) = self.front.packets() {
            let counts = packets.counts().as_fd().try_clone_to_owned()?;
            self.actions.push(Action::Give(ToCell::Counts, vec![counts]));
            let rules = packets.sealed_rules()?;
            self.actions.push(Action::Give(ToCell::Rules(packets.number()), vec![rules]));
        }
        (0..self.ports.all().len()).try_for_each(|index| self.open_queue(around, index))
    }

    /// Gives the cell a socket for each queue of a port that is there.
    fn open_queue(&mut self, around: &Around<'_>, index: usize) -> Result<()> {
        let port = &self.ports.all()[index];
        if !around.has_cell || port.is_away() {
            return Ok(());
        }
        if port.mode() == Mode::Packet {
            self.close_ports(around);
        }
        let port = &self.ports.all()[index];
        self.queues.open(&self.front, &self.netlink, port, &mut self.actions)
    }

    /// Leads packets of a queue to the cell, which has bound it.
    ///
    /// # Errors
    /// The packets cannot be led there.
    pub(crate) fn bind(&mut self, port: PortId, queue: u32) -> Result<(), String> {
        let port = self.ports.get(port).ok_or("no such port")?;
        self.queues.bind(&self.front, port, queue, &mut self.actions)
    }

    /// Closes the sockets of all ports: their cell is lost.
    pub(crate) fn handle_cell_lost(&mut self) {
        self.lost_with_cells += self.queues.end(&self.front, self.ports.all_mut());
    }

    /// Takes over sockets of an adopted cell. Ports whose devices vanished meanwhile have none;
    /// ports that had none get new ones.
    ///
    /// # Errors
    /// The kernel does not open a queue.
    pub(crate) fn adopt_queues(
        &mut self,
        around: &Around<'_>,
        sockets: Vec<((PortId, u32), OwnedFd)>,
    ) -> Result<()> {
        self.queues.adopt(sockets);
        for index in 0..self.ports.all().len() {
            let port = &self.ports.all()[index];
            if !self.queues.resume(&self.front, port) {
                self.open_queue(around, index)?;
            }
            let port = &self.ports.all()[index];
            if port.is_away() {
                self.actions.notify(ToCell::RemovePort(port.id()));
            }
        }
        Ok(())
    }

    /// Installs rules in the front door and in cells: once a client is answered, its rule applies
    /// from the next packet on.
    pub(crate) fn install(&mut self, rules: &RuleSet, has_cell: bool) {
        if let Err(error) = self.front.install(rules) {
            tracing::error!(%error, "the front door goes on with the rules before: the new ones were not installed");
        }
        self.send_rules(has_cell);
    }

    /// Tells cells to use the rules of now ([`Action::UseRules`]).
    fn send_rules(&mut self, has_cell: bool) {
        let Some(packets) = self.front.packets().filter(|_| has_cell) else { return };
        match packets.sealed_rules() {
            Ok(memory) => self.actions.push(Action::UseRules(packets.number(), memory)),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "the rules were not given to the cell: packet ports go on with the ones before"
                );
            }
        }
    }

    /// Waits until the cell uses the installed rules. Blocks the daemon's task, so that no client
    /// reads an answer before.
    pub(crate) fn await_rules(&self, clock: Clock) {
        let Some(packets) = self.front.packets() else { return };
        let until = clock.now() + RULES_READ_WITHIN;
        while packets.counts().rules() != packets.number() {
            if clock.now() > until {
                return tracing::warn!("the cell is busy: it takes the new rules late");
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns the accounts of a session's shares of ports, with their counters.
    pub(crate) fn port_shares_of<'a>(
        &self,
        node: &Node,
        session: &'a Session,
    ) -> Vec<(&'a Name, PortShare)> {
        let front = self.front.front();
        front.map_or_else(|_| Vec::new(), |front| self.shares.port_shares_of(front, node, session))
    }

    /// Measures the speed of modules on a thread, if a previous daemon did not. Accounts are
    /// those of a slow machine until it is known ([`Promises::handle_speed`]).
    pub(crate) fn measure_speed(&self, done: Completion<Result<Speed, String>>) {
        if self.accounts.measured().is_none() && self.speed().is_some() {
            tokio::task::spawn_blocking(move || {
                done.send(cell::below::measure_speed().map_err(|error| error.to_string()));
            });
        }
    }

    /// Returns the speed that was measured.
    pub(crate) const fn measured_speed(&self) -> Option<Speed> {
        self.accounts.measured()
    }

    /// Returns the speed that counts; `None` where nothing runs below user level.
    pub(crate) fn speed(&self) -> Option<Speed> {
        let runs = self.no_bpf.is_none() && self.front.front().is_ok();
        runs.then(|| self.accounts.speed())
    }

    /// Returns true when a service below user level has a budget, or an account is left of one.
    pub(crate) fn has_budgets(&self, node: &Node) -> bool {
        if !self.budgets.is_empty() {
            return true;
        }
        // Asked with each thing that happens: of those below, not of thousands that never are.
        let mut below = self.instances.entries().filter_map(|entry| node.service_of(entry));
        below.any(|service| service.budget.is_limited())
    }

    /// Pins the instance of a service for the daemon that comes after this one.
    pub(crate) fn keep_instance(&self, entry: EntryId) {
        self.instances.keep(&self.front, entry);
    }

    /// Returns a function that loads a program, for another thread: the verifier may take seconds.
    /// `code` is the module's, where it is compiled by now.
    ///
    /// # Errors
    /// The service has no program to load.
    pub(crate) fn loader(
        &self,
        entry: EntryId,
        level: abi::Level,
        code: Option<Arc<Compiled>>,
    ) -> Result<impl FnOnce() -> Loaded + Send + 'static, String> {
        self.instances.loader(&self.front, entry, level, code)
    }

    /// Returns the entries of which a previous daemon has pinned something.
    pub(crate) fn pinned(&self) -> BTreeSet<EntryId> {
        instances::kept(&self.front)
    }

    /// Sets GRO at the ports. It is on while there are services of streams, for it saves most of
    /// the cost of receiving intercepted connections, and off while a service is at kernel level,
    /// which has to see each frame by itself. `but` is the entry of a service that has ended.
    pub(crate) fn settle_gro(&mut self, node: &Node, placement: &Placement, but: Option<EntryId>) {
        let mut is_alone = !placement.loads_at_kernel() && !self.instances.is_any_at_kernel(but);
        let mut has_streams = false;
        for service in node.services().filter(|service| Some(service.entry) != but) {
            has_streams |= service.module.kind == abi::check::Kind::Streams;
            is_alone &= service.level != abi::Level::Kernel;
        }
        self.ports.set_gro(has_streams && is_alone);
    }

    /// Begins the interception of connections for a service of streams.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn intercept(&self) -> Result<Intercepted> {
        Intercepted::begin(&self.netlink)
    }

    /// Removes what interceptions have left, now and when their tables are gone for certain.
    pub(crate) fn sweep_interceptions(&mut self) {
        self.end_interceptions();
        for after in interceptions::SWEEPS {
            self.actions.push(Action::SweepAfter(after));
        }
    }

    /// Removes what interceptions have left.
    pub(crate) fn end_interceptions(&self) {
        interceptions::end_left(&self.netlink);
    }

    /// Takes the node off its ports, before cells end: frames that were taken go back to the
    /// kernel.
    pub(crate) fn detach(&mut self) {
        for port in self.ports.all() {
            if let Err(error) = self.front.detach(port.id(), port.config().ifindex) {
                tracing::debug!(%error, "the port was not detached");
            }
        }
        self.queues.release_packets();
    }

    /// Gives every device back what it was like, and opens what is closed: the node ends.
    pub(crate) fn restore(&mut self) {
        self.end_interceptions();
        self.closing.open(&mut Nftables(&self.name));
        self.ports.restore(&self.netlink);
        way_back::remove_entry(&self.netlink, &self.name);
    }
}

#[cfg(test)]
mod tests;
