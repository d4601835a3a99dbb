//! Classes of addresses: this machine, its link, or beyond.
//!
//! A registry names the servers of its blobs, and could make its clients connect to services that
//! trust this machine or its network (server-side request forgery): to the metadata service of a
//! cloud's host, for one. Servers that an operator names may be anywhere; those that a registry
//! names have to be [`Peer::Beyond`], and the connection is made to the address that was
//! classified.
//!
//! Sources: the IANA registries of special-purpose addresses for IPv4 and IPv6 (RFC 6890), and the
//! documents that are named beside each range.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Machine that an address leads to, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The machine itself.
    Machine,
    /// Another one on its link, the host of this virtual machine, or none that can be connected
    /// to.
    Link,
    /// Another one, in a private network or in the Internet.
    Beyond,
}

/// Function that returns true for the addresses of this machine: those of its devices, and those
/// that its routing tables deliver here.
pub type IsOwn = fn(IpAddr) -> io::Result<bool>;

/// IPv4 addresses outside its link at which the host of a virtual machine answers. Its answers are
/// for that machine alone: keys of the machine's account are among them.
const HOSTS_V4: [Ipv4Addr; 2] = [
    // Alibaba Cloud, "Instance metadata".
    Ipv4Addr::new(100, 100, 100, 200),
    // Azure, "What is IP address 168.63.129.16?".
    Ipv4Addr::new(168, 63, 129, 16),
];
/// IPv6 addresses of the same kind.
const HOSTS_V6: [Ipv6Addr; 2] = [
    // Amazon EC2, "Access instance metadata".
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    // Google Cloud, "About VM metadata".
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

impl Peer {
    /// Classifies an address. One that embeds IPv4 addresses is of the first class among theirs
    /// that is not [`Peer::Beyond`], or else of its own.
    ///
    /// # Errors
    /// The error of `is_own`, for an address that no range decides: it counts as no class.
    pub fn of(address: IpAddr, is_own: IsOwn) -> io::Result<Self> {
        let special = match address {
            IpAddr::V4(v4) => special_v4(v4),
            IpAddr::V6(v6) => special_v6(v6),
        };
        if let Some(peer) = special {
            return Ok(peer);
        }
        let embedded = match address {
            IpAddr::V4(_) => Vec::new(),
            IpAddr::V6(v6) => embedded(v6),
        };
        for v4 in embedded {
            // An IPv4 address embeds none: this goes no deeper.
            match Self::of(v4.into(), is_own)? {
                Self::Beyond => {}
                nearer => return Ok(nearer),
            }
        }
        Ok(if is_own(address)? { Self::Machine } else { Self::Beyond })
    }

    /// Returns the words that follow an address and "is".
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Machine => "an address of this machine",
            Self::Link => "an address of this machine's link or host",
            Self::Beyond => "another machine's address",
        }
    }
}

/// Returns the class of an address in a special range, whatever addresses this machine has.
fn special_v4(address: Ipv4Addr) -> Option<Peer> {
    match address.octets() {
        // "This host on this network" (RFC 1122, 3.2.1.3): Linux connects 0.0.0.0 to itself.
        [0 | 127, ..] => Some(Peer::Machine),
        // Link-local (RFC 3927), where most clouds have their hosts; IETF protocol assignments
        // (RFC 6890, 2.1), each of which ends at the next router.
        [169, 254, ..] | [192, 0, 0, _] => Some(Peer::Link),
        // Multicast (RFC 5771), reserved (RFC 1112), limited broadcast (RFC 919).
        [224..=255, ..] => Some(Peer::Link),
        _ => HOSTS_V4.contains(&address).then_some(Peer::Link),
    }
}

/// Returns the class of an address in a special range, whatever addresses this machine has.
fn special_v6(address: Ipv6Addr) -> Option<Peer> {
    if address.is_unspecified() || address.is_loopback() {
        return Some(Peer::Machine);
    }
    match address.segments() {
        // Link-local, site-local (deprecated, RFC 3879) and multicast (RFC 4291, 2.4), which is all
        // from fe80::/10 to the end.
        [0xfe80..=0xffff, ..] => Some(Peer::Link),
        // Discard-only (RFC 6666).
        [0x100, 0, 0, 0, ..] => Some(Peer::Link),
        _ => HOSTS_V6.contains(&address).then_some(Peer::Link),
    }
}

/// Returns the IPv4 addresses to which this machine or a router may translate or tunnel packets for
/// an IPv6 address.
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // IPv4-mapped and IPv4-compatible (RFC 4291, 2.5.5).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => vec![v4(high, low)],
        // The well-known prefix of NAT64 (RFC 6052), and SIIT's (RFC 2765).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            vec![v4(high, low)]
        }
        // Local-use NAT64 (RFC 8215).
        [0x64, 0xff9b, 1, ..] => embedded_local_nat64(address.octets()),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => vec![v4(high, low)],
        // Teredo (RFC 4380, 4): the server, and the client with its bits inverted.
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            vec![v4(server_high, server_low), v4(!high, !low)]
        }
        _ => Vec::new(),
    }
}

/// Returns the IPv4 addresses that an address of local-use NAT64 can embed. The operator's prefix
/// has 48, 56, 64 or 96 bits (RFC 6052, 2.2); the address does not say how many.
///
/// ```text
///  octet  6    7    8    9    10   11   12   13   14   15
///   /48   v4   v4   0    v4   v4
///   /56        v4   0    v4   v4   v4
///   /64             0    v4   v4   v4   v4
///   /96                                  v4   v4   v4   v4
/// ```
///
/// Zeros of a prefix read as 0.x.y.z under a shorter one, and no translator sends packets there:
/// such readings count only where there is no other.
fn embedded_local_nat64(octets: [u8; 16]) -> Vec<Ipv4Addr> {
    const V4_AT: [[usize; 4]; 4] =
        [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]];
    let readings = V4_AT.map(|at| Ipv4Addr::from(at.map(|octet| octets[octet])));
    let (zeros, others): (Vec<_>, Vec<_>) =
        readings.into_iter().partition(|v4| v4.octets()[0] == 0);
    if others.is_empty() { zeros } else { others }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A machine with the addresses 10.0.0.5 and 2001:db8::5.
    fn is_own(address: IpAddr) -> io::Result<bool> {
        Ok(["10.0.0.5", "2001:db8::5"].iter().any(|own| own.parse() == Ok(address)))
    }

    fn peer(text: &str) -> Peer {
        Peer::of(text.parse().unwrap(), is_own).unwrap()
    }

    #[test]
    fn this_machine_is_known_by_whatever_address_leads_to_it() {
        for here in [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.5",
            "::1",
            "::",
            "2001:db8::5",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.5",
            "::127.0.0.1",
            "::10.0.0.5",
            "64:ff9b::7f00:1",
            "64:ff9b::10.0.0.5",
            "64:ff9b:1::",
            "64:ff9b:1::127.0.0.1",
            "64:ff9b:1::10.0.0.5",
            // Prefixes of 48, 56 and 64 bits, with 127.0.0.1 and 10.0.0.5.
            "64:ff9b:1:7f00:0:100::",
            "64:ff9b:1:a00:0:500::",
            "64:ff9b:1:7f:0:1::",
            "64:ff9b:1:ab0a:0:5::",
            "64:ff9b:1:0:7f:0:100:0",
            "64:ff9b:1:abcd:a:0:500:0",
            "::ffff:0:127.0.0.1",
            "2002:7f00:1::",
            "2002:a00:5::1",
            "2001:0:7f00:1::",
            // The client 127.0.0.1, inverted.
            "2001:0:c000:201::80ff:fffe",
        ] {
            assert_eq!(peer(here), Peer::Machine, "{here}");
        }
    }

    #[test]
    fn the_link_and_the_host_of_a_virtual_machine_are_not_beyond() {
        for near in [
            "169.254.169.254",
            "169.254.0.1",
            "192.0.0.192",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
        ] {
            assert_eq!(peer(near), Peer::Link, "{near}");
        }
    }

    #[test]
    fn other_machines_are_beyond_also_in_private_networks() {
        for beyond in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "203.0.113.1",
            "8.8.8.8",
            "223.255.255.255",
            "2001:db8::1",
            "fd00::1",
            "2606:4700::1111",
            "::ffff:10.0.0.1",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:1:abcd::8.8.8.8",
            "64:ff9b:1:808:8:800::",
            "2002:808:808::1",
        ] {
            assert_eq!(peer(beyond), Peer::Beyond, "{beyond}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_say_is_no_answer() {
        let silent = |_| Err(io::Error::other("no netlink"));
        assert!(Peer::of("10.0.0.1".parse().unwrap(), silent).is_err());
        assert_eq!(Peer::of("127.0.0.1".parse().unwrap(), silent).unwrap(), Peer::Machine);
    }

    proptest! {
        #[test]
        fn an_ipv4_address_is_as_near_in_every_form_of_ipv6(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let [a, b] = [(bits >> 16) as u16, bits as u16];
            let forms = [
                v4.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, a, b),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a, b),
                Ipv6Addr::new(0x2002, a, b, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, 0x0808, 0x0808, 0, 0, !a, !b),
            ];
            for form in forms {
                prop_assert_eq!(peer(&form.to_string()), peer(&v4.to_string()), "{}", form);
            }
        }
    }
}
