//! Random packets through the twelve functions: whatever runs them gives the
//! same verdicts, bytes and tables.

mod levels_user;

use bench::levels::{Baseline, Handled, Kind, Ours, Packet, Runner, Vectors, functions};
use engine::Engine;
use levels_user::User;

/// Packets in all.
const PACKETS: u64 = 100_000;
/// The same with `TAM_SOAK=1`.
const PACKETS_SOAK: u64 = 10_000_000;
/// Where the random numbers begin; a failure names the packet's number.
const SEED: u64 = 0x7461_6d61_6e64_7561;
/// An XDP program can be run over nothing shorter: an Ethernet header.
const LENGTH_MIN: usize = 14;

#[test]
fn random_packets_meet_the_same_fate_everywhere() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip_this("BPF programs need root");
        return;
    }
    let functions = match functions() {
        Ok(functions) => functions,
        Err(error) => return testkit::skip_this(&error.to_string()),
    };
    let engine = Engine::new().unwrap();
    let soak = std::env::var("TAM_SOAK").is_ok_and(|value| value == "1");
    let packets = if soak { PACKETS_SOAK } else { PACKETS };
    for function in functions {
        let vectors = Vectors::parse(function.vectors).unwrap();
        let baseline = |kind| Baseline::load(function, kind, &vectors.tables).unwrap();
        let mut runners: [(&str, Box<dyn Runner>); 4] = [
            ("user", Box::new(User::start(&engine, function.module).unwrap())),
            ("nic", Box::new(Ours::load(function.module).unwrap())),
            ("clang, arena", Box::new(baseline(Kind::Arena))),
            ("clang, maps", Box::new(baseline(Kind::Maps))),
        ];
        let mut random = Random(SEED);
        let mut now_ms = 1;
        for number in 0..packets / functions.len() as u64 {
            let frame = random.frame(&vectors.packets);
            now_ms += random.time();
            let handled: Vec<Handled> = runners
                .iter_mut()
                .map(|(name, runner)| match runner.handle(&frame, now_ms) {
                    Ok(handled) => handled,
                    Err(error) => panic!("{} packet {number} at {name}: {error:#}", function.name),
                })
                .collect();
            for (at, handled_there) in handled.iter().enumerate() {
                let frame = hex::encode(&frame);
                let name = runners[at].0;
                assert_eq!(
                    &handled[0], handled_there,
                    "{} {number} at {name}: {frame}",
                    function.name
                );
            }
        }
        assert_same_tables(function.name, &mut runners, &vectors);
    }
}

fn assert_same_tables(
    function: &str,
    runners: &mut [(&'static str, Box<dyn Runner>); 4],
    vectors: &Vectors,
) {
    for table in &vectors.tables {
        for index in 0..table.count {
            let entries = runners
                .each_mut()
                .map(|(name, runner)| (*name, runner.entry(table, index).unwrap()));
            for (name, entry) in &entries {
                assert_eq!(*entry, entries[0].1, "{function} at {name}: {} {index}", table.name);
            }
        }
    }
}

/// SplitMix64: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// One of the vectors' packets, changed a little or not at all.
    fn frame(&mut self, packets: &[Packet]) -> Vec<u8> {
        let mut frame = packets[self.below(packets.len())].frame.clone();
        for _ in 0..self.below(4) {
            self.change(&mut frame);
        }
        frame
    }

    fn change(&mut self, frame: &mut Vec<u8>) {
        // Bytes that the functions look at: protocol, addresses, ports, flags.
        const FIELDS: [usize; 10] = [23, 28, 29, 32, 33, 35, 36, 37, 47, 55];
        match self.below(16) {
            0 => frame.truncate(LENGTH_MIN + self.below(frame.len() - LENGTH_MIN + 1)),
            1 => frame.resize(frame.len() + self.below(64), self.next() as u8),
            2 => {
                let at = self.below(frame.len());
                frame[at] ^= 1 << self.below(8);
            }
            _ => {
                let at = FIELDS[self.below(FIELDS.len())];
                if let Some(byte) = frame.get_mut(at) {
                    // Few values, so that flows and sources come again.
                    *byte = [0, 1, 2, 6, 17, 53, 80, 255][self.below(8)];
                }
            }
        }
    }

    /// Milliseconds to the next packet: most of the time none.
    fn time(&mut self) -> u64 {
        match self.below(64) {
            0 => 20_000,
            1..=8 => self.next() % 300,
            _ => 0,
        }
    }
}
