//! Devices of the node's own in the front door: the one by which packets come up to the cell, the
//! one by which they go from there to the kernel, and the answers about where they would leave.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use bpf_maps::Config;

use super::{ANSWERS, FrontDoor, FrontDoorError};
use crate::map::Map;
use crate::pin;
use crate::program::Link;

/// The word of [`Config`] that holds the indexes of the two devices.
const DEVICES_WORD: usize = offset_of!(Config, up_ifindex) / 8;
const _: () = assert!(offset_of!(Config, up_ifindex) == DEVICES_WORD * 8);
const _: () = assert!(offset_of!(Config, kernel_ifindex) == DEVICES_WORD * 8 + 4);
/// The word that says whether somebody has a share, behind the length of a tick.
const SHARES_WORD: usize = offset_of!(Config, tick_ns) / 8;
const _: () = assert!(offset_of!(Config, shares) == SHARES_WORD * 8 + 4);

impl FrontDoor {
    /// Names the TAP device by which packets go from tc to the cell: modules at kernel level
    /// raise by it. Without one what would go up goes as if there were no rule.
    ///
    /// A frame that is read from it begins with [`bpf_maps::PacketMeta`], the frame as it came
    /// follows, tags in line. The device is up, and takes frames longer by 32 bytes than the
    /// ports do; a queueing discipline would only change their order (`noqueue`).
    pub fn set_up_device(&self, ifindex: Option<u32>) {
        self.set_devices(ifindex.unwrap_or(0), self.config().kernel_ifindex);
    }

    /// Names the device by which the cell gives packets to the kernel: they come in by it when
    /// the kernel routes them.
    pub fn set_kernel_device(&self, ifindex: u32) {
        self.set_devices(self.config().up_ifindex, ifindex);
    }

    fn set_devices(&self, up: u32, kernel: u32) {
        self.set_word(DEVICES_WORD, [up, kernel]);
    }

    /// Says whether sessions have shares of some port's rate: packets that modules leave to the
    /// kernel are looked at only then.
    pub fn set_has_shares(&self, has_shares: bool) {
        self.set_word(SHARES_WORD, [self.config().tick_ns, u32::from(has_shares)]);
    }

    /// Stores two fields that lie in one word, so that no packet sees half of it.
    fn set_word(&self, at: usize, fields: [u32; 2]) {
        if let Some(word) = self.shared.word(0, at) {
            word.store(bytemuck::cast(fields), Ordering::Release);
        }
    }

    /// Answers, on the TAP device by which packets come up, what the cell asks there
    /// ([`Answers`](crate::Answers)); the program stays when this process ends.
    ///
    /// # Errors
    /// When the kernel has no tcx, or the BPF file system refuses.
    pub fn answer_at(&self, ifindex: u32) -> Result<(), FrontDoorError> {
        let pin = self.folder.join("asked");
        if let Ok(link) = Link::open_pinned(&pin) {
            if link.ifindex().is_ok_and(|found| found == ifindex) {
                return Ok(());
            }
            // The device of a daemon before is gone.
            pin::unpin(&pin)?;
        }
        Ok(self.ask.attach_tcx(ifindex)?.pin(&pin)?)
    }

    /// The map of answers, for [`Answers`](crate::Answers) elsewhere.
    #[must_use]
    pub fn answers_map(&self) -> &Map {
        self.map(ANSWERS)
    }
}
