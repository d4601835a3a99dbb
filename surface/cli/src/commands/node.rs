//! `tam node`: runs a node, or removes what a dead one left.

use super::Context;
use crate::failure::{Failure, Outcome};
use api::{ErrorCode, SCHEMA_VERSION};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;
use units::Name;

/// Arguments of `tam node`.
#[derive(Debug, Args)]
pub struct Node {
    /// The node file: its ports and settings
    #[arg(long, value_name = "FILE", conflicts_with = "cleanup")]
    config: Option<PathBuf>,
    /// Remove what a node of this name left when it died
    #[arg(long, value_name = "NAME")]
    cleanup: Option<Name>,
}

impl Node {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        if let Some(name) = self.cleanup {
            return cleanup(&name, context);
        }
        let Some(config) = self.config else {
            return sample(context);
        };
        log_to_standard_error();
        noded::run(noded::Options { config })?;
        Ok(crate::failure::DONE)
    }
}

/// Without a node file: one to begin with.
fn sample(context: &Context<'_>) -> Outcome {
    let failure = Failure::new(ErrorCode::Usage, "a node needs a node file").help(
        "save this sample (tam node > node.toml), adapt it, then: tam node --config node.toml",
    );
    if !context.output.is_json() {
        context.output.print(noded::SAMPLE_CONFIG.trim_end())?;
    }
    Err(failure)
}

fn cleanup(name: &Name, context: &Context<'_>) -> Outcome {
    let removed = noded::cleanup(name)?;
    let document = json!({"schema_version": SCHEMA_VERSION, "node": name, "removed": removed});
    context.output.result(&document, || match removed.as_slice() {
        [] => format!("node {name} left nothing behind"),
        _ => format!("removed of node {name}:\n  {}", removed.join("\n  ")),
    })
}

/// What the node has to say while it runs; `TAM_LOG` chooses how much, as in `TAM_LOG=debug`.
pub(crate) fn log_to_standard_error() {
    use std::io::IsTerminal;
    let filter = EnvFilter::try_from_env("TAM_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
