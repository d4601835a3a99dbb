//! Documents and modules of version 1 as they were committed: docs/reference/compatibility.md
//! promises that they can still be read. A file here is never changed.

use std::path::{Path, PathBuf};

use abi::Unverified;
use daemon::NodeFile;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use topology::Lab;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/v1")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

#[test]
fn modules_of_abi_1_are_taken() {
    for (name, window, imports) in [("monitor", 96, 1), ("echo", 128, 1)] {
        let bytes = std::fs::read(folder().join(format!("abi/{name}.wasm"))).unwrap();
        let checked = Unverified(&bytes).check().unwrap();
        assert_eq!(checked.manifest.name.as_str(), name);
        assert_eq!((checked.manifest.window, checked.imports.len()), (window, imports));
    }
}

#[test]
fn node_files_and_lab_files_are_read() {
    let file = NodeFile::parse(&text("node.toml"), "node.toml").unwrap();
    assert_eq!((file.name.as_str(), file.ports.len()), ("r1", 2));
    let plan = Lab::parse(&text("lab.toml"), "lab.toml").unwrap();
    assert_eq!((plan.nodes.len(), plan.links.len()), (3, 2));
}

/// Reads a document with today's type, and writes it again: nothing of it may be missing.
fn reads<T: DeserializeOwned + Serialize>(name: &str) {
    let old: Value = serde_json::from_str(&text(&format!("api/{name}.json"))).unwrap();
    let read: T = serde_json::from_value(old.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    within(&old, &serde_json::to_value(&read).unwrap(), name);
}

/// Checks that everything in `old` is the same in `new`.
fn within(old: &Value, new: &Value, place: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let place = format!("{place}.{key}");
                let new = new.get(key).unwrap_or_else(|| panic!("{place} is gone"));
                within(value, new, &place);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            assert_eq!(old.len(), new.len(), "{place}");
            for (number, (old, new)) in old.iter().zip(new).enumerate() {
                within(old, new, &format!("{place}[{number}]"));
            }
        }
        _ => assert_eq!(old, new, "{place}"),
    }
}

#[test]
fn requests_and_answers_of_the_api_mean_the_same() {
    reads::<api::DeployRequest>("deploy-request");
    reads::<api::MoveRequest>("move-request");
    reads::<api::BpfRequest>("bpf-request");
    reads::<api::RulesRequest>("rules-request");
    reads::<api::MessageRequest>("message-request");
    reads::<api::NodeInfo>("node");
    reads::<api::ServiceList>("services");
    reads::<api::ServiceInfo>("service");
    reads::<api::RuleList>("rules");
    reads::<api::Stats>("stats");
    reads::<api::ModuleList>("modules");
    reads::<api::Deployed>("deployed");
    reads::<api::Moved>("moved");
    reads::<api::MessageAnswers>("message-answers");
    reads::<api::ErrorDocument>("error");
    let files = std::fs::read_dir(folder().join("api")).unwrap().count();
    assert_eq!(files, 15, "each file is read above");
    assert_eq!(api::SCHEMA_VERSION, 1, "another version is another folder");
}
