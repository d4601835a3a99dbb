//! Summaries of rules, by number: for packets that come to a rule from the stage before.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use bpf_maps::{RULES_MAX, RuleFact};

use crate::mapped::MappedWords;

const _: () = assert!(size_of::<RuleFact>() == 8, "a fact is read at once");

/// Front door's table of them, in a cell.
#[derive(Debug)]
pub struct RuleFacts {
    words: MappedWords,
}

impl RuleFacts {
    /// Maps it in another process, which got the map's descriptor from the one that made it.
    ///
    /// # Errors
    /// The kernel does not map that much of it.
    pub fn from_fd(fd: &OwnedFd) -> io::Result<Self> {
        Ok(Self { words: MappedWords::new(fd.as_fd(), RULES_MAX)? })
    }

    /// Returns the summary of a rule; `None` above the last.
    #[must_use]
    pub fn of(&self, rule: u16) -> Option<RuleFact> {
        let word = self.words.word(usize::from(rule))?;
        Some(bytemuck::cast(word.load(Ordering::Acquire)))
    }
}
