//! Tamandua's side of tests with independent implementations; `make test-peers` runs it.
//!
//! ```text
//! peers association PROGRAM [ARGUMENT…]    PROGRAM … ask PORT      it asks this side
//!                                          PROGRAM … answer PORT   this side asks it
//! ```
//!
//! The exit status is 0 when each program succeeds and this side saw the expected packets.

#![forbid(unsafe_code)]

mod association_peer;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((kind, program)) if kind == "association" && !program.is_empty() => {
            association_peer::run(program)
        }
        _ => {
            eprintln!("usage: peers association PROGRAM [ARGUMENT…]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}
