//! traps
