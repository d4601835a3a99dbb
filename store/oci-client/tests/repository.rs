//! Pulling and pushing over connections in memory, with time that stands still while anybody
//! works: registries that keep to the rules, and those that do not.

#[path = "repository/honest.rs"]
mod honest;
#[path = "repository/layouts.rs"]
mod layouts;
#[path = "repository/lying.rs"]
mod lying;
#[path = "repository/ways.rs"]
mod ways;
#[path = "repository/world.rs"]
mod world;
