//! Origin of a packet at a service: its metadata, and who counted it.

use abi::Meta;
use abi::layout::{
    BEGINS_WITH_DATA, BEGINS_WITH_ETHERNET, MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT,
    OFFSET_NONE,
};
use bpf_maps::{self as maps, PacketMeta};
use units::{Bytes, CoarseInstant, EntryId, SessionId};

/// Origin of a packet at a service.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) meta: PacketMeta,
    /// Mark that the previous module left.
    pub(crate) mark: [u8; MARK_LENGTH],
    /// Number of its batch, if it came directly from the front door, which has counted it; `None`
    /// if it came from another service.
    pub(crate) batch: Option<u64>,
    /// Service whose lane has counted it, while it is with another.
    pub(crate) counted_by: Option<EntryId>,
    /// Bytes of queue credit that it holds.
    pub(crate) credit: Bytes,
}

impl Origin {
    /// Creates the origin of a packet that came directly from the front door, in this batch.
    #[inline]
    pub(crate) const fn from_door(meta: PacketMeta, mark: [u8; MARK_LENGTH], batch: u64) -> Self {
        Self { meta, mark, batch: Some(batch), counted_by: None, credit: Bytes::ZERO }
    }

    /// Returns true if the front door has counted the packet in the lane of the service that it is
    /// with.
    #[inline]
    pub(super) const fn is_counted(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns the epoch of a packet that the lane of `entry` has counted; `own` is the service
    /// that the packet is with.
    pub(super) fn epoch_counted_by(&self, entry: EntryId, own: EntryId) -> Option<u8> {
        let is_counted = self.counted_by == Some(entry) || (own == entry && self.is_counted());
        is_counted.then(|| self.meta.epoch())
    }

    /// Converts the front door's metadata to the ABI's.
    #[inline]
    pub(super) fn module_meta(&self, session: SessionId, now: CoarseInstant) -> Meta {
        module_meta(&self.meta, session, self.mark, now)
    }
}

/// Converts the front door's metadata to the ABI's.
#[inline]
pub(super) fn module_meta(
    meta: &PacketMeta,
    session: SessionId,
    mark: [u8; MARK_LENGTH],
    now: CoarseInstant,
) -> Meta {
    let fragment = if meta.flags & maps::META_FRAGMENT != 0 { META_FRAGMENT } else { 0 };
    let later = if meta.flags & maps::META_LATER_FRAGMENT != 0 { META_LATER_FRAGMENT } else { 0 };
    let (begins_with, l3_offset, l4_offset) = match meta.flags & maps::META_DATA {
        0 => (BEGINS_WITH_ETHERNET, meta.l3_offset, meta.l4_offset),
        _ => (BEGINS_WITH_DATA, OFFSET_NONE, OFFSET_NONE),
    };
    Meta {
        packet_length: 0,
        window_length: 0,
        l3_offset,
        l4_offset,
        begins_with,
        ip_version: (meta.flags >> 8) as u8,
        protocol: (meta.flags >> 16) as u8,
        flags: fragment | later,
        port: meta.arrival_port,
        session: session.0,
        rule: u32::from(meta.rule),
        flow_hash: meta.flow_hash,
        lane: 0,
        now_ms: now.as_millis(),
        mark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(7);

    fn origin(meta: PacketMeta) -> Origin {
        Origin { meta, mark: [3; MARK_LENGTH], batch: None, counted_by: None, credit: Bytes::ZERO }
    }

    #[test]
    fn a_module_sees_what_the_front_door_knows_of_a_frame() {
        let meta = PacketMeta {
            flags: maps::META_LATER_FRAGMENT | 6 << 8 | 17 << 16,
            l3_offset: 18,
            l4_offset: 58,
            arrival_port: 2,
            rule: 9,
            flow_hash: 0x1234,
            ..PacketMeta::default()
        };
        let seen = origin(meta).module_meta(SESSION, CoarseInstant::from_millis(1_234));
        assert_eq!(
            (seen.begins_with, seen.l3_offset, seen.l4_offset),
            (BEGINS_WITH_ETHERNET, 18, 58)
        );
        assert_eq!((seen.ip_version, seen.protocol, seen.flags), (6, 17, META_LATER_FRAGMENT));
        assert_eq!((seen.port, seen.session, seen.rule, seen.flow_hash), (2, 7, 9, 0x1234));
        assert_eq!((seen.now_ms, seen.mark), (1_234, [3; MARK_LENGTH]));
    }

    #[test]
    fn the_payload_of_an_active_packet_has_no_headers() {
        let meta = PacketMeta { flags: maps::META_DATA, l3_offset: 14, ..PacketMeta::default() };
        let seen = origin(meta).module_meta(SESSION, CoarseInstant::ZERO);
        assert_eq!((seen.begins_with, seen.l3_offset), (BEGINS_WITH_DATA, OFFSET_NONE));
    }

    #[test]
    fn a_packet_is_counted_by_the_lane_that_it_came_to_or_by_one_before() {
        let (own, other) = (EntryId(1), EntryId(2));
        let meta = PacketMeta::default();
        let came = Origin { batch: Some(5), ..origin(meta) };
        assert_eq!(came.epoch_counted_by(own, own), Some(meta.epoch()));
        assert_eq!(came.epoch_counted_by(other, own), None);
        let passed_on = Origin { counted_by: Some(other), ..origin(meta) };
        assert_eq!(passed_on.epoch_counted_by(own, own), None);
        assert_eq!(passed_on.epoch_counted_by(other, own), Some(meta.epoch()));
    }
}
