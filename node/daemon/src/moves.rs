//! Services on their way from one level to another: what the daemon asks for, and how long it
//! waits for it (the picture is in below.rs).

use crate::below::word_of;
use crate::daemon::{Daemon, Done};
use crate::edit::Edit;
use crate::http::Answer;
use crate::recorded::Recorded;
use crate::reply::Reply;
use crate::state::Facts;
use crate::views::{failed, level, name};
use abi::Level;
use api::SCHEMA_VERSION;
use cell::protocol::ToCell;
use node::{Command, Event};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tokio::time::Duration;
use units::{EntryId, Name};

/// Why a service is where it was moved to.
pub(crate) const MOVED: &str = "it was moved there";
/// A lane that is not idle for so long is counted, and then held.
const MOVE_WITHIN: Duration = Duration::from_millis(20);
/// A lane that is held and not idle for so long stays where it is.
const HELD_MAX: Duration = Duration::from_millis(100);
/// How often a lane that moves is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A service on its way to a level.
pub(crate) struct Move {
    level: Level,
    why: String,
    kind: MoveKind,
    since: Instant,
    /// The cell has set its part.
    targeted: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MoveKind {
    /// It starts there: nothing has come to it yet.
    Starts,
    /// It was somewhere else.
    Moves,
    /// It is there already as far as the node knows: its packets are to follow.
    Follows,
}

/// How far a move is. Each stage is the answer to the one before having not been enough.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// For what is at user level to be gone.
    Waits,
    /// The cell counts what is lost.
    Counts,
    /// What is lost is known; it waits again.
    Counted,
    /// Nothing more goes up; the cell counts once more.
    Holds,
    /// It waits for the last time.
    Held,
}

impl Move {
    /// Whether it is on its way to where it begins.
    pub(crate) fn starts(&self) -> bool {
        self.kind == MoveKind::Starts
    }
}

/// A request that waits for a service to move.
pub(crate) struct Mover {
    pub(crate) reply: Reply<api::Moved>,
    pub(crate) since: Instant,
    pub(crate) from: Level,
    pub(crate) to: Level,
}

/// Requests that wait for services to move, by service; empty when nobody waits.
#[derive(Default)]
pub(crate) struct Movers(BTreeMap<Name, Vec<Mover>>);

impl Movers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, service: Name, mover: Mover) {
        self.0.entry(service).or_default().push(mover);
    }

    /// Takes those of a service that `are` so, the oldest first.
    pub(crate) fn take(&mut self, service: &Name, are: impl Fn(&Mover) -> bool) -> Vec<Mover> {
        let Some(waiting) = self.0.get_mut(service) else { return Vec::new() };
        let taken = waiting.extract_if(.., |mover| are(mover)).collect();
        if waiting.is_empty() {
            self.0.remove(service);
        }
        taken
    }

    /// Takes the one that came last, of those of a service.
    fn pop(&mut self, service: &Name) -> Option<Mover> {
        let newest = self.0.get_mut(service)?.pop();
        if self.0.get(service).is_some_and(Vec::is_empty) {
            self.0.remove(service);
        }
        newest
    }

    /// Takes all of them.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Mover> + use<> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}

impl Daemon {
    /// Asks a service to move; answered when it has, or has not.
    pub(crate) fn start_move(
        &mut self,
        wanted: &str,
        request: &api::MoveRequest,
        reply: Reply<api::Moved>,
    ) {
        let since = Instant::now();
        let asked = name(wanted).and_then(|service| {
            let to = level(&request.level)?;
            // Beforehand: the service may be there before the command returns.
            let from = self.find(wanted)?.level;
            Ok((service, to, from))
        });
        let (service, to, from) = match asked {
            Ok(asked) => asked,
            Err(refusal) => return reply.refuse(refusal),
        };
        self.movers.push(service.clone(), Mover { reply, since, from, to });
        match self.command(Command::Move { service: service.clone(), level: to }) {
            Ok(_) => {
                self.refuse_overtaken(&service, to);
                if from == to {
                    self.moved(&service, to);
                }
            }
            Err(refusal) => {
                let mover = self.movers.pop(&service);
                if let Some(mover) = mover {
                    mover.reply.refuse(refusal);
                }
            }
        }
    }

    /// Tells those who wait that a service is where they wanted it.
    pub(crate) fn moved(&mut self, service: &Name, level: Level) {
        let movers = self.movers.take(service, |_| true);
        let Some(from) = movers.first().map(|mover| mover.from) else { return };
        let service = service.clone();
        let answers: Vec<_> = movers
            .into_iter()
            .map(|mover| {
                let answer = api::Moved {
                    schema_version: SCHEMA_VERSION,
                    service: service.to_string(),
                    from: mover.from.name().to_owned(),
                    level: level.name().to_owned(),
                    took_us: u64::try_from(mover.since.elapsed().as_micros()).unwrap_or(u64::MAX),
                };
                (mover, answer)
            })
            .collect();
        let facts = Facts::of(format!("move {service} to {level}"));
        let edit = Edit::SetLevel(service.clone(), level);
        self.record(facts, edit, Recorded::Moved { service, from, answers });
    }

    /// Answers requests for a move, or has the service go back as a start would find it there.
    pub(crate) fn move_recorded(
        &mut self,
        service: Name,
        from: Level,
        answers: Vec<(Mover, api::Moved)>,
        written: Answer<()>,
    ) {
        if written.is_err() {
            // It is gone if that is refused.
            let _ = self.command(Command::Move { service, level: from });
        }
        for (mover, answer) in answers {
            mover.reply.answer(written.clone().map(|()| answer));
        }
    }

    /// Tells those who wait for another level that a later request has overtaken theirs.
    pub(crate) fn refuse_overtaken(&mut self, service: &Name, level: Level) {
        for mover in self.movers.take(service, |mover| mover.to != level) {
            let message = format!("a later request moves the service '{service}' to {level}");
            mover.reply.refuse(failed(message));
        }
    }

    /// Tells those who wait that it did not move.
    pub(crate) fn refuse_movers(&mut self, service: &Name, message: &str) {
        for mover in self.movers.take(service, |_| true) {
            mover.reply.refuse(failed(message));
        }
    }

    pub(crate) fn set_out(&mut self, entry: EntryId, level: Level, why: String, kind: MoveKind) {
        let (since, targeted, stage) = (Instant::now(), false, Stage::Waits);
        self.hold_lane(entry, false);
        self.moves.insert(entry, Move { level, why, kind, since, targeted, stage });
        self.cells.tell(entry, &ToCell::Target(entry, word_of(level)));
    }

    /// The cell has set its part of a move.
    pub(crate) fn targeted(&mut self, entry: EntryId, done: bool) {
        let Some(moving) = self.moves.get_mut(&entry) else {
            return self.leaving_targeted(entry, done);
        };
        moving.targeted = true;
        moving.since = Instant::now();
        match done {
            true => self.look_at(entry),
            false => self.give_up_move(entry, "a program does not leave its memory".to_owned()),
        }
    }

    /// Looks at every lane that moves.
    pub(crate) fn look_at_moves(&mut self) {
        let entries: Vec<EntryId> = self.moves.keys().copied().collect();
        entries.into_iter().for_each(|entry| self.look_at(entry));
    }

    fn look_at(&mut self, entry: EntryId) {
        let Some(moving) = self.moves.get_mut(&entry).filter(|moving| moving.targeted) else {
            return;
        };
        let Some(lane) = self.front.lane(entry) else { return };
        let waiting = lane.sent_up().wrapping_sub(lane.left());
        if lane.settled(word_of(moving.level)) {
            return self.arrived(entry);
        }
        let elapsed = moving.since.elapsed();
        match moving.stage {
            Stage::Waits if elapsed >= MOVE_WITHIN => {
                moving.stage = Stage::Counts;
                self.cells.tell(entry, &ToCell::Recount(entry));
            }
            Stage::Counted if elapsed >= MOVE_WITHIN => {
                moving.stage = Stage::Holds;
                lane.set_held(true);
                self.cells.tell(entry, &ToCell::Recount(entry));
            }
            Stage::Held if elapsed >= HELD_MAX => {
                let reason = format!(
                    "user level was never idle: {waiting} packets were still there {} ms after the last one came",
                    HELD_MAX.as_millis()
                );
                self.give_up_move(entry, reason);
            }
            _ => {}
        }
    }

    fn arrived(&mut self, entry: EntryId) {
        let Some(moving) = self.moves.remove(&entry) else { return };
        self.hold_lane(entry, false);
        let (level, reason) = (moving.level, moving.why);
        self.event(Event::ServicePlaced { entry, level, reason, movable: true });
        if moving.kind == MoveKind::Starts {
            self.event(Event::ServiceStarted { entry });
        }
    }

    fn give_up_move(&mut self, entry: EntryId, reason: String) {
        let Some(moving) = self.moves.remove(&entry) else { return };
        self.hold_lane(entry, false);
        let stays = self.node.service_of(entry).map_or(Level::User, |service| service.level);
        self.cells.tell(entry, &ToCell::Target(entry, word_of(stays)));
        match moving.kind {
            MoveKind::Starts => {
                let (level, reason) = (Level::User, format!("not at {}: {reason}", moving.level));
                self.event(Event::ServicePlaced { entry, level, reason, movable: true });
                self.event(Event::ServiceStarted { entry });
            }
            MoveKind::Moves => self.event(Event::MoveFailed { entry, reason }),
            MoveKind::Follows => {
                tracing::warn!(%entry, reason, "its packets still go by user level");
            }
        }
    }

    /// Has what would go up dropped, or not.
    pub(crate) fn hold_lane(&self, entry: EntryId, held: bool) {
        if let Some(lane) = self.front.lane(entry) {
            lane.set_held(held);
        }
    }

    /// Services below user level whose packets have gone by user level since the last look and
    /// cannot come down again by themselves: some of them were lost, or there are too many.
    /// Their lanes are helped as in a move.
    pub(crate) fn help_down(&mut self) {
        let below = self.node.services().filter(|service| service.level != Level::User);
        let below: Vec<_> = below.map(|it| (it.entry, it.level, it.level_reason.clone())).collect();
        let mut kept_up = BTreeSet::new();
        for (entry, level, reason) in below {
            let is_taken = self.is_on_its_way(entry)
                || self.replacing.contains_key(&entry)
                || self.leaving.contains_key(&entry);
            if is_taken || !self.front.lane(entry).is_some_and(|it| it.is_kept_up()) {
                continue;
            }
            if self.kept_up.contains(&entry) {
                self.set_out(entry, level, reason, MoveKind::Follows);
            } else {
                kept_up.insert(entry);
            }
        }
        self.kept_up = kept_up;
    }

    /// Packets carry the new count: what came before will be in a ring soon, or is lost.
    pub(crate) fn recounting(&self, entry: EntryId) {
        self.when_packets_have_landed(Done::Landed(entry));
    }

    /// Tells this when no packet is in the front door or a program any more that is there now.
    pub(crate) fn when_packets_have_landed(&self, then: Done) {
        let done = self.done.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = bpf::front_door::wait_for_packets_in_flight() {
                tracing::error!(%error, "packets in flight were not waited for");
                return;
            }
            // The daemon is gone when nobody receives: nothing is left to do.
            let _ = done.send(then);
        });
    }

    pub(crate) fn settled(&mut self, entry: EntryId) {
        if self.settling.remove(&entry) {
            return self.begin(entry);
        }
        if let Some(moving) = self.moves.get_mut(&entry) {
            moving.stage = match moving.stage {
                Stage::Holds | Stage::Held => Stage::Held,
                Stage::Waits | Stage::Counts | Stage::Counted => Stage::Counted,
            };
            moving.since = Instant::now();
            self.look_at(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_moves_that_were_refused_overtaken_or_made() {
        let [a, b] = ["a", "b"].map(|name| Name::new(name).unwrap());
        let mut movers = Movers::default();
        let mover = |to| {
            let (reply, _) = Reply::pair();
            Mover { reply, since: Instant::now(), from: Level::User, to }
        };
        movers.push(a.clone(), mover(Level::Nic));
        assert!(movers.pop(&b).is_none() && movers.pop(&a).is_some());
        assert!(movers.is_empty(), "refused");
        movers.push(a.clone(), mover(Level::Nic));
        movers.push(a.clone(), mover(Level::Kernel));
        assert_eq!(movers.take(&a, |mover| mover.to != Level::Kernel).len(), 1);
        assert!(!movers.is_empty(), "one is on its way");
        assert_eq!(movers.take(&a, |_| true).len(), 1);
        assert!(movers.is_empty(), "made");
        movers.push(b, mover(Level::Nic));
        assert_eq!(movers.take_all().count(), 1);
        assert!(movers.is_empty(), "the cell is lost");
    }
}
