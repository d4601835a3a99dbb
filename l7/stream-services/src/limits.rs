//! Limits of a filter, each with its reason.

use units::Nanos;

/// Bytes of one read: as many as a sender and the kernel commonly have ready.
pub const READ_LENGTH: usize = 64 * 1024;
/// Unsent bytes for one side at which the other side is no longer read: a read, and as much again
/// for additions of a module.
pub const SEND_LENGTH_MAX: usize = 128 * 1024;
/// Bytes of one direction that a module may hold by pausing: the limit of a module's buffer.
pub const HELD_LENGTH_MAX: usize = proxy_wasm::BUFFER_LENGTH_MAX;
/// Bytes that one connection reads before others of its service.
pub const READ_BURST_MAX: usize = 4 * READ_LENGTH;
/// Waiting calls that are made before sockets are polled again, so that a busy module does not
/// delay events.
pub const CALLS_PER_ROUND_MAX: usize = 64;
/// Largest number of bytes that a connection leaves for the batch: more are worth a wake-up, and
/// would not stay in the caches.
pub const BATCH_LENGTH_MAX: usize = 16 * 1024;
/// Bytes of an answered request that are read and dropped to keep its connection: cheaper than a
/// new connection.
pub const DROPPED_LENGTH_MAX: u64 = 64 * 1024;

/// Time for which a client may go on sending after its last response, so that no reset overtakes
/// it.
pub const LINGER_TIME: Nanos = Nanos(2_000_000_000);
/// Number of bytes that it may send in that time.
pub const LINGER_LENGTH_MAX: usize = 256 * 1024;

/// Time for which a coded response may hold back data when its server pauses: parts that come
/// within it are coded together, which no reader notices.
pub const FLUSH_TIME: Nanos = Nanos(10_000_000);
/// Bytes of a body after which its level is chosen again: as many as an encoder buffers.
pub const LEVEL_LENGTH: usize = content_coding::BUFFERED_MAX;
/// Shortest measuring period for the rate of a client's link: some round trips.
pub const METER_PERIOD: Nanos = Nanos(250_000_000);
/// Longest measuring period, and validity of the last rate: a slow link is full again within
/// seconds.
pub const METER_TIME_MAX: Nanos = Nanos(4_000_000_000);

/// Pictures that the kernel may buffer for a client: with fewer, a network with some delay is never
/// full; buffered pictures are old when they are seen.
pub const UNSENT_PICTURES: u64 = 4;
/// Lower limit of the unsent bytes of a connection: what a network with a delay of 100 ms takes at 1 Mbit/s.
pub const UNSENT_LENGTH_MIN: usize = 16 * 1024;
/// Upper limit of the unsent bytes of a connection; the kernel grants `net.core.wmem_max`.
pub const UNSENT_LENGTH_MAX: usize = 1024 * 1024;
/// Bytes of memory that a codec's process may write to: three reference pictures at high level and
/// the converted ones; 40 MiB were measured at main level, and 70 MiB at high level.
pub const CODEC_MEMORY: u64 = 96 << 20;
/// Bytes charged to a stream's session for its transcoding: the kept part of the stream, pending
/// data, and the codec; during a change there are two codecs.
pub const TRANSCODING_MEMORY: u64 = CODEC_MEMORY
    + (2 * mpeg2::limits::PICTURE_LENGTH_MAX
        + mpeg2::limits::KEPT_LENGTH_MAX
        + 2 * mpeg2::limits::AHEAD_LENGTH_MAX) as u64;

/// Bytes that may be in transit from a codec: a picture of main level, so that the next one is made
/// while it is taken.
pub const CODEC_BUFFER: usize = 1024 * 1024;

/// Interval of the idle check of HTTP connections: the precision of the times below.
pub const IDLE_INTERVAL: Nanos = Nanos(15_000_000_000);
/// Time for the head of a request, from its first byte on: as in nginx (`client_header_timeout`). A
/// slower client holds the connection on purpose.
pub const HEAD_TIME_MAX: Nanos = Nanos(60_000_000_000);
/// Time for which a connection is kept between requests: as in nginx (`keepalive_timeout`).
pub const KEEPALIVE_TIME_MAX: Nanos = Nanos(75_000_000_000);
/// Time for which a client may take nothing of the last response.
pub const UNREAD_TIME_MAX: Nanos = Nanos(60_000_000_000);
/// Time without progress between a request and the end of its response: longer than a module's call
/// may take, and than a working server is silent.
pub const SILENT_TIME_MAX: Nanos = Nanos(600_000_000_000);

/// Time for which a postponed end of a context is awaited after its stream has ended.
pub const PENDING_TIME: Nanos = Nanos(10_000_000_000);

/// Events in the queue: an owner that polls less often than a busy filter logs loses lines, and
/// gets their number.
pub const EVENTS_MAX: usize = 1_024;

/// Bytes of the body of a response to an HTTP call: a module gets it whole.
pub const CALL_RESPONSE_LENGTH_MAX: usize = proxy_wasm::BUFFER_LENGTH_MAX;
/// Idle server connections without a client, per service.
pub const IDLE_SERVERS_MAX: usize = 256;
/// Time for which they are kept: a second less than servers with short timeouts (Apache and
/// Node.js: 5 s).
pub const IDLE_SERVER_TIME: Nanos = Nanos(4_000_000_000);
/// Connections to one upstream at a time: further calls wait.
pub const CALL_CONNECTIONS_MAX: usize = 64;
/// Idle connections to one upstream that are kept.
pub const CALL_IDLE_MAX: usize = 8;
/// Time for which they are kept: common servers keep an idle connection for a minute or more.
pub const CALL_IDLE_TIME: Nanos = Nanos(30_000_000_000);
/// Longest timeout of a call, whatever its module requests.
pub const CALL_TIME_MAX: Nanos = Nanos(300_000_000_000);

const _: () = assert!(CALL_TIME_MAX.0 < SILENT_TIME_MAX.0);
const _: () = assert!(METER_PERIOD.0 < METER_TIME_MAX.0);
const _: () = assert!(READ_LENGTH <= SEND_LENGTH_MAX);
const _: () = assert!(CALL_IDLE_MAX <= CALL_CONNECTIONS_MAX);
