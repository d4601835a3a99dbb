//! Header fields that the firewall reads: addresses, L4 ports, TCP flags, and of an ICMP error the
//! quoted headers. Every length is checked; nothing is changed.

use tam::bytes::{u16_at, u32_at};
use tam::icmp::{quoted_end, quoted_l4};
use tam::prefix::V4_MAPPED;
use tam::track::tcp;
use tam::{Packet, protocol};

use crate::Reason;

/// Bytes of IPv6's header (RFC 8200, section 3).
pub const IPV6_LENGTH: usize = 40;
/// Extension headers of IPv6 that are parsed (RFC 8200, section 4): the same limit as a node's.
pub const EXTENSIONS_MAX: usize = 8;
/// Bytes of UDP's header, and of the common part of ICMP messages.
const SHORT_LENGTH: usize = 8;

/// Relevant fields of the IP header.
pub struct Headers {
    pub version: u8,
    pub protocol: u8,
    pub source: u128,
    pub destination: u128,
    /// IPv4: identification, and flags with fragment offset. IPv6 has them in an extension header.
    pub fragment: (u16, u16),
    /// IPv6: number of the next header.
    pub next: u8,
    /// Offset of the IP header.
    pub l3: usize,
    /// End of the datagram: later bytes are Ethernet padding.
    pub end: usize,
}

/// Both ends of a packet. For echo requests both L4 ports are the identifier; without ports they
/// are 0.
#[derive(Clone, Copy)]
pub struct Ends {
    pub protocol: u8,
    pub source: u128,
    pub destination: u128,
    pub source_port: u16,
    pub destination_port: u16,
}

/// Header after IP.
pub enum L4 {
    Tcp { source_port: u16, destination_port: u16, flags: u8 },
    Udp { source_port: u16, destination_port: u16 },
    Echo { request: bool, id: u16 },
    IcmpError { quoted: Ends },
    Other,
}

/// Returns the end of the datagram whose header gives `length` bytes from `from` on.
fn ends_at(packet: &Packet<'_>, from: usize, length: u16) -> usize {
    (from + usize::from(length)).min(packet.length())
}

fn v4_of(ip: &[u8; 20], at: usize) -> u128 {
    V4_MAPPED | u128::from(u32_at(ip, at))
}

/// Returns source and destination.
fn v6_of(ip: &[u8; 40]) -> (u128, u128) {
    let mut ends = [[0; 16]; 2];
    ends.as_flattened_mut().copy_from_slice(&ip[8..]);
    (u128::from_be_bytes(ends[0]), u128::from_be_bytes(ends[1]))
}

impl Headers {
    pub fn of(packet: &Packet<'_>) -> Result<Self, Reason> {
        let (version, protocol) = (packet.ip_version(), packet.protocol());
        let l3 = packet.l3_offset().ok_or(Reason::NotIp)?;
        match version {
            4 => {
                let ip: [u8; 20] =
                    packet.take_within(l3, packet.length()).ok_or(Reason::CutShort)?;
                let (source, destination) = (v4_of(&ip, 12), v4_of(&ip, 16));
                let fragment = (u16_at(&ip, 4), u16_at(&ip, 6));
                let end = ends_at(packet, l3, u16_at(&ip, 2));
                Ok(Self { version, protocol, source, destination, fragment, next: 0, l3, end })
            }
            6 => {
                let ip: [u8; 40] =
                    packet.take_within(l3, packet.length()).ok_or(Reason::CutShort)?;
                let (source, destination) = v6_of(&ip);
                let (fragment, next) = ((0, 0), ip[6]);
                let end = ends_at(packet, l3 + IPV6_LENGTH, u16_at(&ip, 4));
                Ok(Self { version, protocol, source, destination, fragment, next, l3, end })
            }
            _ => Err(Reason::NotIp),
        }
    }
}

impl L4 {
    /// Parses the header after IP. `is_whole`: the packet is no fragment, so that a UDP datagram
    /// must be complete.
    pub fn of(packet: &Packet<'_>, headers: &Headers, is_whole: bool) -> Result<Self, Reason> {
        let Some(at) = packet.l4_offset() else { return Err(Reason::CutShort) };
        let end = headers.end;
        if headers.protocol == protocol::TCP {
            let l4 = packet.take_within(at, end).ok_or(Reason::CutShort)?;
            return Self::tcp(&l4, end - at);
        }
        if !matches!(headers.protocol, protocol::UDP | protocol::ICMP | protocol::ICMPV6) {
            return Ok(Self::Other);
        }
        let l4: [u8; SHORT_LENGTH] = packet.take_within(at, end).ok_or(Reason::CutShort)?;
        if headers.protocol == protocol::UDP {
            return Self::udp(&l4, if is_whole { end - at } else { usize::MAX });
        }
        Self::icmp(packet, &l4, at, headers)
    }

    /// Parses TCP's header. RFC 9293, section 3.1: the data offset counts 32-bit words, from 5 to
    /// the number available.
    fn tcp(l4: &[u8; tcp::HEADER_LENGTH], there: usize) -> Result<Self, Reason> {
        let (source_port, destination_port, flags) = (u16_at(l4, 0), u16_at(l4, 2), l4[13]);
        let length = usize::from(l4[12] >> 4) * 4;
        if length < tcp::HEADER_LENGTH || !tcp::is_possible(flags) {
            return Err(Reason::TcpFlags);
        }
        match length <= there {
            true => Ok(Self::Tcp { source_port, destination_port, flags }),
            false => Err(Reason::CutShort),
        }
    }

    /// Parses UDP's header. RFC 768: the length includes the header, and must not exceed IP's
    /// payload. It may be less: options follow (RFC 9868).
    fn udp(l4: &[u8; SHORT_LENGTH], there: usize) -> Result<Self, Reason> {
        let (source_port, destination_port) = (u16_at(l4, 0), u16_at(l4, 2));
        match (SHORT_LENGTH..=there).contains(&usize::from(u16_at(l4, 4))) {
            true => Ok(Self::Udp { source_port, destination_port }),
            false => Err(Reason::CutShort),
        }
    }

    fn icmp(
        packet: &Packet<'_>,
        l4: &[u8; SHORT_LENGTH],
        at: usize,
        headers: &Headers,
    ) -> Result<Self, Reason> {
        let is_v6 = headers.version == 6;
        let (behind, end) = (at + SHORT_LENGTH, quoted_end(headers.version, l4, at, headers.end));
        if is_v6 != (headers.protocol == protocol::ICMPV6) {
            return Err(Reason::IcmpType);
        }
        let id = u16_at(l4, 4);
        // RFC 792 and RFC 4443: echo; unreachable, time exceeded, parameter problem, and packet too
        // big.
        let quoted = match (is_v6, l4[0]) {
            (false, 8) | (true, 128) => return Ok(Self::Echo { request: true, id }),
            (false, 0) | (true, 129) => return Ok(Self::Echo { request: false, id }),
            (false, 3 | 11 | 12) => quoted_v4(packet, behind, end),
            (true, 1..=4) => quoted_v6(packet, behind, end),
            _ => return Err(Reason::IcmpType),
        };
        quoted.map(|quoted| Self::IcmpError { quoted }).ok_or(Reason::IcmpUnrelated)
    }

    /// Returns the ends of the flow that the packet belongs to.
    pub fn ends(&self, headers: &Headers) -> Ends {
        let (source_port, destination_port) = match *self {
            Self::Tcp { source_port, destination_port, .. }
            | Self::Udp { source_port, destination_port } => (source_port, destination_port),
            Self::Echo { id, .. } => (id, id),
            Self::IcmpError { .. } | Self::Other => (0, 0),
        };
        let Headers { protocol, source, destination, .. } = *headers;
        Ends { protocol, source, destination, source_port, destination_port }
    }
}

/// Parses an IPv4 packet that an error quotes from `at` to `end`, or up to its own end.
fn quoted_v4(packet: &Packet<'_>, at: usize, end: usize) -> Option<Ends> {
    let ip: [u8; 20] = packet.take_within(at, end)?;
    let (l4_at, end) = quoted_l4(&ip, at, end)?;
    quoted(packet, l4_at, end, ip[9], (v4_of(&ip, 12), v4_of(&ip, 16)))
}

/// Parses an IPv6 packet that an error quotes, with its extension headers: a packet that is too big
/// may be a fragment.
fn quoted_v6(packet: &Packet<'_>, at: usize, end: usize) -> Option<Ends> {
    let ip: [u8; IPV6_LENGTH] = packet.take_within(at, end)?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let (mut next, mut at) = (ip[6], at + IPV6_LENGTH);
    let end = end.min(at + usize::from(u16_at(&ip, 4)));
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(
            next,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::FRAGMENT | protocol::DESTINATION
        ) {
            return quoted(packet, at, end, next, v6_of(&ip));
        }
        let extension: [u8; 8] = packet.take_within(at, end)?;
        let is_fragment = next == protocol::FRAGMENT;
        // A later fragment has no ports.
        if is_fragment && u16_at(&extension, 2) & 0xfff8 != 0 {
            return None;
        }
        next = extension[0];
        at += if is_fragment { 8 } else { (usize::from(extension[1]) + 1) * 8 };
    }
    None
}

/// Parses the L4 ports of a quoted packet, whose first 8 bytes are present (RFC 792, RFC 1812).
fn quoted(
    packet: &Packet<'_>,
    l4: usize,
    end: usize,
    protocol: u8,
    (source, destination): (u128, u128),
) -> Option<Ends> {
    let l4: [u8; SHORT_LENGTH] = packet.take_within(l4, end)?;
    let (source_port, destination_port) = match protocol {
        protocol::TCP | protocol::UDP => (u16_at(&l4, 0), u16_at(&l4, 2)),
        protocol::ICMP | protocol::ICMPV6 if matches!(l4[0], 0 | 8 | 128 | 129) => {
            let id = u16_at(&l4, 4);
            (id, id)
        }
        protocol::ICMP | protocol::ICMPV6 => return None,
        _ => (0, 0),
    };
    Some(Ends { protocol, source, destination, source_port, destination_port })
}
