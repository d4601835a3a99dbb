//! Sockets of packet ports: devices without XDP, whose frames the cell receives by packet sockets.
//!
//! ```text
//!  wire ─▶ device ─▶ packet socket ─▶ cell ─▶ a service, or
//!             │                        └─▶ tpa-N ═ tpb-N ─▶ redirected: comes in by the device
//!             └─▶ taken from the kernel ◀── once more, marked ──────────┘
//!                     └─ marked ─▶ the kernel's stack
//! ```
//!
//! A frame that the kernel shall have goes back in by a veth pair of the node's, so that the
//! kernel sees it on its device and as it came. What takes frames from the kernel ends with the
//! cell and the daemon: without both the kernel has them all, unless a service is closed. Then
//! the ingress of the device stays closed until the node is taken down, or the last such service
//! is gone. ADR 0007 has the why.

use super::door::Door;
use super::live_port::LivePort;
use super::way_back;
use anyhow::{Context, Result};
use netlink::{Diversion, Netlink};
use sockets::frame_socket::{FrameSocket, SENT_MARK, TAKEN_MARK};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Packet socket of a port that a cell serves.
#[derive(Debug)]
pub(super) struct PacketQueue {
    socket: FrameSocket,
    /// Table that keeps the frames from the kernel, from the moment when the cell has them.
    taken: Option<Diversion>,
    /// Frames of the port that were counted before this socket.
    before: u64,
}

impl PacketQueue {
    /// Opens the socket of a port. Returns it with the cell's end of the way back into the kernel.
    ///
    /// # Errors
    /// The kernel does not open them.
    pub(super) fn open(
        door: &Door,
        netlink: &Netlink,
        port: &LivePort,
    ) -> Result<(Self, FrameSocket)> {
        let device = port.config().ifindex;
        let socket =
            FrameSocket::open_marked(device, SENT_MARK).context("opening a packet socket")?;
        let back = way_back::open(netlink, device)?;
        let before = door.port_stats(port.id())?.rx_packets;
        Ok((Self { socket, taken: None, before }, back))
    }

    /// Takes the port's frames from the kernel, now that the cell has the socket: one that comes
    /// just now is lost; none is handled twice. Returns a copy of the descriptor that keeps them
    /// taken.
    ///
    /// # Errors
    /// The kernel keeps them.
    pub(super) fn take_frames(&mut self, port: &LivePort) -> Result<OwnedFd> {
        let device = &port.spec().device;
        let taken = Diversion::take(device, port.config().ifindex, TAKEN_MARK)?;
        let room = self.socket.take()?;
        tracing::debug!(port = %port.name(), room, "the cell has the port's frames");
        let copy = taken.as_fd().try_clone_to_owned()?;
        self.taken = Some(taken);
        Ok(copy)
    }

    /// Returns the number of frames dropped because the socket's buffer was full.
    pub(super) fn dropped(&self) -> u64 {
        self.socket.counted().map_or(0, |counted| counted.dropped)
    }

    /// Returns the port's frames to the kernel. Returns the number of frames that waited for the
    /// cell, and of those dropped because the buffer was full.
    pub(super) fn close(self, door: &Door, port: &LivePort) -> (u64, u64) {
        let Self { socket, taken, before } = self;
        drop(taken);
        let counted = socket.counted().unwrap_or_default();
        let handled = door.port_stats(port.id()).map_or(0, |stats| stats.rx_packets);
        let left = counted.received.saturating_sub(handled.saturating_sub(before));
        (left, counted.dropped)
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
