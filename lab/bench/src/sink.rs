//! Sink at the end of a line: counts the packets that arrive at d0.

use std::net::UdpSocket;

use anyhow::{Context as _, Result, anyhow};
use bpf::{Link, Map, Object, XdpMode, objects};
use bytemuck::{Pod, Zeroable};
use namespaces::netns;

use crate::device_counters::column;
use crate::frame::DESTINATION_PORT;
use crate::line::Line;

/// Receiver of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// XDP program that counts and drops: the cheapest receiver.
    Xdp,
    /// Stack of the kernel, up to a UDP socket that nobody reads.
    Ordinary,
}

impl Kind {
    /// Returns the name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp_sink",
            Self::Ordinary => "sink",
        }
    }
}

/// `struct sink_count` of sink.bpf.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
struct Count {
    packets: u64,
    bytes: u64,
}

/// Sink that is in place until it is dropped.
#[derive(Debug)]
pub(crate) struct Sink<'line> {
    line: &'line Line,
    what: What,
}

#[derive(Debug)]
enum What {
    Xdp {
        counts: Map,
        _link: Link,
    },
    /// Socket that keeps the kernel from answering each packet with an ICMP error.
    Ordinary {
        _socket: UdpSocket,
    },
}

impl<'line> Sink<'line> {
    /// Puts a sink at the end of a line.
    pub(crate) fn new(line: &'line Line, kind: Kind) -> Result<Self> {
        let what = netns::in_namespace(&line.destination, || match kind {
            Kind::Xdp => xdp(line),
            Kind::Ordinary => {
                let socket = UdpSocket::bind(("0.0.0.0", DESTINATION_PORT))
                    .context("binding the sink's UDP socket")?;
                Ok(What::Ordinary { _socket: socket })
            }
        })??;
        Ok(Self { line, what })
    }

    /// Returns the packets that have arrived so far.
    pub(crate) fn packets(&self) -> Result<u64> {
        match &self.what {
            What::Xdp { counts, .. } => {
                let counts: Vec<Count> = counts
                    .lookup_percpu(&0u32)?
                    .ok_or_else(|| anyhow!("the sink's counter is gone"))?;
                Ok(counts.iter().map(|count| count.packets).sum())
            }
            What::Ordinary { .. } => netns::in_namespace(&self.line.destination, || {
                let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
                received(&text, "d0")
                    .ok_or_else(|| anyhow!("/proc/net/dev does not show the device d0"))
            })?,
        }
    }
}

fn xdp(line: &Line) -> Result<What> {
    let object = Object::open(objects::bench::SINK, "sink")?.load()?;
    let device = Line::ifindex(&line.destination, "d0")?;
    let link = object.program("drop")?.attach_xdp(device, XdpMode::Native)?;
    Ok(What::Xdp { counts: object.map("counts")?, _link: link })
}

/// Returns received packets without those dropped by the device (columns 2 and 4 of
/// net/core/net-procfs.c, `dev_seq_printf_stats`).
fn received(text: &str, device: &str) -> Option<u64> {
    column(text, device, 1)
}

/// Returns the packets that a device of this thread's namespace did not send because its peer's
/// ring was full (column 12; `veth_get_stats64`).
pub(crate) fn unsent(device: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    column(&text, device, 11)
        .ok_or_else(|| anyhow!("/proc/net/dev does not show the device {device}"))
}

#[cfg(test)]
mod tests {
    use super::received;

    #[test]
    fn received_packets_are_read_from_the_kernels_table() {
        let text = "Inter-|   Receive  \n face |bytes    packets errs drop\n    lo: 1 2 0 0 0\n   \
                    d0: 6400 100 0 3 0 0 0 0 0 0\n  d01: 1 1 0 0 0\n";
        assert_eq!(received(text, "d0"), Some(100));
        assert_eq!(received(text, "d2"), None);
    }
}
