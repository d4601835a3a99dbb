//! How fast this machine runs modules below user level: fuel in a time, by test-run.
//!
//! ```text
//!  arithmetic, a table that is looked up, a table that is counted in
//!      │ each: compiled, loaded, run some times, of which the fastest counts
//!      ▼
//!  less what a module without a loop takes ─▶ fuel ÷ time ─▶ the slowest of the three
//! ```
//!
//! The slowest, since a session is promised time: nobody gets more of it than that by running
//! what takes longest. The fastest call, since whatever else the machine does makes it slower.
//! What a call costs beside its fuel is the front door's.

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

/// Turns of the loop in one call: some microseconds, of which reading the clock is no part.
const TURNS: i32 = 3_000;
/// Calls, each by itself: with several in one go the kernel waits for all CPUs before and after,
/// for 25 ms. Some of them nobody interrupts.
const CALLS: u32 = 50;
/// More than any of them uses.
const FUEL_BUDGET: u64 = 1 << 24;
/// Bytes of the packet's head that the module has copied.
const WINDOW: u32 = 64;
/// Where the tables begin, as those of the SDKs do.
const TABLE: u64 = 0x9000;
/// Its bytes, in whole words: as much as a core's first cache has, or a part of it.
const TABLE_MASK: i32 = 0x3ffc;

/// Why the speed is not known.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// A module of ours does not become eBPF: a defect of ours.
    #[error("it does not become eBPF: {}", .0.first().map_or_else(String::new, ToString::to_string))]
    Refused(Vec<Refusal>),
    /// No memory, or no arenas.
    #[error(transparent)]
    Below(#[from] BelowError),
    /// A map could not be made.
    #[error(transparent)]
    Map(#[from] NewMapError),
    /// The verifier refused it.
    #[error(transparent)]
    Load(#[from] RawLoadError),
    /// The kernel did not run it.
    #[error(transparent)]
    Run(#[from] TestRunError),
    /// The kernel's clock says that it took no time.
    #[error("the kernel says that {fuel} units of fuel took no time")]
    NoTime {
        /// What was used.
        fuel: u64,
    },
}

/// What a turn of the loop does: the local 0 counts turns, 1 is a number that each turn changes.
type Turn = fn(&mut InstructionSink<'_>);

const WORD: MemArg = MemArg { offset: TABLE, align: 2, memory_index: 0 };

/// FNV-1a: each step waits for the one before it.
fn mix(turn: &mut InstructionSink<'_>) {
    turn.local_get(1).local_get(0).i32_xor().i32_const(16_777_619).i32_mul();
    turn.local_tee(1).i32_const(13).i32_shr_u().local_get(1).i32_xor().local_set(1);
}

/// Where it looks next it knows from what it found.
fn look_up(turn: &mut InstructionSink<'_>) {
    turn.local_get(1).i32_const(TABLE_MASK).i32_and().i32_load(WORD);
    turn.local_get(1).i32_add().i32_const(0x9e5).i32_add().local_set(1);
}

/// Adds one to some place of a table.
fn count(turn: &mut InstructionSink<'_>) {
    turn.local_get(0).i32_const(68).i32_mul().i32_const(TABLE_MASK).i32_and().local_tee(1);
    turn.local_get(1).i32_load(WORD).i32_const(1).i32_add().i32_store(WORD);
}

/// A module whose packets go so many times through a loop.
fn module(turns: i32, turn: Turn) -> Vec<u8> {
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
    // Somebody looks at the number: the loop is not in vain. The verdict is `drop`.
    code.i32_const(0).local_get(1).i32_store(WORD).i32_const(1).end();
    let mut codes = CodeSection::new();
    codes.function(&on_packet);
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&functions).section(&memories).section(&exports);
    module.section(&codes);
    module.finish()
}

/// What a call of a module uses, and the least that it takes.
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

/// Measures it, in some 10 ms of the calling thread. Needs the rights to load programs.
///
/// # Errors
/// When the kernel does not let us, or a module of ours does not become eBPF.
pub fn measure_speed() -> Result<Speed, SpeedError> {
    let (fuel_beside, time_beside) = run(&module(0, mix))?;
    let mut slowest = Speed::MAX;
    for turn in [mix as Turn, look_up, count] {
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
    fn a_machine_has_a_speed_that_is_no_bound() {
        if !testbase::root_or_skip("the speed of programs") {
            return;
        }
        let speed = measure_speed().unwrap();
        assert!(speed > Speed::MIN && speed < Speed::MAX, "{speed}");
    }
}
