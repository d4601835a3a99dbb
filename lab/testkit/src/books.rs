//! Packet accounts of a lab: sent packets, received packets, and drops by their counters' names.
//!
//! ```text
//!  sent (hosts' own counts) = received (the other hosts') + the drops of
//!       the devices of all hosts and of the node, the front door, the sockets of the cell,
//!       the services, the cell, the kernel's stack of what is left to it
//! ```
//!
//! Counted are whole IPv4 packets: TCP segments, UDP datagrams and ICMP messages below the MTU.
//! Neighbour discovery and other background traffic of IPv6 would disturb the counts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use api::{ServiceStats, Stats};

use crate::net::Net;
use crate::node::NodeUnderTest;
use crate::wait_for;

/// Time within which packets in flight have arrived, on a busy machine.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(5);
/// Interval between two readings of the counters while waiting for rest.
const SETTLE_STEP: Duration = Duration::from_millis(100);

/// Counters of a lab at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Counters of the node.
    pub node: Stats,
    sent: u64,
    received: u64,
    unread: u64,
    devices: BTreeMap<String, u64>,
}

/// Changes between two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// IPv4 packets that hosts sent.
    pub sent: u64,
    /// IPv4 packets that hosts received.
    pub received: u64,
    /// Received UDP datagrams that a host dropped because their socket was full.
    pub unread: u64,
    /// Packets dropped on their path, by the counter's name; none is zero.
    pub drops: BTreeMap<String, u64>,
}

impl Books {
    /// Reads the counters once no packet is in flight any more.
    ///
    /// # Errors
    /// The node does not answer, or its counters do not come to rest.
    pub fn settled(net: &Net, node: &NodeUnderTest) -> Result<Self> {
        let mut last = Self::open(net, node)?;
        let settled = wait_for(SETTLE_TIME_MAX, || {
            std::thread::sleep(SETTLE_STEP);
            let next = match Self::open(net, node) {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            let same = next.at_rest() == last.at_rest();
            last = next;
            same.then(|| Ok(last.clone()))
        });
        settled.context("packets are still on their way")?
    }

    /// Reads the current counters.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn open(net: &Net, node: &NodeUnderTest) -> Result<Self> {
        let mut books = Self { node: node.stats()?, ..Self::default() };
        for planned in &net.plan().nodes {
            let name = planned.name.as_str();
            if planned.kind == topology::NodeKind::Host {
                let counters = net.within(name, counters)??;
                books.sent += counters.sum(&SENT)?;
                books.received += counters.sum(&RECEIVED)?;
                books.unread += counters.sum(&UNREAD)?;
            }
            let netlink = net.netlink(name)?;
            for (_, end) in net.plan().ends_at(name) {
                // A frame lost on its link is counted by the sender's device; the receiver's
                // `rx_dropped` has the same ones once more.
                let dropped = netlink.link(&end.device)?.stats.tx_packets_dropped.0;
                books.devices.insert(format!("{name}.{}.tx_dropped", end.device), dropped);
            }
        }
        Ok(books)
    }

    /// Returns the changes since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Balance {
        let (now, then) = (self.drops(), before.drops());
        let grown = |(name, count): (String, u64)| {
            let since = count.saturating_sub(then.get(&name).copied().unwrap_or(0));
            (since > 0).then_some((name, since))
        };
        Balance {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            unread: self.unread - before.unread,
            drops: now.into_iter().filter_map(grown).collect(),
        }
    }

    /// Returns every counter of dropped packets, each packet in one of them.
    fn drops(&self) -> BTreeMap<String, u64> {
        let mut drops = self.devices.clone();
        for port in &self.node.ports {
            let dropped = port.outcomes.iter().filter(|(name, _)| name.starts_with("drop_"));
            drops.extend(dropped.map(|(name, n)| (format!("{}.{name}", port.port), *n)));
            drops.insert(format!("{}.socket_ring_full", port.port), port.socket_ring_full);
            drops.insert(format!("{}.socket_dropped", port.port), port.socket_dropped);
            let stack = port.stack_dropped.iter();
            drops.extend(stack.map(|(why, n)| (format!("{}.{why}", port.port), *n)));
        }
        for (service, stats) in &self.node.services {
            drops.extend(stats.dropped.iter().map(|(why, n)| (format!("{service}.{why}"), *n)));
        }
        let cell = &self.node.cell;
        drops.insert("cell.no_service".to_owned(), cell.no_service_dropped);
        drops.insert("cell.oversized".to_owned(), cell.oversized);
        drops.insert("cell.no_metadata".to_owned(), cell.no_metadata);
        drops.insert("cell.up_dropped".to_owned(), cell.up_dropped);
        drops.insert("cell.lost_with_cells".to_owned(), cell.lost_with_cells);
        drops.insert("cell.egress_gone".to_owned(), cell.egress_gone);
        drops.extend(cell.stack_dropped.iter().map(|(why, n)| (format!("cell.{why}"), *n)));
        let active = self.node.associations.iter().flat_map(|it| &it.dropped);
        drops.extend(active.map(|(why, n)| (format!("cell.{why}"), *n)));
        drops
    }

    /// Returns the values that do not change while no packet is in flight.
    fn at_rest(&self) -> (u64, u64, Vec<u64>, Vec<u64>) {
        let ports = self.node.ports.iter().map(|port| port.rx_packets).collect();
        let services = self.node.services.values().map(|service| service.packets).collect();
        (self.sent, self.received, ports, services)
    }
}

impl Balance {
    /// Returns the sum of all drops.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Returns true if sent = received + the sum of drop counters.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.sent == self.received + self.dropped()
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.dropped();
        write!(f, "sent {} = received {} + dropped {dropped}", self.sent, self.received)?;
        self.drops.iter().try_for_each(|(name, count)| write!(f, "; {name} {count}"))
    }
}

/// Returns contradictions between the node's own counters, one sentence each; for a node at rest
/// from which no service was removed.
#[must_use]
pub fn inconsistencies(stats: &Stats) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: String, left: u64, right: u64| {
        if left != right {
            found.push(format!("{what}: {left} is not {right}"));
        }
    };
    let (mut to_services, mut lost) = (0, 0);
    for port in &stats.ports {
        let outcomes = port.outcomes.values().sum();
        differ(format!("port {}: rx_packets and outcomes", port.port), port.rx_packets, outcomes);
        for outcome in ["to_user", "to_nic", "to_kernel_module"] {
            to_services += port.outcomes.get(outcome).copied().unwrap_or(0);
        }
        lost += port.socket_ring_full + port.socket_dropped;
    }
    for (name, service) in &stats.services {
        differ(format!("service {name}: packets and ends"), service.packets, ends(service));
    }
    let cell = &stats.cell;
    let served: u64 = stats.services.values().map(|service| service.packets).sum();
    let passed_on: u64 = stats.services.values().map(|service| service.passed_on).sum();
    let beside = cell.no_service + cell.oversized + cell.no_metadata + cell.up_dropped;
    // The cell opens active packets; those that are calls come to services, too.
    let active = stats.associations.as_ref().map_or(0, |it| {
        let past_cell = it.dropped.get("active_past_cell").copied().unwrap_or(0);
        it.to_kernel + it.waiting + it.dropped.values().sum::<u64>() - past_cell
    });
    let ended = served + beside + lost + active;
    differ("given to services, and where it went".to_owned(), to_services + passed_on, ended);
    found
}

fn ends(service: &ServiceStats) -> u64 {
    let left = service.forwarded + service.to_kernel + service.bounced + service.redirected;
    left + service.passed_on
        + service.consumed
        + service.plain
        + service.dropped.values().sum::<u64>()
}

/// Counters of packets that a host sent, whether its own device accepted them or not:
/// `/proc/net/snmp`.
const SENT: [(&str, &str); 5] = [
    ("Tcp", "OutSegs"),
    // Not among the others (net/ipv4/tcp_output.c, Linux 6.18).
    ("Tcp", "RetransSegs"),
    ("Udp", "OutDatagrams"),
    // The device's queue was full: the program sees no error, and the device counts it.
    ("Udp", "SndbufErrors"),
    ("Icmp", "OutMsgs"),
];
/// Counters of packets that a host received, by the ECN field: unlike `InReceives` they count the
/// packets that GRO merged one by one (`/proc/net/netstat`).
const RECEIVED: [(&str, &str); 4] = [
    ("IpExt", "InNoECTPkts"),
    ("IpExt", "InECT1Pkts"),
    ("IpExt", "InECT0Pkts"),
    ("IpExt", "InCEPkts"),
];
/// Counter of packets that found a host's socket full.
const UNREAD: [(&str, &str); 1] = [("Udp", "RcvbufErrors")];

/// Kernel counters of the calling thread's namespace, by group and name.
struct Counters(BTreeMap<(String, String), u64>);

impl Counters {
    fn sum(&self, names: &[(&str, &str)]) -> Result<u64> {
        let one = |(group, name): &(&str, &str)| {
            let found = self.0.get(&((*group).to_owned(), (*name).to_owned()));
            found.copied().with_context(|| format!("the kernel has no counter {group} {name}"))
        };
        names.iter().map(one).sum()
    }
}

/// Parses pairs of lines: `Group: name name ...` and `Group: value value ...`.
fn counters() -> Result<Counters> {
    let mut counters = BTreeMap::new();
    for file in ["/proc/thread-self/net/snmp", "/proc/thread-self/net/netstat"] {
        let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks_exact(2) {
            let mut names = pair[0].split_whitespace();
            let group = names.next().unwrap_or_default().trim_end_matches(':').to_owned();
            let values = pair[1].split_whitespace().skip(1).map(|v| v.parse().unwrap_or(0));
            counters.extend(names.zip(values).map(|(n, v)| ((group.clone(), n.to_owned()), v)));
        }
    }
    Ok(Counters(counters))
}
