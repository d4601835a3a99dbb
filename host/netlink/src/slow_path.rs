//! Detection of kernel features beyond routing that affect a forwarded packet: extra routing rules,
//! queueing disciplines, IPsec policies. Where there is any, a fast path must not skip the kernel.
//! Reads only, attribute by attribute, so that a newer kernel's additions are not taken for errors.

use rtnetlink::packet_core::NlasIterator;
use rustix::net::netlink::XFRM;
use serde::Serialize;

use super::NetlinkError;
use super::marked::is_rule;
use super::socket::{Answer, Message, Socket};

const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
/// Length of `struct fib_rule_hdr`.
const RULE_HEADER_LENGTH: usize = 12;
/// Length of `struct tcmsg`.
const TC_HEADER_LENGTH: usize = 20;
const TCA_KIND: u16 = 1;
/// `FR_ACT_TO_TBL` and attributes of include/uapi/linux/fib_rules.h.
const RULE_TO_TABLE: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
/// `XFRM_MSG_NEWPOLICY` and `XFRM_MSG_GETPOLICY`, and the length of `struct xfrm_userpolicy_id`.
const XFRM_NEWPOLICY: u16 = 0x13;
const XFRM_GETPOLICY: u16 = 0x15;
const XFRM_POLICY_ID_LENGTH: usize = 64;
/// `XFRM_MSG_GETDEFAULT` (Linux 5.15): the action on packets without a policy; the answer has
/// `struct xfrm_userpolicy_default`, a byte each for in, forwarded and out.
const XFRM_GETDEFAULT: u16 = 0x28;
const XFRM_POLICY_BLOCK: u8 = 1;

/// Priority and table of the rules of a new namespace.
const STANDARD_RULES_V4: [(u32, u32); 3] = [(0, 255), (32_766, 254), (32_767, 253)];
const STANDARD_RULES_V6: [(u32, u32); 2] = [(0, 255), (32_766, 254)];

/// Queueing disciplines that the kernel chooses by default: bypassing them changes neither who may
/// send nor how fast.
const DEFAULT_QDISCS: [&str; 5] = ["noqueue", "pfifo_fast", "mq", "fq_codel", "noop"];

/// Routing rule (`ip rule`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RoutingRule {
    /// True for a rule of IPv6.
    pub v6: bool,
    /// Priority; lower ones are consulted first.
    pub priority: u32,
    /// Table that the rule leads to.
    pub table: u32,
    /// True for an unchanged rule of a new namespace.
    pub standard: bool,
    /// True for a rule of an [`Interception`](super::Interception), which affects marked packets
    /// only.
    pub ours: bool,
}

/// Queueing discipline (`tc qdisc`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Qdisc {
    /// Interface index of the device.
    pub index: u32,
    /// Kind: `noqueue`, `tbf`, `clsact`, ...
    pub kind: String,
    /// True if the kernel chooses this kind by default.
    pub is_default: bool,
}

/// Returns all routing rules, IPv4 and IPv6.
pub(super) fn rules(socket: &Socket) -> Result<Vec<RoutingRule>, NetlinkError> {
    let request = "list the routing rules";
    let answers = socket.dump(request, RTM_GETRULE, &[0; RULE_HEADER_LENGTH])?;
    let rules = answers
        .iter()
        .filter(|answer| answer.kind == RTM_NEWRULE)
        .filter_map(|answer| read_rule(&answer.payload))
        .collect();
    Ok(rules)
}

/// Counts the routing rules beyond those of a new namespace and those of this program, which affect
/// no plainly forwarded packet.
pub(super) fn extra_rules(socket: &Socket) -> Result<usize, NetlinkError> {
    Ok(rules(socket)?.iter().filter(|rule| !rule.standard && !rule.ours).count())
}

/// Returns all queueing disciplines of all devices, nested ones included.
pub(super) fn qdiscs(socket: &Socket) -> Result<Vec<Qdisc>, NetlinkError> {
    let request = "list the queueing disciplines";
    let answers = socket.dump(request, RTM_GETQDISC, &[0; TC_HEADER_LENGTH])?;
    let qdiscs = answers
        .iter()
        .filter(|answer| answer.kind == RTM_NEWQDISC)
        .filter_map(|answer| read_qdisc(&answer.payload))
        .collect();
    Ok(qdiscs)
}

/// Counts the IPsec policies of the calling thread's namespace; zero where the kernel has no
/// IPsec.
pub(super) fn ipsec_policies() -> Result<usize, NetlinkError> {
    let request = "count the IPsec policies";
    // Without xfrm in the kernel there is no such protocol, and no policy.
    let Ok(socket) = Socket::open(Some(XFRM), 0) else { return Ok(0) };
    let answers = socket.dump(request, XFRM_GETPOLICY, &[0; XFRM_POLICY_ID_LENGTH])?;
    Ok(answers.iter().filter(|answer| answer.kind == XFRM_NEWPOLICY).count())
}

/// Returns true when IPsec affects forwarded packets of the calling thread's namespace: there are
/// policies, or packets without a policy are dropped (`ip xfrm policy setdefault fwd block`).
pub(super) fn ipsec_in_use() -> Result<bool, NetlinkError> {
    if ipsec_policies()? > 0 {
        return Ok(true);
    }
    let Ok(socket) = Socket::open(Some(XFRM), 0) else { return Ok(false) };
    let request = "ask for IPsec's default policy";
    // A kernel without such a default accepts.
    let message = Message { kind: XFRM_GETDEFAULT, flags: 0, payload: vec![0; 4] };
    let Ok(answers) = socket.ask_raw(request, &message) else { return Ok(false) };
    let blocks = |answer: &Answer| {
        let directions = answer.payload.first_chunk::<3>();
        directions
            .is_some_and(|[_, forwarded, out]| [*forwarded, *out].contains(&XFRM_POLICY_BLOCK))
    };
    Ok(answers.iter().any(blocks))
}

fn read_rule(payload: &[u8]) -> Option<RoutingRule> {
    let (header, attributes) = payload.split_first_chunk::<RULE_HEADER_LENGTH>()?;
    let [family, dst_len, src_len, tos, table, _, _, action, f0, f1, f2, f3] = *header;
    let v6 = match i32::from(family) {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        // Multicast routing's own rules (RTNL_FAMILY_IPMR) route no unicast packet.
        _ => return None,
    };
    let mut plain = [dst_len, src_len, tos, f0, f1, f2, f3] == [0; 7] && action == RULE_TO_TABLE;
    let mut table = u32::from(table);
    let (mut priority, mut made_by) = (0, 0);
    for attribute in NlasIterator::new(attributes).flatten() {
        let number = attribute.value().first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        match (attribute.kind(), number) {
            (FRA_PRIORITY, Some(number)) => priority = number,
            (FRA_TABLE, Some(number)) => table = number,
            (FRA_PROTOCOL, _) => made_by = attribute.value().first().copied().unwrap_or(0),
            (FRA_SUPPRESS_PREFIXLEN, Some(u32::MAX)) | (FRA_PAD, _) => {}
            // Any other attribute selects packets.
            _ => plain = false,
        }
    }
    let born_with: &[_] = if v6 { &STANDARD_RULES_V6 } else { &STANDARD_RULES_V4 };
    let standard = plain && born_with.contains(&(priority, table));
    let ours = is_rule(priority, made_by);
    Some(RoutingRule { v6, priority, table, standard, ours })
}

fn read_qdisc(payload: &[u8]) -> Option<Qdisc> {
    let (header, attributes) = payload.split_first_chunk::<TC_HEADER_LENGTH>()?;
    let index = u32::from_ne_bytes(*header[4..].first_chunk()?);
    let kind = NlasIterator::new(attributes)
        .flatten()
        .find(|attribute| attribute.kind() == TCA_KIND)
        .map(|attribute| {
            String::from_utf8_lossy(attribute.value()).trim_end_matches('\0').to_owned()
        })?;
    let is_default = DEFAULT_QDISCS.contains(&kind.as_str());
    Some(Qdisc { index, kind, is_default })
}
