//! An instance whose packets run below user level without a node: by test-run.
//!
//! ```text
//! packet, metadata ─▶ hand-over ─▶ program ─▶ verdict or trap, packet, records
//!                                     │
//!              on_timer ─ sandbox ────┴── one memory
//! ```
//!
//! For `tam run` and the conformance table: no front door, no device, no
//! neighbours. What a node does to a packet behind its module does not happen.

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

/// Fuel of one call: about what user level does in its 10 ms.
const FUEL_BUDGET: u64 = 1 << 24;
/// Bytes for what one packet can leave: 4 frames of 9,018 bytes and 4 events.
const EVENTS_LENGTH: u32 = 1 << 16;

/// Why a module cannot run below.
#[derive(Debug, thiserror::Error)]
pub enum CompileAloneError {
    /// It does not become eBPF: at least one reason.
    #[error("it does not become eBPF: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Refused(Vec<Refusal>),
    /// The sandbox does not take it, in which every instance starts.
    #[error(transparent)]
    Engine(#[from] CompileError),
}

/// Why a packet could not be run below, other than by its module's fault.
#[derive(Debug, thiserror::Error)]
pub enum AloneError {
    /// Memory or block.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartBelowError),
    /// A map could not be made.
    #[error(transparent)]
    NewMap(#[from] NewMapError),
    /// The verifier refused the program.
    #[error(transparent)]
    Load(#[from] RawLoadError),
    /// The kernel did not run it over this packet.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The ring buffer could not be mapped.
    #[error("the ring buffer of the module's events cannot be mapped: {0}")]
    Ring(#[from] std::io::Error),
    /// It has bytes that nobody wrote: a defect of ours.
    #[error(transparent)]
    Broken(#[from] BrokenRing),
    /// It has a record that the compiler's programs do not write: a defect of ours.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A trap code that the compiler does not have: a defect of ours.
    #[error("the program trapped with the code {code}, which means nothing")]
    Code {
        /// As it is in the block.
        code: u32,
    },
}

/// A module that is ready to run below: in the sandbox for its hooks, as eBPF for its packets.
pub struct AloneModule {
    sandbox: Program<OwnedPacket>,
    compiled: wasm_to_bpf::Program,
}

impl AloneModule {
    /// Compiles a module both ways.
    ///
    /// # Errors
    /// When it cannot become eBPF at this level, or the sandbox refuses it.
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

/// What came of a packet.
#[derive(Debug)]
pub struct Handled {
    /// The packet as the module left it; after a trap as it came.
    pub packet: Vec<u8>,
    /// What the module decided; a trapped instance must not be called again.
    pub verdict: Result<Verdict, Trap>,
    /// What it left beside that, hooks since the last packet included.
    pub emitted: Emitted,
}

/// A running instance.
pub struct Alone {
    started: Started<OwnedPacket>,
    program: bpf::Program,
    hand_over: Block,
    records: RingBuffer,
    window: u32,
    lane: u32,
    /// The module, to name the places of traps.
    module: Program<OwnedPacket>,
}

impl Alone {
    /// Starts an instance at user level and takes its packets below.
    ///
    /// # Errors
    /// When it does not start, or the kernel refuses the program or a map.
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
        let records = RingBuffer::given(events.as_fd(), EVENTS_LENGTH)?;
        let (window, lane, module) = (spec.window, spec.lane, sandbox.clone());
        Ok(Self { started, program, hand_over, records, window, lane, module })
    }

    /// Runs the module on one packet; lengths and lane are filled in here, the rest of
    /// `meta` is the caller's.
    ///
    /// # Errors
    /// When the kernel does not run programs over such a packet: it has less than an
    /// Ethernet header, or at tc more than a page.
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

    /// Runs `on_timer`, when the module has one, at user level.
    ///
    /// # Errors
    /// The outer one as [`take_up`], the inner one is the trap that ended the instance.
    pub fn on_timer(&mut self, now_ms: u64) -> Result<Result<(), Trap>, BelowError> {
        let Started { user, below } = &mut self.started;
        take_up(user, &below.block)?;
        let done = user.on_timer(now_ms);
        take_below(user, &below.block)?;
        Ok(done)
    }

    /// Linear memory as it is, as far as the sandbox knows of it: for tests.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        self.started.user.memory()
    }

    /// What the sandbox's hooks left, then what the program did.
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

    /// The module's counters, by name.
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
