//! Tests of the front door at tc: it decides as the one in the driver, on buffers that the kernel
//! may have joined.

use std::net::{SocketAddr, TcpListener, TcpStream};

use bpf::{Object, Program, Update, objects};
use bpf_maps::{
    ACTION_DOWN, ACTION_DROP, ACTION_FORWARD, ACTION_INTERCEPT, ACTION_INTERCEPT_BACK,
    ACTION_INTERCEPT_CLOSED, ACTION_OUT, ACTION_SERVICE, ACTION_USER, Key, MARK_ENDED,
    MARK_LISTENER, Mask, OUTCOMES, OwnPrefix, PORT_TC, PortConfig, PortStats, Rule,
};
use bytemuck::{Pod, Zeroable};
use wire::FrameBuilder;
use wire::samples::{Mutations, samples};

use crate::harness::{FrontDoor, MAC, PORT, addressed};
use crate::intercept::{ACK, LISTENER, SYN, address, listeners, segment};
use crate::namespace::{LOOPBACK, enter};
use crate::parser::golden_packets;

/// Number of the port at tc; the harness has the one in the driver.
const AT_TC: u32 = 2;
/// `TC_ACT_UNSPEC` (on to the next program, and the stack) and `TC_ACT_SHOT`.
const ON: i32 = -1;
const SHOT: i32 = 2;
/// Number of mutated frames of a run.
const MUTATIONS: usize = 50_000;
/// Lengths of frames that a test run takes as a socket buffer, whatever they contain: there is
/// space for the header of IPv6, and they fit a page with the buffer's own space. Of shorter ones
/// it takes some.
const LENGTHS: std::ops::Range<usize> = 14 + 40..3_500;

/// `struct __sk_buff`, as a test run takes and returns it: the settable fields, by their offsets.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct SkBuff {
    before_mark: [u32; 2],
    mark: u32,
    after_mark: [u32; 32],
    before_segs: [u32; 6],
    gso_segs: u32,
    socket: [u32; 2],
    gso_size: u32,
    rest: [u32; 3],
}
const _: () = assert!(std::mem::offset_of!(SkBuff, gso_segs) == 164 && size_of::<SkBuff>() == 192);

/// Program at tc, with the maps of the one in the driver.
struct TcDoor {
    door: FrontDoor,
    program: Program,
    before: PortStats,
}

#[derive(Debug, PartialEq, Eq)]
struct Done {
    outcome: &'static str,
    action: i32,
    mark: u32,
    frames: u64,
    bytes: u64,
}

impl TcDoor {
    fn new(mut door: FrontDoor) -> Self {
        let port = PortConfig { ifindex: LOOPBACK, mac: MAC, mtu: 9000, ..Default::default() };
        let port = PortConfig { flags: PORT_TC, ..port };
        for number in [u32::from(PORT), AT_TC] {
            door.map("tam_ports").update(&number, &port, Update::Any).unwrap();
        }
        let mut object = Object::open(objects::TC_DOOR, "tc_door").unwrap();
        object.set_global("port_number", &AT_TC).unwrap();
        for name in door.map_names().filter(|name| !name.starts_with('.')) {
            if object.has_map(name) {
                object.reuse_map(name, &door.map(name)).unwrap();
            }
        }
        let program = object.load().unwrap().program("tam_tc_door").unwrap();
        door.activate(0);
        door.heartbeat();
        Self { door, program, before: PortStats::default() }
    }

    /// Runs a frame, or a buffer joined of `gso_segs` frames.
    fn run(&mut self, frame: &[u8], gso_segs: u32, gso_size: u32) -> Done {
        let context = SkBuff { gso_segs, gso_size, ..SkBuff::default() };
        let run = self.program.test_run(frame, Some(bytemuck::bytes_of(&context)), 1).unwrap();
        let stats: Vec<PortStats> =
            self.door.map("tam_stats").lookup_percpu(&AT_TC).unwrap().unwrap();
        let after = stats[rustix::thread::sched_getcpu()];
        let before = std::mem::replace(&mut self.before, after);
        let frames = after.rx_packets - before.rx_packets;
        let mut moved = (0..OUTCOMES.len()).filter(|&at| after.outcomes[at] != before.outcomes[at]);
        let at = moved.next().expect("every packet ends in one outcome");
        assert_eq!((after.outcomes[at], moved.next()), (before.outcomes[at] + frames, None));
        let context: SkBuff = bytemuck::pod_read_unaligned(&run.ctx_out.unwrap());
        Done {
            outcome: OUTCOMES[at].0,
            action: run.retval as i32,
            mark: context.mark,
            frames,
            bytes: after.rx_bytes - before.rx_bytes,
        }
    }

    /// Makes a door with one rule for all packets.
    fn with(action: u8) -> Self {
        let mut door = FrontDoor::load(None);
        let rule = Rule { rule: 3, session: 4, entry: LISTENER, action, ..Rule::default() };
        door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
        Self::new(door)
    }
}

#[test]
fn packets_from_the_routers_own_addresses_end_at_tc() {
    if !enter("packets_from_the_routers_own_addresses_end_at_tc") {
        return;
    }
    for (action, outcome) in [
        (ACTION_FORWARD, "drop_own_source"),
        (ACTION_INTERCEPT, "drop_own_source"),
        (ACTION_DROP, "drop_rule"),
    ] {
        let mut at_tc = TcDoor::with(action);
        let own = OwnPrefix { length: 32, address_be: [10, 0, 0, 1] };
        at_tc.door.map("tam_own").update(&own, &0u32, Update::Any).unwrap();
        let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2);
        let done = at_tc.run(&addressed(frame.build()), 2, 500);
        assert_eq!((done.outcome, done.action, done.frames), (outcome, SHOT, 2));
    }
}

#[test]
fn at_tc_frames_are_read_and_decided_as_in_the_driver() {
    if !enter("at_tc_frames_are_read_and_decided_as_in_the_driver") {
        return;
    }
    let mut compared = 0;
    for action in [None, Some(ACTION_DROP)] {
        let mut at_tc = match action {
            None => TcDoor::new(FrontDoor::load(None)),
            Some(action) => TcDoor::with(action),
        };
        let frames = samples().into_iter().map(|sample| sample.frame).chain(golden_packets());
        for frame in frames.chain(Mutations::new(2).take(MUTATIONS)).map(addressed) {
            if !LENGTHS.contains(&frame.len()) {
                continue;
            }
            let (here, there) = (at_tc.run(&frame, 0, 0), at_tc.door.run(&frame));
            let text = || format!("{frame:02x?}");
            assert_eq!(here.outcome, there.outcome, "{}", text());
            assert_eq!((here.frames, here.bytes), (1, there.counted), "{}", text());
            let dropped = there.outcome.starts_with("drop_");
            assert_eq!(
                (here.action, here.mark),
                if dropped { (SHOT, MARK_ENDED) } else { (ON, 0) },
                "{}",
                text()
            );
            compared += 1;
        }
    }
    // Mutations cut many off.
    assert!(compared > MUTATIONS, "{compared}");
}

#[test]
fn at_tc_rules_that_need_the_driver_forward_plainly_and_those_of_down_services_drop() {
    if !enter("at_tc_rules_that_need_the_driver_forward_plainly_and_those_of_down_services_drop") {
        return;
    }
    let frame = segment(address("192.0.2.7:40000"), address("203.0.113.9:80"), SYN);
    for (action, outcome, answer) in [
        (ACTION_USER, "kernel_no_socket", ON),
        (ACTION_SERVICE, "kernel_no_socket", ON),
        (ACTION_OUT, "kernel_no_socket", ON),
        (ACTION_DOWN, "drop_down", SHOT),
        (ACTION_DROP, "drop_rule", SHOT),
        // There is no listener.
        (ACTION_INTERCEPT, "kernel_slow", ON),
        (ACTION_INTERCEPT_CLOSED, "drop_down", SHOT),
    ] {
        let done = TcDoor::with(action).run(&frame, 0, 0);
        // Marked, so that it is not taken for a drop of the kernel.
        let mark = if answer == SHOT { MARK_ENDED } else { 0 };
        assert_eq!((done.outcome, done.action, done.mark), (outcome, answer, mark));
    }
}

#[test]
fn connections_get_the_mark_of_their_listener() {
    if !enter("connections_get_the_mark_of_their_listener") {
        return;
    }
    let mark = MARK_LISTENER | u32::from(LISTENER);
    let (client, server) = (address("[2001:db8:1::7]:40000"), address("[2001:db8:2::9]:80"));
    let _listen = listeners();
    let mut there = TcDoor::with(ACTION_INTERCEPT);
    let mut back = TcDoor::with(ACTION_INTERCEPT_BACK);
    let seen = |done: Done| (done.outcome, done.action, done.mark);
    let (intercepted, plainly) = (("intercepted", ON, mark), ("kernel_slow", ON, 0));
    assert_eq!(seen(there.run(&segment(client, server, SYN), 0, 0)), intercepted);
    for flags in [ACK, SYN | ACK] {
        assert_eq!(seen(there.run(&segment(client, server, flags), 0, 0)), plainly);
    }
    assert_eq!(seen(back.run(&segment(server, client, SYN), 0, 0)), plainly);
    for here in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(here.parse::<SocketAddr>().unwrap()).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        for door in [&mut there, &mut back] {
            assert_eq!(seen(door.run(&segment(own, other, ACK), 0, 0)), intercepted, "{own}");
            assert_eq!(seen(door.run(&segment(other, own, ACK), 0, 0)), intercepted, "{own}");
        }
    }
}

#[test]
fn segments_joined_by_the_kernel_are_counted_as_their_original_frames() {
    if !enter("segments_joined_by_the_kernel_are_counted_as_their_original_frames") {
        return;
    }
    let _listen = listeners();
    let mut door = TcDoor::with(ACTION_INTERCEPT);
    let (client, server) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let built = |bytes: usize| {
        let builder = FrameBuilder::new().ipv4(client, server, 64).tcp(1, 2, SYN);
        addressed(builder.payload(&vec![7; bytes]).build())
    };
    // 1448 bytes each, but for the last; each had Ethernet, IPv4 and TCP in front.
    let joined = built(2 * 1448 + 100);
    let done = door.run(&joined, 3, 1448);
    assert_eq!((done.outcome, done.frames), ("intercepted", 3));
    let alone: u64 = [1448, 1448, 100].map(|bytes| built(bytes).len() as u64).iter().sum();
    assert_eq!(done.bytes, alone);
    let of_rule = door.door.rule_stats(3);
    assert_eq!((of_rule.packets, of_rule.bytes), (3, alone));
    // From the cache the same.
    let again = door.run(&joined, 3, 1448);
    assert_eq!((again.frames, again.bytes), (3, alone));
    // Longer than an IPv4 length field: it is 0, and only the kernel knows the length.
    let mut longer = joined.clone();
    longer[16..18].fill(0);
    let done = door.run(&longer, 3, 1448);
    assert_eq!((done.outcome, done.action), ("kernel_other", ON));
    assert_eq!(door.run(&longer, 0, 0).outcome, "drop_total_length");
}
