//! One module of the suite: in the kernel export by export, and in wasmtime.

use std::collections::HashMap;

use wasmparser::{ExternalKind, Parser, Payload};

use super::link;
use crate::compile::{self, NoProgram};
use crate::kernel::{Instance, Loaded};
use crate::outcome::Outcome;
use crate::peer::{Peer, Wasmtime};

/// What a module of the suite may grow to: the largest growth in it is to 803 pages.
const PAGES_MAX: u32 = 1024;

/// What came of a call.
pub(super) enum Answer {
    /// The compiler said no.
    Refused(String),
    /// It ran.
    Ran {
        kernel: Outcome,
        /// The same call in wasmtime, where it could be made.
        peer: Option<Outcome>,
        /// An earlier call of this instance was refused.
        stale: bool,
    },
    /// The compiler said yes, and then it did not run: as bad as a wrong result.
    Failed(String),
}

/// One instance in both.
pub(super) struct Subject {
    bytes: Vec<u8>,
    kernel: Option<Instance>,
    functions: HashMap<String, Result<Loaded, String>>,
    peer: Option<Wasmtime>,
    stale: bool,
}

impl Subject {
    /// A new instance in both; a start function is run.
    pub(super) fn new(engine: &wasmtime::Engine, bytes: Vec<u8>) -> Self {
        Self::started(engine, bytes).0
    }

    /// What the start of a module gives that is expected not to start.
    pub(super) fn start(engine: &wasmtime::Engine, bytes: Vec<u8>) -> Answer {
        Self::started(engine, bytes).1
    }

    fn started(engine: &wasmtime::Engine, bytes: Vec<u8>) -> (Self, Answer) {
        let linked = link::link(&bytes);
        let has_start = linked.as_ref().is_some_and(|linked| linked.has_start);
        let bytes = linked.map_or(bytes, |linked| linked.bytes);
        let peer = Wasmtime::new(engine, &bytes).ok();
        let mut subject =
            Self { bytes, kernel: None, functions: HashMap::new(), peer, stale: false };
        // Globals can be asked for before anything else is called.
        let mut answer = subject.call(link::NOTHING, &[]);
        if has_start {
            answer = subject.call(link::START, &[]);
        }
        (subject, answer)
    }

    /// A call that cannot be made here.
    pub(super) fn skipped(&mut self, reason: &str) -> Answer {
        self.stale = true;
        Answer::Refused(reason.to_owned())
    }

    pub(super) fn call(&mut self, name: &str, arguments: &[u64]) -> Answer {
        if let Err(message) = self.prepare(name) {
            return Answer::Failed(message);
        }
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
            Ok(outcome) => Answer::Ran { kernel: outcome, peer, stale: self.stale },
            Err(error) => Answer::Failed(format!("'{name}': {error}")),
        }
    }

    /// The value of an exported global.
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

/// The index of an exported global.
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
