//! The command line: what every command has in common, and the list of commands.

use crate::commands;
use crate::failure::{DONE, Failure};
use crate::output::{Output, is_read, must_be_open};
use api::ErrorCode;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use units::Name;

/// An active network node: run WebAssembly services on the packets that pass
#[derive(Debug, Parser)]
#[command(name = "tam", version, max_term_width = 100, infer_long_args = false)]
#[command(after_help = EXIT_STATUSES)]
pub struct Arguments {
    /// Print one JSON document on standard output
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
    /// The node to ask: one of this machine, or of ~/.config/tamandua/nodes.toml
    #[arg(long = "node", id = "asked_node", value_name = "NAME", global = true)]
    #[arg(help_heading = EVERYWHERE)]
    pub node: Option<Name>,
    /// Ask with the capability in this file, and nothing more
    #[arg(long = "token", id = "asked_with", value_name = "FILE", global = true)]
    #[arg(help_heading = EVERYWHERE)]
    pub token: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

const EVERYWHERE: &str = "Options of every command";

const EXIT_STATUSES: &str = "\
Exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 refused by policy or signature,
5 over a resource limit, 6 unreachable, 7 the kernel or device cannot, 8 partly done.";

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Two hosts and a node between them on this machine, real traffic, and what happened to it
    Demo(commands::demo::Demo),
    /// Say what this machine can do, and what to do about the rest
    Doctor(commands::doctor::Doctor),
    /// Run a node
    Node(commands::node::Node),
    /// Hosts, routers and links in network namespaces, a node in each router
    #[command(subcommand)]
    Lab(commands::lab::Lab),
    /// Run a module over a capture, packet by packet, without a node
    Run(commands::run::Run),
    /// Write a new service project
    New(commands::service_project::New),
    /// Build a service project into a module
    Build(commands::service_project::Build),
    /// Build a service project whenever a source is saved, and run or swap what comes of it
    Dev(commands::dev::Dev),
    /// Say whether a module keeps to the ABI, and which levels it fits
    Check(commands::check::Check),
    /// Keys: who somebody is
    #[command(subcommand)]
    Key(commands::key::Key),
    /// Tokens: what somebody may do, signed by an administrator
    #[command(subcommand)]
    Token(commands::token::Token),
    /// Sign a module
    Sign(commands::sign::Sign),
    /// Say whether somebody has signed a module
    Verify(commands::sign::Verify),
    /// Put a module into a registry or a directory, with its signatures
    Push(commands::transfer::Push),
    /// Get a module out of a registry or a directory, with its signatures
    Pull(commands::transfer::Pull),
    /// Call a module at a node by active packets, and see how long its answers take
    Ping(commands::ping::Ping),
    /// Make a node run what a file says: all or nothing
    Apply(commands::apply::Apply),
    /// Say what a file would change on a node
    Diff(commands::apply::Diff),
    /// Keep what was applied with --confirm
    Confirm(commands::apply::Confirm),
    /// Go back to what a node ran before
    Rollback(commands::rollback::Rollback),
    /// Write what makes a node that node into one file
    Backup(commands::backup::Backup),
    /// Make a node's state of such a file again
    Restore(commands::backup::Restore),
    /// Start a service on a node
    Deploy(commands::deploy::Deploy),
    /// List the services of a node
    List(commands::services::List),
    /// Show a service, or the node itself
    Show(commands::services::Show),
    /// Stop a service
    Remove(commands::services::Remove),
    /// Let a service run at another level, with its state
    Move(commands::services::Move),
    /// Sessions: what a principal reserved, and what it uses
    #[command(subcommand)]
    Session(commands::session::Session),
    /// The classifier's rules
    #[command(subcommand)]
    Rule(commands::rule::Rule),
    /// What a node counts
    Stats(commands::stats::Stats),
    /// What a node does now: rates of ports, services and drops
    Top(commands::top::Top),
    /// What principals used, signed by the node
    #[command(subcommand)]
    Ledger(commands::ledger::Ledger),
    /// What happened on a node
    Events(commands::events::Events),
    /// Why packets are dropped or go where they go, or what would become of one
    Why(commands::why::Why),
    /// Packets as they came to a node and as they left, with what became of them
    Capture(commands::capture::Capture),
    /// Measure, with a baseline measured in the same run
    Bench(commands::bench::BenchCommand),
    /// Measure a figure of the papers again
    Reproduce(commands::bench::Reproduce),
    /// Print what makes a shell complete this command line
    Completions(commands::documents::Completions),
    /// Print the manual page, or write those of all commands
    Man(commands::documents::Man),
    /// The process that runs modules; started by a node
    #[command(hide = true)]
    Cell(commands::cell::Cell),
    /// The process that compiles one module; started by a node
    #[command(hide = true)]
    CompileWorker(commands::cell::CompileWorker),
    /// The process that turns video into pictures; started by a node
    #[command(hide = true)]
    Codec(commands::cell::Codec),
}

/// Says what is wrong with the arguments, or gives the help that they ask for.
pub fn explain(error: &clap::Error) -> ExitCode {
    if is_help_of_help(error)
        && let Err(help) = Arguments::try_parse_from(["tam", "help"])
    {
        return explain(&help);
    }
    let asks = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let mut own = std::env::args_os().take_while(|argument| argument != "--");
    let json = own.any(|argument| argument == "--json");
    if asks {
        let printed = must_be_open().and_then(|()| {
            is_read(error.print().and_then(|()| std::io::stdout().flush())).map(|_| DONE)
        });
        return ExitCode::from(printed.unwrap_or_else(|failure| Output::new(json).fail(&failure)));
    }
    if !json {
        // Where nobody reads standard error there is nothing left to do.
        let _ = error.print();
        return ExitCode::from(ErrorCode::Usage.exit_status());
    }
    let text = error.render().to_string();
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message).trim();
    let failure = Failure::new(ErrorCode::Usage, message).help("see `tam --help`");
    ExitCode::from(Output::new(true).fail(&failure))
}

/// Returns whether `tam help --help` was asked, which clap takes for a command of that name.
fn is_help_of_help(error: &clap::Error) -> bool {
    let is_help = |word: &String| matches!(word.as_str(), "--help" | "-h");
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => is_help(word),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_has_help() {
        let asked = Arguments::try_parse_from(["tam", "help", "--help"]).unwrap_err();
        assert!(is_help_of_help(&asked));
        assert!(!is_help_of_help(&Arguments::try_parse_from(["tam", "halp"]).unwrap_err()));
        assert_eq!(
            Arguments::try_parse_from(["tam", "help"]).unwrap_err().kind(),
            ErrorKind::DisplayHelp
        );
    }

    #[test]
    fn options_for_all_commands_may_stand_behind_them() {
        let arguments = Arguments::try_parse_from(["tam", "list", "--json", "--node", "r1"]);
        let arguments = arguments.unwrap();
        assert!(arguments.json && arguments.node.is_some());
    }
}
