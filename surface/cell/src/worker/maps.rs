//! Maps of the front door that the cell reads or writes without a system call.

use super::Cell;
use crate::facts::Facts;
use crate::pacer;
use crate::protocol::ToCell;
use anyhow::{Context, Result};
use bpf::{Lanes, Lines, Rooms, RuleFacts};
use rustix::fd::OwnedFd;

impl Cell {
    /// Maps what a message brought.
    pub(super) fn take_map(&mut self, message: &ToCell, fd: Option<OwnedFd>) -> Result<()> {
        let fd = fd.with_context(|| format!("{message:?} came without its map"))?;
        match message {
            // They stay for as long as the process: each service has its own in hand, and each
            // session.
            ToCell::Lanes => {
                let lanes = Lanes::given(&fd).context("mapping the lanes")?;
                self.lanes = Some(Box::leak(Box::new(lanes)));
            }
            ToCell::Rooms => {
                let rooms = Rooms::given(&fd).context("mapping what may wait for sessions")?;
                self.sessions.share(pacer::now(), Box::leak(Box::new(rooms)));
            }
            ToCell::Lines => {
                let lines = Lines::given(&fd).context("mapping the accounts of ports' shares")?;
                self.egress.pay_from(lines);
            }
            _ => {
                let facts = RuleFacts::given(&fd).context("mapping what rules say")?;
                self.rules = Some(Facts::Map(facts));
            }
        }
        Ok(())
    }
}
