//! Linker that merges several modules of the suite into one that imports nothing: those that a
//! module imports from, and then the module itself.
//!
//! ```text
//! givers ─┬─ one whose instance lives on: its exports stay, its state is replayed
//!         └─ one without state: a copy, of which only what is imported is seen
//! module ─── its exports get its number in front
//! ```
//!
//! Nothing is imported afterwards, so every index space is the definitions of one module after the
//! other. When an instance lives on, the module's active segments come later than that instance's
//! calls: they become passive, and a function copies them.

use std::collections::HashMap;

use wasm_encoder::reencode::{self, Reencode, utils};
use wasm_encoder::{
    CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, Encode, ExportKind,
    ExportSection, Function, FunctionSection, GlobalSection, Instruction, MemorySection, Module,
    TableSection, TypeSection,
};
use wasmparser::{
    DataKind, ElementItems, ElementKind, ExternalKind, FuncType, Import, Operator, Parser, Payload,
    TypeRef, ValType,
};

/// Name of an export that does nothing, for making an instance.
pub(super) const NOTHING: &str = "tam:nothing";
/// Name of the export to call first, with late segments and the start function.
const FIRST: &str = "tam:first";

/// Module that another one imports from.
pub(super) struct Giver<'g> {
    pub(super) bytes: &'g [u8],
    /// True if its instance continues in the new one.
    pub(super) lives_on: bool,
}

/// Module that imports nothing.
pub(super) struct Linked {
    pub(super) bytes: Vec<u8>,
    /// Name of the export to call first.
    pub(super) first: Option<String>,
    /// Results of each exported function: true for a reference to a function.
    pub(super) functions: HashMap<String, Vec<bool>>,
}

/// Returns the name of an export of the module with that number.
pub(super) fn name_in(number: usize, name: &str) -> String {
    format!("{number}:{name}")
}

/// Links the modules; `None` when an import is not found, when there would be two memories, or when
/// a module is not valid. `found` returns for an import the giver that has it, and its name there.
pub(super) fn link(
    givers: &[Giver<'_>],
    bytes: &[u8],
    number: usize,
    found: impl Fn(&Import<'_>) -> Option<(usize, String)>,
) -> Option<Linked> {
    let mut linker = Linker::default();
    let mut given: Vec<Exports> = Vec::new();
    for giver in givers {
        let exports = linker.module(giver.bytes, |_| None)?;
        if giver.lives_on {
            for (name, (kind, index)) in &exports {
                linker.export(name.clone(), *kind, *index);
            }
        }
        given.push(exports);
    }
    linker.indices.late = givers.iter().any(|giver| giver.lives_on).then(Vec::new);
    linker.start = None;
    let exports = linker.module(bytes, |import| {
        let (giver, name) = found(import)?;
        given.get(giver)?.get(&name).copied()
    })?;
    for (name, (kind, index)) in exports {
        linker.export(name_in(number, &name), kind, index);
    }
    linker.finish(number)
}

/// Exports of a module, by name.
type Exports = HashMap<String, (ExternalKind, u32)>;

/// Module being built.
#[derive(Default)]
struct Linker {
    types: TypeSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    globals: GlobalSection,
    exports: ExportSection,
    elements: ElementSection,
    code: CodeSection,
    data: DataSection,
    signatures: Vec<FuncType>,
    /// Type of each function.
    function_types: Vec<u32>,
    indices: Indices,
    start: Option<u32>,
    results: HashMap<String, Vec<bool>>,
}

/// Indexes of the copied module's items in the new module.
#[derive(Default)]
struct Indices {
    types: u32,
    functions: Space,
    tables: Space,
    memories: Space,
    globals: Space,
    elements: u32,
    data: u32,
    /// Initial value of each global: constant expressions may no longer name globals of other
    /// modules once these are no imports.
    values: Vec<ConstExpr>,
    /// Instructions that replace active segments, if these come late.
    late: Option<Vec<u8>>,
}

/// Index space of one kind: imported items first.
#[derive(Default)]
struct Space {
    imported: Vec<u32>,
    /// Index of the first own item.
    own: u32,
}

impl Space {
    fn begin(&mut self, own: u32) {
        self.imported.clear();
        self.own = own;
    }

    fn at(&self, index: u32) -> u32 {
        let imported = self.imported.len() as u32;
        match self.imported.get(index as usize) {
            Some(index) => *index,
            None => self.own + index - imported,
        }
    }
}

impl Linker {
    /// Appends a module; returns its exports.
    fn module(
        &mut self,
        bytes: &[u8],
        found: impl Fn(&Import<'_>) -> Option<(ExternalKind, u32)>,
    ) -> Option<Exports> {
        self.indices.types = self.signatures.len() as u32;
        self.indices.functions.begin(self.function_types.len() as u32);
        self.indices.tables.begin(self.tables.len());
        self.indices.memories.begin(self.memories.len());
        self.indices.globals.begin(self.globals.len());
        self.indices.elements = self.elements.len();
        self.indices.data = self.data.len();
        let mut exports = Exports::new();
        for payload in Parser::new(0).parse_all(bytes) {
            match payload.ok()? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import.ok()?;
                        self.indices.import(&import, found(&import)?)?;
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export.ok()?;
                        let index = self.indices.external_index(export.kind, export.index).ok()?;
                        exports.insert(export.name.to_owned(), (export.kind, index));
                    }
                }
                Payload::StartSection { func, .. } => {
                    self.start = Some(self.indices.functions.at(func))
                }
                payload => self.section(payload)?,
            }
        }
        Some(exports)
    }

    fn section(&mut self, payload: Payload<'_>) -> Option<()> {
        let indices = &mut self.indices;
        match payload {
            Payload::TypeSection(section) => {
                let types: Result<Vec<_>, _> =
                    section.clone().into_iter_err_on_gc_types().collect();
                self.signatures.extend(types.ok()?);
                indices.parse_type_section(&mut self.types, section).ok()
            }
            Payload::FunctionSection(section) => {
                for ty in section {
                    let ty = indices.types + ty.ok()?;
                    self.functions.function(ty);
                    self.function_types.push(ty);
                }
                Some(())
            }
            Payload::TableSection(section) => {
                indices.parse_table_section(&mut self.tables, section).ok()
            }
            Payload::MemorySection(section) => {
                indices.parse_memory_section(&mut self.memories, section).ok()
            }
            Payload::GlobalSection(section) => {
                indices.parse_global_section(&mut self.globals, section).ok()
            }
            Payload::ElementSection(section) => {
                indices.parse_element_section(&mut self.elements, section).ok()
            }
            Payload::CodeSectionEntry(body) => {
                indices.parse_function_body(&mut self.code, body).ok()
            }
            Payload::DataSection(section) => {
                indices.parse_data_section(&mut self.data, section).ok()
            }
            _ => Some(()),
        }
    }

    fn export(&mut self, name: String, kind: ExternalKind, index: u32) {
        let kind = match kind {
            ExternalKind::Table => ExportKind::Table,
            ExternalKind::Memory => ExportKind::Memory,
            ExternalKind::Global => ExportKind::Global,
            _ => {
                let ty = self.function_types.get(index as usize);
                let ty = ty.and_then(|ty| self.signatures.get(*ty as usize));
                let results = ty.map(FuncType::results).unwrap_or_default();
                let is_function = |ty: &ValType| *ty == ValType::FUNCREF;
                self.results.insert(name.clone(), results.iter().map(is_function).collect());
                ExportKind::Func
            }
        };
        self.exports.export(&name, kind, index);
    }

    fn finish(mut self, number: usize) -> Option<Linked> {
        if self.memories.len() > 1 {
            return None;
        }
        self.types.ty().function([], []);
        let ty = self.signatures.len() as u32;
        self.add(ty, number, NOTHING, Function::new([]));
        let late = self.indices.late.take().unwrap_or_default();
        let has_first = !late.is_empty() || self.start.is_some();
        if has_first {
            let mut first = Function::new([]);
            first.raw(late);
            if let Some(start) = self.start {
                first.instructions().call(start);
            }
            self.add(ty, number, FIRST, first);
        }
        let mut module = Module::new();
        let count = self.data.len();
        module
            .section(&self.types)
            .section(&self.functions)
            .section(&self.tables)
            .section(&self.memories)
            .section(&self.globals)
            .section(&self.exports)
            .section(&self.elements)
            .section(&DataCountSection { count })
            .section(&self.code)
            .section(&self.data);
        Some(Linked {
            bytes: module.finish(),
            first: has_first.then(|| name_in(number, FIRST)),
            functions: self.results,
        })
    }

    /// Adds a generated function and exports it.
    fn add(&mut self, ty: u32, number: usize, name: &str, mut function: Function) {
        let index = self.function_types.len() as u32;
        self.functions.function(ty);
        self.function_types.push(ty);
        function.instructions().end();
        self.code.function(&function);
        self.export(name_in(number, name), ExternalKind::Func, index);
    }
}

impl Indices {
    fn import(&mut self, import: &Import<'_>, (kind, index): (ExternalKind, u32)) -> Option<()> {
        let space = match (import.ty, kind) {
            (TypeRef::Func(_), ExternalKind::Func) => &mut self.functions,
            (TypeRef::Table(_), ExternalKind::Table) => &mut self.tables,
            (TypeRef::Memory(_), ExternalKind::Memory) => &mut self.memories,
            (TypeRef::Global(_), ExternalKind::Global) => &mut self.globals,
            _ => return None,
        };
        space.imported.push(index);
        Some(())
    }

    /// Appends a copy of `length` elements from index zero to that offset.
    fn copy_late(&mut self, offset: &ConstExpr, length: u32, then: [Instruction<'_>; 2]) {
        let Some(late) = &mut self.late else { return };
        offset.encode(late);
        // The end of the expression.
        late.pop();
        Instruction::I32Const(0).encode(late);
        Instruction::I32Const(length.cast_signed()).encode(late);
        then.iter().for_each(|instruction| instruction.encode(late));
    }
}

type Answer<T> = Result<T, reencode::Error<std::convert::Infallible>>;

impl Reencode for Indices {
    type Error = std::convert::Infallible;

    fn type_index(&mut self, ty: u32) -> Answer<u32> {
        Ok(self.types + ty)
    }

    fn function_index(&mut self, function: u32) -> Answer<u32> {
        Ok(self.functions.at(function))
    }

    fn table_index(&mut self, table: u32) -> Answer<u32> {
        Ok(self.tables.at(table))
    }

    fn memory_index(&mut self, memory: u32) -> Answer<u32> {
        Ok(self.memories.at(memory))
    }

    fn global_index(&mut self, global: u32) -> Answer<u32> {
        Ok(self.globals.at(global))
    }

    fn element_index(&mut self, element: u32) -> Answer<u32> {
        Ok(self.elements + element)
    }

    fn data_index(&mut self, data: u32) -> Answer<u32> {
        Ok(self.data + data)
    }

    fn const_expr(&mut self, expression: wasmparser::ConstExpr<'_>) -> Answer<ConstExpr> {
        let mut operators = expression.get_operators_reader();
        if let Ok(Operator::GlobalGet { global_index }) = operators.read()
            && let Some(value) = self.values.get(self.globals.at(global_index) as usize)
        {
            return Ok(value.clone());
        }
        utils::const_expr(self, expression)
    }

    fn parse_global(
        &mut self,
        globals: &mut GlobalSection,
        global: wasmparser::Global<'_>,
    ) -> Answer<()> {
        let value = self.const_expr(global.init_expr)?;
        globals.global(self.global_type(global.ty)?, &value);
        self.values.push(value);
        Ok(())
    }

    fn parse_element(
        &mut self,
        elements: &mut ElementSection,
        element: wasmparser::Element<'_>,
    ) -> Answer<()> {
        let ElementKind::Active { table_index, offset_expr } = &element.kind else {
            return utils::parse_element(self, elements, element);
        };
        if self.late.is_none() {
            return utils::parse_element(self, elements, element);
        }
        let count = match &element.items {
            ElementItems::Functions(items) => items.count(),
            ElementItems::Expressions(_, items) => items.count(),
        };
        let table = self.tables.at(table_index.unwrap_or(0));
        let (offset, elem_index) = (self.const_expr(offset_expr.clone())?, elements.len());
        let drop = Instruction::ElemDrop(elem_index);
        self.copy_late(&offset, count, [Instruction::TableInit { elem_index, table }, drop]);
        elements.passive(self.element_items(element.items)?);
        Ok(())
    }

    fn parse_data(&mut self, data: &mut DataSection, datum: wasmparser::Data<'_>) -> Answer<()> {
        let DataKind::Active { memory_index, offset_expr } = &datum.kind else {
            return utils::parse_data(self, data, datum);
        };
        if self.late.is_none() {
            return utils::parse_data(self, data, datum);
        }
        let mem = self.memories.at(*memory_index);
        let (offset, data_index) = (self.const_expr(offset_expr.clone())?, data.len());
        let length = datum.data.len() as u32;
        let drop = Instruction::DataDrop(data_index);
        self.copy_late(&offset, length, [Instruction::MemoryInit { mem, data_index }, drop]);
        data.passive(datum.data.iter().copied());
        Ok(())
    }
}
