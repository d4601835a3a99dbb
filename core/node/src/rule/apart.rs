//! Comparison of two matches: whether one packet can match both.

use super::Match;
use crate::ethernet::Ethertype;
use crate::l4::{PortRange, TcpFlags};
use crate::prefix::Prefix;

/// Returns true if no packet can match both, as far as that is seen by comparing fields one by one;
/// false otherwise.
pub(super) fn are_apart(one: &Match, other: &Match) -> bool {
    // Typed, so that a field that becomes a range is no longer compared by value.
    let l4_ports = |one: Option<PortRange>, other: Option<PortRange>| match (one, other) {
        (Some(one), Some(other)) => !one.meets(other),
        _ => false,
    };
    let flags = |one: Option<TcpFlags>, other: Option<TcpFlags>| match (one, other) {
        (Some(one), Some(other)) => {
            (one.set() ^ other.set()) & one.compared() & other.compared() != 0
        }
        _ => false,
    };
    // A match without an ethertype is for IP only.
    let beyond_ip =
        |of: &Match| of.ethertype.filter(|ethertype: &Ethertype| ethertype.ip_version().is_none());
    let prefixes = |one: Option<Prefix>, other: Option<Prefix>| match (one, other) {
        (Some(one), Some(other)) => {
            one.ip_version() != other.ip_version()
                || !(one.contains(other.address()) || other.contains(one.address()))
        }
        _ => false,
    };
    differ(one.port.as_ref(), other.port.as_ref())
        || differ(one.vlan, other.vlan)
        || differ(one.ip_version, other.ip_version)
        || differ(one.protocol, other.protocol)
        || l4_ports(one.source_port, other.source_port)
        || l4_ports(one.destination_port, other.destination_port)
        || flags(one.tcp_flags, other.tcp_flags)
        || differ(one.source_mac, other.source_mac)
        || differ(one.destination_mac, other.destination_mac)
        || beyond_ip(one) != beyond_ip(other)
        || prefixes(one.source, other.source)
        || prefixes(one.destination, other.destination)
}

fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}
