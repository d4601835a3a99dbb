//! `tam demo` as a new user types it, and the remains of one that was killed.

use namespaces::netns;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use testkit::{root_or_skip, tam, wait_for};

/// Prefix of the namespaces that the demo makes.
const NAMESPACES: &str = "tam-demo-";
const PINS: &str = "/sys/fs/bpf/tamandua/demo-r1";

fn demo() -> Output {
    let service = concat!(env!("CARGO_MANIFEST_DIR"), "/../../services/monitor/monitor.wasm");
    Command::new(tam()).args(["demo", "--json", "--module", service]).output().unwrap()
}

pub fn left_behind() -> Vec<String> {
    let namespaces = netns::list().unwrap().into_iter().filter(|n| n.starts_with(NAMESPACES));
    let pins = std::path::Path::new(PINS).exists().then(|| PINS.to_owned());
    namespaces.chain(pins).collect()
}

/// Returns the demo's document after a check that no packet of the paced traffic was lost.
fn checked(output: &Output) -> serde_json::Value {
    let report = counted(output);
    for phase in ["plain", "served"] {
        assert_eq!(report[phase]["ping_lost"], 0, "{report:#}");
    }
    report
}

/// Returns the demo's document after a check that every lost packet was counted.
pub fn counted(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert_eq!(number(&report["schema_version"]), 1);
    for phase in ["plain", "served"] {
        assert_eq!(number(&report[phase]["download_bytes"]), 256 << 20, "{report:#}");
        assert!(number(&report[phase]["packets"]) > 10_000, "{report:#}");
    }
    let stream = &report["stream"];
    let dropped: u64 = report["dropped"].as_object().unwrap().values().map(number).sum();
    assert_eq!(number(&stream["reordered"]), 0, "{report:#}");
    let pings = ["plain", "served"].map(|phase| number(&report[phase]["ping_lost"]));
    let streamed = number(&stream["sent"]) - number(&stream["received"]);
    let lost = streamed + pings.iter().sum::<u64>();
    assert!(lost <= dropped, "{lost} lost packets are nowhere counted: {report:#}");
    assert!(number(&report["marked"]) > 10_000, "{report:#}");
    report
}

/// Tests that inspect the whole machine, or end processes of others: they run alone.
mod alone {
    use super::*;

    #[test]
    fn the_demo_shows_real_traffic_and_leaves_nothing() {
        if !root_or_skip("demo") {
            return;
        }
        checked(&demo());
        assert_eq!(left_behind(), Vec::<String>::new());
    }

    #[test]
    fn what_a_killed_demo_left_is_cleaned_up() {
        if !root_or_skip("demo") {
            return;
        }
        let killed = || {
            let mut child = Command::new(tam())
                .args(["demo", "--json"])
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let pinned = || std::path::Path::new(PINS).exists().then_some(());
            assert!(
                wait_for(Duration::from_secs(20), pinned).is_some(),
                "the demo's node did not start"
            );
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(!left_behind().is_empty(), "the demo was killed too late");
        };

        killed();
        let down = Command::new(tam()).args(["lab", "down", "--all", "--json"]).output().unwrap();
        assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
        assert_eq!(left_behind(), Vec::<String>::new());

        killed();
        checked(&demo());
        assert_eq!(left_behind(), Vec::<String>::new());
    }
}
