//! What may wait for each session, in front of the cell and in it: counted in memory that the
//! front door has, too.
//!
//! ```text
//!  front door: room? ─ no ─▶ dropped there            the cell's own: take ─ no ─▶ dropped here
//!      │ sent += memory                                    │ done -= memory
//!      ▼                                                   ▼
//!  receive ring ─▶ came ─▶ waits for its turn, or to leave ─▶ leave: done += memory
//! ```
//!
//! One sum says what waits, wherever it came from: `sent - done`. Who takes room looks at it
//! behind a full barrier: `levels/bpf/c/room.h` for packets that come by XDP and tc, and this for
//! those that come by packet sockets, that services send each other, and that wait to leave.
//!
//! What was sent up and never came is found by its epoch ([`Rooms::settle`]).

use bpf_maps::ROOM_SHARED;
use level::ahead;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use units::{Bytes, CoarseInstant, Millis, SessionId};

/// How long an epoch lasts. A packet comes within the driver's poll, so one that has not come
/// for so long is lost; one that comes after all is made good.
pub(crate) const EPOCH: Millis = Millis(1000);

/// What left what is shared is said when it is so much, and when the turns are over: packets of a
/// dozen turns.
const UNSAID_MAX: Bytes = Bytes(16 * xsk::FRAME_LENGTH as u64);

/// Of a cell that no front door sends anything to.
#[derive(Debug, Default)]
struct Own {
    most: AtomicU64,
    sent: [AtomicU64; 2],
    dropped: AtomicU64,
    epoch: AtomicU32,
    shared: AtomicU32,
    done: AtomicU64,
}

#[derive(Debug)]
enum Words {
    Mapped(bpf::Room<'static>),
    Own(Box<Own>),
}

/// What may wait for one session, or for all that share a room.
#[derive(Debug)]
pub(crate) struct Room {
    words: Words,
    most: Bytes,
    /// What has come of what the front door sent, by epoch.
    came: [u64; 2],
    /// What is in the cell.
    held: Bytes,
    /// Packets that the front door had dropped before this began.
    dropped_before: u64,
}

impl Room {
    fn begin(words: Words, epoch: u32) -> Self {
        let mut room =
            Self { words, most: Bytes::ZERO, came: [0; 2], held: Bytes::ZERO, dropped_before: 0 };
        let words = room.words();
        words.epoch.store(epoch, Ordering::SeqCst);
        let sent = words.sent.map(|sent| sent.load(Ordering::SeqCst));
        let dropped = words.dropped.load(Ordering::Relaxed);
        // Whatever is under way is not for us.
        words.done.store(sent[0].wrapping_add(sent[1]), Ordering::SeqCst);
        (room.came, room.dropped_before) = (sent, dropped);
        room
    }

    #[inline]
    fn words(&self) -> bpf::Room<'_> {
        match &self.words {
            Words::Mapped(words) => *words,
            Words::Own(own) => bpf::Room {
                most: &own.most,
                sent: own.sent.each_ref(),
                dropped: &own.dropped,
                epoch: &own.epoch,
                shared: &own.shared,
                done: &own.done,
            },
        }
    }

    /// What waits, the packets on their way included. Below zero for a moment when some came
    /// that were given up.
    fn sum(&self) -> i64 {
        let words = self.words();
        let sent = words.sent.map(|sent| sent.load(Ordering::SeqCst));
        let done = words.done.load(Ordering::SeqCst);
        sent[0].wrapping_add(sent[1]).wrapping_sub(done) as i64
    }

    /// What waits now.
    pub(crate) fn waits(&self) -> Bytes {
        Bytes(self.sum().max(0) as u64)
    }

    /// Packets for which the front door found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.words().dropped.load(Ordering::Relaxed).saturating_sub(self.dropped_before)
    }

    /// What has room already is here now.
    #[inline]
    fn come(&mut self, memory: Bytes, epoch: usize) {
        self.came[epoch] = self.came[epoch].wrapping_add(memory.0);
        self.held += memory;
    }

    /// Takes room, if no more than `most` waits then.
    #[inline]
    fn take(&mut self, memory: Bytes, most: Bytes) -> bool {
        self.words().done.fetch_sub(memory.0, Ordering::SeqCst);
        if self.sum() > most.0 as i64 {
            self.words().done.fetch_add(memory.0, Ordering::SeqCst);
            return false;
        }
        self.held += memory;
        true
    }

    /// So much does not wait any more.
    #[inline]
    fn leave(&mut self, memory: Bytes) {
        self.held = self.held.saturating_sub(memory);
        self.words().done.fetch_add(memory.0, Ordering::Release);
    }

    /// What of a closed epoch has not come is lost. Whatever comes of it from now on is missing
    /// in its next sum.
    fn settle(&mut self, epoch: usize) {
        let words = self.words();
        let sent = words.sent[epoch].load(Ordering::Acquire);
        let lost = sent.wrapping_sub(self.came[epoch]);
        words.done.fetch_add(lost, Ordering::Release);
        self.came[epoch] = sent;
    }

    fn publish(&self, is_limited: bool) {
        let most = if is_limited { self.most.0 } else { 0 };
        self.words().most.store(most, Ordering::Release);
    }
}

/// What one session may have waiting.
#[derive(Debug)]
pub(crate) struct Queue {
    room: Room,
    /// It reserved none: it counts in what all such share, too.
    is_shared: bool,
}

impl Queue {
    /// What waits in it now.
    pub(crate) fn waits(&self) -> Bytes {
        self.room.waits()
    }

    /// What may wait in it.
    pub(crate) const fn most(&self) -> Bytes {
        self.room.most
    }

    /// Packets for which the front door found no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.room.dropped()
    }
}

/// What sessions share, and how the front door knows.
#[derive(Debug)]
pub(crate) struct Rooms {
    table: Option<&'static bpf::Rooms>,
    shared: Room,
    /// What does not wait any more in what is shared, and the front door does not know: it looks
    /// there for each packet, on another processor, and each word to it is a line taken from it.
    unsaid: Bytes,
    /// The last bit is where the front door counts.
    epoch: u32,
    /// When the next one begins.
    next_at: CoarseInstant,
    /// Sessions have claims against each other: the front door looks.
    is_limited: bool,
}

fn words_of(table: Option<&'static bpf::Rooms>, number: usize) -> Words {
    let mapped = table.and_then(|table| table.room(number));
    mapped.map_or_else(|| Words::Own(Box::default()), Words::Mapped)
}

impl Rooms {
    /// `shared`: what may wait in all queues together that nobody reserved.
    pub(crate) fn new(table: Option<&'static bpf::Rooms>, shared: Bytes) -> Self {
        let mut room = Room::begin(words_of(table, ROOM_SHARED), 0);
        room.most = shared;
        Self {
            table,
            shared: room,
            unsaid: Bytes::ZERO,
            epoch: 0,
            next_at: CoarseInstant::ZERO,
            is_limited: false,
        }
    }

    /// Starts loading what says what waits for a session.
    #[inline]
    pub(crate) fn load_ahead(&self, session: SessionId) {
        if let Some(room) = self.table.and_then(|table| table.room(usize::from(session.0))) {
            ahead::load(room.most);
            ahead::load(room.done);
        }
    }

    /// A queue of a session that has none yet.
    pub(crate) fn queue(&self, session: SessionId) -> Queue {
        let words = words_of(self.table, usize::from(session.0));
        Queue { room: Room::begin(words, self.epoch), is_shared: false }
    }

    /// What may wait in a queue, and whether it shares in what nobody reserved.
    pub(crate) fn set(&mut self, queue: &mut Queue, most: Bytes, is_shared: bool) {
        queue.room.most = most;
        // What waits now waits on another account.
        match (queue.is_shared, is_shared) {
            (false, true) => {
                self.shared.words().done.fetch_sub(queue.room.held.0, Ordering::SeqCst);
                self.shared.held += queue.room.held;
            }
            (true, false) => self.shared.leave(queue.room.held),
            _ => {}
        }
        queue.is_shared = is_shared;
        queue.room.words().shared.store(u32::from(is_shared), Ordering::Release);
        queue.room.publish(self.is_limited);
    }

    /// Whether the front door is to look at what waits.
    pub(crate) fn limit<'a>(
        &mut self,
        is_limited: bool,
        queues: impl Iterator<Item = &'a mut Queue>,
    ) {
        if is_limited != self.is_limited {
            self.is_limited = is_limited;
            self.shared.publish(is_limited);
            queues.for_each(|queue| queue.room.publish(is_limited));
        }
    }

    /// Nothing waits in the queue any more, and nothing will.
    pub(crate) fn close(&mut self, mut queue: Queue) {
        queue.room.publish(false);
        let held = queue.room.held;
        self.leave(&mut queue, held);
        self.say_left();
    }

    /// A packet came for which the front door has taken room.
    #[inline]
    pub(crate) fn come(&mut self, queue: &mut Queue, memory: Bytes, epoch: usize) {
        queue.room.come(memory, epoch);
        if queue.is_shared {
            self.shared.come(memory, epoch);
        }
    }

    /// Takes room in a queue, and, if nobody reserved it, in what all such share; so much beyond
    /// both. Whether there was any.
    #[inline]
    pub(crate) fn take(&mut self, queue: &mut Queue, memory: Bytes, beyond: Bytes) -> bool {
        let most = queue.room.most + beyond;
        if !queue.room.take(memory, most) {
            return false;
        }
        if queue.is_shared {
            self.say_left();
        }
        if queue.is_shared && !self.shared.take(memory, self.shared.most + beyond) {
            queue.room.leave(memory);
            return false;
        }
        true
    }

    /// So much does not wait any more.
    #[inline]
    pub(crate) fn leave(&mut self, queue: &mut Queue, memory: Bytes) {
        if memory == Bytes::ZERO {
            return;
        }
        queue.room.leave(memory);
        if queue.is_shared {
            self.unsaid += memory;
            if self.unsaid >= UNSAID_MAX {
                self.say_left();
            }
        }
    }

    /// Says what does not wait any more in what is shared.
    #[inline]
    pub(crate) fn say_left(&mut self) {
        if self.unsaid > Bytes::ZERO {
            self.shared.leave(std::mem::take(&mut self.unsaid));
        }
    }

    /// Whether the front door is to leave what packets begin with for which there is no room.
    pub(crate) fn want_heads(&self, session: SessionId, wanted: bool) {
        if let Some(table) = self.table {
            table.want_heads(usize::from(session.0), wanted);
        }
    }

    /// What such a packet began with, if one has left it.
    pub(crate) fn take_head(&self, session: SessionId) -> Option<bpf::Head> {
        self.table?.take_head(usize::from(session.0))
    }

    /// Whether it is time to [`Rooms::settle`].
    #[inline]
    pub(crate) fn is_epoch_over(&self, now: CoarseInstant) -> bool {
        now >= self.next_at
    }

    /// The one that begins next is counted where the one before the one that runs was.
    pub(crate) const fn closed_epoch(&self) -> usize {
        (self.epoch.wrapping_add(1) & 1) as usize
    }

    /// Once in an epoch: the one before the one that ends is closed for so long that what has
    /// not come of it is lost. Then it is the next.
    pub(crate) fn settle<'a>(
        &mut self,
        now: CoarseInstant,
        queues: impl Iterator<Item = &'a mut Queue>,
    ) {
        if !self.is_epoch_over(now) {
            return;
        }
        self.say_left();
        self.next_at = now + EPOCH;
        self.epoch = self.epoch.wrapping_add(1);
        let (epoch, bit) = (self.epoch, (self.epoch & 1) as usize);
        // First the shared one: what the front door counts anew counts there, too.
        let rooms = [&mut self.shared].into_iter().chain(queues.map(|queue| &mut queue.room));
        for room in rooms {
            room.settle(bit);
            room.words().epoch.store(epoch, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Bytes = Bytes(4096);
    const SHARED: Bytes = Bytes(6 * FRAME.0);

    /// Random numbers (xorshift).
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, most: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % most
        }
    }

    /// As `take_room` in `levels/bpf/c/room.h`: whether there was room, and the epoch.
    fn door(rooms: &Rooms, queue: &Queue, memory: Bytes) -> Option<usize> {
        let (own, shared) = (queue.room.words(), rooms.shared.words());
        let epoch = (own.epoch.load(Ordering::SeqCst) & 1) as usize;
        let put = |room: &bpf::Room<'_>| {
            let load = |word: &AtomicU64| word.load(Ordering::SeqCst);
            room.sent[epoch].fetch_add(memory.0, Ordering::SeqCst);
            let sent = load(room.sent[0]).wrapping_add(load(room.sent[1]));
            let waits = sent.wrapping_sub(load(room.done)).wrapping_sub(load(room.most)) as i64;
            if waits > 0 {
                room.sent[epoch].fetch_sub(memory.0, Ordering::SeqCst);
            }
            waits <= 0
        };
        if !put(&own) {
            return None;
        }
        if own.shared.load(Ordering::SeqCst) != 0 && !put(&shared) {
            own.sent[epoch].fetch_sub(memory.0, Ordering::SeqCst);
            return None;
        }
        Some(epoch)
    }

    fn queues(rooms: &mut Rooms, most: &[(u64, bool)]) -> Vec<Queue> {
        let mut queues: Vec<Queue> =
            (0..most.len()).map(|id| rooms.queue(SessionId(id as u16))).collect();
        for (queue, &(frames, is_shared)) in queues.iter_mut().zip(most) {
            rooms.set(queue, Bytes(frames * FRAME.0), is_shared);
        }
        rooms.limit(true, queues.iter_mut());
        queues
    }

    #[test]
    fn one_queue_takes_what_comes_by_the_front_door_and_what_does_not() {
        let mut rooms = Rooms::new(None, SHARED);
        let mut all = queues(&mut rooms, &[(4, false)]);
        let queue = &mut all[0];
        let epoch = door(&rooms, queue, FRAME).unwrap();
        assert!((0..3).all(|_| rooms.take(queue, FRAME, Bytes::ZERO)));
        assert_eq!(door(&rooms, queue, FRAME), None);
        assert!(!rooms.take(queue, FRAME, Bytes::ZERO));
        assert!(rooms.take(queue, FRAME, FRAME), "so much beyond it");
        rooms.come(queue, FRAME, epoch);
        rooms.leave(queue, Bytes(5 * FRAME.0));
        assert_eq!((queue.waits(), queue.room.held), (Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn the_front_door_hears_late_of_what_left_and_never_too_late() {
        let mut rooms = Rooms::new(None, SHARED);
        let mut all = queues(&mut rooms, &[(8, true), (8, true)]);
        assert!((0..6).all(|_| rooms.take(&mut all[0], FRAME, Bytes::ZERO)));
        (0..4).for_each(|_| rooms.leave(&mut all[0], FRAME));
        assert_eq!((all[0].waits(), rooms.shared.waits()), (Bytes(2 * FRAME.0), SHARED));
        assert_eq!(door(&rooms, &all[1], FRAME), None, "it has not heard of it");
        rooms.say_left();
        assert!(door(&rooms, &all[1], FRAME).is_some());
        rooms.leave(&mut all[0], FRAME);
        assert!(rooms.take(&mut all[1], Bytes(4 * FRAME.0), Bytes::ZERO), "the cell knows");
        assert!(UNSAID_MAX >= Bytes(2 * FRAME.0));
        rooms.leave(&mut all[1], UNSAID_MAX);
        assert_eq!(rooms.unsaid, Bytes::ZERO, "so much is said at once");
    }

    #[test]
    fn what_never_comes_has_no_room_for_longer_than_two_epochs() {
        let mut rooms = Rooms::new(None, SHARED);
        let mut all = queues(&mut rooms, &[(4, false), (8, true)]);
        for at in [0, 1] {
            while door(&rooms, &all[at], FRAME).is_some() {}
        }
        rooms.settle(CoarseInstant::ZERO, all.iter_mut());
        rooms.settle(CoarseInstant::from_millis(EPOCH.0 - 1), all.iter_mut());
        assert_eq!(all[0].waits(), Bytes(4 * FRAME.0), "they may come yet");
        rooms.settle(CoarseInstant::ZERO + EPOCH, all.iter_mut());
        assert_eq!((all[0].waits(), all[1].waits()), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(rooms.shared.waits(), Bytes::ZERO);
        // Two of four come after all: they have room that nobody took, until they are missed.
        for _ in 0..2 {
            rooms.come(&mut all[0], FRAME, 0);
            rooms.leave(&mut all[0], FRAME);
        }
        assert_eq!(all[0].room.sum(), -2 * FRAME.0 as i64);
        (2..4).for_each(|epoch| {
            rooms.settle(CoarseInstant::from_millis(epoch * EPOCH.0), all.iter_mut())
        });
        assert_eq!(all[0].room.sum(), 0);
    }

    #[test]
    fn nobody_is_counted_while_nobody_has_a_claim() {
        let mut rooms = Rooms::new(None, SHARED);
        let mut all = queues(&mut rooms, &[(4, false), (8, true)]);
        let most =
            |all: &[Queue]| [0, 1].map(|at| all[at].room.words().most.load(Ordering::SeqCst));
        assert_eq!(most(&all), [4 * FRAME.0, 8 * FRAME.0]);
        rooms.limit(false, all.iter_mut());
        assert_eq!((most(&all), rooms.shared.words().most.load(Ordering::SeqCst)), ([0, 0], 0));
    }

    /// Packets of four sessions come, are lost, wait and leave, and their queues change: in no
    /// moment more waits than may, and when all is gone nothing does.
    #[test]
    fn nothing_waits_beyond_a_queue_and_nothing_is_forgotten() {
        for seed in 1..200 {
            let mut chance = Chance(seed | 0x9e37_79b9_7f4a_0000);
            let mut rooms = Rooms::new(None, SHARED);
            let mut all = queues(&mut rooms, &[(4, false), (2, false), (8, true), (5, true)]);
            // On their way: whose, and the epoch. In the cell: whose.
            let (mut way, mut here): (Vec<(usize, usize)>, Vec<usize>) = Default::default();
            let mut changed = 0;
            for step in 0..600 {
                let at = chance.below(4) as usize;
                match chance.below(20) {
                    0..6 => way.extend(door(&rooms, &all[at], FRAME).map(|epoch| (at, epoch))),
                    6..9 if rooms.take(&mut all[at], FRAME, Bytes::ZERO) => here.push(at),
                    9..13 if !way.is_empty() => {
                        let (at, epoch) = way.swap_remove(chance.below(way.len() as u64) as usize);
                        rooms.come(&mut all[at], FRAME, epoch);
                        here.push(at);
                    }
                    13..18 if !here.is_empty() => {
                        let at = here.swap_remove(chance.below(here.len() as u64) as usize);
                        rooms.leave(&mut all[at], FRAME);
                    }
                    // Lost.
                    18 if !way.is_empty() => drop(way.pop()),
                    19 if chance.below(20) == 0 && step < 300 => {
                        let is_shared = !all[at].is_shared;
                        rooms.set(&mut all[at], Bytes(4 * FRAME.0), is_shared);
                        changed = step;
                    }
                    _ => {}
                }
                // What was under way when a queue changed is on nobody's account, or on two.
                if changed == 0 {
                    let most = [4, 2, 8, 5];
                    for (queue, most) in all.iter().zip(most) {
                        assert!(
                            queue.room.sum() <= (most * FRAME.0) as i64,
                            "seed {seed}: {queue:?}"
                        );
                    }
                    assert!(rooms.shared.sum() <= SHARED.0 as i64, "seed {seed}");
                }
            }
            for at in here.drain(..) {
                rooms.leave(&mut all[at], FRAME);
            }
            (0..4).for_each(|epoch| {
                rooms.settle(CoarseInstant::from_millis(epoch * EPOCH.0), all.iter_mut())
            });
            let sums: Vec<i64> = all.iter().map(|queue| queue.room.sum()).collect();
            assert_eq!((sums, rooms.shared.sum()), (vec![0; 4], 0), "seed {seed}");
        }
    }
}
