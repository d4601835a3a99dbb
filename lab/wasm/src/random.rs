//! Random modules, the same for the same seed, run three ways: in the kernel,
//! in wasmtime, in wasmi. Results, traps, memory and globals must agree.
//!
//! Every second module is `wasm-smith`'s, the others are our own; here they are
//! called and compared.

mod compose;
mod generate;
mod rng;
mod shrink;

pub use shrink::shrink;

use wasm_to_bpf::Program;

use crate::compile::{self, NoProgram};
use crate::kernel::{Instance, KernelError, Loaded};
use crate::outcome::{Ending, Outcome};
use crate::peer::{Peer, PeerError, Wasmi, Wasmtime};
use generate::{Export, Generated};
use rng::Rng;

/// Instances of a module that are tried: each begins with another export.
const INSTANCES_MAX: usize = 4;
/// Calls on one instance.
const CALLS: usize = 4;

/// The module of a seed; some seeds give none.
#[must_use]
pub fn bytes_of(seed: u64) -> Option<Vec<u8>> {
    generate::module(seed, &mut Rng::new(seed)).map(|module| module.bytes)
}

/// What came of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All three agreed, in so many calls.
    Equal {
        /// Calls that were made in each.
        calls: u32,
        /// How many of them trapped.
        traps: u32,
    },
    /// The compiler refused all of it, or one of its exports, for a reason with this code.
    Refused(String),
    /// Nothing to compare: no exported function, recursion, or no end.
    Skipped(&'static str),
}

/// Why they do not agree.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// They say different things.
    #[error("seed {seed}: {what}\n{text}")]
    Mismatch {
        /// The seed.
        seed: u64,
        /// What differs.
        what: String,
        /// The module as text.
        text: String,
    },
    /// The compiler said yes, but it does not load or run.
    #[error("seed {seed}: '{export}': {source}\n{text}")]
    Kernel {
        /// The seed.
        seed: u64,
        /// The export.
        export: String,
        /// What happened.
        source: Box<KernelError>,
        /// The module as text.
        text: String,
    },
    /// The compiler must not panic on any input.
    #[error("seed {seed}: the compiler panics\n{text}")]
    Panic {
        /// The seed.
        seed: u64,
        /// The module as text.
        text: String,
    },
    /// A peer does not take the module: a defect of the test.
    #[error("seed {seed}: {source}")]
    Peer {
        /// The seed.
        seed: u64,
        /// What happened.
        source: PeerError,
    },
}

impl Fault {
    /// Whether the verifier gave up: a typed refusal as well, after the compiler's.
    fn is_too_complex(&self) -> bool {
        let Self::Kernel { source, .. } = self else { return false };
        matches!(**source, KernelError::Load(bpf::RawLoadError::TooComplex { .. }))
    }

    /// The same for faults that probably have one cause: the message without numbers.
    #[must_use]
    pub fn kind(&self) -> String {
        let message = match self {
            Self::Mismatch { what, .. } => what.split_whitespace().next().unwrap_or("").to_owned(),
            Self::Panic { .. } => "panic".to_owned(),
            Self::Kernel { source, .. } => source.to_string(),
            Self::Peer { source, .. } => source.to_string(),
        };
        // The verifier's own reason stands before its statistics.
        let mut lines = message.lines().rev().filter(|line| !line.contains("processed "));
        let line = lines.next().unwrap_or_default();
        line.chars().filter(|c| !c.is_ascii_digit()).take(120).collect()
    }
}

/// The engines that the kernel is compared with.
pub struct Engines {
    wasmtime: wasmtime::Engine,
    wasmi: wasmi::Engine,
}

impl Engines {
    /// Makes them.
    ///
    /// # Errors
    /// When wasmtime does not work on this machine.
    pub fn new() -> Result<Self, PeerError> {
        Ok(Self { wasmtime: Wasmtime::engine()?, wasmi: Wasmi::engine() })
    }

    /// Makes the module of a seed and compares.
    ///
    /// # Errors
    /// When the three do not agree, or the kernel does not take what the compiler gives.
    pub fn compare(&self, seed: u64) -> Result<Verdict, Fault> {
        match generate::module(seed, &mut Rng::new(seed)) {
            Some(module) => self.compare_module(seed, &module),
            None => Ok(Verdict::Skipped("no_export")),
        }
    }

    /// The same for a module that is given, called with the arguments of a seed.
    ///
    /// # Errors
    /// As [`Engines::compare`].
    pub fn compare_bytes(&self, seed: u64, bytes: Vec<u8>) -> Result<Verdict, Fault> {
        match Generated::of(bytes) {
            Some(module) => self.compare_module(seed, &module),
            None => Ok(Verdict::Skipped("no_export")),
        }
    }

    fn compare_module(&self, seed: u64, module: &Generated) -> Result<Verdict, Fault> {
        let mut programs = Vec::new();
        for export in &module.functions {
            match compile::export(&module.bytes, &export.name, compose::PAGES_MAX) {
                Ok(program) => programs.push((export, program)),
                Err(NoProgram::Refused(code)) if code == "recursion" => {
                    return Ok(Verdict::Skipped("recursion"));
                }
                Err(NoProgram::Refused(code)) => return Ok(Verdict::Refused(code)),
                Err(NoProgram::Panicked) => {
                    return Err(Fault::Panic { seed, text: text(module) });
                }
            }
        }
        let mut rng = Rng::new(seed ^ 0x5eed);
        let (mut calls, mut traps) = (0, 0);
        for first in 0..programs.len().min(INSTANCES_MAX) {
            let mut trio = Trio::new(self, seed, module, &programs, first)?;
            for call in 0..CALLS {
                // The first one, its neighbour, the first one again...
                let (export, program) = &programs[(first + call % 2) % programs.len()];
                let arguments = rng.arguments(&export.parameters);
                let outcome = match trio.call(export, program, &arguments) {
                    Err(fault) if fault.is_too_complex() => {
                        return Ok(Verdict::Refused("too_complex".to_owned()));
                    }
                    outcome => outcome?,
                };
                match outcome {
                    Some(Outcome::Trapped(_)) => traps += 1,
                    Some(Outcome::Returned(_)) => {}
                    None => return Ok(Verdict::Skipped("endless")),
                }
                calls += 1;
            }
            trio.state()?;
        }
        Ok(Verdict::Equal { calls, traps })
    }
}

/// Three instances of one module.
struct Trio<'m> {
    seed: u64,
    module: &'m Generated,
    kernel: Instance,
    loaded: Vec<(String, Loaded)>,
    /// It takes all but references to things of the host.
    wasmtime: Option<Wasmtime>,
    wasmi: Wasmi,
}

impl<'m> Trio<'m> {
    fn new(
        engines: &Engines,
        seed: u64,
        module: &'m Generated,
        programs: &[(&Export, Program)],
        first: usize,
    ) -> Result<Self, Fault> {
        let peer = |source| Fault::Peer { seed, source };
        let (export, program) = &programs[first];
        let wasmtime =
            (!module.has_externals).then(|| Wasmtime::new(&engines.wasmtime, &module.bytes));
        let kernel = Instance::new(&program.image)
            .map_err(|source| fault(seed, module, &export.name, source))?;
        Ok(Self {
            seed,
            module,
            kernel,
            loaded: Vec::new(),
            wasmtime: wasmtime.transpose().map_err(peer)?,
            wasmi: Wasmi::new(&engines.wasmi, &module.bytes).map_err(peer)?,
        })
    }

    /// The outcome, or nothing when one of them found no end.
    fn call(
        &mut self,
        export: &Export,
        program: &Program,
        arguments: &[u64],
    ) -> Result<Option<Outcome>, Fault> {
        let (seed, name) = (self.seed, export.name.as_str());
        let peer = |source| Fault::Peer { seed, source };
        let in_kernel = self
            .in_kernel(name, program, arguments)
            .map_err(|source| fault(seed, self.module, name, source))?;
        let mut outcomes = vec![
            ("the kernel", in_kernel),
            ("wasmi", self.wasmi.call(name, arguments).map_err(peer)?),
        ];
        if let Some(wasmtime) = &mut self.wasmtime {
            outcomes.push(("wasmtime", wasmtime.call(name, arguments).map_err(peer)?));
        }
        let endless = Outcome::Trapped(Ending::Exhausted);
        if outcomes.iter().any(|(_, outcome)| *outcome == endless) {
            return Ok(None);
        }
        if outcomes.windows(2).all(|two| two[0].1 == two[1].1) {
            return Ok(outcomes.pop().map(|(_, outcome)| outcome));
        }
        Err(self.mismatch(format!("'{name}' with {arguments:#x?} gave {outcomes:x?}")))
    }

    fn in_kernel(
        &mut self,
        name: &str,
        program: &Program,
        arguments: &[u64],
    ) -> Result<Outcome, KernelError> {
        let at = match self.loaded.iter().position(|(loaded, _)| loaded == name) {
            Some(at) => at,
            None => {
                self.loaded.push((name.to_owned(), self.kernel.load(program)?));
                self.loaded.len() - 1
            }
        };
        self.kernel.call(&self.loaded[at].1, arguments)
    }

    /// Memory and globals, after the calls.
    fn state(&mut self) -> Result<(), Fault> {
        for (name, index) in &self.module.globals {
            let mut values = vec![self.kernel.global(*index), self.wasmi.global(name)];
            values.extend(self.wasmtime.as_mut().map(|wasmtime| wasmtime.global(name)));
            if values.windows(2).any(|two| two[0] != two[1]) {
                let what =
                    format!("global {index} ('{name}') is {values:x?} in kernel, wasmi, wasmtime");
                return Err(self.mismatch(what));
            }
        }
        let Some(name) = &self.module.memory else { return Ok(()) };
        let kernel =
            self.kernel.memory().map_err(|source| fault(self.seed, self.module, name, source))?;
        let wasmtime = self.wasmtime.as_mut().and_then(|wasmtime| wasmtime.memory(name));
        let peers = [wasmtime, self.wasmi.memory(name)];
        for peer in peers.into_iter().flatten() {
            if peer.len() != kernel.len() {
                let what =
                    format!("memory has {} bytes in the kernel, not {}", kernel.len(), peer.len());
                return Err(self.mismatch(what));
            }
            if let Some(at) = (0..peer.len()).find(|&at| peer[at] != kernel[at]) {
                let what = format!("memory at {at:#x} is {:#x}, not {:#x}", kernel[at], peer[at]);
                return Err(self.mismatch(what));
            }
        }
        Ok(())
    }

    fn mismatch(&self, what: String) -> Fault {
        Fault::Mismatch { seed: self.seed, what, text: text(self.module) }
    }
}

fn fault(seed: u64, module: &Generated, export: &str, source: KernelError) -> Fault {
    Fault::Kernel { seed, export: export.to_owned(), source: Box::new(source), text: text(module) }
}

fn text(module: &Generated) -> String {
    wasmprinter::print_bytes(&module.bytes).unwrap_or_else(|error| format!("(no text: {error})"))
}
