//! Flows of `classify`: benign ones, and an attacker's.

use std::fs::File;
use std::io::Read as _;

use anyhow::{Context as _, Result};
use bpf_maps::{FLOWS_MAX, HASH_KEYS};
use wire::FrameBuilder;

use crate::line;

/// Bytes of a frame without its check sequence: the shortest.
pub(super) const FRAME: usize = 64;
/// Bytes of a frame that identify a flow, as in classify.bpf.c.
pub(super) const HEADERS: usize = 48;
/// Flows of an attacker that share a slot of the cache under the hash factors that it assumes.
const COLLIDING: usize = 1000;

/// UDP flow from 10.0.0.0/8 to 10.201.0.0/16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    source: [u8; 4],
    destination: [u8; 4],
    ports: [u16; 2],
}

impl Flow {
    fn random(state: &mut u64) -> Self {
        let [a, b, c, d, e, f, g, h] = split_mix(state).to_le_bytes();
        Self {
            source: [10, a, b, c],
            destination: [10, 201, d, e],
            ports: [u16::from_le_bytes([f, g]) | 1, 1000 + u16::from(h)],
        }
    }

    pub(super) const fn addresses(&self) -> ([u8; 4], [u8; 4]) {
        (self.source, self.destination)
    }

    /// Returns the first bytes of the flow's frames.
    pub(super) fn headers(&self) -> [u8; HEADERS] {
        let frame = FrameBuilder::new()
            .ethernet(line::MAC_SOURCE, line::MAC_IN)
            .ipv4(self.source, self.destination, 64)
            .udp(self.ports[0], self.ports[1])
            .payload(&[0; FRAME - 42])
            .patch(40, &[0, 0])
            .build();
        let mut headers = [0; HEADERS];
        headers.copy_from_slice(&frame[..HEADERS]);
        headers
    }

    /// Returns `struct flow_key` of classify.bpf.c.
    pub(super) fn plain_key(&self) -> [u8; 16] {
        let mut key = [0; 16];
        key[..4].copy_from_slice(&self.source);
        key[4..8].copy_from_slice(&self.destination);
        key[8..10].copy_from_slice(&self.ports[0].to_be_bytes());
        key[10..12].copy_from_slice(&self.ports[1].to_be_bytes());
        key[12] = wire::protocol::UDP;
        key
    }

    /// Returns `slot_of(common_hash())` of levels/bpf/c/flow.h, on port 0.
    fn slot(&self, factors: &[u64; HASH_KEYS]) -> u64 {
        let [a, b, c, d] = self.source;
        let [e, f, g, h] = self.destination;
        let [source_port, destination_port] = self.ports.map(u16::to_be_bytes);
        let word = |bytes: [u8; 4]| u64::from(u32::from_le_bytes(bytes));
        let [port_high, port_low] = destination_port;
        let words = [
            word([port_high, port_low, a, b]),
            word([c, d, e, f]),
            word([g, h, source_port[0], source_port[1]]),
            u64::from(wire::protocol::UDP),
        ];
        let products = words.iter().zip(factors);
        let sum = products
            .fold(0u64, |sum, (&word, &factor)| sum.wrapping_add(word.wrapping_mul(factor)));
        sum >> 51 & (FLOWS_MAX as u64 - 1)
    }
}

/// Flows of a run.
pub(super) struct Flows {
    benign: Vec<Flow>,
    colliding: Vec<Flow>,
}

impl Flows {
    /// Returns `count` flows, the same in each run.
    pub(super) fn new(count: usize) -> Self {
        let mut state = 1;
        let mut seen = std::collections::BTreeSet::new();
        let mut benign = Vec::with_capacity(count);
        while benign.len() < count {
            let flow = Flow::random(&mut state);
            if seen.insert(flow.plain_key()) {
                benign.push(flow);
            }
        }
        // The attacker knows the algorithm, and guesses these factors.
        let mut supposed = 7;
        let factors = [(); HASH_KEYS].map(|()| split_mix(&mut supposed));
        let mut colliding = Vec::with_capacity(COLLIDING);
        while colliding.len() < COLLIDING {
            let flow = Flow::random(&mut state);
            if flow.slot(&factors) == 0 {
                colliding.push(flow);
            }
        }
        Self { benign, colliding }
    }

    pub(super) fn benign(&self) -> &[Flow] {
        &self.benign
    }

    pub(super) fn colliding(&self) -> &[Flow] {
        &self.colliding
    }
}

/// Returns the next number of SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns random hash factors, drawn as a node draws them.
pub(super) fn hash_keys() -> Result<[u64; HASH_KEYS]> {
    let mut bytes = [[0; 8]; HASH_KEYS];
    let mut random = File::open("/dev/urandom").context("opening /dev/urandom")?;
    random.read_exact(bytes.as_flattened_mut()).context("reading /dev/urandom")?;
    Ok(bytes.map(u64::from_ne_bytes))
}
