//! Every limit, with its reason.

use units::Nanos;

/// The least width and height: one macroblock.
pub const SIDE_MIN: u16 = 16;
/// The most: what MPEG-2 shows at main profile, high level.
pub const WIDTH_MAX: u16 = 1_920;
/// See [`WIDTH_MAX`].
pub const HEIGHT_MAX: u16 = 1_080;
/// Thousandths of a picture a second, the least and the most: a slide show, and what displays show.
pub const RATE_MIN: u32 = 1_000;
/// See [`RATE_MIN`].
pub const RATE_MAX: u32 = 60_000;

/// Bytes of the longest picture: of three bytes a pixel. No JPEG of one is longer.
pub const PICTURE_LENGTH_MAX: usize = WIDTH_MAX as usize * HEIGHT_MAX as usize * 3;

/// Bytes of a stream's beginning in which it has to show what it is: some PES packets of another
/// stream, or a jump into the middle of one.
pub const PROBE_LENGTH_MAX: usize = 64 * 1024;
/// Bytes that are kept since the last I picture: half a second at 64 Mbit/s, and seconds at what
/// main level has.
pub const KEPT_LENGTH_MAX: usize = 4 * 1024 * 1024;
/// Bytes of a stream in which there has to be an I picture: what is kept, and as many again for one
/// that is joined behind one.
pub const UNSEEN_LENGTH_MAX: u64 = 2 * KEPT_LENGTH_MAX as u64;
/// Bytes that wait for a codec before its server is read no further: a read and what follows it.
pub const AHEAD_LENGTH_MAX: usize = 256 * 1024;
/// Bytes of a sequence header with its extensions and user data; two matrices are 128 of them.
pub const SEQUENCE_LENGTH_MAX: usize = 4 * 1024;

/// How late a picture may be, for who is slow, before a newer one is looked for: nobody sees a
/// difference of five pictures at 25 a second, and a pause in the network is mostly shorter.
pub const LATE_MAX: Nanos = Nanos(200_000_000);

const _: () = assert!(PROBE_LENGTH_MAX <= KEPT_LENGTH_MAX);
const _: () = assert!(AHEAD_LENGTH_MAX <= KEPT_LENGTH_MAX);
