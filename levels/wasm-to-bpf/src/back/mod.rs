//! The compiler's back: from the intermediate representation to eBPF.
//!
//! ```text
//! ir::Unit ─plan─▶ needs ─lower─▶ VCode ─regalloc2─▶ registers ─emit─▶ Code ─link─▶ Program
//!                                                      host functions ─────────┘
//! ```
//!
//! It decides nothing about the module's meaning, and loads nothing.

mod asm;
mod cost;
mod emit;
mod guard;
mod host;
mod insn;
mod link;
mod lower;
mod plan;
mod registers;
#[cfg(test)]
mod tests;
mod vcode;

use abi::HostFunction;

use crate::ir::{Function, Op, Unit, Value};
use crate::program::{Image, Program};
use crate::{Flavour, Options, Reason, Refusal};

use emit::Emitted;
use plan::{Facts, Plan};

/// Values that a function may have; beyond it the allocator would take long.
const INSTRUCTIONS_MAX: usize = 200_000;

/// The whole program, or what stands against it.
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
            Err(reason) => refusals.push(of(function, reason)),
        }
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    link::link(unit, &plan, emitted, image)
}

fn one(unit: &Unit, plan: &Plan, position: usize, function: &Function) -> Result<Emitted, Reason> {
    if let Some(host) = missing(plan, function) {
        return Err(Reason::HostFunction { import: host.spec().name.to_owned() });
    }
    let instructions = |count| Reason::TooLarge {
        what: "eBPF instructions".to_owned(),
        count: count as u64,
        max: INSTRUCTIONS_MAX as u64,
    };
    let vcode = lower::lower(unit, plan, position).ok_or_else(|| instructions(0))?;
    let length = vcode.length();
    if length > INSTRUCTIONS_MAX {
        return Err(instructions(length));
    }
    let output = registers::allocate(&vcode)
        .map_err(|error| Reason::Internal { message: error.to_string() })?;
    emit::emit(plan, position, &vcode, &output).ok_or_else(|| instructions(length))
}

/// A host function that the level cannot do: tc takes nothing away in front,
/// so only a constant that adds is certain to work.
fn missing(plan: &Plan, function: &Function) -> Option<HostFunction> {
    if plan.setting.flavour != Flavour::Tc || !plan.setting.has_packet() {
        return None;
    }
    let facts = Facts::of(function);
    let adds = |value: &Value| {
        facts.constant(*value).is_some_and(|bytes| (bytes as u32).cast_signed() >= 0)
    };
    function.blocks.iter().flat_map(|block| &block.instructions).find_map(|instruction| {
        match &instruction.op {
            Op::Host(host @ HostFunction::PacketResizeHead, arguments)
                if !arguments.iter().all(adds) =>
            {
                Some(*host)
            }
            _ => None,
        }
    })
}

fn of(function: &Function, reason: Reason) -> Refusal {
    Refusal { reason, function: Some(function.index.0), name: function.name.clone(), place: None }
}
