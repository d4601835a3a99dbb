//! Entry point for fuzzers: treats any frame as one that arrived for the node's associations.

use super::{ActiveDecision, Associations};
use crate::protocol::Answer;
use bpf_maps::{META_FRAGMENT, META_LATER_FRAGMENT, PacketMeta};
use std::rc::Rc;
use units::CoarseInstant;
use wire::{Fragment, parse_frame};
use xsk::{Packet, Umem};

/// Frames of memory: for one packet, and the head of its answer.
const FRAMES: u32 = 16;
/// Longest answer in bytes.
const MTU: usize = 9000;

/// Returns the payload of a call in a frame without an association, and the frame of the answer, if
/// its service bounces it. Returns `None` if the frame is no call.
#[must_use]
pub fn bounced(frame: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let parsed = parse_frame(frame).ok()?;
    let fragment = match parsed.fragment {
        Fragment::None => 0,
        Fragment::First => META_FRAGMENT,
        Fragment::Later => META_FRAGMENT | META_LATER_FRAGMENT,
    };
    let protocol = u32::from(parsed.protocol) << 16 | u32::from(parsed.ip_version) << 8;
    let meta = PacketMeta {
        l3_offset: parsed.l3_offset,
        l4_offset: parsed.l4_offset.unwrap_or(u16::MAX),
        flags: protocol | fragment,
        ..bytemuck::Zeroable::zeroed()
    };
    let (umem, mut pool) = Umem::new(FRAMES).ok()?;
    let umem = Rc::new(umem);
    let mut packet = Packet::allocate(&umem, &mut pool, frame.len())?;
    abi::PacketBytes::store(&mut packet, 0, frame).ok()?;
    let mut associations = Associations::default();
    let bytes = |packet: &Packet| packet.chunks().flatten().copied().collect::<Vec<u8>>();
    let ActiveDecision::Wait(Some(question)) =
        associations.take(&mut packet, &meta, CoarseInstant::ZERO)
    else {
        return None;
    };
    let payload = bytes(&packet);
    associations.keep(packet, meta, CoarseInstant::ZERO, &mut pool);
    associations.answered(
        question,
        Answer::Service(units::EntryId(1)),
        CoarseInstant::ZERO,
        &mut pool,
    );
    let (mut packet, ..) = associations.next_ready()?;
    let answer = associations.answer(&mut packet, MTU).is_ok().then(|| bytes(&packet));
    Some((payload, answer))
}
