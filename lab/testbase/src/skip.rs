//! Tests that cannot run: said in the file that `TAM_SKIPS` names, never hidden.

use std::io::Write;

/// Says why a test does not run.
pub fn skip(test: &str, why: &str) {
    eprintln!("skipped: {test}: {why}");
    let Some(path) = std::env::var_os("TAM_SKIPS") else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    if let Err(error) = file.and_then(|mut file| writeln!(file, "{test}: {why}")) {
        eprintln!("the list of skipped tests was not written: {error}");
    }
}

/// Says why the test of the calling thread does not run: the harness names
/// threads after their tests.
pub fn skip_this(why: &str) {
    skip(std::thread::current().name().unwrap_or("a test"), why);
}

/// Returns true if a test that needs root can run; notes the skip when it cannot.
#[must_use]
pub fn root_or_skip(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "network namespaces and BPF need root");
    }
    root
}
