//! Packets in a row: those that wait for an instance, and those that it has handled.

use crate::emitted::Emitted;
use crate::state::counter_at;
use crate::trap::Trap;
use abi::layout::MARK_LENGTH;
use abi::{Meta, Verdict};
use std::collections::VecDeque;
use std::rc::Rc;

/// A packet that a module has handled.
#[derive(Debug)]
pub struct Handled<P> {
    /// The packet as it is now.
    pub packet: P,
    /// What the module says, or how it ended.
    pub verdict: Result<Verdict, Trap>,
    /// What it left for the next module of the graph.
    pub mark: [u8; MARK_LENGTH],
    /// What it left beside its verdict.
    pub emitted: Option<Box<Emitted>>,
}

/// What goes in and what came out, in the same order.
pub(crate) struct Batch<P> {
    pub(crate) input: VecDeque<(P, Meta)>,
    pub(crate) output: VecDeque<Handled<P>>,
    /// The call that stands still is to end when it goes on.
    is_stopped: bool,
    pub(crate) counters: Counters,
}

/// Copy of the module's counters, taken when a call is suspended: its memory is out of reach then.
#[derive(Default)]
pub(crate) struct Counters {
    /// Their names and addresses.
    pub(crate) read: Rc<[(String, u32)]>,
    values: Vec<u64>,
}

impl Counters {
    /// Copies them: at most [`abi::check::COUNTERS_MAX`], into memory that the first copy allocates.
    pub(crate) fn copy(&mut self, memory: &[u8]) {
        self.values.clear();
        let values = self.read.iter().map(|(_, at)| counter_at(memory, *at).unwrap_or_default());
        self.values.extend(values);
    }

    /// Returns the counters as they were copied, by name.
    pub(crate) fn copied(&self) -> Vec<(String, u64)> {
        let names = self.read.iter().map(|(name, _)| name.clone());
        names.zip(self.values.iter().copied()).collect()
    }
}

impl<P> Batch<P> {
    /// Returns true when the call that stands still is to end.
    pub(crate) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Has the call that stands still end when it goes on.
    pub(crate) const fn stop(&mut self) {
        self.is_stopped = true;
    }
}

impl<P> Default for Batch<P> {
    fn default() -> Self {
        Self {
            input: VecDeque::new(),
            output: VecDeque::new(),
            is_stopped: false,
            counters: Counters::default(),
        }
    }
}
