//! Tests of a packet port's sockets on devices.

use super::*;
use crate::packet_socket::PacketSocket;
use namespaces::netns::{NetNs, in_namespace};
use namespaces::scratch::Scratch;
use netlink::{Diversion, Netlink, VethEnd, close_ingress, open_ingress};
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

/// Creates a namespace with a pair of devices; `None` where that takes more rights.
fn scratch(name: &str, ends: [&str; 2]) -> Option<(Scratch, Netlink, [u32; 2])> {
    testbase::root_or_skip("a network namespace").then(|| {
        let scratch = Scratch::new(name);
        let netlink = Netlink::open_in(&scratch.ns).unwrap();
        let devices = pair(&netlink, &scratch.ns, ends);
        (scratch, netlink, devices)
    })
}

/// Returns our own frames received so far.
fn received(socket: &FrameSocket, buffer: &mut Buffer) -> Vec<Vec<u8>> {
    let frames = std::iter::from_fn(|| Some(socket.receive(buffer).unwrap()?.bytes.to_vec()));
    frames.filter(|frame| frame.starts_with(&MACS)).collect()
}

#[test]
fn egress_of_a_device_is_watched_except_frames_of_its_port() {
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
    assert_eq!(received(&watch, &mut buffer), [tagged]);
    let stamp = std::time::UNIX_EPOCH + Duration::from_nanos(watch.stamp().unwrap());
    assert!((before..=std::time::SystemTime::now()).contains(&stamp), "{stamp:?}");
}

#[test]
fn a_taken_frame_reaches_the_kernel_when_it_is_returned_and_not_before() {
    let Some((scratch, netlink, [far, port])) = scratch("frames", ["far", "port"]) else { return };
    let [into, out] = pair(&netlink, &scratch.ns, ["into", "out"]);
    netlink.redirect_to(out, port).unwrap();
    let inside = || {
        let taken = Diversion::take("port", port, TAKEN_MARK).unwrap();
        let again = Diversion::take("port", port, TAKEN_MARK);
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
    assert!(received(&socket, &mut buffer).is_empty(), "nothing was taken yet");
    socket.take().unwrap();
    frames.iter().for_each(|frame| wire.send(frame).unwrap());
    assert!(socket.has_received());
    assert_eq!(received(&socket, &mut buffer), frames);
    // Returned frames are not taken again, and frames that the port sends are not received.
    frames
        .iter()
        .for_each(|frame| back.send(&[&frame[..5], &frame[5..]], Unfinished::default()).unwrap());
    frames.iter().for_each(|frame| socket.send(&[frame], Unfinished::default()).unwrap());
    assert!(received(&socket, &mut buffer).is_empty());
    let counted = socket.counted().unwrap();
    assert!(counted.received >= 2 && counted.dropped == 0, "{counted:?}");
    assert_eq!(socket.counted().unwrap(), counted, "asked twice, counted twice");
    drop(taken);
    // A child of another test has a copy until it runs its program.
    let again = || {
        let take = || Diversion::take("port", port, TAKEN_MARK);
        in_namespace(&scratch.ns, || testbase::wait_for(PATIENCE, || take().ok())).unwrap()
    };
    assert!(again().is_some(), "it is free when the last copy is gone");
}

/// Returns a packet socket bound to our protocol, which is behind the ingress hook, unlike one for
/// all protocols.
fn stack() -> OwnedFd {
    let protocol =
        Some(net::Protocol::from_raw(RawProtocol::new(0x88b5u16.to_be().into()).unwrap()));
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    net::socket_with(net::AddressFamily::PACKET, net::SocketType::RAW, flags, protocol).unwrap()
}

#[test]
fn a_closed_ingress_outlives_its_creator_and_passes_marked_frames() {
    let Some((scratch, netlink, [far, port])) = scratch("closed", ["far", "port"]) else { return };
    let [into, out] = pair(&netlink, &scratch.ns, ["into", "out"]);
    netlink.redirect_to(out, port).unwrap();
    let inside = || {
        let back = FrameSocket::open_marked(into, TAKEN_MARK).unwrap();
        (stack(), back, PacketSocket::open(far).unwrap())
    };
    let (stack, back, wire) = in_namespace(&scratch.ns, inside).unwrap();
    let frame = [&MACS[..], &[0x88, 0xb5, 1, 2, 3]].concat();
    // Counts of frames that the stack got, from the wire and returned.
    let passed = || {
        let count = || {
            let received = || net::recv(&stack, &mut [0u8; 64][..], net::RecvFlags::TRUNC).is_ok();
            std::iter::repeat_with(received).take_while(|received| *received).count()
        };
        wire.send(&frame).unwrap();
        let of_wire = count();
        back.send(&[&frame], Unfinished::default()).unwrap();
        (of_wire, count())
    };
    let in_it = |run: &(dyn Fn() + Sync)| in_namespace(&scratch.ns, run).unwrap();
    assert_eq!(passed(), (1, 1));
    in_it(&|| open_ingress(port).unwrap());
    // Closing twice has the effect of once, and outlives the socket that requested it.
    in_it(&|| close_ingress("port", port, TAKEN_MARK).unwrap());
    in_it(&|| close_ingress("port", port, TAKEN_MARK).unwrap());
    assert_eq!(passed(), (0, 1));
    let take = || Diversion::take("port", port, TAKEN_MARK).unwrap();
    let taken = in_namespace(&scratch.ns, take).unwrap();
    assert_eq!(passed(), (0, 1), "beside it a device can be taken");
    let hold = || Diversion::hold("port", port, TAKEN_MARK).unwrap();
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
fn unfinished_work_survives_encoding_and_a_tag() {
    let bytes = [1, 4, 66, 0, 0xb4, 5, 34, 0, 16, 0];
    let unfinished = Unfinished::parse(bytes);
    assert_eq!(unfinished.bytes(), bytes);
    assert_eq!(unfinished.segment_length(), Some(1460));
    let moved = unfinished.moved(4);
    assert_eq!((moved.header_length, moved.sum_from, moved.sum_at), (70, 38, 16));
    let whole = Unfinished::default();
    assert_eq!((whole.moved(4), whole.segment_length()), (whole, None));
}
