//! Raw frames into and out of a host's device.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sockets::packet_socket::PacketSocket;

use crate::net::Net;

/// Silence after which no more frames are awaited.
const SILENCE: Duration = Duration::from_millis(200);

/// Packet socket on the device of one end of a link, for frames as they are on the wire.
#[derive(Debug)]
pub struct RawPort {
    socket: PacketSocket,
    mac: [u8; 6],
}

impl RawPort {
    /// Opens the device of the link from `node` to `peer`. Frames that arrive from now on are kept.
    ///
    /// # Errors
    /// The link does not exist, or the caller is not root.
    pub fn open(net: &Net, node: &str, peer: &str) -> Result<Self> {
        let device = net.device(node, peer)?;
        let socket = net
            .within(node, || PacketSocket::open(device.index))?
            .with_context(|| format!("opening a packet socket on {}", device.name))?;
        Ok(Self { socket, mac: net.mac(node, peer)? })
    }

    /// Returns the device's own Ethernet address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The frame has less than 14 bytes or more than the device accepts.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.socket.send(frame).with_context(|| format!("sending {} bytes", frame.len()))
    }

    /// Returns the next frame that `wanted` accepts, discarding others; `None` when none comes
    /// within `timeout`.
    ///
    /// # Errors
    /// The device disappears.
    pub fn receive(
        &self,
        timeout: Duration,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(frame) = self.socket.receive(left)? else { return Ok(None) };
            if wanted(&frame) {
                return Ok(Some(frame));
            }
        }
    }

    /// Returns all frames that `wanted` accepts, until none has come for 0.2 s.
    ///
    /// # Errors
    /// The device disappears.
    pub fn collect(&self, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.receive(SILENCE, &wanted)? {
            frames.push(frame);
        }
        Ok(frames)
    }
}
