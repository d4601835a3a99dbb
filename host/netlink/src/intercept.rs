//! Marked TCP packets come to a socket of this machine, whoever they are for (TPROXY).
//!
//! ```text
//!  a packet with the mark ─ SYN ─▶ prerouting: tproxy ─▶ rule: mark ─▶ table: local ─▶ the listener
//!                         └ behind that ─▶ the socket with its addresses, by the route it knows
//! ```
//!
//! Three things of the kernel's together: an nftables table of our own that matches the mark and
//! nothing else, a routing rule for the mark, and a routing table that says that all addresses
//! are here. The table has an owner, as [`Taken`](super::Taken) has; rule and routes are there
//! until they are removed, and say nothing of packets without the mark.

use super::ingress::{
    BATCH_BEGIN, BATCH_END, CREATE, NFPROTO_UNSPEC, NFT_CMP_EQ, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE, NFT_REG_1, NFT_TABLE_F_OWNER, SUBSYSTEM_NFTABLES, TABLE, attribute, be32,
    expression, kind_of, meta_is, nested, text,
};
use super::socket::Channel;
use super::{Netlink, NetlinkError};
use rustix::net::netlink::NETFILTER;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

/// Marks of packets for listeners: this, and the listener's port in the lower half.
pub const MARK: u32 = 0x5441 << 16;
/// What of a mark says that it is one.
pub const MARK_MASK: u32 = 0xffff << 16;
/// Who made our rules and routes, where the kernel keeps that (`rtm_protocol`): a number that
/// nobody else has in iproute2's list.
const MADE_BY: u8 = 0x74;
/// Before the main table is asked, and behind the addresses that are really here.
const RULE_PRIORITY: u32 = 0x54;
const CHAIN: &str = "intercept";
/// As `mangle`, where others mark packets.
const CHAIN_PRIORITY: i32 = -150;

/// include/uapi/linux/netfilter/nf_tables.h, and netfilter.h.
const NFT_MSG_GETTABLE: u16 = 1;
const NFPROTO_INET: u8 = 1;
const NF_INET_PRE_ROUTING: u32 = 0;
const NFT_META_MARK: u32 = 3;
const NFT_META_NFPROTO: u32 = 15;
const NFT_REG_2: u32 = 2;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;

/// RFC 9293, section 3.1.
const TCP_FLAGS_OFFSET: u32 = 13;
const TCP_SYN: u8 = 0x02;
const TCP_ACK: u8 = 0x10;

/// include/uapi/linux/rtnetlink.h and fib_rules.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const RTN_LOCAL: u8 = 2;
const RT_SCOPE_HOST: u8 = 254;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const FR_ACT_TO_TBL: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;

/// Packets that are marked [`MARK`] and a port come to the listener with that port of 127.0.0.1
/// and of `::1`, as long as this is there.
#[derive(Debug)]
pub struct Interception {
    table: Channel,
    port: u16,
}

impl Interception {
    /// Begins it in the calling thread's namespace, which `netlink` is of.
    ///
    /// # Errors
    /// When the caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables, TPROXY
    /// (`CONFIG_NFT_TPROXY`) or policy routing.
    pub fn begin(netlink: &Netlink, port: u16) -> Result<Self, NetlinkError> {
        // First: rules whose table is not there are taken for what somebody has left.
        let table = table(port)?;
        // Rules and routes of one that ended without removing them say the same.
        if let Err(error) = netlink.have_marked_here(port) {
            let _ = netlink.end_interception(port);
            return Err(error);
        }
        Ok(Self { table, port })
    }

    /// The listener's port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Ends it: connections that are open lose their packets.
    ///
    /// # Errors
    /// When the kernel does not remove what was made.
    pub fn end(self, netlink: &Netlink) -> Result<(), NetlinkError> {
        netlink.end_interception(self.port)
    }
}

impl AsFd for Interception {
    /// As long as a copy of this is open, the kernel has the table.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}

/// The table, which is there as long as its socket is.
fn table(port: u16) -> Result<Channel, NetlinkError> {
    let channel =
        Channel::open(Some(NETFILTER), 0).map_err(|source| NetlinkError::Open { source })?;
    let request =
        "intercept TCP packets (nftables at prerouting, CONFIG_NF_TABLES_INET, CONFIG_NFT_TPROXY)";
    let table = text(1, &format!("{TABLE}{port}"));
    let hook = [be32(1, NF_INET_PRE_ROUTING), be32(2, CHAIN_PRIORITY as u32)].concat();
    let chain = [table.clone(), text(3, CHAIN), nested(4, &hook), text(7, "filter")].concat();
    let rule = |family, address| {
        let expressions = nested(4, &to_listener(family, address, port));
        [&header(NFPROTO_INET)[..], &table, &text(2, CHAIN), &expressions].concat()
    };
    let whole = |rest: &[u8]| [&header(NFPROTO_INET)[..], rest].concat();
    let batch = [NFPROTO_UNSPEC, 0, 0, SUBSYSTEM_NFTABLES as u8];
    let owned = [table.clone(), be32(2, NFT_TABLE_F_OWNER)].concat();
    let v4 = rule(libc::AF_INET as u8, Ipv4Addr::LOCALHOST.into());
    let v6 = rule(libc::AF_INET6 as u8, Ipv6Addr::LOCALHOST.into());
    channel.batch(
        request,
        &[
            (BATCH_BEGIN, 0, batch.to_vec()),
            (kind_of(NFT_MSG_NEWTABLE), CREATE, whole(&owned)),
            (kind_of(NFT_MSG_NEWCHAIN), CREATE, whole(&chain)),
            (kind_of(NFT_MSG_NEWRULE), CREATE & !NLM_F_EXCL, v4),
            (kind_of(NFT_MSG_NEWRULE), CREATE & !NLM_F_EXCL, v6),
            (BATCH_END, 0, batch.to_vec()),
        ],
    )?;
    Ok(channel)
}

/// `struct nfgenmsg`.
const fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

/// `meta mark MARK meta nfproto FAMILY tcp flags & (syn|ack) == syn tproxy FAMILY to ADDRESS:PORT`
///
/// What is behind a connection's first packet finds its socket by its addresses, and with that the
/// route that the one before it took: only marked, it is neither looked up here nor routed anew.
fn to_listener(family: u8, address: IpAddr, port: u16) -> Vec<u8> {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let load = |register, bytes: &[u8]| {
        expression("immediate", &[be32(1, register), nested(2, &attribute(1, bytes))])
    };
    [
        meta_is(NFT_META_MARK, &(MARK | u32::from(port)).to_ne_bytes()),
        meta_is(NFT_META_NFPROTO, &[family]),
        begins_a_connection(),
        load(NFT_REG_1, &bytes),
        load(NFT_REG_2, &port.to_be_bytes()),
        expression("tproxy", &[be32(1, u32::from(family)), be32(2, NFT_REG_1), be32(3, NFT_REG_2)]),
    ]
    .concat()
}

/// `tcp flags & (syn|ack) == syn`, where the packet is TCP's.
fn begins_a_connection() -> Vec<u8> {
    let value = |bytes: &[u8]| attribute(1, bytes);
    let load = [
        be32(1, NFT_REG_1),
        be32(2, NFT_PAYLOAD_TRANSPORT_HEADER),
        be32(3, TCP_FLAGS_OFFSET),
        be32(4, 1),
    ];
    let mask = [
        be32(1, NFT_REG_1),
        be32(2, NFT_REG_1),
        be32(3, 1),
        nested(4, &value(&[TCP_SYN | TCP_ACK])),
        nested(5, &value(&[0])),
    ];
    let compare = [be32(1, NFT_REG_1), be32(2, NFT_CMP_EQ), nested(3, &value(&[TCP_SYN]))];
    [expression("payload", &load), expression("bitwise", &mask), expression("cmp", &compare)]
        .concat()
}

/// Whether the kernel has no IPv6 for a device.
fn is_disabled(error: &NetlinkError) -> bool {
    matches!(error.errno(), Some(libc::EACCES | libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

impl Netlink {
    /// Routes packets with the mark of a port to this machine, and asks for no other.
    fn have_marked_here(&self, port: u16) -> Result<(), NetlinkError> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let request = "route marked packets to this machine (CONFIG_IP_MULTIPLE_TABLES)";
            let route = route(family as u8, port, self.loopback()?);
            let flags = CREATE & !NLM_F_EXCL | NLM_F_REPLACE;
            match self.channel.ask_raw(request, RTM_NEWROUTE, flags, &route) {
                // Loopback has no IPv6 (net.ipv6.conf.all.disable_ipv6): nothing of it comes.
                Err(error) if family == libc::AF_INET6 && is_disabled(&error) => continue,
                other => drop(other?),
            }
            let rule = rule(family as u8, port);
            match self.channel.ask_raw(request, RTM_NEWRULE, CREATE, &rule) {
                Err(error) if error.errno() == Some(libc::EEXIST) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Removes what an interception with this port has left, however it ended.
    ///
    /// # Errors
    /// When the kernel refuses; what is not there is no error.
    pub fn end_interception(&self, port: u16) -> Result<(), NetlinkError> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let request = "remove the routes of marked packets";
            let route = route(family as u8, port, self.loopback()?);
            for (kind, message) in [(RTM_DELROUTE, route), (RTM_DELRULE, rule(family as u8, port))]
            {
                match self.channel.ask_raw(request, kind, 0, &message) {
                    Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ESRCH)) => {}
                    other => drop(other?),
                }
            }
        }
        Ok(())
    }

    /// Removes what interceptions have left whose table is gone with whoever held it; their ports.
    ///
    /// # Errors
    /// When the kernel does not say what there is, or does not remove it.
    pub fn end_left_interceptions(&self) -> Result<Vec<u16>, NetlinkError> {
        let rules = self.rules()?;
        let ports: BTreeSet<u16> =
            rules.iter().filter(|rule| rule.ours).map(|rule| rule.table as u16).collect();
        if ports.is_empty() {
            return Ok(Vec::new());
        }
        let channel =
            Channel::open(Some(NETFILTER), 0).map_err(|source| NetlinkError::Open { source })?;
        let mut left = Vec::new();
        for port in ports {
            let named = [&header(NFPROTO_INET)[..], &text(1, &format!("{TABLE}{port}"))].concat();
            match channel.ask_raw("look for a table", kind_of(NFT_MSG_GETTABLE), 0, &named) {
                Ok(_) => {}
                Err(error) if error.errno() == Some(libc::ENOENT) => {
                    self.end_interception(port)?;
                    left.push(port);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }

    fn loopback(&self) -> Result<u32, NetlinkError> {
        Ok(self.link("lo")?.index)
    }
}

/// `local default dev lo table MARK`: `struct rtmsg` and attributes.
fn route(family: u8, port: u16, loopback: u32) -> Vec<u8> {
    let message = [family, 0, 0, 0, 0, MADE_BY, RT_SCOPE_HOST, RTN_LOCAL, 0, 0, 0, 0];
    let table = attribute(RTA_TABLE, &(MARK | u32::from(port)).to_ne_bytes());
    [&message[..], &table, &attribute(RTA_OIF, &loopback.to_ne_bytes())].concat()
}

/// `priority P fwmark MARK lookup MARK`: `struct fib_rule_hdr` and attributes.
fn rule(family: u8, port: u16) -> Vec<u8> {
    let message = [family, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
    let mark = (MARK | u32::from(port)).to_ne_bytes();
    [
        &message[..],
        &attribute(FRA_PRIORITY, &RULE_PRIORITY.to_ne_bytes()),
        &attribute(FRA_FWMARK, &mark),
        &attribute(FRA_FWMASK, &u32::MAX.to_ne_bytes()),
        &attribute(FRA_TABLE, &mark),
        &attribute(FRA_PROTOCOL, &[MADE_BY]),
    ]
    .concat()
}

/// Whether a routing rule with this priority that was made by so and so is one of these.
pub(super) const fn is_rule(priority: u32, made_by: u8) -> bool {
    priority == RULE_PRIORITY && made_by == MADE_BY
}
