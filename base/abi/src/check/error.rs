//! Why a module was refused, one variant for each fault.

use crate::check::limits::{Limited, TooMany};
use crate::layout::{
    DATA_ADDRESS, IMPORT_MODULE, MANIFEST_SECTION, MEMORY_PAGES_MAX, META_ADDRESS,
    MODULE_LENGTH_MAX,
};
use crate::manifest::{ManifestError, Meant};

/// Why a module was refused. The module author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Some other file.
    #[error("this is no WebAssembly module: it is {looks_like}; {advice}")]
    NotWasm {
        /// What the first bytes look like.
        looks_like: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A component, not a module.
    #[error(
        "this is a WebAssembly component, a node runs core modules; build for wasm32-unknown-unknown, not for wasm32-wasip2 or with a component tool"
    )]
    Component,
    /// More bytes than a node reads.
    #[error(
        "the module has {length} bytes, at most {MODULE_LENGTH_MAX} are allowed; strip its debug information"
    )]
    TooLarge {
        /// Its length in bytes.
        length: usize,
    },
    /// Not valid WebAssembly.
    #[error("the module is not valid at byte {offset:#x}: {reason}; build it again")]
    Invalid {
        /// Where, in bytes from the file's start.
        offset: usize,
        /// What the validator says.
        reason: String,
    },
    /// A part of WebAssembly that the ABI leaves out.
    #[error(
        "the module uses {feature} at byte {offset:#x}, which the packet ABI leaves out; build it without that feature"
    )]
    Feature {
        /// The feature's name.
        feature: &'static str,
        /// Where, in bytes from the file's start.
        offset: usize,
    },
    /// More of something than a node keeps.
    #[error("the module has {count} {what}, at most {max} are allowed")]
    TooMany {
        /// Of what.
        what: Limited,
        /// How many there are.
        count: u64,
        /// How many are allowed.
        max: u64,
    },
    /// A module for streams of another version.
    #[error(
        "the module is made for proxy-wasm {found}, a node runs 0.2.1 and 0.2.0; build it with a newer SDK"
    )]
    StreamVersion {
        /// The version.
        found: String,
    },
    /// A module for streams that its host does not take, in its words.
    #[error("{0}")]
    Streams(String),
    /// A parameter that no module for streams has.
    #[error(
        "parameter '{name}': a module for streams has the parameters 'protocol', 'configuration' and 'upstreams', and the manifest may give them defaults of type text; what it may do is for whoever deploys it to say ('capabilities'); what it is to know beside goes into its configuration"
    )]
    StreamParameter {
        /// Its name.
        name: String,
    },
    /// No manifest.
    #[error(
        "the module has no custom section '{MANIFEST_SECTION}', so it declares no ABI version; build it with an SDK, or add the section as docs/reference/module-abi.md says"
    )]
    NoManifest,
    /// A manifest with a fault.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Something imported from elsewhere than the node.
    #[error(
        "the module imports '{name}' from '{module}', but a node offers only functions of '{IMPORT_MODULE}'; {advice}"
    )]
    ImportModule {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
        /// What to do.
        advice: &'static str,
    },
    /// A host function that does not exist.
    #[error(
        "the module imports '{IMPORT_MODULE}.{name}', which the packet ABI does not have{meant}"
    )]
    ImportName {
        /// The import's name.
        name: String,
        /// What exists.
        meant: Meant,
    },
    /// A host function with another signature.
    #[error(
        "the module imports '{IMPORT_MODULE}.{name}' as {found}; it is {expected}; declare it that way"
    )]
    ImportType {
        /// The import's name.
        name: &'static str,
        /// What the module says.
        found: String,
        /// What the ABI says.
        expected: String,
    },
    /// A host function that the manifest does not ask for.
    #[error(
        "the module imports '{IMPORT_MODULE}.{name}' but its manifest does not ask for it; add needs = [\"{need}\"]"
    )]
    NeedUndeclared {
        /// The import's name.
        name: &'static str,
        /// The word for the manifest.
        need: &'static str,
    },
    /// No `on_packet`.
    #[error("the module exports no function 'on_packet'{meant}")]
    NoOnPacket {
        /// What it exports.
        meant: Meant,
    },
    /// A hook that is no function, or one with another signature.
    #[error("the module exports '{name}' as {found}; it must be {expected}")]
    HookType {
        /// The hook's name.
        name: &'static str,
        /// What the module exports.
        found: String,
        /// What the ABI says.
        expected: String,
    },
    /// A timer without a hook, or the other way round.
    #[error("the module {has} but {lacks}: declare both, or neither")]
    Timer {
        /// What is there.
        has: &'static str,
        /// What is missing.
        lacks: &'static str,
    },
    /// Messages that no pool takes, or the other way round.
    #[error("the module {has} but {lacks}: declare both, or neither")]
    Message {
        /// What is there.
        has: &'static str,
        /// What is missing.
        lacks: &'static str,
    },
    /// One half of handing state over.
    #[error(
        "the module exports '{has}' but no '{lacks}': what one hands over the other takes, so export both, or neither"
    )]
    State {
        /// What is there.
        has: &'static str,
        /// What is missing.
        lacks: &'static str,
    },
    /// A function that runs before the node can say when.
    #[error(
        "the module has a start function (number {function}), which runs outside every budget; export it as 'on_start' instead"
    )]
    StartFunction {
        /// Its index.
        function: u32,
    },
    /// No memory of its own.
    #[error("the module has no memory; it must define one and export it as 'memory'")]
    NoMemory,
    /// The memory is not exported.
    #[error(
        "the module does not export its memory as 'memory', so a node cannot write the packet into it; with LLVM's linker leave out --import-memory, in WAT write (memory (export \"memory\") 1)"
    )]
    MemoryNotExported,
    /// The memory is smaller or larger than a node gives.
    #[error(
        "the module's memory begins with {pages} pages of 64 KiB; it must have at least 1 and at most {max}"
    )]
    MemorySize {
        /// What it declares.
        pages: u64,
        /// What is allowed: [`MEMORY_PAGES_MAX`] or what its manifest says.
        max: u32,
    },
    /// A data segment over packet or metadata.
    #[error(
        "data segment {segment} lies at {begin:#x} to {end:#x}, over the packet and its metadata ({META_ADDRESS:#x} to {DATA_ADDRESS:#x}); link with --global-base={DATA_ADDRESS} and a stack of at most {META_ADDRESS} bytes"
    )]
    DataOverPacket {
        /// Its index.
        segment: usize,
        /// Its first address.
        begin: u64,
        /// The address after its last byte.
        end: u64,
    },
    /// A data segment that the first pages do not hold.
    #[error(
        "data segment {segment} ends at {end:#x}, beyond the memory's {pages} first pages; declare a larger memory"
    )]
    DataOutside {
        /// Its index.
        segment: usize,
        /// The address after its last byte.
        end: u64,
        /// What the memory begins with.
        pages: u64,
    },
    /// A counter that is not the address of a number.
    #[error(
        "the export '{name}' must be an immutable global of type i32 with the address of the counter: {reason}"
    )]
    Counter {
        /// The export's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

impl From<TooMany> for CheckError {
    fn from(TooMany { what, count, max }: TooMany) -> Self {
        Self::TooMany { what, count, max }
    }
}

const _: () = assert!(MEMORY_PAGES_MAX as u64 * 0x1_0000 > DATA_ADDRESS as u64);
