//! The link's clock: a frame that goes round a cable.
//!
//! ```text
//!   module ── send ──▶ port `clock` of 8 Mbit/s ──▶ cable ──▶ its other end ──▶ module
//!                      waits for the wire: 1 byte is 1 µs
//! ```
//!
//! A module can send only when a packet comes, and the time that it is told goes in steps of the
//! kernel's tick, 1 to 10 ms. So it sends itself a packet. On a port with a rate, of which its
//! session has a share, a frame waits until the one before it has left: after a tick of 476 bytes,
//! and 24 that go with it on an Ethernet, the next one comes 500 µs later. Ticks thus bring the moments in which to send, and tell the
//! time between two steps of the node's.

/// What goes with each frame on an Ethernet, and is paid for: preamble, check sequence, gap.
const ETHERNET_REST: u64 = 24;
/// Time from tick to tick while something is held: what a packet leaves late at most.
pub const TICK_US: u64 = 500;
/// While nothing is: what a packet's coming is known to.
pub const TICK_IDLE_US: u64 = 1_000;
/// While more is due than one call may send.
pub const TICK_SHORT_US: u64 = 84;
/// The longest frame of a tick.
pub const TICK_LENGTH_MAX: usize = tick_length(TICK_IDLE_US);
/// A tick that does not come for so long is lost: longer than steps of the node's time, and than
/// the kernel gives the core to others.
const LOST_AFTER_MS: u64 = 40;
/// How far ticks may be ahead of the node's time: what steps of it were seen to leave out.
const AHEAD_MAX_US: u64 = 40_000;
/// It runs on for so long without a packet: a pause makes the first packet after it less exact.
const IDLE_MS: u64 = 10_000;

/// Of no protocol: IEEE 802, local experimental EtherType 1.
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Where the ethertype lies, and behind it: magic, the run's number, the tick's, its time.
const TYPE_AT: usize = 12;
const MAGIC: [u8; 4] = *b"tick";
/// All that is read of a tick.
pub const READ_LENGTH: usize = 14 + 4 + 8 + 8;

const _: () = assert!(tick_length(TICK_SHORT_US) >= 60 && READ_LENGTH <= 60);
const _: () = assert!(TICK_LENGTH_MAX <= 1_514);

/// The frame that takes so long on the wire.
pub const fn tick_length(wire_us: u64) -> usize {
    (wire_us - ETHERNET_REST) as usize
}

/// What a tick says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    run: u64,
    number: u64,
}

/// See above.
pub struct Clock {
    now_us: u64,
    /// Ticks of other runs are not ours: of a module that was here before, or one given up.
    run: u64,
    /// The tick that is awaited.
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

    /// Microseconds of the node's time.
    pub const fn now(&self) -> u64 {
        self.now_us
    }

    /// A packet came, at the node's time.
    pub fn packet(&mut self, node_ms: u64) {
        self.last_packet_ms = node_ms;
        self.keep_to(node_ms);
    }

    /// A tick came; false when it is not the one that is awaited.
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

    /// The node's time is a floor, since it is the beginning of its step, and not far below.
    fn keep_to(&mut self, node_ms: u64) {
        let node_us = node_ms.saturating_mul(1_000);
        self.now_us = self.now_us.clamp(node_us, node_us.saturating_add(AHEAD_MAX_US));
    }

    /// Whether a tick has to be sent that nobody else sends: the clock stands, or its tick was lost.
    pub const fn stands(&self, node_ms: u64) -> bool {
        !self.runs || node_ms.saturating_sub(self.last_tick_ms) >= LOST_AFTER_MS
    }

    /// Begins a run; its first tick, a short one.
    pub fn start(&mut self, node_ms: u64) -> Tick {
        // Also of another module before this one in the same place: its run began earlier.
        self.run = self.run.max(node_ms) + 1;
        (self.number, self.runs) = (0, true);
        (self.wire_us, self.next_wire_us) = (0, TICK_SHORT_US);
        self.last_tick_ms = node_ms;
        Tick { run: self.run, number: 0 }
    }

    /// The tick after the one that came.
    pub fn next(&mut self, wire_us: u64) -> Tick {
        self.next_wire_us = wire_us;
        Tick { run: self.run, number: self.number }
    }

    /// Nothing came for a while, and nothing is held: it stands.
    pub fn rest(&mut self, node_ms: u64, is_empty: bool) -> bool {
        let rests = is_empty && node_ms.saturating_sub(self.last_packet_ms) >= IDLE_MS;
        self.runs &= !rests;
        rests
    }
}

impl Tick {
    /// Reads the head of a frame; none when it is no tick.
    pub fn read(head: &[u8]) -> Option<Self> {
        let (kind, rest) = head.get(TYPE_AT..READ_LENGTH)?.split_at(2);
        let (magic, numbers) = rest.split_at(4);
        let (run, number) = numbers.split_at(8);
        (kind == ETHERTYPE && magic == MAGIC).then_some(Self {
            run: u64::from_le_bytes(run.try_into().ok()?),
            number: u64::from_le_bytes(number.try_into().ok()?),
        })
    }

    /// Writes it into the head of a frame, as a broadcast. Its number makes it another frame in
    /// each round: the node ends what goes round and stays as it is.
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
