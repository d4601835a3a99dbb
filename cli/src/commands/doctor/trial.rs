//! Checks that try: a veth pair, an XDP program, an AF_XDP socket, a packet port, a VLAN
//! device and a TUN device, in a network namespace of their own.

use super::{Check, State};
use bpf::{Object, XdpMode, objects};
use namespaces::netns::{self, NetNs};
use netlink::{Netlink, Taken, VethEnd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sockets::frame_socket::{FrameSocket, TAKEN_MARK};
use std::fmt::Display;
use std::rc::Rc;
use xsk::{Rings, Socket, SocketConfig, Umem};

/// The largest MTU that a node takes, in bytes.
const MTU: u32 = 9000;
/// Frames of packet memory for one try: one page of rings and a few to spare.
const FRAMES: u32 = 256;
/// Entries of each ring of the try.
const RING_ENTRIES: u32 = 64;
/// A VLAN as good as any.
const VLAN: u16 = 10;
const DEVICES: [&str; 2] = ["try0", "try1"];
/// What the tries are called, in their order.
const NAMES: [&str; 6] = ["veth", "native XDP", "AF_XDP", "packet ports", "802.1Q", "TUN"];
/// Those that a node can do without.
const USEFUL: [&str; 2] = ["packet ports", "802.1Q"];

/// Removes the namespace, and with it all that was tried.
struct Removal(String);

impl Drop for Removal {
    fn drop(&mut self) {
        // It has our process's number in its name: nobody else misses it.
        let _ = netns::delete(&self.0);
    }
}

/// All of them.
pub fn checks() -> Vec<Check> {
    let name = format!("tam-doctor-{}", std::process::id());
    let namespace = match NetNs::create(&name) {
        Ok(namespace) => namespace,
        Err(error) => return unknown(&error),
    };
    let _removal = Removal(name);
    match netns::in_namespace(&namespace, || tries(&namespace)) {
        Ok(checks) => checks,
        Err(error) => unknown(&error),
    }
}

/// Nothing can be tried without a namespace.
fn unknown(error: &dyn Display) -> Vec<Check> {
    let [first, others @ ..] = NAMES;
    let first = Check::needed(first, State::Unknown, error.to_string())
        .advice("run `tam doctor` as root: it tries things in a namespace of its own");
    let not_tried = |name| Check {
        needed: !USEFUL.contains(&name),
        ..Check::needed(name, State::Unknown, "not tried, for the same reason")
    };
    std::iter::once(first).chain(others.into_iter().map(not_tried)).collect()
}

fn tries(namespace: &NetNs) -> Vec<Check> {
    let veth = make_veth(namespace);
    let index = veth.as_ref().ok().copied();
    let [veth_name, xdp, xsk, packets, vlan, tun] = NAMES;
    let on_veth = |name, found: &str, advice: &str, act: &dyn Fn(u32) -> Result<(), String>| {
        let done = index.ok_or_else(|| "there is no veth to try it on".to_owned()).and_then(act);
        Check { needed: !USEFUL.contains(&name), ..judged(name, found, advice, done) }
    };
    vec![
        judged(
            veth_name,
            "pairs with an MTU of 9000 bytes",
            "load the kernel's module: modprobe veth",
            veth.map(|_| ()),
        ),
        on_veth(xdp, "on a veth, frames of several parts", "use Linux 6.6 or later", &attach),
        on_veth(
            xsk,
            "copy mode, frames of several parts",
            "use a kernel with CONFIG_XDP_SOCKETS, 6.6 or later",
            &bind,
        ),
        on_veth(
            packets,
            "for devices without XDP",
            "only devices without XDP need it: load nf_tables, sch_ingress, cls_u32 and act_mirred",
            &take_frames,
        ),
        on_veth(vlan, "VLAN devices", "load the kernel's module: modprobe 8021q", &make_vlan),
        judged(tun, "/dev/net/tun", "load the kernel's module: modprobe tun", make_tun()),
    ]
}

fn judged(name: &'static str, found: &str, advice: &str, done: Result<(), String>) -> Check {
    match done {
        Ok(()) => Check::needed(name, State::Ok, found),
        Err(reason) => Check::needed(name, State::Missing, reason).advice(advice),
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn make_veth(namespace: &NetNs) -> Result<u32, String> {
    let netlink = Netlink::open().map_err(text)?;
    let ends = DEVICES.map(|name| VethEnd { name, namespace });
    netlink.create_veth(ends, MTU).map_err(text)?;
    for device in DEVICES {
        let link = netlink.link(device).map_err(text)?;
        netlink.set_up(link.index).map_err(text)?;
    }
    Ok(netlink.link(DEVICES[0]).map_err(text)?.index)
}

/// The front door itself, as a node attaches it.
fn attach(ifindex: u32) -> Result<(), String> {
    let mut object = Object::open(objects::FRONT_DOOR, "tam_doctor").map_err(text)?;
    object.set_autoload("tam_heartbeat", false).map_err(text)?;
    let object = object.load().map_err(text)?;
    let program = object.program("tam_front_door").map_err(text)?;
    program.attach_xdp(ifindex, XdpMode::Native).map(drop).map_err(text)
}

fn bind(ifindex: u32) -> Result<(), String> {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(text)?;
    let (umem, _pool) = Umem::new(FRAMES).map_err(text)?;
    let (rings, multi_buffer) = (Rings { receive: RING_ENTRIES, transmit: RING_ENTRIES }, true);
    let leaving_max = RING_ENTRIES;
    let config = SocketConfig { ifindex, queue: 0, number: 0, rings, leaving_max, multi_buffer };
    Socket::new(fd, Rc::new(umem), &config, &[]).map(drop).map_err(text)
}

/// What a packet port needs of the kernel.
fn take_frames(ifindex: u32) -> Result<(), String> {
    let netlink = Netlink::open().map_err(text)?;
    let taken = Taken::take(DEVICES[0], ifindex, TAKEN_MARK).map_err(text)?;
    let other = netlink.link(DEVICES[1]).map_err(text)?;
    netlink.redirect_to(other.index, ifindex).map_err(text)?;
    drop(taken);
    FrameSocket::open_marked(ifindex, TAKEN_MARK).map(drop).map_err(text)
}

fn make_vlan(parent: u32) -> Result<(), String> {
    let netlink = Netlink::open().map_err(text)?;
    netlink.create_vlan("try0.10", parent, VLAN).map_err(text)
}

fn make_tun() -> Result<(), String> {
    sockets::tun::create("trytun", sockets::tun::Kind::Packets).map(drop).map_err(text)
}
