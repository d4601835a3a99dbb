//! Prometheus metrics: read by its own parser, equal to the packets sent, over both transports.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{Line, SOON, module};
use testkit::{Net, NodeUnderTest, Service, root_or_skip, skip};

const PORT: u16 = 7000;
const RULES: &[&str] = &["proto udp dport 7000"];

/// Python modules of Prometheus' own parsers: of its text format, and of OpenMetrics, which is
/// strict.
const TEXT: &str = "prometheus_client.parser";
const OPEN_METRICS: &str = "prometheus_client.openmetrics.parser";
/// Header that requests OpenMetrics.
const ACCEPT: &str = "Accept: application/openmetrics-text; version=1.0.0";
/// Python program that prints a line for each sample.
const PARSER: &str = r#"
import importlib, sys
parse = importlib.import_module(sys.argv[1]).text_string_to_metric_families
for family in parse(sys.stdin.read()):
    for sample in family.samples:
        labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
        print(f"{sample.name}|{labels}|{sample.value}")
"#;
/// Interpreter of Debian, which finds Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// Returns samples by name and labels; `None` without the parser.
fn parsed(text: &str, parser: &str) -> Option<BTreeMap<String, f64>> {
    let known = Command::new(PYTHON).args(["-c", "import prometheus_client.openmetrics"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut python = Command::new(PYTHON)
        .args(["-c", PARSER, parser])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once('|').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    Some(lines.lines().map(sample).collect())
}

#[test]
fn counters_for_prometheus_are_read_by_its_parser_and_say_what_was_sent() {
    if !root_or_skip("metrics") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let more = "[metrics]\nlisten = \"127.0.0.1:9464\"\n";
    let node = NodeUnderTest::start_with(&net, "r1", more).unwrap();
    let line = Line { node, net };
    line.resolve_neighbours();
    let wasm = module(
        "fussy",
        "window = 64\n[reasons]\n7 = \"it \\\\\\\"said\\\\\\\" no\"",
        r#"
        (memory (export "memory") 1)
        (global (export "tam_counter_seen") i32 (i32.const 0x9000))
        (func (export "on_packet") (result i32)
          (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
          (if (i64.eqz (i64.rem_u (i64.load (i32.const 0x9000)) (i64.const 4)))
            (then (return (i32.const 0x00070001))))
          (i32.const 0))"#,
    );
    let deployed =
        line.node.deploy(&wasm, &Service { rules: RULES, ..Service::default() }).unwrap();
    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    const PACKETS: u64 = 640;
    for _ in 0..PACKETS {
        sender.send_to(b"metric", line.server(PORT)).unwrap();
    }
    let mut payload = [0; 16];
    for _ in 0..PACKETS * 3 / 4 {
        receiver.recv(&mut payload).unwrap();
    }
    let stats = line.books().node;
    let text = line.node.client().metrics().unwrap();
    let Some(samples) = parsed(&text, TEXT) else {
        return skip("metrics", "python3-prometheus-client is not installed");
    };
    let value = |name: &str| *samples.get(name).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    let (digest, rule) = (&deployed.service.digest, deployed.service.rules[0]);
    let of = format!("digest={digest},");
    let packets = PACKETS as f64;
    let at = |name: &str, rest: &str| value(&format!("tamandua_{name}|{of}{rest}"));
    assert_eq!(at("service_packets_total", "service=fussy"), packets);
    assert_eq!(at("service_calls_total", "level=user,service=fussy"), packets);
    assert_eq!(at("service_calls_total", "level=below,service=fussy"), 0.0);
    assert_eq!(
        at("service_verdict_packets_total", "service=fussy,verdict=forwarded"),
        packets * 0.75
    );
    let seen = format!("tamandua_module_counter|counter=seen,{of}service=fussy");
    assert_eq!(value(&seen), packets);
    assert_eq!(at("service_call_seconds_count", "service=fussy"), packets / 64.0, "one of 64");
    assert!(at("service_call_seconds_sum", "service=fussy") > 0.0);
    let reason = r#"reason=module.it \"said\" no,service=fussy"#;
    assert_eq!(at("service_dropped_packets_total", reason), packets / 4.0);
    let of_rule = format!("action=service fussy,rule={rule},session=best-effort");
    assert_eq!(value(&format!("tamandua_rule_packets_total|{of_rule}")), packets);
    for port in &stats.ports {
        let name = format!("tamandua_port_received_packets_total|port={}", port.port);
        assert!(value(&name) >= port.rx_packets as f64, "{name}");
    }
    assert!(value("tamandua_cell_cpu_seconds_total|") > 0.0);

    // Over TCP the same, and nothing else.
    let curl = |arguments: &[&str]| {
        let argv = [&["curl", "-s", "-i", "-m", "5"], arguments].concat();
        line.net.run("r1", &argv, SOON).unwrap().stdout
    };
    for (accept, kind, parser) in [
        ("Accept: */*", "text/plain; version=0.0.4", TEXT),
        (ACCEPT, "application/openmetrics-text", OPEN_METRICS),
    ] {
        let answer = curl(&["-H", accept, "http://127.0.0.1:9464/metrics"]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(kind), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(parsed(body, parser).unwrap().len() >= samples.len());
    }
    assert!(curl(&["http://127.0.0.1:9464/v1/node"]).starts_with("HTTP/1.1 404"));
    assert!(curl(&["-X", "POST", "http://127.0.0.1:9464/metrics"]).starts_with("HTTP/1.1 405"));
}
