//! Prefetch of what the next packets and turns read.
//!
//! With thousands of sessions nothing of a service is in a cache when its packet arrives, and what
//! a turn reads is found by following pointers: a processor waits for each. Here a few dozen chains
//! are followed side by side, step by step, so that it waits for all of them together.
//!
//! ```text
//!   arriving packets:  metadata ─▶ service ─▶ session, queue ─▶ virtual processor
//!   next turns:        virtual processor ─▶ session ─▶ service ─▶ instance ─▶ store ─▶ memory
//! ```
//!
//! Nothing here changes any state. The predictions may be wrong: a session may wake up, or a
//! service may be removed.

use super::BATCH;
use crate::sched::sessions::Sessions;
use crate::service::Service;
use crate::service::table::Services;
use bpf_maps::PacketMeta;
use session::executor::{ProcessorId, UPCOMING_MAX};
use std::collections::VecDeque;
use units::EntryId;
use xsk::Packet;

/// Least number of ready tasks for prefetching to pay: fewer are all in the caches.
const SESSIONS_MIN: usize = UPCOMING_MAX;

/// Number of turns that have been prefetched and not run.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    /// Turns to come for which everything has been prefetched.
    turns: usize,
}

impl Prefetch {
    /// Prefetches what queueing a batch of packets reads.
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

    /// Prefetches what the next turns read, once those prefetched before have run.
    #[inline]
    pub(crate) fn handle_turn(&mut self, services: &Services, sessions: &Sessions) {
        if self.turns == 0 && is_worthwhile(sessions) {
            self.turns = load_for_turns(services, sessions);
        }
    }

    /// Counts a turn that was run.
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
        if let Some(slot) = services.slot(*entry) {
            Service::load_for_packet(slot);
        }
    }
    let of_batch = || entries.iter().take(batch.len()).filter_map(|&entry| services.get(entry));
    of_batch().for_each(|service| sessions.load_queue(service.session()));
    of_batch().for_each(|service| sessions.load_wake(service.session()));
}

/// Prefetches what the next turns read; returns their number.
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
        if let Some(slot) = services.slot(*entry) {
            Service::load_for_turn(slot);
        }
    }
    for step in 0..3 {
        let coming = entries[..found].iter().filter_map(|&entry| services.get(entry));
        coming.for_each(|service| service.load_ahead(step));
    }
    found
}
