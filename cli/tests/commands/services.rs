//! Sample services `firewall`, `nat` and `guard`, built by `tam build` and run over their captures
//! at each level: verdicts, bytes and counters as their guides say.

use super::{capture, document, fails, module, status, tam, text};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Copies a sample service into a folder of its own, with the SDK where its Cargo.toml expects it:
/// other tests may build it, too.
fn project(directory: &TempDir, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let project = directory.path().join("services").join(name);
    for folder in [format!("services/{name}"), "sdk/rust".to_owned()] {
        copy(&root.join(&folder), &directory.path().join(&folder));
    }
    project
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_file() {
            std::fs::copy(path, to).unwrap();
        } else if entry.file_name() != "target" {
            copy(&path, &to);
        }
    }
}

/// Runs the service over each of its captures and compares with the expectations beside it.
fn runs_as_its_page_says(name: &str) {
    let directory = TempDir::new().unwrap();
    let project = project(&directory, name);
    let output = tam(&["--json", "build", project.to_str().unwrap()]);
    assert_eq!(status(&output), 0, "{}", document(&output));
    let module = project.join(format!("{name}.wasm"));
    let expectations = expectations(&project.join("captures"));
    assert!(!expectations.is_empty());
    let is_root = rustix::process::geteuid().is_root();
    for expected in expectations {
        let capture = expected.with_extension("pcap");
        let run = |level: &str| {
            let files = [&module, &capture, &expected].map(|path| path.to_str().unwrap());
            let arguments = ["--json", "run", files[0], files[1], "--expect", files[2]];
            let output = tam(&[&arguments[..], &["--level", level]].concat());
            let (document, shown) = (document(&output), expected.display());
            let errors = text(&output.stderr);
            assert_eq!(status(&output), 0, "{shown} at {level}: {errors}\n{document}");
            document
        };
        let user = run("user");
        assert!(!user["packets"].as_array().unwrap().is_empty());
        assert_eq!(user["differences"], serde_json::json!([]));
        for level in ["nic", "kernel"].into_iter().filter(|_| is_root) {
            assert_eq!(run(level), user, "{} at {level}", expected.display());
        }
    }
    if !is_root {
        testbase::skip_this("programs in the kernel need root");
    }
}

fn expectations(captures: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(captures).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect()
}

#[test]
fn the_firewall_runs_at_each_level_as_its_page_says() {
    runs_as_its_page_says("firewall");
}

#[test]
fn the_nat_runs_at_each_level_as_its_page_says() {
    runs_as_its_page_says("nat");
}

#[test]
fn the_guard_runs_at_each_level_as_its_page_says() {
    runs_as_its_page_says("guard");
}

#[test]
fn a_module_for_streams_is_checked_and_has_no_packets_to_run_on() {
    let directory = TempDir::new().unwrap();
    let module = module(
        &directory,
        r#"(module (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1")))"#,
    );
    let (module, capture) = (module.to_str().unwrap(), capture(&directory, 1));
    let output = tam(&["--json", "check", module]);
    let checked = document(&output);
    assert_eq!(status(&output), 0, "{checked}");
    let fits = |level: &str| {
        let levels = checked["levels"].as_array().unwrap();
        let found = levels.iter().find(|it| it["level"] == level).unwrap();
        found["fits"].as_bool().unwrap()
    };
    assert_eq!((fits("user"), fits("nic")), (true, false), "{checked}");
    fails(&["run", module, capture.to_str().unwrap()], 2, "usage", "has no packets");
}
