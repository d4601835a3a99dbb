//! Turn of a service's packets, and the work that calls leave.

use super::counters::Ending;
use super::replace::{ReplaceError, ReplaceOutcome};
use super::version::StartFailure;
use super::{Origin, Service};
use crate::datapath::EgressPath;
use crate::sched::pacer::{self, CallState};
use crate::sched::{FILL, Portion};
use engine::{Handled, Trap};
use units::{Bytes, CoarseInstant, EntryId, Nanos};
use xsk::Packet;

/// Work left by a packet's call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Aftermath {
    /// Set if an instance trapped and was replaced.
    pub(crate) trapped: bool,
    /// Set if the instance has emitted frames, events or messages.
    pub(crate) emitted: bool,
    /// Set if the packet goes on to another service ([`super::Service::take_onward`]).
    pub(crate) passed_on: bool,
    /// Set if a packet of a shared lane has left its graph, so that
    /// [`super::Service::publish_departures`] must be called.
    pub(crate) is_leaving: bool,
}

impl Aftermath {
    /// Adds the work left by another packet.
    pub(super) const fn join(&mut self, other: &Self) {
        self.trapped |= other.trapped;
        self.emitted |= other.emitted;
        self.passed_on |= other.passed_on;
        self.is_leaving |= other.is_leaving;
    }
}

/// Events and messages of modules.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Events for the daemon's event stream.
    pub(crate) events: Vec<(EntryId, engine::Event)>,
    /// Messages for the modules before the one that sent them.
    pub(crate) messages: Vec<(EntryId, Vec<u8>)>,
}

/// Trap to report to the daemon.
pub(crate) struct Trapped {
    pub(crate) lane: u32,
    pub(crate) trap: Trap,
}

/// Notices of a service to the daemon, beside replies that it waits for.
pub(crate) struct Notices {
    /// Traps not yet reported to the daemon.
    pub(crate) trapped: Vec<Trapped>,
    /// Number of traps of instances since the start.
    pub(crate) traps: u64,
    /// Outcome of a replacement.
    pub(crate) sequel: Option<ReplaceOutcome>,
}

/// Reply that the daemon waits for.
pub(crate) enum Reply {
    Started(Result<(), StartFailure>),
    Answered(Vec<Option<i32>>),
    /// Time for which no packet was handled, or the cause for which the old version goes on.
    Replaced(Result<Nanos, ReplaceError>),
}

/// Result of a turn.
#[derive(Default)]
pub(crate) struct TurnResult {
    /// Work left by its packets.
    pub(crate) after: Aftermath,
    /// Packets that were handled, and the queue credit that they had.
    pub(crate) handled: u64,
    pub(crate) handled_credit: Bytes,
    /// Services whose lanes counted packets that have left their graphs now, with the epochs.
    pub(crate) departed: Vec<(EntryId, u8)>,
    /// Reply that the daemon waits for.
    pub(crate) reply: Option<Reply>,
    /// Time when its packets were handled, if the clock was read then.
    pub(crate) through_at: Option<Nanos>,
}

impl TurnResult {
    /// Counts a handled packet, and the queue credit that it had.
    #[inline]
    pub(super) fn count(&mut self, credit: Bytes) {
        self.handled += 1;
        self.handled_credit += credit;
    }
}

/// Running turn: the time of the loop, the egress resources, and the result so far.
pub(super) struct Running<'a, 'b> {
    now: CoarseInstant,
    egress_path: &'a mut EgressPath<'b>,
    turn: &'a mut TurnResult,
}

impl<'a, 'b> Running<'a, 'b> {
    /// Begins a turn.
    pub(super) const fn new(
        now: CoarseInstant,
        egress_path: &'a mut EgressPath<'b>,
        turn: &'a mut TurnResult,
    ) -> Self {
        Self { now, egress_path, turn }
    }

    /// Runs the module on packets until all are handled or the turn is over, which suspends its
    /// call. Returns the time it took.
    pub(super) fn run(&mut self, service: &mut Service, lane: usize, portion: Portion) -> Nanos {
        let (session, now) = (service.facts.session, self.now);
        let ran = service.instances.run(lane, portion, |origin| origin.module_meta(session, now));
        // The old version may be back, with another number of lanes.
        while lane < service.instances.lanes()
            && let Some((handled, origin)) = service.instances.lane_mut(lane).next_handled()
        {
            self.finish(service, lane, handled, &origin);
        }
        ran
    }

    /// Runs the module on packets whose calls are too short to be suspended, and need no stack of
    /// their own. Packets are passed one by one, since a batch's lists would be cache misses: with
    /// a thousand services a packet took 2.6 µs by way of them, and takes 2.1 so. Returns the time
    /// it took.
    pub(super) fn run_briefly(
        &mut self,
        service: &mut Service,
        index: usize,
        portion: Portion,
    ) -> Nanos {
        let mut through_at = portion.begin;
        service.instances.pacer().begin(portion.until, CallState::default());
        let is_counted = service.instances.lane(index).next_origin().map(Origin::is_counted);
        for _ in 0..portion.packets {
            let lane = service.instances.lane_mut(index);
            if lane.next_origin().map(Origin::is_counted) != is_counted || lane.instance().is_none()
            {
                break;
            }
            let Some((packet, origin)) = lane.pop_waiting() else { break };
            let meta = origin.module_meta(service.facts.session, self.now);
            let Some(instance) = lane.instance() else { break };
            let handled = instance.handle(packet, &meta);
            self.finish(service, index, handled, &origin);
            through_at = pacer::now();
            if through_at >= portion.until {
                break;
            }
        }
        self.turn.through_at = Some(through_at);
        through_at.saturating_sub(portion.begin)
    }

    /// Prepares the lane for the next packets: takes over what ran in the kernel, or takes the
    /// memory for a packet that the front door has not counted, and that never goes down. Returns
    /// false if a program stays in the memory.
    pub(super) fn may_begin(&self, service: &mut Service, lane: usize) -> bool {
        if !service.instances.lane(lane).next_origin().is_some_and(Origin::is_counted) {
            return service.hold(self.now);
        }
        if service.instances.has_run() {
            service.take_over(self.now);
        }
        true
    }

    /// Drops the next packet: it cannot be handled, since a program does not leave its lane.
    pub(super) fn give_up(&mut self, service: &mut Service, lane: usize) {
        let Some((packet, origin)) = service.instances.lane_mut(lane).pop_waiting() else { return };
        self.turn.count(origin.credit);
        service.output_edges.counters_mut().count_in(&packet);
        self.egress_path.recycle(packet);
        service.output_edges.counters_mut().count(Ending::Down);
        service.through(&origin, self.turn);
    }

    /// Forwards or drops packets of a lane without an instance.
    pub(super) fn bypass(&mut self, service: &mut Service, lane: usize) {
        for _ in 0..FILL {
            let waiting = service.instances.lane_mut(lane).pop_waiting();
            let Some((packet, origin)) = waiting else { return };
            self.turn.count(origin.credit);
            service.output_edges.counters_mut().count_in(&packet);
            let is_closed = service.facts.closed;
            if !service.output_edges.go_without(packet, &origin, is_closed, self.egress_path) {
                service.through(&origin, self.turn);
            }
        }
    }

    /// Applies the module's verdict to a packet.
    fn finish(
        &mut self,
        service: &mut Service,
        lane: usize,
        handled: Handled<Packet>,
        origin: &Origin,
    ) {
        service.output_edges.counters_mut().count_in(&handled.packet);
        self.turn.count(origin.credit);
        let after = service.finish(lane, handled, origin, self.now, self.egress_path);
        self.turn.after.join(&after);
        if !after.passed_on {
            service.through(origin, self.turn);
        }
    }
}
