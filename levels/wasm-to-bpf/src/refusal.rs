//! Refusals: the reason why a module, or a function of it, does not become eBPF, with its position.
//! Judges nothing; the code that finds the fault names it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::layout::SLOTS_MAX;

/// Reason with its position in the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Reason of the refusal.
    pub reason: Reason,
    /// Index in the module of the function that contains it.
    pub function: Option<u32>,
    /// Name of that function.
    pub name: Option<String>,
    /// Position of the byte in the module.
    pub place: Option<u32>,
}

impl Refusal {
    /// Makes a refusal of the whole module.
    #[must_use]
    pub fn of_module(reason: Reason) -> Self {
        Self { reason, function: None, name: None, place: None }
    }

    /// Returns an identifier that is stable between versions, for counting and for scripts.
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

/// Reason why code cannot become eBPF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The module is not valid WebAssembly.
    #[error(
        "this is no valid WebAssembly ({message}); build it again, or repair the tool that made it"
    )]
    Invalid {
        /// Message of the validator.
        message: String,
    },
    /// The file is a component, or another kind of binary.
    #[error("this is a component, and only core modules can be compiled; give the core module")]
    Component,
    /// The code uses `f32` or `f64`.
    #[error(
        "'{operator}' computes with floats, and eBPF has none; use integers (fixed point), or run at user level"
    )]
    Float {
        /// Operator, or type of a local.
        operator: String,
    },
    /// The code uses `v128`.
    #[error("'{operator}' is SIMD, and eBPF has none; build with -simd128")]
    Simd {
        /// Name of the operator.
        operator: String,
    },
    /// The code uses atomics or shared memory.
    #[error("'{operator}' needs threads, and a lane has one; build with -atomics")]
    Threads {
        /// Name of the operator.
        operator: String,
    },
    /// The code uses references to something other than functions and host objects, or, for
    /// packets, in state that would have to move between levels.
    #[error(
        "'{operator}' needs a reference that cannot be here; call functions directly, or through a table that stays as it begins"
    )]
    Reference {
        /// Name of the operator.
        operator: String,
    },
    /// The code uses a proposal that is not supported.
    #[error(
        "'{operator}' belongs to the proposal {proposal}, which is not compiled here; build without it"
    )]
    Proposal {
        /// Name of the operator.
        operator: String,
        /// Name of the proposal.
        proposal: String,
    },
    /// The memory has 64-bit addresses, is a second one, is shared, or has other page sizes.
    #[error(
        "its memory is {kind}, and one 32-bit memory of 64 KiB pages is what can be compiled; build for wasm32"
    )]
    Memory {
        /// Kind of memory.
        kind: String,
    },
    /// The initial memory is larger than its limit.
    #[error(
        "its memory begins with {pages} pages and may have {max}; lower it, or raise memory_pages_max in the manifest"
    )]
    MemorySize {
        /// Initial size in pages.
        pages: u64,
        /// Limit in pages.
        max: u32,
    },
    /// The module imports a memory, table, global or tag.
    #[error(
        "it imports the {kind} '{module}.{import}', and only functions can be imported; define it in the module"
    )]
    Import {
        /// Kind of the import.
        kind: String,
        /// Module name of the import.
        module: String,
        /// Name of the import.
        import: String,
    },
    /// The code calls an imported function that is no host function.
    #[error(
        "it calls '{module}.{import}', which is no host function of this type; call one of docs/reference/module-abi.md, or leave it out"
    )]
    UnknownImport {
        /// Module name of the import.
        module: String,
        /// Name of the import.
        import: String,
    },
    /// The code calls `packet_resize_head` at tc, which has a helper that adds bytes in front and
    /// none that removes them.
    #[error(
        "it calls 'packet_resize_head' with {}, and this level (tc) can add bytes in front of a packet but take none away; run the module at the level nic or user, or add a constant number of bytes",
        bytes.map_or_else(|| "a number that only a run knows".to_owned(), |bytes| bytes.to_string())
    )]
    ResizeHead {
        /// Constant argument of the call, if it is one.
        bytes: Option<i32>,
    },
    /// The module imports host functions that its principal may not use.
    #[error(transparent)]
    NotGranted(#[from] abi::NotGranted),
    /// Functions call each other in a cycle.
    #[error("it calls itself ({}), and eBPF has no recursion; write a loop", cycle.join(" -> "))]
    Recursion {
        /// Names of the functions of the cycle.
        cycle: Vec<String>,
    },
    /// An entry or a call has more parameters or results than can be passed.
    #[error(
        "it has {count} {what}, at most {SLOTS_MAX} can be handed over; pass a structure in memory"
    )]
    Signature {
        /// `parameters` or `results`.
        what: String,
        /// Number of them.
        count: u32,
    },
    /// The module changes a table that lies at user level, and cannot move from there.
    #[error(
        "it uses table {table}, which the module changes ('{operator}') and which stays at user level; use a table that stays as it begins"
    )]
    TableChanges {
        /// Index of the table.
        table: u32,
        /// Operator that changes it.
        operator: String,
    },
    /// A table is larger than a switch may be.
    #[error("tables begin with {elements} elements, at most {max} are compiled; make them smaller")]
    TableSize {
        /// Number of elements.
        elements: u64,
        /// Limit of the number.
        max: u32,
    },
    /// A function exceeds a limit of bounded compile time.
    #[error(
        "it has {count} {what}, at most {max} are compiled; split the function, or do less per packet"
    )]
    TooLarge {
        /// Kind of items: `operators`, `locals`, `instructions`...
        what: String,
        /// Number of items.
        count: u64,
        /// Limit of the number.
        max: u64,
    },
    /// Calls are nested deeper than the verifier allows.
    #[error("calls are {depth} deep, the kernel allows {max}; inline some, or call less deeply")]
    CallDepth {
        /// Depth of calls.
        depth: u32,
        /// Limit of the depth.
        max: u32,
    },
    /// The program has more functions than the verifier allows.
    #[error(
        "{count} functions remain after inlining, the kernel allows {max} in one program; use fewer"
    )]
    Functions {
        /// Number of functions.
        count: u32,
        /// Limit of the number.
        max: u32,
    },
    /// A chain of calls needs more stack than the verifier allows.
    #[error(
        "its chain of calls needs {bytes} bytes of eBPF stack, there are {max}; keep fewer values alive, or split the function"
    )]
    Stack {
        /// Stack size in bytes.
        bytes: u32,
        /// Limit in bytes.
        max: u32,
    },
    /// The module lacks the entry.
    #[error("it exports no function '{export}'; export one")]
    NoEntry {
        /// Name of the export.
        export: String,
    },
    /// The entry has a wrong type.
    #[error("its entry '{export}' is of type {found}; make it {expected}")]
    EntryType {
        /// Name of the export.
        export: String,
        /// Type of the export.
        found: String,
        /// Type that is required.
        expected: String,
    },
    /// The module has a start function, which would run outside every budget.
    #[error("it has a start function, which would run outside every budget; use on_start")]
    StartFunction,
    /// The code uses `memory.init` or a passive segment.
    #[error(
        "'{operator}' needs a passive data segment, which stays at user level; build with -bulk-memory-opt, or make the segment active"
    )]
    PassiveData {
        /// Name of the operator.
        operator: String,
    },
    /// A data or element segment is out of bounds or has no constant offset.
    #[error(
        "{kind} segment {segment} does not lie within its {kind}, or its place is no constant; move it"
    )]
    Segment {
        /// `data` or `element`.
        kind: String,
        /// Index of the segment.
        segment: u32,
    },
    /// The initial value of a global is no constant.
    #[error("the initial value of global {global} is not an integer constant; give it one")]
    GlobalValue {
        /// Index of the global.
        global: u32,
    },
    /// The compiler itself has a fault.
    #[error("the compiler failed on it ({message}); this is our fault: report it with the module")]
    Internal {
        /// Message of the failing part.
        message: String,
    },
}

impl Reason {
    /// Returns an identifier that is stable between versions.
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
