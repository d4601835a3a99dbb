//! Tests of packets of a flow while their lane moves through the levels: none is lost, duplicated
//! or overtaken.

use bpf::{Below, Departures};
use bpf_maps::{LEVEL_KERNEL, LEVEL_NIC, LEVEL_USER, PacketMeta};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use units::PortId;
use wire::{FrameBuilder, rewrite};

use crate::harness::{PORT, addressed};
use crate::kernel_harness::{Kernel, MARK, ours};
use crate::namespace::{NEXT_HOP, OUT_MAC, enter, ifindex};
use crate::nic_harness::Script;
use crate::wire_end::WireEnd;
use crate::xsk::Receiver;

const PACKETS: u32 = 30_000;
/// Most packets under way: less than any queue holds.
const WINDOW: u32 = 128;
const PATIENCE: Duration = Duration::from_secs(60);
const RAISE: u32 = 4;

fn frame(number: u32) -> Vec<u8> {
    let payload = [&MARK[..], &number.to_be_bytes()].concat();
    let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
    addressed(frame.payload(&payload).build())
}

fn number_of(frame: &[u8]) -> u32 {
    let at = frame.windows(MARK.len()).position(|window| window == MARK).unwrap() + MARK.len();
    u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

/// Lets the thread run on any CPU: the test's thread is pinned to one.
fn go_anywhere() {
    let mut cpus = rustix::thread::CpuSet::new();
    (0..bpf::possible_cpus()).for_each(|cpu| cpus.set(cpu));
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

/// Plays the cell: forwards packets that come up by the socket or the TAP device, and then counts
/// them.
fn serve(kernel: &Kernel, receiver: &Receiver, out: &WireEnd, departures: &mut Departures) -> bool {
    let from_tap = || {
        let bytes = std::iter::from_fn(|| kernel.up.receive_now()).find(|bytes| ours(bytes))?;
        let (meta, frame) = bytes.split_at(size_of::<PacketMeta>());
        Some((bytemuck::pod_read_unaligned::<PacketMeta>(meta), frame.to_vec()))
    };
    let Some((meta, mut frame)) = receiver.receive_now().or_else(from_tap) else { return false };
    rewrite::route(&mut frame, meta.l3_offset, OUT_MAC, NEXT_HOP).unwrap();
    out.send(&frame);
    departures.leave(meta.epoch());
    departures.depart(&kernel.lane());
    true
}

#[test]
fn a_flow_keeps_its_order_while_its_lane_goes_round_the_levels() {
    if !enter("a_flow_keeps_its_order_while_its_lane_goes_round_the_levels") {
        return;
    }
    let kernel = Kernel::load("tt-tcorder");
    kernel.add_tap();
    kernel.set_module(Below::Nic, "scripted");
    kernel.lane().set_target(LEVEL_USER);
    kernel.door.heartbeat().unwrap();
    let receiver = Receiver::bind(ifindex("in"));
    kernel.door.set_socket(PortId(PORT), 0, Some(std::os::fd::AsFd::as_fd(&receiver))).unwrap();
    let mut departures = Departures::new(&kernel.lane());
    departures.settle(&kernel.lane());
    let out = WireEnd::of_device("out");
    let (near, far) = (&kernel.near, &kernel.far);
    let (arrived, done) = (&AtomicU32::new(0), &AtomicBool::new(false));
    let end = Instant::now() + PATIENCE;
    let numbers = std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..PACKETS {
                while number - arrived.load(Ordering::Acquire) >= WINDOW
                    && !done.load(Ordering::Acquire)
                {
                    std::thread::yield_now();
                }
                near.send(&frame(number));
            }
        });
        let collector = scope.spawn(move || {
            go_anywhere();
            let mut numbers = Vec::new();
            while numbers.len() < PACKETS as usize && Instant::now() < end {
                match far.receive_now() {
                    Some(frame) if ours(&frame) => numbers.push(number_of(&frame)),
                    Some(_) => {}
                    None => std::thread::yield_now(),
                }
                arrived.store(numbers.len() as u32, Ordering::Release);
            }
            done.store(true, Ordering::Release);
            numbers
        });
        let mover = scope.spawn(|| {
            go_anywhere();
            let mut turns = 0;
            while !done.load(Ordering::Acquire) {
                let target = [LEVEL_NIC, LEVEL_KERNEL, LEVEL_USER, LEVEL_KERNEL][turns % 4];
                kernel.lane().set_target(target);
                // Sometimes the module raises.
                let verdict = if turns % 5 == 0 { RAISE } else { 0 };
                kernel.set_script(Script { verdict, ..Script::default() });
                kernel.door.heartbeat().unwrap();
                turns += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            turns
        });
        while !done.load(Ordering::Acquire) {
            if !serve(&kernel, &receiver, &out, &mut departures) {
                std::thread::yield_now();
            }
        }
        assert!(mover.join().unwrap() > 8, "it went round more than twice");
        collector.join().unwrap()
    });
    let misplaced = numbers.iter().zip(0..).find(|&(&number, expected)| number != expected);
    assert_eq!(misplaced, None, "(arrived, expected)");
    assert_eq!(numbers.len(), PACKETS as usize, "all arrive");
    let ways = ["to_nic", "to_kernel_module", "to_user"].map(|name| kernel.outcome(name));
    assert_eq!(ways.iter().sum::<u64>(), u64::from(PACKETS));
    assert!(ways.iter().all(|&packets| packets > 0), "{ways:?}");
    let stats = kernel.stats();
    assert_eq!(stats.packets, ways[0] + ways[1]);
    assert_eq!((stats.forwarded + stats.raised, stats.plain), (stats.packets, 0));
    assert_eq!(kernel.lane().sent_up(), ways[2] + stats.raised);
}
