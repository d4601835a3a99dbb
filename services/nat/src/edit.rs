//! Edits of addresses and ports, with every checksum that covers them (RFC 1624), in the packet and
//! in the packet that an ICMP error quotes.

use tam::Packet;
use tam::bytes::{put_u16, put_u32, u16_at, u32_at};
use tam::checksum::{after16, after32};
use tam::icmp::quoted_l4;
use tam::track::tcp;

use crate::Reason;
use crate::headers::{Headers, Protocol, SHORT_LENGTH};

/// Offset of the checksum in IPv4's header (RFC 791, section 3.1).
const IP_CHECKSUM: usize = 10;
/// Offset of the checksum in TCP's header (RFC 9293, section 3.1).
const TCP_CHECKSUM: usize = 16;

/// End of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
}

/// Headers of the packet that an ICMP error quotes, copied out of it.
#[derive(Clone, Copy)]
pub struct Quoted {
    ip: [u8; 20],
    l4: [u8; tcp::HEADER_LENGTH],
    /// Number of quoted L4 bytes: [`tcp::HEADER_LENGTH`] or [`SHORT_LENGTH`].
    l4_length: usize,
    l3_at: usize,
    l4_at: usize,
    pub protocol: Protocol,
    pub source: u32,
    pub destination: u32,
    pub source_port: u16,
    pub destination_port: u16,
}

impl End {
    /// Returns the offset of the address in IP's header, and of the port in that of UDP and TCP.
    const fn places(self) -> (usize, usize) {
        match self {
            Self::Source => (12, 0),
            Self::Destination => (16, 2),
        }
    }
}

impl Quoted {
    /// Parses the packet that an error quotes from `l3_at` to `end`; returns `None` if it cannot be
    /// a mapped one.
    pub fn of(packet: &Packet<'_>, l3_at: usize, end: usize) -> Option<Self> {
        let (mut ip, mut l4) = ([0; 20], [0; tcp::HEADER_LENGTH]);
        packet.load_within(l3_at, end, &mut ip)?;
        let (l4_at, end) = quoted_l4(&ip, l3_at, end)?;
        let protocol = Protocol::of(ip[9])?;
        // 8 bytes must be quoted (RFC 792), as many as fit should be (RFC 1812).
        let whole = protocol == Protocol::Tcp
            && packet.load_within(l4_at, end, &mut l4).is_some()
            && has_checksum(&l4);
        if !whole {
            packet.load_within(l4_at, end, &mut l4[..SHORT_LENGTH])?;
        }
        let l4_length = if whole { tcp::HEADER_LENGTH } else { SHORT_LENGTH };
        let (source_port, destination_port) = match (protocol, l4[0]) {
            (Protocol::Udp | Protocol::Tcp, _) => (u16_at(&l4, 0), u16_at(&l4, 2)),
            (Protocol::Icmp, 0 | 8) => (u16_at(&l4, 4), u16_at(&l4, 4)),
            (Protocol::Icmp, _) => return None,
        };
        let (source, destination) = (u32_at(&ip, 12), u32_at(&ip, 16));
        Some(Self {
            ip,
            l4,
            l4_length,
            l3_at,
            l4_at,
            protocol,
            source,
            destination,
            source_port,
            destination_port,
        })
    }

    /// Sets address and port of one end of the quoted packet, and updates the error's own checksum,
    /// which covers the quotation.
    pub fn change(&mut self, headers: &mut Headers, end: End, address: u32, port: u16) {
        // The sum over a whole IP header is unchanged, as its own checksum compensates.
        let old = change_address(&mut self.ip, end, address);
        let (length, protocol) = (self.l4_length, self.protocol);
        let changes = change_end(&mut self.l4, length, protocol, end, (old, address), port);
        for (old, new) in changes {
            follow(&mut headers.l4, 2, old, new);
        }
    }

    /// Writes the quoted headers back to the packet.
    pub fn put(&self, packet: &mut Packet<'_>) -> Result<(), Reason> {
        let ip = packet.store(self.l3_at, &self.ip);
        let l4 = match self.l4_length {
            tcp::HEADER_LENGTH => packet.store(self.l4_at, &self.l4),
            _ => packet.store(self.l4_at, &self.l4[..SHORT_LENGTH]),
        };
        ip.and(l4).map_err(|_| Reason::CutShort)
    }
}

/// Returns true if the bytes after a quoted TCP header's first 8 are the rest of it, with its
/// checksum. They need not be: some routers pad the quotation with zeros, or append an extension
/// without a length field (RFC 4884, sections 4 and 5); neither has a valid data offset at that
/// position.
const fn has_checksum(l4: &[u8; tcp::HEADER_LENGTH]) -> bool {
    let length = (l4[12] >> 4) as usize * 4;
    length >= tcp::HEADER_LENGTH && u16_at(l4, TCP_CHECKSUM) != 0
}

/// Sets address and port of one end of a packet.
pub fn end(headers: &mut Headers, end: End, address: u32, port: u16) {
    let Some(protocol) = Protocol::of(headers.protocol) else { return };
    let old = change_address(&mut headers.ip, end, address);
    change_end(&mut headers.l4, headers.l4_length, protocol, end, (old, address), port);
}

/// Sets the address of one end in an IP header only: the L4 checksum does not cover it, or is in
/// another fragment.
pub fn address(ip: &mut [u8; 20], end: End, address: u32) {
    change_address(ip, end, address);
}

/// Updates a checksum for a changed 16-bit word that it covers.
#[inline]
fn follow(bytes: &mut [u8], checksum_at: usize, old: u16, new: u16) {
    put_u16(bytes, checksum_at, after16(u16_at(bytes, checksum_at), old, new));
}

/// Updates a checksum for a changed address that it covers.
#[inline]
fn follow_address(bytes: &mut [u8], checksum_at: usize, old: u32, new: u32) {
    put_u16(bytes, checksum_at, after32(u16_at(bytes, checksum_at), old, new));
}

/// Sets an address in an IP header, and updates its checksum; returns the old address.
fn change_address(ip: &mut [u8; 20], end: End, new: u32) -> u32 {
    let at = end.places().0;
    let old = u32_at(ip, at);
    follow_address(ip, IP_CHECKSUM, old, new);
    put_u32(ip, at, new);
    old
}

/// Sets a port, and updates the checksum that covers it and the addresses. Returns the two changed
/// words, port and checksum, before and after.
fn change_end(
    l4: &mut [u8; tcp::HEADER_LENGTH],
    length: usize,
    protocol: Protocol,
    end: End,
    (old_address, new_address): (u32, u32),
    port: u16,
) -> [(u16, u16); 2] {
    let (port_at, checksum_at) = match protocol {
        Protocol::Udp => (end.places().1, 6),
        Protocol::Tcp => (end.places().1, TCP_CHECKSUM),
        // The identifier, for either end.
        Protocol::Icmp => (4, 2),
    };
    let (old_port, old) = (u16_at(l4, port_at), u16_at(l4, checksum_at));
    put_u16(l4, port_at, port);
    // The quotation may end before TCP's checksum.
    if checksum_at >= length || (protocol == Protocol::Udp && old == 0) {
        return [(old_port, port), (0, 0)];
    }
    follow(l4, checksum_at, old_port, port);
    if protocol != Protocol::Icmp {
        // The pseudo-header includes the address.
        follow_address(l4, checksum_at, old_address, new_address);
    }
    if protocol == Protocol::Udp && u16_at(l4, checksum_at) == 0 {
        // 0 would mean no checksum (RFC 768); both stand for the same number.
        put_u16(l4, checksum_at, 0xffff);
    }
    [(old_port, port), (old, u16_at(l4, checksum_at))]
}
