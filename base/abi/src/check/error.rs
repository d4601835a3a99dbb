//! Reasons for rejecting a module, one variant for each fault.

use crate::check::limits::{Limited, TooMany};
use crate::layout::{
    DATA_ADDRESS, IMPORT_MODULE, MANIFEST_SECTION, MEMORY_PAGES_MAX, META_ADDRESS,
    MODULE_LENGTH_MAX,
};
use crate::manifest::{ManifestError, Meant};

/// Reason for rejecting a module: a fault of the module's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The file is no WebAssembly module.
    #[error("this is no WebAssembly module: it is {looks_like}; {advice}")]
    NotWasm {
        /// Kind of file that the first bytes indicate.
        looks_like: &'static str,
        /// Advice to the author.
        advice: &'static str,
    },
    /// The file is a component, not a module.
    #[error(
        "this is a WebAssembly component, a node runs core modules; build for wasm32-unknown-unknown, not for wasm32-wasip2 or with a component tool"
    )]
    Component,
    /// The module has more bytes than a node reads.
    #[error(
        "the module has {length} bytes, at most {MODULE_LENGTH_MAX} are allowed; strip its debug information"
    )]
    TooLarge {
        /// Length in bytes.
        length: usize,
    },
    /// The module is not valid WebAssembly.
    #[error("the module is not valid at byte {offset:#x}: {reason}; build it again")]
    Invalid {
        /// Position in bytes from the file's start.
        offset: usize,
        /// Message of the validator.
        reason: String,
    },
    /// The module uses a part of WebAssembly that the ABI excludes.
    #[error(
        "the module uses {feature} at byte {offset:#x}, which the packet ABI leaves out; build it without that feature"
    )]
    Feature {
        /// Name of the feature.
        feature: &'static str,
        /// Position in bytes from the file's start.
        offset: usize,
    },
    /// The module has more items of a kind than a node allows.
    #[error("the module has {count} {what}, at most {max} are allowed")]
    TooMany {
        /// Kind of item.
        what: Limited,
        /// Number of items.
        count: u64,
        /// Limit.
        max: u64,
    },
    /// The stream module is made for an unsupported version of proxy-wasm.
    #[error(
        "the module is made for proxy-wasm {found}, a node runs 0.2.1 and 0.2.0; build it with a newer SDK"
    )]
    StreamVersion {
        /// Version of the module.
        found: String,
    },
    /// The stream module is rejected by its host, with this message.
    #[error("{0}")]
    Streams(String),
    /// The manifest declares a parameter that no stream module has.
    #[error(
        "parameter '{name}': a module for streams has the parameters 'protocol', 'configuration' and 'upstreams', and the manifest may give them defaults of type text; what it may do is for whoever deploys it to say ('capabilities'); what it is to know beside goes into its configuration"
    )]
    StreamParameter {
        /// Name of the parameter.
        name: String,
    },
    /// The module has no manifest.
    #[error(
        "the module has no custom section '{MANIFEST_SECTION}', so it declares no ABI version; build it with an SDK, or add the section as docs/reference/module-abi.md says"
    )]
    NoManifest,
    /// The manifest has a fault.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The module imports from another module than the node's.
    #[error(
        "the module imports '{name}' from '{module}', but a node offers only functions of '{IMPORT_MODULE}'; {advice}"
    )]
    ImportModule {
        /// Module name of the import.
        module: String,
        /// Name of the import.
        name: String,
        /// Advice to the author.
        advice: &'static str,
    },
    /// The module imports a host function that does not exist.
    #[error(
        "the module imports '{IMPORT_MODULE}.{name}', which the packet ABI does not have{meant}"
    )]
    ImportName {
        /// Name of the import.
        name: String,
        /// Existing names.
        meant: Meant,
    },
    /// The module imports a host function with a wrong signature.
    #[error(
        "the module imports '{IMPORT_MODULE}.{name}' as {found}; it is {expected}; declare it that way"
    )]
    ImportType {
        /// Name of the import.
        name: &'static str,
        /// Signature in the module.
        found: String,
        /// Signature in the ABI.
        expected: String,
    },
    /// The module imports a host function that the manifest does not list under `needs`.
    #[error(
        "the module imports '{IMPORT_MODULE}.{name}' but its manifest does not ask for it; add needs = [\"{need}\"]"
    )]
    NeedUndeclared {
        /// Name of the import.
        name: &'static str,
        /// Word for the manifest.
        need: &'static str,
    },
    /// The module does not export `on_packet`.
    #[error("the module exports no function 'on_packet'{meant}")]
    NoOnPacket {
        /// Existing exports.
        meant: Meant,
    },
    /// A hook is no function, or has a wrong signature.
    #[error("the module exports '{name}' as {found}; it must be {expected}")]
    HookType {
        /// Name of the hook.
        name: &'static str,
        /// Type of the export.
        found: String,
        /// Signature in the ABI.
        expected: String,
    },
    /// The module has a timer interval without the hook, or the hook without an interval.
    #[error("the module {has} but {lacks}: declare both, or neither")]
    Timer {
        /// Part that is present.
        has: &'static str,
        /// Part that is missing.
        lacks: &'static str,
    },
    /// The module has a message hook without a pool for messages, or a pool without the hook.
    #[error("the module {has} but {lacks}: declare both, or neither")]
    Message {
        /// Part that is present.
        has: &'static str,
        /// Part that is missing.
        lacks: &'static str,
    },
    /// The module exports only one of the two state hand-over hooks.
    #[error(
        "the module exports '{has}' but no '{lacks}': what one hands over the other takes, so export both, or neither"
    )]
    State {
        /// Hook that is present.
        has: &'static str,
        /// Hook that is missing.
        lacks: &'static str,
    },
    /// The module has a start function, which would run outside the node's control.
    #[error(
        "the module has a start function (number {function}), which runs outside every budget; export it as 'on_start' instead"
    )]
    StartFunction {
        /// Index of the function.
        function: u32,
    },
    /// The module defines no memory.
    #[error("the module has no memory; it must define one and export it as 'memory'")]
    NoMemory,
    /// The module does not export its memory.
    #[error(
        "the module does not export its memory as 'memory', so a node cannot write the packet into it; with LLVM's linker leave out --import-memory, in WAT write (memory (export \"memory\") 1)"
    )]
    MemoryNotExported,
    /// The memory is smaller or larger than a node provides.
    #[error(
        "the module's memory begins with {pages} pages of 64 KiB; it must have at least 1 and at most {max}"
    )]
    MemorySize {
        /// Declared size in pages.
        pages: u64,
        /// Allowed size: [`MEMORY_PAGES_MAX`] or the manifest's limit.
        max: u32,
    },
    /// A data segment overlaps packet or metadata.
    #[error(
        "data segment {segment} lies at {begin:#x} to {end:#x}, over the packet and its metadata ({META_ADDRESS:#x} to {DATA_ADDRESS:#x}); link with --global-base={DATA_ADDRESS} and a stack of at most {META_ADDRESS} bytes"
    )]
    DataOverPacket {
        /// Index of the segment.
        segment: usize,
        /// First address of the segment.
        begin: u64,
        /// Address after the last byte.
        end: u64,
    },
    /// A data segment lies beyond the initial pages.
    #[error(
        "data segment {segment} ends at {end:#x}, beyond the memory's {pages} first pages; declare a larger memory"
    )]
    DataOutside {
        /// Index of the segment.
        segment: usize,
        /// Address after the last byte.
        end: u64,
        /// Initial size in pages.
        pages: u64,
    },
    /// A counter export is not the address of a number.
    #[error(
        "the export '{name}' must be an immutable global of type i32 with the address of the counter: {reason}"
    )]
    Counter {
        /// Name of the export.
        name: String,
        /// Fault of the export.
        reason: String,
    },
}

impl From<TooMany> for CheckError {
    fn from(TooMany { what, count, max }: TooMany) -> Self {
        Self::TooMany { what, count, max }
    }
}

const _: () = assert!(MEMORY_PAGES_MAX as u64 * 0x1_0000 > DATA_ADDRESS as u64);
