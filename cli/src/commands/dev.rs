//! `tam dev`: the loop of writing a service. It builds the project, and again whenever a
//! source is saved; then it swaps the module into a node, or without one runs the project's
//! captures.
//!
//! ```text
//! a source is saved ─▶ build ─▶ --service: swap it into the node ─▶ what was swapped
//!        ▲               │     └─ else: captures/NAME.toml over NAME.pcap ─▶ what differs
//!        └───────────────┴── what the compiler says; what ran before goes on
//! ```

mod captures;
mod swap;
mod watch;

use super::service_project::code_of_build;
use super::{Context, short_digest};
use crate::failure::{DONE, Failure, Outcome};
use crate::project::{self, Built};
use api::{ErrorCode, ErrorInfo, SCHEMA_VERSION};
use captures::Checked;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use swap::{Placing, Swapped};
use watch::Watch;

/// Arguments of `tam dev`.
#[derive(Debug, Args)]
pub struct Dev {
    /// The project's directory
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Swap each build into this service of the node; it is deployed if it does not run yet
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// A rule that leads to the service when it is deployed, as in "proto udp dport 53"; may be
    /// repeated
    #[arg(long = "rule", value_name = "MATCH", requires = "service")]
    rules: Vec<String>,
    /// A parameter of the module when it is deployed; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = super::key_and_value,
          requires = "service")]
    parameters: Vec<(String, String)>,
    /// The level to run at when it is deployed: nic, kernel or user
    #[arg(long, requires = "service")]
    level: Option<String>,
    /// Build and check once, and end
    #[arg(long)]
    once: bool,
}

/// Result of one round: build, then swap or captures. With `--json` it is one line.
#[derive(Debug, Serialize)]
struct Round {
    schema_version: u32,
    round: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<Module>,
    /// Reason why there is no module, or why it was not swapped in; the previous version keeps
    /// running.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swapped: Option<Swapped>,
    #[serde(skip_serializing_if = "Option::is_none")]
    captures: Option<Vec<Checked>>,
    /// Exit status for this round alone.
    status: u8,
}

#[derive(Debug, Serialize)]
struct Module {
    path: PathBuf,
    name: String,
    version: String,
    digest: String,
    size_bytes: u64,
    took_ms: u64,
}

impl Dev {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        // Before the first build, so that a save during it starts another round.
        let mut watch = match self.once {
            true => None,
            false => Some(Watch::over(&self.directory)?),
        };
        for number in 1.. {
            let round = self.round(number, context);
            let told = if context.output.is_json() {
                let line = serde_json::to_string(&round).map_err(|error| {
                    Failure::failed(format!("writing the JSON document: {error}"))
                })?;
                context.output.print(&line)?
            } else {
                round.print(context)?
            };
            debug_assert_eq!(told, DONE);
            let Some(watch) = &mut watch else { return Ok(round.status) };
            if context.output.is_closed() {
                break;
            }
            context.output.progress("waiting for a source to be saved; Ctrl-C ends");
            watch.changed()?;
        }
        Ok(DONE)
    }

    fn round(&self, number: u32, context: &Context<'_>) -> Round {
        let mut round = Round {
            schema_version: SCHEMA_VERSION,
            round: number,
            module: None,
            error: None,
            swapped: None,
            captures: None,
            status: DONE,
        };
        let progress = &mut |line: &str| context.output.progress(line);
        let built = match project::build(&self.directory, progress) {
            Ok(built) => built,
            Err(error) => {
                round.fail(&Failure::new(code_of_build(&error), error.to_string()));
                return round;
            }
        };
        let done = module(&built).and_then(|module| {
            round.module = Some(module);
            self.use_it(&built, &mut round, context)
        });
        if let Err(failure) = done {
            round.fail(&failure);
        }
        round
    }

    /// Swaps the module into the service, or runs it over the captures.
    fn use_it(
        &self,
        built: &Built,
        round: &mut Round,
        context: &Context<'_>,
    ) -> Result<(), Failure> {
        if let Some(service) = &self.service {
            let placing = Placing {
                service,
                rules: &self.rules,
                parameters: &self.parameters,
                level: self.level.as_deref(),
            };
            round.swapped = Some(swap::swap(&context.client()?, &built.module, &placing)?);
            return Ok(());
        }
        let checked = captures::check(&self.directory, &built.module)?;
        if checked.iter().any(|one| !one.differences.is_empty()) {
            round.status = ErrorCode::Failed.exit_status();
        }
        round.captures = Some(checked);
        Ok(())
    }
}

fn module(built: &Built) -> Result<Module, Failure> {
    let (bytes, checked) = super::read_module(&built.module)?;
    Ok(Module {
        path: built.module.clone(),
        name: checked.manifest.name.to_string(),
        version: checked.manifest.version,
        digest: module_store::Digest::of(&bytes).to_string(),
        size_bytes: built.bytes,
        took_ms: built.took.as_millis() as u64,
    })
}

impl Round {
    fn fail(&mut self, failure: &Failure) {
        self.status = failure.code.exit_status();
        self.error = Some(failure.document().error);
    }

    /// Prints the round for people: results to standard output, problems to standard error.
    fn print(&self, context: &Context<'_>) -> Outcome {
        if let Some(module) = &self.module {
            let Module { name, version, size_bytes, took_ms, .. } = module;
            let digest = short_digest(&module.digest);
            context.output.result(&(), || {
                format!("built {name} {version} {digest}, {size_bytes} bytes, in {took_ms} ms")
            })?;
        }
        if let Some(error) = &self.error {
            context.output.note(&format!("error: {}", error.message));
            if let Some(help) = &error.help {
                context.output.note(&format!("help: {help}"));
            }
        }
        if let Some(swapped) = &self.swapped {
            context.output.result(&(), || swapped.to_string())?;
        }
        let Some(captures) = &self.captures else { return Ok(DONE) };
        if captures.is_empty() {
            context.output.note(
                "no captures/NAME.toml beside a NAME.pcap: nothing was run (`tam new` writes one)",
            );
        }
        for checked in captures {
            context.output.result(&(), || checked.to_string())?;
        }
        Ok(DONE)
    }
}
