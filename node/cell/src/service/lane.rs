//! One lane of a service: its instance, and the packets on their way through it.
//!
//! ```text
//!   waiting ─▶ fill ─▶ the instance's input ─ run ─▶ its output ─▶ next_handled ─▶ Service::finish
//!   (packet, way)        running: their ways, in the same order
//! ```
//!
//! An instance is at rest, or a call of it stands still because its session's turn was over. Then
//! its memory is nobody's: hooks, moves and another version wait until the call has ended. One
//! that is starting takes its turns like a call.

use super::way::Way;
use crate::sched::fifo::Fifo;
use crate::sched::pacer::{CallState, Pacer};
use engine::{
    Call, Done, Ended, Handled, Instance, Kept, Ran, StartError, Started, Starting, Suspended,
};
use std::collections::VecDeque;
use units::{CoarseInstant, Nanos};
use xsk::{FramePool, Packet};

/// See above. What a packet looks at that comes to wait is first.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Lane {
    slot: Slot,
    running: VecDeque<Way>,
    waiting: Fifo<(Packet, Way)>,
    call: CallState,
    /// What stands still, if something does, is a hook.
    in_hook: bool,
    /// When an instance that could not be started is tried again.
    pub(super) restart_at: CoarseInstant,
    /// The module's counters when they were asked for last.
    known_counters: Vec<(String, u64)>,
}

#[derive(Default)]
enum Slot {
    /// None runs: it trapped, and was not started again.
    #[default]
    Empty,
    Rest(Box<Instance<Packet>>),
    /// A call on packets, or a hook.
    Stands(Suspended<Packet>),
    /// One is to start, with what the one before left.
    Due(Option<Kept>),
    Starts(Starting<Packet>),
}

/// What became of a hook in a turn.
pub(super) enum Called {
    /// No instance runs.
    Empty,
    Stands,
    Ended(Ended),
}

impl Lane {
    /// Bytes of a lane up to the end of what waits.
    pub(super) const WAITING_LENGTH: usize = std::mem::offset_of!(Self, call);

    /// With an instance that is to start.
    pub(super) fn new(kept: Option<Kept>) -> Self {
        Self { slot: Slot::Due(kept), ..Self::default() }
    }

    /// The instance, if it is at rest.
    #[inline]
    pub(super) fn instance(&mut self) -> Option<&mut Instance<Packet>> {
        match &mut self.slot {
            Slot::Rest(instance) => Some(instance),
            _ => None,
        }
    }

    /// Starts loading what a packet's call looks at, step by step, if no call stands still.
    #[inline]
    pub(super) fn load_ahead(&self, step: u8) {
        if step == 0
            && let Some((packet, _)) = self.waiting.front()
        {
            packet.load_ahead();
        }
        if let Slot::Rest(instance) = &self.slot {
            instance.load_ahead(step);
        }
    }

    /// Whether there is no instance.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.slot, Slot::Empty)
    }

    /// Whether a call stands still.
    pub(super) const fn stands(&self) -> bool {
        matches!(self.slot, Slot::Stands(_))
    }

    /// Whether that is one on packets.
    pub(super) fn stands_with_packets(&self) -> bool {
        self.stands() && !self.in_hook
    }

    /// Whether an instance is to start, or has begun to.
    pub(super) const fn is_starting(&self) -> bool {
        matches!(self.slot, Slot::Due(_) | Slot::Starts(_))
    }

    /// Whether the instance has no packet, and has left none to be looked at.
    pub(super) fn is_through(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether nothing waits here and nothing stands still.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        !self.stands() && !self.is_starting() && self.waiting.is_empty() && self.running.is_empty()
    }

    /// Bytes of linear memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        match &self.slot {
            Slot::Empty | Slot::Due(_) | Slot::Starts(_) => 0,
            Slot::Rest(instance) => instance.memory_bytes(),
            Slot::Stands(suspended) => suspended.memory_bytes(),
        }
    }

    /// Returns the module's counters as they are, also while a call stands still; those of before
    /// while an instance starts.
    pub(super) fn counters(&mut self) -> &[(String, u64)] {
        match &self.slot {
            Slot::Rest(instance) => self.known_counters = instance.counters(),
            Slot::Stands(suspended) => self.known_counters = suspended.counters(),
            Slot::Empty | Slot::Due(_) | Slot::Starts(_) => {}
        }
        &self.known_counters
    }

    /// Takes its instance away; what waits still waits.
    pub(super) fn clear(&mut self) {
        self.take_back();
        self.slot = Slot::Empty;
        self.call = CallState::default();
    }

    /// Has another instance start.
    pub(super) fn start(&mut self) {
        self.clear();
        self.slot = Slot::Due(None);
    }

    /// Goes on with an instance that is starting, at most until then; `None` when it stands
    /// still. One that does not start leaves none.
    pub(super) fn start_on(
        &mut self,
        pacer: &Pacer,
        until: Nanos,
        make: impl FnOnce(Option<Kept>) -> Result<Starting<Packet>, StartError>,
    ) -> Option<Result<(), StartError>> {
        pacer.begin(until, self.call);
        let starting = match std::mem::take(&mut self.slot) {
            Slot::Due(kept) => make(kept),
            Slot::Starts(starting) => Ok(starting),
            other => {
                self.slot = other;
                return Some(Ok(()));
            }
        };
        let started = match starting.map(Starting::resume) {
            Ok(Started::Suspended(starting)) => {
                self.slot = Slot::Starts(starting);
                self.call = pacer.end(true);
                return None;
            }
            Ok(Started::Ended(started)) => started,
            Err(error) => Err(error),
        };
        self.call = pacer.end(false);
        Some(started.map(|instance| self.slot = Slot::Rest(instance)))
    }

    /// Runs a hook, or goes on with the one that stands still, at most until then.
    pub(super) fn call(&mut self, pacer: &Pacer, until: Nanos, call: &Call) -> Called {
        pacer.begin(until, self.call);
        let ran = match std::mem::take(&mut self.slot) {
            Slot::Rest(instance) => instance.call(call.clone()),
            Slot::Stands(suspended) => suspended.resume(),
            other => {
                self.slot = other;
                return Called::Empty;
            }
        };
        let called = match self.settle(ran) {
            None => Called::Stands,
            Some(Done::Call(ended)) => Called::Ended(ended),
            // Hooks begin when no packet's call stands still.
            Some(Done::Packets) => Called::Empty,
        };
        self.in_hook = self.stands();
        self.call = pacer.end(self.in_hook);
        called
    }

    /// What has not gone into the module waits as before.
    fn take_back(&mut self) {
        let Slot::Rest(instance) = &mut self.slot else { return };
        let mut unhandled: Vec<Packet> = Vec::new();
        while let Some(packet) = instance.take_waiting() {
            unhandled.push(packet);
        }
        let ways = self.running.split_off(self.running.len().saturating_sub(unhandled.len()));
        for one in unhandled.into_iter().zip(ways).rev() {
            self.waiting.push_front(one);
        }
    }

    /// How each packet came that is not through.
    pub(super) fn ways(&self) -> impl Iterator<Item = &Way> {
        self.waiting.iter().map(|(_, way)| way).chain(&self.running)
    }

    pub(super) fn push(&mut self, packet: Packet, way: Way) {
        self.waiting.push_back((packet, way));
    }

    /// How the packet comes that waits longest.
    pub(super) fn next_way(&self) -> Option<&Way> {
        self.waiting.front().map(|(_, way)| way)
    }

    /// The packet that waits longest.
    pub(super) fn pop_waiting(&mut self) -> Option<(Packet, Way)> {
        self.waiting.pop_front()
    }

    /// All packets that wait, in their order; the instance is at rest, or there is none.
    pub(super) fn take_all_waiting(&mut self) -> Fifo<(Packet, Way)> {
        self.take_back();
        std::mem::take(&mut self.waiting)
    }

    /// Gives the instance packets that came alike, at most so many, as `meta` says.
    pub(super) fn fill(&mut self, most: u64, meta: impl Fn(&Way) -> abi::Meta) {
        let Slot::Rest(instance) = &mut self.slot else { return };
        if instance.waiting() > 0 {
            // Of the turn before, which was over.
            return;
        }
        let Some(counted) = self.waiting.front().map(|(_, way)| way.batch.is_some()) else {
            return;
        };
        for _ in 0..most {
            match self.waiting.front() {
                Some((_, way)) if way.batch.is_some() == counted => {}
                _ => return,
            }
            let Some((packet, way)) = self.waiting.pop_front() else { return };
            instance.push(packet, meta(&way));
            self.running.push_back(way);
        }
    }

    /// Runs what it was given, or goes on with what stands still, at most until then.
    pub(super) fn run(&mut self, pacer: &Pacer, until: Nanos) {
        pacer.begin(until, self.call);
        let ran = match std::mem::take(&mut self.slot) {
            Slot::Rest(instance) if instance.waiting() > 0 => instance.run(),
            Slot::Stands(suspended) => suspended.resume(),
            other => {
                self.slot = other;
                return;
            }
        };
        self.settle(ran);
        self.call = pacer.end(self.stands());
    }

    /// Has the instance back, or what stands still; says what was done.
    fn settle(&mut self, ran: Ran<Packet>) -> Option<Done> {
        let (slot, done) = match ran {
            Ran::Rest(instance, done) => (Slot::Rest(instance), Some(done)),
            Ran::Suspended(suspended) => (Slot::Stands(suspended), None),
        };
        self.slot = slot;
        done
    }

    /// A packet that was handled, and how it came.
    pub(super) fn next_handled(&mut self) -> Option<(Handled<Packet>, Way)> {
        let handled = match &mut self.slot {
            Slot::Rest(instance) => instance.pop(),
            Slot::Stands(suspended) => suspended.pop(),
            Slot::Empty | Slot::Due(_) | Slot::Starts(_) => None,
        }?;
        let way = self.running.pop_front()?;
        Some((handled, way))
    }

    /// Ends it: the call that stands still ends here. Its packet is given up with those that
    /// were handled and not looked at, and `given_up` gets how they came; those that wait are the
    /// caller's.
    pub(super) fn dissolve(
        &mut self,
        pool: &mut FramePool,
        given_up: &mut Vec<Way>,
    ) -> Fifo<(Packet, Way)> {
        if let Slot::Stands(suspended) = std::mem::take(&mut self.slot) {
            let ran = suspended.stop();
            self.settle(ran);
        }
        self.take_back();
        while let Some((handled, way)) = self.next_handled() {
            handled.packet.recycle(pool);
            given_up.push(way);
        }
        self.slot = Slot::Empty;
        std::mem::take(&mut self.waiting)
    }
}
