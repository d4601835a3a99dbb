//! Door of a node: the front door (XDP), and for packet ports the rules by which the cell decides.
//!
//! ```text
//!             rules ─▶ ┌──────┐ ─▶ maps of the front door ─▶ XDP ports
//!  ports, heartbeats ─▶│ Door │
//!          counters ◀─ └──────┘ ─▶ memory, for the cell ───▶ packet ports
//! ```
//!
//! A node has one of the two, or both. Without a front door there is nothing of BPF: writes to it
//! are left out, and no service is below user level.

use super::mode::may_be_packets;
use super::port_shares::Payers;
use crate::config::NodeFile;
use anyhow::{Context, Result, bail};
use bpf::front_door::{
    Arrival, Attachment, Explainer, FlowsOfRule, FrontDoorError, RuleTable, StackCounter,
    StackDrops,
};
use bpf::{FrontDoor, Lane, VlanDevice, XdpMode};
use bpf_maps::{PortConfig, PortStats, RuleStats};
use cell::DoorCounts;
use node::classifier::RuleSet;
use node::desired::DesiredState;
use node::door::{Door as Decider, OwnSources};
use node::{Effect, Node, PortMode, PortSpec};
use std::os::fd::{BorrowedFd, OwnedFd};
use units::{EntryId, PortId, RuleId};

/// Reason for a node with packet ports to keep services at user level.
const ONLY_USER: &str = "a node with packet ports runs services at user level";

/// Front door and rules for the cell, whichever of them there is.
pub(crate) struct Door {
    front: Option<FrontDoor>,
    /// Reason for there being no front door.
    without: Option<String>,
    packets: Option<PacketDoor>,
    /// Rules that hold before the ports are there.
    first: RuleSet,
    /// Set once all ports were present: the kind of the node is then final.
    is_settled: bool,
    /// Counter of kernel drops of a node without a front door, where the kernel lets us have it.
    counter: Option<StackCounter>,
    uncounted: Option<String>,
}

/// Rules and counters by which the cell serves packet ports.
pub(crate) struct PacketDoor {
    counts: DoorCounts,
    /// Rules as the cell gets them.
    rules: Vec<u8>,
    installed: RuleSet,
    own: OwnSources,
    number: u64,
    /// Classifier equal to the cell's, for explanations.
    decider: Decider,
}

impl Door {
    /// Opens the door of a node: a front door, if the kernel permits one and a port needs it.
    ///
    /// # Errors
    /// A port can be served in no other way.
    pub(crate) fn open(
        ports: &[PortSpec],
        make: impl FnOnce() -> Result<FrontDoor>,
    ) -> Result<Self> {
        let is_packet = |port: &PortSpec| port.mode == PortMode::Packet;
        let (front, without) = if !ports.is_empty() && ports.iter().all(is_packet) {
            (None, Some("no port asks for XDP".to_owned()))
        } else {
            match make() {
                Ok(front) => (Some(front), None),
                Err(error) if ports.iter().all(may_be_packets) => {
                    (None, Some(format!("{error:#}")))
                }
                Err(error) => return Err(error),
            }
        };
        let packets = match ports.iter().any(is_packet) {
            true => Some(PacketDoor::create()?),
            false => None,
        };
        let (first, is_settled) = (RuleSet::default(), false);
        Ok(Self { front, without, packets, first, is_settled, counter: None, uncounted: None })
    }

    /// Creates the door of the front door that a previous daemon left; there were no packet ports.
    pub(crate) fn of(front: FrontDoor) -> Self {
        let first = RuleSet::default();
        Self {
            front: Some(front),
            without: None,
            packets: None,
            first,
            is_settled: true,
            counter: None,
            uncounted: None,
        }
    }

    /// Installs those rules of the desired state that need no service, before a port is there:
    /// no packet goes past a closed service that has yet to start, or cannot.
    ///
    /// # Errors
    /// The front door does not take them.
    pub(crate) fn close(&mut self, file: &NodeFile, desired: &DesiredState) -> Result<()> {
        // One that never runs: the node itself awaits the same rules when it resumes.
        let mut node = Node::new(file.name.clone(), file.ports.clone())?;
        node.await_rules(desired);
        while let Some(effect) = node.poll_effect() {
            if let Effect::InstallRules { rules, .. } = effect {
                self.install(&rules)
                    .context("installing rules for closed services before they start")?;
                self.first = rules;
            }
        }
        Ok(())
    }

    /// Ends the start: all ports are there that there are.
    pub(crate) fn settle(&mut self) {
        self.is_settled = true;
        self.first = RuleSet::default();
    }

    /// Returns the front door, or the reason for there being none.
    pub(crate) fn front(&self) -> Result<&FrontDoor, String> {
        let without = || self.without.clone().unwrap_or_default();
        self.front.as_ref().ok_or_else(without)
    }

    /// Returns the part for packet ports, if there are any.
    pub(crate) fn packets(&self) -> Option<&PacketDoor> {
        self.packets.as_ref()
    }

    /// Returns the reason for nothing running below user level because of the ports.
    pub(crate) fn only_user(&self) -> Option<String> {
        let because = self.without.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        self.packets.is_some().then(|| format!("{ONLY_USER}{because}"))
    }

    /// Begins with packet ports.
    ///
    /// # Errors
    /// The node has had none and runs: its services may be below user level.
    pub(crate) fn use_packets(&mut self) -> Result<()> {
        if self.packets.is_none() {
            if self.is_settled {
                bail!(
                    "a node that runs does not begin with packet sockets; start it anew for that"
                );
            }
            let mut packets = PacketDoor::create()?;
            packets.install(&self.first);
            self.packets = Some(packets);
        }
        Ok(())
    }

    /// Puts XDP on a port's device, in the first of these modes that goes. Returns that mode, and
    /// the reason against one before it.
    ///
    /// # Errors
    /// None goes.
    pub(crate) fn attach(
        &mut self,
        port: PortId,
        config: &PortConfig,
        modes: &[XdpMode],
    ) -> Result<(XdpMode, Option<String>)> {
        let without = self.without.clone().unwrap_or_default();
        let front = self.front.as_mut().with_context(|| format!("no XDP: {without}"))?;
        let Attachment { mode, refused } = front.attach_as(port, config, modes)?;
        Ok((mode, refused.map(|reason| reason.to_string())))
    }

    /// Puts the front door at the tcx ingress of a port's device.
    ///
    /// # Errors
    /// The node has no front door, or the kernel refuses.
    pub(crate) fn attach_tc(&mut self, port: PortId, config: &PortConfig) -> Result<()> {
        let without = self.without.clone().unwrap_or_default();
        let front = self.front.as_mut().with_context(|| format!("no BPF: {without}"))?;
        Ok(front.attach_tc(port, config)?)
    }

    /// Takes XDP off a port; of a packet port there is none.
    pub(crate) fn detach(&mut self, port: PortId, ifindex: u32) -> Result<(), FrontDoorError> {
        self.counter.as_ref().map_or(Ok(()), |counter| counter.forget(ifindex))?;
        self.front.as_mut().map_or(Ok(()), |front| front.detach(port, ifindex))
    }

    /// Tells the front door about a port.
    pub(crate) fn configure(
        &self,
        port: PortId,
        config: &PortConfig,
    ) -> Result<(), FrontDoorError> {
        self.with_front(|front| front.configure(port, config))
    }

    /// Tells the front door that the daemon is there.
    pub(crate) fn heartbeat(&self) -> Result<(), FrontDoorError> {
        self.with_front(FrontDoor::heartbeat)
    }

    /// Empties the caches of routes.
    pub(crate) fn invalidate(&self) {
        if let Some(front) = &self.front {
            front.invalidate();
        }
    }

    /// Names the VLAN devices above ports.
    pub(crate) fn set_vlans(&mut self, vlans: &[VlanDevice]) -> Result<(), FrontDoorError> {
        self.counter.as_mut().map_or(Ok(()), |counter| counter.set_vlans(vlans))?;
        self.front.as_mut().map_or(Ok(()), |front| front.set_vlans(vlans))
    }

    /// Sets the machine's own addresses; returns true if the cell must be notified.
    ///
    /// # Errors
    /// The front door cannot be written to.
    pub(crate) fn set_own(&mut self, own: OwnSources) -> Result<bool, FrontDoorError> {
        self.with_front(|front| front.set_own(own.prefixes()))?;
        let Some(packets) = self.packets.as_mut().filter(|packets| packets.own != own) else {
            return Ok(false);
        };
        packets.own = own.clone();
        packets.encode();
        packets.decider.set_own(own);
        Ok(true)
    }

    /// Names the devices by which packets come up to the cell, and go from there to the kernel.
    ///
    /// # Errors
    /// The cell's questions cannot be answered there.
    pub(crate) fn set_devices(&self, up: u32, kernel: u32) -> Result<(), FrontDoorError> {
        self.with_front(|front| {
            front.set_raise_device(Some(up));
            front.set_kernel_device(kernel);
            front.answer_at(up)
        })
    }

    /// Begins to count what the kernel drops of what it is left, where that can be
    /// ([`Door::uncounted`]). Without a front door `served` has the ports that are there, and
    /// `device` is the one by which the cell hands packets to the kernel.
    pub(crate) fn count_stack_drops<'a>(
        &mut self,
        mut served: impl Iterator<Item = (PortId, &'a PortConfig)>,
        device: u32,
    ) {
        let counted = match &mut self.front {
            Some(front) => front.count_stack_drops(),
            None => StackCounter::start(device).and_then(|counter| {
                served.try_for_each(|(port, config)| counter.know(port, config))?;
                self.counter = Some(counter);
                Ok(())
            }),
        };
        self.uncounted = counted.err().map(|problem| problem.to_string());
    }

    /// Returns the reason for which drops by the kernel, of packets left to it, are not counted.
    pub(crate) fn uncounted(&self) -> Option<&str> {
        self.uncounted.as_deref()
    }

    /// Reads the kernel's drops of what came in there.
    pub(crate) fn stack_drops(&self, arrival: Arrival) -> StackDrops {
        // Refused by no map that is there.
        match &self.counter {
            Some(counter) => counter.drops(arrival).unwrap_or_default(),
            None => self.with_front(|front| front.stack_drops(arrival)).unwrap_or_default(),
        }
    }

    /// Lets packets leave by a packet port, if there is a front door that could send them there.
    pub(crate) fn know_packet_port(
        &self,
        port: PortId,
        config: &PortConfig,
    ) -> Result<(), FrontDoorError> {
        self.counter.as_ref().map_or(Ok(()), |counter| counter.know(port, config))?;
        self.with_front(|front| front.register(port, config))
    }

    /// Sets the socket that packets of a port's queue come to; without one they go plainly.
    pub(crate) fn set_socket(
        &self,
        port: PortId,
        queue: u32,
        socket: Option<BorrowedFd<'_>>,
    ) -> Result<(), FrontDoorError> {
        self.with_front(|front| front.set_socket(port, queue, socket))
    }

    /// Returns the payers of port share accounts, as a previous daemon left them.
    pub(crate) fn payers_of_port_shares(&self) -> Payers {
        let payers = self.front.as_ref().map(|front| front.accounts().payers_of_port_shares());
        let payers = payers.and_then(Result::ok).unwrap_or_default();
        payers.into_iter().map(|(port, session, account)| ((port, session), account)).collect()
    }

    /// Returns the lane of a service that can leave user level.
    pub(crate) fn lane(&self, entry: EntryId) -> Option<Lane<'_>> {
        self.front.as_ref()?.lanes().lane(entry)
    }

    /// Installs rules; those of packet ports must also be sent to the cell.
    pub(crate) fn install(&mut self, rules: &RuleSet) -> Result<(), FrontDoorError> {
        if let Some(packets) = &mut self.packets {
            packets.install(rules);
        }
        let Some(front) = &mut self.front else { return Ok(()) };
        let of_rule = |list: &node::classifier::ListedFlows| FlowsOfRule {
            mask: list.mask,
            template: list.template,
            flows: list.flows.keys().clone(),
            rule: list.rule,
        };
        let lists: Vec<FlowsOfRule> = rules.lists.iter().map(of_rule).collect();
        let shown = RuleTable { masks: &rules.masks, entries: &rules.entries };
        let hidden = RuleTable { masks: &rules.hidden.masks, entries: &rules.hidden.entries };
        front.install_with_hidden(shown, hidden, &lists)
    }

    /// Returns the counters of what came in by a port, wherever it was counted.
    pub(crate) fn port_stats(&self, port: PortId) -> Result<PortStats, FrontDoorError> {
        let here = self.packets.as_ref().map(|packets| packets.counts.port(port));
        let Some(front) = &self.front else { return Ok(here.unwrap_or_default()) };
        let mut sum = front.port_stats(port)?;
        if let Some(here) = here {
            sum.rx_packets += here.rx_packets;
            sum.rx_bytes += here.rx_bytes;
            sum.outcomes.iter_mut().zip(here.outcomes).for_each(|(sum, one)| *sum += one);
        }
        Ok(sum)
    }

    /// Returns the counters of the packets that a rule was the best match of.
    pub(crate) fn rule_stats(&self, rule: RuleId) -> Result<RuleStats, FrontDoorError> {
        let here = self.packets.as_ref().map(|packets| packets.counts.rule(rule));
        let mut sum = here.unwrap_or_default();
        if let Some(front) = &self.front {
            let there = front.rule_stats(rule)?;
            sum.packets += there.packets;
            sum.bytes += there.bytes;
        }
        Ok(sum)
    }

    /// Clears the counters of a rule.
    pub(crate) fn clear_rule_stats(&self, rule: RuleId) -> Result<(), FrontDoorError> {
        if let Some(packets) = &self.packets {
            packets.counts.clear_rule(rule);
        }
        self.with_front(|front| front.clear_rule_stats(rule))
    }

    /// Returns the number of the rules in use.
    pub(crate) fn generation(&self) -> u64 {
        let packets = || self.packets.as_ref().map_or(0, |packets| packets.number);
        self.front.as_ref().map_or_else(packets, FrontDoor::generation)
    }

    /// Returns a runner of a copy of the front door.
    ///
    /// # Errors
    /// The node has no front door, or the kernel does not let the copy run.
    pub(crate) fn explainer(&self) -> Result<Explainer, String> {
        self.front()?.explainer().map_err(|problem| problem.to_string())
    }

    /// Calls a function of the front door; returns the default where there is none.
    pub(crate) fn with_front<T: Default>(
        &self,
        act: impl FnOnce(&FrontDoor) -> Result<T, FrontDoorError>,
    ) -> Result<T, FrontDoorError> {
        self.front.as_ref().map_or_else(|| Ok(T::default()), act)
    }
}

impl PacketDoor {
    /// Returns the counters, which the cell shares.
    pub(crate) const fn counts(&self) -> &DoorCounts {
        &self.counts
    }

    /// Returns the number of the rules.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns what decides as the cell does.
    pub(crate) const fn decider(&self) -> &Decider {
        &self.decider
    }

    /// Returns the rules in sealed memory.
    ///
    /// # Errors
    /// The kernel does not make it.
    pub(crate) fn sealed_rules(&self) -> Result<OwnedFd> {
        sandbox::fd_passing::sealed_memory("tam-rules", &self.rules)
            .context("copying the rules into shared memory")
    }

    fn create() -> Result<Self> {
        let counts = DoorCounts::create().context("making the counters of packet ports")?;
        let decider = Decider::default();
        let (installed, own) = (RuleSet::default(), OwnSources::default());
        let rules = node::door::rules::encode(&installed, &own);
        Ok(Self { counts, rules, installed, own, number: 0, decider })
    }

    /// Encodes the rules for the cell, under a new number.
    fn encode(&mut self) {
        self.rules = node::door::rules::encode(&self.installed, &self.own);
        self.number += 1;
    }

    fn install(&mut self, rules: &RuleSet) {
        self.installed = rules.clone();
        self.encode();
        self.decider.install(rules.clone());
    }
}

/// Draws the random factors of the front door's hash.
pub(crate) fn hash_keys() -> Result<[u64; bpf_maps::HASH_KEYS]> {
    let mut bytes = [[0; 8]; bpf_maps::HASH_KEYS];
    getrandom::fill(bytes.as_flattened_mut()).context("drawing random bytes for a hash")?;
    Ok(bytes.map(u64::from_ne_bytes))
}

#[cfg(test)]
mod tests;
