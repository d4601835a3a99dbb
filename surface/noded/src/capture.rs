//! Captures: taps on ports and in the cell, what they see made whole, and given to who asks.
//!
//! ```text
//!  taps on ports, and behind ─▶ ring buffer ─┐ each 20 ms  ┌─▶ GET /v1/captures/N
//!  modules below user level                  ├─▶ filter ───┤
//!  the cell's tap ─▶ messages ───────────────┘             └─▶ no room: counted
//! ```
//!
//! Without a capture there is no tap. One that nobody asks for its packets ends by itself.

use crate::daemon::Daemon;
use crate::events::wall_clock_ns;
use crate::http::{Answer, Reply, error};
use crate::views::{failed, usage};
use abi::Verdict;
use api::{
    CaptureEnded, CaptureRequest, CaptureStarted, CapturedPacket, CapturedPackets, ErrorCode,
    SCHEMA_VERSION,
};
use bpf::front_door::capture::{Module, ModuleTap, Tap, TapRing, TapSpec, Tapped};
use bpf_maps::{
    LEVEL_NIC, NOT_A_VERDICT, NOT_RUN, OVER_BUDGET, PORT_RAW, SNAP_MAX, WAY_ARRIVED, WAY_ENDED,
    WAY_LEFT_KERNEL,
};
use cell::below::kind_of;
use cell::protocol::{TapFacts, Tapped as CellTapped, ToCell};
use std::collections::VecDeque;
use std::time::Instant;
use tokio::time::Duration;
use units::{EntryId, Name, PortId, SessionId};

/// How often the rings of captures are looked at: 4 MiB take longer to fill at a rate that a
/// file can be written at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a capture's ring.
const RING_LENGTH: u32 = 4 << 20;
/// Captures at a time: a port's program is replaced by one with taps, and that by none.
const CAPTURES_MAX: usize = 1;
/// Packets that wait for who asks: some 20 MiB of JSON.
const WAITING_MAX: usize = 4096;
/// Packets taken from a ring before others have their turn.
const TURN: usize = 4096;
/// Packets of one answer.
const ANSWER_MAX: usize = 1024;
/// A capture that nobody asks for so long has ended.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait of one question.
const WAIT_SECONDS_MAX: u32 = 5;
/// Least bytes that are kept: both addresses, tags, and the head of IP.
const SNAP_MIN: u32 = 64;

/// A capture that goes on.
pub(crate) struct Capture {
    id: u32,
    ports: Vec<PortId>,
    rule: Option<u32>,
    session: Option<Name>,
    direction: Option<Direction>,
    dropped: bool,
    snap: u32,
    ring: TapRing,
    taps: Vec<Tap>,
    modules: ModuleTap,
    waiting: VecDeque<CapturedPacket>,
    /// For which there was no room here.
    lost: u64,
    /// What the cell had lost before.
    cell_lost_before: u64,
    asked: Instant,
    follower: Option<(Instant, Reply<CapturedPackets>)>,
    /// From the kernel's monotonic clock to 1970.
    clock_offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

impl Direction {
    const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

impl Capture {
    fn wants(&self, packet: &CapturedPacket, port: PortId, direction: Direction) -> bool {
        self.ports.contains(&port)
            && (self.rule.is_none() || self.rule == packet.rule)
            && self.session.as_ref().is_none_or(|s| packet.session.as_deref() == Some(s.as_str()))
            && self.direction.is_none_or(|wanted| wanted == direction)
            && (!self.dropped || packet.dropped)
    }

    fn push(&mut self, packet: CapturedPacket) {
        if self.waiting.len() == WAITING_MAX {
            self.lost += 1;
        } else {
            self.waiting.push_back(packet);
        }
    }

    fn lost(&self, cell_lost: u64) -> u64 {
        let taps: u64 = self.taps.iter().map(Tap::lost).sum();
        self.lost + taps + self.modules.lost() + cell_lost.saturating_sub(self.cell_lost_before)
    }

    fn take(&mut self, cell_lost: u64) -> CapturedPackets {
        let count = self.waiting.len().min(ANSWER_MAX);
        let packets = self.waiting.drain(..count).collect();
        CapturedPackets { schema_version: SCHEMA_VERSION, packets, lost: self.lost(cell_lost) }
    }
}

impl Daemon {
    /// Answers `POST /v1/captures`.
    pub(crate) fn begin_capture(&mut self, request: &CaptureRequest) -> Answer<CaptureStarted> {
        if self.captures.len() == CAPTURES_MAX {
            let message = "another capture goes on already";
            let help = Some("end it, or wait: one that nobody asks for 10 s ends by itself");
            return Err(error(ErrorCode::Limit, message, help));
        }
        let ports = self.ports_of(&request.ports)?;
        let session = match &request.session {
            None => None,
            Some(text) => {
                let name = Name::new(text).map_err(usage)?;
                let known = self.node.sessions().iter().any(|session| session.name == name);
                if !known {
                    let message = format!("this node has no session '{name}'");
                    return Err(error(ErrorCode::NotFound, message, None));
                }
                Some(name)
            }
        };
        if let Some(rule) = request.rule
            && !self.node.rules().iter().any(|view| view.rule.id.0 == rule)
        {
            let help = Some("'tam rule list' shows the rules");
            let message = format!("there is no rule {rule} on this node");
            return Err(error(ErrorCode::NotFound, message, help));
        }
        let direction = match request.direction.as_deref() {
            None => None,
            Some("in") => Some(Direction::In),
            Some("out") => Some(Direction::Out),
            Some(_) => return Err(usage("a direction is 'in' or 'out'")),
        };
        let snap = request.snap.unwrap_or(SNAP_MAX);
        if !(SNAP_MIN..=SNAP_MAX).contains(&snap) {
            return Err(usage(format!("{SNAP_MIN} to {SNAP_MAX} bytes of a packet are kept")));
        }
        let spec = TapSpec {
            snap,
            arriving: direction != Some(Direction::Out),
            leaving: direction != Some(Direction::In),
            dropped_only: request.dropped,
        };
        let front = self.front.front().map_err(|why| {
            let message = format!("captures are XDP's, and no port of this node has it: {why}");
            error(ErrorCode::Unsupported, message, Some("tcpdump sees packet ports"))
        })?;
        let ring = TapRing::new(RING_LENGTH).map_err(failed)?;
        let untapped = |problem| {
            error(ErrorCode::Unsupported, format!("the ports cannot be tapped: {problem}"), None)
        };
        let modules = front.tap_modules(&spec, &ring).map_err(untapped)?;
        // What leaves by a port is seen where it came in: by any.
        let taps = self.served().filter(|port| spec.leaving || ports.contains(&port.port.id)).map(
            |port| {
                let arriving = spec.arriving && ports.contains(&port.port.id);
                let spec = TapSpec { arriving, ..spec };
                front.tap(port.port.id, port.config.ifindex, &spec, &ring)
            },
        );
        let taps = taps.collect::<Result<Vec<_>, _>>().map_err(untapped)?;
        let named = self.ports.iter().filter(|port| ports.contains(&port.port.id));
        let names = named.map(|port| port.port.spec.name.to_string()).collect();
        self.capture_id += 1;
        let id = self.capture_id;
        let mono = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let mono = mono.tv_sec as u64 * 1_000_000_000 + mono.tv_nsec as u64;
        self.captures.push(Capture {
            id,
            ports,
            rule: request.rule,
            session,
            direction,
            dropped: request.dropped,
            snap,
            ring,
            taps,
            modules,
            waiting: VecDeque::new(),
            lost: 0,
            cell_lost_before: self.cell_report.tapped_lost,
            asked: Instant::now(),
            follower: None,
            clock_offset: wall_clock_ns().saturating_sub(mono),
        });
        self.tap_cell();
        Ok(CaptureStarted { schema_version: SCHEMA_VERSION, id, ports: names, snap })
    }

    /// Tells the cell what the captures together want of it.
    pub(crate) fn tap_cell(&self) {
        let snap = self.captures.iter().map(|capture| capture.snap).max();
        let facts = snap.map(|snap| TapFacts {
            snap,
            dropped_only: self.captures.iter().all(|capture| capture.dropped),
        });
        self.tell(&ToCell::Tap(facts), &[]);
    }

    fn ports_of(&self, names: &[String]) -> Answer<Vec<PortId>> {
        if names.is_empty() {
            return Ok(self.served().map(|port| port.port.id).collect());
        }
        let find = |name: &String| {
            let found = self.served().find(|port| port.port.spec.name.as_str() == name);
            found.map(|port| port.port.id).ok_or_else(|| {
                let known: Vec<String> =
                    self.served().map(|port| port.port.spec.name.to_string()).collect();
                let shown: String = name.chars().take(40).flat_map(char::escape_default).collect();
                let help = format!("the ports that are served are {}", known.join(", "));
                let message = format!("there is no port '{shown}' to capture at");
                error(ErrorCode::NotFound, message, Some(&help))
            })
        };
        names.iter().map(find).collect()
    }

    fn served(&self) -> impl Iterator<Item = &crate::ports::LivePort> {
        self.ports.iter().filter(|port| port.away.is_none())
    }

    /// Answers `GET /v1/captures/N`, now or when there is a packet.
    pub(crate) fn captured(&mut self, id: u32, wait_seconds: u32, reply: Reply<CapturedPackets>) {
        self.look_at_captures();
        let cell_lost = self.cell_report.tapped_lost;
        let Some(capture) = self.captures.iter_mut().find(|capture| capture.id == id) else {
            return drop(reply.send(Err(unknown(id))));
        };
        capture.asked = Instant::now();
        if wait_seconds == 0 || !capture.waiting.is_empty() {
            return drop(reply.send(Ok(capture.take(cell_lost))));
        }
        let wait = Duration::from_secs(wait_seconds.min(WAIT_SECONDS_MAX).into());
        // The one that asked before, if it is still there, gets nothing more.
        capture.follower = Some((Instant::now() + wait, reply));
    }

    /// Answers `DELETE /v1/captures/N`, when the cell has told what it had.
    pub(crate) fn end_capture(&mut self, id: u32, reply: Reply<CaptureEnded>) {
        if !self.captures.iter().any(|capture| capture.id == id) {
            return drop(reply.send(Err(unknown(id))));
        }
        self.after_report(move |daemon| {
            daemon.look_at_captures();
            let Some(at) = daemon.captures.iter().position(|capture| capture.id == id) else {
                return drop(reply.send(Err(unknown(id))));
            };
            let mut capture = daemon.captures.swap_remove(at);
            let lost = capture.lost(daemon.cell_report.tapped_lost);
            let packets = capture.waiting.drain(..).collect();
            daemon.tap_cell();
            drop(reply.send(Ok(CaptureEnded { schema_version: SCHEMA_VERSION, packets, lost })));
        });
    }

    /// Takes what the taps have seen, and ends captures that nobody wants any more.
    pub(crate) fn look_at_captures(&mut self) {
        let mut captures = std::mem::take(&mut self.captures);
        let now = Instant::now();
        let before = captures.len();
        captures.retain(|capture| {
            capture.follower.is_some() || now.duration_since(capture.asked) < ASKED_WITHIN
        });
        let ended = captures.len() != before;
        for capture in &mut captures {
            for _ in 0..TURN {
                let tapped = match capture.ring.take() {
                    Ok(Some(tapped)) => tapped,
                    Ok(None) => break,
                    Err(problem) => {
                        tracing::error!(%problem, "a capture's ring is broken");
                        break;
                    }
                };
                let (direction, port) = (direction_of(&tapped), tapped.port);
                let packet = self.seen_at_port(tapped, direction, capture.clock_offset);
                if capture.wants(&packet, port, direction) {
                    capture.push(packet);
                }
            }
            let due = capture.follower.as_ref().is_some_and(|(until, _)| *until <= now);
            if (due || !capture.waiting.is_empty())
                && let Some((_, reply)) = capture.follower.take()
            {
                capture.asked = now;
                let packets = capture.take(self.cell_report.tapped_lost);
                // Who no longer waits did not get them: with them the capture ends by itself.
                drop(reply.send(Ok(packets)));
            }
        }
        self.captures = captures;
        if ended {
            self.tap_cell();
        }
    }

    fn port_name(&self, port: PortId) -> String {
        let found = self.ports.iter().find(|live| live.port.id == port);
        found.map_or_else(|| port.to_string(), |live| live.port.spec.name.to_string())
    }

    fn session_name(&self, id: SessionId) -> Option<String> {
        let found = self.node.sessions().iter().find(|session| session.id == id);
        found.map(|session| session.name.to_string())
    }

    fn seen_at_port(
        &self,
        mut tapped: Tapped,
        direction: Direction,
        offset: u64,
    ) -> CapturedPacket {
        let by_stack = tapped.way == WAY_LEFT_KERNEL
            || tapped.module.is_some_and(|module| module.level != LEVEL_NIC);
        let live = self.ports.iter().find(|live| live.port.id == tapped.port);
        if direction == Direction::Out && live.is_some_and(|l| l.config.flags & PORT_RAW != 0) {
            put_ethernet(&mut tapped);
        }
        let mut packet = CapturedPacket {
            time_ns: tapped.time.0.saturating_add(offset),
            port: self.port_name(tapped.port),
            direction: direction.name().to_owned(),
            seen_by: if by_stack { "kernel" } else { "front door" }.to_owned(),
            length: tapped.length,
            bytes_hex: hex(&tapped.bytes),
            outcome: tapped.outcome.map(str::to_owned),
            rule: tapped.rule.map(|rule| rule.0),
            session: tapped.rule.and_then(|_| self.session_name(tapped.session)),
            ..CapturedPacket::default()
        };
        let level = match (tapped.module, tapped.outcome) {
            (Some(module), _) if module.level == LEVEL_NIC => Some("nic"),
            (Some(_), _) => Some("kernel"),
            (None, _) if tapped.way != WAY_ARRIVED => None,
            (None, Some("to_nic")) => Some("nic"),
            (None, Some("to_kernel_module")) => Some("kernel"),
            (None, Some("to_user")) => Some("user"),
            _ => None,
        };
        if let Some(level) = level {
            packet.level = Some(level.to_owned());
            packet.service = self.node.service_of(tapped.entry).map(|s| s.name.to_string());
        }
        if let Some(module) = tapped.module {
            packet.verdict = said(module).map(|words| self.named(&words, Some(tapped.entry)));
        }
        const XDP_PASS: u8 = 2;
        packet.dropped =
            tapped.way == WAY_ENDED || (tapped.way == WAY_ARRIVED && tapped.action < XDP_PASS);
        packet
    }

    /// The cell has a packet for captures.
    pub(crate) fn tapped(&mut self, tapped: &CellTapped) {
        let direction = if tapped.dropped { Direction::In } else { Direction::Out };
        let service = tapped.entry.and_then(|entry| self.node.service_of(entry));
        let session = tapped.entry.and_then(|_| self.session_name(SessionId(tapped.session)));
        let packet = CapturedPacket {
            time_ns: tapped.time_ns,
            port: self.port_name(tapped.port),
            direction: direction.name().to_owned(),
            seen_by: "cell".to_owned(),
            length: tapped.length,
            bytes_hex: hex(&tapped.bytes),
            rule: tapped.entry.map(|_| tapped.rule),
            session,
            service: service.map(|service| service.name.to_string()),
            level: tapped.entry.map(|_| "user".to_owned()),
            verdict: tapped.entry.map(|_| self.named(&tapped.verdict, tapped.entry)),
            outcome: None,
            dropped: tapped.dropped,
        };
        for capture in &mut self.captures {
            if capture.wants(&packet, tapped.port, direction) {
                let time_ns = tapped.time_ns.saturating_add(capture.clock_offset);
                let digits = 2 * capture.snap as usize;
                let mut packet = CapturedPacket { time_ns, ..packet.clone() };
                packet.bytes_hex.truncate(digits);
                capture.push(packet);
            }
        }
    }

    /// A verdict with the module's own name of its reason.
    fn named(&self, verdict: &str, entry: Option<EntryId>) -> String {
        let reason = verdict.strip_prefix("drop ").and_then(|n| n.parse::<u16>().ok());
        let service = entry.and_then(|entry| self.node.service_of(entry));
        let named = service.zip(reason).and_then(|(s, n)| s.module.manifest.reasons.get(&n));
        named.map_or_else(|| verdict.to_owned(), |name| format!("drop {name}"))
    }
}

fn direction_of(tapped: &Tapped) -> Direction {
    match tapped.way {
        WAY_ARRIVED | WAY_ENDED => Direction::In,
        _ => Direction::Out,
    }
}

/// What a module below user level said, in words; none when it was not run.
fn said(module: Module) -> Option<String> {
    let Module { verdict, trapped, .. } = module;
    let verdict = match (trapped, Verdict::parse(verdict)) {
        (NOT_RUN | OVER_BUDGET, _) => return None,
        (0, Ok(verdict)) => Ok(verdict),
        (0, Err(_)) => Err(kind_of(NOT_A_VERDICT)?),
        (code, _) => Err(kind_of(code)?),
    };
    Some(CellTapped::words(verdict))
}

/// What leaves by a TUN device begins with its IP header: as it came it had another in front.
fn put_ethernet(tapped: &mut Tapped) {
    let ethertype = match tapped.bytes.first() {
        Some(first) if first >> 4 == 6 => [0x86, 0xdd],
        _ => [0x08, 0x00],
    };
    let header = [[0; 12].as_slice(), &ethertype].concat();
    tapped.length += header.len() as u32;
    tapped.bytes.splice(0..0, header);
}

fn unknown(id: u32) -> api::ErrorInfo {
    let help = Some("a capture ends when nobody asks for its packets for 10 s");
    error(ErrorCode::NotFound, format!("there is no capture {id}"), help)
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}
