//! What a repository may cost, and why so much.

use std::time::Duration;

/// One pull or push, with everything in it, unless its caller says otherwise.
pub const TIME_MAX: Duration = Duration::from_secs(120);
/// A connection with its TLS handshake: three round trips around the world, lost twice.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// From a request to the head of its answer: a registry may have to look in a slow store.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Over how long the rate of a body is looked at.
pub const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Bytes that have to come in one such window: a kilobyte a second. A body that ends sooner may
/// be shorter.
pub const WINDOW_BYTES_MIN: u64 = 10 << 10;
/// Tries of one request: the first, and those after a connection that broke or a registry that
/// was busy.
pub const ATTEMPTS_MAX: u32 = 5;
/// Wait before the second try; it doubles.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// Longest wait between two tries, also when a registry asks for more.
pub const BACKOFF_MAX: Duration = Duration::from_secs(8);
/// Connections that are kept open: a registry and where its blobs lie, for some pulls at a time.
pub const IDLE_MAX: usize = 8;
/// Redirects of one request: registries send clients to where blobs lie, once or twice.
pub const REDIRECTS_MAX: u32 = 5;
/// Bytes of an answer's head.
pub const HEAD_LENGTH_MAX: usize = 64 << 10;
/// Headers of an answer.
pub const HEADERS_MAX: usize = 100;
/// Bytes of an answer that says what is wrong; the rest is not read.
pub const ERROR_LENGTH_MAX: u64 = 8 << 10;
/// Time for the words of one that says that there is no such thing: then another connection is
/// sooner open.
pub const NOT_FOUND_TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes of a token server's answer.
pub const TOKEN_ANSWER_LENGTH_MAX: u64 = 64 << 10;
/// Bytes of a token: the longest header that common servers take.
pub const TOKEN_LENGTH_MAX: usize = 16 << 10;
/// Bytes of an image's config.
pub const CONFIG_LENGTH_MAX: u64 = 1 << 20;
/// Layers of an image, and images of an index, that are looked at: more is no module.
pub const ENTRIES_MAX: usize = 256;
/// Manifests that are looked at behind an index: an image for each platform that a common builder
/// has, and what is said of them.
pub const MANIFESTS_MAX: usize = 16;
/// Indexes in indexes. The specification lets them be nested and says no limit; tools write two.
pub const INDEX_DEPTH_MAX: usize = 4;
/// Bytes of a layer that has to be unpacked first.
pub const PACKED_LENGTH_MAX: u64 = 16 << 20;
/// Bytes that may come out of it before the module is found: a layer of a few megabytes can
/// otherwise become terabytes.
pub const UNPACKED_LENGTH_MAX: u64 = 32 << 20;
/// Files in it that are looked at.
pub const FILES_MAX: usize = 1024;
