//! Tests of drops by the kernel's stack of packets that the node has left to it: real frames, which
//! the kernel drops for its own reasons, and one count each, by arrival.

use bpf::front_door::capture::{CapturedFrame, TapRing, TapSpec};
use bpf::front_door::{Arrival, StackDrops};
use bpf_maps::{CAPTURED_NO_PORT, WAY_STACK_DROPPED};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use units::PortId;
use wire::{FrameBuilder, protocol};

use crate::harness::{PORT, addressed};
use crate::kernel_harness::Kernel;
use crate::namespace::{enter, ifindex, ip};
use crate::nic_harness::Script;
use crate::wire_end::WireEnd;

const DROP: u32 = 1;
const REROUTE: u32 = 0x100;
/// Longest wait for counters.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns a packet from an address of this machine, which the kernel accepts from nobody (RFC
/// 1812, 5.3.8).
fn martian() -> Vec<u8> {
    addressed(FrameBuilder::new().ipv4([198, 51, 100, 1], [203, 0, 113, 9], 64).udp(1, 2).build())
}

/// Returns an LLDP frame (IEEE 802.1AB), which has no listener here.
fn lldp() -> Vec<u8> {
    let mut frame = addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).build());
    frame[12..14].copy_from_slice(&0x88cc_u16.to_be_bytes());
    frame
}

fn counted(reasons: &[(&str, u64)]) -> BTreeMap<String, u64> {
    reasons.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Waits until that many frames of an arrival have been dropped.
fn dropped(kernel: &Kernel, arrival: Arrival, frames: u64) -> StackDrops {
    let begun = Instant::now();
    loop {
        let drops = kernel.door.stack_drops(arrival).unwrap();
        if drops.reasons.values().sum::<u64>() >= frames || begun.elapsed() > PATIENCE {
            return drops;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

const AT_PORT: Arrival = Arrival::Port(PortId(PORT));

#[test]
fn a_kernel_drop_is_counted_once_by_its_reason_and_arrival_port() {
    if !enter("a_kernel_drop_is_counted_once_by_its_reason_and_arrival_port") {
        return;
    }
    let mut kernel = Kernel::load("tt-stack");
    kernel.door.count_stack_drops().unwrap();
    kernel.door.set_kernel_device(ifindex("above"));
    // Dropped by the module at tc: its own count, and not the kernel's.
    kernel.verdict(&martian(), DROP);
    kernel.verdict(&martian(), REROUTE);
    kernel.verdict(&martian(), REROUTE);
    kernel.near.send(&lldp());
    let expected = counted(&[("ip_local_source", 2), ("unhandled_proto", 1)]);
    let at_port = dropped(&kernel, AT_PORT, 3);
    assert_eq!((at_port.reasons, at_port.device), (expected, 1), "the device counts LLDP, too");
    let device = std::fs::read_to_string("/sys/class/net/in/statistics/rx_dropped");
    if let Ok(device) = device.as_deref().map(str::trim) {
        assert_eq!(device, "1");
    }
    // To another MAC: packets that the cell gives to the kernel end there.
    kernel.up.send(&martian());
    let own = dropped(&kernel, Arrival::Own, 1);
    assert_eq!((own.reasons, own.device), (counted(&[("otherhost", 1)]), 0));
}

/// Returns a report of MLDv2 (RFC 9777), which every host of a link sends and which has no listener
/// here.
fn report() -> Vec<u8> {
    FrameBuilder::new()
        .ethernet([2, 0, 0, 0, 0, 9], [0x33, 0x33, 0, 0, 0, 0x16])
        .ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 9], [0xff02, 0, 0, 0, 0, 0, 0, 0x16], 1)
        .protocol(protocol::ICMPV6)
        .payload(&[143, 0, 0, 0, 0, 0, 0, 0])
        .build()
}

#[test]
fn ipv6_multicast_that_nobody_listens_to_is_no_drop() {
    if !enter("ipv6_multicast_that_nobody_listens_to_is_no_drop") {
        return;
    }
    let mut kernel = Kernel::load("tt-stack-multicast");
    kernel.door.count_stack_drops().unwrap();
    for _ in 0..3 {
        kernel.near.send(&report());
    }
    kernel.near.send(&lldp());
    assert_eq!(dropped(&kernel, AT_PORT, 1).reasons, counted(&[("unhandled_proto", 1)]));
}

#[test]
fn an_answer_to_ping_that_only_its_raw_socket_wants_is_no_drop() {
    if !enter("an_answer_to_ping_that_only_its_raw_socket_wants_is_no_drop") {
        return;
    }
    let mut kernel = Kernel::load("tt-stack-ping");
    ip("addr add 10.66.0.1/24 dev in");
    ip("addr add fd66::1/64 dev in nodad");
    kernel.door.count_stack_drops().unwrap();
    let v4 = || FrameBuilder::new().ipv4([10, 66, 0, 2], [10, 66, 0, 1], 64);
    let fd66 = |last| std::net::Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, last);
    let v6 = || FrameBuilder::new().ipv6(fd66(2), fd66(1), 64);
    // Replies without a receiver, and a datagram to a port without a listener.
    for packet in [v4().icmp_echo_reply(1, 6), v6().icmp_echo_reply(1, 6), v4().udp(7, 7000)] {
        kernel.verdict(&addressed(packet.build()), REROUTE);
    }
    assert_eq!(dropped(&kernel, AT_PORT, 1).reasons, counted(&[("no_socket", 1)]));
}

#[test]
fn what_another_network_namespace_drops_is_not_counted() {
    if !enter("what_another_network_namespace_drops_is_not_counted") {
        return;
    }
    let mut kernel = Kernel::load("tt-stack-ns");
    kernel.door.count_stack_drops().unwrap();
    let same = ifindex("in");
    std::thread::spawn(move || {
        assert!(enter("another network namespace"));
        ip(&format!("link add in index {same} type veth peer name near"));
        ip("link set near up");
        ip("link set in up");
        WireEnd::of_device("near").send(&lldp());
        let end = Instant::now() + PATIENCE;
        let counted = "/proc/thread-self/net/dev";
        let is_there = |text: String| {
            let line = text.lines().find(|line| line.trim_start().starts_with("in:"));
            let fields: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
            fields.get(4).is_some_and(|dropped| *dropped != "0")
        };
        while !is_there(std::fs::read_to_string(counted).unwrap()) {
            assert!(Instant::now() < end, "the other namespace has dropped nothing");
        }
    })
    .join()
    .unwrap();
    kernel.verdict(&martian(), REROUTE);
    let drops = dropped(&kernel, AT_PORT, 1);
    assert_eq!((drops.reasons, drops.device), (counted(&[("ip_local_source", 1)]), 0));
}

#[test]
fn the_next_daemon_continues_the_counts_of_kernel_drops() {
    if !enter("the_next_daemon_continues_the_counts_of_kernel_drops") {
        return;
    }
    let mut kernel = Kernel::load("tt-stack-next");
    kernel.door.count_stack_drops().unwrap();
    kernel.verdict(&martian(), REROUTE);
    assert_eq!(dropped(&kernel, AT_PORT, 1).reasons.len(), 1);
    kernel.adopt();
    kernel.verdict(&martian(), REROUTE);
    let drops = dropped(&kernel, AT_PORT, 2);
    assert_eq!(drops.reasons, counted(&[("ip_local_source", 2)]));
}

#[test]
fn a_capture_has_the_bytes_and_the_reason_of_kernel_drops() {
    if !enter("a_capture_has_the_bytes_and_the_reason_of_kernel_drops") {
        return;
    }
    let mut kernel = Kernel::load("tt-stack-tap");
    let spec = TapSpec { snap: 2048, arriving: true, leaving: false, dropped_only: true };
    let mut ring = TapRing::new(1 << 16).unwrap();
    let wanted = [AT_PORT, Arrival::Own];
    let untapped = kernel.door.tap_stack(&wanted, &spec, &ring).unwrap();
    assert!(untapped.is_none(), "nothing is counted yet");
    kernel.door.count_stack_drops().unwrap();
    kernel.door.set_kernel_device(ifindex("above"));
    let tap = kernel.door.tap_stack(&wanted, &spec, &ring).unwrap().unwrap();
    kernel.set_script(Script { verdict: REROUTE, ..Script::default() });
    let mut next = |frame: &[u8], from: &WireEnd| -> CapturedFrame {
        from.send(frame);
        let end = Instant::now() + PATIENCE;
        loop {
            match ring.take().unwrap() {
                Some(tapped) => return tapped,
                None => assert!(Instant::now() < end, "nothing was tapped"),
            }
        }
    };
    let at_port = next(&martian(), &kernel.near);
    assert_eq!(
        (at_port.way, at_port.port, at_port.is_bare),
        (WAY_STACK_DROPPED, PortId(PORT), false)
    );
    assert_eq!(kernel.door.stack_reason(at_port.stack_reason), "ip_local_source");
    assert_eq!((at_port.bytes, at_port.length), (martian(), martian().len() as u32));
    let own = next(&martian(), &kernel.up);
    assert_eq!((own.port.0, own.bytes), (CAPTURED_NO_PORT, martian()));
    assert_eq!(kernel.door.stack_reason(own.stack_reason), "otherhost");
    assert_eq!(tap.lost(), 0);
}
