//! Size limits and time limits. Those of one channel are in `reflector::limits`.

use units::{Bytes, Nanos};

/// Bytes of a channel's key, if its module names one. A URL fits; players' are some dozens.
pub const KEY_LENGTH_MAX: usize = 1024;

/// Channels of one service: each has a connection to an origin, and at least 64 KiB.
pub const CHANNELS_COUNT_MAX: usize = 1024;
/// Upper limit of the payload kept by all channels of a service: 64 of video, or 512 of audio. The
/// index is a tenth of it, three eighths at most.
pub const PAYLOAD_MAX: Bytes = Bytes(512 * 1024 * 1024);
/// Bytes of all requests that wait for an origin's head. They are kept until then, since each has
/// to go to the origin on its own if the stream is not shared; most have some hundred bytes.
pub const WAITING_LENGTH_MAX: usize = 16 * 1024 * 1024;
/// Seconds until a refused client may retry: a listener stays for minutes.
pub const RETRY_AFTER_SECONDS: u64 = 10;

/// Longest time for which bytes of an origin are batched. A send costs seven microseconds per
/// listener, nearly all of them in the kernel, however short it is; a stream of 128 kbit/s arrives
/// in eleven segments a second, and is sent in five sends in two seconds. A listener begins 4 s
/// before the live edge, so that its player does not run dry.
pub const BATCH_MAX: Nanos = Nanos::from_millis(400);
/// Bytes that are worth a send: faster streams are batched only until this much has arrived. Eleven
/// segments: from there on the cost of a send is that of its segments.
pub const BATCH_LENGTH: usize = 16 * 1024;
/// Time after an origin's head without batching: a listener that waits for the first frame gets it
/// at once.
pub const BATCH_DELAY: Nanos = Nanos::from_millis(1_000);

/// Longest time for which an origin is not read while all its listeners are behind by more than
/// half of the ring. The origin blocks, as it would for each of them; a file that is not recognised
/// as one arrives whole. A live origin continues, and a slow listener has to skip in the end.
pub const PAUSE_MAX: Nanos = Nanos::from_millis(5_000);

/// Bytes read from an origin before other work: twice the initial burst of common servers.
pub const ORIGIN_BURST: usize = 128 * 1024;
/// Bytes of one send to a listener: a burst at 128 kbit/s.
pub const SEND_LENGTH_MAX: usize = 64 * 1024;
/// Listeners served before other work: about as many as fit in the shortest turn of a session, 100
/// µs.
pub const SENDS_MAX: usize = 16;
/// Bytes that the kernel may buffer for a listener that does not take them. More would be played
/// minutes late, and is memory on no account: 8 s at 128 kbit/s, and a round trip of 80 ms at 12
/// Mbit/s.
pub const UNSENT_MAX: usize = 128 * 1024;

/// Bytes after its request that a listener may send, which are discarded: a player sends none, a
/// browser might pipeline a request or two.
pub const INPUT_LENGTH_MAX: usize = 16 * 1024;
/// Time for the rest of a response to arrive, and the client to close.
pub const DEPARTURE_MAX: Nanos = Nanos::from_millis(10_000);

const _: () = assert!(BATCH_LENGTH <= ORIGIN_BURST);
const _: () = assert!(BATCH_MAX.0 * 10 <= reflector::limits::BURST.0, "what waits is not missed");
const _: () = assert!(PAUSE_MAX.0 * 2 < reflector::limits::SILENCE_MAX.0, "it is not silent");
const _: () = assert!(SEND_LENGTH_MAX < u32::MAX as usize);
