//! Compatibility of `tam`: `--json` documents of version 1 as committed in `vectors/v1`, compared
//! with today's. Old modules give the same verdicts and bytes at every level.

use super::{document, status, tam};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/v1").join(name)
}

fn old(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(name)).unwrap()).unwrap()
}

/// Parts of a document that have to be equal.
#[derive(Clone, Copy)]
enum Held {
    /// Fields and their types.
    Shape,
    /// Shape and values.
    Values,
}

fn within(old: &Value, new: &Value, held: Held, place: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let place = format!("{place}.{key}");
                let new = new.get(key).unwrap_or_else(|| panic!("{place} is gone"));
                // The path of the file differs.
                let held = if key == "capture" { Held::Shape } else { held };
                within(value, new, held, &place);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for (number, (old, new)) in old.iter().zip(new).enumerate() {
                within(old, new, held, &format!("{place}[{number}]"));
            }
            if matches!(held, Held::Values) {
                assert_eq!(old.len(), new.len(), "{place}");
            }
        }
        (Value::Null, _) | (_, Value::Null) if matches!(held, Held::Shape) => {}
        _ if matches!(held, Held::Values) => assert_eq!(old, new, "{place}"),
        _ => {
            let same = std::mem::discriminant(old) == std::mem::discriminant(new);
            assert!(same, "{place} was {old} and is {new}");
        }
    }
}

#[test]
fn modules_of_version_1_give_the_same_results_at_every_level() {
    let root = rustix::process::geteuid().is_root();
    let levels = if root { &["user", "nic", "kernel"][..] } else { &["user"] };
    let capture = golden("packets.pcap");
    for name in ["monitor", "echo"] {
        let module = golden(&format!("abi/{name}.wasm"));
        for level in levels {
            let (module, capture) = (module.to_str().unwrap(), capture.to_str().unwrap());
            let output = tam(&["--json", "run", module, capture, "--level", level]);
            let new = document(&output);
            assert_eq!(status(&output), 0, "{level}: {new}");
            let old = old(&format!("json/run-{name}.json"));
            within(&old, &new, Held::Values, &format!("{name} at {level}"));
        }
    }
    if !root {
        testbase::skip_this("programs in the kernel need root");
    }
}

#[test]
fn json_documents_keep_the_fields_of_version_1() {
    for name in ["monitor", "echo"] {
        let module = golden(&format!("abi/{name}.wasm"));
        let new = document(&tam(&["--json", "check", module.to_str().unwrap()]));
        within(&old(&format!("json/check-{name}.json")), &new, Held::Shape, name);
    }
    let missing = tam(&["--json", "run", "nothing.wasm", "packets.pcap"]);
    let (old, new) = (old("json/error.json"), document(&missing));
    within(&old, &new, Held::Shape, "error");
    assert_eq!((&new["error"]["code"], status(&missing)), (&old["error"]["code"], 3));
}
