//! `tam capture`: packets as they entered and left, with rule, verdict and level, read by common
//! programs.

use std::path::Path;
use std::time::Duration;

use crate::common::{Line, PROGRAM_TIME_MAX, SOON, module};
use crate::packet::packet_line;
use api::CapturedPacket;
use testkit::{Running, Service, root_or_skip, tam, wait_for};

const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

/// Module that drops each fourth packet for the reason 7, which its manifest names.
const FUSSY: &str = r#"
(memory (export "memory") 1)
(global (export "tam_counter_seen") i32 (i32.const 0x9000))
(func (export "on_packet") (result i32)
  (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
  (if (i64.eqz (i64.rem_u (i64.load (i32.const 0x9000)) (i64.const 4)))
    (then (return (i32.const 0x00070001))))
  (i32.const 0))"#;

struct Setting {
    line: Line,
    dropping: u32,
    serving: u32,
}

/// Numbers of packets: 40 for a service that drops 10, 10 for a rule that drops, 20 for neither.
const SERVED: usize = 40;
const REFUSED: usize = 10;
const PLAIN: usize = 20;

impl Setting {
    fn up() -> Self {
        Self::up_at("user")
    }

    fn up_at(level: &str) -> Self {
        Self::on(Line::up(), level)
    }

    fn on(line: Line, level: &str) -> Self {
        line.resolve_neighbours();
        let manifest = "window = 64\nlevels = [\"nic\", \"kernel\", \"user\"]\n\
                        [reasons]\n7 = \"dislike\"";
        let wasm = module("fussy", manifest, FUSSY);
        let service = Service { rules: RULES, level, ..Service::default() };
        let serving = line.node.deploy(&wasm, &service).unwrap().service.rules[0];
        let rules = api::RuleRequest::new("proto udp dport 7001", "drop").into();
        let dropping = line.node.client().add_rules(&rules).unwrap().rules[0];
        Self { line, dropping, serving }
    }

    /// Starts a capture that writes to this file, and waits until it runs.
    fn capture(&self, file: &Path, arguments: &[&str]) -> Running {
        let _ = std::fs::remove_file(file);
        let (program, name) = (tam(), self.line.node.name().to_string());
        let mut argv = vec![program.to_str().unwrap(), "capture", "--node", &name];
        argv.extend(["-w", file.to_str().unwrap()]);
        argv.extend(arguments);
        let running = Running::start(&self.line.net.namespace("r1").unwrap(), &argv).unwrap();
        let begun = || std::fs::metadata(file).is_ok_and(|file| file.len() > 28).then_some(());
        assert!(wait_for(4 * SOON, begun).is_some(), "the capture did not begin");
        running
    }

    fn send(&self) {
        let sender = self.line.udp("client", 0);
        let [served, plain] = [PORT, PORT + 2].map(|port| self.line.udp("server", port));
        for (count, port) in [(SERVED, PORT), (REFUSED, PORT + 1), (PLAIN, PORT + 2)] {
            for _ in 0..count {
                sender.send_to(b"capture me", self.line.server(port)).unwrap();
            }
        }
        let mut payload = [0; 16];
        (0..SERVED * 3 / 4).for_each(|_| assert_eq!(served.recv(&mut payload).unwrap(), 10));
        (0..PLAIN).for_each(|_| assert_eq!(plain.recv(&mut payload).unwrap(), 10));
        // By then records of the cell and the rings have reached the daemon.
        std::thread::sleep(Duration::from_millis(300));
    }

    /// Returns the packets of a file that match, as tcpdump reads it.
    fn read(&self, file: &Path, filter: &str) -> usize {
        let argv = ["tcpdump", "-nn", "-r", file.to_str().unwrap(), filter];
        let output = self.line.net.run("r1", &argv, PROGRAM_TIME_MAX).unwrap();
        assert!(output.status.success(), "{output:#?}");
        output.stdout.lines().count()
    }
}

#[test]
fn a_file_stays_as_it_is_when_the_node_refuses_the_capture() {
    if !root_or_skip("captures that are refused") {
        return;
    }
    let line = Line::up();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "precious").unwrap();
    let (program, name) = (tam(), line.node.name().to_string());
    let path = file.path().to_str().unwrap();
    let argv =
        [program.to_str().unwrap(), "capture", "--node", &name, "--port", "nope", "-w", path];
    let output = line.net.run("r1", &argv, PROGRAM_TIME_MAX).unwrap();
    assert!(output.stderr.contains("there is no port 'nope'"), "{output:#?}");
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "precious");
}

#[test]
fn packets_are_captured_as_they_came_and_left_and_tcpdump_reads_the_file() {
    if !root_or_skip("captures") {
        return;
    }
    let setting = Setting::up();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcapng");
    let running = setting.capture(&file, &[]);
    setting.send();
    running.interrupt().unwrap();
    let output = running.wait(4 * SOON).unwrap();
    assert!(output.status.success(), "{output:#?}");
    assert!(output.stderr.contains("none lost"), "{output:#?}");
    // Each as it came; what the service dropped once more, with its verdict; what left.
    let dropped = SERVED / 4;
    let served = 2 * SERVED;
    assert_eq!(setting.read(&file, "udp dst port 7000"), served, "{output:#?}");
    assert_eq!(setting.read(&file, "udp dst port 7001"), REFUSED);
    assert_eq!(setting.read(&file, "udp dst port 7002"), 2 * PLAIN);
    let left = SERVED - dropped + PLAIN;
    assert_eq!(setting.read(&file, "udp and ip[8] == 63"), left, "one hop further when they leave");

    // Only what is asked for.
    let file = folder.path().join("out.pcapng");
    let running =
        setting.capture(&file, &["--port", "right", "--direction", "out", "--snap", "64"]);
    setting.send();
    running.interrupt().unwrap();
    running.wait(4 * SOON).unwrap();
    assert_eq!(setting.read(&file, "udp dst port 7000"), SERVED - dropped);
    assert_eq!(setting.read(&file, "udp dst port 7002"), PLAIN);
    assert_eq!(setting.read(&file, "udp dst port 7001"), 0);

    let file = folder.path().join("dropped.pcapng");
    let running = setting.capture(&file, &["--dropped", "-c", "20", "--json"]);
    setting.send();
    let output = running.wait(4 * SOON).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(
        (&summary["packets"], &summary["ended"], &summary["lost"]),
        (&20.into(), &"packets".into(), &0.into())
    );
    assert_eq!(setting.read(&file, "udp dst port 7000"), dropped);
    assert_eq!(setting.read(&file, "udp dst port 7001"), REFUSED);
}

/// Captures all packets of these ports while `action` runs.
pub fn packets_of(line: &Line, ports: &[&str], action: impl FnOnce()) -> Vec<CapturedPacket> {
    let ports: Vec<String> = ports.iter().map(|&port| port.to_owned()).collect();
    packets_of_request(line, &api::CaptureRequest { ports, ..Default::default() }, action)
}

/// Captures by this request while `action` runs.
pub fn packets_of_request(
    line: &Line,
    request: &api::CaptureRequest,
    action: impl FnOnce(),
) -> Vec<CapturedPacket> {
    let client = line.node.client();
    let started = client.capture(request).unwrap();
    assert!(request.ports.is_empty() || started.ports == request.ports, "{started:#?}");
    action();
    let mut packets: Vec<CapturedPacket> = Vec::new();
    loop {
        let more = client.captured(started.id, 0).unwrap();
        assert_eq!(more.lost, 0);
        if more.packets.is_empty() {
            break;
        }
        packets.extend(more.packets);
    }
    packets.extend(client.end_capture(started.id).unwrap().packets);
    packets
}

fn is(text: &Option<String>, wanted: &str) -> bool {
    text.as_deref() == Some(wanted)
}

#[test]
fn packets_of_packet_ports_are_captured_as_they_came_and_left() {
    if !root_or_skip("captures on ports without XDP") {
        return;
    }
    let setting = Setting::on(packet_line(1500), "user");
    let packets = packets_of(&setting.line, &["left", "right"], || setting.send());
    let count = |place: (&str, &str, &str), wanted: &dyn Fn(&CapturedPacket) -> bool| {
        let is_there = |p: &&CapturedPacket| {
            (p.direction.as_str(), p.port.as_str(), p.seen_by.as_str()) == place
        };
        packets.iter().filter(is_there).filter(|p| wanted(p)).count()
    };
    let (came, left) = (("in", "left", "cell"), ("out", "right", "kernel"));
    let serving = |p: &CapturedPacket| {
        (p.rule, is(&p.session, "best-effort"), is(&p.service, "fussy"), is(&p.level, "user"))
            == (Some(setting.serving), true, true, true)
    };
    let was = |p: &CapturedPacket, outcome: &str| is(&p.outcome, outcome);
    assert_eq!(count(came, &|p| serving(p) && was(p, "to_user") && !p.dropped), SERVED);
    // The kernel routes what a service passes, too.
    let sent = |port: u16| count(left, &|p| hops(p) == 63 && is_for(p, port));
    assert_eq!((sent(PORT), sent(PORT + 2)), (SERVED * 3 / 4, PLAIN), "{packets:#?}");
    let disliked = count(came, &|p| serving(p) && is(&p.verdict, "drop dislike") && p.dropped);
    assert_eq!(disliked, SERVED / 4, "{packets:#?}");
    let refused =
        count(came, &|p| p.rule == Some(setting.dropping) && was(p, "drop_rule") && p.dropped);
    assert_eq!(refused, REFUSED, "{packets:#?}");
    // Packets without a rule are forwarded by the kernel.
    let plain = |p: &CapturedPacket| p.rule.is_none() && is_for(p, PORT + 2);
    assert_eq!(count(came, &|p| plain(p) && p.outcome.is_some() && hops(p) == 64), PLAIN);
    // In the order in which they happened, by one clock.
    let first = |direction: &str| {
        let all = packets.iter().filter(|p| p.direction == direction && plain(p));
        all.map(|p| p.time_ns).min().unwrap()
    };
    assert!(first("in") < first("out"), "{packets:#?}");
}

/// Returns the TTL of an untagged packet.
fn hops(packet: &CapturedPacket) -> u8 {
    u8::from_str_radix(&packet.bytes_hex[44..46], 16).unwrap()
}

/// Returns true for UDP to this L4 port, untagged and without IP options.
fn is_for(packet: &CapturedPacket, port: u16) -> bool {
    packet.bytes_hex.get(72..76) == Some(&*format!("{port:04x}"))
}

#[test]
fn a_captured_packet_has_its_rule_verdict_and_level_and_a_capture_leaves_nothing() {
    if !root_or_skip("captures, packet by packet") {
        return;
    }
    let setting = Setting::up();
    let client = setting.line.node.client();
    let packets = packets_of(&setting.line, &["left", "right"], || setting.send());
    let count =
        |wanted: &dyn Fn(&CapturedPacket) -> bool| packets.iter().filter(|p| wanted(p)).count();
    let (serving, dropping) = (Some(setting.serving), Some(setting.dropping));
    let came = count(&|p| p.rule == serving && is(&p.outcome, "to_user") && p.port == "left");
    assert_eq!(came, SERVED, "{packets:#?}");
    let passed = count(&|p| {
        p.rule == serving
            && is(&p.verdict, "pass")
            && is(&p.level, "user")
            && is(&p.service, "fussy")
            && (p.port.as_str(), p.direction.as_str()) == ("right", "out")
    });
    assert_eq!(passed, SERVED * 3 / 4, "{packets:#?}");
    let disliked = count(&|p| is(&p.verdict, "drop dislike") && p.dropped && p.port == "left");
    assert_eq!(disliked, SERVED / 4, "{packets:#?}");
    let refused = count(&|p| p.rule == dropping && is(&p.outcome, "drop_rule") && p.dropped);
    assert_eq!(refused, REFUSED, "{packets:#?}");
    let forwarded = |direction: &str, port: &str| {
        count(&|p| is(&p.outcome, "forwarded") && p.direction == direction && p.port == port)
    };
    assert_eq!(
        (forwarded("in", "left"), forwarded("out", "right")),
        (PLAIN, PLAIN),
        "{packets:#?}"
    );
    assert!(
        packets.iter().all(|p| p.rule.is_none()
            || is(&p.session, "best-effort")
            || p.seen_by == "front door"),
        "{packets:#?}"
    );

    // By session and rule; then wrong ones.
    let by_rule = api::CaptureRequest { rule: dropping, ..Default::default() };
    let started = client.capture(&by_rule).unwrap();
    setting.send();
    let ended = client.end_capture(started.id).unwrap();
    assert_eq!(ended.packets.len(), REFUSED, "{ended:#?}");
    assert_eq!(client.captured(started.id, 0).unwrap_err().code(), api::ErrorCode::NotFound);
    let refused = |request: api::CaptureRequest| client.capture(&request).unwrap_err().code();
    let ports = vec!["middle".to_owned()];
    assert_eq!(
        refused(api::CaptureRequest { ports, ..Default::default() }),
        api::ErrorCode::NotFound
    );
    let session = Some("nobody".to_owned());
    assert_eq!(
        refused(api::CaptureRequest { session, ..Default::default() }),
        api::ErrorCode::NotFound
    );
    for snap in [Some(0), Some(1 << 20)] {
        assert_eq!(
            refused(api::CaptureRequest { snap, ..Default::default() }),
            api::ErrorCode::Usage
        );
    }
    let id = client.capture(&api::CaptureRequest::default()).unwrap().id;
    assert_eq!(refused(api::CaptureRequest::default()), api::ErrorCode::Limit);
    client.end_capture(id).unwrap();
}

/// Tests that inspect the whole machine, or end processes of others: they run alone.
mod alone {
    use super::*;

    #[test]
    fn packets_handled_below_user_level_are_captured_with_their_verdict() {
        if !root_or_skip("captures behind modules at nic and kernel") {
            return;
        }
        for (level, outcome, seen_by) in
            [("nic", "to_nic", "front door"), ("kernel", "to_kernel_module", "kernel")]
        {
            let setting = Setting::up_at(level);
            let inventory = bpf::Inventory::take().unwrap();
            let packets = packets_of(&setting.line, &["left", "right"], || setting.send());
            let of_service = |packet: &&CapturedPacket| {
                packet.rule == Some(setting.serving)
                    && is(&packet.session, "best-effort")
                    && is(&packet.service, "fussy")
                    && is(&packet.level, level)
            };
            let of_service: Vec<_> = packets.iter().filter(of_service).collect();
            let count = |wanted: &dyn Fn(&CapturedPacket) -> bool| {
                of_service.iter().filter(|packet| wanted(packet)).count()
            };
            let place = |p: &CapturedPacket, direction: &str, port: &str| {
                (p.direction.as_str(), p.port.as_str()) == (direction, port)
            };
            let came = count(&|p| is(&p.outcome, outcome) && place(p, "in", "left") && !p.dropped);
            // With the TTL that it left with.
            let passed = count(&|p| {
                is(&p.verdict, "pass")
                    && p.seen_by == seen_by
                    && place(p, "out", "right")
                    && hops(p) == 63
            });
            let disliked = count(&|p| {
                is(&p.verdict, "drop dislike")
                    && p.seen_by == seen_by
                    && place(p, "in", "left")
                    && p.dropped
            });
            assert_eq!(
                (came, passed, disliked, of_service.len()),
                (SERVED, SERVED * 3 / 4, SERVED / 4, 2 * SERVED),
                "{level}: {packets:#?}"
            );

            // Only what is dropped; then without a tap, and nothing is left of those.
            let request = api::CaptureRequest { dropped: true, ..Default::default() };
            let client = setting.line.node.client();
            let id = client.capture(&request).unwrap().id;
            setting.send();
            let ended = client.end_capture(id).unwrap().packets;
            assert!(ended.iter().all(|packet| packet.dropped), "{ended:#?}");
            let disliked = ended.iter().filter(|packet| is(&packet.verdict, "drop dislike"));
            assert_eq!((disliked.count(), ended.len()), (SERVED / 4, SERVED / 4 + REFUSED));
            setting.send();
            let stats = setting.line.node.service("fussy").unwrap().stats;
            assert_eq!(
                (stats.packets, stats.dropped.values().sum::<u64>()),
                (3 * SERVED as u64, 3 * SERVED as u64 / 4)
            );
            crate::common::assert_no_bpf_since(&inventory);
        }
    }
}
