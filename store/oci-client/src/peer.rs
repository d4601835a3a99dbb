//! Network distance of an address: this machine, its link, or beyond.
//!
//! A registry chooses the locations of its blobs, so it can redirect a client to any address: to
//! services that trust this machine, or to a cloud's metadata API. An address named by the operator
//! is not restricted; one named by a registry has to be [`Peer::Beyond`].
//!
//! Sources: the IANA registries of special-purpose addresses for IPv4 and IPv6 (RFC 6890), and the
//! documents named beside each range.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network distance of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Address of this machine.
    Machine,
    /// Address with a meaning on this machine's link only, or one that cannot be connected to.
    Link,
    /// Address of another machine, in a private network or in the Internet.
    Beyond,
}

/// Function that returns true if an address is one of this machine's own: those of its devices, and
/// those that its routing tables deliver locally.
pub type IsOwn = fn(IpAddr) -> io::Result<bool>;

/// Addresses at which the host of a virtual machine answers, besides those of its link. Its answers
/// (keys of the machine's account, among others) are for that machine alone.
const HOSTS_V4: [Ipv4Addr; 2] = [
    // Alibaba Cloud, "Instance metadata".
    Ipv4Addr::new(100, 100, 100, 200),
    // Azure, "What is IP address 168.63.129.16?".
    Ipv4Addr::new(168, 63, 129, 16),
];
const HOSTS_V6: [Ipv6Addr; 2] = [
    // Amazon EC2, "Access instance metadata".
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    // Google Cloud, "About VM metadata".
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

impl Peer {
    /// Returns the network distance of an address.
    ///
    /// # Errors
    /// Errors of `is_own`.
    pub fn of(address: IpAddr, is_own: IsOwn) -> io::Result<Self> {
        let special = match address {
            IpAddr::V4(v4) => special_v4(v4),
            IpAddr::V6(v6) => special_v6(v6),
        };
        if let Some(peer) = special {
            return Ok(peer);
        }
        let embedded = match address {
            IpAddr::V4(_) => [None, None],
            IpAddr::V6(v6) => embedded(v6),
        };
        for v4 in embedded.into_iter().flatten() {
            match Self::of(v4.into(), is_own)? {
                Self::Beyond => {}
                near => return Ok(near),
            }
        }
        Ok(if is_own(address)? { Self::Machine } else { Self::Beyond })
    }

    /// Returns the distance in words that complete "ADDRESS is".
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Machine => "an address of this machine",
            Self::Link => "an address of this machine's link or host",
            Self::Beyond => "another machine's address",
        }
    }
}

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

/// Returns the IPv4 addresses to which packets for an IPv6 address are translated or tunnelled, by
/// this machine or a router.
fn embedded(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let v4 =
        |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        // IPv4-mapped and IPv4-compatible (RFC 4291, 2.5.5).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => [v4(high, low), None],
        // The well-known prefix of NAT64 (RFC 6052), and SIIT's (RFC 2765).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            [v4(high, low), None]
        }
        // Local-use NAT64 (RFC 8215), as prefixes of 96 and of 48 bits (RFC 6052, 2.2).
        [0x64, 0xff9b, 1, first, second, third, high, low] => {
            [v4(high, low), v4(first, second << 8 | third >> 8)]
        }
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => [v4(high, low), None],
        // Teredo (RFC 4380, 4): the server, and the client with its bits inverted.
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            [v4(server_high, server_low), v4(!high, !low)]
        }
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Simulates a machine with the addresses 10.0.0.5 and 2001:db8::5.
    fn is_own(address: IpAddr) -> io::Result<bool> {
        Ok(["10.0.0.5", "2001:db8::5"].iter().any(|own| own.parse() == Ok(address)))
    }

    fn peer(text: &str) -> Peer {
        Peer::of(text.parse().unwrap(), is_own).unwrap()
    }

    #[test]
    fn every_form_of_an_own_address_is_this_machine() {
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
            "64:ff9b:1::127.0.0.1",
            "64:ff9b:1:7f00:0:100::",
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
            "2002:808:808::1",
        ] {
            assert_eq!(peer(beyond), Peer::Beyond, "{beyond}");
        }
    }

    #[test]
    fn a_failed_lookup_of_own_addresses_is_an_error() {
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
