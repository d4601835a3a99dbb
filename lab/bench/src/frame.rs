//! Frames of the benchmarks: UDP in IPv4, from the source to the far end of the line.

use wire::{FrameBuilder, protocol};

use crate::line;

/// L4 port of the discard service (RFC 863), to which the sink's socket is bound.
pub(crate) const DESTINATION_PORT: u16 = 9;
const SOURCE_PORT: u16 = 1024;
/// Offset of the UDP checksum. Zero means "none" (RFC 768), since the generator changes the ports.
const UDP_CHECKSUM_OFFSET: usize = 40;

/// Transport of a benchmark's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// UDP datagrams.
    Udp,
    /// TCP segments in the middle of a stream. Their checksum is wrong once the generator has
    /// changed them: no router on the path checks it.
    Tcp,
}

impl Kind {
    /// Returns the length of Ethernet, IPv4 and transport headers, in bytes.
    pub(crate) const fn headers_length(self) -> usize {
        match self {
            Self::Udp => 14 + 20 + 8,
            Self::Tcp => 14 + 20 + 20,
        }
    }
}

/// Returns a frame that carries a datagram to an L4 port of the node itself.
pub(crate) fn to_node(port: u16, datagram: &[u8]) -> Vec<u8> {
    FrameBuilder::new()
        .ethernet(line::MAC_SOURCE, line::MAC_IN)
        .ipv4(line::ADDRESS_SOURCE, line::ADDRESS_IN, 64)
        .udp(SOURCE_PORT, port)
        .payload(datagram)
        .patch(UDP_CHECKSUM_OFFSET, &[0, 0])
        .build()
}

/// Returns a frame of `length` bytes as on the wire, without the frame check sequence.
pub(crate) fn of_length(kind: Kind, length: usize) -> Vec<u8> {
    let payload = vec![0xa5; length.saturating_sub(kind.headers_length())];
    let ip = FrameBuilder::new().ethernet(line::MAC_SOURCE, line::MAC_IN).ipv4(
        line::ADDRESS_SOURCE,
        line::ADDRESS_FAR,
        64,
    );
    match kind {
        Kind::Udp => ip
            .udp(SOURCE_PORT, DESTINATION_PORT)
            .payload(&payload)
            .patch(UDP_CHECKSUM_OFFSET, &[0, 0])
            .build(),
        Kind::Tcp => {
            // All segments have one sequence number. The kernel (GRO) holds a segment without PSH
            // back to merge it with the next one, and lets later ones overtake it when that fails.
            let flags = protocol::TCP_ACK | protocol::TCP_PSH;
            ip.tcp(SOURCE_PORT, DESTINATION_PORT, flags).payload(&payload).build()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn frames_have_the_length_asked_for_and_parse() {
        for (kind, length) in [(Kind::Udp, 64), (Kind::Udp, 1460), (Kind::Tcp, 80)] {
            let frame = super::of_length(kind, length);
            assert_eq!(frame.len(), length);
            let parsed = wire::parse_frame(&frame).unwrap();
            assert_eq!(parsed.destination_port, super::DESTINATION_PORT);
        }
    }
}
