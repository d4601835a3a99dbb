//! What there is at most of everything, and how long anything is waited for. What one channel may
//! have is in `reflector::limits`.

use units::{Bytes, Nanos};

/// Bytes of a channel's key, if its module names one. A URL fits; players' are some dozens.
pub const KEY_LENGTH_MAX: usize = 1024;

/// Channels of one service: each has a connection to an origin, and at least 64 KiB.
pub const CHANNELS_COUNT_MAX: usize = 1024;
/// Payload that all channels of a service may come to keep: 64 of video, or 512 of audio. An
/// index beside it is a tenth as large, three eighths at most.
pub const PAYLOAD_MAX: Bytes = Bytes(512 * 1024 * 1024);
/// Requests of those who wait for an origin's head, all together. They are kept until then, since
/// each has to go to the origin alone if the stream is not shared; most have some hundred bytes.
pub const WAITING_LENGTH_MAX: usize = 16 * 1024 * 1024;
/// When somebody who found no room may ask again: a listener stays for minutes.
pub const RETRY_AFTER_SECONDS: u64 = 10;

/// How long an origin's bytes may wait for others. To send costs seven microseconds for each
/// listener, nearly all of them the kernel's, however little it is; a stream of 128 kbit/s comes in
/// eleven segments a second, and goes out in five sends in two seconds. A listener begins 4 s
/// before the live edge, so that its player has not run dry.
pub const GATHER_MAX: Nanos = Nanos::from_millis(400);
/// So much is worth a send: of faster streams less time is gathered, as long as it takes to have
/// this. Eleven segments: the costs of a send are those of its segments then.
pub const GATHER_LENGTH: usize = 16 * 1024;
/// Nothing is gathered for so long after an origin's head: who waits for the first frame hears it
/// at once.
pub const GATHER_NOT: Nanos = Nanos::from_millis(1_000);

/// How long an origin is not read while all its listeners are behind by more than half of the
/// ring. It notices and waits, as it would for each of them; a file that does not say that it is
/// one arrives whole. A live one goes on meanwhile, and whoever is slow has to skip in the end.
pub const HOLD_MAX: Nanos = Nanos::from_millis(5_000);

/// Bytes that are read of an origin before others have their turn: twice the burst that servers in
/// use begin with.
pub const ORIGIN_PORTION: usize = 128 * 1024;
/// Bytes of one send to a listener: a burst at 128 kbit/s.
pub const SEND_LENGTH_MAX: usize = 64 * 1024;
/// Listeners that are served before others have their turn: about as many as the shortest turn of
/// a session, 100 µs, is enough for.
pub const SENDS_MAX: usize = 16;
/// Bytes that the kernel may keep for a listener that does not take them. More would be played
/// minutes late, and is memory that nobody has on his account: 8 s at 128 kbit/s, and 80 ms of
/// the way there and back at 12 Mbit/s.
pub const UNSENT_MAX: usize = 128 * 1024;

/// What a listener may say behind its request, and nobody hears: a player says nothing, a browser
/// might pipeline a request or two.
pub const SAID_LENGTH_MAX: usize = 16 * 1024;
/// How long a response that is over may take to arrive and its client to close.
pub const LEAVING_MAX: Nanos = Nanos::from_millis(10_000);

const _: () = assert!(GATHER_LENGTH <= ORIGIN_PORTION);
const _: () = assert!(GATHER_MAX.0 * 10 <= reflector::limits::BURST.0, "what waits is not missed");
const _: () = assert!(HOLD_MAX.0 * 2 < reflector::limits::SILENCE_MAX.0, "it is not silent");
const _: () = assert!(SEND_LENGTH_MAX < u32::MAX as usize);
