//! Policy of the operator: hosts inside, flows allowed from outside, timeouts. Texts are parsed
//! once, at the start.

use tam::prefix::{Prefix, Prefixes, parse_list};
use tam::protocol;
use tam::track::{Connection, Phase};

use crate::Reason;
use crate::headers::{Ends, L4};

/// Limit of prefixes in `inside`.
const PREFIXES_MAX: usize = 8;
/// Limit of services in `allow`.
const SERVICES_MAX: usize = 16;
/// Time for which an ended flow is kept, in milliseconds: for packets in transit.
const ENDED_MS: u64 = 10_000;

/// Codes with which `on_start` refuses.
pub mod refuse {
    /// Neither `inside` nor `inside_port` defines the inside.
    pub const NOBODY_INSIDE: u16 = 1;
    /// The parameter `inside` is no list of at most 8 prefixes.
    pub const INSIDE: u16 = 2;
    /// The node has no port of the name in `inside_port`.
    pub const INSIDE_PORT: u16 = 3;
    /// `allow` is no list of at most 16 services.
    pub const ALLOW: u16 = 4;
    /// `fragments` is neither `follow` nor `drop`.
    pub const FRAGMENTS: u16 = 5;
    /// A timeout is 0.
    pub const TIMEOUT: u16 = 6;
}

/// Origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    FromInside,
    FromOutside,
    /// Both hosts are inside.
    Within,
}

/// Treatment of fragments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fragments {
    Follow,
    Drop,
}

/// Service that may be requested from outside.
#[derive(Clone, Copy)]
struct Service {
    protocol: u8,
    ports: (u16, u16),
    at: Prefix<u128>,
}

/// Policy of the operator.
pub struct Policy {
    inside: Prefixes<u128, PREFIXES_MAX>,
    inside_port: Option<u16>,
    services: [Service; SERVICES_MAX],
    services_count: usize,
    pub fragments: Fragments,
    pub pick_up: bool,
    opening_ms: u64,
    tcp_ms: u64,
    closing_ms: u64,
    udp_ms: u64,
    icmp_ms: u64,
}

impl Service {
    const NONE: Self = Self { protocol: 0, ports: (1, 0), at: Prefix::ALL };

    /// Parses `tcp/443`, `udp/5000-5010@10.0.0.7`, `icmp`.
    fn read(text: &str) -> Option<Self> {
        let (what, at) = match text.split_once('@') {
            Some((what, at)) => (what, Prefix::parse(at)?),
            None => (text, Prefix::ALL),
        };
        if what == "icmp" {
            return Some(Self { protocol: protocol::ICMP, ports: (0, u16::MAX), at });
        }
        let (protocol, ports) = what.split_once('/')?;
        let protocol = match protocol {
            "tcp" => protocol::TCP,
            "udp" => protocol::UDP,
            _ => return None,
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let ports = (first.parse().ok()?, last.parse().ok()?);
        (ports.0 <= ports.1).then_some(Self { protocol, ports, at })
    }
}

fn milliseconds(parameter: &str, default: u64) -> Result<u64, u16> {
    let seconds = tam::parameter::<u16>(parameter).map(u64::from);
    let seconds = seconds.or_else(|| tam::parameter::<u32>(parameter).map(u64::from));
    match seconds.unwrap_or(default) {
        0 => Err(refuse::TIMEOUT),
        seconds => Ok(seconds * 1000),
    }
}

impl Policy {
    pub const fn new() -> Self {
        Self {
            inside: Prefixes::NONE,
            inside_port: None,
            services: [Service::NONE; SERVICES_MAX],
            services_count: 0,
            fragments: Fragments::Follow,
            pick_up: true,
            opening_ms: 30_000,
            tcp_ms: 7_440_000,
            closing_ms: 240_000,
            udp_ms: 300_000,
            icmp_ms: 60_000,
        }
    }

    pub fn from_parameters() -> Result<Self, u16> {
        let mut policy = Self::new();
        if let Some(text) = tam::parameter::<tam::Text>("inside") {
            policy.inside.read(text.as_str()).ok_or(refuse::INSIDE)?;
        }
        let port = tam::parameter::<tam::Text>("inside_port");
        if let Some(name) = port.as_ref().map(tam::Text::as_str).filter(|name| !name.is_empty()) {
            policy.inside_port = Some(tam::port(name).ok_or(refuse::INSIDE_PORT)?);
        }
        if policy.inside.is_empty() && policy.inside_port.is_none() {
            return Err(refuse::NOBODY_INSIDE);
        }
        if let Some(text) = tam::parameter::<tam::Text>("allow") {
            let read = parse_list(text.as_str(), &mut policy.services, Service::read);
            policy.services_count = read.ok_or(refuse::ALLOW)?;
        }
        let fragments = tam::parameter::<tam::Text>("fragments");
        policy.fragments = match fragments.as_ref().map(tam::Text::as_str) {
            None | Some("follow") => Fragments::Follow,
            Some("drop") => Fragments::Drop,
            Some(_) => return Err(refuse::FRAGMENTS),
        };
        policy.pick_up = tam::parameter("pick_up").unwrap_or(true);
        policy.opening_ms = milliseconds("opening_timeout", 30)?;
        policy.tcp_ms = milliseconds("tcp_timeout", 7440)?;
        policy.closing_ms = milliseconds("closing_timeout", 240)?;
        policy.udp_ms = milliseconds("udp_timeout", 300)?;
        policy.icmp_ms = milliseconds("icmp_timeout", 60)?;
        Ok(policy)
    }

    /// Returns the origin of a packet.
    pub fn side(&self, arrival: u16, source: u128, destination: u128) -> Result<Side, Reason> {
        let source_inside = self.inside.contains(source);
        let Some(port) = self.inside_port else {
            return match (source_inside, self.inside.contains(destination)) {
                (true, true) => Ok(Side::Within),
                (true, false) => Ok(Side::FromInside),
                (false, true) => Ok(Side::FromOutside),
                (false, false) => Err(Reason::NeitherSide),
            };
        };
        let from_inside = arrival == port;
        if !self.inside.is_empty() && source_inside != from_inside {
            return Err(Reason::FalseSource);
        }
        Ok(if from_inside { Side::FromInside } else { Side::FromOutside })
    }

    /// Returns true if a host outside may begin this flow.
    pub fn allows(&self, ends: &Ends) -> bool {
        let protocol = match ends.protocol {
            protocol::ICMPV6 => protocol::ICMP,
            other => other,
        };
        self.services.iter().take(self.services_count).any(|service| {
            service.protocol == protocol
                && (service.ports.0..=service.ports.1).contains(&ends.destination_port)
                && service.at.contains(ends.destination)
        })
    }

    /// Returns the time at which a flow expires, unless another packet comes. A connection that was
    /// reset while established may continue: the reset may be forged.
    pub fn until(&self, flow: Connection, l4: &L4, now: u64) -> u64 {
        now + match (flow.phase(), l4) {
            (Phase::None | Phase::Opening | Phase::Answered, _) => self.opening_ms,
            (Phase::Reset, _) if flow.was_reset_late() => self.closing_ms,
            (Phase::Closed | Phase::Reset, _) => ENDED_MS,
            (Phase::Closing | Phase::Reopening | Phase::Reanswered, _) => self.closing_ms,
            (Phase::Established, L4::Tcp { .. }) => self.tcp_ms,
            (Phase::Established, L4::Echo { .. }) => self.icmp_ms,
            (Phase::Established, _) => self.udp_ms,
        }
    }
}
