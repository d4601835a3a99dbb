//! Files of the table: from TOML text to cases, or to an error with file and line.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use crate::{Case, Ending, EndingError, Event, FrameTextError, Module, Outcome, Sent, frame};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Files of the table: name and text.
        pub const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../vectors/conformance/", $name)))),*];
    };
}
files!(
    "host.toml",
    "metadata.toml",
    "services.toml",
    "start.toml",
    "state.toml",
    "traps.toml",
    "verdicts.toml",
    "window.toml",
);

/// Prefix by which a case names a service of the project instead of a module of its file.
const SERVICE_PREFIX: &str = "service:";

/// Reason why a file is no table.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is no TOML, or a field is unknown, missing or of another type.
    #[error("{file}:{line}: {reason}")]
    Toml {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
        /// Message of the TOML reader.
        reason: String,
    },
    /// The frame cannot be parsed.
    #[error("{file}:{line}: {source}")]
    Frame {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
        /// Fault of the frame.
        source: FrameTextError,
    },
    /// The value of `ends` cannot be parsed.
    #[error("{file}:{line}: {source}")]
    Ending {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
        /// Fault of the ending.
        source: EndingError,
    },
    /// The module's text is no WebAssembly.
    #[error("{file}:{line}: the module '{module}' is not valid: {reason}")]
    Module {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
        /// Name of the module.
        module: String,
        /// Message of the translator.
        reason: String,
    },
    /// The case names a module that its file does not have.
    #[error("{file}:{line}: no module '{module}'; the file has {known}")]
    UnknownModule {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
        /// Name in the case.
        module: String,
        /// List of the file's modules.
        known: String,
    },
    /// The data of the event is no hexadecimal text.
    #[error("{file}:{line}: an event's data is not an even number of hexadecimal digits")]
    Data {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
    },
    /// The name of the case is used twice.
    #[error("{file}:{line}: a second case is named '{name}'; names are for finding one")]
    Twice {
        /// Name of the file.
        file: String,
        /// Line number.
        line: usize,
        /// Name of the case.
        name: String,
    },
}

/// Returns every case of the table, in the order of the files.
///
/// # Panics
/// Never: the files are part of this crate, and its tests load them.
#[must_use]
pub fn cases() -> Vec<Case> {
    let load =
        |(file, text): &(&str, &str)| load(file, text).unwrap_or_else(|error| panic!("{error}"));
    FILES.iter().flat_map(load).collect()
}

/// Reads one file; `file` is its name in messages and in cases.
///
/// # Errors
/// The first fault, with its line.
pub fn load(file: &str, text: &str) -> Result<Vec<Case>, LoadError> {
    let table: Table = toml::from_str(text).map_err(|error| LoadError::Toml {
        file: file.to_owned(),
        line: line_at(text, error.span().map_or(0, |span| span.start)),
        reason: error.message().to_owned(),
    })?;
    let source = Source { file, text };
    let modules = source.modules(&table)?;
    let mut names = BTreeSet::new();
    let mut cases = Vec::new();
    for row in table.cases {
        if !names.insert(row.name.get_ref().clone()) {
            let (file, line, name) = source.place(&row.name);
            return Err(LoadError::Twice { file, line, name: name.clone() });
        }
        cases.push(source.case(row, &modules)?);
    }
    Ok(cases)
}

/// File as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    modules: BTreeMap<String, ModuleText>,
    cases: Vec<Row>,
}

/// Code of the reason for each level that refuses.
type Refused = BTreeMap<abi::Level, String>;
/// Modules of a file: bytes, and the levels that refuse them.
type Modules = BTreeMap<String, (Vec<u8>, Refused)>;

/// Module: its manifest without the fields that all of them share, and its body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModuleText {
    manifest: String,
    wat: Spanned<String>,
    /// Levels that refuse the module, with the reason's code.
    #[serde(default)]
    refused: Refused,
}

/// Case as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: Spanned<String>,
    module: Spanned<String>,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    /// Levels that refuse this case beside those that refuse its module.
    #[serde(default)]
    refused: Refused,
    #[serde(default)]
    before: Vec<Spanned<String>>,
    frame: Spanned<String>,
    ends: Spanned<String>,
    frame_out: Option<Spanned<String>>,
    #[serde(default)]
    counters: BTreeMap<String, i64>,
    #[serde(default)]
    sent: Vec<SentRow>,
    #[serde(default)]
    events: Vec<EventRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentRow {
    port: String,
    frame: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventRow {
    code: u32,
    data: Spanned<String>,
}

/// File being read, for the lines of faults.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    /// Returns file, line and value.
    fn place<'v, T>(&self, value: &'v Spanned<T>) -> (String, usize, &'v T) {
        let Range { start, .. } = value.span();
        (self.file.to_owned(), line_at(self.text, start), value.get_ref())
    }

    fn modules(&self, table: &Table) -> Result<Modules, LoadError> {
        let translated = |(name, module): (&String, &ModuleText)| {
            let (file, line, body) = self.place(&module.wat);
            let manifest =
                format!("abi = 1\nname = \"{name}\"\nversion = \"1.0.0\"\n{}", module.manifest);
            let section = manifest.escape_default();
            let text = format!("(module {body} (@custom \"tamandua\" \"{section}\"))");
            let wasm = wat::parse_str(text).map_err(|error| LoadError::Module {
                file,
                line,
                module: name.clone(),
                reason: error.to_string(),
            })?;
            Ok((name.clone(), (wasm, module.refused.clone())))
        };
        table.modules.iter().map(translated).collect()
    }

    fn case(&self, row: Row, modules: &Modules) -> Result<Case, LoadError> {
        let (file, line, name) = self.place(&row.name);
        let name = name.clone();
        let came = self.frame(&row.frame, None)?;
        let ending: Ending = row.ends.get_ref().parse().map_err(|error| {
            let (file, line, _) = self.place(&row.ends);
            LoadError::Ending { file, line, source: error }
        })?;
        let left = match &row.frame_out {
            Some(text) => Some(self.frame(text, Some(&came))?),
            None => ending.keeps_packet().then(|| came.clone()),
        };
        let sent = |sent: &SentRow| {
            Ok(Sent { port: sent.port.clone(), frame: self.frame(&sent.frame, Some(&came))? })
        };
        let event = |event: &EventRow| {
            let (file, line, digits) = self.place(&event.data);
            let data = hex::decode(digits).map_err(|_| LoadError::Data { file, line })?;
            Ok(Event { code: event.code, data })
        };
        let expected = Outcome {
            ending,
            frame: left,
            // A negative number is what the module's u64 holds in two's complement.
            counters: row.counters.into_iter().map(|(name, value)| (name, value as u64)).collect(),
            sent: row.sent.iter().map(sent).collect::<Result<_, LoadError>>()?,
            events: row.events.iter().map(event).collect::<Result<_, LoadError>>()?,
        };
        let before: Result<_, LoadError> =
            row.before.iter().map(|text| self.frame(text, Some(&came))).collect();
        let (module, mut refused) = self.module(&row.module, modules)?;
        refused.extend(row.refused);
        let (before, parameters) = (before?, row.parameters);
        Ok(Case { name, file, line, module, parameters, refused, before, frame: came, expected })
    }

    fn module(
        &self,
        named: &Spanned<String>,
        modules: &Modules,
    ) -> Result<(Module, Refused), LoadError> {
        let (file, line, name) = self.place(named);
        if let Some(service) = name.strip_prefix(SERVICE_PREFIX) {
            return Ok((Module::Service(service.to_owned()), Refused::new()));
        }
        let known = || modules.keys().cloned().collect::<Vec<_>>().join(", ");
        match modules.get(name) {
            Some((wasm, refused)) => Ok((Module::Wasm(wasm.clone()), refused.clone())),
            None => {
                let (module, known) = (name.clone(), known());
                Err(LoadError::UnknownModule { file, line, module, known })
            }
        }
    }

    fn frame(&self, text: &Spanned<String>, same: Option<&[u8]>) -> Result<Vec<u8>, LoadError> {
        let (file, line, words) = self.place(text);
        frame(words, same).map_err(|source| LoadError::Frame { file, line, source })
    }
}

/// Returns the line of byte `at`, counted from 1.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
