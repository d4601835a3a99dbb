//! Helpers for the tests of `l7`: decoders of coded bodies, and an account with a limit.
//!
//! For tests only; helpers shared by the tests of all crates are in `lab/testbase`.
#![forbid(unsafe_code)]

mod account;
mod decoders;

pub use account::Left;
pub use decoders::{decoded, readable};
