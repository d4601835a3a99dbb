//! What the firewall reads of a packet: addresses, L4 ports, TCP's flags, and of an ICMP
//! error the headers that it quotes. Every length is checked; nothing is changed.

use tam::Packet;

use crate::Reason;

/// RFC 5237, section 2: protocol numbers.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
}

/// An IPv4 address as IPv6 has it: ::ffff:a.b.c.d (RFC 4291, section 2.5.5.2).
pub const V4_MAPPED: u128 = 0xffff_0000_0000;
/// Bytes of TCP's header without options (RFC 9293, section 3.1).
const TCP_LENGTH: usize = 20;
/// Bytes of UDP's header, and of what each ICMP message begins with.
const SHORT_LENGTH: usize = 8;

/// The IP header, as far as it is of interest.
pub struct Headers {
    pub version: u8,
    pub protocol: u8,
    pub source: u128,
    pub destination: u128,
    /// IPv4: identification, and where the fragment lies. IPv6 has them elsewhere.
    pub fragment: (u16, u16),
    /// IPv6: which header comes next.
    pub next: u8,
    /// Where the IP header begins.
    pub l3: usize,
}

/// Who speaks to whom; of echo requests both L4 ports are the identifier, where there
/// are none they are 0.
#[derive(Clone, Copy)]
pub struct Ends {
    pub protocol: u8,
    pub source: u128,
    pub destination: u128,
    pub source_port: u16,
    pub destination_port: u16,
}

/// What comes behind IP.
pub enum L4 {
    Tcp { source_port: u16, destination_port: u16, flags: u8 },
    Udp { source_port: u16, destination_port: u16 },
    Echo { request: bool, id: u16 },
    IcmpError { quoted: Ends },
    Other,
}

/// So many bytes of the packet. Headers are taken out of it before they are looked at:
/// wherever they lie, their bytes then have known places.
pub fn load<const LENGTH: usize>(packet: &Packet<'_>, at: usize) -> Option<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    packet.load(at, &mut bytes).ok()?;
    Some(bytes)
}

const fn u16_of(bytes: &[u8], at: usize) -> u16 {
    (bytes[at] as u16) << 8 | bytes[at + 1] as u16
}

fn v4_of(ip: &[u8; 20], at: usize) -> u128 {
    V4_MAPPED | u128::from(u16_of(ip, at)) << 16 | u128::from(u16_of(ip, at + 2))
}

/// Source and destination.
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
                let ip: [u8; 20] = load(packet, l3).ok_or(Reason::CutShort)?;
                let (source, destination) = (v4_of(&ip, 12), v4_of(&ip, 16));
                let fragment = (u16_of(&ip, 4), u16_of(&ip, 6));
                Ok(Self { version, protocol, source, destination, fragment, next: 0, l3 })
            }
            6 => {
                let ip: [u8; 40] = load(packet, l3).ok_or(Reason::CutShort)?;
                let (source, destination) = v6_of(&ip);
                let (fragment, next) = ((0, 0), ip[6]);
                Ok(Self { version, protocol, source, destination, fragment, next, l3 })
            }
            _ => Err(Reason::NotIp),
        }
    }
}

impl L4 {
    pub fn of(packet: &Packet<'_>, headers: &Headers) -> Result<Self, Reason> {
        let Some(at) = packet.l4_offset() else { return Err(Reason::CutShort) };
        if headers.protocol == protocol::TCP {
            let l4: [u8; TCP_LENGTH] = load(packet, at).ok_or(Reason::CutShort)?;
            let (source_port, destination_port, flags) = (u16_of(&l4, 0), u16_of(&l4, 2), l4[13]);
            return match crate::tcp::is_possible(flags) {
                true => Ok(Self::Tcp { source_port, destination_port, flags }),
                false => Err(Reason::TcpFlags),
            };
        }
        if !matches!(headers.protocol, protocol::UDP | protocol::ICMP | protocol::ICMPV6) {
            return Ok(Self::Other);
        }
        let l4: [u8; SHORT_LENGTH] = load(packet, at).ok_or(Reason::CutShort)?;
        if headers.protocol == protocol::UDP {
            let (source_port, destination_port) = (u16_of(&l4, 0), u16_of(&l4, 2));
            return Ok(Self::Udp { source_port, destination_port });
        }
        Self::icmp(packet, &l4, at + SHORT_LENGTH, headers)
    }

    fn icmp(
        packet: &Packet<'_>,
        l4: &[u8; SHORT_LENGTH],
        behind: usize,
        headers: &Headers,
    ) -> Result<Self, Reason> {
        let is_v6 = headers.version == 6;
        if is_v6 != (headers.protocol == protocol::ICMPV6) {
            return Err(Reason::IcmpType);
        }
        let id = u16_of(l4, 4);
        // RFC 792 and RFC 4443: echo; unreachable, time exceeded, parameter problem, and
        // packet too big.
        let quoted = match (is_v6, l4[0]) {
            (false, 8) | (true, 128) => return Ok(Self::Echo { request: true, id }),
            (false, 0) | (true, 129) => return Ok(Self::Echo { request: false, id }),
            (false, 3 | 11 | 12) => quoted_v4(packet, behind),
            (true, 1..=4) => quoted_v6(packet, behind),
            _ => return Err(Reason::IcmpType),
        };
        quoted.map(|quoted| Self::IcmpError { quoted }).ok_or(Reason::IcmpUnrelated)
    }

    /// The ends of the flow that the packet belongs to.
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

fn quoted_v4(packet: &Packet<'_>, at: usize) -> Option<Ends> {
    let ip: [u8; 20] = load(packet, at)?;
    // A later fragment has no ports.
    let is_first = u16_of(&ip, 6) & 0x1fff == 0;
    let length = usize::from(ip[0] & 0x0f) * 4;
    if ip[0] >> 4 != 4 || length < 20 || !is_first {
        return None;
    }
    quoted(packet, at + length, ip[9], (v4_of(&ip, 12), v4_of(&ip, 16)))
}

fn quoted_v6(packet: &Packet<'_>, at: usize) -> Option<Ends> {
    let ip: [u8; 40] = load(packet, at)?;
    match ip[0] >> 4 {
        6 => quoted(packet, at + 40, ip[6], v6_of(&ip)),
        _ => None,
    }
}

/// The L4 ports of a quoted packet: its first 8 bytes are there (RFC 792, RFC 1812).
fn quoted(
    packet: &Packet<'_>,
    l4: usize,
    protocol: u8,
    (source, destination): (u128, u128),
) -> Option<Ends> {
    let l4: [u8; SHORT_LENGTH] = load(packet, l4)?;
    let (source_port, destination_port) = match protocol {
        protocol::TCP | protocol::UDP => (u16_of(&l4, 0), u16_of(&l4, 2)),
        protocol::ICMP | protocol::ICMPV6 if matches!(l4[0], 0 | 8 | 128 | 129) => {
            let id = u16_of(&l4, 4);
            (id, id)
        }
        protocol::ICMP | protocol::ICMPV6 => return None,
        _ => (0, 0),
    };
    Some(Ends { protocol, source, destination, source_port, destination_port })
}
