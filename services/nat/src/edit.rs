//! Changing addresses and ports, with every checksum that covers them (RFC 1624), in the
//! packet and in what an error quotes.

use tam::Packet;
use tam::bytes::{put_u16, put_u32, u16_at, u32_at};
use tam::checksum::{after16, after32};
use tam::icmp::quoted_l4;
use tam::track::tcp;

use crate::Reason;
use crate::headers::{Headers, Protocol, SHORT_LENGTH};

/// Where IPv4's header has its checksum (RFC 791, section 3.1).
const IP_CHECKSUM: usize = 10;
/// Where TCP's header has its checksum (RFC 9293, section 3.1).
const TCP_CHECKSUM: usize = 16;

/// Which end of a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
}

/// The packet that an error quotes, its headers taken out.
#[derive(Clone, Copy)]
pub struct Quoted {
    ip: [u8; 20],
    l4: [u8; tcp::HEADER_LENGTH],
    /// How many of them are quoted: [`tcp::HEADER_LENGTH`] or [`SHORT_LENGTH`].
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
    /// Where the address lies in IP's header, and the port in that of UDP and TCP.
    const fn places(self) -> (usize, usize) {
        match self {
            Self::Source => (12, 0),
            Self::Destination => (16, 2),
        }
    }
}

impl Quoted {
    /// Parses the packet that an error quotes from `l3_at` to `end`, if it is one that could be
    /// mapped.
    pub fn of(packet: &Packet<'_>, l3_at: usize, end: usize) -> Option<Self> {
        let (mut ip, mut l4) = ([0; 20], [0; tcp::HEADER_LENGTH]);
        packet.load_within(l3_at, end, &mut ip)?;
        let (l4_at, end) = quoted_l4(&ip, l3_at, end)?;
        let protocol = Protocol::of(ip[9])?;
        // 8 bytes must be quoted (RFC 792), as much as fits should be (RFC 1812).
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

    /// Gives an end of it another address and port, and has the error's own checksum follow, which
    /// covers the quotation.
    pub fn change(&mut self, headers: &mut Headers, end: End, address: u32, port: u16) {
        // The sum over a whole IP header stays as it was: its checksum sees to that.
        let old = change_address(&mut self.ip, end, address);
        let (length, protocol) = (self.l4_length, self.protocol);
        let changes = change_end(&mut self.l4, length, protocol, end, (old, address), port);
        for (old, new) in changes {
            follow(&mut headers.l4, 2, old, new);
        }
    }

    /// Puts it back as it is now.
    pub fn put(&self, packet: &mut Packet<'_>) -> Result<(), Reason> {
        let ip = packet.store(self.l3_at, &self.ip);
        let l4 = match self.l4_length {
            tcp::HEADER_LENGTH => packet.store(self.l4_at, &self.l4),
            _ => packet.store(self.l4_at, &self.l4[..SHORT_LENGTH]),
        };
        ip.and(l4).map_err(|_| Reason::CutShort)
    }
}

/// Returns whether what lies behind a quoted TCP header's first 8 bytes is the rest of it, with
/// its checksum. It need not be: some routers pad what they quote with zeros, or append an
/// extension without saying so (RFC 4884, sections 4 and 5); neither has a data offset there.
const fn has_checksum(l4: &[u8; tcp::HEADER_LENGTH]) -> bool {
    let length = (l4[12] >> 4) as usize * 4;
    length >= tcp::HEADER_LENGTH && u16_at(l4, TCP_CHECKSUM) != 0
}

/// Gives a packet's end another address and port.
pub fn end(headers: &mut Headers, end: End, address: u32, port: u16) {
    let Some(protocol) = Protocol::of(headers.protocol) else { return };
    let old = change_address(&mut headers.ip, end, address);
    change_end(&mut headers.l4, headers.l4_length, protocol, end, (old, address), port);
}

/// Gives an end another address in an IP header; the L4 header has none of it in its checksum, or
/// is in another fragment.
pub fn address(ip: &mut [u8; 20], end: End, address: u32) {
    change_address(ip, end, address);
}

/// Brings a checksum along when a word that it covers becomes another.
#[inline]
fn follow(bytes: &mut [u8], checksum_at: usize, old: u16, new: u16) {
    put_u16(bytes, checksum_at, after16(u16_at(bytes, checksum_at), old, new));
}

/// Brings it along when an address becomes another.
#[inline]
fn follow_address(bytes: &mut [u8], checksum_at: usize, old: u32, new: u32) {
    put_u16(bytes, checksum_at, after32(u16_at(bytes, checksum_at), old, new));
}

/// Changes an address in an IP header, with its checksum; gives the old one.
fn change_address(ip: &mut [u8; 20], end: End, new: u32) -> u32 {
    let at = end.places().0;
    let old = u32_at(ip, at);
    follow_address(ip, IP_CHECKSUM, old, new);
    put_u32(ip, at, new);
    old
}

/// Changes a port, with the checksum over it and over the addresses. Gives both words that
/// changed, the port and the checksum, before and after.
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
        // The identifier, whichever end is meant.
        Protocol::Icmp => (4, 2),
    };
    let (old_port, old) = (u16_at(l4, port_at), u16_at(l4, checksum_at));
    put_u16(l4, port_at, port);
    // What an error quotes may end before TCP's checksum.
    if checksum_at >= length || (protocol == Protocol::Udp && old == 0) {
        return [(old_port, port), (0, 0)];
    }
    follow(l4, checksum_at, old_port, port);
    if protocol != Protocol::Icmp {
        // The pseudo-header.
        follow_address(l4, checksum_at, old_address, new_address);
    }
    if protocol == Protocol::Udp && u16_at(l4, checksum_at) == 0 {
        // 0 would say that there is none (RFC 768); both are the same number.
        put_u16(l4, checksum_at, 0xffff);
    }
    [(old_port, port), (old, u16_at(l4, checksum_at))]
}
