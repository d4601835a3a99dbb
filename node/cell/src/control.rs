//! Control of a cell: its daemon's messages, commands that wait, and reports.

pub(crate) mod deferred;
pub(crate) mod link;
pub(crate) mod reports;
pub(crate) mod round;
