//! Errors of topology files and of labs.

use std::fmt;
use std::io;
use std::path::PathBuf;

use namespaces::netns::NetnsError;
use namespaces::sysctl::SysctlError;
use netlink::NetlinkError;
use netlink::offload::OffloadError;
use units::NameError;

/// Line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Path of the file, as the user named it.
    pub file: String,
    /// Line number, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Reason why a topology file was refused: a fault of its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The file is longer than any topology needs.
    #[error("{file}: the file has {length} bytes, at most {limit} are read; is it a topology?")]
    Length {
        /// Path of the file.
        file: String,
        /// Length in bytes.
        length: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// The file is not TOML.
    #[error("{place}: this is not TOML: {problem}")]
    Syntax {
        /// Line of the fault.
        place: Place,
        /// Sentence of the parser.
        problem: String,
    },
    /// The key is unknown.
    #[error("{place}: unknown key '{key}' in {table}{suggestion}")]
    UnknownKey {
        /// Line of the key.
        place: Place,
        /// Name of the key.
        key: String,
        /// Table that contains the key.
        table: &'static str,
        /// Suggestion or list of known keys, as the end of the sentence.
        suggestion: String,
    },
    /// A required key is missing.
    #[error("{place}: {table} has no key '{key}'; add one, such as {example}")]
    MissingKey {
        /// Line at which the table begins.
        place: Place,
        /// Name of the table.
        table: &'static str,
        /// Name of the key.
        key: &'static str,
        /// Example line.
        example: &'static str,
    },
    /// The value has another type.
    #[error("{place}: '{key}' must be {expected}, and is {found}")]
    Type {
        /// Line of the value.
        place: Place,
        /// Name of the key.
        key: String,
        /// Expected type.
        expected: &'static str,
        /// Actual type.
        found: String,
    },
    /// The number is outside its range.
    #[error("{place}: '{key}' is {found}; it must be from {min} to {max}{why}")]
    Range {
        /// Line of the number.
        place: Place,
        /// Name of the key.
        key: &'static str,
        /// Value in the file.
        found: String,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
        /// Reason of the limit, as the end of the sentence.
        why: &'static str,
    },
    /// The rate cannot be parsed.
    #[error(
        "{place}: the rate '{found}' is not understood; write a whole number and bit, kbit, Mbit or Gbit, from 1kbit to 100Gbit, such as \"100Mbit\""
    )]
    Rate {
        /// Line of the rate.
        place: Place,
        /// Value in the file.
        found: String,
    },
    /// The link's quality has another syntax.
    #[error(
        "{place}: '{key}' is '{found}'; it must be {expected}; \"X/Y\" is X from the first end to the second, and Y back"
    )]
    Quality {
        /// Line of the value.
        place: Place,
        /// Name of the key.
        key: &'static str,
        /// Value in the file.
        found: String,
        /// Expected syntax.
        expected: &'static str,
    },
    /// The key has a meaning only beside another one.
    #[error("{place}: '{key}' does nothing without '{needed}'; add one, such as {example}")]
    Alone {
        /// Line of the key.
        place: Place,
        /// Name of the key.
        key: &'static str,
        /// Name of the missing key.
        needed: &'static str,
        /// Example line.
        example: &'static str,
    },
    /// The name is not valid.
    #[error("{place}: {source}")]
    Name {
        /// Line of the name.
        place: Place,
        /// Fault of the name.
        source: NameError,
    },
    /// Two nodes have the same name.
    #[error(
        "{place}: the name '{name}' is already that of the node in line {first_line}; choose another"
    )]
    Duplicate {
        /// Line of the second node.
        place: Place,
        /// Name of both.
        name: String,
        /// Line of the first node.
        first_line: usize,
    },
    /// The link ends at a node that does not exist.
    #[error("{place}: the link ends at '{name}', which is no host or router{suggestion}")]
    UnknownEnd {
        /// Line of the link.
        place: Place,
        /// Name of the end.
        name: String,
        /// Suggestion or list of nodes, as the end of the sentence.
        suggestion: String,
    },
    /// The link does not have two ends.
    #[error("{place}: a link has two ends, this one has {found}; write ends = [\"a\", \"b\"]")]
    EndCount {
        /// Line of the link.
        place: Place,
        /// Number of ends.
        found: usize,
    },
    /// The link joins a node to itself.
    #[error("{place}: the link goes from '{name}' to itself; it must join two nodes")]
    SelfLink {
        /// Line of the link.
        place: Place,
        /// Name of the node.
        name: String,
    },
    /// The file has more links or nodes than are possible.
    #[error("{file}: {found} {what} are too many, at most {limit} are possible{why}")]
    TooMany {
        /// Path of the file.
        file: String,
        /// `links` or `nodes`.
        what: &'static str,
        /// Number in the file.
        found: usize,
        /// Largest possible number.
        limit: usize,
        /// Reason of the limit, as the end of the sentence.
        why: &'static str,
    },
    /// The topology is empty.
    #[error("{file}: there is no [[host]] and no [[router]]; a lab needs at least one")]
    Empty {
        /// Path of the file.
        file: String,
    },
}

/// Reason why a lab could not be made, found, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The lab exists already.
    #[error("the lab '{lab}' already exists; `tam lab down {lab}` removes it")]
    Exists {
        /// Name of the lab.
        lab: String,
    },
    /// The namespace exists, and no lab owns it.
    #[error(
        "the network namespace '{namespace}' already exists and belongs to no known lab; `tam lab down --all` removes what dead labs left"
    )]
    NamespaceTaken {
        /// Name of the namespace.
        namespace: String,
    },
    /// The lab does not exist.
    #[error("there is no lab '{lab}'{suggestion}")]
    NoLab {
        /// Name that was given.
        lab: String,
        /// Suggestion or list of labs, as the end of the sentence.
        suggestion: String,
    },
    /// The lab has no such node.
    #[error("the lab '{lab}' has no node '{node}'{suggestion}")]
    NoNode {
        /// Name of the lab.
        lab: String,
        /// Name that was given.
        node: String,
        /// Suggestion or list of nodes, as the end of the sentence.
        suggestion: String,
    },
    /// The lab's record cannot be read or written.
    #[error("cannot {action} the lab's record {}: {source}", path.display())]
    Record {
        /// Action that failed: read, write and so on.
        action: &'static str,
        /// Path of the record.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The lab's record is damaged.
    #[error(
        "the lab's record {} is damaged: {source}; `tam lab down --all` removes the lab all the same",
        path.display()
    )]
    Damaged {
        /// Path of the record.
        path: PathBuf,
        /// Fault of the JSON text.
        source: serde_json::Error,
    },
    /// The lab's process cannot be found or ended.
    #[error("cannot {action} the process {pid}: {source}")]
    Process {
        /// Action that failed.
        action: &'static str,
        /// Process number.
        pid: u32,
        /// Cause.
        source: io::Error,
    },
    /// The command is empty.
    #[error("there is no command to run in '{node}'; name one after the node")]
    NoCommand {
        /// Name of the node.
        node: String,
    },
    /// The command cannot be started.
    #[error("cannot start '{program}' in '{node}': {source}")]
    Command {
        /// Program of the command.
        program: String,
        /// Name of the node.
        node: String,
        /// Cause.
        source: io::Error,
    },
    /// The namespace cannot be made, entered or removed.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The kernel refused a link, an address or a route.
    #[error("at the node '{node}': {source}")]
    Network {
        /// Name of the node.
        node: String,
        /// Answer of the kernel.
        source: NetlinkError,
    },
    /// The kernel refused an offload setting.
    #[error("at the node '{node}': {source}")]
    Offload {
        /// Name of the node.
        node: String,
        /// Answer of the kernel.
        source: OffloadError,
    },
    /// The kernel parameter cannot be set.
    #[error("at the node '{node}': {source}")]
    Parameter {
        /// Name of the node.
        node: String,
        /// Answer of the kernel.
        source: SysctlError,
    },
}
