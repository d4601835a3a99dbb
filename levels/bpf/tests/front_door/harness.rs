//! Harness of one loaded front door: runs frames, and reads the results from its maps.

use bpf::front_door::{place, place_behind, salted, salted_behind};
use bpf::{DevmapValue, Map, MappedArray, Object, Program, Update, XdpContext, objects};
use bpf_maps::{
    Config, FILTER_BITS, FLOW_WAYS, FLOWS_MAX, Key, MASKS_ALL, MASKS_MAX, Mask, OUTCOMES,
    PacketMeta, PortConfig, PortStats, Rule, RuleStats, Vlan, VlanKey,
};
use bytemuck::{Pod, Zeroable};
use std::os::fd::{AsFd, AsRawFd};
use wire::parse::parse_link;
use wire::{Fragment, Parsed, parse_frame};

use crate::namespace::{LOOPBACK, OUT_MAC, OUT_MTU};

/// MAC address of the arrival port.
pub const MAC: [u8; 6] = [0x02, 0, 0, 0, 0xaa, 0x01];
/// Number of the arrival port.
pub const PORT: u16 = 0;
/// Number of the egress port.
pub const OUT_PORT: u16 = 1;
pub use bpf_maps::RULE_NONE;
/// `XDP_DROP`, `XDP_PASS`, `XDP_TX`, `XDP_REDIRECT`.
pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_TX: u32 = 3;
pub const XDP_REDIRECT: u32 = 4;

/// Factors of the flow cache's hash.
pub const HASH_KEYS: [u64; 16] = hash_keys();

/// Returns SplitMix64 from 1 on: odd or even, they are all different.
const fn hash_keys() -> [u64; 16] {
    let mut keys = [0; 16];
    let (mut at, mut state) = (0, 1u64);
    while at < keys.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        keys[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    keys
}

/// Entry of the flow cache (`struct tam_flow` in `c/flow.h`).
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
    pub counted: [u16; 2],
}

/// Result of the front door for one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Name of the outcome counter that was incremented.
    pub outcome: &'static str,
    /// XDP action.
    pub action: u32,
    /// Bytes from the metadata on, when there is some, else from the frame on.
    pub bytes: Vec<u8>,
    /// Number of bytes counted.
    pub counted: u64,
    /// True if rule and route came from the flow cache.
    pub cached: bool,
}

/// Front door with an arrival port on loopback.
pub struct FrontDoor {
    object: Object,
    program: Program,
    heartbeat: Program,
    shared: MappedArray<Config>,
    stats: Map,
    flows: Map,
    masks: Map,
    filter: MappedArray<u64>,
    rules: [Map; 2],
    rule_counts: Map,
    vlans: Map,
    before: PortStats,
    config: Config,
    /// Upper bits of the generation for the rules of each set.
    looked_at: [u64; 2],
}

impl FrontDoor {
    /// Loads it; `out` is the index of the egress device.
    pub fn load(out: Option<u32>) -> Self {
        Self::load_as(out, false, 0)
    }

    /// Loads one with that many sets in the large cache of each CPU.
    pub fn load_large(large_sets: u32) -> Self {
        Self::load_as(None, false, large_sets)
    }

    /// Loads one without the shortcut for common frames, so that each flow's key is in its cache.
    pub fn load_taking_apart() -> Self {
        Self::load_as(None, true, 0)
    }

    fn load_as(out: Option<u32>, take_apart: bool, large_sets: u32) -> Self {
        let mut open = Object::open(objects::FRONT_DOOR, "front_door").unwrap();
        open.set_global("take_every_frame_apart", &u32::from(take_apart)).unwrap();
        open.set_global("port_number", &u32::from(PORT)).unwrap();
        let sets = (large_sets * bpf::possible_cpus() as u32).max(1);
        open.set_global("large_sets", &large_sets).unwrap();
        open.set_max_entries("tam_large", sets * FLOW_WAYS as u32).unwrap();
        open.set_max_entries("tam_tags", sets).unwrap();
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
        let config = Config { generation: 2, hash_keys: HASH_KEYS, tick_ns, ..Default::default() };
        let front_door = Self {
            program: object.program("tam_front_door").unwrap(),
            heartbeat: object.program("tam_heartbeat").unwrap(),
            shared: map("tam_shared").map_array().unwrap(),
            stats: map("tam_stats"),
            flows: map("tam_flows"),
            masks: map("tam_masks"),
            filter: map("tam_filter").map_array().unwrap(),
            rules: [map("tam_rules_0"), map("tam_rules_1")],
            rule_counts: map("tam_rule_counts"),
            vlans: map("tam_vlans"),
            before: PortStats::default(),
            config,
            looked_at: [0; 2],
            object,
        };
        assert!(front_door.shared.store(0, &front_door.config));
        front_door
    }

    /// Returns a map of the program.
    pub fn map(&self, name: &str) -> Map {
        self.object.map(name).unwrap()
    }

    /// Returns the names of all maps.
    pub fn map_names(&self) -> impl Iterator<Item = &str> {
        self.object.map_names()
    }

    /// Returns the program itself.
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

    /// Runs the heartbeat: cached routes are valid for a while.
    pub fn heartbeat(&self) {
        self.heartbeat.test_run(&[0; 64], None, 1).unwrap();
    }

    /// Makes the last heartbeat expire.
    pub fn silence(&self) {
        let config = self.shared.load(0).unwrap();
        let routes_heard = config.routes_heard.wrapping_sub(1 << 32);
        assert!(self.shared.store(0, &Config { routes_heard, ..config }));
    }

    /// Declares that sessions have shares of some port.
    pub fn set_has_shares(&mut self) {
        self.config.shares = 1;
        let config = self.shared.load(0).unwrap();
        assert!(self.shared.store(0, &Config { shares: 1, ..config }));
    }

    /// Changes the configuration of a port.
    pub fn change_port(&self, port: u16, change: impl FnOnce(&mut PortConfig)) {
        let ports = self.map("tam_ports");
        let mut config: PortConfig = ports.lookup(&u32::from(port)).unwrap().unwrap();
        change(&mut config);
        ports.update(&u32::from(port), &config, Update::Any).unwrap();
    }

    /// Makes a new generation whose active rule set is `set`.
    pub fn activate(&mut self, set: usize) {
        let number = bpf_maps::generation_number(self.config.generation);
        self.config.generation = ((number & !1) + 2 + set as u64) | self.looked_at[set];
        let Config { routes_heard, clock_jiffies, clock_ms, .. } = self.shared.load(0).unwrap();
        let config = Config { routes_heard, clock_jiffies, clock_ms, ..self.config };
        assert!(self.shared.store(0, &config));
    }

    /// Fills a rule set, which takes effect when the next generation activates it.
    pub fn install(&mut self, set: usize, masks: &[Mask], rules: &[(Key, Rule)]) {
        for key in self.rules[set].keys::<Key>().unwrap() {
            assert!(self.rules[set].delete(&key).unwrap());
        }
        let salted = salted(masks, &HASH_KEYS);
        for (at, mask) in salted.iter().enumerate() {
            let at = (set * MASKS_ALL + at) as u32;
            self.masks.update(&at, mask, Update::Any).unwrap();
        }
        let words = 1 << (FILTER_BITS - 6);
        for at in 0..words {
            assert!(self.filter.store(set * words + at, &0));
        }
        for (key, rule) in rules {
            self.rules[set].update(key, rule, Update::Create).unwrap();
            self.add_to_filter(set, place(&salted, key, &HASH_KEYS));
        }
        self.config.mask_count[set] = masks.len() as u32;
        self.config.hidden_count[set] = 0;
        self.looked_at[set] = bpf_maps::looked_at(masks);
    }

    /// Adds masks for packets that hide something of L4 to a rule set.
    pub fn install_hidden(&mut self, set: usize, masks: &[Mask], rules: &[(Key, Rule)]) {
        let salted = salted_behind(masks, &HASH_KEYS);
        for (at, mask) in salted.iter().enumerate() {
            let at = (set * MASKS_ALL + MASKS_MAX + at) as u32;
            self.masks.update(&at, mask, Update::Any).unwrap();
        }
        for (key, rule) in rules {
            self.rules[set].update(key, rule, Update::Create).unwrap();
            self.add_to_filter(set, place_behind(&salted, key, &HASH_KEYS));
        }
        self.config.hidden_count[set] = masks.len() as u32;
    }

    /// Sets a bit of a set's filter.
    fn add_to_filter(&self, set: usize, (word, bit): (usize, u64)) {
        let at = set * (1 << (FILTER_BITS - 6)) + word;
        let known = self.filter.load(at).unwrap();
        assert!(self.filter.store(at, &(known | bit)));
    }

    /// Adds a VLAN device: `vlan` on top of `ifindex`, or with `VLAN_UP` the opposite direction.
    pub fn add_vlan(&self, ifindex: u32, vlan: u32, leads_to: u32, id: u16) {
        let entry = Vlan { ifindex: leads_to, vlan: id, ..Vlan::default() };
        self.vlans.update(&VlanKey { ifindex, vlan }, &entry, Update::Any).unwrap();
    }

    /// Returns the TCP flags that the active rules match on.
    pub fn flags_looked_at(&self) -> u8 {
        (self.config.generation >> bpf_maps::GENERATION_FLAGS) as u8
    }

    /// Returns true if the active rules name an ethertype.
    pub fn looks_at_ethertypes(&self) -> bool {
        self.config.generation & bpf_maps::GENERATION_ETHERTYPES != 0
    }

    /// Returns the generation of rules and routes.
    pub fn generation(&self) -> u64 {
        self.config.generation
    }

    /// Returns the cache entry that a packet with this key uses, whatever its contents, where every
    /// frame is fully parsed.
    pub fn flow(&self, key: &Key) -> Flow {
        let slot = flow_slot(key);
        let flows: Vec<Flow> = self.flows.lookup_percpu(&slot).unwrap().unwrap();
        flows[rustix::thread::sched_getcpu()]
    }

    /// Returns the counters of a rule, over all CPUs.
    pub fn rule_stats(&self, rule: u32) -> RuleStats {
        let counts: Vec<RuleStats> = self.rule_counts.lookup_percpu(&rule).unwrap().unwrap();
        counts.iter().fold(RuleStats::default(), |sum, count| RuleStats {
            packets: sum.packets + count.packets,
            bytes: sum.bytes + count.bytes,
        })
    }

    /// Returns the packets of an outcome, over all CPUs.
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

/// Returns the key of a frame of which only the link header is read, or everything.
pub fn whole_key_of(frame: &[u8]) -> Key {
    match parse_frame(frame) {
        Ok(parsed) => Key { tcp_flags: parsed.tcp_flags, ..key_of(&parsed) },
        Err(_) => key_of(&parse_link(frame).unwrap()),
    }
}

/// Returns the match key of a packet that arrived by [`PORT`], when no rule matches on TCP flags.
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
        source_mac: parsed.ethernet.source,
        destination_mac: parsed.ethernet.destination,
        ethertype_be: parsed.ethernet.ethertype.to_be_bytes(),
        hidden: parsed.hidden as u16,
        ..Key::default()
    }
}

/// Returns the frame with the arrival port's MAC address as its destination.
pub fn addressed(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(destination) = frame.get_mut(..6) {
        destination.copy_from_slice(&MAC);
    }
    frame
}

/// Computes `slot_of(hash_of())` of `c/flow.h`.
fn flow_slot(key: &Key) -> u32 {
    (bpf_maps::key_hash(0, key, &HASH_KEYS) >> 51) as u32 & (FLOWS_MAX as u32 - 1)
}
