//! Meaning of, and advice on, every reason for which a packet leaves the fast path or is dropped. docs/start/troubleshooting.md has more words for the same.

/// Explanation of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reason {
    /// Name of its counter.
    name: &'static str,
    /// Sentence on what became of a packet.
    meaning: &'static str,
    /// Advice; empty when nothing is to be done.
    advice: &'static str,
}

const fn reason(name: &'static str, meaning: &'static str, advice: &'static str) -> Reason {
    Reason { name, meaning, advice }
}

/// Prefix of a module's own reasons: `module.NAME`.
const MODULE: &str = "module.";

/// Explanation of a module's own reasons.
const OWN: Reason = reason(
    "module",
    "the module dropped it, for a reason of its own",
    "the module's documentation says what the reason means; `tam show SERVICE` has its counters",
);

/// Prefix of the kernel's own reasons: `stack.REASON`.
pub(super) const STACK: &str = "stack.";

/// Explanations of the kernel's own reasons, without the prefix (Linux 6.18, dropreason-core.h).
/// Others mean what their name says.
const OF_STACK: &[Reason] = &[
    reason(
        "otherhost",
        "is not addressed to this machine",
        "a node routes: senders must use the port's MAC as their next hop",
    ),
    reason("unhandled_proto", "is of a protocol that nobody here listens to", ""),
    reason(
        "ip_local_source",
        "has a source that is an address of this machine",
        "`sysctl -w net.ipv4.conf.DEVICE.accept_local=1` lets such packets in",
    ),
    reason(
        "ip_rpfilter",
        "was refused by the reverse path filter",
        "`sysctl net.ipv4.conf.DEVICE.rp_filter`; `ip route get SOURCE`",
    ),
    reason("ip_innoroutes", "has no route", "`ip route get DESTINATION`"),
    reason("ip_outnoroutes", "has no route", "`ip route get DESTINATION`"),
    reason("ip_inhdr", "has a header that cannot be, or no hop left", "look for a routing loop"),
    reason("ip_inaddrerrors", "has an address that cannot be routed here", ""),
    reason("netfilter_drop", "was dropped by netfilter", "`nft list ruleset`"),
    reason("neigh_failed", "has a next hop that does not answer ARP or ND", "`ip neigh`"),
    reason("neigh_queuefull", "waited for its next hop with too many others", "`ip neigh`"),
    reason("pkt_too_big", "does not fit the egress and may not be fragmented", "check MTUs"),
    reason("no_socket", "is for a port of this machine where nobody listens", "`ss -lntu`"),
    reason("socket_rcvbuff", "found its socket's buffer full", "its reader is too slow"),
    reason("qdisc_drop", "was dropped by the egress' queueing discipline", "`tc -s qdisc`"),
    reason("tc_ingress", "was dropped by a program or filter at tc ingress", "`tc filter`"),
    reason("tc_egress", "was dropped by a program or filter at tc egress", "`tc filter`"),
    reason("xfrm_policy", "was refused by an IPsec policy", "`ip xfrm policy`"),
    reason("frag_reasm_timeout", "is of a datagram of which fragments are missing", ""),
];

/// Returns true for a reason for which packets end wherever there is a network: it is no event.
pub(super) fn is_common(name: &str) -> bool {
    const COMMON: [&str; 2] = ["otherhost", "unhandled_proto"];
    name.strip_prefix(STACK).is_some_and(|name| COMMON.contains(&name) || name.starts_with("tcp_"))
}

fn of_stack(name: &str) -> (String, String) {
    let known = OF_STACK.iter().find(|reason| reason.name == name);
    let (what, advice) = known.map_or(("", ""), |reason| (reason.meaning, reason.advice));
    let meaning = match what {
        "" => format!("the kernel's stack dropped it: {}", name.replace('_', " ")),
        what => format!("the kernel's stack dropped it: it {what}"),
    };
    (meaning, advice.to_owned())
}

/// Advice on outcomes of the front door; their meaning is in `bpf_maps::OUTCOMES`.
const ADVICE: &[(&str, &str)] = &[
    (
        "kernel_not_for_us",
        "nothing for multicast and broadcast; of unicast senders must use the port's MAC as their next hop: a node routes",
    ),
    (
        "kernel_local",
        "if these should be forwarded: `ip route get ADDRESS` in the node's namespace, and `sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`",
    ),
    ("kernel_neighbour", "if it goes on, the next hop does not answer ARP or ND: `ip neigh`"),
    ("kernel_ttl", "look for a routing loop if there are many"),
    ("kernel_too_big", "the sender is told, or the packet is fragmented; check MTUs of both ports"),
    ("kernel_egress", "add the device that the route leads to as a port in the node file"),
    ("kernel_slow", "`tam show` names what keeps the port slow; remove it, or set fast_path"),
    ("kernel_source", "a reverse path filter judges it: `sysctl net.ipv4.conf.DEVICE.rp_filter`"),
    ("kernel_no_socket", "the cell is down: `tam events` says why"),
    (
        "kernel_partial",
        "switch the sender's TX checksum offload off: `ethtool -K DEVICE tx off` at its end",
    ),
    ("drop_truncated", "the sender or the link is broken: `tam capture --dropped` has the frames"),
    ("drop_ip_version", "the sender is broken: `tam capture --dropped` has the frames"),
    ("drop_header_length", "the sender is broken: `tam capture --dropped` has the frames"),
    ("drop_total_length", "the sender is broken: `tam capture --dropped` has the frames"),
    ("drop_checksum", "the sender or the link is broken: `tam capture --dropped` has the frames"),
    (
        "drop_l4_hidden",
        "`tam rule list`: a rule by protocol, L4 ports or TCP flags may be meant; a better one for such packets that needs none of them lets them through",
    ),
    ("drop_rule", "`tam rule list` shows the rule; `tam rule remove NUMBER` takes it away"),
    ("drop_adjust", "the driver gives too little room in front of frames"),
    ("drop_egress_gone", "the device of the egress port went away: `tam events`"),
    ("drop_lane", "too many CPUs bring packets of one service: let one queue have its flows"),
    (
        "drop_down",
        "`tam list` and `tam events` say why it is down; `--on-failure open` lets packets pass",
    ),
    (
        "drop_queue",
        "`tam session list` shows whose: it comes faster than its session's turns; reserve more, or a longer queue",
    ),
    ("drop_too_long", "give both ends of the bridge the same MTU"),
    (
        "drop_share",
        "`tam session show` has what its rule's session was promised of the port and sends; promise it more",
    ),
    (
        "drop_own_source",
        "somebody uses an address of this router; `sysctl net.ipv4.conf.DEVICE.accept_local` lets such packets in",
    ),
    (
        "drop_vlan_depth",
        "take tags off before the node, or have no rules: beyond two tags nothing can be matched",
    ),
    ("drop_cycle", "two rules or modules send to each other: `tam rule list`"),
];

/// Explanations of reasons outside the front door.
const OTHERS: &[Reason] = &[
    reason("trap", "its module trapped on it", "`tam show SERVICE` has the last trap in words"),
    reason(
        "rule",
        "the module passed it, and a rule of the next stage drops it",
        "`tam rule list` shows the rule; `tam rule remove NUMBER` takes it away",
    ),
    reason(
        "down",
        "no instance of the module runs, and its failure policy is closed",
        "`tam events` says why; it is started again",
    ),
    reason(
        "queue",
        "it came faster than its session's turns, and the session's queue was full",
        "`tam session show` has what it was promised and uses; reserve more, or a longer queue",
    ),
    reason(
        "raise",
        "its module raised it at user level, from where no way leads up",
        "the module may raise only at nic and kernel",
    ),
    reason(
        "budget",
        "the service's budget below user level is used up",
        "deploy it with a larger budget, or with `--over raise`",
    ),
    reason(
        "share",
        "its session's share of the port's rate was used up, below user level",
        "`tam session show` has what it was promised of the port and sends; at kernel and user level packets wait for their turn while its queue has room",
    ),
    reason(
        "lane",
        "another CPU did not leave the service's lane in time, or the lane was held for the service to come down",
        "",
    ),
    reason(
        "redirect_cycle",
        "modules sent it round and round between ports of the node that are cabled to each other",
        "redirect it to a port that leads elsewhere, or match by arrival port (`in PORT`) in the rule",
    ),
    reason(
        "no_port",
        "the port that the module redirects to is not there",
        "compare `tam show` with the module's parameters",
    ),
    reason("too_long", "the module made it longer than the level can send", "run it at user level"),
    reason(
        "egress_full",
        "the transmit ring of its egress port was full, or its session's queue there",
        "the link, or the session's share of it, is slower than its packets come",
    ),
    reason(
        "malformed",
        "the module left no IP packet that could be routed",
        "the module is wrong: `tam run` shows what it does to a packet",
    ),
    reason(
        "vlan",
        "it is tagged for a VLAN of which its port has no device, or has several tags",
        "make the device: `ip link add link PORT name PORT.ID type vlan id ID`; below user level the kernel handles several tags",
    ),
    reason("kernel", "the kernel did not take it from the cell", "see the kernel's log"),
    reason(
        "socket_ring_full",
        "the queue in front of the cell was full: its modules are slower than their packets come",
        "run the service at a lower level, or take fewer packets by its rules",
    ),
    reason("socket_dropped", "there was no free packet memory for the cell", ""),
    reason("device_tx_dropped", "the device dropped it on its way out", "`ethtool -S DEVICE`"),
    reason("device_rx_dropped", "the device dropped it on its way in", "`ethtool -S DEVICE`"),
    reason("no_service", "its service was gone, and it could not be forwarded", ""),
    reason("oversized", "it came in more parts than a packet may have", "use an MTU up to 9,000"),
    reason("no_metadata", "it came to the cell without the front door's metadata", ""),
    reason("active_answer", "an active packet was an answer, and nobody here has asked", ""),
    reason("active_kernel_refused", "the kernel did not take a handshake's message", ""),
    reason(
        "active_malformed",
        "a datagram for the node's associations is no active packet",
        "`tam capture` has it; docs/guides/associations.md says what one looks like",
    ),
    reason(
        "active_unknown",
        "an active packet is of an association that is not there",
        "its sender makes another one when no answer comes; a node that restarts ends all",
    ),
    reason(
        "active_stale",
        "an active packet was accepted before, or is too old to tell",
        "if there are many: somebody replays them, or the path reorders by more than 16,320",
    ),
    reason("active_no_key", "an active packet's key is gone, or too far ahead", ""),
    reason("active_forged", "an active packet was not sealed by its association's other side", ""),
    reason("active_checksum", "an active packet from anyone has a wrong UDP checksum", ""),
    reason(
        "active_refused",
        "an active packet calls a module that is not there, or not for its sender",
        "`tam events` says what the sender lacks, `tam token inspect` what its capability grants; [trust] anyone names what needs none",
    ),
    reason("active_not_asked", "too many active packets called modules that nobody knows", ""),
    reason("active_waiting_full", "too many active packets waited for their service", ""),
    reason("active_waited_too_long", "the service that an active packet called did not come", ""),
    reason("active_gone", "its association went while an active packet waited", ""),
    reason(
        "active_past_cell",
        "an active packet came in fragments, or while the cell was down",
        "let active packets fit the path's MTU",
    ),
    reason("up_dropped", "the way from kernel level up to the cell had no room", ""),
];

/// Returns meaning and advice of a reason; both are empty for one that is not known.
pub(super) fn of(name: &str) -> (String, String) {
    let advice = |name: &str| {
        ADVICE.iter().find(|(known, _)| *known == name).map_or("", |(_, advice)| *advice)
    };
    if let Some((_, meaning)) = bpf_maps::OUTCOMES.iter().find(|(known, _)| *known == name) {
        let bare = meaning.strip_prefix("dropped: ").unwrap_or(meaning);
        return (bare.to_owned(), advice(name).to_owned());
    }
    if let Some(name) = name.strip_prefix(STACK) {
        return of_stack(name);
    }
    let known = OTHERS.iter().find(|reason| reason.name == name);
    let own = || name.starts_with(MODULE).then_some(&OWN);
    known
        .or_else(own)
        .map_or_else(Default::default, |r| (r.meaning.to_owned(), r.advice.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_and_kernel_outcome_has_a_description() {
        for (name, _) in bpf_maps::OUTCOMES {
            assert!(!of(name).0.is_empty(), "{name}");
        }
        for (name, _) in ADVICE {
            assert!(bpf_maps::OUTCOMES.iter().any(|(known, _)| known == name), "{name} is stale");
        }
        assert!(of("stack.netfilter_drop").1.contains("nft"), "{:?}", of("stack.netfilter_drop"));
        assert!(of("stack.of_tomorrow").0.ends_with("dropped it: of tomorrow"));
        assert!(is_common("stack.otherhost") && !is_common("otherhost"));
        assert!(of("module.greeting").0.contains("own"));
        assert_eq!(of("what"), (String::new(), String::new()));
    }
}
