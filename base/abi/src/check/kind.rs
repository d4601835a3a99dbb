//! Kind of a module, derived from its exports.

use wasmparser::{Export, ExternalKind, Parser, Payload};

/// Prefix of the exports by which a stream module declares its version of proxy-wasm.
pub(super) const STREAM_VERSIONS: &str = "proxy_abi_version_";

/// Kind of a module, by the events that it handles.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Packets, by the packet ABI.
    #[default]
    Packets,
    /// The bytes of TCP connections, by the proxy-wasm ABI.
    Streams,
}

/// Returns the kind that a module's exports declare. Runs before validation, because the limits
/// depend on the kind.
pub(super) fn kind_of(bytes: &[u8]) -> Kind {
    let exports = Parser::new(0).parse_all(bytes).find_map(|payload| match payload {
        Ok(Payload::ExportSection(section)) => Some(section),
        _ => None,
    });
    let is_version = |export: wasmparser::Result<Export<'_>>| {
        export.is_ok_and(|it| it.kind == ExternalKind::Func && it.name.starts_with(STREAM_VERSIONS))
    };
    match exports.is_some_and(|section| section.into_iter().any(is_version)) {
        true => Kind::Streams,
        false => Kind::Packets,
    }
}
