//! Standard outputs that are closed, full or no longer read, and output files that are no regular
//! files.

use super::trust::User;
use super::{status, text};
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/v1/abi/monitor.wasm");

/// Runs `tam` with a shell's redirection.
fn redirected(arguments: &str, redirection: &str) -> Output {
    let script = format!("\"$0\" {arguments} {redirection}");
    let tam = env!("CARGO_BIN_EXE_tam");
    Command::new("sh").args(["-c", &script, tam]).stdin(Stdio::null()).output().unwrap()
}

/// Commands that need no node and write to standard output.
const COMMANDS: [&str; 7] =
    ["man", "man --json", "completions bash", "--help", "list --help", "--version", "bench"];

#[test]
fn an_unwritable_standard_output_is_a_failure() {
    for command in COMMANDS {
        for (redirection, why) in [(">&-", "it is closed"), (">/dev/full", "No space left")] {
            let output = redirected(command, redirection);
            let said = text(&output.stderr);
            assert_eq!(status(&output), 1, "{command} {redirection}: {said}");
            let expected = format!("error: writing to standard output: {why}");
            assert!(said.contains(&expected), "{command} {redirection}: {said}");
        }
        let output = redirected(command, ">/dev/null");
        assert_eq!((status(&output), text(&output.stderr)), (0, String::new()), "{command}");
    }
}

#[test]
fn a_failure_keeps_its_status_whatever_the_streams_are() {
    for redirection in [">&-", ">/dev/full", "2>&-", "2>/dev/full", ">&- 2>&-"] {
        for command in ["list --node tt-cli-nosuch", "list --node tt-cli-nosuch --json"] {
            let output = redirected(command, redirection);
            assert_eq!(status(&output), 6, "{command} {redirection}");
            let said = text(&output.stderr);
            assert!(!said.contains("panicked"), "{command} {redirection}: {said}");
            let is_told = said.contains("tt-cli-nosuch") || !text(&output.stdout).is_empty();
            assert!(is_told || redirection.contains('2'), "{command} {redirection}: {said}");
        }
        assert_eq!(status(&redirected("nosuch", redirection)), 2, "{redirection}");
    }
}

#[test]
fn a_node_that_never_was_has_nothing_to_clean_up() {
    for _ in 0..2 {
        let output = redirected("node --cleanup tt-cli-nosuch", "");
        assert_eq!(status(&output), 3, "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("tam doctor"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for command in COMMANDS {
        let mut tam = Command::new(env!("CARGO_BIN_EXE_tam"));
        let tam = tam.args(command.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tam.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((status(&output), text(&output.stderr)), (0, String::new()), "{command}");
    }
}

#[test]
fn output_paths_that_are_links_or_devices_are_written_to_and_not_replaced() {
    let user = User::new();
    user.key("alice");
    std::fs::copy(MODULE, user.0.path().join("monitor.wasm")).unwrap();
    user.run_json(&["sign", "monitor.wasm", "--key", "alice"]);
    user.run_json(&["push", "monitor.wasm", "oci:layout"]);
    let at = |name: &str| user.0.path().join(name);
    symlink("/dev/full", at("full")).unwrap();
    symlink("real", at("link")).unwrap();
    user.fails(&["pull", "oci:layout", "-o", "full"], 1, "writing full: No space left");
    user.run_json(&["pull", "oci:layout", "-o", "link"]);
    for link in ["full", "link"] {
        assert!(at(link).symlink_metadata().unwrap().is_symlink(), "{link}");
    }
    assert_eq!(std::fs::read(at("real")).unwrap(), std::fs::read(MODULE).unwrap());
    assert!(at("link.sig").is_file(), "signatures are beside the name");

    // Signatures, manual pages, and files beside a device.
    std::fs::rename(at("monitor.wasm.sig"), at("elsewhere")).unwrap();
    symlink("elsewhere", at("monitor.wasm.sig")).unwrap();
    user.key("bob");
    user.run_json(&["sign", "monitor.wasm", "--key", "bob"]);
    assert!(at("monitor.wasm.sig").symlink_metadata().unwrap().is_symlink());
    user.run_json(&["verify", "monitor.wasm", "--key", "bob"]);
    std::fs::create_dir(at("pages")).unwrap();
    symlink("/dev/full", at("pages/tam.1")).unwrap();
    user.fails(&["man", "--to", "pages"], 1, "writing manual pages to pages: No space left");
    assert!(at("pages/tam.1").symlink_metadata().unwrap().is_symlink());
    let told = user.tam(&["pull", "oci:layout", "-o", "/dev/null"]);
    assert!(text(&told.stderr).contains("/dev/null is no regular file"), "{told:?}");
    assert!(!std::path::Path::new("/dev/null.sig").exists());
}
