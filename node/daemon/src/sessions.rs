//! Sessions: their usage, and the capacity that a node has for them.

pub(crate) mod capacity;
mod history;
mod usage;

pub(crate) use history::LOOK_EVERY;
pub(crate) use usage::{Counts, Sessions, UsageSnapshot};
