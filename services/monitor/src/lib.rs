//! `monitor`: counts packets and bytes by protocol and code point, marks the
//! code point, forwards. The service of the Tamanoir paper's measurements.
//!
//! The service never drops and never looks beyond the IP header.

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

mod dscp;

use core::sync::atomic::{AtomicU8, Ordering};

use tam::{Packet, Verdict, protocol};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
}

tam::counters! {
    /// Packets that came.
    static PACKETS = "packets";
    /// Bytes of these packets.
    static BYTES = "bytes";
    /// Packets whose code point was changed.
    static MARKED = "marked";
    /// IPv4 packets.
    static IPV4 = "ipv4";
    /// IPv6 packets.
    static IPV6 = "ipv6";
    /// Packets of other protocols.
    static NOT_IP = "not_ip";
    /// TCP segments, fragments included.
    static TCP = "tcp";
    /// UDP datagrams, fragments included.
    static UDP = "udp";
    /// ICMP and ICMPv6 messages, fragments included.
    static ICMP = "icmp";
    /// IP packets of any other protocol.
    static OTHER = "other";
}

/// Value of [`DSCP_MARK`] for no marking; no code point has this many bits.
const NO_MARK: u8 = 0xff;
/// Largest code point: 6 bits (RFC 2474, section 3).
const DSCP_MAX: u8 = 63;
/// Code with which `on_start` refuses a parameter above [`DSCP_MAX`].
const REFUSE_DSCP: u16 = 1;

/// Code point that packets get, or [`NO_MARK`].
static DSCP_MARK: AtomicU8 = AtomicU8::new(46);

fn on_start() -> Result<(), u16> {
    let dscp = tam::parameter("dscp").unwrap_or(46);
    if dscp > DSCP_MAX {
        return Err(REFUSE_DSCP);
    }
    let mark = tam::parameter("mark").unwrap_or(true);
    DSCP_MARK.store(if mark { dscp } else { NO_MARK }, Ordering::Relaxed);
    Ok(())
}

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    PACKETS.add(1);
    BYTES.add(packet.length() as u64);
    let mark = DSCP_MARK.load(Ordering::Relaxed);
    if let Some(mut ip) = packet.ipv4() {
        let found = ip.dscp();
        if mark != NO_MARK && mark != found {
            ip.set_dscp(mark);
            MARKED.add(1);
        }
        count(&IPV4, found, packet.protocol());
    } else if let Some(mut ip) = packet.ipv6() {
        let found = ip.dscp();
        if mark != NO_MARK && mark != found {
            ip.set_dscp(mark);
            MARKED.add(1);
        }
        count(&IPV6, found, packet.protocol());
    } else {
        NOT_IP.add(1);
    }
    Verdict::PASS
}

/// Counts the packet by its original fields.
fn count(version: &tam::Counter, dscp: u8, protocol: u8) {
    version.add(1);
    dscp::counter(dscp).add(1);
    match protocol {
        protocol::TCP => TCP.add(1),
        protocol::UDP => UDP.add(1),
        protocol::ICMP | protocol::ICMPV6 => ICMP.add(1),
        _ => OTHER.add(1),
    }
}

#[cfg(test)]
mod tests;
