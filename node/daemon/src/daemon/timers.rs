//! Periodic work of the daemon: each tick goes to the owner whose work is due.

use super::Daemon;
use crate::cells::AfterReport;
use crate::dataplane::{budgets, kernel_settings};
use crate::observe::{capture, drops};
use crate::sessions;
use anyhow::Result;
use tokio::time::{Duration, Interval, MissedTickBehavior, interval};

/// Period of the heartbeat to the front door; the lease is ten times as long on the fastest clock.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Period of polling lanes that move.
const LANES_EVERY: Duration = Duration::from_millis(1);
/// Period of checks on which nothing depends at once: ports that are away, rights, demand.
const CHECKS_EVERY: Duration = Duration::from_secs(1);

/// Work that is due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tick {
    Heartbeat,
    /// Comparison of all drop counters with their previous values.
    Drops,
    /// Poll of settings for which the kernel sends no notifications.
    Settings,
    /// Checks on which nothing depends at once.
    Checks,
    /// Look at what sessions use.
    Use,
    Bill,
    /// Look at the budgets of services below user level.
    Budgets,
    /// Poll of lanes that move.
    Lanes,
    Captures,
}

/// Timers of the daemon. No other event restarts them; ticks that were missed come as one.
pub(super) struct Timers {
    heartbeat: Interval,
    drops: Interval,
    settings: Interval,
    checks: Interval,
    uses: Interval,
    bills: Interval,
    budgets: Interval,
    lanes: Interval,
    captures: Interval,
}

/// Ticks that come only while there is something to do by them.
pub(super) struct Wanted {
    budgets: bool,
    lanes: bool,
    captures: bool,
}

impl Wanted {
    /// Returns what a daemon has to do at present.
    pub(super) fn of(daemon: &Daemon) -> Self {
        Self {
            budgets: daemon.runtime.plane().has_budgets(daemon.control.node()),
            lanes: daemon.runtime.is_moving(),
            captures: daemon.observe.is_capturing(),
        }
    }
}

impl Timers {
    /// Starts the timers; bills are made in this period.
    pub(super) fn start(bills_every: Duration) -> Self {
        let every = |period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            ticks
        };
        Self {
            heartbeat: every(HEARTBEAT),
            drops: every(drops::LOOK_EVERY),
            settings: every(kernel_settings::LOOK),
            checks: every(CHECKS_EVERY),
            uses: every(sessions::LOOK_EVERY),
            bills: every(bills_every),
            budgets: every(budgets::LOOK_EVERY),
            lanes: every(LANES_EVERY),
            captures: every(capture::LOOK_EVERY),
        }
    }

    /// Returns the next tick. Dropping this future loses nothing.
    pub(super) async fn next(&mut self, wanted: Wanted) -> Tick {
        tokio::select! {
            _ = self.heartbeat.tick() => Tick::Heartbeat,
            _ = self.drops.tick() => Tick::Drops,
            _ = self.settings.tick() => Tick::Settings,
            _ = self.checks.tick() => Tick::Checks,
            _ = self.uses.tick() => Tick::Use,
            _ = self.bills.tick() => Tick::Bill,
            _ = self.budgets.tick(), if wanted.budgets => Tick::Budgets,
            _ = self.lanes.tick(), if wanted.lanes => Tick::Lanes,
            _ = self.captures.tick(), if wanted.captures => Tick::Captures,
        }
    }
}

/// Does the work that is due.
///
/// # Errors
/// The kernel does not describe its devices, or the front door cannot be written to.
pub(super) fn handle(daemon: &mut Daemon, tick: Tick) -> Result<()> {
    let now = daemon.now();
    daemon.control.set_now(now);
    let Daemon { control, runtime, observe, .. } = daemon;
    match tick {
        Tick::Heartbeat => {
            runtime.plane().heartbeat()?;
            observe.handle_heartbeat(now);
        }
        Tick::Drops => {
            if observe.start_drops() {
                runtime.after_report(AfterReport::CountDrops);
            }
        }
        Tick::Settings => {
            runtime.with_plane(control, |plane, around| plane.handle_usage(around))?;
        }
        Tick::Checks => check(daemon)?,
        Tick::Use => runtime.poll_usage(control),
        Tick::Bill => {
            daemon.bill();
            daemon.runtime.after_report(AfterReport::EndIdleCalls);
        }
        Tick::Budgets => runtime.with_plane(control, |plane, around| {
            plane.services().poll_budgets(around.node, now);
        }),
        Tick::Lanes => runtime.place(control, |it, around| it.handle_tick(around)),
        Tick::Captures => {
            let (observe, view) = daemon.observe();
            observe.handle_capture_tick(&view);
            daemon.send_captures();
        }
    }
    Ok(())
}

/// Does the checks on which nothing depends at once.
fn check(daemon: &mut Daemon) -> Result<()> {
    let Daemon { control, runtime, .. } = daemon;
    runtime.with_plane(control, |plane, around| plane.handle_second(around))?;
    runtime.watch_cells(control);
    runtime.place(control, |it, around| it.handle_second(around));
    control.handle_second();
    daemon.check_associations();
    daemon.demand.handle_second();
    Ok(())
}
