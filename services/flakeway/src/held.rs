//! Frames held until they are due: those of one direction, in a ring of bytes.
//!
//! ```text
//!         head                          tail
//!   ┌──────┼───────┬───────┬─────────────┼──────┐
//!   │ free │ frame │ freed │ frame       │ free │     each after a header of 24 bytes:
//!   └──────┴───────┴───────┴─────────────┴──────┘     due · length · next in its queue · state
//! ```
//!
//! A frame is contiguous, so that it can be sent from its position. Two queues are linked through
//! the ring, of frames on time and of late ones, each ordered by due time. A freed frame that is
//! not at the head is reclaimed when the head reaches it: a late frame blocks space as long as it
//! is held.

/// Size of the ring in bytes, headers included: a third of a second at 100 Mbit/s.
pub const CAPACITY: usize = 4 << 20;
/// Size of a header: due, length, next, state.
const HEADER: usize = 24;
/// Alignment of frames, so that a header is always contiguous.
const STEP: usize = 8;
/// Null position; others are counted from 1. An empty ring is all zeros, so that the module's file
/// need not contain it.
const NONE: u32 = 0;
/// State of freed frames, and of skipped bytes at the ring's end. Other values count copies.
const FREE: u32 = 0;

const _: () = assert!(HEADER % STEP == 0 && CAPACITY % STEP == 0);
const _: () = assert!(CAPACITY < u32::MAX as usize);

/// The ring has no space for the frame.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Queue of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    OnTime,
    Late,
}

#[derive(Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
}

fn at_of(place: u32) -> Option<usize> {
    (place as usize).checked_sub(1)
}

/// Position of a frame that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    order: Order,
    begin: usize,
    end: usize,
}

/// Ring with two queues of frames.
pub struct Held {
    bytes: [u8; CAPACITY],
    head: usize,
    tail: usize,
    /// Bytes from head to tail; distinguishes a full ring from an empty one.
    used: usize,
    queues: [Queue; 2],
}

impl Held {
    pub const EMPTY: Self = Self {
        bytes: [0; CAPACITY],
        head: 0,
        tail: 0,
        used: 0,
        queues: [Queue { first: NONE, last: NONE }; 2],
    };

    pub const fn is_empty(&self) -> bool {
        self.queues[0].first == NONE && self.queues[1].first == NONE
    }

    /// Holds `copies` of a frame until `due`, which must not be before that of the last frame in
    /// this queue. `fill` writes the frame.
    pub fn push<E>(
        &mut self,
        order: Order,
        due: u64,
        copies: u32,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), NoRoom> {
        let size = (HEADER + length).next_multiple_of(STEP);
        let at = self.room(size).ok_or(NoRoom)?;
        let begin = at + HEADER;
        let to = self.bytes.get_mut(begin..begin + length).ok_or(NoRoom)?;
        fill(to).map_err(|_| NoRoom)?;
        self.put_u64(at, due);
        self.put_u32(at + 8, length as u32);
        self.put_u32(at + 12, NONE);
        self.put_u32(at + 16, copies);
        self.tail = (at + size) % CAPACITY;
        self.used += size;
        let place = at as u32 + 1;
        let queue = &mut self.queues[order as usize];
        let last = core::mem::replace(&mut queue.last, place);
        match at_of(last) {
            None => queue.first = place,
            Some(last) => self.put_u32(last + 12, place),
        }
        Ok(())
    }

    /// Reserves contiguous bytes; skips the rest at the ring's end.
    fn room(&mut self, size: usize) -> Option<usize> {
        let to_end = CAPACITY - self.tail;
        if size <= to_end {
            return (self.used + size <= CAPACITY).then_some(self.tail);
        }
        if self.used + to_end + size > CAPACITY {
            return None;
        }
        // Marked like a freed frame; a rest shorter than a header is recognised by its position.
        if to_end >= HEADER {
            self.put_u32(self.tail + 8, (to_end - HEADER) as u32);
            self.put_u32(self.tail + 16, FREE);
        }
        self.used += to_end;
        self.tail = 0;
        Some(0)
    }

    /// Returns the due time of the next frame.
    pub fn next_due(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| self.due_of(queue.first)).min()
    }

    fn due_of(&self, place: u32) -> Option<u64> {
        at_of(place).map(|at| self.u64_at(at))
    }

    /// Returns the first frame that is due by now. It remains until [`Held::sent`].
    pub fn due(&self, now: u64) -> Option<Due> {
        let [on_time, late] = self.queues.map(|queue| self.due_of(queue.first));
        let order = match (on_time, late) {
            (Some(on_time), Some(late)) if late < on_time => Order::Late,
            (None, Some(_)) => Order::Late,
            _ => Order::OnTime,
        };
        let at = at_of(self.queues[order as usize].first).filter(|at| self.u64_at(*at) <= now)?;
        let begin = at + HEADER;
        Some(Due { order, begin, end: begin + self.u32_at(at + 8) as usize })
    }

    /// Returns the bytes of a frame.
    pub fn frame(&self, due: Due) -> &[u8] {
        self.bytes.get(due.begin..due.end).unwrap_or_default()
    }

    /// Handles that one copy was sent, or cannot be; frees the frame with the last one.
    pub fn sent(&mut self, due: Due) {
        let at = due.begin - HEADER;
        let copies = self.u32_at(at + 16).saturating_sub(1);
        self.put_u32(at + 16, copies);
        if copies != FREE {
            return;
        }
        let next = self.u32_at(at + 12);
        let queue = &mut self.queues[due.order as usize];
        queue.first = next;
        if next == NONE {
            queue.last = NONE;
        }
        self.take_back();
    }

    /// Moves the head over freed frames.
    fn take_back(&mut self) {
        while self.used > 0 {
            let to_end = CAPACITY - self.head;
            let size = if to_end < HEADER {
                to_end
            } else if self.u32_at(self.head + 16) == FREE {
                (HEADER + self.u32_at(self.head + 8) as usize).next_multiple_of(STEP)
            } else {
                return;
            };
            self.head = (self.head + size) % CAPACITY;
            self.used -= size;
        }
        // Empty: start over with the whole ring contiguous.
        (self.head, self.tail) = (0, 0);
    }

    fn u32_at(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default())
    }

    fn u64_at(&self, at: usize) -> u64 {
        let bytes = self.bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        if let Some(to) = self.bytes.get_mut(at..at + 4) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        if let Some(to) = self.bytes.get_mut(at..at + 8) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }
}
