//! Packets that come up from modules at kernel level, by a TAP device.
//!
//! ```text
//! │ metadata, 32 bytes │ the frame as it came, tags in line │
//! ```

use bpf_maps::PacketMeta;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

const META_LENGTH: usize = size_of::<PacketMeta>();
/// The largest frame: MTU 9,000, the Ethernet header and two tags, and as much as makes it round.
const FRAME_LENGTH_MAX: usize = 9216;

/// The reading end.
#[derive(Debug)]
pub(crate) struct Up {
    device: OwnedFd,
    buffer: Box<[u8; META_LENGTH + FRAME_LENGTH_MAX]>,
    /// Frames too short for metadata since the last look: not the front door's.
    bare: u64,
}

impl Up {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device, buffer: Box::new([0; META_LENGTH + FRAME_LENGTH_MAX]), bare: 0 }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// The next packet, if there is one.
    pub(crate) fn next(&mut self) -> Option<(PacketMeta, &[u8])> {
        loop {
            // Nothing there, or a signal: the next turn reads again.
            let length = rustix::io::read(&self.device, self.buffer.as_mut_slice()).ok()?;
            if length > META_LENGTH {
                let (meta, frame) = self.buffer[..length].split_at(META_LENGTH);
                return Some((bytemuck::pod_read_unaligned(meta), frame));
            }
            self.bare += 1;
        }
    }

    pub(crate) fn take_bare(&mut self) -> u64 {
        std::mem::take(&mut self.bare)
    }
}
