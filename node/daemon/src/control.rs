//! State machines of the daemon beside `core/node`: the steps until a
//! service, a version or a change is where it shall be.

pub(crate) mod movers;
pub(crate) mod placement;
pub(crate) mod recording;
