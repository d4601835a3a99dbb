//! Stand-alone instance whose packets run below user level without a node, by `BPF_PROG_TEST_RUN`.
//!
//! ```text
//! packet, metadata ─▶ hand-over ─▶ program ─▶ verdict or trap, packet, records
//!                                     │
//!              on_timer ─ sandbox ────┴── one memory
//! ```
//!
//! Used by `tam run` and the conformance table: there is no front door, no device and no neighbour.
//! Nothing that a node does after the module happens here.

use std::os::fd::AsFd;

use abi::packet::OwnedPacket;
use abi::{Checked, HostFunctions, Meta, NotAVerdict, Verdict};
use bpf::{Block, BrokenRing, Map, MapSpec, NewMapError, RawLoadError, RingBuffer, TestRunError};
use engine::{
    CompileError, Emitted, Engine, Event, InstanceSpec, MemoryKind, Program, Sent, Trap, TrapKind,
};
use wasm_to_bpf::{Entry, Flavour, Options, Refusal};

use super::hand_over::{give, new_hand_over};
use super::start::{StartBelowError, Started, take_below, take_up};
use super::{Around, BelowError, Record, RecordError, trap_of};

/// Fuel of one call: about what user level executes in its 10 ms.
const FUEL_BUDGET: u64 = 1 << 24;
/// Bytes of the ring, for the output of one packet: 4 frames of 9,018 bytes and 4 events.
const EVENTS_LENGTH: u32 = 1 << 16;

/// Cause for which a module cannot run below user level.
#[derive(Debug, thiserror::Error)]
pub enum CompileAloneError {
    /// The module cannot be compiled to eBPF, for at least one reason.
    #[error("it does not become eBPF: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Refused(Vec<Refusal>),
    /// The engine, in which every instance starts, refuses the module.
    #[error(transparent)]
    Engine(#[from] CompileError),
}

/// Cause, other than a fault of its module, for which a packet could not be run below user level.
#[derive(Debug, thiserror::Error)]
pub enum AloneError {
    /// Memory or block cannot be created.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// The instance did not start.
    #[error(transparent)]
    Start(#[from] StartBelowError),
    /// A map cannot be created.
    #[error(transparent)]
    NewMap(#[from] NewMapError),
    /// The verifier refused the program.
    #[error(transparent)]
    Load(#[from] RawLoadError),
    /// The kernel refused to run the program on this packet.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The ring buffer cannot be mapped.
    #[error("the ring buffer of the module's events cannot be mapped: {0}")]
    Ring(#[from] std::io::Error),
    /// The ring buffer has bytes that no program wrote: a defect of this program.
    #[error(transparent)]
    Broken(#[from] BrokenRing),
    /// The ring buffer has a record that the compiler's programs do not write: a defect of this
    /// program.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The block has a trap code that the compiler does not use: a defect of this program.
    #[error("the program trapped with the code {code}, which means nothing")]
    Code {
        /// Trap code in the block.
        code: u32,
    },
}

/// Module compiled both ways: for the engine, which runs its hooks, and to eBPF, which runs its
/// packets.
pub struct AloneModule {
    sandbox: Program<OwnedPacket>,
    compiled: wasm_to_bpf::Program,
}

impl AloneModule {
    /// Compiles a module both ways.
    ///
    /// # Errors
    /// The module cannot become eBPF at this level, or the engine refuses it.
    pub fn compile(
        engine: &Engine,
        wasm: &[u8],
        checked: &Checked,
        flavour: Flavour,
    ) -> Result<Self, CompileAloneError> {
        let memory = checked.memory;
        let options = Options {
            entry: Entry::Packet { window: checked.manifest.window, standalone: true },
            flavour,
            memory_pages_max: memory.pages_max,
            functions: HostFunctions::ALL,
        };
        let compiled = wasm_to_bpf::compile(wasm, &options).map_err(CompileAloneError::Refused)?;
        let kind = MemoryKind::shared(memory.pages_min, memory.pages_max);
        Ok(Self { sandbox: engine.program(wasm, kind)?, compiled })
    }
}

/// Result of a packet.
#[derive(Debug)]
pub struct Handled {
    /// Packet as the module left it; after a trap, as it arrived.
    pub packet: Vec<u8>,
    /// Decision of the module; a trapped instance must not be called again.
    pub verdict: Result<Verdict, Trap>,
    /// Events, frames and messages of the module, including those of hooks since the last packet.
    pub emitted: Emitted,
}

/// Running instance.
pub struct Alone {
    started: Started<OwnedPacket>,
    program: bpf::Program,
    hand_over: Block,
    records: RingBuffer,
    window: u32,
    lane: u32,
    /// Module, to name the places of traps.
    module: Program<OwnedPacket>,
}

impl Alone {
    /// Starts an instance at user level and moves its packets below it.
    ///
    /// # Errors
    /// The instance does not start, or the kernel refuses the program or a map.
    pub fn start(
        engine: &Engine,
        module: &AloneModule,
        spec: &InstanceSpec,
    ) -> Result<Self, AloneError> {
        let AloneModule { sandbox, compiled } = module;
        let mut started = Started::new(engine, sandbox, &compiled.image, spec, FUEL_BUDGET)?;
        take_below(&mut started.user, &started.below.block)?;
        let hand_over = new_hand_over()?;
        let afterwards = Map::create("tam_afterwards", &MapSpec::program_array(1))?;
        let events = Map::create("tam_events", &MapSpec::ring_buffer(EVENTS_LENGTH))?;
        let around = Around {
            hand_over: hand_over.as_fd(),
            hand_over_at: 0,
            afterwards: afterwards.as_fd(),
            events: events.as_fd(),
        };
        let program = started.below.load("tam_alone", compiled, around)?;
        let records = RingBuffer::from_fd(events.as_fd(), EVENTS_LENGTH)?;
        let (window, lane, module) = (spec.window, spec.lane, sandbox.clone());
        Ok(Self { started, program, hand_over, records, window, lane, module })
    }

    /// Runs the module on one packet. Lengths and lane are set here; the caller sets the rest of
    /// `meta`.
    ///
    /// # Errors
    /// The kernel refuses to run programs on such a packet: it is shorter than an Ethernet header,
    /// or at tc longer than a page.
    pub fn on_packet(&mut self, frame: &[u8], meta: &Meta) -> Result<Handled, AloneError> {
        self.give(frame, meta);
        self.started.below.take_trap()?;
        let run = self.program.test_run(frame, None, 1)?;
        let (code, place) = self.started.below.take_trap()?;
        let emitted = self.take_emitted()?;
        if code == 0 {
            let not_a_verdict = |error: NotAVerdict| Trap {
                kind: TrapKind::NotAVerdict(Some(error.0)),
                place: None,
            };
            let verdict = Verdict::parse(run.retval).map_err(not_a_verdict);
            return Ok(Handled { packet: run.data_out, verdict, emitted });
        }
        let trap = trap_of(&self.module, code, place).ok_or(AloneError::Code { code })?;
        Ok(Handled { packet: frame.to_vec(), verdict: Err(trap), emitted })
    }

    /// Runs `on_timer` at user level, if the module has one.
    ///
    /// # Errors
    /// The outer one is that of [`take_up`]; the inner one is the trap that ended the instance.
    pub fn on_timer(&mut self, now_ms: u64) -> Result<Result<(), Trap>, BelowError> {
        let Started { user, below } = &mut self.started;
        take_up(user, &below.block)?;
        let done = user.on_timer(now_ms);
        take_below(user, &below.block)?;
        Ok(done)
    }

    /// Returns the linear memory up to the size that the engine knows: for tests.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        self.started.user.memory()
    }

    /// Returns what the engine's hooks emitted, then what the program emitted.
    fn take_emitted(&mut self) -> Result<Emitted, AloneError> {
        let mut emitted = self.started.user.take_emitted();
        let mut keep = |bytes: &[u8]| {
            match Record::parse(bytes)? {
                Record::Event { code, data, .. } => {
                    emitted.events.push(Event { code, data: data.to_vec() });
                }
                Record::Send { port, frame, .. } => {
                    emitted.sent.push(Sent { port, frame: frame.to_vec() });
                }
                Record::Message { message, .. } => emitted.messages.push(message.to_vec()),
            }
            Ok::<(), RecordError>(())
        };
        while let Some(kept) = self.records.next(&mut keep)? {
            kept?;
        }
        Ok(emitted)
    }

    /// Returns the module's counters, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.started.user.counters()
    }

    fn give(&self, frame: &[u8], meta: &Meta) {
        let length = frame.len() as u32;
        let meta = Meta {
            packet_length: length,
            window_length: length.min(self.window),
            lane: self.lane,
            ..*meta
        };
        give(&self.hand_over, &meta);
    }
}
