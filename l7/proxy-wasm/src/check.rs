//! Static check that bytes are a stream module.

use crate::abi::{self, CALLBACKS, Signature};
use crate::limits::{EXPORTS_MAX, FUNCTIONS_MAX, IMPORTS_MAX, MODULE_LENGTH_MAX};
use std::fmt;
use wasmparser::types::{EntityType, TypesRef};
use wasmparser::{FuncType, ValType, Validator, WasmFeatures};

/// Allowed WebAssembly features. Toolchains for filters use SIMD; none needs more than these.
const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::FLOATS);

/// ABI version that a module declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.2.0: the same callbacks, and no function that 0.2.1 lacks; run unchanged.
    V0_2_0,
    /// 0.2.1.
    V0_2_1,
}

/// The module is not valid: a fault of its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The module exceeds the length limit.
    #[error("the module has {bytes} bytes; a stream module has at most {MODULE_LENGTH_MAX}")]
    TooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// The bytes are not valid WebAssembly, or use a feature that is not allowed.
    #[error("no valid WebAssembly for a stream module: {reason} (at byte {offset:#x})")]
    Invalid {
        /// Reason from the validator.
        reason: String,
        /// Offset in bytes.
        offset: usize,
    },
    /// The module declares no version of the proxy-wasm ABI.
    #[error("the module exports no 'proxy_abi_version_0_2_1': it is no proxy-wasm module")]
    NoVersion,
    /// The module declares another version of the ABI.
    #[error("the module has ABI version {0}; this node runs 0.2.1 and 0.2.0")]
    OtherVersion(String),
    /// The module has no memory, or does not export it.
    #[error("the module exports no memory named 'memory'")]
    NoMemory,
    /// The module imports something other than a known function.
    #[error("the module imports '{0}', which is no function of the ABI")]
    UnknownImport(String),
    /// The module imports a function with another type.
    #[error("the module imports '{name}' as {found}; it is {expected}")]
    ImportType {
        /// Name of the function.
        name: String,
        /// Type in the module.
        found: String,
        /// Type in the ABI.
        expected: String,
    },
    /// The module exports a callback with another type than the ABI's.
    #[error("the module exports '{name}' as {found}; it is {expected}")]
    ExportType {
        /// Name of the callback.
        name: String,
        /// Type in the module.
        found: String,
        /// Type in the ABI.
        expected: String,
    },
    /// The module exceeds a limit on the number of items.
    #[error("the module has {found} {what}; it may have {limit}")]
    TooMany {
        /// Kind of item.
        what: &'static str,
        /// Number in the module.
        found: u32,
        /// Limit of the number.
        limit: u32,
    },
}

/// Callbacks that a module exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Callbacks(u32);

const _: () = assert!(CALLBACKS.len() <= u32::BITS as usize);

impl Callbacks {
    /// Collects the callbacks among these names.
    pub(crate) fn among<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let index = |name: &str| CALLBACKS.iter().position(|it| it.name == name);
        Self(names.filter_map(index).fold(0, |found, index| found | 1 << index))
    }

    /// Returns true if a callback of [`CALLBACKS`] is exported.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Returns the names, in the ABI's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let is_there = move |index: usize| self.0 & (1 << index) != 0;
        CALLBACKS
            .iter()
            .enumerate()
            .filter(move |(index, _)| is_there(*index))
            .map(|(_, it)| it.name)
    }

    /// Returns true if a callback for TCP streams is exported.
    #[must_use]
    pub fn is_tcp(self) -> bool {
        self.names().any(|name| {
            name == "proxy_on_new_connection"
                || name.starts_with("proxy_on_downstream_")
                || name.starts_with("proxy_on_upstream_")
        })
    }

    /// Returns true if a callback for HTTP is exported.
    #[must_use]
    pub fn is_http(self) -> bool {
        self.names().any(|name| {
            name.starts_with("proxy_on_request_") || name.starts_with("proxy_on_response_")
        })
    }
}

/// Result of a successful check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// ABI version.
    pub version: Version,
    /// Exported callbacks.
    pub callbacks: Callbacks,
    /// Initial size of the memory, in pages of 64 KiB.
    pub memory_pages: u64,
}

/// Checks that bytes are a stream module.
///
/// # Errors
/// The first violation that is found.
pub fn check(wasm: &[u8]) -> Result<Checked, CheckError> {
    if wasm.len() > MODULE_LENGTH_MAX {
        return Err(CheckError::TooLong { bytes: wasm.len() });
    }
    let types = Validator::new_with_features(FEATURES).validate_all(wasm).map_err(|error| {
        CheckError::Invalid { reason: error.message().to_owned(), offset: error.offset() }
    })?;
    let types = types.as_ref();
    at_most("functions", types.function_count() as usize, FUNCTIONS_MAX)?;
    let version = version(types)?;
    imports(types)?;
    let callbacks = callbacks(types)?;
    let memory = exports(&types).find(|(name, _)| *name == "memory");
    let Some((_, EntityType::Memory(memory))) = memory else { return Err(CheckError::NoMemory) };
    Ok(Checked { version, callbacks, memory_pages: memory.initial })
}

fn exports<'a>(types: &TypesRef<'a>) -> impl Iterator<Item = (&'a str, EntityType)> {
    types.core_exports().into_iter().flatten()
}

fn at_most(what: &'static str, found: usize, limit: u32) -> Result<(), CheckError> {
    let found = found as u32;
    if found > limit { Err(CheckError::TooMany { what, found, limit }) } else { Ok(()) }
}

fn version(types: TypesRef<'_>) -> Result<Version, CheckError> {
    const PREFIX: &str = "proxy_abi_version_";
    let mut others = Vec::new();
    let mut best = None;
    for (name, _) in exports(&types) {
        match name.strip_prefix(PREFIX) {
            Some("0_2_1") => best = best.max(Some(Version::V0_2_1)),
            Some("0_2_0") => best = best.max(Some(Version::V0_2_0)),
            Some(other) => others.push(other.replace('_', ".")),
            None => {}
        }
    }
    match (best, others.pop()) {
        (Some(version), _) => Ok(version),
        (None, Some(other)) => Err(CheckError::OtherVersion(other)),
        (None, None) => Err(CheckError::NoVersion),
    }
}

fn imports(types: TypesRef<'_>) -> Result<(), CheckError> {
    let mut count = 0;
    for (module, name, ty) in types.core_imports().into_iter().flatten() {
        count += 1;
        let full = || format!("{module}.{name}");
        let (EntityType::Func(id), Some(expected)) = (ty, abi::host_function(module, name)) else {
            return Err(CheckError::UnknownImport(full()));
        };
        let found = types[id].unwrap_func();
        if !is_of(found, expected) {
            let (found, expected) = (text(found), expected.to_string());
            return Err(CheckError::ImportType { name: full(), found, expected });
        }
    }
    at_most("imports", count, IMPORTS_MAX)
}

fn callbacks(types: TypesRef<'_>) -> Result<Callbacks, CheckError> {
    let (mut count, mut found) = (0, 0);
    for (name, ty) in exports(&types) {
        count += 1;
        let Some(index) = CALLBACKS.iter().position(|it| it.name == name) else { continue };
        let expected = CALLBACKS[index].signature;
        let as_found = match ty {
            EntityType::Func(id) => {
                let ty = types[id].unwrap_func();
                if is_of(ty, expected) {
                    found |= 1 << index;
                    continue;
                }
                text(ty)
            }
            _ => "something else".to_owned(),
        };
        let (name, expected) = (name.to_owned(), expected.to_string());
        return Err(CheckError::ExportType { name, found: as_found, expected });
    }
    at_most("exports", count, EXPORTS_MAX)?;
    Ok(Callbacks(found))
}

fn letter(ty: ValType) -> char {
    match ty {
        ValType::I32 => 'i',
        ValType::I64 => 'l',
        _ => '?',
    }
}

fn is_of(found: &FuncType, expected: Signature) -> bool {
    found.params().iter().map(|ty| letter(*ty)).eq(expected.parameters.chars())
        && found.results().iter().map(|ty| letter(*ty)).eq(expected.results.chars())
}

fn text(ty: &FuncType) -> String {
    let list = |types: &[ValType]| types.iter().map(ToString::to_string).collect::<Vec<_>>();
    format!("({}) -> ({})", list(ty.params()).join(", "), list(ty.results()).join(", "))
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |letter| if letter == 'i' { "i32" } else { "i64" };
        let list = |letters: &str| letters.chars().map(word).collect::<Vec<_>>().join(", ");
        write!(f, "({}) -> ({})", list(self.parameters), list(self.results))
    }
}
