//! Desired state as the journal has it, and the changes that wait to be written, one after another.
//!
//! ```text
//!  push ─▶ queue ─ poll_write ─▶ Write ─▶ journal (elsewhere) ─ handle_written ─▶ continuation
//! ```
//!
//! A change is made of the state that the change before it has left, so each waits until that is
//! written or refused. Nothing is written here.

use super::edit::Edit;
use node::desired::DesiredState;
use std::collections::VecDeque;
use std::sync::Arc;

/// Facts that are written beside a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cause: String,
    /// Digest of the node file's wishes, when it is followed with this change.
    pub(crate) node_file: Option<String>,
    /// Generation to go back to, of a state that waits for a confirmation.
    pub(crate) unconfirmed_over: Option<u64>,
    /// True when the change is written in the place of the present generation, not after it.
    pub(crate) same_generation: bool,
}

impl Facts {
    /// Creates the facts of an ordinary change.
    pub(crate) fn of(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), ..Self::default() }
    }
}

/// State to be written to the journal.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) state: Arc<DesiredState>,
    pub(crate) generation: u64,
    pub(crate) facts: Facts,
}

/// Recorded state, and the queue of changes; each has a continuation of type `T`.
pub(crate) struct Recording<T> {
    state: Arc<DesiredState>,
    generation: u64,
    queue: VecDeque<(Edit, Facts, T)>,
    /// State and generation that are being written, and the continuation.
    writing: Option<(Arc<DesiredState>, u64, T)>,
}

impl<T> Recording<T> {
    /// Creates the queue of a journal that has this state.
    pub(crate) fn new(state: DesiredState, generation: u64) -> Self {
        Self { state: Arc::new(state), generation, queue: VecDeque::new(), writing: None }
    }

    /// Returns the state that was recorded last.
    pub(crate) const fn state(&self) -> &Arc<DesiredState> {
        &self.state
    }

    /// Returns the generation of [`Recording::state`].
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns true when no change waits or is being written.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none()
    }

    /// Handles the end of a write. Returns the continuation of its change.
    pub(crate) fn handle_written(&mut self, is_written: bool) -> Option<T> {
        let (state, generation, then) = self.writing.take()?;
        if is_written {
            (self.state, self.generation) = (state, generation);
        }
        Some(then)
    }

    /// Puts a state in place that was written while nothing else was: when the node starts.
    pub(crate) fn set(&mut self, state: DesiredState, generation: u64) {
        (self.state, self.generation) = (Arc::new(state), generation);
    }

    /// Queues a change.
    pub(crate) fn push(&mut self, edit: Edit, facts: Facts, then: T) {
        self.queue.push_back((edit, facts, then));
    }

    /// Queues a change in front of those that wait.
    pub(crate) fn push_first(&mut self, edit: Edit, facts: Facts, then: T) {
        self.queue.push_front((edit, facts, then));
    }

    /// Returns the change that is next, to be brought up to date, unless one is being written.
    pub(crate) fn next_mut(&mut self) -> Option<&mut Edit> {
        match self.writing {
            Some(_) => None,
            None => self.queue.front_mut().map(|(edit, ..)| edit),
        }
    }

    /// Returns the next state to write, unless one is being written.
    pub(crate) fn poll_write(&mut self) -> Option<Write> {
        if self.writing.is_some() {
            return None;
        }
        let (edit, facts, then) = self.queue.pop_front()?;
        let mut next = DesiredState::clone(&self.state);
        edit.apply(&mut next);
        let (state, generation) =
            (Arc::new(next), self.generation + u64::from(!facts.same_generation));
        self.writing = Some((Arc::clone(&state), generation, then));
        Some(Write { state, generation, facts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_one_after_another_each_of_what_the_one_before_has_left() {
        let mut recording = Recording::new(DesiredState::default(), 7);
        let bpf = recording.state().bpf;
        recording.push(Edit::Bpf(!bpf), Facts::of("first"), 'a');
        recording.push(Edit::Nothing, Facts::of("second"), 'b');
        let first = recording.poll_write().unwrap();
        assert_eq!((first.generation, first.state.bpf, &*first.facts.cause), (8, !bpf, "first"));
        assert!(recording.poll_write().is_none(), "one at a time");
        assert_eq!((recording.generation(), recording.state().bpf), (7, bpf), "not yet");
        assert_eq!(recording.handle_written(true), Some('a'));
        assert_eq!((recording.generation(), recording.state().bpf), (8, !bpf));
        let second = recording.poll_write().unwrap();
        assert_eq!((second.generation, second.state.bpf), (9, !bpf));
        assert!(!recording.is_idle());
        assert_eq!(recording.handle_written(true), Some('b'));
        assert!(recording.is_idle());
    }

    #[test]
    fn a_change_that_cannot_be_written_leaves_state_and_generation_as_they_were() {
        let mut recording = Recording::new(DesiredState::default(), 7);
        let before = Arc::clone(recording.state());
        recording.push(Edit::Bpf(!before.bpf), Facts::of("refused"), ());
        recording.push(Edit::Nothing, Facts { same_generation: true, ..Facts::of("over") }, ());
        assert!(recording.poll_write().is_some());
        assert_eq!(recording.handle_written(false), Some(()));
        assert_eq!((recording.generation(), recording.state()), (7, &before));
        let over = recording.poll_write().unwrap();
        assert_eq!((over.generation, &over.state), (7, &before), "in the same generation's place");
        assert_eq!(recording.handle_written(true), Some(()));
        assert_eq!(recording.handle_written(true), None, "nothing was being written");
    }
}
