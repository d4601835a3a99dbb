//! The commands, one file for each group. A command parses nothing but its own
//! arguments, asks, and hands its result to the output.

pub mod apply;
pub mod backup;
pub mod bench;
pub mod capture;
pub mod cell;
pub mod check;
pub mod demo;
pub mod deploy;
pub mod dev;
pub mod doctor;
pub mod documents;
pub mod events;
pub mod key;
pub mod lab;
pub mod ledger;
mod module;
pub mod node;
pub mod ping;
pub mod rollback;
pub mod rule;
pub mod run;
pub mod service_project;
pub mod services;
pub mod session;
pub mod sign;
pub mod stats;
mod subject;
pub mod token;
pub mod top;
pub mod transfer;
pub mod why;

use crate::arguments::{Arguments, Command};
use crate::failure::{Failure, Outcome};
use crate::nodes;
use crate::output::Output;
use abi::check::Kind;
use abi::{Checked, Unverified};
use api::{Client, ErrorCode};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

/// What a command needs beside its own arguments.
pub struct Context<'a> {
    /// Where it writes to.
    pub output: &'a Output,
    /// The node that `--node` names.
    node: Option<units::Name>,
    /// The file that `--token` names.
    token: Option<PathBuf>,
}

impl Context<'_> {
    /// The node to ask.
    pub fn client(&self) -> Result<Client, Failure> {
        self.client_of(self.node.as_ref())
    }

    /// A node by its name, or the only one.
    pub fn client_of(&self, node: Option<&units::Name>) -> Result<Client, Failure> {
        let client = nodes::asked(node)?.with_on_delay(Some(say_that_it_waits));
        Ok(match &self.token {
            Some(file) => client.with_token(token::held(file)?.to_string()),
            None => client,
        })
    }
}

/// Says on standard error that a node has not answered yet.
fn say_that_it_waits(place: &api::client::Place) {
    let text = format!(
        "waiting for the node at {place}: it may be fetching or compiling a module, or waiting \
         for its cell (`tam events`), or hang (its log)"
    );
    // Where standard error is closed nobody wants to know.
    let _ = writeln!(io::stderr().lock(), "{}", crate::output::escaped(&text));
}

/// Runs the command; gives the exit status.
pub fn run(arguments: Arguments, output: &Output) -> Outcome {
    let context = &Context { output, node: arguments.node, token: arguments.token };
    match arguments.command {
        Command::Demo(demo) => demo.run(context),
        Command::Doctor(doctor) => doctor.run(context),
        Command::Node(node) => node.run(context),
        Command::Lab(lab) => lab.run(context),
        Command::Run(run) => run.run(context),
        Command::New(new) => new.run(context),
        Command::Build(build) => build.run(context),
        Command::Dev(dev) => dev.run(context),
        Command::Check(check) => check.run(context),
        Command::Key(key) => key.run(context),
        Command::Token(token) => token.run(context),
        Command::Sign(sign) => sign.run(context),
        Command::Verify(verify) => verify.run(context),
        Command::Push(push) => push.run(context),
        Command::Pull(pull) => pull.run(context),
        Command::Ping(ping) => ping.run(context),
        Command::Apply(apply) => apply.run(context),
        Command::Diff(diff) => diff.run(context),
        Command::Confirm(confirm) => confirm.run(context),
        Command::Rollback(rollback) => rollback.run(context),
        Command::Backup(backup) => backup.run(context),
        Command::Restore(restore) => restore.run(context),
        Command::Deploy(deploy) => deploy.run(context),
        Command::List(list) => list.run(context),
        Command::Show(show) => show.run(context),
        Command::Remove(remove) => remove.run(context),
        Command::Move(r#move) => r#move.run(context),
        Command::Session(session) => session.run(context),
        Command::Rule(rule) => rule.run(context),
        Command::Stats(stats) => stats.run(context),
        Command::Ledger(ledger) => ledger.run(context),
        Command::Events(events) => events.run(context),
        Command::Why(why) => why.run(context),
        Command::Top(top) => top.run(context),
        Command::Capture(capture) => capture.run(context),
        Command::Bench(bench) => bench.run(context),
        Command::Reproduce(reproduce) => reproduce.run(context),
        Command::Completions(completions) => completions.run(context),
        Command::Man(man) => man.run(context),
        Command::Cell(cell) => cell.run(),
        Command::CompileWorker(worker) => worker.run(),
        Command::Codec(codec) => codec.run(),
    }
}

/// Reads a file of at most `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let refused = |error| Failure::io(format!("reading {}", path.display()), &error);
    let file = std::fs::File::open(path).map_err(refused)?;
    let mut bytes = Vec::new();
    // One more than allowed, so that too much is seen.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > limit {
        let message = format!("{} has more than {limit} bytes, which is the limit", path.display());
        return Err(Failure::new(ErrorCode::Limit, message));
    }
    Ok(bytes)
}

/// Reads a module and checks that it keeps to the ABI.
pub fn read_module(path: &Path) -> Result<(Vec<u8>, Checked), Failure> {
    // Beyond the limit the check says it better than the reading.
    let bytes = read_file(path, 2 * abi::layout::MODULE_LENGTH_MAX as u64)?;
    let checked = Unverified(&bytes).check().map_err(|error| {
        Failure::new(ErrorCode::Usage, format!("{}: {error}", path.display()))
            .help("docs/module-abi.md says what a module is; `tam new NAME` writes one that works")
    })?;
    Ok((bytes, checked))
}

/// The same of a module that handles packets.
pub fn read_packet_module(path: &Path) -> Result<(Vec<u8>, Checked), Failure> {
    let (bytes, checked) = read_module(path)?;
    if checked.kind == Kind::Streams {
        let message =
            format!("{}: a module for streams (proxy-wasm) has no packets", path.display());
        return Err(Failure::new(ErrorCode::Usage, message)
            .help("deploy it to a node, with a rule for TCP: docs/filters.md"));
    }
    Ok((bytes, checked))
}

/// `KEY=VALUE` of the command line.
pub fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a parameter is given as NAME=VALUE".to_owned()),
    }
}

/// Enough of a digest for people to tell modules apart.
pub fn short_digest(digest: &str) -> &str {
    const SHOWN: usize = 12;
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.get(..SHOWN).unwrap_or(hex)
}
