//! Random rules for the property tests of this crate.

use core::net::IpAddr;

use ::session::admission::{Capacity, PortCapacity};
use abi::check::MemoryImage;
use proptest::option;
use proptest::prelude::*;
use units::{BitsPerSecond, Bytes, Name};

use crate::ethernet::{Ethertype, Mac};
use crate::l4::{PortRange, TcpFlags};
use crate::prefix::{IpVersion, Prefix};
use crate::protocol::Protocol;
use crate::rule::{FragmentMatch, Match, VlanMatch};

/// Returns the capacity of a small node with one guest core, on which no period below a millisecond
/// can be reserved.
pub(crate) fn capacity() -> Capacity {
    let name = |name: &str| Name::new(name).unwrap();
    let port = PortCapacity { rate: BitsPerSecond(1_000_000_000), packet_max: Bytes(1518) };
    Capacity {
        guest_cores: 1,
        packet_cores: 1,
        memory: Bytes(16 << 20),
        packet_memory: Bytes(1 << 20),
        ports: PORTS.map(|of| (name(of), port)).into(),
        ports_unheld: false,
        one_core: false,
    }
}

/// Names of the ports that [`any_match`] uses.
pub(crate) const PORTS: [&str; 3] = ["left", "right", "up"];

/// Returns an address from a small set, so that random rules and packets meet.
pub(crate) fn any_address(version: IpVersion) -> impl Strategy<Value = IpAddr> {
    let near = prop_oneof![0u32..4, Just(0x8000_0000), any::<u32>()];
    near.prop_map(move |n| match version {
        IpVersion::V4 => IpAddr::from((0x0a00_0000 ^ n).to_be_bytes()),
        IpVersion::V6 => IpAddr::from(((0x2001_0db8_u128 << 96) ^ u128::from(n)).to_be_bytes()),
    })
}

fn any_prefix(version: IpVersion) -> impl Strategy<Value = Prefix> {
    let lengths = match version {
        IpVersion::V4 => prop_oneof![Just(0), Just(8), Just(24), Just(31), Just(32), 0..=32u8],
        IpVersion::V6 => prop_oneof![Just(0), Just(32), Just(64), Just(127), Just(128), 0..=128u8],
    };
    (any_address(version), lengths)
        .prop_map(|(address, length)| Prefix::containing(address, length))
}

/// Returns a protocol from a small set.
pub(crate) fn any_protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::UDP), Just(Protocol::TCP), Just(Protocol::ICMP), Just(Protocol(47)),]
}

/// Returns an L4 port from a small set.
pub(crate) fn any_l4_port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(80), Just(443), 1..=u16::MAX]
}

/// Returns a MAC address from a small set.
pub(crate) fn any_mac() -> impl Strategy<Value = Mac> {
    prop_oneof![Just(1), Just(2), any::<u8>()].prop_map(|last| Mac([2, 0, 0, 0, 0, last]))
}

/// Returns an ethertype from a small set without IP.
pub(crate) fn any_ethertype() -> impl Strategy<Value = Ethertype> {
    prop::sample::select(&["arp", "lldp", "llc", "0x9000"][..])
        .prop_map(|name| name.parse().unwrap())
}

/// Returns one L4 port, a short range, or any.
fn any_ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        any_l4_port().prop_map(PortRange::one),
        (any_l4_port(), 0..300u16)
            .prop_map(|(first, more)| PortRange::between(first, first.saturating_add(more))),
        (1..=u16::MAX, 1..=u16::MAX).prop_map(|(one, other)| PortRange::between(one, other)),
    ]
}

/// Returns a match on the fields that every frame has.
fn any_link() -> impl Strategy<Value = Match> {
    (
        option::weighted(0.3, prop::sample::select(&PORTS[..])),
        option::weighted(
            0.3,
            prop_oneof![Just(VlanMatch::Untagged), (0..4u16).prop_map(VlanMatch::Id)],
        ),
        option::weighted(0.1, any_mac()),
        option::weighted(0.1, any_mac()),
    )
        .prop_map(|(port, vlan, source_mac, destination_mac)| Match {
            port: port.map(|name| Name::new(name).unwrap()),
            vlan,
            source_mac,
            destination_mac,
            ..Match::default()
        })
}

/// Returns a match that its own check accepts.
pub(crate) fn any_match() -> impl Strategy<Value = Match> {
    let not_ip = (any_link(), any_ethertype())
        .prop_map(|(link, ethertype)| Match { ethertype: Some(ethertype), ..link });
    prop_oneof![1 => not_ip, 9 => any_ip_match()]
}

fn any_ip_match() -> impl Strategy<Value = Match> {
    prop_oneof![Just(IpVersion::V4), Just(IpVersion::V6)].prop_flat_map(|version| {
        (
            any_link(),
            option::weighted(0.1, any::<bool>()),
            option::weighted(0.3, Just(version)),
            option::weighted(0.4, any_prefix(version)),
            option::weighted(0.4, any_prefix(version)),
            option::weighted(0.6, any_protocol()),
            option::weighted(0.4, any_ports()),
            option::weighted(0.4, any_ports()),
            option::weighted(0.4, (1u8.., any::<u8>())),
            option::weighted(0.2, 0..=3u8),
            option::weighted(
                0.2,
                prop_oneof![
                    Just(FragmentMatch::None),
                    Just(FragmentMatch::First),
                    Just(FragmentMatch::Later)
                ],
            ),
        )
            .prop_map(
                move |(
                    link,
                    typed,
                    ip,
                    source,
                    destination,
                    protocol,
                    sport,
                    dport,
                    flags,
                    dscp,
                    fragment,
                )| {
                    let ethertype = typed.map(|_| match version {
                        IpVersion::V4 => Ethertype::IPV4,
                        IpVersion::V6 => Ethertype::IPV6,
                    });
                    let v6 = version == IpVersion::V6
                        && (ip.is_some()
                            || source.is_some()
                            || destination.is_some()
                            || typed.is_some());
                    let protocol = protocol.filter(|&p| !(v6 && p == Protocol::ICMP));
                    let ports = protocol.is_some_and(Protocol::has_ports);
                    let tcp = protocol == Some(Protocol::TCP);
                    Match {
                        ethertype,
                        ip_version: ip,
                        source,
                        destination,
                        protocol,
                        source_port: sport.filter(|_| ports),
                        destination_port: dport.filter(|_| ports),
                        tcp_flags: flags
                            .filter(|_| tcp)
                            .and_then(|(compared, set)| TcpFlags::new(compared, set)),
                        dscp,
                        fragment,
                        ..link
                    }
                },
            )
    })
}

/// Returns a module with a default parameter `dscp` that runs at these levels.
pub(crate) fn module(levels: &str) -> crate::ModuleInfo {
    let text = format!(
        "abi = 1\nname = \"monitor\"\nversion = \"0.1.0\"\nwindow = 96\nlevels = [{levels}]\n\
         [parameters.dscp]\ntype = \"u8\"\ndefault = 46\ndescription = \"the mark\"\n\
         [reasons]\n7 = \"too short\"\n"
    );
    let manifest = abi::Manifest::parse(&text).unwrap();
    let digest = "sha256:00".to_owned();
    crate::ModuleInfo {
        digest,
        kind: abi::check::Kind::Packets,
        manifest,
        hands_state_over: false,
        image: MemoryImage(0),
        imports: abi::HostFunctions::NONE,
        granted: abi::HostFunctions::ALL,
    }
}
