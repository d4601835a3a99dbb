//! Interception of TCP by TPROXY: packets with a mark come to a listener on this machine, whatever
//! their destination.
//!
//! ```text
//!  a packet with the mark ─ SYN ─▶ prerouting: tproxy ─▶ rule: mark ─▶ table: local ─▶ the listener
//!                         └ later ones ─▶ the socket with their addresses, by its cached route
//! ```
//!
//! Interception combines an nftables table of our own that matches only the mark, a routing rule
//! for the mark, and a routing table in which all addresses are local. The nftables table has an
//! owner, like [`Diversion`](super::Diversion); rule and routes exist until they are removed, and do not
//! affect packets without the mark.

use super::marked::{self, mark, table};
use super::nftables::{self, CREATE, Hook, Meta, Rule, Transaction};
use super::socket::Socket;
use super::{Netlink, NetlinkError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

const CHAIN: &str = "intercept";
/// Priority of `mangle`, where other programs mark packets.
const CHAIN_PRIORITY: i32 = -150;

/// Offset of the flags in the TCP header (RFC 9293, section 3.1).
const TCP_FLAGS_OFFSET: u32 = 13;
const TCP_SYN: u8 = 0x02;
const TCP_ACK: u8 = 0x10;

/// Interception of TCP: packets with [`MARK`](super::MARK) and a port come to the listener with
/// that port on 127.0.0.1 and `::1`, as long as this value exists.
#[derive(Debug)]
pub struct Interception {
    table: Socket,
    port: u16,
}

impl Interception {
    /// Starts an interception in the calling thread's namespace, which must be that of `netlink`.
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_ADMIN`, or the kernel has no nftables, TPROXY
    /// (`CONFIG_NFT_TPROXY`) or policy routing.
    pub fn begin(netlink: &Netlink, port: u16) -> Result<Self, NetlinkError> {
        // The table comes first: rules without it count as left over from an earlier interception.
        let table = nftables::open()?;
        let request = "intercept TCP packets (nftables at prerouting, CONFIG_NF_TABLES_INET, CONFIG_NFT_TPROXY)";
        interception(port).commit(&table, request)?;
        let socket = netlink.socket();
        // Rules and routes of an interception that ended without removing them are the same.
        if let Err(error) = marked::add(socket, port) {
            let _ = marked::remove(socket, port);
            return Err(error);
        }
        Ok(Self { table, port })
    }

    /// Returns the listener's port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Ends the interception: open connections lose their packets.
    ///
    /// # Errors
    /// The kernel does not remove the rules and routes.
    pub fn end(self, netlink: &Netlink) -> Result<(), NetlinkError> {
        marked::remove(netlink.socket(), self.port)
    }
}

impl AsFd for Interception {
    /// Returns the socket of the table: the table exists as long as a copy of it is open.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }
}

fn interception(port: u16) -> Transaction {
    let table = table(port);
    let hook = Hook { device: None, priority: CHAIN_PRIORITY };
    let v4 = to_listener(libc::AF_INET as u8, Ipv4Addr::LOCALHOST.into(), port);
    let v6 = to_listener(libc::AF_INET6 as u8, Ipv6Addr::LOCALHOST.into(), port);
    Transaction::new()
        .make_table(CREATE, &table)
        .make_chain(&table, CHAIN, hook, None)
        .add_rule(&table, CHAIN, v4)
        .add_rule(&table, CHAIN, v6)
}

/// Returns the rule `meta mark MARK meta nfproto FAMILY tcp flags & (syn|ack) == syn tproxy FAMILY
/// to ADDRESS:PORT`.
///
/// Later packets of a connection find its socket by their addresses, and with it the cached route
/// of the first packet: they are only marked, and need neither a socket lookup here nor a new
/// route.
fn to_listener(family: u8, address: IpAddr, port: u16) -> Rule {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    Rule::new()
        .meta_is(Meta::Mark, &mark(port).to_ne_bytes())
        .meta_is(Meta::NfProto, &[family])
        .transport_byte_is(TCP_FLAGS_OFFSET, TCP_SYN | TCP_ACK, TCP_SYN)
        .tproxy(family, &bytes, port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::same;

    #[test]
    fn the_table_of_a_port_is_these_bytes() {
        same(
            &interception(8080).messages(),
            &[
                (0x10, 0x0, "0000000a"),
                (0xa00, 0x600, "010000001200010074616d616e6475612d383038300000000800020000000002"),
                (
                    0xa03,
                    0x600,
                    "010000001200010074616d616e6475612d383038300000000e000300696e746572636570\
             7400000014000480080001000000000008000200ffffff6a0b00070066696c7465720000",
                ),
                (
                    0xa06,
                    0x400,
                    "010000001200010074616d616e6475612d383038300000000e000200696e746572636570\
             74000000cc01048024000180090001006d65746100000000140002800800010000000001\
             08000200000000032c00018008000100636d700020000280080001000000000108000200\
             000000000c00038008000100901f415424000180090001006d6574610000000014000280\
             0800010000000001080002000000000f2c00018008000100636d70002000028008000100\
             0000000108000200000000000c0003800500010002000000340001800c0001007061796c\
             6f6164002400028008000100000000010800020000000002080003000000000d08000400\
             00000001440001800c000100626974776973650034000280080001000000000108000200\
             0000000108000300000000010c00048005000100120000000c0005800500010000000000\
             2c00018008000100636d700020000280080001000000000108000200000000000c000380\
             05000100020000002c0001800e000100696d6d6564696174650000001800028008000100\
             000000010c000280080001007f0000012c0001800e000100696d6d656469617465000000\
             1800028008000100000000020c000280060001001f9000002c0001800b0001007470726f\
             787900001c000280080001000000000208000200000000010800030000000002",
                ),
                (
                    0xa06,
                    0x400,
                    "010000001200010074616d616e6475612d383038300000000e000200696e746572636570\
             74000000d801048024000180090001006d65746100000000140002800800010000000001\
             08000200000000032c00018008000100636d700020000280080001000000000108000200\
             000000000c00038008000100901f415424000180090001006d6574610000000014000280\
             0800010000000001080002000000000f2c00018008000100636d70002000028008000100\
             0000000108000200000000000c000380050001000a000000340001800c0001007061796c\
             6f6164002400028008000100000000010800020000000002080003000000000d08000400\
             00000001440001800c000100626974776973650034000280080001000000000108000200\
             0000000108000300000000010c00048005000100120000000c0005800500010000000000\
             2c00018008000100636d700020000280080001000000000108000200000000000c000380\
             0500010002000000380001800e000100696d6d6564696174650000002400028008000100\
             000000011800028014000100000000000000000000000000000000012c0001800e000100\
             696d6d6564696174650000001800028008000100000000020c000280060001001f900000\
             2c0001800b0001007470726f787900001c000280080001000000000a0800020000000001\
             0800030000000002",
                ),
                (0x11, 0x0, "0000000a"),
            ],
        );
    }
}
