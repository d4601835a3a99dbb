//! Line of three network namespaces, which every benchmark uses.
//!
//! ```text
//! source            node                       destination
//! s0 10.200.0.1 ═══ n0 10.200.0.2
//!                   n1 10.200.1.1 ═══════════ d0 10.200.1.2, and all of 10.201.0.0/16
//! ```
//!
//! [`Line::beyond`] adds a fourth behind the destination, to which no packet is routed:
//!
//! ```text
//! destination                      far
//! d0 ─ who carries frames ─ e0 ═══ f0 10.200.1.2, and all of 10.203.0.0/16
//! ```
//!
//! Addresses, MACs and neighbours are fixed: nothing is resolved during a measurement. The
//! namespaces are deleted on drop.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use namespaces::netns::{self, NetNs};
use netlink::offload::{self, Offload};

use crate::{NAMESPACE_PREFIX, Plan, Service, device_counters};

/// MAC of s0.
pub(crate) const MAC_SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// MAC of n0.
pub(crate) const MAC_IN: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// MAC of n1.
pub(crate) const MAC_OUT: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// MAC of d0.
pub(crate) const MAC_DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 4];
/// Address of the source.
pub(crate) const ADDRESS_SOURCE: [u8; 4] = [10, 200, 0, 1];
/// Address of the node's first port.
pub(crate) const ADDRESS_IN: [u8; 4] = [10, 200, 0, 2];
/// Destination of the traffic: one of the many addresses of the destination namespace.
pub(crate) const ADDRESS_FAR: [u8; 4] = [10, 201, 0, 1];

/// CPU of the measured program: the generator and all interrupts have CPU 0.
pub(crate) const NODE_CPU: usize = 1;

/// Device that frames enter the node by.
pub(crate) const PORT_IN: &str = "n0";
/// Device that frames leave the node by.
pub(crate) const PORT_OUT: &str = "n1";

/// Device of the destination namespace that faces the node.
pub(crate) const NEAR_END: &str = "d0";
/// Device of the destination namespace that faces the namespace beyond ([`Line::beyond`]).
pub(crate) const FAR_END: &str = "e0";

/// Sysctls of a host with many connections, open and closed.
const TCP: [(&str, &str); 4] = [
    ("net.ipv4.ip_local_port_range", "1024 65000"),
    ("net.core.somaxconn", "4096"),
    ("net.ipv4.tcp_max_syn_backlog", "4096"),
    ("net.ipv4.tcp_tw_reuse", "1"),
];

/// Packets queued in front of a far end, as in front of a network card. Without such a queue a veth
/// drops packets beyond the 256 of its ring, with one they wait (Linux 6.16): a twentieth of the
/// packets of sixteen bulk transfers.
const QUEUED_MAX: &str = "1000";

/// Line of namespaces.
#[derive(Debug)]
pub(crate) struct Line {
    /// Namespace with s0.
    pub(crate) source: NetNs,
    /// Namespace with n0 and n1.
    pub(crate) node: NetNs,
    /// Namespace with d0.
    pub(crate) destination: NetNs,
    _removal: Removal,
}

/// Namespace behind a line's destination.
#[derive(Debug)]
pub(crate) struct Far {
    /// Namespace with f0, which answers for 10.203.0.0/16.
    pub(crate) namespace: NetNs,
    _removal: Removal,
}

/// Deletes the namespaces of these names, and with them their devices, on drop.
#[derive(Debug)]
struct Removal(Vec<String>);

impl Drop for Removal {
    fn drop(&mut self) {
        for name in &self.0 {
            // A namespace that is gone needs no removal.
            let _ = netns::delete(name);
        }
    }
}

impl Line {
    /// Makes a line; `name` is unique within the run.
    ///
    /// Replaces one left behind by a run that was killed.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let names = ["s", "n", "d"].map(|end| format!("{NAMESPACE_PREFIX}{name}-{end}"));
        // Removes leftovers first, and what we make if we fail on the way.
        drop(Removal(names.to_vec()));
        let removal = Removal(names.to_vec());
        let [source, node, destination] = names.each_ref().map(|name| NetNs::create(name));
        let line =
            Self { source: source?, node: node?, destination: destination?, _removal: removal };
        line.connect(&names)?;
        line.address()?;
        line.settle()?;
        Ok(line)
    }

    /// Makes a line that carries TCP ([`Line::carry_tcp`]).
    pub(crate) fn of_tcp(name: &str) -> Result<Self> {
        let line = Self::new(name)?;
        line.carry_tcp()?;
        Ok(line)
    }

    /// Returns the index of a device in a namespace.
    pub(crate) fn ifindex(namespace: &NetNs, device: &str) -> Result<u32> {
        netns::in_namespace(namespace, || {
            use rustix::net::{AddressFamily, SocketType, netdevice, socket};
            let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
            Ok(netdevice::name_to_index(&any, device)?)
        })?
        .map_err(|error: std::io::Error| anyhow::anyhow!("finding the device {device}: {error}"))
    }

    /// Returns the plan of a node between the two ends, its cell on [`NODE_CPU`].
    pub(crate) fn plan(&self, name: &str, service: Option<Service>) -> Plan {
        Plan {
            name: name.to_owned(),
            namespace: self.node.name().to_owned(),
            ports: [PORT_IN.to_owned(), PORT_OUT.to_owned()],
            service,
            rule: None,
            cell_cpu: NODE_CPU,
            ledger_every: None,
            rate: None,
            is_called: false,
            at_tc: false,
            serves: None,
            repository: None,
        }
    }

    /// Sets the MTU of its devices, in bytes.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<()> {
        for (namespace, devices) in
            [(&self.source, &["s0"][..]), (&self.node, &["n0", "n1"]), (&self.destination, &["d0"])]
        {
            let lines: String =
                devices.iter().map(|device| format!("link set {device} mtu {mtu}\n")).collect();
            ip(namespace, &lines)?;
        }
        Ok(())
    }

    /// Connects the node's namespace to another line's, by devices that are no ports: 10.202.0.1
    /// here, 10.202.0.2 there.
    pub(crate) fn join(&self, other: &Self) -> Result<()> {
        let there = other.node.name();
        ip(
            &self.node,
            &format!(
                "link add j0 type veth peer name j0 netns {there}\nlink set j0 up\n\
                 addr add 10.202.0.1/30 dev j0\n"
            ),
        )?;
        ip(&other.node, "link set j0 up\naddr add 10.202.0.2/30 dev j0\n")
    }

    /// Adds a namespace behind the destination. The caller carries frames between [`NEAR_END`] and
    /// [`FAR_END`] and so sets the distance: the kernel routes by neither. Its frames are those of
    /// a wire, whole and no longer than the MTU.
    pub(crate) fn beyond(&self) -> Result<Far> {
        let name = format!("{}-far", self.destination.name());
        let removal = Removal(vec![name.clone()]);
        // Removes one left by a run that was killed.
        let _ = netns::delete(&name);
        let namespace = NetNs::create(&name)?;
        let far = Far { namespace, _removal: removal };
        let (outside, destination) = (mac_text(MAC_OUT), mac_text(MAC_DESTINATION));
        // Frames are carried as they are: the far end has the destination's addresses.
        ip(
            &self.destination,
            &format!(
                "link add {FAR_END} type veth peer name f0 address {destination} netns {name}\n\
                 link set {FAR_END} up\n"
            ),
        )?;
        ip(
            &far.namespace,
            &format!(
                "link set lo up\nlink set f0 up\naddr add 10.200.1.2/24 dev f0\n\
                 neigh add 10.200.1.1 lladdr {outside} dev f0 nud permanent\n\
                 route add default via 10.200.1.1\nroute add local 10.203.0.0/16 dev lo\n"
            ),
        )?;
        ip(&self.node, "route add 10.203.0.0/16 via 10.200.1.2\n")?;
        netns::in_namespace(&self.destination, || {
            namespaces::sysctl::write("net.ipv4.ip_forward", "0")
        })??;
        netns::in_namespace(&far.namespace, || {
            offload::disable("f0", &[Offload::TxChecksum, Offload::Tso, Offload::Gso]).map(drop)
        })??;
        netns::in_namespace(&far.namespace, || {
            TCP.iter().try_for_each(|(key, value)| namespaces::sysctl::write(key, value))
        })??;
        Ok(far)
    }

    /// Makes the line carry TCP as a wire does: its far ends send frames of the MTU, and there are
    /// L4 ports for as many connections as a load makes.
    pub(crate) fn carry_tcp(&self) -> Result<()> {
        for (namespace, device) in [(&self.source, "s0"), (&self.destination, "d0")] {
            netns::in_namespace(namespace, || {
                offload::disable(device, &[Offload::Tso, Offload::Gso]).map(drop)
            })??;
            let queue = ["replace", "dev", device, "root", "pfifo", "limit", QUEUED_MAX];
            tc(namespace, &queue, "giving a far end a queue")?;
        }
        for namespace in [&self.source, &self.node, &self.destination] {
            netns::in_namespace(namespace, || {
                TCP.iter().try_for_each(|(key, value)| namespaces::sysctl::write(key, value))
            })??;
        }
        Ok(())
    }

    fn connect(&self, names: &[String; 3]) -> Result<()> {
        // One queue each: a device takes redirected frames only when it has as
        // many transmit queues as its peer has receive queues.
        let queues = "numtxqueues 1 numrxqueues 1";
        let pair = |device: &str, mac, peer: &str, peer_mac, namespace: &str| {
            format!(
                "link add {device} address {} {queues} type veth peer name {peer} address {} \
                 {queues} netns {namespace}\n",
                mac_text(mac),
                mac_text(peer_mac)
            )
        };
        let in_source = pair("s0", MAC_SOURCE, PORT_IN, MAC_IN, &names[1]);
        let in_node = pair(PORT_OUT, MAC_OUT, "d0", MAC_DESTINATION, &names[2]);
        ip(&self.source, &in_source)?;
        ip(&self.node, &in_node)
    }

    fn address(&self) -> Result<()> {
        let sysctls = ["net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6"];
        for namespace in [&self.source, &self.node, &self.destination] {
            netns::in_namespace(namespace, || {
                // A kernel without IPv6 has nothing to switch off.
                sysctls.iter().for_each(|key| drop(namespaces::sysctl::write(key, "1")));
            })?;
        }
        let (source, inside) = (mac_text(MAC_SOURCE), mac_text(MAC_IN));
        let (outside, destination) = (mac_text(MAC_OUT), mac_text(MAC_DESTINATION));
        ip(
            &self.source,
            &format!(
                "link set lo up\nlink set s0 up\naddr add 10.200.0.1/24 dev s0\n\
                 neigh add 10.200.0.2 lladdr {inside} dev s0 nud permanent\n\
                 route add default via 10.200.0.2\n"
            ),
        )?;
        ip(
            &self.node,
            &format!(
                "link set lo up\nlink set n0 up\nlink set n1 up\n\
                 addr add 10.200.0.2/24 dev n0\naddr add 10.200.1.1/24 dev n1\n\
                 neigh add 10.200.0.1 lladdr {source} dev n0 nud permanent\n\
                 neigh add 10.200.1.2 lladdr {destination} dev n1 nud permanent\n\
                 route add 10.201.0.0/16 via 10.200.1.2\n"
            ),
        )?;
        ip(
            &self.destination,
            &format!(
                "link set lo up\nlink set d0 up\naddr add 10.200.1.2/24 dev d0\n\
                 neigh add 10.200.1.1 lladdr {outside} dev d0 nud permanent\n\
                 route add default via 10.200.1.1\nroute add local 10.201.0.0/16 dev lo\n"
            ),
        )
    }

    fn settle(&self) -> Result<()> {
        // Without a program, a veth device takes redirected frames only with
        // GRO: that is what gives it a receive ring (drivers/net/veth.c).
        for (namespace, devices) in
            [(&self.source, &["s0"][..]), (&self.node, &["n0", "n1"]), (&self.destination, &["d0"])]
        {
            netns::in_namespace(namespace, || {
                devices
                    .iter()
                    .try_for_each(|device| offload::enable(device, &[Offload::Gro]).map(drop))
            })??;
        }
        netns::in_namespace(&self.node, || -> Result<(), namespaces::sysctl::SysctlError> {
            namespaces::sysctl::write("net.ipv4.ip_forward", "1")?;
            for key in ["all", "default", PORT_IN, PORT_OUT] {
                namespaces::sysctl::write(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
            }
            Ok(())
        })??;
        Ok(())
    }
}

/// Limits what a device sends, in Mbit/s, or with `None` removes the limit.
pub(crate) fn limit(namespace: &NetNs, device: &str, rate: Option<u32>) -> Result<()> {
    let text = rate.map_or_else(String::new, |rate| format!("{rate}mbit"));
    let limited = ["replace", "dev", device, "root", "tbf", "rate", &text];
    let limited = limited.into_iter().chain(["burst", "16kb", "latency", "50ms"]);
    match rate {
        Some(_) => tc(namespace, &limited.collect::<Vec<_>>(), "limiting a device"),
        None => tc(namespace, &["del", "dev", device, "root"], "limiting a device no more"),
    }
}

/// Changes the queueing discipline of a device of a namespace.
fn tc(namespace: &NetNs, arguments: &[&str], what: &str) -> Result<()> {
    let mut command = Command::new("tc");
    netns::command_in(namespace, command.arg("qdisc").args(arguments))?;
    let output = command.output().context("running 'tc': is the package iproute2 there?")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: tc qdisc {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

/// Returns the bytes that a device has received and sent.
pub(crate) fn bytes(namespace: &NetNs, device: &str) -> Result<[u64; 2]> {
    let text = netns::in_namespace(namespace, || {
        std::fs::read_to_string("/proc/thread-self/net/dev").context("reading what devices count")
    })??;
    let column = |at| device_counters::column(&text, device, at);
    column(0)
        .zip(column(8))
        .map(<[u64; 2]>::from)
        .with_context(|| format!("/proc/net/dev does not show the device {device}"))
}

/// Refuses a machine where the measured program has no CPU of its own.
pub(crate) fn needs_two_cpus() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(cores > NODE_CPU, "this benchmark needs two CPUs, and there is only one");
    Ok(())
}

/// Makes the line of a benchmark that needs only one.
pub(crate) fn only(name: &str, progress: &mut dyn FnMut(&str)) -> Result<Line> {
    needs_two_cpus()?;
    progress("making a line of namespaces");
    Line::new(name)
}

/// Runs iproute2 commands, one a line, inside a namespace.
fn ip(namespace: &NetNs, batch: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = netns::command_in(namespace, &mut command)?
        .spawn()
        .context("running 'ip': is the package iproute2 installed?")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(batch.as_bytes()).context("writing to 'ip'")?;
    }
    let output = child.wait_with_output().context("waiting for 'ip'")?;
    ensure!(
        output.status.success(),
        "setting up the namespace {}: {}",
        namespace.name(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Formats a MAC address as iproute2 does.
pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
