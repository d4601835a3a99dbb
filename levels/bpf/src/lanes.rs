//! Lanes of all entries, in memory: the destination of a service's packets, for
//! the daemon and the cell. The front door's half is `c/service.h`; `c/tam_maps.h` draws the writer
//! of each field, and why that is sufficient.
//!
//! ```text
//!   front door (in the lane)          cell
//!   sent_up += 1 ── packet ─────────▶ ring ─▶ module ─▶ Departures: left += 1
//!   target below, sent_up == left?
//!     yes: this packet is the first below
//! ```
//!
//! At kernel level the front door has two halves, XDP and tc, and counts packets under way
//! from one to the other in the same way, privately.
//!
//! Decides nothing: the node decides when a lane moves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use bpf_maps::{
    EDGES_MAX, ENTRIES_MAX, LEVEL_KERNEL, LEVEL_NIC, LEVEL_USER, Lane as Record, NEXT_DOWN, PATH_TC,
};
use units::{Edge, EntryId, SessionId};

use crate::map::{Map, MapError};
use crate::mapped::MappedWords;

/// Failure to map the lanes.
#[derive(Debug, thiserror::Error)]
pub enum LanesError {
    /// The map is another one: a defect of this program.
    #[error("the map of lanes has {found} entries, not {ENTRIES_MAX}")]
    Entries {
        /// Number of entries found.
        found: u32,
    },
    /// The map is another one, or cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The kernel did not map it.
    #[error("cannot map the lanes into memory: {0}")]
    Memory(io::Error),
}

/// Lanes of all entries.
#[derive(Debug)]
pub struct Lanes {
    words: MappedWords,
}

impl Lanes {
    /// Maps the lanes.
    ///
    /// # Errors
    /// The map is another one.
    pub fn new(map: &Map) -> Result<Self, LanesError> {
        let found = map.info().max_entries;
        if found as usize != ENTRIES_MAX {
            return Err(LanesError::Entries { found });
        }
        // Requires the value's size and BPF_F_MMAPABLE.
        map.map_array::<Record>()?;
        let words = MappedWords::new(map.as_fd(), ENTRIES_MAX * WORDS);
        Ok(Self { words: words.map_err(LanesError::Memory)? })
    }

    /// Maps the lanes in a process that got the map's descriptor from the one that made it and must
    /// not query the kernel: a cell.
    ///
    /// # Errors
    /// The kernel does not map that much of it.
    pub fn from_fd(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), ENTRIES_MAX * WORDS)? })
    }

    /// Returns the lane of an entry; `None` above the last.
    #[must_use]
    pub fn lane(&self, entry: EntryId) -> Option<Lane<'_>> {
        let first = usize::from(entry.0) * WORDS;
        let word = |at: usize| self.words.word(first + at / 8);
        let half = |at: usize| self.words.half(2 * first + at / 4);
        Some(Lane {
            sent_up: word(std::mem::offset_of!(Record, sent_up))?,
            left: word(std::mem::offset_of!(Record, left))?,
            epoch_start: word(std::mem::offset_of!(Record, epoch_start))?,
            epoch_seen: half(std::mem::offset_of!(Record, epoch_seen))?,
            epoch: half(std::mem::offset_of!(Record, epoch))?,
            level: half(std::mem::offset_of!(Record, level))?,
            target: half(std::mem::offset_of!(Record, target))?,
            program: half(std::mem::offset_of!(Record, program))?,
            window: half(std::mem::offset_of!(Record, window))?,
            next: word(std::mem::offset_of!(Record, next))?,
            closed: half(std::mem::offset_of!(Record, closed))?,
            session: half(std::mem::offset_of!(Record, session))?,
            held: half(std::mem::offset_of!(Record, held))?,
            account: half(std::mem::offset_of!(Record, account))?,
            busy: half(std::mem::offset_of!(Record, busy))?,
            trapped: half(std::mem::offset_of!(Record, trapped))?,
            ran: half(std::mem::offset_of!(Record, ran))?,
            passage: Passage {
                sent: word(std::mem::offset_of!(Record, sent_tc))?,
                left: word(std::mem::offset_of!(Record, left_tc))?,
                awaited: word(std::mem::offset_of!(Record, tc_awaited))?,
                path: half(std::mem::offset_of!(Record, path))?,
            },
        })
    }
}

/// Mask of [`Record::window`] in its word.
const WINDOW_MASK: u32 = 0xffff;
/// Shift of [`Record::edges`] in the same word.
const EDGES_SHIFT: u32 = 16;
/// Shift of [`Record::over`] in the same word.
const OVER_SHIFT: u32 = 24;
/// Width of [`Record::account`] in its half word; [`Record::beyond`] follows.
const ACCOUNT_BITS: u32 = 16;
const WORDS: usize = size_of::<Record>() / 8;

/// Lane of one entry.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    sent_up: &'a AtomicU64,
    left: &'a AtomicU64,
    epoch_start: &'a AtomicU64,
    epoch_seen: &'a AtomicU32,
    epoch: &'a AtomicU32,
    level: &'a AtomicU32,
    target: &'a AtomicU32,
    program: &'a AtomicU32,
    /// Window, edges, and the state of the budget, in one word.
    window: &'a AtomicU32,
    next: &'a AtomicU64,
    closed: &'a AtomicU32,
    session: &'a AtomicU32,
    held: &'a AtomicU32,
    /// Account, and the treatment of packets when it is empty.
    account: &'a AtomicU32,
    busy: &'a AtomicU32,
    trapped: &'a AtomicU32,
    ran: &'a AtomicU32,
    passage: Passage<'a>,
}

/// Counters of a lane's packets on their way from XDP to tc.
#[derive(Clone, Copy, Debug)]
struct Passage<'a> {
    sent: &'a AtomicU64,
    left: &'a AtomicU64,
    awaited: &'a AtomicU64,
    path: &'a AtomicU32,
}

impl Passage<'_> {
    /// Returns true when the last packet took the path by tc.
    fn is_by_tc(&self) -> bool {
        self.path.load(Ordering::Acquire) == PATH_TC
    }

    /// Returns true when no packet is under way.
    fn is_drained(&self) -> bool {
        self.left.load(Ordering::Acquire) == self.sent.load(Ordering::Acquire)
            && self.awaited.load(Ordering::Acquire) == 0
    }
}

impl Lane<'_> {
    /// Returns the number of packets given to user level so far.
    #[must_use]
    pub fn sent_up(&self) -> u64 {
        self.sent_up.load(Ordering::Acquire)
    }

    /// Returns the number of packets that have left user level.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// Returns `LEVEL_*` of the last packet's destination. It follows the target with the next
    /// packet, at the earliest.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.level.load(Ordering::Acquire)
    }

    /// Returns `LEVEL_*` that packets are to go to.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target.load(Ordering::Acquire)
    }

    /// Returns true if, with this target, the next packet of the lane meets the module at that
    /// level: no packet is under way that would have to be gone before. From `nic` to `kernel` that
    /// packet still goes by the cell.
    ///
    /// The state follows the packets. Those lost between XDP and tc are given up with later
    /// packets.
    #[must_use]
    pub fn settled(&self, level: u32) -> bool {
        // The value read first is the last to change: a packet goes from tc up, and none back.
        let by_tc = self.passage.is_by_tc();
        let is_tc_drained = self.passage.is_drained();
        let is_drained = self.left() == self.sent_up();
        match level {
            LEVEL_NIC => (!by_tc || is_tc_drained) && is_drained,
            LEVEL_KERNEL => is_drained,
            _ => true,
        }
    }

    /// Sets the program that runs below (its index in the front door's modules, at `nic` and at
    /// `kernel`) and the number of bytes of a packet's head that it sees. To be called before the
    /// target is set.
    pub fn set_program(&self, index: u32, window: u32) {
        self.program.store(index, Ordering::Release);
        self.set(0, WINDOW_MASK, window);
    }

    /// Sets a part of the word that begins with the window, which no other process writes.
    fn set(&self, shift: u32, mask: u32, value: u32) {
        let others = self.window.load(Ordering::Acquire) & !(mask << shift);
        self.window.store(others | (value & mask) << shift, Ordering::SeqCst);
    }

    /// Sets the state of the budget below user level: `OVER_NOT`, or the treatment of packets when
    /// it is used up.
    pub fn set_over(&self, over: u8) {
        self.set(OVER_SHIFT, 0xff, u32::from(over));
    }

    /// Returns the session that pays for the service.
    #[must_use]
    pub fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Acquire) as u16)
    }

    /// Sets the session that pays for the service.
    pub fn set_session(&self, session: SessionId) {
        self.session.store(u32::from(session.0), Ordering::SeqCst);
    }

    /// Sets the account for the service's use below user level; `beyond` is the treatment of
    /// packets while it is empty: `OVER_*`, with `OVER_NOT` for a service that is not charged.
    pub fn set_account(&self, account: u16, beyond: u8) {
        let word = u32::from(account) | u32::from(beyond) << ACCOUNT_BITS;
        self.account.store(word, Ordering::SeqCst);
    }

    /// Returns true if the service pays from an account.
    #[must_use]
    pub fn pays(&self) -> bool {
        self.account.load(Ordering::Acquire) >> ACCOUNT_BITS != 0
    }

    /// Sets whether packets that the service cannot have are dropped.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(u32::from(closed), Ordering::SeqCst);
    }

    /// Sets whether packets that would go up are dropped as long as earlier ones are still there
    /// and the target is below: the only way down for a lane with more packets than user level
    /// handles. Not for longer than needed.
    pub fn set_held(&self, held: bool) {
        self.held.store(u32::from(held), Ordering::SeqCst);
    }

    /// Returns true if its packets go up although the target is below, and not all earlier ones
    /// have left.
    #[must_use]
    pub fn is_kept_up(&self) -> bool {
        self.target() != LEVEL_USER && self.level() == LEVEL_USER && self.left() != self.sent_up()
    }

    /// Sets the destinations of the edges for packets that its module passes; out of the graph
    /// where there is none.
    pub fn set_edges(&self, edges: [Edge; EDGES_MAX]) {
        let bits = |of: fn(usize, u16) -> u64| {
            let next = |(edge, to): (usize, &Edge)| match to {
                Edge::Out => None,
                Edge::To(entry) => Some((edge, entry.0)),
                Edge::Down => Some((edge, NEXT_DOWN)),
            };
            let there = edges.iter().enumerate().filter_map(next);
            there.fold(0, |bits, (edge, to)| bits | of(edge, to))
        };
        let there = bits(|edge, _| 1 << edge) as u32;
        // An edge is valid at any moment: its bit is set after its destination, and cleared before
        // it.
        let before = self.window.load(Ordering::Acquire) >> EDGES_SHIFT;
        self.set(EDGES_SHIFT, 0xff, before & there);
        self.next.store(bits(|edge, to| u64::from(to) << (16 * edge)), Ordering::SeqCst);
        self.set(EDGES_SHIFT, 0xff, there);
    }

    /// Sets the level that packets are to go to. A caller that set it to user level and then finds
    /// the lane [free](Self::is_free) once has exclusive access to the module's memory: no program
    /// below enters it until the target changes again.
    pub fn set_target(&self, level: u32) {
        self.target.store(level, Ordering::SeqCst);
        // The front door writes `busy`, then reads `target`; this is the reverse. One of the two
        // sees the other.
        fence(Ordering::SeqCst);
    }

    /// Returns true if no CPU is in the lane at this moment.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
    }

    /// Returns true if packets go, or may go with the next one, to a program below.
    #[must_use]
    pub fn is_below(&self) -> bool {
        self.target() != LEVEL_USER || !self.is_free()
    }

    /// Returns the reason why its module is not run any more: a trap's code, or `NOT_A_VERDICT`.
    /// Its packets go as if there were no rule.
    #[must_use]
    pub fn trapped(&self) -> Option<u32> {
        Some(self.trapped.load(Ordering::Acquire)).filter(|&cause| cause != 0)
    }

    /// Returns true if the module has run below since the last call. For the cell, while no program
    /// below may enter the lane: it handles a packet that was sent up, or found the lane
    /// [free](Self::is_free).
    pub fn take_ran(&self) -> bool {
        // No other CPU writes it now; most of the time none has.
        let ran = self.ran.load(Ordering::Acquire) != 0;
        if ran {
            self.ran.store(0, Ordering::Release);
        }
        ran
    }

    /// Clears the trap, after the instance below was replaced: it runs again.
    pub fn clear_trapped(&self) {
        self.trapped.store(0, Ordering::Release);
    }
}

/// Departure counter of one lane, in the cell: counts the packets that have left user level.
///
/// Packets can be lost between the front door and the cell (a full ring, no buffer). The
/// front door never learns of it, so `left` stays behind for ever and the lane cannot go
/// below. Then the cell
///
/// 1. calls [`Departures::begin`]: packets carry another epoch from then on;
/// 2. waits until no program runs that began before
///    ([`crate::front_door::wait_for_packets_in_flight`]): all packets of the epochs before are in a ring, or lost;
/// 3. handles the packets in its rings at that moment: they are gone, or lost;
/// 4. calls [`Departures::settle`], which knows exactly how many of the packets of this epoch
///    are gone, and that all before are.
///
/// In between packets are handled and counted as always. Nothing is overtaken: `left` is never
/// more than the packets that are gone.
#[derive(Debug, Default)]
pub struct Departures {
    epoch: u8,
    of_epoch: u64,
    /// Packets that are about to be gone; and the number of them that carry the epoch.
    leaving: u64,
    leaving_of_epoch: u64,
}

impl Departures {
    /// Starts with a lane. Begins an epoch, since a previous cell may have left packets behind:
    /// steps 2 to 4 must follow.
    #[must_use]
    pub fn new(lane: &Lane<'_>) -> Self {
        let epoch = lane.epoch.load(Ordering::Acquire) as u8;
        let mut new = Self { epoch, of_epoch: 0, leaving: 0, leaving_of_epoch: 0 };
        new.begin(lane);
        new
    }

    /// Records that one packet of the lane is sent, dropped or handed on; it is gone with
    /// [`Departures::depart`]. `epoch` is the one that it carried.
    #[inline]
    pub fn leave(&mut self, epoch: u8) {
        self.leaving += 1;
        self.leaving_of_epoch += u64::from(epoch == self.epoch);
    }

    /// Returns true if a packet that carried this epoch belongs to the current one.
    #[must_use]
    pub const fn is_of_this(&self, epoch: u8) -> bool {
        epoch == self.epoch
    }

    /// Returns true if any packet is about to be gone.
    #[must_use]
    pub const fn any_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// Counts all recorded packets as gone. One word is written for all of them: the front door has
    /// it in its cache, and waits for it.
    pub fn depart(&mut self, lane: &Lane<'_>) {
        self.of_epoch += std::mem::take(&mut self.leaving_of_epoch);
        // No other process writes it. Release: a reader of it sees the current state of the
        // module's memory.
        let left = lane.left.load(Ordering::Relaxed) + std::mem::take(&mut self.leaving);
        lane.left.store(left, Ordering::Release);
    }

    /// Begins another epoch. The one before must have been settled.
    pub fn begin(&mut self, lane: &Lane<'_>) {
        self.epoch = self.epoch.wrapping_add(1);
        (self.of_epoch, self.leaving_of_epoch) = (0, 0);
        lane.epoch.store(u32::from(self.epoch), Ordering::SeqCst);
    }

    /// Declares all packets before this epoch gone.
    pub fn settle(&mut self, lane: &Lane<'_>) {
        let is_seen = || lane.epoch_seen.load(Ordering::Acquire) == u32::from(self.epoch);
        let sent_up = lane.sent_up.load(Ordering::Acquire);
        // Before the epoch's first packet, `sent_up` is its future start. Read in this order: the
        // front door writes epoch_start, epoch_seen, sent_up.
        let start = if is_seen() { lane.epoch_start.load(Ordering::Acquire) } else { sent_up };
        // Packets from before that are about to be gone are counted with the next departure.
        let of_before = self.leaving - self.leaving_of_epoch;
        lane.left.store((start + self.of_epoch).wrapping_sub(of_before), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::new_map::MapSpec;

    const LANE: u32 = size_of::<Record>() as u32;

    fn lanes() -> Option<(Map, Lanes)> {
        if !rustix::process::geteuid().is_root() {
            testbase::skip("lanes", "making BPF maps needs root");
            return None;
        }
        let map = Map::create("lanes", &MapSpec::mappable_array(LANE, ENTRIES_MAX as u32)).unwrap();
        let lanes = Lanes::new(&map).unwrap();
        Some((map, lanes))
    }

    /// Counts a packet as the front door does; returns the epoch that it carries.
    fn send_up(lane: &Lane<'_>) -> u8 {
        let epoch = lane.epoch.load(Ordering::SeqCst);
        if lane.epoch_seen.load(Ordering::SeqCst) != epoch {
            lane.epoch_start.store(lane.sent_up(), Ordering::SeqCst);
            lane.epoch_seen.store(epoch, Ordering::SeqCst);
        }
        lane.sent_up.fetch_add(1, Ordering::SeqCst);
        epoch as u8
    }

    #[test]
    fn fields_are_where_the_front_door_has_them() {
        let Some((map, lanes)) = lanes() else { return };
        let record = Record {
            sent_up: 1,
            left: 2,
            epoch_start: 3,
            epoch_seen: 4,
            epoch: 5,
            level: 6,
            target: 7,
            program: 8,
            window: 9,
            edges: 0,
            over: 0,
            busy: 10,
            cpu: 11,
            trapped: 12,
            ran: 1,
            sent_tc: 13,
            left_tc: 14,
            tc_awaited: 15,
            path: 16,
            next: [17, 18, 19, 20],
            ..Record::default()
        };
        map.update(&1023u32, &record, crate::Update::Any).unwrap();
        let lane = lanes.lane(EntryId(1023)).unwrap();
        let words = [
            lane.sent_up,
            lane.left,
            lane.epoch_start,
            lane.passage.sent,
            lane.passage.left,
            lane.passage.awaited,
            lane.next,
        ];
        assert_eq!(
            words.map(|word| word.load(Ordering::SeqCst)),
            [1, 2, 3, 13, 14, 15, 0x14_0013_0012_0011]
        );
        assert_eq!(lane.passage.path.load(Ordering::SeqCst), 16);
        let halves =
            [lane.epoch_seen, lane.epoch, lane.level, lane.target, lane.program, lane.window];
        assert_eq!(halves.map(|half| half.load(Ordering::SeqCst)), [4, 5, 6, 7, 8, 9]);
        assert_eq!((lane.is_free(), lane.trapped()), (false, Some(12)));
        assert!(lane.take_ran() && !lane.take_ran());
        assert!(lanes.lane(EntryId(ENTRIES_MAX as u16)).is_none());

        lane.set_edges([Edge::Out, Edge::To(EntryId(7)), Edge::Down, Edge::To(EntryId(1023))]);
        lane.set_program(8, 96);
        let record: Record = map.lookup(&1023u32).unwrap().unwrap();
        assert_eq!(
            (record.window, record.edges, record.next),
            (96, 0b1110, [0, 7, NEXT_DOWN, 1023])
        );
        lane.set_over(bpf_maps::OVER_RAISE);
        lane.set_edges([Edge::Out; EDGES_MAX]);
        let record: Record = map.lookup(&1023u32).unwrap().unwrap();
        assert_eq!((record.window, record.edges, record.over), (96, 0, 2));
    }

    #[test]
    fn lost_packets_keep_the_counts_apart_until_an_epoch_is_settled() {
        let Some((_map, lanes)) = lanes() else { return };
        let lane = lanes.lane(EntryId(3)).unwrap();
        let mut departures = Departures::new(&lane);
        departures.settle(&lane);
        let sent: Vec<u8> = (0..10).map(|_| send_up(&lane)).collect();
        sent[..7].iter().for_each(|&epoch| departures.leave(epoch));
        departures.depart(&lane);
        assert_eq!((lane.sent_up(), lane.left()), (10, 7), "three are lost");
        departures.begin(&lane);
        let after: Vec<u8> = (0..5).map(|_| send_up(&lane)).collect();
        after[..2].iter().for_each(|&epoch| departures.leave(epoch));
        departures.depart(&lane);
        assert_eq!(lane.left(), 9);
        departures.settle(&lane);
        assert_eq!((lane.sent_up(), lane.left()), (15, 12), "three are on their way");
        after[2..].iter().for_each(|&epoch| departures.leave(epoch));
        departures.depart(&lane);
        assert_eq!(lane.left(), 15);
    }

    #[test]
    fn an_epoch_without_packets_settles_at_what_was_sent() {
        let Some((_map, lanes)) = lanes() else { return };
        let lane = lanes.lane(EntryId(0)).unwrap();
        (0..4).for_each(|_| {
            send_up(&lane);
        });
        for _ in 0..300 {
            let mut departures = Departures::new(&lane);
            departures.settle(&lane);
            assert_eq!(lane.left(), lane.sent_up(), "a cell before it lost them");
            let epoch = send_up(&lane);
            departures.leave(epoch);
            departures.depart(&lane);
            assert_eq!(lane.left(), lane.sent_up());
            send_up(&lane);
        }
    }

    #[test]
    fn another_map_is_refused() {
        let Some((map, _lanes)) = lanes() else { return };
        let few = Map::create("few", &MapSpec::mappable_array(LANE, 4)).unwrap();
        assert!(matches!(Lanes::new(&few), Err(LanesError::Entries { found: 4 })));
        let other = Map::create("other", &MapSpec::array(LANE, ENTRIES_MAX as u32)).unwrap();
        assert!(matches!(Lanes::new(&other), Err(LanesError::Map(MapError::NotMappable { .. }))));
        drop(map);
    }
}
