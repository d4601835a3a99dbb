//! Limits, each with its reason.

use units::Nanos;

/// Smallest width and height in pixels: one macroblock.
pub const SIDE_MIN: u16 = 16;
/// Largest width in pixels: main profile, high level of MPEG-2.
pub const WIDTH_MAX: u16 = 1_920;
/// Largest height in pixels: main profile, high level of MPEG-2.
pub const HEIGHT_MAX: u16 = 1_080;
/// Lowest picture rate, in thousandths of a picture per second: a slide show.
pub const RATE_MIN: u32 = 1_000;
/// Highest picture rate, in thousandths of a picture per second: that of common displays.
pub const RATE_MAX: u32 = 60_000;

/// Bytes of the longest picture: three per pixel. No JPEG of one is longer.
pub const PICTURE_LENGTH_MAX: usize = WIDTH_MAX as usize * HEIGHT_MAX as usize * 3;

/// Bytes within which the format of a stream is detected: some PES packets of another stream, or a
/// start in the middle of one.
pub const PROBE_LENGTH_MAX: usize = 64 * 1024;
/// Bytes kept since the last I picture: half a second at 64 Mbit/s, and seconds at the rates of
/// main level.
pub const KEPT_LENGTH_MAX: usize = 4 * 1024 * 1024;
/// Bytes of a stream within which an I picture is required: as many as are kept, and as many again
/// for a stream joined right after one.
pub const UNSEEN_LENGTH_MAX: u64 = 2 * KEPT_LENGTH_MAX as u64;
/// Bytes pending for a codec at which reading from the server pauses: one read and the data that
/// follows it.
pub const AHEAD_LENGTH_MAX: usize = 256 * 1024;
/// Bytes of a sequence header with its extensions and user data; two matrices are 128 of them.
pub const SEQUENCE_LENGTH_MAX: usize = 4 * 1024;

/// Delay of a picture, for a slow client, from which on a newer one replaces it: at 25 pictures a
/// second a difference of five is not visible, and most pauses of the network are shorter.
pub const LATE_MAX: Nanos = Nanos(200_000_000);

const _: () = assert!(PROBE_LENGTH_MAX <= KEPT_LENGTH_MAX);
const _: () = assert!(AHEAD_LENGTH_MAX <= KEPT_LENGTH_MAX);
