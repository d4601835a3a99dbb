//! Usage history of a session in `tam session show` and the API.

use std::process::Command;
use std::time::{Duration, Instant};

use api::{SessionDetails, SessionHistory, SessionRequest, SessionStep};
use testkit::{Service, root_or_skip, tam, wait_for};

use crate::common::{Line, SOON, module};

const PORT: u16 = 7000;
/// Time for which the session has more work than it may do.
const BUSY: Duration = Duration::from_secs(3);
/// Interval of packets: a module that never ends has 5 ms, so with one packet in each of these it
/// always has one more.
const EACH: Duration = Duration::from_millis(5);
/// Share of a core that is reserved; the next constant is the largest deviation of a second on a
/// busy machine.
const PROMISED: f64 = 0.25;
const BESIDE: f64 = 0.1;

const ENDLESS: &str = r#"(memory (export "memory") 1 1)
    (func (export "on_packet") (result i32) (loop (br 0)) (i32.const 0))"#;

impl Line {
    fn gold(&self) -> SessionDetails {
        self.node.client().session("gold").unwrap()
    }

    fn history(&self) -> SessionHistory {
        self.gold().used.history.unwrap_or_default()
    }

    fn shown_with(&self, locale: &str, more: &[&str]) -> String {
        let node = self.node.name().to_string();
        let mut show = Command::new(tam());
        show.args(["--node", &node]).args(more).args(["session", "show", "gold"]);
        let output = show.env("LC_ALL", locale).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn part_of_core(step: &SessionStep) -> f64 {
    step.cpu_ns as f64 / (step.length_ms as f64 * 1e6)
}

fn sum(steps: &[SessionStep], of: fn(&SessionStep) -> u64) -> u64 {
    steps.iter().map(of).sum()
}

#[test]
fn a_sessions_use_and_idleness_are_shown_by_the_second() {
    if !root_or_skip("what sessions used over time") {
        return;
    }
    let line = Line::up();
    let request = SessionRequest {
        name: "gold".into(),
        cpu: vec!["25ms/100ms".into()],
        memory: Some("8MiB".into()),
        queue: Some("64KiB".into()),
        ..SessionRequest::default()
    };
    line.node.client().create_session(&request).unwrap();
    assert_eq!(line.gold().used.history, None, "it never did anything");
    line.resolve_neighbours();
    let wasm = module("endless", "window = 64\nmemory_pages_max = 1\nlevels = [\"user\"]", ENDLESS);
    let rule = format!("proto udp dport {PORT}");
    let service =
        Service { name: "endless", session: "gold", rules: &[&rule], ..Service::default() };
    line.node.deploy(&wasm, &service).unwrap();
    let sender = line.sender_to(PORT);
    let begin = Instant::now();
    while begin.elapsed() < BUSY {
        sender.send(b"never").unwrap();
        std::thread::sleep(EACH);
    }

    // Until a second has passed in which it had nothing to do any more.
    let is_idle = |steps: &[SessionStep]| {
        let used: Vec<f64> = steps.iter().map(part_of_core).collect();
        used.iter().any(|part| *part > PROMISED / 2.0) && used.last() == Some(&0.0)
    };
    let steps = wait_for(SOON, || Some(line.history().seconds).filter(|steps| is_idle(steps)));
    let steps = steps.unwrap_or_else(|| panic!("{:?}", line.history()));
    let busy = |step: &&SessionStep| (part_of_core(step) - PROMISED).abs() < BESIDE;
    assert!(steps.iter().filter(busy).count() >= 2, "{steps:?}");
    assert!(steps.iter().all(|step| part_of_core(step) < PROMISED + BESIDE), "{steps:?}");
    for pair in steps.windows(2) {
        assert_eq!((pair[0].length_ms, pair[1].at_ms - pair[0].at_ms), (1000, 1000));
    }

    // The steps are parts of the account that is shown beside them.
    let gold = line.gold();
    let (total, history) = (gold.used.total, gold.used.history.unwrap());
    for steps in [&history.seconds, &history.minutes] {
        assert_eq!(sum(steps, |step| step.bytes), total.bytes);
        assert_eq!(sum(steps, |step| step.queue_dropped), total.queue_dropped.unwrap());
        let (cpu, all) = (sum(steps, |step| step.cpu_ns), total.cpu_ns.unwrap());
        assert!(cpu <= all && all - cpu < 100_000, "{cpu} of {all} ns, to the microsecond a step");
    }
    assert!(total.queue_dropped.unwrap() > 0, "it had more to do than its queue has room for");
    let memory = gold.used.memory.unwrap().used_bytes;
    assert_eq!(history.seconds.last().unwrap().memory_bytes, memory.next_multiple_of(4096));

    let (blocks, ascii) = (line.shown_with("C.UTF-8", &[]), line.shown_with("C", &[]));
    assert!(blocks.contains("THE LAST") && blocks.contains("25.0%, as promised"), "{blocks}");
    assert!(blocks.contains('█') && blocks.contains('▁'), "{blocks}");
    assert!(
        ascii.is_ascii() && ascii.contains('#') && ascii.contains("8MiB, as promised"),
        "{ascii}"
    );
    let json: SessionDetails = serde_json::from_str(&line.shown_with("C", &["--json"])).unwrap();
    assert!(json.used.history.unwrap().seconds.len() >= steps.len());
    let list = line.node.client().sessions().unwrap();
    assert!(list.sessions.iter().all(|session| session.used.history.is_none()));
}
