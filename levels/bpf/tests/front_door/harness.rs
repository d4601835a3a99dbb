//! One loaded front door: frames in, and what its maps say of them.

use bpf::{DevmapValue, Map, MappedArray, Object, Program, Update, XdpContext, objects};
use bpf_maps::{
    Config, FLOWS_MAX, Key, MASKS_MAX, Mask, OUTCOMES, PacketMeta, PortConfig, PortStats, Rule,
    RuleStats, Vlan, VlanKey,
};
use bytemuck::{Pod, Zeroable};
use std::os::fd::{AsFd, AsRawFd};
use wire::{Fragment, Parsed};

use crate::namespace::{LOOPBACK, OUT_MAC, OUT_MTU};

/// The arrival port's MAC address.
pub const MAC: [u8; 6] = [0x02, 0, 0, 0, 0xaa, 0x01];
/// The arrival port's number.
pub const PORT: u16 = 0;
/// The number of the port on the way out.
pub const OUT_PORT: u16 = 1;
/// `TAM_RULE_NONE`: no rule matched.
pub const RULE_NONE: u32 = u32::MAX;
/// `XDP_DROP`, `XDP_PASS`, `XDP_TX`, `XDP_REDIRECT`.
pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;
pub const XDP_REDIRECT: u32 = 4;

/// What the hash of the flow cache begins with.
const SEED: u32 = 0x5eed_1234;

/// One entry of the flow cache (`struct tam_flow` in `c/classify.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Flow {
    pub key: Key,
    pub generation: u64,
    pub meta: PacketMeta,
    pub mtu: u32,
    pub own_mac: [u8; 6],
    pub action: u8,
    pub outcome: u8,
    pub zero: u32,
}

/// What the front door did with one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The name of the outcome counter that moved.
    pub outcome: &'static str,
    /// The XDP action.
    pub action: u32,
    /// What lay from the metadata on, when there is some, else from the frame on.
    pub bytes: Vec<u8>,
    /// The bytes that it counted.
    pub counted: u64,
    /// Whether rule and route came from the flow cache.
    pub cached: bool,
}

/// A front door with an arrival port on loopback.
pub struct FrontDoor {
    object: Object,
    program: Program,
    heartbeat: Program,
    shared: MappedArray<Config>,
    stats: Map,
    flows: Map,
    masks: Map,
    rules: [Map; 2],
    rule_counts: Map,
    vlans: Map,
    before: PortStats,
    config: Config,
}

impl FrontDoor {
    /// Loads it; `out` is the index of the device that packets leave by.
    pub fn load(out: Option<u32>) -> Self {
        Self::load_as(out, false)
    }

    /// One that looks for no common frames, so that each flow's key is in its cache.
    pub fn load_taking_apart() -> Self {
        Self::load_as(None, true)
    }

    fn load_as(out: Option<u32>, take_apart: bool) -> Self {
        let mut open = Object::open(objects::FRONT_DOOR, "front_door").unwrap();
        open.set_global("take_every_frame_apart", &u32::from(take_apart)).unwrap();
        open.set_global("port_number", &u32::from(PORT)).unwrap();
        let object = open.load().unwrap();
        let map = |name| object.map(name).unwrap();
        let afterwards = object.program("tam_afterwards").unwrap();
        let fd = afterwards.as_fd().as_raw_fd() as u32;
        map("tam_after").update(&0u32, &fd, Update::Any).unwrap();
        let port = PortConfig { ifindex: LOOPBACK, mac: MAC, mtu: 9000, ..Default::default() };
        map("tam_ports").update(&u32::from(PORT), &port, Update::Any).unwrap();
        if let Some(ifindex) = out {
            let number = u32::from(OUT_PORT);
            let port = PortConfig { ifindex, mac: OUT_MAC, mtu: OUT_MTU, ..Default::default() };
            map("tam_ports").update(&number, &port, Update::Any).unwrap();
            map("tam_egress").update(&ifindex, &number, Update::Any).unwrap();
            let device = DevmapValue { ifindex, program: 0 };
            map("tam_devices").update(&number, &device, Update::Any).unwrap();
        }
        let tick_ns = bpf::front_door::tick_ns();
        let config = Config { generation: 2, hash_seed: SEED, tick_ns, ..Default::default() };
        let front_door = Self {
            program: object.program("tam_front_door").unwrap(),
            heartbeat: object.program("tam_heartbeat").unwrap(),
            shared: map("tam_shared").map_array().unwrap(),
            stats: map("tam_stats"),
            flows: map("tam_flows"),
            masks: map("tam_masks"),
            rules: [map("tam_rules_0"), map("tam_rules_1")],
            rule_counts: map("tam_rule_counts"),
            vlans: map("tam_vlans"),
            before: PortStats::default(),
            config,
            object,
        };
        assert!(front_door.shared.store(0, &front_door.config));
        front_door
    }

    /// A map of the program's.
    pub fn map(&self, name: &str) -> Map {
        self.object.map(name).unwrap()
    }

    /// The program itself.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs one frame of at least an Ethernet header.
    pub fn run(&mut self, frame: &[u8]) -> Done {
        let context = XdpContext {
            data_end: frame.len() as u32,
            ingress_ifindex: LOOPBACK,
            ..Default::default()
        };
        let context = bytemuck::bytes_of(&context);
        let run = self.program.test_run(frame, Some(context), 1).unwrap();
        let after = self.stats();
        let before = std::mem::replace(&mut self.before, after);
        assert_eq!(after.rx_packets, before.rx_packets + 1);
        let mut moved = (0..OUTCOMES.len()).filter(|&at| after.outcomes[at] != before.outcomes[at]);
        let at = moved.next().expect("every packet ends in one outcome");
        assert_eq!((after.outcomes[at], moved.next()), (before.outcomes[at] + 1, None));
        Done {
            outcome: OUTCOMES[at].0,
            action: run.retval,
            bytes: run.data_out,
            counted: after.rx_bytes - before.rx_bytes,
            cached: after.cache_hits != before.cache_hits,
        }
    }

    /// Tells it that the daemon listens: cached routes are good for a while.
    pub fn heartbeat(&self) {
        self.heartbeat.test_run(&[0; 64], None, 1).unwrap();
    }

    /// Lets the daemon's last word lie far back.
    pub fn silence(&self) {
        let config = self.shared.load(0).unwrap();
        let routes_heard = config.routes_heard.wrapping_sub(1 << 32);
        assert!(self.shared.store(0, &Config { routes_heard, ..config }));
    }

    /// Makes a new generation whose active rule set is `set`.
    pub fn activate(&mut self, set: usize) {
        self.config.generation = (self.config.generation & !1) + 2 + set as u64;
        let Config { routes_heard, clock_jiffies, clock_ms, .. } = self.shared.load(0).unwrap();
        let config = Config { routes_heard, clock_jiffies, clock_ms, ..self.config };
        assert!(self.shared.store(0, &config));
    }

    /// Fills a rule set; it is looked at when the next generation activates it.
    pub fn install(&mut self, set: usize, masks: &[Mask], rules: &[(Key, Rule)]) {
        for key in self.rules[set].keys::<Key>().unwrap() {
            assert!(self.rules[set].delete(&key).unwrap());
        }
        for (at, mask) in masks.iter().enumerate() {
            let at = (set * MASKS_MAX + at) as u32;
            self.masks.update(&at, mask, Update::Any).unwrap();
        }
        for (key, rule) in rules {
            self.rules[set].update(key, rule, Update::Create).unwrap();
        }
        self.config.mask_count[set] = masks.len() as u32;
    }

    /// Makes a VLAN device known: `vlan` above `ifindex`, or with `VLAN_UP` the way back.
    pub fn add_vlan(&self, ifindex: u32, vlan: u32, leads_to: u32, id: u16) {
        let entry = Vlan { ifindex: leads_to, vlan: id, zero: 0 };
        self.vlans.update(&VlanKey { ifindex, vlan }, &entry, Update::Any).unwrap();
    }

    /// The generation of rules and routes.
    pub fn generation(&self) -> u64 {
        self.config.generation
    }

    /// The cache entry that a packet with this key uses, whatever is in it, where every
    /// frame is taken apart.
    pub fn flow(&self, key: &Key) -> Flow {
        let slot = flow_slot(key, SEED);
        let flows: Vec<Flow> = self.flows.lookup_percpu(&slot).unwrap().unwrap();
        flows[rustix::thread::sched_getcpu()]
    }

    /// What a rule counted, on all CPUs.
    pub fn rule_stats(&self, rule: u32) -> RuleStats {
        let counts: Vec<RuleStats> = self.rule_counts.lookup_percpu(&rule).unwrap().unwrap();
        counts.iter().fold(RuleStats::default(), |sum, count| RuleStats {
            packets: sum.packets + count.packets,
            bytes: sum.bytes + count.bytes,
        })
    }

    /// Packets of an outcome, on all CPUs.
    pub fn outcome_everywhere(&self, name: &str) -> u64 {
        let at = OUTCOMES.iter().position(|&(known, _)| known == name).unwrap();
        let stats: Vec<PortStats> = self.stats.lookup_percpu(&u32::from(PORT)).unwrap().unwrap();
        stats.iter().map(|stats| stats.outcomes[at]).sum()
    }

    fn stats(&self) -> PortStats {
        let stats: Vec<PortStats> = self.stats.lookup_percpu(&u32::from(PORT)).unwrap().unwrap();
        stats[rustix::thread::sched_getcpu()]
    }
}

/// What the rules match of a packet that came in by [`PORT`].
pub fn key_of(parsed: &Parsed) -> Key {
    Key {
        source: parsed.source,
        destination: parsed.destination,
        source_port_be: parsed.source_port.to_be_bytes(),
        destination_port_be: parsed.destination_port.to_be_bytes(),
        protocol: parsed.protocol,
        ip_version: parsed.ip_version,
        vlan: parsed.vlan.map_or(0, |tag| bpf_maps::VLAN_PRESENT | tag.id),
        port: PORT,
        dscp: parsed.dscp,
        fragment: match parsed.fragment {
            Fragment::None => bpf_maps::FRAGMENT_NONE,
            Fragment::First => bpf_maps::FRAGMENT_FIRST,
            Fragment::Later => bpf_maps::FRAGMENT_LATER,
        },
        mask: 0,
        zero: 0,
    }
}

/// The frame as the arrival port gets it: with its MAC address.
pub fn addressed(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(destination) = frame.get_mut(..6) {
        destination.copy_from_slice(&MAC);
    }
    frame
}

/// `flow_slot` of `c/classify.h`.
fn flow_slot(key: &Key, seed: u32) -> u32 {
    let words: [u64; 6] = bytemuck::cast(*key);
    let seed = u64::from(seed);
    let mut hash = (words[0] ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ words[2].wrapping_add(seed).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ (words[4] ^ (seed << 32)).wrapping_mul(0x1656_67b1_9e37_79f9)
        ^ words[5].wrapping_mul(0xd6e8_feb8_6659_fd93)
        ^ words[1].wrapping_mul(0xff51_afd7_ed55_8ccd)
        ^ words[3].wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 51) as u32 & (FLOWS_MAX as u32 - 1)
}
