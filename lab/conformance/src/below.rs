//! Levels `nic` and `kernel` without a device: the module as eBPF, run by the kernel's test-run
//! over packets. Instances start at user level, as everywhere.

use bpf::TestRunError;
use cell::below::{Alone, AloneError, AloneModule, CompileAloneError, StartBelowError};
use engine::{CompileError, Engine};
use wasm_to_bpf::Flavour;

use crate::clock::Clock;
use crate::subject::{Handled, Running, Subject, meta_of, run};
use crate::{Case, Level, LevelError, Outcome};

/// Runner of the table in the kernel. Needs root.
pub struct Below {
    flavour: Flavour,
    engine: Engine,
    /// Clock, held for its thread.
    _clock: Clock,
}

impl Below {
    /// Returns the level `nic`: XDP programs.
    ///
    /// # Errors
    /// The machine cannot run the engine.
    pub fn nic() -> Result<Self, CompileError> {
        Self::new(Flavour::Xdp)
    }

    /// Returns the level `kernel`: programs of tcx.
    ///
    /// # Errors
    /// The machine cannot run the engine.
    pub fn kernel() -> Result<Self, CompileError> {
        Self::new(Flavour::Tc)
    }

    fn new(flavour: Flavour) -> Result<Self, CompileError> {
        let engine = Engine::new()?;
        let _clock = Clock::start(engine.clone());
        Ok(Self { flavour, engine, _clock })
    }
}

impl Level for Below {
    fn level(&self) -> abi::Level {
        match self.flavour {
            Flavour::Xdp => abi::Level::Nic,
            Flavour::Tc => abi::Level::Kernel,
        }
    }

    fn run(&mut self, case: &Case) -> Result<Outcome, LevelError> {
        let subject = Subject::of(case)?;
        let module =
            AloneModule::compile(&self.engine, &subject.wasm, &subject.checked, self.flavour)?;
        run(case, || Ok(Alone::start(&self.engine, &module, &subject.spec)?))
    }
}

impl Running for Alone {
    fn handle(&mut self, frame: &[u8]) -> Result<Handled, LevelError> {
        let handled = self.on_packet(frame, &meta_of(frame))?;
        let (packet, verdict, emitted) = (handled.packet, handled.verdict, handled.emitted);
        Ok(Handled { packet, verdict, emitted })
    }

    fn counters(&self) -> Vec<(String, u64)> {
        Alone::counters(self)
    }
}

impl From<CompileAloneError> for LevelError {
    fn from(error: CompileAloneError) -> Self {
        match error {
            CompileAloneError::Refused(refusals) => Self::Refused(refusals),
            CompileAloneError::Engine(error) => Self::Compile(error),
        }
    }
}

impl From<AloneError> for LevelError {
    fn from(error: AloneError) -> Self {
        match error {
            AloneError::Start(StartBelowError::Start(error)) => Self::Start(error),
            AloneError::Run(TestRunError::Kernel { length, source, .. }) => {
                Self::Frame { length, source }
            }
            error => Self::Alone(error),
        }
    }
}
