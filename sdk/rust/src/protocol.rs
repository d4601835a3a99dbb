//! Protocol numbers in the IP header (RFC 5237, section 2), and of IPv6 extension headers (RFC
//! 8200, section 4).

/// IPv6: options for each hop, an extension header.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4 (RFC 792).
pub const ICMP: u8 = 1;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// IPv6: routing, an extension header.
pub const ROUTING: u8 = 43;
/// IPv6: the fragment header, an extension header of 8 bytes.
pub const FRAGMENT: u8 = 44;
/// ICMP for IPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// IPv6: options for the destination, an extension header.
pub const DESTINATION: u8 = 60;
