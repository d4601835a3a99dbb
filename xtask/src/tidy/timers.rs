//! Timers beside other events: none begins anew because something else has happened.
//!
//! `select!` makes its futures anew in each turn of a loop. A `sleep` in it never ends while other
//! events come more often than it lasts.

use super::Finding;
use super::tree::Tree;

const CHECK: &str = "timers";

/// Finds `sleep` within `select!`.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in tree.sources() {
        for token in source.within(&["select", "!"]).filter(|token| token.text == "sleep") {
            let message =
                "a sleep in a select! begins anew whenever something else happens: use an \
                           interval, or sleep_until a time that is known before"
                    .to_owned();
            findings.push(Finding::error(CHECK, path, token.line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let findings = check(&Tree::of(&[("node/daemon/src/a.rs", text)]));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_sleep_among_other_events_is_found() {
        let text = "async fn f() {\n tokio::select! {\n () = tokio::time::sleep(TIME) => {}\n }\n}";
        assert_eq!(lines(text), [3]);
        let guarded = "async fn f() { select! { a = b() => {}, () = sleep(T), if g(h) => i() } }";
        assert_eq!(lines(guarded), [1]);
    }

    #[test]
    fn other_timers_are_not() {
        let text = "async fn f() { sleep(T).await; tokio::select! { _ = tick.tick() => {}, \
                    () = sleep_until(at) => {} } sleep(T).await; }";
        assert_eq!(lines(text), [0; 0]);
    }
}
