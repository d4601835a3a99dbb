//! The metadata of a packet, as a node would give it, and the map in which
//! programs find it.

use abi::Meta;
use abi::layout::{
    BEGINS_WITH_ETHERNET, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, META_LENGTH, OFFSET_NONE,
};
use bpf::{Map, MapError, possible_cpus};
use bytemuck::{Pod, Zeroable};
use wire::{Fragment, flow_hash, parse_frame};

/// A value of the hand-over: `struct hand_over` of functions/xdp.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct HandOver {
    metadata: [u64; META_LENGTH / 8],
    afterwards: [u32; 6],
}

const _: () = assert!(size_of::<HandOver>() >= wasm_to_bpf::layout::hand_over::LENGTH_MIN as usize);

/// Writes a packet's metadata for every CPU.
pub(super) fn give(map: &Map, packet: &[u8], window: u32, now_ms: u64) -> Result<(), MapError> {
    let mut value = HandOver::zeroed();
    let mut meta = metadata(packet, now_ms);
    meta.window_length = meta.packet_length.min(window);
    let mut bytes = [0; META_LENGTH];
    meta.write_to(&mut bytes);
    bytemuck::bytes_of_mut(&mut value.metadata).copy_from_slice(&bytes);
    map.update_percpu(&0u32, &vec![value; possible_cpus()])
}

/// What a node says of a packet that came in by port 0; the window is for whoever knows it.
#[must_use]
pub fn metadata(packet: &[u8], now_ms: u64) -> Meta {
    let parsed = parse_frame(packet).ok();
    let fragment = parsed.map_or(Fragment::None, |parsed| parsed.fragment);
    Meta {
        packet_length: u32::try_from(packet.len()).unwrap_or(u32::MAX),
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
        session: 1,
        rule: 1,
        flow_hash: parsed.map_or(0, |parsed| flow_hash(&parsed)),
        lane: 0,
        now_ms,
        mark: [0; MARK_LENGTH],
    }
}
