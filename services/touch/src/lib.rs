//! `touch`: reads every byte of each packet, `passes` times, and forwards. Reproduces the
//! measurement of the AMnet paper: throughput by passes, by packet size, by load.
//!
//! Each pass is one FNV-1a hash that begins where the last one ended, so that none can be optimised
//! away; the last hash of each packet is added to the counter `checksum`, which native code of the
//! same source must reach too.

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

pub mod pass;

use core::sync::atomic::{AtomicU8, Ordering};

use tam::{Packet, Verdict};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
}

tam::counters! {
    /// Packets received.
    static PACKETS = "packets";
    /// Bytes of these packets.
    static BYTES = "bytes";
    /// Sum of the packets' last hashes, modulo 2^64.
    static CHECKSUM = "checksum";
}

/// Largest number of passes: that of the paper's figure 3.
const PASSES_MAX: u8 = 4;
/// Code with which `on_start` refuses a parameter above [`PASSES_MAX`].
const REFUSE_PASSES: u16 = 1;
/// Reason with which `on_packet` drops a packet of which the node does not return an announced
/// byte.
const DROP_UNREADABLE: u16 = 1;
/// Bytes that one `packet_load` fetches: an Ethernet jumbo frame takes four calls.
const CHUNK_LENGTH: usize = 2048;

/// Number of passes over each packet.
static PASSES: AtomicU8 = AtomicU8::new(1);
/// Buffer for the bytes beyond the window, one chunk at a time.
static CHUNK: tam::State<[u8; CHUNK_LENGTH]> = tam::State::new([0; CHUNK_LENGTH]);

fn on_start() -> Result<(), u16> {
    let passes = tam::parameter("passes").unwrap_or(1);
    if passes > PASSES_MAX {
        return Err(REFUSE_PASSES);
    }
    PASSES.store(passes, Ordering::Relaxed);
    Ok(())
}

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    PACKETS.add(1);
    BYTES.add(packet.length() as u64);
    let passes = PASSES.load(Ordering::Relaxed);
    if passes == 0 {
        return Verdict::PASS;
    }
    let mut hash = pass::BASIS;
    for _ in 0..passes {
        hash = pass::pass_on(hash, packet.window());
        match beyond_window(packet, hash) {
            Some(whole) => hash = whole,
            None => return Verdict::Drop { reason: DROP_UNREADABLE },
        }
    }
    CHECKSUM.add(u64::from(hash));
    Verdict::PASS
}

/// Continues the hash with the bytes beyond the window.
fn beyond_window(packet: &Packet<'_>, mut hash: u32) -> Option<u32> {
    let length = packet.length();
    let mut at = packet.window().len();
    if at >= length {
        return Some(hash);
    }
    CHUNK.with(|chunk| {
        while at < length {
            let piece = chunk.get_mut(..(length - at).min(CHUNK_LENGTH))?;
            packet.load(at, piece).ok()?;
            hash = pass::pass_on(hash, piece);
            at += piece.len();
        }
        Some(hash)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tam::testing::Node;

    /// Returns a frame like those of the benchmark: a counting pattern of `length` bytes.
    fn frame(length: usize) -> Vec<u8> {
        (0..length).map(|at| at as u8).collect()
    }

    /// Returns the amount that one packet adds to the checksum, computed by plain native code.
    fn expected(frame: &[u8], passes: u8) -> u64 {
        if passes == 0 {
            return 0;
        }
        let rest = (1..passes).fold(pass::pass(frame), |hash, _| pass::pass_on(hash, frame));
        u64::from(rest)
    }

    #[test]
    fn every_byte_is_read_in_every_pass() {
        for passes in 0..=PASSES_MAX {
            let mut node = Node::new().with_parameter("passes", &[passes]);
            node.start(on_start).unwrap();
            for length in [1, 60, 1474, 2048, 2049, 4096, 4097, 9014] {
                let frame = frame(length);
                let before = CHECKSUM.value();
                let outcome = node.packet(on_packet, &frame);
                assert_eq!((outcome.verdict, &outcome.bytes), (Verdict::PASS, &frame));
                let added = CHECKSUM.value().wrapping_sub(before);
                assert_eq!(added, expected(&frame, passes), "{length} bytes, {passes} passes");
            }
        }
    }

    #[test]
    fn a_changed_byte_changes_the_checksum() {
        let mut node = Node::new();
        node.start(on_start).unwrap();
        let whole = frame(9014);
        let sum_of = |node: &mut Node, frame: &[u8]| {
            let before = CHECKSUM.value();
            node.packet(on_packet, frame);
            CHECKSUM.value().wrapping_sub(before)
        };
        let sum = sum_of(&mut node, &whole);
        for at in [0, 2047, 2048, 4095, 4096, 9013] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_ne!(sum_of(&mut node, &changed), sum, "byte {at}");
        }
    }

    #[test]
    fn more_passes_than_the_paper_has_are_refused() {
        assert_eq!(Node::new().with_parameter("passes", &[5]).start(on_start), Err(REFUSE_PASSES));
    }
}
