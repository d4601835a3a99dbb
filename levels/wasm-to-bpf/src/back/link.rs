//! Linker: all functions become one program. Places them one behind the other, resolves calls, and
//! checks the kernel's limits on depth, number and stack, so that a violation has a better message
//! than the verifier's.

use std::collections::BTreeMap;

use super::asm::{Callee, Code};
use super::cost;
use super::emit::Emitted;
use super::host;
use super::lower::in_registers;
use super::plan::Plan;
use super::subprogram::Subprogram;
use crate::ir::Unit;
use crate::program::{Cost, Flavour, Image, MapReference, Program, ProgramFunction};
use crate::{Reason, Refusal};

/// Most frames of a chain of calls, with the entry (`MAX_CALL_FRAMES`).
const DEPTH_MAX: u32 = 8;
/// Most functions besides the entry (`BPF_MAX_SUBPROGS` less the entry).
const FUNCTIONS_MAX: usize = 255;
/// Most bytes of stack of a chain of calls (`MAX_BPF_STACK`).
const STACK_MAX: u32 = 512;
/// Most instructions of a program (`BPF_COMPLEXITY_LIMIT_INSNS`).
const INSTRUCTIONS_MAX: usize = 1_000_000;

/// Function of the program: a subprogram, or one of the module.
struct Part {
    code: Code,
    stack: u32,
    description: ProgramFunction,
}

pub(crate) fn link(
    unit: &Unit,
    plan: &Plan,
    emitted: Vec<Emitted>,
    image: Image,
) -> Result<Program, Vec<Refusal>> {
    let spills = emitted.iter().map(|function| function.spills).sum();
    let mut blocks = Vec::with_capacity(emitted.len());
    let mut parts = Vec::with_capacity(emitted.len());
    for (position, function) in emitted.into_iter().enumerate() {
        blocks.push(function.blocks);
        parts.push(Part {
            description: describe(unit, plan, position),
            code: function.code,
            stack: function.stack,
        });
    }
    let hosts = add_hosts(plan, &mut parts);
    let target = |callee: Callee| match callee {
        Callee::Unit(position) => Some(position as usize),
        Callee::Host(subprogram) => hosts.get(&subprogram).copied(),
    };
    let stack_bytes = check(unit, &parts, target)?;
    let mut program = place(parts, target);
    if program.instructions.len() > INSTRUCTIONS_MAX {
        return Err(vec![Refusal::of_module(Reason::TooLarge {
            what: "eBPF instructions".to_owned(),
            count: program.instructions.len() as u64,
            max: INSTRUCTIONS_MAX as u64,
        })]);
    }
    program.flavour = plan.setting.flavour;
    program.fragments = plan.setting.flavour == Flavour::Xdp && plan.setting.has_packet();
    program.image = image;
    let has_loops =
        unit.functions.iter().flat_map(|function| &function.blocks).any(|at| at.is_loop_header);
    program.cost = Cost {
        instructions_max: cost::instructions(&blocks).first().copied().unwrap_or(0),
        fuel_max: cost::fuel(unit),
        has_loops,
        stack_bytes,
        spills,
    };
    Ok(program)
}

fn describe(unit: &Unit, plan: &Plan, position: usize) -> ProgramFunction {
    let needs = plan.needs.get(position).copied().unwrap_or_default();
    let function = unit.functions.get(position);
    let is_entry = position == 0;
    let parameters = function.map_or(0, |function| function.parameters.len());
    let takes_context = is_entry || needs.context;
    let scalars = if is_entry { 0 } else { in_registers(parameters, needs.context) };
    ProgramFunction {
        start: 0,
        name: match function {
            Some(function) if !is_entry => format!("function_{}", function.index.0),
            _ => "entry".to_owned(),
        },
        takes_context,
        scalars: scalars as u32,
        global: true,
    }
}

/// Appends the subprograms that anything calls, with those that they call.
fn add_hosts(plan: &Plan, parts: &mut Vec<Part>) -> BTreeMap<Subprogram, usize> {
    let mut hosts = BTreeMap::new();
    let mut at = 0;
    while let Some(part) = parts.get(at) {
        let called: Vec<_> = part.code.calls.iter().map(|&(_, callee)| callee).collect();
        for callee in called {
            let Callee::Host(subprogram) = callee else { continue };
            if hosts.contains_key(&subprogram) {
                continue;
            }
            let (code, stack) = host::assemble(subprogram, &plan.setting);
            hosts.insert(subprogram, parts.len());
            parts.push(Part {
                code,
                stack,
                description: ProgramFunction {
                    start: 0,
                    name: subprogram.name().to_owned(),
                    takes_context: plan.setting.has_packet(),
                    scalars: subprogram.scalars(),
                    global: true,
                },
            });
        }
        at += 1;
    }
    hosts
}

/// Checks depth, number and stack; returns the stack size in bytes.
fn check(
    unit: &Unit,
    parts: &[Part],
    target: impl Fn(Callee) -> Option<usize>,
) -> Result<u32, Vec<Refusal>> {
    if parts.len() > FUNCTIONS_MAX + 1 {
        return Err(vec![Refusal::of_module(Reason::Functions {
            count: parts.len() as u32,
            max: FUNCTIONS_MAX as u32 + 1,
        })]);
    }
    let mut chains = vec![None; parts.len()];
    let chain = longest_chain(parts, 0, &target, &mut chains, 0);
    let reason = if chain.depth > DEPTH_MAX {
        Reason::CallDepth { depth: chain.depth, max: DEPTH_MAX }
    } else if chain.stack > STACK_MAX {
        Reason::Stack { bytes: chain.stack, max: STACK_MAX }
    } else {
        return Ok(chain.stack);
    };
    let entry = unit.functions.first();
    Err(vec![Refusal {
        reason,
        function: entry.map(|entry| entry.index.0),
        name: entry.and_then(|entry| entry.name.clone()),
        place: None,
    }])
}

#[derive(Clone, Copy, Default)]
struct Chain {
    depth: u32,
    stack: u32,
}

/// Returns the longest chain of calls. The call graph has no cycles; `level` only bounds the walk
/// if it had one.
fn longest_chain(
    parts: &[Part],
    position: usize,
    target: &impl Fn(Callee) -> Option<usize>,
    chains: &mut [Option<Chain>],
    level: usize,
) -> Chain {
    if let Some(Some(known)) = chains.get(position) {
        return *known;
    }
    let Some(part) = parts.get(position).filter(|_| level <= parts.len()) else {
        return Chain::default();
    };
    let mut below = Chain::default();
    for &(_, callee) in &part.code.calls {
        let Some(callee) = target(callee) else { continue };
        let chain = longest_chain(parts, callee, target, chains, level + 1);
        below.depth = below.depth.max(chain.depth);
        below.stack = below.stack.max(chain.stack);
    }
    let chain = Chain { depth: below.depth + 1, stack: below.stack.saturating_add(part.stack) };
    if let Some(slot) = chains.get_mut(position) {
        *slot = Some(chain);
    }
    chain
}

fn place(parts: Vec<Part>, target: impl Fn(Callee) -> Option<usize>) -> Program {
    let mut starts = Vec::with_capacity(parts.len());
    let mut start = 0u32;
    for part in &parts {
        starts.push(start);
        start += part.code.insns.len() as u32;
    }
    let mut program = Program {
        instructions: Vec::with_capacity(start as usize),
        maps: Vec::new(),
        functions: Vec::with_capacity(parts.len()),
        flavour: Flavour::Xdp,
        fragments: false,
        image: Image::default(),
        places: Vec::new(),
        cost: Cost::default(),
    };
    for (mut part, &start) in parts.into_iter().zip(&starts) {
        for (at, callee) in &part.code.calls {
            let to = target(*callee).and_then(|to| starts.get(to)).copied().unwrap_or(0);
            if let Some(insn) = part.code.insns.get_mut(*at as usize) {
                insn.imm = (i64::from(to) - i64::from(start + at) - 1) as i32;
            }
        }
        program.maps.extend(
            part.code.maps.iter().map(|&(at, map)| MapReference { instruction: start + at, map }),
        );
        program.places.extend(part.code.places.iter().map(|&(at, byte)| (start + at, byte)));
        program.functions.push(ProgramFunction { start, ..part.description });
        program.instructions.extend(part.code.insns.iter().map(|insn| insn.word()));
    }
    program
}
