//! Modules that compute: bounded loops, calls, memory and tables whose addresses mostly fit, so
//! that a call gets far before it traps, if it does.
//!
//! `wasm-smith` finds odd shapes; this generator finds wrong values, registers and spills.

mod body;

use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, Elements, ExportKind,
    ExportSection, FunctionSection, GlobalSection, GlobalType, HeapType, MemorySection, MemoryType,
    Module, RefType, TableSection, TableType, TypeSection, ValType,
};

use super::rng::Rng;
use body::{Body, STATEMENTS};

/// Most pages of a memory: enough to grow, little to compare.
pub(super) const PAGES_MAX: u32 = 4;

/// Mutable integer globals: two of each type.
const GLOBALS: [ValType; 4] = [ValType::I32, ValType::I32, ValType::I64, ValType::I64];
/// Bytes of memory that surely exist: one page.
const MEMORY: u32 = 0x1_0000;
/// Index of the mutable global after them, a reference.
const REFERENCE: u32 = GLOBALS.len() as u32;
/// Number of elements of the first table.
const TABLE: u64 = 12;
/// Initial and largest length of the second table, which changes.
const CHANGING: u64 = 5;
const CHANGING_MAX: u64 = 9;
/// Lengths of the passive segments, which are the first of their kinds.
const PASSIVE_ELEMENTS: u64 = 5;
const PASSIVE_BYTES: u64 = 40;
/// Most parameters and results of a function.
const PARAMETERS_MAX: u64 = 4;
const RESULTS_MAX: u64 = 3;

/// Type of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signature {
    parameters: Vec<ValType>,
    results: Vec<ValType>,
}

/// Properties of the module that its functions depend on.
struct Plan {
    /// Type of each function, by its index.
    signatures: Vec<Signature>,
    /// Number of the first functions, which are in the table and call nothing through it.
    in_table: u32,
    grows: bool,
    /// True if operators may change the second table, and if they may copy from the first.
    changes: bool,
    copies: bool,
    /// Most statements of each function.
    statements: u32,
}

/// Returns the module of a seed.
pub(super) fn module(rng: &mut Rng) -> Vec<u8> {
    let plan = Plan::new(rng);
    let (mut types, mut functions) = (TypeSection::new(), FunctionSection::new());
    let (mut exports, mut code) = (ExportSection::new(), CodeSection::new());
    for (index, signature) in (0..).zip(&plan.signatures) {
        types.ty().function(signature.parameters.clone(), signature.results.clone());
        functions.function(index);
        exports.export(&format!("f{index}"), ExportKind::Func, index);
        code.function(&Body::write(rng, &plan, index));
    }
    let mut globals = GlobalSection::new();
    for (index, val_type) in (0..).zip(GLOBALS) {
        let value = match val_type {
            ValType::I32 => ConstExpr::i32_const(rng.number() as i32),
            _ => ConstExpr::i64_const(rng.number() as i64),
        };
        globals.global(GlobalType { val_type, mutable: true, shared: false }, &value);
        exports.export(&format!("g{index}"), ExportKind::Global, index);
    }
    let val_type = ValType::Ref(RefType::FUNCREF);
    let none = ConstExpr::ref_null(HeapType::FUNC);
    globals.global(GlobalType { val_type, mutable: true, shared: false }, &none);
    exports.export("memory", ExportKind::Memory, 0);
    let mut module = Module::new();
    module
        .section(&types)
        .section(&functions)
        .section(&tables())
        .section(&memory())
        .section(&globals)
        .section(&exports)
        .section(&elements(rng, &plan));
    let (data, count) = data(rng);
    module.section(&DataCountSection { count }).section(&code).section(&data);
    module.finish()
}

impl Plan {
    fn new(rng: &mut Rng) -> Self {
        let count = 1 + rng.below(6);
        let signatures = (0..count)
            .map(|_| Signature {
                parameters: types(rng, PARAMETERS_MAX),
                results: types(rng, RESULTS_MAX),
            })
            .collect();
        let in_table = rng.below(count) as u32;
        let statements = STATEMENTS[rng.below(3) as usize];
        let (grows, changes, copies) = (rng.below(4) == 0, rng.below(2) == 0, rng.below(4) == 0);
        Self { signatures, in_table, grows, changes, copies, statements }
    }
}

fn types(rng: &mut Rng, most: u64) -> Vec<ValType> {
    (0..rng.below(most + 1)).map(|_| integer(rng)).collect()
}

fn integer(rng: &mut Rng) -> ValType {
    if rng.below(2) == 0 { ValType::I32 } else { ValType::I64 }
}

fn tables() -> TableSection {
    let mut tables = TableSection::new();
    for (minimum, maximum) in [(TABLE, TABLE), (CHANGING, CHANGING_MAX)] {
        tables.table(TableType {
            element_type: RefType::FUNCREF,
            table64: false,
            minimum,
            maximum: Some(maximum),
            shared: false,
        });
    }
    tables
}

fn memory() -> MemorySection {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: u64::from(MEMORY >> 16),
        maximum: Some(u64::from(PAGES_MAX)),
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    memories
}

/// Returns the elements of the table, some of which stay null.
fn elements(rng: &mut Rng, plan: &Plan) -> ElementSection {
    let mut elements = ElementSection::new();
    let any = |rng: &mut Rng| rng.below(u64::from(plan.in_table)) as u32;
    let reference = |rng: &mut Rng| match rng.below(4) {
        1.. if plan.in_table > 0 => ConstExpr::ref_func(any(rng)),
        _ => ConstExpr::ref_null(HeapType::FUNC),
    };
    let passive: Vec<ConstExpr> = (0..PASSIVE_ELEMENTS).map(|_| reference(rng)).collect();
    elements.passive(Elements::Expressions(RefType::FUNCREF, passive.into()));
    if plan.in_table > 0 {
        let declared: Vec<u32> = (0..plan.in_table).collect();
        elements.declared(Elements::Functions(declared.into()));
        for (table, size) in [(0, TABLE), (1, CHANGING)] {
            let length = 1 + rng.below(size - 2);
            let functions: Vec<u32> = (0..length).map(|_| any(rng)).collect();
            let offset = ConstExpr::i32_const(rng.below(size - length) as i32);
            elements.active(Some(table), &offset, Elements::Functions(functions.into()));
        }
    }
    elements
}

/// Returns the data segments and their number.
fn data(rng: &mut Rng) -> (DataSection, u32) {
    const LENGTH: u64 = 300;
    let mut data = DataSection::new();
    let passive: Vec<u8> = (0..PASSIVE_BYTES).map(|_| rng.next() as u8).collect();
    data.passive(passive);
    for _ in 0..rng.below(4) {
        let bytes: Vec<u8> = (0..rng.below(LENGTH)).map(|_| rng.next() as u8).collect();
        let offset = rng.below(u64::from(MEMORY) - LENGTH) as i32;
        data.active(0, &ConstExpr::i32_const(offset), bytes);
    }
    let count = data.len();
    (data, count)
}
