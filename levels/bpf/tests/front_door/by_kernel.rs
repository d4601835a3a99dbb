//! Tests of packets that modules and rules leave to the kernel: the share of the egress port is
//! charged, and the cell is notified which port that is.

use bpf::{Answers, QUESTION_HEAD, QUESTION_PACKET};
use bpf_maps::{
    ETHERNET_REST, META_BY_KERNEL, META_COUNTED, META_EPOCH_SHIFT, META_LEAVES, SLOW_NETFILTER,
    SLOW_NO_REDIRECT, SLOW_QDISC,
};
use std::os::fd::AsFd;
use units::{PortId, SessionId};
use wire::FrameBuilder;

use crate::harness::{OUT_PORT, PORT, XDP_DROP, XDP_PASS, addressed};
use crate::kernel_harness::{Kernel, ours};
use crate::namespace::{add_way_out, enter, ifindex, ip};
use crate::nic_harness::Nic;
use crate::shares::{OWN, SESSION};
use crate::waiting;

const PASS: u32 = 0;
const REROUTE: u32 = 0x100;
/// Number of packets that a share's account pays for before it is used up.
const PAID: usize = 3;

fn to(destination: [u8; 4], ttl: u8) -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], destination, ttl).udp(1, 2).build())
}

fn v6() -> Vec<u8> {
    let (source, destination) =
        (0x2001_0db8_0000_0000_0000_0000_0000_0001u128, 0x2001_0db8_9999u128 << 80 | 9);
    let ip = FrameBuilder::new().ipv6(source.to_be_bytes(), destination.to_be_bytes(), 64);
    addressed(ip.udp(1, 2).build())
}

/// Cases in which the kernel routes a module's packet.
const WHY: [(&str, u32, u32, u32); 5] = [
    ("netfilter", SLOW_NETFILTER, 0, PASS),
    ("an egress without redirect", 0, SLOW_NO_REDIRECT, PASS),
    ("both", SLOW_NETFILTER, SLOW_NETFILTER | SLOW_NO_REDIRECT, PASS),
    ("a queueing discipline", 0, SLOW_QDISC, PASS),
    ("the module", 0, 0, REROUTE),
];

#[test]
fn packets_left_to_the_kernel_at_nic_use_the_share_of_their_egress_port() {
    if !enter("packets_left_to_the_kernel_at_nic_use_the_share_of_their_egress_port") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.set_shared(OUT_PORT);
    nic.has_share(OUT_PORT);
    for (why, arrival, egress, verdict) in WHY {
        nic.door.change_port(PORT, |config| config.slow = arrival);
        nic.door.change_port(OUT_PORT, |config| config.slow = egress);
        nic.door.activate(0);
        for frame in [to([203, 0, 113, 9], 64), v6()] {
            let length = frame.len() as u64;
            nic.has_bytes(OWN, (length + ETHERNET_REST) * 5 / 2);
            let before = nic.stats();
            let mut ends = Vec::new();
            for _ in 0..PAID + 2 {
                ends.push(nic.verdict(&frame, verdict).action);
            }
            let expected = [XDP_PASS, XDP_PASS, XDP_PASS, XDP_DROP, XDP_DROP];
            assert_eq!(ends, expected, "{why}");
            let (stats, port_share) = (nic.stats(), nic.port_share(OWN));
            assert_eq!(stats.to_kernel - before.to_kernel, PAID as u64, "{why}");
            assert_eq!(stats.drop_share - before.drop_share, 2, "{why}");
            assert_eq!(
                (port_share.account.sent, port_share.dropped),
                ([PAID as u64 * length, 0], [2, 0])
            );
            assert_eq!(stats.packets, nic.ended());
        }
    }
}

#[test]
fn packets_for_the_kernel_itself_and_of_the_nodes_own_services_use_no_port_share() {
    if !enter("packets_for_the_kernel_itself_and_of_the_nodes_own_services_use_no_port_share") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    nic.set_shared(OUT_PORT);
    nic.has_share(OUT_PORT);
    nic.has_bytes(OWN, 0);
    // The kernel's own address, an expired TTL, no unicast address.
    for frame in [to([198, 51, 100, 1], 64), to([203, 0, 113, 9], 1), to([224, 0, 0, 9], 64)] {
        assert_eq!(nic.verdict(&frame, REROUTE).action, XDP_PASS);
    }
    nic.lane().set_session(SessionId(0));
    assert_eq!(nic.verdict(&to([203, 0, 113, 9], 64), REROUTE).action, XDP_PASS);
    nic.lane().set_session(SessionId(SESSION));
    assert_eq!(nic.verdict(&to([203, 0, 113, 9], 64), REROUTE).action, XDP_DROP);
    let stats = nic.stats();
    assert_eq!((stats.to_kernel, stats.drop_share), (4, 1));
}

#[test]
fn at_kernel_a_packet_beyond_its_share_waits_unrouted_for_its_sessions_turn() {
    if !enter("at_kernel_a_packet_beyond_its_share_waits_unrouted_for_its_sessions_turn") {
        return;
    }
    let kernel = Kernel::load("tt-bykernel");
    kernel.add_tap();
    kernel.has_shares();
    kernel.has_room(8, 0);
    let frame = waiting::frame();
    kernel.has_bytes(1);
    kernel.verdict(&frame, REROUTE);
    // The first is covered by its share: the kernel sends it at once, one hop further.
    assert_eq!(kernel.far.receive(ours).len(), frame.len());
    kernel.verdict(&frame, REROUTE);
    let (meta, left) = kernel.waiting();
    assert_eq!(left, frame, "as the kernel is to have it");
    assert_eq!((meta.egress_port, meta.flow_hash), (OUT_PORT, waiting::OWN));
    let flags = META_LEAVES | META_BY_KERNEL | META_COUNTED;
    assert_eq!(meta.flags & ((1 << META_EPOCH_SHIFT) - 1), flags);
    let (stats, port_share) = (kernel.stats(), kernel.port_share());
    assert_eq!((stats.to_kernel, stats.drop_share), (2, 0));
    assert_eq!((port_share.account.sent, port_share.up), ([0, frame.len() as u64], [1, 0]));
    assert!(kernel.far.is_silent(ours));
}

#[test]
fn a_cell_learns_the_egress_port_that_the_kernel_would_choose() {
    if !enter("a_cell_learns_the_egress_port_that_the_kernel_would_choose") {
        return;
    }
    let mut kernel = Kernel::load("tt-answers");
    kernel.door.answer_at(ifindex("above")).unwrap();
    kernel.door.set_kernel_device(ifindex("in"));
    let map = kernel.door.answers_map().as_fd().try_clone_to_owned().unwrap();
    let mut answers = Answers::from_fd(&map).unwrap();
    let mut ask = |kernel: &Kernel, frame: &[u8]| {
        let packet = &frame[14..];
        let request = answers.ask(None);
        assert_eq!(answers.answer(), None, "nobody has asked yet");
        let packet = &packet[..packet.len().min(QUESTION_PACKET)];
        kernel.up.send(&[&QUESTION_HEAD, packet, bytemuck::bytes_of(&request)].concat());
        answers.answer()
    };
    let long = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
    let long = addressed(long.payload(&[0; 1800]).build());
    for (frame, port) in [
        (to([203, 0, 113, 9], 64), Some(OUT_PORT)),
        (v6(), Some(OUT_PORT)),
        (to([198, 51, 100, 1], 64), None),
        (to([203, 0, 113, 9], 1), None),
        // The kernel may fragment it.
        (long, Some(OUT_PORT)),
        // Cut off.
        (to([203, 0, 113, 9], 64)[..20].to_vec(), None),
    ] {
        assert_eq!(ask(&kernel, &frame), port.map(PortId), "{frame:x?}");
    }
    // The next daemon finds it there.
    kernel.door.answer_at(ifindex("above")).unwrap();
    // By a device that is no port of the node, and tagged for VLAN 7 of a port.
    ip("link add other type veth peer name its-end");
    ip("link set other up");
    ip("link set its-end up");
    ip("address add 192.0.2.1/24 dev other");
    assert_eq!(ask(&kernel, &to([192, 0, 2, 9], 64)), None);
    let (port, device) = (ifindex("out"), ifindex("other"));
    let vlan = bpf::VlanDevice { port, vlan: 7, device, ..bpf::VlanDevice::default() };
    kernel.door.set_vlans(&[vlan]).unwrap();
    assert_eq!(ask(&kernel, &to([192, 0, 2, 9], 64)), Some(PortId(OUT_PORT)));
}
