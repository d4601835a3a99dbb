//! Back end of the compiler: from the intermediate representation to eBPF.
//!
//! ```text
//! ir::Unit ─plan─▶ needs ─lower─▶ VCode ─regalloc2─▶ registers ─emit─▶ Code ─link─▶ Program
//!                                                      host functions ─────────┘
//! ```
//!
//! Decides nothing about the module's meaning, and loads nothing.

mod asm;
mod cost;
mod emit;
mod facts;
mod guard;
mod host;
mod insn;
mod link;
mod lower;
mod plan;
mod registers;
mod setting;
mod spills;
mod subprogram;
#[cfg(test)]
mod tests;
mod vcode;

use abi::HostFunction;

use crate::ir::{Function, Op, Place, Unit};
use crate::program::{Image, Program};
use crate::{Flavour, Options, Reason, Refusal};

use emit::Emitted;
use facts::Facts;
use plan::Plan;

/// Most values of a function; above it the allocator would take long.
const INSTRUCTIONS_MAX: usize = 200_000;

/// Compiles the whole program, or returns the refusal.
pub(crate) fn program(
    unit: &Unit,
    image: Image,
    options: &Options,
) -> Result<Program, Vec<Refusal>> {
    let plan = Plan::new(unit, options);
    let mut emitted = Vec::with_capacity(unit.functions.len());
    let mut refusals = Vec::new();
    for (position, function) in unit.functions.iter().enumerate() {
        match one(unit, &plan, position, function) {
            Ok(code) => emitted.push(code),
            Err(refusal) => refusals.push(*refusal),
        }
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    link::link(unit, &plan, emitted, image)
}

fn one(
    unit: &Unit,
    plan: &Plan,
    position: usize,
    function: &Function,
) -> Result<Emitted, Box<Refusal>> {
    if let Some((bytes, place)) = removes_head_bytes(plan, function) {
        return Err(of(function, Reason::ResizeHead { bytes }, Some(place.0)));
    }
    let instructions = |count| {
        let reason = Reason::TooLarge {
            what: "eBPF instructions".to_owned(),
            count: count as u64,
            max: INSTRUCTIONS_MAX as u64,
        };
        of(function, reason, None)
    };
    let vcode = lower::lower(unit, plan, position).ok_or_else(|| instructions(0))?;
    let length = vcode.length();
    if length > INSTRUCTIONS_MAX {
        return Err(instructions(length));
    }
    let output = registers::allocate(&vcode)
        .map_err(|error| of(function, Reason::Internal { message: error.to_string() }, None))?;
    emit::emit(plan, position, &vcode, &output).ok_or_else(|| instructions(length))
}

/// Finds a call that changes the packet's head as tc cannot: there only a constant that adds is
/// certain to work. Returns the constant, if it is one, and the call's position.
fn removes_head_bytes(plan: &Plan, function: &Function) -> Option<(Option<i32>, Place)> {
    if plan.setting.flavour != Flavour::Tc || !plan.setting.has_packet() {
        return None;
    }
    let facts = Facts::of(function);
    function.blocks.iter().flat_map(|block| &block.instructions).find_map(|instruction| {
        let Op::Host(HostFunction::PacketResizeHead, arguments) = &instruction.op else {
            return None;
        };
        let bytes = facts.constant(*arguments.first()?).map(|bytes| (bytes as u32).cast_signed());
        bytes.is_none_or(|bytes| bytes < 0).then_some((bytes, instruction.place))
    })
}

fn of(function: &Function, reason: Reason, place: Option<u32>) -> Box<Refusal> {
    let (index, name) = (function.index.0, function.name.clone());
    Box::new(Refusal { reason, function: Some(index), name, place })
}
