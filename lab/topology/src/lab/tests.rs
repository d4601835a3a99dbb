//! Tests of real labs with real packets. They need root, and skip with a note otherwise.

use std::time::Instant;

use super::*;
use crate::{Lab, record_pid};

/// Lab of this test process, removed when the test ends, however it ends.
struct Scratch {
    name: String,
    plan: Plan,
}

impl Scratch {
    /// Makes a lab; returns `None` and prints the reason when the test cannot run.
    fn up(purpose: &str, body: &str) -> Option<Self> {
        let scratch = Self::planned(purpose, body)?;
        match up(&scratch.plan, &mut |_| {}) {
            Ok(_) => Some(scratch),
            Err(error) if error.to_string().contains("lacks the kind 'vlan'") => {
                // A lab that this kernel cannot make leaves nothing.
                let left = netns::list().unwrap();
                let prefix = format!("tam-{}-", scratch.plan.lab);
                assert!(!left.iter().any(|name| name.starts_with(&prefix)), "{left:?}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn planned(purpose: &str, body: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            testbase::skip_this("making network namespaces needs root");
            return None;
        }
        let name = format!("tt-topo-{}-{purpose}", std::process::id());
        let plan = Lab::parse(&format!("name = '{name}'\n{body}"), "test.toml").unwrap();
        Some(Self { name, plan })
    }

    /// Runs a command that must succeed; returns its output.
    fn run(&self, node: &str, words: &str) -> String {
        let output = self.try_run(node, words);
        let errors = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words}: {errors}{printed}");
        printed
    }

    fn try_run(&self, node: &str, words: &str) -> std::process::Output {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        command_in(&self.name, node, command).unwrap().output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Most tests remove it themselves, as their subject.
        let _ = down_matching(&self.name);
    }
}

const TWO_ROUTERS: &str = "
host = [{ name = 'client' }, { name = 'server' }]
router = [{ name = 'r1' }, { name = 'r2' }]
";

fn chain(options: &str) -> String {
    format!(
        "{TWO_ROUTERS}
        [[link]]\nends = ['client', 'r1']\n{options}
        [[link]]\nends = ['r1', 'r2']\n{options}
        [[link]]\nends = ['r2', 'server']\n{options}"
    )
}

fn own_links() -> String {
    let output = Command::new("ip").args(["-o", "link"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Others' tests come and go on the same machine; a lab's devices are all named `to-*`.
    text.lines().filter(|line| line.contains("to-")).collect()
}

#[test]
fn packets_cross_two_routers_and_nothing_is_left() {
    let Some(lab) = Scratch::planned("cross", &chain("")) else { return };
    let mut heard = Vec::new();
    let made = up(&lab.plan, &mut |step| heard.push(step.to_owned())).unwrap();
    assert_eq!(made.namespaces.len(), 4);
    assert_eq!(heard.first().map(String::as_str), Some("host client"));
    assert_eq!(own_links(), "", "the devices were never outside their namespaces");

    let (v4, v6) = lab.plan.addresses_of("server").unwrap();
    let printed = lab.run("client", &format!("ping -c 1 -W 2 {v4}"));
    assert!(printed.contains("ttl=62"), "two routers took one each: {printed}");
    let printed = lab.run("client", &format!("ping -c 1 -W 2 {v6}"));
    assert!(printed.contains("ttl=62"), "{printed}");
    let every = lab.plan.links.iter().flat_map(|link| &link.ends);
    for end in every {
        lab.run("client", &format!("ping -c 1 -W 2 {}", end.v4.address()));
        lab.run("server", &format!("ping -c 1 -W 2 {}", end.v6.address()));
    }

    let again = up(&lab.plan, &mut |_| {}).unwrap_err();
    assert!(matches!(again, LabError::Exists { .. }), "{again}");
    assert!(again.to_string().contains("already exists"));
    lab.run("client", &format!("ping -c 1 -W 2 {v4}"));

    let removed = down(&lab.name).unwrap();
    assert_eq!(removed.namespaces, made.namespaces);
    let namespaces = netns::list().unwrap();
    assert!(namespaces.iter().all(|name| !name.contains(&lab.name)), "{namespaces:?}");
    assert!(!made.record.exists());
    assert_eq!(own_links(), "");
    assert!(matches!(down(&lab.name), Err(LabError::NoLab { .. })));
}

#[test]
fn frames_are_whole_and_hosts_have_a_receive_ring() {
    let Some(lab) = Scratch::up("offload", &chain("")) else { return };
    for (node, device, gro) in [("client", "to-r1", "on"), ("r1", "to-client", "off")] {
        let shown = lab.run(node, &format!("ethtool -k {device}"));
        for (feature, state) in [
            ("tx-checksumming", "off"),
            ("tcp-segmentation-offload", "off"),
            ("generic-segmentation-offload", "off"),
            ("tx-vlan-offload", "off"),
            ("rx-vlan-offload", "off"),
            ("generic-receive-offload", gro),
        ] {
            let line = format!("{feature}: {state}");
            assert!(shown.contains(&line), "{node}: no '{line}' in {shown}");
        }
    }
}

#[test]
fn jumbo_packets_cross_unfragmented_and_larger_ones_do_not() {
    let Some(lab) = Scratch::up("jumbo", &chain("mtu = 9000")) else { return };
    let (v4, v6) = lab.plan.addresses_of("server").unwrap();
    lab.run("client", &format!("ping -c 1 -W 2 -M do -s 8972 {v4}"));
    lab.run("client", &format!("ping -c 1 -W 2 -M do -s 8952 {v6}"));
    assert!(!lab.try_run("client", &format!("ping -c 1 -W 2 -M do -s 8973 {v4}")).status.success());
}

#[test]
fn a_vlan_link_carries_tagged_packets() {
    let Some(lab) = Scratch::up("vlan", &chain("vlan = 10")) else { return };
    let (v4, v6) = lab.plan.addresses_of("server").unwrap();
    lab.run("client", &format!("ping -c 1 -W 2 {v4}"));
    lab.run("client", &format!("ping -c 1 -W 2 {v6}"));
    assert!(lab.run("r1", "ip -d link show to-client.10").contains("vlan protocol 802.1Q id 10"));
}

#[test]
fn a_rate_slows_a_link_down() {
    let Some(lab) = Scratch::up("rate", &chain("rate = '2Mbit'")) else { return };
    let (v4, _) = lab.plan.addresses_of("server").unwrap();
    // 100 packets of 1,442 bytes are 1.15 Mbit; the bucket lets 0.14 of them through at once,
    // so 2 Mbit/s need half a second. Each waits in the queue of the first link for its turn.
    let began = Instant::now();
    lab.run("client", &format!("ping -q -c 100 -l 30 -i 0.002 -s 1400 -W 2 {v4}"));
    let took = began.elapsed();
    assert!(took.as_millis() >= 400, "it took only {took:?}");
    assert!(lab.run("r2", "tc qdisc show dev to-server").contains("rate 2Mbit"));
}

#[test]
fn a_link_with_a_delay_has_a_bridge_without_addresses_in_it() {
    let body = "host = [{ name = 'a' }, { name = 'b' }]\n\
                [[link]]\nends = ['a', 'b']\ndelay = '1ms'\nmtu = 1400\n";
    let Some(lab) = Scratch::up("through", body) else { return };
    for (device, mtu) in [("left", 1400), ("right", 1400), ("tick", 1500), ("tock", 1500)] {
        let said = lab.run("link-1", &format!("ip -oneline link show dev {device}"));
        assert!(said.contains("LOWER_UP") && said.contains(&format!("mtu {mtu} ")), "{said}");
        assert_eq!(lab.run("link-1", &format!("ip -oneline address show dev {device}")), "");
    }
    // The hosts have only the devices of an ordinary link.
    assert!(lab.run("a", "ip -oneline link").contains("to-b@"));
    assert!(lab.run("b", "ip -oneline address").contains("10.77.1.2/24"));
    // No node bridges: nothing passes.
    assert!(!lab.try_run("a", "ping -c1 -W1 10.77.1.2").status.success());
    let removed = down(&lab.name).unwrap();
    assert_eq!(removed.namespaces.len(), 3, "{removed:?}");
}

#[test]
fn a_failed_lab_leaves_nothing() {
    let Some(lab) = Scratch::planned("fail", &chain("")) else { return };
    // The last namespace's name is taken, so three were made before.
    let taken = &lab.plan.nodes.last().unwrap().namespace;
    NetNs::create(taken).unwrap();
    let error = up(&lab.plan, &mut |_| {}).unwrap_err();
    assert!(matches!(&error, LabError::NamespaceTaken { namespace } if namespace == taken));
    let left: Vec<String> =
        netns::list().unwrap().into_iter().filter(|name| name.contains(&lab.name)).collect();
    assert_eq!(left.iter().collect::<Vec<_>>(), [taken], "the one that was not ours");
    assert!(matches!(load(&lab.name), Err(LabError::NoLab { .. })));
}

#[test]
fn what_a_dead_lab_left_is_removed() {
    let Some(lab) = Scratch::up("orphan", &chain("")) else { return };
    state::remove(&lab.name).unwrap();
    let removed = down_matching(&lab.name).unwrap();
    assert_eq!(removed.namespaces.len(), 4, "{removed:?}");
    assert!(netns::list().unwrap().iter().all(|name| !name.contains(&lab.name)));

    let damaged = PathBuf::from(STATE_DIRECTORY).join(format!("{}.json", lab.name));
    std::fs::write(&damaged, "{").unwrap();
    assert!(matches!(load(&lab.name), Err(LabError::Damaged { .. })));
    down_matching(&lab.name).unwrap();
    assert!(!damaged.exists());
}

#[test]
fn processes_end_with_their_lab_and_others_do_not() {
    let Some(lab) = Scratch::up("process", &chain("")) else { return };
    let sleeper = || {
        let mut command = Command::new("sleep");
        command.arg("60");
        command
    };
    // One recorded as a router's node, in no namespace of the lab; one inside; one neither,
    // under the recorded number of a process that is gone.
    let mut node = sleeper().spawn().unwrap();
    record_pid(&lab.name, "r1", node.id()).unwrap();
    let mut inside = command_in(&lab.name, "client", sleeper()).unwrap().spawn().unwrap();
    let mut stranger = sleeper().spawn().unwrap();
    record_pid(&lab.name, "r2", stranger.id()).unwrap();
    pretend_older(&lab.name, "r2");

    let mut removed = down(&lab.name).unwrap().processes;
    removed.sort_unstable();
    let mut expected = [node.id(), inside.id()];
    expected.sort_unstable();
    assert_eq!(removed, expected);
    assert!(!node.wait().unwrap().success() && !inside.wait().unwrap().success());
    assert!(stranger.try_wait().unwrap().is_none(), "it runs on");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Changes the record's start time of the process to an earlier one.
fn pretend_older(lab: &str, router: &str) {
    let path = PathBuf::from(STATE_DIRECTORY).join(format!("{lab}.json"));
    let mut state = load(lab).unwrap();
    let node = state.nodes.iter_mut().find(|node| node.router.as_str() == router).unwrap();
    node.started = node.started.map(|started| started - 1);
    std::fs::write(path, serde_json::to_vec(&state).unwrap()).unwrap();
}

#[test]
fn commands_run_in_their_node_and_mistakes_are_named() {
    let Some(lab) = Scratch::up("exec", &chain("")) else { return };
    let exec = |node: &str, words: &[&str]| {
        exec(&lab.name, node, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    };
    assert!(exec("r1", &["ip", "-o", "link", "show", "to-client"]).unwrap().success());
    assert_eq!(exec("r1", &["sh", "-c", "exit 7"]).unwrap().code(), Some(7));
    let message = exec("clint", &["true"]).unwrap_err().to_string();
    assert!(message.ends_with("has no node 'clint'; did you mean 'client'?"), "{message}");
    let message = exec("r1", &["no-such-program"]).unwrap_err().to_string();
    assert!(message.starts_with("cannot start 'no-such-program' in 'r1': "), "{message}");
    assert!(matches!(exec("r1", &[]), Err(LabError::NoCommand { .. })));
    assert!(matches!(record_pid(&lab.name, "client", 1), Err(LabError::NoNode { .. })));
    assert!(matches!(load("../../etc/x"), Err(LabError::NoLab { .. })));
}
