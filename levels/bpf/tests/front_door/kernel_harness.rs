//! Harness of a node's front door on two ports with a service at `kernel`, and real frames: a
//! program cannot be shown a packet that passes tc by a test run.
//!
//! ```text
//!   near ══ in ── front door ── module at tc ── out ══ far
//!                                  └─ above (TAP)
//! ```

use bpf::{Below, FrontDoor, Link, Object, Update, XdpMode, objects};
use bpf_maps::{
    ACTION_SERVICE, HandOver, Key, LEVEL_KERNEL, Lane, Mask, OUTCOMES, PacketMeta, PortConfig,
    Rule, ServiceStats,
};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use units::{EntryId, Name, PortId};

use crate::harness::{MAC, OUT_PORT, PORT};
use crate::namespace::{OUT_MAC, OUT_MTU, add_way_out, ifindex, ip};
use crate::nic_harness::{ENTRY, HAND_OVERS, INDEX, Script, WINDOW, hand_over_in};
use crate::wire_end::WireEnd;

/// Bytes that only the test's frames carry.
pub const MARK: [u8; 8] = *b"tam-mark";
/// Longest wait for counters.
const PATIENCE: Duration = Duration::from_secs(5);

/// Front door, service and wires.
pub struct Kernel {
    pub door: FrontDoor,
    pub near: WireEnd,
    pub far: WireEnd,
    pub up: WireEnd,
    node: Name,
    modules: Object,
    _on_far: Link,
}

impl Kernel {
    /// Loads a front door whose packets all belong to the service, with the lane's target at
    /// `kernel` and nothing sent up; there is no TAP device yet. `node` is the test's own.
    pub fn load(node: &str) -> Self {
        let out = add_way_out();
        let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
        ip(&format!("link add in mtu 1500 address {mac} type veth peer name near"));
        // Frames that the kernel itself would send by it arrive like a packet of the test.
        std::fs::write("/proc/sys/net/ipv6/conf/near/disable_ipv6", "1").unwrap();
        ip("link set near up");
        ip("link set in up");
        let node: Name = node.parse().unwrap();
        let mut door = FrontDoor::create(&node, crate::harness::HASH_KEYS, 1000).unwrap();
        let modules = Self::modules(&door);
        let on_far = modules.program("passing").unwrap();
        let on_far = on_far.attach_xdp(ifindex("far"), XdpMode::Native).unwrap();
        for (port, ifindex, mac) in [(PORT, ifindex("in"), MAC), (OUT_PORT, out, OUT_MAC)] {
            let config = PortConfig { ifindex, mac, mtu: OUT_MTU, ..PortConfig::default() };
            door.attach(PortId(port), &config, XdpMode::Native).unwrap();
        }
        let rule =
            Rule { rule: 3, session: 4, entry: ENTRY, action: ACTION_SERVICE, ..Rule::default() };
        let key = Key { port: PORT, ..Key::default() };
        let bits = Key { port: u16::MAX, ..Key::default() };
        door.install_rules(&[Mask { bits, ..Mask::default() }], &[(key, rule)], &[]).unwrap();
        let up = WireEnd::of_new_tap("above");
        ip("link set above mtu 2000 up");
        let (near, far) = (WireEnd::of_device("near"), WireEnd::of_device("far"));
        let kernel = Self { door, near, far, up, node, modules, _on_far: on_far };
        kernel.set_module(Below::Kernel, "scripted_tc");
        kernel.lane().set_program(INDEX, WINDOW);
        kernel.lane().set_session(units::SessionId(4));
        kernel.lane().set_target(LEVEL_KERNEL);
        kernel
    }

    fn modules(door: &FrontDoor) -> Object {
        let mut modules = Object::open(objects::bench::SERVICE_MODULES, "modules").unwrap();
        modules.set_global("own_entry", &u32::from(ENTRY)).unwrap();
        for (name, map) in [
            (HAND_OVERS, door.services().hand_overs_map()),
            ("tam_after", door.services().after_map(Below::Nic)),
            ("tam_after_tc", door.services().after_map(Below::Kernel)),
        ] {
            modules.reuse_map(name, map).unwrap();
        }
        modules.load().unwrap()
    }

    /// Lets another daemon adopt the front door.
    pub fn adopt(&mut self) {
        let ports = [PortId(PORT), PortId(OUT_PORT)];
        self.door = FrontDoor::adopt(&self.node, &ports).unwrap();
    }

    /// Installs a module of the test object at a level.
    pub fn set_module(&self, level: Below, name: &str) {
        let program = self.modules.program(name).unwrap();
        self.door.services().set_module(level, INDEX, program.as_fd()).unwrap();
    }

    /// Sets the module's behaviour from now on.
    pub fn set_script(&self, script: Script) {
        self.modules.map("script").unwrap().update(&0u32, &script, Update::Any).unwrap();
    }

    /// Replaces the front door's XDP half: every packet that arrives goes to tc with this metadata.
    pub fn mark(&self, meta: &PacketMeta) {
        self.modules.map("marked").unwrap().update(&0u32, meta, Update::Any).unwrap();
        let folder = Path::new(bpf::front_door::PIN_DIRECTORY).join(self.node.as_str());
        let link = Link::open_pinned(&folder.join(format!("link_{}", PortId(PORT)))).unwrap();
        link.update(&self.modules.program("marking").unwrap()).unwrap();
    }

    /// Registers the TAP device: raised packets go there.
    pub fn add_tap(&self) {
        self.door.set_raise_device(Some(ifindex("above")));
    }

    pub fn lane(&self) -> bpf::Lane<'_> {
        self.door.lanes().lane(EntryId(ENTRY)).unwrap()
    }

    /// Returns the lane in the map.
    pub fn record(&self) -> Lane {
        self.door.services().lanes_map().lookup(&u32::from(ENTRY)).unwrap().unwrap()
    }

    /// Changes the lane in the map directly.
    pub fn change_record(&self, change: impl FnOnce(&mut Lane)) {
        let mut record = self.record();
        change(&mut record);
        self.door.services().lanes_map().update(&u32::from(ENTRY), &record, Update::Any).unwrap();
    }

    /// Sends a frame to the arrival port, with this behaviour of the module.
    pub fn send(&self, frame: &[u8], script: Script) {
        self.set_script(script);
        self.door.heartbeat().unwrap();
        self.near.send(frame);
    }

    /// Sends a frame with a verdict of the module, and waits until the service has counted it.
    pub fn verdict(&self, frame: &[u8], verdict: u32) -> ServiceStats {
        self.run(frame, Script { verdict, ..Script::default() })
    }

    /// Sends a frame and waits until the service has counted it.
    pub fn run(&self, frame: &[u8], script: Script) -> ServiceStats {
        let before = self.stats().packets;
        self.send(frame, script);
        self.ended(before + 1)
    }

    /// Returns the service's counters once `packets` have ended.
    pub fn ended(&self, packets: u64) -> ServiceStats {
        let all = || {
            let stats = self.stats();
            (ended(&stats) == packets && stats.packets == packets && self.lane().is_free())
                .then_some(stats)
        };
        testbase::wait_for(PATIENCE, all)
            .unwrap_or_else(|| panic!("{packets} packets, not {:?}", self.stats()))
    }

    pub fn stats(&self) -> ServiceStats {
        self.door.services().service_stats(EntryId(ENTRY)).unwrap()
    }

    /// Returns the packets of an outcome at the arrival port.
    pub fn outcome(&self, name: &str) -> u64 {
        let at = OUTCOMES.iter().position(|&(known, _)| known == name).unwrap();
        self.door.port_stats(PortId(PORT)).unwrap().outcomes[at]
    }

    /// Returns the hand-over that the module found.
    pub fn hand_over(&self) -> HandOver {
        hand_over_in(self.door.services().hand_overs_map().try_clone().unwrap())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The remains of a failed test are removed by the next one.
        let removed = bpf::front_door::remove(&self.node);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// Returns the number of packets that have ended, by the counters.
pub fn ended(s: &ServiceStats) -> u64 {
    s.forwarded
        + s.to_kernel
        + s.bounced
        + s.redirected
        + s.passed_on
        + s.raised
        + s.plain
        + s.drop_module
        + s.drop_trap
        + s.drop_no_port
        + s.drop_too_long
        + s.drop_malformed
        + s.drop_budget
        + s.drop_down
        + s.drop_rule
        + s.drop_lane
        + s.drop_cycle
        + s.drop_queue
        + s.drop_share
}

/// Returns true if a frame is one of the test's.
pub fn ours(frame: &[u8]) -> bool {
    frame.windows(MARK.len()).any(|window| window == MARK)
}
