//! Decisions of a daemon beside those of `core/node`: what has to happen one after another until a
//! service, a version or a change is where it shall be.

pub(crate) mod movers;
pub(crate) mod placement;
