//! Bounded module and arguments of a seed.

use arbitrary::Unstructured;
use wasm_smith::{Config, InstructionKind, InstructionKinds, MemoryOffsetChoices, Module};
use wasm_to_bpf::ValueType;
use wasmparser::{ExternalKind, Parser, Payload, ValType, Validator, WasmFeatures};

use super::compose::{self, PAGES_MAX};
use super::rng::Rng;

/// Iterations of loops and calls on one instance, after which every function is `unreachable`.
const ROUNDS: u32 = 300;
/// Random bytes that a module is made of.
const ENTROPY: usize = 1 << 14;

/// Module, with its exports that are compared.
pub(super) struct Generated {
    pub(super) bytes: Vec<u8>,
    pub(super) functions: Vec<Export>,
    /// Exported integer globals: name and index.
    pub(super) globals: Vec<(String, u32)>,
    pub(super) memory: Option<String>,
    /// True if it has references to objects of the host, which wasmtime accepts with its garbage
    /// collector only.
    pub(super) has_externals: bool,
}

/// Exported function of integers.
pub(super) struct Export {
    pub(super) name: String,
    pub(super) parameters: Vec<ValueType>,
}

/// Returns the module of a seed, if it has a function to call; its numbers come from `rng`.
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

/// Returns a configuration of the seed's own: with tables or with bulk memory, large or small, free
/// to trap or not.
fn config(rng: &mut Rng) -> Config {
    use InstructionKind::{Control, MemoryInt, NumericInt, Parametric, Reference, Variable};
    let references = rng.below(2) == 0;
    let mut allowed = vec![Control, MemoryInt, NumericInt, Parametric, Variable];
    allowed.extend(references.then_some(Reference));
    Config {
        allow_floats: false,
        allow_start_export: false,
        allowed_instructions: InstructionKinds::new(&allowed),
        bulk_memory_enabled: references || rng.below(2) == 0,
        disallow_traps: rng.below(2) == 0,
        exceptions_enabled: false,
        export_everything: true,
        extended_const_enabled: false,
        gc_enabled: false,
        max_data_segments: 4,
        max_element_segments: 4,
        max_funcs: 1 + rng.below(5) as usize,
        max_globals: 6,
        max_imports: 0,
        max_instructions: [30, 100, 400][rng.below(3) as usize],
        max_memories: 1,
        max_memory32_bytes: u64::from(PAGES_MAX) << 16,
        max_tables: if references { 3 } else { 1 },
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
        reference_types_enabled: references,
        relaxed_simd_enabled: false,
        saturating_float_to_int_enabled: false,
        simd_enabled: false,
        table_max_size_required: true,
        tail_call_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        ..Config::default()
    }
}

impl Generated {
    /// Reads the exports of a module that imports nothing; `None` if none is a function of
    /// integers.
    pub(super) fn of(bytes: Vec<u8>) -> Option<Self> {
        let mut types = Vec::new();
        let mut functions = Vec::new();
        let mut globals = Vec::new();
        let mut found = Vec::new();
        for payload in Parser::new(0).parse_all(&bytes) {
            match payload.ok()? {
                Payload::TypeSection(section) => {
                    types.extend(section.into_iter_err_on_gc_types().flatten());
                }
                Payload::FunctionSection(section) => {
                    functions.extend(section.into_iter().flatten())
                }
                Payload::GlobalSection(section) => {
                    globals.extend(section.into_iter().flatten().map(|global| global.ty));
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
        let of_integer = |(_, _, index): &&(String, ExternalKind, u32)| {
            globals.get(*index as usize).is_some_and(|ty| integer(ty.content_type).is_some())
        };
        let exported = of_kind(ExternalKind::Global).filter(of_integer);
        let globals = exported.map(|(name, _, index)| (name.clone(), *index)).collect();
        let without = WasmFeatures::default().difference(WasmFeatures::GC_TYPES);
        let has_externals = Validator::new_with_features(without).validate_all(&bytes).is_err();
        let memory = of_kind(ExternalKind::Memory).map(|(name, ..)| name.clone()).next();
        let functions = exports;
        (!functions.is_empty()).then_some(Self { bytes, functions, globals, memory, has_externals })
    }
}

fn integer(ty: ValType) -> Option<ValueType> {
    match ty {
        ValType::I32 => Some(ValueType::I32),
        ValType::I64 => Some(ValueType::I64),
        _ => None,
    }
}
