//! Tests of frames that modules send round and round between cabled ports.

use bpf_maps::{CYCLE_ROUNDS, CYCLES_MAX, PORT_CABLED, PortConfig};
use std::time::Duration;
use units::PortId;
use wire::FrameBuilder;

use crate::harness::{MAC, OUT_PORT, PORT, XDP_DROP, XDP_REDIRECT, XDP_TX, addressed};
use crate::kernel_harness::{Kernel, MARK};
use crate::namespace::{OUT_MAC, OUT_MTU, add_way_out, enter, ifindex};
use crate::nic_harness::{Nic, Script};

const BOUNCE: u32 = 2;
const REDIRECT: u32 = 3 | (OUT_PORT as u32) << 16;
const ROUNDS: u64 = CYCLE_ROUNDS as u64;
/// Longer than a tick of the kernel's clock: the next heartbeat has another number.
const TICK: Duration = Duration::from_millis(20);

fn frame(sport: u16) -> Vec<u8> {
    let ip = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64);
    addressed(ip.udp(sport, 2).payload(&MARK).build())
}

fn cable(nic: &Nic, port: u16, is_cabled: bool) {
    let ports = nic.door.map("tam_ports");
    let mut config: PortConfig = ports.lookup(&u32::from(port)).unwrap().unwrap();
    config.flags = if is_cabled { PORT_CABLED } else { 0 };
    ports.update(&u32::from(port), &config, bpf::Update::Any).unwrap();
}

/// Counts how often the frame leaves before it is dropped.
fn rounds(nic: &mut Nic, frame: &[u8]) -> u64 {
    (0..1 << 20).take_while(|_| nic.door.run(frame).action != XDP_DROP).count() as u64
}

#[test]
fn a_looping_frame_is_dropped_at_nic_when_its_rounds_are_used_up() {
    if !enter("a_frame_that_comes_round_at_nic_is_dropped") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    let untouched = vec![0_u64; CYCLES_MAX];
    let counters = |nic: &Nic| -> Vec<u64> {
        let map = nic.door.map("tam_cycles");
        (0..CYCLES_MAX as u32).map(|at| map.lookup(&at).unwrap().unwrap()).collect()
    };
    // Between ports that are not cabled there is no cycle, and nothing is counted.
    for arrival in [false, true] {
        cable(&nic, PORT, arrival);
        assert_eq!(nic.verdict(&frame(1), REDIRECT).action, XDP_REDIRECT);
        assert!((0..4 * ROUNDS).all(|_| nic.door.run(&frame(1)).action == XDP_REDIRECT));
        assert!(counters(&nic) == untouched);
    }
    cable(&nic, OUT_PORT, true);
    std::thread::sleep(TICK);
    nic.door.heartbeat();
    assert_eq!(rounds(&mut nic, &frame(1)), ROUNDS);
    assert_eq!(nic.stats().drop_cycle, 1);
    assert_eq!(nic.door.run(&frame(1)).action, XDP_DROP, "and no round comes by itself");
    assert_eq!(nic.door.run(&frame(2)).action, XDP_REDIRECT, "another frame has its own");
    assert_eq!(counters(&nic).iter().filter(|counter| **counter != 0).count(), 2);

    // New frames add rounds, also those with the same contents.
    cable(&nic, PORT, false);
    assert!((0..3).all(|_| nic.door.run(&frame(1)).action == XDP_REDIRECT));
    cable(&nic, PORT, true);
    assert_eq!(rounds(&mut nic, &frame(1)), 3 * ROUNDS);

    std::thread::sleep(TICK);
    nic.door.heartbeat();
    assert_eq!(rounds(&mut nic, &frame(1)), ROUNDS, "with a heartbeat there are some again");
    // Shorter than the bytes that are hashed.
    assert_eq!(
        rounds(
            &mut nic,
            &addressed(FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).build())
        ),
        ROUNDS
    );
    assert_eq!((nic.stats().drop_cycle, nic.ended()), (5, nic.stats().packets));
}

#[test]
fn a_frame_bounced_back_and_forth_is_dropped() {
    if !enter("a_frame_bounced_back_and_forth_is_dropped") {
        return;
    }
    let mut nic = Nic::load(Some(add_way_out()));
    assert_eq!(nic.verdict(&frame(1), BOUNCE).action, XDP_TX);
    assert!((0..4 * ROUNDS).all(|_| nic.door.run(&frame(1)).action == XDP_TX));
    cable(&nic, PORT, true);
    std::thread::sleep(TICK);
    nic.door.heartbeat();
    assert_eq!(rounds(&mut nic, &frame(1)), ROUNDS);
    assert_eq!(nic.stats().drop_cycle, 1);
    assert_eq!(nic.ended(), nic.stats().packets);
}

#[test]
fn a_looping_frame_is_dropped_at_kernel_when_its_rounds_are_used_up() {
    if !enter("a_frame_that_comes_round_at_kernel_is_dropped") {
        return;
    }
    let kernel = Kernel::load("tt-tccycle");
    for (port, device, mac) in [(PORT, "in", MAC), (OUT_PORT, "out", OUT_MAC)] {
        let config = PortConfig {
            ifindex: ifindex(device),
            mac,
            mtu: OUT_MTU,
            flags: PORT_CABLED,
            ..PortConfig::default()
        };
        kernel.door.configure(PortId(port), &config).unwrap();
    }
    kernel.set_script(Script { verdict: REDIRECT, ..Script::default() });
    kernel.door.heartbeat().unwrap();
    for at in 1..=ROUNDS + 2 {
        kernel.near.send(&frame(1));
        kernel.ended(at);
    }
    kernel.near.send(&frame(2));
    let stats = kernel.ended(ROUNDS + 3);
    assert_eq!((stats.redirected, stats.drop_cycle), (ROUNDS + 1, 2));
}
