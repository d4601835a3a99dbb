//! `tam new` and `tam build`: projects of services.

use super::Context;
use super::check::declared;
use crate::failure::{Failure, Outcome};
use crate::project::{self, BuildError, Built, NewError, Template};
use abi::check::Kind;
use api::{ErrorCode, SCHEMA_VERSION};
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use units::Name;

/// Arguments of `tam new`.
#[derive(Debug, Args)]
pub struct New {
    /// The service's name; the project is written to a directory of that name
    name: Name,
    /// The template of the project: packet (Rust), or c
    #[arg(long, default_value = "packet", value_name = "TEMPLATE")]
    template: String,
}

/// Arguments of `tam build`.
#[derive(Debug, Args)]
pub struct Build {
    /// The project's directory
    #[arg(default_value = ".")]
    directory: PathBuf,
}

impl New {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let failed = |error: NewError| Failure::new(code_of_new(&error), error.to_string());
        let template: Template = self.template.parse().map_err(failed)?;
        let created = project::create(Path::new("."), &self.name, template).map_err(failed)?;
        let directory = created.directory.display();
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "directory": created.directory,
            "files": created.files,
        });
        context.output.result(&document, || {
            format!(
                "wrote {directory}; its packet handler is {directory}/{handler}\n\
                 next: tam dev {directory}, which builds it and runs {directory}/captures whenever \
                 you save",
                handler = match template {
                    Template::Packet => "src/lib.rs",
                    Template::C => "service.c",
                },
            )
        })
    }
}

const fn code_of_new(error: &NewError) -> ErrorCode {
    match error {
        NewError::Template(_) | NewError::Reserved(_) => ErrorCode::Usage,
        NewError::Exists(_) | NewError::Write { .. } => ErrorCode::Failed,
    }
}

impl Build {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let built = project::build(&self.directory, &mut |line| context.output.progress(line))
            .map_err(|error| Failure::new(code_of_build(&error), error.to_string()))?;
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "module": built.module,
            "size_bytes": built.bytes,
            "took_ms": built.took.as_millis() as u64,
            "declares": declared(&built.checked),
        });
        context.output.result(&document, || built_text(&built))
    }
}

pub(super) const fn code_of_build(error: &BuildError) -> ErrorCode {
    match error {
        BuildError::NoProject(_) => ErrorCode::NotFound,
        BuildError::Check { .. } => ErrorCode::Usage,
        BuildError::NoToolchain(_) | BuildError::NoCToolchain(_) => ErrorCode::Unsupported,
        _ => ErrorCode::Failed,
    }
}

fn built_text(built: &Built) -> String {
    let path = built.module.display();
    let manifest = &built.checked.manifest;
    let next = match built.checked.kind {
        Kind::Packets => format!("tam run {path} FILE.pcap, or tam deploy {path} --rule MATCH"),
        Kind::Streams => format!("tam deploy {path} --rule \"proto tcp dport 80\""),
    };
    format!(
        "built {path}: {} {}, {} bytes, in {:.1} s\nnext: {next}",
        manifest.name,
        manifest.version,
        built.bytes,
        built.took.as_secs_f64()
    )
}
