//! `tam check`: does a module keep to the ABI, and which levels does it fit?

use super::{Context, read_module};
use crate::failure::Outcome;
use crate::output::Rows;
use abi::host::HOST_FUNCTIONS;
use abi::{Checked, Level};
use api::SCHEMA_VERSION;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `tam check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The module
    #[arg(value_name = "MODULE.wasm")]
    module: PathBuf,
}

/// Whether a module fits a level, and why.
struct Fit {
    level: Level,
    fits: bool,
    reason: &'static str,
}

const COMPILER_LATER: &str =
    "not in this version: the compiler from WebAssembly to eBPF comes next";

/// Names in one line for people; a document has them all.
const NAMES_SHOWN: usize = 16;

impl Check {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let (bytes, checked) = read_module(&self.module)?;
        let fits = fits(&checked);
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "module": self.module,
            "size_bytes": bytes.len(),
            "declares": declared(&checked),
            "levels": fits.iter().map(fit_document).collect::<Vec<_>>(),
        });
        context.output.result(&document, || text(&checked, bytes.len(), &fits))
    }
}

fn fits(checked: &Checked) -> Vec<Fit> {
    let wished = |level| checked.manifest.levels.contains(&level);
    let fit = |&level: &Level| {
        let (fits, reason) = match level {
            Level::User if wished(level) => (true, "the module keeps to the packet ABI"),
            Level::User => (false, "the manifest's levels leave it out"),
            Level::Nic | Level::Kernel => (false, COMPILER_LATER),
            Level::Cluster => (false, "not in this version: a node has no back-ends yet"),
        };
        Fit { level, fits, reason }
    };
    Level::ALL.iter().map(fit).collect()
}

fn fit_document(fit: &Fit) -> Value {
    json!({"level": fit.level.name(), "fits": fit.fits, "reason": fit.reason})
}

/// What a module declares and uses, as a document.
pub(crate) fn declared(checked: &Checked) -> Value {
    let manifest = &checked.manifest;
    let parameters = manifest.parameters.iter().map(|(name, parameter)| {
        let default = parameter.default.as_ref().map(ToString::to_string);
        let of = parameter.kind;
        json!({"name": name, "type": of, "default": default, "description": parameter.description})
    });
    json!({
        "abi": manifest.abi,
        "name": manifest.name,
        "version": manifest.version,
        "description": manifest.description,
        "window": manifest.window,
        "state_version": manifest.state_version,
        "lanes": manifest.lanes.to_string(),
        "levels": manifest.levels,
        "timer_ms": manifest.timer_ms,
        "needs": manifest.needs.iter().map(|need| need.name()).collect::<Vec<_>>(),
        "parameters": parameters.collect::<Vec<_>>(),
        "imports": imports(checked),
        "hooks": hooks(checked),
        "counters": checked.counters.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        "memory": checked.memory,
    })
}

fn imports(checked: &Checked) -> Vec<&'static str> {
    let used = HOST_FUNCTIONS.iter().filter(|spec| checked.imports.contains(&spec.function));
    used.map(|spec| spec.name).collect()
}

fn hooks(checked: &Checked) -> Vec<&'static str> {
    let hooks = checked.hooks;
    let all = [
        (true, "on_packet"),
        (hooks.on_start, "on_start"),
        (hooks.on_timer, "on_timer"),
        (hooks.on_message, "on_message"),
        (hooks.on_memory_low, "on_memory_low"),
        (hooks.state_out, "state_out"),
        (hooks.state_in, "state_in"),
    ];
    all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect()
}

fn text(checked: &Checked, size: usize, fits: &[Fit]) -> String {
    let manifest = &checked.manifest;
    let mut rows = Rows::pairs();
    let mut add = |name: &str, value: String| rows.add([name.to_owned(), value]);
    add(
        "module",
        format!("{} {}, {size} bytes, ABI {}", manifest.name, manifest.version, manifest.abi),
    );
    if !manifest.description.is_empty() {
        add("about", manifest.description.clone());
    }
    add("window", format!("{} bytes", manifest.window));
    let memory = checked.memory;
    add("memory", format!("{} KiB, at most {} KiB", memory.pages_min * 64, memory.pages_max * 64));
    add("lanes", manifest.lanes.to_string());
    add("hooks", hooks(checked).join(" "));
    add("imports", or_none(&imports(checked)));
    let counters: Vec<_> = checked.counters.iter().map(|c| c.name.as_str()).collect();
    add("counters", or_none(&counters));
    for (name, parameter) in &manifest.parameters {
        let default = parameter
            .default
            .as_ref()
            .map_or("must be set".to_owned(), |value| format!("default {value}"));
        let kind = format!("{:?}", parameter.kind).to_lowercase();
        add("parameter", format!("{name}: {kind}, {default}; {}", parameter.description));
    }
    let mut levels = Rows::new(["level", "fits", "why"]);
    for fit in fits {
        let yes = if fit.fits { "yes" } else { "no" };
        levels.add([fit.level.name().to_owned(), yes.to_owned(), fit.reason.to_owned()]);
    }
    format!("{rows}\n{levels}")
}

fn or_none(names: &[&str]) -> String {
    match names.len().checked_sub(NAMES_SHOWN) {
        None if names.is_empty() => "none".to_owned(),
        None | Some(0) => names.join(" "),
        Some(more) => format!("{} and {more} more", names[..NAMES_SHOWN].join(" ")),
    }
}
