//! Why a module, or a function of it, does not become eBPF: one typed reason
//! with its place. It judges nothing; whoever finds the fault names it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::layout::SLOTS_MAX;

/// One reason, and where in the module it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What cannot be.
    pub reason: Reason,
    /// The function it is in, by its index in the module.
    pub function: Option<u32>,
    /// That function's name.
    pub name: Option<String>,
    /// The byte in the module.
    pub place: Option<u32>,
}

impl Refusal {
    /// A reason that concerns the whole module.
    #[must_use]
    pub fn of_module(reason: Reason) -> Self {
        Self { reason, function: None, name: None, place: None }
    }

    /// A word that stays the same between versions, for counting and for scripts.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.reason.code()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.function) {
            (Some(name), Some(_)) => write!(out, "function '{name}'")?,
            (None, Some(index)) => write!(out, "function {index}")?,
            (_, None) => write!(out, "the module")?,
        }
        if let Some(place) = self.place {
            write!(out, " at byte {place:#x}")?;
        }
        write!(out, ": {}", self.reason)
    }
}

impl std::error::Error for Refusal {}

/// What cannot become eBPF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The validator says no.
    #[error(
        "this is no valid WebAssembly ({message}); build it again, or repair the tool that made it"
    )]
    Invalid {
        /// In the validator's words.
        message: String,
    },
    /// A component, or another kind of binary.
    #[error("this is a component, and only core modules can be compiled; give the core module")]
    Component,
    /// `f32`, `f64`.
    #[error(
        "'{operator}' computes with floats, and eBPF has none; use integers (fixed point), or run at user level"
    )]
    Float {
        /// The operator, or the type of a local.
        operator: String,
    },
    /// `v128`.
    #[error("'{operator}' is SIMD, and eBPF has none; build with -simd128")]
    Simd {
        /// The operator.
        operator: String,
    },
    /// Atomics and shared memory.
    #[error("'{operator}' needs threads, and a lane has one; build with -atomics")]
    Threads {
        /// The operator.
        operator: String,
    },
    /// References of other types than functions and things of the host, or, for packets, in
    /// what would have to move between levels.
    #[error(
        "'{operator}' needs a reference that cannot be here; call functions directly, or through a table that stays as it begins"
    )]
    Reference {
        /// The operator.
        operator: String,
    },
    /// A proposal beyond what is compiled.
    #[error(
        "'{operator}' belongs to the proposal {proposal}, which is not compiled here; build without it"
    )]
    Proposal {
        /// The operator.
        operator: String,
        /// Whose it is.
        proposal: String,
    },
    /// 64-bit addresses, a second memory, a shared one, or other page sizes.
    #[error(
        "its memory is {kind}, and one 32-bit memory of 64 KiB pages is what can be compiled; build for wasm32"
    )]
    Memory {
        /// Which.
        kind: String,
    },
    /// A memory that begins larger than it may be.
    #[error(
        "its memory begins with {pages} pages and may have {max}; lower it, or raise memory_pages_max in the manifest"
    )]
    MemorySize {
        /// What it begins with.
        pages: u64,
        /// What is allowed.
        max: u32,
    },
    /// An imported memory, table, global or tag.
    #[error(
        "it imports the {kind} '{module}.{import}', and only functions can be imported; define it in the module"
    )]
    Import {
        /// What is imported.
        kind: String,
        /// From where.
        module: String,
        /// Its name.
        import: String,
    },
    /// A function that no host function is.
    #[error(
        "it calls '{module}.{import}', which is no host function of this type; call one of docs/reference/module-abi.md, or leave it out"
    )]
    UnknownImport {
        /// From where.
        module: String,
        /// Its name.
        import: String,
    },
    /// `packet_resize_head` at tc, which has a helper that adds bytes in front and none that
    /// takes them away.
    #[error(
        "it calls 'packet_resize_head' with {}, and this level (tc) can add bytes in front of a packet but take none away; run the module at the level nic or user, or add a constant number of bytes",
        bytes.map_or_else(|| "a number that only a run knows".to_owned(), |bytes| bytes.to_string())
    )]
    ResizeHead {
        /// Constant that it is called with, if it is one.
        bytes: Option<i32>,
    },
    /// Host functions that its principal may not use.
    #[error(transparent)]
    NotGranted(#[from] abi::NotGranted),
    /// Functions that call each other in a circle.
    #[error("it calls itself ({}), and eBPF has no recursion; write a loop", cycle.join(" -> "))]
    Recursion {
        /// The names on the way around.
        cycle: Vec<String>,
    },
    /// More parameters or results than an entry or a call can hand over.
    #[error(
        "it has {count} {what}, at most {SLOTS_MAX} can be handed over; pass a structure in memory"
    )]
    Signature {
        /// `parameters` or `results`.
        what: String,
        /// How many.
        count: u32,
    },
    /// A table that the module changes: it is at user level, and cannot move from there.
    #[error(
        "it uses table {table}, which the module changes ('{operator}') and which stays at user level; use a table that stays as it begins"
    )]
    TableChanges {
        /// Which table.
        table: u32,
        /// What changes it.
        operator: String,
    },
    /// A table larger than a switch may be.
    #[error("tables begin with {elements} elements, at most {max} are compiled; make them smaller")]
    TableSize {
        /// How many.
        elements: u64,
        /// The limit.
        max: u32,
    },
    /// A function beyond what is compiled in bounded time.
    #[error(
        "it has {count} {what}, at most {max} are compiled; split the function, or do less per packet"
    )]
    TooLarge {
        /// `operators`, `locals`, `instructions`...
        what: String,
        /// How many.
        count: u64,
        /// The limit.
        max: u64,
    },
    /// More calls within calls than the verifier allows.
    #[error("calls are {depth} deep, the kernel allows {max}; inline some, or call less deeply")]
    CallDepth {
        /// How deep.
        depth: u32,
        /// The limit.
        max: u32,
    },
    /// More functions than the verifier allows.
    #[error(
        "{count} functions remain after inlining, the kernel allows {max} in one program; use fewer"
    )]
    Functions {
        /// How many.
        count: u32,
        /// The limit.
        max: u32,
    },
    /// More stack than the verifier allows on a chain of calls.
    #[error(
        "its chain of calls needs {bytes} bytes of eBPF stack, there are {max}; keep fewer values alive, or split the function"
    )]
    Stack {
        /// How many.
        bytes: u32,
        /// The limit.
        max: u32,
    },
    /// The entry is missing.
    #[error("it exports no function '{export}'; export one")]
    NoEntry {
        /// What was looked for.
        export: String,
    },
    /// The entry has another type.
    #[error("its entry '{export}' is of type {found}; make it {expected}")]
    EntryType {
        /// Which export.
        export: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A start function would run outside every budget.
    #[error("it has a start function, which would run outside every budget; use on_start")]
    StartFunction,
    /// `memory.init` and passive segments.
    #[error(
        "'{operator}' needs a passive data segment, which stays at user level; build with -bulk-memory-opt, or make the segment active"
    )]
    PassiveData {
        /// The operator.
        operator: String,
    },
    /// A data or element segment that does not fit or has no constant place.
    #[error(
        "{kind} segment {segment} does not lie within its {kind}, or its place is no constant; move it"
    )]
    Segment {
        /// `data` or `element`.
        kind: String,
        /// Its index.
        segment: u32,
    },
    /// A global whose first value is no constant.
    #[error("the first value of global {global} is not an integer constant; give it one")]
    GlobalValue {
        /// Which.
        global: u32,
    },
    /// A fault of the compiler's own.
    #[error("the compiler failed on it ({message}); this is our fault: report it with the module")]
    Internal {
        /// In the failing part's words.
        message: String,
    },
}

impl Reason {
    /// A word that stays the same between versions.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid",
            Self::Component => "component",
            Self::Float { .. } => "float",
            Self::Simd { .. } => "simd",
            Self::Threads { .. } => "threads",
            Self::Reference { .. } => "reference",
            Self::Proposal { .. } => "proposal",
            Self::Memory { .. } => "memory",
            Self::MemorySize { .. } => "memory_size",
            Self::Import { .. } => "import",
            Self::UnknownImport { .. } => "unknown_import",
            Self::ResizeHead { .. } => "resize_head",
            Self::NotGranted(_) => "not_granted",
            Self::Recursion { .. } => "recursion",
            Self::Signature { .. } => "signature",
            Self::TableChanges { .. } => "table_changes",
            Self::TableSize { .. } => "table_size",
            Self::TooLarge { .. } => "too_large",
            Self::CallDepth { .. } => "call_depth",
            Self::Functions { .. } => "functions",
            Self::Stack { .. } => "stack",
            Self::NoEntry { .. } => "no_entry",
            Self::EntryType { .. } => "entry_type",
            Self::StartFunction => "start_function",
            Self::PassiveData { .. } => "passive_data",
            Self::Segment { .. } => "segment",
            Self::GlobalValue { .. } => "global_value",
            Self::Internal { .. } => "internal",
        }
    }
}
