//! Random numbers that modules are made of: from a seed, or from a recorded tape that was changed
//! to find a smaller module.

use wasm_to_bpf::ValueType;

/// Generator SplitMix64, which gives the same numbers for a seed on every machine.
#[derive(Clone, Debug)]
pub(super) struct Rng {
    state: u64,
    /// Numbers that it has given, or that it replays before an endless row of zeros.
    tape: Vec<u64>,
    /// Index of the next number to replay; `None` when the tape is recorded.
    played: Option<usize>,
}

impl Rng {
    /// Starts with a seed and records.
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed, tape: Vec::new(), played: None }
    }

    /// Replays a tape.
    pub(super) fn play(tape: Vec<u64>) -> Self {
        Self { state: 0, tape, played: Some(0) }
    }

    /// Returns the recorded tape.
    pub(super) fn into_tape(self) -> Vec<u64> {
        self.tape
    }

    /// Returns the next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        if let Some(at) = &mut self.played {
            let number = self.tape.get(*at).copied().unwrap_or(0);
            *at += 1;
            return number;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        self.tape.push(mixed);
        mixed
    }

    /// Returns a number below `limit`, which is small.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Returns arguments of these types: edge values as often as any others.
    pub(super) fn arguments(&mut self, parameters: &[ValueType]) -> Vec<u64> {
        parameters
            .iter()
            .map(|ty| match ty {
                ValueType::I32 => self.number() & 0xffff_ffff,
                ValueType::I64 => self.number(),
            })
            .collect()
    }

    /// Returns any number; an edge value as often as others.
    pub(super) fn number(&mut self) -> u64 {
        const EDGES: [u64; 10] = [
            0,
            1,
            2,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x1_0000_0000,
            0x7fff_ffff_ffff_ffff,
            0x8000_0000_0000_0000,
            u64::MAX,
        ];
        match self.below(4) {
            0 => EDGES[self.below(EDGES.len() as u64) as usize],
            1 => self.below(0x1_0000),
            2 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }
}
