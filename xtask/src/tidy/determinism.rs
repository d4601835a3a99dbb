//! `base`, `core` and the protocols of `l7` repeat themselves exactly: no clock, no chance, no input
//! or output.
//!
//! A simulator that cannot repeat a run proves nothing. Time, seeds and bytes
//! come in as arguments. Tests may read files: their vectors.

use super::Finding;
use super::tree::Tree;

const CHECK: &str = "determinism";

/// Words that make a run differ from the next one, and what to use instead.
const FORBIDDEN: [(&[&str], &str); 10] = [
    (&["Instant", ":", ":", "now"], "time comes in as an argument"),
    (&["std", ":", ":", "time", ":", ":", "Instant"], "time comes in as an argument"),
    (&["SystemTime"], "time comes in as an argument"),
    (&["HashMap"], "its order changes from run to run: use BTreeMap"),
    (&["HashSet"], "its order changes from run to run: use BTreeSet"),
    (&["RandomState"], "seeds come in as an argument"),
    (&["thread", ":", ":", "spawn"], "the composition roots own threads"),
    (&["UdpSocket"], "bytes come in and go out as data"),
    (&["TcpStream"], "bytes come in and go out as data"),
    (&["TcpListener"], "bytes come in and go out as data"),
];
/// Names that product code may not use outside `node` and `cli`, but tests may.
const FORBIDDEN_OUTSIDE_TESTS: [(&[&str], &str); 3] = [
    (&["std", ":", ":", "fs"], "bytes come in as an argument"),
    (&["std", ":", ":", "env"], "settings come in as an argument"),
    (&["println", "!"], "answer with data; the command prints"),
];

/// Folders of which this holds.
const DETERMINISTIC: [&str; 5] = ["base/", "core/", "l7/http1/", "l7/mpeg2/", "l7/reflector/"];

/// Crates that may read a clock, but not the one that people and NTP set: a jump of it must not
/// be seen by a packet, a lease or a confirmation.
const WITHOUT_WALL_TIME: [&str; 5] =
    ["node/daemon/", "node/cell/", "levels/executor/", "levels/engine/", "levels/bpf/"];

/// Shows the time of events to people, and decides nothing by it.
const MAY_SHOW_WALL_TIME: &str = "node/daemon/src/events.rs";

/// Finds clocks, chance and input or output in what repeats itself, and wall time in what runs on.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.sources() {
        let runs_on = WITHOUT_WALL_TIME.iter().any(|folder| path.starts_with(folder));
        if runs_on && path != MAY_SHOW_WALL_TIME {
            for token in source.find(&["SystemTime"]) {
                let message = "SystemTime jumps when somebody sets it: use Instant".to_owned();
                findings.push(Finding::error(CHECK, path, token.line, message));
            }
        }
        let is_source = path.contains("/src/");
        if !DETERMINISTIC.iter().any(|it| path.starts_with(it)) || path.ends_with("build.rs") {
            continue;
        }
        let mut find = |words: &[&str], why: &str, also_tests: bool| {
            for token in source.find(words) {
                if also_tests || (is_source && !token.test) {
                    let message = format!("{} in what repeats itself: {why}", words.concat());
                    findings.push(Finding::error(CHECK, path, token.line, message));
                }
            }
        };
        FORBIDDEN.iter().for_each(|(words, why)| find(words, why, true));
        FORBIDDEN_OUTSIDE_TESTS.iter().for_each(|(words, why)| find(words, why, false));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn clocks_chance_and_sockets_are_found_in_core() {
        for text in [
            "fn f() { let now = Instant::now(); }",
            "fn f(now: std::time::SystemTime) {}",
            "use std::collections::HashMap;",
            "use std::collections::HashSet;",
            "fn f() { std::thread::spawn(g); }",
            "fn f() { UdpSocket::bind(a); }",
            "fn f() { let x = std::fs::read(p); }",
            "fn f() { let x = std::env::var(p); }",
            "fn f() { println!(\"x\"); }",
        ] {
            assert_eq!(found("core/node/src/a.rs", text), 1, "{text}");
            assert_eq!(found("base/abi/src/a.rs", text), 1, "{text}");
            assert_eq!(found("cli/src/a.rs", text), 0, "{text}");
        }
    }

    #[test]
    fn code_of_a_running_node_reads_no_wall_clock() {
        let wall = "fn f() { let now = std::time::SystemTime::now(); }";
        assert_eq!(found("node/daemon/src/a.rs", wall), 1);
        assert_eq!(found("node/cell/src/a.rs", wall), 1);
        assert_eq!(found("node/daemon/src/a.rs", "fn f() { Instant::now(); }"), 0);
    }

    #[test]
    fn tests_may_read_their_vectors_but_no_clock() {
        assert_eq!(found("base/wire/src/a.rs", "#[cfg(test)] mod t { use std::fs; }"), 0);
        assert_eq!(found("base/wire/tests/a.rs", "use std::fs;"), 0);
        assert_eq!(found("base/wire/tests/a.rs", "fn f() { Instant::now(); }"), 1);
    }
}
