//! Front end: from a module's bytes to SSA form.
//!
//! ```text
//! bytes ─▶ module.rs: validated, parsed ─▶ reach.rs: functions that the entry reaches,
//!       ─▶ effects.rs, behind.rs: tables that change, their layout
//!       ─▶ translate.rs with control.rs, tables.rs, numeric.rs, ssa.rs: each function
//! ```
//!
//! The result is right but slow: every access checked, every charge of fuel
//! in memory, every call a call. passes/ makes it fast.

mod behind;
mod control;
mod effects;
mod elements;
mod host;
mod module;
mod numeric;
mod operator;
mod reach;
mod ssa;
mod stack;
mod tables;
mod translate;
mod unroll;

use wasmparser::TypeRef;

use crate::ir::{Global, Memory, Region, Unit};
use crate::refusal::{Reason, Refusal};
use crate::{Entry, Function, Image, Options, ValueType};
use behind::Behind;
use module::Module;
use reach::Reach;

/// Pages of 64 KiB in 32 bits.
const PAGES_MAX: u64 = 65_536;
/// Size of a page, bytes.
const PAGE_LENGTH: u64 = 65_536;

/// Output of the front end.
#[derive(Debug)]
pub(crate) struct Built {
    /// All functions that the entry reaches, in SSA form.
    pub(crate) unit: Unit,
    /// Initial state of an instance.
    pub(crate) image: Image,
    /// Global that every function restores: the stack pointer.
    pub(crate) kept: Option<u32>,
}

/// Refuses a module that imports functions that are not granted, reachable or not.
fn not_granted(module: &Module<'_>, options: &Options) -> Option<Refusal> {
    let types = module.function_types.iter();
    let imported = module.imports.iter().zip(types).filter_map(|(it, ty)| host::function(it, ty));
    let refused = options.functions.permit(imported.collect()).err()?;
    Some(Refusal { reason: refused.into(), function: None, name: None, place: None })
}

/// Translates all that the entry reaches to SSA form, with the initial state of an instance.
pub(crate) fn unit(bytes: &[u8], options: &Options) -> Result<Built, Vec<Refusal>> {
    let module = Module::read(bytes).map_err(|refusal| vec![refusal])?;
    let mut refusals = of_module(&module);
    refusals.extend(not_granted(&module, options));
    let reach = match reach::follow(&module, options) {
        Ok(reach) if refusals.is_empty() => reach,
        Ok(_) => return Err(refusals),
        Err(others) => {
            refusals.extend(others);
            return Err(refusals);
        }
    };
    let memory = memory(&module, &reach, options).map_err(of_one)?;
    let pages_max = memory.map_or(0, |memory| memory.pages_max);
    let behind = behind::lay_out(&module, &reach, pages_max, options).map_err(of_one)?;
    let globals = globals(&module, &reach, &behind).map_err(of_one)?;
    let image = image(&module, memory, &globals, &behind, &reach).map_err(of_one)?;
    let region = match options.entry {
        Entry::Packet { .. } => Region::Unknown { below: false },
        Entry::Export(_) => Region::Memory,
    };
    let mut functions = Vec::with_capacity(reach.functions.len());
    for function in &reach.functions {
        let translated = translate::function(&module, &reach, &behind, *function, region);
        functions.push(translated.map_err(|refusal| vec![refusal])?);
    }
    let kept = stack::kept(&module);
    Ok(Built { unit: Unit { functions, globals, memory }, image, kept })
}

fn of_one(reason: Reason) -> Vec<Refusal> {
    vec![Refusal::of_module(reason)]
}

/// Returns the refusals of the module as a whole.
fn of_module(module: &Module<'_>) -> Vec<Refusal> {
    let mut reasons = Vec::new();
    if module.start.is_some() {
        reasons.push(Reason::StartFunction);
    }
    for import in &module.other_imports {
        let kind = match import.ty {
            TypeRef::Memory(_) => "memory",
            TypeRef::Table(_) => "table",
            TypeRef::Global(_) => "global",
            _ => "tag",
        };
        let (module, import) = (import.module.into(), import.name.into());
        reasons.push(Reason::Import { kind: kind.into(), module, import });
    }
    let kind = |kind: &str| Reason::Memory { kind: kind.into() };
    if module.memories.len() > 1 {
        reasons.push(kind("one of several"));
    }
    for memory in &module.memories {
        match memory {
            _ if memory.memory64 => reasons.push(kind("one of 64-bit addresses")),
            _ if memory.shared => reasons.push(kind("shared between threads")),
            _ if memory.page_size_log2.is_some() => reasons.push(kind("one of other pages")),
            _ => {}
        }
    }
    if module.tables.iter().any(|(ty, _)| ty.table64) {
        let (operator, proposal) = ("a table of 64-bit indices".into(), "memory64".into());
        reasons.push(Reason::Proposal { operator, proposal });
    }
    reasons.into_iter().map(Refusal::of_module).collect()
}

fn memory(module: &Module<'_>, reach: &Reach, options: &Options) -> Result<Option<Memory>, Reason> {
    let Some(memory) = module.memories.first() else { return Ok(None) };
    let own = memory.maximum.unwrap_or(PAGES_MAX).min(PAGES_MAX);
    let max = options.memory_pages_max.min(u32::try_from(own).unwrap_or(u32::MAX));
    match u32::try_from(memory.initial) {
        Ok(pages_min) if pages_min <= max => {
            let pages_max = if reach.effects.grows { max } else { pages_min };
            Ok(Some(Memory { pages_min, pages_max }))
        }
        _ => Err(Reason::MemorySize { pages: memory.initial, max }),
    }
}

fn globals(module: &Module<'_>, reach: &Reach, behind: &Behind) -> Result<Vec<Global>, Reason> {
    let global = |(index, global): (u32, &module::DefinedGlobal)| {
        let mutable = reach.is_written(index);
        let ty = control::type_of(global.ty.content_type);
        match reach.effects.first_value(global) {
            Some(initial) => Ok(Global { ty, initial, mutable }),
            // Float or unusual reference: no compiled code reads it.
            None if operator::refused_type(global.ty.content_type).is_some() => {
                Ok(Global { ty, initial: 0, mutable: false })
            }
            None => Err(Reason::GlobalValue { global: index }),
        }
    };
    let own: Result<Vec<Global>, Reason> = (0..).zip(&module.globals).map(global).collect();
    Ok([own?, behind.globals.clone()].concat())
}

fn image(
    module: &Module<'_>,
    memory: Option<Memory>,
    globals: &[Global],
    behind: &Behind,
    reach: &Reach,
) -> Result<Image, Reason> {
    let memory = memory.unwrap_or(Memory { pages_min: 0, pages_max: 0 });
    let end = u64::from(memory.pages_min) * PAGE_LENGTH;
    let mut data = Vec::new();
    for (index, segment) in (0..).zip(&module.data) {
        let Some(offset) = &segment.offset else { continue };
        let outside = || Reason::Segment { kind: "data".into(), segment: index };
        let offset = module.constant(offset).ok_or_else(outside)?;
        if offset.saturating_add(segment.bytes.len() as u64) > end {
            return Err(outside());
        }
        let address = u32::try_from(offset).map_err(|_| outside())?;
        if !segment.bytes.is_empty() {
            data.push((address, segment.bytes.to_vec()));
        }
    }
    data.extend(behind.image.iter().cloned());
    let entry = if reach.is_packet { None } else { entry_type(module, reach) };
    Ok(Image {
        pages_min: memory.pages_min,
        pages_max: memory.pages_max,
        pages_behind: behind.pages,
        data,
        globals: globals.iter().map(|global| global.initial).collect(),
        entry,
    })
}

fn entry_type(module: &Module<'_>, reach: &Reach) -> Option<Function> {
    let entry = reach.functions.first()?;
    let ty = module.function_types.get(*entry as usize)?;
    let types = |types: &[wasmparser::ValType]| {
        let ty = |ty: &wasmparser::ValType| match ty {
            wasmparser::ValType::I64 => ValueType::I64,
            _ => ValueType::I32,
        };
        types.iter().map(ty).collect()
    };
    Some(Function { parameters: types(ty.params()), results: types(ty.results()) })
}
