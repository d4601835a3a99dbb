//! Conformance table on real devices: every case whose frames a router accepts, with the verdict
//! and the bytes of `tam run`'s engine, and the node's own changes to them.
//!
//! The hosts' and the router's devices get the table's MAC addresses, so that a frame of the table
//! is a frame on the wire. Events go to the log; this test does not read them.

use std::time::Duration;

use ::conformance::{Case, Ending, cases};
use api::{DeployRequest, ServiceStats};
use netlink::{AddressPrefix, Netlink, Route};
use testkit::{Net, NodeUnderTest, RawPort, root_or_skip, wait_for};
use wire::build::{DEFAULT_DESTINATION_MAC, DEFAULT_SOURCE_MAC};
use wire::{parse_frame, rewrite};

use crate::common::{Line, SOON};

/// Length of an Ethernet header without tags.
const ETHERNET_LENGTH: usize = 14;
/// Shortest frame of Ethernet in bytes, without its checksum.
const FRAME_LENGTH_MIN: usize = 60;
/// Longest frame of a link with an MTU of 9,000.
const FRAME_LENGTH_MAX: usize = 9014;
/// Networks of the table's addresses; all of them are behind the server.
const NETWORKS: [(&str, u8); 4] =
    [("10.0.1.0", 24), ("10.0.2.0", 24), ("fd00:1::", 64), ("fd00:2::", 64)];
/// Fewest cases that have to remain without those that no device can carry.
const CASES_MIN: usize = 120;

#[test]
fn real_devices_agree_with_the_table() {
    if !root_or_skip("conformance on devices") {
        return;
    }
    agree(&Bench::up(|text| text), |_| true);
}

#[test]
fn packet_ports_agree_with_the_table() {
    if !root_or_skip("conformance of packet ports") {
        return;
    }
    // A frame that passes goes back with its tags, and no VLAN device of the router takes it.
    // A packet socket has no room for a tag in a frame without one.
    let untagged = |case: &Case| {
        let frames = [Some(&case.frame), case.expected.frame.as_ref()];
        frames.into_iter().flatten().all(|frame| l3_offset(frame).is_none_or(|at| at == 14))
            && case.expected.sent.iter().all(|sent| sent.frame.len() <= FRAME_LENGTH_MAX)
    };
    agree(&Bench::up(crate::packet::as_packets), untagged);
}

fn agree(bench: &Bench, chosen: impl Fn(&Case) -> bool) {
    let cases = cases();
    let carried = |case: &&Case| {
        case.is_routable()
            // A frame that no longer holds an IP packet is dropped.
            && case.expected.frame.as_ref().is_none_or(|frame| frame.len() > ETHERNET_LENGTH)
            && case.before.iter().chain([&case.frame]).all(|f| f.len() <= FRAME_LENGTH_MAX)
            && chosen(case)
    };
    let carried: Vec<&Case> = cases.iter().filter(carried).collect();
    assert!(carried.len() >= CASES_MIN, "{} of {} cases", carried.len(), cases.len());
    let mut differences = Vec::new();
    for case in &carried {
        if let Err(difference) = bench.run(case) {
            differences.push(format!("{}:{}: {}: {difference}", case.file, case.line, case.name));
        }
    }
    let count = differences.len();
    assert!(count == 0, "{count} of {} cases:\n{}", carried.len(), differences.join("\n"));
}

/// Usual lab with the table's addresses.
struct Bench {
    line: Line,
    client: RawPort,
    server: RawPort,
    /// MAC addresses of a packet that leaves to the server.
    next_hop: [u8; 6],
    own: [u8; 6],
}

impl Bench {
    fn up(edit: impl FnOnce(String) -> String) -> Self {
        let net = Net::line(9000).unwrap();
        set_mac(&net, "client", "r1", DEFAULT_SOURCE_MAC);
        set_mac(&net, "r1", "client", DEFAULT_DESTINATION_MAC);
        let netlink = net.netlink("r1").unwrap();
        for (network, length) in NETWORKS {
            let address: std::net::IpAddr = network.parse().unwrap();
            let end = net.end("server", "r1").unwrap();
            let via = if address.is_ipv4() { end.v4 } else { end.v6 }.address();
            let destination = AddressPrefix::new(address, length).unwrap();
            netlink.add_route(&Route { destination, via: Some(via), index: None }).unwrap();
        }
        let node = NodeUnderTest::start_edited(&net, "r1", "", edit).unwrap();
        let line = Line { node, net };
        line.resolve_neighbours();
        Self {
            client: RawPort::open(&line.net, "client", "r1").unwrap(),
            server: RawPort::open(&line.net, "server", "r1").unwrap(),
            next_hop: line.net.mac("server", "r1").unwrap(),
            own: line.net.mac("r1", "server").unwrap(),
            line,
        }
    }

    /// Deploys the case's module and sends its frames; an error describes the differences.
    fn run(&self, case: &Case) -> Result<(), String> {
        let client = self.line.node.client();
        let stored = client.store_module(case.wasm().map_err(text)?).map_err(text)?;
        let deployed = client.deploy(&DeployRequest {
            name: Some("case".to_owned()),
            module: stored.digest,
            parameters: case.parameters.clone(),
            rules: vec!["in left".to_owned()],
            level: Some("user".to_owned()),
            ..DeployRequest::default()
        });
        let ending = &case.expected.ending;
        let found = match (deployed, ending) {
            (Err(error), Ending::StartRefused(code)) => {
                return said(&error.to_string(), &["on_start", &code.to_string()]);
            }
            (Err(error), Ending::StartTrapped(_)) => {
                return said(&error.to_string(), &["on_start trapped"]);
            }
            (Err(error), _) => return Err(format!("was not deployed: {error}")),
            (Ok(_), Ending::StartRefused(_) | Ending::StartTrapped(_)) => {
                Err("it started".to_owned())
            }
            (Ok(_), _) => self.packets(case),
        };
        self.line.node.remove("case").map_err(text)?;
        found
    }

    fn packets(&self, case: &Case) -> Result<(), String> {
        for frame in &case.before {
            self.client.send(frame).map_err(text)?;
        }
        let before = self.served(case.before.len())?;
        drain(&self.client)?;
        drain(&self.server)?;
        self.client.send(&case.frame).map_err(text)?;
        let after = self.served(case.before.len() + 1)?;
        self.check_ending(case, &before, &after)?;
        if after.sent - before.sent != case.expected.sent.len() as u64 || after.sent_dropped > 0 {
            return Err(format!(
                "sent {} frames, {} found no room",
                after.sent, after.sent_dropped
            ));
        }
        for sent in &case.expected.sent {
            self.arrives(&sent.port, &sent.frame)?;
        }
        // The counters of an instance that trapped went with it.
        let counters = case.expected.counters.iter().filter(|_| after.traps == before.traps);
        for (name, expected) in counters {
            let counter = after.counters.get(name);
            if counter != Some(expected) {
                return Err(format!("counter {name} is {counter:?}, not {expected}"));
            }
        }
        Ok(())
    }

    /// Returns the service's counters once it has handled this many packets.
    fn served(&self, packets: usize) -> Result<ServiceStats, String> {
        let mut stats = ServiceStats::default();
        let all = wait_for(SOON, || {
            stats = self.line.node.service("case").ok()?.stats;
            (stats.packets == packets as u64).then_some(())
        });
        all.map(|()| stats.clone()).ok_or(format!("{} packets, not {packets}", stats.packets))
    }

    fn check_ending(
        &self,
        case: &Case,
        before: &ServiceStats,
        after: &ServiceStats,
    ) -> Result<(), String> {
        let grown = |name: &str| {
            let of = |stats: &ServiceStats| stats.dropped.get(name).copied().unwrap_or(0);
            of(after) > of(before)
        };
        let frame = case.expected.frame.as_deref().unwrap_or_default();
        let wrong = || format!("does not end with '{}': {after:?}", case.expected.ending);
        let ended = |yes: bool| if yes { Ok(()) } else { Err(wrong()) };
        match &case.expected.ending {
            Ending::Pass(_) | Ending::Reroute(_) if after.to_kernel > before.to_kernel => {
                self.kernel_routes(frame)
            }
            Ending::Pass(_) if after.forwarded > before.forwarded => self.routed(frame),
            // The router has no VLAN device.
            Ending::Pass(_) | Ending::Reroute(_) if grown("vlan") => {
                ended(l3_offset(frame).is_some_and(|at| at > ETHERNET_LENGTH))
            }
            // The frame is no longer routable.
            Ending::Pass(_) if grown("malformed") => ended(l3_offset(frame).is_none()),
            Ending::Bounce if after.bounced > before.bounced => {
                let mut frame = frame.to_vec();
                rewrite::swap_macs(&mut frame).map_err(text)?;
                self.arrives("left", &frame)
            }
            Ending::Redirect(port) if after.redirected > before.redirected => {
                self.arrives(port, frame)
            }
            Ending::Drop(reason) => {
                let named = after.dropped.keys().filter(|name| name.starts_with("module."));
                // A reason with a name is counted under it; services have names.
                let by_name = || named.filter(|name| grown(name)).count() == 1;
                ended(grown(&format!("module.{reason}")) || by_name())
            }
            Ending::Raise => ended(grown("raise")),
            Ending::Trap(kind) => {
                let of = |stats: &ServiceStats| stats.traps.get(kind).copied().unwrap_or(0);
                ended(grown("trap") && of(after) == of(before) + 1)
            }
            _ => Err(wrong()),
        }
    }

    /// Checks that the packet leaves by its original route, without its tags and the bytes after
    /// it.
    fn routed(&self, frame: &[u8]) -> Result<(), String> {
        let l3 = l3_offset(frame).ok_or("a packet without an IP header was routed")?;
        let mut frame = frame.to_vec();
        if let Ok(packet) = parse_frame(&frame) {
            frame.truncate(packet.ip_end().max(FRAME_LENGTH_MIN));
        }
        rewrite::route(&mut frame, l3 as u16, self.own, self.next_hop).map_err(text)?;
        frame.drain(12..l3 - 2);
        self.arrives("right", &frame)
    }

    /// Checks that the kernel routes IP packets by its own rules, and cuts off the bytes after
    /// them. The kernel has no VLAN device: packets tagged for a VLAN end there.
    fn kernel_routes(&self, frame: &[u8]) -> Result<(), String> {
        match parse_frame(frame) {
            Ok(packet) if packet.vlan.is_some_and(|tag| tag.id != 0) => Ok(()),
            Ok(packet) => self.routed(&frame[..packet.ip_end()]),
            Err(_) => Ok(()),
        }
    }

    fn arrives(&self, port: &str, frame: &[u8]) -> Result<(), String> {
        let host = if port == "left" { &self.client } else { &self.server };
        let came = host.receive(Duration::from_secs(1), |came| came == frame).map_err(text)?;
        came.map(drop).ok_or_else(|| format!("did not leave by {port}: {}", hex::encode(frame)))
    }
}

fn set_mac(net: &Net, node: &str, peer: &str, mac: [u8; 6]) {
    let netlink: Netlink = net.netlink(node).unwrap();
    netlink.set_mac(net.device(node, peer).unwrap().index, mac).unwrap();
}

fn drain(port: &RawPort) -> Result<(), String> {
    while port.receive(Duration::ZERO, |_| true).map_err(text)?.is_some() {}
    Ok(())
}

/// Returns the offset of the IP header, after at most two tags.
fn l3_offset(frame: &[u8]) -> Option<usize> {
    for at in [12, 16, 20] {
        match frame.get(at..at + 2)? {
            [0x08, 0x00] | [0x86, 0xdd] => return Some(at + 2),
            [0x81, 0x00] | [0x88, 0xa8] => {}
            _ => return None,
        }
    }
    None
}

fn said(message: &str, words: &[&str]) -> Result<(), String> {
    match words.iter().find(|word| !message.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("'{message}' lacks '{word}'")),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
