//! Reasons for rejecting a manifest, one variant for each fault, each with its line.

use units::{Name, NameError};

use crate::layout::{ABI_VERSION, LANES_MAX, MANIFEST_LENGTH_MAX, POOLS_MAX, VERSION_LENGTH_MAX};
use crate::meant::Meant;
use crate::parameter::PARAMETERS_MAX;

/// Reason for rejecting a manifest: a fault of the module's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The text is longer than a node reads.
    #[error("the manifest has {length} bytes, at most {MANIFEST_LENGTH_MAX} are allowed")]
    TooLong {
        /// Length in bytes.
        length: usize,
    },
    /// The manifest is not UTF-8.
    #[error("the manifest is not UTF-8 from byte {position} on")]
    NotText {
        /// Position of the first wrong byte, counted from 0.
        position: usize,
    },
    /// The manifest is not TOML.
    #[error("line {line} of the manifest is not TOML: {reason}")]
    Toml {
        /// Line number, counted from 1.
        line: usize,
        /// Message of the TOML parser.
        reason: String,
    },
    /// The module is made for another version of the ABI.
    #[error(
        "the module is made for packet ABI version {found}, this node speaks version {ABI_VERSION}; build it with an SDK of that version"
    )]
    Abi {
        /// Version in the manifest.
        found: i64,
    },
    /// The field does not exist in version 1.
    #[error("line {line} of the manifest: {within} has no field {field:?}{meant}")]
    UnknownField {
        /// Line number, counted from 1.
        line: usize,
        /// Table of the field.
        within: String,
        /// Name of the field.
        field: String,
        /// Existing names.
        meant: Meant,
    },
    /// A required field is missing.
    #[error("{within} has no field '{field}', which is required, as in {example}")]
    Missing {
        /// Table that lacks the field.
        within: String,
        /// Name of the field.
        field: &'static str,
        /// Example line for the field.
        example: &'static str,
    },
    /// The value has a wrong type.
    #[error("line {line} of the manifest: '{field}' is {found}; it must be {wanted}")]
    Type {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the field.
        field: String,
        /// Type in the manifest.
        found: &'static str,
        /// Type that is required.
        wanted: String,
    },
    /// The number is out of range.
    #[error("line {line} of the manifest: '{field}' is {value}; it must be from {min} to {max}")]
    Range {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the field.
        field: String,
        /// Number in the manifest.
        value: String,
        /// Smallest allowed number.
        min: u32,
        /// Largest allowed number.
        max: u32,
    },
    /// The name is unsafe or too long.
    #[error("line {line} of the manifest: {source}")]
    Name {
        /// Line number, counted from 1.
        line: usize,
        /// Fault of the name.
        source: NameError,
    },
    /// The version cannot be ordered or used as a tag.
    #[error(
        "line {line} of the manifest: version {version:?} is not of the form MAJOR.MINOR.PATCH or MAJOR.MINOR.PATCH-SUFFIX (digits; suffix of letters, digits, '.' and '-'; {VERSION_LENGTH_MAX} bytes at most)"
    )]
    Version {
        /// Line number, counted from 1.
        line: usize,
        /// Version in the manifest.
        version: String,
    },
    /// The word is not among the choices.
    #[error("line {line} of the manifest: '{field}' has no choice {value:?}{meant}")]
    Choice {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the field.
        field: String,
        /// Word in the manifest.
        value: String,
        /// Existing words.
        meant: Meant,
    },
    /// The list has the same word twice.
    #[error("line {line} of the manifest: '{field}' lists {value:?} twice")]
    Twice {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the field.
        field: String,
        /// Repeated word.
        value: String,
    },
    /// The list must not be empty.
    #[error("line {line} of the manifest: '{field}' is empty; leave it out or list at least one")]
    Empty {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the field.
        field: String,
    },
    /// The text is too long or has characters that control a terminal.
    #[error(
        "line {line} of the manifest: '{field}' must be one line of at most {length_max} bytes without control characters"
    )]
    Text {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the field.
        field: String,
        /// Limit in bytes.
        length_max: usize,
    },
    /// The default is no value of its parameter's type.
    #[error("line {line} of the manifest: the default of parameter '{parameter}' must be {wanted}")]
    Default {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the parameter.
        parameter: Name,
        /// Values that the type allows.
        wanted: &'static str,
    },
    /// The manifest has more parameters than a node allows.
    #[error("the manifest declares {count} parameters, at most {PARAMETERS_MAX} are allowed")]
    Parameters {
        /// Number of parameters.
        count: usize,
    },
    /// The manifest has more pools than there can be virtual processors.
    #[error("line {line} of the manifest: {count} pools, at most {POOLS_MAX} are allowed")]
    Pools {
        /// Line number, counted from 1.
        line: usize,
        /// Number of pools.
        count: usize,
    },
    /// The manifest has `lanes` beside pools.
    #[error(
        "line {line} of the manifest: with pools, 'lanes' is what they have together; leave it out"
    )]
    LanesOfPools {
        /// Line number, counted from 1.
        line: usize,
    },
    /// The pools have more lanes together than a service may have.
    #[error(
        "line {line} of the manifest: the pools have {count} lanes together, at most {LANES_MAX} are allowed"
    )]
    LanesTogether {
        /// Line number, counted from 1.
        line: usize,
        /// Number of lanes.
        count: u16,
    },
    /// No pool has an event that the module handles.
    #[error(
        "line {line} of the manifest: no pool has the event \"{event}\"; add it to the 'events' of one"
    )]
    NoPool {
        /// Line number, counted from 1.
        line: usize,
        /// Word of the event.
        event: &'static str,
    },
    /// A pool has the event "timer" and the manifest has no interval.
    #[error(
        "line {line} of the manifest: the pool '{pool}' has the event \"timer\", and there is no 'timer_ms'"
    )]
    PoolWithoutTimer {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the pool.
        pool: Name,
    },
    /// The key of a drop reason or refusal is not a number in range.
    #[error(
        "line {line} of the manifest: the key {key:?} of [{table}] must be a number from {first} to 65535, as in 7 = \"too short\""
    )]
    Number {
        /// Line number, counted from 1.
        line: usize,
        /// Name of the table.
        table: String,
        /// Smallest allowed number.
        first: u16,
        /// Key in the manifest.
        key: String,
    },
}
