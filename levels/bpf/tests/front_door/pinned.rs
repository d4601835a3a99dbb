//! Tests of the front door of a node as the daemon uses it: on a device, with pins, and a service
//! whose module runs on frames that really arrive.

use bpf::front_door::capture::{TapRing, TapSpec};
use bpf::{Arena, Below, Block, FrontDoor, Map, MapSpec, Object, VlanDevice, XdpMode, objects};
use bpf_maps::{ACTION_SERVICE, HASH_KEYS, Key, LEVEL_NIC, Mask, PortConfig, Rule, ServiceStats};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use units::{EntryId, Name, PortId};
use wire::FrameBuilder;

use crate::namespace::{OUT_MAC, add_way_out, enter, ifindex};
use crate::nic_harness::HAND_OVERS;

const ENTRY: EntryId = EntryId(2);
const FRAMES: u32 = 500;

/// Sends frames to `out`, from the other end of its pair.
fn send(frame: &[u8], count: u32) {
    // SAFETY: it makes a descriptor and takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: ifindex("far") as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    for _ in 0..count {
        // SAFETY: frame and address live across the call and are as long as said.
        let sent = unsafe {
            libc::sendto(
                fd,
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const address).cast(),
                size_of_val(&address) as u32,
            )
        };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
    // SAFETY: ours, and not used again.
    unsafe { libc::close(fd) };
}

#[test]
fn a_module_runs_on_frames_that_arrive() {
    if !enter("a_module_runs_on_frames_that_arrive") {
        return;
    }
    let out = add_way_out();
    let node: Name = "tt-nicdoor".parse().unwrap();
    let mut door = FrontDoor::create(&node, crate::harness::HASH_KEYS, 1000).unwrap();
    let config = PortConfig { ifindex: out, mac: OUT_MAC, mtu: 1500, ..PortConfig::default() };
    door.attach(PortId(0), &config, XdpMode::Native).unwrap();
    let rule = Rule { entry: ENTRY.0, action: ACTION_SERVICE, ..Rule::default() };
    door.install_rules(&[Mask::default()], &[(Key::default(), rule)], &[]).unwrap();
    let mut modules = Object::open(objects::bench::SERVICE_MODULES, "modules").unwrap();
    modules.reuse_map(HAND_OVERS, door.services().hand_overs_map()).unwrap();
    modules.set_global("own_entry", &u32::from(ENTRY.0)).unwrap();
    modules.reuse_map("tam_after", door.services().after_map(Below::Nic)).unwrap();
    let modules = modules.load().unwrap();
    door.services()
        .set_module(Below::Nic, 0, modules.program("dropping").unwrap().as_fd())
        .unwrap();
    let lane = door.lanes().lane(ENTRY).unwrap();
    lane.set_program(0, 64);
    lane.set_target(LEVEL_NIC);

    let frame = FrameBuilder::new().ethernet([2, 0, 0, 0, 9, 9], OUT_MAC);
    let frame = frame.ipv4([10, 0, 0, 1], [203, 0, 113, 9], 64).udp(1, 2).payload(&[1; 80]);
    let mut frame = frame.build();
    frame[..6].copy_from_slice(&OUT_MAC);
    send(&frame, FRAMES);
    let arrived = || {
        let stats = door.services().service_stats(ENTRY).unwrap();
        (stats.packets >= u64::from(FRAMES)).then_some(stats)
    };
    let stats = testbase::wait_for(Duration::from_secs(5), arrived).expect("all arrive");
    assert_eq!((stats.packets, stats.drop_module), (FRAMES.into(), FRAMES.into()));
    assert_eq!(stats.bytes, u64::from(FRAMES) * frame.len() as u64);
    assert_eq!(door.services().drop_reasons(ENTRY).unwrap(), [(0, u64::from(FRAMES))].into());
    assert_eq!(door.services().drop_reasons(EntryId(3)).unwrap().len(), 0);
    door.services().clear_module(Below::Nic, 0).unwrap();
    door.services().clear_entry(ENTRY).unwrap();
    assert_eq!(door.services().service_stats(ENTRY).unwrap(), ServiceStats::default());
    assert_eq!((lane.target(), door.services().drop_reasons(ENTRY).unwrap().len()), (0, 0));

    drop(door);
    let folder = Path::new(bpf::front_door::PIN_DIRECTORY).join("tt-nicdoor");
    assert!(folder.join("tam_lanes").exists() && folder.join("tam_modules").exists());
    bpf::front_door::remove(&node).unwrap();
    assert!(!folder.exists());
}

#[test]
fn the_next_daemon_adopts_the_pinned_front_door() {
    if !enter("the_next_daemon_adopts_the_pinned_front_door") {
        return;
    }
    let out = add_way_out();
    let node: Name = "tt-adopted".parse().unwrap();
    let port = PortId(0);
    let nothing = FrontDoor::adopt(&node, &[port]).unwrap_err().to_string();
    assert!(nothing.contains("nothing is pinned at"), "{nothing}");

    let mut door = FrontDoor::create(&node, [7; HASH_KEYS], 0).unwrap();
    let config = PortConfig { ifindex: out, mac: OUT_MAC, mtu: 1500, ..PortConfig::default() };
    door.attach(port, &config, XdpMode::Native).unwrap();
    let vlan = VlanDevice { port: out, vlan: 7, device: 99, ..VlanDevice::default() };
    door.set_vlans(&[vlan]).unwrap();
    let rule = Rule { entry: ENTRY.0, action: ACTION_SERVICE, ..Rule::default() };
    door.install_rules(&[Mask::default()], &[(Key::default(), rule)], &[]).unwrap();
    let address = 0x1000_0000_0000;
    let arena = Arena::create("memory", 3, address).unwrap();
    let block = Block::create("block", 64).unwrap();
    block.u64(8).unwrap().store(77, std::sync::atomic::Ordering::Release);
    let events = Map::create("events", &MapSpec::ring_buffer(4096)).unwrap();
    door.pins().keep_service(ENTRY, &arena, &block, &events).unwrap();
    let modules = Object::open(objects::bench::SERVICE_MODULES, "modules").unwrap();
    let program = modules.load().unwrap().program("dropping").unwrap();
    // The second replaces the first.
    door.pins().keep_module(Below::Nic, ENTRY, &program).unwrap();
    door.pins().keep_module(Below::Nic, ENTRY, &program).unwrap();
    door.lanes().lane(ENTRY).unwrap().set_target(LEVEL_NIC);
    let (generation, id) = (door.generation(), program.id());
    // The daemon dies during a capture: the taps are not removed.
    let ring = TapRing::new(4096).unwrap();
    let spec = TapSpec { snap: 64, arriving: true, leaving: false, dropped_only: false };
    let plain = door.program_on(port);
    let tap = door.tap(port, out, &spec, &ring).unwrap();
    assert_ne!(door.program_on(port), plain);
    drop((door, arena, block, events, program));

    let mut door = FrontDoor::adopt(&node, &[port]).unwrap();
    assert_eq!((door.generation(), door.device_of(port)), (generation, Some(out)));
    assert_eq!(door.program_on(port), plain, "the taps are off");
    drop(tap);
    assert_eq!(door.lanes().lane(ENTRY).unwrap().target(), LEVEL_NIC);
    assert_eq!(door.pins().kept_entries().unwrap(), [ENTRY].into());
    let maps = door.pins().kept_service(ENTRY).unwrap().unwrap();
    assert_eq!((maps.arena.pages(), maps.arena.address()), (3, address));
    assert_eq!(maps.block.u64(8).unwrap().load(std::sync::atomic::Ordering::Acquire), 77);
    assert_eq!(maps.events.info().max_entries, 4096);
    assert_eq!(door.pins().kept_module(Below::Nic, ENTRY).unwrap().unwrap().id(), id);
    assert!(door.pins().kept_module(Below::Kernel, ENTRY).unwrap().is_none());
    assert!(door.pins().kept_service(EntryId(3)).unwrap().is_none());
    // It knows the rule that it did not install: two more rule sets are without it.
    door.install_rules(&[], &[], &[]).unwrap();
    door.install_rules(&[], &[], &[]).unwrap();
    let rules = Path::new(bpf::front_door::PIN_DIRECTORY).join("tt-adopted");
    for set in ["tam_rules_0", "tam_rules_1", "tam_vlans"] {
        let map = Map::open_pinned(&rules.join(set)).unwrap();
        let left = match set {
            "tam_vlans" => map.keys::<bpf_maps::VlanKey>().unwrap().len(),
            _ => map.keys::<Key>().unwrap().len(),
        };
        assert_eq!(left, if set == "tam_vlans" { 2 } else { 0 }, "{set}");
    }
    door.set_vlans(&[]).unwrap();
    let vlans = Map::open_pinned(&rules.join("tam_vlans")).unwrap();
    assert_eq!(vlans.keys::<bpf_maps::VlanKey>().unwrap().len(), 0);
    door.pins().forget_service(ENTRY).unwrap();
    assert!(door.pins().kept_entries().unwrap().is_empty());
    door.detach(port, out).unwrap();
    drop(door);
    let door = FrontDoor::adopt(&node, &[port]).unwrap();
    assert_eq!(door.device_of(port), None, "the port was detached");
    let pinned = rules.join("tam_lanes");
    std::fs::remove_file(&pinned).unwrap();
    let error = FrontDoor::adopt(&node, &[port]).unwrap_err().to_string();
    assert!(error.contains("tam_lanes"), "{error}");
    bpf::front_door::remove(&node).unwrap();
}
