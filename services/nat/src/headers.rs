//! Header fields that the service reads. Every length is checked; nothing is changed.

use tam::bytes::{u16_at, u32_at};
use tam::icmp::quoted_end;
use tam::track::tcp;
use tam::{Packet, protocol};

use crate::Reason;
use crate::edit::Quoted;
use crate::fragments::Fate;
use crate::mappings::{Place, Remote};

/// Bytes of UDP's header, and of the common part of ICMP messages.
pub const SHORT_LENGTH: usize = 8;

/// Protocol with ports, or with an identifier in echo messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp = 0,
    Tcp = 1,
    Icmp = 2,
}

/// Headers of a packet, copied out of it, so that their bytes have constant addresses.
pub struct Headers {
    pub ip: [u8; 20],
    /// First bytes after the IP header: [`tcp::HEADER_LENGTH`] or [`SHORT_LENGTH`] of them, valid
    /// after [`Kind::of`].
    pub l4: [u8; tcp::HEADER_LENGTH],
    pub l4_length: usize,
    pub protocol: u8,
    pub source: u32,
    pub destination: u32,
    pub id: u16,
    /// Offsets of the IP header and of the header after it.
    pub l3_at: usize,
    pub l4_at: usize,
    /// End of the datagram: later bytes are Ethernet padding.
    pub end: usize,
    /// Destination of the datagram's later fragments, if this is the first one to the address.
    pub fate: Fate,
}

/// Kind of the header after IP.
pub enum Kind {
    Udp { source: u16, destination: u16 },
    Tcp { source: u16, destination: u16, flags: u8 },
    EchoRequest { id: u16 },
    EchoReply { id: u16 },
    Error(Quoted),
}

impl Headers {
    /// Parses a packet; returns `None` if it is not IPv4.
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        if packet.ip_version() != 4 {
            return None;
        }
        let l3_at = packet.l3_offset()?;
        let mut ip = [0; 20];
        packet.load(l3_at, &mut ip).ok()?;
        Some(Self {
            l4: [0; tcp::HEADER_LENGTH],
            l4_length: 0,
            protocol: ip[9],
            source: u32_at(&ip, 12),
            destination: u32_at(&ip, 16),
            id: u16_at(&ip, 4),
            l3_at,
            l4_at: l3_at + usize::from(ip[0] & 0x0f) * 4,
            end: packet.length().min(l3_at + usize::from(u16_at(&ip, 2))),
            fate: Fate::NOBODYS,
            ip,
        })
    }

    /// Writes the headers back to the packet.
    pub fn put(&self, packet: &mut Packet<'_>) -> Result<(), Reason> {
        let ip = packet.store(self.l3_at, &self.ip);
        let l4 = match self.l4_length {
            tcp::HEADER_LENGTH => packet.store(self.l4_at, &self.l4),
            SHORT_LENGTH => packet.store(self.l4_at, &self.l4[..SHORT_LENGTH]),
            _ => Ok(()),
        };
        ip.and(l4).map_err(|_| Reason::CutShort)
    }
}

impl Protocol {
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            protocol::UDP => Some(Self::Udp),
            protocol::TCP => Some(Self::Tcp),
            protocol::ICMP => Some(Self::Icmp),
            _ => None,
        }
    }
}

impl Kind {
    /// Returns the protocol of a later fragment, the only L4 information in it.
    pub fn of_fragment(headers: &Headers) -> Result<Protocol, Reason> {
        Protocol::of(headers.protocol).ok_or(Reason::Protocol)
    }

    /// Copies the L4 header out of the packet and parses it.
    pub fn of(packet: &Packet<'_>, headers: &mut Headers) -> Result<Self, Reason> {
        let (protocol, at, end) = (Self::of_fragment(headers)?, headers.l4_at, headers.end);
        let loaded = match protocol {
            Protocol::Tcp => packet.load_within(at, end, &mut headers.l4),
            _ => packet.load_within(at, end, &mut headers.l4[..SHORT_LENGTH]),
        };
        loaded.ok_or(Reason::CutShort)?;
        headers.l4_length =
            if protocol == Protocol::Tcp { tcp::HEADER_LENGTH } else { SHORT_LENGTH };
        let l4 = &headers.l4;
        let (source, destination, id) = (u16_at(l4, 0), u16_at(l4, 2), u16_at(l4, 4));
        // RFC 792: echo, and the errors: unreachable, time exceeded, parameter problem.
        match (protocol, l4[0]) {
            (Protocol::Udp, _) => Ok(Self::Udp { source, destination }),
            (Protocol::Tcp, _) => Ok(Self::Tcp { source, destination, flags: l4[13] }),
            (Protocol::Icmp, 8) => Ok(Self::EchoRequest { id }),
            (Protocol::Icmp, 0) => Ok(Self::EchoReply { id }),
            (Protocol::Icmp, 3 | 11 | 12) => {
                let end = l4.first_chunk().map_or(end, |l4| quoted_end(4, l4, at, end));
                let quoted = Quoted::of(packet, at + SHORT_LENGTH, end);
                quoted.map(Self::Error).ok_or(Reason::ErrorOfNothing)
            }
            _ => Err(Reason::IcmpType),
        }
    }

    /// Returns TCP's flags; 0 for other protocols.
    pub const fn flags(&self) -> u8 {
        match self {
            Self::Tcp { flags, .. } => *flags,
            _ => 0,
        }
    }

    /// Returns the inside end by which a packet from inside is mapped; `None` for errors and echo
    /// replies.
    pub const fn mapped(&self, headers: &Headers) -> Option<Place> {
        let (protocol, port) = match *self {
            Self::Udp { source, .. } => (Protocol::Udp, source),
            Self::Tcp { source, .. } => (Protocol::Tcp, source),
            Self::EchoRequest { id } => (Protocol::Icmp, id),
            // No host outside could have asked.
            Self::EchoReply { .. } | Self::Error(_) => return None,
        };
        Some(Place { protocol, address: headers.source, port })
    }

    /// Returns the remote end of a packet from inside; used for TCP connections only.
    pub const fn to(&self, headers: &Headers) -> Remote {
        let port = if let Self::Tcp { destination, .. } = *self { destination } else { 0 };
        Remote { address: headers.destination, port }
    }

    /// Returns the remote end of a packet from outside.
    pub const fn from(&self, headers: &Headers) -> Remote {
        let port = if let Self::Tcp { source, .. } = *self { source } else { 0 };
        Remote { address: headers.source, port }
    }

    /// Returns the protocol and the port of the address to which a packet is sent.
    pub const fn target(&self) -> Option<(Protocol, u16)> {
        match *self {
            Self::Udp { destination, .. } => Some((Protocol::Udp, destination)),
            Self::Tcp { destination, .. } => Some((Protocol::Tcp, destination)),
            Self::EchoReply { id } => Some((Protocol::Icmp, id)),
            // An identifier does not identify a host inside: none can be pinged from outside.
            Self::EchoRequest { .. } | Self::Error(_) => None,
        }
    }
}
