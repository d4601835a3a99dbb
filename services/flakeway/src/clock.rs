//! Clock of the link: a frame that circulates on a cable.
//!
//! ```text
//!    module ── send ──▶ port `clock` of 8 Mbit/s ──▶ cable ──▶ its other end ──▶ module
//!                       waits for the wire: 1 byte is 1 µs
//! ```
//!
//! A module can send only when a packet comes, and the time from the node advances in steps of the
//! kernel's tick, 1 to 10 ms. So the module sends itself a packet. On a port with a rate, of which
//! its session has a share, a frame waits until the one before it has left: after a tick of 476
//! bytes, and 24 bytes of Ethernet overhead, the next one comes 500 µs later. Ticks provide the
//! moments to send, and the time between two steps of the node's.

/// Ethernet overhead per frame that is charged: preamble, check sequence, gap, in bytes.
const ETHERNET_REST: u64 = 24;
/// Interval of ticks while a frame is held, in microseconds: the largest delay of a packet.
pub const TICK_US: u64 = 500;
/// Interval of ticks otherwise: the precision of a packet's arrival time.
pub const TICK_IDLE_US: u64 = 1_000;
/// Interval of ticks while more is due than one call may send.
pub const TICK_SHORT_US: u64 = 84;
/// Longest frame of a tick.
pub const TICK_LENGTH_MAX: usize = tick_length(TICK_IDLE_US);
/// Time after which a missing tick is lost, in milliseconds: longer than steps of the node's time,
/// and than the kernel gives the core to others.
const LOST_AFTER_MS: u64 = 40;
/// Largest lead of ticks over the node's time: the largest step that was observed.
const AHEAD_MAX_US: u64 = 40_000;
/// Time for which the clock runs without a packet, in milliseconds: after a pause the first packet
/// is less exact.
const IDLE_MS: u64 = 10_000;

/// Ethertype of ticks: IEEE 802, local experimental EtherType 1.
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Offset of the ethertype, after which come magic, number of the run, number of the tick, and its
/// time.
const TYPE_AT: usize = 12;
const MAGIC: [u8; 4] = *b"tick";
/// Bytes of a tick that are read.
pub const READ_LENGTH: usize = 14 + 4 + 8 + 8;

const _: () = assert!(tick_length(TICK_SHORT_US) >= 60 && READ_LENGTH <= 60);
const _: () = assert!(TICK_LENGTH_MAX <= 1_514);

/// Returns the length of a frame that takes `wire_us` microseconds on the wire.
pub const fn tick_length(wire_us: u64) -> usize {
    (wire_us - ETHERNET_REST) as usize
}

/// Content of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    run: u64,
    number: u64,
}

/// Clock driven by ticks; the module's documentation explains it.
pub struct Clock {
    now_us: u64,
    /// Number of the run. Ticks of other runs are ignored: of an earlier module, or an abandoned
    /// run.
    run: u64,
    /// Number of the awaited tick.
    number: u64,
    runs: bool,
    /// Wire time of the tick before the one that comes.
    wire_us: u64,
    /// Wire time of the tick that comes.
    next_wire_us: u64,
    last_tick_ms: u64,
    last_packet_ms: u64,
}

impl Clock {
    pub const fn new() -> Self {
        Self {
            now_us: 0,
            run: 0,
            number: 0,
            runs: false,
            wire_us: 0,
            next_wire_us: 0,
            last_tick_ms: 0,
            last_packet_ms: 0,
        }
    }

    /// Returns the time in microseconds on the node's time scale.
    pub const fn now(&self) -> u64 {
        self.now_us
    }

    /// Handles a packet at this time of the node.
    pub fn packet(&mut self, node_ms: u64) {
        self.last_packet_ms = node_ms;
        self.keep_to(node_ms);
    }

    /// Handles a tick; returns false if it is not the awaited one.
    pub fn tick(&mut self, node_ms: u64, tick: Tick) -> bool {
        if !self.runs || tick != (Tick { run: self.run, number: self.number }) {
            return false;
        }
        self.number += 1;
        self.now_us += self.wire_us;
        self.wire_us = self.next_wire_us;
        self.last_tick_ms = node_ms;
        self.keep_to(node_ms);
        true
    }

    /// Bounds the time by the node's, which is the beginning of its step and so a lower bound.
    fn keep_to(&mut self, node_ms: u64) {
        let node_us = node_ms.saturating_mul(1_000);
        self.now_us = self.now_us.clamp(node_us, node_us.saturating_add(AHEAD_MAX_US));
    }

    /// Returns true if a tick has to be sent now: the clock is stopped, or its tick was lost.
    pub const fn stands(&self, node_ms: u64) -> bool {
        !self.runs || node_ms.saturating_sub(self.last_tick_ms) >= LOST_AFTER_MS
    }

    /// Begins a run; returns its first tick, a short one.
    pub fn start(&mut self, node_ms: u64) -> Tick {
        // Also after another module in the same place: its run began earlier.
        self.run = self.run.max(node_ms) + 1;
        (self.number, self.runs) = (0, true);
        (self.wire_us, self.next_wire_us) = (0, TICK_SHORT_US);
        self.last_tick_ms = node_ms;
        Tick { run: self.run, number: 0 }
    }

    /// Returns the next tick.
    pub fn next(&mut self, wire_us: u64) -> Tick {
        self.next_wire_us = wire_us;
        Tick { run: self.run, number: self.number }
    }

    /// Stops the clock if no packet came for a while, and none is held; returns true if it is
    /// stopped.
    pub fn rest(&mut self, node_ms: u64, is_empty: bool) -> bool {
        let rests = is_empty && node_ms.saturating_sub(self.last_packet_ms) >= IDLE_MS;
        self.runs &= !rests;
        rests
    }
}

impl Tick {
    /// Parses the head of a frame; returns `None` if it is no tick.
    pub fn read(head: &[u8]) -> Option<Self> {
        let (kind, rest) = head.get(TYPE_AT..READ_LENGTH)?.split_at(2);
        let (magic, numbers) = rest.split_at(4);
        let (run, number) = numbers.split_at(8);
        (kind == ETHERTYPE && magic == MAGIC).then_some(Self {
            run: u64::from_le_bytes(run.try_into().ok()?),
            number: u64::from_le_bytes(number.try_into().ok()?),
        })
    }

    /// Writes the tick into the head of a frame, as a broadcast. Its number makes the frame differ
    /// in each round: the node drops frames that circulate unchanged.
    pub fn write(self, head: &mut [u8]) {
        let Some(head) = head.get_mut(..READ_LENGTH) else { return };
        let (macs, rest) = head.split_at_mut(TYPE_AT);
        macs[..6].fill(0xff);
        macs[6..].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        let (kind, rest) = rest.split_at_mut(2);
        kind.copy_from_slice(&ETHERTYPE);
        let (magic, rest) = rest.split_at_mut(4);
        magic.copy_from_slice(&MAGIC);
        let (run, number) = rest.split_at_mut(8);
        run.copy_from_slice(&self.run.to_le_bytes());
        number.copy_from_slice(&self.number.to_le_bytes());
    }
}
