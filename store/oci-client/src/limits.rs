//! Limits of the resources that a repository can consume.

use std::time::Duration;

/// Time limit of one pull or push in all, by default.
pub const TIME_MAX: Duration = Duration::from_secs(120);
/// Time limit of connecting, with the TLS handshake: three round trips around the world, lost
/// twice.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit from a request to the head of its response: a registry may have to read a slow store.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Window over which the rate of a body is measured.
pub const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Smallest number of bytes of a body in one such window: a kilobyte a second. Not applied to the
/// last window.
pub const WINDOW_BYTES_MIN: u64 = 10 << 10;
/// Largest number of attempts of one request: the first, and those after a broken connection or a
/// busy registry.
pub const ATTEMPTS_MAX: u32 = 5;
/// Delay before the second attempt; doubled for each further one.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// Longest delay between two attempts, also if a registry asks for more.
pub const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// Largest number of idle connections: a registry and its blob storage, for some concurrent pulls.
pub const IDLE_MAX: usize = 8;
/// Largest number of redirects of one request: registries redirect to their blob storage once or
/// twice.
pub const REDIRECTS_MAX: u32 = 5;
/// Longest head of a response, in bytes.
pub const HEAD_LENGTH_MAX: usize = 64 << 10;
/// Largest number of headers of a response.
pub const HEADERS_MAX: usize = 100;
/// Longest part of an error response that is read, in bytes.
pub const ERROR_LENGTH_MAX: u64 = 8 << 10;
/// Time limit of reading the body of a "not found" response, so that its connection can be reused;
/// beyond it a new connection is faster.
pub const NOT_FOUND_TIME_MAX: Duration = Duration::from_secs(1);
/// Longest response of a token server, in bytes.
pub const TOKEN_ANSWER_LENGTH_MAX: u64 = 64 << 10;
/// Longest token in bytes: the longest header that common servers accept.
pub const TOKEN_LENGTH_MAX: usize = 16 << 10;
/// Longest config of an image, in bytes.
pub const CONFIG_LENGTH_MAX: u64 = 1 << 20;
/// Largest number of layers of an image and of entries of an index.
pub const ENTRIES_MAX: usize = 256;
/// Largest number of manifests behind an index: an image for each platform of a common builder, and
/// their attestations.
pub const MANIFESTS_MAX: usize = 16;
/// Largest depth of nested indexes. The specification has no limit; tools write two.
pub const INDEX_DEPTH_MAX: usize = 4;
/// Longest packed layer in bytes.
pub const PACKED_LENGTH_MAX: u64 = 16 << 20;
/// Largest number of bytes unpacked before the module is found: a layer of a few megabytes can
/// expand to terabytes.
pub const UNPACKED_LENGTH_MAX: u64 = 32 << 20;
/// Largest number of files of an archive that are examined.
pub const FILES_MAX: usize = 1024;
