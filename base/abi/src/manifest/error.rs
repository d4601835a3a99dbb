//! Why a manifest was refused, one variant for each fault, each with its line.

use units::{Name, NameError};

use crate::layout::{ABI_VERSION, LANES_MAX, MANIFEST_LENGTH_MAX, POOLS_MAX, VERSION_LENGTH_MAX};
use crate::meant::Meant;
use crate::parameter::PARAMETERS_MAX;

/// Why a manifest was refused. The module author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// More text than a node reads.
    #[error("the manifest has {length} bytes, at most {MANIFEST_LENGTH_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// Not UTF-8.
    #[error("the manifest is not UTF-8 from byte {position} on")]
    NotText {
        /// Where the first wrong byte is, counted from 0.
        position: usize,
    },
    /// Not TOML.
    #[error("line {line} of the manifest is not TOML: {reason}")]
    Toml {
        /// Counted from 1.
        line: usize,
        /// What the TOML parser says.
        reason: String,
    },
    /// A module for another version of the ABI.
    #[error(
        "the module is made for packet ABI version {found}, this node speaks version {ABI_VERSION}; build it with an SDK of that version"
    )]
    Abi {
        /// The version in the manifest.
        found: i64,
    },
    /// A word that version 1 does not have.
    #[error("line {line} of the manifest: {within} has no field {field:?}{meant}")]
    UnknownField {
        /// Counted from 1.
        line: usize,
        /// The table that it stands in.
        within: String,
        /// The word.
        field: String,
        /// What exists.
        meant: Meant,
    },
    /// A field that every manifest has.
    #[error("{within} has no field '{field}', which is required, as in {example}")]
    Missing {
        /// The table that lacks it.
        within: String,
        /// The field.
        field: &'static str,
        /// A line that would do.
        example: &'static str,
    },
    /// A value of another type.
    #[error("line {line} of the manifest: '{field}' is {found}; it must be {wanted}")]
    Type {
        /// Counted from 1.
        line: usize,
        /// The field.
        field: String,
        /// The type in the manifest.
        found: &'static str,
        /// What it must be.
        wanted: String,
    },
    /// A number outside its limits.
    #[error("line {line} of the manifest: '{field}' is {value}; it must be from {min} to {max}")]
    Range {
        /// Counted from 1.
        line: usize,
        /// The field.
        field: String,
        /// The number in the manifest.
        value: String,
        /// The smallest that is allowed.
        min: u32,
        /// The largest that is allowed.
        max: u32,
    },
    /// A name that is unsafe or too long.
    #[error("line {line} of the manifest: {source}")]
    Name {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: NameError,
    },
    /// A version that cannot be ordered or tagged.
    #[error(
        "line {line} of the manifest: version {version:?} is not of the form MAJOR.MINOR.PATCH or MAJOR.MINOR.PATCH-SUFFIX (digits; suffix of letters, digits, '.' and '-'; {VERSION_LENGTH_MAX} bytes at most)"
    )]
    Version {
        /// Counted from 1.
        line: usize,
        /// The version in the manifest.
        version: String,
    },
    /// A word that is none of a list.
    #[error("line {line} of the manifest: '{field}' has no choice {value:?}{meant}")]
    Choice {
        /// Counted from 1.
        line: usize,
        /// The field.
        field: String,
        /// The word.
        value: String,
        /// What exists.
        meant: Meant,
    },
    /// The same word twice in a list.
    #[error("line {line} of the manifest: '{field}' lists {value:?} twice")]
    Twice {
        /// Counted from 1.
        line: usize,
        /// The field.
        field: String,
        /// The word.
        value: String,
    },
    /// A list that must not be empty.
    #[error("line {line} of the manifest: '{field}' is empty; leave it out or list at least one")]
    Empty {
        /// Counted from 1.
        line: usize,
        /// The field.
        field: String,
    },
    /// Text that is too long or has characters that a terminal obeys.
    #[error(
        "line {line} of the manifest: '{field}' must be one line of at most {length_max} bytes without control characters"
    )]
    Text {
        /// Counted from 1.
        line: usize,
        /// The field.
        field: String,
        /// The limit in bytes.
        length_max: usize,
    },
    /// A default that is no value of its parameter's type.
    #[error("line {line} of the manifest: the default of parameter '{parameter}' must be {wanted}")]
    Default {
        /// Counted from 1.
        line: usize,
        /// The parameter.
        parameter: Name,
        /// What the type takes.
        wanted: &'static str,
    },
    /// More parameters than a node keeps.
    #[error("the manifest declares {count} parameters, at most {PARAMETERS_MAX} are allowed")]
    Parameters {
        /// How many.
        count: usize,
    },
    /// More pools than there can be virtual processors.
    #[error("line {line} of the manifest: {count} pools, at most {POOLS_MAX} are allowed")]
    Pools {
        /// Counted from 1.
        line: usize,
        /// How many.
        count: usize,
    },
    /// Lanes beside those of pools.
    #[error(
        "line {line} of the manifest: with pools, 'lanes' is what they have together; leave it out"
    )]
    LanesOfPools {
        /// Counted from 1.
        line: usize,
    },
    /// More lanes in all pools than a service may have.
    #[error(
        "line {line} of the manifest: the pools have {count} lanes together, at most {LANES_MAX} are allowed"
    )]
    LanesTogether {
        /// Counted from 1.
        line: usize,
        /// How many.
        count: u16,
    },
    /// Something that the module is called for, and no pool has.
    #[error(
        "line {line} of the manifest: no pool has the event \"{event}\"; add it to the 'events' of one"
    )]
    NoPool {
        /// Counted from 1.
        line: usize,
        /// The event's word.
        event: &'static str,
    },
    /// A pool for a timer that there is not.
    #[error(
        "line {line} of the manifest: the pool '{pool}' has the event \"timer\", and there is no 'timer_ms'"
    )]
    PoolWithoutTimer {
        /// Counted from 1.
        line: usize,
        /// The pool.
        pool: Name,
    },
    /// A drop reason or refusal whose key is no number.
    #[error(
        "line {line} of the manifest: the key {key:?} of [{table}] must be a number from {first} to 65535, as in 7 = \"too short\""
    )]
    Number {
        /// Counted from 1.
        line: usize,
        /// The table.
        table: String,
        /// The least number.
        first: u16,
        /// The key.
        key: String,
    },
}
