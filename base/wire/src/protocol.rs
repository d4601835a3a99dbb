//! Protocol numbers that this crate knows, and the lengths of their headers.
//!
//! Numbers only: `parse` and `build` use them.

/// Bytes of an Ethernet II header without tags: destination, source, ethertype (IEEE 802.3).
pub const ETHERNET_LENGTH: usize = 14;
/// Bytes of one VLAN tag (IEEE 802.1Q).
pub const VLAN_TAG_LENGTH: usize = 4;
/// Bytes of an IPv4 header without options (RFC 791 section 3.1).
pub const IPV4_LENGTH: usize = 20;
/// Bytes of an IPv6 header without extension headers (RFC 8200 section 3).
pub const IPV6_LENGTH: usize = 40;

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tag protocol identifier of a customer VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Tag protocol identifier of a service VLAN tag (IEEE 802.1ad).
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// ICMP (RFC 792).
pub const ICMP: u8 = 1;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// DCCP (RFC 4340).
pub const DCCP: u8 = 33;
/// Encapsulating Security Payload (RFC 4303): the bytes after it are not readable.
pub const ESP: u8 = 50;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// IPv6 "no next header" (RFC 8200 section 4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// UDP-Lite (RFC 3828).
pub const UDP_LITE: u8 = 136;

/// IPv6 hop-by-hop options (RFC 8200 section 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// IPv6 routing header (RFC 8200 section 4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 section 4.5).
pub const FRAGMENT: u8 = 44;
/// Authentication Header (RFC 4302); its length counts words of 4 bytes.
pub const AUTHENTICATION: u8 = 51;
/// IPv6 destination options (RFC 8200 section 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// IPv6 mobility header (RFC 6275).
pub const MOBILITY: u8 = 135;
/// Host Identity Protocol (RFC 7401).
pub const HIP: u8 = 139;
/// Shim6 (RFC 5533).
pub const SHIM6: u8 = 140;

/// TCP flag: no more data from the sender.
pub const TCP_FIN: u8 = 0x01;
/// TCP flag: synchronize sequence numbers.
pub const TCP_SYN: u8 = 0x02;
/// TCP flag: reset the connection.
pub const TCP_RST: u8 = 0x04;
/// TCP flag: push.
pub const TCP_PSH: u8 = 0x08;
/// TCP flag: the acknowledgment number counts.
pub const TCP_ACK: u8 = 0x10;

/// Returns true if `next_header` is an IPv6 extension header that the parser walks.
#[must_use]
pub const fn is_extension(next_header: u8) -> bool {
    matches!(
        next_header,
        HOP_BY_HOP
            | ROUTING
            | FRAGMENT
            | AUTHENTICATION
            | DESTINATION_OPTIONS
            | MOBILITY
            | HIP
            | SHIM6
    )
}

/// Returns the length of the fixed part of the L4 header in bytes; `None` for protocols that the
/// parser does not look into.
#[must_use]
pub const fn l4_header_length(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(20),
        UDP | UDP_LITE | ICMP | ICMPV6 => Some(8),
        SCTP | DCCP => Some(12),
        _ => None,
    }
}

/// Returns true if the L4 header begins with a source and a destination L4 port.
#[must_use]
pub const fn has_l4_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | UDP_LITE | SCTP | DCCP)
}
