//! `tam dev --service`: each save of a source swaps the module in a node, while packets pass.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::{Ends, Line};
use serde_json::Value;
use testkit::{Books, root_or_skip};

const PORT: u16 = 7000;
/// Time for a build on a busy machine.
const ROUND_MAX: Duration = Duration::from_secs(120);
const GAP: Duration = Duration::from_millis(1);

/// Process of `tam dev` and its output round by round; killed on drop.
struct Dev {
    child: Child,
    rounds: Receiver<Value>,
}

impl Dev {
    fn start(project: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(testkit::tam());
        command.args(["--json", "dev"]).arg(project).args(arguments);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tam starts");
        let (sender, rounds) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Where nobody waits any more the test is over.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, rounds }
    }

    fn round(&self) -> Value {
        self.rounds.recv_timeout(ROUND_MAX).expect("a round")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn replace(path: &Path, from: &str, to: &str) {
    let before = std::fs::read_to_string(path).unwrap();
    assert!(before.contains(from), "{before}");
    std::fs::write(path, before.replace(from, to)).unwrap();
}

#[test]
fn each_save_swaps_the_module_and_no_packet_is_lost() {
    if !root_or_skip("tam dev in a node") {
        return;
    }
    let line = Line::up();
    line.resolve_neighbours();
    let folder = tempfile::tempdir().unwrap();
    let mut new = Command::new(testkit::tam());
    new.current_dir(&folder).args(["new", "mine", "--template", "c"]);
    assert!(new.output().unwrap().status.success());
    let project = folder.path().join("mine");
    let source = project.join("service.c");

    let (receiver, sender) = (line.udp("server", PORT), line.udp("client", 0));
    sender.connect(line.server(PORT)).unwrap();
    let before = line.books();
    let end = AtomicBool::new(false);
    let (sent, received) = std::thread::scope(|scope| {
        let send = scope.spawn(|| {
            let mut number = 0_u32;
            while !end.load(Ordering::Relaxed) {
                sender.send(&number.to_be_bytes()).unwrap();
                number += 1;
                std::thread::sleep(GAP);
            }
            number
        });
        let receive = scope.spawn(|| {
            let (mut numbers, mut payload) = (Vec::new(), [0; 4]);
            while receiver.recv(&mut payload).is_ok() {
                numbers.push(u32::from_be_bytes(payload));
            }
            numbers
        });
        let ends = Ends(&end);
        let node = line.node.name().as_str();
        let rule = "proto udp dport 7000";
        let dev = Dev::start(&project, &["--node", node, "--service", "mine", "--rule", rule]);
        let first = dev.round();
        assert_eq!((&first["status"], &first["swapped"]["old_digest"]), (&0.into(), &Value::Null));
        replace(&source, "tam_count(packets, 1);", "tam_count(packets, 2);");
        let second = dev.round();
        assert_eq!(second["swapped"]["old_digest"], first["swapped"]["new_digest"], "{second}");
        assert_eq!(second["swapped"]["new_digest"], second["module"]["digest"]);
        assert!(second["swapped"]["packets_before"].as_u64() > Some(0), "{second}");

        // What does not compile is shown, and what ran goes on.
        replace(&source, "return TAM_PASS;", "return;");
        assert!(dev.round()["error"]["message"].as_str().unwrap().contains("service.c:"));
        let service = line.node.service("mine").unwrap();
        assert_eq!(
            (&service.digest[..], &service.state[..]),
            (second["module"]["digest"].as_str().unwrap(), "running")
        );
        drop(ends);
        (send.join().unwrap(), receive.join().unwrap())
    });
    assert_eq!(received, (0..sent).collect::<Vec<_>>());
    // The first version's own counters went with it.
    let balance = Books::settled(&line.net, &line.node).unwrap().since(&before);
    assert!(balance.holds() && balance.dropped() == 0, "{balance}");
    let stats = line.node.service("mine").unwrap().stats;
    assert!(stats.packets > 0, "{stats:#?}");
    assert!(stats.counters["packets"] > stats.packets, "the second version counts twice");
}
