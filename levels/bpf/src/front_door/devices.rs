//! Node's own devices in the front door: the one by which packets come up to the cell, the one by
//! which they go from there to the kernel, and the answers to route queries.

use std::mem::offset_of;
use std::path::PathBuf;
use std::sync::Arc;

use bpf_maps::Config;

use super::FrontDoorError;
use super::maps::Maps;
use crate::pin;
use crate::program::{Link, Program};

/// Index of the word of [`Config`] that holds the interface indexes of the two devices.
const DEVICES_WORD: usize = offset_of!(Config, up_ifindex) / 8;
const _: () = assert!(offset_of!(Config, up_ifindex) == DEVICES_WORD * 8);
const _: () = assert!(offset_of!(Config, kernel_ifindex) == DEVICES_WORD * 8 + 4);
/// Index of the word that tells whether there are shares; it also holds the length of a tick.
const SHARES_WORD: usize = offset_of!(Config, tick_ns) / 8;
const _: () = assert!(offset_of!(Config, shares) == SHARES_WORD * 8 + 4);

/// Devices of the node itself.
#[derive(Debug)]
pub(super) struct Devices {
    maps: Arc<Maps>,
    /// Pin of the link of the program that answers the cell.
    pin: PathBuf,
    /// Program that answers the cell, at tcx ingress of the device by which packets come up.
    ask: Program,
}

impl Devices {
    /// Starts without devices.
    pub(super) const fn new(maps: Arc<Maps>, pin: PathBuf, ask: Program) -> Self {
        Self { maps, pin, ask }
    }

    /// Sets the device by which packets go from tc to the cell.
    pub(super) fn set_raise(&self, ifindex: u32) {
        self.maps.set_word(DEVICES_WORD, [ifindex, self.maps.config().kernel_ifindex]);
    }

    /// Sets the device by which the cell gives packets to the kernel.
    pub(super) fn set_kernel(&self, ifindex: u32) {
        self.maps.set_word(DEVICES_WORD, [self.maps.config().up_ifindex, ifindex]);
    }

    /// Sets whether sessions have shares of some port's rate.
    pub(super) fn set_has_shares(&self, has_shares: bool) {
        self.maps.set_word(SHARES_WORD, [self.maps.config().tick_ns, u32::from(has_shares)]);
    }

    /// Attaches the program that answers the cell's queries to a device.
    pub(super) fn answer_at(&self, ifindex: u32) -> Result<(), FrontDoorError> {
        if let Ok(link) = Link::open_pinned(&self.pin) {
            if link.ifindex().is_ok_and(|found| found == ifindex) {
                return Ok(());
            }
            // The device of a previous daemon is gone.
            pin::unpin(&self.pin)?;
        }
        Ok(self.ask.attach_tcx(ifindex)?.pin(&self.pin)?)
    }
}
