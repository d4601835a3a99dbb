//! Devices that a cell and the kernel have between them, and the maps that all services share.

use super::{devices, way_back};
use anyhow::Result;
use bpf::FrontDoor;
use cell::protocol::ToCell;
use netlink::Netlink;
use sockets::frame_socket::FrameSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use units::Name;

/// Devices by which packets leave the cell for the kernel, and come up to it.
pub(crate) struct CellDevices {
    kernel: KernelDevice,
    /// TAP device by which packets come up from kernel level.
    up: Option<OwnedFd>,
    up_ifindex: u32,
}

/// Device by which packets reach the kernel that only the kernel can route.
enum KernelDevice {
    Tun(OwnedFd),
    /// Packet socket of a node without a front door, where TUN devices may be missing, too.
    Frames(FrameSocket),
}

impl CellDevices {
    /// Makes the devices of a node that starts.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn make(netlink: &Netlink, node: &Name, has_front_door: bool) -> Result<Self> {
        if !has_front_door {
            let kernel = KernelDevice::Frames(way_back::make_entry(netlink, node)?);
            return Ok(Self { kernel, up: None, up_ifindex: 0 });
        }
        let kernel = KernelDevice::Tun(devices::kernel_device(netlink, node)?);
        let (up_ifindex, up) = devices::up_device(netlink, node)?;
        Ok(Self { kernel, up: Some(up), up_ifindex })
    }

    /// Takes over the devices of a running cell.
    ///
    /// # Errors
    /// The devices are gone.
    pub(crate) fn adopt(
        netlink: &Netlink,
        node: &Name,
        kernel: OwnedFd,
        up: OwnedFd,
    ) -> Result<Self> {
        let up_ifindex = devices::up_index(netlink, node)?;
        Ok(Self { kernel: KernelDevice::Tun(kernel), up: Some(up), up_ifindex })
    }

    /// Returns the index of the device by which packets come up from kernel level; 0 without one.
    pub(super) const fn up_index(&self) -> u32 {
        self.up_ifindex
    }

    /// Returns the messages by which a cell gets devices and maps, with their descriptors.
    pub(super) fn messages<'a>(
        &'a self,
        front: Option<&'a FrontDoor>,
    ) -> Vec<(ToCell, Vec<BorrowedFd<'a>>)> {
        let mut messages = vec![match &self.kernel {
            KernelDevice::Tun(device) => (ToCell::Kernel, vec![device.as_fd()]),
            KernelDevice::Frames(socket) => (ToCell::KernelFrames, vec![socket.as_fd()]),
        }];
        let up = self.up.as_ref().map(AsFd::as_fd);
        messages.extend(up.map(|up| (ToCell::Tap, vec![up])));
        if let Some(front) = front {
            messages.push((ToCell::Lanes, vec![front.services().lanes_map().as_fd()]));
            messages.push((ToCell::QueueCredits, vec![front.services().credits_map().as_fd()]));
            messages.push((ToCell::PortShares, vec![front.accounts().port_shares_map().as_fd()]));
            messages.push((ToCell::RuleFacts, vec![front.services().facts_map().as_fd()]));
            let answers = |up| (ToCell::Answers, vec![up, front.answers_map().as_fd()]);
            messages.extend(up.map(answers));
        }
        messages
    }
}

#[cfg(test)]
impl CellDevices {
    /// Returns devices that are none.
    pub(super) fn fake() -> Self {
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        Self { kernel: KernelDevice::Tun(open()), up: Some(open()), up_ifindex: 7 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_front_door_a_cell_gets_the_devices_alone() {
        let devices = CellDevices::fake();
        let messages = devices.messages(None);
        let words: Vec<_> =
            messages.iter().map(|(message, fds)| (format!("{message:?}"), fds.len())).collect();
        assert_eq!(words, [("Kernel".to_owned(), 1), ("Tap".to_owned(), 1)]);
        let frames = CellDevices { up: None, ..CellDevices::fake() };
        assert_eq!((frames.messages(None).len(), devices.up_index()), (1, 7));
    }
}
