//! `flakeway`: a link of configurable quality between two ports. It delays, loses, reorders and
//! duplicates packets, and limits the rate.
//!
//! ```text
//!             ┌ queue full, lost: dropped
//!  packet ─▶ direction ─▶ held: a copy in memory ─── when it is due ──▶ sent out of the other port
//!                                     ▲
//!                   clock: ticks ─────┘   (explained in clock.rs)
//! ```
//!
//! The flakeway of the paper on active congestion control (Faber, 2002). A held packet has the
//! verdict `drop`, since no verdict means "later"; its copy is sent once, or twice if it is
//! duplicated.

#![forbid(unsafe_code)]
#![cfg_attr(target_arch = "wasm32", no_std)]

mod chance;
mod clock;
mod held;
mod settings;
mod way;

use clock::{Clock, TICK_IDLE_US, TICK_LENGTH_MAX, TICK_SHORT_US, TICK_US, Tick, tick_length};
use held::{Held, NoRoom, Order};
use settings::{Settings, refuse};
use tam::{Packet, Verdict};
use way::{Fate, Way};

tam::module! {
    on_packet: on_packet,
    on_start: on_start,
}

tam::counters! {
    /// Packets that came.
    static RECEIVED = "received";
    /// Packets that left, duplicates counted.
    static SENT = "sent";
    /// Packets that the link lost.
    static LOST = "lost";
    /// Packets that found the rate's queue full.
    static QUEUE_FULL = "queue_full";
    /// Packets that found no memory, or are longer than the limit for sending.
    static NO_ROOM = "no_room";
    /// Copies besides the packet itself.
    static DUPLICATED = "duplicated";
    /// Packets that were held longer than later ones, on purpose.
    static REORDERED = "reordered";
    /// Packets that are held now, copies counted.
    static HELD = "held";
    /// Ticks of the clock.
    static TICKS = "ticks";
}

/// Drop reasons, named in `module.toml`.
mod reason {
    pub const LOST: u16 = 1;
    pub const QUEUE_FULL: u16 = 2;
    pub const HELD: u16 = 3;
    pub const NO_ROOM: u16 = 4;
    pub const TICK: u16 = 5;
}

/// Limit of frames sent per call (docs/reference/module-abi.md).
const SENDS_MAX: usize = 4;
/// Length limit of these frames.
const FRAME_LENGTH_MAX: usize = 9_018;

/// Parameters from the start.
struct Setup {
    /// Ports of the two ends.
    ends: [u16; 2],
    /// Port of the clock; not needed if both directions forward at once.
    clock: Option<u16>,
    /// Settings from the first end to the second, and back.
    ways: [Settings; 2],
}

/// State that is kept.
struct Link {
    clock: Clock,
    ways: [Way; 2],
    held: [Held; 2],
}

static SETUP: tam::State<Setup> =
    tam::State::new(Setup { ends: [0; 2], clock: None, ways: [Settings::PLAIN; 2] });
static LINK: tam::State<Link> = tam::State::new(Link {
    clock: Clock::new(),
    ways: [const { Way::new(0) }; 2],
    held: [Held::EMPTY; 2],
});

fn on_start() -> Result<(), u16> {
    let names =
        ["delay", "jitter", "loss", "burst", "reorder", "late", "duplicate", "rate", "queue"];
    let texts = names.map(|name| (name, tam::parameter::<tam::Text>(name)));
    let text = |wanted: &str| {
        let (_, text) = texts.iter().find(|(name, _)| *name == wanted)?;
        text.as_ref().map(tam::Text::as_str)
    };
    let ways = Settings::read(text)?;
    let port = |parameter| {
        let name = tam::parameter::<tam::Text>(parameter)?;
        tam::port(name.as_str())
    };
    let (Some(a), Some(b)) = (port("a"), port("b")) else { return Err(refuse::PORTS) };
    if a == b {
        return Err(refuse::PORTS);
    }
    let clock = port("clock").filter(|clock| *clock != a && *clock != b);
    if clock.is_none() && ways.iter().any(Settings::holds) {
        return Err(refuse::CLOCK);
    }
    let seed = tam::parameter("seed").unwrap_or(1_u64);
    SETUP.with(|setup| *setup = Setup { ends: [a, b], clock, ways });
    // Held frames remain when another version of the same code has other parameters.
    LINK.with(|link| link.ways = [Way::new(seed), Way::new(!seed)]);
    Ok(())
}

fn on_packet(packet: &mut Packet<'_>) -> Verdict {
    SETUP.with(|setup| {
        let end = setup.ends.iter().position(|end| *end == packet.arrival_port());
        LINK.with(|link| match end {
            Some(end) => link.come(setup, end, packet),
            None => match Tick::read(packet.window()) {
                Some(tick) => link.tick(setup, tick, packet),
                None => Verdict::PASS,
            },
        })
    })
}

impl Link {
    fn come(&mut self, setup: &Setup, end: usize, packet: &Packet<'_>) -> Verdict {
        RECEIVED.add(1);
        let (node_ms, settings) = (packet.now_ms(), &setup.ways[end]);
        self.clock.packet(node_ms);
        let verdict = match self.ways[end].come(self.clock.now(), packet.length(), settings) {
            Fate::Lost => {
                LOST.add(1);
                Verdict::Drop { reason: reason::LOST }
            }
            Fate::QueueFull => {
                QUEUE_FULL.add(1);
                Verdict::Drop { reason: reason::QUEUE_FULL }
            }
            Fate::Due { copies, .. } if !settings.holds() => {
                self.pass(end, copies, packet);
                Verdict::PASS
            }
            Fate::Due { at, order, copies } => match self.hold(end, order, at, copies, packet) {
                Ok(()) => {
                    REORDERED.add(u64::from(order == Order::Late));
                    DUPLICATED.add(u64::from(copies - 1));
                    Verdict::Drop { reason: reason::HELD }
                }
                Err(NoRoom) => {
                    NO_ROOM.add(1);
                    Verdict::Drop { reason: reason::NO_ROOM }
                }
            },
        };
        let port = setup.clock.filter(|_| self.clock.stands(node_ms));
        self.send_due(setup, SENDS_MAX - usize::from(port.is_some()));
        if let Some(port) = port.filter(|_| !self.is_empty()) {
            send_tick(port, self.clock.start(node_ms), TICK_SHORT_US);
        }
        verdict
    }

    /// Forwards the packet by its verdict, and sends copies.
    fn pass(&mut self, end: usize, copies: u32, packet: &Packet<'_>) {
        SENT.add(1);
        let more = copies - 1;
        if more > 0 && self.hold(end, Order::OnTime, self.clock.now(), more, packet).is_ok() {
            DUPLICATED.add(u64::from(more));
        }
    }

    fn hold(
        &mut self,
        end: usize,
        order: Order,
        due: u64,
        copies: u32,
        packet: &Packet<'_>,
    ) -> Result<(), NoRoom> {
        if packet.length() > FRAME_LENGTH_MAX {
            return Err(NoRoom);
        }
        let fill = |to: &mut [u8]| packet.load(0, to);
        self.held[end].push(order, due, copies, packet.length(), fill)?;
        HELD.add(copies.into());
        Ok(())
    }

    /// Handles the clock's frame: sends what is due, and the next tick.
    fn tick(&mut self, setup: &Setup, tick: Tick, packet: &mut Packet<'_>) -> Verdict {
        let gone = Verdict::Drop { reason: reason::TICK };
        let node_ms = packet.now_ms();
        let Some(port) = setup.clock.filter(|_| self.clock.tick(node_ms, tick)) else {
            return gone;
        };
        TICKS.add(1);
        // The next tick is one of the frames, unless this one can be sent on.
        self.send_due(setup, SENDS_MAX - 1);
        let is_empty = self.is_empty();
        if self.clock.rest(node_ms, is_empty) {
            return gone;
        }
        let now = self.clock.now();
        let wire = match self.held.iter().any(|held| held.due(now).is_some()) {
            true => TICK_SHORT_US,
            false if is_empty => TICK_IDLE_US,
            false => TICK_US,
        };
        let next = self.clock.next(wire);
        if packet.length() == tick_length(wire) {
            next.write(packet.window_mut());
            return Verdict::Redirect { port };
        }
        send_tick(port, next, wire);
        gone
    }

    /// Sends the frames that are due, the earliest first, at most `room` of them.
    fn send_due(&mut self, setup: &Setup, room: usize) {
        let now = self.clock.now();
        for _ in 0..room {
            let [first, second] = self.held.each_ref().map(|held| held.next_due());
            let end = match (first, second) {
                (Some(first), Some(second)) => usize::from(second < first),
                (None, Some(_)) => 1,
                _ => 0,
            };
            let held = &mut self.held[end];
            let Some(due) = held.due(now) else { return };
            // The ports existed at the start, and the frame is not too long.
            let is_sent = tam::send(setup.ends[1 - end], held.frame(due)).is_ok();
            (if is_sent { &SENT } else { &NO_ROOM }).add(1);
            HELD.add(u64::MAX);
            held.sent(due);
        }
    }

    fn is_empty(&self) -> bool {
        self.held.iter().all(Held::is_empty)
    }
}

/// Sends a tick. A failure is noticed as a lost tick.
fn send_tick(port: u16, tick: Tick, wire_us: u64) {
    let mut frame = [0; TICK_LENGTH_MAX];
    tick.write(&mut frame);
    let _ = tam::send(port, &frame[..tick_length(wire_us)]);
}

#[cfg(test)]
mod tests;
