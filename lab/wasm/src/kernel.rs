//! Instance in the kernel: arena and block as the compiler's image describes them, and programs on
//! them, run by test-run.
//!
//! Several programs, one for each export, share an instance, as the functions of a module do. There
//! is no front door: the caller that runs a packet entry writes the hand-over block.

use std::io;
use std::os::fd::AsFd;

use bpf::{
    Block, Map, MapSpec, MappedArena, NewMapError, Program as Verified, RawLoadError, RingBuffer,
    TestRun, TestRunError,
};
use cell::below::{self, Around, BelowError};
use wasm_to_bpf::{Image, Program, layout};

use crate::outcome::{Ending, Outcome};

/// Fuel of one call: more than any test uses, within the kernel's own limit on loops (250 ms).
const FUEL_BUDGET: u64 = 1 << 32;
/// Empty Ethernet frame for calls without a packet.
const NO_PACKET: [u8; 64] = [0; 64];
/// Bytes of the ring for records: some 3,000 short events, or 7 of the longest frames.
const EVENTS_LENGTH: u32 = 1 << 16;

/// Reason why an instance could not be made or called.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The memory or the block cannot be made, or the kernel has no arenas.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// The memory cannot be read or written.
    #[error(transparent)]
    Arena(#[from] bpf::ArenaError),
    /// Another map cannot be made or used.
    #[error(transparent)]
    Map(#[from] NewMapError),
    /// The verifier refused the program.
    #[error(transparent)]
    Load(#[from] RawLoadError),
    /// The run did not begin.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The number of arguments differs from the function's parameters.
    #[error("the function takes {expected} arguments, not {found}")]
    Arguments {
        /// Number of parameters.
        expected: usize,
        /// Number of arguments.
        found: usize,
    },
    /// The trap code is unknown to the compiler, or the program's result is none.
    #[error("the program answered {answer} with trap code {code}, which means nothing")]
    Answer {
        /// Result of the program.
        answer: u32,
        /// Trap code in the block.
        code: u32,
    },
}

/// Instance of a module, with all its objects in the kernel.
#[derive(Debug)]
pub struct Instance {
    below: below::Instance,
    memory: MappedArena,
    hand_over: Block,
    afterwards: Map,
    events: Map,
    globals: u32,
}

/// Program loaded onto an instance.
#[derive(Debug)]
pub struct Loaded {
    program: Verified,
    /// Number of parameters; 0 for a packet entry.
    parameters: usize,
    results: u32,
}

impl Instance {
    /// Makes an instance as a program of the module describes it; all programs of a module describe
    /// the same.
    ///
    /// # Errors
    /// The kernel lacks memory or arenas.
    pub fn new(image: &Image) -> Result<Self, KernelError> {
        let (below, memory) = below::Instance::here(image, FUEL_BUDGET)?;
        Ok(Self {
            below,
            memory,
            hand_over: below::new_hand_over()?,
            afterwards: Map::create("tam_afterwards", &MapSpec::program_array(1))?,
            events: Map::create("tam_events", &MapSpec::ring_buffer(EVENTS_LENGTH))?,
            globals: image.globals.len() as u32,
        })
    }

    /// Loads a program onto this instance.
    ///
    /// # Errors
    /// The verifier refuses: a fault, since it should accept the compiler's output.
    pub fn load(&self, program: &Program) -> Result<Loaded, KernelError> {
        let around = Around {
            hand_over: self.hand_over.as_fd(),
            hand_over_at: 0,
            afterwards: self.afterwards.as_fd(),
            events: self.events.as_fd(),
        };
        let numbers = program.image.entry.as_ref();
        let (parameters, results) =
            numbers.map_or((0, 0), |entry| (entry.parameters.len(), entry.results.len() as u32));
        let program = self.below.load("tam_lab", program, around)?;
        Ok(Loaded { program, parameters, results })
    }

    /// Calls an exported function. Arguments and results are 64 bits each, an `i32` zero-extended.
    ///
    /// # Errors
    /// The run does not begin; a trap is an outcome.
    pub fn call(&self, function: &Loaded, arguments: &[u64]) -> Result<Outcome, KernelError> {
        let (expected, found) = (function.parameters, arguments.len());
        if expected != found {
            return Err(KernelError::Arguments { expected, found });
        }
        for (slot, argument) in arguments.iter().enumerate() {
            self.below.set(layout::ARGUMENTS + 8 * slot as u32, *argument)?;
        }
        self.below.take_trap()?;
        let run = function.program.test_run(&NO_PACKET, None, 1)?;
        let (code, _) = self.below.take_trap()?;
        match (run.retval, code) {
            (0, 0) => {
                let results: Result<_, _> = (0..function.results)
                    .map(|slot| self.below.get(layout::RESULTS + 8 * slot))
                    .collect();
                Ok(Outcome::Returned(results?))
            }
            (1, code) => match Ending::from_code(code) {
                Some(ending) => Ok(Outcome::Trapped(ending)),
                None => Err(KernelError::Answer { answer: 1, code }),
            },
            (answer, code) => Err(KernelError::Answer { answer, code }),
        }
    }

    /// Runs a program of a packet entry over a packet.
    ///
    /// # Errors
    /// The run does not begin.
    pub fn packet(&self, program: &Loaded, packet: &[u8]) -> Result<TestRun, KernelError> {
        Ok(program.program.test_run(packet, None, 1)?)
    }

    /// Returns the contents of linear memory.
    ///
    /// # Errors
    /// The block's size is larger than the arena.
    pub fn memory(&self) -> Result<Vec<u8>, KernelError> {
        let mut bytes = vec![0; self.below.get(layout::MEMORY_BYTES)? as usize];
        self.memory.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes linear memory, for setting a state.
    ///
    /// # Errors
    /// The range is beyond the memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), KernelError> {
        Ok(self.memory.write(address, bytes)?)
    }

    /// Returns a global by its index; `None` when the module has no such global.
    #[must_use]
    pub fn global(&self, index: u32) -> Option<u64> {
        (index < self.globals).then(|| self.below.get(layout::GLOBALS + 8 * index).ok()).flatten()
    }

    /// Returns the block, for its counters and for switching the instance off.
    #[must_use]
    pub fn block(&self) -> &Block {
        &self.below.block
    }

    /// Returns the reading end of the programs' records for the cell; one at a time.
    ///
    /// # Errors
    /// The process has no descriptor or addresses left.
    pub fn records(&self) -> io::Result<RingBuffer> {
        RingBuffer::from_fd(self.events.as_fd(), EVENTS_LENGTH)
    }

    /// Returns the hand-over block: metadata in, verdict out.
    #[must_use]
    pub fn hand_over(&self) -> &Block {
        &self.hand_over
    }
}
