//! Level `user` without a device: the engine over packets in ordinary memory, as in `tam run`.

use abi::packet::OwnedPacket;
use engine::{CompileError, Engine, Instance, MemoryKind};

use crate::clock::Clock;
use crate::subject::{Handled, Running, Subject, meta_of, run};
use crate::{Case, Level, LevelError, Outcome};

/// Runner of the table in wasmtime.
pub struct User {
    engine: Engine,
    kind: MemoryKind,
    /// Clock, held for its thread.
    _clock: Clock,
}

impl User {
    /// Starts an engine and its clock.
    ///
    /// # Errors
    /// The machine cannot run the engine.
    pub fn new() -> Result<Self, CompileError> {
        Self::with(MemoryKind::Own)
    }

    /// Starts an engine with this kind of memory, and its clock.
    ///
    /// # Errors
    /// The machine cannot run the engine.
    pub fn with(kind: MemoryKind) -> Result<Self, CompileError> {
        let engine = Engine::new()?;
        let _clock = Clock::start(engine.clone());
        Ok(Self { engine, kind, _clock })
    }
}

impl Level for User {
    fn level(&self) -> abi::Level {
        abi::Level::User
    }

    fn run(&mut self, case: &Case) -> Result<Outcome, LevelError> {
        let subject = Subject::of(case)?;
        let program = self.engine.program(&subject.wasm, self.kind)?;
        run(case, || program.start(&self.engine, &subject.spec).map_err(LevelError::Start))
    }
}

impl Running for Instance<OwnedPacket> {
    fn handle(&mut self, frame: &[u8]) -> Result<Handled, LevelError> {
        let (packet, verdict) = self.on_packet(OwnedPacket::new(frame.to_vec()), &meta_of(frame));
        Ok(Handled { packet: packet.into_bytes(), verdict, emitted: self.take_emitted() })
    }

    fn counters(&self) -> Vec<(String, u64)> {
        Instance::counters(self)
    }
}
