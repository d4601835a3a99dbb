//! IP headers in the window: the fields that services read and change most.
//!
//! The length is checked once, at construction; after that no accessor panics. Addresses are in
//! network byte order, as in the packet.

use crate::checksum::after16;

/// Bytes of an IPv4 header without options (RFC 791, section 3.1).
const IPV4_LENGTH: usize = 20;
/// Bytes of an IPv6 header (RFC 8200, section 3).
const IPV6_LENGTH: usize = 40;

/// IPv4 header (RFC 791, section 3.1), without its options.
#[derive(Debug)]
pub struct Ipv4<'a>(&'a mut [u8; IPV4_LENGTH]);

/// IPv6 header (RFC 8200, section 3).
#[derive(Debug)]
pub struct Ipv6<'a>(&'a mut [u8; IPV6_LENGTH]);

impl<'a> Ipv4<'a> {
    /// Returns the header at the beginning of `bytes`, if they are long enough.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Option<Self> {
        bytes.first_chunk_mut().map(Self)
    }

    /// Returns the differentiated services code point, 6 bits (RFC 2474).
    #[inline]
    #[must_use]
    pub fn dscp(&self) -> u8 {
        self.0[1] >> 2
    }

    /// Sets the code point (its low 6 bits) and the header checksum accordingly.
    #[inline]
    pub fn set_dscp(&mut self, dscp: u8) {
        let old = u16::from_be_bytes([self.0[0], self.0[1]]);
        self.0[1] = dscp << 2 | self.0[1] & 0b11;
        let new = u16::from_be_bytes([self.0[0], self.0[1]]);
        let checksum = u16::from_be_bytes([self.0[10], self.0[11]]);
        let [high, low] = after16(checksum, old, new).to_be_bytes();
        self.0[10] = high;
        self.0[11] = low;
    }

    /// Returns the time to live: remaining hops.
    #[inline]
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// Returns the protocol number of the payload.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.0[9]
    }

    /// Returns the source address.
    #[inline]
    #[must_use]
    pub fn source(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// Returns the destination address.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> [u8; 4] {
        [self.0[16], self.0[17], self.0[18], self.0[19]]
    }
}

impl<'a> Ipv6<'a> {
    /// Returns the header at the beginning of `bytes`, if they are long enough.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Option<Self> {
        bytes.first_chunk_mut().map(Self)
    }

    /// Returns the differentiated services code point, 6 bits (RFC 2474).
    #[inline]
    #[must_use]
    pub fn dscp(&self) -> u8 {
        (self.0[0] & 0x0f) << 2 | self.0[1] >> 6
    }

    /// Sets the code point (its low 6 bits).
    #[inline]
    pub fn set_dscp(&mut self, dscp: u8) {
        self.0[0] = self.0[0] & 0xf0 | dscp >> 2 & 0x0f;
        self.0[1] = dscp << 6 | self.0[1] & 0x3f;
    }

    /// Returns the hop limit: remaining hops.
    #[inline]
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// Returns the number of the next header: a protocol or an extension header.
    #[inline]
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.0[6]
    }

    /// Returns the source address.
    #[must_use]
    pub fn source(&self) -> [u8; 16] {
        core::array::from_fn(|at| self.0[8 + at])
    }

    /// Returns the destination address.
    #[must_use]
    pub fn destination(&self) -> [u8; 16] {
        core::array::from_fn(|at| self.0[24 + at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Internet checksum, RFC 1071, section 4.1, over a header with its checksum: 0 if it is
    /// right.
    fn sum(header: &[u8]) -> u16 {
        let words = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        !(((sum & 0xffff) + (sum >> 16)) as u16)
    }

    #[test]
    fn the_checksum_stays_right_for_every_code_point() {
        // 10.0.0.1 to 10.0.0.2, UDP, 84 bytes, TTL 64: ping's header with another protocol.
        let mut bytes =
            [0x45, 0, 0, 0x54, 0, 0, 0x40, 0, 0x40, 17, 0x26, 0x97, 10, 0, 0, 1, 10, 0, 0, 2];
        assert_eq!(sum(&bytes), 0, "the vector itself");
        for dscp in (0..64).chain([46, 0]) {
            let mut ip = Ipv4::new(&mut bytes).unwrap();
            ip.set_dscp(dscp);
            assert_eq!(ip.dscp(), dscp);
            assert_eq!(sum(&bytes), 0, "dscp {dscp}");
        }
    }

    #[test]
    fn the_other_bits_of_the_traffic_class_stay() {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
        Ipv6::new(&mut bytes).unwrap().set_dscp(0);
        assert_eq!(bytes[..4], [0x60, 0x3f, 0xff, 0xff]);
        Ipv6::new(&mut bytes).unwrap().set_dscp(46);
        assert_eq!(Ipv6::new(&mut bytes).unwrap().dscp(), 46);
        assert_eq!(bytes[..4], [0x6b, 0xbf, 0xff, 0xff]);
    }

    #[test]
    fn a_cut_header_is_no_header() {
        assert!(Ipv4::new(&mut [0; 19]).is_none());
        assert!(Ipv6::new(&mut [0; 39]).is_none());
    }
}
