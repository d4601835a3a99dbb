//! Instances of the suite that share state, linked into one: in the kernel export by export, and in
//! wasmtime.

use std::collections::HashMap;

use wasmparser::{ExternalKind, Parser, Payload};

use super::link::Linked;
use crate::compile::{self, NoProgram};
use crate::kernel::{Instance, Loaded};
use crate::outcome::Outcome;
use crate::peer::{Peer, Wasmtime};

/// Most pages of a memory: the largest growth in the suite is to 803 pages.
const PAGES_MAX: u32 = 1024;

/// Result of a call.
pub(super) enum Answer {
    /// The compiler refused; the code of its reason.
    Refused(String),
    /// The call ran.
    Ran {
        kernel: Outcome,
        /// Outcome of the same call in wasmtime, if it could be made.
        peer: Option<Outcome>,
        /// True if an earlier call of this instance was refused.
        stale: bool,
    },
    /// The compiler accepted the export, but it did not run: as bad as a wrong result.
    Failed(String),
}

/// Instance in both engines.
pub(super) struct Group {
    pub(super) bytes: Vec<u8>,
    /// Results of each exported function: true for a reference to a function.
    results: HashMap<String, Vec<bool>>,
    kernel: Option<Instance>,
    functions: HashMap<String, Result<Loaded, String>>,
    peer: Option<Wasmtime>,
    stale: bool,
    /// True if a module that could not be linked imports from it.
    pub(super) is_shared: bool,
    /// Calls so far, to bring another instance to the same state.
    pub(super) calls: Vec<Call>,
}

/// Call that was made.
#[derive(Clone)]
pub(super) struct Call {
    name: String,
    arguments: Vec<u64>,
}

impl Group {
    /// Makes an instance in both engines, with the calls of its predecessors repeated.
    pub(super) fn new(engine: &wasmtime::Engine, linked: Linked, before: Vec<Call>) -> Self {
        let Linked { bytes, functions, .. } = linked;
        let mut group = Self::unlinked(engine, bytes);
        group.results = functions;
        for Call { name, arguments } in before {
            group.call(&name, &arguments);
        }
        group
    }

    /// Makes a group for a module whose imports do not exist.
    pub(super) fn unlinked(engine: &wasmtime::Engine, bytes: Vec<u8>) -> Self {
        let peer = Wasmtime::new(engine, &bytes).ok();
        Self {
            bytes,
            results: HashMap::new(),
            kernel: None,
            functions: HashMap::new(),
            peer,
            stale: false,
            is_shared: false,
            calls: Vec::new(),
        }
    }

    /// Records a call that cannot be made here.
    pub(super) fn skipped(&mut self, reason: &str) -> Answer {
        self.stale = true;
        Answer::Refused(reason.to_owned())
    }

    pub(super) fn call(&mut self, name: &str, arguments: &[u64]) -> Answer {
        if let Err(message) = self.prepare(name) {
            return Answer::Failed(message);
        }
        self.calls.push(Call { name: name.to_owned(), arguments: arguments.to_vec() });
        // The peer keeps its state in step even where the kernel has none.
        let peer = self.peer.as_mut().and_then(|peer| peer.call(name, arguments).ok());
        let function = match self.functions.get(name) {
            Some(Ok(function)) => function,
            Some(Err(reason)) => {
                self.stale = true;
                return Answer::Refused(reason.clone());
            }
            None => return Answer::Failed(format!("'{name}' is not prepared")),
        };
        let Some(kernel) = &self.kernel else {
            return Answer::Failed(format!("'{name}' has no instance"));
        };
        match kernel.call(function, arguments) {
            Ok(outcome) => {
                let kernel = self.comparable(name, outcome);
                Answer::Ran { kernel, peer, stale: self.stale }
            }
            Err(error) => Answer::Failed(format!("'{name}': {error}")),
        }
    }

    /// Returns the value of an exported global.
    pub(super) fn global(&mut self, name: &str) -> Answer {
        let Some(index) = exported_global(&self.bytes, name) else {
            return Answer::Refused("import".into());
        };
        // Which globals there are is known once anything of the module is compiled.
        let Some(value) = self.kernel.as_ref().and_then(|kernel| kernel.global(index)) else {
            return Answer::Refused("global_only".into());
        };
        let peer = self.peer.as_mut().and_then(|peer| peer.global(name));
        let peer = peer.map(|value| Outcome::Returned(vec![value]));
        Answer::Ran { kernel: Outcome::Returned(vec![value]), peer, stale: self.stale }
    }

    /// Replaces function references by 1: every engine has its own numbers for functions.
    fn comparable(&self, name: &str, outcome: Outcome) -> Outcome {
        match (outcome, self.results.get(name)) {
            (Outcome::Returned(mut values), Some(functions)) => {
                for (value, _) in values.iter_mut().zip(functions).filter(|(_, is)| **is) {
                    *value = u64::from(*value != 0);
                }
                Outcome::Returned(values)
            }
            (outcome, _) => outcome,
        }
    }

    /// Compiles and loads an export once.
    fn prepare(&mut self, name: &str) -> Result<(), String> {
        if self.functions.contains_key(name) {
            return Ok(());
        }
        let prepared = match compile::export(&self.bytes, name, PAGES_MAX) {
            Ok(program) => {
                let kernel = match self.kernel.take() {
                    Some(kernel) => kernel,
                    None => Instance::new(&program.image).map_err(|error| error.to_string())?,
                };
                let kernel = self.kernel.insert(kernel);
                Ok(kernel.load(&program).map_err(|error| format!("'{name}': {error}"))?)
            }
            Err(NoProgram::Refused(code)) => Err(code),
            Err(NoProgram::Panicked) => return Err(format!("'{name}': the compiler panics")),
        };
        self.functions.insert(name.to_owned(), prepared);
        Ok(())
    }
}

/// Returns true if all instances of the module are alike at any time: it has no memory, no table,
/// no segment, no mutable global and no start function.
pub(super) fn is_without_state(bytes: &[u8]) -> bool {
    Parser::new(0).parse_all(bytes).flatten().all(|payload| match payload {
        Payload::MemorySection(section) => section.count() == 0,
        Payload::TableSection(section) => section.count() == 0,
        Payload::ElementSection(section) => section.count() == 0,
        Payload::DataSection(section) => section.count() == 0,
        Payload::GlobalSection(section) => {
            section.into_iter().flatten().all(|global| !global.ty.mutable)
        }
        Payload::StartSection { .. } => false,
        Payload::ImportSection(section) => section.count() == 0,
        _ => true,
    })
}

/// Returns the index of an exported global.
fn exported_global(bytes: &[u8], name: &str) -> Option<u32> {
    let payloads = Parser::new(0).parse_all(bytes).flatten();
    let exports = payloads.filter_map(|payload| match payload {
        Payload::ExportSection(exports) => Some(exports),
        _ => None,
    });
    exports
        .flat_map(|exports| exports.into_iter().flatten())
        .find(|export| export.name == name && export.kind == ExternalKind::Global)
        .map(|export| export.index)
}
