//! A bounded module and arguments from a seed.

use arbitrary::Unstructured;
use wasm_smith::{Config, InstructionKind, InstructionKinds, MemoryOffsetChoices, Module};
use wasm_to_bpf::ValueType;
use wasmparser::{ExternalKind, Parser, Payload, ValType};

use super::compose;
use super::rng::Rng;

/// Pages of a memory, at most: enough to grow, little to compare.
pub(super) const PAGES_MAX: u32 = 4;
/// Rounds of loops and calls on one instance; then every function is `unreachable`.
const ROUNDS: u32 = 300;
/// Random bytes that a module is made of.
const ENTROPY: usize = 1 << 14;

/// A module and what of it is looked at.
pub(super) struct Generated {
    pub(super) bytes: Vec<u8>,
    pub(super) functions: Vec<Export>,
    /// Exported integer globals: name and index.
    pub(super) globals: Vec<(String, u32)>,
    pub(super) memory: Option<String>,
}

/// An exported function of integers.
pub(super) struct Export {
    pub(super) name: String,
    pub(super) parameters: Vec<ValueType>,
}

/// The module of a seed, if it has a function to call; its numbers come from `rng`.
pub(super) fn module(seed: u64, rng: &mut Rng) -> Option<Generated> {
    if seed % 2 == 1 {
        return Generated::of(compose::module(rng));
    }
    let config = config(rng);
    let entropy: Vec<u8> = (0..ENTROPY / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
    let mut module = Module::new(config, &mut Unstructured::new(&entropy)).ok()?;
    module.ensure_termination(ROUNDS).ok()?;
    Generated::of(module.to_bytes())
}

/// Every seed has its own mix: with tables or with bulk memory, large or small,
/// free to trap or not.
fn config(rng: &mut Rng) -> Config {
    use InstructionKind::{Control, MemoryInt, NumericInt, Parametric, Variable};
    // `memory.init` and `table.copy` need passive segments and tables that change:
    // refused, so not made. Bulk memory therefore comes without segments and tables.
    let bulk = rng.below(2) == 0;
    let segments = if bulk { 0 } else { 4 };
    Config {
        allow_floats: false,
        allow_start_export: false,
        allowed_instructions: InstructionKinds::new(&[
            Control, MemoryInt, NumericInt, Parametric, Variable,
        ]),
        bulk_memory_enabled: bulk,
        disallow_traps: rng.below(2) == 0,
        exceptions_enabled: false,
        export_everything: true,
        extended_const_enabled: false,
        gc_enabled: false,
        max_data_segments: segments,
        max_element_segments: segments,
        max_funcs: 1 + rng.below(5) as usize,
        max_globals: 6,
        max_imports: 0,
        max_instructions: [30, 100, 400][rng.below(3) as usize],
        max_memories: 1,
        max_memory32_bytes: u64::from(PAGES_MAX) << 16,
        max_tables: usize::from(!bulk),
        max_table_elements: 16,
        max_types: 8,
        memory64_enabled: false,
        memory_max_size_required: true,
        // Small offsets: most addresses are random and out of bounds anyway.
        memory_offset_choices: MemoryOffsetChoices(90, 9, 1),
        min_funcs: 1,
        // Without types it makes no functions.
        min_types: 2,
        min_memories: u32::from(rng.below(4) != 0),
        multi_value_enabled: true,
        reference_types_enabled: false,
        relaxed_simd_enabled: false,
        saturating_float_to_int_enabled: false,
        simd_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        ..Config::default()
    }
}

impl Generated {
    /// Reads what a module, which imports nothing, exports; nothing if that is no function
    /// of integers.
    pub(super) fn of(bytes: Vec<u8>) -> Option<Self> {
        let mut types = Vec::new();
        let mut functions = Vec::new();
        let mut found = Vec::new();
        for payload in Parser::new(0).parse_all(&bytes) {
            match payload.ok()? {
                Payload::TypeSection(section) => {
                    types.extend(section.into_iter_err_on_gc_types().flatten());
                }
                Payload::FunctionSection(section) => {
                    functions.extend(section.into_iter().flatten())
                }
                Payload::ExportSection(section) => {
                    found.extend(
                        section
                            .into_iter()
                            .flatten()
                            .map(|export| (export.name.to_owned(), export.kind, export.index)),
                    );
                }
                _ => {}
            }
        }
        let of_kind = |kind| found.iter().filter(move |(_, found, _)| *found == kind);
        let function = |(name, _, index): &(String, ExternalKind, u32)| {
            let ty = types.get(*functions.get(*index as usize)? as usize)?;
            let parameters: Option<Vec<_>> = ty.params().iter().copied().map(integer).collect();
            let results: Option<Vec<_>> = ty.results().iter().copied().map(integer).collect();
            results.and(Some(Export { name: name.clone(), parameters: parameters? }))
        };
        let exports: Vec<Export> = of_kind(ExternalKind::Func).filter_map(function).collect();
        let globals =
            of_kind(ExternalKind::Global).map(|(name, _, index)| (name.clone(), *index)).collect();
        let memory = of_kind(ExternalKind::Memory).map(|(name, ..)| name.clone()).next();
        (!exports.is_empty()).then_some(Self { bytes, functions: exports, globals, memory })
    }
}

fn integer(ty: ValType) -> Option<ValueType> {
    match ty {
        ValType::I32 => Some(ValueType::I32),
        ValType::I64 => Some(ValueType::I64),
        _ => None,
    }
}
