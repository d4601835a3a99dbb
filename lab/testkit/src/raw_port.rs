//! Frames in and out of a host's device, byte by byte.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sockets::packet_socket::PacketSocket;

use crate::net::Net;

/// How long it must be silent before nothing more is awaited.
const SILENCE: Duration = Duration::from_millis(200);

/// The device of one end of a link, for frames as they are on the wire.
#[derive(Debug)]
pub struct RawPort {
    socket: PacketSocket,
    mac: [u8; 6],
}

impl RawPort {
    /// The device of the link from `node` to `peer`. What comes in from now on is kept.
    ///
    /// # Errors
    /// When there is no such link, or the caller is not root.
    pub fn open(net: &Net, node: &str, peer: &str) -> Result<Self> {
        let device = net.device(node, peer)?;
        let socket = net
            .within(node, || PacketSocket::open(device.index))?
            .with_context(|| format!("opening a packet socket on {}", device.name))?;
        Ok(Self { socket, mac: net.mac(node, peer)? })
    }

    /// The device's own Ethernet address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// When it has less than 14 bytes or more than the device takes.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.socket.send(frame).with_context(|| format!("sending {} bytes", frame.len()))
    }

    /// The next frame that `wanted` says yes to, others thrown away; none when it does not
    /// come within `timeout`.
    ///
    /// # Errors
    /// When the device goes away.
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

    /// All frames that `wanted` says yes to, until none has come for a while.
    ///
    /// # Errors
    /// When the device goes away.
    pub fn collect(&self, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.receive(SILENCE, &wanted)? {
            frames.push(frame);
        }
        Ok(frames)
    }
}
