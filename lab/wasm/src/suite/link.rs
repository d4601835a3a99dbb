//! A module of the suite made to stand alone: what it imports from `spectest`
//! (the suite's host) becomes its own, and its start function an export.
//!
//! Imports come first in every index space, so definitions that come first
//! keep all indices. Modules that import from other modules stay as they are.

use wasm_encoder::reencode::{self, Reencode};
use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, ExportKind,
    ExportSection, Function, FunctionSection, GlobalSection, MemorySection, Module, TableSection,
    TypeSection,
};
use wasmparser::{Import, Operator, Parser, Payload, TypeRef, ValType};

/// An export that does nothing, for making an instance.
pub(super) const NOTHING: &str = "tam:nothing";
/// The start function.
pub(super) const START: &str = "tam:start";

/// A module that imports nothing.
pub(super) struct Linked {
    pub(super) bytes: Vec<u8>,
    /// Whether there is [`START`], to be called first.
    pub(super) has_start: bool,
}

/// Links; nothing when the module imports from elsewhere, or is not valid.
pub(super) fn link(bytes: &[u8]) -> Option<Linked> {
    let mut linker = Linker::default();
    for payload in Parser::new(0).parse_all(bytes) {
        linker.payload(payload.ok()?)?;
    }
    linker.finish()
}

#[derive(Default)]
struct Linker {
    types: TypeSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    globals: GlobalSection,
    exports: ExportSection,
    elements: ElementSection,
    data_count: Option<u32>,
    code: CodeSection,
    data: DataSection,
    type_count: u32,
    function_count: u32,
    constants: Constants,
    start: Option<u32>,
}

/// Copies sections. A global that was imported is a constant now, and may not be named
/// in constant expressions any more: these are the values, in the order of the imports.
#[derive(Default)]
struct Constants(Vec<ConstExpr>);

impl Linker {
    fn payload(&mut self, payload: Payload<'_>) -> Option<()> {
        match payload {
            Payload::TypeSection(section) => {
                self.type_count = section.count();
                self.constants.parse_type_section(&mut self.types, section).ok()?;
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    self.import(&import.ok()?)?;
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section {
                    self.functions.function(ty.ok()?);
                    self.function_count += 1;
                }
            }
            Payload::TableSection(section) => {
                self.constants.parse_table_section(&mut self.tables, section).ok()?;
            }
            Payload::MemorySection(section) => {
                self.constants.parse_memory_section(&mut self.memories, section).ok()?;
            }
            Payload::GlobalSection(section) => {
                self.constants.parse_global_section(&mut self.globals, section).ok()?;
            }
            Payload::ExportSection(section) => {
                self.constants.parse_export_section(&mut self.exports, section).ok()?;
            }
            Payload::StartSection { func, .. } => self.start = Some(func),
            Payload::ElementSection(section) => {
                self.constants.parse_element_section(&mut self.elements, section).ok()?;
            }
            Payload::DataCountSection { count, .. } => self.data_count = Some(count),
            Payload::CodeSectionEntry(body) => {
                self.code.raw(body.as_bytes());
            }
            Payload::DataSection(section) => {
                self.constants.parse_data_section(&mut self.data, section).ok()?;
            }
            _ => {}
        }
        Some(())
    }

    /// What the suite's host has under that name (the interpreter's README lists it).
    fn import(&mut self, import: &Import<'_>) -> Option<()> {
        if import.module != "spectest" {
            return None;
        }
        match import.ty {
            TypeRef::Func(ty) if import.name.starts_with("print") => {
                self.functions.function(ty);
                self.function_count += 1;
                self.code.function(&empty());
            }
            TypeRef::Global(ty) => {
                let value = match ty.content_type {
                    ValType::I32 => ConstExpr::i32_const(666),
                    ValType::I64 => ConstExpr::i64_const(666),
                    ValType::F32 => ConstExpr::f32_const(666.6_f32.into()),
                    ValType::F64 => ConstExpr::f64_const(666.6_f64.into()),
                    _ => return None,
                };
                let ty = self.constants.global_type(ty).ok()?;
                self.globals.global(ty, &value);
                self.constants.0.push(value);
            }
            TypeRef::Memory(ty) if import.name == "memory" => {
                let mut own = self.constants.memory_type(ty).ok()?;
                (own.minimum, own.maximum) = (1, Some(2));
                self.memories.memory(own);
            }
            TypeRef::Table(ty) if import.name == "table" => {
                let mut own = self.constants.table_type(ty).ok()?;
                (own.minimum, own.maximum) = (10, Some(20));
                self.tables.table(own);
            }
            _ => return None,
        }
        Some(())
    }

    fn finish(mut self) -> Option<Linked> {
        self.types.ty().function([], []);
        self.functions.function(self.type_count);
        self.code.function(&empty());
        self.exports.export(NOTHING, ExportKind::Func, self.function_count);
        if let Some(start) = self.start {
            self.exports.export(START, ExportKind::Func, start);
        }
        let mut module = Module::new();
        module
            .section(&self.types)
            .section(&self.functions)
            .section(&self.tables)
            .section(&self.memories)
            .section(&self.globals)
            .section(&self.exports)
            .section(&self.elements);
        if let Some(count) = self.data_count {
            module.section(&DataCountSection { count });
        }
        module.section(&self.code).section(&self.data);
        Some(Linked { bytes: module.finish(), has_start: self.start.is_some() })
    }
}

impl Reencode for Constants {
    type Error = std::convert::Infallible;

    fn const_expr(
        &mut self,
        expression: wasmparser::ConstExpr<'_>,
    ) -> Result<ConstExpr, reencode::Error<Self::Error>> {
        let mut operators = expression.get_operators_reader();
        if let Ok(Operator::GlobalGet { global_index }) = operators.read()
            && let Some(value) = self.0.get(global_index as usize)
        {
            return Ok(value.clone());
        }
        reencode::utils::const_expr(self, expression)
    }
}

fn empty() -> Function {
    let mut function = Function::new([]);
    function.instructions().end();
    function
}
