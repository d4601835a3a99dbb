//! Placement of services on levels: the steps from a start, a move or a new version to the level
//! at which the next packet meets the module.
//!
//! ```text
//!  Started ─▶ begins: the first level whose program the kernel takes
//!                │ Load ─▶ handle_loaded
//!  handle_move ──┤
//!                ▼
//!             Target ─▶ cell ─▶ handle_targeted ─▶ look (each ms): may the next packet go there?
//!                                                    │ yes: ServicePlaced
//!                                                    │ not within 20 ms: Recount ─▶ handle_settled
//!                                                    │ nor after that: hold, Recount ─▶ handle_settled
//!                                                    │ nor then: back, MoveFailed
//!  given ─▶ handle_replaced ─▶ begins ─▶ … ─▶ handle_kept ─▶ ServiceKept
//!               └─▶ handle_put_back: the version before, at its level
//!  leave ─▶ a move to nic, where no program is ─▶ Left
//! ```
//!
//! The front door and the cell alone decide when a lane changes hands; placement requests it, and
//! polls the outcome. A removed service is drained first: if its rules were removed at once, later
//! packets would overtake those that are still in the cell's rings.

#[cfg(test)]
pub(super) mod fake;
mod plane;
#[cfg(test)]
mod simulation;

pub(crate) use plane::{LaneState, Plane};

use abi::Level;
use node::{Event, Node};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::{EntryId, Name, Nanos};

/// Time for a lane to become idle before its packets are recounted, and then held.
const MOVE_WITHIN: Nanos = Nanos::from_millis(20);
/// Time for a held lane to become idle before the move is given up.
const HELD_MAX: Nanos = Nanos::from_millis(100);
/// Longest time for draining a service that is removed; after half of it the count is restarted, as
/// packets may have been lost on their way up. It is longer than that of a move: the service runs
/// meanwhile, and a cell that shares its core with a busy machine needs time.
const LEAVE_WITHIN: Nanos = Nanos::from_millis(200);
/// Reason of a service's level after a move.
const MOVED: &str = "it was moved there";
/// Reason of a service's level after a rollback to the previous version.
const BACK: &str = "the version before is back";

/// Context of a call: time, other owners, and the data plane.
pub(crate) struct Around<'a> {
    /// Time on the node's clock.
    pub(crate) now: Nanos,
    pub(crate) node: &'a Node,
    pub(crate) plane: &'a mut dyn Plane,
    /// True when a cell is running.
    pub(crate) has_cell: bool,
}

/// Effect of placement, to be done in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Report an event to the node.
    Event(Event),
    /// Report a refusal to the node; `is_short` says that it is for lack of resources.
    Refuse { is_short: bool, event: Event },
    /// Have the cell handle a service's packets at a level from the next one on that can be.
    Target(EntryId, Level),
    /// Restart of the cell's count of a service's packets.
    Recount(EntryId),
    /// Acknowledge the cell's change of a service's version.
    VersionKnown(EntryId),
    /// Have the kernel take a program: [`Placement::handle_loaded`] or
    /// [`Placement::handle_not_loaded`].
    Load(EntryId, Level),
    /// Clear the counters of an unused lane, when no packet is in it.
    ClearLane(EntryId),
    /// Mark a reusable instance as ready, when no packet is in its programs.
    Spare(u32),
    /// Refuse the pending requests to move a service.
    RefuseMovers(Name, String),
    /// Record the time for which packets of a service waited for its new version.
    Paused(Name, Nanos),
    /// Call [`Placement::handle_begin`], when all before is done.
    Begin(EntryId),
    /// Call [`Placement::handle_resume`], when all before is done.
    Resume { entry: EntryId, had_lane: bool },
    /// Continue the removal of a service that is drained, or cannot be.
    Left(EntryId),
}

/// Pending steps of one service.
#[derive(Debug, Default)]
struct Transit {
    /// Levels to try for a service that the cell starts.
    begins: Option<Begins>,
    /// Level whose program the kernel's verifier is checking.
    loads: Option<Level>,
    moves: Option<Move>,
    /// True while the lane waits for packets that came by no lane.
    settles: bool,
    /// Level that it was asked to move to meanwhile.
    asked: Option<Level>,
    /// Levels of the next version, which the cell has been given.
    replaces: Option<Candidates>,
    leaves: Option<Draining>,
}

impl Transit {
    const fn is_on_its_way(&self) -> bool {
        self.begins.is_some() || self.moves.is_some() || self.loads.is_some() || self.settles
    }

    const fn is_over(&self) -> bool {
        !self.is_on_its_way() && self.replaces.is_none() && self.leaves.is_none()
    }

    /// Cancels the steps to a level; a pending version stays.
    fn halt(&mut self) {
        (self.begins, self.moves, self.loads) = (None, None, None);
        (self.settles, self.asked) = (false, None);
    }
}

/// Levels that a service or version may run at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// Best first.
    pub(crate) levels: Vec<Level>,
    /// Levels that are impossible, with the reasons, of a service that cannot leave user level. Of
    /// others the data plane knows them ([`Plane::refused`]), some of them later.
    pub(crate) unfit: Vec<(Level, String)>,
}

/// Choice of the first level of a service or version.
#[derive(Debug)]
struct Begins {
    candidates: Candidates,
    /// Levels that were refused so far, with the reasons.
    refused: Vec<(Level, String)>,
}

impl Begins {
    const fn new(candidates: Candidates) -> Self {
        Self { candidates, refused: Vec::new() }
    }
}

/// Move of a service to a level.
#[derive(Debug)]
struct Move {
    level: Level,
    why: String,
    kind: MoveKind,
    since: Nanos,
    /// True once the cell has set its part.
    targeted: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveKind {
    /// Start of a service or version, before its first packet.
    Starts,
    /// Change of level.
    Moves,
    /// Help for packets that stay above the level at which the service already is.
    Follows,
}

/// Stage of a move. Each is entered when the previous one was not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waiting for user level to drain.
    Waits,
    /// Recount of lost packets by the cell.
    Counts,
    /// Waiting again, with the lost packets known.
    Counted,
    /// Lane held: nothing more goes up, and the cell recounts.
    Holds,
    /// Last wait, with the lane held.
    Held,
}

/// Draining of a service that is removed.
#[derive(Debug)]
struct Draining {
    since: Nanos,
    /// True once the cell has set its part.
    targeted: bool,
    recounts: bool,
}

/// Pending steps of all services.
#[derive(Default)]
pub(crate) struct Placement {
    entries: BTreeMap<EntryId, Transit>,
    /// New versions that stay and have not been reported yet.
    kept: BTreeSet<EntryId>,
    /// Services below user level whose packets were handled at user level at the last check.
    kept_up: BTreeSet<EntryId>,
    actions: VecDeque<Action>,
}

impl Placement {
    /// Returns true when lanes have to be polled each millisecond.
    pub(crate) fn is_moving(&self) -> bool {
        self.entries.values().any(|it| it.moves.is_some() || it.leaves.is_some())
    }

    /// Returns true when a service starts, moves or waits for a recount.
    pub(crate) fn is_on_its_way(&self, entry: EntryId) -> bool {
        self.entries.get(&entry).is_some_and(Transit::is_on_its_way)
    }

    /// Returns true when a service is moving to another level.
    pub(crate) fn is_moved(&self, entry: EntryId) -> bool {
        self.entries.get(&entry).is_some_and(|it| it.moves.is_some() || it.loads.is_some())
    }

    /// Returns true when the verifier is checking a program for the kernel level.
    pub(crate) fn loads_at_kernel(&self) -> bool {
        self.entries.values().any(|it| it.loads == Some(Level::Kernel))
    }

    /// Begins placing a service that the cell was asked to start: it shall run at the first of
    /// these levels that it fits. If its program is loaded already, it moves there at once.
    pub(crate) fn handle_given(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        candidates: Candidates,
    ) {
        self.transit(entry).begins = Some(Begins::new(candidates));
        if !around.has_cell {
            return;
        }
        self.poll_levels(around, entry);
        let level = self.next_level(entry);
        if around.plane.has_program(entry, level) && check(around, entry, level).is_ok() {
            self.resume(around, entry, level, Ok(()));
        }
    }

    /// Begins a replacement: the cell has been given another version of a service.
    pub(crate) fn handle_version_given(&mut self, entry: EntryId, candidates: Candidates) {
        self.transit(entry).replaces = Some(candidates);
    }

    /// Moves a service that the cell has started to its first level; then it takes packets.
    pub(crate) fn handle_begin(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let transit = self.entries.get(&entry);
        let is_starting = |moving: &Move| moving.kind == MoveKind::Starts;
        if transit.and_then(|it| it.moves.as_ref()).is_some_and(is_starting) {
            // It is on its way already.
            return;
        }
        if transit.is_none_or(|it| it.begins.is_none()) {
            self.settle(entry);
            return self.event(Event::ServiceStarted { entry });
        }
        self.poll_levels(around, entry);
        self.try_next_level(around, entry);
    }

    /// Moves a running service to a level.
    pub(crate) fn handle_move(&mut self, around: &mut Around<'_>, entry: EntryId, level: Level) {
        if !around.plane.is_shared(entry) {
            let service = around.node.service_of(entry);
            let own = service.map_or("", |service| service.level_reason.as_str());
            let reason = around.plane.unsupported().unwrap_or(own);
            let reason = format!("its memory is not shared with the kernel ({reason})");
            return self.event(Event::MoveFailed { entry, reason });
        }
        let transit = self.transit(entry);
        if transit.settles {
            // It goes there when what came by no lane is gone.
            (transit.begins, transit.asked) = (None, Some(level));
            return;
        }
        // A new version that was to move to a level of its own moves to this one instead. A move
        // under way continues until this one begins, which may yet be refused.
        (transit.begins, transit.loads) = (None, None);
        match level {
            Level::User => self.set_out(around, entry, level, MOVED.to_owned(), MoveKind::Moves),
            Level::Nic | Level::Kernel | Level::Cluster => self.load(around, entry, level),
        }
        self.settle(entry);
    }

    /// Moves a service to the level that the node says it is at.
    pub(crate) fn handle_stray(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let Some(service) = around.node.service_of(entry) else { return };
        let (level, reason) = (service.level, service.level_reason.clone());
        self.set_out(around, entry, level, reason, MoveKind::Moves);
    }

    /// Continues with a program that the kernel has accepted or refused.
    pub(crate) fn handle_loaded(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        level: Level,
        result: Result<(), String>,
    ) {
        let Some(transit) = self.entries.get_mut(&entry) else { return };
        // Asked to be elsewhere meanwhile.
        if transit.loads == Some(level) {
            transit.loads = None;
            self.resume(around, entry, level, result);
            self.settle(entry);
        }
    }

    /// Continues a move after the cell has set its part, or failed to.
    pub(crate) fn handle_targeted(&mut self, around: &mut Around<'_>, entry: EntryId, done: bool) {
        let Some(transit) = self.entries.get_mut(&entry) else { return };
        match (&mut transit.moves, &mut transit.leaves) {
            (Some(moving), _) => {
                (moving.targeted, moving.since) = (true, around.now);
                match done {
                    true => self.poll_entry(around, entry),
                    false => {
                        let reason = "a call of it has not ended in time; try again".to_owned();
                        self.give_up(around, entry, reason);
                    }
                }
            }
            (None, Some(leaving)) if done => leaving.targeted = true,
            (None, Some(_)) => self.left(entry),
            (None, None) => {}
        }
    }

    /// Continues with a lane of which every packet from before a recount is in a ring by now, or
    /// lost.
    pub(crate) fn handle_settled(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let Some(transit) = self.entries.get_mut(&entry) else { return };
        if std::mem::take(&mut transit.settles) {
            return match transit.asked.take() {
                Some(level) => self.handle_move(around, entry, level),
                None => self.handle_begin(around, entry),
            };
        }
        if let Some(moving) = &mut transit.moves {
            moving.stage = match moving.stage {
                Stage::Holds | Stage::Held => Stage::Held,
                Stage::Waits | Stage::Counts | Stage::Counted => Stage::Counted,
            };
            moving.since = around.now;
            self.poll_entry(around, entry);
        }
    }

    /// Continues with a new version, which runs at user level.
    pub(crate) fn handle_replaced(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        paused: Nanos,
    ) {
        let transit = self.transit(entry);
        let Some(candidates) = transit.replaces.take() else { return self.settle(entry) };
        let Some(service) = around.node.service_of(entry).map(|it| it.name.clone()) else {
            around.plane.forget_next(entry);
            return self.settle(entry);
        };
        self.halt(around, entry);
        let Some((had_lane, has_lane)) = around.plane.replaced(entry) else {
            return self.settle(entry);
        };
        self.transit(entry).begins = Some(Begins::new(candidates));
        self.act(Action::VersionKnown(entry));
        let message = format!("the service '{service}' was replaced");
        self.act(Action::RefuseMovers(service.clone(), message));
        self.act(Action::Paused(service, paused));
        self.event(Event::ServiceReplaced { entry });
        if has_lane && !had_lane {
            // What came by no lane is not counted: the lane waits until that is gone.
            let reason = "it is about to go to its level".to_owned();
            self.event(Event::ServicePlaced { entry, level: Level::User, reason, movable: true });
            self.transit(entry).settles = true;
            return self.act(Action::Recount(entry));
        }
        self.act(Action::Begin(entry));
        if had_lane && !has_lane {
            self.act(Action::ClearLane(entry));
        }
    }

    /// Ends a replacement whose version did not start: the cell keeps running the previous one.
    pub(crate) fn handle_replace_failed(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        reason: String,
        is_short: bool,
    ) {
        let replaces = self.entries.get_mut(&entry).and_then(|it| it.replaces.take());
        if replaces.is_some() {
            around.plane.forget_next(entry);
            let event = Event::ReplaceFailed { entry, reason };
            self.act(Action::Refuse { is_short, event });
            self.settle(entry);
        }
    }

    /// Ends a replacement whose version stays, and releases the previous one.
    pub(crate) fn handle_kept(&mut self, around: &mut Around<'_>, entry: EntryId) {
        if let Some(spare) = around.plane.forget_before(entry) {
            self.act(Action::Spare(spare));
        }
        self.kept.insert(entry);
    }

    /// Continues with the previous version, which runs again at user level.
    pub(crate) fn handle_put_back(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        reason: String,
    ) {
        let Some((had_lane, has_lane)) = around.plane.put_back(entry) else { return };
        self.halt(around, entry);
        self.settle(entry);
        self.act(Action::VersionKnown(entry));
        if let Some(service) = around.node.service_of(entry).map(|service| service.name.clone()) {
            let message = format!("the version before of '{service}' is back");
            self.act(Action::RefuseMovers(service, message));
        }
        self.event(Event::ServicePutBack { entry, reason });
        let (level, reason) = (Level::User, BACK.to_owned());
        self.event(Event::ServicePlaced { entry, level, reason, movable: has_lane });
        match has_lane {
            true => self.act(Action::Resume { entry, had_lane }),
            false => self.act(Action::ClearLane(entry)),
        }
    }

    /// Moves the previous version, which runs again, to its level.
    pub(crate) fn handle_resume(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        had_lane: bool,
    ) {
        match around.node.levels_of(entry).first() {
            Some(&level) if had_lane && level != Level::User => {
                self.handle_move(around, entry, level);
            }
            // What came by no lane is not counted: it stays at user level until that is gone.
            _ if !had_lane => self.act(Action::Recount(entry)),
            _ => {}
        }
    }

    /// Polls every lane that moves and every service that drains. Called each millisecond while
    /// there are such ([`Placement::is_moving`]).
    pub(crate) fn handle_tick(&mut self, around: &mut Around<'_>) {
        let entries: Vec<EntryId> = self.entries.keys().copied().collect();
        for entry in entries {
            self.poll_entry(around, entry);
            self.poll_draining(around, entry);
        }
    }

    /// Finds services below user level whose packets have been handled at user level since the last
    /// check and cannot come down by themselves: some of them were lost, or there are too many.
    /// Their lanes are recounted as in a move. Called once a second.
    pub(crate) fn handle_second(&mut self, around: &mut Around<'_>) {
        let below = around.node.services().filter(|service| service.level != Level::User);
        let below: Vec<_> = below.map(|it| (it.entry, it.level, it.level_reason.clone())).collect();
        let mut kept_up = BTreeSet::new();
        for (entry, level, reason) in below {
            let is_taken = self.entries.contains_key(&entry);
            let lane = around.plane.lane(entry, level);
            if is_taken || !lane.is_some_and(|lane| lane.is_kept_up) {
                continue;
            }
            if self.kept_up.contains(&entry) {
                self.set_out(around, entry, level, reason, MoveKind::Follows);
            } else {
                kept_up.insert(entry);
            }
        }
        self.kept_up = kept_up;
    }

    /// Cancels all steps that cells were part of: they are lost. Services that drain end with the
    /// next look.
    pub(crate) fn handle_cells_lost(&mut self) {
        self.kept.clear();
        self.entries.retain(|_, transit| {
            transit.halt();
            transit.replaces = None;
            transit.leaves.is_some()
        });
    }

    /// Drains a service, which is followed by [`Action::Left`]. Returns false when its packets
    /// cannot be had to.
    pub(crate) fn leave(&mut self, around: &mut Around<'_>, entry: EntryId) -> bool {
        let rests = around.plane.is_shared(entry) && !self.is_on_its_way(entry);
        if !rests || !around.plane.call_nothing(entry) {
            return false;
        }
        let leaving = Draining { since: around.now, targeted: false, recounts: false };
        self.transit(entry).leaves = Some(leaving);
        self.act(Action::Target(entry, Level::Nic));
        true
    }

    /// Cancels the draining of a service, which continues at its level.
    pub(crate) fn return_to_user(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        level: Level,
        closed: bool,
    ) {
        around.plane.close(entry, closed);
        around.plane.call_again(entry);
        self.handle_move(around, entry, level);
    }

    /// Cancels all steps of a service that has ended.
    pub(crate) fn forget(&mut self, around: &mut Around<'_>, entry: EntryId) {
        self.kept.remove(&entry);
        self.halt(around, entry);
        if let Some(transit) = self.entries.get_mut(&entry) {
            transit.replaces = None;
            self.settle(entry);
        }
    }

    /// Returns the next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front().or_else(|| {
            // Also waits until the service has arrived at its level: a daemon that is late learns
            // of both at once.
            let is_there = |entry: &&EntryId| !self.is_on_its_way(**entry);
            let entry = self.kept.iter().find(is_there).copied()?;
            self.kept.remove(&entry);
            Some(Action::Event(Event::ServiceKept { entry }))
        })
    }

    fn transit(&mut self, entry: EntryId) -> &mut Transit {
        self.entries.entry(entry).or_default()
    }

    /// Cancels the steps of a service to a level.
    fn halt(&mut self, around: &mut Around<'_>, entry: EntryId) {
        around.plane.hold(entry, false);
        if let Some(transit) = self.entries.get_mut(&entry) {
            transit.halt();
        }
    }

    /// Removes the entry of a service without pending steps.
    fn settle(&mut self, entry: EntryId) {
        if self.entries.get(&entry).is_some_and(Transit::is_over) {
            self.entries.remove(&entry);
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn event(&mut self, event: Event) {
        self.act(Action::Event(event));
    }

    /// Collects what stands against levels of a service that starts, before anything is
    /// tried.
    fn poll_levels(&mut self, around: &Around<'_>, entry: EntryId) {
        let transit = self.entries.get_mut(&entry);
        let Some(begins) = transit.and_then(|it| it.begins.as_mut()) else { return };
        begins.refused = match around.plane.is_shared(entry) {
            true => around.plane.refused(entry),
            false => begins.candidates.unfit.clone(),
        };
        if let Some(reason) = around.plane.unsupported() {
            let below = begins.candidates.levels.iter().filter(|level| **level < Level::User);
            begins.refused.extend(below.map(|level| (*level, reason.to_owned())));
        }
    }

    /// Returns the first level that has not been refused.
    fn next_level(&self, entry: EntryId) -> Level {
        let begins = self.entries.get(&entry).and_then(|it| it.begins.as_ref());
        let Some(begins) = begins else { return Level::User };
        let open = |level: &&Level| !begins.refused.iter().any(|(no, _)| no == *level);
        begins.candidates.levels.iter().find(open).copied().unwrap_or(Level::User)
    }

    /// Loads the program of the next level that has not been refused; takes packets at user
    /// level when there is none.
    fn try_next_level(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let level = self.next_level(entry);
        if level != Level::User {
            return self.load(around, entry, level);
        }
        let reason = self.why(around.node, entry, level);
        self.transit(entry).begins = None;
        self.settle(entry);
        let movable = around.plane.is_shared(entry);
        self.event(Event::ServicePlaced { entry, level, reason, movable });
        self.event(Event::ServiceStarted { entry });
    }

    /// Loads a service's program for a level, unless that is loaded already.
    fn load(&mut self, around: &mut Around<'_>, entry: EntryId, level: Level) {
        if let Err(reason) = check(around, entry, level) {
            return self.resume(around, entry, level, Err(reason));
        }
        if around.plane.has_program(entry, level) {
            return self.resume(around, entry, level, Ok(()));
        }
        self.transit(entry).loads = Some(level);
        self.act(Action::Load(entry, level));
    }

    /// Continues with a service that starts or moves, now that its program is loaded or refused.
    fn resume(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        level: Level,
        result: Result<(), String>,
    ) {
        let starts = self.transit(entry).begins.is_some();
        match result {
            Ok(()) if starts => {
                let why = self.why(around.node, entry, level);
                self.transit(entry).begins = None;
                self.set_out(around, entry, level, why, MoveKind::Starts);
            }
            Ok(()) => self.set_out(around, entry, level, MOVED.to_owned(), MoveKind::Moves),
            Err(reason) if starts => {
                if let Some(begins) = &mut self.transit(entry).begins {
                    begins.refused.push((level, reason));
                }
                self.try_next_level(around, entry);
            }
            Err(reason) => self.event(Event::MoveFailed { entry, reason }),
        }
    }

    /// Returns the reason for a service being at this level and not at a better one.
    fn why(&self, node: &Node, entry: EntryId, level: Level) -> String {
        let begins = self.entries.get(&entry).and_then(|it| it.begins.as_ref());
        let refused = begins.map_or(&[][..], |begins| &begins.refused);
        let is_asked =
            |no: &Level| begins.is_some_and(|begins| begins.candidates.levels.contains(no));
        let reasons: Vec<String> = refused
            .iter()
            .filter(|(no, _)| is_asked(no) && *no < level)
            .map(|(no, why)| format!("not at {no}: {why}"))
            .collect();
        if !reasons.is_empty() {
            return reasons.join("; ");
        }
        let first = node.service_of(entry).and_then(|s| s.module.manifest.levels.first());
        match first {
            Some(first) if *first == level => "the module asks for it first".to_owned(),
            _ => "it was asked for".to_owned(),
        }
    }

    fn set_out(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        level: Level,
        why: String,
        kind: MoveKind,
    ) {
        around.plane.hold(entry, false);
        let (since, targeted, stage) = (around.now, false, Stage::Waits);
        self.transit(entry).moves = Some(Move { level, why, kind, since, targeted, stage });
        self.act(Action::Target(entry, level));
    }

    fn poll_entry(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let moves = self.entries.get_mut(&entry).and_then(|it| it.moves.as_mut());
        let Some(moving) = moves.filter(|moving| moving.targeted) else { return };
        let Some(lane) = around.plane.lane(entry, moving.level) else { return };
        if lane.is_settled {
            return self.arrived(around, entry);
        }
        let elapsed = around.now.saturating_sub(moving.since);
        match moving.stage {
            Stage::Waits if elapsed >= MOVE_WITHIN => {
                moving.stage = Stage::Counts;
                self.act(Action::Recount(entry));
            }
            Stage::Counted if elapsed >= MOVE_WITHIN => {
                moving.stage = Stage::Holds;
                around.plane.hold(entry, true);
                self.act(Action::Recount(entry));
            }
            Stage::Held if elapsed >= HELD_MAX => {
                let reason = format!(
                    "user level was never idle: {} packets were still there {} ms after the last one came",
                    lane.waiting,
                    HELD_MAX.as_millis()
                );
                self.give_up(around, entry, reason);
            }
            _ => {}
        }
    }

    fn take_move(&mut self, around: &mut Around<'_>, entry: EntryId) -> Option<Move> {
        let moving = self.entries.get_mut(&entry)?.moves.take()?;
        around.plane.hold(entry, false);
        self.settle(entry);
        Some(moving)
    }

    fn arrived(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let Some(Move { level, why, kind, .. }) = self.take_move(around, entry) else { return };
        self.event(Event::ServicePlaced { entry, level, reason: why, movable: true });
        if kind == MoveKind::Starts {
            self.event(Event::ServiceStarted { entry });
        }
    }

    fn give_up(&mut self, around: &mut Around<'_>, entry: EntryId, reason: String) {
        let Some(moving) = self.take_move(around, entry) else { return };
        let stays = around.node.service_of(entry).map_or(Level::User, |service| service.level);
        self.act(Action::Target(entry, stays));
        match moving.kind {
            MoveKind::Starts => {
                let (level, reason) = (Level::User, format!("not at {}: {reason}", moving.level));
                self.event(Event::ServicePlaced { entry, level, reason, movable: true });
                self.event(Event::ServiceStarted { entry });
            }
            MoveKind::Moves => self.event(Event::MoveFailed { entry, reason }),
            MoveKind::Follows => {
                tracing::warn!(%entry, reason, "a move is not complete: packets of the service still go through user level");
            }
        }
    }

    fn poll_draining(&mut self, around: &Around<'_>, entry: EntryId) {
        let leaves = self.entries.get_mut(&entry).and_then(|it| it.leaves.as_mut());
        let Some(leaving) = leaves else { return };
        let waited = around.now.saturating_sub(leaving.since);
        let is_there = around.has_cell && around.plane.is_shared(entry);
        let lane = around.plane.lane(entry, Level::Nic);
        let goes_plainly = leaving.targeted && lane.is_none_or(|lane| lane.is_settled);
        if goes_plainly || !is_there || waited >= LEAVE_WITHIN {
            self.left(entry);
        } else if waited >= Nanos(LEAVE_WITHIN.0 / 2)
            && !std::mem::replace(&mut leaving.recounts, true)
        {
            self.act(Action::Recount(entry));
        }
    }

    fn left(&mut self, entry: EntryId) {
        let leaves = self.entries.get_mut(&entry).and_then(|it| it.leaves.take());
        if leaves.is_some() {
            self.settle(entry);
            self.act(Action::Left(entry));
        }
    }
}

/// Checks whether the node lets a service run at a level; else gives the reason.
fn check(around: &Around<'_>, entry: EntryId, level: Level) -> Result<(), String> {
    let service = around.node.service_of(entry);
    let is_joined = service.is_some_and(|service| !service.then.is_empty());
    around.plane.check_level(level, is_joined)
}
