//! Module compiled for the requested level, and its instances.

use crate::failure::Failure;
use abi::packet::OwnedPacket;
use abi::{Checked, Level, Meta, Verdict};
use api::ErrorCode;
use bpf::TestRunError;
use cell::below::{Alone, AloneError, AloneModule, CompileAloneError, StartBelowError};
use engine::{Emitted, Engine, Instance, InstanceSpec, MemoryKind, Program, StartError, Trap};
use wasm_to_bpf::Flavour;

/// A compiled module.
pub enum Module {
    /// Module for user level, in the sandbox.
    User(Program<OwnedPacket>),
    /// Module for an in-kernel level: compiled for the sandbox and to eBPF, with one memory.
    Below(Level, Box<AloneModule>),
}

/// A running instance.
pub enum Running {
    /// Instance at user level, in the sandbox.
    User(Box<Instance<OwnedPacket>>),
    /// Instance whose packets are handled in the kernel.
    Below(Box<Alone>),
}

/// Result of one packet.
pub struct Handled {
    /// Bytes of the packet after the call.
    pub bytes: Vec<u8>,
    /// Verdict of the module, or its trap.
    pub verdict: Result<Verdict, Trap>,
    /// Frames and events that the module emitted.
    pub emitted: Emitted,
}

/// Reason why a packet was not handled.
pub enum NotHandled {
    /// The kernel refused to run the program over the packet.
    Packet(TestRunError),
    /// Any other failure; the run ends.
    Failed(Failure),
}

/// Reason why an instance did not start.
pub enum NotStarted {
    /// The module trapped or refused to start.
    Module(StartError),
    /// Any other failure.
    Failed(Failure),
}

impl Module {
    /// Compiles the module for a level.
    pub fn compile(
        engine: &Engine,
        bytes: &[u8],
        checked: &Checked,
        level: Level,
    ) -> Result<Self, Failure> {
        let flavour = match level {
            Level::Nic => Flavour::Xdp,
            Level::Kernel => Flavour::Tc,
            Level::User => return Ok(Self::User(in_sandbox(engine, bytes)?)),
            Level::Cluster => {
                let message = "level cluster is not built yet in this version";
                return Err(Failure::new(ErrorCode::Unsupported, message).help(USER));
            }
        };
        match AloneModule::compile(engine, bytes, checked, flavour) {
            Ok(module) => Ok(Self::Below(level, Box::new(module))),
            Err(CompileAloneError::Engine(error)) => Err(Failure::failed(error.to_string())),
            Err(error @ CompileAloneError::Refused(_)) => {
                let message = format!("the module does not fit level {level}: {error}");
                Err(Failure::new(ErrorCode::Unsupported, message)
                    .help("`tam check` has all reasons, with their lines; --level user runs it"))
            }
        }
    }

    /// Starts an instance.
    pub fn start(&self, engine: &Engine, spec: &InstanceSpec) -> Result<Running, NotStarted> {
        match self {
            Self::User(program) => {
                let instance = program.start(engine, spec).map_err(NotStarted::Module)?;
                Ok(Running::User(Box::new(instance)))
            }
            Self::Below(level, module) => match Alone::start(engine, module, spec) {
                Ok(alone) => Ok(Running::Below(Box::new(alone))),
                Err(AloneError::Start(StartBelowError::Start(error))) => {
                    Err(NotStarted::Module(error))
                }
                Err(error) => Err(NotStarted::Failed(in_kernel(*level, error))),
            },
        }
    }
}

/// Advice when no in-kernel level is available.
const USER: &str = "use --level user";

fn in_sandbox(engine: &Engine, bytes: &[u8]) -> Result<Program<OwnedPacket>, Failure> {
    engine.program(bytes, MemoryKind::Own).map_err(|error| Failure::failed(error.to_string()))
}

/// Converts a refusal of the kernel, mostly for lack of rights.
fn in_kernel(level: Level, error: AloneError) -> Failure {
    let tried = format!("level {level} runs in the kernel, without a node");
    let failure = Failure::from_chain(&anyhow::Error::new(error).context(tried));
    match &failure.help {
        Some(help) => Failure { help: Some(format!("{help}; or {USER}")), ..failure },
        None => failure.help(USER),
    }
}

impl Running {
    /// Runs the module on one packet.
    pub fn on_packet(&mut self, bytes: &[u8], meta: &Meta) -> Result<Handled, NotHandled> {
        match self {
            Self::User(instance) => {
                let (packet, verdict) = instance.on_packet(OwnedPacket::new(bytes.to_vec()), meta);
                let emitted = instance.take_emitted();
                Ok(Handled { bytes: packet.into_bytes(), verdict, emitted })
            }
            Self::Below(alone) => match alone.on_packet(bytes, meta) {
                Ok(handled) => {
                    let (verdict, emitted) = (handled.verdict, handled.emitted);
                    Ok(Handled { bytes: handled.packet, verdict, emitted })
                }
                Err(AloneError::Run(error)) => Err(NotHandled::Packet(error)),
                Err(error) => Err(NotHandled::Failed(Failure::failed(error.to_string()))),
            },
        }
    }

    /// Runs `on_timer`; returns false when that ended the instance.
    pub fn on_timer(&mut self, now_ms: u64) -> Result<bool, Failure> {
        match self {
            Self::User(instance) => Ok(instance.on_timer(now_ms).is_ok()),
            Self::Below(alone) => {
                let done = alone.on_timer(now_ms);
                done.map(|done| done.is_ok()).map_err(|error| Failure::failed(error.to_string()))
            }
        }
    }

    /// Returns the module's counters.
    pub fn counters(&self) -> Vec<(String, u64)> {
        match self {
            Self::User(instance) => instance.counters(),
            Self::Below(alone) => alone.counters(),
        }
    }
}
