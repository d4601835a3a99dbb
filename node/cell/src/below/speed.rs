//! Speed of modules below user level on this machine: fuel per time, measured by
//! `BPF_PROG_TEST_RUN`.
//!
//! ```text
//!  arithmetic, a table that is looked up, a table that is counted in
//!      │ each: compiled, loaded, run some times, of which the fastest counts
//!      ▼
//!  less what a module without a loop takes ─▶ fuel ÷ time ─▶ the slowest of the three
//! ```
//!
//! The slowest of the three counts, since a session is promised time: it must not get more of it by
//! running the slowest code. The fastest call of each counts, since other load only slows calls
//! down. The overhead of a call beside its fuel belongs to the front door.

use std::os::fd::AsFd;

use bpf::{Block, Map, MapSpec, NewMapError, RawLoadError, TestRunError};
use session::in_kernel::Speed;
use units::Nanos;
use wasm_encoder::{
    BlockType, CodeSection, ExportKind, ExportSection, Function, FunctionSection, InstructionSink,
    MemArg, MemorySection, MemoryType, TypeSection, ValType,
};
use wasm_to_bpf::layout::hand_over;
use wasm_to_bpf::{Entry, Flavour, Options, Refusal};

use super::{Around, BelowError, Instance, give, metadata_of, new_hand_over};

/// Loop iterations of one call: some microseconds, without the time to read the clock.
const TURNS: i32 = 3_000;
/// Number of calls, each in a run of its own: for several in one run the kernel waits for all CPUs
/// before and after, for 25 ms. Some of the calls are not interrupted.
const CALLS: u32 = 50;
/// Fuel of a call, more than any of the modules uses.
const FUEL_BUDGET: u64 = 1 << 24;
/// Bytes of the packet's head that the module gets as its window.
const WINDOW: u32 = 64;
/// Address of the table, as in modules built with the SDKs.
const TABLE: u64 = 0x9000;
/// Mask of the table's byte offsets, in whole words: its 16 KiB are at most a core's first-level
/// cache.
const TABLE_MASK: i32 = 0x3ffc;

/// Cause for which the speed cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// A module of this file cannot be compiled to eBPF: a defect of this program.
    #[error("it does not become eBPF: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Refused(Vec<Refusal>),
    /// The kernel lacks memory, or does not support arenas.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// A map cannot be created.
    #[error(transparent)]
    Map(#[from] NewMapError),
    /// The verifier refused the program.
    #[error(transparent)]
    Load(#[from] RawLoadError),
    /// The kernel did not run the program.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The kernel measured no time.
    #[error("the kernel says that {fuel} units of fuel took no time")]
    NoTime {
        /// Fuel used.
        fuel: u64,
    },
}

/// Emits the body of the loop. Local 0 counts iterations, local 1 is a number that each iteration
/// changes.
type TurnResult = fn(&mut InstructionSink<'_>);

const WORD: MemArg = MemArg { offset: TABLE, align: 2, memory_index: 0 };

/// Emits FNV-1a: each step depends on the one before.
fn mix(turn: &mut InstructionSink<'_>) {
    turn.local_get(1).local_get(0).i32_xor().i32_const(16_777_619).i32_mul();
    turn.local_tee(1).i32_const(13).i32_shr_u().local_get(1).i32_xor().local_set(1);
}

/// Emits dependent table reads: each address depends on the last value.
fn look_up(turn: &mut InstructionSink<'_>) {
    turn.local_get(1).i32_const(TABLE_MASK).i32_and().i32_load(WORD);
    turn.local_get(1).i32_add().i32_const(0x9e5).i32_add().local_set(1);
}

/// Emits increments of table entries.
fn count(turn: &mut InstructionSink<'_>) {
    turn.local_get(0).i32_const(68).i32_mul().i32_const(TABLE_MASK).i32_and().local_tee(1);
    turn.local_get(1).i32_load(WORD).i32_const(1).i32_add().i32_store(WORD);
}

/// Builds a module that runs a loop of `turns` iterations for each packet.
fn module(turns: i32, turn: TurnResult) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([], [ValType::I32]);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: 1,
        maximum: Some(1),
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0).export("on_packet", ExportKind::Func, 0);
    let mut on_packet = Function::new([(2, ValType::I32)]);
    let mut code = on_packet.instructions();
    if turns > 0 {
        code.loop_(BlockType::Empty);
        turn(&mut code);
        code.local_get(0).i32_const(1).i32_add().local_tee(0);
        code.i32_const(turns).i32_lt_u().br_if(0).end();
    }
    // Storing the number keeps the loop from being dead code. The verdict is `drop`.
    code.i32_const(0).local_get(1).i32_store(WORD).i32_const(1).end();
    let mut codes = CodeSection::new();
    codes.function(&on_packet);
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&functions).section(&memories).section(&exports);
    module.section(&codes);
    module.finish()
}

/// Returns the fuel that a call of a module uses, and the shortest time it takes.
fn run(wasm: &[u8]) -> Result<(u64, Nanos), SpeedError> {
    let options = Options {
        entry: Entry::Packet { window: WINDOW, standalone: true },
        flavour: Flavour::Xdp,
        memory_pages_max: 1,
        functions: abi::HostFunctions::NONE,
    };
    let compiled = wasm_to_bpf::compile(wasm, &options).map_err(SpeedError::Refused)?;
    let (instance, _memory) = Instance::here(&compiled.image, FUEL_BUDGET)?;
    let packet = new_hand_over()?;
    let afterwards = Map::create("tam_afterwards", &MapSpec::program_array(1))?;
    let events = Map::create("tam_events", &MapSpec::ring_buffer(1 << 12))?;
    let around = Around {
        hand_over: packet.as_fd(),
        hand_over_at: 0,
        afterwards: afterwards.as_fd(),
        events: events.as_fd(),
    };
    let program = instance.load("tam_speed", &compiled, around)?;
    let frame = [0; 64];
    give(&packet, &abi::Meta { window_length: WINDOW, ..metadata_of(&frame) });
    let mut least = Nanos(u64::MAX);
    for _ in 0..CALLS {
        least = least.min(program.test_run(&frame, None, 1)?.duration);
    }
    Ok((fuel_used(&packet) / u64::from(CALLS), least))
}

fn fuel_used(packet: &Block) -> u64 {
    let word = packet.u64(hand_over::FUEL_USED);
    word.map_or(0, |word| word.load(std::sync::atomic::Ordering::Acquire))
}

/// Measures the speed, in some 10 ms of the calling thread. Needs the privilege to load programs.
///
/// # Errors
/// The kernel refuses, or a module of this file cannot be compiled to eBPF.
pub fn measure_speed() -> Result<Speed, SpeedError> {
    let (fuel_beside, time_beside) = run(&module(0, mix))?;
    let mut slowest = Speed::MAX;
    for turn in [mix as TurnResult, look_up, count] {
        let (fuel, time) = run(&module(TURNS, turn))?;
        let fuel = fuel.saturating_sub(fuel_beside);
        let speed = Speed::measured(fuel, time.saturating_sub(time_beside));
        slowest = slowest.min(speed.ok_or(SpeedError::NoTime { fuel })?);
    }
    Ok(slowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_speed_lies_within_its_bounds() {
        if !testbase::root_or_skip("the speed of programs") {
            return;
        }
        let speed = measure_speed().unwrap();
        assert!(speed > Speed::MIN && speed < Speed::MAX, "{speed}");
    }
}
