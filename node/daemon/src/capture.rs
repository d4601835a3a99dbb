//! Captures: taps on ports and in the cell, what they see made whole, and given to who asks.
//!
//! ```text
//!  taps on ports, and behind ─▶ ring buffer ─┐ each 20 ms  ┌─▶ GET /v1/captures/N
//!  modules below user level, kernel's drops  ├─▶ filter ───┤
//!  the cell's tap ─▶ messages ───────────────┤             └─▶ no room: counted
//!  watches of packet ports ─▶ their sockets ─┘
//! ```
//!
//! Without a capture there is no tap. One that nobody asks for its packets ends by itself.

mod seen;

use crate::answer::{failed, usage};
use crate::cells::AfterReport;
use crate::daemon::Daemon;
use crate::dataplane::ports::Mode;
use crate::events::wall_clock_ns;
use crate::http::{Answer, error};
use crate::record::machine_ns;
use crate::reply::Reply;
use api::{
    CaptureEnded, CaptureRequest, CaptureStarted, CapturedPacket, CapturedPackets, ErrorCode,
    SCHEMA_VERSION,
};
use bpf::front_door::capture::{ModuleTap, Tap, TapRing, TapSpec};
use bpf::front_door::{Arrival, StackTap};
use bpf_maps::{CAPTURED_NO_PORT, SNAP_MAX};
use cell::protocol::{TapFacts, ToCell};
use sockets::frame_socket::{Buffer, FrameSocket};
use std::collections::VecDeque;
use std::time::Instant;
use tokio::time::Duration;
use units::{Name, PortId, RuleId};

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
    /// Of ports with XDP.
    xdp: Option<XdpTaps>,
    /// What the kernel sends out by packet ports.
    watches: Vec<(PortId, FrameSocket)>,
    buffer: Buffer,
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

struct XdpTaps {
    ring: TapRing,
    ports: Vec<Tap>,
    modules: ModuleTap,
    /// Kernel drops, where they are known.
    stack: Option<StackTap>,
}

impl XdpTaps {
    fn lost(&self) -> u64 {
        self.ports.iter().map(Tap::lost).sum::<u64>()
            + self.modules.lost()
            + self.stack.as_ref().map_or(0, StackTap::lost)
    }
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
        let xdp = self.xdp.as_ref().map_or(0, XdpTaps::lost);
        let counted = self.watches.iter().filter_map(|(_, watch)| watch.counted().ok());
        let watches: u64 = counted.map(|counted| counted.dropped).sum();
        self.lost + xdp + watches + cell_lost.saturating_sub(self.cell_lost_before)
    }

    fn take(&mut self, cell_lost: u64) -> CapturedPackets {
        let count = self.waiting.len().min(ANSWER_MAX);
        let packets = self.waiting.drain(..count).collect();
        CapturedPackets { schema_version: SCHEMA_VERSION, packets, lost: self.lost(cell_lost) }
    }
}

/// Returns the rule whose packets a capture has, if it has one rule's.
pub(crate) fn rule_of(captures: &[Capture], id: u32) -> Option<RuleId> {
    captures.iter().find(|capture| capture.id == id)?.rule.map(RuleId)
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
                let known = self.control.node().session(&name).is_some();
                if !known {
                    let message = format!("this node has no session '{name}'");
                    return Err(error(ErrorCode::NotFound, message, None));
                }
                Some(name)
            }
        };
        if let Some(rule) = request.rule
            && self.control.node().rule_payer(units::RuleId(rule)).is_none()
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
            leaving: direction != Some(Direction::In) && !request.dropped,
            dropped_only: request.dropped,
        };
        // What comes in by no port is nobody's who asks for one.
        let own = request.ports.is_empty();
        let (xdp, watches) = (self.tap_xdp(&ports, own, spec)?, self.watch_packets(&ports, spec)?);
        let mut ports = ports;
        ports.extend(own.then_some(PortId(CAPTURED_NO_PORT)));
        let named = self.plane.ports.iter().filter(|port| ports.contains(&port.port.id));
        let names = named.map(|port| port.port.spec.name.to_string()).collect();
        self.capture_id += 1;
        let id = self.capture_id;
        self.captures.push(Capture {
            id,
            ports,
            rule: request.rule,
            session,
            direction,
            dropped: request.dropped,
            snap,
            xdp,
            watches,
            buffer: Buffer::default(),
            waiting: VecDeque::new(),
            lost: 0,
            cell_lost_before: self.cells.report().tapped_lost,
            asked: Instant::now(),
            follower: None,
            clock_offset: clock_offset(),
        });
        self.tap_cell();
        Ok(CaptureStarted { schema_version: SCHEMA_VERSION, id, ports: names, snap })
    }

    /// Taps ports that have XDP, if any has.
    fn tap_xdp(&self, ports: &[PortId], own: bool, spec: TapSpec) -> Answer<Option<XdpTaps>> {
        let mut served = self.served().filter(|port| port.mode != Mode::Packet).peekable();
        let Ok(front) = self.plane.front.front() else { return Ok(None) };
        if served.peek().is_none() {
            return Ok(None);
        }
        let untapped = |problem| {
            error(ErrorCode::Unsupported, format!("the ports cannot be tapped: {problem}"), None)
        };
        let ring = TapRing::new(RING_LENGTH).map_err(failed)?;
        let modules = front.tap_modules(&spec, &ring).map_err(untapped)?;
        let by_ports = ports.iter().copied().map(Arrival::Port);
        let wanted: Vec<Arrival> = by_ports.chain(own.then_some(Arrival::Own)).collect();
        let stack = spec.arriving.then(|| front.tap_stack(&wanted, &spec, &ring)).transpose();
        let stack = stack.map_err(untapped)?.flatten();
        // What leaves by a port is seen where it came in: by any.
        let tapped = served.filter(|port| spec.leaving || ports.contains(&port.port.id));
        let taps = tapped.map(|port| {
            let arriving = spec.arriving && ports.contains(&port.port.id);
            let spec = TapSpec { arriving, ..spec };
            front.tap(port.port.id, port.config.ifindex, &spec, &ring)
        });
        let ports = taps.collect::<Result<Vec<_>, _>>().map_err(untapped)?;
        Ok(Some(XdpTaps { ring, ports, modules, stack }))
    }

    /// Watches what the kernel sends out by packet ports; what comes by them the cell taps.
    fn watch_packets(&self, ports: &[PortId], spec: TapSpec) -> Answer<Vec<(PortId, FrameSocket)>> {
        let watched = self.served().filter(|port| {
            port.mode == Mode::Packet && ports.contains(&port.port.id) && spec.leaving
        });
        let watches = watched.map(|port| {
            let watch = FrameSocket::watch(port.config.ifindex);
            Ok((port.port.id, watch.map_err(failed)?))
        });
        watches.collect()
    }

    /// Tells the cell what the captures together want of it.
    pub(crate) fn tap_cell(&self) {
        let snap = self.captures.iter().map(|capture| capture.snap).max();
        let facts = snap.map(|snap| TapFacts {
            snap,
            arriving: self.captures.iter().any(|it| it.direction != Some(Direction::Out)),
            dropped_only: self.captures.iter().all(|capture| capture.dropped),
        });
        self.cells.tell_all(&ToCell::Tap(facts), &[]);
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

    fn served(&self) -> impl Iterator<Item = &crate::dataplane::ports::LivePort> {
        self.plane.ports.iter().filter(|port| port.away.is_none())
    }

    /// Answers `GET /v1/captures/N`, now or when there is a packet.
    pub(crate) fn captured(&mut self, id: u32, wait_seconds: u32, reply: Reply<CapturedPackets>) {
        self.look_at_captures();
        let cell_lost = self.cells.report().tapped_lost;
        let Some(capture) = self.captures.iter_mut().find(|capture| capture.id == id) else {
            return reply.refuse(unknown(id));
        };
        capture.asked = Instant::now();
        if wait_seconds == 0 || !capture.waiting.is_empty() {
            return reply.ok(capture.take(cell_lost));
        }
        let wait = Duration::from_secs(wait_seconds.min(WAIT_SECONDS_MAX).into());
        // The one that asked before, if it is still there, gets nothing more.
        capture.follower = Some((Instant::now() + wait, reply));
    }

    /// Answers `DELETE /v1/captures/N`, when the cell has told what it had.
    pub(crate) fn end_capture(&mut self, id: u32, reply: Reply<CaptureEnded>) {
        if !self.captures.iter().any(|capture| capture.id == id) {
            return reply.refuse(unknown(id));
        }
        self.after_report(AfterReport::CaptureEnds(id, reply));
    }

    /// Ends a capture; returns the packets that no client has fetched yet.
    pub(crate) fn capture_ended(&mut self, id: u32) -> Answer<CaptureEnded> {
        self.look_at_captures();
        let at = self.captures.iter().position(|capture| capture.id == id);
        let mut capture = self.captures.swap_remove(at.ok_or_else(|| unknown(id))?);
        let lost = capture.lost(self.cells.report().tapped_lost);
        let packets = capture.waiting.drain(..).collect();
        self.tap_cell();
        Ok(CaptureEnded { schema_version: SCHEMA_VERSION, packets, lost })
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
            self.look_at_ring(capture);
            self.look_at_watches(capture);
            let due = capture.follower.as_ref().is_some_and(|(until, _)| *until <= now);
            if (due || !capture.waiting.is_empty())
                && let Some((_, reply)) = capture.follower.take()
            {
                capture.asked = now;
                let packets = capture.take(self.cells.report().tapped_lost);
                // Who no longer waits did not get them: with them the capture ends by itself.
                reply.ok(packets);
            }
        }
        self.captures = captures;
        if ended {
            self.tap_cell();
        }
    }
}

/// From the kernel's monotonic clock to 1970, in nanoseconds: the wall clock between two looks at
/// the other, which are as close as they came in a few tries.
fn clock_offset() -> u64 {
    const TRIES: u32 = 5;
    let tries = (0..TRIES).map(|_| {
        let (before, wall, after) = (machine_ns(), wall_clock_ns(), machine_ns());
        (after - before, wall.saturating_sub(before + (after - before) / 2))
    });
    tries.min().map_or(0, |(_, offset)| offset)
}

pub(crate) fn unknown(id: u32) -> api::ErrorInfo {
    let help = Some("a capture ends when nobody asks for its packets for 10 s");
    error(ErrorCode::NotFound, format!("there is no capture {id}"), help)
}
