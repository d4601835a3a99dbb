//! Tests of a packet port's sockets on devices: taken frames come back in by the port, once.

use super::*;
use crate::packet_socket::PacketSocket;
use namespaces::netns::{NetNs, in_namespace};
use namespaces::scratch::Scratch;
use netlink::{Netlink, Taken, VethEnd, close_ingress, open_ingress};
use rustix::net::{self, RawProtocol};
use std::os::fd::OwnedFd;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn pair(netlink: &Netlink, ns: &NetNs, names: [&str; 2]) -> [u32; 2] {
    netlink.create_veth(names.map(|name| VethEnd { name, namespace: ns }), 9000).unwrap();
    let devices = names.map(|name| netlink.link(name).unwrap().index);
    devices.iter().for_each(|device| netlink.set_up(*device).unwrap());
    devices.iter().for_each(|device| netlink.wait_running(*device, PATIENCE).unwrap());
    devices
}

/// Makes a namespace with a pair of devices; returns `None` where that takes more rights.
fn scratch(name: &str, ends: [&str; 2]) -> Option<(Scratch, Netlink, [u32; 2])> {
    testbase::root_or_skip("a network namespace").then(|| {
        let scratch = Scratch::new(name);
        let netlink = Netlink::open_in(&scratch.ns).unwrap();
        let devices = pair(&netlink, &scratch.ns, ends);
        (scratch, netlink, devices)
    })
}

/// Returns the test's frames that have arrived so far.
fn came(socket: &FrameSocket, buffer: &mut Buffer) -> Vec<Vec<u8>> {
    let frames = std::iter::from_fn(|| Some(socket.receive(buffer).unwrap()?.bytes.to_vec()));
    frames.filter(|frame| frame.starts_with(&MACS)).collect()
}

#[test]
fn what_leaves_by_a_device_is_watched_but_for_what_its_port_sends() {
    let Some((scratch, _, [far, port])) = scratch("watch", ["far", "port"]) else { return };
    let inside = || {
        let own = FrameSocket::open_marked(port, SENT_MARK).unwrap();
        let other = PacketSocket::open(port).unwrap();
        (FrameSocket::watch(port).unwrap(), own, other, PacketSocket::open(far).unwrap())
    };
    let (watch, own, other, wire) = in_namespace(&scratch.ns, inside).unwrap();
    let mut buffer = Buffer::default();
    let tagged = [&MACS[..], &[0x81, 0x00, 0xa0, 10, 0x88, 0xb5, 9, 9]].concat();
    let before = std::time::SystemTime::now();
    own.send(&[&[&MACS[..], &[0x88, 0xb5, 1]].concat()], Unfinished::default()).unwrap();
    wire.send(&[&MACS[..], &[0x88, 0xb5, 2]].concat()).unwrap();
    other.send(&tagged).unwrap();
    assert_eq!(came(&watch, &mut buffer), [tagged]);
    let stamp = std::time::UNIX_EPOCH + Duration::from_nanos(watch.stamp().unwrap());
    assert!((before..=std::time::SystemTime::now()).contains(&stamp), "{stamp:?}");
}

#[test]
fn a_taken_frame_is_the_kernels_when_it_comes_back_and_not_before() {
    let Some((scratch, netlink, [far, port])) = scratch("frames", ["far", "port"]) else { return };
    let [into, out] = pair(&netlink, &scratch.ns, ["into", "out"]);
    netlink.redirect_to(out, port).unwrap();
    let inside = || {
        let taken = Taken::take("port", port, TAKEN_MARK).unwrap();
        let again = Taken::take("port", port, TAKEN_MARK);
        assert!(again.is_err(), "a device was taken twice");
        let socket = FrameSocket::open(port).unwrap();
        (
            taken,
            socket,
            FrameSocket::open_marked(into, TAKEN_MARK).unwrap(),
            PacketSocket::open(far).unwrap(),
        )
    };
    let (taken, socket, back, wire) = in_namespace(&scratch.ns, inside).unwrap();
    let netfilter = || in_namespace(&scratch.ns, netlink::netfilter_in_use).unwrap().unwrap();
    assert!(!netfilter(), "a node's own table counts as somebody's");
    let mut buffer = Buffer::default();
    let frames: [Vec<u8>; 2] = [
        [&MACS[..], &[0x88, 0xb5, 1, 2, 3]].concat(),
        [&MACS[..], &[0x81, 0x00, 0xa0, 10, 0x88, 0xb5, 9, 9]].concat(),
    ];
    frames.iter().for_each(|frame| wire.send(frame).unwrap());
    assert!(came(&socket, &mut buffer).is_empty(), "nothing was taken yet");
    socket.take().unwrap();
    frames.iter().for_each(|frame| wire.send(frame).unwrap());
    assert!(socket.has_received());
    assert_eq!(came(&socket, &mut buffer), frames);
    // Frames that return are not taken again, and frames that the port sends do not come in.
    frames
        .iter()
        .for_each(|frame| back.send(&[&frame[..5], &frame[5..]], Unfinished::default()).unwrap());
    frames.iter().for_each(|frame| socket.send(&[frame], Unfinished::default()).unwrap());
    assert!(came(&socket, &mut buffer).is_empty());
    let counted = socket.counted().unwrap();
    assert!(counted.received >= 2 && counted.dropped == 0, "{counted:?}");
    assert_eq!(socket.counted().unwrap(), counted, "asked twice, counted twice");
    drop(taken);
    // A child of another test has a copy until it executes its program.
    let again = || {
        let take = || Taken::take("port", port, TAKEN_MARK);
        in_namespace(&scratch.ns, || testbase::wait_for(PATIENCE, || take().ok())).unwrap()
    };
    assert!(again().is_some(), "it is free when the last copy is gone");
}

/// Opens a socket of the stack for the test's frames: unlike a socket for all protocols it is
/// behind the ingress.
fn stack() -> OwnedFd {
    let protocol =
        Some(net::Protocol::from_raw(RawProtocol::new(0x88b5u16.to_be().into()).unwrap()));
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    net::socket_with(net::AddressFamily::PACKET, net::SocketType::RAW, flags, protocol).unwrap()
}

#[test]
fn what_is_closed_stays_so_without_whoever_closed_it_and_lets_marked_frames_through() {
    let Some((scratch, netlink, [far, port])) = scratch("closed", ["far", "port"]) else { return };
    let [into, out] = pair(&netlink, &scratch.ns, ["into", "out"]);
    netlink.redirect_to(out, port).unwrap();
    let inside = || {
        let back = FrameSocket::open_marked(into, TAKEN_MARK).unwrap();
        (stack(), back, PacketSocket::open(far).unwrap())
    };
    let (stack, back, wire) = in_namespace(&scratch.ns, inside).unwrap();
    let frame = [&MACS[..], &[0x88, 0xb5, 1, 2, 3]].concat();
    // Counts the frames from the wire, and those given back, that reached the stack.
    let passed = || {
        let count = || {
            let received = || net::recv(&stack, &mut [0u8; 64][..], net::RecvFlags::TRUNC).is_ok();
            std::iter::repeat_with(received).take_while(|came| *came).count()
        };
        wire.send(&frame).unwrap();
        let of_wire = count();
        back.send(&[&frame], Unfinished::default()).unwrap();
        (of_wire, count())
    };
    let in_it = |run: &(dyn Fn() + Sync)| in_namespace(&scratch.ns, run).unwrap();
    assert_eq!(passed(), (1, 1));
    in_it(&|| open_ingress(port).unwrap());
    // The call is idempotent, and the socket that made it is gone.
    in_it(&|| close_ingress("port", port, TAKEN_MARK).unwrap());
    in_it(&|| close_ingress("port", port, TAKEN_MARK).unwrap());
    assert_eq!(passed(), (0, 1));
    let take = || Taken::take("port", port, TAKEN_MARK).unwrap();
    let taken = in_namespace(&scratch.ns, take).unwrap();
    assert_eq!(passed(), (0, 1), "beside it a device can be taken");
    let hold = || Taken::hold("port", port, TAKEN_MARK).unwrap();
    let held = in_namespace(&scratch.ns, hold).unwrap();
    in_it(&|| open_ingress(port).unwrap());
    drop(taken);
    assert_eq!(passed(), (0, 1), "and held");
    drop(held);
    assert!(testbase::wait_for(PATIENCE, || (passed() == (1, 1)).then_some(())).is_some());
    in_it(&|| close_ingress("port", port, TAKEN_MARK).unwrap());
    netlink.delete_link(port).unwrap();
    in_it(&|| open_ingress(port).unwrap());
}

#[test]
fn what_is_unfinished_survives_its_bytes_and_a_tag() {
    let bytes = [1, 4, 66, 0, 0xb4, 5, 34, 0, 16, 0];
    let unfinished = Unfinished::parse(bytes);
    assert_eq!(unfinished.bytes(), bytes);
    assert_eq!(unfinished.segment_length(), Some(1460));
    let moved = unfinished.moved(4);
    assert_eq!((moved.header_length, moved.sum_from, moved.sum_at), (70, 38, 16));
    let whole = Unfinished::default();
    assert_eq!((whole.moved(4), whole.segment_length()), (whole, None));
}
