//! Queues of packets in front of and behind an instance.

use crate::emitted::Emitted;
use crate::state::counter_at;
use crate::trap::Trap;
use abi::layout::MARK_LENGTH;
use abi::{Meta, Verdict};
use std::collections::VecDeque;
use std::rc::Rc;

/// Packet that a module has handled.
#[derive(Debug)]
pub struct Handled<P> {
    /// Packet as the module left it.
    pub packet: P,
    /// Verdict of the module, or the trap that ended it.
    pub verdict: Result<Verdict, Trap>,
    /// Mark for the next module of the graph.
    pub mark: [u8; MARK_LENGTH],
    /// Output of the call beside its verdict.
    pub emitted: Option<Box<Emitted>>,
}

/// Input and output queue of an instance, in the same order.
pub(crate) struct Batch<P> {
    pub(crate) input: VecDeque<(P, Meta)>,
    pub(crate) output: VecDeque<Handled<P>>,
    /// True if the suspended call must end when it is resumed.
    is_stopped: bool,
    pub(crate) counters: Counters,
}

/// Copy of the module's counters, taken when a call is suspended: its memory is inaccessible then.
#[derive(Default)]
pub(crate) struct Counters {
    /// Names and addresses of the counters.
    pub(crate) read: Rc<[(String, u32)]>,
    values: Vec<u64>,
}

impl Counters {
    /// Copies the counters: at most [`abi::check::COUNTERS_MAX`], into memory that the first copy
    /// allocates.
    pub(crate) fn copy(&mut self, memory: &[u8]) {
        self.values.clear();
        let values = self.read.iter().map(|(_, at)| counter_at(memory, *at).unwrap_or_default());
        self.values.extend(values);
    }

    /// Returns the copied counters, by name.
    pub(crate) fn copied(&self) -> Vec<(String, u64)> {
        let names = self.read.iter().map(|(name, _)| name.clone());
        names.zip(self.values.iter().copied()).collect()
    }
}

impl<P> Batch<P> {
    /// Returns true if the suspended call must end when it is resumed.
    pub(crate) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Requests the end of the suspended call when it is resumed.
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
