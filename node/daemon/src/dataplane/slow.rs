//! Reasons for plain forwarding of a port to go through the kernel: the kernel would add something
//! to its packets that the fast path does not.

use super::live_port::LivePort;
use super::mode::Mode;
use crate::config::FastPath;
use crate::events::Note;
use api::EventKind;
use bpf_maps::{
    SLOW_IPSEC, SLOW_NETFILTER, SLOW_NO_REDIRECT, SLOW_OPERATOR, SLOW_QDISC, SLOW_RULES,
};
use netlink::Netlink;
use units::Name;

/// Returns a function that finds the reasons of a port's device: those of all ports, and its own.
/// Its second argument names the VLAN devices above the port: their queueing disciplines count, as
/// they come behind its device.
pub(super) fn reasons(
    netlink: &Netlink,
    fast_path: FastPath,
) -> impl Fn(u32, &[u32]) -> u32 + use<> {
    let mut all = 0;
    let mut set = |flag: u32, found: bool| all |= if found { flag } else { 0 };
    let mut qdiscs = Vec::new();
    match fast_path {
        FastPath::Always => {}
        FastPath::Never => set(SLOW_OPERATOR, true),
        FastPath::Auto => {
            // What cannot be found out counts as "it would": correct before fast.
            set(SLOW_NETFILTER, netlink::netfilter_in_use().unwrap_or(true));
            set(SLOW_IPSEC, Netlink::ipsec_in_use().unwrap_or(true));
            set(SLOW_RULES, netlink.extra_rules().map_or(true, |count| count > 0));
            let found = netlink.qdiscs().unwrap_or_default();
            qdiscs = found.into_iter().filter(|q| !q.is_default).map(|q| q.index).collect();
        }
    }
    move |ifindex, above| {
        let has_qdisc = |device: &u32| qdiscs.contains(device);
        let qdisc = if has_qdisc(&ifindex) || above.iter().any(has_qdisc) { SLOW_QDISC } else { 0 };
        let redirect = if bpf::takes_redirects(ifindex) { 0 } else { SLOW_NO_REDIRECT };
        all | qdisc | redirect
    }
}

/// Returns the reasons for plain forwarding of a port not taking the fast path, in words.
pub(crate) fn reasons_of(port: &LivePort) -> Vec<String> {
    match port.mode() {
        Mode::Packet => vec!["its packets come by a packet socket".to_owned()],
        Mode::Tc => vec!["its mode is \"tc\": packets are in the stack already".to_owned()],
        Mode::Native | Mode::Generic => words(port.config().slow),
    }
}

/// Returns the event that reports the reasons of a port.
pub(super) fn note(port: &Name, slow: u32) -> Note {
    let note = |text: &str| {
        Note::new(EventKind::PortSlow, format!("plain forwarding of port '{port}' {text}"))
    };
    match words(slow) {
        reasons if reasons.is_empty() => note("takes the fast path").port(port),
        reasons => note("goes through the kernel").port(port).reason(reasons.join("; ")),
    }
}

/// Returns slow reasons in words.
pub(crate) fn words(slow: u32) -> Vec<String> {
    let words = [
        (SLOW_NETFILTER, "netfilter hooks are registered"),
        (SLOW_IPSEC, "IPsec policies exist"),
        (SLOW_RULES, "routing rules beside the standard ones exist"),
        (SLOW_QDISC, "the port has a queueing discipline"),
        (SLOW_OPERATOR, "fast_path = \"never\""),
        (
            SLOW_NO_REDIRECT,
            "the device takes no redirected frames (a veth does when its other end has GRO on, or an XDP program)",
        ),
    ];
    words.iter().filter(|(flag, _)| slow & flag != 0).map(|(_, word)| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_words() {
        let all =
            [SLOW_NETFILTER, SLOW_IPSEC, SLOW_RULES, SLOW_QDISC, SLOW_OPERATOR, SLOW_NO_REDIRECT];
        assert!(all.iter().all(|reason| words(*reason).len() == 1));
        assert_eq!(words(all.iter().sum()).len(), all.len());
        assert_eq!(words(0), [""; 0]);
    }

    #[test]
    fn an_event_says_whether_packets_take_the_fast_path() {
        let name: Name = "wan".parse().unwrap();
        let text = format!("{:?}", note(&name, 0));
        assert!(text.contains("takes the fast path") && text.contains("reason: None"), "{text}");
        let text = format!("{:?}", note(&name, SLOW_QDISC | SLOW_OPERATOR));
        assert!(text.contains("goes through the kernel"), "{text}");
        assert!(text.contains("discipline; fast_path"), "{text}");
    }
}
