//! Prefetch of what the next packets and turns look at.
//!
//! With thousands of sessions nothing of a service is in a cache when its packet comes, and what a
//! turn looks at is found by following pointers: a processor waits for each. Here a few dozen are
//! followed side by side, step by step, so that it waits for all of them together.
//!
//! ```text
//!   packets that came:  metadata ─▶ service ─▶ session, queue ─▶ virtual processor
//!   turns that come:    virtual processor ─▶ session ─▶ service ─▶ instance ─▶ store ─▶ memory
//! ```
//!
//! Nothing here changes anything. What is found may be wrong: somebody wakes up, or a service goes.

use super::BATCH;
use crate::sched::sessions::Sessions;
use crate::service::Service;
use crate::service::table::Services;
use bpf_maps::PacketMeta;
use session::executor::{ProcessorId, UPCOMING_MAX};
use std::collections::VecDeque;
use units::EntryId;
use xsk::Packet;

/// Least number of sessions with something to do for prefetching to pay: fewer are all in the
/// caches.
const SESSIONS_MIN: usize = UPCOMING_MAX;

/// Counter of turns that have been prefetched.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    /// Turns that come for which everything has been loaded.
    turns: usize,
}

impl Prefetch {
    /// Loads what putting packets that have just come in their sessions' queues looks at.
    #[inline]
    pub(crate) fn handle_batch(
        &self,
        batch: &VecDeque<Packet>,
        services: &Services,
        sessions: &Sessions,
    ) {
        if is_worthwhile(sessions) {
            load_for_packets(batch, services, sessions);
        }
    }

    /// Loads what the next turns look at, when nothing loaded is left.
    #[inline]
    pub(crate) fn handle_turn(&mut self, services: &Services, sessions: &Sessions) {
        if self.turns == 0 && is_worthwhile(sessions) {
            self.turns = load_for_turns(services, sessions);
        }
    }

    /// Notes that a turn was taken.
    pub(crate) const fn turn_taken(&mut self) {
        self.turns = self.turns.saturating_sub(1);
    }
}

#[inline]
fn is_worthwhile(sessions: &Sessions) -> bool {
    sessions.tasks() >= SESSIONS_MIN
}

fn load_for_packets(batch: &VecDeque<Packet>, services: &Services, sessions: &Sessions) {
    batch.iter().for_each(Packet::load_ahead);
    let mut entries = [EntryId(u16::MAX); BATCH];
    for (entry, packet) in entries.iter_mut().zip(batch) {
        let Some(meta) = packet.metadata::<{ size_of::<PacketMeta>() }>() else { continue };
        *entry = EntryId(bytemuck::cast::<_, PacketMeta>(meta).entry);
        if let Some(place) = services.place(*entry) {
            Service::load_for_packet(place);
        }
    }
    let of_batch = || entries.iter().take(batch.len()).filter_map(|&entry| services.get(entry));
    of_batch().for_each(|service| sessions.load_queue(service.session()));
    of_batch().for_each(|service| sessions.load_wake(service.session()));
}

/// Loads what the next turns look at; returns how many those are.
fn load_for_turns(services: &Services, sessions: &Sessions) -> usize {
    let mut next = [ProcessorId::default(); UPCOMING_MAX];
    let found = sessions.upcoming(&mut next);
    let next = &next[..found];
    next.iter().for_each(|&processor| sessions.load_owner(processor));
    next.iter().for_each(|&processor| sessions.load_turn(processor));
    let mut entries = [EntryId(u16::MAX); UPCOMING_MAX];
    for (entry, &processor) in entries.iter_mut().zip(next) {
        let Some(task) = sessions.task_of(processor) else { continue };
        *entry = task.entry;
        if let Some(place) = services.place(*entry) {
            Service::load_for_turn(place);
        }
    }
    for step in 0..3 {
        let coming = entries[..found].iter().filter_map(|&entry| services.get(entry));
        coming.for_each(|service| service.load_ahead(step));
    }
    found
}
