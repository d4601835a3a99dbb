//! Mutable globals by their index: exported under synthetic names, so that their values can be read
//! and written when an instance moves or is replaced.

use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload};

use crate::CompileError;

/// Prefix of the names: no identifier of a source language begins with it.
const PREFIX: &str = "\u{1}global:";

/// Returns the index in the name of such an export.
pub(crate) fn index_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Returns the module with an added export for each of its mutable globals, otherwise unchanged.
/// The module has no imported globals (base/abi).
pub(crate) fn with_globals_exported(wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
    let refused = |error: wasmparser::BinaryReaderError| CompileError::Refused(error.to_string());
    let mut module = Module::new();
    let mut mutable = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(refused)?;
        if let Payload::GlobalSection(globals) = &payload {
            for (index, global) in (0u32..).zip(globals.clone()) {
                if global.map_err(refused)?.ty.mutable {
                    mutable.push(index);
                }
            }
        }
        if let Payload::ExportSection(exports) = &payload {
            let mut section = ExportSection::new();
            for export in exports.clone() {
                let export = export.map_err(refused)?;
                let kind = match export.kind {
                    ExternalKind::Func | ExternalKind::FuncExact => ExportKind::Func,
                    ExternalKind::Table => ExportKind::Table,
                    ExternalKind::Memory => ExportKind::Memory,
                    ExternalKind::Global => ExportKind::Global,
                    ExternalKind::Tag => ExportKind::Tag,
                };
                section.export(export.name, kind, export.index);
            }
            for &index in &mutable {
                section.export(&format!("{PREFIX}{index}"), ExportKind::Global, index);
            }
            module.section(&section);
        } else if let Some((id, range)) = payload.as_section() {
            module.section(&RawSection { id, data: &wasm[range] });
        }
    }
    Ok(module.finish())
}
