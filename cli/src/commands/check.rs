//! `tam check`: checks that a module keeps to the ABI, and finds the levels that it fits.

use super::{Context, read_module};
use crate::amounts;
use crate::failure::Outcome;
use crate::output::Rows;
use crate::source::Lines;
use abi::check::Kind;
use abi::host::HOST_FUNCTIONS;
use abi::{Checked, HostFunctions, Level};
use api::SCHEMA_VERSION;
use clap::Args;
use serde_json::{Value, json};
use std::fmt;
use std::path::PathBuf;
use wasm_to_bpf::{Cost, Entry, Flavour, Options, Refusal};

/// Arguments of `tam check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The module
    #[arg(value_name = "MODULE.wasm")]
    module: PathBuf,
}

/// Result for one level: whether the module fits, and why not.
struct Fit {
    level: Level,
    fits: bool,
    /// True if the manifest lists the level.
    declared: bool,
    reason: String,
    /// Cost of a packet at the level, where the compiler can tell.
    cost: Option<Cost>,
    refusals: Vec<LevelRefusal>,
}

/// Reason why a module does not fit, with its source line when there is debug information.
struct LevelRefusal {
    refusal: Refusal,
    line: Option<String>,
}

/// Reasons shown in the table for people; the JSON document has all.
const REASONS_SHOWN: usize = 8;
/// Bytes of a page of linear memory (WebAssembly 2.0, 4.2.8).
const PAGE_LENGTH: u64 = 64 << 10;
/// Names shown in one line for people; the JSON document has all.
const NAMES_SHOWN: usize = 16;

impl Check {
    pub(crate) fn run(&self, context: &Context<'_>) -> Outcome {
        let (bytes, checked) = read_module(&self.module)?;
        let fits = fits(&bytes, &checked);
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

fn fits(bytes: &[u8], checked: &Checked) -> Vec<Fit> {
    let lines = Lines::read(bytes);
    let fit = |&level: &Level| {
        let declared = checked.manifest.levels.contains(&level);
        let simple = |fits, reason: &str| {
            let reason = reason.to_owned();
            Fit { level, fits, declared, reason, cost: None, refusals: Vec::new() }
        };
        if checked.kind == Kind::Streams {
            return match (level, proxy_wasm::check(bytes)) {
                (Level::User, Ok(_)) => simple(true, "the module keeps to the proxy-wasm ABI"),
                (Level::User, Err(error)) => simple(false, &error.to_string()),
                _ => simple(false, "a module for streams runs at user level alone"),
            };
        }
        match level {
            Level::User => simple(true, "the module keeps to the packet ABI"),
            Level::Cluster => simple(false, "not in this version: a node has no back-ends yet"),
            Level::Nic => below(bytes, checked, level, Flavour::Xdp, lines.as_ref()),
            Level::Kernel => below(bytes, checked, level, Flavour::Tc, lines.as_ref()),
        }
    };
    Level::ALL.iter().map(fit).collect()
}

/// Returns the result for an in-kernel level: whether the module compiles to eBPF.
fn below(
    bytes: &[u8],
    checked: &Checked,
    level: Level,
    flavour: Flavour,
    lines: Option<&Lines<'_>>,
) -> Fit {
    let options = Options {
        entry: Entry::Packet { window: checked.manifest.window, standalone: false },
        flavour,
        memory_pages_max: checked.memory.pages_max,
        functions: HostFunctions::ALL,
    };
    let declared = checked.manifest.levels.contains(&level);
    match wasm_to_bpf::compile(bytes, &options) {
        Ok(program) => {
            let cost = Some(program.cost);
            let reason = format!("it becomes {} eBPF instructions", program.instructions.len());
            Fit { level, fits: true, declared, reason, cost, refusals: Vec::new() }
        }
        Err(refusals) => {
            let found = |refusal: Refusal| {
                let line = lines.and_then(|lines| lines.at(refusal.place?));
                LevelRefusal { refusal, line }
            };
            let refusals: Vec<LevelRefusal> = refusals.into_iter().map(found).collect();
            let reason = refusals.first().map_or_else(String::new, LevelRefusal::to_string);
            Fit { level, fits: false, declared, reason, cost: None, refusals }
        }
    }
}

impl fmt::Display for LevelRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            Some(line) => write!(out, "{line}: {}", self.refusal),
            None => write!(out, "{}", self.refusal),
        }
    }
}

fn fit_document(fit: &Fit) -> Value {
    let refusals = fit.refusals.iter().map(|found| {
        let refusal = &found.refusal;
        json!({
            "code": refusal.code(),
            "message": refusal.reason.to_string(),
            "function": refusal.function,
            "name": refusal.name,
            "place": refusal.place,
            "source": found.line,
        })
    });
    json!({
        "level": fit.level.name(),
        "fits": fit.fits,
        "declared": fit.declared,
        "reason": fit.reason,
        "cost": fit.cost,
        "refusals": refusals.collect::<Vec<_>>(),
    })
}

/// Returns what a module declares and uses, as a JSON document.
pub(crate) fn declared(checked: &Checked) -> Value {
    let manifest = &checked.manifest;
    let parameters = manifest.parameters.iter().map(|(name, parameter)| {
        let default = parameter.default.as_ref().map(ToString::to_string);
        let of = parameter.kind;
        json!({"name": name, "type": of, "default": default, "description": parameter.description})
    });
    json!({
        "kind": checked.kind,
        "abi": manifest.abi,
        "name": manifest.name,
        "version": manifest.version,
        "description": manifest.description,
        "window": manifest.window,
        "state_version": manifest.state_version,
        "lanes": manifest.lanes.to_string(),
        "pools": manifest.pools,
        "flows_by": manifest.flows_by,
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
        (checked.kind == Kind::Packets, "on_packet"),
        (hooks.on_start, "on_start"),
        (hooks.on_timer, "on_timer"),
        (hooks.on_message, "on_message"),
        (hooks.on_memory_low, "on_memory_low"),
        (hooks.on_queue, "on_queue"),
        (hooks.state, "state_out"),
        (hooks.state, "state_in"),
    ];
    all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect()
}

fn text(checked: &Checked, size: usize, fits: &[Fit]) -> String {
    let manifest = &checked.manifest;
    let mut rows = Rows::pairs();
    let mut add = |name: &str, value: String| rows.add([name.to_owned(), value]);
    let abi = match checked.kind {
        Kind::Packets => format!("ABI {}", manifest.abi),
        Kind::Streams => "for streams (proxy-wasm)".to_owned(),
    };
    add("module", format!("{} {}, {size} bytes, {abi}", manifest.name, manifest.version));
    if !manifest.description.is_empty() {
        add("about", manifest.description.clone());
    }
    let memory = checked.memory;
    let pages = |count: u32| amounts::size(u64::from(count) * PAGE_LENGTH);
    let (least, most) = (pages(memory.pages_min), pages(memory.pages_max));
    add("memory", format!("{least}, at most {most}"));
    if checked.kind == Kind::Packets {
        add("window", format!("{} bytes", manifest.window));
        add("lanes", manifest.lanes.to_string());
    }
    for pool in &manifest.pools {
        let events: Vec<_> = pool.events.iter().map(|event| event.name()).collect();
        let (name, lanes, processor) = (&pool.name, pool.lanes, pool.processor);
        let events = events.join(" ");
        add("pool", format!("{name}: {lanes} lanes on processor {processor}; {events}"));
    }
    if !manifest.flows_by.is_empty() {
        let fields: Vec<_> = manifest.flows_by.iter().map(|field| field.name()).collect();
        add("flows by", fields.join(" "));
    }
    if checked.kind == Kind::Packets {
        add("hooks", hooks(checked).join(" "));
        add("imports", or_none(&imports(checked)));
        let counters: Vec<_> = checked.counters.iter().map(|c| c.name.as_str()).collect();
        add("counters", or_none(&counters));
    }
    for (name, parameter) in &manifest.parameters {
        let default = parameter.default.as_ref().map_or("must be set".to_owned(), |value| {
            match value.to_string() {
                empty if empty.is_empty() => "empty by default".to_owned(),
                value => format!("default {value}"),
            }
        });
        let kind = format!("{:?}", parameter.kind).to_lowercase();
        add("parameter", format!("{name}: {kind}, {default}; {}", parameter.description));
    }
    let mut levels = Rows::new(["level", "fits", "declared", "a packet costs", "why"]);
    let yes_or_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    for fit in fits {
        levels.add([
            fit.level.name().to_owned(),
            yes_or_no(fit.fits),
            yes_or_no(fit.declared),
            fit.cost.as_ref().map_or_else(String::new, cost_text),
            fit.reason.clone(),
        ]);
    }
    format!("{rows}\n{levels}{}", more_reasons(fits))
}

/// Describes the static cost of one packet.
fn cost_text(cost: &Cost) -> String {
    let straight = cost.instructions_max;
    if cost.has_loops {
        format!("{straight} instructions, more as its loops turn")
    } else {
        format!("at most {straight} instructions")
    }
}

/// Lists the reasons beyond the first of each level.
fn more_reasons(fits: &[Fit]) -> String {
    let mut text = String::new();
    for fit in fits.iter().filter(|fit| fit.refusals.len() > 1) {
        text += &format!("\nwhy not at {}:\n", fit.level);
        for found in fit.refusals.iter().take(REASONS_SHOWN) {
            text += &format!("  {found}\n");
        }
        if let Some(more) = fit.refusals.len().checked_sub(REASONS_SHOWN).filter(|&more| more > 0) {
            text += &format!("  and {more} more ('--json' has them all)\n");
        }
    }
    text
}

fn or_none(names: &[&str]) -> String {
    match names.len().checked_sub(NAMES_SHOWN) {
        None if names.is_empty() => "none".to_owned(),
        None | Some(0) => names.join(" "),
        Some(more) => format!("{} and {more} more", names[..NAMES_SHOWN].join(" ")),
    }
}
