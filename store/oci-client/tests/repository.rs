//! Pulls and pushes over in-memory connections with paused time, against registries that follow the
//! specification and against malicious ones.

#[path = "repository/honest.rs"]
mod honest;
#[path = "repository/layouts.rs"]
mod layouts;
#[path = "repository/lying.rs"]
mod lying;
#[path = "repository/variants.rs"]
mod variants;
#[path = "repository/world.rs"]
mod world;
