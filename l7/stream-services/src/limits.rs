//! Every limit of a filter, with its reason.

use units::Nanos;

/// Bytes that one read takes: what a sender and the kernel commonly have ready.
pub const READ_LENGTH: usize = 64 * 1024;
/// Bytes that wait to be sent to one side before the other side is read again: a read, and as much
/// again for what a module adds.
pub const SEND_LENGTH_MAX: usize = 128 * 1024;
/// Bytes of one direction that a module may hold by pausing: as many as it may make in a buffer.
pub const HELD_LENGTH_MAX: usize = proxy_wasm::BUFFER_LENGTH_MAX;
/// Bytes that one connection reads before others of its service have their turn.
pub const PORTION: usize = 4 * READ_LENGTH;
/// Calls that waited which are made before sockets are looked at again: what comes meanwhile is
/// seen, whatever a module keeps itself busy with.
pub const CALLS_PER_ROUND_MAX: usize = 64;
/// Bytes of a connection that wait for those of others: more are worth a wake-up, and would not
/// stay in the caches.
pub const GATHERED_LENGTH_MAX: usize = 16 * 1024;
/// Bytes of a request that is answered already, which are read and dropped to keep its connection:
/// reading them costs less than a new connection.
pub const DROPPED_LENGTH_MAX: u64 = 64 * 1024;

/// How long a client may go on sending behind its last response, so that no reset overtakes it.
pub const LINGER_TIME: Nanos = Nanos(2_000_000_000);
/// How many bytes it may send meanwhile.
pub const LINGER_LENGTH_MAX: usize = 256 * 1024;

/// How long a coded response may keep back what its server has sent, when that pauses: parts that
/// come within it are coded together, which nobody notices who reads.
pub const FLUSH_TIME: Nanos = Nanos(10_000_000);
/// Bytes of a body behind which its level is chosen again: as many as an encoder gathers.
pub const LEVEL_LENGTH: usize = content_coding::BUFFERED_MAX;
/// How long the speed of a client's link is measured at least: some round trips.
pub const METER_PERIOD: Nanos = Nanos(250_000_000);
/// And at most, and for how long the last speed counts: a slow link is full again within seconds.
pub const METER_TIME_MAX: Nanos = Nanos(4_000_000_000);

/// Pictures that the kernel may keep for a client: less, and a network with some delay is never
/// full; what is there is old when it is seen.
pub const UNSENT_PICTURES: u64 = 4;
/// Bytes that it may keep at least: what a network with a delay of 100 ms takes at 1 Mbit/s.
pub const UNSENT_LENGTH_MIN: usize = 16 * 1024;
/// And at most; a kernel grants what `net.core.wmem_max` says.
pub const UNSENT_LENGTH_MAX: usize = 1024 * 1024;
/// Bytes of memory that a codec's process may write to: three reference pictures at high level and
/// what they become; 40 MiB were measured at main level, and 70 MiB at high level.
pub const CODEC_MEMORY: u64 = 96 << 20;
/// Bytes of memory that a stream's session pays for while it goes through a codec: what is kept of
/// the stream, what waits, and the codec; a change has a second one for a moment.
pub const TRANSCODING_MEMORY: u64 = CODEC_MEMORY
    + (2 * mpeg2::limits::PICTURE_LENGTH_MAX
        + mpeg2::limits::KEPT_LENGTH_MAX
        + 2 * mpeg2::limits::AHEAD_LENGTH_MAX) as u64;

/// Bytes that may be on their way from a codec: a picture of main level, so that the next one is made
/// while that is taken.
pub const CODEC_BUFFER: usize = 1024 * 1024;

/// How often a connection of HTTP is looked at, whether it does anything: what is said below is kept to
/// within that.
pub const IDLE_INTERVAL: Nanos = Nanos(15_000_000_000);
/// How long a client may take for the head of a request, from its first byte on: as nginx has it
/// (`client_header_timeout`). Whoever takes longer holds a connection on purpose.
pub const HEAD_TIME_MAX: Nanos = Nanos(60_000_000_000);
/// How long a connection is kept between requests: as nginx has it (`keepalive_timeout`).
pub const KEPT_TIME_MAX: Nanos = Nanos(75_000_000_000);
/// How long a client may take nothing of the last that it is sent.
pub const UNTAKEN_TIME_MAX: Nanos = Nanos(60_000_000_000);
/// How long nothing may move between a request and the end of its response: longer than a module's
/// call may take, and than servers are silent that mean to answer.
pub const SILENT_TIME_MAX: Nanos = Nanos(600_000_000_000);

/// How long a context that is not done is waited for when its stream has ended.
pub const PENDING_TIME: Nanos = Nanos(10_000_000_000);

/// Events that wait to be polled: whoever polls less often than a busy filter logs loses lines,
/// and is told how many.
pub const EVENTS_MAX: usize = 1_024;

/// Bytes of the body of an answer to an HTTP call: a module gets it whole.
pub const CALL_RESPONSE_LENGTH_MAX: usize = proxy_wasm::BUFFER_LENGTH_MAX;
/// Connections to servers that are kept while no client has them, of one service.
pub const SPARE_MAX: usize = 256;
/// For so long: a second less than servers do that end them soon (Apache and Node.js: 5 s).
pub const SPARE_TIME: Nanos = Nanos(4_000_000_000);
/// Connections to one upstream at a time: further calls wait for one.
pub const CALL_CONNECTIONS_MAX: usize = 64;
/// Of these so many are kept while nobody calls.
pub const CALL_IDLE_MAX: usize = 8;
/// For so long: common servers keep an idle connection for a minute or more.
pub const CALL_IDLE_TIME: Nanos = Nanos(30_000_000_000);
/// The longest that a call may take, whatever its module says.
pub const CALL_TIME_MAX: Nanos = Nanos(300_000_000_000);

const _: () = assert!(CALL_TIME_MAX.0 < SILENT_TIME_MAX.0);
const _: () = assert!(METER_PERIOD.0 < METER_TIME_MAX.0);
const _: () = assert!(READ_LENGTH <= SEND_LENGTH_MAX);
const _: () = assert!(CALL_IDLE_MAX <= CALL_CONNECTIONS_MAX);
