//! `tam bench` and `tam reproduce`: measurements, each with its baseline.

use super::Context;
use super::subject::Nodes;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Rows;
use api::{ErrorCode, SCHEMA_VERSION};
use bench::reproduce::{self, Reproduced};
use bench::{Bench, Options, ROUNDS_MAX};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of `tam bench`.
#[derive(Debug, Args)]
pub struct BenchCommand {
    /// The benchmark; all are listed when it is left out
    name: Option<String>,
    #[command(flatten)]
    how: How,
}

/// Arguments of `tam reproduce`.
#[derive(Debug, Args)]
pub struct Reproduce {
    /// The figures, or all; all are listed when none is named
    figures: Vec<String>,
    /// The folder for the data and the plots
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// End within 45 seconds: fewer cases, shorter windows
    #[arg(long)]
    quick: bool,
    /// Rounds of each case
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    rounds: Option<u32>,
    /// The folder with the sample services' projects; those of the source tree or the package
    /// when it is left out
    #[arg(long, value_name = "FOLDER")]
    services: Option<PathBuf>,
}

impl How {
    const fn options(&self) -> Options {
        Options { quick: self.quick, rounds: self.rounds }
    }
}

impl BenchCommand {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let Some(name) = self.name else { return list("benchmarks", bench::list(), context) };
        require("benchmark", &name, bench::list())?;
        let mut nodes = Nodes::new(self.how.services.as_deref())?;
        let mut progress = |line: &str| context.output.progress(line);
        let report = bench::run(&name, &self.how.options(), &mut nodes, &mut progress)?;
        context.output.result(&report.to_json(), || report.to_table())?;
        if report.is_valid() {
            return Ok(DONE);
        }
        context.output.note("error: a baseline was too slow, so the results of this run are not valid; run it again on an idle machine");
        Ok(ErrorCode::Failed.exit_status())
    }
}

impl Reproduce {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let figures = reproduce::figures();
        if self.figures.is_empty() {
            return list("figures", figures, context);
        }
        let all = self.figures.iter().any(|name| name == "all");
        let names: Vec<&str> = match all {
            true => figures.iter().map(|figure| figure.name).collect(),
            false => self.figures.iter().map(String::as_str).collect(),
        };
        for name in &names {
            require("figure", name, figures)?;
        }
        std::fs::create_dir_all(&self.out)
            .map_err(|error| Failure::io(format!("making {}", self.out.display()), &error))?;
        let mut nodes = Nodes::new(self.how.services.as_deref())?;
        let mut done = Vec::new();
        for name in names {
            done.push(one(name, &self.how.options(), &mut nodes, &self.out, context)?);
        }
        let document = json!({"schema_version": SCHEMA_VERSION, "figures": done});
        context.output.result(&document, || done.iter().map(figure_text).collect())
    }
}

fn one(
    name: &str,
    options: &Options,
    nodes: &mut Nodes,
    folder: &Path,
    context: &Context<'_>,
) -> Result<Reproduced, Failure> {
    let mut progress = |line: &str| context.output.progress(line);
    Ok(reproduce::run(name, options, nodes, folder, &mut progress)?)
}

fn figure_text(done: &Reproduced) -> String {
    let mut rows = Rows::new([done.figure.as_str(), "unit", "paper", "ours"]);
    for compared in &done.compared {
        rows.add([
            compared.what.clone(),
            compared.unit.to_owned(),
            format!("{:.1}", compared.paper),
            compared.ours.map_or("-".to_owned(), |ours| format!("{ours:.1}")),
        ]);
    }
    let notes: String = done.notes.iter().map(|note| format!("{note}\n")).collect();
    format!(
        "{rows}{notes}{} points in {}, plotted in {}\n\n",
        done.points.len(),
        done.csv.display(),
        done.svg.display()
    )
}

fn list(what: &str, known: &[Bench], context: &Context<'_>) -> Outcome {
    let entries: Vec<_> =
        known.iter().map(|bench| json!({"name": bench.name, "what": bench.what})).collect();
    let document = json!({"schema_version": SCHEMA_VERSION, what: entries});
    context.output.result(&document, || {
        let mut rows = Rows::pairs();
        for bench in known {
            rows.add([bench.name.to_owned(), bench.what.to_owned()]);
        }
        rows.to_string()
    })
}

fn require(what: &str, name: &str, known: &[Bench]) -> Result<(), Failure> {
    if known.iter().any(|bench| bench.name == name) {
        return Ok(());
    }
    let meant = abi::manifest::Meant::new(name, known.iter().map(|bench| bench.name));
    Err(Failure::new(ErrorCode::NotFound, format!("there is no {what} '{name}'{meant}")))
}
