//! The daemon's one task: what comes in, what is decided, what is done.

mod actions;
pub(crate) mod adopt;
mod completions;
mod join;
mod remember;
mod requests;
mod start;
#[cfg(test)]
pub(crate) mod testbed;
mod timers;

pub(crate) use join::Start;
pub(crate) use start::{Found, adopt_or_start};

use crate::associations::Neighbours;
use crate::cells::AfterReport;
use crate::clock::Clock;
use crate::compilers;
use crate::completion::Completion;
use crate::config::NodeFile;
use crate::control::Control;
use crate::demand::Demand;
use crate::deploy;
pub(crate) use crate::done::Done;
use crate::events::Note;
use crate::observe::Observe;
use crate::observe::view::View;
use crate::record::{Record, Recorder};
use crate::reply::Reply;
use crate::request::Incoming;
use crate::runtime::Runtime;
use crate::systemd::{self, Health, Notifier};
use anyhow::{Context, Result};
use netlink::Monitor;
use std::collections::BTreeSet;
use std::sync::Arc;
use timers::{Timers, Wanted};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Duration;
use trust::SecretKey;
use units::Nanos;

/// Root of the daemon: routes events to owners, and their actions to other owners.
pub(crate) struct Daemon {
    identity: Identity,
    /// Control plane, which decides what runs.
    control: Control,
    /// Execution of services.
    runtime: Runtime,
    /// Fetches of modules that are wanted and not there.
    demand: Demand,
    /// Associations, where the node has any.
    neighbours: Option<Neighbours>,
    /// Events, drops and captures.
    observe: Observe,
    /// Schedule of the record of what runs.
    recorder: Recorder,
    handover: Handover,
    /// Schedule of notifications to systemd.
    notifier: Notifier,
    done: mpsc::UnboundedSender<Done>,
}

/// Identity of the node that a daemon runs.
struct Identity {
    file: Arc<NodeFile>,
    /// Key of the node.
    node_key: Arc<SecretKey>,
    clock: Clock,
}

/// Request to hand the node over to another daemon.
#[derive(Default)]
struct Handover {
    /// True once it has been answered: the daemon ends without taking anything down.
    is_done: bool,
    /// Request that waits for new versions to settle, and its deadline.
    waiting: Option<(Nanos, Reply<api::HandedOver>)>,
}

impl Daemon {
    /// Goes on with what is desired, and with what was adopted. Modules run below user level only
    /// if `bpf` says so.
    ///
    /// # Errors
    /// An address of `[associations]` cannot be served.
    pub(crate) fn begin(&mut self, neighbours: Option<Neighbours>, bpf: bool) -> Result<()> {
        self.neighbours = neighbours;
        self.control.set_now(self.now());
        if !bpf {
            let forbidden = self.control.forbid_below();
            forbidden.map_err(|refusal| anyhow::anyhow!("{}", refusal.message))?;
        }
        self.control.end_unknown_capabilities();
        self.resume();
        compilers::prepare(self.control.state().bpf_now());
        self.control.serve_associations().context("installing rules for associations")
    }

    /// Returns true once the node was handed over to another daemon.
    pub(crate) const fn is_handed_over(&self) -> bool {
        self.handover.is_done
    }

    /// Ends all associations: the next daemon has not their keys.
    pub(crate) fn end_associations(&mut self) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_all(&mut self.control, self.runtime.cells());
        }
    }

    /// Bills usage since the last time, after cells have reported.
    fn bill(&mut self) {
        if !self.runtime.usage().billing().is_writing() {
            self.runtime.after_report(AfterReport::Bill);
        }
    }

    /// Requests the last bill: the node is about to end.
    fn end_billing(&mut self) {
        let now = self.now();
        if self.runtime.billing().begin_end(now) {
            self.runtime.after_report(AfterReport::LastBill);
        }
    }

    /// Sends the ledger what meters show, once that is in the record of what runs.
    fn write_bill(&mut self) {
        remember::at_once(self);
        self.runtime.billing().write();
    }

    /// Returns the time since the node started.
    fn now(&self) -> Nanos {
        self.identity.clock.now()
    }

    /// Returns what there is, for reading.
    fn view(&self) -> View<'_> {
        let Self { identity, control, runtime, neighbours, demand, .. } = self;
        view_of(identity, control, runtime, neighbours.as_ref(), demand)
    }

    /// Returns the observations to be changed, beside what there is, for reading.
    fn observe(&mut self) -> (&mut Observe, View<'_>) {
        let Self { identity, control, runtime, neighbours, demand, observe, .. } = self;
        (observe, view_of(identity, control, runtime, neighbours.as_ref(), demand))
    }

    /// Runs the loop until the node ends or is handed over.
    ///
    /// # Errors
    /// A signal, a device or the front door cannot be watched or written to.
    pub(crate) async fn serve(
        &mut self,
        mut monitor: Monitor,
        mut requests: mpsc::Receiver<Incoming>,
        mut done: mpsc::UnboundedReceiver<Done>,
    ) -> Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let measured = self.done.clone();
        self.runtime.plane().measure_speed(Completion::new(move |speed| {
            // A send fails only if the daemon has ended.
            let _ = measured.send(Done::SpeedMeasured(speed));
        }));
        let bills_every = Duration::from_secs(self.identity.file.ledger_every.0);
        let mut timers = Timers::start(bills_every);
        loop {
            actions::settle(self);
            requests::hand_over_settled(self);
            if self.runtime.usage().billing().has_ended() || self.handover.is_done {
                return Ok(());
            }
            let now = self.now();
            self.notify_systemd(now);
            let sleep_until = |at: Option<Nanos>| after(at.map(|at| at.saturating_sub(now)));
            let resumption = sleep_until(self.control.resumes_at());
            let not_confirmed = sleep_until(self.control.confirmed_until());
            let record_due = sleep_until(self.recorder.due(self.control.is_changing()));
            let timeout = sleep_until(self.control.poll_timeout());
            let end = sleep_until(self.runtime.usage().billing().ends_at());
            let wanted = Wanted::of(self);
            tokio::select! {
                _ = interrupt.recv() => self.end_billing(),
                _ = terminate.recv() => self.end_billing(),
                () = end => return Ok(()),
                change = monitor.next() => {
                    let change = change.context("listening for changes")?;
                    self.control.set_now(self.now());
                    self.runtime.with_plane(&mut self.control, |plane, around| plane.handle_change(around, change))?;
                }
                (cell, message) = self.runtime.receive() => {
                    self.runtime.handle_messages(&mut self.control, cell, message);
                }
                news = Neighbours::news(&mut self.neighbours) => {
                    self.control.set_now(self.now());
                    if let Some(neighbours) = &mut self.neighbours {
                        neighbours.handle_news(&mut self.control, self.runtime.cells(), news);
                    }
                }
                Some(incoming) = requests.recv() => requests::handle(self, incoming, BTreeSet::new()),
                Some(done) = done.recv() => completions::handle(self, done),
                tick = timers.next(wanted) => timers::handle(self, tick)?,
                () = resumption => {
                    self.control.set_now(self.now());
                    if self.control.handle_resumption() {
                        self.resume();
                    }
                }
                () = not_confirmed => {
                    self.control.set_now(self.now());
                    self.control.handle_not_confirmed();
                }
                () = timeout => {
                    self.control.set_now(self.now());
                    self.control.handle_timeout();
                }
                () = record_due => {}
            }
        }
    }

    /// Tells systemd what is due: that the node is ready, its status, that the loop goes on.
    fn notify_systemd(&mut self, now: Nanos) {
        let Self { identity, control, runtime, neighbours, demand, notifier, .. } = self;
        let neighbours = neighbours.as_ref();
        let health = || Health::of(&view_of(identity, control, runtime, neighbours, demand));
        systemd::send(&notifier.handle_turn(now, health));
    }

    /// Ends associations whose capability is no longer valid.
    fn check_associations(&mut self) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_without_right(&mut self.control, self.runtime.cells());
        }
    }

    /// Starts what shall run and does not.
    fn resume(&mut self) {
        self.runtime.renew_capacity(&mut self.control);
        self.control.resume();
    }

    /// Writes down an event.
    fn note(&mut self, note: Note) {
        let note = note.completed(self.control.node());
        self.observe.note(self.now(), note);
    }

    /// Tells cells what captures want of them, if that has changed.
    fn send_captures(&mut self) {
        if let Some(tap) = self.observe.poll_tap() {
            self.runtime.cells().notify_all(&tap, &[]);
        }
    }

    /// Takes everything down: the node ends.
    pub(crate) fn stop(&mut self) {
        systemd::send(&Notifier::stopping());
        deploy::end_spare();
        tracing::info!(node = %self.identity.file.name, "the node stops");
        Record::remove(&self.identity.file.name);
        if let Err(error) = bpf::front_door::remove(&self.identity.file.name) {
            tracing::error!(%error, "the node's objects in the BPF file system were not removed: `tam node --cleanup` with its name does it");
        }
        self.runtime.stop();
    }
}

/// Returns the parts of a daemon that documents and counters are made of, as of now.
fn view_of<'a>(
    identity: &'a Identity,
    control: &'a Control,
    runtime: &'a Runtime,
    neighbours: Option<&'a Neighbours>,
    demand: &'a Demand,
) -> View<'a> {
    View {
        now: identity.clock.now(),
        file: &identity.file,
        node_key: &identity.node_key,
        node: control.node(),
        state: control.state(),
        plane: runtime.plane(),
        cells: runtime.cells(),
        neighbours,
        demand,
        compilers: runtime.compilers(),
        usage: runtime.usage(),
    }
}

/// Sleeps for a time; for ever when there is none.
async fn after(wait: Option<Nanos>) {
    match wait {
        Some(wait) => tokio::time::sleep(Duration::from_nanos(wait.0)).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
