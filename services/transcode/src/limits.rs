//! Limits of the module, each with its reason.

/// Smallest width that the node accepts, in pixels.
pub const WIDTH_MIN: u16 = 16;
/// Largest width that the node accepts, in pixels.
pub const WIDTH_MAX: u16 = 1920;
/// Smallest height that the node accepts, in pixels.
pub const HEIGHT_MIN: u16 = 16;
/// Largest height that the node accepts, in pixels.
pub const HEIGHT_MAX: u16 = 1080;

/// Pixels of a picture that is packed here: 800 x 480, the largest display that is common on small
/// devices. A call of a module is stopped after 5 ms, and all streams with it; packing this many
/// pixels takes 2 ms (docs/guides/transcode.md, "What it costs").
pub const PIXELS_MAX: u32 = 384_000;
/// Weight of pixels with Floyd-Steinberg in colours, which takes twice as long: half as many are
/// allowed, and each counts for two in a call.
pub const SLOW_WEIGHT: u32 = 2;
/// Pixels that are packed in one call, for the same reason: one largest picture, or several small
/// ones.
pub const PIXELS_PER_CALL_MAX: u32 = 400_000;
/// Output of one call in bytes: the limit of a module's buffer (docs/reference/proxy-wasm.md).
pub const OUTPUT_LENGTH_MAX: usize = 1 << 20;

/// Lowest picture rate that the node accepts, in thousandths of a picture per second.
pub const RATE_MIN: u32 = 1_000;
/// Highest picture rate that the node accepts, in thousandths of a picture per second.
pub const RATE_MAX: u32 = 60_000;
/// Best quality of JPEG that the node accepts.
pub const QUALITY_MIN: u8 = 2;
/// Lowest quality of JPEG that the node accepts.
pub const QUALITY_MAX: u8 = 31;

/// Smallest number of colours in a device's own palette: one colour shows no picture.
pub const COLOURS_MIN: usize = 2;
/// Largest number of colours in a device's own palette: a pixel is at most a byte.
pub const COLOURS_MAX: usize = 256;

/// Lowest byte rate: a picture of 32 x 32 in black and white every second is a kbit/s.
pub const KBITS_MIN: u32 = 1;
/// Highest byte rate: more than any device's link; keeps sums of bits far from overflow.
pub const KBITS_MAX: u32 = 1_000_000;
/// Time for which a device may get more than its byte rate after a pause, in milliseconds of the
/// pictures' time: a few pictures, which any device's link buffers.
pub const BURST_MS: i64 = 250;

/// Default limit of simultaneous streams. Each has up to 100 KiB of tables; the node's processors
/// carry fewer.
pub const STREAMS_DEFAULT: usize = 64;
/// Largest configurable limit of streams: their tables take 25 MiB.
pub const STREAMS_MAX: usize = 256;
/// Changes of a stream that wait for their first picture: a user at a slider makes some per second,
/// and a change takes a fifth of one.
pub const CHANGES_WAITING_MAX: usize = 8;

/// Length of a request's query in bytes: a palette of 256 colours takes 1,791, or 2,301 with its
/// commas encoded as %2C.
pub const QUERY_LENGTH_MAX: usize = 8 << 10;
/// Length of one setting in bytes.
pub const VALUE_LENGTH_MAX: usize = 2 << 10;
/// Characters of a device's or the node's text that a response quotes.
pub const QUOTED_LENGTH_MAX: usize = 40;
/// Characters of the node's message that a response quotes.
pub const SENTENCE_LENGTH_MAX: usize = 200;

/// Seconds that a device refused for lack of capacity should wait: videos end, and devices should
/// not all retry at once.
pub const RETRY_AFTER: u32 = 10;

const _: () = assert!(PIXELS_MAX <= PIXELS_PER_CALL_MAX);
const _: () = assert!(PIXELS_MAX as usize * 2 + crate::frame::HEAD_LENGTH <= OUTPUT_LENGTH_MAX);
const _: () = assert!(COLOURS_MAX * 7 - 1 <= VALUE_LENGTH_MAX && COLOURS_MAX <= 256);
const _: () = assert!(VALUE_LENGTH_MAX < QUERY_LENGTH_MAX);
