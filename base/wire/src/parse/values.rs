//! Results of the parser: the headers' fields, or the reason why a frame has none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{HEADERS_MAX, VLAN_TAGS_MAX};

/// Header fields of an IP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parsed {
    /// Ethernet header.
    pub ethernet: Ethernet,
    /// Outermost VLAN tag.
    pub vlan: Option<VlanTag>,
    /// VLAN tags in front of the IP header, at most [`VLAN_TAGS_MAX`].
    pub vlan_tags: u8,
    /// Offset of the IP header in bytes from the frame's start.
    pub l3_offset: u16,
    /// Length of the IP packet with its header in bytes; an IPv6 packet has up to 65,575.
    pub ip_length: u32,
    /// IP version, 4 or 6.
    pub ip_version: u8,
    /// Source address; IPv4 fills the first four bytes, the rest is zero.
    pub source: [u8; 16],
    /// Destination address of the IP header; IPv4 fills the first four bytes.
    pub destination: [u8; 16],
    /// DSCP, 6 bits (RFC 2474).
    pub dscp: u8,
    /// ECN, 2 bits (RFC 3168).
    pub ecn: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Protocol number; in IPv6 that after the extension headers, as far as they were walked.
    pub protocol: u8,
    /// Parts of L4 that could not be read.
    pub hidden: Hidden,
    /// Fragment kind.
    pub fragment: Fragment,
    /// Identification shared by the fragments of one datagram; 0 when the packet is not a fragment.
    pub fragment_id: u32,
    /// True if the packet has IPv4 options or an IPv6 hop-by-hop header.
    pub has_options: bool,
    /// Offset of the L4 header in bytes from the frame's start; `None` for later fragments, after
    /// "no next header", and where the IP packet does not hold the whole header.
    pub l4_offset: Option<u16>,
    /// Source L4 port of TCP, UDP, UDP-Lite, SCTP and DCCP, else 0.
    pub source_port: u16,
    /// Destination L4 port of these, else 0.
    pub destination_port: u16,
    /// Flags of TCP (byte 13 of its header), else 0.
    pub tcp_flags: u8,
}

/// Fields of an Ethernet header (IEEE 802.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ethernet {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// Ethertype after the VLAN tags.
    pub ethertype: u16,
}

impl Parsed {
    /// Returns the source address.
    #[must_use]
    pub fn source_address(&self) -> IpAddr {
        address(self.ip_version, self.source)
    }

    /// Returns the destination address of the IP header.
    #[must_use]
    pub fn destination_address(&self) -> IpAddr {
        address(self.ip_version, self.destination)
    }

    /// Returns true for IPv6 neighbour discovery (RFC 4861, valid only with a hop limit of 255).
    /// `frame` is the parsed frame.
    #[must_use]
    pub fn is_neighbour_discovery(&self, frame: &[u8]) -> bool {
        let at = self.l4_offset.map(usize::from).filter(|at| *at <= HEADERS_MAX);
        let kind = at.and_then(|at| frame.get(at));
        self.ip_version == 6
            && self.protocol == crate::protocol::ICMPV6
            && self.ttl == 255
            && kind.is_some_and(|kind| (133..=137).contains(kind))
    }

    /// Returns true for IPv6 that no router forwards: neighbour discovery, and link-local addresses
    /// (RFC 4291 section 2.5.6). `frame` is the parsed frame.
    #[must_use]
    pub fn is_link_local(&self, frame: &[u8]) -> bool {
        let link_local = |address: &[u8; 16]| address[0] == 0xfe && address[1] & 0xc0 == 0x80;
        self.is_neighbour_discovery(frame)
            || self.ip_version == 6 && (link_local(&self.source) || link_local(&self.destination))
    }

    /// Returns the end of the IP packet in bytes from the frame's start; padding follows.
    #[must_use]
    pub fn ip_end(&self) -> usize {
        usize::from(self.l3_offset) + self.ip_length as usize
    }

    /// Records a fragment field; a whole datagram in one fragment is none.
    pub(super) fn see_fragment(&mut self, offset: u16, more: bool, id: u32) {
        if offset != 0 {
            self.fragment = Fragment::Later;
        } else if more {
            self.fragment = Fragment::First;
        }
        if self.fragment != Fragment::None {
            self.fragment_id = id;
        }
    }
}

/// VLAN tag (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Tag protocol identifier: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// VLAN identifier, 12 bits; 0 is a priority tag.
    pub id: u16,
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
}

/// Position of a fragment in its datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// A whole datagram, also one with a fragment header that says so (RFC 6946).
    #[default]
    None,
    /// The first fragment: offset 0, more follow.
    First,
    /// A later fragment: no L4 header.
    Later,
}

/// Fields that rules may match on and that a packet does not show: a router forwards it all the
/// same (RFC 8200 section 4), but a rule that needs them cannot tell whether it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Hidden {
    /// Nothing is hidden; a field that the protocol does not have is 0.
    #[default]
    Nothing = 0,
    /// TCP flags: the first fragment, or the IP packet, ends in front of them.
    Flags = 1,
    /// L4 ports and TCP flags.
    Ports = 2,
    /// The protocol, and with it all of L4: the chain of extension headers is cut off, has more
    /// than [`EXTENSIONS_MAX`](super::EXTENSIONS_MAX) or goes beyond
    /// [`HEADERS_MAX`](super::HEADERS_MAX).
    Protocol = 3,
}

/// Reason why a frame has no [`Parsed`]; names and meaning are those of `enum tam_outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Outcome {
    /// The ethertype after the VLAN tags is neither IPv4 nor IPv6.
    #[error("the frame is not IP; the kernel takes it")]
    NotIp,
    /// The frame has more than [`VLAN_TAGS_MAX`] tags.
    #[error("the frame has more than {VLAN_TAGS_MAX} VLAN tags; the kernel takes it")]
    VlanDepth,
    /// The Ethernet or IP header is cut off by the end of the frame.
    #[error("the Ethernet or IP header is cut off by the end of the frame")]
    Truncated,
    /// The version in the IP header is not the ethertype's.
    #[error("the version in the IP header is not the one that the ethertype says")]
    IpVersion,
    /// The IPv4 header length is below 20 bytes.
    #[error("the IPv4 header says that it is shorter than 20 bytes")]
    HeaderLength,
    /// The IP length is beyond the frame or below its header, or it is a jumbogram (RFC 2675).
    #[error("the IP length is beyond the frame's end or below its header's length")]
    TotalLength,
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    Checksum,
}

impl Outcome {
    /// Every outcome, in the order of `enum tam_outcome`.
    pub const ALL: [Self; 7] = [
        Self::NotIp,
        Self::VlanDepth,
        Self::Truncated,
        Self::IpVersion,
        Self::HeaderLength,
        Self::TotalLength,
        Self::Checksum,
    ];

    /// Returns the name of the port counter, the same as in `bpf_maps::OUTCOMES`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotIp => "kernel_not_ip",
            Self::VlanDepth => "kernel_vlan_depth",
            Self::Truncated => "drop_truncated",
            Self::IpVersion => "drop_ip_version",
            Self::HeaderLength => "drop_header_length",
            Self::TotalLength => "drop_total_length",
            Self::Checksum => "drop_checksum",
        }
    }

    /// Returns true if the frame is dropped; the kernel takes the others.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        !matches!(self, Self::NotIp | Self::VlanDepth)
    }
}

/// Returns an address from the bytes of [`Parsed`].
fn address(ip_version: u8, bytes: [u8; 16]) -> IpAddr {
    if ip_version == 4 {
        let [a, b, c, d, ..] = bytes;
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    } else {
        IpAddr::V6(Ipv6Addr::from(bytes))
    }
}
