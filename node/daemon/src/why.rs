//! `GET /v1/why`: why packets are dropped or leave the fast path. `POST /v1/why`: what would
//! become of one packet, as a copy of the front door's own program says.
//!
//! ```text
//!  packet in words ─▶ frame ─▶ private copy, run once ─▶ outcome, rule, metadata ─▶ sentences
//!                              (a thread of its own: the kernel checks the copy)
//! ```

use crate::answer::{failed, usage};
use crate::control::authority::Sight;
use crate::daemon::{Daemon, Done};
use crate::dataplane::ports::{self, LivePort, Mode};
use crate::drops::{Place, is_drop};
use crate::http::{Answer, error};
use crate::observe::reasons;
use crate::reply::Reply;
use api::{ErrorCode, ExplainRequest, Explanation, SCHEMA_VERSION, WhyList, WhyReason};
use bpf::front_door::{EXPLAINED_LENGTH_MAX, Explained};
use bpf_maps::META_ROUTED;
use node::door::DoorPort;
use node::prefix::Prefix;
use node::protocol::Protocol;
use node::rule::{Match, VlanMatch};
use node::state::RuleView;
use node::{Action, Service, ServiceState};
use std::cmp::Reverse;
use std::net::IpAddr;
use units::{Name, PortId, RuleId};
use wire::FrameBuilder;

/// An Ethernet header.
const FRAME_LENGTH_MIN: usize = 14;
/// TTL of a packet that is asked about: as most systems send them.
const TTL: u8 = 64;
/// L4 port of a side that was not named: from the dynamic range (RFC 6335).
const L4_PORT: u16 = 49_152;
/// Who sends it, in a frame that is made here: locally administered.
const SENDER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// A question whose answer the kernel is looking for.
pub(crate) struct Asked {
    pub(crate) reply: Reply<Explanation>,
    port: PortId,
    frame: Vec<u8>,
}

impl Daemon {
    /// Every reason that counted, what happened lately first.
    pub(crate) fn why_list(&self, sight: &Sight) -> WhyList {
        let views = self.control.node().all_rules();
        let now = self.now();
        let mut reasons: Vec<WhyReason> = self
            .drops
            .iter()
            // Told by rule.
            .filter(|(place, _)| place.reason != "drop_rule" || place.rule.is_some())
            .filter(|(place, _)| self.sees(sight, place, &views))
            .map(|(place, counted)| {
                let service =
                    place.service.as_ref().and_then(|name| self.control.node().service(name));
                let rule = place.rule.and_then(|id| views.iter().find(|v| v.rule.id == id));
                let (meaning, advice) = reasons::of(&place.reason);
                let led = place.service.as_ref().map(|name| rules_to(&views, name));
                let rules = led.unwrap_or_else(|| place.rule.iter().map(|id| id.0).collect());
                let session = service.map(|service| service.session.to_string());
                WhyReason {
                    reason: place.reason.clone(),
                    dropped: is_drop(&place.reason),
                    packets: counted.total,
                    packets_last_minute: counted.lately(now),
                    last_ms: counted.last_ms,
                    port: place.port.as_ref().map(Name::to_string),
                    service: place.service.as_ref().map(Name::to_string),
                    rules,
                    module: service.map(|service| service.module.digest.clone()),
                    session: session.or(rule.map(|view| view.rule.spec.session.to_string())),
                    meaning,
                    advice,
                }
            })
            .collect();
        reasons.sort_by_key(|reason| {
            (!reason.dropped, Reverse(reason.packets_last_minute), Reverse(reason.packets))
        });
        let (node, all) = (self.file.name.to_string(), sight.everything);
        WhyList { schema_version: SCHEMA_VERSION, node, all, reasons }
    }

    /// Whether a place where packets ended is somebody's business.
    fn sees(&self, sight: &Sight, place: &Place, views: &[RuleView]) -> bool {
        let service = place.service.as_ref().and_then(|name| self.control.node().service(name));
        let rule = place.rule.and_then(|id| views.iter().find(|view| view.rule.id == id));
        let of = service.map(|service| (&service.session, service.owner));
        let of = of.or(rule.map(|view| (&view.rule.spec.session, view.owner)));
        sight.everything || of.is_some_and(|(session, owner)| sight.has(session.as_str(), owner))
    }

    /// Has the kernel run the front door over one frame; answered by [`Daemon::explained`].
    pub(crate) fn explain(&mut self, request: &ExplainRequest, reply: Reply<Explanation>) {
        let (port, ifindex, frame) = match self.frame_of(request) {
            Ok(found) => found,
            Err(refusal) => return reply.refuse(refusal),
        };
        if let Some(found) = self.explain_packets(port, &frame) {
            return reply.answer(self.explanation(port, &frame, &found));
        }
        let explainer = match self.plane.front.explainer() {
            Ok(explainer) => explainer,
            Err(problem) => return reply.refuse(failed(problem)),
        };
        let rules: Vec<RuleId> =
            self.control.node().all_rules().iter().map(|view| view.rule.id).collect();
        let done = self.done.clone();
        tokio::task::spawn_blocking(move || {
            let explained = explainer.explain(port, ifindex, &frame, &rules);
            let explained = explained.map_err(|problem| problem.to_string());
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = done.send(Done::Explained(Box::new(Asked { reply, port, frame }), explained));
        });
    }

    /// What the cell would do with a frame, if it comes in by a packet port.
    fn explain_packets(&self, port: PortId, frame: &[u8]) -> Option<Explained> {
        let live = self.plane.ports.iter().find(|live| live.port.id == port)?;
        let packets = self.plane.front.packets().filter(|_| live.mode == Mode::Packet)?;
        let door = DoorPort { id: port, mac: live.config.mac, bridge: live.bridge };
        let decision = packets.decider.explain(&door, frame);
        let (outcome, rules) = (decision.outcome_name(), decision.rules().collect());
        Some(Explained { outcome, rules, meta: Some(decision.meta), frame: frame.to_vec() })
    }

    fn frame_of(&self, request: &ExplainRequest) -> Answer<(PortId, u32, Vec<u8>)> {
        let (named, packet, frame) = match (&request.packet, &request.frame_hex) {
            (Some(text), None) => {
                let packet: Match = text.parse().map_err(usage)?;
                let port = packet.port.as_ref().map(Name::to_string);
                (port.or_else(|| request.port.clone()), Some(packet), Vec::new())
            }
            (None, Some(digits)) => (request.port.clone(), None, bytes_of(digits)?),
            _ => return Err(usage("one of 'packet' and 'frame_hex' says which packet")),
        };
        let known = || self.plane.ports.iter().map(|port| port.port.spec.name.to_string());
        let Some(named) = named else {
            let ports: Vec<String> = known().collect();
            let message = "it is not said by which port the packet comes in";
            let help = format!("add 'in PORT'; the ports are {}", ports.join(", "));
            return Err(error(ErrorCode::Usage, message, Some(&help)));
        };
        let Some(port) = self.plane.ports.iter().find(|p| p.port.spec.name.as_str() == named)
        else {
            let ports: Vec<String> = known().collect();
            let shown: String = named.chars().take(40).flat_map(char::escape_default).collect();
            let message = format!("this node has no port '{shown}'");
            let help = format!("the ports are {}", ports.join(", "));
            return Err(error(ErrorCode::NotFound, message, Some(&help)));
        };
        let frame = match packet {
            Some(packet) => build(&packet, port.config.mac).map_err(usage)?,
            None => frame,
        };
        if !(FRAME_LENGTH_MIN..=EXPLAINED_LENGTH_MAX).contains(&frame.len()) {
            return Err(usage(format!(
                "a frame of {} bytes cannot be asked about; {FRAME_LENGTH_MIN} to {EXPLAINED_LENGTH_MAX} can",
                frame.len()
            )));
        }
        Ok((port.port.id, port.config.ifindex, frame))
    }

    /// The kernel has run it.
    pub(crate) fn explained(&self, asked: Asked, explained: Result<Explained, String>) {
        let Asked { reply, port, frame } = asked;
        let answer = match explained {
            Ok(explained) => self.explanation(port, &frame, &explained),
            Err(problem) => Err(error(
                ErrorCode::Unsupported,
                format!("the kernel does not run a copy of the front door: {problem}"),
                None,
            )),
        };
        // Whoever no longer waits for the answer does not get it.
        reply.answer(answer);
    }

    fn explanation(&self, port: PortId, frame: &[u8], found: &Explained) -> Answer<Explanation> {
        let live = self.plane.ports.iter().find(|live| live.port.id == port);
        let live = live.ok_or_else(|| failed("the port is gone meanwhile"))?;
        let views = self.control.node().all_rules();
        let mut rules: Vec<&RuleView> =
            views.iter().filter(|view| found.rules.contains(&view.rule.id)).collect();
        rules.sort_by_key(|view| view.rule.spec.stage());
        let decides = |view: &&&RuleView| view.rule.spec.action != Action::Forward;
        let rule = rules.iter().find(decides).or(rules.first()).copied();
        let action = rule.map(|view| &view.rule.spec.action);
        let service =
            action.and_then(Action::service).and_then(|name| self.control.node().service(name));
        let outcome = service.map_or(found.outcome, |service| counted_as(found, service, frame));
        let (meaning, advice) = reasons::of(outcome);
        let out = self.way_out(found);
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
            (None, _) if given && live.bridge.is_some() => {
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
                let words = ports::slow_reasons_of(p).join("; ");
                (!words.is_empty()).then(|| format!("port '{}' is slow: {words}", p.port.spec.name))
            };
            steps.extend(self.plane.ports.iter().filter_map(slow));
        }
        if found.outcome.starts_with("kernel_") {
            steps.extend(self.dropped_lately(&live.port.spec.name));
        }
        let (egress_port, next_hop) = out.unzip();
        Ok(Explanation {
            schema_version: SCHEMA_VERSION,
            port: live.port.spec.name.to_string(),
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

    /// Says what the kernel has dropped of what a port left to it in the last minute.
    fn dropped_lately(&self, port: &Name) -> Option<String> {
        let now = self.now();
        let by_kernel = self.drops.iter().filter(|(place, _)| {
            place.reason.starts_with(reasons::STACK) && place.port.as_ref() == Some(port)
        });
        let counted = by_kernel.map(|(place, counted)| (&place.reason, counted.lately(now)));
        let counted = counted.filter(|(_, packets)| *packets > 0);
        let words: Vec<String> = counted.map(|(why, count)| format!("{count} {why}")).collect();
        (!words.is_empty()).then(|| {
            format!(
                "of what port '{port}' left to it the kernel has lately dropped {}",
                words.join(", ")
            )
        })
    }

    /// The egress port and next hop that the front door found.
    fn way_out(&self, found: &Explained) -> Option<(String, String)> {
        let (port, hop) = match found.meta {
            Some(meta) if meta.flags & META_ROUTED != 0 => {
                (self.plane.ports.iter().find(|p| p.port.id.0 == meta.egress_port)?, meta.next_hop)
            }
            Some(_) => return None,
            None if matches!(found.outcome, "forwarded" | "cut_through") => {
                // Its addresses are those of the way out by now.
                let (hop, rest) = found.frame.split_first_chunk::<6>()?;
                let own = rest.first_chunk::<6>()?;
                (self.plane.ports.iter().find(|p| p.config.mac == *own)?, *hop)
            }
            None => return None,
        };
        let hop = hop.map(|byte| format!("{byte:02x}")).join(":");
        Some((port.port.spec.name.to_string(), hop))
    }
}

/// The outcome as the port counts it: in the copy of the front door every service is at user level.
fn counted_as(found: &Explained, service: &Service, frame: &[u8]) -> &'static str {
    let is_tagged = matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8]));
    match (found.outcome, service.level) {
        ("to_user", abi::Level::Nic) => "to_nic",
        ("to_user", abi::Level::Kernel) if !is_tagged => "to_kernel_module",
        (outcome, _) => outcome,
    }
}

/// What keeps a service from having its packets.
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

fn rules_to(views: &[RuleView], service: &Name) -> Vec<u32> {
    let leads = |view: &&RuleView| view.rule.spec.action.service() == Some(service);
    views.iter().filter(leads).map(|view| view.rule.id.0).collect()
}

fn arrival(port: &LivePort, frame: &[u8]) -> String {
    let (name, device) = (&port.port.spec.name, &port.port.spec.device);
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
        let waiting: Vec<String> = waiting.map(|view| view.rule.id.to_string()).collect();
        let none = "no rule matches: plain forwarding".to_owned();
        if waiting.is_empty() {
            return vec![none];
        }
        let note =
            format!("not looked at, since their service does not run: rule {}", waiting.join(", "));
        return vec![none, note];
    }
    let step = |view: &&RuleView| {
        let spec = &view.rule.spec;
        format!(
            "rule {} ('{}', priority {}, session {}, stage {}) says: {}",
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

/// The frame that a packet in words means.
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
    fn what_a_packet_lacks_is_said() {
        let problem = |text: &str| build(&text.parse().unwrap(), MAC).unwrap_err();
        assert!(problem("dst 10.0.2.2").contains("src ADDRESS"));
        assert!(problem("src 10.0.1.2 dst 10.0.2.0/24").contains("network"));
        assert!(bytes_of("0g").is_err() && bytes_of("012").is_err());
        assert_eq!(bytes_of("0aff").unwrap(), [10, 255]);
    }
}
