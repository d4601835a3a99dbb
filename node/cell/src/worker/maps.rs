//! Maps of the front door that the cell reads or writes without a system call.

use super::Cell;
use crate::datapath::asker::Asker;
use crate::datapath::facts::Facts;
use crate::protocol::ToCell;
use crate::sched::pacer;
use anyhow::{Context, Result};
use bpf::{Answers, Lanes, Lines, Rooms, RuleFacts};
use rustix::fd::OwnedFd;

impl Cell {
    /// Maps what a message brought.
    pub(super) fn take_map(&mut self, message: &ToCell, mut fds: Vec<OwnedFd>) -> Result<()> {
        let fd = fds.pop().with_context(|| format!("{message:?} came without its map"))?;
        match message {
            // They stay for as long as the process: each service has its own in hand, and each
            // session.
            ToCell::Lanes => {
                let lanes = Lanes::given(&fd).context("mapping the lanes")?;
                self.services.set_lanes(Box::leak(Box::new(lanes)));
            }
            ToCell::Rooms => {
                let rooms = Rooms::given(&fd).context("mapping what may wait for sessions")?;
                self.sessions.share(pacer::now(), Box::leak(Box::new(rooms)));
            }
            ToCell::Lines => {
                let lines = Lines::given(&fd).context("mapping the accounts of ports' shares")?;
                self.path.egress.pay_from(lines);
            }
            ToCell::Answers => {
                let device = fds.pop().context("Answers came without its device")?;
                let answers = Answers::given(&fd).context("mapping the answers")?;
                self.path.egress.ask(Asker::new(answers, device));
            }
            _ => {
                let facts = RuleFacts::given(&fd).context("mapping what rules say")?;
                self.path.rules = Some(Facts::Map(facts));
            }
        }
        Ok(())
    }
}
