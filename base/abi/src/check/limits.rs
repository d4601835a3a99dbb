//! Limits of a module's contents, by its kind.

use super::kind::Kind;

/// Most functions of one module: each is compiled, in a worker with a limited time.
pub const FUNCTIONS_MAX: u64 = 10_000;
/// Most imports of one module: several times all host functions.
pub const IMPORTS_MAX: u64 = 64;
/// Most exports of one module: the hooks, the counters and those that compilers add.
pub const EXPORTS_MAX: u64 = 1_000;
/// Most globals of one module; compilers make a handful.
pub const GLOBALS_MAX: u64 = 1_000;
/// Most tables of one module; compilers make one.
pub const TABLES_MAX: u64 = 4;
/// Most initial elements of all tables together; 8 bytes each in the node.
pub const TABLE_ELEMENTS_MAX: u64 = 65_536;
/// Most element segments of one module; compilers make one.
pub const ELEMENT_SEGMENTS_MAX: u64 = 1_000;
/// Most data segments of one module; compilers make a few.
pub const DATA_SEGMENTS_MAX: u64 = 1_000;
/// Most counters of one module.
pub const COUNTERS_MAX: u64 = 256;

/// Most functions of a stream module: Go's runtime with its standard library has some 10,000.
pub const STREAM_FUNCTIONS_MAX: u64 = 65_536;
/// Most imports of a stream module: the ABI has under a hundred functions, a file may name one
/// repeatedly.
pub const STREAM_IMPORTS_MAX: u64 = 256;
/// Most exports of a stream module: callbacks, and whatever its toolchain leaves in.
pub const STREAM_EXPORTS_MAX: u64 = 4_096;
/// Most initial table elements of a stream module: indirect calls, not data.
pub const STREAM_TABLE_ELEMENTS_MAX: u64 = 131_072;
/// Most data segments of a stream module: the limit of browsers. Go's linker leaves zeros out, and
/// makes 30,000 of it.
pub const STREAM_DATA_SEGMENTS_MAX: u64 = 100_000;

/// Kinds of items of which a module has a limited number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Functions: each is compiled.
    Functions,
    /// Imports.
    Imports,
    /// Exports.
    Exports,
    /// Globals.
    Globals,
    /// Tables.
    Tables,
    /// Initial elements of the tables.
    TableElements,
    /// Element segments.
    ElementSegments,
    /// Data segments.
    DataSegments,
    /// Counters that are shown.
    Counters,
}

/// A count of items above its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct TooMany {
    pub(super) what: Limited,
    pub(super) count: u64,
    pub(super) max: u64,
}

impl Limited {
    /// Returns the limit for a module of this kind. A stream module is compiled to machine code
    /// only, and is accepted as its toolchain makes it.
    #[must_use]
    pub const fn max(self, kind: Kind) -> u64 {
        match (kind, self) {
            (Kind::Packets, limited) => limited.max_of_packets(),
            (Kind::Streams, Self::Functions) => STREAM_FUNCTIONS_MAX,
            (Kind::Streams, Self::Imports) => STREAM_IMPORTS_MAX,
            (Kind::Streams, Self::Exports) => STREAM_EXPORTS_MAX,
            (Kind::Streams, Self::TableElements) => STREAM_TABLE_ELEMENTS_MAX,
            (Kind::Streams, Self::DataSegments) => STREAM_DATA_SEGMENTS_MAX,
            (Kind::Streams, limited) => limited.max_of_packets(),
        }
    }

    const fn max_of_packets(self) -> u64 {
        match self {
            Self::Functions => FUNCTIONS_MAX,
            Self::Imports => IMPORTS_MAX,
            Self::Exports => EXPORTS_MAX,
            Self::Globals => GLOBALS_MAX,
            Self::Tables => TABLES_MAX,
            Self::TableElements => TABLE_ELEMENTS_MAX,
            Self::ElementSegments => ELEMENT_SEGMENTS_MAX,
            Self::DataSegments => DATA_SEGMENTS_MAX,
            Self::Counters => COUNTERS_MAX,
        }
    }

    /// Refuses a `count` above the limit.
    ///
    /// # Errors
    /// [`TooMany`], with the limit.
    pub(super) const fn allow(self, count: u64, kind: Kind) -> Result<(), TooMany> {
        let max = self.max(kind);
        if count <= max {
            return Ok(());
        }
        Err(TooMany { what: self, count, max })
    }
}

impl core::fmt::Display for Limited {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Functions => "functions",
            Self::Imports => "imports",
            Self::Exports => "exports",
            Self::Globals => "globals",
            Self::Tables => "tables",
            Self::TableElements => "table elements",
            Self::ElementSegments => "element segments",
            Self::DataSegments => "data segments",
            Self::Counters => "counters",
        })
    }
}
