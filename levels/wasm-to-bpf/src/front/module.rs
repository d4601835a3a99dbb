//! Parsed module: one pass over its sections, with full validation. Judges only validity; reach.rs
//! decides what a function may contain, for those functions that the entry can reach.

use std::collections::BTreeMap;

use wasmparser::{
    ConstExpr, DataKind, ElementItems, ElementKind, Encoding, ExternalKind, FuncType,
    FuncValidatorAllocations, FunctionBody, GlobalType, Import, KnownCustom, MemoryType, Name,
    Operator, Parser, Payload, TableInit, TableType, TypeRef, ValidPayload, Validator,
    WasmFeatures,
};

use crate::refusal::{Reason, Refusal};

/// Features that the validator accepts. Many are refused later, where they are reached and by their
/// name, which is more informative than "invalid".
const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::GC_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::FLOATS)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::THREADS)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::EXCEPTIONS)
    .union(WasmFeatures::FUNCTION_REFERENCES)
    .union(WasmFeatures::MULTI_MEMORY)
    .union(WasmFeatures::MEMORY64);

/// Imported function.
pub(super) struct ImportedFunction<'a> {
    pub(super) module: &'a str,
    pub(super) name: &'a str,
}

/// Global that the module defines.
pub(super) struct DefinedGlobal {
    pub(super) ty: GlobalType,
    /// Initial value, if it is an integer.
    pub(super) value: Option<u64>,
    /// Initial value, if it is a reference.
    pub(super) element: Element,
    pub(super) exported: bool,
}

/// Element of a table or a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Null,
    Function(u32),
    /// Element known only at run time: of another kind, or from an imported global.
    Unknown,
}

/// Element segment.
pub(super) struct ElementSegment<'a> {
    pub(super) mode: ElementMode<'a>,
    pub(super) elements: Vec<Element>,
}

/// Mode of an element segment: the time at which its elements go into a table.
pub(super) enum ElementMode<'a> {
    /// Copied at instantiation.
    Active { table: u32, offset: ConstExpr<'a> },
    /// Copied by `table.init`.
    Passive,
    /// Never copied.
    Declared,
}

/// Data segment; a passive one has no offset.
pub(super) struct DataSegment<'a> {
    pub(super) offset: Option<ConstExpr<'a>>,
    pub(super) bytes: &'a [u8],
}

/// Parts of a valid module that compiling needs.
#[derive(Default)]
pub(super) struct Module<'a> {
    /// Function types of the type section, by index; `None` for others.
    pub(super) types: Vec<Option<FuncType>>,
    /// Type of each function, imported ones first.
    pub(super) function_types: Vec<FuncType>,
    pub(super) imports: Vec<ImportedFunction<'a>>,
    /// Imports other than functions.
    pub(super) other_imports: Vec<Import<'a>>,
    pub(super) bodies: Vec<FunctionBody<'a>>,
    pub(super) memories: Vec<MemoryType>,
    pub(super) tables: Vec<(TableType, Element)>,
    pub(super) elements: Vec<ElementSegment<'a>>,
    pub(super) globals: Vec<DefinedGlobal>,
    pub(super) data: Vec<DataSegment<'a>>,
    pub(super) exports: BTreeMap<&'a str, (ExternalKind, u32)>,
    pub(super) start: Option<u32>,
    names: BTreeMap<u32, &'a str>,
}

impl<'a> Module<'a> {
    /// Validates and parses `bytes`.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let mut parser = Parser::new(0);
        parser.set_features(FEATURES);
        let mut validator = Validator::new_with_features(FEATURES);
        let mut allocations = FuncValidatorAllocations::default();
        let mut module = Module::default();
        for payload in parser.parse_all(bytes) {
            let payload = payload.map_err(|error| invalid(&error))?;
            if let Payload::Version { encoding: Encoding::Component, .. } = payload {
                return Err(Refusal::of_module(Reason::Component));
            }
            match validator.payload(&payload).map_err(|error| invalid(&error))? {
                ValidPayload::Func(function, body) => {
                    let mut validator = function.into_validator(allocations);
                    validator.validate(&body).map_err(|error| invalid(&error))?;
                    allocations = validator.into_allocations();
                    module.bodies.push(body);
                }
                ValidPayload::End(types) => {
                    module.finish(types.as_ref());
                    return Ok(module);
                }
                ValidPayload::Ok | ValidPayload::Parser(_) => {
                    module.keep(payload).map_err(|error| invalid(&error))?;
                }
            }
        }
        let message = "the module has no end".into();
        Err(Refusal::of_module(Reason::Invalid { message }))
    }

    /// Returns the name of a function: of the name section, else of an export or an import.
    pub(super) fn name_of(&self, function: u32) -> Option<String> {
        if let Some(name) = self.names.get(&function) {
            return Some((*name).to_owned());
        }
        if let Some(import) = self.imports.get(function as usize) {
            return Some(format!("{}.{}", import.module, import.name));
        }
        let is_it =
            |(kind, index): &(ExternalKind, u32)| *kind == ExternalKind::Func && *index == function;
        self.exports.iter().find(|(_, what)| is_it(what)).map(|(name, _)| (*name).to_owned())
    }

    /// Returns the body of a function that is not imported.
    pub(super) fn body_of(&self, function: u32) -> Option<&FunctionBody<'a>> {
        let defined = (function as usize).checked_sub(self.imports.len())?;
        self.bodies.get(defined)
    }

    /// Returns the value of a constant expression of integers.
    pub(super) fn constant(&self, expression: &ConstExpr<'_>) -> Option<u64> {
        let mut stack: Vec<u64> = Vec::new();
        let narrow = |value: u64| value & u64::from(u32::MAX);
        for operator in expression.get_operators_reader() {
            let value = match operator.ok()? {
                Operator::I32Const { value } => u64::from(value.cast_unsigned()),
                Operator::I64Const { value } => value.cast_unsigned(),
                Operator::GlobalGet { global_index } => {
                    self.globals.get(global_index as usize)?.value?
                }
                Operator::End => break,
                binary => {
                    let (right, left) = (stack.pop()?, stack.pop()?);
                    match binary {
                        Operator::I32Add => narrow(left.wrapping_add(right)),
                        Operator::I32Sub => narrow(left.wrapping_sub(right)),
                        Operator::I32Mul => narrow(left.wrapping_mul(right)),
                        Operator::I64Add => left.wrapping_add(right),
                        Operator::I64Sub => left.wrapping_sub(right),
                        Operator::I64Mul => left.wrapping_mul(right),
                        _ => return None,
                    }
                }
            };
            stack.push(value);
        }
        stack.pop()
    }

    /// Returns the value of a constant expression of references.
    fn element(&self, expression: &ConstExpr<'_>) -> Element {
        let mut operators = expression.get_operators_reader();
        match (operators.read(), operators.read()) {
            (Ok(Operator::RefFunc { function_index }), Ok(Operator::End)) => {
                Element::Function(function_index)
            }
            (Ok(Operator::RefNull { .. }), Ok(Operator::End)) => Element::Null,
            (Ok(Operator::GlobalGet { global_index }), Ok(Operator::End)) => {
                let global = self.globals.get(global_index as usize);
                global.map_or(Element::Unknown, |global| global.element)
            }
            _ => Element::Unknown,
        }
    }

    fn keep(&mut self, payload: Payload<'a>) -> Result<(), wasmparser::Error> {
        match payload {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    self.import(import?);
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    let table = table?;
                    let first = match table.init {
                        TableInit::RefNull => Element::Null,
                        TableInit::Expr(expression) => self.element(&expression),
                    };
                    self.tables.push((table.ty, first));
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    self.memories.push(memory?);
                }
            }
            Payload::GlobalSection(section) => {
                for global in section {
                    let global = global?;
                    // Globals that it refers to come before it.
                    let value = self.constant(&global.init_expr);
                    let element = self.element(&global.init_expr);
                    let ty = global.ty;
                    self.globals.push(DefinedGlobal { ty, value, element, exported: false });
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    self.exports.insert(export.name, (export.kind, export.index));
                }
            }
            Payload::StartSection { func, .. } => self.start = Some(func),
            Payload::ElementSection(section) => self.element_section(section)?,
            Payload::DataSection(section) => {
                for data in section {
                    let data = data?;
                    let offset = match data.kind {
                        DataKind::Active { offset_expr, .. } => Some(offset_expr),
                        DataKind::Passive => None,
                    };
                    self.data.push(DataSegment { offset, bytes: data.data });
                }
            }
            Payload::CustomSection(section) => {
                if let KnownCustom::Name(section) = section.as_known() {
                    self.name_section(section);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn import(&mut self, import: Import<'a>) {
        if matches!(import.ty, TypeRef::Func(_) | TypeRef::FuncExact(_)) {
            let (module, name) = (import.module, import.name);
            self.imports.push(ImportedFunction { module, name });
        } else {
            self.other_imports.push(import);
        }
    }

    fn element_section(
        &mut self,
        section: wasmparser::ElementSectionReader<'a>,
    ) -> Result<(), wasmparser::Error> {
        for segment in section {
            let segment = segment?;
            let mode = match segment.kind {
                ElementKind::Active { table_index, offset_expr } => {
                    ElementMode::Active { table: table_index.unwrap_or(0), offset: offset_expr }
                }
                ElementKind::Passive => ElementMode::Passive,
                ElementKind::Declared => ElementMode::Declared,
            };
            let mut elements = Vec::new();
            match segment.items {
                ElementItems::Functions(functions) => {
                    for function in functions {
                        elements.push(Element::Function(function?));
                    }
                }
                ElementItems::Expressions(_, expressions) => {
                    for expression in expressions {
                        elements.push(self.element(&expression?));
                    }
                }
            }
            self.elements.push(ElementSegment { mode, elements });
        }
        Ok(())
    }

    /// Reads the name section, which only serves messages: a malformed one has no names.
    fn name_section(&mut self, section: wasmparser::NameSectionReader<'a>) {
        for part in section.into_iter().flatten() {
            if let Name::Function(names) = part {
                for naming in names.into_iter().flatten() {
                    self.names.insert(naming.index, naming.name);
                }
            }
        }
    }

    fn finish(&mut self, types: wasmparser::types::TypesRef<'_>) {
        let function = |id: wasmparser::types::CoreTypeId| match &types[id].composite_type.inner {
            wasmparser::CompositeInnerType::Func(ty) => Some(ty.clone()),
            _ => None,
        };
        self.types = (0..types.core_type_count_in_module())
            .map(|index| function(types.core_type_at_in_module(index)))
            .collect();
        self.function_types = (0..types.function_count())
            .filter_map(|index| function(types.core_function_at(index)))
            .collect();
        for (kind, index) in self.exports.values() {
            let defined = (*index as usize).wrapping_sub(self.imported_globals());
            if *kind == ExternalKind::Global
                && let Some(global) = self.globals.get_mut(defined)
            {
                global.exported = true;
            }
        }
    }

    fn imported_globals(&self) -> usize {
        let is_global = |import: &&Import<'_>| matches!(import.ty, TypeRef::Global(_));
        self.other_imports.iter().filter(is_global).count()
    }
}

fn invalid(error: &wasmparser::Error) -> Refusal {
    Refusal {
        reason: Reason::Invalid { message: error.message().into() },
        function: None,
        name: None,
        place: u32::try_from(error.offset()).ok(),
    }
}
