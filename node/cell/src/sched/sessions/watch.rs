//! Services that are told of their session's queue: when it gets long and short again, and what
//! packets began with for which there was no room.

use crate::sched::rooms::{Queue, Rooms};
use engine::{QueueEvent, QueueWatch};
use std::collections::VecDeque;
use std::rc::Rc;
use units::{EntryId, SessionId};

/// Services of a session that are told of its queue: each is looked at for each of its packets.
pub(super) const WATCHERS_MAX: usize = 8;
/// What happened to queues and was not told yet: more than a round of the loop brings.
pub(super) const EVENTS_MAX: usize = 64;

/// What happened to queues, and who is to be told.
pub(super) type Events = VecDeque<(EntryId, QueueEvent)>;

struct Watcher {
    entry: EntryId,
    watch: QueueWatch,
    is_long: bool,
}

/// Those of one session.
#[derive(Default)]
pub(super) struct Watchers(Vec<Watcher>);

impl Watchers {
    #[inline]
    pub(super) fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// One more, if there is room.
    pub(super) fn add(&mut self, entry: EntryId, watch: QueueWatch) {
        if self.0.len() < WATCHERS_MAX {
            self.0.push(Watcher { entry, watch, is_long: false });
        }
    }

    pub(super) fn remove(&mut self, entry: EntryId) {
        self.0.retain(|watcher| watcher.entry != entry);
    }

    /// Finds what happened to the queue, if somebody wants to know.
    #[inline]
    pub(super) fn look(
        &mut self,
        queue: &Queue,
        rooms: &Rooms,
        id: SessionId,
        events: &mut Events,
    ) {
        if self.are_there() {
            self.find(queue, rooms, id, events);
        }
    }

    #[cold]
    fn find(&mut self, queue: &Queue, rooms: &Rooms, id: SessionId, events: &mut Events) {
        if let Some(head) = rooms.take_head(id) {
            self.tell_dropped(head.bytes(), events);
        }
        let (waits, most) = (queue.waits(), queue.most());
        let kibibytes = u32::try_from(waits.0 >> 10).unwrap_or(u32::MAX);
        for watcher in &mut self.0 {
            let bound = |percent: u32| most.0.saturating_mul(u64::from(percent)) / 100;
            let event = match watcher.is_long {
                false if waits.0 > bound(watcher.watch.above) => QueueEvent::Long(kibibytes),
                true if waits.0 <= bound(watcher.watch.below) => QueueEvent::Short(kibibytes),
                _ => continue,
            };
            // It is found again later if there is no room now.
            if events.len() < EVENTS_MAX {
                watcher.is_long = !watcher.is_long;
                events.push_back((watcher.entry, event));
            }
        }
    }

    /// There was no room for a packet that begins so.
    pub(super) fn tell_dropped(&self, head: &[u8], events: &mut Events) {
        let head: Rc<[u8]> = head.into();
        let room = EVENTS_MAX.saturating_sub(events.len());
        let told = |watcher: &Watcher| (watcher.entry, QueueEvent::Dropped(Rc::clone(&head)));
        events.extend(self.0.iter().take(room).map(told));
    }
}
