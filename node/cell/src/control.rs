//! Control of a cell: the daemon's messages, deferred commands, and reports.

pub(crate) mod deferred;
pub(crate) mod link;
pub(crate) mod reports;
pub(crate) mod round;
