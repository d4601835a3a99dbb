//! Commands, one file for each group. A command parses nothing but its own arguments, asks the
//! node, and hands its result to the output.

pub mod apply;
pub mod backup;
pub mod bench;
pub mod capture;
pub mod cell;
pub mod check;
pub mod demo;
pub mod deploy;
pub mod dev;
pub mod dispatch;
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

use crate::failure::Failure;
use crate::nodes;
use crate::output::Output;
use crate::user_files::{held_token, read_file};
use abi::check::Kind;
use abi::{Checked, Unverified};
use api::{Client, ErrorCode};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Settings of the command line that every command shares.
pub struct Context<'a> {
    /// Output that the command writes to.
    pub output: &'a Output,
    /// Node named by `--node`.
    node: Option<units::Name>,
    /// Token file named by `--token`.
    token: Option<PathBuf>,
}

impl Context<'_> {
    /// Returns a client of the node to ask.
    pub fn client(&self) -> Result<Client, Failure> {
        self.client_of(self.node.as_ref())
    }

    /// Returns a client of the named node, or of the only node of this machine.
    pub fn client_of(&self, node: Option<&units::Name>) -> Result<Client, Failure> {
        let client = nodes::asked(node)?.with_on_delay(Some(note_delay));
        Ok(match &self.token {
            Some(file) => client.with_token(held_token(file)?.to_string()),
            None => client,
        })
    }
}

/// Notes on standard error that a node has not answered yet.
fn note_delay(address: &api::client::NodeAddress) {
    let text = format!(
        "waiting for the node at {address}: it may be fetching or compiling a module, or waiting \
         for its cell (`tam events`), or hang (its log)"
    );
    // Nobody reads the note if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{}", crate::output::escaped(&text));
}

/// Reads a module and checks that it keeps to the ABI.
pub fn read_module(path: &Path) -> Result<(Vec<u8>, Checked), Failure> {
    // For a module beyond the limit the check has the better message.
    let bytes = read_file(path, 2 * abi::layout::MODULE_LENGTH_MAX as u64)?;
    let checked = Unverified(&bytes).check().map_err(|error| {
        Failure::new(ErrorCode::Usage, format!("{}: {error}", path.display()))
            .help("docs/reference/module-abi.md says what a module is; `tam new NAME` writes one that works")
    })?;
    Ok((bytes, checked))
}

/// Reads a module for packets; refuses stream modules.
pub fn read_packet_module(path: &Path) -> Result<(Vec<u8>, Checked), Failure> {
    let (bytes, checked) = read_module(path)?;
    if checked.kind == Kind::Streams {
        let message =
            format!("{}: a module for streams (proxy-wasm) has no packets", path.display());
        return Err(Failure::new(ErrorCode::Usage, message)
            .help("deploy it to a node, with a rule for TCP: docs/guides/filters.md"));
    }
    Ok((bytes, checked))
}

/// Parses `KEY=VALUE`.
pub fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a parameter is given as NAME=VALUE".to_owned()),
    }
}

/// Returns the first digits of a digest, enough for people to tell modules apart.
pub fn short_digest(digest: &str) -> &str {
    const SHOWN: usize = 12;
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.get(..SHOWN).unwrap_or(hex)
}
