//! Check of a module against the ABI. Works on its bytes alone; nothing runs.
//!
//! ```text
//! Unverified(bytes) ─▶ kind of file ─▶ parts.rs: every section valid, counted
//!                   ─▶ manifest ─▶ imports ─▶ exports ─▶ memory ─▶ Checked
//! ```
//!
//! Only a [`Checked`] module is compiled. Whether its owner may run it is not
//! decided here.

mod bounded;
mod error;
mod kind;
mod limits;
mod parts;
mod streams;

use wasmparser::types::EntityType;
use wasmparser::{FuncType, ValType};

pub use bounded::BOUNDED_INSTRUCTIONS_MAX;
pub use error::CheckError;
pub use kind::Kind;
pub use limits::{
    COUNTERS_MAX, DATA_SEGMENTS_MAX, ELEMENT_SEGMENTS_MAX, EXPORTS_MAX, FUNCTIONS_MAX, GLOBALS_MAX,
    IMPORTS_MAX, Limited, TABLE_ELEMENTS_MAX, TABLES_MAX,
};
use parts::Parts;
pub use streams::{STREAM_PAGES_DEFAULT, STREAM_PAGES_MAX};
use units::Name;

use crate::host::{
    COUNTER_PREFIX, HOOKS, HOST_FUNCTIONS, Hook, HostFunction, ValueType, signature_text,
};
use crate::layout::{
    DATA_ADDRESS, IMPORT_MODULE, MEMORY_PAGES_MAX, META_ADDRESS, MODULE_LENGTH_MAX,
};
use crate::manifest::{Event, Manifest, Meant};

/// Limit of memory growth in pages when neither the module nor its manifest has one (1 MiB).
pub const MEMORY_PAGES_DEFAULT: u32 = 16;
/// Size of a page of linear memory, bytes.
const PAGE_LENGTH: u64 = 0x1_0000;
/// Size of a counter, bytes.
const COUNTER_LENGTH: u64 = 8;

/// Module as received: from a file, a repository, another node.
#[derive(Clone, Copy, Debug)]
pub struct Unverified<'a>(pub &'a [u8]);

/// Contents of a module that conforms to the ABI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Kind of the module.
    pub kind: Kind,
    /// Manifest of the module.
    pub manifest: Manifest,
    /// Host functions that it imports, each once.
    pub imports: Vec<HostFunction>,
    /// Hooks that it exports beside `on_packet`.
    pub hooks: Hooks,
    /// Counters, by name.
    pub counters: Vec<Counter>,
    /// Memory limits.
    pub memory: MemoryLimits,
    /// Fingerprint of the initial memory.
    pub image: MemoryImage,
    /// Most instructions that `on_packet` runs, host functions included, if it has no loops and
    /// they are at most [`BOUNDED_INSTRUCTIONS_MAX`].
    pub brief: Option<u32>,
}

/// Hooks that a module exports; `on_packet` is always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// [`Hook::OnStart`].
    pub on_start: bool,
    /// [`Hook::OnTimer`].
    pub on_timer: bool,
    /// [`Hook::OnMessage`].
    pub on_message: bool,
    /// [`Hook::OnMemoryLow`].
    pub on_memory_low: bool,
    /// [`Hook::OnQueue`].
    pub on_queue: bool,
    /// [`Hook::StateOut`] and [`Hook::StateIn`]: both or none.
    pub state: bool,
}

/// Number in a module's memory that the node shows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counter {
    /// Name, without [`COUNTER_PREFIX`].
    pub name: Name,
    /// Address of the 8 bytes in linear memory, little-endian; a multiple of 8.
    pub address: u32,
}

/// Fingerprint of a module's initial memory and globals: its memory, global and data sections. Two
/// modules of one fingerprint have their constants at the same addresses.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct MemoryImage(pub u64);

/// Size of a module's memory, in pages of 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemoryLimits {
    /// Initial size, at least 1.
    pub pages_min: u32,
    /// Limit of growth, at most [`MEMORY_PAGES_MAX`].
    pub pages_max: u32,
}

impl Unverified<'_> {
    /// Checks the module against the ABI: that of packets, or, if it exports a version of
    /// proxy-wasm, the part that can be checked without knowing its functions.
    ///
    /// # Errors
    /// The first fault that is found: of the file, of its WebAssembly, of its manifest, of
    /// its imports, of its exports, of its memory.
    pub fn check(self) -> Result<Checked, CheckError> {
        kind_of_file(self.0)?;
        if self.0.len() > MODULE_LENGTH_MAX {
            return Err(CheckError::TooLarge { length: self.0.len() });
        }
        let parts = Parts::read(self.0)?;
        if parts.kind() == Kind::Streams {
            return streams::check(&parts);
        }
        let manifest = match parts.manifest_text() {
            Some(text) => Manifest::parse_bytes(&text)?,
            None => return Err(CheckError::NoManifest),
        };
        let imports = imports(&parts, &manifest)?;
        if let Some(function) = parts.start_function {
            return Err(CheckError::StartFunction { function });
        }
        let hooks = hooks(&parts, &manifest)?;
        let memory = memory(&parts, &manifest)?;
        data(&parts, memory)?;
        let counters = counters(&parts, memory)?;
        let image = MemoryImage(parts.image);
        let brief = parts.function_export("on_packet").and_then(|function| {
            bounded::bound(function, parts.imports.len() as u32, &parts.bodies)
        });
        let kind = Kind::Packets;
        Ok(Checked { kind, manifest, imports, hooks, counters, memory, image, brief })
    }
}

/// Rejects other kinds of files, by their first bytes.
fn kind_of_file(bytes: &[u8]) -> Result<(), CheckError> {
    const BUILD: &str = "give the .wasm file that `tam build` names";
    let kinds: [(&[u8], &str, &str); 6] = [
        (b"\x7fELF", "an ELF file (a native program, a library or a BPF object)", BUILD),
        (b"\x1f\x8b", "compressed with gzip", "decompress it first"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd", "decompress it first"),
        (b"PK\x03\x04", "a zip archive", BUILD),
        (b"BC\xc0\xde", "LLVM bitcode", BUILD),
        (b"!<arch>\n", "a static library", BUILD),
    ];
    if bytes.starts_with(b"\0asm") {
        return Ok(());
    }
    let not_wasm = |looks_like, advice| Err(CheckError::NotWasm { looks_like, advice });
    if bytes.is_empty() {
        return not_wasm("an empty file", BUILD);
    }
    if let Some((_, looks_like, advice)) = kinds.iter().find(|(begin, ..)| bytes.starts_with(begin))
    {
        return not_wasm(looks_like, advice);
    }
    let begin = &bytes[..bytes.len().min(256)];
    let is_text = |byte: &u8| byte.is_ascii_graphic() || b" \t\r\n".contains(byte);
    if !begin.iter().all(is_text) {
        return not_wasm("an unknown kind of file", BUILD);
    }
    if begin.trim_ascii_start().starts_with(b"(") || begin.starts_with(b";;") {
        return not_wasm("WebAssembly as text", "translate it with `wasm-tools parse`");
    }
    not_wasm("text", BUILD)
}

fn imports(parts: &Parts<'_>, manifest: &Manifest) -> Result<Vec<HostFunction>, CheckError> {
    let mut imports = Vec::new();
    for import in &parts.imports {
        let name = short(import.name);
        if import.module != IMPORT_MODULE {
            let advice = match import.module {
                "wasi_snapshot_preview1" | "wasi_unstable" => {
                    "build for wasm32-unknown-unknown, not for WASI"
                }
                "env" => "it is a symbol that the linker did not find: define it, or leave it out",
                _ => "remove the import",
            };
            let module = short(import.module);
            return Err(CheckError::ImportModule { module, name, advice });
        }
        let Some(spec) = HOST_FUNCTIONS.iter().find(|spec| spec.name == import.name) else {
            let meant = Meant::new(&name, HOST_FUNCTIONS.iter().map(|spec| spec.name));
            return Err(CheckError::ImportName { name, meant });
        };
        let (expected, found) = match parts.types.as_ref().entity_type_from_import(import) {
            Some(EntityType::Func(id)) => {
                let found = parts.types[id].unwrap_func();
                if is_type(found, spec.parameters, Some(spec.result)) {
                    (None, String::new())
                } else {
                    (Some(spec), function_text(found))
                }
            }
            _ => (Some(spec), "something that is no function".into()),
        };
        if let Some(spec) = expected {
            let expected = signature_text(spec.parameters, Some(spec.result));
            return Err(CheckError::ImportType { name: spec.name, found, expected });
        }
        match spec.need {
            Some(need) if !manifest.needs.contains(&need) => {
                let need = need.name();
                return Err(CheckError::NeedUndeclared { name: spec.name, need });
            }
            _ if !imports.contains(&spec.function) => imports.push(spec.function),
            _ => {}
        }
    }
    Ok(imports)
}

fn hooks(parts: &Parts<'_>, manifest: &Manifest) -> Result<Hooks, CheckError> {
    let mut hooks = Hooks::default();
    let mut has_on_packet = false;
    let (mut state_out, mut state_in) = (false, false);
    for spec in HOOKS {
        let Some(entity) = parts.export(spec.name) else { continue };
        let (parameters, result) = spec.signature;
        let wrong = |found| {
            let expected = format!("a function {}", signature_text(parameters, result));
            CheckError::HookType { name: spec.name, found, expected }
        };
        let EntityType::Func(id) = entity else {
            return Err(wrong("something that is no function".into()));
        };
        let found = parts.types[id].unwrap_func();
        if !is_type(found, parameters, result) {
            if spec.any_type {
                continue;
            }
            return Err(wrong(format!("a function {}", function_text(found))));
        }
        match spec.hook {
            Hook::OnPacket => has_on_packet = true,
            Hook::OnStart => hooks.on_start = true,
            Hook::OnTimer => hooks.on_timer = true,
            Hook::OnMessage => hooks.on_message = true,
            Hook::OnMemoryLow => hooks.on_memory_low = true,
            Hook::OnQueue => hooks.on_queue = true,
            Hook::StateOut => state_out = true,
            Hook::StateIn => state_in = true,
        }
    }
    if !has_on_packet {
        let names: Vec<_> = parts.function_exports().map(short).collect();
        let meant = Meant::new("on_packet", names.iter().take(8).map(String::as_str));
        return Err(CheckError::NoOnPacket { meant });
    }
    hooks.state = match (state_out, state_in) {
        (true, false) => return Err(CheckError::State { has: "state_out", lacks: "state_in" }),
        (false, true) => return Err(CheckError::State { has: "state_in", lacks: "state_out" }),
        (both, _) => both,
    };
    let takes_messages = manifest.pools.iter().any(|pool| pool.has(Event::Message));
    match (hooks.on_message, takes_messages) {
        (true, false) if !manifest.pools.is_empty() => {
            return Err(CheckError::Message {
                has: "exports 'on_message'",
                lacks: "no pool of its manifest has the event \"message\"",
            });
        }
        (false, true) => {
            return Err(CheckError::Message {
                has: "has a pool with the event \"message\" in its manifest",
                lacks: "it exports no 'on_message'",
            });
        }
        _ => {}
    }
    match (hooks.on_timer, manifest.timer_ms) {
        (true, None) => Err(CheckError::Timer {
            has: "exports 'on_timer'",
            lacks: "its manifest has no 'timer_ms'",
        }),
        (false, Some(_)) => Err(CheckError::Timer {
            has: "has 'timer_ms' in its manifest",
            lacks: "it exports no 'on_timer'",
        }),
        _ => Ok(hooks),
    }
}

fn memory(parts: &Parts<'_>, manifest: &Manifest) -> Result<MemoryLimits, CheckError> {
    let types = parts.types.as_ref();
    if types.memory_count() == 0 {
        return Err(CheckError::NoMemory);
    }
    let Some(EntityType::Memory(memory)) = parts.export("memory") else {
        return Err(CheckError::MemoryNotExported);
    };
    let max = manifest.memory_pages_max.unwrap_or(MEMORY_PAGES_MAX);
    let pages_min = match u32::try_from(memory.initial) {
        Ok(pages) if pages >= 1 && pages <= max => pages,
        _ => return Err(CheckError::MemorySize { pages: memory.initial, max }),
    };
    // A declared maximum above the node's is common (LLVM writes 65,536); growth then ends earlier.
    let declared = memory.maximum.map(|pages| u32::try_from(pages).unwrap_or(u32::MAX));
    let wished = manifest.memory_pages_max.or(declared).unwrap_or(MEMORY_PAGES_DEFAULT);
    let pages_max = wished.min(declared.unwrap_or(u32::MAX)).min(MEMORY_PAGES_MAX).max(pages_min);
    Ok(MemoryLimits { pages_min, pages_max })
}

fn data(parts: &Parts<'_>, memory: MemoryLimits) -> Result<(), CheckError> {
    let reserved = u64::from(META_ADDRESS)..u64::from(DATA_ADDRESS);
    let pages = u64::from(memory.pages_min);
    for &(segment, begin, length) in &parts.active_data {
        let (begin, end) = (u64::from(begin), u64::from(begin) + length);
        if begin < reserved.end && end > reserved.start && length > 0 {
            return Err(CheckError::DataOverPacket { segment, begin, end });
        }
        if end > pages * PAGE_LENGTH {
            return Err(CheckError::DataOutside { segment, end, pages });
        }
    }
    Ok(())
}

fn counters(parts: &Parts<'_>, memory: MemoryLimits) -> Result<Vec<Counter>, CheckError> {
    let mut counters = Vec::new();
    let end = u64::from(memory.pages_min) * PAGE_LENGTH;
    for (export, global) in parts.global_exports() {
        let Some(name) = export.strip_prefix(COUNTER_PREFIX) else { continue };
        let wrong = |reason: String| CheckError::Counter { name: short(export), reason };
        let name = Name::new(name).map_err(|error| wrong(error.to_string()))?;
        let Some(global) = global else {
            return Err(wrong("it is no global".into()));
        };
        if global.mutable || global.content_type != ValType::I32 {
            return Err(wrong("it is mutable or of another type".into()));
        }
        let address = global.value.ok_or_else(|| wrong("its value is not a constant".into()))?;
        let last = u64::from(address) + COUNTER_LENGTH;
        if !u64::from(address).is_multiple_of(COUNTER_LENGTH) || last > end {
            return Err(wrong(format!(
                "{address:#x} is no multiple of {COUNTER_LENGTH}, or lies beyond the memory's first pages"
            )));
        }
        if last > u64::from(META_ADDRESS) && address < DATA_ADDRESS {
            return Err(wrong(format!("{address:#x} lies over the packet and its metadata")));
        }
        counters.push(Counter { name, address });
    }
    Limited::Counters.allow(counters.len() as u64, Kind::Packets)?;
    counters.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(counters)
}

fn is_type(found: &FuncType, parameters: &[ValueType], result: Option<ValueType>) -> bool {
    let same = |found: &ValType, expected: &ValueType| {
        *found
            == match expected {
                ValueType::I32 => ValType::I32,
                ValueType::I64 => ValType::I64,
            }
    };
    let all = |found: &[ValType], expected: &[ValueType]| {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, expected)| same(found, expected))
    };
    all(found.params(), parameters) && all(found.results(), result.as_slice())
}

/// Formats the signature of a function in the module, truncated for a message.
fn function_text(function: &FuncType) -> String {
    let list = |types: &[ValType]| {
        let shown: Vec<_> = types.iter().take(8).map(ToString::to_string).collect();
        let more = if types.len() > 8 { ", ..." } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    match function.results() {
        [] => format!("({})", list(function.params())),
        results => format!("({}) -> {}", list(function.params()), list(results)),
    }
}

/// Returns a name of the module, made safe and short enough for a message.
fn short(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_default).collect()
}
