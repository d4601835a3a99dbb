//! Hand-over of programs that are not called by a front door.

use std::sync::atomic::Ordering;

use abi::Meta;
use abi::layout::{
    BEGINS_WITH_ETHERNET, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, META_LENGTH, OFFSET_NONE,
};
use bpf::{Block, MappedBlock};
use units::SessionId;
use wasm_to_bpf::layout::hand_over;
use wire::{Fragment, flow_hash, parse_frame};

use super::BelowError;

/// Creates a hand-over for programs of one instance at a time.
///
/// # Errors
/// The kernel lacks memory for it.
pub fn new_hand_over() -> Result<Block, BelowError> {
    Ok(Block::create("tam_hand_over", hand_over::LENGTH)?)
}

/// Writes the metadata of the next packet, as a front door would.
pub fn give(hand_over: &MappedBlock, meta: &Meta) {
    let mut bytes = [0; META_LENGTH];
    meta.write_to(&mut bytes);
    give_bytes(hand_over, &bytes);
}

/// Writes metadata bytes, including those that no front door would write.
pub fn give_bytes(hand_over: &MappedBlock, metadata: &[u8; META_LENGTH]) {
    for (bytes, at) in metadata.as_chunks().0.iter().zip((hand_over::METADATA..).step_by(8)) {
        if let Some(word) = hand_over.u64(at) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
    }
}

/// Returns the metadata that a front door would write for a frame that arrived by port 0; without
/// offsets for a frame that is not IP. The caller sets the window length.
#[must_use]
pub fn metadata_of(frame: &[u8]) -> Meta {
    let parsed = parse_frame(frame).ok();
    let fragment = parsed.map_or(Fragment::None, |parsed| parsed.fragment);
    Meta {
        packet_length: u32::try_from(frame.len()).unwrap_or(u32::MAX),
        window_length: 0,
        l3_offset: parsed.map_or(OFFSET_NONE, |parsed| parsed.l3_offset),
        l4_offset: parsed.and_then(|parsed| parsed.l4_offset).unwrap_or(OFFSET_NONE),
        begins_with: BEGINS_WITH_ETHERNET,
        ip_version: parsed.map_or(0, |parsed| parsed.ip_version),
        protocol: parsed.map_or(0, |parsed| parsed.protocol),
        flags: match fragment {
            Fragment::None => 0,
            Fragment::First => META_FRAGMENT,
            Fragment::Later => META_FRAGMENT | META_LATER_FRAGMENT,
        },
        port: 0,
        session: SessionId::BEST_EFFORT.0,
        rule: 1,
        flow_hash: parsed.map_or(0, |parsed| flow_hash(&parsed)),
        lane: 0,
        now_ms: 1,
        mark: [0; MARK_LENGTH],
    }
}
