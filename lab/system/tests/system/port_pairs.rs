//! Cut-through from each kind of port to each: delivered unchanged and charged; or refused when the
//! rule is added.
//!
//! ```text
//!            native ─┐            ┌─ native
//!   generic, packet ─┤── router ──├─ generic, packet
//!          TUN, tc ──┘            └─ TUN, tc, native without redirects
//! ```

use std::os::fd::OwnedFd;

use api::{RuleRequest, RulesRequest, SessionRequest};
use testkit::{Net, NodeUnderTest, RawPort, root_or_skip, wait_for};
use wire::FrameBuilder;

use crate::common::{SOON, is_udp_to};

const FRAMES: u16 = 100;
/// Hosts behind the ports, named after the kind of port; the last one's GRO is off.
const KINDS: [&str; 5] = ["native", "generic", "packet", "tc", "bare"];
const TUN: &str = "tun";

/// Peer behind a port.
enum Behind {
    Host(RawPort),
    Tunnel(OwnedFd),
}

impl Behind {
    fn send(&self, frame: &[u8]) {
        match self {
            Self::Host(host) => host.send(frame).unwrap(),
            Self::Tunnel(tunnel) => drop(rustix::io::write(tunnel, &frame[14..]).unwrap()),
        }
    }

    /// Returns how many of the test's datagrams arrive.
    fn count(&self, port: u16) -> usize {
        match self {
            Self::Host(host) => host.collect(|frame| is_udp_to(frame, port)).unwrap().len(),
            Self::Tunnel(tunnel) => {
                let (mut buffer, mut count) = (vec![0; 9216], 0);
                let all = || {
                    while let Ok(length) = rustix::io::read(tunnel, &mut buffer) {
                        let is_ours = length > 28 && buffer[22..24] == port.to_be_bytes();
                        count += usize::from(is_ours && buffer[9] == 17);
                    }
                    (count >= usize::from(FRAMES)).then_some(())
                };
                let _ = wait_for(std::time::Duration::from_secs(1), all);
                count
            }
        }
    }
}

fn topology() -> String {
    let hosts = KINDS.map(|kind| format!("[[host]]\nname = \"{kind}\"\n")).concat();
    let links = KINDS.map(|kind| format!("[[link]]\nends = [\"{kind}\", \"r1\"]\n")).concat();
    format!("{hosts}[[router]]\nname = \"r1\"\n{links}")
}

/// Returns the node file with a port of each kind, named after it, with a configured rate.
fn of_each_kind(text: String) -> String {
    let (head, rest) = text.split_once("[[port]]").unwrap();
    let trust = rest.rsplit_once("[trust]").unwrap().1;
    let port = |kind: &&str| {
        let mode = match *kind {
            "native" | "bare" => "native",
            other => other,
        };
        format!(
            "[[port]]\nname = \"{kind}\"\nmode = \"{mode}\"\ndevice = \"to-{kind}\"\nrate = \"1Gbit/s\"\n"
        )
    };
    let ports = KINDS.iter().map(port).collect::<String>();
    let tun = format!("[[port]]\nname = \"{TUN}\"\nkind = \"tun\"\nrate = \"1Gbit/s\"\n");
    format!("{head}{ports}{tun}[trust]{trust}")
}

#[test]
fn from_each_kind_of_port_to_each_all_arrives_and_is_paid_for_or_the_rule_is_refused() {
    if !root_or_skip("cut-through between kinds of ports") {
        return;
    }
    let net = Net::up(&topology()).unwrap();
    let bare = net.end("bare", "r1").unwrap().device.clone();
    let argv = ["ethtool", "-K", &bare, "gro", "off"];
    assert!(net.run("bare", &argv, SOON).unwrap().status.success());
    let node = NodeUnderTest::start_edited(&net, "r1", "", of_each_kind).unwrap();
    let open = || sockets::tun::create(TUN, sockets::tun::Kind::Packets);
    let tunnel = net.within("r1", open).unwrap().unwrap();
    let running = || net.netlink("r1").unwrap().link(TUN).unwrap().running.then_some(());
    assert!(wait_for(SOON, running).is_some(), "the tunnel has a carrier");
    let modes = node.client().node().unwrap().ports;
    for port in modes.iter().filter(|port| KINDS.contains(&port.name.as_str())) {
        let mode = if port.name == "bare" { "native" } else { port.name.as_str() };
        assert_eq!(port.mode, mode, "{}: {:?}", port.name, port.mode_reason);
    }
    let mut behind: Vec<(&str, Behind)> = KINDS
        .iter()
        .map(|kind| (*kind, Behind::Host(RawPort::open(&net, kind, "r1").unwrap())))
        .collect();
    behind.push((TUN, Behind::Tunnel(tunnel)));
    let send = behind.iter().map(|(name, _)| ((*name).to_owned(), "5ms/10ms".to_owned())).collect();
    let request = SessionRequest { name: "gold".to_owned(), send, ..SessionRequest::default() };
    node.client().create_session(&request).unwrap();

    let mut port = 5000;
    for (from, source) in &behind {
        for (to, sink) in behind.iter().filter(|(to, _)| to != from) {
            port += 1;
            let text = format!("in {from} proto udp dport {port}");
            let rule = RuleRequest {
                session: Some("gold".to_owned()),
                ..RuleRequest::new(&text, format!("out {to}"))
            };
            let added = node.client().add_rules(&RulesRequest { rules: vec![rule] });
            if *from == "tc" {
                let refused = added.unwrap_err().to_string();
                assert!(refused.contains("tc"), "{from} to {to}: {refused}");
                continue;
            }
            let added = added.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
            let sent = || {
                let used = node.client().session("gold").unwrap().used.send;
                used.iter().find(|share| share.port == *to).unwrap().sent_bytes
            };
            let before = sent();
            // Addresses that do not exist here: no route matches.
            let (near, far) = ([2, 0, 0, 0, 9, 1], destination(&net, from));
            let frame = FrameBuilder::new().ethernet(near, far);
            let frame = frame.ipv4([192, 0, 2, 1], [192, 0, 2, 2], 9);
            let frame = frame.udp(4000, port).payload(&[5; 100]).build();
            for _ in 0..FRAMES {
                source.send(&frame);
            }
            assert_eq!(sink.count(port), usize::from(FRAMES), "{from} to {to}");
            let bytes = u64::from(FRAMES) * frame.len() as u64;
            assert_eq!(sent() - before, bytes, "{from} to {to} is paid for once");
            node.client().remove_rule(added.rules[0]).unwrap();
        }
    }
}

/// Returns the MAC address of the port that a host's frames are for.
fn destination(net: &Net, host: &str) -> [u8; 6] {
    if host == TUN { [0; 6] } else { net.mac("r1", host).unwrap() }
}
