//! Sessions: their usage, and the capacity that a node has for them.

mod capacity;
mod history;
mod usage;

pub(crate) use capacity::capacity_of;
pub(crate) use history::LOOK_EVERY;
pub(crate) use usage::{Sessions, Usage};
