//! The benchmarks' frames: UDP in IPv4, from the source to the far end of the line.

use wire::FrameBuilder;

use crate::line;

/// The discard service's L4 port (RFC 863): a socket of ours is bound there.
pub(crate) const DESTINATION_PORT: u16 = 9;
const SOURCE_PORT: u16 = 1024;
/// Ethernet, IPv4 and UDP headers.
const HEADERS_LENGTH: usize = 14 + 20 + 8;
/// Where the UDP checksum lies: zero says "none" (RFC 768), for the generator changes the ports.
const UDP_CHECKSUM_OFFSET: usize = 40;

/// A frame of `length` bytes as on the wire, without the frame check sequence.
pub(crate) fn of_length(length: usize) -> Vec<u8> {
    let payload = vec![0xa5; length.saturating_sub(HEADERS_LENGTH)];
    FrameBuilder::new()
        .ethernet(line::MAC_SOURCE, line::MAC_IN)
        .ipv4(line::ADDRESS_SOURCE, line::ADDRESS_FAR, 64)
        .udp(SOURCE_PORT, DESTINATION_PORT)
        .payload(&payload)
        .patch(UDP_CHECKSUM_OFFSET, &[0, 0])
        .build()
}

#[cfg(test)]
mod tests {
    #[test]
    fn frames_have_the_length_asked_for_and_parse() {
        for length in [64, 1460] {
            let frame = super::of_length(length);
            assert_eq!(frame.len(), length);
            let parsed = wire::parse_frame(&frame).unwrap();
            assert_eq!(parsed.destination_port, super::DESTINATION_PORT);
        }
    }
}
