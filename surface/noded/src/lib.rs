//! The daemon: core/node's decisions made real.
