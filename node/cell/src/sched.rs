//! Scheduling of a cell: whose turn it is, what may wait, and how a call is interrupted.

pub(crate) mod fifo;
pub(crate) mod numbered;
pub(crate) mod pacer;
pub(crate) mod rooms;
pub(crate) mod sessions;
