//! Optimisation passes: from right but slow to fast; SSA form in, SSA form out, the same meaning.
//!
//! ```text
//! callees first, each function:  tidy ─▶ switch ─▶ globals ─▶ simplify ─▶ inline ─▶ again
//! then all:                      fuel ─▶ split critical edges ─▶ counted ─▶ opaque
//! ```

mod alias;
mod carried_loads;
mod compact;
mod dead;
mod fold;
mod fuel;
mod globals;
pub(crate) mod graph;
mod inline;
mod loop_sums;
mod merge;
mod opaque;
mod order;
mod parameters;
mod range_ends;
mod signs;
mod simplify;
mod split;
mod switch;

pub(crate) use opaque::possible_signs;

use crate::Options;
use crate::ir::{Function, Op, Region, Terminator, Unit};
use crate::refusal::{Reason, Refusal};
use simplify::ModuleFacts;

/// Number of times that a function is simplified: the second uses the results of the first.
const ROUNDS: u32 = 2;
/// Most functions of one program: the kernel allows 256 with the entry, and the back end adds some
/// of its own.
const FUNCTIONS_MAX: usize = 200;

/// Most instructions that are simplified once more after inlining; above it calls stay calls. A
/// chain of thousands of functions would grow and be simplified at each link.
const INLINED_MAX: usize = 200_000;

/// Runs all passes.
pub(crate) fn run(
    unit: &mut Unit,
    options: &Options,
    kept: Option<u32>,
) -> Result<(), Vec<Refusal>> {
    let mut surroundings = ModuleFacts::new(&options.entry, unit.memory, &unit.globals);
    let sites = inline::call_sites(unit);
    let mut work = 0;
    for index in inline::callees_first(unit) {
        surroundings.is_entry = index == 0;
        simplify_all(&mut unit.functions[index], &surroundings, kept);
        if work < INLINED_MAX && inline::run(unit, index, &sites) {
            work += inline::size(&unit.functions[index]);
            simplify_all(&mut unit.functions[index], &surroundings, kept);
        }
    }
    inline::drop_unused(unit);
    inline::flatten(unit).map_err(|refusal| vec![refusal])?;
    inline::drop_unused(unit);
    let (count, max) = (unit.functions.len(), FUNCTIONS_MAX);
    if count > max {
        let [count, max] = [count, max].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        return Err(vec![Refusal::of_module(Reason::Functions { count, max })]);
    }
    if surroundings.window.is_some() {
        (surroundings.is_entry, surroundings.asks_packet) = (true, true);
        if let Some(entry) = unit.functions.first_mut().filter(|entry| asks_length(entry)) {
            simplify::run(entry, &surroundings);
            tidy(entry);
        }
    }
    finish(unit);
    Ok(())
}

/// Runs only the passes that the back end requires, for tests that compare.
#[cfg(test)]
pub(crate) fn plain(unit: &mut Unit) {
    for function in &mut unit.functions {
        order::run(function);
    }
    finish(unit);
}

fn finish(unit: &mut Unit) {
    let functions = unit.functions.len();
    for function in &mut unit.functions {
        order::run(function);
    }
    fuel::run(unit);
    for function in &mut unit.functions {
        parameters::run(function);
        dead::run(function);
        split::run(function);
        loop_sums::run(function);
        opaque::run(function, functions);
        compact::run(function);
    }
    for index in inline::callees_first(unit) {
        unit.functions[index].can_trap = can_trap(unit, index);
    }
}

fn simplify_all(function: &mut Function, surroundings: &ModuleFacts, kept: Option<u32>) {
    let is_packet = surroundings.window.is_some();
    let known = globals::Known {
        globals: &surroundings.globals,
        kept,
        is_packet_entry: surroundings.is_entry && is_packet,
        // After a trap there is a new instance; the conformance suite reads the old one.
        traps_forget: is_packet,
    };
    tidy(function);
    switch::run(function);
    order::run(function);
    for round in 1..=ROUNDS {
        globals::run(function, known);
        simplify::run(function, surroundings);
        if is_packet && round < ROUNDS {
            carried_loads::run(function);
        }
        tidy(function);
    }
    fuel::join(function);
    dead::run(function);
    compact::run(function);
}

/// Returns true if the function compares two run-time numbers, and accesses the packet at run-time
/// addresses.
fn asks_length(function: &Function) -> bool {
    let constants = fold::constants(function);
    let instructions = || function.blocks.iter().flat_map(|block| &block.instructions);
    let is_known = |value| constants.contains_key(value);
    let compares = instructions().any(|instruction| {
        matches!(&instruction.op, Op::Compare(_, a, b) if !is_known(a) && !is_known(b))
    });
    compares
        && instructions().any(|instruction| match &instruction.op {
            Op::Load { access, .. } | Op::Store { access, .. } => {
                access.region == Region::Window && !is_known(&access.address)
            }
            _ => false,
        })
}

/// Orders the blocks and removes unused code.
fn tidy(function: &mut Function) {
    order::run(function);
    merge::run(function);
    order::run(function);
    parameters::run(function);
    dead::run(function);
}

/// Returns true if a call of the function can end in a trap; callees are known.
fn can_trap(unit: &Unit, index: usize) -> bool {
    unit.functions[index].blocks.iter().any(|block| {
        // The back end adds the kernel's own limit to each loop.
        block.is_loop_header
            || matches!(block.terminator, Terminator::Trap(..))
            || block.instructions.iter().any(|instruction| match &instruction.op {
                Op::Load { access, .. } | Op::Store { access, .. } => access.bounds_check,
                Op::TrapIf(..) | Op::MemoryCopy(..) | Op::MemoryFill(..) => true,
                Op::Call(callee, _) => unit.functions[*callee as usize].can_trap,
                _ => false,
            })
    })
}
