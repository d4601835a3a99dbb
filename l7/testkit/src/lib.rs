//! Helpers for the tests of `l7`: what a client makes of a coded body, and an account with a limit.
//!
//! Nothing but tests uses it, and what tests of every crate share is `lab/testbase`'s.
#![forbid(unsafe_code)]

mod account;
mod decoders;

pub use account::Left;
pub use decoders::{decoded, readable};
