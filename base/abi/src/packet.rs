//! Packet access of host functions: bytes that can be read, written and resized.
//!
//! Contract of [`PacketBytes`], at every level: no method panics, whatever its arguments are, and
//! one that returns an error has changed neither the packet nor the caller's buffer.

use std::ops::Range;

use crate::host::FRAME_LENGTH_MIN;
use crate::layout::PACKET_LENGTH_MAX;

/// Bytes by which every level can move either end of a packet outwards in one call.
pub const RESIZE_ROOM: usize = 128;

const _: () = assert!(FRAME_LENGTH_MIN + RESIZE_ROOM <= PACKET_LENGTH_MAX as usize);

/// Reason for refusing a packet access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The range does not lie within the packet.
    #[error("the range lies outside the packet")]
    OutOfRange,
    /// The packet would become longer than its memory or than the longest packet, or shorter than
    /// an Ethernet header.
    #[error("the packet cannot take that length")]
    OverLimit,
}

/// Packet in any memory: frames of a UMEM, a capture.
///
/// A packet need not be contiguous. Offsets are in bytes from its first byte.
pub trait PacketBytes {
    /// Returns the packet's length on the wire, bytes. Never 0.
    fn length(&self) -> usize;

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`PacketError::OutOfRange`] when the packet ends before the last of them.
    fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), PacketError>;

    /// Writes `bytes` at `offset`; the length does not change.
    ///
    /// # Errors
    /// [`PacketError::OutOfRange`] when the packet ends before the last of them.
    fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), PacketError>;

    /// Moves the first byte by `delta` bytes: a positive one adds zeroed bytes in front, a negative
    /// one removes bytes there.
    ///
    /// # Errors
    /// [`PacketError::OverLimit`] beyond the limits of [`resized`], or when the packet's
    /// memory has no space in front.
    fn resize_head(&mut self, delta: i32) -> Result<(), PacketError>;

    /// Moves the last byte by `delta` bytes: a positive one adds zeroed bytes at the end, a
    /// negative one removes bytes there.
    ///
    /// # Errors
    /// [`PacketError::OverLimit`] beyond the limits of [`resized`], or when the packet's
    /// memory has no space at the end.
    fn resize_tail(&mut self, delta: i32) -> Result<(), PacketError>;
}

/// Packet in a vector of its own: for `tam run`, tests and the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPacket(Vec<u8>);

impl OwnedPacket {
    /// Wraps the bytes of one packet, at least one.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the packet's bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl PacketBytes for OwnedPacket {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), PacketError> {
        let range = range(offset, out.len())?;
        out.copy_from_slice(self.0.get(range).ok_or(PacketError::OutOfRange)?);
        Ok(())
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), PacketError> {
        let range = range(offset, bytes.len())?;
        self.0.get_mut(range).ok_or(PacketError::OutOfRange)?.copy_from_slice(bytes);
        Ok(())
    }

    fn resize_head(&mut self, delta: i32) -> Result<(), PacketError> {
        let count = resized(self.0.len(), delta)?;
        if delta >= 0 {
            self.0.splice(0..0, core::iter::repeat_n(0, count));
        } else {
            self.0.drain(..count);
        }
        Ok(())
    }

    fn resize_tail(&mut self, delta: i32) -> Result<(), PacketError> {
        let count = resized(self.0.len(), delta)?;
        let length = if delta >= 0 { self.0.len() + count } else { self.0.len() - count };
        self.0.resize(length, 0);
        Ok(())
    }
}

/// Returns the number of bytes that a change by `delta` adds to a packet of `length` bytes or
/// removes from it, if all levels allow the change.
///
/// # Errors
/// [`PacketError::OverLimit`] when more than [`RESIZE_ROOM`] bytes are to be added, the packet would
/// be longer than [`PACKET_LENGTH_MAX`], or less than an Ethernet header would be left: the kernel,
/// and so `nic` and `kernel`, has no shorter packets. A packet that is shorter already can grow.
pub fn resized(length: usize, delta: i32) -> Result<usize, PacketError> {
    let count = delta.unsigned_abs() as usize;
    let fits = if delta >= 0 {
        count <= RESIZE_ROOM && length <= PACKET_LENGTH_MAX as usize - count
    } else {
        length.checked_sub(count).is_some_and(|rest| rest >= FRAME_LENGTH_MIN)
    };
    if fits { Ok(count) } else { Err(PacketError::OverLimit) }
}

fn range(offset: usize, length: usize) -> Result<Range<usize>, PacketError> {
    Ok(offset..offset.checked_add(length).ok_or(PacketError::OutOfRange)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_ethernet_header_is_left_of_every_packet() {
        let mut packet = OwnedPacket::new((0..16).collect());
        assert_eq!(packet.resize_tail(-3), Err(PacketError::OverLimit));
        assert_eq!(packet.resize_head(-2), Ok(()));
        assert_eq!(packet.resize_head(-1), Err(PacketError::OverLimit));
        assert_eq!(packet.resize_head(2), Ok(()));
        assert_eq!(packet.into_bytes(), [0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        // A packet that was shorter from the start keeps its length.
        let mut packet = OwnedPacket::new(vec![1, 2]);
        assert_eq!(packet.resize_tail(-1), Err(PacketError::OverLimit));
        assert_eq!((packet.resize_tail(0), packet.length()), (Ok(()), 2));
    }

    #[test]
    fn an_access_outside_changes_nothing() {
        let mut packet = OwnedPacket::new(vec![1, 2, 3]);
        assert_eq!(packet.store(2, &[9, 9]), Err(PacketError::OutOfRange));
        assert_eq!(packet.load(usize::MAX, &mut [0; 2]), Err(PacketError::OutOfRange));
        assert_eq!(packet.into_bytes(), [1, 2, 3]);
    }

    #[test]
    fn a_packet_grows_by_the_headroom_of_every_level_and_to_the_maximum_length() {
        let room = RESIZE_ROOM as i32;
        assert_eq!(resized(FRAME_LENGTH_MIN, room), Ok(RESIZE_ROOM));
        assert_eq!(resized(FRAME_LENGTH_MIN, room + 1), Err(PacketError::OverLimit));
        let longest = PACKET_LENGTH_MAX as usize;
        assert_eq!(resized(longest - 1, 1), Ok(1));
        assert_eq!(resized(longest - 1, 2), Err(PacketError::OverLimit));
        assert_eq!(resized(longest, 0), Ok(0));
        assert_eq!(resized(longest, 1), Err(PacketError::OverLimit));
        assert_eq!(resized(longest, i32::MAX), Err(PacketError::OverLimit));
        assert_eq!(resized(longest, i32::MIN), Err(PacketError::OverLimit));
    }

    proptest! {
        #[test]
        fn a_resize_is_undone_by_its_opposite_and_one_that_is_refused_changes_nothing(
            bytes in prop::collection::vec(1..=u8::MAX, 1..300),
            delta in -300i32..300,
            at_head: bool,
        ) {
            let mut packet = OwnedPacket::new(bytes.clone());
            let mut resize = |delta| match at_head {
                true => packet.resize_head(delta),
                false => packet.resize_tail(delta),
            };
            let changed = resize(delta).is_ok();
            if changed && delta >= 0 && bytes.len() >= FRAME_LENGTH_MIN {
                prop_assert_eq!(resize(-delta), Ok(()));
            }
            let left = packet.into_bytes();
            let (count, length) = (delta.unsigned_abs() as usize, bytes.len());
            match changed && delta < 0 {
                true if at_head => prop_assert_eq!(left, &bytes[count..]),
                true => prop_assert_eq!(left, &bytes[..length - count]),
                false if changed && length < FRAME_LENGTH_MIN => {
                    prop_assert_eq!(left.len(), length + count);
                }
                false => prop_assert_eq!(left, bytes),
            }
        }
    }
}
