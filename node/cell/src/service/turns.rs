//! A service whose session takes turns with others: its packets wait, and it works while it is
//! its session's turn.
//!
//! ```text
//!   enqueue ─▶ lane: waiting ─ work(until) ─▶ finish ─▶ out, or onward to the next service
//!                      ▲             │ turn over: a call stands still
//!                      └─────────────┘ the next turn goes on with it
//! ```

use super::{Aftermath, Service, Told, Way, module_meta};
use crate::datapath::Exits;
use crate::sched::pacer::{self, CallState};
use crate::sched::{FILL, Portion};
use crate::service::shared::Shared;
use abi::PacketBytes;
use engine::{Engine, Handled};
use units::{Bytes, CoarseInstant, EntryId, Nanos};
use xsk::{FramePool, Packet};

/// What a turn came to.
#[derive(Default)]
pub(crate) struct Turn {
    /// What is to be told and sent.
    pub(crate) after: Aftermath,
    /// Packets that are through, and what they had taken of their session's queue.
    pub(crate) handled: u64,
    pub(crate) handled_room: Bytes,
    /// Services that have counted packets which are through with their graphs now.
    pub(crate) departed: Vec<(EntryId, u8)>,
    /// What the daemon waits for.
    pub(crate) told: Option<Told>,
    /// When its packets were through, if somebody looked at the clock then.
    pub(crate) through_at: Option<Nanos>,
}

impl Service {
    /// Whether nothing waits and nothing stands still.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        !self.held && !self.has_controls() && self.lanes.iter().all(super::Lane::is_idle)
    }

    /// Whether its next turn is over so soon that nobody has to interrupt it: there are packets
    /// only, and its module is brief.
    #[inline]
    pub(crate) fn is_brief(&self) -> bool {
        self.facts.brief && !self.stands()
    }

    /// Starts loading what a turn with a packet looks at behind the service itself, step by step:
    /// each needs what the one before has loaded.
    #[inline]
    pub(crate) fn load_ahead(&self, step: u8) {
        if let Some(lane) = self.lanes.first() {
            lane.load_ahead(step);
        }
    }

    /// Whether a call stands still, a packet that the front door has not counted has the lane, or
    /// something is to be done that comes first.
    pub(crate) fn stands(&self) -> bool {
        self.held || self.is_asked() || self.lanes.iter().any(super::Lane::stands)
    }

    /// The epochs of packets here that the lane of `entry` has counted.
    pub(crate) fn epochs_counted_by(&self, entry: EntryId) -> impl Iterator<Item = u8> {
        let is_own = self.facts.entry == entry;
        self.lanes.iter().flat_map(super::Lane::ways).filter_map(move |way| {
            let counted = way.counted_by == Some(entry) || (is_own && way.batch.is_some());
            counted.then(|| way.meta.epoch())
        })
    }

    /// Has a packet wait for the session's turn; its pool, if that had nothing to do before.
    #[inline]
    pub(crate) fn enqueue(&mut self, packet: Packet, way: Way) -> Option<usize> {
        let index = self.lane_of(&packet, &way.meta);
        let pool = self.pool_of(index);
        let has_come_to_work = !self.wants(pool);
        self.lanes[index].push(packet, way);
        has_come_to_work.then_some(pool)
    }

    /// There was no room for it.
    pub(crate) fn refuse(&mut self, packet: Packet, way: &Way, pool: &mut FramePool) -> Turn {
        let mut turn = Turn::default();
        self.count_in(&packet);
        self.report.drop_queue += 1;
        packet.recycle(pool);
        self.through(way, &mut turn);
        turn
    }

    #[inline]
    pub(super) fn count_in(&mut self, packet: &Packet) {
        self.counts.packets += 1;
        self.counts.bytes += packet.length() as u64;
    }

    /// For how many packets there is time, when each takes so long to be sent, and how long it
    /// takes to send them.
    pub(crate) fn fit(&self, time: Nanos, sending: Nanos) -> (u64, Nanos) {
        let packets = (time.0 / (self.packet.0 + sending.0).max(1)).clamp(1, FILL);
        (packets, Nanos(packets * sending.0))
    }

    /// Works on what waits for a pool, one lane in a turn, as far as its portion goes.
    pub(crate) fn work(
        &mut self,
        engine: &Engine,
        pool: usize,
        portion: Portion,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
    ) -> Turn {
        let step = self.step();
        if step.is_some_and(|step| self.pool_of(step.lane) == pool && self.may_take(step)) {
            return self.answer(engine, portion.until, now);
        }
        let mut turn = Turn::default();
        let Some(index) = self.lane_in_turn(pool, step) else { return turn };
        if self.lanes[index].is_empty() {
            self.go_on_without(index, exits, &mut turn);
            return turn;
        }
        if !self.lanes[index].stands() {
            if !self.may_begin(index, now) {
                self.give_up(index, exits.pool(), &mut turn);
                return turn;
            }
            if self.lanes[index].is_starting() {
                // It trapped below, and starts again first.
                turn.after.trapped = true;
                return turn;
            }
        }
        let ran = if self.facts.brief && !self.lanes[index].stands() {
            self.run_briefly(index, portion, now, exits, &mut turn)
        } else {
            self.run_lane(index, portion, now, exits, &mut turn)
        };
        if let Some(each) = ran.0.checked_div(turn.handled) {
            self.packet = Nanos((7 * self.packet.0 + each) / 8);
        }
        self.report.call_times.spread(self.counts.packets, turn.handled, ran);
        self.settle_hold();
        turn
    }

    /// Has the module work on packets until they are done or the turn is over: then its call stands
    /// still. How long that took.
    fn run_lane(
        &mut self,
        index: usize,
        portion: Portion,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
        turn: &mut Turn,
    ) -> Nanos {
        let session = self.facts.session;
        let lane = &mut self.lanes[index];
        lane.fill(portion.packets, |way| module_meta(&way.meta, session, way.mark, now));
        let begin = pacer::now();
        lane.run(&self.pacer, portion.until);
        let ran = pacer::now().saturating_sub(begin);
        while let Some((handled, way)) =
            self.lanes.get_mut(index).and_then(super::Lane::next_handled)
        {
            self.done_with(index, handled, &way, now, exits, turn);
        }
        ran
    }

    /// The same where no call is long enough to be interrupted: none needs a stack of its own, to
    /// stand still on. Each packet goes in by itself, since the lists of a batch are lines that are
    /// in no cache: with a thousand services a packet took 2.6 µs by way of them, and takes 2.1.
    fn run_briefly(
        &mut self,
        index: usize,
        portion: Portion,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
        turn: &mut Turn,
    ) -> Nanos {
        let mut through_at = portion.begin;
        self.pacer.begin(portion.until, CallState::default());
        let counted = self.lanes[index].next_way().map(|way| way.batch.is_some());
        for _ in 0..portion.packets {
            let lane = &mut self.lanes[index];
            if lane.next_way().map(|way| way.batch.is_some()) != counted
                || lane.instance().is_none()
            {
                break;
            }
            let Some((packet, way)) = lane.pop_waiting() else { break };
            let meta = module_meta(&way.meta, self.facts.session, way.mark, now);
            let Some(instance) = lane.instance() else { break };
            let handled = instance.handle(packet, &meta);
            self.done_with(index, handled, &way, now, exits, turn);
            through_at = pacer::now();
            if through_at >= portion.until {
                break;
            }
        }
        turn.through_at = Some(through_at);
        through_at.saturating_sub(portion.begin)
    }

    /// Does what the module says of a packet.
    fn done_with(
        &mut self,
        index: usize,
        handled: Handled<Packet>,
        way: &Way,
        now: CoarseInstant,
        exits: &mut Exits<'_>,
        turn: &mut Turn,
    ) {
        self.count_in(&handled.packet);
        turn.handled += 1;
        turn.handled_room += way.room;
        let after = self.finish(index, handled, way, now, exits);
        turn.after.join(&after);
        if !after.passed_on {
            self.through(way, turn);
        }
    }

    /// Has the lane ready for the packets that are next: what ran below is taken over, and one
    /// that the front door has not counted never goes down, so that the lane is held for it.
    fn may_begin(&mut self, index: usize, now: CoarseInstant) -> bool {
        let counted = self.lanes[index].next_way().is_some_and(|way| way.batch.is_some());
        if !counted {
            return self.hold(now);
        }
        if self.shared.as_deref().is_some_and(Shared::has_run) {
            self.take_over(now);
        }
        true
    }

    /// The packet that is next cannot be handled: a program does not leave its lane.
    fn give_up(&mut self, index: usize, pool: &mut FramePool, turn: &mut Turn) {
        let Some((packet, way)) = self.lanes[index].pop_waiting() else { return };
        turn.handled += 1;
        turn.handled_room += way.room;
        self.count_in(&packet);
        packet.recycle(pool);
        self.report.drop_down += 1;
        self.through(&way, turn);
    }

    /// What waits for a lane that has no instance does not wait any more.
    fn go_on_without(&mut self, index: usize, exits: &mut Exits<'_>, turn: &mut Turn) {
        for _ in 0..FILL {
            let Some((packet, way)) = self.lanes[index].pop_waiting() else { return };
            turn.handled += 1;
            turn.handled_room += way.room;
            self.count_in(&packet);
            if !self.go_without(packet, &way, exits) {
                self.through(&way, turn);
            }
        }
    }

    /// A packet has left its graph: the lane that has counted it may know.
    fn through(&mut self, way: &Way, turn: &mut Turn) {
        match way.counted_by {
            _ if way.batch.is_some() => turn.after.leaves |= self.leave(&way.meta),
            Some(entry) => turn.departed.push((entry, way.meta.epoch())),
            None => {}
        }
    }

    /// Another service of the graph is done with a packet that this one has counted.
    pub(crate) fn leave_epoch(&mut self, epoch: u8) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.leave(epoch);
        true
    }

    /// What waits for the version before waits for this one.
    pub(super) fn lanes_inherit(&mut self, before: &mut Self) {
        let waiting: Vec<_> =
            before.lanes.iter_mut().flat_map(super::Lane::take_all_waiting).collect();
        for (packet, way) in waiting {
            self.enqueue(packet, way);
        }
        self.onward.append(&mut before.onward);
        self.left.append(&mut before.left);
    }

    /// Ends every lane; gives what waited for them.
    pub(crate) fn dissolve(&mut self, pool: &mut FramePool) -> Vec<(Packet, Way)> {
        self.lanes.iter_mut().flat_map(|lane| lane.dissolve(pool)).collect()
    }
}

impl Aftermath {
    fn join(&mut self, other: &Self) {
        self.trapped |= other.trapped;
        self.emitted |= other.emitted;
        self.passed_on |= other.passed_on;
        self.leaves |= other.leaves;
    }
}
