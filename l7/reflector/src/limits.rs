//! Size limits and time limits.

use units::Nanos;

/// Payload that a channel of audio keeps: 65 s at 128 kbit/s, 26 s at 320 kbit/s. In bytes, as
/// memory is what has to be bounded; a stream's bitrate is whatever its origin says.
pub const RING_AUDIO_LENGTH: usize = 1024 * 1024;
/// Payload that a channel of MPEG-TS keeps: 8 s at 8 Mbit/s, so that it holds a point where a
/// decoder can begin. Broadcasters have one every 0.5 to 5 s.
pub const RING_VIDEO_LENGTH: usize = 8 * 1024 * 1024;
/// Bytes of a ring per unit of media that its index holds: usual frames have 188 to 1,000. Bounds
/// the index of a ring, 16 bytes a unit and 8 more where a decoder can begin, against an origin
/// that sends the shortest frames: to three eighths of the payload, and twice that if the
/// operator's ring is no power of two, as capacity doubles.
pub const RING_BYTES_PER_UNIT: usize = 64;
/// Body of a redirect or an error that is sent to all waiting listeners. Servers' error pages have
/// a few hundred bytes.
pub const ANSWER_LENGTH_MAX: usize = 64 * 1024;

/// Distance from the live edge at which a listener starts: players in use buffer 1 to 3 s before
/// they begin, and get that at once.
pub const BURST: Nanos = Nanos::from_millis(4_000);
/// Distance from the live edge in bytes, for media whose headers do not give the time. Icecast's
/// default is 65,536 bytes too.
pub const BURST_LENGTH: usize = 64 * 1024;

/// Bytes without a frame after which a stream is treated as raw. More than eight of the longest
/// frames (ADTS: 8,191 bytes).
pub const UNFRAMED_LENGTH_MAX: usize = 64 * 1024;
/// Length of an ID3v2 tag within a stream that is skipped as a whole: enough for a picture.
pub const ID3_LENGTH_MAX: usize = 4 * 1024 * 1024;

/// Payload between two blocks of metadata for a listener: what Icecast sends, 1 s at 128 kbit/s.
pub const ICY_INTERVAL: u32 = 16_000;
/// The largest interval that an origin may have: servers in use have 8,192 to 65,536. More is
/// taken for an error, as titles would come once in minutes.
pub const ICY_INTERVAL_MAX: u32 = 1024 * 1024;
/// Titles kept for listeners that are behind. Songs change once in minutes; if more change within a
/// ring, those furthest behind miss some.
pub const TITLES_COUNT_MAX: usize = 64;

/// Listeners of one channel: a port of a node has as many connections to one address.
pub const LISTENERS_COUNT_MAX: usize = 65_536;
/// Time in which a listener may take nothing while bytes are available. Longer than a mobile
/// network's handover; a player has run dry by then.
pub const LISTENER_STALL_MAX: Nanos = Nanos::from_millis(30_000);

/// Time until the origin's head, connecting included.
pub const HEAD_WAIT_MAX: Nanos = Nanos::from_millis(10_000);
/// Time without bytes after which the origin is considered dead. A live source sends many times a
/// second.
pub const SILENCE_MAX: Nanos = Nanos::from_millis(15_000);
/// Time since the origin's last byte during which it is retried while listeners wait: more than a
/// restart of a server takes. Players give up after 10 to 60 s without data.
pub const RECONNECT_MAX: Nanos = Nanos::from_millis(30_000);
/// The first pause before the origin is tried again.
pub const BACK_OFF_MIN: Nanos = Nanos::from_millis(250);
/// The longest pause: each doubles the one before.
pub const BACK_OFF_MAX: Nanos = Nanos::from_millis(4_000);
/// Age of a connection after which the next pause is the shortest again. An origin that accepts and
/// closes at once is not retried four times a second.
pub const STABLE: Nanos = Nanos::from_millis(10_000);

const _: () = assert!(RING_AUDIO_LENGTH > 2 * UNFRAMED_LENGTH_MAX);
const _: () = assert!(RING_AUDIO_LENGTH > 4 * BURST_LENGTH);
const _: () = assert!(RING_VIDEO_LENGTH >= RING_AUDIO_LENGTH);
const _: () = assert!(UNFRAMED_LENGTH_MAX > 3 * 8_191 + 10, "what is needed to find a frame fits");
const _: () = assert!(BACK_OFF_MIN.0 < BACK_OFF_MAX.0 && BACK_OFF_MAX.0 < RECONNECT_MAX.0);
const _: () = assert!(ICY_INTERVAL > 0 && ICY_INTERVAL <= ICY_INTERVAL_MAX);
