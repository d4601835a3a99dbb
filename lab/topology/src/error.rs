//! What can be wrong with a topology file, and what can go wrong with a lab.

use std::fmt;
use std::io;
use std::path::PathBuf;

use namespaces::netns::NetnsError;
use namespaces::sysctl::SysctlError;
use netlink::NetlinkError;
use netlink::offload::OffloadError;
use units::NameError;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Why a topology file was refused. The author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More text than any topology needs.
    #[error("{file}: the file has {length} bytes, at most {limit} are read; is it a topology?")]
    Length {
        /// The file.
        file: String,
        /// Its length, bytes.
        length: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// Not TOML.
    #[error("{place}: this is not TOML: {problem}")]
    Syntax {
        /// Where.
        place: Place,
        /// The parser's sentence.
        problem: String,
    },
    /// A key that means nothing here.
    #[error("{place}: unknown key '{key}' in {table}{suggestion}")]
    UnknownKey {
        /// Where.
        place: Place,
        /// The key.
        key: String,
        /// The table in which it stands.
        table: &'static str,
        /// What was meant, or what there is, as the end of the sentence.
        suggestion: String,
    },
    /// A key that must be there is not.
    #[error("{place}: {table} has no key '{key}'; add one, such as {example}")]
    MissingKey {
        /// Where the table begins.
        place: Place,
        /// The table.
        table: &'static str,
        /// The key.
        key: &'static str,
        /// A line that would do.
        example: &'static str,
    },
    /// A value of another type.
    #[error("{place}: '{key}' must be {expected}, and is {found}")]
    Type {
        /// Where.
        place: Place,
        /// The key.
        key: String,
        /// What belongs there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A number outside its range.
    #[error("{place}: '{key}' is {found}; it must be from {min} to {max}{why}")]
    Range {
        /// Where.
        place: Place,
        /// The key.
        key: &'static str,
        /// What stands there.
        found: String,
        /// Least allowed.
        min: u64,
        /// Most allowed.
        max: u64,
        /// The reason of the limit, as the end of the sentence.
        why: &'static str,
    },
    /// A rate that is none.
    #[error(
        "{place}: the rate '{found}' is not understood; write a whole number and bit, kbit, Mbit or Gbit, from 1kbit to 100Gbit, such as \"100Mbit\""
    )]
    Rate {
        /// Where.
        place: Place,
        /// What stands there.
        found: String,
    },
    /// What a link does is said in another way.
    #[error(
        "{place}: '{key}' is '{found}'; it must be {expected}; \"X/Y\" is X from the first end to the second, and Y back"
    )]
    Quality {
        /// Where.
        place: Place,
        /// The key.
        key: &'static str,
        /// What stands there.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// A key that means something beside another one only.
    #[error("{place}: '{key}' does nothing without '{needed}'; add one, such as {example}")]
    Alone {
        /// Where.
        place: Place,
        /// The key.
        key: &'static str,
        /// The key that is missing.
        needed: &'static str,
        /// A line that would do.
        example: &'static str,
    },
    /// A name that is none.
    #[error("{place}: {source}")]
    Name {
        /// Where.
        place: Place,
        /// What is wrong with it.
        source: NameError,
    },
    /// Two nodes of one name.
    #[error(
        "{place}: the name '{name}' is already that of the node in line {first_line}; choose another"
    )]
    Duplicate {
        /// Where.
        place: Place,
        /// The name.
        name: String,
        /// Where it stood first.
        first_line: usize,
    },
    /// A link to nowhere.
    #[error("{place}: the link ends at '{name}', which is no host or router{suggestion}")]
    UnknownEnd {
        /// Where.
        place: Place,
        /// The name.
        name: String,
        /// What was meant, or what there is, as the end of the sentence.
        suggestion: String,
    },
    /// A link with one end, or three.
    #[error("{place}: a link has two ends, this one has {found}; write ends = [\"a\", \"b\"]")]
    EndCount {
        /// Where.
        place: Place,
        /// How many.
        found: usize,
    },
    /// A link from a node to itself.
    #[error("{place}: the link goes from '{name}' to itself; it must join two nodes")]
    SelfLink {
        /// Where.
        place: Place,
        /// The node.
        name: String,
    },
    /// More than there is room for.
    #[error("{file}: {found} {what} are too many, at most {limit} are possible{why}")]
    TooMany {
        /// The file.
        file: String,
        /// `links` or `nodes`.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many are possible.
        limit: usize,
        /// The reason, as the end of the sentence.
        why: &'static str,
    },
    /// Nothing to make.
    #[error("{file}: there is no [[host]] and no [[router]]; a lab needs at least one")]
    Empty {
        /// The file.
        file: String,
    },
}

/// Why a lab could not be made, found, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// It is there already.
    #[error("the lab '{lab}' already exists; `tam lab down {lab}` removes it")]
    Exists {
        /// Its name.
        lab: String,
    },
    /// A namespace of its name is there, and no lab that owns it.
    #[error(
        "the network namespace '{namespace}' already exists and belongs to no known lab; `tam lab down --all` removes what dead labs left"
    )]
    NamespaceTaken {
        /// The namespace.
        namespace: String,
    },
    /// There is no such lab.
    #[error("there is no lab '{lab}'{suggestion}")]
    NoLab {
        /// Its name.
        lab: String,
        /// What was meant, or what there is, as the end of the sentence.
        suggestion: String,
    },
    /// There is no such node.
    #[error("the lab '{lab}' has no node '{node}'{suggestion}")]
    NoNode {
        /// The lab.
        lab: String,
        /// The node asked for.
        node: String,
        /// What was meant, or what there is, as the end of the sentence.
        suggestion: String,
    },
    /// What was written about a lab cannot be read or written.
    #[error("cannot {action} the lab's record {}: {source}", path.display())]
    Record {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// What was written about a lab is damaged.
    #[error(
        "the lab's record {} is damaged: {source}; `tam lab down --all` removes the lab all the same",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A process of the lab cannot be found or ended.
    #[error("cannot {action} the process {pid}: {source}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// The process.
        pid: u32,
        /// What failed.
        source: io::Error,
    },
    /// No command.
    #[error("there is no command to run in '{node}'; name one after the node")]
    NoCommand {
        /// The node.
        node: String,
    },
    /// A command could not be started.
    #[error("cannot start '{program}' in '{node}': {source}")]
    Command {
        /// The program.
        program: String,
        /// The node.
        node: String,
        /// What failed.
        source: io::Error,
    },
    /// A namespace could not be made, entered or removed.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// A link, an address or a route could not be made.
    #[error("at the node '{node}': {source}")]
    Network {
        /// The node.
        node: String,
        /// What the kernel said.
        source: NetlinkError,
    },
    /// A device does not do as it must.
    #[error("at the node '{node}': {source}")]
    Offload {
        /// The node.
        node: String,
        /// What the kernel said.
        source: OffloadError,
    },
    /// A kernel parameter could not be set.
    #[error("at the node '{node}': {source}")]
    Parameter {
        /// The node.
        node: String,
        /// What the kernel said.
        source: SysctlError,
    },
}
