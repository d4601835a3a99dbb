//! Tests of frames that a cell leaves to the kernel: their arrival port's device receives them
//! unchanged, and no program of the node meets them again.

use bpf::Answers;
use bpf::front_door::Arrival;
use bpf_maps::{PORT_GENERIC, PORT_PACKET, PORT_TC, PortConfig};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use units::PortId;
use wire::{FrameBuilder, VlanTag, protocol};

use crate::harness::{PORT, addressed};
use crate::kernel_harness::{Kernel, MARK, ours};
use crate::namespace::{enter, ifindex, ip};
use crate::wire_end::WireEnd;

/// Longest wait for counters.
const PATIENCE: Duration = Duration::from_secs(5);
const ECHO_REPLY_V6: u8 = 129;

/// Node whose cell's requests are served.
struct Asked {
    kernel: Kernel,
    answers: Answers,
}

impl Asked {
    fn load(node: &str) -> Self {
        let kernel = Kernel::load(node);
        kernel.door.answer_at(ifindex("above")).unwrap();
        let map = kernel.door.answers_map().as_fd().try_clone_to_owned().unwrap();
        Self { answers: Answers::from_fd(&map).unwrap(), kernel }
    }

    /// Leaves a frame to the kernel by a port; returns whether it was taken.
    fn arrives_by(&mut self, port: u16, frame: &[u8]) -> bool {
        let request = self.answers.arrive(PortId(port));
        self.kernel.up.send(&[frame, bytemuck::bytes_of(&request)].concat());
        let answer = self.answers.answer();
        assert!(answer.is_none_or(|answer| answer == PortId(port)), "{answer:?}");
        answer.is_some()
    }

    /// Waits until the kernel has dropped that many frames that arrived by the port.
    fn dropped(&self, frames: u64) -> BTreeMap<String, u64> {
        let reasons = || self.kernel.door.stack_drops(Arrival::Port(PortId(PORT))).unwrap().reasons;
        testbase::wait_for(PATIENCE, || {
            let reasons = reasons();
            (reasons.values().sum::<u64>() >= frames).then_some(reasons)
        })
        .unwrap_or_else(|| panic!("{frames} frames, not {:?}", reasons()))
    }
}

fn to_server() -> FrameBuilder {
    FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).payload(&MARK)
}

/// Tests a frame whose headers claim to reach over the request: the kernel removes no bytes there
/// (`__bpf_skb_min_len`, net/core/filter.c), so the request stays, and the cell learns that it was
/// not taken.
#[test]
fn a_frame_whose_inner_header_claims_more_than_is_there_is_not_received() {
    if !enter("a_frame_whose_inner_header_claims_more_than_is_there_is_not_received") {
        return;
    }
    let mut asked = Asked::load("tt-arrive-short");
    let device = WireEnd::of_device("in");
    let mut inner = [0; 20];
    inner[0] = 0x4f; // 60 bytes of header, of which 20 are there
    let ip = || FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64);
    let within = addressed(ip().protocol(4).payload(&inner).build());
    assert!(!asked.arrives_by(PORT, &within));
    let plain = addressed(to_server().build());
    assert!(asked.arrives_by(PORT, &plain));
    assert_eq!(device.receive(|frame| frame[12..14] == [8, 0]), plain, "the first that came");
}

#[test]
fn an_injected_frame_arrives_whole_at_its_ports_device_and_skips_the_nodes_programs() {
    if !enter("an_injected_frame_arrives_whole_at_its_ports_device_and_skips_the_nodes_programs") {
        return;
    }
    let mut asked = Asked::load("tt-arrive");
    let device = WireEnd::of_device("in");
    let outer = VlanTag { protocol: protocol::ETHERTYPE_SERVICE_VLAN, id: 5, ..VlanTag::default() };
    let mut lldp = addressed(to_server().build());
    lldp[12..14].copy_from_slice(&0x88cc_u16.to_be_bytes());
    let long = to_server().payload(&MARK.repeat(180)).build();
    for frame in [
        to_server().build(),
        FrameBuilder::new()
            .vlan(7)
            .ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64)
            .udp(1, 2)
            .payload(&MARK)
            .build(),
        FrameBuilder::new()
            .vlan_tag(outer)
            .vlan(6)
            .ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64)
            .udp(1, 2)
            .payload(&MARK)
            .build(),
        lldp,
        // The kernel reads behind its headers: not the bytes of the request.
        long,
    ]
    .map(addressed)
    {
        assert!(asked.arrives_by(PORT, &frame));
        assert_eq!(device.receive(ours), frame);
    }
    let stats = asked.kernel.door.port_stats(PortId(PORT)).unwrap();
    assert_eq!((stats.rx_packets, asked.kernel.stats().packets), (0, 0));
    // The first and the last had a route.
    assert!(ours(&asked.kernel.far.receive(ours)) && ours(&asked.kernel.far.receive(ours)));
    assert!(asked.kernel.far.is_silent(ours));
}

#[test]
fn an_injected_frame_for_a_vlan_that_its_port_lacks_is_dropped_and_counted_once() {
    if !enter("an_injected_frame_for_a_vlan_that_its_port_lacks_is_dropped_and_counted_once") {
        return;
    }
    let mut asked = Asked::load("tt-arrivevlan");
    asked.kernel.door.count_stack_drops().unwrap();
    let tagged = FrameBuilder::new().vlan(8).ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64);
    assert!(asked.arrives_by(PORT, &addressed(tagged.udp(1, 2).payload(&MARK).build())));
    let dropped = asked.dropped(1);
    assert_eq!(dropped.values().sum::<u64>(), 1, "{dropped:?}");
    assert!(asked.kernel.far.is_silent(ours));
}

#[test]
fn the_kernel_judges_injected_frames_by_their_ports_device() {
    if !enter("the_kernel_judges_injected_frames_by_their_ports_device") {
        return;
    }
    let mut asked = Asked::load("tt-arriveby");
    asked.kernel.door.count_stack_drops().unwrap();
    ip("address add 10.0.0.254/24 dev in");
    ip("address add 2001:db8:5::fe/64 dev in nodad");
    ip("neigh add 2001:db8:5::1 lladdr 02:00:00:00:bb:02 dev in nud permanent");
    // The kernel joins the anycast address of a network in its own time.
    let joined = || std::fs::read_to_string("/proc/thread-self/net/anycast6").unwrap();
    let is_joined = || joined().contains("20010db8000500000000000000000000");
    let deadline = Instant::now() + PATIENCE;
    while !is_joined() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_joined(), "{}", joined());
    // RFC 4291 section 2.6.1: of this port's network.
    let client = [0x2001, 0xdb8, 5, 0, 0, 0, 0, 1];
    let anycast = [0x2001, 0xdb8, 5, 0, 0, 0, 0, 0];
    let echo = FrameBuilder::new().ipv6(client, anycast, 64).icmp_echo(1, 1).payload(&MARK);
    assert!(asked.arrives_by(PORT, &addressed(echo.build())));
    assert_eq!(asked.kernel.near.receive(ours)[54], ECHO_REPLY_V6);
    // The reverse path of this source leads elsewhere.
    std::fs::write("/proc/sys/net/ipv4/conf/in/rp_filter", "1").unwrap();
    let forged = FrameBuilder::new().ipv4([192, 0, 2, 9], [203, 0, 113, 9], 64).udp(1, 2);
    let forged = addressed(forged.payload(&MARK).build());
    assert!(asked.arrives_by(PORT, &addressed(to_server().build())));
    asked.kernel.far.receive(ours);
    assert!(asked.arrives_by(PORT, &forged));
    assert_eq!(asked.dropped(1), BTreeMap::from([("ip_rpfilter".to_owned(), 1)]));
    assert!(asked.kernel.far.is_silent(ours));
}

#[test]
fn no_frame_is_injected_at_an_unknown_port_or_where_the_node_would_handle_it_again() {
    if !enter("no_frame_is_injected_at_an_unknown_port_or_where_the_node_would_handle_it_again") {
        return;
    }
    let mut asked = Asked::load("tt-arrivenot");
    let device = WireEnd::of_device("in");
    let frame = addressed(to_server().build());
    for flags in [PORT_GENERIC, PORT_TC, PORT_PACKET] {
        let config = asked.kernel.door.port_config(PortId(PORT)).unwrap();
        asked.kernel.door.configure(PortId(PORT), &PortConfig { flags, ..config }).unwrap();
        assert!(!asked.arrives_by(PORT, &frame));
    }
    assert!(!asked.arrives_by(PORT + 40, &frame) && !asked.arrives_by(u16::MAX, &frame));
    // A frame without a request is no query.
    asked.kernel.up.send(&frame);
    assert!(device.is_silent(ours) && asked.kernel.far.is_silent(ours));
}
