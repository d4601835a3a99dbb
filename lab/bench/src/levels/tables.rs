//! Tables of the functions: sizes and addresses.

use std::collections::BTreeMap;

use serde::Deserialize;
use wasmparser::{ExternalKind, Operator, Parser, Payload};

/// Table of a function.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name in the C source.
    pub name: String,
    /// Bytes of an entry.
    pub entry: u32,
    /// Number of entries.
    pub count: u32,
}

/// Returns the addresses of a module's variables, which it exports as constants.
///
/// # Errors
/// The bytes are no module.
pub fn addresses(module: &[u8]) -> Result<BTreeMap<String, u32>, wasmparser::BinaryReaderError> {
    let (mut globals, mut exports) = (Vec::new(), Vec::new());
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::GlobalSection(section) => {
                for global in section {
                    let first = global?.init_expr.get_operators_reader().read()?;
                    globals.push(match first {
                        Operator::I32Const { value } => Some(value as u32),
                        _ => None,
                    });
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    exports.push(export?);
                }
            }
            _ => {}
        }
    }
    let variable = |export: &wasmparser::Export<'_>| {
        let address = globals.get(export.index as usize).copied().flatten()?;
        (export.kind == ExternalKind::Global).then(|| (export.name.to_owned(), address))
    };
    Ok(exports.iter().filter_map(variable).collect())
}
