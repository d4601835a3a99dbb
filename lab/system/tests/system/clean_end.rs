//! Clean and unclean ends: the remains of a node, and what continues without its daemon or its
//! cell.

use std::path::Path;
use std::time::Duration;

use crate::common::{Line, PROGRAM_TIME_MAX, SOON, assert_no_bpf_since};
use api::{RuleRequest, RulesRequest};
use netlink::offload::OffloadState;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Net, Service, leftovers, root_or_skip, service_module, wait_for};

/// State of the router that a node may change: features of the devices, programs on them, devices
/// of its own.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    devices: Vec<String>,
    xdp: bool,
    offloads: Vec<OffloadState>,
}

fn traces(net: &Net) -> Traces {
    let links = net.netlink("r1").unwrap().links().unwrap();
    let shown = net.run("r1", &["ip", "-d", "link", "show"], PROGRAM_TIME_MAX).unwrap().stdout;
    let peers = ["client", "server"];
    let offloads = peers.map(|peer| {
        let device = net.end("r1", peer).unwrap().device.clone();
        net.within("r1", || OffloadState::read(&device)).unwrap().unwrap()
    });
    Traces {
        devices: links.into_iter().map(|link| link.name).collect(),
        xdp: shown.contains("xdp"),
        offloads: offloads.into(),
    }
}

pub fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

pub fn gone(pid: u32) -> bool {
    let ended = || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(());
    wait_for(SOON, ended).is_some()
}

#[test]
fn a_killed_daemon_without_services_leaves_plain_forwarding_and_its_successor_adopts_it() {
    if !root_or_skip("a killed daemon") {
        return;
    }
    let mut line = Line::up();
    line.node.client().add_rules(&forward_udp()).unwrap();
    line.resolve_neighbours();
    let workers = line.node.workers().unwrap();
    line.node.kill().unwrap();
    assert!(workers.into_iter().all(gone), "a cell without services is of no use");
    // Pinned programs continue to forward.
    assert_ne!(leftovers(line.node.name()), [""; 0]);
    assert!(traces(&line.net).xdp);
    line.resolve_neighbours();

    line.node.start_again(&line.net, "r1").unwrap();
    assert_eq!(line.node.client().rules().unwrap().rules.len(), 1, "{}", line.node.log());
    let all = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    let before = line.books();
    line.resolve_neighbours();
    let balance = line.balance_since(&before);
    assert_eq!((balance.sent, balance.received), (2, 2));
    assert_eq!(line.node.service("monitor").unwrap().stats.packets, 2);
    assert!(line.node.stop().unwrap().success());
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    assert!(!traces(&line.net).xdp);
}

fn forward_udp() -> RulesRequest {
    RuleRequest::new("proto udp dport 9", "forward").into()
}

#[test]
fn a_killed_cell_is_replaced_within_a_second_and_packets_are_forwarded_meanwhile() {
    if !root_or_skip("a killed cell") {
        return;
    }
    let line = Line::up();
    let all = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    line.resolve_neighbours();
    let cell = line.node.cell().unwrap();
    let server = line.net.v4("server", "r1").unwrap().to_string();
    let ping = std::thread::scope(|scope| {
        let ping = scope.spawn(|| line.run("client", &["ping", "-c60", "-i0.05", "-W2", &server]));
        std::thread::sleep(Duration::from_millis(500));
        kill(cell);
        let back = wait_for(Duration::from_secs(1), || {
            let service = line.node.service("monitor").unwrap();
            (service.state == "running" && service.restarts == 1).then_some(())
        });
        assert!(back.is_some(), "{:#?}", line.node.service("monitor").unwrap());
        ping.join().unwrap()
    });
    // A packet that lay in the rings of the dead cell is lost with it, as one request and one
    // reply at most are on their way.
    let received: u32 = ping
        .split(", ")
        .find_map(|part| part.strip_suffix(" received"))
        .and_then(|number| number.parse().ok())
        .unwrap();
    assert!(received >= 59, "{ping}");
    let served = line.node.service("monitor").unwrap().stats.packets;
    assert!(served > 40, "the new cell served {served} packets");
    assert_ne!(line.node.cell().unwrap(), cell);
}

#[test]
fn packets_in_the_rings_of_a_killed_cell_are_lost_and_counted() {
    if !root_or_skip("the rings of a killed cell") {
        return;
    }
    const PACKETS: u32 = 200;
    let line = Line::up();
    line.resolve_neighbours();
    let service = Service { rules: &["proto udp dport 7000"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let (receiver, sender) = (line.udp("server", 7000), line.udp("client", 0));
    sender.connect(line.server(7000)).unwrap();
    let before = line.books();
    let cell = line.node.cell().unwrap();
    let pid = Pid::from_raw(cell.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    for number in 0..PACKETS {
        sender.send(&number.to_be_bytes()).unwrap();
    }
    let to_user = |stats: &api::Stats| -> u64 {
        stats.ports.iter().filter_map(|port| port.outcomes.get("to_user")).sum()
    };
    let all_came = to_user(&before.node) + u64::from(PACKETS);
    let came = || (to_user(&line.node.stats().unwrap()) >= all_came).then_some(());
    wait_for(SOON * 4, came).expect("the front door has them");
    kill(cell);
    let back = wait_for(SOON, || {
        let service = line.node.service("monitor").unwrap();
        (service.state == "running" && service.restarts == 1).then_some(())
    });
    assert!(back.is_some(), "{:#?}", line.node.service("monitor").unwrap());
    let books = testkit::Books::settled(&line.net, &line.node).unwrap();
    let balance = books.since(&before);
    assert_eq!(books.node.cell.lost_with_cells, u64::from(PACKETS), "{balance}");
    assert!(balance.holds() && balance.received == 0, "{balance}");
    // The new cell has the service again.
    sender.send(b"once more").unwrap();
    assert!(receiver.recv(&mut [0; 16]).is_ok());
}

/// Tests that inspect the whole machine, or end processes of others: they run alone.
mod alone {
    use super::*;

    #[test]
    fn a_node_that_is_asked_to_end_leaves_nothing() {
        if !root_or_skip("a clean end") {
            return;
        }
        let net = Net::line(1500).unwrap();
        // As on an unprepared router: the node must switch this off, and on again.
        let device = net.end("r1", "client").unwrap().device.clone();
        let features = ["ethtool", "-K", &device, "gro", "on", "rxvlan", "on"];
        assert!(net.run("r1", &features, PROGRAM_TIME_MAX).unwrap().status.success());
        let (before, held) = (traces(&net), bpf::Inventory::take().unwrap());
        let mut line = Line { node: testkit::NodeUnderTest::start(&net, "r1").unwrap(), net };
        line.resolve_neighbours();
        let all = Service { rules: &["any"], ..Service::default() };
        line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
        line.resolve_neighbours();
        let during = traces(&line.net);
        // A TUN device to the kernel, and a TAP device from it.
        assert!(during.xdp && during.devices.len() == before.devices.len() + 2, "{during:#?}");
        assert_ne!(during.offloads, before.offloads);
        let (cell, workers) = (line.node.cell().unwrap(), line.node.workers().unwrap());
        assert!(workers.contains(&cell), "{workers:?}");

        assert!(line.node.stop().unwrap().success(), "{}", line.node.log());
        assert_eq!(leftovers(line.node.name()), [""; 0]);
        assert_eq!(traces(&line.net), before);
        assert_no_bpf_since(&held);
        assert!(workers.into_iter().all(gone), "the cell or a compiler runs on");
        line.resolve_neighbours();
    }
}
