//! `tam apply`, `diff`, `confirm`: the services and rules of a node file, applied to a node.
//!
//! The node reads and checks the text. The modules are read here, since their paths are relative to
//! the file. The node is asked twice: first what would change, with the manifests of modules that
//! it lacks; only when it accepts all of that are its modules uploaded and the text applied.

use super::deploy::read_signatures;
use super::{Context, read_module};
use crate::failure::{Failure, Outcome};
use crate::style::{Ink, Stream};
use crate::user_files::read_file;
use api::{Applied, ApplyModule, ApplyRequest, Client, ErrorCode};
use clap::Args;
use daemon::Wanted;
use daemon::config::{FILE_LENGTH_MAX, is_file};
use std::path::{Path, PathBuf};

/// Arguments of `tam apply`.
#[derive(Debug, Args)]
pub struct Apply {
    /// A node file: services and rules; ports and settings may be left out
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Undo the change unless `tam confirm` comes within this time, as in 60s or 5m
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    confirm: Option<u64>,
    /// Start new versions with empty state where they cannot take over the old version's state
    #[arg(long)]
    discard_state: bool,
    /// Accept signed modules older than the version that ran here before
    #[arg(long)]
    allow_older: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `tam diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// A node file: services and rules; ports and settings may be left out
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Arguments of `tam confirm`.
#[derive(Debug, Args)]
pub struct Confirm {}

/// A file that is to be applied, and its modules.
struct Text {
    request: ApplyRequest,
    /// Modules, each with its signatures.
    wasm: Vec<(Vec<u8>, Option<String>)>,
    client: Client,
}

impl Apply {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let mut text = Text::read(&self.file, context)?;
        text.request.confirm_s = self.confirm;
        text.request.discard_state = self.discard_state;
        text.request.allow_older = self.allow_older;
        text.request.fetch = !self.dry_run;
        let would = text.ask()?;
        if self.dry_run {
            return context.output.result(&would, || diff_text(&would, &self.file));
        }
        if !would.changes.is_empty() {
            context.output.progress(&format!("applying {}", self.file.display()));
        }
        let applied = text.apply()?;
        context.output.result(&applied, || applied_text(&applied))
    }
}

impl Diff {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let mut text = Text::read(&self.file, context)?;
        // Lost state is reported here, not refused.
        text.request.discard_state = true;
        let would = text.ask()?;
        context.output.result(&would, || diff_text(&would, &self.file))
    }
}

impl Confirm {
    pub(crate) fn run(self, context: &Context<'_>) -> Outcome {
        let confirmed = context.client()?.confirm()?;
        context.output.result(&confirmed, || {
            format!("generation {} is confirmed: it stays", confirmed.generation)
        })
    }
}

impl Text {
    fn read(path: &Path, context: &Context<'_>) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let bytes = read_file(path, FILE_LENGTH_MAX as u64)?;
        let text = String::from_utf8(bytes).map_err(|_| {
            let message = format!("{shown} is no UTF-8 text");
            Failure::new(ErrorCode::Usage, message).help("save it as UTF-8")
        })?;
        let wrong = |error: daemon::ConfigError| {
            Failure::new(ErrorCode::Usage, error.to_string())
                .help("correct the file; nothing has changed")
        };
        let named = Wanted::node_of(&text, &shown).map_err(wrong)?;
        let client = match context.node.as_ref().or(named.as_ref()) {
            Some(node) => context.client_of(Some(node))?,
            None => context.client()?,
        };
        // An absolute path: it may be the file that the node was started with.
        let file = path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string();
        let mut request = ApplyRequest { file, dry_run: true, ..ApplyRequest::default() };
        let mut wasm = Vec::new();
        let beside = path.parent().unwrap_or_else(|| Path::new("."));
        for named in Wanted::modules(&text, &shown).map_err(wrong)? {
            let module = &named.module;
            if !is_file(module) || request.modules.contains_key(module) {
                continue;
            }
            let of_line =
                |failure: Failure| Failure { message: named.at(&failure.message), ..failure };
            let (bytes, checked) = read_module(&beside.join(module)).map_err(of_line)?;
            let signatures = read_signatures(&beside.join(module)).map_err(of_line)?;
            let digest = module_store::Digest::of(&bytes).to_string();
            let manifest = serde_json::to_value(&checked.manifest).map_err(|error| {
                Failure::failed(format!("writing the manifest of {module}: {error}"))
            })?;
            let manifest = Some(manifest);
            let hands_state_over = checked.hooks.state;
            let memory_image = Some(format!("{:016x}", checked.image.0));
            let sent = ApplyModule { digest, manifest, hands_state_over, memory_image };
            request.modules.insert(module.clone(), sent);
            wasm.push((bytes, signatures));
        }
        request.text = text;
        Ok(Self { request, wasm, client })
    }

    /// Asks the node what the request would change.
    fn ask(&self) -> Result<Applied, Failure> {
        Ok(self.client.apply(&self.request)?)
    }

    fn apply(mut self) -> Result<Applied, Failure> {
        for (wasm, signatures) in self.wasm {
            let digest = self.client.store_module(wasm)?.digest;
            if let Some(file) = signatures {
                self.client.add_signatures(&digest, &file)?;
            }
        }
        for module in self.request.modules.values_mut() {
            module.manifest = None;
        }
        self.request.dry_run = false;
        Ok(self.client.apply(&self.request)?)
    }
}

/// A time as in `60s`, `5m` or `1h`; seconds where there is no unit.
fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time; write one like 60s, 5m or 1h");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

fn diff_text(would: &Applied, file: &Path) -> String {
    if would.changes.is_empty() {
        return format!("nothing would change: the node runs what {} says", file.display());
    }
    let head = format!("--- generation {}\n+++ {}\n", would.generation, file.display());
    head + &changes_text(would) + &notes(would)
}

/// Returns one line for each change: `+` added, `-` removed, `~` changed in place.
pub(super) fn changes_text(applied: &Applied) -> String {
    let mut text = String::new();
    let mut add = |line: String| {
        text.push_str(&Stream::Output.paint(ink_of(&line), &line));
        text.push('\n');
    };
    for change in &applied.changes {
        let sign = match change.kind.as_str() {
            "session-added" | "service-added" | "rule-added" => '+',
            "session-removed" | "service-removed" | "rule-removed" => '-',
            _ => '~',
        };
        add(format!("{sign} {}", change.text));
        for field in &change.fields {
            let name = &field.field;
            let short = |value: &String| match value.starts_with("sha256:") {
                true => super::short_digest(value).to_owned(),
                false => value.clone(),
            };
            match (&field.before, &field.after) {
                (None, Some(after)) => add(format!("+   {name} = {}", short(after))),
                (Some(before), None) => add(format!("-   {name} = {}", short(before))),
                (Some(before), Some(after)) => {
                    add(format!("-   {name} = {}", short(before)));
                    add(format!("+   {name} = {}", short(after)));
                }
                (None, None) => {}
            }
        }
    }
    text
}

fn ink_of(line: &str) -> Ink {
    match line.as_bytes().first() {
        Some(b'+') => Ink::Good,
        Some(b'-') => Ink::Bad,
        _ => Ink::Warning,
    }
}

fn notes(applied: &Applied) -> String {
    let said = applied.shadowed.iter().chain(&applied.lacks);
    said.map(|note| format!("note: {note}\n")).collect()
}

pub(super) fn applied_text(applied: &Applied) -> String {
    let generation = applied.generation;
    if applied.changes.is_empty() {
        return format!("nothing to change: generation {generation} is what the node shall run\n")
            + &notes(applied);
    }
    let within = applied.confirm_within_s.map_or_else(String::new, |seconds| {
        format!("; it is taken back in {seconds} s unless `tam confirm` comes before")
    });
    let took = applied.took_ms;
    changes_text(applied)
        + &notes(applied)
        + &format!("generation {generation} runs after {took} ms{within}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(seconds("60s"), Ok(60));
        assert_eq!(seconds("5m"), Ok(300));
        assert_eq!(seconds("1h"), Ok(3600));
        assert_eq!(seconds("90"), Ok(90));
        for wrong in ["", "s", "0s", "5d", "-1s", "1 h", "99999999999999999999s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
