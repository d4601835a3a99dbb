//! `tam new` and `tam dev`: a project from nothing to a service that meets its capture's
//! expectations, in Rust and in C, and rebuilt as its source is saved.

use super::{document, status, tam, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// Longest time of a round: the first build may compile `core`, and the machine may be busy.
const ROUND_MAX: Duration = Duration::from_secs(300);

fn new(directory: &TempDir, template: &str) -> PathBuf {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tam"));
    command.current_dir(directory).args(["new", "mine", "--template", template]);
    let output = command.output().unwrap();
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    directory.path().join("mine")
}

fn replace(path: &Path, from: &str, to: &str) {
    let before = std::fs::read_to_string(path).unwrap();
    assert!(before.contains(from), "{before}");
    std::fs::write(path, before.replace(from, to)).unwrap();
}

#[test]
fn a_new_project_does_what_its_capture_says() {
    for template in ["packet", "c"] {
        let directory = TempDir::new().unwrap();
        let project = new(&directory, template);
        let path = project.to_str().unwrap();
        let once = tam(&["dev", "--once", path]);
        assert_eq!(status(&once), 0, "{template}: {}", text(&once.stderr));
        let said = text(&once.stdout);
        assert!(said.contains("hops.pcap: 5 packets, as expected"), "{said}");

        // The same results by `tam run`, as its guide says.
        let file = |name: &str| project.join(name).to_str().unwrap().to_owned();
        let [module, capture, expected] =
            ["mine.wasm", "captures/hops.pcap", "captures/hops.toml"].map(file);
        let run = tam(&["run", &module, &capture, "--expect", &expected]);
        assert_eq!(status(&run), 0, "{}", text(&run.stderr));
        assert!(text(&run.stdout).contains("all of it"), "{}", text(&run.stdout));

        // A wrong expectation fails, and the difference is named.
        replace(&project.join("captures/hops.toml"), "dropped = 2", "dropped = 3");
        let run = tam(&["--json", "run", &module, &capture, "--expect", &expected]);
        let found = document(&run);
        assert_eq!(
            (status(&run), &found["differences"][0]),
            (1, &"counter dropped: 2, expected 3".into())
        );
        let once = tam(&["--json", "dev", "--once", path]);
        let found = document(&once);
        assert_eq!((status(&once), &found["status"]), (1, &1.into()), "{found}");
        let differences = &found["captures"][0]["differences"];
        assert_eq!(differences, &serde_json::json!(["counter dropped: 2, expected 3"]));
    }
}

/// Process of `tam --json dev` and its output line by line; killed on drop.
struct Loop {
    child: Child,
    lines: Receiver<Value>,
}

impl Loop {
    fn start(project: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tam"));
        command.args(["--json", "dev"]).arg(project).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines }
    }

    fn round(&self) -> Value {
        self.lines.recv_timeout(ROUND_MAX).expect("a round")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn whatever_is_saved_is_built_and_run() {
    let directory = TempDir::new().unwrap();
    let project = new(&directory, "c");
    let dev = Loop::start(&project);
    let first = dev.round();
    assert_eq!((&first["round"], &first["status"]), (&1.into(), &0.into()), "{first}");
    assert_eq!(first["captures"][0]["differences"], serde_json::json!([]));

    // A fault is shown, and the loop goes on.
    let source = project.join("service.c");
    replace(&source, "return TAM_PASS;", "return TAM_PAS;");
    let fault = dev.round();
    assert!(fault["error"]["message"].as_str().unwrap().contains("service.c:"), "{fault}");
    assert_eq!((&fault["module"], &fault["status"]), (&Value::Null, &1.into()));

    // A changed behaviour gives another module, which differs from the expectations.
    replace(&source, "return TAM_PAS;", "return TAM_BOUNCE;");
    let other = dev.round();
    assert_ne!(other["module"]["digest"], first["module"]["digest"]);
    let differences = other["captures"][0]["differences"].as_array().unwrap();
    assert_eq!(differences[0], "packet 1: bounce, expected pass", "{other}");

    // So the expectation is changed.
    replace(&project.join("captures/hops.toml"), "\"pass\"", "\"bounce\"");
    let last = dev.round();
    assert_eq!((&last["status"], &last["round"]), (&0.into(), &4.into()), "{last}");
}

#[test]
fn a_folder_without_a_project_is_reported() {
    let directory = TempDir::new().unwrap();
    let output = tam(&["--json", "dev", "--once", directory.path().to_str().unwrap()]);
    assert_eq!(status(&output), 3);
    assert!(document(&output)["error"]["message"].as_str().unwrap().contains("no service project"));
}
