//! Control of a cell: its daemon's messages, and what waits to be done for it.

pub(crate) mod link;
