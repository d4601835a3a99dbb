//! Captures: taps on ports and in the cell, reassembly of what they see, and delivery to clients.
//!
//! ```text
//!  taps on ports, and behind ─▶ ring buffer ─┐ each 20 ms  ┌─▶ GET /v1/captures/N
//!  modules below user level, kernel's drops  ├─▶ filter ───┤
//!  the cell's tap ─▶ messages ───────────────┤             └─▶ no room: counted
//!  watches of packet ports ─▶ their sockets ─┘
//! ```
//!
//! Without a capture there is no tap. A capture that is not polled ends by itself.

mod seen;
mod taps;

use super::view::View;
use crate::answer::{Answer, error, no_capture, usage};
use crate::events::wall_clock_ns;
use crate::record::machine_ns;
use crate::reply::Reply;
use api::{
    CaptureEnded, CaptureRequest, CaptureStarted, CapturedPacket, CapturedPackets, ErrorCode,
    SCHEMA_VERSION,
};
use bpf::front_door::capture::TapSpec;
use bpf_maps::{CAPTURED_NO_PORT, SNAP_MAX};
use cell::protocol::{CaptureSpec, CapturedFrame, ToCell};
use sockets::frame_socket::{Buffer, FrameSocket};
use std::collections::VecDeque;
use taps::XdpTaps;
use tokio::time::Duration;
use units::{Name, Nanos, PortId, RuleId};

/// Period in which the rings of captures are read: 4 MiB take longer to fill at a rate that a file
/// can be written at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Captures at a time: a port's program is replaced by one with taps, and that by none.
const CAPTURES_MAX: usize = 1;
/// Packets that may wait for a client: some 20 MiB of JSON.
const WAITING_MAX: usize = 4096;
/// Packets taken from a ring before others have their turn.
const TURN: usize = 4096;
/// Packets of one answer.
const ANSWER_MAX: usize = 1024;
/// Time after which a capture that is not polled ends.
const ASKED_WITHIN: Nanos = Nanos::from_millis(10_000);
/// Longest wait of one question.
const WAIT_SECONDS_MAX: u32 = 5;
/// Least bytes that are kept: both addresses, tags, and the head of IP.
const SNAP_MIN: u32 = 64;

/// Packets that a capture is about.
#[derive(Clone, Debug, Default)]
struct Filter {
    ports: Vec<PortId>,
    rule: Option<u32>,
    session: Option<Name>,
    direction: Option<Direction>,
    /// True for packets that were dropped, and no others.
    dropped: bool,
}

/// Running capture.
#[derive(Default)]
struct Capture {
    id: u32,
    filter: Filter,
    /// Bytes of a packet that are kept.
    snap: u32,
    /// Taps on ports with XDP.
    xdp: Option<XdpTaps>,
    /// Sockets that see what the kernel sends out by packet ports.
    watches: Vec<(PortId, FrameSocket)>,
    buffer: Buffer,
    /// Packets that no client has fetched yet.
    waiting: VecDeque<CapturedPacket>,
    /// Packets that found [`WAITING_MAX`] waiting.
    lost: u64,
    /// Packets that the cell had lost before.
    cell_lost_before: u64,
    /// Time of the last question.
    asked: Nanos,
    /// Client that waits for packets, and until when.
    follower: Option<(Nanos, Reply<CapturedPackets>)>,
    /// Difference of the wall clock and the kernel's monotonic one, in nanoseconds.
    clock_offset: u64,
}

/// Direction of a packet at a port.
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

impl Filter {
    fn wants(&self, packet: &CapturedPacket, port: PortId, direction: Direction) -> bool {
        self.ports.contains(&port)
            && (self.rule.is_none() || self.rule == packet.rule)
            && self.session.as_ref().is_none_or(|s| packet.session.as_deref() == Some(s.as_str()))
            && self.direction.is_none_or(|wanted| wanted == direction)
            && (!self.dropped || packet.dropped)
    }
}

impl Capture {
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

/// Running captures.
#[derive(Default)]
pub(super) struct Captures {
    running: Vec<Capture>,
    last_id: u32,
    /// Set if the settings of captures have changed since they were sent to cells.
    is_untold: bool,
}

impl Captures {
    /// Returns true while there is a capture.
    pub(super) fn is_any(&self) -> bool {
        !self.running.is_empty()
    }

    /// Returns the rule of a capture, if it exists and captures one rule's packets.
    pub(super) fn rule_of(&self, id: u32) -> Option<RuleId> {
        self.find(id)?.filter.rule.map(RuleId)
    }

    /// Checks that there is a capture.
    ///
    /// # Errors
    /// No capture of this number runs.
    pub(super) fn check(&self, id: u32) -> Answer<()> {
        self.find(id).map(drop).ok_or_else(|| no_capture(id))
    }

    fn find(&self, id: u32) -> Option<&Capture> {
        self.running.iter().find(|capture| capture.id == id)
    }

    /// Returns the message to cells of what the captures together want of them.
    pub(super) fn tap(&self) -> ToCell {
        let snap = self.running.iter().map(|capture| capture.snap).max();
        let mut filters = self.running.iter().map(|capture| &capture.filter);
        ToCell::Capture(snap.map(|snap| CaptureSpec {
            snap,
            arriving: filters.clone().any(|it| it.direction != Some(Direction::Out)),
            dropped_only: filters.all(|filter| filter.dropped),
        }))
    }

    /// Returns the message to cells, if captures came or went since it was last asked for.
    pub(super) fn poll_tap(&mut self) -> Option<ToCell> {
        std::mem::take(&mut self.is_untold).then(|| self.tap())
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// A capture runs already, the request names what is not there, or the ports cannot be
    /// tapped.
    pub(super) fn begin(
        &mut self,
        view: &View<'_>,
        request: &CaptureRequest,
    ) -> Answer<CaptureStarted> {
        if self.running.len() == CAPTURES_MAX {
            let message = "another capture goes on already";
            let help = Some("end it, or wait: one that nobody asks for 10 s ends by itself");
            return Err(error(ErrorCode::Limit, message, help));
        }
        let mut filter = filter_of(view, request)?;
        let snap = request.snap.unwrap_or(SNAP_MAX);
        if !(SNAP_MIN..=SNAP_MAX).contains(&snap) {
            return Err(usage(format!("{SNAP_MIN} to {SNAP_MAX} bytes of a packet are kept")));
        }
        let spec = TapSpec {
            snap,
            arriving: filter.direction != Some(Direction::Out),
            leaving: filter.direction != Some(Direction::In) && !filter.dropped,
            dropped_only: filter.dropped,
        };
        // A client that asks for a port does not ask for what comes in by none.
        let own = request.ports.is_empty();
        let xdp = taps::tap_xdp(view, &filter.ports, own, spec)?;
        let watches = taps::watch_packets(view, &filter.ports, spec)?;
        let named = view.plane.ports().iter().filter(|it| filter.ports.contains(&it.id()));
        let ports = named.map(|port| port.name().to_string()).collect();
        filter.ports.extend(own.then_some(PortId(CAPTURED_NO_PORT)));
        let id = self.add(Capture {
            filter,
            snap,
            xdp,
            watches,
            cell_lost_before: view.cells.report().tapped_lost,
            asked: view.now,
            clock_offset: clock_offset(),
            ..Capture::default()
        });
        Ok(CaptureStarted { schema_version: SCHEMA_VERSION, id, ports, snap })
    }

    fn add(&mut self, capture: Capture) -> u32 {
        self.last_id += 1;
        self.running.push(Capture { id: self.last_id, ..capture });
        self.is_untold = true;
        self.last_id
    }

    /// Takes captured packets, and ends captures that are not polled.
    pub(super) fn handle_tick(&mut self, view: &View<'_>) {
        self.end_forgotten(view.now);
        for capture in &mut self.running {
            seen::read_ring(view, capture);
            seen::read_watches(view, capture);
        }
        self.answer_due(view.now, view.cells.report().tapped_lost);
    }

    /// Takes a packet that the cell has seen.
    pub(super) fn handle_tapped(&mut self, view: &View<'_>, tapped: &CapturedFrame) {
        let (packet, direction) = seen::of_cell(view, tapped);
        for capture in &mut self.running {
            if capture.filter.wants(&packet, tapped.port, direction) {
                let time_ns = tapped.time_ns.saturating_add(capture.clock_offset);
                let digits = 2 * capture.snap as usize;
                let mut packet = CapturedPacket { time_ns, ..packet.clone() };
                packet.bytes_hex.truncate(digits);
                capture.push(packet);
            }
        }
    }

    /// Answers `GET /v1/captures/N`, now or when there is a packet.
    pub(super) fn ask(
        &mut self,
        view: &View<'_>,
        (id, wait_seconds): (u32, u32),
        reply: Reply<CapturedPackets>,
    ) {
        self.handle_tick(view);
        self.ask_for(view.now, view.cells.report().tapped_lost, (id, wait_seconds), reply);
    }

    fn ask_for(
        &mut self,
        now: Nanos,
        cell_lost: u64,
        (id, wait_seconds): (u32, u32),
        reply: Reply<CapturedPackets>,
    ) {
        let Some(capture) = self.running.iter_mut().find(|capture| capture.id == id) else {
            return reply.refuse(no_capture(id));
        };
        capture.asked = now;
        if wait_seconds == 0 || !capture.waiting.is_empty() {
            return reply.ok(capture.take(cell_lost));
        }
        let wait = Nanos::from_millis(u64::from(wait_seconds.min(WAIT_SECONDS_MAX)) * 1000);
        // The one that asked before, if it is still there, gets nothing more.
        capture.follower = Some((now + wait, reply));
    }

    /// Ends a capture; returns the packets that no client has fetched yet.
    ///
    /// # Errors
    /// No such capture runs.
    pub(super) fn end(&mut self, view: &View<'_>, id: u32) -> Answer<CaptureEnded> {
        self.handle_tick(view);
        let at = self.running.iter().position(|capture| capture.id == id);
        let mut capture = self.running.swap_remove(at.ok_or_else(|| no_capture(id))?);
        self.is_untold = true;
        let lost = capture.lost(view.cells.report().tapped_lost);
        let packets = capture.waiting.drain(..).collect();
        Ok(CaptureEnded { schema_version: SCHEMA_VERSION, packets, lost })
    }

    /// Ends captures that were not polled in time.
    fn end_forgotten(&mut self, now: Nanos) {
        let before = self.running.len();
        self.running.retain(|capture| {
            capture.follower.is_some() || now.saturating_sub(capture.asked) < ASKED_WITHIN
        });
        self.is_untold |= self.running.len() != before;
    }

    /// Answers clients for which there is a packet, or whose time is over.
    fn answer_due(&mut self, now: Nanos, cell_lost: u64) {
        for capture in &mut self.running {
            let due = capture.follower.as_ref().is_some_and(|(until, _)| *until <= now);
            if (due || !capture.waiting.is_empty())
                && let Some((_, reply)) = capture.follower.take()
            {
                capture.asked = now;
                // A client that no longer waits did not get them: the capture ends by itself then.
                reply.ok(capture.take(cell_lost));
            }
        }
    }
}

/// Returns the packets that a request is about; of what comes in by no port nothing is said.
fn filter_of(view: &View<'_>, request: &CaptureRequest) -> Answer<Filter> {
    let ports = taps::ports_of(view, &request.ports)?;
    let session = request.session.as_deref().map(Name::new).transpose().map_err(usage)?;
    if let Some(name) = session.as_ref().filter(|name| view.node.session(name).is_none()) {
        let message = format!("this node has no session '{name}'");
        let help = Some("'tam session list' shows the sessions");
        return Err(error(ErrorCode::NotFound, message, help));
    }
    if let Some(rule) = request.rule
        && view.node.rule_payer(RuleId(rule)).is_none()
    {
        let help = Some("'tam rule list' shows the rules");
        let message = format!("there is no rule #{rule} on this node");
        return Err(error(ErrorCode::NotFound, message, help));
    }
    let direction = match request.direction.as_deref() {
        None => None,
        Some("in") => Some(Direction::In),
        Some("out") => Some(Direction::Out),
        Some(_) => return Err(usage("a direction is 'in' or 'out'")),
    };
    Ok(Filter { ports, rule: request.rule, session, direction, dropped: request.dropped })
}

/// Returns the offset in nanoseconds from the kernel's monotonic clock to the wall clock: read
/// between two readings of the former, of a few tries the closest.
fn clock_offset() -> u64 {
    const TRIES: u32 = 5;
    let tries = (0..TRIES).map(|_| {
        let (before, wall, after) = (machine_ns(), wall_clock_ns(), machine_ns());
        (after - before, wall.saturating_sub(before + (after - before) / 2))
    });
    tries.min().map_or(0, |(_, offset)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(3);

    fn packet(time_ns: u64) -> CapturedPacket {
        CapturedPacket { time_ns, rule: Some(4), dropped: true, ..CapturedPacket::default() }
    }

    fn capturing(now: Nanos) -> Captures {
        let mut captures = Captures::default();
        let id = captures.add(Capture { asked: now, snap: 64, ..Capture::default() });
        assert_eq!(id, 1);
        captures
    }

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_packet_is_wanted_when_it_is_all_that_was_asked_for() {
        let all = Filter { ports: vec![PORT], ..Filter::default() };
        assert!(all.wants(&packet(1), PORT, Direction::In));
        assert!(!all.wants(&packet(1), PortId(9), Direction::In), "another port");
        let filter = Filter { direction: Some(Direction::Out), ..all.clone() };
        assert!(!filter.wants(&packet(1), PORT, Direction::In));
        assert!(filter.wants(&packet(1), PORT, Direction::Out));
        let filter = Filter { rule: Some(5), ..all.clone() };
        assert!(!filter.wants(&packet(1), PORT, Direction::In));
        let filter = Filter { session: Some(Name::new("gold").unwrap()), ..all.clone() };
        let of_gold = CapturedPacket { session: Some("gold".to_owned()), ..packet(1) };
        assert!(!filter.wants(&packet(1), PORT, Direction::In));
        assert!(filter.wants(&of_gold, PORT, Direction::In));
        let filter = Filter { dropped: true, ..all };
        let passed = CapturedPacket { dropped: false, ..packet(1) };
        assert!(!filter.wants(&passed, PORT, Direction::In));
    }

    #[test]
    fn a_capture_has_the_packets_of_one_rule_or_is_the_operators() {
        let mut captures = capturing(ms(0));
        let filter = Filter { rule: Some(4), ..Filter::default() };
        let id = captures.add(Capture { filter, ..Capture::default() });
        assert_eq!(captures.rule_of(id), Some(RuleId(4)));
        assert_eq!((captures.rule_of(1), captures.rule_of(id + 1)), (None, None));
    }

    #[test]
    fn a_waiting_capture_client_is_answered_at_the_first_packet_or_its_timeout() {
        let mut captures = capturing(ms(0));
        let (reply, mut answer) = Reply::pair();
        captures.ask_for(ms(1), 0, (1, 1), reply);
        captures.answer_due(ms(2), 0);
        assert!(answer.try_answer().is_none());
        captures.running[0].push(packet(7));
        captures.answer_due(ms(3), 2);
        let packets = answer.try_answer().unwrap().unwrap();
        assert_eq!((packets.packets[0].time_ns, packets.lost), (7, 2));
        let (reply, mut answer) = Reply::pair();
        captures.ask_for(ms(4), 2, (1, 1), reply);
        captures.answer_due(ms(1_003), 2);
        assert!(answer.try_answer().is_none());
        captures.answer_due(ms(1_004), 2);
        assert_eq!(answer.try_answer().unwrap().unwrap().packets, []);
        let (reply, mut answer) = Reply::pair();
        captures.ask_for(ms(5), 0, (2, 1), reply);
        assert_eq!(answer.try_answer().unwrap().unwrap_err().code, ErrorCode::NotFound);
    }

    #[test]
    fn a_capture_that_no_client_reads_ends_and_cells_are_notified_once() {
        let mut captures = capturing(ms(0));
        let Some(ToCell::Capture(Some(facts))) = captures.poll_tap() else { panic!("it began") };
        assert!(facts.snap == 64 && facts.arriving && !facts.dropped_only);
        assert!(captures.poll_tap().is_none());
        let (reply, answer) = Reply::pair();
        captures.ask_for(ms(9_999), 0, (1, 5), reply);
        captures.end_forgotten(ms(30_000));
        assert!(captures.is_any(), "somebody waits for it");
        captures.answer_due(ms(30_000), 0);
        drop(answer);
        captures.end_forgotten(ms(39_999));
        assert!(captures.is_any() && captures.poll_tap().is_none());
        captures.end_forgotten(ms(40_000));
        assert!(!captures.is_any());
        assert!(matches!(captures.poll_tap(), Some(ToCell::Capture(None))));
    }

    #[test]
    fn captured_packets_beyond_the_buffer_are_counted_and_an_answer_is_limited() {
        let mut captures = capturing(ms(0));
        let capture = &mut captures.running[0];
        (0..WAITING_MAX as u64 + 3).for_each(|at| capture.push(packet(at)));
        let taken = capture.take(0);
        assert_eq!((taken.packets.len(), taken.lost), (ANSWER_MAX, 3));
        assert_eq!(capture.waiting.front().unwrap().time_ns, ANSWER_MAX as u64);
    }
}
