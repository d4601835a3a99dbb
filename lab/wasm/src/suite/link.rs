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
    imported_globals: Vec<ConstExpr>,
    start: Option<u32>,
}

impl Linker {
    fn payload(&mut self, payload: Payload<'_>) -> Option<()> {
        match payload {
            Payload::TypeSection(section) => {
                self.type_count = section.count();
                let mut types = std::mem::take(&mut self.types);
                self.parse_type_section(&mut types, section).ok()?;
                self.types = types;
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
                let mut tables = std::mem::take(&mut self.tables);
                self.parse_table_section(&mut tables, section).ok()?;
                self.tables = tables;
            }
            Payload::MemorySection(section) => {
                let mut memories = std::mem::take(&mut self.memories);
                self.parse_memory_section(&mut memories, section).ok()?;
                self.memories = memories;
            }
            Payload::GlobalSection(section) => {
                let mut globals = std::mem::take(&mut self.globals);
                self.parse_global_section(&mut globals, section).ok()?;
                self.globals = globals;
            }
            Payload::ExportSection(section) => {
                let mut exports = std::mem::take(&mut self.exports);
                self.parse_export_section(&mut exports, section).ok()?;
                self.exports = exports;
            }
            Payload::StartSection { func, .. } => self.start = Some(func),
            Payload::ElementSection(section) => {
                let mut elements = std::mem::take(&mut self.elements);
                self.parse_element_section(&mut elements, section).ok()?;
                self.elements = elements;
            }
            Payload::DataCountSection { count, .. } => self.data_count = Some(count),
            Payload::CodeSectionEntry(body) => {
                self.code.raw(body.as_bytes());
            }
            Payload::DataSection(section) => {
                let mut data = std::mem::take(&mut self.data);
                self.parse_data_section(&mut data, section).ok()?;
                self.data = data;
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
                let ty = self.global_type(ty).ok()?;
                self.globals.global(ty, &value);
                self.imported_globals.push(value);
            }
            TypeRef::Memory(ty) if import.name == "memory" => {
                let mut own = self.memory_type(ty).ok()?;
                (own.minimum, own.maximum) = (1, Some(2));
                self.memories.memory(own);
            }
            TypeRef::Table(ty) if import.name == "table" => {
                let mut own = self.table_type(ty).ok()?;
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

impl Reencode for Linker {
    type Error = std::convert::Infallible;

    /// A global that was imported is a constant now, and may not be named in
    /// constant expressions any more.
    fn const_expr(
        &mut self,
        expression: wasmparser::ConstExpr<'_>,
    ) -> Result<ConstExpr, reencode::Error<Self::Error>> {
        let mut operators = expression.get_operators_reader();
        if let Ok(Operator::GlobalGet { global_index }) = operators.read()
            && let Some(value) = self.imported_globals.get(global_index as usize)
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
