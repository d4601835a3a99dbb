//! What the node wants done, done: its effects, in their order.

use crate::daemon::Daemon;
use crate::replace::way_of;
use cell::protocol::{SessionFacts, ToCell};
use node::Effect;

impl Daemon {
    /// Does everything that waits to be done, and writes down what runs then, or soon.
    pub(crate) fn do_effects(&mut self) {
        self.do_waiting();
        self.settle_promises();
        self.remember_soon();
    }

    /// What follows from a command: whoever gave it hears next what became of it. In the middle of
    /// a change of thousands of sessions who pays from which account is worked out for all of them
    /// together, before anything that the cell does for them is heard.
    pub(crate) fn do_effects_of_command(&mut self) {
        self.do_waiting();
        if self.work.is_none() {
            self.settle_promises();
        }
        self.remember_in_time();
    }

    /// Says to the front door who pays from which account, if that has changed.
    pub(crate) fn settle_promises(&mut self) {
        if std::mem::take(&mut self.accounts_unsettled) {
            self.settle_accounts();
            self.settle_lines();
        }
    }

    fn do_waiting(&mut self) {
        self.close_ports();
        self.do_placements();
        while let Some(effect) = self.node.poll_effect() {
            match effect {
                Effect::StartCell { restarts } => self.start_cell(restarts),
                Effect::StartService { start, .. } => self.start_service(start, None),
                Effect::ReplaceService { start, way } => {
                    // The next daemon must not take the new version for the old one.
                    self.remember();
                    self.start_service(start, Some(way_of(way)));
                }
                Effect::MoveService { entry, level } => {
                    self.place(|it, around| it.handle_move(around, entry, level));
                }
                Effect::SetEdges { entry, edges } => {
                    if let Some(lane) = self.plane.front.lane(entry) {
                        lane.set_edges(edges);
                    }
                    self.cells.tell(entry, &ToCell::Edges(entry, edges));
                }
                Effect::SetClosed { entry, closed } => {
                    if let Some(lane) = self.plane.front.lane(entry) {
                        lane.set_closed(closed);
                    }
                    self.cells.tell(entry, &ToCell::Closed(entry, closed));
                }
                Effect::StopService { entry } => self.stop_service(entry),
                Effect::SetSession { session, reservation } => {
                    // The cell keeps nothing that the next daemon would not know of.
                    self.remember();
                    let facts = SessionFacts { id: session, reservation };
                    self.cells.tell_all(&ToCell::Session(Box::new(facts)), &[]);
                    self.accounts_unsettled = true;
                }
                Effect::RemoveSession { session } => {
                    self.forget_session(session);
                    self.accounts_unsettled = true;
                }
                Effect::ClearRuleCounters { rule } => {
                    if let Err(error) = self.plane.front.clear_rule_stats(rule) {
                        tracing::error!(%rule, %error, "a rule's counters were not cleared");
                    }
                }
                Effect::InstallRules { rules, .. } => {
                    if let Err(error) = self.plane.front.install(&rules) {
                        tracing::error!(%error, "the rules were not installed");
                    }
                    self.tell_rules();
                }
                Effect::Report(notice) => {
                    // Nobody is told what the next daemon would not know.
                    self.remember_in_time();
                    self.report(notice);
                }
            }
        }
    }
}
