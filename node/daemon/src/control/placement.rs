//! Where services run, and how they come there: from a start, a move, or a new version to the level
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
//! When a lane changes hands is decided by the front door and the cell alone; here it is asked for,
//! and looked at. A service that goes leaves first: if its rules went at once, packets behind them
//! would overtake those that still lie in the cell's rings.

#[cfg(test)]
mod simulation;

use abi::Level;
use node::{Event, Node};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use units::{EntryId, Name, Nanos};

/// A lane that is not idle for so long is counted, and then held.
const MOVE_WITHIN: Nanos = Nanos::from_millis(20);
/// A lane that is held and not idle for so long stays where it is.
const HELD_MAX: Nanos = Nanos::from_millis(100);
/// Longest time for a service that goes to have its packets go plainly; in half of it the count is
/// made anew, as packets may have been lost on their way up. Longer than a move has: the service
/// goes on meanwhile, and a cell that shares its core with a busy machine does not come sooner.
const LEAVE_WITHIN: Nanos = Nanos::from_millis(200);
/// Why a service is where it was moved to.
const MOVED: &str = "it was moved there";
/// Why a service is where its version before was not.
const BACK: &str = "the version before is back";

/// What placing services needs of the data plane.
pub(crate) trait Plane {
    /// Returns why no service can run below user level here.
    fn unsupported(&self) -> Option<&str>;
    /// Returns whether this node lets a service run at a level, else why not; `is_joined` says
    /// that others are behind it.
    fn check_level(&self, level: Level, is_joined: bool) -> Result<(), String>;
    /// Returns true when a service can leave user level.
    fn is_shared(&self, entry: EntryId) -> bool;
    /// Returns the levels that a service does not run at, as far as is known, with the reasons.
    fn refused(&self, entry: EntryId) -> Vec<(Level, String)>;
    /// Returns true when the kernel has taken a service's program for a level.
    fn has_program(&self, entry: EntryId, level: Level) -> bool;
    /// Returns how a lane is; `None` of a service without one.
    fn lane(&self, entry: EntryId, level: Level) -> Option<LaneState>;
    /// Has what would go up in a lane dropped, or not.
    fn hold(&mut self, entry: EntryId, held: bool);
    /// Says whether packets that a service cannot have are dropped.
    fn close(&mut self, entry: EntryId, closed: bool);
    /// Has no program called at nic; false where that cannot be.
    fn call_nothing(&mut self, entry: EntryId) -> bool;
    /// Has a service's program called at nic again.
    fn call_again(&mut self, entry: EntryId);
    /// Puts the next version in a service's place. Returns whether the version before and the new
    /// one can leave user level; `None` when there is no next one.
    fn replaced(&mut self, entry: EntryId) -> Option<(bool, bool)>;
    /// Puts the version before in a service's place. Returns whether the version that failed and
    /// the one before can leave user level; `None` when there is none.
    fn put_back(&mut self, entry: EntryId) -> Option<(bool, bool)>;
    /// Lets go of the version before; returns the number of the spare that it becomes.
    fn forget_before(&mut self, entry: EntryId) -> Option<u32>;
    /// Lets go of the next version.
    fn forget_next(&mut self, entry: EntryId);
}

/// State of a service's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneState {
    /// The next packet meets the module at the level that was asked about.
    pub(crate) is_settled: bool,
    /// Packets that were sent up and have not left user level.
    pub(crate) waiting: u64,
    /// Packets go by user level and cannot come down by themselves.
    pub(crate) is_kept_up: bool,
}

/// What a call of the placement's may look at and act on.
pub(crate) struct Around<'a> {
    /// The node's clock.
    pub(crate) now: Nanos,
    pub(crate) node: &'a Node,
    pub(crate) plane: &'a mut dyn Plane,
    /// A cell runs.
    pub(crate) has_cell: bool,
}

/// What is to be done outside, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Tell the node.
    Event(Event),
    /// Tell the node that something is refused; `is_short` says that it is for want of room.
    Refuse { is_short: bool, event: Event },
    /// Have the cell handle a service's packets at a level from the next one on that can be.
    Target(EntryId, Level),
    /// Have the cell count a service's packets anew.
    Recount(EntryId),
    /// Tell the cell that what it said of a service's version is known.
    VersionKnown(EntryId),
    /// Have the kernel take a program: [`Placement::handle_loaded`] or
    /// [`Placement::handle_not_loaded`].
    Load(EntryId, Level),
    /// Clear the counters of a lane to which no rule leads any more, when no packet is in it.
    ClearLane(EntryId),
    /// Take note of a spare whose programs are called no more, when no packet is in them.
    Spare(u32),
    /// Tell those who wait for a service to move that it does not.
    RefuseMovers(Name, String),
    /// Take note of how many microseconds packets of a service waited for its new version.
    Paused(Name, u64),
    /// Call [`Placement::handle_begin`], when all before is done.
    Begin(EntryId),
    /// Call [`Placement::handle_resume`], when all before is done.
    Resume { entry: EntryId, had_lane: bool },
    /// Go on with the removal of a service: its packets go plainly, or cannot be had to.
    Left(EntryId),
}

/// What is under way with one service.
#[derive(Debug, Default)]
struct Transit {
    /// It runs in the cell, or is about to, and goes to its level next.
    begins: Option<Begins>,
    /// The level for which the kernel looks at a program.
    loads: Option<Level>,
    moves: Option<Move>,
    /// Its lane waits until what came by no lane is gone.
    settles: bool,
    /// Levels of the version that the cell was given for its place.
    replaces: Option<Vec<Level>>,
    leaves: Option<Leaving>,
}

impl Transit {
    const fn is_on_its_way(&self) -> bool {
        self.begins.is_some() || self.moves.is_some() || self.loads.is_some() || self.settles
    }

    const fn is_over(&self) -> bool {
        !self.is_on_its_way() && self.replaces.is_none() && self.leaves.is_none()
    }

    /// Forgets where it was going; what it was to become stays.
    fn halt(&mut self) {
        (self.begins, self.moves, self.loads, self.settles) = (None, None, None, false);
    }
}

/// A service that goes to its first level.
#[derive(Debug)]
struct Begins {
    /// Where to run it, best first.
    levels: Vec<Level>,
    /// What stands against some of them, as far as it was tried.
    refused: Vec<(Level, String)>,
}

/// A service on its way to a level.
#[derive(Debug)]
struct Move {
    level: Level,
    why: String,
    kind: MoveKind,
    since: Nanos,
    /// The cell has set its part.
    targeted: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveKind {
    /// It starts there: nothing has come to it yet.
    Starts,
    /// It was somewhere else.
    Moves,
    /// It is there already as far as the node knows: its packets are to follow.
    Follows,
}

/// How far a move is. Each stage is the answer to the one before having not been enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A service on its way out.
#[derive(Debug)]
struct Leaving {
    since: Nanos,
    /// The cell has set its part.
    targeted: bool,
    recounts: bool,
}

/// Services on their way.
#[derive(Default)]
pub(crate) struct Placement {
    entries: BTreeMap<EntryId, Transit>,
    /// New versions that stay, of which nobody has been told yet.
    kept: BTreeSet<EntryId>,
    /// Services below user level whose packets went by user level at the last look.
    kept_up: BTreeSet<EntryId>,
    actions: VecDeque<Action>,
}

impl Placement {
    /// Returns true when a lane is to be looked at each millisecond.
    pub(crate) fn is_moving(&self) -> bool {
        self.entries.values().any(|it| it.moves.is_some() || it.leaves.is_some())
    }

    /// Returns true when a service begins, moves or waits for a count.
    pub(crate) fn is_on_its_way(&self, entry: EntryId) -> bool {
        self.entries.get(&entry).is_some_and(Transit::is_on_its_way)
    }

    /// Returns true when a service is on its way to a level that it was not said to be at.
    pub(crate) fn is_moved(&self, entry: EntryId) -> bool {
        self.entries.get(&entry).is_some_and(|it| it.moves.is_some() || it.loads.is_some())
    }

    /// Returns true when the kernel looks at a program for its own level.
    pub(crate) fn loads_at_kernel(&self) -> bool {
        self.entries.values().any(|it| it.loads == Some(Level::Kernel))
    }

    /// Takes note that the cell was told to start a service: it is to run at the first of these
    /// levels that it fits. One whose program is there already goes there at once.
    pub(crate) fn handle_given(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        levels: Vec<Level>,
    ) {
        self.transit(entry).begins = Some(Begins { levels, refused: Vec::new() });
        if !around.has_cell {
            return;
        }
        self.look_at_levels(around, entry);
        let level = self.next_level(entry);
        if around.plane.has_program(entry, level) && check(around, entry, level).is_ok() {
            self.go_on(around, entry, level, Ok(()));
        }
    }

    /// Takes note that the cell was given another version for a service's place.
    pub(crate) fn handle_version_given(&mut self, entry: EntryId, levels: Vec<Level>) {
        self.transit(entry).replaces = Some(levels);
    }

    /// Has a service that runs in the cell go to its level; then it takes packets.
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
        self.look_at_levels(around, entry);
        self.try_next_level(around, entry);
    }

    /// Has a service that runs go to a level.
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
            transit.begins = Some(Begins { levels: vec![level], refused: Vec::new() });
            return;
        }
        // A new version that was to go to a level of its own goes here instead. A move that is under
        // way goes on until this one sets out: it may yet be refused.
        (transit.begins, transit.loads) = (None, None);
        match level {
            Level::User => self.set_out(around, entry, level, MOVED.to_owned(), MoveKind::Moves),
            Level::Nic | Level::Kernel | Level::Cluster => self.load(around, entry, level),
        }
        self.settle(entry);
    }

    /// Has the cell take a service to where it is said to be.
    pub(crate) fn handle_stray(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let Some(service) = around.node.service_of(entry) else { return };
        let (level, reason) = (service.level, service.level_reason.clone());
        self.set_out(around, entry, level, reason, MoveKind::Moves);
    }

    /// Goes on with a program that the kernel has taken, or refused.
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
            self.go_on(around, entry, level, result);
            self.settle(entry);
        }
    }

    /// Goes on where the cell has set its part of a move, or could not.
    pub(crate) fn handle_targeted(&mut self, around: &mut Around<'_>, entry: EntryId, done: bool) {
        let Some(transit) = self.entries.get_mut(&entry) else { return };
        match (&mut transit.moves, &mut transit.leaves) {
            (Some(moving), _) => {
                (moving.targeted, moving.since) = (true, around.now);
                match done {
                    true => self.look_at(around, entry),
                    false => {
                        let reason = "a program does not leave its memory".to_owned();
                        self.give_up(around, entry, reason);
                    }
                }
            }
            (None, Some(leaving)) if done => leaving.targeted = true,
            (None, Some(_)) => self.left(entry),
            (None, None) => {}
        }
    }

    /// Goes on with a lane of which every packet from before a recount is in a ring by now, or
    /// lost.
    pub(crate) fn handle_settled(&mut self, around: &mut Around<'_>, entry: EntryId) {
        let Some(transit) = self.entries.get_mut(&entry) else { return };
        if std::mem::take(&mut transit.settles) {
            return self.handle_begin(around, entry);
        }
        if let Some(moving) = &mut transit.moves {
            moving.stage = match moving.stage {
                Stage::Holds | Stage::Held => Stage::Held,
                Stage::Waits | Stage::Counts | Stage::Counted => Stage::Counted,
            };
            moving.since = around.now;
            self.look_at(around, entry);
        }
    }

    /// Goes on with a new version that runs, at user level; nobody is below.
    pub(crate) fn handle_replaced(
        &mut self,
        around: &mut Around<'_>,
        entry: EntryId,
        paused_us: u64,
    ) {
        let transit = self.transit(entry);
        let Some(levels) = transit.replaces.take() else { return self.settle(entry) };
        let Some(service) = around.node.service_of(entry).map(|it| it.name.clone()) else {
            around.plane.forget_next(entry);
            return self.settle(entry);
        };
        self.halt(around, entry);
        let Some((had_lane, has_lane)) = around.plane.replaced(entry) else {
            return self.settle(entry);
        };
        self.transit(entry).begins = Some(Begins { levels, refused: Vec::new() });
        self.act(Action::VersionKnown(entry));
        let message = format!("the service '{service}' was replaced");
        self.act(Action::RefuseMovers(service.clone(), message));
        self.act(Action::Paused(service, paused_us));
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

    /// Forgets a version that did not start: the cell goes on with the one that runs.
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

    /// Lets go of the version before: the new one stays.
    pub(crate) fn handle_kept(&mut self, around: &mut Around<'_>, entry: EntryId) {
        if let Some(spare) = around.plane.forget_before(entry) {
            self.act(Action::Spare(spare));
        }
        self.kept.insert(entry);
    }

    /// Goes on with the version before: it runs again, at user level; nobody is below.
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

    /// Has a version that is back go to its level.
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

    /// Looks at every lane that moves, and every service that goes. Called each millisecond while
    /// there are such ([`Placement::is_moving`]).
    pub(crate) fn handle_tick(&mut self, around: &mut Around<'_>) {
        let entries: Vec<EntryId> = self.entries.keys().copied().collect();
        for entry in entries {
            self.look_at(around, entry);
            self.look_at_leaving(around, entry);
        }
    }

    /// Looks for services below user level whose packets have gone by user level since the last
    /// look and cannot come down again by themselves: some of them were lost, or there are too many.
    /// Their lanes are helped as in a move. Called once a second.
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

    /// Forgets all that was under way in cells: they are gone. Services that leave do so with the
    /// next look.
    pub(crate) fn handle_cells_lost(&mut self) {
        self.kept.clear();
        self.entries.retain(|_, transit| {
            transit.halt();
            transit.replaces = None;
            transit.leaves.is_some()
        });
    }

    /// Has packets of a service go plainly; [`Action::Left`] follows. Returns false when they
    /// cannot be had to.
    pub(crate) fn leave(&mut self, around: &mut Around<'_>, entry: EntryId) -> bool {
        let rests = around.plane.is_shared(entry) && !self.is_on_its_way(entry);
        if !rests || !around.plane.call_nothing(entry) {
            return false;
        }
        let leaving = Leaving { since: around.now, targeted: false, recounts: false };
        self.transit(entry).leaves = Some(leaving);
        self.act(Action::Target(entry, Level::Nic));
        true
    }

    /// Has a service that was to leave and stays go on where it was.
    pub(crate) fn come_back(
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

    /// Forgets where a service was going that has ended.
    pub(crate) fn forget(&mut self, around: &mut Around<'_>, entry: EntryId) {
        self.kept.remove(&entry);
        self.halt(around, entry);
        if let Some(transit) = self.entries.get_mut(&entry) {
            transit.replaces = None;
            self.settle(entry);
        }
    }

    /// Returns the next thing to be done.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front().or_else(|| {
            // When it is where it is to run: a daemon that is late hears of both at once.
            let is_there = |entry: &&EntryId| !self.is_on_its_way(**entry);
            let entry = self.kept.iter().find(is_there).copied()?;
            self.kept.remove(&entry);
            Some(Action::Event(Event::ServiceKept { entry }))
        })
    }

    fn transit(&mut self, entry: EntryId) -> &mut Transit {
        self.entries.entry(entry).or_default()
    }

    /// Forgets where a service was going.
    fn halt(&mut self, around: &mut Around<'_>, entry: EntryId) {
        around.plane.hold(entry, false);
        if let Some(transit) = self.entries.get_mut(&entry) {
            transit.halt();
        }
    }

    /// Forgets a service of which nothing is under way any more.
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

    /// Takes note of what stands against levels of a service that begins, before anything is
    /// tried.
    fn look_at_levels(&mut self, around: &Around<'_>, entry: EntryId) {
        let transit = self.entries.get_mut(&entry);
        let Some(begins) = transit.and_then(|it| it.begins.as_mut()) else { return };
        begins.refused = around.plane.refused(entry);
        if let Some(reason) = around.plane.unsupported() {
            let below = begins.levels.iter().filter(|level| **level < Level::User);
            begins.refused.extend(below.map(|level| (*level, reason.to_owned())));
        }
    }

    /// Returns the first level that nothing stands against.
    fn next_level(&self, entry: EntryId) -> Level {
        let begins = self.entries.get(&entry).and_then(|it| it.begins.as_ref());
        let Some(begins) = begins else { return Level::User };
        let open = |level: &&Level| !begins.refused.iter().any(|(no, _)| no == *level);
        begins.levels.iter().find(open).copied().unwrap_or(Level::User)
    }

    /// Loads the program of the next level that nothing stands against; takes packets at user
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

    /// Has the kernel take a service's program for a level, if it has not yet.
    fn load(&mut self, around: &mut Around<'_>, entry: EntryId, level: Level) {
        if let Err(reason) = check(around, entry, level) {
            return self.go_on(around, entry, level, Err(reason));
        }
        if around.plane.has_program(entry, level) {
            return self.go_on(around, entry, level, Ok(()));
        }
        self.transit(entry).loads = Some(level);
        self.act(Action::Load(entry, level));
    }

    /// Goes on with a service that begins or moves, now that its program is loaded or refused.
    fn go_on(
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

    /// Returns why a service is at this level and not at one before.
    fn why(&self, node: &Node, entry: EntryId, level: Level) -> String {
        let begins = self.entries.get(&entry).and_then(|it| it.begins.as_ref());
        let refused = begins.map_or(&[][..], |begins| &begins.refused);
        let is_asked = |no: &Level| begins.is_some_and(|begins| begins.levels.contains(no));
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

    fn look_at(&mut self, around: &mut Around<'_>, entry: EntryId) {
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
                tracing::warn!(%entry, reason, "its packets still go by user level");
            }
        }
    }

    fn look_at_leaving(&mut self, around: &Around<'_>, entry: EntryId) {
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

/// Returns whether the node lets a service run at a level; else why not.
fn check(around: &Around<'_>, entry: EntryId, level: Level) -> Result<(), String> {
    let service = around.node.service_of(entry);
    let is_joined = service.is_some_and(|service| !service.then.is_empty());
    around.plane.check_level(level, is_joined)
}
