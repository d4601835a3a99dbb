//! Entry point of `tam`, the one binary: arguments in, one command, an exit status out.
//!
//! ```text
//! arguments ─▶ arguments.rs ─▶ commands/NAME.rs ─▶ output.rs ─▶ standard output
//!                                     └── Failure ─▶ standard error, exit status
//! ```
//!
//! The node takes all decisions; commands use its public API only.

#![forbid(unsafe_code)]

mod amounts;
mod arguments;
mod commands;
mod destination;
mod failure;
mod interrupt;
mod names;
mod nodes;
mod output;
mod project;
mod samples;
mod source;
mod style;
mod user_files;

use arguments::Arguments;
use clap::{CommandFactory, Parser};
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Answers a shell that completes a command line, and ends.
    clap_complete::CompleteEnv::with_factory(|| names::with_names(Arguments::command())).complete();
    // For what is refused before it is known whether `--color` is there.
    style::detect_colours(style::When::Auto);
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return arguments::explain(&error),
    };
    style::detect_colours(arguments.color);
    let output = Output::new(arguments.json);
    let status =
        commands::dispatch::run(arguments, &output).unwrap_or_else(|failure| output.fail(&failure));
    ExitCode::from(status)
}
