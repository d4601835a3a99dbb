//! `tam rollback`: return to an earlier generation.

use super::Context;
use super::apply::{applied_text, changes_text};
use crate::failure::Outcome;
use crate::output::Rows;
use api::{DesiredInfo, RollbackRequest};
use clap::Args;

/// Arguments of `tam rollback`.
#[derive(Debug, Args)]
pub struct Rollback {
    /// The generation to return to; by default the one before the current one
    generation: Option<u64>,
    /// List the kept generations
    #[arg(long, conflicts_with_all = ["generation", "dry_run"])]
    list: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Rollback {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let client = context.client()?;
        if self.list {
            let desired = client.desired()?;
            return context.output.result(&desired, || list_text(&desired));
        }
        let request = RollbackRequest { generation: self.generation, dry_run: self.dry_run };
        let applied = client.rollback(&request)?;
        context.output.result(&applied, || match (self.dry_run, applied.changes.is_empty()) {
            (true, true) => "nothing would change".to_owned(),
            (true, false) => changes_text(&applied),
            (false, _) => applied_text(&applied),
        })
    }
}

fn list_text(desired: &DesiredInfo) -> String {
    let mut rows = Rows::new(["generation", "services", "rules", "made by", "state"]);
    for generation in &desired.generations {
        let state = match (generation.generation == desired.generation, desired.confirm_within_s) {
            (true, Some(left)) => format!("unconfirmed, {left} s left"),
            (true, None) => "runs".to_owned(),
            (false, _) if generation.unconfirmed => "was not confirmed".to_owned(),
            (false, _) => String::new(),
        };
        rows.add([
            generation.generation.to_string(),
            generation.services.to_string(),
            generation.rules.to_string(),
            generation.cause.clone(),
            state,
        ]);
    }
    let mut text = rows.to_string();
    for waiting in &desired.waiting {
        text.push_str(&format!("\n{} is not there: {}", waiting.what, waiting.reason));
    }
    text
}
