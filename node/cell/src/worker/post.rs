//! What modules leave beside their verdicts: frames, events, messages, traps.
//!
//! ```text
//!   instance ── emitted ──┐           ┌─▶ frames: out of a port
//!                         ├─▶ Outbox ─┼─▶ events: the daemon, and no storm of them
//!   ring of programs ─────┘           └─▶ messages: a queue, then on_message of those before
//! ```

use super::{BATCH, Cell};
use crate::protocol::FromCell;
use crate::service::letter::Letter;
use crate::service::{Control, Outbox, Sequel, Service};
use std::rc::Rc;
use units::{CoarseInstant, EntryId};

/// Messages between modules that wait for their turn: one batch of packets with the four that
/// each call may send.
const MESSAGES_WAITING_MAX: usize = 4 * BATCH;

impl Cell {
    /// Sends what the service's lanes emitted, and passes on what they tell others.
    pub(super) fn emit(&mut self, entry: EntryId) {
        let service = self.services.get_mut(entry);
        let Some(service) = service else { return };
        let mut outbox = Outbox::default();
        if let Some(tap) = &mut self.path.tap {
            tap.forget();
        }
        let mut exits = self.path.exits(&mut self.sessions, service.facts.session);
        service.take_emitted(&self.umem, &mut exits, &mut outbox);
        self.post(outbox);
    }

    /// The same of what programs below left.
    pub(super) fn take_records(&mut self) {
        let mut outbox = Outbox::default();
        if let Some(tap) = &mut self.path.tap {
            tap.forget();
        }
        for at in 0..self.services.with_lanes().len() {
            let entry = self.services.with_lanes()[at];
            let Some(service) = self.services.get_mut(entry) else { continue };
            let mut exits = self.path.exits(&mut self.sessions, service.facts.session);
            service.take_records(&self.umem, &mut exits, &mut outbox);
        }
        self.post(outbox);
    }

    fn post(&mut self, outbox: Outbox) {
        for (entry, event) in outbox.events {
            self.link.notice(&FromCell::Event(entry, event.code, event.data));
        }
        let room = MESSAGES_WAITING_MAX - self.messages.len();
        let left_out = outbox.messages.len().saturating_sub(room) as u64;
        self.letters.dropped.set(self.letters.dropped.get() + left_out);
        self.messages.extend(outbox.messages.into_iter().take(room));
    }

    /// Gives modules what those after them sent; at most as many as there are now, for who
    /// gets one may send another.
    pub(super) fn deliver_messages(&mut self, now: CoarseInstant) {
        for _ in 0..self.messages.len() {
            let Some((from, message)) = self.messages.pop_front() else { return };
            let before = self.services.before(from);
            self.report.messages_unheard += u64::from(before.is_empty());
            let message: Rc<[u8]> = message.into();
            for entry in before {
                let letter = Letter::of_module(Rc::clone(&message), &self.letters);
                self.ask(entry, Control::Message(letter), now);
            }
        }
    }

    /// Gives a service a message of the daemon's, which waits for the answers.
    pub(super) fn give_message(&mut self, entry: EntryId, message: Vec<u8>, now: CoarseInstant) {
        let lanes = self.services.get_mut(entry).map_or(0, |service| service.lane_count());
        let letter = Letter::of_daemon(message.into());
        if !self.ask(entry, Control::Message(letter), now) {
            let _ = self.link.send(&FromCell::Answered(entry, vec![None; lanes]));
        }
    }

    /// Tells of the service's traps and of what became of its replacement, and has lanes that could not be started again wait for
    /// their turn in `tick`.
    pub(super) fn tell_traps(&mut self, entry: EntryId) {
        let untold = self.services.get_mut(entry).map_or_else(Vec::new, Service::take_untold);
        let traps = self.services.get_mut(entry).map_or(0, |service| service.traps());
        for trapped in untold {
            self.link.notice(&FromCell::Trapped(
                entry,
                trapped.lane,
                trapped.trap.to_string(),
                traps,
            ));
            self.services.look_at(entry, CoarseInstant::ZERO);
        }
        let message = match self.services.get_mut(entry).and_then(Service::take_sequel) {
            Some(Sequel::Kept) => FromCell::Kept(entry),
            Some(Sequel::PutBack(reason)) => FromCell::PutBack(entry, reason),
            None => return,
        };
        // A daemon that does not hear it is gone, which is noticed elsewhere.
        let _ = self.link.send(&message);
    }

    /// Gives the daemon what a capture asked for; what does not get through is counted.
    pub(super) fn tell_tapped(&mut self) {
        let Some(tap) = &mut self.path.tap else { return };
        let (tapped, mut lost) = tap.take();
        for one in tapped {
            let told = self.link.try_send(&FromCell::Tapped(Box::new(one)));
            lost += u64::from(!told.unwrap_or_default());
        }
        self.report.tapped_lost += lost;
    }
}
