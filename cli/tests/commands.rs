//! Tests of the built binary: output, errors as documents, exit statuses. None needs a node; only
//! those that run modules in the kernel need root.

#[path = "commands/compatibility.rs"]
mod compatibility;
#[path = "commands/dev.rs"]
mod dev;
#[path = "commands/echo.rs"]
mod echo;
#[path = "commands/levels.rs"]
mod levels;
#[path = "commands/outputs.rs"]
mod outputs;
#[path = "commands/repository.rs"]
mod repositories;
#[path = "commands/services.rs"]
mod services;
#[path = "commands/systemd.rs"]
mod systemd;
#[path = "commands/trust.rs"]
mod trust;

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use wire::FrameBuilder;

fn tam(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tam")).args(arguments).output().unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns the only document on standard output.
fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error} in {:?}, beside {:?}", text(&output.stdout), text(&output.stderr))
    })
}

/// Checks that the command fails with this status and code, for programs and for people.
#[track_caller]
fn fails(arguments: &[&str], expected_status: i32, code: &str, says: &str) {
    let with_json: Vec<_> = ["--json"].iter().chain(arguments).copied().collect();
    let output = tam(&with_json);
    let document = document(&output);
    assert_eq!(status(&output), expected_status, "{document}");
    assert_eq!(document["schema_version"], 1);
    assert_eq!(document["error"]["code"], code, "{document}");
    let message = document["error"]["message"].as_str().unwrap();
    assert!(message.contains(says), "{message}");
    let plain = tam(arguments);
    assert_eq!(status(&plain), expected_status);
    assert!(text(&plain.stderr).contains("error: "), "{}", text(&plain.stderr));
    assert!(!text(&plain.stdout).contains("error"), "{}", text(&plain.stdout));
}

#[test]
fn help_is_as_it_was_agreed() {
    let output = Command::new(env!("CARGO_BIN_EXE_tam"))
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), include_str!("golden/help.txt"));
    assert_eq!(status(&output), 0);
}

#[test]
fn wrong_usage_exits_with_status_2() {
    fails(&["nosuch"], 2, "usage", "unrecognized subcommand 'nosuch'");
    fails(&["rule", "add", "any"], 2, "usage", "--drop");
    fails(&["rule", "add", "any", "--drop", "--forward"], 2, "usage", "cannot be used with");
    fails(&["session", "set", "gold"], 2, "usage", "--no-cpu");
    fails(&["session", "set", "gold", "--cpu", "1ms/4ms", "--no-cpu"], 2, "usage", "cannot be");
    fails(&["session", "create", "gold", "--send", "1ms/4ms"], 2, "usage", "PORT=SHARE");
    fails(&["apply", "edge.toml", "--confirm", "5d"], 2, "usage", "60s");
    fails(&["rollback", "3", "--list"], 2, "usage", "cannot be used with");
    fails(&["deploy", "m", "--param", "dscp"], 2, "usage", "NAME=VALUE");
    fails(&["list", "--node", "UP"], 2, "usage", "'U'");
}

#[test]
fn a_missing_file_exits_with_status_3() {
    fails(&["check", "/nonexistent/m.wasm"], 3, "not_found", "/nonexistent/m.wasm");
    fails(&["lab", "up", "/nonexistent/lab.toml"], 3, "not_found", "/nonexistent/lab.toml");
    fails(&["node", "--config", "/nonexistent/node.toml"], 3, "not_found", "node.toml");
    fails(&["apply", "/nonexistent/edge.toml"], 3, "not_found", "/nonexistent/edge.toml");
    fails(&["diff", "/nonexistent/edge.toml"], 3, "not_found", "/nonexistent/edge.toml");
    fails(&["bench", "foward"], 3, "not_found", "forward");
}

#[test]
fn an_unreachable_node_exits_with_status_6() {
    fails(&["list", "--node", "tt-cli-nosuch"], 6, "unreachable", "tt-cli-nosuch");
    fails(&["session", "list", "--node", "tt-cli-nosuch"], 6, "unreachable", "tt-cli-nosuch");
    fails(&["stats", "--node", "tt-cli-nosuch"], 6, "unreachable", "no node 'tt-cli-nosuch' runs");
}

#[test]
fn a_file_that_is_no_module_is_said_to_be_so() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("m.wasm");
    let path = file.to_str().unwrap();
    for (bytes, says) in [
        (&b"\x7fELF\x02"[..], "ELF"),
        (b"", "empty"),
        (b"\0asm\x01\0\0\0", "custom section"),
        (b"\0asm\x01\0\0\0\x01", "not valid"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        fails(&["check", path], 2, "usage", says);
    }
}

#[test]
fn a_topology_with_a_typing_error_names_the_line() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("lab.toml");
    std::fs::write(&file, "name = \"l\"\n[[hots]]\nname = \"a\"\n").unwrap();
    fails(&["lab", "up", file.to_str().unwrap()], 2, "usage", "lab.toml:2");
}

#[test]
fn without_a_node_file_there_is_a_sample() {
    let output = tam(&["node"]);
    assert_eq!(status(&output), 2);
    assert!(text(&output.stdout).contains("[[port]]"));
    assert!(text(&output.stderr).contains("tam node --config"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let directory = TempDir::new().unwrap();
    let (module, capture) = (module(&directory, MARKER), capture(&directory, 2_000));
    let mut child = Command::new(env!("CARGO_BIN_EXE_tam"))
        .args(["run", module.to_str().unwrap(), capture.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((status(&output), text(&output.stderr)), (0, String::new()));
}

/// Module that marks the code point of packets of even length, drops those of odd length with
/// reason 7, and traps on those of 61 bytes.
const MARKER: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"marker\"\nversion = \"1.2.3\"\nwindow = 64\n[reasons]\n7 = \"odd\"\n")
    (memory (export "memory") 1 1)
    (global (export "tam_counter_seen") i32 (i32.const 0x9000))
    (func (export "on_packet") (result i32)
      (i64.store (i32.const 0x9000) (i64.add (i64.load (i32.const 0x9000)) (i64.const 1)))
      (if (i32.eq (i32.load (i32.const 0x8000)) (i32.const 61)) (then unreachable))
      (if (i32.and (i32.load (i32.const 0x8000)) (i32.const 1))
        (then (return (i32.const 0x70001))))
      (i32.store8 (i32.const 0x8111) (i32.const 0x28))
      (i32.const 0)))"#;

fn module(directory: &TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("marker.wasm");
    std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
    path
}

/// Writes a capture of UDP packets of 60, 61, 62, 63 bytes in turn, and at last one that is no IP.
fn capture(directory: &TempDir, count: usize) -> PathBuf {
    let path = directory.path().join("in.pcap");
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(&path).unwrap(), header).unwrap();
    for number in 0..count {
        let payload = vec![0; 18 + number % 4];
        let frame = FrameBuilder::new()
            .ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64)
            .udp(4000, 53)
            .payload(&payload)
            .build();
        write(&mut writer, number, &frame);
    }
    write(&mut writer, count, &[0xff; 60]);
    path
}

fn write(writer: &mut PcapWriter<File>, number: usize, frame: &[u8]) {
    let time = Duration::from_millis(number as u64);
    writer.write_packet(&PcapPacket::new(time, frame.len() as u32, frame)).unwrap();
}

#[test]
fn a_module_runs_over_a_capture() {
    let directory = TempDir::new().unwrap();
    let (module, capture) = (module(&directory, MARKER), capture(&directory, 4));
    let out = directory.path().join("out.pcap");
    let output = tam(&[
        "--json",
        "run",
        module.to_str().unwrap(),
        capture.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ]);
    let document = document(&output);
    assert_eq!(status(&output), 0, "{document}");
    let verdicts: Vec<_> = document["packets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|packet| packet["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["pass", "trap", "pass", "drop odd", "kernel_not_ip"]);
    let change = &document["packets"][0]["changes"][0];
    assert_eq!((change["offset"].as_u64(), change["new"].as_str()), (Some(15), Some("28")));
    assert_eq!(document["traps"]["unreachable"], 1);
    assert_eq!(document["summary"]["pass"], 2);
    // The trap ended an instance, whose counters are lost.
    assert_eq!(document["counters"]["seen"], 2);
    assert_eq!(lengths(&out), [60, 62]);
}

fn lengths(path: &Path) -> Vec<usize> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    std::iter::from_fn(|| Some(reader.next_packet()?.unwrap().data.len())).collect()
}

#[test]
fn a_capture_that_is_cut_off_is_partly_done() {
    let directory = TempDir::new().unwrap();
    let (module, capture) = (module(&directory, MARKER), capture(&directory, 4));
    let bytes = std::fs::read(&capture).unwrap();
    std::fs::write(&capture, &bytes[..bytes.len() - 10]).unwrap();
    let output = tam(&["--json", "run", module.to_str().unwrap(), capture.to_str().unwrap()]);
    assert_eq!(status(&output), 8);
    let document = document(&output);
    assert_eq!(document["packets"].as_array().unwrap().len(), 4);
    assert!(document["capture_fault"].as_str().unwrap().contains("behind packet 4"), "{document}");
}

#[test]
fn files_that_are_no_captures_are_refused() {
    let directory = TempDir::new().unwrap();
    let (module, capture) = (module(&directory, MARKER), capture(&directory, 1));
    let (module, capture) = (module.to_str().unwrap(), capture.to_str().unwrap());
    fails(&["run", module, module], 2, "usage", "neither pcap nor pcapng");
    fails(&["run", module, capture, "--level", "cluster"], 7, "unsupported", "not built yet");
    fails(&["run", module, capture, "--param", "x=1"], 2, "usage", "no parameter \"x\"");
    let link = directory.path().join("link.pcap");
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    PcapWriter::with_header(File::create(&link).unwrap(), header).unwrap();
    fails(&["run", module, link.to_str().unwrap()], 2, "usage", "link type RAW");
}

#[test]
fn a_module_that_loops_is_stopped() {
    let directory = TempDir::new().unwrap();
    let text = r#"(module
        (@custom "tamandua" "abi = 1\nname = \"loops\"\nversion = \"0.1.0\"\nwindow = 64\n")
        (memory (export "memory") 1 1)
        (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0)))"#;
    let (module, capture) = (module(&directory, text), capture(&directory, 1));
    let output = tam(&["--json", "run", module.to_str().unwrap(), capture.to_str().unwrap()]);
    assert_eq!(document(&output)["traps"]["time_limit"], 1);
}

#[test]
fn check_says_which_levels_a_module_fits() {
    let directory = TempDir::new().unwrap();
    let module = module(&directory, MARKER);
    let output = tam(&["check", "--json", module.to_str().unwrap()]);
    let document = document(&output);
    assert_eq!(document["declares"]["name"], "marker");
    let fits: Vec<_> = document["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| (level["level"].as_str().unwrap(), level["fits"].as_bool().unwrap()))
        .collect();
    assert_eq!(fits, [("nic", true), ("kernel", true), ("user", true), ("cluster", false)]);
    let declared: Vec<_> = document["levels"].as_array().unwrap().iter().collect();
    assert_eq!((&declared[0]["declared"], &declared[2]["declared"]), (&false.into(), &true.into()));
    assert!(declared[0]["cost"]["instructions_max"].as_u64().unwrap() > 5);
}

#[test]
fn check_names_what_does_not_become_ebpf_and_where() {
    let directory = TempDir::new().unwrap();
    let body = r#"(module
      (@custom "tamandua" "abi = 1\nname = \"mean\"\nversion = \"0.1.0\"\nwindow = 64\n")
      (memory (export "memory") 1)
      (func $mean (param f64) (result i32) (i32.trunc_sat_f64_u (local.get 0)))
      (func (export "on_packet") (result i32)
        (call $mean (f64.convert_i32_u (i32.load8_u (i32.const 0x8102))))))"#;
    let module = module(&directory, body);
    let output = tam(&["check", "--json", module.to_str().unwrap()]);
    let document = document(&output);
    let nic = &document["levels"][0];
    assert_eq!((&nic["level"], &nic["fits"]), (&"nic".into(), &false.into()));
    let refusals = nic["refusals"].as_array().unwrap();
    assert!(!refusals.is_empty());
    for refusal in refusals {
        assert_eq!(refusal["code"], "float", "{refusal}");
        assert!(refusal["place"].as_u64().unwrap() > 8, "{refusal}");
    }
    assert_eq!(document["levels"][2]["fits"], true, "at user level it runs");
    let text = String::from_utf8(tam(&["check", module.to_str().unwrap()]).stdout).unwrap();
    assert!(text.contains("computes with floats"), "{text}");
}

#[test]
fn a_new_project_is_written_once() {
    let directory = TempDir::new().unwrap();
    let new = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tam"));
        command.current_dir(&directory).args(["new", "--json", name]).output().unwrap()
    };
    assert_eq!(status(&new("mine")), 0);
    assert!(directory.path().join("mine/src/lib.rs").exists());
    assert_eq!(document(&new("mine"))["error"]["code"], "failed");
    assert_eq!(document(&new("match"))["error"]["code"], "usage");
}
