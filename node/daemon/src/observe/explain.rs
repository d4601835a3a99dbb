//! `POST /v1/why`: what would become of one packet, as a copy of the front door's own program says.
//!
//! ```text
//!  packet in words ─▶ frame ─▶ private copy, run once ─▶ outcome, rule, metadata ─▶ sentences
//!                              (a thread of its own: the kernel checks the copy)
//! ```

use super::drops::Drops;
use super::question::Question;
use super::reasons;
use super::view::View;
use crate::answer::{Answer, error, failed, quoted, usage};
use crate::dataplane::live_port::LivePort;
use crate::dataplane::mode::Mode;
use crate::dataplane::slow;
use api::{ErrorCode, ExplainRequest, Explanation, SCHEMA_VERSION};
use bpf::front_door::{EXPLAINED_LENGTH_MAX, Explained, Explainer};
use bpf_maps::META_ROUTED;
use node::door::DoorPort;
use node::prefix::Prefix;
use node::protocol::Protocol;
use node::rule::{Match, VlanMatch};
use node::state::RuleView;
use node::{Action, Service, ServiceState};
use std::net::IpAddr;
use units::{Name, RuleId};
use wire::FrameBuilder;

/// Length of an Ethernet header.
const FRAME_LENGTH_MIN: usize = 14;
/// TTL of a packet that is asked about: as most systems send them.
const TTL: u8 = 64;
/// L4 port of a side that was not named: from the dynamic range (RFC 6335).
const L4_PORT: u16 = 49_152;
/// Source address of a frame that is made here: locally administered.
const SENDER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// First step of an explanation.
pub(crate) enum Explaining {
    /// The explanation is complete.
    Done(Box<Explanation>),
    /// The kernel has to run the front door over the frame.
    Run(Run),
}

/// Run of a copy of the front door over one frame.
pub(crate) struct Run {
    explainer: Explainer,
    question: Question,
    ifindex: u32,
    rules: Vec<RuleId>,
}

impl Run {
    /// Runs the copy in the kernel. Blocks for as long as the kernel checks it.
    pub(crate) fn run(self) -> (Question, Result<Explained, String>) {
        let Self { explainer, question, ifindex, rules } = self;
        let explained = explainer.explain(question.port, ifindex, &question.frame, &rules);
        (question, explained.map_err(|problem| problem.to_string()))
    }
}

/// Begins an explanation.
///
/// # Errors
/// The request has a mistake, or the front door cannot be copied.
pub(super) fn begin(
    view: &View<'_>,
    drops: &Drops,
    request: &ExplainRequest,
) -> Answer<Explaining> {
    let (question, ifindex) = question_of(view, request)?;
    if let Some(found) = explain_packets(view, &question) {
        let explanation = explanation(view, drops, &question, &found)?;
        return Ok(Explaining::Done(Box::new(explanation)));
    }
    let explainer = view.plane.front().explainer().map_err(failed)?;
    let rules = view.node.all_rules().iter().map(|view| view.rule.id).collect();
    Ok(Explaining::Run(Run { explainer, question, ifindex, rules }))
}

/// Returns the explanation of a frame that the kernel has run the front door over.
///
/// # Errors
/// The kernel did not run it, or the port is gone.
pub(super) fn finish(
    view: &View<'_>,
    drops: &Drops,
    question: &Question,
    explained: Result<Explained, String>,
) -> Answer<Explanation> {
    let explained = explained.map_err(|problem| {
        let message = format!("the kernel does not run a copy of the front door: {problem}");
        error(ErrorCode::Unsupported, message, None)
    })?;
    explanation(view, drops, question, &explained)
}

/// Returns what the cell would do with a frame that comes in by a packet port.
fn explain_packets(view: &View<'_>, question: &Question) -> Option<Explained> {
    let Question { port, frame } = question;
    let live = view.plane.port(*port)?;
    let packets = view.plane.front().packets().filter(|_| live.mode() == Mode::Packet)?;
    let door = DoorPort { id: *port, mac: live.config().mac, bridge: live.bridge() };
    let decision = packets.decider().explain(&door, frame);
    let (outcome, rules) = (decision.outcome_name(), decision.rules().collect());
    Some(Explained { outcome, rules, meta: Some(decision.meta), frame: frame.clone() })
}

/// Returns the question of a request, and the index of its port's device.
fn question_of(view: &View<'_>, request: &ExplainRequest) -> Answer<(Question, u32)> {
    let (named, packet, frame) = match (&request.packet, &request.frame_hex) {
        (Some(text), None) => {
            let packet: Match = text.parse().map_err(usage)?;
            let port = packet.port.as_ref().map(Name::to_string);
            (port.or_else(|| request.port.clone()), Some(packet), Vec::new())
        }
        (None, Some(digits)) => (request.port.clone(), None, bytes_of(digits)?),
        _ => return Err(usage("one of 'packet' and 'frame_hex' says which packet")),
    };
    let known = || view.plane.ports().iter().map(|port| port.name().to_string());
    let Some(named) = named else {
        let ports: Vec<String> = known().collect();
        let message = "it is not said by which port the packet comes in";
        let help = format!("add 'in PORT'; the ports are {}", ports.join(", "));
        return Err(error(ErrorCode::Usage, message, Some(&help)));
    };
    let Some(port) = view.plane.ports().iter().find(|p| p.name().as_str() == named) else {
        let ports: Vec<String> = known().collect();
        let message = format!("this node has no port '{}'", quoted(&named));
        let help = format!("the ports are {}", ports.join(", "));
        return Err(error(ErrorCode::NotFound, message, Some(&help)));
    };
    let frame = match packet {
        Some(packet) => build(&packet, port.config().mac).map_err(usage)?,
        None => frame,
    };
    if !(FRAME_LENGTH_MIN..=EXPLAINED_LENGTH_MAX).contains(&frame.len()) {
        return Err(usage(format!(
            "a frame of {} bytes cannot be asked about; {FRAME_LENGTH_MIN} to {EXPLAINED_LENGTH_MAX} can",
            frame.len()
        )));
    }
    Ok((Question { port: port.id(), frame }, port.config().ifindex))
}

fn explanation(
    view: &View<'_>,
    drops: &Drops,
    question: &Question,
    found: &Explained,
) -> Answer<Explanation> {
    let Question { port, frame } = question;
    let live = view.plane.port(*port);
    let live = live.ok_or_else(|| failed("the port is gone meanwhile"))?;
    let views = view.node.all_rules();
    let mut rules: Vec<&RuleView> =
        views.iter().filter(|view| found.rules.contains(&view.rule.id)).collect();
    rules.sort_by_key(|view| view.rule.spec.stage());
    let decides = |view: &&&RuleView| view.rule.spec.action != Action::Forward;
    let rule = rules.iter().find(decides).or(rules.first()).copied();
    let action = rule.map(|view| &view.rule.spec.action);
    let service = action.and_then(Action::service).and_then(|name| view.node.service(name));
    let outcome = service.map_or(found.outcome, |service| counted_as(found, service, frame));
    let (meaning, advice) = reasons::of(outcome);
    let out = egress_of(view, found);
    let mut steps = vec![arrival(live, frame)];
    steps.extend(rule_steps(&rules, &views));
    let given = found.outcome.starts_with("to_") || found.outcome == "kernel_no_socket";
    if let Some(service) = service.filter(|_| found.outcome == "drop_down") {
        steps.push(down(service));
    }
    if let Some(service) = service.filter(|_| given) {
        let (name, level) = (&service.name, service.level);
        steps.push(format!("the service '{name}' gets it at {level}; its module decides"));
    }
    if let Some(service) = service.filter(|_| given) {
        let mut later = rules.iter().filter_map(|view| view.rule.spec.action.service());
        let next = service.then.values().next();
        let next = next.or_else(|| later.next_back().filter(|it| **it != service.name));
        steps.extend(next.map(|next| {
            format!("when the module passes it, the service '{next}' gets it before it leaves")
        }));
    }
    steps.push(match (&out, found.outcome) {
        (Some((egress, hop)), "forwarded") => {
            format!("it leaves by port '{egress}' to {hop}, TTL less one")
        }
        (Some((egress, hop)), "cut_through") => {
            format!(
                "it leaves by port '{egress}' to {hop}, TTL less one: its route leads there"
            )
        }
        (None, "cut_through") => "it leaves as it is: its route does not lead there".into(),
        (Some((egress, hop)), _) if given => {
            format!("when the module passes it, it leaves by port '{egress}' to {hop}")
        }
        (None, _) if given && live.bridge().is_some() => {
            "when the module passes it, it leaves by the other end of the bridge".into()
        }
        (None, _) if given => {
            "when the module passes it, the kernel has the rest: a route, a next hop, or what keeps a port from the fast path is the kernel's to find"
                .into()
        }
        _ => meaning.clone(),
    });
    if found.outcome == "kernel_slow" || (given && out.is_none()) {
        let slow = |p: &LivePort| {
            let words = slow::reasons_of(p).join("; ");
            (!words.is_empty()).then(|| format!("port '{}' is slow: {words}", p.name()))
        };
        steps.extend(view.plane.ports().iter().filter_map(slow));
    }
    if found.outcome.starts_with("kernel_") {
        steps.extend(dropped_lately(view, drops, live.name()));
    }
    let (egress_port, next_hop) = out.unzip();
    Ok(Explanation {
        schema_version: SCHEMA_VERSION,
        port: live.name().to_string(),
        frame_hex: frame.iter().map(|byte| format!("{byte:02x}")).collect(),
        outcome: outcome.to_owned(),
        meaning,
        advice,
        dropped: found.outcome.starts_with("drop_"),
        rule: rule.map(|view| view.rule.id.0),
        session: rule.map(|view| view.rule.spec.session.to_string()),
        service: service
            .filter(|_| given || found.outcome == "drop_down")
            .map(|service| service.name.to_string()),
        level: service.filter(|_| given).map(|service| service.level.to_string()),
        egress_port,
        next_hop,
        steps,
    })
}

/// Returns a sentence on what the kernel has dropped in the last minute of what a port left to it.
fn dropped_lately(view: &View<'_>, drops: &Drops, port: &Name) -> Option<String> {
    let by_kernel = drops.iter().filter(|(place, _)| {
        place.reason.starts_with(reasons::STACK) && place.port.as_ref() == Some(port)
    });
    let counted = by_kernel.map(|(place, counted)| (&place.reason, counted.lately(view.now)));
    let counted = counted.filter(|(_, packets)| *packets > 0);
    let words: Vec<String> = counted.map(|(why, count)| format!("{count} {why}")).collect();
    (!words.is_empty()).then(|| {
        format!(
            "of what port '{port}' left to it the kernel has lately dropped {}",
            words.join(", ")
        )
    })
}

/// Returns the egress port and next hop that the front door found.
fn egress_of(view: &View<'_>, found: &Explained) -> Option<(String, String)> {
    let (port, hop) = match found.meta {
        Some(meta) if meta.flags & META_ROUTED != 0 => {
            (view.plane.ports().iter().find(|p| p.id().0 == meta.egress_port)?, meta.next_hop)
        }
        Some(_) => return None,
        None if matches!(found.outcome, "forwarded" | "cut_through") => {
            // Its addresses are those of the way out by now.
            let (hop, rest) = found.frame.split_first_chunk::<6>()?;
            let own = rest.first_chunk::<6>()?;
            (view.plane.ports().iter().find(|p| p.config().mac == *own)?, *hop)
        }
        None => return None,
    };
    let hop = hop.map(|byte| format!("{byte:02x}")).join(":");
    Some((port.name().to_string(), hop))
}

/// Returns the outcome as the port counts it: in the copy of the front door every service is at
/// user level.
fn counted_as(found: &Explained, service: &Service, frame: &[u8]) -> &'static str {
    let is_tagged = matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8]));
    match (found.outcome, service.level) {
        ("to_user", abi::Level::Nic) => "to_nic",
        ("to_user", abi::Level::Kernel) if !is_tagged => "to_kernel_module",
        (outcome, _) => outcome,
    }
}

/// Returns a sentence on what keeps a service from having its packets.
fn down(service: &Service) -> String {
    let (name, policy) = (&service.name, service.on_failure);
    let why = match &service.state {
        ServiceState::Failed { reason } | ServiceState::Bypassed { reason } => reason.as_str(),
        ServiceState::Starting => "it is being started",
        ServiceState::Stopping => "it is being removed",
        ServiceState::Running => "its cell is gone",
    };
    format!("the service '{name}' is down ({why}), and its failure policy is {policy}")
}

fn arrival(port: &LivePort, frame: &[u8]) -> String {
    let (name, device) = (port.name(), &port.spec().device);
    let what = match wire::parse_frame(frame) {
        Ok(packet) => {
            let protocol = Protocol(packet.protocol);
            let address = |bytes: [u8; 16]| -> IpAddr {
                match packet.ip_version {
                    4 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
                    _ => IpAddr::from(bytes),
                }
            };
            let (from, to) = (address(packet.source), address(packet.destination));
            let ends = match protocol.has_ports() {
                true => (format!(" port {}", packet.source_port), packet.destination_port),
                false => (String::new(), 0),
            };
            let to_port =
                if protocol.has_ports() { format!(" port {}", ends.1) } else { String::new() };
            format!("{protocol} from {from}{} to {to}{to_port}", ends.0)
        }
        Err(problem) => format!("not an IP packet that can be read: {problem}"),
    };
    format!("comes in by port '{name}' ({device}), {} bytes: {what}", frame.len())
}

fn rule_steps(rules: &[&RuleView], views: &[RuleView]) -> Vec<String> {
    if rules.is_empty() {
        let waiting = views.iter().filter(|v| v.reach == node::classifier::Reach::Waiting);
        let waiting: Vec<String> = waiting.map(|view| format!("#{}", view.rule.id)).collect();
        let none = "no rule matches: plain forwarding".to_owned();
        if waiting.is_empty() {
            return vec![none];
        }
        let note =
            format!("not looked at, since their service does not run: {}", waiting.join(", "));
        return vec![none, note];
    }
    let step = |view: &&RuleView| {
        let spec = &view.rule.spec;
        format!(
            "rule #{} ('{}', priority {}, session {}, stage {}) says: {}",
            view.rule.id,
            spec.r#match,
            spec.priority,
            spec.session,
            spec.stage(),
            spec.action
        )
    };
    rules.iter().map(step).collect()
}

/// Returns the frame that a packet in words means.
fn build(packet: &Match, mac: [u8; 6]) -> Result<Vec<u8>, String> {
    let whole = |prefix: Option<Prefix>, word: &str| {
        let single = |p: &Prefix| Prefix::containing(p.address(), 128).length() == p.length();
        match prefix {
            None => Err(format!("a packet has one address of each kind: add '{word} ADDRESS'")),
            Some(prefix) if !single(&prefix) => {
                Err(format!("'{word} {prefix}' is a network; a packet has one address"))
            }
            Some(prefix) => Ok(prefix.address()),
        }
    };
    let (from, to) = (whole(packet.source, "src")?, whole(packet.destination, "dst")?);
    let mut frame =
        FrameBuilder::new().ethernet(packet.source_mac.map_or(SENDER, |mac| mac.0), mac);
    if let Some(VlanMatch::Id(id)) = packet.vlan {
        frame = frame.vlan(id);
    }
    let mut frame = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => frame.ipv4(from, to, TTL),
        (IpAddr::V6(from), IpAddr::V6(to)) => frame.ipv6(from, to, TTL),
        _ => return Err("source and destination are of different IP versions".to_owned()),
    };
    if let Some(dscp) = packet.dscp {
        frame = frame.dscp(dscp);
    }
    let (sport, dport) = (
        packet.source_port.map_or(L4_PORT, |ports| ports.first()),
        packet.destination_port.map_or(L4_PORT, |ports| ports.first()),
    );
    let protocol = packet.protocol.unwrap_or(Protocol::UDP);
    let frame = match protocol {
        Protocol::UDP => frame.udp(sport, dport),
        Protocol::TCP => frame.tcp(
            sport,
            dport,
            packet.tcp_flags.map_or(wire::protocol::TCP_SYN, |flags| flags.set()),
        ),
        Protocol::ICMP | Protocol::ICMPV6 => frame.icmp_echo(1, 1),
        Protocol(number) if protocol.has_ports() => {
            let ports = [sport.to_be_bytes(), dport.to_be_bytes()].concat();
            frame.protocol(number).payload(&[&ports[..], &[0; 12]].concat())
        }
        Protocol(number) => frame.protocol(number),
    };
    Ok(frame.build())
}

fn bytes_of(digits: &str) -> Answer<Vec<u8>> {
    let wrong = || usage("'frame_hex' has an even number of hexadecimal digits");
    if digits.len() > 2 * EXPLAINED_LENGTH_MAX {
        let message =
            format!("a frame that is asked about has at most {EXPLAINED_LENGTH_MAX} bytes");
        return Err(usage(message));
    }
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    pairs.collect::<Result<_, _>>().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn a_packet_in_words_becomes_the_frame_that_it_means() {
        let text = "in left vlan 7 proto tcp src 10.0.1.2 dst 10.0.2.2 dport 443 dscp 10";
        let frame = build(&text.parse().unwrap(), MAC).unwrap();
        let packet = wire::parse_frame(&frame).unwrap();
        assert_eq!((packet.protocol, packet.destination_port, packet.dscp), (6, 443, 10));
        assert_eq!((packet.vlan.unwrap().id, &frame[..6]), (7, &MAC[..]));
        let text = "proto icmpv6 src 2001:db8::1 dst 2001:db8::2";
        assert_eq!(
            wire::parse_frame(&build(&text.parse().unwrap(), MAC).unwrap()).unwrap().protocol,
            58
        );
    }

    #[test]
    fn an_incomplete_packet_description_is_refused_with_what_it_lacks() {
        let problem = |text: &str| build(&text.parse().unwrap(), MAC).unwrap_err();
        assert!(problem("dst 10.0.2.2").contains("src ADDRESS"));
        assert!(problem("src 10.0.1.2 dst 10.0.2.0/24").contains("network"));
        assert!(bytes_of("0g").is_err() && bytes_of("012").is_err());
        assert_eq!(bytes_of("0aff").unwrap(), [10, 255]);
    }
}
