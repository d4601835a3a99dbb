//! Routing of marked packets to this machine: a routing rule for the mark of a listener's port, and
//! a routing table in which all addresses are local. They exist until they are removed, and do not
//! affect packets without the mark.

use super::nftables::{self, CREATE, Family, TABLE, Table, has_table};
use super::socket::Socket;
use super::{NetlinkError, link};
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use std::collections::BTreeSet;

/// Base of the marks of packets for listeners; the lower half is the listener's port.
pub const MARK: u32 = 0x5441 << 16;
/// Mask of the part that distinguishes these marks from others.
pub const MARK_MASK: u32 = 0xffff << 16;
/// Creator of our rules and routes, as the kernel stores it (`rtm_protocol`): a number that is
/// unused in iproute2's list.
const MADE_BY: u8 = 0x74;
/// Priority before the main table, and after the table of the machine's own addresses.
const RULE_PRIORITY: u32 = 0x54;

/// Returns the nftables table of a port, which exists as long as its socket: rules and routes
/// without it are left over from an ended interception.
pub(super) fn table(port: u16) -> Table {
    Table { family: Family::Inet, name: format!("{TABLE}{port}"), is_owned: true }
}

/// Returns the mark of packets for a listener's port, which is also the number of their table.
pub(super) fn mark(port: u16) -> u32 {
    MARK | u32::from(port)
}

/// Returns true if the kernel has no IPv6 for a device.
fn is_disabled(error: &NetlinkError) -> bool {
    matches!(error.errno(), Some(libc::EACCES | libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

/// Routes packets with the mark of a port to this machine; other packets are not affected. Rules
/// and routes that an ended interception has left stay.
pub(super) fn add(socket: &Socket, port: u16) -> Result<(), NetlinkError> {
    let request = "route marked packets to this machine (CONFIG_IP_MULTIPLE_TABLES)";
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let route = RouteNetlinkMessage::NewRoute(route(family, port, loopback(socket)?));
        match socket.change(request, &route, NLM_F_CREATE | NLM_F_REPLACE) {
            // Loopback has no IPv6 (net.ipv6.conf.all.disable_ipv6): no such packets come.
            Err(error) if family == AddressFamily::Inet6 && is_disabled(&error) => continue,
            other => other?,
        }
        let rule = RouteNetlinkMessage::NewRule(rule(family, port));
        match socket.change(request, &rule, CREATE) {
            Err(error) if error.errno() == Some(libc::EEXIST) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Removes rules and routes that an interception with this port has left, however it ended. It is
/// no error if there are none.
pub(super) fn remove(socket: &Socket, port: u16) -> Result<(), NetlinkError> {
    let request = "remove the routes of marked packets";
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let route = route(family, port, loopback(socket)?);
        let rule = rule(family, port);
        for message in [RouteNetlinkMessage::DelRoute(route), RouteNetlinkMessage::DelRule(rule)] {
            match socket.change(request, &message, 0) {
                Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH)) => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Removes rules and routes of interceptions whose table is gone with its socket; returns their
/// ports. `tables` are the routing tables that rules of interceptions lead to.
pub(super) fn remove_orphans(
    socket: &Socket,
    tables: impl Iterator<Item = u32>,
) -> Result<Vec<u16>, NetlinkError> {
    let ports: BTreeSet<u16> = tables.map(|table| table as u16).collect();
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let netfilter = nftables::open()?;
    let mut left = Vec::new();
    for port in ports {
        if !has_table(&netfilter, &table(port))? {
            remove(socket, port)?;
            left.push(port);
        }
    }
    Ok(left)
}

fn loopback(socket: &Socket) -> Result<u32, NetlinkError> {
    Ok(link::named(socket, "lo")?.index)
}

/// Returns the route `local default dev lo table MARK`.
fn route(family: AddressFamily, port: u16, loopback: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family,
        protocol: RouteProtocol::Other(MADE_BY),
        scope: RouteScope::Host,
        kind: RouteType::Local,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Table(mark(port)), RouteAttribute::Oif(loopback)];
    message
}

/// Returns the rule `priority P fwmark MARK lookup MARK`.
fn rule(family: AddressFamily, port: u16) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header = RuleHeader { family, action: RuleAction::ToTable, ..RuleHeader::default() };
    message.attributes = vec![
        RuleAttribute::Priority(RULE_PRIORITY),
        RuleAttribute::FwMark(mark(port)),
        RuleAttribute::FwMask(u32::MAX),
        RuleAttribute::Table(mark(port)),
        RuleAttribute::Protocol(RouteProtocol::Other(MADE_BY)),
    ];
    message
}

/// Returns true if a routing rule with this priority and creator (`FRA_PROTOCOL`) is one of ours.
pub(super) const fn is_rule(priority: u32, made_by: u8) -> bool {
    priority == RULE_PRIORITY && made_by == MADE_BY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{Message, same};

    #[test]
    fn routes_and_rules_of_marked_packets_are_these_bytes() {
        let route = |family| RouteNetlinkMessage::NewRoute(route(family, 8080, 1));
        let rule = |family| RouteNetlinkMessage::NewRule(rule(family, 8080));
        let all = [
            route(AddressFamily::Inet),
            rule(AddressFamily::Inet),
            route(AddressFamily::Inet6),
            rule(AddressFamily::Inet6),
        ];
        same(
            &all.map(|it| Message::of(&it, 0)),
            &[
                (24, 0, "020000000074fe020000000008000f00901f41540800040001000000"),
                (
                    32,
                    0,
                    "020000000000000100000000080006005400000008000a00901f415408001000ffffffff08000f00901f41540500150074000000",
                ),
                (24, 0, "0a0000000074fe020000000008000f00901f41540800040001000000"),
                (
                    32,
                    0,
                    "0a0000000000000100000000080006005400000008000a00901f415408001000ffffffff08000f00901f41540500150074000000",
                ),
            ],
        );
    }
}
