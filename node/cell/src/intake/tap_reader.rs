//! Packets that come up from modules at kernel level, by a TAP device.
//!
//! ```text
//! │ metadata, 32 bytes │ mark, 16 bytes, with META_MARK │ the frame as it came, tags in line │
//! ```

use abi::layout::MARK_LENGTH;
use bpf_maps::{META_MARK, PacketMeta};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

const META_LENGTH: usize = size_of::<PacketMeta>();
/// Length of metadata with a mark.
pub(crate) const MARKED_LENGTH: usize = META_LENGTH + MARK_LENGTH;
/// Largest frame in bytes: MTU 9,000, the Ethernet header and two tags, rounded up.
const FRAME_LENGTH_MAX: usize = 9216;

/// Returns the mark in front of metadata, as it lies in front of a packet.
pub(crate) fn mark_of(bytes: [u8; MARKED_LENGTH]) -> [u8; MARK_LENGTH] {
    std::array::from_fn(|at| bytes[at])
}

/// Reading end of the TAP device, with the frame that was read last.
#[derive(Debug)]
pub(crate) struct TapReader {
    device: OwnedFd,
    buffer: Box<[u8; MARKED_LENGTH + FRAME_LENGTH_MAX]>,
    /// Number of frames too short for metadata: they are not the front door's.
    bare: u64,
}

impl TapReader {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device, buffer: Box::new([0; MARKED_LENGTH + FRAME_LENGTH_MAX]), bare: 0 }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns the next packet, if there is one.
    pub(crate) fn next(&mut self) -> Option<(PacketMeta, [u8; MARK_LENGTH], &[u8])> {
        loop {
            // No frame, or a signal: the next round reads again.
            let length = rustix::io::read(&self.device, self.buffer.as_mut_slice()).ok()?;
            if length > META_LENGTH {
                let (meta, frame) = self.buffer[..length].split_at(META_LENGTH);
                let meta: PacketMeta = bytemuck::pod_read_unaligned(meta);
                return Some(match frame.split_first_chunk() {
                    Some((mark, frame)) if meta.flags & META_MARK != 0 => (meta, *mark, frame),
                    _ => (meta, [0; MARK_LENGTH], frame),
                });
            }
            self.bare += 1;
        }
    }

    /// Returns the number of frames that were too short for metadata.
    pub(crate) const fn bare(&self) -> u64 {
        self.bare
    }
}
