//! Stream modules, by the proxy-wasm ABI. Their imports and callbacks are checked by the crate that
//! provides them, when they are compiled.

use wasmparser::types::EntityType;

use super::error::CheckError;
use super::kind::{Kind, STREAM_VERSIONS};
use super::parts::Parts;
use super::{Checked, Hooks, MemoryImage, MemoryLimits};
use crate::manifest::Manifest;
use crate::streams::parameters::parameters;

/// Default limit of a stream module's memory in pages: 16 MiB, since bodies go through it and
/// toolchains bring an allocator.
pub const STREAM_PAGES_DEFAULT: u32 = 256;
/// Largest limit of a stream module's memory in pages: 256 MiB.
pub const STREAM_PAGES_MAX: u32 = 4_096;

/// Supported versions: 0.2.0 has no callback or function that 0.2.1 lacks.
const RUN: [&str; 2] = ["proxy_abi_version_0_2_1", "proxy_abi_version_0_2_0"];

/// Checks a stream module. Its manifest is optional; the parts that concern the packet ABI are
/// ignored.
pub(super) fn check(parts: &Parts<'_>) -> Result<Checked, CheckError> {
    if RUN.iter().all(|version| parts.function_export(version).is_none()) {
        let found = parts.function_exports().find_map(|name| name.strip_prefix(STREAM_VERSIONS));
        let found = super::short(&found.unwrap_or_default().replace('_', "."));
        return Err(CheckError::StreamVersion { found });
    }
    let mut manifest = match parts.manifest_text() {
        Some(text) => Manifest::parse_bytes(&text)?,
        None => Manifest::of_streams(parts.name()),
    };
    let declared = std::mem::take(&mut manifest.parameters);
    manifest.parameters = parameters(declared)
        .map_err(|name| CheckError::StreamParameter { name: name.to_string() })?;
    let Some(EntityType::Memory(memory)) = parts.export("memory") else {
        return Err(CheckError::MemoryNotExported);
    };
    let declared = memory.maximum.map(|pages| u32::try_from(pages).unwrap_or(u32::MAX));
    let max = manifest.memory_pages_max.unwrap_or(STREAM_PAGES_MAX);
    let pages_min = match u32::try_from(memory.initial) {
        Ok(pages) if pages >= 1 && pages <= max => pages,
        _ => return Err(CheckError::MemorySize { pages: memory.initial, max }),
    };
    let wished = manifest.memory_pages_max.unwrap_or(STREAM_PAGES_DEFAULT);
    let pages_max = wished.min(declared.unwrap_or(u32::MAX)).max(pages_min);
    Ok(Checked {
        kind: Kind::Streams,
        manifest,
        imports: Vec::new(),
        hooks: Hooks::default(),
        counters: Vec::new(),
        memory: MemoryLimits { pages_min, pages_max },
        image: MemoryImage(parts.image),
        brief: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Unverified;

    fn check(text: &str) -> Result<Checked, CheckError> {
        Unverified(&wat::parse_str(text).unwrap()).check()
    }

    #[test]
    fn a_filter_may_have_simd_and_a_module_for_packets_not() {
        let simd = "(func (param v128) (result v128) (i8x16.neg (local.get 0)))";
        let memory = "(memory (export \"memory\") 1)";
        let filter = format!("(func (export \"proxy_abi_version_0_2_1\")) {memory} {simd}");
        assert_eq!(check(&format!("(module {filter})")).unwrap().kind, Kind::Streams);
        let packets =
            format!("(func (export \"on_packet\") (result i32) i32.const 0) {memory} {simd}");
        let refused = check(&format!("(module {packets})")).unwrap_err().to_string();
        assert!(refused.contains("SIMD"), "{refused}");
    }

    #[test]
    fn a_filter_needs_no_manifest_and_is_named_as_its_toolchain_named_it() {
        let rest = r#"(import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))
            (memory (export "memory") 17) (func (export "proxy_abi_version_0_2_1"))"#;
        let checked = check(&format!("(module $http_headers.wasm {rest})")).unwrap();
        assert_eq!((checked.kind, checked.manifest.name.as_str()), (Kind::Streams, "http-headers"));
        assert_eq!((checked.manifest.version.as_str(), checked.imports.len()), ("0.0.0", 0));
        assert_eq!(checked.memory, MemoryLimits { pages_min: 17, pages_max: STREAM_PAGES_DEFAULT });
        let of_go = rest.replace("0_2_1", "0_2_0");
        assert_eq!(check(&format!("(module {of_go})")).unwrap().kind, Kind::Streams);
        assert_eq!(check(&format!("(module {rest})")).unwrap().manifest.name.as_str(), "filter");
    }

    #[test]
    fn the_manifest_of_a_filter_sets_its_name_and_memory_limit() {
        let manifest = "abi = 1\\nname = \\\"compress\\\"\\nversion = \\\"1.2.0\\\"\\nwindow = 0\\nmemory_pages_max = 20\\n";
        let text = format!(
            r#"(module (@custom "tamandua" "{manifest}") (memory (export "memory") 17 1000)
            (func (export "proxy_abi_version_0_2_1")))"#
        );
        let checked = check(&text).unwrap();
        assert_eq!((checked.manifest.name.as_str(), checked.memory.pages_max), ("compress", 20));
    }

    #[test]
    fn another_proxy_wasm_version_is_refused_by_name() {
        let text =
            r#"(module (memory (export "memory") 1) (func (export "proxy_abi_version_0_1_0")))"#;
        let error = check(text).unwrap_err();
        assert_eq!(error, CheckError::StreamVersion { found: "0.1.0".into() });
        assert!(error.to_string().contains("0.2.1"), "{error}");
        let text = r#"(module (func (export "proxy_abi_version_0_2_1")))"#;
        assert_eq!(check(text).unwrap_err(), CheckError::MemoryNotExported);
    }
}
