//! Nodes that cannot start: they report why, exit with a failure and leave nothing behind.

use std::path::Path;
use std::time::Duration;

use crate::common::Line;
use testkit::{Net, Output, leftovers, node_file, root_or_skip, tam};
use units::Name;

/// Time within which a node that cannot start ends.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// Starts a node that must fail; returns its output.
fn fails(net: &Net, text: &str) -> String {
    fails_in(net, "r1", text)
}

/// Starts a node that must fail in one of the namespaces; returns its output.
fn fails_in(net: &Net, inside: &str, text: &str) -> String {
    fails_with(net, inside, text, &[])
}

/// Starts a node that must fail, with further arguments; returns what it said.
fn fails_with(net: &Net, inside: &str, text: &str, more: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.toml");
    std::fs::write(&file, text).unwrap();
    let program = tam();
    let argv = [program.to_str().unwrap(), "node", "--config", file.to_str().unwrap()];
    let argv = [&argv, more].concat();
    let Output { status, stdout, stderr } = net.run(inside, &argv, END_TIME_MAX).unwrap();
    assert!(!status.success(), "{stdout}{stderr}");
    assert!(status.code().is_some_and(|code| code != 101), "no panic: {stderr}");
    stderr
}

fn name(text: &str) -> Name {
    Name::new(format!("tt-sys-{}-{text}", std::process::id())).unwrap()
}

#[test]
fn a_missing_device_is_named() {
    if !root_or_skip("a missing device") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let store = tempfile::tempdir().unwrap();
    let name = name("missing");
    let text = node_file(&net, "r1", name.as_str(), &store.path().join("store"), "");
    let said = fails(&net, &text.replace("\"to-server\"", "\"to-nowhere\""));
    assert!(said.contains("to-nowhere") && said.contains("right"), "{said}");
    assert_eq!(leftovers(&name), [""; 0]);
    assert_no_xdp(&net);
}

#[test]
fn a_node_that_cannot_start_leaves_what_a_dead_one_left() {
    if !root_or_skip("a dead node's ports") {
        return;
    }
    let mut line = Line::up();
    line.node.kill().unwrap();
    let name = line.node.name().clone();
    let left = leftovers(&name);
    assert!(!left.is_empty(), "its front door goes on");
    let text = std::fs::read_to_string(line.node.node_file()).unwrap();
    let said = fails(&line.net, &text.replace("\"to-server\"", "\"to-nowhere\""));
    assert!(said.contains("to-nowhere"), "{said}");
    let said = fails_in(&line.net, "client", &text);
    assert!(said.contains("another network namespace"), "{said}");
    assert_eq!(leftovers(&name), left);
    line.node.start_again(&line.net, "r1").unwrap();
    line.resolve_neighbours();
}

#[test]
fn a_node_file_with_an_impossible_service_stops_no_running_node_and_no_remains() {
    if !root_or_skip("a mistake in what a file wants") {
        return;
    }
    let mut line = Line::up();
    let name = line.node.name().clone();
    let text = std::fs::read_to_string(line.node.node_file()).unwrap();
    let wrong = format!("{text}\n[[service]]\nname = \"x\"\nmodule = \"nosuch\"\n");
    let pid = line.node.pid().unwrap();
    let said = fails_with(&line.net, "r1", &wrong, &["--takeover"]);
    assert!(said.contains("nosuch") && said.contains("line "), "{said}");
    assert_eq!(line.node.client().node().unwrap().pid, pid, "it goes on");
    for listens in [
        "[metrics]\nlisten = \"192.0.2.77:9464\"\n",
        "[api]\nlisten = \"192.0.2.77:7443\"\n",
        "[associations]\nlisten = [\"192.0.2.77:7443\"]\n",
        "[metrics]\nlisten = \"127.0.0.1:9464\"\n[api]\nlisten = \"127.0.0.1:9464\"\n",
    ] {
        let said = fails_with(&line.net, "r1", &format!("{text}\n{listens}"), &["--takeover"]);
        assert!(said.contains("listen"), "{said}");
        assert_eq!(line.node.client().node().unwrap().pid, pid, "{listens}");
    }
    line.node.kill().unwrap();
    let left = leftovers(&name);
    for more in [&[][..], &["--takeover"]] {
        let said = fails_with(&line.net, "r1", &wrong, more);
        assert!(said.contains("nosuch"), "{said}");
        assert_eq!(leftovers(&name), left);
    }
    line.node.start_again(&line.net, "r1").unwrap();
    assert!(line.node.log().contains("adopted"), "{}", line.node.log());
    line.resolve_neighbours();
}

#[test]
fn a_typing_error_has_its_line_and_what_was_meant() {
    if !root_or_skip("a typing error") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let name = name("typing");
    let text = node_file(&net, "r1", name.as_str(), Path::new("/nowhere"), "fastpath = \"auto\"");
    let said = fails(&net, &text);
    assert!(said.contains("line 4") && said.contains("'fast_path'"), "{said}");
    assert_eq!(leftovers(&name), [""; 0]);
}

#[test]
fn a_second_node_of_the_same_name_is_refused() {
    if !root_or_skip("a node twice") {
        return;
    }
    let line = Line::up();
    let store = tempfile::tempdir().unwrap();
    let text =
        node_file(&line.net, "r1", line.node.name().as_str(), &store.path().join("store"), "");
    let said = fails(&line.net, &text);
    assert!(said.contains("runs already"), "{said}");
    line.resolve_neighbours();
    assert_eq!(line.node.client().node().unwrap().cell, "ready");
}

#[test]
fn a_device_with_a_foreign_xdp_program_is_refused() {
    if !root_or_skip("a device twice") {
        return;
    }
    let line = Line::up();
    let store = tempfile::tempdir().unwrap();
    let name = name("second");
    let text = node_file(&line.net, "r1", name.as_str(), &store.path().join("store"), "");
    let said = fails(&line.net, &text);
    assert!(said.contains("to-client") && said.contains("XDP"), "{said}");
    assert_eq!(leftovers(&name), [""; 0]);
    line.resolve_neighbours();
    let before = line.books();
    line.resolve_neighbours();
    assert_eq!(line.balance_since(&before).received, 2, "the first node works on");
}

#[test]
fn one_port_twice_and_one_device_twice_are_refused() {
    if !root_or_skip("a port twice") {
        return;
    }
    let net = Net::line(1500).unwrap();
    let store = tempfile::tempdir().unwrap();
    let name = name("twice");
    let text = node_file(&net, "r1", name.as_str(), store.path(), "");
    let said = fails(&net, &text.replace("name = \"right\"", "name = \"left\""));
    assert!(said.contains("two ports are called 'left'"), "{said}");
    let said = fails(&net, &text.replace("\"to-server\"", "\"to-client\""));
    assert!(said.contains("'right'") && said.contains("'to-client'"), "{said}");
    assert_eq!(leftovers(&name), [""; 0]);
    assert_no_xdp(&net);
}

/// Checks that no device of the router has an XDP program.
fn assert_no_xdp(net: &Net) {
    let said = net.run("r1", &["ip", "-d", "link", "show"], END_TIME_MAX).unwrap().stdout;
    assert!(!said.contains("xdp"), "{said}");
}
