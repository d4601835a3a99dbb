//! Single pass over a module: validates and counts every section, and keeps what the check needs.
//! Judges WebAssembly, not the ABI.

use wasmparser::{
    ConstExpr, CustomSectionReader, DataKind, Encoding, ExternalKind, FuncValidatorAllocations,
    Global, Import, KnownCustom, Operator, Parser, Payload, ValType, ValidPayload, Validator,
    WasmFeatures,
    types::{EntityType, Types},
};

use crate::check::bounded::Body;
use crate::check::error::CheckError;
use crate::check::kind::{Kind, STREAM_VERSIONS, kind_of};
use crate::check::limits::Limited;
use crate::layout::MANIFEST_SECTION;

/// Parts of a valid module.
pub(super) struct Parts<'a> {
    pub(super) imports: Vec<Import<'a>>,
    pub(super) start_function: Option<u32>,
    /// Index, address and length of each active data segment.
    pub(super) active_data: Vec<(usize, u32, u64)>,
    pub(super) types: Types,
    /// Fingerprint of the sections that define initial memory and globals.
    pub(super) image: u64,
    /// Functions defined by the module, in order.
    pub(super) bodies: Vec<Body>,
    exports: Vec<(&'a str, ExternalKind, u32)>,
    globals: Vec<GlobalInfo>,
    manifests: Vec<&'a [u8]>,
    name: Option<&'a str>,
}

/// Properties of a global.
#[derive(Clone, Copy)]
pub(super) struct GlobalInfo {
    pub(super) content_type: ValType,
    pub(super) mutable: bool,
    /// Initial value, if it is one 32-bit constant.
    pub(super) value: Option<u32>,
}

/// Features of the packet ABI: WebAssembly 2.0 without SIMD and without references to the host,
/// LLVM's default for C and Rust. Sandbox, eBPF compiler and simulator agree on it. Stream modules,
/// which only the sandbox runs, may have SIMD.
const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::FLOATS);

/// Excluded features with their common names, widest last.
const EXCLUDED_FEATURES: &[(WasmFeatures, &str)] = &[
    (WasmFeatures::SIMD, "SIMD (-simd128)"),
    (WasmFeatures::RELAXED_SIMD, "relaxed SIMD (-relaxed-simd)"),
    (WasmFeatures::THREADS, "threads: shared memory or atomics (-atomics)"),
    (WasmFeatures::TAIL_CALL, "tail calls (-tail-call)"),
    (WasmFeatures::MEMORY64, "memory64: 64-bit addresses (wasm64)"),
    (WasmFeatures::MULTI_MEMORY, "more than one memory"),
    (WasmFeatures::EXCEPTIONS, "exceptions (-exception-handling)"),
    (WasmFeatures::LEGACY_EXCEPTIONS, "exceptions (-exception-handling)"),
    (WasmFeatures::EXTENDED_CONST, "extended constant expressions (-extended-const)"),
    (WasmFeatures::GC_TYPES, "references to the host (externref)"),
    (WasmFeatures::GC, "garbage collection"),
    (WasmFeatures::FUNCTION_REFERENCES, "typed function references"),
    (WasmFeatures::CUSTOM_PAGE_SIZES, "custom page sizes"),
    (WasmFeatures::WIDE_ARITHMETIC, "wide arithmetic (-wide-arithmetic)"),
    (WasmFeatures::STACK_SWITCHING, "stack switching"),
    (WasmFeatures::MEMORY_CONTROL, "memory control"),
];

impl<'a> Parts<'a> {
    /// Validates `bytes` and extracts the module's parts.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, CheckError> {
        let error = match Self::read_with(bytes, FEATURES) {
            Ok(parts) => return Ok(parts),
            Err(Fault::Refused(error)) => return Err(error),
            Err(Fault::Invalid(error)) => error,
        };
        match Self::read_with(bytes, FEATURES.union(WasmFeatures::SIMD)) {
            Ok(parts) if parts.kind() == Kind::Streams => Ok(parts),
            _ => Err(refusal(bytes, &error)),
        }
    }

    fn read_with(bytes: &'a [u8], features: WasmFeatures) -> Result<Self, Fault> {
        let mut parser = Parser::new(0);
        parser.set_features(features);
        let mut validator = Validator::new_with_features(features);
        let mut allocations = FuncValidatorAllocations::default();
        let mut seen = PassState { kind: kind_of(bytes), ..PassState::default() };
        for payload in parser.parse_all(bytes) {
            let payload = payload?;
            seen.before(&payload)?;
            if let Some((MEMORY_SECTION | GLOBAL_SECTION | DATA_SECTION, range)) =
                payload.as_section()
            {
                seen.image = fingerprint(seen.image, &bytes[range]);
            }
            match validator.payload(&payload)? {
                ValidPayload::Func(function, body) => {
                    let mut validator = function.into_validator(allocations);
                    validator.validate(&body)?;
                    allocations = validator.into_allocations();
                    seen.bodies.push(Body::of(&body));
                }
                ValidPayload::End(types) => return Ok(seen.into_parts(types)),
                ValidPayload::Ok | ValidPayload::Parser(_) => seen.after(payload)?,
            }
        }
        Err(CheckError::Invalid { offset: bytes.len(), reason: "the module has no end".into() }
            .into())
    }

    /// Returns the kind that the exports declare.
    pub(super) fn kind(&self) -> Kind {
        match self.function_exports().any(|name| name.starts_with(STREAM_VERSIONS)) {
            true => Kind::Streams,
            false => Kind::Packets,
        }
    }

    /// Returns the manifest sections, concatenated.
    pub(super) fn manifest_text(&self) -> Option<Vec<u8>> {
        (!self.manifests.is_empty()).then(|| self.manifests.join(&b'\n'))
    }

    /// Returns the name that the toolchain gave the module.
    pub(super) const fn name(&self) -> Option<&'a str> {
        self.name
    }

    /// Returns the type of an export.
    pub(super) fn export(&self, name: &str) -> Option<EntityType> {
        self.types.as_ref().core_exports()?.find(|(export, _)| *export == name).map(|(_, ty)| ty)
    }

    /// Returns the index of an exported function.
    pub(super) fn function_export(&self, name: &str) -> Option<u32> {
        let is_it = |kind: ExternalKind, export: &str| kind == ExternalKind::Func && export == name;
        self.exports.iter().find(|(export, kind, _)| is_it(*kind, export)).map(|(.., index)| *index)
    }

    pub(super) fn function_exports(&self) -> impl Iterator<Item = &'a str> {
        self.exports
            .iter()
            .filter(|(_, kind, _)| *kind == ExternalKind::Func)
            .map(|(name, ..)| *name)
    }

    /// Iterates over all exports, with the global of those that are one.
    pub(super) fn global_exports(&self) -> impl Iterator<Item = (&'a str, Option<GlobalInfo>)> {
        self.exports.iter().map(|&(name, kind, index)| {
            let global = (kind == ExternalKind::Global)
                .then(|| self.globals.get(index as usize).copied())
                .flatten();
            (name, global)
        })
    }
}

/// Early end of a pass.
enum Fault {
    Refused(CheckError),
    Invalid(wasmparser::Error),
}

impl From<CheckError> for Fault {
    fn from(error: CheckError) -> Self {
        Self::Refused(error)
    }
}

impl From<wasmparser::Error> for Fault {
    fn from(error: wasmparser::Error) -> Self {
        Self::Invalid(error)
    }
}

/// Returns the error of an excluded feature, if one is the reason for the validator's refusal.
fn refusal(bytes: &[u8], error: &wasmparser::Error) -> CheckError {
    let missing = error.missing_wasm_feature().unwrap_or(WasmFeatures::empty());
    let named =
        EXCLUDED_FEATURES.iter().find(|(feature, _)| missing.contains(*feature)).or_else(|| {
            // The validator does not always name the feature; then it is the one that moves the fault
            // to a later position.
            EXCLUDED_FEATURES.iter().find(|(feature, _)| {
                match Parts::read_with(bytes, FEATURES | *feature) {
                    Ok(_) => true,
                    Err(Fault::Invalid(later)) => later.offset() > error.offset(),
                    Err(Fault::Refused(_)) => false,
                }
            })
        });
    match named {
        Some((_, feature)) => CheckError::Feature { feature, offset: error.offset() },
        None => CheckError::Invalid { offset: error.offset(), reason: error.message().into() },
    }
}

/// Section IDs (WebAssembly 2.0, section 5.5.2).
const MEMORY_SECTION: u8 = 5;
const GLOBAL_SECTION: u8 = 6;
const DATA_SECTION: u8 = 11;

/// Computes FNV-1a in 64 bits over the bytes and their length: distinguishes versions of one
/// author's module; a collision only gives its own author a wrong memory.
fn fingerprint(before: u64, bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(PRIME);
    let length = (bytes.len() as u64).to_le_bytes();
    bytes.iter().chain(&length).fold(before ^ OFFSET, |sum, &byte| mix(sum, byte))
}

/// Results of one pass.
#[derive(Default)]
struct PassState<'a> {
    /// Kind of the module, which selects the limits.
    kind: Kind,
    imports: Vec<Import<'a>>,
    start_function: Option<u32>,
    active_data: Vec<(usize, u32, u64)>,
    image: u64,
    bodies: Vec<Body>,
    exports: Vec<(&'a str, ExternalKind, u32)>,
    globals: Vec<GlobalInfo>,
    manifests: Vec<&'a [u8]>,
    name: Option<&'a str>,
}

impl<'a> PassState<'a> {
    /// Enforces limits before the validator spends time on a section.
    fn before(&self, payload: &Payload<'a>) -> Result<(), CheckError> {
        let (what, count) = match payload {
            Payload::Version { encoding: Encoding::Component, .. } => {
                return Err(CheckError::Component);
            }
            Payload::ImportSection(section) => (Limited::Imports, section.count()),
            Payload::ExportSection(section) => (Limited::Exports, section.count()),
            Payload::FunctionSection(section) => (Limited::Functions, section.count()),
            Payload::TableSection(section) => (Limited::Tables, section.count()),
            Payload::GlobalSection(section) => (Limited::Globals, section.count()),
            Payload::ElementSection(section) => (Limited::ElementSegments, section.count()),
            Payload::DataSection(section) => (Limited::DataSegments, section.count()),
            _ => return Ok(()),
        };
        Ok(what.allow(u64::from(count), self.kind)?)
    }

    /// Keeps the parts that the check needs later.
    fn after(&mut self, payload: Payload<'a>) -> Result<(), Fault> {
        match payload {
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    self.imports.push(import?);
                }
            }
            Payload::TableSection(section) => {
                let mut elements = 0_u64;
                for table in section {
                    elements = elements.saturating_add(table?.ty.initial);
                }
                Limited::TableElements.allow(elements, self.kind).map_err(CheckError::from)?;
            }
            Payload::GlobalSection(section) => {
                for global in section {
                    self.globals.push(facts(&global?));
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export?;
                    self.exports.push((export.name, export.kind, export.index));
                }
            }
            Payload::StartSection { func, .. } => self.start_function = Some(func),
            Payload::DataSection(section) => {
                for (index, data) in section.into_iter().enumerate() {
                    let data = data?;
                    if let DataKind::Active { offset_expr, .. } = &data.kind {
                        // Imported globals are refused, so every other kind of offset was refused
                        // before.
                        let address = constant(offset_expr).unwrap_or(0);
                        self.active_data.push((index, address, data.data.len() as u64));
                    }
                }
            }
            Payload::CustomSection(section) if section.name() == MANIFEST_SECTION => {
                self.manifests.push(section.data());
            }
            Payload::CustomSection(section) => self.name = self.name.or(name_in(&section)),
            _ => {}
        }
        Ok(())
    }

    fn into_parts(self, types: Types) -> Parts<'a> {
        Parts {
            imports: self.imports,
            start_function: self.start_function,
            active_data: self.active_data,
            types,
            image: self.image,
            bodies: self.bodies,
            exports: self.exports,
            globals: self.globals,
            manifests: self.manifests,
            name: self.name,
        }
    }
}

/// Returns the module's name from the section that toolchains write for debuggers, `None` when it
/// is malformed.
fn name_in<'a>(section: &CustomSectionReader<'a>) -> Option<&'a str> {
    let KnownCustom::Name(names) = section.as_known() else { return None };
    names.flatten().find_map(|name| match name {
        wasmparser::Name::Module { name, .. } => Some(name),
        _ => None,
    })
}

fn facts(global: &Global<'_>) -> GlobalInfo {
    GlobalInfo {
        content_type: global.ty.content_type,
        mutable: global.ty.mutable,
        value: constant(&global.init_expr),
    }
}

/// Returns the value of an expression that is one 32-bit constant.
fn constant(expression: &ConstExpr<'_>) -> Option<u32> {
    let mut operators = expression.get_operators_reader();
    match (operators.read().ok()?, operators.read().ok()?) {
        (Operator::I32Const { value }, Operator::End) => Some(value.cast_unsigned()),
        _ => None,
    }
}
