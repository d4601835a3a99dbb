//! Services that watch their session's queue: notifications when it gets long or short, and when a
//! packet is dropped for lack of credit, with its first bytes.

use crate::sched::queue_credits::{Queue, QueueCredits};
use engine::{QueueEvent, QueueWatch};
use std::collections::VecDeque;
use std::rc::Rc;
use units::{EntryId, SessionId};

/// Services of a session that may watch its queue: each is checked for each of its packets.
pub(super) const WATCHERS_MAX: usize = 8;
/// Pending notifications: more than a round of the loop brings.
pub(super) const EVENTS_MAX: usize = 64;

/// Pending notifications, with the service of each.
pub(super) type Events = VecDeque<(EntryId, QueueEvent)>;

struct Watcher {
    entry: EntryId,
    watch: QueueWatch,
    is_long: bool,
}

/// Watching services of one session.
#[derive(Default)]
pub(super) struct Watchers(Vec<Watcher>);

impl Watchers {
    #[inline]
    pub(super) fn has_watchers(&self) -> bool {
        !self.0.is_empty()
    }

    /// Adds a service, unless the limit is reached.
    pub(super) fn add(&mut self, entry: EntryId, watch: QueueWatch) {
        if self.0.len() < WATCHERS_MAX {
            self.0.push(Watcher { entry, watch, is_long: false });
        }
    }

    pub(super) fn remove(&mut self, entry: EntryId) {
        self.0.retain(|watcher| watcher.entry != entry);
    }

    /// Checks a queue for events, if any service watches it.
    #[inline]
    pub(super) fn check(
        &mut self,
        queue: &Queue,
        credits: &QueueCredits,
        id: SessionId,
        events: &mut Events,
    ) {
        if self.has_watchers() {
            self.find(queue, credits, id, events);
        }
    }

    #[cold]
    fn find(&mut self, queue: &Queue, credits: &QueueCredits, id: SessionId, events: &mut Events) {
        if let Some(head) = credits.take_head(id) {
            self.on_dropped(head.bytes(), events);
        }
        let (queued, most) = (queue.queued(), queue.most());
        let kibibytes = u32::try_from(queued.0 >> 10).unwrap_or(u32::MAX);
        for watcher in &mut self.0 {
            let bound = |percent: u32| most.0.saturating_mul(u64::from(percent)) / 100;
            let event = match watcher.is_long {
                false if queued.0 > bound(watcher.watch.above) => QueueEvent::Long(kibibytes),
                true if queued.0 <= bound(watcher.watch.below) => QueueEvent::Short(kibibytes),
                _ => continue,
            };
            // Without space, the event is found again later.
            if events.len() < EVENTS_MAX {
                watcher.is_long = !watcher.is_long;
                events.push_back((watcher.entry, event));
            }
        }
    }

    /// Notifies all watching services of a dropped packet that begins with `head`.
    pub(super) fn on_dropped(&self, head: &[u8], events: &mut Events) {
        let head: Rc<[u8]> = head.into();
        let room = EVENTS_MAX.saturating_sub(events.len());
        let reported = |watcher: &Watcher| (watcher.entry, QueueEvent::Dropped(Rc::clone(&head)));
        events.extend(self.0.iter().take(room).map(reported));
    }
}
