//! Mutable globals by their index: exported under names of our own, so that an
//! instance can take them along when it moves or another takes its place.

use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload};

use crate::CompileError;

/// What the names begin with: no identifier of a source language does.
const PREFIX: &str = "\u{1}global:";

/// The index in the name of such an export.
pub(crate) fn index_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// The module with an export for each of its mutable globals; everything else
/// stays as it is. The module has no imported globals (base/abi).
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
