//! Checks that try: a veth pair, an XDP program, an AF_XDP socket, a packet port, a VLAN
//! device and a TUN device, in a network namespace of their own.
//!
//! Nothing of the machine's own is changed, and nothing stays: the namespace is deleted when the
//! last trial has ended.

use super::{Check, State};
use anyhow::{Context as _, Result};
use bpf::{Object, XdpMode, objects};
use namespaces::netns::{self, NetNs};
use netlink::{Diversion, Netlink, VethEnd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sockets::frame_socket::{FrameSocket, TAKEN_MARK};
use std::fmt::Display;
use std::rc::Rc;
use xsk::{Rings, Socket, SocketConfig, Umem};

/// Frames of packet memory for one trial: those of its rings twice over.
const FRAMES: u32 = 4 * RING_ENTRIES;
/// Entries of each ring of the trial; a power of two.
const RING_ENTRIES: u32 = 64;
/// Identifier of the VLAN that is tried; any other would do.
const VLAN: u16 = 10;
/// Ends of the veth pair.
const DEVICES: [&str; 2] = ["try0", "try1"];
/// Trials in the order in which they are made and shown.
const TRIALS: [Trial; 6] = [
    Trial {
        name: "veth",
        needed: true,
        found: "pairs with an MTU of 9000 bytes",
        advice: "load the kernel's module: modprobe veth",
        act: Act::MakeVeth,
    },
    Trial {
        name: "native XDP",
        needed: true,
        found: "on a veth, frames of several parts",
        advice: "use Linux 6.6 or later",
        act: Act::OnVeth(attach_front_door),
    },
    Trial {
        name: "AF_XDP",
        needed: true,
        found: "copy mode, frames of several parts",
        advice: "use a kernel with CONFIG_XDP_SOCKETS, 6.6 or later",
        act: Act::OnVeth(bind_xdp_socket),
    },
    Trial {
        name: "packet ports",
        needed: false,
        found: "for devices without XDP",
        advice: "only devices without XDP need it: load nf_tables, sch_ingress, cls_u32 and act_mirred",
        act: Act::OnVeth(take_frames),
    },
    Trial {
        name: "802.1Q",
        needed: false,
        found: "VLAN devices",
        advice: "load the kernel's module: modprobe 8021q",
        act: Act::OnVeth(make_vlan),
    },
    Trial {
        name: "TUN",
        needed: true,
        found: "/dev/net/tun",
        advice: "load the kernel's module: modprobe tun",
        act: Act::Alone(make_tun),
    },
];

/// Trial of one feature, with the texts of its check.
struct Trial {
    name: &'static str,
    /// False for a feature that a node can do without.
    needed: bool,
    /// Words for a success.
    found: &'static str,
    advice: &'static str,
    act: Act,
}

/// Action of a trial. Interface indexes are those of the veth pair's first end.
#[derive(Clone, Copy)]
enum Act {
    /// Makes the veth pair that later trials are made on.
    MakeVeth,
    /// Tries on the veth pair.
    OnVeth(fn(ifindex: u32) -> Result<()>),
    /// Tries without any device.
    Alone(fn() -> Result<()>),
}

/// Deletes the namespace of this name when dropped, and with it all that was tried.
struct Removal(String);

impl Drop for Removal {
    fn drop(&mut self) {
        // The name contains this process's number, so a namespace that remains disturbs nobody.
        let _ = netns::delete(&self.0);
    }
}

/// Makes all trials.
pub fn checks() -> Vec<Check> {
    let name = format!("tam-doctor-{}", std::process::id());
    let namespace = match NetNs::create(&name) {
        Ok(namespace) => namespace,
        Err(error) => return unknown(&TRIALS, &error),
    };
    let _removal = Removal(name);
    match netns::in_namespace(&namespace, || run(&TRIALS, || make_veth(&namespace))) {
        Ok(checks) => checks,
        Err(error) => unknown(&TRIALS, &error),
    }
}

/// Returns the checks of a machine where nothing can be tried, for want of a namespace.
fn unknown(trials: &[Trial], error: &dyn Display) -> Vec<Check> {
    let check = |(at, trial): (usize, &Trial)| {
        let check = match at {
            0 => Check::needed(trial.name, State::Unknown, error.to_string())
                .advice("run `tam doctor` as root: it tries things in a namespace of its own"),
            _ => Check::needed(trial.name, State::Unknown, "not tried, for the same reason"),
        };
        Check { needed: trial.needed, ..check }
    };
    trials.iter().enumerate().map(check).collect()
}

/// Makes trials in the namespace of the calling thread. `make_veth` returns the interface index of
/// the pair's first end.
fn run(trials: &[Trial], make_veth: impl Fn() -> Result<u32>) -> Vec<Check> {
    let mut veth = None;
    let check = |trial: &Trial| {
        let done = match trial.act {
            Act::MakeVeth => make_veth().map(|ifindex| veth = Some(ifindex)),
            Act::OnVeth(act) => veth.context("there is no veth to try it on").and_then(act),
            Act::Alone(act) => act(),
        };
        let check = match done {
            Ok(()) => Check::needed(trial.name, State::Ok, trial.found),
            Err(reason) => Check::needed(trial.name, State::Missing, reason.to_string()),
        };
        Check { needed: trial.needed, ..check.advice(trial.advice) }
    };
    trials.iter().map(check).collect()
}

fn make_veth(namespace: &NetNs) -> Result<u32> {
    let netlink = Netlink::open()?;
    let ends = DEVICES.map(|name| VethEnd { name, namespace });
    netlink.create_veth(ends, daemon::PORT_MTU_MAX)?;
    for device in DEVICES {
        netlink.set_up(netlink.link(device)?.index)?;
    }
    Ok(netlink.link(DEVICES[0])?.index)
}

/// Attaches the front door itself, as a node does.
fn attach_front_door(ifindex: u32) -> Result<()> {
    let mut object = Object::open(objects::FRONT_DOOR, "tam_doctor")?;
    object.set_autoload("tam_heartbeat", false)?;
    let program = object.load()?.program("tam_front_door")?;
    program.attach_xdp(ifindex, XdpMode::Native)?;
    Ok(())
}

fn bind_xdp_socket(ifindex: u32) -> Result<()> {
    let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let (umem, _pool) = Umem::new(FRAMES)?;
    let config = SocketConfig {
        ifindex,
        queue: 0,
        number: 0,
        rings: Rings { receive: RING_ENTRIES, transmit: RING_ENTRIES },
        leaving_max: RING_ENTRIES,
        multi_buffer: true,
    };
    Socket::new(fd, Rc::new(umem), &config, &[])?;
    Ok(())
}

/// Takes a device's frames from the kernel and redirects another one's to it, as a packet port does.
fn take_frames(ifindex: u32) -> Result<()> {
    let netlink = Netlink::open()?;
    let taken = Diversion::take(DEVICES[0], ifindex, TAKEN_MARK)?;
    let other = netlink.link(DEVICES[1])?;
    netlink.redirect_to(other.index, ifindex)?;
    drop(taken);
    FrameSocket::open_marked(ifindex, TAKEN_MARK)?;
    Ok(())
}

fn make_vlan(parent: u32) -> Result<()> {
    Ok(Netlink::open()?.create_vlan(&format!("{}.{VLAN}", DEVICES[0]), parent, VLAN)?)
}

fn make_tun() -> Result<()> {
    sockets::tun::create("trytun", sockets::tun::Kind::Packets)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(name: &'static str, needed: bool, act: Act) -> Trial {
        Trial { name, needed, found: "there", advice: "load it", act }
    }

    /// A trial on a veth that fails on every device but that of index 7, one alone that fails, and
    /// before them the veth pair.
    fn trials() -> [Trial; 3] {
        let on_seven = |ifindex| if ifindex == 7 { Ok(()) } else { anyhow::bail!("on {ifindex}") };
        [
            trial("veth", true, Act::MakeVeth),
            trial("on a veth", false, Act::OnVeth(on_seven)),
            trial("alone", true, Act::Alone(|| anyhow::bail!("no file"))),
        ]
    }

    #[test]
    fn a_trial_is_found_or_missing_with_its_reason_and_advice() {
        let checks = run(&trials(), || Ok(7));
        assert_eq!(checks[..2].iter().map(|it| it.state).collect::<Vec<_>>(), [State::Ok; 2]);
        assert_eq!((checks[1].found.as_str(), checks[1].advice.as_deref()), ("there", None));
        assert_eq!((checks[2].state, checks[2].found.as_str()), (State::Missing, "no file"));
        assert_eq!(checks[2].advice.as_deref(), Some("load it"));
        assert_eq!(checks.iter().map(|it| it.needed).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn without_a_veth_its_trials_are_missing_and_the_others_run() {
        let checks = run(&trials(), || anyhow::bail!("not permitted"));
        let found: Vec<&str> = checks.iter().map(|check| check.found.as_str()).collect();
        assert_eq!(found, ["not permitted", "there is no veth to try it on", "no file"]);
    }

    #[test]
    fn without_a_namespace_all_results_are_unknown_with_one_reason() {
        let checks = unknown(&TRIALS, &"not permitted");
        assert!(checks.iter().all(|check| check.state == State::Unknown));
        assert_eq!(checks.iter().filter(|check| check.found == "not permitted").count(), 1);
        assert!(checks[0].advice.as_deref().is_some_and(|advice| advice.contains("as root")));
        let useful: Vec<&str> =
            checks.iter().filter(|check| !check.needed).map(|check| check.name).collect();
        assert_eq!(useful, ["packet ports", "802.1Q"], "a node does without");
    }

    #[test]
    fn the_veth_has_the_largest_mtu_of_a_port() {
        assert!(TRIALS[0].found.contains(&daemon::PORT_MTU_MAX.to_string()));
    }
}
