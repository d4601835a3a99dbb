//! Loading ahead what the next packets and turns look at.
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

use super::{BATCH, Cell};
use crate::service::Service;
use bpf_maps::PacketMeta;
use session::executor::{ProcessorId, UPCOMING_MAX};
use std::collections::VecDeque;
use units::EntryId;
use xsk::Packet;

/// With fewer sessions that have something to do, all of them are in the caches.
const SESSIONS_MIN: usize = UPCOMING_MAX;

impl Cell {
    /// Of packets that have just come, what putting each in its session's queue looks at.
    pub(super) fn load_for_packets(&self, batch: &VecDeque<Packet>) {
        batch.iter().for_each(Packet::load_ahead);
        let mut entries = [EntryId(u16::MAX); BATCH];
        for (entry, packet) in entries.iter_mut().zip(batch) {
            let Some(meta) = packet.metadata::<{ size_of::<PacketMeta>() }>() else { continue };
            *entry = EntryId(bytemuck::cast::<_, PacketMeta>(meta).entry);
            if let Some(place) = self.services.place(*entry) {
                Service::load_for_packet(place);
            }
        }
        let services =
            || entries.iter().take(batch.len()).filter_map(|&entry| self.services.get(entry));
        services().for_each(|service| self.sessions.load_queue(service.facts.session));
        services().for_each(|service| self.sessions.load_wake(service.facts.session));
    }

    /// What the next turns look at; how many those are.
    pub(super) fn load_for_turns(&self) -> usize {
        let mut next = [ProcessorId::default(); UPCOMING_MAX];
        let found = self.sessions.upcoming(&mut next);
        let next = &next[..found];
        next.iter().for_each(|&processor| self.sessions.load_owner(processor));
        next.iter().for_each(|&processor| self.sessions.load_turn(processor));
        let mut entries = [EntryId(u16::MAX); UPCOMING_MAX];
        for (entry, &processor) in entries.iter_mut().zip(next) {
            let Some(task) = self.sessions.task_of(processor) else { continue };
            *entry = task.entry;
            if let Some(place) = self.services.place(*entry) {
                Service::load_for_turn(place);
            }
        }
        for step in 0..3 {
            let services = entries[..found].iter().filter_map(|&entry| self.services.get(entry));
            services.for_each(|service| service.load_ahead(step));
        }
        found
    }

    /// Whether that is worth its time.
    #[inline]
    pub(super) fn loads_ahead(&self) -> bool {
        self.sessions.tasks() >= SESSIONS_MIN
    }
}
