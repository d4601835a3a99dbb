//! Disks that are full, read-only or gone: changes are refused with the reason, and the node
//! continues to forward.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::{DeployRequest, ErrorCode, RuleRequest, RulesAdded};
use testkit::{Service, root_or_skip, service_module, wait_for};

use crate::common::{Line, SOON, module};

/// Small file system in memory, removed on drop.
pub struct SmallDisk {
    place: PathBuf,
}

/// Size of the disk in MiB: enough for a state and a few modules.
const DISK_MIB: u32 = 8;

fn mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

impl SmallDisk {
    fn at(place: &Path) -> Self {
        std::fs::create_dir_all(place).unwrap();
        let size = format!("size={DISK_MIB}m");
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs", place.to_str().unwrap()]);
        Self { place: place.to_owned() }
    }

    /// Fills the remaining space.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
    }

    pub fn clear(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.place.join("filler")
    }

    fn remount(&self, how: &str) {
        mount(&["-o", &format!("remount,{how}"), self.place.to_str().unwrap()]);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

fn add_rule(line: &Line, port: u16) -> Result<RulesAdded, api::ClientError> {
    let rule = RuleRequest::new(format!("proto udp dport {port}"), "drop");
    line.node.client().add_rules(&rule.into())
}

fn rules(line: &Line) -> usize {
    line.node.client().rules().unwrap().rules.len()
}

/// Returns a line whose node has its state, or its modules, on a small disk.
fn line_on_a_small_disk(what: &str) -> (SmallDisk, Line) {
    on_a_small_disk(Line::up(), what)
}

/// Moves the state or the modules of an existing line's node to a small disk.
pub fn on_a_small_disk(mut line: Line, what: &str) -> (SmallDisk, Line) {
    assert!(line.node.stop().unwrap().success());
    let disk = SmallDisk::at(&line.node.directory().join(what));
    line.node.start_again(&line.net, "r1").unwrap();
    (disk, line)
}

/// Checks that every command that changes something is refused with this, and changes nothing.
fn refuses_every_change(line: &Line, system_says: &str, help: &str) {
    let before = (rules(line), line.node.client().services().unwrap().services.len());
    let client = line.node.client();
    let again = Service { name: "again", rules: &["ip 6"], ..Service::default() };
    let apply = api::ApplyRequest {
        text: "[[service]]\nmodule = \"monitor\"\nrules = [\"any\"]\n".to_owned(),
        file: "edge.toml".to_owned(),
        ..api::ApplyRequest::default()
    };
    let refusals = [
        add_rule(line, 99).unwrap_err(),
        client.remove_rule(client.rules().unwrap().rules[0].id).unwrap_err(),
        client.remove("monitor", true).unwrap_err(),
        client.apply(&apply).unwrap_err(),
        client.set_bpf(false).unwrap_err(),
    ];
    for refusal in refusals {
        let said = refusal.to_string();
        assert_eq!(refusal.code(), ErrorCode::Failed, "{said}");
        assert!(said.contains("state.redb") && said.contains(system_says), "{said}");
        assert!(said.contains("nothing has changed"), "{said}");
        assert!(refusal.help().is_some_and(|it| it.contains(help)), "{:?}", refusal.help());
    }
    let said = line.node.deploy(&service_module("monitor").unwrap(), &again).unwrap_err();
    assert!(format!("{said:#}").contains(system_says), "{said:#}");
    let gone = || {
        let now = (rules(line), line.node.client().services().unwrap().services.len());
        (now == before).then_some(())
    };
    assert!(wait_for(SOON, gone).is_some(), "{:?} instead of {before:?}", rules(line));
    // The service runs on, and the node forwards.
    let counted = line.node.service("monitor").unwrap().stats.packets;
    line.resolve_neighbours();
    assert!(line.node.service("monitor").unwrap().stats.packets > counted);
}

#[test]
fn a_node_without_room_for_its_state_refuses_changes_and_goes_on() {
    if !root_or_skip("a full disk") {
        return;
    }
    let (disk, mut line) = line_on_a_small_disk("store.state");
    let icmp = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &icmp).unwrap();
    add_rule(&line, 1).unwrap();
    disk.fill();
    // States that fit into free pages are accepted, until one does not.
    let mut taken = 2;
    while taken < 2000 && add_rule(&line, taken).is_ok() {
        taken += 1;
    }
    assert!(taken < 2000, "the disk is never full");
    let acknowledged = rules(&line);
    refuses_every_change(&line, "No space left on device", "make room");
    disk.clear();
    add_rule(&line, 5000).unwrap();
    // What was refused is not there after a restart, and what was taken is.
    line.node.kill().unwrap();
    line.node.start_again(&line.net, "r1").unwrap();
    let there = || (rules(&line) == acknowledged + 1).then_some(());
    assert!(wait_for(SOON, there).is_some(), "{} instead of {}", rules(&line), acknowledged + 1);
}

#[test]
fn a_node_whose_state_is_read_only_refuses_changes_and_goes_on() {
    if !root_or_skip("a disk that is read-only") {
        return;
    }
    let (disk, mut line) = line_on_a_small_disk("store.state");
    let icmp = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &icmp).unwrap();
    // With a file open for writing the kernel refuses to make it read-only: a node that starts
    // meets such a disk.
    assert!(line.node.stop().unwrap().success());
    disk.remount("ro");
    let said = line.node.start_again(&line.net, "r1").unwrap_err().to_string();
    assert!(said.contains("state.redb") && said.contains("Read-only file system"), "{said}");
    disk.remount("rw");
    line.node.start_again(&line.net, "r1").unwrap();
    let back = || line.node.service("monitor").ok();
    assert!(wait_for(SOON, back).is_some());
}

#[test]
fn a_store_without_room_or_that_is_read_only_refuses_modules_and_the_node_goes_on() {
    if !root_or_skip("a full store") {
        return;
    }
    let (disk, line) = line_on_a_small_disk("store");
    let icmp = Service { rules: &["proto icmp"], ..Service::default() };
    line.node.deploy(&service_module("monitor").unwrap(), &icmp).unwrap();
    let other = module(
        "other",
        "window = 64\nlevels = [\"user\"]",
        r#"(memory (export "memory") 1) (func (export "on_packet") (result i32) (i32.const 0))"#,
    );
    let refused = |says: &str| {
        let error = line.node.client().store_module(other.clone()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("store") && said.contains(says), "{said}");
        // Storing without waiting for the disk is refused at the deployment.
        let client = line.node.client();
        let digest = client.store_module_early(other.clone()).unwrap().digest;
        let name = Some("early".to_owned());
        let early = DeployRequest { module: digest, name, ..DeployRequest::default() };
        let said = client.deploy(&early).unwrap_err().to_string();
        assert!(said.contains("store") && said.contains(says), "{said}");
        assert!(line.node.service("early").is_err(), "it is gone again, if it ran");
        let counted = line.node.service("monitor").unwrap().stats.packets;
        line.resolve_neighbours();
        assert!(line.node.service("monitor").unwrap().stats.packets > counted);
    };
    disk.fill();
    refused("No space left on device");
    disk.clear();
    disk.remount("ro");
    refused("Read-only file system");
    disk.remount("rw");
    // The refused module left no partial file, and can be stored now.
    line.node.client().store_module(other.clone()).unwrap();
    let again = Service { name: "again", rules: &["ip 6"], ..Service::default() };
    line.node.deploy(&other, &again).unwrap();
}
