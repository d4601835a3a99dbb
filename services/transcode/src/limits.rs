//! Every limit of the module, with its reason.

/// Sizes that the node takes, in pixels.
pub const WIDTH_MIN: u16 = 16;
/// As above.
pub const WIDTH_MAX: u16 = 1920;
/// As above.
pub const HEIGHT_MIN: u16 = 16;
/// As above.
pub const HEIGHT_MAX: u16 = 1080;

/// Pixels of a picture that is packed here: 800 x 480, the largest display that is common on small
/// devices. A call of a module ends after 5 ms, and takes all streams with it; packing so many
/// takes 2 ms (docs/guides/transcode.md, "What it costs").
pub const PIXELS_MAX: u32 = 384_000;
/// Floyd-Steinberg in colours takes twice as long, so that half as many are allowed, and each
/// counts for two in a call.
pub const SLOW_WEIGHT: u32 = 2;
/// Pixels that are packed in one call, for the same reason: one largest picture, or several small
/// ones.
pub const PIXELS_PER_CALL_MAX: u32 = 400_000;
/// Bytes that one call gives on: as many as a module may make in a buffer (docs/reference/proxy-wasm.md).
pub const OUTPUT_LENGTH_MAX: usize = 1 << 20;

/// Pictures in a second, in thousandths, that the node takes.
pub const RATE_MIN: u32 = 1_000;
/// As above.
pub const RATE_MAX: u32 = 60_000;
/// The quality of JPEG that the node takes: 2 is the best.
pub const QUALITY_MIN: u8 = 2;
/// As above.
pub const QUALITY_MAX: u8 = 31;

/// Colours of a device's own palette: one is no picture.
pub const COLOURS_MIN: usize = 2;
/// A pixel is a byte at most.
pub const COLOURS_MAX: usize = 256;

/// Byte rates: a picture of 32 x 32 in black and white every second is a kbit/s.
pub const KBITS_MIN: u32 = 1;
/// More than any device's link; so that sums of bits stay far from their end.
pub const KBITS_MAX: u32 = 1_000_000;
/// For how long a device may get more than its byte rate after a pause, in milliseconds of the
/// pictures' time: a few pictures, which any device's link holds.
pub const BURST_MS: i64 = 250;

/// Streams that play at a time when the configuration does not say it. Each has up to 100 KiB of
/// tables; the node's processors carry fewer.
pub const STREAMS_DEFAULT: usize = 64;
/// The most that the configuration may say: their tables are 25 MiB.
pub const STREAMS_MAX: usize = 256;
/// Changes of a stream that wait for their first picture: a hand at a slider makes some in a
/// second, and a change takes a fifth of one.
pub const CHANGES_WAITING_MAX: usize = 8;

/// Bytes of a request's query: a palette of 256 colours takes 1,791, or 2,301 with its commas
/// written as %2C.
pub const QUERY_LENGTH_MAX: usize = 8 << 10;
/// Bytes of one setting.
pub const VALUE_LENGTH_MAX: usize = 2 << 10;
/// Characters of what a device or the node has said that an answer repeats.
pub const QUOTED_LENGTH_MAX: usize = 40;
/// Characters of the node's sentence that an answer repeats.
pub const SENTENCE_LENGTH_MAX: usize = 200;

/// What a device that is refused for want of room shall wait, in seconds: films end, and devices
/// that all ask again at once shall not.
pub const RETRY_AFTER: u32 = 10;

const _: () = assert!(PIXELS_MAX <= PIXELS_PER_CALL_MAX);
const _: () = assert!(PIXELS_MAX as usize * 2 + crate::frame::HEAD_LENGTH <= OUTPUT_LENGTH_MAX);
const _: () = assert!(COLOURS_MAX * 7 - 1 <= VALUE_LENGTH_MAX && COLOURS_MAX <= 256);
const _: () = assert!(VALUE_LENGTH_MAX < QUERY_LENGTH_MAX);
