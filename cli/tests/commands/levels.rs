//! `tam run` at `nic` and `kernel`.

use super::{MARKER, capture, document, fails, module, status, tam, text, write};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapWriter};
use serde_json::Value;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use wire::FrameBuilder;

/// User and group id of "nobody".
const NOBODY: u32 = 65_534;

/// Returns true if BPF programs can be loaded; prints a note when not.
fn privileged() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testbase::skip_this("programs in the kernel need root");
    }
    root
}

/// Runs a module at a level over a capture; returns the report.
fn run_at(level: &str, module: &Path, capture: &Path) -> Value {
    let (module, capture) = (module.to_str().unwrap(), capture.to_str().unwrap());
    let output = tam(&["--json", "run", module, capture, "--level", level]);
    let document = document(&output);
    assert_eq!(status(&output), 0, "{level}: {document}");
    document
}

#[test]
fn a_capture_gives_the_same_at_every_level() {
    if !privileged() {
        return;
    }
    let directory = TempDir::new().unwrap();
    for text in [MARKER, STATEFUL, TRAPS] {
        let (module, capture) = (module(&directory, text), capture(&directory, 12));
        let user = run_at("user", &module, &capture);
        assert_eq!(user["packets"].as_array().unwrap().len(), 13);
        for level in ["nic", "kernel"] {
            assert_eq!(run_at(level, &module, &capture), user, "{level}");
        }
    }
}

/// Module whose start function sets a global and grows memory by a page. Packets and a timer change
/// both; the drop reason is the global's value.
const STATEFUL: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"state\"\nversion = \"1.0.0\"\nwindow = 64\nneeds = [\"events\"]\ntimer_ms = 3\nmemory_pages_max = 3\n")
    (import "tam" "event" (func $event (param i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (global $seen (mut i64) (i64.const 1))
    (global (export "tam_counter_timer") i32 (i32.const 0x9008))
    (global (export "tam_counter_grown") i32 (i32.const 0x9010))
    (func (export "on_start") (result i32)
      (global.set $seen (i64.const 100))
      (memory.grow (i32.const 1))
      (i32.ne (i32.const 1)))
    (func (export "on_timer")
      (global.set $seen (i64.add (global.get $seen) (i64.const 1000)))
      (drop (call $event (i32.const 3) (i32.const 0x9000) (i32.const 0)))
      (i64.store (i32.const 0x9008) (i64.add (i64.load (i32.const 0x9008)) (i64.const 1)))
      (i64.store (i32.const 0x9010) (i64.load (i32.const 0x1fff8))))
    (func (export "on_packet") (result i32)
      (global.set $seen (i64.add (global.get $seen) (i64.const 1)))
      (i64.store (i32.const 0x1fff8) (i64.extend_i32_u (memory.grow (i32.const 0))))
      (drop (call $event (i32.const 7) (i32.const 0x8102) (i32.const 6)))
      (i32.or (i32.const 1) (i32.shl (i32.wrap_i64 (global.get $seen)) (i32.const 16)))))"#;

/// Module that ends differently at each packet, the first of which is that of a timer: by traps
/// with or without a branch in front, and by numbers that are no verdicts.
const TRAPS: &str = r#"(module
    (@custom "tamandua" "abi = 1\nname = \"traps\"\nversion = \"1.0.0\"\nwindow = 64\n")
    (memory (export "memory") 1)
    (global $zero (mut i32) (i32.const 0))
    (func $divide (result i32) (i32.div_u (i32.const 1) (global.get $zero)))
    (func (export "on_packet") (result i32)
      (local $n i32)
      (local.set $n (i32.rem_u (i32.load8_u (i32.const 0x8131)) (i32.const 6)))
      (if (i32.eq (local.get $n) (i32.const 0)) (then unreachable))
      (block $next
        (block $bad
          (br_if $bad (i32.eq (local.get $n) (i32.const 1)))
          (br $next))
        unreachable)
      (if (i32.eq (local.get $n) (i32.const 2)) (then (return (call $divide))))
      (if (i32.eq (local.get $n) (i32.const 3)) (then (return (i32.const 0x45))))
      (if (i32.eq (local.get $n) (i32.const 4))
        (then (return (i32.load (i32.sub (global.get $zero) (i32.const 2))))))
      (i32.add (i32.const 0x10005) (global.get $zero))))"#;

#[test]
fn what_does_not_fit_a_level_is_said() {
    let directory = TempDir::new().unwrap();
    let text = r#"(module
        (@custom "tamandua" "abi = 1\nname = \"floats\"\nversion = \"0.1.0\"\nwindow = 64\n")
        (memory (export "memory") 1 1)
        (func (export "on_packet") (result i32)
          (i32.trunc_f32_s (f32.convert_i32_s (i32.load (i32.const 0x8102))))))"#;
    let (module, capture) = (module(&directory, text), capture(&directory, 1));
    let (module, capture) = (module.to_str().unwrap(), capture.to_str().unwrap());
    let expected = "does not fit level nic: it does not become eBPF: function";
    fails(&["run", module, capture, "--level", "nic"], 7, "unsupported", expected);
}

#[test]
fn a_packet_that_a_level_cannot_run_here_is_partly_done() {
    if !privileged() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let module = module(&directory, MARKER);
    let path = directory.path().join("long.pcap");
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(&path).unwrap(), header).unwrap();
    let frame = |length| {
        let builder = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(4000, 53);
        builder.payload(&vec![0; length]).build()
    };
    write(&mut writer, 0, &frame(8000));
    write(&mut writer, 1, &frame(18));
    drop(writer);
    let (module, path) = (module.to_str().unwrap(), path.to_str().unwrap());
    let output = tam(&["--json", "run", module, path, "--level", "kernel"]);
    let document = document(&output);
    assert_eq!(status(&output), 8, "{document}");
    assert_eq!(document["packets"][0]["verdict"], "not run");
    assert!(
        document["packets"][0]["not_run"].as_str().unwrap().contains("8042 bytes"),
        "{document}"
    );
    assert_eq!(document["packets"][1]["verdict"], "pass");
    assert!(text(&output.stderr).contains("1 packets were not run"), "{}", text(&output.stderr));
    assert_eq!(status(&tam(&["run", module, path, "--level", "nic"])), 0);
}

#[test]
fn a_level_in_the_kernel_needs_rights() {
    if !privileged() {
        return;
    }
    // A folder that the user "nobody" cannot read.
    let directory = TempDir::new().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("tam");
    std::fs::copy(env!("CARGO_BIN_EXE_tam"), &program).unwrap();
    let (module, capture) = (module(&directory, MARKER), capture(&directory, 1));
    for (level, expected) in [("nic", 7), ("kernel", 7), ("user", 0)] {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(NOBODY).args(["--json", "run", "--level", level]);
        command.arg(&module).arg(&capture);
        // A child of another test may have the copy open for writing until it calls exec.
        let output = loop {
            match command.output() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {}
                output => break output.unwrap(),
            }
        };
        let document = document(&output);
        assert_eq!(status(&output), expected, "{document}");
        if expected != 0 {
            let help = document["error"]["help"].as_str().unwrap();
            assert!(help.contains("root") && help.contains("--level user"), "{document}");
        }
    }
}
