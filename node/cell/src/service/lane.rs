//! Lane of a service: its instance, and the packets under way through it.
//!
//! ```text
//!   waiting ─▶ fill ─▶ the instance's input ─ run ─▶ its output ─▶ next_handled ─▶ Service::finish
//!   (packet, origin)     running: their origins, in the same order
//! ```
//!
//! An instance is idle, or a call of it is suspended because its session's turn was over. Then
//! nothing else may use its memory: hooks, moves and another version wait until the call has ended.
//! A starting instance takes turns like a call.

use super::origin::Origin;
use crate::sched::fifo::Fifo;
use crate::sched::pacer::{CallState, Pacer};
use engine::{
    Call, Done, Ended, Handled, Instance, Kept, Ran, StartError, Started, Starting, Suspended,
};
use std::collections::VecDeque;
use units::{CoarseInstant, Nanos};
use xsk::{FramePool, Packet};

/// Lane of a service. Fields that a packet reads when it is queued come first.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Lane {
    slot: Slot,
    running: VecDeque<Origin>,
    waiting: Fifo<(Packet, Origin)>,
    call: CallState,
    /// Set if the suspended call is a hook.
    in_hook: bool,
    /// Time of the next attempt to start an instance.
    pub(super) restart_at: CoarseInstant,
    /// Counters of the module when they were read last.
    known_counters: Vec<(String, u64)>,
}

#[derive(Default)]
enum Slot {
    /// No instance: it trapped, and has not been started again.
    #[default]
    Empty,
    Idle(Box<Instance<Packet>>),
    /// Suspended call on packets, or suspended hook.
    Suspended(Suspended<Packet>),
    /// Instance to be started, with the state that its predecessor left.
    Pending(Option<Kept>),
    Starting(Starting<Packet>),
}

/// Result of a hook's turn.
pub(super) enum Called {
    /// No instance runs.
    Empty,
    Suspended,
    Ended(Ended),
}

impl Lane {
    /// Bytes of a lane up to the end of the packet queue.
    pub(super) const WAITING_LENGTH: usize = std::mem::offset_of!(Self, call);

    /// Creates a lane whose instance is to be started.
    pub(super) fn new(kept: Option<Kept>) -> Self {
        Self { slot: Slot::Pending(kept), ..Self::default() }
    }

    /// Returns the instance if it is idle.
    #[inline]
    pub(super) fn instance(&mut self) -> Option<&mut Instance<Packet>> {
        match &mut self.slot {
            Slot::Idle(instance) => Some(instance),
            _ => None,
        }
    }

    /// Prefetches in steps what a packet's call reads, unless a call is suspended.
    #[inline]
    pub(super) fn load_ahead(&self, step: u8) {
        if step == 0
            && let Some((packet, _)) = self.waiting.front()
        {
            packet.load_ahead();
        }
        if let Slot::Idle(instance) = &self.slot {
            instance.load_ahead(step);
        }
    }

    /// Returns true if there is no instance.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.slot, Slot::Empty)
    }

    /// Returns true if a call is suspended.
    pub(super) const fn is_suspended(&self) -> bool {
        matches!(self.slot, Slot::Suspended(_))
    }

    /// Returns true if a call on packets is suspended.
    pub(super) fn is_suspended_in_packets(&self) -> bool {
        self.is_suspended() && !self.in_hook
    }

    /// Returns true if an instance is to start, or is starting.
    pub(super) const fn is_starting(&self) -> bool {
        matches!(self.slot, Slot::Pending(_) | Slot::Starting(_))
    }

    /// Returns true if the instance has no packet, and no handled one is left to be processed.
    pub(super) fn is_through(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns true if no packet waits and no call is suspended.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.is_suspended()
            && !self.is_starting()
            && self.waiting.is_empty()
            && self.running.is_empty()
    }

    /// Returns the size of the linear memory in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match &self.slot {
            Slot::Empty | Slot::Pending(_) | Slot::Starting(_) => 0,
            Slot::Idle(instance) => instance.memory_bytes(),
            Slot::Suspended(suspended) => suspended.memory_bytes(),
        }
    }

    /// Returns the module's counters, also while a call is suspended; while an instance starts,
    /// those read last.
    pub(super) fn counters(&mut self) -> &[(String, u64)] {
        match &self.slot {
            Slot::Idle(instance) => self.known_counters = instance.counters(),
            Slot::Suspended(suspended) => self.known_counters = suspended.counters(),
            Slot::Empty | Slot::Pending(_) | Slot::Starting(_) => {}
        }
        &self.known_counters
    }

    /// Removes the instance; queued packets stay queued.
    pub(super) fn clear(&mut self) {
        self.take_back();
        self.slot = Slot::Empty;
        self.call = CallState::default();
    }

    /// Replaces the instance by another, which is to start.
    pub(super) fn start(&mut self) {
        self.clear();
        self.slot = Slot::Pending(None);
    }

    /// Continues the start of an instance until `until`. Returns `None` if it is suspended. After a
    /// failure there is no instance.
    pub(super) fn start_on(
        &mut self,
        pacer: &Pacer,
        until: Nanos,
        make: impl FnOnce(Option<Kept>) -> Result<Starting<Packet>, StartError>,
    ) -> Option<Result<(), StartError>> {
        pacer.begin(until, self.call);
        let starting = match std::mem::take(&mut self.slot) {
            Slot::Pending(kept) => make(kept),
            Slot::Starting(starting) => Ok(starting),
            other => {
                self.slot = other;
                return Some(Ok(()));
            }
        };
        let started = match starting.map(Starting::resume) {
            Ok(Started::Suspended(starting)) => {
                self.slot = Slot::Starting(starting);
                self.call = pacer.end(true);
                return None;
            }
            Ok(Started::Ended(started)) => started,
            Err(error) => Err(error),
        };
        self.call = pacer.end(false);
        Some(started.map(|instance| self.slot = Slot::Idle(instance)))
    }

    /// Runs a hook, or resumes the suspended one, until `until`.
    pub(super) fn call(&mut self, pacer: &Pacer, until: Nanos, call: &Call) -> Called {
        pacer.begin(until, self.call);
        let ran = match std::mem::take(&mut self.slot) {
            Slot::Idle(instance) => instance.call(call.clone()),
            Slot::Suspended(suspended) => suspended.resume(),
            other => {
                self.slot = other;
                return Called::Empty;
            }
        };
        let called = match self.settle(ran) {
            None => Called::Suspended,
            Some(Done::Call(ended)) => Called::Ended(ended),
            // Hooks begin only when no packet's call is suspended.
            Some(Done::Packets) => Called::Empty,
        };
        self.in_hook = self.is_suspended();
        self.call = pacer.end(self.in_hook);
        called
    }

    /// Puts packets that have not gone into the module back into the queue.
    fn take_back(&mut self) {
        let Slot::Idle(instance) = &mut self.slot else { return };
        let mut unhandled: Vec<Packet> = Vec::new();
        while let Some(packet) = instance.take_waiting() {
            unhandled.push(packet);
        }
        let origins = self.running.split_off(self.running.len().saturating_sub(unhandled.len()));
        for one in unhandled.into_iter().zip(origins).rev() {
            self.waiting.push_front(one);
        }
    }

    /// Returns the origins of all packets that are not finished.
    pub(super) fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.waiting.iter().map(|(_, origin)| origin).chain(&self.running)
    }

    pub(super) fn push(&mut self, packet: Packet, origin: Origin) {
        self.waiting.push_back((packet, origin));
    }

    /// Returns the origin of the next packet.
    pub(super) fn next_origin(&self) -> Option<&Origin> {
        self.waiting.front().map(|(_, origin)| origin)
    }

    /// Takes the next packet from the queue.
    pub(super) fn pop_waiting(&mut self) -> Option<(Packet, Origin)> {
        self.waiting.pop_front()
    }

    /// Takes all queued packets in order. No call may be suspended.
    pub(super) fn take_all_waiting(&mut self) -> Fifo<(Packet, Origin)> {
        self.take_back();
        std::mem::take(&mut self.waiting)
    }

    /// Gives the instance up to `most` packets of the same kind (counted by the lane or not), with
    /// the metadata of `meta`.
    pub(super) fn fill(&mut self, most: u64, meta: impl Fn(&Origin) -> abi::Meta) {
        let Slot::Idle(instance) = &mut self.slot else { return };
        if instance.waiting() > 0 {
            // Packets of the previous turn, which ended, are left.
            return;
        }
        let Some(counted) = self.waiting.front().map(|(_, origin)| origin.batch.is_some()) else {
            return;
        };
        for _ in 0..most {
            match self.waiting.front() {
                Some((_, origin)) if origin.batch.is_some() == counted => {}
                _ => return,
            }
            let Some((packet, origin)) = self.waiting.pop_front() else { return };
            instance.push(packet, meta(&origin));
            self.running.push_back(origin);
        }
    }

    /// Runs the packets of the instance, or resumes the suspended call, until `until`.
    pub(super) fn run(&mut self, pacer: &Pacer, until: Nanos) {
        pacer.begin(until, self.call);
        let ran = match std::mem::take(&mut self.slot) {
            Slot::Idle(instance) if instance.waiting() > 0 => instance.run(),
            Slot::Suspended(suspended) => suspended.resume(),
            other => {
                self.slot = other;
                return;
            }
        };
        self.settle(ran);
        self.call = pacer.end(self.is_suspended());
    }

    /// Stores the instance or the suspended call; returns the work done, if it ended.
    fn settle(&mut self, ran: Ran<Packet>) -> Option<Done> {
        let (slot, done) = match ran {
            Ran::Rest(instance, done) => (Slot::Idle(instance), Some(done)),
            Ran::Suspended(suspended) => (Slot::Suspended(suspended), None),
        };
        self.slot = slot;
        done
    }

    /// Takes the next handled packet, with its origin.
    pub(super) fn next_handled(&mut self) -> Option<(Handled<Packet>, Origin)> {
        let handled = match &mut self.slot {
            Slot::Idle(instance) => instance.pop(),
            Slot::Suspended(suspended) => suspended.pop(),
            Slot::Empty | Slot::Pending(_) | Slot::Starting(_) => None,
        }?;
        let origin = self.running.pop_front()?;
        Some((handled, origin))
    }

    /// Ends the lane and its suspended call. The call's packet and the handled ones that were not
    /// processed are dropped, and their origins added to `given_up`; queued packets are returned.
    pub(super) fn dissolve(
        &mut self,
        pool: &mut FramePool,
        given_up: &mut Vec<Origin>,
    ) -> Fifo<(Packet, Origin)> {
        if let Slot::Suspended(suspended) = std::mem::take(&mut self.slot) {
            let ran = suspended.stop();
            self.settle(ran);
        }
        self.take_back();
        while let Some((handled, origin)) = self.next_handled() {
            handled.packet.recycle(pool);
            given_up.push(origin);
        }
        self.slot = Slot::Empty;
        std::mem::take(&mut self.waiting)
    }
}
