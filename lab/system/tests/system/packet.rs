//! Packet ports: devices that are served without XDP, with the same packets and the same counters.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use api::{EventKind, ExplainRequest, RuleRequest, RulesRequest};
use bpf_maps::{HASH_KEYS, PortConfig};
use netlink::Netlink;
use testkit::{
    Net, NodeUnderTest, RawPort, Service, leftovers, root_or_skip, service_module, tam, wait_for,
};
use units::{Name, PortId};

use crate::clean_end::{gone, kill};
use crate::common::{Line, PROGRAM_TIME_MAX, SOON, dscp, is_udp_to, module};
use crate::handover::Flows;
use crate::levels::{BELOW, stamper};

/// DSCP with which `monitor` marks.
const MARK: u8 = 46;
const PORT: u16 = 7000;
/// Frames of one test: more than one turn of the cell handles.
const FRAMES: u16 = 300;

/// Returns the node file with every port in packet mode.
pub fn as_packets(text: String) -> String {
    text.replace("device =", "mode = \"packet\"\ndevice =")
}

pub fn packet_line(mtu: u32) -> Line {
    let net = Net::line(mtu).unwrap();
    let node = NodeUnderTest::start_edited(&net, "r1", "", as_packets).unwrap();
    Line { node, net }
}

fn devices(net: &Net) -> Vec<String> {
    let netlink: Netlink = net.netlink("r1").unwrap();
    netlink.links().unwrap().into_iter().map(|link| link.name).collect()
}

/// Sends numbered datagrams; returns how often each arrived, and the DSCP of all.
fn numbered(line: &Line) -> (BTreeMap<u16, u32>, Vec<u8>) {
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let server = RawPort::open(&line.net, "server", "r1").unwrap();
    let (mut seen, mut marks) = (BTreeMap::new(), Vec::new());
    for part in 0..FRAMES / 50 {
        for number in part * 50..(part + 1) * 50 {
            let frame = line.frame().udp(4000, PORT).payload(&number.to_be_bytes());
            client.send(&frame.build()).unwrap();
        }
        for frame in server.collect(|frame| is_udp_to(frame, PORT)).unwrap() {
            *seen.entry(u16::from_be_bytes([frame[42], frame[43]])).or_insert(0) += 1;
            marks.push(dscp(&frame));
        }
    }
    (seen, marks)
}

/// Returns the outcomes of the port to the client that are not zero.
pub fn outcomes(line: &Line) -> BTreeMap<String, u64> {
    let port = line.node.stats().unwrap().ports.remove(0);
    assert_eq!(port.outcomes.values().sum::<u64>(), port.rx_packets, "{port:#?}");
    port.outcomes.into_iter().filter(|(_, count)| *count > 0).collect()
}

pub fn rule(r#match: &str, action: &str) -> RulesRequest {
    RuleRequest::new(r#match, action).into()
}

#[test]
fn each_packet_of_a_packet_port_is_handled_once_and_counted() {
    if !root_or_skip("packet ports") {
        return;
    }
    let line = packet_line(1500);
    let node = line.node.client().node().unwrap();
    for port in &node.ports {
        assert_eq!((port.mode.as_str(), port.mode_reason.as_deref()), ("packet", None));
        assert!(port.mode_cost.contains("no fast path"), "{port:#?}");
        assert!(port.slow_reasons.join("; ").contains("packet socket"), "{port:#?}");
    }
    let events = line.node.client().events(0, 0).unwrap().events;
    let told = events.iter().filter(|event| event.kind == EventKind::PortFallback);
    assert_eq!(told.count(), 2, "{events:#?}");
    line.resolve_neighbours();
    // The router itself answers.
    let router = line.net.v4("r1", "client").unwrap().to_string();
    assert!(line.run("client", &["ping", "-c3", "-i0.05", "-W5", &router]).contains(" 3 received"));

    let before = line.books();
    let once: BTreeMap<u16, u32> = (0..FRAMES).map(|number| (number, 1)).collect();
    assert_eq!(numbered(&line).0, once, "plainly");
    assert_eq!(line.books().since(&before).dropped(), 0);
    let frames = u64::from(FRAMES);
    assert!(outcomes(&line)["kernel_slow"] >= frames);

    let service = Service { rules: &["proto udp dport 7000"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
    let before = outcomes(&line);
    let (seen, marks) = numbered(&line);
    assert_eq!((seen, marks), (once, vec![MARK; FRAMES.into()]), "through the service");
    let to_user = outcomes(&line)["to_user"] - before.get("to_user").copied().unwrap_or(0);
    assert_eq!(to_user, frames);
    let stats = line.node.service("monitor").unwrap().stats;
    assert_eq!((stats.packets, stats.to_kernel), (frames, frames), "{stats:#?}");
    let listed = line.node.client().rules().unwrap().rules;
    assert_eq!(listed.iter().map(|rule| rule.packets).collect::<Vec<_>>(), [frames]);
    line.resolve_neighbours();

    let refused = line.node.client().move_service("monitor", "nic").unwrap_err().to_string();
    assert!(refused.contains("a node with packet ports runs services at user level"), "{refused}");
    line.books();
}

#[test]
fn packet_ports_support_rules_and_tam_why_and_refuse_the_rest_with_reasons() {
    if !root_or_skip("rules of packet ports") {
        return;
    }
    let line = packet_line(1500);
    line.resolve_neighbours();
    let client = line.node.client();
    client.add_rules(&rule("proto udp dport 7000", "drop")).unwrap();
    let before = outcomes(&line);
    assert_eq!(numbered(&line).0, BTreeMap::new(), "from the first packet on");
    assert_eq!(outcomes(&line)["drop_rule"], u64::from(FRAMES), "{before:?}");
    assert_eq!(client.rules().unwrap().rules[0].packets, u64::from(FRAMES));
    let dropped = || {
        let reasons = client.why().unwrap().reasons;
        reasons.iter().find(|r| r.reason == "drop_rule").map(|r| r.packets)
    };
    assert!(wait_for(SOON, || dropped().filter(|n| *n == u64::from(FRAMES))).is_some());
    let asked = |packet: &str| {
        let packet = Some(packet.to_owned());
        client.explain(&ExplainRequest { packet, ..ExplainRequest::default() }).unwrap()
    };
    let told = asked("in left src 10.77.1.1 dst 10.77.2.2 proto udp dport 7000");
    assert_eq!((told.outcome.as_str(), told.rule), ("drop_rule", Some(0)), "{told:#?}");
    let told = asked("in left src 10.77.1.1 dst 10.77.2.2 proto udp dport 7001");
    assert_eq!((told.outcome.as_str(), told.rule), ("kernel_slow", None), "{told:#?}");
    assert!(told.steps.join("\n").contains("packet socket"), "{told:#?}");
    assert_eq!(outcomes(&line)["drop_rule"], u64::from(FRAMES), "asking counts nothing");
    client.remove_rule(0).unwrap();
    assert_eq!(numbered(&line).0.len(), usize::from(FRAMES));
}

#[test]
fn a_module_on_a_packet_port_bounces_packets() {
    if !root_or_skip("verdicts of packet ports") {
        return;
    }
    let line = packet_line(1500);
    line.resolve_neighbours();
    let fields = r#"(memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.const 2))"#;
    let bounces = module("bounces", "window = 64\nlevels = [\"user\"]\n", fields);
    let service = Service { rules: &["proto udp dport 7000"], ..Service::default() };
    line.node.deploy(&bounces, &service).unwrap();
    let client = RawPort::open(&line.net, "client", "r1").unwrap();
    let sent = line.frame().udp(4000, PORT).payload(&[7; 9]).build();
    client.send(&sent).unwrap();
    let came = client.receive(SOON, |frame| is_udp_to(frame, PORT)).unwrap().unwrap();
    assert_eq!((&came[..6], &came[6..12], &came[12..]), (&sent[6..12], &sent[..6], &sent[12..]));
    assert_eq!(line.node.service("bounces").unwrap().stats.bounced, 1);
    line.books();
}

#[test]
fn packet_ports_serve_segments_of_senders_with_tso_and_checksum_offload() {
    if !root_or_skip("segments of packet ports") {
        return;
    }
    let line = packet_line(1500);
    for (host, device) in [("client", "to-r1"), ("server", "to-r1")] {
        let on = ["ethtool", "-K", device, "tx", "on", "tso", "on", "gso", "on"];
        line.run(host, &on);
    }
    line.resolve_neighbours();
    crate::modes::download(&line);
    let rules: &[&str] = &["proto tcp"];
    line.node
        .deploy(&service_module("monitor").unwrap(), &Service { rules, ..Service::default() })
        .unwrap();
    crate::modes::download(&line);
    let stats = line.node.service("monitor").unwrap().stats;
    // Half a megabyte in packets of at most 1,460 bytes of payload.
    assert!(stats.packets > (1 << 19) / 1460 && stats.dropped.is_empty(), "{stats:#?}");
    assert_eq!(stats.to_kernel, stats.packets);
}

#[test]
fn without_cell_or_daemon_the_kernel_receives_the_frames_of_a_packet_port() {
    if !root_or_skip("failures of packet ports") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let before = devices(&net);
    let mut line =
        Line { node: NodeUnderTest::start_edited(&net, "r1", "", as_packets).unwrap(), net };
    line.resolve_neighbours();
    let all = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &all).unwrap();
    let served = |line: &Line| line.node.service("monitor").unwrap().stats.packets;
    let cell = line.node.cell().unwrap();
    kill(cell);
    assert!(gone(cell));
    // One that comes before the daemon hears of it is lost.
    let server = line.net.v4("server", "r1").unwrap().to_string();
    let said = line.run("client", &["ping", "-c20", "-i0.05", "-W2", &server]);
    let received = said.split(", ").find_map(|part| part.strip_suffix(" received"));
    assert!(received.unwrap().parse::<u32>().unwrap() >= 18, "{said}");
    let back = wait_for(SOON, || {
        let service = line.node.service("monitor").unwrap();
        (service.state == "running" && service.restarts == 1).then_some(())
    });
    assert!(back.is_some(), "{:#?}", line.node.service("monitor").unwrap());
    line.resolve_neighbours();
    assert!(served(&line) >= 4);
    // The cell goes on without its daemon; without both the kernel has everything.
    let cell = line.node.cell().unwrap();
    line.node.kill().unwrap();
    line.resolve_neighbours();
    kill(cell);
    assert!(gone(cell));
    line.resolve_neighbours();
    // The next daemon begins anew, and leaves nothing.
    line.node.start_again(&line.net, "r1").unwrap();
    let runs = || (line.node.service("monitor").ok()?.state == "running").then_some(());
    assert!(wait_for(SOON, runs).is_some(), "{}", line.node.log());
    line.resolve_neighbours();
    assert_eq!(served(&line), 2);
    assert!(line.node.stop().unwrap().success(), "{}", line.node.log());
    assert_eq!(leftovers(line.node.name()), [""; 0]);
    assert_eq!(devices(&line.net), before);
    line.resolve_neighbours();
}

#[test]
fn a_device_with_a_foreign_xdp_program_is_a_packet_port_on_request() {
    if !root_or_skip("packet sockets beside somebody else's XDP program") {
        return;
    }
    let net = Net::line(1500).unwrap();
    // Somebody else's program is on the device, in the driver: neither way of XDP is left.
    let program = OtherProgram::on(&net, "server");
    let ask = |text: String| {
        let second = "device = \"to-server\"";
        assert_eq!(text.matches(second).count(), 1, "{text}");
        text.replace(second, &format!("mode = \"packet\"\n{second}"))
    };
    let node = NodeUnderTest::start_edited(&net, "r1", "", ask).unwrap();
    let line = Line { node, net };
    let ports = line.node.client().node().unwrap().ports;
    assert_eq!((ports[0].mode.as_str(), ports[1].mode.as_str()), ("native", "packet"));
    line.resolve_neighbours();
    let once: BTreeMap<u16, u32> = (0..FRAMES).map(|number| (number, 1)).collect();
    assert_eq!(numbered(&line).0, once);
    let rules: &[&str] = &["proto udp dport 7000", "proto icmp"];
    line.node
        .deploy(&service_module("monitor").unwrap(), &Service { rules, ..Service::default() })
        .unwrap();
    assert_eq!(numbered(&line).0, once);
    line.resolve_neighbours();
    let stats = line.node.service("monitor").unwrap();
    assert_eq!(stats.level, "user");
    // Requests came by XDP, replies by the packet socket.
    assert!(stats.stats.packets >= u64::from(FRAMES) + 2, "{stats:#?}");
    line.books();
    drop(program);
}

#[test]
fn packets_do_not_bypass_a_closed_service_while_cell_or_daemon_is_down() {
    if !root_or_skip("closed services of packet ports") {
        return;
    }
    let mut line = packet_line(1500);
    line.resolve_neighbours();
    let rules: &[&str] = &["proto udp dport 7000"];
    let guard = Service { name: "guard", rules, on_failure: "closed", ..Service::default() };
    line.node.deploy(&stamper(BELOW), &guard).unwrap();
    let flows = Flows::new(&line, &[PORT]);
    let ((), sent, arrived) = flows.during(|sent| {
        sent.more(50);
        // As a firewall's reload does it.
        line.run("r1", &["nft", "flush", "ruleset"]);
        let closed = || line.run("r1", &["nft", "list", "tables"]).contains("tamandua-closed-");
        wait_for(SOON, || closed().then_some(())).expect("it is closed again");
        kill(line.node.cell().unwrap());
        sent.more(50);
        let runs = || (line.node.service("guard").ok()?.state == "running").then_some(());
        wait_for(SOON * 6, runs).expect("it comes back");
        sent.more(50);
        let cell = line.node.cell().unwrap();
        line.node.kill().unwrap();
        kill(cell);
        sent.more(50);
        line.node.start_again(&line.net, "r1").unwrap();
        let runs = || (line.node.service("guard").ok()?.state == "running").then_some(());
        wait_for(SOON * 6, runs).expect("the next daemon starts it");
        sent.more(50);
    });
    let past: Vec<u32> =
        arrived[0].iter().filter(|(_, stamp, _)| *stamp == 0).map(|(number, ..)| *number).collect();
    let seen = arrived[0].len();
    assert!(seen > 0 && seen < sent as usize, "{seen} of {sent}");
    assert_eq!(past, [0; 0], "went past it, of {sent}");

    // Without it the kernel has everything while nobody is there.
    line.node.remove("guard").unwrap();
    let cell = line.node.cell().unwrap();
    line.node.kill().unwrap();
    kill(cell);
    // A process that was killed has its descriptors for a moment.
    assert!(gone(cell));
    let ((), sent, arrived) = flows.during(|sent| sent.more(50));
    assert_eq!(arrived[0].last().map(|(number, ..)| number + 1), Some(sent));
    line.node.start_again(&line.net, "r1").unwrap();
}

#[test]
fn a_node_that_fails_to_start_opens_nothing_that_a_dead_one_has_left_closed() {
    if !root_or_skip("starts that fail") {
        return;
    }
    let mut line = packet_line(1500);
    line.resolve_neighbours();
    let rules: &[&str] = &["proto udp dport 7000"];
    let guard = Service { name: "guard", rules, on_failure: "closed", ..Service::default() };
    line.node.deploy(&stamper(BELOW), &guard).unwrap();
    let flows = Flows::new(&line, &[PORT]);
    let arrived = || flows.during(|sent| sent.more(50)).2[0].len();
    let cell = line.node.cell().unwrap();
    line.node.kill().unwrap();
    kill(cell);
    let name = line.node.name().to_string();
    let text = std::fs::read_to_string(line.node.node_file()).unwrap();
    let start = |text: &str| {
        let file = line.node.node_file().with_extension("other.toml");
        std::fs::write(&file, text).unwrap();
        let program = tam();
        let argv = [program.to_str().unwrap(), "node", "--config", file.to_str().unwrap()];
        let ended = line.net.run("r1", &argv, PROGRAM_TIME_MAX).unwrap();
        assert!(!ended.status.success());
        ended.stderr
    };
    // Before anything is touched.
    let device = line.net.end("r1", "client").unwrap().device.clone();
    let mtu = |mtu: &str| line.run("r1", &["ip", "link", "set", &device, "mtu", mtu]);
    mtu("9500");
    let said = start(&text);
    assert!(said.contains("9500"), "{said}");
    mtu("1500");
    let said = start(&format!("{text}\n[api]\nlisten = \"192.0.2.1:7443\"\n"));
    assert!(said.contains("192.0.2.1"), "{said}");
    assert_eq!(arrived(), 0);

    // When what was left is gone, since it cannot be adopted, and another node has the devices.
    let native = text.replace("mode = \"packet\"", "mode = \"native\"");
    let mut other = NodeUnderTest::start(&line.net, "r1").unwrap();
    for _ in 0..2 {
        let said = start(&native);
        assert!(said.contains("stay closed") && said.contains("--cleanup"), "{said}");
    }
    assert!(other.stop().unwrap().success(), "{}", other.log());
    assert_eq!(arrived(), 0);
    // From outside: it goes to where the ports are.
    let cleaned = Command::new(tam()).args(["node", "--cleanup", &name]).output().unwrap();
    assert!(cleaned.status.success(), "{cleaned:?}");
    assert!(arrived() > 0);
    line.node.start_again(&line.net, "r1").unwrap();
}

/// User and group id without rights.
const NOBODY: &str = "65534";

#[test]
fn the_demo_runs_without_root_and_says_what_that_costs() {
    if !root_or_skip("the demo of an ordinary user") {
        return;
    }
    // Where that user may read: the source tree may be nobody else's.
    let folder = tempfile::TempDir::new().unwrap();
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755)).unwrap();
        to
    };
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = copy(&tam(), "tam");
    let wasm = concat!(env!("CARGO_MANIFEST_DIR"), "/../../services/monitor/monitor.wasm");
    let service = copy(Path::new(wasm), "monitor.wasm");
    let demo = |more: &[&str]| -> Output {
        let user = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];
        let mut command = Command::new("setpriv");
        command.args(user).arg(&program).arg("demo").args(more).arg("--module").arg(&service);
        command.current_dir("/").output().unwrap()
    };
    let output = demo(&["--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("without root"), "{said}");
    // The cell of an ordinary user shares its core with everybody: its sockets may be full.
    let report = crate::demo::counted(&output);
    assert_eq!((&report["without_root"], &report["mode"]), (&true.into(), &"packet".into()));
    assert!(report["mode_cost"].as_str().unwrap().contains("no fast path"), "{report:#}");
    assert!(!report["mode_reason"].as_str().unwrap().is_empty(), "{report:#}");
    assert_eq!(crate::demo::left_behind(), [""; 0], "nothing of it is outside");
    let refused = demo(&["--keep"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--keep needs root"), "{refused:?}");
}

/// Unrelated XDP program on a device of the router, while this lives: it passes everything.
struct OtherProgram(Name);

impl OtherProgram {
    fn on(net: &Net, peer: &str) -> Self {
        let name = Name::new(format!("tt-other-{}", std::process::id())).unwrap();
        // No frame has this destination: the program takes none.
        let ifindex = net.device("r1", peer).unwrap().index;
        let config = PortConfig { ifindex, mac: [0; 6], mtu: 1500, ..PortConfig::default() };
        let attach = || {
            let mut front = bpf::FrontDoor::create(&name, [1; HASH_KEYS], 0).unwrap();
            front.attach(PortId(0), &config, bpf::XdpMode::Native).unwrap();
        };
        net.within("r1", attach).unwrap();
        Self(name)
    }
}

impl Drop for OtherProgram {
    fn drop(&mut self) {
        bpf::front_door::remove(&self.0).unwrap();
    }
}
