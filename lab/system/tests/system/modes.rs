//! Ports without XDP in their driver: served in the stack, and reported as such.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use testkit::{Net, NodeUnderTest, Service, root_or_skip, service_module, wait_for};

use crate::common::{Line, PROGRAM_TIME_MAX, SOON};

/// Returns the usual lab; the router's device to the server is a port of a bridge device `br0`,
/// which has its addresses.
fn with_bridge(mtu: u32) -> Net {
    let net = Net::line(mtu).unwrap();
    let end = net.end("r1", "server").unwrap();
    let (v4, v6) = (end.v4, end.v6);
    for arguments in [
        // A snooping bridge would join a multicast group and send reports.
        format!("link add br0 mtu {mtu} type bridge mcast_snooping 0"),
        "link set to-server master br0".to_owned(),
        "addr flush dev to-server".to_owned(),
        format!("addr add {v4} dev br0"),
        format!("addr add {v6} dev br0 nodad"),
        "link set br0 up".to_owned(),
    ] {
        let argv: Vec<&str> = ["ip"].into_iter().chain(arguments.split_whitespace()).collect();
        let output = net.run("r1", &argv, PROGRAM_TIME_MAX).unwrap();
        assert!(output.status.success(), "{output:#?}");
    }
    // The lower device would merge packets, unless the node switches that off.
    let gro = ["ethtool", "-K", "to-server", "gro", "on"];
    assert!(net.run("r1", &gro, PROGRAM_TIME_MAX).unwrap().status.success());
    net
}

/// Downloads half a megabyte from the server to the client.
pub fn download(line: &Line) {
    let any = line.server(0);
    let listener = line.net.within("server", || TcpListener::bind(any)).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..1 << 19).map(|at: u32| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(&sent).unwrap());
        let connect = || TcpStream::connect_timeout(&to, SOON);
        let mut connection = line.net.within("client", connect).unwrap().unwrap();
        connection.set_read_timeout(Some(PROGRAM_TIME_MAX)).unwrap();
        let mut came = Vec::new();
        connection.read_to_end(&mut came).unwrap();
        assert!(came == sent, "{} of {} bytes came", came.len(), sent.len());
    });
}

/// Pings and downloads, plainly and through a service at `user` and `nic`; each packet is accounted
/// for.
fn serves_at_each_level(line: &Line, size: &str) {
    line.resolve_neighbours();
    let server = line.net.v4("server", "r1").unwrap().to_string();
    for level in ["", "user", "nic"] {
        if level == "user" {
            let service = Service { rules: &["proto icmp", "proto tcp"], ..Service::default() };
            line.node.deploy(&service_module("monitor").unwrap(), &service).unwrap();
        } else if !level.is_empty() {
            line.node.client().move_service("monitor", level).unwrap();
        }
        let below = || line.node.service("monitor").map_or(0, |s| s.stats.below.packets);
        let ping = || {
            let argv = ["ping", "-c3", "-i0.05", "-W5", "-Mdo", "-s", size, &server];
            let said = line.run("client", &argv);
            assert!(said.contains("ttl=63") && said.contains(" 3 received"), "{level}: {said}");
        };
        ping();
        let before = line.books();
        let ran_below = below();
        ping();
        download(line);
        let balance = line.balance_since(&before);
        assert_eq!(balance.dropped(), 0, "{level}: {balance}");
        if level.is_empty() {
            continue;
        }
        let service = line.node.service("monitor").unwrap();
        assert_eq!(service.level, level, "{}", service.level_reason);
        assert_eq!(below() > ran_below, level != "user", "{level}: {:#?}", service.stats);
        assert_eq!(service.stats.dropped.len(), 0, "{level}: {:#?}", service.stats);
    }
    // At tc the kernel (6.18) shows packets of a generic port without their Ethernet header.
    let said = line.node.client().move_service("monitor", "kernel").unwrap_err().to_string();
    assert!(said.contains("generic port"), "{said}");
}

#[test]
fn a_device_without_native_xdp_is_served_in_the_stack_and_says_so() {
    if !root_or_skip("a device without native XDP") {
        return;
    }
    let net = with_bridge(1500);
    let on_bridge = |text: String| text.replace("\"to-server\"", "\"br0\"");
    let node = NodeUnderTest::start_edited(&net, "r1", "", on_bridge).unwrap();
    let line = Line { node, net };
    let ports = line.node.client().node().unwrap().ports;
    assert_eq!((ports[0].mode.as_str(), ports[0].mode_reason.as_deref()), ("native", None));
    assert_eq!(ports[1].mode, "generic");
    let reason = ports[1].mode_reason.clone().unwrap();
    assert!(reason.contains("natively") && !ports[1].mode_cost.is_empty(), "{reason}");
    assert!(line.node.log().contains("a slower mode than native XDP"), "{}", line.node.log());
    let no_redirect = || {
        let slow = line.node.client().node().unwrap().ports[1].slow_reasons.join("; ");
        slow.contains("no redirected frames").then_some(())
    };
    assert!(wait_for(SOON, no_redirect).is_some());
    serves_at_each_level(&line, "1000");
    drop(line.node);
    let gro = ["ethtool", "-k", "to-server"];
    let shown = line.net.run("r1", &gro, PROGRAM_TIME_MAX).unwrap().stdout;
    assert!(shown.contains("generic-receive-offload: on"), "below it is as it was: {shown}");
}

#[test]
fn generic_ports_take_frames_of_several_buffers_at_each_level() {
    if !root_or_skip("generic ports") {
        return;
    }
    let net = Net::line(9000).unwrap();
    let generic = |text: String| text.replace("device =", "mode = \"generic\"\ndevice =");
    let node = NodeUnderTest::start_edited(&net, "r1", "", generic).unwrap();
    let line = Line { node, net };
    let ports = line.node.client().node().unwrap().ports;
    assert!(ports.iter().all(|port| port.mode == "generic" && port.mode_reason.is_none()));
    serves_at_each_level(&line, "8000");
}

#[test]
fn native_mode_is_refused_with_the_reason_where_a_device_lacks_it() {
    if !root_or_skip("native or nothing") {
        return;
    }
    let net = with_bridge(1500);
    let native = |text: String| {
        text.replace("\"to-server\"", "\"br0\"").replace("device =", "mode = \"native\"\ndevice =")
    };
    let said = NodeUnderTest::start_edited(&net, "r1", "", native).unwrap_err().to_string();
    assert!(said.contains("br0") && said.contains("natively"), "{said}");
    let typo = |text: String| text.replace("device =", "mode = \"genric\"\ndevice =");
    let said = NodeUnderTest::start_edited(&net, "r1", "", typo).unwrap_err().to_string();
    assert!(said.contains("line") && said.contains("did you mean 'generic'"), "{said}");
}
