//! Limits of this host, each with its reason.

/// Largest module, in bytes: the limit of all modules, in stores, registries and nodes. Filters in
/// Rust and TinyGo have up to 2 MiB, those with all of Go's runtime some 4 MiB.
pub const MODULE_LENGTH_MAX: usize = abi::layout::MODULE_LENGTH_MAX;
/// Largest machine code that is loaded: Cranelift makes up to ten times the module's bytes.
pub const CODE_LENGTH_MAX: u64 = 10 * MODULE_LENGTH_MAX as u64;
/// Functions of a module; Go's runtime with the standard library has some 10,000.
pub const FUNCTIONS_MAX: u32 = 65_536;
/// Imports of a module: the ABI has under a hundred functions, a file may name one repeatedly.
pub const IMPORTS_MAX: u32 = 256;
/// Exports of a module: callbacks, and other symbols that its toolchain keeps.
pub const EXPORTS_MAX: u32 = 4_096;
/// Elements of a module's tables: indirect calls, not data.
pub const TABLE_ELEMENTS_MAX: usize = 131_072;

/// Contexts of one VM at a time: as many streams as a busy proxy has on one core; each costs the
/// host under 1 KiB when it is empty.
pub const CONTEXTS_MAX: usize = 16_384;
/// Fields of one map: four times what common servers take in a request.
pub const HEADERS_MAX: usize = 400;
/// Bytes of one map's names and values: those of any head that HTTP/1.1 takes (`http1::limits`: a
/// first line of 16 KiB and fields of 80 KiB, edits counted), and the names of pseudo-headers.
pub const HEADER_BYTES_MAX: usize = 100 << 10;
/// Bytes of one buffer that a module may make: more goes through in parts.
pub const BUFFER_LENGTH_MAX: usize = 1 << 20;
/// Bytes by which a module may have lengthened all streams of its VM at one time.
pub const ADDED_BYTES_MAX: u64 = 64 << 20;
/// Bytes of each of the two configurations.
pub const CONFIGURATION_LENGTH_MAX: usize = 1 << 20;
/// Bytes of a property's path: names of a few parts.
pub const PROPERTY_PATH_MAX: usize = 256;
/// Bytes of a property that a module sets.
pub const PROPERTY_VALUE_MAX: usize = 4 << 10;
/// Properties that a module may set for one context: marks for later filters.
pub const PROPERTIES_MAX: usize = 64;

/// Bytes of a log line; the rest is cut off.
pub const LOG_LENGTH_MAX: usize = 4 << 10;
/// Bytes of log lines of one call; further lines are dropped and counted.
pub const LOG_BYTES_PER_CALL_MAX: usize = 16 << 10;
/// Log lines of one call: an empty line costs as well.
pub const LOG_LINES_PER_CALL_MAX: usize = 256;
/// Effects of one call other than log lines: a timer that resumes all streams has as many.
pub const EFFECTS_PER_CALL_MAX: usize = 4_096;
/// Bytes in the effects of one call (calls, local responses): a few whole bodies.
pub const EFFECT_BYTES_PER_CALL_MAX: usize = 4 << 20;
/// HTTP calls of one VM in progress: each holds a connection.
pub const HTTP_CALLS_MAX: usize = 1_024;
/// Random bytes of one request, as `getentropy` and WASI hosts bound it.
pub const RANDOM_LENGTH_MAX: usize = 64 << 10;
/// Bytes of arguments or results of a foreign function.
pub const FOREIGN_LENGTH_MAX: usize = 1 << 20;
/// Parts of a WASI write; C libraries use two.
pub const IOVECS_MAX: u32 = 1_024;

/// Entries of a service's shared data.
pub const SHARED_ENTRIES_MAX: usize = 4_096;
/// Bytes of a shared name: of data, queues and metrics.
pub const SHARED_NAME_MAX: usize = 256;
/// Bytes of one value of shared data, or of one item of a queue.
pub const SHARED_VALUE_MAX: usize = 64 << 10;
/// Bytes of shared data and of waiting queue items of a service, together: a cache, not a store.
pub const SHARED_BYTES_MAX: usize = 8 << 20;
/// Queues of a service.
pub const QUEUES_MAX: usize = 64;
/// Items in one queue: a faster producer gets an error.
pub const QUEUE_ITEMS_MAX: usize = 1_024;
/// Metrics of a service: each is a time series for a collector.
pub const METRICS_MAX: usize = 1_024;
/// Buckets of a histogram: bucket `n` counts values of `n` bits.
pub const BUCKETS: usize = 65;

const _: () = assert!(HEADER_BYTES_MAX <= BUFFER_LENGTH_MAX);
const _: () = assert!(SHARED_VALUE_MAX <= SHARED_BYTES_MAX);
const _: () = assert!(LOG_LENGTH_MAX <= LOG_BYTES_PER_CALL_MAX);
