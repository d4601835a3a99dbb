//! Harness of a front door with one service at `nic`, whose module follows the test's script.

use bpf::front_door::hand_over_at;
use bpf::{Block, Lanes, Map, Object, Program, Update, objects};
use bpf_maps::{ACTION_SERVICE, HandOver, Key, LEVEL_NIC, Lane, Mask, Passage, Rule, ServiceStats};
use bytemuck::{Pod, Zeroable};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::harness::{Done, FrontDoor, PORT};

/// Entry of the service.
pub const ENTRY: u16 = 700;
/// Index of its program: one that the front door has a constant jump for.
pub const INDEX: u32 = 5;
/// Map of all entries' hand-overs.
pub const HAND_OVERS: &str = ".data.hand_overs";
/// Bytes of the packet that the module sees.
pub const WINDOW: u32 = 64;

/// Behaviour of the module (`struct script` in `c/bench/service_modules.bpf.c`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Script {
    pub verdict: u32,
    pub trapped: u32,
    pub head: i32,
    pub ethertype_be: [u8; 2],
    pub ttl_and_1: u16,
    /// `GROWTH_*`, only at tc.
    pub growth: u32,
    pub fuel: u32,
    /// New source when not zero: of IPv4 the address, of IPv6 its last four bytes.
    pub source: [u8; 4],
    /// UDP port of the new source.
    pub source_port_be: [u8; 2],
    pub zero: u16,
    /// New destination, with its UDP port; zero: unchanged.
    pub destination: [u8; 4],
    pub destination_port_be: [u8; 2],
    pub zero_end: u16,
}

/// Returns the hand-over of [`ENTRY`].
pub fn hand_over_in(hand_overs: Map) -> HandOver {
    let all = Block::new(hand_overs).unwrap();
    let begin = hand_over_at(units::EntryId(ENTRY));
    let word = |at: usize| {
        all.u64(begin + 8 * at as u32).unwrap().load(std::sync::atomic::Ordering::Acquire)
    };
    bytemuck::cast::<[u64; size_of::<HandOver>() / 8], _>(std::array::from_fn(word))
}

/// Front door, service and module.
pub struct Nic {
    pub door: FrontDoor,
    pub lanes: Lanes,
    lanes_map: Map,
    modules: Object,
    sockets: Vec<OwnedFd>,
}

impl Nic {
    /// Loads a front door whose packets all belong to the service, with the lane's target at `nic`
    /// and nothing sent up.
    pub fn load(out: Option<u32>) -> Self {
        let mut door = FrontDoor::load(out);
        let rule =
            Rule { rule: 3, session: 4, entry: ENTRY, action: ACTION_SERVICE, ..Rule::default() };
        door.install(0, &[Mask::default()], &[(Key::default(), rule)]);
        door.activate(0);
        door.heartbeat();
        let mut modules = Object::open(objects::bench::SERVICE_MODULES, "modules").unwrap();
        modules.set_global("own_entry", &u32::from(ENTRY)).unwrap();
        for shared in [HAND_OVERS, "tam_after", "tam_after_tc"] {
            modules.reuse_map(shared, &door.map(shared)).unwrap();
        }
        let modules = modules.load().unwrap();
        let lanes_map = door.map("tam_lanes");
        let lanes = Lanes::new(&lanes_map).unwrap();
        let nic = Self { door, lanes, lanes_map, modules, sockets: Vec::new() };
        nic.set_module(INDEX, Some("scripted"));
        nic.lane().set_program(INDEX, WINDOW);
        nic.lane().set_session(units::SessionId(4));
        nic.lane().set_target(LEVEL_NIC);
        nic
    }

    /// Installs a module of the test object, or none, at an index.
    pub fn set_module(&self, index: u32, name: Option<&str>) {
        let modules = self.door.map("tam_modules");
        match name {
            Some(name) => {
                let program = self.modules.program(name).unwrap();
                modules.update(&index, &(program.as_fd().as_raw_fd() as u32), Update::Any).unwrap();
            }
            None => assert!(modules.delete(&index).unwrap()),
        }
    }

    pub fn lane(&self) -> bpf::Lane<'_> {
        self.lanes.lane(units::EntryId(ENTRY)).unwrap()
    }

    /// Returns the lane in the map.
    pub fn record(&self) -> Lane {
        self.lanes_map.lookup(&u32::from(ENTRY)).unwrap().unwrap()
    }

    /// Changes the lane in the map directly.
    pub fn change_record(&self, change: impl FnOnce(&mut Lane)) {
        let mut record = self.record();
        change(&mut record);
        self.lanes_map.update(&u32::from(ENTRY), &record, Update::Any).unwrap();
    }

    /// Runs a frame with this script.
    pub fn run(&mut self, frame: &[u8], script: Script) -> Done {
        self.modules.map("script").unwrap().update(&0u32, &script, Update::Any).unwrap();
        self.door.heartbeat();
        let done = self.door.run(frame);
        assert!(self.lane().is_free(), "nobody stays in the lane: {done:?}");
        done
    }

    /// Runs a frame with a verdict of the module.
    pub fn verdict(&mut self, frame: &[u8], verdict: u32) -> Done {
        self.run(frame, Script { verdict, ..Script::default() })
    }

    /// Returns the hand-over that the module found.
    pub fn hand_over(&self) -> HandOver {
        hand_over_in(self.door.map(HAND_OVERS))
    }

    /// Returns the passage of this CPU's last packet.
    pub fn passage(&self) -> Passage {
        let values: Vec<Passage> =
            self.door.map("tam_passages").lookup_percpu(&0u32).unwrap().unwrap();
        values[rustix::thread::sched_getcpu()]
    }

    /// Returns the service's counters, over all CPUs.
    pub fn stats(&self) -> ServiceStats {
        let values: Vec<ServiceStats> =
            self.door.map("tam_services").lookup_percpu(&u32::from(ENTRY)).unwrap().unwrap();
        let mut sum = [0u64; size_of::<ServiceStats>() / 8];
        for value in values {
            let words: [u64; size_of::<ServiceStats>() / 8] = bytemuck::cast(value);
            sum.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
        }
        bytemuck::cast(sum)
    }

    /// Returns the number of packets that have ended, by [`Self::stats`].
    pub fn ended(&self) -> u64 {
        crate::kernel_harness::ended(&self.stats())
    }

    /// Returns the counter of `counting`.
    pub fn counted(&self) -> u64 {
        self.modules.map("memory").unwrap().lookup(&0u32).unwrap().unwrap()
    }

    /// Returns the front door's program.
    pub fn program(&self) -> &Program {
        self.door.program()
    }

    /// Adds a socket behind the arrival port. It takes no packets: nothing is really redirected.
    pub fn add_socket(&mut self) {
        // SAFETY: it makes a descriptor and takes numbers only.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor that nobody else holds.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let entries: libc::c_int = 64;
        // SAFETY: the option's value is an int, which lives across the call.
        let answer = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_XDP,
                libc::XDP_RX_RING,
                (&raw const entries).cast(),
                size_of_val(&entries) as u32,
            )
        };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        let index = u32::from(PORT) * bpf_maps::QUEUES_MAX as u32;
        self.door.map("tam_sockets").update(&index, &(fd as u32), Update::Any).unwrap();
        self.sockets.push(socket);
    }
}
