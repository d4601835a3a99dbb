//! Random packets for the packet functions: the same in every test and every run.

use bench::levels::Packet;

/// Number of packets.
const PACKETS: u64 = 100_000;
/// Number of packets with `TAM_SOAK=1`.
const PACKETS_SOAK: u64 = 10_000_000;
/// Seed; a failure names the packet's number.
const SEED: u64 = 0x7461_6d61_6e64_7561;
/// Shortest frame that the kernel accepts: an Ethernet header, in bytes.
pub const ETHERNET_LENGTH: usize = 14;

/// Returns the number of packets that a test runs, over all functions together.
pub fn packets() -> u64 {
    let soak = std::env::var("TAM_SOAK").is_ok_and(|value| value == "1");
    if soak { PACKETS_SOAK } else { PACKETS }
}

/// Generator SplitMix64, which gives the same numbers everywhere.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(SEED)
    }

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

    /// Returns one of the vectors' packets, changed a little or not at all, of at least the length
    /// that `least` returns for it.
    pub fn frame(&mut self, packets: &[Packet], least: impl Fn(&[u8]) -> usize) -> Vec<u8> {
        let mut frame = packets[self.below(packets.len())].frame.clone();
        for _ in 0..self.below(4) {
            let least = least(&frame).min(frame.len());
            self.change(&mut frame, least);
        }
        // A change of its type may ask for more.
        frame.resize(frame.len().max(least(&frame)), 0);
        frame
    }

    fn change(&mut self, frame: &mut Vec<u8>, least: usize) {
        // Bytes that the functions look at: protocol, addresses, ports, flags.
        const FIELDS: [usize; 10] = [23, 28, 29, 32, 33, 35, 36, 37, 47, 55];
        match self.below(16) {
            0 => frame.truncate(least + self.below(frame.len() - least + 1)),
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

    /// Returns the milliseconds to the next packet: mostly 0.
    pub fn time(&mut self) -> u64 {
        match self.below(64) {
            0 => 20_000,
            1..=8 => self.next() % 300,
            _ => 0,
        }
    }
}
