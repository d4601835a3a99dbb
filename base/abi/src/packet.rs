//! The packet as host functions see it: bytes that can be read, written and resized.

use crate::host::FRAME_LENGTH_MIN;

/// Why a packet access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The range does not lie within the packet.
    #[error("the range lies outside the packet")]
    OutOfRange,
    /// There is no room for what was asked.
    #[error("the packet cannot take that length")]
    OverLimit,
}

/// One packet, wherever it lies: a frame in a UMEM, bytes from a capture.
///
/// A packet need not be contiguous. Positions count from its first byte.
pub trait PacketBytes {
    /// Bytes of the packet as on the wire. Never 0.
    fn length(&self) -> usize;

    /// Copies `out.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`PacketError::OutOfRange`] when the packet ends before that; nothing is copied.
    fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), PacketError>;

    /// Writes `bytes` at `offset`; the length does not change.
    ///
    /// # Errors
    /// [`PacketError::OutOfRange`] when the packet ends before that; nothing is written.
    fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), PacketError>;

    /// Moves the first byte: a positive `delta` adds zeroed bytes in front, a
    /// negative one removes them.
    ///
    /// # Errors
    /// [`PacketError::OverLimit`] when there is no room in front or less than an Ethernet header
    /// would be left.
    fn resize_head(&mut self, delta: i32) -> Result<(), PacketError>;

    /// Moves the last byte: a positive `delta` adds zeroed bytes at the end, a
    /// negative one removes them.
    ///
    /// # Errors
    /// [`PacketError::OverLimit`] when there is no room or less than an Ethernet header would be left.
    fn resize_tail(&mut self, delta: i32) -> Result<(), PacketError>;
}

/// A packet in ordinary memory: for `tam run`, tests and the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPacket(Vec<u8>);

impl OwnedPacket {
    /// Takes the bytes of one packet.
    #[must_use]
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Room in front of and behind a packet, in bytes, that every level offers.
pub const RESIZE_ROOM: usize = 128;

impl PacketBytes for OwnedPacket {
    fn length(&self) -> usize {
        self.0.len()
    }

    fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), PacketError> {
        let end = offset.checked_add(out.len()).ok_or(PacketError::OutOfRange)?;
        out.copy_from_slice(self.0.get(offset..end).ok_or(PacketError::OutOfRange)?);
        Ok(())
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) -> Result<(), PacketError> {
        let end = offset.checked_add(bytes.len()).ok_or(PacketError::OutOfRange)?;
        self.0.get_mut(offset..end).ok_or(PacketError::OutOfRange)?.copy_from_slice(bytes);
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

/// The number of bytes to add or remove, when that is allowed at every level.
///
/// # Errors
/// [`PacketError::OverLimit`] beyond [`RESIZE_ROOM`], past the longest packet, or when less than
/// an Ethernet header is left: the kernel, and so `nic` and `kernel`, has no shorter packets.
pub fn resized(length: usize, delta: i32) -> Result<usize, PacketError> {
    let count = delta.unsigned_abs() as usize;
    let fits = if delta >= 0 {
        count <= RESIZE_ROOM && length + count <= crate::layout::PACKET_LENGTH_MAX as usize
    } else {
        length.checked_sub(count).is_some_and(|rest| rest >= FRAME_LENGTH_MIN)
    };
    if fits { Ok(count) } else { Err(PacketError::OverLimit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_header_is_left_of_every_packet() {
        let mut packet = OwnedPacket::new((0..16).collect());
        assert_eq!(packet.resize_tail(-3), Err(PacketError::OverLimit));
        assert_eq!(packet.resize_head(-2), Ok(()));
        assert_eq!(packet.resize_head(-1), Err(PacketError::OverLimit));
        assert_eq!(packet.resize_head(2), Ok(()));
        assert_eq!(packet.into_bytes(), [0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        // One that came shorter stays as it is.
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
}
