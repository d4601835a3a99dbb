//! The command line: what every command has in common, and the list of commands.

use crate::commands;
use crate::failure::{DONE, Failure};
use crate::output::{Output, is_read, must_be_open};
use crate::style::{self, Stream};
use api::ErrorCode;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use units::Name;

/// Active network node: runs WebAssembly services on the packets that pass
#[derive(Debug, Parser)]
#[command(name = "tam", version, max_term_width = 100, infer_long_args = false)]
#[command(after_help = EXIT_STATUSES)]
pub struct Arguments {
    /// Print one JSON document on standard output
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
    /// Colour the words of states and headings: in a terminal (auto), always, or never
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "WHEN")]
    #[arg(default_value = "auto", hide_default_value = true, hide_possible_values = true)]
    pub color: style::When,
    /// The node to ask: one of this machine, or of ~/.config/tamandua/nodes.toml; TAM_NODE is the
    /// default
    #[arg(long = "node", id = "asked_node", value_name = "NAME", global = true)]
    #[arg(help_heading = EVERYWHERE)]
    pub node: Option<Name>,
    /// Ask with the capability in this file, and with no other right
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
    /// Run two hosts and a node between them on this machine, and report on real traffic
    Demo(commands::demo::Demo),
    /// Check what this machine supports, and say how to add what is missing
    Doctor(commands::doctor::Doctor),
    /// Run a node
    Node(commands::node::Node),
    /// Manage labs: hosts, routers and links in network namespaces, a node in each router
    #[command(subcommand)]
    Lab(commands::lab::Lab),
    /// Run a module over a capture, packet by packet, without a node
    Run(commands::run::Run),
    /// Write a new service project
    New(commands::service_project::New),
    /// Build a service project into a module
    Build(commands::service_project::Build),
    /// Rebuild a service project at each save, then run its captures or swap the module in
    Dev(commands::dev::Dev),
    /// Check that a module keeps to the ABI, and list the levels that it fits
    Check(commands::check::Check),
    /// Make and show keys, which identify principals, administrators and signers
    #[command(subcommand)]
    Key(commands::key::Key),
    /// Make, narrow, show and revoke tokens, which say what a principal may do
    #[command(subcommand)]
    Token(commands::token::Token),
    /// Sign a module
    Sign(commands::sign::Sign),
    /// Check that a module carries the signature of a given key
    Verify(commands::sign::Verify),
    /// Put a module into a registry or a directory, with its signatures
    Push(commands::transfer::Push),
    /// Get a module out of a registry or a directory, with its signatures
    Pull(commands::transfer::Pull),
    /// Call a module at a node by active packets, and measure the time until it answers
    Ping(commands::ping::Ping),
    /// Make a node run what a node file says: all of it or nothing
    Apply(commands::apply::Apply),
    /// Show what a node file would change on a node
    Diff(commands::apply::Diff),
    /// Keep what `tam apply --confirm` applied
    Confirm(commands::apply::Confirm),
    /// Return to an earlier generation of a node's services and rules
    Rollback(commands::rollback::Rollback),
    /// Write a node's identity and state into one file
    Backup(commands::backup::Backup),
    /// Recreate a node's state from a backup file
    Restore(commands::backup::Restore),
    /// Start a service on a node
    Deploy(commands::deploy::Deploy),
    /// List the services of a node
    List(commands::services::List),
    /// Show a service, or the node itself
    Show(commands::services::Show),
    /// Stop a service
    #[command(aliases = ["delete", "del", "rm"])]
    Remove(commands::services::Remove),
    /// Move a service to another level, with its state
    Move(commands::services::Move),
    /// Manage sessions: what a principal reserved, and what it uses
    #[command(subcommand)]
    Session(commands::session::Session),
    /// Manage the classifier's rules
    #[command(subcommand)]
    Rule(commands::rule::Rule),
    /// Show the counters of a node
    Stats(commands::stats::Stats),
    /// Show the current rates of a node's ports, services and drops
    Top(commands::top::Top),
    /// Show and verify what principals used, as records signed by the node
    #[command(subcommand)]
    Ledger(commands::ledger::Ledger),
    /// Show the events of a node
    Events(commands::events::Events),
    /// Explain why packets are dropped or leave the fast path, or predict the outcome of one
    Why(commands::why::Why),
    /// Capture packets as they enter and leave a node, with their outcome
    Capture(commands::capture::Capture),
    /// Run a benchmark, with a baseline measured in the same run
    Bench(commands::bench::BenchCommand),
    /// Reproduce a figure of the papers
    Reproduce(commands::bench::Reproduce),
    /// Print the script by which a shell completes this command line
    Completions(commands::documents::Completions),
    /// Print the manual page, or write those of all commands
    Man(commands::documents::Man),
    /// Worker process that runs modules; started by a node
    #[command(hide = true)]
    Cell(commands::cell::Cell),
    /// Worker process that compiles one module; started by a node
    #[command(hide = true)]
    CompileWorker(commands::cell::CompileWorker),
    /// Worker process that turns video into pictures; started by a node
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
    let rendered = error.render();
    if !json {
        let text = match Stream::Errors.is_styled() {
            true => rendered.ansi().to_string(),
            false => rendered.to_string(),
        };
        // Nothing can be reported if standard error is closed.
        let _ = write!(std::io::stderr().lock(), "{}", in_words(&text));
        return ExitCode::from(ErrorCode::Usage.exit_status());
    }
    let text = in_words(&rendered.to_string());
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message).trim();
    let failure = Failure::new(ErrorCode::Usage, message).help("see `tam --help`");
    ExitCode::from(Output::new(true).fail(&failure))
}

/// Messages of Rust's parsers of numbers and addresses, each with the same in words for people.
const PARSER_WORDS: [(&str, &str); 8] = [
    ("invalid digit found in string", "give a whole number"),
    ("cannot parse integer from empty string", "give a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "give a number, as 0.5"),
    ("cannot parse float from empty string", "give a number, as 0.5"),
    ("invalid IP address syntax", "give an IP address, as 192.0.2.1 or 2001:db8::1"),
    (
        "invalid socket address syntax",
        "give an IP address and a port, as 192.0.2.1:7443 or [2001:db8::1]:7443",
    ),
];

/// Returns the text with [`PARSER_WORDS`] said for people.
fn in_words(text: &str) -> String {
    let replaced = |text: String, (theirs, ours): &(&str, &str)| text.replace(theirs, ours);
    let text = PARSER_WORDS.iter().fold(text.to_owned(), replaced);
    // The range of an option's numbers.
    let Some((before, range)) = text.split_once(" is not in ") else { return text };
    let Some((first, last)) = range.split_once("..=") else { return text };
    if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
        return text;
    }
    format!("{before} is not from {first} to {last}")
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
    fn the_help_of_the_help_command_is_recognised() {
        let asked = Arguments::try_parse_from(["tam", "help", "--help"]).unwrap_err();
        assert!(is_help_of_help(&asked));
        assert!(!is_help_of_help(&Arguments::try_parse_from(["tam", "halp"]).unwrap_err()));
        assert_eq!(
            Arguments::try_parse_from(["tam", "help"]).unwrap_err().kind(),
            ErrorKind::DisplayHelp
        );
    }

    #[test]
    fn a_wrong_number_is_refused_in_words() {
        for (arguments, expected) in [
            (["tam", "top", "--interval", "x"], "for '--interval <SECONDS>': give a whole number"),
            (["tam", "why", "--number", "x"], "for '--number <N>': give a whole number"),
            (["tam", "top", "--interval", "0"], "0 is not from 1 to 3600"),
            (["tam", "rule", "remove", "x"], "a rule is named by its number"),
        ] {
            let error = Arguments::try_parse_from(arguments).unwrap_err();
            let text = in_words(&error.render().to_string());
            assert!(text.contains(expected), "{text}");
        }
        let none = "".parse::<u16>().unwrap_err().to_string();
        let address = "x".parse::<std::net::IpAddr>().unwrap_err().to_string();
        let fraction = "x".parse::<f64>().unwrap_err().to_string();
        let socket = "x".parse::<std::net::SocketAddr>().unwrap_err().to_string();
        let (large, small) = ("300".parse::<u8>(), "-300".parse::<i8>());
        let words = [large.unwrap_err().to_string(), small.unwrap_err().to_string()];
        for text in words.into_iter().chain([none, address, fraction, socket]) {
            assert_ne!(in_words(&text), text);
        }
    }

    #[test]
    fn options_for_all_commands_may_stand_behind_them() {
        let arguments = Arguments::try_parse_from(["tam", "list", "--json", "--node", "r1"]);
        let arguments = arguments.unwrap();
        assert!(arguments.json && arguments.node.is_some());
    }
}
